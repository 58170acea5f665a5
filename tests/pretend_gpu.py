"""A pretended CUDA GPU: tensors that say they are on cuda:0, but are computed by the CPU.

    with PretendGPU() as gpu:              # torch.cuda.is_available() is True, and bf16 is supported
        train.main(["--steps", "2"])
    print(gpu.waits, gpu.uploads)          # Counters of "file:line operation"

What it shows: an operation on tensors of two devices raises, as do a CPU generator and .numpy() of a
GPU tensor; torch.autocast casts by CUDA's lists, which reveals dtypes that do not fit; and it counts
where Python waits for the device. As on CUDA, it allows CPU numbers (0-dim) in pointwise operations,
CPU indices into GPU tensors, and copies. It does not show kernels, speed, memory, streams, NCCL or
torch.compile.

How: OnGPU is a wrapper around a CPU tensor. For C++ it is on the meta device, so that autograd asks
for no GPU. Two modes see every operation: Functions above autograd (devices that are asked for,
autocast), and PretendGPU.compute below it (which tensors meet, and the result).
"""

import contextlib
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
import torch._dynamo  # before anything is patched: it looks torch.cuda up
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten
OUR_FILES = ("chat.py", "plumbing.py", "model.py", "rlvr.py", "eval.py", "train.py")

# What CUDA's autocast computes in 16 and in 32 bits (ATen/autocast_mode.h).
IN_16_BITS = set(
    "linear matmul __matmul__ __rmatmul__ mm bmm addmm baddbmm einsum "
    "scaled_dot_product_attention".split()
)
IN_32_BITS = set(
    "exp expm1 log log1p log2 log10 reciprocal rsqrt pow __pow__ softplus layer_norm rms_norm "
    "softmax log_softmax cumsum cumprod sum prod norm logsumexp nll_loss kl_div cross_entropy "
    "mse_loss dist tan acos asin cosh sinh".split()
)
INDEXING = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
}
COPIES = {aten.copy_.default, aten._to_copy.default, aten._foreach_copy_.default}
WAITS = {  # the size or the value of the result is needed in Python
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.equal.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}


def leaves(x):
    """Yield what is in lists, tuples and dicts, at any depth. (PyTorch's tree_leaves is slower.)"""
    if isinstance(x, (list, tuple)):
        for each in x:
            yield from leaves(each)
    elif isinstance(x, dict):
        yield from leaves([*x.values()])
    else:
        yield x


def mapped(function, x):
    """Return x with the function applied to its leaves."""
    if isinstance(x, (list, tuple)):
        return type(x)([mapped(function, each) for each in x])
    if isinstance(x, dict):
        return {name: mapped(function, each) for name, each in x.items()}
    return function(x)


def is_gpu(device):
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"


class OnGPU(torch.Tensor):
    """A tensor that says it is on cuda:0; `inner`, on the CPU, holds its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",
        )
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return PretendGPU.now.compute(func, args, kwargs or {})

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    @property
    def data(self):
        return OnGPU(self.inner.detach())

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.inner = other.inner

    def get_device(self):
        return 0

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    def __repr__(self):
        return f"OnGPU({self.inner!r})"


class Operations(TorchDispatchMode):
    """Sees every operation of ATen, below autograd."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return PretendGPU.now.compute(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """Sees every function of torch, above autograd."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0].to(CUDA)
        if name == "to":
            args = (args[0], *(CUDA if is_gpu(x) else x for x in args[1:]))
        asked = is_gpu(kwargs.get("device"))
        if asked:
            kwargs = {**kwargs, "device": CUDA}  # C++ wants the 0 of cuda:0
            if name in ("tensor", "as_tensor"):
                return func(*args, **{**kwargs, "device": "cpu"}).to(CUDA)
        ours = any(isinstance(x, OnGPU) for x in leaves((args, kwargs)))
        if ours and name == "numpy":
            return args[0].numpy()
        if ours and name == "tolist":
            return args[0].cpu().tolist()
        if ours and isinstance(kwargs.get("generator"), torch.Generator):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if ours and torch.is_autocast_enabled("cuda") and name in IN_16_BITS | IN_32_BITS:
            dtype = torch.get_autocast_dtype("cuda") if name in IN_16_BITS else torch.float32
            args, kwargs = mapped(lambda x: cast(x, dtype), (args, kwargs))
        return self.call(func, args, kwargs, ours, asked)

    def call(self, func, args, kwargs, ours, asked):
        gpu = PretendGPU.now
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            gpu.attention.append((args, kwargs))
        before = gpu.inside
        gpu.inside = ours or asked
        try:
            if name == "backward" and ours:
                with self:  # a mode is off within its own handler, but checkpoints need it
                    gradient = (torch.ones_like(args[0]),)
                    options = {"allow_unreachable": True, "accumulate_grad": True}
                    engine = torch.autograd.graph._engine_run_backward
                    return engine(args, gradient, False, False, (), **options)
            return func(*args, **kwargs)
        finally:
            gpu.inside = before


def cast(x, dtype):
    is_ours = isinstance(x, OnGPU) and x.is_floating_point() and x.dtype != torch.double
    return x.to(dtype) if is_ours else x


def nothing(*args, **kwargs):
    return None


def no_context(*args, **kwargs):
    return contextlib.nullcontext()


