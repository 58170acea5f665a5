"""curriculum.py - easy problems first, then hard ones.

Source:  chapter "Reward Design for Reasoning", difficulty-aware shaping. Sampling without
         replacement by keys log(u) / weight: Efraimidis and Spirakis 2006.
Formula: weight of a problem = exp(-((a - target) / 0.2)^2), a: its mean accuracy on its last
         three visits, 1/2 if there was none. The target slides from 0.8 to 0.4 over slide_steps.
Changes: which problems a step sees. Those near the target are likelier; none is ruled out.
Missing: a difficulty that is known beforehand: here only visits tell.
"""

import itertools
import math
import random
from dataclasses import dataclass

from rlvr import GRPO


def mean_accuracy(memory, index):
    """Of the last visits to a problem; 1/2 if there was none."""
    last = memory.get("visits", {}).get(str(index))
    return sum(last) / len(last) if last else 0.5


class Curriculum(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        first_target: float = 0.8
        last_target: float = 0.4
        slide_steps: int = 100  # as many as --steps

        def __post_init__(self):
            super().__post_init__()
            if self.slide_steps < 1:
                raise ValueError(f"slide_steps is {self.slide_steps}, and must be at least 1")

    def pick(self, problems, step, memory):
        settings = self.settings
        rng = random.Random(f"pick {settings.seed} {step}")
        done = min(1.0, step / settings.slide_steps)
        target = settings.first_target + done * (settings.last_target - settings.first_target)
        keys = []
        for index in range(len(problems)):
            distance = (mean_accuracy(memory, index) - target) / 0.2
            # subtle: log(u) / weight. u^(1 / weight) would be 0 for all that are far away.
            keys.append(math.log(1 - rng.random()) * math.exp(distance**2))
        order = sorted(range(len(problems)), key=keys.__getitem__, reverse=True)
        return list(itertools.islice(itertools.cycle(order), settings.prompts_per_step))
