"""start.py - what the claims of papers start from: tiny models of given habits, and sums of a given length."""

import random
import sys

import verifiers
from model import ModelError, load, save
from notebooks.models import make_tiny

# ---- 1. Bases --------------------------------------------------------------------------------------
# They continue the usual one of their seed: (shares of behaviours, steps). The hasty one mostly takes the first number
# of a problem for the answer, so that this is what most completions say.

HABITS = {
    "mostly right": ({"worked": 0.65, "direct": 0.35}, 150),
    "rarely right": ({"worked": 0.04, "direct": 0.1, "no box": 0.86}, 150),
    "hasty": (
        {"hasty": 0.55, "direct": 0.15, "worked": 0.20, "no box": 0.05, "no tags": 0.05},
        200,
    ),
}


def base_of(name, seed, home):
    """The folder of a base, made in `home` first if need be (20 to 100 s). Any other name is a folder: smollm2."""
    folder = home / f"{name.replace(' ', '-')}-seed{seed}"
    if name == "usual" and seed == 0:
        return "notebooks/tiny"
    if name not in ("usual", "calling", *HABITS):
        return name
    if folder.exists():
        return folder
    partial = folder.with_suffix(".partial")
    if name == "usual":
        make_usual(seed, partial)
    elif name == "calling":
        make_calling(seed, partial)
    else:
        continue_usual(base_of("usual", seed, home), seed, *HABITS[name], partial)
    partial.rename(folder)
    return folder


def make_usual(seed, folder, tries=3):
    """Not every seed learns to work problems out: where one does not, seed + 100 is tried."""
    try:
        make_tiny.make(seed, folder)
    except ModelError as error:
        if tries == 1:
            raise
        print(f"{folder}, seed {seed}: {error}", file=sys.stderr)
        make_usual(seed + 100, folder, tries - 1)


def make_calling(seed, folder):
    """A base that sometimes calls a calculator; a seed that has not learnt it in 800 steps gets more."""
    try:
        make_tiny.make(seed, folder, "products", steps=800)
    except ModelError:
        make_tiny.make(seed, folder, "products", steps=1600)


def continue_usual(usual, seed, shares, steps, folder):
    model, tokenizer = load(str(usual))
    problems = make_tiny.TASKS["arithmetic"]()
    make_tiny.warm_up(model, tokenizer, problems, seed, [{}, shares], 0, steps, lr=2e-3, gate=0.0)
    save(model, tokenizer, folder)


# ---- 2. Sums ---------------------------------------------------------------------------------------


def sums(least, most, train_size=2000, test_size=200):
    """Arithmetic as in verifiers.arithmetic, with so many steps; held out by the same hash. Rewards are
    0 and 1, the right box: MaxRL and pass@k training know no others."""
    rng = random.Random(f"sums {least} {most}")
    train_set = {}
    test_set = {}
    while len(train_set) < train_size or len(test_set) < test_size:
        problem = sum_of(rng, rng.randint(least, most))
        held_out = verifiers.held_out(problem)
        split, size = (test_set, test_size) if held_out else (train_set, train_size)
        if len(split) < size:
            split[problem["problem"]] = problem
    name = f"sums of {least} to {most} steps"
    problems = [*train_set.values()], [*test_set.values()]
    return verifiers.Task(name, *problems, "{problem}", verifiers.boxed_reward, "split by a hash")


def sum_of(rng, steps):
    value = rng.randint(10, 99)
    text = str(value)
    for _ in range(steps):
        change = rng.choice([d for d in range(-9, 10) if d and 10 <= value + d <= 99])
        value += change
        text += f"{change:+d}"
    return {"problem": f"{text}=", "answer": str(value)}


def short_sums():
    """2 to 4 steps, as the bases have seen them."""
    return sums(2, 4)


def mixed_sums():
    """2 to 7 steps: five and more are more than any base has seen, and seldom right."""
    return sums(2, 7)


def near_miss(completion, problem):
    """A verifier that errs where one can aim: 1 for the right answer, and for one that is off by one."""
    right, parts = verifiers.boxed_reward(completion, problem)
    answer = verifiers.extract_boxed_answer(completion) or ""
    near = answer.isascii() and answer.isdigit() and len(answer) < 9
    near = near and abs(int(answer) - int(problem["answer"])) == 1
    return float(right or near), parts
