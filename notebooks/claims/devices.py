"""devices.py - what a GPU would have to do, counted and computed on a machine that has none.

    python -m notebooks.claims.devices                kernels, bytes, seconds, memory at Qwen3-0.6B's shape
    python -m notebooks.claims.devices --check        the memory formula against peaks measured on this CPU

Counted: one token of 64 rows is decoded with tensors that have shapes and no numbers (FakeTensorMode), and
each operation of ATen that is no view counts as one kernel, which reads its operands and writes its result
once. A norm is one kernel, as it is on CUDA. Casts are those of torch.autocast.
Computed: seconds from the data sheets' bandwidth and bf16 rate, so no real step can be quicker; and the time
that Python and PyTorch need to start so many operations, measured here. Nothing here was run on a GPU.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import Config, KVCache, Qwen3
from rlvr import CHUNK_ELEMENTS, GRPO, Rollouts, choose, update_gradients
from train import weights_in

BF16 = torch.bfloat16
GPUS = {  # bytes a second, bf16 operations a second (dense, summed in fp32): NVIDIA's data sheets
    "H100 SXM": (3.35e12, 989e12),
    "RTX 4090": (1.008e12, 165e12),
    "RTX 3090": (0.936e12, 71e12),
}
SHAPES = {
    "0.6B": Config(),
    "small": Config(
        vocab_size=32768, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, eos_token_id=0,
    ),
}  # fmt: skip
ROWS, PROMPT, TOKENS = 64, 128, 512  # a step of 8 x 8 completions

warnings.filterwarnings("ignore", "Mismatch dtype")

# ---- 1. Kernels, casts and bytes of one decoded token ---------------------------------------------

NO_KERNEL = {"aten::empty", "aten::_unsafe_view", "aten::detach", "prim::device", "aten::alias"}


class Kernels(TorchDispatchMode):
    """Counts operations, casts, and the bytes that each operation reads and writes."""

    def __init__(self):
        super().__init__()
        self.found = Counter()
        self.paused = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not self.paused:
            self.note(func, (args, kwargs, out))
        return out

    def note(self, func, tensors):
        name = func._schema.name
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if is_view or name in NO_KERNEL:
            return
        tensors = [x for x in tree_leaves(tensors) if isinstance(x, torch.Tensor)]
        self.found["kernels"] += 1
        self.found["casts"] += name == "aten::_to_copy"
        of_weight = tensors[0].dim() == 2 and len(tensors[0]) != ROWS
        self.found["weights cast"] += name == "aten::_to_copy" and of_weight
        if name in ("aten::scatter_", "aten::embedding"):  # these touch only what they move
            tensors = [tensors[-2]] if name == "aten::scatter_" else [tensors[-1]] * 2
        self.found["bytes"] += sum(x.nbytes for x in tensors)


class NormsAreKernels(TorchFunctionMode):
    """One kernel for a norm; under CUDA's autocast it computes in fp32."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.rms_norm:
            return func(*args, **(kwargs or {}))
        x, shape = args
        if torch.is_autocast_enabled("cpu"):
            x = x.float()
        self.kernels.paused = True
        out = func(x, shape, **kwargs).to(x.dtype)
        self.kernels.paused = False
        self.kernels.found["kernels"] += 1
        self.kernels.found["bytes"] += 2 * x.nbytes
        return out


def one_token(model, cache, sliced):
    """What rlvr.sample does for one token of each row."""
    V = model.config.num_tokens

    def head(x, weight):
        return F.linear(x[:, -1], weight[:V] if sliced else weight)[:, :V]

    ids = torch.zeros(len(cache.lengths), 1, dtype=torch.long)
    logits = model(ids, cache, head=head)
    return choose(logits, torch.zeros(len(ids)))


