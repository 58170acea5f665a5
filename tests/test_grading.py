r"""What the math grader accepts, what it refuses, and why.  Run: pytest tests/test_grading.py

Every false accept pays the policy for a wrong answer; every false reject punishes a right one.  The tables below are
the policy in examples: (ground truth, prediction, reason).
"""
import faulthandler
import threading

import pytest
from verifiers import explain_grade, extract_boxed_answer, grade_answer

# ---- Extraction: the last box, balanced, or nothing ------------------------------------------------------------------
BOXES = [
    (r"so \boxed{5}", "5", "plain"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "nested braces"),
    (r"first \boxed{1}, no: \boxed{2}.", "2", "the last box counts"),
    (r"\boxed{ x + 1 }", "x + 1", "stripped"),
    (r"\fbox{7}", "7", r"\fbox is a box too"),
    (r"\boxed {7}", "7", "a space before the brace"),
    (r"\boxed 7", None, "without braces it is malformed"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "escaped braces are content"),
    (r"\boxed{\left\{ x : x > 0 \right.}", r"\left\{ x : x > 0 \right.", "an escaped brace needs no partner"),
    (r"\boxed{a \\{b}}", r"a \\{b}", "after a line break the brace is a real one"),
    (r"\boxed{\boxed{5}}", "5", "the inner box is the last one"),
    (r"\boxed{}", "", "an empty box is an empty answer"),
    (r"\boxed{5} and then \boxed{7", None, "a malformed last box is no answer, whatever came before"),
    (r"\boxed{5} is what I put into \boxed", None, "so is a box without content"),
    (r"the answer is 5", None, "no box"),
    (r"\boxedanswer{5}", None, "another command"),
    ("", None, "nothing"),
]


@pytest.mark.parametrize("text, answer, reason", BOXES)
def test_extract_boxed_answer(text, answer, reason):
    assert extract_boxed_answer(text) == answer, reason


