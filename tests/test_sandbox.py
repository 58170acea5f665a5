"""sandbox.py against honest, wrong and hostile programs, which really try their attacks."""

# ruff: noqa: E501  (programs and their tests are strings)

import contextlib
import gzip
import json
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from appendix import sandbox
from appendix.sandbox import read_tests
from verifiers import code_reward, verify_code, verify_stdio

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="programs are run only where there is fork"
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the protections of Linux")

WORDS = ["racecar", "hello", "", "ab", "abba"]
PALINDROME = [f"assert is_palindrome({word!r}) == {word == word[::-1]}" for word in WORDS]
SQUARE = [f"assert square({n}) == {n * n}" for n in (2, -3, 0, 7, 10)]
SECRET = ["assert answer(17) == 90210", "assert answer(4) == -311", "assert answer(58) == 77713"]
ASKS_NOTHING = "the test asks nothing of the program"


def frac(code, tests, **limits):
    return verify_code(code, tests, **limits)["frac"]


def passes(code, *tests):
    """Check that all tests pass."""
    assert verify_code(code, list(tests))["why"] == ["passed"] * len(tests)


def fails(code, *tests):
    """Check that no test passes."""
    assert "passed" not in verify_code(code, list(tests))["why"]


# ---- What honest programs get --------------------------------------------------------------------


def test_the_reward_is_the_share_of_tests_passed():
    """ "Rule-based rewards": 5 of 5 is 1.0, 3 of 5 is 0.6, none is 0.0; always saying True passes 3 of 5 palindromes."""
    result = verify_code("def is_palindrome(s):\n    return s == s[::-1]", PALINDROME)
    assert (result["tests_passed"], result["tests_total"], result["frac"]) == (5, 5, 1.0)
    assert result["why"] == ["passed"] * 5
    assert frac("def is_palindrome(s):\n    return True", PALINDROME) == 0.6
    result = verify_code("def is_palindrome(s):\n    return s[10]", PALINDROME)
    assert result["frac"] == 0.0 and result["why"][0] == "IndexError: string index out of range"


UNLOADABLE = ["", "def square(x):\n  return x*x\n oops(", "x = '\ud800'", "import sys\nsys.exit(0)"]
UNLOADABLE += ["while True: pass", "import numpy", "a\0b", "#" * 2**24]


@pytest.mark.parametrize("code", UNLOADABLE)
def test_a_program_that_cannot_be_loaded_passes_nothing(code):
    result = verify_code(code, SQUARE, timeout=0.5)
    assert result["frac"] == 0.0 and all(result["why"])


VALUES = """(1, [2, (3,)]); {1, 2}; frozenset({1}); {'a': [None, True], 2: {}}; b'xy'; bytearray(b'x'); 2.5
1+2j; float('inf'); 2**20000; str(2**20000); -2**63; 'h\\u00e9 \\ud800 \\n'; range(3); array.array('i', [1])
Counter('aab'); OrderedDict(a=1); defaultdict(list, a=[1]); deque([1], 3); Decimal('0.10'); Fraction(1, 3)
date(2024, 2, 29); time(1, 2); datetime(2024, 2, 29, 1, 2, 3, 4); timedelta(1, 2, 3)
datetime(2024, 2, 29, tzinfo=timezone.utc)"""


@pytest.mark.parametrize("expression", VALUES.replace("\n", "; ").split("; "))
def test_plain_values_cross_with_their_types(expression):
    imports = "import array\nfrom collections import *\nfrom decimal import *\nfrom fractions import *\nfrom datetime import *\n"
    code = f"{imports}def f(x): return {expression}\ndef back(x): return [x] == [f(0)]"
    value = f"{imports}value = {expression}\nassert f(0) == value and type(f(0)) == type(value)"
    names = ["f", "back"]
    assert frac(code, [value, "assert [back(f(0))] == [True]"], entry_points=names) == 1.0


def test_a_subclass_crosses_as_its_base_and_other_objects_equal_nothing():
    code = (
        "import enum, collections\nclass K(enum.IntEnum):\n    A = 4\nP = collections.namedtuple('P', 'x y')\n"
        "def f(x): return [(1, 2), K.A, P(1, 2), ..., object()][x]"
    )
    passes(code, "assert f(0) != [1, 2]", "assert f(1) == 4")
    cache = "class LRU(collections.OrderedDict):\n    def put(self, k): self[k] = 1"
    passes(f"import collections\n{cache}", "c = LRU()\nc.put(5)\nassert len(c) == 1 and 5 in c")
    passes(code, "p = f(2)\nassert p == (1, 2) and p.y == 2 and str(p) == 'P(x=1, y=2)'")
    fails(code, "assert f(3) == ...", "assert f(4) == object()")


def test_objects_closures_generators_coroutines_threads_and_callbacks_work():
    code = """
from dataclasses import dataclass
class Stack:
    def __init__(self, items=()): self.items = list(items)
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __eq__(self, other): return self.items == other.items
class Empty(Exception): pass
class VeryEmpty(Empty): pass
@dataclass(order=True)
class Vector:
    x: int
    y: 'int'
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __getitem__(self, i): return [self.x, self.y][i]
def adder(n): return lambda x: x + n
def count(n):
    for i in range(n): yield i
def twice(f, x): return f(f(x))
def fail(): raise VeryEmpty('nothing', 'here')
import asyncio
from concurrent.futures import ThreadPoolExecutor
async def later(x): return x * 2
def now(x): return asyncio.run(later(x))
def threads(n):
    with ThreadPoolExecutor(8) as pool: return list(pool.map(abs, range(n)))
"""
    passes(
        code,
        "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and len(s) == 1",
        "try:\n    Stack().pop()\n    assert False\nexcept IndexError:\n    pass",
        "try:\n    fail()\n    assert False\nexcept Empty as error:\n    assert error.args == ('nothing', 'here')",
        "assert adder(3)(4) == 7",
        "assert now(3) == 6",
        "import asyncio\nassert asyncio.run(later(3)) == 6",
        "assert threads(20) == list(range(20))",
        "assert list(count(3)) == [0, 1, 2]",
        "assert twice(lambda x: x + 3, 1) == 7",
        "assert twice(lambda x: twice(lambda y: y + 1, x), 0) == 4",
        "assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2])",
        "assert isinstance(Stack(), Stack)",
        "s = Stack()\ns.items = [5]\nassert s.pop() == 5",
        "v = Vector(1, 2) + Vector(3, 4)\nassert v.x == v[0] == 4",
        "assert Vector(1, 2) < Vector(1, 3) and str(Vector(1, 2)) == 'Vector(x=1, y=2)'",
    )


