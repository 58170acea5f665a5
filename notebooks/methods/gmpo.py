"""gmpo.py - GMPO: the geometric mean of a completion's token ratios, each clipped first.

Source:  "Geometric-Mean Policy Optimization" (arXiv 2507.20673): abstract; the loss and the clip
         from its authors' code (callsys/GMPO at 205b2bf, train_zero_math_gmpo.py and its script).
Formula: -1/B sum_i A_i exp(1/|o_i| sum_t d_it),  d_it = log r_it, bounded on the side to which A_i
         pushes: min(d, c) if A_i > 0, max(d, -c) if A_i < 0; c = 0.4.
Changes: GRPO takes the arithmetic mean of the ratios, which one outlier can move far. GSPO takes
         the geometric mean, as here, but clips it as a whole, so a completion loses all of its
         gradient at once. Every completion counts the same. There are 4 updates, because in the
         first all ratios are 1.
Missing: updates on parts of a larger batch; here each is on the whole batch. `clipped` in the log
         counts plain ratios.
"""

from dataclasses import dataclass

from ratios import row_mean

from rlvr import GRPO


class GMPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        bound: float = 0.4  # on a token's log ratio
        norm: str = "sequence"
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        sign = inputs.advantages.sign()  # (b, T-1)
        pushed = sign * (logp - inputs.old_logp)
        bounded = sign * pushed.clamp(max=self.settings.bound)
        ratio = row_mean(bounded, inputs.weights).exp()  # (b, 1)
        return -(inputs.weights * ratio * inputs.advantages).sum()
