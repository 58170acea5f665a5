"""claims_stale.py - Claim 11: completions of an older policy, with and without a correction.

    python -m notebooks.claims.claims_stale [--seeds 3] [--costs]

What is trained on was sampled by the policy of 0, 4 or 16 steps ago: not corrected, or weighted by
truncated importance sampling. With 16 of 30 steps the first 17 of a run learn from the base alone: that
is part of the price. Not tried, for lack of time: 1 step, weights at 4 steps, and PPO's ratio to the
policy that sampled (notebooks/methods/stale.py: --staleness 1, --correct tis, --correct ppo).
"""

from notebooks.claims import experiments as lab
from notebooks.claims.trial import SHORT, Arm, Trial, above, main, no_less


def stale(steps, correct):
    return Arm(f"--method M:stale --staleness {steps} --correct {correct}")


ARMS = {
    "fresh": stale(0, "none"),
    "4 steps": stale(4, "none"),
    "16 steps": stale(16, "none"),
    "16 steps, tis": stale(16, "tis"),
    "base": Arm(times=()),
}

CLAIMS = {
    "four steps cost nothing": [
        no_less("4 steps", "fresh", "pass@1", 0.1, "4 steps: no 10 points below fresh"),
    ],
    "16 steps hurt where nothing is corrected": [
        above("fresh", "16 steps", "pass@1", 0.1, "10 points below fresh"),
    ],
    "truncated importance sampling mends it": [
        above("16 steps, tis", "16 steps", "pass@1", 0.1, "10 points above uncorrected"),
        no_less("16 steps, tis", "fresh", "pass@1", 0.1, "no 10 points below fresh"),
    ],
}
CONTROLS = [
    above("fresh", "base", "pass@1", 0.3, "fresh completions gain 30 points"),
    lab.Check(
        "16 steps: the two policies differ by 0.1 nats a token",
        lambda x: x("16 steps", "mismatch@mean"),
        0.1,
        0.01,
    ),
    lab.Check(
        "fresh: they do not (0.01 would refute it)",
        lambda x: x("fresh", "mismatch@mean"),
        0.01,
        0.001,
        same=True,
    ),
]

TRIAL = Trial(
    name="stale",
    claim="Completions may be a few steps old for nothing, and older ones if they are weighted.",
    source="AReaL 2505.24298 (from memory); M2PO; 2602.17616; truncated importance sampling: Yao et al.",
    change_our_mind=(
        "Longer completions, where ratios multiply: here one has 30 tokens. A larger rate in all arms. "
        "Hundreds of steps, where a collapse has time."
    ),
    arms=ARMS,
    flags=f"{SHORT} --eval-every 7 --eval-problems 25",
    steps=30,
    seconds=16,
    tuned_by=("pass@1",),
    ks=(1,),
    samples=4,
    claims=CLAIMS,
    controls=CONTROLS,
    panels={
        "pass@1": "accuracy, sampled",
        "works": "share worked out",
        "mismatch@mean": "nats a token",
    },
)

if __name__ == "__main__":
    main(TRIAL)
