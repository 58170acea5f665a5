"""notebooks/look/: second looks by hand, and the viewer of a run."""

import gzip
import json
import math
import re

import pytest

import eval as core
import train
import verifiers
from eval import wilson_interval
from notebooks.look import check_verifier, compare, show
from notebooks.look.compare import regrade
from notebooks.models import make_tiny
from ranks import ONE_DIGIT


def said(answer, truth="0.5", **parts):
    """A record of a completion that boxes `answer`; None: no box."""
    completion = "I do not know" if answer is None else f"so \\boxed{{{answer}}}"
    reward, judged = verifiers.boxed_reward(completion, {"answer": truth})
    return {
        "problem": "half?",
        "answer": truth,
        "completion": completion,
        "length": 10,
        "reward": reward,
        **judged,
        "truncated": 0.0,
        **parts,
    }


CUT = {"truncated": 1.0, "accuracy": 0.0}


# ---- Judge again -----------------------------------------------------------------------------------


def saved_rows(label, *answers, truth="0.5"):
    """A saved evaluation: two problems, the answers alternate between them."""
    return [
        {
            **said(answer, truth),
            "model": label,
            "decoding": "sampled",
            "index": i % 2,
            "sample": i // 2,
            "problem": f"problem {i % 2}",
            "level": i % 2 + 1,
        }
        for i, answer in enumerate(answers)
    ]


def write(path, rows):
    core.append_rows(path, rows)
    return str(path)


def test_saved_completions_are_judged_again(tmp_path, capsys):
    """Two models, two problems, two samples each; the truth is 0.5 and the file's verdict on 1/2 is wrong.

    New: 3 of 4 right; old: 1 of 4. Problem 0: wrong, wrong -> right, right: mathematics 1. Problem 1: none,
    right -> right, wrong: of the four pairs none -> right is format 1/4, right -> wrong mathematics -1/4."""
    rows = saved_rows("new", "1/2", "0.5", "0.5", "7") + saved_rows("old", "7", None, "7", "0.5")
    rows[0] |= {"accuracy": 0.0, "completion": "a line\u2028and another: " + rows[0]["completion"]}
    rows.insert(0, {"header": {"model": "new", "git": "abc", "reward": "boxed"}})
    path = write(tmp_path / "saved.jsonl", rows)
    compare.main([path, "--regrade", "boxed", "--k", "1", "2"])
    changed, which, titles, new, old, difference, parts = capsys.readouterr().out.splitlines()
    names = titles.split()
    new = dict(zip(names, new.split(), strict=True))
    old = dict(zip(names, old.split(), strict=True))
    low, high = core.clustered_interval([1, 0.5], 2)
    assert [new[name] for name in ("model", "n", "accuracy", "low", "high")] == [
        *("new", "2", "0.750"),
        f"{low:.3f}",
        f"{high:.3f}",
    ]
    assert [new[name] for name in ("answered", "pass@1", "pass@2")] == ["1.000", "0.750", "1.000"]
    assert [old[name] for name in ("answered", "pass@1", "pass@2")] == ["0.750", "0.250", "0.500"]
    assert difference.startswith("sampled: difference +0.500 [")
    for part in ("stopping +0.000", "format +0.125", "mathematics +0.375"):
        assert part in parts
    assert changed == "1 verdicts changed"
    assert "now right: truth '0.5'" in which


def test_regrade_keeps_what_was_cut_off_wrong_and_survives_a_verifier_that_fails():
    (again,) = regrade([said("0.5", **CUT)], verifiers.boxed_reward)
    assert (again["accuracy"], again["reward"], again["answered"]) == (0.0, 0.0, 1.0)
    with pytest.warns(UserWarning, match="the verifier failed .*ZeroDivisionError"):
        (again,) = regrade([said("0.5")], lambda completion, problem: 1 / 0)
    assert (again["accuracy"], again["reward"], again["failed"]) == (0.0, 0.0, 1.0)


# ---- The judge of judges ---------------------------------------------------------------------------


def test_the_verifier_is_checked_against_labels(tmp_path, capsys):
    rows = [
        {"gold": "1/2", "pred": "0.5", "expect": True},
        {"gold": "1/2", "pred": "0.5", "expect": False},
        {"gold": "3", "pred": "4", "expect": True},
        {"gold": "3", "pred": "4", "expect": None},
        {"gold": "3", "completion": "\\boxed{4}, no \\boxed{3}", "expect": True},
    ]
    right, wrong = check_verifier.check_verifier(rows, verifiers.boxed_reward)
    assert right == 2 and [kind for kind, _ in wrong] == ["false accept", "false reject"]
    check_verifier.main([write(tmp_path / "l.jsonl", rows)])
    first, *others = capsys.readouterr().out.splitlines()
    low, high = wilson_interval(2 / 4, 4)
    assert first.startswith(
        f"4 labelled answers: 50.00% judged right [{low:.2%}, {high:.2%}], 1 false accepts"
    )
    assert others == [
        "    false accept: truth '1/2', answer '0.5'",
        "    false reject: truth '3', answer '4'",
    ]
    with pytest.raises(verifiers.DataError, match='entry 6: "gold" and "pred"'):
        write(tmp_path / "l.jsonl", [{"gold": 3, "pred": "3", "expect": True}])
        check_verifier.main([str(tmp_path / "l.jsonl")])


