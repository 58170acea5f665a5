"""chapter.py - the chapter's listing, in the loop of train.py.

Source:  chapter "9.5 RLVR", compute_grpo_loss (rlvr.py, section 1).
Formula: -mean_i A_i sum_t log pi(o_it),  A_i = (R_i - mean) / (std + 1e-8); std has G - 1.
Changes: these departures from the chapter, numbered in the header of rlvr.py, are undone:
         3   no ratio, so no clipping
         4   log-probs are summed over a completion, so a long one weighs more
         6   the std divides by G - 1
         7   sampling at temperature 0.8, log-probs at 1; `mismatch` shows the difference
         10  1 problem and 4 completions per step
         11  a constant rate
Missing: rewards for cut-off completions (departure 5) and copied answers (12), the first box as
         the answer (8), a tolerance of 1e-6 (9), the instruct model (11).
"""

from dataclasses import dataclass

from constant import Constant
from reinforce import Reinforce

from rlvr import sample


class Chapter(Constant, Reinforce):
    @dataclass
    class Settings(Reinforce.Settings):
        prompts_per_step: int = 1
        num_samples: int = 4
        norm: str = "sum"
        sampling_temperature: float = 0.8  # factor on temperature, for sampling only

    def roll_out(self, model, tokenizer, prompts, training, temperature, **how):
        """Sample at temperature times sampling_temperature. Temperature 0 (greedy) stays 0."""
        temperature *= self.settings.sampling_temperature
        return sample(model, prompts, temperature=temperature, **how)

    def advantages(self, batch):
        rewards = batch.rewards  # (P, G)
        std = rewards.std(1, keepdim=True)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (std + 1e-8)
        equal = rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)
        return advantages.masked_fill(equal, 0.0)  # the chapter skips such a step
