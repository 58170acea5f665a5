"""sapo.py - SAPO: a soft gate in place of the clip.

Source:  "Soft Adaptive Policy Optimization" (arXiv 2511.20347): abstract; the loss and its settings
         from the manuals of ms-swift and Trinity-RFT; that every completion counts the same is from
         memory.
Formula: -1/B sum_i 1/|o_i| sum_t f(r_it) A_i,  f(r) = 4 / tau * sigmoid(tau (r - 1)), with tau 1 if
         A_i > 0, 1.05 if A_i < 0.
Changes: the gradient of a token is that of r A times 4 s (1 - s), where s is the sigmoid: the
         factor is 1 at r = 1, smaller on both sides, and never 0. A clip has the factor 1 up to its
         bound and 0 beyond. Making a token rarer is damped more, because it makes all other tokens
         likelier. There are 4 updates, because in the first r is 1.
Missing: updates on parts of a larger batch; here each is on the whole batch. `clipped` in the log
         counts what --clip would have clipped.
"""

from dataclasses import dataclass

from rlvr import GRPO


class SAPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        tau_positive: float = 1.0
        tau_negative: float = 1.05
        norm: str = "sequence"
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        settings = self.settings
        A = inputs.advantages  # (b, T-1)
        ratio = (logp - inputs.old_logp).exp()
        tau = (A > 0) * settings.tau_positive + (A <= 0) * settings.tau_negative
        gate = (tau * (ratio - 1)).sigmoid() * 4 / tau
        return -(inputs.weights * gate * A).sum()
