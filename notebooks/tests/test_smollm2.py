"""TRL on the sums of notebook 8."""

import dataclasses
import gzip
import json
from types import SimpleNamespace

import pytest

import train
import verifiers
from notebooks.tasks import smollm2


def test_trl_is_given_our_problems_in_our_order_at_our_learning_rates(
    tmp_path, monkeypatch, any_text
):
    """Only the random numbers differ. Two steps of two problems, two completions each; what is judged for an evaluation
    is no problem to train on. (pip install trl)"""
    pytest.importorskip("trl", reason="pip install trl")
    from notebooks.claims import against_trl

    args = SimpleNamespace(model=any_text, seed=0)
    asked = []
    get_task = verifiers.get_task

    def noting(*name):
        task = get_task(*name)
        return dataclasses.replace(
            task,
            reward=lambda text, problem: (
                asked.append(problem["problem"]) or task.reward(text, problem)
            ),
        )

    monkeypatch.setattr(verifiers, "get_task", noting)
    flags = [
        *against_trl.flags_for(args, tmp_path),
        *"--steps 2 --eval-problems 2 --prompts-per-step 2 --num-samples 2 --max-new-tokens 4".split(),
    ]
    train.main([*flags, "--name", "ours"])
    ours = [
        json.loads(line) for line in (tmp_path / "ours" / "metrics.jsonl").read_text().splitlines()
    ]
    samples = [
        json.loads(line)
        for path in sorted((tmp_path / "ours" / "samples").iterdir())
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]
    asked.clear()
    trained = {problem["problem"] for problem in smollm2.sums().train}
    rows = against_trl.train_trl(train.parse_args(flags), 2, tmp_path / "trl")
    assert [problem for problem in asked if problem in trained] == [
        sample["problem"] for sample in samples
    ]
    assert [row["lr"] for row in rows[1:]] == pytest.approx([row["lr"] for row in ours[1:]])
    assert [row["step"] for row in rows] == [0, 1, 2] and rows[2]["seconds"] > 0
    assert (
        rows[0]["eval_accuracy"] == ours[0]["eval_accuracy"] and "eval_sampled_accuracy" in rows[2]
    )


def test_trl_and_train_py_are_timed_in_turn(monkeypatch, capsys):
    """The first step warms up and does not count: 2 s and 4 s of train.py, 12 s of TRL, 4 times as long."""
    from notebooks.claims import against_trl

    rows = {n: {"step": n, "sample_seconds": 1.0, "update_seconds": n - 1.0} for n in (0, 1, 2, 4)}
    monkeypatch.setattr(train, "main", lambda flags: None)
    monkeypatch.setattr(train, "parse_args", lambda flags: None)
    monkeypatch.setattr(train, "read_log", lambda folder: rows)
    seconds = [{"step": 0}, {"seconds": 99.0}, {"seconds": 10.0}, {"seconds": 14.0}]
    monkeypatch.setattr(against_trl, "train_trl", lambda *_: seconds)
    against_trl.compare_seconds(SimpleNamespace(model="none", seed=0), turns=2)
    [row] = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert row == ["3.0, 3.0", "12.0, 12.0", "4.0, 4.0"]
