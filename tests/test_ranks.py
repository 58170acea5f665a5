"""Many processes: whatever their number, the answer is that of one. Two and four of them, on the CPU (gloo)."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import ranks
import train
from conftest import ROOT
from eval import join_processes
from model import Config, Qwen3, save, symbol_tokenizer
from ranks import main, metrics, weights
from rlvr import Rollouts, microbatches, sample

# ---- The update ------------------------------------------------------------------------------------------------------

VARIANTS = {
    "default": [],
    "grpo": ["--loss-norm", "sequence"],
    "dr-grpo": ["--loss-norm", "constant"],
    "textbook": ["--loss", "reinforce", "--loss-norm", "sum"],
    "ppo twice": ["--updates-per-batch", "2"],
    "gspo twice": ["--updates-per-batch", "2", "--loss", "gspo", "--loss-norm", "sequence", "--clip", "3e-4", "4e-4"],
    "cispo twice": ["--updates-per-batch", "2", "--loss", "cispo"],
    "untied": [],
    "kl twice": ["--kl-coef", "0.1", "--updates-per-batch", "2"],
}


def base_and_batches(folder):
    """A random tiny model in `folder`, and three batches of 4 ragged groups of 4: in the first, groups 2 and 3 carry no
    signal (all those of the last of two or four processes), in the second a single row does, in the third all do."""
    tokenizer = symbol_tokenizer([*"0123456789+="])
    model = Qwen3(Config.tiny(tokenizer.num_tokens, 0)).init_weights(torch.Generator().manual_seed(0))
    save(model, tokenizer, folder / "base")
    untied = Qwen3(dataclasses.replace(model.config, tie_word_embeddings=False))
    save(untied.init_weights(torch.Generator().manual_seed(1)), tokenizer, folder / "untied")
    torch.manual_seed(0)
    advantages = torch.randn(3, 4, 4)
    advantages[0, 2:] = 0
    advantages[1].view(-1)[1:] = 0
    batches = [sample(model, [tokenizer.encode(f"{i}+{i * i}=") for i in range(4)], 4, 16) for _ in range(3)]
    assert len(set(batches[0].lengths.tolist())) > 3
    torch.save([(vars(batch), a) for batch, a in zip(batches, advantages)], folder / "batches.pt")


def three_updates(folder, fsdp, variants):
    """-> for each variant the losses and gradient norms of three updates, and the weights after them."""
    join_processes(minutes=1)
    results = {}
    for name in variants:
        args = train.parse_args(["--task", "one-digit", "--device", "cpu", "--lr", "1e-4", "--micro-batch-tokens", "99",
                                 "--num-samples", "4", *["--fsdp"] * fsdp, *VARIANTS[name]])
        args.base, args.max_new_tokens = str(folder / ("untied" if name == "untied" else "base")), 16
        model = train.load_model(args)[0]
        reference = train.load_model(args)[0].requires_grad_(False) if args.kl_coef else None
        optimizer, numbers = train.Optimizer(model, args), []
        for step, (batch, advantages) in enumerate(torch.load(folder / "batches.pt", weights_only=True), 1):
            stats = train.update(model, reference, optimizer, Rollouts(**batch), advantages, args, step)
            numbers += [stats["loss"], stats["grad_norm"], stats["entropy"], stats["kl"], stats["clipped"]]
        train.export(model, symbol_tokenizer([*"0123456789+="]), folder / "out", args)
        weights = torch.cat([w.flatten() for w in load_file(folder / "out" / "model.safetensors").values()])
        results[name] = numpy.array(numbers), weights.numpy()
        if dist.is_initialized():
            dist.barrier()
    return results


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of base_and_batches, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("alone")
    base_and_batches(folder)
    return folder, ranks.run(1, three_updates, folder, False, VARIANTS)[0]


@pytest.mark.parametrize("world, fsdp, variants", [
    (2, True, [*VARIANTS]), (2, False, [*VARIANTS]),
    (4, True, ["default", "textbook", "gspo twice", "cispo twice", "kl twice"])], ids=["2 shards", "2 replicas", "4"])
def test_an_update_is_that_of_one_process_for_every_loss(alone, world, fsdp, variants):
    folder, expected = alone
    start = torch.cat([w.flatten() for w in load_file(folder / "base" / "model.safetensors").values()]).numpy()
    for result in ranks.run(world, three_updates, folder, fsdp, variants):
        for name in variants:
            numbers, weights = expected[name]
            assert numpy.allclose(result[name][0], numbers, rtol=1e-5, atol=1e-6), name
            assert name == "untied" or abs(weights - start).max() > 1e-4                 # it did move
            assert abs(result[name][1] - weights).max() < 1e-5, name


def test_every_process_makes_equally_many_passes_over_parts_of_the_same_rows(model, prompts):
    rollouts, keep = sample(model, prompts, 5, 20), torch.rand(15) > 0.3
    for world in (2, 3, 4, 20):
        shares = [microbatches(rollouts, keep, 60, rank, world) for rank in range(world)]
        assert len({len(share) for share in shares}) == 1
        rows = torch.cat([rows for share in shares for rows, real in share if real])
        assert sorted(rows.tolist()) == keep.nonzero().flatten().tolist()
    assert microbatches(rollouts, keep & False, 60, 1, 2) == []                              # no signal: nobody moves


# ---- Whole runs ------------------------------------------------------------------------------------------------------

# A reward by chance: from random weights on nothing else is ever paid.
FLAGS = ["--task", "one-digit", "--reward", "random", "--device", "cpu", "--prompts-per-step", "8", "--num-samples",
         "8", "--eval-every", "2", "--eval-problems", "9", "--save-every", "2", "--lr", "1e-3", "--lr-final", "1"]


def agree(folder, other, exactly=False):
    for ours, theirs in zip(metrics(folder), metrics(other), strict=True):
        assert ours == theirs if exactly else ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    distance = (weights(folder) - weights(other)).abs().max()
    return distance == 0 if exactly else distance < 1e-5


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of all runs: `one` made 4 steps in one process."""
    folder = tmp_path_factory.mktemp("runs")
    ranks.run(1, main, *FLAGS, "--runs", str(folder), "--name", "one", "--steps", "4")
    return folder


