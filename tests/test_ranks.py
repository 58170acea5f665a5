"""Many processes: whatever their number, the answer is that of one. Two and four of them, on the CPU (gloo)."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import ranks
import train
from conftest import ROOT
from make_tiny import init_weights, symbol_tokenizer, tiny_config
from model import Qwen3, load, save
from ranks import main, metrics, weights
from rlvr import Rollouts, microbatches, sample, update_gradients

# ---- The update --------------------------------------------------------------------------------------


def plain_loss(logp, old_logp, advantages, weights, clip, **_):
    """A loss of one's own: REINFORCE."""
    return -(weights * advantages[:, None] * logp).sum()


VARIANTS = {
    "default": {},
    "grpo": {"norm": "sequence"},
    "dr-grpo": {"norm": "constant"},
    "textbook": {"loss": plain_loss, "norm": "sum"},
    "ppo twice": {"updates": 2, "clip": (3e-4, 4e-4)},
    "untied": {},
    "kl twice": {"kl_coef": 0.1, "updates": 2},
}


def base_and_batches(folder):
    """A random tiny model in `folder`, and three batches of 4 ragged groups of 4: in the first, groups 2 and 3 carry no
    signal (all those of the last of two or four processes), in the second a single row does, in the third all do."""
    tokenizer = symbol_tokenizer([*"0123456789+="])
    model = init_weights(
        Qwen3(tiny_config(tokenizer.num_tokens, 0)), torch.Generator().manual_seed(0)
    )
    save(model, tokenizer, folder / "base")
    untied = Qwen3(dataclasses.replace(model.config, tie_word_embeddings=False))
    save(init_weights(untied, torch.Generator().manual_seed(1)), tokenizer, folder / "untied")
    torch.manual_seed(0)
    advantages = torch.randn(3, 4, 4)
    advantages[0, 2:] = 0
    advantages[1].view(-1)[1:] = 0
    batches = [
        sample(model, [tokenizer.encode(f"{i}+{i * i}=") for i in range(4)], 4, 16)
        for _ in range(3)
    ]
    assert len(set(batches[0].lengths.tolist())) > 3
    torch.save([(vars(batch), a) for batch, a in zip(batches, advantages)], folder / "batches.pt")


def flags_for(model, fsdp):
    return train.parse_args(
        ["--model", str(model), "--task", "one-digit", "--device", "cpu", *["--fsdp"] * fsdp]
    )


