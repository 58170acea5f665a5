"""claims_lora.py - claim 5: adapters of rank 1 train as well as all weights, at a higher rate.

python -m notebooks.claims.claims_lora --costs
python -m notebooks.claims.claims_lora --memory                what it saves at Qwen3-0.6B's shape, computed
python -m notebooks.claims.claims_lora --seeds 3
python -m notebooks.claims.claims_lora --model smollm2         SmolLM2's sums, 20 steps
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from eval import get_method
from model import Config, Qwen3
from notebooks.claims import experiments as lab
from notebooks.claims.trial import ON_SMOLLM2, Arm, Trial, above, as_much, main
from rlvr import CHUNK_ELEMENTS

NOTEBOOKS = Path(__file__).resolve().parents[1]

CARD = 12.0  # GB, of 10^9 bytes
ROWS = 8  # completions in an update, of so many tokens with their prompts
WIDTH = 1024
SAMPLED = 64  # completions at once


def counts(rank):
    """(all parameters, those that are trained) of Qwen3-0.6B with adapters of this rank; 0: without."""
    with torch.device("meta"):  # shapes alone
        model = Qwen3(Config())
        trained = list(model.parameters())
        if rank:
            method = get_method(f"{NOTEBOOKS}/methods/lora.py", {"rank": rank})
            trained = method.setup(model, None)
    whole = sum(param.numel() for param in model.parameters())
    return whole, sum(param.numel() for param in trained)


def memory(rank):
    """GB at the worst moment of a step, by notebook 4's formula (section 10), piece by piece.

    Weights in fp32 and their copies in bf16; of what is trained two moments and a gradient; the embedding's gradient
    twice, if it has any; and the larger of the cache with its logits, or of what an update keeps of its tokens."""
    c = Config()
    whole, trained = counts(rank)
    heads = c.num_attention_heads + c.num_key_value_heads
    block = 5 * c.hidden_size + 4 * c.intermediate_size + 5 * c.head_dim * heads
    kept = 2 * ROWS * WIDTH * (block + c.hidden_size * c.num_hidden_layers)
    logits = 18 * min(CHUNK_ELEMENTS, ROWS * WIDTH * c.vocab_size)
    embedding = 0 if rank else 8 * c.vocab_size * c.hidden_size
    update = 4 * trained + embedding + kept + logits
    cache = 4 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * SAMPLED * WIDTH
    sampling = cache + 18 * SAMPLED * c.vocab_size
    parts = {
        "weights": 6 * whole,
        "moments": 8 * trained,
        "update": update,
        "sampling": sampling,
        "largest": 6 * whole + 8 * trained + max(update, sampling),
        "without the cache": 6 * whole + 8 * trained + update,
    }
    return {"trained": trained, **{name: size / 1e9 for name, size in parts.items()}}


def memories():
    sizes = {"card": CARD, "rows": ROWS, "width": WIDTH, "sampled": SAMPLED}
    arms = {"full": memory(0), "rank 8": memory(8), "rank 1": memory(1)}
    return {"memory": {**sizes, "arms": arms}}


def print_memory(found=None):
    """found: what memories() has computed."""
    found = (found or memories())["memory"]
    shape = f"{found['rows']} rows of {found['width']} tokens, {found['sampled']} sampled at once"
    print(f"GB at Qwen3-0.6B's shape, {shape}, computed")
    names = [*found["arms"]["full"]]
    print(f"{'':8}", *(f"{name:>18}" for name in names))
    for arm, parts in found["arms"].items():
        print(f"{arm:8} {parts['trained']:18,}", *(f"{parts[name]:18.2f}" for name in names[1:]))
        fits = "fits" if parts["largest"] < found["card"] else "does not fit"
        print(f"{'':8} {fits} on a card of {found['card']:g} GB")


def even(arm, column, what):
    return lab.behind(arm, "full", 0.1, what, column, same=True)


REFUTES = "(10 points would refute it)"
ENDS = f"ends where full training does {REFUTES}"
LORA = "--method M:lora --rank "

TRIAL = Trial(
    name="lora",
    claim="In RL adapters of rank 1 learn as well as all weights, if their learning rate is higher.",
    source=(
        "LoRA Without Regret, thinkingmachines.ai/blog/lora (2025), read in summaries: its factor of ten is not judged, "
        "for rates are chosen on one seed; LoRA, 2106.09685"
    ),
    change_our_mind=(
        "A task that has to teach the model something, rather than to select what it can: one bit a completion fits "
        "into any rank. Or layers of width 1,024 instead of 64, where a rank of 1 is a smaller share."
    ),
    arms={
        "full": Arm(times=(1, 3, 10)),
        "rank 8": Arm(f"{LORA}8", times=(3, 10, 30)),
        "rank 1": Arm(f"{LORA}1", times=(3, 10, 30)),
        "rank 1, usual rate": Arm(f"{LORA}1", times=(1,)),
    },
    steps=50,
    seconds=40,
    claims={
        "claim": [
            even("rank 1", "right", f"rank 1 {ENDS}"),
            even("rank 1", "right@mean", "and is there on the way (10 points would refute it)"),
            even("rank 8", "right", f"rank 8 {ENDS}"),
            lab.behind(
                "rank 1, usual rate",
                "rank 1",
                0.1,
                "at the usual rate rank 1 is 10 points behind, on the way",
                "right@mean",
            ),
        ]
    },
    controls=[
        lab.rises("full", by=0.3, what="accuracy rises by 30 points"),
    ],
    columns=("right@0", "right", "right@mean", "greedy", "length", "grad_norm@mean", "spent"),
    panels={"right": "held-out accuracy, sampled", "entropy": "entropy, nats"},
    over="step",
    also=memories,
)

# Rank 8 has ten times the rate of full training, as the claim has it: neither is tuned.
SMOLLM2 = replace(
    TRIAL,
    claim="In RL adapters of rank 8 learn as well as all weights, at ten times their learning rate.",
    change_our_mind="Rank 8 at a rate that is tuned; more steps, at the end of which it has caught up.",
    arms={
        "full": Arm(times=(1,)),
        "rank 8": Arm("--method S:LoRA --rank 8", times=(10,)),
        "base": Arm(times=()),
    },
    **ON_SMOLLM2,
    claims={
        "claim": [
            as_much("rank 8", "full", "pass@1", 0.1, f"rank 8 {ENDS}"),
            even(
                "rank 8",
                "accuracy@mean",
                f"over all steps its samples are as often right {REFUTES}",
            ),
        ]
    },
    controls=[above("full", "base", "pass@1", 0.3, "full training: pass@1 rises by 30 points")],
    columns=("pass@1", "pass@16", "accuracy@mean", "grad_norm@mean", "spent"),
    panels={"accuracy": "accuracy of a step's samples", "entropy": "entropy, nats"},
    also=dict,
)

if __name__ == "__main__":
    if "--memory" in sys.argv:
        print_memory()
    else:
        main(TRIAL, SMOLLM2)
