r"""verifiers.py - what counts as right: from a completion to a reward, with rules and no model.

What you will learn: how the answer is found in a text (section 1) and compared with the truth (2),
what else can be checked (3), how verdicts become one number (4), and how problems, the sentence
that asks for the answer and the reward that reads it belong together (5). The appendices can wait:
A compares answers by value, B runs programs, C reads files. More verifiers and rewards, and how
policies cheat, are in notebooks/rewards.py.

    python verifiers.py      a table: completions, what is read out of them, and the rung that decided

A completion is hostile text: no answer is ever evaluated by Python or sympy, every size is checked
before it is paid for, and programs run where there is nothing to reach and nothing to report on.
Sources: MATH (arXiv 2103.03874), DeepSeek-R1 (2501.12948).
"""

import ast
import math
import operator
import random
import re
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

MAX_CHARS = 1500          # longer answers are compared as strings only


# ---- 1. Extract: the last box of a completion ------------------------------------------------------------------------
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.S)                      # \\. swallows \{ and \}: they are content, not braces


def extract_boxed_answer(text: str) -> str | None:
    r"""The content of the last \boxed{...} or \fbox{...} or None. Linear in len(text).

    A malformed *last* box is no answer even when an earlier one was right: `\boxed{5} ... \boxed{7` gives None.
    Falling back to the earlier box would reward a policy for boxing every candidate on its way.
    """
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


# ---- 2. The ladder: equal strings, decimals, spelling, meaning -------------------------------------------------------
_DECIMAL = re.compile(r"-?(?:[0-9]{1,1000}(?:\.[0-9]{1,1000})?|\.[0-9]{1,1000})").fullmatch
_RUNGS = {"{": "list or set", "(": "tuple or interval", "[": "interval", r"\cup": "union"}
_NAN = re.compile(r"(?<![a-z])nan(?![a-z])", re.I).search


def explain_grade(predicted: str, ground_truth: str) -> tuple[bool, str, str, str]:
    """-> (verdict, the rung that decided, normalised prediction, normalised ground truth). The only code path.

    Where values were compared, the rung is the kind of the ground truth: "number", "list or set", "matrix" ...
    """
    if not (isinstance(predicted, str) and isinstance(ground_truth, str)):
        return False, "no answer", "", ""
    pred, gold = predicted.strip(), ground_truth.strip()
    if not pred or not gold or _NAN(pred[:MAX_CHARS]) or _NAN(gold[:MAX_CHARS]):
        return False, "no answer", pred, gold
    if pred == gold:                                                 # rungs 1 and 2, the textbook's: the same string ..
        return True, "string", pred, gold
    if _DECIMAL(pred) and _DECIMAL(gold):                            # .. or the same number (exactly: as a float
        return Fraction(pred) == Fraction(gold), "decimal", pred, gold   # 2^53 + 1 is 2^53)
    if max(len(pred), len(gold)) > MAX_CHARS:
        return False, "too long", pred, gold
    p, g = normalise(pred), normalise(gold)
    shown = " ".join(p), " ".join(g)
    if p == g:
        return bool(p), "spelling", *shown
    if _word(p) and _word(p) == _word(g) and '"' in "".join(p + g):
        return True, "words", *shown
    try:
        p, g = parse(p), parse(g)
        return same(g, p), _RUNGS.get(g.kind, g.kind), *shown
    except (ArithmeticError, ValueError):
        return False, "unreadable", *shown


def _word(tokens):                       # (C) -> c, "no" "solution" -> nosolution, x + 1 -> ""
    word = re.sub('[()" ]', "", "".join(tokens))
    return word.casefold() if word.isalpha() else ""


def grade_answer(predicted: str, ground_truth: str) -> bool:
    r"""Is `predicted` the same answer as `ground_truth`?  Never raises, never hangs, always the same verdict.

    Equal when a mathematician who reads only the two strings would say that they denote the same object. Debatable:
    decimals            0.5 is 1/2; 0.33 is not 1/3, which takes 12 digits or more
    percent, money,     dropped with every other unit: 50\% is 50 (and so not 0.5), 90^\circ is 90, 5\text{ cm} is 5;
    degrees, units      a degree sign counts only inside a function: \sin 30^\circ is 1/2
    x = 5               is 5; but x + y = 5 is not, and a free letter never equals a number
    order               (1, 2) has one, lists and \{1, 2\} have none; (0, 1) is not [0, 1]; x > 2 is (2, \infty)
    2\frac13            is a mixed number; \frac123 is (1/2)3, as in TeX; x^10 and \sqrt10 are what was meant
    \log                has base 10; 52_8 is a number in base 8; letters and roots stand for real numbers
    """
    try:
        return explain_grade(predicted, ground_truth)[0]
    except Exception:                # a last net, say for a caller whose stack is nearly full: rewards must not raise
        return False


# ---- 3. Verifiers: completion and truth in, named scores out ---------------------------------------------------------

def reward_rlvr(response: str, ground_truth: str) -> float:
    """The chapter's whole reward: 1.0 if the last boxed answer is right, 0.0 if wrong or missing."""
    predicted = extract_boxed_answer(response)
    return 0.0 if predicted is None else float(grade_answer(predicted, ground_truth))


_UNTAGGED = r"((?:(?!</?(?:think|answer)>).)*)"
_TAGGED = re.compile(rf"\s*<think>{_UNTAGGED}</think>\s*<answer>{_UNTAGGED}</answer>\s*", re.S)


def split_tags(rollout: str) -> tuple[str, str] | None:
    """(think, answer) of <think>...</think><answer>...</answer>, else None (DeepSeek-R1, section 2.2.2).

    Each tag once, in this order, and only white space outside: no answer before the thinking, no
    second answer to choose from.
    """
    form = _TAGGED.fullmatch(rollout)
    return form and form.groups()


