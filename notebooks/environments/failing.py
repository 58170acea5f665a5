"""failing.py - an environment: a calculator whose first call fails, for one problem in two, so that one has to ask again.

    python -m notebooks.models.make_tiny --task products --out runs/calling
    python train.py --model runs/calling --task notebooks/environments/failing.py:failing --steps 16 --lr 1.2e-3
    python -m notebooks.claims.paper_claims failing      # with a base that was shown what to do, and controls

ToolRL (arXiv 2504.13958; the chapter on verifiers, 5.3) reports three behaviours under a reward for answer and form
alone, which `outcome` counts: recovery from a failed call (here by the same call again; the paper's policies also take
another tool), fewer needless calls, and calls that are composed, one on the reply to another. Controls: a
calculator that never fails (calculator.py), and a coin as reward. README.md has what came out.
"""

import zlib
from dataclasses import replace

from notebooks.environments.calculator import Calculator, products
from verifiers import tagged_reward


class Failing(Calculator):
    def __init__(self, problem):
        super().__init__(problem)
        # by a hash of the text, of which verifiers.held_out reads the last digit
        self.fails = zlib.crc32(problem["problem"].encode()) // 10 % 2 == 1

    def reply(self, text):
        answer = super().reply(text)
        if answer and self.fails:
            self.fails = False
            return "error"
        return answer


def outcome(completion, problem):
    """The task's own reward. calls and needless, those that had been answered before, are numbers; errors, again and
    composes are 1 or 0."""
    reward, parts = tagged_reward(completion, problem)
    asked = [(said.rpartition("<tool>")[2], reply) for said, reply in problem["turns"] if reply]
    answered = dict(pair for pair in asked if pair[1] != "error")
    failed = {call for call, reply in asked if reply == "error"}
    parts["calls"] = len(asked)
    parts["needless"] = len(asked) - len(answered) - len(failed)
    parts["errors"] = float(len(failed) > 0)
    parts["again"] = float(not failed.isdisjoint(answered))
    parts["composes"] = float(any(call[:4] in answered.values() for call in answered))
    return reward, parts


def failing():
    return replace(products(), name="failing", reward=outcome, turns=Failing)