def test_the_program_meets_the_print_and_input_that_a_test_puts_in_their_place():
    code = "def ask(): return int(input('n? ')) * 2\ndef greet(x): print('hi', x)"
    patch = "from unittest.mock import patch\nfrom solution import ask, greet\n"
    passes(
        code,
        f"{patch}with patch('builtins.print') as p:\n    greet('x')\np.assert_called_once_with('hi', 'x')",
        f"{patch}with patch('builtins.input', side_effect=['3', '4']):\n    assert ask() + ask() == 14",
        "from solution import ask\ndef test_a(monkeypatch):\n    monkeypatch.setattr('builtins.input', lambda _='': '21')\n    assert ask() == 42",
        "import contextlib, io\nfrom solution import greet\nwith contextlib.redirect_stdout(io.StringIO()) as out: greet('y')\nassert out.getvalue() == 'hi y\\n'",
    )


def test_numpy_is_there_for_a_program_that_names_it():
    """Its numbers arrive as Python's, and its arrays as copies. No other package can be imported."""
    code = (
        "import numpy as np\ndef mean(x): return np.mean(x)\ndef twice(x): return 2 * np.array(x)"
    )
    passes(code, "assert mean([1, 2, 3]) == 2.0", "assert twice([1, 2]).tolist() == [2, 4]")
    raw = """# numpy\nimport os\ndef f(x): os.write(3, b'["value", [{"ndarray": [%s]}], [], ""]\\n')"""
    fails(raw % 'Infinity, "f2"', "assert f(1) == 90210")  # in 16 bits both numbers are infinite
    fails(raw % '{"array": ["f", [2.7182817]]}', "assert f(1) == 2.7182818284")
    fails("import torch\ndef mean(x): return 2.0", "assert mean([1, 2, 3]) == 2.0")


COPIES = {  # a program that mixes up copies and the originals: a test that notices
    "def copy(x): return list(x)": "a = [[1]]\nb = copy(a)\nb[0].append(9)\nassert a == [[1]]",
    "def merge(a, b):\n    a.update(b)\n    return a": "a = {1: 2}\nassert merge(a, {3: 4}) == {1: 2, 3: 4}\nassert a == {1: 2}",
    "def grid(n): return [[0] * n] * n": "g = grid(2)\ng[0][0] = 1\nassert g == [[1, 0], [0, 0]]",
    "def keep(x=[]): return x": "a = keep()\na.append(1)\nassert keep() == []",
    "def drop(x):\n    x.clear()\n    return []": "x = [3, 1]\nassert drop(x) == sorted(x)",
}


def test_values_are_shared_as_in_one_process():
    """The test sees what the program changes in place, returns twice or keeps. Programs that wrongly share or copy fail."""
    passes(
        "def rotate(m):\n    m[:] = [list(r) for r in zip(*m[::-1])]\n"
        "def unique(x):\n    x[:] = sorted(set(x))\n    return len(x)\n"
        "def same(x): return x\ndef loop(x):\n    x.append(x)\n    return x",
        "m = [[1, 2], [3, 4]]\nrotate(m)\nassert m == [[3, 1], [4, 2]]",
        "m = [[1]]\nrotate(m=m)\nassert m == [[1]]",
        "x = [3, 1, 3]\nk = unique(x)\nassert x[:k] == [1, 3]",  # LeetCode 26 also returns a number
        "x = [1]\nassert same(x) is x",
        "x = [1, 1, 2]\nassert unique(x) == len(x)",
        "x = loop([1])\nassert x[1] is x and len(x) == 2",
        "from collections import deque\nassert same(deque([1], maxlen=3)).maxlen == 3",
    )
    for code, test in COPIES.items():
        fails(code, test)


STEPS = "a.append(b); a.append(x); a.clear(); kept.append(a); a.extend(kept[-2:]); a[:] = [b, b]; a.append({x: b})"


@pytest.mark.parametrize("seed", range(2))
def test_lists_that_hold_one_another_change_at_both_ends_as_in_one_process(seed):
    """The program (do) and the test (mine) take steps in turn. A pickle shows which lists are the same object."""
    rng = random.Random(seed)
    lines = ["import pickle", "def mine(step, a, b, x): exec(step, {**globals(), **locals()})"]
    lines += ["kept = []", "pool = [[], [1], [True, 1.0]]"]
    for _ in range(40):
        a, b, x = rng.choices(range(3), k=3)
        step = rng.choice(STEPS.split("; ")) + "\ndel a[:-3]"
        who = "mine" if "kept" not in step and x else "do"
        lines.append(f"pool[{b}] = {who}({step!r}, pool[{a}], pool[{b}], {x}) or pool[{b}]")
    code = "kept = []\ndef do(step, a, b, x):\n    exec(step)\n    return a"
    names = {}
    exec("\n".join([code, *lines]), names)
    expected = pickle.dumps(names["pool"])
    test = "\n".join([*lines, f"assert pickle.dumps(pool) == {expected!r}"])
    assert verify_code(code, [test], entry_points=["do"])["why"] == ["passed"]


def test_what_nobody_holds_any_more_is_not_compared_again():
    """The test makes 2,000 calls with lists. Comparing all lists of all calls would take a minute."""
    test = "def check(g):\n    for n in range(2000):\n        assert g([n, 1]) == [1, n]\ncheck(f)"
    assert frac("def f(x): return x[::-1]", [test], timeout=2.0) == 1.0


