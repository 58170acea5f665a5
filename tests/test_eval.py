"""eval.py: what a number is worth, on cases one can count by hand, and the command on a toy run."""

import json
import math
import random
import subprocess
import sys

import pytest

import eval as evaluation
import train
import verifiers
from conftest import ROOT
from eval import (between_passes, check_verifier, clustered_interval, compare, decompose, evaluate, few_shot, majority,
                  majority_at_k, mean_pass_at_k, overlap, pass_at_k, regrade, wilson_interval)
from model import load


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
    assert clustered_interval([1, 0, 0, 1, 0], 1) == wilson_interval(2 / 5, 5)
    assert clustered_interval([1, 1, 0, 0], 8) == wilson_interval(0.5, 4)                 # 8 equal samples say no more
    assert clustered_interval([0.5] * 4, 8) == wilson_interval(0.5, 32)                   # 8 coins each: all count
    assert clustered_interval([0.0] * 4, 8) == wilson_interval(0, 4)
    # p 1/2, s^2 of 1/4, 1/4, 3/4, 3/4 is 1/12: n* = 1/4 / (1/48) = 12
    assert clustered_interval([0.25, 0.25, 0.75, 0.75], 8) == pytest.approx(wilson_interval(0.5, 12))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """60 problems of chances uniform in 0 .. 1, 8 samples each: the mean over all such problems is 1/2."""
    rng, covered, naive = random.Random(0), 0, 0
    for _ in range(400):
        chances = [rng.random() for _ in range(60)]
        shares = [sum(rng.random() < chance for _ in range(8)) / 8 for chance in chances]
        low, high = clustered_interval(shares, 8)
        covered += low < 0.5 < high
        low, high = wilson_interval(sum(shares) / 60, 480)
        naive += low < 0.5 < high
    assert covered / 400 > 0.92 and naive / 400 < 0.80


def records(*flags):
    return [{"accuracy": float(flag)} for flag in flags]


def test_samples_are_seeds():
    """2 problems x 2 samples: the first pass has 2 of 2 right, the second 1 of 2; s of 1 and 1/2."""
    assert between_passes(records(1, 1, 1, 0), 2) == pytest.approx(math.sqrt(0.125))


def said(answer, truth="0.5", **parts):
    """A record of a completion that boxes `answer`; None: no box."""
    completion = "I do not know" if answer is None else f"so \\boxed{{{answer}}}"
    reward, judged = verifiers.boxed_reward(completion, {"answer": truth})
    return {"problem": "half?", "answer": truth, "completion": completion, "length": 10, "reward": reward, **judged,
            "truncated": 0.0, **parts}


def test_majority_votes_by_meaning():
    assert majority([said("1/2"), said("7"), said("0.5")]) == 1.0
    assert majority([said("7"), said("0.5"), said("7")]) == 0.0
    assert majority([said("7"), said("0.5")]) == 0.5 and majority([said("7"), said("8"), said("0.5")]) == 1 / 3
    assert majority([said(None), said(None), said("0.5")]) == 1.0                             # no answer, no vote
    assert majority([said("7", truncated=1.0), said("7", truncated=1.0), said("0.5")]) == 1.0
    assert majority([said(None)]) == 0.0


def test_majority_at_k_uses_every_sample_once():
    group = [said(x) for x in ("0.5", "0.5", "7", "7", "7")]
    assert majority_at_k(group, 5, 5) == 0.0 and majority_at_k(group, 5, 2) == 0.5 and majority_at_k(group, 5, 1) == 0.4


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
    low, high = parts["format"][1:]                                        # 0, 1, 0, 0, 0: sd sqrt(0.2), n 5
    assert (low, high) == pytest.approx((0.2 - 1.96 * 0.2, 0.2 + 1.96 * 0.2))


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
    assert result["p"] == 2 / 32 and result["low"] > 0.2
    same = compare(records(1, 0, 1), records(1, 0, 1))
    assert (same["difference"], same["low"], same["high"], same["p"]) == (0, 0, 0, 1)


def test_mean_pass_at_k_groups_by_problem():
    assert mean_pass_at_k(records(1, 0, 0, 0, 0, 0, 0, 0), 4, 2) == 0.25


def arithmetic_by_symbols(tokenizer):
    task = verifiers.arithmetic(train_size=1, test_size=12)
    return task, task.test


