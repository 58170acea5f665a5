"""rloo.py - RLOO: the baseline of a completion is the mean of the others of its group.

Source:  "Back to Basics: Revisiting REINFORCE Style Optimization" (arXiv 2402.14740).
Formula: -1/B sum_i A_i log pi(o_i),
         A_i = R_i - mean of the other R_j = (R_i - mean) G / (G - 1).
Changes: leave one out: a baseline does not contain what is compared with it. No ratio, no
         clipping, no std. Log-probs are summed over a completion, so that a long one weighs more.
Missing: a reward model, and the KL that the paper subtracts from its reward; groups of 2 or 4.
"""

from dataclasses import dataclass

from reinforce import Reinforce
from rlvr import group_advantages


class RLOO(Reinforce):
    @dataclass
    class Settings(Reinforce.Settings):
        norm: str = "sum"
        kl_coef: float = 0.0

    def advantages(self, step):
        G = step.rewards.size(1)
        return group_advantages(step.rewards, "none") * G / max(1, G - 1)
