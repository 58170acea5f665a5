"""smollm2_claims.py - the same claims on SmolLM2's sums, 20 steps: three of signal_claims.py and model_claims.py."""

from dataclasses import replace

from notebooks.claims import measures
from notebooks.claims.checks import as_much, more
from notebooks.claims.claim import Arm
from notebooks.claims.model_claims import ADAPTERS, DISTILL
from notebooks.claims.signal_claims import BASE, OBJECTIVES, negative_keeps, no_worse

ONCE = (1e-5,)  # SmolLM2's learning rate, which is not chosen
# Half of notebook 8's batch, and 16 samples of a problem. Of a step's own samples the accuracy is known anyway: on the
# way it takes the place of evaluations. A method of shared.py reads a group's prompt once, in a third of the time.
SHARED = "--method notebooks/claims/shared.py"
SMOLLM2 = {
    "flags": "@notebooks/recipes/smollm2.txt --prompts-per-step 4 --eval-every 20 --eval-problems 12",
    "steps": 20,
    "tuned_by": (),
    "ks": (1, 16),
    "problems": 36,
    "samples": 16,
}


def on_smollm2(claim, arms, checks, **fields):
    """The same claim on SmolLM2's sums."""
    arms = {name: replace(arm, base="smollm2") for name, arm in arms.items()}
    named = {"name": f"{claim.name}_smollm2", "sentence": f"SmolLM2-135M: {claim.sentence}"}
    return replace(claim, arms=arms, checks=checks, **{**named, **SMOLLM2, **fields})


# Not tried here: pass@k training, positive-only, the coin.
OBJECTIVES_SMOLLM2 = on_smollm2(
    OBJECTIVES,
    arms={
        "grpo": Arm(rates=ONCE),
        "maxrl": Arm(f"{SHARED}:MaxRL", rates=ONCE),
        "negative": Arm(f"{SHARED}:Negative", rates=ONCE),
        "base": BASE,
    },
    checks={
        "GRPO loses pass@16": [more("base", "grpo", "pass@16")],
        "MaxRL is better than GRPO": no_worse("maxrl", "pass@16"),
        "negative-only keeps pass@16 and raises pass@1": negative_keeps("pass@16"),
        "controls": [more("grpo", "base", "pass@1")],
    },
    sentence="SmolLM2-135M: other objectives than GRPO's raise pass@16, and cost no pass@1.",
    panels=("pass@1", "pass@16"),
    plane=("pass@1", "pass@16"),
)

# The teacher is the GRPO of objectives_smollm2. 80 % is more than 20 steps reach. A seventh of them are three: right
# after the warm-up the student would be where its teacher ends.
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
    panels=("accuracy", "entropy"),
    over="step",
    measure=measures.early,
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
    panels=("accuracy", "entropy"),
)

CLAIMS = [OBJECTIVES_SMOLLM2, DISTILL_SMOLLM2, ADAPTERS_SMOLLM2]
