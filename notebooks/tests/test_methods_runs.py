"""notebooks/methods and recipes in runs: two steps of each method, the first step of most recipes, a run that
stops and is resumed; and runs on a device that pretends to be CUDA (tests/pretend_gpu.py)."""

import json
import math
import shutil
from dataclasses import dataclass

import pytest
import torch

import train
import verifiers
from eval import wilson_interval
from model import load
from notebooks.models import make_tiny
from pretend_gpu import PretendGPU
from rlvr import roll_out, token_advantages, update_gradients
from test_methods import METHODS, ROOT, SPECS, TINY, method

import canary
from dapo import DAPO
from distill import Distill
from kl_cap import KLCap
from lora import LoRA
from shared_prompts import SharedPrompts
from stale import Stale

SAMPLE_OTHERWISE = ["Chapter", "KeepSamplingMask", "Stale", "TopP"]  # than what is trained


@pytest.fixture(scope="session")
def needed(tmp_path_factory):
    """Return settings that some methods need: another model with random weights, canaries."""
    folder = tmp_path_factory.mktemp("needed")
    path = folder / "canary.jsonl"
    problems = verifiers.arithmetic(10, 40).test
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return {
        "Distill": {"teacher": str(make_tiny.make(1, folder / "random", steps=0))},
        "Canary": {"canary": str(path)},
    }


@pytest.mark.parametrize("name", SPECS)
def test_two_steps_of_every_method(name, needed):
    """This is the loop of train.py in short: problems, completions, advantages, updates. Sampler and trainer
    agree on the log-probs, unless the method samples in another way. Every update has a gradient."""
    model, tokenizer = load(TINY, "cpu", torch.float32)
    task = verifiers.arithmetic(train_size=50, test_size=1)
    sizes = {"prompts_per_step": 3, "num_samples": 8, "max_new_tokens": 50}
    some = method(name, **sizes, **needed.get(name, {}))
    settings = some.settings
    parameters = some.setup(model, tokenizer)
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    memory = {"visits": {}}
    for number in (1, 2):
        problems = [task.train[index] for index in some.pick(task.train, number, memory)]
        rows = [f"{number} {row}" for row in range(len(problems) * 8)]
        given = (settings.num_samples, settings.temperature, rows)
        batch = roll_out(some, model, tokenizer, task, problems, *given, training=True)
        advantages = token_advantages(some, batch)
        old_logp = None
        for _ in range(settings.updates_per_batch):
            keep = torch.ones(len(rows), dtype=torch.bool)
            micros = some.layout(batch.rollouts, keep, 1000)
            sums, logp = update_gradients(model, batch.rollouts, advantages, some, micros, old_logp)
            if old_logp is None:
                mismatch = sums["mismatch"] / sums["tokens"]
                assert mismatch < 1e-5 or name in SAMPLE_OTHERWISE
                old_logp = logp
            assert all(math.isfinite(total) for total in sums.values())
            assert sum(param.grad.abs().sum() for param in parameters) > 0
            optimizer.step()
            optimizer.zero_grad()
        some.after_step({"kl": 0.1, "completion_length": 30.0}, model)
    some.load_state(json.loads(json.dumps(some.state())))


NEW = f"--model {TINY} --prompts-per-step 2 --num-samples 8 --max-new-tokens 40 --eval-problems 2"


def run(folder, name, flags):
    """Train by command line. Returns (the rows of the log after step 0, config.json)."""
    train.main([*flags.split(), "--device", "cpu", "--runs", str(folder), "--name", name])
    config = json.loads((folder / name / "config.json").read_text())
    return [*train.read_log(folder / name).values()][1:], config


@pytest.mark.parametrize("name", ["r1-zero", "r1", "kimi-k1.5", "olmo-3"])
def test_the_first_step_of_a_recipe(name, tmp_path):
    """autorule and smollm2 need other models: test_house.py reads autorule's flags, and .ci/readme runs smollm2."""
    (row,), _ = run(tmp_path, "r", f"@{ROOT}/notebooks/recipes/{name}.txt {NEW} --steps 1")
    assert row["trained"] > 0 and row["grad_norm"] > 0


def test_a_constant_rate_is_what_the_flag_says(tmp_path):
    """Adam's first step moves a weight by the learning rate: with constant.py that is --lr, without it less."""
    moved = []
    for flags in ("", f" --method {METHODS}/constant.py"):
        log, _ = run(tmp_path, f"run{len(moved)}", f"{NEW} --steps 1 --lr 1e-3{flags}")
        after = load(tmp_path / f"run{len(moved)}" / "final")[0].state_dict()
        start = load(TINY)[0].state_dict()
        moved.append(max((after[name] - start[name]).abs().max().item() for name in start))
    assert moved[1] == pytest.approx(1e-3, rel=0.01) == log[0]["lr"]
    assert moved[0] < 0.5 * moved[1]


INEXACT = ["Stale"]  # its docstring says that a resumed run differs


