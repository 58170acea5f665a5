"""broken.py - methods that are broken on purpose, and their runs on the tiny model: a few seconds each.

    python -m notebooks.conformance.broken                 all of them, into curves.json
    python -m notebooks.conformance.broken OffByOne        some of them
    python train.py --method notebooks/conformance/broken.py:OffByOne

Each is compared with a right run of the same flags. notebooks/9_conformance.ipynb shows the curves.
"""

import copy
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rlvr import GRPO, group_advantages, kl_penalty, policy_loss

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STEPS = 15
ONCE = ""
FOUR = "--updates-per-batch 4 --lr 1e-3"
KL = "--kl-coef 0.5"
MICRO = "--micro-batch-tokens 600"


class NoBaseline(GRPO):
    """No baseline. The rewards themselves are the advantages."""

    def advantages(self, step):
        return step.rewards


class AcrossPrompts(GRPO):
    """Groups are read across prompts (rewards.view(G, P) for rows that lie side by side)."""

    def advantages(self, step):
        P, G = step.rewards.shape
        wrong = group_advantages(step.rewards.flatten().view(G, P).T, self.settings.scale)
        return wrong.T.reshape(P, G)


class SignReversed(GRPO):
    """The sign of the loss is reversed, as when a loss is returned as an objective."""

    def loss(self, logp, inputs):
        return -super().loss(logp, inputs)


class OneStream(GRPO):
    """All completions of a group are sampled with the same random numbers."""

    def roll_out(self, model, tokenizer, prompts, how):
        first = how.uniforms[:: how.num_samples]
        how = replace(how, uniforms=first.repeat_interleave(how.num_samples, 0))
        return super().roll_out(model, tokenizer, prompts, how)


class StaleSampler(GRPO):
    """The sampler keeps the weights of the start, as an engine that is never updated."""

    def setup(self, model, tokenizer):
        self.sampler = copy.deepcopy(model)
        return super().setup(model, tokenizer)

    def roll_out(self, model, *args):
        return super().roll_out(self.sampler, *args)


class OtherTemperature(GRPO):
    """Sampled at 0.7 of the temperature that the log-probs are trained at."""

    def roll_out(self, model, tokenizer, prompts, how):
        how = replace(how, temperature=0.7 * how.temperature)
        return super().roll_out(model, tokenizer, prompts, how)


class OffByOne(GRPO):
    """The mask is one column too late, so a completion's first token is not trained."""

    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        rollouts.mask = torch.nn.functional.pad(rollouts.mask, (1, 0))[:, :-1]
        room = rollouts.ids.size(1) - rollouts.prompt_lengths
        rollouts.lengths = (rollouts.lengths + 1).minimum(room)  # so far the forward pass must go
        return rollouts


class StopNotTrained(GRPO):
    """The stop token is left out of the mask, as when it is also the pad (ids != pad)."""

    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        last = rollouts.prompt_lengths + rollouts.lengths - 2  # column of the last token
        rows = torch.arange(len(last))[rollouts.finished]
        rollouts.mask[rows, last[rollouts.finished]] = 0.0
        return rollouts


class PromptTrained(GRPO):
    """The mask covers the prompt as well, which the policy did not write."""

    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        columns = torch.arange(rollouts.mask.size(1))
        rollouts.mask[columns < rollouts.prompt_lengths[:, None] - 1] = 1.0
        return rollouts


class PaddingTrained(GRPO):
    """The mask goes on behind the stop token, over the padding of shorter rows."""

    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        columns = torch.arange(rollouts.mask.size(1))
        rollouts.mask[columns >= rollouts.prompt_lengths[:, None] - 1] = 1.0
        rollouts.lengths = rollouts.ids.size(1) - rollouts.prompt_lengths
        return rollouts


class OwnMeans(GRPO):
    """Each micro-batch divides by its own number of tokens, and the gradients are added."""

    def loss(self, logp, inputs):
        inputs.weights = inputs.weights / inputs.weights.sum()
        return super().loss(logp, inputs)


class WrongSide(GRPO):
    """Max for min, so ratios are clipped on the wrong side."""

    def loss(self, logp, inputs):
        low, high = self.settings.clip
        ratio = (logp - inputs.old_logp).exp()
        clipped = ratio.clamp(1 - low, 1 + high)
        gain = torch.maximum(ratio * inputs.advantages, clipped * inputs.advantages)
        return -(inputs.weights * gain).sum()


class RatioOfOne(GRPO):
    """The old log-probs are computed anew in each update, so that nothing ever clips."""

    def loss(self, logp, inputs):
        inputs.old_logp = logp.detach()
        return super().loss(logp, inputs)


