"""Broken on purpose: the mean of log pi - log pi_ref as a loss. Its gradient does not know the reference."""

from rlvr import GRPO, policy_loss


class K1InTheLoss(GRPO):
    def loss(self, logp, inputs):
        loss = policy_loss(logp, inputs.old_logp, inputs.advantages, inputs.weights)
        k1 = (inputs.weights * (logp - inputs.ref_logp)).sum()
        return loss + self.settings.kl_coef * k1