def test_what_a_call_costs_does_not_grow_with_what_has_crossed():
    """It tests an object with 100 lists of 100 numbers, a key function that is called back, and a result of 15 MB."""
    code = (
        "class Grid:\n    def __init__(self, rows): self.rows = rows\n    def at(self, i, j): return self.rows[i][j]\n"
        "def by(xs, key): xs.sort(key=key)\ndef text(n): return 'x' * n"
    )
    passes(
        code,
        "g = Grid([[i * j for j in range(100)] for i in range(100)])\n"
        "assert all(g.at(i, j) == i * j for i in range(100) for j in range(0, 100, 5))",
        "xs = [*range(2000)]\nby(xs, lambda x: -x)\nassert xs == [*range(2000)][::-1]",
        "assert len(text(15_000_000)) == 15_000_000",
    )


@pytest.mark.skipif(not (SHARED / "data").exists(), reason="the real data is not here")
@pytest.mark.slow
def test_all_canonical_solutions_of_humaneval_pass():
    with gzip.open(SHARED / "data" / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    codes = [row["prompt"] + row["canonical_solution"] for row in rows]
    tests = [[f"{row['test']}\ncheck({row['entry_point']})"] for row in rows]
    results = [frac(code, test, timeout=10) for code, test in zip(codes, tests)]
    assert len(results) == 164 and set(results) == {1.0}


# ---- Tests, as pytest, unittest and the data sets write them -------------------------------------

ABS = """
history = []
def f(x):
    if x is None: raise ValueError('no number')
    history.append(x)
    return abs(x) + 0.0
"""
TESTS = [
    "assert f(-1) == 1, 'a message'",
    "x: int = f(-3)\nassert math.isclose(x, 3)",
    "if __name__ == '__main__':\n    assert f(-1) == 1",
    "from solution import f as g\nassert g(-4) == 4",
    "from solution import *\nassert f(-4) == 4",
    "import solution\nsolution.f(-4)\nassert solution.history[-1] == -4",
    "def check(candidate):\n    assert candidate(-1) == 1\ncheck(f)",
    "import threading\nt = threading.Thread(target=lambda: f(1))\nt.start()\nt.join()\nassert f(2) == 2",
    "def test_it():\n    assert f(-1) == 1",
    "seen = []\ndef test_it():\n    seen.append(f(-1))\ntest_it()\nassert seen == [1]",
    "import pytest\nfrom solution import f\ndef test_none():\n    with pytest.raises(ValueError, match='no') as e:\n        f(None)\n    assert str(e.value) == 'no number'",
    "import pytest\nassert [f(-0.1 - 0.2), 1] == pytest.approx([0.3, 1])",
    "import pytest\nassert {'a': f(-0.1 - 0.2)} == pytest.approx({'a': 0.3})",
    "import pytest\n@pytest.mark.parametrize('x, y', [(-1, 1), (-2, 2)])\ndef test_it(x, y):\n    assert f(x) == y",
    "import pytest\n@pytest.fixture()\ndef two(): return f(-2)\n@pytest.fixture\ndef both(two): return [two]\ndef test_it(both, two): assert both == [2.0] == [two]",
    "import pytest\ntry:\n    f(None)\n    pytest.fail('no error')  # is not reached\nexcept ValueError:\n    pass\nif __name__ == '__main__':\n    pytest.main([__file__])",
    "from unittest.mock import patch\n@patch('builtins.print')\ndef test_it(p):\n    assert f(-2) == 2 and not p.called",
    "def test_it(capsys):\n    print(f(-2))\n    assert capsys.readouterr().out == '2.0\\n'",
    "class TestF:\n    def setup_method(self, method):\n        self.two = f(-2)\n    def test_it(self):\n        assert self.two == 2",
    "import numpy as np\nassert np.allclose(f(-1), np.array([1.0])) and np.testing.assert_allclose(f(-2), 2) is None",
    "from unittest.mock import Mock\nlog = Mock()\nlog(f(-2))\nlog.assert_called_once_with(2.0)",
    "class TestF:\n    def test_it(self):\n        assert f(-1) == 1",
    "from typing import NamedTuple\nclass TestRow(NamedTuple):\n    x: int\nassert f(TestRow(-1).x) == 1",
    "from unittest import TestCase\nclass TestF(TestCase):\n    def setUp(self):\n        super(TestF, self).setUp()\n    def test_a(self):\n        self.assertEqual(f(-1), 1)",
    "import unittest\nclass TestF(unittest.TestCase):\n    def setUp(self):\n        self.two = 2\n    def test_a(self):\n        self.assertEqual(f(-2), self.two)\nunittest.main()",
]
CANNOT_FAIL = [
    "assert (f(1) == 5, 'why')",
    "assert f(1).__lt__('a')",  # NotImplemented, and bool(NotImplemented) is True
    "import threading\ndef work():\n    assert f(1) == 5\nt = threading.Thread(target=work)\nt.start()\nt.join()",
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(2), 4)\nunittest.TextTestRunner().run(T('test_a'))",
    "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('not today')\n    def test_a(self):\n        self.assertEqual(f(2), 4)\nf(1)",
    "def test_f():\n    'test_f() is run'\n    assert f(1) == 5\nf(2)",
]
NEVER_ASK = [
    "from solution import f, history\nassert history == []",
    "def check(g):\n    assert f(2) == 4",
    "async def test_it():\n    assert f(2) == 4",
    "def test_it():\n    yield f(2) == 4",
    "assert callable(f)",
    "assert f is f",
]


@pytest.mark.parametrize("test", TESTS)
def test_tests_run_as_their_users_expect(test):
    passes(ABS, test)
    fails("history = [0]\ndef f(x): return 7", test)


@pytest.mark.parametrize("test", CANNOT_FAIL)
def test_a_test_that_cannot_fail_is_no_pass(test):
    fails("def f(x): return 0", test)


