"""Broken on purpose: each micro-batch divides by its own number of tokens, and the gradients are added."""

from rlvr import GRPO


class OwnMeans(GRPO):
    def loss(self, logp, inputs):
        inputs.weights = inputs.weights / inputs.weights.sum()
        return super().loss(logp, inputs)
