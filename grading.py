r"""grading.py - are two answers equal by value?  One door: equal(predicted, ground_truth).

An answer is rewritten to one spelling in five stages (1), read as numbers, sets and names (2, 3),
and compared (4, 5, 6). worked_out(..) (7) says whether an equal answer is one that a reward should
pay.

What is graded equal is paid, so a policy looks for two different things that meet here. Three rules
keep it out: what cannot be read for certain equals nothing; what is not known is a name, with all
that follows it; what digits cannot hold has no value. Nothing of an answer is evaluated by Python
or sympy; sizes are checked before numbers are formed.

Two answers are equal when a mathematician who reads only the two strings would say that they denote
the same object:
  decimals               0.5 is 1/2; 0.33 is not 1/3, which takes 12 digits or more
  percent, money, units  dropped: 50\% is 50 (and so not 0.5), 5\text{ cm} is 5; but 5 cm is not
                         5 km, nor 2 thirds 2; a degree counts only inside a function: \sin 30^\circ
  names                  x = 5 is 5, and P(A) = 5 too; but x + y = 5 is not, and a free letter
                         never equals a number
  order                  (1, 2) has one, lists and \{1, 2\} have none; (0, 1) is not [0, 1];
                         x > 2 is (2, \infty)
  notation               2\frac13 is a mixed number; \frac123 is (1/2)3, as in TeX; x^10 and
                         \sqrt10 are what was meant; \log has base 10; 52_8 is a number in base 8
  letters and roots      stand for real numbers
  arithmetic             2^{10} is 1024 and 9 \times 60 is 540, but a reward does not pay for them:
                         see worked_out
  choices                C, of A to J, is also (C), c and C. 42
  what is not known      \angle ABC, \pmod 7: compared as a name, letter by letter
"""

import math
import operator
import random
import re
import threading
import unicodedata
from collections import namedtuple
from fractions import Fraction
from functools import lru_cache, reduce

from mpmath.ctx_mp import MPContext
from sympy import FiniteSet, Interval, Rational, Union, oo

MAX_CHARS = 1500  # longer answers are compared as strings only
MAX_DEPTH = 20  # of brackets
MAX_BITS = 2**15  # of an exact number
MAX_WORK = 500  # of operations, as _WORK counts them
MAX_PIECES = 24  # of a region of the line


# ---- 1. One spelling -----------------------------------------------------------------------------
# A rewrite is a line: pattern, replacement, example (before -> after). tests/test_grading.py runs
# every example, and checks that without the rewrite some labelled pair would be judged otherwise.

# Single characters: a command's name, or what they are drawn like.
_COMMANDS = """
    αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta κkappa λlambda μmu νnu ξxi πpi ρrho σsigma
    τtau φphi χchi ψpsi ωomega √sqrt ∛sqrt[3] ∞infty ≤le ⩽le ≥ge ⩾ge ≠ne ≈approx ±pm ∓mp ∪cup ∩cap ∈in
    ∖setminus ∅emptyset ℝR ×times ⌊lfloor ⌋rfloor ⌈lceil ⌉rceil ∧wedge ∨vee ⇒Rightarrow"""
_DRAWN_LIKE = "−- –- —- ‐- ‑- ‒- ·* ⋅* ∙* ∗* ÷/ ⁄/ ∕/ º° ’' ∣| ⟨( ⟩) 、, 。."
_DROPPED = '«»£€¥"“”`\u200b\u200c\u200d\u2060\ufeff'
_CHARACTERS = str.maketrans(
    {
        **{pair[0]: f"\\{pair[1:]} " for pair in _COMMANDS.split()},
        **{pair[0]: pair[1] for pair in _DRAWN_LIKE.split()},
        **dict.fromkeys(_DROPPED),
    }
)
_SPACE = r"(?:(?<!\\)\\[,!;: ]|\s|~)"


def _aliases(lines):
    """Of each line or part of one, {alias: the first}"""
    groups = [line.split() for line in re.split(r" ; |\n", lines.strip())]
    return {alias: group[0] for group in groups for alias in group}


def _stage(*lines, **functions):
    r"""Each line: pattern, replacement, example."""
    rewrites = []
    for line in lines:
        pattern, new, example = re.split(" {3,}", line)
        new = new.replace("(nothing)", "").replace("(space)", " ")
        pattern = re.compile(pattern.replace("<SPACE>", _SPACE))
        rewrites.append((pattern, functions.get(new, new), example))
    return rewrites


def _thousands(match):
    return re.sub("[^0-9]", "", match[0])


def _repeating(match):
    whole, first, again = match.groups()
    top = int(whole + first + again) - int(whole + first)
    return rf"\frac{{{top}}}{{{'9' * len(again)}{'0' * len(first)}}}"


# Before NFKC makes x2 of x²; of ½ it makes 1⁄2.
CHARACTERS = _stage(
    r"[⁰¹²³⁴-⁹⁺⁻ⁿ]+   ^{\g<0>}   x¹² -> x^{¹²}",
    r"[₀-₉ₙ]+   _{\g<0>}   a₁ -> a_{₁}",
    r"[¼½¾⅐-⅞]   \\frac{\g<0>}   3½ -> 3\frac{½}",
    r"¢   (space)cents   75¢ -> 75 cents",
    r"或   (space)or(space)   1或2 -> 1 or 2",
    r"和   (space)and(space)   1和2 -> 1 and 2",
)
MARKUP = _stage(
    r"(?<!\\)\\\\(?=[a-z]{2})   \\   \\frac12 -> \frac12",
    r"^(\${1,2})([^$]*)\1[.,]?$   \2   $\frac12$. -> \frac12",
    r"(?<!\\)\\[()\[\]]   (space)   \[5\] ->  5 ",
    r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*\.?   (nothing)   \left(1, 2\right) -> (1, 2)",
    r"\\(?:displaystyle|limits|[lL]arge|LARGE|huge|Huge|underline|bf|it|rm|textcolor\s*\{\w+\}|color\s*\{\w+\})(?![A-Za-z])   (nothing)   {\bf 42} -> { 42}",
    r"^\s*\\(?:Rightarrow|implies|therefore)(?![A-Za-z])   (nothing)   \Rightarrow 42 ->  42",
    r"\\(?:mathbf|boldsymbol|bm|mathit|mathbb)\s*\{([A-MO-PS-Ya-z])\}   (space)\1   \mathbf{v} ->  v",
    r"\.\.\.|\\c?dots[cbm]?(?![A-Za-z])   \\ldots(space)   1, ..., n -> 1, \ldots , n",
    r"^\s*<(.*,.*)>\s*$   (\1)   <3,-4> -> (3,-4)",
    r"\\(begin|end)\s*\{(?:[pb]matrix|smallmatrix|array)\}(?:\s*\{[lcr| ]*\})?   \\\1{matrix}   \begin{array}{cc} -> \begin{matrix}",
    r"(?:\{\})?\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])   °   90^{\circ} -> 90°",
    r"(?i)\bsq\. ?   square(space)   7 sq. ft -> 7 square ft",
    r"\\(?:text[a-z]*|mbox|mathrm|mathsf|operatorname)\s*\{((?:[^{}]|\{[^{}]*\})*)\}   «\1»   5\text{ cm} -> 5« cm»",
)


