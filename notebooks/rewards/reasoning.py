"""reasoning.py - The recipes of chapter 15: R1-Zero, R1, Kimi k1.5, Olmo 3; repetition, refusals, languages.

python train.py --reward notebooks/rewards/reasoning.py:olmo
"""

import re
from dataclasses import dataclass

from notebooks.rewards.compose import Curriculum, one_in, with_term
from notebooks.rewards.steps import steps_score
from notebooks.rewards.translation import ngrams
from verifiers import WORD, ReasoningReward, split_tags


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
        if truncated or self.needs_tags and split_tags(rollout) is None:
            return out | {"rep": 0.0}  # all of it is 0, and stays so
        rep = (
            -self.w_rep
            * max(0.0, repetition(rollout) - self.rep_threshold)
            / (1 - self.rep_threshold)
        )
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
language_later = Curriculum(  # R1-Zero's reward, and from step 30 on a penalty for mixing languages
    [(0, REASONING_PRESETS["r1-zero"].reward), (30, REASONING_PRESETS["r1"].reward)]
)
kimi = REASONING_PRESETS["kimi-k1.5"].reward
olmo = REASONING_PRESETS["olmo-3"].reward
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
r1_helpful = with_term(REASONING_PRESETS["r1"].reward, "helpful", rules_score, 0.2)
kimi_process = with_term(kimi, "process", steps_score, 0.05, one_in(20))
