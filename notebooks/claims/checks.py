"""checks.py - what is said of a claim's arms, and how it is decided.

A check names the effect that it looks for, and the line stands in the middle between that and none. Where a trial of
this size and spread would be wrong more than one time in ten it says "cannot tell", unless the seeds lie so far from
the line that a t-test on them is sure of it.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from notebooks.claims.show import table_of

LEAST = 3  # seeds: with fewer no check is decided

# ---- 1. What is said -------------------------------------------------------------------------------

POINTS = 0.05  # noise of a difference of two accuracies on 200 problems: sqrt(2 * 0.25 / 200)
SHARE = (
    0.03  # of a share of 1,280 completions: twice sqrt(0.25 / 1280), for those of a group are alike
)
NOISE = {  # of a difference, where it is not that of 200 completions
    "pass@1": 0.02,
    "pass@16": 0.03,
    "pass@64": 0.03,
    "works": 0.02,
    "mixed@mean": 0.02,
    "bilingual": SHARE,
    "rambling": SHARE,
    "needless": 0.02,
}


@dataclass
class Check:
    """One sentence. change: from x(arm, column), the numbers of the seeds as an array, to one number a seed that is at
    least `effect` if the sentence is true and 0 if nothing changed; with same=True the sentence is that nothing
    changed, and effect is what would refute it. noise: the standard deviation of such a number from evaluation alone.
    among: of how many (pairs, signs) this one was picked as the largest."""

    sentence: str
    change: Callable
    effect: float
    noise: float
    same: bool = False
    among: int = 1


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


def rises(arm, by=0.3, same=False, column="right"):
    sentence = f"{arm}: {column} rises by {by:g}"
    if same:
        sentence = f"{arm}: {column} stays ({by:g} would refute it)"
    noise = NOISE.get(column, POINTS)
    return Check(sentence, lambda x: x(arm, column) - x(arm, f"{column}@0"), by, noise, same)


def stays(arm, by=0.1):
    return rises(arm, by, same=True)


def falls(arm, by, column="right"):
    sentence = f"{arm}: {column} falls by {by:g}"
    return Check(
        sentence, lambda x: x(arm, f"{column}@0") - x(arm, column), by, NOISE.get(column, POINTS)
    )


# ---- 2. Is it so? ----------------------------------------------------------------------------------


def law(seeds, known):
    """Of the mean over the seeds: the normal one, or Student's t where the deviation is that of the seeds."""
    return stats.norm if known else stats.t(seeds - 1)


def wrong_verdicts(effect, deviation, seeds, among=1, known=True):
    """How often the mean over the seeds lies on the wrong side of effect / 2, when nothing is there or all of it is:
    Phi(-effect sqrt(seeds) / (2 deviation)). Example: 10 points, 200 problems evaluated twice (deviation
    sqrt(2 * 0.25 / 200) = 0.05), 3 seeds: Phi(-1.73) = 4.2 %; for 5 points it would be 19 %."""
    distance = effect * math.sqrt(seeds) / (2 * deviation)
    return min(1.0, among * float(law(seeds, known).cdf(-distance)))


def smallest_effect(deviation, seeds, among=1, known=True):
    """The effect below which a verdict is wrong in more than 10 %: what a trial of this size could have missed."""
    return float(2 * deviation * law(seeds, known).ppf(1 - 0.1 / among) / math.sqrt(seeds))


def beyond(distance, deviation, seeds, among=1):
    """Is a mean of this many seeds, at that distance from the line, on its side of it for sure? A one-sided t-test at
    10 %, divided among what it was picked from. Example: .24 beyond, a spread of .15, 3 seeds: t = 2.77 > 1.89."""
    least = stats.t.ppf(1 - 0.1 / among, seeds - 1)
    return abs(distance) > least * deviation / math.sqrt(seeds)


def judge(check, rows):
    """-> the check with its numbers; holds is True, False, or None for "cannot tell"."""
    values = np.asarray(check.change(table_of(rows)), dtype=float)
    seeds = len(values)
    own = statistics.stdev(values) if seeds > 1 and np.isfinite(values).all() else 0.0
    deviation = max(own, check.noise)
    known = own <= check.noise
    among = check.among * (1 + check.same)
    wrong = wrong_verdicts(check.effect, deviation, seeds, among, known)
    mean = float(values.mean())
    line = check.effect / 2
    distance = (abs(mean) if check.same else mean) - line
    told = wrong <= 0.1 or beyond(distance, deviation, seeds, check.among)
    holds = distance < 0 if check.same else distance > 0
    return {
        "sentence": check.sentence,
        "holds": holds if told and seeds >= LEAST and math.isfinite(mean) else None,
        "mean": mean,
        "line": line,
        "smallest effect": smallest_effect(deviation, seeds, among, known),
    }


def verdict(results):
    """All must hold; one that does not hold decides; else one that cannot be told leaves it open."""
    results = [*results]
    return "does not hold" if False in results else "cannot tell" if None in results else "holds"


def result_of(claim, rows):
    """Judge what was measured -> what a page shows."""
    checks = {said: [judge(check, rows) for check in some] for said, some in claim.checks.items()}
    verdicts = {
        said: verdict(check["holds"] for check in judged) for said, judged in checks.items()
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
