"""Many processes: two, three or four give the same result as one. They run on the CPU (gloo)."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils._python_dispatch import TorchDispatchMode

import ranks
import rlvr
import train
from appendix.plumbing import read_problems
from model import ModelError, load
from ranks import KL, ROOT, SMALL, checkpoints, main, metrics, weights

# 9 held-out problems and 5 problems a step cannot be divided evenly among 2 or 4 processes.
FLAGS = [*SMALL, "--prompts-per-step", "5", "--eval-problems", "9", "--eval-every", "2"]
FLAGS += ["--save-every", "2"]
FOUR = [pytest.mark.slow, pytest.mark.alone]
SHARDED = pytest.mark.parametrize("fsdp", [[], ["--fsdp"]], ids=["replicas", "fsdp"])


# ---- The update ----------------------------------------------------------------------------------

VARIANTS = [
    [],
    ["--norm", "sequence", "--micro-batch-tokens", "60"],
    ["--method", KL, "--kl-coef", "0.1", "--updates-per-batch", "2"],
]


def whole_state(model):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    tensors = get_model_state_dict(model, options=options).values()
    return torch.cat([tensor.flatten() for tensor in tensors]) if tensors else torch.empty(0)


def updates(fsdp):
    """Make three updates of each variant. Returns the texts, the statistics, and the weights at the end.

    In the first update all rows have a signal; in the second only the last row has one, so that the
    other processes have no work of their own; in the third no row has one."""
    train.start_processes("cpu")
    if train.WORLD > 1:
        rlvr.CHUNK_ELEMENTS = 400  # several chunks; their gradients are added in place
    results = []
    for variant in VARIANTS:
        flags = train.parse_args([*FLAGS, *variant, *fsdp, "--name", "unwritten"])
        run = train.load_run(flags)
        for group in run.optimizer.param_groups:
            group["lr"] = 1e-4
        numbers = []
        batch = train.roll_out_all(run, run.task.train[:5], 4, 1.0, "1")
        advantages = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
        for kept in (slice(0, 20), slice(19, 20), slice(0, 0)):
            some = torch.zeros(20)
            some[kept] = advantages.flatten()[kept]
            per_token = some[:, None] * batch.rollouts.mask
            stats, _ = train.update(run, batch, per_token, None)
            numbers.append(stats)
        results.append((batch.texts, numbers, whole_state(run.model).numpy()))
    return results


@pytest.fixture(scope="module")
def alone():
    (results,) = ranks.run(1, updates, [])
    return results


@SHARDED
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=FOUR)])
def test_the_update_of_several_processes_is_that_of_one(world, fsdp, alone):
    for rank, results in enumerate(ranks.run(world, updates, fsdp)):
        for (texts, numbers, state), (texts_1, numbers_1, state_1) in zip(results, alone):
            assert texts == texts_1
            for ours, theirs in zip(numbers, numbers_1, strict=True):
                assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
            if rank == 0:  # the others do not get whole weights
                assert abs(state - state_1).max() < 1e-5


def test_a_single_process_takes_the_path_of_one(alone):
    trained = [[stats["trained"] for stats in numbers] for _, numbers, _ in alone]
    assert trained == [[20, 1, 0]] * 2 + [[20] * 3]  # a KL term trains every row
    moved = [[stats["grad_norm"] > 0 for stats in numbers] for _, numbers, _ in alone]
    assert moved[:2] == [[True, True, False]] * 2
    assert moved[2] == [True, True, True]


# ---- Whole runs ----------------------------------------------------------------------------------


def run(world, runs, name, *flags):
    """Train for 4 steps. Returns the run's folder."""
    where = ["--runs", str(runs), "--name", name, "--steps", "4"]
    assert ranks.run(world, main, *FLAGS, *where, *flags) == [None] * world
    return runs / name


