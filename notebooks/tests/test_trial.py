"""The trials of notebook 6: their arms can be run, their numbers and verdicts are right, and what is kept of them is
what their rows say."""

import importlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
import train  # noqa: E402
import verifiers  # noqa: E402
from conftest import ROOT  # noqa: E402
from eval import get_method  # noqa: E402
from model import load  # noqa: E402
from notebooks.claims import claims_groups as groups  # noqa: E402
from notebooks.claims import claims_noise as noise  # noqa: E402
from notebooks.claims import experiments as lab  # noqa: E402
from notebooks.claims import trial  # noqa: E402
from rlvr import Step, row_uniforms, sample, update_gradients  # noqa: E402

NAMES = "objectives distill tools rewards lora ttrl groups thinking noise stale".split()
MODULES = {name: importlib.import_module(f"notebooks.claims.claims_{name}") for name in NAMES}
TRIALS = {name: module.TRIAL for name, module in MODULES.items()}
SMOLLM2 = {
    f"{name}_smollm2": module.SMOLLM2
    for name, module in MODULES.items()
    if hasattr(module, "SMOLLM2")
}
ALL = {**TRIALS, **SMOLLM2}
EACH_ARM = [(name, arm) for name, some in ALL.items() for arm in some.arms]
KEPT = [name for name in ALL if (trial.RESULTS / f"claims_{name}.json").exists()]
TINY = ROOT / "notebooks" / "tiny"


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Three seeds, two steps, and the committed base for all."""
    monkeypatch.setattr(trial, "base_of", lambda name, seed, runs: TINY)
    given = f"--seeds 3 --steps 2 --runs {tmp_path / 'runs'} --results {tmp_path}".split()
    return trial.read_options(TRIALS["ttrl"], None, given)


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
def test_the_flags_of_every_arm_can_be_run(name, arm, options, monkeypatch):
    """At the trial's rate times what is tried; the arm whose model teaches stands in the flags. For SmolLM2 another
    model stands here, with its recipe."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(trial, "run", lambda *given: options.runs / "teacher")
    some = ALL[name]
    chosen = some.arms[arm]
    options.steps = None
    options.model = str(TINY) if name in SMOLLM2 else None
    times = max(chosen.times, default=1)
    monkeypatch.setattr(trial, "best", lambda *given: times)
    flags = train.parse_args(trial.flags_of(some, arm, 4, times, options))
    assert (flags.steps, flags.settings["seed"]) == (some.steps, 4)
    assert flags.lr == pytest.approx(times * some.rate)
    given = flags.settings.get("teacher")
    assert given in {None, str(TINY), str(options.runs / "teacher" / "final")}
    assert (given is not None) == bool(chosen.teacher)
    task = verifiers.get_task(flags.task, flags.prompt, flags.stop, flags.reward)
    assert len(task.test) >= (72 if name in SMOLLM2 else 200)
    if name in SMOLLM2:
        assert (task.name, flags.template, flags.settings["max_new_tokens"]) == (
            "sums",
            "plain",
            10,
        )


@pytest.mark.parametrize("name", ["objectives", "rewards", "noise", "groups", "stale"])
def test_all_arms_sample_as_many_completions(name, options):
    for arm in TRIALS[name].arms:
        flags = train.parse_args(trial.flags_of(TRIALS[name], arm, 0, 1, options))
        if TRIALS[name].arms[arm].times:
            assert flags.settings["prompts_per_step"] * flags.settings["num_samples"] == 128


def test_smollm2_is_refused_where_a_trial_has_no_arms_for_it(capsys):
    with pytest.raises(SystemExit):
        trial.main(TRIALS["noise"], None, ["--model", str(TINY)])
    assert "no arms for SmolLM2" in capsys.readouterr().err


@pytest.mark.parametrize("name", ALL)
def test_checks_speak_of_arms_that_exist(name):
    """Every check looks at arms and columns; an arm that is not there would be a mean of nothing."""
    some = ALL[name]
    looked = set()

    def x(arm, column):
        looked.add(arm)
        return np.array([0.5, 0.6, 0.4])

    for checks in (*some.claims.values(), some.controls):
        for check in checks:
            assert len(check.change(x)) == 3
    if some.arms:
        assert looked <= some.arms.keys()
        idle = {arm for arm, chosen in some.arms.items() if not chosen.times} - looked
        assert not idle  # a base that nothing is compared with