def test_a_run_in_two_processes_is_that_of_one_and_so_is_its_model(runs):
    """9 evaluation problems are not divisible by 2; the model is an ordinary one, in transformers too."""
    from transformers import AutoModelForCausalLM
    assert ranks.run(2, main, *FLAGS, "--runs", str(runs), "--name", "two", "--steps", "4", "--fsdp") == [None, None]
    assert agree(runs / "two", runs / "one")
    assert (runs / "two" / "samples.jsonl").read_text().count("\n") == 4 * 64
    ids, model = torch.randint(14, (3, 9)), train.load(runs / "two" / "final")[0]
    theirs = AutoModelForCausalLM.from_pretrained(runs / "two" / "final")
    assert torch.allclose(model(ids), theirs(ids).logits, atol=1e-5)


def test_a_run_goes_on_in_any_number_of_processes(runs):
    """2 steps in two processes, then 2 more: in two again bit for bit, in one or four up to rounding. The learning rate
    depends on --steps only through its decay, which is off here."""
    ranks.run(2, main, *FLAGS, "--runs", str(runs), "--name", "whole", "--steps", "4", "--fsdp")
    ranks.run(2, main, *FLAGS, "--runs", str(runs), "--name", "half", "--steps", "2", "--fsdp")
    ranks.run(2, main, *FLAGS, "--runs", str(runs), "--name", "replicas", "--steps", "2")
    for name, before, world, flags in (("again", "half", 2, ["--fsdp"]), ("alone", "half", 1, []),
                                       ("shards", "half", 4, ["--fsdp"]), ("one of two", "replicas", 1, [])):
        shutil.copytree(runs / before, runs / name)
        said = ranks.run(world, main, "--resume", "--runs", str(runs), "--name", name, "--steps", "4", *flags)
        assert said == [None] * world and agree(runs / name, runs / "whole", exactly=name == "again")


