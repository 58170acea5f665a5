"""one_digit.py - a+b modulo 10, a task so small that random weights succeed by luck.

    python train.py --task notebooks/tasks/one_digit.py:one_digit --model runs/nothing

Training and test problems are the same. The task does not test generalisation. It shows that
selection alone can find first the form of an answer and then the answers. MEASURED.md has the run.
"""

from verifiers import Task


def exact_reward(completion, problem):
    """Return 1 if the whole completion is the answer, for a model too small for markup. format:
    1 if it has as many digits as the answer, and nothing else."""
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