@pytest.mark.parametrize("kind", ["MaxRL", "Negative", "LoRA"])
def test_reading_a_prompt_once_changes_no_gradient(kind):
    """A method of shared.py and the one that it stands for, on the same samples: the same gradients."""
    plain = f"{ROOT}/notebooks/methods/{kind.lower()}.py"
    found = []
    for spec in (plain, f"{ROOT}/notebooks/claims/shared.py:{kind}"):
        model, tokenizer = load(str(TINY))
        method = get_method(spec, {})
        parameters = method.setup(model, tokenizer)
        prompts = [tokenizer.encode("25+7-4=" * 4), tokenizer.encode("31+8=" * 5)]
        rollouts = sample(model, prompts, 4, 6, uniforms=row_uniforms(range(8), 6, 0))
        rewards = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]])
        advantages = method.advantages(Step([], rollouts, [], rewards, []))
        keep = torch.ones(8, dtype=torch.bool)
        micros = list(method.layout(rollouts, keep, 10**6))
        update_gradients(model, rollouts, advantages, method, micros)
        found.append([param.grad for param in parameters])
        sizes = sum(micro.ids.numel() for micro in micros)
        found[-1].append(torch.tensor(float(sizes)))
    assert found[1].pop() < found[0].pop() / 2  # tokens that the model reads
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_trial_from_end_to_end(options, capsys):
    """Two steps of two arms and their base, one arm tuned: what is written can be read, and what is finished is not
    done again."""
    small = "--prompts-per-step 2 --num-samples 4 --max-new-tokens 30 --eval-problems 4"
    some = trial.Trial(
        name="made-up",
        claim="Two steps change nothing.",
        source="",
        change_our_mind="",
        claims={"claim": [lab.stays("one", by=0.9, what="accuracy stays")]},
        controls=[trial.above("other", "base", "pass@1", 1.0, "all that was wrong is right")],
        panels={"right": "accuracy"},
        arms={
            "one": trial.Arm(),
            "other": trial.Arm("--reward boxed", times=(2,)),
            "base": trial.Arm(times=()),
        },
        flags=f"--device cpu --eval-every 1 {small}",
        steps=2,
        seconds=1,
        columns=("right@0", "right", "pass@1"),
        over="step",
        ks=(1, 2),
        problems=3,
        samples=2,
    )
    given = f"--seeds 3 --steps 2 --runs {options.runs} --results {options.results}".split()
    assert trial.main(some, None, [*given, "--costs"]) is None
    result = trial.main(some, None, given)
    printed = capsys.readouterr().out
    assert "to tune    2 runs" in printed and "counted    6 runs" in printed
    path = options.results / "claims_made-up.json"
    kept = json.loads(path.read_text())
    assert kept == json.loads(json.dumps(result))
    assert kept["verdicts"]["controls"] == "does not hold"
    assert len(kept["rows"]) == 9 and kept["seeds"] == [0, 1, 2] and len(kept["tries"]) == 2
    assert kept["times"]["other"] == 2 and kept["rows"][-1]["arm"] == "base"
    files = {path: path.stat().st_mtime for path in options.runs.glob("*")}
    assert len(list(options.runs.glob("*.flags"))) == 3 + 2 + 3
    trial.main(some, None, given)
    assert files == {path: path.stat().st_mtime for path in options.runs.glob("*")}


def test_a_run_that_was_broken_off_is_made_again(options):
    """Without its .flags a folder is what is left of a run that did not finish."""
    small = "--prompts-per-step 1 --num-samples 2 --max-new-tokens 8 --eval-problems 1"
    some = replace(TRIALS["ttrl"], arms={"one": trial.Arm(small)})
    folder = trial.run(some, "one", 0, 1, options)
    folder.with_suffix(".flags").unlink()
    (folder / "metrics.jsonl").write_text("half a li")
    assert trial.run(some, "one", 0, 1, options) == folder
    assert [*train.read_log(folder)] == [0, 1, 2]


def test_trials_that_ask_for_the_same_run_share_it(options, monkeypatch):
    """GRPO of SmolLM2 is an arm of claims 1, 2 and 5: the same flags, and so the same folder."""
    monkeypatch.chdir(ROOT)
    options.model = str(TINY)
    pairs = {"objectives": "grpo", "distill": "grpo", "lora": "full"}
    flags = [
        trial.flags_of(SMOLLM2[f"{name}_smollm2"], arm, 0, 1, options)
        for name, arm in pairs.items()
    ]
    assert flags[0] == flags[1] == flags[2]
    assert trial.digest(*flags[0]) != trial.digest(*flags[0], "--steps", "3")


# ---- Numbers ---------------------------------------------------------------------------------------


def test_what_so_few_seeds_could_have_shown():
    """Three seeds that differ by less than the evaluation does (.05): 2 * .05 / sqrt(3) * 1.2816 = .074.
    Where they differ by .1 Student's t with two degrees of freedom counts: 2 * .1 / sqrt(3) * 1.8856."""
    check = lab.Check("", None, 0.1, 0.05)
    assert trial.smallest_effect(check, [0.0, 0.01, 0.02]) == pytest.approx(0.0740, abs=1e-4)
    assert trial.smallest_effect(check, [0.0, 0.1, 0.2]) == pytest.approx(0.2177, abs=1e-4)


def test_the_smallest_effect_is_wrong_one_time_in_ten():
    for values in ([0.0, 0.01, 0.02], [0.0, 0.1, 0.2], [0.3, 0.1, 0.2, 0.25, 0.1]):
        check = lab.Check("", None, 0.1, 0.05)
        smallest = trial.smallest_effect(check, values)
        own = float(np.std(values, ddof=1))
        wrong = lab.wrong_verdicts(smallest, max(own, 0.05), len(values), 1, own <= 0.05)
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


