"""olmo3.py - Olmo 3's GRPO: truncated importance weights, DAPO's groups, no std.

Source:  Olmo 3 (arXiv 2512.13961), the RL of Olmo 3 Think; clip, cap and std from its code
         (open-instruct, 32b_think_rl.sh). Truncated importance sampling: Yao et al. 2025,
         fengyao.notion.site/off-policy-rl.
Formula: -1/tokens sum_it sg(min(pi_old / pi_sampler, 2)) min(r_it A_i, clip(r_it) A_i), clip from
         0.8 to 1.272, A_i = R_i - mean of its group, over the groups whose rewards differ. sg: no
         gradient.
Changes: if another engine or an older policy samples, each token counts as often as the trainer
         would have sampled it. The cap bounds the variance.
         No std; groups as in dapo.py, without a penalty for length.
Missing: a separate sampling engine, up to 8 steps behind: here sampler and trainer agree up to
         rounding (`mismatch`), so the weights are 1, and with one update nothing is clipped.
         Sampling until the batch is full (here twice as many problems are drawn, once); 64 problems
         x 8 completions of up to 32,768 tokens; the paper's data and judge models.
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
