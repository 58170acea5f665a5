"""Programs: verify_code against honest, wrong and hostile ones. What one could gain or spoil is tried for real."""

import contextlib
import gzip
import json
import os
import shutil
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import verifiers
from verifiers import check_tests, code_reward, verify_code, verify_proof

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are run only where there is fork")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the protections of Linux")

PALINDROME = ['assert is_palindrome("racecar") == True', 'assert is_palindrome("hello") == False',
              'assert is_palindrome("") == True', 'assert is_palindrome("ab") == False',
              'assert is_palindrome("abba") == True']
SQUARE = [f"assert square({n}) == {n * n}" for n in (2, -3, 0, 7, 10)]
SECRET = ["assert answer(17) == 90210", "assert answer(4) == -311", "assert answer(58) == 77713"]


def frac(code, tests, **limits):
    return verify_code(code, tests, **limits)["frac"]


# ---- What honest programs get ----------------------------------------------------------------------------------------

def test_the_reward_is_the_share_of_tests_passed():
    """Seed chapter 14: 5 of 5 is 1.0, 3 of 5 is 0.6, none is 0.0; always saying True passes 3 of 5 palindromes."""
    result = verify_code("def is_palindrome(s):\n    return s == s[::-1]", PALINDROME)
    assert (result["tests_passed"], result["tests_total"], result["frac"]) == (5, 5, 1.0)
    assert result["compared"] == 5 and result["why"] == ["passed"] * 5
    assert frac("def is_palindrome(s):\n    return True", PALINDROME) == 0.6
    result = verify_code("def is_palindrome(s):\n    return s[10]", PALINDROME)
    assert result["frac"] == 0.0 and result["why"][0] == "IndexError: string index out of range"


@pytest.mark.parametrize("code", ["", "def square(x):\n  return x*x\n oops(", "x = '\ud800'", "raise SystemExit",
                                  "while True: pass", "import numpy", "a\0b"])
def test_a_program_that_cannot_be_loaded_passes_nothing(code):
    result = verify_code(code, SQUARE, timeout=0.5)
    assert result["frac"] == 0.0 and all(result["why"])


@pytest.mark.parametrize("expression", [
    "(1, [2, (3,)])", "{1, 2}", "frozenset({1})", "{'a': [None, True], 2: {}}", "b'xy'", "2.5", "float('inf')", "1+2j",
    "2**20000", "-2**63", "'h\\u00e9 \\ud800 \\n'", "range(3)", "collections.deque([1])", "collections.Counter('aab')",
    "decimal.Decimal('0.10')", "fractions.Fraction(1, 3)", "datetime.date(2024, 2, 29)", "int", "...", "object()"])
def test_plain_values_cross_with_their_types(expression):
    imports = "import collections, decimal, fractions, datetime\n"
    code = f"{imports}def f(x): return {expression}\ndef back(x): return [x] == [f(0)]"
    test = f"{imports}value = {expression}\nassert f(0) == value and type(f(0)) == type(value)"
    if expression not in ("...", "object()"):
        assert verify_code(code, [test, "assert back(f(0))"])["why"] == ["passed", "passed"]
    else:                                                    # an object that is not plain data equals nothing
        assert frac(code, [test]) == 0.0


def test_lists_are_not_tuples_and_subclasses_count_as_their_base():
    code = ("import enum, collections\nclass K(enum.IntEnum):\n    A = 4\nP = collections.namedtuple('P', 'x y')\n"
            "def f(x): return [(1, 2), K.A, P(1, 2)][x]")
    assert frac(code, ["assert f(0) != [1, 2]", "assert f(1) == 4", "assert f(2) == (1, 2)"]) == 1.0