def join():
    """What train.main does first."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=train.datetime.timedelta(minutes=1))


def three_updates(folder, fsdp, variants):
    """-> for each variant the losses and gradient norms of three updates, and the weights after them."""
    join()
    results, (rank, world) = {}, train.processes()

    def add_up(tensor):
        if world > 1:
            dist.all_reduce(tensor)
        return tensor

    for name in variants:
        options = dict(VARIANTS[name])
        flags, updates = (
            flags_for(folder / ("untied" if name == "untied" else "base"), fsdp),
            options.pop("updates", 1),
        )
        model, tokenizer = train.load_model(flags)
        reference = (
            train.load_model(flags)[0].requires_grad_(False) if "kl_coef" in options else None
        )
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0
        )
        numbers = []
        for batch, advantages in torch.load(folder / "batches.pt", weights_only=True):
            old_logp = None
            for _ in range(updates):
                stats, logp = update_gradients(
                    model,
                    Rollouts(**batch),
                    advantages,
                    max_new_tokens=16,
                    micro_batch_tokens=99,
                    old_logp=old_logp,
                    reference=reference,
                    rank=rank,
                    world=world,
                    add_up=add_up,
                    **options,
                )
                old_logp = logp if old_logp is None else old_logp
                norm = train.clip_gradients(model)
                optimizer.step()
                optimizer.zero_grad()
                numbers += [
                    stats["loss"],
                    norm,
                    stats["entropy"],
                    stats.get("kl", 0.0),
                    stats["clipped"],
                ]
        train.export(model, tokenizer, folder / "out", flags)
        if dist.is_initialized():
            dist.barrier()  # the first process writes
        whole = torch.cat(
            [w.flatten() for w in load_file(folder / "out" / "model.safetensors").values()]
        )
        results[name] = numpy.array(numbers), whole.numpy()
        if dist.is_initialized():
            dist.barrier()
    return results


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of base_and_batches, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("alone")
    base_and_batches(folder)
    return folder, ranks.run(1, three_updates, folder, False, VARIANTS)[0]


@pytest.mark.parametrize(
    "world, fsdp, variants",
    [
        (2, True, [*VARIANTS]),
        (2, False, [*VARIANTS]),
        (4, True, ["default", "textbook", "ppo twice", "kl twice"]),
    ],
    ids=["2 shards", "2 replicas", "4"],
)
def test_an_update_is_that_of_one_process_for_every_loss(alone, world, fsdp, variants):
    folder, expected = alone
    start = torch.cat(
        [w.flatten() for w in load_file(folder / "base" / "model.safetensors").values()]
    ).numpy()
    for result in ranks.run(world, three_updates, folder, fsdp, variants):
        for name in variants:
            numbers, weights = expected[name]
            assert numpy.allclose(result[name][0], numbers, rtol=1e-5, atol=1e-6), name
            assert name == "untied" or abs(weights - start).max() > 1e-4  # it did move
            assert abs(result[name][1] - weights).max() < 1e-5, name


@pytest.mark.parametrize("hidden_size", [0, 4096])
def test_every_process_makes_equally_many_passes_over_parts_of_the_same_rows(
    model, prompts, hidden_size
):
    rollouts, keep = sample(model, prompts, 5, 20), (torch.rand(15) > 0.3).tolist()
    for world in (2, 3, 4, 20):
        shares = [
            microbatches(rollouts, keep, 60, hidden_size, rank, world) for rank in range(world)
        ]
        assert len({len(share) for share in shares}) == 1
        rows = [
            (index[index >= 0] // (rollouts.ids.size(1) - 1)).unique().tolist()
            for share in shares
            for index, real in share
            if real
        ]
        assert sorted(sum(rows, [])) == [row for row in range(15) if keep[row]]
    assert (
        microbatches(rollouts, [False] * 15, 60, hidden_size, 1, 2) == []
    )  # no signal: nobody moves


# ---- Whole runs ------------------------------------------------------------------------------------------------------

FLAGS = [
    "--model",
    ranks.base(),
    "--task",
    "one-digit",
    "--reward",
    ranks.COIN,
    "--device",
    "cpu",
    "--prompts-per-step",
    "8",
    "--num-samples",
    "8",
    "--max-new-tokens",
    "4",
    "--eval-every",
    "2",
    "--eval-problems",
    "9",
    "--save-every",
    "2",
    "--lr",
    "1e-3",
]


def agree(folder, other, exactly=False):
    """Whether two runs measured and learnt the same. Added up in another order, a gradient of nearly nothing may change
    its sign, and Adam's first step is of one size whatever the gradient's: a weight may differ, but not the learning."""
    for ours, theirs in zip(metrics(folder), metrics(other), strict=True):
        assert ours == theirs if exactly else ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    distance, learnt = (
        weights(folder) - weights(other),
        weights(other) - weights(Path(ranks.base())),
    )
    return distance.norm() <= (0 if exactly else 1e-3) * learnt.norm()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of all runs: `one` made 4 steps in one process, `whole` in two with --fsdp."""
    folder = tmp_path_factory.mktemp("runs")
    ranks.run(1, main, *FLAGS, "--runs", str(folder), "--name", "one", "--steps", "4")
    ranks.run(2, main, *FLAGS, "--runs", str(folder), "--name", "whole", "--steps", "4", "--fsdp")
    return folder


def test_a_run_in_two_processes_is_that_of_one_and_so_is_its_model(runs):
    """9 evaluation problems are not divisible by 2; the model is an ordinary one, in transformers too."""
    from transformers import AutoModelForCausalLM

    assert ranks.run(
        2, main, *FLAGS, "--runs", str(runs), "--name", "two", "--steps", "4", "--fsdp"
    ) == [None, None]
    assert agree(runs / "two", runs / "one")
    assert len(list((runs / "two" / "samples").iterdir())) == 4
    ids, model = torch.randint(14, (3, 9)), load(runs / "two" / "final")[0]
    theirs = AutoModelForCausalLM.from_pretrained(runs / "two" / "final")
    assert torch.allclose(model(ids), theirs(ids).logits, atol=1e-5)


