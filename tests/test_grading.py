r"""What the math grader accepts, what it refuses, and why.  Run: pytest tests/test_grading.py

Every false accept pays the policy for a wrong answer; every false reject punishes a right one. The
tables below are the policy in examples: (ground truth, prediction, reason).
"""

import faulthandler
import time

import grading
import pytest
from verifiers import explain_grade, extract_boxed_answer, grade_answer

# ---- Extraction: the last box, balanced, or nothing ----------------------------------------------
BOXES = [
    (r"so \boxed{5}", "5", "plain"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", "nested braces"),
    (r"first \boxed{1}, no: \boxed{2}.", "2", "the last box counts"),
    (r"\boxed{ x + 1 }", "x + 1", "stripped"),
    (r"\fbox{7}", "7", r"\fbox is a box too"),
    (r"\boxed {7}", "7", "a space before the brace"),
    (r"\boxed 7", None, "without braces it is malformed"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "escaped braces are content"),
    (
        r"\boxed{\left\{ x : x > 0 \right.}",
        r"\left\{ x : x > 0 \right.",
        "an escaped brace needs no partner",
    ),
    (r"\boxed{a \\{b}}", r"a \\{b}", "after a line break the brace is a real one"),
    (r"\boxed{\boxed{5}}", "5", "the inner box is the last one"),
    (r"\boxed{}", "", "an empty box is an empty answer"),
    (
        r"\boxed{5} and then \boxed{7",
        None,
        "a malformed last box is no answer, whatever came before",
    ),
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
    """Not a measurement: what is bounded takes a second or two, what is not would take hours."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def test_extraction_is_linear(no_hang):
    assert extract_boxed_answer(r"\boxed{" * 100_000) is None
    assert extract_boxed_answer(r"\boxed{" * 100_000 + "}" * 100_000) == ""
    assert extract_boxed_answer("\\boxed{" + "{}" * 500_000) is None


# ---- Accepted: the same object in another spelling -----------------------------------------------
ACCEPTS = [
    # numbers
    ("0.5", ".50", "decimals"),
    ("2500000", r"\$2.5\text{ million}", "number words multiply"),
    ("3000", "3 thousand dollars", "and may stand before a unit"),
    ("300", "3 hundred", "each of them"),
    ("2000000000", "2 billion people", "up to these"),
    ("2000000000000", r"2\text{ trillion}", "and these"),
    (r"5\text{ N m}", r"5\text{ N}\cdot\text{m}", "a product of units"),
    ("60", "5 dozen eggs", "a dozen is 12"),
    ("5000000", "5 million", "six zeros"),
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
    ("15", "15 km/h", "also with a slash"),
    (r"24\pi", r"24\pi cm^3", r"or behind \pi"),
    ("18250", "USD 18250", "or in front"),
    ("12", r"12^{\mathrm{th}}", "ordinals"),
    (
        r"3 \text{ hours } 20 \text{ minutes}",
        "3 hr and 20 min",
        "one quantity of two units, whatever they are called",
    ),
    (r"3:30 \text{ p.m.}", "3:30 PM", "times of day"),
    ("12", r"\text{Answer: }12", "a label"),
    ("1", r"1\text{ solution}", "one of a kind"),
    ("12", r"12\text{ children}", "a plural without s"),
    # algebra: equal at random points
    ("(x-1)(x+1)", "x^2-1", "a product and its expansion"),
    (r"\frac{x^2-1}{x-1}", "x + 1", "equal wherever both are defined"),
    (r"2\ln x", r"\ln x^2", "points where either side is undefined do not count"),
    (r"\sin 2x", r"2 \cos(x) \sin(x)", "identities"),
    (r"\frac{1}{\cosh x}", r"\frac{2}{e^x+e^{-x}}", "hyperbolic functions"),
    (r"\log_4 8", r"\frac32", "logarithm with a base"),
    (r"\log_{5}2", r"\log_52", r"TeX takes one digit for \log_, too"),
    (r"\frac{7}{12}", r"{7 \over 12}", r"\over divides all that stands before it"),
    ("10", r"{5 \choose 2}", "and so chooses \\choose"),
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
    (r"\pm 2", r"\mp 2", "or minus or plus"),
    ("(1, 2)", r"\left( 1, \frac42 \right)", "tuples"),
    (r"\emptyset", r"\{\}", "the empty set"),
    (r"x < 2", r"(-\infty, 2)", "an inequality and its interval"),
    (r"(-\infty,0)\cup(0,\infty)", r"x \ne 0", "what is left of the line"),
    (r"[0,1) \cup (2,3)", r"(2,3) \cup [0,1)", "a union has no order"),
    (r"[0,2]", r"[0,1] \cup [1,2]", "pieces that meet"),
    (
        r"(-\infty,\sqrt2) \cup (\sqrt2,\infty)",
        r"\mathbb{R} \setminus \{2^{1/2}\}",
        "all but one number",
    ),
    (r"(0,9) \cup (9,36)", r"(0,36) \setminus \{9\}", "a hole in an interval"),
    (r"(1,2)", r"(0,2) \cap (1,3)", "what intervals share"),
    (r"-1 \le x < 4", "4 > x \\ge -1", "an inequality read backwards"),
    (
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}",
        "brackets",
    ),
    (
        r"\begin{pmatrix} 2 \\ 4 \end{pmatrix}",
        r"2 \begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        "a scalar times a matrix",
    ),
    (r"(0,\infty)", r"\mathbb{R}^+", "the positive numbers"),
    (r"(0,\infty)", r"\{x \in \mathbb{R} : x > 0\}", "by their condition"),
    (r"x > 0", r"0 < x < \infty", "both ends written"),
    (r"(-\infty,2] \cup [3,4)", r"]-\infty,2] \cup [3,4[", "French brackets"),
    (r"\{3\}", "[3,3]", "an interval of one point"),
    (r"(-3,2) \cup (2,5]", r"-3 < x \le 5 \text{ and } x \ne 2", "and: both hold"),
    ("7:45", "7{:}45", "a colon in braces"),
    (r"\sum_{k=1}^{n} k^2", r"\sum_{k=1}^n k^2", "names are compared without needless braces"),
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
    (r"\text{red, blue}", r"\text{blue, red}", "lists of words"),
    ("B, D", r"\text{B and D}", "choices in one text"),
    (r"\text{no solution}", r"\text{no}\ \text{solution}", "one phrase in two texts"),
    (r"A3_{16}", r"\text{A3}_{16}", "digits that are letters"),
    (r"30^\circ", r"\angle ABC = 30", "an angle is a lone name"),
    ("12", "|AB| = 12", "and so is a length"),
    (r"\frac13", r"x = \frac13 \approx 0.333", "what follows an approximation sign is a remark"),
    ("5", r"\frac{10}{2} = 5", "equal numbers in a row"),
    ("(1,2)", r"\mathbf{v} = \langle 1, 2 \rangle", "a vector and its name"),
    # what stands left of an equals sign is decided on what it means
    ("12", r"f(-1) = 12", "a function's value"),
    (r"\frac35", r"P(X > 2) = \frac35", "a probability of a condition"),
    (r"\frac35", r"P(A \cap B) = \frac35", "or of a set"),
    ("5", "E[X] = 5", "an expectation"),
    ("5", r"\mathbb{E}[X] = 5", "in double letters"),
    ("12", r"\gcd(24,36) = 12", "a command nobody knows"),
    ("12", r"\int_0^2 6x\,dx = 12", "an integral"),
    (r"\frac35", r"\tan\theta = \frac35", "a function of an angle"),
    (r"(3,\frac{\pi}{2})", r"(r,\theta) = (3,\frac\pi2)", "names in brackets, in their order"),
    ("10100", "f(100) = 10,100", "thousands behind a closed bracket"),
    ("30", r"m\angle ABC = 30", "the measure of an angle"),
    ("42", r"\text{The final answer is } 42", "a sentence that ends in is"),
    # units
    ("20", r"20\text{ ordered pairs}", "a word in -ed is a unit"),
    ("20", r"20\text{ paths}", "and one in -ths"),
    ("20", r"20\text{ shaded squares}", "and squares"),
    ("20", r"20\text{ MeV}", "any word"),
    ("20", r"20\text{ slices of pizza}", "with what it is made of"),
    ("540", "540 total", "or what was counted"),
    ("540", r"540\text{ (meters)}", "in brackets"),
    ("540", r"540\text{ sq. units}", "cut short"),
    ("9", r"\text{USD }9", "money in front"),
    (r"5\text{ cm}", "$5$", "but these dollars are LaTeX's"),
    (r"60\text{ mph}", r"60\text{ miles per hour}", "a quotient"),
    (r"2\text{ m/s}^2", "2 meters per second squared", "in words"),
    (r"20\ \mathrm{m/s}", r"20\ \mathrm{m\,s^{-1}}", "or a negative power"),
    ("24", r"\underline{24}", "underlined"),
    (r"5\text{ feet }6\text{ inches}", r"5\text{ feet, }6\text{ inches}", "two units, one comma"),
    # letters at whole numbers
    (r"(-2)^n", r"(-1)^n 2^n", "powers that only whole numbers have"),
    (r"(-1)^n", r"\frac{1}{(-1)^n}", "at each of them"),
    (r"x^{2024}-1", r"-1+x^{2024}", "numbers too large for floats are exact there"),
    (r"2^{300}\sqrt3", r"\sqrt{3} \cdot 2^{300}", "a power of two is held exactly"),
    # sets and families
    (r"(-\infty,0) \cup \{1\}", r"x < 0 \text{ or } x = 1", "a condition and a point"),
    (r"(-\infty,-3)\cup(3,\infty)", r"(-\infty,-3) U (3,\infty)", "a capital U"),
    (r"(-\infty,-3)\cup(3,\infty)", r"(-\infty,-3) \text{ or } (3,\infty)", "certainly intervals"),
    (r"(-\infty,\infty)", r"x \in \mathbb{R}", "all of the line"),
    (r"(-\infty,\infty)", r"\text{all real numbers}", "in words"),
    (r"x \ne 0", r"\mathbb{R} - \{0\}", "a difference of sets"),
    (r"2k\pi, k \in \mathbb{Z}", r"2k\pi \ (k \in \mathbb{Z})", "a family"),
    (r"2k\pi, k \in \mathbb{Z}", r"2k\pi \text{ for any integer } k", "with its letter in words"),
    (r"2k\pi, k \in \mathbb{Z}", r"2k\pi \text{ where } k \text{ is an integer}", "in others"),
    (r"x \equiv 3 \pmod 7", r"x \equiv 3 \ (\text{mod } 7)", "a modulus in brackets"),
    (r"x \equiv 3 \pmod 7", r"x \equiv 3 \mod 7", "and without"),
    (r"\{1, 2, \ldots, n\}", r"\{1,2,...,n\}", "dots"),
    ("(0,0), (1,2), (3,4)", r"(0,0), (1,2), \text{ and } (3,4)", "a comma before and"),
    # as models write
    ("42", r"{\bf 42}", "bold"),
    ("42", r"\textcolor{red}{42}", "coloured"),
    ("42", r"\Rightarrow 42", "behind an arrow"),
    (r"\langle 3,-4\rangle", "<3,-4>", "a vector in angle brackets"),
    (
        r"\left[\begin{array}{cc}1 & 2\end{array}\right]",
        r"\begin{pmatrix}1 & 2\end{pmatrix}",
        "an array",
    ),
    (r"\text{No}", "NO", "shouted"),
    (r"\ln(1+\sqrt2)", r"\sinh^{-1}(1)", "an inverse function"),
    (r"\frac{\ln 2}{\ln 5}", r"\log_52", r"TeX takes one digit for \log_"),
    (r"a_1^2 + 1", "a^2_1 + 1", "index and power in either order"),
    ("2012_5", "(2012)_5", "digits in brackets"),
    ("1011_2", r"1011_{\text{2}}", "a base in a text"),
    (r"\frac{\hbar\omega}{2}", r"\omega\hbar/2", "a letter of physics"),
    ("x=1, y=2", "y = 2, x = 1", "named values in any order"),
    ("x=1, y=2", "1, 2", "or unnamed in theirs"),
    (r"75\text{ cents}", "75¢", "a sign for cents"),
    ("1, 2", "1或2", "or, in Chinese"),
    ("1, 2", "1和2", "and, in Chinese"),
    (r"\frac12", r"\\frac12", "an escaped command"),
    ("3", r"\log 1000", "the base is 10"),
    (r"-\infty, 2", "-inf, 2", "as programs print it"),
    ("10", "Rs. 10", "rupees"),
    ("5", "5 m/s", "a speed"),
    ("12", "12 cm2", "an area as programs print it"),
    (r"5\text{ feet }6\text{ inches}", "5 ft. 6 in.", "points behind what is cut short"),
    ("42", "The sum is 42", "a sentence"),
    ("42", "42 sq. ft.", "an area cut short"),
    ("7", "7 two-digit numbers", "what is counted has two digits"),
    ("7", r"7\text{ negative integers}", "or is negative"),
    ("5", "5 more apples", "or was not there before"),
    (r"2^k, k \in \mathbb{N}", r"2^k \text{ where } k \in \mathbb{N}", "another family"),
    ("k", r"\text{Answer: } k", "what follows the label"),
    ("25", r"25^\circ C", "a temperature"),
    ("77", r"77^{\circ}\text{F}", "or another"),
    ("f(x) = x", r"f(x) = x \text{ for all } x", "a function is one for all x"),
    ("4", r"4\text{ distinct real roots}", "roots can be counted"),
    ("7", r"\huge{7}", "in any size"),
    # choices
    ("C", "c", "small"),
    ("C", "The answer is C", "in a sentence"),
    ("C", r"\text{Option C: }42", "called an option"),
    ("C", "C - Paris", "before a dash"),
    ("A", "A. I and II only", "I is none here"),
    ("C", "(C) 3", "with what was chosen"),
    ("C", "c. 3", "in any form"),
    (r"\text{(B)}", "b: 2", "that names one letter"),
    ("D", r"\text{(D) } 7", "in a text"),
]

# ---- Refused -------------------------------------------------------------------------------------
REJECTS = [
    ("9007199254740993", "9007199254740992", "2^53 + 1: equal as floats"),
    (r"\frac13", "0.3333", "four digits are not a third"),
    ("5", "5 million", "a number word is no unit"),
    ("5", r"5\text{ dozen}", "in text neither"),
    # words that change a number are no units
    ("2", "2 thirds", "two thirds"),
    ("2", "2 hundredths", "nor smaller parts"),
    ("2", "2 squared", "4"),
    (r"2\text{ m/s}^2", r"2\text{ m/s}", "a speed is no acceleration"),
    ("15", r"15\text{ percent of }20", "3"),
    ("15", r"\text{either }15\text{ or }16", "two answers"),
    ("2", r"2\text{ factorial}", "nor in text"),
    ("2", "2 zillion", "a number word nobody knows"),
    ("0.3", r"0.3\text{ repeating}", "a third"),
    ("101", r"101\text{ in binary}", "5"),
    ("5", "5 degrees below zero", "-5"),
    ("5", r"5 \text{ is wrong}", "a sentence"),
    ("1", r"\text{apples}", "a word alone is not one of its kind"),
    ("-1", r"-\text{apples}", "nor minus one"),
    # units do not multiply, what follows them belongs to them
    ("60", "3 hours 20 minutes", "3 times 20"),
    ("3 hours 20 minutes", "2 hours 30 minutes", "the same product"),
    ("30", "5 feet 6 inches", "5 times 6"),
    ("11", r"5 \text{ feet} + 6 \text{ inches}", "nor a sum of two units"),
    ("35", r"5\text{ to }7", "a range"),
    ("35", r"7\text{ out of }5", "a share"),
    ("4 R 2", "2 R 4", "quotient and remainder"),
    ("5", r"5\text{ cm} \cdot x", "a factor behind the unit"),
    ("5", r"5 (x \text{ dollars})", "or before it"),
    (r"5\text{ cm}", r"5\text{ km}", "known units differ"),
    ("236 adult, 342 child", "342 adult, 236 child", "in lists unknown ones too"),
    (r"n \text{ is odd}", r"n \text{ is even}", "of a letter it is a statement"),
    ("2", r"\text{2x}", "a letter in a text is a letter"),
    (
        r"4\text{ ft} \times 12\text{ ft}",
        r"8\text{ ft} \times 6\text{ ft}",
        "dimensions are no product",
    ),
    (r"n\mathrm{C}k", r"k\mathrm{C}n", "a letter between two is an operator"),
    (r"3:30 \text{ p.m.}", r"3:30 \text{ a.m.}", "twelve hours apart"),
    ("24", "24 abc", "letters are no word"),
    ("7", r"7\text{ doubled}", "14"),
    (r"2^{nd}", "2", "an exponent is no ordinal"),
    (r"x=5\text{ cm}", r"x=5\text{ km}", "in equations, too"),
    # what is not known is a name, in order
    (r"3 \pmod 7", r"7 \pmod 3", "modulus and residue"),
    (r"{7 \over 12}", r"{12 \over 7}", "above and below"),
    (r"\overrightarrow{AB}", r"\overrightarrow{BA}", "a vector and its opposite"),
    (r"\overline{z}w", r"\overline{zw}", "an accent ends with its group"),
    (r"\angle ABC", r"\angle BCA", "another vertex"),
    (r"f \circ g", r"g \circ f", "composition"),
    ("f(g(x))", "g(f(x))", "composition"),
    ("P(Q(x))", "Q(P(x))", "of polynomials"),
    (r"A \subset B", r"B \subset A", "inclusion"),
    (r"p \Rightarrow q", r"q \Rightarrow p", "implication"),
    (r"A \setminus B", r"B \setminus A", "difference"),
    (r"\vec{a} \times \vec{b}", r"\vec{b} \times \vec{a}", "the cross product"),
    (r"A \times B", r"B \times A", "pairs"),
    (r"\frac{dy}{dx}", r"\frac{y}{x}", "d is no factor"),
    (r"\int_0^1 f", r"\int_1^0 f", "limits"),
    ("2P(x)", "P(2x)", "a name before one term in brackets is a function"),
    (r"2f^{-1}(x)", r"f^{-1}(2x)", "and so is an inverse"),
    ("12", r"\not= 12", "a negation"),
    ("5", r"5 \in A", "membership says nothing about 5"),
    ("HTH", "HHT", "capitals in a row are a word"),
    # names and bases
    ("6", "x(x+1)=6", "an equation, no name"),
    ("12", "x + y = 12", "in two unknowns"),
    ("12", "x = 12 = 13", "a contradiction"),
    ("5", r"x = 5 \approx 7", "two answers"),
    ("(1,2)", "(y,x) = (1,2)", "x is 2"),
    ("x > 1, y < 2", "y > 1, x < 2", "names exchanged"),
    ("x=1, y=2", "x=2, y=1", "names exchanged"),
    ("x > 0", "y > 0", "another name"),
    ("1A3_{16}", "1A3_{15}", "another base"),
    ("ABC_{16}", "BAC_{16}", "digits do not commute"),
    (r"\text{B+}", r"\text{B-}", "another mark"),
    ("IV", "VI", "nor do these"),
    ("DNE", "END", "nor letters of a word"),
    (r"\text{Team 5}", r"\text{Team 6}", "numbers in a text"),
    (r"\text{version 1.5}", r"\text{version 15}", "and their points"),
    ("1, 1, 2", "1, 2, 2", "lists of one length"),
    (
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}",
        "a determinant is a number",
    ),
    (
        r"\begin{cases} x = 1 \\ y = 2 \end{cases}",
        r"\begin{cases} x = 2 \\ y = 1 \end{cases}",
        "a system",
    ),
    (r"\mathbb{R}", r"\mathbb{Q}", "other numbers"),
    (r"(0,\infty)", r"\{x \in \mathbb{Z} : x > 0\}", "whole numbers only"),
    (r"\mathbb{R}", "x > 0, x < 5", "a list of two conditions is not all that meets one of them"),
    (r"\mathbb{R}", r"\{x : x > 0, x < 5\}", "and in a set both hold"),
    ("(1,2), (3,4)", r"(1,2) \cup (3,4)", "points are no intervals"),
    (r"-3 < x \le 5 \text{ and } x \ne 2", r"-3 < x \le 5 \text{ or } x \ne 2", "and is not or"),
    # where digits do not reach
    (r"\pi", r"\pi + 10^{-250}", "lost beside a float"),
    (r"\pi", r"\pi(1 + 10^{-120})", "lost in a factor"),
    (r"10^{40}\pi", r"10^{40}\pi + 10^{-29}", "small beside large"),
    (r"\pi", r"0.9999999999999\pi", "12 digits make a decimal, not a factor"),
    (r"\ln(2^{1000})", r"\ln(2^{1000}+1)", "too long to be rounded"),
    ("0", r"\frac{1}{\infty}", "no number"),
    ("0", "e^{-1000}", "small is not nothing"),
    ("0", r"10^{-30}\pi \cdot 10^{-31}", "nor is a small product"),
    ("1", r"\lfloor 0." + "9" * 40 + r"\rfloor", "a floor is exact where its argument is"),
    (r"\infty", r"\infty + 1", "neither"),
    (r"\frac13", r"\frac13 \ldots 8", "a tail"),
    (r"\sqrt2", "1.41421", "nor six the root of two"),
    ("0.123456789012", "0.123456789013", "a terminating decimal has only its own digits"),
    ("10^{40}", "10^{40}+1", "off by one"),
    (r"2^{30000}", "2^{30000}+1", "a sum that loses a term proves nothing"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}", "tiny numbers are compared relatively"),
    (r"\pi", r"\pi + 10^{-50}", "as are close ones"),
    ("52_8", "52_9", "another base"),
    (r"2\frac13", r"\frac23", "a mixed number is no product"),
    ("55", "5 5", "two numbers are not one"),
    (
        r"(-\infty,2)\cup(3,\infty)",
        r"(-\infty,2)\cup(3,\infty), 7",
        "an item too many, though 7 lies inside",
    ),
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
    (
        r"\begin{pmatrix} 1 & 2 \end{pmatrix}",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
        "row and column",
    ),
    ("3:4", "4:3", "a ratio has an order"),
    ("12:30", "12", "a time"),
    ("1", r"\frac{\infty}{\infty}", "undefined"),
    ("nan", "nan", "equals nothing"),
    ("", "", "an empty answer is no answer"),
    ("5", "(5", "unbalanced"),
    ("6", "2 \\cdot", "unfinished"),
    (r"20^\circ\text{C}", r"20^\circ\text{F}", "another temperature"),
    ("5", r"5\text{ times larger}", "a factor"),
    ("5", r"5\text{th root}", "an operation"),
    ("7", "7 negative", "-7"),
    ("7", "7 more than 5", "12"),
    # number words
    ("18", r"18\text{ tens}", "180"),
    ("6", r"6\text{ twenties}", "120"),
    ("8", r"8\text{ crores}", "80 million"),
    ("1", r"1\text{ googol}", "a large number"),
    ("8", r"8\text{ fails}", "a verdict"),
    ("24", r"24\text{ at least}", "a bound"),
    ("24", r"24\text{ times as many}", "a factor"),
    # numbers side by side
    ("30", "5. 6", "a point and a space"),
    ("0.36", "1.2.3", "two points"),
    ("30", "5{6}", "prints 56"),
    ("30", "{5}6", "prints 56"),
    ("125", "0,125", "a decimal comma"),
    ("13", r"1 + 2 + \ldots + 10", "what the dots leave out"),
    # where one side is undefined, it is another function
    (r"\sqrt{|x|}", r"\sqrt{x}", "half of it"),
    (r"\ln|x|", r"\ln(-x)", "the other half"),
    (r"|x-1|", r"\sqrt{x-1}^2", "half of it"),
    (r"\lceil n/2 \rceil + 1", r"\lfloor n/2 \rfloor + 2", "differs at even numbers"),
    (r"\lfloor\log_2 n\rfloor + 1", r"\lceil\log_2 n\rceil", "differs at powers of two"),
    ("f(1)", "f(-3)", "a function is no cosine"),
    # units
    (r"\$75", r"75\text{ cents}", "100 times as much"),
    (r"\$12.50", r"12.5\%", "money and percent"),
    (r"60\text{ km/h}", r"60\text{ km/s}", "3600 times as fast"),
    (r"12\text{ cm}^2", r"12\text{ cm}^3", "an area and a volume"),
    (r"12\text{ square m}", r"12\text{ square cm}", "square is a power"),
    (r"12\text{ cubic m}", r"12\text{ cubic cm}", "and so is cubic"),
    (r"60\text{ mph}", r"60\text{ km/h}", "miles and kilometres"),
    (r"60\text{ km per hour}", r"60\text{ km per second}", "3600 times as fast"),
    ("40", r"40\text{ of }80", "a share"),
    # sets, lists and names
    ("x = 3, y = -1", "-1, 3", "named values in another order"),
    ("x = 1, y = 2", "x = 1, 2", "one of two named"),
    ("x = y", "y", "an equation of two names"),
    ("B", "A = B", "says nothing about B"),
    ("8", r"8 \setminus 9", "a number is no set"),
    (r"(3,\infty)", "|x| > 3", "two intervals"),
    (r"\{5\}", r"\{\{5\}\}", "a set in a set"),
    ("x^5", "x^5_8", "an index is no base"),
    ("12", r"\ln x = 12", "a logarithm is no name"),
    (r"\frac{370370367037}{3}", "123456789013.0", "another twelfth digit"),
    ("C", "C or D", "two choices"),
    ("C", "(B) 3", "another choice"),
    ("C", "(A)(B)(C)(D)", "every choice"),
    ("C", "c. 3 or d. 4", "two choices, small"),
]


@pytest.mark.parametrize("truth, answer, reason", ACCEPTS)
def test_accepts(truth, answer, reason):
    assert grade_answer(answer, truth), (reason, explain_grade(answer, truth))


@pytest.mark.parametrize("truth, answer, reason", REJECTS)
def test_rejects(truth, answer, reason):
    assert not grade_answer(answer, truth), (reason, explain_grade(answer, truth))


# ---- The rewrites: each has an example, and a pair above that needs it ---------------------------
REWRITES = [
    (stage, rewrite)
    for stage in (grading.CHARACTERS, *grading.STAGES.values())
    for rewrite in stage
]


@pytest.mark.parametrize("stage, rewrite", REWRITES, ids=[rewrite[2] for _, rewrite in REWRITES])
def test_a_rewrite_does_what_its_example_says(stage, rewrite):
    pattern, new, example = rewrite
    before, after = example.split(" -> ")
    assert pattern.sub(new, before).split() == after.split()


def test_without_a_rewrite_a_verdict_would_be_another():
    pairs = [(truth, answer) for truth, answer, _ in ACCEPTS + REJECTS]
    texts = {text for pair in pairs for text in pair}
    tokens = {text: grading.normalise(text) for text in texts}
    verdicts = {pair: grade_answer(pair[1], pair[0]) for pair in pairs}
    needless = []
    for stage, rewrite in REWRITES:
        place = stage.index(rewrite)
        del stage[place]
        changed = {text for text in texts if grading.normalise(text) != tokens[text]}
        touched = [pair for pair in pairs if not changed.isdisjoint(pair)]
        if all(grade_answer(pair[1], pair[0]) == verdicts[pair] for pair in touched):
            needless.append(rewrite[2])
        stage.insert(place, rewrite)
    assert needless == []


# ---- Perturbations: a gold printed in another way is accepted, an altered one is not -------------
GOLDS = r"""
2 | -17 | 0.25 | 10080 | \frac{3}{4} | -\frac{11}{36} | \dfrac{17}{50} | 3\sqrt{13} | \sqrt{51}
11\sqrt2 | \frac{3\sqrt{3}}{4} | 6 - 5i | 1 \pm \sqrt{19} | 2k+2 | x^3+3x-6 | 6r^2-4r-24
(-2,1) | \left( 3, \frac{\pi}{2} \right) | (2,12) \cup (12,102) | [2,5)
\left[-\frac12, \infty\right) | 3, 5, 7 | \{1, 2, 4\} | 5.4 \text{ cents} | 90^\circ | 50\%
\$36 | 58,500 | 4210_5 | 2^{10} | \binom{8}{3} | 9\pi | \frac{\pi r}{h+r} | e^{2x} | \ln 3 + 2
\frac{x+2}{7} | \begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} | \text{Evelyn} | \text{(C)}
\frac{\sqrt[3]{4}}{2} | p - q | 8n^2+4n+1"""
REPRINTS = {
    "as it is": lambda g: g,
    "in dollars": lambda g: f"${g}$",
    "display style": lambda g: rf"\[ \displaystyle {g} \]",
    "boxed": lambda g: rf"\boxed{{{g}}}",
    "full stop": lambda g: g + ".",
    "other \\frac": lambda g: g.replace(r"\dfrac", r"\frac").replace(r"\frac", r"\tfrac"),
    "wide brackets": lambda g: (
        g.replace(r"\left", "")
        .replace(r"\right", "")
        .replace("(", r"\left(")
        .replace(")", r"\right)")
    ),
    "spaces": lambda g: (
        g.replace("+", " + ").replace("-", " - ").replace("=", " = ").replace(", ", " ,\\, ")
    ),
    "with a name": lambda g: f"x = {g}",
    "with a unit": lambda g: g + r"\text{ units}",
    "unicode": lambda g: (
        g.replace("-", "−").replace(r"\pi", "π").replace(r"\cup", "∪").replace(r"\infty", "∞")
    ),
}
ALTERATIONS = {
    "plus one": lambda g: f"{g} + 1",
    "one more item": lambda g: f"{g}, 12345",
    "another digit": lambda g: "".join(
        chr((ord(c) - 47) % 10 + 48) if c.isascii() and c.isdigit() else c for c in g
    ),
    "not": lambda g: rf"\text{{not }} {g}",
}


def reprint_failures(golds, rewrites, expected):
    return [
        (g, name)
        for g in golds
        for name, f in rewrites.items()
        if grade_answer(f(g), g) is not expected and f(g) != g
    ]


def test_perturbations():
    golds = [g.strip() for line in GOLDS.strip().splitlines() for g in line.split("|")]
    no_unit = {r"\text{Evelyn}", r"50\%"}  # a word, and what has a unit already
    REPRINTS["with a name"] = lambda g: (
        g if g == r"\text{(C)}" else f"x = {g}"
    )  # A = C says that they are equal
    failures = reprint_failures(golds, REPRINTS, True)
    assert [f for f in failures if f[0] not in no_unit or f[1] != "with a unit"] == []
    assert reprint_failures(golds, ALTERATIONS, False) == []


def test_the_rung_that_decided():
    assert explain_grade("5", "5")[:2] == (True, "string")
    assert explain_grade("0.50", ".5")[:2] == (True, "decimal")
    assert explain_grade(r"\dfrac12", r"\tfrac12")[:2] == (True, "spelling")


def test_units_of_one_item_are_not_compared_when_one_is_unknown():
    """People may be students: only what is known to differ differs."""
    assert grade_answer("15 people", "15 students") and not grade_answer("15 kg", "15 cm")


def test_a_union_of_many_intervals_is_read_at_once():
    """Added one by one, 24 of them took sympy more than a second; more are not asked of it."""
    pieces = [f"({2 * i}, {2 * i + 1})" for i in range(24)]
    start = time.process_time()
    assert grade_answer(r"\cup".join(pieces), r"\cup".join(reversed(pieces)))
    assert time.process_time() - start < 0.6  # 0.13 on the machine where it was written