def test_objects_closures_generators_and_callbacks_work():
    code = """
class Stack:
    def __init__(self, items=()): self.items = list(items)
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def is_empty(self): return not self.items
    def __len__(self): return len(self.items)
    def __eq__(self, other): return self.items == other.items
class Empty(Exception): pass
def adder(n): return lambda x: x + n
def count(n):
    for i in range(n): yield i
def twice(f, x): return f(f(x))
def fail(): raise Empty('nothing here')
"""
    tests = ["s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and len(s) == 1 and not s.is_empty()",
             "try:\n    Stack().pop()\n    assert False\nexcept IndexError:\n    pass",
             "try:\n    fail()\n    assert False\nexcept Empty as error:\n    assert str(error) == 'nothing here'",
             "assert adder(3)(4) == 7", "assert list(count(3)) == [0, 1, 2]", "assert twice(lambda x: x + 3, 1) == 7",
             "assert twice(str, 5) == '5'", "assert twice(lambda x: twice(lambda y: y + 1, x), 0) == 4",
             "assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2])",
             "s = Stack()\ns.items = [5]\nassert s.pop() == 5",
             "assert isinstance(Stack(), Stack)"]
    assert verify_code(code, tests)["why"] == ["passed"] * len(tests)


def test_changes_of_arguments_are_seen_after_the_statement():
    code = "def rotate(m):\n    m[:] = [list(r) for r in zip(*m[::-1])]\ndef drop(x):\n    x.clear()\n    return []"
    assert frac(code, ["m = [[1, 2], [3, 4]]\nrotate(m)\nassert m == [[3, 1], [4, 2]]",
                       "def check(f):\n    m = [[1]]\n    f(m)\n    assert m == [[1]]\ncheck(rotate)"]) == 1.0
    # but not while the test compares, nor when the result is what was asked for
    assert frac(code, ["x = [3, 1]\nassert drop(x) == sorted(x)",
                       "x = [3, 1]\ny = drop(x)\nassert y == sorted(x)"]) == 0.0


def test_files_input_and_output_are_there():
    code = ("def save(path, text):\n    open(path, 'w').write(text)\n"
            "def words(path):\n    return len(open(path).read().split())\n"
            "def hello():\n    print('hello', input())")
    assert verify_code(code, [
        "save('a.txt', 'x y')\nassert open('a.txt').read() == 'x y'",
        "import tempfile, os\npath = os.path.join(tempfile.mkdtemp(), 'b')\nopen(path, 'w').write('1 2 3')\n"
        "assert words(path) == 3",
        "import io, sys, contextlib\nsys.stdin = io.StringIO('you\\n')\nout = io.StringIO()\n"
        "with contextlib.redirect_stdout(out):\n    hello()\nassert out.getvalue() == 'hello you\\n'"
    ])["why"] == ["passed"] * 3


def test_more_of_what_tests_do():
    code = """
import collections, contextlib
history = []
Point = collections.namedtuple('Point', 'x y')
class Low(Exception): pass
class Broke(Low): pass
def pay(n):
    history.append(n)
    raise Broke('no', n)
@contextlib.contextmanager
def opened(x): yield x + 1
async def later(x): return x * 2
def name(): return f"{input('who? ')} and {input()}"
def total(tree): return tree.value + sum(total(child) for child in tree.children)
def same(x): return x
def group(d, k, v): d[k].append(v)
def upper(file): return file.read().upper()
def logged(f): return lambda *a: (f.__name__, f(*a))
"""
    tests = ["try:\n    pay(3)\nexcept Low as error:\n    assert error.args == ('no', 3)\nassert history == [3]",
             "with opened(1) as two:\n    assert two == 2", "import asyncio\nassert asyncio.run(later(3)) == 6",
             "p = same(Point(1, 2))\nassert p == (1, 2) and p.x == 1",
             "import io, sys\nsys.stdin = io.StringIO('a\\nb\\nc\\n')\n"
             "assert name() == 'a and b' and sys.stdin.read() == 'c\\n'",
             "import builtins\nbuiltins.input = lambda *prompt: 'x'\nassert name() == 'x and x'",
             "class Tree:\n    def __init__(self, value, *children):\n"
             "        self.value, self.children = value, children\n"
             "assert total(Tree(1, Tree(2), Tree(3))) == 6", "import io\nassert upper(io.StringIO('ab')) == 'AB'",
             "import collections\nd = collections.defaultdict(list)\ngroup(d, 'a', 1)\nassert d == {'a': [1]}",
             "@logged\ndef g(x): return x\nassert g(1) == ('g', 1)", "from solution import same as s\nassert s(4) == 4",
             "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(same(2), 2)\n"
             "unittest.main()", "def test_it():\n    assert same(1) == 1", "f = same\nassert f is same",
             "def check(same):\n    assert same(1) == 1\ncheck(same)"]
    result = verify_code(code, tests)
    assert result["why"] == ["passed"] * len(tests)
    assert frac("def same(x): return 0", tests[-5:]) == 0.2             # only `f is same` tests nothing


