"""reasoning.py - the rewards of chapter 15 (R1-Zero, R1, Kimi k1.5, Olmo 3), with terms for repetition, refusals and
languages, and other ways to combine scores: products, phases by step, named terms.

    python train.py --reward notebooks/rewards/reasoning.py:olmo

Chapter 14 adds terms up (RewardFn, make_reward). The chapter on verifier-based RL multiplies them (gated) and changes
them during a run (Curriculum). with_term adds any score from 0 to 1.
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
    """Return True if more than a tenth of the letters are outside the main script. A single x does not count."""
    counts = [sum(map(len, re.findall(script, text))) for script in _SCRIPTS]
    return sum(counts) - max(counts) > threshold * sum(counts)


@dataclass
class ReasoningReward:
    """R = w_acc acc + w_fmt fmt + len + lang (chapter "Reward Design for Reasoning"), for n words of
    thinking:

    acc    1 if the last box of the answer is right
    fmt    1 for the tagged form, whatever the thinking is (guards.py looks for a derivation)
    len    w_len min(n, len_cap) / len_cap (w_len n / len_cap if saturates is False); above the threshold
           minus w_ramble min(1, n / ramble_threshold - 1): a right answer after 612 words earns
           1.1 - 0.3 * 0.53 = 0.94
    lang   -w_lang if the thinking mixes scripts, however much
    All are 0 if the completion was cut off, or its tags are broken or missing. With needs_tags=False,
    a right box without tags earns w_acc."""

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


# ---- Combining scores ------------------------------------------------------------------------------


def gated(verifier_out: dict, rules: list[RuleSpec]) -> float:
    """Return R = prod_i r_i. Any rule at 0 makes it 0, and weights do not matter. It is strict: at
    first, a policy may earn nothing."""
    return math.prod(rule.score_fn(verifier_out) for rule in rules)


_MAIN = {"accuracy", "answer", "correctness", "tests", "frac"}
_FORMAL = {"format", "structure", "think_length"}


def check_weights(rules: list[RuleSpec]) -> list[RuleSpec]:
    """Return the rules, and warn if a policy could do well without being right.

    Correctness should have at least 60 % of the weight and the form less than 10 % (the chapter on
    verifier-based RL, section 6.2). The weights 1.0 and 0.1 are 90.9 and 9.1 %.
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
    """Return the terms of a ReasoningReward that a policy can earn, for check_weights. Penalties are left out."""
    return weights(accuracy=reward.w_acc, format=reward.w_fmt, length=reward.w_len)


@dataclass
class RewardFn:
    """A named term of a reward, with the chapter's signature: fn(prompt, completion, meta) -> float."""

    name: str
    fn: Callable[[str, str, dict], float]


def make_reward(*fns: RewardFn):
    """Return combined(prompt, completion, meta), the sum of the terms. combined.reward does the same for --reward
    (mine = make_reward(..).reward): meta is the problem, and each term is a part in the log."""
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
    """Score G rollouts of one problem: the chapter's inner loop -> {"rewards", "advantages"}, G floats each."""
    paid = [aggregate(verify_math(rollout, truth), MATH_RULES) for rollout in rollouts]
    return {"rewards": paid, "advantages": group_advantages(paid)}


@dataclass
class Curriculum:
    """Phases [(first step, reward), ...], chosen by problem["step"], which the training loop sets. The
    chapter on verifier-based RL (6.3) starts with correctness, adds 0.1 format at step 1000 and 0.1 cost
    at step 3000: a cost discourages exploring. Without a step, as in an evaluation, the last phase counts."""

    phases: list

    def __call__(self, completion, problem):
        step = problem.get("step", math.inf)
        return [reward for first, reward in self.phases if first <= step][-1](completion, problem)


