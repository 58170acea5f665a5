r"""What the math grader accepts, what it refuses, and why.  Run: pytest tests/test_grading.py

Every false accept rewards a wrong answer; every false reject punishes a right one. The tables below
show by examples how we grade: (ground truth, prediction, reason).
"""

import re
import time

from appendix import grading
import pytest
from verifiers import explain_grade, extract_boxed_answer, grade_answer


# A line has three cells, three spaces apart. (nothing) is an empty cell, and ;; separates answers.
def _table(text):
    lines = [line.strip() for line in text.strip().splitlines()]
    rows = [re.split(" {3,}", line) for line in lines if not line.startswith("#")]
    rows = [(a, b, reason) for a, answers, reason in rows for b in answers.split("  ;;  ")]
    return [[cell.replace("(nothing)", "") for cell in row] for row in rows]


# ---- Extraction: the last box, balanced, or nothing ----------------------------------------------
BOXES = _table(
    r"""
    so \boxed{5}   5   plain
    \boxed{\frac{1}{2}}   \frac{1}{2}   nested braces
    first \boxed{1}, no: \boxed{2}.   2   the last box counts
    \boxed{ x + 1 }   x + 1   stripped
    \fbox{7}   7   \fbox is a box too
    \boxed {7}   7   a space before the brace
    \boxed 7   (no answer)   without braces it is malformed
    \boxed{\{1, 2\}}   \{1, 2\}   escaped braces are content
    \boxed{\left\{ x : x > 0 \right.}   \left\{ x : x > 0 \right.   an escaped brace needs no partner
    \boxed{a \\{b}}   a \\{b}   after a line break the brace is a real one
    \boxed{\boxed{5}}   5   the inner box is the last one
    \boxed{}   (nothing)   an empty box is an empty answer
    \boxed{5} and then \boxed{7   (no answer)   a malformed last box is no answer, whatever came before
    \boxed{5} is what I put into \boxed   (no answer)   so is a box without content
    the answer is 5   (no answer)   no box
    \boxedanswer{5}   (no answer)   another command
    (nothing)   (no answer)   nothing
    """
)


@pytest.mark.parametrize("text, answer, reason", BOXES)
def test_extract_boxed_answer(text, answer, reason):
    expected = None if answer == "(no answer)" else answer
    assert extract_boxed_answer(text) == expected, reason


def test_only_a_short_list_is_compared_item_by_item():
    """The order does not count, so n items are n^2 comparisons. A long list is compared as a text."""
    few, many = [[str(n) for n in range(count)] for count in (20, 100)]
    assert grade_answer(",".join(few), ",".join(reversed(few)))
    assert not grade_answer(",".join(many), ",".join(reversed(many)))


def test_extraction_is_linear(no_hang):
    assert extract_boxed_answer(r"\boxed{" * 100_000) is None
    assert extract_boxed_answer(r"\boxed{" * 100_000 + "}" * 100_000) == ""
    assert extract_boxed_answer("\\boxed{" + "{}" * 500_000) is None


