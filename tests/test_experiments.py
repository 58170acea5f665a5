"""The laboratory: its arms can be run, its bases are what they say, its numbers and verdicts are right."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
sys.path.insert(0, str(Path(__file__).parent.parent / "notebooks"))
import experiments as lab  # noqa: E402
import train  # noqa: E402
import verifiers  # noqa: E402

PROBLEM = {"problem": "25+7-4=", "answer": "28"}


@pytest.mark.parametrize("arm", lab.ARMS)
def test_flags_and_rewards_of_every_arm_exist(arm, tmp_path):
    before = set(verifiers.REWARDS)
    args = train.parse_args(lab.flags_of(arm, 3, 60, tmp_path))
    assert (args.seed, args.steps, args.model) == (3, 60, "tiny")
    with lab.setting(lab.ARMS[arm][0]):
        assert args.reward is None or callable(verifiers.get_reward(args.reward))
    assert set(verifiers.REWARDS) == before


def test_every_experiment_compares_arms_that_exist_and_every_arm_is_used():
    used = [arm for _, arms, *_ in lab.EXPERIMENTS.values() for arm in arms]
    assert len(lab.EXPERIMENTS) == 11 and set(used) == set(lab.ARMS)
    assert len({lab.folder(arm, 0, 60, "runs") for arm in lab.ARMS}) == len(lab.ARMS)      # no two share a folder


def texts(shares, n=40):
    rng = random.Random(0)
    return [train.demonstrate(PROBLEM, behaviour, rng) for behaviour in shares for _ in range(n)]


def test_the_guessing_base_never_sees_a_step():
    assert not any("=" in text or "得" in text for shares in lab.BASES["guessing"] for text in texts(shares))
    assert any("=" in text for text in texts(train.PHASES[1]))
    assert lab.BASES["bilingual"][1]["bilingual"] > lab.BASES["bilingual"][1]["worked"]
    for phases in lab.BASES.values():
        assert [round(sum(shares.values()), 6) for shares in phases] == [1, 1]


def test_a_setting_is_put_back():
    before = train.PHASES, train.worked_accuracy, dict(verifiers.TASKS)
    with pytest.raises(KeyError), lab.setting("guessing"):
        assert train.PHASES is lab.BASES["guessing"] and not train.worked_accuracy(0, 0, 0) < 0.9
        raise KeyError
    assert (train.PHASES, train.worked_accuracy, verifiers.TASKS) == before


def test_length_bonus_by_hand():
    """let, 2, 5, +, 7, = and 3, 2 are 8 tokens; right and tagged is 1.1."""
    text = "<think>let 25+7=32</think><answer>\\boxed{28}</answer>"
    assert lab.length_bonus(0.1)(text, PROBLEM)[0] == pytest.approx(1.9)
    assert lab.length_bonus(0.1, cap=5)(text, PROBLEM)[0] == pytest.approx(1.6)
    assert lab.length_bonus(0.1)("25+7=32 \\boxed{28}", PROBLEM)[0] == 0                   # no tags, no thinking


def test_design_b_reaches_what_the_tiny_model_writes():
    rng, rewards = random.Random(0), verifiers.REWARDS | lab.REWARDS
    reward = {name: {kind: rewards[name](train.demonstrate(PROBLEM, kind, rng), PROBLEM)[0]
                     for kind in ("worked", "bilingual", "rambling")} for name in ("r1-zero", "r1", "r1-short")}
    assert reward["r1-zero"]["worked"] == reward["r1-zero"]["bilingual"] == reward["r1-zero"]["rambling"]
    assert reward["r1"]["rambling"] == reward["r1"]["worked"] > reward["r1"]["bilingual"]   # 400 words: never
    assert reward["r1-short"]["worked"] > max(reward["r1-short"]["bilingual"], reward["r1-short"]["rambling"])


def made_up_run(folder, hacked):
    """30 steps, evaluated at 0, 10, 20, 30: the reward rises; the accuracy rises with it, or falls."""
    folder.mkdir()
    rows, samples = [], []
    for step in range(31):
        paid, boxes = 0.2 + step / 50, 1 + step // 5 * hacked
        row = {"step": step, "reward": paid, "accuracy": 0.2}
        if step:
            row |= {"tokens_per_second": 500.0, "sample_seconds": 2.0}
            samples.append({"step": step, "completion": "<think>1+1=2</think>" + "\\boxed{2}" * boxes, "length": 10,
                            "parts": {"accuracy": 1.0}})
        if step % 10 == 0:
            right = 0.2 - step / 200 if hacked else paid
            row |= {"eval_accuracy": right, "eval_high": right + 0.02, "eval_low": right - 0.02, "eval_n": 100,
                    "eval_sampled_accuracy": right, "eval_sampled_high": right + 0.02, "eval_sampled_n": 100,
                    "eval_sampled_low": right - 0.02, "eval_sampled_reward": paid, "eval_sampled_length": 10.0}
        rows.append(row)
    train.append_jsonl(folder / "metrics.jsonl", *rows)
    train.append_jsonl(folder / "samples.jsonl", *samples)
    return folder


def test_numbers_and_alarms_of_a_made_up_run(tmp_path):
    bad, good = made_up_run(tmp_path / "bad", True), made_up_run(tmp_path / "good", False)
    expected = {"right@0": 0.2, "right": 0.05, "right@10": 0.15, "paid": 0.8, "reward": 0.2 + 25.5 / 50,
                "boxes@start": 1, "boxes@max": 7, "plain length": 10, "used@max": 30, "works@mean": 1,
                "warned@first": 10, "greedy fell@first": 10, "more boxes@first": 5, "deceived@first": np.inf,
                "used@reached": np.inf}
    assert {key: lab.number(bad, key) for key in expected} == pytest.approx(expected)
    assert lab.number(good, "warned@first") == lab.number(good, "more boxes@first") == np.inf
    assert lab.number(good, "used@reached") == 30 and np.isnan(lab.number(good, "right@7"))


def results(name, numbers):
    """The checks of an experiment on made-up numbers (arm, column) -> one value for both seeds."""
    return [bool(np.all(check(lambda arm, column: np.full(2, numbers[arm, column]))))
            for check in lab.EXPERIMENTS[name][-1].values()]


def test_verdicts_on_made_up_numbers():
    numbers = {("default", "length@0"): 20, ("default", "length@30"): 32, ("default", "length"): 32,
               ("random", "length@0"): 20, ("random", "length"): 21,
               ("default", "plain length@start"): 32, ("default", "plain length"): 32}
    assert results("growth", numbers) == [True, True, False, False]
    assert results("growth", numbers | {("random", "length"): 30}) == [True, False, False, False]
    assert results("growth", numbers | {("default", "length"): 40, ("default", "plain length"): 40}) == [True] * 4
    hacked = {(f"{rule} box{base}", column): value for rule in ("any", "first", "last") for base in ("", ", guessing")
              for column, value in (("paid@0", .2), ("paid", .4), ("right@0", .2), ("right", .1), ("boxes@start", 1.3),
                                    ("boxes", 6.0))}
    assert results("boxes", hacked) == [True, True, False, False]
    assert results("boxes", hacked | {("first box, guessing", "paid"): .2, ("last box, guessing", "boxes"): 1.3,
                                      ("last box", "right"): .2}) == [True, False, True, True]
    assert lab.verdict([True, True]) == "reproduced" and lab.verdict([False, False]) == "not reproduced"
    assert lab.verdict([True, False, True]) == "partly (2 of 3 checks)"


def test_spread():
    assert lab.spread(np.array([0.1, 0.2, 0.3])) == ".200 [.100-.300]"
    assert lab.spread(np.array([1.0])) == "1.000 [1.000-1.000]"
    assert lab.spread(np.array([20.0, np.inf])) == "20, never" and lab.spread(np.array([20.0, 30.0]), True) == "20, 30"
    assert lab.spread(np.array([10.0, 32.0])) == "21.0 [10.0-32.0]"


def test_a_trial_trains_once_and_goes_on_after_an_interruption(tmp_path, capsys):
    """Two steps of two arms: a report prints a verdict; a finished run is not repeated, a broken one resumed."""
    lab.report("selection", 2, [0], tmp_path)
    printed = capsys.readouterr().out
    assert "verdict: " in printed and len(lab.draw("selection", 2, [0], tmp_path).axes) == 3
    run, other = (lab.folder(arm, 0, 2, tmp_path) for arm in ("guessing", "default"))
    bases = [json.loads((folder / "config.json").read_text())["flags"]["base"] for folder in (run, other)]
    assert bases[0] != bases[1]
    before = (run / "metrics.jsonl").read_text()
    assert lab.run_arm("guessing", 0, 2, tmp_path) == run and (run / "metrics.jsonl").read_text() == before
    (run / "final").rename(tmp_path / "gone")
    lab.run_arm("guessing", 0, 2, tmp_path)
    assert (run / "final").exists() and (run / "metrics.jsonl").read_text() == before
    assert "continuing" in Path(f"{run}.log").read_text()


def test_few_training_problems_have_the_base_of_all(tmp_path):
    """The tiny base practises on all problems; --train-problems is about what comes after."""
    bases = [json.loads((lab.run_arm(arm, 0, 2, tmp_path) / "config.json").read_text())["flags"]["base"]
             for arm in ("default", "1 problem")]
    assert bases[0] == bases[1]
    asked = {json.loads(line)["problem"] for line in open(lab.folder("1 problem", 0, 2, tmp_path) / "samples.jsonl")}
    assert len(asked) == 1
