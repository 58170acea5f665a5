"""reinforce.py - REINFORCE with the advantages of a group, and a KL in one of three estimates.

Source:  Williams 1992; Schulman, "Approximating KL divergence" (joschu.net/blog/kl-approx.html);
         for the gradients of the estimates arXiv 2505.17508, section 2.2.
Formula: -sum_it w_it A_i log pi(o_it) + kl_coef sum_it w_it k(d_it),  d = log pi - log pi_ref
             k1 = d                  unbiased; its gradient is 0 on average: it only adds noise
             k2 = d^2 / 2            biased; its gradient is that of KL(pi || pi_ref)
             k3 = exp(-d) - 1 + d    unbiased, never negative; its gradient: KL(pi_ref || pi)
Changes: no ratio, so no clipping. With one update per batch the gradient is that of GRPO. Which
         estimate: --kl k1, k2 or k3.
Missing: a baseline that is learned, and rewards that are discounted.
"""

from dataclasses import dataclass

from rlvr import GRPO, kl_penalty


def k1(logp, ref_logp, weights):
    return (weights * (logp - ref_logp)).sum()


def k2(logp, ref_logp, weights):
    return (weights * (logp - ref_logp).square() / 2).sum()


ESTIMATES = {"k1": k1, "k2": k2, "k3": kl_penalty}


class Reinforce(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        kl: str = "k2"
        kl_coef: float = 0.04

        def __post_init__(self):
            super().__post_init__()
            if self.kl not in ESTIMATES:
                raise ValueError(f"kl is {self.kl!r}, not one of {', '.join(ESTIMATES)}")

    def loss(self, logp, inputs):
        settings = self.settings
        loss = -(inputs.weights * inputs.advantages * logp).sum()
        if settings.kl_coef:
            estimate = ESTIMATES[settings.kl]
            loss = loss + settings.kl_coef * estimate(logp, inputs.ref_logp, inputs.weights)
        return loss
