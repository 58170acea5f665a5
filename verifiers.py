r"""verifiers.py - what counts as right: from a completion to a reward, with rules and no model.

What you will learn: how the answer is found in a text (section 1) and compared with the truth (2),
what else can be checked (3), how verdicts become one number (4), and how problems, the sentence
that asks for the answer and the reward that reads it belong together (5). The appendices can wait:
A compares answers by value, B runs programs, C reads files. More verifiers and rewards, and how
policies cheat, are in notebooks/rewards.py.

A completion is hostile text: no answer is ever evaluated by Python or sympy, every size is checked
before it is paid for, and programs run where there is nothing to reach and nothing to report on.
"""

import math
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

# ---- 1. Extract: the last box of a completion ----------------------------------------------------
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.S)        # \\. swallows \{ and \}: they are content, not braces


def extract_boxed_answer(text: str) -> str | None:
    r"""The content of the last \boxed{...} or \fbox{...} or None. Linear in len(text). A malformed *last* box is no
    answer even if an earlier one was right: to fall back to that would pay a policy for boxing all it tries."""
    last = None
    for last in _BOX.finditer(text if isinstance(text, str) else ""):
        pass
    if last is None or not text.startswith("{", last.end()):
        return None
    depth = 0
    for brace in _BRACE.finditer(text, last.end()):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[last.end() + 1:brace.start()].strip()
    return None


# ---- 2. The ladder -------------------------------------------------------------------------------
MAX_CHARS = 1500          # longer answers are compared as strings only
_DECIMAL = re.compile(r"-?(?:[0-9]{1,1000}(?:\.[0-9]{1,1000})?|\.[0-9]{1,1000})").fullmatch
_NAN = re.compile(r"(?<![a-z])nan(?![a-z])", re.I).search
_RUNGS = {"{": "list or set", "(": "tuple or interval", "[": "interval", r"\cup": "union"}


# Two answers are equal when a mathematician who reads only the two strings would say that they denote the same object:
#   decimals            0.5 is 1/2; 0.33 is not 1/3, which takes 12 digits or more
#   percent, money,     dropped with every other unit: 50\% is 50 (and so not 0.5), 90^\circ is 90, 5\text{ cm} is 5;
#   degrees, units      but 5 cm is not 5 km, nor 2 thirds 2; a degree counts only inside a function: \sin 30^\circ
#   x = 5               is 5; but x + y = 5 is not, and a free letter never equals a number
#   order               (1, 2) has one, lists and \{1, 2\} have none; (0, 1) is not [0, 1]; x > 2 is (2, \infty)
#   2\frac13            is a mixed number; \frac123 is (1/2)3, as in TeX; x^10 and \sqrt10 are what was meant
#   \log                has base 10; 52_8 is a number in base 8; letters and roots stand for real numbers
#   \angle ABC, \pmod   what is not understood is compared as a name, letter by letter

def grade_answer(predicted: str, ground_truth: str) -> bool:
    """Is `predicted` the same answer as `ground_truth`?  Never raises, never hangs, always the same verdict."""
    try:
        return explain_grade(predicted, ground_truth)[0]
    except Exception:                # a last net, say for a caller whose stack is nearly full: rewards must not raise
        return False


def explain_grade(predicted: str, ground_truth: str) -> tuple[bool, str, str, str]:
    """-> (verdict, the rung that decided, normalised prediction, normalised ground truth). The only code path. Cheapest
    rung first: each exists because right answers fall off the one above."""
    if not (isinstance(predicted, str) and isinstance(ground_truth, str)):
        return False, "no answer", "", ""
    pred, gold = predicted.strip(), ground_truth.strip()
    if not pred or not gold or _NAN(pred[:MAX_CHARS]) or _NAN(gold[:MAX_CHARS]):
        return False, "no answer", pred, gold
    if pred == gold:                                                 # the textbook's rung
        return True, "string", pred, gold
    if _DECIMAL(pred) and _DECIMAL(gold):            # 0.50 and .5; as floats 2^53 + 1 would be 2^53
        return Fraction(pred) == Fraction(gold), "decimal", pred, gold
    if max(len(pred), len(gold)) > MAX_CHARS:
        return False, "too long", pred, gold
    p, g = normalise(pred), normalise(gold)                          # from here on: Appendix A
    shown = " ".join(p), " ".join(g)
    if p == g:                                                       # \dfrac12 and \tfrac{1}2
        return bool(p), "spelling", *shown
    try:
        p, g = parse(p), parse(g)
        return same(g, p), _RUNGS.get(g.kind, g.kind), *shown
    except (ArithmeticError, ValueError):
        return False, "unreadable", *shown


# ---- 3. Verifiers: completion and truth in, named scores out -------------------------------------

def reward_rlvr(response: str, ground_truth: str) -> float:
    """The chapter's whole reward: 1.0 if the last boxed answer is right, 0.0 if wrong or missing."""
    predicted = extract_boxed_answer(response)
    return 0.0 if predicted is None else float(grade_answer(predicted, ground_truth))


_UNTAGGED = r"((?:(?!</?(?:think|answer)>).)*)"
_TAGGED = re.compile(rf"\s*<think>{_UNTAGGED}</think>\s*<answer>{_UNTAGGED}</answer>\s*", re.S)


def split_tags(rollout: str) -> tuple[str, str] | None:
    """(think, answer) of <think>...</think><answer>...</answer>, else None (DeepSeek-R1, arXiv 2501.12948). Each tag
    once, in this order, and only white space outside: no second answer to choose from."""
    form = _TAGGED.fullmatch(rollout)
    return form and form.groups()


def verify_math(rollout: str, truth: str) -> dict:
    r"""format: 1.0 if the tags are in order; answer: 1.0 if the last box inside <answer> is right. Without
    the tags nothing is extracted. <think>2+2=4</think><answer>\boxed{4}</answer> with 4: 1.0, 1.0, "4"."""
    tags = split_tags(rollout)
    extracted = extract_boxed_answer(tags[1]) if tags else None
    right = extracted is not None and grade_answer(extracted, truth)
    return {"format": float(tags is not None), "answer": float(right), "extracted": extracted}


def verify_format(rollout: str) -> dict:
    """structure: 1.0 if the tags are in order; think_length: 1.0 for 8 characters of thinking or more,
    so that an empty <think></think> does not collect the whole format reward."""
    tags = split_tags(rollout)
    thought = tags is not None and len(tags[0].strip()) >= 8
    return {"structure": float(tags is not None), "think_length": float(thought)}


def verify_code(code: str, tests: list[str], timeout: float = 2.0, memory_mb: int = 256) -> dict:
    """Run a program against hidden tests, each a string with an assert -> {"tests_passed",
    "tests_total", "frac", "seconds", "compared", "why"}. Appendix B tells how.

    timeout: seconds for each test and for loading; all tests together have four times as many. Waiting
    for a free core does not count. compared: tests that calls and plain data alone decided; why: a
    line for each. A test that asks nothing of the program, or lacks a helper, is no pass. Never raises
    for anything that a program does.
    """
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout}, not a number of seconds above 0")
    if not isinstance(code, str) or not all(isinstance(test, str) for test in tests):
        raise TypeError("verify_code takes a program and a list of tests, all of them strings")
    verdicts, seconds = _run_tests(code, tests, timeout, memory_mb * 2**20)
    passed = sum(verdict["passed"] for verdict in verdicts)
    return {"tests_passed": passed, "tests_total": len(tests), "frac": passed / max(1, len(tests)), "seconds": seconds,
            "compared": sum(verdict.get("compared", False) for verdict in verdicts),
            "why": [verdict["why"] for verdict in verdicts]}


# ---- 4. Rewards: scores in, one number out -------------------------------------------------------
# A reward is a function (completion, problem) -> (number, parts). problem has the columns of the data
# and, in training, "step". Of the parts, "accuracy" (0 to 1) is what an evaluation counts, "answered"
# says that there was an answer; all are logged as means. What was cut off earns at most 0.

@dataclass
class RuleSpec:
    """One term of a reward: what counts (a verifier's output -> 0 to 1) and how much."""

    name: str
    weight: float
    score_fn: Callable[[dict], float]


