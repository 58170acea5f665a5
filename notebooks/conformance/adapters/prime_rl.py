"""PrimeIntellect-ai/prime-rl 559b447 (2026-08-21): compute_loss and default_loss_fn of trainer/rl/loss.py, and GRPO's
score_group of orchestrator/algo.

Out of their files (the package needs vllm and more). The loss has a trust region on probabilities and no clip of the
ratio, so loss is called on policy only. Its term log(ratio)^2 has no gradient there, and is left out of trust_region.
"""

import asyncio
import dataclasses
from functools import partial
from typing import Any

import torch
from checkout import Stub, functions

NAMES = "LossInputs", "LossOutputs", "_safe_mean", "compute_importance_ratio_and_mismatch_kl"
GIVEN = {"dataclass": dataclasses.dataclass, "field": dataclasses.field, "Any": Any}
SOURCE = "prime-rl/src/prime_rl/"
NAMES += "default_loss_fn", "compute_loss"
losses = functions(SOURCE + "trainer/rl/loss.py", *NAMES, **GIVEN)


def advantages(rewards):
    found, rows = {}, []
    given = {"iter_trainable_traces": lambda traces: ((None, one) for one in traces)}
    given["assign_advantages"] = lambda trace, value: found.update({trace["row"]: value})
    grpo = functions(SOURCE + "orchestrator/algo/grpo.py", "score_group", **given)
    for group in rewards.tolist():
        traces = [Stub(row=row, reward=reward) for row, reward in enumerate(group)]
        asyncio.run(grpo.score_group(Stub(length_penalty=None), traces))
        rows.append([found[row] for row in range(len(group))])
    return torch.tensor(rows)


def computed(logp, sampled_logp, advantages, mask, delta, kl_tau, batch_mask):
    config = Stub(dppo_mask_high=delta, dppo_mask_low=delta, adv_tau=1.0, kl_tau=kl_tau)
    wide = advantages[:, None].expand_as(mask).unbind()
    rows = [logp.unbind(), sampled_logp.unbind(), None, wide, mask.bool().unbind()]
    run = partial(losses.default_loss_fn, loss_config=config)
    return losses.compute_loss(*rows, None, None, None, run, int(batch_mask.sum()), 1, 1)[0]


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    if not torch.equal(logp, old_logp):
        raise NotImplementedError("a trust region on probabilities, and no clip of the ratio")
    return computed(logp, old_logp, advantages, mask, 0.2, 1e-3, batch_mask)


def trust_region(logp, sampled_logp, advantages, mask, delta):
    return computed(logp, sampled_logp, advantages, mask, delta, 0.0, mask)
