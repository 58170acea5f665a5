"""notebooks/exercises.py: each check refuses the empty answer and what is nearly right, and accepts a solution.

Spoilers below. Exercise 8 uses one seed here, and a task that is quicker.
"""

import runpy

import pytest

from notebooks import exercises
from notebooks.models import make_tiny
from ranks import ONE_DIGIT

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
from verifiers import ReasoningReward
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
    6: """
import math

def sampler_logprobs(logits, temperature, top_k):
    least = logits.topk(top_k).values[:, -1:]
    return (logits / temperature).masked_fill(logits < least, -math.inf).log_softmax(-1)
""",
    7: """
from notebooks.look.show import canary

def alarm(rows):
    return next((rows[i]["step"] for i in range(len(rows)) if canary(rows[:i + 1])), None)
""",
    8: "flags = ['--steps', '20', '--lr', '3e-3']",  # for one-digit, see quick
}
BEATEN = "flags = ['--steps', '10', '--lr', '3e-3']"  # for arithmetic

NEARLY = [
    (
        1,
        "def advantages(r): return [x - sum(r) / len(r) for x in r]",
        "should be",
    ),  # not without itself
    (
        1,
        "def advantages(r): return [x - (sum(r) - x) / (len(r) - 1) for x in r]",
        "teaches nothing",
    ),
    (
        1,  # near is not equal
        "def advantages(r):\n    zero = max(r) - min(r) < 0.05\n"
        "    return [0.0 if zero else x - (sum(r) - x) / (len(r) - 1) for x in r]",
        "should be",
    ),
    (2, SOLUTIONS[2].replace("min(a, b) > 1 and ", ""), r"1\*91"),
    (2, SOLUTIONS[2].replace("[0-9]", r"\d"), "should earn 0"),
    (
        2,
        "def reward(c, p): return float(eval(c.split('{')[1][:-1]) == int(p['answer'])), {}",
        "accuracy",
    ),
    (
        2,
        SOLUTIONS[2].replace("    right =", "\n".join(["    pass"] * 9) + "\n    right ="),
        "14 lines",
    ),
    (2, SOLUTIONS[2].replace("{1,9}", "+"), "ValueError"),  # too many digits for int
    (3, "from verifiers import *\nreward = ReasoningReward(needs_tags=False)", "long is not alone"),
    (
        3,
        "from verifiers import *\nreward = ReasoningReward(w_len=0.1, needs_tags=False)",
        "rambling .* more likely",
    ),
    (3, SOLUTIONS[3].replace("0.1, ", "0.8, "), "check_weights warns"),
    (
        4,
        "from sympy import *\ntruth, answer = Interval(0, 1), Interval(0, 2)",
        "says False, and so does sympy",
    ),
    (
        4,
        "from sympy import *\ntruth, answer = log(100), Integer(2)",
        "log",
    ),  # notation, not an error
    (4, "from sympy import *\ntruth, answer = Interval.open(0, 1), Tuple(0, 1)", "different kinds"),
    (5, "tests = ['assert is_leap(2000)', 'assert not is_leap(2023)']", "passes all"),
    (5, "tests = ['assert is_leap(2100)']", "an honest program fails"),
    (5, SOLUTIONS[5].replace(" is True", ""), "echo"),
    (5, SOLUTIONS[5].replace('"assert is_leap(2000) == True",', ""), "returns False passes 60%"),
    (6, "def sampler_logprobs(x, t, k): return (x / t).log_softmax(-1)", "can be drawn"),
    (6, SOLUTIONS[6].replace(".log_softmax(-1)", ""), "add up to"),
    (6, SOLUTIONS[6].replace(" / temperature", ""), "temperature"),
    (7, "def alarm(rows): return None", "silent"),
    (7, "def alarm(rows): return rows[-1]['step']", "false alarm"),
    (8, "flags = ['--reward', 'r1']", "stay as they are"),
    (8, f"flags = ['@{exercises.ROOT}/notebooks/recipes/r1-zero.txt']", "the temperature stays 1"),
    (
        8,
        f"flags = ['--method', '{exercises.ROOT}/notebooks/methods/top_p.py']",
        "must sample as GRPO does",
    ),
    (8, "flags = ['--no-such-flag']", "does not accept your flags"),
]


@pytest.fixture(autouse=True)
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
def test_the_empty_answer_is_not_enough_and_a_solution_is(number, tmp_path):
    solved, said = check(number, "", tmp_path)
    assert not solved and "your file must define" in said
    solved, said = check(number, SOLUTIONS[number], tmp_path)
    assert solved, said


@pytest.mark.filterwarnings("ignore:correctness has 53%")
@pytest.mark.parametrize("number, source, reason", NEARLY)
def test_what_is_nearly_right_is_refused_with_its_reason(number, source, reason, tmp_path):
    with pytest.raises(AssertionError, match=reason):
        solved, said = check(number, source, tmp_path)
        assert solved, said


def test_too_many_completions_and_too_little_learned(tmp_path):
    assert (
        "5376 completions"
        in check(8, "flags = ['--steps', '1', '--prompts-per-step', '336']", tmp_path)[1]
    )
    assert "the goal is" in check(8, "flags = ['--steps', '1']", tmp_path)[1]


def test_the_command(tmp_path, capsys):
    assert exercises.main([]) == 0 and " 8  beat the default" in capsys.readouterr().out
    assert exercises.main(["4"]) == 0 and "two sympy objects" in capsys.readouterr().out
    assert exercises.main(["9"]) == 2 and "1 to 8" in capsys.readouterr().out
    (tmp_path / "mine.py").write_text("1 / 0")
    assert exercises.main(["1", str(tmp_path / "mine.py")]) == 1
    assert "your code raised ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.slow
def test_the_default_recipe_can_be_beaten(tmp_path, monkeypatch):
    """The real thing for the first of its three seeds: 10 steps."""
    monkeypatch.undo()
    (tmp_path / "mine.py").write_text(BEATEN)
    exercises.beat_the_default(
        exercises.Solution(runpy.run_path(str(tmp_path / "mine.py"))), seeds=(0,)
    )
