"""notebooks/tasks/families.py: each problem is judged by the verifier of its family, and asked in other
words."""

from collections import Counter

import pytest
from test_train import metrics, run

import ranks
import verifiers
from notebooks.tasks import families as strata
from notebooks.tasks.families import (
    PROBLEMS,
    by_field,
    choice_reward,
    json_reward,
    mixed,
    mixed_reward,
    mixture,
)
from notebooks.tasks.one_digit import one_digit
from verifiers import BOXED, Task, arithmetic, boxed_reward, check_task

# ---- Families ----

PRIME = PROBLEMS[1]
RIGHT = {
    "math": r"58*3=174, 174/4=43.5, so \boxed{\frac{87}{2}}",
    "choice": r"51=3*17, 57=3*19, 63=7*9, so \boxed{C}",
    "json": '{"city": "Lyon", "people": 520774}',
    "code": "```python\ndef is_leap(y):\n    return y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)\n```",
}


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


def test_the_task_asks_in_the_problems_words():
    task = mixed()
    assert "Which of these" in task.prompt(task.test[1])


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


def problems_with(*answers):
    return [{"problem": f"number {i}", "answer": answer} for i, answer in enumerate(answers)]


# ---- Wordings --------------------------------------------------------------------------------------------------------

ADD = Task(
    "add",
    problems_with("1", "2", "3"),
    problems_with("4"),
    "{problem}?",
    boxed_reward,
    stops=("\n",),
)


def test_a_problem_comes_in_other_words_each_time_and_the_test_in_words_never_trained_on():
    task = strata.in_wordings(
        ADD, ("Say {problem}", "Box {} {problem}", "{problem}:"), "What is {problem}?"
    )
    problem, held_out = task.train[0], task.test[0]
    asked = Counter(task.prompt({**problem, "step": step}) for step in range(300))
    assert {*asked} == {"Say number 0", "Box {} number 0", "number 0:"} and min(asked.values()) > 70
    # The preflight sees a training prompt.
    assert task.prompt(problem) == task.prompt({**problem, "step": 0})
    assert task.prompt({**held_out, "step": 7}) == task.prompt(held_out) == "What is number 0?"
    assert task.stops == ("\n",) and task.reward is boxed_reward and ADD.test == problems_with("4")


def test_another_prompt_on_the_command_line_is_that_of_the_test():
    """`eval.py runs/NAME --prompt ..` asks how much a run depends on its words."""
    task = verifiers.get_task(f"{__file__}:worded", "Sum of {problem} = \\boxed{}")
    assert task.prompt(task.test[0]) == f"Sum of {task.test[0]['problem']} = \\boxed{{}}"
    assert task.prompt(task.train[0]).lstrip("+") == task.train[0]["problem"]


def test_math_in_five_wordings_is_tested_in_the_cores_own(monkeypatch):
    monkeypatch.setattr(verifiers, "math_task", lambda: ADD)
    task = strata.math_wordings()
    prompts = {
        task.prompt({**problem, "step": step}) for problem in task.train for step in range(50)
    }
    assert len(prompts) == 3 * 5 and all("\\boxed{" in prompt for prompt in prompts)
    assert task.prompt(task.test[0]) == BOXED.replace("{problem}", "number 0")


# ---- In a run --------------------------------------------------------------------------------------------------------


def test_a_task_in_two_wordings_trains(tmp_path):
    folder = run(tmp_path, "--reward", ranks.COIN, "--steps", "3", "--task", f"{__file__}:worded")
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3]


def worded():
    task = one_digit()
    return strata.in_wordings(task, ("{problem}", "+{problem}"))