@pytest.fixture
def no_hang():
    """Not a measurement: what is bounded takes a second or two here, what is not would take hours."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def test_extraction_is_linear(no_hang):
    assert extract_boxed_answer(r"\boxed{" * 100_000) is None
    assert extract_boxed_answer(r"\boxed{" * 100_000 + "}" * 100_000) == ""
    assert extract_boxed_answer("\\boxed{" + "{}" * 500_000) is None


# ---- Accepted: the same object in another spelling -------------------------------------------------------------------
ACCEPTS = [
    # numbers
    ("0.5", ".50", "decimals"),
    ("2500000", r"\$2.5\text{ million}", "number words multiply"),
    ("3000", "3 thousand dollars", "and may stand before a unit"),
    (r"0.1\overline{6}", r"\frac16", "repeating decimals"),
    (r"\frac{15}{11}", r"1.\bar{36}", "in either notation"),
    (r"\frac12", "0.5", "a terminating decimal is its fraction"),
    (r"\frac{1}{3}", "0.333333333333", "12 digits of a non-terminating one"),
    (r"\frac{3}{2}", r"1\frac12", "a mixed number"),
    ("-1.5", "-1 1/2", "and its sign covers both parts"),
    ("3", r"\frac{1}{2}6", "a product, not a mixed number"),
    ("1.5", r"\frac123", r"TeX reads \frac123 as (1/2)3"),
    ("1234567", "1,234,567", "thousands"),
    ("1234567.5", r"1{,}234{,}567.5", "thousands in LaTeX"),
    ("12000", r"12\,000", "a thin space between thousands"),
    ("0.00012", r"1.2 \times 10^{-4}", "scientific notation"),
    ("1200", "1.2e3", "and as programs print it"),
    ("1011_2", "1011_{2}", "a base is part of the number"),
    ("1024", "2^{10}", "unevaluated arithmetic counts"),
    ("42", r"\binom{7}{2} \cdot 2", "binomial"),
    ("7", r"\lfloor 7.9 \rfloor", "floor"),
    ("-3", r"\sqrt[3]{-27}", "the real cube root"),
    (r"\frac{1}{2001!}", r"\frac{2002}{2002!}", "too large to be exact, compared relatively"),
    # unicode, markup
    ("-7", "−7", "unicode minus"),
    ("x^{12}", "x¹²", "superscripts"),
    (r"a_1", "a₁", "subscripts"),
    (r"\frac{5}{4}", "1¼", "vulgar fraction"),
    (r"2\sqrt{10}", "2√10", "root sign"),
    (r"\theta", "θ", "Greek"),
    ("15", "１５", "full-width digits"),
    ("7", r"\[ \boxed{7} \]", "boxed again"),
    ("7", "**7**.", "markdown"),
    (r"\frac{2}{3}", r"\left(\dfrac{2}{3}\right)", "big brackets"),
    # units
    ("12", r"12\ \mathrm{cm}^2", "units go"),
    ("9.8", r"9.8\,\frac{\mathrm{m}}{\mathrm{s}^2}", "even in fractions"),
    ("5.13", r"5.13\ \mathrm{ft}/\mathrm{sec}", "sec is a second here"),
    ("3", "3 apples", "a word after a number is a unit"),
    ("12 square feet", r"12\text{ ft}^2", "units are not compared"),
    ("40", r"40^{\circ}", "degrees"),
    ("40%", r"40\%", "percent"),
    (r"\$1,500", "1500 dollars", "money"),
    # algebra: equal at random points
    ("(x-1)(x+1)", "x^2-1", "a product and its expansion"),
    (r"\frac{x^2-1}{x-1}", "x + 1", "equal wherever both are defined"),
    (r"2\ln x", r"\ln x^2", "points where either side is undefined do not count"),
    (r"\sin 2x", r"2 \cos(x) \sin(x)", "identities"),
    (r"\frac{1}{\cosh x}", r"\frac{2}{e^x+e^{-x}}", "hyperbolic functions"),
    (r"\log_4 8", r"\frac32", "logarithm with a base"),
    (r"\cos\frac{\pi}{3}", r"\sin 30^\circ", "degrees count inside a function"),
    (r"|x-1|", r"\left|1-x\right|", "absolute value"),
    (r"(1+i)^2", "2i", "complex numbers"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}", "binomial in a letter"),
    (r"(n+1)!", r"(n+1)\cdot n!", "factorial in a letter"),
    ("x^2+c", "c + x*x", "order"),
    (r"\sqrt{x^2}", "|x|", "both signs are tried"),
    # structures
    ("1, 2, 3", r"\{3, 1, 2\}", "lists and sets have no order"),
    ("2, -2", r"\pm 2", "plus or minus"),
    ("(1, 2)", r"\left( 1, \frac42 \right)", "tuples"),
    (r"\emptyset", r"\{\}", "the empty set"),
    (r"x < 2", r"(-\infty, 2)", "an inequality and its interval"),
    (r"(-\infty,0)\cup(0,\infty)", r"x \ne 0", "what is left of the line"),
    (r"[0,1) \cup (2,3)", r"(2,3) \cup [0,1)", "a union has no order"),
    (r"[0,2]", r"[0,1] \cup [1,2]", "pieces that meet"),
    (r"(-\infty,\sqrt2) \cup (\sqrt2,\infty)", r"\mathbb{R} \setminus \{2^{1/2}\}", "all but one number"),
    (r"(0,9) \cup (9,36)", r"(0,36) \setminus \{9\}", "a hole in an interval"),
    (r"(1,2)", r"(0,2) \cap (1,3)", "what intervals share"),
    (r"-1 \le x < 4", "4 > x \\ge -1", "an inequality read backwards"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", "brackets"),
    (r"\begin{pmatrix} 2 \\ 4 \end{pmatrix}", r"2 \begin{pmatrix} 1 \\ 2 \end{pmatrix}", "a scalar times a matrix"),
    # equations
    ("5", "x = 5", "a lone name in front"),
    ("x^2", "f(x) = x^2", "f(x) in front"),
    (r"\frac12", r"P(A) = \frac12", "P(A) in front"),
    ("y = 2x + 1", "2x - y + 1 = 0", "rearranged"),
    ("x + y = 2", "3x + 3y = 6", "a constant factor"),
    (r"x=1 \text{ or } x=2", "1, 2", "solutions"),
    (r"x < 1 \text{ or } x > 2", r"x > 2, x < 1", "solutions that are intervals"),
    (r"\{x \mid x \ge 2\}", r"[2, \infty)", "a set by its condition"),
    ("[0, 1]", r"x \in [0, 1]", "membership"),
    # words
    (r"\text{Monday}", "monday", "no case in words"),
    ("(B)", r"\textbf{B}", "choices"),
    ("no solution", r"\text{No solution}", "sentences"),
    (r"\text{red, blue}", r"\text{red, blue}", "the same string"),
]

# ---- Refused ---------------------------------------------------------------------------------------------------------
REJECTS = [
    ("9007199254740993", "9007199254740992", "2^53 + 1: equal as floats"),
    (r"\frac13", "0.3333", "four digits are not a third"),
    ("5", "5 million", "a number word is no unit"),
    ("5", r"5\text{ dozen}", "in text neither"),
    (r"\sqrt2", "1.41421", "nor six the root of two"),
    ("0.123456789012", "0.123456789013", "a terminating decimal has only its own digits"),
    ("10^{40}", "10^{40}+1", "off by one"),
    (r"2^{30000}", "2^{30000}+1", "a sum that loses a term proves nothing"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}", "tiny numbers are compared relatively"),
    (r"\pi", r"\pi + 10^{-50}", "as are close ones"),
    ("52_8", "52_9", "another base"),
    (r"2\frac13", r"\frac23", "a mixed number is no product"),
    ("55", "5 5", "two numbers are not one"),
    (r"(-\infty,2)\cup(3,\infty)", r"(-\infty,2)\cup(3,\infty), 7", "an item too many, though 7 lies inside"),
    ("3", r"(3]", "mixed brackets"),
    ("1234", "1, 234", "a space after the comma: a list"),
    (r"\frac{x+1}{2}", "x+1/2", "precedence"),
    (r"\frac{1}{2x}", r"\frac12 x", "precedence"),
    ("(x+1)^2", "x^2+1", "freshman's dream"),
    ("|x|", "x", "differs for negative x"),
    ("|x+y|", "|x|+|y|", "differs for mixed signs"),
    (r"\sin^{-1} x", r"\frac{1}{\sin x}", "the inverse function"),
    (r"\sin x^2", r"\sin^2 x", "power of the argument"),
    ("f(2x)", "2f(x)", "f is a function"),
    ("(0,1)", "[0,1]", "brackets matter"),
    ("(0,1)", "(1,0)", "order matters"),
    ("x > 3", "3", "an inequality is no number"),
    ("x < 3", "x > -3", "nor its mirror image"),
    (r"\{1, 2\}", r"\{1, 2, 3\}", "one element too many"),
    (r"\pm 2", "2", "half of the answer"),
    ("2", "1, 2, 3, 4", "a list of guesses"),
    ("x + y = 2", "2", "an equation in several unknowns"),
    ("y = 2x", "x = 2y", "names exchanged"),
    ("5", "x", "a free variable"),
    ("0", "0x", "a free variable never equals a number"),
    ("0", "I(0)", "even when it vanishes"),
    ("0", r"\emptyset", "nothing is not zero"),
    (r"[0,2]", r"[0,1) \cup (1,2]", "1 is missing"),
    (r"(0,9) \cup (9,36)", r"(0,36) \cup \{9\}", "9 is not"),
    (r"(0,a) \cup (a,1)", r"(0,1) \setminus \{b\}", "letters have no place on the line"),
    ("(3,1)", r"\{\} \cup \{\}", "a point is no empty interval"),
    ("(1,1)", r"(2,1) \cap (4,3)", "whichever way nothing is written"),
    (r"(0,1) \cup (2,3)", r"(0, 1 + 10^{-45}) \cup (2,3)", "fractions are exact"),
    ("0", "()", "nor is an empty bracket"),
    (r"\text{east}", r"\text{seat}", "words are no products"),
    ("no", "on", "short ones too"),
    (r"\text{(A)}", r"\text{(B)}", "another choice"),
    ("B", "A, B, C, D", "every choice"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "row and column"),
    ("3:4", "4:3", "a ratio has an order"),
    ("12:30", "12", "a time"),
    ("1", r"\frac{\infty}{\infty}", "undefined"),
    ("nan", "nan", "equals nothing"),
    ("", "", "an empty answer is no answer"),
    ("5", "(5", "unbalanced"),
    ("6", "2 \\cdot", "unfinished"),
]


@pytest.mark.parametrize("truth, answer, reason", ACCEPTS)
def test_accepts(truth, answer, reason):
    assert grade_answer(answer, truth), (reason, explain_grade(answer, truth))


@pytest.mark.parametrize("truth, answer, reason", REJECTS)
def test_rejects(truth, answer, reason):
    assert not grade_answer(answer, truth), (reason, explain_grade(answer, truth))


# ---- Perturbations: a gold printed in another way is accepted, an altered one is not ---------------------------------
GOLDS = r"""2 | -17 | 0.25 | 10080 | \frac{3}{4} | -\frac{11}{36} | \dfrac{17}{50} | 3\sqrt{13} | \sqrt{51} | 11\sqrt2
\frac{3\sqrt{3}}{4} | 6 - 5i | 1 \pm \sqrt{19} | 2k+2 | x^3+3x-6 | 6r^2-4r-24 | (-2,1) | \left( 3, \frac{\pi}{2} \right)
(2,12) \cup (12,102) | [2,5) | \left[-\frac12, \infty\right) | 3, 5, 7 | \{1, 2, 4\} | 5.4 \text{ cents}
90^\circ | 50\%
\$36 | 58,500 | 4210_5 | 2^{10} | \binom{8}{3} | 9\pi | \frac{\pi r}{h+r} | e^{2x} | \ln 3 + 2 | \frac{x+2}{7}
\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} | \text{Evelyn} | \text{(C)} | \frac{\sqrt[3]{4}}{2} | p - q | 8n^2+4n+1"""
REPRINTS = {
    "as it is": lambda g: g,
    "in dollars": lambda g: f"${g}$",
    "display style": lambda g: rf"\[ \displaystyle {g} \]",
    "boxed": lambda g: rf"\boxed{{{g}}}",
    "full stop": lambda g: g + ".",
    "other \\frac": lambda g: g.replace(r"\dfrac", r"\frac").replace(r"\frac", r"\tfrac"),
    "wide brackets": lambda g: (g.replace(r"\left", "").replace(r"\right", "")
                                .replace("(", r"\left(").replace(")", r"\right)")),
    "spaces": lambda g: g.replace("+", " + ").replace("-", " - ").replace("=", " = ").replace(", ", " ,\\, "),
    "with a name": lambda g: f"x = {g}",
    "with a unit": lambda g: g + r"\text{ units}",
    "unicode": lambda g: g.replace("-", "−").replace(r"\pi", "π").replace(r"\cup", "∪").replace(r"\infty", "∞"),
}
ALTERATIONS = {
    "plus one": lambda g: f"{g} + 1",
    "one more item": lambda g: f"{g}, 12345",
    "another digit": lambda g: "".join(chr((ord(c) - 47) % 10 + 48) if c.isascii() and c.isdigit() else c for c in g),
    "not": lambda g: rf"\text{{not }} {g}",
}


def reprint_failures(golds, rewrites, expected):
    return [(g, name) for g in golds for name, f in rewrites.items()
            if grade_answer(f(g), g) is not expected and f(g) != g]


def test_perturbations():
    golds = [g.strip() for line in GOLDS.splitlines() for g in line.split("|")]
    words = {r"\text{Evelyn}", r"\text{(C)}"}                        # these take no unit, no brackets
    failures = reprint_failures(golds, REPRINTS, True)
    assert [f for f in failures if f[0] not in words or f[1] not in ("with a unit", "wide brackets")] == []
    assert reprint_failures(golds, ALTERATIONS, False) == []


# ---- Hostile text is only data ---------------------------------------------------------------------------------------
HOSTILE = {
    "code": "__import__('os').system('touch pwned')",
    "dunder": "().__class__.__bases__[0].__subclasses__()",
    "format": "{0.__class__}",
    "power tower": "9^9^9^9^9",
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
    "many large powers": "+".join(rf"\frac{{1}}{{{p}^{{1500}}}}" for p in range(3, 90)),
    "signs": r"\pm 1" * 20,
    "three signs a list": r"1\pm 2\pm 3\pm 4," * 60 + "1",
    "minus signs": "-" * 1400 + "5",
    "commas": "1," * 700 + "1",
    "letters": "x," * 700 + "y",
    "unions": r"(1,2)\cup" * 150 + "(3,4)",
    "holes": r"(0,1)\setminus\{\sqrt{2}\}" * 48,
    "matrix": r"\begin{pmatrix}" + r"1&x\\" * 200 + r"\end{pmatrix}",
    "scaled matrix": r"(\sin x)^{x}" * 60 + r"\begin{pmatrix}" + "x&" * 200 + r"x\end{pmatrix}",
    "long sum": "+".join(f"{a}^{b}{a}" for a in "abcdfghjklmnopqrstuvwxyz" for b in "23456789"),
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
    **{f"deep {b}": b * (1490 // len(b)) for b in
       ("(", "[", "{", r"\{", r"\frac{", r"\frac1", r"\sqrt{", r"\sqrt[", "x^", "x^{", "x_", "x_{", r"\left(",
        r"\boxed{", r"\text{", r"\begin{pmatrix}", r"\lfloor ", r"\sin", r"\log_", "f(", r"\sum_", r"\binom{",
        r"\langle ", "1/", "1-")},
    "long": "(" * 10**6,
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
        assert grade_answer(text + "1", text + "2") is False or len(text) < 1400, name


def test_nested_sets_do_not_double_the_work():
    deep = [r"\{1," * 15 + last + r"\}" * 15 for last in ("7", "7.0", "8")]
    assert grade_answer(deep[0], deep[1]) and not grade_answer(deep[0], deep[2])


def test_from_a_deep_stack():
    def dive(n):
        return grade_answer(r"x+\frac12", "x + 0.5") if n == 0 else dive(n - 1)
    assert dive(100) is True
    assert all(isinstance(dive(n), bool) for n in (600, 700, 800))


@pytest.mark.parametrize("value", [None, 5, 5.0, b"5", ["5"], float("nan")])
def test_other_types_are_no_answer(value):
    assert grade_answer(value, "5") is False and grade_answer("5", value) is False


def test_threads_agree():
    """mpmath changes the precision of its context while it works: a shared one gives wrong verdicts now and then."""
    cases = [(t, a, True) for t, a, _ in ACCEPTS] + [(t, a, False) for t, a, _ in REJECTS]
    wrong = []

    def work(offset):
        for truth, answer, expected in cases[offset:] + cases[:offset]:
            if grade_answer(answer, truth) is not expected:
                wrong.append((truth, answer))

    threads = [threading.Thread(target=work, args=(17 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_rung_that_decided():
    assert explain_grade("5", "5")[:2] == (True, "string")
    assert explain_grade("0.50", ".5")[:2] == (True, "decimal")
    assert explain_grade(r"\dfrac12", r"\tfrac12")[:2] == (True, "spelling")
