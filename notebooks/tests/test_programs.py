"""programs.py: a row of each data set's format, as the hub has it; a right program is paid, a wrong one is not."""

# ruff: noqa: E501  (programs and their tests are strings)

import json
import os

import pytest

from notebooks.rewards.program_parts import check_tests
from notebooks.tasks import programs
from verifiers import DataError, code_reward

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs need fork")


def earned(problem, code):
    return code_reward(f"```python\n{code}\n```", problem)[0]


def is_judged(problem, right, wrong):
    """The right program earns all, the wrong one and the empty one nothing, and no test is faulty."""
    assert earned(problem, right) == 1.0
    assert earned(problem, wrong) == earned(problem, "pass") == 0.0
    assert programs.usable([problem]) == ([problem], {})


ADD = "def add(a, b): return a + b"


def test_mbpp_asks_for_the_functions_of_its_reference():
    row = {
        "text": "Write add.",
        "code": ADD,
        "test_setup_code": "",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 1) == max(0, 1)"],
    }
    assert programs.read_mbpp(row)["entry_points"] == ["add"]
    is_judged(programs.read_mbpp(row), ADD, "def add(a, b): return 7\ndef max(*x): return 7")


PLUS = """
import numpy as np
def is_floats(x): return isinstance(x, float)
def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp): atol = 1e-6
    if out != exp and atol != 0: assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else: assert out == exp
"""


def test_humaneval_plus_and_mbpp_plus():
    check = f"{PLUS}\ndef check(candidate):\n    for a, b in [(1, 2), (0.1, 0.2)]:\n        assertion(candidate(a, b), a + b, 0)\n"
    row = {"prompt": 'def add(a, b):\n    """Add."""\n', "entry_point": "add", "test": check}
    is_judged(programs.read_evalplus(row), ADD, "def add(a, b): return 7")
    script = f"{PLUS}\nfor x, y in zip([[1, 2], [3, 4]], [3, 7]):\n    assertion(add(*x), y, 0)"
    row = {
        "prompt": "Write add.",
        "code": ADD,
        "test_list": ["assert add(1, 2) == 3"],
        "test": script,
    }
    is_judged(programs.read_evalplus(row), ADD, "def add(a, b): return 7")


def test_kodcode_runs_each_test_function():
    file = (
        "from solution import add\nimport pytest\nTWO = 2\n\ndef test_one():\n    assert add(1, TWO) == 3\n\n"
        "def test_error():\n    with pytest.raises(TypeError):\n        add(1, 'a')\n"
    )
    problem = programs.read_kodcode({"question": "Write add.", "test": file})
    assert len(problem["tests"]) == 2
    is_judged(problem, ADD, "def add(a, b): return None")


KODCODE = [
    "@pytest.mark.parametrize('x, y', [(1, 2), (2, 3)])\n@pytest.mark.parametrize('z', [0, 1])\n"
    "def test_f(x, y, z):\n    assert add(x, 1) + z == y + z",
    "class TestF:\n    def setup_method(self, method):\n        self.one = 1\n    def test_it(self):\n        assert add(0, 1) == self.one",
]


@pytest.mark.parametrize("hand", ["return", "yield"])
def test_kodcodes_fixtures_are_made_for_each_test(hand):
    file = (
        "import pytest\nfrom solution import add\n\n"
        f"@pytest.fixture\ndef three():\n    {hand} [1, 2, 3]\n\n"
        "@pytest.fixture\ndef sums(three):\n    return [add(n, n) for n in three]\n\n"
        "def test_sums(sums):\n    assert sums == [2, 4, 6]\n\n"
        "@pytest.mark.parametrize('n', [4, 5])\ndef test_more(n, three):\n"
        "    assert [add(n, one) for one in three] == [n + 1, n + 2, n + 3]\n"
    )
    problem = programs.read_kodcode({"question": "Write add.", "test": file})
    assert len(problem["tests"]) == 2
    is_judged(problem, ADD, "def add(a, b): return 7")


@pytest.mark.parametrize("test", KODCODE)
def test_kodcode_uses_more_of_pytest_than_raises(test):
    file = f"from solution import add\nimport pytest\n{test}"
    problem = programs.read_kodcode({"question": "Write add.", "test": file})
    last_is_wrong = "def add(a, b): return a + b if a == 1 else 7"
    is_judged(problem, ADD, last_is_wrong)


def test_a_task_leaves_faulty_problems_out_and_says_so(tmp_path):
    good = [
        {
            "text": f"Add {n}.",
            "code": f"def add{n}(a): return a + {n}",
            "test_list": [f"assert add{n}(1) == {n + 1}"],
        }
        for n in range(12)
    ]
    bad = {"text": "No.", "code": "def f(): pass", "test_list": ["assert near(f(1), 2)"]}
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [*good, bad])))
    task = programs.task("mine", programs.read_rows(tmp_path / "rows.jsonl"), programs.read_mbpp)
    assert len(task.train) + len(task.test) == 12 and "1 left out" in task.note
    with pytest.raises(DataError, match="near"):
        programs.task("mine", [bad], programs.read_mbpp)


def test_weak_tests_are_found_before_training():
    """f(x) == x is passed by an echo; of 5, 8, 5, 13 the constant 5 passes half; and some tests nobody passes."""
    echo, good, broken = check_tests(
        [
            {"tests": ["assert f(1) == 1", "assert f(2) == 2"]},
            {
                "tests": [
                    "assert f(1) == 5",
                    "assert f(2) == 8",
                    "assert f(3) == 5",
                    "assert f(4) == 13",
                ]
            },
            {
                "tests": [
                    "assert f(1) == 2",
                    "def check(f):\n    assert f(1) == 2",
                    "assert near(f(1), 2)",
                    "assert f(2 == 2",
                ]
            },
        ]
    )
    assert echo["echo"] == 1.0 and echo["broken"] == {}
    assert good == {"empty": 0.0, "echo": 0.0, "constant": 0.5, "value": "5", "broken": {}}
    assert (broken["empty"], broken["constant"], broken["value"]) == (0.0, 0.25, "2")
    assert broken["broken"] == {
        "def check(f):\n    assert f(1) == 2": "the test asks nothing of the program",
        "assert near(f(1), 2)": "NameError: name 'near' is not defined",
        "assert f(2 == 2": "SyntaxError: '(' was never closed",
    }
