"""A number on a page is that of its result, and a result names the commit and the commands that measured it."""

import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from notebooks.claims import claim
from notebooks.look import keep

RESULTS = keep.tables() | {name: keep.load(name) for name in ("atlas", "graders")}
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


def test_commands_of_a_result_are_run_again_and_their_rows_joined(page):
    lines = [json.dumps({"columns": ["n"], "rows": [[str(n)]], "seeds": [n]}) for n in (2, 1)]
    commands = [f"echo '{line}'" for line in lines]
    keep.write_json(keep.RESULTS / "tables.json", {"trial": {"commands": commands}})
    page.write_text("[?](results/tables.json#trial)\n")
    keep.main(["trial"])
    assert keep.load("trial")["rows"] == [["2"], ["1"]] and keep.load("trial")["seeds"] == [1, 2]


@pytest.mark.parametrize("command, why", [("exit 3", "exit code 3"), ("echo done", "no JSON")])
def test_a_command_that_fails_is_named_and_keeps_nothing(page, command, why):
    with pytest.raises(SystemExit, match=why):
        keep.main(["trial", "--", command])
    assert keep.tables() == {}


# ---- Several seeds and the benchmarks -------------------------------------------------------------------


def test_a_row_of_a_table_by_hand():
    """Two seeds of 10 steps: .2 and .4 sampled before, .5 and .7 in the end."""
    costs = {"tokens": 1.5, "trained": 40, "seconds": 3.2}
    one = {"greedy": {0: 0.1, 5: 0.5, 10: 1.0}, "sampled": {0: 0.2, 5: 0.4, 10: 0.5}, **costs}
    two = {"greedy": {0: 0.3, 5: 0.7, 10: 1.0}, "sampled": {0: 0.4, 5: 0.6, 10: 0.7}, **costs}
    assert claim.table_row("mine", [one, two]) == [
        "mine",
        "10",
        ".200, .300 [.200 - .400]",
        ".600, .500 [.400 - .600] (step 5)",
        "1.000, .600 [.500 - .700]",
        "2",
        "40",
        "3",
    ]


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
