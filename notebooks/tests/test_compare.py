"""Two models on the same problems (notebooks/look/compare.py), on cases one can count by hand."""

import json
import math
import random

import numpy
import pytest

import eval as core
import verifiers
from notebooks.look import compare as look
from notebooks.look.compare import compare, decompose, paired_interval


def records(*verdicts):
    return [{"accuracy": float(verdict)} for verdict in verdicts]


def record(answer, **columns):
    """A record of a completion that boxes this answer, or that has no box; the truth is 0.5."""
    completion = "I do not know" if answer is None else f"so \\boxed{{{answer}}}"
    reward, parts = verifiers.boxed_reward(completion, {"answer": "0.5"})
    asked = {"problem": "half?", "answer": "0.5", "completion": completion, "length": 10}
    return {**asked, "reward": reward, **parts, "truncated": 0.0, "failed": 0.0, **columns}


RIGHT = record("0.5")
WRONG = record("7")
NO_ANSWER = record(None)
CUT_OFF = record("0.5", truncated=1.0, accuracy=0.0)


def test_the_difference_is_paired():
    """Of 8 problems 5 got better and none worse. Were nothing changed, a split so uneven would have the
    chance 2 / 2^5."""
    result = compare(records(0, 0, 0, 0, 0, 1, 1, 0), records(1, 1, 1, 1, 1, 1, 1, 0))
    assert (result["difference"], result["better"], result["worse"]) == (0.625, 5, 0)
    assert result["p"] == 2 / 32
    assert -0.1 < result["low"] < 0 < 0.8 < result["high"]


def test_three_equal_problems_prove_little():
    result = compare(records(1, 0, 1), records(1, 0, 1))
    assert (result["difference"], result["p"]) == (0, 1)
    assert result["low"] < 0 < result["high"]


def test_samples_of_a_problem_count_as_one_problem():
    result = compare(records(1, 0, 0, 0), records(1, 1, 0, 0), num_samples=2)
    assert (result["difference"], result["better"], result["worse"]) == (0.25, 1, 0)


def test_models_with_different_numbers_of_problems_are_not_compared():
    with pytest.raises(ValueError):
        compare(records(1, 0), records(1, 0, 1))


@pytest.mark.parametrize("n", [30, 500])
@pytest.mark.parametrize(
    "better, worse", [(0, 0), (0.02, 0), (0.02, 0.02), (0.1, 0.02), (0.5, 0.1)]
)
def test_the_interval_covers_the_difference(n, better, worse):
    """A share of the problems is mastered, another lost, the others are unchanged, each with a chance of
    its own. The plain interval holds a gain of few problems in 85 % of the trials only."""
    rng = numpy.random.default_rng(0)
    for k in (1, 64):
        before, luck = rng.random((2, 500, n))
        gained = luck < better
        lost = luck > 1 - worse
        before = numpy.where(gained, 0.0, numpy.where(lost, 1.0, before))
        after = numpy.where(gained, 1.0, numpy.where(lost, 0.0, before))
        changes = ((rng.binomial(k, after) - rng.binomial(k, before)) / k).tolist()
        intervals = [paired_interval(row)[1:] for row in changes]
        held = sum(low <= better - worse <= high for low, high in intervals)
        assert held / 500 >= 0.93, k
        assert all(low < high for low, high in intervals)


def test_the_gain_is_decomposed_by_hand():
    """The example of the docstring: cut off -> right, no answer -> right, no answer -> wrong, wrong ->
    right, right -> cut off."""
    before = [CUT_OFF, NO_ANSWER, NO_ANSWER, WRONG, RIGHT]
    after = [RIGHT, RIGHT, WRONG, RIGHT, CUT_OFF]
    parts = decompose(before, after)
    means = {part: mean for part, (mean, _, _) in parts.items()}
    assert means == {"stopping": 0.0, "format": 0.2, "mathematics": 0.2}
    assert compare(before, after)["difference"] == 0.4
    assert decompose(before[:1], after[:1])["stopping"][0] == 1
    assert decompose(before[4:], after[4:])["stopping"][0] == -1
    # 0, 1, 0, 0, 0 and four more: centre 1/9, variance (4 * 1 + 64 + 2 * 64 + 2 * 100) / 81 / 8 = 11/18
    error = 1.96 * math.sqrt(11 / 18 / 9)
    assert parts["format"][1:] == pytest.approx((1 / 9 - error, 1 / 9 + error))


def test_the_parts_add_up_to_the_gain():
    rng = random.Random(1)
    before, after = (rng.choices([CUT_OFF, NO_ANSWER, WRONG, RIGHT], k=40) for _ in range(2))
    means = [mean for mean, _, _ in decompose(before, after, num_samples=4).values()]
    assert sum(means) == pytest.approx(compare(before, after, 4)["difference"])
    assert min(abs(mean) for mean in means) > 0.001


# ---- The command -----------------------------------------------------------------------------------


def saved(model, *answers):
    """What eval.py --out writes of a model, greedy, one completion a problem."""
    rows = [{"header": {"model": model, "reward": "boxed"}}]
    for index, answer in enumerate(answers):
        place = {"model": model, "decoding": "greedy", "index": index, "sample": 0}
        rows.append({**record(answer), **place, "problem": f"problem {index}"})
    return rows


def test_the_command_compares_the_two_models_of_a_file(tmp_path, capsys):
    """After: right, right, right; before: wrong, no answer, right."""
    path = tmp_path / "eval.jsonl"
    core.append_rows(path, saved("new", "1/2", "0.5", "0.5") + saved("old", "7", None, "0.5"))
    look.main([str(path)])
    titles, new, old, difference, parts = capsys.readouterr().out.splitlines()
    assert titles.split()[:4] == ["model", "decoding", "n", "accuracy"]
    assert new.split()[:4] == ["new", "greedy", "3", "1.000"]
    assert old.split()[:4] == ["old", "greedy", "3", "0.333"]
    assert difference.startswith("greedy: difference +0.667 [")
    assert difference.endswith("to old, 2 problems better, 0 worse, sign test p = 0.5")
    assert [text.split(" [")[0] for text in parts.split("], ")] == [
        "    of it stopping +0.000",
        "format +0.333",
        "mathematics +0.333",
    ]


def test_what_cannot_be_compared_is_refused(tmp_path):
    path = tmp_path / "eval.jsonl"
    core.append_rows(path, saved("new", "0.5", "0.5"))
    with pytest.raises(verifiers.DataError, match="holds too few models. .* --baseline"):
        look.main([str(path)])
    other = [
        json.loads(json.dumps(row).replace("problem 1", "another")) for row in saved("old", 1, 1)
    ]
    core.append_rows(path, other)
    with pytest.raises(verifiers.DataError, match="not evaluated on the same problems"):
        look.main([str(path)])
