"""verifiers.py - what counts as right: from a completion to a reward, with rules and no model.

What you will learn here: how an answer is found in a text and compared with the truth (sections 1 to 5), how scores
become one number (6 and 7), and how problems, the sentence that asks for the answer and the reward that reads it
belong together (8). A fork that needs another task adds one function and one entry of TASKS.

    python verifiers.py                  a table of completions, what is extracted, and the verdict

Everything here treats a completion as hostile text: it is never evaluated, and every step is bounded in time.
Sources: DeepSeek-R1 (arXiv 2501.12948), MATH (2103.03874), GSM8K (2110.14168).
"""

import json
import random
import unicodedata
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# ---- 1. Extraction and grading ---------------------------------------------------------------------------------------

def extract_boxed_answer(text):
    """The content of the last \\boxed{...} with balanced braces, or None. A malformed last box is no answer."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for i in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 7:i].strip()
    return None


def grade_answer(predicted, ground_truth):
    """The chapter's grader: equal strings, or equal numbers."""
    predicted, ground_truth = (unicodedata.normalize("NFKC", s).strip().replace(" ", "") for s in (predicted, ground_truth))
    if predicted == ground_truth:
        return True
    try:
        return abs(float(predicted) - float(ground_truth)) < 1e-6
    except ValueError:
        return False


# ---- 6. Verifiers: completion and truth in, named scores out ---------------------------------------------------------

def reward_rlvr(response: str, ground_truth: str) -> float:
    """The chapter's whole reward: 1.0 if the last boxed answer is right, 0.0 if it is wrong or missing."""
    predicted = extract_boxed_answer(response)
    return 0.0 if predicted is None else float(grade_answer(predicted, ground_truth))


def split_tags(rollout: str) -> tuple[str, str] | None:
    """(think, answer) of a rollout of the form <think>...</think><answer>...</answer>, else None.

    Each tag exactly once and in this order, and only white space outside of them: an answer before the thinking, a
    second answer to choose from, or text smuggled between the blocks is not the form (DeepSeek-R1, section 2.2.2).
    """
    parts, rest = [], rollout.strip()
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        if rest.count(tag) != 1:
            return None
        before, rest = rest.split(tag)
        parts.append(before)
    outside_start, think, between, answer = parts
    return None if outside_start.strip() or between.strip() or rest.strip() else (think, answer)


def verify_math(rollout: str, truth: str) -> dict:
    """format: 1.0 if the tags are in order; answer: 1.0 if the last box inside <answer> is right (seed chapter 14).

    Example: "<think>2+2=4</think><answer>\\boxed{4}</answer>" against "4" -> format 1.0, answer 1.0, extracted "4".
    Without the tags nothing is extracted, so a bare right answer earns nothing.
    """
    tags = split_tags(rollout)
    if tags is None:
        return {"format": 0.0, "answer": 0.0, "extracted": None}
    extracted = extract_boxed_answer(tags[1])
    right = extracted is not None and grade_answer(extracted, truth)
    return {"format": 1.0, "answer": float(right), "extracted": extracted}


def verify_format(rollout: str) -> dict:
    """structure: 1.0 if the tags are in order; think_length: 1.0 if there are at least 8 characters of thinking, so
    that an empty <think></think> does not collect the whole format reward."""
    tags = split_tags(rollout)
    if tags is None:
        return {"structure": 0.0, "think_length": 0.0}
    return {"structure": 1.0, "think_length": float(len(tags[0].strip()) >= 8)}


# ---- 7. Rewards: scores in, one number out ---------------------------------------------------------------------------

@dataclass
class RuleSpec:
    """One term of a reward: what counts (score_fn, from a verifier's output to [0, 1]) and how much (weight)."""

    name: str
    weight: float
    score_fn: Callable[[dict], float]


