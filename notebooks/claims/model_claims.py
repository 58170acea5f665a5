"""model_claims.py - claims of papers on what teaches a model, which weights move, and what becomes of the rest."""

import numpy as np

from notebooks.claims import measures, model_measures
from notebooks.claims.claim import (
    POINTS,
    RATES,
    Arm,
    Check,
    Claim,
    as_much,
    more,
    rises,
    stays,
)
from notebooks.claims.signal_claims import BASE, METHOD, ONCE, SHARED, on_smollm2

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
    panels={"right": "held-out accuracy, sampled", "length": "tokens per completion"},
    over="used",
    steps=60,
    seconds=45,
    measure=measures.tokens_to_level,
)

# The teacher is the GRPO of objectives_smollm2. 80 % is more than 20 steps reach. A seventh of them are three: right
# after the warm-up the student would be where its teacher ends.
SAMPLES = {"accuracy": "accuracy of a step's samples", "entropy": "entropy, nats"}
DISTILL_SMOLLM2 = on_smollm2(
    DISTILL,
    arms={
        "grpo": Arm(rates=ONCE),
        "distillation": Arm(f"{SHARED}:Distill --teacher {{teacher}}", rates=ONCE, teacher="grpo"),
        "base": BASE,
    },
    checks={
        "claim": [
            more("distillation", "grpo", "steps 6-10", 0.2),
            as_much("distillation", "grpo", "pass@1"),
        ],
        "controls": [more("grpo", "base", "pass@1", 0.3)],
    },
    columns=("steps 6-10", "pass@1", "pass@16", "used"),
    panels=SAMPLES,
    over="step",
    measure=measures.early,
)

# ---- self: a policy that is shown a right completion of its group ----------------------------------
# What such a teacher can do is measured before any training: problems of which one of eight samples is right are asked
# again, behind that solution. A model that is no more often right then has nothing to teach.

SELF = Claim(
    name="self",
    sentence="A policy that is shown a right completion of its group teaches itself better than rewards do.",
    source="SDPO, 2601.20802 (read: the abstract, and the objective in a review; that small models fail at it is from a "
    "summary of the paper)",
    doubt="A model that makes use of what stands in its prompt. This one was never shown two problems in a row.",
    arms={
        "grpo": Arm(rates=RATES[:1]),
        "self-taught": Arm(f"{METHOD}/self_distill.py", rates=RATES[:1]),
        "half of each": Arm(f"{METHOD}/self_distill.py --mix 0.5", rates=RATES[:1]),
    },
    checks={
        "claim": [more("self-taught", "grpo", "right@mean"), more("self-taught", "grpo")],
        "controls": [
            rises("grpo"),
            Check(
                "there is something to teach: shown a solution the base is right 10 points more often",
                lambda x: x("self-taught", "shown") - x("self-taught", "alone"),
                *(0.1, POINTS),
            ),
        ],
    },
    columns=("right@0", "alone", "shown", "right", "right@mean", "length"),
    panels={"right": "held-out accuracy, sampled", "length": "tokens per completion"},
    over="step",
    steps=20,
    seconds=25,
    measure=measures.shown_a_solution,
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
    panels={"right": "held-out accuracy, sampled", "entropy": "entropy, nats"},
    over="step",
    steps=50,
    seconds=40,
)

# Rank 8 has ten times the rate of full training, as the claim has it: neither is chosen.
ADAPTERS_SMOLLM2 = on_smollm2(
    ADAPTERS,
    arms={
        "full": Arm(rates=ONCE),
        "rank 8": Arm(f"{SHARED}:LoRA --rank 8", rates=(1e-4,)),
        "base": BASE,
    },
    checks={
        "claim": [
            as_much("rank 8", "full", "pass@1"),
            as_much("full", "rank 8", "accuracy@mean"),
        ],
        "controls": [more("full", "base", "pass@1", 0.3)],
    },
    sentence="SmolLM2-135M: adapters of rank 8 learn as well as all weights, at ten times their learning rate.",
    doubt="Rank 8 at a rate that is tuned; more steps, at the end of which it has caught up.",
    columns=("pass@1", "pass@16", "accuracy@mean", "grad_norm@mean", "spent"),
    panels=SAMPLES,
)

