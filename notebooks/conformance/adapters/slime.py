"""THUDM/slime 624b824 (2026-08-21): utils/ppo_utils.py, the mean of backends/megatron_utils/cp_utils.py, and the
rewards of ray/rollout.py.

Out of their files (the package needs megatron and sglang), on one rank. The loss of a batch is the sum over completions,
divided here by their number; the logits are divided by the temperature before this call.
"""

import torch
import torch.distributed as dist
from checkout import Stub, functions, gradient_of

NAMES = "_maybe_all_reduce", "_get_vocab_parallel_rank_size", "_VocabParallelLogProbEntropy"
NAMES += "_calculate_log_probs_and_entropy_chunk", "calculate_log_probs_and_entropy"
NAMES += "compute_policy_loss", "compute_approx_kl"
ppo = functions("slime/slime/utils/ppo_utils.py", *NAMES, dist=dist)
CP = "slime/slime/backends/megatron_utils/cp_utils.py"
mpu = Stub(get_context_parallel_world_size=lambda: 1)
LOSS = "slime/slime/backends/megatron_utils/loss.py"
losses = functions(LOSS, "vanilla_tis_function", "icepop_function")
mean_of = functions(CP, "get_sum_of_sample_mean", mpu=mpu)


def advantages(rewards):
    P, G = rewards.shape
    args = Stub(advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True)
    args |= {"n_samples_per_prompt": G, "rollout_batch_size": P}
    left = rewards.flatten().tolist()
    samples = [Stub(get_reward_value=lambda _: left.pop(0))] * (P * G)
    process = functions("slime/slime/ray/rollout.py", "_post_process_rewards")._post_process_rewards
    found = process(Stub(custom_reward_post_process_func=None, args=args), samples)[1]
    return torch.tensor(found).view(P, G)


def loss(logp, old_logp, advantages, mask, clip):
    wide = advantages[:, None].expand_as(logp)
    values, _ = ppo.compute_policy_loss(old_logp - logp, wide, *clip)
    lengths = [logp.size(1)] * len(logp)
    total = mean_of.get_sum_of_sample_mean(lengths, lengths, list(mask))
    return total(values.flatten()) / len(logp)


def correction(old_logp, sampled_logp, mask, level, how, low, high):
    """--use-tis, and icepop_function as --custom-tis-function-path."""
    if level == "sequence":
        raise NotImplementedError("of tokens only")
    function = {"truncate": losses.vanilla_tis_function, "mask": losses.icepop_function}[how]
    rows = {"train_log_probs": [*old_logp], "rollout_log_probs": [*sampled_logp], "loss_masks": 0}
    one = torch.ones_like(mask).flatten()
    return function(Stub(tis_clip_low=low, tis_clip=high), pg_loss=one, **rows)[0].view_as(mask)


def logprobs(logits, ids, temperature):
    pairs = zip(logits[:, :-1] / temperature, ids[:, 1:])
    return torch.cat([ppo.calculate_log_probs_and_entropy(*pair, None)[0].T for pair in pairs])


def kl(logp, ref_logp):
    return ppo.compute_approx_kl(logp, ref_logp, "k1")


gradient_of_kl = gradient_of(kl)
