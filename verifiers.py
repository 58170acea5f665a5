r"""verifiers.py - what counts as right: from a completion to a reward, with rules and no model.

What you will learn: how the answer is found in a text (section 1) and compared with the truth (2),
what else can be checked (3), how verdicts become one number (4), and how problems, the sentence
that asks for the answer and the reward that reads it belong together (5). Section 6, files, and two
appendices can wait: grading.py compares answers by value, sandbox.py runs programs. More verifiers
and rewards, and how policies cheat, are in notebooks/rewards.py.

A completion is hostile text: no answer is ever evaluated by Python or sympy, sizes are checked
before anything large is computed, and a program runs where it can neither reach anything of ours
nor report on itself.
"""

import contextlib
import gzip
import importlib
import json
import math
import os
import queue
import random
import re
import sys
import threading
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from grading import copied, worked_out
from grading import equal as explain_grade
from sandbox import run_stdio, run_tests

# ---- 1. Extract: the last box of a completion ----------------------------------------------------
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.S)  # \\. swallows \{ and \}: they are content, not braces


def extract_boxed_answer(text):
    r"""The content of the last \boxed{...} or \fbox{...} or None (departure 8). Linear in
    len(text). A malformed *last* box is no answer even if an earlier one was right: falling back to
    that one would pay a policy for boxing everything it tries."""
    boxes = list(_BOX.finditer(text if isinstance(text, str) else ""))
    if not boxes or not text.startswith("{", boxes[-1].end()):
        return None
    last = boxes[-1]
    depth = 0
    for brace in _BRACE.finditer(text, last.end()):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[last.end() + 1 : brace.start()].strip()
    return None


# ---- 2. The comparison ---------------------------------------------------------------------------


def grade_answer(predicted, ground_truth):
    """Is `predicted` the same answer as `ground_truth`?  Never raises or hangs; the
    verdict is always the same."""
    try:
        return explain_grade(predicted, ground_truth)[0]
    except Exception:  # a last resort, as when the caller's stack is nearly full: rewards do not raise
        return False


def pays(predicted, truth, problem=""):
    """Does a reward pay for this answer?  It must equal the truth, or one of several, and be worked
    out (departure 12): 41+2-7 has the value 36, but a policy that copies the question has solved
    nothing."""
    truths = [truth] if isinstance(truth, str) else truth
    if predicted in truths:
        return True
    return any(grade_answer(predicted, t) and worked_out(predicted, t, problem) for t in truths)


# ---- 3. Verifiers: completion and truth in, named scores out -------------------------------------


def reward_rlvr(response, ground_truth):
    """The chapter's whole reward: 1.0 if the last boxed answer is right, 0.0 if
    wrong or missing."""
    return float(pays(extract_boxed_answer(response), ground_truth))


_UNTAGGED = r"((?:(?!</?(?:think|answer)>).)*)"
_TAGGED = re.compile(rf"\s*<think>{_UNTAGGED}</think>\s*<answer>{_UNTAGGED}</answer>\s*", re.S)


def split_tags(rollout):
    """(think, answer) of <think>...</think><answer>...</answer>, else None (DeepSeek-R1,
    arXiv 2501.12948). Each tag once, in this order, and only white space outside, so that
    there is no second answer."""
    form = _TAGGED.fullmatch(rollout)
    return form and form.groups()


def verify_math(rollout, truth, problem=""):
    r"""format: 1.0 if the tags are in order; answer: 1.0 if the last box inside <answer> is right.
    Without the tags nothing is extracted. <think>2+2=4</think><answer>\boxed{4}</answer> with 4:
    1.0, 1.0, "4".
    problem: its text, if known: an expression copied from it is no answer."""
    tags = split_tags(rollout)
    extracted = extract_boxed_answer(tags[1]) if tags else None
    right = pays(extracted, truth, problem)
    return {"format": float(tags is not None), "answer": float(right), "extracted": extracted}


