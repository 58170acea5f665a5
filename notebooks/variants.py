"""variants.py - GRPO's family: what is not in the core, as functions for --advantage, --loss and
--pick.

What you will learn: how small the differences between the named methods are. A whole method is a
file of flags in recipes/ (RECIPES), with its source, what it changes and what of it is missing here:

    python train.py @notebooks/recipes/dapo.txt --steps 100

A flag behind it overrides the file's. Sizes and rates are left to the model's presets. Its paths are
relative to the project's root; elsewhere train.py stops with "there is no such Python file".

Numbers such as 2503.14476 are at arxiv.org. With one update a batch the ratio is 1 and all losses
have the same gradient: gspo, cispo, clipping and sequence_mask need --updates-per-batch 2 or more
(on the whole batch; the papers mostly split a larger one). To combine two advantages, write a line
like that of `dapo` in a file of your own. Letters as in rlvr.py: P groups of G completions, B = P*G
rows, T tokens, V vocabulary.
"""

import functools
import itertools
import math
import random
from pathlib import Path

import torch

import _root

from rlvr import choose, group_advantages, kl_penalty, policy_loss
from verifiers import DataError

RECIPES = {
    path.stem: path
    for path in sorted((Path(__file__).parent / "recipes").glob("*.txt"))
    if "--task" not in path.read_text(encoding="utf-8")
}  # with a task it is a run, no method

# ---- 1. Losses ---------------------------------------------------------------------------------------
# logp, old_logp, weights, sampled_logp, ref_logp: (B, T-1); advantages: (B,) -> scalar, as
# rlvr.policy_loss, which says what they are. r_it = pi / pi_old. Each adds kl_coef * KL (k3,
# GRPO's) if there is a reference.


def gspo(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
):
    """-sum w min(s_i A, clip(s_i) A), s_i = (pi(o_i) / pi_old(o_i))^(1 / length): the geometric
    mean of the ratios of a completion in place of each (GSPO, 2507.18071, eq. 5 and 7). It varies
    far less, hence the narrow clip."""
    mean = row_mean(logp - old_logp, weights)[:, None]
    loss = policy_loss(mean.expand_as(logp), torch.zeros_like(logp), advantages, weights, clip)
    return loss + kl_term(logp, ref_logp, weights, kl_coef)


def cispo(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
):
    """-sum w sg(clip(r)) A log pi, sg: no gradient (MiniMax-M1, 2506.13585). A ratio out of bounds
    is bounded and its token still learns, where ppo's would have no gradient."""
    bounded = (logp - old_logp).exp().clamp(1 - clip[0], 1 + clip[1]).detach()
    loss = -(weights * bounded * advantages[:, None] * logp).sum()
    return loss + kl_term(logp, ref_logp, weights, kl_coef)


def reinforce(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
):
    """-sum w A log pi: no ratio, so no clipping (Williams 1992). With --loss-norm sum the -(adv *
    logp).mean() of the chapter "9.5 RLVR"."""
    return -(weights * advantages[:, None] * logp).sum() + kl_term(logp, ref_logp, weights, kl_coef)


def tis(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
    cap=2.0,
):
    """policy_loss, each token's term times sg(min(pi_old / pi_sampler, cap)): truncated importance
    sampling (Yao et al. 2025, fengyao.notion.site/off-policy-rl; Olmo 3, 2512.13961; cap: its code).
    Where another engine samples, its tokens count as often as the trainer would have said them; the
    cap bounds the variance. Here both agree up to rounding (`mismatch`), so it has little to do."""
    sampler = old_logp if sampled_logp is None else sampled_logp
    loss = policy_loss(
        logp,
        old_logp,
        advantages,
        weights * (old_logp - sampler).exp().clamp(max=cap).detach(),
        clip,
    )
    return loss + kl_term(logp, ref_logp, weights, kl_coef)


