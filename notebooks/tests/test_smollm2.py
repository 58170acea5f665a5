"""The tasks, the control and the questions of notebook 8. (Loading and training SmolLM2 itself: test_bases.py.)"""

import dataclasses
import gzip
import json
from types import SimpleNamespace

import pytest
import torch

import train
import verifiers
from conftest import ROOT
from notebooks.tasks import smollm2

RECIPE = f"@{ROOT}/notebooks/recipes/smollm2.txt"


@pytest.mark.parametrize("name", ["sums", "larger", "three_terms", "differences", "words"])
def test_every_answer_earns_the_reward_and_no_held_out_problem_is_trained_on(name):
    task = verifiers.get_task(f"{ROOT}/notebooks/tasks/smollm2.py:{name}")
    trained = {problem["problem"] for problem in task.train}
    assert len(task.test) == 72 and not trained & {problem["problem"] for problem in task.test}
    for problem in task.train + task.test:
        assert task.reward(f" \\boxed{{{problem['answer']}}}\n", problem)[0] == 1
        assert task.reward(f" \\boxed{{{int(problem['answer']) + 1}}}\n", problem)[0] == 0


def test_the_prompt_is_solved_lines_and_an_unfinished_one():
    task = smollm2.sums()
    assert task.prompt({"problem": "3 + 9 ="}) == (
        "7 + 6 = \\boxed{13}\n12 + 5 = \\boxed{17}\n4 + 4 = \\boxed{8}\n3 + 9 ="
    )
    assert task.stops == ("\n",)


def test_no_held_out_sum_has_its_twin_in_training_or_stands_in_a_prompt():
    """13 + 18 is held out: neither it nor 18 + 13 is trained on. (Split by single sums, 57 of 72 had their twin there.)"""
    train, test = smollm2.split()
    known = {frozenset(pair) for pair in [*train, *smollm2.SHOWN]}
    assert (
        not known & {frozenset(pair) for pair in test}
        and len({frozenset(pair) for pair in test}) == 72
    )
    assert {(b, a) for a, b in train} == {*train} and len(train) + len(test) == 293


def test_the_form_alone_is_paid_whatever_the_number():
    problem = {"problem": "3 + 9 =", "answer": "12"}
    for text, reward, accuracy in ((" \\boxed{12}", 1, 1), (" \\boxed{11}", 1, 0), (" 12", 0, 0)):
        value, parts = smollm2.any_number(text, problem)
        assert (value, parts["accuracy"]) == (reward, accuracy)


def test_perplexity_of_a_model_that_knows_nothing(model, tokenizer):
    """All logits equal: each of the V tokens has probability 1 / V, and the perplexity is V."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert smollm2.perplexity(model, tokenizer, "25+7-4=") == pytest.approx(model.config.num_tokens)


def test_the_recipe_says_what_notebook_9_says():
    flags = train.parse_args([RECIPE, "--steps", "7"])
    assert flags.task.endswith("smollm2.py:sums") and (flags.template, flags.steps) == ("plain", 7)


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
