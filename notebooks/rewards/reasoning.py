"""reasoning.py - The recipes of chapter 15: R1-Zero, R1, Kimi k1.5, Olmo 3; repetition, refusals, languages. And other
ways to put verdicts together: products, phases by step, terms with a name.

    python train.py --reward notebooks/rewards/reasoning.py:olmo

Chapter 14 adds terms up (RewardFn, make_reward); the chapter on verifier-based RL gates them and changes
them in mid-run. with_term is a slot for any score from 0 to 1.
"""

import math
import re
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from notebooks.rewards.process import steps_score
from notebooks.rewards.structured import WORD, ngrams, weights
from rlvr import group_advantages
from verifiers import (
    MATH_RULES,
    RuleSpec,
    aggregate,
    box_parts,
    extract_boxed_answer,
    is_rewarded,
    split_tags,
    verify_math,
)

# ---- The reward ------------------------------------------------------------------------------------

_SCRIPTS = [
    r"(?<![A-Za-z\\])[A-Za-z]{2,}",  # Latin; a single x or a \frac is mathematics
    "[\u3040-\u30ff\u3400-\u9fff]",  # kana and Han
    "[\uac00-\ud7af]",  # Hangul
    "[\u0400-\u04ff]",  # Cyrillic
    "[\u0600-\u06ff]",  # Arabic
]


def mixed_scripts(text, threshold=0.10):
    """Is more than a tenth of the letters outside the main script? Chinese with an x is Chinese."""
    counts = [sum(map(len, re.findall(script, text))) for script in _SCRIPTS]
    return sum(counts) - max(counts) > threshold * sum(counts)


@dataclass
class ReasoningReward:
    """R = w_acc acc + w_fmt fmt + len + lang (chapter "Reward Design for Reasoning"), n words of
    thinking:

    acc    1 if the last box of the answer is right
    fmt    1 for the tagged form, whatever is thought in it (guards.py looks for a derivation)
    len    w_len min(n, len_cap) / len_cap (w_len n / len_cap if saturates is False); beyond the
           threshold less w_ramble min(1, n / ramble_threshold - 1): a right answer after 612
           words earns 1.1 - 0.3 * 0.53 = 0.94
    lang   -w_lang if the thinking mixes scripts, however much
    All are 0 if the completion was cut off, or its tags are broken or missing; with needs_tags
    False a right box without tags earns w_acc."""

    w_acc: float = 1.0
    w_fmt: float = 0.1
    w_len: float = 0.0
    w_lang: float = 0.5
    w_ramble: float = 0.3
    len_cap: int = 256
    ramble_threshold: int = 400
    saturates: bool = True
    needs_tags: bool = True

    def __call__(self, rollout, truth, truncated=False, problem=""):
        tags = split_tags(rollout)
        broken = tags is None and re.search("</?(?:think|answer)>", rollout)
        if truncated or broken or tags is None and self.needs_tags:
            scores = "R acc fmt len lang think_tokens".split()
            return {**dict.fromkeys(scores, 0.0), "extracted": None}
        think, answer = tags or ("", rollout)
        n, extracted = len(WORD.findall(think)), extract_boxed_answer(answer)
        acc = float(is_rewarded(extracted, truth, problem))
        fmt = float(tags is not None)
        length = self.w_len * (min(n, self.len_cap) if self.saturates else n) / self.len_cap
        length -= self.w_ramble * min(1.0, max(0.0, n / self.ramble_threshold - 1))
        lang = -self.w_lang * mixed_scripts(think)
        total = self.w_acc * acc + self.w_fmt * fmt + length + lang
        return {
            "R": total,
            "acc": acc,
            "fmt": fmt,
            "len": length,
            "lang": lang,
            "think_tokens": n,
            "extracted": extracted,
        }

    def reward(self, completion, problem):
        out = self(completion, problem["answer"], problem=problem.get("problem", ""))
        parts = {"accuracy": out["acc"], "format": out["fmt"], "length_term": out["len"]}
        parts |= {"language": out["lang"], "thinking": out["think_tokens"]}
        return out["R"], parts | box_parts(out["extracted"], problem)


# ---- Verdicts together -----------------------------------------------------------------------------


