"""self_distill.py - SDPO: the policy, shown a right completion of its own group, teaches itself.

Source:  "Reinforcement Learning via Self-Distillation" (arXiv 2601.20802): abstract, the objective
         as a review prints it (themoonlight.io), the mixture with GRPO as a summary quotes it.
Formula: sum_t KL(pi(. | x, o_<t) || stopgrad pi(. | x, f, o_<t)), where f is feedback: here a right
         completion of another row. At the sampled token its gradient is that of the advantage
         A_it = log pi(o_it | x, f, o_<t) - log pi(o_it | x, o_<t),
         and with --mix 0.5 half of it and half of GRPO's.
Changes: the advantages; rewards only choose what is shown, so a group without a right completion,
         and the only right one of a group, teach nothing. The teacher reads x, f and x again: the
         problem, solved once, and asked anew.
Missing: feedback in words, such as a program's error; the teacher's whole distribution in place of
         the sampled token's log-prob, and its moving average over the steps; --fsdp. It needs a
         model that makes use of what it is shown: the paper says it fails for small ones.
"""

from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from rlvr import GRPO, group_advantages, token_logprobs


class SelfDistill(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        mix: float = 0.0  # weight of GRPO's advantages
        right_above: float = 0.5  # rewards above this are right
        teacher_rows: int = 16  # in a forward pass of the teacher

    def setup(self, model, tokenizer):
        self.model = model
        return super().setup(model, tokenizer)

    def advantages(self, step):
        mix = self.settings.mix
        credit = self.credit(step)  # (B, T-1)
        grpo = group_advantages(step.rewards, self.settings.scale).flatten()  # (B,)
        return mix * grpo[:, None].to(credit.device) + (1 - mix) * credit

    @torch.no_grad()
    def credit(self, step):
        """(B, T-1): how much likelier each token is to the policy that was shown a solution."""
        rollouts = step.rollouts
        credit = torch.zeros_like(rollouts.mask)
        pairs = shown_to(step.rewards > self.settings.right_above)
        starts = rollouts.prompt_lengths.tolist()
        for first in range(0, len(pairs), self.settings.teacher_rows):
            some = pairs[first : first + self.settings.teacher_rows]
            texts = [taught(rollouts, row, peer) for row, peer in some]
            ids = pad_sequence(texts, True)
            logp = token_logprobs(self.model, ids, self.settings.temperature)
            for (row, _), text, theirs in zip(some, texts, logp):
                length = int(rollouts.lengths[row])
                place = slice(starts[row] - 1, starts[row] - 1 + length)
                end = len(text) - 1  # the own completion ends the text
                credit[row, place] = theirs[end - length : end] - rollouts.logp[row, place]
        return credit * rollouts.mask


def shown_to(right):
    """right (P, G) bool -> of each row that is taught (itself, the right row that it is shown): the
    next one of its group, itself left out. Example: one group, 1 0 1 -> (0, 2), (1, 2), (2, 0)."""
    P, G = right.shape
    pairs = []
    for row in range(P * G):
        group = row // G * G
        others = [group + (row - group + k) % G for k in range(1, G)]
        peers = [other for other in others if right[other // G, other % G]]
        pairs += [(row, peers[0])] if peers else []
    return pairs


def taught(rollouts, row, peer):
    """The tokens that the teacher reads: problem, solution, problem, and the row's own completion."""
    start = int(rollouts.prompt_lengths[row])
    own = rollouts.ids[row, : start + int(rollouts.lengths[row])]
    solved = rollouts.ids[peer, : start + int(rollouts.lengths[peer])]
    return torch.cat([solved, own])
