"""solution.py - one way to write the functions of mine.py. Write yours first.

cat notebooks/build/mine.py notebooks/build/solution.py > solved.py     the later definitions count
python notebooks/conformance/check.py solved.py --mine
"""

import torch


def extract_boxed_answer(text):
    before, box, rest = text.rpartition("\\boxed{")
    depth = 1  # braces that are open
    for end, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if box and depth == 0:
            return rest[:end].strip()
    return None


def advantages(rewards):
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=0, keepdim=True)
    equal = rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)
    return ((rewards - mean) / (std + 1e-6)).masked_fill(equal, 0.0)


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    columns = torch.arange(ids.size(1))
    completion = columns >= prompt_lengths[:, None]  # (B, T)
    stops = (ids == stop_id) & completion
    stops_before = stops.cumsum(1) - stops.long()
    return (completion & (stops_before == 0)).float()[:, 1:]


def logprobs(logits, ids, temperature):
    logp = (logits.float() / temperature).log_softmax(-1)[:, :-1]  # (B, T-1, V)
    return logp.gather(2, ids[:, 1:, None]).squeeze(2)


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    A = advantages[:, None]
    ratio = (logp - old_logp).exp()
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    gain = torch.minimum(ratio * A, clipped * A)
    return -(gain * mask).sum() / batch_mask.sum().clamp(min=1)


def kl(logp, ref_logp):
    d = logp - ref_logp
    return torch.expm1(-d) + d
