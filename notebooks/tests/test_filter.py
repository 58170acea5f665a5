"""look/filter.py makes a task file of the problems that a model sometimes solves."""

import json

import pytest

from appendix.plumbing import DataError, append_rows
from notebooks.look import filter
from notebooks.models.make_tiny import TINY
from verifiers import get_task


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A task of 60 problems, in the current folder."""
    monkeypatch.chdir(tmp_path)
    append_rows("mine.jsonl", [{"problem": f"{n}+1=", "answer": f"{n + 1}"} for n in range(60)])
    return get_task("mine.jsonl")


def solved(problems, *rates, model="base", **flags):
    """Write what eval.py writes about the first training problems. rates: how many of four samples are right."""
    header = {"task": "mine.jsonl", "prompt": None, "reward": None, "stop": [], "train": True}
    header["model"] = model
    append_rows("solved.jsonl", [{"header": header | flags}])
    for index, right in enumerate(rates):
        asked = {**problems.train[index], "index": index, "model": model, "decoding": "sampled"}
        rows = [asked | {"sample": i, "accuracy": float(i < right)} for i in range(4)]
        append_rows("solved.jsonl", rows)


def filtered(*words):
    filter.main(["solved.jsonl", "--out", "mid.jsonl", *words])
    return [json.loads(line) for line in open("mid.jsonl")]


def test_the_problems_that_are_solved_sometimes_stay(mine, capsys):
    """Of four samples 0, 1, 2, 3, 4 and 0 are right. An earlier evaluation does not count."""
    solved(mine, 4, 4)
    solved(mine, 0, 1, 2, 3, 4, 0)
    rows = filtered("--from", "0.3", "--to", "0.6")
    train = [row for row in rows if not row["held_out"]]
    assert train == [{**mine.train[2], "held_out": False}]
    assert rows[1:] == [{**problem, "held_out": True} for problem in mine.test]
    said = capsys.readouterr().out
    assert "never 2, below 1, within 1, above 1, always 1" in said
    kept = f"1 to train on, {len(mine.test)} held out"
    assert f"{kept}; {len(mine.train) - 6} not evaluated: left out" in " ".join(said.split())
    assert said.endswith("\npython train.py --model base --task mid.jsonl\n")
    with pytest.raises(DataError, match="mid.jsonl exists already"):
        filtered()


def test_the_command_gives_prompt_reward_and_stops(mine, capsys):
    flags = {"prompt": "Q: {problem} A:", "reward": "tagged", "stop": ["\n"]}
    solved(mine, 2, **flags)
    filtered()
    end = "--prompt 'Q: {problem} A:' --reward tagged --stop '\\n'\n"
    assert capsys.readouterr().out.endswith(end)


def test_a_task_by_name_has_its_own_prompt_and_reward(mine, capsys):
    solved(get_task("arithmetic"), 2, model=str(TINY), task="arithmetic")
    filtered()
    assert capsys.readouterr().out.endswith("--prompt '{problem}' --reward tagged\n")


def test_what_cannot_be_filtered_is_named(mine, monkeypatch):
    append_rows("solved.jsonl", [{"header": {"model": "base"}}])
    with pytest.raises(DataError, match="no samples of training problems: .*--train --problems"):
        filtered()
    solved(mine, 0, 4)
    with pytest.raises(DataError, match="no problem is within 0.1 to 0.9"):
        filtered()
    solved(mine, 2, model="other")
    for words in ([], ["--model", "third"]):
        with pytest.raises(DataError, match="--model base or other"):
            filtered(*words)
    monkeypatch.setattr(filter.verifiers, "get_task", lambda *_: mine)
    mine.train.pop(0)
    with pytest.raises(DataError, match="has changed: training problem 0"):
        filtered("--model", "other")
    mine.turns = object
    with pytest.raises(DataError, match="has an environment"):
        filtered("--model", "other")
    for words in (["--from", "0.9", "--to", "0.1"], ["--out", "mid.txt"]):
        with pytest.raises(SystemExit):
            filtered("--model", "other", *words)
