r"""grading.py - are two answers equal by value?  One door: equal(predicted, ground_truth).

What is graded equal is paid, so a policy looks for two different things that meet here. Three rules
keep it out: what cannot be read for certain equals nothing; what is not known is a name, with all
that follows it; what digits cannot hold has no value. Nothing of an answer is evaluated by Python
or sympy; sizes are checked before numbers are formed.

Two answers are equal when a mathematician who reads only the two strings would say that they denote the same object:
  decimals            0.5 is 1/2; 0.33 is not 1/3, which takes 12 digits or more
  percent, money,     dropped with every other unit: 50\% is 50 (and so not 0.5), 90^\circ is 90, 5\text{ cm} is 5;
  degrees, units      but 5 cm is not 5 km, nor 2 thirds 2; a degree counts only inside a function: \sin 30^\circ
  x = 5               is 5; but x + y = 5 is not, and a free letter never equals a number
  order               (1, 2) has one, lists and \{1, 2\} have none; (0, 1) is not [0, 1]; x > 2 is (2, \infty)
  2\frac13            is a mixed number; \frac123 is (1/2)3, as in TeX; x^10 and \sqrt10 are what was meant
  \log                has base 10; 52_8 is a number in base 8; letters and roots stand for real numbers
  \angle ABC, \pmod   what is not understood is compared as a name, letter by letter
"""

import itertools
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
from sympy import FiniteSet, Interval, Rational, oo

MAX_CHARS = 1500  # longer answers are compared as strings only
MAX_DEPTH, MAX_BITS, MAX_WORK = 50, 2**15, 1000  # of brackets, of an exact number, of operations


