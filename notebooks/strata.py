r"""strata.py - which problems a step sees, by their answers, and in which words it asks.

What you will learn: what to do when the training reward rises and the test stands still (chapter "Reward Design for
Reasoning", the eval-vs-train reward gap): a model that has learnt to guess small integers needs other answers as often
(section 1), one that has learnt a sentence needs other sentences (2). Tasks to try both on SmolLM2 are in section 3.

    python train.py --task math --pick notebooks/strata.py:by_type
    python train.py --task notebooks/strata.py:math_wordings
"""

import functools
import random
import re
from dataclasses import dataclass, fields

import _root

from smollm2 import split
from variants import mean_accuracy, walk
from grading import MAX_CHARS, normalise
from verifiers import BOXED, Task, boxed_reward, math_task

# ---- 1. Pickers: f(problems, step, memory, flags) -> the indices of a step, see variants.py ------

_TYPES = {
    "integer": re.compile(r"[+-]?[0-9]+"),
    "decimal": re.compile(r"[+-]?[0-9]*\.[0-9]+"),
    "fraction": re.compile(r"[+-]?(?:[0-9]*\\frac\{-?[0-9]+\}\{[0-9]+\}|[0-9]+/[0-9]+)"),
}


@functools.lru_cache(maxsize=2**16)
def answer_type(answer: str) -> str:
    r"""integer, decimal, fraction or expression, in the grader's spelling and without units: 10,\!080 and 90^\circ
    are integers, 2\frac13 is a fraction; \frac{\pi}{2}, (1, 2) and a word are expressions."""
    if len(answer) > MAX_CHARS:
        return "expression"
    spelling = "".join(
        token for token in normalise(answer) if token != "°" and not token.startswith('"')
    )
    return next((kind for kind, form in _TYPES.items() if form.fullmatch(spelling)), "expression")


def answer_size(answer: str) -> int:
    """How many binary digits an integer has: 4 to 7 have 3, 8 to 15 have 4. Of all else 0."""
    return int(answer).bit_length() if re.fullmatch("-?[0-9]{1,1000}", answer) else 0


def in_turn(problems, step, flags, kind_of):
    """The kinds of answers take turns, whatever their shares of the data; each walks through its own problems, in a
    new random order in every epoch. So the problems of a rare kind come more often."""
    kinds = {}
    P = flags.prompts_per_step
    for index, problem in enumerate(problems):
        kinds.setdefault(kind_of(problem["answer"]), []).append(index)
    groups = [kinds[kind] for kind in sorted(kinds)]
    places = (divmod(place, len(groups)) for place in range((step - 1) * P, step * P))
    return [groups[turn][walk(len(groups[turn]), place, flags.seed)] for place, turn in places]


def by_type(problems, step, memory, flags):
    """As many integers as fractions, decimals and expressions, as far as the data has them."""
    return in_turn(problems, step, flags, answer_type)


def by_size(problems, step, memory, flags):
    """As many answers of each number of binary digits."""
    return in_turn(problems, step, flags, answer_size)


TARGET = (
    0.1,
    0.2,
    0.4,
    0.2,
    0.1,
)  # of a step's problems with a mean from 0 to .2, to .4, to .6, to .8, to 1


def to_histogram(problems, step, memory, flags, target=TARGET):
    """Difficulty-stratified batching: a step's problems have the accuracies of a target histogram, so the std of the
    rewards within the groups is much the same in every step.

    Each place goes to the bin furthest behind its share that has a problem left. A problem not yet seen counts as 1/2.
    variants.stratified is the target (1/3, 1/3, 1/3) and, like this, knows the last three visits only.
    """
    order = random.Random(f"pick {flags.seed} {step}").sample(range(len(problems)), len(problems))
    chosen = []
    taken = [0] * len(target)
    bins = [[] for _ in target]
    while len(chosen) < flags.prompts_per_step:
        if not any(bins):  # at first, and again with fewer problems than a step asks for
            for index in reversed(order):
                bins[min(len(target) - 1, int(len(target) * mean_accuracy(memory, index)))].append(
                    index
                )
        behind = [
            target[i] * (len(chosen) + 1) - taken[i] if bins[i] else -float("inf")
            for i in range(len(target))
        ]
        turn = behind.index(max(behind))
        taken[turn] += 1
        chosen.append(bins[turn].pop())
    return chosen


# ---- 2. Wordings ---------------------------------------------------------------------------------


