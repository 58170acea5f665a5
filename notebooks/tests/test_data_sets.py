"""tasks/benchmarks.py: data sets from elsewhere, as their files are written."""

import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest

import verifiers
from conftest import ROOT
from notebooks.tasks import benchmarks
from verifiers import DataError, get_task, read_problems

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs need fork")


def write_rows(path, rows):
    """A .jsonl file, gzipped if it is called so -> its path as text."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


CHECK = """
METADATA = {}
def check(candidate):
    assert candidate(2) == 4, "a message"
    assert candidate(half(6)) == 9
    assert True
"""
LOOP = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i * i"


@needs_fork
def test_humaneval_is_split_into_asserts(tmp_path):
    prompt = 'def half(x):\n    return x // 2\n\ndef square(x: int):\n    """ x * x """\n'
    row = {"task_id": "HumanEval/0", "prompt": prompt, "entry_point": "square", "test": CHECK}
    loop = {**row, "test": LOOP}
    task = benchmarks.humaneval(write_rows(tmp_path / "h.jsonl.gz", [row, loop]))
    first, second = task.test
    assert first["tests"] == ["assert square(2) == 4, 'a message'", "assert square(half(6)) == 9"]
    assert not task.train
    assert len(second["tests"]) == 1 and second["tests"][0].endswith("check(square)")
    assert prompt in task.prompt(first) and "```python block" in task.prompt(first)
    for body, right in (("x * x", 1.0), ("x + 2", 0.0), ("None", 0.0)):
        answer = f"```python\ndef square(x):\n    return {body}\n```"  # half() is not repeated
        found = [task.reward(answer, problem)[1]["accuracy"] for problem in task.test]
        assert found == [right, right]
    assert task.reward("```python\npass\n```", first)[1]["accuracy"] == 0.0


@needs_fork
@pytest.mark.skipif(
    not (ROOT.parent / "shared" / "data").exists(), reason="the real data is not here"
)
def test_humaneval_reads_and_its_solutions_pass():
    path = ROOT.parent / "shared" / "data" / "HumanEval.jsonl.gz"
    assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(benchmarks.HUMANEVAL_SHA)
    problems = benchmarks.humaneval(path).test
    assert len(problems) == 164 and sum(len(problem["tests"]) for problem in problems) == 1106
    with gzip.open(path, "rt") as file:
        solutions = [json.loads(line) for line in file]
    for i in (0, 32, 38, 53, 87):  # split, helpers, loops
        code = f"```python\n{solutions[i]['prompt']}{solutions[i]['canonical_solution']}\n```"
        assert verifiers.code_reward(code, problems[i])[1]["accuracy"] == 1.0


def test_gsm8k_is_checked_by_its_hash(tmp_path, monkeypatch):
    content = b'{"question": "2+2?", "answer": "2+2=4\\n#### 4"}\n'
    (tmp_path / "train.jsonl").write_bytes(content)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    url = (tmp_path / "train.jsonl").as_uri()
    with pytest.raises(DataError, match="invalid hash"):
        benchmarks._download(url, "x.jsonl", "00000000")
    assert not list((tmp_path / "home").rglob("*.jsonl"))
    path = benchmarks._download(url, "x.jsonl", hashlib.sha256(content).hexdigest()[:8])
    (problem,) = benchmarks._gsm8k_problems(path)
    assert (problem["answer"], problem["solution"]) == ("4", "2+2=4")
    with pytest.raises(DataError, match="cannot be fetched"):
        benchmarks._download((tmp_path / "none").as_uri(), "y.jsonl", "00")


@pytest.mark.skipif(
    not (ROOT.parent / "shared" / "data").exists(), reason="the real data is not here"
)
def test_the_real_data_reads():
    data = ROOT.parent / "shared" / "data"
    for split, sha in benchmarks.GSM8K_FILES.items():
        path = data / f"gsm8k_{split}.jsonl"
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(sha)
        assert all("####" not in p["answer"] for p in read_problems(path))
    assert len(read_problems(data / "math500.jsonl")) == 500
    task = get_task(str(data / "math_train_4500.jsonl"))
    assert len(task.train) + len(task.test) == 4500 and 400 < len(task.test) < 500
