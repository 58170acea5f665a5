"""rlvr_claims.py - claims of the chapter "9.5 RLVR": what is learned, from how little, and by which method."""

import numpy as np

from notebooks.claims.checks import POINTS, Check, as_much, falls, has_none, more, rises, stays
from notebooks.claims.claim import Arm, Claim

METHOD = "--method notebooks/methods"
REWARD = "--reward notebooks/rewards/guards.py"
SIZE = {"flags": "--eval-every 5 --eval-problems 200", "steps": 60}
CURVES = {**SIZE, "over": "step", "every": 5}


def arm(flags="", base="usual", rate=4e-4):
    """At one learning rate, that of train.py: nothing is tuned."""
    return Arm(flags, base, rates=(rate,))


DEFAULT = arm()
COIN = arm(f"{REWARD}:coin")

# ---- problems: one to train on ---------------------------------------------------------------------

PROBLEMS = Claim(
    name="problems",
    sentence="One problem suffices to start the training; to finish takes more.",
    source="9.5 RLVR, 1-shot RLVR",
    doubt="A base that has to learn more than a habit: here any problem teaches to work problems out.",
    arms={
        "1 problem": arm("--train-problems 1"),
        "64 problems": arm("--train-problems 64"),
        "default": DEFAULT,
    },
    checks={
        "claim": [rises("1 problem", 0.2), more("default", "1 problem", by=0.2)],
        "controls": [rises("default"), as_much("default", "64 problems")],
    },
    columns=("right@0", "right", "greedy@0", "greedy", "accuracy", "mixed"),
    panels=("right", "accuracy", "mixed"),
    **CURVES,
)

# ---- family: do the methods differ? ----------------------------------------------------------------


def largest(when, arms, column, by):
    """Of all pairs of arms the one whose means differ most, the sign made positive."""
    pairs = [(one, other) for place, one in enumerate(arms) for other in arms[:place]]

    def change(x):
        changes = [x(one, column) - x(other, column) for one, other in pairs]
        most = max(changes, key=lambda values: abs(values.mean()))
        return most * np.sign(most.mean())

    sentence = f"{when}: two of them differ by {by:g}"
    return Check(sentence, change, by, POINTS, among=2 * len(pairs))


FOUR = {
    "grpo": "--norm sequence",
    "dr-grpo": f"{METHOD}/grpo.py:DrGRPO",
    "dapo": f"{METHOD}/dapo.py",
    "textbook": f"{METHOD}/reinforce.py:Reinforce --norm sum --kl-coef 0",
}
FAST = {f"{name}, fast": arm(flags, rate=2e-3) for name, flags in FOUR.items()}
FAMILY = Claim(
    name="family",
    sentence="GRPO, DAPO, Dr. GRPO and the chapter's loss differ in what they reach. Fast: five times the default "
    "learning rate. DAPO samples twice as many completions.",
    source="9.5 RLVR; reward design",
    doubt="Problems of very different pass rates and completions of very different lengths: what separates the methods "
    "is not in this task.",
    arms={**{name: arm(flags) for name, flags in FOUR.items()}, **FAST},
    checks={
        "claim": [
            largest("default rate, step 20", [*FOUR], "right@20", 0.15),
            largest("default rate, in the end", [*FOUR], "right", 0.15),
            largest("fast, step 20", [*FAST], "right@20", 0.15),
            largest("fast, in the end", [*FAST], "right", 0.15),
        ],
        "controls": [*map(rises, [*FOUR, *FAST])],
    },
    columns=("right@0", "right@20", "right", "greedy", "length"),
    panels=("right@20", "right"),
    **SIZE,
)

# ---- updates: several of a batch -------------------------------------------------------------------

OFTEN = {
    "ppo x 4": "--updates-per-batch 4",
    "gspo x 4": f"{METHOD}/ratios.py:GSPO --updates-per-batch 4",
    "cispo x 4": f"{METHOD}/ratios.py:CISPO --updates-per-batch 4",
    "reinforce x 4": f"{METHOD}/reinforce.py:Reinforce --kl-coef 0 --updates-per-batch 4",
}
UPDATES = Claim(
    name="updates",
    sentence="Several updates on the same completions learn faster, and break sooner. x 4: four updates a batch; fast: "
    "five times the default learning rate.",
    source="9.5 RLVR",
    doubt="Ten seeds at the fast rate, where the three of ppo end far apart.",
    arms={
        "default": DEFAULT,
        **{name: arm(flags) for name, flags in OFTEN.items()},
        "ppo x 4, fast": arm(OFTEN["ppo x 4"], rate=2e-3),
        "cispo x 4, fast": arm(OFTEN["cispo x 4"], rate=2e-3),
    },
    checks={
        "claim": [
            more("ppo x 4", "default", "right@20"),
            more("ppo x 4", "ppo x 4, fast", by=0.3),
            more("cispo x 4", "cispo x 4, fast", by=0.3),
        ],
        "controls": [*map(rises, OFTEN)],
    },
    columns=("right@0", "right@20", "right", "greedy", "clipped@mean"),
    panels=("right", "clipped"),
    **CURVES,
)

# ---- controls: rewards that know nothing -----------------------------------------------------------

CONTROLS = Claim(
    name="controls",
    sentence="A reward that knows nothing of the answer teaches nothing, an inverted one harms.",
    source="the control for all others; gains under random rewards: Shao et al. 2025, 2506.10947",
    doubt="A base whose dormant habits are right: there such a drift would look like learning.",
    arms={"random": COIN, "inverted": arm(f"{REWARD}:inverted"), "default": DEFAULT},
    checks={
        "claim": [stays("random"), falls("inverted", 0.15)],
        "controls": [rises("default")],
    },
    columns=("paid@0", "paid", "right@0", "right", "length@0", "length", "works"),
    panels=("reward", "right", "works"),
    **CURVES,
)

# ---- selection: what the base cannot do ------------------------------------------------------------

SELECTION = Claim(
    name="selection",
    sentence="RLVR unlocks what is there: a base that has never worked a problem out cannot be helped.",
    source="9.5 RLVR, 1-shot RLVR",
    doubt="Problems on which luck finds the answer often enough: from random weights one digit is learned "
    "(tasks/one_digit.py).",
    arms={"guessing": arm(base="guessing"), "default": DEFAULT},
    checks={
        "claim": [stays("guessing"), has_none("guessing", "works", 0.05, 0.01)],
        "controls": [rises("default")],
    },
    columns=("right@0", "right", "greedy@0", "greedy", "works@start", "works"),
    panels=("right", "works", "hopeless"),
    **CURVES,
)

CLAIMS = [PROBLEMS, FAMILY, UPDATES, CONTROLS, SELECTION]
