"""compose.py - Other ways to put verdicts together: products, minima, phases by step, terms with a name.

Chapter 14 adds terms up (RewardFn, make_reward); the chapter on verifier-based RL gates them and changes
them in mid-run. with_term is a slot for any score from 0 to 1.
"""

import math
import operator
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from verifiers import (
    MATH_RULES,
    ReasoningReward,
    RuleSpec,
    aggregate,
    boxed_reward,
    tagged_reward,
    verify_math,
)


def gated(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = prod_i r_i: any rule at 0 makes it 0, weights do not matter. Strict, and silent at the start."""
    return math.prod(rule.score_fn(verifier_out) for rule in rules)


def weakest(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = min_i r_i: the worst rule alone counts, and the others teach nothing until it is better."""
    return min(rule.score_fn(verifier_out) for rule in rules)


def soft_or(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = 1 - prod_i (1 - r_i): one rule at 1 is enough, so the easiest one is what is learned."""
    return 1 - math.prod(1 - rule.score_fn(verifier_out) for rule in rules)


def weights(**of) -> list[RuleSpec]:
    """weights(answer=1.0, format=0.1): rules that read the scores of the same names."""
    return [RuleSpec(name, weight, operator.itemgetter(name)) for name, weight in of.items()]


_MAIN = {"accuracy", "answer", "correctness", "tests", "frac"}
_FORMAL = {"format", "structure", "think_length"}


def check_weights(rules: list[RuleSpec]) -> list[RuleSpec]:
    """The same rules, with a warning where a policy could live without being right.

    Correctness should have at least 60 % of the weight and the form less than 10 % (the chapter on
    verifier-based RL, section 6.2). 1.0 and 0.1 are 90.9 and 9.1 %.
    """
    total = sum(rule.weight for rule in rules) or 1.0
    main = sum(rule.weight for rule in rules if rule.name in _MAIN) / total
    form = sum(rule.weight for rule in rules if rule.name in _FORMAL) / total
    if main < 0.6:
        warnings.warn(
            f"correctness has {main:.0%} of the weight: below 60 % other terms may drown it",
            stacklevel=2,
        )
    if form >= 0.1:
        warnings.warn(
            f"the form has {form:.0%} of the weight: from 10 % on it invites empty forms",
            stacklevel=2,
        )
    return rules


def earnable(reward: ReasoningReward) -> list[RuleSpec]:
    """The terms of a ReasoningReward that compete, for check_weights: a penalty cannot be earned."""
    return weights(accuracy=reward.w_acc, format=reward.w_fmt, length=reward.w_len)


def reward_from(verifier, rules: list[RuleSpec], combine=aggregate):
    """A reward out of a verifier (completion, truth) -> scores, and rules; combine: aggregate,
    gated, weakest or soft_or."""
    names = ["accuracy" if rule.name in _MAIN else rule.name for rule in check_weights(rules)]

    def reward(completion, problem):
        out = verifier(completion, problem["answer"])
        return combine(out, rules), {name: rule.score_fn(out) for name, rule in zip(names, rules)}

    return reward


@dataclass
class RewardFn:
    """A named term of a reward, with the chapter's signature: fn(prompt, completion, meta) -> float."""

    name: str
    fn: Callable[[str, str, dict], float]


def make_reward(*fns: RewardFn):
    """Addition is composition: combined(prompt, completion, meta) -> the sum of the terms. combined.reward is the same
    for --reward (mine = make_reward(..).reward): meta is the problem, and each term a part of the log."""
    if len({rf.name for rf in fns}) < len(fns):
        raise ValueError(f"make_reward: two terms share a name: {', '.join(rf.name for rf in fns)}")

    def combined(prompt, completion, meta):
        return sum(rf.fn(prompt, completion, meta) for rf in fns)

    def reward(completion, problem):
        terms = {rf.name: rf.fn(problem["problem"], completion, problem) for rf in fns}
        return sum(terms.values()), terms

    combined.reward = reward
    return combined


def score_group(rollouts: list[str], truth: str) -> dict:
    """The chapter's inner loop, G rollouts of one problem -> {"rewards", "advantages"}, G floats each."""
    from rlvr import group_advantages  # here only: no other reward needs torch

    paid = [aggregate(verify_math(rollout, truth), MATH_RULES) for rollout in rollouts]
    return {"rewards": paid, "advantages": group_advantages(paid)}


def gated_reward(completion, problem):
    """The right answer in the right form or nothing: the product of the terms of tagged_reward."""
    reward, parts = reward_from(verify_math, MATH_RULES, gated)(completion, problem)
    return reward, parts | {"answered": boxed_reward(completion, problem)[1]["answered"]}


@dataclass
class Curriculum:
    """Phases [(first step, reward), ...], by problem["step"], which the training loop sets. The chapter on
    verifier-based RL (6.3) has correctness from 0, + 0.1 format from 1000, + 0.1 cost from 3000: a cost
    discourages exploring. Without a step, as in an evaluation, the last phase counts."""

    phases: list

    def __call__(self, completion, problem):
        step = problem.get("step", math.inf)
        return [reward for first, reward in self.phases if first <= step][-1](completion, problem)


curriculum = Curriculum([(0, reward_from(verify_math, weights(answer=1.0))), (1000, tagged_reward)])


def with_term(reward, name, score, weight, when=lambda problem: True):
    """reward + weight * score(completion, problem): a slot for any score from 0 to 1, of a model or a rule.
    when(problem): where it counts. subtle: for a whole group or not at all, or luck would look like merit."""

    def extended(completion, problem):
        value, parts = reward(completion, problem)
        more = float(score(completion, problem)) if when(problem) else 0.0
        if not 0.0 <= more <= 1.0:
            raise ValueError(f"the score {name!r} is {more}, not from 0 to 1")
        return value + weight * more, parts | {name: more}

    return extended


def one_in(n):
    """Every n-th problem. subtle: without the last digit of the hash, for those with a 0 there are held out."""
    return lambda problem: zlib.crc32(problem["problem"].encode("utf-8", "replace")) // 10 % n == 0