# Words become names in quotes: 9 red apples -> 9 "red" "apples". Behind a number they are a unit.
# An alias stands for the first name of its line; the names of these lines are known units.
_UNIT_LINES = """
    m meter metre ; cm centimeter centimetre ; mm millimeter millimetre ; km kilometer kilometre ; nm nanometer
    in inch inche ; ft foot feet ; yd yard ; mi mile ; s sec second ; ms millisecond ; min minute ; h hr hour
    day ; week ; month ; yr year ; g gram ; kg kilogram ; mg milligram ; lb pound ; oz ounce ; ton tonne
    l liter litre ; ml milliliter millilitre ; gal gallon ; cup ; pint ; quart ; deg degree ; rad radian
    hz hertz ; khz ; mhz ; ghz ; mol mole ; ev ; kev ; mev ; gev ; j joule ; kj ; cal calorie ; kcal
    w watt ; kw ; mw ; kwh ; n newton ; pa pascal ; kpa ; mpa ; atm ; v volt ; k kelvin ; celsius ; fahrenheit
    kb ; mb ; gb ; tb ; db ; percent pct ; dollar usd buck ; cent ; am ; pm ; children child ; people person ; men ; women
    unit"""
_UNITS = _aliases(_UNIT_LINES)
# Words behind a number that change it, so that they are no unit: 2 thirds, 2 squared, 5 or less.
_CHANGING = re.compile(
    r"""(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen)(?:e?s|th|ths)?
    |(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|hundred|thousand|\w*illion)ths?|thirds?|hal(?:f|ves?)|quarters?
    |(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ies?|ieths?)|zillions?|lakhs?|crores?|googols?|myriads?|score|gross|grand
    |doubled?|doubles|tripled?|triples|halved|quadrupled|squared|cubed|multiplied|divided|increased|decreased
    |reduced|raised|rounded|repeated|repeating|recurring|factorials?|inverses?|reciprocals?|time_\w+|\w+_root|plus|minus
    |base|binary|octal|hex\w*|decimal|prime|mod|if|is|are|no|not|never|or|nor|to|than|more|less|fewer|below|negative
    |opposite|least|most|as|fails?|unless|otherwise|approximately|almost|nearly""",
    re.X,
).fullmatch
_UNIT_WORDS = re.compile(  # what is counted may be negative integers or two-digit numbers
    """(?:negative|prime|decimal|base|double|more|less|fewer|two|three|four|five|six|seven|eight|nine)_(?=[a-z])
    |(?:th|square|cube)_root|time_[a-z]+|[a-z]+""",
    re.X,
).findall
_SHORT_WORDS = "no on of to is all any odd mod gcd lcm max mph kph mpg".split()
_LOOKS_LIKE_A_WORD = re.compile(
    "[A-Z]{3,}|[A-Z][a-z]{2,}|[IVX]{2,}|[a-z][CP][a-z]"
    "|(?!def|hij|abcd)(?:(?=.*[eio])[a-z]{3}|(?=.*[aeiou]).{4,})"
).fullmatch
_TRIG = "sin cos tan cot sec csc".split()
_OTHERS = (
    "arcsin arccos arctan arccot arcsec arccsc arcsinh arccosh arctanh sinh cosh tanh ln log exp"
)
_FUNCTIONS = {*_TRIG, *_OTHERS.split()}
_COMMAND_WORDS = "sqrt infty pi alpha beta gamma theta lambda phi omega".split()
_READ_AS = {name: f"\\{name} " for name in (*_FUNCTIONS, *_COMMAND_WORDS)}
_READ_AS |= {"and": "∧", "or": "∨"}


def _unit(word):
    """The name of a unit: Kilometers -> km, apples -> apple, plus -> plus"""
    singular = re.sub("(?<=.[^su])s$", "", word.casefold())
    return _UNITS.get(singular, singular)


def _is_word(word, in_text, counted):
    r"""Or are these letters a product, such as xy?  counted: they stand behind a number."""
    if in_text and not re.fullmatch("[a-fi-kn-rt-z]" if counted else "[eidA-Z]", word):
        return True  # \text{cm}, 5\text{ g}; but not \text{2x}
    if word.casefold() in _SHORT_WORDS and word != "NO":
        return True  # no; but a side NO
    if counted and len(word) > 1 and _unit(word) in _UNITS:
        return True  # 5 cm
    return bool(_LOOKS_LIKE_A_WORD(word))


def _known(unit):
    """Of a unit such as "km/h"."""
    return all(word in _UNITS for word in re.findall("[a-z]+", unit))


def _words(match):
    """9 red apples -> 9 "red" "apples", 1 and 2 -> 1 ∧ 2, 2pi -> 2\\pi; xy stays a
    product, ABC_{16} and 3ABC too."""
    if not match["run"]:  # a command, the end of 1A3
        return match[0]
    before = match.string[: match.start()]
    in_text = before.rfind("«") > before.rfind("»")
    counted = re.search(rf"(?:[0-9}})°]|\\pi)(?:{_SPACE}|«)*$|[a-z]«$|[0-9}}]\s*«[^»]*$", before)
    words = match[0].split()
    read_as = {word: _READ_AS.get(word) for word in words}
    if in_text or counted:
        read_as["sec"] = None  # a second
    marked = {word for word in words if not read_as[word] and _is_word(word, in_text, counted)}
    if marked:  # "no" x is no solution, a circle
        marked |= {word for word in words if len(word) > 1 or word in "aA"}
    return " ".join(read_as[word] or (f'"{word}"' if word in marked else word) for word in words)


