"""The five chapters: the formulas of their listings, written anew from the text.

    python notebooks/conformance/check.py notebooks/conformance/adapters/chapters.py:chapter_9_5

Each class is an adapter. It is used as it is, without an instance, so its functions take no self.
"""

import re
import statistics
from fractions import Fraction

import torch


def paid(extract, grade):
    """A reward of 0 or 1. The listings do not say what becomes of a completion that was cut off."""

    def reward(text, truth, finished):
        if not finished:
            raise NotImplementedError("a reward is not told")
        answer = extract(text)
        return 0.0 if answer is None else float(grade(answer, truth))

    return reward


def first_box(text):
    """Up to the first brace that closes."""
    found = re.search(r"\\boxed\{([^}]+)\}", text)
    return found.group(1).strip() if found else None


class chapter_9_5:
    """RLVR: Reinforcement Learning with Verifiable Rewards. One update of a batch, one prompt at a time: loss without
    old_logp."""

    def advantages(rewards):
        centred = rewards - rewards.mean(1, keepdim=True)
        result = centred / (rewards.std(1, keepdim=True) + 1e-8)
        # A step whose advantages are all 0 is skipped; only so it can be said for one group.
        return torch.where((result.abs() <= 1e-8).all(1, keepdim=True), 0.0, result)

    def loss(logp, old_logp, advantages, mask, clip):
        if not torch.equal(logp, old_logp) or clip[0] != clip[1]:
            raise NotImplementedError("one update of a batch, so nothing clips")
        return -(advantages * (logp * mask).sum(1)).mean()

    def logprobs(logits, ids, temperature):
        """The listing samples at 0.8 and takes log-probs at 1."""
        logp = logits.float().log_softmax(-1)[:, :-1]
        return logp.gather(2, ids[:, 1:, None]).squeeze(2)

    def extract(text):
        found = re.search(r"\\boxed\{([^}]*)\}", text)
        return found.group(1).strip() if found else None

    def grade(answer, truth):
        texts = [text.strip().replace(" ", "") for text in (answer, truth)]
        if texts[0] == texts[1]:
            return True
        try:
            return abs(float(texts[0]) - float(texts[1])) < 1e-6
        except ValueError:
            return False

    reward = paid(extract, grade)


class chapter_rules:
    """Rule-based rewards, two listings. Their rewards ask for tags, so each text is put into them, and the weight of the
    format is taken away again. group_advantages is that of the first listing; the second one divides by G - 1."""

    def advantages(rewards):
        rows = []
        for group in rewards.tolist():
            mean = statistics.mean(group)
            std = statistics.pstdev(group) or 1e-6
            alone = len(group) < 2
            rows.append([0.0 if alone else (reward - mean) / std for reward in group])
        return torch.tensor(rows)

    def loss(logp, old_logp, advantages, mask, clip):
        """The mean over all positions: the listing has no mask."""
        if clip[0] != clip[1]:
            raise NotImplementedError("one clip for both sides")
        if not mask.all():
            raise NotImplementedError("no mask")
        ratio = (logp - old_logp).exp()
        A = advantages[:, None]
        return -torch.min(ratio * A, ratio.clamp(1 - clip[0], 1 + clip[1]) * A).mean()

    def kl(logp, ref_logp):
        return logp - ref_logp

    def gradient_of_kl(logp, ref_logp):
        """The term is a part of the loss."""
        logp = logp.requires_grad_()
        return torch.autograd.grad((logp - ref_logp).sum(), logp)[0]

    def grade(answer, truth):
        return answer == truth.strip()

    extract = first_box
    reward = paid(first_box, grade)


class chapter_reasoning(chapter_rules):
    """Reward design for reasoning: w_acc * acc; what the format, the length and the language add is left out. Advantages,
    clip and KL are those of the chapter on rule-based rewards."""

    grade = None  # the listing compares inside of its reward


class chapter_autorule:
    """AutoRule: its section 3.3, which has the advantage and the clipped objective only. The objective is written for whole
    completions, so loss takes rows of one token."""

    def loss(logp, old_logp, advantages, mask, clip):
        if logp.size(1) > 1 or clip[0] != clip[1]:
            raise NotImplementedError("the ratio is that of a whole completion, with one epsilon")
        ratio = (logp - old_logp).exp().squeeze(1)
        clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
        return -torch.min(ratio * advantages, clipped * advantages).mean()


class chapter_verifiers:
    """The Chinese chapter on verifiers: its section 3.1. The listing hands answers to sympy.sympify, which evaluates them as
    Python: here only what consists of digits, a point and a fraction bar is read so, and everything else is compared as
    text, as the listing does where sympify fails."""

    def grade(answer, truth):
        numbers = [re.fullmatch(r"-?\d+(\.\d+)?(/\d+)?", text) for text in (answer, truth)]
        if all(numbers) and "/" not in answer + truth:
            return Fraction(answer) == Fraction(truth)
        return answer.strip() == truth.strip()

    extract = first_box
    reward = paid(first_box, grade)