def verify_format(rollout):
    """structure: 1.0 if the tags are in order; think_length: 1.0 for 8 characters of thinking or
    more, so that an empty <think></think> does not collect the whole format reward."""
    tags = split_tags(rollout)
    thought = tags is not None and len(tags[0].strip()) >= 8
    return {"structure": float(tags is not None), "think_length": float(thought)}


def verify_code(code, tests, timeout=2.0, entry_points=None, before="", memory_mb=256):
    """Run a program against hidden tests, each a string with an assert -> {"tests_passed",
    "tests_total", "frac", "seconds", "compared", "why"}. For how, see sandbox.py.

    timeout: seconds for each test and for loading; everything together may take four times as long.
        Waiting for a free core does not count. entry_points: the names that are the program's, if
        the data gives them (HumanEval's entry_point); otherwise sandbox.read_tests finds them.
        before: code of the data that runs ahead of the program. compared: how many tests were
        decided by calls and plain data alone; why: a line for each test. A test that lacks a helper
        fails; one that asks nothing of the program passes only if all the others do. Never raises
        because of anything that a program does."""
    _check(code, timeout)
    return _verdict(*run_tests(code, tests, timeout, memory_mb * 2**20, entry_points, before))


def verify_stdio(code, cases, timeout=2.0, tolerance=0.0, memory_mb=256):
    """Run a program that reads its standard input and prints -> as verify_code.

    cases: pairs (input, expected output), compared line by line without trailing blanks. tolerance:
        how far a number may be off, absolutely or relatively, if the data set allows for that.
    """
    _check(code, timeout)
    return _verdict(*run_stdio(code, cases, timeout, memory_mb * 2**20, tolerance))


def _check(code, timeout):
    if not isinstance(code, str) or not 0 < timeout < math.inf:
        raise ValueError(f"code must be text, and the timeout, {timeout}, seconds above 0")


def _verdict(verdicts, seconds):
    passed = sum(verdict["passed"] for verdict in verdicts)
    return {
        "tests_passed": passed,
        "tests_total": len(verdicts),
        "frac": passed / max(1, len(verdicts)),
        "seconds": seconds,
        "compared": sum(verdict["compared"] for verdict in verdicts),
        "why": [verdict["why"] for verdict in verdicts],
    }


# ---- 4. Rewards: scores in, one number out -------------------------------------------------------
# A reward is a function (completion, problem) -> (number, parts). problem has the columns of the
# data and, in training, "step". Of the parts, "accuracy" (0 to 1) is what an evaluation counts, and
# "answered" is 1 if there was an answer; means of all are logged. A completion that was cut off
# earns at most 0 (departure 5).


@dataclass
class RuleSpec:
    """One term of a reward: what counts (a verifier's output -> 0 to 1) and how much."""

    name: str
    weight: float
    score_fn: Callable


def aggregate(verifier_out, rules):
    """R = sum_i w_i r_i. A sum, not a product: the right form with a wrong answer must earn
    more than nothing, or there is nothing to climb at the start."""
    return sum(rule.weight * rule.score_fn(verifier_out) for rule in rules)


MATH_RULES = [
    RuleSpec("format", 0.1, lambda v: v["format"]),
    RuleSpec("answer", 1.0, lambda v: v["answer"]),
]
FORMAT_RULES = [
    RuleSpec("structure", 1.0, lambda v: v["structure"]),
    RuleSpec("think_length", 0.2, lambda v: v["think_length"]),
]
CODE_RULES = [RuleSpec("frac", 1.0, lambda v: v["frac"])]


def box_parts(extracted, problem):
    """answered: there is a box; copied: it holds an expression of the problem's text."""
    in_problem = copied(extracted, problem.get("problem", ""))
    return {"answered": float(extracted is not None), "copied": float(in_problem)}


