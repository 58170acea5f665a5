"""Broken on purpose: the stop token is left out of the mask, as when it is also the pad (ids != pad)."""

import torch

from rlvr import GRPO


class StopNotTrained(GRPO):
    def roll_out(self, *args):
        rollouts = super().roll_out(*args)
        last = rollouts.prompt_lengths + rollouts.lengths - 2  # column of the last token
        rows = torch.arange(len(last))[rollouts.finished]
        rollouts.mask[rows, last[rollouts.finished]] = 0.0
        return rollouts
