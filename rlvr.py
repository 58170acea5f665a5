"""rlvr.py - GRPO: sample groups of completions, and turn their rewards into advantages and a loss.

    completions   o_1 .. o_G ~ pi(. | q)           G samples for each of P prompts  sample
    replies       between the turns of o_i         from the environment, if any     chat.Turns
    rewards       R_i = verifier(o_i, truth of q)  rules, no reward model           score
    advantages    A_i = (R_i - mean R) / std R     within the group of one prompt   group_advantages
    log-probs     log pi(o_it | q, o_i<t)          now with gradients               log_probs_of
    loss          -sum w_it min(r_it A_i, clip(r_it) A_i),   r_it = pi / pi_old     policy_loss

Section 1 follows the code of chapter 9.5, for comparison; notebooks/page.py has it all on one page.
train.py uses sections 2 to 4, which handle many prompts at once. Section 5 is class GRPO,
which your own method subclasses. The code departs from PPO in points 1 to 3, from GRPO in points 1
and 4, and from the chapter in points 4 to 12. "departure N" marks the lines of points 2 to 12:

  1  There is no KL term, as in the chapter, so no reference model is needed.
     notebooks/methods/kl.py adds both.
  2  There is no critic, as in the chapter: the mean reward of the group is the baseline.
  3  Each batch gets one update, as in GRPO's own runs (its section 4.2), so pi = pi_old: the ratio
     is 1 (its gradient is not 0), and nothing is clipped.
  4  The loss is a mean over all tokens of the batch (DAPO). The chapter's loss is this loss times
     the mean length of a completion. GRPO takes the mean of each completion first, so the tokens
     of a long wrong completion are punished less.
  5  A completion that was cut off earns at most 0: otherwise never stopping would be free.
  6  The std of a group divides by G, not G - 1, so advantages are sqrt(G / (G - 1)) times larger.
  7  Log-probs are taken at the sampling temperature. The chapter samples at 0.8 and trains at 1.
  8  The answer is the last \\boxed{..} of a completion, not the first (verifiers.py).
  9  Answers are compared exactly, by value, without a tolerance of 1e-6 (appendix/grading.py).
 10  A step has 8 problems, not 1. Groups with equal rewards are skipped, not the whole step.
 11  The Base model is trained, at a learning rate of 3e-6 with warm-up and cosine decay (train.py).
 12  If the truth is one number, the answer must be worked out: an expression copied from the
     question may have the right value, but earns nothing (verifiers.py).

Sources: GRPO (arXiv 2402.03300), DAPO (2503.14476), Dr. GRPO (2503.20783).
Letters: P prompts, G completions per prompt (a group), B = P*G rows, A rows still being sampled,
T tokens, V vocabulary size, C hidden size. A micro-batch holds b of the B rows, laid out in N lines
of L tokens; M of these tokens are trained.
"""

import hashlib
import math
import random
import re
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence

from appendix.chat import Turns, close_environments, read_replies, write_replies
from appendix.plumbing import DataError, bar, option, run_all
from model import SAMPLE_TOKENS, KVCache, oom_hint, sample_tokens_that_fit
from verifiers import checked, reward_rlvr

# ---- 1. The chapter's page -----------------------------------------------------------------------


def compute_grpo_loss(
    model,
    tokenizer,
    prompt,
    ground_truth,
    device=None,
    num_rollouts=4,
    max_new_tokens=512,
    temperature=0.8,
    reward_fn=reward_rlvr,
):
    """Compute the loss of one step for one prompt, with the formula of chapter 9.5's function of
    this name. num_rollouts is G, called num_samples elsewhere. In the returned dict,
    "loss_tensor" is None if all rewards are equal, because there is nothing to learn."""
    # Rollout: G completions, and the reward of each.
    rollouts = sample(model, [tokenizer.encode(prompt)], num_rollouts, max_new_tokens, temperature)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    rewards = [reward_fn(text, ground_truth) for text in texts]

    # Advantage: how much better a completion is than its group.
    R = torch.tensor(rewards, device=device or model.device).float()  # (G,)
    advantages = (R - R.mean()) / (R.std() + 1e-8)  # (G,)
    group = {"rewards": rewards, "advantages": advantages.tolist(), "rollouts": rollouts}
    if len(set(rewards)) == 1:
        return {"loss": 0.0, "loss_tensor": None, **group}

    # Log-prob of each completion: the sum over its tokens. Token t+1 is predicted at t.
    logp = model(rollouts.ids[:, :-1]).float().log_softmax(-1)  # (G, T-1, V)
    logp = logp.gather(2, rollouts.ids[:, 1:, None]).squeeze(2)  # (G, T-1)
    logp = (logp * rollouts.mask).sum(1)  # (G,)

    # Policy gradient: completions above the mean become more likely, those below it less likely.
    loss = -(advantages * logp).mean()
    return {"loss": loss.item(), "loss_tensor": loss, **group}