def count(config, how):
    """The Counter of the second token; by then autocast has cast, and keeps, what it can."""
    config = Config(**asdict(config))
    config.num_tokens = config.vocab_size - 1  # as Qwen3's: some rows of the head are no tokens
    half = how != "bf16 weights"  # autocast, on fp32 weights
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model = Qwen3(config)
        with (
            weights_in(torch.float32 if half else BF16, model),
            torch.autocast("cpu", BF16, enabled=half),
        ):
            cache = KVCache(model, ROWS, PROMPT + TOKENS)
            if half:  # as it was under autocast
                cache.k, cache.v = ([x.to(BF16) for x in side] for side in (cache.k, cache.v))
            cache.used = PROMPT + TOKENS // 2 - 2
            cache.lengths = cache.lengths + cache.used
            one_token(model, cache, how == "autocast, head cut")
            with Kernels() as kernels, NormsAreKernels(kernels):
                one_token(model, cache, how == "autocast, head cut")
    return kernels.found


def table_of_tokens(config):
    print(f"One token of {ROWS} rows after {PROMPT + TOKENS // 2} tokens, counted:")
    print(f"  {'':22} {'kernels':>8} {'casts':>6} {'of weights':>11} {'GB moved':>9}")
    found = {}
    for how in ("autocast, head cut", "autocast", "bf16 weights"):
        found[how] = count(config, how)
        n = found[how]
        print(
            f"  {how:22} {n['kernels']:8} {n['casts']:6} {n['weights cast']:11} {n['bytes'] / 1e9:9.2f}"
        )
    return found


# ---- 2. Seconds of a step -----------------------------------------------------------------------


def start_seconds():
    """CPU seconds to start one operation: a model of 28 thin layers, one row, here."""
    torch.set_num_threads(1)
    config = Config(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=16, eos_token_id=0)  # fmt: skip
    with torch.no_grad():
        model = Qwen3(config)
        cache = KVCache(model, 1, 600)
        one_token(model, cache, False)
        with Kernels() as kernels, NormsAreKernels(kernels):
            one_token(model, cache, False)
        best = min(timed(lambda: one_token(model, cache, False)) for _ in range(100))
    return best / kernels.found["kernels"]


def timed(function):
    began = time.thread_time()
    function()
    return time.thread_time() - began


def update_operations(config, tokens):
    """Of forward, recomputed forward and backward: 8 a weight and token, and the attention's."""
    n = number_of_weights(config)
    heads = config.num_attention_heads * config.head_dim
    attention = 4 * config.num_hidden_layers * heads * (PROMPT + TOKENS) / 2
    return tokens * (8 * n + 4 * attention)


def table_of_seconds(config, found):
    start = start_seconds()
    print(
        f"\nA step of {ROWS} completions of {PROMPT} + {TOKENS} tokens, all of full length, computed:"
    )
    print(f"(starting an operation takes {start * 1e6:.1f} us on this CPU, measured now)")
    print(
        f"  {'':10} {'sampling: starting':>19} {'moving bytes':>13} {'update: computing':>18}   seconds, at least"
    )
    n = found["bf16 weights"]
    operations = update_operations(config, ROWS * (PROMPT + TOKENS))
    for name, (bandwidth, rate) in GPUS.items():
        starting = TOKENS * n["kernels"] * start
        moving = TOKENS * n["bytes"] / bandwidth
        print(f"  {name:10} {starting:19.1f} {moving:13.1f} {operations / rate:18.1f}")


# ---- 3. Memory ------------------------------------------------------------------------------------


def number_of_weights(config):
    with torch.device("meta"):
        return sum(param.numel() for param in Qwen3(config).parameters())


def memory(config, rows, width, sampled):
    """(sampling, update): bytes at the worst moment of each.

    Both: 12 a weight for fp32 weights and Adam's moments, and 2 for bf16 copies. sampling: the cache, and
    fp32 tensors of the logits' size; update, in micro-batches of `rows`: 4 a weight for gradients, the
    embedding's twice, the input of each block, what one block keeps, and a chunk of logits."""
    n = number_of_weights(config)
    V, C = config.vocab_size, config.hidden_size
    heads = config.num_attention_heads + config.num_key_value_heads
    cache = (
        4
        * config.num_hidden_layers
        * config.num_key_value_heads
        * config.head_dim
        * sampled
        * width
    )
    sampling = cache + 18 * sampled * V
    block = 5 * C + 4 * config.intermediate_size + 5 * config.head_dim * heads
    kept = 2 * rows * width * (block + C * config.num_hidden_layers)
    logits = 18 * min(CHUNK_ELEMENTS, rows * width * V)
    return 14 * n + sampling, 14 * n + 4 * n + 8 * V * C + kept + logits


