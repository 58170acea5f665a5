"""dr_grpo.py - Dr. GRPO: nothing divides the advantages, and no length divides the loss.

Source:  "Understanding R1-Zero-Like Training: A Critical Perspective" (arXiv 2503.20783).
Formula: -1/(B L) sum_i sum_t min(r_it A_i, clip(r_it) A_i), A_i = R_i - mean of its group,
         L = max_new_tokens.
Changes: dividing by the std of a group overweights the very easy and the very hard prompts;
         dividing by the length of a completion punishes each token of a long wrong one less.
         Neither is done.
Missing: the paper's prompts, models and sizes (8 completions of up to 3,000 tokens).
"""

from dataclasses import dataclass

from rlvr import GRPO


class DrGRPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        scale: str = "none"
        norm: str = "constant"
