"""constant.py - keeps the learning rate at --lr.

Source:  chapter "9.5 RLVR", whose listing has no schedule (departure 11 of rlvr.py).
Formula: lr_t = lr. Without this method, train.py has lr min(1, t / 5)
         (0.55 + 0.45 cos(pi t / steps)).
Changes: no warm-up and no decay: the rate is set again before each step of the optimizer.
Missing: nothing.
"""

from rlvr import GRPO


class Constant(GRPO):
    lr = 0.0  # set by optimizer()

    def optimizer(self, parameters, lr):
        def set_again(optimizer, *given):
            for group in optimizer.param_groups:
                group["lr"] = lr

        optimizer = super().optimizer(parameters, lr)
        optimizer.register_step_pre_hook(set_again)
        self.lr = lr
        return optimizer

    def after_step(self, row, model):
        super().after_step(row, model)
        row["lr"] = self.lr
