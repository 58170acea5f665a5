"""Broken on purpose: the mask goes on behind the stop token, over the padding of shorter rows."""

import torch

from rlvr import GRPO


class PaddingTrained(GRPO):
    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        columns = torch.arange(rollouts.mask.size(1))
        rollouts.mask[columns >= rollouts.prompt_lengths[:, None] - 1] = 1.0
        return rollouts
