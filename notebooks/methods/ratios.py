"""ratios.py - three bounds on the ratio pi / pi_old after the first update: GSPO, CISPO, DPPO.

    python train.py --method notebooks/methods/ratios.py:GSPO

GSPO: one ratio for a whole completion.
Source:  GSPO (arXiv 2507.18071), eq. 5 and 7; section 5.1 for clip and updates.
Formula: -1/B sum_i min(s_i A_i, clip(s_i) A_i),  s_i = (pi(o_i) / pi_old(o_i))^(1 / |o_i|).
Changes: s_i is the geometric mean of the ratios of a completion. It varies far less than they do,
         hence the narrow clip. A reward scores the whole completion, so the whole completion is
         clipped or not. Every completion counts the same. There are 4 updates, because in the first
         all ratios are 1.
Missing: the paper's 4 updates are on quarters of a larger batch; here each is on the whole batch.

CISPO: the clipped ratio is a weight, so no token loses its gradient.
Source:  MiniMax-M1 (arXiv 2506.13585), section 3.1. It does not state the upper bound: 4 is from
         ScaleRL (arXiv 2510.13786).
Formula: -1/tokens sum_it sg(min(r_it, 4)) A_i log pi(o_it), sg: no gradient.
Changes: in GRPO, clipped tokens have no gradient, and rare tokens such as "wait" are the first to
         be clipped. Here their weight is bounded, and they still learn. There are 4 updates,
         because in the first all ratios are 1. Groups and length penalty are DAPO's, as in the
         report.
Missing: 16 updates on parts of a larger batch; here each of 4 is on the whole batch. Rewards of 1
         and -1.

DPPO: the trust region bounds probabilities, not their ratios.
Source:  "Rethinking the Trust Region in LLM Reinforcement Learning" (arXiv 2602.04879): its
         abstract; the loss from its authors' code (sail-sg/Stable-RL, core_algos.py, "binary TV");
         delta, std and divisor from verl's example for it (run_qwen30b_dppo.sh).
Formula: -sum_it w_it M_it r_it A_i,  r = pi / pi_s, where pi_s is the sampler's policy;
         M_it = 0 if A_i > 0 and pi - pi_s > delta, or A_i < 0 and pi_s - pi > delta, else 1.
Changes: a bound of 1.2 on the ratio stops a token of probability 0.001 at 0.0012, and a token of
         0.9 never. Here both may move by delta, the total variation between "this token" and "any
         other". A token that has moved too far has no gradient, unless its advantage moves it back.
         Distances are measured from the sampler, not from pi_old of the first update. No std and no
         length in the divisor, as in Dr. GRPO. There are 4 updates, because in the first nothing
         has moved.
Missing: a KL instead of the total variation, with delta 0.05; the most likely k tokens instead of
         the sampled one; a cap on r (10 in that code); 8 updates on parts of a larger batch. The
         log's `clipped` counts ratios.
"""

from dataclasses import dataclass

import torch
from dapo import DAPO
from grpo import DrGRPO
from rlvr import GRPO, policy_loss


def row_mean(values, weights):
    """Return the mean over the trained tokens of each completion: (b, T-1) -> (b, 1)."""
    inside = (weights > 0).float()
    return (values * inside).sum(1, keepdim=True) / inside.sum(1, keepdim=True).clamp(min=1)


class GSPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        norm: str = "sequence"
        clip: tuple = (3e-4, 4e-4)
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        log_s = row_mean(logp - inputs.old_logp, inputs.weights).expand_as(logp)
        one = torch.zeros_like(logp)  # the log of 1: s_i is a ratio already
        return policy_loss(log_s, one, inputs.advantages, inputs.weights, self.settings.clip)


class CISPO(DAPO):
    @dataclass
    class Settings(DAPO.Settings):
        clip: tuple = (0.999, 3.0)  # ratios from 0.001 (in effect no bound) to 4
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        low, high = self.settings.clip
        bounded = (logp - inputs.old_logp).exp().clamp(1 - low, 1 + high).detach()
        return -(inputs.weights * bounded * inputs.advantages * logp).sum()


class DPPO(DrGRPO):
    @dataclass
    class Settings(DrGRPO.Settings):
        delta: float = 0.15  # largest change of a probability
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        moved = logp.detach().exp() - inputs.sampled_logp.exp()  # (b, T-1)
        too_far = moved * inputs.advantages.sign() > self.settings.delta
        ratio = (logp - inputs.sampled_logp).exp()
        return -(inputs.weights * ~too_far * ratio * inputs.advantages).sum()
