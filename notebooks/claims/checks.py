"""checks.py - what is said of a claim's arms, and how it is decided.

A check is experiments.Check: it names the effect that it looks for, the line stands in the middle, and where a trial of
this size and spread would be wrong more than one time in ten it says "cannot tell".
"""

import math
import statistics

import numpy as np
from scipy import stats

from notebooks.claims import experiments as lab
from notebooks.claims.experiments import POINTS, Check
from notebooks.claims.show import table_of

LEAST = 3  # seeds: with fewer no check is decided

# ---- 1. What is said -------------------------------------------------------------------------------

# Of a difference, from evaluation alone: smaller than that of 200 completions where more are drawn.
NOISE = {"pass@1": 0.02, "works": 0.02, "entropy fell": 0.02, "pass@16": 0.03, "pass@64": 0.03}


def more(arm, other, column="right", by=0.1):
    """The first arm has more of the column."""
    sentence = f"{column}: {arm} is {by:g} above {other}"
    return difference(sentence, arm, other, column, by)


def as_much(arm, other, column="right", by=0.1):
    """They differ by less than half of `by`; `by` would refute it."""
    sentence = f"{column}: {arm} is equal to {other} ({by:g} would refute it)"
    return difference(sentence, arm, other, column, by, same=True)


def no_less(arm, other, column="pass@1", by=0.1):
    """The first arm has as much of the column or more; a loss of `by` would refute it."""
    sentence = f"{column}: {arm} is no {by:g} below {other} ({by:+g} is no loss)"
    return difference(sentence, arm, other, column, by, plus=by)


def difference(sentence, arm, other, column, by, same=False, plus=0.0):
    noise = NOISE.get(column, POINTS)
    return Check(sentence, lambda x: x(arm, column) - x(other, column) + plus, by, noise, same)


def reaches(arm, column, by, noise):
    """There is something, about `by` of it; the line is at half."""
    return Check(f"{column}: {arm} has {by:g}", lambda x: x(arm, column), by, noise)


def has_none(arm, column, by, noise):
    sentence = f"{column}: {arm} has none ({by:g} would refute it)"
    return Check(sentence, lambda x: x(arm, column), by, noise, same=True)


def rises(arm, by=0.3):
    return lab.rises(arm, by=by, what=f"right rises by {by:g}")


def stays(arm, by=0.1):
    return lab.stays(arm, by=by, what=f"right stays ({by:g} would refute it)")


# ---- 2. Is it so? ----------------------------------------------------------------------------------


def smallest_effect(check, values):
    """The smallest effect for which at most one verdict in ten would be wrong, with this spread of the seeds:
    experiments.wrong_verdicts, solved for the effect."""
    own = statistics.stdev(values) if len(values) > 1 and np.isfinite(values).all() else 0.0
    level = 1 - 0.1 / (check.among * (1 + check.same))
    law = stats.norm if own <= check.noise else stats.t(len(values) - 1)
    return float(2 * max(own, check.noise) * law.ppf(level) / math.sqrt(len(values)))


def judge(check, rows):
    """-> the check with its numbers; holds is True, False, or None for "cannot tell"."""
    x = table_of(rows)
    values = [float(value) for value in check.change(x)]
    holds, mean, wrong = check.judge(x)
    return {
        "sentence": check.sentence,
        "holds": holds if len(values) >= LEAST else None,
        "mean": mean,
        "values": values,
        "line": check.effect / 2,
        "wrong verdicts": wrong,
        "smallest effect": smallest_effect(check, values),
    }


def result_of(claim, rows):
    """Judge what was measured -> what a page shows."""
    checks = {said: [judge(check, rows) for check in some] for said, some in claim.checks.items()}
    verdicts = {
        said: lab.verdict(check["holds"] for check in judged) for said, judged in checks.items()
    }
    return {
        "claim": claim.sentence,
        "source": claim.source,
        "change our mind": claim.doubt,
        "columns": [*(claim.columns or claim.panels)],
        "panels": claim.panels,
        "over": claim.over,
        "plane": claim.plane,
        "checks": checks,
        "verdicts": verdicts,
    }