# ---- Show ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model of random weights that knows digits."""
    return str(make_tiny.make(0, tmp_path_factory.mktemp("base") / "base", "one-digit", steps=0))


@pytest.fixture(scope="module")
def run(tmp_path_factory, base):
    """Two steps of a run whose reward random weights earn every other time."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "even_reward.py").write_text(
        "def even(completion, problem):\n    return float(len(completion) % 2), {}\n"
    )
    train.main(
        [
            "--model",
            base,
            *f"--task {ONE_DIGIT} --device cpu --prompts-per-step 4 --num-samples 4 --steps 2".split(),
            *"--max-new-tokens 20 --eval-problems 5 --runs".split(),
            str(folder),
            "--name",
            "r",
            "--reward",
            f"{folder / 'even_reward.py'}:even",
        ]
    )
    return folder / "r"


def samples(run, step):
    with gzip.open(run / "samples" / f"step_{step:06d}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_the_viewer_shows_a_mixed_group(run, capsys):
    show.main([str(run), "--step", "1"])
    shown = capsys.readouterr().out
    rows = samples(run, 1)
    group = next(
        rows[i : i + 4]
        for i in range(0, 16, 4)
        if len({row["reward"] for row in rows[i : i + 4]}) > 1
    )
    assert (
        shown.startswith(f"step 1: {group[0]['problem']!r}, truth")
        and shown.count("advantage") == 4
    )
    for row in group:
        assert (
            f"reward {row['reward']:.2f}, advantage {row['advantage']:+.2f}; {len(row['ids'])} tokens"
            in shown
        )
        assert f"a token {math.exp(sum(row['logps']) / len(row['ids'])):.0%} likely" in shown


def test_the_viewer_shows_what_is_paid_most(run, capsys):
    show.main([str(run), "--best-first"])
    best = [float(value) for value in re.findall(r"reward ([-0-9.]+),", capsys.readouterr().out)]
    assert best == sorted((row["reward"] for row in samples(run, 2)), reverse=True)[:4]


# ---- The canary ------------------------------------------------------------------------------------


def log(*points):
    points = [(0.2, 0.3), *points]  # step 0: the reward and accuracy of the base
    return [
        {
            "step": 10 * i,
            "reward": reward,
            "eval_accuracy": 0,
            "eval_sampled_accuracy": accuracy,
            "eval_sampled_low": accuracy - 0.04,
            "eval_sampled_high": accuracy + 0.04,
        }
        for i, (reward, accuracy) in enumerate(points)
    ]


def test_the_canary_sings_when_reward_and_accuracy_part():
    assert show.canary(log((0.5, 0.5), (0.6, 0.6))) is None and show.canary(log((0.5, 0.5))) is None
    assert show.canary(log((0.5, 0.5), (0.6, 0.45))) is None  # within the intervals
    assert show.canary(log((0.5, 0.5), (0.4, 0.3))) is None  # both fell: no hack, only worse
    warning = show.canary(log((0.5, 0.5), (0.9, 0.3), (0.9, 0.3)))
    assert "reward went from 0.500 (step 10) to 0.900" in warning and "0.500 to 0.300" in warning
    # Worse than the base.
    assert "from 0.200 (step 0) to 0.980" in show.canary(log((0.9, 0.25), (0.98, 0.15)))


def test_the_verifier_tax_is_their_share_of_a_step(tmp_path, capsys):
    """verify_seconds is a part of sample_seconds; step 0, an evaluation, has neither."""
    path = tmp_path / "metrics.jsonl"
    times = {"reward": 0.5, "sample_seconds": 3.0, "update_seconds": 1.0}
    steps = [{"step": n, "verify_seconds": n / 2, **times} for n in (1, 2)]
    write(path, [{"step": 0, "reward": 0.5}, *steps])
    show.main([str(tmp_path), "--tax"])
    said = capsys.readouterr().out
    # 0.5 + 1 of 8 seconds for the verifiers, 4.5 to sample, 2 to update
    assert "verifiers 18.8% of 2 steps (0.75 s a step; most, 1 s, in step 2)" in said
    assert "sampling 56.2%, update 25.0%" in said
    path.unlink()
    write(path, [{"step": 0, "reward": 0.5}])
    with pytest.raises(verifiers.DataError, match="no step with verify_seconds"):
        show.main([str(tmp_path), "--tax"])


def test_the_canary_on_a_run(tmp_path, capsys):
    """The first warning counts, and what came after it is not needed."""
    write(tmp_path / "metrics.jsonl", log((0.5, 0.5), (0.9, 0.3), (0.9, 0.9)))
    show.main([str(tmp_path), "--canary"])
    assert "0.500 to 0.300 (step 20)" in capsys.readouterr().out
    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path / "metrics.jsonl", log((0.5, 0.5), (0.9, 0.9)))
    show.main([str(tmp_path), "--canary"])
    assert capsys.readouterr().out == "no warning\n"