# ---- Accepted: the same object in another spelling -----------------------------------------------
ACCEPTS = _table(
    r"""
    # numbers
    \$76.80   \$76.80.   a full stop is no part of a price
    3000   3 thousand dollars   number words multiply, also before a unit
    500000   \frac12\text{ million}  ;;  1/2\text{ million}   behind a fraction
    2000000000   2 billion people   up to these
    7000000   7\text{M}   and a letter
    5\text{ N m}   5\text{ N}\cdot\text{m}   a product of units
    60   5 dozen eggs   a dozen is 12
    5000000   5 million   six zeros
    0.1\overline{6}   \frac16   repeating decimals
    \frac{15}{11}   1.\bar{36}  ;;  1.(36)  ;;  1.\dot3\dot{6}   in any notation
    -\frac13   -.\overline{3}   with no digit before
    5000   5 \times {10}^3   a power in braces
    x^2-1   (x-1)(x+1) = x^2-1   an identity is what both sides are
    \frac12   0.5   a terminating decimal is its fraction
    \frac{1}{3}   0.333333333333   12 digits of a non-terminating one
    \sqrt{3}   1.7320508075688772   or more of a root
    -1.5   -1 1/2   a mixed number: its sign covers both parts
    3   \frac{1}{2}6   a product, not a mixed number
    1.5   \frac123   TeX reads \frac123 as (1/2)3
    1234567   1,234,567   thousands
    1234567.5   1{,}234{,}567.5   thousands in LaTeX
    1234.5   1.234{,}5   thousands in Europe
    3.5   3{,}5   and its decimal comma
    12000   12\,000   a thin space between thousands
    0.00012   1.2 \times 10^{-4}   scientific notation
    1011_2   1011_{2}   a base is part of the number
    42   \binom{7}{2} \cdot 2   binomial
    7   \lfloor 7.9 \rfloor  ;;  \lfloor 14\sin 30^\circ \rfloor   floor
    -3   \sqrt[3]{-27}   the real cube root
    \frac{1}{2001!}   \frac{2002}{2002!}   too large to be exact, compared relatively
    # unicode, markup
    a_1   a₁   subscripts
    \frac{5}{4}   1¼   vulgar fraction
    2\sqrt{10}   2√10   root sign
    \theta   θ   Greek
    15   １５   full-width digits
    12   “12”  ;;  `12`   quotation marks print nothing
    7   \[ \boxed{7} \]  ;;  **7**.  ;;  \huge{7}   boxed again, markdown, in any size
    \frac{2}{3}   \left(\dfrac{2}{3}\right)   big brackets
    # units
    12   12\ \mathrm{cm}^2  ;;  12\text{ children}   units go, also a plural without s
    9.8   9.8\,\frac{\mathrm{m}}{\mathrm{s}^2}   even in fractions
    5.13   5.13\ \mathrm{ft}/\mathrm{sec}   sec is a second here
    3   3 apples   a word after a number is a unit
    12 square feet   12\text{ ft}^2   units are not compared
    40   40^{\circ}  ;;  40 ^ { \circ }   degrees
    40%   40\%   percent
    \$1,500   1500 dollars   money
    15   15 km/h   also with a slash
    24\pi   24\pi cm^3   or behind \pi
    18250   USD 18250   or in front
    3 \text{ hours } 20 \text{ minutes}   3 hr and 20 min   one quantity of two units, whatever they are called
    3 \text{ p.m.}   3\text{ PM}   times of day
    15 people   15 students   people may be students: only known units differ
    # algebra: equal at random points
    (x-1)(x+1)   x^2-1   a product and its expansion
    \frac{x^2-1}{x-1}   x + 1   equal wherever both are defined
    2\ln x   \ln x + \ln x   points where neither side is defined do not count
    \sin 2x   2 \cos(x) \sin(x)   identities
    \frac12 \sin 4x   \sin 2x \cos 2x   a function ends the argument of the one before it
    \frac{1}{\cosh x}   \frac{2}{e^x+e^{-x}}   hyperbolic functions
    \log_4 8   \frac32   logarithm with a base
    10   {5 \choose 2}   \choose and \over stand between all that is in their group
    \cos\frac{\pi}{3}   \sin 30^\circ   degrees count inside a function
    |x-1|   \left|1-x\right|   absolute value
    (1+i)^2   2i   complex numbers
    \binom{n}{2}   \frac{n(n-1)}{2}   binomial in a letter
    (n+1)!   (n+1)\cdot n!   factorial in a letter
    x^2+c   c + x*x   order
    \sqrt{x^2}   |x|   both signs are tried
    # structures
    1, 2, 3   \{3, 1, 2\}   lists and sets have no order
    2, -2   \pm 2   plus or minus
    \pm 2   \mp 2   or minus or plus
    (1, 2)   \left( 1, \frac42 \right)   tuples
    (x, y) = (2, -1)   x = 2, y = -1  ;;  \{(2, -1)\}   its coordinates, the only solution
    \emptyset   \{\}   the empty set
    x < 2   (-\infty, 2)   an inequality and its interval
    (-\infty,0)\cup(0,\infty)   x \ne 0   what is left of the line
    [0,1) \cup (2,3)   (2,3) \cup [0,1)   a union has no order
    [0,2]   [0,1] \cup [1,2]   pieces that meet
    (-\infty,\sqrt2) \cup (\sqrt2,\infty)   \mathbb{R} \setminus \{2^{1/2}\}   all but one number
    (0,9) \cup (9,36)   (0,36) \setminus \{9\}   a hole in an interval
    (1,2)   (0,2) \cap (1,3)   what intervals share
    -1 \le x < 4   4 > x \ge -1   an inequality read backwards
    \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}   \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}   brackets
    \begin{pmatrix} 2 \\ 4 \end{pmatrix}   2 \begin{pmatrix} 1 \\ 2 \end{pmatrix}   a scalar times a matrix
    (0,\infty)   \mathbb{R}^+   the positive numbers
    (0,\infty)   \{x \in \mathbb{R} : x > 0\}  ;;  \{x \in \mathbb{R}~|~x > 0\}   by their condition
    x > 0   0 < x < \infty   both ends written
    (-\infty,2] \cup [3,4)   ]-\infty,2] \cup [3,4[   French brackets
    (-3,2) \cup (2,5]   -3 < x \le 5 \text{ and } x \ne 2   and: both hold
    7:45   7{:}45   a colon in braces
    \sum_{k=1}^{n} k^2   \sum_{k=1}^n k^2   names are compared without needless braces
    # equations
    y = 2x + 1   2x - y + 1 = 0   rearranged
    x + y = 2   3x + 3y = 6   a constant factor
    x=1 \text{ or } x=2   1, 2   solutions
    x < 1 \text{ or } x > 2   x > 2, x < 1   solutions that are intervals
    \{x \mid x \ge 2\}   [2, \infty)   a set by its condition
    [0, 1]   x \in [0, 1]   membership
    # words
    (B)   \textbf{B}   choices
    no solution   \text{No solution}   no case in words
    \text{does not exist}   \text{DNE}  ;;  \text{The limit does not exist}   a limit
    \text{red, blue}   \text{blue, red}   lists of words
    B, D   \text{B and D}   choices in one text
    \text{no solution}   \text{no}\ \text{solution}   one phrase in two texts
    A3_{16}   \text{A3}_{16}   digits that are letters
    30^\circ   \angle ABC = 30   an angle is a lone name
    12   |AB| = 12  ;;  f(-1) = 12  ;;  \gcd(24,36) = 12  ;;  \int_0^2 6x\,dx = 12   a length, a function's value, a command nobody knows, an integral
    (1,2)   \mathbf{v} = \langle 1, 2 \rangle   a vector and its name
    # what stands left of an equals sign is decided on what it means
    \frac35   P(X > 2) = \frac35  ;;  P(A \cap B) = \frac35  ;;  \tan\theta = \frac35   probabilities, and a function of an angle
    5   E[X] = 5  ;;  \mathbb{E}[X] = 5   an expectation
    (3,\frac{\pi}{2})   (r,\theta) = (3,\frac\pi2)   names in brackets, in their order
    10100   f(100) = 10,100   thousands behind a closed bracket
    30   m\angle ABC = 30   the measure of an angle
    42   \text{The final answer is } 42  ;;  The sum is 42   sentences that end in is
    # units
    20   20\text{ ordered pairs}  ;;  20\text{ paths}  ;;  20\text{ shaded squares}  ;;  20\text{ MeV}  ;;  20\text{ slices of pizza}   any word is a unit
    540   540 total  ;;  540\text{ (meters)}  ;;  540\text{ sq. units}   what was counted, in brackets, cut short
    9   \text{USD }9   money in front
    5\text{ cm}   $5$   but these dollars are LaTeX's
    60\text{ mph}   60\text{ miles per hour}   a quotient
    20\ \mathrm{m/s}   20\ \mathrm{m\,s^{-1}}   or a negative power
    24   \underline{24}  ;;  24个  ;;  24厘米   underlined; Chinese units
    5\text{ feet }6\text{ inches}   5\text{ feet, }6\text{ inches}  ;;  5 ft. 6 in.   two units, one comma; points behind what is cut short
    # letters at whole numbers
    (-2)^n   (-1)^n 2^n   powers that only whole numbers have
    (-1)^n   \frac{1}{(-1)^n}   at each of them
    x^{2024}-1   -1+x^{2024}   numbers too large for floats are exact there
    \sqrt{x-20}   (x-20)^{1/2}   defined where x is large
    4^x   2^{2x}   held at the same points
    # sets and families
    (-\infty,0) \cup \{1\}   x < 0 \text{ or } x = 1   a condition and a point
    (-\infty,-3)\cup(3,\infty)   (-\infty,-3) U (3,\infty)  ;;  (-\infty,-3) \text{ or } (3,\infty)   a capital U, and what are certainly intervals
    (-\infty,\infty)   x \in \mathbb{R}  ;;  \text{all real numbers}   all of the line, also in words
    x \ne 0   \mathbb{R} - \{0\}   a difference of sets
    2k\pi, k \in \mathbb{Z}   2k\pi \ (k \in \mathbb{Z})  ;;  2k\pi \text{ for all integers } k  ;;  2n\pi, n \in \mathbb{Z}  ;;  \{2\pi k : k \in \Z\}   a family, with any letter, and as a set
    2k, k \in \mathbb{N}   2k \text{ for positive integers } k   a smaller one
    x \equiv 3 \pmod 7   x \equiv 3 \ (\text{mod } 7)  ;;  x \equiv 3 \mod 7   a modulus in brackets and without
    \{1, 2, \ldots, n\}   \{1,2,...,n\}   dots
    (0,0), (1,2), (3,4)   (0,0), (1,2), \text{ and } (3,4)   a comma before and
    # as models write
    42   {\bf 42}  ;;  \textcolor{red}{42}  ;;  \Rightarrow 42   bold, coloured, behind an arrow
    \langle 3,-4\rangle   <3,-4>   a vector in angle brackets
    \left[\begin{array}{cc}1 & 2\end{array}\right]   \begin{pmatrix}1 & 2\end{pmatrix}   an array
    \text{No}   NO   shouted
    \ln(1+\sqrt2)   \sinh^{-1}(1)   an inverse function
    \frac{\ln 2}{\ln 5}   \log_52   TeX takes one digit for \log_
    a_1^2 + 1   a^2_1 + 1   index and power in either order
    2012_5   (2012)_5   digits in brackets
    1011_2   1011_{\text{2}}   a base in a text
    \frac{\hbar\omega}{2}   \omega\hbar/2   a letter of physics
    x=1, y=2   y = 2, x = 1  ;;  1, 2   named values in any order, or unnamed in theirs
    75\text{ cents}   75¢   a sign for cents
    1, 2   1或2  ;;  (a) 1 (b) 2  ;;  x=1 ∨ x=2  ;;  1 \& 2  ;;  \text{both } 1 \text{ and } 2   and, or, also in Chinese; part by part
    \frac12   \\frac12   an escaped command
    3   \log 1000   the base is 10
    -\infty, 2   -inf, 2   as programs print it
    10   Rs. 10   rupees
    7   7 two digit numbers  ;;  7\text{ negative integers}   what is counted has two digits or is negative
    5   5 more apples   or was not there before
    k   \text{Answer: } k   what follows the label
    25   25^\circ C   a temperature
    f(x) = x   f(x) = x \text{ for all } x   a function is one for all x
    y = Ce^x + C_1   y(x) = ce^x + c_1   constants have any name
    f(1)g(2)   g(2)f(1)   a product of two values
    4   4\text{ distinct real roots}   roots can be counted
    \frac12   ¹⁄₂   a fraction of small digits
    2^{n+1}   2⁽ⁿ⁺¹⁾  ;;  2ⁿ⁺¹   letters above
    €12   12€  ;;  12 \text{ euros}   euros, on either side
    5   5\text{ o'clock}  ;;  5\text{ arcsec}   a time, an angle
    \frac12   \nicefrac{1}{2}  ;;  {1 \above 1pt 2}   other fractions
    \sqrt2   \surd 2   another root
    0   0^3   a power of nothing
    12   12\hspace{1cm}\tag{1}  ;;  \small 12 \enskip  ;;  \emph{12}  ;;  \textstyle 12   what prints nothing
    \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}   \begin{pmatrix} 1 & 2 \\[4pt] 3 & 4 \end{pmatrix}  ;;  \begin{pmatrix} 1 & 2 \cr \hline 3 & 4 \end{pmatrix}   space between rows
    (1,2)   (1\,,\,2)   a thin space before a comma
    # money and units
    12   \SI{12}{\cm}  ;;  12\ \text{J/(kg·K)}  ;;  12\,\mu\text{s}  ;;  12\ \Omega  ;;  12\,\mathrm{M}_\odot  ;;  \mathdollar 12  ;;  US\$12  ;;  \text{Rs. }12  ;;  £12   units and money in symbols
    50   50 \text{ per cent}   percent in two words
    30^\circ 15'   30^{\circ}15^{\prime}  ;;  30^\text{o}15'   degrees and minutes
    5:3   5 \text{ to } 3   a ratio in words
    # lead-ins, conditions
    12   \text{It takes } 12 \text{ hours}  ;;  \text{exactly } 12  ;;  \text{She has } 12 \text{ apples}   what stands before a number
    5   x \triangleq 5  ;;  x^* = 5  ;;  y'|_{x=2} = 5   names
    \begin{pmatrix} 1 \\ 2 \end{pmatrix}   A^{-1} = \begin{pmatrix} 1 \\ 2 \end{pmatrix}   and this one
    2^n-1   2^n-1, n \ge 1  ;;  a_n = 2^n - 1 \text{ for } n \in \mathbb{N}^+   for which letters
    x^3 + C   x^3 + C, C \in \mathbb{R}  ;;  x^3 + C \text{ for some constant } C  ;;  x^3 + C, C \text{ is a constant}   constants
    f(x) = 2x   f(x) = 2x \text{ for all } x \in \mathbb{R}  ;;  f(x) \equiv 2x   functions
    x > 1   \text{all real numbers } x \text{ such that } x > 1   numbers
    \mathbb{Z}   \text{all integers}   in words
    1 \pm \sqrt2   1 +/- \sqrt2   plus or minus as programs print it
    2i   2\operatorname{cis}90^\circ   a complex number by its angle
    # systems and cases
    x=1, y=2   \begin{cases} x = 1 \\ y = 2 \end{cases}  ;;  \begin{aligned} x &= 1 \\ y &= 2 \end{aligned}   lines of a system
    \begin{cases} 1 & n \text{ even} \\ 0 & n \text{ odd} \end{cases}   \begin{cases} 1, & \text{if } n \text{ is even} \\ 0, & \text{if } n \text{ is odd} \end{cases}   cases
    # choices
    C   c  ;;  The answer is C  ;;  \text{Option C: }42  ;;  C - Paris  ;;  (C) 3  ;;  c. 3   whatever names that one letter
    A   A. I and II only   I is none here
    \text{(B)}   b: 2   that names one letter
    D   \text{(D) } 7   in a text
    """
)

