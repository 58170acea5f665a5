"""What a message of the program can do in the judge: the header of sandbox.py, sentence by sentence.

The programs here speak the protocol itself. `send(kind, *values)` writes a message as the player's
end of the line does; numbers that the judge has given are even, so what a test lends first is [2].
"""

import re
from pathlib import Path

import pytest

from verifiers import verify_code

HEADER = (Path(__file__).resolve().parents[1] / "sandbox.py").read_text().split('"""')[1]
SPEAK = """
import json, os
def send(kind, *values, changed=()):
    os.write(3, (json.dumps([kind, list(values), list(changed), ""]) + "\\n").encode())
def hear():
    kind, content, _, _ = json.loads(os.read(3, 2**20))
    return kind, content
BASE = "builtins.BaseException "
def answered(value):
    send("value", value)
    os.read(3, 1)  # the judge goes on: what it says next is no business of this program
"""
BROKEN = "the program broke the line"


def why(body, *tests, **options):
    """f answers by raw messages -> what is said of each test."""
    code = SPEAK + "def f(*lent):\n    " + body.replace("\n", "\n    ")
    return verify_code(code, tests, entry_points=["f"], timeout=1.0, **options)["why"]


def value(data):
    return f"send('value', {data})"


def asked(operation, *arguments):
    """Ask the judge, and show its answer to the test as a text."""
    arguments = ", ".join(arguments)
    return f"send('{operation}', {arguments})\nreturn json.dumps(hear())"


def test_the_page_has_at_most_fifteen_sentences():
    numbers = [int(number) for number in re.findall(r"^    (\d+)   ?[A-Z]", HEADER, re.M)][-15:]
    assert numbers == [*range(1, 16)]


@pytest.mark.parametrize(
    "body",
    [
        "os.write(3, b'7 apples\\n')",
        "os.write(3, b'[1, 2]\\n')",
        "send('value', {'int': [1], 'str': ['a']})",
    ],
)
def test_1_it_is_a_line_of_json(body):
    assert why(body, "f()") == [BROKEN]


def test_1_of_at_most_16_mb():
    body = "for _ in range(17): os.write(3, b'x' * 2**20)"
    assert why(body, "f()") == ["a result too large"]


@pytest.mark.parametrize(
    "data, python",
    [
        ("[None, 'a', 2.5]", None),
        ("{'tuple': [1, 'a', None]}", "(1, 'a', None)"),
        ("{'list': [91, [], [1, {'tuple': []}]]}", "[1, ()]"),
        ("{'set': [91, [], [1, 2]]}", "{1, 2}"),
        ("{'dict': [91, [], ['a', 1]]}", "{'a': 1}"),
        ("{'bytes': ['ab', 'latin-1']}", "b'ab'"),
        ("{'range': [0, 3, 1]}", "range(3)"),
    ],
)
def test_2_it_may_bring_data_of_a_closed_list_of_types(data, python):
    assert why(value(data), f"assert f() == {python}")[0] == ("passed" if python else BROKEN)


@pytest.mark.parametrize(
    "name",
    [
        "type",
        "object",
        "super",
        "eval",
        "map",
        "property",
        "generator",
        "partial",
        "SimpleNamespace",
    ],
)
def test_3_no_other_type_or_function_makes_a_value(name):
    assert why(value({name: ["x", 1]}), "f()") == [BROKEN]


def test_3_each_is_made_out_of_data():
    """No object of the program stands where its type wants a number."""
    for data in (
        "{'range': [[3], 1, 1]}",
        "{'bytes': [10**9]}",
        "{'timezone': [[3]]}",
        "{'Decimal': [[3]]}",
    ):
        assert why(value(data), "f()")[0] != "passed", data


def test_4_it_may_change_the_contents_of_containers_but_not_what_they_are():
    change = "send('value', 1, changed=[{%s}])"
    assert why(change % "'list': [2, [], [5]]", "x = [1]\nf(x)\nassert x == [5]") == ["passed"]
    assert why(change % "'dict': [2, [], [5, 6]]", "x = [1]\nf(x)") == [BROKEN]
    assert why(change % "'list': [99, [], [5]]", "x = [1]\nf(x)\nassert x == [1]") == ["passed"]


def error(names, args="", state=""):
    return f"send('error', {{'error': [BASE + '{names}', {{'tuple': [{args}]}}, {{'dict': [9, [], [{state}]]}}]}})"


CATCH = "try:\n    f()\nexcept {} as error:\n    {}\nelse:\n    raise SystemExit"


