"""McGill-NLP/nano-aha-moment 6cd0306 (2025-07-07): utils.py, and what nano_r1_script.py makes of episodes.

create_training_episodes, prepare_model_inputs, compute_token_log_probs and compute_pg_loss, out of their files (they
need deepspeed and vllm), with a model that gives the wanted logits. One update of a batch. vllm stops at a stop token.
"""

import numpy as np
import torch
from checkout import Stub, functions, gradient_of

NAMES = "prepare_model_inputs", "log_softmax_and_gather", "compute_token_log_probs"
utils = functions("nano-aha-moment/utils.py", *NAMES)
SCRIPT = "nano-aha-moment/nano_r1_script.py"


def advantages(rewards):
    P, G = rewards.shape
    left = rewards.flatten().tolist()
    given = {"np": np, "compute_reward": lambda *_: (left.pop(0), {})}
    create = functions(SCRIPT, "create_training_episodes", **given).create_training_episodes
    rows = {"samples": [{"input_ids": [5]}] * P, "all_generations": [[6]] * (P * G)}
    rows |= {"all_finish_reasons": ["stop"] * (P * G), "GENERATIONS_PER_SAMPLE": G}
    episodes, _ = create(tokenizer=Stub(batch_decode=lambda ids, **_: ids), **rows)
    return torch.tensor(episodes["all_advantages"], dtype=torch.float32).view(P, G)


def pg_loss(logp, ref_logp, advantages, mask, whole, beta):
    """compute_pg_loss, where the model's log-probs are these."""
    given = {"compute_token_log_probs": lambda *_: logp * mask}
    given["close_to_zero"] = lambda *_: torch.zeros(())
    wide = torch.nn.functional.pad(mask, (1, 0))
    batch = dict.fromkeys(("input_ids", "attention_mask", "labels", "labels_mask"), wide)
    batch |= {"advantages": advantages[:, None] * wide, "ref_log_probs": ref_logp}
    compute = functions(SCRIPT, "compute_pg_loss", **given).compute_pg_loss
    return compute(None, batch, whole.sum(), 1.0, beta)[0]


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    if not torch.equal(logp, old_logp):
        raise NotImplementedError("one update of a batch, so nothing clips")
    return pg_loss(logp, logp, advantages, mask, batch_mask, 0.0)


def padded_logprobs(model, ids, attention_mask, temperature=1.0):
    inputs = Stub(input_ids=ids, attention_mask=attention_mask, labels=ids.clone())
    inputs["labels_mask"] = ids >= 0
    return utils.compute_token_log_probs(model, inputs, temperature)


def logprobs(logits, ids, temperature):
    return padded_logprobs(Stub(logits=logits), ids, ids, temperature)


def kl(logp, ref_logp):
    """With advantages of 0, of one token."""
    ones = torch.ones_like(logp)
    return pg_loss(logp, ref_logp, torch.zeros(1), ones, ones, 1.0).view_as(logp)


gradient_of_kl = gradient_of(kl)
