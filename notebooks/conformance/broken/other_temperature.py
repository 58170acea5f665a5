"""Broken on purpose: sampled at 0.7 of the temperature that the log-probs are trained at."""

from rlvr import GRPO, sample


class OtherTemperature(GRPO):
    def roll_out(
        self,
        model,
        tokenizer,
        prompts,
        num_samples,
        temperature,
        max_new_tokens,
        stop_ids,
        uniforms,
    ):
        sampled_at = 0.7 * temperature
        return sample(model, prompts, num_samples, max_new_tokens, sampled_at, stop_ids, uniforms)
