"""rl_zvp.py - RL-ZVP: groups whose rewards agree teach too, token by token.

Source:  "No Prompt Left Behind" (arXiv 2509.21880): its abstract and its reviews at ICLR 2026;
         the formula (eq. 5) and alpha as three re-implementations on GitHub have them, alike.
Formula: mixed groups: GRPO's A_i. All right: A_it = alpha H_it. All wrong:
         A_it = -alpha (max_t H_it - H_it), the max over the completion. H: see entropy.py.
Changes: GRPO gives such a group no gradient, and with a weak or a strong policy most are such.
         Right: what was least sure becomes more likely. Wrong: what was most sure becomes less
         likely, and a fork is left alone. H has no gradient; it is that of pi_old.
Missing: the paper's sizes; its alpha (a review says that the window is narrow). --fsdp.
"""

from dataclasses import dataclass

import torch
from entropy import entropies
from rlvr import GRPO


class RLZVP(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        alpha: float = 0.1
        right_above: float = 0.5  # rewards above this are right

    def setup(self, model, tokenizer):
        self.model = model
        return super().setup(model, tokenizer)

    def advantages(self, step):
        rewards = step.rewards.to(step.rollouts.mask.device)  # (P, G)
        entropy = entropies(self.model, step.rollouts, self.settings)  # (B, T-1)
        most = entropy.amax(1, keepdim=True)
        agreed = (rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)).expand_as(rewards)
        right = rewards > self.settings.right_above
        own = torch.where(right.flatten()[:, None], entropy, entropy - most)
        grpo = super().advantages(step).flatten()[:, None].to(own.device)
        return torch.where(agreed.flatten()[:, None], self.settings.alpha * own, grpo)
