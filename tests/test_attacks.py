r"""What a policy, or a stranger, might try on the math grader.  Run: pytest tests/test_attacks.py

Hostile text is only data: it takes little time and leaves nothing behind. The last part plays the
policy: it changes one token of a right answer, and tries to be rewarded for it.
"""

import re
import sys
from concurrent.futures import ThreadPoolExecutor

from appendix import grading
import pytest
from test_grading import ACCEPTS, GOLDS, REJECTS
from verifiers import grade_answer


# ---- Hostile text is only data -------------------------------------------------------------------
OPENING = [r"\lfloor ", r"\langle "]
OPENING += r"""( [ { \{ \frac{ \frac1 \sqrt{ \sqrt[ x^ x^{ x_ x_{ \left( \boxed{ \text{ \begin{pmatrix} \sin \log_ f( \sum_ \binom{ 1/ 1-""".split()
HOSTILE = {
    "code": "__import__('os').system('touch pwned')",
    "dunder": "().__class__.__bases__[0].__subclasses__()",
    "format": "{0.__class__}",
    "python tower": "9**9**9**9",
    "braced tower": "9^{9^{9^{9^{9}}}}",
    "tower of x": "x^{x^{x^{x^{x^{x}}}}}",
    "negative tower": "2^{-10^{10^{10}}}",
    "factorials": "((((9!)!)!)!)!",
    "big factorial": "(10^{12})!",
    "many factorials": "x!+" * 400 + "1",
    "binomial": r"\binom{10^9}{5\cdot 10^8}",
    "binomial of x": r"\binom{10^6x}{10^5x}" * 20,
    "sine of huge": r"\sin(10^{10^6})",
    "exp of exp": r"\exp(\exp(\exp(\exp(100))))",
    "floor": r"\lfloor e^{10^9} \rfloor",
    "root": r"\sqrt[10^{12}]{3}",
    "base": "1" * 900 + "_{36}",
    "scientific": "1e999999999",
    "tiny": "1e-999999999",
    "digits": "7" * 5000,
    "digits in a fraction": r"\frac{" + "7" * 990 + "}{" + "3" * 450 + "}",
    "signs": r"\pm 1" * 20,
    "three signs a list": r"1\pm 2\pm 3\pm 4," * 60 + "1",
    "minus signs": "-" * 1400 + "5",
    "letters": "x," * 700 + "y",
    "unions": r"(1,2)\cup" * 150 + "(3,4)",
    "holes": r"(0,1)\setminus\{\sqrt{2}\}" * 48,
    "matrix": r"\begin{pmatrix}" + r"1&x\\" * 200 + r"\end{pmatrix}",
    "scaled matrix": r"(\sin x)^{x}" * 60 + r"\begin{pmatrix}" + "x&" * 200 + r"x\end{pmatrix}",
    "long sum": "+".join(f"{a}^{b}{a}" for a in "abcdfghjklmnopqrstuvwxyz" for b in "23456789"),
    "sum in brackets": "(" * 15 + "1+x+" * 350 + "1",
    "many sines": r"\sin x+" * 200 + "x",
    "many roots": r"\sqrt" * 280 + "x",
    "words": "east " * 290,
    "quotes": '"' * 1400,
    "nulls": "5\0" * 700,
    "surrogates": "\ud800\udfff" * 700,
    "ligatures": "\ufdfa" * 1400,
    "superscripts": "2" + "⁹" * 1400,
    "combining": "e\u0301\u0302" * 400,
    "spaces": " " * 10**5 + "5 5",
    "backslashes": "\\" * 1499,
    "relations": "x<" * 700 + "5",
    "bars": "|" * 1400,
    **{f"deep {b}": b * (1490 // len(b)) for b in OPENING},
    "long": "(" * 10**6,
}


REGIONS = {
    "holes": r"\cap".join([r"(\R \setminus \{0, 100, 200\})"] * 8),
    "more holes": r"\cap".join([r"(\R \setminus \{0, 100, 200\})"] * 40),
    "intervals": r"\cup".join(f"({i}, {i + 1})" for i in range(0, 200, 2)),
    "nested": r"(0,9) \setminus (" * 20 + r"(1,2)" + r" \cup (3,4))" * 20,
    "cut": r"\cap".join(f"((0, {i}) \\cup ({i + 1}, 99))" for i in range(1, 50)),
}


@pytest.mark.parametrize("truth", ["5.5", r"x+\frac12", r"\{\sqrt2, x\}"])
def test_hostile_text_is_only_data(truth, tmp_path, monkeypatch, no_hang):
    monkeypatch.chdir(tmp_path)
    for name, text in HOSTILE.items():
        assert grade_answer(text, truth) is False, name
        assert grade_answer(truth, text) is False, name
    assert not list(tmp_path.iterdir())


def test_hostile_on_both_sides(no_hang):
    for name, text in HOSTILE.items():
        assert grade_answer(text + "1", text + "2") is False, name


def count_calls(*pair):
    """Count the grader's Python calls. (Seconds would depend on the machine, and on the depth of the
    stack.)"""
    events = []
    grading._normalise.cache_clear()
    sys.setprofile(lambda frame, event, arg: events.append(event))
    grade_answer(*pair)
    sys.setprofile(None)
    return events.count("call")


def test_work_is_bounded():
    most, name = max((count_calls(text, "x+1"), name) for name, text in HOSTILE.items())
    assert most < 200_000, name


def test_nested_sets_do_not_double_the_work():
    deep = [r"\{1," * 15 + last + r"\}" * 15 for last in ("7", "7.0", "8")]
    assert grade_answer(deep[0], deep[1]) and not grade_answer(deep[0], deep[2])


@pytest.mark.parametrize("text", REGIONS.values(), ids=REGIONS)
def test_a_region_of_many_pieces_is_read_at_once(text):
    regions = r"(0,1) \cup (2,3)"
    assert count_calls(text, regions) < 50_000 and grade_answer(text, regions) is False


def test_a_union_has_no_order():
    pieces = [f"({2 * i}, {2 * i + 1})" for i in range(24)]
    pair = r"\cup".join(pieces), r"\cup".join(reversed(pieces))
    assert count_calls(*pair) < 50_000 and grade_answer(*pair)


def test_from_a_deep_stack():
    def dive(n):
        return grade_answer(r"x+\frac12", "x + 0.5") if n == 0 else dive(n - 1)

    assert dive(100) is True
    assert all(isinstance(dive(n), bool) for n in (600, 700, 800))


@pytest.mark.parametrize("value", [None, 5, 5.0, b"5", ["5"], float("nan")])
def test_other_types_are_no_answer(value):
    assert grade_answer(value, "5") is False and grade_answer("5", value) is False


def test_threads_agree():
    """mpmath changes the precision of its context while it works, so threads must not share one."""
    cases = [(t, a, True) for t, a, _ in ACCEPTS] + [(t, a, False) for t, a, _ in REJECTS]

    def wrong(offset):
        turned = cases[offset:] + cases[:offset]
        return [(t, a) for t, a, right in turned if grade_answer(a, t) is not right]

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(wrong, (0, 17, 34, 51))] == [[]] * 4


MUTABLE = r"""
3 | 1,234 | 2\frac{3}{4} | x^{12} | 5\text{ cm} | 30\text{ minutes} | 7\text{ feet}
12\text{ hours} | \frac{a-b}{c} | 3-4i | (1,2,3) | \overline{AB} | \overrightarrow{PQ}
\angle ABC | \triangle DEF | \vec{uv} | \overline{zw} | \angle PQR | \widehat{AC}
\frac{1}{2x} | (x-1)(x+3) | 2(a-3b) | \sqrt{x+1} | \frac{5}{\sqrt{7}} | 100-25\pi
4-2\sqrt{3} | 1-\frac{1}{x} | 3:5 | 12:30 | 1011_2 | 204_5 | 5! | 10^{-3} | 6.02 \times 10^{23}
\frac{2x+3}{x^2-1} | a^2b-c | y^2-4x | \frac{m}{n} | \frac{1}{2}(a-b)h | -2x+\frac{1}{3}
(x+1)^2-5 | \frac{\sqrt{5}-1}{2} | 17-8\sqrt{2} | m^2-n^2 | 3\text{ km} | 45\text{ kg}
8\text{ days} | 9\text{ inches} | \frac{3}{4}\text{ miles} | t^3-2t | \frac{x-y}{x+y}"""
UNITS = "cm km minutes feet hours kg days inches miles".split()


def mutants(gold):
    """Yield the answer with another digit, sign, unit or order of letters, or with two parts exchanged."""
    for match in re.finditer("[0-9]", gold):
        digit = str((int(match[0]) + 1) % 10)
        yield gold[: match.start()] + digit + gold[match.end() :]
    for match in re.finditer("-", gold):
        yield gold[: match.start()] + gold[match.end() :]
        yield gold[: match.start()] + "+" + gold[match.end() :]
    for match in re.finditer(r"(?<![\w^_{}\\.])(\w+)\s*([-/:^,])\s*(\w+)(?![\w^{(.])", gold):
        swapped = match[3] + match[2] + match[1]
        yield gold[: match.start()] + swapped + gold[match.end() :]
    for match in re.finditer(r"\\(frac|binom)\{([^{}]*)\}\{([^{}]*)\}", gold):
        swapped = rf"\{match[1]}{{{match[3]}}}{{{match[2]}}}"
        yield gold[: match.start()] + swapped + gold[match.end() :]
    for unit in UNITS:
        if re.search(rf"\\text\{{ {unit}\}}", gold):
            for other in {*UNITS} - {unit}:
                yield gold.replace(unit, other)
    for match in re.finditer(
        r"\\(?:overline|overrightarrow|angle|triangle|vec|widehat)[ {]*([A-Za-z]{2,3})", gold
    ):
        letters = match[1]
        for other in {letters[::-1], letters[1:] + letters[:1]} - {letters}:
            yield gold[: match.start(1)] + other + gold[match.end(1) :]


SAME = {"6r^2-24-4r", "5,3, 7", r"\{1, 4,2\}"}  # these mutants equal their gold; all others do not


def test_no_mutant_is_paid():
    golds = GOLDS + [gold.strip() for gold in re.split(r"\||\n", MUTABLE.strip())]
    tried = [(gold, mutant) for gold in golds for mutant in mutants(gold)]
    assert {mutant for gold, mutant in tried if grade_answer(mutant, gold)} == SAME
    assert len(tried) > 300