def test_5_an_exception_is_pythons_or_empty_with_such_a_base():
    lookup = CATCH.format(
        "LookupError", "assert type(error).__name__ == 'Lost' and error.args == (7,)"
    )
    own = "builtins.Exception builtins.LookupError solution.Lost"
    assert why(error(own, "7"), lookup) == ["passed"]
    assert why(
        error("builtins.Exception builtins.ValueError", "7"), CATCH.format("ValueError", "pass")
    ) == ["passed"]
    for names in ("builtins.int", "builtins.object", "builtins.type"):
        assert why(f"send('value', {{'error': ['{names}']}})", "f()") == [BROKEN], names
    empty = "assert not [n for n in vars(type(error)) if not n.startswith('__')]"
    assert why(error(own), CATCH.format("LookupError", empty)) == ["passed"]


def test_6_what_it_calls_assertion_error_catches_no_assertion():
    for name in ("builtins.Exception", "builtins.Exception builtins.AssertionError"):
        test = "E = f()\ntry:\n    assert False\nexcept E:\n    pass"
        assert why(f"send('value', {{'error': [BASE + '{name}']}})", test) == ["AssertionError"]


def test_7_the_attributes_of_an_exception_are_data():
    own = "builtins.Exception solution.E"
    assert why(
        error(own, state="'code', 41"), CATCH.format("Exception", "assert error.code == 41")
    ) == ["passed"]
    lent = "'startswith', [3], 'count', {'error': [BASE + 'builtins.KeyError']}, '__class__', 5, '_x', 6"
    nothing = "assert {*vars(error)} == set() and not hasattr(error, 'startswith')"
    assert why(error(own, state=lent), CATCH.format("Exception", nothing)) == ["passed"]


def test_8_and_9_an_object_equals_no_value_and_is_told_of_none():
    for test in (
        "f() == 41",
        "f() in [41]",
        "41 in f()",
        "f() - 41 == 0",
        "f() < 42",
        "f().startswith('zq')",
    ):
        said = why("answered([3])", f"assert {test}")[0]
        assert re.match("AssertionError|TypeError|AttributeError|the program", said), (test, said)


def test_10_it_may_call_and_iterate_what_the_test_has_lent():
    call = asked("call", "[2]", "{'tuple': [4]}")
    assert why(call, "assert f(lambda n: n + 1) == '[\"value\", [5]]'") == ["passed"]
    assert why(asked("bool", "[2]"), "assert f(lambda: 1) == '[\"value\", [true]]'") == ["passed"]


LENT = "class A:\n    x = 41\n    _y = 42\n"


def test_11_of_an_instance_of_a_class_of_the_test_it_may_use_what_is_public():
    assert why(asked("getattr", "[2]", "'x'"), LENT + "assert '41' in f(A())") == ["passed"]
    assert why(asked("getattr", "[2]", "'_y'"), LENT + "assert '42' in f(A())") != ["passed"]


@pytest.mark.parametrize(
    "ask",
    [
        asked("getattr", "[2]", "'__globals__'"),
        asked("getattr", "[2]", "'gi_frame'"),
        asked("getattr", "'{0.x}'", "'format'"),
        asked("look_up", "'f'"),
        asked("load", "''", "'1'"),
        asked("main", "''", "''"),
        asked("await", "[2]"),
        asked("exec", "'1'"),
        asked("getattr", "{'error': [BASE + 'builtins.Exception']}", "'mro'"),
        asked("format", "'{0.__class__}'", "[2]"),
        asked("setattr", "[2]", "'x'", "1"),
    ],
)
@pytest.mark.parametrize("lent", ["lambda: 1", "(n for n in [1])"])
def test_12_it_may_ask_for_nothing_else(ask, lent):
    assert why(ask, f"assert f({lent}).startswith('[\"error\"')") == ["passed"]


@pytest.mark.parametrize(
    "name", ["type", "getattr", "eval", "str.format", "operator.attrgetter", "len"]
)
def test_13_pythons_own_are_never_lent(name):
    """The first thing lent would be [2]. Here it names nothing of the judge's: the call comes back."""
    body = (
        "send('call', [2], {'tuple': [1]})\nkind, _ = hear()\nsend('value', 1)\nhear()\nreturn kind"
    )
    assert why(body, f"import operator\nassert f({name}) == 'call'") == ["passed"]


def test_14_an_error_while_it_is_read_ends_the_program():
    test = "try:\n    f()\nexcept Exception:\n    pass"
    assert why(value("{'pickle': ['x']}"), test) == [BROKEN]


@pytest.mark.parametrize(
    "data", ["{'range': [0, 10**100, 1]}", "'x' * 2**23", "{'list': [91, [], [*range(10**5)]]}"]
)
def test_15_within_the_limits_of_time_and_memory(data):
    verdict = verify_code(
        SPEAK + f"def f(): send('value', {data})", ["assert f() == 41"], timeout=1.0
    )
    assert verdict["frac"] == 0 and verdict["seconds"] < 4
