"""reinforce.py - three simple policy gradients: Reinforce, RLOO, Negative.

    python train.py --method notebooks/methods/reinforce.py:RLOO

Reinforce: the group's advantages, without a ratio.
Source:  Williams 1992.
Formula: -sum_it w_it A_i log pi(o_it)
Changes: no ratio, so no clipping. With one update per batch, the gradient is the same as GRPO's.
Missing: a learned baseline, and discounted rewards.

RLOO: the baseline of a completion is the mean of the other completions in its group.
Source:  "Back to Basics: Revisiting REINFORCE Style Optimization" (arXiv 2402.14740).
Formula: -1/B sum_i A_i log pi(o_i),
         A_i = R_i - mean of the other R_j = (R_i - mean) G / (G - 1).
Changes: leave-one-out: a baseline excludes the completion that is compared with it. No ratio, no
         clipping, no std. Log-probs are summed over a completion, so a long one weighs more.
Missing: a reward model, and the KL that the paper subtracts from its reward; groups of 2 or 4.

Negative: makes wrong completions less likely and leaves right ones alone.
Source:  "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning" (arXiv
         2506.01347): abstract, and the two parts of its objective as a review prints them.
Formula: -sum_it w_it A_i log pi(o_it),  A_i = -1 if the answer is wrong, 0 if it is right.
Changes: no baseline and no std. A group without a right answer gives a gradient; a group without a
         wrong one does not. Probability moves from wrong completions to whatever else the policy
         finds likely. --positive 0.1 is the paper's W-REINFORCE; --positive 1 --negative 0 is its
         PSR, right completions only, which is said to lose pass@k at high k.
         The loss is GRPO's, with ratio and clip: in the first update it has the gradient of the
         formula.
Missing: the paper's models and sizes. Its clip is verl's, from memory.
"""

from dataclasses import dataclass

from rlvr import GRPO, group_advantages


class Reinforce(GRPO):
    def loss(self, logp, inputs):
        return -(inputs.weights * inputs.advantages * logp).sum()


class RLOO(Reinforce):
    @dataclass
    class Settings(Reinforce.Settings):
        norm: str = "sum"

    def advantages(self, batch):
        G = batch.rewards.size(1)
        return group_advantages(batch.rewards, "none") * G / max(1, G - 1)


class Negative(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        positive: float = 0.0  # weight of a right completion
        negative: float = 1.0  # weight of a wrong one

    def advantages(self, batch):
        right = (batch.rewards > 0.5).float()  # (P, G)
        return self.settings.positive * right - self.settings.negative * (1 - right)
