"""cispo.py - CISPO: the clipped ratio is a weight, so no token loses its gradient.

Source:  MiniMax-M1 (arXiv 2506.13585), section 3.1. It does not state the upper bound: 4
         is that of ScaleRL (arXiv 2510.13786).
Formula: -1/tokens sum_it sg(min(r_it, 4)) A_i log pi(o_it), sg: no gradient.
Changes: GRPO's clipped tokens have no gradient; rare tokens such as "wait" are the first to be
         clipped. Here their weight is bounded and they still learn. 4 updates, else all ratios
         are 1. Groups and length penalty are DAPO's, as in the report.
Missing: 16 updates on parts of a larger batch; here each of 4 is on the whole batch. Rewards of
         1 and -1.
"""

from dataclasses import dataclass

from dapo import DAPO
from rlvr import kl_penalty


class CISPO(DAPO):
    @dataclass
    class Settings(DAPO.Settings):
        clip: tuple = (0.999, 3.0)  # ratios from 0.001, which is no bound, to 4
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        settings = self.settings
        low = 1 - settings.clip[0]
        high = 1 + settings.clip[1]
        bounded = (logp - inputs.old_logp).exp().clamp(low, high).detach()
        loss = -(inputs.weights * bounded * inputs.advantages * logp).sum()
        if settings.kl_coef:
            loss = loss + settings.kl_coef * kl_penalty(logp, inputs.ref_logp, inputs.weights)
        return loss
