"""The chapter on rule-based rewards: the formulas of its two listings.

Written anew from the text. Its rewards ask for tags, so each text is put into them, and the weight of the format is
taken away again. group_advantages is that of the first listing; the second one divides by G - 1.
"""

import re
import statistics

import torch


def advantages(rewards):
    rows = []
    for group in rewards.tolist():
        mean = statistics.mean(group)
        std = statistics.pstdev(group) or 1e-6
        alone = len(group) < 2
        rows.append([0.0 if alone else (reward - mean) / std for reward in group])
    return torch.tensor(rows)


def loss(logp, old_logp, advantages, mask, clip):
    """The mean over all positions: the listing has no mask."""
    if clip[0] != clip[1]:
        raise NotImplementedError("one clip for both sides")
    ratio = (logp - old_logp).exp()
    gain = torch.min(
        ratio * advantages[:, None], ratio.clamp(1 - clip[0], 1 + clip[1]) * advantages[:, None]
    )
    if not mask.all():
        raise NotImplementedError("no mask")
    return -gain.mean()


def kl(logp, ref_logp):
    return logp - ref_logp


def gradient_of_kl(logp, ref_logp):
    """The term is a part of the loss."""
    logp = logp.requires_grad_()
    return torch.autograd.grad(kl(logp, ref_logp).sum(), logp)[0]


def extract(text):
    found = re.search(r"\\boxed\{([^}]+)\}", text)
    return found.group(1).strip() if found else None


def grade(answer, truth):
    return answer == truth.strip()


def reward(text, truth, finished):
    if not finished:
        raise NotImplementedError("a reward is not told")
    return 1.0 if extract(text) == truth.strip() else 0.0