# ---- tools: what becomes of a policy if the calculator's tokens are trained as its own -------------
# Products, as 47*83-12=, have two steps, and the tiny model cannot multiply. Its base calls the calculator in one
# completion of eight, and was never taught to write the calculator's answers.

PRODUCTS = f"--task notebooks/models/make_tiny.py:products {METHOD}/tools.py"
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
        "unmasked": Arm(f"{PRODUCTS} --no-masked", "calling"),
        "answer alone": Arm(f"{PRODUCTS} --reward boxed", "calling"),
        "silent tool": Arm(f"{PRODUCTS} --max-calls 0", "calling"),
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
    panels={
        "right": "held-out accuracy, sampled",
        "entropy": "entropy, nats",
        "grad_norm": "gradient norm",
    },
    over="step",
    steps=50,
    seconds=40,
    measure=measures.use_of_tools,
)

# ---- forgetting: at the same accuracy, does RL forget less than supervised training? ---------------
# RL is distill's GRPO, at the rate that was chosen there.

SFT = "--like {teacher} --behaviour"
TUNED = (3e-4, 1e-3)
RL = {"rl": Arm(OFTEN, rates=RATES[1:], steps=60)}


def supervised(behaviour):
    by = model_measures.supervised
    return Arm(f"{SFT} {behaviour}", rates=TUNED, teacher="rl", steps=400, by=by)


def after_sft(sentence, column, by, noise, arm="sft", other="rl", same=False):
    return Check(sentence, lambda x: x(arm, column) - x(other, column), by, noise, same)


FORGETTING = Claim(
    name="forgetting",
    sentence="At the same accuracy RL is nearer to its base than supervised training, and forgets less.",
    source="RL's Razor, 2509.04259 (read: the abstract, and the forward KL on the new task)",
    doubt="A model with skills apart from its task: all that this one knows is ways to answer one kind of sum, so that "
    "to choose one way is to forget the others, by whatever method.",
    arms={
        "base": BASE,
        **RL,
        "sft": supervised("worked"),
        "sft, Chinese": supervised("bilingual"),
    },
    checks={
        "claim": [
            after_sft("KL(base || model) is 2 nats a completion larger after SFT", "kl", 2.0, 0.3),
            after_sft("other habits surprise it by 0.2 nats a token more", "other text", 0.2, 0.02),
            more("rl", "sft", "old skill"),
        ],
        "controls": [
            as_much("rl", "sft"),
            after_sft(
                "labels further from the base (Chinese) leave a KL that is larger by 2 nats",
                *("kl", 2.0, 0.3, "sft, Chinese", "sft"),
            ),
            Check(
                "the base has the old skill (half of the sums, in Chinese)",
                lambda x: x("base", "old skill"),
                *(0.5, POINTS),
            ),
        ],
    },
    columns=("right", "kl", "other text", "old skill", "sft steps"),
    panels={
        "right": "held-out accuracy",
        "kl": "KL(base || model), nats a completion",
        "other text": "other habits: nats a token more",
        "old skill": "right in Chinese, begun so",
    },
    tuned_by=("quick",),
    seconds=45,
    measure=model_measures.forgotten,
)

# ---- thinking: which steps cause the answer, and which are decoration? -----------------------------
# Before is the base, after is what GRPO made of it: the runs of distill and of tools.


def of_all(sentence, arm, column, by, noise):
    return Check(f"{arm}: {sentence}", lambda x: x(arm, column), by, noise)


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
            of_all("untouched thinking gives the same answer", "sums, after", "untouched", 1, 0.1),
            of_all("the same", "products, after", "untouched", 1, 0.1),
            of_all("a wrong last step changes it", "sums, after", "kept, last", 1, 0.1),
            of_all(
                "a wrong earlier step changes it, if the rest is not kept",
                *("sums, after", "continued, earlier", 1, 0.1),
            ),
        ],
    },
    columns=(
        *("kept", "kept, last", "kept, earlier"),
        *("continued, earlier", "untouched", "completions"),
    ),
    panels={
        "kept, last": "a wrong last step",
        "kept, earlier": "a wrong earlier step, rest kept",
        "continued, earlier": "a wrong earlier step, continued",
    },
    seconds=45,
    measure=model_measures.causes,
)

CLAIMS = [
    *(DISTILL, SELF, ADAPTERS, TOOLS, FORGETTING, THINKING),
    *(DISTILL_SMOLLM2, ADAPTERS_SMOLLM2),
]
