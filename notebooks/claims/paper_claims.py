"""paper_claims.py - what papers of 2025-26 claim of RLVR, tried on tiny models. The command: see claim.py.

AutoRule's are here, tried in the simulated worlds of three seeds; notebook 7 shows what came out. Of the others notebook 6
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
    """The run's curve at its best and its end, its wins against the base, and what the rules are worth."""
    arm = run.arm.replace(" ", "_")
    found = at_best(run) | wins(run)
    rules = world.rules_of(arm, run.seed) if arm in world.ARMS else []
    found |= worth(rules, run.seed) if rules else {}
    found |= agreements(run.seed) if arm == "rules" else {}
    return {column: round(float(value), 4) for column, value in found.items()}


def at_best(run):
    """Means of the first five steps, the last ten, and the ten of best accuracy. gold: the user's utility; paid: by the
    reward model."""
    rows = [row for step, row in train.read_log(run.folder).items() if step > 0]
    right, gold, paid = (
        np.array([row.get(key, np.nan) for row in rows]) for key in ("accuracy", "gold", "r_model")
    )
    start = max(range(max(1, len(rows) - 9)), key=lambda at: right[at : at + 10].mean())
    best = slice(start, start + 10)
    found = {"right@start": right[:5].mean(), "right@best": right[best].mean()}
    found |= {"right": right[-10:].mean(), "gold": gold[-10:].mean()}
    found |= {"paid@best": paid[best].mean(), "paid": paid[-10:].mean()}
    return {column: value for column, value in found.items() if np.isfinite(value)}


def wins(run, count=200):
    """Table 1: how often a completion is preferred to the base's for the same held-out problem, with the same random
    numbers; a draw counts half. Of a user who likes ten more tokens for their own sake, and of one who does not, which
    stands for the paper's length-controlled rate."""
    problems = [problem["problem"] for problem in world.world()[2].test[:count]]
    texts, lengths = world.completions_of(run.final, problems, 1, "table 1")
    others, before = world.completions_of(run.base, problems, 1, "table 1")
    rows = zip(problems, texts, others)
    gains = [8 * (world.utility(p, text) - world.utility(p, other)) for p, text, other in rows]
    gains = np.array(gains)
    longer = 0.4 * (lengths - before) / 10
    return {"win rate": share_won(gains + longer), "without length": share_won(gains)}


def share_won(gains):
    return np.mean((gains > 0) + 0.5 * (gains == 0))


def worth(rules, seed):
    """On 500 pairs that no rule was read out of, with a judge who errs once in ten: alignment, also with the labels of
    half of the pairs swapped; undecided, against: pairs that the rules leave open, or decide the other way (Table 7)."""
    chosen, rejected = world.verdicts(seed, 0.1, rules, 500)
    swap = np.random.default_rng(seed).random((len(chosen), 1)) < 0.5
    shuffled = np.where(swap, rejected, chosen), np.where(swap, chosen, rejected)
    _, undecided, against = autorule.margins(chosen, rejected)
    found = {"alignment": np.nanmean(autorule.alignment(chosen, rejected))}
    found |= {"shuffled": np.nanmean(autorule.alignment(*shuffled))}
    return found | {"undecided": undecided, "against": against}


def agreements(seed):
    """5.3: the rules of four more extractions, and of 32 pairs instead of 256, against those of the first one."""

    def said(rules, error=0.0):
        return np.concatenate(world.verdicts(seed, error, rules))

    first, *others = [world.extracted(seed, run=run) for run in range(5)]
    few = world.extracted(seed, 32, 1)
    found = {"32 pairs": autorule.agreement(said(first), said(few)).mean()}
    for column, error in (("agreement", 0.0), ("agreement, judge errs", 0.1)):
        own = said(first, error)
        each = [autorule.agreement(own, said(rules, error)).mean() for rules in others]
        found[column] = np.mean(each)
    totals = [autorule.correlation(said(first), said(rules)) for rules in others]
    return found | {"correlation": np.mean(totals)}


