"""natolambert/rlhf-book a66b0bf (2026-08-21): loss.py, and utils.py and rollout.py of code/policy_gradients.

Its functions out of their files (the package needs reasoning_gym and more), with the defaults of grpo.yaml: kl3, sampled
at 0.6 with top-p and top-k. For the mask _generate_experience runs whole, with a model that generates the given ids.
"""

import random

import torch
from checkout import Stub, functions, gradient_of, one_width

CODE = "rlhf-book/code/policy_gradients/"
NAMES = "approx_kl1", "approx_kl2", "approx_kl3", "get_approx_kl", "masked_mean", "GRPOLoss"
losses = functions(CODE + "loss.py", *NAMES)
utils = functions(CODE + "utils.py", "compute_standardized_advantages", "compute_log_probs")


def advantages(rewards):
    return torch.stack([utils.compute_standardized_advantages(group) for group in rewards])


def loss(logp, old_logp, advantages, mask, clip):
    given = Stub(log_probs_old=old_logp, advantages=advantages[:, None], action_mask=mask)
    return losses.GRPOLoss(*clip, 0.0, "kl3")(logp, given)


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    start = one_width(prompt_lengths)
    stopped = (ids[:, start:-1] == stop_id).cumsum(1) > 0
    if (ids[:, start + 1 :][stopped] != pad_id).any():
        raise NotImplementedError("generate writes padding behind a stop")
    names = "compute_rewards apply_reward_kl compute_advantages compute_log_probs compute_values"
    given = {**dict.fromkeys(names.split(), Stub()), "random": random, "Experience": Stub}
    given["SYSTEM_PROMPTS"] = Stub(DeepSeekZero="")
    tokenizer = Stub(input_ids=ids[:, :start], pad_token_id=pad_id)
    tokenizer |= {"apply_chat_template": Stub(), "batch_decode": lambda *_, **__: [""]}
    me = Stub(cfg=Stub(num_rollouts=1), tokenizer=tokenizer, generation_config=0, dataset=0)
    me |= {"model": Stub(device="cpu", generate=lambda **_: ids), "ref_model": 0, "val_model": 0}
    me["cpu_device"] = "cpu"
    run = functions(CODE + "rollout.py", "_generate_experience", **given)._generate_experience
    return run(me, Stub(question="", answer=""))["action_mask"].float()


def logprobs(logits, ids, temperature, top_p=1.0, top_k=0):
    return utils.compute_log_probs(Stub(logits=logits, device="cpu"), ids, ids)


def padded_logprobs(model, ids, attention_mask):
    return utils.compute_log_probs(model, ids, attention_mask)


def kl(logp, ref_logp):
    return losses.get_approx_kl("kl3", logp, ref_logp, None)


gradient_of_kl = gradient_of(kl)
