"""gdpo.py - GDPO: each term of the reward has its own advantages.

Source:  GDPO (arXiv 2601.05242), section 3.1.
Formula: for R = sum_k w_k R_k:  A_i = sum_k w_k (R_ik - mean_k) / (std_k + eps) within the group,
         then divided by the root mean square of all A in the batch.
Changes: in a plain sum with equal weights, the terms (1, 0) and (0, 1) are worth the same. Here a
         term that few completions of the group earned counts for more, whatever its scale. The
         terms are the parts that the reward logs. Least squares finds their weights, which must
         reproduce every reward. If several sums do, the parts logged first are used.
Missing: the paper's rewards (tool calls, length, code), and a reward that counts only if a harder
         one is earned (3.2). Needs a --reward that is a sum of logged terms: tagged, or r1_zero or
         r1 in rewards/reasoning.py.
"""

import torch

from appendix.plumbing import DataError
from rlvr import GRPO, group_advantages


def fit(columns, target):
    """Fit the target by least squares -> (weights, True if they reproduce every reward)."""
    weights = torch.linalg.lstsq(columns, target, driver="gelsd").solution
    error = (columns @ weights - target).abs().max()
    return weights, bool(error <= 1e-5 * target.abs().max().clamp(min=1))


def terms_of(batch):
    """Return the terms of the reward of a batch: [(weight, term (P, G))]. Raises DataError if
    the reward is not a sum of the parts that it logs."""
    names = dict.fromkeys(name for part in batch.parts for name in part)
    names = [name for name in names if name not in ("truncated", "failed")]
    names.sort(key=lambda name: name == "answered")  # tried last: it is seldom a term
    columns = [[part.get(name, 0.0) for name in names] for part in batch.parts]
    columns = torch.tensor(columns, dtype=torch.float64)  # (B, terms)
    target = batch.rewards.flatten().double()

    # If the verifier failed, or a completion that was cut off earned 0, all its terms are 0.
    judged = torch.tensor([not part.get("failed") for part in batch.parts])
    target = target * judged
    counted = judged & (batch.rollouts.finished.cpu() | (target < 0))
    columns = columns * counted[:, None]

    chosen = list(range(len(names)))
    if not fit(columns, target)[1]:
        found = f"this reward is no weighted sum of the parts that it logs ({', '.join(names)})"
        raise DataError(f"gdpo: {found}. Log its terms, or use another method")
    for column in reversed(range(len(names))):  # leave out parts that the sum does not need
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
        # If the verifier failed, the completion is as bad as the worst of its group.
        failed = torch.tensor([bool(part.get("failed")) for part in batch.parts]).view_as(total)
        total = torch.where(failed, total.amin(1, keepdim=True).clamp(max=0), total)
        root_mean_square = total.square().mean().sqrt()
        return (total / (root_mean_square + 1e-6)).to(batch.rewards.dtype)
