"""Numbers on the pages come from notebooks/results, and a result knows which code it was measured with."""

import json
import re
import sys

import pytest

from notebooks import results
from notebooks.claims import bases, seeds

SCRIPT = '''"""A docstring."""
import json, sys


def rows():
    """Another."""
    return [["a", "1"]]  # a comment


print(json.dumps({"columns": ["what", "value"], "rows": rows(), "seeds": [0], "sentences": {"all": "1 of 1"}}))
'''
PAGE = """# A page

<!-- results: trial -->
<!-- end -->

It was <!-- results: trial all --><!-- end --> of them.
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project of one page and one measurement, of a script that also notes that it ran."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results, "PAGES", [tmp_path / "page.md"])
    monkeypatch.setattr(results, "FOLDERS", [tmp_path])
    trial = results.Measurement([f"{sys.executable} script.py"], minutes=0)
    monkeypatch.setattr(results, "MEASUREMENTS", {"trial": trial})
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path


def exit_code(*flags):
    """0 if the command ends as it should."""
    try:
        results.main([*flags])
    except SystemExit as stop:
        return stop.code or 0
    return 0


# ---- The pages of this repository ------------------------------------------------------------------


def test_the_pages_say_what_the_results_say():
    assert results.differing_pages() == []


def test_every_mark_has_a_result_and_every_measurement_a_place():
    marks = [m for page in results.PAGES for m in results.MARKED.findall(page.read_text())]
    shown = {name for _, name, *_ in marks}
    assert all((results.RESULTS / f"{name}.json").exists() for name in shown)
    assert results.MEASUREMENTS.keys() <= shown


@pytest.mark.parametrize("name", results.MEASUREMENTS)
def test_the_commands_of_a_measurement_name_files_that_exist(name):
    measurement = results.MEASUREMENTS[name]
    assert measurement.minutes > 0 and measurement.commands
    for command in measurement.commands:
        files = results.files_in(command)
        assert files and all(file.exists() for file in files), command
    core = {"verifiers.py", "grading.py"}  # nothing is measured without rules; bases only collects
    assert core <= results.scripts_of(name).keys() or name in ("ranks", "bases")


# ---- Measuring and writing -------------------------------------------------------------------------


def test_a_measurement_becomes_a_table_and_a_sentence(place, capsys):
    assert exit_code("--run") == 0 and exit_code("--write") == 0 and exit_code("--check") == 0
    page = (place / "page.md").read_text()
    assert "\n| what | value |\n| --- | --- |\n| a | 1 |\n" in page
    assert "It was <!-- results: trial all -->1 of 1<!-- end --> of them." in page
    result = json.loads((place / "results" / "trial.json").read_text())
    assert result["seeds"] == [0] and result["machine"]["cores"] >= 1
    assert "seeds 0" in page and "Stale" not in page
    capsys.readouterr()
    assert exit_code("--stale") == 0 and capsys.readouterr().out == ""


def test_a_number_changed_by_hand_fails_the_check(place):
    exit_code("--run")
    exit_code("--write")
    for old, new in (("| a | 1 |", "| a | 2 |"), ("1 of 1", "1 of 2")):
        page = (place / "page.md").read_text()
        assert old in page
        (place / "page.md").write_text(page.replace(old, new))
        assert exit_code("--check") == "page.md differs from its results"
        (place / "page.md").write_text(page)
    assert exit_code("--check") == 0


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
def test_what_is_no_code_makes_nothing_stale(place, old, new):
    exit_code("--run")
    assert old in SCRIPT
    (place / "script.py").write_text(SCRIPT.replace(old, new))
    assert results.changed_since("trial") == []


def test_other_code_makes_a_table_stale_and_the_page_says_so(place, capsys):
    exit_code("--run")
    exit_code("--write")
    (place / "script.py").write_text(SCRIPT.replace('"1"', '"2"'))
    assert exit_code("--check") == 0  # a reader's change does not turn the suite red,
    capsys.readouterr()
    assert exit_code("--stale") == 0 and capsys.readouterr().out == "trial: script.py\n"
    exit_code("--write")
    assert (place / "page.md").read_text().count(
        "*(Stale: 1 of its files have changed since.)*"
    ) == 2
    assert exit_code("--check") == 0  # with the note and without it
    exit_code("--run")
    assert exit_code("--check") == "page.md differs from its results"  # until it is written again
    exit_code("--write")
    page = (place / "page.md").read_text()
    assert "| a | 2 |" in page and "Stale" not in page


def test_a_script_that_is_imported_counts(place):
    (place / "helper.py").write_text("ONE = 1\n")
    (place / "script.py").write_text("import helper\n" + SCRIPT)
    exit_code("--run")
    assert results.load("trial")["scripts"].keys() == {"script.py", "helper.py"}
    (place / "helper.py").write_text("ONE = 2\n")
    assert results.changed_since("trial") == ["helper.py"]


def test_a_stopped_queue_goes_on_where_it_was(place, monkeypatch):
    """The second of three commands is stopped: later the first is not run again."""
    (place / "script.py").write_text(
        "import json, sys, pathlib\n"
        "with open('ran', 'a') as log: print(sys.argv[1], file=log)\n"
        "if sys.argv[1] == '2' and not pathlib.Path('go').exists(): sys.exit(1)\n"
        "print(json.dumps({'columns': ['n'], 'rows': [[sys.argv[1]]]}))\n"
    )
    commands = [f"{sys.executable} script.py {n}" for n in (1, 2, 3)]
    trial = results.Measurement(commands, minutes=0)
    monkeypatch.setattr(results, "MEASUREMENTS", {"trial": trial})
    assert "exit code 1" in exit_code("--run") and not (place / "results").exists()
    (place / "go").touch()
    assert exit_code("--run", "trial") == 0
    assert (place / "ran").read_text().split() == ["1", "2", "2", "3"]
    assert results.load("trial")["rows"] == [["1"], ["2"], ["3"]]
    assert exit_code("--run") == 0  # nothing is stale, nothing runs
    assert (place / "ran").read_text().split() == ["1", "2", "2", "3"]


@pytest.mark.parametrize("last", ["print('done')", "import sys; sys.exit(3)"])
def test_a_command_that_fails_leaves_no_result_and_is_named(place, last):
    (place / "script.py").write_text(last)
    assert "script.py" in exit_code("--run") and not results.load("trial")


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


def test_the_table_of_the_base_models_says_where_each_number_is_from():
    """tiny's row: one greedy accuracy, and the mean of five draws between the lowest and the highest."""
    rows = bases.table()
    assert rows[0][0] == "tiny, one base" and rows[0][4] == "`main`"
    runs = results.load("main")["details"][0]["runs"]
    drawn = [run["sampled"]["0"] for run in runs]
    assert float(rows[0][2]) == runs[0]["greedy"]["0"]
    mean, low, high = map(float, re.findall(r"\.\d+", rows[0][3]))
    assert (low, high) == (min(drawn), max(drawn)) and mean == round(sum(drawn) / len(drawn), 3)
    for base, _, _, sampled, source in rows:
        assert sampled.startswith("."), base
        assert results.load(source.strip("`")), source
