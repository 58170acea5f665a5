"""stale.py - trains on completions of an older policy, as asynchronous training does.

Source:  AReaL (arXiv 2505.24298, from memory); M2PO (m2po.notion.site/rl-stale-m2po) and arXiv
         2602.17616, abstracts: staleness hurts GRPO, but need not.
Formula: o_i ~ pi_s, the policy of `staleness` steps ago;
         none: -sum_it w_it min(r A, clip(r) A),  r = pi / pi_now, as if pi_now had sampled
         ppo:  r = pi / pi_s, so that the clip acts on tokens that have moved too far
Changes: the weights of the last steps are stored, and training samples with the oldest. `mismatch`
         in the log is then the distance between the two policies. Evaluation uses the current
         weights.
         For importance weights, write class Mine(MaskedIS, Stale): see masked_is.py.
Missing: the speed of asynchronous training, which is its purpose: here sampling waits. Sharded
         weights (FSDP). Older weights in checkpoints: after --resume, the first step samples with
         the checkpoint's own weights, so the staleness starts at 0 again, and the run differs from
         one that was not interrupted.
"""

import copy
from collections import deque
from dataclasses import dataclass, replace

from rlvr import GRPO


class Stale(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        staleness: int = 4  # steps
        correct: str = "none"  # or ppo

        def __post_init__(self):
            super().__post_init__()
            if self.staleness < 0 or self.correct not in ("none", "ppo"):
                raise ValueError("staleness is 0 or more, correct none or ppo")

    def __init__(self, **given):
        super().__init__(**given)
        self.past = deque(maxlen=self.settings.staleness + 1)  # weights, the oldest first

    def roll_out(self, model, tokenizer, prompts, training, **how):
        if not training:
            return super().roll_out(model, tokenizer, prompts, training, **how)
        today = copy.deepcopy(model.state_dict())
        if not self.past:
            self.past.append(today)
        model.load_state_dict(self.past[0])
        rollouts = super().roll_out(model, tokenizer, prompts, training, **how)
        model.load_state_dict(today)
        return rollouts

    def loss(self, logp, inputs):
        if self.settings.correct == "ppo":
            inputs = replace(inputs, old_logp=inputs.sampled_logp)
        return super().loss(logp, inputs)

    def after_step(self, row, model):
        super().after_step(row, model)
        self.past.append(copy.deepcopy(model.state_dict()))

    def load_state(self, state):
        """Forget older weights: the next step samples with those of the checkpoint."""
        super().load_state(state)
        self.past.clear()
