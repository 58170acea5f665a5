"""controls.py - Controls: what a real reward must beat. Each pays for something else than being right, and logs
boxed_reward's accuracy. Qwen2.5-Math improves even under some of them (Shao et al. 2025, arXiv
2506.10947), so a rise alone shows nothing about a reward.

    python train.py --reward notebooks/rewards/controls.py:coin
"""

import itertools
import re
import zlib

from verifiers import boxed_reward, reward_rlvr, verify_format


# Each pays for something else than being right, and logs boxed_reward's accuracy. Qwen2.5-Math improves even under
# some of them (Shao et al. 2025, arXiv 2506.10947), so a rise alone shows nothing about a reward.
def coin(completion, problem):
    """Heads or tails by a hash, so it falls the same way in every process and after a resume."""
    heads = zlib.crc32(f"{problem['problem']}\0{completion}".encode("utf-8", "replace")) & 1
    return float(heads), boxed_reward(completion, problem)[1]


def inverted(completion, problem):
    """1 for a boxed answer that is wrong."""
    right, parts = boxed_reward(completion, problem)
    return float(parts["answered"] and not right), parts


def format_only(completion, problem):
    """1 for the tagged form, whatever is in it."""
    return verify_format(completion)["structure"], boxed_reward(completion, problem)[1]


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")


def first_box(completion, problem):
    """The textbook's re.search: the first box counts, so a guess before any work is judged."""
    starts = [box.start() for box in itertools.islice(_BOX.finditer(completion), 2)]
    first = completion[: starts[1]] if len(starts) > 1 else completion
    return reward_rlvr(first, problem["answer"]), boxed_reward(completion, problem)[1]


def any_box(completion, problem):
    """Any box that is right counts (of the first 100): pays for boxing every number there is."""
    starts = [box.start() for box in itertools.islice(_BOX.finditer(completion), 100)]
    texts = [completion[start:end] for start, end in itertools.zip_longest(starts, starts[1:])]
    paid = max((reward_rlvr(text, problem["answer"]) for text in texts), default=0.0)
    return paid, boxed_reward(completion, problem)[1]
