"""signal_claims.py - claims of papers on what a step learns from: objective, rewards, groups, age of completions."""

from notebooks.claims import measures
from notebooks.claims.checks import Check, as_much, has_none, more, no_less, reaches, rises
from notebooks.claims.claim import RATES, Arm, Claim

METHOD = "--method notebooks/methods"
HERE = "notebooks/claims/start.py"
STEP = "--prompts-per-step 8 --num-samples 16"
SHORT = f"--task {HERE}:short_sums {STEP}"
BASE = Arm(rates=())


def noisy(accepts, rejects):
    return f"{METHOD}/noisy_verifier.py --false-accepts {accepts} --false-rejects {rejects}"


COIN = noisy(0.5, 0.5)

# ---- objectives: which one moves pass@64, and at what cost in pass@1? ------------------------------
# The base can work out up to 4 steps, when it does; longer sums it gets right now and then by a guess, so that pass@1
# is low, pass@64 high, and both can move. To select what works on the short ones is to lose the guesses on the others.


def no_worse(arm, most):
    return [more(arm, "grpo", most), no_less(arm, "grpo")]


def negative_keeps(most):
    return [
        more("negative", "base", "pass@1"),
        no_less("negative", "base", most),
        no_less("negative", "grpo", most),
    ]


OBJECTIVES = Claim(
    name="objectives",
    sentence="Other objectives than GRPO's raise pass@64, and cost no pass@1.",
    source="MaxRL 2602.02710; negative-only, positive-only 2506.01347; pass@k training 2508.10751",
    doubt="A model with many ways to be right: here a problem has one way and a lucky guess. Ten times the steps. Ten "
    "seeds, where three cannot tell.",
    arms={
        "grpo": Arm(),
        "maxrl": Arm(f"{METHOD}/maxrl.py"),
        "negative": Arm(f"{METHOD}/negative.py"),
        "pass@4": Arm(f"{METHOD}/pass_at_k.py --best-of 4"),
        "positive": Arm(f"{METHOD}/negative.py --positive 1.0 --negative 0.0"),
        "coin": Arm(COIN),
        "base": BASE,
    },
    checks={
        "GRPO loses pass@64": [more("base", "grpo", "pass@64")],
        "MaxRL is better than GRPO": no_worse("maxrl", "pass@64"),
        "pass@k training is better than GRPO": no_worse("pass@4", "pass@64"),
        "negative-only keeps pass@64 and raises pass@1": negative_keeps("pass@64"),
        "positive-only loses pass@64": [
            more("positive", "base", "pass@1"),
            more("base", "positive", "pass@64"),
        ],
        "controls": [
            more("grpo", "base", "pass@1"),
            as_much("coin", "base", "pass@1"),
            as_much("coin", "base", "pass@64"),
        ],
    },
    panels=("pass@1", "pass@64", "works"),
    plane=("pass@1", "pass@64"),
    flags=f"--task {HERE}:mixed_sums --eval-every 15 --eval-problems 100 {STEP}",
    steps=60,
    tuned_by=("pass@1", "pass@64"),
    ks=(1, 8, 64),
    problems=100,
    samples=64,
)

# ---- rewards: random ones teach, and it is the clipping that does it -------------------------------
# A coin for each completion knows nothing of the answer; 4 updates a batch, so that the clip can act. In one base the
# right way is the likely one (65 % work it out), as it is said to be in Qwen2.5-Math; in the usual one a guess is
# likely and seldom right. If the clip favours what is likely, a coin makes the first better and the second worse.

FOUR = "--updates-per-batch 4"
OPEN = "--clip 0.999 1e9"  # no ratio that occurs is outside
LIKELY = "mostly right"
CLIP = "likely, coin, clip"  # two arms
OPENED = "likely, coin, no clip"

