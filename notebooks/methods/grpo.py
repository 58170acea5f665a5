"""grpo.py - GRPO as its paper has it, in the settings of the paper.

Source:  DeepSeekMath (arXiv 2402.03300), eq. 3 and 4; section 4.2 for the weight of the KL.
Formula: -1/B sum_i 1/|o_i| sum_t min(r_it A_i, clip(r_it) A_i) + 0.04 KL(pi || pi_ref), with the
         estimate exp(-d) - 1 + d, d = log pi - log pi_ref; A_i = (R_i - mean) / std, of its group.
Changes: every completion counts the same, however long it is; a KL to the model at the start.
Missing: 64 completions of each problem, 1,024 a step; a reward model. The paper states no clip.
         One update per batch, as in the paper.
"""

from dataclasses import dataclass

from rlvr import GRPO


class PaperGRPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        norm: str = "sequence"
        kl_coef: float = 0.04
