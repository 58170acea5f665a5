"""stratified.py - every step sees the same mixture of easy and hard problems.

Source:  chapter "Reward Design for Reasoning", difficulty-stratified batching.
Formula: of the problems of a step, shares `target` have a mean accuracy from 0 to 0.2, to 0.4, to
         0.6, to 0.8 and to 1 (on their last three visits; 1/2 if there was none).
Changes: which problems a step sees. The std of the rewards within groups is then much the same in
         every step. Thirds: --target 1 1 1.
Missing: a difficulty that is known beforehand: here only visits tell.
"""

import random
from dataclasses import dataclass

from curriculum import mean_accuracy
from rlvr import GRPO


class Stratified(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        target: tuple = (0.1, 0.2, 0.4, 0.2, 0.1)

        def __post_init__(self):
            super().__post_init__()
            if not self.target or min(self.target) < 0 or sum(self.target) == 0:
                raise ValueError(f"target is {self.target}: shares of 0 or more, not all 0")

    def pick(self, problems, step, memory):
        """Each place goes to the bin furthest behind its share that has a problem left."""
        target = self.settings.target
        rng = random.Random(f"pick {self.settings.seed} {step}")
        order = rng.sample(range(len(problems)), len(problems))
        taken = [0] * len(target)
        bins = [[] for _ in target]
        chosen = []
        while len(chosen) < self.settings.prompts_per_step:
            if not any(bins):  # at first, and again if there are too few problems
                for index in order:
                    place = int(len(target) * mean_accuracy(memory, index))
                    bins[min(len(target) - 1, place)].append(index)
            waiting = [i for i, members in enumerate(bins) if members]
            due = [target[i] / sum(target) * (len(chosen) + 1) - taken[i] for i in waiting]
            turn = waiting[due.index(max(due))]
            taken[turn] += 1
            chosen.append(bins[turn].pop(0))
        return chosen
