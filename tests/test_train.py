"""train.py as it is used: a run and its files, stopping and resuming, plug-ins, preflight, flags.

(test_faults.py tests what kills a run, and test_ranks.py several processes.)"""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import eval as evaluation
import ranks
import rlvr
import train
from appendix import plumbing
from appendix.plumbing import DataError, read_problems
from model import KVCache, ModelError, load
from ranks import KL, ROOT, SMALL, TO_THE_END, checkpoints, loaded, metrics, rows_of, weights
from rlvr import GRPO, row_uniforms


def run(runs, *flags, name="run"):
    train.main([*SMALL, "--runs", str(runs), "--name", name, *flags])
    return runs / name


def resume(runs, *flags, name="run"):
    train.main(["--resume", "--runs", str(runs), "--name", name, *flags])
    return runs / name


def samples(folder, step):
    return read_problems(folder / "samples" / f"step_{step:06d}.jsonl.gz")


def progress(folder, step):
    return json.loads((folder / "checkpoints" / f"step_{step:06d}" / "progress.json").read_text())


def same(folder, other):
    """Return True if two runs have the same log, samples and weights, bit for bit."""
    steps = [row["step"] for row in metrics(other)]
    return (
        metrics(folder) == metrics(other)
        and torch.equal(weights(folder), weights(other))
        and all(samples(folder, step) == samples(other, step) for step in steps if step)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of an ordinary run of 6 steps, which many tests use."""
    return run(tmp_path_factory.mktemp("runs"), *TO_THE_END, "--steps", "6", name="whole")


# ---- What a run leaves behind --------------------------------------------------------------------


def test_the_log_has_a_row_for_each_step_and_for_the_untrained_model(whole):
    rows = rows_of(whole)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows if "eval_accuracy" in row] == [0, 3, 6]
    for row in rows:
        assert row.keys() >= {"reward", "accuracy", "completion_length", "truncated"}
    for row in rows[1:]:
        assert row.keys() >= {"seconds", "entropy", "clipped", "lr", "sample_seconds"}
        assert 0 < row["verify_seconds"] < row["sample_seconds"] < row["seconds"]
        assert row["grad_norm"] > 0
        assert row["entropy"] > 0
        assert row["mismatch"] < 1e-5  # sampler and trainer agree on the log-probs, in fp32
        assert 0 < row["trained"] <= 16
    untrained = rows[0]
    assert untrained["eval_n"] == 16
    assert untrained["eval_low"] < untrained["eval_accuracy"] < untrained["eval_high"]
    assert untrained["reward"] == untrained["eval_sampled_reward"]


def test_the_learning_rate_rises_for_5_steps_on_a_cosine_to_a_tenth(whole):
    rates = [row["lr"] for row in rows_of(whole)[1:]]
    cosine = [0.55 + 0.45 * math.cos(math.pi * step / 6) for step in range(1, 7)]
    rise = [0.2, 0.4, 0.6, 0.8, 1, 1]
    assert rates == pytest.approx([4e-4 * c * r for c, r in zip(cosine, rise, strict=True)])
    assert rates[-1] == pytest.approx(4e-5)


def test_the_first_step_moves_weights_by_the_learning_rate_and_no_further(tmp_path):
    """Adam's first step does that for any gradient. Weight decay would move some weights further."""
    folder = run(tmp_path, "--steps", "1", "--lr", "0.5")
    before = load(ROOT / "notebooks" / "tiny")[0].state_dict()
    after = load(folder / "final")[0].state_dict()
    moved = max((after[name] - before[name]).abs().max().item() for name in before)
    rate = rows_of(folder)[1]["lr"]
    assert rate == pytest.approx(0.5 * 0.1 / 5)  # the cosine's end, and a fifth for the warm-up
    assert moved == pytest.approx(rate, rel=1e-3)


def test_the_samples_hold_every_completion_with_its_tokens_and_log_probs(whole):
    rows = samples(whole, 2)
    row_of_log = rows_of(whole)[2]
    _, tokenizer = load(ROOT / "notebooks" / "tiny")
    assert len(rows) == 16
    assert sum(row["reward"] for row in rows) / 16 == pytest.approx(row_of_log["reward"])
    assert sum(len(row["ids"]) for row in rows) / 16 == row_of_log["completion_length"]
    for row in rows:
        assert tokenizer.decode(row["ids"]) == row["completion"]
        assert len(row["logps"]) == len(row["ids"])
        assert max(row["logps"]) <= 0
        assert row.keys() >= {"accuracy", "truncated", "failed"}
    for group in (rows[i : i + 4] for i in range(0, 16, 4)):
        assert len({row["problem"] for row in group}) == 1
        assert sum(row["advantage"] for row in group) == pytest.approx(0, abs=1e-3)


def test_a_group_is_mixed_solved_or_hopeless():
    """A group with equal rewards is solved if its answers are right. A small reward for form does not count."""
    r = loaded()
    batch = train.roll_out_all(r, r.task.train[:4], 2, 1.0, "1")
    batch.rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.1, 0.1]])
    accuracies = (1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    batch.parts = [{"accuracy": accuracy, "truncated": 0} for accuracy in accuracies]
    row = train.batch_metrics(batch)
    assert batch.accuracy.mean(1).tolist() == [0.5, 1, 0, 0]
    assert (row["accuracy"], row["reward"]) == pytest.approx((3 / 8, 3.2 / 8))
    assert (row["mixed"], row["solved"], row["hopeless"]) == (1 / 4, 1 / 4, 2 / 4)


def test_config_json_says_how_the_run_was_made(whole):
    config = json.loads((whole / "config.json").read_text())
    assert config["flags"]["steps"] == 6 and config["flags"]["resume"] is False
    assert config["flags"]["lr"] == train.DEFAULTS["lr"][0]
    assert os.path.samefile(config["flags"]["model"], ROOT / "notebooks" / "tiny")
    assert config["settings"]["num_samples"] == 4
    assert config["settings"]["max_new_tokens"] == train.DEFAULTS["max_new_tokens"][0]
    assert config["versions"].keys() >= {"python", "torch", "git"}


def test_two_checkpoints_are_kept(whole):
    """(test_faults.py checks that of four checkpoints only two stay.)"""
    assert checkpoints(whole) == ["step_000003", "step_000006"]
    assert not (whole / "checkpoints" / "partial").exists()


def test_the_final_model_is_what_eval_py_reads(whole, capsys):
    evaluation.main([str(whole), "--problems", "16", "--greedy", "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    final, base = [line.split() for line in lines if line.startswith("greedy ")]
    titles = next(line.split() for line in lines if " accuracy " in line)
    rows = rows_of(whole)
    assert rows[-1]["eval_accuracy"] != rows[0]["eval_accuracy"], "no test of which is which"
    for cells, row in ((final, rows[-1]), (base, rows[0])):
        accuracy = float(cells[titles.index("accuracy") + 1])
        assert accuracy == pytest.approx(row["eval_accuracy"], abs=6e-4)


def test_what_a_run_prints(tmp_path, capsys):
    """It prints the first prompt, the preflight, a table, and a last line that a script can read."""
    folder = run(tmp_path, "--steps", "1")
    out = capsys.readouterr().out
    first = loaded().task.train[0]["problem"]
    assert out.startswith(f"model {ROOT / 'notebooks' / 'tiny'}")
    assert f"\n    {first}\n" in out
    assert "200 problems to train on, 20 held out" in out
    assert "preflight: of 16 completions" in out
    table = [line for line in out.splitlines() if re.match(" +[0-9]+ +[0-9.]", line)]
    assert [line.split()[0] for line in table] == ["0", "1"]
    assert max(map(len, table)) <= 79
    form = r"held-out accuracy [01]\.\d{3} -> [01]\.\d{3} \(greedy, n=16\) in \d+ s; model in "
    assert re.fullmatch(form + re.escape(str(folder / "final")), out.splitlines()[-1])


def test_what_takes_long_shows_how_far_it_is_also_in_a_pipe(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plumbing, "PATIENCE", 0.02)
    for _ in plumbing.bar(range(2), "update"):
        time.sleep(0.2)
    bars = capsys.readouterr().err
    assert "update:   0%|" in bars and "update:  50%|" in bars and bars.endswith(" " * 79 + "\r")
    loops = set()
    monkeypatch.setattr(rlvr, "bar", lambda items, what: loops.add(what) or items)
    run(tmp_path, "--steps", "1")
    assert loops == {"tokens", "update"}


def test_the_preflight_shows_what_an_environment_replied(tmp_path, capsys, write):
    """Replies are in double brackets. Control characters are escaped, and long lines are wrapped."""
    text = """
from verifiers import Task, arithmetic

class Echo:
    def reply(self, text):
        return "1=1"

def echo():
    sums = arithmetic(8, 16)
    stops, turns = ("</think>",), lambda problem: Echo()
    return Task("echo", sums.train, sums.test, "{problem}", sums.reward, stops=stops, turns=turns)
"""
    run(tmp_path, "--steps", "1", "--task", f"{write(text)}:echo")
    out = capsys.readouterr().out
    assert "8 problems to train on, 16 held out\n" in out
    assert re.search(r"a completion with reward -?[0-9.]+:\n    .*\n    \[\[1=1\]\]", out)
    hostile = plumbing.shown("\x1b[2J" + "x" * 80)  # a code that clears the terminal
    assert hostile.splitlines() == ["    \\x1b[2J" + "x" * 68, "    " + "x" * 12]


# ---- Stopping and resuming -----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_run_and_another_seed_another(whole, tmp_path):
    again = run(tmp_path, *TO_THE_END, "--steps", "6", name="again")
    assert same(again, whole)
    other = run(tmp_path, *TO_THE_END, "--steps", "1", "--seed", "1", name="other")
    assert samples(other, 1) != samples(whole, 1)


def test_no_step_draws_the_random_numbers_of_another(tmp_path, monkeypatch):
    names = []

    def noted(rows, *how):
        names.extend(rows)
        return row_uniforms(rows, *how)

    monkeypatch.setattr(rlvr, "row_uniforms", noted)
    run(tmp_path, "--steps", "3")
    own = [name for name in names if not name.startswith("held out")]
    assert len(own) == len(set(own)) == 4 * 16  # of the preflight and of three steps


def test_a_finished_run_goes_on_to_more_steps_and_not_to_fewer(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ModelError, match="is already at step 6"):
        resume(tmp_path, "--steps", "5")
    assert (folder / "metrics.jsonl").read_bytes() == before
    resume(tmp_path, "--steps", "7")
    assert [row["step"] for row in rows_of(folder)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert json.loads((folder / "config.json").read_text())["flags"]["steps"] == 7


@pytest.mark.parametrize("flags", ["--lr 1", "--seed 3", "--task math", "--norm sum"])
def test_what_a_run_was_made_with_cannot_be_changed(whole, flags, capsys):
    before = (whole / "config.json").read_bytes()
    with pytest.raises(SystemExit):
        resume(whole.parent, *flags.split(), name="whole")
    assert f"leave out {flags.split()[0]}:" in capsys.readouterr().err
    assert (whole / "config.json").read_bytes() == before


def test_ctrl_c_saves_the_running_step_and_a_second_process_is_refused(tmp_path):
    """One terminal trains, and another tries to resume the same run. Then comes Ctrl-C, and at once the
    signal that `timeout` sends."""
    flags = ["--steps", "500", "--save-every", "500", "--runs", str(tmp_path), "--name", "run"]
    command = [sys.executable, "train.py", *SMALL, *flags]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    folder = tmp_path / "run"
    deadline = time.time() + 60
    while ranks.last_step(folder) < 2 and time.time() < deadline:
        time.sleep(0.02)
    config = (folder / "config.json").read_bytes()
    with pytest.raises(ModelError, match="in use"):
        resume(tmp_path, "--steps", "600")
    assert (folder / "config.json").read_bytes() == config
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    last = ranks.last_step(folder)
    assert process.returncode != 0
    assert 2 <= last < 500
    assert f"step {last} is saved" in output
    assert re.search(r"python train\.py --resume --name run --runs \S+", output)
    assert "Traceback" not in output
    assert checkpoints(folder) == [f"step_{last:06d}"]
    assert not (folder / "final").exists()


def test_a_run_is_not_overwritten(whole, capsys):
    before = (whole / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit):
        run(whole.parent, "--steps", "1", name="whole")
    said = capsys.readouterr().err
    assert "whole exists: add --resume, or choose another --name" in said
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_logs_without_a_checkpoint_are_not_started_over(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ModelError, match="checkpoint"):
        resume(tmp_path)
    assert (folder / "metrics.jsonl").read_bytes() == before


LATE_NAN = """
from rlvr import GRPO

class LateNan(GRPO):
    factor = 1.0

    def after_step(self, row, model):
        self.factor = float("nan") if row["step"] == 4 else 1.0

    def loss(self, logp, micro):
        return super().loss(logp, micro) * self.factor
"""


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_steps_before_it(tmp_path, write):
    with pytest.raises(SystemExit, match="step 5.*nan"):
        run(tmp_path, "--steps", "9", "--method", write(LATE_NAN))
    assert ranks.last_step(tmp_path / "run") == 4
    assert checkpoints(tmp_path / "run") == ["step_000003", "step_000004"]
    again = train.load_run(train.parse_args(["--resume", "--runs", str(tmp_path), "--name", "run"]))
    train.load_checkpoint(again)
    assert all(param.isfinite().all() for param in again.parameters)


# ---- What is trained -----------------------------------------------------------------------------


def test_in_the_second_update_on_a_batch_clipping_acts_and_a_kl_pulls_back(tmp_path):
    """After --resume the reference is still the initial model, not the checkpoint's."""
    flags = ["--updates-per-batch", "2", "--lr", "5e-3", "--clip", "0.001", "0.002"]
    folder = run(tmp_path, "--steps", "1", "--save-every", "1", "--method", KL, *flags)
    resume(tmp_path, "--steps", "2")
    _, first, second = rows_of(folder)
    assert first["clipped"] > 0
    assert first["kl"] == pytest.approx(0, abs=1e-6)  # the model is still the one it started from
    assert second["kl"] > 1e-5


FORGER = """
from rlvr import GRPO

class Forger(GRPO):
    def loss(self, logp, inputs):
        for name in ("accuracy", "reward", "mismatch", "tokens", "loss", "step", "own"):
            inputs.columns[name] = inputs.weights.sum() * 0 + 7 * (inputs.weights > 0).sum()
        return super().loss(logp, inputs)
"""


def test_a_loss_adds_columns_to_the_log_but_replaces_none(tmp_path, write, whole):
    """The log's own columns are those of a run without this method."""
    folder = run(tmp_path, *TO_THE_END, "--steps", "1", "--method", write(FORGER))
    ours, plain = rows_of(folder)[1], rows_of(whole)[1]
    assert ours["own"] == pytest.approx(7)
    names = ("step", "reward", "accuracy", "mismatch", "entropy", "loss")
    assert [ours[name] for name in names] == [plain[name] for name in names]


def test_a_long_gradient_is_clipped_to_norm_1_and_a_short_one_is_left_alone():
    long, short = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    long.grad, short.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.3, 0.4])
    assert train.clip_gradients([long]) == 5
    assert train.clip_gradients([short]) == pytest.approx(0.5)
    assert long.grad.tolist() == pytest.approx([0.6, 0.8])
    assert short.grad.tolist() == pytest.approx([0.3, 0.4])


def test_weights_are_rounded_for_a_while(model):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids = torch.randint(0, 20, (1, 8))
    with pytest.raises(KeyboardInterrupt), train.cast_weights(torch.bfloat16, model):
        assert KVCache(model, 1, 8).k[0].dtype == torch.bfloat16
        assert model(ids).dtype == torch.bfloat16
        raise KeyboardInterrupt
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_batch_without_signal_moves_nothing():
    """(Adam's momentum alone would move the weights.)"""
    r = loaded()
    batch = train.roll_out_all(r, r.task.train[:4], 4, 1.0, "1")
    for weight in (1.0, 0.0):
        before = [param.clone() for param in r.parameters]
        batch.rewards = weight * torch.tensor([[1.0, 0.0, 1.0, 0.0]]).repeat(4, 1)
        advantages = r.method.advantages(batch).view(16, 1) * batch.rollouts.mask
        stats, _ = train.update(r, batch, advantages, None)
        equal = [torch.equal(p, q) for p, q in zip(r.parameters, before, strict=True)]
        assert stats["trained"] == 16 * weight
        assert (stats["grad_norm"] > 0) == (weight > 0)
        assert all(equal) if weight == 0 else not any(equal)


# ---- Plug-ins ------------------------------------------------------------------------------------

PLUGINS = """
import json
from verifiers import Task, arithmetic

SEEN = set()

def terse(completion, problem):
    SEEN.add(problem.get("step"))
    return (2.0 if len(completion) < 20 else -1), {"digits": sum(map(str.isdigit, completion))}

def sums():
    problems = [{"problem": f"{i}+{j}=", "answer": str(i + j)} for i in range(10) for j in range(9)]
    return Task("sums", problems[30:], problems[:30], "1+{problem}", arithmetic(10, 10).reward)
"""


def test_a_reward_of_my_own_may_pay_anything_and_evaluation_keeps_the_tasks_accuracy(
    tmp_path, write, whole
):
    path = write(PLUGINS)
    folder = run(tmp_path, *TO_THE_END, "--steps", "3", "--reward", f"{path}:terse")
    rows = rows_of(folder)
    assert {row["reward"] for row in samples(folder, 1)} <= {2.0, -1.0, 0.0}
    assert rows[0]["eval_accuracy"] == rows_of(whole)[0]["eval_accuracy"]
    assert rows[1]["digits"] > 1
    module = sys.modules[os.path.basename(path)[:-3]]
    assert module.SEEN == {None, 1, 2, 3}  # held-out problems have no step


def test_a_task_of_my_own(tmp_path, write):
    folder = run(tmp_path, "--steps", "1", "--task", f"{write(PLUGINS)}:sums")
    assert all(int(row["problem"][0]) >= 3 for row in samples(folder, 1))  # the others are held out


METHODS = """
import torch
from dataclasses import dataclass
from rlvr import GRPO, Settings, Stopped
class Climb(GRPO):
    "Always the problems that were least visited, 3 or 5 of them; it counts its own steps, and draws."
    calls = 0
    def pick(self, problems, step, memory):
        self.calls += 1
        assert self.calls == step
        memory[step] = torch.rand(1).item()
        seen = memory.setdefault("seen", [0] * len(problems))
        chosen = sorted(range(len(seen)), key=lambda i: (seen[i], i))[: 3 if step % 2 else 5]
        for i in chosen:
            seen[i] += 1
        return chosen
    def advantages(self, step):
        step.rewards -= 1  # its own copy
        return super().advantages(step) * torch.rand(step.rewards.shape)
    def after_step(self, row, model):
        self.settings.temperature *= 0.9
        row["temperature"] = self.settings.temperature
        if row["step"] == 6:
            raise Stopped("six are enough")
    def state(self):
        return {"calls": self.calls}
    def load_state(self, state):
        self.calls = state["calls"]
class Six(GRPO):
    @dataclass
    class Settings(Settings):
        num_samples: int = 6
        height: float = 0.5
"""


def test_a_method_of_my_own_with_a_memory_goes_on_bit_for_bit(tmp_path, write):
    """Its file has two methods, so :Climb names one. The method stops the run, and the last step is saved.
    Random numbers depend on the step. Keys of the memory are texts, as in JSON."""
    method = f"{write(METHODS)}:Climb"
    with pytest.raises(SystemExit, match="six are enough; step 6 is saved"):
        run(tmp_path, "--steps", "9", "--method", method)
    folder = tmp_path / "run"
    assert [len(samples(folder, step)) for step in range(1, 7)] == [12, 20, 12, 20, 12, 20]
    assert progress(folder, 6)["method"] == {"calls": 6}
    memory = progress(folder, 6)["memory"]
    assert memory.keys() == {"seen", *"123456"}
    before = metrics(folder)
    assert all(row["reward"] >= 0 for row in before)
    cooled = [0.9**step for step in range(1, 7)]
    assert [row["temperature"] for row in before[1:]] == pytest.approx(cooled)
    shutil.rmtree(folder / "checkpoints" / "step_000006")
    with pytest.raises(SystemExit, match="six are enough"):
        resume(tmp_path)
    assert metrics(folder) == before
    assert progress(folder, 6)["memory"] == memory


WRONG = """
import torch
import verifiers
from rlvr import GRPO
def task(**changes):
    task = verifiers.arithmetic(50, 10)
    vars(task).update(changes)
    return task
def no_list(): return task(train=None)
def no_dicts(): return task(train=["1+1="])
def nothing_to_train_on(): return task(train=[])
def nothing_held_out(): return task(test=[])
def no_instruction(): return task(instruction=None)
def no_reward(): return task(reward=None)
def one_stop(): return task(stops="####")
def stops_of_ids(): return task(stops=(3,))
def no_sink(folder, flags): return None
class NoParameters(GRPO):
    def setup(self, model, tokenizer): pass
class Generator(GRPO):  # would be used up before the gradients are clipped
    def setup(self, model, tokenizer): return (param for param in model.parameters())
class NoPick(GRPO):
    def pick(self, problems, step, memory): return None
class Problems(GRPO):
    def pick(self, problems, step, memory): return problems[:2]
class NanPick(GRPO):
    def pick(self, problems, step, memory): return [0.5, float("nan")]
class TooFar(GRPO):
    def pick(self, problems, step, memory): return [0, len(problems)]
class TensorInMemory(GRPO):
    def pick(self, problems, step, memory):
        memory["weights"] = torch.ones(3)
        return [0, 1]
class NoRollouts(GRPO):
    def roll_out(self, *args, **how): return None
class Changed(GRPO):
    def roll_out(self, *args, **how):
        rollouts = super().roll_out(*args, **how)
        self.change(rollouts)
        return rollouts
class NanLogp(Changed):
    def change(self, rollouts): rollouts.logp[:] = torch.nan
class WideLogp(Changed):
    def change(self, rollouts): rollouts.logp = rollouts.logp[:, :-1]
class FewLengths(Changed):
    def change(self, rollouts): rollouts.lengths = rollouts.lengths[1:]
class FewRows(GRPO):
    def roll_out(self, model, tokenizer, prompts, training, **how):
        return super().roll_out(model, tokenizer, prompts[1:], training, **how)
class NoAdvantages(GRPO):
    def advantages(self, step): return None
class Lists(GRPO):
    def advantages(self, step): return step.rewards.tolist()
class NanAdvantages(GRPO):
    def advantages(self, step): return step.rewards * torch.nan
class NoLoss(GRPO):
    def loss(self, logp, micro): return None
class Number(GRPO):
    def loss(self, logp, micro): return 0.5
class ForEachToken(GRPO):
    def loss(self, logp, inputs): return logp * inputs.advantages
class NanLoss(GRPO):
    def loss(self, logp, micro): return super().loss(logp, micro) * torch.nan
class NoRows(GRPO):
    def rows(self, rollouts, advantages): return None
class FewKept(GRPO):
    def rows(self, rollouts, advantages): return (advantages != 0).any(1)[1:]
class Numbers(GRPO):
    def rows(self, rollouts, advantages): return advantages.sum(1)
class NoLayout(GRPO):
    def layout(self, rollouts, keep, max_tokens): return None
class RowsLost(GRPO):
    def layout(self, rollouts, keep, max_tokens):
        lost = keep & (keep.cumsum(0) > 1)
        return super().layout(rollouts, lost, max_tokens)
class NoState(GRPO):
    def state(self): return torch.zeros(1)
class NoColumn(GRPO):
    def after_step(self, row, model): row["norm"] = torch.zeros(1)
class NoModel(GRPO):
    def export(self, model): return {}
class NanWeights(GRPO):
    def after_step(self, row, model): next(model.parameters()).data.fill_(torch.nan)
class NoOptimizer(GRPO):
    def optimizer(self, parameters, lr): return None
"""


@pytest.mark.parametrize(
    "flag, names, message",
    [
        ("--task", "no_list nothing_held_out", "arithmetic: train and test must be lists of"),
        ("--task", "no_dicts", 'task arithmetic, problem 1: its "problem" must be text'),
        ("--task", "nothing_to_train_on", "task arithmetic has no problems to train on"),
        ("--task", "no_instruction", "task arithmetic: its prompt needs {problem}"),
        (
            "--task",
            "no_reward one_stop stops_of_ids",
            "reward a function, and stops .--stop. a tuple",
        ),
        ("--method", "NoParameters Generator", "setup returns .*not a list of parameters"),
        ("--method", "NoOptimizer", "optimizer returns None, not a torch.optim.Optimizer"),
        ("--method", "NoPick Problems NanPick", "pick returns .*not indices of problems"),
        ("--method", "NoRollouts NanLogp WideLogp FewLengths", "roll_out returns .*not Rollouts "),
        ("--method", "FewRows", "not Rollouts with finite log-probs for each completion"),
        (
            "--method",
            "NoAdvantages Lists NanAdvantages",
            "advantages returns .*not finite numbers of shape",
        ),
        ("--method", "NoLoss Number ForEachToken", "loss .*not a tensor of one number"),
        ("--method", "NanLoss", "step 1 has loss nan .*look at the method's loss"),
        ("--method", "NoRows FewKept Numbers", "rows returns .*not a tensor of B bools"),
        ("--method", "NoLayout RowsLost", "the method's layout left out tokens"),
        ("--method", "TooFar", r"pick returns \[0, 200\], not indices"),
        ("--method", "TensorInMemory NoState NoColumn", "memory of pick.*Tensor is not JSON"),
        ("--method", "NoModel", "export returns {}, not a model"),
        ("--method", "NanWeights", "step_000001: not written: the weights hold NaN"),
    ],
)
def test_what_a_plug_in_returns_is_checked_at_once(tmp_path, write, flag, names, message):
    """For a wrong type, a wrong shape or NaN a message names the function, what it returned and what it
    should return, in the first step at the latest (for export: at the end of a run of one step)."""
    path = write(WRONG)
    for name in names.split():
        with pytest.raises((SystemExit, DataError), match=f"(?s){message}"):
            run(tmp_path, "--steps", "1", flag, f"{path}:{name}", name=name)


@pytest.mark.parametrize(
    "flag, value, message",
    [
        ("--method", "ppo", "ppo: there is no such Python file"),
        ("--method", f"{ROOT}/train.py", "train.py: choose a subclass of GRPO, .*: none"),
        ("--method", f"{ROOT}/notebooks/methods/grpo.py:DRGRPO", "DRGRPO: choose .*, DrGRPO,"),
        ("--method", "dapo", "dapo: there is no such Python file; .*notebooks/methods/dapo.py"),
        ("--model", f"{ROOT}/notebooks/tny", "tny: no such directory; found .*tiny"),
        ("--model", f"{ROOT}/tests", "tests/config.json: cannot be read"),
        ("--runs", f"{ROOT}/train.py", "--runs .*train.py: cannot be written to"),
        ("--reward", "bxoed", "there is no reward 'bxoed': choose boxed"),
        ("--task", "arithmetics", "there is no task 'arithmetics': choose arithmetic"),
    ],
)
def test_what_is_not_found_is_named_and_nothing_is_written(tmp_path, flag, value, message, capsys):
    with pytest.raises((SystemExit, DataError, ModelError, OSError)) as refused:
        run(tmp_path, flag, value)
    assert re.search(message, str(refused.value) + capsys.readouterr().err, re.S)
    assert not (tmp_path / "run").exists()


# ---- Preflight, and a verifier that fails --------------------------------------------------------

REWARDS = """
from itertools import count
from verifiers import tagged_reward
def always(text, problem):
    return 1.0, {}
def cancels(text, problem):
    _, parts = tagged_reward(text, problem)
    return 3.0, parts
def never(text, problem):
    return 0.0, {"accuracy": 0}
def easy(text, problem):
    return 1.0, {"accuracy": 1}
def strict(text, problem):
    right = text == "\\\\boxed{" + problem["answer"] + "}"
    return float(right), {"accuracy": right, "answered": right}
def hard(text, problem):
    right = text.startswith("<think>It") and problem["answer"] in text
    return float(right), {"accuracy": right}
def broken(text, problem):
    return 1 / 0
calls = count()
def half_broken(text, problem):
    return 1 / (next(calls) % 2)
def broken_later(text, problem):
    return 1 / (problem.get("step", 0) < 2), {}
"""


@pytest.mark.filterwarnings("ignore:the verifier or environment failed")
@pytest.mark.parametrize(
    "name, flags, message",
    [
        ("broken", "", "the verifier fails"),
        ("always", "", "unequal rewards: right and wrong .* earn the same"),
        ("always", "--max-new-tokens 2", "cut off"),
        ("always", "--num-samples 1", "a group needs two or more completions"),
        ("never", "--temperature 0.001", "alike: raise --temperature"),
        ("cancels", "", "do parts of the reward cancel"),
        ("never", "", "not even .boxed.58. earns more; does the reward read"),
        ("easy", "", "the problems are too easy; .*notebooks.look.filter"),
        (
            "strict",
            "",
            "a form that is rewarded; try --prompt .*This would have been rewarded: .boxed.58.",
        ),
        ("hard", "", "too hard; .*would have been rewarded: <think>.*boxed.58."),
    ],
)
def test_where_nothing_can_be_learned_nothing_is_started(tmp_path, write, name, flags, message):
    flags = [*TO_THE_END, "--num-samples", "16", *flags.split()]
    with pytest.raises(SystemExit, match=message):
        run(tmp_path, "--reward", f"{write(REWARDS)}:{name}", *flags)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags, warnings",
    [
        (
            ["--lr", "1e4", "--steps", "14"],
            ["nothing was learned in 10 steps", "in the last 13 steps"],
        ),
        (["--lr", "1e-12", "--steps", "1"], []),
    ],
)
def test_a_run_that_learns_nothing_any_more_says_so(tmp_path, capsys, flags, warnings):
    """A run that collapses warns during training and at the end; a run that makes no progress, at the end."""
    run(tmp_path, *flags)
    out = capsys.readouterr().out
    assert [out.count(f"{text}") for text in warnings] == [1] * len(warnings)
    assert out.count("no group had unequal rewards") == len(warnings)
    assert out.splitlines()[-2] == "warning: held-out accuracy is no higher than before training"


def test_few_completions_prove_little_so_they_only_warn(write, capsys):
    train.preflight(loaded("--reward", f"{write(REWARDS)}:always", *TO_THE_END))
    assert re.search("warning:\n *no group has unequal rewards", capsys.readouterr().out)


@pytest.mark.filterwarnings("ignore:the verifier or environment failed")
def test_a_verifier_may_fail_on_half_of_the_texts(tmp_path, write):
    reward = f"{write(REWARDS)}:half_broken"
    run(tmp_path, "--steps", "1", "--num-samples", "16", "--reward", reward)
    assert rows_of(tmp_path / "run")[1]["failed"] == 0.5


@pytest.mark.filterwarnings("ignore:the verifier or environment failed")
def test_a_verifier_that_fails_on_everything_stops_the_run(tmp_path, write):
    with pytest.raises(SystemExit, match="the verifier failed.*step 2 is saved"):
        run(tmp_path, "--steps", "9", "--reward", f"{write(REWARDS)}:broken_later")
    rows = rows_of(tmp_path / "run")
    assert [row["failed"] for row in rows[1:]] == [0, 1]
    assert rows[2]["trained"] == 0


def test_a_problem_that_is_too_long_for_the_model_is_refused(tmp_path):
    data = tmp_path / "long.jsonl"
    rows = [{"problem": f"{i}+{i}=", "answer": str(2 * i)} for i in range(40)]
    rows.append({"problem": "1+" * 500 + "1=", "answer": "501"})  # has 1,002 of 1,024 tokens
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ModelError, match="exceed the model's.*1[+]1[+]1"):
        loaded("--task", str(data), "--prompt", "{problem}")
    with pytest.raises(ModelError, match="(?s)has no token for .*Solve the following"):
        loaded("--task", str(data))