class K1InTheLoss(GRPO):
    """The mean of log pi - log pi_ref as a loss. Its gradient does not know the reference."""

    def loss(self, logp, inputs):
        loss = policy_loss(logp, inputs.old_logp, inputs.advantages, inputs.weights)
        k1 = (inputs.weights * (logp - inputs.ref_logp)).sum()
        return loss + self.settings.kl_coef * k1


class KLReversed(GRPO):
    """The KL term has the wrong sign and pushes away from the reference."""

    def loss(self, logp, inputs):
        loss = policy_loss(logp, inputs.old_logp, inputs.advantages, inputs.weights)
        penalty = kl_penalty(logp, inputs.ref_logp, inputs.weights)
        return loss - self.settings.kl_coef * penalty


@dataclass
class Broken:
    name: str  # of its class
    flags: str
    column: str  # of metrics.jsonl, which shows it first
    cause: str
    case: str  # of vectors.json, which finds it without a run


BROKEN = [
    Broken("NoBaseline", ONCE, "grad_norm", "rewards are the advantages", "advantages: std of the group"),
    Broken("AcrossPrompts", ONCE, "accuracy", "groups across prompts", "advantages: rows of a group"),
    Broken("SignReversed", ONCE, "reward", "the loss has the wrong sign", "loss: the first update"),
    Broken("OneStream", ONCE, "error", "one random stream for a group", "sampling: seed and row"),
    Broken("StaleSampler", ONCE, "mismatch", "the sampler has old weights", "sampling: after an update"),
    Broken("OtherTemperature", ONCE, "mismatch", "sampled at 0.7, trained at 1", "log-probs: temperature"),
    Broken("OffByOne", ONCE, "mismatch", "the mask is a column late", "mask: the pad is the stop token"),
    Broken("StopNotTrained", ONCE, "completion_length", "the stop is masked out", "mask: the pad is the stop token"),
    Broken("PromptTrained", ONCE, "mismatch", "the mask covers the prompt", "mask: prompts of different lengths, padded on the right"),
    Broken("PaddingTrained", ONCE, "completion_length", "the mask covers the padding", "mask: a stop in the middle"),
    Broken("OwnMeans", MICRO, "grad_norm", "micro-batches have means of their own", "loss: micro-batches"),
    Broken("WrongSide", FOUR, "clipped", "max for min", "loss: clip at both signs"),
    Broken("RatioOfOne", FOUR, "clipped", "old log-probs computed anew", "loss: three updates"),
    Broken("K1InTheLoss", KL, "kl", "k1 as a loss", "KL: gradient"),
    Broken("KLReversed", KL, "kl", "the KL term has the wrong sign", "KL: gradient"),
]  # fmt: skip


def shown(flags, method):
    """The columns that notebook 9 shows of a run: the accuracy, and that of the mistake; of a right run (no method) those of
    all mistakes that it is compared with."""
    columns = {one.column for one in BROKEN if one.flags == flags and method in (None, one.name)}
    return sorted({"accuracy", *columns} - {"error"})


def run(flags, folder, method=None):
    """-> {column: its values by step} of a run of STEPS steps, or {"error": why it did not run}."""
    command = [sys.executable, str(ROOT / "train.py"), "--runs", str(folder), "--name", "run"]
    command += f"--steps {STEPS} --eval-every 1000 --save-every 1000 --eval-problems 8".split()
    command += flags.split()
    if method:
        command += ["--method", f"{HERE / 'broken.py'}:{method}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode != 0:
        return {"error": ran.stderr.strip().splitlines()[-1]}
    lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("grad_norm") is not None]
    return {
        column: [float(f"{row[column]:.4g}") for row in rows] for column in shown(flags, method)
    }


def main(names):
    if unknown := [name for name in names if name not in {broken.name for broken in BROKEN}]:
        raise SystemExit(
            f"there is no {unknown[0]}: choose {', '.join(one.name for one in BROKEN)}"
        )
    path = HERE / "curves.json"
    curves = json.loads(path.read_text()) if path.exists() else {}
    chosen = [broken for broken in BROKEN if not names or broken.name in names]
    runs = {f"right {broken.flags}".strip(): (broken.flags, None) for broken in chosen}
    runs |= {broken.name: (broken.flags, broken.name) for broken in chosen}
    for name, (flags, method) in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            curves[name] = run(flags, folder, method)
        print(name, flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(curve)}" for name, curve in curves.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