def boxed_reward(completion, problem):
    """1 for a right last box, else 0: the chapter's reward, for models that know no tags."""
    extracted = extract_boxed_answer(completion)
    truth = problem.get("aliases") or problem["answer"]  # all that are accepted, or the only one
    right = float(pays(extracted, truth, problem.get("problem", "")))
    return right, {"accuracy": right, **box_parts(extracted, problem)}


def tagged_reward(completion, problem):
    """DeepSeek-R1-Zero's reward, accuracy + 0.1 * format (the chapter's weight),
    both on the tagged form."""
    truth = problem.get("aliases") or problem["answer"]
    out = verify_math(completion, truth, problem.get("problem", ""))
    parts = {"accuracy": out["answer"], "format": out["format"]}
    return aggregate(out, MATH_RULES), parts | box_parts(out["extracted"], problem)


# Words, to measure the length of the thinking: split at white space, as in the chapter; but a
# Chinese or Japanese character is a word, and so is every run of 16 characters without a space.
WORD = re.compile(r"[\u3040-\u9fff]|[^\s\u3040-\u9fff]{1,16}")
_SCRIPTS = [
    r"(?<![A-Za-z\\])[A-Za-z]{2,}",  # Latin; a single x or a \frac is mathematics
    "[\u3040-\u30ff\u3400-\u9fff]",  # kana and Han
    "[\uac00-\ud7af]",  # Hangul
    "[\u0400-\u04ff]",  # Cyrillic
    "[\u0600-\u06ff]",  # Arabic
]
# Words that announce an answer and derive nothing: see derivation.
_ANNOUNCING = set(
    "the so thus hence therefore final answer result value is are equals must be it "
    "clearly obviously based on above a an =".split()
)


def mixed_scripts(text, threshold=0.10):
    """Is more than a tenth of the letters outside the main script? Chinese with an
    x is Chinese."""
    counts = [sum(map(len, re.findall(script, text))) for script in _SCRIPTS]
    return sum(counts) - max(counts) > threshold * sum(counts)


def derivation(think, answer):
    """Characters of thinking that do more than announce: "The answer is 42." has
    0, "6*7=42" has 6."""
    text = re.sub(r"答案|显然|是|\\(?:boxed|fbox)\{[^{}]*\}", " ", think.lower())
    words = [word.strip(".,;:!?$()*") for word in text.split()]
    idle = _ANNOUNCING | {(answer or "").lower()}
    return sum(len(word) for word in words if word not in idle)


@dataclass
class ReasoningReward:
    """R = w_acc acc + w_fmt fmt + len + lang (chapter "Reward Design for Reasoning"), n words of
    thinking:

    acc    1 if the last box of the answer is right
    fmt    1 for the tagged form with min_think characters of derivation in the think block
    len    w_len min(n, len_cap) / len_cap (w_len n / len_cap if saturates is False); beyond the
           threshold less w_ramble min(1, n / ramble_threshold - 1): a right answer after 612
           words earns 1.1 - 0.3 * 0.53 = 0.94
    lang   -w_lang if the thinking mixes scripts, however much
    All are 0 if the completion was cut off, or its tags are broken or missing; with needs_tags
    False a right box without tags earns w_acc."""

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

    def __call__(self, rollout, truth, truncated=False, problem=""):
        tags = split_tags(rollout)
        broken = tags is None and re.search("</?(?:think|answer)>", rollout)
        if truncated or broken or tags is None and self.needs_tags:
            scores = "R acc fmt len lang think_tokens".split()
            return {**dict.fromkeys(scores, 0.0), "extracted": None}
        think, answer = tags or ("", rollout)
        n, extracted = len(WORD.findall(think)), extract_boxed_answer(answer)
        acc = float(pays(extracted, truth, problem))
        fmt = float(tags is not None and derivation(think, extracted) >= self.min_think)
        length = self.w_len * (min(n, self.len_cap) if self.saturates else n) / self.len_cap
        length -= self.w_ramble * min(1.0, max(0.0, n / self.ramble_threshold - 1))
        lang = -self.w_lang * mixed_scripts(think)
        total = self.w_acc * acc + self.w_fmt * fmt + length + lang
        return {
            "R": total,
            "acc": acc,
            "fmt": fmt,
            "len": length,
            "lang": lang,
            "think_tokens": n,
            "extracted": extracted,
        }

    def reward(self, completion, problem):
        truth = problem.get("aliases") or problem["answer"]
        out = self(completion, truth, problem=problem.get("problem", ""))
        parts = {"accuracy": out["acc"], "format": out["fmt"], "length_term": out["len"]}
        parts |= {"language": out["lang"], "thinking": out["think_tokens"]}
        return out["R"], parts | box_parts(out["extracted"], problem)


