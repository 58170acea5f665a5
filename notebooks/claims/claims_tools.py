"""claims_tools.py - claim 3: a policy that calls a calculator, and what becomes of it if the calculator's tokens are
trained as its own.

    python -m notebooks.claims.claims_tools --costs
    python -m notebooks.claims.claims_tools --seeds 3

The task is make_tiny.py's `products`: 47*83-12= has two steps, and the tiny model cannot multiply. Its base calls the
calculator in one completion of eight, and was never taught to write the calculator's answers.
"""

import functools
import re
from pathlib import Path

import numpy as np
import torch

from eval import get_method
from model import load
from notebooks.claims import experiments as lab
from notebooks.claims.trial import Arm, Trial, main
from notebooks.look.show import samples_of
from notebooks.models import make_tiny
from rlvr import roll_out, token_logprobs
from verifiers import verify_math

NOTEBOOKS = Path(__file__).resolve().parents[1]

TASK = f"--task {NOTEBOOKS}/models/make_tiny.py:products"
TOOLS = f"{TASK} --method M:tools"


@functools.cache
def measure(folder):
    """Over the last ten steps: calls, answers of the tool in a completion; form, the share in the tagged form. And
    surprise: nats a token that the tool's words are to the trained model, which need not care."""
    files = sorted((folder / "samples").glob("step_*.jsonl.gz"))[-10:]
    texts = [row["completion"] for path in files for row in samples_of(path)]
    calls = [len(re.findall(r"</tool>[0-9]", text)) for text in texts]
    form = [verify_math(text, "0")["format"] for text in texts]
    found = {"calls": calls, "form": form, "surprise": surprise(folder)}
    return {name: float(np.mean(values)) for name, values in found.items()}


@torch.no_grad()
def surprise(folder, problems=100):
    """-log p of the tool's tokens, of this run's last model, on held-out problems."""
    model, tokenizer = load(str(folder / "final"))
    task = make_tiny.products()
    method = get_method(f"{NOTEBOOKS}/methods/tools.py", {"max_new_tokens": 80})
    rollouts = roll_out(method, model, tokenizer, task, task.test[:problems]).rollouts
    columns = torch.arange(1, rollouts.ids.size(1))
    ends = rollouts.prompt_lengths + rollouts.lengths
    completion = (columns >= rollouts.prompt_lengths[:, None]) & (columns < ends[:, None])
    theirs = (completion & (rollouts.mask == 0)).float()
    return float(-(token_logprobs(model, rollouts.ids, 1.0, theirs).sum() / theirs.sum()))


def more(arm, other, column, by, what, noise=lab.POINTS, same=False):
    return lab.Check(what, lambda x: x(arm, column) - x(other, column), by, noise, same)


TRIAL = Trial(
    name="tools",
    claim="A policy that calls a tool learns better, and more stably, if the tool's tokens are masked out of the loss.",
    source=(
        "Search-R1, 2503.09516: masking for stable training, and the reward (correct + 0.1 format, chapter 004); read: "
        "the abstract. Its own comparison of masked and unmasked is from memory"
    ),
    change_our_mind=(
        "A tool that says much: a search engine's pages are most of a completion's tokens, this calculator's answers a "
        "sixth. Or a base that was never shown a tool's answer and has to learn to read one."
    ),
    arms={
        "masked": Arm(TOOLS, "calling"),
        "unmasked": Arm(f"{TOOLS} --no-masked", "calling"),
        "answer alone": Arm(f"{TOOLS} --reward boxed", "calling"),
        "silent tool": Arm(f"{TOOLS} --max-calls 0", "calling"),
    },
    steps=50,
    seconds=40,
    claims={
        "claim": [
            more("masked", "unmasked", "right", 0.1, "masked ends 10 points above unmasked"),
            more("masked", "unmasked", "right@mean", 0.1, "and is 10 points above it on the way"),
        ],
        "reward": [
            more("masked", "answer alone", "form", 0.1, "0.1 for the form: 10 points more have it"),
            more(
                "masked",
                "answer alone",
                "right",
                0.1,
                "and as many are right (10 points would refute it)",
                same=True,
            ),
        ],
    },
    controls=[
        lab.rises("masked", by=0.3, what="accuracy rises by 30 points"),
        lab.stays(
            "silent tool", what="accuracy stays without the tool (10 points would refute it)"
        ),
        lab.Check(
            "the unmasked policy learns what the tool says (half a nat a token less surprised)",
            lambda x: x("masked", "surprise") - x("unmasked", "surprise"),
            0.5,
            0.1,
        ),
    ],
    columns=(
        *("right@0", "right", "right@mean", "form"),
        *("calls", "length", "surprise", "grad_norm@mean"),
    ),
    over="step",
    panels={
        "right": "held-out accuracy, sampled",
        "entropy": "entropy, nats",
        "grad_norm": "gradient norm",
    },
    measure=measure,
)

if __name__ == "__main__":
    main(TRIAL)