def stopping_main(*flags):
    """Ctrl-C, with which step 2 is saved and the run left: the learning rate is that of a run of 4 steps."""
    ordinary = train.shared_roll_out

    def roll_out(*args, **kwargs):
        if kwargs["label"] == "step 2":
            train.STOP_ASKED.append(time.monotonic())
        return ordinary(*args, **kwargs)

    train.shared_roll_out = roll_out
    return main(*flags)


def test_a_run_goes_on_in_any_number_of_processes(runs):
    """2 steps in two processes, then 2 more: in two again bit for bit, in one or four up to rounding."""
    for name, flags in (("half", ["--fsdp"]), ("replicas", [])):
        ranks.run(
            2, stopping_main, *FLAGS, "--runs", str(runs), "--name", name, "--steps", "4", *flags
        )
        assert [row["step"] for row in metrics(runs / name)] == [0, 1, 2]
    for name, before, world, flags in (
        ("again", "half", 2, ["--fsdp"]),
        ("alone", "half", 1, []),
        ("shards", "half", 4, ["--fsdp"]),
        ("one of two", "replicas", 1, []),
    ):
        shutil.copytree(runs / before, runs / name)
        said = ranks.run(world, main, "--resume", "--runs", str(runs), "--name", name, *flags)
        assert said == [None] * world and agree(
            runs / name, runs / "whole", exactly=name == "again"
        )


def test_torchrun_starts_it(runs):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--standalone",
        "train.py",
        *FLAGS,
        "--runs",
        str(runs),
        "--name",
        "torchrun",
        "--steps",
        "2",
        "--fsdp",
    ]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (
        said.stdout.splitlines()[-1].startswith("held-out accuracy 0.") and said.returncode == 0
    ), said.stderr


def bf16_main(*flags):
    train.pick_device = lambda wanted=None: ("cpu", torch.bfloat16, "as on a GPU")
    return main(*flags)


def test_bf16_is_for_computing_only_in_shards_too(runs):
    """With a learning rate at which weights kept in bf16 would not move, those of a sharded run do."""
    flags = ["--runs", str(runs), "--name", "bf16", "--steps", "2", "--fsdp", "--lr", "1e-6"]
    assert ranks.run(2, bf16_main, *FLAGS, *flags) == [None, None]
    model, base = (load(ranks.base())[0] for _ in range(2))
    assert (
        train.load_checkpoint(runs / "bf16", model, torch.optim.AdamW(model.parameters()))[0] == 2
    )
    for name, weight in model.named_parameters():
        assert 0 < (weight - base.get_parameter(name)).abs().max() < 3e-6
    assert weights(runs / "bf16").dtype == torch.bfloat16


