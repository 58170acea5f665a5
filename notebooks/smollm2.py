"""smollm2.py - tasks for a real, small language model, asked as a base model: solved lines, then the next."""
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from verifiers import Task, boxed_reward  # noqa: E402

LINES = "7 + 6 = \\boxed{{13}}\n12 + 5 = \\boxed{{17}}\n4 + 4 = \\boxed{{8}}\n{problem}"


def sums():
    """The 361 sums of two numbers from 2 to 20, in a random order; the last 72 are held out."""
    problems = [{"problem": f"{a} + {b} =", "answer": str(a + b)} for a in range(2, 21) for b in range(2, 21)]
    random.Random("sums").shuffle(problems)
    return Task("sums", problems[:-72], problems[-72:], LINES, boxed_reward, "two numbers from 2 to 20", stops=("\n",))