WORDS = _stage(
    r"^NO$   no   NO -> no",
    r"(?i)(?<![a-z])([ap])\.\s?m\b\.?   \1m   7:45 a.m. -> 7:45 am",
    r'\\(?:begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|(?<=[0-9])[A-Z]+(?![A-Za-z])|[A-Z]+(?=[0-9])|(?<![A-Za-z])(?P<run>[A-Za-z]+(?: +[A-Za-z]+)*)(?![A-Za-z]*»?_)   words   9 red apples or 2xy -> 9 "red" "apples" ∨ 2xy',
    r'[«»]   (space)   5«"cm"» -> 5 "cm" ',
    r'(?i)"inf(?:inity)?"   \\infty(space)   (2, "inf") -> (2, \infty )',
    r'"\.   "   5 "ft". -> 5 "ft"',
    r'(?:"USD"|\bRs\.?)\s*(?=[0-9])   \\$   Rs. 50 -> \$50',
    r'"(?:square|sq)"\s*("\w+")   \1^2   "square" "feet" -> "feet"^2',
    r'"(?:cubic|cu)"\s*("\w+")   \1^3   "cubic" "cm" -> "cm"^3',
    r'(?:\\cdot)?\s*("\w+")\s*\^\s*\{-1\}   /\1   "m" "s"^{-1} -> "m"/"s"',
    r'"mph"   "mi"/"h"   60 "mph" -> 60 "mi"/"h"',
    r'(?<=[0-9}])\s+m/s(?![A-Za-z])   "m"/"s"   5 m/s -> 5"m"/"s"',
    r'"per"\s*(?=")   /   5 "km" "per" "h" -> 5 "km" /"h"',
    r'/\s*("\w+")\s*"squared"   /\1^2   "m" /"second" "squared" -> "m" /"second"^2',
    r'"\s*/\s*([hs])(?![A-Za-z])   "/"\1"   5 "km"/h -> 5 "km"/"h"',
    r'(?<![A-Za-z])\(\s*("\w+")\s*\)   \1   540 ("meters") -> 540 "meters"',
    r'(?<=[0-9}i])\s*"dozens?"   \\dozen(space)   5 "dozen" -> 5\dozen ',
    r'(?<=[0-9}i])\s*"hundreds?"   *10^2   3 "hundred" -> 3*10^2',
    r'(?<=[0-9}i])\s*"thousands?"   *10^3   3 "thousand" -> 3*10^3',
    r'(?<=[0-9}i])\s*"millions?"   *10^6   2.5 "million" -> 2.5*10^6',
    r'(?<=[0-9}i])\s*"billions?"   *10^9   2 "billion" -> 2*10^9',
    r'(?<=[0-9}i])\s*"trillions?"   *10^{12}   2 "trillion" -> 2*10^{12}',
    r'\\frac\s*\{\s*("[^{}]*)\}\s*\{\s*("[^{}]*)\}   \1/\2   \frac{"m"}{"s"^2} -> "m"/"s"^2',
    r'"\s*:(?!\s*")   "=   "Answer": 12 -> "Answer"= 12',
    r'"(?:is|are|equals)"\s*(?=[-\\0-9(\[$])   =   "sum" "is" 12 -> "sum" =12',
    r'^(?:"(?:[Tt]he|[Ff]inal|[Cc]orrect)"\s*)*"[Aa]nswer"\s*(?:=|"is")   (nothing)   "The" "answer" = "Paris" ->  "Paris"',
    r'(?<=m")([23])(?![0-9])   ^\1   7 "cm"3 -> 7 "cm"^3',
    r'(?<=[a-z])"-"   "(space)"   "two"-"digit" "numbers" -> "two" "digit" "numbers"',
    r'(?:°|"[dD]egrees?")\s*(?:"C(?:elsius)?"|C)(?![A-Za-z])   (space)"celsius"   5° C -> 5 "celsius"',
    r'(?:°|"[dD]egrees?")\s*(?:"F(?:ahrenheit)?"|F)(?![A-Za-z])   (space)"fahrenheit"   5° F -> 5 "fahrenheit"',
    r',?\s*"for"\s*"(?:all|every|any)"\s*(?:"reals?"\s*)?(?:"numbers?"\s*)?[a-z]$   (nothing)   x^2 "for" "all" x -> x^2',
    r'("(?:hour|hr|minute|feet|foot|ft|yard|pound|dollar|year|week|day)s?")\s*[∧,]\s*∧?(?=\s*[0-9.]+\s*"(?!\1))   \1   5 "feet", 6 "inches" -> 5 "feet"6 "inches"',
    words=_words,
)
NUMBERS = _stage(
    r"([0-9]{1,20})\.([0-9]{0,20})\\(?:overline|bar|dot)\s*\{?([0-9]{1,20})\}?(?![0-9])   repeating   0.1\overline{6} -> \frac{15}{90}",
    r"(?<![0-9.])(?<![0-9],)[1-9][0-9]{0,2}(?:(?:\{,\}|,\\!|<SPACE>)<SPACE>*[0-9]{3})+(?!,?[0-9])   thousands   10\,000 + 2{,}500 -> 10000 + 2500",
    r"(?<![0-9.])(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])(?![^()\[\]{}]*(?:[)\]]|\\\}))   thousands   f(2) = 2,500 + (12,102) -> f(2) = 2500 + (12,102)",
    r'(?<=[0-9])\s*\^\s*\{?\s*(?:"(?:st|nd|rd|th)"|th(?![A-Za-z]))\s*\}?   (space)   12^{"th"} -> 12 ',
    r'\\?\$\s*(-?[0-9][0-9.]*(?:\*10+\^[0-9]+)?)   \1 "dollar"   \$2.50 -> 2.50 "dollar" ',
    r"(^|[-+*/(=,])\s*\{([0-9.]+)\}   \1\2   {5}6 -> 56",
    r"(?<![0-9.^_])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)   \1\\frac{\2}{\3}   1 1/2 -> 1\frac{1}{2}",
    repeating=_repeating,
    thousands=_thousands,
)
SETS = _stage(
    r'(?i)"all" "real(?:s|" "numbers?)"   \\R   "all" "real" "numbers" -> \R ',
    r"\\(?:mathbb|Bbb)\s*(?:\{R\}|R(?![A-Za-z]))   \\R   \mathbb{R} -> \R ",
    r"\\R\s*[\^_]\s*\{?\s*(?:\+|>\s*0)\s*\}?   (0,\\infty )   \R^+ -> (0,\infty )",
    r"-\s*\\infty(?![a-z])   \\ninf   -\infty -> \ninf ",
    r"([)\]])\s*U\s*([(\[])   \1\\cup \2   (1,2) U (3,4) -> (1,2)\cup (3,4)",
    r"^(?!.*\\pm)(.*)\\mp   \1\\pm   3 \mp 2 -> 3 \pm 2",
    r"-\s*(?=\\\{)   \\setminus(space)   \R - \{0\} -> \R \setminus \{0\}",
    r"\\times(?=\s*\\(?:mathb|vec|overr|hat|bold|bm))|(?<=[A-Z])\s*\\times(?=\s*[A-Z])   \\cross   A \times B -> A\cross  B",
    r',?\s*"where"\s*([a-z])\s*"is"\s*"an"\s*"integer"   , \1 \\in \\mathbb{Z}   n\pi "where" n "is" "an" "integer" -> n\pi, n \in \mathbb{Z}',
    r',?\s*"(?:for|where|with)"\s*(?:"(?:any|all|every|some)"\s*)?"integers?"\s*([a-z])   , \1 \\in \\mathbb{Z}   2k\pi "for" "integer" k -> 2k\pi, k \in \mathbb{Z}',
    r',?<SPACE>*(?:\(|"(?:for|where|with)")\s*([a-z]\s*\\in\s*\\mathbb\s*(?:\{[NQZ]\}|[NQZ]))\s*\)?   , \1   2k\pi (k \in \mathbb{Z}) -> 2k\pi, k \in \mathbb{Z}',
    r'\\[bp]?mod(?![a-z])|"mod"   \\pmod   3 \mod 7 -> 3 \pmod  7',
    r"\(\s*\\pmod<SPACE>*(\w+)\s*\)   \\pmod \1   3 (\pmod  7) -> 3 \pmod 7",
    r",\s*(?=[,∧∨])   (nothing)   1, 2, ∧ 3 -> 1, 2∧ 3",
    r"\{([,:])\}   \1   7{:}45 -> 7:45",
)
SCRIPTS = _stage(
    r"m(?=\\angle)   (nothing)   m\angle ABC -> \angle ABC",
    r"\\\{\s*([a-z])\s*(?:\\in\s*\\R\s*)?(?:\\mid|\||:)\s*(?=[^{}]*\1)([^{}:|]*)\\\}   (\2)   \{x \in \R \mid x > 2\} -> (x > 2)",
    r"\\(sin|cos|tan|cot|sec|csc|sinh|cosh|tanh)\s*\^\s*\{?\s*-\s*1\s*\}?   \\arc\1(space)   \sin^{-1} -> \arcsin ",
    r"\\(?:log|lg)(?!\s*_|[A-Za-z])   \\log_{10}   \log 2 -> \log_{10} 2",
    r"\\log_([0-9])   \\log_{\1}   \log_52 -> \log_{5}2",
    r"\\[dtc]?(frac|binom)\s*([0-9])   \\\1{\2}   \dfrac12 -> \frac{1}2",
    r"(\\(?:frac|binom)\{[0-9]+\})\s*([0-9])   \1{\2}   \frac{1}23 -> \frac{1}{2}3",
    r"\\frac\s*\{d([a-z]?)\}\s*\{d([a-z])\}   \\derivative{\1}{\2}   \frac{dy}{dx} -> \derivative{y}{x}",
    r"\s+_   _   1011 _2 -> 1011_2",
    r"\(([0-9A-F]+)\)_   \1_   (1A)_{16} -> 1A_{16}",
    r"_\s*\{\s*\(?(\w+)\)?\s*\}   _{\1}   1011_{ 2 } -> 1011_{2}",
    r"([a-zA-Z])\^(\{\w+\}|\w)_(\{\w+\}|\w)   \1_\3^\2   a^2_1 -> a_1^2",
    r"(?<![0-9)])_\{(\w)\}   _\1(space)   x_{1} -> x_1",
    r"(?<!\\)\\(?:[,:;!$\s]|q?quad(?![a-z])|boxed|fbox|framebox|mathbf|boldsymbol)|[$~]   (space)   5\,x\ y\quad z -> 5 x y z",
    r"\\R(?![A-Za-z])   (\\ninf ,\\infty )   x \in \R -> x \in (\ninf ,\infty )",
    r"\\(?:emptyset|varnothing)(?![A-Za-z])   \\{\\}   \emptyset -> \{\}",
    r"\\end\s*\{[^{}]*\}   \\end(space)   \end{pmatrix} -> \end ",
    r'"\s*\^\s*\{?\s*(-?[0-9]+)\s*\}?   ^\1"   "cm"^2 -> "cm^2"',
    r'"\s*/\s*"   /   "km"/"h" -> "km/h"',
    r'"\s*(?:\*|\\cdot|\\times)?\s*"   _   "N" \cdot "m" -> "N_m"',
    r"^(?:[ *=]|\\approx(?![a-z]))+|[\s*=.,;:\\]+$   (nothing)   **7**. -> 7",
)
STAGES = {"markup": MARKUP, "words": WORDS, "numbers": NUMBERS, "sets": SETS, "scripts": SCRIPTS}