def six_sums():
    """Return so small a task that earlier steps decide which problems a step gets."""
    return verifiers.arithmetic(train_size=6, test_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_a_run_of_every_method_goes_on_where_it_stopped(name, needed, tmp_path):
    """Three steps give the same bits as two and one more: the weights, the method's state and its memory."""
    own = needed.get(name, {}).items()
    first = f"{NEW} --max-new-tokens 24 --steps 3 --save-every 2 --eval-every 2"
    first += f" --task {__file__}:six_sums --method {METHODS}/{SPECS[name]}"
    first += "".join(f" --{setting.replace('_', '-')} {value}" for setting, value in own)
    last = tmp_path / "x" / "checkpoints" / "step_000003"
    results = []
    for flags in (first, "--resume"):  # the second time as after a crash in step 3
        log, _ = run(tmp_path, "x", flags)
        weights = load(tmp_path / "x" / "final")[0].state_dict()
        results.append((log[2]["mismatch"], weights, (last / "progress.json").read_text()))
        shutil.rmtree(last)
    (mismatch, whole, progress), (mismatch_again, resumed, progress_again) = results
    if name in INEXACT:  # step 3 samples with the weights of the start, or of the checkpoint
        assert mismatch > 1e-4 and mismatch_again < 1e-5
        return
    assert progress == progress_again
    assert all(torch.equal(weight, resumed[key]) for key, weight in whole.items())
    base = load(TINY)[0].state_dict()
    moved = [key for key, weight in whole.items() if not torch.equal(weight, base[key])]
    assert moved
    if name == "LoRA":  # embeddings and norms stay those of the base
        assert all(key.endswith("_proj.weight") for key in moved)


# ---- The canary ----------------------------------------------------------------------------------


@pytest.fixture
def watched(needed):
    some = method("Canary", canary_prompt="{problem}", max_new_tokens=40, **needed["Canary"])
    some.setup(*load(TINY))
    return some


def test_the_canary_warns_when_the_strict_share_falls_alone(watched, monkeypatch, capsys):
    """Of 50 canaries 90 % are right, then 80 % (within the noise), then 20 %, while the reward rises."""
    shares = iter([0.9, 0.8, 0.2])

    def measured(*_):
        share = next(shares)
        low, high = wilson_interval(share, 50)
        return {"accuracy": share, "low": low, "high": high}

    monkeypatch.setattr(canary, "roll_out", lambda *_: None)
    monkeypatch.setattr(canary, "records_of", lambda _: [])
    monkeypatch.setattr(canary, "evaluate", measured)
    for reward, share in ((0.5, 0.9), (0.6, 0.8), (0.7, 0.2)):
        assert "warning" not in capsys.readouterr().out
        row = {"reward": reward, "eval_accuracy": 0.5}
        watched.after_step(row, None)
        assert row["canary"] == share
    assert "the reward is 0.700, it was 0.500; of the canaries 20.0%" in capsys.readouterr().out
    again = method("Canary")
    again.load_state(json.loads(json.dumps(watched.state())))
    assert again.seen == watched.seen


def test_canaries_are_sampled_and_judged_letter_by_letter(watched):
    problem = {"problem": "1/2=", "answer": "0.5"}
    assert canary.strictest(r"\boxed{0.5}", problem)[0] == 1
    assert canary.strictest(r"\boxed{1/2}", problem)[0] == 0  # equal by value
    assert canary.strictest(r"\boxed{7} \boxed{0.5}", problem)[0] == 0  # two answers
    row = {"reward": 0.5, "eval_accuracy": 0.1}
    watched.after_step(row, load(TINY)[0])
    assert 0 < row["canary"] < 1


# ---- On a device that pretends to be CUDA --------------------------------------------------------


class Older(SharedPrompts, Stale, Distill):
    @dataclass
    class Settings(Stale.Settings, Distill.Settings):
        teacher: str = str(TINY)
        temperature: float = 0.7


class Capped(KLCap, LoRA, DAPO):
    @dataclass
    class Settings(KLCap.Settings, LoRA.Settings, DAPO.Settings):
        clip: tuple = DAPO.Settings.clip
        kl_cap: float = 1e-9
        on_exceed: str = "reset"


def short(completion, problem):
    """Reward by the parity of the length, also if cut off, so that groups have unequal rewards."""
    return -float(len(completion) % 2), {"short": -float(len(completion) % 2)}


@pytest.mark.parametrize(
    "method, flags",
    [
        (f"{__file__}:Older", "--max-new-tokens 3"),  # shorter than the prompts: they share a line
        (f"{__file__}:Capped", "--max-new-tokens 12"),
        (f"{METHODS}/gdpo.py", "--max-new-tokens 12"),
        (f"{METHODS}/deepseek_v32.py", "--max-new-tokens 8 --top-p 0.5 --top-k 4"),
    ],
)
def test_what_a_method_makes_stays_on_the_device(method, flags, tmp_path, monkeypatch):
    """These methods make or keep tensors, and some are combined in one class. Each of two steps makes two
    updates; there is no preflight."""
    monkeypatch.setitem(verifiers.REWARDS, "short", short)
    monkeypatch.setattr(train, "preflight", lambda run: None)
    flags += f" --method {method} --model {TINY} --device cuda --steps 2 --reward short"
    flags += " --prompts-per-step 2 --num-samples 8 --updates-per-batch 2 --eval-problems 1"
    with PretendGPU():
        train.main([*flags.split(), "--runs", str(tmp_path), "--name", "x"])
    assert train.read_log(tmp_path / "x")[2]["grad_norm"] > 0
