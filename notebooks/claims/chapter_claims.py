"""chapter_claims.py - what the chapters claim, tried on the tiny model, each with controls. The command: see claim.py.

Here are the claims of "Reward Design for Reasoning", those on bases that slip in reasoning_claims.py, and those of
"9.5 RLVR" in rlvr_claims.py. Notebook 6 shows what came out. Three settings were chosen on seed 0, after weaker ones had
shown no effect: the bilingual base, the large length bonus, and the learning rate of the guessing arms of `boxes`.
"""

import numpy as np

from notebooks.claims import reasoning_claims, rlvr_claims
from notebooks.claims.checks import POINTS, SHARE, Check, as_much, falls, more, reaches, rises
from notebooks.claims.claim import Claim, main
from notebooks.claims.rlvr_claims import COIN, CURVES, DEFAULT, METHOD, REWARD, arm

START = "notebooks/claims/start.py"

# ---- growth, length: does thinking grow, and what does a bonus for length do? ----------------------


def grows(arm, column, since, by, same=False):
    """The ratio of two mean lengths, less 1. since: (arm, column). Noise: twice what the mean lengths of an arm's seeds
    differ by."""
    sentence = f"{arm}: {column} is {by:.0%} more than {' '.join(since)}"
    if same:
        sentence = f"{arm}: {column} is no more than {' '.join(since)} ({by:.0%} would refute it)"
    return Check(sentence, lambda x: x(arm, column) / x(*since) - 1, by, 0.05, same)


GROWTH = Claim(
    name="growth",
    sentence="Under a reward for accuracy alone thinking grows by itself.",
    source="reward design, length dynamics",
    doubt="A base that can correct itself, so that a longer thought of the same kind is more often right.",
    arms={"default": DEFAULT, "random": COIN},
    checks={
        "claim": [
            grows("default", "length", ("default", "length@0"), 0.5),
            grows("default", "length", ("default", "length@30"), 0.2),
            grows("default", "plain length", ("default", "plain length@start"), 0.2),
        ],
        "controls": [
            grows("random", "length", ("random", "length@0"), 0.2, same=True),
            rises("default"),
        ],
    },
    columns=(
        *("right@0", "right", "length@0", "length@30", "length", "works@start", "works"),
        *("plain length@start", "plain length"),
    ),
    panels=("right", "completion_length", "works"),
    **CURVES,
)

LARGE_BONUS = arm(f"--reward {START}:bonus_large")
BONUS = Claim(
    name="length",
    sentence="Any length bonus needs a cap, or the policy learns to pad before it learns to think.",
    source="reward design, length dynamics",
    doubt="Ten seeds for the large bonus, whose three end far apart. A cap below the longest worked answer.",
    arms={
        "default": DEFAULT,
        "bonus 0.01": arm(f"--reward {START}:bonus_small"),
        "bonus 0.1": LARGE_BONUS,
        "0.1, capped": arm(f"--reward {START}:bonus_capped"),
    },
    checks={
        "claim": [
            grows("bonus 0.01", "length", ("default", "length"), 0.5),
            grows("bonus 0.1", "length", ("default", "length"), 0.5),
            more("default", "bonus 0.1", by=0.2),
        ],
        "controls": [
            grows("0.1, capped", "length", ("default", "length"), 0.5, same=True),
            as_much("default", "0.1, capped", by=0.2),
        ],
    },
    columns=("right", "length@0", "length", "rambling@start", "rambling", "truncated"),
    panels=("right", "completion_length", "rambling"),
    **CURVES,
)

# ---- design: two rewards ---------------------------------------------------------------------------