def table_of_memory(config):
    width = PROMPT + TOKENS
    print(f"\nGB at the worst moment, completions of {PROMPT} + {TOKENS} tokens, computed:")
    print(f"  {'micro-batch':>12} {'update':>7} {'sampling 8 rows':>16} {'64 rows':>8}   fits on")
    for rows in (1, 4, 8):
        few, update = memory(config, rows, width, 8)
        many, _ = memory(config, rows, width, 64)
        least = max(few, update)  # what is sampled at once is bounded by what is free
        fits = [
            f"{card} GB" for card in (12, 16, 24, 80) if least / 1e9 + 1 < card
        ]  # 1: CUDA's own
        print(
            f"  {rows:9} row {update / 1e9:7.1f} {few / 1e9:16.1f} {many / 1e9:8.1f}   {', '.join(fits)}"
        )


def measure_peaks(config, rows, width, sampled):
    """Run both moments on the CPU -> (sampling, update): the process's peaks, without what it needed before."""
    before = peak()
    model = Qwen3(config)
    model.checkpoint_blocks = True
    method = GRPO(max_new_tokens=width - PROMPT)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for param in model.parameters():
        param.grad = torch.full_like(param, 1e-9)
    optimizer.step()  # now the moments are there
    optimizer.zero_grad()
    with torch.no_grad(), weights_in(BF16, model):
        cache = KVCache(model, sampled, width)
        for layer in cache.k + cache.v:
            layer.fill_(0)  # memory that was never written does not count
        cache.used = width - 1
        cache.lengths += cache.used
        one_token(model, cache, False)
        del cache
    sampling = peak() - before
    ids = torch.randint(config.vocab_size, (rows, width))
    full = torch.ones(rows, dtype=torch.long)
    logp = torch.zeros(rows, width - 1)
    mask = torch.ones_like(logp)
    mask[:, : PROMPT - 1] = 0.0
    lengths = full * (width - PROMPT)
    rollouts = Rollouts(ids, full * PROMPT, lengths, full.bool(), logp, mask, rows)
    micros = method.layout(rollouts, full.bool(), 10**9)
    with torch.autocast("cpu", BF16):
        update_gradients(model, rollouts, torch.ones(1, rows), method, micros)
    optimizer.step()
    return sampling, peak() - before


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kB on Linux


CHECKS = [("small", 1, 640, 8), ("small", 8, 640, 8), ("small", 1, 640, 128)]


def check():
    print("GB: shape, micro-batch x tokens, rows sampled       computed   measured")
    for name, *sizes in CHECKS:
        command = [
            sys.executable,
            "-m",
            "notebooks.claims.devices",
            "--measure",
            name,
            *map(str, sizes),
        ]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = json.loads(printed.splitlines()[-1])
        computed = max(memory(SHAPES[name], *sizes)) / 1e9
        rows, width, sampled = sizes
        print(
            f"  {name:6} {rows} x {width}, {sampled:4} rows {'':19} {computed:8.2f} {max(found) / 1e9:10.2f}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="measure peaks on this CPU, minutes")
    parser.add_argument("--measure", nargs=4, metavar="N", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, *sizes = args.measure
        print(json.dumps(measure_peaks(SHAPES[name], *map(int, sizes))))
    elif args.check:
        check()
    else:
        config = SHAPES["0.6B"]
        table_of_seconds(config, table_of_tokens(config))
        table_of_memory(config)


if __name__ == "__main__":
    main()
