"""notebooks/tasks/wordings.py: in which words problems are asked, and tasks to try it on."""

from collections import Counter

import pytest
from test_train import metrics, run

import ranks
import verifiers
from conftest import ROOT
from notebooks.tasks import wordings as strata
from notebooks.tasks.one_digit import one_digit
from verifiers import BOXED, Task, boxed_reward

S = f"{ROOT / 'notebooks' / 'tasks' / 'wordings.py'}:"


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
    task = verifiers.get_task(S + "one_wording", "Sum of {problem} = \\boxed{}")
    assert task.prompt(task.test[0]) == f"Sum of {task.test[0]['problem']} = \\boxed{{}}"
    assert task.prompt(task.train[0]).startswith("7 + 6 = \\boxed{13}\n")


def test_math_in_five_wordings_is_tested_in_the_cores_own(monkeypatch):
    monkeypatch.setattr(strata, "math_task", lambda: ADD)
    task = strata.math_wordings()
    prompts = {
        task.prompt({**problem, "step": step}) for problem in task.train for step in range(50)
    }
    assert len(prompts) == 3 * 5 and all("\\boxed{" in prompt for prompt in prompts)
    assert task.prompt(task.test[0]) == BOXED.replace("{problem}", "number 0")


# ---- The tasks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, train, test",
    [
        ("small_answers", 48, 57),
        ("mostly_small", 53, 57),
        ("all_sizes", 53, 57),
        ("one_wording", 221, 72),
        ("many_wordings", 221, 72),
    ],
)
def test_the_tasks_pay_their_own_answers_and_hold_others_out(name, train, test):
    task = verifiers.get_task(S + name)
    assert (len(task.train), len(task.test)) == (train, test)
    assert not {p["problem"] for p in task.train} & {p["problem"] for p in task.test}
    for problem in task.train + task.test:
        shown = task.prompt(problem)
        assert (
            shown.count("\\boxed{") == 2
            and shown.count(f" {problem['problem']}") + shown.count(f"\n{problem['problem']}") == 1
        )  # the two solved ones are others
        assert task.reward(f" \\boxed{{{problem['answer']}}}", problem)[0] == 1
        a, b = map(int, problem["problem"].split(" + "))
        assert str(a + b) == problem["answer"]


def test_what_the_arms_of_each_comparison_share():
    """The sizes: the same 57 to test on, all of 16 and more; the wordings: the same problems, four wordings or one."""
    few, most, all_sizes = strata.small_answers(), strata.mostly_small(), strata.all_sizes()
    assert few.test == most.test == all_sizes.test and min(int(p["answer"]) for p in few.test) == 16
    assert (
        max(int(p["answer"]) for p in few.train) == 15 and most.train[: len(few.train)] == few.train
    )
    assert len(all_sizes.train) == len(most.train)
    one, many = strata.one_wording(), strata.many_wordings()
    assert one.train == many.train and one.test == many.test
    asked = [
        {task.prompt({**p, "step": 3}).splitlines()[0] for p in task.train} for task in (one, many)
    ]
    assert [*map(len, asked)] == [1, 4] and asked[0] < asked[1]
    assert {task.prompt(p).splitlines()[0] for task in (one, many) for p in task.test}.isdisjoint(
        asked[1]
    )


# ---- In a run --------------------------------------------------------------------------------------------------------


def test_a_task_in_two_wordings_trains(tmp_path):
    folder = run(tmp_path, "--reward", ranks.COIN, "--steps", "3", "--task", f"{__file__}:worded")
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3]


def worded():
    task = one_digit()
    return strata.in_wordings(task, ("{problem}", "+{problem}"))
