"""Broken on purpose: the mean of log pi - log pi_ref as a loss. Its gradient does not know the reference."""

from rlvr import GRPO, policy_loss


class K1InTheLoss(GRPO):
    def loss(self, logp, micro):
        loss = policy_loss(logp, micro.old_logp, micro.advantages, micro.weights)
        k1 = (micro.weights * (logp - micro.ref_logp)).sum()
        return loss + self.settings.kl_coef * k1
