"""A task in one file: a+b modulo 10, so small that luck finds it from random weights.

    python train.py --task notebooks/tasks/one_digit.py:one_digit --model runs/nothing

It is tested on what it trains on: not to generalise, but to see that selection alone can find first the
form of an answer and then the answers. MEASURED.md has the run.
"""

from verifiers import Task


def exact_reward(completion, problem):
    """1 if the whole completion is the answer, for a model too small for markup; format: its digits."""
    text = completion.strip()
    answer = problem["answer"]
    right = float(text == answer)
    form = float(text.isdigit() and len(text) == len(answer))
    return right, {"accuracy": right, "answered": float(text != ""), "format": form}


def one_digit():
    digits = range(10)
    problems = [
        {"problem": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in digits for b in digits
    ]
    return Task("one-digit", problems, problems, "{problem}", exact_reward)
