"""claims_rewards.py - Claim 4: random rewards teach, and it is the clipping that does it.

    python -m notebooks.claims.claims_rewards [--seeds 3] [--costs]

The reward is a coin for each completion, that knows nothing of the answer; 4 updates a batch, so that
the clip can act. Two bases: one in which the right way is the likely one (65 % work it out), as it is
said to be in Qwen2.5-Math, and the usual one, where a guess is likely and seldom right. If the clip
favours what is likely, a coin makes the first better and the second worse; without the clip, neither.
"""

import statistics

from notebooks.claims import experiments as lab
from notebooks.claims.trial import SHORT, Arm, Trial, above, as_much, main

COIN = "--method M:noisy_verifier --false-accepts 0.5 --false-rejects 0.5"
OPEN = "--clip 0.999 1e9"  # no ratio that occurs is outside
FOUR = "--updates-per-batch 4"
LIKELY = "mostly right"
ARMS = {
    "likely, true reward": Arm(FOUR, LIKELY),
    "likely, coin, clip": Arm(f"{FOUR} {COIN}", LIKELY),
    "likely, coin, no clip": Arm(f"{FOUR} {COIN} {OPEN}", LIKELY),
    "likely, base": Arm("", LIKELY, times=()),
    "unlikely, coin, clip": Arm(f"{FOUR} {COIN}"),
    "unlikely, coin, no clip": Arm(f"{FOUR} {COIN} {OPEN}"),
    "unlikely, base": Arm(times=()),
}


def measure(folder):
    """How much entropy is lost from the first three steps to the last five, in nats a token."""
    entropies = [row["entropy"] for row in lab.history(folder).values() if "entropy" in row]
    return {"entropy fell": statistics.fmean(entropies[:3]) - statistics.fmean(entropies[-5:])}


def column(arm, name, by, noise, what, same=False):
    return lab.Check(what, lambda x: x(arm, name), by, noise, same)


CLAIMS = {
    "a coin teaches where the right way is likely": [
        above("likely, coin, clip", "likely, base", "pass@1", 0.1, "10 points above the base"),
    ],
    "a coin does better with the clip than without": [
        above(
            "likely, coin, clip",
            "likely, coin, no clip",
            "pass@1",
            0.1,
            "10 points above the coin without clip",
        ),
    ],
    "the clip favours what is likely": [
        above(
            "unlikely, base",
            "unlikely, coin, clip",
            "works",
            0.1,
            "where working out is unlikely, its share falls by 10 points",
        ),
        above(
            "likely, coin, clip",
            "likely, base",
            "works",
            0.1,
            "where it is likely, its share rises by 10 points",
        ),
    ],
    "the clip lowers the entropy": [
        column("likely, coin, clip", "entropy fell", 0.05, 0.01, "it falls by 0.05 nats a token"),
        above(
            "likely, coin, clip",
            "likely, coin, no clip",
            "entropy fell",
            0.05,
            "it falls by 0.05 more than without clip",
        ),
    ],
}
CONTROLS = [
    above(
        "likely, true reward",
        "likely, base",
        "pass@1",
        0.1,
        "there is room: the true reward gains 10 points",
    ),
    column("likely, coin, clip", "clipped@mean", 0.02, 0.002, "the clip acts on 2 % of the tokens"),
    column(
        "likely, coin, no clip",
        "clipped@mean",
        0.02,
        0.002,
        "opened, it acts on none (2 % would refute it)",
        same=True,
    ),
    as_much(
        "unlikely, coin, no clip",
        "unlikely, base",
        "pass@1",
        0.1,
        "without the clip a coin leaves accuracy (10 points would refute it)",
    ),
]

TRIAL = Trial(
    name="rewards",
    claim="Random rewards make a model better, by way of the clip, where its likely ways are right.",
    source="2506.10947; against it 2507.10532 (contamination), 2512.16912 (the clip lowers entropy)",
    change_our_mind=(
        "A base with a wider gap between likely and right; parts of batches instead of whole ones, with "
        "16 updates; hundreds of steps, as in the paper, where a small bias adds up."
    ),
    arms=ARMS,
    flags=f"{SHORT} --eval-every 6 --eval-problems 50",
    steps=24,
    seconds=18,
    tuned_by=("pass@1",),
    ks=(1, 8),
    measure=measure,
    claims=CLAIMS,
    controls=CONTROLS,
    columns=("pass@1", "works", "entropy fell", "clipped@mean"),
    panels={
        "pass@1": "accuracy, sampled",
        "works": "share worked out",
        "entropy fell": "entropy lost",
    },
)

if __name__ == "__main__":
    main(TRIAL)