def aggregate(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = sum_i w_i r_i. A sum, not a product: the right form with a wrong answer must earn
    more than nothing, or there is nothing to climb at the start."""
    return sum(rule.weight * rule.score_fn(verifier_out) for rule in rules)


MATH_RULES = [RuleSpec("format", 0.1, lambda v: v["format"]), RuleSpec("answer", 1.0, lambda v: v["answer"])]
FORMAT_RULES = [RuleSpec("structure", 1.0, lambda v: v["structure"]),
                RuleSpec("think_length", 0.2, lambda v: v["think_length"])]
CODE_RULES = [RuleSpec("frac", 1.0, lambda v: v["frac"])]


def boxed_reward(completion, problem):
    """1 for a right last box, else 0: the chapter's reward, for models that know no tags."""
    right = reward_rlvr(completion, problem["answer"])
    return right, {"accuracy": right, "answered": float(extract_boxed_answer(completion) is not None)}


def tagged_reward(completion, problem):
    """DeepSeek-R1-Zero's reward, accuracy + 0.1 * format (the chapter's weight), both on the tagged form."""
    out = verify_math(completion, problem["answer"])
    parts = {"accuracy": out["answer"], "format": out["format"], "answered": float(out["extracted"] is not None)}
    return aggregate(out, MATH_RULES), parts


def exact_reward(completion, problem):
    """1 if the whole completion is the answer, for a model too small for markup; format: its digits."""
    text, answer = completion.strip(), problem["answer"]
    right, form = float(text == answer), float(text.isdigit() and len(text) == len(answer))
    return right, {"accuracy": right, "answered": float(text != ""), "format": form}


# By white space, as the chapter; but a Chinese character is one, and so are 16 characters on end.
WORD = re.compile(r"[\u3040-\u9fff]|[^\s\u3040-\u9fff]{1,16}")
_SCRIPTS = [re.compile(letters) for letters in (       # Latin without x and \frac; Han and kana; ..
    r"(?<![A-Za-z\\])[A-Za-z]{2,}", "[\u3040-\u30ff\u3400-\u9fff]", "[\uac00-\ud7af]", "[\u0400-\u04ff]",
    "[\u0600-\u06ff]")]                                     # .. Hangul, Cyrillic, Arabic
_ANNOUNCING = set("the so thus hence therefore final answer result value is are equals must be it "
                  "clearly obviously based on above a an =".split())


def mixed_scripts(text: str, threshold=0.10) -> bool:
    """Do more than a tenth of the letters not belong to the main script? Chinese with an x is Chinese."""
    counts = [sum(map(len, script.findall(text))) for script in _SCRIPTS]
    return sum(counts) - max(counts) > threshold * sum(counts)


def derivation(think: str, answer: str | None) -> int:
    """Characters of thinking that do more than announce: "The answer is 42." has 0, "6*7=42" has 6."""
    text = re.sub(r"答案|显然|是|\\(?:boxed|fbox)\{[^{}]*\}", " ", think.lower())
    words = [word.strip(".,;:!?$()*") for word in text.split()]
    return sum(len(word) for word in words if word not in _ANNOUNCING | {(answer or "").lower()})


@dataclass
class ReasoningReward:
    """R = w_acc acc + w_fmt fmt + len + lang (chapter "Reward Design for Reasoning"), n words of thinking:

    acc    1 if the last box of the answer is right
    fmt    1 for the tagged form with min_think characters of derivation in the think block
    len    w_len min(n, len_cap) / len_cap, without the min unless it saturates; above the threshold
           -w_ramble min(1, n / ramble_threshold - 1): 612 words, right, earn 1.1 - 0.3 * 0.53 = 0.94
    lang   -w_lang if the thinking mixes scripts; a cliff, for a slope would pay for mixing less
    All is 0 if it was cut off, has broken tags or none; with needs_tags False a bare right box earns w_acc.
    """

    w_acc: float = 1.0
    w_fmt: float = 0.1
    w_len: float = 0.0
    w_lang: float = 0.5
    w_ramble: float = 0.3
    len_cap: int = 256
    ramble_threshold: int = 400
    min_think: int = 8
    saturates: bool = True
    needs_tags: bool = True

    def __call__(self, rollout: str, truth: str, truncated=False) -> dict:
        tags = split_tags(rollout)
        if truncated or tags is None and (self.needs_tags or re.search("</?(?:think|answer)>", rollout)):
            return dict.fromkeys(("R", "acc", "fmt", "len", "lang", "think_tokens"), 0.0) | {"extracted": None}
        think, answer = tags or ("", rollout)
        n, extracted = len(WORD.findall(think)), extract_boxed_answer(answer)
        acc = float(extracted is not None and grade_answer(extracted, truth))
        fmt = float(tags is not None and derivation(think, extracted) >= self.min_think)
        length = self.w_len * (min(n, self.len_cap) if self.saturates else n) / self.len_cap
        length -= self.w_ramble * min(1.0, max(0.0, n / self.ramble_threshold - 1))
        lang = -self.w_lang * mixed_scripts(think)
        total = self.w_acc * acc + self.w_fmt * fmt + length + lang
        return {"R": total, "acc": acc, "fmt": fmt, "len": length, "lang": lang, "think_tokens": n,
                "extracted": extracted}

    def reward(self, completion, problem):
        out = self(completion, problem["answer"])
        names = {"acc": "accuracy", "fmt": "format", "len": "brevity", "lang": "language", "think_tokens": "thinking"}
        parts = {name: out[key] for key, name in names.items()}
        return out["R"], parts | {"answered": float(out["extracted"] is not None)}


def extract_code(response: str) -> str | None:
    """The last ```python block behind the thinking; None if there is none or it is not closed."""
    parts = response.rpartition("</think>")[2].split("```")
    blocks = [part.partition("\n") for part in parts[1::2]]
    programs = [body for mark, _, body in blocks if mark.strip().lower() in ("python", "py", "python3")]
    return programs[-1] if programs and len(parts) % 2 else None


def code_reward(response, problem):
    """The share of the tests that the last program of the completion passes.

    problem: "tests", a list of asserts; "before" (optional), what runs ahead of the program; "baseline" (optional), the
    share that programs earn which have learnt nothing (check_tests): only what is above it counts.
    """
    code, least = extract_code(response), min(problem.get("baseline", 0.0), 1 - 1e-9)
    out = verify_code(problem.get("before", "") + "\n" + code, problem["tests"]) if code else {"frac": 0.0}
    parts = {"accuracy": float(out["frac"] == 1.0), "answered": float(code is not None), "tests": out["frac"]}
    return aggregate({"frac": max(0.0, (out["frac"] - least) / (1 - least))}, CODE_RULES), parts


REWARDS = {"boxed": boxed_reward, "tagged": tagged_reward, "exact": exact_reward, "code": code_reward,
           "r1-zero": ReasoningReward(w_lang=0.0, w_ramble=0.0).reward, "r1": ReasoningReward().reward}


def get_reward(spec: str):
    return find(spec, REWARDS, "reward")


# ---- 5. Tasks: problems, the sentence that asks for the answer, and the reward that reads it -----

@dataclass
class Task:
    """A problem is a dict with at least "problem" and "answer", both text."""

    name: str
    train: list[dict]
    test: list[dict]               # never trained on
    instruction: str             # a format string with {problem}; it asks for what the reward reads
    reward: Callable[[str, dict], tuple[float, dict]]
    note: str = ""                 # where the problems come from, printed at the start
    stops: tuple = ()              # texts that end a completion, for base models

    def prompt(self, problem):
        return self.instruction.format(problem=problem["problem"])


BOXED = "Solve the following problem. Put your final answer within \\boxed{{}}.\n\nProblem: {problem}\n\nSolution:"
PROGRAM = "{problem}\n\nWrite the whole program in one ```python block at the end of your answer.\n\n"


def held_out(problem: dict) -> bool:
    """One problem in ten, by its text alone: no seed, order or later addition moves one across."""
    return zlib.crc32(problem["problem"].encode()) % 10 == 0


def arithmetic_problem(rng: random.Random) -> dict:
    """A two-digit start and 2 to 4 steps of one digit, every running value in 10 .. 99, such as
    25+7+9-4= -> 37. The constant width matters: a tiny model learns the worked form at once with it."""
    value = rng.randint(10, 99)
    text = str(value)
    for _ in range(rng.randint(2, 4)):
        change = rng.choice([d for d in range(-9, 10) if d and 10 <= value + d <= 99])
        value, text = value + change, f"{text}{change:+d}"
    return {"problem": text + "=", "answer": str(value)}


def arithmetic(train_size=10_000, test_size=500, seed=0) -> Task:
    """The laptop's task, in the tagged form."""
    rng, train, test = random.Random(seed), {}, {}
    while len(train) < train_size or len(test) < test_size:
        problem = arithmetic_problem(rng)
        split, size = (test, test_size) if held_out(problem) else (train, train_size)
        if len(split) < size:
            split[problem["problem"]] = problem              # drawn again, it is no new problem
    return Task("arithmetic", [*train.values()], [*test.values()], "{problem}", tagged_reward, "split by a hash")


def one_digit() -> Task:
    """a+b modulo 10, tested on what it trains on: not to generalise, but to see that selection alone
    can find, from random weights, first the form of an answer and then the answers."""
    problems = [{"problem": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in range(10) for b in range(10)]
    return Task("one-digit", problems, problems, "{problem}", exact_reward, "a+b modulo 10; tested on the same")


def math500() -> Task:
    test = hub_problems("HuggingFaceH4/MATH-500")
    return Task("math500", [], test, BOXED, boxed_reward, "MATH-500, for evaluation only")


def math_task() -> Task:
    """The 12,000 problems of MATH that are not in MATH-500, and MATH-500 as the test."""
    test = math500().test
    asked = {problem["problem"] for problem in test}
    train = [p for p in hub_problems("rasbt/math_full_minus_math500") if p["problem"] not in asked]
    return Task("math", train, test, BOXED, boxed_reward, "MATH without MATH-500; tested on MATH-500")


TASKS = {"arithmetic": arithmetic, "one-digit": one_digit, "math": math_task, "math500": math500}


def _file_task(path):
    """A task out of a file, with one problem in ten held out."""
    problems = read_problems(path)
    test = [problem for problem in problems if held_out(problem)]
    train = [problem for problem in problems if not held_out(problem)]
    if not train or not test:
        raise DataError(f"{path}: {len(problems)} problems are too few to hold one in ten out")
    note = f"{path}: {len(problems)} problems, {len(test)} held out by a hash"
    note += ": accuracy will be coarse" if len(test) < 50 else ""
    programs = all(isinstance(problem.get("tests"), list) for problem in problems)
    form = (PROGRAM, code_reward) if programs else (BOXED, boxed_reward)
    return Task(Path(path).name.partition(".")[0], train, test, *form, note)


def get_task(spec: str, prompt: str | None = None, stops=()) -> Task:
    """The task of that name, of a function `file.py:name`, or of a file of problems (read_problems); with another
    instruction that has {problem} in it, and other texts that end a completion."""
    is_file = str(spec).endswith((".jsonl", ".json", ".gz"))
    task = _file_task(spec) if is_file else find(spec, TASKS, "task")()
    if not isinstance(task, Task):
        raise DataError(f"task {spec}: the function returns {type(task).__name__}, not verifiers.Task")
    if prompt is not None and "{problem}" not in prompt:
        raise DataError("a prompt needs {problem} where the problem goes, as in 'Question: {problem}\\nAnswer:'")
    if prompt is not None:                               # other braces, as of \boxed{}, stay braces
        prompt = prompt.replace("{", "{{").replace("}", "}}").replace("{{problem}}", "{problem}")
    return replace(task, instruction=prompt or task.instruction, stops=tuple(stops) or task.stops)


# ---- Appendix A. Equal by value ------------------------------------------------------------------
# What is graded equal is paid, so a policy looks for two different things that meet here. Three rules keep it out: what
# cannot be read for certain equals nothing; what is not known is a name, with all that follows it; what digits cannot
# hold has no value. Nothing of an answer is evaluated by Python or sympy; sizes are checked before numbers are formed.
import itertools
import operator
import threading
import unicodedata
from collections import namedtuple
from functools import lru_cache, reduce

from mpmath.ctx_mp import MPContext
from sympy import FiniteSet, Interval, Rational, oo

MAX_DEPTH, MAX_BITS, MAX_WORK = 50, 2**15, 1000  # of brackets, of an exact number, of operations


# A1. One spelling. Without it \tfrac12 is not \frac{1}{2}, 10,\!080 not 10080, and 3½ not 3\frac12.
_CHARACTERS = str.maketrans({
    **{pair[0]: f"\\{pair[1:]} " for pair in (
        "αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta κkappa λlambda μmu νnu ξxi πpi ρrho σsigma τtau φphi "
        "χchi ψpsi ωomega √sqrt ∞infty ≤le ⩽le ≥ge ⩾ge ≠ne ≈approx ±pm ∓mp ∪cup ∩cap ∈in ∖setminus ∅emptyset ℝR "
        "×times ⌊lfloor ⌋rfloor ⌈lceil ⌉rceil ∧wedge ∨vee").split()},
    **dict.fromkeys("−–—‐‑‒", "-"), **dict.fromkeys("·⋅∙∗", "*"), **dict.fromkeys("÷⁄∕", "/"), "º": "°", "’": "'",
    **dict.fromkeys('«»£€¥"“”\u200b\u200c\u200d\u2060\ufeff'), "∣": "|", "∛": r"\sqrt[3]", "⟨": "(", "⟩": ")",
    "、": ",", "。": ".", "或": " or ", "和": " and "})
_SMALL = [(re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+"), r"^{\g<0>}"), (re.compile("[₀-₉ₙ]+"), r"_{\g<0>}"),  # x¹²
          (re.compile("[¼½¾⅐-⅞]"), r"\\frac{\g<0>}")]  # 3½: NFKC makes 1⁄2 of ½
_SYNONYMS = {old: new for new, olds in {
    r"\frac": r"\dfrac \tfrac \cfrac", r"\binom": r"\dbinom \tbinom", r"\le": r"\leq \leqslant <=", "<": r"\lt",
    r"\ge": r"\geq \geqslant >=", r"\ne": r"\neq !=", r"\setminus": r"\backslash", ">": r"\gt", "=": "== :=",
    ":": r"\colon", "*": r"\cdot \times \ast", "/": r"\div", r"\{": r"\lbrace", r"\}": r"\rbrace", "(": r"\langle",
    ")": r"\rangle", "|": r"\lvert \rvert \vert \mid \|", "^": "**", r"\infty": r"\infinity", r"\log": r"\lg",
    r"\epsilon": r"\varepsilon", r"\phi": r"\varphi", r"\emptyset": r"\varnothing", '"percent"': r"\% %",
    "": r"\$ $ \quad \qquad \, \: \; \! ~ . \boxed \fbox \mathbf \boldsymbol \bm \mathit",
}.items() for old in olds.split()} | {"\\ ": "", "\\": ""}
_TRIG = "sin cos tan cot sec csc".split()
_FUNCTIONS = {*_TRIG, *("arc" + name for name in _TRIG), "sinh", "cosh", "tanh", "ln", "log", "exp"}
_SPACE = r"(?:(?<!\\)\\[,!;: ]|\s|~)"


# A2. Words. Without them 15\text{ cm} is no number; done carelessly, 2 thirds is 2 and 5\text{ to }7 is 35.
# Words become a name in quotes. Behind a number they are a unit, and do not count.
_UNITS = {alias: names.split()[0] for names in (
    "m meter", "cm centimeter", "mm millimeter", "km kilometer", "hz", "mol", "ev", "kj", "kw", "kpa", "children",
    "in inch inche", "ft foot feet", "yd yard", "mi mile", "s sec second", "min minute", "h hr hour", "day", "people",
    "week", "month", "yr year", "g gram", "kg kilogram", "lb pound", "oz ounce", "l liter litre", "deg degree",
    "rad radian", "percent pct", "dollar usd", "cent", "am", "pm", "celsius", "fahrenheit") for alias in names.split()}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_CHANGES = _SCALES.keys() | set("""half halves third thirds quarter quarters zero one two three four five six seven
    eight nine ten hundreds thousands dozens gross plus minus times over mod root of not no is are or to more less than
    fewer below negative squared cubed repeating recurring base binary octal prime if""".split())
_SHORT = set("no on of to is all any odd mod gcd lcm max mph kph".split())
_TEXT = re.compile("[A-Z]{3,}|[A-Z][a-z]{2,}|[IVX]{2,}|[a-z][CP][a-z]|(?=.*[eio])[a-z]{3}|(?=.*[aeiou]).{4,}").fullmatch
_BARE = _FUNCTIONS | set("sqrt infty pi alpha beta gamma theta lambda phi omega".split())
_SAID = {name: f"\\{name} " for name in _BARE} | {"infinity": r"\infty ", "and": "∧", "or": "∨"}

def _unit(word):  # "kilometers" -> "km", "apples" -> "apple"
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"), word.removesuffix("s"))

def _words(match):
    r"""9 red apples -> 9 "red apples", 1 and 2 -> 1 ∧ 2, 2pi -> 2\pi; xy stays a product, ABC_{16} and 3ABC too."""
    if not match["run"]:                                             # a command, the end of 1A3
        return match[0]
    before, words = match.string[:match.start()], match[0].split()
    counted = bool(re.search(rf"(?:[0-9}})°]|\\pi)(?:{_SPACE}|«)*$|[a-z]«$", before))
    text = before.rfind("«") > before.rfind("»")                     # in \text{...}
    said = [None if word == "sec" and (text or counted) else _SAID.get(word) for word in words]
    marks = [not plain and (text and not re.fullmatch("[a-fi-kn-rt-z]" if counted else "[eidA-Z]", word)
                            or word.casefold() in _SHORT and word != "NO"
                            or counted and len(word) > 1 and _unit(word.casefold()) in _UNITS
                            or bool(_TEXT(word)) and word not in "abcdefghijklmnopqrstuvwxyz")
             for plain, word in zip(said, words)]
    for i, word in enumerate(words):
        quoted = marks[i] or any(marks) and (len(word) > 1 or word in "aA")  # no solution, a circle
        words[i] = said[i] or (f'"{word}"' if quoted else word)
    return " ".join(words)

_REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (r"(?<!\\)\\[()\[\]]|\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![A-Za-z])\s*\.?", " "),
    (r"(?i)(?<![a-z])([ap])\.\s?m\b\.?", r"\1m"),                    # 7:45 a.m.
    (r"([0-9]{1,20})\.([0-9]{0,20})\\(?:overline|bar|dot)\s*\{?([0-9]{1,20})\}?(?![0-9])",
     lambda m: rf"\frac{{{int(m[1] + m[2] + m[3]) - int(m[1] + m[2])}}}{{{'9' * len(m[3])}{'0' * len(m[2])}}}"),
    (r"\\(?:text[a-z]*|mbox|mathrm|mathsf|operatorname)\s*\{([^{}]*)\}", r"«\1»"),
    (r"\\(?:begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+|(?<=[0-9])[A-Z]+(?![A-Za-z])|[A-Z]+(?=[0-9])"
     r"|(?<![A-Za-z])(?P<run>[A-Za-z]+(?: +[A-Za-z]+)*)(?![A-Za-z]*»?_)", _words),
    ("[«»]", " "), (rf'"(?:\.?{_SPACE})+"', " "), (r'(?i)"all real(?: number)?s"', r"\\R "),
    (r'"(?:USD|Rs)"\.?\s*(?=[0-9])', ""), (r'"\s*/\s*([hs])(?![A-Za-z])', r'"/"\1"'),
    (r'(?<=[0-9])\s*\^\s*\{?\s*(?:"(?:st|nd|rd|th)"|th(?![A-Za-z]))\s*\}?', " "),
    (rf"(?<![0-9.])(?<![0-9],)[0-9]{{1,3}}(?:(?:(?:\{{,\}}|,\\!|{_SPACE}){_SPACE}*|,)[0-9]{{3}})+(?!,?[0-9])",
     lambda m: m[0] if re.search(r"[(\[]|\\\{", m.string[:m.start()]) and re.search(r"(?<!\{),(?!\\!)", m[0])
     else re.sub("[^0-9]", "", m[0])),  # 10\,000, 2{,}500, 1 000, 1,234; not (12,102)
    (r"(?:\{\})?\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", "°"),
    (r'°\s*"?C(?![A-Za-z])"?', '"celsius"'), (r'°\s*"?F(?![A-Za-z])"?', '"fahrenheit"'),
    (r"\\(?:mathbb|Bbb)\s*(?:\{R\}|R(?![A-Za-z]))", r"\\R "),
    (r"\\R\s*[\^_]\s*\{?\s*(?:\+|>\s*0)\s*\}?", r"(0,\\infty )"),
    (r"\\\{\s*([a-z])\s*(?:\\in\s*\\R\s*)?(?:\\mid|\||:)\s*(?=[^{}]*\1)([^{}:|]*)\\\}", r"(\2)"),
    (r"\\times(?=\s*\\(?:mathb|vec|overr|hat|bold|bm))|(?<=[A-Z])\s*\\times(?=\s*[A-Z])", r"\\cross "),
    (r"\\(?:mathbf|boldsymbol|bm|mathit)\s*\{([A-Za-z])\}", r" \1"),
    (r"\\begin\s*\{array\}\s*\{[^{}]*\}", r"\\begin{array}"),        # the column format of an array
    (r"(?<=.)\[(?=\s*(?:$|[,;)}∧∨]|\\c[au]p|\\setminus))", ")"),  # [0,1[
    (r"(?:^|(?<=[,;({=∧∨])|(?<=\\c[au]p)|(?<=\\in)|(?<=\\setminus))\s*\]", "("),  # ]0,1]
    (r"\\\{\s*\\\}", r"\\emptyset "), (r"-\s*(?=\\\{)", r"\\setminus "), (r'"\s*:(?!\s*")', '"='),
    (r',\s*(?=[,∧∨])', ""), (r"\\not\s*=", r"\\ne "), (r"\{([,:])\}", r"\1"),
    (r'("(?:hour|hr|minute|feet|foot|yard|pound|dollar|year|week|day)s?")\s*∧(?=\s*[0-9.]+\s*"(?!\1))', r"\1"),
    (r"\\(angle|triangle)\s*\{(\S*)\}", r"\\\1 \2"), (r"\\log_([0-9])", r"\\log_{\1}"),
    (r"\\[dtc]?(frac|binom)\s*([0-9])", r"\\\1{\2}"), (r"(\\(?:frac|binom)\{[0-9]+\})\s*([0-9])", r"\1{\2}"),
    (r"\\frac\s*\{d([a-z]?)\}\s*\{d([a-z])\}", r"\\derivative{\1}{\2}"),
    (r"(?<![0-9.^_])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)", r"\1\\frac{\2}{\3}"),  # 1 1/2
    (r"\s+_", "_"), (r"\(([0-9A-F]+)\)_", r"\1_"), (r"_\s*\{\s*\(?(\w+)\)?\s*\}", r"_{\1}"),  # (1011)_{ 2 }
    (r"(?<![0-9)])_\{(\w)\}", r"_\1 "), (r"\^\s*\{\s*([a-zA-Z])\s*\}", r"^\1 "),
)]
_TOKEN = re.compile(r'[0-9][0-9A-F]*_(?:[0-9]|\{[0-9]+\})|[A-F][0-9A-F]+_\{[0-9]{2}\}'  # 52_8
                    r'|(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?'
                    r'|"[^"]*"|\\(?:begin|end)\s*\{[a-zA-Z]+\*?\}|\\log(?![A-Za-z])'
                    r"|(?:\\[A-Za-z]+|[A-Za-z])(?:'*(?:_\w|_\{[^{}]*\})?)|\\.|!!|[<>!:=]=|\*\*|\S", re.S)

def normalise(text):
    r"""The tokens of an answer, the same for many spellings: r"2\dfrac{x}3" -> ["2", r"\frac", "{", "x", "}", "3"]"""
    for pattern, new in _SMALL if not text.isascii() else ():  # before NFKC, which makes x2 of x²
        text = pattern.sub(new, text)
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).replace("⁄", "}{").translate(_CHARACTERS)
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
HUGE, TINY, LONG, ZERO, SAME = 1e50, 1e-30, 140, 1e-95, 1e-100       # LONG in bits, SAME relative
_WORK = {"+": 1, "*": 1, "/": 1, "abs": 1, "!": 60, "item": 10}       # others: 15
_LOCK = threading.RLock()  # mpmath functions change the precision of their context while they run
_mp = MPContext()
_mp.dps = 200
# values: one, or one a point, or None; rounded: a decimal of 12 digits; unit: the words behind it
Number = namedtuple("Number", "values letters rounded unit kind", defaults=(frozenset(), False, "", "number"))

