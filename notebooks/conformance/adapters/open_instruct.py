"""allenai/open-instruct e6c3044 (2026-08-20): compute_grpo_loss and forward_for_logprobs of grpo_utils.py, estimate_kl,
log_softmax_and_gather and masked_mean.

Out of their files (the package needs vllm and deepspeed), with the defaults dapo, token and estimator 2. The advantages
are code of an actor, and no function.
"""

import torch
from checkout import Stub, functions, gradient_of

SOURCE = "open-instruct/open_instruct/"
models = functions(SOURCE + "model_utils.py", "estimate_kl", "log_softmax_and_gather")
GIVEN = {"model_utils": models, "GRPOLossType": Stub(dapo="dapo")}
grpo = functions(SOURCE + "grpo_utils.py", "compute_grpo_loss", "forward_for_logprobs", **GIVEN)
masked_mean = functions(SOURCE + "rl_utils.py", "masked_mean").masked_mean


def terms(logp, old_logp, ref_logp, advantages, clip):
    config = Stub(loss_fn="dapo", clip_lower=clip[0], clip_higher=clip[1], kl_estimator=2)
    arguments = logp, (logp - old_logp).exp(), advantages[:, None], ref_logp, config
    return grpo.compute_grpo_loss(*arguments, torch.ones_like(logp))


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    values = terms(logp, old_logp, None, advantages, clip)[0]
    return masked_mean(values, mask, None, batch_mask.sum())


def logprobs(logits, ids, temperature):
    return grpo.forward_for_logprobs(Stub(logits=logits), ids, None, None, -1, temperature)[0]


def kl(logp, ref_logp):
    return terms(logp, logp.detach(), ref_logp, torch.zeros(len(logp)), (0.2, 0.2))[2]


gradient_of_kl = gradient_of(kl)
