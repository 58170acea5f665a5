"""Broken on purpose: max for min, so ratios are clipped on the wrong side."""

import torch

from rlvr import GRPO


class WrongSide(GRPO):
    def loss(self, logp, inputs):
        low, high = self.settings.clip
        ratio = (logp - inputs.old_logp).exp()
        clipped = ratio.clamp(1 - low, 1 + high)
        gain = torch.maximum(ratio * inputs.advantages, clipped * inputs.advantages)
        return -(inputs.weights * gain).sum()
