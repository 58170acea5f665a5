"""The README agrees with the code: commands, flags, links and names exist. (The laboratory's pages are tested in
notebooks/tests/test_house.py.)"""

import json
import re
import sys

import pytest

import eval as evaluation
import train
from appendix.plumbing import find_method
from conftest import ROOT
from rlvr import GRPO

FRONT = (ROOT / "README.md").read_text(encoding="utf-8")
SCRIPTS = "appendix/grading appendix/sandbox appendix/plumbing verifiers model appendix/chat rlvr eval train".split()
FLAG = r"--[a-z][a-z0-9-]*"


def flags_of(script, arguments=""):
    """Return the flags that a script takes. Those of train.py and eval.py are the fields of their Flags and the settings
    of the method; other scripts have them in their source, in add_argument("--..")."""
    if script in ("train.py", "eval.py"):
        method = re.search(r"--method (\S+/\S+\.py(?::\w+)?)", arguments)
        settings = find_method(GRPO, f"{ROOT}/{method[1]}" if method else "grpo").Settings
        kind = (train if script == "train.py" else evaluation).Flags
        names = ["help", *kind.__dataclass_fields__, *settings.__dataclass_fields__]
        return {f"--{name.replace('_', '-')}" for name in names}
    source = (ROOT / script).read_text(encoding="utf-8")
    flags = {"--help", *re.findall(rf'"({FLAG})"', source)}
    more = {
        "notebooks/claims/claims.py": ["notebooks/claims/claim.py"],
        "notebooks/race.py": ["train.py"],
    }
    return flags.union(*map(flags_of, more.get(script, [])))


def commands(readme):
    """Yield (script, arguments) for each command in a readme that runs one of our scripts."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", readme, flags=re.M | re.S)
    code = [block for language, block in blocks if language != "python"]
    code += re.findall(r"`([^`\n]+)`", readme)
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        start = r"\s*(?:\$ |.*&& )?(?:\w+=\S+ )*(?:python|torchrun) (?:-+\S+ (?:[^-]\S* )?)*?"
        found = re.match(start + r"([\w/]+\.py)(.*)", line)
        if module := re.match(start + r"-m (notebooks[\w.]+)(.*)", line):
            yield module[1].replace(".", "/") + ".py", module[2].partition("#")[0]
        elif found:
            yield found[1], found[2].partition("#")[0]


def test_a_script_imports_those_before_it_in_reading_order_and_never_the_laboratory():
    """There is one exception: model.py imports the appendix on chat when it needs a template."""
    known = {*SCRIPTS} | {path.stem for path in (ROOT / "notebooks").rglob("*.py")} - {"conftest"}
    here = [path.relative_to(ROOT) for path in (*ROOT.glob("*.py"), *ROOT.glob("appendix/*.py"))]
    assert sorted(path.as_posix() for path in here) == sorted(f"{name}.py" for name in SCRIPTS)
    for number, script in enumerate(SCRIPTS):
        source = (ROOT / f"{script}.py").read_text(encoding="utf-8")
        found = re.findall(r"^( *)(?:from|import) ([\w.]+)", source, flags=re.M)
        at_the_top = {name.replace(".", "/") for indent, name in found if not indent}
        inside = {name.replace(".", "/") for indent, name in found if indent} & known
        assert len(at_the_top) > 3 and at_the_top & known <= {*SCRIPTS[:number]}, script
        assert inside == ({"appendix/chat"} if script == "model" else set()), script
        assert number > 3 or not at_the_top & {
            "torch",
            "tokenizers",
        }  # verifying needs mpmath alone
    assert not re.search(r"--[a-z]", (ROOT / "rlvr.py").read_text())  # it knows no flags


def test_there_are_exactly_two_commands_and_each_installs():
    """One trains, and one runs the tests. .ci/run takes them out of the README and runs them in a fresh clone."""
    found = re.findall(r"^pip install -r requirements\.txt .*&& (python .*)$", FRONT, flags=re.M)
    assert len(found) == 2 and "train.py" in found[0] and "pytest" in found[1]


def test_commands_run_scripts_that_exist_with_flags_that_exist():
    found = [*commands(FRONT)]
    assert len(found) >= 5
    for script, rest in found:
        assert (ROOT / script).exists(), script
        known = flags_of(script, rest) | {"--praise"}  # a setting of mine.py
        assert set(re.findall(rf"(?<!\S){FLAG}", rest)) <= known, (script, rest)


def test_flags_in_the_text_exist():
    text = re.sub(r"```.*?```", "", FRONT, flags=re.S)
    named = set(re.findall(rf"`({FLAG})", text))
    assert named and named <= flags_of("train.py") | flags_of("eval.py")


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", FRONT)
    assert links
    for target in links:
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_what_the_readme_puts_in_runs_as_it_is_printed(tmp_path, monkeypatch):
    """The README shows a reward, a task and a method of one's own. The test makes two steps with them."""
    (block,) = re.findall(r"```python\n(from dataclasses .*?)```", FRONT, flags=re.S)
    (tmp_path / "mine.py").write_text(block)
    (flags,) = re.findall(r"^python train\.py (.*--method mine\.py.*)$", FRONT, flags=re.M)
    flags = flags.replace("notebooks/tiny", str(ROOT / "notebooks" / "tiny")).split()
    monkeypatch.chdir(tmp_path)
    train.main([*flags, "--steps", "2", "--device", "cpu", "--name", "mine"])
    config = json.loads((tmp_path / "runs" / "mine" / "config.json").read_text())
    assert config["flags"]["method"] == "mine.py" and config["flags"]["task"] == "mine.py:less_one"


@pytest.mark.parametrize(
    "page, holds, flags",
    [
        ("environments", "def retry", "--task example.py:retry"),
        ("environments", "def reward", "--reward example.py:reward"),
        ("methods", "class Momentum", "--method example.py --lr 0.1"),
    ],
)
def test_an_example_of_a_page_runs_as_it_is_printed(page, holds, flags, tmp_path, monkeypatch):
    text = (ROOT / "notebooks" / page / "README.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", text, re.S) if holds in one]
    (tmp_path / "example.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "example", raising=False)  # that of another page
    flags += f" --model {ROOT}/notebooks/tiny --device cpu --eval-problems 4"
    train.main([*flags.split(), "--steps", "1", "--name", "example"])
