"""model_claims.py - claims of papers on what teaches a model, which weights move, and what becomes of the rest."""

import numpy as np

from notebooks.claims import measures, thinking
from notebooks.claims.checks import Check, as_much, falls, more, reaches, rises, stays
from notebooks.claims.claim import RATES, Arm, Claim
from notebooks.claims.rlvr_claims import REWARD
from notebooks.claims.signal_claims import BASE, HERE, METHOD

# ---- distill: a teacher's judgement of every token against one reward a completion -----------------
# The teacher is what GRPO makes of the same base in as many steps; what that cost is not counted, for the claim is
# about a teacher that is there.

OFTEN = "--eval-every 2"
STUDENT = f"{METHOD}/distill.py --teacher {{teacher}} {OFTEN}"


def times_fewer(x):
    """How many times fewer tokens distillation needs, as a power of two."""
    return np.log2(x("grpo", "tokens to 80 %") / x("distillation", "tokens to 80 %"))


DISTILL = Claim(
    name="distill",
    sentence="On-policy distillation reaches its RL-trained teacher's level with a seventh to a tenth of RL's steps.",
    source="On-Policy Distillation, thinkingmachines.ai/blog/on-policy-distillation (2025): method and cost read in "
    "part, the numbers 7 to 10 from memory",
    doubt="A task on which RL needs thousands of steps to find a way: here the way is in one of five samples from the "
    "start, so that a reward for a whole completion already says nearly all. Or a teacher of another size.",
    arms={
        "grpo": Arm(OFTEN),
        "distillation": Arm(STUDENT, teacher="grpo"),
        "taught by itself": Arm(STUDENT, teacher="base"),
    },
    checks={
        "claim": [
            Check(
                "an eighth of GRPO's tokens to 80 % held out, rather than as many (powers of two)",
                *(times_fewer, 3.0, 0.3),
            ),
            as_much("grpo", "distillation"),
        ],
        "controls": [rises("grpo"), stays("taught by itself")],
    },
    columns=("right@0", "right", "used", "tokens to 80 %"),
    panels=("right", "length"),
    over="used",
    steps=60,
    measure=measures.tokens_to_level,
)

# ---- lora: adapters of rank 1 train as well as all weights, at a higher rate -----------------------

LORA = f"{METHOD}/lora.py --rank"
HIGH = (1.2e-3, 4e-3, 1.2e-2)
ADAPTERS = Claim(
    name="lora",
    sentence="In RL adapters of rank 1 learn as well as all weights, if their learning rate is higher.",
    source="LoRA Without Regret, thinkingmachines.ai/blog/lora (2025), read in summaries: its factor of ten is not "
    "judged, for rates are chosen on one seed; LoRA, 2106.09685",
    doubt="A task that has to teach the model something, rather than to select what it can: one bit a completion fits "
    "into any rank. Or layers of width 1,024 instead of 64, where a rank of 1 is a smaller share.",
    arms={
        "full": Arm(rates=(4e-4, 1.2e-3, 4e-3)),
        "rank 8": Arm(f"{LORA} 8", rates=HIGH),
        "rank 1": Arm(f"{LORA} 1", rates=HIGH),
        "rank 1, usual rate": Arm(f"{LORA} 1", rates=RATES[:1]),
    },
    checks={
        "claim": [
            as_much("full", "rank 1"),
            as_much("full", "rank 1", "right@mean"),
            as_much("full", "rank 8"),
            more("rank 1", "rank 1, usual rate", "right@mean"),
        ],
        "controls": [rises("full")],
    },
    columns=("right@0", "right", "right@mean", "greedy", "length", "grad_norm@mean", "spent"),
    panels=("right", "entropy"),
    over="step",
    steps=50,
)

# ---- tools: what becomes of a policy if the calculator's tokens are trained as its own -------------
# Products, as 47*83-12=, have two steps, and the tiny model cannot multiply. Its base calls the calculator in one
# completion of eight, and was never taught to write the calculator's answers.