def gated(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """R = prod_i r_i: any rule at 0 makes it 0, weights do not matter. Strict, and silent at the start."""
    return math.prod(rule.score_fn(verifier_out) for rule in rules)


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
        text = f"correctness has {main:.0%} of the weight: below 60 % other terms may drown it"
        warnings.warn(text, stacklevel=2)
    if form >= 0.1:
        text = f"the form has {form:.0%} of the weight: from 10 % on it invites empty forms"
        warnings.warn(text, stacklevel=2)
    return rules


def earnable(reward: ReasoningReward) -> list[RuleSpec]:
    """The terms of a ReasoningReward that compete, for check_weights: a penalty cannot be earned."""
    return weights(accuracy=reward.w_acc, format=reward.w_fmt, length=reward.w_len)


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
    paid = [aggregate(verify_math(rollout, truth), MATH_RULES) for rollout in rollouts]
    return {"rewards": paid, "advantages": group_advantages(paid)}


@dataclass
class Curriculum:
    """Phases [(first step, reward), ...], by problem["step"], which the training loop sets. The chapter on
    verifier-based RL (6.3) has correctness from 0, + 0.1 format from 1000, + 0.1 cost from 3000: a cost
    discourages exploring. Without a step, as in an evaluation, the last phase counts."""

    phases: list

    def __call__(self, completion, problem):
        step = problem.get("step", math.inf)
        return [reward for first, reward in self.phases if first <= step][-1](completion, problem)


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


# ---- Recipes ---------------------------------------------------------------------------------------


def repetition(text: str, n=4) -> float:
    """The share of n-grams that were there before: near 0 for honest text, near 1 for one phrase again
    and again."""
    grams = ngrams(WORD.findall(text), n)
    return 1 - len(grams) / grams.total() if grams else 0.0


@dataclass
class RepetitionReward(ReasoningReward):
    """A ReasoningReward less w_rep times how far the repetition of the whole text has got from
    rep_threshold to 1."""

    w_rep: float = 0.3
    rep_threshold: float = 0.3

    def __call__(self, rollout: str, truth: str, truncated=False, **more) -> dict:
        out = super().__call__(rollout, truth, truncated, **more)
        if truncated or self.needs_tags and not out["fmt"]:
            return out | {"rep": 0.0}  # all of it is 0, and stays so
        excess = max(0.0, repetition(rollout) - self.rep_threshold)
        rep = -self.w_rep * excess / (1 - self.rep_threshold)
        return out | {"R": out["R"] + rep, "rep": rep}

    def reward(self, completion, problem):
        value, parts = super().reward(completion, problem)
        return value, parts | {"repetition": repetition(completion)}


# The four recipes as the chapter "Reward Design for Reasoning" gives them; its tables are simpler than the reports.
# DeepSeek-R1 (2501.12948) pays the share of words in the right language. Kimi k1.5 (2501.12599) has no process model
# and a length penalty relative to the group; the chapter's terms for helpfulness and process are below, its "small"
# bonus and "cap" are our numbers. A bonus that never saturates outgrows accuracy in the end, here after 26
# caps: --max-new-tokens must stay below. Olmo 3: 2512.13961.
REASONING_PRESETS = {
    "r1-zero": ReasoningReward(w_lang=0.0, w_ramble=0.0),
    "r1": ReasoningReward(),
    "kimi-k1.5": ReasoningReward(
        w_fmt=0.05, w_len=0.05, w_lang=0.0, len_cap=4096, saturates=False, ramble_threshold=4096
    ),
    "olmo-3": RepetitionReward(w_len=0.2, w_rep=0.3, w_ramble=0.0, len_cap=1024),
}
r1_zero = REASONING_PRESETS["r1-zero"].reward
r1 = REASONING_PRESETS["r1"].reward
kimi = REASONING_PRESETS["kimi-k1.5"].reward
olmo = REASONING_PRESETS["olmo-3"].reward
language_later = Curriculum(  # R1-Zero's reward, and from step 30 on a penalty for mixing languages
    [(0, r1_zero), (30, r1)]
)
_REFUSAL = re.compile(
    r"\bI(?:'m| am) (?:sorry|unable)\b|\bas an AI\b"
    r"|\bI (?:cannot|can't|can not|won't|will not) (?:help|assist|answer|comply|provide)\b",
    re.IGNORECASE,
)


def no_refusal(completion, problem):
    """1 unless what is said behind the thinking refuses, by the usual English phrases: a term for
    with_term. Chapter 14 names one for refusals and does not print it. It is a list of words, so a
    policy can refuse in others; where a right answer is paid, a refusal earns nothing in any case."""
    said = completion.rpartition("</think>")[2]
    return float(not _REFUSAL.search(said.replace("\u2019", "'")))


def rules_score(completion, problem):
    """The share of AutoRule's rules to which its judge says Yes ($AUTORULE, see autorule/autorule.py)."""
    from notebooks.autorule.autorule import rules_reward  # here only: it reads models

    parts = rules_reward(completion, problem)[1]
    yes = [value for name, value in parts.items() if re.fullmatch("rule_[0-9]+", name)]
    return sum(yes) / max(1, len(yes))


# What the chapter's tables add: R1's 0.2 for helpful and harmless in its last phase, a run of its own or a phase of a
# Curriculum; Kimi's 0.05 for the process on 5 % of the problems (the hardest, it says: pass a `when` that knows them).
r1_helpful = with_term(r1, "helpful", rules_score, 0.2)
kimi_process = with_term(kimi, "process", steps_score, 0.05, one_in(20))
