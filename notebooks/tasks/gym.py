r"""gym.py - eighty kinds of problems that nobody here wrote: reasoning-gym's.

    python train.py --task notebooks/tasks/gym.py:chain_sum        any of its names

Paid is its score of the last \boxed{..}, for some kinds also a part of 1: "accuracy" counts scores of 1. Hostile: kinds
whose scorers evaluate answers, pay for wrong ones or let them choose how long it takes are refused (by reading 0.1.25)."""

import contextlib
import functools

from verifiers import BOXED, DataError, Task, extract_boxed_answer

from reasoning_gym.factory import DATASETS, create_dataset  # pip install reasoning-gym

# Seeds, sizes, difficulty. subtle: problem i has seed + i, so seeds 0 and 1 share all but one.
SEEDS = 0, 10**6  # of train, of test
SIZES = dict.fromkeys(DATASETS, (1000, 200))  # draws for train, for test
SIZES |= dict.fromkeys(["futoshiki", "sokoban", "zebra_puzzles"], (100, 50))  # slow to draw

REASONS = {
    "it has no answers": "boxnet graph_color rubiks_cube rush_hour",
    "its scorer evaluates answers": "binary_matrix countdown intermediate_integration n_queens "
    "polynomial_multiplication puzzle24 simple_integration spiral_matrix string_insertion",
    "its scorer pays for any text": "game_of_life_halting",
    "its scorer does not end on 1e999999999": "coin_flip",
    "its scorer tries 2^n cases": "propositional_logic",
    "it varies from process to process": "isomorphic_strings knight_swap list_functions ransom_note word_ladder",
    "it runs programs of a model": "codeio",
    "it mixes others": "composite",
}
REFUSED = {kind: reason for reason, kinds in REASONS.items() for kind in kinds.split()}


def reward(dataset, entries, completion, problem):
    answer = extract_boxed_answer(completion) or ""
    paid = 0.0
    nan = "nan" in "".join(answer.lower().split())  # critical: to two scorers it is right
    if not nan and 0 < len(answer) <= 4 * len(problem["answer"]) + 200:
        with contextlib.suppress(Exception):  # scorers raise all kinds of errors
            paid = float(dataset.score_answer(answer, entries[problem["problem"]]))
    paid = paid if 0 <= paid <= 1 else 0.0
    return paid, {"accuracy": float(paid == 1), "answered": float(answer != "")}


def load(kind):
    """The task. Dropped: drawn before (test first), not paid for its own answer."""
    if kind in REFUSED:
        raise DataError(f"{kind} is refused: {REFUSED[kind]}")
    entries = {}
    splits = []
    for seed, size in zip(SEEDS[::-1], SIZES[kind][::-1]):
        dataset = create_dataset(kind, seed=seed, size=size)
        judge = functools.partial(reward, dataset, entries)
        problems = [
            {"problem": entry["question"], "answer": entry["answer"]}
            for entry in dataset
            if entries.setdefault(entry["question"], entry) is entry
        ]
        right = [p for p in problems if judge(f"\\boxed{{{p['answer']}}}", p)[0] == 1]
        splits.insert(0, right)
    return Task(kind, *splits, BOXED, judge, f"{kind} of reasoning-gym, seeds {SEEDS}")


globals().update({kind: functools.partial(load, kind) for kind in DATASETS})
