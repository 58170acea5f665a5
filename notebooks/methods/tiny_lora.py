"""tiny_lora.py - trains 13 numbers.

Source:  "Learning to Reason in 13 Parameters" (arXiv 2602.04118): abstract; the formula from
         summaries and from the manual of peft.
Formula: W + U S (sum_i v_i P_i) V^T, where U, S and V hold the two largest singular directions of
         W, P_i are fixed random 2 x 2 matrices, and v is trained.
Changes: all linear layers of the blocks share one v, which starts at 0, so the model starts
         unchanged. export adds the learned change to each W. The rate is high: use --lr 0.02 for
         the tiny model.
Missing: a v for each group of layers; the paper's scale of P and its rates; --fsdp.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import lora
from lora import LoRA

from rlvr import GRPO


class Steered(lora.Adapted):
    """A linear layer W with its largest singular directions, mixed by v."""

    def __init__(self, linear, v, rank, generator):
        nn.Module.__init__(self)  # not Adapted's, which makes other matrices
        self.linear = linear
        self.v = v
        U, S, Vt = torch.linalg.svd(linear.weight.detach().float(), full_matrices=False)
        P = torch.randn(len(v), rank, rank, generator=generator) / rank
        fixed = {"US": U[:, :rank] * S[:rank], "Vt": Vt[:rank], "P": P}
        for name, value in fixed.items():  # parameters, so that they are cast with the weights
            setattr(self, name, nn.Parameter(value.to(linear.weight), requires_grad=False))

    def mix(self):
        return torch.einsum("u,uij->ij", self.v, self.P)  # (rank, rank)

    def forward(self, x):
        return self.linear(x) + F.linear(F.linear(F.linear(x, self.Vt), self.mix()), self.US)

    def change(self):
        return self.US @ self.mix() @ self.Vt


class TinyLoRA(LoRA):
    @dataclass
    class Settings(GRPO.Settings):
        rank: int = 2
        numbers: int = 13  # how many to train

        def __post_init__(self):
            super().__post_init__()
            if self.rank < 1 or self.numbers < 1:
                raise ValueError(f"rank {self.rank}, numbers {self.numbers}: at least 1 each")

    def setup(self, model, tokenizer):
        self.v = nn.Parameter(torch.zeros(self.settings.numbers, device=model.device))
        return super().setup(model, tokenizer)

    def adapted(self, layer, generator):
        return Steered(layer, self.v, self.settings.rank, generator)