def test_a_solution_named_like_a_built_in_is_not_judged_by_the_built_in():
    tests = ["assert sum([1, 2]) == 3", "assert sum([]) == 0"]
    assert frac("def sum(xs):\n    t = 0\n    for x in xs: t += x\n    return t", tests) == 1.0
    assert frac("def sum(xs): return 7", tests) == 0.0
    assert frac("", tests) == 0.0
    # and a program cannot replace the built-ins that a test of another name uses
    assert frac("def f(x): return [1]\ndef len(x): return 5\ndef all(x): return True", ["assert len(f(0)) == 5"]) == 0.0


@pytest.mark.skipif(not (ROOT.parent / "shared" / "data").exists(), reason="the real data is not here")
def test_all_canonical_solutions_of_humaneval_pass():
    with gzip.open(ROOT.parent / "shared" / "data" / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda row: verify_code(row["prompt"] + row["canonical_solution"], [
            f"{row['test']}\ncheck({row['entry_point']})"], timeout=10)["frac"], rows))
    assert len(results) == 164 and set(results) == {1.0}


# ---- What hostile programs get ---------------------------------------------------------------------------------------

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
    "prints the tests, then pass": "print('assert answer(17) == 90210\\n3 passed')\nprint({'frac': 1.0})",
    "exits with success": "import os\ndef answer(n): os._exit(0)",
    "exits at the top": "import sys\nsys.exit(0)",
    "says yes to every comparison": LIAR % "object",
    "a number that says yes": LIAR % "int",
    "a list that says yes": LIAR % "list",
    "patches the built-ins": """
import builtins as b
b.isinstance = b.all = lambda *a: True
b.AssertionError = ValueError
b.exec = b.eval = b.compile = lambda *a, **k: None
def answer(n): return 0""",
    "writes verdicts to every file": r"""
import os
def answer(n):
    for fd in range(64):
        try: os.write(fd, b'\0\0\0\x0f{"passed":true}' * 9)
        except OSError: pass
    return 0""",
    "answers with frames of its own": """
import os
def answer(n):
    for m in (b'{"value":{"yours":0}}', b'{"stop":true}', b'[]', b'[' * 5000, b'{"error":{"type":"SystemExit"}}'):
        os.write(3, len(m).to_bytes(4, 'big') + m)""",
    "looks for the test in the stack": r"""
import sys, re
def answer(n):
    f = sys._getframe()
    while f:
        for v in [*f.f_locals.values(), *f.f_globals.values()]:
            m = re.search(rf'answer\({n}\) == (-?\d+)', repr(v)[:10**5])
            if m: return int(m[1])
        f = f.f_back""",
    "raises what the test may expect": "class E(AssertionError, StopIteration): pass\ndef answer(n): raise E",
    "names of the judge": "_settle = _perform = AssertionError = print\ndef answer(n): return None\n__builtins__ = {}",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_success_earns_nothing(name):
    assert frac(FORGERIES[name], SECRET) == 0.0


FORGED = """
import json, os
def say(message):
    data = json.dumps(message).encode()
    os.write(3, len(data).to_bytes(4, 'big') + data)
"""


