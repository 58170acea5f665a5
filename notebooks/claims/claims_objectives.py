"""claims_objectives.py - Claim 1: which objective moves pass@64, and at what cost in pass@1?

    python -m notebooks.claims.claims_objectives [--seeds 3] [--costs]
    python -m notebooks.claims.claims_objectives --model smollm2     20 steps of notebook 8's sums

The task is sums of 2 to 7 steps. The base can work out up to 4 of them, when it does; longer ones it
gets right now and then by a guess, so that pass@1 is low, pass@64 high, and both can move. To select
what works on the short ones is to lose the guesses on the long ones.
"""

from dataclasses import replace

from notebooks.claims.trial import ON_SMOLLM2, Arm, Trial, above, as_much, main, no_less

ARMS = {
    "grpo": Arm(),
    "maxrl": Arm("--method M:maxrl"),
    "negative": Arm("--method M:negative"),
    "pass@4": Arm("--method M:pass_at_k --best-of 4"),
    "positive": Arm("--method M:negative --positive 1.0 --negative 0.0"),
    "coin": Arm("--method M:noisy_verifier --false-accepts 0.5 --false-rejects 0.5"),
    "base": Arm(times=()),
}


def claims(most):
    """most: the column of the most samples, pass@64 or what there is."""
    return {
        f"GRPO loses {most}": [
            above("base", "grpo", most, 0.1, f"{most} is 10 points below the base's"),
        ],
        "MaxRL is better than GRPO": [
            above("maxrl", "grpo", most, 0.1, f"{most} is 10 points above GRPO's"),
            no_less("maxrl", "grpo", "pass@1", 0.1, "pass@1 is no 10 points below GRPO's"),
        ],
        "pass@k training is better than GRPO": [
            above("pass@4", "grpo", most, 0.1, f"{most} is 10 points above GRPO's"),
            no_less("pass@4", "grpo", "pass@1", 0.1, "pass@1 is no 10 points below GRPO's"),
        ],
        f"negative-only keeps {most} and raises pass@1": [
            above("negative", "base", "pass@1", 0.1, "pass@1 is 10 points above the base's"),
            no_less("negative", "base", most, 0.1, f"{most} is no 10 points below the base's"),
            no_less("negative", "grpo", most, 0.1, f"{most} is no 10 points below GRPO's"),
        ],
        f"positive-only loses {most}": [
            above("positive", "base", "pass@1", 0.1, "pass@1 is 10 points above the base's"),
            above("base", "positive", most, 0.1, f"{most} is 10 points below the base's"),
        ],
    }


CLAIMS = claims("pass@64")
CONTROLS = [
    above("grpo", "base", "pass@1", 0.1, "GRPO learns: pass@1 is 10 points above the base's"),
    as_much("coin", "base", "pass@1", 0.1, "a coin leaves pass@1 (10 points would refute it)"),
    as_much("coin", "base", "pass@64", 0.1, "a coin leaves pass@64 (10 points would refute it)"),
]

TRIAL = Trial(
    name="objectives",
    claim="Other objectives than GRPO's raise pass@64, and cost no pass@1.",
    source="MaxRL 2602.02710; negative-only, positive-only 2506.01347; pass@k training 2508.10751",
    change_our_mind=(
        "A model with many ways to be right: here a problem has one way and a lucky guess. Ten times "
        "the steps. Ten seeds, where three cannot tell."
    ),
    arms=ARMS,
    flags=(
        "--device cpu --task T:mixed_sums --eval-every 15 --eval-problems 100 "
        "--prompts-per-step 8 --num-samples 16"
    ),
    steps=60,
    seconds=20,
    claims=CLAIMS,
    controls=CONTROLS,
    panels={"pass@1": "pass@1", "pass@64": "pass@64", "works": "share worked out"},
    tuned_by=("pass@1", "pass@64"),
    plane=("pass@1", "pass@64"),
    problems=100,
    samples=64,
    ks=(1, 8, 64),
)

# Not tried here: pass@k training, positive-only, the coin.
UNTRIED = ("pass@k training is better than GRPO", "positive-only loses pass@16")
SMOLLM2 = replace(
    TRIAL,
    arms={
        "grpo": Arm(times=(1,)),
        "maxrl": Arm("--method S:MaxRL", times=(1,)),
        "negative": Arm("--method S:Negative", times=(1,)),
        "base": Arm(times=()),
    },
    **ON_SMOLLM2,
    claims={name: checks for name, checks in claims("pass@16").items() if name not in UNTRIED},
    controls=CONTROLS[:1],
    panels={"pass@1": "pass@1", "pass@16": "pass@16"},
    plane=("pass@1", "pass@16"),
)

if __name__ == "__main__":
    main(TRIAL, SMOLLM2)
