"""curriculum.py - picks the problems of a step by their difficulty: Curriculum, Stratified.

    python train.py --method notebooks/methods/curriculum.py:Curriculum

Curriculum: easy problems first, then hard ones.
Source:  chapter "Reward Design for Reasoning", difficulty-aware shaping. Sampling without
         replacement by keys log(u) / weight: Efraimidis and Spirakis 2006.
Formula: weight of a problem = exp(-((a - target) / 0.2)^2), where a is its mean accuracy over its
         last three visits, or 1/2 before the first. The target falls from 0.8 to 0.4 over
         slide_steps.
Changes: which problems a step gets. Problems near the target are likelier; none is ruled out.
Missing: difficulty known in advance: here only visits show it.

Stratified: every step gets the same mixture of easy and hard problems.
Source:  the same chapter, difficulty-stratified batching. Places are shared out by the divisors
         1/2, 3/2, 5/2 ..: Sainte-Lague 1910.
Formula: 10, 20, 40, 20 and 10 % of a step's problems have a mean accuracy from 0 to 0.2, to 0.4, to
         0.6, to 0.8 and to 1 (over their last three visits; 1/2 before the first).
Changes: which problems a step gets. The std of the rewards within groups is then about the same in
         every step.
Missing: difficulty known in advance.
"""

import itertools
import math
import random
from dataclasses import dataclass

from appendix.plumbing import DataError
from rlvr import GRPO


class Visits:
    """Stores the last three accuracies of each problem in memory["visits"], under str(index). To
    combine it with another method, put it first: class Mine(Curriculum, DAPO). If you override
    advantages, call super()'s."""

    chosen = ()  # the problems whose accuracies are not known yet

    def visit(self, chosen, memory):
        """Remember the problems of a step until advantages() has their accuracies. Returns
        chosen."""
        if self.chosen:
            raise DataError("nothing called Visits.advantages: see curriculum.py")
        self.visits = memory.setdefault("visits", {})
        self.chosen = chosen
        return chosen

    def advantages(self, batch):
        for place, index in enumerate(self.chosen):
            accuracy = batch.accuracy[place].float().mean().item()
            last = self.visits.get(str(index), [])
            self.visits[str(index)] = [*last, accuracy][-3:]
        self.chosen = ()
        return super().advantages(batch)


def mean_accuracy(memory, index):
    """Return the mean accuracy over the last three visits to a problem, or 1/2 before the first."""
    last = memory.get("visits", {}).get(str(index))
    return sum(last) / len(last) if last else 0.5


class Curriculum(Visits, GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        slide_steps: int = 100  # usually the same number as --steps

    def pick(self, problems, step, memory):
        settings = self.settings
        rng = random.Random(f"pick {settings.seed} {step}")
        target = 0.8 - 0.4 * min(1.0, step / max(1, settings.slide_steps))
        keys = []
        for index in range(len(problems)):
            distance = (mean_accuracy(memory, index) - target) / 0.2
            # subtle: log(u) / weight, because u^(1 / weight) rounds to 0 far from the target.
            keys.append(math.log(1 - rng.random()) * math.exp(distance**2))
        order = sorted(range(len(problems)), key=keys.__getitem__, reverse=True)
        chosen = list(itertools.islice(itertools.cycle(order), settings.prompts_per_step))
        return self.visit(chosen, memory)


SHARES = (0.1, 0.2, 0.4, 0.2, 0.1)  # of a step's problems, from the hardest bin to the easiest


class Stratified(Visits, GRPO):
    def pick(self, problems, step, memory):
        rng = random.Random(f"pick {self.settings.seed} {step}")
        sizes = [0] * len(SHARES)
        keys = {}
        for index in rng.sample(range(len(problems)), len(problems)):
            mean = round(mean_accuracy(memory, index), 6)  # 0.7, 0.7 and 0.4: exactly 0.6
            place = min(4, int(5 * mean))  # its bin
            # For the nth problem of a bin. The problems with the lowest keys have these shares.
            sizes[place] += 1
            keys[index] = (sizes[place] - 0.5) / SHARES[place]
        order = sorted(keys, key=keys.get)
        chosen = list(itertools.islice(itertools.cycle(order), self.settings.prompts_per_step))
        return self.visit(chosen, memory)