def verify_math(rollout: str, truth: str) -> dict:
    r"""format: 1.0 if the tags are in order; answer: 1.0 if the last box inside <answer> is right.

    "<think>2+2=4</think><answer>\boxed{4}</answer>" with "4": format 1.0, answer 1.0, extracted "4".
    Without the tags nothing is extracted, so a bare right answer earns nothing.
    """
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
    "tests_total", "frac", "seconds", "compared", "why"}. Appendix B says how.

    timeout: seconds for each test; memory_mb: beyond what the interpreter takes; compared: in how many
    tests nothing but plain data decided (`assert f(3) == 9`); why: one line for each test. Programs have
    the standard library, threads and a directory; no other packages, processes or network. Never
    raises for anything that a program does; safe to call from many threads.
    """
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout}, not a number of seconds above 0")
    if not isinstance(code, str) or not all(isinstance(test, str) for test in tests):
        raise TypeError("verify_code takes a program and a list of tests, all of them strings")
    began = time.monotonic()
    verdicts = run_tests(code, tests, timeout, memory_mb)
    passed = sum(verdict["passed"] for verdict in verdicts)
    compared = sum(bool(verdict.get("compared")) for verdict in verdicts)
    return {"tests_passed": passed, "tests_total": len(tests), "frac": passed / max(1, len(tests)),
            "seconds": time.monotonic() - began, "compared": compared, "why": [v["why"] for v in verdicts]}


# ---- 4. Rewards: scores in, one number out ---------------------------------------------------------------------------
# A reward is a function (completion, problem) -> (number, parts). problem has "problem", "answer", the
# other columns of the data and, in training, "step". Of the parts, "accuracy" (0 to 1) is what an
# evaluation counts and "answered" says that there was an answer; all are logged as means. A completion
# that was cut off earns 0 whatever is said here.

@dataclass
class RuleSpec:
    """One term of a reward: what counts (a verifier's output -> 0 to 1) and how much."""

    name: str
    weight: float
    score_fn: Callable[[dict], float]


def aggregate(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = sum_i w_i r_i. A sum, not a product: the right form with a wrong answer must stand above
    neither of them, or there is nothing to climb at the start."""
    return sum(rule.weight * rule.score_fn(verifier_out) for rule in rules)


MATH_RULES = [RuleSpec("format", 0.1, lambda v: v["format"]), RuleSpec("answer", 1.0, lambda v: v["answer"])]
FORMAT_RULES = [RuleSpec("structure", 1.0, lambda v: v["structure"]),
                RuleSpec("think_length", 0.2, lambda v: v["think_length"])]
CODE_RULES = [RuleSpec(name, weight, operator.itemgetter(name))
              for name, weight in (("syntax", 0.1), ("tests", 0.7), ("speed", 0.1), ("safety", 0.1))]


def boxed_reward(completion, problem):
    """1 for a right last box, else 0: the chapter's reward, for models that know no tags."""
    right = reward_rlvr(completion, problem["answer"])
    return right, {"accuracy": right, "answered": float(extract_boxed_answer(completion) is not None)}


def tagged_reward(completion, problem):
    """DeepSeek-R1-Zero's reward: accuracy + 0.1 * format, both on the tagged form."""
    out = verify_math(completion, problem["answer"])
    parts = {"accuracy": out["answer"], "format": out["format"], "answered": float(out["extracted"] is not None)}
    return aggregate(out, MATH_RULES), parts


def exact_reward(completion, problem):
    """1 if the whole completion is the answer, for a model too small for markup; format: its digits."""
    text, answer = completion.strip(), problem["answer"]
    right, form = float(text == answer), float(text.isdigit() and len(text) == len(answer))
    return right, {"accuracy": right, "answered": float(text != ""), "format": form}


# Words as the chapter counts them, by white space; but a Chinese character is one, and so are 16
# characters on end, or leaving out the spaces would hide the length.
WORD = re.compile(r"[\u3040-\u9fff]|[^\s\u3040-\u9fff]{1,16}")
_SCRIPTS = [re.compile(letters) for letters in (            # Latin without x and \frac; Han and kana; ..
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
    lang   -w_lang if the thinking mixes scripts: a cliff, as a slope would pay 9 % more than 11 %

    Cut off or with broken tags, all is 0; so it is without any tags (the chapter's code) unless
    needs_tags is False (its table): then a right box earns w_acc.
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


_DANGEROUS = set("os subprocess socket shutil ctypes signal multiprocessing importlib builtins gc inspect posix pty "
                 "urllib http requests pickle eval exec open modules _getframe __import__ __builtins__ __globals__ "
                 "__subclasses__".split())
MAX_CODE = 20_000                                                # characters of one program
warnings.filterwarnings("ignore", module="<completion>")         # "\d" in a model's string is no news


def read_program(code: str) -> tuple[bool, bool]:
    """(is it Python, does it name nothing dangerous), unrun: a signal for training, no protection."""
    try:
        nodes = list(ast.walk(ast.parse(code[:MAX_CODE], "<completion>")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, False
    named = [node for node in nodes if not isinstance(node, ast.FunctionDef)]        # def open(self) is harmless
    names = {getattr(node, field, None) for node in named for field in ("id", "attr", "name", "module")}
    safe = not any(str(name).partition(".")[0] in _DANGEROUS for name in names)
    return len(code) <= MAX_CODE, safe and len(code) <= MAX_CODE


def code_reward(response, problem):
    """0.1 syntax + 0.7 tests + 0.1 speed + 0.1 safety, for the last program of the completion.

    problem: "tests", a list of asserts; and optionally "before", what runs ahead of the program;
    "baseline", the share of the tests that nothing earns (check_tests), so that tests is how far the
    share passed is above it; "seconds", after which speed is 0.5 (5). Departure: speed and safety
    count only where tests does; in the chapter `pass` is fast and safe, and so worth 0.3.
    """
    code = extract_code(response)
    syntax, safe = read_program(code) if code else (False, False)
    out = {"frac": 0.0, "seconds": 0.0}
    if syntax:
        out = verify_code(problem.get("before", "") + code, problem["tests"])
    least = min(problem.get("baseline", 0.0), 1 - 1e-9)
    tests = max(0.0, (out["frac"] - least) / (1 - least))
    speed = 0.5 if out["seconds"] > problem.get("seconds", 5.0) else 1.0
    works = float(tests > 0)
    scores = {"syntax": float(syntax), "tests": tests, "speed": works * speed, "safety": works * safe}
    parts = {"accuracy": float(out["frac"] == 1.0), "answered": float(code is not None), **scores}
    return aggregate(scores, CODE_RULES), parts


REWARDS = {"boxed": boxed_reward, "tagged": tagged_reward, "exact": exact_reward, "code": code_reward,
           "r1-zero": ReasoningReward(w_lang=0.0, w_ramble=0.0).reward, "r1": ReasoningReward().reward}


def get_reward(spec: str):
    """The reward of that name, or `file.py:name`."""
    return find(spec, REWARDS, "reward")


# ---- 5. Tasks: problems, the sentence that asks for the answer, and the reward that reads it -------------------------

@dataclass
class Task:
    """A problem is a dict with at least "problem" and "answer", both text."""

    name: str
    train: list[dict]
    test: list[dict]               # never trained on
    instruction: str               # a format string with {problem}; it asks for what the reward reads
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
    note = "synthetic; train and test split by a hash"
    return Task("arithmetic", [*train.values()], [*test.values()], "{problem}", tagged_reward, note)


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


def get_task(spec: str, prompt: str | None = None, stops=()) -> Task:
    """The task of that name, of a function `file.py:name`, or of a file of problems (read_problems).

    prompt: another instruction, with {problem} in it; stops: other texts that end a completion.
    """
    is_file = str(spec).endswith((".jsonl", ".json", ".gz"))
    task = _file_task(spec) if is_file else find(spec, TASKS, "task")()
    if not isinstance(task, Task):
        raise DataError(f"task {spec}: the function returns {type(task).__name__}, not verifiers.Task")
    if prompt is not None and "{problem}" not in prompt:
        raise DataError("a prompt needs {problem} where the problem goes, as in 'Question: {problem}\\nAnswer:'")
    if prompt is not None:                                   # other braces, as of \boxed{}, stay braces
        prompt = prompt.replace("{", "{{").replace("}", "}}").replace("{{problem}}", "{problem}")
    return replace(task, instruction=prompt or task.instruction, stops=tuple(stops) or task.stops)


# ---- Appendix A. Equal by value --------------------------------------------------------------------------------------
import decimal
import functools
import itertools
import threading
import unicodedata
from collections import namedtuple

from mpmath.ctx_mp import MPContext

MAX_DEPTH = 50            # nested brackets, fractions, exponents
MAX_BITS = 2**14          # an exact number larger than this becomes a 60-digit float
MAX_WORK = 1000           # units of work to evaluate one answer (see _WORK)


# ---- A1. Normalise: one spelling for what looks the same -------------------------------------------------------------
_GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
_CHARACTERS = str.maketrans({
    **{char: f"\\{name} " for char, name in zip("αβγδεζηθκλμνξπρστφχψω", _GREEK.split())},               # π -> \pi
    **dict.fromkeys("−–—‐‑‒", "-"), **dict.fromkeys("×·⋅∙•∗", "*"), **dict.fromkeys("÷⁄∕", "/"),
    "º": "°", "˚": "°", **dict.fromkeys('∠£€¥"“”\u200b\u200c\u200d\u2060\ufeff'), "′": "'", "’": "'", "∣": "|",
    "√": r"\sqrt ", "∛": r"\sqrt[3]", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": "=",
    "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∈": r"\in ", "∅": r"\emptyset ",
    "⟨": "(", "⟩": ")", "ℝ": r"\R ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil "})
_SMALL = [(re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+"), r"^{\g<0>}"), (re.compile("[₀-₉ₙ]+"), r"_{\g<0>}"),       # x¹² -> x^{12}
          (re.compile("[¼½¾⅐-⅞]"), r"\\frac{\g<0>}")]                # 3½ -> 3\frac{½}, which NFKC makes 3\frac{1⁄2}
_SYNONYMS = {"\\" + old: new for new, olds in {
    r"\frac": "dfrac tfrac cfrac nicefrac", r"\binom": "dbinom tbinom", r"\le": "leq leqslant", r"\ge": "geq geqslant",
    r"\ne": "neq", "<": "lt", ">": "gt", "=": "approx", "*": "cdot times ast", "/": "div", r"\{": "lbrace",
    r"\}": "rbrace", "|": "lvert rvert vert mid | Vert", "[": "lbrack", "]": "rbrack", r"\infty": "infinity",
    r"\arcsin": "asin", r"\arccos": "acos", r"\arctan": "atan", r"\log": "lg", r"\epsilon": "varepsilon",
    r"\phi": "varphi", r"\setminus": "backslash", "(": "langle", ")": "rangle",
    "": "displaystyle textstyle boxed mathbf boldsymbol bm mathit mathcal mathbb hline angle triangle",
}.items() for old in olds.split()}

_TRIG = "sin cos tan cot sec csc".split()
_FUNCTIONS = {*_TRIG, *("arc" + name for name in _TRIG), "sinh", "cosh", "tanh", "ln", "log", "exp"}
_BARE_NAMES = "|".join(sorted(_FUNCTIONS)) + "|sqrt|infty|infinity|pi|alpha|beta|gamma|theta|lambda|phi|omega"
_UNITS = ("cm|mm|km|ft|yd|mi|kg|mg|lbs?|oz|hrs?|mins?|secs?|mph|kph|ml|mL|USD|pct|deg|days?|cents?|cups?|degrees"
          "|percent|miles|dollars|inches|feet|meters|hours|units")
_SPACE = r"(?:(?<!\\)\\(?:[,!;:]|\s|$)|\s|~)"


def _quote(match):
    r"""\text{ cm} -> "cm", one opaque name; but \text{and} -> a comma, \text{2/3} -> 2/3, \mathrm{e} -> e."""
    content = re.sub(rf"{_SPACE}+", " ", match[1]).strip(" ,:")
    if re.match("(?:and|or)(?![a-z])", content.lower()):             # 5 \text{ or more} is not 5
        return ", " + content.partition(" ")[2]
    if content in _FUNCTIONS - {"sec"}:                              # a second, not a secant
        return f"\\{content} "
    if content in ("e", "i") or not re.search("[^\\W\\d]", content) or re.search("[0-9]", content):
        return f" {content} "
    return '"%s"' % "".join(char for char in content.lower() if char.isalnum())


def _join_thousands(match):
    """1,234 is a number; in (12,102) the comma separates."""
    before = match.string[:match.start()]
    inside = sum(map(before.count, "([")) + before.count(r"\{") > sum(map(before.count, ")]")) + before.count(r"\}")
    return match[0] if inside else match[0].replace(",", "")


def _repeating(match):
    r"""0.1\overline{6} is 15/90: all digits minus those that do not repeat, over nines and zeros."""
    whole, fixed, repeated = match.groups()
    top = int(whole + fixed + repeated) - int(whole + fixed)
    return rf"\frac{{{top}}}{{{'9' * len(repeated)}{'0' * len(fixed)}}}"


_SCALES = {"dozen": "12", "hundred": "100", "thousand": "10^3", "million": "10^6", "billion": "10^9"}
_SCALE = rf"({'|'.join(_SCALES)})s?(?![A-Za-z])"


_REWRITES = [(re.compile(pattern), new) for pattern, new in (
    (rf"\\(?:text[a-z]*|mbox|mathrm)\s*\{{\s*{_SCALE}([^{{}}]*)\}}", r" \1 \\text{\2}"),
    (rf"(?<=[0-9}}])\s*{_SCALE}", lambda match: f"*{_SCALES[match[1]]} "),   # 2 million  -> 2*10^6, it is no unit
    (r"([0-9]{1,20})\.([0-9]{0,20})\\(?:overline|bar)\s*\{?([0-9]{1,20})\}?(?![0-9])", _repeating),
    (r"(?s)^\\(?:boxed|fbox)\s*\{(.*)\}$", r"\1"),                   # \boxed{5}             -> 5
    (r"\\(?:text[a-z]*|mbox|mathrm|operatorname)\s*\{([^{}]*)\}", _quote),
    (rf"(?<![0-9.])[0-9]{{1,3}}(?:(?:\{{,\}}|,\\!|{_SPACE}){_SPACE}*[0-9]{{3}})+(?![0-9])",
     lambda match: re.sub("[^0-9]", "", match[0])),                  # 10\,000, 2{,}500, 1 000
    (rf"{_SPACE}|\\q?quad(?![A-Za-z])", " "),
    (r"(?<!\\)\\[()\[\]]|\\?[$%]", " "),                             # \(5\), $5$, \$5, 5\%  -> 5
    (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", " "),     # \left( \right.       -> (
    (r"(?:\{\})?\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", "°"),          # 90^{\circ} -> 90°
    (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'"),        # y^{\prime}            -> y'
    (r"\\mathbb\s*(?:\{R\}|R)|\\R(?![A-Za-z])|(?i:all real numbers)", r"(-\\infty,\\infty)"),
    (r"\\(?:emptyset|varnothing)(?![A-Za-z])", r"\\{\\}"),           # \varnothing           -> \{\}
    (r"\\begin\s*\{array\}\s*\{[^{}]*\}", r"\\begin{array}"),        # the column format of an array
    (r"\\\{\s*[a-z]\s*(?:\\mid|\||:)([^{}:|]*)\\\}", r"\1"),         # \{x \mid x > 2\}      -> x > 2
    (r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", ","),                 # 1 and 2               -> 1, 2
    (r",(?:\s*,)+", ","),                                            # 1, 2, and 3           -> 1, 2, 3
    (r"\*\*", "^"),                                                  # 2**3                  -> 2^3
    (r"<=", r"\\le "), (r">=", r"\\ge "), (r"!=", r"\\ne "), (r"[:=]=", "="),
    (rf'(?<![A-Za-z\\"])({_BARE_NAMES})(?![A-Za-z])', r"\\\1 "),     # 2pi, sqrt(2)          -> 2\pi, \sqrt(2)
    (rf"(\\(?:{'|'.join(_TRIG)})\s*(?:\^\s*\{{?[0-9]\}}?)?)\s*[({{]?\s*([0-9.]+)\s*°\s*[)}}]?", r"\1(\2\\pi/180)"),
    ("°(?: ?[CF](?![A-Za-z]))?", " "),                               # only in \sin 30° a degree is a number
    (rf"(?<=[0-9)}}])\s*(?:{_UNITS})(?![A-Za-z])", '"unit"'),        # 5cm^2, 50 mph
    (r"(?<=[0-9)}\"])\s+[a-z]{3,}(?:[ /]+[a-z]+)*(?=\s*(?:$|[.,;]))", '"unit"'),                   # 9 red apples
    (r"(?i)(?<![^,;(])\s*(?=[a-z ]*[a-z]{4}|(?:yes|no|on|odd)\b)([a-z]+(?: +[a-z]+)*)\s*(?![^,;).=])", _quote),
    (r"\\[dtc]?(frac|binom)\s*([0-9])", r"\\\1{\2}"),                # \frac12               -> \frac{1}2
    (r"(\\(?:frac|binom)\{[0-9]+\})\s*([0-9])", r"\1{\2}"),          # \frac{1}23            -> \frac{1}{2}3
    (r"(?<![0-9.^_])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)", r"\1\\frac{\2}{\3}"),                     # 1 1/2
    (r"(?<![0-9.])(?<![0-9],)[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!,?[0-9])", _join_thousands),
    (r"_\s*\{\s*(\w)\s*\}", r"_\1"),                                 # 1011_{2}              -> 1011_2
)]
_TOKEN = re.compile(r'(?:[0-9]{1,1000}(?:\.[0-9]{0,1000})?|\.[0-9]{1,1000})(?:[eE][+-]?[0-9]{1,3}(?![0-9]))?'
                    r'(?:_[0-9]|_\{[0-9]+\})?|"[^"]*"|\\(?:begin|end)\s*\{[a-zA-Z]+\*?\}|\\(?:log|lg)(?![A-Za-z])'
                    r"|(?:\\[A-Za-z]+|[A-Za-z])(?:'*(?:_\w|_\{[^{}]*\})?)|\\.|!!|\S", re.S)


def normalise(text):
    r"""The tokens of an answer, the same for many spellings: r"2\dfrac{x}3" -> ["2", r"\frac", "{", "x", "}", "3"]"""
    text = text.translate(_CHARACTERS)
    for pattern, new in _SMALL if not text.isascii() else ():
        text = pattern.sub(new, text)
    text = unicodedata.normalize("NFKC", text).replace("⁄", "}{").translate(_CHARACTERS)     # full-width digits too
    if len(text) > 2 * MAX_CHARS:                                    # one character may become eighteen
        return []
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)              # an escaped \\frac; in a matrix \\ ends a row
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text.strip(" \n\t*").lstrip("= ").rstrip("., ;:"))
    tokens = (_SYNONYMS.get(token, token) for token in _TOKEN.findall(text))
    return [token for token in tokens if token]


# ---- A2. Values: an exact number, or 60 digits at fixed points -------------------------------------------------------
_TINY, _ABSORBED = 1e-45, 1e-40   # relative to the terms: zero below the first; between the two nothing may fall
_WORK = {"+": 1, "*": 1, "/": 1, "abs": 1, "^": 40, "!": 60, "binom": 180, "item": 15}          # others: 15


# values: one without letters, else one a point, None where undefined; letters: what is not known, x or "cm"; rounded:
# holds a decimal of at least 12 significant digits
Number = namedtuple("Number", "values letters rounded", defaults=(frozenset(), False))
Number.kind = "number"


class _Undecided(ValueError):
    """Unreadable, undefined, or too large to trust."""


class _Arithmetic(threading.local):
    """Exact numbers are Fractions, the others 60-digit floats of an mpmath context: one for each thread, for mpmath
    functions change the precision of their context while they run. subtle: mpmath caches its constants for the whole
    process without a lock; computed first at more digits than any thread will ask for, they are only read later."""

    def __init__(self):
        self.mp = MPContext()
        self.mp.prec = 4000
        [+constant for constant in (self.mp.pi, self.mp.e, self.mp.ln2, self.mp.ln10, self.mp.euler)]
        self.mp.dps = 60

    def float(self, x):                                              # Fraction + mpf would silently drop to 53 bits
        return self.mp.mpf(x.numerator) / x.denominator if isinstance(x, Fraction) else x

    def bits(self, x):
        return max(x.numerator.bit_length(), x.denominator.bit_length())

    def binary(self, op, a, b):
        r"""Cancellation to rounding noise is 0: \sin^2 1 + \cos^2 1 - 1; a term lost beside a huge one, no value."""
        compute = {"+": operator.add, "*": operator.mul, "/": operator.truediv}[op]
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            result = compute(a, b)
            return result if self.bits(result) <= MAX_BITS else self.float(result)
        a, b = self.float(a), self.float(b)
        result, (small, large) = compute(a, b), sorted((abs(a), abs(b)))
        if op == "+" and 0 < small < large * _ABSORBED or op != "*" and self.mp.isinf(large):
            raise _Undecided("2^{30000} + 1 cannot be told from 2^{30000}, nor 1/\\infty from 0")
        return Fraction(0) if op == "+" and abs(result) < large * _TINY else result

    def power(self, base, exponent):
        r"""Sizes are known before the power is formed. Odd roots of negative numbers are real: \sqrt[3]{-8} = -2."""
        if base == 0:
            return Fraction(0) if exponent > 0 else 1 / Fraction(0)
        rational = isinstance(exponent, Fraction)
        whole = rational and exponent.denominator == 1
        if whole and isinstance(base, Fraction) and self.bits(base) * abs(exponent) <= MAX_BITS:
            return base**int(exponent)
        base, size = self.float(base), self.float(abs(exponent))
        if rational and not whole and exponent.denominator % 2 and not isinstance(base, self.mp.mpc) and base < 0:
            return (-1)**exponent.numerator * self.power(-base, exponent)
        if size * (1 + abs(self.mp.mag(base))) > 2**40:
            raise _Undecided("power too large")
        return base**int(exponent) if whole else self.mp.exp(self.float(exponent) * self.mp.ln(base))

    def factorial(self, n):
        if isinstance(n, Fraction) and n.denominator == 1 and 0 <= n <= 1000:
            return Fraction(math.factorial(int(n)))
        return self.function("gamma", self.binary("+", n, Fraction(1)))

    def binomial(self, n, k):                                        # n! / k! / (n-k)!
        factorials = map(self.factorial, (n, k, self.binary("+", n, -k)))
        return functools.reduce(functools.partial(self.binary, "/"), factorials)

    def floor(self, x):
        if abs(x) > 10**30:
            raise _Undecided("too large")
        return Fraction(int(self.mp.floor(self.float(x) + _ABSORBED)))     # \lfloor \log_2 8 \rfloor is 3, not 2

    def function(self, name, x):
        r"""What is zero up to rounding is zero, and \tan\frac{\pi}{2} has no value."""
        x = self.float(x)
        if x == 0 if name == "ln" else abs(x) > 10**6:
            raise _Undecided("argument too large")
        value = getattr(self.mp, name.replace("arc", "a"))(x)        # name is from _FUNCTIONS, or gamma
        if name in _TRIG and abs(value) * _TINY > 1:
            raise _Undecided("pole")
        return Fraction(0) if abs(value) < abs(x) * _TINY else value

    def value(self, name, args, with_letters):
        """The operation or function `name`, or None where it is undefined."""
        if any(x is None for x in args):
            return None
        if with_letters and name in ("^", "ln", "log") and isinstance(args[0], self.mp.mpf) and args[0] < 0:
            if name != "^" or not (isinstance(args[1], Fraction) and args[1].denominator % 2):
                return None                                          # so that \ln x^2 = 2\ln x, where both are defined
        try:
            value = _OPERATIONS[name](*args) if name in _OPERATIONS else self.function(name, *args)
            return value if isinstance(value, Fraction) or not self.mp.isnan(value) else None
        except (ArithmeticError, ValueError, TypeError):
            return None


_here = _Arithmetic()
_OPERATIONS = {
    **{op: functools.partial(_here.binary, op) for op in "+*/"}, "^": _here.power, "!": _here.factorial, "abs": abs,
    "binom": _here.binomial, "floor": _here.floor, "ceil": lambda x: -_here.floor(-x),
    "log": lambda x, base: _here.binary("/", _here.function("ln", x), _here.function("ln", base))}


def constant(n):
    return Number((Fraction(n),))


_SIZES = (1.5, 0.4, 2, 0.2, 7, 1, 0.5, 4, 12, 30)      # of the letters at each point: \ln(x-5) and \arcsin x have some
_CONSTANTS = {r"\pi": "pi", "e": "e", r"\infty": "inf", "i": "j"}


def letter(name):
    """Fixed pseudo-random reals. At six of the ten points signs vary from letter to letter: |x+y| is not |x|+|y|."""
    if name in _CONSTANTS:
        return Number((+getattr(_here.mp, _CONSTANTS[name]),))
    rng, signs = random.Random(name), sum(map(ord, name)) % 63 + 1   # never 0: each letter is negative somewhere
    values = [size * rng.uniform(0.6, 1.4) * (-1 if signs >> point & 1 else 1) for point, size in enumerate(_SIZES)]
    return Number(tuple(map(_here.mp.mpf, values)), frozenset([name]))


def apply(name, *args):
    """An operation on Numbers, point by point."""
    if not all(isinstance(arg, Number) for arg in args):
        raise _Undecided(f"{name} of a structure")
    letters = frozenset().union(*(arg.letters for arg in args))
    rows = zip(*(arg.values if arg.letters or not letters else arg.values * len(_SIZES) for arg in args))
    return Number(tuple(_here.value(name, row, letters) for row in rows), letters, any(arg.rounded for arg in args))


def is_unit(x):
    return x.kind == "number" and x.letters and all(name[0] == '"' for name in x.letters)


# ---- A3. Parse: precedence climbing, every operation carried out as soon as its operands are read --------------------
Group = namedtuple("Group", "kind closer items")         # kind: ( a tuple, { a list or set, matrix, row, \cup, : ..
Relation = namedtuple("Relation", "sides ops is_name")   # 0 < x \le 5: 0, x, 5; <, \le; the second is a lone name
Relation.kind = "relation"

_FLIPPED = {">": "<", r"\ge": r"\le"}
_SET_OPERATORS = {r"\cup": operator.or_, r"\cap": operator.and_, r"\setminus": operator.sub}
_RELATIONS = {"=", r"\ne", r"\in", r"\equiv", r"\to", "<", r"\le", *_FLIPPED}
_SIGNS = ("+", "-", r"\pm", r"\mp")
_LEVEL = {r"\cup": 1, r"\cap": 1, r"\setminus": 1, ":": 2, **dict.fromkeys(_SIGNS, 3), "*": 4, "/": 4, "!": 5, "^": 6}
_TIGHTEST = max(_LEVEL.values())                         # one argument of \frac, \sqrt
_CLOSERS = {"(": ")]", "[": ")]", "{": "}", r"\{": (r"\}",)}
_FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
_STOPS = {"", *")]},;&'_", "!!", r"\}", r"\\", r"\rfloor", r"\rceil", *_LEVEL, *_RELATIONS}
_MIXED = re.compile(r"\\frac\{[0-9]+\}\{[0-9]+\}").fullmatch
_NAME = r"(?:[A-Za-z]|[A-Z]{2,}|[A-Za-z]{3,}|\"\w+\"|\\[A-Za-z]+(?:\{\w+\})?)'*(?:_(?:\{[^{}]*\}|.))?"
_LONE_NAME = re.compile(rf"{_NAME}(?:\^\{{-1\}})?(?:\(.*\))?|\({_NAME}(?:,{_NAME})*\)|{_NAME}(?::{_NAME})+"
                        r"|\\frac\{[A-Z]{2}\}\{[A-Z]{2}\}").fullmatch      # x, f(x), P(A), (x,y), a:b, \frac{AB}{CD}


def parse(tokens):
    r"""The meaning of an answer; 1\pm\sqrt2 is the list 1+\sqrt2, 1-\sqrt2. Signs are independent; \mp ties them."""
    count = 1 if r"\mp" in tokens else tokens.count(r"\pm")
    if count > 4:
        raise _Undecided("too many signs")
    items = []
    for signs in itertools.product((1, -1), repeat=count):
        for item in _Parser(tokens, signs).items("")[0]:
            items += item.items if count and item.kind == "{" else [item]
    return items[0] if len(items) == 1 else Group("{", "}", tuple(items))


class _Parser:
    def __init__(self, tokens, signs):
        self.tokens, self.i = [*tokens, ""], 0                       # "" marks the end
        self.signs, self.work = itertools.cycle(signs), MAX_WORK // 2**len(signs)
        self.depth = self.bars = 0                                   # bars: open |...|

    @property
    def next(self):
        return self.tokens[self.i]

    def take(self, *expected):
        token = self.next
        if expected and token not in expected:
            raise _Undecided(f"{token!r} instead of {expected}")
        self.i += token != ""
        return token

    def accept(self, *options):
        return self.take() if self.next and self.next in options else ""

    def do(self, name, *args):
        """Carries out an operation if there is work left for it: x^2 is cheap, x^y is not."""
        cheap = name == "^" and isinstance(args[1], Number) and not args[1].letters
        self.work -= 3 if cheap else _WORK.get(name, 15)
        if self.work < 0:
            raise _Undecided("too much work")
        return apply(name, *args) if args else None

    def combine(self, op, left, right):
        """left op right, where matrices are added and scaled item by item."""
        if _LEVEL[op] < _LEVEL["+"]:                                 # a \cup b \cup c is one group
            self.do("item")
            return Group(op, "", (*(left.items if left.kind == op else (left,)), right))
        if op in ("*", "/") and is_unit(right) and not is_unit(left):
            return left                                              # 5\text{ cm}^2 -> 5
        if op == "*" and left.kind == "number" and right.kind in ("matrix", "row"):
            return right._replace(items=tuple(self.combine(op, left, item) for item in right.items))
        if op == "+" and left.kind == right.kind in ("matrix", "row") and len(left.items) == len(right.items):
            return left._replace(items=tuple(self.combine(op, *pair) for pair in zip(left.items, right.items)))
        return self.do(op, left, right)

    def items(self, *closers):                                       # 1, x = 2; 3
        items = []
        while not items or self.accept(",", ";"):
            self.do("item")
            items.append(self.relation() if self.depth <= 2 else self.expression())
        return tuple(items), self.take(*closers)

    def relation(self):                                              # 0 < x \le 5,  f(x) = x^2
        sides, ops, is_name = [], [], []
        while not sides or self.next in _RELATIONS:
            if sides:
                self.do("item")
                ops.append(self.take())
            start = self.i
            sides.append(self.expression())
            source = "".join(self.tokens[start:self.i])
            is_name.append(self.tokens[start][1:] not in _FUNCTIONS and bool(_LONE_NAME(source)))
        if ops and ops[0] in _FLIPPED:                               # 5 > x -> x < 5
            sides, is_name, ops = sides[::-1], is_name[::-1], [_FLIPPED.get(op, "mixed") for op in reversed(ops)]
        return Relation(tuple(sides), tuple(ops), tuple(is_name)) if ops else sides[0]

    def expression(self, level=0):
        """Reads the operators that bind tighter than `level`, see _LEVEL."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Undecided("too deep")
        if self.next in _SIGNS:                                      # -x^2 is -(x^2)
            token = self.take()
            sign = {"+": 1, "-": -1}.get(token) or next(self.signs) * (1 if token == r"\pm" else -1)
            left = self.expression(max(level, _LEVEL["+"]))
            left = left if sign > 0 else self.combine("*", constant(-1), left)
        else:
            left = self.atom(level)
        while _LEVEL.get(op := self.operator(), 0) > level:
            if self.next == op and op not in _SIGNS:                 # a - b is a + (-b)
                self.take()
            elif self.next[0].isdigit() and self.tokens[self.i - 1][-1].isdigit():
                raise _Undecided("two numbers side by side")
            if op == "!":
                left = self.do("!", left)
            else:
                right = self.expression(_LEVEL[op] - (op == "^"))    # 2^3^2 = 2^9
                left = self.combine("+" if op in _SIGNS else op, left, right)
        self.depth -= 1
        return left

    def operator(self):
        """The next operator, "*" for a product without a sign: 2x."""
        if self.next in _LEVEL:
            return self.next
        if self.next in _STOPS or self.next.startswith(r"\end") or self.next == "|" and self.bars:
            return ""
        return "*"

    def atom(self, level):
        token = self.take()
        if token[:1].isdigit() or token[:1] == "." and len(token) > 1:
            return self.number(token, level)
        if token in _CLOSERS:
            return self.bracket(token)
        if token in _FENCES:                                         # |x|, \lfloor x \rfloor
            closer, name = _FENCES[token]
            self.bars += token == "|"
            inside = self.expression()
            self.bars -= token == "|"
            self.take(closer)
            return self.do(name, inside)
        if token in (r"\frac", r"\binom"):
            top, bottom = self.expression(_TIGHTEST), self.expression(_TIGHTEST)
            return self.combine("/", top, bottom) if token == r"\frac" else self.do("binom", top, bottom)
        if token == r"\sqrt":
            index = self.bracket("[") if self.accept("[") else constant(2)
            return self.do("^", self.expression(_TIGHTEST), self.do("/", constant(1), index))
        if token[1:] in _FUNCTIONS:
            return self.function(token[1:])
        if token.startswith(r"\begin"):
            return self.matrix(token)
        if token in _STOPS or not token.strip('\\"')[:1].isalpha() or token.startswith(r"\end"):
            raise _Undecided(token)
        if token in ("f", "g") and self.next == "(":                 # f(2x) is not 2f(x); x(x+1) stays a product
            argument = self.combine("+", constant(1), self.expression(_TIGHTEST))
            return self.do("cos", self.combine("*", letter(token), argument))
        return letter(token)                                         # x, \theta, a_1, y', "cm"

    def number(self, token, level):
        if "_" in token:                                             # 52_8: the base is part of the number
            digits, base = token.split("_")                          # int() refuses base 1 and the digit 9 in base 8
            return constant(int(digits, int(base.strip("{}")) or 1))
        if token.isdigit() and level <= _LEVEL["*"] and _MIXED("".join(self.tokens[self.i:self.i + 7])):
            return self.combine("+", constant(int(token)), self.expression(_TIGHTEST))    # 2\frac13, not x^2\frac13
        digits = re.sub(r"[eE].*|\.", "", token).lstrip("0")
        return Number((Fraction(token),), rounded="." in token and len(digits) >= 12)

    def bracket(self, opener):
        r"""(a) groups; (a, b) and [a, b) keep their brackets; \{a, b\} and {a, b} are sets."""
        if opener == r"\{" and self.accept(r"\}"):
            return Group("{", "}", ())
        bars, self.bars = self.bars, 0
        items, closer = self.items(*_CLOSERS[opener])
        self.bars = bars
        if len(items) == 1 and opener + closer in ("()", "[]", "{}"):
            return items[0]
        return Group(opener.strip("\\"), closer.strip("\\"), items)

    def function(self, name):                                        # \sin^2 x, \log_2 8, \ln|x|, \sin 2x
        base, exponent = [constant(10)] if name == "log" else [], None
        while op := self.accept("^", "_"):
            if op == "^":
                exponent = self.expression(_LEVEL["!"])
            else:
                base = [self.expression(_TIGHTEST)]
        if exponent == constant(-1) and name in _TRIG:
            name, exponent = "arc" + name, None
        value = self.do(name, self.operand(), *base)
        return self.do("^", value, exponent) if exponent else value

    def operand(self):
        r"""\sin(2x) y stops at the bracket, \sin 2x \cos x at the next function."""
        if self.next in ("(", "[", "{"):
            return self.expression(_TIGHTEST)
        value = self.expression(_LEVEL["*"])
        while self.operator() == "*" and self.next[0] not in '*([|"' and self.next[1:] not in _FUNCTIONS:
            value = self.combine("*", value, self.expression(_LEVEL["*"]))
        return value

    def matrix(self, token):
        rows = [[]]
        while not self.next.startswith(r"\end"):
            if self.accept(r"\\"):
                rows.append([])
            else:
                self.do("item")
                rows[-1].append(self.relation())
                self.accept("&")
        self.take(token.replace("begin", "end"))
        return Group("matrix", "", tuple(Group("row", "", tuple(row)) for row in rows if row))


# ---- A4. Compare -----------------------------------------------------------------------------------------------------
def same(gold, pred):
    """Do two answers denote the same object?"""
    if gold.kind == pred.kind == "relation":
        if _same_relation(gold, pred):
            return True
        if "=" in gold.ops + pred.ops:
            return False
    gold, pred = _object(gold), _object(pred)
    kinds = {gold.kind, pred.kind}
    if kinds & _SET_OPERATORS.keys() and _same_region(gold, pred):
        return True
    if "{" in kinds or kinds == {r"\cup"}:                           # unordered, repetitions ignored
        golds, preds = (x.items if x.kind in ("{", *kinds & {r"\cup"}) else (x,) for x in (gold, pred))
        table = [[same(g, p) for p in preds] for g in golds]         # once a pair: nesting must not double the work
        return bool(golds) == bool(preds) and all(map(any, table)) and all(map(any, zip(*table)))
    if kinds == {"number"}:
        return _same_number(gold, pred)
    return len(kinds) == 1 and gold.closer == pred.closer and len(gold.items) == len(pred.items) and (
        all(map(same, gold.items, pred.items)))


def _same_region(gold, pred):
    r"""Sets of real numbers are the same if they cover the same pieces of the line, cut at each number that occurs in
    them: [0,1] \cup [1,2] is [0,2], and \mathbb{R} \setminus \{3\} is (-\infty, 3) \cup (3, \infty)."""
    cuts = []                                                        # piece 2i + 1 is cut i, the even ones lie between
    try:
        for x in sorted((x for node in (gold, pred) for x in _ends(node)), key=_here.float):
            if not _here.mp.isinf(_here.float(x)) and not (cuts and _close(cuts[-1], x)):
                cuts.append(x)
    except _Undecided:
        return False

    def place(x):
        if _here.mp.isinf(_here.float(x)):
            return -1 if x < 0 else 2 * len(cuts) + 1
        return next(2 * i + 1 for i, cut in enumerate(cuts) if _close(cut, x))

    def pieces(node):
        if node.kind in _SET_OPERATORS:
            return functools.reduce(_SET_OPERATORS[node.kind], map(pieces, node.items))
        places = [place(x) for x in _ends(node)]
        if node.kind in ("{", "number"):
            return set(places)
        return set(range(places[0] + (node.kind == "("), places[1] + (node.closer == "]")))
    return len(cuts) < 50 and pieces(gold) == pieces(pred)


def _ends(node):
    """The numbers that a set of reals is made of: those of its intervals and lists. critical: (3, 1) is no empty
    interval but a point, or else whatever is empty would be right where a point is asked for."""
    if node.kind == "number" and not node.letters and isinstance(node.values[0], (Fraction, _here.mp.mpf)):
        return [node.values[0]]
    inside = node.kind in ("(", "[", "{")
    if not inside and node.kind not in _SET_OPERATORS or inside and any(x.kind != "number" for x in node.items):
        raise _Undecided("no set of numbers")
    ends = [x for item in node.items for x in _ends(item)]
    if node.kind in ("(", "[") and not (len(ends) == 2 and _here.float(ends[0]) < _here.float(ends[1])):
        raise _Undecided("no interval")
    return ends


def _same_number(gold, pred):
    if not pred.letters <= gold.letters:                             # a free variable never equals a number
        return False
    n = max(len(gold.values), len(pred.values))
    pairs = zip(gold.values * (n // len(gold.values)), pred.values * (n // len(pred.values)))
    pairs = [pair for pair in pairs if None not in pair]
    return len(pairs) > (n > 1) and all(_close(g, p, gold.rounded != pred.rounded) for g, p in pairs)


def _close(a, b, rounded=False):
    """0.333333333333 is 1/3: twelve digits agree. But a decimal is never another terminating decimal."""
    exact = [isinstance(x, Fraction) and (not rounded or pow(10, MAX_BITS, x.denominator) == 0) for x in (a, b)]
    size = max(abs(_here.float(a)), abs(_here.float(b)))
    if all(exact) or _here.mp.isinf(size):
        return a == b
    return abs(_here.float(a) - _here.float(b)) <= size * (1e-11 if rounded else _TINY)


def _object(node):
    r"""What a lone name is: x = 5 -> 5;  x \in [0,1] -> [0,1];  x > 2 -> (2, \infty);  x + y = 5 stays."""
    if node.kind != "relation" or True not in node.is_name:
        return node
    sides = [side for side, is_name in zip(node.sides, node.is_name) if not is_name] or [node.sides[-1]]
    if set(node.ops) <= {"=", r"\in"}:
        return sides[0] if all(same(sides[0], side) for side in sides[1:]) else node
    low, high = apply("*", constant(-1), letter(r"\infty")), letter(r"\infty")
    if node.ops == (r"\ne",) and len(sides) == 1:                    # x \ne 1 -> (-\infty, 1) \cup (1, \infty)
        return Group(r"\cup", "", (Group("(", ")", (low, sides[0])), Group("(", ")", (sides[0], high))))
    if not set(node.ops) <= {"<", r"\le"} or node.is_name not in ((True, False), (False, True), (False, True, False)):
        return node
    opener, closer = "(" if node.ops[0] == "<" else "[", ")" if node.ops[-1] == "<" else "]"
    opener, low = ("(", low) if node.is_name[0] else (opener, sides[0])
    closer, high = (")", high) if node.is_name[-1] else (closer, sides[-1])
    return Group(opener, closer, (low, high))


def _same_relation(gold, pred):
    r"""The same sides, or left - right equal up to a constant factor (a positive one for < and \le)."""
    symmetric = set(gold.ops) <= {"=", r"\ne"}
    if gold.ops != pred.ops:
        return False
    if any(all(map(same, gold.sides, sides)) for sides in [pred.sides] + [pred.sides[::-1]] * symmetric):
        return True
    if len(gold.ops) > 1 or {side.kind for side in gold.sides + pred.sides} != {"number"}:
        return False
    differences = [apply("+", left, apply("*", constant(-1), right)) for left, right in (pred.sides, gold.sides)]
    ratios = [ratio for ratio in apply("/", *differences).values if ratio is not None]
    return (len(ratios) > 1 and ratios[0] != 0 and all(_close(ratios[0], ratio) for ratio in ratios)
            and (symmetric or gold.ops[0] in ("<", r"\le") and _here.mp.re(_here.float(ratios[0])) > 0))


# ---- Appendix B. Running programs ------------------------------------------------------------------------------------
import atexit
import builtins
import collections
import contextlib
import ctypes
import datetime
import decimal
import functools
import gc
import importlib
import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import symtable
import sys
import tempfile
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

try:
    import resource
except ImportError:       # Windows
    resource = None


# ---- B1. How hostile code is run -------------------------------------------------------------------------------------
# A model's program has to be run, and it will try everything that pays. Isolation alone does not stop it: a program
# that may report on itself reports success. So the work is divided, and no process is told more than it needs:
#
#     trainer  -- code, then test by test -->  judge  -- f, 3 -->  player           (and back: 9, then the verdict)
#
# The player runs the program. For `assert f(3) == 9` the judge, which runs the test, sends it the call f(3), gets plain
# data back and compares. The player never holds a test, an expected value or the channel of the verdicts; it is forked
# before the judge has read any test, and both give up every right they can (_Confinement). What cannot be copied as
# plain data stays with the player, and the test gets a reference (_Ref) that can be called, iterated and asked for its
# parts, but equals nothing that the test knows. The judge of each program is forked by the server, a fresh interpreter
# that has imported what programs usually import: a program costs two forks and no start of Python.
#
# From here to _serve everything runs in those processes and nothing in this one: _Server sends this part of the file.

_MAX_MESSAGE = 2**24                     # bytes a program may send at a time: the largest result there can be


def _send(channel, message):
    data = json.dumps(message).encode()
    channel.sendall(len(data).to_bytes(4, "big") + data)


def _receive(channel):
    """The next message, JSON behind its length. Raises _Gone if there will be none that can be read."""
    def exactly(n):
        data = bytearray()
        while len(data) < n:
            piece = channel.recv(min(n - len(data), 2**20))
            if not piece:
                raise _Gone("the program ended")
            data += piece
        return data
    try:
        size = int.from_bytes(exactly(4), "big")
        return json.loads(exactly(size)) if size <= _MAX_MESSAGE else _raise(_Gone("a result too large"))
    except (OSError, ValueError, RecursionError) as error:
        raise _Gone("the program broke the line") from error


class _Gone(BaseException):
    """The other end of a channel is lost. Not an Exception: neither a test nor a program should take it for its own."""


def _raise(error):
    raise error


# Plain data that JSON does not know: type -> (to simpler data, and back). Neither pickle nor marshal will do: both run
# code or crash on what a hostile sender can write.
_PLAIN = {
    tuple: (list, tuple), set: (list, set), frozenset: (list, frozenset),
    slice: (lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts)),
    dict: (lambda d: [[key, value] for key, value in d.items()], dict),
    bytes: (lambda b: b.decode("latin-1"), lambda s: s.encode("latin-1")),
    bytearray: (lambda b: b.decode("latin-1"), lambda s: bytearray(s, "latin-1")),
    complex: (lambda c: [c.real, c.imag], lambda parts: complex(*parts)),
    range: (lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
    collections.deque: (list, collections.deque), collections.Counter: (dict, collections.Counter),
    collections.OrderedDict: (dict, collections.OrderedDict),
    collections.defaultdict: (lambda d: [d.default_factory, dict(d)], lambda parts: collections.defaultdict(*parts)),
    decimal.Decimal: (str, decimal.Decimal),
    Fraction: (lambda f: [f.numerator, f.denominator], lambda parts: Fraction(*parts)),
    datetime.date: (str, datetime.date.fromisoformat), datetime.datetime: (str, datetime.datetime.fromisoformat),
    datetime.time: (str, datetime.time.fromisoformat),
    datetime.timedelta: (lambda d: [d.days, d.seconds, d.microseconds], lambda parts: datetime.timedelta(*parts)),
}


def _pack(value, export):
    """Plain data -> JSON that keeps every type; what is not plain data is handed to export."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if abs(value) < 2**63 else {"int": hex(value)}      # decimal digits take quadratic time
    if kind is list:
        return [_pack(item, export) for item in value]
    if kind in _PLAIN:
        return {kind.__name__: _pack(_PLAIN[kind][0](value), export)}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {"namedtuple": [kind.__name__, list(kind._fields), _pack(list(value), export)]}
    for base in (int, float, str, bytes, tuple):                     # an IntEnum, class L(int): as data
        if isinstance(value, base):
            return _pack(base.__str__(value) if base is str else base(value), export)
    return export(value)


def _unpack(packed, resolve):
    """The inverse of _pack; resolve(key, payload) is called for what was exported."""
    if type(packed) is list:
        return [_unpack(item, resolve) for item in packed]
    if type(packed) is not dict:
        return packed
    (key, payload), = packed.items()
    if key == "int":
        return int(payload, 16)
    if key == "namedtuple":
        return collections.namedtuple(payload[0], payload[1], rename=True)(*_unpack(payload[2], resolve))
    for kind, (_, back) in _PLAIN.items():
        if key == kind.__name__:
            return back(_unpack(payload, resolve))
    return resolve(key, payload)


# The types that may cross by name. Not `type`, with which a class that equals everything could be made over there.
_TYPES = {kind for kind in vars(builtins).values() if isinstance(kind, type) and (
    issubclass(kind, BaseException) or kind in _PLAIN or kind in (int, float, str, bool, list, object))}


class _Wire:
    """One end of the line between judge and player. To ask is to wait for the answer and, meanwhile, to do what the
    other end asks: f(g) with a function g of the test calls back into the test. Objects cross as numbers."""

    def __init__(self, channel, perform):
        self.channel, self.perform = channel, perform
        self.objects, self.numbers, self.references, self.exceptions = [], {}, {}, {}

    def number(self, value):
        if id(value) not in self.numbers:                    # objects keeps it alive, so the id stays its own
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def export(self, value):
        if type(value) is _Ref:
            return {"yours": value._number}
        if isinstance(value, type) and value in _TYPES:
            return {"type": value.__name__}
        if isinstance(value, type) and issubclass(value, Exception):
            # Its own classes, so that a handler of one catches the others, down to the nearest built-in and no other:
            # class E(ValueError, KeyError, IndexError) is a ValueError.
            base = next(kind for kind in value.__mro__ if kind in _TYPES)
            own = value.__mro__[:value.__mro__.index(base)]
            return {"exception": [base.__name__, *(self.number(kind) for kind in own if issubclass(kind, Exception))]}
        return {"coroutine" if isinstance(value, types.CoroutineType) else "mine": self.number(value)}

    def resolve(self, key, payload):
        if key == "yours":
            return self.objects[payload]
        if key == "mine":                                    # the same reference for the same object: `is` works
            return self.references.setdefault(payload, _Ref(self, payload))
        if key == "coroutine":
            return _awaitable(_Ref(self, payload))
        name, *own = payload if key == "exception" else [payload]
        kind = getattr(builtins, name)
        if kind not in _TYPES:
            raise TypeError(f"{name} does not cross")
        for number in reversed(own):
            kind = self.exceptions.setdefault(number, type("Theirs", (kind,), {}))
        return kind

    def pack(self, value):
        return _pack(value, self.export)

    def unpack(self, packed):
        return _unpack(packed, self.resolve)

    def ask(self, operation, *arguments, **extra):
        packed = self.pack(list(arguments))
        try:
            _send(self.channel, {"ask": operation, "arguments": packed, **extra})
            while type(message := _receive(self.channel)) is dict and "ask" in message:
                self.answer(message)
        except OSError as error:
            raise _Gone("the program ended") from error
        return message if type(message) is dict else _raise(_Gone("the program broke the line"))

    def answer(self, message):
        output, sys.stdout = sys.stdout, io.StringIO()
        reply = {"error": {"type": "RuntimeError"}, "text": []}
        try:
            reply = self.perform(self, message)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            with contextlib.suppress(Exception):                 # its arguments may be anything
                reply = {"error": self.pack(type(error)), "text": self.pack(list(error.args))}
        text, sys.stdout = sys.stdout.getvalue(), output
        _send(self.channel, {"output": text[:10**6], **reply})


async def _awaitable(reference):
    return reference._do("run")


# The player's side. It is the program's own process: nothing depends on its honesty.

def _play(channel, program, confinement):
    """Run the program, then do what the judge asks for until killed."""
    os.dup2(channel.detach(), 3)
    os.closerange(4, 2**16)
    confinement.give_up(program, "player")
    threading.stack_size(2**21)                              # of the 8 MB each that memory has to provide otherwise
    channel = socket.socket(fileno=3)
    module = sys.modules["solution"] = types.ModuleType("solution")       # dataclasses look their module up there
    sys.stdout = sys.stderr = io.StringIO()
    try:
        exec(compile(program["code"], "<solution>", "exec"), module.__dict__)
        _send(channel, "loaded")
        wire = _Wire(channel, _perform)
        while True:
            wire.answer(_receive(channel))
    except BaseException as error:
        with contextlib.suppress(BaseException):
            _send(channel, f"{type(error).__name__}: {str(error)[:200]}")
    os._exit(1)


_ON_OBJECTS = {"call": lambda function, args, kwargs: function(*args, **kwargs),
               "enter": lambda manager: type(manager).__enter__(manager),
               "exit": lambda manager: type(manager).__exit__(manager, None, None, None),
               "rmul": lambda value, number: number * value}


def _perform(wire, message):
    """One operation on the program's objects: fetch its global names, or a function of _ON_OBJECTS, operator or
    builtins."""
    packed, operation = message["arguments"], message["ask"]
    arguments = wire.unpack(packed)
    if operation == "names":
        names = sys.modules["solution"].__dict__
        return {"value": wire.pack({name: names[name] for name in arguments if name in names})}
    if operation == "run":
        import asyncio
        return {"value": wire.pack(asyncio.run(arguments[0]))}
    sys.stdin, typed = io.StringIO(message.get("typed", "")), builtins.input
    if "input" in message:
        builtins.input = wire.unpack(message["input"])
    try:
        value = wire.pack((_ON_OBJECTS.get(operation) or getattr(operator, operation, None)
                           or getattr(builtins, operation))(*arguments))
    except StopIteration:
        if operation != "next":              # it would end a loop of the test, and with it the checks in that loop
            raise RuntimeError("StopIteration") from None
        return {"stop": True}
    finally:
        builtins.input = typed
    changed = {}
    if operation == "call":                  # what it did to its arguments
        for key, argument, before in ([*zip(range(len(arguments[1])), arguments[1], packed[1])]
                                      + [(key, arguments[2][key], old) for key, old in packed[2]["dict"]]):
            if isinstance(argument, _MUTABLE) and (after := wire.pack(argument)) != before:
                changed[key] = after
    return {"value": value, "changed": changed, "read": sys.stdin.tell()}


_MUTABLE = (list, dict, set, bytearray, collections.deque)


# The judge's side.

# Methods of built-in types that answer yes or no. Where a string, a set or a number was due, an object of the program
# would answer them itself.
_YES_NO = {name for kind in (str, bytes, int, float, set, dict, list) for name in dir(kind)
           if name.startswith("is") or name.endswith("with")}


class _Ref:
    """An object that stays with the player. A test can call, iterate, index and print it, get and set its attributes
    and compare it with another _Ref. An operation with a value that the test knows (ref == 7, ref - 1.25, 7 in ref) is
    not passed on: it would tell the program what it is compared with, and leave the verdict to it."""

    __slots__ = ("_wire", "_number")

    def __init__(self, wire, number):
        object.__setattr__(self, "_wire", wire)
        object.__setattr__(self, "_number", number)

    def _do(self, operation, *arguments, **extra):
        answer = self._wire.ask(operation, self, *arguments, **extra)
        if operation == "next" and answer.get("stop"):
            raise StopIteration
        return _value(self._wire, answer, arguments)

    def __call__(self, *args, **kwargs):
        extra = {}
        if type(sys.stdin) is io.StringIO:                   # the test has prepared what will be typed in
            start = sys.stdin.tell()
            extra["typed"] = sys.stdin.read()
        if builtins.input is not _INPUT:
            extra["input"] = self._wire.pack(builtins.input)
        answer = self._wire.ask("call", self, list(args), kwargs, **extra)
        if "typed" in extra and type(answer.get("read")) is int:
            sys.stdin.seek(start + max(0, answer["read"]))
        return _value(self._wire, answer, (args, kwargs))

    def __getattr__(self, name):
        if name.startswith("__") and name != "__name__" or name in _YES_NO:
            raise AttributeError(f"an object of the program has no {name} here")
        return self._do("getattr", name)

    def __setattr__(self, name, value):
        self._do("setattr", name, value)

    def __eq__(self, other):
        return type(other) is _Ref and (self is other or self._do("eq", other) is True)

    def __bool__(self):
        return self._do("truth") is True

    def __instancecheck__(self, other):
        return type(other) is _Ref and other._do("isinstance", self) is True

    def __exit__(self, *error):
        self._do("exit")                                     # and never swallow the error: it may be a failed assert


def _forward(names, may_meet=lambda value: True):
    for name in names.split():
        def method(self, *arguments, name=name):
            return self._do(name, *arguments) if all(map(may_meet, arguments)) else NotImplemented
        setattr(_Ref, f"__{name.strip('_')}__", method)


_forward("len iter next str repr format hash getitem setitem delitem enter neg pos abs invert int float round")
_forward("lt le gt ge add sub truediv floordiv mod pow and_ or_ xor matmul", lambda value: type(value) is _Ref)
_forward("mul rmul", lambda value: type(value) in (_Ref, int, float))

_INPUT = builtins.input
_pending = []                            # (argument, what the program made of it, is the call's result a container)
_globals = {}                            # the program's global lists, dicts .. that a test uses; how to fetch them anew


def _value(wire, answer, arguments):
    """The value that the player answered with, or the exception."""
    sys.stdout.write(str(answer.get("output", "")))
    if "error" in answer:
        kind, args = wire.unpack(answer["error"]), wire.unpack(answer["text"])
        usable = issubclass(kind, Exception) and not issubclass(kind, (StopIteration, StopAsyncIteration))
        error = (kind if usable else RuntimeError).__new__(kind if usable else RuntimeError, *args)
        error.args = tuple(args)
        raise error
    value = wire.unpack(answer["value"])
    for key, packed in answer.get("changed", {}).items():
        argument = arguments[0][int(key)] if key.isdigit() else arguments[1][key]
        if isinstance(argument, _MUTABLE):
            _pending.append((argument, wire.unpack(packed), isinstance(value, (*_MUTABLE, tuple, _Ref))))
    return value


def _settle(bare):
    """After each statement of a test: let it see how the program changed the arguments of its calls. Not before, or in
    `assert f(x) == sorted(x)` a program could empty x. Nor after y = f(x) with a container y: y was the result."""
    for argument, after, container in _pending:
        if bare or not container:
            argument.clear()
            (argument.update if isinstance(argument, (dict, set)) else argument.extend)(after)
    _pending.clear()
    for fetch, old in _globals.values():
        new = fetch()
        old.clear()
        (old.update if isinstance(old, (dict, set)) else old.extend)(new)


def _settling(tree):
    """Put a call of _settle behind every statement of a test."""
    def bare(statement):                                     # f(x): a call, not of what another call gave
        return isinstance(statement, ast.Expr) and sum(isinstance(n, ast.Call) for n in ast.walk(statement)) == 1

    def text_or_import(statement):                           # nothing may stand before from __future__ import ..
        return isinstance(statement, ast.ImportFrom) or isinstance(getattr(statement, "value", None), ast.Constant)
    for node in list(ast.walk(tree)):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                setattr(node, field, [new for old in statements for new in
                                      (old, ast.parse(f"_settle({bare(old)})").body[0])
                                      if new is old or not text_or_import(old)])
    return ast.fix_missing_locations(tree)


def _free_names(test):
    """The names a test uses but does not define -> (names, those of modules: math in math.isclose(...))."""
    def globals_of(table):
        found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()
                 and (symbol.is_global() or table.get_type() == "module")}
        return found.union(*map(globals_of, table.get_children()))
    table = symtable.symtable(test, "<test>", "exec")
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    bases = {node.value.id for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name)}
    free = globals_of(table) - own
    modules = free & bases & sys.stdlib_module_names
    return free - modules, modules


def _from_program(test):
    """The names that a test has from the program, and its modules. They are those that are not built in; if there are
    none, the program has to be named like a built-in (def sum), which must not be tested in its place."""
    free, modules = _free_names(test)
    return {name for name in free if not hasattr(builtins, name)} or free, modules


def _run_test(test, common, wire):
    """Run one test; raises whatever makes it fail. common: names that all tests of the program have from it."""
    _pending.clear()
    _globals.clear()
    wanted, modules = _from_program(test)
    if any(hasattr(builtins, name) for name in wanted):      # sum is the program's, the abs of some tests is not
        wanted = wanted & set(common) or wanted

    def fetch(*names):
        found = _value(wire, wire.ask("names", *names), ())
        return {name: found[name] for name in names if name in found}          # and not what else a program may send
    theirs = fetch(*sorted(wanted)) if wanted else {}
    if wanted and not theirs:
        raise NameError(f"the program does not define {' or '.join(sorted(wanted))}")
    _globals.update({name: (lambda name=name: fetch(name)[name], value) for name, value in theirs.items()
                     if isinstance(value, _MUTABLE)})
    sys.modules["solution"].__getattr__ = lambda name: fetch(name).get(name) if name[0] != "_" else None
    names = {name: importlib.import_module(name) for name in modules} | theirs
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__dict__.update(names, _settle=_settle)
    tree = ast.parse(test)
    uses = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    exec(compile(_settling(tree), "<test>", "exec"), module.__dict__)
    for node in tree.body:                                   # def test_f(): ..., as pytest would
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and node.name not in uses:
            module.__dict__[node.name]()


def _is_literal(node):
    with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        ast.literal_eval(node)
        return True
    return False


def _is_comparison(test):
    """Is it `assert f(literals) == literal`, where nothing but plain data decides?"""
    def call(node):
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and all(
            map(_is_literal, [*node.args, *(keyword.value for keyword in node.keywords)]))
    with contextlib.suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        match ast.parse(test).body:
            case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]))]:
                return call(left) and _is_literal(right) or _is_literal(left) and call(right)
    return False


class _Late(BaseException):
    """The time of a test is over. Not an Exception: a test or program that swallows errors should not swallow it."""


_alarms = []


def _on_alarm(*_):
    if _alarms:                                                 # the test has caught the first one and goes on
        os._exit(1)
    _alarms.append(True)
    raise _Late


def _timed(limit, action):
    """-> verdict. SIGALRM raises _Late in `action`, and half a second later ends the judge; if that has no effect, as
    inside sum(range(10**12)), SIGPROF does. The trainer takes the end of the judge for a verdict."""
    verdict = {"passed": False, "over": True}                   # over: no further test can be run with this player
    _alarms.clear()
    signal.setitimer(signal.ITIMER_PROF, limit + 0.5)
    signal.setitimer(signal.ITIMER_REAL, limit, 0.5)
    try:
        action()
        return {"passed": True, "why": "passed"}
    except _Late:
        return {**verdict, "why": "timeout"}
    except _Gone as error:
        return {**verdict, "why": str(error)}
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:    # unittest.main() leaves like this
            return {"passed": True, "why": "passed"}
        # str(error) might have to ask the program: not that
        text = error.args[0][:200] if error.args and type(error.args[0]) is str else ""
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
        return {"passed": False, "why": text.encode("ascii", "backslashreplace").decode()}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _judge(trainer, program, confinement):
    """One program: fork the player, then run test after test as the trainer sends them."""
    confinement.enter(program)
    channel, theirs = socket.socketpair()
    player = os.fork()
    if player == 0:
        trainer.close()
        channel.close()
        _play(theirs, program, confinement)
    theirs.close()
    kill = confinement.killer(player)
    confinement.give_up(program, "judge")
    signal.signal(signal.SIGALRM, _on_alarm)
    wire = _Wire(channel, _call_back)
    sys.modules["solution"] = types.ModuleType("solution")      # for tests that import from it

    def load():
        if (message := _receive(channel)) != "loaded":
            raise RuntimeError(message)
    with contextlib.suppress(_Gone, OSError):                   # the trainer has no more tests, or is gone
        verdict = _timed(max(0.5, program["limit"]), load)
        _send(trainer, verdict)
        while not verdict.get("over"):
            test = _receive(trainer)
            verdict = _timed(program["limit"], functools.partial(_run_test, test, program["common"], wire))
            _send(trainer, {**verdict, "compared": _is_comparison(test)})
    with contextlib.suppress(OSError):
        kill()
        os.waitpid(player, 0)


def _call_back(wire, message):
    """What the player may ask of the judge: to call a function that the test has handed to it, to go through an
    iterator, and to use the public attributes and items of objects whose class the test has defined."""
    operation, (subject, *rest) = message["ask"], wire.unpack(message["arguments"])
    if operation == "call" and callable(subject) and not isinstance(subject, type):
        value = subject(*rest[0], **rest[1])
    elif operation in ("next", "iter") and type(subject).__module__ in ("builtins", "_io"):
        try:
            value = getattr(builtins, operation)(subject)
        except StopIteration:
            return {"stop": True}
    elif (type(subject).__module__ == "__main__" or isinstance(subject, io.IOBase)) and (
            operation in ("getattr", "setattr") and not rest[0].startswith("_")
            or operation in ("len", "iter", "getitem", "setitem", "truth", "eq", "lt", "str", "repr")):
        value = (getattr(operator, operation, None) or getattr(builtins, operation))(subject, *rest)
    elif operation == "getattr" and rest == ["__name__"] and isinstance(subject, types.FunctionType):
        value = subject.__name__                             # a decorator asks for it
    else:
        raise AttributeError(f"{operation} is not for this object")
    return {"value": wire.pack(value)}


# What judge and player may still do, by the number of the system call (x86-64). Not: other processes (fork, exec, kill,
# ptrace, limits of others), sockets except a pair of its own, what would outlive them (shared memory, queues, keys),
# what escapes the limits (memfd) or watches others (inotify), and the large surfaces of the kernel (bpf, io_uring,
# perf, mount, namespaces).
_ALLOWED = ("0-15 17-28 32-40 44-48 51-52 54-55 60-61 63 73-75 77-89 95-100 102 104 107-108 110-111 115 118 120-121 "
            "124 127-128 130-131 137-138 140 143 145-148 160 186 191-196 201-202 204 213 217-219 221-226 228-233 247 "
            "257-258 262-267 269-271 273-274 281-287 289-293 295-296 309 316 318 324 326-328 332 334 436-437 439 441 "
            "449")
_PRETENDED = "90-94 132 188-190 235 260-261 268 280 452"       # chmod, chown, utime, setxattr: succeed and do nothing
_CONDITIONS = {                                                # number: (index of an argument, mask, allowed values)
    16: (1, -1, [0x5401, 0x541B, 0x5421, 0x5450, 0x5451]),     # ioctl: is it a terminal, blocking; not FIOSETOWN
    53: (1, 0xF, [1]),                                         # socketpair: streams; a datagram can go elsewhere
    56: (0, 0x10000, [0x10000]),                               # clone: a thread
    72: (1, -1, [*range(8), 1030, 1031, 1032]),                # fcntl: not F_SETOWN, not F_SETSIG
    302: (0, -1, [0])}                                         # prlimit: its own
_PIDFD_SEND_SIGNAL = 424


def _seccomp_filter(*more):
    """The rules above, and `more` allowed calls, as a program for the kernel (classic BPF, see seccomp(2))."""
    def op(code, value, yes=0, no=0):
        return struct.pack("HBBI", code, yes, no, value & 0xFFFFFFFF)
    load, equal, at_least, above, mask, answer = 0x20, 0x15, 0x35, 0x25, 0x54, 0x06
    allow, deny, pretend, unknown, kill = 0x7FFF0000, 0x50001, 0x50000, 0x50026, 0x80000000
    program = [op(load, 4), op(equal, 0xC000003E, 1, 0), op(answer, kill), op(load, 0)]        # another architecture
    for numbers, verdict in ((_ALLOWED, allow), (" ".join(map(str, more)), allow), (_PRETENDED, pretend)):
        for part in numbers.split():
            low, _, high = part.partition("-")
            program += [op(at_least, int(low), 0, 2), op(above, int(high or low), 1, 0), op(answer, verdict)]
    program += [op(equal, 435, 0, 1), op(answer, unknown)]     # clone3 hides its flags: the C library then uses clone
    for number, (index, bits, values) in _CONDITIONS.items():
        check = [op(load, 16 + 8 * index), op(mask, bits)]
        check += [op(equal, value, len(values) - i) for i, value in enumerate(values)]
        check += [op(answer, deny), op(answer, allow)]
        program += [op(equal, number, 0, len(check)), *check]
    return b"".join([*program, op(answer, deny)])


class _Confinement:
    """The rights that judge and player give up, for good. `missing` says which this machine cannot take away."""

    NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000    # unshare(2)
    READ_FILE, READ_DIR, WRITE_FILE, EXECUTE = 4, 8, 2, 1                                              # landlock(7)
    NO_PLACE_RIGHTS = 0x8E41                                   # execute, devices, sockets, pipes with a name, ioctl

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self.namespaces = self.libc is not None and self.separate()
        self.handled = self.landlock()
        x86 = self.libc is not None and os.uname().machine == "x86_64" and self.libc.prctl(21, 0, 0, 0, 0) == 0
        self.filters = {"judge": _seccomp_filter(_PIDFD_SEND_SIGNAL), "player": _seccomp_filter()} if x86 else None
        self.missing = [what for what, there in (
            ("namespaces (programs can see other processes, and without seccomp leave some behind)", self.namespaces),
            ("Landlock (programs can read files and, as an ordinary user's, the memory of this process: rewards can "
             "be forged; without namespaces they can write where this user may)", self.handled),
            ("seccomp (programs can start processes, and without namespaces signal others, change the modes of files "
             "and open sockets)", self.filters)) if not there]
        self.room = int(open("/proc/self/statm").read().split()[0]) * 4096 if self.libc else 2**28

    def separate(self):
        """Move the server, and all that it will fork, to user, mount, process, IPC and network namespaces."""
        user, group = os.getuid(), os.getgid()
        if self.libc.unshare(self.NEWUSER | self.NEWNS | self.NEWIPC | self.NEWPID | self.NEWNET):
            return False
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
        if child := os.fork():                                 # the child is the first there; all end with it
            os.closerange(0, 64)
            os.waitpid(child, 0)
            os._exit(0)
        self.libc.prctl(1, signal.SIGKILL, 0, 0, 0)            # and it ends with its parent
        private, recursive = 1 << 18, 1 << 14
        if self.libc.mount(None, b"/", None, private | recursive, None):
            return False
        read_only = struct.pack("QQQQ", 1, 0, 0, 0)
        self.libc.syscall(442, -100, b"/", 0x8000, read_only, len(read_only))              # mount_setattr, recursive
        return True

    def landlock(self):
        """The kinds of access that this kernel can restrict, and in self.readable the paths that may still be read:
        the standard library, but not site-packages, where data sets live."""
        version = self.libc.syscall(444, None, 0, 1) if self.libc else 0
        if version < 1:
            return None
        paths = []
        for folder in filter(os.path.isdir, sys.path):
            entries = os.listdir(folder)
            hidden = [os.path.join(folder, entry) for entry in entries if entry in ("site-packages", "dist-packages")]
            if self.namespaces and not any(self.libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 1, b"size=0")
                                           for path in hidden):
                paths.append(folder)                           # they are covered up: one rule will do
            else:
                paths += {os.path.join(folder, entry) for entry in entries} - {*hidden}
        with open("/proc/self/maps") as maps:                  # and the shared libraries of zlib, sqlite3 and the like
            folders = {os.path.dirname(line.split()[-1]) for line in maps if ".so" in line}
        paths += [os.path.join(folder, file) for folder in folders for file in os.listdir(folder)
                  if re.match(r"lib(z|bz2|lzma|sqlite3|crypto|ssl|ffi|expat|mpdec|uuid)\.so|lib(z|crypto|ssl)-", file)]
        self.readable = [rule for path in [*paths, "/dev/urandom", "/usr/share/zoneinfo"]
                         if (rule := self.rule(path, self.READ_FILE))]
        self.readable.append(self.rule("/dev/null", self.READ_FILE | self.WRITE_FILE))
        return 2**(13 + (version >= 2) + (version >= 3) + (version >= 5)) - 1, 3 * (version >= 4), 3 * (version >= 6)

    def rule(self, path, access):
        with contextlib.suppress(OSError):
            access |= self.READ_DIR if os.path.isdir(path) else 0
            return struct.pack("=Qi", access, os.open(path, os.O_PATH))

    def enter(self, program):
        """Before the player is forked: an empty directory to work in, and nothing else of the file system."""
        if self.namespaces:
            # Killing the first process of a process namespace kills all others in it. The directory is in memory, of
            # bounded size, and vanishes with the last process that sees it.
            if (self.libc.unshare(self.NEWNS | self.NEWPID | self.NEWIPC)
                    or self.libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 6, b"size=64m,nr_inodes=4096")):
                os._exit(1)
        place = "/tmp" if self.namespaces else program["directory"]
        os.chdir(place)
        os.environ.update(TMPDIR=place, HOME=place)
        if self.libc:
            self.libc.prctl(38, 1, 0, 0, 0)                                                # no new privileges
        if self.handled:
            attributes = struct.pack("QQQ", *self.handled)
            ruleset = self.libc.syscall(444, attributes, len(attributes), 0)
            rules = [*self.readable, self.rule(place, self.handled[0] & ~self.NO_PLACE_RIGHTS)]
            for rule in filter(None, rules):
                self.libc.syscall(445, ruleset, 1, rule, 0)
            if self.libc.syscall(446, ruleset, 0):
                os._exit(1)
            for file in [ruleset, *(struct.unpack("=Qi", rule)[1] for rule in filter(None, rules))]:
                os.close(file)
        if self.libc:
            self.libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24))                  # root, but of nothing

    def give_up(self, program, role):
        """The last step before meeting what is not trusted: limits, and the filter of system calls."""
        memory = self.room + program["memory"] * (2 if role == "judge" else 1)
        limits = {"RLIMIT_AS": memory, "RLIMIT_CPU": program["cpu"], "RLIMIT_FSIZE": 2**24, "RLIMIT_NOFILE": 256,
                  "RLIMIT_CORE": 0}
        limits |= {} if self.filters else {"RLIMIT_NPROC": 0}
        for name, value in limits.items():
            with contextlib.suppress(AttributeError, ValueError, OSError):                 # not all exist on macOS
                resource.setrlimit(getattr(resource, name), (value, value))
        if self.libc:
            self.libc.prctl(1, signal.SIGKILL, 0, 0, 0)                                    # die with the parent
            if role == "judge":
                self.libc.prctl(4, 0, 0, 0, 0)                                             # nobody may read its memory
        if self.filters:
            code = self.filters[role]
            buffer = ctypes.create_string_buffer(code)
            if self.libc.prctl(22, 2, struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)), 0, 0):
                os._exit(1)

    def killer(self, pid):
        """A function that kills the process and works after give_up, when no other process can be named."""
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                return lambda: signal.pidfd_send_signal(handle, signal.SIGKILL)
        return lambda: os.kill(pid, signal.SIGKILL)


