"""dppo.py - DPPO: the trust region is one of probabilities, not of their ratios.

Source:  "Rethinking the Trust Region in LLM Reinforcement Learning" (arXiv 2602.04879): its
         abstract; the loss in its authors' code (sail-sg/Stable-RL, core_algos.py, "binary TV");
         delta, std and divisor in verl's example for it (run_qwen30b_dppo.sh).
Formula: -sum_it w_it M_it r_it A_i,  r = pi / pi_s, where pi_s is what sampled;
         M_it = 0 where A_i > 0 and pi - pi_s > delta, or A_i < 0 and pi_s - pi > delta, else 1.
Changes: a ratio of 1.2 stops a token of .001 at .0012, and one of .9 never. Here both may move by
         delta, the total variation between "this token" and "any other". What has gone too far
         has no gradient; what comes back has. The anchor is the sampler, not the first update's
         pi_old. No std and no length in the divisor, as in dr_grpo.py. 4 updates, else nothing
         has moved.
Missing: a KL in place of the total variation, with delta 0.05; the most likely k tokens in place
         of the one sampled; a cap on r, 10 in that code; 8 updates on parts of a larger batch. The
         log's `clipped` is that of ratios.
"""

from dataclasses import dataclass

from dr_grpo import DrGRPO
from rlvr import kl_penalty


class DPPO(DrGRPO):
    @dataclass
    class Settings(DrGRPO.Settings):
        delta: float = 0.15  # of probability
        updates_per_batch: int = 4

    def loss(self, logp, inputs):
        settings = self.settings
        moved = logp.detach().exp() - inputs.sampled_logp.exp()  # (b, T-1)
        too_far = moved * inputs.advantages.sign() > settings.delta
        ratio = (logp - inputs.sampled_logp).exp()
        loss = -(inputs.weights * ~too_far * ratio * inputs.advantages).sum()
        if settings.kl_coef:
            loss = loss + settings.kl_coef * kl_penalty(logp, inputs.ref_logp, inputs.weights)
        return loss
