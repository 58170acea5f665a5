"""kl_cap.py - GRPO that stops, or starts again, where the policy is too far from its start.

Source:  chapter "Verifier-based RL", 8.2, KL hard cap: against a reward that is hacked.
Formula: act when KL(pi || pi_start) > kl_cap, in nats a completion: the mean over tokens of
         exp(-d) - 1 + d, d = log pi - log pi_start, times the mean length.
Changes: on_exceed=stop: the run ends there with a checkpoint, and --resume goes no step further.
         on_exceed=reset: the weights are those of the start again, the moments of Adam are not;
         what the same row says of held-out problems was measured before.
Missing: the section's reduce_lr: a method cannot change the rate. Going back to the best weights.
         A kl_coef of 1e-9 trains nothing; it is above 0 so that the model at the start is kept.
"""

import copy
from dataclasses import dataclass

from appendix.plumbing import option
from rlvr import GRPO, Stopped


class KLCap(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        kl_coef: float = 1e-9
        kl_cap: float = 15.0  # nats a completion
        on_exceed: str = option("stop", "or reset", choices=("stop", "reset"))

        def __post_init__(self):
            super().__post_init__()
            if not self.kl_cap > 0 or not self.kl_coef > 0:
                raise ValueError(f"kl_cap is {self.kl_cap}, kl_coef {self.kl_coef}: both above 0")

    kl = 0.0  # of the last step, in nats a completion

    def setup(self, model, tokenizer):
        """Runs before a checkpoint is loaded, so that the weights are always those of the start."""
        parameters = super().setup(model, tokenizer)
        if self.settings.on_exceed == "reset":
            self.start = copy.deepcopy(model.state_dict())
        return parameters

    def after_step(self, row, model):
        self.kl = row["kl"] * row["completion_length"]
        self.act(model)

    def act(self, model):
        if self.kl <= self.settings.kl_cap:
            return
        found = f"the KL from the start is {self.kl:.3g}, above kl_cap {self.settings.kl_cap:g}"
        if self.settings.on_exceed == "stop":
            raise Stopped(found)
        print(f"{found}: back to the start")
        model.load_state_dict(self.start)

    def state(self):
        return {"kl": self.kl}

    def load_state(self, state):
        """A run that was stopped by its cap goes no step further."""
        self.kl = state["kl"]
        if self.settings.on_exceed == "stop":
            self.act(None)
