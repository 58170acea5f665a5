"""failing.py - an environment: two calculators, of which one is broken; which one depends on the problem.

    python -m notebooks.models.make_tiny --task failing --out runs/switching
    python train.py --model runs/switching --task notebooks/environments/failing.py:failing --steps 60 --lr 1.2e-3

A call names its calculator, <tool>A47*83</tool>, and the broken one says "error". No problem tells which one works, so
half of the first calls fail: then the other has to be asked. ToolRL (arXiv 2504.13958; the chapter on verifiers, 5.3)
reports three behaviours under a reward for answer and form alone, and `outcome` counts them: a failed call is repeated
with the other tool, needless calls become rarer, calls are composed, one on what another replied.
Controls: `sound`, where both work, and `silent`, where none says anything.
"""

import zlib
from dataclasses import replace
from functools import partial

from notebooks.environments.calculator import Calculator, products
from verifiers import tagged_reward

OTHER = {"A": "B", "B": "A"}


def working(problem):
    """The calculator that works, by a hash of the problem's text, of which held_out reads the last digit."""
    return "AB"[zlib.crc32(problem["problem"].encode()) // 10 % 2]


class Tools(Calculator):
    def __init__(self, problem, working="AB", calls=6):
        super().__init__(problem, calls)
        self.working = working

    def reply(self, text):
        call = text.rpartition("<tool>")[2]
        answer = super().reply(call[1:])
        return "error" if answer and call[0] not in self.working else answer


def outcome(completion, problem):
    """The task's own reward; calls and needless ones (the same again) are numbers, the rest is 1 or 0."""
    reward, parts = tagged_reward(completion, problem)
    asked = [(said.rpartition("<tool>")[2], reply) for said, reply in problem["turns"] if reply]
    calls = [call for call, _ in asked]
    replies = [reply for _, reply in asked]
    switched = [
        OTHER.get(call[0], "?") + call[1:] in calls[i:]
        for i, call in enumerate(calls)
        if replies[i] == "error"
    ]
    parts["calls"] = len(asked)
    parts["needless"] = len(asked) - len({*calls})
    parts["errors"] = float("error" in replies)
    parts["switches"] = float(any(switched))
    parts["composes"] = float(any(call[1:5] in replies for call in calls))  # a product, as 3901
    return reward, parts


def failing(turns=lambda problem: Tools(problem, working(problem))):
    return replace(products(), name="failing", reward=outcome, turns=turns)


def sound():
    return failing(Tools)


def silent():
    return failing(partial(Tools, calls=0))
