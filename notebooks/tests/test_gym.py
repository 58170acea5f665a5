"""notebooks/tasks/gym.py: every kind of problem that reasoning-gym offers, and what hostile answers earn there."""

import json
import re
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
    """kind -> (its task, 8 and 4 problems drawn for it, seconds), of all that are not refused."""
    loaded = {}
    sizes = {kind: (8, 4) if size[0] == 1000 else (3, 2) for kind, size in gym.SIZES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gym, "SIZES", sizes)
        for kind in gym.DATASETS.keys() - gym.REFUSED.keys():
            began = time.process_time()
            task = verifiers.get_task(FILE + kind)
            loaded[kind] = task, sum(sizes[kind]), time.process_time() - began
    return loaded


def boxed(answer):
    return f"\\boxed{{{answer}}}"


# ---- Every kind ------------------------------------------------------------------------------------


def test_every_kind(tasks):
    """It loads in time, nearly all that was drawn is kept, its own answer earns 1; no answer, an empty one
    or nonsense is not right."""
    assert len(tasks) >= 83
    for name, (task, drawn, seconds) in tasks.items():
        problems = task.train + task.test
        right = {"accuracy": 1.0, "answered": 1.0}
        assert seconds < SLOW and len(problems) >= 0.75 * drawn, (name, seconds, len(problems))
        assert task.train and task.test
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


def test_a_kind_without_a_verifier_is_refused_with_its_reason(gym):
    assert gym.REFUSED.keys() <= gym.DATASETS.keys() and len(gym.REFUSED) == 23
    for kind, reason in gym.REFUSED.items():
        with pytest.raises(verifiers.DataError, match=re.escape(f"{kind} is refused: {reason}")):
            verifiers.get_task(FILE + kind)


def test_hostile_answers_are_wrong_soon_and_not_evaluated(tasks, tmp_path):
    """Half a second is a thousand times what a judgement takes. 150 characters get past the bound of every kind."""
    file = tmp_path / "evaluated"
    texts = [
        boxed(text.format(file) * n) for text in NONSENSE for n in (1, max(1, 150 // len(text)))
    ]
    for name, (task, *_) in tasks.items():
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
    ],
)
def test_answers_that_the_scorer_believes(gym, tasks, name, answer):
    """The scorer pays 1 for each. number_sorting takes as many NaN as there are numbers."""
    task, *_ = tasks[name]
    for problem in task.test:
        entry = task.reward.args[1][problem["problem"]]
        wrong = answer or json.dumps([float("nan")] * problem["answer"].count(",") + [float("nan")])
        asked = gym.create_dataset(name, seed=0, size=1).score_answer(wrong, entry)
        assert asked == 1
        assert task.reward(boxed(wrong), problem)[0] == 0


def test_a_part_is_paid_and_is_no_accuracy(gym):
    """spell_backward of abcd: dxxa has two letters of four in place -> 0.5."""
    judge = gym.functools.partial(
        gym.reward,
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
    paid = gym.reward(Dataset(), entries, "\\boxed{3}", {"problem": "1+1", "answer": "2"})
    assert paid == (0.0, {"accuracy": 0.0, "answered": 1.0})


# ---- The problems ----------------------------------------------------------------------------------


def test_train_and_test_are_disjoint_and_drawn_again_the_same(gym):
    """The numbers from 2 to 1,000 to factorize: 200 draws find 999 (1 - (1 - 1/999)^200) = 181 of them for the test, and of
    the others 1,000 draws find 818 (1 - (1 - 1/999)^1000) = 517."""
    task = gym.load("prime_factorization")
    again = gym.load("prime_factorization")
    train, test = (
        {problem["problem"] for problem in problems} for problems in (task.train, task.test)
    )
    assert not train & test and (task.train, task.test) == (again.train, again.test)
    assert 165 < len(test) == len(task.test) < 195 and 480 < len(train) == len(task.train) < 560


# ---- What is asked for and cannot be had -----------------------------------------------------------


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "gym", raising=False)
    for module in ("reasoning_gym", "reasoning_gym.factory"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        verifiers.DataError, match="gym.py, line [0-9]+: ImportError: .*: pip install reasoning-gym"
    ):
        verifiers.get_task(FILE + "chain_sum")
