"""Broken on purpose: the KL term has the wrong sign and pushes away from the reference."""

from rlvr import GRPO, kl_penalty, policy_loss


class KLReversed(GRPO):
    def loss(self, logp, inputs):
        loss = policy_loss(logp, inputs.old_logp, inputs.advantages, inputs.weights)
        penalty = kl_penalty(logp, inputs.ref_logp, inputs.weights)
        return loss - self.settings.kl_coef * penalty