def _serve():
    """The server: fork a judge for every channel that comes in, until the trainer is gone."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    confinement = _Confinement()
    _send(control, {"missing": confinement.missing, "namespaces": confinement.namespaces})
    os.dup2(null, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)              # nobody waits for the judges
    gc.freeze()                                                # a collection in a fork would copy every page it visits
    while True:
        child = None
        data, channels, *_ = socket.recv_fds(control, 1, 1)
        if not data:
            os._exit(0)
        with contextlib.suppress(OSError):                     # no memory for a fork: the trainer will try again
            child = os.fork()
        if child == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                trainer = socket.socket(fileno=channels[0])
                program = _receive(trainer)
                _judge(trainer, program, confinement)
            finally:
                os._exit(0)
        os.close(channels[0])


# ---- B2. The verdict -------------------------------------------------------------------------------------------------

class _Server:
    """The server's process: started at the first use, again when it was lost, and ended with this process."""

    lock, process, control, hello, entry = threading.Lock(), None, None, {}, "_serve()"

    @classmethod
    def connect(cls):
        """A channel to a new judge."""
        for _ in range(3):
            with cls.lock:
                if cls.process is None:
                    cls.start()
                ours, theirs = socket.socketpair()
                with theirs, contextlib.suppress(OSError):
                    socket.send_fds(cls.control, [b"+"], [theirs.fileno()])
                    return ours
            ours.close()                                       # somebody has killed the server
            cls.stop()
        raise RuntimeError("verify_code: the server of the sandbox does not stay alive")

    @classmethod
    def start(cls):
        if not hasattr(os, "fork"):
            raise NotImplementedError("programs are run only where there is fork: on Windows use WSL")
        source = Path(__file__).read_text(encoding="utf-8").partition("\n# ---- B1.")[2].partition("\n# ---- B2.")[0]
        cls.control, theirs = socket.socketpair()
        # No environment (it may hold keys) except what a Python may need to start.
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        env["MALLOC_ARENA_MAX"] = "1"                          # else each thread of a program takes 64 MB of addresses
        cls.process = subprocess.Popen([sys.executable, "-I", "-S", "-c", f"{_SERVER_IMPORTS}\n#{source}\n{cls.entry}"],
                                       stdin=theirs, env=env, cwd="/", start_new_session=True)
        theirs.close()
        try:
            cls.hello = _receive(cls.control)
        except _Gone:
            raise RuntimeError("verify_code: the server of the sandbox did not start; its error is above") from None
        if cls.hello["missing"]:
            warnings.warn("verify_code: this machine lacks " + ", ".join(cls.hello["missing"]), stacklevel=5)

    @classmethod
    def stop(cls):
        with cls.lock:
            if cls.process is not None:
                cls.control.close()
                cls.process.kill()
                cls.process.wait()
                cls.process = None

    @classmethod
    def forget(cls):                                           # in a fork, which has its own lock and server
        if cls.process is not None:
            cls.control.close()                                # or the server would live as long as the fork
        cls.lock, cls.process = threading.Lock(), None