def _bits(x):
    return max(x.numerator.bit_length(), x.denominator.bit_length()) if isinstance(x, Fraction) else 0

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
    return (base if 0 < _bits(base) * abs(n) <= MAX_BITS else _float(base))**n

_ARITHMETIC = {"+": operator.add, "*": operator.mul, "/": operator.truediv}
_OPERATIONS = {"^": _power, "abs": abs,
               "!": lambda n: _mp.gamma(_float(n + 1)) if not _bits(n) or n.denominator > 1 or not 0 <= n <= 2500
               else Fraction(math.factorial(int(n))),
               "floor": lambda x: Fraction(math.floor(x) if _bits(x) else int(_mp.floor(x + SAME))),
               "ceil": lambda x: Fraction(math.ceil(x) if _bits(x) else int(_mp.ceil(x - SAME)))}

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
    if with_letters and isinstance(value, _mp.mpc) and not any(isinstance(x, _mp.mpc) for x in args):
        return None
    noise = size < ZERO and (size == 0 or name == "+" or name in _FUNCTIONS)  # e^{-1000} is none
    return Fraction(0) if noise else value if TINY < size < HUGE else None

def constant(n):
    return Number((Fraction(n),))

_SIZES = (1.5, 0.4, 2, 0.2, 7, 1, 0.5, 4, 12, 30)  # at each point: \ln(x-5) has some
_CONSTANTS = {r"\pi": "pi", "e": "e", r"\infty": "inf", "i": "j"}
_LETTERS = {_CHARACTERS[ord(char)].strip() for char in "αβγδεζηθκλμνξρστφχψω"} | {
    "\\" + name for name in "Gamma Delta Lambda Sigma Phi Psi Omega ell".split()}