def with_term(reward, name, score, weight, when=lambda problem: True):
    """Return reward + weight * score(completion, problem), for any score from 0 to 1, by a model or a
    rule. when(problem): whether it counts. subtle: `when` must treat a whole group alike, or luck would
    look like merit."""

    def extended(completion, problem):
        value, parts = reward(completion, problem)
        more = float(score(completion, problem)) if when(problem) else 0.0
        if not 0.0 <= more <= 1.0:
            raise ValueError(f"the score {name!r} is {more}, not from 0 to 1")
        return value + weight * more, parts | {name: more}

    return extended


def one_in(n):
    """Return a `when` that selects one problem in n. subtle: it drops the hash's last digit, by
    which held_out chooses."""
    return lambda problem: zlib.crc32(problem["problem"].encode("utf-8", "replace")) // 10 % n == 0


# ---- Recipes ---------------------------------------------------------------------------------------


def repetition(text: str, n=4) -> float:
    """Return the share of n-grams that occurred before: near 0 for honest text, near 1 for one phrase over and
    over."""
    grams = ngrams(WORD.findall(text), n)
    return 1 - len(grams) / grams.total() if grams else 0.0


@dataclass
class RepetitionReward(ReasoningReward):
    """A ReasoningReward minus w_rep times the excess repetition of the whole text: 0 up to
    rep_threshold, then rising linearly to 1."""

    w_rep: float = 0.3
    rep_threshold: float = 0.3

    def __call__(self, rollout: str, truth: str, truncated=False, **more) -> dict:
        out = super().__call__(rollout, truth, truncated, **more)
        if truncated or self.needs_tags and not out["fmt"]:
            return out | {"rep": 0.0}  # R is 0 and stays 0
        excess = max(0.0, repetition(rollout) - self.rep_threshold)
        rep = -self.w_rep * excess / (1 - self.rep_threshold)
        return out | {"R": out["R"] + rep, "rep": rep}

    def reward(self, completion, problem):
        value, parts = super().reward(completion, problem)
        return value, parts | {"repetition": repetition(completion)}


# The four recipes of the chapter "Reward Design for Reasoning". Its tables are simpler than the reports. DeepSeek-R1
# (2501.12948) rewards the share of words in the right language. Kimi k1.5 (2501.12599) has no process model, and its
# length penalty is relative to the group. Terms for helpfulness and process are below. The chapter calls Kimi's bonus
# "small" and names a "cap": the numbers are ours. A bonus that never saturates exceeds accuracy in the end, here after
# 26 caps: keep --max-new-tokens below that. Olmo 3: 2512.13961.
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
language_later = Curriculum(  # R1-Zero's reward until step 30, then R1's
    [(0, r1_zero), (30, r1)]
)
_REFUSAL = re.compile(
    r"\bI(?:'m| am) (?:sorry|unable)\b|\bas an AI\b"
    r"|\bI (?:cannot|can't|can not|won't|will not) (?:help|assist|answer|comply|provide)\b",
    re.IGNORECASE,
)


def no_refusal(completion, problem):
    """Return 1 unless the text after the thinking refuses, by the usual English phrases: a term for
    with_term. Chapter 14 mentions such a term, but does not print it. It is a list of phrases, so a policy
    can refuse in others; if right answers are rewarded, a refusal earns nothing anyway."""
    said = completion.rpartition("</think>")[2]
    return float(not _REFUSAL.search(said.replace("\u2019", "'")))


def rules_score(completion, problem):
    """Return the share of AutoRule's rules to which its judge says Yes ($AUTORULE, see autorule/autorule.py)."""
    from notebooks.autorule.autorule import rules_reward  # here, because it loads models

    parts = rules_reward(completion, problem)[1]
    yes = [value for name, value in parts.items() if re.fullmatch("rule_[0-9]+", name)]
    return sum(yes) / max(1, len(yes))


# Further terms of the chapter's tables. R1 adds 0.2 for helpful and harmless answers in its last phase: make that a run
# of its own, or a phase of a Curriculum. Kimi adds 0.05 for the process on 5 % of the problems. The chapter says the
# hardest ones: for these, pass a `when` that knows them.
r1_helpful = with_term(r1, "helpful", rules_score, 0.2)
kimi_process = with_term(kimi, "process", steps_score, 0.05, one_in(20))