atexit.register(_Server.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Server.forget)

_SERVER_IMPORTS = """
import ast, builtins, collections, contextlib, ctypes, datetime, decimal, functools, gc, importlib, io, json, operator
import os, resource, signal, socket, struct, symtable, sys, threading, types
from fractions import Fraction
from pathlib import Path
# and what programs usually import, so that it costs them nothing:
import bisect, copy, dataclasses, enum, heapq, itertools, math, random, re, string, time, typing, warnings
"""
MAX_KILLED = 8             # a program that had to be killed so many times is not run again


def run_tests(code, tests, timeout, memory_mb):
    """The verdicts of verify_code, one for each test.

    Each time the program had to be killed the time for the rest is halved, so an endless loop costs its own test, and
    many cost little in all.

    Open: bugs of the kernel or of CPython; timing; the existence of files and processes (not their contents); tests
    that ask the program for its own opinion, such as a boolean method of its own class, or evaluate what it wrote; weak
    tests (check_tests). On a machine without Landlock, seccomp or namespaces (macOS, some
    containers; no seccomp off x86-64), a warning says what programs can do; on Windows nothing runs.
    """
    verdicts, killed = [], 0
    common = set.intersection(*map(_names_for, tests)) if tests else set()
    while len(verdicts) < len(tests) and killed < MAX_KILLED:
        verdicts += _attempt(code, tests[len(verdicts):], timeout / 2**killed, memory_mb, [*common])
        killed += 1
    if tests and not verdicts:
        raise RuntimeError("verify_code: the sandbox does not work on this machine: no judge could be started")
    return verdicts + [{"passed": False, "why": "not run: killed too often"}] * (len(tests) - len(verdicts))