def agree(folder, other, exactly=False):
    """Check that two runs have the same log. Returns True if they learned the same.

    A sum in another order can change the sign of a tiny gradient, and Adam's first step has the same
    size for any gradient. So a few weights may differ, but not what was learned."""
    for ours, theirs in zip(metrics(folder), metrics(other), strict=True):
        assert ours == theirs if exactly else ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    base = load(ROOT / "notebooks" / "tiny")[0].state_dict()
    learned = weights(other) - torch.cat([base[name].flatten() for name in sorted(base)])
    distance = (weights(folder) - weights(other)).norm()
    return distance <= (0 if exactly else 1e-3 * learned.norm())


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Return the folder of a run in one process."""
    return run(1, tmp_path_factory.mktemp("runs"), "one")


@SHARDED
def test_a_run_in_two_processes_is_that_of_one(fsdp, one, tmp_path):
    folder = run(2, tmp_path, "two", *fsdp)
    assert agree(folder, one)
    assert len(list((folder / "samples").iterdir())) == 4
    assert checkpoints(folder) == ["step_000002", "step_000004"]


@pytest.mark.alone
@pytest.mark.slow
@SHARDED
def test_four_processes_may_have_less_to_do_than_they_are(fsdp, tmp_path):
    flags = ["--eval-problems", "1", "--prompts-per-step", "2"]
    assert agree(run(4, tmp_path, "four", *flags, *fsdp), run(1, tmp_path, "one", *flags))


def half_of(whole, name):
    """Copy a run without its second half."""
    folder = shutil.copytree(whole, whole.with_name(name))
    shutil.rmtree(folder / "checkpoints" / "step_000004")
    shutil.rmtree(folder / "final")
    return folder


def go_on(folder, world, *fsdp):
    where = ["--resume", "--runs", str(folder.parent), "--name", folder.name]
    assert ranks.run(world, main, *where, *fsdp) == [None] * world
    return folder


@pytest.mark.alone
@pytest.mark.slow
def test_a_run_goes_on_in_any_number_of_processes(one, tmp_path):
    """It makes 2 steps in two processes, then 2 more: in two again with the same bits, otherwise up to rounding."""
    whole = run(2, tmp_path, "whole")
    assert agree(go_on(half_of(whole, "again"), 2), whole, exactly=True)
    assert agree(go_on(half_of(whole, "alone"), 1), one)
    assert agree(go_on(half_of(whole, "shards"), 2, "--fsdp"), one)
    sharded = run(2, tmp_path, "sharded", "--fsdp")
    assert agree(go_on(half_of(sharded, "shards again"), 2, "--fsdp"), sharded, exactly=True)
    assert agree(go_on(half_of(sharded, "four shards"), 4, "--fsdp"), one)
    assert agree(go_on(half_of(sharded, "whole again"), 1), one)


@pytest.mark.slow
def test_so_does_one_with_an_environment(tmp_path):
    """Replies depend on the row alone, so the number of processes does not matter."""
    flags = ["--task", ranks.INTERRUPTED]
    whole = run(1, tmp_path, "whole", *flags)
    records = read_problems(whole / "samples" / "step_000004.jsonl.gz")
    assert any(len(record["turns"]) == 2 for record in records)
    assert agree(run(2, tmp_path, "two", *flags), whole)
    assert agree(go_on(half_of(whole, "again"), 1), whole, exactly=True)


@pytest.mark.slow
def test_torchrun_starts_it(one, tmp_path):
    """A user starts it like this. Only the first process prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--standalone", "train.py", *FLAGS, "--fsdp", "--steps", "4"]
    command += ["--runs", str(tmp_path), "--name", "torchrun"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("; model in ") == 1
    assert agree(tmp_path / "torchrun", one)


# ---- Bad days ------------------------------------------------------------------------------------


def slow_main(*flags):
    """Run train.main with slow steps, which can be disturbed, and a timeout of 6 s instead of ten minutes."""
    train.TIMEOUT_MINUTES = 0.1
    ordinary = train.roll_out

    def roll_out(*args, **options):
        time.sleep(0.3)
        return ordinary(*args, **options)

    train.roll_out = roll_out
    return main(*flags)


def disturbed(runs, world, send, *flags):
    """Disturb the second process of a run in step 3. Returns the other processes' last messages."""
    where = ["--runs", str(runs), "--name", "run", "--steps", "99", "--save-every", "99"]
    processes, queue = ranks.start(world, slow_main, *FLAGS, *where, *flags)
    deadline = time.time() + 60
    while ranks.last_step(runs / "run") < 2 and time.time() < deadline:
        time.sleep(0.05)
    send(processes)
    said = {}
    try:
        while len(said) < world - (send is not everywhere):
            rank, result, error = queue.get(timeout=60)
            assert error is None, error
            said[rank] = result
    finally:
        for process in processes:
            process.kill()
    return said


def killed(processes):
    os.kill(processes[1].pid, signal.SIGKILL)


def frozen(processes):
    os.kill(processes[1].pid, signal.SIGSTOP)


def everywhere(processes):
    for number in (signal.SIGINT, signal.SIGTERM):  # the terminal's and torchrun's
        for process in processes:
            os.kill(process.pid, number)


@pytest.mark.slow
@SHARDED
@pytest.mark.parametrize("send", [killed, frozen])
def test_when_a_process_dies_or_hangs_the_others_stop_and_say_how_to_go_on(tmp_path, send, fsdp):
    said = disturbed(tmp_path, 3, send, *fsdp)
    assert sorted(said) == [0, 2]
    assert "torchrun --nproc-per-node 3 train.py" in said[0]
    assert "--resume" in said[0] and "--name run" in said[0]


def main_without_memory_in(rank, *flags):
    """Run train.main so that the evaluation of step 2 fails in this process."""
    ordinary = train.roll_out

    def roll_out(*args):
        is_training = args[-1]
        if not is_training and train.RANK == rank and last_step_of(flags) == 1:
            raise ModelError("too little memory")
        return ordinary(*args)

    train.roll_out = roll_out
    return main(*flags)


def last_step_of(flags):
    return ranks.last_step(Path(flags[flags.index("--runs") + 1]) / "run")


@SHARDED
def test_an_error_in_one_process_keeps_the_steps_of_all(tmp_path, fsdp):
    """All processes meet after sampling, so that none waits for a process that has ended."""
    flags = [*FLAGS, *fsdp, "--save-every", "99", "--runs", str(tmp_path), "--name", "run"]
    said = ranks.run(2, main_without_memory_in, 1, *flags)
    message = "error: too little memory; step 2 is saved. Resume with: torchrun --nproc-per-node 2"
    assert said[0].startswith(message) and said[1] == "1"
    assert checkpoints(tmp_path / "run") == ["step_000002"]


@pytest.mark.slow
def test_ctrl_c_in_every_process_saves_the_running_step(tmp_path):
    said = disturbed(tmp_path, 2, everywhere)
    last = ranks.last_step(tmp_path / "run")
    assert f"step {last} is saved" in said[0]
    assert checkpoints(tmp_path / "run") == [f"step_{last:06d}"]


# ---- Sharding ------------------------------------------------------------------------------------


class Collectives(TorchDispatchMode):
    """Counts the collectives of torch.distributed."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.namespace == "c10d"
        return function(*args, **kwargs or {})


def shards():
    """Return the number of collectives in a forward pass within unsharded, and in a forward and backward
    pass outside of it; the bytes of weights, moments and gradients that this process holds after an
    update; and the number of parameters."""
    train.start_processes("cpu")
    run = train.load_run(train.parse_args([*FLAGS, "--fsdp", "--name", "unwritten"]))
    ids = torch.zeros(1, 1, dtype=torch.long)
    with train.unsharded(run.model), Collectives() as inside, torch.no_grad():
        run.model(ids)
    with Collectives() as outside:
        run.model(ids).sum().backward()
    run.optimizer.step()
    held = {}
    for param in run.parameters:
        state = run.optimizer.state[param]
        for tensor in (param, param.grad, state["exp_avg"], state["exp_avg_sq"]):
            storage = tensor.to_local().untyped_storage()  # a view would keep the whole alive
            held[storage.data_ptr()] = storage.nbytes()
    parameters = sum(param.numel() for param in run.parameters)
    return inside.count, outside.count, sum(held.values()), parameters


def test_a_shard_is_half_of_16_bytes_a_parameter_and_sampling_does_not_communicate():
    for inside, outside, held, parameters in ranks.run(2, shards):
        assert inside == 0
        assert outside >= 3  # two blocks and the root
        assert held == pytest.approx(16 * parameters / 2, rel=0.02)


@dataclasses.dataclass
class Micro:
    name: str
    loss_scale: float = 1.0


def test_every_process_gets_as_many_micro_batches(monkeypatch):
    """Repetitions that count nothing fill up the missing ones."""
    micros = [Micro(name) for name in "abcde"]
    monkeypatch.setattr(train, "WORLD", 4)
    shares = []
    for rank in range(4):
        monkeypatch.setattr(train, "RANK", rank)
        shares.append(train.equal_share(micros))
    assert [len(share) for share in shares] == [2, 2, 2, 2]
    counted = [micro.name for share in shares for micro in share if micro.loss_scale]
    assert sorted(counted) == list("abcde")
    assert train.equal_share([]) == []


ALONE = """
def start_processes(device):
    pass
RANK = 0
WORLD = 1
def all_sum(x):
    return x
gather = all_sum
def equal_share(micros):
    return list(micros)
def gather_batches(batches, device):
    return batches[0]
def clip_gradients(parameters):
    return torch.nn.utils.clip_grad_norm_(parameters, 1.0).item()
Sharder = None
unsharded = contextlib.nullcontext
"""


def test_who_has_one_gpu_can_leave_the_section_out(one, tmp_path, monkeypatch):
    """train.py makes the same run if trivial functions replace the section "Many GPUs"."""
    source = Path(train.__file__).read_text()
    rulers = re.split(r"^(# ---- .*)$", source, flags=re.M)
    (place,) = [i for i, text in enumerate(rulers) if "Many GPUs" in text and text[:2] == "# "]
    rulers[place + 1] = ALONE
    module = types.ModuleType("train_alone")
    module.__file__ = train.__file__
    monkeypatch.setitem(sys.modules, "train_alone", module)
    exec(compile("".join(rulers), "train_alone.py", "exec"), module.__dict__)
    where = ["--runs", str(tmp_path), "--name", "alone", "--steps", "4"]
    with contextlib.redirect_stdout(None):
        module.main([*FLAGS, *where])
    assert metrics(tmp_path / "alone") == metrics(one)
