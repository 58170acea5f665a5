"""This project's functions, as check.py calls them."""

import copy
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks" / "methods")]

import torch
from kl import KL, kl_penalty
from lora import LoRA
from masked_is import MaskedIS
from ratios import DPPO
from top_p import kept_tokens

import rlvr
import train
import verifiers
from appendix.chat import Turns
from model import Qwen3
from notebooks.models.make_tiny import init_weights, tiny_config

NORM = rlvr.Settings().norm


advantages = rlvr.group_advantages


def judged(rewards):
    """Return the advantages after rlvr.score, if a verifier has returned these rewards."""
    texts = [str(reward) for reward in rewards.flatten().tolist()]
    finished = torch.ones(len(texts), dtype=torch.bool)
    rollouts = SimpleNamespace(num_samples=rewards.size(1), finished=finished)

    def verifier(text, problem):
        return float(text), {}

    return rlvr.group_advantages(rlvr.score(rollouts, texts, [{}] * len(texts), verifier)[0])


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    weights = rlvr.loss_weights(batch_mask, NORM)
    weights = mask * weights.max()  # every token of a batch weighs the same
    return rlvr.policy_loss(logp, old_logp, advantages, weights, clip)


def trust_region(logp, sampled_logp, advantages, mask, delta):
    inputs = rlvr.LossInputs(None, sampled_logp=sampled_logp, weights=rlvr.loss_weights(mask, NORM))
    inputs.advantages = advantages[:, None]
    return DPPO(delta=delta).loss(logp, inputs)


def correction(old_logp, sampled_logp, mask, level, how, low, high):
    """In a batch's first update, with advantages of 1, a token's gradient is minus its weight."""
    logp = old_logp.clone().requires_grad_()
    sampled_logp = sampled_logp.where(mask > 0, old_logp)  # both are 0 where nothing was sampled
    inputs = rlvr.LossInputs(None, old_logp, sampled_logp, torch.ones_like(mask), mask)
    loss = MaskedIS(level=level, how=how, low=low, high=high).loss(logp, inputs)
    return -torch.autograd.grad(loss, logp)[0]


def tiny_model():
    return init_weights(Qwen3(tiny_config(16, eos_token_id=0)), torch.Generator().manual_seed(0))


def as_drawn(logits, uniforms, temperature):
    """A `choose` that takes its random numbers as the tokens."""
    return uniforms.long(), torch.zeros_like(uniforms)


def completion_mask(ids, prompt_lengths, stop_id, pad_id, tool_mask=None):
    """Return the mask from rlvr.sample when it draws these tokens, which it gets as random numbers."""
    parts = []
    for row, start in zip(ids, prompt_lengths):  # one by one, each with room for its own tokens
        drawn = row[None, start:].float()
        how = [row[:start].tolist()], 1, drawn.size(1), 1.0, [stop_id], drawn, as_drawn
        parts.append(rlvr.sample(tiny_model(), *how))
    mask = rlvr.Rollouts.join(parts).mask
    mask = torch.nn.functional.pad(mask, (0, ids.size(1) - 1 - mask.size(1)))
    return mask if tool_mask is None else mask * (1 - tool_mask[:, 1:])


def turns(prompt, sampled, replies, tokenizer):
    """Run rlvr.sample with Turns when it draws these tokens and the environment gives these replies."""
    left = list(replies)
    environment = SimpleNamespace(reply=lambda text: left.pop(0) if left else None)
    task = SimpleNamespace(turns=lambda problem: environment, stops=())
    vars(tokenizer).update(template="plain", unknown=None)
    drawn = list(sampled[0])
    for reply, ids in zip(replies, sampled[1:]):
        drawn += [0] * len(tokenizer.encode(reply)) + ids
    stop = sampled[0][-1]
    reply = Turns(tokenizer, task, [{"turns": []}], [stop])
    uniforms = torch.tensor([drawn]).float()
    how = [[prompt], 1, len(drawn), 1.0, [stop], uniforms, as_drawn, reply]
    rollouts = rlvr.sample(tiny_model(), *how)
    return rollouts.ids[0], rollouts.mask[0]


def logprobs(logits, ids, temperature, num_tokens=None, top_p=1.0, top_k=0):
    """Call token_logprobs for a model whose hidden states are the logits and whose head changes
    nothing. top-p and top-k use the sets of tokens of methods/top_p.py, on which
    methods/keep_sampling_mask.py trains."""
    V = logits.size(-1)
    if top_p < 1 or top_k:
        kept = kept_tokens(logits.reshape(-1, V), temperature, top_p, top_k).view_as(logits)
        logits = logits.masked_fill(~kept, -1e30)  # not -inf, which the head below would make NaN

    def model(_, head, positions=None, mask=None):
        return head(logits[:, :-1], torch.eye(V, dtype=logits.dtype))

    model.config = SimpleNamespace(num_tokens=num_tokens or V)
    return rlvr.token_logprobs(model, ids, temperature)


