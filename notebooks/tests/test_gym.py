"""notebooks/tasks/gym.py: every kind of problem that reasoning-gym offers, and what hostile answers earn there."""

import json
import sys
import time

import pytest

import verifiers
from conftest import ROOT

FILE = f"{ROOT / 'notebooks' / 'tasks' / 'gym.py'}:"
SLOW = 20.0  # CPU seconds in which a kind has drawn its problems
NONSENSE = [  # {0}: a file that must not come to be
    "nan",
    "n an",
    "NaN+nanj",
    "[NaN, NaN]",
    "1e999999999",
    "-1e-999999999",
    "9**9**9**9",
    "1/0",
    "0x",
    "9",
    "-",
    "R999999999 ",
    "A+999999999 ",
    "open('{0}', 'w')",
    "__import__('os').system('touch {0}')",
    "(",
    "[",
    "{{",
    '{{"a":',
    "\ud800",
    "\0",
    "∧",
    "×",
    ",",
    "=",
    "\n",
    "Move disk 1 from Peg 1 to Peg 9\n",
    "٣",
    "$\\frac{{1}}{{0}}$",
    "a and b is ",
]


@pytest.fixture(scope="module")
def gym():
    pytest.importorskip("reasoning_gym", reason="pip install reasoning-gym")
    verifiers.lookup(f"{FILE}load", {}, "task")
    return sys.modules["gym"]  # as train.py loads it; imported by its package it would be another


@pytest.fixture(scope="module")
def tasks(gym):
    """name -> (its task, 8 and 4 problems drawn for it, seconds), or the reason why there is none."""
    loaded = {}
    sizes = {name: (8, 4) if size[0] == 1000 else (3, 2) for name, size in gym.SIZES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gym, "SIZES", sizes)
        patch.setattr(gym, "UNSTABLE", "")  # within one process they are the same
        for name in [*gym.DATASETS, *gym.MINE]:
            began = time.process_time()
            try:
                task = verifiers.get_task(FILE + name)
                loaded[name] = task, sum(sizes.get(name, (8, 4))), time.process_time() - began
            except verifiers.DataError as error:
                loaded[name] = str(error)
    return loaded


def boxed(answer):
    return f"\\boxed{{{answer}}}"


# ---- Every kind ------------------------------------------------------------------------------------


def test_every_kind(gym, tasks):
    """It loads in time, nearly all that was drawn is kept, its own answer earns 1; no answer, an empty one
    or nonsense is not right. What cannot be verified is refused with its reason."""
    reasons = {name: reason for name, reason in tasks.items() if isinstance(reason, str)}
    assert {
        name: reason for name, reason in reasons.items() if gym.REFUSED[name] not in reason
    } == {}
    assert len(gym.REFUSED) == len(reasons) == 9 and len(tasks) - len(reasons) >= 99
    for name, (task, drawn, seconds) in (
        (name, task) for name, task in tasks.items() if name not in reasons
    ):
        problems = task.train + task.test
        right = {"accuracy": 1.0, "answered": 1.0}
        assert seconds < SLOW and len(problems) >= 0.75 * drawn, (name, seconds, len(problems))
        assert task.train and task.test and bool(task.stops) == (name in gym.MINE)
        assert json.loads(json.dumps(problems)) == problems, name
        for problem in problems:
            assert task.reward(f"So it is {boxed(problem['answer'])}.", problem) == (1.0, right), (
                name,
                problem,
            )
            assert task.reward("", problem) == (0.0, {"accuracy": 0.0, "answered": 0.0}), name
            # Without a box.
            assert task.reward(problem["answer"], problem)[1]["answered"] == 0.0, name
            assert task.reward(boxed(" "), problem)[0] == 0.0, name
            assert task.reward(boxed("qwertz"), problem)[1] == {"accuracy": 0.0, "answered": 1.0}, (
                name,
                problem,
            )


