"""keep_sampling_mask.py - trains on-policy on completions that top-p and top-k sampled.

Source:  DeepSeek-V3.2 (arXiv 2512.02556), section 3.1, "Keep Sampling Mask".
Formula: log pi of a token = log-softmax over the set S that pi_old sampled it from
         = log pi(token) - log sum of pi over S, for pi and pi_old alike.
Changes: with top-p a token is drawn from a part of the vocabulary, so the ratio of two whole
         softmaxes is not the ratio of the two policies. With the same sets in both it is, and in
         the first update it is 1.
Missing: the sampler's own sets: the first update of a batch computes them again, in a second
         forward pass. They are stored as (tokens, V), which suits small vocabularies only. The
         log's `mismatch`, `entropy` and `clipped` are computed from whole softmaxes.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from top_p import TopP, kept_tokens


class KeepSamplingMask(TopP):
    def setup(self, model, tokenizer):
        self.model = model
        self.kept = {}
        return super().setup(model, tokenizer)

    def advantages(self, batch):
        self.kept = {}  # a new batch: its first update computes the sets
        return super().advantages(batch)

    def log_mass(self, micro):
        """Return the log of the probability of each trained token's set: (M,)."""
        settings = self.settings
        V = self.model.config.num_tokens
        name = int(micro.rows[0])  # each update has the same micro-batches

        def head(hidden, weight):
            logits = F.linear(hidden[micro.trained], weight)[:, :V]  # see rlvr.trained_logprobs
            logits = logits.float() / settings.temperature
            if name not in self.kept:
                self.kept[name] = kept_tokens(logits.detach(), 1.0, settings.top_p, settings.top_k)
            inside = logits.masked_fill(~self.kept[name], -math.inf)
            return inside.logsumexp(-1) - logits.logsumexp(-1)

        return self.model(micro.ids, head=head, positions=micro.positions, mask=micro.mask)

    def under_mask(self, logp, inputs):
        """Return logp (b, T-1) and the LossInputs, both with softmaxes over the sets."""
        if self.settings.top_p == 1 and self.settings.top_k == 0:
            return logp, inputs
        mass = self.log_mass(inputs.micro)
        mass = torch.zeros_like(logp).masked_scatter(inputs.weights > 0, mass)
        return logp - mass, replace(inputs, old_logp=inputs.sampled_logp)

    def loss(self, logp, inputs):
        return super().loss(*self.under_mask(logp, inputs))