REWARDS = Claim(
    name="rewards",
    sentence="Random rewards make a model better, by way of the clip, where its likely ways are right.",
    source="2506.10947; against it 2507.10532 (contamination), 2512.16912 (the clip lowers entropy)",
    doubt="A base with a wider gap between likely and right; parts of batches instead of whole ones, with 16 updates; "
    "hundreds of steps, as in the paper, where a small bias adds up.",
    arms={
        "likely, true reward": Arm(FOUR, LIKELY),
        CLIP: Arm(f"{FOUR} {COIN}", LIKELY),
        OPENED: Arm(f"{FOUR} {COIN} {OPEN}", LIKELY),
        "likely, base": Arm("", LIKELY, rates=()),
        "unlikely, coin, clip": Arm(f"{FOUR} {COIN}"),
        "unlikely, coin, no clip": Arm(f"{FOUR} {COIN} {OPEN}"),
        "unlikely, base": BASE,
    },
    checks={
        "a coin teaches where the right way is likely": [more(CLIP, "likely, base", "pass@1")],
        "a coin does better with the clip than without": [more(CLIP, OPENED, "pass@1")],
        "the clip favours what is likely": [
            more("unlikely, base", "unlikely, coin, clip", "works"),
            more(CLIP, "likely, base", "works"),
        ],
        "the clip lowers the entropy": [
            reaches(CLIP, "entropy fell", 0.05, 0.01),
            more(CLIP, OPENED, "entropy fell", 0.05),
        ],
        "controls": [
            more("likely, true reward", "likely, base", "pass@1"),
            reaches(CLIP, "clipped@mean", 0.02, 0.002),
            has_none(OPENED, "clipped@mean", 0.02, 0.002),
            as_much("unlikely, coin, no clip", "unlikely, base", "pass@1"),
        ],
    },
    columns=("pass@1", "works", "entropy fell", "clipped@mean"),
    panels=("pass@1", "works", "entropy fell"),
    flags=f"{SHORT} --eval-every 6 --eval-problems 50",
    steps=24,
    tuned_by=("pass@1",),
    ks=(1, 8),
    measure=measures.entropy_fell,
)

# ---- noise: a noisy verifier, one-sided and two-sided, corrected or not ----------------------------
# The expected reward is a + (1 - a - b) R: by algebra GRPO's std cancels the correction (R' - a) / (1 - a - b).

BOTH = ("both 20 %, corrected", "both 20 %", "pass@1")
NOISY = Claim(
    name="noise",
    sentence="A verifier that errs in 20 % of its verdicts hurts GRPO, and an affine correction mends it.",
    source="2510.00915",
    doubt="A verifier whose errors depend on the problem and not on a coin; problems so hard that a false accept is "
    "more frequent than a right answer; more steps, where the noise may be averaged out.",
    arms={
        "clean": Arm(noisy(0.0, 0.0)),
        "accepts 5 %": Arm(noisy(0.05, 0.0)),
        "accepts 20 %": Arm(noisy(0.2, 0.0)),
        "rejects 5 %": Arm(noisy(0.0, 0.05)),
        "rejects 20 %": Arm(noisy(0.0, 0.2)),
        "both 5 %": Arm(noisy(0.05, 0.05)),
        "both 20 %": Arm(noisy(0.2, 0.2)),
        "both 20 %, corrected": Arm(f"{noisy(0.2, 0.2)} --correct"),
        "accepts near misses": Arm(f"--reward {HERE}:near_miss"),
        "coin": Arm(COIN),
        "base": BASE,
    },
    checks={
        "5 % of errors cost nothing": [
            no_less(arm, "clean") for arm in ("accepts 5 %", "rejects 5 %", "both 5 %")
        ],
        "20 % of errors on one side hurt": [
            more("clean", arm, "pass@1") for arm in ("accepts 20 %", "rejects 20 %")
        ],
        "20 % of errors on both sides hurt": [more("clean", "both 20 %", "pass@1")],
        "the correction helps": [more(*BOTH)],
        "the std cancels the correction": [as_much(*BOTH)],
        "errors at which one can aim are worse": [
            more("accepts 20 %", "accepts near misses", "pass@1"),
        ],
        "controls": [more("clean", "base", "pass@1", 0.3), as_much("coin", "base", "pass@1")],
    },
    panels=("pass@1", "works", "mixed@mean"),
    flags=f"{SHORT} --eval-every 6 --eval-problems 50",
    steps=24,
    tuned_by=("pass@1",),
    ks=(1, 8),
)

# ---- groups: how many completions of a problem, where all cost the same? ---------------------------
# 128 completions a step. One base is right in about two thirds of its samples, "low" in one of twenty (it mostly
# forgets the box). A group teaches only where its rewards differ, 1 - p^G - (1 - p)^G of the groups: with p = 0.05 one
# in ten pairs, and nearly every group of 64; but groups of 64 are two a step.

BASES = {"low": "rarely right", "high": "mostly right"}
SIZES = {
    f"{rate}, G = {G}": Arm(f"--prompts-per-step {128 // G} --num-samples {G}", base)
    for rate, base in BASES.items()
    for G in (2, 4, 8, 16, 64)
}


def same_budget(rate):
    return Check(
        f"{rate}: G = 2 and 16 sample as many tokens (a third would refute it)",
        lambda x: x(f"{rate}, G = 2", "used@max") / x(f"{rate}, G = 16", "used@max") - 1,
        *(0.33, 0.05, True),
    )