def _names_for(test):
    """_from_program for any text."""
    try:
        return _from_program(test)[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


def _attempt(code, tests, limit, memory_mb, common):
    """The verdicts on the tests up to the first after which the player is lost."""
    verdicts, verdict = [], None
    with _Server.connect() as channel, _directory() as directory:
        channel.settimeout(4 * limit + 10)
        try:
            _send(channel, {"code": code, "limit": limit, "memory": memory_mb * 2**20, "directory": directory,
                            "common": common, "cpu": math.ceil(limit * (len(tests) + 1)) + 1})
            if not (verdict := _receive(channel))["passed"]:
                return [verdict] * len(tests)
            for test in tests:
                _send(channel, test)
                verdicts.append(_receive(channel))
                if verdicts[-1].get("over"):
                    break
            channel.shutdown(socket.SHUT_WR)
            while channel.recv(1):                             # returns when the judge, and so the player, is gone
                pass
        except (_Gone, OSError) as error:
            if isinstance(error.__cause__, TimeoutError):
                _Server.stop()
            if verdict and len(verdicts) < len(tests):         # without a first verdict it is not the program's fault
                verdicts.append({"passed": False, "why": "the judge was lost (time or memory)"})
    return verdicts


@contextlib.contextmanager
def _directory():
    """Where programs work: inside the namespaces an own /tmp, else a new directory."""
    if _Server.hello["namespaces"]:
        yield None
        return
    path = tempfile.mkdtemp()
    try:
        yield path
    finally:
        try:
            shutil.rmtree(path, ignore_errors=True)
        except RecursionError:                                 # a thousand directories in each other
            subprocess.run(["rm", "-rf", path], check=False)


def check_tests(problems: list[dict], timeout: float = 1.0) -> list[dict]:
    """What programs that have learnt nothing earn: run this on a data set before training on it.

    problems: dicts with "tests" -> for each a dict {"empty", "echo", "constant", "value"}: the share of its tests that
    is passed by the empty program, by one that returns its first argument, and by the best program that returns one
    constant (its `value`). Above 0 for "empty", a test tests nothing; what "constant" earns is the baseline of
    code_reward(..., baseline=...).
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda problem: _check_tests(problem["tests"], timeout), problems))


def _check_tests(tests, timeout):
    names, values = set(), collections.Counter(["None", "True", "False", "0", "1", "''", "[]"])
    for test in tests:
        names |= _names_for(test)
        with contextlib.suppress(SyntaxError, ValueError):
            values.update(ast.unparse(side) for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Compare)
                          for side in (node.left, *node.comparators) if _is_literal(side))

    def share(result):
        code = "\n".join(f"def {name}(*args, **kwargs):\n    return {result}" for name in names) if result else ""
        return verify_code(code, tests, timeout)["frac"]
    constants = {value: share(value) for value, _ in values.most_common(20)}
    best = max(constants, key=constants.get)
    return {"empty": share(""), "echo": share("args[0] if args else None"), "constant": constants[best], "value": best}


# ---- Appendix C. Files: of problems, and of your own functions -------------------------------------------------------
import difflib
import gzip
import importlib
import json
import sys
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
    hint = " or ".join(difflib.get_close_matches(name, names))
    hint = f"; did you mean {hint}?" if hint else ""
    if colon:
        raise DataError(f"there is no {what} {name!r} in {path}{hint}")
    raise DataError(f"there is no {what} {name!r}: choose one of {', '.join(known)}, or file.py:name{hint}")


def _import_file(path):
    """The module in that file. Python imports a file once, so two flags may name the same one."""
    path = Path(path).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise DataError(f"{path}: there is no such Python file")
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = lines[-1] if lines else getattr(error, "lineno", "?")
        raise DataError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise DataError(f"{path}: another module is called {path.stem!r}: give your file another name")
    return module


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


def read_problems(path) -> list[dict]:
    """The problems of a .jsonl file (one object a line) or a .json file (one list), also gzipped.

    Columns: "problem" or "question"; "answer" (text, a number, or GSM8K's solution #### answer) or
    "tests" (a list of asserts); others are kept. DataError with the first line that cannot be used.
    """
    try:
        with (gzip.open if str(path).endswith(".gz") else open)(
                path, "rt", encoding="utf-8-sig", errors="surrogateescape") as file:
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
    if isinstance(answer, list) and len(answer) == 1:
        answer, = answer
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
        reason = str(error).strip().partition("\n")[0][:200]
        raise DataError(f"{name}: cannot be fetched from the hub ({reason}). Check the network, HF_ENDPOINT and "
                        "HF_HUB_OFFLINE, or pass a file as --task") from error
    files = [file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()]
    if not files:
        raise DataError(f"{name}: holds no {' or '.join(patterns)}; convert what it holds and pass it as --task")
    return read_problems(max(files, key=lambda file: file.stat().st_size))


# ---- Try it ----------------------------------------------------------------------------------------------------------

def main():
    """A table: completion, what is extracted, how it is read, the verdict and the rung that decided."""
    cases = [(r"x = \boxed{4}", "4"), (r"\boxed{4.0}", "4"), (r"first \boxed{4}, no, \boxed{5}", "4"),
             (r"\boxed{4} or \boxed{4", "4"), ("it is 4", "4"), (r"\boxed{\dfrac12}", r"\frac{1}{2}"),
             (r"\boxed{0.5}", r"\frac12"), (r"\boxed{0.33}", r"\frac13"), (r"\boxed{(x+1)(x-2)}", "x^2-x-2"),
             (r"\boxed{3, 2}", r"\{2, 3\}"), (r"\boxed{(3, 2)}", "(2, 3)"), (r"\boxed{[0, 1)}", "(0, 1)"),
             (r"\boxed{x > 2}", r"(2, \infty)"), (r"\boxed{5\text{ cm}}", "5"), (r"\boxed{x = 5}", "5"),
             (r"\boxed{9^{9^{9^{9}}}}", "1"), (r"\boxed{__import__('os').system('ls')}", "0")]
    print(f"{'completion':40} {'truth':14} {'extracted':32} {'read as':44} {'verdict':8} rung")
    for completion, truth in cases:
        extracted = extract_boxed_answer(completion)
        right, rung, read, _ = explain_grade(extracted, truth)
        print(f"{completion:40} {truth:14} {extracted!s:32} {read:44} {'right' if right else 'wrong':8} {rung}")


if __name__ == "__main__":
    main()
