"""canary.py - GRPO that says so, or stops, when reward and held-out accuracy part.

Source:  chapter "Reward Design for Reasoning", the gap between reward and evaluation.
Formula: evaluation.canary: the mean reward since the last evaluation is no lower than at the best
         one, but sampled held-out accuracy is, and the intervals do not touch.
Changes: on_ring=warn: prints the warning once, after the evaluation that shows it. on_ring=stop:
         the run ends there with a checkpoint.
Missing: an accuracy of another verifier: if the task's own is what is hacked, nothing rings. The
         evaluation of step 0, which no method sees.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from rlvr import GRPO, Stopped

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the laboratory's folder

from evaluation import canary

KEPT = ("step", "reward", "eval_accuracy", "eval_sampled_accuracy")
KEPT += ("eval_sampled_low", "eval_sampled_high")


class Canary(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        on_ring: str = "warn"  # or stop

        def __post_init__(self):
            super().__post_init__()
            if self.on_ring not in ("warn", "stop"):
                raise ValueError(f"on_ring is {self.on_ring!r}, not warn or stop")

    def __init__(self, **given):
        super().__init__(**given)
        self.rows = []
        self.rang = False

    def after_step(self, row, model):
        self.rows.append({name: row[name] for name in KEPT if name in row})
        warning = canary(self.rows) if "eval_accuracy" in row else None
        if warning and self.settings.on_ring == "stop":
            raise Stopped(warning)
        if warning and not self.rang:
            print(warning)
            self.rang = True

    def state(self):
        return {"rows": self.rows, "rang": self.rang}

    def load_state(self, state):
        self.rows = state["rows"]
        self.rang = state["rang"]
