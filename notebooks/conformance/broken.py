"""broken.py - methods that are broken on purpose, and their runs on the tiny
model: a few seconds each.

all of them, with their curves saved in curves.json; and one of them:
    python -m notebooks.conformance.broken
    python train.py --method notebooks/conformance/broken.py:OffByOne

Each is compared with a correct run with the same flags.
notebooks/9_conformance.ipynb shows the curves.
"""

import copy
import json
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import torch

PATH = Path(__file__).resolve()
sys.path += [str(PATH.parents[2]), str(PATH.parents[1] / "methods")]

from kl import KL
from notebooks.command import parser_of
from rlvr import GRPO


class SignReversed(GRPO):
    """The sign of the loss is reversed, as when a loss is returned as an objective."""

    def loss(self, logp, inputs):
        return -super().loss(logp, inputs)


class OneStream(GRPO):
    """All completions of a group are sampled with the same random numbers."""

    def roll_out(self, *args, uniforms, num_samples, **how):
        first = uniforms[::num_samples]
        same = first.repeat_interleave(num_samples, 0)
        return super().roll_out(*args, uniforms=same, num_samples=num_samples, **how)


class StaleSampler(GRPO):
    """The sampler keeps the initial weights, like an engine that is never updated."""

    def setup(self, model, tokenizer):
        self.sampler = copy.deepcopy(model)
        return super().setup(model, tokenizer)

    def roll_out(self, model, *args, **how):
        return super().roll_out(self.sampler, *args, **how)


class OtherTemperature(GRPO):
    """Completions are sampled at 0.7 times the temperature at which their log-probs are trained."""

    def roll_out(self, *args, temperature, **how):
        return super().roll_out(*args, temperature=0.7 * temperature, **how)


class OffByOne(GRPO):
    """The mask is one column too late, so a completion's first token is not trained."""

    def advantages(self, batch):  # the texts, which depend on the mask, have already been scored
        rollouts = batch.rollouts
        rollouts.mask[:] = torch.nn.functional.pad(rollouts.mask, (1, 0))[:, :-1]
        room = rollouts.ids.size(1) - rollouts.prompt_lengths
        rollouts.lengths = (rollouts.lengths + 1).minimum(room)  # the end of the forward pass
        return super().advantages(batch)


class StopNotTrained(GRPO):
    """The stop token is left out of the mask, as when it is also the pad (ids != pad)."""

    def roll_out(self, *args, **how):
        rollouts = super().roll_out(*args, **how)
        last = rollouts.prompt_lengths + rollouts.lengths - 2  # column of the last token
        rows = torch.arange(len(last))[rollouts.finished]
        rollouts.mask[rows, last[rollouts.finished]] = 0.0
        return rollouts


class PaddingTrained(GRPO):
    """The mask continues after the stop token, over the padding of shorter rows."""

    def roll_out(self, *args, **how):
        rollouts = super().roll_out(*args, **how)
        columns = torch.arange(rollouts.mask.size(1))
        rollouts.mask[columns >= rollouts.prompt_lengths[:, None] - 1] = 1.0
        rollouts.lengths = rollouts.ids.size(1) - rollouts.prompt_lengths
        return rollouts


class OwnMeans(GRPO):
    """Each micro-batch divides by its own number of tokens, and the gradients are added."""

    def loss(self, logp, inputs):
        inputs.weights = inputs.weights / inputs.weights.sum()
        return super().loss(logp, inputs)


class RatioOfOne(GRPO):
    """The old log-probs are recomputed in each update, so that nothing ever clips."""

    def loss(self, logp, inputs):
        inputs.old_logp = logp.detach()
        return super().loss(logp, inputs)


class KLReversed(KL):
    """The KL term has the wrong sign and pushes away from the reference."""

    def penalty(self, logp, inputs):
        return -super().penalty(logp, inputs)


# The class, its flags, the column of metrics.jsonl that shows it first, the cause, and the case of vectors.json that
# finds it without a run.
Broken = namedtuple("Broken", "name flags column cause case")
BROKEN = [
    Broken("SignReversed", "", "reward", "the loss has the wrong sign", "loss: the first update"),
    Broken("OneStream", "", "error", "one random stream for a group", "sampling: seed and row"),
    Broken("StaleSampler", "", "mismatch", "the sampler has old weights", "sampling: after an update"),
    Broken("OtherTemperature", "", "mismatch", "sampled at 0.7, trained at 1", "log-probs: temperature"),
    Broken("OffByOne", "", "mismatch", "the mask is a column late", "mask: the pad is the stop token"),
    Broken("StopNotTrained", "", "completion_length", "the stop is masked out", "mask: the pad is the stop token"),
    Broken("PaddingTrained", "", "completion_length", "the mask covers the padding", "mask: a stop in the middle"),
    Broken("OwnMeans", "--micro-batch-tokens 600", "grad_norm", "micro-batches have means of their own", "loss: micro-batches"),
    Broken("RatioOfOne", "--updates-per-batch 4 --lr 1e-3", "clipped", "old log-probs computed anew", "loss: three updates"),
    Broken("KLReversed", "--kl-coef 0.5", "kl", "the KL term has the wrong sign", "KL: gradient"),
]  # fmt: skip


def run(flags, columns):
    """Return {column: its values by step} of a run of 15 steps, or {"error": why it did not run}."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", "--runs", folder, "--name", "run", *flags]
        command += "--steps 15 --eval-every 1000 --save-every 1000 --eval-problems 8".split()
        ran = subprocess.run(command, cwd=PATH.parents[2], capture_output=True, text=True)
        if ran.returncode != 0:
            return {"error": ran.stderr.strip().splitlines()[-1]}
        lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("grad_norm") is not None]
    columns = sorted({"accuracy", *columns} - {"error"})
    return {column: [float(f"{row[column]:.4g}") for row in rows] for column in columns}


def main():
    parser_of(__doc__).parse_args()
    curves = {}
    for flags in dict.fromkeys(one.flags for one in BROKEN):
        columns = [one.column for one in BROKEN if one.flags == flags]
        curves[f"right {flags}".strip()] = run(flags.split(), columns)
    for one in BROKEN:
        flags = [*one.flags.split(), "--method", f"{PATH}:{one.name}"]
        curves[one.name] = run(flags, [one.column])
    lines = [f"{json.dumps(name)}: {json.dumps(curve)}" for name, curve in curves.items()]
    PATH.with_name("curves.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