# A1. One spelling. Without it \tfrac12 is not \frac{1}{2}, 10,\!080 not 10080, and 3½ not 3\frac12.
_CHARACTERS = str.maketrans(
    {
        **{
            pair[0]: f"\\{pair[1:]} "
            for pair in (
                "αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta κkappa λlambda μmu νnu ξxi πpi ρrho σsigma τtau φphi "
                "χchi ψpsi ωomega √sqrt ∞infty ≤le ⩽le ≥ge ⩾ge ≠ne ≈approx ±pm ∓mp ∪cup ∩cap ∈in ∖setminus ∅emptyset ℝR "
                "×times ⌊lfloor ⌋rfloor ⌈lceil ⌉rceil ∧wedge ∨vee"
            ).split()
        },
        **dict.fromkeys("−–—‐‑‒", "-"),
        **dict.fromkeys("·⋅∙∗", "*"),
        **dict.fromkeys("÷⁄∕", "/"),
        "º": "°",
        "’": "'",
        **dict.fromkeys('«»£€¥"“”\u200b\u200c\u200d\u2060\ufeff'),
        "∣": "|",
        "∛": r"\sqrt[3]",
        "⟨": "(",
        "⟩": ")",
        "、": ",",
        "。": ".",
        "或": " or ",
        "和": " and ",
    }
)
_SMALL = [
    (re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+"), r"^{\g<0>}"),
    (re.compile("[₀-₉ₙ]+"), r"_{\g<0>}"),  # x¹²
    (re.compile("[¼½¾⅐-⅞]"), r"\\frac{\g<0>}"),
]  # 3½: NFKC makes 1⁄2 of ½
_SYNONYMS = {
    old: new
    for new, olds in {
        r"\frac": r"\dfrac \tfrac \cfrac",
        r"\binom": r"\dbinom \tbinom",
        r"\le": r"\leq \leqslant <=",
        "<": r"\lt",
        r"\ge": r"\geq \geqslant >=",
        r"\ne": r"\neq !=",
        r"\setminus": r"\backslash",
        ">": r"\gt",
        "=": "== :=",
        ":": r"\colon",
        "*": r"\cdot \times \ast",
        "/": r"\div",
        r"\{": r"\lbrace",
        r"\}": r"\rbrace",
        "(": r"\langle",
        ")": r"\rangle",
        "|": r"\lvert \rvert \vert \mid \|",
        "^": "**",
        r"\infty": r"\infinity",
        r"\log": r"\lg",
        r"\epsilon": r"\varepsilon",
        r"\phi": r"\varphi",
        r"\emptyset": r"\varnothing",
        '"percent"': r"\% %",
        "": r"\$ $ \quad \qquad \, \: \; \! ~ . \boxed \fbox \mathbf \boldsymbol \bm \mathit",
    }.items()
    for old in olds.split()
} | {"\\ ": "", "\\": ""}
_TRIG = "sin cos tan cot sec csc".split()
_FUNCTIONS = {*_TRIG, *("arc" + name for name in _TRIG), "sinh", "cosh", "tanh", "ln", "log", "exp"}
_SPACE = r"(?:(?<!\\)\\[,!;: ]|\s|~)"


# A2. Words. Without them 15\text{ cm} is no number; done carelessly, 2 thirds is 2 and 5\text{ to }7 is 35.
# Words become a name in quotes. Behind a number they are a unit, and do not count.
_UNITS = {
    alias: names.split()[0]
    for names in (
        "m meter",
        "cm centimeter",
        "mm millimeter",
        "km kilometer",
        "hz",
        "mol",
        "ev",
        "kj",
        "kw",
        "kpa",
        "children",
        "in inch inche",
        "ft foot feet",
        "yd yard",
        "mi mile",
        "s sec second",
        "min minute",
        "h hr hour",
        "day",
        "people",
        "week",
        "month",
        "yr year",
        "g gram",
        "kg kilogram",
        "lb pound",
        "oz ounce",
        "l liter litre",
        "deg degree",
        "rad radian",
        "percent pct",
        "dollar usd",
        "cent",
        "am",
        "pm",
        "celsius",
        "fahrenheit",
    )
    for alias in names.split()
}
_SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_CHANGES = _SCALES.keys() | set(
    """half halves third thirds quarter quarters zero one two three four five six seven
    eight nine ten hundreds thousands dozens gross plus minus times over mod root of not no is are or to more less than
    fewer below negative squared cubed repeating recurring base binary octal prime if""".split()
)
_SHORT = set("no on of to is all any odd mod gcd lcm max mph kph".split())
_TEXT = re.compile(
    "[A-Z]{3,}|[A-Z][a-z]{2,}|[IVX]{2,}|[a-z][CP][a-z]|(?=.*[eio])[a-z]{3}|(?=.*[aeiou]).{4,}"
).fullmatch
_BARE = _FUNCTIONS | set("sqrt infty pi alpha beta gamma theta lambda phi omega".split())
_SAID = {name: f"\\{name} " for name in _BARE} | {"infinity": r"\infty ", "and": "∧", "or": "∨"}


def _unit(word):  # "kilometers" -> "km", "apples" -> "apple"
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"), word.removesuffix("s"))


def _words(match):
    r"""9 red apples -> 9 "red apples", 1 and 2 -> 1 ∧ 2, 2pi -> 2\pi; xy stays a product, ABC_{16} and 3ABC too."""
    if not match["run"]:  # a command, the end of 1A3
        return match[0]
    before, words = match.string[: match.start()], match[0].split()
    counted = bool(re.search(rf"(?:[0-9}})°]|\\pi)(?:{_SPACE}|«)*$|[a-z]«$", before))
    text = before.rfind("«") > before.rfind("»")  # in \text{...}
    said = [None if word == "sec" and (text or counted) else _SAID.get(word) for word in words]
    marks = [
        not plain
        and (
            text
            and not re.fullmatch("[a-fi-kn-rt-z]" if counted else "[eidA-Z]", word)
            or word.casefold() in _SHORT
            and word != "NO"
            or counted
            and len(word) > 1
            and _unit(word.casefold()) in _UNITS
            or bool(_TEXT(word))
            and word not in "abcdefghijklmnopqrstuvwxyz"
        )
        for plain, word in zip(said, words)
    ]
    for i, word in enumerate(words):
        quoted = marks[i] or any(marks) and (len(word) > 1 or word in "aA")  # no solution, a circle
        words[i] = said[i] or (f'"{word}"' if quoted else word)
    return " ".join(words)


_REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (
            r"(?<!\\)\\[()\[\]]|\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![A-Za-z])\s*\.?",
            " ",
        ),
        (r"(?i)(?<![a-z])([ap])\.\s?m\b\.?", r"\1m"),  # 7:45 a.m.
        (
            r"([0-9]{1,20})\.([0-9]{0,20})\\(?:overline|bar|dot)\s*\{?([0-9]{1,20})\}?(?![0-9])",
            lambda m: (
                rf"\frac{{{int(m[1] + m[2] + m[3]) - int(m[1] + m[2])}}}{{{'9' * len(m[3])}{'0' * len(m[2])}}}"
            ),
        ),
        (r"\\(?:text[a-z]*|mbox|mathrm|mathsf|operatorname)\s*\{([^{}]*)\}", r"«\1»"),
        (
            r"\\(?:begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|(?<=[0-9])[A-Z]+(?![A-Za-z])|[A-Z]+(?=[0-9])"
            r"|(?<![A-Za-z])(?P<run>[A-Za-z]+(?: +[A-Za-z]+)*)(?![A-Za-z]*»?_)",
            _words,
        ),
        ("[«»]", " "),
        (rf'"(?:\.?{_SPACE})+"', " "),
        (r'(?i)"all real(?: number)?s"', r"\\R "),
        (r'"(?:USD|Rs)"\.?\s*(?=[0-9])', ""),
        (r'"\s*/\s*([hs])(?![A-Za-z])', r'"/"\1"'),
        (r'(?<=[0-9])\s*\^\s*\{?\s*(?:"(?:st|nd|rd|th)"|th(?![A-Za-z]))\s*\}?', " "),
        (
            rf"(?<![0-9.])(?<![0-9],)[0-9]{{1,3}}(?:(?:(?:\{{,\}}|,\\!|{_SPACE}){_SPACE}*|,)[0-9]{{3}})+(?!,?[0-9])",
            lambda m: (
                m[0]
                if re.search(r"[(\[]|\\\{", m.string[: m.start()])
                and re.search(r"(?<!\{),(?!\\!)", m[0])
                else re.sub("[^0-9]", "", m[0])
            ),
        ),  # 10\,000, 2{,}500, 1 000, 1,234; not (12,102)
        (r"(?:\{\})?\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", "°"),
        (r'°\s*"?C(?![A-Za-z])"?', '"celsius"'),
        (r'°\s*"?F(?![A-Za-z])"?', '"fahrenheit"'),
        (r"\\(?:mathbb|Bbb)\s*(?:\{R\}|R(?![A-Za-z]))", r"\\R "),
        (r"\\R\s*[\^_]\s*\{?\s*(?:\+|>\s*0)\s*\}?", r"(0,\\infty )"),
        (
            r"\\\{\s*([a-z])\s*(?:\\in\s*\\R\s*)?(?:\\mid|\||:)\s*(?=[^{}]*\1)([^{}:|]*)\\\}",
            r"(\2)",
        ),
        (
            r"\\times(?=\s*\\(?:mathb|vec|overr|hat|bold|bm))|(?<=[A-Z])\s*\\times(?=\s*[A-Z])",
            r"\\cross ",
        ),
        (r"\\(?:mathbf|boldsymbol|bm|mathit)\s*\{([A-Za-z])\}", r" \1"),
        (r"\\begin\s*\{array\}\s*\{[^{}]*\}", r"\\begin{array}"),  # the column format of an array
        (r"(?<=.)\[(?=\s*(?:$|[,;)}∧∨]|\\c[au]p|\\setminus))", ")"),  # [0,1[
        (r"(?:^|(?<=[,;({=∧∨])|(?<=\\c[au]p)|(?<=\\in)|(?<=\\setminus))\s*\]", "("),  # ]0,1]
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (r"-\s*(?=\\\{)", r"\\setminus "),
        (r'"\s*:(?!\s*")', '"='),
        (r",\s*(?=[,∧∨])", ""),
        (r"\\not\s*=", r"\\ne "),
        (r"\{([,:])\}", r"\1"),
        (
            r'("(?:hour|hr|minute|feet|foot|yard|pound|dollar|year|week|day)s?")\s*∧(?=\s*[0-9.]+\s*"(?!\1))',
            r"\1",
        ),
        (r"\\(angle|triangle)\s*\{(\S*)\}", r"\\\1 \2"),
        (r"\\log_([0-9])", r"\\log_{\1}"),
        (r"\\[dtc]?(frac|binom)\s*([0-9])", r"\\\1{\2}"),
        (r"(\\(?:frac|binom)\{[0-9]+\})\s*([0-9])", r"\1{\2}"),
        (r"\\frac\s*\{d([a-z]?)\}\s*\{d([a-z])\}", r"\\derivative{\1}{\2}"),
        (r"(?<![0-9.^_])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)", r"\1\\frac{\2}{\3}"),  # 1 1/2
        (r"\s+_", "_"),
        (r"\(([0-9A-F]+)\)_", r"\1_"),
        (r"_\s*\{\s*\(?(\w+)\)?\s*\}", r"_{\1}"),  # (1011)_{ 2 }
        (r"(?<![0-9)])_\{(\w)\}", r"_\1 "),
        (r"\^\s*\{\s*([a-zA-Z])\s*\}", r"^\1 "),
    )
]
_TOKEN = re.compile(
    r"[0-9][0-9A-F]*_(?:[0-9]|\{[0-9]+\})|[A-F][0-9A-F]+_\{[0-9]{2}\}"  # 52_8
    r"|(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?"
    r'|"[^"]*"|\\(?:begin|end)\s*\{[a-zA-Z]+\*?\}|\\log(?![A-Za-z])'
    r"|(?:\\[A-Za-z]+|[A-Za-z])(?:'*(?:_\w|_\{[^{}]*\})?)|\\.|!!|[<>!:=]=|\*\*|\S",
    re.S,
)


