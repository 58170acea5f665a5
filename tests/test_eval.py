"""eval.py: how certain a number is, on cases counted by hand, and the command on a toy run.
(notebooks/tests/test_look.py tests what notebooks/look/ adds.)"""

import json
import math
import re
import shlex
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import numpy
import pytest
import torch

import eval as evaluation
import ranks
import train
import verifiers
from appendix import plumbing
from appendix.plumbing import DataError, append_rows, get_method, read_rows
from conftest import ROOT
from eval import clustered_interval, evaluate, pass_at_k, wilson_interval
from model import ModelError, load
from rlvr import GRPO, Rollouts, records_of, roll_out, score
from verifiers import check_task, reward_rlvr


# ---- How certain a number is -------------------------------------------------------------------------


def test_pass_at_k_by_hand():
    """4 samples, 1 right: two of them miss it in C(3,2) = 3 of C(4,2) = 6 draws."""
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 1) == 0.25 and pass_at_k(4, 0, 4) == 0.0 and pass_at_k(4, 2, 3) == 1.0
    assert pass_at_k(1000, 3, 1) == pytest.approx(0.003)


def test_pass_at_k_is_unbiased():
    """Its mean over all outcomes of n samples is 1 - (1 - p)^k, the chance of at least one success in k."""
    n, p, k = 8, 0.3, 3
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(chance * pass_at_k(n, c, k) for c, chance in enumerate(chances))
    assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize("n, c, k", [(4, 1, 5), (4, 5, 2), (4, -1, 2), (4, 1, 0)])
def test_pass_at_k_refuses_what_it_cannot_know(n, c, k):
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at_k(n, c, k)


def test_wilson_interval_published_values():
    """Newcombe 1998, table I, has 81 of 263, 15 of 148, 0 of 20 and 1 of 29 at 95 %."""
    table = (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    )
    for right, n, low, high in table:
        assert wilson_interval(right / n, n) == pytest.approx((low, high), abs=1e-4)


def test_samples_of_one_problem_are_worth_less_than_as_many_problems():
    """n* = p (1 - p) n / s^2 is between n, the number of problems, and n k. The variance includes half a problem that is
    always right and half a problem that never is."""
    # k = 1 gives Wilson's interval. 8 equal samples count as one, and 4 x 8 failures as fewer than 32.
    assert clustered_interval([1, 0, 0, 1, 0], 1) == wilson_interval(2 / 5, 5)
    assert clustered_interval([1, 1, 0, 0], 8) == wilson_interval(0.5, 4)
    assert clustered_interval([0.0] * 4, 8)[1] > wilson_interval(0, 32)[1]
    # p 1/2; s^2 of 8 fair coins each: (0.5 / 4 + 0.5 / 4) / 4 = 1/16: n* = 1/4 * 4 / (1/16) = 16, not 32
    assert clustered_interval([0.5] * 4, 8) == pytest.approx(wilson_interval(0.5, 16))
    # 1/4, 1/4, 3/4, 3/4: s^2 = (4 / 16 + 1/4) / 4 = 1/8: n* = 8
    assert clustered_interval([0.25, 0.25, 0.75, 0.75], 8) == pytest.approx(wilson_interval(0.5, 8))


ALIKE = {"all or nothing": 0.1, "any chance": 1.0, "equal": math.inf}


@pytest.mark.parametrize("alike", ALIKE.values(), ids=ALIKE)
def test_with_many_samples_it_does_so_whatever_the_problems(alike):
    """The interval covers the truth in 93 % or more of simulations. Each problem has its own chance, from a beta
    distribution around the accuracy: nearly always 0 or 1, anything, or the same for all."""
    rng = numpy.random.default_rng(0)
    n = 30
    for k in (4, 64):
        for p in (0.02, 0.1, 0.5, 0.98):
            chances = p if alike == math.inf else rng.beta(p * alike, (1 - p) * alike, (1000, n))
            shares = (rng.binomial(k, chances, (1000, n)) / k).tolist()
            intervals = [clustered_interval(row, k) for row in shares]
            covered = sum(low <= p <= high for low, high in intervals)
            assert covered / 1000 >= 0.93, (k, p)


