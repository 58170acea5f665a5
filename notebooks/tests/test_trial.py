"""The trials of notebook 10's claims 1, 4, 8, 10 and 11: their arms can be run, their numbers and verdicts are right."""

import importlib
import re
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import _root  # noqa: E402
import train  # noqa: E402
import verifiers  # noqa: E402

trial = importlib.import_module("trial")
groups = importlib.import_module("claims_groups")
noise = importlib.import_module("claims_noise")

NAMES = ("objectives", "rewards", "noise", "groups", "stale")
TRIALS = {name: importlib.import_module(f"claims_{name}").TRIAL for name in NAMES}
EACH_ARM = [(name, arm) for name, some in TRIALS.items() for arm in some.arms]
each_trial = pytest.mark.parametrize("name", NAMES)


# ---- Tasks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make, least, most", [(trial.short_sums, 2, 4), (trial.mixed_sums, 2, 7)])
def test_sums_have_their_steps_and_none_is_trained_on_and_held_out(make, least, most):
    task = make()
    assert (len(task.train), len(task.test)) == (2000, 200)
    for problem in task.train + task.test:
        terms = re.findall(r"[+-]?\d+", problem["problem"])
        assert least <= len(terms) - 1 <= most
        assert sum(map(int, terms)) == int(problem["answer"])
    trained = {problem["problem"] for problem in task.train}
    assert not trained & {problem["problem"] for problem in task.test}
    assert task.reward("<think></think>\\boxed{28}", {"problem": "25+7-4=", "answer": "28"})[0] == 1


def test_a_near_miss_is_paid_and_is_not_right():
    problem = {"problem": "25+7-4=", "answer": "28"}
    paid = {27: 1, 28: 1, 29: 1, 26: 0, 30: 0}
    for answer, reward in paid.items():
        found, parts = noise.near_miss(f"\\boxed{{{answer}}}", problem)
        assert found == reward and parts["accuracy"] == (answer == 28)
    for hostile in ("", "\\boxed{}", "\\boxed{²}", "\\boxed{" + "9" * 5000 + "}", "\\boxed{28-1}"):
        assert noise.near_miss(hostile, problem)[0] == 0


# ---- Arms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, arm", EACH_ARM)
def test_the_flags_of_every_arm_can_be_run(name, arm, monkeypatch):
    monkeypatch.setattr(
        trial, "base_of", lambda base, seed, runs: trial.ROOT / "notebooks" / "tiny"
    )
    some = TRIALS[name]
    options = SimpleNamespace(steps=None, model=None, runs=None)
    flags = train.parse_args(trial.flags_of(some, arm, 3, some.rates[0], options))
    assert (flags.steps, flags.lr, flags.settings["seed"]) == (some.steps, some.rates[0], 3)
    task = verifiers.get_task(flags.task, flags.prompt, (), flags.reward)
    assert len(task.test) >= some.problems
    if arm not in some.untrained:
        completions = flags.settings["prompts_per_step"] * flags.settings["num_samples"]
        assert completions == 128  # the same budget in all arms of all trials


@each_trial
def test_the_arms_of_smollm2_are_ready(name, monkeypatch):
    """--model FOLDER: the recipe of notebook 9 and the arm's method, 20 steps, at that model's rates."""
    monkeypatch.chdir(trial.ROOT)
    some = TRIALS[name]
    options = trial.read_options(["--model", "notebooks/tiny"], some)
    for arm in some.arms:
        flags = train.parse_args(trial.flags_of(some, arm, 0, trial.LARGE[1][0], options))
        assert (flags.steps, flags.lr, flags.template) == (20, 5e-6, "plain")
        assert flags.task == "notebooks/smollm2.py:sums" and flags.settings["max_new_tokens"] == 10
        given = some.arms[arm].flags
        assert "M:" not in given or given.split("M:")[1].split()[0] in flags.method
    assert trial.read_options(["--model", "notebooks/tiny", "--tiny-only"], some).model is None


@each_trial
def test_checks_speak_of_arms_that_exist(name):
    """Every check looks at arms and columns; an arm that is not there would be a mean of nothing."""
    some = TRIALS[name]
    looked = set()

    def x(arm, column):
        looked.add(arm)
        return np.array([0.5, 0.6, 0.4])

    for checks in (*some.claims.values(), some.controls):
        for check in checks:
            assert len(check.change(x)) == 3
    assert looked <= some.arms.keys()
    assert {*some.untrained} <= looked  # a base that nothing is compared with would be idle