def normalise(text):
    r"""The tokens of an answer, the same for many spellings: r"2\dfrac{x}3" -> ["2", r"\frac", "{", "x", "}", "3"]"""
    for pattern, new in _SMALL if not text.isascii() else ():  # before NFKC, which makes x2 of x²
        text = pattern.sub(new, text)
    text = (
        unicodedata.normalize("NFKC", text.translate(_CHARACTERS))
        .replace("⁄", "}{")
        .translate(_CHARACTERS)
    )
    if len(text) > 2 * MAX_CHARS:  # one character may become eighteen
        return []
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z]|\s*$)", r"\\", text)  # an escaped \\frac
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text.strip())
    text = text.lstrip(" *=").removeprefix(r"\approx ").rstrip(" \n\t*=.,;:\\")
    tokens = (_SYNONYMS.get(token, token) for token in _TOKEN.findall(text))
    return [token if token[0] == '"' else re.sub(r"\s", "", token) for token in tokens if token]


# A3. Values. Without them (x-1)(x+1) is not x^2-1. Fractions, or floats of 200 digits; in letters at ten fixed points.
# No digit shows that \pi + 10^{-250} is not \pi: what is beyond HUGE, TINY or LONG has no value.
HUGE, TINY, LONG, ZERO, SAME = 1e50, 1e-30, 140, 1e-95, 1e-100  # LONG in bits, SAME relative
_WORK = {"+": 1, "*": 1, "/": 1, "abs": 1, "!": 60, "item": 10}  # others: 15
_LOCK = threading.RLock()  # mpmath functions change the precision of their context while they run
_mp = MPContext()
_mp.dps = 200
# values: one, or one a point, or None; rounded: a decimal of 12 digits; unit: the words behind it
Number = namedtuple(
    "Number", "values letters rounded unit kind", defaults=(frozenset(), False, "", "number")
)


def _bits(x):
    return (
        max(x.numerator.bit_length(), x.denominator.bit_length()) if isinstance(x, Fraction) else 0
    )


def _float(x, limit=LONG):  # Fraction + mpf would silently drop to 53 bits
    if _bits(x) > limit:
        raise OverflowError("too long to be rounded: \\pi(1 + 10^{-250})")
    return _mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x


def _power(base, exponent):  # \sqrt[3]{-8} is -2
    if base == 0:
        return Fraction(0) if exponent > 0 else None
    if not isinstance(exponent, Fraction) or _bits(exponent) > 17:
        return _mp.exp(_float(exponent) * _mp.ln(_float(base)))
    n, degree = exponent.numerator, exponent.denominator
    if degree > 1 and degree % 2 and not isinstance(base, _mp.mpc) and base < 0:
        return _power(-base, exponent) * (-1 if n % 2 else 1)
    base = base if degree == 1 else _mp.root(_float(base), degree)
    return (base if 0 < _bits(base) * abs(n) <= MAX_BITS else _float(base)) ** n


