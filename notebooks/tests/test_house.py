"""The laboratory's house: what its pages and notebooks name exists, and its files find each other."""

import ast
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import mutants
import train
import verifiers
from conftest import ROOT
from rlvr import group_advantages
from test_docs import FLAG, commands, flags_of

LAB = ROOT / "notebooks"
MODULES = [path for path in LAB.rglob("*.py") if LAB / "tests" not in path.parents]
CHAPTERS = (LAB / "CHAPTERS.md").read_text()


def names_in(files):
    """What these files define at their top level, also by import .. as."""
    names = set()
    for path in files:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign):
                leaves = [leaf for target in node.targets for leaf in ast.walk(target)]
                names |= {leaf.id for leaf in leaves if isinstance(leaf, ast.Name)}
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname for alias in node.names if alias.asname}
            elif hasattr(node, "name"):
                names.add(node.name)
    return names


NAMES = names_in([*ROOT.glob("*.py"), *MODULES])


# ---- Files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "rewards/process.py:steps_reward",
        "tasks/smollm2.py:any_number",
        "tasks/families.py:math_wordings",
        "claims/start.py:r1_short",
        "autorule/autorule.py:rules_reward",
    ],
)
def test_a_plug_in_is_found_in_whatever_folder_it_lies(name, tmp_path):
    """As train.py finds it: started elsewhere, in a Python that knows nothing of the laboratory."""
    code = "import sys, verifiers; print(callable(verifiers.lookup(sys.argv[1], {}, 'reward')))"
    command = [sys.executable, "-c", code, f"{LAB / name}"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr


def imported_by(path):
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_by_way_of_others():
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in MODULES}
    imports = {name: {*imported_by(path)} & files.keys() for name, path in files.items()}
    assert sum(map(len, imports.values())) > 50
    done = set()
    while ready := [name for name in imports if name not in done and imports[name] <= done]:
        done.update(ready)
    assert done == imports.keys(), f"in a circle: {imports.keys() - done}"


# ---- Pages ---------------------------------------------------------------------------------------------

