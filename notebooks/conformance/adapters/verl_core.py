"""verl 0.9.1: its own functions, run on small tensors, with torch 2.13.0.

    pip install verl==0.9.1

Those of verl.trainer.ppo.core_algos and rollout_corr_helper, verl.utils.torch_functional, model and reward_score, with
their defaults.
"""

import numpy as np
import torch
from checkout import Stub, gradient_of, row_by_row
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.utils import torch_functional
from verl.utils.model import compute_position_id_with_mask
from verl.utils.reward_score import math_reward


def advantages(rewards):
    P, G = rewards.shape
    ones = torch.ones(P * G, 1)
    index = np.repeat(np.arange(P), G)
    scores = rewards.reshape(-1, 1).clone()
    return core_algos.compute_grpo_outcome_advantage(scores, ones, index)[0].view(P, G)


def loss(logp, old_logp, advantages, mask, clip, batch_mask, name="vanilla"):
    info = {"dp_size": 1, "batch_num_tokens": batch_mask.sum(), "global_batch_size": len(mask)}
    config = Stub(clip_ratio=0.2, clip_ratio_low=clip[0], clip_ratio_high=clip[1])
    config["global_batch_info"] = info
    wide = advantages[:, None].expand_as(mask)
    return core_algos.get_policy_loss_fn(name)(old_logp, logp, wide, mask, config=config)[0]


def trust_region(logp, sampled_logp, advantages, mask, delta):
    return loss(logp, sampled_logp, advantages, mask, (delta, delta), mask, "dppo_tv")


def correction(old_logp, sampled_logp, mask, level, how, low, high):
    """The threshold is one number to truncate, and low_high for IcePop, which leaves out."""
    bounds = f"{low}_{high}" if how == "mask" else high
    what = old_logp - sampled_logp, mask, level, bounds
    return rollout_corr_helper.compute_rollout_correction_weights(*what)[0]


@row_by_row
def completion_mask(prompt, completion, stop_id, pad_id):
    return torch_functional.get_response_mask(completion[None], stop_id)[0]


def logprobs(logits, ids, temperature):
    """verl's actors divide the logits by the temperature before this call."""
    if logits.dtype != torch.float32:
        raise NotImplementedError("on a GPU, with bf16, another kernel is called: not run")
    scaled = logits[:, :-1] / temperature
    return torch_functional.logprobs_from_logits(scaled, ids[:, 1:])


def padded_logprobs(model, ids, attention_mask):
    places = compute_position_id_with_mask(attention_mask)
    return logprobs(model(ids, attention_mask, places).logits, ids, 1.0)


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
