"""stale.py - Completions of an older policy, as asynchronous training has them.

Source:  Truncated importance sampling: Yao et al. 2025, fengyao.notion.site/off-policy-rl (from
         memory). Staleness: AReaL (arXiv 2505.24298, from memory); that GRPO is hurt by it and need
         not be: M2PO (m2po.notion.site/rl-stale-m2po) and arXiv 2602.17616, abstracts.
Formula: o_i ~ pi_s, the policy of `staleness` steps ago;
         none: -sum_it w_it min(r A, clip(r) A),  r = pi / pi_now, as if pi_now had sampled
         tis:  the same with w_it min(pi_now / pi_s, cap)
         ppo:  r = pi / pi_s, so that the clip acts on what is too far away
Changes: the weights of the last steps are kept, and sampling in training uses the oldest. `mismatch`
         in the log is then the distance between the two policies. Evaluation uses today's weights.
Missing: the speed that is the point of it: here sampling waits. Sharded weights (FSDP). After a
         --resume the staleness begins at 0 again.
"""

from collections import deque
from dataclasses import dataclass, replace

import torch

from rlvr import GRPO


class Stale(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        staleness: int = 4  # steps
        correct: str = "tis"  # or none, ppo
        cap: float = 2.0

        def __post_init__(self):
            super().__post_init__()
            if self.staleness < 0:
                raise ValueError(f"staleness is {self.staleness}, and must be 0 or more")
            if self.correct not in ("none", "tis", "ppo"):
                raise ValueError(f"correct is {self.correct!r}, not none, tis or ppo")

    def setup(self, model, tokenizer):
        self.parameters = super().setup(model, tokenizer)
        self.past = deque([self.copy()], maxlen=self.settings.staleness + 1)
        return self.parameters

    def copy(self):
        return [param.detach().clone() for param in self.parameters]

    @torch.no_grad()
    def put(self, weights):
        for param, weight in zip(self.parameters, weights):
            param.copy_(weight)

    def roll_out(self, model, tokenizer, prompts, how):
        if not how.training:
            return super().roll_out(model, tokenizer, prompts, how)
        today = self.copy()
        self.put(self.past[0])
        rollouts = super().roll_out(model, tokenizer, prompts, how)
        self.put(today)
        return rollouts

    def loss(self, logp, inputs):
        if self.settings.correct == "tis":
            ratio = (inputs.old_logp - inputs.sampled_logp).exp()
            inputs = replace(inputs, weights=inputs.weights * ratio.clamp(max=self.settings.cap))
        elif self.settings.correct == "ppo":
            inputs = replace(inputs, old_logp=inputs.sampled_logp)
        return super().loss(logp, inputs)

    def after_step(self, row, model):
        self.past.append(self.copy())
