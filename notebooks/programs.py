"""Programs from the hub's data sets as tasks: for each format a function from a row to a problem.

    train.py --task notebooks/programs.py:kodcode    (or taco, apps, livecodebench, mbpp, leetcode)

A problem has "tests", asserts for verify_code or pairs (input, output) for verify_stdio, and what
the data says of them: "entry_points", names that are the program's, and "before", code that runs
ahead of it. What tests need of pytest and numpy beyond what sandbox.py has comes ahead as well
(PACKAGES). The readers are tried on rows that tests/test_programs.py writes in these formats; the
addresses of the hub are unverified.
"""

import ast
import base64
import io
import json
import pickle
import zlib
from pathlib import Path

import _root
from rewards import task_faults
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


def read_apps(row):
    """APPS and TACO: input_output is {"inputs", "outputs"}, and "fn_name" for a function."""
    cases = _json(row["input_output"])
    pairs = [*zip(cases["inputs"], cases["outputs"])]
    name = cases.get("fn_name")
    if name is None:
        tests = [(_lines(given), _lines(expected)) for given, expected in pairs]
        return problem(row["question"], tests)
    function, entry_points = _function(name, row.get("starter_code", ""))
    tests = []
    for arguments, expected in pairs:
        values = [expected]
        if isinstance(expected, list) and len(expected) == 1:
            values += expected  # some rows wrap the result in a list, and do not say which
        tests.append(f"assert {function}(*{arguments!r}) in {values!r}")
    return problem(row["question"], tests, entry_points)


def read_livecodebench(row):
    """Public and private tests, on standard input or of the function that metadata names."""
    cases = _json(row["public_test_cases"]) + _private(row.get("private_test_cases", "[]"))
    tests = []
    entry_points = None
    for case in cases:
        if case["testtype"] == "stdin":
            tests.append((case["input"], case["output"]))
        else:
            name = _json(row["metadata"])["func_name"]
            function, entry_points = _function(name, row.get("starter_code", ""))
            arguments = [json.loads(line) for line in case["input"].splitlines() if line.strip()]
            tests.append(f"assert {function}(*{arguments!r}) == {json.loads(case['output'])!r}")
    if len({type(test) for test in tests}) > 1:
        raise DataError("a problem has tests of both kinds, stdin and functional")
    return problem(row["question_content"], tests, entry_points)


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
    is_test = [getattr(node, "name", "").startswith("test") for node in tree.body]
    shared = [node for node, test in zip(tree.body, is_test) if not test]
    tests = [node for node, test in zip(tree.body, is_test) if test]
    files = [ast.Module([*shared, test], []) for test in tests] or [tree]
    return problem(row["question"], [ast.unparse(file) for file in files], before=PACKAGES)


def read_leetcode(row):
    """LeetCodeDataset: prompt has imports and helpers (ListNode), check(candidate) the asserts."""
    (check,) = (node for node in ast.parse(row["test"]).body if isinstance(node, ast.FunctionDef))
    function = row["entry_point"]
    tests = [f"candidate = {function}\n{ast.unparse(line)}" for line in check.body]
    if not all(isinstance(line, ast.Assert) for line in check.body):
        tests = [f"{row['test']}\ncheck({function})"]
    text = row.get("query") or f"{row['problem_description']}\n\n{row['starter_code']}"
    name = function.partition("(")[0].partition(".")[0]
    return problem(text, tests, [name], row["prompt"] + "\n")


# ---- What they share -----------------------------------------------------------------------------


def problem(text, tests, entry_points=None, before=""):
    if not tests:
        raise DataError("a problem has no tests")
    answer = "\n".join(
        test if isinstance(test, str) else f"{test[0]} -> {test[1]}" for test in tests
    )
    row = {"problem": text, "answer": answer, "tests": tests, "before": before}
    return row | ({"entry_points": entry_points} if entry_points else {})


def defined(code):
    """The functions and classes of a reference solution."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in ast.parse(code).body if isinstance(node, kinds)]


def _function(name, starter):
    """How a test calls it: LeetCode's functions are methods of class Solution."""
    is_method = "class Solution" in starter
    return (f"Solution().{name}", ["Solution"]) if is_method else (name, [name])


def _lines(text):
    """APPS has some texts as lists of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _json(value):
    return json.loads(value) if isinstance(value, str) else value


class _TextOnly(pickle.Unpickler):
    """A pickle may run anything when it is read: this one reads plain values only."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a pickle of {module}.{name}")


def _private(text):
    """LiveCodeBench packs its private tests: JSON in a pickle in zlib in base64."""
    try:
        return _json(text)
    except ValueError:
        packed = zlib.decompress(base64.b64decode(text))
        return _json(_TextOnly(io.BytesIO(packed)).load())


def usable(problems):
    """(those whose tests can tell programs apart, {problem: {test: why}} for the others)."""
    faults = {}
    for row in problems:
        if isinstance(row["tests"][0], str):
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


def apps() -> Task:
    """Hendrycks et al. 2021, arXiv 2105.09938."""
    return _hub("codeparrot/apps", read_apps, "train.jsonl")


def taco() -> Task:
    """Li et al. 2023, arXiv 2312.14852."""
    return _hub("BAAI/TACO", read_apps, "train*.parquet", "ALL/train*.parquet")


def livecodebench() -> Task:
    """Jain et al. 2024, arXiv 2403.07974."""
    return _hub("livecodebench/code_generation_lite", read_livecodebench, "test*.jsonl")


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


def leetcode() -> Task:
    """Xia et al. 2025, arXiv 2504.14655."""
    return _hub("newfacade/LeetCodeDataset", read_leetcode, "*train*.jsonl")
