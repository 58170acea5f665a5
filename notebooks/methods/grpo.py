"""grpo.py - what to divide the advantages and the loss by: PaperGRPO, DrGRPO, LitePPO, MaxRL.

    python train.py --method notebooks/methods/grpo.py:DrGRPO

PaperGRPO: GRPO as published, with the paper's settings.
Source:  DeepSeekMath (arXiv 2402.03300), eq. 3 and 4; section 4.2 for the weight of the KL.
Formula: -1/B sum_i 1/|o_i| sum_t min(r_it A_i, clip(r_it) A_i) + 0.04 KL(pi || pi_ref), with the
         estimate exp(-d) - 1 + d, d = log pi - log pi_ref; A_i = (R_i - mean) / std of its group.
Changes: every completion counts the same, however long it is; a KL to the initial model.
Missing: 64 completions of each problem, 1,024 per step; a reward model. The paper states no clip.
         It makes one update per batch, as we do.

DrGRPO: divides neither the advantages by a std nor the loss by a length.
Source:  "Understanding R1-Zero-Like Training: A Critical Perspective" (arXiv 2503.20783).
Formula: -1/(B L) sum_i sum_t min(r_it A_i, clip(r_it) A_i), A_i = R_i - mean of its group,
         L = max_new_tokens.
Changes: drops two divisors. Dividing by a group's std overweights very easy and very hard prompts.
         Dividing by a completion's length punishes tokens of long wrong completions less.
Missing: the paper's prompts, models and sizes (8 completions of up to 3,000 tokens).

LitePPO: divides all advantages by the std of the whole batch.
Source:  "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning" (arXiv 2508.08221); the
         std is computed as in ROLL, the authors' code.
Formula: A_i = (R_i - mean of its group) / (std of the rewards of the batch + eps).
Changes: one divisor for all groups, so advantages in nearly solved and nearly hopeless groups are
         not enlarged. The token mean and the loss without a KL are this project's defaults anyway.
Missing: the paper's sampling (temperature 0.99, top-p 0.99, top-k 100; see top_p.py).

MaxRL: divides the advantages by the group's mean reward.
Source:  "Maximum Likelihood Reinforcement Learning" (arXiv 2602.02710): abstract, project page
         (zanette-labs.github.io/MaxRL), and algorithm 1 as its repository's issue 1 quotes it.
Formula: A_i = (R_i - mean) / mean of its group, 0 if the mean is 0; rewards are 0 or 1.
         log p = -sum_k (1 - p)^k / k, so its gradient is sum_k (1/k) grad pass@k. Plain RL has the
         first term of that sum; G completions with this baseline give the first G - 1.
Changes: a problem with pass rate p weighs 1/p. With the std it weighs 1 / sqrt(p (1 - p)), with
         neither it weighs 1. So rare successes count most.
Missing: the paper's models and sizes. It derives nothing for rewards other than 0 and 1; negative
         rewards, which would reverse signs, are refused.
"""

from dataclasses import dataclass

from kl import KL

from appendix.plumbing import DataError
from rlvr import GRPO, group_advantages


class PaperGRPO(KL):
    @dataclass
    class Settings(KL.Settings):
        norm: str = "sequence"


class DrGRPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        scale: str = "none"
        norm: str = "constant"


class LitePPO(GRPO):
    def advantages(self, batch):
        # subtle: this is the std of the raw rewards, with B - 1 under the root. It includes the
        # differences between groups, so it exceeds the std of the numbers that it divides.
        std = batch.rewards.float().std()
        return group_advantages(batch.rewards, "none") / (std + 1e-6)


class MaxRL(GRPO):
    def advantages(self, batch):
        if batch.rewards.min() < 0:
            least = f"a reward of {batch.rewards.min():g}"
            raise DataError(f"maxrl: {least}; it needs rewards of 0 and 1 (boxed)")
        return group_advantages(batch.rewards, "none") / (
            batch.rewards.mean(1, keepdim=True) + 1e-6
        )
