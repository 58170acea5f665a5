"""calculator.py - an environment: a calculator that the policy calls inside <tool>..</tool>.

    python -m notebooks.models.make_tiny --task products --out runs/calling
    python train.py --model runs/calling --task notebooks/environments/calculator.py:products --steps 50

To give a task a calculator, set `stops=("</tool>",), turns=Calculator`. Its replies are never
trained on. A call is text from a model, so it is hostile: it is matched against one pattern and
never run.
"""

import operator
import random
import re
from dataclasses import replace
from functools import partial

from verifiers import Task, held_out, tagged_reward

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NUMBER = r"\s*(-?[0-9]{1,9})\s*"


def calculate(call):
    """Return the sum, difference or product of two whole numbers of at most 9 digits, as text:
    "47*83" -> "3901". Return "error" for anything else."""
    found = re.fullmatch(f"{NUMBER}([-+*]){NUMBER}", call)
    if not found:
        return "error"
    return str(OPERATIONS[found[2]](int(found[1]), int(found[3])))


class Calculator:
    """Answers the first `calls` calls of a completion; after that its replies are empty."""

    def __init__(self, problem, calls=4):
        self.left = calls

    def reply(self, text):
        _, _, call = text.rpartition("<tool>")  # the call may begin in the prompt
        call, end, _ = call.partition("</tool>")
        if not end:
            return None  # a turn without a call is the last one
        self.left -= 1
        return calculate(call) if self.left >= 0 else ""


def products(train_size=5000, test_size=500, seed=0):
    """Return a task that needs a calculator: 47*83-12= has the answer 3889. The factors are from
    32 to 99, the number added or subtracted has two digits, and product and answer have four. A
    tiny model can copy such numbers, but cannot multiply them."""
    rng = random.Random(seed)
    sides = {True: {}, False: {}}  # True: held out, False: for training
    sizes = {True: test_size, False: train_size}
    while any(len(sides[side]) < sizes[side] for side in sides):
        a = rng.randint(32, 99)
        b = rng.randint(32, 99)
        c = rng.choice([-1, 1]) * rng.randint(10, 99)
        problem = {"problem": f"{a}*{b}{c:+d}=", "answer": str(a * b + c)}
        side = held_out(problem)
        if len(problem["answer"]) == 4 and len(sides[side]) < sizes[side]:
            sides[side][problem["problem"]] = problem
    train = [*sides[False].values()]
    test = [*sides[True].values()]
    return Task("products", train, test, "{problem}", tagged_reward, ("</tool>",), Calculator)


def silent():
    """The control: every call goes unanswered."""
    return replace(products(), turns=partial(Calculator, calls=0))
