"""skip_solved.py - GRPO that leaves out problems that were always solved, or never.

Source:  chapter "Reward Design for Reasoning", difficulty-aware shaping.
Formula: a problem is left out if its last three visits had a mean accuracy above 0.95 or below
         0.05.
Changes: which problems a step sees. Each time one is left out, its oldest visit is forgotten, so
         it is soon tried again: the policy has changed.
Missing: it cannot act before three epochs, 3 * problems / prompts_per_step steps.
"""

import functools
import random
from dataclasses import dataclass

from rlvr import GRPO


def walk(n, place, seed):
    """Which of n problems stands at this place of GRPO.pick's walk: a new order in every epoch."""
    return epoch_order(n, place // n, seed)[place % n]


@functools.lru_cache(maxsize=8)
def epoch_order(n, epoch, seed):
    return random.Random(f"order {seed} {epoch}").sample(range(n), n)


class SkipSolved(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        hopeless: float = 0.05
        solved: float = 0.95

    def pick(self, problems, step, memory):
        visits = memory.setdefault("visits", {})
        chosen = []
        while len(chosen) < self.settings.prompts_per_step:
            place = memory.get("next", 0)
            memory["next"] = place + 1
            index = walk(len(problems), place, self.settings.seed)
            last = visits.get(str(index), [])
            if len(last) == 3 and not self.teaches(sum(last) / 3):
                visits[str(index)] = last[1:]
            else:
                chosen.append(index)
        return chosen

    def teaches(self, accuracy):
        return self.settings.hopeless <= accuracy <= self.settings.solved