# ---- Numbers ---------------------------------------------------------------------------------------


def test_what_so_few_seeds_could_have_shown():
    """Three seeds that differ by less than the evaluation does (.05): 2 * .05 / sqrt(3) * 1.2816 = .074.
    Where they differ by .1 Student's t with two degrees of freedom counts: 2 * .1 / sqrt(3) * 1.8856."""
    check = trial.lab.Check("", None, 0.1, 0.05)
    assert trial.could_show(check, [0.0, 0.01, 0.02]) == pytest.approx(0.0740, abs=1e-4)
    assert trial.could_show(check, [0.0, 0.1, 0.2]) == pytest.approx(0.2177, abs=1e-4)


def test_the_smallest_effect_is_wrong_one_time_in_ten():
    for values in ([0.0, 0.01, 0.02], [0.0, 0.1, 0.2], [0.3, 0.1, 0.2, 0.25, 0.1]):
        check = trial.lab.Check("", None, 0.1, 0.05)
        smallest = trial.could_show(check, values)
        own = float(np.std(values, ddof=1))
        wrong = trial.lab.wrong_verdicts(smallest, max(own, 0.05), len(values), 1, own <= 0.05)
        assert wrong == pytest.approx(0.1)


def test_no_less_and_above_by_hand():
    """Half of the effect is the line: 4 points below is no loss of ten, 9 points below is one."""
    rows = [
        {"arm": "a", "pass@1": 0.46},
        {"arm": "b", "pass@1": 0.50},
        {"arm": "c", "pass@1": 0.41},
    ]
    x = trial.table_of([row for row in rows for _ in range(3)])
    verdicts = {arm: trial.no_less(arm, "b", "pass@1", 0.1, "").judge(x)[0] for arm in "ac"}
    assert verdicts == {"a": True, "c": False}
    assert trial.above("b", "c", "pass@1", 0.1, "").judge(x)[0] is True
    assert trial.above("b", "a", "pass@1", 0.1, "").judge(x)[0] is False
    assert trial.as_much("b", "a", "pass@1", 0.1, "").judge(x)[0] is True


def test_how_many_groups_teach():
    """p = .05: of pairs 2 * .05 * .95, of groups of 64 all but .95^64 = .0375 (and .05^64)."""
    assert groups.mixed_share(0.05, 2) == pytest.approx(0.095)
    assert groups.mixed_share(0.05, 64) == pytest.approx(1 - 0.0375, abs=1e-4)


def test_the_costs_are_printed_before_anything_is_run(capsys):
    assert trial.main(TRIALS["stale"], ["--costs"]) is None
    printed = capsys.readouterr().out
    assert "8 runs x" in printed and "12 runs x" in printed  # 4 arms that train, 2 rates, 3 seeds


# ---- What is written -------------------------------------------------------------------------------


@each_trial
def test_a_result_says_what_its_rows_say(name):
    """The checks of today on the rows that are kept give the verdicts that are kept."""
    result = trial.read(name)
    some = TRIALS[name]
    assert len(result["seeds"]) >= 3 and result["tuning seed"] not in result["seeds"]
    for arm in some.arms:
        rows = [row for row in result["rows"] if row["arm"] == arm]
        assert [row["seed"] for row in rows] == result["seeds"]
        assert {row["lr"] for row in rows} == {result["rates"][arm]}
    checks, verdicts = trial.verdicts_of(some, result["rows"])
    assert verdicts == result["verdicts"]
    for key, judged in checks.items():
        means = [check["mean"] for check in result["checks"][key]]
        assert [check["mean"] for check in judged] == pytest.approx(means)


@each_trial
def test_a_figure_shows_every_seed(name):
    """Of an arm the seeds and their mean, in each panel; in the plane every run, and every try."""
    result = trial.read(name)
    axes = trial.draw(result).axes
    panels = len(result["panels"])
    assert len(axes) == panels + bool(result["plane"])
    for axis in axes[:panels]:
        assert len(axis.lines) == 2 * len(TRIALS[name].arms)
    for axis in axes[panels:]:
        assert len(axis.lines) == len(result["rows"]) + len(result["tries"])
