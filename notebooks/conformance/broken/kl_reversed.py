"""Broken on purpose: the KL term has the wrong sign and pushes away from the reference."""

from rlvr import GRPO, kl_penalty, policy_loss


class KLReversed(GRPO):
    def loss(self, logp, micro):
        loss = policy_loss(logp, micro.old_logp, micro.advantages, micro.weights)
        penalty = kl_penalty(logp, micro.ref_logp, micro.weights)
        return loss - self.settings.kl_coef * penalty