@dataclass
class Worded(Task):
    """A task whose training problems are asked in one of several wordings, and the others in `instruction`.

    The problem and the step choose: all completions of a group have the same prompt, and a problem comes
    in other words next time. critical: problems to test on are marked, or the training would be told by its "step"
    alone, and the preflight, which has none, would look at the wrong prompts.
    """

    wordings: tuple = ()

    def prompt(self, problem):
        if problem.get("to_test") or not self.wordings:
            return super().prompt(problem)
        rng = random.Random(f"wording {problem['problem']} {problem.get('step', 0)}")
        return rng.choice(self.wordings).format(problem=problem["problem"])


def in_wordings(task: Task, wordings, unseen=None) -> Worded:
    """Train on a task in these wordings, format strings with {problem} that all ask for what its reward reads; test
    in another one that is never trained on (default: the task's own, so it should be none of them)."""
    values = {field.name: getattr(task, field.name) for field in fields(Task)}
    test = [{**problem, "to_test": True} for problem in task.test]
    return Worded(
        **values | {"test": test, "instruction": unseen or task.instruction},
        wordings=tuple(wordings),
    )


MATH_WORDINGS = (
    "Problem: {problem}\n\nThink step by step, then write the answer as \\boxed{{answer}}.\n\nSolution:",
    "{problem}\n\nShow your work. The last line must hold the result in \\boxed{{}}.\n\n",
    "Question: {problem}\n\nReason first. Your result belongs into \\boxed{{}}.\n\nAnswer:",
    "You are a careful mathematician; box your final result (\\boxed{{}}).\n\n{problem}\n\nWorked solution:",
    "Find the answer and put a LaTeX box, \\boxed{{}}, around it: {problem}\n\n",
)


def math_wordings() -> Worded:
    """MATH, trained on in five wordings and tested in the core's own."""
    return in_wordings(math_task(), MATH_WORDINGS, BOXED)


# ---- 3. Does either matter? Sums for SmolLM2-135M ------------------------------------------------
# Asked as base models are asked: two solved lines, then the next one. The two are left out of the problems. How often
# the base is right at temperature 1 in these words: .12, .09, .09, .07; in the unseen ones .04 (432 completions each).

LINES = "7 + 6 = \\boxed{{13}}\n12 + 5 = \\boxed{{17}}\n{problem} ="
WORDINGS = (
    LINES,
    "The sum 7 + 6 is \\boxed{{13}}\nThe sum 12 + 5 is \\boxed{{17}}\nThe sum {problem} is",
    "7 + 6 makes \\boxed{{13}}\n12 + 5 makes \\boxed{{17}}\n{problem} makes",
    "Add 7 + 6. Answer: \\boxed{{13}}\nAdd 12 + 5. Answer: \\boxed{{17}}\nAdd {problem}. Answer:",
)
UNSEEN = "Q: 7 + 6 A: \\boxed{{13}}\nQ: 12 + 5 A: \\boxed{{17}}\nQ: {problem} A:"


def sums():
    """The sums of two numbers from 2 to 20, split by pairs: (to train on, held out)."""
    return [
        [{"problem": f"{a} + {b}", "answer": str(a + b)} for a, b in pairs] for pairs in split()
    ]


def line_task(name, train, test, note):
    return Task(name, train, test, LINES, boxed_reward, note, stops=("\n",))


def sized(name, num_small, num_large):
    """Trained on so many sums below 16 and above, tested on the held-out ones from 16 on."""
    train, test = sums()
    small, large = ([p for p in train if (int(p["answer"]) < 16) == side] for side in (True, False))
    return line_task(
        name,
        small[:num_small] + large[:num_large],
        [p for p in test if int(p["answer"]) >= 16],
        f"{num_small} answers below 16, {num_large} others; tested on others",
    )


def small_answers():
    """Does training on small answers teach to guess small ones?"""
    return sized("small-answers", 48, 0)


def mostly_small():
    """Nine in ten are small. With --pick notebooks/strata.py:by_size a third of those that are seen is not."""
    return sized("mostly-small", 48, 5)


def all_sizes():
    """The control: as many problems, 12 of them small: the shares of all sums."""
    return sized("all-sizes", 12, 41)


def one_wording():
    """Trained in one wording, tested on other sums in another one."""
    task = line_task("one-wording", *sums(), "tested in a wording never trained on")
    return in_wordings(task, WORDINGS[:1], UNSEEN)


def many_wordings():
    """The same problems, trained in four wordings, tested in the same other one."""
    task = one_wording()
    task.name, task.wordings = "many-wordings", WORDINGS
    return task
