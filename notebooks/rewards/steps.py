"""steps.py - Are the steps of a calculation right? The equations of a completion, one by one (chapter 15).

python train.py --reward notebooks/rewards/steps.py:steps_reward
"""

import re

from verifiers import explain_grade, split_tags, tagged_reward

MAX_STEPS = 60  # equations read in one completion
_FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt pi".split()
)
_KNOWN = {*_FUNCTIONS, *"frac dfrac tfrac cdot times div left right".split()}
_BREAK = re.compile(r"[;\n≈→。；，：]|\\\\|=>|->|[.,:](?=\s|$)")
_PROSE = re.compile(
    rf"(?<![A-Za-z\\])(?!(?:{'|'.join(_FUNCTIONS)})(?![A-Za-z]))[A-Za-z]{{2,}}"
    r"|[<>!]=|==|[^\x00-\x7f×÷−·√π²³]+"
)
_SPOKEN = re.compile(
    r"%|\b(?:of|plus|minus|times|over|by|half|twice|double|squared|cubed|mod)\b", re.I
)


def verify_steps(rollout: str) -> dict:
    """frac: the share of the equations in the thinking that hold, a process reward in code.

    Of 66+3=69;69+2=72 one of two holds; a chain a=b=c is two. Not counted is what has a free variable
    (2x=6) or cannot be read, an equation said before, and 1=1: repeating is no work. Two limits: each
    equation is read alone, so 2x=10+4=14 passes after 2x+4=10; and easy equations dilute a wrong one, so
    keep the weight small. Read are about MAX_STEPS equations of the think block, or of the whole text.
    """
    tags = split_tags(rollout)
    verdicts = {}
    for line in _BREAK.split(tags[0] if tags else rollout):
        if "=" not in line or len(verdicts) >= MAX_STEPS or _SPOKEN.search(line):
            continue
        # \0 is where words were.
        sides = _PROSE.sub("\0", line.replace("&", "")).split("=", MAX_STEPS)
        for pair in map(_beside, sides, sides[1:]):
            if pair not in verdicts:
                verdicts[pair] = _holds(*pair)
    counted = [holds for holds in verdicts.values() if holds is not None]
    return {
        "equations": len(counted),
        "hold": sum(counted),
        "frac": sum(counted) / max(1, len(counted)),
    }


def _beside(left, right):
    """The sides of an equals sign up to the next words: "so 2+3", "5 and" -> "2+3", "5". Nothing of
    cost - 3 = 5 or floor(7/2) = 3, where a word is part of a side."""
    (_, word, left), (right, _, rest) = left.rpartition("\0"), right.partition("\0")
    torn = word and left.strip()[:1] in [*"+-*/^("] or rest.strip()[:1] in [*"+-*/^"]
    return ("", "") if torn else ("".join(left.split()), "".join(right.split()))


def _holds(left, right):
    """True or False for a statement about numbers, None for anything else."""
    words = {*re.findall("[A-Za-z]+", left), *re.findall("[A-Za-z]+", right)}
    if not words <= _KNOWN or max(len(left), len(right)) > 60:
        return None
    (holds, rung, *_), (_, other, *_) = explain_grade(left, right), explain_grade(right, left)
    if rung == "string" or rung == "decimal" and holds:  # 5=5.0: trivial
        return None
    return holds if {rung, other} <= {"decimal", "spelling", "number"} else None


def steps_reward(completion, problem):
    """tagged_reward + 0.05 times the share of equations that hold: little, so that easy ones cannot pay."""
    reward, parts = tagged_reward(completion, problem)
    steps = verify_steps(completion)["frac"] if parts["format"] else 0.0
    return reward + 0.05 * steps, parts | {"steps": steps}


def steps_score(completion, problem):
    """The share of equations that hold, in the tagged form."""
    return verify_steps(completion)["frac"] if split_tags(completion) else 0.0
