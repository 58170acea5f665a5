"""The trials of claims_*.py: their arms can be run, their numbers and verdicts are right, and what is kept of them is
what they say."""

import json
import math
import random

import pytest

pytest.importorskip("matplotlib")
import numpy as np  # noqa: E402

import claims  # noqa: E402
import claims_distill  # noqa: E402
import claims_forgetting  # noqa: E402
import claims_lora  # noqa: E402
import claims_thinking  # noqa: E402
import claims_tools  # noqa: E402
import claims_ttrl  # noqa: E402
import experiments as lab  # noqa: E402
import train  # noqa: E402
from conftest import ROOT  # noqa: E402
from model import load  # noqa: E402

TRAINED = {
    module.TRIAL.name: module.TRIAL
    for module in (claims_distill, claims_lora, claims_tools, claims_ttrl)
}
ALL = {
    **TRAINED,
    "thinking": claims_thinking.TRIAL,
    "forgetting": claims_forgetting.TRIAL,
}
TINY = ROOT / "notebooks" / "tiny"


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Two seeds, two steps, and the committed base for all."""
    monkeypatch.setattr(claims, "base_of", lambda name, seed, runs: TINY)
    given = f"--seeds 2 --steps 2 --runs {tmp_path / 'runs'} --results {tmp_path}".split()
    return claims.read_options(claims_ttrl.TRIAL, given)


@pytest.mark.parametrize("name", TRAINED)
def test_the_flags_of_every_arm_are_flags(name, options, monkeypatch):
    """At the usual rate times what is tried; the arm whose model teaches stands in the flags."""
    trial = TRAINED[name]
    monkeypatch.setattr(claims, "run", lambda *given: options.runs / "teacher")
    monkeypatch.setattr(claims, "best", lambda *given: 1)
    for arm, chosen in trial.arms.items():
        flags = train.parse_args(claims.flags_of(trial, arm, 1, chosen.times[-1], options))
        assert flags.settings["seed"] == 1 and flags.steps == 2
        assert flags.lr == pytest.approx(chosen.times[-1] * train.TINY["lr"])
        teacher = flags.settings.get("teacher")
        assert teacher in {None, str(TINY), str(options.runs / "teacher" / "final")}
        assert (teacher is not None) == bool(chosen.teacher)


@pytest.mark.parametrize("name", ["distill", "lora"])
def test_smollm2_in_place_of_tiny(name, options, monkeypatch):
    """Its recipe, 20 steps, and multiples of its own rate; here another model stands for it."""
    trial = TRAINED[name]
    options.large = str(TINY)
    options.steps = None
    monkeypatch.setattr(claims, "run", lambda *given: options.runs / "teacher")
    monkeypatch.setattr(claims, "best", lambda *given: 1)
    for arm, chosen in trial.arms.items():
        flags = train.parse_args(claims.flags_of(trial, arm, 0, chosen.times[-1], options))
        assert flags.task.endswith("smollm2.py:sums") and flags.steps == 20
        assert flags.lr == pytest.approx(chosen.times[-1] * 1e-5)


def test_a_trial_from_end_to_end(options, capsys):
    """Two steps of two arms, one of them tuned: what is written can be read, and a finished run is not repeated."""
    small = "--prompts-per-step 2 --num-samples 4 --max-new-tokens 30 --eval-problems 4"
    trial = claims.Trial(
        name="made-up",
        claim="Two steps change nothing.",
        source="",
        change_our_mind="",
        arms={"one": claims.Arm(small), "other": claims.Arm(small + " --reward boxed", times=(2,))},
        steps=2,
        seconds=1,
        checks=[lab.stays("one", by=0.9, what="accuracy stays")],
        controls=[lab.rises("other", by=1.0)],
        columns=["right@0", "right"],
        panels={"right": "accuracy"},
    )
    given = f"--seeds 2 --runs {options.runs} --results {options.results}".split()
    assert claims.main(trial, [*given, "--costs"]) is None
    result = claims.main(trial, given)
    printed = capsys.readouterr().out
    assert "to tune    2 runs" in printed and "the claim: " in printed
    kept = json.loads((options.runs.parent / "claims_made-up.json").read_text())
    assert (
        kept == json.loads(json.dumps(result)) and kept["verdicts"]["controls"] == "does not hold"
    )
    assert (options.runs.parent / "claims_made-up.svg").read_text().startswith("<?xml")
    assert len(kept["rows"]) == 4 and kept["seeds"] == [0, 1] and len(kept["tries"]) == 2
    logs = {path: path.stat().st_mtime for path in options.runs.glob("*.log")}
    claims.main(trial, given)
    assert logs == {path: path.stat().st_mtime for path in options.runs.glob("*.log")}


# ---- Numbers -------------------------------------------------------------------------------------


def test_what_a_trial_could_have_shown():
    """Three seeds that agree, noise .05: 2 * .05 * 1.2816 / sqrt(3) = .074. Seeds that differ by more (a deviation of
    .1) are judged by Student's t with two degrees of freedom: 2 * .1 * 1.8856 / sqrt(3) = .218."""
    check = lab.Check("", None, 0.1, 0.05)
    assert claims.smallest_effect(check, [0.1, 0.1, 0.1]) == pytest.approx(0.074, abs=1e-3)
    assert claims.smallest_effect(check, [0.0, 0.1, 0.2]) == pytest.approx(0.218, abs=1e-3)