# ---- Flags ---------------------------------------------------------------------------------------


def test_the_size_is_below_the_method_and_the_method_below_the_command_line(write):
    def samples_of(*flags):
        return train.parse_args(["--device", "cpu", *flags]).settings["num_samples"]

    method = f"{write(METHODS)}:Six"
    assert samples_of() == train.DEFAULTS["num_samples"][0] == 16
    assert samples_of("--model", "Qwen/Qwen3-0.6B-Base", "--task", "math") == 8
    assert samples_of("--method", method) == 6
    assert samples_of("--method", method, "--num-samples", "5") == 5
    settings = train.parse_args(["--device", "cpu", "--method", method]).settings
    assert settings["max_new_tokens"] == 80  # the method does not set it
    assert settings["height"] == 0.5
    flags = ["--device", "cpu", "--method", method, "--height", "2"]
    assert train.parse_args(flags).settings["height"] == 2


def test_flags_from_a_file(tmp_path):
    """A line may have several flags and quotes as in a shell. # starts a comment. Later flags win."""
    text = "# DAPO\n--clip 0.2 0.28  # clip-higher\n--prompt 'Say {problem} # now' --steps 9\n"
    (tmp_path / "recipe.txt").write_text(text)
    flags = train.parse_args([f"@{tmp_path}/recipe.txt", "--steps", "7", "--device", "cpu"])
    assert flags.settings["clip"] == (0.2, 0.28)
    assert flags.prompt == "Say {problem} # now"
    assert flags.steps == 7


