"""exercises.py - six exercises, each with a check that runs your code.

    python -m notebooks.exercises                  shows this list
    python -m notebooks.exercises 3                shows exercise 3
    python -m notebooks.exercises 3 mine.py        checks your solution

    1 leave one out     2 a verifier in ten lines     3 compose a reward
    4 break the grader  5 tests that hold             6 beat the default

Your file defines the names that the exercise asks for; it may import the
project's scripts. A check prints "solved", or what is still wrong and a case
that shows it. The last one trains a tiny model, for about a minute per seed.
All exercises have a solution. (Do not look at it yet: it is in
notebooks/tests/test_exercises.py.)
"""

import inspect
import runpy
import sys
import tempfile
import warnings
from pathlib import Path

import sympy

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if it is started as a file

import train
from appendix.plumbing import DataError, get_method, read_rows
from notebooks.command import parser_of, run_command, wrapped
from notebooks.look.show import samples_of
from notebooks.rewards.program_parts import check_tests
from notebooks.rewards.reasoning import check_weights, earnable
from rlvr import GRPO, group_advantages
from verifiers import grade_answer, verify_code

ROOT = Path(__file__).resolve().parents[1]


class Unsolved(Exception):
    """Raised if an exercise is not solved yet; the message says why."""


class Solution(dict):
    """The names that a file defines."""

    def __missing__(self, name):
        raise Unsolved(f"your file must define {name}")


def want(holds, reason):
    if not holds:
        raise Unsolved(reason)


# ---- By hand ---------------------------------------------------------------------------------------------------------


def leave_one_out(my):
    """Write `advantages(rewards)`. It gets a list of G floats and returns, for each of them, R_i minus
    the mean of the *other* rewards (RLOO), not divided by anything. If all rewards are equal, each
    advantage must be exactly 0, not 1e-17."""
    groups = [[1.1, 0.1, 0.0, 1.1], [1.0, 0.0], [0.1, 0.12, 0.1], [0.0] * 15 + [1.0]]
    for group in groups:
        right = [R - (sum(group) - R) / (len(group) - 1) for R in group]
        found = [*my["advantages"]([*group])]
        same = len(found) == len(right) and all(abs(a - b) < 1e-9 for a, b in zip(found, right))
        want(same, f"for {group} it should be {[round(a, 4) for a in right]}, yours: {found}")
    for value, G in ((0.1, 16), (1.1, 7), (1 / 3, 12)):
        found = [*my["advantages"]([value] * G)]
        want(found == [0.0] * G, f"{G} times {value} teaches nothing, but you give {found[0]!r}")


FACTORS = [  # completion, to be factored, reward
    ("so it is \\boxed{ 13 * 7 }.", "91", 1),
    ("\\boxed{9*11}? no: \\boxed{7*13}", "91", 1),
    ("\\boxed{6*6}", "36", 1),
    ("\\boxed{7*13}", "77", 0),
    ("\\boxed{7*13} or \\boxed{oops}", "91", 0),
    ("\\boxed{3*7*13}", "273", 0),
    ("\\boxed{\u0667*13}", "91", 0),
    ("\\boxed{1*91}", "91", 0),
    ("\\boxed{-7*-13}", "91", 0),
    ("7*13", "91", 0),
    ("\\boxed{__import__('sys').exit()*7}", "91", 0),
    ("\\boxed{" + "9" * 5000 + "*2}", "91", 0),
]


def verifier_in_ten_lines(my):
    """Write `reward(completion, problem)` for the task "write {answer} as a product of two integers,
    both above 1, in a box". \\boxed{7*13} and \\boxed{13*7} are both right for problem["answer"] ==
    "91"; spaces do not count. Return (1.0 or 0.0, a dict of named parts with an "accuracy"), like
    the rewards in verifiers.py. Use at most ten lines. The last box counts. Hostile text must
    neither be run nor raise an error."""
    reward = my["reward"]
    lines = [line for line in inspect.getsource(reward).splitlines() if line.strip()]
    want(len(lines) <= 10, f"it has {len(lines)} lines")
    for completion, number, right in FACTORS:
        try:
            value, parts = reward(completion, {"problem": f"Factor {number}", "answer": number})
        except BaseException as error:
            raise Unsolved(f"{completion[:60]!r} makes it raise {error!r}") from None
        want(value == right, f"{completion[:60]!r} for {number} should earn {right}, not {value}")
        want("accuracy" in parts, "the parts need an accuracy, for the log")


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