PAGES = ["MEASURED.md", "CHAPTERS.md", "PATH.md", "PICTURES.md", "README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_commands_of_a_page_lead_somewhere(page):
    text = (LAB / page).read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    places = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file = target.partition("#")[0]
        known = target[1:] in places if target.startswith("#") else (LAB / file).exists()
        assert known or target.startswith("http"), target
    for script, rest in commands(re.sub(r"^for .*? do ", "", text, flags=re.M)):
        assert set(re.findall(rf"(?<!\S){FLAG}", rest)) <= flags_of(script, rest), (script, rest)


def test_the_picture_of_the_house_shows_the_imports():
    """Its arrows between scripts are the imports that there are, and no others."""
    _, _, house = (LAB / "PICTURES.md").read_text().partition("## The house")
    picture = house.partition("```mermaid")[2].partition("```")[0]
    drawn = {*re.findall(r"^ +(\w+)(?:\[.*?\])? --> (\w+)", picture, flags=re.M)}
    scripts = [path.stem for path in ROOT.glob("*.py")]
    assert drawn == {
        (name, other)
        for name in scripts
        for other in imported_by(ROOT / f"{name}.py")
        if other in scripts
    }


def test_the_picture_of_a_group_has_the_right_numbers():
    """Four rewards and four advantages, as rlvr.py computes them."""
    _, _, group = (LAB / "PICTURES.md").read_text().partition("## A group")
    picture = group.partition("```mermaid")[2].partition("```")[0]
    pairs = re.findall(r'"R ([\d.]+)"\] --> \w+\["A ([+-][\d.]+)', picture)
    expected = group_advantages([float(reward) for reward, _ in pairs])
    assert [float(advantage) for _, advantage in pairs] == pytest.approx(expected, abs=5e-4)


def test_every_row_of_the_chapter_map_exists():
    """Its columns: section | names in scripts and modules, or flags | tests | N: heading in notebook N, or exercise, or
    "-". A notebook that a row leads to speaks of at least one of the row's names."""
    folders = (ROOT / "tests", LAB / "tests")
    tests = "".join(path.read_text() for folder in folders for path in folder.glob("test_*.py"))
    page, _, errata = CHAPTERS.partition("## Where the listings do not hold")
    lines = re.findall(r"^\| (?!section|---)(.*) \|$", page, flags=re.M)
    rows = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    assert len(rows) > 30 and page.count("\n## ") == 5  # five chapters
    for number, section in re.findall(r"\[(\d)\]\([\w.]+\), (\d+)", errata):
        assert f"## {section}. " in prose_of(number), (number, section)
    missing = re.findall(r"`(test_\w+)`", errata)
    missing = [name for name in missing if f"def {name}(" not in tests]
    for chapter, code, named, places in rows:
        here = re.findall(r"`([^`]+)`", code)
        missing += [name for name in here if name not in NAMES | flags_of("train.py")]
        assert re.findall(r"`test_\w+`", named), chapter
        named = re.findall(r"`(\w+)`", named)
        missing += [name for name in named if not re.search(rf"^def {name}\(", tests, flags=re.M)]
        for place in places.split("; ") if places != "-" else []:
            number, _, heading = place.partition(": ")
            if not re.fullmatch(r"exercise ([1-9]|10)", place):
                assert heading in headings_of(number), place
                assert words_of(number) & {*here}, (
                    f"{chapter}: notebook {number} speaks of none of {here}"
                )
    assert not missing


def test_the_recipes_are_those_of_the_chapters():
    """R1-Zero: G = 16, temperature 0.6 and a KL of 0.001; R1 at temperature 1, with a clip that is nearly none; Olmo 3
    with groups of 64; of Kimi the chapter gives a reward only. AutoRule (its Table 10): pairs, and R1-Zero's KL."""
    found = {}
    for name in ("r1-zero", "r1", "olmo-3", "kimi-k1.5", "autorule"):
        recipe = f"@{LAB / 'recipes' / name}.txt"
        flags = train.parse_args([recipe, "--model", str(LAB / "tiny"), "--name", "recipe"])
        names = ("num_samples", "temperature", "kl_coef", "norm", "clip")
        found[flags.reward] = [flags.settings[name] for name in names]
    assert found == {
        "r1-zero": [16, 0.6, 0.001, "sequence", (0.2, 0.2)],
        "r1": [16, 1.0, 0.001, "sequence", (0.999, 10)],
        "notebooks/rewards/reasoning.py:olmo": [64, 1.0, 0.0, "token", (0.2, 0.2)],
        "notebooks/rewards/reasoning.py:kimi_process": [16, 1.0, 0.0, "token", (0.2, 0.2)],
        "notebooks/autorule/autorule.py:rules_reward": [2, 1.0, 0.001, "token", (0.2, 0.2)],
    }
    assert (flags.lr, flags.settings["prompts_per_step"]) == (5e-7, 512)  # AutoRule's
    assert flags.settings["max_new_tokens"] == 1024


def cells_of(number, kind):
    (path,) = LAB.glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def prose_of(number):
    return "\n".join(cells_of(number, "markdown"))


def words_of(number):
    """The names and flags in a notebook's code, and between backticks in its text."""
    spans = re.findall(r"`([^`\n]+)`", prose_of(number))
    return set(re.findall(rf"{FLAG}|\w+", "\n".join(cells_of(number, "code") + spans)))


def headings_of(number):
    return re.findall(r"^## (?:\d+\. )?(.*)$", prose_of(number), flags=re.M)


def test_what_notebook_0_says_is_added_to_each_line_exists():
    rows = re.findall(r"^\|.*\| (.*) \|$", prose_of("0"), flags=re.M)[2:]
    assert len(rows) >= 15
    for row in rows:
        for name in re.findall(r"`([^`]+)`", row):
            assert name in NAMES or name in flags_of("train.py"), name


@pytest.mark.parametrize("number", [*range(11)])
def test_files_that_a_notebook_names_exist(number):
    text = prose_of(number) + "\n".join(cells_of(number, "code"))
    for file in re.findall(r"\bnotebooks/[\w/]+\.py\b", text):
        assert (ROOT / file).exists(), file
    for target in re.findall(r"\]\(([\w/]+\.\w+)\)", text):
        assert (LAB / target).exists(), target


def test_a_plug_in_that_the_loader_does_not_find_is_named():
    with pytest.raises(verifiers.DataError, match="there is no such Python file"):
        verifiers.lookup(f"{LAB}/autorule.py:rules_reward", {}, "reward")


# ---- Messages ------------------------------------------------------------------------------------------


def messages_of(script):
    """The texts that are raised, printed or end the command -> for each its parts of 12 letters or more."""
    for node in ast.walk(ast.parse((ROOT / script).read_text())):
        called = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2]
        if called in ("print", "exit", "error", "warn") or isinstance(node, ast.Raise):
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            texts = [text.strip(" `") for text in texts if isinstance(text, str)]
            if parts := [text for text in texts if len(text) >= 12]:
                yield node.lineno, parts


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_every_message_of_the_two_commands_is_explained(script):
    page = " ".join((ROOT / "notebooks" / "MESSAGES.md").read_text().split())
    messages = [*messages_of(script)]
    missing = [message for message in messages if not any(part in page for part in message[1])]
    assert not missing and len(messages) >= 8