def test_evaluation_does_not_depend_on_the_batch_size(model, tokenizer):
    task, problems = arithmetic_by_symbols(tokenizer)
    whole = evaluate(model, tokenizer, task, problems, 3, 1.0, 20, cache_tokens=10**6)
    for cache_tokens in (1, 300):
        assert evaluate(model, tokenizer, task, problems, 3, 1.0, 20, cache_tokens=cache_tokens) == whole
    assert evaluate(model, tokenizer, task, problems, 3, 1.0, 20, seed=1) != whole


def test_a_completion_that_was_cut_off_is_not_right(model, tokenizer):
    """Every completion counts as right here, but an untrained model seldom stops within 5 tokens."""
    task, problems = arithmetic_by_symbols(tokenizer)
    task.reward = lambda completion, problem: (1.0, {"accuracy": 1.0, "answered": 1.0})
    summary, rows = evaluate(model, tokenizer, task, problems, 4, 1.0, 5)
    assert summary["truncated"] > 0.5 and summary["accuracy"] == pytest.approx(1 - summary["truncated"])
    assert summary["n"] == 12 and len(rows) == 48


def test_the_command_on_a_run(tmp_path, capsys):
    """`python eval.py runs/NAME` compares the trained model with the base it came from."""
    train.main(["--task", "one-digit", "--device", "cpu", "--steps", "2", "--prompts-per-step", "4",
                "--num-samples", "4", "--eval-problems", "10", "--runs", str(tmp_path), "--name", "r"])
    capsys.readouterr()
    out = tmp_path / "completions.jsonl"
    evaluation.main([str(tmp_path / "r"), "--problems", "20", "--num-samples", "4", "--k", "1", "4", "--out", str(out)])
    text = capsys.readouterr().out
    assert text.count("greedy") == 3 and text.count("sampled") == 3 and "pass@4" in text and "sign test p" in text
    rows = [json.loads(line) for line in out.read_text().splitlines() if '"header"' not in line]
    assert len(rows) == 2 * (20 + 20 * 4) and {r["decoding"] for r in rows} == {"greedy", "sampled"}
    model, tokenizer = load(tmp_path / "r" / "final")
    summary, _ = evaluate(model, tokenizer, verifiers.one_digit(), verifiers.one_digit().test[:20], 1, 0.0, 4)
    assert f"greedy     {summary['accuracy']:8.3f}" in text


def one_digit_base(tmp_path):
    """A model of random weights that knows digits."""
    args = train.parse_args(["--task", "one-digit", "--runs", str(tmp_path), "--device", "cpu"])
    return str(train.tiny_base(args, verifiers.one_digit()))


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluation, "SAVE_EVERY", 8)
    base, out = one_digit_base(tmp_path), tmp_path / "e.jsonl"
    flags = [base, "--task", "one-digit", "--problems", "30", "--num-samples", "2", "--max-new-tokens", "4", "--out",
             str(out)]
    evaluation.main(flags)
    whole, table = out.read_text(), capsys.readouterr().out
    lines = whole.splitlines(keepends=True)
    out.write_text("".join(lines[:52]) + lines[52][:30])        # killed while it wrote the second sample of problem 10
    asked = []
    monkeypatch.setattr(evaluation, "evaluate", lambda *args, **more: asked.extend(args[3]) or evaluate(*args, **more))
    evaluation.main(flags)
    assert sorted(out.read_text().splitlines()) == sorted([*whole.splitlines(), lines[51].strip()])  # one made twice
    assert capsys.readouterr().out == table and len(asked) == 30 - 10
    evaluation.main(["--regrade", str(out)])                    # the completion that is there twice counts once
    assert capsys.readouterr().out.splitlines()[1:3] == table.splitlines()[-3:-1]
    with pytest.raises(verifiers.DataError, match="another evaluation of .*: seed differ"):
        evaluation.main([*flags, "--seed", "1"])
    assert json.loads(lines[0])["header"].keys() >= {"weights", "git", "dtype", "device", "cache_tokens", "template",
                                                     "grader", "seed", "task", "temperature", "max_new_tokens"}