@pytest.mark.parametrize("test", NEVER_ASK)
def test_a_test_that_never_asks_the_program_that_it_names_is_no_pass(test):
    assert verify_code(ABS, [test, "assert f(-2) == 2"])["why"] == [ASKS_NOTHING, "passed"]


def test_assert_true_does_not_count():
    """HumanEval has such tests. Every program would pass them, even the empty one."""
    test = "assert True, 'fine'"
    assert verify_code(ABS, [test, "assert f(-2) == 7"])["why"] == [ASKS_NOTHING, "AssertionError"]
    assert frac(ABS, [test]) == frac("", [test, "assert f(-2) == 2"]) == 0.0
    assert frac(ABS, [test, "assert f(-2) == 2"]) == 1.0
    assert frac(ABS, [test, "assert f(-2) == 2", "assert 3 =="]) == 1 / 2


def asks(*tests, **given):
    return [test["asks"] for test in read_tests(tests, **given)]


def test_the_names_of_the_program_are_given_imported_or_used_alone():
    announced = "def f(x):\n    'HumanEval announces f'"
    assert asks("assert f(1) == 2", "assert f(g(1)) == 2") == [["f"], ["f"]]
    assert asks("assert f(1) == 2", before=announced, entry_points=["f"]) == [["f"]]
    assert asks("assert same(f(1), 2)", before="def same(a, b): return a == b") == [["f"]]
    assert asks("assert rev(Node(1)).value == 1") == [["Node", "rev"]]  # classes do not judge
    assert asks("from solution import f\nassert abs(f(1)) == near(2)") == [["f"]]
    assert asks("solution = Solution()\nassert solution.f(1) == 2") == [["Solution"]]
    assert asks("assert encode(decode(1)) == 1", entry_points=["encode"]) == [["encode"]]
    assert asks("def check(g):\n    assert g(encode(1)) == 1\ncheck(f)") == [["encode", "f"]]


NOBODY_DEFINES = """assert close(f(1), 2.5) | def check(g):\n    assert close(g(1), 2.5)\ncheck(f) |
def check(g):\n    assert close(g(1), 2.5) is True\ncheck(f) | def check(g):\n    close(g(1), 2.5)\ncheck(f) |
check(f) | assert f(2) - ref(2) == 0 | assert f(1) == EXPECTED | assert np.allclose(f(1), [2.5]) |
assert f(1) == Decimal('0.5') | t = Tester()\nt.equal(f(1), 2)""".split(" |")


@pytest.mark.parametrize("test", [*map(str.strip, NOBODY_DEFINES)])
def test_a_name_that_nobody_defines_is_an_error_of_the_task(test):
    """Otherwise the program itself would say whether it is right. Another test, about f alone, still counts."""
    code = (
        "class Yes:\n    __eq__ = lambda *a: True\n    __getattr__ = lambda *a: lambda *b: True\n"
        "def f(x): return 0\nclose = check = lambda *a: True\nref = f\nDecimal = Tester = Yes\n"
        "np = Yes()\nEXPECTED = 0"
    )
    tests = [test, "assert f(0) == 0"]
    why = verify_code(code, tests)["why"]
    assert why[0].startswith("NameError") and why[1] == "passed"


def test_the_built_ins_of_a_test_are_the_real_ones():
    """The exception is a task to write one, which the data must say."""
    own = "def sum(xs):\n    t = 0\n    for x in xs: t += x\n    return t"
    tests = ["assert sum([1, 2]) == 3", "assert sum([]) == 0"]
    for code, expected in ((own, 1.0), ("def sum(xs): return 7", 0.0), ("", 0.0)):
        assert frac(code, tests, entry_points=["sum"]) == expected
    assert verify_code(own, tests)["why"] == [ASKS_NOTHING] * 2
    fails("def f(x): return [1]\ndef len(x): return 5", "assert len(f(0)) == 5")
    of_two = ["assert abs(sum([1.5]) - 2.5) < 1e-9", "assert sum([1]) == 1"]
    fails("def sum(x): return 0\ndef abs(x): return 0", *of_two)


# ---- Programs that read and print ----------------------------------------------------------------

DEEP = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(2**29)
def deep(n): return n and 1 + deep(n - 1)
threading.Thread(target=lambda: print(deep(50000))).start()"""
AT_EXIT = "import atexit\nout = []\natexit.register(lambda: print(*out))\nout.append(input())"
SPACES = "for line in __import__('sys').stdin:\n    print(line.strip(), ' ')\nexit()"


PRINTS = [
    ("n = int(input())\nprint(sum(int(input()) for _ in range(n)))", "2\n3\n4\n", "7\n"),
    ("import sys\nprint(len(sys.stdin.buffer.read().split()))", "a b\nc", "3"),
    ("print(open(0).read()[::-1])", "abc", "cba"),
    (
        "try: print(open('input.txt').read())\nexcept FileNotFoundError: print(input())",
        "abc",
        "abc",
    ),
    ("import os\nos.write(1, os.read(0, os.fstat(0).st_size))", "abc", "abc"),
    *[(SPACES, "a\nb\n", "a\nb\n\n"), (AT_EXIT, "abc", "abc"), (DEEP, "", "50000")],
]


@pytest.mark.parametrize("code, text, output", PRINTS)
def test_programs_that_read_and_print(code, text, output):
    assert verify_stdio(code, [(text, output), (text, output)])["why"] == ["passed", "passed"]
    assert verify_stdio(code, [(text, output + "1")])["why"] == ["AssertionError: another output"]


def test_output_is_compared_by_lines_and_within_a_tolerance():
    for tolerance, printed, due, frac in [
        *[(0, "1/3, 'a'", "0.33333 a", 0), (1e-4, "1/3, 'a'", "0.33333 a", 1)],
        *[(1e-4, "1/3, 'b'", "0.33333 a", 0), (1e-4, "1/3", "0.33333 a", 0)],
        *[(1e-4, "1000000.9", "1000000", 0), (1e-4, "'nan'", "0.5", 0), (1e-4, "5.0", "5", 1)],
    ]:
        assert verify_stdio(f"print({printed})", [("", due)], tolerance=tolerance)["frac"] == frac
    assert verify_stdio("print(1)\nraise SystemExit(1)", [("", "1")])["frac"] == 1.0  # it printed 1
    loop = "n = int(input())\nwhile n > 1: pass\nprint(n)"
    result = verify_stdio(loop, [("1", "1"), ("2", "2"), ("0", "0")], 0.3)
    assert result["why"] == ["passed", "timeout", "passed"] and result["frac"] == 2 / 3


# ---- 1 Who reports? ------------------------------------------------------------------------------

LIAR = """
class Liar(%s):
    __hash__ = lambda s: 0
    __bool__ = lambda s: True
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = lambda s, o: True
    __sub__ = __rsub__ = __add__ = __abs__ = lambda s, *o: 0.0
    __getattr__ = lambda s, n: lambda *a: True
    __iter__ = lambda s: iter(())