GROUPS = Claim(
    name="groups",
    sentence="At equal budget two completions of a problem are as good as sixteen.",
    source="2510.00977; against it BroRL 2510.01180 and IsoCompute 2603.12151",
    doubt="Problems whose pass rates differ within one set: here all of a set are alike. A budget at which problems "
    "come again, so that more of them is no longer possible.",
    arms={**SIZES, **{f"{rate}, base": Arm("", base, rates=()) for rate, base in BASES.items()}},
    checks={
        "two are as good as sixteen": [
            no_less(f"{rate}, G = 2", f"{rate}, G = 16") for rate in BASES
        ],
        "hard problems need large groups": [
            more("low, G = 16", "low, G = 2", "pass@1"),
            more("low, G = 64", "low, G = 8", "pass@1"),
        ],
        "easy problems need many problems": [more("high, G = 2", "high, G = 64", "pass@1")],
        "controls": [
            *(more(f"{rate}, G = 16", f"{rate}, base", "pass@1") for rate in BASES),
            *map(same_budget, BASES),
        ],
    },
    panels=("pass@1", "mixed@start", "used@max"),
    flags=f"--task {HERE}:short_sums --eval-every 3 --eval-problems 25",
    steps=14,
    tuned_by=("pass@1",),
    ks=(1,),
    samples=4,
)

# ---- stale: completions of an older policy, with and without a correction --------------------------
# Sampled by the policy of 0, 4 or 16 steps ago: with 16 of 30 steps the first 17 learn from the base alone, which is
# part of the price. Not tried: 1 step, weights at 4 steps, PPO's ratio to the policy that sampled.


def stale(steps, correct="none"):
    return Arm(f"{METHOD}/stale.py --staleness {steps} --correct {correct}")


STALE = Claim(
    name="stale",
    sentence="Completions may be a few steps old for nothing, and older ones if they are weighted.",
    source="AReaL 2505.24298 (from memory); M2PO; 2602.17616; truncated importance sampling: Yao et al.",
    doubt="Longer completions, where ratios multiply: here one has 30 tokens. A larger rate in all arms. Hundreds of "
    "steps, where a collapse has time.",
    arms={
        "fresh": stale(0),
        "4 steps": stale(4),
        "16 steps": stale(16),
        "16 steps, tis": stale(16, "tis"),
        "base": BASE,
    },
    checks={
        "four steps cost nothing": [no_less("4 steps", "fresh")],
        "16 steps hurt where nothing is corrected": [more("fresh", "16 steps", "pass@1")],
        "truncated importance sampling mends it": [
            more("16 steps, tis", "16 steps", "pass@1"),
            no_less("16 steps, tis", "fresh"),
        ],
        "controls": [
            more("fresh", "base", "pass@1", 0.3),
            reaches("16 steps", "mismatch@mean", 0.1, 0.01),
            has_none("fresh", "mismatch@mean", 0.01, 0.001),
        ],
    },
    panels=("pass@1", "works", "mismatch@mean"),
    flags=f"{SHORT} --eval-every 7 --eval-problems 25",
    steps=30,
    tuned_by=("pass@1",),
    ks=(1,),
    samples=4,
)

# ---- ttrl: the majority of the group as the label, where it is right and where it is not -----------
# The usual base guesses in all directions, so that of its answers the right one is mostly the most frequent; the
# hasty one's is wrong, and its right answers are as many. With labels the rate is the one that distill and lora chose.
# The reward of the majority arms is logged alone: accuracy means the same in all arms.

TRUTH = "--reward boxed --num-samples 16"
MAJORITY = f"{METHOD}/ttrl.py {TRUTH}"
TTRL = Claim(
    name="ttrl",
    sentence="Reinforcement learning on the majority of one's own answers raises accuracy as labels do.",
    source="TTRL, 2504.16084 (read: the abstract and figure 1)",
    doubt="A base whose most frequent answer is wrong, and that TTRL sets right all the same. Or a vote among many more "
    "samples than are trained on, as the paper has it.",
    arms={
        "majority": Arm(MAJORITY),
        "truth": Arm(TRUTH, rates=RATES[1:]),
        "majority, hasty": Arm(MAJORITY, "hasty"),
        "truth, hasty": Arm(TRUTH, "hasty", rates=RATES[1:]),
    },
    checks={
        "claim": [rises("majority"), as_much("truth", "majority"), rises("majority, hasty", 0.1)],
        "controls": [rises("truth"), rises("truth, hasty")],
    },
    columns=("right@0", "label", "right", "solved", "mixed"),
    panels=("right", "mixed"),
    over="step",
    steps=40,
    measure=measures.label_of,
)

CLAIMS = [OBJECTIVES, REWARDS, NOISY, GROUPS, STALE, TTRL]