def records(*shares):
    columns = dict.fromkeys(("reward", "length", "truncated", "answered", "failed"), 0.0)
    return [{**columns, "accuracy": float(share)} for share in shares]


def test_the_summary_has_pass_at_k_by_problem():
    assert evaluate(records(1, 0, 0, 0, 0, 0, 0, 0), 4, [2])["pass@2"] == 0.25
    assert evaluate(records(0.1, 0.9), 2, [2])["pass@2"] == 0  # half right is not right


def chosen_from(*given):
    """Return records of completions, each given as (box, is it right)."""
    return [{**records(right)[0], "completion": f"\\boxed{{{box}}}"} for box, right in given]


def test_without_a_verifier_a_majority_vote_chooses():
    """If two answers differ, the first one wins the vote. Cut-off completions have no vote."""
    rows = chosen_from(("3", 0), ("0.5", 1), ("0.5", 1), ("7", 0))
    summary = evaluate(rows, 4, [2, 4])
    assert (summary["majority@4"], summary["majority@2"]) == (1, 0)
    rows[2]["truncated"] = 1.0
    assert evaluate(rows, 4, [4])["majority@4"] == 0


# ---- From problems to judged completions -------------------------------------------------------------


def arithmetic_by_symbols():
    task = verifiers.arithmetic(train_size=1, test_size=12)
    return task, task.test


def test_a_completion_that_was_cut_off_is_not_right(model, tokenizer):
    """Every completion counts as right here, but an untrained model seldom stops within 5 tokens."""
    task, problems = arithmetic_by_symbols()
    task.reward = lambda completion, problem: (1.0, {"accuracy": 1.0, "answered": 1.0})
    rows = records_of(sampled(model, tokenizer, task, problems, 4, max_new_tokens=5))
    summary = evaluate(rows, 4)
    assert summary["truncated"] > 0.5
    assert summary["accuracy"] == pytest.approx(1 - summary["truncated"])
    assert summary["n"] == 12 and len(rows) == 48


def test_no_column_of_the_data_has_the_name_of_what_a_record_writes(model, tokenizer):
    """Such a column would be overwritten, and --regrade would give the reward the wrong value. A column named
    like a part of this reward (format, copied) keeps the value of the data."""
    task, problems = arithmetic_by_symbols()
    batch = sampled(model, tokenizer, task, problems[:1], 1)
    written = records_of(batch)[0].keys() - problems[0].keys() | {"turns", "ids", "model"}
    refused = set()
    for name in written:
        named = [{**problems[0], name: "no"}]
        try:
            check_task(replace(task, test=named))
        except DataError as error:
            assert f'rename "{name}"' in str(error)
            refused.add(name)
        else:
            assert records_of(sampled(model, tokenizer, task, named, 1))[0][name] == "no"
    assert written - refused == {"format", "copied"}


def sampled(model, tokenizer, task, problems, num_samples=3, max_new_tokens=20, **settings):
    method = GRPO(max_new_tokens=max_new_tokens, **settings)
    return roll_out(method, model, tokenizer, task, problems, num_samples, 1.0)


def test_evaluation_does_not_depend_on_the_size_of_a_batch(model, tokenizer):
    """All 36 completions are sampled at once, or by one problem at a time, or by a few (sample_tokens)."""
    task, problems = arithmetic_by_symbols()

    def evaluated(**settings):
        return records_of(sampled(model, tokenizer, task, problems, **settings))

    whole = evaluated(sample_tokens=10**6)
    assert evaluated(sample_tokens=1) == evaluated(sample_tokens=300) == whole
    assert evaluated(seed=1) != whole


