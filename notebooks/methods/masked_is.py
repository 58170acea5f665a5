"""masked_is.py - Importance weights for what another policy or engine sampled, and a bound on them.

Source:  IcePop (Ring-1T, arXiv 2510.18855): its objective as a review (themoonlight.io) and a
         reader's notes print it, with 0.5 and 5. TRL 1.16: the code of GRPOTrainer and the
         defaults of GRPOConfig. Truncation: Yao et al. 2025,
         fengyao.notion.site/off-policy-rl (from memory).
Formula: the loss of GRPO with w_it f(rho_it), rho = pi_old / pi_s, where pi_s is what sampled;
         of a token, or (level=sequence) the product over its completion.
         mask: f = rho from low to high, else 0;  truncate: f = min(rho, high).
Changes: IcePop, the default: tokens that the two find too different teach nothing.
         TRL's default: --level sequence --low 0 --high 3.  Yao et al.: --how truncate --high 2.
         Only rho of a whole completion, without a bound (--how truncate --high inf), is unbiased,
         as a token's place depends on all tokens before it; it is also the noisiest.
         What is masked counts in the divisor.
Missing: a sampler of another engine: here both agree up to rounding (`mismatch`), so that rho is
         1. class Mine(MaskedIS, Stale) has an older one. The geometric mean
         of a completion, as in GSPO.
"""

from dataclasses import dataclass, replace

from appendix.plumbing import option
from rlvr import GRPO


class MaskedIS(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        level: str = option("token", "or sequence", choices=("token", "sequence"))
        how: str = option("mask", "or truncate", choices=("mask", "truncate"))
        low: float = 0.5  # of mask alone
        high: float = 5.0

    def loss(self, logp, inputs):
        settings = self.settings
        log_rho = inputs.old_logp - inputs.sampled_logp  # (b, T-1)
        whole = log_rho.sum(1, keepdim=True)  # (b, 1): 0 where nothing was sampled
        rho = {"token": log_rho, "sequence": whole}[settings.level].exp()
        inside = (rho >= settings.low) & (rho <= settings.high)
        factors = {"mask": rho * inside, "truncate": rho.clamp(max=settings.high)}
        return super().loss(logp, replace(inputs, weights=inputs.weights * factors[settings.how]))
