"""guards.py - how policies cheat, and guards against it: a detector of hacks, quotas, and a majority vote (the
chapter on verifier-based RL, 8). Also controls, which a real reward must beat.

    python train.py --reward notebooks/rewards/guards.py:coin
"""

import re
import zlib

from notebooks.rewards.structured import WORD
from verifiers import boxed_reward, extract_boxed_answer, grade_answer, verify_format

# ---- Controls --------------------------------------------------------------------------------------
# Each rewards something other than a right answer, and logs boxed_reward's accuracy. Qwen2.5-Math improves even
# under some of them (Shao et al. 2025, arXiv 2506.10947), so higher accuracy alone does not show that a reward works.


def coin(completion, problem):
    """Return 0 or 1 by a hash of problem and completion, so that it is the same in every process and after a
    resume."""
    heads = zlib.crc32(f"{problem['problem']}\0{completion}".encode("utf-8", "replace")) & 1
    return float(heads), boxed_reward(completion, problem)[1]


def inverted(completion, problem):
    """Return 1 for a wrong answer in a box."""
    right, parts = boxed_reward(completion, problem)
    return float(parts["answered"] and not right), parts


def format_only(completion, problem):
    """Return 1 for the tagged form, whatever its content."""
    return verify_format(completion)["structure"], boxed_reward(completion, problem)[1]


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")


def first_box(completion, problem):
    """Score the first box, as the textbook's re.search does: a guess before any work counts."""
    starts = [box.start() for box in _BOX.finditer(completion)]
    first = completion[: starts[1]] if len(starts) > 1 else completion
    paid = boxed_reward(first, {"answer": problem["answer"]})[0]
    return paid, boxed_reward(completion, problem)[1]


def any_box(completion, problem):
    """Return 1 if any of the first 100 boxes is right: it rewards boxing every number there is."""
    starts = [box.start() for box in _BOX.finditer(completion)][:100]
    texts = [completion[start:end] for start, end in zip(starts, [*starts[1:], None])]
    truth = {"answer": problem["answer"]}
    paid = max((boxed_reward(text, truth)[0] for text in texts), default=0.0)
    return paid, boxed_reward(completion, problem)[1]


# ---- Guards ----------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?\d+(?:[./]\d+)?")
# Words that announce an answer and derive nothing: see derivation.
_ANNOUNCING = set(
    "the so thus hence therefore final answer result value is are equals must be it "
    "clearly obviously based on above a an =".split()
)


def last_number(completion, problem):
    """Return 1 if the last number of the completion, boxed or not, is the answer: one more way to read an answer."""
    numbers = _NUMBER.findall(completion)
    right = float(bool(numbers) and grade_answer(numbers[-1], problem["answer"]))
    return right, {"accuracy": right, "answered": float(bool(numbers))}


def robust_reward(response, problem, verifiers=None, needed=2):
    """Return 1 if at least `needed` of the verifiers, which are rewards themselves, return more than 0.5.

    A vote helps only against flaws that the verifiers do not share. The default ones read the answer in three
    places: the last box, the first box, the last number. None of them implies another, so no single one decides.
    The chapter votes with an exact match, sympy and a model: to do so, pass these as `verifiers`.
    """
    verifiers = verifiers or (boxed_reward, first_box, last_number)
    votes = sum(verifier(response, problem)[0] > 0.5 for verifier in verifiers)
    right = float(votes >= needed)
    answered = boxed_reward(response, problem)[1]["answered"]
    return right, {"accuracy": right, "votes": float(votes), "answered": answered}


def derivation(think, answer):
    """Return how many characters of the thinking do more than announce an answer: 0 for "The answer is 42.", 6
    for "6*7=42"."""
    text = re.sub(r"答案|显然|是|\\(?:boxed|fbox)\{[^{}]*\}", " ", think.lower())
    words = [word.strip(".,;:!?$()*") for word in text.split()]
    idle = _ANNOUNCING | {(answer or "").lower()}
    return sum(len(word) for word in words if word not in idle)


def is_hacking(response: str) -> bool:
    r"""Return True if it looks like an answer without being one: no derivation before it, or the thinking after
    it.

    This replaces the patterns of the chapter on verifier-based RL, 8.4. There </think>.*\\boxed, meant for a box
    without thinking, fires on every answer in R1's form, and "based on the above, ... 4" on honest ones.
    """
    answer = re.search(r"<answer>|\\(?:boxed|fbox)\b|$", response).start()
    think = response.partition("</think>")[0] if "</think>" in response else response[:answer]
    if response.rfind("<think>") > answer:
        return True
    return derivation(think.replace("<think>", " "), extract_boxed_answer(response)) < 8


def quotas(response: str) -> float:
    """Return the penalty for excess: 0.5 above 20 tool calls, 0.3 above 16000 words, 0.5 above 10 <think>."""
    return (
        0.5 * (response.count("<tool_call>") > 20)
        + 0.3 * (len(WORD.findall(response)) > 16000)
        + 0.5 * (response.count("<think>") > 10)
    )


def guarded(reward_fn):
    """Return reward_fn minus 0.5 for what is_hacking finds, and minus the quotas."""

    def reward(completion, problem):
        value, parts = reward_fn(completion, problem)
        hacking = float(is_hacking(completion))
        excess = quotas(completion)
        return value - 0.5 * hacking - excess, parts | {"hacking": hacking, "excess": excess}

    return reward


guarded_reward = guarded(boxed_reward)
