"""claims_groups.py - Claim 8: how many completions of a problem, where all cost the same?

    python -m notebooks.claims.claims_groups [--seeds 3] [--costs]

128 completions a step: 64 problems x 2, 32 x 4, 16 x 8, 8 x 16 or 2 x 64. Two bases: "high" is right in
about two thirds of its samples, "low" in one of twenty (it mostly forgets the box). A group teaches only
where its rewards differ, 1 - p^G - (1 - p)^G of the groups: with p = 0.05 that is one in ten pairs, and
nearly every group of 64; but groups of 64 are two a step.
"""

from notebooks.claims import experiments as lab
from notebooks.claims.trial import Arm, Trial, above, main, no_less

BUDGET = 128
SIZES = (2, 4, 8, 16, 64)
BASES = {"low": "rarely right", "high": "mostly right"}
ARMS = {
    f"{rate}, G = {G}": Arm(f"--prompts-per-step {BUDGET // G} --num-samples {G}", base)
    for rate, base in BASES.items()
    for G in SIZES
}
ARMS |= {f"{rate}, base": Arm("", base, times=()) for rate, base in BASES.items()}


def measure(folder):
    """Thousand tokens sampled in all."""
    return {"k tokens": max(row["used"] for row in lab.history(folder).values())}


def mixed_share(p, G):
    """How many groups of G have unequal rewards, if one completion is right with probability p.
    Example: p 0.05, G 2 -> 0.095."""
    return 1 - p**G - (1 - p) ** G


def same_budget(rate):
    ratio = lab.Check(
        f"{rate}: G = 2 and 16 sample as many tokens (a third would refute it)",
        lambda x: x(f"{rate}, G = 2", "k tokens") / x(f"{rate}, G = 16", "k tokens") - 1,
        0.33,
        0.05,
        same=True,
    )
    return ratio


CLAIMS = {
    "two are as good as sixteen": [
        no_less(
            f"{rate}, G = 2", f"{rate}, G = 16", "pass@1", 0.1, f"{rate}: no 10 points below G = 16"
        )
        for rate in BASES
    ],
    "hard problems need large groups": [
        above("low, G = 16", "low, G = 2", "pass@1", 0.1, "low: G = 16 is 10 points above G = 2"),
        above("low, G = 64", "low, G = 8", "pass@1", 0.1, "low: G = 64 is 10 points above G = 8"),
    ],
    "easy problems need many problems": [
        above("high, G = 2", "high, G = 64", "pass@1", 0.1, "high: G = 2 is 10 points above 64"),
    ],
}
CONTROLS = [
    above("low, G = 16", "low, base", "pass@1", 0.1, "low: G = 16 gains 10 points"),
    above("high, G = 16", "high, base", "pass@1", 0.1, "high: G = 16 gains 10 points"),
    *map(same_budget, BASES),
]

TRIAL = Trial(
    name="groups",
    claim="At equal budget two completions of a problem are as good as sixteen.",
    source="2510.00977; against it BroRL 2510.01180 and IsoCompute 2603.12151",
    change_our_mind=(
        "Problems whose pass rates differ within one set: here all of a set are alike. A budget at which "
        "problems come again, so that more of them is no longer possible."
    ),
    arms=ARMS,
    flags="--device cpu --task T:short_sums --eval-every 3 --eval-problems 25",
    steps=14,
    seconds=10,
    tuned_by=("pass@1",),
    ks=(1,),
    samples=4,
    measure=measure,
    claims=CLAIMS,
    controls=CONTROLS,
    panels={
        "pass@1": "accuracy, sampled",
        "mixed@start": "mixed groups, first steps",
        "k tokens": "thousand tokens sampled",
    },
)


def advice(result):
    """The table "choose G from the pass rate": for each base its rate, and for each G the share of
    groups that teach in the first steps and the accuracy in the end, lowest to highest."""
    rows = {}
    for rate in BASES:
        found = {
            G: [row for row in result["rows"] if row["arm"] == f"{rate}, G = {G}"] for G in SIZES
        }
        base = [row["pass@1"] for row in result["rows"] if row["arm"] == f"{rate}, base"]
        rows[rate] = {
            "pass rate": sum(base) / len(base),
            "mixed": {
                G: sum(r["mixed@start"] for r in some) / len(some) for G, some in found.items()
            },
            "accuracy": {G: sorted(r["pass@1"] for r in some) for G, some in found.items()},
        }
    return rows


if __name__ == "__main__":
    main(TRIAL)
