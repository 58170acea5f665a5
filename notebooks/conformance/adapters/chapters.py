"""The formulas of the chapters' listings, rewritten from the text, a class for each chapter: check.py
adapters/chapters.py:Rules."""

import re
import statistics
from fractions import Fraction

import torch
from board import gradient_of, needs


def content_of(pattern, text):
    found = re.search(pattern, text)
    return found.group(1).strip() if found else None


class Chapter9_5:
    """Chapter 9.5: "RLVR: Reinforcement Learning with Verifiable Rewards".

    The listing makes one update per batch, with one prompt at a time, so its loss has no old_logp.
    """

    def advantages(rewards):
        centred = rewards - rewards.mean(1, keepdim=True)
        result = centred / (rewards.std(1, keepdim=True) + 1e-8)
        # The listing skips a step whose advantages are all 0; for a group, zeros stand for that.
        return torch.where((result.abs() <= 1e-8).all(1, keepdim=True), 0.0, result)

    def loss(logp, old_logp, advantages, mask, clip):
        on_policy = torch.equal(logp, old_logp) and clip[0] == clip[1]
        needs(on_policy, "one update of a batch, so nothing clips")
        return -(advantages * (logp * mask).sum(1)).mean()

    def logprobs(logits, ids, temperature):
        """The listing samples at 0.8 and takes log-probs at 1."""
        logp = logits.float().log_softmax(-1)[:, :-1]
        return logp.gather(2, ids[:, 1:, None]).squeeze(2)

    def extract(text):
        return content_of(r"\\boxed\{([^}]*)\}", text)

    def grade(answer, truth):
        texts = [text.strip().replace(" ", "") for text in (answer, truth)]
        if texts[0] == texts[1]:
            return True
        try:
            return abs(float(texts[0]) - float(texts[1])) < 1e-6
        except ValueError:
            return False

    def reward(text, truth, finished):
        needs(finished, "a reward sees the text only")
        answer = Chapter9_5.extract(text)
        return 0.0 if answer is None else float(Chapter9_5.grade(answer, truth))


class Rules:
    """Chapter 14, rule-based rewards: the formulas of its two listings.

    Its rewards ask for tags and add a weight for the format; reward leaves out both. advantages is group_advantages of
    the first listing; the second listing divides by G - 1.
    """

    def advantages(rewards):
        rows = []
        for group in rewards.tolist():
            mean = statistics.mean(group)
            std = statistics.pstdev(group) or 1e-6
            alone = len(group) < 2
            rows.append([0.0 if alone else (reward - mean) / std for reward in group])
        return torch.tensor(rows)

    def loss(logp, old_logp, advantages, mask, clip):
        """Return the mean over all positions, because the listing has no mask."""
        needs(clip[0] == clip[1], "one clip for both sides")
        needs(mask.all(), "no mask")
        ratio = (logp - old_logp).exp()
        A = advantages[:, None]
        return -torch.min(ratio * A, ratio.clamp(1 - clip[0], 1 + clip[1]) * A).mean()

    def kl(logp, ref_logp):
        return logp - ref_logp

    gradient_of_kl = gradient_of(kl)  # the term is a part of the loss

    def extract(text):
        return content_of(r"\\boxed\{([^}]+)\}", text)

    def grade(answer, truth):
        return answer == truth.strip()

    def reward(text, truth, finished):
        needs(finished, "a reward sees the text only")
        return 1.0 if Rules.extract(text) == truth.strip() else 0.0


class Reasoning(Rules):
    """Chapter 15, reward design for reasoning: it has the advantages, clip and KL of the chapter on rules. Of its
    reward, only w_acc * acc is used, without the terms for format, length and language."""

    grade = None  # it has none of its own


class AutoRule:
    """The chapter on AutoRule: its section 3.3, which has only the advantage and the clipped objective.

    The objective is written for whole completions, so loss takes rows of one token.
    """

    def loss(logp, old_logp, advantages, mask, clip):
        whole = logp.size(1) == 1 and clip[0] == clip[1]
        needs(whole, "the ratio is that of a whole completion, with one epsilon")
        return Rules.loss(logp, old_logp, advantages, mask, clip)


class Verifiers:
    """The Chinese chapter on verifiers: the formulas of its section 3.1.

    The listing passes answers to sympy.sympify, which evaluates them as Python. Here only integers and decimals are
    read as numbers. Everything else is compared as text, as in the listing if sympify fails.
    """

    extract = Rules.extract

    def grade(answer, truth):
        numbers = [re.fullmatch(r"-?\d+(\.\d+)?(/\d+)?", text) for text in (answer, truth)]
        if all(numbers) and "/" not in answer + truth:
            return Fraction(answer) == Fraction(truth)
        return answer.strip() == truth.strip()

    def reward(text, truth, finished):
        needs(finished, "a reward sees the text only")
        answer = Rules.extract(text)
        return 0.0 if answer is None else float(Verifiers.grade(answer, truth))
