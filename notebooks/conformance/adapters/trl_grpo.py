"""trl 1.16.0: its own GRPOTrainer, run on small tensors, with torch 2.13.0 and transformers 5.24.0.

    pip install trl==1.16.* math-verify

The trainer has the tiny base and TRL's defaults. We replace only what would need a real model: the log-probs, the
generated text and the rewards. The advantages, the mask, the loss and the weights of the correction are TRL's own. In
step, the log-probs are, too.
"""

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from board import Stub, gradient_of, needs, row_by_row
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward
from trl.trainer.utils import add_fused_lm_head

TINY = Path(__file__).resolve().parents[2] / "tiny"


@functools.cache
def trainer():
    options = {"num_generations": 2, "per_device_train_batch_size": 2, "use_cpu": True}
    made = GRPOTrainer(
        model=str(TINY),
        reward_funcs=lambda **_: None,
        args=GRPOConfig(tempfile.mkdtemp(), bf16=False, report_to=[], **options),
        train_dataset=Dataset.from_list([{"prompt": "1+1="}] * 4),
    )
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    made.args.steps_per_generation = 1
    return made


def run(method, *arguments, **replaced):
    """Call a method of the trainer, with some of its attributes replaced."""
    with mock.patch.multiple(trainer(), create=True, **replaced):
        return getattr(trainer(), method)(*arguments)


def scored(prompts, rewards, num_generations=1, **replaced):
    """Call _generate_and_score_completions with these rewards."""
    replaced["_calculate_rewards"] = lambda *_: rewards.reshape(-1, 1)
    replaced["_tokenize_prompts"] = lambda _: (prompts, None, {})
    rows = [{"prompt": "1+1="}] * len(prompts)
    how = {"num_generations": num_generations, **replaced}
    return run("_generate_and_score_completions", rows, **how)


def generated(ids, logps=None):
    """Return a function to use in place of _generate."""
    rows = [[3]] * len(ids)
    return lambda _: (rows, ids, None, [""] * len(ids), logps, {}, None, None)


def advantages(rewards):
    P, G = rewards.shape
    needs(G > 1, "GRPOConfig refuses a group of one")
    rows = [[3]] * (P * G)
    return scored(rows, rewards, G, _generate=generated(rows))["advantages"].view(P, G)


judged = advantages


def batch_rewards(returned, count):
    what = [{}] * count, *[[""] * count] * 3
    return run("_calculate_rewards", *what, reward_funcs=[lambda **_: returned])[:, 0]


@row_by_row
def completion_mask(prompt, completion, stop_id, pad_id):
    ids = torch.cat([prompt, completion])[None]
    trainer().model.generate = lambda **_: ids
    found = scored([prompt.tolist()], torch.zeros(1), eos_token_ids=[stop_id])
    return found["completion_mask"][0]


def correction(old_logp, sampled_logp, mask, level, how, low, high):
    """Return the importance_sampling_ratio of tokens that vLLM has sampled."""
    lengths = mask.sum(1).long().tolist()
    logps = [row[:length].tolist() for row, length in zip(sampled_logp, lengths)]
    width = max(lengths)
    found = scored(
        [[3]] * len(mask),
        torch.zeros(len(mask)),
        _generate=generated([[3] * length for length in lengths], logps),
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=f"{level}_{how}",
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
        _get_per_token_logps_and_entropies=lambda *_, **__: (old_logp[:, :width], None, None),
    )
    ratio = found["importance_sampling_ratio"].expand(-1, width)
    return torch.nn.functional.pad(ratio, (0, mask.size(1) - width))


def computed(model, ids, mask, start=1, clip=(0.2, 0.2), beta=0.0, **more):
    """Call _compute_loss. start: the length of the prompts."""
    inputs = {"prompt_ids": ids[:, :start], "prompt_mask": torch.ones_like(ids[:, :start])}
    inputs |= {"completion_ids": ids[:, start:], "completion_mask": mask[:, start - 1 :].long()}
    how = {"epsilon_low": clip[0], "epsilon_high": clip[1], "beta": beta}
    if isinstance(model, torch.Tensor):  # the log-probs themselves
        found = model, torch.zeros_like(model), None
        how["_get_per_token_logps_and_entropies"] = lambda *_, **__: found
    return run("_compute_loss", model, {**inputs, **more}, **how)


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    ids = torch.ones(len(logp), logp.size(1) + 1, dtype=torch.long)
    more = {"old_per_token_logps": old_logp, "num_items_in_batch": batch_mask.sum()}
    return computed(logp, ids, mask, clip=clip, advantages=advantages, **more)


def kl(logp, ref_logp):
    """With advantages of 0 the loss is beta times the KL term."""
    ids = torch.ones(1, 2, dtype=torch.long)
    more = {"ref_per_token_logps": ref_logp, "num_items_in_batch": torch.ones(())}
    mask = torch.ones(1, 1)
    return computed(logp, ids, mask, beta=1.0, advantages=torch.zeros(1), **more).view(1, 1)


gradient_of_kl = gradient_of(kl)


class Head(Stub):
    forward = Stub.__call__  # add_fused_lm_head replaces it


def with_head(hidden, weight, temperature=1.0):
    """Return the forward pass that add_fused_lm_head makes."""
    model = Head(config=SimpleNamespace(get_text_config=SimpleNamespace))
    model["base_model"] = lambda input_ids, attention_mask=None, **_: Stub(
        last_hidden_state=hidden(input_ids, attention_mask)
    )
    model["get_output_embeddings"] = lambda: Stub(weight=weight, bias=None)
    add_fused_lm_head(model, temperature, outputs=("log_probs", "entropy"))
    return model.forward


def logprobs(logits, ids, temperature):
    """Use a head that changes nothing, so that the last hidden states are the logits."""
    forward = with_head(lambda *_: logits, torch.eye(logits.size(-1)).to(logits), temperature)
    with torch.no_grad():
        return forward(ids, labels=ids, fused_lm_head=True).log_probs


def padded_logprobs(model, ids, attention_mask):
    what = with_head(model.hidden, model.head), ids, attention_mask, ids.size(1) - 1
    return trainer()._get_per_token_logps_and_entropies(*what)[0]


def step(model, reference, kl_coef, ids, mask, rewards):
    """Compute TRL's advantages and its loss for our own model. (accelerate would handle several processes.)"""
    start = int(mask[0].argmax()) + 1
    more = {"advantages": advantages(rewards).flatten(), "num_items_in_batch": mask.sum()}
    if reference:
        whole = torch.cat([torch.ones_like(ids[:, :start]), mask[:, start - 1 :].long()], 1)
        found = padded_logprobs(reference, ids, whole).detach()
        more["ref_per_token_logps"] = found[:, start - 1 :]
    forward = with_head(model.hidden, model.head)
    computed(forward, ids, mask, start, beta=kl_coef, **more).backward()


def reward(text, truth, finished):
    """Call trl.rewards.accuracy_reward, which only sees the text."""
    needs(finished, "a reward sees the text only: see mask_truncated_completions")
    return accuracy_reward([[{"role": "assistant", "content": text}]], [f"${truth}$"])[0]
