"""notebooks/strata.py: problems by their answers, and in which words they are asked."""

import random
import statistics
from collections import Counter
from types import SimpleNamespace

import pytest

import ranks
import strata
import verifiers
from conftest import ROOT
from test_train import metrics, run
from verifiers import BOXED, Task, boxed_reward

S = f"{ROOT / 'notebooks' / 'strata.py'}:"


def problems_with(*answers):
    return [{"problem": f"number {i}", "answer": answer} for i, answer in enumerate(answers)]


def steps_of(pick, problems, count, steps, memory=None, **more):
    flags = SimpleNamespace(prompts_per_step=count, seed=0, steps=100)
    return [pick(problems, step, memory or {}, flags, **more) for step in steps]


# ---- Kinds of answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, answers",
    [
        (
            "integer",
            [
                "12",
                "-7",
                "10,080",
                "10,\\!080",
                "90^\\circ",
                "5\\text{ cm}",
                "50\\%",
                "\\$18",
                "+3",
            ],
        ),
        (
            "fraction",
            ["\\frac{1}{2}", "\\dfrac12", "-\\frac{3}{4}", "3/4", "2\\frac13", "0.\\overline{3}"],
        ),
        ("decimal", ["0.5", ".50", "-1.25", "\\$5.20", "2.0"]),
        (
            "expression",
            [
                "x + 1",
                "\\frac{\\pi}{2}",
                "\\frac{x}{2}",
                "11\\sqrt2",
                "(1, 2)",
                "3:2",
                "\\text{even}",
                "x = 5",
                "",
                "9" * 2000,
                "\\frac" * 700,
            ],
        ),
    ],
)
def test_the_type_of_an_answer_is_that_of_its_spelling(kind, answers):
    """2.0 is 2, but who writes it was asked for a decimal; 0.333.. is written as a fraction by the grader."""
    assert {answer: strata.answer_type(answer) for answer in answers} == dict.fromkeys(
        answers, kind
    )


def test_the_size_of_an_answer():
    assert [
        strata.answer_size(answer)
        for answer in ("0", "1", "7", "8", "-15", "16", "1/2", "x", "9" * 2000)
    ] == [0, 1, 3, 4, 4, 5, 0, 0, 0]


def test_as_many_of_each_type_however_rare_it_is():
    """90 integers, 6 fractions, 3 decimals, 1 expression; 8 problems a step: 2 of each, and no fraction comes a
    second time before all have come once."""
    problems = problems_with(*map(str, range(90)), *["1/2"] * 6, *["0.5"] * 3, "x")
    chosen = steps_of(strata.by_type, problems, 8, range(1, 4))
    for indices in chosen:
        types = Counter(strata.answer_type(problems[index]["answer"]) for index in indices)
        assert types == {"integer": 2, "fraction": 2, "decimal": 2, "expression": 2}
    assert sorted(index for index in sum(chosen, []) if 90 <= index < 96) == [*range(90, 96)]
    assert steps_of(strata.by_type, problems, 8, [2]) == [chosen[1]]  # a resumed run picks the same


def test_types_that_do_not_divide_a_step_even_out_over_steps():
    """3 types, 4 a step: 2 + 1 + 1, then another type twice; after 3 steps each has had 4 turns."""
    problems = problems_with(*["1"] * 9, *["1/2"] * 9, *["x"] * 9)
    turns = Counter(
        index // 9 for index in sum(steps_of(strata.by_type, problems, 4, (1, 2, 3)), [])
    )
    assert turns == {0: 4, 1: 4, 2: 4}


def test_of_mostly_small_answers_a_third_of_what_is_seen_is_large():
    """Answers of 3, of 4 and of 5 binary digits take turns, 4 to 7, 8 to 15 and 16 to 31; there are none from 32 on."""
    task = strata.mostly_small()
    share = [
        sum(int(task.train[index]["answer"]) >= 16 for index in indices) / 9
        for indices in steps_of(strata.by_size, task.train, 9, range(1, 11))
    ]
    assert (
        share == [1 / 3] * 10
        and sum(int(p["answer"]) >= 16 for p in task.train) / len(task.train) < 0.11
    )


# ---- A target histogram ----------------------------------------------------------------------------------------------


