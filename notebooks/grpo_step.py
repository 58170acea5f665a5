"""grpo_step.py - the page of chapters 14 and 15: one step of GRPO with a clip, a reference and a mask.

Chapter 9.5 has its page in rlvr.py (compute_grpo_loss). This is the page of the two chapters on
rewards, with their signature: a batch of prompts, what is known of each (metas), and any reward.
Notebook 1 trains with it. train.py does the same arithmetic for long completions and many devices;
notebooks/tests/test_exercises.py compares the gradients.

Departures from the two listings, each shown to matter in notebook 1:

  1  The KL is k3, whose gradient points to the reference. That of the printed term is zero on average.
  2  A mask: the mean is over the tokens that the policy wrote, not over the padding behind them.
  3  The std divides by G, as the formula beside the listing does.
  4  A completion that was cut off earns at most 0.

Letters: P prompts, G completions of each, B = P*G rows, T tokens.
"""

from dataclasses import dataclass

import torch

from rlvr import Rollouts, sample, token_logprobs


@dataclass
class Batch:
    """What was sampled, and what it earned."""

    rollouts: Rollouts  # B rows; .logp (B, T-1) is log pi_old, .mask (B, T-1) what the policy wrote
    texts: list  # B completions
    rewards: torch.Tensor  # (P, G)
    advantages: torch.Tensor  # (B, 1)
    temperature: float  # of the sampling


def collect(policy, prompts, metas, reward_fn, tokenizer, G=8, temperature=1.0, max_new_tokens=512):
    """Sample G completions of each prompt, judge them, and compare each with its group -> Batch.

    reward_fn(prompt, completion, meta) -> a number."""
    # Sample: log pi_old is kept, as it was when each token was drawn.
    prompt_ids = [tokenizer.encode(prompt) for prompt in prompts]
    rollouts = sample(policy, prompt_ids, G, max_new_tokens, temperature)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]

    # Reward: rules, no model.
    rewards = []
    for row, (text, finished) in enumerate(zip(texts, rollouts.finished.tolist())):
        reward = reward_fn(prompts[row // G], text, metas[row // G])
        rewards.append(reward if finished else min(reward, 0.0))
    R = torch.tensor(rewards).view(len(prompts), G)  # (P, G)

    # Advantage: how much better than the other completions of the same prompt. No critic.
    std = R.std(dim=1, correction=0, keepdim=True)
    A = (R - R.mean(dim=1, keepdim=True)) / (std + 1e-6)
    return Batch(rollouts, texts, R, A.view(-1, 1), temperature)


def grpo_loss(policy, ref, batch, clip=0.2, kl_coef=0.04):
    """The clipped surrogate and the KL, for the policy as it is now -> (loss, what to log)."""
    rollouts = batch.rollouts
    mask = rollouts.mask  # (B, T-1)

    # Log-probs of the same tokens: now, with gradients, and under the frozen reference.
    logp = token_logprobs(policy, rollouts.ids, batch.temperature, mask)  # (B, T-1)
    with torch.no_grad():
        ref_logp = token_logprobs(ref, rollouts.ids, batch.temperature, mask)

    # Clip: what has already moved by more than the clip, in the direction that pays, gains no more.
    ratio = torch.exp(logp - rollouts.logp)  # 1 in the first update of a batch
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)

    # KL to the reference, k3: never negative, and 0 where the two agree.
    d = ref_logp - logp
    kl = torch.exp(d) - d - 1

    # One mean over all tokens that the policy wrote.
    loss = ((kl_coef * kl - gain) * mask).sum() / mask.sum()
    outside = ((ratio - clipped).abs() > 0) * mask
    stats = {"kl": (kl.detach() * mask).sum() / mask.sum(), "clipped": outside.sum() / mask.sum()}
    return loss, {name: value.item() for name, value in stats.items()}


def grpo_step(
    policy,
    ref,
    prompts,
    metas,
    reward_fn,
    tokenizer,
    G=8,
    clip=0.2,
    kl_coef=0.04,
    temperature=1.0,
    max_new_tokens=512,
):
    """Chapter 14's step: sample, score, compare, score again under policy and reference, clip, leash.

    -> (loss, Batch). Then: loss.backward(), optimizer.step()."""
    batch = collect(policy, prompts, metas, reward_fn, tokenizer, G, temperature, max_new_tokens)
    loss, _ = grpo_loss(policy, ref, batch, clip, kl_coef)
    return loss, batch


def reasoning_grpo_step(policy, ref, prompts, truths, reward_fn, tokenizer, **settings):
    """Chapter 15's step: the same with R1-Zero's settings. reward_fn(completion, truth) -> a dict
    with "R", such as rewards.reasoning.ReasoningReward."""
    defaults = {"G": 16, "kl_coef": 0.001, "temperature": 0.6, "max_new_tokens": 4096}

    def total(prompt, completion, truth):
        return reward_fn(completion, truth)["R"]

    return grpo_step(policy, ref, prompts, truths, total, tokenizer, **{**defaults, **settings})
