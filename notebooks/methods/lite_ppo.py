"""lite_ppo.py - Lite PPO: the std of the whole batch divides all advantages.

Source:  "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning" (arXiv 2508.08221);
         the std is that of ROLL, the authors' code.
Formula: A_i = (R_i - mean of its group) / (std of the rewards of the batch + eps).
Changes: one divisor for all groups, so that the advantages in nearly solved and nearly hopeless
         ones are not enlarged. The token mean and the loss without a KL are this project's defaults already.
Missing: its sampling (temperature 0.99, top-p 0.99, top-k 100; see top_p.py).
"""

from rlvr import GRPO, group_advantages


class LitePPO(GRPO):
    def advantages(self, step):
        # subtle: the std of the raw rewards, which holds what differs between groups too. So it is
        # larger than the std of what it divides. B - 1 stands under its root.
        std = step.rewards.float().std()
        return group_advantages(step.rewards, "none") / (std + 1e-6)
