"""This project's functions, as check.py calls them."""

import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks" / "methods")]

import torch
from top_p import kept_tokens

import rlvr
import verifiers
from model import Qwen3
from notebooks.models.make_tiny import init_weights, tiny_config

NORM = rlvr.Settings().norm


def advantages(rewards):
    return rlvr.group_advantages(rewards)


def judged(rewards):
    """The advantages after rlvr.score has judged completions for which a verifier returned this."""
    P, G = rewards.shape
    values = rewards.flatten().tolist()
    rollouts = SimpleNamespace(num_samples=G, finished=torch.ones(P * G, dtype=torch.bool))
    texts = [str(row) for row in range(P * G)]
    rewards, _ = rlvr.score(
        rollouts, texts, [{}] * len(texts), lambda text, _: (values[int(text)], {})
    )
    return rlvr.group_advantages(rewards)


def loss(logp, old_logp, advantages, mask, clip, batch_mask=None):
    weights = rlvr.loss_weights(mask if batch_mask is None else batch_mask, NORM)
    if batch_mask is not None:  # every token of a batch weighs the same
        weights = mask * weights.max()
    return rlvr.policy_loss(logp, old_logp, advantages, weights, clip)


def tiny_model():
    return init_weights(Qwen3(tiny_config(16, eos_token_id=0)), torch.Generator().manual_seed(0))


def completion_mask(ids, prompt_lengths, stop_id, pad_id, tool_mask=None):
    """The mask of what rlvr.sample returns, if it draws these tokens: they are its random numbers."""
    prompts = [row[:length].tolist() for row, length in zip(ids, prompt_lengths)]
    drawn = torch.zeros(len(ids), ids.size(1) - int(prompt_lengths.min()))
    for row, (tokens, length) in enumerate(zip(ids, prompt_lengths)):
        drawn[row, : len(tokens) - length] = tokens[length:]

    def choose(logits, uniforms, temperature):
        return uniforms.long(), torch.zeros_like(uniforms)

    parts = []
    for row, prompt in enumerate(prompts):  # one by one: rows have room for tokens of their own
        room = ids.size(1) - len(prompt)
        some = drawn[row : row + 1, :room]
        parts.append(rlvr.sample(tiny_model(), [prompt], 1, room, 1.0, [stop_id], some, choose))
    mask = rlvr.Rollouts.join(parts).mask
    mask = torch.nn.functional.pad(mask, (0, ids.size(1) - 1 - mask.size(1)))
    return mask if tool_mask is None else mask * (1 - tool_mask[:, 1:])


def logprobs(logits, ids, temperature, num_tokens=None, top_p=1.0, top_k=0):
    """token_logprobs of a model whose hidden states are the logits and whose head changes nothing.
    Under top-p and top-k, the sets of methods/top_p.py, as methods/keep_sampling_mask.py trains."""
    V = logits.size(-1)
    if top_p < 1 or top_k:
        kept = kept_tokens(logits.reshape(-1, V), temperature, top_p, top_k).view_as(logits)
        logits = logits.masked_fill(~kept, -1e30)  # not -inf, which the head below would make NaN

    def model(_, head, positions=None, mask=None):
        return head(logits[:, :-1], torch.eye(V, dtype=logits.dtype))

    model.config = SimpleNamespace(num_tokens=num_tokens or V)
    return rlvr.token_logprobs(model, ids, temperature)


def kl(logp, ref_logp):
    """kl_penalty sums up: token by token it is the sum with one weight."""
    values = torch.zeros_like(logp)
    for row in range(logp.size(0)):
        for column in range(logp.size(1)):
            weights = torch.zeros_like(logp)
            weights[row, column] = 1.0
            values[row, column] = rlvr.kl_penalty(logp, ref_logp, weights)
    return values


def gradient_of_kl(logp, ref_logp):
    logp = logp.requires_grad_()
    penalty = rlvr.kl_penalty(logp, ref_logp, torch.ones_like(logp))
    return torch.autograd.grad(penalty, logp)[0]


def reward(text, truth, finished):
    """boxed_reward, judged by rlvr.score: departure 5 is there."""
    rollouts = SimpleNamespace(num_samples=1, finished=torch.tensor([finished]))
    problem = {"problem": "", "answer": truth}
    return rlvr.score(rollouts, [text], [problem], verifiers.boxed_reward)[0].item()


def extract(text):
    return verifiers.extract_boxed_answer(text)


def grade(answer, truth):
    return verifiers.grade_answer(answer, truth)


def choose(logits, uniforms, temperature):
    return rlvr.choose(logits, uniforms, temperature)[0]


def random_numbers(rows, steps, seed):
    return rlvr.row_uniforms(rows, steps, seed)


def tokens_read(prompt_length, num_samples, max_new_tokens):
    """Counted in the forward passes of a tiny model with random weights that never stops."""
    model = tiny_model()
    read = []
    model.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].numel()))
    rlvr.sample(model, [[1] * prompt_length], num_samples, max_new_tokens, stop_ids=[])
    return sum(read)