def sequence_mask(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
    delta=0.1,
    estimate=kl_penalty,
):
    """policy_loss without the completions that have A < 0 and a mean log(pi_sampler / pi) above
    delta: to unlearn what the policy no longer says does harm (off-policy sequence masking,
    DeepSeek-V3.2, 2512.02556, eq. 8 and 9). They still count in the normaliser and in the KL. The
    paper gives no delta; 0.1 is that of *Reasoning from Scratch*, chapter 7."""
    sampler = old_logp if sampled_logp is None else sampled_logp
    kept = (advantages >= 0) | (row_mean(sampler - logp, weights) <= delta)  # (B,)
    loss = policy_loss(logp, old_logp, advantages, weights * kept[:, None], clip)
    return loss + kl_term(logp, ref_logp, weights, kl_coef, estimate)


def deepseek(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
):
    """DeepSeek-V3.2's (3.1): sequence_mask, with the KL of k3_ratio."""
    return sequence_mask(
        logp,
        old_logp,
        advantages,
        weights,
        clip,
        sampled_logp,
        ref_logp,
        kl_coef,
        estimate=functools.partial(k3_ratio, old_logp=old_logp),
    )


def row_mean(values, weights):
    """The mean over the tokens of each completion: (B, T-1) -> (B,)."""
    inside = (weights > 0).float()
    return (values * inside).sum(1) / inside.sum(1).clamp(min=1)


def ppo_k1(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
):
    """policy_loss with the KL's plainest estimate as its penalty: see k1, and why not to."""
    loss = policy_loss(logp, old_logp, advantages, weights, clip)
    return loss + kl_term(logp, ref_logp, weights, kl_coef, k1)


def ppo_k2(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
):
    """policy_loss with the penalty whose gradient is that of KL(pi || pi_ref): see k2."""
    loss = policy_loss(logp, old_logp, advantages, weights, clip)
    return loss + kl_term(logp, ref_logp, weights, kl_coef, k2)


def ppo_k3_ratio(
    logp,
    old_logp,
    advantages,
    weights,
    clip=(0.2, 0.2),
    sampled_logp=None,
    ref_logp=None,
    kl_coef=0.0,
):
    """policy_loss with the penalty that is unbiased off-policy, too: see k3_ratio."""
    estimate = functools.partial(k3_ratio, old_logp=old_logp)
    return policy_loss(logp, old_logp, advantages, weights, clip) + kl_term(
        logp, ref_logp, weights, kl_coef, estimate
    )


def k1(logp, ref_logp, weights):
    """sum w d, d = log pi - log pi_ref: unbiased, but its gradient is 0 on average. As a loss it
    only adds noise."""
    return (weights * (logp - ref_logp)).sum()


def k2(logp, ref_logp, weights):
    """sum w d^2 / 2: biased, and its gradient is that of KL(pi || pi_ref). That of k3
    (rlvr.kl_penalty) is the gradient of the other one, KL(pi_ref || pi). Schulman, "Approximating
    KL divergence"; the gradients: 2505.17508, 2.2."""
    return (weights * (logp - ref_logp).square() / 2).sum()


def k3_ratio(logp, ref_logp, weights, old_logp):
    """sum w r (exp(-d) - 1 + d), r = pi / pi_old: k3 of what pi_old sampled, weighted so that value
    and gradient are those of KL(pi || pi_ref) (DeepSeek-V3.2, 2512.02556, eq. 7). k3's own gradient
    grows without bound where pi << pi_ref; here r takes that back. On-policy the gradient is k2's."""
    d = logp - ref_logp
    return (weights * (logp - old_logp).exp() * (torch.exp(-d) - 1 + d)).sum()


def kl_term(logp, ref_logp, weights, kl_coef, estimate=kl_penalty):
    return kl_coef * estimate(logp, ref_logp, weights) if kl_coef else 0.0


# ---- 2. Advantages -------------------------------------------------------------------------------------
# rewards (P, G) -> (P, G). rollouts: rlvr.Rollouts; parts: what the verifier logged, a dict for
# each of B rows; flags: train.Flags. A group of equal rewards has advantage exactly 0 (see group_advantages
# in rlvr.py), except in soft and gdpo, which see more than the reward.


def batch(rewards, rollouts=None, parts=None, flags=None, eps=1e-6):
    """(R_i - mean of the group) / (std of all rewards of the batch + eps): one divisor for all
    groups, so those that are nearly solved or nearly hopeless are not blown up (Lite PPO,
    2508.08221).

    subtle: the std is that of the raw rewards, as in ROLL, the authors' code (B - 1 under the
    root). It holds what differs between groups too, and so is larger than the std of what is
    divided.
    """
    return group_advantages(rewards, "none") / (rewards.float().std() + eps)


