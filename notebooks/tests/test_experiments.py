"""The laboratory: its arms can be run, its bases are what they say, its numbers and verdicts are right."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import eval as core  # noqa: E402
import train  # noqa: E402
import verifiers  # noqa: E402
from model import ModelError  # noqa: E402
from notebooks.claims import experiments as lab

PROBLEM = {"problem": "25+7-4=", "answer": "28"}


# ---- Arms and bases --------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", lab.ARMS)
def test_flags_and_functions_of_every_arm_exist(arm, tmp_path):
    flags = train.parse_args(
        ["--model", str(lab.ROOT / "notebooks" / "tiny"), *lab.flags_of(arm, 3, 60, tmp_path)]
    )
    settings = flags.settings
    assert (settings["seed"], flags.steps, flags.eval_every) == (3, 60, 5)
    assert settings["num_samples"] == 16 and flags.lr >= 4e-4  # those of a tiny model
    assert flags.reward is None or callable(verifiers.get_reward(flags.reward))


def test_every_experiment_compares_arms_that_exist_and_every_arm_is_used():
    used = [arm for _, arms, *_ in lab.EXPERIMENTS.values() for arm in arms]
    assert len(lab.EXPERIMENTS) == 13 and set(used) == set(lab.ARMS)
    assert len({lab.folder(arm, 0, 60, "runs") for arm in lab.ARMS}) == len(
        lab.ARMS
    )  # no two share a folder
    for name, (_, arms, _, keys, *_) in lab.EXPERIMENTS.items():  # or a figure cannot be read
        assert len(keys) <= 8 and (len(arms) <= 8 or not keys), name


def test_where_a_base_does_not_learn_another_seed_is_tried(tmp_path, monkeypatch, capsys):
    """The base is named for the seed that was asked for; after three seeds the error is passed on."""
    seeds = []

    def make(seed, out, enough=202):
        seeds.append(seed)
        if seed < enough:
            raise ModelError("the tiny base did not learn to work problems out")
        out.mkdir()

    monkeypatch.setattr(lab.make_tiny, "make", make)
    lab.make_base(tmp_path / "usual-seed2", 2)
    assert seeds == [2, 102, 202] and [path.name for path in tmp_path.iterdir()] == ["usual-seed2"]
    assert "usual-seed2, seed 102: the tiny base did not learn" in capsys.readouterr().err
    with pytest.raises(ModelError, match="did not learn"):
        lab.make_base(tmp_path / "usual-seed3", 3, enough=1000)
    assert seeds[3:] == [3, 103, 203]


# ---- Rewards and tasks -----------------------------------------------------------------------------


def test_length_bonus_by_hand():
    """let, 2, 5, +, 7, = and 3, 2 are 8 tokens; right and tagged is 1.1."""
    text = "<think>let 25+7=32</think><answer>\\boxed{28}</answer>"
    assert lab.length_bonus(0.1)(text, PROBLEM)[0] == pytest.approx(1.9)
    assert lab.length_bonus(0.1, cap=5)(text, PROBLEM)[0] == pytest.approx(1.6)
    assert lab.length_bonus(0.1)("25+7=32 \\boxed{28}", PROBLEM)[0] == 0  # no tags, no thinking


# ---- Numbers ---------------------------------------------------------------------------------------


def made_up_run(folder, hacked, eval_every=10):
    """30 steps, evaluated at 0, 10, 20, 30: the reward rises; the accuracy rises with it, or falls."""
    (folder / "samples").mkdir(parents=True)
    rows = []
    for step in range(31):
        paid = 0.2 + step / 50
        boxes = 1 + step // 5 * hacked
        row = {"step": step, "reward": paid, "accuracy": 0.2}
        if step:
            sample = {
                "step": step,
                "completion": "<think>1+1=2</think>" + "\\boxed{2}" * boxes,
                "ids": [1] * 10,
                "parts": {"accuracy": 1.0},
            }
            (folder / "samples" / f"step_{step:06d}.jsonl.gz").write_bytes(
                gzip.compress(json.dumps(sample).encode())
            )
        if step % eval_every == 0:
            right = 0.2 - step / 200 if hacked else paid
            row |= {
                "eval_accuracy": right,
                "eval_high": right + 0.02,
                "eval_low": right - 0.02,
                "eval_n": 100,
                "eval_sampled_accuracy": right,
                "eval_sampled_high": right + 0.02,
                "eval_sampled_n": 100,
                "eval_sampled_low": right - 0.02,
                "eval_sampled_reward": paid,
                "eval_sampled_length": 10.0,
            }
        rows.append(row)
    core.append_rows(folder / "metrics.jsonl", rows)
    return folder


def test_numbers_and_alarms_of_a_made_up_run(tmp_path):
    bad = made_up_run(tmp_path / "bad", True)
    good = made_up_run(tmp_path / "good", False)
    expected = {
        "right@0": 0.2,
        "right": 0.05,
        "right@10": 0.15,
        "paid": 0.8,
        "reward": 0.2 + 25.5 / 50,
        "boxes@start": 1,
        "boxes@max": 7,
        "plain length": 10,
        "used@max": 30 * 10 / 1000,
        "works@mean": 1,
        "warned@first": 10,
        "greedy fell@first": 10,
        "more boxes@first": 5,
        "deceived@first": np.inf,
        "used@reached": np.inf,
    }
    assert {key: lab.number(bad, key) for key in expected} == pytest.approx(expected)
    assert lab.number(good, "warned@first") == lab.number(good, "more boxes@first") == np.inf
    assert lab.number(good, "used@reached") == pytest.approx(0.3) and np.isnan(
        lab.number(good, "right@7")
    )


# ---- Checks and verdicts ---------------------------------------------------------------------------


def judged(values, effect=0.1, noise=0.05, **more):
    return lab.Check("", lambda x: values, effect, noise, **more).judge(None)


def test_the_power_of_a_check_by_hand():
    """10 points, 0.05 of noise, 3 seeds: 0.1 * 1.732 / 0.1 = 1.732 standard deviations to the line, 4.2 %; for 5
    points .866, 19 %. The smallest effect that is told in nine of ten: 2 * .0289 * 1.2816 = .074."""
    assert lab.wrong_verdicts(0.1, 0.05, 3) == pytest.approx(0.0416, abs=1e-4)
    assert lab.wrong_verdicts(0.05, 0.05, 3) == pytest.approx(0.193, abs=1e-3)
    assert lab.smallest_effect(0.05, 3) == pytest.approx(0.0740, abs=1e-4)
    assert lab.wrong_verdicts(lab.smallest_effect(0.05, 3, 12), 0.05, 3, 12) == pytest.approx(0.1)


def test_the_power_is_that_of_a_simulation():
    """Nothing changed: how often does a check of the kind "it rises by 10 points" say yes?"""
    rng = np.random.default_rng(0)
    means = rng.normal(0, 0.05, (20000, 3)).mean(1)
    assert np.mean(means > 0.05) == pytest.approx(lab.wrong_verdicts(0.1, 0.05, 3), abs=0.005)
    assert np.mean(abs(means) > 0.05) == pytest.approx(judged([0, 0, 0], same=True)[2], abs=0.005)


def test_a_check_is_decided_in_the_middle_and_not_where_the_trial_is_too_small():
    assert judged([0.06, 0.07, 0.05])[0] is True and judged([0.04, 0.03, 0.05])[0] is False
    assert (
        judged([0.04, -0.03, 0.01], same=True)[0] is True
        and judged([-0.08, -0.07, -0.06], same=True)[0] is False
    )
    assert judged([0.06, 0.07, 0.05], effect=0.05)[0] is None  # 19 % would be wrong
    assert judged([0.3, -0.2, 0.1])[0] is None  # the seeds differ more than the noise says
    assert judged([0.06])[0] is None and judged([math.nan] * 3)[0] is None


def test_one_verdict_of_several_checks():
    assert lab.verdict([True, True]) == "holds" and lab.verdict([True, None]) == "cannot tell"
    assert lab.verdict([True, None, False]) == "does not hold"


def verdicts(name, numbers):
    """Both verdicts of an experiment on made-up numbers (arm, column) -> one value for three seeds."""
    _, _, _, _, *both = lab.EXPERIMENTS[name]
    return tuple(
        lab.verdict(
            check.judge(lambda arm, column: np.full(3, float(numbers[arm, column])))[0]
            for check in checks
        )
        for checks in both
    )


def test_verdicts_on_made_up_numbers():
    """Growth as it was: to 32 tokens at step 30, then no more. Were it to go on, and the coin's length to drift by two
    fifths, the claim would hold and its control would not."""
    numbers = {
        ("default", "length@0"): 20,
        ("default", "length@30"): 32,
        ("default", "length"): 32,
        ("random", "length@0"): 20,
        ("random", "length"): 21,
        ("default", "right@0"): 0.3,
        ("default", "right"): 0.9,
        ("default", "plain length@start"): 32,
        ("default", "plain length"): 32,
    }
    assert verdicts("growth", numbers) == ("does not hold", "holds")
    more = {("default", "length"): 45, ("default", "plain length"): 45, ("random", "length"): 28}
    assert verdicts("growth", numbers | more) == ("holds", "does not hold")


def test_an_alarm_that_never_rings_is_no_alarm():
    """Nor is one that always rings. One hit of three without a false alarm is 1/3: below the line of 1/2."""
    check = lab.EXPERIMENTS["canary"][4][0]
    everything = lab.HACKED + lab.HONEST
    for rings, expected in (
        ([], False),
        (everything, False),
        (lab.HACKED, True),
        (lab.HACKED[:1], False),
    ):
        steps = {arm: 10.0 if arm in rings else np.inf for arm in everything}
        assert check.judge(lambda arm, column: np.full(3, steps[arm]))[0] is expected  # noqa: B023


def test_the_family_is_judged_by_its_largest_difference():
    """Accuracies .90, .92, .75, .91: the largest of six differences is .17, of seeds that agree."""
    right = dict(zip(lab.FOUR, (0.90, 0.92, 0.75, 0.91)))

    def x(arm, column):
        return np.full(3, right[arm.removesuffix(", fast")])

    assert lab.largest_difference(x, [*lab.FOUR]) == pytest.approx([0.17] * 3)
    assert lab.EXPERIMENTS["family"][4][1].judge(x)[0] is True
    right["dapo"] = 0.90
    assert lab.EXPERIMENTS["family"][4][1].judge(x)[0] is False
    assert (
        0.13 < lab.smallest_effect(lab.POINTS, 3, 12) < 0.15
    )  # so 15 points would not have been missed


def test_spread():
    assert lab.spread(np.array([0.1, 0.2, 0.3])) == ".200 [.100-.300]"
    assert lab.spread(np.array([1.0])) == "1.000 [1.000-1.000]"
    assert (
        lab.spread(np.array([20.0, np.inf])) == "20, never"
        and lab.spread(np.array([20.0, 30.0]), True) == "20, 30"
    )
    assert lab.spread(np.array([10.0, 32.0])) == "21.0 [10.0-32.0]"


# ---- A trial ---------------------------------------------------------------------------------------


def test_a_trial_trains_once_and_goes_on_after_an_interruption(tmp_path, capsys):
    """Two steps of three arms: a report prints its verdicts; a finished run is not repeated, a broken one resumed."""
    lab.report("problems", 2, [0], tmp_path)
    printed = capsys.readouterr().out
    assert "of the verdicts are wrong" in printed and "verdicts: the claim" in printed
    assert len(lab.draw("problems", 2, [0], tmp_path).axes) == 3
    run = lab.folder("1 problem", 0, 2, tmp_path)
    asked = {
        json.loads(line)["problem"]
        for path in (run / "samples").glob("*.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    }
    assert len(asked) == 1
    before = (run / "metrics.jsonl").read_text()
    assert (
        lab.run_arm("1 problem", 0, 2, tmp_path) == run
        and (run / "metrics.jsonl").read_text() == before
    )
    (run / "final").rename(tmp_path / "gone")
    lab.run_arm("1 problem", 0, 2, tmp_path)
    assert (run / "final").exists() and (run / "metrics.jsonl").read_text() == before
    assert "going on with" in Path(f"{run}.log").read_text()


def test_the_command_lists_what_there_is(capsys):
    with pytest.raises(SystemExit):
        lab.main([])
    listed = capsys.readouterr().err
    assert all(name in listed for name in lab.EXPERIMENTS)
