"""olmo3.py - Olmo 3's GRPO: tokens are weighted by how likely the trainer finds them.

Source:  Olmo 3 (arXiv 2512.13961), the RL of Think; clip, cap and std from its code
         (open-instruct, 32b_think_rl.sh). Truncated importance sampling: Yao et al. 2025,
         fengyao.notion.site/off-policy-rl.
Formula: -1/tokens sum_it sg(min(pi_old / pi_sampler, 2)) min(r_it A_i, clip(r_it) A_i), clip
         from 0.8 to 1.272, A_i = R_i - mean of its group, over the groups whose rewards differ.
Changes: where another engine samples, or an older policy, each of its tokens counts as often as
         the trainer would have sampled it; the cap bounds the variance.
         No std; groups as in dapo.py, without a penalty for length.
Missing: a sampler of its own engine, up to 8 steps behind: here both agree up to rounding
         (`mismatch`), so that the weights are 1, and with one update nothing clips. Sampling
         until the batch is full (here twice as many); 64 problems x 8 of up to 32,768 tokens; its
         data and judges.
"""

from dataclasses import dataclass, replace

from dapo import DAPO


class Olmo3(DAPO):
    @dataclass
    class Settings(DAPO.Settings):
        scale: str = "none"
        clip: tuple = (0.2, 0.272)
        overlong: str = "none"
        cap: float = 2.0

    def loss(self, logp, inputs):
        ratio = (inputs.old_logp - inputs.sampled_logp).exp()
        weights = inputs.weights * ratio.clamp(max=self.settings.cap)
        return super().loss(logp, replace(inputs, weights=weights))