def test_two_processes_give_the_same_numbers(tmp_path, capsys):
    base, texts = one_digit_base(tmp_path), []
    for launch in ([], ["-m", "torch.distributed.run", "--nproc-per-node", "2"]):
        out = tmp_path / f"{len(launch)}.jsonl"
        ran = subprocess.run([sys.executable, *launch, str(ROOT / "eval.py"), base, "--task", "one-digit", "--problems",
                              "31", "--num-samples", "3", "--max-new-tokens", "4", "--k", "1", "3", "--out", str(out)],
                             capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        texts.append((ran.stdout.replace(out.name, ""), sorted(out.read_text().splitlines())))
    assert texts[0] == texts[1] and len(texts[0][1]) == 1 + 31 * 4


def saved_rows(label, *answers, truth="0.5"):
    """A saved evaluation: two problems, the answers alternate between them."""
    return [{**said(answer, truth), "model": label, "decoding": "sampled", "index": i % 2, "sample": i // 2,
             "problem": f"problem {i % 2}", "level": i % 2 + 1} for i, answer in enumerate(answers)]


def test_saved_completions_are_judged_again_digit_for_digit(tmp_path, capsys):
    """Two models, two problems, two samples each; the truth is 0.5 and the file's own verdict on 1/2 is wrong."""
    path = tmp_path / "saved.jsonl"
    rows = saved_rows("new", "1/2", "0.5", "0.5", "7") + saved_rows("old", "7", None, "7", "0.5")
    rows[0] |= {"accuracy": 0.0, "completion": "a line\u2028and another: " + rows[0]["completion"]}
    rows.insert(0, {"header": {"model": "new", "grader": "abc", "reward": "boxed"}})
    evaluation.append_rows(path, rows)
    evaluation.main(["--regrade", str(path), "--k", "1", "2"])
    lines = capsys.readouterr().out.splitlines()
    # new: 3 of 4 right, shares 1 and 1/2: s^2 1/8, n* = 3/16 / (1/16) = 3; old: 1 of 4, shares 0 and 1/2
    low, high = wilson_interval(0.75, 3)
    assert lines[1].split()[:9] == ["new", "sampled", "0.750", f"{low:.3f}", "-", f"{high:.3f}", "2", "0.354", "10.0"]
    assert lines[1].split()[9:] == ["0.0%", "0.0%", "0.750", "0.750", "1.000", "0.750"]      # maj@2: one tie
    assert lines[2].split()[2] == "0.250" and lines[2].split()[10:] == ["25.0%", "0.333", "0.250", "0.500", "0.500"]
    # Problem 0: wrong, wrong -> right, right: mathematics 1. Problem 1: none, right -> right, wrong: of the four pairs
    # none -> right is format 1/4, right -> wrong mathematics -1/4, the others nothing.
    assert lines[3].startswith("sampled: difference +0.500 [")
    assert "of it stopping +0.000" in lines[4] and "format +0.125" in lines[4] and "mathematics +0.375" in lines[4]
    levels = [line.split()[:3] for line in lines[5:-2] if line[:2] in ("1 ", "2 ")]
    assert levels == [["1", "1", "1.000"], ["2", "1", "0.500"]]
    assert "1 verdicts changed (grader abc -> " in lines[-2] and "now right: truth '0.5'" in lines[-1]
    evaluation.main(["--regrade", str(path), "--reward", "inverted"])
    assert "0.750" in capsys.readouterr().out                                        # a control counts boxed's accuracy


def test_regrade_keeps_what_was_cut_off_wrong():
    again, = regrade([said("0.5", **CUT)], verifiers.boxed_reward)
    assert (again["accuracy"], again["reward"], again["answered"]) == (0.0, 0.0, 1.0)


def test_the_verifier_is_checked_against_labels(tmp_path, capsys):
    rows = [{"gold": "1/2", "pred": "0.5", "expect": True}, {"gold": "1/2", "pred": "0.5", "expect": False},
            {"gold": "3", "pred": "4", "expect": True}, {"gold": "3", "pred": "4", "expect": None},
            {"gold": "3", "completion": "\\boxed{4}, no \\boxed{3}", "expect": True}]
    right, wrong = check_verifier(rows, verifiers.boxed_reward)
    assert right == 2 and [kind for kind, _ in wrong] == ["false accept", "false reject"]
    (tmp_path / "l.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation.main(["--check-verifier", str(tmp_path / "l.jsonl")])
    first, *others = capsys.readouterr().out.splitlines()
    low, high = wilson_interval(2 / 4, 4)
    assert first.startswith(f"4 labelled answers: 50.00% judged right [{low:.2%}, {high:.2%}], 1 false accepts, 1 fal")
    assert others == ["    false accept: truth '1/2', answer '0.5'", "    false reject: truth '3', answer '4'"]


@pytest.mark.skipif(not (ROOT.parent / "shared" / "cases").exists(), reason="the labelled answers are not here")
def test_the_verifier_on_real_answers():
    rows = evaluation.read_rows(ROOT.parent / "shared" / "cases" / "answers_dev.jsonl")
    right, wrong = check_verifier(rows, verifiers.boxed_reward)
    assert right + len(wrong) == 721 and right >= 720 and not [row for kind, row in wrong if kind == "false accept"]


def boxed_task():
    train_set = [{"problem": "1+1 in {a}?", "answer": "2", "solution": "One and one is \\boxed{2}."},
                 {"problem": "2+2?", "answer": "4", "solution": "Count."}, {"problem": "3+3?", "answer": "6"}]
    return verifiers.Task("t", train_set, [{"problem": "4+4?", "answer": "8"}], verifiers.BOXED, verifiers.boxed_reward)


def test_few_shot_shows_solutions_that_the_reward_accepts():
    task, stops = few_shot(boxed_task(), 3)
    question = "Solve the following problem. Put your final answer within \\boxed{}.\n\nProblem: %s\n\nSolution:"
    assert task.prompt(task.test[0]) == (
        question % "1+1 in {a}?" + " One and one is \\boxed{2}.\n\n" + question % "2+2?" + " Count. \\boxed{4}\n\n"
        + question % "3+3?" + " \\boxed{6}\n\n" + question % "4+4?")
    assert stops == ["\n\nSolve the following problem. Put your final answer within \\boxed{}.", "\n\nProblem:"]
    with pytest.raises(verifiers.DataError, match="has 3 training problems to show"):
        few_shot(boxed_task(), 4)
    tiny, stops = few_shot(verifiers.arithmetic(train_size=2, test_size=1), 1)
    assert "<think></think><answer>\\boxed{" in tiny.instruction.replace("{{", "{") and stops == []


def test_a_completion_ends_where_the_next_example_would_begin(model, tokenizer):
    """Its text up to there is judged as finished, whatever the model babbles on."""
    task, problems = arithmetic_by_symbols(tokenizer)
    _, plain = evaluate(model, tokenizer, task, problems, 4, 1.0, 20)
    _, cut = evaluate(model, tokenizer, task, problems, 4, 1.0, 20, stops=["7", "8"])
    assert any(r["truncated"] for r in plain) and any("7" in r["completion"] for r in plain)
    for before, after in zip(plain, cut):
        text = before["completion"].partition("7")[0].partition("8")[0]
        assert after["completion"] == text
        if text != before["completion"]:
            assert after["truncated"] == 0 and after["length"] == len(tokenizer.encode(text))


def test_overlap_finds_copies_and_variants():
    asked = [{"problem": "What is the sum of the first ten positive odd numbers?"}, {"problem": "1+1"},
             {"problem": "How many primes are there between fifty and one hundred and ten, counting both ends of it?"}]
    there = [{"problem": "Something else, which shares no eight words with any of the questions that are asked here."},
             {"problem": "what is the SUM of  the first ten positive odd numbers?"},
             {"problem": "How many primes are there between fifty and one hundred and ten, leaving out both ends?"},
             {"problem": "1+12"}]
    assert overlap(there, asked) == {"exact": {0: 1}, "near": {2: 2}}
    assert overlap(there[:1], asked) == {"exact": {}, "near": {}}
    task = verifiers.Task("t", there, asked, "{problem}", verifiers.boxed_reward)
    assert evaluation.describe_overlap(task).startswith("of 3 test problems 1 are in the training data")


def test_presets_are_those_of_the_model_card():
    args = evaluation.parse_args(["x", "--preset", "thinking"])
    assert (args.temperature, args.top_p, args.top_k, args.template) == (0.6, 0.95, 20, "chat")
    args = evaluation.parse_args(["x", "--preset", "non-thinking", "--top-k", "5"])
    assert (args.temperature, args.top_p, args.top_k, args.template) == (0.7, 0.8, 5, "chat-nothink")


def test_the_command_on_a_file(tmp_path, capsys):
    base = one_digit_base(tmp_path)
    data = tmp_path / "mine.jsonl"
    data.write_text('{"problem": "3+4=", "answer": 7}\n{"question": "1+1=", "answer": "so #### 2"}\n')
    evaluation.main([base, "--data", str(data), "--max-new-tokens", "5", "--device", "cpu"])
    assert "task mine: 2 problems" in capsys.readouterr().out


def test_bad_flags(capsys):
    with pytest.raises(SystemExit):
        evaluation.parse_args(["x", "--k", "8", "--num-samples", "4"])
    assert "each k must be from 1 to --num-samples (4)" in capsys.readouterr().err
    with pytest.raises(verifiers.DataError, match="there is no task 'maths'"):
        evaluation.main(["x", "--task", "maths"])
