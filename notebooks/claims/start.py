"""start.py - what the claims start from: tiny models of given habits, tasks, and rewards."""

import random
import re
import sys
from dataclasses import replace

import numpy as np
import torch

import verifiers
from model import ModelError, load, save
from notebooks.models import make_tiny
from rlvr import GRPO, token_logprobs

# ---- 1. Bases --------------------------------------------------------------------------------------
# What make_tiny is asked for. "guessing" has never seen a step worked out, so that there is no gate: it is not to work
# anything out. Where "bilingual" works a problem out it does so in Chinese six times out of seven.

BILINGUAL = make_tiny.PHASES[1] | {"bilingual": 0.18, "worked": 0.03}
HEDGING = {"direct": 0.70, "several boxes": 0.20, "no box": 0.10}
MADE = {
    "usual": {},
    "guessing": {"phases": [{"direct": 1.0}, HEDGING], "gate": 0.0},
    "bilingual": {"phases": [make_tiny.PHASES[0], BILINGUAL]},
}

# The hasty one continues the usual one of its seed. It mostly takes the first number of a problem for the answer, so that
# this is what most completions say.

HASTY = {"hasty": 0.55, "direct": 0.15, "worked": 0.20, "no box": 0.05, "no tags": 0.05}
# The slipping ones take a sign for the other one now and then. They continue the committed one, taught to notice that,
# which half of their samples do.
NOTICING = {"worked": 0.3, "noticed": 0.7}
SLIPS = {"direct": 0.30, "worked": 0.16, "unnoticed": 0.16, "noticed": 0.14}
SLIPS |= {"doubting": 0.06, "padded": 0.06, "excursion": 0.06, "no box": 0.06}
# What the calling one is shown of a calculator that fails, and of calls that are needless.
FAILING = [
    {"called again": 0.5, "called": 0.3, "direct": 0.2},
    {
        **{"direct": 0.3, "called": 0.16, "one call": 0.2},
        **{"gave up": 0.15, "called again": 0.05, "called twice": 0.14},
    },
]


def base_of(name, seed, home):
    """The folder of a base, made in `home` first if need be (20 to 100 s). Any other name is a folder: smollm2."""
    name, _, only = name.partition(" of seed ")
    seed = int(only or seed)
    folder = home / f"{name.replace(' ', '-')}-seed{seed}"
    if name == "usual" and seed == 0:
        return "notebooks/tiny"
    if name not in ("calling", "failing", "hasty", "noticing", "slipping", *MADE):
        return name
    if folder.exists():
        return folder
    partial = folder.with_suffix(".partial")
    if name in MADE:
        make(name, seed, partial)
    elif name == "calling":
        make_calling(seed, partial)
    elif name == "failing":
        continue_base(base_of("calling", seed, home), seed, FAILING, 200, partial, 200, "products")
    elif name == "hasty":
        continue_base(base_of("usual", seed, home), seed, [{}, HASTY], 200, partial)
    elif name == "noticing":
        continue_base(make_tiny.TINY, seed, [NOTICING, {}], 0, partial, 600)
    else:
        continue_base(base_of("noticing", 0, home), seed, [{}, SLIPS], 200, partial)
    partial.rename(folder)
    return folder


def make(name, seed, folder, tries=3):
    """Not every seed learns to work problems out: where one does not, seed + 100 is tried."""
    try:
        make_tiny.make(seed, folder, **MADE[name])
    except ModelError as error:
        if tries == 1:
            raise
        print(f"{folder}, seed {seed}: {error}", file=sys.stderr)
        make(name, seed + 100, folder, tries - 1)


def make_calling(seed, folder):
    """A base that sometimes calls a calculator; a seed that has not learned it in 800 steps gets more."""
    try:
        make_tiny.make(seed, folder, "products", steps=800)
    except ModelError:
        make_tiny.make(seed, folder, "products", steps=1600)


def continue_base(base, seed, phases, steps, folder, first=0, task="arithmetic"):
    model, tokenizer = load(str(base))
    problems = make_tiny.TASKS[task]()
    make_tiny.warm_up(model, tokenizer, problems, seed, phases, first, steps, lr=2e-3, gate=0.0)
    save(model, tokenizer, folder)


# ---- 2. Tasks --------------------------------------------------------------------------------------


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


def mostly_decided():
    """Arithmetic with 64 training problems: 16 ordinary ones, 24 hopeless ones, with a truth that nobody can give, and
    24 solved ones, where whatever is said is paid; the test is the usual."""
    task = verifiers.arithmetic()
    hopeless = [{**problem, "answer": "100000"} for problem in task.train[16:40]]
    solved = [{**problem, "solved": True} for problem in task.train[40:64]]
    note = "24 of 64 to train on are hopeless, 24 solved"
    return replace(task, train=task.train[:16] + hopeless + solved, note=note)


# ---- 3. Rewards ------------------------------------------------------------------------------------


def boxed_or_solved(completion, problem):
    if problem.get("solved"):
        return 1.0, {"accuracy": 1.0}
    return verifiers.boxed_reward(completion, problem)


def paid_for(rate, count):
    """The task's own reward + rate for each of what is counted: count takes the problem and its completion in one dict."""

    def reward(completion, problem):
        value, parts = verifiers.tagged_reward(completion, problem)
        return value + rate * count({**problem, "completion": completion}), parts

    return reward


def length_bonus(rate, cap=np.inf):
    """For each token of thinking, up to the cap."""

    def tokens(sample):
        thinking = (verifiers.split_tags(sample["completion"]) or [""])[0]
        return min(len(re.findall("[a-z]+ |.", thinking)), cap)

    return paid_for(rate, tokens)


# Design B's threshold of 400 words can never act within 80 tokens. Here it is 6: a worked answer has 2 or 3 words of
# thinking, a rambling one 10 or more. The cap of 31 tokens is the longest worked answer.
r1_short = verifiers.ReasoningReward(ramble_threshold=6).reward
bonus_small = length_bonus(0.01)
bonus_large = length_bonus(0.1)
bonus_capped = length_bonus(0.1, cap=31)


def near_miss(completion, problem):
    """A verifier that errs where one can aim: 1 for the right answer, and for one that is off by one."""
    right, parts = verifiers.boxed_reward(completion, problem)
    answer = verifiers.extract_boxed_answer(completion) or ""
    near = answer.isascii() and answer.isdigit() and len(answer) < 9
    near = near and abs(int(answer) - int(problem["answer"])) == 1
    return float(right or near), parts


# ---- 4. A method -----------------------------------------------------------------------------------


class Unmasked(GRPO):
    """What an environment says is trained as if the policy had said it."""

    @torch.no_grad()
    def roll_out(self, model, tokenizer, prompts, how):
        rollouts = super().roll_out(model, tokenizer, prompts, how)
        begin = rollouts.prompt_lengths[:, None]
        columns = torch.arange(1, rollouts.ids.size(1))  # the tokens that a mask speaks of
        inside = (columns >= begin) & (columns < begin + rollouts.lengths[:, None])
        rollouts.mask = inside.float()
        temperature = how.temperature or 1.0
        rollouts.logp = token_logprobs(model, rollouts.ids, temperature, rollouts.mask)
        return rollouts
