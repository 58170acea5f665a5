"""families.py - several families of verifiers in one batch: mathematics, choices, forms, programs.

Chapter 14 has three families (exact match, form, execution) and says that the slowest one sets the
pace of a mixed batch. Here a problem names its family, and one reward hands it to the right verifier:

    python eval.py MODEL --task notebooks/tasks/families.py:mixed

All completions of a group answer one problem, so they are of one family: advantages never compare a
program with a sum. `mixture` makes one task of several, each with its share of the problems.

And in which words a task asks: what to do when the training reward rises and the test stands still (chapter "Reward
Design for Reasoning", the eval-vs-train reward gap). A model that has learned a sentence needs other sentences.

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
    """1 if the last box names the right choice (MMLU's kind): its letter, as B, b, (B) or B. 42, or
    its text. problem: "choices", a list, and as "answer" the letter of the right one."""
    choices = problem["choices"]
    said = extract_boxed_answer(completion)
    named = chosen(said, choices) if said is not None else None
    right = float(named is not None and "ABCDEFGHIJ"[named] == problem["answer"])
    return right, {"accuracy": right, "answered": float(named is not None)}


def chosen(said: str, choices: list[str]):
    """The place of the choice that is named, or None: two that are named alike are no choice."""
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
    """0.1 for JSON behind the thinking, 1.1 if it also conforms to problem["schema"]."""
    out = verify_json(completion.rpartition("</think>")[2].strip(), problem["schema"])
    parts = {"accuracy": out["valid"], "answered": out["parses"], "format": out["parses"]}
    return out["valid"] + 0.1 * out["parses"], parts


def by_field(field: str, rewards: dict[str, Callable]):
    """A reward that hands each problem to the reward that its field names. In the log, each family
    has a column of its own: the share of all completions that are right and of this family."""

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
    """Several tasks in one run: {family: (share, task)} -> a task of so many training problems, of which
    each family has its share. Chapter 14 mixes 60 to 80 % of problems that rules judge with problems
    that a reward model judges: a task's reward may be either. (A problem that has no true answer still
    needs a text as "answer", such as "-".)

    Each problem is asked in the words of its own task and judged by its own task's reward. Problems of a
    small task come again. The held-out problems are those of all tasks, in a random order.
    """
    rng = random.Random(seed)

    def own(family, task, problem):
        asked = {"problem": task.prompt(problem), "without prompt": problem["problem"]}
        return {**problem, "family": family, **asked}

    train = []
    test = []
    for family, (share, task) in shares.items():
        wanted = round(count * share)
        rounds = -(-wanted // len(task.train))  # how often all its problems are needed
        train += [own(family, task, problem) for problem in (task.train * rounds)[:wanted]]
        test += [own(family, task, problem) for problem in task.test]
    rng.shuffle(train)  # a step sees the families in their shares, but for chance
    rng.shuffle(test)  # an evaluation may use the first few

    rewards = {family: own_reward(task) for family, (_, task) in shares.items()}
    stops = tuple({stop for _, task in shares.values() for stop in task.stops})
    reward = by_field("family", rewards)
    return Task("+".join(shares), train, test, "{problem}", reward, stops)


def own_reward(task: Task):
    """The reward of a task, for a problem whose text is the whole prompt: it sees its own text."""

    def reward(completion, problem):
        return task.reward(completion, {**problem, "problem": problem["without prompt"]})

    return reward


def mixed() -> Task:
    """One problem of each family, for a look at how a model answers them."""
    return Task("mixed", PROBLEMS, PROBLEMS, BOXED, mixed_reward)


# ---- Wordings --------------------------------------------------------------------------------------


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
    """MATH, trained on in five wordings and tested in the core's own."""
    return in_wordings(verifiers.math_task(), MATH_WORDINGS, BOXED)
