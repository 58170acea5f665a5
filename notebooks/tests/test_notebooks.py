"""The notebooks: each runs from top to bottom, shortened by its parameters, and its saved outputs come from a run.

A cell tagged "parameters" near the top holds plain assignments; the test puts a cell with the values below behind it.
What a cell prints must equal its saved output, unless it depends on a shortened value. Notebooks that sample are only
compared on the kind of CPU that saved them, because other CPUs round, and so sample, differently.
"""

import ast
import base64
import platform
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from conftest import ROOT

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: int(path.stem.split("_")[0]))
SECONDS = 240  # limit for a cell; on an idle machine the longest takes half a minute
SHORT = {  # by the number of the notebook; RUNS is a temporary folder
    "0": {"STEPS": 5, "CHANGED": 5, "PROBLEMS": 4},
    "1": {"STEPS": 2, "G": 8},
    "2": {"PROBLEMS": 2},
    "3": {"STEPS": 2, "PROBLEMS": 4, "N": 4},
    "5": {"STEPS": 2, "SEEDS": [0], "WARMUP": 0},
    "7": {"SEEDS": [0]},
    "10": {"LEVELS": [0.05], "STEPS": [1, 2]},
}
CHEAPER = {  # code for the same cell: fewer problems, no training. What it changes is not compared
    "0": """from notebooks import changes, page
roll_out = page.roll_out
page.roll_out = lambda model, problems, *how: roll_out(model, problems[:20], *how)""",
    "5": """import shutil
from notebooks.look import sharpen
shutil.copytree("notebooks/tiny", f"{RUNS}/rash-seed0")
sharpened = sharpen.main
sharpen.main = lambda args: sharpened([*args, "--problems", "10"])""",
    "7": """from notebooks.autorule import autorule
autorule.train_reward_model = lambda *args, **how: None""",
    "10": """import functools
from notebooks.claims import atlas
make_base = functools.cache(atlas.make_base)
atlas.make_base = lambda seed=0: make_base(0)""",
}
QUICK = {*"12368"}  # these take about ten seconds each; the others need --slow
SAMPLED = {*"0123457", "10"}


def number_of(path):
    return path.stem.partition("_")[0]


def marked(path):
    marks = [] if number_of(path) in QUICK else [pytest.mark.slow]
    return pytest.param(path, marks=marks, id=path.stem)


def names_in(tree, kind):
    """Return the names that are read (ast.Load) or assigned (ast.Store), at any depth."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {node.id for node in names if isinstance(node.ctx, kind)}


def defined_in(tree):
    named = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, named)}


def shorten(cells, values, runs, cheaper=""):
    """Set the values, and RUNS if it is a parameter, in a cell after the parameters. Returns the names that were set."""
    for i, cell in enumerate(cells):
        if "parameters" in cell.metadata.get("tags", []):
            names = names_in(ast.parse(cell.source), ast.Store)
            assert values.keys() <= names, f"{values} are not all in: {cell.source}"
            values = values | dict.fromkeys(names & {"RUNS"}, str(runs))
            lines = [f"{name} = {value!r}" for name, value in values.items()]
            cells.insert(i + 1, nbformat.v4.new_code_cell("\n".join([*lines, cheaper])))
            return {*values}
    assert not values, "there is no cell with the tag parameters"
    return set()


def of_the_saved_size(cells, shortened):
    """Yield the indices of the code cells that do not depend on shortened values. A cell that does may have changed every
    earlier value that it names."""
    other, made = {*shortened}, set()
    for i, cell in enumerate(cells):
        tree = ast.parse(cell.source)
        read = names_in(tree, ast.Load)
        new = names_in(tree, ast.Store) | defined_in(tree)
        if read & other:
            other |= new | read & made
        else:
            yield i
        made |= new


def printed(cell):
    """Return the text that a cell prints, with # for its decimals, and the decimals. Figures and widgets do not count."""
    number = r"-?\d+\.\d+(?:e-?\d+)?|\b\d+e-\d+"
    text = "".join(out["text"] for out in cell.outputs if out.get("name") == "stdout")
    return re.sub(number, "#", text), [float(n) for n in re.findall(number, text)]


