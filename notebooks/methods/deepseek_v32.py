"""deepseek_v32.py - DeepSeek-V3.2's GRPO: leaves wrong completions alone once they are unlikely.

Source:  DeepSeek-V3.2 (arXiv 2512.02556), section 3.1, eq. 5 to 9. The paper gives no numbers:
         delta and the weight of the KL are from "Reasoning from Scratch", chapter 7, and 4 updates
         are our choice.
Formula: -1/B sum_i M_i / |o_i| sum_t min(r_it A_i, clip(r_it) A_i)
         + kl_coef sum_it w_it r_it (exp(-d_it) - 1 + d_it),  d = log pi - log pi_ref;
         A_i = R_i - mean of its group; M_i = 0 if A_i < 0 and the mean of log(pi_sampler / pi) over
         o_i is above delta, else 1.
Changes: - Off-policy sequence masking, M: it does harm to make a completion rarer that is hardly
           sampled any more. It still counts in the divisor and in the KL.
         - An unbiased KL: GRPO's estimate assumes that pi sampled the tokens, but pi_old did.
           Multiplied by r, its value and gradient are right, and bounded where pi << pi_ref.
         - Keep Sampling Mask: see keep_sampling_mask.py; --top-p 0.95 turns it on.
         - No std; every completion counts the same; 4 updates.
Missing: Keep Routing (our models are dense); updates on parts of a larger batch; rewards for length
         and language; specialists, agents and judge models. With top_p, the KL compares whole
         softmaxes.
"""

from dataclasses import dataclass

from keep_sampling_mask import KeepSamplingMask
from kl import KL
from ratios import row_mean
from rlvr import policy_loss


class DeepSeekV32(KL, KeepSamplingMask):
    @dataclass
    class Settings(KeepSamplingMask.Settings, KL.Settings):
        scale: str = "none"
        norm: str = "sequence"
        updates_per_batch: int = 4
        kl_coef: float = 0.02
        top_p: float = 1.0
        delta: float = 0.1  # nats per token

    def loss(self, logp, inputs):
        settings = self.settings
        now, inputs = self.under_mask(logp, inputs)
        left = row_mean(inputs.sampled_logp - now, inputs.weights) > settings.delta  # (b, 1)
        weights = inputs.weights * ~(left & (inputs.advantages < 0))
        loss = policy_loss(now, inputs.old_logp, inputs.advantages, weights, settings.clip)
        ratio = (now - inputs.old_logp).exp()
        return loss + self.penalty(logp, inputs, ratio)