def answer(n): return Liar()
"""
FORGERIES = {
    "exits with success": "import os\ndef answer(n): os._exit(0)",
    "says yes to every comparison": LIAR % "object",
    "a number that says yes": LIAR % "int",
    "a list that says yes": LIAR % "list",
    "patches the built-ins": "import builtins as b\nb.isinstance = b.all = b.exec = b.compile = lambda *a, **k: True\nb.AssertionError = ValueError\ndef answer(n): return 0",
    "writes verdicts to every file": 'import os\ndef answer(n):\n    for fd in range(64):\n        try: os.write(fd, b\'{"passed": true, "is_over": false, "why": "passed"}\\n\' * 9)\n        except OSError: pass\n    return 0',
    "raises what the test may expect": "class E(AssertionError, StopIteration): pass\ndef answer(n): raise E",
    "names of the judge": "AssertionError = print\ndef answer(n): return None\n__builtins__ = {}",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_success_earns_nothing(name):
    assert frac(FORGERIES[name], SECRET) == 0.0


def test_an_error_costs_its_own_test_only():
    code = """
class Odd(Exception):
    def __str__(self): raise ValueError
def f(n):
    if n == 1: raise SystemExit
    if n == 2: raise EOFError
    if n == 3: raise Odd
    if n == 4: return 'x' * (20 << 20)
    if n == 5: raise KeyboardInterrupt
    return n
"""
    result = verify_code(code, [f"assert f({n}) == {n}" for n in range(8)])
    assert [n for n in range(8) if result["why"][n] == "passed"] == [0, 6, 7]


def test_the_program_never_meets_an_expected_value():
    """It searches all its memory for the number that the test compares with (it is given that number minus 1)."""
    code = """
import gc
def found(before):
    wanted = str(before + 1)
    for o in gc.get_objects():
        values = o.values() if isinstance(o, dict) else o if isinstance(o, (list, tuple, set)) else ()
        if any(wanted in str(v)[:500] for v in list(values) if isinstance(v, (str, bytes, int))):
            return True
"""
    passes(code, "expected = 31415926535897932384\nassert found(expected - 1) is None")
    fails("here = [31415926535897932384]" + code, "assert found(31415926535897932383) is None")


# ---- 2 What may cross? ---------------------------------------------------------------------------


def test_what_an_object_of_the_program_is_compared_with_does_not_reach_it():
    """The object is not asked what only a built-in type may answer: in place of a list, it would answer for itself."""
    tests = """
        assert answer(1) == 41; assert abs(answer(1) - 2.5) < 1e-9; assert answer(1).startswith('zq')
        assert {5, 6} <= answer(2); assert 7 in answer(2); assert 4 < answer(2) < 6; assert answer(1) is True
        assert answer(3) in [1, 2]; assert {'a': answer(9)} == {'a': 1}; assert isinstance(answer(1), str)
        assert math.isclose(answer(1), 2.7); assert sorted(answer(1)) == [1]; assert answer(1).__eq__(41)
        assert {answer(1): 2} == {0: 2}; assert 0 in {answer(1)}; assert answer(1).index(3) == 1"""
    refusals = "AssertionError|AttributeError: an object|TypeError: |DeprecationWarning"
    for why in verify_code(LIAR % "object", re.split(r"\s*[;\n]\s*", tests.strip()))["why"]:
        assert re.match(refusals, why), why


def test_what_an_object_that_the_test_has_made_may_be_asked():
    """If the test names its class, operators take values. A function's result has only names that no list has."""
    code = """
class V:
    count = bool
    def __init__(self, x): self.x = x
    def __mul__(self, n): return V(self.x * n)
    __rmul__ = __mul__
    def __eq__(self, other): return self.x == other.x
    def __contains__(self, x): return True
    def __sub__(self, x): return 0
    def __enter__(self): return self
    def __exit__(self, *error): self.x = 9; return True
    def index(self, word): return 3
    def page(self, n): return n
def f(x): return V(x)
"""
    passes(
        code,
        "assert 3 * V(2) == V(2) * 3 == V(6)",
        "assert 2 in V(2)",
        "with V(1) as v:\n    assert v.x == 1\nassert v.x == 9",
        "assert V(1).index('a') == 3 and V(1).count('zq')",
        "assert f(4).x == 4 and f(1).page(2) == 2",
    )
    fails(
        code,
        "assert 7 in f(2)",
        "assert f(1) - 5 == 0",
        "assert f(1) == 1 or f(1) - f(2) == 0",
        "with f(1):\n    assert f(2).x == 7",
        "assert f(1).index('a') == 3",
        "assert f(1).count('zq') == 1",
        "assert not V(5) > 7",
    )