def test_defaults_follow_the_machine(monkeypatch):
    cpu = train.parse_args(["--device", "cpu"])
    assert cpu.model.endswith("notebooks/tiny")
    assert (cpu.task, cpu.lr, cpu.eval_every) == ("arithmetic", 4e-4, 25)
    gpu = ("cuda", torch.bfloat16)
    monkeypatch.setattr(train, "pick_device", lambda wanted=None: gpu)
    flags = train.parse_args([])
    assert (flags.model, flags.task, flags.lr) == ("Qwen/Qwen3-0.6B-Base", "math", 3e-6)
    assert flags.settings["max_new_tokens"] == 512
    assert train.parse_args(["--task", "arithmetic"]).model.endswith("notebooks/tiny")


@pytest.mark.parametrize("name", ["advantage", "loss", "kl-cap"])  # no flags of train.py
def test_a_flag_that_is_not_there_is_refused_with_what_replaces_it(name, tmp_path, whole, capsys):
    """It is refused on the command line, and in the config.json of a run of another version."""
    with pytest.raises(SystemExit):
        train.parse_args([f"--{name}", "x"])
    assert f"there is no --{name}, see --help" in capsys.readouterr().err
    config = json.loads((whole / "config.json").read_text())
    config["flags"][name.replace("-", "_")] = "x"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SystemExit):
        train.parse_args(["--resume", "--runs", str(tmp_path), "--name", "old"])
    said = capsys.readouterr().err
    assert re.search(f"old/config.json has {name.replace('-', '_')}, an unknown flag", said)


