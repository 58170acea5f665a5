"""few.py - GRPO on a few problems, or on one.

    python train.py --method notebooks/methods/few.py --train-problems 1

Source:  1-shot RLVR (arXiv 2504.20571).
Formula: GRPO's.
Changes: which problems a step gets: the first train_problems of a random order, over and over.
Missing: the paper's choice of the problem, by how much its accuracy varied in an earlier run. The
         preflight samples the first problems of the task, not these.
"""

import random
from dataclasses import dataclass

from appendix.plumbing import option
from rlvr import GRPO


class Few(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        train_problems: int = option(1, "number of problems")

        def __post_init__(self):
            super().__post_init__()
            if self.train_problems < 1:
                raise ValueError(f"train_problems is {self.train_problems}: it must be at least 1")

    def pick(self, problems, step, memory):
        rng = random.Random(f"train {self.settings.seed}")
        few = rng.sample(range(len(problems)), len(problems))[: self.settings.train_problems]
        return [few[i] for i in super().pick(few, step, memory)]
