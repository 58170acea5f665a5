"""eval.py: what a number is worth, on cases one can count by hand, and the command on a toy run.
(What notebooks/evaluation.py adds to it is tested in test_evaluation.py.)"""

import gzip
import json
import math
import random
import subprocess
import sys
import threading

import numpy
import pytest

import eval as evaluation
import ranks
import train
import verifiers
from conftest import ROOT
from eval import (clustered_interval, compare, decompose, evaluate, mean_pass_at_k, paired_interval, pass_at_k,
                  roll_out, stop_after, summarise, text_of, wilson_interval)
from model import ModelError, load


# ---- What a number is worth --------------------------------------------------------------------------

def test_pass_at_k_by_hand():
    """4 samples, 1 right: two of them miss it in C(3,2) = 3 of C(4,2) = 6 draws."""
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 1) == 0.25 and pass_at_k(4, 0, 4) == 0.0 and pass_at_k(4, 2, 3) == 1.0
    assert pass_at_k(1000, 3, 1) == pytest.approx(0.003)


def test_pass_at_k_is_unbiased():
    """Averaged over what n samples may show, it is the true chance 1 - (1 - p)^k of at least one success in k."""
    n, p, k = 8, 0.3, 3
    mean = sum(math.comb(n, c) * p**c * (1 - p)**(n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize("n, c, k", [(4, 1, 5), (4, 5, 2), (4, -1, 2), (4, 1, 0)])
def test_pass_at_k_refuses_what_it_cannot_know(n, c, k):
    with pytest.raises(ValueError, match="draw at least k samples"):
        pass_at_k(n, c, k)


def test_wilson_interval_published_values():
    """Newcombe 1998, table I: 81 of 263 and 15 of 148 and 0 of 20 and 1 of 29 at 95 %."""
    table = ((81, 263, .2553, .3662), (15, 148, .0624, .1605), (0, 20, 0, .1611), (1, 29, .0061, .1718))
    for right, n, low, high in table:
        assert wilson_interval(right / n, n) == pytest.approx((low, high), abs=1e-4)


def test_samples_of_one_problem_are_worth_less_than_as_many_problems():
    """n* = p (1 - p) n / s^2, between n problems and n k samples; half a problem that is always right and half a one
    that never is are added to the variance."""
    assert clustered_interval([1, 0, 0, 1, 0], 1) == wilson_interval(2 / 5, 5)            # k = 1: Wilson's own
    assert clustered_interval([1, 1, 0, 0], 8) == wilson_interval(0.5, 4)                 # 8 equal samples say no more
    assert clustered_interval([0.0] * 4, 8)[1] > wilson_interval(0, 32)[1]                # nor do 32 failures
    # p 1/2; s^2 of 8 fair coins each: (0.5 / 4 + 0.5 / 4) / 4 = 1/16: n* = 1/4 * 4 / (1/16) = 16, not 32
    assert clustered_interval([0.5] * 4, 8) == pytest.approx(wilson_interval(0.5, 16))
    # 1/4, 1/4, 3/4, 3/4: s^2 = (4 / 16 + 1/4) / 4 = 1/8: n* = 8
    assert clustered_interval([0.25, 0.25, 0.75, 0.75], 8) == pytest.approx(wilson_interval(0.5, 8))


def test_with_one_sample_the_interval_covers_the_truth_as_often_as_it_says():
    """Exactly, by summing over all counts: 95 % in the mean over accuracies .02 to .98. (At a single one it is 92 to
    98 %, since a count is a whole number.)"""
    for n in (30, 100):
        intervals = [clustered_interval([1.0] * c + [0.0] * (n - c), 1) for c in range(n + 1)]
        coverage = []
        for p in numpy.linspace(.02, .98, 97):
            chances = [math.comb(n, c) * p**c * (1 - p)**(n - c) for c in range(n + 1)]
            coverage.append(sum(chance for chance, (low, high) in zip(chances, intervals) if low <= p <= high))
        assert min(coverage) > 0.92 and sum(coverage) / 97 > 0.945


@pytest.mark.parametrize("n, samples, accuracies", [(30, (4, 16, 64), (.02, .1, .5, .98)), (100, (4, 64), (.02, .5)),
                                                    (500, (4, 64), (.02, .5))])
@pytest.mark.parametrize("alike", [0.1, 1.0, math.inf], ids=["all or nothing", "any chance", "equal"])
def test_with_many_samples_it_does_so_whatever_the_problems(n, samples, accuracies, alike):
    """Simulated: each problem has a chance of its own, from a beta distribution about the accuracy: nearly always 0 or
    1, anything, or the same for all. The interval it replaces held the truth in 84 % at n 30, k 16, accuracy .02."""
    rng = numpy.random.default_rng(0)
    for k in samples:
        for p in accuracies:
            chances = p if alike == math.inf else rng.beta(p * alike, (1 - p) * alike, (1000, n))
            shares = (rng.binomial(k, chances, (1000, n)) / k).tolist()
            covered = sum(low <= p <= high for low, high in (clustered_interval(row, k) for row in shares))
            assert covered / 1000 >= 0.93, (k, p)


@pytest.mark.parametrize("n", [30, 500])
@pytest.mark.parametrize("better, worse", [(0, 0), (.02, 0), (.02, .02), (.1, .02), (.5, .1)])
def test_the_interval_of_a_difference_covers_it_too(n, better, worse):
    """A share of the problems is mastered, another lost, the rest unchanged with chances of its own. The interval it
    replaces held a gain of few problems in 85 %, and had no width when none changed."""
    rng = numpy.random.default_rng(0)
    for k in (1, 64):
        before, luck = rng.random((2, 1000, n))
        gained, lost = luck < better, luck > 1 - worse
        before = numpy.where(gained, 0.0, numpy.where(lost, 1.0, before))
        after = numpy.where(gained, 1.0, numpy.where(lost, 0.0, before))
        changes = ((rng.binomial(k, after) - rng.binomial(k, before)) / k).tolist()
        intervals = [paired_interval(row)[1:] for row in changes]
        assert sum(low <= better - worse <= high for low, high in intervals) / 1000 >= 0.93, k
        assert all(low < high for low, high in intervals)


def records(*flags):
    return [{"accuracy": float(flag)} for flag in flags]


def test_mean_pass_at_k_groups_by_problem():
    assert mean_pass_at_k(records(1, 0, 0, 0, 0, 0, 0, 0), 4, 2) == 0.25
    assert mean_pass_at_k(records(0.1, 0.9), 2, 2) == 0                     # half right is not right


# ---- Two models on the same problems -----------------------------------------------------------------

def said(answer, truth="0.5", **parts):
    """A record of a completion that boxes `answer`; None: no box."""
    completion = "I do not know" if answer is None else f"so \\boxed{{{answer}}}"
    reward, judged = verifiers.boxed_reward(completion, {"answer": truth})
    return {"problem": "half?", "answer": truth, "completion": completion, "length": 10, "reward": reward, **judged,
            "truncated": 0.0, **parts}


CUT = {"truncated": 1.0, "accuracy": 0.0}


def test_the_gain_is_decomposed_by_hand():
    """The example of the docstring: cut off -> right, none -> right, none -> wrong, wrong -> right, right -> cut off"""
    before = [said("0.5", **CUT), said(None), said(None), said("7"), said("0.5")]
    after = [said("0.5"), said("0.5"), said("7"), said("0.5"), said("0.5", **CUT)]
    parts = decompose(before, after)
    assert {part: mean for part, (mean, _, _) in parts.items()} == {"stopping": 0.0, "format": 0.2, "mathematics": 0.2}
    assert compare(before, after)["difference"] == 0.4
    assert decompose(before[:1], after[:1])["stopping"][0] == 1
    assert decompose(before[4:], after[4:])["stopping"][0] == -1
    # 0, 1, 0, 0, 0 and four more: centre 1/9, variance (4 * 1 + 64 + 2 * 64 + 2 * 100) / 81 / 8 = 11/18
    error = 1.96 * math.sqrt(11 / 18 / 9)
    assert parts["format"][1:] == pytest.approx((1 / 9 - error, 1 / 9 + error))


def test_the_parts_add_up_to_the_gain():
    rng = random.Random(1)
    kinds = [lambda: said("0.5", **CUT), lambda: said(None), lambda: said("7"), lambda: said("0.5")]
    before, after = ([rng.choice(kinds)() for _ in range(40)] for _ in range(2))
    parts = decompose(before, after, num_samples=4)
    assert sum(mean for mean, _, _ in parts.values()) == pytest.approx(compare(before, after, 4)["difference"])
    assert all(abs(mean) > 0.001 for mean, _, _ in parts.values())


def test_compare_is_paired():
    """Of 8 problems 5 got better and none worse: with no real change a split so uneven has chance 2 / 2^5."""
    result = compare(records(0, 0, 0, 0, 0, 1, 1, 0), records(1, 1, 1, 1, 1, 1, 1, 0))
    assert (result["difference"], result["better"], result["worse"]) == (0.625, 5, 0)
    assert result["p"] == 2 / 32 and -0.1 < result["low"] < 0 < 0.8 < result["high"]
    same = compare(records(1, 0, 1), records(1, 0, 1))
    assert (same["difference"], same["p"]) == (0, 1) and same["low"] < 0 < same["high"]      # 3 problems prove little
    twice = compare(records(1, 0, 0, 0), records(1, 1, 0, 0), num_samples=2)
    assert (twice["difference"], twice["better"], twice["worse"]) == (0.25, 1, 0)


def test_models_on_different_problems_are_not_compared():
    with pytest.raises(ValueError):
        compare(records(1, 0), records(1, 0, 1))


# ---- From problems to judged completions -------------------------------------------------------------

def arithmetic_by_symbols():
    task = verifiers.arithmetic(train_size=1, test_size=12)
    return task, task.test


def test_evaluation_does_not_depend_on_the_batch_size(model, tokenizer):
    task, problems = arithmetic_by_symbols()
    whole = evaluate(model, tokenizer, task, problems, 3, 1.0, 20, cache_tokens=10**6)
    for cache_tokens in (1, 300):
        assert evaluate(model, tokenizer, task, problems, 3, 1.0, 20, cache_tokens=cache_tokens) == whole
    assert evaluate(model, tokenizer, task, problems, 3, 1.0, 20, seed=1) != whole


def test_a_completion_that_was_cut_off_is_not_right(model, tokenizer):
    """Every completion counts as right here, but an untrained model seldom stops within 5 tokens."""
    task, problems = arithmetic_by_symbols()
    task.reward = lambda completion, problem: (1.0, {"accuracy": 1.0, "answered": 1.0})
    summary, rows = evaluate(model, tokenizer, task, problems, 4, 1.0, 5)
    assert summary["truncated"] > 0.5 and summary["accuracy"] == pytest.approx(1 - summary["truncated"])
    assert summary["n"] == 12 and len(rows) == 48 and summary == summarise(rows, 4)


def test_training_and_evaluation_judge_alike(model, tokenizer):
    """roll_out is the one way from problems to judged completions; evaluate only makes records of what it returns."""
    task, problems = arithmetic_by_symbols()
    rollouts, texts, rewards, parts = roll_out(model, tokenizer, task, problems, 3, 1.0, 20)
    _, rows = evaluate(model, tokenizer, task, problems, 3, 1.0, 20)
    assert [row["completion"] for row in rows] == texts == [tokenizer.decode(ids) for ids in rollouts.completions()]
    assert [row["reward"] for row in rows] == rewards.flatten().tolist() and rewards.shape == (12, 3)
    assert [row["problem"] for row in rows[::3]] == [problem["problem"] for problem in problems]
    assert [row["truncated"] for row in rows] == [part["truncated"] for part in parts]


def test_completions_are_judged_while_others_are_still_sampled(model, tokenizer):
    """A verdict that is slow as a program is costs no time of its own while the long rows go on."""
    task, problems = arithmetic_by_symbols()
    threads, main = set(), threading.get_ident()
    task.reward = lambda completion, problem: (threads.add(threading.get_ident()), (1.0, {}))[1]
    _, _, rewards, parts = roll_out(model, tokenizer, task, problems, 3, 1.0, 20)
    assert main not in threads and not any(part["failed"] for part in parts)
    assert rewards.sum() == sum(1 - part["truncated"] for part in parts)


def test_a_completion_ends_where_one_of_the_stop_texts_begins(model, tokenizer):
    """Its text up to there is judged as finished, whatever the model would babble on; the tokens of the stop text
    itself were said, and are trained. Neither the number of rows at once nor of processes matters."""
    task, problems = arithmetic_by_symbols()
    seen = []
    task.reward = lambda completion, problem: (seen.append(completion), (1.0, {}))[1]
    plain, texts, *_ = roll_out(model, tokenizer, task, problems, 4, 1.0, 20)
    task.stops = "8", texts[0][3:5]                                     # one symbol, and two in this order
    assert len(texts[0][3:5]) == 2 and "8" not in texts[0] and not plain.finished.all()
    cut, stopped, *_ = roll_out(model, tokenizer, task, problems, 4, 1.0, 20)
    assert sorted(seen[48:]) == sorted(stopped)
    for row, (text, ids) in enumerate(zip(texts, cut.completions())):
        assert ids == plain.completions()[row][:len(ids)]
        if ends := [(text.index(stop), stop) for stop in task.stops if stop in text]:
            where, stop = min(ends)
            assert stopped[row] == text[:where] and cut.finished[row]
            assert stop in tokenizer.decode(ids) and stop not in tokenizer.decode(ids[:-1])
        else:
            assert stopped[row] == text and cut.finished[row] == plain.finished[row]
    few, again, *_ = roll_out(model, tokenizer, task, problems, 4, 1.0, 20, cache_tokens=100)
    assert again == stopped and few.completions() == cut.completions()


def test_a_stop_text_may_begin_in_the_middle_of_a_token(tokenizer):
    """"+4" ends a completion after as many tokens as it takes to say it; the text is judged up to the first stop."""
    ids = tokenizer.encode("12+45-6")
    assert stop_after(tokenizer, ["+4", "-"], ids) == 4 and stop_after(tokenizer, ["77"], ids) == 0
    assert text_of(tokenizer, ids[:4], ["+4", "-"]) == "12" and text_of(tokenizer, ids) == "12+45-6"
    tags = tokenizer.encode("1<answer>2</answer>3")
    assert stop_after(tokenizer, ["swer>"], tags) == 2 and text_of(tokenizer, tags[:2], ["swer>"]) == "1<an"


def test_columns_of_the_data_do_not_replace_what_is_counted(model, tokenizer):
    task, problems = arithmetic_by_symbols()
    named = [{**problem, "truncated": "no", "answered": "no", "accuracy": "no"} for problem in problems]
    plain, same = (evaluate(model, tokenizer, task, rows, 1, 0.0, 5)[0] for rows in (problems, named))
    assert plain == same and plain["truncated"] > 0


def test_a_stop_text_may_be_a_special_token(model, tokenizer):
    """Such as <|im_end|> for a base model: it is no part of the text, but it ends it."""
    end = model.config.eos_token_id[0]
    name = tokenizer.backend.id_to_token(end)
    assert tokenizer.decode([end]) == "" and stop_after(tokenizer, [name], [*tokenizer.encode("1+2"), end, end]) == 4
    assert text_of(tokenizer, [*tokenizer.encode("1+2"), end], [name]) == "1+2"


def test_another_reward_asks_the_tasks_own_for_the_accuracy(tmp_path):
    """A reward of +-1 without parts: what evaluation counts is still what the task calls right."""
    (tmp_path / "plus_minus.py").write_text(
        "def sign(completion, problem):\n    return (1 if '7' in completion else -1), {}\n"
        "def own(completion, problem):\n    return 0.2, {'accuracy': 0.5, 'terse': 3.0}\n")
    task = verifiers.one_digit()
    evaluation.use_reward(task, f"{tmp_path}/plus_minus.py:sign")
    assert task.reward("7", {"problem": "3+4=", "answer": "7"}) == (1, {"accuracy": 1.0})
    assert task.reward("17", {"problem": "3+4=", "answer": "7"}) == (1, {"accuracy": 0.0})
    assert task.reward("4", {"problem": "3+4=", "answer": "7"}) == (-1, {"accuracy": 0.0})
    evaluation.use_reward(task, f"{tmp_path}/plus_minus.py:own")
    assert task.reward("7", {"problem": "3+4=", "answer": "7"}) == (0.2, {"accuracy": 0.5, "terse": 3.0})
    task.reward = lambda completion, problem: (3, {})                       # nor has the task's own any parts
    evaluation.use_reward(task, f"{tmp_path}/plus_minus.py:sign")
    assert task.reward("4", {"problem": "3+4=", "answer": "7"}) == (-1, {"accuracy": 1.0})


# ---- The command -------------------------------------------------------------------------------------

def test_the_command_on_a_run(tmp_path, capsys, monkeypatch):
    """`python eval.py runs/NAME` compares the trained model with its base, from any folder and where the run is now."""
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "lucky.py").write_text("def even(completion, problem):\n    return len(completion) % 2, {}\n")
    train.main(["--task", "one-digit", "--device", "cpu", "--steps", "2", "--prompts-per-step", "4", "--num-samples",
                "4", "--eval-problems", "10", "--runs", "r", "--name", "r", "--model", ranks.base(),
                "--max-new-tokens", "4", "--reward", "../lucky.py:even"])
    monkeypatch.chdir(ROOT)
    capsys.readouterr()
    out, run = tmp_path / "completions.jsonl", tmp_path / "there" / "r" / "r"
    evaluation.main([str(run), "--problems", "20", "--num-samples", "4", "--k", "1", "4", "--out", str(out),
                     "--device", "cpu"])
    text = capsys.readouterr().out
    assert text.count("greedy") == 3 and text.count("sampled") == 3 and "pass@4" in text and "sign test p" in text
    rows = [json.loads(line) for line in out.read_text().splitlines() if '"header"' not in line]
    assert len(rows) == 2 * (20 + 20 * 4) and {r["decoding"] for r in rows} == {"greedy", "sampled"}
    assert max(r["length"] for r in rows) <= 4                           # the run's own --max-new-tokens
    model, tokenizer = load(run / "final")
    summary, _ = evaluate(model, tokenizer, verifiers.one_digit(), verifiers.one_digit().test[:20], 1, 0.0, 4)
    assert f"greedy   {summary['accuracy']:8.3f}" in text
    headers = [json.loads(line)["header"] for line in out.read_text().splitlines() if '"header"' in line]
    assert len(headers) == 2 and headers[0]["weights"] != headers[1]["weights"]
    assert headers[0].keys() >= {"git", "dtype", "device", "template", "grader", "seed", "task", "temperature",
                                 "max_new_tokens", "data", "stop_ids"}


def test_the_command_on_a_file_with_a_prompt_and_a_stop_of_ones_own(tmp_path, capsys):
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps({"problem": f"{i}+{j}=", "answer": i + j}) + "\n"
                            for i in range(9) for j in range(3)))
    evaluation.main([ranks.base(), "--task", str(data), "--max-new-tokens", "5", "--device", "cpu", "--prompt",
                     "1+1=2{problem}", "--stop", "=", "+", "--out", str(tmp_path / "out.jsonl")])
    text = capsys.readouterr().out
    assert "task sums: " in text and "'1+1=2" in text
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()][1:]
    assert rows and not any("=" in row["completion"] or "+" in row["completion"] for row in rows)


