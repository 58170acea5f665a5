"""The page of safety: it tests each sentence of sandbox.py's header with raw lines that a program writes and reads."""

import os
import re

import pytest

from appendix import sandbox
from verifiers import verify_code

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="programs are run only where there is fork"
)

PLAYER = """
import json, os, time
def write(line):
    data = line.encode() + b"\\n"
    while data: data = data[os.write(3, data):]
def send(value): write('["value", [' + value + '], [], ""]')
def say(kind, *content, changed=(), output=""):
    write(json.dumps([kind, content, changed, output]))
def hear():
    data = b""
    while not data.endswith(b"\\n"): data += os.read(3, 2**16)
    return json.loads(data)
def kind(name, module="builtins"): return {"type": [module, name]}
def tup(*items): return {"tuple": ["tuple", None, *items]}
def row(fields, *items): return {"tuple": ["Row", tup(*fields), *items]}
def error(name, args=(), state=(), module="builtins"):
    return {"BaseException": [module, name, tup(*args), {"dict": [93, [], state]}]}
"""


def answered(line, test):
    """Let the program answer f(..) with a line of its own. Returns the result's reason; it takes less than 2 s."""
    code = f"{PLAYER}def f(*args):\n    {line}\n    hear()"
    result = verify_code(code, [test], timeout=0.5)
    assert result["seconds"] < 2
    return result["why"][0]


def asked(question, lent, before="pass"):
    """Let the program ask a question about what f has been lent, number 2. Returns the judge's answer."""
    code = f"{PLAYER}def f(*args):\n    say({question})\n    return str(hear())"
    test = f"{before}\nraise ValueError(f({lent}))"
    return verify_code(code, [test], timeout=0.5)["why"][0]


def caught(kind, check):
    return f"try:\n    f()\nexcept {kind} as e:\n    assert {check}"