def test_what_is_judged_is_the_text_before_the_stop(model, tokenizer):
    task, problems = arithmetic_by_symbols()
    plain = sampled(model, tokenizer, task, problems, 4)
    task.stops = ("8", plain.texts[0][3:5])  # one symbol, and two in this order
    assert len(plain.texts[0][3:5]) == 2
    assert not plain.rollouts.finished.all()
    batch = sampled(model, tokenizer, task, problems, 4)
    for row, text in enumerate(plain.texts):
        ends = [text.index(stop) for stop in task.stops if stop in text]
        assert batch.texts[row] == text[: min(ends, default=len(text))]
        assert batch.rollouts.finished[row] == (plain.rollouts.finished[row] or bool(ends))
    assert sampled(model, tokenizer, task, problems, 4, sample_tokens=100).texts == batch.texts


# ---- Rewards -----------------------------------------------------------------------------------------


def ended(rows, finished=True):
    """Return one group of completions; only `finished` matters."""
    flags = torch.full((rows,), finished) if isinstance(finished, bool) else torch.tensor(finished)
    ones = torch.ones(rows, dtype=torch.long)
    logp = torch.zeros(rows, 2)
    mask = torch.tensor([1.0, 0.0]).expand(rows, 2)
    return Rollouts(torch.zeros(rows, 3).long(), ones, ones, flags, logp, mask, rows)


def test_a_completion_that_was_cut_off_earns_at_most_nothing():
    """A right answer that never stops earns 0. If a wrong answer costs 1, it also costs 1 if it never
    stops: otherwise not stopping would avoid the penalty."""

    def plus_minus(text, problem):
        return 2 * reward_rlvr(text, problem["answer"]) - 1, {}

    texts = ["\\boxed{4}", "\\boxed{4} and so on and", "\\boxed{5}", "\\boxed{5} and so on and"]
    rollouts = ended(4, [True, False, True, False])
    rewards, parts = score(rollouts, texts, [{"answer": "4"}] * 4, plus_minus)
    assert rewards.tolist() == [[1.0, 0.0, -1.0, -1.0]]
    assert [part["truncated"] for part in parts] == [0, 1, 0, 1]


@pytest.mark.filterwarnings("ignore:the verifier or environment failed")
def test_a_verifier_that_raises_costs_a_reward_and_not_the_run():
    def reward(text, problem):
        return 1 / (float(text) or sys.exit(3)), {}

    texts = ["1", "0", "2", "two"]
    rewards, parts = score(ended(4), texts, [{}] * 4, reward)
    assert rewards.tolist() == [[1.0, 0.0, 0.5, 0.0]]
    assert [part["failed"] for part in parts] == [0, 1, 0, 1]
    assert [part["accuracy"] for part in parts] == [1.0, 0.0, 0.5, 0.0]
    with pytest.warns(UserWarning, match="could not convert string to float: 'two'"):
        score(ended(4), texts, [{}] * 4, reward)


@pytest.mark.filterwarnings("ignore:the verifier or environment failed")
def test_to_make_the_verifier_fail_earns_no_more_than_the_worst_of_the_group():
    """The reward is minus the distance from 7. It fails for words, which must not come out nearest."""

    def nearness(text, problem):
        return -abs(float(text) - 7), {}

    texts = ["5", "seven", "8", "0", "six", "5"]
    rollouts = ended(6)
    rollouts.num_samples = 3  # two groups
    rewards, _ = score(rollouts, texts, [{}] * 6, nearness)
    assert rewards.tolist() == [[-2, -2, -1], [-7, -7, -2]]