@lru_cache(1000)
def letter(name):
    """Fixed pseudo-random reals. At six of the ten points signs vary from letter to letter: |x+y| is not |x|+|y|."""
    if name in _CONSTANTS:
        return Number((+getattr(_mp, _CONSTANTS[name]),))
    rng, signs = random.Random(name), sum(map(ord, name)) % 63 + 1  # never 0
    values = [size * rng.uniform(0.6, 1.4) * (-1 if signs >> point & 1 else 1) for point, size in enumerate(_SIZES)]
    return Number(tuple(map(_mp.mpf, values)), frozenset([name]))

def apply(name, *args):                                  # point by point
    units = {arg.unit for arg in args if arg.kind == "number"} - {""}
    if any(arg.kind != "number" for arg in args) or len(units) > 1 or name == "*" and args[0].unit:
        raise ValueError("a structure, 5 feet + 6 inches, 4 feet * 12")
    letters = frozenset().union(*(arg.letters for arg in args))
    rows = [*zip(*(arg.values if arg.letters or not letters else arg.values * len(_SIZES) for arg in args))]
    rounded = any(arg.rounded for arg in args) and all(isinstance(x, Fraction) for x in rows[0])
    return Number(tuple(_compute(name, row, letters) for row in rows), letters, rounded, "".join(units))


# A4. The parser. Without it \frac{1}{2}x and 0.5x stay two strings. Precedence climbing: what is read is carried out.
# But products commute: what is not known is no factor, or \overrightarrow{BA} would be \overrightarrow{AB}.
Group = namedtuple("Group", "kind closer items")  # kind: ( a tuple, { a set, row, \cup ..
Relation = namedtuple("Relation", "sides ops names lone kind", defaults=("relation",))
_SETS = {r"\cup": operator.or_, r"\cap": operator.and_, r"\setminus": operator.sub}
_FLIPPED = {">": "<", r"\ge": r"\le"}
_RELATIONS = {"=", r"\approx", r"\ne", r"\in", "<", r"\le", *_FLIPPED}
_LEVEL = {r"\cup": 1, r"\cap": 1, r"\setminus": 1, ":": 2, r"\over": 3, r"\choose": 3, "+": 4, "-": 4, "*": 5, "/": 5,
          "!": 6, "°": 6, "^": 7}
_DIVISIONS = {r"\frac": "/", r"\binom": "binom", r"\over": "/", r"\choose": "binom"}
_CLOSERS = {"(": ")]", "[": ")]", "{": "}", r"\{": (r"\}",)}
_FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
_COMMAS, _CLOSING = {",", ";", "∧", "∨"}, {")", "]", "}", r"\}"}
_STOPS = {"", "'", "_", "!!", "&", r"\\", r"\rfloor", r"\rceil", *_COMMAS, *_CLOSING, *_LEVEL, *_RELATIONS}
_ACCENTS = {"\\" + name for name in "overline bar vec hat tilde dot widehat overrightarrow mathbb mathcal pmod".split()}
_NAME = r"\{?(?!\\infty|\\pi|\\no|\\neg|\"no)(?:[A-Za-z]|[A-Z]{2}|\"[^\"]+\"|\\[A-Za-z]+)\}?'*(?:_(?:\{[^{}]*\}|.))?"
_LONE_NAME = re.compile(  # x, f(x), |AB|, \angle A, (x,y), a:b, \frac{AB}{CD} ..
    rf"{_NAME}|[A-Zf-hp-wyz](?:_\w|_\{{\w+\}}|')?(?:\^\{{-1\}})?\([\w,]*\)|[|[]\"?\w+\"?[]|]|\({_NAME}(?:,{_NAME})*\)"
    rf"|{_NAME}(?::{_NAME})+|m?\\(?:angle|overline|vec|hat|bar|overrightarrow)\{{?\"?\w+\"?\}}?"
    r"|\\frac(?:\{[A-Z]{2}\}){2}|\\derivative\{.\}\{.\}").fullmatch

