"""broken.py - ten methods that are broken on purpose;
notebooks/BUGS.md explains them.

train with one of them; train with each, and without its bug to compare:
    python train.py --method notebooks/conformance/broken.py:OffByOne
    python -m notebooks.conformance.broken
draw the picture of BUGS.md from the saved runs:
    python -m notebooks.conformance.broken --draw notebooks/bugs.svg
"""

import copy
import json
import subprocess
import sys
import tempfile
from collections import namedtuple
from functools import cache
from pathlib import Path
from statistics import fmean

import torch

PATH = Path(__file__).resolve()
sys.path += [str(PATH.parents[2]), str(PATH.parents[1] / "methods")]

from kl import KL
from appendix.plumbing import read_log
from notebooks.command import parser_of, run_command
from rlvr import GRPO


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


class SignReversed(GRPO):
    """The sign of the loss is reversed, as when a loss is returned as an objective."""

    def loss(self, logp, inputs):
        return -super().loss(logp, inputs)


class OwnMeans(GRPO):
    """Each micro-batch divides by its own number of tokens, and the gradients are added."""

    def loss(self, logp, inputs):
        inputs.weights = inputs.weights / inputs.weights.sum()
        return super().loss(logp, inputs)


class RatioOfOne(GRPO):
    """The old log-probs are recomputed in each update, so that nothing ever clips."""

    def loss(self, logp, inputs):
        inputs.old_logp.copy_(logp.detach())  # in place, so the log sees them, too
        return super().loss(logp, inputs)


class KLReversed(KL):
    """The KL term has the wrong sign and pushes away from the reference."""

    def penalty(self, logp, inputs):
        return -super().penalty(logp, inputs)


# The class, its flags, the column of metrics.jsonl that shows the bug, its name, and the case of vectors.json that finds
# it without a run.
Broken = namedtuple("Broken", "name flags column bug case")
KL_FLAGS = "--method notebooks/methods/kl.py --kl-coef 1 --lr 1e-3 --steps 25"
BROKEN = [
    Broken("OneStream", "", "mixed", "One random stream", "sampling: seed and row"),
    Broken("StaleSampler", "", "mismatch", "The sampler keeps old weights", "sampling: after an update"),
    Broken("OtherTemperature", "", "mismatch", "Two temperatures", "log-probs: temperature"),
    Broken("OffByOne", "", "mismatch", "A mask one column late", "mask: a stop in the middle"),
    Broken("StopNotTrained", "", "completion_length", "The stop is not trained", "mask: the pad is the stop token"),
    Broken("PaddingTrained", "", "completion_length", "Padding is trained", "mask: a stop in the middle"),
    Broken("SignReversed", "", "reward", "The wrong sign", "loss: the first update"),
    Broken("OwnMeans", "--micro-batch-tokens 600", "grad_norm", "Each micro-batch its own mean", "loss: micro-batches"),
    Broken("RatioOfOne", "--updates-per-batch 4 --lr 1e-3", "clipped", "A ratio of always 1", "loss: three updates"),
    Broken("KLReversed", KL_FLAGS, "kl", "The KL pushes away", "KL: gradient"),
]  # fmt: skip


@cache
def run(flags):
    """Return the rows of the log, by default of 15 steps; none if train.py does not start."""
    with tempfile.TemporaryDirectory() as folder:
        command = f"{sys.executable} train.py --runs {folder} --name run --steps 15 {flags}"
        command += " --eval-every 1000 --save-every 1000 --eval-problems 8"
        subprocess.run(command.split(), cwd=PATH.parents[2], stdout=subprocess.DEVNULL)
        rows = read_log(Path(folder, "run")).values()
    return [row for row in rows if row.get("grad_norm") is not None]


def summary(rows, column):
    return f"{fmean(row[column] for row in rows[-3:]):.3g}" if rows else "no start"


def measured():
    """Run all of them -> a result for look/keep.py: means of the last three steps, and curves."""
    columns = ["bug", "column", "right", "broken", "accuracy, right", "broken"]
    result = {"columns": columns, "rows": [], "sentences": {}, "curves": {}, "seeds": [0]}
    for one in BROKEN:
        both = run(one.flags), run(f"{one.flags} --method {PATH}:{one.name}")
        row = [one.bug, one.column]
        for column, suffix in ((one.column, ""), ("accuracy", "_accuracy")):
            right, broken = (summary(rows, column) for rows in both)
            result["sentences"][one.name + suffix] = f"{broken} (right: {right})"
            row += [right, broken]
        result["rows"].append(row)
        curves = [[float(f"{row[one.column]:.3g}") for row in rows] for rows in both]
        result["curves"][one.name] = curves
        print(*row, sep="  ", flush=True)
    return result


def draw(file):
    """Draw a panel for each bug: the column that shows it, for the right run (grey) and for the broken one."""
    from notebooks.look.keep import load
    from notebooks.look.style import name_lines, panels

    kept = load("bugs")["curves"]
    titles = [f"{number} {one.bug}" for number, one in enumerate(BROKEN, 1)]
    figure, axes = panels(*titles, rows=5, height=1.7, xticks=[1, 5, 10, 15, 20, 25])
    for axis, one in zip(axes, BROKEN):
        for curve, label, color in zip(kept[one.name], ("right", "broken"), ("#888888", "C1")):
            axis.plot(range(1, len(curve) + 1), curve, label=label if curve else "_", color=color)
        axis.set(ylabel=one.column, xlim=(1, max(map(len, kept[one.name]))))
    axes[0].text(8, 0.5, "broken: does not start", color="C1", weight="bold", ha="center")
    axes[0].set(ylim=(0, 1.1))
    name_lines(*axes).savefig(file, metadata={"Date": None})


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--draw", metavar="FILE.svg", help="draw the saved runs")
    args = parser.parse_args()
    if args.draw:
        draw(args.draw)
    else:
        print(json.dumps(measured()))


if __name__ == "__main__":
    run_command(main)
