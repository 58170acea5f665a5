"""signal_claims.py - claims of papers on what a step learns from: objective, verdicts, age of completions."""

from notebooks.claims import measures
from notebooks.claims.checks import as_much, has_none, more, no_less, reaches, rises
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
        "maxrl": Arm(f"{METHOD}/grpo.py:MaxRL"),
        "negative": Arm(f"{METHOD}/reinforce.py:Negative"),
        "pass@4": Arm(f"{METHOD}/pass_at_k.py --best-of 4"),
        "positive": Arm(f"{METHOD}/reinforce.py:Negative --positive 1.0 --negative 0.0"),
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

CLAIMS = [OBJECTIVES, NOISY, STALE, TTRL]
