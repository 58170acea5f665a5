"""kl_cap.py - GRPO that stops, or returns to its initial weights, if the policy drifts too far.

Source:  chapter "Verifier-based RL", 8.2, KL hard cap: a guard against reward hacking.
Formula: act if KL(pi || pi_start) > kl_cap, in nats per completion: the mean over tokens of
         exp(-d) - 1 + d, d = log pi - log pi_start, times the mean length.
Changes: on_exceed=stop ends the run with a checkpoint, and --resume makes no further step.
         on_exceed=reset restores the initial weights, but not Adam's moments. If the log's row has
         an evaluation, it was made before the reset.
         The KL is only measured; with --kl-coef it is trained on, too.
Missing: the section's reduce_lr, which continues at a lower rate; a return to the best weights.
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
        kl_cap: float = 15.0  # nats per completion
        on_exceed: str = option("stop", "what to do above kl_cap", choices=("stop", "reset"))

        def __post_init__(self):
            super().__post_init__()
            if not self.kl_cap > 0:
                raise ValueError(f"kl_cap is {self.kl_cap}: it must be above 0")

    kl = 0.0  # after the last step, in nats per completion

    def after_step(self, row, model):
        self.kl = row["kl"] * row["completion_length"]
        self.act(model)
        super().after_step(row, model)  # last, so that another method sees the final weights

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
        """With on_exceed=stop, stop a resumed run at once if its KL is above the cap."""
        super().load_state(state)
        self.kl = state["kl"]
        if self.settings.on_exceed == "stop":
            self.act(None)