def test_a_step_has_the_target_histogram():
    """Ten problems a step: 1 2 4 2 1 with a mean in the fifths of 0 to 1. 100 problems with means 0, .01 .. .99; what
    has not been seen counts as 1/2."""
    memory = {"visits": {str(i): [i / 100] for i in range(100)}}
    for indices in steps_of(
        strata.to_histogram, problems_with(*["1"] * 100), 10, range(1, 6), memory
    ):
        fifths = Counter(index // 20 for index in indices)
        assert fifths == {0: 1, 1: 2, 2: 4, 3: 2, 4: 1} and len({*indices}) == 10
    (unknown,) = steps_of(strata.to_histogram, problems_with(*["1"] * 3), 3, [1])
    assert sorted(unknown) == [0, 1, 2]


def test_an_empty_bin_leaves_its_share_to_the_others():
    """All are solved or hopeless, 7 of them 0 and 3 of them 1: of 6 three each, as the target is even. With a target of
    frontier problems only there are none of them, and it does not hang."""
    memory = {"visits": {str(i): [float(i >= 7)] for i in range(10)}}
    for target in (strata.TARGET, (0, 1, 0)):
        (chosen,) = steps_of(
            strata.to_histogram, problems_with(*["1"] * 10), 6, [1], memory, target=target
        )
        assert len({*chosen}) == 6
    (even,) = steps_of(strata.to_histogram, problems_with(*["1"] * 10), 6, [1], memory)
    assert sum(index >= 7 for index in even) == 3


def test_with_fewer_problems_than_a_step_asks_some_come_twice():
    (chosen,) = steps_of(strata.to_histogram, problems_with("1", "2"), 5, [1])
    assert sorted(map(chosen.count, (0, 1))) == [2, 3]


def test_the_std_within_groups_is_steadier_from_step_to_step():
    """What the chapter says it is for. 400 problems, most of them nearly solved or hopeless; the std of a group whose
    answers are right with probability p is sqrt(p (1 - p)). Over 60 steps of 8 its mean varies less than half as much
    as with problems at random, and is higher."""
    rng = random.Random(0)
    chance = [rng.betavariate(0.4, 0.4) for _ in range(400)]
    memory = {"visits": {str(i): [p] for i, p in enumerate(chance)}}
    problems = problems_with(*["1"] * 400)
    steps = range(1, 61)

    def spread(pick, **more):
        means = [
            statistics.fmean((chance[i] * (1 - chance[i])) ** 0.5 for i in indices)
            for indices in steps_of(pick, problems, 8, steps, memory, **more)
        ]
        return statistics.fmean(means), statistics.stdev(means)

    def at_random(problems, step, memory, flags):
        return random.Random(step).sample(range(400), 8)

    (mean, std), (mean_random, std_random) = spread(strata.to_histogram), spread(at_random)
    assert mean > mean_random and std < std_random / 2


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
        ADD, ("Say {problem}", "Box {{}} {problem}", "{problem}:"), "What is {problem}?"
    )
    problem = task.train[0]
    held_out = task.test[0]
    asked = Counter(task.prompt({**problem, "step": step}) for step in range(300))
    assert {*asked} == {"Say number 0", "Box {} number 0", "number 0:"} and min(asked.values()) > 70
    assert task.prompt(problem) == task.prompt(
        {**problem, "step": 0}
    )  # the preflight sees a training prompt
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
    assert task.prompt(task.test[0]) == BOXED.format(problem="number 0")


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
    few = strata.small_answers()
    most = strata.mostly_small()
    all_sizes = strata.all_sizes()
    assert few.test == most.test == all_sizes.test and min(int(p["answer"]) for p in few.test) == 16
    assert (
        max(int(p["answer"]) for p in few.train) == 15 and most.train[: len(few.train)] == few.train
    )
    assert len(all_sizes.train) == len(most.train)
    one = strata.one_wording()
    many = strata.many_wordings()
    assert one.train == many.train and one.test == many.test
    asked = [
        {task.prompt({**p, "step": 3}).splitlines()[0] for p in task.train} for task in (one, many)
    ]
    assert [*map(len, asked)] == [1, 4] and asked[0] < asked[1]
    assert {task.prompt(p).splitlines()[0] for task in (one, many) for p in task.test}.isdisjoint(
        asked[1]
    )


# ---- In a run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--pick", S + "by_type"],
        ["--pick", S + "by_size"],
        ["--pick", S + "to_histogram"],
        ["--task", f"{__file__}:worded"],
    ],
    ids=lambda flags: flags[1][-12:],
)
def test_every_one_trains(tmp_path, flags):
    folder = run(tmp_path, "--reward", ranks.COIN, "--steps", "3", *flags)
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3]


def worded():
    task = verifiers.one_digit()
    return strata.in_wordings(task, ("{problem}", "+{problem}"))