OWN = '''
def wander(problems, step, memory, flags):
    """3, 4, .. problems a step: not always a multiple of the processes, once fewer than they are."""
    memory["seen"] = memory.get("seen", 0) + 1
    return [(7 * step + i) % len(problems) for i in range([2, 5, 3, 1][memory["seen"] % 4])]

def parts_count(rewards, rollouts, parts, flags):
    """Of the whole batch, in every process."""
    assert len(parts) == rewards.numel() == len(rollouts.lengths)
    return rewards - sum(part["answered"] for part in parts) / len(parts) - rewards.mean()
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--pick own.py:wander",
        "--advantage own.py:parts_count",
        "--train-problems 3 --prompts-per-step 5",
        "--kl-coef 0.05 --updates-per-batch 3",
        "--micro-batch-tokens 20 --loss-norm sequence",
        "--stop 7 +",
    ],
)
def test_every_choice_of_problems_and_advantages_gives_the_run_of_one_process(tmp_path, flags):
    (tmp_path / "own.py").write_text(OWN)
    flags = flags.replace("own.py", f"{tmp_path}/own.py")
    for name, world, shards in (("one", 1, []), ("shards", 3, ["--fsdp"]), ("replicas", 2, [])):
        said = ranks.run(
            world,
            main,
            *FLAGS,
            "--runs",
            str(tmp_path),
            "--name",
            name,
            "--steps",
            "4",
            *flags.split(),
            *shards,
        )
        assert said == [None] * world and agree(tmp_path / name, tmp_path / "one")


def test_more_processes_than_problems_to_evaluate(runs):
    flags = [
        *FLAGS,
        "--runs",
        str(runs),
        "--name",
        "few",
        "--steps",
        "2",
        "--eval-problems",
        "1",
        "--fsdp",
    ]
    assert ranks.run(2, main, *flags) == [None, None]


def test_a_damaged_part_of_a_checkpoint_is_refused_and_the_one_before_is_taken(runs):
    """A bit of the second process's part: both go back to step 2. All damaged: nothing is started over."""
    ranks.run(2, main, *FLAGS, "--runs", str(runs), "--name", "cut", "--steps", "4", "--fsdp")
    flip(runs / "cut" / "checkpoints" / "step_000004", "1")
    assert ranks.run(2, main, "--resume", "--runs", str(runs), "--name", "cut", "--fsdp") == [
        None,
        None,
    ]
    assert json.loads((runs / "cut" / "config.json").read_text())["starts"][-1]["step"] == 2
    assert [row["step"] for row in metrics(runs / "cut")] == [0, 1, 2, 3, 4]
    assert agree(runs / "cut", runs / "whole", exactly=True)
    for path in (runs / "cut" / "checkpoints").iterdir():
        flip(path, "0")
    said = ranks.run(
        2, main, "--resume", "--runs", str(runs), "--name", "cut", "--steps", "6", "--fsdp"
    )
    assert all("no checkpoint is there or can be used" in message for message in said)


def flip(checkpoint, rank):
    """Change one bit of what a process wrote."""
    path = next(path for path in checkpoint.iterdir() if rank in path.stem.strip("_").split("_")[0])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ---- Bad days --------------------------------------------------------------------------------------------------------


def slow_main(seconds, *flags):
    """A step takes at least so many seconds, so that it can be disturbed."""
    train.MINUTES = 0.1
    ordinary = train.roll_out
    train.roll_out = lambda *args, **kwargs: (time.sleep(seconds), ordinary(*args, **kwargs))[1]
    return main(*flags)


def begin(folder, world, name, *flags):
    """Start an endless run, and wait for its second step -> (processes, queue)."""
    processes, queue = ranks.start(
        world,
        slow_main,
        0.3,
        *FLAGS,
        "--runs",
        str(folder),
        "--name",
        name,
        "--steps",
        "999",
        *flags,
    )
    path, deadline = folder / name / "metrics.jsonl", time.time() + 60
    while not (path.exists() and path.read_text().count("\n") > 2) and time.time() < deadline:
        time.sleep(0.05)
    return processes, queue


@pytest.mark.parametrize("how, flags", [(signal.SIGKILL, ["--fsdp"]), (signal.SIGSTOP, [])])
def test_when_a_process_dies_or_hangs_the_others_stop_and_name_it(tmp_path, how, flags):
    """After MINUTES at most the first says how to go on: of one that hangs, which it is; that one has died, at
    once (and torchrun, which ends the rest, says which)."""
    processes, queue = begin(tmp_path, 3, "run", "--save-every", "1000", *flags)
    os.kill(processes[1].pid, how)
    said = dict(queue.get(timeout=60)[:2] for _ in range(2))
    assert sorted(said) == [0, 2]
    assert (
        "torchrun --nproc-per-node 3 train.py" + " --fsdp" * bool(flags) + " --resume" in said[0]
    ), said[0]
    assert "--name run" in said[0]
    processes[1].kill()


def hanging_main(where, *flags):
    """The second process never ends the sampling of step 2, or is behind the barrier and then not heard of."""
    train.MINUTES = 0.1
    roll_out, gather_object = train.roll_out, dist.all_gather_object

    def hanging_roll_out(*args, **kwargs):
        if kwargs["label"] == "step 2" and int(os.environ["RANK"]) == 1:
            if where == "sampling":
                time.sleep(99)
            dist.all_gather_object = lambda *args: time.sleep(99)
        return roll_out(*args, **kwargs)

    train.roll_out = hanging_roll_out
    try:
        return main(*flags)
    finally:
        dist.all_gather_object = gather_object


@pytest.mark.parametrize("where", ["sampling", "gathering"])
def test_a_process_that_hangs_in_python_is_noticed_too(tmp_path, where):
    flags = ["--runs", str(tmp_path), "--name", "run", "--steps", "9"]
    processes, queue = ranks.start(3, hanging_main, where, *FLAGS, *flags)
    said = dict(queue.get(timeout=60)[:2] for _ in range(2))
    assert sorted(said) == [0, 2] and "--resume" in said[0] and "--name run" in said[0]
    assert where == "gathering" or "Ranks 1 failed to pass monitoredBarrier" in said[0], said[0]
    processes[1].kill()


def test_a_signal_to_every_process_saves_the_running_step(tmp_path):
    """What torchrun does with Ctrl-C: its processes see the terminal's and torchrun's."""
    processes, queue = begin(tmp_path, 2, "run", "--save-every", "1000")
    for sent in (signal.SIGINT, signal.SIGTERM):
        for process in processes:
            os.kill(process.pid, sent)
    said = dict(queue.get(timeout=60)[:2] for _ in range(2))
    last = metrics(tmp_path / "run")[-1]["step"]
    assert f"step {last} is saved" in said[0] and "torchrun --nproc-per-node 2 train.py" in said[0]
    assert (tmp_path / "run" / "checkpoints" / f"step_{last:06d}" / "progress.json").exists()


def failing_main(*flags):
    """The verifier of the second process raises, from the first step on."""
    import rewards

    ordinary = rewards.coin
    rewards.coin = lambda text, problem: (
        1 / 0 if int(os.environ["RANK"]) == 1 and "step" in problem else ordinary(text, problem)
    )
    return main(*flags)


def test_a_verifier_that_fails_in_one_process_costs_its_completions_only(tmp_path):
    assert ranks.run(
        2, failing_main, *FLAGS, "--runs", str(tmp_path), "--name", "run", "--steps", "2"
    ) == [None, None]
    assert [row["failed"] for row in metrics(tmp_path / "run")[1:]] == [0.5, 0.5]


class Collectives(TorchDispatchMode):
    """Counts what torch.distributed does."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.namespace == "c10d"
        return function(*args, **kwargs or {})


def collectives_while_sampling(folder):
    join()
    model = train.load_model(flags_for(folder / "base", fsdp=True))[0]
    with train.whole_weights(model), Collectives() as inside:
        sample(
            model, [[2, 3, 4]], 4, 10 + 10 * dist.get_rank()
        )  # one samples for longer than the other
    with Collectives() as outside:
        model(torch.zeros(1, 1, dtype=torch.long))
    return inside.count, outside.count


def test_the_token_loop_of_a_sharded_model_has_no_collective(alone):
    """Outside of `whole_weights` each forward pass gathers the two blocks and the root."""
    assert ranks.run(2, collectives_while_sampling, alone[0]) == [(0, 3), (0, 3)]


# ---- Memory ----------------------------------------------------------------------------------------------------------


def bytes_held(folder):
    """Bytes of weights, moments and gradients that this process holds after an update, and how many parameters the
    model has."""
    join()
    model = train.load_model(flags_for(folder / "base", fsdp=True))[0]
    optimizer = torch.optim.AdamW(model.parameters())
    batch, advantages = torch.load(folder / "batches.pt", weights_only=True)[2]
    update_gradients(model, Rollouts(**batch), advantages)
    optimizer.step()
    tensors = [
        tensor
        for param in model.parameters()
        for tensor in (
            param,
            param.grad,
            *(optimizer.state[param][key] for key in ("exp_avg", "exp_avg_sq")),
        )
    ]
    # storages, not sizes: a part that is a view would keep the whole weight alive
    storages = {
        store.data_ptr(): store.nbytes()
        for store in (x.to_local().untyped_storage() for x in tensors)
    }
    return sum(storages.values()), sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("world", [2, 4])
def test_each_of_n_processes_holds_an_nth_of_16_bytes_a_parameter(alone, world):
    for held, parameters in ranks.run(world, bytes_held, alone[0]):
        assert held == pytest.approx(16 * parameters / world, rel=0.02)
