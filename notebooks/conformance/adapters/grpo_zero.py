"""policy-gradient/GRPO-Zero d41bb48 (2025-04-18): rollout, normalize_rewards_per_group and update_policy of grpo.py.

Whole, out of their file, with a model that gives the wanted logits or tokens. It samples at temperature 1, makes one
update of a batch and has no KL.
"""

import gc
import math
from collections import defaultdict

import numpy as np
import torch
from checkout import Stub, functions, row_by_row

GIVEN = {"np": np, "defaultdict": defaultdict, "math": math, "gc": gc, "Episode": Stub}
GIVEN["dataclasses"] = Stub(replace=lambda old, **new: Stub(old, **new))
NAMES = "rollout", "normalize_rewards_per_group", "update_policy", "compute_entropy"
grpo = functions("GRPO-Zero/grpo.py", *NAMES, **GIVEN)
ON_CPU = torch.device("cpu"), torch.bfloat16


def advantages(rewards):
    groups = enumerate(rewards.tolist())
    episodes = [Stub(prefix=[p], reward=reward) for p, group in groups for reward in group]
    found = grpo.normalize_rewards_per_group(episodes)
    return torch.tensor([one.reward for one in found], dtype=torch.float32).view_as(rewards)


@row_by_row
def completion_mask(prompt, completion, stop_id, pad_id):
    """rollout draws the given ids, from logits that leave no choice; update_policy trains all that it returns."""
    sure = torch.nn.functional.one_hot(torch.cat([prompt, completion])[None, 1:]) * 1e4
    batch = Stub(prefix_tokens=[0], numbers=[0], target=[0], prefix=[[]])
    batch["prefix_token_ids"] = [prompt.tolist()]
    tokenizer = Stub(eos_token=0, eos_token_id=stop_id, pad_token_id=pad_id)
    tokenizer["detokenize"] = lambda _: []
    model = Stub(init_kv_cache=Stub(), del_kv_cache=Stub())
    model["inference"] = lambda tokens, at: sure[:, at : at + tokens.size(1)]
    what = model, batch, tokenizer, len(completion), 1, Stub(reward=0, reward_info=0)
    return [1] * len(grpo.rollout(*what, *ON_CPU)[0].generated_token_ids)