def rows_of(seeds):
    pairs = (("a", 0.9), ("b", 0.5))
    return [{"arm": arm, "seed": i, "right": v} for arm, v in pairs for i in range(seeds)]


def test_verdicts_are_those_of_the_rows():
    ahead = lab.Check("a is ahead", lambda x: x("a", "right") - x("b", "right"), 0.2, 0.05)
    even = lab.Check("as good", lambda x: x("a", "right") - x("b", "right"), 0.2, 0.05, same=True)
    (row,), verdict = trial.judge([ahead], rows_of(3))
    assert verdict == "holds" and row["mean"] == pytest.approx(0.4) and row["line"] == 0.1
    assert trial.judge([ahead, even], rows_of(3))[1] == "does not hold"


def test_one_or_two_seeds_decide_nothing():
    ahead = lab.Check("a is ahead", lambda x: x("a", "right") - x("b", "right"), 0.2, 0.05)
    for seeds in (1, 2):
        (row,), verdict = trial.judge([ahead], rows_of(seeds))
        assert verdict == "cannot tell" and row["mean"] == pytest.approx(0.4)


def test_the_seed_for_tuning_is_never_counted():
    assert trial.counted(3) == [0, 1, 2] and trial.counted(10) == [*range(9), 10]


def test_curves_on_one_grid():
    """0 to 4 thousand tokens, the shorter of the two; half way between 1 and 3 is 2."""
    first, second = trial.on_one_grid([{0.0: 0.0, 4.0: 1.0}, {0.0: 1.0, 8.0: 3.0}], points=3)
    assert first == {0.0: 0.0, 2.0: 0.5, 4.0: 1.0} and second == {0.0: 1.0, 2.0: 1.5, 4.0: 2.0}


def test_pass_rates_by_hand():
    """Of 4 samples of two problems 1 and 4 are right: pass@1 (.25 + 1) / 2; of pairs 3 of 6 have the right one."""
    assert trial.pass_rate([1, 4], 4, 1) == pytest.approx(0.625)
    assert trial.pass_rate([1, 4], 4, 2) == pytest.approx(0.75)


def test_how_many_groups_teach():
    """p = .05: of pairs 2 * .05 * .95, of groups of 64 all but .95^64 = .0375 (and .05^64)."""
    assert groups.mixed_share(0.05, 2) == pytest.approx(0.095)
    assert groups.mixed_share(0.05, 64) == pytest.approx(1 - 0.0375, abs=1e-4)


def test_what_is_measured_of_a_run_by_hand(monkeypatch):
    """Claim 4: entropy of the first three steps less that of the last five. Claim 8: all tokens sampled."""
    rows = {step: {"entropy": float(step), "used": 2.0 * step} for step in range(1, 11)}
    rows[0] = {"used": 0.0}
    monkeypatch.setattr(lab, "history", lambda folder: rows)
    assert MODULES["rewards"].measure("run")["entropy fell"] == 2 - 8
    assert groups.measure("run") == {"k tokens": 20.0}


# ---- What is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_a_result_says_what_its_rows_say(name):
    """The checks of today on the rows that are kept give the numbers and the verdicts that are kept."""
    result = trial.read(name)
    some = ALL[name]
    assert result["tuning seed"] not in result["seeds"]
    assert len(result["seeds"]) >= 3 or name in SMOLLM2
    for arm in result["arms"]:
        rows = [row for row in result["rows"] if row["arm"] == arm]
        assert [row["seed"] for row in rows] == result["seeds"]
        if result["times"]:
            assert {row["times"] for row in rows} == {result["times"][arm]}
    asked = {**some.claims, "controls": some.controls}
    assert result["claim"] == some.claim and [*result["verdicts"]] == [*asked]
    for part, checks in asked.items():
        judged, verdict = trial.judge(checks, result["rows"])
        assert verdict == result["verdicts"][part]
        for row, kept in zip(judged, result["checks"][part], strict=True):
            assert row["sentence"] == kept["sentence"] and row["holds"] == kept["holds"]
            assert np.allclose(row["values"], kept["values"])
            assert row["line"] == kept["line"]
    for key in ("command", "git", "machine", "seconds", "source", "change our mind"):
        assert result[key]


@pytest.mark.parametrize("name", [name for name in KEPT if not ALL[name].over])
def test_a_figure_shows_every_seed(name):
    """Of an arm the seeds and their mean, in each panel; in the plane every run, and every try."""
    result = trial.read(name)
    axes = trial.draw(result).axes
    panels = len(result["panels"])
    assert len(axes) == panels + bool(result["plane"])
    for axis in axes[:panels]:
        assert len(axis.lines) == 2 * len(result["arms"])
    for axis in axes[panels:]:
        assert len(axis.lines) == len(result["rows"]) + len(result["tries"])


@pytest.mark.parametrize("name", [name for name in KEPT if ALL[name].over])
def test_a_figure_of_curves_has_a_line_for_each_arm(name):
    result = trial.read(name)
    axes = trial.draw(result).axes
    assert len(axes) == len(result["panels"])
    trained = {row["arm"] for row in result["rows"] if "curves" in row}
    for axis in axes:
        assert {line.get_label() for line in axis.lines} == trained