CALCULATOR = "--task notebooks/environments/calculator.py"
PRODUCTS = f"{CALCULATOR}:products"
TOOLS = Claim(
    name="tools",
    sentence="A policy that calls a tool learns better, and more stably, if the tool's tokens are masked out of the "
    "loss.",
    source="Search-R1, 2503.09516: masking for stable training, and the reward (correct + 0.1 format, chapter 004); "
    "read: the abstract. Its own comparison of masked and unmasked is from memory",
    doubt="A tool that says much: a search engine's pages are most of a completion's tokens, this calculator's answers "
    "a sixth. Or a base that was never shown a tool's answer and has to learn to read one.",
    arms={
        "masked": Arm(PRODUCTS, "calling"),
        "unmasked": Arm(f"{PRODUCTS} --method {HERE}:Unmasked", "calling"),
        "answer alone": Arm(f"{PRODUCTS} --reward boxed", "calling"),
        "silent tool": Arm(f"{CALCULATOR}:silent", "calling"),
    },
    checks={
        "claim": [more("masked", "unmasked"), more("masked", "unmasked", "right@mean")],
        "reward": [more("masked", "answer alone", "form"), as_much("masked", "answer alone")],
        "controls": [
            rises("masked"),
            stays("silent tool"),
            Check(
                "the unmasked policy learns what the tool says (half a nat a token less surprised)",
                lambda x: x("masked", "surprise") - x("unmasked", "surprise"),
                *(0.5, 0.1),
            ),
        ],
    },
    columns=(
        *("right@0", "right", "right@mean", "form"),
        *("calls", "length", "surprise", "grad_norm@mean"),
    ),
    panels=("right", "entropy", "grad_norm"),
    over="step",
    steps=50,
    measure=measures.use_of_tools,
)

# ---- failing: do ToolRL's behaviours appear, or are they selected? ----------------------------------
# The first call of every other problem fails. One base has called again in 5 % of what it was shown, the calling one
# has never seen a call fail. All are measured with the calculator that fails, whatever they were trained with. (With a
# silent one no group has unequal rewards, and train.py refuses.)

ONE_RATE = (1.2e-3,)
SHOWN = "failing of seed 0"
FAILS = "--task notebooks/environments/failing.py:failing"
FAILING = Claim(
    name="failing",
    sentence="Under a reward for answer and form alone a policy learns to call again after a failure, to compose calls, "
    "and to leave out needless ones.",
    source="ToolRL, 2504.13958, as the chapter on verifiers has it (004, 5.3); the paper was not read",
    doubt="A pretrained model, which has seen other tools fail; needless calls that cost something; another tool to take.",
    arms={
        "outcome": Arm(FAILS, SHOWN, ONE_RATE),
        "never shown": Arm(FAILS, "calling of seed 0", ONE_RATE),
        "coin": Arm(f"{FAILS} {REWARD}:coin", SHOWN, ONE_RATE),
        "never fails": Arm(PRODUCTS, SHOWN, ONE_RATE),
    },
    checks={
        "again, shown": [rises("outcome", 0.5, column="again")],
        "again, never shown": [rises("never shown", 0.5, column="again")],
        "composes": [rises("outcome", 0.5, column="composes")],
        "needless": [falls("outcome", 0.05, "needless")],
        "controls": [rises(arm, 0.5, True, "again") for arm in ("never fails", "coin")],
    },
    columns=tuple(f"{name}{at}" for name in measures.BEHAVIOURS for at in ("@0", "")),
    panels=measures.BEHAVIOURS,
    flags="--eval-every 16 --eval-problems 4 --micro-batch-tokens 4096 --prompts-per-step 4",
    steps=16,
    measure=measures.behaviours,
)

# ---- thinking: which steps cause the answer, and which are decoration? -----------------------------
# Before is the base, after is what GRPO made of it: the runs of distill and of tools.


def decoration(arm):
    sentence = f"{arm}: half of the steps are decoration while the rest is kept"
    return Check(sentence, lambda x: 1 - x(arm, "kept"), 0.5, 0.05)


THINKING = Claim(
    name="thinking",
    sentence="Many steps of a chain of thought are decoration: to make them wrong does not change the answer.",
    source="2510.24941, Can Aha Moments Be Fake? (read: the abstract; its True Thinking Score is another measure)",
    doubt="A model that can answer without its steps: this one cannot, so a step that is decoration here is one whose "
    "value a later step repeats.",
    arms={
        "sums, before": BASE,
        "sums, after": Arm(OFTEN, steps=60),
        "products, before": Arm(PRODUCTS, "calling", rates=()),
        "products, after": Arm(PRODUCTS, "calling", steps=50),
    },
    checks={
        "claim": [decoration("sums, after"), decoration("products, after")],
        "effect of RL": [
            more("sums, after", "sums, before", "kept", 0.2),
            more("products, after", "products, before", "kept", 0.2),
        ],
        "controls": [
            reaches("sums, after", "untouched", 1.0, 0.1),
            reaches("products, after", "untouched", 1.0, 0.1),
            reaches("sums, after", "kept, last", 1.0, 0.1),
            reaches("sums, after", "continued, earlier", 1.0, 0.1),
        ],
    },
    columns=(
        *("kept", "kept, last", "kept, earlier"),
        *("continued, earlier", "untouched", "completions"),
    ),
    panels=("kept, last", "kept, earlier", "continued, earlier"),
    measure=thinking.causes,
)

CLAIMS = [DISTILL, ADAPTERS, TOOLS, FAILING, THINKING]
