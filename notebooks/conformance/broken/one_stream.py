"""Broken on purpose: all completions of a group are sampled with the same random numbers."""

from dataclasses import replace

from rlvr import GRPO


class OneStream(GRPO):
    def roll_out(self, model, tokenizer, prompts, how):
        first = how.uniforms[:: how.num_samples]
        how = replace(how, uniforms=first.repeat_interleave(how.num_samples, 0))
        return super().roll_out(model, tokenizer, prompts, how)
