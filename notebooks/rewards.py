r"""rewards.py - the laboratory's rewards and verifiers: what verifiers.py leaves out, and what goes wrong.

What you will learn: which other things a rule can check (section 1), how verdicts are put together in
other ways (2), what tool use adds (3), how policies cheat and how one defends (4), which rewards every
result has to beat (5), and where more problems are (6). Each reward is used by its name:

    python train.py --reward notebooks/rewards.py:steps_reward
    python train.py --reward notebooks/rewards.py:coin          a control: see section 5
    python eval.py MODEL --task notebooks/rewards.py:gsm8k

Some of them: kimi and olmo (recipes, as chapter 15 gives them), steps_reward, bleu_reward, code_strict,
gated_reward (a product), curriculum (phases by step), robust_reward (two of three verifiers must agree),
guarded_reward (the box, less a penalty for what looks like a hack), and the controls coin, inverted,
any_box, first_box and format_only, which know little or nothing of the answer.

A reward is a function (completion, problem) -> (number, parts), as in verifiers.py, section 4.
"""

import ast
import collections
import contextlib
import functools
import gzip
import itertools
import json
import math
import operator
import random
import re
import shutil
import subprocess
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import _root

from verifiers import (
    BOXED,
    MATH_RULES,
    PROGRAM,
    WORD,
    DataError,
    ReasoningReward,
    RuleSpec,
    Task,
    aggregate,
    boxed_reward,
    code_reward,
    derivation,
    explain_grade,
    extract_boxed_answer,
    extract_code,
    get_reward,
    grade_answer,
    hub_problems,
    read_problems,
    reward_rlvr,
    split_tags,
    tagged_reward,
    verify_code,
    verify_format,
    verify_math,
)
from sandbox import read_tests, run_tests  # check_tests looks at single verdicts

MAX_JSON = 20_000  # characters of one JSON value
MAX_STEPS = 60  # equations read in one completion
MAX_PROOF = 2**24  # bytes of one compiled proof


# ---- 1. More verifiers: JSON, tool calls, steps, translations, proofs ------------------------------------------------


def verify_json(text: str, schema: dict) -> dict:
    """parses: 1.0 for JSON; valid: 1.0 if it also conforms to the schema; value: what was read, or None.

    Refused although Python's reader takes them: NaN, and a key given twice, which would leave the choice
    to us. Example: '{"n": 3}' is valid against
    {"type": "object", "properties": {"n": {"type": "integer", "enum": [3, 4]}}}.
    """
    try:
        value = json.loads(text[: MAX_JSON + 1], object_pairs_hook=_strict, parse_constant=_strict)
        valid = len(text) <= MAX_JSON and conforms(value, schema)
        return {"parses": 1.0, "valid": float(valid), "value": value}
    except (ValueError, RecursionError):  # RecursionError: a thousand opening brackets
        return {"parses": 0.0, "valid": 0.0, "value": None}


def _strict(found):
    if isinstance(found, str) or len(dict(found)) < len(found):  # "NaN", or the pairs of an object
        raise ValueError(found)
    return dict(found)


_JSON_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def conforms(value, schema: dict) -> bool:
    """The part of JSON Schema that function calls use: type, enum, required, properties,
    additionalProperties, items. subtle: in Python True is an int and equals 1; in JSON it is neither."""
    kind = schema.get("type")
    if kind and not isinstance(value, _JSON_TYPES[kind]):
        return False
    if kind and isinstance(value, bool) != (kind == "boolean"):
        return False
    if "enum" in schema and not any(
        type(value) is type(item) and value == item for item in schema["enum"]
    ):
        return False
    if isinstance(value, list):
        return all(conforms(item, schema.get("items", {})) for item in value)
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    return (
        all(name in value for name in schema.get("required", ()))
        and (schema.get("additionalProperties", True) or value.keys() <= known.keys())
        and all(conforms(value[name], known[name]) for name in value if name in known)
    )


def verify_tool_call(text: str, tools: dict) -> dict:
    """calls, valid: how many tool calls there are and how many are well-formed; frac: valid / calls or 0.0.

    A call is what Qwen3 writes, <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>.
    tools: {name: JSON schema of its arguments}. A call in the thinking is only a thought.
    """
    name = {"type": "string", "enum": [*tools]}
    schema = {
        "type": "object",
        "required": ["name", "arguments"],
        "additionalProperties": False,
        "properties": {"name": name, "arguments": {"type": "object"}},
    }
    said = text.rpartition("</think>")[2]
    bodies = [part.partition("</tool_call>") for part in said.split("<tool_call>")[1:]]
    read = [verify_json(body, schema) for body, closed, _ in bodies if closed]
    calls = [out["value"] for out in read if out["valid"]]
    valid = sum(conforms(call["arguments"], tools[call["name"]]) for call in calls)
    return {"calls": len(bodies), "valid": valid, "frac": valid / max(1, len(bodies))}


_FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt pi".split()
)
_KNOWN = {*_FUNCTIONS, *"frac dfrac tfrac cdot times div left right".split()}
_BREAK = re.compile(r"[;\n≈→。；，：]|\\\\|=>|->|[.,:](?=\s|$)")
_PROSE = re.compile(
    rf"(?<![A-Za-z\\])(?!(?:{'|'.join(_FUNCTIONS)})(?![A-Za-z]))[A-Za-z]{{2,}}"
    r"|[<>!]=|==|[^\x00-\x7f×÷−·√π²³]+"
)
_SPOKEN = re.compile(
    r"%|\b(?:of|plus|minus|times|over|by|half|twice|double|squared|cubed|mod)\b", re.I
)


def verify_steps(rollout: str) -> dict:
    """frac: the share of the equations in the thinking that hold, a process reward in code.

    Of 66+3=69;69+2=72 one of two holds; a chain a=b=c is two. Not counted is what has a free variable
    (2x=6) or cannot be read, an equation said before, and 1=1: repeating is no work. Two limits: each
    equation is read alone, so 2x=10+4=14 passes after 2x+4=10; and easy equations dilute a wrong one, so
    keep the weight small. Read are about MAX_STEPS equations of the think block, or of the whole text.
    """
    tags = split_tags(rollout)
    verdicts = {}
    for line in _BREAK.split(tags[0] if tags else rollout):
        if "=" not in line or len(verdicts) >= MAX_STEPS or _SPOKEN.search(line):
            continue
        sides = _PROSE.sub("\0", line.replace("&", "")).split(
            "=", MAX_STEPS
        )  # \0 is where words were
        for pair in map(_beside, sides, sides[1:]):
            if pair not in verdicts:
                verdicts[pair] = _holds(*pair)
    counted = [holds for holds in verdicts.values() if holds is not None]
    return {
        "equations": len(counted),
        "hold": sum(counted),
        "frac": sum(counted) / max(1, len(counted)),
    }


def _beside(left, right):
    """The sides of an equals sign up to the next words: "so 2+3", "5 and" -> "2+3", "5". Nothing of
    cost - 3 = 5 or floor(7/2) = 3, where a word is part of a side."""
    (_, word, left), (right, _, rest) = left.rpartition("\0"), right.partition("\0")
    torn = word and left.strip()[:1] in [*"+-*/^("] or rest.strip()[:1] in [*"+-*/^"]
    return ("", "") if torn else ("".join(left.split()), "".join(right.split()))


def _holds(left, right):
    """True or False for a statement about numbers, None for anything else."""
    words = {*re.findall("[A-Za-z]+", left), *re.findall("[A-Za-z]+", right)}
    if not words <= _KNOWN or max(len(left), len(right)) > 60:
        return None
    (holds, rung, *_), (_, other, *_) = explain_grade(left, right), explain_grade(right, left)
    if rung == "string" or rung == "decimal" and holds:  # 5=5.0: trivial
        return None
    return holds if {rung, other} <= {"decimal", "spelling", "number"} else None


def verify_translation(candidate: str, references) -> dict:
    """bleu: BLEU-4 of one sentence, BP (p_1 p_2 p_3 p_4)^(1/4) (Papineni et al. 2002), and its factors.

    p_n: the share of the n-grams that a reference has too, each counted at most as often as in the
    reference that has it most. For n > 1 one is added above and below (Lin and Och 2004), or most single
    sentences would get 0. BP = min(1, exp(1 - r/c)), for c words against a reference of r, the closest in
    length. Example (Papineni): seven times "the" against "the cat is on the mat" has p_1 = 2/7.
    """
    references = [references] if isinstance(references, str) else references
    words, *golds = (_BLEU_WORD.findall(text.lower()) for text in (candidate, *references))
    precisions = []
    for n in range(1, 5):
        said = _ngrams(words, n)
        smooth = float(n > 1)
        allowed = functools.reduce(
            operator.or_, (_ngrams(gold, n) for gold in golds)
        )  # the larger count
        precisions.append(((said & allowed).total() + smooth) / max(1.0, said.total() + smooth))
    closest = min(map(len, golds), key=lambda length: (abs(length - len(words)), length))
    brevity = min(1.0, math.exp(1 - closest / max(1, len(words))))
    return {
        "bleu": brevity * math.prod(precisions) ** 0.25,
        "precisions": precisions,
        "brevity": brevity,
    }


_BLEU_WORD = re.compile(
    r"[\u3040-\u9fff]|[^\W\u3040-\u9fff]+|[^\w\s]"
)  # a Chinese character is a word


def _ngrams(words, n):
    return Counter(zip(*(words[i:] for i in range(n))))


