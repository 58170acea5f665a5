"""curriculum.py - which problems a step sees, by their difficulty: Curriculum, Stratified.

    python train.py --method notebooks/methods/curriculum.py:Curriculum

Curriculum: easy problems first, then hard ones.
Source:  chapter "Reward Design for Reasoning", difficulty-aware shaping. Sampling without
         replacement by keys log(u) / weight: Efraimidis and Spirakis 2006.
Formula: weight of a problem = exp(-((a - target) / 0.2)^2), a: its mean accuracy on its last
         three visits, 1/2 if there was none. The target slides from 0.8 to 0.4 over slide_steps.
Changes: which problems a step sees. Those near the target are likelier; none is ruled out.
Missing: a difficulty that is known beforehand: here only visits tell.

Stratified: every step sees the same mixture of easy and hard problems.
Source:  the same chapter, difficulty-stratified batching. Seats by the divisors 1/2, 3/2, 5/2 ..:
         Sainte-Lague 1910.
Formula: of the problems of a step, .1 .2 .4 .2 .1 have a mean accuracy from 0 to 0.2, to 0.4, to
         0.6, to 0.8 and to 1 (on their last three visits; 1/2 if there was none).
Changes: which problems a step sees. The std of the rewards within groups is then much the same in
         every step.
Missing: the same.
"""

import itertools
import math
import random
from dataclasses import dataclass

from appendix.plumbing import DataError
from rlvr import GRPO


class Visits:
    """Keeps the last three accuracies of each problem: memory["visits"], by str(index). To combine
    it, put it first, as in class Mine(Curriculum, DAPO); an advantages of your own calls super()'s."""

    chosen = ()  # the problems whose accuracies are still to come

    def visit(self, chosen, memory):
        """Note the problems of a step, whose accuracies come with the advantages -> chosen."""
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
    """Of the last visits to a problem; 1/2 if there was none."""
    last = memory.get("visits", {}).get(str(index))
    return sum(last) / len(last) if last else 0.5


class Curriculum(Visits, GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        slide_steps: int = 100  # as many as --steps

    def pick(self, problems, step, memory):
        settings = self.settings
        rng = random.Random(f"pick {settings.seed} {step}")
        target = 0.8 - 0.4 * min(1.0, step / max(1, settings.slide_steps))
        keys = []
        for index in range(len(problems)):
            distance = (mean_accuracy(memory, index) - target) / 0.2
            # subtle: log(u) / weight. u^(1 / weight) would be 0 for all that are far away.
            keys.append(math.log(1 - rng.random()) * math.exp(distance**2))
        order = sorted(range(len(problems)), key=keys.__getitem__, reverse=True)
        chosen = list(itertools.islice(itertools.cycle(order), settings.prompts_per_step))
        return self.visit(chosen, memory)


SHARES = (0.1, 0.2, 0.4, 0.2, 0.1)  # of a step, from the hard fifth to the easy one


class Stratified(Visits, GRPO):
    def pick(self, problems, step, memory):
        rng = random.Random(f"pick {self.settings.seed} {step}")
        sizes = [0] * len(SHARES)
        keys = {}
        for index in rng.sample(range(len(problems)), len(problems)):
            mean = round(mean_accuracy(memory, index), 6)  # 0.7, 0.7 and 0.4 must count as 0.6
            place = min(4, int(5 * mean))  # its fifth
            # The nth of its bin. The first of all problems by these keys have these shares.
            sizes[place] += 1
            keys[index] = (sizes[place] - 0.5) / SHARES[place]
        order = sorted(keys, key=keys.get)
        chosen = list(itertools.islice(itertools.cycle(order), self.settings.prompts_per_step))
        return self.visit(chosen, memory)
