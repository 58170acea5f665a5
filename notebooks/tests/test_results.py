"""A number on a page is that of its result, and a result names the commit and the commands that measured it."""

import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from notebooks.claims import seeds
from notebooks.look import keep

RESULTS = keep.tables() | {name: keep.load(name) for name in ("atlas", "graders")}


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
    assert {link["name"] or link["file"] for link in links} - {"claims"} == RESULTS.keys()


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_can_be_measured_again(name):
    """Its commands name files that exist, and its commit is known, where there is git."""
    result = RESULTS[name]
    for command in result["commands"]:
        files = [
            part.replace(".", "/") + ".py" for part in re.findall(r"-m (notebooks[\w.]+)", command)
        ]
        files += re.findall(r"[\w./-]+\.(?:py|txt|jsonl)\b", command)
        assert files and all((ROOT / file).exists() for file in files), command
    commit = result["commit"].removesuffix("-dirty")
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    if (ROOT / ".git").exists():
        subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, check=True)


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
    keep.save("trial", {"commands": [f"echo '{line}'" for line in lines]})
    page.write_text("[?](results/tables.json#trial)\n")
    keep.main(["trial"])
    assert keep.load("trial")["rows"] == [["2"], ["1"]] and keep.load("trial")["seeds"] == [1, 2]


@pytest.mark.parametrize("command, why", [("exit 3", "exit code 3: exit 3"), ("echo done", "JSON")])
def test_a_command_that_fails_is_named_and_keeps_nothing(page, command, why):
    with pytest.raises(SystemExit, match=why):
        keep.main(["trial", "--", command])
    assert keep.tables() == {}


# ---- seeds.py and the benchmarks -------------------------------------------------------------------


def test_seeds_are_trained_once_and_summed_up(tmp_path, capsys):
    flags = "--device cpu --steps 2 --prompts-per-step 2 --num-samples 2 --eval-problems 4"
    flags += " --eval-every 1 --max-new-tokens 4"
    command = ["--name", "two", "--seeds", "3", "4", "--runs", str(tmp_path), "--", *flags.split()]
    seeds.main(command)
    printed = capsys.readouterr()
    assert printed.err.count("training") == 2
    found = json.loads(printed.out.splitlines()[-1])
    assert found["columns"] == seeds.COLUMNS and found["seeds"] == [3, 4]
    [row] = found["rows"]
    assert row[:2] == ["two", "2"] and "(step 1)" in row[3] and len(row) == len(seeds.COLUMNS)
    assert found["sentences"]["line"].startswith("`held-out accuracy 0.")
    seeds.main(command)
    again = capsys.readouterr()
    assert "training" not in again.err and json.loads(again.out.splitlines()[-1]) == found


def test_a_row_of_a_table_by_hand():
    """Two seeds of 10 steps: .2 and .4 sampled before, .5 and .7 in the end."""
    costs = {"tokens": 1500.0, "trained": 40, "seconds": 3.2}
    one = {"greedy": {0: 0.1, 5: 0.5, 10: 1.0}, "sampled": {0: 0.2, 5: 0.4, 10: 0.5}, **costs}
    two = {"greedy": {0: 0.3, 5: 0.7, 10: 1.0}, "sampled": {0: 0.4, 5: 0.6, 10: 0.7}, **costs}
    assert seeds.table_row("mine", [one, two]) == [
        "mine",
        "10",
        ".200, .300 [.200 - .400]",
        ".600, .500 [.400 - .600] (step 5)",
        "1.000, .600 [.500 - .700]",
        "2",
        "40",
        "3",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, key",
    [
        (["bench_verifiers.py", "--seconds", "0.01"], "per_second"),
        ("bench_ranks.py --layers 1 --worlds 1 2".split(), "2 with --fsdp"),
        ("bench_sampling.py --rows 8 --max-new-tokens 4 --repeats 1".split(), "ratios"),
        (
            "bench_training.py --config train.py --tokens 8 --prompt-tokens 4".split(),
            "peaks",
        ),
        (
            "bench_training.py --config plain --tokens 8 --prompt-tokens 4".split(),
            "peaks",
        ),
        ("bench_training.py --count".split(), "rows"),
        ("bench_training.py --cards".split(), "rows"),
        ("bench_training.py --repeats 1 --gradient --device cpu".split(), "rows"),
    ],
    ids=["verifiers", "ranks", "sampling", "memory", "memory, plain", "count", "cards", "gradient"],
)
def test_a_benchmark_ends_with_a_json_object(command, key):
    """Toy sizes, and no look at a time."""
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / command[0], *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])[key]


def test_the_training_benchmark_times_the_loop_of_train(tmp_path):
    from bench_training import our_steps

    rows = []
    times = our_steps(1, str(tmp_path), rows)
    assert len(times) == len(rows) == 1 and {"sample_seconds", "update_seconds"} <= rows[0].keys()
