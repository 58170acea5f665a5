"""Programs from the hub's data sets as tasks: for each format a function from a row to a problem.

    train.py --task notebooks/tasks/programs.py:kodcode    (or mbpp, mbpp_plus, humaneval_plus)

A problem has "tests", asserts for verify_code, and what the data says of them: "entry_points", names
that are the program's, and "before", code that runs ahead of it. What tests need of pytest and numpy
beyond what sandbox.py has comes ahead as well (PACKAGES). The readers are tried on rows that
tests/test_programs.py writes in these formats; the addresses of the hub are unverified.
"""

import ast
import json
from pathlib import Path

from notebooks.rewards.program_parts import task_faults
from verifiers import PROGRAM, DataError, Task, code_reward, held_out

# For tests: raises and approx are sandbox.py's. Only the judge, which runs the tests, has a pytest.
PACKAGES = """
import sys, types

def _allclose(x, y, rtol=1e-5, atol=1e-8):
    if isinstance(y, (list, tuple)):
        return len(x) == len(y) and all(_allclose(a, b, rtol, atol) for a, b in zip(x, y))
    return abs(x - y) <= atol + rtol * abs(y)

def _parametrize(names, rows, **_):
    if isinstance(names, str):
        names = names.replace(",", " ").split()
        rows = rows if len(names) > 1 else [[row] for row in rows]
    def mark(function):
        def run(*instance, **given):  # marks on top of one another multiply
            for row in rows:
                function(*instance, **given, **dict(zip(names, row)))
        return run
    return mark

if "pytest" in sys.modules:
    sys.modules["pytest"].mark = types.SimpleNamespace(parametrize=_parametrize)
    sys.modules["numpy"].allclose = _allclose
"""


# ---- One row of each format -> a problem ---------------------------------------------------------


def read_mbpp(row):
    """MBPP: asserts, and a reference solution whose functions are the entry points."""
    before = row.get("test_setup_code") or "\n".join(row.get("test_imports") or [])
    text = row.get("text") or row["prompt"]
    tests = [*row["test_list"]]
    return problem(
        f"{text}\nYour code should pass: {tests[0]}", tests, defined(row["code"]), before
    )


def read_evalplus(row):
    """HumanEval+ (a prompt, an entry point, a check) and MBPP+ (a script)."""
    if "entry_point" not in row:
        text = f"{row['prompt']}\nYour code should pass: {row['test_list'][0]}"
        return problem(text, [row["test"]], defined(row["code"]), PACKAGES)
    name = row["entry_point"]
    text = f"Complete this program:\n\n```python\n{row['prompt']}```"
    before = f"{row['prompt']}\n{PACKAGES}"
    return problem(text, [f"{row['test']}\ncheck({name})"], [name], before)


def read_kodcode(row):
    """KodCode: a file for pytest that imports from the solution; each test function is a test."""
    tree = ast.parse(row["test"])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "setup_method":
            node.name = "setUp"  # as unittest calls it, which runs the classes
            node.args.args = node.args.args[:1]
    ask_fixtures(tree)
    is_test = [getattr(node, "name", "").startswith("test") for node in tree.body]
    shared = [node for node, test in zip(tree.body, is_test) if not test]
    tests = [node for node, test in zip(tree.body, is_test) if test]
    files = [ast.Module([*shared, test], []) for test in tests] or [tree]
    return problem(row["question"], [ast.unparse(file) for file in files], before=PACKAGES)


def ask_fixtures(tree):
    """pytest's fixtures as default arguments: def test_pop(stack=stack()), or next(stack()) where the fixture
    yields."""
    made = {}  # name of a fixture: its call
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        marks = [mark for mark in node.decorator_list if "fixture" in ast.unparse(mark)]
        node.decorator_list = [mark for mark in node.decorator_list if mark not in marks]
        names = [argument.arg for argument in node.args.args]
        known = [name for name in names if name in made]
        if known and names[-len(known) :] == known:  # those of parametrize stand before them
            node.args.defaults = [ast.parse(made[name], mode="eval").body for name in known]
        if marks:
            yields = any(isinstance(part, ast.Yield) for part in ast.walk(node))
            made[node.name] = f"next({node.name}())" if yields else f"{node.name}()"


# ---- What they share -----------------------------------------------------------------------------


def problem(text, tests, entry_points=None, before=""):
    if not tests:
        raise DataError("a problem has no tests")
    row = {"problem": text, "answer": "\n".join(tests), "tests": tests, "before": before}
    return row | ({"entry_points": entry_points} if entry_points else {})


def defined(code):
    """The functions and classes of a reference solution."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in ast.parse(code).body if isinstance(node, kinds)]


def usable(problems):
    """(those whose tests can tell programs apart, {problem: {test: why}} for the others)."""
    faults = {}
    for row in problems:
        given = {key: row[key] for key in ("entry_points", "before") if key in row}
        faults[row["problem"]] = task_faults(row["tests"], **given)
    return [row for row in problems if not faults.get(row["problem"])], {
        text: found for text, found in faults.items() if found
    }


def task(name, rows, read, test_rows=None):
    """A task out of rows. Problems with a faulty test are left out, and counted in its note."""
    problems, faults = usable([read(row) for row in rows])
    test = [row for row in problems if held_out(row)]
    train = [row for row in problems if not held_out(row)]
    if test_rows is not None:
        test, more = usable([read(row) for row in test_rows])
        train, faults = problems, faults | more
    if not problems:
        first = next(iter(faults.items()), "no rows")
        raise DataError(f"{name}: no problem has usable tests; the first one: {first}")
    note = f"{name}: {len(train) + len(test)} problems, {len(faults)} left out for a faulty test"
    return Task(name, train, test, PROGRAM, code_reward, note)


def _hub(name, read, *files):
    return task(name.rpartition("/")[2].lower(), _rows(name, *files), read)


def _rows(name, *patterns):
    """The rows of a data set on the hub, from its JSON lines or its parquet files."""
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
    files = sorted(path for pattern in patterns for path in folder.rglob(pattern) if path.is_file())
    if not files:
        raise DataError(f"{name}: holds no {' or '.join(patterns)}")
    rows = []
    for file in files:
        rows += read_rows(file)
    return rows


def read_rows(path):
    """All rows of a .jsonl, .json or .parquet file, as dicts."""
    if str(path).endswith(".parquet"):
        import pyarrow.parquet

        return pyarrow.parquet.read_table(path).to_pylist()
    text = Path(path).read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def mbpp() -> Task:
    """Austin et al. 2021, arXiv 2108.07732."""
    return _hub(
        "google-research-datasets/mbpp", read_mbpp, "full/train*.parquet", "full/test*.parquet"
    )


def humaneval_plus() -> Task:
    """Liu et al. 2023, arXiv 2305.01210."""
    return _hub("evalplus/humanevalplus", read_evalplus, "data/*.parquet")


def mbpp_plus() -> Task:
    return _hub("evalplus/mbppplus", read_evalplus, "data/*.parquet")


def kodcode() -> Task:
    """Xu et al. 2025, arXiv 2503.02951."""
    return _hub("KodCode/KodCode-V1-SFT-R1", read_kodcode, "data/train*.parquet")
