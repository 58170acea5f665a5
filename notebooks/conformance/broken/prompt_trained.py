"""Broken on purpose: the mask covers the prompt as well, which the policy did not write."""

import torch

from rlvr import GRPO


class PromptTrained(GRPO):
    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        columns = torch.arange(rollouts.mask.size(1))
        rollouts.mask[columns < rollouts.prompt_lengths[:, None] - 1] = 1.0
        return rollouts
