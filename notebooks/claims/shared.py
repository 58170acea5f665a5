"""shared.py - methods of claims 1, 2 and 5 that read the prompt of a group once, for SmolLM2.

Its prompt has 45 tokens, its completions have 8: with the layout of methods/shared_prompts.py a
step takes a third of the time. Advantages, loss and gradient are the method's own
(notebooks/tests/test_claims.py).
"""

from pathlib import Path

import verifiers
from rlvr import GRPO

NOTEBOOKS = Path(__file__).resolve().parents[1]


def method(name):
    """A class of notebooks/methods."""
    return verifiers.find_class(f"{NOTEBOOKS}/methods/{name}", GRPO)


Shared = method("shared_prompts.py")


class MaxRL(Shared, method("grpo.py:MaxRL")):
    pass


class Negative(Shared, method("reinforce.py:Negative")):
    pass


class LoRA(Shared, method("lora.py")):
    pass


class Distill(Shared, method("distill.py")):
    pass