def test_hostile_answers_are_wrong_soon_and_not_evaluated(tasks, tmp_path):
    """Half a second is a thousand times what a judgement takes. 150 characters get past the bound of every kind."""
    file = tmp_path / "evaluated"
    texts = [
        boxed(text.format(file) * n) for text in NONSENSE for n in (1, max(1, 150 // len(text)))
    ]
    for name, (task, *_) in (
        (name, task) for name, task in tasks.items() if not isinstance(task, str)
    ):
        problem = task.test[0]
        for text in texts + [boxed(problem["answer"] * 1000)]:
            began = time.process_time()
            paid, parts = task.reward(text, problem)
            assert 0 <= paid < 1 and parts["accuracy"] == 0, (name, problem, text)
            assert time.process_time() - began < 0.5, (name, text)
    assert not file.exists()


# ---- What is wrong with a scorer, and what earns nothing here for it -------------------------------


@pytest.mark.parametrize(
    "name, answer",
    [
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "n an"),  # min(1, exp(-nan)) is 1
        ("complex_arithmetic", "nan + nani"),
        ("number_sorting", None),  # no nan is further off than 1
        ("game_of_life_halting", "no idea"),
    ],
)  # bool of a text that is not empty
def test_answers_that_the_scorer_believes(gym, tasks, name, answer):
    """The scorer pays 1 for each. number_sorting takes as many NaN as there are numbers."""
    task, *_ = tasks[name]
    for problem in task.test:
        entry = task.reward.args[2][problem["problem"]]
        wrong = answer or json.dumps([float("nan")] * problem["answer"].count(",") + [float("nan")])
        asked = gym.create_dataset(name, seed=0, size=1).score_answer(wrong, entry)
        assert asked == 1
        assert task.reward(boxed(wrong), problem)[0] == 0


@pytest.mark.parametrize(
    "kind, answer, paid",
    [
        ("countdown", "6*(98 - 54) - 34 - 66", 1),
        ("countdown", "(98-54)*6-(66+34)", 1),
        ("countdown", "164", 0),
        ("countdown", "66 + 98", 0),  # right, but not out of all the numbers
        ("countdown", "6*(98 - 54) - 34 - 66 + 0*164", 0),
        ("countdown", "6*(98-54)-34-66 # \\pi", 0),
        ("puzzle24", "1*3*5 + 9", 1),
        ("puzzle24", "9+(5*3)/1", 1),
        ("puzzle24", "8+8+4+4", 0),  # not its numbers
        ("puzzle24", "9 + 15*1**3", 0),
        ("puzzle24", "1 5 + 9 + 3 - 3", 0),
        ("puzzle24", "(3*5 + 9)**1", 0),
        ("puzzle24", "(3*5 + 9)* *1", 0),
        ("puzzle24", "3*5 + 9/1 9", 0),
    ],
)
def test_an_expression_has_the_value_and_just_the_numbers(gym, kind, answer, paid):
    numbers = {
        "countdown": {"numbers": [66, 34, 98, 54, 6], "target": 164},
        "puzzle24": {"numbers": [1, 3, 5, 9]},
    }
    assert gym.score(kind, None, answer, {"answer": "", "metadata": numbers[kind]}) == paid


def test_a_part_is_paid_and_is_no_accuracy(gym):
    """spell_backward of abcd: dxxa has two letters of four in place -> 0.5."""
    judge = gym.functools.partial(
        gym.reward,
        "spell_backward",
        gym.create_dataset("spell_backward", size=1),
        {"abcd": {"answer": "dcba", "metadata": {}}},
    )
    assert judge("\\boxed{dxxa}", {"problem": "abcd", "answer": "dcba"}) == (
        0.5,
        {"accuracy": 0.0, "answered": 1.0},
    )


@pytest.mark.parametrize("score", [148.4, -1, float("nan"), float("inf"), "text", None])
def test_a_score_outside_of_0_to_1_is_not_believed(gym, score):
    class Dataset:
        def score_answer(self, answer, entry):
            return score

    entries = {"1+1": {"answer": "2", "metadata": {}}}
    paid = gym.reward("x", Dataset(), entries, "\\boxed{3}", {"problem": "1+1", "answer": "2"})
    assert paid == (0.0, {"accuracy": 0.0, "answered": 1.0})


# ---- The problems ----------------------------------------------------------------------------------


def test_train_and_test_are_disjoint_and_drawn_again_the_same(gym):
    """One digit and two terms: 200 problems, of which 100 draws find 200 (1 - (1 - 1/200)^100) = 79. Of 1,000 draws for
    training 200 (1 - (1 - 1/200)^1000) = 199 are different ones. Trained on are those whose twin (4 + 3 of 3 + 4) was
    not drawn either, 180 (1 - 2/200)^100 = 66, and 20 (1 - 1/200)^100 = 12 that are their own twins."""
    task = gym.load("digit_sums")
    again = gym.load("digit_sums")
    train, test = (
        {problem["problem"] for problem in problems} for problems in (task.train, task.test)
    )
    assert not train & test and (task.train, task.test) == (again.train, again.test)
    assert 65 < len(test) == len(task.test) < 93 and 60 < len(train) == len(task.train) < 96
    assert not {tuple(sorted(problem.split())) for problem in train} & {
        tuple(sorted(problem.split())) for problem in test
    }


def test_small_sums_show_a_base_model_two_solved_lines(tasks):
    task = tasks["small_sums"][0]
    lines = task.prompt({"problem": "State .. problem: 2 + 2 ="}).split("\n")
    assert [line.rpartition(": ")[2] for line in lines] == [
        "4 + 3 = \\boxed{7}",
        "19 - 7 = \\boxed{12}",
        "2 + 2 =",
    ]
    assert task.stops == ("\n",)
    other = verifiers.get_task(FILE + "small_sums", "Q: {problem} \\boxed{}", ("Q:",))
    assert other.prompt({"problem": "2 + 2 ="}) == "Q: 2 + 2 = \\boxed{}" and other.stops == ("Q:",)


# ---- What is asked for and cannot be had -----------------------------------------------------------


def test_a_kind_that_differs_between_processes_needs_a_hash_seed(gym):
    if not sys.flags.hash_randomization:
        pytest.skip("PYTHONHASHSEED is 0")
    with pytest.raises(verifiers.DataError, match="PYTHONHASHSEED=0 python"):
        verifiers.get_task(FILE + "word_ladder")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "gym", raising=False)
    for module in ("reasoning_gym", "reasoning_gym.factory"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        verifiers.DataError, match="gym.py, line [0-9]+: ImportError: .*: pip install reasoning-gym"
    ):
        verifiers.get_task(FILE + "chain_sum")
