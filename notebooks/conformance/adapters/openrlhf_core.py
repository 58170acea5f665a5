"""openrlhf 0.11.2: its own functions, run on small tensors, with torch 2.13.0.

    pip install --no-deps openrlhf==0.11.2

Those of openrlhf.models.loss and openrlhf.models.utils, with their defaults. The package itself
imports deepspeed, ray and more; these two files need of it a name only, so they are loaded alone.
What computes the advantages is a method of a trainer and is not called here.
"""

import importlib
import sys
from importlib.metadata import distribution
from types import ModuleType
from unittest import mock

import torch
from checkout import gradient_of


folder = distribution("openrlhf").locate_file("openrlhf")
fakes = {name: ModuleType(name) for name in ("deepspeed", "openrlhf", "openrlhf.models")}
fakes["openrlhf"].__path__ = [str(folder)]  # in place of what its __init__ would import
fakes["openrlhf.models"].__path__ = [str(folder / "models")]
with mock.patch.dict(sys.modules, fakes):
    losses = importlib.import_module("openrlhf.models.loss")
    utils = importlib.import_module("openrlhf.models.utils")


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    policy = losses.PolicyLoss(clip_eps_low=clip[0], clip_eps_high=clip[1])
    wide = advantages[:, None].expand_as(mask)
    return policy(logp, old_logp, wide, mask, batch_num_tokens=float(batch_mask.sum()))[0]


def correction(old_logp, sampled_logp, mask, level, how, low, high):
    """With advantages of 1, on policy, a token's gradient is minus its weight."""
    if how == "truncate" and level == "sequence":
        raise NotImplementedError("refused: clip requires the level token")
    mode = "clip" if how == "truncate" else how
    options = {"is_correction_level": level.removesuffix("uence"), "is_correction_mode": mode}
    policy = losses.PolicyLoss(**options, is_correction_threshold=[low, high])
    logp = old_logp.clone().requires_grad_()
    total = policy(logp, old_logp, torch.ones_like(mask), mask, sampled_logp, batch_num_tokens=1.0)[
        0
    ]
    return -torch.autograd.grad(total, logp)[0]


def logprobs(logits, ids, temperature):
    """log_probs_from_logits divides the logits in place."""
    if logits.dtype != torch.float32:
        raise NotImplementedError("Actor.forward makes them fp32 before this call (actor.py:267)")
    return utils.log_probs_from_logits(logits[:, :-1].clone(), ids[:, 1:], temperature)


def kl(logp, ref_logp):
    return utils.compute_approx_kl(logp, ref_logp, kl_estimator="k3")


gradient_of_kl = gradient_of(kl)