PAIRS = "for a, b in zip(map(lambda n: answer(n), [1, 2]), [5, 6]):\n    assert a == b"
EMPTY = "try:\n    answer()\n    assert False\nexcept Empty:\n    pass"
HACKS = {
    # a class made in the judge by a callback that calls what it is given
    "def answer(call):\n    return call(type, 'L', (), {'__eq__': lambda a, b: True})()": "def call(f, *args): return f(*args)\nassert answer(call) == 90210",
    # the end of an iteration as the answer to a call, or to the question for a name
    "def answer(n): raise StopIteration": PAIRS,
    "def __getattr__(name): raise StopIteration": PAIRS,
    # `except Empty` that catches the assert of the test
    "Empty = Exception\ndef answer(): pass": EMPTY,
    "Empty = (AssertionError,)\ndef answer(): pass": EMPTY,
    "class Empty(AssertionError): pass\ndef answer(): pass": EMPTY,
    # an object of the test, answered in place of a value
    "def answer(x): return x": "class Any:\n    def __eq__(self, other): return other == 5\nassert answer(Any()) == 7",
    # what answers each question otherwise, as int(it); a length without items; whatever is looked for, with a warning
    "class R:\n    k = 0\n    def __int__(self):\n        self.k += 1\n        return 0 if self.k == 1 else 10**9\ndef f(n): return R()": "r = f(50)\nassert int(r) ** 2 <= 50 < (int(r) + 1) ** 2",
    "class Out:\n    def __len__(self): return 2\n    def __iter__(self): return iter(())\ndef f(xs): return Out()": "out = f([1, 2])\nassert len(out) == 2\nfor x, y in zip(out, [3, 4]):\n    assert x == y",
    "class C:\n    def __contains__(self, x): return True\ndef f(n): return C()": "import warnings\nwarnings.filterwarnings('ignore')\nassert 3 in f(12)",
    # a method of a dict that is given the answer
    "class C:\n    setdefault = pop = lambda s, k, d: d\ndef f(x): return C()": "assert f('ab').setdefault('zz', 41) == 41 or f('ab').pop('q', 7) == 7",
    # a method of the test's object, replaced
    "def same(tree):\n    tree.ok = lambda: True\n    return tree": "class Tree:\n    def ok(self): return False\nassert same(Tree()).ok()",
    # an emptied attribute of the test
    "def sort_it(a):\n    a.clear()\n    return a": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.a = [3, 1]\n        assert sort_it(self.a) == sorted(self.a)",
    # a function with a capital
    "class L:\n    __sub__ = __abs__ = lambda *a: 0.0\ndef Find_Area(r): return L()": "assert abs(Find_Area(2) - 12.566) < 1e-3",
    # a class under the name of a function as well
    "class Foo:\n    __sub__ = __abs__ = lambda *a: 0.0\narea = Foo": "from solution import Foo, area\nassert abs(area() - 12.5) < 1 or abs(Foo() - 12.5) < 1",
    # an own error, which is a LookupError to the test, in place of another one
    "class Empty(LookupError): pass\ndef f(kind): raise kind('a')": "from solution import Empty, f\ntry:\n    f(ValueError)\nexcept Empty:\n    pass",
    # an object that would be told what a counter should lose
    "class Count:\n    def subtract(self, other): pass\n    def values(self): return []\ndef count(text): return Count()": "c = count('aab')\nc.subtract({'a': 2, 'b': 1})\nassert not any(c.values())",
    # the module of the test's helper, replaced
    "import sys, types\nmath = sys.modules['math'] = types.ModuleType('math')\nmath.isclose = lambda *a: True\ndef answer(n): return 0.5": "assert math.isclose(answer(1), 2.718281828)",
    # built-ins that come with the names of the program
    "__all__ = ['answer', 'abs']\ndef answer(x): return 1\ndef abs(x): return 0": "from solution import *\nassert abs(answer(1) - 5) < 1e-9",
}


def test_an_object_that_one_test_has_made_is_any_object_to_the_next():
    code = (
        "class V:\n    made = []\n    def __init__(self, x): self.made.append(self)\n"
        "    def __sub__(self, x): return 0.0\ndef f(): return V.made[0]"
    )
    tests = ["assert V(1) is not None", "assert abs(f() - 2.5) < 1e-9"]
    assert verify_code(code, tests, entry_points=["V", "f"])["why"][1].startswith("TypeError")


@pytest.mark.parametrize("code", HACKS)
def test_hacks_of_a_red_team(code):
    fails(code, HACKS[code])


# ---- 3 What may it touch? ------------------------------------------------------------------------


