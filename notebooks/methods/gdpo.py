"""gdpo.py - GDPO: each term of a reward has advantages of its own.

Source:  GDPO (arXiv 2601.05242), section 3.1.
Formula: for R = sum_k w_k R_k:  A_i = sum_k w_k (R_ik - mean_k) / (std_k + eps) within the group,
         then divided by the root of the mean square of all A of the batch.
Changes: in the plain sum the terms (1, 0) and (0, 1) are the same. Here a term that few of the
         group earned counts for more, whatever its scale. The terms are the reward's own: the
         weights are found by least squares from what it logs, and must give every reward. Where
         several sums do, the parts logged first are taken.
Missing: the paper's rewards (tool calls, length, code), and a reward that counts only where a
         harder one is earned (3.2). Needs a --reward that is a sum of logged terms: tagged,
         r1-zero, r1.
"""

import torch

from appendix.plumbing import DataError
from rlvr import GRPO, group_advantages


def fit(columns, target):
    """Least squares -> (weights, whether they give every reward)."""
    weights = torch.linalg.lstsq(columns, target, driver="gelsd").solution
    error = (columns @ weights - target).abs().max()
    return weights, bool(error <= 1e-5 * target.abs().max().clamp(min=1))


def terms_of(batch):
    """The terms of the reward of a batch -> [(weight, term (P, G))]. Raises DataError."""
    names = dict.fromkeys(name for part in batch.parts for name in part)
    names = [name for name in names if name not in ("truncated", "failed")]
    names.sort(key=lambda name: name == "answered")  # the last resort: seldom a term
    columns = [[part.get(name, 0.0) for name in names] for part in batch.parts]
    columns = torch.tensor(columns, dtype=torch.float64)  # (B, terms)
    target = batch.rewards.flatten().double()

    # Where the verifier failed, and where what was cut off earned 0, all terms are 0.
    judged = torch.tensor([not part.get("failed") for part in batch.parts])
    target = target * judged
    counted = judged & (batch.rollouts.finished.cpu() | (target < 0))
    columns = columns * counted[:, None]

    chosen = list(range(len(names)))
    if not fit(columns, target)[1]:
        found = f"this reward is no weighted sum of the parts that it logs ({', '.join(names)})"
        raise DataError(f"gdpo: {found}. Log its terms, or use another method")
    for column in reversed(range(len(names))):  # leave out what the sum does not need
        fewer = [other for other in chosen if other != column]
        if fewer and fit(columns[:, fewer], target)[1]:
            chosen = fewer
    weights, _ = fit(columns[:, chosen], target)
    terms = [columns[:, column].view_as(batch.rewards) for column in chosen]
    return list(zip(weights.tolist(), terms))


class GDPO(GRPO):
    def advantages(self, batch):
        total = torch.zeros(batch.rewards.shape, dtype=torch.float64)
        for weight, term in terms_of(batch):
            total += weight * group_advantages(term, "std")
        # Where the verifier failed, it is as bad as the worst of the group.
        failed = torch.tensor([bool(part.get("failed")) for part in batch.parts]).view_as(total)
        total = torch.where(failed, total.amin(1, keepdim=True).clamp(max=0), total)
        root_mean_square = total.square().mean().sqrt()
        return (total / (root_mean_square + 1e-6)).to(batch.rewards.dtype)