_ARITHMETIC = {"+": operator.add, "*": operator.mul, "/": operator.truediv}
_OPERATIONS = {
    "^": _power,
    "abs": abs,
    "!": lambda n: (
        _mp.gamma(_float(n + 1))
        if not _bits(n) or n.denominator > 1 or not 0 <= n <= 2500
        else Fraction(math.factorial(int(n)))
    ),
    "floor": lambda x: Fraction(math.floor(x) if _bits(x) else int(_mp.floor(x + SAME))),
    "ceil": lambda x: Fraction(math.ceil(x) if _bits(x) else int(_mp.ceil(x - SAME))),
}


def _compute(name, args, with_letters):
    r"""None where undefined, and where letters lead out of the reals: so \ln x^2 = 2\ln x, where both are defined."""
    exact = all(isinstance(x, Fraction) for x in args)
    try:
        if not exact and any(map(_mp.isinf, args)):
            return args[0] * args[1] if name == "*" and {-1, 1} & {*args} else None  # -\infty
        if name in "+*/":
            value = _ARITHMETIC[name](*(args if exact else map(_float, args)))
        elif name in _OPERATIONS:
            value = _OPERATIONS[name](*args)
        else:
            value = getattr(_mp, name.replace("arc", "a"))(_float(*args))
        if isinstance(value, Fraction):
            return value if _bits(value) <= MAX_BITS else None
        size = abs(value)
    except (ArithmeticError, ValueError, TypeError):  # TypeError: an argument is None
        return None
    if (
        with_letters
        and isinstance(value, _mp.mpc)
        and not any(isinstance(x, _mp.mpc) for x in args)
    ):
        return None
    noise = size < ZERO and (size == 0 or name == "+" or name in _FUNCTIONS)  # e^{-1000} is none
    return Fraction(0) if noise else value if TINY < size < HUGE else None


def constant(n):
    return Number((Fraction(n),))


_SIZES = (1.5, 0.4, 2, 0.2, 7, 1, 0.5, 4, 12, 30)  # at each point: \ln(x-5) has some
_CONSTANTS = {r"\pi": "pi", "e": "e", r"\infty": "inf", "i": "j"}
_LETTERS = {_CHARACTERS[ord(char)].strip() for char in "αβγδεζηθκλμνξρστφχψω"} | {
    "\\" + name for name in "Gamma Delta Lambda Sigma Phi Psi Omega ell".split()
}


@lru_cache(1000)
def letter(name):
    """Fixed pseudo-random reals. At six of the ten points signs vary from letter to letter: |x+y| is not |x|+|y|."""
    if name in _CONSTANTS:
        return Number((+getattr(_mp, _CONSTANTS[name]),))
    rng, signs = random.Random(name), sum(map(ord, name)) % 63 + 1  # never 0
    values = [
        size * rng.uniform(0.6, 1.4) * (-1 if signs >> point & 1 else 1)
        for point, size in enumerate(_SIZES)
    ]
    return Number(tuple(map(_mp.mpf, values)), frozenset([name]))


def apply(name, *args):  # point by point
    units = {arg.unit for arg in args if arg.kind == "number"} - {""}
    if any(arg.kind != "number" for arg in args) or len(units) > 1 or name == "*" and args[0].unit:
        raise ValueError("a structure, 5 feet + 6 inches, 4 feet * 12")
    letters = frozenset().union(*(arg.letters for arg in args))
    rows = [
        *zip(
            *(
                arg.values if arg.letters or not letters else arg.values * len(_SIZES)
                for arg in args
            )
        )
    ]
    rounded = any(arg.rounded for arg in args) and all(isinstance(x, Fraction) for x in rows[0])
    return Number(
        tuple(_compute(name, row, letters) for row in rows), letters, rounded, "".join(units)
    )


# A4. The parser. Without it \frac{1}{2}x and 0.5x stay two strings. Precedence climbing: what is read is carried out.
# But products commute: what is not known is no factor, or \overrightarrow{BA} would be \overrightarrow{AB}.
Group = namedtuple("Group", "kind closer items")  # kind: ( a tuple, { a set, row, \cup ..
Relation = namedtuple("Relation", "sides ops names lone kind", defaults=("relation",))
_SETS = {r"\cup": operator.or_, r"\cap": operator.and_, r"\setminus": operator.sub}
_FLIPPED = {">": "<", r"\ge": r"\le"}
_RELATIONS = {"=", r"\approx", r"\ne", r"\in", "<", r"\le", *_FLIPPED}
_LEVEL = {
    r"\cup": 1,
    r"\cap": 1,
    r"\setminus": 1,
    ":": 2,
    r"\over": 3,
    r"\choose": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "!": 6,
    "°": 6,
    "^": 7,
}
_DIVISIONS = {r"\frac": "/", r"\binom": "binom", r"\over": "/", r"\choose": "binom"}
_CLOSERS = {"(": ")]", "[": ")]", "{": "}", r"\{": (r"\}",)}
_FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
_COMMAS, _CLOSING = {",", ";", "∧", "∨"}, {")", "]", "}", r"\}"}
_STOPS = {
    "",
    "'",
    "_",
    "!!",
    "&",
    r"\\",
    r"\rfloor",
    r"\rceil",
    *_COMMAS,
    *_CLOSING,
    *_LEVEL,
    *_RELATIONS,
}
_ACCENTS = {
    "\\" + name
    for name in "overline bar vec hat tilde dot widehat overrightarrow mathbb mathcal pmod".split()
}
_NAME = r"\{?(?!\\infty|\\pi|\\no|\\neg|\"no)(?:[A-Za-z]|[A-Z]{2}|\"[^\"]+\"|\\[A-Za-z]+)\}?'*(?:_(?:\{[^{}]*\}|.))?"
_LONE_NAME = re.compile(  # x, f(x), |AB|, \angle A, (x,y), a:b, \frac{AB}{CD} ..
    rf"{_NAME}|[A-Zf-hp-wyz](?:_\w|_\{{\w+\}}|')?(?:\^\{{-1\}})?\([\w,]*\)|[|[]\"?\w+\"?[]|]|\({_NAME}(?:,{_NAME})*\)"
    rf"|{_NAME}(?::{_NAME})+|m?\\(?:angle|overline|vec|hat|bar|overrightarrow)\{{?\"?\w+\"?\}}?"
    r"|\\frac(?:\{[A-Z]{2}\}){2}|\\derivative\{.\}\{.\}"
).fullmatch