def extract_code(response):
    """The last ```python block after the thinking; None without one, or if a block is not closed."""
    text = response.rpartition("</think>")[2]
    programs = re.findall(r"```[ \t]*(?:python3?|py)[ \t\r]*\n(.*?)```", text, re.S | re.I)
    return programs[-1] if programs and text.count("```") % 2 == 0 else None


def code_reward(response, problem):
    """The share of the tests that the last program of the completion passes.

    problem: "tests", asserts for verify_code or pairs for verify_stdio; and, optionally,
        "entry_points" and "before" (verify_code), "tolerance" (verify_stdio), "timeout" and
        "memory_mb". If a program that does nothing passes some of the tests, see code_parts_reward
        in the laboratory."""
    code = extract_code(response)
    tests = problem["tests"]
    is_stdio = tests and not isinstance(tests[0], str)
    verify = verify_stdio if is_stdio else verify_code
    named = {"tolerance"} if is_stdio else {"entry_points", "before"}
    named |= {"timeout", "memory_mb"}
    options = {name: problem[name] for name in named & problem.keys()}
    frac = verify(code, tests, **options)["frac"] if code else 0.0
    parts = {"accuracy": float(frac == 1.0), "answered": float(code is not None), "tests": frac}
    return aggregate({"frac": frac}, CODE_RULES), parts


REWARDS = {
    "boxed": boxed_reward,
    "tagged": tagged_reward,
    "code": code_reward,
    "r1-zero": ReasoningReward(w_lang=0.0, w_ramble=0.0).reward,
    "r1": ReasoningReward().reward,
}


def get_reward(spec):
    return find(spec, REWARDS, "reward")


COLUMNS = set(  # of the log: no part may have such a name
    "step reward completion_length mixed solved hopeless loss entropy mismatch clipped kl trained "
    "grad_norm lr truncated seconds".split()
)
PATIENCE = 60.0  # seconds without a verdict, after which those still missing count as failed


def judge(texts, problems, reward_fn):
    """The verdict on each completion -> a list of (reward, {name: number}).

    reward_fn(completion, problem) -> (number, {name: number}), called from several threads. The
    part "accuracy" is what evaluation counts (default: the reward, within 0 and 1). If it raises,
    hangs, or returns something else, the reward is 0 and the part "failed" 1."""
    places = iter(range(len(texts)))
    verdicts = queue.SimpleQueue()

    def work():
        for place in places:  # each thread takes the next one
            try:
                verdict = reward_fn(texts[place], problems[place])
            except (Exception, SystemExit) as error:
                verdict = error
            verdicts.put((place, verdict))

    for _ in range(os.cpu_count() + 4):  # daemons, or one that hangs would keep the process alive
        threading.Thread(target=work, daemon=True).start()
    found = [TimeoutError("no verdict")] * len(texts)
    with contextlib.suppress(queue.Empty):  # no verdict came for PATIENCE
        for _ in texts:
            place, verdict = verdicts.get(timeout=PATIENCE)
            found[place] = verdict
    list(places)  # no thread begins another
    results = []
    for verdict in found:
        try:
            if isinstance(verdict, BaseException):
                raise verdict
            reward, own = verdict
            reward = float(reward)
            taken = COLUMNS & own.keys()
            if taken:
                raise ValueError(f"its parts {taken} are columns of the log")
            parts = {"accuracy": min(1.0, max(0.0, reward)), "answered": 1.0, "failed": 0.0, **own}
            parts = {name: float(part) for name, part in parts.items()}
            if not math.isfinite(reward + sum(parts.values())) or not 0 <= parts["accuracy"] <= 1:
                raise ValueError(f"it returned {reward}, {own}")
        except (Exception, SystemExit) as error:
            warnings.warn(  # Python shows the same warning only once
                f"the verifier failed ({type(error).__name__}: {str(error)[:200]}). A reward "
                'returns (number, {name: number}), finite, with "accuracy" from 0 to 1 or none, '
                "in a minute",
                stacklevel=2,
            )
            reward = 0.0
            parts = {"accuracy": 0.0, "answered": 0.0, "failed": 1.0}
        results.append((reward, parts))
    return results


