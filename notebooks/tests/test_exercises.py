"""Each check of exercises.py refuses the empty answer and what is nearly right, and accepts a solution. (Spoilers.)"""

import pytest

from notebooks import exercises

SOLUTIONS = {
    "compose": """
from notebooks.rewards.reasoning import ReasoningReward
reward = ReasoningReward(w_len=0.1, w_ramble=1.0, needs_tags=False)
""",
    "grader": """
from sympy import Add, pi
truth, answer = 10**60 * pi, Add((10**60 - 1) * pi, pi, evaluate=False)
""",
    "tests": """
tests = ["assert is_leap(2400) is True", "assert is_leap(1996) is True", "assert is_leap(2000) == True",
         "assert is_leap(1900) is False", "assert is_leap(2023) is False", "assert is_leap(2100) is False"]
""",
}
COMPOSED, _, TESTS = SOLUTIONS.values()
NO_LENGTH = "from notebooks.rewards.reasoning import *\nreward = ReasoningReward(needs_tags=False)"
LOGARITHM = "from sympy import *\ntruth, answer = log(100), Integer(2)"
RIGHTLY = "from sympy import *\ntruth, answer = pi, Rational(22, 7)"

NEARLY = [
    ("compose", NO_LENGTH, "long is not alone"),
    ("compose", COMPOSED.replace("w_ramble=1.0, ", ""), "rambling .* more likely"),
    ("compose", COMPOSED.replace("0.1, ", "0.8, "), "check_weights warns"),
    ("grader", LOGARITHM, "log"),  # notation, not an error
    ("grader", RIGHTLY, "says False, and so does sympy"),
    ("tests", "tests = ['assert is_leap(2000)', 'assert not is_leap(2023)']", "passes all"),
    ("tests", "tests = ['assert is_leap(2100)']", "an honest program fails"),
    ("tests", TESTS.replace(" is True", ""), "echo"),
    ("tests", TESTS.replace('"assert is_leap(2000) == True",', ""), "returns False passes 60%"),
]


def check(name, source, tmp_path):
    (tmp_path / "mine.py").write_text(source)
    return exercises.check(name, tmp_path / "mine.py")


@pytest.mark.parametrize("name", SOLUTIONS)
def test_the_empty_answer_is_not_enough_and_a_solution_is(name, tmp_path):
    solved, said = check(name, "", tmp_path)
    assert not solved and "your file must define" in said
    solved, said = check(name, SOLUTIONS[name], tmp_path)
    assert solved, said


@pytest.mark.filterwarnings("ignore:correctness has 53%")
@pytest.mark.parametrize("name, source, reason", NEARLY)
def test_what_is_nearly_right_is_refused_with_its_reason(name, source, reason, tmp_path):
    with pytest.raises(AssertionError, match=reason):
        solved, said = check(name, source, tmp_path)
        assert solved, said


def test_the_command(tmp_path, capsys):
    assert exercises.main([]) == 0 and "tests      six tests" in capsys.readouterr().out
    assert exercises.main(["grader"]) == 0 and "two sympy numbers" in capsys.readouterr().out
    (tmp_path / "mine.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):  # a traceback says where
        exercises.main(["tests", str(tmp_path / "mine.py")])
    (tmp_path / "mine.py").write_text(TESTS)
    assert exercises.main(["tests", str(tmp_path / "mine.py")]) == 0