NO_METHOD = "assert not hasattr(f(), 'startswith')"
SPECIAL = ["__class__", 1, "__traceback__", 2]
IS_REAL = "isinstance(e, KeyError) and e.__traceback__.tb_frame"
PASSES = [
    (1, "send('5')", "assert f() == 5"),
    (2, "say('value', {'range': [0, 3, 1]})", "assert f() == range(3)"),
    (2, "say('value', tup({'Decimal': ['0.10']}))", "assert str(f()[0]) == '0.10'"),
    (3, "say('value', {'list': [91, [], [[91]]]})", "x = f()\nassert x[0] is x"),
    (3, "say('value', 1, changed=[{'list': [2, [], [7]]}])", "x = [5]\nf(x)\nassert x == [7]"),
    (4, "say('value', [91])", "x = f()\nassert x != 5 and callable(x)"),
    (5, "say('error', error('ValueError', ['a']))", caught("ValueError", "e.args == ('a',)")),
    (2, "say('value', row(['x', 'y'], 3, 4))", "p = f()\nassert p == (3, 4) and p.y == 4"),
    (2, "say('value', row(['index'], [91]))", "assert type(f()) is tuple"),
    (2, "say('value', row(['index'], kind('ValueError')))", "assert type(f()) is tuple"),
    (7, "say('error', error('KeyError', [], ['code', 7]))", caught("KeyError", "e.code == 7")),
    (7, "say('error', error('KeyError', [], ['args', 3]))", caught("KeyError", "e.args == ()")),
    (7, f"say('error', error('KeyError', [], {SPECIAL}))", caught("KeyError", IS_REAL)),
    (7, "say('value', error('Exception', [], ['startswith', [91]]))", NO_METHOD),
    (7, "say('value', error('Exception', [], ['startswith', kind('ValueError')]))", NO_METHOD),
    (12, "say('value', 5, output='hi')", "import sys\nf()\nassert sys.stdout.getvalue() == 'hi'"),
]
BROKEN = "the program broke the line"
ENDED = "the program ended, or its result is too large"
ANY_ERROR = "try:\n    f()\nexcept Exception:\n    pass"
CLEAR = "class A:\n    def clear(self): print('called')\nf(A())"
OWN_ASSERT = "try:\n    assert False\nexcept f():\n    pass"
NO_MESSAGES = r"""
1: write('7 apples') | write('7') | write('[' * 100000)
2: say('value', {'module': ['os']}) | say('value', {'bytes': [10**12]})
2: say('value', {'int': [1], 'str': ['a']}) | send('{"tuple": [' * 5000 + '7' + ']}' * 5000)
2: say('value', {'timezone': [[91]]}) | say('value', {'_Remote': []})
3: say('value', {'set': [93, [], [{'list': [95, [], []]}]]})
4: say('value', [77, 79]) | say('value', [[77]])
5: say('value', kind('int')) | say('value', kind('len')) | say('value', kind('L', 'solution'))
5: say('value', error('KeyboardInterrupt'))
8: say('value', row(['__eq__'], 1)) | say('value', row(['x; import os'], 1))
8: say('value', {'of Python': ['builtins', 'len']}) | say('value', {'type': ['L', 'object']})"""
FAILS = [
    (1, "write('x' * 2**25)", ANY_ERROR, (ENDED, "timeout")),  # on a slow machine it is late
    (1, "send('9' * 10**6)", "assert f() == 41", ("AssertionError", "timeout")),
    (1, "send('')", "[*map(f, [1, 2])]", BROKEN),
    (2, "say('value', {'range': [0, 10**100, 1]})", "assert f() == 41", "AssertionError"),
    (3, "say('value', 1, changed=[{'list': [2, [], [7]]}])", "f(lambda: 1)", BROKEN),
    (3, "say('value', 1, changed=[{'set': [2, [], [7]]}])", CLEAR, BROKEN),
    (3, "say('value', 1, changed=[{'dict': [2, [], [7, 7]]}])", "f([5])", BROKEN),
    (4, "say('value', [2])", "assert f(lambda: 1) == 41", "AssertionError"),
    (4, "say('value', [91])", "assert f() == 5", "AssertionError"),
    (4, "say('value', [91])", "assert 5 == f()", "AssertionError"),
    (4, "say('value', [91])", "assert f() < 5", "TypeError"),
    (5, "say('value', kind('L', '__main__'))", "class L(Exception): pass\nf()", BROKEN),
    (5, "say('value', {'type': [[2], 'L']})", "f(lambda: 1)", BROKEN),
    (5, "say('value', {'BaseException': [[2], 'L', tup(), {}]})", "f(len)", BROKEN),
    (6, "say('error', error('AssertionError'))", "f()", "AssertionError"),
    (6, "say('value', kind('BaseException'))", OWN_ASSERT, BROKEN),
    (6, "say('value', kind('Exception'))", OWN_ASSERT, "AssertionError"),
    (6, "say('value', kind('AssertionError'))", OWN_ASSERT, "AssertionError"),
    (6, "say('value', tup(kind('AssertionError'), kind('Exception')))", OWN_ASSERT, "Assertion"),
    (13, "say('error', error('StopIteration'))", "[*map(f, [1, 2])]", "RuntimeError"),
    (13, "say('error', kind('StopIteration'))", "[*map(f, [1, 2])]", "RuntimeError"),
    (13, "say('error', error('SystemExit'))", "f()", "SystemExit"),
    (13, "say('error', 7)", "f()", "TypeError"),
    (14, "time.sleep(9)", "try:\n    f()\nexcept BaseException:\n    pass", "timeout"),
]
for line in NO_MESSAGES.strip().splitlines():
    sentence, _, messages = line.partition(": ")
    FAILS += [(int(sentence), each, ANY_ERROR, BROKEN) for each in messages.split(" | ")]
OPEN = [
    (9, "'call', [2], tup(3)", "lambda x: x + 1", "['value', [4]"),
    (9, "'iter', [2]", "iter([7])", "['value', "),
    (9, "'bool', [2]", "lambda: 1", "['value', [True]"),
    (9, "'eq', [2], [2]", "lambda: 1", "['value', [True]"),
    (9, "'hash', [2]", "lambda: 1", "['value', ["),
    (9, "'len', [2]", "{7: 8}.items()", "['value', [1]"),
    (9, "'getattr', [2], '__name__'", "fail", "['value', ['fail']"),
    (10, "'getattr', [2], 'x'", "A()", "['value', [5]"),
    (10, "'len', [2]", "A()", "['value', [3]"),
]
REFUSED = """
8 -- 1 -- 'load', '', 'x = 1' | 'look_up', 'x' | 'main', '1', '' | 'exec', '1' | 'getattr', 'x', 'format'
8 -- 1 -- 'getattr', kind('Exception'), 'mro'
8 -- lambda: 1 -- 'await', [2]
9 -- 1 -- 'call', kind('Exception'), tup()
10 -- 1 -- 'getattr', error('Exception'), 'with_traceback'
10 -- A() -- 'setattr', [2], 'double', 7 | 'getattr', [2], '_secret' | 'getattr', [2], '__class__'
10 -- A() -- 'setattr', [2], '__class__', 1 | 'getattr', [2], {'str': ['__dict__']}
11 -- lambda: 1 -- 'getattr', [2], '__globals__'
11 -- (i for i in [1]) -- 'getattr', [2], 'gi_frame'
11 -- sys._getframe() -- 'getattr', [2], 'f_back'
11 -- sys -- 'getattr', [2], 'modules' | 'str', [2] | 'format', [2], ''
11 -- error.__traceback__ -- 'getattr', [2], 'tb_frame'
11 -- A -- 'getattr', [2], 'x'
11 -- iter([1]) -- 'getitem', [2], 0"""
NOTHING = "{'tuple': ['tuple', None]}, {'dict': [4, [], []]}"
CLOSED = [
    (8, "'call', {'of Python': ['builtins', 'eval']}, tup('1')", "1", BROKEN),
    (11, "'call', [2], tup()", "fail", f"['builtins', 'KeyError', {NOTHING}]"),
]
for line in REFUSED.strip().splitlines():
    sentence, lent, questions = line.split(" -- ")
    CLOSED += [(int(sentence), each, lent, "not open") for each in questions.split(" | ")]