# ---- Refused -------------------------------------------------------------------------------------
REJECTS = _table(
    r"""
    5   \text{there cannot be } 5  ;;  \text{it exceeds } 5  ;;  \text{Twice the answer} = 5  ;;  x \stackrel{\ne}{=} 5   what stands before it changes it
    36   41+2-7 = 35 \approx 35   a wrong side before the sign of rounding
    9007199254740993   9007199254740992   2^53 + 1: equal as floats
    4   (1)+(1)+(1)+((((((((((((((((((((1))))))))))))))))))))   twenty brackets are too deep to be read
    \frac13   0.3333   four digits are not a third
    \frac23   0.666666666668   nor are eleven of twelve two thirds
    5   \text{wrong answer} = 5  ;;  5 cm 3 mm  ;;  5 \text{ is wrong}   verdicts, and two lengths
    5   5 million  ;;  5\text{M}  ;;  5 mil  ;;  5分之一  ;;  5平方  ;;  5\text{ dozen}  ;;  5 degrees below zero  ;;  5\text{ times larger}  ;;  5\text{th root}   nor are these
    # words that change a number are no units
    2   2 thirds  ;;  2 hundredths  ;;  2 squared  ;;  2\text{ factorial}  ;;  2 zillion   words that change it are no units
    2\text{ m/s}^2   2\text{ m/s}   a speed is no acceleration
    15   15\text{ percent of }20  ;;  \text{either }15\text{ or }16   3, and two answers
    0.3   0.3\text{ repeating}   a third
    101   101\text{ in binary}   5
    1   \text{apples}   a word alone is not one of its kind
    -1   -\text{apples}   nor minus one
    # units do not multiply, what follows them belongs to them
    60   3 hours 20 minutes   3 times 20
    3 hours 20 minutes   2 hours 30 minutes   the same product
    11   5 \text{ feet} + 6 \text{ inches}   nor a sum of two units
    35   5\text{ to }7  ;;  7\text{ out of }5   a range and a share
    4 R 2   2 R 4   quotient and remainder
    5   5\text{ cm} \cdot x  ;;  5 (x \text{ dollars})   a factor behind the unit or before it
    15 kg   15 cm   known units differ, whatever they measure
    236 adult, 342 child   342 adult, 236 child   in lists unknown ones too
    n \text{ is odd}   n \text{ is even}   of a letter it is a statement
    2   \text{2x}   a letter in a text is a letter
    4\text{ ft} \times 12\text{ ft}   8\text{ ft} \times 6\text{ ft}   dimensions are no product
    n\mathrm{C}k   k\mathrm{C}n   a letter between two is an operator
    3:30 \text{ p.m.}   3:30 \text{ a.m.}   twelve hours apart
    24   24 abc   letters are no word
    7   7\text{ doubled}  ;;  7 negative  ;;  7 more than 5   14, -7 and 12
    2^{nd}   2   an exponent is no ordinal
    x=5\text{ cm}   x=5\text{ km}   in equations, too
    # what is not known is a name, in order
    3 \pmod 7   7 \pmod 3   modulus and residue
    {7 \over 12}   {12 \over 7}   above and below
    \overline{z}w   \overline{zw}   an accent ends with its group
    f \circ g   g \circ f   composition
    f(g(x))   g(f(x))   composition
    A \setminus B   B \setminus A   difference
    \vec{a} \times \vec{b}   \vec{b} \times \vec{a}   the cross product
    A \times B   B \times A   pairs
    \frac{dy}{dx}   \frac{y}{x}   d is no factor
    \int_0^1 f   \int_1^0 f   limits
    2P(x)   P(2x)   a name before one term in brackets is a function
    2f^{-1}(x)   f^{-1}(2x)   and so is an inverse
    12   \not= 12  ;;  x + y = 12  ;;  x = 12 = 13  ;;  \ln x = 12   not 12, in two unknowns, a contradiction, of no name
    HTH   HHT   capitals in a row are a word
    # names and bases
    6   x(x+1)=6  ;;  6\text{ twenties}   an equation, no name; 120
    5   x = 5 \approx 7   two answers
    (1,2)   (y,x) = (1,2)   x is 2
    x > 1, y < 2   y > 1, x < 2   names exchanged
    x > 0   y > 0   another name
    AB = 12   CD = 12  ;;  x = 12   another name
    |x| = 5   x = 5   another name
    \sin x = \frac12   \cos x = \frac12   another name
    1A3_{16}   1A3_{15}   another base
    321_5   321_{5}1   a digit behind the base
    ABC_{16}   BAC_{16}   digits do not commute
    \text{B+}   \text{B-}   another mark
    IV   VI   nor do these
    \text{Team 5}   \text{Team 6}   numbers in a text
    \text{version 1.5}   \text{version 15}   and their points
    1, 1, 2   1, 2, 2   lists of one length
    \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}   \begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}   a determinant is a number
    \begin{cases} x = 1 \\ y = 2 \end{cases}   \begin{cases} x = 2 \\ y = 1 \end{cases}   a system
    \mathbb{R}   \mathbb{Q}   other numbers
    (0,\infty)   \{x \in \mathbb{Z} : x > 0\}   whole numbers only
    \mathbb{R}   x > 0, x < 5  ;;  \{x : x > 0, x < 5\}   a list of two conditions is not all that meets one of them; in a set both hold
    (1,2), (3,4)   (1,2) \cup (3,4)  ;;  \{(1,3)\} \cup \{(2,4)\}   points are no intervals, nor are they other points
    -3 < x \le 5 \text{ and } x \ne 2   -3 < x \le 5 \text{ or } x \ne 2   and is not or
    # where digits do not reach
    \pi   \pi + 10^{-250}  ;;  \pi(1 + 10^{-120})  ;;  \pi + 10^{-50}   lost beside a float or in a factor
    10^{40}\pi   10^{40}\pi + 10^{-29}   small beside large
    \pi   0.9999999999999\pi   12 digits make a decimal, not a factor
    \ln(2^{1000})   \ln(2^{1000}+1)   too long to be rounded
    0   \frac{1}{\infty}  ;;  e^{-1000}  ;;  10^{-30}\pi \cdot 10^{-31}   small is not nothing
    1   \lfloor 0.9999999999999999999999999999999999999999\rfloor   a floor is exact where its argument is
    \infty   \infty + 1   neither
    \frac13   \frac13 \ldots 8   a tail
    \sqrt2   1.41421   nor six the root of two
    2^{30000}   2^{30000}+1   a sum that loses a term proves nothing
    \frac{1}{2004!}   \frac{1}{2006!}   tiny numbers are compared relatively
    2\frac13   \frac23   a mixed number is no product
    55   5 5   two numbers are not one
    (-\infty,2)\cup(3,\infty)   (-\infty,2)\cup(3,\infty), 7   an item too many, though 7 lies inside
    3   (3]   mixed brackets
    1234   1, 234   a space after the comma: a list
    \frac{x+1}{2}   x+1/2   precedence
    \frac{1}{2x}   \frac12 x   precedence
    (x+1)^2   x^2+1   freshman's dream
    |x|   x   differs for negative x
    |x+y|   |x|+|y|   differs for mixed signs
    \sin^{-1} x   \frac{1}{\sin x}   the inverse function
    \sin x^2   \sin^2 x   power of the argument
    (0,1)   [0,1]   brackets matter
    x > 3   3   an inequality is no number
    x < 3   x > -3   nor its mirror image
    \{1, 2\}   \{1, 2, 3\}   one element too many
    \pm 2   2   half of the answer
    2   1, 2, 3, 4   a list of guesses
    x + y = 2   2   an equation in several unknowns
    y = 2x   x = 2y   names exchanged
    5   x  ;;  (5  ;;  5 \in A   a free variable, unbalanced, says nothing about 5
    0   0x  ;;  I(0)  ;;  \emptyset  ;;  ()   no free variable equals a number, even when it vanishes; nothing is not zero
    [0,2]   [0,1) \cup (1,2]   1 is missing
    (0,9) \cup (9,36)   (0,36) \cup \{9\}   9 is not
    (0,a) \cup (a,1)   (0,1) \setminus \{b\}   letters have no place on the line
    (3,1)   \{\} \cup \{\}   a point is no empty interval
    (1,1)   (2,1) \cap (4,3)   whichever way nothing is written
    (0,1) \cup (2,3)   (0, 1 + 10^{-45}) \cup (2,3)   fractions are exact
    \text{east}   \text{seat}   words are no products
    no   on   short ones too
    \text{(A)}   \text{(B)}   another choice
    B   A, B, C, D   every choice
    \begin{pmatrix} 1 & 2 \end{pmatrix}   \begin{pmatrix} 1 \\ 2 \end{pmatrix}   row and column
    12:30   12   a time
    1   \frac{\infty}{\infty}   undefined
    nan   nan   equals nothing
    (nothing)   (nothing)   an empty answer is no answer
    6   2 \cdot   unfinished
    20^\circ\text{C}   20^\circ\text{F}   another temperature
    # number words
    18   18\text{ tens}   180
    8   8\text{ crores}  ;;  8\text{ fails}  ;;  8 \setminus 9   80 million, a verdict, and no set
    1   1\text{ googol}   a large number
    24   24\text{ at least}  ;;  24\text{ times as many}   a bound and a factor
    # numbers side by side
    30   5. 6  ;;  5{6}  ;;  {5}6   a point and a space, and what prints 56
    0.36   1.2.3   two points
    125   0,125   a decimal comma
    13   1 + 2 + \ldots + 10   what the dots leave out
    # where one side is undefined, it is another function
    \sqrt{|x|}   \sqrt{x}   half of it
    \ln|x|   \ln(-x)   the other half
    \lceil n/2 \rceil + 1   \lfloor n/2 \rfloor + 2   differs at even numbers
    \lfloor\log_2 n\rfloor + 1   \lceil\log_2 n\rceil   differs at powers of two
    f(1)   f(-3)   a function is no cosine
    15   5.(3)   a repeating decimal is no product
    30   10 \cdot 3\%   a share of ten
    12\ \Omega   12\text{ k}\Omega   1000 times as much
    12\text{ MW}   12\text{ mW}   10^9 times as much
    £12   €12   another currency
    12\text{ m}   12\,\mu\text{m}   a millionth
    2k   2ᵏ   a power is no product
    3\sqrt2   3\,,\,\sqrt2   nor is a list
    (1,2)   (1 \text{ or } 2)   one of two is no point
    2^n-1   2^n+1, n \ge 1   a condition mends nothing
    5   5, x > 7  ;;  \nexists x = 5   nothing to choose, and nothing is
    x > 1   x > 1, y < 2   nor is another inequality one
    2k\pi, k \in \mathbb{Z}   2k\pi, k \in \mathbb{N}   half of the family
    12   \text{at least } 12  ;;  \text{double } 12  ;;  \text{half of } 12   changed by what stands before
    C   (C) is wrong  ;;  C) and d  ;;  C: eliminated  ;;  C: fails  ;;  C. a; b; d   choices with tails
    # between and beyond the usual sample points
    |x-1000|   1000-x   differs for large x
    |a-b+200|   a-b+200   and for a small a - b
    \lfloor n/10 \rfloor   \lfloor n/11 \rfloor   differs at larger whole numbers
    \frac{n(n+1)}{2}   9n-26+0\cdot 10^{10^6(n-4)^2(n-9)^2}   what cannot be held is no match
    x   x+\lfloor 10^{39}x\rfloor-10^{39}x   nor is a sum that loses a term
    # units
    \$75   75\text{ cents}   100 times as much
    5\text{ miles north}   5\text{ miles south}   the other way
    \$12.50   12.5\%   money and percent
    60\text{ km/h}   60\text{ km/s}   3600 times as fast
    12\text{ cm}^2   12\text{ cm}^3   an area and a volume
    12\text{ square m}   12\text{ square cm}   square is a power
    12\text{ cubic m}   12\text{ cubic cm}   and so is cubic
    # sets, lists and names
    x = 3, y = -1   -1, 3   named values in another order
    x = 1, y = 2   x = 1, 2   one of two named
    x = y   y   an equation of two names
    f(1) = 2, f(2) = 3   f(1) = 3, f(2) = 2   exchanged
    a^2+b^2=C^2   a^2+b^2=c^2   no constant
    k^2, k \in \mathbb{Z}   kn, n \in \mathbb{Z}   two letters are not one
    2^n   2^n, n < 0   half of it
    (3,\infty)   |x| > 3   two intervals
    \{5\}   \{\{5\}\}   a set in a set
    x^5   x^5_8   an index is no base
    \frac{370370367037}{3}   123456789013.0   another twelfth digit
    C   C or D  ;;  (B) 3  ;;  (A)(B)(C)(D)  ;;  c. 3 or d. 4   two choices, another, and every one
    """
)