# ---- Training --------------------------------------------------------------------------------------------------------


def trained(flags):
    """Train a tiny model with these flags. Returns the last row of its log and the number of completions."""
    with tempfile.TemporaryDirectory() as folder:
        train.main([*flags, "--device", "cpu", "--runs", folder, "--name", "run"])
        run = Path(folder, "run")
        count = sum(len([*samples_of(file)]) for file in run.glob("samples/*.gz"))
        return read_rows(run / "metrics.jsonl")[-1], count


BUDGET = 1280  # completions
FIXED = "model task prompt stop template reward eval_problems resume".split()
SUMS = ("--model", str(ROOT / "notebooks" / "tiny"), "--task", "arithmetic")


def refuse_another_game(setting, flags):
    """Refuse flags that change the base, task, reward or sampling, because accuracy would mean something else."""
    usual = train.parse_args(setting)
    read = train.parse_args([*setting, *flags])
    changed = [name for name in FIXED if getattr(read, name) != getattr(usual, name)]
    want(not changed, f"these stay as they are: {' '.join(changed)}")
    method = get_method(GRPO, read.method, read.settings)
    want(method.settings.temperature == 1, "the temperature stays 1")
    want(type(method).roll_out is GRPO.roll_out, "the method must sample as GRPO does")


def beat_the_default(my, seeds=(0, 1, 2), setting=SUMS, goal=0.8):
    """Define `flags`, a list of train.py's flags with which --task arithmetic learns more from 1,280
    completions than by default. With --steps 10, at 128 completions per step, the default recipe
    reaches a sampled held-out accuracy of 30 % (seeds 0 to 2: 29 to 32 %). Reach a mean of 80 % over
    seeds 0, 1 and 2, with at most 1,280 completions for each. You may change anything except the
    base, the task, the reward, the seed, and how completions are sampled."""
    flags = [str(flag) for flag in my["flags"]]
    refuse_another_game(setting, flags)
    got = []
    for seed in seeds:
        row, count = trained([*setting, *flags, "--eval-every", "1000", "--seed", str(seed)])
        reason = f"{count} completions, {BUDGET} are allowed: fewer --steps or smaller batches"
        want(count <= BUDGET, reason)
        got.append(row["eval_sampled_accuracy"])
    shown = f"{sum(got) / len(got):.3f}, by seed {[round(g, 3) for g in got]}"
    want(sum(got) / len(got) >= goal, f"held-out accuracy {shown}; the goal is {goal:.2f}")
    return shown


EXERCISES = [leave_one_out, verifier_in_ten_lines, compose]
EXERCISES += [break_the_grader, tests_that_hold, beat_the_default]


def check(number, path):
    """Run the file and the check. Returns (is it solved?, a message)."""
    try:
        names = runpy.run_path(str(path))
    except (OSError, SyntaxError, ImportError) as error:  # other errors show a traceback
        raise DataError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    try:
        said = EXERCISES[number - 1](Solution(names))
    except Unsolved as reason:
        return False, f"not yet: {reason}"
    return True, f"solved: {said}" if said else "solved"


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("number", nargs="?", type=int, choices=range(1, len(EXERCISES) + 1))
    parser.add_argument("file", nargs="?", help="your file (without it, shows the exercise)")
    args = parser.parse_args(argv)
    if args.file:
        solved, said = check(args.number, args.file)
        print(wrapped(said))
        return not solved
    asked = inspect.getdoc(EXERCISES[args.number - 1]) if args.number else ""
    print("\n\n".join(wrapped(part, hang="") for part in asked.split("\n\n")) or __doc__)
    return 0


if __name__ == "__main__":
    run_command(main)
