"""The README agrees with the code: its commands, flags, files, names and columns exist."""

import ast
import json
import re

import pytest

import eval as evaluation
import model
import rlvr
import train
import verifiers
from conftest import ROOT

README = (ROOT / "README.md").read_text()


def known_flags(parse_args, capsys):
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    return set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))


def test_there_are_exactly_two_commands_and_each_installs():
    assert len(re.findall(r"^pip install -r requirements\.txt .*&& python", README, flags=re.M)) == 2


def test_every_flag_in_the_readme_exists(capsys):
    for script, parse_args in (("train.py", train.parse_args), ("eval.py", evaluation.parse_args)):
        flags = known_flags(parse_args, capsys)
        for line in README.splitlines():
            if line.startswith("python ") and script in line:
                assert set(re.findall(r"--[a-z][a-z-]*", line)) <= flags, line
    prose = set(re.findall(r"`(--[a-z][a-z-]*)", README))
    assert prose <= known_flags(train.parse_args, capsys) | known_flags(evaluation.parse_args, capsys)


def test_every_file_the_readme_links_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_every_name_in_the_file_table_exists():
    modules = {"verifiers.py": verifiers, "model.py": model, "rlvr.py": rlvr, "eval.py": evaluation, "train.py": train}
    for file, names in re.findall(r"^\| \[(\w+\.py)\].*\| ([^|]*) \|$", README, flags=re.M):
        for name in re.findall(r"`([\w.]+)`", names):
            thing = modules[file]
            for part in name.split("."):
                thing = getattr(thing, part)


def test_everything_in_the_chapter_map_exists(capsys):
    """Its columns: chapter | names in the scripts, or flags | tests | N: heading in notebook N, or an exercise."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    flags = known_flags(train.parse_args, capsys)
    section, = re.findall(r"^## Chapter map\n.*?(?=^## )", README, flags=re.M | re.S)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"][2:]
    assert len(rows) > 30
    for chapter, code, named, places in rows:
        for name in re.findall(r"`([\w.-]+)`", code):
            scripts = (verifiers, model, rlvr, evaluation, train)
            assert name in flags or any(hasattr(script, name.partition(".")[0]) for script in scripts), (chapter, name)
        for name in re.findall(r"`(\w+)`", named):
            assert re.search(rf"^def {name}\(", tests, flags=re.M), (chapter, name)
        assert named or "not here" in code, chapter
        for place in filter(None, places.split("; ")):
            if re.fullmatch(r"exercise ([1-9]|10)", place):
                continue
            number, heading = place.split(": ", 1)
            path, = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
            cells = json.loads(path.read_text())["cells"]
            text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
            assert re.search(rf"^## (\d+\. )?{re.escape(heading)}$", text, flags=re.M), (chapter, place)


def test_the_readme_explains_every_column_of_the_log(tmp_path):
    train.main(["--task", "one-digit", "--device", "cpu", "--steps", "1", "--prompts-per-step", "2",
                "--num-samples", "2", "--eval-problems", "3", "--runs", str(tmp_path), "--name", "r"])
    columns = set().union(*(json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()))
    named = set(re.findall(r"`([a-z_.]+)`", README))
    missing = {c for c in columns if c not in named and not c.startswith("eval_") and not c.endswith("_seconds")}
    assert missing <= {"step", "seconds"}


def test_the_fork_in_the_readme_works(tmp_path, monkeypatch):
    (tmp_path / "words.txt").write_text(" ".join(f"word{i}" for i in range(200)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verifiers, "TASKS", dict(verifiers.TASKS))
    code, = re.findall(r"```python\n(def shouting.*?)```", README, flags=re.S)
    exec(code, vars(verifiers).copy())
    task = verifiers.get_task("shouting")
    assert task.prompt(task.test[0]) == "Say this louder: word0\n" and len(task.train) == 100
    assert task.reward("WORD0", task.test[0]) == (1.0, {"letters": 1.0})


def test_the_reward_in_the_readme_works(monkeypatch):
    monkeypatch.setattr(verifiers, "REWARDS", dict(verifiers.REWARDS))
    code, = re.findall(r"```python\n(def terse.*?)```", README, flags=re.S)
    assert code.count("\n") < 10
    exec(code, vars(verifiers).copy())
    value, parts = verifiers.get_reward("terse")("\\boxed{2}" + " " * 991, {"problem": "1+1", "answer": "2"})
    assert value == 1.05 and parts["accuracy"] == 1.0


def test_the_readme_lists_every_reward():
    table = re.search(r"\| `--reward` \|.*?\n\n", README, flags=re.S)[0]
    first_cells = "".join(row.split("|")[1] for row in table.splitlines() if row)
    assert set(re.findall(r"`([a-z0-9.-]+)`", first_cells)) - {"--reward"} == set(verifiers.REWARDS)


@pytest.mark.parametrize("script", ["verifiers", "model", "rlvr", "eval", "train"])
def test_no_name_is_defined_twice_in_a_script(script):
    """A later section must not take a name away from an earlier one."""
    names = []
    for node in ast.parse((ROOT / f"{script}.py").read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    assert sorted(set(names)) == sorted(names)
