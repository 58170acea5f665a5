"""Broken on purpose: the old log-probs are computed anew in each update, so that nothing ever clips."""

from rlvr import GRPO


class RatioOfOne(GRPO):
    def loss(self, logp, micro):
        micro.old_logp = logp.detach()
        return super().loss(logp, micro)
