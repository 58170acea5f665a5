"""kl.py - GRPO with a KL term to the initial model, as in GRPO's paper.

    python train.py --method notebooks/methods/kl.py --kl-coef 0.001

Source:  DeepSeekMath (arXiv 2402.03300), eq. 3 and 4; Schulman, "Approximating KL divergence"
         (joschu.net/blog/kl-approx.html); arXiv 2505.17508, section 2.2, for the gradients of the
         estimates.
Formula: the loss of GRPO + kl_coef sum_it w_it k(d_it),  d = log pi - log pi_ref
             k1 = d                  unbiased; its gradient is 0 on average: it only adds noise
             k2 = d^2 / 2            biased; it has the gradient of KL(pi || pi_ref)
             k3 = exp(-d) - 1 + d    unbiased, never negative; the gradient of KL(pi_ref || pi)
Changes: a copy of the initial weights, in fp32, is run over the batch before each update. Every
         completion is trained on, with or without an advantage. The log's `kl` is the mean of k3
         over the trained tokens.
         To give another method a KL, inherit from both:
             class Mine(KL, DAPO):
                 @dataclass
                 class Settings(DAPO.Settings, KL.Settings):
                     pass
         KL comes first. If the other method has no Settings of its own, leave yours out as well.
Missing: replacing the reference from time to time (R1: every 400 steps).
"""

from dataclasses import dataclass

import torch
from torch.distributed.fsdp import FSDPModule

from appendix.plumbing import option
from rlvr import GRPO, log_probs_of


def kl_penalty(logp, ref_logp, weights, estimate="k3"):
    """Return sum_it w_it k(log pi - log pi_ref), a scalar; all three tensors are (B, T-1). For
    k1 and k3, its mean over samples of pi is KL(pi || pi_ref)."""
    d = logp - ref_logp
    k3 = torch.expm1(-d) + d  # subtle: exp(-d) - 1 loses small d to rounding
    estimates = {"k1": d, "k2": d.square() / 2, "k3": k3}
    return (weights * estimates[estimate]).sum()


class KL(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        kl_coef: float = option(0.04, "weight of the KL to the initial model")
        kl: str = option("k3", "how to estimate the KL", choices=("k1", "k2", "k3"))

        def __post_init__(self):
            super().__post_init__()
            if not self.kl_coef >= 0:
                raise ValueError(f"kl_coef is {self.kl_coef}: it must not be below 0")

    def setup(self, model, tokenizer):
        """Copy the initial weights. This runs before a checkpoint is loaded, so a resumed run
        copies the same ones."""
        parameters = super().setup(model, tokenizer)
        self.start = [param.detach().clone() for param in trainable(model)]
        return parameters

    def rows(self, rollouts, advantages):
        return rollouts.mask.any(1)

    @torch.no_grad()
    def before_update(self, model, rollouts, micros):
        """Compute log pi_ref (B, T-1) for the rows of these micro-batches."""
        self.mask = rollouts.mask
        self.ref_logp = torch.zeros_like(rollouts.logp)
        self.exchange(model)
        try:
            for micro in micros:
                given = (rollouts.ids[micro.rows], self.mask[micro.rows], self.settings.temperature)
                self.ref_logp[micro.rows], _ = log_probs_of(model, micro, *given)
        finally:
            self.exchange(model)

    def exchange(self, model):
        """Swap the model's weights and the initial ones, in place."""
        # Discard autocast's 16-bit copies and FSDP's gathered ones: they would be stale.
        torch.clear_autocast_cache()
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        for param, other in zip(trainable(model), self.start):
            held = param.clone()
            param.copy_(other)
            other.copy_(held)

    def penalty(self, logp, inputs, ratio=1.0):
        rows = inputs.micro.rows
        ref_logp = self.ref_logp[rows]
        inputs.columns["kl"] = kl_penalty(logp.detach(), ref_logp, self.mask[rows])
        if self.settings.kl_coef == 0:  # the KL is only measured
            return 0.0
        kl = kl_penalty(logp, ref_logp, inputs.weights * ratio, self.settings.kl)
        return self.settings.kl_coef * kl

    def loss(self, logp, inputs):
        return super().loss(logp, inputs) + self.penalty(logp, inputs)


def trainable(model):
    return [param for param in model.parameters() if param.requires_grad]
