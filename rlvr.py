"""rlvr.py - how being right changes what is said: sampling, group-relative advantages and the policy-gradient loss.

One step of reinforcement learning with verifiable rewards, in the order of this file:

    1  completions   o_1 .. o_G ~ pi(. | q)               G samples for each of P prompts         sample
    2  rewards       R_i = verifier(o_i, answer of q)     rules, no reward model                  score
    3  advantages    A_i = (R_i - mean R) / (std R + eps) within the group of one prompt          group_advantages
    4  log-probs     log pi(o_it | q, o_i<t)              now with gradients                      token_logprobs
    5  loss          -sum_it w_it min(r_it A_i, clip(r_it, 1-e, 1+e) A_i),  r_it = pi / pi_old    policy_loss

compute_grpo_loss runs all five for one prompt, as the chapter writes it; train.py runs them for many.
Sources: GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3), DeepSeek-R1 (2501.12948), DAPO (2503.14476), Dr. GRPO
(2503.20783).

Departures from the textbook algorithm, each on purpose; the first, third and fourth can be undone by an argument:
  - No KL term, hence no reference model in memory: a verifiable reward cannot be fooled by drifting from the base
    model as a learnt reward model can, and DAPO and Dr. GRPO found the term to hurt (kl_penalty).
  - No critic: the mean reward of the group is the baseline.
  - One update per batch of completions, so pi = pi_old: the ratio is 1 (its gradient is not) and clipping cannot act
    (old_logp).
  - The loss is a token mean over the whole batch (DAPO), not a mean of per-completion means (GRPO), which lets long
    wrong answers off lightly; the other normalisations are one argument away (loss_weights).
  - A completion cut off before its stop token earns nothing, whatever it says: otherwise never stopping is free.
  - A group whose rewards are all equal has advantage exactly 0, not rounding noise divided by eps.

This file knows no flags, files, verifiers or processes: tensors and lists in, tensors out.
Letters: P prompts, G completions per prompt (the group), B = P*G rows, R rows still being sampled, T tokens, V tokens
in the vocabulary, C hidden size.
"""

import functools
import threading
import time
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# ---- 1. Completions --------------------------------------------------------------------------------------------------


@dataclass
class Rollouts:
    """B = P*G completions; rows b*G .. b*G+G-1 are the group of prompt b.

    What counts as a completion is told by lengths alone, never by comparing ids with a pad or stop id: the stop token
    is part of the completion and is trained (a policy that is not rewarded for stopping forgets how to), and
    Qwen3-Base pads with the very token it stops with.
    """

    ids: torch.Tensor             # (B, T)    prompt, completion, padding on the right
    prompt_lengths: torch.Tensor  # (B,)      tokens of the prompt
    lengths: torch.Tensor         # (B,)      tokens of the completion, the stop token included
    finished: torch.Tensor        # (B,) bool ended by a stop token; False: cut off at max_new_tokens
    logp: torch.Tensor            # (B, T-1)  log pi_old of each sampled token, 0 elsewhere
    num_samples: int              # G

    @property
    def mask(self):
        """(B, T-1) 1.0 on completion tokens. Like logp, column t speaks of ids[:, t+1], which is predicted at t."""
        column = torch.arange(1, self.ids.size(1), device=self.ids.device)
        start = self.prompt_lengths[:, None]
        return ((column >= start) & (column < start + self.lengths[:, None])).float()

    def take(self, groups):
        """Only the groups of these prompts (a list of indices), as new Rollouts."""
        device, G = self.ids.device, self.num_samples
        rows = (torch.tensor(groups, device=device)[:, None] * G + torch.arange(G, device=device)).view(-1)
        return Rollouts(*(getattr(self, name)[rows] for name in (
            "ids", "prompt_lengths", "lengths", "finished", "logp")), G)

    def to(self, device):
        return Rollouts(**{name: x.to(device) if torch.is_tensor(x) else x for name, x in vars(self).items()})

    def completions(self):
        """The completions as B lists of token ids, stop token included."""
        spans = zip(self.ids.tolist(), self.prompt_lengths.tolist(), self.lengths.tolist())
        return [ids[start:start + length] for ids, start, length in spans]


