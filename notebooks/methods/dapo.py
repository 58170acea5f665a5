"""dapo.py - DAPO: trains on mixed groups only, clips less above than below, and penalises length.

Source:  DAPO (arXiv 2503.14476), sections 3.1 to 3.4, eq. 8, 11 and 13; section 4.1 for the clip.
Formula: -1/tokens sum_it min(r_it A_i, clip(r_it, 0.8, 1.28) A_i), over the groups whose rewards
         differ. A penalty is subtracted from R_i: 0 up to 80 % of max_new_tokens, then rising
         linearly to 1 at max_new_tokens.
Changes: - Clip-higher: a rare token may become 1.28 times as likely before it is clipped.
         - Dynamic sampling: twice as many problems are drawn, and the first prompts_per_step groups
           whose rewards differ are trained on.
         - Overlong completions: a soft penalty. With overlong=filter (the paper's first remedy), a
           completion that was cut off counts in its group's mean and std, but neither in the loss
           nor in its divisor. overlong=none does neither.
         The token mean and the loss without a KL are this project's defaults anyway.
Missing: sampling until the batch is full (here twice as many problems are drawn once, to keep the
         device busy); rewards of 1 and -1, which would halve the penalty's weight; the paper's
         size: 512 problems with 16 completions of up to 20,480 tokens, in 16 updates on parts. With
         one update per batch, nothing is clipped.
"""

from dataclasses import dataclass

import torch

from rlvr import GRPO, group_advantages


class DAPO(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        clip: tuple = (0.2, 0.28)
        overlong: str = "soft"  # or filter, none

        def __post_init__(self):
            super().__post_init__()
            if self.overlong not in ("soft", "filter", "none"):
                raise ValueError(f"overlong is {self.overlong!r}, not soft, filter or none")

    def pick(self, problems, step, memory):
        """Return twice prompts_per_step indices: the problems of two usual steps."""
        first = super().pick(problems, 2 * step - 1, memory)
        return first + super().pick(problems, 2 * step, memory)

    def advantages(self, batch):
        rewards = batch.rewards
        lengths = batch.rollouts.mask.sum(1).to(rewards.device).view_as(rewards)
        trained = torch.ones_like(rewards, dtype=torch.bool)
        if self.settings.overlong == "filter":
            trained = batch.rollouts.finished.to(rewards.device).view_as(rewards)
        if self.settings.overlong == "soft":
            excess = lengths.double() / self.settings.max_new_tokens - 0.8
            penalty = (excess / 0.2).clamp(0, 1)
            # subtle: in fp32, 1.1 - 1 is not exactly 0.1. Dividing by a tiny std would turn this
            # rounding error into an advantage.
            rounded = (rewards - penalty).round(decimals=6).float()
            rewards = rounded.where(penalty.any(1, keepdim=True), rewards)
        advantages = group_advantages(rewards, self.settings.scale)
        return advantages * self.factors(batch.rewards, lengths, trained)

    def factors(self, rewards, lengths, trained):
        """Return (P, G): 0 for a completion that is not trained on, else the same factor for all.

        critical: the loss is divided by the tokens (norm=token) or rows of all completions. The
        factor replaces this divisor by the tokens or rows of the trained completions in the kept
        groups. If fewer than prompts_per_step groups are mixed, the first of the other groups
        are kept, too; they count only in the divisor."""
        mixed = rewards.amax(1) > rewards.amin(1)  # (P,)
        first = (~mixed).long().argsort(stable=True)[: self.settings.prompts_per_step]
        kept = torch.zeros_like(mixed).index_fill(0, first, True)
        sizes = lengths if self.settings.norm == "token" else torch.ones_like(lengths)
        factor = sizes.sum() / (sizes * trained)[kept].sum().clamp(min=1)
        return factor * (kept & mixed)[:, None] * trained
