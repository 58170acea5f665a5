"""Broken on purpose: groups are read across prompts (rewards.view(G, P) for rows that lie side by side)."""

from rlvr import GRPO, group_advantages


class AcrossPrompts(GRPO):
    def advantages(self, step):
        P, G = step.rewards.shape
        wrong = group_advantages(step.rewards.flatten().view(G, P).T, self.settings.scale)
        return wrong.T.reshape(P, G)
