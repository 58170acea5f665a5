"""kl_cap.py - GRPO that stops, or starts again, where the policy is too far from its start.

Source:  chapter "Verifier-based RL", 8.2, KL hard cap: against a reward that is hacked.
Formula: act when KL(pi || pi_start) > kl_cap, in nats a completion: the mean over tokens of
         exp(-d) - 1 + d, d = log pi - log pi_start, times the mean length.
Changes: on_exceed=stop: the run ends there with a checkpoint, and --resume goes no step further.
         on_exceed=reset: the weights are those of the start again, the moments of Adam are not;
         what the same row says of held-out problems was measured before.
         The KL is only measured; --kl-coef trains it too.
Missing: the section's reduce_lr: a method cannot change the rate. Going back to the best weights.
"""

from dataclasses import dataclass

import torch
from kl import KL, trainable

from appendix.plumbing import option
from rlvr import Stopped


class KLCap(KL):
    @dataclass
    class Settings(KL.Settings):
        kl_coef: float = 0.0
        kl_cap: float = 15.0  # nats a completion
        on_exceed: str = option("stop", "or reset", choices=("stop", "reset"))

        def __post_init__(self):
            super().__post_init__()
            if not self.kl_cap > 0:
                raise ValueError(f"kl_cap is {self.kl_cap}: it must be above 0")

    kl = 0.0  # of the last step, in nats a completion

    def after_step(self, row, model):
        self.kl = row["kl"] * row["completion_length"]
        self.act(model)
        super().after_step(row, model)  # last: another method sees the weights that remain

    @torch.no_grad()
    def act(self, model):
        if self.kl <= self.settings.kl_cap:
            return
        found = f"the KL from the start is {self.kl:.3g}, above kl_cap {self.settings.kl_cap:g}"
        if self.settings.on_exceed == "stop":
            raise Stopped(found)
        print(f"{found}: back to the start")
        for param, start in zip(trainable(model), self.start):
            param.copy_(start)

    def state(self):
        return {**super().state(), "kl": self.kl}

    def load_state(self, state):
        """A run that was stopped by its cap goes no step further."""
        super().load_state(state)
        self.kl = state["kl"]
        if self.settings.on_exceed == "stop":
            self.act(None)