def test_torchrun_starts_it_and_bf16_is_for_computing_only(runs):
    """With a learning rate at which weights kept in bf16 would not move, those of a sharded run do."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "train.py",
               *FLAGS, "--runs", str(runs), "--name", "bf16", "--steps", "2", "--fsdp", "--dtype", "bfloat16", "--lr",
               "1e-6"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert said.stdout.splitlines()[-1].startswith("held-out accuracy 0.") and said.returncode == 0, said.stderr
    checkpoint, = (runs / "bf16" / "checkpoints").iterdir()
    base = load_file(next((runs / "base").iterdir()) / "model.safetensors")
    now = {name: torch.zeros_like(weight) for name, weight in base.items()}
    train.dcp.load({"weights": now}, checkpoint_id=checkpoint, no_dist=True)
    assert all(0 < (now[name] - base[name]).abs().max() < 3e-6 for name in base)
    assert weights(runs / "bf16").dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("flags", [
    "--dynamic-sampling 2", "--pick filter --train-problems 20", "--pick stratified", "--pick curriculum",
    "--truncated soft", "--truncated mask", "--advantage-scale gdpo", "--advantage-scale batch",
    "--kl-coef 0.05 --updates-per-batch 3 --dynamic-sampling 1", "--cache-tokens 64 --micro-batch-tokens 20",
    "--prompts-per-step 5"])
def test_every_choice_of_problems_and_advantages_gives_the_run_of_one_process(tmp_path, flags):
    for name, world, shards in (("one", 1, []), ("shards", 3, ["--fsdp"]), ("replicas", 2, [])):
        said = ranks.run(world, main, *FLAGS, "--runs", str(tmp_path), "--name", name, "--steps", "4", *flags.split(),
                         *shards)
        assert said == [None] * world and agree(tmp_path / name, tmp_path / "one")


def test_more_processes_than_problems_to_evaluate(runs):
    flags = [*FLAGS, "--runs", str(runs), "--name", "few", "--steps", "2", "--eval-problems", "1", "--fsdp"]
    assert ranks.run(2, main, *flags) == [None, None]


def test_a_damaged_part_of_a_checkpoint_is_refused_and_the_one_before_is_taken(runs, capfd):
    ranks.run(2, main, *FLAGS, "--runs", str(runs), "--name", "cut", "--steps", "4", "--fsdp")
    part = runs / "cut" / "checkpoints" / "step_000004" / "__1_0.distcp"
    os.truncate(part, part.stat().st_size // 2)
    assert ranks.run(2, main, "--resume", "--runs", str(runs), "--name", "cut", "--fsdp") == [None, None]
    assert [row["step"] for row in metrics(runs / "cut")] == [0, 1, 2, 3, 4]
    assert agree(runs / "cut", runs / "whole", exactly=True)
    for path in (runs / "cut" / "checkpoints").iterdir():
        os.truncate(path / "__0_0.distcp", 99)
    said = ranks.run(2, main, "--resume", "--runs", str(runs), "--name", "cut", "--steps", "6", "--fsdp")
    assert all("no checkpoint can be used" in message for message in said)


# ---- Bad days --------------------------------------------------------------------------------------------------------

def slow_main(seconds, *flags):
    """A step takes at least so many seconds, so that it can be disturbed."""
    ordinary = train.sample
    train.sample = lambda *args, **kwargs: (time.sleep(seconds), ordinary(*args, **kwargs))[1]
    return main(*flags)


def begin(folder, world, name, *flags):
    """Start an endless run, and wait for its second step -> (processes, queue)."""
    processes, queue = ranks.start(world, slow_main, 0.3, *FLAGS, "--runs", str(folder), "--name", name, "--steps",
                                   "999", *flags)
    path, deadline = folder / name / "metrics.jsonl", time.time() + 60
    while not (path.exists() and path.read_text().count("\n") > 2) and time.time() < deadline:
        time.sleep(0.05)
    return processes, queue


@pytest.mark.parametrize("how, flags", [(signal.SIGKILL, ["--fsdp"]), (signal.SIGSTOP, ["--timeout", "0.1"])])
def test_when_a_process_dies_or_hangs_the_others_stop_and_name_it(tmp_path, how, flags):
    processes, queue = begin(tmp_path, 3, "run", *flags)
    os.kill(processes[1].pid, how)
    said = dict(queue.get(timeout=60)[:2] for _ in range(2))
    assert sorted(said) == [0, 2]
    for message in said.values():
        assert "no answer from process 1 of 3" in message and "--resume --name run" in message
    processes[1].kill()


def hanging_main(*flags):
    """The second process never ends the sampling of step 2."""
    calls, ordinary = [0], train.row_uniforms

    def uniforms(*args):
        calls[0] += 1
        while calls[0] == 2 and int(os.environ["RANK"]) == 1:
            time.sleep(0.1)
        return ordinary(*args)
    train.row_uniforms = uniforms                                       # called by roll_out only
    return main(*flags)


def test_a_process_that_hangs_in_python_is_named_too(tmp_path):
    processes, queue = ranks.start(3, hanging_main, *FLAGS, "--runs", str(tmp_path), "--name", "run", "--steps", "9",
                                   "--timeout", "0.1")
    said = dict(queue.get(timeout=60)[:2] for _ in range(2))
    assert sorted(said) == [0, 2] and all("no answer from process 1 of 3" in message for message in said.values())
    processes[1].kill()


def test_a_signal_to_every_process_saves_the_running_step(tmp_path):
    """What torchrun does with Ctrl-C: its processes see the terminal's and torchrun's."""
    processes, queue = begin(tmp_path, 2, "run", "--save-every", "1000")
    for sent in (signal.SIGINT, signal.SIGTERM):
        for process in processes:
            os.kill(process.pid, sent)
    said = dict(queue.get(timeout=60)[:2] for _ in range(2))
    last = metrics(tmp_path / "run")[-1]["step"]
    assert f"a checkpoint of step {last} is saved" in said[0] and (
        tmp_path / "run" / "checkpoints" / f"step_{last:06d}" / "progress.json").exists()


def failing_main(*flags):
    """The verifier of the second process raises."""
    ordinary = train.verifiers.get_reward("random")
    train.verifiers.REWARDS["random"] = lambda *args: 1 / 0 if int(os.environ["RANK"]) == 1 else ordinary(*args)
    return main(*flags)


def test_a_verifier_that_fails_in_one_process_costs_its_completions_only(tmp_path):
    assert ranks.run(2, failing_main, *FLAGS, "--runs", str(tmp_path), "--name", "run", "--steps", "2") == [None, None]
    assert [row["failed"] for row in metrics(tmp_path / "run")[1:]] == [0.5, 0.5]


@pytest.mark.parametrize("flags, message", [
    (["--fsdp"], "--fsdp shards over the processes of torchrun"),
    (["--cpu-offload"], "--cpu-offload is for --fsdp"),
])
def test_flags_that_need_torchrun(flags, message, capsys):
    with pytest.raises(SystemExit):
        train.parse_args(flags)
    assert message in capsys.readouterr().err


class Collectives(TorchDispatchMode):
    """Counts what torch.distributed does."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.namespace == "c10d"
        return function(*args, **kwargs or {})


