"""noisy_verifier.py - a verifier that errs at random.

Source:  "Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers" (arXiv
         2510.00915): abstract, and the backward correction as a review prints it. "Rate or Fate?"
         (arXiv 2601.04411), abstract: the sign of 1 - a - b decides what is learned.
Formula: R' = 1 with probability a if R is wrong, 0 with probability b if it is right; so
         E[R'] = a + (1 - a - b) R. If a + b is above 1, wrong answers are rewarded more often than
         right ones, and training makes right answers rarer.
Changes: rewards become 0 or 1 and are then flipped, with a coin for each completion, the same in
         every process. This costs signal: the advantages of flipped completions have the wrong
         sign.
         --false-accepts 0.5 --false-rejects 0.5 is a coin that ignores the answer.
Missing: the corrections. The backward one, (R' - a) / (1 - a - b), is affine: (R - mean) / std
         cancels it, and without the std it acts as a higher learning rate. Errors that depend on
         the text, which a policy could exploit.
"""

from dataclasses import dataclass, replace

from rlvr import GRPO, row_uniforms


class NoisyVerifier(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        false_accepts: float = 0.0  # a: share of wrong answers that are accepted
        false_rejects: float = 0.0  # b: share of right answers that are rejected

        def __post_init__(self):
            super().__post_init__()
            rates = (self.false_accepts, self.false_rejects)
            if not all(0 <= rate <= 1 for rate in rates):
                raise ValueError(f"false_accepts, false_rejects {rates}: each must be from 0 to 1")

    def advantages(self, batch):
        return super().advantages(replace(batch, rewards=self.judged(batch)))

    def judged(self, batch):
        """Return the rewards that the noisy verifier gives, (P, G)."""
        a = self.settings.false_accepts
        b = self.settings.false_rejects
        right = (batch.rewards > 0.5).float()
        name = f"verifier {batch.step}"
        coins = row_uniforms([name], right.numel(), self.settings.seed).view(right.shape)
        return (coins.to(right.device) < a + (1 - a - b) * right).float()
