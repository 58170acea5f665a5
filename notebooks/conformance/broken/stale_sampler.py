"""Broken on purpose: the sampler keeps the weights of the start, as an engine that is never updated."""

import copy

from rlvr import GRPO


class StaleSampler(GRPO):
    def setup(self, model, tokenizer):
        self.sampler = copy.deepcopy(model)
        return super().setup(model, tokenizer)

    def roll_out(self, model, *args):
        return super().roll_out(self.sampler, *args)
