"""grpo.py - what divides the advantages and the loss: PaperGRPO, DrGRPO, LitePPO, MaxRL.

    python train.py --method notebooks/methods/grpo.py:DrGRPO

PaperGRPO: GRPO as its paper has it, in the settings of the paper.
Source:  DeepSeekMath (arXiv 2402.03300), eq. 3 and 4; section 4.2 for the weight of the KL.
Formula: -1/B sum_i 1/|o_i| sum_t min(r_it A_i, clip(r_it) A_i) + 0.04 KL(pi || pi_ref), with the
         estimate exp(-d) - 1 + d, d = log pi - log pi_ref; A_i = (R_i - mean) / std, of its group.
Changes: every completion counts the same, however long it is; a KL to the model at the start.
Missing: 64 completions of each problem, 1,024 a step; a reward model. The paper states no clip.
         One update per batch, as in the paper.

DrGRPO: nothing divides the advantages, and no length divides the loss.
Source:  "Understanding R1-Zero-Like Training: A Critical Perspective" (arXiv 2503.20783).
Formula: -1/(B L) sum_i sum_t min(r_it A_i, clip(r_it) A_i), A_i = R_i - mean of its group,
         L = max_new_tokens.
Changes: dividing by the std of a group overweights the very easy and the very hard prompts;
         dividing by the length of a completion punishes each token of a long wrong one less.
         Neither is done.
Missing: the paper's prompts, models and sizes (8 completions of up to 3,000 tokens).

LitePPO: the std of the whole batch divides all advantages.
Source:  "Part I: Tricks or Traps? A Deep Dive into RL for LLM Reasoning" (arXiv 2508.08221);
         the std is that of ROLL, the authors' code.
Formula: A_i = (R_i - mean of its group) / (std of the rewards of the batch + eps).
Changes: one divisor for all groups, so that the advantages in nearly solved and nearly hopeless
         ones are not enlarged. The token mean and the loss without a KL are this project's too.
Missing: its sampling (temperature 0.99, top-p 0.99, top-k 100; see top_p.py).

MaxRL: the mean of a group divides its advantages.
Source:  "Maximum Likelihood Reinforcement Learning" (arXiv 2602.02710): abstract, project page
         (zanette-labs.github.io/MaxRL), and algorithm 1 as its repository's issue 1 quotes it.
Formula: A_i = (R_i - mean) / mean of its group, 0 where the mean is 0; rewards are 0 or 1.
         log p = -sum_k (1 - p)^k / k, so its gradient is sum_k (1/k) grad pass@k; plain RL has the
         first term of that sum, G completions with this baseline give the first G - 1.
Changes: a problem with pass rate p weighs 1/p; under the std it weighs 1 / sqrt(p (1 - p)), and
         without either it weighs 1. So what is rarely right counts most.
Missing: the paper's models and sizes. Rewards other than 0 and 1 are not what it derives; negative
         ones, which would turn signs around, are refused.
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
        # subtle: the std of the raw rewards, which holds what differs between groups too. So it is
        # larger than the std of what it divides. B - 1 stands under its root.
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
