"""sapo.py - SAPO: a soft gate in place of the clip.

Source:  "Soft Adaptive Policy Optimization" (arXiv 2511.20347): abstract; the loss and its settings
         as the manuals of ms-swift and Trinity-RFT give them; that every completion counts the
         same is from memory.
Formula: -1/B sum_i 1/|o_i| sum_t f(r_it) A_i,  f(r) = 4 / tau * sigmoid(tau (r - 1)), with tau 1
         where A_i > 0, 1.05 where A_i < 0.
Changes: the gradient of a token is that of r A times 4 s (1 - s), s the sigmoid: 1 at r = 1, less on
         both sides of it, never 0. The clip's is 1 up to its bound and 0 beyond. What makes a
         token rarer is damped more: it makes all other tokens likelier. 4 updates, else r is 1.
Missing: updates on parts of a larger batch; here each is on the whole batch. `clipped` in the log
         is what --clip would have clipped.
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