@pytest.mark.filterwarnings("ignore:the verifier or environment failed")
@pytest.mark.alone
def test_a_verifier_that_hangs_costs_its_completion_and_a_slow_one_nothing(monkeypatch):
    """A verifier times out only if no verifier at all returns for a minute, here 0.3 s. Six slow ones, of
    0.2 s each and one after the other, take longer together, and all count."""
    enough = threading.Event()
    one_at_a_time = threading.Lock()
    hung = []

    def reward(text, problem):
        if text == "hang":
            hung.append(threading.current_thread())
            enough.wait(60)
            return 9.0, {}
        with one_at_a_time:
            enough.wait(0.2)
        return float(text), {}

    monkeypatch.setattr(plumbing, "VERIFIER_TIMEOUT", 0.3)
    rewards, parts = score(ended(7), ["1", "hang", "2", "3", "4", "5", "6"], [{}] * 7, reward)
    assert hung[0].daemon  # it does not outlive the process
    enough.set()
    assert rewards.tolist() == [[1, 0, 2, 3, 4, 5, 6]]
    assert [part["failed"] for part in parts] == [0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "returned, accuracy",
    [
        ((-1.0, {}), 0.0),
        ((1_000_000, {}), 1.0),  # the highest
        ((7, {"terse": 3}), 1.0),  # another scale
        ((0.3, {"accuracy": 1}), 1.0),
        ((True, {}), 1.0),
        ((True,), 1.0),  # a number alone
        ((numpy.float32(0.5),), 0.5),
        ((torch.tensor(0.5),), 0.5),
    ],
)
def test_rewards_of_any_scale_are_taken_as_they_are(returned, accuracy):
    result = returned if len(returned) == 2 else returned[0]
    rewards, (part,) = score(ended(1), [""], [{}], lambda text, problem: result)
    assert rewards.item() == pytest.approx(float(returned[0]))
    assert (part["accuracy"], part["answered"], part["failed"]) == (accuracy, 1, 0)


NONSENSE = [math.nan, (math.nan, {}), (math.inf, {}), (1.0, None), "1"]
NONSENSE += [(1.0, {"accuracy": 2.0}), (1.0, {"accuracy": -1}), (1.0, {"terse": math.nan})]
NONSENSE += [(1_000_001, {})]  # beyond 2^24 two rewards are equal in fp32
# The log's own column would overwrite such a part.
NONSENSE += [(1.0, {name: 0.5}) for name in ("loss", "eval_accuracy", "update_seconds")]


@pytest.mark.parametrize("returned", NONSENSE)
def test_what_is_no_reward_costs_the_completion_and_says_what_is_expected(returned):
    """Otherwise a gradient would be NaN three functions later, or an accuracy above 1."""
    with pytest.warns(UserWarning, match=r"must return a finite number .*, or \(number, \{"):
        rewards, (part,) = score(ended(1), [""], [{}], lambda text, problem: returned)
    assert rewards.item() == 0
    assert (part["accuracy"], part["answered"], part["failed"]) == (0, 0, 1)


def test_another_reward_asks_the_tasks_own_for_the_accuracy(tmp_path):
    """If a reward of +-1 has no parts, the task's own reward still decides what is right."""
    (tmp_path / "plus_minus.py").write_text(
        "def sign(completion, problem):\n    return (1 if '7' in completion else -1), {}\n"
        "def own(completion, problem):\n    return 0.2, {'accuracy': 0.5, 'terse': 3.0}\n"
    )
    seven = {"problem": "3+4=", "answer": "7"}
    task = verifiers.get_task(ranks.ONE_DIGIT, reward=f"{tmp_path}/plus_minus.py:sign")
    assert task.reward("7", seven) == (1, {"accuracy": 1.0})
    assert task.reward("17", seven) == (1, {"accuracy": 0.0})
    assert task.reward("4", seven) == (-1, {"accuracy": 0.0})
    task = verifiers.get_task(ranks.ONE_DIGIT, reward=f"{tmp_path}/plus_minus.py:own")
    assert task.reward("7", seven) == (0.2, {"accuracy": 0.5, "terse": 3.0})