_TOKEN = re.compile(
    r"(?<!\^)[0-9][0-9A-F]*_(?:[0-9]|\{[0-9]+\})|[A-F][0-9A-F]+_\{[0-9]{2}\}"  # 52_8, not x^5_8
    r"|(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?"
    r'|"[^"]*"|\\begin\s*\{[a-zA-Z]+\*?\}|\\log(?![A-Za-z])'
    r"|(?:\\[A-Za-z]+|[A-Za-z])(?:'*(?:_\w|_\{[^{}]*\})?)|\\.|!!|[<>!:=]=|\*\*|\S",
    re.S,
)
_SYNONYM_LINES = r"""
    \frac \dfrac \tfrac \cfrac ; \binom \dbinom \tbinom ; \le \leq \leqslant <= ; < \lt ; \ge \geq \geqslant >=
    \ne \neq != ; > \gt ; = == := ; : \colon ; * \cdot \times \ast ; / \div ; \{ \lbrace ; \} \rbrace ; ( \langle
    ) \rangle ; ^ ** ; \infty \infinity ; \epsilon \varepsilon ; \phi \varphi
    \setminus \backslash ; | \lvert \rvert \vert \mid \| \lVert \rVert ; "percent" \% %"""
_SYNONYMS = _aliases(_SYNONYM_LINES)


def normalise(text):
    r"""The tokens of an answer, the same for many spellings: r"2\dfrac{x}3" -> ["2",
    r"\frac", "{", "x", "}", "3"]"""
    for pattern, new, _ in CHARACTERS:
        text = pattern.sub(new, text)
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS))
    text = text.replace("⁄", "}{").translate(_CHARACTERS)
    if len(text) > MAX_CHARS:  # by now: one character may become eighteen
        return []
    for stage in STAGES.values():
        for pattern, new, _ in stage:
            text = pattern.sub(new, text.strip())
    tokens = [_SYNONYMS.get(token, token) for token in _TOKEN.findall(text)]
    return [_words_in(token) if token[0] == '"' else "".join(token.split()) for token in tokens]


def _words_in(token):
    """ "Square_meters" -> "square_m" """
    return re.sub("[A-Za-z]+", lambda word: _unit(word[0]), token)


# ---- 2. Values -----------------------------------------------------------------------------------
# Without them (x-1)(x+1) is not x^2-1. A value is a Fraction, a float of 200 digits, None where it
# is undefined, or UNKNOWN where digits cannot hold it: none shows that \pi + 10^{-250} is not \pi.
UNKNOWN = "unknown"
LONG = 140  # bits that an exact number may have beside one that is not
_WORK = {"+": 4, "*": 4, "/": 4, "abs": 4, "!": 60, "binom": 180}  # others: 15
_LOCK = threading.RLock()  # mpmath functions change the precision of their context while they run
_mp = MPContext()
_mp.dps = 200
HUGE = _mp.mpf(10) ** 5000
TINY = 1 / HUGE
WIDE = _mp.mpf(10) ** 80  # a sum holds no terms further apart
SAME = _mp.mpf(10) ** -100  # relative

# values: one, or one for each sample point; rounded: a decimal of 12 digits; unit: its words, as in
# "km" / "h";
# name: what this is called, if it is a name alone, such as x or f(2)
Number = namedtuple(
    "Number",
    "values letters rounded unit name kind",
    defaults=(frozenset(), False, "", "", "number"),
)


def constant(n):
    return Number((Fraction(n),))


def _exact(*values):
    return all(type(x) is Fraction for x in values)  # isinstance takes three times as long


def _bits(x):
    return max(x.numerator.bit_length(), x.denominator.bit_length()) if _exact(x) else 0