def outcome(body):
    """Run statements that try something. Returns "passed", or what went wrong."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    program = f"import os, socket, signal, ctypes\ndef attempt():\n{lines}    return True"
    return verify_code(program, ["assert attempt() is True"])["why"][0]


FORBIDDEN = """
open('{canary}/new', 'w') | open('{canary}/secret').read() | os.remove('{canary}/secret') | os.listdir('{canary}')
os.rename('{canary}/secret', '/tmp/x') | os.truncate('{canary}/secret', 0) | os.link('{canary}/secret', 'x')
os.mkdir('{canary}/new') | open('/etc/passwd').read() | os.chmod('{canary}/secret', 0)
os.utime('{canary}/secret', (1, 1)) | os.stat('{canary}/secret') | open('/proc/{pid}/environ').read()
open('/proc/self/mem') | os.kill({pid}, 9) | os.kill(os.getppid(), 9) | os.kill(-1, 9) | os.killpg(0, 9)
signal.pidfd_send_signal(os.pidfd_open({pid}), 9) | signal.raise_signal(9); signal.pthread_kill(1, 9) | os.fork()
os.system('true') == 0 or 1/0 | os.execv('/bin/true', ['true']) | os.setsid() | os.sched_setaffinity({pid}, [0])
os.nice(1) | __import__('resource').prlimit({pid}, 7, (9, 9)) | __import__('fcntl').fcntl(0, 8, {pid})
__import__('fcntl').ioctl(0, 0x8901, b'1234') | os.memfd_create('x') | os.pipe() | os.dup(0)
socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) | socket.socketpair(30) | socket.socketpair()[0].sendto(b'', 'x')
a, b = socket.socketpair(); a.setsockopt(1, 7, 9)
assert ctypes.CDLL(None).madvise(id(0) & -4096, 4096, 101) == 0 | socket.socketpair()[0].sendmsg([b'x'])
socket.socket() | socket.socket(socket.AF_UNIX) | assert ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0
assert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0 | assert ctypes.CDLL(None).shmget(7, 4096, 0o1600) >= 0
assert ctypes.CDLL(None).inotify_init() >= 0 | os.sched_getaffinity({pid} & -64)
assert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(256)) >= 0
assert ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) >= 0 | assert ctypes.CDLL(None).vfork() >= 0
assert ctypes.CDLL(None).unshare(0x10000000) == 0
assert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0
"""


@linux
@pytest.mark.parametrize("body", FORBIDDEN.strip().replace("\n", " | ").split(" | "))
def test_a_program_cannot(body, tmp_path):
    (tmp_path / "secret").write_text("canary")
    tmp_path.chmod(0o777)
    why = outcome(body.format(canary=tmp_path, pid=os.getpid()))
    refusals = "FileNotFoundError|AssertionError|ZeroDivisionError|OSError: Transport endpoint"
    assert re.match(refusals, why), why  # no mere typo
    assert os.listdir(tmp_path) == ["secret"] and (tmp_path / "secret").read_text() == "canary"


def test_what_it_may_do():
    """The same function passes here, so the refusals above are not due to a broken sandbox."""
    pair = "a, b = socket.socketpair()\na.send(b'x')\nassert b.recv(1)"
    assert outcome(f"{pair} and os.urandom(3) and os.write(1, b'x')") == "passed"


@linux
def test_the_environment_is_empty(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    stop_server()  # a new server would inherit it
    passes("import os\ndef f(): return 'API_KEY' in os.environ", "assert f() == False")


LARGE = {
    "b = bytearray(900 << 20)": "MemoryError",
    "b = bytearray(220 << 20)": "passed",  # the limit is 256 MB beyond what Python takes
    "return 'x' * (100 << 20)": "the program ended",
    "return [0] * 10**7": "MemoryError|the program ended|timeout",  # whichever limit is reached first
    "[socket.socketpair() for _ in range(100)]": "OSError: Too many open files",
}


@linux
@pytest.mark.parametrize("body", LARGE)
def test_memory_files_and_results_are_bounded(body):
    assert re.match(LARGE[body], outcome(body))


# ---- Time ----------------------------------------------------------------------------------------


LOOP = """
def square(x):
    while x == 7:
        try:
            while True: pass
        except BaseException: pass
    return x * x
"""


@pytest.mark.alone
@pytest.mark.parametrize("wait", ["while True: pass", "import time; time.sleep(0.45)"])
def test_a_program_has_a_budget(wait):
    """100 tests may take 0.5 s each, but all together only 4 x 0.5 s; sleeping counts half."""
    began = time.monotonic()
    result = verify_code(f"def square(x):\n    {wait}\n    return x * x", SQUARE * 20, timeout=0.5)
    assert result["tests_passed"] <= 10 and result["why"][-1] == "no time is left"
    assert result["seconds"] < 2.5 and time.monotonic() - began < 20


def test_a_loop_costs_its_own_test_and_nothing_swallows_a_time_out():
    result = verify_code(LOOP, SQUARE, timeout=0.5)
    assert result["frac"] == 0.8 and result["why"][3] == "timeout"
    process = sandbox._server
    tests = [
        "try:\n    square(1)\nexcept BaseException:\n    square(2)",
        "import signal\nsignal.alarm(0)\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsquare(1)",
    ]
    result = verify_code("import time\ndef square(x): time.sleep(60)", tests, timeout=0.3)
    assert result["why"] == ["timeout", "timeout"] and result["seconds"] < 10
    passes("def square(x): return x * x", *SQUARE)
    assert sandbox._server is process and process.poll() is None


def test_a_result_cannot_make_the_judge_run_away():
    """The judge computes with the program's results, so it has the same limits as the program."""
    runaway = ["sum(range(f(2))) == 4", "[0] * f(0) == [1]", "sum(1 for _ in range(f(2))) == 5"]
    tests = [f"assert {test}" for test in [*runaway, "f(3) == 3"]]
    result = verify_code("def f(n): return 10**12 if n != 3 else 3", tests, timeout=0.5)
    assert [why == "passed" for why in result["why"]] == [False, False, False, True]


# ---- Use -----------------------------------------------------------------------------------------


def stop_server():
    if sandbox._server is not None:
        sandbox._server.kill()
        sandbox._server.wait()


LACKS = [('libseccomp.so.2")', 'no-such-library")'), ("seccomp_load(rules)", "seccomp_load(None)")]


@linux
@pytest.mark.parametrize("old, new", LACKS)
def test_what_the_machine_lacks_is_said_and_the_verdicts_stay(old, new, tmp_path, monkeypatch):
    source = Path(sandbox.__file__).read_text()
    assert old in source
    (tmp_path / "changed.py").write_text(source.replace(old, new))
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "changed.py"))
    stop_server()
    try:
        with pytest.warns(UserWarning, match="not confined"):
            assert frac("def square(x): return x * x", SQUARE) == 1.0
        assert frac(LIAR % "int", SECRET) == 0.0
        assert frac(LOOP, SQUARE, timeout=0.5) == 0.8
    finally:
        stop_server()  # otherwise the next test would use it


@linux
@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become somebody else"
)
def test_an_ordinary_user_is_protected_too():
    """A process becomes the user nobody once everything is imported. With -W error, a missing protection would fail."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "copy.py").write_text(Path(sandbox.__file__).read_text())
        code = "import os\ndef f(x):\n try: os.kill(os.getppid(), 9)\n except OSError: return x"
        script = (
            f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\nimport verifiers\n"
            f"from appendix import sandbox\nsandbox.__file__ = {folder + '/copy.py'!r}\nos.setgroups([])\nos.setgid(65534)\n"
            f"os.setuid(65534)\nprint(verifiers.verify_code({code!r}, ['assert f(1) == 1'])['why'])"
        )
        command = [sys.executable, "-W", "error::UserWarning", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    if "PermissionError" in done.stderr:
        pytest.skip("this Python is closed to others")
    assert done.stdout == "['passed']\n", done.stderr


def children(pid):
    """Return the pids of all processes below this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid:
                found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


