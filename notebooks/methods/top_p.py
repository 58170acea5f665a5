"""top_p.py - top-p and top-k sampling, for evaluation.

Source:  top-p: "The Curious Case of Neural Text Degeneration" (arXiv 1904.09751); top-k:
         1805.04833.
Formula: the next token is drawn from the smallest set of tokens whose probabilities add up to
         top_p, limited to the top_k likeliest, each with probability p / (mass of the set).
Changes: the sampling, in training and in evaluation. Greedy decoding is unchanged.
           python eval.py runs/NAME --method notebooks/methods/top_p.py --top-k 20
         The log-prob of a token is taken over the set that it was drawn from. Training on it is
         therefore off-policy, and `mismatch` shows by how much: -log of the mass.
Missing: on-policy training: see keep_sampling_mask.py.
"""

import math
from dataclasses import dataclass

from rlvr import GRPO, choose


def kept_tokens(logits, temperature, top_p, top_k):
    """Return which tokens may be drawn: logits (A, V) -> (A, V) bool. The likeliest always may."""
    ranked, order = (logits.float() / temperature).softmax(-1).sort(-1, descending=True)
    kept = ranked.cumsum(-1) - ranked < top_p  # the mass before this token
    if top_k:
        kept[:, top_k:] = False
    return kept.gather(-1, order.argsort(-1))


class TopP(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        top_p: float = 0.95
        top_k: int = 0  # 0: no limit

        def __post_init__(self):
            super().__post_init__()
            if not 0 < self.top_p <= 1 or self.top_k < 0:
                raise ValueError(f"top_p is {self.top_p}, not in (0, 1], or top_k {self.top_k} < 0")

    def choose(self, logits, uniforms, temperature):
        if temperature > 0:
            kept = kept_tokens(logits, temperature, self.settings.top_p, self.settings.top_k)
            logits = logits.masked_fill(~kept, -math.inf)
        return choose(logits, uniforms, temperature)

    def roll_out(self, model, tokenizer, prompts, training, **how):
        return super().roll_out(model, tokenizer, prompts, training, choose=self.choose, **how)
