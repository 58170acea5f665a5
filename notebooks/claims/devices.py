"""devices.py - the memory that training Qwen3-0.6B needs, computed on a machine that has no GPU.

    python -m notebooks.claims.devices

Nothing here was run on a GPU. MEASURED.md compares the formula with peaks measured on a CPU.
"""

import torch

from model import Config, Qwen3
from rlvr import CHUNK_ELEMENTS

PROMPT, TOKENS = 128, 512
CARDS = (12, 16, 24, 80)  # GB
CUDA = 1  # GB that CUDA needs for itself


def number_of_weights(config):
    with torch.device("meta"):
        return sum(param.numel() for param in Qwen3(config).parameters())


def memory(config, rows, width, sampled):
    """(sampling, update): bytes at the worst moment of each.

    Both: 12 a weight for fp32 weights and Adam's moments, and 2 for bf16 copies. sampling: the cache, and
    fp32 tensors of the logits' size; update, in micro-batches of `rows`: 4 a weight for gradients, the
    embedding's twice, the input of each block, what one block keeps, and a chunk of logits."""
    n = number_of_weights(config)
    V = config.vocab_size
    C = config.hidden_size
    heads = config.num_attention_heads + config.num_key_value_heads
    a_token = 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    sampling = a_token * sampled * width + 18 * sampled * V
    block = 5 * C + 4 * config.intermediate_size + 5 * config.head_dim * heads
    kept = 2 * rows * width * (block + C * config.num_hidden_layers)
    logits = 18 * min(CHUNK_ELEMENTS, rows * width * V)
    return 14 * n + sampling, 14 * n + 4 * n + 8 * V * C + kept + logits


def table(config):
    """Cells by row: micro-batch, GB of update and of sampling 8 and 64 rows, the cards that are large enough. What is
    sampled at once is bounded by what is free, so 64 rows are no condition."""
    rows = []
    for micro in (1, 4, 8):
        few, update = memory(config, micro, PROMPT + TOKENS, 8)
        many, _ = memory(config, micro, PROMPT + TOKENS, 64)
        least = max(few, update) / 1e9 + CUDA
        fits = ["yes" if least < card else "no" for card in CARDS]
        rows.append(
            [
                f"{micro} row" + "s" * (micro > 1),
                *(f"{size / 1e9:.1f}" for size in (update, few, many)),
                *fits,
            ]
        )
    return rows


def main():
    print("micro-batch   update   sampling 8 rows   64 rows", *(f"{card} GB" for card in CARDS))
    for micro, update, few, many, *fits in table(Config()):
        print(f"{micro:>11}{update:>9}{few:>18}{many:>10}", *(f"{word:>5}" for word in fits))


if __name__ == "__main__":
    main()
