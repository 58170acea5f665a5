"""karpathy/nanochat 92d63d4 (2026-07-03): Engine.generate_batch, and get_batch of scripts/chat_rl.py.

Both whole, out of their files (importing the script starts a run); the sampled tokens, the task and its rewards are
replaced. The loss is code of a script, and no function.
"""

import itertools

import torch
from checkout import Stub, functions, one_width

generate_batch = functions("nanochat/nanochat/engine.py", "generate_batch").generate_batch


def batch(rows, start, stop_id, rewards):
    """What get_batch yields if these rows are sampled and get these rewards."""

    def generate(tokens, num_samples, **_):
        return ((column, [1] * len(column)) for column in zip(*(row[start:] for row in rows)))

    tokenizer = Stub(render_for_completion=lambda _: rows[0][:start], decode=Stub())
    tokenizer |= {"encode_special": lambda _: stop_id, "get_bos_token_id": lambda: -1}
    engine = Stub(tokenizer=tokenizer, generate=generate)
    engine["generate_batch"] = lambda tokens, **more: generate_batch(engine, tokens, **more)
    task = type("Task", (list,), {"reward": lambda *_: rewards.pop(0)})([""])
    args = Stub(dict.fromkeys(("num_samples", "device_batch_size", "max_new_tokens"), len(rows)))
    given = dict.fromkeys(("ddp_rank", "step"), 0) | {"ddp_world_size": 1, "device": "cpu"}
    given |= {"args": Stub(args, temperature=1.0, top_k=50), "train_task": task, "engine": engine}
    given |= {"tokenizer": tokenizer, "model": Stub(eval=Stub()), "itertools": itertools}
    return next(functions("nanochat/scripts/chat_rl.py", "get_batch", **given).get_batch())


def advantages(rewards):
    return torch.stack([batch([[5, 6]] * len(row), 1, 0, row.tolist())[-1] for row in rewards])


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    start = one_width(prompt_lengths)
    targets = batch(ids.tolist(), start, stop_id, [0.0] * len(ids))[2]
    mask = (targets != -1).float()
    return torch.nn.functional.pad(mask, (0, ids.size(1) - 1 - mask.size(1)))
