r"""gym.py - a hundred kinds of problems that nobody here wrote: reasoning-gym's.

    python train.py --task notebooks/tasks/gym.py:chain_sum        any of its names, or one of MINE
    python train.py --model smollm2 --template plain --task notebooks/tasks/gym.py:digit_sums --max-new-tokens 12 --lr 1e-5

Paid is its score of the last \boxed{..}, for some kinds also a part of 1: "accuracy" counts scores of 1. Hostile:
scorers that evaluate answers, or let them choose how long it takes, are replaced or refused (by reading 0.1.25).
Those replaced (TEXT, VALUE, NUMBERS) say right or wrong: where reasoning-gym paid a part, they pay nothing."""

import contextlib
import functools
import re
import sys

from verifiers import BOXED, DataError, Task, extract_boxed_answer, grade_answer

try:
    from reasoning_gym.factory import DATASETS, create_dataset
except ImportError as error:
    raise ImportError(f"{error}: pip install reasoning-gym") from error

# Seeds, sizes, difficulty. subtle: problem i has seed + i, so seeds 0 and 1 share all but one.
SEEDS = 0, 10**6  # of train, of test
SIZES = dict.fromkeys(DATASETS, (1000, 200))  # draws for train, for test
# These are slow to draw.
SIZES |= dict.fromkeys("futoshiki knight_swap puzzle24 sokoban zebra_puzzles".split(), (100, 50))
ASK = "State the final answer to the following arithmetic problem: "
LINES = f"{ASK}4 + 3 = \\boxed{{7}}\n{ASK}19 - 7 = \\boxed{{12}}\n{{problem}}"
MINE = {
    "digit_sums": (
        "chain_sum",
        {"max_terms": 2, "max_digits": 1},
        LINES,
        ("\n",),
    ),  # and prompt, stops
    "small_sums": ("chain_sum", {"max_terms": 2, "max_digits": 2}, LINES, ("\n",)),
}
SIZES |= dict.fromkeys(MINE, (1000, 100))

# Not by the scorer: TEXT (it evals, or pays for anything) is compared as text, VALUE (Fraction("1e999999999") does
# not end) by our grader, NUMBERS (it evals) by this and by the numbers used.
TEXT = "binary_matrix game_of_life_halting n_queens polynomial_multiplication spiral_matrix string_insertion"
VALUE = ["coin_flip"]
NUMBERS = ["countdown", "puzzle24"]
REFUSED = dict.fromkeys(["boxnet", "graph_color", "rubiks_cube", "rush_hour"], "it has no answers")
REFUSED |= dict.fromkeys(
    ["intermediate_integration", "simple_integration"], "its scorer evals them"
)
REFUSED |= {
    "codeio": "it runs programs of a model",
    "composite": "it mixes others",
    "propositional_logic": "2^n cases",
}
UNSTABLE = "isomorphic_strings knight_swap list_functions polynomial_multiplication ransom_note word_ladder"


def score(kind, dataset, answer, entry):
    data = entry["metadata"]
    truth = entry["answer"]
    if kind in TEXT.split():
        return answer.split() in [right.split() for right in data.get("valid_answers", [truth])]
    if kind in NUMBERS:
        used = sorted(map(int, re.findall("[0-9]+", answer)))
        truth = str(data.get("target", 24))
        if used != sorted(data["numbers"]) or re.search(r"[^-+*/()0-9 ]|\* *\*|\d +\d", answer):
            return 0  # also for a power, and for 1 2 read as 12
    return (
        grade_answer(answer, truth)
        if kind in VALUE + NUMBERS
        else dataset.score_answer(answer, entry)
    )


def reward(kind, dataset, entries, completion, problem):
    answer = extract_boxed_answer(completion) or ""
    paid = 0.0
    nan = "nan" in "".join(answer.lower().split())  # critical: to two scorers it is right
    if not nan and 0 < len(answer) <= 4 * len(problem["answer"]) + 200:
        with contextlib.suppress(Exception):  # scorers raise all kinds of errors
            paid = float(score(kind, dataset, answer, entries[problem["problem"]]))
    paid = paid if 0 <= paid <= 1 else 0.0
    return paid, {"accuracy": float(paid == 1), "answered": float(answer != "")}


def load(name):
    """The task. Dropped: drawn before (test first), solved in the prompt, not paid; of MINE twins of test: 3 + 4 of 4 + 3."""
    kind, settings, prompt, stops = MINE.get(name, (name, {}, BOXED, ()))
    if kind in REFUSED:
        raise DataError(f"{kind} cannot be verified: {REFUSED[kind]}")
    if kind in UNSTABLE.split() and sys.flags.hash_randomization:
        raise DataError(f"{kind} varies from process to process: write PYTHONHASHSEED=0 python ..")
    entries = {}
    splits = []
    held_out = []
    for seed, size in zip(SEEDS[::-1], SIZES[name][::-1]):
        dataset = create_dataset(kind, seed=seed, size=size, **settings)
        judge = functools.partial(reward, kind, dataset, entries)
        problems = [
            {"problem": entry["question"], "answer": entry["answer"]}
            for entry in dataset
            if entry["question"] not in prompt
            and entries.setdefault(entry["question"], entry) is entry
        ]
        splits.insert(
            0,
            [
                p
                for p in problems
                if judge(f"\\boxed{{{p['answer']}}}", p)[0] == 1
                and (name not in MINE or sorted(p["problem"].split()) not in held_out)
            ],
        )
        held_out = [sorted(p["problem"].split()) for p in problems]
    return Task(name, *splits, prompt, judge, f"{kind} of reasoning-gym, seeds {SEEDS}", stops)


globals().update({name: functools.partial(load, name) for name in [*DATASETS, *MINE]})