def _odd_bits(n):
    """The bits of n without its factors of two, which a float holds exactly: 2^{300} has one."""
    return (n // (n & -n)).bit_length() if n else 0


def _float(x):
    """What is rounded here must not be too long for that."""
    if not _exact(x):
        return x
    if max(_odd_bits(x.numerator), _odd_bits(x.denominator)) > LONG:
        raise OverflowError("too long to be rounded: \\pi(1 + 10^{-250})")
    return _mp.mpf(x.numerator) / x.denominator


def _bounded(x):
    """The argument of a function, as a float, if the value still has 100 right digits there."""
    x = _float(x)
    if x != 0 and not 1e-30 < abs(x) < 1e50:
        raise OverflowError("the sine of 10^{60}")
    return x


def _power(base, exponent):
    r"""Roots of odd degree are real: \sqrt[3]{-8} is -2."""
    if not _exact(exponent) or _bits(exponent) > 17:
        return _mp.exp(_bounded(exponent) * _mp.ln(_float(base)))
    n = exponent.numerator
    degree = exponent.denominator
    if degree % 2 and not isinstance(base, _mp.mpc) and base < 0:
        return _power(-base, exponent) * (-1 if n % 2 else 1)
    if degree > 1:
        base = _mp.root(_float(base), degree)
    if not 0 < _bits(base) * abs(n) <= MAX_BITS:
        base = _float(base)
    return base**n


def _add(a, b):
    if _exact(a, b):
        return a + b
    terms = [_float(a), _float(b)]
    total = sum(terms)
    small, large = sorted(map(abs, terms))
    if not large < HUGE or small and large > small * WIDE:
        raise OverflowError("a sum that loses a term proves nothing")
    return total if abs(total) > large * SAME else Fraction(0)


def _factorial(n):
    if _exact(n) and n.denominator == 1 and 0 <= n <= 2500:
        return Fraction(math.factorial(int(n)))
    return _mp.gamma(_bounded(n + 1))


def _floor(x):
    return Fraction(math.floor(x) if _exact(x) else int(_mp.floor(_bounded(x) + SAME)))


_OPERATIONS = {
    "+": _add,
    "*": operator.mul,
    "/": operator.truediv,
    "^": _power,
    "abs": abs,
    "!": _factorial,
    "binom": lambda n, k: _factorial(n) / _factorial(k) / _factorial(n - k),
    "floor": _floor,
    "ceil": lambda x: -_floor(-x),
}


def _function(name, x):
    value = getattr(_mp, name.replace("arc", "a"))(_bounded(x))
    return value if name == "exp" or abs(value) > SAME else Fraction(0)  # \sin\pi


def _compute(name, args, with_letters):
    """One value at one point."""
    for x in args:
        if x is None or x is UNKNOWN:
            return x
    try:
        if name in ("*", "/", "binom") and not _exact(*args):
            args = [_float(x) for x in args]
        value = _OPERATIONS[name](*args) if name in _OPERATIONS else _function(name, *args)
        if with_letters and isinstance(value, _mp.mpc) > any(isinstance(x, _mp.mpc) for x in args):
            return None  # letters stand for real numbers
        return value if value is None else _held(value, args)
    except OverflowError:
        return UNKNOWN
    except (ArithmeticError, ValueError, TypeError):
        return None


def _held(value, args):
    """A value, or UNKNOWN if it is too large or too small to be held."""
    if _exact(value):
        return UNKNOWN if _bits(value) > MAX_BITS else value
    zero = value == 0 and 0 in args  # not 1 / \infty
    return value if zero or TINY < abs(value) < HUGE else UNKNOWN


# The sample points of a letter: real ones of these sizes (\ln(x-5) is defined at some), the first
# six with either sign, for |x+y| is not |x|+|y|, and whole ones, for (-1)^n and \lfloor n/2
# \rfloor.
_SIZES = (1.5, 0.4, 2, 0.2, 7, 1, 0.5, 4, 12, 30)
_CONSTANTS = {
    r"\pi": +_mp.pi,
    "e": +_mp.e,
    r"\infty": _mp.inf,
    r"\ninf": _mp.ninf,
    "i": _mp.j,
    r"\dozen": Fraction(12),
}
_LETTER_NAMES = r"""
    \alpha \beta \gamma \delta \epsilon \zeta \eta \theta \kappa \lambda \mu \nu \xi \rho \sigma \tau
    \phi \chi \psi \omega \Gamma \Delta \Lambda \Sigma \Phi \Psi \Omega \ell \hbar"""
_LETTERS = set(_LETTER_NAMES.split())


@lru_cache(1000)
def letter(name):
    """A letter or other name: pseudo-random numbers, always the same ones for the same name."""
    if name in _CONSTANTS:
        return Number((_CONSTANTS[name],), name=name if name.isalpha() else "")
    rng = random.Random(name)
    values = [_mp.mpf(size * rng.uniform(0.6, 1.4)) for size in _SIZES]
    for point in rng.sample(range(6), 3):
        values[point] = -values[point]
    values += map(Fraction, rng.sample([4, 9, *rng.sample(range(1, 14), 4)], 6))
    return Number(tuple(values), frozenset([name]), name=name)


def _rows(*args):
    """The values of several numbers, point by point."""
    points = max(len(arg.values) for arg in args)
    return list(zip(*(arg.values * (points // len(arg.values)) for arg in args)))


def apply(name, *args):
    units = {arg.unit for arg in args} - {""}
    if len(units) > 1 or name == "*" and args[0].unit:
        raise ValueError("5 feet + 6 inches, 4 feet * 12")
    letters = frozenset().union(*(arg.letters for arg in args))
    rows = _rows(*args)
    rounded = any(arg.rounded for arg in args) and _exact(*rows[0])
    values = tuple(_compute(name, row, letters) for row in rows)
    return Number(values, letters, rounded, *units)


# ---- 3. The parser -------------------------------------------------------------------------------
# Without it \frac{1}{2}x and 0.5x stay two strings. Precedence climbing: what is read is carried
# out. But products commute: what is not known is no factor, or \overrightarrow{BA} would be
# \overrightarrow{AB}.
Group = namedtuple("Group", "kind closer items")  # kind: ( a tuple, { a set, \cup ..
# names: of the sides that are names alone, else ""; lone: that name, if only one side is one
Relation = namedtuple("Relation", "sides ops names values lone kind", defaults=("relation",))
_SETS = {r"\cup": operator.or_, r"\cap": operator.and_, r"\setminus": operator.sub}
_FLIPPED = {">": "<", r"\ge": r"\le"}
_RELATIONS = {"=", r"\approx", r"\ne", r"\in", "<", r"\le", *_FLIPPED}
_OPERATORS = (r"\cup \cap \setminus", ":", r"\over \choose", "+ -", "* /", "! °", "^")
_LEVEL = {op: level for level, ops in enumerate(_OPERATORS, 1) for op in ops.split()}
_DIVISIONS = {r"\frac": "/", r"\binom": "binom", r"\over": "/", r"\choose": "binom"}
_OPENING = {"(", "[", "{", r"\{"}
_CLOSERS = {"(": ")]", "[": ")][", "]": "])[", "{": "}", r"\{": (r"\}",)}
_FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
_COMMAS = {",", ";", "∧", "∨"}
_CLOSING = {")", "]", "}", r"\}", r"\end"}
_ENDS = {"", "'", "_", "&", r"\\", r"\rfloor", r"\rceil"} | _COMMAS | _CLOSING | _RELATIONS
_ACCENT_NAMES = "overline bar vec hat tilde dot widehat overrightarrow mathbb mathcal pmod"
_ACCENTS = {"\\" + name for name in _ACCENT_NAMES.split()}
_REALS = Group("(", ")", (letter(r"\ninf"), letter(r"\infty")))
_DEGREES = "deg"


def parse(tokens, work=MAX_WORK):
    r"""The meaning of an answer. 1 \pm \sqrt2 is a set of two; signs are independent, but \mp is
    the opposite of the first."""
    if not work:
        raise ValueError("too many signs")
    if r"\pm" not in tokens:
        items, _ = _Parser(tokens, work).items("")
        return items[0] if len(items) == 1 else Group("{", "}", items)
    members = []
    for sign, opposite in ("+-", "-+"):
        chosen = [opposite if token == r"\mp" else token for token in tokens]
        chosen[tokens.index(r"\pm")] = sign
        members += _members(parse(chosen, work // 2))
    return Group("{", "}", tuple(dict.fromkeys(members)))


def _name_of(node):
    r"""What a side of an equation is called, if it is a name alone: x, f(2),
    |AB|, (x, y), a:b; else ""."""
    if node.kind == "number":
        return "" if re.match(r'\\neg|\\no|"(?:no|not|wrong)(?:\b|_)', node.name) else node.name
    if node.kind not in ("(", ":"):
        return ""
    names = [_name_of(item) for item in node.items]
    latin = [name for name in names if name[:1].isalpha()]
    return f"({','.join(names)})" if all(names) and latin == sorted(latin) else ""


class _Parser:
    def __init__(self, tokens, work):
        self.tokens = [*tokens, "", ""]  # "" marks the end
        self.work = work
        self.i = 0
        self.depth = 0
        self.bars = 0  # open |...|

    @property
    def next(self):
        return self.tokens[self.i]

    def take(self, *expected):
        token = self.next
        if expected and token not in expected:
            raise ValueError(f"{token!r} instead of {expected}")
        self.i += token != ""
        return token

    def accept(self, *options):
        return self.take() if self.next in options else ""

    def do(self, name, *args):
        self.spend(_WORK.get(name, 15))
        result = apply(name, *args)
        self.spend(sum(map(_bits, result.values)) // 4000)
        return result

    def spend(self, work):
        self.work -= work
        if self.work < 0:
            raise ValueError("too much work")

    # Lists and relations
    def items(self, *closers):  # 1, x = 2; 3
        items = [self.relation()]
        commas = []
        while self.next in _COMMAS:
            commas.append(self.take())
            items.append(self.relation())
        closer = self.take(*closers)
        if commas and all(item.kind == "relation" and item.lone for item in items):
            items = self.conditions(items, commas, closer)
        if {*commas} == {"∨"} and any(map(_certain_interval, items)):
            items = [Group(r"\cup", "", tuple(items))]
        return tuple(items), closer

    def conditions(self, items, commas, closer):
        ops = {op for item in items for op in item.ops}
        one_name = len({item.lone for item in items}) == 1
        if not one_name or ops == {"="} or not ops <= {"<", r"\le", r"\ne", "="}:
            return items
        if "∨" in commas:  # x < 1 or x = 2
            kind = r"\cup"
        elif "=" in ops:
            return items
        else:
            both = "∧" in commas or r"\ne" in ops or closer == ")"
            kind = r"\cap" if both else ","
        return [Group(kind, "", tuple(items))]

    def relation(self):  # 0 < x \le 5,  f(x) = x^2
        sides = [self.expression()]
        ops = []
        self.spend(10)  # lists are compared item by item
        while self.next in _RELATIONS:
            ops.append(self.take())
            sides.append(self.expression())
        if not ops:
            return sides[0]
        if ops[0] in _FLIPPED:  # 5 > x -> x < 5
            sides.reverse()
            ops = [_FLIPPED.get(op, "mixed") for op in reversed(ops)]
        names = [_name_of(side) for side in sides]
        if names[-1].startswith('"'):
            names[-1] = ""  # x = "red" is "red"; but A = B says nothing
        values = [side for side, name in zip(sides, names) if not name]
        lone = "".join(names) if len(values) == len(ops) else ""
        return Relation(tuple(sides), tuple(ops), tuple(names), tuple(values), lone)

    # Operators
    def expression(self, level=0):
        """What operators that bind tighter than `level` hold together."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("too deep")
        sign = self.accept("+", "-")
        if sign:  # -x^2 is -(x^2)
            left = self.expression(max(level, _LEVEL["+"]))
        else:
            left = self.atom(level)
        if sign == "-":
            left = self.combine("*", constant(-1), left)
        while _LEVEL.get(self.operator(), 0) > level:
            left = self.operation(self.operator(), left)
        self.depth -= 1
        return left

    def operand(self):
        return self.expression(_LEVEL["^"])

    def operation(self, op, left):
        if self.next[:1] == '"':
            return self.measure(left)
        if self.next == op and op not in "+-":  # a - b is a + (-b)
            self.take()
        if op == "!":
            return self.do(op, left)
        if op == "°":
            return left._replace(unit=_DEGREES)
        right = self.expression(_LEVEL[op] - (op == "^"))  # 2^3^2 = 2^9
        return self.combine("+" if op == "-" else op, left, right)

    def operator(self):  # "*" for a product without a sign: 2x
        if self.next in _LEVEL:
            return self.next
        if self.next in _ENDS or self.next == "|" and self.bars:
            return ""
        french = self.next == "[" and self.tokens[self.i + 1] in _ENDS | _SETS.keys()  # [0,1[
        return "" if french else "*"

    def combine(self, op, left, right):  # also of sets and matrices
        op = _DIVISIONS.get(op, op)
        if op in _SETS and any(x.kind == "number" and not x.letters for x in (left, right)):
            raise ValueError(r"8 \setminus 9")
        if op in _SETS or op == ":":  # a \cup b \cup c is one group
            return Group(op, "", (*(left.items if left.kind == op else [left]), right))
        if op in ("+", "*") and right.kind in (r"\begin{matrix}", "row"):
            lefts = left.items if op == "+" else [left] * len(right.items)
            pairs = zip(lefts, right.items, strict=True)
            return right._replace(items=tuple(self.combine(op, *pair) for pair in pairs))
        result = self.do(op, left, right)
        name = left.name + right.name
        segments = op in "*/" and re.fullmatch("(?:[A-Z]{2}){1,2}", name)  # AB, \frac{AB}{CD}
        return result._replace(name=name) if segments else result

    # Units
    def measure(self, left):
        r"""5 "km/h^2": words behind a number are its unit; 2 "thirds" is
        none; x "is" "odd" is not x."""
        unit = self.next.strip('"').partition("_of_")[0]  # 5 kg of rice
        if left.kind == "number" and left.letters and not _known(unit):  # n "is_even"
            return self.do("*", left, letter(self.rest(self.take())))
        words = _UNIT_WORDS(self.take())
        if left.kind != "number":
            return left
        if any(map(_CHANGING, words)) or self.next[:1].isdigit():
            raise ValueError("2 thirds, 2 squared, 5 of 7")
        return left._replace(unit=left.unit + unit, name="")

    # Atoms
    def atom(self, level):
        token = self.take()
        if re.match(r"\.?[0-9]|[A-F][0-9A-F]+_", token):
            return self.number(token, level)
        if token in _CLOSERS:
            return self.bracket(token)
        if token in _FENCES:
            return self.fence(token)
        if token in _DIVISIONS:
            return self.combine(token, self.operand(), self.operand())
        if token == r"\sqrt":
            degree = self.bracket("[") if self.accept("[") else constant(2)
            return self.do("^", self.operand(), self.do("/", constant(1), degree))
        if token[1:] in _FUNCTIONS:
            return self.function(token[1:])
        if token.startswith(r"\begin"):
            return self.matrix(token)
        if token in _ENDS or token in _LEVEL or not re.match(r'"|\\?[A-Za-z]', token):
            raise ValueError(token)
        return self.symbol(token)

    def number(self, token, level):
        digits, _, base = token.partition("_")
        if base:
            return constant(int(digits, int(base.strip("{}")) or 1))  # int() refuses 9 in base 8
        ahead = "".join(self.tokens[self.i : self.i + 7])
        before = self.tokens[self.i - 2]
        if re.match(r"[A-Za-z{]?\.?[0-9]", ahead) and not re.match(r"[\\^_}\]]", before):
            raise ValueError("numbers side by side")  # 5 6, 5{6}, 5 R 6 and 5 x 6 are not 30
        mixed = token.isdigit() and re.match(r"\\frac\{[0-9]+\}\{[0-9]+\}", ahead)
        if mixed and level <= _LEVEL["*"]:
            return self.do("+", constant(token), self.operand())
        rounded = re.match(r"(?=.*\.)[0.]*(?=[1-9])(?:[0-9]\.?){12}", token)  # 12 digits
        return Number((Fraction(token),), rounded=rounded is not None)

    def fence(self, token):
        closer, name = _FENCES[token]
        self.bars += token == "|"
        inside = self.expression()
        self.bars -= token == "|"
        self.take(closer)
        result = self.do(name, inside)
        return result._replace(name=f"|{inside.name}|" if token == "|" and inside.name else "")

    def symbol(self, token):  # x, \theta, a_1, y', f(x), "cm"
        stem = token.partition("_")[0].rstrip("'")
        if token[0] == '"':  # but "team" 5 is one name
            return letter(self.rest(token))
        if token[0] == "\\" and stem not in _LETTERS | _CONSTANTS.keys():
            return letter(self.rest(token, group=token in _ACCENTS))  # \angle ABC, \vec{a}
        if token in ("f", "g") and self.next == "^":  # f^{-1}(x)
            return letter(self.rest(token))
        if self.next == "(" and token not in _CONSTANTS or self.next == "[" and token in ("E", "P"):
            return self.call(token)
        return letter(token)

    def call(self, token):
        """f(x), P(A \\cap B), all one name; or a letter before brackets, as in x(x+1)."""
        start = self.i
        name = self.rest(token, group=True)
        inside = " ".join(self.tokens[start + 1 : self.i - 1])
        if re.search(r'[,;|"[\]<>=∧∨]|\\[lg]e |\\c[au]p |\\in |^\S*$|^[A-Za-z] \(', inside):
            return letter(name)
        function = re.match("[fg]" if re.search(r"(?!^)-|[+(]", inside) else "[A-Zf-hp-w]", token)
        if function or self.tokens[start] == "[":
            return letter(name)
        self.i = start
        return letter(token)

    def rest(self, name, group=False):
        """A name: all up to the end of this side, or of one group."""
        parts = [name]
        depth = 0
        while self.next and (depth or not (group and len(parts) > 1)):
            if not depth and self.next in _ENDS:
                break
            token = self.take()
            depth += token in _OPENING or token[:6] == r"\begin"
            depth -= token in _CLOSING
            parts.append(token)
        return re.sub(r"\{ (\S+) \}", r"\1", " ".join(parts))

    def bracket(self, opener):  # (a) groups, (a, b) is a tuple, {a, b} a set, ]0, 1] an interval
        if opener == r"\{" and self.accept(r"\}"):
            return Group("{", "}", ())
        items, closer = self.items(*_CLOSERS[opener])
        if len(items) == 1 and opener + closer in ("()", "[]", "{}"):
            return items[0]
        opener = opener.replace("]", "(").strip("\\")
        return Group(opener, closer.replace("[", ")").strip("\\"), items)

    def function(self, name):  # \sin^2 x, \log_2 8, \ln|x|, \sin 2x
        scripts = {}
        while self.next in ("^", "_"):
            op = self.take()
            scripts[op] = self.expression(_LEVEL["!" if op == "^" else "^"])
        base = scripts.get("_")
        exponent = scripts.get("^")
        value = self.argument()
        called = f"{name} {value.name}" if name in _TRIG and value.name and not exponent else ""
        if value.unit == _DEGREES:  # only here a degree is a number
            value = self.do(
                "*", value._replace(unit=""), self.do("/", letter(r"\pi"), constant(180))
            )
        value = self.do("ln" if base else name, value)
        if base:
            value = self.do("/", value, self.do("ln", base))
        return self.do("^", value, exponent) if exponent else value._replace(name=called)

    def argument(self):
        r"""Of a function: one bracket, or a product up to the next function, as
        in \sin 2x \cos x."""
        if self.next in ("(", "[", "{"):
            return self.operand()
        value = self.expression(_LEVEL["*"])
        while self.operator() == "*" and self.next[0] not in '*([|"':
            if self.next[1:] in _FUNCTIONS:
                break
            value = self.combine("*", value, self.expression(_LEVEL["*"]))
        return value

    def matrix(self, token):
        rows = [[]]
        while self.next != r"\end":
            if self.accept(r"\\"):
                rows.append([])
            else:
                rows[-1].append(self.relation())
                self.accept("&", ",")
        self.take()
        return Group(token, "", tuple(Group("row", "", tuple(row)) for row in rows if row))


# ---- 4. The comparison ---------------------------------------------------------------------------
# Without it \{1,2\} is not \{2,1\}; carelessly, x > 1, y < 2 is y > 1, x < 2.
def same(gold, pred, listed=False):
    """Do two parsed answers denote the same object? listed: do not take 2 cats,
    3 dogs for 3 cats, 2 dogs."""
    if gold.kind == pred.kind == "relation":
        equal = _same_relation(gold, pred)  # once: nesting must not double the work
        if equal or not gold.lone or gold.lone != pred.lone:
            return equal
    gold = _object(gold)
    pred = _object(pred)
    kinds = {gold.kind, pred.kind}
    if kinds == {"number"}:
        return _same_number(gold, pred, listed)
    of_sets = bool(kinds & _SETS.keys())
    if of_sets or kinds == {"[", "{"}:
        regions = _region(gold), _region(pred)
        if None not in regions:
            return regions[0] == regions[1]
    if listed and kinds == {"{", "number"}:
        return False  # \{\{5\}\} is not \{5\}
    if "," in kinds or "{" in kinds and not of_sets or kinds in ({r"\cup"}, {r"\cap"}):
        return _same_items(_members(gold), _members(pred))
    alike = len(kinds) == 1 and "relation" not in kinds and gold.closer == pred.closer
    return alike and len(gold.items) == len(pred.items) and all(map(same, gold.items, pred.items))


def _members(node):
    return node.items if node.kind in ("{", ",", *_SETS) else (node,)


def _same_items(golds, preds):
    names = {gold.lone for gold in golds if gold.kind == "relation"}
    if len(names) > 1 and not any(pred.kind == "relation" for pred in preds):
        return len(golds) == len(preds) and all(map(same, golds, preds))  # x = 3, y = -1 is 3, -1
    left = list(preds)
    for gold in golds:  # each pair once: nesting must not double the work
        for pred in left:
            if len(names) > 1 and getattr(gold, "lone", "") != getattr(pred, "lone", ""):
                continue
            if same(gold, pred, listed=len(golds) > 1 or pred.kind == "{"):
                left.remove(pred)
                break
        else:
            return False
    return not left


def _same_number(gold, pred, listed=False):
    if not pred.letters <= gold.letters:
        return False
    if gold.unit and pred.unit and gold.unit != pred.unit:  # 5 cm is not 5 km
        units = gold.unit + "_" + pred.unit
        if listed or _known(units) and "unit" not in units:
            return False  # but 5 people may be 5 students
    compared = undefined = 0
    for g, p in _rows(gold, pred):
        if g is None or g is UNKNOWN or p is UNKNOWN:
            continue
        if p is None:
            undefined += 1
        elif not _close(g, p, gold.rounded != pred.rounded):
            return False
        else:
            compared += 1
    return compared > bool(gold.letters) and undefined <= 2


def _close(a, b, rounded=False):
    """Exact numbers are equal or not; of others 100 digits are compared, of a decimal 12."""
    if rounded and not all(_exact(x) and pow(10, MAX_BITS, x.denominator) == 0 for x in (a, b)):
        return _agree(a, b)
    if _exact(a, b) or a == b or _mp.isinf(a) or _mp.isinf(b):
        return a == b
    try:
        return abs(_float(a) - _float(b)) <= abs(a) * SAME
    except OverflowError:
        return False


def _agree(a, b):
    """Are the first 12 digits the same, or does rounding to 12 digits make them so?"""
    scale = _mp.mpf(10) ** (11 - _mp.floor(_mp.log10(max(_mp.fabs(a), _mp.fabs(b)))))
    return _mp.floor(a * scale) == _mp.floor(b * scale) or abs(a - b) * scale <= 0.5


def _roughly(a, b):
    r"""Of what follows an approximation sign: 0.33 is roughly \frac13."""
    ratio = apply("/", a, b).values[0]
    return isinstance(ratio, Fraction | _mp.mpf) and 0.9 < ratio < 1.1


def _object(node):
    r"""What a lone name is: x = 5 -> 5;  x \in [0,1] -> [0,1];  x > 2 -> (2,
    \infty);  x + y = 5 stays."""
    if node.kind != "relation":
        return node
    ops = {*node.ops}
    if ops <= {"=", r"\approx", r"\in"}:
        return _value_of_equation(node)
    if node.ops == (r"\ne",) and node.lone:  # x \ne 1 -> \R \setminus \{1\}
        return Group(r"\setminus", "", (_REALS, Group("{", "}", node.values)))
    return _interval_of_inequality(node) if ops <= {"<", r"\le"} else node


def _value_of_equation(node):
    numbers = all(side.kind == "number" and not side.letters for side in node.values)
    if not node.values or not any(node.names) and not numbers:  # 2 + 3 = 5 needs no name
        return node
    if r"\in" in node.ops and (node.names[-1] or not node.names[0]):
        return node  # 5 \in A
    first = node.values[0]
    rough = r"\approx" in node.ops  # x = \frac13 \approx 0.33
    agree = all(same(first, side) or rough and _roughly(first, side) for side in node.values[1:])
    return first if agree else node


def _interval_of_inequality(node):
    low, high = _REALS.items
    starts = bool(node.names[0])
    ends = bool(node.names[-1])
    sides = [low] * starts + [*node.sides] + [high] * ends
    ops = ["<"] * starts + [*node.ops] + ["<"] * ends
    if len(sides) != 3 or not node.lone or node.lone[0] == "|":  # |x| > 3 is no interval
        return node
    brackets = "(" if ops[0] == "<" else "[", ")" if ops[1] == "<" else "]"
    return Group(*brackets, (sides[0], sides[2]))


def _same_relation(gold, pred):
    if gold.ops != pred.ops:
        return False
    symmetric = gold.ops in (("=",), (r"\ne",))
    if all(map(same, gold.sides, pred.sides)):
        return True
    if len(gold.ops) > 1 or any(side.kind != "number" for side in gold.sides + pred.sides):
        return False
    # left - right, up to a factor, which is positive for < and \le
    ratio = apply("/", _difference(pred), _difference(gold))
    values = [x for x in ratio.values if x is not None and x is not UNKNOWN]
    if len(values) < 2 or not values[0] or not all(_close(values[0], x) for x in values):
        return False
    return symmetric or gold.ops[0] in ("<", r"\le") and _mp.re(_float(values[0])) > 0


def _difference(equation):
    left, right = equation.sides
    return apply("+", left, apply("*", constant(-1), right))


# ---- 5. Regions of the line, by sympy ------------------------------------------------------------
# Without them x \ne 3 is not (-\infty,3) \cup (3,\infty).
def _certain_interval(node):
    """(1, 2) may be a point; [1, 2] and (1, \\infty) are not."""
    if node.kind not in ("(", "["):
        return False
    return node.kind + node.closer != "()" or not {*node.items}.isdisjoint(_REALS.items)


def _region(node):
    """A set of reals for sympy, or None: (3,1) is a point, or all that is empty would equal it."""
    node = _object(node)
    if node.kind in _SETS:
        parts = [_region(item) for item in node.items]
        if None in parts:
            return None
        # What sympy takes time for; Interval.args are its ends.
        pieces = [1 if part.is_Interval else len(part.args) + 1 for part in parts]
        if node.kind == r"\cup":  # at once: to add one by one takes cubic time
            return Union(*parts) if sum(pieces) <= MAX_PIECES else None
        return reduce(_SETS[node.kind], parts) if math.prod(pieces) <= MAX_PIECES else None
    ends = [_end(item) for item in (node.items if node.kind in ("(", "[", "{") else [node])]
    if None in ends:
        return None
    if node.kind in ("{", "number"):
        return FiniteSet(*ends)
    if len(ends) != 2:
        return None
    interval = Interval(*ends, node.kind == "(", node.closer == ")")
    return None if interval.is_empty else interval


def _end(item):
    """A number for sympy, or None."""
    if item.kind != "number" or item.letters:
        return None
    value = item.values[0]
    if _exact(value):
        return Rational(value.numerator, value.denominator)
    if not isinstance(value, _mp.mpf):
        return None
    return oo * int(_mp.sign(value)) if _mp.isinf(value) else Rational(_mp.nstr(value, 60))


# ---- 6. The door ---------------------------------------------------------------------------------
# The cheapest rung comes first; each exists because right answers fall off the one above.
Verdict = namedtuple("Verdict", "equal rung prediction truth")  # the two as they were read
_DECIMAL = re.compile(r"-?(?:[0-9]{1,1000}(?:\.[0-9]{1,1000})?|\.[0-9]{1,1000})").fullmatch
_NAN = re.compile(r"(?<![a-z])nan(?![a-z])", re.I).search
_RUNGS = {"{": "list or set", "(": "tuple or interval", "[": "interval", r"\cup": "union"}
_TEXT = re.compile(r"\\text[a-z]*|[{}]")
_CHOSEN = re.compile(
    r"""(?:(?:the\s+)?(?:correct\s+)?(?:answer|option|choice)(?:\s+is)?[:\s]*)?
    \(?([A-J])(?:\)(?!\s*[-+*/^=<>,;])|\s*[.:]|\s+[-–](?=\s+[A-Z]?[a-z]{2})|$)\s*(.*)""",
    re.S | re.X | re.I,
).fullmatch
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z\\])(?:[A-HJ]|[a-j][).:]|\([a-j]\)|or)(?![A-Za-z])").search


def _chosen(answer, truth):
    """Where the truth is one letter: c, (C), C) 42 and c. 42 choose it; c. 42 or d. 43 does not."""
    choice = _TEXT.sub("", truth).strip(" ().")
    chosen = re.fullmatch("[A-J]", choice) and _CHOSEN(_TEXT.sub("", answer).strip())
    return bool(chosen) and chosen[1].upper() == choice and not _OTHER_CHOICE(chosen[2])


def equal(predicted: str, ground_truth: str) -> Verdict:
    """Are the two equal by value, and on which rung was that decided? There is no tolerance such
    as the chapter's 1e-6 (departure 9 in rlvr.py)."""
    texts = [text.strip() if isinstance(text, str) else "" for text in (predicted, ground_truth)]
    pred, gold = texts
    if not all(texts) or any(_NAN(text[:MAX_CHARS]) for text in texts):
        return Verdict(False, "no answer", *texts)
    if pred == gold:  # the textbook's rung
        return Verdict(True, "string", *texts)
    if all(map(_DECIMAL, texts)):  # 0.50 and .5; as floats 2^53 + 1 would be 2^53
        return Verdict(Fraction(pred) == Fraction(gold), "decimal", *texts)
    if _chosen(pred, gold):
        return Verdict(True, "choice", *texts)
    tokens = [normalise(text) for text in texts]
    shown = [" ".join(each) for each in tokens]
    if shown[0] and shown[0] == shown[1]:  # \dfrac12 and \tfrac{1}2
        return Verdict(True, "spelling", *shown)
    try:
        with _LOCK:
            answer, truth = map(parse, tokens)
            return Verdict(same(truth, answer), _RUNGS.get(truth.kind, truth.kind), *shown)
    except (ArithmeticError, ValueError, AttributeError):
        return Verdict(False, "unreadable", *shown)


# ---- 7. Is it worked out? ------------------------------------------------------------------------
# By value the question is its own answer, 41+2-7 is 36. A reward must not pay for copying it.
# A mixed number counts as a fraction, for 4\frac{27}{1} is a sum; 11111_2 is still to be converted.
_FORM = re.compile(
    r"""(?:[A-Za-z]=)?[({\\]*[-+]?[({\\]*(?:
    (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+|\*10\^\{?-?[0-9]+\}?|\\dozen)?)
    |(?P<fraction>[0-9]*\\frac\{[-+]?[0-9]+\}\{[-+]?[0-9]+\}|[0-9]+\)?/\(?-?[0-9]+)
    )[)}\\]*""",
    re.X,
).fullmatch
_UNIT = re.compile(r'[*/]?"[^"]*"|°')


def _form(side):
    """ "number" or "fraction", if that is what is written there, else "" """
    form = _FORM(_UNIT.sub("", side))
    return form.lastgroup if form else ""


def _last_side(tokens):
    """Of a chain of equations: 9 * 60 = 540 -> 540"""
    return "".join(tokens).partition(r"\approx")[0].rpartition("=")[2]


def copied(answer: str | None, problem: str) -> bool:
    """Is this an expression of the problem's text? A number, a word and a choice are none."""
    tokens = normalise(answer or "")
    parts = [token for token in tokens if token not in "(){}" and token[0] != '"']
    expression = len(parts) > 1 and _form("".join(tokens)) != "number"
    return expression and "".join(answer.split()) in "".join(problem.split())


def worked_out(predicted: str, ground_truth: str, problem: str = "") -> bool:
    r"""Should a reward pay for this answer, which is equal? If the truth is one number, for a
    number: 540, 9 \times 60 = 540, x = 540\text{ km}, and fractions unless the truth is whole; not
    for 9 \times 60. What stands in the problem is not its answer, unless the truth
    reads so: \sqrt{50} for 5\sqrt2."""
    pred = normalise(predicted)
    gold = normalise(ground_truth)
    if pred == gold:
        return True
    if copied(predicted, problem):
        return False
    wanted = _form(_last_side(gold))
    given = _form(_last_side(pred))
    if not wanted or given == "number" or _object(parse(gold)).kind != "number":
        return True  # the truth is no number, nor is that of x + y = 5
    return given == "fraction" and (wanted == "fraction" or "." in ground_truth)
