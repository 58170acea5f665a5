"""eval.py: what a number is worth, on cases one can count by hand, and the command on a toy run."""

import json
import math

import pytest

import eval as evaluation
import train
import verifiers
from eval import compare, evaluate, mean_pass_at_k, pass_at_k, wilson_interval
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


def records(*flags):
    return [{"accuracy": float(flag)} for flag in flags]


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
    whole = evaluate(model, tokenizer, task, problems, 3, 1.0, 20, batch_tokens=10**6)
    for batch_tokens in (1, 300):
        assert evaluate(model, tokenizer, task, problems, 3, 1.0, 20, batch_tokens=batch_tokens) == whole
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


def test_the_command_on_a_file(tmp_path, capsys):
    base = train.tiny_base(train.parse_args(["--task", "one-digit", "--runs", str(tmp_path), "--device", "cpu"]),
                           verifiers.one_digit())
    data = tmp_path / "mine.jsonl"
    data.write_text('{"problem": "3+4=", "answer": 7}\n{"question": "1+1=", "answer": "so #### 2"}\n')
    evaluation.main([str(base), "--data", str(data), "--max-new-tokens", "5", "--device", "cpu"])
    assert "task mine: 2 problems" in capsys.readouterr().out


def test_bad_flags(capsys):
    with pytest.raises(SystemExit):
        evaluation.parse_args(["x", "--k", "8", "--num-samples", "4"])
    assert "each k must be from 1 to --num-samples (4)" in capsys.readouterr().err
    with pytest.raises(verifiers.DataError, match="there is no task 'maths'"):
        evaluation.main(["x", "--task", "maths"])