def join(batches):
    """Several Rollouts as one, their rows one below the other, padded to the widest."""
    width = max(batch.ids.size(1) for batch in batches)
    padded = [(F.pad(batch.ids, (0, width - batch.ids.size(1))), batch.prompt_lengths, batch.lengths, batch.finished,
               F.pad(batch.logp, (0, width - batch.ids.size(1)))) for batch in batches]
    return Rollouts(*map(torch.cat, zip(*padded)), batches[0].num_samples)


def row_uniforms(rows, steps, seed):
    """(len(rows), steps) numbers in [0, 1) that depend only on (seed, row): the randomness of `sample`.

    Each row of a batch owns its numbers, so what a row says does not depend on the rows that share its batch, on the
    batch size or on the number of processes, and a resumed run needs no saved random state.
    """
    seeds = [seed * 1_000_003 + row for row in rows]
    return torch.stack([torch.rand(steps, generator=torch.Generator().manual_seed(s)) for s in seeds])


def next_token_probs(logits, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0):
    """logits (R, V) -> (log-probs of the policy (R, V), probabilities to draw from (R, V), not renormalised).

    The log-probs are of the distribution softmax(logits / temperature), the one that token_logprobs trains. top_k
    keeps the k likeliest tokens, top_p the smallest set that holds probability p (2019, arXiv 1904.09751), min_p those
    with at least min_p times the largest probability (2407.01082). All are for evaluation: training on filtered samples
    is off-policy, because what was drawn is no longer distributed as the log-probs say.
    """
    logp = (logits.float() / temperature).log_softmax(-1)
    probs = logp.exp()
    if top_k or top_p < 1.0:
        ranked, order = probs.sort(-1, descending=True)
        drop = (ranked.cumsum(-1) - ranked) >= top_p                 # mass before this token; the first always stays
        if top_k:
            drop[:, top_k:] = True
        probs = probs.masked_fill(drop.gather(-1, order.argsort(-1)), 0.0)
    if min_p:
        probs = probs.masked_fill(probs < min_p * probs.amax(-1, keepdim=True), 0.0)
    return logp, probs


def draw(probs, uniforms):
    """Invert the distribution function: probs (R, V), uniforms (R,) -> ids (R,), the first token with cdf > u."""
    cdf = probs.cumsum(-1)
    total = cdf[:, -1:].contiguous()                           # not 1: rounding, and what the filters took away
    drawn = torch.searchsorted(cdf, uniforms[:, None] * total, right=True)
    last = torch.searchsorted(cdf, total)                      # the last token with any probability at all:
    return torch.minimum(drawn, last).squeeze(1)               # u * total may round up to total