# ---- AutoRule: arms and checks ---------------------------------------------------------------------


def change(arm, since, column, by, noise=POINTS):
    """From one column of an arm to another."""
    sentence = f"{arm}: {column} is {by:+g} from {since}"
    sign = np.sign(by)
    return Check(sentence, lambda x: sign * (x(arm, column) - x(arm, since)), abs(by), noise)


def keeps(arm, by=0.2):
    sentence = f"{arm}: right is no {by:g} below right@best ({by:+g} is no loss)"
    return Check(sentence, lambda x: x(arm, "right") - x(arm, "right@best") + by, by, POINTS)


def above(column, level, by=0.1):
    """The line is at the level."""
    sentence = f"rules: {column} is above {level:g} ({by:+g} is none of it)"
    return Check(sentence, lambda x: x("rules", column) - level + by, 2 * by, 0.02)


REWARDS = "--reward notebooks/autorule/autorule_world.py"
RULES = {
    arm.replace("_", " "): Arm(f"{REWARDS}:{arm}_{{seed}}", "notebooks/tiny", rates=(2e-3,))
    for arm in world.ARMS
}
TRUE = {"true answer": Arm("--reward boxed", "notebooks/tiny", rates=(2e-3,))}
AUTORULE = Claim(
    name="autorule",
    sentence="AutoRule: GRPO on a learned reward model is hacked, with rules extracted from preferences it is not.",
    source="AutoRule, 5.3, 5.4, Tables 1, 5 and 7; in a simulated world",
    doubt="A judge whose errors depend on the response and not on the wording of a rule. A teacher and a judge that are "
    "language models.",
    arms=TRUE | RULES,
    checks={
        "5.4: the reward model alone is hacked": [
            change("reward model", "right@start", "right@best", 0.2),
            change("reward model", "right@best", "right", -0.3),
            change("reward model", "paid@best", "paid", 0.3, 0.1),
        ],
        "5.4: with the rules it is not": [
            keeps("rules"),
            more("rules", "reward model", by=0.3),
        ],
        "controls": [
            keeps("true answer"),
            change("no rule on the result", "right@best", "right", -0.2),
        ],
        "Table 1: with the rules it wins most often": [
            more("rules", arm, "win rate")
            for arm in ("reward model", "length penalty", "concise rule", "dimensions")
        ],
        "Table 5: too few rules and too many are worse": [
            more("rules", "2 rules", "gold"),
            more("rules", "20 rules", "gold"),
        ],
        "Table 5: without conciseness, without scale, it is worse": [
            more("rules", "no conciseness", "gold"),
            more("no conciseness", "no scale", "gold"),
        ],
        "5.3: rules of five runs, and of fewer pairs, agree above 0.9": [
            above("agreement", 0.9),
            above("32 pairs", 0.9),
            above("agreement, judge errs", 0.9),
            above("correlation", 0.95, 0.05),
        ],
        "rules align better than vague ones and than chance": [
            more("rules", "dimensions", "alignment"),
            Check(
                "rules: alignment is 0.1 above that of shuffled labels",
                lambda x: x("rules", "alignment") - x("rules", "shuffled"),
                *(0.1, 0.02),
            ),
        ],
        "Table 7: of more rules fewer pairs are undecided, and more are decided wrongly": [
            more("2 rules", "20 rules", "undecided"),
            more("20 rules", "2 rules", "against"),
        ],
    },
    columns=(
        *("right@start", "right@best", "right", "gold", "paid", "win rate", "without length"),
        *("alignment",),
    ),
    panels=("right@best", "right", "gold", "win rate"),
    flags="--num-samples 8 --kl-coef 0.001 --eval-every 1000 --eval-problems 50",
    steps=24,
    measure=of_rules,
)

ALL = [*signal_claims.CLAIMS, *model_claims.CLAIMS, AUTORULE, *smollm2_claims.CLAIMS]
CLAIMS = {claim.name: claim for claim in ALL}

if __name__ == "__main__":
    main(ALL)
