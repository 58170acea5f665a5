"""notebooks/tasks/families.py: each problem is judged by the verifier of its family."""

import pytest

from notebooks.tasks.families import (
    PROBLEMS,
    RIGHT,
    by_field,
    choice_reward,
    json_reward,
    mixed,
    mixed_reward,
    mixture,
    seconds_of,
)
from verifiers import Task, arithmetic, check_task

PRIME = PROBLEMS[1]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem["family"])
def test_a_right_completion_earns_at_least_1_and_that_of_another_family_nothing(problem):
    value, parts = mixed_reward(RIGHT[problem["family"]], problem)
    assert value >= 1 and parts["accuracy"] == parts[f"{problem['family']}_right"] == 1
    for family, completion in RIGHT.items():
        if family != problem["family"]:
            assert mixed_reward(completion, problem)[1]["accuracy"] == 0


@pytest.mark.parametrize(
    "said, right",
    [
        ("C", 1), ("c", 1), ("(C)", 1), ("C.", 1), ("C. 59", 1), (r"\text{C}", 1), ("59", 1),
        ("B", 0), ("51", 0), ("58", 0), ("C or B", 0), ("C. 51", 0), ("AC", 0), ("E", 0), ("", 0), ("cat", 0),
    ],
)  # fmt: skip
def test_a_choice_is_named_by_its_letter_or_its_text(said, right):
    """A letter with another choice's text behind it is two guesses, and so is "C or B"."""
    assert choice_reward(f"so \\boxed{{{said}}}", PRIME)[0] == right


def test_two_choices_of_the_same_text_are_no_choice_by_text():
    problem = {"choices": ["yes", "no", "Yes"], "answer": "A"}
    assert choice_reward(r"\boxed{yes}", problem)[0] == 0
    assert choice_reward(r"\boxed{A}", problem)[0] == 1


def test_json_of_the_wrong_form_earns_a_tenth():
    problem = PROBLEMS[2]
    assert json_reward('<think>easy</think>{"city": "Lyon"}', problem)[0] == pytest.approx(0.1)
    assert json_reward("Lyon", problem)[0] == 0


def test_a_family_that_nobody_judges_is_named():
    reward = by_field("family", {"math": choice_reward})
    with pytest.raises(ValueError, match="family 'music', and rewards are for: math"):
        reward("la", {"family": "music"})


def test_the_task_asks_in_the_problems_words_and_a_verdict_takes_time():
    task = mixed()
    assert "Which of these" in task.prompt(task.test[1])
    assert 0 < seconds_of(PROBLEMS[0], 0.01) < 1


def polite(completion, problem):
    """In place of a reward model: a number for any text, and no right or wrong."""
    assert problem["problem"] == "hello"  # without the words that ask for it
    return 0.7 * ("please" in completion), {"accuracy": 0.0}


def test_a_mixture_of_what_rules_judge_and_what_a_model_judges():
    """70 % sums and 30 % of one problem, which comes again; each has its own words and reward."""
    talk = Task("talk", [{"problem": "hello", "answer": "-"}], [], "Say: {problem}", polite)
    task = mixture({"sums": (0.7, arithmetic()), "talk": (0.3, talk)}, 100)
    check_task(task)
    of = {name: [p for p in task.train if p["family"] == name] for name in ("sums", "talk")}
    assert (len(of["sums"]), len(of["talk"])) == (70, 30)
    assert {p["family"] for p in task.train[:20]} == {"sums", "talk"}  # not one after the other
    assert task.prompt(of["talk"][0]) == "Say: hello"
    assert len(task.test) == len(arithmetic().test)
    one = of["sums"][0]
    right = f"<think></think><answer>\\boxed{{{one['answer']}}}</answer>"
    assert task.reward(right, one)[0] == arithmetic().reward(right, one)[0] > 0
    assert task.reward("please", of["talk"][0])[1]["talk_right"] == 0
    assert task.reward("please", of["talk"][0])[0] == 0.7
