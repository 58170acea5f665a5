"""A number on a page is that of its result, and a result names the commit and the commands that measured it."""

import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from notebooks.look import keep

RESULTS = keep.tables() | {"atlas": keep.load("atlas")}
CLAIMS = {f"claim {kept['name']}": kept for kept in keep.load("claims")["claims"]}


def words(text):
    return " ".join(text.split())


# ---- The pages of this repository ------------------------------------------------------------------


@pytest.mark.parametrize("page", keep.PAGES, ids=lambda page: page.name)
def test_a_page_says_what_the_results_say(page):
    text = page.read_text()
    assert words(keep.LINK.sub(keep.quoted, text)) == words(text)
    links = [*keep.LINK.finditer(text)]
    assert len(links) == len(re.findall(r"\]\(\S*results/\w+\.json", text)) > 0


def test_every_result_is_shown_on_a_page():
    links = [link for page in keep.PAGES for link in keep.LINK.finditer(page.read_text())]
    assert {link["name"] or link["file"] for link in links} == RESULTS.keys()


@pytest.mark.parametrize("name", [*RESULTS, *CLAIMS])
def test_a_result_names_its_commit_and_its_commands(name):
    """The scripts of a command are here, or that commit has them, where there is git."""
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


@pytest.fixture
def page(tmp_path, monkeypatch):
    (tmp_path / "tables.json").write_text("{}")
    (tmp_path / "page.md").write_text(PAGE)
    monkeypatch.setattr(keep, "RESULTS", tmp_path)
    monkeypatch.setattr(keep, "PAGES", [tmp_path / "page.md"])
    return tmp_path / "page.md"


def test_what_a_command_prints_becomes_a_table_and_a_sentence(page):
    table = {"columns": ["what", "n"], "rows": [["a", "1"]], "sentences": {"all": "1 of 1"}}
    keep.main(["trial", "--", f"echo begun; echo '{json.dumps({**table, 'seeds': [0]})}'"])
    text = page.read_text()
    assert "# A page\n\n| what | n |\n| --- | --- |\n| a | 1 |\n\n[On 20" in text
    assert (
        "It was [1 of 1](results/tables.json#trial.all) of them." in text
        and ", seeds 0, on" in text
    )
    kept = keep.load("trial")
    assert kept["machine"]["cores"] >= 1 and kept["commands"][0].startswith("echo begun")
    page.write_text(text.replace("| a | 1 |", "| a | 2 |").replace("1 of 1", "2 of 2"))
    keep.main([])  # the result counts, not the page
    assert page.read_text() == text


# ---- The benchmarks --------------------------------------------------------------------------------

BENCHMARKS = """
bench_verifiers.py --seconds 0.01
bench_ranks.py --layers 1 --worlds 1 2
bench_sampling.py --rows 8 --max-new-tokens 4 --repeats 1
bench_training.py --steps 2 --repeats 1
bench_training.py --count
bench_training.py --cards
bench_training.py --repeats 1 --gradient --device cpu
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", BENCHMARKS.strip().splitlines())
def test_a_benchmark_ends_with_a_table(command):
    """Toy sizes, and no look at a time."""
    words = [sys.executable, *f"tests/{command}".split()]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    table = json.loads(run.stdout.splitlines()[-1])
    assert table["rows"] and all(len(row) == len(table["columns"]) for row in table["rows"])