def verify_proof(statement: str, proof: str, header="", timeout=30.0, memory_mb=2048) -> dict:
    """Does the model's Coq proof prove the statement? -> {"proved": bool, "why": str}.

    statement: a proposition, `forall n : nat, n + 0 = n`; proof: `Proof. ... Qed.` or the tactics alone;
    header: what both need, such as `Require Import Arith.`; timeout: seconds for each of two runs of
    coqc. FileNotFoundError without coqc and bwrap, RuntimeError where bwrap may not start.

    That a file of the model compiles proves nothing: it may define the theorem away. So a second file,
    which the first cannot write to, states the theorem *before* it loads the first, takes its proof from
    there and asks Coq what it assumes: Admitted, axioms and switched-off checks show there. Lean is not
    supported, because its proofs are programs that can change what Lean prints.
    """
    proof = proof if "Qed." in proof else f"Proof.\n{proof}\nQed."
    written = f"{header}\nTheorem goal : {statement}.\n{proof}\n"
    compiled, messages = _coqc({"Solution.v": written.encode()}, timeout, memory_mb)
    if not compiled:
        return {"proved": False, "why": messages[-500:] or "timeout"}
    check = (
        f"{header}\nDefinition what_was_asked : Prop := {statement}.\nRequire Solution.\n"
        "Theorem goal : what_was_asked.\nProof.\nexact Solution.goal.\nQed.\nPrint Assumptions goal.\n"
    )
    both = {"Solution.vo": compiled, "Check.v": check.encode()}
    checked, messages = _coqc(both, timeout, memory_mb)
    proved = bool(checked) and messages == "Closed under the global context"
    return {"proved": proved, "why": "proved" if proved else messages[-500:] or "timeout"}


# The log and the compiled file are cut inside, so that nothing unbounded reaches the trainer's memory.
_COMPILE = """
cp /in/* . && ulimit -v {memory} && ulimit -t {seconds} && echo started >&2 || exit 1
coqc -q -R . "" {name}.v >log 2>&1
status=$?
head -c 20000 log >&2
[ $status = 0 ] && head -c {most} {name}.vo"""


def _coqc(files, timeout, memory_mb):
    """Compile the last of the files inside bubblewrap -> (the compiled file or b"", what Coq said).

    Inside there is /usr, read-only, an empty /work in memory that vanishes, and nothing else: no network,
    no other processes, no home, no environment. The end of bwrap is the end of everything in it.
    """
    coqc = shutil.which("coqc")
    bwrap = shutil.which("bwrap")
    if not coqc or not bwrap:
        missing = ["coqc (apt install coq)"] * (not coqc) + ["bwrap (apt install bubblewrap)"] * (
            not bwrap
        )
        raise FileNotFoundError(
            "verify_proof runs Coq inside bubblewrap and does not find "
            f"{' and '.join(missing)} on the PATH"
        )
    name = [*files][-1].removesuffix(".v")
    script = _COMPILE.format(
        name=name, memory=memory_mb * 1024, seconds=math.ceil(timeout) + 1, most=MAX_PROOF
    )
    home = Path(coqc).resolve().parents[1]  # /usr, or where opam has put Coq
    readable = [
        "/usr",
        "/bin",
        "/lib",
        "/lib64",
        "/etc/ocamlfind.conf",
        "/etc/ocamlfind.conf.d",
        str(home),
    ]
    with tempfile.TemporaryDirectory() as given:
        for file, content in files.items():
            Path(given, file).write_bytes(content)
        command = [
            bwrap,
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--cap-drop",
            "ALL",
            "--clearenv",
            *itertools.chain.from_iterable(("--ro-bind-try", path, path) for path in readable),
            "--setenv",
            "PATH",
            f"{home}/bin:/usr/bin:/bin",
            "--setenv",
            "HOME",
            "/work",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--ro-bind",
            given,
            "/in",
            "--size",
            str(2**28),
            "--tmpfs",
            "/work",
            "--chdir",
            "/work",
            "sh",
            "-c",
            script,
        ]
        try:
            run = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return b"", "timeout"
    started, mark, messages = run.stderr.decode("utf-8", "replace").partition("started\n")
    if not mark or started:  # no verdict: bwrap itself has failed
        raise RuntimeError(f"verify_proof: bubblewrap cannot start here: {started.strip()[:300]}")
    return run.stdout, messages.strip()


# ---- 2. Other ways to put verdicts together --------------------------------------------------------------------------