PATCHES = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "is_current_stream_capturing": lambda: False,  # which AdamW asks
    "is_bf16_supported": lambda including_emulation=True: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda *_: "a GPU that is not there",
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "set_rng_state": nothing,
    "manual_seed_all": nothing,
    "synchronize": nothing,
    "mem_get_info": lambda *_: (8_000_000_000, 24_000_000_000),
    "empty_cache": nothing,
    "set_device": nothing,
    "_lazy_init": nothing,
    "_is_in_bad_fork": lambda: False,
    "device": no_context,
    "stream": no_context,
    "Stream": mock.Mock(),
    "current_stream": mock.Mock(),
}


class PretendGPU(contextlib.ExitStack):
    """waits: where Python waits for the device. uploads: where something is copied to it.
    attention: (args, kwargs) of each call of scaled_dot_product_attention."""

    now = None

    def __enter__(self):
        PretendGPU.now = self
        self.inside = False  # do tensors that C++ creates meanwhile belong to the GPU?
        self.attention = []
        self.waits = Counter()
        self.uploads = Counter()
        # Tensors of inference mode allow no wrapper.
        self.enter_context(mock.patch.object(torch, "inference_mode", torch.no_grad))
        for name, value in PATCHES.items():
            self.enter_context(mock.patch.object(torch.cuda, name, value))
        missing = "torch.cuda.amp.common.amp_definitely_not_available"
        self.enter_context(mock.patch(missing, lambda: False))
        # A CUDA build of PyTorch on a machine without a GPU would ask the driver for a stream.
        accelerator = "torch.accelerator.current_accelerator"
        self.enter_context(mock.patch(accelerator, lambda check_available=False: None))
        self.enter_context(torch.autograd.set_multithreading_enabled(False))
        self.enter_context(Operations())
        self.enter_context(Functions())
        return self

    def where(self, func):
        """Return our line that led to this operation."""
        frame = sys._getframe(2)
        while frame and Path(frame.f_code.co_filename).name not in OUR_FILES:
            frame = frame.f_back
        if frame is None:
            return f"elsewhere  {func}"
        return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}  {func}"

    def compute(self, func, args, kwargs):
        """Compute an operation of ATen on the CPU. Its result is on the GPU if its operands are."""
        tensors = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        ours = [x for x in tensors if isinstance(x, OnGPU)]
        theirs = [x for x in tensors if not isinstance(x, OnGPU)]
        device = kwargs.get("device")
        if device is not None and device.type == "meta" and self.inside:
            device = CUDA  # C++ asked a tensor of ours where it is
        if not ours and not is_gpu(device):
            return func(*args, **kwargs)
        if ours and func not in COPIES:
            self.check_devices(func, args, tensors, theirs)
        to_gpu = device is None or is_gpu(device)
        self.count(func, args, tensors, ours, theirs, to_gpu)

        is_cast = func is aten._to_copy.default
        if is_cast and ours and to_gpu and kwargs.get("dtype", args[0].dtype) == args[0].dtype:
            return OnGPU(args[0].inner)  # it is there already
        inner_args, inner_kwargs = mapped(
            lambda x: x.inner if isinstance(x, OnGPU) else x, (args, kwargs)
        )
        if device is not None:
            inner_kwargs["device"] = torch.device("cpu")
        out = func(*inner_args, **inner_kwargs)
        if func is aten.copy_.default:
            return args[0]
        if not to_gpu:
            return out
        out = mapped(lambda x: OnGPU(x) if isinstance(x, torch.Tensor) else x, out)
        return return_and_correct_aliasing(func, args, kwargs, out) if ours else out

    def check_devices(self, func, args, tensors, theirs):
        """Raise an error, as CUDA does, if tensors of two devices meet."""
        takes_numbers = torch.Tag.pointwise in func.tags or func in INDEXING
        takes_numbers = takes_numbers or func is aten.fill_.Tensor
        wrong = [x for x in theirs if x.dim() > 0 or not takes_numbers]
        if not wrong:
            return
        indices = args[1] if func in INDEXING and isinstance(args[0], OnGPU) else ()
        if all(any(x is index for index in indices) for x in wrong):
            self.uploads[self.where(func)] += len(wrong)  # CPU indices into a GPU tensor
            return
        shapes = [tuple(x.shape) for x in tensors]
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"cuda:0 and {wrong[0].device}! ({func}, shapes {shapes})"
        )

    def count(self, func, args, tensors, ours, theirs, to_gpu):
        """Note where Python waits for the device, or sends something to it."""
        by_mask = func in INDEXING and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        to_cpu = func is aten._to_copy.default and not to_gpu
        into_cpu = func in COPIES and bool(theirs) and args[0] is theirs[0]
        if ours and (func in WAITS or by_mask or to_cpu or into_cpu):
            self.waits[self.where(func)] += 1
        elif func in COPIES and theirs and any(x.dim() for x in tensors):
            self.uploads[self.where(func)] += 1


class Tape(TorchDispatchMode):
    """Does on a CPU what a CUDA graph does: replay() repeats the recorded operations on the same tensors.
    CUDA does not compute while it records; here, the effects of recording are undone."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.before = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable:
            self.before.append((args[0], args[0].clone()))
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def __exit__(self, *error):
        super().__exit__(*error)
        for tensor, value in reversed(self.before):
            tensor.copy_(value)

    @torch.inference_mode()
    def replay(self):
        for func, args, kwargs, out in self.operations:
            new = func(*args, **kwargs)
            for old, value in zip(leaves(out), leaves(new)):
                if value.data_ptr() != old.data_ptr():  # neither a view nor written in place
                    old.copy_(value)
