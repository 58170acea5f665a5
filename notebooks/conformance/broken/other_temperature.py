"""Broken on purpose: sampled at 0.7 of the temperature that the log-probs are trained at."""

from dataclasses import replace

from rlvr import GRPO


class OtherTemperature(GRPO):
    def roll_out(self, model, tokenizer, prompts, how):
        how = replace(how, temperature=0.7 * how.temperature)
        return super().roll_out(model, tokenizer, prompts, how)
