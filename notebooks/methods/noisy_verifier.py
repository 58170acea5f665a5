"""noisy_verifier.py - a verifier that errs at random.

Source:  "Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers" (arXiv
         2510.00915): abstract, and the backward correction as a review prints it. "Rate or Fate?"
         (arXiv 2601.04411), abstract: the sign of 1 - a - b decides what is learned.
Formula: R' = 1 with probability a where R is wrong, 0 with probability b where it is right; so
         E[R'] = a + (1 - a - b) R. Where a + b is above 1, wrong answers are paid more often than
         right ones, and training makes right answers rarer.
Changes: rewards become 0 and 1 and are then flipped, with a coin for each completion, the same on
         every process. What is lost is signal: the advantages of flipped completions have the wrong
         sign.
         --false-accepts 0.5 --false-rejects 0.5 is a coin that knows nothing of the answer.
Missing: the corrections. The backward one, (R' - a) / (1 - a - b), is affine: (R - mean) / std does
         not see it, and without the std it is a higher learning rate. Errors that depend on what is written, at which a policy can aim.
"""

from dataclasses import dataclass, replace

from rlvr import GRPO, row_uniforms


class NoisyVerifier(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        false_accepts: float = 0.0  # a: of wrong answers so many are paid
        false_rejects: float = 0.0  # b: of right answers so many are not

        def __post_init__(self):
            super().__post_init__()
            rates = (self.false_accepts, self.false_rejects)
            if not all(0 <= rate <= 1 for rate in rates):
                raise ValueError(f"false_accepts, false_rejects {rates}: each must be from 0 to 1")

    def advantages(self, batch):
        return super().advantages(replace(batch, rewards=self.judged(batch)))

    def judged(self, batch):
        """The rewards as the noisy verifier gives them, (P, G)."""
        a = self.settings.false_accepts
        b = self.settings.false_rejects
        right = (batch.rewards > 0.5).float()
        name = f"verifier {batch.step}"
        coins = row_uniforms([name], right.numel(), self.settings.seed).view(right.shape)
        return (coins.to(right.device) < a + (1 - a - b) * right).float()