BEFORE = """
class A:
    x = 5
    _secret = 6
    def double(self): return 2
    def __len__(self): return 3
def fail(): raise KeyError
try: fail()
except KeyError as e: error = e"""


def test_the_page_has_at_most_fourteen_sentences_and_each_has_a_test():
    page = sandbox.__doc__.partition("What a message of the program can do")[2]
    numbers = [int(number) for number in re.findall(r"^ {4,5}(\d+)  ", page, re.M)]
    held = {case[0] for case in [*PASSES, *FAILS, *OPEN, *CLOSED]}
    assert numbers == [*range(1, len(numbers) + 1)] and len(numbers) <= 14
    assert held == {*numbers}


@pytest.mark.parametrize("sentence, line, test", PASSES)
def test_what_a_message_can_do(sentence, line, test):
    assert answered(line, test) == "passed"


@pytest.mark.parametrize("sentence, line, test, why", FAILS)
def test_what_a_message_cannot_do(sentence, line, test, why):
    assert answered(line, test).startswith(why)


@pytest.mark.parametrize("sentence, question, lent, answer", OPEN)
def test_what_may_be_asked_of_what_is_lent(sentence, question, lent, answer):
    assert asked(question, lent, BEFORE).removeprefix("ValueError: ").startswith(answer)


@pytest.mark.parametrize("sentence, question, lent, answer", CLOSED)
def test_what_may_not_be_asked(sentence, question, lent, answer):
    assert answer in asked(question, lent, BEFORE)


def test_a_program_cannot_have_the_judge_make_an_object_of_its_class():
    """Otherwise the test might compute with such an object. (What the judge looked up first has number 1.)"""
    code = f"{PLAYER}class V:\n    pass\ndef f(*args):\n    say('call', [1], tup())\n"
    code += "    raise ValueError(str(hear()))"
    why = verify_code(code, ["from solution import V, f\nassert abs(f() - 2.5) < 1"])["why"][0]
    assert "not open to the program" in why


CLOCKS = {
    "its own alarm ends": "signal.alarm(2)\nassert f(0) == 0\nsignal.alarm(0)",
    "its own handler of the judge's alarm goes on": "signal.signal(signal.SIGALRM, print)",
    "what no stand-in covers": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])",
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_test_does_not_stop_the_judges_clock(no_hang, name):
    """The program sends half a line and sleeps. The trainer waits no longer than its own limit."""
    code = (
        "import os, signal, time\ndef f(x):\n    if x == 0: return 0\n"
        "    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "    os.write(3, b'[\"val')\n    while True: time.sleep(1)"
    )
    test = f"import signal\n{CLOCKS[name]}\nassert f(1) == 2"
    assert verify_code(code, [test], timeout=0.5)["frac"] == 0.0


@pytest.mark.parametrize("lent", ["(i for i in 'ab')", "iter('ab')", "{'a': 1, 'b': 2}.items()"])
def test_a_program_makes_a_list_of_an_iterator_that_is_lent(lent):
    """list(it) asks for len(it) first, and takes only a TypeError for "it has none"."""
    code = "def f(it): return [len(list(it))]"
    assert verify_code(code, [f"assert f({lent}) == [2]"])["why"] == ["passed"]
