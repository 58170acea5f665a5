"""kl_cap.py - GRPO that stops where the policy has gone too far from its start.

Source:  chapter "Verifier-based RL", 8.2: a cap on the KL, against a reward that is hacked.
Formula: stop when KL(pi || pi_start) > kl_cap, in nats a completion: the mean over tokens of
         exp(-d) - 1 + d, d = log pi - log pi_start, times the mean length.
Changes: the run ends there with a checkpoint, and --resume goes no step further.
Missing: to go back to the best weights, or on at half the rate, as the section suggests: a method
         can change neither. kl_coef is so small that it holds nothing: the model of the start is
         in memory only where kl_coef is above 0.
"""

from dataclasses import dataclass

from rlvr import GRPO, Stopped


class KLCap(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        kl_coef: float = 1e-9
        kl_cap: float = 5.0  # nats a completion

        def __post_init__(self):
            super().__post_init__()
            if not self.kl_cap > 0 or not self.kl_coef > 0:
                raise ValueError(f"kl_cap is {self.kl_cap}, kl_coef {self.kl_coef}: both above 0")

    kl = 0.0  # of the last step

    def check(self):
        if self.kl > self.settings.kl_cap:
            cap = self.settings.kl_cap
            raise Stopped(f"the KL from the start is {self.kl:.3g}, above kl_cap {cap:g}")

    def after_step(self, row, model):
        self.kl = row["kl"] * row["completion_length"]
        self.check()

    def state(self):
        return {"kl": self.kl}

    def load_state(self, state):
        self.kl = state["kl"]
        self.check()