def gated(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = prod_i r_i: any rule at 0 makes it 0, weights do not matter. Strict, and silent at the start."""
    return math.prod(rule.score_fn(verifier_out) for rule in rules)


def weakest(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = min_i r_i: the worst rule alone counts, and the others teach nothing until it is better."""
    return min(rule.score_fn(verifier_out) for rule in rules)


def soft_or(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = 1 - prod_i (1 - r_i): one rule at 1 is enough, so the easiest one is what is learnt."""
    return 1 - math.prod(1 - rule.score_fn(verifier_out) for rule in rules)


def weights(**of) -> list[RuleSpec]:
    """weights(answer=1.0, format=0.1): rules that read the scores of the same names."""
    return [RuleSpec(name, weight, operator.itemgetter(name)) for name, weight in of.items()]


CODE_PARTS = weights(syntax=0.1, tests=0.7, speed=0.1, safety=0.1)

_DANGEROUS = set(
    "os subprocess socket shutil ctypes signal multiprocessing importlib builtins gc inspect posix pty "
    "urllib http requests pickle eval exec open modules _getframe __import__ __builtins__ __globals__ "
    "__subclasses__".split()
)
MAX_CODE = 20_000  # characters of one program
warnings.filterwarnings("ignore", module="<completion>")  # "\d" in a model's string is no news


def read_program(code: str) -> tuple[bool, bool]:
    """(is it Python, does it name nothing dangerous), unrun: a signal for training, no protection."""
    try:
        nodes = list(ast.walk(ast.parse(code[:MAX_CODE], "<completion>")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, False
    named = [
        node for node in nodes if not isinstance(node, ast.FunctionDef)
    ]  # def open(self) is harmless
    names = {
        getattr(node, field, None) for node in named for field in ("id", "attr", "name", "module")
    }
    safe = not any(str(name).partition(".")[0] in _DANGEROUS for name in names)
    return len(code) <= MAX_CODE, safe and len(code) <= MAX_CODE


def code_parts_reward(response, problem):
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
        out = verify_code(problem.get("before", "") + "\n" + code, problem["tests"])
    least = min(problem.get("baseline", 0.0), 1 - 1e-9)
    tests = max(0.0, (out["frac"] - least) / (1 - least))
    speed = 0.5 if out["seconds"] > problem.get("seconds", 5.0) else 1.0
    works = float(tests > 0)
    scores = {
        "syntax": float(syntax),
        "tests": tests,
        "speed": works * speed,
        "safety": works * safe,
    }
    parts = {"accuracy": float(out["frac"] == 1.0), "answered": float(code is not None), **scores}
    return aggregate(scores, CODE_PARTS), parts


def quick_code_reward(response, problem, count=3):
    """0.5 for a program that is Python + 0.5 of the share passed of a few tests: cheap where there are
    many tests (the chapter on verifier-based RL, 2.1). Which tests is drawn by the problem's text, so
    that all completions of a group meet the same. Departures: in the chapter the program need not pass
    any test for its first half, so that `pass` earns 0.5; here it must. What passes all of the few tests
    may fail the others: `accuracy` is of the few, so evaluate with all of them (code_reward)."""
    tests = list(problem["tests"])
    random.Random(problem.get("problem", "")).shuffle(tests)
    code = extract_code(response)
    syntax = bool(code) and read_program(code)[0]
    passed = 0.0
    if syntax:
        program = problem.get("before", "") + "\n" + code
        passed = verify_code(program, tests[:count])["frac"]
    value = 0.5 * (passed > 0) + 0.5 * passed
    parts = {"accuracy": float(passed == 1.0), "answered": float(code is not None)}
    return value, parts | {"syntax": float(syntax), "tests": passed}


def task_faults(tests, entry_points=None, before="", timeout=1.0):
    """{test: why} for the tests that say nothing about a program: they are not Python, lack a name, or ask
    nothing of a program whose functions all fail."""
    given = {"entry_points": entry_points, "before": before}
    names = {name for test in read_tests(tests, **given) for name in test["asks"]}
    code = "".join(f"def {name}(*args, **_): raise NotImplementedError\n" for name in names)
    verdicts, _ = run_tests(code, tests, timeout, **given)
    faults = {}
    for test, verdict in zip(tests, verdicts):
        if verdict["why"].startswith(("SyntaxError", "NameError", "the test asks nothing")):
            faults[test] = verdict["why"]
    return faults


def check_tests(problems: list[dict], timeout: float = 1.0) -> list[dict]:
    """What programs that have learnt nothing earn: run this on a data set before training on it. problems: dicts with
    "tests" -> for each {"empty", "echo", "constant", "value", "broken"}: the share of its tests that is passed by the
    empty program, by one that returns its first argument, and by the best that returns one constant (its `value`:
    code_reward's baseline); and {test: why} for those that are not Python, ask nothing or lack a helper."""

    def check(problem):
        tests, values = problem["tests"], collections.Counter("None True False 0 1 '' []".split())
        given = {key: problem[key] for key in ("entry_points", "before") if key in problem}
        names = {name for test in read_tests(tests, **given) for name in test["asks"]}
        broken = task_faults(tests, timeout=timeout, **given)
        nodes = [
            node
            for test in tests
            if "SyntaxError" not in broken.get(test, "")
            for node in ast.walk(ast.parse(test))
        ]
        for node in [node for node in nodes if isinstance(node, ast.Compare)]:
            for side in [node.left, *node.comparators]:
                with contextlib.suppress(ValueError, TypeError):
                    values[repr(ast.literal_eval(side))] += 1
        echo, runs, constants = (
            "args[0] if args else None",
            {},
            [value for value, _ in values.most_common(20)],
        )
        for result in ["", echo, *constants]:
            code = "".join(f"def {name}(*args, **_): return {result}\n" for name in names if result)
            runs[result] = run_tests(code, tests, timeout, 2**28, **given)[0]
        share = {result: sum(v["passed"] for v in runs[result]) / len(tests) for result in runs}
        value = max(constants, key=share.get)
        return {
            "empty": share[""],
            "echo": share[echo],
            "constant": share[value],
            "value": value,
            "broken": broken,
        }

    return [check(problem) for problem in problems]


_MAIN = {"accuracy", "answer", "correctness", "tests", "frac"}
_FORMAL = {"format", "structure", "think_length"}


def check_weights(rules: list[RuleSpec]) -> list[RuleSpec]:
    """The same rules, with a warning where a policy could live without being right.

    Correctness should have at least 60 % of the weight and the form less than 10 % (the chapter on
    verifier-based RL, section 6.2). 1.0 and 0.1 are 90.9 and 9.1 %.
    """
    total = sum(rule.weight for rule in rules) or 1.0
    main = sum(rule.weight for rule in rules if rule.name in _MAIN) / total
    form = sum(rule.weight for rule in rules if rule.name in _FORMAL) / total
    if main < 0.6:
        warnings.warn(
            f"correctness has {main:.0%} of the weight: below 60 % other terms may drown it",
            stacklevel=2,
        )
    if form >= 0.1:
        warnings.warn(
            f"the form has {form:.0%} of the weight: from 10 % on it invites empty forms",
            stacklevel=2,
        )
    return rules


def earnable(reward: ReasoningReward) -> list[RuleSpec]:
    """The terms of a ReasoningReward that compete, for check_weights: a penalty cannot be earned."""
    return weights(accuracy=reward.w_acc, format=reward.w_fmt, length=reward.w_len)


def reward_from(verifier, rules: list[RuleSpec], combine=aggregate):
    """A reward out of a verifier (completion, truth) -> scores, and rules; combine: aggregate,
    gated, weakest or soft_or."""
    names = ["accuracy" if rule.name in _MAIN else rule.name for rule in check_weights(rules)]

    def reward(completion, problem):
        out = verifier(completion, problem["answer"])
        return combine(out, rules), {name: rule.score_fn(out) for name, rule in zip(names, rules)}

    return reward


@dataclass
class RewardFn:
    """A named term of a reward, with the chapter's signature: fn(prompt, completion, meta) -> float."""

    name: str
    fn: Callable[[str, str, dict], float]


def make_reward(*fns: RewardFn):
    """Addition is composition: combined(prompt, completion, meta) -> the sum of the terms. combined.reward is the same
    for --reward (mine = make_reward(..).reward): meta is the problem, and each term a part of the log."""
    if len({rf.name for rf in fns}) < len(fns):
        raise ValueError(f"make_reward: two terms share a name: {', '.join(rf.name for rf in fns)}")

    def combined(prompt, completion, meta):
        return sum(rf.fn(prompt, completion, meta) for rf in fns)

    def reward(completion, problem):
        terms = {rf.name: rf.fn(problem["problem"], completion, problem) for rf in fns}
        return sum(terms.values()), terms

    combined.reward = reward
    return combined


def score_group(rollouts: list[str], truth: str) -> dict:
    """The chapter's inner loop, G rollouts of one problem -> {"rewards", "advantages"}, G floats each."""
    from rlvr import group_advantages  # here only: no other reward needs torch

    paid = [aggregate(verify_math(rollout, truth), MATH_RULES) for rollout in rollouts]
    return {"rewards": paid, "advantages": group_advantages(paid)}


def gated_reward(completion, problem):
    """The right answer in the right form or nothing: the product of the terms of tagged_reward."""
    reward, parts = reward_from(verify_math, MATH_RULES, gated)(completion, problem)
    return reward, parts | {"answered": boxed_reward(completion, problem)[1]["answered"]}


def steps_reward(completion, problem):
    """tagged_reward + 0.05 times the share of equations that hold: little, so that easy ones cannot pay."""
    reward, parts = tagged_reward(completion, problem)
    steps = verify_steps(completion)["frac"] if parts["format"] else 0.0
    return reward + 0.05 * steps, parts | {"steps": steps}


def bleu_reward(completion, problem):
    """BLEU of what stands behind the thinking against problem["answer"]."""
    bleu = verify_translation(completion.rpartition("</think>")[2], problem["answer"])["bleu"]
    return bleu, {"accuracy": bleu, "answered": float(completion.strip() != "")}


_NUMBER = re.compile(r"-?\d+(?:[./]\d+)?")


def last_number(completion, problem):
    """1 if the last number of the completion, in a box or not, is the answer: one more way to read it."""
    numbers = _NUMBER.findall(completion)
    right = float(bool(numbers) and grade_answer(numbers[-1], problem["answer"]))
    return right, {"accuracy": right, "answered": float(bool(numbers))}


def robust_reward(response, problem, verifiers=None, needed=2):
    """1 if at least `needed` of the verifiers, themselves rewards, pay more than a half.

    A vote helps only against flaws that the verifiers do not share. The default ones read the answer in
    three places: the last box, the first box, the last number. None of them implies another, so that no
    single one decides. The chapter's three are an exact match, sympy and a model: give them as `verifiers`.
    """
    verifiers = verifiers or (boxed_reward, first_box, last_number)
    votes = sum(verifier(response, problem)[0] > 0.5 for verifier in verifiers)
    right = float(votes >= needed)
    return right, {
        "accuracy": right,
        "votes": float(votes),
        "answered": boxed_reward(response, problem)[1]["answered"],
    }


def code_strict(completion, problem):
    """code_parts_reward in which only a program that passes all tests has passed any."""
    return code_parts_reward(completion, problem | {"baseline": 1.0})


@dataclass
class Curriculum:
    """Phases [(first step, reward), ...], by problem["step"], which the training loop sets. The chapter on
    verifier-based RL (6.3) has correctness from 0, + 0.1 format from 1000, + 0.1 cost from 3000: a cost
    discourages exploring. Without a step, as in an evaluation, the last phase counts."""

    phases: list

    def __call__(self, completion, problem):
        step = problem.get("step", math.inf)
        return [reward for first, reward in self.phases if first <= step][-1](completion, problem)


curriculum = Curriculum([(0, reward_from(verify_math, weights(answer=1.0))), (1000, tagged_reward)])
# Chapter 14 on R1: half the weight on the form in mid-run, once the model has learnt it. The step is ours.
lighter_format = Curriculum(
    [(0, tagged_reward), (30, reward_from(verify_math, weights(answer=1.0, format=0.05)))]
)


def repetition(text: str, n=4) -> float:
    """The share of n-grams that were there before: near 0 for honest text, near 1 for one phrase again
    and again."""
    grams = _ngrams(WORD.findall(text), n)
    return 1 - len(grams) / grams.total() if grams else 0.0


@dataclass
class RepetitionReward(ReasoningReward):
    """A ReasoningReward less w_rep times how far the repetition of the whole text has got from
    rep_threshold to 1."""

    w_rep: float = 0.3
    rep_threshold: float = 0.3

    def __call__(self, rollout: str, truth: str, truncated=False, **more) -> dict:
        out = super().__call__(rollout, truth, truncated, **more)
        if truncated or self.needs_tags and split_tags(rollout) is None:
            return out | {"rep": 0.0}  # all of it is 0, and stays so
        rep = (
            -self.w_rep
            * max(0.0, repetition(rollout) - self.rep_threshold)
            / (1 - self.rep_threshold)
        )
        return out | {"R": out["R"] + rep, "rep": rep}

    def reward(self, completion, problem):
        value, parts = super().reward(completion, problem)
        return value, parts | {"repetition": repetition(completion)}


# The four recipes as the chapter "Reward Design for Reasoning" gives them; its tables are simpler than the reports.
# DeepSeek-R1 (2501.12948) pays the share of words in the right language. Kimi k1.5 (2501.12599) has no process model
# and a length penalty relative to the group; the chapter's terms for helpfulness and process are below, its "small"
# bonus and "cap" are our numbers. A bonus that never saturates outgrows accuracy in the end, here after 26
# caps: --max-new-tokens must stay below. Olmo 3: 2512.13961.
REASONING_PRESETS = {
    "r1-zero": ReasoningReward(w_lang=0.0, w_ramble=0.0),
    "r1": ReasoningReward(),
    "kimi-k1.5": ReasoningReward(
        w_fmt=0.05, w_len=0.05, w_lang=0.0, len_cap=4096, saturates=False, ramble_threshold=4096
    ),
    "olmo-3": RepetitionReward(w_len=0.2, w_rep=0.3, w_ramble=0.0, len_cap=1024),
}
language_later = Curriculum(  # R1-Zero's reward, and from step 30 on a penalty for mixing languages
    [(0, REASONING_PRESETS["r1-zero"].reward), (30, REASONING_PRESETS["r1"].reward)]
)
kimi = REASONING_PRESETS["kimi-k1.5"].reward
olmo = REASONING_PRESETS["olmo-3"].reward


def with_term(reward, name, score, weight, when=lambda problem: True):
    """reward + weight * score(completion, problem): a slot for any score from 0 to 1, of a model or a rule.
    when(problem): where it counts. subtle: for a whole group or not at all, or luck would look like merit."""

    def extended(completion, problem):
        value, parts = reward(completion, problem)
        more = float(score(completion, problem)) if when(problem) else 0.0
        if not 0.0 <= more <= 1.0:
            raise ValueError(f"the score {name!r} is {more}, not from 0 to 1")
        return value + weight * more, parts | {name: more}

    return extended


_REFUSAL = re.compile(
    r"\bI(?:'m| am) (?:sorry|unable)\b|\bas an AI\b"
    r"|\bI (?:cannot|can't|can not|won't|will not) (?:help|assist|answer|comply|provide)\b",
    re.IGNORECASE,
)


def no_refusal(completion, problem):
    """1 unless what is said behind the thinking refuses, by the usual English phrases: a term for
    with_term. Chapter 14 names one for refusals and does not print it. It is a list of words, so a
    policy can refuse in others; where a right answer is paid, a refusal earns nothing in any case."""
    said = completion.rpartition("</think>")[2]
    return float(not _REFUSAL.search(said.replace("\u2019", "'")))


def steps_score(completion, problem):
    """The share of equations that hold, in the tagged form."""
    return verify_steps(completion)["frac"] if split_tags(completion) else 0.0


def rules_score(completion, problem):
    """The share of AutoRule's rules to which its judge says Yes ($AUTORULE, see autorule/autorule.py)."""
    parts = get_reward(f"{Path(__file__).parent / 'autorule' / 'autorule.py'}:rules_reward")(
        completion, problem
    )[1]
    yes = [value for name, value in parts.items() if re.fullmatch("rule_[0-9]+", name)]
    return sum(yes) / max(1, len(yes))


def one_in(n):
    """Every n-th problem. subtle: without the last digit of the hash, for those with a 0 there are held out."""
    return lambda problem: zlib.crc32(problem["problem"].encode("utf-8", "replace")) // 10 % n == 0


# What the chapter's tables add: R1's 0.2 for helpful and harmless in its last phase, a run of its own or a phase of a
# Curriculum; Kimi's 0.05 for the process on 5 % of the problems (the hardest, it says: pass a `when` that knows them).
r1_helpful = with_term(REASONING_PRESETS["r1"].reward, "helpful", rules_score, 0.2)
kimi_process = with_term(kimi, "process", steps_score, 0.05, one_in(20))


# ---- 3. Tool use -----------------------------------------------------------------------------------------------------

SEARCH_RULES = weights(accuracy=0.7, format=0.05, call_success=0.1, cost=0.1, length_term=0.05)


def search_agent_reward(trajectory, problem):
    """0.7 accuracy + 0.05 format + 0.1 call_success + 0.1 cost + 0.05 length_term (the chapter on
    verifier-based RL, 5.1, where it is called length).

    trajectory: the messages of an episode, {"role": "assistant", "content": text with <tool_call>s} and,
    from the environment, {"role": "tool", "content": text, "error": bool}. problem: "answer", "tools" (see
    verify_tool_call). Cost is 1 up to 3 calls, 0.7 up to 6, 0.3 up to 10, then 0; length_term is 1 up to
    8000 words, then 0.5. Without calls format and success are 0, as in the chapter: were they 1, silence
    would earn 0.30 and a failed try only 0.20.
    """
    said = [message["content"] for message in trajectory if message["role"] == "assistant"] or [""]
    results = [message for message in trajectory if message["role"] == "tool"]
    checks = [verify_tool_call(text, problem.get("tools", {})) for text in said]
    calls, valid = (sum(check[key] for check in checks) for key in ("calls", "valid"))
    succeeded = min(valid, sum(not result.get("error") for result in results))
    final = said[-1].rpartition("</think>")[2]
    answer = (
        extract_boxed_answer(final) or final.rpartition("<answer>")[2].partition("</answer>")[0]
    )
    cost = next(
        left for most, left in ((3, 1.0), (6, 0.7), (10, 0.3), (math.inf, 0.0)) if calls <= most
    )
    words = len(WORD.findall("\n".join(said)))
    scores = {
        "accuracy": float(grade_answer(answer, problem["answer"])),
        "format": valid / max(1, calls),
        "call_success": succeeded / max(1, calls),
        "cost": cost,
        "length_term": 1.0 if words <= 8000 else 0.5,
    }
    return aggregate(scores, SEARCH_RULES), scores | {
        "calls": calls,
        "answered": float(answer.strip() != ""),
    }


# ---- 4. How policies cheat, and guards -------------------------------------------------------------------------------


def is_hacking(response: str) -> bool:
    r"""Does it look like an answer without being one: no derivation before it, or the thinking after it?

    In place of the patterns of the chapter on verifier-based RL, 8.4: </think>.*\\boxed, meant for a box
    without thinking, fires on every answer in R1's form, and "based on the above, ... 4" on honest ones.
    """
    answer = re.search(r"<answer>|\\(?:boxed|fbox)\b|$", response).start()
    think = response.partition("</think>")[0] if "</think>" in response else response[:answer]
    if response.rfind("<think>") > answer:
        return True
    return derivation(think.replace("<think>", " "), extract_boxed_answer(response)) < 8


def quotas(response: str) -> float:
    """Off for excess: 0.5 above 20 tool calls, 0.3 above 16000 words, 0.5 above 10 <think>."""
    return (
        0.5 * (response.count("<tool_call>") > 20)
        + 0.3 * (len(WORD.findall(response)) > 16000)
        + 0.5 * (response.count("<think>") > 10)
    )


def guarded(reward_fn):
    """The reward less 0.5 for what is_hacking finds and less the quotas."""

    def reward(completion, problem):
        value, parts = reward_fn(completion, problem)
        hacking = float(is_hacking(completion))
        excess = quotas(completion)
        return value - 0.5 * hacking - excess, parts | {"hacking": hacking, "excess": excess}

    return reward


def guarded_reward(completion, problem):
    """boxed_reward behind the guards."""
    return guarded(boxed_reward)(completion, problem)


# ---- 5. Controls: what a real reward must beat -----------------------------------------------------------------------
# Each pays for something else than being right, and logs boxed_reward's accuracy. Qwen2.5-Math improves even under
# some of them (Shao et al. 2025, arXiv 2506.10947), so a rise alone shows nothing about a reward.


def coin(completion, problem):
    """Heads or tails by a hash, so it falls the same way in every process and after a resume."""
    heads = zlib.crc32(f"{problem['problem']}\0{completion}".encode("utf-8", "replace")) & 1
    return float(heads), boxed_reward(completion, problem)[1]


def inverted(completion, problem):
    """1 for a boxed answer that is wrong."""
    right, parts = boxed_reward(completion, problem)
    return float(parts["answered"] and not right), parts


def format_only(completion, problem):
    """1 for the tagged form, whatever is in it."""
    return verify_format(completion)["structure"], boxed_reward(completion, problem)[1]


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")


def first_box(completion, problem):
    """The textbook's re.search: the first box counts, so a guess before any work is judged."""
    starts = [box.start() for box in itertools.islice(_BOX.finditer(completion), 2)]
    first = completion[: starts[1]] if len(starts) > 1 else completion
    return reward_rlvr(first, problem["answer"]), boxed_reward(completion, problem)[1]


def any_box(completion, problem):
    """Any box that is right counts (of the first 100): pays for boxing every number there is."""
    starts = [box.start() for box in itertools.islice(_BOX.finditer(completion), 100)]
    texts = [completion[start:end] for start, end in itertools.zip_longest(starts, starts[1:])]
    paid = max((reward_rlvr(text, problem["answer"]) for text in texts), default=0.0)
    return paid, boxed_reward(completion, problem)[1]


# ---- 6. Tasks --------------------------------------------------------------------------------------------------------

GSM8K = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
    "grade_school_math/data/"
)
GSM8K_FILES = {
    "train": "17f347dc51477c50",
    "test": "3730d312f6e34405",
}  # the first digits of their SHA-256
HUMANEVAL = (
    "https://raw.githubusercontent.com/openai/human-eval/463c980b59e818ace59f6f9803cd92c749ceae61/data/"
    "HumanEval.jsonl.gz"
)
HUMANEVAL_SHA = "b796127e635a67f9"
MATH_TASKS = "HuggingFaceTB/math_tasks"  # the better known copies of both sets are parquet


def gsm8k() -> Task:
    """Cobbe et al. 2021 in its original form; the hub holds it as parquet, which needs another package."""
    train, test = (
        _gsm8k_problems(_download(f"{GSM8K}{split}.jsonl", f"gsm8k_{split}.jsonl", sha))
        for split, sha in GSM8K_FILES.items()
    )
    return Task("gsm8k", train, test, BOXED, boxed_reward, "the original split of GSM8K")


def _gsm8k_problems(path):
    """With the worked solutions, which read_problems leaves out, for few-shot prompts."""
    with open(path, encoding="utf-8") as file:
        solutions = [json.loads(line)["answer"].rpartition("####")[0].strip() for line in file]
    problems = read_problems(path)
    return [{**row, "solution": text} for row, text in zip(problems, solutions, strict=True)]


def humaneval(path=None) -> Task:
    """164 Python functions to complete (Codex, arXiv 2107.03374), judged by verify_code."""
    path = path or _download(HUMANEVAL, "HumanEval.jsonl.gz", HUMANEVAL_SHA)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        problems = [_humaneval_problem(json.loads(line)) for line in file]
    return Task("humaneval", [], problems, PROGRAM, code_reward, "for evaluation only")


def _humaneval_problem(row):
    """HumanEval's check(candidate) as tests: its asserts one by one, or whole where it has loops or names of its own.

    What the prompt gives (imports, helpers, and the function, which is a docstring still) runs before the answer: a
    program that does not repeat it is not wrong.
    """
    function = row["entry_point"]
    (check,) = (
        node
        for node in ast.parse(row["test"]).body
        if isinstance(node, ast.FunctionDef) and node.name == "check"
    )
    for node in ast.walk(check):
        if isinstance(node, ast.Name) and node.id == "candidate":
            node.id = function
    tests = [f"{row['test']}\ncheck({function})"]
    if all(
        isinstance(line, ast.Assert) for line in check.body
    ):  # some are `assert True`: those test nothing
        tests = [test for test in map(ast.unparse, check.body) if f"{function}(" in test]
    return {
        "problem": f"Complete this program:\n\n```python\n{row['prompt']}```",
        "answer": "\n".join(tests),
        "before": row["prompt"] + "\n",
        "entry_points": [function],
        "tests": tests,
        "task_id": row.get("task_id"),
    }


def aime24() -> Task:
    """The 30 problems of AIME 2024 I and II: one is 3 %, so draw many samples. Its address is unverified."""
    return Task(
        "aime24",
        [],
        hub_problems(MATH_TASKS, "data/aime24/*.jsonl"),
        BOXED,
        boxed_reward,
        "unverified source",
    )


def amc23() -> Task:
    """The 40 problems of AMC 12 2023 whose answer is a number, in Qwen2.5-Math's wording, without the choices. Its
    address is unverified."""
    return Task(
        "amc23",
        [],
        hub_problems(MATH_TASKS, "data/amc23/*.jsonl"),
        BOXED,
        boxed_reward,
        "unverified source",
    )


def _download(url, name, sha256) -> Path:
    from torch.hub import (
        download_url_to_file,
    )  # shows a progress bar; a broken transfer leaves no file

    path = Path.home() / ".cache" / "rlvr" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(url, str(path), hash_prefix=sha256)
        except (OSError, RuntimeError) as error:  # RuntimeError: the hash is not the expected one
            raise DataError(
                f"{url}: cannot be fetched ({error}). Fetch it yourself and pass it as --task"
            ) from error
    return path
