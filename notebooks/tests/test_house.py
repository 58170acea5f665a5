"""The laboratory in order: what its pages and notebooks name exists, and numbers on pages agree with the results."""

import ast
import json
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import train
from conftest import ROOT
from notebooks.claims.show import read, table_of
from notebooks.look import keep
from test_docs import FLAG, commands, flags_of

LAB = ROOT / "notebooks"
MODULES = [path for path in LAB.rglob("*.py") if LAB / "tests" not in path.parents]
CHAPTERS = (LAB / "CHAPTERS.md").read_text()


def names_in(files):
    """Return the names that these files define at their top level, or import by another name."""
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


CORE = [*ROOT.glob("*.py"), *ROOT.glob("appendix/*.py")]
NAMES = names_in([*CORE, *MODULES])


# ---- Files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tasks/smollm2.py:any_number", "claims/start.py:r1_short"])
def test_a_plug_in_is_found_in_whatever_folder_it_lies(name, tmp_path):
    """It is looked up as in train.py, from another folder, in a Python without the laboratory on its path."""
    code = (
        "import sys, appendix.plumbing as p; print(callable(p.lookup(sys.argv[1], {}, 'reward')))"
    )
    command = [sys.executable, "-c", code, f"{LAB / name}"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr


# ---- Pages ---------------------------------------------------------------------------------------------

PAGES = [page.relative_to(LAB) for page in LAB.rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_and_commands_of_a_page_lead_somewhere(page):
    text = (LAB / page).read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    places = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file = (LAB / page).parent / target.partition("#")[0]
        known = target[1:] in places if target.startswith("#") else file.exists()
        assert known or target.startswith("http"), target
    for script, rest in commands(re.sub(r"^for .*? do ", "", text, flags=re.M)):
        assert set(re.findall(rf"(?<!\S){FLAG}", rest)) <= flags_of(script, rest), (script, rest)
    for file, name in re.findall(r"\b((?:notebooks|tests)/[\w/]+\.py):([a-z]\w*)", text):
        assert name in names_in([ROOT / file]), f"{file}:{name}"


def test_every_row_of_the_chapter_map_exists():
    """Its columns: section | names in scripts and modules, or flags | N: heading in notebook N, or exercise, or "-". A
    notebook that a row leads to has at least one of the row's names."""
    page, _, errata = CHAPTERS.partition("## Where the listings do not hold")
    for number, section in re.findall(r"\[(\d)\]\([\w.]+\), (\d+)", errata):
        assert f"## {section}. " in prose_of(number), (number, section)
    lines = re.findall(r"^\| (?!section|---)(.*) \|$", page, flags=re.M)
    assert len(lines) > 30 and page.count("\n## ") == 5  # five chapters
    for section, code, places in (line.split(" | ") for line in lines):
        named = {*re.findall(r"`([^`]+)`", code)}
        assert named <= NAMES | flags_of("train.py"), section
        for place in places.split("; "):
            number, _, heading = place.partition(": ")
            if heading:
                assert heading in headings_of(number), place
                assert words_of(number) & named, f"{section}: notebook {number} has none of {named}"


def test_the_recipes_are_those_of_the_chapters():
    """R1-Zero has G = 16, temperature 0.6 and a KL of 0.001; R1 has temperature 1 and hardly any clip; Olmo 3 has groups
    of 64. For Kimi the chapter gives a reward only. AutoRule (its Table 10) has groups of 2, and R1-Zero's KL."""
    found = {}
    for name in ("r1-zero", "r1", "olmo-3", "kimi-k1.5", "autorule"):
        recipe = f"@{LAB / 'recipes' / name}.txt"
        flags = train.parse_args([recipe, "--model", str(LAB / "tiny"), "--name", "recipe"])
        names = ("num_samples", "temperature", "kl_coef", "norm", "clip")
        found[flags.reward] = [flags.settings.get(name) for name in names]
    assert found == {
        "notebooks/rewards/reasoning.py:r1_zero": [16, 0.6, 0.001, "sequence", (0.2, 0.2)],
        "notebooks/rewards/reasoning.py:r1": [16, 1.0, 0.001, "sequence", (0.999, 10)],
        "notebooks/rewards/reasoning.py:olmo": [64, 1.0, None, "token", (0.2, 0.2)],
        "notebooks/rewards/reasoning.py:kimi_process": [16, 1.0, None, "token", (0.2, 0.2)],
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
    """Return the names and flags in a notebook's code, and between backticks in its text."""
    spans = re.findall(r"`([^`\n]+)`", prose_of(number))
    return set(re.findall(rf"{FLAG}|\w+", "\n".join(cells_of(number, "code") + spans)))


def headings_of(number):
    return re.findall(r"^## (?:\d+\. )?(.*)$", prose_of(number), flags=re.M)


@pytest.mark.parametrize("number", [*range(11)])
def test_files_that_a_notebook_names_exist(number):
    text = prose_of(number) + "\n".join(cells_of(number, "code"))
    for file in re.findall(r"\bnotebooks/[\w/]+\.py\b", text):
        assert (ROOT / file).exists(), file
    for target in re.findall(r"\]\(([\w/]+\.\w+)\)", text):
        assert (LAB / target).exists(), target


def test_the_map_of_a_notebook_lights_its_box(monkeypatch):
    """The file runs in its own folder, as when a notebook imports it, and changes to the project's folder."""
    monkeypatch.chdir(LAB)
    monkeypatch.syspath_prepend(LAB)
    lesson = runpy.run_path(str(LAB / "lesson.py"))
    assert Path.cwd() == ROOT and sys.path[0] == str(ROOT)
    drawn = lesson["you_are_here"]("loss")._repr_svg_()
    boxes = re.findall(r'<rect [^>]*fill="(\S+)"[^>]*><text [^>]*>(\w+)</text>', drawn)
    fills = {name: fill for fill, name in boxes}
    assert fills.keys() == {*lesson["STEP"], "log"} and len({*fills.values()}) == 2
    assert [name for name in fills if fills[name] == fills["loss"]] == ["loss"]
    with pytest.raises(ValueError, match=f"no box lost: use {', '.join(lesson['STEP'])} or log"):
        lesson["you_are_here"]("loss", "lost")


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
    """It counts the lines of all functions of the scripts that one training step calls, also in threads."""
    entered = set()

    def note(frame, event, arg):
        if Path(frame.f_code.co_filename) in CORE:
            entered.add(frame.f_code)

    def end(run, *args):
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
    lines = {(code.co_filename, line) for code in entered for *_, line in code.co_lines() if line}
    grading = {line for line in lines if line[0].endswith("grading.py")}
    said = "It runs about 650 lines of code, plus about 200 to compare answers."
    assert said in words((ROOT / "README.md").read_text())
    assert abs(len(lines - grading) - 650) <= 25
    assert 0 < len(grading) <= 225  # fewer if the cache of answers is already filled


def test_the_counts_in_the_readme_are_those_of_the_folders():
    page = words((ROOT / "README.md").read_text())
    kit = LAB / "conformance"
    cases = json.loads((kit / "vectors.json").read_text())
    kept = json.loads((kit / "verdicts.json").read_text())
    others = [found["cases"].values() for name, found in kept.items() if name.islower()]
    wrong = [sum(verdict == "MISTAKE" for verdict, _ in found) for found in others]
    files = [path.read_text() for path in (LAB / "methods").glob("*.py")]
    methods = sum(len(re.findall(r"^class \w+\([\w, ]+\):", text, re.M)) for text in files)
    assert f"{methods} [methods]" in page
    assert f"[{len(cases)} cases]" in page
    assert (len(others), min(wrong), max(wrong)) == (13, 0, 9)
    assert "each of thirteen other projects fails 0 to 9 of the cases it can run." in page


def test_the_readme_shows_what_the_kit_says(tmp_path):
    page = (ROOT / "README.md").read_text()
    shown = r"yours\.py, .*?```python\n(.*?)```.*?(check\.py yours\.py).*?```\n+```\n(.*?)```"
    code, _, lines = re.search(shown, page, re.S).groups()
    (tmp_path / "yours.py").write_text(code)
    command = [sys.executable, LAB / "conformance" / "check.py", tmp_path / "yours.py"]
    printed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    assert {*lines.splitlines()} - {"..."} <= {*printed} and "MISTAKE" in lines


def test_the_readme_quotes_the_claim_on_sharpening():
    x = table_of(read("sharpening")["rows"])
    places = (("usual", "p^4"), ("rash", "p^4"), ("rash", "right"))
    numbers = [f"{x(*place).mean():.2f}" for place in places]
    page = words((ROOT / "README.md").read_text())
    said = "is right in {} of the cases. On a base that is nearly always wrong this gives {}, and RLVR {} ("
    assert said.format(*numbers) in page


# ---- Results: a number on a page is its result's number, and a result names its commit and commands --

RESULTS = keep.tables()
CLAIMS = {f"claim {kept['name']}": kept for kept in keep.load("claims")["claims"]}


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("page", keep.PAGES, ids=lambda page: page.name)
def test_a_page_says_what_the_results_say(page):
    text = page.read_text()
    assert words(keep.LINK.sub(keep.quoted, text)) == words(text)
    links = [*keep.LINK.finditer(text)]
    assert len(links) == len(re.findall(r"\]\(\S*results/\w+\.json", text)) > 0


def test_every_result_is_shown_on_a_page_or_read_by_a_notebook():
    links = [link for page in keep.PAGES for link in keep.LINK.finditer(page.read_text())]
    code = "".join(cell for number in range(11) for cell in cells_of(number, "code"))
    shown = {link["name"] for link in links}
    place = r'(load|kept)\("{0}"|"\)\)\["{0}"\]'
    read = {name for name in RESULTS if re.search(place.format(name), code)}
    assert shown | read == RESULTS.keys()


@pytest.mark.parametrize("name", [*RESULTS, *CLAIMS])
def test_a_result_names_its_commit_and_its_commands(name):
    """The scripts of a command are here, or (if there is git) in that commit."""
    result = (RESULTS | CLAIMS)[name]
    commit = result["commit"].removesuffix("-dirty")
    git = ["git", "cat-file", "-e"] if (ROOT / ".git").exists() else ["true"]
    assert subprocess.run([*git, f"{commit}^{{commit}}"], cwd=ROOT).returncode == 0
    for command in result["commands"]:
        modules = re.findall(r"-m (notebooks[\w.]+)", command)
        files = [f"{module.replace('.', '/')}.py" for module in modules]
        files += re.findall(r"[\w./-]+\.(?:py|txt|jsonl)\b", command)
        assert files, command
        for file in files:
            there = (ROOT / file).exists()
            assert there or subprocess.run([*git, f"{commit}:{file}"], cwd=ROOT).returncode == 0


# ---- keep.py ---------------------------------------------------------------------------------------

PAGE = """# A page

[?](results/tables.json#trial)

It was [?](results/tables.json#trial.all) of them.
"""


def test_what_a_command_prints_becomes_a_table_and_a_sentence(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    (tmp_path / "tables.json").write_text("{}")
    monkeypatch.setattr(keep, "RESULTS", tmp_path)
    monkeypatch.setattr(keep, "PAGES", [page])
    table = {"columns": ["what", "n"], "rows": [["a", "1"]], "sentences": {"all": "1 of 1"}}
    keep.main(["trial", "--", f"echo begun; echo '{json.dumps({**table, 'seeds': [0]})}'"])
    text = page.read_text()
    assert "# A page\n\n| what | n |\n| --- | --- |\n| a | 1 |\n\n[On 20" in text
    assert "It was [1 of 1](results/tables.json#trial.all) of them." in text
    assert ", seeds 0, on" in text
    kept = keep.load("trial")
    assert kept["machine"]["cores"] >= 1 and kept["commands"][0].startswith("echo begun")
    page.write_text(text.replace("| a | 1 |", "| a | 2 |").replace("1 of 1", "2 of 2"))
    keep.main([])  # the result counts, not the page
    assert page.read_text() == text


# ---- The benchmarks --------------------------------------------------------------------------------

BENCHMARKS = """
bench_verifiers.py --seconds 0.01
bench_ranks.py --layers 1 --worlds 2
bench_sampling.py --rows 8 --max-new-tokens 4 --repeats 1
bench_training.py --steps 2 --repeats 1
bench_training.py --count
bench_training.py --cards
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", BENCHMARKS.strip().splitlines())
def test_a_benchmark_ends_with_a_table(command):
    """Sizes are tiny, and times are not checked."""
    words = [sys.executable, *f"tests/{command}".split()]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    table = json.loads(run.stdout.splitlines()[-1])
    assert table["rows"] and all(len(row) == len(table["columns"]) for row in table["rows"])
