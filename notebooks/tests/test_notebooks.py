"""The notebooks: each runs from top to bottom, shortened by its parameters, and what is saved in it came from a run.

A cell tagged "parameters" near the top holds plain assignments; the test puts a cell with the values below behind it.
Where nothing but the folder of runs is changed, and nothing is sampled, what is printed must be what is saved.
"""

import ast
import json
import re

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from conftest import ROOT

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
SECONDS = 240  # for a cell; the longest takes half a minute on a quiet machine, and machines are busy at times
SMALL = "--prompts-per-step 2 --num-samples 2 --eval-problems 2".split()
SHORT = {  # by the number of the notebook; RUNS is a temporary folder, MODEL one with random weights
    "0": {"STEPS": 5, "ROLLOUTS": 8, "PROBLEMS": 4},
    "2": {"PROBLEMS": 2},
    "5": {"STEPS": 2, "SEEDS": [0], "WARMUP": 0},
    "1": {"STEPS": 2, "G": 8},
    "3": {"STEPS": 2, "PROBLEMS": 4, "N": 4},
    "7": {"SEEDS": [0]},
    "8": {"SEEDS": [0], "STEPS": 1, "SHORT_STEPS": 1, "PROBLEMS": 2, "SAMPLES": 8, "EXTRA": SMALL},
}
QUICK = {
    "1",
    "2",
    "3",
    "6",
}  # run with every change, in some ten seconds each; the others with --slow
SAMPLED = {*"01234578", "10"}  # hold sampled texts, and other machines round and so draw otherwise
OWN = {"0": {"train_rlvr"}}  # what a notebook may define as a script does: the chapter's version


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def assigned(tree):
    """Names that are bound by def, class or assignment, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (
                name.id
                for target in node.targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            )


def shorten(notebook, values, **places):
    """Put the values, and those of the places that it names, behind the parameters cell."""
    for i, cell in enumerate(notebook.cells):
        if "parameters" in cell.metadata.get("tags", []):
            names = {*assigned(ast.parse(cell.source))}
            assert values.keys() <= names, f"{values} are not all in: {cell.source}"
            values = values | {name: str(places[name]) for name in names & places.keys()}
            new = nbformat.v4.new_code_cell(
                "\n".join(f"{name} = {value!r}" for name, value in values.items())
            )
            return notebook.cells.insert(i + 1, new)
    assert not values, "there is no cell with the tag parameters"


def printed(cells, runs):
    """What the cells print, without numbers, and the numbers. Figures and widgets are not compared."""
    text = "".join(
        "".join(output["text"])
        for cell in cells
        if cell["cell_type"] == "code"
        for output in cell["outputs"]
        if output["output_type"] == "stream"
    )
    number = r"-?\d+\.\d+(?:e-?\d+)?|\b\d+e-\d+"
    text = text.replace(str(runs), "runs")
    return re.sub(number, "#", text), [float(n) for n in re.findall(number, text)]


def execute(notebook, folder):
    NotebookClient(
        notebook,
        timeout=SECONDS,
        startup_timeout=30,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()


@pytest.mark.parametrize(
    "path",
    [
        path if path.stem.partition("_")[0] in QUICK else pytest.param(path, marks=pytest.mark.slow)
        for path in PATHS
    ],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_prints_what_is_saved_in_it(path, tmp_path, monkeypatch, any_text):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    saved = printed(notebook.cells, "runs")
    shorten(notebook, SHORT.get(path.stem.partition("_")[0], {}), RUNS=tmp_path, MODEL=any_text)
    try:
        execute(notebook, path.parent)
    except (CellTimeoutError, DeadKernelError, RuntimeError):
        # once in some thirty runs, on a busy machine, a kernel stood still and never said so
        execute(notebook, path.parent)
    now = printed(notebook.cells, tmp_path)
    if path.stem.partition("_")[0] not in SAMPLED:
        assert now[0] == saved[0] and now[1] == pytest.approx(saved[1], abs=0.011)


@each_notebook
def test_a_notebook_is_saved_as_it_ran(path):
    """And is small: its pictures are PNGs with a palette (PIL: quantize(32, method=MAXCOVERAGE, kmeans=3)), without which
    all notebooks together were twice as large."""
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs and not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert path.stat().st_size < 400_000


@each_notebook
def test_cells_are_short_and_import_the_scripts(path):
    """What a script defines is imported, and neither defined again nor written over: the reader sees what will run."""
    modules = [*ROOT.glob("*.py"), *(ROOT / "notebooks").rglob("*.py")]
    scripts = {module.stem: ast.parse(module.read_text()) for module in modules}
    theirs = {
        node.name
        for script in ("verifiers", "model", "rlvr", "eval", "train")
        for node in scripts[script].body
        if hasattr(node, "name")
    }
    imported = set()
    own = OWN.get(path.stem.partition("_")[0], set())
    for cell in code_cells(path):
        source = "".join(cell["source"])
        assert len(source.splitlines()) < 15 and all(
            len(line) <= 120 for line in source.splitlines()
        ), source
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module in scripts:
                imported |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                assert node.name not in theirs - own, f"a script defines {node.name}: {source}"
        assert not imported & {*assigned(ast.parse(source))}, source


def test_the_short_values_belong_to_notebooks():
    assert SHORT.keys() <= SAMPLED <= {path.stem.partition("_")[0] for path in PATHS}


def questions(path):
    """NOTEBOOK.QUESTION of each numbered line below a heading Try."""
    cells = json.loads(path.read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    _, _, below = text.partition("## Try\n")
    return re.findall(r"^(\d)\. ", below, flags=re.M)


def test_path_answers_every_question():
    """And no others."""
    _, _, page = (ROOT / "notebooks" / "PATH.md").read_text().partition("## Answers to Try")
    answers = re.findall(r"^\*\*(\d+)\.\*\* (.*?)(?=^\*\*|^## )", page, flags=re.M | re.S)
    answered = {number: re.findall(r"(?:^|\s)(\d): ", text) for number, text in answers}
    asked = {path.stem.partition("_")[0]: questions(path) for path in PATHS}
    assert answered == {number: found for number, found in asked.items() if found}