@pytest.mark.parametrize("code, test", [
    # a reply to "which of these names do you have" that holds other names: abs is then int, and the distance 0
    (FORGED + "say('loaded')\nsay({'value': {'dict': [['answer', {'mine': 0}], ['abs', {'type': 'int'}]]}})\n"
     "say({'value': 2.5})", "assert abs(answer(1) - 2.71828) < 1e-9"),
    # the end of an iteration as the answer to a call
    (FORGED + "def answer(n): say({'stop': True})", "for a, b in zip(map(answer, [1, 2]), [5, 6]):\n    assert a == b"),
    # a class made in the judge by a callback that calls what it is given
    ("def answer(call):\n    return call(type, 'L', (), {'__eq__': lambda a, b: True})()",
     "def call(f, *args): return f(*args)\nassert answer(call) == 90210"),
    # the argument emptied in a statement that only looks like a bare call
    ("def answer(x):\n    x.clear()\n    return []",
     "x, r = [3, 1], []\nr.append(answer(x))\nassert r[0] == sorted(x)"),
    ("def answer(x):\n    x.clear()\n    return iter(())", "x = [3, 1]\ny = list(answer(x))\nassert y == sorted(x)"),
    # built-ins that only some of the tests use are the real ones
    ("def sum(x): return 0\ndef abs(x): return 0", "assert abs(sum([1.5]) - 1.5) < 1e-9"),
    # tests that are defined but not called are called
    ("def answer(n): return 0", "if __name__ == '__main__':\n    assert answer(1) == 90210"),
    ("def answer(n): return 0", "def test_answer():\n    assert answer(1) == 90210"),
])
def test_hacks_of_a_red_team(code, test):
    tests = [test, "assert sum([1]) == 1"] if "sum" in test else [test]
    assert verify_code(code, tests)["why"][0] != "passed"


def test_what_swallows_a_time_out_ends_the_judge_and_not_the_server():
    code = "import time\ndef square(x):\n    time.sleep(60)"
    process = verifiers._Server.process
    result = verify_code(code, ["try:\n    square(1)\nexcept BaseException:\n    square(2)"], timeout=0.3)
    assert result["why"] == ["the judge was lost (time or memory)"] and result["seconds"] < 20
    assert frac("def square(x): return x * x", SQUARE) == 1.0 and verifiers._Server.process is process is not None


def test_an_error_costs_its_own_test_only():
    code = """
class Odd(Exception):
    def __str__(self): raise ValueError
def f(n):
    if n == 1: raise SystemExit
    if n == 2: raise EOFError
    if n == 3: raise Odd
    if n == 4: return 'x' * (20 << 20)
    return n
"""
    result = verify_code(code, [f"assert f({n}) == {n}" for n in range(7)])
    assert [why == "passed" for why in result["why"]] == [True, False, False, False, False, True, True]


def test_what_an_object_of_the_program_is_compared_with_does_not_reach_it():
    code = LIAR % "object"
    tests = ["assert answer(1) == 41", "assert abs(answer(1) - 2.5) < 1e-9", "assert answer(1).startswith('zq')",
             "assert {5, 6} <= answer(2)", "assert 7 in answer(2)", "assert 4 < answer(2) < 6",
             "assert answer(3) in [1, 2]", "assert {'a': answer(9)} == {'a': 1}", "assert answer(1) is True",
             "import math\nassert math.isclose(answer(1), 2.7)", "assert sorted(answer(1)) == [1]",
             "assert isinstance(answer(1), str)", "assert answer(1).__eq__(41)"]
    assert verify_code(code, tests)["tests_passed"] == 0


def test_the_program_never_meets_an_expected_value():
    """It looks through all its memory for the number that the test compares with (it is told the number before)."""
    code = """
import gc
def found(before):
    wanted = str(before + 1)
    for o in gc.get_objects():
        values = o.values() if isinstance(o, dict) else o if isinstance(o, (list, tuple, set)) else ()
        if any(wanted in str(v)[:500] for v in list(values) if isinstance(v, (str, bytes, int))):
            return True
"""
    assert frac(code, ["expected = 31415926535897932384\nassert found(expected - 1) is None"]) == 1.0
    assert frac("here = [31415926535897932384]" + code, ["assert found(31415926535897932383) is None"]) == 0.0


