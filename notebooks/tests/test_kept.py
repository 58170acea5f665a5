"""Numbers on the pages come from notebooks/results, and a result knows which code it was measured with."""

import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from notebooks import kept
from notebooks.claims import seeds

SCRIPT = '''"""A docstring."""
import json, sys


def rows():
    """Another."""
    return [["a", "1"]]  # a comment


print(json.dumps({"columns": ["what", "value"], "rows": rows(), "seeds": [0], "sentences": {"all": "1 of 1"}}))
'''
PAGE = """# A page

[Measured](results/trial.json)

It was [](results/trial.json#all) of them.
""".replace("[]", "[?]")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project of one page and one result, which is not measured yet."""
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setattr(kept, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(kept, "PAGES", [tmp_path / "page.md"])
    monkeypatch.setattr(kept, "FOLDERS", [tmp_path])
    (tmp_path / "results").mkdir()
    ask(tmp_path, f"{sys.executable} script.py")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path


def ask(place, *commands):
    (place / "results" / "trial.json").write_text(json.dumps({"commands": commands}))


def measured(place):
    kept.main(["--run", "trial", "--write"])
    return (place / "page.md").read_text()


# ---- The pages of this repository ------------------------------------------------------------------


def test_the_pages_say_what_the_results_say():
    links = [link for page in kept.PAGES for link in kept.LINK.finditer(page.read_text())]
    assert [kept.differing(page.read_text()) for page in kept.PAGES] == [[]] * len(kept.PAGES)
    shown = {link["name"] for link in links}
    results = {path.stem for path in kept.RESULTS.glob("*.json")}
    assert shown == {name for name in results if not name.startswith("claims_")}
    text = "".join(page.read_text() for page in kept.PAGES)
    assert len(links) == len(re.findall(r"\]\(\S*results/\w+\.json", text))


def test_what_counts_as_the_same_code_is_a_script_of_today_and_one_that_was_measured():
    """So an entry ends with the next change of its script, or when its results are measured again."""
    places = ("*.py", "tests/bench_*.py", "notebooks/methods/*.py")
    scripts = [path for place in places for path in ROOT.glob(place)]
    today = {kept.read_code(path.read_text())[0] for path in scripts}
    results = [kept.load(path.stem) for path in kept.RESULTS.glob("*.json")]
    measured = {code for result in results for code in result.get("scripts", {}).values()}
    assert kept.SAME.keys() <= today and {*kept.SAME.values()} <= measured


@pytest.mark.parametrize("name", [path.stem for path in kept.RESULTS.glob("*.json")])
def test_the_commands_of_a_result_name_files_that_exist(name):
    """So that it can be measured again."""
    for command in kept.load(name).get("commands", []):
        files = kept.files_in(command)
        assert files and all(file.exists() for file in files), command


# ---- Measuring and writing -------------------------------------------------------------------------


def test_a_measurement_becomes_a_table_and_a_sentence(place, capsys):
    page = measured(place)
    assert "# A page\n\n| what | value |\n| --- | --- |\n| a | 1 |\n\n[Measured on 20" in page
    assert "It was [1 of 1](results/trial.json#all) of them." in page
    result = kept.load("trial")
    assert result["seeds"] == [0] and result["machine"]["cores"] >= 1
    assert ", seeds 0, on" in page and "older" not in page
    capsys.readouterr()
    assert kept.main([]) == 0 and capsys.readouterr().out == ""


@pytest.mark.parametrize("old, new", [("| a | 1 |", "| a | 2 |"), ("1 of 1", "1 of 2")])
def test_a_number_changed_by_hand_is_found(place, capsys, old, new):
    page = measured(place)
    assert old in page
    (place / "page.md").write_text(page.replace(old, new))
    assert kept.main([]) == 1
    assert "page.md says something else than its result" in capsys.readouterr().out
    kept.main(["--write"])
    assert (place / "page.md").read_text() == page


def test_a_sentence_may_go_on_in_the_next_line(place):
    page = measured(place)
    (place / "page.md").write_text(page.replace("1 of 1", "1 of\n1"))
    assert kept.main([]) == 0


@pytest.mark.parametrize(
    "old, new",
    [
        ("# a comment", "# another comment"),
        ('"""A docstring."""', '"""Other words."""'),
        ('    """Another."""\n', ""),
        ('[["a", "1"]]', "[[ 'a',\n     '1', ]]"),
    ],
    ids=["comment", "docstring", "no docstring", "formatting"],
)
def test_what_is_no_code_makes_nothing_older(place, old, new):
    measured(place)
    assert old in SCRIPT
    (place / "script.py").write_text(SCRIPT.replace(old, new))
    assert kept.changed_since("trial") == []


def test_a_page_says_that_a_number_is_of_older_code(place, capsys):
    page = measured(place)
    (place / "script.py").write_text(SCRIPT.replace('"1"', '"2"'))
    assert kept.main([]) == 0  # a reader's change makes no page wrong,
    assert "trial: older code, of 1 files: script.py" in capsys.readouterr().out
    kept.main(["--write"])
    marked = (place / "page.md").read_text()
    assert marked.count(") (older code)") == 2 and marked.replace(" (older code)", "") == page
    assert kept.main([]) == 0  # with the note and without it
    assert "| a | 2 |" in measured(place) and "older" not in (place / "page.md").read_text()


def test_a_script_that_is_imported_counts(place):
    (place / "helper.py").write_text("ONE = 1\n")
    (place / "script.py").write_text("import helper\n" + SCRIPT)
    measured(place)
    assert kept.load("trial")["scripts"].keys() == {"script.py", "helper.py"}
    (place / "helper.py").write_text("ONE = 2\n")
    assert kept.changed_since("trial") == ["helper.py"]


def test_a_stopped_measurement_goes_on_where_it_was(place):
    """The second of three commands is stopped: later the first is not run again."""
    (place / "script.py").write_text(
        "import json, sys, pathlib\n"
        "with open('ran', 'a') as log: print(sys.argv[1], file=log)\n"
        "if sys.argv[1] == '2' and not pathlib.Path('go').exists(): sys.exit(1)\n"
        "print(json.dumps({'columns': ['n'], 'rows': [[sys.argv[1]]]}))\n"
    )
    ask(place, *(f"{sys.executable} script.py {n}" for n in (1, 2, 3)))
    with pytest.raises(SystemExit, match="exit code 1: .* script.py 2"):
        kept.measure("trial")
    assert "rows" not in kept.load("trial")
    (place / "go").touch()
    kept.measure("trial")
    assert (place / "ran").read_text().split() == ["1", "2", "2", "3"]
    assert kept.load("trial")["rows"] == [["1"], ["2"], ["3"]]
    kept.measure("trial")  # asked for again, all of it is measured again
    assert (place / "ran").read_text().split() == ["1", "2", "2", "3", "1", "2", "3"]


@pytest.mark.parametrize("last", ["print('done')", "import sys; sys.exit(3)"])
def test_a_command_that_fails_leaves_no_result_and_is_named(place, last):
    (place / "script.py").write_text(last)
    with pytest.raises(SystemExit, match="script.py"):
        kept.measure("trial")
    assert "rows" not in kept.load("trial")


# ---- seeds.py --------------------------------------------------------------------------------------


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


# ---- What measures ---------------------------------------------------------------------------------


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