def loo(rewards, rollouts=None, parts=None, flags=None):
    """R_i less the mean of the others of its group, = (R_i - mean) G / (G - 1): a baseline that
    does not contain what it is compared with (leave one out; RLOO, 2402.14740)."""
    G = rewards.size(1)
    return group_advantages(rewards, "none") * G / max(1, G - 1)


def gdpo(rewards, rollouts, parts, flags=None, eps=1e-6):
    """sum_k w_k (R_ik - mean) / (std + eps) within the group, then all divided by their std over
    the batch, for a reward R = sum_k w_k R_k (GDPO, 2601.05242). In the plain sum (1, 0) and (0, 1)
    are the same; here a term that few of the group got counts for more, whatever its scale.

    The terms are the reward's own: see terms_of. Raises NoSum where it is no weighted sum of what
    it logs.
    """
    total = sum(
        weight * group_advantages(term, "std", eps)
        for weight, term in terms_of(rewards, rollouts, parts)
    )
    return (total / (total.square().mean().sqrt() + eps)).to(rewards.dtype)


class NoSum(DataError, ValueError):
    """GDPO was asked to take a reward apart that is no sum."""


def terms_of(rewards, rollouts, parts):
    """A reward that is a weighted sum of logged parts -> [(weight, term (P, G))]. Raises NoSum if
    it is none.

    The weights are found by least squares from this batch, and must give every reward. Where
    several sums do, the parts logged first are taken: a later one leaves as long as the sum stays
    exact. Where the verifier failed, and where what was cut off earned 0, all terms are 0.
    """
    names = list(
        dict.fromkeys(
            name for part in parts for name in part if name not in ("truncated", "failed")
        )
    )
    names.sort(key=lambda name: name == "answered")  # the last resort: seldom a term of a reward
    judged = torch.tensor([not part.get("failed") for part in parts])
    target = rewards.flatten().cpu().double() * judged
    counted = judged & (rollouts.finished.cpu() | (target < 0))
    columns = (
        torch.tensor([[part.get(name, 0.0) for name in names] for part in parts]).double()
        * counted[:, None]
    )

    def fit(chosen):
        weights = torch.linalg.lstsq(columns[:, chosen], target, driver="gelsd").solution
        error = (columns[:, chosen] @ weights - target).abs().max().item()
        return weights, error <= 1e-5 * max(1.0, target.abs().max().item())

    chosen = list(range(len(names)))
    if not chosen or not fit(chosen)[1]:
        raise NoSum(
            f"gdpo: this reward is no weighted sum of the parts that it logs ({', '.join(names)}), "
            "so there is nothing to normalise apart. Log its terms, or use --advantage std"
        )
    for column in reversed(range(len(names))):
        fewer = [other for other in chosen if other != column]
        if fewer and fit(fewer)[1]:
            chosen = fewer
    weights = fit(chosen)[0].tolist()
    return [
        (weight, columns[:, column].view_as(rewards).to(rewards.device))
        for weight, column in zip(weights, chosen)
    ]


def soft(rewards, rollouts, parts=None, flags=None, share=0.2):
    """DAPO's soft overlong punishment (2503.14476, eq. 13), then std: off a reward goes 0 up to (1
    - share) of --max-new-tokens, from there linearly more, 1 at the end. Example: 90 of 100 tokens
    cost 0.5."""
    excess = (rollouts.lengths / flags.max_new_tokens - (1 - share)) / share
    return group_advantages(rewards - excess.clamp(0, 1).view_as(rewards).to(rewards.device))


def mask(rewards, rollouts, parts=None, flags=None):
    """What was cut off has no advantage: it is neither encouraged nor punished (DAPO's overlong
    filtering, 3.4). Its reward of 0 still counts in the mean of its group."""
    return group_advantages(rewards) * rollouts.finished.view_as(rewards).to(rewards.device)