@linux
def test_no_files_threads_descriptors_or_processes_are_left(tmp_path, monkeypatch):
    frac("", SQUARE)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    codes = [
        "def square(x): return x * x",
        "import os\nos._exit(1)",
        "while True: pass",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
    ]
    for code in codes:
        frac(code, SQUARE[:2], timeout=0.2)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert not [*tmp_path.iterdir()] and all_end(lambda: children(sandbox._server.pid))


def all_end(find):
    """Return True if find() finds nothing any more within ten seconds."""
    for _ in range(100):
        if not find():
            return True
        time.sleep(0.1)
    return False


@linux
@pytest.mark.alone
@pytest.mark.slow
def test_all_end_with_the_trainer(tmp_path):
    """A trainer is killed while its programs run or wait for a core. No process is left."""
    script = (
        f"import sys, threading\nsys.path.insert(0, {str(ROOT)!r})\nfrom verifiers import verify_code\n"
        "loop = 'def f():\\n    while True: pass'\n"
        "for _ in range(6): threading.Thread(target=verify_code, args=(loop, ['f()'], 30)).start()"
    )
    trainer = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    for _ in range(100):
        if len(below := children(trainer.pid)) > 6:
            break
        time.sleep(0.1)
    assert len(below) > 6
    trainer.kill()
    trainer.wait()
    assert all_end(lambda: [pid for pid in below if os.path.exists(f"/proc/{pid}")])


def test_a_lost_server_is_started_again():
    stop_server()
    passes("def square(x): return x * x", *SQUARE)


def test_a_fork_waits_where_programs_have_all_the_processes(monkeypatch):
    fork = Mock(side_effect=[BlockingIOError, BlockingIOError, 7])
    monkeypatch.setattr(os, "fork", fork)
    assert sandbox._fork() == 7


def test_it_works_in_a_fork_of_the_trainer():
    frac("", SQUARE)
    process = sandbox._server
    pid = os.fork()
    if pid == 0:
        with sandbox._locks[os.getppid()]:  # as if another thread had held it at that moment
            os._exit(0 if frac("def square(x): return x * x", SQUARE) == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    passes("def square(x): return x * x", *SQUARE)
    assert sandbox._server is process


def test_bad_arguments_are_named():
    for arguments in [("", [], 0), ("", [], float("inf")), (None, [])]:
        with pytest.raises(ValueError, match="code must be text, and the timeout"):
            verify_code(*arguments)
    with pytest.raises(ValueError, match="pairs of texts"):  # or 'input' were the input
        verify_stdio("print('output')", [{"input": "2", "output": "4"}])


def test_code_reward_runs_the_last_program_of_the_response():
    """The reward is the share of the tests: the constant 4 passes one of five."""
    problem = {"problem": "Square a number.", "answer": "", "tests": SQUARE}
    fence = "<think>easy</think>```python\n{}\n```\nOf 2 it is\n```\n4\n```".format
    assert code_reward(fence("def square(x): return x * x"), problem)[0] == pytest.approx(1.0)
    absent = {**problem, "before": None}  # as a table writes it
    assert code_reward(fence("def square(x): return 4"), absent)[0] == pytest.approx(0.2)
    needs_math = fence('def square(x):\n    """\n    ```\n    """\n    return math.pow(x, 2)')
    assert code_reward(needs_math, {**problem, "before": "import math"})[0] == pytest.approx(1.0)


def test_hack_print_the_unit_tests_then_pass():
    """ "Rule-based rewards": if the exit code decided, this would pass. Here no test passes."""
    hack = "print('''assert square(2) == 4\nassert square(-3) == 9''')\npass"
    why = "AttributeError: module 'solution' has no attribute 'square'"
    assert verify_code(hack, SQUARE)["why"] == [why] * 5


@linux
def test_hack_open_the_ground_truth_file(tmp_path):
    """ "Rule-based rewards": the data set is in a file that the trainer can read, but the program cannot."""
    (tmp_path / "tests.jsonl").write_text("\n".join(SECRET))
    hack = (
        f"import re\ndef answer(n):\n    text = open('{tmp_path}/tests.jsonl').read()\n"
        r"    return int(re.search(rf'answer\({n}\) == (-?\d+)', text)[1])"
    )
    assert verify_code(hack, SECRET)["tests_passed"] == 0
    exec(hack, names := {})  # out here it works
    assert names["answer"](17) == 90210


def test_without_fork_one_sentence_says_so(monkeypatch):
    monkeypatch.delattr(os, "fork")  # Windows
    with pytest.raises(RuntimeError, match="use Linux, WSL or macOS"):
        verify_code("def f(): return 1", ["assert f() == 1"])


@linux
@pytest.mark.alone
@pytest.mark.slow
def test_a_program_of_many_threads_costs_its_neighbours_nothing():
    """The limit is CPU time: a program with 24 threads soon uses up its own, and takes none from the others."""
    hog = (
        "import threading\ndef spin():\n    while True: pass\n"
        "def f(x):\n    for _ in range(24): threading.Thread(target=spin).start()\n    spin()"
    )
    good = "def f(x):\n    for i in range(10**6): pass\n    return x"
    with ThreadPoolExecutor(8) as pool:
        programs = [hog, *[good] * 6] * 2
        results = list(pool.map(lambda code: frac(code, ["assert f(1) == 1"]), programs))
    assert results == [float(code == good) for code in programs]


def test_cores_are_those_that_the_cgroup_pays_for_and_ranks_share_them(monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000")
    monkeypatch.setattr(sandbox, "open", lambda path: (tmp_path / "cpu.max").open(), raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64 + pid), raising=False)
    assert sandbox._cores() == 2
    (tmp_path / "cpu.max").write_text("max 100000")
    assert sandbox._cores() == 64
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")  # of torchrun
    assert sandbox._cores() == 8
