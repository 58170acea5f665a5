"""Broken on purpose: no baseline. The rewards themselves are the advantages."""

from rlvr import GRPO


class NoBaseline(GRPO):
    def advantages(self, step):
        return step.rewards
