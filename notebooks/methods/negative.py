"""negative.py - Negative-only training: wrong completions become less likely, right ones are left.

Source:  "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning" (arXiv
         2506.01347): abstract, and the two parts of its objective as a review prints them.
Formula: -sum_it w_it A_i log pi(o_it),  A_i = -1 where the answer is wrong, 0 where it is right.
Changes: no baseline and no std; a group without a right answer teaches, one without a wrong answer
         does not. Probability goes from what was wrong to whatever else the policy finds likely.
         --positive 0.1 is the paper's W-REINFORCE; --positive 1 --negative 0 is its PSR, right
         completions only, which is said to lose pass@k at high k.
Missing: the paper's PPO ratio and clip (from memory: verl's; with one update all ratios are 1),
         models and sizes.
"""

from dataclasses import dataclass

from rlvr import GRPO


class Negative(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        positive: float = 0.0  # weight of a right completion
        negative: float = 1.0  # weight of a wrong one
        right_above: float = 0.5  # rewards above this are right

        def __post_init__(self):
            super().__post_init__()
            if self.positive < 0 or self.negative < 0:
                raise ValueError(
                    f"positive is {self.positive}, negative {self.negative}: at least 0"
                )

    def advantages(self, step):
        right = (step.rewards > self.settings.right_above).float()  # (P, G)
        return self.settings.positive * right - self.settings.negative * (1 - right)
