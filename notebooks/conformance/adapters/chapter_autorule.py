"""The chapter on AutoRule: its section 3.3, which has the advantage and the clipped objective only.

Written anew from the formulas. The objective is written for whole completions, so loss takes rows of one token.
"""

import torch


def loss(logp, old_logp, advantages, mask, clip):
    if logp.size(1) > 1 or clip[0] != clip[1]:
        raise NotImplementedError("the ratio is that of a whole completion, with one epsilon")
    ratio = (logp - old_logp).exp().squeeze(1)
    return -torch.min(ratio * advantages, ratio.clamp(1 - clip[0], 1 + clip[1]) * advantages).mean()