def parse(tokens):
    r"""The meaning of an answer. 1 \pm \sqrt2 is a list of two; signs are independent, \mp ties them."""
    count = 1 if r"\mp" in tokens else tokens.count(r"\pm")
    items = []
    for signs in itertools.product("+-", repeat=count):
        choice, other = itertools.cycle(signs), "-" if signs[:1] == ("+",) else "+"
        chosen = [next(choice) if token == r"\pm" else other if token == r"\mp" else token for token in tokens]
        with _LOCK:
            for item in _Parser(chosen, min(MAX_WORK, 2 * MAX_WORK // 2**count)).items("")[0]:
                items += item.items if count and item.kind == "{" else [item]
    return items[0] if len(items) == 1 else Group("{", "}", tuple(dict.fromkeys(items) if count else items))

class _Parser:
    def __init__(self, tokens, work):
        self.tokens, self.work = [*tokens, ""], work                 # "" marks the end
        self.i, self.next, self.depth, self.bars = 0, self.tokens[0], 0, 0      # bars: open |...|

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

    def combine(self, op, left, right):                              # also of sets and matrices
        op = _DIVISIONS.get(op, op)
        if op in _SETS or op == ":":                                 # a \cup b \cup c is one group
            return Group(op, "", (*(left.items if left.kind == op else (left,)), right))
        if op == "binom":
            rest = self.do("!", self.do("+", left, self.do("*", constant(-1), right)))
            return self.do("/", self.do("!", left), self.do("*", self.do("!", right), rest))
        if right.kind in ("matrix", "row") and (op, left.kind) in (("*", "number"), ("+", right.kind)):
            pairs = zip(left.items if op == "+" else [left] * len(right.items), right.items, strict=True)
            return right._replace(items=tuple(self.combine(op, *pair) for pair in pairs))
        quoted = [x.kind == "number" and x.letters and all(name[0] == '"' for name in x.letters) for x in (left, right)]
        if op in "*/" and quoted[1] and not quoted[0]:
            return self.measure(op, left, right)
        return self.do(op, left, right)

    def measure(self, op, left, right):
        r"""5 "cm", 9.8 "m" / "s"^2 and (2,3) "cm" are their numbers; 2 "thirds" is none; x "odd" is not x."""
        words = " ".join(sorted(right.letters)).replace('"', "").split()
        while op == "*" and words and words[0].removesuffix("s") in _SCALES:  # 2.5 million dollars
            left = self.do("*", left, constant(_SCALES[words.pop(0).removesuffix("s")]))
        unit = " ".join(map(_unit, words))
        plain = [re.search("...s$|^.$", word) or _unit(word) in _SHORT | {*_UNITS} for word in words]
        changes = any(word in _CHANGES or re.search("(?<!mon)ths?$|teen$|illions?$|ed$", word) for word in words)
        if changes or words and not any(plain) and left not in (constant(1), constant(-1)):        # 1 apple
            raise ValueError("2 thirds, 2 squared, 2 doubled")
        if left.kind == "number" and not left.letters:
            return left._replace(unit=left.unit or unit)
        return left if unit in _UNITS or unit[-4:] == "unit" else self.do(op, left, right)

    def items(self, *closers):                                       # 1, x = 2; 3
        items, commas = [self.relation()], []
        while self.next in _COMMAS:
            commas.append(self.take())
            items.append(self.relation())
        names = {getattr(item, "lone", "") for item in items}
        if commas and "" not in names:
            ops = {op for item in items for op in item.ops}
            ends = [i + 1 for i, comma in enumerate(commas) if comma == ";"]
            if ends and len(ends) < len(commas):                     # p=5,q=2;p=7,q=2
                items = [Group("(", ")", tuple(items[i:k])) for i, k in zip([0, *ends], [*ends, len(items)])]
            elif len(names) == 1 and ops <= {"<", r"\le", r"\ne"}:   # x < 1 or x > 2
                both = "∧" in commas or r"\ne" in ops or closers == tuple(")]")
                kind = r"\cup" if "∨" in commas else r"\cap" if both else ","
                items = [Group(kind, "", tuple(items))]
        return tuple(items), self.take(*closers)

    def relation(self):                                              # 0 < x \le 5,  f(x) = x^2
        sides, ops, names = [], [], []
        while not sides or self.next in _RELATIONS:
            self.do("item")  # lists are compared item by item
            ops += [self.take()] if sides else []
            start = self.i
            sides.append(self.expression())
            source = "".join(self.tokens[start:self.i])
            names.append(source if _LONE_NAME(source) else "")
        while len(ops) > bool(names[0]) and ops[-1] == r"\approx":   # x = \frac13 \approx 0.33
            if not _same_number(*sides[-2:], tolerance=0.1):
                raise ValueError(r"x = 5 \approx 7 answers twice")
            del sides[-1], names[-1], ops[-1]
        ops = ["=" if op == r"\approx" else op for op in ops]
        if ops and ops[0] in _FLIPPED:                               # 5 > x -> x < 5
            sides, names, ops = sides[::-1], names[::-1], [_FLIPPED.get(op, "mixed") for op in reversed(ops)]
        lone = "".join(names) if sum(map(bool, names)) == 1 else ""
        return Relation(tuple(sides), tuple(ops), tuple(names), lone) if ops else sides[0]

    def expression(self, level=0):  # of the operators that bind tighter than `level`
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError("too deep")
        if sign := self.accept("+", "-"):                            # -x^2 is -(x^2)
            left = self.expression(max(level, _LEVEL["+"]))
            if sign == "-":  # -"apple" is not -1 with a unit
                left = (self.do if left.kind == "number" else self.combine)("*", constant(-1), left)
        else:
            left = self.atom(level)
        while _LEVEL.get(op := self.operator(), 0) > level:
            if self.next == op and op not in "+-":                   # a - b is a + (-b)
                self.take()
            elif re.search("[0-9] ([A-Za-z] )?[0-9][^ ]*$", " ".join(self.tokens[max(self.i - 2, 0):self.i + 1])):
                raise ValueError("5 6, 5 R 6, 5 x 6")
            if op in ("!", "°"):
                left = self.do("!", left) if op == "!" else self.measure("*", left, letter('"deg"'))
            else:
                right = self.expression(_LEVEL[op] - (op == "^"))    # 2^3^2 = 2^9
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
        ahead = "".join(self.tokens[self.i:self.i + 9])
        if token.isdigit() and level <= _LEVEL["*"] and re.match(r"\\frac\{[0-9]+\}\{[0-9]+\}", ahead):
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
            return letter(word if self.operator() != "*" or self.next == "*" else self.rest(_unit(word.strip('"'))))
        known = token[0] != "\\" or name.rstrip("'") in _LETTERS | _CONSTANTS.keys()
        if not known or token in ("f", "g") and self.next == "^":    # f^{-1}(x)
            return letter(self.rest(token, group=token in _ACCENTS))
        if token not in _CONSTANTS and re.match(r"[fg]'* \(|\S+ \((?:[^-+()]*\)|[A-Za-z]\()", f"{token} {ahead}"):
            argument = self.combine("+", constant(1), self.expression(_LEVEL["^"]))
            return self.do("cos", self.combine("*", letter(token), argument))  # f(2x) is not 2f(x)
        return letter(token)                                         # x, \theta, a_1, y'

    def rest(self, name, group=False):  # a name: all up to the end of this side, or of one group
        parts, depth = [], 0
        stops = _STOPS - _LEVEL.keys()
        while depth and self.next or not (group and parts or self.next in stops or self.next[:4] == r"\end"):
            token = self.take()
            depth += (token in _CLOSERS or token[:6] == r"\begin") - (token in _CLOSING or token[:4] == r"\end")
            parts.append(_unit(token.strip('"').casefold()) if len(token) > 3 and token[0] == '"' else token)
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
        while self.tokens[start] not in ("(", "[", "{") and self.operator() == "*" and (
                self.next[0] not in '*([|"' and self.next[1:] not in _FUNCTIONS):
            value = self.combine("*", value, self.expression(_LEVEL["*"]))          # \sin 2x \cos x
        if value.kind == "number" and value.unit == "deg":  # only here a degree is a number
            value = self.do("/", self.do("*", letter(r"\pi"), value), constant(180))._replace(unit="")
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
        return _same_items(*(x.items if x.kind in ("{", ",", *kinds & _SETS.keys()) else (x,) for x in (gold, pred)))
    if kinds == {"number"}:
        with _LOCK:
            return _same_number(gold, pred, listed)
    return len(kinds) == 1 and "relation" not in kinds and gold.closer == pred.closer and (
        len(gold.items) == len(pred.items) and all(map(same, gold.items, pred.items)))

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
    return len(pairs) > (n > 1) and all(_close(g, p, gold.rounded != pred.rounded, tolerance) for g, p in pairs)

def _close(a, b, rounded=False, tolerance=None):         # 0.333333333333 is 1/3, but no decimal is another one
    exact = [isinstance(x, Fraction) and (not rounded or pow(10, MAX_BITS, x.denominator) == 0) for x in (a, b)]
    size = max(abs(_float(a, MAX_BITS)), abs(_float(b, MAX_BITS)))
    if _mp.isinf(size) or not tolerance and (all(exact) or not rounded and max(_bits(a), _bits(b)) > LONG):
        return a == b
    return abs(_float(a, MAX_BITS) - _float(b, MAX_BITS)) <= size * (tolerance or (1e-11 if rounded else SAME))

def _object(node):
    r"""What a lone name is: x = 5 -> 5;  x \in [0,1] -> [0,1];  x > 2 -> (2, \infty);  x + y = 5 stays."""
    if node.kind != "relation":
        return node
    sides = [side for side, name in zip(node.sides, node.names) if not name] or [node.sides[-1]]
    if {*node.ops} <= {"=", r"\in"}:
        numbers = not any(node.names) and all(side.kind == "number" and not side.letters for side in sides)  # 2 + 3 = 5
        orders = [re.findall("[a-z]", name) for name in node.names if name[:1] == "(" or ":" in name]
        named = any(node.names) and all(order == sorted(order) for order in orders) and (
            r"\in" not in node.ops or not node.names[-1])             # 5 \in A
        return sides[0] if (numbers or named) and all(same(sides[0], side) for side in sides[1:]) else node
    if node.ops == (r"\ne",) and node.lone:                        # x \ne 1 -> \R \setminus \{1\}
        return Group(r"\setminus", "", (Group("(", ")", _REALS), Group("{", "}", (sides[0],))))
    shape = tuple(map(bool, node.names))
    if not {*node.ops} <= {"<", r"\le"} or shape not in ((True, False), (False, True), (False, True, False)):
        return node
    opener, low = ("(", _REALS[0]) if shape[0] else ("(" if node.ops[0] == "<" else "[", sides[0])
    closer, high = (")", _REALS[1]) if shape[-1] else (")" if node.ops[-1] == "<" else "]", sides[-1])
    return Group(opener, closer, (low, high))

def _same_relation(gold, pred):
    symmetric = gold.ops in (("=",), (r"\ne",))
    if gold.ops != pred.ops:
        return False
    if any(all(map(same, gold.sides, sides)) for sides in [pred.sides] + [pred.sides[::-1]] * symmetric):
        return True
    if len(gold.ops) > 1 or {side.kind for side in gold.sides + pred.sides} != {"number"}:
        return False
    with _LOCK:  # left - right, up to a factor (positive for < and \le)
        differences = [apply("+", left, apply("*", constant(-1), right)) for left, right in (pred.sides, gold.sides)]
        ratios = [ratio for ratio in apply("/", *differences).values if ratio is not None]
        return (len(ratios) > 1 and ratios[0] != 0 and all(_close(ratios[0], ratio) for ratio in ratios)
                and (symmetric or gold.ops[0] in ("<", r"\le") and _mp.re(_float(ratios[0])) > 0))


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
    ends = [Rational(x.numerator, x.denominator) if isinstance(x, Fraction) else
            oo * int(_mp.sign(x)) if _mp.isinf(x) else Rational(_mp.nstr(x, 60)) for x in values]
    if node.kind in ("{", "number"):
        return FiniteSet(*ends)
    proper = len(ends) == 2 and (ends[0] < ends[1] or ends[0] == ends[1] and node.kind + node.closer == "[]")
    return Interval(*ends, node.kind == "(", node.closer == ")") if proper else None


# ---- Appendix B. Running programs ----------------------------------------------------------------
# A model's program has to be run, and it will try everything that pays. Three questions, each opened by a hack:
#     B.1  Who reports?          print("passed"); exit(0)             who reports on himself reports success
#     B.2  What may cross?       an object that equals everything     and so does who is asked what he is equal to
#     B.3  What may it touch?    os.kill(trainer), open(dataset)      and what no verdict shows is done all the same
# Open: bugs of the kernel or of CPython; timing; weak tests (see check_tests), and tests that ask the program for its
# own opinion (a boolean method of its class, == between two of its objects) or evaluate what it wrote.

import ast
import builtins
import collections
import contextlib
import ctypes
import datetime
import functools
import json
import operator
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import warnings
from decimal import Decimal
from fractions import Fraction

# ---- B.1 Who reports? ----------------------------------------------------------------------------
# The work is divided, and no process is told more than it needs:
#     trainer  -- code, then test by test -->  judge  -- f, 3 -->  player           (and back: 9, then the verdict)
# The player runs the program. For `assert f(3) == 9` the judge, which runs the test, sends it the call f(3), gets plain
# data back and compares. The player never holds a test, an expected value or the channel of the verdicts. Judges are
# forked by a server, a fresh interpreter that runs this appendix alone.

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_locks, _server, _control = collections.defaultdict(threading.Lock), None, None


def _run_tests(code, tests, timeout, memory):
    """-> (for each test a verdict {"passed", "why", "compared"}, seconds that the program had)."""
    todo, verdicts, spent, failures = _read_tests(tuple(tests)), [], 0.0, 0
    while len(verdicts) < len(tests) and (left := 4 * timeout - spent) > 0 and failures < 4:
        began = loaded = None
        try:
            with _connect() as channel, channel.makefile("rwb") as judge:
                _send(judge, {"code": code[:2**20], "limit": timeout, "left": left, "memory": memory})
                _receive(judge)                          # it has a core
                began = time.monotonic()
                loaded = _receive(judge)
                verdicts += [] if loaded["passed"] else [loaded] * (len(tests) - len(verdicts))
                for test in todo[len(verdicts):]:
                    _send(judge, test)
                    verdicts.append(_receive(judge))
                    if verdicts[-1]["over"] or time.monotonic() - began > left:
                        break
                channel.shutdown(socket.SHUT_RDWR)   # not just closed: a fork may have it
        except (_Gone, ConnectionError): # SIGALRM has ended the judge, as time was over; or else
            time.sleep(0.05)             # somebody the server, as poll can tell by now
            if began and _server.poll() is None:
                verdicts += [{"passed": False, "why": "timeout"}] * (1 if loaded else len(tests) - len(verdicts))
        spent, failures = spent + (time.monotonic() - began if began else 0), failures + (not began)
    if failures == 4:
        raise RuntimeError("verify_code: no program can be started on this machine")
    verdicts += [{"passed": False, "why": "no time is left"}] * (len(tests) - len(verdicts))
    # `assert True`, of which HumanEval has some, cannot ask: who passes all the others passes it.
    idle = [not test["named"] and "asks nothing" in v["why"] for test, v in zip(todo, verdicts)]
    if any(v["passed"] for v in verdicts) and all(v["passed"] or i for v, i in zip(verdicts, idle)):
        verdicts = [{**verdict, "passed": True, "why": "passed"} for verdict in verdicts]
    return verdicts, spent


def _connect():
    """A channel to a new judge, from the server, which is started where there is none."""
    global _server, _control
    ours, theirs = socket.socketpair()
    with _locks[os.getpid()], theirs:                # a fork finds that the server is not its child
        if _server is None or _server.poll() is not None:
            with open(__file__, encoding="utf-8") as file:
                text = file.read().partition("\n# ---- Appendix B")[2].partition("\n# ---- Appendix C")[0]
            # Our environment may hold keys. One arena for all threads, or each would take 64 MB.
            env = {"MALLOC_ARENA_MAX": "1", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
            command = [sys.executable, "-I", "-S", "-c", f"#{text}\n_serve()\nos._exit(0)"]
            _control, its_end = socket.socketpair()
            with its_end:
                _server = subprocess.Popen(command, env=env, cwd="/", stdin=its_end, stdout=subprocess.DEVNULL,
                                           start_new_session=True)
            if _control.recv(1) != b"+":
                warnings.warn("verify_code: without Linux and libseccomp.so.2 programs are not confined: they can read "
                              "and write files, use the network and end processes as this user can", stacklevel=4)
        socket.send_fds(_control, [b"+"], [theirs.fileno()])
    return ours


def _serve():
    """The server: fork a judge for every channel that comes in, until the trainer is gone."""
    control = socket.socket(fileno=0)
    for module in _MODULES:
        __import__(module)
    with contextlib.suppress(OSError):                   # made once: the forks find it
        _filter()
    trial = os.fork() or os._exit(0 if _confine(2**30, 9) else 1)
    _serve.confined = os.waitpid(trial, 0)[1] == 0
    control.send(b"+" if _serve.confined else b"-")
    os.dup2(1, 2)                                        # errors of the start were to be seen
    sys.set_int_max_str_digits(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)        # nobody waits for the judges
    signal.signal(signal.SIGALRM, signal.SIG_DFL)        # not as it may be inherited
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    while (received := socket.recv_fds(control, 1, 1))[0]:
        if os.fork() == 0:
            try:
                control.close()
                _judge(socket.socket(fileno=received[1][0]).makefile("rwb"))
            finally:
                os._exit(0)
        os.close(received[1][0])


def _judge(trainer):
    """One program: fork the player, then run test after test as the trainer sends them. It sends a test when the one
    before is done, so none is in this process, or on its way here, when the player is forked."""
    program = _receive(trainer)
    _take_core()
    _send(trainer, "ready")                              # fails if the trainer is gone
    ours, theirs = socket.socketpair()
    os.fork() or _play(theirs, program)
    theirs.close()
    line = _Line(ours.makefile("rwb"), _LENT)
    _confine(2 * program["memory"], program["left"])     # it computes with what the program returns
    # subtle: NotImplemented is true: who returns a string would pass `assert f(1).__lt__(41)`.
    warnings.filterwarnings("error", message="NotImplemented should not be used")
    set_timer = signal.setitimer
    signal.setitimer = signal.alarm = signal.signal = lambda *_: None    # no test stops our clock
    test, seconds = None, max(0.5, program["limit"])
    while True:                                          # until the trainer is gone
        verdict = {"passed": False, "over": False}       # over: no other test can have this player
        set_timer(signal.ITIMER_REAL, seconds)           # SIGALRM ends us: nothing can swallow that
        try:
            _run_test(test, line) if test else line.ask("load", program["code"])
            verdict |= {"passed": True, "why": "passed"}
        except _Gone as error:
            verdict |= {"over": True, "why": str(error)}
        except BaseException as error:                   # but str(error) might ask the program
            text = error.args[0] if error.args and type(error.args[0]) is str else ""
            verdict["why"] = f"{type(error).__name__}: {ascii(text[:200])[1:-1]}".removesuffix(": ")
        set_timer(signal.ITIMER_REAL, 60)                # a trainer that stops must not hold a core
        _send(trainer, {**verdict, "compared": line.asked <= {"look_up", "call"}})
        test, seconds = _receive(trainer), program["limit"]


def _run_test(test, line):
    """Run one test; raises whatever makes it fail."""
    line.asked.clear()
    scope = _Scope(__name__="__main__")
    scope.test, scope.line = test, line
    sys.modules["solution"] = solution = types.ModuleType("solution")      # from solution import f
    solution.__getattr__ = lambda name: line.ask("look_up", name) if name[:2] != "__" else getattr(None, name)
    exec(compile(test["text"], "<test>", "exec"), scope)
    for name, value in list(scope.items()):              # as pytest does; not if the test calls it
        if type(value) is types.FunctionType and name[:4] == "test" and test["text"].count(f"{name}(") == 1:
            value()
    if not line.asked:
        raise AssertionError("the test asks nothing of the program")


class _Scope(dict):
    """The global names of a test: what it does not define and is not built in, is the program's."""
    def __missing__(self, name):
        if name.startswith("__") or hasattr(builtins, name) and name not in self.test["own"]:
            raise KeyError(name)
        if name in sys.stdlib_module_names and f"{name}." in self.test["text"]:
            return __import__(name)                      # math.isclose(..), not imported
        if name in self.test["missing"]:                 # or the program's would return True
            raise NameError(f"the test does not define {name}")
        return self.line.ask("look_up", name)


def _play(channel, program):
    """The player: do what the judge asks for. Nothing here depends on the program's honesty."""
    os.dup2(channel.fileno(), 0)
    os.closerange(3, 2**16)                              # 1 and 2 are /dev/null
    sys.stdin = None
    sys.modules["solution"] = types.ModuleType("solution")   # dataclasses look it up there
    line = _Line(socket.socket(fileno=0).makefile("rwb"), _SERVED)
    if _confine(program["memory"], program["left"]) or not _serve.confined:
        while True:
            line.answer(*_receive(line.channel))


@functools.lru_cache(1024)
def _read_tests(tests):
    """-> for each test {"text", "named", "free", "own", "missing"}: has it names; which does it not define; which
    built-in ones are the program's (if there are no others, the task is to write `sum`); which are helpers that it
    forgot, whose verdict would be the program's: close in `assert close(f(1), 2.5)`. Of two free names (if no class)
    that is one which in an assert judges values, is compared with the other or stands before a dot, and only so."""
    def under(nodes):
        return {part for node in nodes for part in ast.walk(node)}
    todo, asked, own = [], set(), {*dir(builtins)}
    for text in tests:
        try:
            nodes = under([ast.parse(text)])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            nodes = set()
        names = {node for node in nodes if isinstance(node, ast.Name)}
        bound = {getattr(node, key, "") for node in nodes for key in ("name", "asname", "arg")}
        bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        free = {node.id for node in names} - bound
        own = own & free if free <= {*dir(builtins)} else set()
        free -= {*dir(builtins), *sys.stdlib_module_names}
        if sum(name[0].islower() or name[1:].isupper() for name in free) > 1:
            sides = {node: [node.left, *node.comparators] for node in nodes if isinstance(node, ast.Compare)}
            theirs = {name for name in names if name.id in free}
            judging = under(node for node in nodes if isinstance(node, ast.Assert)) or nodes
            judging -= under(node for node in sides if not any(type(side) is ast.Constant and
                                                               type(side.value) is bool for side in sides[node]))
            names -= {node.func for node in judging if isinstance(node, ast.Call) and len(names & under([node])) > 1}
            names -= {node.value for node in nodes if isinstance(node, ast.Attribute)}
            names -= under(node for node in sides if sum(bool(theirs & under([side])) for side in sides[node]) > 1)
        asked |= {node.id for node in names}
        todo.append({"text": text, "named": bool(bound - {"", None} or names), "free": [*free]})
    return [{**test, "own": [*own], "missing": [*{*test["free"]} - asked]} for test in todo]


# ---- B.2 What may cross? -------------------------------------------------------------------------
# An object that equals everything passes every comparison. So objects stay where they are: plain data crosses, as JSON
# (pickle and marshal run code where they are read); of the rest the other end gets a reference that equals nothing.

class _Gone(BaseException):
    """The other end is lost. Not an Exception, or a test that expects one might take it so."""


def _send(channel, message):
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


def _receive(channel):
    try:
        line = channel.readline(2**24)                   # bytes: the largest result there can be
        if line.endswith(b"\n"):
            return json.loads(line)
    except (OSError, ValueError, RecursionError) as error:
        raise _Gone("the program broke the line") from error
    raise _Gone("a result too large" if line else "the program ended")


# Plain data that JSON does not know: what its constructor makes it from. Subclasses come first, and cross as these.
_PLAIN = {
    int: lambda x: [int.__int__(x)], float: lambda x: [float.__float__(x)], str: lambda x: [str.__str__(x)],
    complex: lambda x: [x.real, x.imag], collections.Counter: lambda x: [dict(x)],
    collections.OrderedDict: lambda x: [dict(x)], dict: lambda x: [[[*item] for item in x.items()]],
    **dict.fromkeys([list, tuple, set, frozenset, bytes, bytearray, collections.deque], lambda x: [[*x]]),
    **dict.fromkeys([range, slice, Fraction, Decimal, datetime.datetime, datetime.date, datetime.time,
                     datetime.timedelta], lambda x: [*x.__reduce__()[1]])}
_CONSTRUCTORS = {kind.__name__: kind for kind in _PLAIN}
# Types cross by name. Not `type`: with it, the judge could be made to make a class that equals all.
_TYPES = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and kind is not type}


class _Line:
    """One end of the line between judge and player. To ask is to wait for the answer and, meanwhile, to do what the
    other end asks: f(g) with a function g of the test calls back into the test. Objects cross as numbers."""
    def __init__(self, channel, operations):
        self.channel, self.operations, self.lock = channel, operations, threading.RLock()
        self.objects, self.theirs, self.asked = {}, {}, set()

    def pack(self, value):
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) is list:
            return [self.pack(item) for item in value]
        if type(value) is _Remote:
            return {"yours": [value._number]}
        for kind, arguments in _PLAIN.items():
            if isinstance(value, kind):
                return {kind.__name__: self.pack(arguments(value))}
        if isinstance(value, type):                      # by name; an exception with its own bases
            base = next(base for base in value.__mro__ if _TYPES.get(base.__name__) is base)
            if value is base or issubclass(base, BaseException):
                own = value.__mro__[:value.__mro__.index(base)]
                self.objects |= {id(kind): kind for kind in own}
                return {"type": [base.__name__, *map(id, own)]}
        self.objects[id(value)] = value      # it lives as long as the line, so the id stays its own
        return {"mine": [id(value)]}

    def unpack(self, data):
        if type(data) is list:
            return [self.unpack(item) for item in data]
        if type(data) is not dict:
            return data
        (key, content), = data.items()
        special = {"type": self.type_of, "yours": self.objects.get,      # one object, one reference: `is` works
                   "mine": lambda number: self.theirs.setdefault(number, _Remote(self, number))}
        return (special.get(key) or _CONSTRUCTORS[key])(*self.unpack(content))

    def type_of(self, name, *numbers):
        kind = _TYPES[name]
        if self.operations is _LENT and issubclass(AssertionError, kind):
            numbers = *numbers, name     # a subclass: else a test's `except Empty:`, if the program
        for number in reversed(numbers): # defines Empty, could catch the test's own `assert False`
            kind = self.theirs.setdefault(number, type(name, (kind,), {}))
        return kind

    def ask(self, operation, *arguments):
        with self.lock:
            with contextlib.suppress(OSError):           # noticed when there is no answer
                _send(self.channel, [operation, self.pack(list(arguments))])
            while (message := _receive(self.channel))[0] not in ("value", "error"):
                self.answer(*message)
        value = self.unpack(message[-1])
        if operation != "look_up" or message[0] == "value" and type(value) is not _Remote:
            self.asked.add(operation)                        # but a name alone asks nothing
        if message[0] == "value":
            return value
        kind = NameError if operation == "look_up" else self.type_of(*message[1])    # KeyError means: look at builtins
        # subtle: StopIteration would end a loop of the test, silently: zip(map(f, xs), expected)
        ends = issubclass(kind, (StopIteration, StopAsyncIteration)) and operation != "next"
        raise RuntimeError(*value) if ends or not issubclass(kind, (Exception, SystemExit)) else kind(*value)

    def answer(self, operation, arguments):
        try:
            reply = "value", self.pack(self.operations[operation](*self.unpack(arguments)))
        except BaseException as error:
            reply = "error", self.pack(type(error))["type"], self.pack(list(error.args))
        _send(self.channel, reply)


class _Remote:
    """An object of the other process. A test can call, iterate, index and print it, use its attributes and compare it
    with another. An operation with a value that the test knows (it == 7, it - 1.25) is not passed on: it would tell the
    program what it is compared with, and leave the verdict to it."""
    def __init__(self, line, number):
        vars(self).update(_line=line, _number=number)

    def __getattr__(self, name):
        if name.startswith("__") or name in _YES_NO:
            raise AttributeError(f"an object of the program has no {name} here")
        return self._line.ask("getattr", self, name)

    def __call__(self, *args, **kwargs):
        value, after = self._line.ask("call", self, list(args), kwargs)
        for old, new in zip(args, after if value is None else []):   # in place, like list.sort
            if type(old) is type(new) and type(old) in (list, dict, set):
                old.clear()
                old.__init__(new)
        return value

    def __eq__(self, other, operation="eq"):
        return type(other) is _Remote and self._line.ask(operation, other, self) is True
    __instancecheck__ = functools.partialmethod(__eq__, operation="isinstance")


# What built-in types answer with yes or no: where a string was due, the program's object would answer itself.
_YES_NO = {name for kind in (str, float, set) for name in dir(kind) if name[:2] == "is" or name[-4:] == "with"}
_ALONE = "setattr next len iter str repr hash bool abs neg mul getitem setitem delitem".split()
_AMONG_THEM = "lt gt le ge add sub truediv floordiv mod pow matmul and_ or_ xor".split()


def _forward(name):
    def method(self, *operands):
        if name in _AMONG_THEM and type(operands[0]) is not _Remote:
            raise TypeError(f"{name} of an object of the program and {type(operands[0]).__name__}")
        return self._line.ask(name, self, *operands)
    setattr(_Remote, f"__{name.strip('_')}__", method)
    return getattr(builtins, name, None) or getattr(operator, name)


_LENT = {"iter": iter, "next": next, "call": lambda function, args, kwargs: [    # what the player may ask of the judge
    value := function(*args, **kwargs), args if value is None else []]}
_SERVED = {**_LENT, "eq": operator.eq, "getattr": getattr, "isinstance": isinstance,
               "look_up": lambda name: getattr(sys.modules["solution"], name),
               "load": lambda code: exec(compile(code, "<solution>", "exec"), vars(sys.modules["solution"])),
               **{name: _forward(name) for name in _ALONE + _AMONG_THEM}}


# ---- B.3 What may it touch? ----------------------------------------------------------------------
# os.kill(trainer, 9), open(dataset): a program that cannot forge the verdict may end the run, or read the answers. So
# judge and player give up, for good, everything but computing, threads, time and asyncio: the kernel refuses all other
# system calls, files and imports (done before) too, and some but in one form: threads, sockets as a pair of their own.

_ALLOWED = """read write close fstat lseek mmap munmap mremap mprotect brk futex exit exit_group getrandom
rt_sigaction rt_sigprocmask rt_sigreturn restart_syscall sigaltstack set_robust_list rseq sched_yield sched_getaffinity
getpid getppid gettid uname getcwd getrusage times time gettimeofday clock_gettime clock_getres clock_nanosleep
nanosleep alarm getitimer setitimer poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait
recvfrom""".split()
_CONDITIONS = {"clone": [(0, 0x7E030000, 0x10000)], "socketpair": [(0, 2**32 - 1, 1), (1, 15, 1)],
               "sendto": [(4, 2**64 - 1, 0)], "ioctl": [(1, 2**32 - 1, 0x5421)], "madvise": [(2, 2**32 - 32, 0)]}
_MODULES = """__future__ array asyncio bisect calendar cmath collections.abc concurrent.futures.thread csv dataclasses
difflib encodings.cp1252 encodings.rot_13 encodings.utf_16 fcntl graphlib html ipaddress pathlib pickle queue resource
secrets shlex sqlite3 statistics tempfile timeit unittest.mock urllib.parse xml.etree.ElementTree _strptime""".split()


@functools.cache
def _filter():
    """These rules (man 3 seccomp_init) -> (libseccomp, rules). OSError where it is missing."""
    allow, not_permitted, no_such_call, masked_equal = 0x7FFF0000, 0x5000D, 0x50026, 7
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(seccomp.seccomp_init(not_permitted))
    for name in [*_ALLOWED, *_CONDITIONS, "clone3"]:     # clone3 hides its flags: clone will do
        conditions = [struct.pack("IiQQ", i, masked_equal, *rest) for i, *rest in _CONDITIONS.get(name, [])]
        verdict = no_such_call if name == "clone3" else allow
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        seccomp.seccomp_rule_add_array(rules, verdict, number, len(conditions), b"".join(conditions))
    return seccomp, rules


def _confine(memory, seconds):
    """Give it up -> whether the kernel agrees. memory: bytes beyond what the interpreter has."""
    import resource                      # Windows lacks it, and fcntl
    limits = {"CPU": int(seconds) + 2, "NOFILE": 64, "CORE": 0}
    with contextlib.suppress(OSError):
        limits["AS"] = memory + int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    for name, value in limits.items():
        what = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(what, [min(value, resource.getrlimit(what)[1] % 2**64)] * 2)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the parent
        seccomp, rules = _filter()
        return seccomp.seccomp_load(rules) == 0
    return False


def _take_core():
    """Wait for a core: time is wall time, and with more programs than cores good ones would fail. Each core is a byte
    of a file, for one process to lock; the lock ends with the process, however that ends."""
    import fcntl
    with contextlib.suppress(OSError):                   # no place for files: no turns
        file = os.open(f"/tmp/rlvr-cores-{os.getuid()}", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        for n in range(_CORES + 1):              # look for a free one, then queue for the first
            with contextlib.suppress(BlockingIOError, PermissionError):
                return fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB * (n < _CORES), 1, (os.getpid() + n) % _CORES)


# ---- Appendix C. Files: of problems, and of your own functions -----------------------------------
import difflib
import gzip
import importlib
import traceback
from pathlib import Path


class DataError(Exception):
    """Something that was asked for cannot be had or read: the message says where and what to do."""


def find(spec: str, known: dict, what: str):
    """What is called spec: one of `known`, or `file.py:name`, a function or callable in your own file."""
    path, colon, name = spec.rpartition(":")
    names = {key: value for key, value in vars(_import_file(path)).items() if callable(value)} if colon else known
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names) or names
    raise DataError(f"there is no {what} {name!r}{f' in {path}' * bool(colon)}: choose {', '.join(near)}"
                    + ", or file.py:name" * (not colon))


