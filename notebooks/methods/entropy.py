"""entropy.py - only the tokens where the policy is least sure are trained: one in five.

Source:  "Beyond the 80/20 Rule" (arXiv 2506.01939): its abstract; entropy and threshold in the
         documentation of ms-swift, mask and divisor in the code of TRL 1.16
         (top_entropy_quantile), which also says that the paper's main runs are DAPO's.
Formula: the loss of DAPO with A_i [H_it >= q],  H_it = -sum_v pi(v) log pi(v) before token t, at
         the sampling temperature, q: the (1 - share)-quantile of H over the tokens of groups that
         teach.
Changes: most tokens are all but certain and follow from the others; where entropy is high the
         completion forks, and these tokens alone have an advantage. The others count in the
         divisor. H is that of pi_old, in all updates of a batch.
Missing: a policy large enough to gain from it: the paper says that 8B does as well without the
         other tokens, 32B better. Its sizes, and updates on parts of a batch. --fsdp. H costs a
         forward pass. The other use of H, a bonus whose weight follows it (Skywork-OR1,
         arXiv 2505.22312).
"""

from dataclasses import dataclass

import torch
from dapo import DAPO
from rlvr import SAMPLE_TOKENS, padded_rows, trained_logprobs


@torch.no_grad()
def entropies(model, rollouts, settings):
    """(B, T-1), nats: the entropy of what each token was sampled from, 0 where none was."""
    found = torch.zeros_like(rollouts.mask)
    room = settings.sample_tokens or SAMPLE_TOKENS
    for micro in padded_rows(rollouts, rollouts.mask.any(1), room):
        mask = rollouts.mask[micro.rows] > 0  # (b, T-1)
        targets = rollouts.ids[micro.rows, 1:][mask]
        _, values = trained_logprobs(model, micro, targets, settings.temperature)
        found[micro.rows] = found[micro.rows].masked_scatter(mask, values)
    return found


class HighEntropy(DAPO):
    @dataclass
    class Settings(DAPO.Settings):
        share: float = 0.2  # of the tokens of groups that teach

        def __post_init__(self):
            super().__post_init__()
            if not 0 < self.share <= 1:
                raise ValueError(f"share is {self.share}, not in (0, 1]")

    def setup(self, model, tokenizer):
        self.model = model
        return super().setup(model, tokenizer)

    def advantages(self, step):
        mask = step.rollouts.mask
        advantages = super().advantages(step).flatten()[:, None].to(mask.device) * mask
        taught = advantages != 0  # (B, T-1)
        if not taught.any():
            return advantages
        entropy = entropies(self.model, step.rollouts, self.settings)
        threshold = entropy[taught].quantile(1 - self.settings.share)
        return advantages * (entropy >= threshold)