# ---- 2. Completions ------------------------------------------------------------------------------


@dataclass
class Rollouts:
    """B = P*G completions. Rows p*G .. p*G + G-1 are the completions of prompt p; each row starts
    with that prompt.

    subtle: find the end of a completion by its length, never by a pad or stop id. The stop token
    belongs to the completion and is trained, or the policy would forget how to stop. Qwen3-Base
    uses the same token for padding."""

    ids: torch.Tensor  # (B, T) prompt, completion, padding on the right
    prompt_lengths: torch.Tensor  # (B,) tokens in the prompt
    lengths: torch.Tensor  # (B,) tokens in the completion, including the stop token
    finished: torch.Tensor  # (B,) bool: True if a stop ended it, not max_new_tokens
    logp: torch.Tensor  # (B, T-1) the sampler's log pi of ids[:, 1:]; 0 where it sampled nothing
    mask: torch.Tensor  # (B, T-1) 1.0 where ids[:, 1:] is trained: the policy's own tokens
    num_samples: int  # G

    @property
    def ends(self):
        """(B,) tokens in the prompt and the completion together."""
        return self.prompt_lengths + self.lengths

    def completions(self, rows=slice(None)):
        """Return the token ids of each completion, with stop tokens and environment replies."""
        columns = (self.ids, self.prompt_lengths, self.ends)
        columns = [column[rows].tolist() for column in columns]
        return [ids[start:end] for ids, start, end in zip(*columns)]

    @staticmethod
    def join(several, device=None):
        """Stack the rows of several Rollouts, padded to the widest."""
        columns = {}
        for name in "ids prompt_lengths lengths finished logp mask".split():
            rows = [row for one in several for row in getattr(one, name)]
            joined = pad_sequence(rows, True) if rows[0].ndim else torch.stack(rows)
            columns[name] = joined.to(device)
        return replace(several[0], **columns)


