"""pass_at_k.py - Pass@k training: a group of k is rewarded if any of its completions is right.

Source:  "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning
         Models" (arXiv 2508.10751): abstract; its analytical advantages as its repository computes
         them (RUCAIBox/Passk_Training, code/passk_adv.py).
Formula: c of G completions are right; rho = 1 - C(G-c, k) / C(G, k), sigma = sqrt(rho (1 - rho)):
         A = (1 - rho) / sigma                                     for a right completion
         A = (1 - rho - C(G-c-1, k-1) / C(G-1, k-1)) / sigma       for a wrong one
Changes: all groups of k are formed from the G completions. Each group is rewarded for its best
         completion, and these rewards are standardised. A completion's advantage is the mean over
         its groups. A problem that is nearly always solved in k tries counts little, and not at all
         once fewer than k of G are wrong. --best-of 1 is GRPO.
Missing: the paper's other two ways (full and bootstrap sampling), its models and sizes.
"""

import math
from dataclasses import dataclass

import torch

from appendix.plumbing import DataError
from eval import pass_at_k
from rlvr import GRPO


class PassAtK(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        best_of: int = 4  # k

    def setup(self, model, tokenizer):
        k, G = self.settings.best_of, self.settings.num_samples  # eval.py may ask for fewer samples
        if not 1 <= k <= G:
            raise DataError(f"best_of is {k}, and must be from 1 to num_samples, {G}")
        return super().setup(model, tokenizer)

    def advantages(self, batch):
        right = batch.rewards > 0.5  # (P, G)
        return torch.stack([self.of_group(group) for group in right])

    def of_group(self, right):
        """Return the advantages (G,) of one group: right (G,) bool."""
        k = self.settings.best_of
        G = len(right)
        wrong = G - int(right.sum())
        rho = pass_at_k(G, G - wrong, k)
        if rho in (0.0, 1.0):
            return torch.zeros(G)
        sigma = math.sqrt(rho * (1 - rho))
        # Of the groups of k that a wrong completion is in, the share without a right one.
        hopeless = math.comb(wrong - 1, k - 1) / math.comb(G - 1, k - 1)
        return torch.where(right, 1 - rho, 1 - rho - hopeless) / sigma