def parse(tokens):
    r"""The meaning of an answer. 1 \pm \sqrt2 is a list of two; signs are independent, \mp ties them."""
    count = 1 if r"\mp" in tokens else tokens.count(r"\pm")
    items = []
    for signs in itertools.product("+-", repeat=count):
        choice, other = itertools.cycle(signs), "-" if signs[:1] == ("+",) else "+"
        chosen = [
            next(choice) if token == r"\pm" else other if token == r"\mp" else token
            for token in tokens
        ]
        with _LOCK:
            for item in _Parser(chosen, min(MAX_WORK, 2 * MAX_WORK // 2**count)).items("")[0]:
                items += item.items if count and item.kind == "{" else [item]
    return (
        items[0]
        if len(items) == 1
        else Group("{", "}", tuple(dict.fromkeys(items) if count else items))
    )


class _Parser:
    def __init__(self, tokens, work):
        self.tokens, self.work = [*tokens, ""], work  # "" marks the end
        self.i, self.next, self.depth, self.bars = 0, self.tokens[0], 0, 0  # bars: open |...|

    def take(self, *expected):
        token = self.next
        if expected and token not in expected:
            raise ValueError(f"{token!r} instead of {expected}")
        self.i += token != ""
        self.next = self.tokens[self.i]
        return token

    def accept(self, *options):
        return self.take() if self.next and self.next in options else ""

    def do(self, name, *args):
        self.work -= _WORK.get(name, 15)
        if self.work < 0:
            raise ValueError("too much work")
        return apply(name, *args) if args else None

    def combine(self, op, left, right):  # also of sets and matrices
        op = _DIVISIONS.get(op, op)
        if op in _SETS or op == ":":  # a \cup b \cup c is one group
            return Group(op, "", (*(left.items if left.kind == op else (left,)), right))
        if op == "binom":
            rest = self.do("!", self.do("+", left, self.do("*", constant(-1), right)))
            return self.do("/", self.do("!", left), self.do("*", self.do("!", right), rest))
        if right.kind in ("matrix", "row") and (op, left.kind) in (
            ("*", "number"),
            ("+", right.kind),
        ):
            pairs = zip(
                left.items if op == "+" else [left] * len(right.items), right.items, strict=True
            )
            return right._replace(items=tuple(self.combine(op, *pair) for pair in pairs))
        quoted = [
            x.kind == "number" and x.letters and all(name[0] == '"' for name in x.letters)
            for x in (left, right)
        ]
        if op in "*/" and quoted[1] and not quoted[0]:
            return self.measure(op, left, right)
        return self.do(op, left, right)

    def measure(self, op, left, right):
        r"""5 "cm", 9.8 "m" / "s"^2 and (2,3) "cm" are their numbers; 2 "thirds" is none; x "odd" is not x."""
        words = " ".join(sorted(right.letters)).replace('"', "").split()
        while op == "*" and words and words[0].removesuffix("s") in _SCALES:  # 2.5 million dollars
            left = self.do("*", left, constant(_SCALES[words.pop(0).removesuffix("s")]))
        unit = " ".join(map(_unit, words))
        plain = [
            re.search("...s$|^.$", word) or _unit(word) in _SHORT | {*_UNITS} for word in words
        ]
        changes = any(
            word in _CHANGES or re.search("(?<!mon)ths?$|teen$|illions?$|ed$", word)
            for word in words
        )
        if (
            changes or words and not any(plain) and left not in (constant(1), constant(-1))
        ):  # 1 apple
            raise ValueError("2 thirds, 2 squared, 2 doubled")
        if left.kind == "number" and not left.letters:
            return left._replace(unit=left.unit or unit)
        return left if unit in _UNITS or unit[-4:] == "unit" else self.do(op, left, right)

    def items(self, *closers):  # 1, x = 2; 3
        items, commas = [self.relation()], []
        while self.next in _COMMAS:
            commas.append(self.take())
            items.append(self.relation())
        names = {getattr(item, "lone", "") for item in items}
        if commas and "" not in names:
            ops = {op for item in items for op in item.ops}
            ends = [i + 1 for i, comma in enumerate(commas) if comma == ";"]
            if ends and len(ends) < len(commas):  # p=5,q=2;p=7,q=2
                items = [
                    Group("(", ")", tuple(items[i:k]))
                    for i, k in zip([0, *ends], [*ends, len(items)])
                ]
            elif len(names) == 1 and ops <= {"<", r"\le", r"\ne"}:  # x < 1 or x > 2
                both = "∧" in commas or r"\ne" in ops or closers == tuple(")]")
                kind = r"\cup" if "∨" in commas else r"\cap" if both else ","
                items = [Group(kind, "", tuple(items))]
        return tuple(items), self.take(*closers)

    def relation(self):  # 0 < x \le 5,  f(x) = x^2
        sides, ops, names = [], [], []
        while not sides or self.next in _RELATIONS:
            self.do("item")  # lists are compared item by item
            ops += [self.take()] if sides else []
            start = self.i
            sides.append(self.expression())
            source = "".join(self.tokens[start : self.i])
            names.append(source if _LONE_NAME(source) else "")
        while len(ops) > bool(names[0]) and ops[-1] == r"\approx":  # x = \frac13 \approx 0.33
            if not _same_number(*sides[-2:], tolerance=0.1):
                raise ValueError(r"x = 5 \approx 7 answers twice")
            del sides[-1], names[-1], ops[-1]
        ops = ["=" if op == r"\approx" else op for op in ops]
        if ops and ops[0] in _FLIPPED:  # 5 > x -> x < 5
            sides, names, ops = (
                sides[::-1],
                names[::-1],
                [_FLIPPED.get(op, "mixed") for op in reversed(ops)],
            )
        lone = "".join(names) if sum(map(bool, names)) == 1 else ""
        return Relation(tuple(sides), tuple(ops), tuple(names), lone) if ops else sides[0]

    def expression(self, level=0):  # of the operators that bind tighter than `level`
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("too deep")
        if sign := self.accept("+", "-"):  # -x^2 is -(x^2)
            left = self.expression(max(level, _LEVEL["+"]))
            if sign == "-":  # -"apple" is not -1 with a unit
                left = (self.do if left.kind == "number" else self.combine)("*", constant(-1), left)
        else:
            left = self.atom(level)
        while _LEVEL.get(op := self.operator(), 0) > level:
            if self.next == op and op not in "+-":  # a - b is a + (-b)
                self.take()
            elif re.search(
                "[0-9] ([A-Za-z] )?[0-9][^ ]*$",
                " ".join(self.tokens[max(self.i - 2, 0) : self.i + 1]),
            ):
                raise ValueError("5 6, 5 R 6, 5 x 6")
            if op in ("!", "°"):
                left = self.do("!", left) if op == "!" else self.measure("*", left, letter('"deg"'))
            else:
                right = self.expression(_LEVEL[op] - (op == "^"))  # 2^3^2 = 2^9
                left = self.combine("+" if op == "-" else op, left, right)
        self.depth -= 1
        return left

    def operator(self):  # "*" for a product without a sign: 2x
        stop = self.next in _STOPS or self.next[:4] == r"\end" or self.next == "|" and self.bars
        return self.next if self.next in _LEVEL else "" if stop else "*"

    def atom(self, level):
        token = self.take()
        name, _, index = token.partition("_")
        if index and (len(name) > 1 and name.isalnum() or name.isdigit()):
            return constant(int(name, int(index.strip("{}")) or 1))  # int() refuses 9 in base 8
        ahead = "".join(self.tokens[self.i : self.i + 9])
        if (
            token.isdigit()
            and level <= _LEVEL["*"]
            and re.match(r"\\frac\{[0-9]+\}\{[0-9]+\}", ahead)
        ):
            return self.combine("+", constant(int(token)), self.expression(_LEVEL["^"]))
        if token[:1].isdigit() or token[:1] == "." and token[1:]:
            digits = re.sub(r"[eE].*|\.", "", token).lstrip("0")
            return Number((Fraction(token),), rounded="." in token and len(digits) >= 12)
        if token in _CLOSERS:
            return self.bracket(token)
        if token in _FENCES:
            closer, name = _FENCES[token]
            self.bars += token == "|"
            inside = self.expression()
            self.bars -= token == "|"
            self.take(closer)
            return self.do(name, inside)
        if token in _DIVISIONS:
            return self.combine(token, self.expression(_LEVEL["^"]), self.expression(_LEVEL["^"]))
        if token == r"\sqrt":
            index = self.bracket("[") if self.accept("[") else constant(2)
            return self.do("^", self.expression(_LEVEL["^"]), self.do("/", constant(1), index))
        if token[1:] in _FUNCTIONS:
            return self.function(token[1:])
        if token in (r"\R", r"\emptyset"):
            return Group("(", ")", _REALS) if token == r"\R" else Group("{", "}", ())
        if token.startswith(r"\begin"):
            return self.matrix(token)
        if token in _STOPS or not re.match(r'"|\\?[A-Za-z]', token):
            raise ValueError(token)
        if token[0] == '"':  # "cm", but "team" 5 is one name
            word = token.casefold()
            return letter(
                word
                if self.operator() != "*" or self.next == "*"
                else self.rest(_unit(word.strip('"')))
            )
        known = token[0] != "\\" or name.rstrip("'") in _LETTERS | _CONSTANTS.keys()
        if not known or token in ("f", "g") and self.next == "^":  # f^{-1}(x)
            return letter(self.rest(token, group=token in _ACCENTS))
        if token not in _CONSTANTS and re.match(
            r"[fg]'* \(|\S+ \((?:[^-+()]*\)|[A-Za-z]\()", f"{token} {ahead}"
        ):
            argument = self.combine("+", constant(1), self.expression(_LEVEL["^"]))
            return self.do("cos", self.combine("*", letter(token), argument))  # f(2x) is not 2f(x)
        return letter(token)  # x, \theta, a_1, y'

    def rest(self, name, group=False):  # a name: all up to the end of this side, or of one group
        parts, depth = [], 0
        stops = _STOPS - _LEVEL.keys()
        while (
            depth
            and self.next
            or not (group and parts or self.next in stops or self.next[:4] == r"\end")
        ):
            token = self.take()
            depth += (token in _CLOSERS or token[:6] == r"\begin") - (
                token in _CLOSING or token[:4] == r"\end"
            )
            parts.append(
                _unit(token.strip('"').casefold()) if len(token) > 3 and token[0] == '"' else token
            )
        return re.sub(r"\{ (\S+) \}", r"\1", " ".join([name, *parts]))

    def bracket(self, opener):  # (a) groups, (a, b) is a tuple, {a, b} a set
        items, closer = self.items(*_CLOSERS[opener])
        if len(items) == 1 and opener + closer in ("()", "[]", "{}"):
            return items[0]
        return Group(opener.strip("\\"), closer.strip("\\"), items)

    def function(self, name):  # \sin^2 x, \log_2 8, \ln|x|, \sin 2x
        scripts = {"_": constant(10)} if name == "log" else {}
        while op := self.accept("^", "_"):
            scripts[op] = self.expression(_LEVEL["!" if op == "^" else "^"])
        base, exponent = scripts.get("_"), scripts.get("^")
        if exponent == constant(-1) and name in _TRIG:
            name, exponent = "arc" + name, None
        start = self.i
        value = self.expression(_LEVEL["^" if self.next in ("(", "[", "{") else "*"])
        while (
            self.tokens[start] not in ("(", "[", "{")
            and self.operator() == "*"
            and (self.next[0] not in '*([|"' and self.next[1:] not in _FUNCTIONS)
        ):
            value = self.combine("*", value, self.expression(_LEVEL["*"]))  # \sin 2x \cos x
        if value.kind == "number" and value.unit == "deg":  # only here a degree is a number
            value = self.do("/", self.do("*", letter(r"\pi"), value), constant(180))._replace(
                unit=""
            )
        value = self.do("ln" if base else name, value)
        value = self.do("/", value, self.do("ln", base)) if base else value
        return self.do("^", value, exponent) if exponent else value

    def matrix(self, token):
        rows = [[]]
        while not self.next.startswith(r"\end"):
            if self.accept(r"\\"):
                rows.append([])
            else:
                rows[-1].append(self.relation())
                self.accept("&", ",")
        self.take(token.replace("begin", "end"))
        kind = "matrix" if re.search(r"\{(?:[pb]|small)?matrix|array", token) else token
        return Group(kind, "", tuple(Group("row", "", tuple(row)) for row in rows if row))


# A5. The comparison. Without it \{1,2\} is not \{2,1\}; carelessly, x > 1, y < 2 is y > 1, x < 2.
def same(gold, pred, listed=False):
    """Do two parsed answers denote the same object? listed: do not take 2 cats, 3 dogs for 3 cats, 2 dogs."""
    if gold.kind == pred.kind == "relation":
        equal = _same_relation(gold, pred)  # once: nesting must not double the work
        if equal or not gold.lone or gold.lone != pred.lone:
            return equal
    gold, pred = _object(gold), _object(pred)
    kinds = {gold.kind, pred.kind}
    if kinds & _SETS.keys() or kinds == {"[", "{"}:
        if None not in (regions := (_region(gold), _region(pred))):
            return regions[0] == regions[1]
    if "{" in kinds and not kinds & _SETS.keys() or "," in kinds or kinds in ({r"\cup"}, {r"\cap"}):
        return _same_items(
            *(
                x.items if x.kind in ("{", ",", *kinds & _SETS.keys()) else (x,)
                for x in (gold, pred)
            )
        )
    if kinds == {"number"}:
        with _LOCK:
            return _same_number(gold, pred, listed)
    return (
        len(kinds) == 1
        and "relation" not in kinds
        and gold.closer == pred.closer
        and (len(gold.items) == len(pred.items) and all(map(same, gold.items, pred.items)))
    )


def _same_items(golds, preds):
    left = list(preds)
    for gold in golds:  # each pair once: nesting must not double the work
        found = next((i for i, pred in enumerate(left) if same(gold, pred, len(golds) > 1)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _same_number(gold, pred, listed=False, tolerance=None):
    if gold.kind + pred.kind != "number" * 2 or not pred.letters <= gold.letters:  # no free x
        return False
    units = {gold.unit, pred.unit} - {""}  # 5 cm is not 5 km; 5 people may be 5 students
    if len(units) > 1 and (listed or units <= _UNITS.keys()):
        return False
    n = max(len(gold.values), len(pred.values))
    pairs = zip(gold.values * (n // len(gold.values)), pred.values * (n // len(pred.values)))
    pairs = [pair for pair in pairs if None not in pair]
    return len(pairs) > (n > 1) and all(
        _close(g, p, gold.rounded != pred.rounded, tolerance) for g, p in pairs
    )


def _close(
    a, b, rounded=False, tolerance=None
):  # 0.333333333333 is 1/3, but no decimal is another one
    exact = [
        isinstance(x, Fraction) and (not rounded or pow(10, MAX_BITS, x.denominator) == 0)
        for x in (a, b)
    ]
    size = max(abs(_float(a, MAX_BITS)), abs(_float(b, MAX_BITS)))
    if (
        _mp.isinf(size)
        or not tolerance
        and (all(exact) or not rounded and max(_bits(a), _bits(b)) > LONG)
    ):
        return a == b
    return abs(_float(a, MAX_BITS) - _float(b, MAX_BITS)) <= size * (
        tolerance or (1e-11 if rounded else SAME)
    )


def _object(node):
    r"""What a lone name is: x = 5 -> 5;  x \in [0,1] -> [0,1];  x > 2 -> (2, \infty);  x + y = 5 stays."""
    if node.kind != "relation":
        return node
    sides = [side for side, name in zip(node.sides, node.names) if not name] or [node.sides[-1]]
    if {*node.ops} <= {"=", r"\in"}:
        numbers = not any(node.names) and all(
            side.kind == "number" and not side.letters for side in sides
        )  # 2 + 3 = 5
        orders = [
            re.findall("[a-z]", name) for name in node.names if name[:1] == "(" or ":" in name
        ]
        named = (
            any(node.names)
            and all(order == sorted(order) for order in orders)
            and (r"\in" not in node.ops or not node.names[-1])
        )  # 5 \in A
        return (
            sides[0]
            if (numbers or named) and all(same(sides[0], side) for side in sides[1:])
            else node
        )
    if node.ops == (r"\ne",) and node.lone:  # x \ne 1 -> \R \setminus \{1\}
        return Group(r"\setminus", "", (Group("(", ")", _REALS), Group("{", "}", (sides[0],))))
    shape = tuple(map(bool, node.names))
    if not {*node.ops} <= {"<", r"\le"} or shape not in (
        (True, False),
        (False, True),
        (False, True, False),
    ):
        return node
    opener, low = ("(", _REALS[0]) if shape[0] else ("(" if node.ops[0] == "<" else "[", sides[0])
    closer, high = (
        (")", _REALS[1]) if shape[-1] else (")" if node.ops[-1] == "<" else "]", sides[-1])
    )
    return Group(opener, closer, (low, high))


def _same_relation(gold, pred):
    symmetric = gold.ops in (("=",), (r"\ne",))
    if gold.ops != pred.ops:
        return False
    if any(
        all(map(same, gold.sides, sides)) for sides in [pred.sides] + [pred.sides[::-1]] * symmetric
    ):
        return True
    if len(gold.ops) > 1 or {side.kind for side in gold.sides + pred.sides} != {"number"}:
        return False
    with _LOCK:  # left - right, up to a factor (positive for < and \le)
        differences = [
            apply("+", left, apply("*", constant(-1), right))
            for left, right in (pred.sides, gold.sides)
        ]
        ratios = [ratio for ratio in apply("/", *differences).values if ratio is not None]
        return (
            len(ratios) > 1
            and ratios[0] != 0
            and all(_close(ratios[0], ratio) for ratio in ratios)
            and (symmetric or gold.ops[0] in ("<", r"\le") and _mp.re(_float(ratios[0])) > 0)
        )


# A6. Regions of the line, by sympy. Without them x \ne 3 is not (-\infty,3) \cup (3,\infty).
_REALS = Number((-letter(r"\infty").values[0],)), letter(r"\infty")


def _region(node):
    """A set of reals for sympy, or None. critical: (3,1) is a point, or all that is empty would be right for one."""
    node = _object(node)
    if node.kind in _SETS:
        parts = [_region(item) for item in node.items[:8]]
        return None if None in parts or len(node.items) > 8 else reduce(_SETS[node.kind], parts)
    items = node.items if node.kind in ("(", "[", "{") else [node]
    values = [x.values[0] for x in items if x.kind == "number" and not x.letters]
    if len(values) < len(items) or not all(isinstance(x, (Fraction, _mp.mpf)) for x in values):
        return None
    ends = [
        Rational(x.numerator, x.denominator)
        if isinstance(x, Fraction)
        else oo * int(_mp.sign(x))
        if _mp.isinf(x)
        else Rational(_mp.nstr(x, 60))
        for x in values
    ]
    if node.kind in ("{", "number"):
        return FiniteSet(*ends)
    proper = len(ends) == 2 and (
        ends[0] < ends[1] or ends[0] == ends[1] and node.kind + node.closer == "[]"
    )
    return Interval(*ends, node.kind == "(", node.closer == ")") if proper else None


# A7. The door: cheapest rung first; each exists because right answers fall off the one above.
_DECIMAL = re.compile(r"-?(?:[0-9]{1,1000}(?:\.[0-9]{1,1000})?|\.[0-9]{1,1000})").fullmatch
_NAN = re.compile(r"(?<![a-z])nan(?![a-z])", re.I).search
_RUNGS = {"{": "list or set", "(": "tuple or interval", "[": "interval", r"\cup": "union"}


def equal(predicted: str, ground_truth: str) -> tuple[bool, str, str, str]:
    """-> (verdict, the rung that decided, normalised prediction, normalised ground truth)."""
    if not (isinstance(predicted, str) and isinstance(ground_truth, str)):
        return False, "no answer", "", ""
    pred, gold = predicted.strip(), ground_truth.strip()
    if not pred or not gold or _NAN(pred[:MAX_CHARS]) or _NAN(gold[:MAX_CHARS]):
        return False, "no answer", pred, gold
    if pred == gold:  # the textbook's rung
        return True, "string", pred, gold
    if _DECIMAL(pred) and _DECIMAL(gold):  # 0.50 and .5; as floats 2^53 + 1 would be 2^53
        return Fraction(pred) == Fraction(gold), "decimal", pred, gold
    if max(len(pred), len(gold)) > MAX_CHARS:
        return False, "too long", pred, gold
    p, g = normalise(pred), normalise(gold)
    shown = " ".join(p), " ".join(g)
    if p == g:  # \dfrac12 and \tfrac{1}2
        return bool(p), "spelling", *shown
    try:
        p, g = parse(p), parse(g)
        return same(g, p), _RUNGS.get(g.kind, g.kind), *shown
    except (ArithmeticError, ValueError):
        return False, "unreadable", *shown
