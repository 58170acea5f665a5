"""paper_claims.py - what papers of 2025-26 claim of RLVR, tried on tiny models. The command: see claim.py.

AutoRule's are here, tried in the simulated worlds of the seeds; notebook 7 shows what came out. Of the others notebook 6
does. The names with _smollm2 need its folder: python -m notebooks.models.get_smollm2 smollm2
"""

import numpy as np

import train
from notebooks.autorule import autorule
from notebooks.autorule import autorule_world as world
from notebooks.claims import model_claims, signal_claims, smollm2_claims
from notebooks.claims.checks import POINTS, Check, more
from notebooks.claims.claim import Arm, Claim, main

# ---- AutoRule: what is measured --------------------------------------------------------------------


def of_rules(run):
    found = worth(world.rules_of("rules", run.seed), run.seed) | agreements(run.seed)
    found["dimensions"] = worth(autorule.DIMENSIONS, run.seed)["alignment"]
    return found


def at_best(run):
    """Accuracy over the first five steps, the last ten, and the ten in which it was best; r_model: what the reward model
    paid."""
    rows = [row for step, row in train.read_log(run.folder).items() if step > 0]
    right = np.array([row["accuracy"] for row in rows])
    start = max(range(max(1, len(rows) - 9)), key=lambda at: right[at : at + 10].mean())
    best = slice(start, start + 10)
    found = {"right@start": right[:5].mean(), "right@best": right[best].mean()}
    found["right"] = right[-10:].mean()
    if "r_model" in rows[0]:
        paid = np.array([row["r_model"] for row in rows])
        found |= {"r_model@best": paid[best].mean(), "r_model": paid[-10:].mean()}
    return found


def worth(rules, seed):
    """On 500 pairs that no rule was read out of, with a judge who errs once in ten: alignment, also with the labels of
    half of the pairs swapped; undecided, against: pairs that the rules leave open, or decide the other way (Table 7)."""
    chosen, rejected = world.verdicts(seed, 0.1, rules, 500)
    swap = np.random.default_rng(seed).random((len(chosen), 1)) < 0.5
    shuffled = np.where(swap, rejected, chosen), np.where(swap, chosen, rejected)
    _, undecided, against = autorule.margins(chosen, rejected)
    found = {"alignment": np.nanmean(autorule.alignment(chosen, rejected))}
    found["shuffled"] = np.nanmean(autorule.alignment(*shuffled))
    return found | {"undecided": undecided, "against": against}


def agreements(seed):
    """5.3: the rules of four more extractions, and of 32 pairs instead of 256, against those of the first one."""
    first, *others = [world.extracted(seed, run=run) for run in range(5)]

    def against_first(compare, sets, error=0.0):
        own, *theirs = [
            np.concatenate(world.verdicts(seed, error, rules)) for rules in [first, *sets]
        ]
        return np.mean([np.mean(compare(own, each)) for each in theirs])

    return {
        "agreement": against_first(autorule.agreement, others),
        "agreement, judge errs": against_first(autorule.agreement, others, 0.1),
        "32 pairs": against_first(autorule.agreement, [world.extracted(seed, 32, 1)]),
        "correlation": against_first(autorule.correlation, others),
    }


# ---- AutoRule: arms and checks ---------------------------------------------------------------------


def moves(arm, since, column, by, noise=POINTS):
    """From one column of an arm to another."""
    sentence = f"{arm}: {column} is {by:+g} from {since}"
    sign = np.sign(by)
    return Check(sentence, lambda x: sign * (x(arm, column) - x(arm, since)), abs(by), noise)


def keeps(arm, by=0.2):
    sentence = f"{arm}: right is no {by:g} below right@best ({by:+g} is no loss)"
    return Check(sentence, lambda x: x(arm, "right") - x(arm, "right@best") + by, by, POINTS)


def above(column, level, by=0.1):
    """The line is at the level."""
    sentence = f"rules: {column} is above {level:g} (less {level - by:g})"
    return Check(sentence, lambda x: x("rules", column) - level + by, 2 * by, 0.02)


def aligned_above(other, by=0.1):
    sentence = f"rules: alignment is {by:g} above {other}"
    return Check(sentence, lambda x: x("rules", "alignment") - x("rules", other), by, 0.02)


WORLD = "--task notebooks/autorule/autorule_world.py"


def arms(*names):
    flags = {name: f"{WORLD}:{name.replace(' ', '_')}_{{seed}}" for name in names}
    return {name: Arm(flags[name], world.TINY, rates=(1e-3,)) for name in names}


RULES = Claim(
    name="autorule",
    sentence="AutoRule: extracted rules are the same from run to run, and align with preferences.",
    source="AutoRule, 5.3; in a simulated world, where nothing is trained for it",
    doubt="A judge whose errors depend on the response and not on the wording of a rule.",
    arms={"rules": Arm(base=world.TINY, rates=())},
    checks={
        "rules of five runs agree": [above("agreement", 0.9)],
        "also for a judge who errs": [above("agreement, judge errs", 0.9)],
        "so do those of fewer pairs": [above("32 pairs", 0.9)],
        "their total scores correlate": [above("correlation", 0.95, 0.05)],
        "they align better than vague ones and than chance": [
            aligned_above("dimensions"),
            aligned_above("shuffled"),
        ],
    },
    panels=("agreement", "correlation", "alignment", "dimensions"),
    measure=of_rules,
)
HACK = Claim(
    name="autorule_hack",
    sentence="AutoRule: GRPO on a learned reward model is hacked, with extracted rules it is not.",
    source="AutoRule, 5.4; in a simulated world",
    doubt="A teacher and a judge that are language models.",
    arms=arms("rules", "reward model", "no rule on the result")
    | {"true answer": Arm("--reward boxed", world.TINY, rates=(1e-3,))},
    checks={
        "the reward model alone is hacked": [
            moves("reward model", "right@start", "right@best", 0.2),
            moves("reward model", "right@best", "right", -0.3),
            moves("reward model", "r_model@best", "r_model", 0.3, 0.1),
        ],
        "with the rules it is not": [keeps("rules"), more("rules", "reward model", by=0.3)],
        "controls": [
            keeps("true answer"),
            moves("no rule on the result", "right@best", "right", -0.2),
        ],
    },
    columns=("right@start", "right@best", "right"),
    panels=("right@best", "right"),
    measure=at_best,
    flags="--num-samples 8 --kl-coef 0.001 --eval-every 1000 --eval-problems 50",
    steps=80,
)

ALL = [*signal_claims.CLAIMS, *model_claims.CLAIMS, RULES, *smollm2_claims.CLAIMS]
CLAIMS = {claim.name: claim for claim in ALL}  # what is kept; of the arms of HACK see notebook 7

if __name__ == "__main__":
    main([*ALL, HACK])
