"""rlvr.py - how being right changes what is said: sampling, group advantages, the policy-gradient loss.

    completions   o_1 .. o_G ~ pi(. | q)            G samples for each of P prompts   sample
    rewards       R_i = verifier(o_i, truth of q)   rules, no reward model            score
    advantages    A_i = (R_i - mean R) / std R      within the group of one prompt    group_advantages
    log-probs     log pi(o_it | q, o_i<t)           now with gradients                token_logprobs
    loss          -sum w_it min(r_it A_i, clip(r_it) A_i),   r_it = pi / pi_old       policy_loss

compute_grpo_loss is the chapter's page, the rest for batches. Departures, 1 to 3 from PPO and GRPO, 4 to 7 from the page:
  1 No KL term, as in the chapter: no reference model is kept. kl_coef brings it back.
  2 No critic, as there: the mean reward of the group is the baseline.
  3 One update per batch, so pi = pi_old: the ratio is 1 (its gradient not 0), clipping cannot act.
  4 A token mean over the whole batch (DAPO). In the chapter's sum long completions weigh more, in
    GRPO's mean of means long wrong ones get off lightly. All are an argument of loss_weights.
  5 What was cut off earns at most nothing, whatever it says: otherwise never stopping is free.
  6 The std of a group divides by G, not G - 1: the group is all there is, not a sample of it.
  7 Log-probs are at the temperature of the sampling; the chapter samples at 0.8, trains at 1.

Sources: GRPO (arXiv 2402.03300), DAPO (2503.14476), Dr. GRPO (2503.20783). Letters: P prompts, G
completions of each (a group), B = P*G rows, R being sampled, T tokens, V vocabulary, C hidden size.
"""

import hashlib
import itertools
import math
import time
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from verifiers import reward_rlvr

# ---- 1. The chapter's page -----------------------------------------------------------------------

def compute_grpo_loss(model, tokenizer, prompt, ground_truth, device=None, num_rollouts=4,
                      max_new_tokens=512, temperature=0.8, reward_fn=reward_rlvr):
    """One step for one prompt, up to the loss: the function of this name in "9.5 RLVR", to its formula.
    loss_tensor is None when all rewards are equal, for then there is nothing to learn."""
    # Rollout: G completions, and what each is worth.
    rollouts = sample(model, [tokenizer.encode(prompt)], num_rollouts, max_new_tokens, temperature)
    rewards = [reward_fn(tokenizer.decode(ids), ground_truth) for ids in rollouts.completions()]

    # Advantage: how much better than its group.
    R = torch.tensor(rewards, device=device or model.device).float()                      # (G,)
    advantages = (R - R.mean()) / (R.std() + 1e-8)                                        # (G,)
    group = {"rewards": rewards, "advantages": advantages.tolist(), "rollouts": rollouts}
    if len(set(rewards)) == 1:
        return {"loss": 0.0, "loss_tensor": None, **group}

    # Log-prob of each completion: the sum over its tokens. Token t+1 is predicted at t.
    logp = model(rollouts.ids[:, :-1]).float().log_softmax(-1)                         # (G, T-1, V)
    logp = logp.gather(2, rollouts.ids[:, 1:, None]).squeeze(2) * rollouts.mask           # (G, T-1)

    # Policy gradient: what is above the mean becomes likelier, what is below it less likely.
    loss = -(advantages * logp.sum(1)).mean()
    return {"loss": loss.item(), "loss_tensor": loss, **group}


# ---- 2. Completions ------------------------------------------------------------------------------

@dataclass
class Rollouts:
    """B = P*G completions; rows b*G .. b*G+G-1 are the group of prompt b, and begin with it.

    subtle: lengths alone tell what a completion is, never a comparison with a pad or stop id. The
    stop token belongs to it and is trained (else a policy forgets how to stop); Qwen3-Base pads with it."""

    ids: torch.Tensor             # (B, T)    prompt, completion, padding on the right
    prompt_lengths: torch.Tensor  # (B,)      tokens of the prompt
    lengths: torch.Tensor         # (B,)      tokens of the completion, the stop token included
    finished: torch.Tensor        # (B,) bool ended by a stop; False: cut off at max_new_tokens
    logp: torch.Tensor            # (B, T-1)  log pi_old of each sampled token, 0 elsewhere
    num_samples: int              # G

    @property
    def mask(self):
        """(B, T-1) 1.0 on completion tokens. As in logp, column t speaks of ids[:, t+1]."""
        column = torch.arange(1, self.ids.size(1), device=self.ids.device)
        start = self.prompt_lengths[:, None]
        return ((column >= start) & (column < start + self.lengths[:, None])).float()

    def completions(self):
        """The completions as B lists of token ids, stop token included."""
        spans = zip(self.ids.tolist(), self.prompt_lengths.tolist(), self.lengths.tolist())
        return [ids[start:start + length] for ids, start, length in spans]