def prefill(model, prompts):
    """Read P prompts -> (their cache, the logits of the first token after each (P, V))."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    # The pad id is never seen by attention nor counted by the loss; any valid id will do.
    longest = max(map(len, prompts))
    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=model.device)
    cache = model.new_cache(*padded.shape)
    last = torch.arange(len(prompts), device=model.device), lengths - 1
    logits = model(padded, cache, head=lambda hidden, weight: F.linear(hidden[last], weight[:model.config.num_tokens]))
    cache.lengths = lengths
    return cache, logits


def decode(model, token, cache):
    """Read the newest token of R rows (R,) -> the logits of the next one (R, V). The ids beyond V = num_tokens have an
    embedding row but no token: they are never sampled."""
    return model(token[:, None], cache,
                 head=lambda hidden, weight: F.linear(hidden[:, -1], weight[:model.config.num_tokens]))


def choose(logits, uniforms, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0):
    """logits (R, V), uniforms (R,) -> (a token for each row (R,), its log-prob (R,)); see sample."""
    logp, probs = next_token_probs(logits, temperature or 1.0, top_p, top_k, min_p)                        # (R, V)
    token = draw(probs, uniforms) if temperature else logp.argmax(-1)
    return token, logp.gather(1, token[:, None]).squeeze(1)


def advance(model, token, cache, uniforms, settings):
    """Read the newest token of R rows and choose the next one -> (it (R,), its log-prob (R,))."""
    return choose(decode(model, token, cache), uniforms, *settings)


@functools.cache
def _compiled_advance():
    """One compilation for all shapes; on CUDA each shape then becomes a CUDA graph of its own."""
    torch._dynamo.config.specialize_float = True        # the temperature: a graph takes no number from the CPU
    return torch.compile(advance, mode="reduce-overhead", dynamic=True)


CACHE_BUCKET = 64           # slots; the cache starts with a multiple of this and doubles when it is full
CUDA_GRAPHS = {"cuda"}      # devices where the compiled step is recorded, for fixed shapes and addresses
PATIENCE = {"cpu": 1}       # steps between two looks for finished rows, by device; 8 where a look waits for the device


@torch.no_grad()
def sample(model, prompts, num_samples=1, max_new_tokens=256, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0,
           stop_ids=None, uniforms=None, cache_tokens=65536, on_finished=None, compiled=False):
    """G completions of each prompt, many rows at once, with a KV cache -> Rollouts.

    prompts:      P lists of token ids, of any lengths. temperature 0 is greedy (its log-probs are at temperature 1).
    stop_ids:     tokens that end a completion; default model.config.eos_token_id.
    uniforms:     (P*G, max_new_tokens) random numbers, see row_uniforms; default: fresh ones from torch's generator.
    cache_tokens: at most so many tokens, prompts included, are in the cache; rows that find no room wait for others to
                  finish. It bounds the memory and changes no completion (in fp32).
    on_finished:  called with (row, its token ids) as soon as a row is seen to have finished.
    compiled:     decode with torch.compile, on CUDA as a CUDA graph: of a fixed shape, so finished rows stay until
                  waiting ones replace them, and with a cache that is kept for the next call.

    What makes it fast: each prompt is read once and its cache handed to the rows of its group; finished rows leave the
    batch or are replaced; the cache grows with the text, and attention reads only what is in use; on a GPU nothing in
    the token loop waits for the device except one look in eight for finished rows.
    """
    if not prompts or min(map(len, prompts)) == 0:
        raise ValueError("sample needs at least one prompt, and each prompt at least one token")
    device, longest = model.device, max(map(len, prompts))
    B, patience = len(prompts) * num_samples, PATIENCE.get(device.type, 8)
    stop_ids = model.config.eos_token_id if stop_ids is None else stop_ids
    stop = torch.tensor(list(stop_ids), dtype=torch.long, device=device)
    static = compiled and device.type in CUDA_GRAPHS
    uniforms = torch.rand(B, max_new_tokens) if uniforms is None else uniforms
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts], device=device).repeat_interleave(num_samples)
    # What has been said, by row. The column after the last token is for rows at their limit that nobody has replaced.
    tokens = torch.zeros(B, max_new_tokens + 1, dtype=torch.long, device=device)
    token_logps = torch.zeros(B, max_new_tokens + 1, device=device)
    uniforms = F.pad(uniforms.to(device), (0, 1))
    lengths = torch.zeros(B, dtype=torch.long, device=device)

    # R places, all of them free. Place r holds row rows[r], if it is running[r]; that row has said said[r] tokens, the
    # last of which is token[r].
    limit = longest + max_new_tokens
    slots = limit + 1                          # one is always left: a step that reads all slots would be compiled twice
    slots += -slots % (4 * CACHE_BUCKET) if static else 0                                         # few different graphs
    R = min(B, max(1, cache_tokens // (slots - 1)))
    rows, running = torch.arange(R, device=device), torch.zeros(R, dtype=torch.bool, device=device)
    said, token, logp = torch.zeros_like(rows), torch.zeros_like(rows), torch.zeros(R, device=device)
    cache = model.new_cache(R, slots if static else min(slots, longest + CACHE_BUCKET - longest % CACHE_BUCKET), static)
    settings = temperature, top_p, top_k, min_p
    step, started, left, turn, told = _compiled_advance() if compiled else advance, 0, 0, 0, set()
    while True:
        # Waiting rows take the places of finished ones.
        if started < B and left <= 0.8 * R:
            places = (~running).nonzero().squeeze(1)[:B - started]
            new = torch.arange(started, started + len(places), device=device)
            first, last = started // num_samples, (started + len(places) - 1) // num_samples
            prompt_cache, prompt_logits = prefill(model, prompts[first:last + 1])
            group = new // num_samples - first                           # which of these prompts each new row answers
            cache.put(places, prompt_cache, group)
            rows[places], running[places], said[places] = new, True, 0
            token[places], logp[places] = choose(prompt_logits[group], uniforms[new, 0], *settings)
            started, left = started + len(new), left + len(new)
            used = int((prompt_lengths[rows] + said).max())              # slots in use; from here on counted, not asked

        # Write down what each place has just said. said does not count what finished rows say, so nobody will see it.
        tokens[rows, said], token_logps[rows, said] = token, logp
        said += running
        lengths[rows] = said
        running &= ~torch.isin(token, stop) & (said < max_new_tokens)

        # Finished rows are handed out and, when nobody waits for their places, leave the batch.
        turn += 1
        if turn % patience == 0:
            before, left = left, int(running.sum())
            if on_finished is not None and left < before:
                for row in sorted(set(rows[~running].tolist()) - told):
                    on_finished(row, tokens[row, :lengths[row]].tolist())
                    told.add(row)
            if not left and started == B:
                break
            # Copying the cache costs about a step; let a few rows gather first. Two stay: one would be compiled again.
            if started == B and left <= 0.8 * len(rows) and not static and len(rows) > 2:
                keep = running.long().argsort(descending=True, stable=True)[:max(left, 2)]
                cache.take(keep)
                rows, token, running, said = rows[keep], token[keep], running[keep], said[keep]
        if left:
            used = min(used + 1, limit)
            if used >= cache.slots and not static:
                cache.grow(min(slots, 2 * cache.slots))
            cache.lengths, cache.used = prompt_lengths[rows] + said - 1, used - 1         # a finished row stands still
            token, logp = step(model, token, cache, uniforms[rows, said], settings)                       # (R,), (R,)
            if static:                                        # what a CUDA graph returns is overwritten by its next run
                token, logp = token.clone(), logp.clone()

    padded = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=device)
    finished = torch.isin(tokens.gather(1, lengths[:, None] - 1), stop).squeeze(1)
    return _assemble(padded.repeat_interleave(num_samples, 0), prompt_lengths, tokens, token_logps, lengths, finished,
                     num_samples)


def _assemble(prompts, prompt_lengths, tokens, token_logps, lengths, finished, num_samples):
    """Put each completion right behind its prompt: (B, Tp), (B, Tc) -> Rollouts of width max(prompt + completion)."""
    width = int((prompt_lengths + lengths).max())
    inside = torch.arange(tokens.size(1), device=tokens.device) < lengths[:, None]                         # (B, Tc)
    row, column = inside.nonzero(as_tuple=True)
    place = prompt_lengths[row] + column
    ids = F.pad(prompts, (0, max(0, width - prompts.size(1))))[:, :width].contiguous()
    ids[row, place] = tokens[row, column]
    logp = torch.zeros(len(ids), width - 1, device=ids.device)
    logp[row, place - 1] = token_logps[row, column]           # column t of logp speaks of ids[:, t+1]
    return Rollouts(ids, prompt_lengths, lengths, finished, logp, num_samples)


# ---- 2. Rewards ------------------------------------------------------------------------------------------------------

def score(rollouts, texts, problems, reward_fn, verdicts=None, patience=60.0):
    """Judge every completion -> (rewards (P, G), one dict of named parts per row, for the log).

    texts: B decoded completions; problems: P dicts; reward_fn(completion, problem) -> (float, parts). Of the parts,
    "accuracy" is what evaluation counts (by default the reward itself) and "answered" whether there was an answer.
    A completion that was cut off earns 0: otherwise a policy could only lose by stopping.
    verdicts: those that were begun while sampling went on (verdict_threads), by row; they get `patience` more seconds.
    A verifier that raises, or is not done by then, costs its completion the reward (part "failed"), and not the run.
    """
    rewards, parts, deadline = [], [], time.monotonic() + patience
    for row, (text, finished) in enumerate(zip(texts, rollouts.finished.tolist(), strict=True)):
        try:
            value, detail = (verdicts[row].result(max(0.0, deadline - time.monotonic())) if verdicts is not None
                             else reward_fn(text, problems[row // rollouts.num_samples]))
        except Exception as error:
            warnings.warn(f"the verifier failed with {error!r}; reward 0 for {text[-80:]!r}", stacklevel=2)
            value, detail = 0.0, {"answered": 0.0, "failed": 1.0}
        rewards.append(value if finished else 0.0)
        parts.append({"accuracy": value, "answered": 1.0, "failed": 0.0, **detail, "truncated": float(not finished)})
    return torch.tensor(rewards, dtype=torch.float32).view(len(problems), rollouts.num_samples), parts


def soften_cuts(rewards, rollouts, max_new_tokens, share=0.2):
    """DAPO's soft overlong punishment (2503.14476, eq. 13): off goes 0 up to (1 - share) * max_new_tokens, from there
    linearly more, 1 at max_new_tokens. Rewards (P, G) -> (P, G). Example: 100 tokens at most, 90 used: -0.5."""
    excess = (rollouts.lengths / max_new_tokens - (1 - share)) / share
    return rewards - excess.clamp(0, 1).view_as(rewards).to(rewards.device)


def verdict_threads(reward_fn, count):
    """Start `count` threads for reward_fn -> begin(text, problem), which returns the Future of what reward_fn returns;
    begin(None, None) ends one of them.

    Daemon threads, of this batch only: a verifier that hangs holds up no later batch, nor the end of the program, as
    one in an executor would.
    """
    queue = SimpleQueue()

    def work():
        while (item := queue.get())[1] is not None:
            future, text, problem = item
            try:
                future.set_result(reward_fn(text, problem))
            except BaseException as error:
                future.set_exception(error)

    def begin(text, problem):
        queue.put((future := Future(), text, problem))
        return future
    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    return begin


# ---- 3. Advantages ---------------------------------------------------------------------------------------------------

def group_advantages(rewards, scale="std", eps=1e-6):
    """How much better than its group: A_i = (R_i - mean) / (std + eps), std over the group itself (divided by G).

    rewards: (P, G) tensor, one group a row, or the chapter's list of G floats -> advantages of the same kind.
    scale:   by what R_i - mean is divided
        "std"    the group's std: every group weighs the same                              (GRPO, 2402.03300, 4.1.2)
        "none"   1: dividing by std overweights very easy and very hard prompts                 (Dr. GRPO, 2503.20783)
        "batch"  the std of all centred rewards in the batch, the same for every group          (Lite PPO, 2508.08221)
        "loo"    (G - 1) / G, which makes it R_i less the mean of the others, leave-one-out         (RLOO, 2402.14740)

    Example (chapter, one group): 1.10, 0.10, 0.00, 1.10 -> 0.998, -0.903, -1.093, 0.998.
    """
    if not isinstance(rewards, torch.Tensor):
        return group_advantages(torch.tensor(rewards, dtype=torch.float64), scale, eps).tolist()
    exact = rewards.double()
    centred = exact - exact.mean(-1, keepdim=True)
    # Equal rewards: the mean may differ from them by a rounding error, which eps would blow up into a signal.
    centred = centred.masked_fill(exact.amax(-1, keepdim=True) == exact.amin(-1, keepdim=True), 0.0)
    if scale == "std":
        centred = centred / (exact.std(-1, correction=0, keepdim=True) + eps)
    elif scale == "batch":
        centred = centred / (centred.square().mean().sqrt() + eps)
    elif scale == "loo":
        centred = centred * exact.size(-1) / max(1, exact.size(-1) - 1)
    elif scale != "none":
        raise ValueError(f"scale is {scale!r}, not 'std', 'none', 'batch' or 'loo'")
    return centred.to(rewards.dtype)


def decoupled_advantages(rewards, eps=1e-6):
    """GDPO (2601.05242): K rewards (K, P, G) -> (P, G). Each reward is normalised within its groups, then they are
    added, then divided by the std over the batch. In a plain sum, rewards (1, 0) and (0, 1) are the same; here a reward
    that few of the group got counts for more, whatever its scale."""
    total = sum(group_advantages(reward, "std", eps) for reward in rewards)
    return total / (total.square().mean().sqrt() + eps)


# ---- 4. Log-probabilities --------------------------------------------------------------------------------------------

CHUNK_ELEMENTS = 2**25      # logits that are in memory at once: 221 positions of Qwen3, 134 MB in fp32


def token_logprobs(model, ids, temperature=1.0, mask=None, return_entropy=False, chunk_elements=CHUNK_ELEMENTS):
    """log pi(ids[:, t+1] | ids[:, :t+1]) for every t: (B, T) -> (B, T-1), at the temperature of the sampling.

    mask:           (B, T-1); positions where it is 0 are not computed and give 0.
    return_entropy: also the entropy of each of those distributions, (B, T-1), without gradient.

    The full logits are the largest tensor of the whole training, 5 GB for 8 x 1024 tokens of Qwen3, and they would be
    kept for the backward pass. So the projection runs in chunks of at most chunk_elements logits, and each chunk is
    computed again in the backward pass: same numbers, no (B, T, V) tensor.
    """
    targets = ids[:, 1:]                                                         # (B, T-1) token t+1 is predicted at t
    chosen = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask.bool()
    size = max(1, chunk_elements // model.config.num_tokens)

    def chunk_logprobs(hidden, weight, target):                                  # (N, C), (V, C), (N,) -> (N,), (N,)
        logp = (F.linear(hidden, weight).float() / temperature).log_softmax(-1)
        with torch.no_grad():
            entropy = -(logp.exp() * logp).sum(-1)
        return logp.gather(1, target[:, None]).squeeze(1), entropy

    def head(hidden, weight):                                                    # (B, T-1, C), (V, C)
        hidden, target, weight = hidden[chosen], targets[chosen], weight[:model.config.num_tokens]
        if len(target) <= size:
            return chunk_logprobs(hidden, weight, target)
        pieces = [checkpoint(chunk_logprobs, h, weight, t, use_reentrant=False)
                  for h, t in zip(hidden.split(size), target.split(size))]
        return tuple(torch.cat(column) for column in zip(*pieces))

    logp, entropy = (torch.zeros(targets.shape, device=ids.device).masked_scatter(chosen, values)
                     for values in model(ids[:, :-1], head=head))
    return (logp, entropy) if return_entropy else logp


# ---- 5. Loss ---------------------------------------------------------------------------------------------------------

def loss_weights(mask, norm="token", max_new_tokens=None):
    """What each token counts in the loss: mask (B, T-1) -> weights (B, T-1). Computed once for the whole batch; a
    micro-batch takes its rows of it, so that splitting a batch cannot change the loss.

    "token"     1 / tokens in the batch: every token counts the same                                        (DAPO)
    "sequence"  1 / (B * length of the row): every completion counts the same                               (GRPO)
    "constant"  1 / (B * max_new_tokens): no length in it at all                                        (Dr. GRPO)
    "sum"       1 / B: the chapter's -(advantage * sum of log-probs).mean()
    """
    rows, lengths = len(mask), mask.sum(1, keepdim=True).clamp(min=1)
    if norm == "token":
        return mask / mask.sum().clamp(min=1)
    if norm == "sequence":
        return mask / (rows * lengths)
    if norm == "constant":
        return mask / (rows * max_new_tokens)
    if norm == "sum":
        return mask / rows
    raise ValueError(f"norm is {norm!r}, not 'token', 'sequence', 'constant' or 'sum'")


def log_ratios(logp, old_logp, weights, loss="ppo"):
    """log(pi / pi_old) of each token, (B, T-1); with "gspo" its mean over the completion, the same for all tokens."""
    ratios = logp - old_logp
    if loss == "gspo":
        inside = (weights > 0).float()
        ratios = ((ratios * inside).sum(1) / inside.sum(1).clamp(min=1))[:, None] * inside
    return ratios


def policy_loss(logp, old_logp, advantages, weights, clip=(0.2, 0.2), loss="ppo"):
    """What is minimised, summed over the tokens t of all completions i with their weights w_it -> scalar.

    logp, old_logp, weights: (B, T-1); advantages: (B,). With r_it = pi / pi_old, clip = (low, high):
        "ppo"        -w min(r A, clip(r, 1 - low, 1 + high) A)        (PPO, 1707.06347, eq. 7; GRPO, 2402.03300, eq. 3;
                                                                       with high > low DAPO's clip-higher, 2503.14476)
        "gspo"       the same with r_i, the geometric mean of r_it over the completion                (GSPO, 2507.18071)
        "cispo"      -w sg(clip(r, 1 - low, 1 + high)) A log pi: what is clipped still learns   (MiniMax-M1, 2506.13585)
        "reinforce"  -w A log pi: the chapter's, never clipped
    On-policy, with old_logp equal to logp, all four have the same gradient (with norm "sequence" for gspo), and the
    value says nothing about progress: it is 0 up to weighting, whatever the policy has learnt.
    """
    ratio = log_ratios(logp, old_logp, weights, loss).exp()
    advantages = advantages[:, None]                                             # (B, 1) the same for all its tokens
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    if loss in ("ppo", "gspo"):
        return -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()
    if loss == "cispo":
        return -(weights * clipped.detach() * advantages * logp).sum()
    if loss == "reinforce":
        return -(weights * advantages * logp).sum()
    raise ValueError(f"loss is {loss!r}, not 'ppo', 'gspo', 'cispo' or 'reinforce'")


def clipped_share(logp, old_logp, advantages, weights, clip=(0.2, 0.2), loss="ppo"):
    """The weight of the tokens whose gradient the clipping removes (with "cispo": bounds) -> scalar in [0, 1]."""
    ratio = log_ratios(logp, old_logp, weights, loss).exp()
    up, down = (ratio > 1 + clip[1]), (ratio < 1 - clip[0])
    if loss in ("ppo", "gspo"):                              # of the two bounds, the one that A pushes against
        up, down = up & (advantages[:, None] > 0), down & (advantages[:, None] < 0)
    return (weights * (up | down)).sum() / weights.sum().clamp(min=1e-9) * (loss != "reinforce")


def kl_penalty(logp, ref_logp, weights, estimator="k3"):
    """Estimates of KL(pi || pi_ref), sum_it w_it k(it) -> scalar. With d = log pi - log pi_ref of a sampled token:

        "k1"  d                    unbiased, but its gradient is 0 on average: as a loss it does nothing but add noise
        "k2"  d^2 / 2              biased, and its gradient is that of the KL
        "k3"  exp(-d) - 1 + d      unbiased, never negative, the usual choice (GRPO, eq. 4); its gradient is that of the
                                   other KL, of pi_ref against pi
    Source: Schulman, "Approximating KL divergence"; the gradients: 2505.17508, 2.2.
    """
    d = logp - ref_logp
    if estimator == "k1":
        k = d
    elif estimator == "k2":
        k = d.square() / 2
    elif estimator == "k3":
        k = torch.exp(-d) - 1 + d
    else:
        raise ValueError(f"estimator is {estimator!r}, not 'k1', 'k2' or 'k3'")
    return (weights * k).sum()


def microbatches(rollouts, keep, max_tokens, rank=0, world=1):
    """Split the rows where keep (B,) is True into micro-batches of at most max_tokens padded tokens each -> a list of
    (index tensor, 1.0). Longest rows first: rows of similar length share a batch (little padding), and if memory
    is short it shows at once.

    With `world` processes, those of process `rank`: every world-th of at least so many. All get equally many, since
    each forward and backward pass of a sharded model waits for the others: the shortest row fills up, with 0.0 for 1.0.
    """
    totals = rollouts.prompt_lengths + rollouts.lengths
    order = totals.masked_fill(~keep, 0).argsort(descending=True, stable=True)[:int(keep.sum())]
    batches, start = [], 0
    while start < len(order):
        count = max(1, min(max_tokens // int(totals[order[start]]), -(-len(order) // world)))
        rows = order[start:start + count]
        batches.append((rows, 1.0))
        start += count
    batches += [(order[-1:], 0.0)] * (-len(batches) % world)
    return batches[rank::world]


def alone(tensor):
    """The sum of a tensor over all processes, when there is one. train.py passes torch.distributed's."""
    return tensor


@torch.no_grad()
def batch_logprobs(model, rollouts, temperature=1.0, micro_batch_tokens=16384, rank=0, world=1, add_up=alone):
    """The log-probs of all completions under a model, without gradients: (B, T-1). For a reference model, and for the
    policy before the first of several updates."""
    logp, everything = torch.zeros_like(rollouts.logp), torch.ones_like(rollouts.finished)
    for rows, real in microbatches(rollouts, everything, micro_batch_tokens, rank, world):
        width = int((rollouts.prompt_lengths + rollouts.lengths)[rows].max())
        logp[rows, :width - 1] += real * token_logprobs(model, rollouts.ids[rows, :width], temperature,
                                                        rollouts.mask[rows, :width - 1])
    return add_up(logp)


def update_gradients(model, rollouts, advantages, temperature=1.0, norm="token", max_new_tokens=None,
                     micro_batch_tokens=16384, old_logp=None, clip=(0.2, 0.2), loss="ppo", ref_logp=None, kl_coef=0.0,
                     kl_estimator="k3", rank=0, world=1, add_up=alone):
    """Add the gradient of policy_loss over all rollouts to the model's .grad -> statistics of the batch.

    advantages: (P, G). Rows with advantage 0 contribute exactly nothing to the gradient and are not computed, but
    their tokens count in the normaliser, so a batch with little signal makes a small step.
    old_logp: (B, T-1) log-probs before the first update of this batch; None: this is the first, so they are the
    current ones. ref_logp (B, T-1) and kl_coef: add kl_coef * kl_penalty; then rows without advantage count too.
    rank, world, add_up: of `world` processes that hold the same rollouts, each adds the gradient of its share of the
    micro-batches, weighted within the whole batch, so the sum of their gradients is the gradient of one process.
    Returns floats: loss, entropy (nats per token), mismatch (mean |log pi_sampler - log pi_trainer|: anything far above
    rounding means that sampling and training do not see the same model, mask or temperature), ratio (mean of
    pi_trainer / pi_sampler, which says the same as a factor of the gradient; both of a first update), clipped (share of
    the trained tokens), kl (mean k3 per token) and trained (rows).
    """
    advantages, mask = advantages.reshape(-1).to(rollouts.ids.device), rollouts.mask
    weights = loss_weights(mask, norm, max_new_tokens)
    keep = torch.ones_like(advantages, dtype=torch.bool) if kl_coef else advantages != 0
    sums = torch.zeros(7, device=mask.device, dtype=torch.float32)
    for rows, real in microbatches(rollouts, keep, micro_batch_tokens, rank, world):
        width = int((rollouts.prompt_lengths + rollouts.lengths)[rows].max())
        cut = rows, slice(width - 1)
        logp, entropy = token_logprobs(model, rollouts.ids[rows, :width], temperature, mask[cut], return_entropy=True)
        # In a first update the trainer's own log-probs are the old ones (rollouts.logp equals them up to rounding).
        old = logp.detach() if old_logp is None else old_logp[cut]
        value = policy_loss(logp, old, advantages[rows], weights[cut], clip, loss)
        if kl_coef:
            value = value + kl_coef * kl_penalty(logp, ref_logp[cut], weights[cut], kl_estimator)
        (real * value).backward()
        now = logp.detach()
        drift = now - rollouts.logp[cut]
        sums += real * torch.stack([
            value.detach(), entropy.sum(), (drift.abs() * mask[cut]).sum(), (drift.exp() * mask[cut]).sum(),
            clipped_share(now, old, advantages[rows], mask[cut], clip, loss) * mask[cut].sum(),
            torch.zeros_like(entropy.sum()) if ref_logp is None else kl_penalty(now, ref_logp[cut], mask[cut]),
            mask[cut].sum()])
    total, *means, tokens = add_up(sums).tolist()
    entropy, mismatch, ratio, clipped, kl = (mean / max(tokens, 1) for mean in means)
    return {"loss": total, "entropy": entropy, "mismatch": mismatch, "ratio": ratio, "clipped": clipped, "kl": kl,
            "trained": int((advantages != 0).sum())}


# ---- 6. The five steps on one page -----------------------------------------------------------------------------------

def compute_grpo_loss(model, tokenizer, prompt, ground_truth, reward_fn, num_rollouts=4, max_new_tokens=512,
                      temperature=0.8, uniforms=None):
    """One prompt from rollouts to loss, the chapter's function of this name.

    prompt: text, encoded as it is; reward_fn(completion, ground_truth) -> float, e.g. verifiers.reward_rlvr.
    Returns {"loss", "loss_tensor", "rewards", "advantages", "completions"}; loss_tensor is None when every reward is
    the same, because there is nothing to learn from such a group.
    """
    rollouts = sample(model, [tokenizer.encode(prompt)], num_rollouts, max_new_tokens, temperature, uniforms=uniforms)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    rewards, _ = score(rollouts, texts, [ground_truth], lambda text, truth: (reward_fn(text, truth), {}))      # (1, G)
    advantages = group_advantages(rewards)                                                                     # (1, G)
    result = {"loss": 0.0, "loss_tensor": None, "rewards": rewards[0].tolist(), "advantages": advantages[0].tolist(),
              "completions": texts}
    if advantages.any():
        logp = token_logprobs(model, rollouts.ids, temperature, rollouts.mask)                                # (G, T-1)
        loss = -(advantages[0].to(logp.device) * logp.sum(1)).mean()     # logp is 0 outside the completion
        result.update(loss=loss.item(), loss_tensor=loss)
    return result
