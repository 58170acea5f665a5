"""claims_noise.py - Claim 10: a noisy verifier, one-sided and two-sided, corrected or not.

    python -m notebooks.claims.claims_noise [--seeds 3] [--costs]

Wrong answers are accepted, right ones rejected, at 5 or 20 %, at random. The expected reward is then
a + (1 - a - b) R: affine in R. By algebra (notebooks/tests/test_methods_of_claims.py) GRPO's std cancels the
correction (R' - a) / (1 - a - b). Two controls of what noise is: a coin, and a verifier that errs where
one can aim: it accepts what is off by one.
"""

from notebooks.claims.trial import SHORT, Arm, Trial, above, as_much, main, no_less
from verifiers import boxed_reward, extract_boxed_answer


def near_miss(completion, problem):
    """1 for the right answer, and for one that is off by one."""
    right, parts = boxed_reward(completion, problem)
    answer = extract_boxed_answer(completion) or ""
    near = answer.isascii() and answer.isdigit() and len(answer) < 9
    near = near and abs(int(answer) - int(problem["answer"])) == 1
    return float(right or near), parts


def noisy(accepts, rejects, more=""):
    method = f"--method M:noisy_verifier --false-accepts {accepts} --false-rejects {rejects}"
    return Arm(f"{method} {more}")


ARMS = {
    "clean": noisy(0.0, 0.0),
    "accepts 5 %": noisy(0.05, 0.0),
    "accepts 20 %": noisy(0.2, 0.0),
    "rejects 5 %": noisy(0.0, 0.05),
    "rejects 20 %": noisy(0.0, 0.2),
    "both 5 %": noisy(0.05, 0.05),
    "both 20 %": noisy(0.2, 0.2),
    "both 20 %, corrected": noisy(0.2, 0.2, "--correct"),
    "accepts near misses": Arm(f"--reward {__file__}:near_miss"),
    "coin": noisy(0.5, 0.5),
    "base": Arm(times=()),
}
REFUTES = "(10 points would refute it)"

CLAIMS = {
    "5 % of errors cost nothing": [
        no_less(arm, "clean", "pass@1", 0.1, f"{arm}: no 10 points below clean")
        for arm in ("accepts 5 %", "rejects 5 %", "both 5 %")
    ],
    "20 % of errors on one side hurt": [
        above("clean", arm, "pass@1", 0.1, f"{arm}: 10 points below clean")
        for arm in ("accepts 20 %", "rejects 20 %")
    ],
    "20 % of errors on both sides hurt": [
        above("clean", "both 20 %", "pass@1", 0.1, "both 20 %: 10 points below clean"),
    ],
    "the correction helps": [
        above("both 20 %, corrected", "both 20 %", "pass@1", 0.1, "10 points above uncorrected"),
    ],
    "the std cancels the correction": [
        as_much(
            "both 20 %, corrected",
            "both 20 %",
            "pass@1",
            0.1,
            f"corrected is as uncorrected {REFUTES}",
        ),
    ],
    "errors at which one can aim are worse": [
        above("accepts 20 %", "accepts near misses", "pass@1", 0.1, "10 points below accepts 20 %"),
    ],
}
CONTROLS = [
    above("clean", "base", "pass@1", 0.3, "clean rewards gain 30 points"),
    as_much("coin", "base", "pass@1", 0.1, f"a coin gains nothing {REFUTES}"),
]

TRIAL = Trial(
    name="noise",
    claim="A verifier that errs in 20 % of its verdicts hurts GRPO, and an affine correction mends it.",
    source="2510.00915",
    change_our_mind=(
        "A verifier whose errors depend on the problem and not on a coin; problems so hard that a false "
        "accept is more frequent than a right answer; more steps, where the noise may be averaged out."
    ),
    arms=ARMS,
    flags=f"{SHORT} --eval-every 6 --eval-problems 50",
    steps=24,
    seconds=12,
    tuned_by=("pass@1",),
    ks=(1, 8),
    claims=CLAIMS,
    controls=CONTROLS,
    panels={
        "pass@1": "accuracy, sampled",
        "works": "share worked out",
        "mixed@mean": "mixed groups",
    },
)

if __name__ == "__main__":
    main(TRIAL)
