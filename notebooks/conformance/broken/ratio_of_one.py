"""Broken on purpose: the old log-probs are computed anew in each update, so that nothing ever clips."""

from rlvr import GRPO


class RatioOfOne(GRPO):
    def loss(self, logp, inputs):
        inputs.old_logp = logp.detach()
        return super().loss(logp, inputs)
