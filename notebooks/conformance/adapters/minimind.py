"""jingyaogong/minimind d65ef2c (2026-08-21): grpo_train_epoch of trainer/train_grpo.py, the engine's log-probs, and
rollout_single of trainer/train_agent.py.

The epoch runs whole, on one batch, out of its file, which sets up a run; it is given completions, rewards and log-probs.
loss_type is grpo (cispo is its default). It samples at 0.8, with top-p 0.85 and top-k 50. On a GPU autocast takes the
softmax in fp32.
"""

import random
from contextlib import nullcontext

import torch
from checkout import Stub, functions, one_width

STEP = Stub(step=Stub(), zero_grad=Stub(), param_groups=[{"lr": 0.0}])
GIVEN = {"DistributedDataParallel": torch.nn.parallel.DistributedDataParallel, "Logger": Stub()}
GIVEN |= {"autocast_ctx": nullcontext(), "lm_config": Stub(use_moe=False)}
GIVEN |= {"optimizer": STEP, "scheduler": STEP}
ARGS = Stub(device="cpu", max_seq_len=0, max_gen_len=0, debug_mode=False, loss_type="grpo")
ARGS |= {"grad_clip": 0, "accumulation_steps": 1, "log_interval": 2, "save_interval": 2}
engine = functions("minimind/trainer/rollout_engine.py", "compute_per_token_logps", **GIVEN)


# Rewards that are these advantages when they are standardised.
Wanted = type("Wanted", (Stub,), {"__sub__": lambda rewards, mean: rewards.advantages})


def run_epoch(model, ref_model, ids, old_logp, mask, rewards, size, clip=0.2, beta=0.0, **more):
    """grpo_train_epoch with these completions, of prompts of start tokens, and rewards, size of them a prompt."""
    start = ids.size(1) - mask.size(1)
    rollout = Stub(output_ids=ids, completion_ids=ids[:, start:], completions=0)
    rollout |= {"per_token_logps": old_logp, "completion_mask": mask}
    rollout["prompt_lens"] = torch.full_like(ids[:, 0], start)
    tokenizer = Stub(input_ids=ids, attention_mask=ids, pad_token_id=-1, eos_token_id=-1)
    args = Stub(ARGS, num_generations=size, epsilon=clip, beta=beta)
    given = {**GIVEN, "args": args, "tokenizer": Stub(tokenizer, **more), "model": model}
    given["calculate_rewards"] = lambda *_: rewards
    run = functions("minimind/trainer/train_grpo.py", "grpo_train_epoch", **given).grpo_train_epoch
    run(0, [{"prompt": 0}], 0, Stub(rollout=lambda **_: rollout), ref_model, 0)


def gradient(ids, logp, old_logp, ref_logp, rewards, mask, size=1, **more):
    """By the log-probs (B, R), for completions ids[:, 1:]."""
    leaf = logp.detach().clone().requires_grad_()
    pairs = [torch.nn.functional.pad(one, (0, 1))[..., None] for one in (leaf, ref_logp)]
    models = [Stub(logits=one.expand(-1, -1, int(ids.max()) + 1)) for one in pairs]
    GIVEN["F"] = Stub(log_softmax=lambda logits, dim: logits)
    run_epoch(*models, ids, old_logp, mask, rewards, size, **more)
    return leaf.grad


def step(model, reference, kl_coef, ids, mask, rewards, rank=None):
    """With log-probs of its own; 0 is the pad."""
    GIVEN["F"] = torch.nn.functional
    mask = mask[:, int(mask[0].argmax()) :]
    old_logp = engine.compute_per_token_logps(model, ids, mask.size(1), ids != 0)
    if rank is not None:
        model = torch.nn.parallel.DistributedDataParallel(model)
    what = ids, old_logp, mask, rewards.flatten(), rewards.size(1)
    run_epoch(model, reference or model, *what, beta=kl_coef, pad_token_id=0)


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
    found = gradient(ids, ones, ones, 0 * ones, rewards, ones, beta=1.0, eos_token_id=stop_id)
    return torch.nn.functional.pad((found != 0).float(), (start - 1, 0))


def logprobs(logits, ids, temperature, top_p=1.0, top_k=0):
    if logits.dtype != torch.float32:
        raise NotImplementedError("under autocast, on a GPU: not run")
    return engine.compute_per_token_logps(Stub(logits=logits), ids, ids.size(1) - 1)


def padded_logprobs(model, ids, attention_mask):
    return engine.compute_per_token_logps(model, ids, ids.size(1) - 1, attention_mask)


def turns(prompt, sampled, replies, tokenizer):
    """rollout_single of trainer/train_agent.py, with tools that reply this; a template of texts, and of a stop."""
    left = [(ids, tokenizer.decode(ids[:-1])) for ids in sampled]
    said = list(replies)
    stop = tokenizer.words[sampled[0][-1]]

    def template(messages, **_):
        ends = {"assistant": stop}
        return "".join(one["content"] + ends.get(one["role"], "") for one in messages)

    def rollout(**_):
        ids, text = left.pop(0)
        logps = torch.zeros(1, len(ids))
        return Stub(completion_ids=torch.tensor([ids]), per_token_logps=logps, completions=[text])

    class Names(Stub):
        def __call__(self, text, **_):
            ids = torch.tensor([tokenizer.encode(text)])
            return Stub(input_ids=ids, attention_mask=ids)

    given = {
        "parse_tool_calls": lambda _: [{}] * bool(said),
        "json": Stub(dumps=lambda it, **_: it),
    }
    given |= {"execute_tool": lambda *_: said.pop(0), "random": random, **GIVEN}
    agent = functions("minimind/trainer/train_agent.py", "rollout_single", **given)
    names = Names(apply_chat_template=template, pad_token_id=-1, eos_token_id=sampled[0][-1])
    messages = [{"role": "user", "content": tokenizer.decode(prompt)}]
    found = agent.rollout_single(Stub(rollout=rollout), names, messages, [], device="cpu")
    return found[2] + found[3], [0] * (len(prompt) - 1) + found[4]
