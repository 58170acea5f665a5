"""Starts several processes on one CPU, as torchrun would on several GPUs. They are forked from a server that
has already imported torch, so a start takes a tenth of a second instead of three."""

import atexit
import dataclasses
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
import verifiers  # noqa: E402
from appendix.plumbing import DataError  # noqa: E402
from notebooks.models.make_tiny import init_weights, symbol_tokenizer, tiny_config
from model import Qwen3, save  # noqa: E402

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["train", "torch._dynamo"]
)  # FSDP imports the latter at its first use

# Flags of all test runs, which are small: on the CPU, with the tiny model.
FEW = ["--task", f"{ROOT}/tests/ranks.py:few_sums"]
SMALL = ["--device", "cpu", "--model", str(ROOT / "notebooks" / "tiny")]
SMALL += [*FEW, "--prompts-per-step", "4", "--num-samples", "4"]
SMALL += ["--eval-problems", "16", "--eval-every", "3", "--save-every", "3"]
SMALL += ["--max-new-tokens", "24"]  # which cuts off a quarter of the completions
TO_THE_END = ["--max-new-tokens", "80"]


KL = f"{ROOT}/notebooks/methods/kl.py"
COIN = f"{ROOT}/notebooks/rewards/guards.py:coin"  # a reward that random weights can earn


class Interrupts:
    """An environment that replies to the first </think>, and then no more."""

    def __init__(self, problem):
        self.replies = iter([problem["answer"]])

    def reply(self, text):
        return next(self.replies, None)


def few_sums():
    return verifiers.arithmetic(train_size=200, test_size=20)


def interrupted():
    task = verifiers.arithmetic()
    return dataclasses.replace(task, stops=("</think>",), turns=Interrupts)


INTERRUPTED = f"{ROOT}/tests/ranks.py:interrupted"
ONE_DIGIT = f"{ROOT}/notebooks/tasks/one_digit.py:one_digit"  # a+b modulo 10


@functools.cache
def base():
    """Return the folder of a model with random weights and the vocabulary of the task one-digit."""
    folder = Path(tempfile.mkdtemp(), "base")
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    tokenizer = symbol_tokenizer([*"0123456789+="])
    model = Qwen3(tiny_config(tokenizer.num_tokens, eos_token_id=0))
    save(init_weights(model, torch.Generator().manual_seed(0)), tokenizer, folder)
    return str(folder)


def _process(queue, rank, environment, function, args):
    torch.set_num_threads(1)
    os.environ.update(environment)  # train.py was imported before the fork and has read the old one
    train.RANK = int(environment.get("RANK", 0))
    train.WORLD = int(environment.get("WORLD_SIZE", 1))
    try:
        queue.put((rank, function(*args), None))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))


def start(world, function, *args):
    """Start `world` processes that call function(*args). Returns (processes, queue of (rank, result, error))."""
    queue = CONTEXT.Queue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    queue.store = store  # it lives as long as the queue is in use
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
    }
    processes = []
    for rank in range(world):
        alone = world == 1
        environment = {} if alone else {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        work = (queue, rank, environment, function, args)
        process = CONTEXT.Process(target=_process, args=work, daemon=True)
        process.start()
        processes.append(process)
    return processes, queue


def run(world, function, *args, timeout=120):
    """Return what function(*args) returns in each of `world` processes."""
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


# ---- A run of train.py, and what it leaves behind ------------------------------------------------


def main(*flags):
    """Run train.main. Returns its message if it ends early, else None."""
    try:
        train.main(flags)
    except (SystemExit, train.ModelError, DataError, OSError) as error:
        return str(error)
    return None


def loaded(*flags):
    """Return a run that is only in memory."""
    return train.load_run(train.parse_args([*SMALL, "--name", "unwritten", *flags]))


def rows_of(folder):
    path = Path(folder) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder):
    """Return the log without times. If a step has two rows, as after a crash, the last one counts."""
    rows = {row["step"]: row for row in rows_of(folder)}
    return [
        {name: value for name, value in row.items() if "seconds" not in name}
        for row in rows.values()
    ]


def weights(folder):
    """Return all weights of the final model as one vector."""
    tensors = load_file(Path(folder) / "final" / "model.safetensors")
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def last_step(folder):
    """Return the newest step with a complete row in the log, or 0."""
    path = Path(folder) / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return max([json.loads(line)["step"] for line in lines], default=0)


def checkpoints(folder):
    return sorted(path.name for path in (Path(folder) / "checkpoints").glob("step_*"))