def test_the_glossary_explains_every_column_of_the_log(tmp_path):
    flags = "--task arithmetic --device cpu --steps 1 --prompts-per-step 2 --num-samples 2"
    flags += " --eval-problems 2 --max-new-tokens 8 --name r"
    train.main([*flags.split(), "--runs", str(tmp_path)])
    lines = (tmp_path / "r" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = map(json.loads, lines)
    columns = {re.sub(r"^eval_(?!seconds).*", "eval_...", column) for row in rows for column in row}
    page = (LAB / "README.md").read_text(encoding="utf-8")
    glossary = page[page.index("## What a run writes") :]
    assert len(columns) > 15 and columns <= set(re.findall(r"`([a-z_.]+)`", glossary))


def test_a_step_enters_as_many_lines_as_the_readme_says(monkeypatch, tmp_path):
    """The lines of all functions of the scripts that one training step calls, also in threads."""
    entered = set()

    def note(frame, event, arg):
        if Path(frame.f_code.co_filename).parent == ROOT:
            entered.add(frame.f_code)

    def end(run, row):
        raise SystemExit

    monkeypatch.setattr(train, "finish_step", end)
    flags = train.parse_args(["--device", "cpu", "--name", "r", "--runs", str(tmp_path)])
    run = train.load_run(flags)
    (run.folder / "samples").mkdir(parents=True)
    threading.setprofile(note)
    sys.setprofile(note)
    with pytest.raises(SystemExit):
        train.train_rlvr(run)
    threading.setprofile(None)
    sys.setprofile(None)
    entered -= {end.__code__}
    lines = {(code.co_filename, line) for code in entered for *_, line in code.co_lines() if line}
    grading = {line for line in lines if line[0].endswith("grading.py")}
    said = (
        "One training step enters about 650 lines of code, and about 200 more to compare answers."
    )
    assert said in (ROOT / "README.md").read_text()
    assert abs(len(lines - grading) - 650) <= 25
    assert 0 < len(grading) <= 225  # fewer where answers were normalised before


def test_the_counts_in_the_readme_are_those_of_the_folders():
    page = (ROOT / "README.md").read_text()
    kit = LAB / "conformance"
    cases = json.loads((kit / "vectors.json").read_text())
    kept = json.loads((kit / "verdicts.json").read_text())
    others = [found["cases"].values() for name, found in kept.items() if name.islower()]
    wrong = [sum(verdict == "MISTAKE" for verdict, _ in found) for found in others]
    assert f"as {len([*(LAB / 'methods').glob('*.py')])} [methods]" in page
    assert f"Of [{len(cases)} cases]" in page
    assert (len(others), min(wrong), max(wrong)) == (13, 0, 8)
    assert "thirteen projects get none to eight wrong" in page
    rows = json.loads((LAB / "results" / "graders.json").read_text())["rows"]
    right = [int(row[1].split()[0].replace(",", "")) for row in rows]
    assert len(right) == 13 and "twelve [other graders]" in page
    assert f"judge {min(right)} to {max(right[1:])} right, ours {right[0]:,}." in page


def test_a_mutant_is_the_script_with_one_change():
    found = dict(mutants.mutants("eval"))
    source = (ROOT / "eval.py").read_bytes()
    assert len(found) > 200 and source not in found.values()
    assert all(ast.parse(text) for text in found.values())


def test_a_mutant_is_killed_by_the_first_test_that_fails(tmp_path):
    (tmp_path / "tests").mkdir()
    for name in mutants.TESTS["eval"].split():
        text = "import eval\ndef test_two():\n    assert eval.two() == 2\n"
        (tmp_path / "tests" / f"test_{name}.py").write_text(text)
    assert mutants.killer(tmp_path, "eval", b"def two(): return 1 + 1") is None
    killer = mutants.killer(tmp_path, "eval", b"def two(): return 1 - 1")
    assert killer == "tests/test_eval.py::test_two"