@pytest.mark.parametrize("truth, answer, reason", ACCEPTS)
def test_accepts(truth, answer, reason):
    assert grade_answer(answer, truth), (reason, explain_grade(answer, truth))


@pytest.mark.parametrize("truth, answer, reason", REJECTS)
def test_rejects(truth, answer, reason):
    assert not grade_answer(answer, truth), (reason, explain_grade(answer, truth))


# ---- The rewrites: each has an example, and a pair above that needs it ---------------------------
STAGES = (grading.CHARACTERS, grading.REWRITES)
REWRITES = [(stage, rewrite) for stage in STAGES for rewrite in stage]


@pytest.mark.parametrize("stage, rewrite", REWRITES, ids=[rewrite[2] for _, rewrite in REWRITES])
def test_a_rewrite_does_what_its_example_says(stage, rewrite):
    pattern, new, example = rewrite
    before, after = example.split(" -> ")
    assert pattern.sub(new, before).split() == after.split()


def test_without_a_rewrite_a_verdict_would_be_another():
    pairs = [(truth, answer) for truth, answer, _ in ACCEPTS + REJECTS]
    tokens = {text: grading.normalise(text) for pair in pairs for text in pair}
    verdicts = {pair: grade_answer(pair[1], pair[0]) for pair in pairs}

    def other(pair):
        same = all(grading.normalise(text) == tokens[text] for text in pair)
        return not same and grade_answer(pair[1], pair[0]) != verdicts[pair]

    needless = []
    for stage, rewrite in REWRITES:
        place = stage.index(rewrite)
        del stage[place]
        grading._normalise.cache_clear()
        likely = sorted(pairs, key=lambda pair: not any(map(rewrite[0].search, pair)))
        if not any(map(other, likely)):
            needless.append(rewrite[2])
        stage.insert(place, rewrite)
        grading._normalise.cache_clear()
    assert needless == [], "\n".join(needless)


