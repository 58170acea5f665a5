"""Broken on purpose: each micro-batch divides by its own number of tokens, and the gradients are added."""

from rlvr import GRPO


class OwnMeans(GRPO):
    def loss(self, logp, micro):
        micro.weights = micro.weights / micro.weights.sum()
        return super().loss(logp, micro)