# ---- 5. Tasks: problems, the sentence that asks for the answer, and the reward that reads it -----


@dataclass
class Task:
    """A problem is a dict with at least "problem" and "answer", both text."""

    name: str
    train: list
    test: list  # never trained on
    instruction: str  # a text with {problem} in it; it asks for what the reward reads
    reward: Callable  # (completion, problem) -> (number, parts): see section 4
    note: str = ""  # where the problems come from, printed at the start
    stops: tuple = ()  # texts that end a completion, for base models

    def prompt(self, problem):
        return self.instruction.replace("{problem}", problem["problem"])


BOXED = (
    "Solve the following problem. Put your final answer within \\boxed{}.\n\n"
    "Problem: {problem}\n\nSolution:"
)
PROGRAM = (
    "{problem}\n\nWrite the whole program in one ```python block at the end of your answer.\n\n"
)


def held_out(problem):
    """One problem in ten, by its text alone: no seed, order or later addition moves one across."""
    return zlib.crc32(problem["problem"].encode()) % 10 == 0


def arithmetic_problem(rng):
    """A two-digit start and 2 to 4 steps of one digit, every running value in 10 ..
    99, such as 25+7+9-4= -> 37. The constant width matters: with it a tiny model
    learns the worked form at once."""
    value = rng.randint(10, 99)
    text = str(value)
    for _ in range(rng.randint(2, 4)):
        change = rng.choice([d for d in range(-9, 10) if d and 10 <= value + d <= 99])
        value, text = value + change, f"{text}{change:+d}"
    return {"problem": text + "=", "answer": str(value)}


def arithmetic(train_size=10_000, test_size=500, seed=0):
    """The laptop's task, in the tagged form."""
    rng, train, test = random.Random(seed), {}, {}
    while len(train) < train_size or len(test) < test_size:
        problem = arithmetic_problem(rng)
        split, size = (test, test_size) if held_out(problem) else (train, train_size)
        if len(split) < size:
            split[problem["problem"]] = problem  # if it was drawn before, nothing is added
    return Task(
        "arithmetic",
        [*train.values()],
        [*test.values()],
        "{problem}",
        tagged_reward,
        "split by a hash",
    )


def math500():
    test = hub_problems("HuggingFaceH4/MATH-500")
    return Task("math500", [], test, BOXED, boxed_reward, "MATH-500, for evaluation only")


def math_task():
    """The 12,000 problems of MATH that are not in MATH-500, and MATH-500 as the test."""
    test = math500().test
    tested = {problem["problem"] for problem in test}
    train = hub_problems("rasbt/math_full_minus_math500")
    train = [problem for problem in train if problem["problem"] not in tested]
    note = "MATH without MATH-500; tested on MATH-500"
    return Task("math", train, test, BOXED, boxed_reward, note)


TASKS = {"arithmetic": arithmetic, "math": math_task, "math500": math500}


