"""families.py - mathematics, multiple choice, JSON and programs in one batch.

Chapter 14 has three families (exact match, form, execution) and says that the slowest one sets the
pace of a mixed batch. Here each problem names its family, and one reward passes it to the right
verifier:

    python eval.py MODEL --task notebooks/tasks/families.py:mixed

All completions of a group answer one problem, so they belong to one family: advantages never
compare a program with a sum. `mixture` makes one task of several, each with its share of the
problems.

`in_wordings` varies how a task asks. It is for a training reward that rises while test accuracy
does not (chapter "Reward Design for Reasoning", the eval-vs-train reward gap): the model may have
learned a single sentence.

    python train.py --task notebooks/tasks/families.py:math_wordings
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import verifiers
from notebooks.rewards.structured import verify_json
from verifiers import BOXED, Task, boxed_reward, code_reward, extract_boxed_answer, grade_answer

# ---- Families --------------------------------------------------------------------------------------

_LETTER = re.compile(r"\(?([A-Ja-j])\)?[.:)]?(?:\s+(.*))?", re.S)  # the letter, and its text


def choice_reward(completion: str, problem: dict):
    """Return 1 if the last box names the right choice, as in MMLU: by its letter (B, b, (B) or
    B. 42) or its text. problem: "choices" is a list, and "answer" the letter of the right one."""
    choices = problem["choices"]
    said = extract_boxed_answer(completion)
    named = chosen(said, choices) if said is not None else None
    right = float(named is not None and "ABCDEFGHIJ"[named] == problem["answer"])
    return right, {"accuracy": right, "answered": float(named is not None)}


def chosen(said: str, choices: list[str]):
    """Return the index of the choice that `said` names, or None: a text that fits two choices
    names none."""
    said = re.sub(r"\\(?:text|textbf|mathrm)\{(.*)\}", r"\1", said.strip(), flags=re.S)
    by_text = [i for i, choice in enumerate(choices) if said.casefold() == choice.casefold()]
    letter = _LETTER.fullmatch(said)
    if not by_text and not letter:
        by_text = [i for i, choice in enumerate(choices) if grade_answer(said, choice)]
    if by_text:
        return by_text[0] if len(by_text) == 1 else None
    place = "ABCDEFGHIJ".index(letter[1].upper()) if letter else len(choices)
    if place >= len(choices):
        return None
    behind = (letter[2] or "").strip().casefold()
    return place if behind in ("", choices[place].casefold()) else None


def json_reward(completion: str, problem: dict):
    """Return 0.1 for JSON after the thinking, 1.1 if it also conforms to problem["schema"]."""
    out = verify_json(completion.rpartition("</think>")[2].strip(), problem["schema"])
    parts = {"accuracy": out["valid"], "answered": out["parses"], "format": out["parses"]}
    return out["valid"] + 0.1 * out["parses"], parts


def by_field(field: str, rewards: dict[str, Callable]):
    """Return a reward that passes each problem to the reward that its field names. In the log,
    each family has a column of its own: the share of all completions that are right and of this
    family."""

    def reward(completion, problem):
        family = problem.get(field)
        if family not in rewards:
            known = ", ".join(sorted(rewards))
            raise ValueError(f"a problem has {field} {family!r}, and rewards are for: {known}")
        value, parts = rewards[family](completion, problem)
        return value, {**parts, f"{family}_right": parts["accuracy"]}

    return reward


REWARDS = {"math": boxed_reward, "choice": choice_reward, "json": json_reward, "code": code_reward}
mixed_reward = by_field("family", REWARDS)

SCHEMA = {
    "type": "object",
    "required": ["city", "people"],
    "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
}
PROBLEMS = [
    {"family": "math", "problem": "What is 3/4 of 58?", "answer": "87/2"},
    {
        "family": "choice",
        "problem": "Which of these is a prime?\nA. 51\nB. 57\nC. 59\nD. 63",
        "choices": ["51", "57", "59", "63"],
        "answer": "C",
    },
    {
        "family": "json",
        "problem": 'Lyon has 520,774 people. Give "city" and "people" as JSON, without a box.',
        "answer": '{"city": "Lyon", "people": 520774}',
        "schema": SCHEMA,
    },
    {
        "family": "code",
        "problem": "Write is_leap(year) in one ```python block, without a box.",
        "answer": "assert is_leap(2000)",
        "tests": ["assert is_leap(2000)", "assert not is_leap(1900)", "assert is_leap(2024)"],
    },
]


def mixture(shares: dict[str, tuple[float, Task]], count: int, seed=0) -> Task:
    """Mix several tasks, {family: (share, task)}, into one with `count` training problems.

    Chapter 14 mixes 60 to 80 % of problems that rules can score with problems that a reward model
    scores. A task's reward may be either. (A problem without a true answer still needs a text as
    "answer", such as "-".)

    Each problem is asked in its own task's words and scored by its own task's reward. If a task has
    too few problems, they are repeated. The held-out problems are those of all tasks, in a random
    order.
    """
    rng = random.Random(seed)

    def own(family, task, problem):
        asked = {"problem": task.prompt(problem), "without prompt": problem["problem"]}
        return {**problem, "family": family, **asked}

    train = []
    test = []
    for family, (share, task) in shares.items():
        wanted = round(count * share)
        rounds = -(-wanted // len(task.train))  # how often its problems are repeated
        train += [own(family, task, problem) for problem in (task.train * rounds)[:wanted]]
        test += [own(family, task, problem) for problem in task.test]
    rng.shuffle(train)  # so that the families in a step have about their shares
    rng.shuffle(test)  # because an evaluation may use the first few only

    rewards = {family: own_reward(task) for family, (_, task) in shares.items()}
    stops = tuple({stop for _, task in shares.values() for stop in task.stops})
    reward = by_field("family", rewards)
    return Task("+".join(shares), train, test, "{problem}", reward, stops)


def own_reward(task: Task):
    """Return a task's reward for a problem whose text is the whole prompt: the reward sees the
    original text."""

    def reward(completion, problem):
        return task.reward(completion, {**problem, "problem": problem["without prompt"]})

    return reward


def mixed() -> Task:
    """A task with one problem of each family, to see how a model answers them."""
    return Task("mixed", PROBLEMS, PROBLEMS, BOXED, mixed_reward)


# ---- Wordings --------------------------------------------------------------------------------------


@dataclass
class Worded(Task):
    """A task that asks training problems in one of several wordings, and test problems in
    `instruction`.

    The problem and the step decide the wording: all completions of a group have the same prompt,
    and the wording may change at the next visit. critical: test problems are marked. Otherwise only
    "step" would show that a problem is trained on, and the preflight, which has no step, would use
    the wrong prompts.
    """

    wordings: tuple = ()

    def prompt(self, problem):
        if problem.get("to_test") or not self.wordings:
            return super().prompt(problem)
        rng = random.Random(f"wording {problem['problem']} {problem.get('step', 0)}")
        return rng.choice(self.wordings).replace("{problem}", problem["problem"])


def in_wordings(task: Task, wordings, unseen=None) -> Worded:
    """Train on a task in several wordings. Each contains {problem} and asks for what the task's
    reward reads. Test in a wording that is never trained on: `unseen`, or the task's own, which
    must not be among them."""
    test = [{**problem, "to_test": True} for problem in task.test]
    changed = {"test": test, "instruction": unseen or task.instruction}
    return Worded(**vars(task) | changed, wordings=tuple(wordings))


MATH_WORDINGS = (
    "Problem: {problem}\n\nThink step by step, then write the answer as \\boxed{answer}.\n\nSolution:",
    "{problem}\n\nShow your work. The last line must hold the result in \\boxed{}.\n\n",
    "Question: {problem}\n\nReason first. Your result belongs into \\boxed{}.\n\nAnswer:",
    "You are a careful mathematician; box your final result (\\boxed{}).\n\n{problem}\n\nWorked solution:",
    "Find the answer and put a LaTeX box, \\boxed{}, around it: {problem}\n\n",
)


def math_wordings() -> Worded:
    """MATH, with five wordings in training and the task's own in tests."""
    return in_wordings(verifiers.math_task(), MATH_WORDINGS, BOXED)
