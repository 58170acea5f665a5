"""notebooks/rewards/process.py: steps, the share of right continuations behind each, and judges that do not share a flaw."""

from fractions import Fraction

import pytest
import torch

from conftest import ROOT
from model import load
from notebooks.rewards.guards import robust_reward
from notebooks.rewards.process import (
    last_number,
    majority_judge,
    prefixes,
    shares,
    string_judge,
    wrong_step,
)
from verifiers import arithmetic, extract_boxed_answer, grade_answer

TASK = arithmetic(20, 20)
PROBLEM = {"problem": "59-8-1+8=", "answer": "58"}


@pytest.fixture(scope="module")
def base():
    torch.manual_seed(0)
    return load(ROOT / "notebooks" / "tiny")


def test_prefixes_end_with_steps_and_leave_the_answer_out():
    text = r"<think>1+2=3;3+4=7</think><answer>\boxed{7}</answer>"
    assert prefixes(text) == ["<think>", "<think>1+2=3;", "<think>1+2=3;3+4=7"]
    assert prefixes("1+2=3;\\boxed{3}") == ["", "1+2=3;", "1+2=3;\\boxed{3}"]


@pytest.mark.parametrize(
    "found, place",
    [
        ([0.9, 0.95, 0.1, 0.05], 2),
        ([0.9, 0.2, 0.0, 0.0], 1),
        ([0.5, 0.6, 0.9], None),
        ([0.0, 0.0], None),
        ([1.0], None),
    ],
)
def test_the_wrong_step_is_where_the_share_falls(found, place):
    assert wrong_step(found) == place


def test_few_continuations_of_a_wrong_step_are_right_and_many_of_a_right_one(base):
    """The base works with what the step says: 59-8=51 leads to 58, and 59-8=41 does not."""
    model, tokenizer = base
    torch.manual_seed(0)
    texts = ["<think>59-8=51;51-1=50;50+8=58", "<think>59-8=51;51-1=40;"]
    good, bad = shares(model, tokenizer, TASK, PROBLEM, texts, N=32)
    assert good > 0.7 and bad < 0.1


def test_what_was_cut_off_is_not_right(base):
    model, tokenizer = base
    assert shares(model, tokenizer, TASK, PROBLEM, ["<think>"], N=4, max_new_tokens=2) == [0.0]


@pytest.mark.parametrize(
    "text, number",
    [("so 4, or 5.", 5), ("-7/2", Fraction(-7, 2)), ("none", None), ("3/0", None), ("1.5", 1.5)],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_a_vote_refuses_what_one_judge_alone_believes(base):
    """The question in the box is equal by value, and neither the text nor the majority's number."""
    model, tokenizer = base
    torch.manual_seed(0)
    judge = majority_judge(model, tokenizer, TASK, N=64)

    def by_value(completion, problem):
        return float(grade_answer(extract_boxed_answer(completion), problem["answer"])), {}

    judges = (string_judge, by_value, judge)
    votes = {
        text: robust_reward(text, PROBLEM, judges)[1]["votes"]
        for text in (r"\boxed{58}", r"\boxed{58.0}", r"\boxed{57}", r"\boxed{59-8-1+8}")
    }
    assert [*votes.values()] == [3, 2, 0, 1]