# ---- Perturbations: a gold printed in another way is accepted, an altered one is not -------------
GOLDS = r"""
2 | -17 | 0.25 | 10080 | \frac{3}{4} | -\frac{11}{36} | \dfrac{17}{50} | 3\sqrt{13} | \sqrt{51}
11\sqrt2 | \frac{3\sqrt{3}}{4} | 6 - 5i | 1 \pm \sqrt{19} | 2k+2 | x^3+3x-6 | 6r^2-4r-24
(-2,1) | \left( 3, \frac{\pi}{2} \right) | (2,12) \cup (12,102) | [2,5)
\left[-\frac12, \infty\right) | 3, 5, 7 | \{1, 2, 4\} | 5.4 \text{ cents} | 90^\circ | 50\%
\$36 | 58,500 | 4210_5 | 2^{10} | \binom{8}{3} | 9\pi | \frac{\pi r}{h+r} | e^{2x} | \ln 3 + 2
\frac{x+2}{7} | \begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} | \text{Evelyn} | \text{(C)}
\frac{\sqrt[3]{4}}{2} | p - q | 8n^2+4n+1"""
GOLDS = [gold.strip() for gold in re.split(r"\||\n", GOLDS.strip())]
FRAMES = ["$GOLD$", r"\[ \displaystyle GOLD \]", r"\boxed{GOLD}", "GOLD.", "x = GOLD"]
FRAMES += [r"GOLD\text{ units}"]
NO_FRAME = {
    (r"\text{(C)}", "x = GOLD"),  # A = C says that they are equal
    (r"\text{Evelyn}", r"GOLD\text{ units}"),  # a word
    (r"\text{Evelyn}", "x = GOLD"),  # as A = C
    (r"50\%", r"GOLD\text{ units}"),  # it already has a unit
}
SPELLINGS = [  # {old: new}, to be replaced
    {r"\dfrac": r"\frac", r"\frac": r"\tfrac"},
    {r"\left": "", r"\right": "", "(": r"\left(", ")": r"\right)"},
    {"+": " + ", "-": " - ", "=": " = ", ", ": r" ,\, "},
    {"-": "−", r"\pi": "π", r"\cup": "∪", r"\infty": "∞"},
]
ALTERED = ["GOLD + 1", "GOLD, 12345", r"\text{not } GOLD"]
NEXT_DIGIT = str.maketrans("0123456789", "1234567890")


