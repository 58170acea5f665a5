"""masked_is.py - bounded importance weights, for completions that another policy or engine sampled.

Source:  IcePop (Ring-1T, arXiv 2510.18855): its objective as a review (themoonlight.io) and a
         reader's notes print it, with 0.5 and 5. TRL 1.16: the code of GRPOTrainer and the defaults
         of GRPOConfig. Truncation: Yao et al. 2025, fengyao.notion.site/off-policy-rl (from
         memory).
Formula: the loss of GRPO with w_it f(rho_it), rho = pi_old / pi_s, where pi_s is the sampler's
         policy; rho belongs to a token or, with level=sequence, is the product over its completion.
         mask: f = rho from low to high, else 0;  truncate: f = min(rho, high).
Changes: IcePop, the default, does not train on tokens whose probability differs too much between
         sampler and trainer.
         TRL's default: --level sequence --low 0 --high 3.  Yao et al.: --how truncate --high 2.
         Only rho of a whole completion, without a bound (--level sequence --how truncate
         --high inf), is unbiased, because a token's context depends on all tokens before it. It is
         also the noisiest.
         Masked tokens still count in the divisor.
Missing: a separate sampling engine: here sampler and trainer agree up to rounding (`mismatch`), so
         rho is 1. To sample with an older policy, write class Mine(MaskedIS, Stale). The geometric
         mean over a completion, as in GSPO.
"""

from dataclasses import dataclass, replace

from appendix.plumbing import option
from rlvr import GRPO


class MaskedIS(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        level: str = option(
            "token", "ratio of a token, or of a whole completion", choices=("token", "sequence")
        )
        how: str = option(
            "mask", "what to do with a ratio out of bounds", choices=("mask", "truncate")
        )
        low: float = 0.5  # for mask only
        high: float = 5.0

    def loss(self, logp, inputs):
        settings = self.settings
        log_rho = inputs.old_logp - inputs.sampled_logp  # (b, T-1)
        whole = log_rho.sum(1, keepdim=True)  # (b, 1): 0 where nothing was sampled
        rho = {"token": log_rho, "sequence": whole}[settings.level].exp()
        inside = (rho >= settings.low) & (rho <= settings.high)
        factors = {"mask": rho * inside, "truncate": rho.clamp(max=settings.high)}
        return super().loss(logp, replace(inputs, weights=inputs.weights * factors[settings.how]))
