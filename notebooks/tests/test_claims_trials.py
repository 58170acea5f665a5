"""What single trials measure: distillation, LoRA, thinking. (What all have in common: test_trial.py.)"""

import math
import random

import pytest

pytest.importorskip("matplotlib")

from notebooks.claims import claims_distill, claims_lora, claims_thinking
from notebooks.claims import experiments as lab


@pytest.mark.parametrize(
    "rights, expected",
    [([0.2, 0.6, 1.0], 15.0), ([0.9, 1.0, 1.0], 0.0), ([0.2, 0.3, 0.4], math.inf)],
)
def test_tokens_to_a_level_by_hand(rights, expected, monkeypatch):
    """At 10 thousand tokens 60 %, at 20 thousand 100 %: 80 % half way between."""
    rows = {step: {"used": 10.0 * step, "right": right} for step, right in enumerate(rights)}
    rows[9] = {"used": 99.0}  # a step without an evaluation
    monkeypatch.setattr(lab, "history", lambda folder: rows)
    assert claims_distill.tokens_to_level("run") == pytest.approx(expected)


def test_what_lora_saves_at_06b():
    """Adapters of rank 1 have as many numbers as each layer has inputs and outputs. Moments and gradients of all
    weights are 12 bytes a parameter: 7.15 GB of 596 million."""
    whole, all_of_them = claims_lora.counts(0)
    assert whole == all_of_them == 596_049_920
    block = (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072)
    assert claims_lora.counts(1)[1] == 28 * block
    assert claims_lora.counts(8)[1] == 8 * 28 * block
    full = claims_lora.memory(0)
    rank = claims_lora.memory(1)
    assert full["without the cache"] - rank["without the cache"] > 7.15
    assert full["largest"] > 12 > rank["largest"]


# ---- Thinking ------------------------------------------------------------------------------------


def test_steps_of_what_was_worked_out():
    """Only what is right, and is nothing but steps and their answer."""
    problem = {"problem": "25+7-4=", "answer": "28"}
    plain = "<think>25+7=32;32-4=28</think><answer>\\boxed{28}</answer>"
    others = [
        plain.replace("<think>", "<think>hmm "),
        "<think></think><answer>\\boxed{28}</answer>",
    ]
    records = [
        (problem, plain, True),
        (problem, plain, False),
        *((problem, t, True) for t in others),
    ]
    expected = [("25+7-4=", ["25+7=32", "32-4=28"], "28")]
    assert claims_thinking.worked(records, "sums") == expected
    chinese = "<think>so 25加7得32;32减4得28</think><answer>\\boxed{28}</answer>"
    ((_, steps, _),) = claims_thinking.worked([(problem, chinese, True)], "sums")
    assert steps == ["so 25加7得32", "32减4得28"]
    problem = {"problem": "47*83-12=", "answer": "3889"}
    calls = ["<tool>47*83</tool>3901", "<tool>3901-12</tool>3889"]
    text = f"<think>{''.join(calls)}</think><answer>\\boxed{{3889}}</answer>"
    found = claims_thinking.worked([(problem, text, True)], "products")
    assert found == [("47*83-12=", calls, "3889")]


def test_a_step_made_wrong_has_another_value_of_the_same_width():
    rng = random.Random(0)
    for step in ["25+7=32", "<tool>47*83</tool>3901"] * 20:
        wrong = claims_thinking.made_wrong(step, rng)
        assert wrong != step and len(wrong) == len(step) and wrong[:-2] == step[:-2]


def test_shares_by_hand():
    """Two completions of two steps: the last step changes both answers, the first none while the rest is kept, and one
    of two if the model goes on from there."""
    keys = [
        ("untouched", True),
        ("kept", False),
        ("continued", False),
        ("kept", True),
        ("continued", True),
    ]
    caused = [False, False, True, True, True, False, False, False, True, True]
    found = claims_thinking.shares(keys * 2, caused)
    assert found["kept"] == 0.5 and found["kept, last"] == 1 and found["kept, earlier"] == 0
    assert (
        found["continued, earlier"] == 0.5 and found["untouched"] == 1 and found["completions"] == 2
    )