def row_uniforms(rows, steps, seed):
    """(len(rows), steps) numbers in [0, 1), each row's hashed from its name and the seed: what it says depends
    neither on other rows nor on the number of processes, and a resumed run needs no saved random state."""
    table = torch.empty(len(rows), steps)
    for row, uniforms in zip(rows, table):
        digest = hashlib.blake2b(f"{seed} {row}".encode(), digest_size=7).digest()
        uniforms.uniform_(generator=torch.Generator().manual_seed(int.from_bytes(digest, "big")))
    return table


def choose(logits, uniforms, temperature=1.0, top_p=1.0, top_k=0):
    """logits (R, V), uniforms (R,) -> (a token for each row (R,), its log-prob (R,)).

    The log-prob is of softmax(logits / temperature), which token_logprobs trains; temperature 0 is
    greedy, with log-probs at 1. top_k keeps the k likeliest tokens, top_p the smallest set of that
    probability (arXiv 1904.09751); for evaluation, since training on what they leave is off-policy."""
    logp = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        token = logp.argmax(-1)
    else:
        probs = logp.exp()
        if top_k or top_p < 1.0:
            ranked, order = probs.sort(-1, descending=True)
            drop = ranked.cumsum(-1) - ranked >= top_p     # mass before this token; the first stays
            drop[:, top_k or drop.size(1):] = True
            probs = probs.masked_fill(drop.gather(-1, order.argsort(-1)), 0.0)
        cdf = probs.cumsum(-1)                               # the first token with cdf > u
        total = cdf[:, -1:].contiguous()                     # not 1: rounding, and what was dropped
        token = torch.searchsorted(cdf, uniforms[:, None] * total, right=True)
        # u * total may round up to total: then the last token with any probability at all.
        token = torch.minimum(token, torch.searchsorted(cdf, total)).squeeze(1)
    return token, logp.gather(1, token[:, None]).squeeze(1)


def decode(model, token, cache, uniforms, settings):
    """Read the newest token of R rows (R,), choose the next one -> (it (R,), its log-prob (R,))."""
    V = model.config.num_tokens     # subtle: ids from here on have an embedding, but are no tokens
    logits = model(token[:, None], cache, head=lambda x, weight: F.linear(x[:, -1], weight[:V]))
    return choose(logits, uniforms, *settings)


CACHE_BUCKET = 64           # slots; the cache starts with a multiple and doubles when it is full
PATIENCE = {"cpu": 1}      # steps between looks for finished rows; 8 where one waits for the device


