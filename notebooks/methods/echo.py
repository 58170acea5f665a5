"""echo.py - ECHO: what the environment replies is learned as text, beside GRPO on the policy's words.

Source:  "ECHO: Terminal Agents Learn World Models for Free" (arXiv 2605.24517), sections 3.1 to
         3.3 as a copy on GitHub has them; prime-rl's algorithm of this name (echo.py; 0.1 there).
Formula: the loss of GRPO - echo / B sum_i 1/|O_i| sum_(t in O_i) log pi(o_it), O_i: the tokens of
         the replies in completion i.
Changes: replies are in no loss elsewhere. Here each is a label, whatever the reward: in a group
         that agrees, too, the policy learns what its own calls bring about. They are in no
         statistic of the log, and leave the divisor of the other tokens alone.
Missing: one forward pass for both: here replies cost a second one. A part of the reply that is not
         learned (the paper's warnings). Layouts other than rows. Several processes: not tried.
"""

from dataclasses import dataclass, replace

import torch

from rlvr import GRPO, trained_logprobs


def replies_in(rollouts):
    """(B, T-1) bool: where ids[:, 1:] is an environment's."""
    columns = torch.arange(rollouts.mask.size(1), device=rollouts.mask.device)
    begin = rollouts.prompt_lengths[:, None] - 1
    inside = (columns >= begin) & (columns < begin + rollouts.lengths[:, None])
    return inside & (rollouts.mask == 0)


class Echo(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        echo: float = 0.05

    def setup(self, model, tokenizer):
        self.model = model
        return super().setup(model, tokenizer)

    def advantages(self, step):
        self.ids = step.rollouts.ids
        self.replies = replies_in(step.rollouts)
        advantages = super().advantages(step)
        # A row without an advantage is in no MicroBatch. 1e-9 trains nothing.
        silent = (advantages == 0) & self.replies.any(1).view_as(advantages).to(advantages.device)
        return advantages.masked_fill(silent, 1e-9)

    def loss(self, logp, inputs):
        loss = super().loss(logp, inputs)
        if not self.replies.any():
            return loss
        micro = inputs.micro
        replies = self.replies[micro.rows]  # (b, T-1)
        targets = self.ids[micro.rows, 1:][replies]
        labels = replace(micro, trained=replies[:, : micro.ids.size(1)])
        found, _ = trained_logprobs(self.model, labels, targets, self.settings.temperature)
        weights = replies / replies.sum(1, keepdim=True).clamp(min=1) / len(self.replies)
        return loss - self.settings.echo * (weights[replies] * found).sum()