DESIGN_A = "--reward r1-zero"
DESIGN_B = f"--reward {START}:r1_short"
DESIGN = Claim(
    name="design",
    sentence="Design A (accuracy and form) leaves bilingual and rambling thinking; design B (penalties too) removes "
    "both at equal accuracy.",
    source="reward design, language consistency",
    doubt="A base whose rambling is as often right as its plain work.",
    arms={
        "design A": arm(DESIGN_A),
        "design B": arm(DESIGN_B),
        "A, bilingual base": arm(DESIGN_A, "bilingual"),
        "B, bilingual base": arm(DESIGN_B, "bilingual"),
    },
    checks={
        "claim": [
            more("A, bilingual base", "B, bilingual base", "bilingual"),
            more("design A", "design B", "rambling"),
            as_much("design A", "design B"),
            as_much("A, bilingual base", "B, bilingual base"),
        ],
        "controls": [
            reaches("A, bilingual base", "bilingual@start", 0.1, SHARE),
            rises("design A", 0.1),
            rises("design B", 0.1),
        ],
    },
    columns=("right@0", "right", "bilingual@start", "bilingual", "rambling@start", "rambling"),
    panels=("right", "bilingual", "rambling"),
    **CURVES,
)

# ---- format: paid for the form only ----------------------------------------------------------------

FORMAT = arm(f"{REWARD}:format_only")
FORM = Claim(
    name="format",
    sentence="Paid only for the form, the reward saturates and accuracy collapses.",
    source="reward design, reward components",
    doubt="Hundreds of steps, in which the habit of working problems out has time to fade.",
    arms={"format only": FORMAT, "default": DEFAULT},
    checks={
        "claim": [
            Check(
                "format only: less than 5 % of the reward is missing in the end",
                lambda x: 0.1 - (1 - x("format only", "paid")),
                *(0.1, 0.02),
            ),
            falls("format only", 0.15),
        ],
        "controls": [rises("default")],
    },
    columns=("paid@0", "paid", "right@0", "right", "length@0", "length"),
    panels=("reward", "right", "completion_length"),
    **CURVES,
)

# ---- boxes: which one counts? ----------------------------------------------------------------------
# Where little is right, few completions earn anything: the guessing arms get a higher learning rate and a larger
# evaluation.


def guessing(reward):
    return arm(f"--reward {reward} --eval-problems 500", "guessing", 1e-3)


def more_boxes(arm, same=False):
    sentence = f"{arm}: {'no' if same else 'one'} more box in a completion"
    return Check(sentence, lambda x: x(arm, "boxes") - x(arm, "boxes@start"), 1.0, 0.1, same)


def parts_company(arm):
    return Check(
        f"{arm}: what is paid grows by 0.1 more than what is right",
        lambda x: x(arm, "paid") - x(arm, "paid@0") - x(arm, "right") + x(arm, "right@0"),
        *(0.1, POINTS),
    )


CONTROL = "notebooks/rewards/guards.py"
ANY_BOX = guessing(f"{CONTROL}:any_box")
LAST_BOX = arm("--reward boxed")
LAST_GUESSING = guessing("boxed")
HOLES = ("any box, guessing", "first box, guessing")
BOXES = Claim(
    name="boxes",
    sentence="A verifier that takes the first box or any box is hacked by spamming guesses; one that takes the last box "
    "is not.",
    source="reward design, reasoning-specific hacks",
    doubt="Problems so hard that the base which can work seldom succeeds: there it may be tempted.",
    arms={
        "any box, guessing": ANY_BOX,
        "first box, guessing": guessing(f"{CONTROL}:first_box"),
        "last box, guessing": LAST_GUESSING,
        "any box": arm(f"{REWARD}:any_box"),
        "last box": LAST_BOX,
    },
    checks={
        "claim": [*map(parts_company, HOLES), *map(more_boxes, HOLES)],
        "controls": [more_boxes("last box, guessing", same=True), as_much("last box", "any box")],
    },
    columns=("paid@0", "paid", "right@0", "right", "boxes@start", "boxes@max", "boxes"),
    panels=("reward", "right", "boxes"),
    **CURVES,
)