def test_verdicts_are_those_of_the_rows():
    rows = [
        {"arm": arm, "seed": i, "right": v} for arm, v in (("a", 0.9), ("b", 0.5)) for i in range(3)
    ]
    ahead = lab.Check("a is ahead", lambda x: x("a", "right") - x("b", "right"), 0.2, 0.05)
    even = lab.Check("as good", lambda x: x("a", "right") - x("b", "right"), 0.2, 0.05, same=True)
    (row,), verdict = claims.judge([ahead], rows)
    assert verdict == "holds" and row["mean"] == pytest.approx(0.4) and row["line"] == 0.1
    assert claims.judge([ahead, even], rows)[1] == "does not hold"


def test_the_seed_for_tuning_is_never_counted():
    assert claims.counted(3) == [0, 1, 2] and claims.counted(5) == [0, 1, 2, 4, 5]


def test_curves_on_one_grid():
    """0 to 4 thousand tokens, the shorter of the two; half way between 1 and 3 is 2."""
    first, second = claims.on_one_grid([{0.0: 0.0, 4.0: 1.0}, {0.0: 1.0, 8.0: 3.0}], points=3)
    assert first == {0.0: 0.0, 2.0: 0.5, 4.0: 1.0} and second == {0.0: 1.0, 2.0: 1.5, 4.0: 2.0}


@pytest.mark.parametrize(
    "rights, expected",
    [([0.2, 0.6, 1.0], 15.0), ([0.9, 1.0, 1.0], 0.0), ([0.2, 0.3, 0.4], math.inf)],
)
def test_tokens_to_a_level_by_hand(rights, expected, monkeypatch):
    """At 10 thousand tokens 60 %, at 20 thousand 100 %: 80 % half way between."""
    rows = {step: {"used": 10.0 * step, "right": right} for step, right in enumerate(rights)}
    rows[9] = {"used": 99.0}  # a step without an evaluation
    monkeypatch.setattr(lab, "history", lambda folder: rows)
    assert claims_distill.tokens_to_level("run") == pytest.approx(expected)


def test_what_lora_saves_at_06b():
    """Adapters of rank 1 have as many numbers as each layer has inputs and outputs. Moments and gradients of all
    weights are 12 bytes a parameter: 7.15 GB of 596 million."""
    whole, all_of_them = claims_lora.counts(0)
    assert whole == all_of_them == 596_049_920
    block = (1024 + 2048) + 2 * (1024 + 1024) + (2048 + 1024) + 3 * (1024 + 3072)
    assert claims_lora.counts(1)[1] == 28 * block
    assert claims_lora.counts(8)[1] == 8 * 28 * block
    full = claims_lora.memory(0)
    rank = claims_lora.memory(1)
    assert full["without the cache"] - rank["without the cache"] > 7.15
    assert full["largest"] > 12 > rank["largest"]


