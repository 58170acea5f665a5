"""autorule_world.py - the laboratory of AutoRule: diagnostics, baselines, and a *simulated* world on a laptop.

    python notebooks/autorule_world.py            train what is missing, print tables and verdicts, draw (minutes)

No teacher of the paper's size fits on a laptop. Here users, teacher and judge are *simulated*: they are programs
"""

import functools
import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]
import autorule  # noqa: E402
from asking import Asked  # noqa: E402

# ---- 1. Diagnostics --------------------------------------------------------------------------------------------------
# Verdicts are 0/1 arrays: of N responses to K rules (N, K), or of N pairs a side each, chosen and rejected.


def alignment(chosen, rejected):
    """Of the pairs on which a rule's verdicts differ, the share in which the chosen response is the one with Yes
    (5.3): (N, K) and (N, K) -> (K,), NaN where they never differ."""
    differ = (chosen != rejected).sum(0)
    return np.where(differ, (chosen > rejected).sum(0) / np.maximum(differ, 1), np.nan)


def agreement(verdicts, others):
    """Behavioural agreement (5.3): 1 - the normalised Hamming distance of two rules over N responses; the rules of two
    sets are matched so that the sum is largest (Hungarian algorithm) -> the agreement of each matched pair.
    (N, K), (N, L) -> (min(K, L),)"""
    from scipy.optimize import linear_sum_assignment                # only here: the core does without scipy
    same = (verdicts[:, :, None] == others[:, None, :]).mean(0)     # (K, L)
    return same[linear_sum_assignment(same, maximize=True)]


def determinism(yes, no):
    """max(yes, no) / (yes + no) of repeated judgements (appendix E)."""
    return np.maximum(yes, no) / (yes + no)


def margins(chosen, rejected):
    """Shares of the pairs whose rule score is higher for the chosen response, equal, lower (Table 7)."""
    difference = chosen.sum(1) - rejected.sum(1)
    return [float((sign == np.sign(difference)).mean()) for sign in (1, 0, -1)]


def correlation(verdicts, others):
    """Pearson's r of the total scores that two rule sets give the same N responses (Figure 2d)."""
    return float(np.corrcoef(verdicts.mean(1), others.mean(1))[0, 1])


def judge_all(judge, rules, items, concise=True):
    """items: N pairs (prompt, response) -> verdicts (N, K); a judge that fails says No."""
    return np.array([[verdict is True for verdict in autorule.judge_rules(judge, rules, *item, concise)]
                     for item in items], dtype=int)


# ---- 2. The simulated world ------------------------------------------------------------------------------------------

def right(prompt, text):
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    return bool(boxes) and int(boxes[-1]) == sum(map(int, re.findall(r"[+-]?\d+", prompt)))


def fillers(text):
    return len(re.findall("(?:let|me|think|wait|hmm) ", text))


# concept -> (does a response have it?, the user's weight, ways to say it as a rule). 
CONCEPTS = {
    "right": (right, 3.0, ["The number in the last box is the right result.", "The final result must be correct.",
                           "The answer gives the correct value at the end."]),
    "worked": (lambda prompt, text: re.search("[=得]", text) is not None, 1.0, [
        "The answer shows each step of the calculation.", "Intermediate results are written down.",
        "The assistant works the problem out step by step."]),
    "form": (lambda prompt, text: re.fullmatch(r"<think>.*</think><answer>.*</answer>", text) is not None, 1.0, [
        "Thinking and answer stand in their tags.", "The answer keeps to the tags that were asked for.",
        "The response has one think block and one answer block."]),
    "one box": (lambda prompt, text: text.count("\\boxed{") == 1, 1.0, [
        "Exactly one result is put in a box.", "The answer commits to a single boxed result.",
        "There is one box and not several guesses."]),
    "one script": (lambda prompt, text: re.search("[加减得先再]", text) is None, 1.0, [
        "The answer keeps to one language.", "No foreign script is mixed in.",
        "The assistant does not switch between languages."]),
    "no filler": (lambda prompt, text: fillers(text) < 3, 1.0, [
        "The answer does without filler words.", "There are no empty phrases such as hmm and wait.",
        "Thinking contains no rambling."]),
}
# what a teacher may say by mistake, of no weight for the user
IDLE = {
    "even": (lambda prompt, text: re.search(r"[02468]\}", text) is not None, 0.0, ["The boxed number is even."]),
    "large": (lambda prompt, text: re.search(r"\{[5-9]\d\}", text) is not None, 0.0, ["The result is above 49."]),
    "hmm": (lambda prompt, text: "hmm " in text, 0.0, ["The assistant says hmm."]),
    "let": (lambda prompt, text: "let " in text, 0.0, ["The thinking begins with let."]),
    "seven": (lambda prompt, text: "7" in text, 0.0, ["The answer contains a seven."]),
    "long": (lambda prompt, text: len(text) > 60, 0.0, ["The answer is long."]),
}
ALL = CONCEPTS | IDLE


def utility(prompt, text):
    """What the simulated user is glad of, between 0 and 1."""
    return sum(weight * check(prompt, text) for check, weight, _ in CONCEPTS.values()) / 8
