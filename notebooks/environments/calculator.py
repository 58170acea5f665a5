"""calculator.py - an environment: a calculator that the policy calls inside <tool>..</tool>.

    python -m notebooks.models.make_tiny --task products --out runs/calling
    python train.py --model runs/calling --task notebooks/models/make_tiny.py:products --steps 50

A task has it by `stops=("</tool>",), turns=Calculator`. What it replies is in no loss.
A call is text from a model, so it is hostile: it is matched against one pattern and never run.
"""

import operator
import re

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NUMBER = r"\s*(-?[0-9]{1,9})\s*"


def calculate(call):
    """The sum, difference or product of two whole numbers of at most 9 digits, as text: "47*83" ->
    "3901". Anything else is an "error"."""
    found = re.fullmatch(f"{NUMBER}([-+*]){NUMBER}", call)
    if not found:
        return "error"
    return str(OPERATIONS[found[2]](int(found[1]), int(found[3])))


class Calculator:
    """It answers so many calls of a completion, and then says nothing."""

    calls = 4

    def __init__(self, problem):
        self.left = self.calls

    def reply(self, text):
        _, _, call = text.rpartition("<tool>")  # the call may begin in the prompt
        call, end, _ = call.partition("</tool>")
        if not end:
            return None  # a turn without a call is the last one
        self.left -= 1
        return calculate(call) if self.left >= 0 else ""
