"""start.py - what the claims need: base models with given habits, and rewards."""

import re
import sys

import verifiers
from model import ModelError, load, save
from notebooks.claims.measures import FILLER, kinds_of
from notebooks.models import make_tiny
from notebooks.rewards.reasoning import ReasoningReward

# ---- 1. Bases --------------------------------------------------------------------------------------
# Arguments of make_tiny.make. The "guessing" base never sees a worked step, so it needs no gate (a gate tests whether a
# base can work problems out). If the "bilingual" base works a problem out, it uses Chinese six times out of seven.

BILINGUAL = make_tiny.PHASES[1] | {"bilingual": 0.18, "worked": 0.03}
HEDGING = {"direct": 0.70, "several boxes": 0.20, "no box": 0.10}
MADE = {
    "usual": {},
    "guessing": {"phases": [{"direct": 1.0}, HEDGING], "gate": 0.0},
    "bilingual": {"phases": [make_tiny.PHASES[0], BILINGUAL]},
}

# These bases continue another base. The hasty base mostly gives the first number of a problem as the answer. The
# slipping base now and then mistakes a sign. It continues the noticing base, which is taught to notice such slips. In
# the demonstrations of the slipping base, about half of the slips are noticed; in its samples, one in ten.
HASTY = {"hasty": 0.55, "direct": 0.15, "worked": 0.20, "no box": 0.05, "no tags": 0.05}
RASH = {"hasty": 0.80, "worked": 0.10, "no box": 0.05, "no tags": 0.05}
NOTICING = {"worked": 0.3, "noticed": 0.7}
SLIPS = {"direct": 0.30, "worked": 0.16, "unnoticed": 0.16, "noticed": 0.14}
SLIPS |= {"doubting": 0.06, "padded": 0.06, "excursion": 0.06, "no box": 0.06}
CONTINUED = {  # name: the base to continue; phases, and their steps
    "hasty": ("usual", [{}, HASTY], (0, 200)),
    "rash": ("usual", [{}, RASH], (0, 200)),
    "noticing": ("usual", [NOTICING, {}], (600, 0)),
    "slipping": ("noticing", [{}, SLIPS], (0, 200)),
}


def base_of(name, seed, home):
    """Return the folder of a base. If necessary, make it in `home` (20 to 100 s). Any other name is a folder."""
    if name == "usual" and seed == 0:
        return "notebooks/tiny"
    if name not in MADE | CONTINUED:
        return name
    folder = home / f"{name}-seed{seed}"
    if not folder.exists():
        if name in MADE:
            make(name, seed, folder)
        else:
            continue_base(name, seed, home, folder)
    return folder


def make(name, seed, folder, tries=3):
    """Make a base. Not every seed learns to work problems out: if one does not, seed + 100 is tried."""
    try:
        make_tiny.make(seed, folder, **MADE[name])
    except ModelError as error:
        if tries == 1:
            raise
        print(f"{folder}, seed {seed}: {error}", file=sys.stderr)
        make(name, seed + 100, folder, tries - 1)


def continue_base(name, seed, home, folder):
    other, phases, (first, second) = CONTINUED[name]
    model, tokenizer = load(str(base_of(other, 0 if other == "noticing" else seed, home)))
    task = verifiers.arithmetic()
    make_tiny.warm_up(model, tokenizer, task, seed, phases, first, second, lr=2e-3, gate=0.0)
    save(model, tokenizer, folder)


# ---- 2. Rewards ------------------------------------------------------------------------------------

# Design B's threshold of 400 words can never act within 80 tokens. Here it is 6: a worked answer has 2 or 3 words of
# thinking, a rambling answer 10 or more.
r1_short = ReasoningReward(ramble_threshold=6).reward


def with_bonus(bonus, completion, problem):
    """Add a bonus to the task's own reward."""
    value, parts = verifiers.tagged_reward(completion, problem)
    return value + bonus, parts


def pay_waits(completion, problem):
    waits = re.findall(r"wait \d", completion)
    return with_bonus(0.5 * len(waits), completion, problem)


def pay_detours(completion, problem):
    kinds, _ = kinds_of({**problem, "completion": completion})
    return with_bonus(0.5 * kinds.count("excursion"), completion, problem)


def pay_fillers(completion, problem):
    _, behind = kinds_of({**problem, "completion": completion})
    return with_bonus(0.1 * len(re.findall(FILLER, behind)), completion, problem)
