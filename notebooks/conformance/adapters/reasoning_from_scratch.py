"""rasbt/reasoning-from-scratch f79c9cd (2026-04-21): sample_response, sequence_logprob and reward_rlvr of ch06.py, the
grader of ch03.py, and compute_advantage_stats of ch07.py.

Imported from the checkout (it needs requests, sympy and tokenizers; ch07.py, which plots, is read). It samples at 0.8
with top-p 0.9.
"""

import sys

import torch
from checkout import Stub, functions, path_of, row_by_row

sys.path.append(str(path_of("reasoning-from-scratch")))
from reasoning_from_scratch import ch03, ch06

stats = functions(ch06.__file__.replace("ch06", "ch07"), "compute_advantage_stats")


def advantages(rewards):
    if rewards.size(1) == 1:
        raise NotImplementedError("num_rollouts is at least 2")
    return torch.stack([stats.compute_advantage_stats(group)[0] for group in rewards.tolist()])


# A model that gives these logits, one call after the other.
Model = type("Model", (Stub,), {"__call__": lambda self, *_, **__: self.logits.pop(0)[None]})


@row_by_row
def completion_mask(prompt, completion, stop_id, pad_id):
    """sample_response draws the given ids, from logits that leave no choice; all behind the prompt is trained."""
    sure = torch.nn.functional.one_hot(completion[:, None]) * 1e4
    model = Model(logits=[*sure, sure[0]], cfg={"n_layers": 1}, reset_kv_cache=Stub())
    tokenizer = Stub(encode=lambda prompt: prompt, decode=Stub(), eos_token_id=stop_id)
    what = model, tokenizer, prompt.tolist(), "cpu", len(sure)
    return [1] * (len(ch06.sample_response(*what)[0]) - len(prompt))


def logprobs(logits, ids, temperature, top_p=1.0):
    """sequence_logprob gives the sum of a completion: of each column it is a difference of two."""
    sums = []
    for row, one in zip(logits, ids):
        starts = range(1, len(one) + 1)
        sums.append([ch06.sequence_logprob(Model(logits=[row]), one, start) for start in starts])
    return -torch.tensor(sums).diff(dim=1)


def reward(text, truth, finished):
    if not finished:
        raise NotImplementedError("a reward is not told")
    return ch06.reward_rlvr(text, truth)


extract = ch03.get_last_boxed


def grade(answer, truth):
    return ch03.grade_answer(answer, truth)