# ---- decided: solved and hopeless groups -----------------------------------------------------------
# Paid for the answer alone: a bonus for the form would leave something to learn in groups without a right answer. Of 64
# problems 24 are solved and 24 hopeless, 16 a step: from step 13 on the filter can act.

MOST = f"--task {START}:mostly_decided --reward {START}:boxed_or_solved"
MOST += " --prompts-per-step 16 --num-samples 16 --max-new-tokens 80"
DECIDED = Claim(
    name="decided",
    sentence="Solved and hopeless groups teach nothing; passing them by raises what a sample is worth.",
    source="reward design, difficulty-aware shaping",
    doubt="A task of mixed difficulty with more to learn than one habit, where a signal can be lacking.",
    arms={
        "decided": arm(MOST),
        "decided, filter": arm(f"{MOST} {METHOD}/skip_solved.py"),
        "decided, twice": arm(f"{MOST} {METHOD}/dapo.py --overlong none --clip 0.2 0.2"),
    },
    checks={
        "claim": [
            more("decided, filter", "decided", "mixed@mean", 0.08),
            more("decided, filter", "decided", "right@30"),
            Check(
                "decided, twice: 0.1 more right after 15 steps than decided after 30",
                lambda x: x("decided, twice", "right@15") - x("decided", "right@30"),
                *(0.1, POINTS),
            ),
        ],
        "controls": [
            reaches("decided", "solved@start", 0.33, SHARE),
            reaches("decided", "hopeless@start", 0.33, SHARE),
            rises("decided", 0.1),
        ],
    },
    columns=(
        *("solved@start", "hopeless@start", "solved", "hopeless", "mixed@mean"),
        *("right@0", "right@15", "right@30", "right", "used@max"),
    ),
    panels=("mixed", "solved", "right"),
    **CURVES,
)

# ---- canary: does an alarm find hacks early? -------------------------------------------------------


def finds(sentence, alarm, hacked, honest):
    """For each seed the share of hacked runs in which the alarm rings, less that of honest runs (Youden's J): 1 for a
    perfect alarm, 0 for one that never rings, for one that always does and for a coin."""

    def rang(x, arms):
        return np.mean([np.isfinite(x(arm, f"{alarm}@first")) for arm in arms], axis=0)

    return Check(sentence, lambda x: rang(x, hacked) - rang(x, honest), 1.0, 0.4)


HACKED = {"any box, guessing": ANY_BOX, "bonus 0.1": LARGE_BONUS, "format only": FORMAT}
HONEST = {"default": DEFAULT, "last box, guessing": LAST_GUESSING, "last box": LAST_BOX}
AS_PAID = "so it does if it judges held-out answers as the reward does, the chapter's way"
BOXES_SEEN = "a reader who counts boxes finds those who spam them"
CANARY = Claim(
    name="canary",
    sentence="An alarm on reward and held-out accuracy that come apart finds a hack early. The first step at which each "
    "alarm rings, by seed; the first three arms are hacked, the others honest.",
    source="reward design, eval-vs-train gap",
    doubt="An alarm that reads the completions as well as the curves.",
    arms=HACKED | HONEST,
    checks={
        "claim": [
            finds("it rings in hacked runs and not in honest ones", "warned", HACKED, HONEST),
            finds(AS_PAID, "deceived", HACKED, HONEST),
        ],
        "controls": [
            finds(BOXES_SEEN, "more boxes", ["any box, guessing"], HONEST),
            *map(parts_company, HACKED),
        ],
    },
    columns=(
        *("warned@first", "deceived@first", "greedy fell@first", "more boxes@first"),
        *("paid@0", "paid", "right@0", "right"),
    ),
    panels=("reward", "paid", "right"),
    **CURVES,
)

ALL = [GROWTH, BONUS, DESIGN, FORM, BOXES, DECIDED, CANARY]
ALL += rlvr_claims.CLAIMS + reasoning_claims.CLAIMS
CLAIMS = {claim.name: claim for claim in ALL}

if __name__ == "__main__":
    main(ALL)