def _file_task(path):
    """A task out of a file, with one problem in ten held out."""
    problems = read_problems(path)
    test = [problem for problem in problems if held_out(problem)]
    train = [problem for problem in problems if not held_out(problem)]
    if not train or not test:
        raise DataError(f"{path}: {len(problems)} problems are too few to hold one in ten out")
    note = f"{path}: {len(problems)} problems, {len(test)} held out by a hash"
    programs = all(isinstance(problem.get("tests"), list) for problem in problems)
    form = (PROGRAM, code_reward) if programs else (BOXED, boxed_reward)
    return Task(Path(path).stem, train, test, *form, note)


def judged_by(own, other):
    """The reward `other`; "accuracy", if it returns none, is that of the task's own reward."""

    def reward_fn(completion, problem):
        reward, parts = other(completion, problem)
        if "accuracy" not in parts:
            number, known = own(completion, problem)
            accuracy = known.get("accuracy", min(1.0, max(0.0, number)))
            parts = {"accuracy": accuracy, **parts}
        return reward, parts

    return reward_fn


def get_task(spec, prompt=None, stops=(), reward=None):
    """The task of that name, from a function `file.py:name`, or from a file of problems
    (read_problems). prompt, stops and reward replace its instruction, which must contain {problem},
    the texts that end a completion (\\n is a line break), and its reward. Raises DataError."""
    is_file = str(spec).endswith((".jsonl", ".json", ".gz"))
    try:
        task = _file_task(spec) if is_file else find(spec, TASKS, "task")()
    except TypeError as error:  # such as a reward
        raise DataError(f"task {spec}: {error}; it is called without arguments") from error
    if not isinstance(task, Task):
        raise DataError(f"task {spec}: it returns {type(task).__name__}, not verifiers.Task")
    stops = tuple(stop.replace("\\n", "\n") for stop in stops)
    task = replace(task, instruction=prompt or task.instruction, stops=stops or task.stops)
    check_task(task)
    if reward:
        task.reward = judged_by(task.reward, get_reward(reward))
    return task


def check_task(task):
    """Raise DataError for what would fail later, or never be right, as an answer that is no text."""
    where = f"task {task.name}"
    lists = isinstance(task.train, list) and isinstance(task.test, list)
    texts = tuple(stop for stop in task.stops if stop and isinstance(stop, str))
    if not lists or not task.test or not callable(task.reward) or task.stops != texts:
        form = "train and test are lists of problems, test is not empty"
        raise DataError(f"{where}: {form}, reward is a function, stops are a tuple of texts")
    for n, problem in enumerate(task.train + task.test, 1):
        for name in ("problem", "answer"):
            value = problem.get(name) if isinstance(problem, dict) else None
            if not isinstance(value, str) or not value:
                raise DataError(f'{where}, problem {n}: its "{name}" must be text')
    if "{problem}" not in str(task.instruction):
        form = "'Question: {problem}\\nAnswer:'"
        raise DataError(f"{where}: its prompt needs {{problem}}, as in {form}")


# ---- 6. Files: of problems, and of your own functions --------------------------------------------
class DataError(ValueError):
    """Something asked for does not exist or cannot be read: the message says what to do."""


def find(spec, known, what):
    """What is called spec: one of `known`, or a function or class of yours, `file.py:name`."""
    path, colon, name = spec.rpartition(":")
    names = known
    if colon:
        module = vars(_import_file(path))
        names = {key: value for key, value in module.items() if callable(value)}
    if name not in names:
        choice = ", ".join([*names, "file.py:name"])
        raise DataError(f"there is no {what} {spec!r}: choose {choice}")
    return names[name]


