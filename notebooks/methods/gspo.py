"""gspo.py - GSPO: one ratio for a whole completion.

Source:  GSPO (arXiv 2507.18071), eq. 5 and 7; section 5.1 for clip and updates.
Formula: -1/B sum_i min(s_i A_i, clip(s_i) A_i),  s_i = (pi(o_i) / pi_old(o_i))^(1 / |o_i|).
Changes: s_i is the geometric mean of the ratios of a completion. It varies far less than they do,
         hence the narrow clip. A reward judges the whole completion, and so a whole one is
         clipped or not. Every completion counts the same. 4 updates, else all ratios are 1.
Missing: the paper's 4 updates are on quarters of a larger batch; here each is on the whole batch.
"""

from dataclasses import dataclass

import torch

from rlvr import GRPO, kl_penalty, policy_loss


def row_mean(values, weights):
    """The mean over the trained tokens of each completion: (b, T-1) -> (b, 1)."""
    inside = (weights > 0).float()
    return (values * inside).sum(1, keepdim=True) / inside.sum(1, keepdim=True).clamp(min=1)


class GSPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        norm: str = "sequence"
        clip: tuple = (3e-4, 4e-4)
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        settings = self.settings
        log_s = row_mean(logp - inputs.old_logp, inputs.weights).expand_as(logp)
        one = torch.zeros_like(logp)  # the log of 1: s_i is a ratio already
        loss = policy_loss(log_s, one, inputs.advantages, inputs.weights, settings.clip)
        if settings.kl_coef:
            loss = loss + settings.kl_coef * kl_penalty(logp, inputs.ref_logp, inputs.weights)
        return loss
