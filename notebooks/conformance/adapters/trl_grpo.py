"""trl 1.16.0: its own GRPOTrainer, run on small tensors, with torch 2.13.0 and transformers 5.24.0.

    pip install trl==1.16.* math-verify

One trainer with a tiny model of random weights is made with TRL's defaults. What is replaced on it is what would need a
real model: the log-probs, the text that is generated, the rewards. The advantages, the mask and the loss are TRL's.
"""

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from checkout import Stub, gradient_of
from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

QUIET = {"use_cpu": True, "bf16": False, "report_to": []}
TINY = Path(__file__).resolve().parents[2] / "tiny"  # only its tokenizer is used


@functools.cache
def refusal():
    """What GRPOConfig says of a group of one. It resets the state that a trainer shares."""
    trainer.cache_clear()
    try:
        GRPOConfig(output_dir=tempfile.mkdtemp(), num_generations=1, **QUIET)
    except ValueError as error:
        return str(error)
    raise AssertionError("this version takes a group of one")


@functools.cache
def trainer():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    sizes = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    widths = ("hidden_size", "intermediate_size", "head_dim")
    sizes = {**dict.fromkeys(sizes, 1), **dict.fromkeys(widths, 8)}
    config = Qwen3Config(vocab_size=len(tokenizer), **sizes)
    two = {"num_generations": 2, "per_device_train_batch_size": 2}
    arguments = GRPOConfig(output_dir=tempfile.mkdtemp(), **two, **QUIET)
    made = GRPOTrainer(
        model=Qwen3ForCausalLM(config),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": "1+1="}] * 4),
        processing_class=tokenizer,
    )
    made.current_gradient_accumulation_steps = 1
    made.args.steps_per_generation = 1
    return made


def scored(prompts, generated, rewards, num_generations):
    """_generate_and_score_completions with these prompts, generated ids and rewards."""
    made = trainer()
    made.num_generations = num_generations
    made._tokenize_prompts = lambda _: (prompts, None, {})
    made.model.generate = lambda **_: generated
    made._calculate_rewards = lambda *_: rewards.reshape(-1, 1)
    made.model.train()
    return made._generate_and_score_completions([{"prompt": "1+1="}] * len(prompts))


def advantages(rewards):
    P, G = rewards.shape
    if G == 1:
        raise NotImplementedError(f"refused: {refusal()}")
    ids = torch.full((P * G, 3), 3)
    return scored([[3]] * (P * G), ids, rewards, G)["advantages"].view(P, G)


def judged(rewards):
    return advantages(rewards)


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    """TRL pads prompts on the left: what its model returns is laid out so, and its mask is put back."""
    made = trainer()
    made.eos_token_ids = [stop_id]
    lengths = prompt_lengths.tolist()
    prompts = [row[:length].tolist() for row, length in zip(ids, lengths)]
    widest = max(lengths)
    room = ids.size(1) - min(lengths)
    generated = torch.full((len(ids), widest + room), pad_id)
    for row, length in enumerate(lengths):
        generated[row, widest : widest + ids.size(1) - length] = ids[row, length:]
    found = scored(prompts, generated, torch.zeros(len(ids)), 1)["completion_mask"]
    mask = torch.zeros(len(ids), widest + room)
    for row, length in enumerate(lengths):
        mask[row, length - 1 : length - 1 + found.size(1)] = found[row]
    return mask[:, : ids.size(1) - 1]


def computed(logp, old_logp, ref_logp, advantages, mask, clip, batch_mask, beta):
    """_compute_loss, where the model's log-probs are these."""
    made = trainer()
    made.epsilon_low, made.epsilon_high = clip
    made.beta = beta
    made.model.train()
    made._get_per_token_logps_and_entropies = lambda *_, **__: (logp, torch.zeros_like(logp), None)
    ones = torch.ones(logp.shape, dtype=torch.long)
    inputs = dict.fromkeys(("prompt_ids", "prompt_mask"), ones[:, :1]) | {"advantages": advantages}
    inputs |= {"completion_ids": ones, "completion_mask": mask.long()}
    inputs |= {"old_per_token_logps": old_logp, "ref_per_token_logps": ref_logp}
    inputs["num_items_in_batch"] = batch_mask.sum()
    return made._compute_loss(made.model, inputs)


def loss(logp, old_logp, advantages, mask, clip, batch_mask=None):
    whole = mask if batch_mask is None else batch_mask
    return computed(logp, old_logp, None, advantages, mask, clip, whole, 0.0)


def kl(logp, ref_logp):
    """With advantages of 0 the loss is beta times the KL term."""
    nothing = torch.zeros(len(logp))
    ones = torch.ones_like(logp)
    value = computed(logp, logp.detach(), ref_logp, nothing, ones, (0.2, 0.2), ones, 1.0)
    return value.reshape(logp.shape)


gradient_of_kl = gradient_of(kl)


class Head(Stub):
    forward = Stub.__call__  # add_fused_lm_head puts its own in its place


def logprobs(logits, ids, temperature):
    """The head changes nothing, and the last hidden states are the logits."""
    head = torch.nn.Linear(1, 1, bias=False)
    head.weight.data = torch.eye(logits.size(-1), dtype=logits.dtype)
    model = Head(config=SimpleNamespace(get_text_config=SimpleNamespace))
    model |= {"base_model": Stub(last_hidden_state=logits), "get_output_embeddings": lambda: head}
    add_fused_lm_head(model, temperature)
    with torch.no_grad():
        return model.forward(ids, labels=ids, fused_lm_head=True).log_probs


def reward(text, truth, finished):
    """trl.rewards.accuracy_reward, which sees the text only."""
    from trl.rewards import accuracy_reward

    if not finished:
        raise NotImplementedError(
            "a reward is not told; the trainer has mask_truncated_completions"
        )
    return accuracy_reward([[{"role": "assistant", "content": text}]], [f"${truth}$"])[0]