def row_uniforms(streams, length, seed):
    """Return (len(streams), length) random numbers in [0, 1). Each row has its own stream, seeded
    by a hash of the seed and the stream's name. So a completion depends neither on the rest of its
    batch nor on the number of processes, and a resumed run needs no saved random state."""
    table = torch.empty(len(streams), length)
    for stream, uniforms in zip(streams, table):
        digest = hashlib.blake2b(f"{seed} {stream}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest))
        uniforms.uniform_(generator=generator)
    return table


def choose(logits, uniforms, temperature=1.0):
    """Sample a token from softmax(logits / temperature) for each of A rows: logits (A, V), uniforms
    (A,) -> (tokens (A,), log-probs (A,)). At temperature 0 this is greedy, and the log-probs are
    taken at temperature 1."""
    logp = (logits.float() / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        token = logp.argmax(-1)
    else:
        cdf = logp.exp().cumsum(-1)  # the first token with cdf > u is sampled
        total = cdf[:, -1:].contiguous()  # not exactly 1, because of rounding
        token = torch.searchsorted(cdf, uniforms[:, None] * total, right=True)
        # If u * total rounds up to total, take the last token of non-zero probability.
        token = torch.minimum(token, torch.searchsorted(cdf, total)).squeeze(1)
        # NaN sorts last, so the index may be V. Clamp it: check_rollouts reports the NaN.
        token = token.clamp(max=logp.size(1) - 1)
    return token, logp.gather(1, token[:, None]).squeeze(1)


@torch.no_grad()
def sample(
    model,
    prompts,
    num_samples=1,
    max_new_tokens=256,
    temperature=1.0,
    stop_ids=None,
    uniforms=None,
    choose=choose,
    reply=None,
    record=None,
):
    """Sample G completions of each of P prompts (lists of token ids) with a KV cache -> Rollouts.

    stop_ids: tokens that end a completion (default: the model's own).
    uniforms: (P*G, max_new_tokens) random numbers, see row_uniforms (default: torch's generator).
    choose:   (logits (A, V), uniforms (A,), temperature) -> (tokens (A,), log-probs (A,)).
    reply:    an environment, see Turns. It is called with the rows that have sampled a stop token
              and their completions so far. For each row it returns the token ids of its reply, []
              to let the policy go on, or None to end the completion. Replies count towards
              max_new_tokens, but are not the policy's own words: their mask is 0.
    record:   (decode, cache) -> None: calls decode(), or repeats it as a CUDA graph. It is untested
              on GPUs: see Recorder in tests/bench_sampling.py. Not used with a reply.
    Raises ValueError for an empty prompt, and for max_new_tokens below 1."""
    device = model.device
    if stop_ids is None:
        stop_ids = model.config.eos_token_id
    stop_ids = torch.tensor([*stop_ids], dtype=torch.long, device=device)
    if uniforms is None:
        uniforms = torch.rand(len(prompts) * num_samples, max_new_tokens)
    uniforms = uniforms.to(device)
    rollouts, cache, logits = prefill(model, prompts, num_samples, max_new_tokens)

    # Decode one token at a time. Row a of the cache is row rows[a] of the rollouts. Some of these
    # rows may have finished already: the tokens sampled for them are discarded.
    rows = torch.arange(len(rollouts.ids), device=device)  # (A,)
    token = torch.zeros_like(rows)  # (A,) the last token of each row

    def append(logits):
        """Sample a token for each row. Rows that have finished stay as they are."""
        new, logp = choose(logits, uniforms[rows, rollouts.lengths[rows]], temperature)
        running = ~rollouts.finished[rows]  # (A,)
        column = rollouts.ends[rows]
        rollouts.ids[rows, column] = new.where(running, 0)
        # logp[:, t] and mask[:, t] belong to ids[:, t+1].
        rollouts.logp[rows, column - 1] = logp.where(running, 0)
        rollouts.mask[rows, column - 1] = running.float()
        rollouts.lengths[rows] += running
        # torch.isin would do the same, but it waits for the GPU.
        rollouts.finished[rows] |= (new[:, None] == stop_ids).any(1)
        token.copy_(new)

    def decode():
        append(model.next_logits(token[:, None], cache, (slice(None), -1)))

    append(logits)
    # Asking which rows have finished synchronises with the GPU, so ask only every 8 tokens.
    check_every = 1 if reply or device.type == "cpu" else 8
    for t in bar(range(max_new_tokens), "tokens"):
        if t % check_every == 0 or t + 1 == max_new_tokens:
            if reply:
                write_replies(rollouts, rows, reply, max_new_tokens)
            running = ~rollouts.finished[rows] & (rollouts.lengths[rows] < max_new_tokens)
            remaining = running.nonzero().flatten()
            if len(remaining) == 0:
                break
            # Copying the cache is worth it once a fifth of its rows has finished. With an
            # environment, drop finished rows at once, so that it is asked about each row only once.
            few = len(rows) - 1 if reply else 0.8 * len(rows)
            if len(remaining) <= few:
                rows = rows[remaining]
                token = token[remaining]
                cache.take(remaining)
        if reply:
            append(read_replies(model, cache, rollouts, rows))
        elif record:
            record(decode, cache)
        else:
            decode()
    # Cut off the columns on the right that no completion uses.
    T = int(rollouts.ends.max())
    rollouts.ids = rollouts.ids[:, :T]
    rollouts.logp = rollouts.logp[:, : T - 1]
    rollouts.mask = rollouts.mask[:, : T - 1]
    return rollouts


def prefill(model, prompts, num_samples, max_new_tokens):
    """Read the prompts in one forward pass. Returns (Rollouts with room for the completions, the KV
    cache, logits (B, V) for the first token of each completion)."""
    if not prompts or not all(prompts) or max_new_tokens < 1:
        raise ValueError("sample needs at least one prompt, one token in each, and one new token")
    device = model.device
    numbers = torch.arange(len(prompts), device=device)  # (P,)
    # Prompts are padded on the right, so pick the logits of each last token.
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True).to(device)
    cache = KVCache(model, len(prompts), ids.size(1) + max_new_tokens)
    logits = model.next_logits(ids, cache, (numbers, lengths - 1))
    cache.lengths = lengths  # subtle: new tokens overwrite the padding

    # Every completion of a group starts from a copy of its prompt.
    prompt_of = numbers.repeat_interleave(num_samples)  # (B,)
    if num_samples > 1:
        cache.take(prompt_of)
    ids = F.pad(ids[prompt_of], (0, max_new_tokens))  # (B, T)
    logp = torch.zeros_like(ids[:, 1:], dtype=torch.float32)
    mask = torch.zeros_like(logp)
    zeros = torch.zeros_like(prompt_of)
    rollouts = Rollouts(ids, lengths[prompt_of], zeros, zeros > 0, logp, mask, num_samples)
    return rollouts, cache, logits[prompt_of]


# ---- 3. From problems to rewards and advantages --------------------------------------------------


@dataclass
class Batch:
    """Problems with their completions and rewards."""

    problems: list  # P dicts with "problem" and "answer"
    rollouts: Rollouts  # B rows
    texts: list  # B texts: the policy's own words
    rewards: torch.Tensor  # (P, G)
    parts: list  # B dicts of named scores
    turns: list = ()  # B lists of (the policy's text, the reply), if there is an environment
    verify_seconds: float = 0.0
    step: int = 0  # the training step; 0 outside training

    @property
    def accuracy(self):
        """(P, G), from 0 to 1. A completion that was cut off counts as 0, even with a right box."""
        right = [part["accuracy"] * (1 - part["truncated"]) for part in self.parts]
        return torch.tensor(right, dtype=torch.float64).view_as(self.rewards)


def roll_out(
    method,
    model,
    tokenizer,
    task,
    problems,
    num_samples=1,
    temperature=1.0,
    streams=None,
    training=False,
):
    """Sample num_samples completions of each problem with the method, and score them -> Batch.

    streams: names of the P*G random streams, see row_uniforms. The setting sample_tokens limits how
    many problems are sampled at a time. It only affects rounding, which in bf16 can flip tokens."""
    settings = method.settings
    limit = settings.max_new_tokens
    prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
    row_problems = [{**problem, "turns": []} for problem in problems for _ in range(num_samples)]
    streams = streams or range(len(row_problems))
    eos = list(model.config.eos_token_id)
    longest = max(map(len, prompts)) + limit
    size = max(1, (settings.sample_tokens or SAMPLE_TOKENS) // (longest * num_samples))
    pieces = []
    for start in range(0, len(problems), size):  # `size` problems at a time
        end = start + size
        rows = slice(start * num_samples, end * num_samples)
        reply = None
        if task.stops or task.turns:
            reply = Turns(tokenizer, task, row_problems[rows], eos)
        with oom_hint("sample_tokens"):
            sampled = method.roll_out(
                model,
                tokenizer,
                prompts[start:end],
                training,
                num_samples=num_samples,
                max_new_tokens=limit,
                temperature=temperature,
                stop_ids=eos + tokenizer.tokens_that_end(task.stops),
                uniforms=row_uniforms(streams[rows], limit, settings.seed),
                reply=reply,
            )
        check_rollouts(method, sampled, len(row_problems[rows]), reply)
        pieces.append(sampled)
    rollouts = Rollouts.join(pieces)
    texts = own_words(rollouts, tokenizer, eos, () if task.turns else task.stops)
    began = time.perf_counter()
    rewards, parts = score(rollouts, texts, row_problems, task.reward)
    seconds = time.perf_counter() - began
    turns = []
    if task.turns:
        close_environments(row_problems)
        turns = [row["turns"] for row in row_problems]
    return Batch(problems, rollouts, texts, rewards, parts, turns, seconds)


def own_words(rollouts, tokenizer, eos, stops):
    """Return the B texts that rewards read: the policy's own tokens, without stop tokens, up to the
    first stop text. Chat templates may end the prompt with <think> or an empty <think></think>. If
    the policy has not written the tag itself, the text then begins with it, because rewards look
    for it."""
    texts = []
    for ids, own, start in zip(rollouts.ids, rollouts.mask > 0, rollouts.prompt_lengths.tolist()):
        tokens = [i for i in ids[1:][own].tolist() if i not in eos]
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        for stop in stops:
            text = text.partition(stop)[0]
        if "<think>" not in text:
            # 24 tokens are enough for the tags, even if each letter is a token.
            prompt = tokenizer.decode(ids[:start][-24:].tolist(), skip_special_tokens=False)
            text = re.search(r"(<think>\s*(</think>\s*)?)?\Z", prompt).group() + text
        texts.append(text)
    return texts


def limit_sampling(method, model, dtype):
    """If the setting sample_tokens is not given, set it to what fits into the GPU's free memory."""
    settings = method.settings
    if settings.sample_tokens is None and model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        settings.sample_tokens = sample_tokens_that_fit(model.config, dtype, free)
        print(
            f"at most {settings.sample_tokens} tokens are sampled at once (setting sample_tokens)"
        )


def check_rollouts(method, sampled, rows, reply):
    """Raise DataError if a method's roll_out returned something unusable."""
    if (
        not isinstance(sampled, Rollouts)
        or sampled.logp.shape != sampled.mask.shape
        or len(sampled.lengths) != rows
        or not (sampled.logp * sampled.mask).isfinite().all()
    ):
        expected = "Rollouts with finite log-probs for each completion (NaN in the weights?)"
        raise bad_return(method, "roll_out", sampled, expected)
    if reply and reply.over != sampled.finished.sum():
        raise bad_return(method, "roll_out", sampled, "Rollouts from sample(.., reply=reply)")


def score(rollouts, texts, problems, reward_fn):
    """Score every completion. Returns rewards (P, G) and, for each of the B rows, a dict of named
    parts. problems: one dict for each of the B rows.

    If the verifier fails on a completion (see verifiers.checked), its reward is the lowest of its
    group, and at most 0: making the verifier fail must never help."""
    rewards = []
    parts = []
    failed = []
    results = run_all(texts, problems, reward_fn)
    for result, problem, finished in zip(results, problems, rollouts.finished.tolist()):
        environment = problem.get("environment")  # an exception if it failed
        if isinstance(environment, BaseException):
            result = environment
        reward, own = checked(result)
        rewards.append(reward if finished else min(0.0, reward))  # departure 5
        parts.append({**own, "truncated": float(not finished)})
        failed.append(own["failed"] > 0)
    rewards = torch.tensor(rewards).view(-1, rollouts.num_samples)
    failed = torch.tensor(failed).view_as(rewards)
    return torch.where(failed, rewards.amin(1, keepdim=True), rewards), parts


def records_of(batch):
    """Return a dict for each completion. It holds the problem's columns and index in the batch, and
    the completion's number in its group, parts, text, length in tokens, reward and accuracy."""
    lengths = batch.rollouts.mask.sum(1).int().tolist()
    accuracies = batch.accuracy.flatten().tolist()
    records = []
    for row, part in enumerate(batch.parts):
        index, g = divmod(row, batch.rollouts.num_samples)
        problem = batch.problems[index]
        record = {
            **problem,
            **part,
            **problem,  # a part of the same name must not replace a column of the data
            "index": index,
            "sample": g,
            "completion": batch.texts[row],
            "length": lengths[row],
            "reward": batch.rewards[index, g].item(),
            "accuracy": accuracies[row],
        }
        if batch.turns:
            record["turns"] = batch.turns[row]
        records.append(record)
    return records


def token_advantages(method, batch):
    """Return the method's advantage of each token: (B, T-1), 0 where nothing is trained."""
    mask = batch.rollouts.mask  # (B, T-1)
    advantages = method.advantages(replace(batch, rewards=batch.rewards.clone()))
    shapes = [batch.rewards.shape, mask.shape]  # (P, G) or (B, T-1)
    fits = isinstance(advantages, torch.Tensor) and advantages.shape in shapes
    if not fits or not advantages.isfinite().all():
        raise bad_return(method, "advantages", advantages, f"finite numbers of shape {shapes}")
    return advantages.to(mask.device).reshape(len(mask), -1) * mask


def group_advantages(rewards, scale="std", eps=1e-6):
    """Return how much better each completion is than its group: A_i = (R_i - mean) / (std + eps).

    rewards: (P, G), or a list of G floats as in the chapter. The advantages have the same form.
    scale:   "std" (GRPO, section 4.1.2), or "none": dividing by the std overweights very easy and
             very hard prompts (Dr. GRPO).
    The chapter's rewards 1.10, 0.10, 0.00, 1.10 give 0.998, -0.903, -1.093, 0.998."""
    if scale not in ("std", "none"):
        raise ValueError(f"scale is {scale!r}: choose 'std' or 'none'")
    exact = torch.as_tensor(rewards, dtype=torch.float64)
    advantages = exact - exact.mean(-1, keepdim=True)  # departure 2: no critic
    if scale == "std":
        advantages /= exact.std(-1, correction=0, keepdim=True) + eps  # departure 6
    # subtle: rounding may put equal rewards off their mean, and / (std + eps) would amplify that.
    advantages[exact.amax(-1) == exact.amin(-1)] = 0.0
    if not isinstance(rewards, torch.Tensor):
        return advantages.tolist()
    return advantages.to(torch.promote_types(rewards.dtype, torch.float32))


# ---- 4. Log-probabilities, loss and gradient -----------------------------------------------------


@dataclass
class MicroBatch:
    """Some completions, laid out for one forward pass. M of their tokens are trained."""

    ids: torch.Tensor  # (N, L) input of the model
    trained: torch.Tensor  # (N, L) bool: True where the predicted token is trained
    rows: torch.Tensor  # (b,) indices of its rows in the batch, in the order of their tokens
    positions: torch.Tensor = None  # (N, L), default: 0 .. L-1
    mask: torch.Tensor = None  # (N, 1, L, L) bool: True where a token may attend; default: causal
    loss_scale: float = 1.0  # 0.0 for a copy that adds nothing to the gradient


@dataclass
class LossInputs:
    """Inputs of a loss besides log pi, for the b rows of a MicroBatch. All tensors are (b, T-1)."""

    micro: MicroBatch
    old_logp: torch.Tensor = None  # log pi_old; in a batch's first update, log pi itself
    sampled_logp: torch.Tensor = None  # log pi as the sampler computed it
    advantages: torch.Tensor = None
    weights: torch.Tensor = None  # see loss_weights
    # A loss may add named sums over the trained tokens, with the same names in every call. The log
    # shows their means, unless it has a column of that name itself.
    columns: dict = field(default_factory=dict)


def padded_rows(rollouts, keep, max_tokens):
    """Yield the rows where keep (B,) is True, in MicroBatches of at most max_tokens (or one row).

    The longest rows come first: rows of similar length need little padding, and if there is too
    little memory, the first forward pass shows it."""
    ends = rollouts.ends
    rows = ends.argsort(descending=True, stable=True)
    rows = rows[keep.to(ends.device)[rows]]
    while len(rows) > 0:
        width = int(ends[rows[0]]) - 1
        count = max(1, max_tokens // width)
        some, rows = rows[:count], rows[count:]
        yield MicroBatch(rollouts.ids[some, :width], rollouts.mask[some, :width] > 0, some)


CHUNK_ELEMENTS = 2**25  # logits in memory at once: for Qwen3, 221 positions, 134 MB in fp32


def trained_logprobs(model, micro, targets, temperature=1.0):
    """Return log pi (M,) and entropies (M,), in nats, for the trained tokens of a MicroBatch.

    targets: (M,) the ids of these tokens, row by row, in the order of micro.trained.
    The head runs inside the model's forward pass, in chunks, and only where a token is trained: all
    logits (N, L, V) would not fit in memory. Log-probs are taken at the sampling temperature
    (departure 7). Entropies have no gradient."""
    V = model.config.num_tokens

    def head(hidden, weight):  # (N, L, C), (vocab_size, C)
        hidden = hidden[micro.trained]  # (M, C)
        size = CHUNK_ELEMENTS // V
        if len(targets) <= size:
            # Slice the logits, not the weight: autocast would cast weight[:V] on every call.
            return logprobs_of(F.linear(hidden, weight)[:, :V], targets, temperature)
        dtype = F.linear(hidden[:1], weight[:1]).dtype  # autocast may choose another
        used = weight.detach()[:V].to(dtype)
        chunks = zip(hidden.to(dtype).split(size), targets.split(size))
        results = [ChunkLogprobs.apply(*chunk, weight, used, temperature) for chunk in chunks]
        return [torch.cat(column) for column in zip(*results)]

    return model(micro.ids, head=head, positions=micro.positions, mask=micro.mask)


def logprobs_of(logits, targets, temperature):
    """Return the log-probs of the targets (M,) and the entropies (M,) of logits (M, V)."""
    logp = (logits.float() / temperature).log_softmax(-1)  # (M, V)
    with torch.no_grad():
        entropy = -logp.exp().mul_(logp).sum(-1)  # in place: (M, V) is large
    return logp.gather(1, targets[:, None]).squeeze(1), entropy


class ChunkLogprobs(torch.autograd.Function):
    """Call logprobs_of on a chunk of hidden (M, C) and targets (M,). used (V, C) holds the first V
    rows of weight (vocab_size, C), in the dtype to compute in. The backward pass computes the
    logits again, because storing them for 8 x 1024 tokens would take 5 GB.

    If there is a weight.grad, the gradient is added to it in place. Autograd would hold two more
    tensors of the weight's size, the sum over the chunks and the next term: 0.6 GB each for
    Qwen3-0.6B."""

    @staticmethod
    def forward(ctx, hidden, targets, weight, used, temperature):
        ctx.save_for_backward(hidden, targets, weight, used)
        ctx.temperature = temperature
        logp, entropy = logprobs_of(hidden @ used.t(), targets, temperature)
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _):
        hidden, targets, weight, used = ctx.saved_tensors
        # d log p(target) / d logit = (1 at the target - p) / temperature
        d = ((hidden @ used.t()).float() / ctx.temperature).softmax(-1)  # (M, V)
        d.mul_(-grad[:, None]).scatter_add_(1, targets[:, None], grad[:, None])
        d = (d / ctx.temperature).to(used.dtype)
        returned = None
        if ctx.needs_input_grad[2]:
            # Add in place only if autograd would do just that: torch.autograd.grad leaves .grad
            # alone, and a hook may change a gradient.
            usual = weight.is_leaf and not weight._backward_hooks
            total = weight.grad if usual and torch.autograd._is_checkpoint_valid() else None
            if total is None:
                total = returned = torch.zeros_like(weight)
            rows = total[: len(used)]
            if rows.dtype == d.dtype:
                rows.addmm_(d.t(), hidden)
            else:  # under autocast: d is in bf16, the sum in fp32
                rows += d.t() @ hidden
        return d @ used, None, returned, None, None


def log_probs_of(model, micro, ids, mask, temperature):
    """Return log pi (b, T-1) for the rows of a MicroBatch, 0 where nothing is trained, and the sum
    of the entropies. ids (b, T) and mask (b, T-1) belong to the same rows."""
    trained = mask > 0
    targets = ids[:, 1:][trained]  # (M,) token t+1 is predicted at t
    values, entropies = trained_logprobs(model, micro, targets, temperature)
    return values.new_zeros(mask.shape).masked_scatter(trained, values), entropies.sum()


def token_logprobs(model, ids, temperature=1.0, mask=None):
    """Return log pi(ids[:, t+1] | ids[:, :t+1]) for every t: (B, T) -> (B, T-1).
    Where mask (B, T-1) is 0, no logits are computed, and the result is 0."""
    if mask is None:
        mask = torch.ones_like(ids[:, 1:])
    micro = MicroBatch(ids[:, :-1], mask > 0, rows=None)
    return log_probs_of(model, micro, ids, mask, temperature)[0]


def loss_weights(mask, norm="token", max_new_tokens=1):
    """Return the weight of each token in the loss: mask (B, T-1) -> (B, T-1).

    critical: pass the mask of the whole batch, so that micro-batching changes nothing."""
    B = len(mask)
    lengths = mask.sum(1, keepdim=True)
    divisors = {
        "token": lengths.sum().clamp(min=1),  # every token counts the same (DAPO; departure 4)
        "sequence": B * lengths.clamp(min=1),  # every completion counts the same (GRPO)
        "constant": B * max_new_tokens,  # the divisor depends on no length (Dr. GRPO)
        "sum": B,  # the chapter sums the log-probs over a completion
    }
    if norm not in divisors:
        raise ValueError(f"norm is {norm!r}: choose one of {', '.join(divisors)}")
    return mask / divisors[norm]


def policy_loss(logp, old_logp, advantages, weights, clip=(0.2, 0.2)):
    """-sum_it w_it min(r_it A_it, clip(r_it, 1 - low, 1 + high) A_it),   r_it = pi / pi_old.

    PPO (arXiv 1707.06347, eq. 7) with a group's advantages is GRPO (eq. 3); high > low is DAPO's
    clip-higher. All tensors are (B, T-1), and the loss is a scalar. advantages may also be (B,),
    one for all tokens of a row."""
    if advantages.ndim == 1:
        advantages = advantages[:, None]
    ratio = (logp - old_logp).exp()  # (B, T-1)
    low, high = clip
    clipped = ratio.clamp(1 - low, 1 + high)
    return -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()


def update_gradients(model, rollouts, advantages, method, micros, old_logp=None):
    """Add the gradient of the method's loss over these MicroBatches to .grad -> (sums, log-probs).

    advantages: (B, T-1), see token_advantages.
    micros: they may leave out rows that have no gradient. These rows still count in the
        normaliser, so a batch with little signal has a small gradient.
    old_logp: (B, T-1) the log-probs that the first update of this batch returned; None in the
        first update.
    sums: the loss, what it has added to inputs.columns, and sums over the trained tokens. tokens is
        their number; entropy is in nats; clipped counts ratios pi / pi_old outside the clip range.
        mismatch is |log pi now - log pi as sampled|. In the first update it comes from rounding, or
        from a bug: another model, mask or temperature. off counts tokens whose probability differs
        by more than 10 %.
    log-probs: (B, T-1), log pi now. Rows in no micro-batch have the sampler's log-probs.
    Raises DataError if the loss is not a tensor of one number."""
    assert advantages.shape == rollouts.mask.shape, "pass (B, T-1) advantages: see token_advantages"
    settings = method.settings
    # critical: the weights are computed from the whole batch.
    weights = loss_weights(rollouts.mask, settings.norm, settings.max_new_tokens)
    logp_before_update = rollouts.logp * rollouts.mask  # from the sampler; replaced below
    names = "loss tokens entropy mismatch off clipped".split()
    sums = dict.fromkeys(names, weights.new_zeros(()))
    micros = list(micros)
    method.before_update(model, rollouts, micros)
    low, high = settings.clip
    for micro in bar(micros, "update"):
        rows = micro.rows
        mask = rollouts.mask[rows]
        logp, entropy = log_probs_of(model, micro, rollouts.ids[rows], mask, settings.temperature)
        current = logp.detach()
        logp_before_update[rows] = current

        # In the first update pi_old is pi itself. The sampler's log-probs equal it up to rounding.
        old = current if old_logp is None else old_logp[rows]
        sampled = rollouts.logp[rows]
        inputs = LossInputs(micro, old, sampled, advantages[rows], weights[rows])
        loss = method.loss(logp, inputs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise bad_return(method, "loss", loss, "a tensor of one number, with a gradient")
        (micro.loss_scale * loss).backward()

        ratio = (current - old).exp()
        clipped = (ratio < 1 - low) | (ratio > 1 + high)
        mismatch = (current - sampled) * mask
        stats = {
            **inputs.columns,
            "loss": loss.detach(),
            "tokens": mask.sum(),
            "entropy": entropy,
            "mismatch": mismatch.abs().sum(),
            "off": (mismatch.expm1().abs() > 0.1).sum(),
            "clipped": (clipped * mask).sum(),
        }
        for name, value in stats.items():
            sums[name] = sums.get(name, 0.0) + micro.loss_scale * value
    return sums, logp_before_update


# ---- 5. The method -------------------------------------------------------------------------------


class Stopped(Exception):
    """Raised to end a run before its last step; the message says why."""


def bad_return(method, function, value, expected):
    """The error to raise when a function of your own method returns something unusable."""
    found = f"{' '.join(str(value).split())[:100]} {getattr(value, 'shape', '')}".strip()
    why = f"{function} returns {found}, not {expected}"
    return DataError(f"method {type(method).__name__}: {why}")


@dataclass
class Settings:
    """The settings of a method, each with its default and a line of help. Your own method may
    leave out the help: `height: float = 0.5`."""

    prompts_per_step: int = option(8, "P: problems per step (rlvr.py, departure 10)")
    num_samples: int = option(8, "G: completions per problem; 16 for a tiny model, 1 in eval.py")
    max_new_tokens: int = option(
        512, "longest completion, in tokens; 80 when training a tiny model"
    )
    sample_tokens: int = option(
        None,
        "tokens sampled at once; fewer save memory (default: 49152, or fewer to fit the GPU)",
    )
    temperature: float = option(1.0, "for sampling and the loss (rlvr.py, departure 7)")
    updates_per_batch: int = option(1, "updates on the same completions (rlvr.py, departure 3)")
    scale: str = option("std", "what to divide a group's advantages by: std or none (Dr. GRPO)")
    norm: str = option(
        "token",
        "how to weigh tokens: token (DAPO), sequence (GRPO), constant (Dr. GRPO), sum (chapter)",
    )
    clip: tuple = option((0.2, 0.2), "LOW HIGH: clip the ratio pi / pi_old to 1-LOW .. 1+HIGH")
    seed: int = option(0, "seed of all random numbers")

    def __post_init__(self):
        counts = "prompts_per_step num_samples max_new_tokens updates_per_batch sample_tokens"
        for name in counts.split():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be at least 1")
        if not 0 < self.temperature < math.inf:  # refuses NaN, too
            raise ValueError(f"temperature is {self.temperature}: it must be above 0 and finite")
        clip = tuple(self.clip)  # JSON and the command line give lists
        if len(clip) != 2 or not 0 <= clip[0] < 1 or not clip[1] >= 0:
            raise ValueError(f"clip is {clip}: give two numbers, low in [0, 1) and high >= 0")
        self.clip = clip
        group_advantages([0.0], self.scale)  # refuses an unknown scale
        loss_weights(torch.ones(1, 1), self.norm)  # refuses an unknown norm


@lru_cache(2)
def epoch_order(seed, epoch, N):
    return random.Random(f"order {seed} {epoch}").sample(range(N), N)


class GRPO:
    """GRPO as this project runs it. To write your own method, subclass it in your own file and
    override what differs. Its functions get plain tensors."""

    Settings = Settings

    def __init__(self, **given):
        self.settings = self.Settings(**given)

    def setup(self, model, tokenizer):
        """Prepare the model, load a teacher, and so on. Returns the parameters to train."""
        return list(model.parameters())

    def optimizer(self, parameters, lr):
        """Return the optimizer. The lr of each parameter group is its peak, which the schedule
        scales. (Your own optimizer must accept step(closure=None), as checkpoints call it.)"""
        return torch.optim.AdamW(parameters, lr, (0.9, 0.95), weight_decay=0.0, fused=True)

    def export(self, model):
        """Return the model to save at the end."""
        return model

    def pick(self, problems, step, memory):
        """Return the indices of the P problems of a step. Each epoch has a new random order.
        memory: a dict of the method's own. Checkpoints save it, and its keys become strings."""
        N = len(problems)
        P = self.settings.prompts_per_step
        drawn = range((step - 1) * P, step * P)  # counted over all epochs
        return [epoch_order(self.settings.seed, i // N, N)[i % N] for i in drawn]

    def roll_out(self, model, tokenizer, prompts, training, **how):
        """Sample completions of the prompts -> Rollouts. training: False in an evaluation. how: the
        other arguments of `sample`; pass on every argument that you do not change."""
        return sample(model, prompts, **how)

    def advantages(self, batch):
        """Return advantages (P, G), or (B, T-1) for token-level credit."""
        return group_advantages(batch.rewards, self.settings.scale)

    def rows(self, rollouts, advantages):
        """Return the rows to train on: advantages (B, T-1) -> (B,) bool. A row whose advantages are
        all 0 has no gradient."""
        return (advantages != 0).any(1)

    def before_update(self, model, rollouts, micros):
        """Called before each update, with the MicroBatches of this process. It may run the model,
        but must do so equally often in every process."""

    def loss(self, logp, inputs):
        """Return the scalar loss of a MicroBatch. logp (b, T-1) has gradients; see LossInputs."""
        clip = self.settings.clip
        return policy_loss(logp, inputs.old_logp, inputs.advantages, inputs.weights, clip)

    # Lay out rows for training: (rollouts, keep (B,) bool, max_tokens) -> MicroBatches
    layout = staticmethod(padded_rows)

    def after_step(self, row, model):
        """Called before a row of the log is written, except for step 0. It may change the row or
        raise Stopped."""

    def state(self):
        """Return what a checkpoint must save besides the settings: anything that JSON can hold.
        critical: a value that changes from step to step and is missing here starts over when the
        run is resumed."""
        return {}

    def load_state(self, state):
        """Continue from what state() returned."""
