"""exercises.py - three exercises, each with a check that runs your code.

    python -m notebooks.exercises                      shows this list
    python -m notebooks.exercises compose              shows an exercise
    python -m notebooks.exercises compose mine.py      checks your solution

    compose    a reward that ranks six completions as it should
    grader     two answers that the grader compares wrongly
    tests      six tests that no wrong program passes

Your file defines the names that the exercise asks for; it may import the
project's scripts. A check prints "solved", or what is still wrong and a case
that shows it. All exercises have a solution. (Do not look at it yet: it is in
notebooks/tests/test_exercises.py.)
"""

import inspect
import runpy
import sys
import warnings
from pathlib import Path

import sympy

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if it is started as a file

from appendix.plumbing import DataError
from notebooks.command import parser_of, run_command, wrapped
from notebooks.rewards.program_parts import check_tests
from notebooks.rewards.reasoning import check_weights, earnable
from rlvr import group_advantages
from verifiers import grade_answer, verify_code


class Unsolved(Exception):
    """Raised if an exercise is not solved yet; the message says why."""


class Solution(dict):
    """The names that a file defines."""

    def __missing__(self, name):
        raise Unsolved(f"your file must define {name}")


def want(holds, reason):
    if not holds:
        raise Unsolved(reason)


def boxed(think, answer="2"):
    return f"<think>{think}</think><answer>\\boxed{{{answer}}}</answer>"


def thought(words):
    """Words that never repeat: because0 the1 roots2 .."""
    of = "because the roots multiply to six and add up to five".split()
    return " ".join(f"{of[i % len(of)]}{i}" for i in range(words))


SIX = {  # of notebook 3
    "short, right": boxed(thought(18)),
    "long, right": boxed(thought(142)),
    "rambling, right": boxed(thought(612)),
    "right, no tags": "The smaller root is \\boxed{2}.",
    "wrong, good form": boxed(thought(84), "3"),
    "bilingual, right": boxed("let me factor 先因式分解 (x-2)(x-3)=0 then 所以较小的根是 2, ok"),
}


def compose(my):
    """Define `reward`, a reasoning.ReasoningReward that ranks the six completions of notebook 3 as
    follows. "long, right" alone has the highest advantage, and "wrong, good form" the lowest.
    "rambling, right" and "bilingual, right" have negative advantages, "short, right" and "right, no
    tags" positive ones. check_weights must not warn. (The chapter's Design B leaves "rambling,
    right" above zero.)"""
    with warnings.catch_warnings(record=True, action="always") as caught:
        check_weights(earnable(my["reward"]))
    want(not caught, f"check_weights warns: {caught[0].message if caught else ''}")
    A = dict(zip(SIX, group_advantages([my["reward"](text, "2")["R"] for text in SIX.values()])))
    first, second = sorted(A.values(), reverse=True)[:2]
    shown = ", ".join(f"{name} {a:+.2f}" for name, a in A.items())
    want(A["long, right"] == first > second + 1e-9, f"long is not alone on top: {shown}")
    want(A["wrong, good form"] == min(A.values()), f"wrong is not at the bottom: {shown}")
    pushed = A["rambling, right"] < 0 > A["bilingual, right"]
    want(pushed, f"rambling or bilingual is made more likely: {shown}")
    kept = A["short, right"] > 0 < A["right, no tags"]
    want(kept, f"short or no tags is made less likely: {shown}")


# ---- Against the verifiers -------------------------------------------------------------------------------------------

READABLE = (sympy.Integer, sympy.Rational, sympy.Add, sympy.Mul, sympy.Pow)
READABLE += (type(sympy.pi), sympy.sin, sympy.cos, sympy.tan)


def break_the_grader(my):
    """Define `truth` and `answer`, two sympy numbers that grade_answer compares wrongly when it reads
    their LaTeX. They may be made of integers, fractions, + - * / and powers, pi, sin, cos and tan.
    The grader claims to read all of these. sympy decides who is right. Hint: the grader is numeric
    (grading.py)."""
    pair = [my["truth"], my["answer"]]
    for expression in pair:
        want(isinstance(expression, sympy.Expr), f"{expression!r} is no number of sympy")
        for node in sympy.preorder_traversal(expression):
            reason = f"{node} ({type(node).__name__}) is not among what may be used"
            want(isinstance(node, READABLE), reason)
    truth, answer = map(sympy.latex, pair)
    want(len(truth + answer) <= 1000, "1,000 characters of LaTeX: beyond, anybody would give up")
    same = pair[0].equals(pair[1])
    want(same is not None, "sympy cannot tell either: choose a clearer case")
    judged = grade_answer(answer, truth)
    reason = f"truth {truth}, answer {answer}: the grader says {judged}, and so does sympy"
    want(judged != same, reason)


HONEST = "def is_leap(y): return y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)"
WRONG = {
    "every fourth year": "def is_leap(y): return y % 4 == 0",
    "no century ever": "def is_leap(y): return y % 4 == 0 and y % 100 != 0",
    "only each 400 years": "def is_leap(y): return y % 400 == 0",
    "remembers 2000": "def is_leap(y): return y % 4 == 0 and y % 100 != 0 or y == 2000",
    "a list, which is true": "def is_leap(y): return [y] if y % 4 == 0 else []",
    "memory": "def is_leap(y): return {1900: False, 2000: True, 2023: False, 2024: True}.get(y, False)",
}


def tests_that_hold(my):
    """Define `tests`, a list of at most six assert statements (strings) for is_leap(year), the
    Gregorian rule. An honest program must pass them all, and each of six wrong programs must fail.
    One of the wrong programs has memorised 1900, 2000, 2023 and 2024. By check_tests, no constant
    answer may pass more than half of the tests."""
    tests = my["tests"]
    texts = all(isinstance(test, str) for test in tests)
    want(texts and 0 < len(tests) <= 6, "one to six tests, each a string")
    out = verify_code(HONEST, tests)
    want(out["frac"] == 1.0, f"an honest program fails: {out['why']}")
    for name, program in WRONG.items():
        passes = verify_code(program, tests)["frac"] == 1.0
        want(not passes, f"{name!r} passes all of your tests:\n{program}")
    (weak,) = check_tests([{"tests": tests}])
    reason = f"the empty program or the echo passes some tests: {weak}"
    want(weak["empty"] == weak["echo"] == 0, reason)
    reason = f"a function that always returns {weak['value']} passes {weak['constant']:.0%}"
    want(weak["constant"] <= 0.5, reason)


EXERCISES = {"compose": compose, "grader": break_the_grader, "tests": tests_that_hold}


def check(name, path):
    """Run the file and the check. Returns (is it solved?, a message)."""
    try:
        names = runpy.run_path(str(path))
    except (OSError, SyntaxError, ImportError) as error:  # other errors show a traceback
        raise DataError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    try:
        EXERCISES[name](Solution(names))
    except Unsolved as reason:
        return False, f"not yet: {reason}"
    return True, "solved"


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("name", nargs="?", choices=EXERCISES)
    parser.add_argument("file", nargs="?", help="your file (without it, shows the exercise)")
    args = parser.parse_args(argv)
    if args.file:
        solved, said = check(args.name, args.file)
        print(wrapped(said))
        return not solved
    asked = inspect.getdoc(EXERCISES[args.name]) if args.name else ""
    print("\n\n".join(wrapped(part, hang="") for part in asked.split("\n\n")) or __doc__)
    return 0


if __name__ == "__main__":
    run_command(main)
