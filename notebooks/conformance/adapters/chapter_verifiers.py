"""The Chinese chapter on verifiers: the formulas of its section 3.1.

Written anew from the text. The listing hands answers to sympy.sympify, which evaluates them as Python: here only what
consists of digits, a point and a fraction bar is read so, and everything else is compared as text, as the listing does
where sympify fails.
"""

import re
from fractions import Fraction


def extract(text):
    found = re.search(r"\\boxed\{([^}]+)\}", text)
    return found.group(1).strip() if found else None


def grade(answer, truth):
    numbers = [re.fullmatch(r"-?\d+(\.\d+)?(/\d+)?", text) for text in (answer, truth)]
    if all(numbers) and "/" not in answer + truth:
        return Fraction(answer) == Fraction(truth)
    return answer.strip() == truth.strip()


def reward(text, truth, finished):
    if not finished:
        raise NotImplementedError("a reward is not told")
    answer = extract(text)
    return 0.0 if answer is None else float(grade(answer, truth))
