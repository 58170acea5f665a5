"""ttrl.py - the group's most frequent answer is taken for the right one.

Source:  TTRL (arXiv 2504.16084), eq. 2 to 4: test-time reinforcement learning.
Formula: y* = the answer that most of the G completions of a prompt give; R_i = 1 if y_i = y*,
         else 0; A_i = (R_i - mean) / std.
Changes: the advantages. No truth is needed and none is looked at; the task's own rewards, logged
         as ever, show what the majority is worth. Of two answers given as often the first counts.
         What was cut off has no answer, nor has an empty box; a group without one has no label.
Missing: equality by value: answers count as the same text; more samples for the vote than for the
         update; the paper trains on the test problems themselves: --task with a task whose
         problems are the same.
"""

from collections import Counter

import torch

from rlvr import GRPO, group_advantages
from verifiers import extract_boxed_answer


def majority_rewards(answers):
    """The answers of a group, None or "" for no answer -> a reward for each."""
    given = Counter(answer for answer in answers if answer)
    label = max(given, key=given.get, default=None)  # of several, the first
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
