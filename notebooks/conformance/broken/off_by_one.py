"""Broken on purpose: the mask is one column too late, so a completion's first token is not trained."""

import torch

from rlvr import GRPO


class OffByOne(GRPO):
    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        rollouts.mask = torch.nn.functional.pad(rollouts.mask, (1, 0))[:, :-1]
        return rollouts
