"""distill.py - on-policy distillation: learns from a teacher's log-prob of each sampled token.

Source:  "On-Policy Distillation" (thinkingmachines.ai/blog/on-policy-distillation, 2025), after GKD
         (arXiv 2306.13649) and Qwen3's report (2505.09388).
Formula: A_it = log pi_teacher(o_it) - log pi(o_it), for each token separately. On average, -A_it is
         the token's KL(pi || pi_teacher), and the gradient of the loss is the gradient of that KL.
Changes: the advantages. No reward is trained on, and nothing is compared within a group. setup
         loads the teacher (--teacher DIR), which must have the student's tokens. Rewards and
         accuracies are still logged.
Missing: the teacher's whole distribution, instead of the sampled token's log-prob; a sharded
         teacher (each process holds a whole one); the effect of a token on later tokens.
"""

from dataclasses import dataclass

import torch

from model import ModelError, load
from rlvr import GRPO, trained_logprobs


class Distill(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        teacher: str = ""  # a folder or a hub id
        teacher_tokens: int = 4096  # tokens per forward pass of the teacher

    def setup(self, model, tokenizer):
        if not self.settings.teacher:
            raise ModelError("distill.py needs a teacher: --teacher DIR")
        self.teacher, other = load(self.settings.teacher, model.device)
        if other.backend.get_vocab() != tokenizer.backend.get_vocab():
            raise ModelError(f"{self.settings.teacher} has other tokens than the student")
        return super().setup(model, tokenizer)

    @torch.no_grad()
    def advantages(self, batch):
        rollouts = batch.rollouts
        credit = torch.zeros_like(rollouts.mask)
        for micro in self.layout(rollouts, rollouts.mask.any(1), self.settings.teacher_tokens):
            places = rollouts.mask[micro.rows] > 0  # (b, T-1)
            targets = rollouts.ids[micro.rows, 1:][places]
            theirs, _ = trained_logprobs(self.teacher, micro, targets, self.settings.temperature)
            ours = rollouts.logp[micro.rows]
            credit[micro.rows] = torch.zeros_like(ours).masked_scatter(places, theirs) - ours
        return credit
