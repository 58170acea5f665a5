"""wordings.py - in which words a task asks.

What you will learn: what to do when the training reward rises and the test stands still (chapter "Reward Design for
Reasoning", the eval-vs-train reward gap): a model that has learned a sentence needs other sentences.

    python train.py --task notebooks/tasks/wordings.py:math_wordings
"""

import random
from dataclasses import dataclass, fields

from verifiers import BOXED, Task, math_task


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