def mixed_only(rewards, rollouts, parts=None, flags=None, advantage=group_advantages):
    """DAPO's dynamic sampling (2503.14476, eq. 11) by oversampling, with --pick V:twice: of the 2 P
    groups of a step the first P (--prompts-per-step) with unequal rewards are trained on, and the
    loss is what these P alone would give.

    DAPO samples again until P groups are mixed; here twice as many are drawn at once, which keeps
    the device busy. If fewer than P are mixed, the first others fill up and, as ever, count in the
    normaliser only. critical: the loss's normaliser is that of all groups, so the advantages are
    multiplied by what it is too large: tokens of all over tokens of the kept ones for --loss-norm
    token, groups over groups for the others. A KL is still that of all groups.
    """
    mixed = rewards.amax(1) > rewards.amin(1)  # (P',)
    kept = (~mixed).long().argsort(stable=True)[: flags.prompts_per_step]
    tokens = rollouts.lengths.view_as(rewards).sum(1).to(rewards.device).float()  # (P',)
    sizes = tokens if flags.loss_norm == "token" else torch.ones_like(tokens)
    counted = torch.zeros_like(tokens).index_fill(0, kept, 1.0) * mixed
    advantages = advantage(rewards, rollouts=rollouts, parts=parts, flags=flags)
    return advantages * counted[:, None] * sizes.sum() / sizes[kept].sum()


# DAPO: of the groups whose answers differ in what they earn, the advantages with length punished.
dapo = functools.partial(mixed_only, advantage=soft)

# Olmo 3: of those groups R - mean, without the std.
olmo = functools.partial(mixed_only, advantage=functools.partial(group_advantages, scale="none"))


# ---- 3. Which problems ---------------------------------------------------------------------------------
# f(problems, step, memory, flags) -> the indices of a step. memory["visits"]: {str(index): mean
# accuracies of the last 3 visits}, kept by the loop and saved with each checkpoint. Every process
# calls them alike, and gets the same. With fewer problems than --prompts-per-step some come twice
# in a step. (Chapter "Reward Design for Reasoning", difficulty-aware shaping.)


def filter(problems, step, memory, flags):
    """A walk through a random order, past problems that were solved (above 0.95) or hopeless (below
    0.05) on their last three visits. Each time one is passed by, its oldest visit is forgotten, so
    it is soon tried again: the policy has changed. It cannot act before three epochs, 3 * problems
    / --prompts-per-step steps."""
    chosen = []
    visits = memory.setdefault("visits", {})
    while len(chosen) < flags.prompts_per_step:
        place = memory.get("next", 0)
        memory["next"] = place + 1
        index = walk(len(problems), place, flags.seed)
        if (
            len(visits.get(str(index), [])) == 3
            and not 0.05 <= mean_accuracy(memory, index) <= 0.95
        ):
            visits[str(index)] = visits[str(index)][1:]
        else:
            chosen.append(index)
    return chosen


def stratified(problems, step, memory, flags):
    """A third each of hard problems (mean below 1/3), easy ones (above 2/3) and others or unknown
    ones, as far as there are, in random order."""
    order = random.Random(f"pick {flags.seed} {step}").sample(range(len(problems)), len(problems))
    bins = [[], [], []]
    for index in order:
        bins[min(2, int(3 * mean_accuracy(memory, index)))].append(index)
    turns = [index for turn in itertools.zip_longest(*bins) for index in turn if index is not None]
    return [*itertools.islice(itertools.cycle(turns), flags.prompts_per_step)]


def curriculum(problems, step, memory, flags):
    """Problems whose mean is near a target are likelier, and it slides from 0.8 to 0.4: first easy
    ones, then hard ones. Weights exp(-((mean - target) / 0.2)^2), without replacement (by keys
    log(u) / weight: Efraimidis and Spirakis 2006, whose u^(1 / weight) would be 0 for all far ones)."""
    rng = random.Random(f"pick {flags.seed} {step}")
    target = 0.8 - 0.4 * step / flags.steps
    keys = {
        index: math.log(1 - rng.random())
        * math.exp(((mean_accuracy(memory, index) - target) / 0.2) ** 2)
        for index in range(len(problems))
    }
    order = sorted(keys, key=keys.get, reverse=True)
    return [*itertools.islice(itertools.cycle(order), flags.prompts_per_step)]