BAD_FLAGS = """--num-samples 0 | --prompts-per-step 0 | --steps 0 | --steps ten | --temperature 0 |
--temperature nan | --lr nan | --lr -1 | --lr inf | --lr 1e12 | --kl-coef 0 | --eval-every 0 |
--device tpu | --template none | --num-sample 4 | --clip 1.5 0.2 |
--clip 2 | --heigth 1 | --norm median | --scale mad | --set clip=2 | --fsdp | --resume |
--name nowhere --resume | --lr -1e-3 | --name .. | stray"""  # flags cannot be abbreviated; --fsdp needs torchrun


@pytest.mark.parametrize("flags", [flags.strip() for flags in BAD_FLAGS.split("|")])
def test_bad_flags_are_refused_by_name_before_anything_is_written(
    flags, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as refused:
        train.parse_args(["--device", "cpu", "--runs", str(tmp_path), *flags.split()])
    said = capsys.readouterr().err.splitlines()[-1]
    assert refused.value.code == 2
    first, *others = flags.split()
    name = "--resume" if "--resume" in others else first.strip("-")
    assert name in said or name.replace("-", "_") in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, text",
    [
        ("config.json", '{"flags": {'),
        ("config.json", "[]"),
        ("config.json", '{"flags": {"colour": 1}, "settings": {}}'),
        ("metrics.jsonl", '{"step": 0\n{"step": 1, "reward": 0}\n'),
        ("metrics.jsonl", "[1]\n"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(name, text, tmp_path, whole, capsys):
    (tmp_path / "run").mkdir()
    shutil.copy(whole / "config.json", tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    with pytest.raises((SystemExit, DataError, ModelError)) as refused:
        resume(tmp_path)
    said = str(refused.value) + capsys.readouterr().err
    assert str(tmp_path / "run" / name) in said


def test_help_says_what_every_flag_is_for(capsys):
    with pytest.raises(SystemExit):
        train.parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.partition("options:")[2].split())
    assert "(default: (0.2, 0.2))" in text and "(default: False)" not in text
    for field in dataclasses.fields(train.Flags) + dataclasses.fields(GRPO.Settings):
        about = text.partition(f"--{field.name.replace('_', '-')} ")[2]
        assert len(about.split(" --")[0]) > 5, field.name