@pytest.mark.parametrize("gold", GOLDS)
def test_a_gold_is_accepted_in_another_print_and_refused_when_altered(gold):
    prints = [frame.replace("GOLD", gold) for frame in FRAMES if (gold, frame) not in NO_FRAME]
    for replacements in SPELLINGS:
        text = gold
        for old, new in replacements.items():
            text = text.replace(old, new)
        prints.append(text)
    assert [text for text in prints if not grade_answer(text, gold)] == []
    altered = [text.replace("GOLD", gold) for text in ALTERED] + [gold.translate(NEXT_DIGIT)]
    assert [text for text in altered if text != gold and grade_answer(text, gold)] == []


@pytest.mark.parametrize(
    "text",
    ["1<" + " " * 1400 + ">x.", "\ufdfa" * 200_000, "1e" * 700, r"\," * 700 + "x", "(n!)" * 300],
)
def test_no_answer_takes_long(text):
    begun = time.process_time()
    sum(i * i for i in range(10**6))
    half = time.process_time()
    grade_answer(text, "5")
    assert time.process_time() - half < 10 * (half - begun)  # not seconds: machines differ


def test_the_rung_that_decided():
    assert explain_grade("5", "5")[:2] == (True, "string")
    assert explain_grade("0.50", ".5")[:2] == (True, "decimal")
    assert explain_grade(r"\dfrac12", r"\tfrac12")[:2] == (True, "spelling")