@torch.no_grad()
def sample(model, prompts, num_samples=1, max_new_tokens=256, temperature=1.0, top_p=1.0, top_k=0,
           stop_ids=None, uniforms=None, cache_tokens=65536, on_finished=None, stop_after=None, step=decode):
    """G completions of each of P prompts (lists of token ids), with a KV cache -> Rollouts.

    temperature, top_p, top_k: see choose.   stop_ids: end a completion; by default the model's own.
    stop_after:   for texts that end one: from its ids to how many of them it keeps, 0 to go on.
    uniforms:     (P*G, max_new_tokens) random numbers, see row_uniforms; default torch's generator.
    cache_tokens: at most so many at once, other rows wait; in fp32 that changes rounding only.
    on_finished:  called with (row, its token ids) when rows that have finished leave the batch.
    step:         decode, or torch.compile(decode, dynamic=True)."""
    if not prompts or min(map(len, prompts)) == 0:
        raise ValueError("sample needs at least one prompt, and each prompt at least one token")
    G, B, longest, V = num_samples, len(prompts) * num_samples, max(map(len, prompts)), model.config.num_tokens
    # R places. Place r holds row rows[r], whose newest token is token[r], if it is running[r].
    limit = longest + max_new_tokens
    R = min(B, max(1, cache_tokens // limit))
    cache = model.new_cache(R, min(limit + 1, longest + CACHE_BUCKET - longest % CACHE_BUCKET))
    device = cache.lengths.device
    rows = torch.arange(R, device=device)
    token, running = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)

    # The prompts, and behind each what its row says; finished rows write one token further.
    padded = torch.tensor([prompt + [0] * (limit + 1 - len(prompt)) for prompt in prompts], device=device)
    ids, starts = padded.repeat_interleave(G, 0), torch.tensor([*map(len, prompts)], device=device)
    prompt_lengths = starts.repeat_interleave(G)
    logps, lengths = torch.zeros(B, limit, device=device), torch.zeros_like(prompt_lengths)
    uniforms = F.pad((torch.rand(B, max_new_tokens) if uniforms is None else uniforms).to(device), (0, 1))
    stop_ids = model.config.eos_token_id if stop_ids is None else stop_ids
    stop, stopped = torch.tensor([*stop_ids], device=device).long(), torch.zeros_like(lengths, dtype=torch.bool)
    settings, patience, started = (temperature, top_p, top_k), PATIENCE.get(device.type, 8), 0

    def say(places, new, logp):
        """The rows at these places say one more token each, if they are running."""
        row, said = rows[places], lengths[rows[places]]
        place = prompt_lengths[row] + said
        ids[row, place], logps[row, place - 1] = new, logp          # column t of logp: ids[:, t+1]
        lengths[row] = said + running[places]
        token[places] = new
        running[places] &= ~torch.isin(new, stop) & (said + 1 < max_new_tokens)

    for turn in itertools.count():
        # Look for rows that have finished. Once a fifth has, they leave, and waiting rows take their places.
        if turn % patience == 0:
            for row in rows.tolist() if stop_after and started else ():
                if keep := stop_after(ids[row, prompt_lengths[row]:][:lengths[row]].tolist()):
                    stopped[row], lengths[row] = True, keep
            running &= ~stopped[rows]
            left = int(running.sum())
            if left <= 0.8 * len(rows):
                for row in rows[~running].tolist() if on_finished and started else ():
                    on_finished(row, ids[row, prompt_lengths[row]:][:lengths[row]].tolist())
                keep = running.long().argsort(descending=True, stable=True)[:left + B - started]
                if len(keep) == 0:
                    break
                if len(keep) < len(rows):
                    cache.take(keep)
                    rows, token, running = rows[keep], token[keep], running[keep]
                if started < B:
                    places = (~running).nonzero().squeeze(1)
                    rows[places] = new = torch.arange(started, started + len(places), device=device)
                    # Read each prompt once, up to the logits of the token after it.
                    asked = slice(started // G, (started + len(places) - 1) // G + 1)
                    asked_ids = padded[asked, :starts[asked].max()]
                    last = torch.arange(len(asked_ids), device=device), starts[asked] - 1
                    prompt_cache = model.new_cache(*asked_ids.shape)
                    logits = model(asked_ids, prompt_cache, head=lambda x, weight: F.linear(x[last], weight[:V]))
                    prompt = new // G - asked.start             # of each new row, among those asked
                    cache.put(places, prompt_cache, prompt)
                    running[places], started = True, started + len(places)
                    say(places, *choose(logits[prompt], uniforms[new, 0], *settings))
                used = int((prompt_lengths + lengths)[rows].max()) # from here on counted, not asked

        # One more token for every place; a finished row stands still.
        if used >= cache.slots:
            cache.grow(min(limit + 1, 2 * cache.slots))
        said = lengths[rows]
        cache.lengths, cache.used = prompt_lengths[rows] + said - 1, used - 1
        say(slice(None), *step(model, token, cache, uniforms[rows, said], settings))
        used = min(used + 1, limit)

    ends = (prompt_lengths + lengths)[:, None]
    finished = stopped | torch.isin(ids.gather(1, ends - 1), stop).squeeze(1)
    width, column = int(ends.max()), torch.arange(limit + 1, device=device)
    ids, logps = ids.masked_fill(column >= ends, 0), logps.masked_fill(column[1:] >= ends, 0.0)
    return Rollouts(ids[:, :width], prompt_lengths, lengths, finished, logps[:, :width - 1], G)


# ---- 3. Rewards and advantages -------------------------------------------------------------------

def score(rollouts, texts, problems, reward_fn, verdicts=None, patience=60.0):
    """Judge every completion -> (rewards (P, G), for each of B rows a dict of named parts).

    reward_fn(completion, problem) -> (number, parts); "accuracy" is what evaluation counts (default: the
    reward within 0 and 1). verdicts: by row, Futures, begun while sampling, which get `patience` seconds.
    A verifier that raises, is late or returns nonsense (part "failed") gives the worst of the group, at most 0."""
    rewards, parts, deadline = [], [], time.monotonic() + patience
    for row, (text, finished) in enumerate(zip(texts, rollouts.finished.tolist(), strict=True)):
        try:
            verdict = (verdicts[row].result(max(0.0, deadline - time.monotonic())) if verdicts is not None
                       else reward_fn(text, problems[row // rollouts.num_samples]))
            reward, detail = float(verdict[0]), {name: float(part) for name, part in verdict[1].items()}
            if not all(map(math.isfinite, [reward, *detail.values()])) or not 0 <= detail.get("accuracy", 0) <= 1:
                raise ValueError(f"it returned {verdict}")
        except Exception as error:                        # Python shows the same warning only once
            warnings.warn(f"the verifier failed ({type(error).__name__}: {str(error)[:200]}). A reward returns "
                          '(number, {name: number}), finite, with "accuracy" from 0 to 1 or none', stacklevel=2)
            reward, detail = math.nan, {"accuracy": 0.0, "answered": 0.0, "failed": 1.0}    # must not pay either
        rewards.append(reward if finished else min(reward, 0.0))    # cut off: never stopping must not pay
        parts.append({"accuracy": min(1.0, max(0.0, reward)), "answered": 1.0, "failed": 0.0, **detail,
                      "truncated": float(not finished)})
    rewards = torch.tensor(rewards).view(len(problems), rollouts.num_samples)
    return torch.where(rewards.isnan(), rewards.nan_to_num().amin(1, keepdim=True), rewards), parts


def group_advantages(rewards, scale="std", eps=1e-6, **batch):
    """How much better than its group: A_i = (R_i - mean) / (std + eps).

    rewards: (P, G), or the chapter's list of G floats -> advantages of the same kind. batch: see train.py.
    scale: "std" (GRPO, 4.1.2), or "none", for the std overweights very easy and hard prompts (Dr. GRPO).
    Example of the chapter, one group: 1.10, 0.10, 0.00, 1.10 -> 0.998, -0.903, -1.093, 0.998."""
    if not isinstance(rewards, torch.Tensor):
        return group_advantages(torch.tensor(rewards, dtype=torch.float64), scale, eps).tolist()
    if scale not in ("std", "none"):
        raise ValueError(f"scale is {scale!r}, not 'std' or 'none'")
    exact = rewards.double()
    advantages = exact - exact.mean(-1, keepdim=True)
    if scale == "std":
        advantages /= exact.std(-1, correction=0, keepdim=True) + eps
    # subtle: the mean of equal rewards may be off by a rounding error, and eps would make that a signal.
    advantages[exact.amax(-1) == exact.amin(-1)] = 0.0
    return advantages.to(rewards.dtype if rewards.is_floating_point() else torch.float32)


# ---- 4. Log-probabilities and loss ---------------------------------------------------------------

CHUNK_ELEMENTS = 2**25      # logits in memory at once: 221 positions of Qwen3, 134 MB in fp32


def token_logprobs(model, ids, temperature=1.0, mask=None, return_entropy=False, index=None):
    """log pi(ids[:, t+1] | ids[:, :t+1]) for every t: (B, T) -> (B, T-1), at the sampling's temperature.
    mask: where it is 0 nothing is computed, and the result is 0. return_entropy: the entropies as well,
    without gradient. index: see microbatches; wants the rollouts' mask. By default each row is a line."""
    (B, T), tokens, targets = ids.shape, ids[:, :-1].flatten(), ids[:, 1:].flatten()    # t+1 is predicted at t
    chosen = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask.flatten().bool()
    index = (torch.arange(len(tokens)).view(B, T - 1) if index is None else index).to(ids.device)
    wanted, row, positions = (index >= 0) & chosen[index], index // (T - 1), index % (T - 1)        # (N, L)
    seen, places = None, index[wanted]                          # seen: all before it;  places: (M,)
    if ((row != row[:, :1]) & (index >= 0)).any():              # in a line each row sees itself and the prompt
        seen = (row[:, None] == row[:, :, None]) | (wanted.cumsum(1) == 0)[:, None]              # (N, L, L)
        seen = seen.tril()[:, None]

    def head(hidden, weight):                                    # (N, L, C), (V, C) -> (M,), (M,)
        # In chunks, made again on the way back: Qwen3's logits of 8 x 1024 tokens are 5 GB.
        size, weight = max(1, CHUNK_ELEMENTS // model.config.num_tokens), weight[:model.config.num_tokens]
        chunks = [checkpoint(chunk_logprobs, part, weight, target, temperature, use_reentrant=False)
                  for part, target in zip(hidden[wanted].split(size), targets[places].split(size))]
        return map(torch.cat, zip(*chunks))

    logp, entropy = (torch.zeros(targets.shape, device=ids.device).scatter(0, places, values).view(B, T - 1)
                     for values in model(tokens[index], head=head, positions=positions, mask=seen))
    return (logp, entropy) if return_entropy else logp


def chunk_logprobs(hidden, weight, target, temperature):     # (M, C), (V, C), (M,) -> (M,), (M,)
    logp = (F.linear(hidden, weight).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(1, target[:, None]).squeeze(1), entropy


def loss_weights(mask, norm="token", max_new_tokens=None):
    """What each token counts: mask (B, T-1) -> (B, T-1). critical: the whole batch's mask, so that
    splitting it into micro-batches changes nothing."""
    B, lengths = len(mask), mask.sum(1, keepdim=True)
    divisors = {"token": lengths.sum().clamp(min=1),    # every token counts the same (DAPO)
                "sequence": B * lengths.clamp(min=1),   # every completion counts the same (GRPO)
                "constant": B * (max_new_tokens or 1),  # no length in it at all (Dr. GRPO)
                "sum": B}                               # the chapter's: the log-probs are summed
    if norm not in divisors:
        raise ValueError(f"norm is {norm!r}, not one of {', '.join(divisors)}")
    return mask / divisors[norm]


def policy_loss(logp, old_logp, advantages, weights, clip=(0.2, 0.2), sampled_logp=None, ref_logp=None, kl_coef=0.0):
    """-sum_it w_it min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) + kl_coef * KL,  r_it = pi / pi_old.

    PPO (1707.06347, eq. 7) with a group's advantages: GRPO (eq. 3); with high > low DAPO's clip-higher.
    advantages: (B,); all others (B, T-1) -> scalar. sampled_logp, of the sampler, is for other losses."""
    ratio, advantages = (logp - old_logp).exp(), advantages[:, None]            # (B, T-1), (B, 1)
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    loss = -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()
    return loss + kl_coef * kl_penalty(logp, ref_logp, weights) if kl_coef else loss


def kl_penalty(logp, ref_logp, weights):
    """sum w (exp(-d) - 1 + d), d = log pi - log pi_ref: on samples of pi unbiased for KL(pi || pi_ref), never
    negative; its gradient is KL(pi_ref || pi)'s (GRPO, eq. 4; "k3" of Schulman, "Approximating KL divergence")."""
    d = logp - ref_logp
    return (weights * (torch.exp(-d) - 1 + d)).sum()


def microbatches(rollouts, keep, max_tokens, hidden_size, rank=0, world=1):
    """The rows to keep (B,), in micro-batches of at most max_tokens padded tokens (a row at least) -> those
    of process `rank`, (index, 1.0). index (N, L): which of ids[:, :-1].flatten() stands at each place of N
    lines, -1: none. Rows of a group may share a line: their prompt, read once, then what they say. Longest
    first: like lengths need little padding, short memory shows at once. critical: all processes get equally
    many, as passes through a sharded model wait; the shortest line fills up, counted 0.0 times."""
    starts, lengths, width = (rollouts.prompt_lengths - 1).tolist(), rollouts.lengths.tolist(), rollouts.ids.size(1) - 1
    G, kept, lines = rollouts.num_samples, [row for row, kept in enumerate(keep) if kept], []
    fair = sum(starts[row] + lengths[row] for row in kept) // world
    for row in kept:
        prompt, said = starts[row], torch.arange(lengths[row]) + starts[row] + row * width
        # A block costs 24 C C a token, and 4 C L to attend to L places. Of k rows behind a prompt of p
        # each costs least if they say sqrt(p (6 C + p)) together.
        room = min(max_tokens, fair, prompt + math.isqrt(prompt * (6 * hidden_size + prompt)))
        if lines and lines[-1][0] // width // G == row // G and len(lines[-1]) + lengths[row] <= room:
            lines[-1] = torch.cat([lines[-1], said])
        else:
            lines.append(torch.cat([torch.arange(prompt) + row * width, said]))
    lines.sort(key=len, reverse=True)
    share, batches = -(-len(lines) // world), []
    while lines:
        count = max(1, min(max_tokens // len(lines[0]), share))
        batches.append((torch.nn.utils.rnn.pad_sequence(lines[:count], True, -1), 1.0))
        lines = lines[count:]
    batches += [(index[-1:], 0.0) for index, _ in batches[-1:]] * (-len(batches) % world)
    return batches[rank::world]


def update_gradients(model, rollouts, advantages, temperature=1.0, norm="token", max_new_tokens=None,
                     micro_batch_tokens=16384, old_logp=None, clip=(0.2, 0.2), loss=policy_loss, reference=None,
                     kl_coef=0.0, rank=0, world=1, add_up=lambda tensor: tensor):
    """Add the gradient of the loss over all rollouts to .grad -> (statistics, log-probs (B, T-1)).

    advantages: (P, G). Rows with advantage 0 have no gradient and are not computed (except for a KL),
    but count in the normaliser, so that a batch with little signal makes a small step. old_logp: what
    the first update of this batch returned, if this is a later one. add_up sums over `world` processes.
    Statistics: loss, trained (rows); means over trained tokens: entropy (nats), mismatch (|log pi_sampler -
    log pi_trainer|: above rounding they see different models, masks or temperatures), ratio (pi_trainer /
    pi_sampler), clipped (pi / pi_old outside of clip), kl (k3, from `reference`)."""
    advantages, mask = advantages.reshape(-1).to(rollouts.ids.device), rollouts.mask
    weights, keep = loss_weights(mask, norm, max_new_tokens), ((advantages != 0) | (kl_coef > 0)).tolist()
    all_logp, sums = torch.zeros_like(mask), torch.zeros(7, device=mask.device)
    for index, real in microbatches(rollouts, keep, micro_batch_tokens, model.config.hidden_size, rank, world):
        rows = (index[index >= 0] // mask.size(1)).unique()
        logp, entropy = (x[rows] for x in token_logprobs(model, rollouts.ids, temperature, mask, True, index))
        with torch.no_grad():
            ref = reference and token_logprobs(reference, rollouts.ids, temperature, mask, index=index)[rows]
        # The first update's log-probs are the old ones; the sampler's equal them up to rounding.
        all_logp[rows] = now = logp.detach()
        old, inside, sampled = now if old_logp is None else old_logp[rows], mask[rows], rollouts.logp[rows]
        value = loss(logp, old, advantages[rows], weights[rows], clip, sampled_logp=sampled, ref_logp=ref, kl_coef=kl_coef)
        (real * value).backward()
        drift, moved = now - sampled, (now - old).exp()
        outside = (moved < 1 - clip[0]) | (moved > 1 + clip[1])
        sums += real * torch.stack([
            value.detach(), entropy.sum(), (drift.abs() * inside).sum(), (drift.exp() * inside).sum(),
            (outside * inside).sum(), sums.new_zeros(()) if ref is None else kl_penalty(now, ref, inside),
            inside.sum()])
    total, *means, tokens = add_up(sums).tolist()
    names = ["entropy", "mismatch", "ratio", "clipped"] + ["kl"] * (reference is not None)
    stats = {name: mean / max(tokens, 1) for name, mean in zip(names, means)}
    return {"loss": total, **stats, "trained": int((advantages != 0).sum())}, all_logp