def aggregate(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = sum_i w_i r_i. A sum, not a product: a rollout that gets the form but not the answer must still stand above
    one that gets neither, or there is nothing to climb at the start."""
    return sum(rule.weight * rule.score_fn(verifier_out) for rule in rules)


MATH_RULES = [RuleSpec("format", 0.1, lambda v: v["format"]), RuleSpec("answer", 1.0, lambda v: v["answer"])]
FORMAT_RULES = [RuleSpec("structure", 1.0, lambda v: v["structure"]),
                RuleSpec("think_length", 0.2, lambda v: v["think_length"])]

# A reward is a function (completion, problem) -> (float, parts). The parts are logged; rlvr.score says which have a
# meaning of their own.


def boxed_reward(completion, problem):
    """1 for a right last box, 0 otherwise: the chapter's reward, for models that have not seen think and answer tags."""
    right = reward_rlvr(completion, problem["answer"])
    return right, {"accuracy": right, "answered": float(extract_boxed_answer(completion) is not None)}


def tagged_reward(completion, problem):
    """DeepSeek-R1-Zero's reward: accuracy + 0.1 * format, both on the tagged form."""
    out = verify_math(completion, problem["answer"])
    parts = {"accuracy": out["answer"], "format": out["format"], "answered": float(out["extracted"] is not None)}
    return aggregate(out, MATH_RULES), parts


def exact_reward(completion, problem):
    """1 if the whole completion is the answer, for a model too small for any markup. format: a number of its length."""
    text, answer = completion.strip(), problem["answer"]
    right = float(text == answer)
    return right, {"accuracy": right, "answered": float(text != ""),
                   "format": float(text.isdigit() and len(text) == len(answer))}


# ---- 8. Tasks: problems, the sentence that asks for the answer, and the reward that reads it -------------------------

class DataError(Exception):
    """A data set that cannot be had or read: the message names the file and line and says what to do."""


@dataclass
class Task:
    """A problem is a dict with at least "problem" and "answer", both text."""

    name: str
    train: list[dict]
    test: list[dict]               # never trained on
    instruction: str               # a format string with {problem}; it must ask for what the reward looks for
    reward: Callable[[str, dict], tuple[float, dict]]
    note: str = ""                 # where the problems come from and how they were split, printed at the start

    def prompt(self, problem):
        return self.instruction.format(problem=problem["problem"])


BOXED = "Solve the following problem. Put your final answer within \\boxed{{}}.\n\nProblem: {problem}\n\nSolution:"


def held_out(problem: dict) -> bool:
    """One problem in ten, chosen by its text alone: no seed, order or later addition moves a problem across."""
    return zlib.crc32(problem["problem"].encode()) % 10 == 0


def arithmetic_problem(rng: random.Random) -> dict:
    """A two-digit start and 2 to 4 additions or subtractions of one digit, every running value in 10 .. 99, such as
    25+7+9-4= -> 37. The constant width of the values matters: a tiny model learns the worked form at once with it."""
    value = rng.randint(10, 99)
    text = str(value)
    for _ in range(rng.randint(2, 4)):
        change = rng.choice([d for d in range(-9, 10) if d and 10 <= value + d <= 99])
        value, text = value + change, f"{text}{change:+d}"
    return {"problem": text + "=", "answer": str(value)}


def arithmetic(train_size=10_000, test_size=500, seed=0) -> Task:
    rng = random.Random(seed)
    train, test, seen = [], [], set()
    while len(train) < train_size or len(test) < test_size:
        problem = arithmetic_problem(rng)
        split, size = (test, test_size) if held_out(problem) else (train, train_size)
        if len(split) < size and problem["problem"] not in seen:
            seen.add(problem["problem"])
            split.append(problem)
    return Task("arithmetic", train, test, "{problem}", tagged_reward, "synthetic; train and test split by a hash")


def one_digit() -> Task:
    """a+b modulo 10, all hundred of them, for training and for testing: here the point is not to generalise but to see
    that selection alone can find, from random weights, first the form of an answer and then the answers."""
    problems = [{"problem": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in range(10) for b in range(10)]
    return Task("one-digit", problems, problems, "{problem}", exact_reward, "a+b modulo 10; train and test are the same")


def math_task() -> Task:
    """The 12,000 MATH problems that are not in MATH-500, and MATH-500 as the test."""
    train, test = _hub_rows("rasbt/math_full_minus_math500"), math500().test
    asked = {problem["problem"] for problem in test}
    train = [problem for problem in train if problem["problem"] not in asked]
    return Task("math", train, test, BOXED, boxed_reward, "MATH without MATH-500; tested on MATH-500")


def math500() -> Task:
    return Task("math500", [], _hub_rows("HuggingFaceH4/MATH-500"), BOXED, boxed_reward, "MATH-500, for evaluation only")


GSM8K = "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
GSM8K_FILES = {"train": "17f347dc51477c50", "test": "3730d312f6e34405"}            # the first digits of their SHA-256


def gsm8k() -> Task:
    """Cobbe et al. 2021 in its original form (the hub holds it as parquet, which needs another package to read)."""
    train, test = (read_problems(_download(f"{GSM8K}grade_school_math/data/{split}.jsonl", f"gsm8k_{split}.jsonl", sha))
                   for split, sha in GSM8K_FILES.items())
    return Task("gsm8k", train, test, BOXED, boxed_reward, "the original split of GSM8K")


def from_file(path) -> Task:
    problems = read_problems(path)
    train, test = [p for p in problems if not held_out(p)], [p for p in problems if held_out(p)]
    if not train or not test:
        raise DataError(f"{path}: {len(problems)} problems are too few to hold one in ten out (by a hash of their text)")
    return Task(Path(path).stem, train, test, BOXED, boxed_reward, f"{path}; one problem in ten held out by a hash")


TASKS = {"arithmetic": arithmetic, "one-digit": one_digit, "math": math_task, "math500": math500, "gsm8k": gsm8k}


def get_task(name: str, data=None) -> Task:
    """The task of that name, or the one made from a file of problems."""
    if data is not None:
        return from_file(data)
    if name not in TASKS:
        raise DataError(f"there is no task {name!r}: choose one of {', '.join(TASKS)}, or pass a file with --data")
    return TASKS[name]()


def read_problems(path) -> list[dict]:
    """The problems of a .jsonl file (one object a line) or of a .json file (one list). "question" is accepted for
    "problem", and of a GSM8K solution the part behind #### is the answer. Raises DataError with the line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    try:
        rows = enumerate(json.loads(text), 1) if text.lstrip().startswith("[") else _json_lines(text)
        return [_problem(row, f"{path}, {'entry' if text.lstrip().startswith('[') else 'line'} {n}") for n, row in rows]
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {getattr(error, 'row', error.lineno)}: not valid JSON ({error.msg})") from None


def _json_lines(text):
    for n, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield n, json.loads(line)
            except json.JSONDecodeError as error:
                error.row = n
                raise


def _problem(row, where):
    problem = (row.get("problem") or row.get("question")) if isinstance(row, dict) else None
    answer = row.get("answer") if problem else None
    if not isinstance(problem, str) or not isinstance(answer, (str, int, float)) or str(answer).strip() == "":
        raise DataError(f'{where}: needs "problem" (text) and "answer" (text or a number), like '
                        '{"problem": "1+1=?", "answer": "2"}')
    return {**row, "problem": problem, "answer": str(answer).rpartition("####")[2].strip()}


def _hub_rows(name) -> list[dict]:
    from huggingface_hub import snapshot_download          # only here: verifying needs no network
    try:
        directory = Path(snapshot_download(name, repo_type="dataset", allow_patterns=["*.json", "*.jsonl"]))
    except Exception as error:
        raise DataError(f"{name}: cannot be fetched from the hub ({str(error).strip().splitlines()[0][:200]}). Check "
                        "the network, HF_ENDPOINT and HF_HUB_OFFLINE, or pass a local file with --data") from error
    files = sorted(directory.rglob("*.json*"), key=lambda file: file.stat().st_size)
    if not files:
        raise DataError(f"{name}: holds no .json or .jsonl file; convert it and pass it with --data")
    return read_problems(files[-1])                        # the largest: the others describe the data set


def _download(url, name, sha256) -> Path:
    from torch.hub import download_url_to_file             # shows a progress bar; a broken transfer leaves no file
    path = Path.home() / ".cache" / "rlvr" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(url, str(path), hash_prefix=sha256)
        except (OSError, RuntimeError) as error:           # RuntimeError: the hash is not the expected one
            raise DataError(f"{url}: cannot be fetched ({error}). Fetch it yourself and pass it with --data") from error
    return path
