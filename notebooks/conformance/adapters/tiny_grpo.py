"""open-thought/tiny-grpo eafedd7 (2025-01-23): loss.py, and rollout, group_advantages and log-probs of train.py.

Its functions out of their files (train.py needs a GPU's packages); rollout runs whole, with a model that generates the
given ids. It samples at temperature 1 and pads with the stop token.
"""

import re

import torch
from checkout import Stub, functions, gradient_of, one_width

losses = functions("tiny-grpo/loss.py", "approx_kl_divergence", "masked_mean", "GRPOLoss")
NAMES = "group_advantages", "sequence_log_probs_from_logits", "sequences_log_probs", "rollout"
train = functions("tiny-grpo/train.py", *NAMES, re=re, system_prompt="", GenerationConfig=Stub)


def advantages(rewards):
    return torch.stack([train.group_advantages(group) for group in rewards])


def loss(logp, old_logp, advantages, mask, clip):
    if clip[0] != clip[1]:
        raise NotImplementedError("one epsilon")
    given = Stub(action_log_probs=old_logp, log_probs_ref=old_logp, action_mask=mask)
    given["advantages"] = advantages[:, None]
    return losses.GRPOLoss(clip[0], 0.0)(logp, given)[0]


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    start = one_width(prompt_lengths)
    if pad_id != stop_id:
        raise NotImplementedError("rollout pads with the stop token")
    prompt = dict.fromkeys(("input_ids", "attention_mask"), ids[:1, :start])
    tokenizer = Stub(prompt, eos_token_id=stop_id)
    tokenizer |= {"apply_chat_template": Stub(), "batch_decode": lambda *_, **__: [""] * len(ids)}
    model = Stub(eval=Stub(), generate=lambda **_: ids)
    return train.rollout(model, tokenizer, 0, 0, len(ids))[2].float()


def logprobs(logits, ids, temperature):
    if temperature != 1:
        raise NotImplementedError("sampled at 1")
    model = Stub(forward=Stub(logits=logits))
    return train.sequences_log_probs(model, ids, torch.ones_like(ids))


def padded_logprobs(model, ids, attention_mask):
    return train.sequences_log_probs(model, ids, attention_mask)


def kl(logp, ref_logp):
    return losses.approx_kl_divergence(logp, ref_logp, None)


gradient_of_kl = gradient_of(kl)
