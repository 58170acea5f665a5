"""maxrl.py - MaxRL: the mean of a group divides its advantages.

Source:  "Maximum Likelihood Reinforcement Learning" (arXiv 2602.02710): abstract, project page
         (zanette-labs.github.io/MaxRL), and algorithm 1 as its repository's issue 1 quotes it.
Formula: A_i = (R_i - mean) / mean of its group, 0 where the mean is 0; rewards are 0 or 1.
         log p = -sum_k (1 - p)^k / k, so its gradient is sum_k (1/k) grad pass@k; plain RL has the
         first term of that sum, G completions with this baseline give the first G - 1.
Changes: a problem with pass rate p weighs 1/p; under the std it weighs 1 / sqrt(p (1 - p)), and
         without either it weighs 1. So what is rarely right counts most.
Missing: the paper's models and sizes. Rewards other than 0 and 1 are not what it derives; negative
         ones, which would turn signs around, are refused.
"""

from rlvr import GRPO, group_advantages
from verifiers import DataError


class MaxRL(GRPO):
    def advantages(self, step):
        if step.rewards.min() < 0:
            least = step.rewards.min().item()
            raise DataError(f"maxrl: a reward of {least:g}; it needs rewards of 0 and 1 (boxed)")
        mean = step.rewards.mean(1, keepdim=True)  # (P, 1)
        return group_advantages(step.rewards, "none") / (mean + 1e-6)
