"""What a reader works on: each check of exercises.py refuses the empty answer and what is nearly right, and accepts a
solution.

Spoilers below. Exercise 6 uses one seed here, and a task that is quicker.
"""

import runpy

import pytest

from notebooks import exercises
from notebooks.models import make_tiny
from ranks import ONE_DIGIT

# ---- exercises.py ----------------------------------------------------------------------------------

SOLUTIONS = {
    1: """
def advantages(rewards):
    others = len(rewards) - 1
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    return [R - (sum(rewards) - R) / others for R in rewards]
""",
    2: r"""
import re
from verifiers import extract_boxed_answer

def reward(completion, problem):
    pair = re.fullmatch(r"\s*([0-9]{1,9})\s*\*\s*([0-9]{1,9})\s*", extract_boxed_answer(completion) or "")
    a, b = (int(factor) for factor in pair.groups()) if pair else (0, 0)
    right = float(min(a, b) > 1 and a * b == int(problem["answer"]))
    return right, {"accuracy": right, "answered": float(pair is not None)}
""",
    3: """
from notebooks.rewards.reasoning import ReasoningReward
reward = ReasoningReward(w_len=0.1, w_ramble=1.0, needs_tags=False)
""",
    4: """
from sympy import Add, pi
truth, answer = 10**60 * pi, Add((10**60 - 1) * pi, pi, evaluate=False)
""",
    5: """
tests = ["assert is_leap(2400) is True", "assert is_leap(1996) is True", "assert is_leap(2000) == True",
         "assert is_leap(1900) is False", "assert is_leap(2023) is False", "assert is_leap(2100) is False"]
""",
    6: "flags = ['--steps', '20', '--lr', '3e-3']",  # for one-digit, see quick
}
BEATEN = "flags = ['--steps', '10', '--lr', '3e-3']"  # for arithmetic
WITH_ITSELF = "def advantages(r): return [x - sum(r) / len(r) for x in r]"
NOT_ZERO = "def advantages(r): return [x - (sum(r) - x) / (len(r) - 1) for x in r]"
LONGER = SOLUTIONS[2].replace("    right =", "\n".join(["    pass"] * 9) + "\n    right =")
NO_LENGTH = "from notebooks.rewards.reasoning import *\nreward = ReasoningReward(needs_tags=False)"
LOGARITHM = "from sympy import *\ntruth, answer = log(100), Integer(2)"
RIGHTLY = "from sympy import *\ntruth, answer = pi, Rational(22, 7)"
NUCLEUS = f"flags = ['--method', '{exercises.ROOT}/notebooks/methods/top_p.py']"

NEARLY = [
    (1, WITH_ITSELF, "should be"),
    (1, NOT_ZERO, "teaches nothing"),
    (2, SOLUTIONS[2].replace("min(a, b) > 1 and ", ""), r"1\*91"),
    (2, SOLUTIONS[2].replace("[0-9]", r"\d"), "should earn 0"),
    (2, SOLUTIONS[2].replace("{1,9}", "+"), "ValueError"),  # too many digits for int
    (2, LONGER, "14 lines"),
    (3, NO_LENGTH, "long is not alone"),
    (3, SOLUTIONS[3].replace("w_ramble=1.0, ", ""), "rambling .* more likely"),
    (3, SOLUTIONS[3].replace("0.1, ", "0.8, "), "check_weights warns"),
    (4, LOGARITHM, "log"),  # notation, not an error
    (4, RIGHTLY, "says False, and so does sympy"),
    (5, "tests = ['assert is_leap(2000)', 'assert not is_leap(2023)']", "passes all"),
    (5, "tests = ['assert is_leap(2100)']", "an honest program fails"),
    (5, SOLUTIONS[5].replace(" is True", ""), "echo"),
    (5, SOLUTIONS[5].replace('"assert is_leap(2000) == True",', ""), "returns False passes 60%"),
    (6, "flags = ['--reward', 'r1']", "stay as they are"),
    (6, "flags = ['--temperature', '0.6']", "the temperature stays 1"),
    (6, NUCLEUS, "must sample as GRPO does"),
    (6, "flags = ['--steps', '1', '--prompts-per-step', '336']", "5376 completions"),
    (6, "flags = ['--steps', '1']", "the goal is"),
]


@pytest.fixture
def quick(monkeypatch, tmp_path_factory):
    """One seed and one-digit, from random weights, in place of arithmetic, which takes longer."""
    base = make_tiny.make(0, tmp_path_factory.mktemp("base") / "digits", "one-digit", steps=0)
    digits = f"--model {base} --task {ONE_DIGIT} --prompts-per-step 16 --num-samples 16"
    digits = tuple(f"{digits} --max-new-tokens 4".split())
    monkeypatch.setattr(exercises.beat_the_default, "__defaults__", ((0,), digits, 0.05))
    monkeypatch.setattr(exercises, "BUDGET", 5120)
    monkeypatch.setattr(exercises.train, "preflight", lambda *args, **more: None)  # luck is rare


def check(number, source, tmp_path):
    (tmp_path / "mine.py").write_text(source)
    return exercises.check(number, tmp_path / "mine.py")


@pytest.mark.parametrize("number", SOLUTIONS)
def test_the_empty_answer_is_not_enough_and_a_solution_is(number, quick, tmp_path):
    solved, said = check(number, "", tmp_path)
    assert not solved and "your file must define" in said
    solved, said = check(number, SOLUTIONS[number], tmp_path)
    assert solved, said


@pytest.mark.filterwarnings("ignore:correctness has 53%")
@pytest.mark.parametrize("number, source, reason", NEARLY)
def test_what_is_nearly_right_is_refused_with_its_reason(number, source, reason, quick, tmp_path):
    with pytest.raises(AssertionError, match=reason):
        solved, said = check(number, source, tmp_path)
        assert solved, said


def test_the_command(tmp_path, capsys):
    assert exercises.main([]) == 0 and "6 beat the default" in capsys.readouterr().out
    assert exercises.main(["4"]) == 0 and "two sympy numbers" in capsys.readouterr().out
    (tmp_path / "mine.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):  # a traceback says where
        exercises.main(["1", str(tmp_path / "mine.py")])
    (tmp_path / "mine.py").write_text(SOLUTIONS[1])
    assert exercises.main(["1", str(tmp_path / "mine.py")]) == 0


@pytest.mark.slow
def test_the_default_recipe_can_be_beaten(tmp_path):
    """The real thing for the first of its three seeds: 10 steps."""
    (tmp_path / "mine.py").write_text(BEATEN)
    mine = exercises.Solution(runpy.run_path(str(tmp_path / "mine.py")))
    exercises.beat_the_default(mine, seeds=(0,))
