"""jingyaogong/minimind d65ef2c (2026-08-21): grpo_train_epoch of trainer/train_grpo.py, and the engine's log-probs.

The epoch runs whole, on one batch, out of its file, which sets up a run; it is given completions, rewards and log-probs.
loss_type is grpo (cispo is its default). It samples at 0.8, with top-p 0.85 and top-k 50. On a GPU autocast takes the
softmax in fp32.
"""

from contextlib import nullcontext

import torch
from checkout import Stub, functions, one_width

STEP = Stub(step=Stub(), zero_grad=Stub(), param_groups=[{"lr": 0.0}])
GIVEN = {"DistributedDataParallel": torch.nn.parallel.DistributedDataParallel, "Logger": Stub()}
GIVEN |= {"autocast_ctx": nullcontext(), "lm_config": Stub(use_moe=False)}
GIVEN |= {"optimizer": STEP, "scheduler": STEP, "F": Stub(log_softmax=lambda logits, dim: logits)}
ARGS = Stub(device="cpu", max_seq_len=0, max_gen_len=0, debug_mode=False, loss_type="grpo")
ARGS |= {"grad_clip": 0, "accumulation_steps": 1, "log_interval": 2, "save_interval": 2}
engine = functions("minimind/trainer/rollout_engine.py", "compute_per_token_logps", **GIVEN)


# Rewards that are these advantages when they are standardised.
Wanted = type("Wanted", (Stub,), {"__sub__": lambda rewards, mean: rewards.advantages})


def gradient(ids, logp, old_logp, ref_logp, rewards, mask, size=1, clip=0.2, beta=0.0, stop=-1):
    """By the log-probs (B, R), for completions ids[:, 1:] with these rewards, size of them a prompt."""
    leaf = logp.detach().clone().requires_grad_()
    pairs = [torch.nn.functional.pad(one, (0, 1))[..., None] for one in (leaf, ref_logp)]
    model, ref_model = [Stub(logits=one.expand(-1, -1, int(ids.max()) + 1)) for one in pairs]
    rollout = Stub(output_ids=ids, completion_ids=ids[:, 1:], completions=0, completion_mask=mask)
    rollout |= {"per_token_logps": old_logp, "prompt_lens": torch.ones_like(ids[:, 0])}
    tokenizer = Stub(input_ids=ids, attention_mask=ids, pad_token_id=-1, eos_token_id=stop)
    args = Stub(ARGS, num_generations=size, epsilon=clip, beta=beta)
    given = {**GIVEN, "args": args, "tokenizer": tokenizer, "model": model}
    given["calculate_rewards"] = lambda *_: rewards
    run = functions("minimind/trainer/train_grpo.py", "grpo_train_epoch", **given).grpo_train_epoch
    run(0, [{"prompt": 0}], 0, Stub(rollout=lambda **_: rollout), ref_model, 0)
    return leaf.grad


def advantages(rewards):
    zeros = torch.zeros(rewards.numel(), 1)
    ids = zeros.long().repeat(1, 2)
    found = gradient(ids, *[zeros] * 3, rewards.flatten(), zeros + 1, rewards.size(1))
    return -len(zeros) * found.view_as(rewards)


def loss(logp, old_logp, advantages, mask, clip):
    if clip[0] != clip[1]:
        raise NotImplementedError("one epsilon")
    zeros = torch.zeros(len(logp))
    groups = Stub(mean=lambda **_: zeros, std=lambda **_: zeros + 1 - 1e-4)
    rewards = Wanted(advantages=advantages, view=lambda *_: groups)
    ids = torch.zeros(len(logp), logp.size(1) + 1, dtype=torch.long)
    return (logp * gradient(ids, logp, old_logp, logp, rewards, mask, clip=clip[0])).sum()


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    """What has a gradient of the KL; the engine's own mask is all ones."""
    start = one_width(prompt_lengths)
    ids = ids[:, start - 1 :]
    ones = torch.ones(ids[:, 1:].shape)
    rewards = torch.zeros(len(ids))
    found = gradient(ids, ones, ones, 0 * ones, rewards, ones, beta=1.0, stop=stop_id)
    return torch.nn.functional.pad((found != 0).float(), (start - 1, 0))


def logprobs(logits, ids, temperature, top_p=1.0, top_k=0):
    if logits.dtype != torch.float32:
        raise NotImplementedError("under autocast, on a GPU: not run")
    return engine.compute_per_token_logps(Stub(logits=logits), ids, ids.size(1) - 1)