def test_records_survive_a_line_that_was_never_finished(tmp_path):
    path = tmp_path / "r.jsonl"
    evaluation.append_rows(path, [{"a": "x\u2028y"}, {"a": "\ud800"}])              # a lone surrogate, too
    with open(path, "a") as file:
        file.write('{"a": 3')
    first, second = evaluation.read_rows(path)
    assert first == {"a": "x\u2028y"} and second["a"]
    path.write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(verifiers.DataError, match=r"r.jsonl, line 2: not valid JSON .*damaged"):
        evaluation.read_rows(path)
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(verifiers.DataError, match="r.jsonl: cannot be read"):
        evaluation.read_rows(path)
    with pytest.raises(verifiers.DataError, match="nowhere.jsonl: cannot be read"):
        evaluation.read_rows(tmp_path / "nowhere.jsonl")


def test_bad_flags(capsys):
    for flags, message in ((["--k", "8", "--num-samples", "4"], "each --k is from 1 to --num-samples"),
                           (["--problems", "0"], "--problems and --num-samples are at least 1"),
                           (["--top-p", "0"], "--top-p is above 0"), (["--temperature", "nan"], "--temperature"),
                           (["--num-sample", "4"], "unrecognized arguments: --num-sample")):
        with pytest.raises(SystemExit):
            evaluation.parse_args(["x", *flags])
        assert message in capsys.readouterr().err
    with pytest.raises(verifiers.DataError, match="there is no task 'maths'"):
        evaluation.main([ranks.base(), "--task", "maths"])


def test_a_mistyped_run_is_named_before_anything_is_fetched(tmp_path):
    """Not MATH-500 from the hub first, nor a talk about hub ids: which runs there are, and what is missing in one."""
    (tmp_path / "good" / "final").mkdir(parents=True)
    (tmp_path / "half" / "best").mkdir(parents=True)
    (tmp_path / "half" / "config.json").write_text(json.dumps({"flags": {"model": "x", "task": "one-digit"}}))
    with pytest.raises(ModelError, match=r"goood: no such directory; there is good, half in"):
        evaluation.main([str(tmp_path / "goood")])
    with pytest.raises(ModelError, match=r"half.*best"):
        evaluation.main([str(tmp_path / "half")])


def test_a_damaged_config_is_no_traceback(tmp_path):
    (tmp_path / "config.json").write_text('{"flags": {')
    ran = subprocess.run([sys.executable, str(ROOT / "eval.py"), str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stderr.startswith("error: ") and "config.json" in ran.stderr