class Wrapped(SimpleNamespace):
    """Wraps check.Tiny as a model of this project, with a config."""

    config = SimpleNamespace(num_tokens=4)

    def __call__(self, ids, head, positions=None, mask=None):
        return head(self.model.hidden(ids), self.model.head)

    def zero_grad(self):
        """Keep the gradient, so that check.py can read it."""

    def parameters(self):
        return self.model.parameters()

    def modules(self):
        return self.model.modules()


def padded_logprobs(model, ids, attention_mask):
    """This project pads on the right: shift each row to the left, and its log-probs back."""
    rows = [row[seen > 0] for row, seen in zip(ids, attention_mask)]
    right = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    logp = rlvr.token_logprobs(Wrapped(model=model), right)
    lefts = ids.size(1) - attention_mask.sum(1)
    return torch.stack([row.roll(left) for row, left in zip(logp, lefts.tolist())])


def step(model, reference, kl_coef, ids, mask, rewards, rank=None):
    """Run train.update, also in several processes: torchrun's variables are set before train is imported."""
    zeros = torch.zeros(len(ids), dtype=torch.long)
    lengths = mask.sum(1).long()
    rollouts = rlvr.Rollouts(ids, zeros + 2, lengths, zeros > 0, 0 * mask, mask, rewards.size(1))
    whole = train.gather_batches([rlvr.Batch([], rollouts, [], rewards, [])], "cpu")
    settings = {"norm": NORM, "max_new_tokens": 8}
    run = SimpleNamespace(model=Wrapped(model=model), method=rlvr.GRPO(**settings))
    if reference:
        run.method = KL(kl_coef=kl_coef, **settings)
        run.method.setup(Wrapped(model=reference), None)  # keeps a copy of these weights
    run.flags = SimpleNamespace(micro_batch_tokens=8, device="cpu", fsdp=False)
    run.dtype = torch.float32
    run.parameters = list(model.parameters())
    run.optimizer = SimpleNamespace(step=lambda: None)
    train.update(run, whole, rlvr.token_advantages(run.method, whole))


def after_update(lora, method=None):
    """Sample with a method's roll_out, after a step of its optimizer along some gradient."""
    method = method or (LoRA() if lora else rlvr.GRPO())
    model = tiny_model()
    optimizer = method.optimizer(method.setup(model, None), 0.01)
    before = copy.deepcopy(model)
    rlvr.token_logprobs(model, torch.tensor([[1, 2, 3]])).sum().backward()
    optimizer.step()
    how = {"max_new_tokens": 8, "stop_ids": [], "uniforms": rlvr.row_uniforms([0], 8, 0)}
    rollouts = method.roll_out(model, None, [[1, 2]], True, **how)
    what = {"ids": rollouts.ids, "mask": rollouts.mask}
    now, old = [rlvr.token_logprobs(one, **what) for one in (model, before)]
    return rollouts.logp, now, old


def kl(logp, ref_logp):
    """kl_penalty is a weighted sum over tokens, so a token's KL is the derivative by its weight."""
    weights = torch.ones_like(logp, requires_grad=True)
    return torch.autograd.grad(kl_penalty(logp, ref_logp, weights), weights)[0]


def gradient_of_logprobs(logits, ids, temperature):
    logits = logits.requires_grad_()
    return torch.autograd.grad(logprobs(logits, ids, temperature).sum(), logits)[0]


def gradient_of_kl(logp, ref_logp):
    logp = logp.requires_grad_()
    penalty = kl_penalty(logp, ref_logp, torch.ones_like(logp))
    return torch.autograd.grad(penalty, logp)[0]


def reward(text, truth, finished):
    """Score boxed_reward with rlvr.score, which includes departure 5."""
    rollouts = SimpleNamespace(num_samples=1, finished=torch.tensor([finished]))
    problem = {"problem": "", "answer": truth}
    return rlvr.score(rollouts, [text], [problem], verifiers.boxed_reward)[0].item()


extract = verifiers.extract_boxed_answer


def grade(answer, truth):
    return verifiers.grade_answer(answer, truth)


def choose(logits, uniforms, temperature):
    return rlvr.choose(logits, uniforms, temperature)[0]


def random_numbers(rows, steps, seed):
    return rlvr.row_uniforms(rows, steps, seed)


def tokens_read(prompt_length, num_samples, max_new_tokens):
    """Count the tokens in the forward passes of a tiny random model that never stops."""
    model = tiny_model()
    read = []
    model.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].numel()))
    rlvr.sample(model, [[1] * prompt_length], num_samples, max_new_tokens, stop_ids=[])
    return sum(read)