# ---- Thinking ------------------------------------------------------------------------------------


def test_steps_of_what_was_worked_out():
    """Only what is right, and is nothing but steps and their answer."""
    problem = {"problem": "25+7-4=", "answer": "28"}
    plain = "<think>25+7=32;32-4=28</think><answer>\\boxed{28}</answer>"
    others = [
        plain.replace("<think>", "<think>hmm "),
        "<think></think><answer>\\boxed{28}</answer>",
    ]
    records = [
        (problem, plain, True),
        (problem, plain, False),
        *((problem, t, True) for t in others),
    ]
    expected = [("25+7-4=", ["25+7=32", "32-4=28"], "28")]
    assert claims_thinking.worked(records, "sums") == expected
    chinese = "<think>so 25加7得32;32减4得28</think><answer>\\boxed{28}</answer>"
    ((_, steps, _),) = claims_thinking.worked([(problem, chinese, True)], "sums")
    assert steps == ["so 25加7得32", "32减4得28"]
    problem = {"problem": "47*83-12=", "answer": "3889"}
    calls = ["<tool>47*83</tool>3901", "<tool>3901-12</tool>3889"]
    text = f"<think>{''.join(calls)}</think><answer>\\boxed{{3889}}</answer>"
    found = claims_thinking.worked([(problem, text, True)], "products")
    assert found == [("47*83-12=", calls, "3889")]


def test_a_step_made_wrong_has_another_value_of_the_same_width():
    rng = random.Random(0)
    for step in ["25+7=32", "<tool>47*83</tool>3901"] * 20:
        wrong = claims_thinking.made_wrong(step, rng)
        assert wrong != step and len(wrong) == len(step) and wrong[:-2] == step[:-2]


def test_shares_by_hand():
    """Two completions of two steps: the last step changes both answers, the first none while the rest is kept, and one
    of two if the model goes on from there."""
    keys = [
        ("untouched", True),
        ("kept", False),
        ("continued", False),
        ("kept", True),
        ("continued", True),
    ]
    caused = [False, False, True, True, True, False, False, False, True, True]
    found = claims_thinking.shares(keys * 2, caused)
    assert found["kept"] == 0.5 and found["kept, last"] == 1 and found["kept, earlier"] == 0
    assert (
        found["continued, earlier"] == 0.5 and found["untouched"] == 1 and found["completions"] == 2
    )


# ---- Forgetting ----------------------------------------------------------------------------------


def test_a_base_has_not_moved_from_itself():
    """KL 0, no surprise; it can do the sums in Chinese that it was begun in."""
    base, tokenizer = load(TINY)
    found = claims_forgetting.measure(base, base, tokenizer)
    assert abs(found["kl"]) < 1e-5 and found["other text"] == 0
    assert found["old skill"] > 0.9 and found["right"] < 0.4


# ---- What is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_what_is_kept_of_a_trial_is_what_its_rows_say(name):
    """Verdicts and checks are those of the rows, by the checks of today; three seeds at least; a figure beside it."""
    result = claims.read(name)
    trial = ALL[name]
    assert len(result["seeds"]) >= 3 and claims.TUNING not in result["seeds"]
    asked = {"claim": trial.checks, "controls": trial.controls, **trial.others}
    assert result["claim"] == trial.claim and result["verdicts"].keys() == asked.keys()
    for part, checks in asked.items():
        judged, verdict = claims.judge(checks, result["rows"])
        assert verdict == result["verdicts"][part]
        for row, kept in zip(judged, result["checks"][part], strict=True):
            assert row["sentence"] == kept["sentence"] and row["holds"] == kept["holds"]
            assert np.allclose(row["values"], kept["values"])
    assert (claims.RESULTS / f"claims_{name}.svg").exists()
    for key in ("command", "git", "machine", "seconds", "source", "change our mind"):
        assert result[key]
