"""Broken on purpose: all completions of a group are sampled with the same random numbers."""

from rlvr import GRPO


class OneStream(GRPO):
    def roll_out(self, model, tokenizer, prompts, num_samples, *args):
        uniforms = args[-1].clone()
        for start in range(0, len(uniforms), num_samples):
            uniforms[start : start + num_samples] = uniforms[start].clone()
        return super().roll_out(model, tokenizer, prompts, num_samples, *args[:-1], uniforms)