def cpu():
    """Return the model name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor()


def execute(notebook, folder):
    how = {"timeout": SECONDS, "startup_timeout": 30, "kernel_name": "python3"}
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **how).execute()


@pytest.mark.parametrize("path", [marked(path) for path in PATHS])
def test_a_notebook_runs_and_prints_what_is_saved_in_it(path, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    saved = [printed(cell) for cell in notebook.cells]
    compared = notebook.cells[:]
    number = number_of(path)
    shortened = shorten(notebook.cells, SHORT.get(number, {}), tmp_path, CHEAPER.get(number, ""))
    try:
        execute(notebook, path.parent)
    except (CellTimeoutError, DeadKernelError, RuntimeError):
        # on a busy machine a kernel sometimes hangs, about once in thirty runs: try again
        execute(notebook, path.parent)
    if number in SAMPLED and notebook.metadata.get("cpu") != cpu():
        return
    if not shutil.which("coqc"):
        shortened |= {"verify_proof"}
    for i in of_the_saved_size(compared, shortened):
        now = printed(compared[i])
        assert now[0] == saved[i][0], compared[i].source
        assert now[1] == pytest.approx(saved[i][1], abs=0.011), compared[i].source


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_as_it_ran(path):
    """It is also small: its figures are PNGs with a palette (PIL: quantize(32, method=MAXCOVERAGE, kmeans=3)), which halves
    its size. They are 700 pixels wide, as look/style.py draws them."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    for output in outputs:
        if png := output.get("data", {}).get("image/png"):
            assert 690 <= int.from_bytes(base64.b64decode(png)[16:20], "big") <= 710
    assert path.stat().st_size < 400_000
    page = (ROOT / "notebooks" / "page.py").read_text()
    for cell in cells:
        lines = cell.source.splitlines()
        short = len(lines) < 15 and max(map(len, lines)) <= 120
        assert short or cell.source in page, cell.source


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_a_question_and_ends_like_the_others(path):
    cells = nbformat.read(path, as_version=4).cells
    assert re.match(r"# .+\n\n\*\*.+\?\*\*\n\n", cells[0].source)
    assert re.fullmatch(r"from lesson import you_are_here\n\nyou_are_here\(.*\)", cells[1].source)
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert re.findall(r"^## (.+)", text, re.M)[-4:] == ["Remember", "Try", "Next", "In the code"]
    *_, remember, questions, following, code = re.split(r"^## .+\n", text, flags=re.M)
    assert len(re.findall(r"^- ", remember, re.M)) == 3
    assert len(re.findall(r"\]\(", following)) == 1 and "](" in code
    answered = r".+?\n\n   <details><summary>Answer</summary>\n\n.+?\n\n   </details>\n*"
    asked = re.split(r"^\d\. ", questions, flags=re.M)[1:]
    assert len(asked) == 3 and all(re.fullmatch(answered, one, re.S) for one in asked)


TEXTS = "text/plain", "text/markdown"


def sections_of(cells):
    """Return [text, what its cells contain and print] for each section, and first for all that precedes them."""
    sections = [["", ""]]
    for cell in cells:
        if cell.cell_type == "markdown":
            first, *others = re.split(r"^(?=## )", cell.source, flags=re.M)
            sections[-1][0] += first + "\n\n"
            sections += [[text + "\n\n", ""] for text in others]
        else:
            data = [out.get("data", {}) for out in cell.outputs]  # not figures: code full of digits
            printed = [out["text"] for out in cell.outputs if "text" in out]
            printed += [each[kind] for each in data for kind in TEXTS if kind in each]
            sections[-1][1] += "\n".join([cell.source, *printed, ""])
    return sections


def numbers_in(text):
    """Yield (text, value, half a unit of the last digit) for each number with a decimal point or a percent sign."""
    for number, percent in re.findall(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)( ?\\?%)?", text):
        unit = 0.01 if percent else 1.0
        if percent or "." in number:
            half = unit * 0.5 / 10 ** len(number.partition(".")[2])
            yield number, unit * float(number.replace(",", "")), half


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_number_in_the_text_is_printed_by_its_section(path):
    """It may also be rounded from a printed number, or part of a formula, of code, or of a sentence that links to its
    source. Remember, and the text before the first section, may quote any section. Answers (Try) are not checked."""
    formula = re.compile(r"\$\$.+?\$\$|\$.+?\$", re.S)
    # Or a section of a chapter.
    code = re.compile(r"```.+?```|`.+?`|[Cc]hapter \d\.\d|\(\d\.\d.*?\)", re.S)
    sections = sections_of(nbformat.read(path, as_version=4).cells)
    everything = "".join(printed for _, printed in sections)
    for text, printed in sections:
        title = text.partition("\n")[0]
        if title in ("## Try", "## Next", "## In the code"):
            continue
        printed = everything if title == "## Remember" or not title.startswith("## ") else printed
        known = "".join([printed, *formula.findall(text), "95 %"])
        seen = [value for _, value, _ in numbers_in(known)]
        seen += map(float, re.findall(r"\b\d+\b", known))
        for sentence in re.split(r"\n\n+|(?<=[.?!:])\s+", code.sub("", formula.sub("", text))):
            for number, value, half in numbers_in(sentence):
                found = "](" in sentence or any(abs(value - one) <= 1.001 * half for one in seen)
                assert found, f"{number} in: {sentence}"
