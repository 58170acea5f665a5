"""program_parts.py - rewards for parts of a program (syntax, tests, speed, safety), and a check of tests that any
program passes (the chapter on verifier-based RL, 2.1 and 4).

    python train.py --task programs.jsonl --reward notebooks/rewards/program_parts.py:code_strict
"""

import ast
import collections
import contextlib
import random
import warnings

from appendix.sandbox import read_tests
from notebooks.rewards.structured import weights
from verifiers import aggregate, extract_code, verify_code

CODE_PARTS = weights(syntax=0.1, tests=0.7, speed=0.1, safety=0.1)
_DANGEROUS = set(
    "os subprocess socket shutil ctypes signal multiprocessing importlib builtins gc inspect posix pty "
    "urllib http requests pickle eval exec open modules _getframe __import__ __builtins__ __globals__ "
    "__subclasses__".split()
)
MAX_CODE = 20_000  # characters of one program
warnings.filterwarnings("ignore", module="<completion>")  # do not report "\d" in a model's string


def read_program(code: str) -> tuple[bool, bool]:
    """Return (is it Python, does it name nothing dangerous), without running it: a training signal, no protection."""
    try:
        nodes = list(ast.walk(ast.parse(code[:MAX_CODE], "<completion>")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False, False
    # `def open(self)` is harmless.
    named = [node for node in nodes if not isinstance(node, ast.FunctionDef)]
    fields = ("id", "attr", "name", "module")
    names = {getattr(node, field, None) for node in named for field in fields}
    safe = not any(str(name).partition(".")[0] in _DANGEROUS for name in names)
    return len(code) <= MAX_CODE, safe and len(code) <= MAX_CODE


def tested(response, problem, tests):
    """Test the last program of a completion -> (is it Python, is it harmless, the results of the tests, parts)."""
    code = extract_code(response)
    syntax, safe = read_program(code) if code else (False, False)
    out = {"frac": 0.0, "seconds": 0.0}
    if syntax:
        out = verify_code(problem.get("before", "") + "\n" + code, tests)
    parts = {"accuracy": float(out["frac"] == 1.0), "answered": float(code is not None)}
    return syntax, safe, out, parts


def code_parts_reward(response, problem):
    """0.1 syntax + 0.7 tests + 0.1 speed + 0.1 safety, for the last program of the completion.

    problem: "tests" is a list of asserts. Optional: "before", code that runs ahead of the program;
    "baseline", the share of the tests that a program passes without solving anything (check_tests), so
    that only a higher share counts; "seconds", after which speed is 0.5 (default 5). Departure: speed
    and safety count only if tests is above 0; in the chapter `pass` is fast and safe, and so worth 0.3.
    """
    syntax, safe, out, parts = tested(response, problem, problem["tests"])
    least = min(problem.get("baseline", 0.0), 1 - 1e-9)
    tests = max(0.0, (out["frac"] - least) / (1 - least))
    speed = 0.5 if out["seconds"] > problem.get("seconds", 5.0) else 1.0
    works = float(tests > 0)
    scores = {"syntax": float(syntax), "tests": tests, "speed": works * speed}
    scores["safety"] = works * safe
    return aggregate(scores, CODE_PARTS), parts | scores


def quick_code_reward(response, problem, count=3):
    """0.5 if any of a few tests passes + 0.5 times the share of them that pass: cheap if there are
    many tests (the chapter on verifier-based RL, 2.1). The problem's text decides which tests are
    drawn, so all completions of a group get the same ones. Departure: in the chapter the first half
    is for any Python program, so `pass` earns 0.5; here the program must pass a test. A program that
    passes these few tests may fail the others, and `accuracy` counts only the few, so evaluate with
    all tests (code_reward)."""
    tests = list(problem["tests"])
    random.Random(problem.get("problem", "")).shuffle(tests)
    syntax, _, out, parts = tested(response, problem, tests[:count])
    value = 0.5 * (out["frac"] > 0) + 0.5 * out["frac"]
    return value, parts | {"syntax": float(syntax), "tests": out["frac"]}


def check_tests(problems: list[dict], timeout: float = 1.0) -> list[dict]:
    """Return what programs that solve nothing earn. Run this on a data set before training on it.

    problems: dicts with "tests". For each: {"empty", "echo", "constant", "value"}. The first three are shares of
    its tests that a program passes: the empty one, one that returns its first argument, and the best one that
    returns a constant (`value`). "constant" can be code_parts_reward's baseline."""
    return [_unlearned(problem, timeout) for problem in problems]


def _unlearned(problem, timeout):
    tests = problem["tests"]
    given = {key: problem[key] for key in ("entry_points", "before") if key in problem}
    names = {name for test in read_tests(tests, **given) for name in test["asks"]}
    values = collections.Counter("None True False 0 1 '' []".split())
    for test in tests:
        with contextlib.suppress(SyntaxError):
            compares = [node for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Compare)]
            for side in [side for node in compares for side in (node.left, *node.comparators)]:
                with contextlib.suppress(ValueError, TypeError):
                    values[repr(ast.literal_eval(side))] += 1
    constants = [value for value, _ in values.most_common(20)]
    echo = "args[0] if args else None"
    share = {}
    for result in ["", echo, *constants]:
        code = "".join(f"def {name}(*args, **_): return {result}\n" for name in names if result)
        share[result] = verify_code(code, tests, timeout, **given)["frac"]
    value = max(constants, key=share.get)
    return {"empty": share[""], "echo": share[echo], "constant": share[value], "value": value}


def code_strict(completion, problem):
    """code_parts_reward, but a program that fails any test counts as failing all."""
    return code_parts_reward(completion, problem | {"baseline": 1.0})
