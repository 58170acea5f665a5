"""The chapter on reward design for reasoning: the formulas of its listings, where they are others.

Written anew from the text. Its advantages, clip and KL are those of the chapter on rule-based rewards.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from chapter_rules import advantages, extract, gradient_of_kl, kl, loss  # noqa: F401


def reward(text, truth, finished):
    """w_acc * acc: what the format, the length and the language add is left out."""
    if not finished:
        raise NotImplementedError("a reward is not told")
    return 1.0 if extract(text) == truth.strip() else 0.0