def collectives_while_sampling(folder):
    join_processes(minutes=1)
    args = train.parse_args(["--task", "one-digit", "--device", "cpu", "--num-samples", "4", "--fsdp"])
    args.base, rank = str(folder / "base"), dist.get_rank()
    model = train.load_model(args)[0]
    with train.whole(model), Collectives() as inside:
        sample(model, [[2, 3, 4]], 4, 10 + 10 * rank)                       # one samples for longer than the other
    with Collectives() as outside:
        model(torch.zeros(1, 1, dtype=torch.long))
    return inside.count, outside.count


def test_the_token_loop_of_a_sharded_model_has_no_collective(alone):
    """Outside of `whole` each forward pass gathers the two blocks and the root."""
    assert ranks.run(2, collectives_while_sampling, alone[0]) == [(0, 3), (0, 3)]


# ---- Memory ----------------------------------------------------------------------------------------------------------

def bytes_held(folder, offload):
    """Bytes of weights, moments and gradients that this process holds after an update, and of the largest weight."""
    join_processes(minutes=1)
    args = train.parse_args(["--task", "one-digit", "--device", "cpu", "--num-samples", "4", "--fsdp",
                             *["--cpu-offload"] * offload])
    args.base = str(folder / "base")
    model = train.load_model(args)[0]
    optimizer = train.Optimizer(model, args)
    batch, advantages = torch.load(folder / "batches.pt", weights_only=True)[0]
    train.update_gradients(model, Rollouts(**batch), advantages)
    tensors = [*optimizer.params.values(), *optimizer.m.values(), *optimizer.v.values(),
               *[param.grad for param in optimizer.params.values()]]
    # storages, not sizes: a part that is a view would keep the whole weight alive
    storages = {store.data_ptr(): store.nbytes() for store in (train.local(x).untyped_storage() for x in tensors)}
    return sum(storages.values()), sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("world, offload", [(2, False), (4, True)])
def test_each_of_n_processes_holds_an_nth_of_16_bytes_a_parameter(alone, world, offload):
    for held, parameters in ranks.run(world, bytes_held, alone[0], offload):
        assert held == pytest.approx(16 * parameters / world, rel=0.02)
