"""ttrl.py - takes the group's most frequent answer for the right one.

Source:  TTRL (arXiv 2504.16084), eq. 2 to 4: test-time reinforcement learning.
Formula: y* = the most frequent answer of the G completions of a prompt; R_i = 1 if y_i = y*, else
         0; A_i = (R_i - mean) / std.
Changes: the advantages. No truth is needed or read. The task's own rewards, which are still logged,
         show how good the majority is. If two answers are equally frequent, the first counts. A
         completion that was cut off, or has an empty box, has no answer. A group without an answer
         has no label.
Missing: equality by value (answers are equal only if their texts are); more samples for the vote
         than for the update. The paper trains on the test problems themselves: for that, use a
         --task whose training and test problems are the same.
"""

from collections import Counter

import torch

from rlvr import GRPO, group_advantages
from verifiers import extract_boxed_answer


def majority_rewards(answers):
    """Return a reward for each answer of a group. None or "" means no answer."""
    given = Counter(answer for answer in answers if answer)
    label = max(given, key=given.get, default=None)  # the first, if several are equally frequent
    return [float(bool(answer) and answer == label) for answer in answers]


class TTRL(GRPO):
    def advantages(self, batch):
        G = batch.rollouts.num_samples
        answers = [
            extract_boxed_answer(text) if finished else None
            for text, finished in zip(batch.texts, batch.rollouts.finished)
        ]
        groups = [answers[i : i + G] for i in range(0, len(answers), G)]
        rewards = torch.tensor([majority_rewards(group) for group in groups])
        return group_advantages(rewards, self.settings.scale)
