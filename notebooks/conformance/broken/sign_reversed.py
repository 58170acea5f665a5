"""Broken on purpose: the sign of the loss is reversed, as when a loss is returned as an objective."""

from rlvr import GRPO


class SignReversed(GRPO):
    def loss(self, logp, inputs):
        return -super().loss(logp, inputs)
