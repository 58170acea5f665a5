"""verl 0.9.1: its own functions, run on small tensors, with torch 2.13.0.

    pip install verl==0.9.1

Those of verl.trainer.ppo.core_algos, verl.utils.torch_functional and verl.utils.reward_score, with their defaults.
"""

from types import SimpleNamespace

import numpy as np
import torch
from checkout import gradient_of
from verl.trainer.ppo import core_algos
from verl.utils import torch_functional
from verl.utils.reward_score import math_reward


def advantages(rewards):
    P, G = rewards.shape
    ones = torch.ones(P * G, 1)
    index = np.repeat(np.arange(P), G)
    scores = rewards.reshape(-1, 1).clone()
    return core_algos.compute_grpo_outcome_advantage(scores, ones, index)[0].view(P, G)


def loss(logp, old_logp, advantages, mask, clip, batch_mask=None):
    whole = mask if batch_mask is None else batch_mask
    info = {"dp_size": 1, "batch_num_tokens": whole.sum(), "global_batch_size": len(whole)}
    settings = {"clip_ratio": 0.2, "clip_ratio_low": clip[0], "clip_ratio_high": clip[1]}
    config = SimpleNamespace(get=lambda name, default: default, global_batch_info=info, **settings)
    wide = advantages[:, None] * torch.ones_like(mask)
    arguments = (old_logp, logp, wide, mask)
    return core_algos.compute_policy_loss_vanilla(*arguments, config=config)[0]


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    """get_response_mask sees the completions, padded on the right."""
    mask = torch.zeros(len(ids), ids.size(1) - 1)
    for row, start in enumerate(prompt_lengths.tolist()):
        found = torch_functional.get_response_mask(ids[row : row + 1, start:], stop_id)
        mask[row, start - 1 :] = found[0]
    return mask


def logprobs(logits, ids, temperature):
    """verl's actors divide the logits by the temperature before this call."""
    if logits.dtype != torch.float32:
        raise NotImplementedError("on a GPU, with bf16, another kernel is called: not run")
    scaled = logits[:, :-1] / temperature
    return torch_functional.logprobs_from_logits(scaled, ids[:, 1:])


def kl(logp, ref_logp):
    """low_var_kl is the default of kl_loss_type."""
    return core_algos.kl_penalty(logp, ref_logp, "low_var_kl")


gradient_of_kl = gradient_of(kl)


def reward(text, truth, finished):
    if not finished:
        raise NotImplementedError("compute_score sees the text only")
    return math_reward.compute_score(text, truth)


def extract(text):
    box = math_reward.last_boxed_only_string(text)
    return None if box is None else math_reward.remove_boxed(box)


def grade(answer, truth):
    return math_reward.is_equiv(answer, truth)
