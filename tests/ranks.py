"""Several processes on one CPU, as torchrun would start them on several GPUs: forked from a server that has imported
torch already, so that a start costs a tenth of a second and not three."""

import atexit
import functools
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]

import train  # noqa: E402
from make_tiny import init_weights, symbol_tokenizer, tiny_config  # noqa: E402
from model import Qwen3, save  # noqa: E402

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["train", "torch._dynamo"]
)  # FSDP imports the latter when it is first used


def _process(queue, rank, environment, function, args):
    torch.set_num_threads(1)
    os.environ.update(environment)
    try:
        queue.put((rank, function(*args), None))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))


def start(world, function, *args, environment=None):
    """Start `world` processes that call function(*args) -> (processes, queue of (rank, result, error or None))."""
    queue, store = (
        CONTEXT.Queue(),
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    )
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        **(environment or {}),
    }
    processes = []
    for rank in range(world):
        ranks = (
            {"RANK": str(rank), "LOCAL_RANK": str(rank), **common}
            if world > 1
            else (environment or {})
        )
        processes.append(
            CONTEXT.Process(target=_process, args=(queue, rank, ranks, function, args), daemon=True)
        )
        processes[-1].start()
    queue.store = store  # as long as the queue is in use
    return processes, queue


def run(world, function, *args, timeout=120):
    """What function(*args) returns in each of `world` processes."""
    processes, queue = start(world, function, *args)
    results = {}
    try:
        for _ in range(world):
            rank, result, error = queue.get(timeout=timeout)
            assert error is None, f"rank {rank}: {error}"
            results[rank] = result
    finally:
        for process in processes:
            process.join(5 if len(results) == world else 0)
            process.kill()
    return [results[rank] for rank in range(world)]


# ---- A model to start from, and the reward that any model can earn ------------------------------------

COIN = f"{ROOT}/notebooks/rewards.py:coin"  # by chance: from random weights on nothing else is ever paid


@functools.cache
def base():
    """A model directory: random weights, the vocabulary of the task one-digit."""
    folder = Path(tempfile.mkdtemp(), "base")
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    tokenizer = symbol_tokenizer([*"0123456789+="])
    model = Qwen3(tiny_config(tokenizer.num_tokens, eos_token_id=0))
    save(init_weights(model, torch.Generator().manual_seed(0)), tokenizer, folder)
    return str(folder)


# ---- A run of train.py in such a process, and what it left behind ----------------------------------------------------


def main(*flags):
    """train.main -> what it says when it ends early."""
    try:
        train.main(flags)
    except (SystemExit, train.ModelError) as error:
        return str(error)


def metrics(folder):
    """The log without what depends on the clock."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def weights(folder):
    """All weights of the run's final model, or of a model directory, as one vector."""
    folder = folder / "final" if (folder / "final").exists() else folder
    return torch.cat(
        [weight.flatten() for weight in load_file(folder / "model.safetensors").values()]
    )
