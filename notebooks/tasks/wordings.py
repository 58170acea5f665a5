"""wordings.py - in which words a task asks, and tasks to try other words and other answers on.

What you will learn: what to do when the training reward rises and the test stands still (chapter "Reward Design for
Reasoning", the eval-vs-train reward gap): a model that has learned to guess small integers needs other answers as often
(methods/by_answer.py), one that has learned a sentence needs other sentences (section 1). Tasks to try both on SmolLM2
are in section 2.

    python train.py --task math --method notebooks/methods/by_answer.py
    python train.py --task notebooks/tasks/wordings.py:math_wordings
"""

import random
from dataclasses import dataclass, fields

from notebooks.tasks.smollm2 import split
from verifiers import BOXED, Task, boxed_reward, math_task

# ---- 1. Wordings ---------------------------------------------------------------------------------


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
        return rng.choice(self.wordings).replace("{problem}", problem["problem"])


def in_wordings(task: Task, wordings, unseen=None) -> Worded:
    """Train on a task in these wordings, with {problem} in them, that all ask for what its reward reads; test
    in another one that is never trained on (default: the task's own, so it should be none of them)."""
    values = {field.name: getattr(task, field.name) for field in fields(Task)}
    test = [{**problem, "to_test": True} for problem in task.test]
    return Worded(
        **values | {"test": test, "instruction": unseen or task.instruction},
        wordings=tuple(wordings),
    )


MATH_WORDINGS = (
    "Problem: {problem}\n\nThink step by step, then write the answer as \\boxed{answer}.\n\nSolution:",
    "{problem}\n\nShow your work. The last line must hold the result in \\boxed{}.\n\n",
    "Question: {problem}\n\nReason first. Your result belongs into \\boxed{}.\n\nAnswer:",
    "You are a careful mathematician; box your final result (\\boxed{}).\n\n{problem}\n\nWorked solution:",
    "Find the answer and put a LaTeX box, \\boxed{}, around it: {problem}\n\n",
)


def math_wordings() -> Worded:
    """MATH, trained on in five wordings and tested in the core's own."""
    return in_wordings(math_task(), MATH_WORDINGS, BOXED)


# ---- 2. Does either matter? Sums for SmolLM2-135M ------------------------------------------------
# Asked as base models are asked: two solved lines, then the next one. The two are left out of the problems. How often
# the base is right at temperature 1 in these words: .12, .09, .09, .07; in the unseen ones .04 (432 completions each).

LINES = "7 + 6 = \\boxed{13}\n12 + 5 = \\boxed{17}\n{problem} ="
WORDINGS = (
    LINES,
    "The sum 7 + 6 is \\boxed{13}\nThe sum 12 + 5 is \\boxed{17}\nThe sum {problem} is",
    "7 + 6 makes \\boxed{13}\n12 + 5 makes \\boxed{17}\n{problem} makes",
    "Add 7 + 6. Answer: \\boxed{13}\nAdd 12 + 5. Answer: \\boxed{17}\nAdd {problem}. Answer:",
)
UNSEEN = "Q: 7 + 6 A: \\boxed{13}\nQ: 12 + 5 A: \\boxed{17}\nQ: {problem} A:"


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
    """Nine in ten are small. With --method notebooks/methods/by_answer.py --kind size a
    third of those that are seen is not."""
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