def _import_file(path):
    """The module in that file. Python imports a file once, so two flags may name the same one."""
    path = Path(path).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise DataError(f"{path}: there is no such Python file")
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        line = getattr(error, "lineno", traceback.extract_tb(error.__traceback__)[-1].lineno)
        raise DataError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise DataError(f"{path}: another module is called {path.stem!r}: give your file another name")
    return module


def read_problems(path) -> list[dict]:
    """The problems of a .jsonl file (one object a line) or a .json file (one list), also gzipped: "problem" or
    "question"; "answer" (text, a number, GSM8K's solution #### answer) or "tests" (asserts); what else there is."""
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as file:
            text = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if text.lstrip().startswith("["):
        return [_problem(row, f"{path}, entry {n}") for n, row in enumerate(_read_json(text, path), 1)]
    lines = [(f"{path}, line {n}", line) for n, line in enumerate(text.split("\n"), 1)]
    return [_problem(_read_json(line, where), where) for where, line in lines if line.strip()]


def _read_json(text, where):
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()       # half a character would only fail much later
        return value
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON in UTF-8 ({error})") from None


def _problem(row, where):
    row = {name.lower(): value for name, value in row.items()} if isinstance(row, dict) else {}
    problem, answer, tests = row.get("problem") or row.get("question"), row.get("answer"), row.get("tests")
    if answer is None and isinstance(tests, list) and all(isinstance(test, str) for test in tests):
        answer = "\n".join(tests)
    answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    if not isinstance(problem, str) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
        raise DataError(f'{where}: needs "problem" (text) and "answer" (text or a number), like '
                        '{"problem": "1+1=?", "answer": "2"}, or "tests" (a list of asserts) for a program')
    solution, mark, last = str(answer).rpartition("####")
    extra = {"solution": solution.strip()} if mark else {}   # for prompts with examples
    return {**row, "problem": problem, "answer": last.strip(), **extra}


def hub_problems(name: str, *patterns) -> list[dict]:
    """The problems of a data set on the Hugging Face hub: of its largest file; the others only describe it."""
    from huggingface_hub import snapshot_download            # only here: verifying needs no network
    patterns = patterns or ("*.json", "*.jsonl")
    try:
        folder = Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
    except Exception as error:
        raise DataError(f"{name}: cannot be fetched from the hub ({str(error).strip()[:200]}). Check the network, "
                        "HF_ENDPOINT and HF_HUB_OFFLINE, or pass a file as --task") from error
    files = [file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()]
    if not files:
        raise DataError(f"{name}: holds no {' or '.join(patterns)}; convert what it holds and pass it as --task")
    return read_problems(max(files, key=lambda file: file.stat().st_size))
