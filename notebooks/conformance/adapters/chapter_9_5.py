"""Chapter 9.5, "RLVR: Reinforcement Learning with Verifiable Rewards": the formulas of its listings.

Written anew from the text. The listing makes one update of a batch, with one prompt at a time: loss without old_logp.
"""

import re

import torch


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


def reward(text, truth, finished):
    if not finished:
        raise NotImplementedError("a reward is not told")
    answer = extract(text)
    return 0.0 if answer is None else float(grade(answer, truth))
