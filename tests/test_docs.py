"""Both READMEs agree with the code: commands, flags, links, names and columns exist. (What else the laboratory's
pages say is tested in notebooks/tests/test_house.py.)"""

import ast
import json
import re

import pytest

import eval as evaluation
import train
import verifiers
from conftest import ROOT

FRONT = (ROOT / "README.md").read_text(encoding="utf-8")
LAB = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
READMES = {"": FRONT, "notebooks": LAB}  # by the folder that their links start from
each_readme = pytest.mark.parametrize("folder", READMES, ids=["README.md", "notebooks/README.md"])
SCRIPTS = ["grading", "sandbox", "verifiers", "model", "rlvr", "eval", "train"]
FLAG = r"--[a-z][a-z0-9-]*"


def flags_of(script, arguments=""):
    """The flags that a script takes. Those of train.py and eval.py are the fields of their Flags and the settings of the
    method, the others' stand in add_argument("--..")."""
    if script in ("train.py", "eval.py"):
        method = re.search(r"--method (\S+/\S+\.py)", arguments)
        settings = evaluation.find_method(f"{ROOT}/{method[1]}" if method else "grpo").Settings
        kind = (train if script == "train.py" else evaluation).Flags
        names = ["help", *kind.__dataclass_fields__, *settings.__dataclass_fields__]
        return {f"--{name.replace('_', '-')}" for name in names}
    source = (ROOT / script).read_text(encoding="utf-8")
    flags = {"--help", *re.findall(rf'"({FLAG})"', source)}
    claims = ("chapter_claims", "paper_claims")
    more = {f"notebooks/claims/{name}.py": ["notebooks/claims/claim.py"] for name in claims}
    return flags.union(*map(flags_of, more.get(script, [])))


def commands(readme):
    """Each command in a readme that runs a script of ours -> (the script, what stands behind it)."""
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
    laboratory = {path.stem for path in (ROOT / "notebooks").rglob("*.py")} - {"conftest"}
    for number, script in enumerate(SCRIPTS):
        tree = ast.parse((ROOT / f"{script}.py").read_text(encoding="utf-8"))
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert len(names) > 3 and names & ({*SCRIPTS} | laboratory) <= {*SCRIPTS[:number]}, script


def test_there_are_exactly_two_commands_and_each_installs():
    """One runs, one tests: .ci/run takes them out of the README and runs them in a fresh clone."""
    found = re.findall(r"^pip install -r requirements\.txt .*&& (python .*)$", FRONT, flags=re.M)
    assert len(found) == 2 and "train.py" in found[0] and "pytest" in found[1]


@each_readme
def test_commands_run_scripts_that_exist_with_flags_that_exist(folder):
    found = [*commands(READMES[folder])]
    assert len(found) >= 5
    for script, rest in found:
        assert (ROOT / script).exists(), script
        assert set(re.findall(rf"(?<!\S){FLAG}", rest)) <= flags_of(script, rest), (script, rest)


@each_readme
def test_flags_in_the_text_exist(folder):
    text = re.sub(r"```.*?```", "", READMES[folder], flags=re.S)
    spans = re.findall(r"`([^`\n]+)`", text)
    named = {flag for span in spans for flag in re.findall(rf"^(?:V:\w+ )?({FLAG})", span)}
    scripts = ["train.py", "eval.py", *BENCHES]
    scripts += [str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").rglob("*.py")]
    assert named and named <= set().union(*map(flags_of, scripts))


BENCHES = [f"tests/{path.name}" for path in (ROOT / "tests").glob("bench_*.py")]


@each_readme
def test_links_lead_somewhere(folder):
    text = READMES[folder]
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    places = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    for target in links:
        if target.startswith("#"):
            assert target[1:] in places, target
        elif not target.startswith("http"):
            assert (ROOT / folder / target.partition("#")[0]).exists(), target


@each_readme
def test_functions_named_with_their_file_exist(folder):
    """`notebooks/rewards/guards.py:coin`, and `V:coin` where V is said to stand for a file."""
    text = READMES[folder]
    short = dict(re.findall(r"`(\w+):` stands for\s+`([\w/]+\.py):`", text))
    for letter, file in short.items():
        text = re.sub(rf"\b{letter}:(?=\w)", f"{file}:", text)
    found = set(re.findall(r"\b((?:notebooks|tests)/[\w/]+\.py):([a-z]\w*)", text))
    assert found or not folder
    for file, name in found:
        if file == "notebooks/tasks/gym.py":  # its names are reasoning-gym's
            pytest.importorskip("reasoning_gym")
            assert callable(verifiers.lookup(f"{ROOT}/{file}:{name}", {}, "task"))
            continue
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        here = {node.name for node in tree.body if hasattr(node, "name")}
        here |= {
            leaf.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            for leaf in ast.walk(target)
            if isinstance(leaf, ast.Name)
        }
        assert name in here, f"{file}:{name}"


def test_what_fork_it_shows_runs_as_it_is_printed(tmp_path, monkeypatch):
    """A reward, a task and a method of one's own, on a laptop; here for two steps."""
    (block,) = re.findall(r"```python\n(from rlvr .*?)```", FRONT, flags=re.S)
    (tmp_path / "mine.py").write_text(block)
    (flags,) = re.findall(r"^python train\.py (.*mine\.py.*)$", FRONT, flags=re.M)
    flags = flags.replace("notebooks/tiny", str(ROOT / "notebooks" / "tiny")).split()
    monkeypatch.chdir(tmp_path)
    train.main([*flags, "--steps", "2", "--device", "cpu", "--name", "mine"])
    config = json.loads((tmp_path / "runs" / "mine" / "config.json").read_text())
    assert config["flags"]["method"] == "mine.py" and config["flags"]["task"] == "mine.py:less_one"


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_name_is_defined_twice_in_a_script(script):
    """A later section must not take a name away from an earlier one."""
    names = []
    for node in ast.parse((ROOT / f"{script}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    assert sorted(set(names)) == sorted(names)