def twice(problems, step, memory, flags):
    """Twice --prompts-per-step problems of the same walk as --pick all: for mixed_only and dapo."""
    count = 2 * flags.prompts_per_step
    return [
        walk(len(problems), place, flags.seed) for place in range((step - 1) * count, step * count)
    ]


def walk(n, place, seed):
    """Which of n problems comes at this place of a walk through a new random order in every epoch;
    as train.py's."""
    epoch, place = divmod(place, n)
    return epoch_order(n, epoch, seed)[place]


@functools.lru_cache(maxsize=4)
def epoch_order(n, epoch, seed):
    return random.Random(f"order {seed} {epoch}").sample(range(n), n)


def mean_accuracy(memory, index):
    """Of the last visits to a problem; 1/2 if there was none."""
    last = memory.get("visits", {}).get(str(index))
    return sum(last) / len(last) if last else 0.5


# ---- 4. Sampling from a part of the vocabulary ---------------------------------------------------------
# With top_p or top_k a kept token is said with probability p / (mass kept). subtle: rlvr.choose and
# token_logprobs both report p of the whole softmax, so `mismatch` is blind to it. DeepSeek-V3.2
# ("Keep Sampling Mask", 3.1) applies the sets that pi_old kept to pi as well: two softmaxes over the
# same tokens, and filtered samples are on-policy again. train.py never filters. To train so, pass
# roll_out a top_p, and put the two below in the places of rlvr's choose and token_logprobs.


def kept_tokens(logits, temperature=1.0, top_p=1.0, top_k=0):
    """logits (.., V) -> (.., V) bool: what rlvr.choose draws from, at a temperature above 0."""
    if not top_k and top_p >= 1.0:
        return torch.ones_like(logits, dtype=torch.bool)
    ranked, order = (logits.float() / temperature).log_softmax(-1).exp().sort(-1, descending=True)
    kept = ranked.cumsum(-1) - ranked < top_p  # mass before this token; the first stays
    kept[..., top_k or kept.size(-1) :] = False
    return kept.gather(-1, order.argsort(-1))


def choose_kept(logits, uniforms, temperature=1.0, top_p=1.0, top_k=0):
    """rlvr.choose, with the log-prob of what it really drew from: the softmax over kept_tokens."""
    if temperature:
        logits = logits.masked_fill(~kept_tokens(logits, temperature, top_p, top_k), -math.inf)
    return choose(logits, uniforms, temperature)


def kept_logprobs(
    model,
    ids,
    temperature=1.0,
    mask=None,
    return_entropy=False,
    index=None,
    top_p=1.0,
    top_k=0,
    sampler=None,
):
    """rlvr.token_logprobs with softmaxes over kept_tokens: (B, T) -> (B, T-1), entropies too if asked.

    sampler: the model whose sets are kept, as it was when it sampled (default: this one, which is
    right for one update a batch). index: only its rows are read, each alone. All their logits at once,
    (rows, T-1, V): for small vocabularies.
    """
    if index is not None:
        rows = (index[index >= 0] // (ids.size(1) - 1)).unique()
        whole = torch.zeros(2, *ids[:, 1:].shape, device=ids.device)
        inside = None if mask is None else mask[rows]
        whole[:, rows] = torch.stack(
            kept_logprobs(model, ids[rows], temperature, inside, True, None, top_p, top_k, sampler)
        )
        return tuple(whole) if return_entropy else whole[0]
    targets = ids[:, 1:, None]
    V = model.config.num_tokens
    logits = model(ids[:, :-1])[..., :V].float()
    with torch.no_grad():
        kept = kept_tokens(
            logits if sampler is None else sampler(ids[:, :-1])[..., :V], temperature, top_p, top_k
        )
    # subtle: without a cache sums are rounded differently, which may put what was sampled just outside.
    kept = kept.scatter(2, targets, True)
    logp = (logits / temperature).masked_fill(~kept, -math.inf).log_softmax(-1)
    inside = 1.0 if mask is None else mask
    chosen = logp.gather(2, targets).squeeze(2)
    entropy = torch.special.entr(logp.detach().exp()).sum(-1)
    return (chosen * inside, entropy * inside) if return_entropy else chosen * inside