def test_a_setting_that_the_method_has_not_is_named():
    assert get_method(GRPO, "grpo", {"clip": [0.1, 0.28]}).settings.clip == (0.1, 0.28)
    with pytest.raises(DataError, match="unexpected keyword argument 'nope'"):
        get_method(GRPO, "grpo", {"nope": 1})


# ---- The command -------------------------------------------------------------------------------------


def test_the_command_on_a_file_with_a_prompt_and_a_stop_of_ones_own(tmp_path, capsys):
    data = tmp_path / "sums.jsonl"
    sums = [{"problem": f"{i}+{j}=", "answer": i + j} for i in range(9) for j in range(3)]
    data.write_text("".join(json.dumps(row) + "\n" for row in sums))
    flags = ["--task", str(data), "--out", str(tmp_path / "out.jsonl"), "--device", "cpu"]
    flags += ["--max-new-tokens", "5", "--prompt", "1+1=2{problem}", "--stop", "=", "+"]
    evaluation.main([ranks.base(), *flags])
    text = capsys.readouterr().out
    assert "task sums" in text and "    1+1=2" in text
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()][1:]
    assert rows and not any("=" in row["completion"] or "+" in row["completion"] for row in rows)


def test_a_damaged_config_is_no_traceback(tmp_path):
    (tmp_path / "config.json").write_text('{"flags": {')
    command = [sys.executable, str(ROOT / "eval.py"), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stderr.startswith("error: ") and "config.json" in ran.stderr


def test_the_command_on_a_run(tmp_path, capsys):
    """`python eval.py runs/NAME` evaluates the trained model and its base, by the run's own task."""
    name = ["--runs", str(tmp_path), "--name", "r"]
    sizes = ["--prompts-per-step", "4", "--num-samples", "4", "--max-new-tokens", "4"]
    flags = ["--task", ranks.ONE_DIGIT, "--device", "cpu", "--model", ranks.base(), "--steps", "1"]
    train.main([*flags, *sizes, *name, "--eval-problems", "10"])
    capsys.readouterr()
    out = tmp_path / "completions.jsonl"
    options = ["--problems", "20", "--num-samples", "4", "--k", "1", "4", "--out", str(out)]
    evaluation.main([str(tmp_path / "r"), *options])
    text = capsys.readouterr().out
    assert text.count("greedy") == text.count("sampled") == 2
    assert "pass@4" in text
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    headers = [line["header"] for line in lines if "header" in line]
    rows = [line for line in lines if "header" not in line]
    assert len(headers) == 2
    assert len(rows) == 2 * (20 + 20 * 4)
    assert max(row["length"] for row in rows) <= 4  # the run's own --max-new-tokens
    model, tokenizer = load(tmp_path / "r" / "final")
    task = verifiers.get_task(ranks.ONE_DIGIT)
    given = (GRPO(max_new_tokens=4), model, tokenizer, task, task.test[:20], 1, 0.0)
    summary = evaluate(records_of(roll_out(*given)), 1)
    table = [line.split() for line in text.splitlines()]
    assert ["greedy", *(f"{summary[name]:.3f}"[:5] for name in evaluation.COLUMNS)] in table


def test_training_problems_can_be_evaluated_too(capsys):
    flags = [ranks.base(), "--task", ranks.ONE_DIGIT, "--problems", "3", "--train", "--greedy"]
    evaluation.main([*flags, "--device", "cpu"])
    first = verifiers.get_task(ranks.ONE_DIGIT).train[0]["problem"]
    said = capsys.readouterr().out
    assert "one-digit: 3 problems\n" in said and first in said


def test_bad_flags_are_refused_before_anything_is_loaded(tmp_path, capsys):
    for flags in (
        ["--k", "8", "--num-samples", "4"],
        ["--k", "0"],
        ["--problems", "0"],
        ["--max-new-tokens", "-5"],
        ["--temperature", "nan"],
        ["--num-sample", "4"],
    ):
        with pytest.raises((SystemExit, DataError)) as refused:
            evaluation.parse_args(["x", *flags])
        said = capsys.readouterr().err.splitlines() or [str(refused.value)]
        assert re.search(rf"\b{flags[0][2:]}\b", said[-1].replace("_", "-"))
    with pytest.raises(SystemExit, match="give a model as the first argument"):
        evaluation.parse_args([])
    with pytest.raises(DataError, match="there is no task 'maths'"):
        evaluation.main([ranks.base(), "--task", "maths"])
    with pytest.raises(OSError, match="nowhere"):
        evaluation.main([ranks.base(), "--task", ranks.ONE_DIGIT, "--out", f"{tmp_path}/nowhere/x"])
    with pytest.raises(ModelError, match="exceed the model's"):
        evaluation.main([ranks.base(), "--task", ranks.ONE_DIGIT, "--max-new-tokens", "1024"])


def test_a_mistyped_run_is_named_and_an_unfinished_one_says_how_to_finish_it(tmp_path):
    (tmp_path / "good" / "final").mkdir(parents=True)
    (tmp_path / "a half").mkdir()
    config = {"flags": {"model": "x", "task": "one-digit"}, "settings": {"seed": 0}}
    (tmp_path / "a half" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"goood: no such directory; found .*good.* in"):
        evaluation.main([str(tmp_path / "goood")])
    with pytest.raises(ModelError, match="half has no final/ yet: finish it with") as refused:
        evaluation.main([str(tmp_path / "a half")])
    command = shlex.split(str(refused.value).split("`")[1])
    assert command[:3] == ["python", "train.py", "--resume"]
    assert command[3:] == ["--name", "a half", "--runs", str(tmp_path)]


def test_final_stands_for_its_run_and_a_checkpoint_is_not_a_model(tmp_path):
    final, step = tmp_path / "final", tmp_path / "checkpoints" / "step_000002"
    for folder, file in ((final, "../config.json"), (step, "progress.json")):
        folder.mkdir(parents=True)
        config = {"flags": {"task": "one-digit"}, "settings": {"temperature": 0.5}}
        (folder / file).write_text(json.dumps(config))
    args, method = evaluation.parse_args([str(final)])
    assert (args.model, args.task) == (str(final), "one-digit")
    assert method.settings.temperature == 0.5
    with pytest.raises(ModelError, match="a checkpoint, not a model. To evaluate it, copy the run"):
        evaluation.parse_args([str(step)])


def test_a_file_of_flags_may_name_the_model(tmp_path):
    """Then the first argument is not a model."""
    (tmp_path / "flags.txt").write_text("--model somewhere --greedy\n")
    args, _ = evaluation.parse_args([f"@{tmp_path}/flags.txt"])
    assert args.model == "somewhere" and args.greedy


def appended(path):
    for _ in range(40):
        append_rows(path, [{"process": train.RANK, "text": "x" * 3000}] * 50)


def test_two_processes_that_append_to_one_file_lose_no_row(tmp_path):
    """A lock keeps each from cutting off a line that the other is still writing."""
    ranks.run(2, appended, tmp_path / "rows.jsonl")
    counts = Counter(row["process"] for row in read_rows(tmp_path / "rows.jsonl"))
    assert counts == {0: 2000, 1: 2000}


def test_records_survive_a_line_that_was_never_finished(tmp_path):
    path = tmp_path / "r.jsonl"
    append_rows(path, [{"a": "x\u2028y"}, {"a": "\ud800"}])  # also with a lone surrogate
    with open(path, "a") as file:
        file.write('{"a": 3')
    first, second = read_rows(path)
    assert first == {"a": "x\u2028y"}
    assert second == {"a": "?"}
    path.write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(DataError, match="r.jsonl, line 2: not valid JSON"):
        read_rows(path)
    path.write_text('{"a": 1}\n[1]\n{"a": 2}\n')
    with pytest.raises(DataError, match="line 2: not an object"):
        read_rows(path)
