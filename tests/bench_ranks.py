"""Memory by number of processes, measured with --fsdp on this machine's CPU.

    python tests/bench_ranks.py              a random model of 100 million parameters in 1, 2 and 4 processes
    python tests/bench_ranks.py --layers 1 --worlds 1 2        a few seconds, to see that it runs

This is no test: it prints a table for people, and a JSON object as the last line. The columns, in gigabytes for each
process: what it holds after an update (weights, moments, gradients); how much anonymous memory (RssAnon) it had at most
while loading, sampling and updating, minus what it had before there was a model; and what it received from the others.
The texts are short, so that logits and activations, which do not shrink with more processes, do not hide the rest.
"""

import argparse
import ctypes
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "notebooks")]

import torch  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import ranks  # noqa: E402
import train  # noqa: E402
from notebooks.models.make_tiny import init_weights, symbol_tokenizer
from model import Config, Qwen3, save  # noqa: E402
from rlvr import GRPO, sample, update_gradients  # noqa: E402

CONFIG = dict(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=24,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=512,
    eos_token_id=0,
)
COLUMNS = ["held", "loading", "sampling", "updating", "received to sample", "to update"]


def anonymous():
    """Return the bytes of this process that are not pages of files. (Mapped weights on disk are pages of files.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024


class Peak(threading.Thread):
    """Watches the anonymous memory of this process."""

    def __init__(self):
        super().__init__(daemon=True)
        self.before = self.most = anonymous()
        self.start()

    def run(self):
        while True:
            self.most = max(anonymous(), self.most)  # in this order: gigabytes() may come between
            time.sleep(0.001)

    def gigabytes(self):
        most, self.most = self.most - self.before, 0
        return most / 1e9


class Traffic(TorchDispatchMode):
    """Adds up the bytes that this process receives if every collective uses the best algorithm (ring or better)."""

    received = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "c10d":
            name = function.__name__
            world = train.WORLD
            tensors = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
            size = max(
                (x.numel() * x.element_size() for x in tensors), default=0
            )  # the whole tensor, not this process's part
            self.received += (2 if "allreduce" in name else 1) * size * (world - 1) / world
        return function(*args, **kwargs or {})


def measure(folder, fsdp):
    """Return the values of COLUMNS. The whole update is laid out as one micro-batch."""
    ctypes.CDLL(None).mallopt(
        -3, 65536
    )  # M_MMAP_THRESHOLD: freed memory goes back to the system at once
    train.start_processes("cpu")
    flags = train.parse_args(
        ["--model", str(folder), "--task", "arithmetic", "--device", "cpu", *["--fsdp"] * fsdp]
    )
    peak = Peak()
    sharder = train.Sharder(flags.device, torch.float32) if flags.fsdp else None
    model = train.load(flags.model, flags.device, torch.float32, sharder=sharder)[0]
    loading = peak.gigabytes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    model.checkpoint_blocks = True
    with Traffic() as to_sample, train.unsharded(model):
        rollouts = sample(model, [[2, 3, 4]], 4, 8)
    sampling = peak.gigabytes()
    with Traffic() as to_update:
        method = GRPO(max_new_tokens=8)
        micros = train.equal_share(method.layout(rollouts, torch.ones(4).bool(), 10**9))
        advantages = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]) * rollouts.mask
        update_gradients(model, rollouts, advantages, method, micros)
        train.clip_gradients(list(model.parameters()))
    optimizer.step()
    tensors = [
        tensor
        for p in model.parameters()
        for tensor in (p, p.grad, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])
    ]
    held = sum((x.to_local() if fsdp else x).numel() * 4 for x in tensors) / 1e9
    return (
        held,
        loading,
        sampling,
        peak.gigabytes(),
        to_sample.received / 1e9,
        to_update.received / 1e9,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument(
        "--worlds", type=int, nargs="*", default=[1, 2, 4], help="numbers of processes"
    )
    args = parser.parse_args()
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Qwen3(Config(**{**CONFIG, "num_hidden_layers": args.layers}))
        init_weights(model, torch.Generator().manual_seed(0))
        tokenizer = symbol_tokenizer([chr(0x4E00 + i) for i in range(4094)])
        save(model, tokenizer, Path(folder) / "model")
        n = sum(p.numel() for p in model.parameters())
        print(
            f"{n:,} parameters in fp32: 16 bytes each are {16 * n / 1e9:.2f} GB (weights, moments, gradients)\n"
            f"{'processes':14}" + "".join(f"{column:>20}" for column in COLUMNS)
        )
        for label, world, fsdp in (
            ("1", 1, False),
            ("2 replicas", 2, False),
            ("2 with --fsdp", 2, True),
            ("4 with --fsdp", 4, True),
        ):
            if world not in args.worlds:
                continue
            each = ranks.run(world, measure, Path(folder) / "model", fsdp, timeout=600)
            result[label] = [max(column) for column in zip(*each)]
            print(
                f"{label:14}" + "".join(f"{gigabytes:20.2f}" for gigabytes in result[label]),
                flush=True,
            )
    rows = [[label, *(f"{value:.2f}" for value in values)] for label, values in result.items()]
    columns = ["GB for each process", *COLUMNS]
    print(json.dumps({"columns": columns, "rows": rows, "parameters": n, **result}))


if __name__ == "__main__":
    main()