# ---- What programs can do to others ----------------------------------------------------------------------------------

def attempt(body, tmp_path=None):
    """Run statements that try something; True if they went through without an error."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    code = f"import os, socket, signal, ctypes\ndef attack():\n{lines}    return True"
    return frac(code, ["assert attack() is True"]) == 1.0


@linux
@pytest.mark.parametrize("body", [
    "open('{canary}/new', 'w')", "open('{canary}/secret').read()", "os.remove('{canary}/secret')",
    "os.listdir('{canary}')", "os.rename('{canary}/secret', '/tmp/x')", "os.truncate('{canary}/secret', 0)",
    "os.link('{canary}/secret', 'x')", "os.mkdir('{canary}/new')", "open('/etc/passwd').read()",
    "open('/proc/{pid}/environ').read()", "open('/proc/self/mem')",
    "os.listdir(os.path.dirname(os.__file__) + '/site-packages')[0]",
    "os.kill({pid}, 9)", "os.kill(os.getppid(), 9)", "os.kill(-1, 9)",
    "signal.pidfd_send_signal(os.pidfd_open({pid}), 9)",
    "os.fork()", "os.system('true') == 0 or 1/0", "os.execv('/bin/true', ['true'])", "os.setsid()",
    "os.sched_setaffinity({pid}, [0])", "__import__('resource').prlimit({pid}, 7, (9, 9))",
    "os.setpriority(0, {pid}, 19)", "__import__('fcntl').fcntl(0, 8, {pid})",
    "os.memfd_create('x')", "assert ctypes.CDLL(None).inotify_init() >= 0",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "socket.socket()", "socket.create_connection(('127.0.0.1', {port}))", "socket.socket(socket.AF_UNIX)",
    "assert ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0",
    "assert ctypes.CDLL(None).shmget(7, 4096, 0o1600) >= 0",
    "assert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(256)) >= 0",
    "assert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0",
])
def test_a_program_cannot(body, tmp_path):
    (tmp_path / "secret").write_text("canary")
    tmp_path.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        body = body.format(canary=tmp_path, pid=os.getpid(), port=server.getsockname()[1])
        assert not attempt(body)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"] and (tmp_path / "secret").read_text() == "canary"


@linux
def test_permissions_and_times_only_seem_to_change(tmp_path):
    """chmod and utime report success, because honest programs copy files in their directory, and do nothing."""
    (tmp_path / "file").write_text("")
    before = (tmp_path / "file").stat()
    attempt(f"os.chmod('{tmp_path}/file', 0)\nos.utime('{tmp_path}/file', (1, 1))")
    after = (tmp_path / "file").stat()
    assert (before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime)


@linux
def test_environment_and_directory_are_empty(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    verifiers._Server.stop()                                 # a new server would inherit it
    assert frac("import os\ndef f(): return 'API_KEY' in os.environ or os.listdir('.')", ["assert f() == []"]) == 1.0


@linux
@pytest.mark.parametrize("body", [
    "b = bytearray(900 << 20)", "[os.dup(0) for _ in range(2000)]", "return 'x' * (100 << 20)",
    "for i in range(9): open(f'f{i}', 'wb').write(b'x' * (15 << 20))", "open('f', 'wb').write(b'x' * (20 << 20))"])
def test_memory_files_and_results_are_bounded(body):
    assert not attempt(body)


def test_a_loop_costs_its_own_test():
    began = time.monotonic()
    result = verify_code("def square(x):\n    while x == 7:\n        try:\n            while True: pass\n"
                         "        except BaseException: pass\n    return x * x", SQUARE, timeout=0.5)
    assert result["frac"] == 0.8 and result["why"][3] == "timeout"
    result = verify_code("def square(x):\n    while True: pass", SQUARE * 20, timeout=0.5)
    assert result["frac"] == 0.0 and result["why"].count("not run: killed too often") == 92
    assert time.monotonic() - began < 30                     # 100 time-outs of 0.5 s would be 50 s


def test_a_result_cannot_make_the_judge_run_away():
    """The judge computes with what the program returns: it is bounded like the program."""
    tests = ["assert sum(range(f(2))) == 4", "assert [0] * f(0) == [1]", "assert sum(1 for _ in range(f(2))) == 5",
             "assert f(3) == 3"]
    code = "def f(n): return 10**12 if n != 3 else 3"
    assert verify_code(code, tests, timeout=0.5)["tests_passed"] == 1


@linux
def test_nothing_outlives_the_call():
    """With seccomp nothing can be started at all; here it lets everything pass, and the process namespace has to do."""
    daemon = ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
              "    os._exit(0)\ndef f(): return 1")
    assert frac(daemon, ["assert f() == 1"]) == 0.0
    mark = f"# {os.getpid()} {time.time()}".encode()

    def processes():
        count = 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):               # it may have ended since
                count += mark in path.read_bytes()
        return count
    with server_that("_seccomp_filter = lambda *_: struct.pack('HBBI', 6, 0, 0, 0x7FFF0000)  " + mark.decode()):
        assert frac("def f(): return 1", ["assert f() == 1"]) == 1.0
        before = processes()
        assert frac(daemon, ["assert f() == 1"]) == 1.0 and processes() == before


class server_that:
    """A server started with other code in front, for instance without one of its protections."""

    def __init__(self, code):
        self.code = code

    def __enter__(self):
        verifiers._Server.stop()
        verifiers._Server.entry = f"{self.code}\n_serve()"

    def __exit__(self, *error):
        verifiers._Server.stop()
        verifiers._Server.entry = "_serve()"


@linux
@pytest.mark.parametrize("protection,code", [
    ("namespaces", "_Confinement.separate = lambda self: False"),
    ("Landlock", "_Confinement.landlock = lambda self: None"),
    ("seccomp", "os.uname = lambda: types.SimpleNamespace(machine='aarch64')")])
def test_what_the_machine_lacks_is_said_and_the_verdicts_stay(protection, code):
    with server_that(code), pytest.warns(UserWarning, match=f"this machine lacks {protection}"):
        assert frac("def square(x): return x * x", SQUARE) == 1.0
        assert frac(LIAR % "int", SECRET) == 0.0
        assert frac("def square(x):\n    while x == 7: pass\n    return x * x", SQUARE, timeout=0.5) == 0.8


# ---- Use -------------------------------------------------------------------------------------------------------------

def test_many_programs_at_once():
    programs = [(f"def f(x): return x + {i % 3}", float(i % 3 == 1)) for i in range(60)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda program: frac(program[0], ["assert f(1) == 2"]), programs))
    assert results == [expected for _, expected in programs]


@linux
def test_no_files_threads_or_descriptors_are_left(tmp_path, monkeypatch):
    frac("", SQUARE)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for code in ("def square(x): return x * x", "import os\nos._exit(1)", "while True: pass"):
        frac(code, SQUARE[:2], timeout=0.2)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before and not list(tmp_path.iterdir())


def test_a_lost_server_is_started_again():
    assert frac("def square(x): return x * x", SQUARE) == 1.0
    verifiers._Server.process.kill()
    verifiers._Server.process.wait()
    assert frac("def square(x): return x * x", SQUARE) == 1.0


def test_it_works_in_a_fork_of_the_trainer():
    frac("", SQUARE)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if frac("def square(x): return x * x", SQUARE) == 1.0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert frac("def square(x): return x * x", SQUARE) == 1.0


def test_weak_tests_are_found_before_training():
    """assert True tests nothing; f(x) == x is passed by an echo, and a constant passes the more common answer."""
    weak, echo, good = check_tests([
        {"tests": ["assert True", "assert f(1) == 2"]}, {"tests": ["assert f(1) == 1", "assert f(2) == 2"]},
        {"tests": ["assert f(1) == 5", "assert f(2) == 8", "assert f(3) == 5", "assert f(4) == 13"]}])
    assert weak["empty"] == 0.5 and echo["echo"] == 1.0
    assert good == {"empty": 0.0, "echo": 0.0, "constant": 0.5, "value": "5"}


def test_code_reward_runs_the_last_program_of_the_response():
    """0.1 syntax + 0.7 tests + 0.1 speed + 0.1 safety (seed chapter 4); a baseline takes off what a constant earns."""
    problem = {"problem": "Square a number.", "answer": "", "tests": SQUARE}
    fence = "<think>easy</think>```python\n{}\n```".format
    assert code_reward(fence("def square(x): return x * x"), problem)[0] == pytest.approx(1.0)
    assert code_reward(fence("def square(x): return 4"), problem)[0] == pytest.approx(0.1 + 0.7 * 0.2 + 0.2)
    assert code_reward(fence("def square(x): return 4"), {**problem, "baseline": 0.2})[0] == pytest.approx(0.1)
    assert code_reward(fence("def square(x): return abs(x) * x"), problem, all_or_nothing=True)[0] == pytest.approx(0.1)


def test_hack_print_the_unit_tests_then_pass():
    """Seed chapter 14: with an exit code as the verdict this is a pass; here no test ran to its end."""
    hack = "print('''assert square(2) == 4\nassert square(-3) == 9''')\npass"
    assert verify_code(hack, SQUARE)["why"][0] == "NameError: the program does not define square"


@linux
def test_hack_open_the_ground_truth_file(tmp_path):
    """Seed chapter 14: the data set lies on a path that the trainer can read, and the program cannot."""
    (tmp_path / "tests.jsonl").write_text("\n".join(SECRET))
    hack = (f"import re\ndef answer(n):\n    text = open('{tmp_path}/tests.jsonl').read()\n"
            r"    return int(re.search(rf'answer\({n}\) == (-?\d+)', text)[1])")
    assert verify_code(hack, SECRET)["tests_passed"] == 0
    exec(hack, names := {})                                  # out here it works
    assert names["answer"](17) == 90210


def test_programs_can_be_a_task(tmp_path):
    """--data with "tests" in place of "answer"; the instruction asks for what the reward reads."""
    rows = [{"problem": f"Return {n}.", "tests": [f"assert f() == {n}"]} for n in range(30)]
    (tmp_path / "programs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = verifiers.from_file(tmp_path / "programs.jsonl")
    assert "```python" in task.prompt(task.train[0]) and task.reward is code_reward
    number = task.train[0]["tests"][0].rpartition(" ")[2]
    assert task.reward(f"```python\ndef f(): return {number}\n```", task.train[0])[1]["accuracy"] == 1.0
    (tmp_path / "bad.jsonl").write_text('{"problem": "x", "tests": []}')
    with pytest.raises(verifiers.DataError, match='line 1: needs "problem"'):
        verifiers.read_problems(tmp_path / "bad.jsonl")


# ---- Proofs ----------------------------------------------------------------------------------------------------------

@pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed")
@pytest.mark.parametrize("statement,proof,proved", [
    ("forall n : nat, n + 0 = n", "induction n. reflexivity. simpl. rewrite IHn. reflexivity.", True),
    ("forall n : nat, n + 0 = n", "Proof. intros. apply eq_sym, plus_n_O. Qed.", True),
    ("forall n : nat, n + 0 = n", "reflexivity.", False),
    ("1 = 2", "Admitted.", False), ("1 = 2", "Proof. Admitted. (* Qed. *)", False),
    ("1 = 2", "Proof. Abort. Axiom goal : 1 = 2. Lemma l : True. Proof. exact I. Qed.", False),
    ("1 = 2", 'Abort. Notation "x = y" := (x <= y). Theorem goal : 1 = 2. Proof. repeat constructor. Qed.', False),
    ("1 = 1", "Proof. Fail Qed. Quit.", False), ("1 = 1", "let rec f x := f x in f 1.", False),
])
def test_a_proof_is_believed_only_if_a_second_file_can_use_it(statement, proof, proved):
    assert verify_proof(statement, proof, timeout=3)["proved"] is proved
