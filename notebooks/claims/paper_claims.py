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
    found = at_best(run) | wins(run)
    if run.arm == "rules":
        rules = world.rules_of("rules", run.seed)
        found |= worth(rules, run.seed) | agreements(run.seed)
        found["dimensions"] = worth(autorule.DIMENSIONS, run.seed)["alignment"]
    return {column: round(float(value), 4) for column, value in found.items()}


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


def wins(run, count=200):
    """Table 1: how often a completion is preferred to the base's for the same held-out problem, with the same random
    numbers; a draw counts half. Of a user who likes ten more tokens for their own sake, and of one who does not, which
    stands for the paper's length-controlled rate. gold: the user's utility."""
    problems = [problem["problem"] for problem in world.world()[2].test[:count]]
    texts, lengths = world.completions_of(run.final, problems, 1, "table 1")
    others, before = world.completions_of(run.base, problems, 1, "table 1")
    useful = np.array([world.utility(*each) for each in zip(problems, texts)])
    gains = 8 * (useful - [world.utility(*each) for each in zip(problems, others)])
    longer = 0.4 * (lengths - before) / 10
    rates = {"win rate": share_won(gains + longer), "without length": share_won(gains)}
    return rates | {"gold": useful.mean()}


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
    sentence = f"rules: {column} is above {level:g}"
    return Check(sentence, lambda x: x("rules", column) - level + by, 2 * by, 0.02)


def aligned_above(other, by=0.1):
    sentence = f"rules: alignment is {by:g} above {other}"
    return Check(sentence, lambda x: x("rules", "alignment") - x("rules", other), by, 0.02)


def arms(names):
    """At a learning rate and a length that were chosen on a seed that is not counted."""
    script = "--reward notebooks/autorule/autorule_world.py"
    flags = {name: f"{script}:{name.replace(' ', '_')}_{{seed}}" for name in names}
    flags["true answer"] = "--reward boxed"
    return {name: Arm(flags[name], world.TINY, rates=(2e-3,)) for name in flags}


SIZE = {
    "flags": "--num-samples 8 --kl-coef 0.001 --eval-every 1000 --eval-problems 50",
    "steps": 24,
}
BASELINES = ("reward model", "length penalty", "concise rule", "dimensions")
AUTORULE = Claim(
    name="autorule",
    sentence="AutoRule: GRPO on a learned reward model is hacked, with rules extracted from preferences it is not.",
    source="AutoRule, 5.3 and 5.4; in a simulated world",
    doubt="A teacher and a judge that are language models. A judge whose errors depend on the response and not on the "
    "wording of a rule.",
    arms=arms(["rules", "reward model"]),
    checks={
        "5.4: the reward model alone is hacked": [
            moves("reward model", "right@start", "right@best", 0.2),
            moves("reward model", "right@best", "right", -0.3),
            moves("reward model", "r_model@best", "r_model", 0.3, 0.1),
        ],
        "5.4: with the rules it is not": [keeps("rules"), more("rules", "reward model", by=0.3)],
        "controls": [keeps("true answer"), moves("true answer", "right@start", "right", 0.2)],
        "5.3: rules of other runs, and of fewer pairs, agree": [
            above("agreement", 0.9),
            above("32 pairs", 0.9),
            above("agreement, judge errs", 0.9),
            above("correlation", 0.95, 0.05),
        ],
        "rules align better than vague ones and than chance": [
            aligned_above("dimensions"),
            aligned_above("shuffled"),
        ],
    },
    columns=("right@start", "right@best", "right", "gold", "win rate", "without length"),
    panels=("right@best", "right", "gold", "win rate"),
    measure=of_rules,
    **SIZE,
)
TABLES = Claim(
    name="autorule_tables",
    sentence="AutoRule: its rules do more than the baselines (Table 1), and than fewer, more, or otherwise paid ones "
    "(Table 5).",
    source="AutoRule, Tables 1 and 5; in a simulated world",
    doubt=AUTORULE.doubt,
    arms=arms(name.replace("_", " ") for name in world.ARMS),
    checks={
        "Table 1": [more("rules", arm, "win rate") for arm in BASELINES],
        "Table 5: too few and too many": [
            more("rules", arm, "win rate") for arm in ("2 rules", "20 rules")
        ],
        "Table 5: without conciseness, without scale": [
            more("rules", "no conciseness", "win rate"),
            more("no conciseness", "no scale", "win rate"),
        ],
        "controls": [moves("no rule on the result", "right@best", "right", -0.2)],
    },
    columns=AUTORULE.columns,
    panels=AUTORULE.panels,
    measure=of_rules,
    **SIZE,
)

ALL = [*signal_claims.CLAIMS, *model_claims.CLAIMS, AUTORULE, *smollm2_claims.CLAIMS]
CLAIMS = {
    claim.name: claim for claim in ALL
}  # what is kept: AutoRule's tables are not measured yet

if __name__ == "__main__":
    main([*ALL, TABLES])