def find_class(spec, base):
    """The class `file.py:Class`, or of `file.py` the only subclass of `base` that it defines."""
    path, colon, wanted = spec.partition(".py:")
    module = _import_file(path + ".py" if colon else path)
    kinds = []
    for name, kind in vars(module).items():
        is_own = isinstance(kind, type) and kind.__module__ == module.__name__
        if is_own and issubclass(kind, base) and name == (wanted or kind.__name__):
            kinds.append(kind)
    if len(kinds) != 1:
        found = f"it names {len(kinds)} subclasses of {base.__name__}, not one"
        raise DataError(f"{spec}: {found}; of several name one, as file.py:Class")
    return kinds[0]


def _import_file(path):
    """The module in that file. Python imports a file once, so two flags may name the same one."""
    path = Path(path).resolve()
    if path.suffix != ".py" or not path.is_file() or "." in path.stem:
        raise DataError(f"{path}: there is no such Python file, or its name has two dots")
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        line = getattr(error, "lineno", traceback.extract_tb(error.__traceback__)[-1].lineno)
        raise DataError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise DataError(
            f"{path}: another module is called {path.stem!r}: give your file another name"
        )
    return module


def read_problems(path):
    """The problems of a .jsonl file (one object a line) or a .json file (one list), also
    gzipped: "problem" or "question"; "answer" (text, a number, GSM8K's solution #### answer, a
    list of texts that are all accepted; with "choices", the place of the right one) or "tests"
    (asserts, or pairs for verify_stdio). Other columns are kept."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        return [
            _problem(row, f"{path}, entry {n}") for n, row in enumerate(read_json(text, path), 1)
        ]
    lines = [(f"{path}, line {n}", line) for n, line in enumerate(text.split("\n"), 1)]
    return [_problem(read_json(line, where), where) for where, line in lines if line.strip()]


def read_text(path):
    """The text of a file that may be gzipped."""
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def read_json(text, where):
    try:
        value = json.loads(text)
        # A lone surrogate would fail only much later.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON in UTF-8 ({error})") from None


def _problem(row, where):
    row = {name.lower(): value for name, value in row.items()} if isinstance(row, dict) else {}
    problem = row.get("problem", row.get("question"))
    answer = row.get("answer")
    if answer is None and isinstance(row.get("tests"), list):
        answer = "\n".join(map(str, row["tests"]))
    choices = row.get("choices")
    if isinstance(
        choices, list
    ):  # MMLU's form: the answer is the place of the right one, from 0 on
        lines = [f"{chr(65 + place)}. {choice}" for place, choice in enumerate(choices)]  # A, B, ..
        problem = "\n".join([str(problem), *lines])
        if answer in range(len(choices)):
            answer = chr(65 + int(answer))
    answers = answer if isinstance(answer, list) else [answer]
    texts = [str(one).strip() for one in answers if isinstance(one, (str, int, float))]
    solution, mark, last = "".join(texts[:1]).rpartition("####")
    if not isinstance(problem, str) or not last or len(texts) < len(answers):
        raise DataError(
            f'{where}: needs "problem" (text) and "answer" (text, a number or accepted texts), '
            'like {"problem": "1+1=?", "answer": "2"}, or "tests" (a list of asserts) for a program'
        )
    row |= {"problem": problem, "answer": last.strip()}
    if mark:
        row["solution"] = solution.strip()  # for few-shot prompts
    if isinstance(answer, list):
        row["aliases"] = texts
    return row


def hub_problems(name, pattern="*.json*"):
    """The problems of a data set on the Hugging Face hub: of its largest file;
    the others only describe it."""
    from huggingface_hub import snapshot_download  # only here: verifying needs no network

    try:
        folder = Path(snapshot_download(name, repo_type="dataset", allow_patterns=pattern))
        largest = max(folder.rglob(pattern), key=lambda file: file.stat().st_size)
    except Exception as error:
        raise DataError(
            f"{name}: no {pattern} can be fetched from the hub ({str(error).strip()[:200]}). Check "
            "the network, HF_ENDPOINT and HF_HUB_OFFLINE, or pass a file as --task"
        ) from error
    return read_problems(largest)
