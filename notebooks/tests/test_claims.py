"""The claims: their arms can be run, their numbers are right, and what is kept of them gives the kept verdicts."""

import gzip
import json
import math
import random
import re

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
import eval as core
import train
import verifiers
from conftest import ROOT
from eval import get_method
from model import ModelError, load
from notebooks.claims import chapter_claims, checks, claim, measures, reasoning_claims, show
from notebooks.claims import start, thinking
from notebooks.claims.checks import Check, smallest_effect, wrong_verdicts
from notebooks.claims.claim import RATES, Arm, Claim, Run, Trial
from notebooks.claims.paper_claims import CLAIMS as OF_PAPERS
from rlvr import Step, row_uniforms, sample, update_gradients

TINY = ROOT / "notebooks" / "tiny"
CLAIMS = OF_PAPERS | chapter_claims.CLAIMS
PROBLEM = {"problem": "25+7-4=", "answer": "28"}
EACH_ARM = [(name, arm) for name, some in CLAIMS.items() for arm in some.arms]
each_claim = pytest.mark.parametrize("name", CLAIMS)
SMALL = "--prompts-per-step 2 --num-samples 4 --max-new-tokens 30 --eval-problems 4 --eval-every 1"


@pytest.fixture
def bases(monkeypatch):
    """The committed base for all; and files are named from the project's folder."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(claim, "base_of", lambda name, seed, home: "notebooks/tiny")


# ---- What is kept ----------------------------------------------------------------------------------


def test_all_claims_are_kept_and_no_two_have_a_name():
    names = {path.stem.removeprefix("claims_") for path in show.RESULTS.glob("claims_*.json")}
    assert names == CLAIMS.keys() and len(CLAIMS) == len(OF_PAPERS) + len(chapter_claims.CLAIMS)


@each_claim
def test_the_kept_runs_give_the_kept_verdicts(name):
    """Today's checks on the rows that are kept: the same numbers, and the same verdicts."""
    kept = show.read(name)
    found = json.loads(json.dumps(checks.result_of(CLAIMS[name], kept["rows"])))
    assert claim.rounded(found).items() <= kept.items()


@each_claim
def test_every_arm_has_all_seeds_at_the_rate_that_was_chosen(name):
    kept = show.read(name)
    arms = CLAIMS[name].arms
    assert claim.TUNING not in kept["seeds"] and len(kept["seeds"]) >= checks.LEAST
    assert {row["arm"] for row in kept["rows"]} == {*arms}
    for arm in arms:
        rows = [row for row in kept["rows"] if row["arm"] == arm]
        assert [row["seed"] for row in rows] == kept["seeds"]
        if arm in kept["rates"]:
            assert {row["rate"] for row in rows} == {kept["rates"][arm]} <= {*arms[arm].rates}
        tries = [row for row in kept["tries"] if row["arm"] == arm]
        if tries:
            best = max(tries, key=lambda row: claim.score(CLAIMS[name], row))
            assert best["rate"] == kept["rates"][arm]
            assert tuple(row["rate"] for row in tries) == arms[arm].rates


@each_claim
def test_a_figure_shows_every_seed(name):
    """Of an arm the seeds and their mean, in each panel, and in the plane every run and every try; or a line."""
    result = show.read(name)
    axes = show.draw(result).axes
    panels = len(result["panels"])
    assert len(axes) == panels + bool(result["plane"])
    trained = {row["arm"] for row in result["rows"] if "curves" in row}
    for axis in axes[:panels]:
        if result["over"]:
            assert {line.get_label() for line in axis.lines} == trained
        else:
            assert len(axis.lines) == 2 * len(show.arms_of(result))
    for axis in axes[panels:]:
        assert len(axis.lines) == len(result["rows"]) + len(result["tries"])


@each_claim
def test_checks_speak_of_arms_that_exist(name):
    """Every check looks at arms that are there; and no base alone is idle, that nothing is compared with."""
    looked = set()

    def x(arm, column):
        looked.add(arm)
        return np.array([0.5, 0.6, 0.4])

    for some in CLAIMS[name].checks.values():
        for check in some:
            assert len(check.change(x)) == 3
    arms = CLAIMS[name].arms
    assert looked <= arms.keys()
    assert not {arm for arm, chosen in arms.items() if not chosen.rates} - looked


# ---- Arms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, arm", EACH_ARM)
def test_the_flags_of_every_arm_can_be_run(name, arm, bases, tmp_path, monkeypatch):
    """The arm whose model teaches stands in the flags. For SmolLM2 another model stands here, with its recipe."""
    some = CLAIMS[name]
    chosen = some.arms[arm]
    monkeypatch.setattr(claim, "train_run", lambda flags, folder: 0.0)
    monkeypatch.setattr(claim, "rate_of", lambda trial, arm: RATES[0])
    rate = RATES[1] if chosen.rates else 0.0
    run = claim.run_of(Trial(some, None, tmp_path), arm, 4, rate)
    assert (run.folder is None) == (not chosen.rates)
    if not chosen.rates and not some.ks:
        return  # nothing reads the flags of a base alone
    flags = train.parse_args(run.flags)
    assert (flags.steps, flags.settings["seed"]) == (chosen.steps or some.steps, 4)
    assert flags.lr == rate or not rate
    taught = flags.settings.get("teacher")
    assert (taught is not None) == bool(chosen.teacher)
    assert (taught == "notebooks/tiny") == (chosen.teacher == "base")
    task = verifiers.get_task(flags.task, flags.prompt, flags.stop, flags.reward)
    smollm2 = name.endswith("_smollm2")
    assert len(task.test) >= (72 if smollm2 else 200)
    assert (flags.template == "plain" and task.name == "sums") == smollm2
    assert chosen.base == "smollm2" or not smollm2
    if name in ("objectives", "noise", "stale") and chosen.rates:
        assert flags.settings["prompts_per_step"] * flags.settings["num_samples"] == 128


def test_claims_that_ask_for_the_same_run_share_it(bases, tmp_path, monkeypatch):
    """GRPO is an arm of several claims: the same flags and code, and so the same folder."""
    monkeypatch.setattr(claim, "train_run", lambda flags, folder: 0.0)

    def folder(name, arm):
        return claim.run_of(Trial(CLAIMS[name], None, tmp_path), arm, 0, 1e-5).folder

    shared = [("objectives_smollm2", "grpo"), ("distill_smollm2", "grpo"), ("lora_smollm2", "full")]
    assert len({folder(*pair) for pair in shared}) == 1
    assert folder("distill", "grpo") == folder("thinking", "sums, after")
    assert folder("tools", "masked") == folder("thinking", "products, after")
    assert folder("objectives", "grpo") != folder("noise", "clean")
    assert folder("growth", "random") == folder("controls", "random")
    assert folder("boxes", "last box") == folder("canary", "last box")


def test_a_run_is_named_by_its_code(tmp_path):
    """A comment changes nothing, a line of code does: of a script in the flags, and of what it imports."""
    reward = tmp_path / "reward.py"
    reward.write_text("from grading import equal\n")
    before = claim.code_of(f"train.py --reward {reward}:reward")
    assert {"train.py", "rlvr.py", "notebooks/tiny/model.safetensors", str(reward)} <= before.keys()
    reward.write_text("from grading import equal  # a comment\n")
    assert claim.code_of(f"train.py --reward {reward}:reward") == before
    reward.write_text("from grading import equal\nbonus = 1\n")
    after = claim.code_of(f"train.py --reward {reward}:reward")
    assert [file for file in after if after[file] != before[file]] == [str(reward)]


@pytest.fixture
def made_up():
    """Two arms, of which one is tuned, and their base."""
    return Claim(
        name="made-up",
        sentence="Two steps change nothing.",
        source="",
        doubt="",
        arms={"one": Arm(), "other": Arm("--reward boxed", rates=(8e-4,)), "base": Arm(rates=())},
        checks={
            "claim": [checks.stays("one", by=0.9)],
            "controls": [checks.more("other", "base", "pass@1", 1.0)],
        },
        columns=("right@0", "right", "pass@1"),
        panels={"right": "accuracy"},
        over="step",
        flags=SMALL,
        steps=2,
        ks=(1, 2),
        problems=3,
        samples=2,
    )


def test_a_claim_from_end_to_end(made_up, bases, tmp_path, capsys):
    """Two steps: what is written can be read, and what is finished is not done again."""
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    claim.main([made_up], ["made-up", *places])
    path = tmp_path / "claims_made-up.json"
    kept = json.loads(path.read_text())
    assert (
        kept["verdicts"]["controls"] == "does not hold"
        and "does not hold" in capsys.readouterr().out
    )
    assert len(kept["rows"]) == 9 and kept["seeds"] == [0, 1, 2] and len(kept["tries"]) == 2
    assert kept["rates"]["other"] == 8e-4 and kept["rates"]["one"] in RATES
    assert kept["rows"][-1]["arm"] == "base" and "run" not in kept["rows"][-1]
    runs = tmp_path / "runs"
    assert len([*runs.glob("seed*.json")]) == 3 + 2 + 3
    files = {file: file.stat().st_mtime for file in runs.glob("*")}
    claim.main([made_up], ["made-up", *places])
    assert files == {file: file.stat().st_mtime for file in runs.glob("*")}


def test_judging_again_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "train_run", None)
    monkeypatch.chdir(ROOT)
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    claim.main(CLAIMS.values(), ["ttrl", "--judge", *places])
    assert json.loads((tmp_path / "claims_ttrl.json").read_text()) == show.read("ttrl")


def test_a_run_that_was_broken_off_goes_on(made_up, bases, tmp_path, monkeypatch):
    """Without its .json a folder is what is left of a run: with a checkpoint it is resumed, else made again."""
    asked = []
    monkeypatch.setattr(train, "main", lambda argv: asked.append(argv))
    folder = tmp_path / "seed0-a"
    (folder / "checkpoints" / "step_000001").mkdir(parents=True)
    claim.train_run(["--steps", "2"], folder)
    assert asked == [["--resume", "--runs", str(tmp_path), "--name", "seed0-a"]]
    claim.train_run(["--steps", "2"], folder)
    assert len(asked) == 1
    folder.with_suffix(".json").unlink()
    (folder / "metrics.jsonl").write_text("half a li")
    claim.train_run(["--steps", "2"], folder)
    assert asked[1][:2] == ["--steps", "2"] and not (folder / "metrics.jsonl").exists()


def test_a_name_that_is_no_claim_is_refused(capsys):
    with pytest.raises(SystemExit):
        claim.main(CLAIMS.values(), ["noise", "nosie"])
    assert "ttrl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "file, kind", [("grpo", "MaxRL"), ("reinforce", "Negative"), ("lora", "LoRA")]
)
def test_reading_a_prompt_once_changes_no_gradient(file, kind):
    """A method of shared.py and the one that it stands for, on the same samples: the same gradients."""
    plain = f"{ROOT}/notebooks/methods/{file}.py:{kind}"
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


# ---- Numbers ---------------------------------------------------------------------------------------


def judged(values, effect=0.1, noise=0.05, **more):
    return checks.judge(Check("", lambda x: values, effect, noise, **more), [])


def test_the_power_of_a_check_by_hand():
    """10 points, 0.05 of noise, 3 seeds: 0.1 * 1.732 / 0.1 = 1.732 standard deviations to the line, 4.2 %; for 5
    points .866, 19 %. The smallest effect that is told in nine of ten: 2 * .0289 * 1.2816 = .074."""
    assert wrong_verdicts(0.1, 0.05, 3) == pytest.approx(0.0416, abs=1e-4)
    assert wrong_verdicts(0.05, 0.05, 3) == pytest.approx(0.193, abs=1e-3)
    assert smallest_effect(0.05, 3) == pytest.approx(0.0740, abs=1e-4)
    assert wrong_verdicts(smallest_effect(0.05, 3, 12), 0.05, 3, 12) == pytest.approx(0.1)


def test_the_power_is_that_of_a_simulation():
    """Nothing changed: how often does a check of the kind "it rises by 10 points" say yes?"""
    rng = np.random.default_rng(0)
    means = rng.normal(0, 0.05, (20000, 3)).mean(1)
    assert np.mean(means > 0.05) == pytest.approx(wrong_verdicts(0.1, 0.05, 3), abs=0.005)
    both = wrong_verdicts(0.1, 0.05, 3, among=2)
    assert np.mean(abs(means) > 0.05) == pytest.approx(both, abs=0.005)


@pytest.mark.parametrize("values", [[0.0, 0.01, 0.02], [0.0, 0.1, 0.2], [0.3, 0.1, 0.2, 0.25, 0.1]])
def test_the_smallest_effect_is_wrong_one_time_in_ten(values):
    """Where the seeds differ by more than the evaluation does (.05) Student's t counts."""
    own = float(np.std(values, ddof=1))
    smallest = judged(values)["smallest effect"]
    wrong = wrong_verdicts(smallest, max(own, 0.05), len(values), 1, own <= 0.05)
    assert wrong == pytest.approx(0.1)


@pytest.mark.parametrize(
    "values, more, holds",
    [
        ([0.06, 0.07, 0.05], {}, True),
        ([0.04, 0.03, 0.05], {}, False),
        ([0.04, -0.03, 0.01], {"same": True}, True),
        ([-0.08, -0.07, -0.06], {"same": True}, False),
        ([0.06, 0.07, 0.05], {"effect": 0.05}, None),  # 19 % would be wrong
        ([0.3, -0.2, 0.1], {}, None),  # the seeds differ more than the noise says
        ([0.5, 0.4, 0.3], {}, True),  # so do these, and a t-test is sure of them
        ([0.06], {}, None),
        ([math.nan] * 3, {}, None),
    ],
)
def test_a_check_is_decided_in_the_middle_and_not_where_the_trial_is_too_small(values, more, holds):
    assert judged(values, **more)["holds"] is holds


def test_one_verdict_of_several_checks():
    assert checks.verdict([True, True]) == "holds"
    assert checks.verdict([True, None]) == "cannot tell"
    assert checks.verdict([True, None, False]) == "does not hold"


def verdicts(name, numbers):
    """The verdicts on a claim whose three seeds agree. numbers: {arm: {column: value}}."""
    rows = [{"arm": arm, **columns} for arm, columns in numbers.items() for _ in range(3)]
    return checks.result_of(CLAIMS[name], rows)["verdicts"]


def test_verdicts_on_made_up_numbers():
    """Growth as it was: to 32 tokens at step 30, then no more. Were it to go on, and the coin's length to drift by two
    fifths, the claim would hold and its control would not."""
    plain = {"plain length@start": 32, "plain length": 32}
    default = {"length@0": 20, "length@30": 32, "length": 32, "right@0": 0.3, "right": 0.9, **plain}
    coin = {"length@0": 20, "length": 21}
    found = verdicts("growth", {"default": default, "random": coin})
    assert found == {"claim": "does not hold", "controls": "holds"}
    default |= {"length": 45, "plain length": 45}
    found = verdicts("growth", {"default": default, "random": coin | {"length": 28}})
    assert found == {"claim": "holds", "controls": "does not hold"}


@pytest.mark.parametrize("rings, holds", [(0, False), (6, False), (3, True), (1, False)])
def test_an_alarm_that_never_rings_is_no_alarm(rings, holds):
    """Nor is one that always rings. One hit of three without a false alarm is 1/3: below the line of 1/2."""
    arms = [*chapter_claims.HACKED, *chapter_claims.HONEST]
    steps = [10.0] * rings + [math.inf] * (6 - rings)
    rows = [{"arm": arm, "warned@first": step} for arm, step in zip(arms, steps) for _ in range(3)]
    check = CLAIMS["canary"].checks["claim"][0]
    assert checks.judge(check, rows)["holds"] is holds


@pytest.mark.parametrize("dapo, most, holds", [(0.75, 0.17, True), (0.90, 0.02, False)])
def test_the_family_is_judged_by_its_largest_difference(dapo, most, holds):
    """Accuracies .90, .92, .75, .91: the largest of six differences is .17, of seeds that agree."""
    right = {"grpo": 0.90, "dr-grpo": 0.92, "dapo": dapo, "textbook": 0.91}
    rows = [{"arm": arm, "right": value} for arm, value in right.items() for _ in range(3)]
    check = CLAIMS["family"].checks["claim"][1]
    found = checks.judge(check, rows)
    assert found["mean"] == pytest.approx(most) and found["holds"] is holds
    assert check.among == 12 and 0.13 < found["smallest effect"] < 0.15


def test_a_cell_of_the_table():
    assert show.cell_of(np.array([0.1, 0.2, 0.3]), "right") == ".200 [.100-.300]"
    assert show.cell_of(np.array([10.0, 32.0]), "length") == "21.0 [10.0-32.0]"
    assert show.cell_of(np.array([20.0, np.inf]), "used") == "20, never"
    assert show.cell_of(np.array([20.0, 30.0]), "warned@first") == "20, 30"
    assert show.cell_of(np.array([np.nan] * 3), "right") == ""


def test_four_comparisons_by_hand():
    """Half of the effect is the line: 4 points below is no loss of ten, 9 points below is one. One seed or two decide
    nothing."""
    ends = {"a": 0.46, "b": 0.50, "c": 0.41}
    rows = [{"arm": arm, "pass@1": value} for arm, value in ends.items() for _ in range(3)]

    def holds(check, rows=rows):
        return checks.judge(check, rows)["holds"]

    assert [holds(checks.no_less(arm, "b")) for arm in "ac"] == [True, False]
    assert [holds(checks.more("b", arm, "pass@1")) for arm in "ca"] == [True, False]
    assert [holds(checks.as_much("b", arm, "pass@1")) for arm in "ac"] == [True, False]
    assert holds(checks.more("b", "c", "pass@1"), rows[::3]) is None
    both = checks.judge(checks.no_less("a", "b"), rows)
    assert both["mean"] == pytest.approx(0.06) and both["line"] == 0.05


def test_the_seed_for_tuning_is_never_counted():
    assert claim.counted(3) == [0, 1, 2] and claim.counted(10) == [*range(9), 10]


def test_curves_on_one_grid():
    """0 to 4 thousand tokens, the shorter of the two; half way between 1 and 3 is 2."""
    first, second = show.on_one_grid([{0.0: 0.0, 4.0: 1.0}, {0.0: 1.0, 8.0: 3.0}], points=3)
    assert first == {0.0: 0.0, 2.0: 0.5, 4.0: 1.0} and second == {0.0: 1.0, 2.0: 1.5, 4.0: 2.0}


def test_pass_rates_by_hand():
    """Of 4 samples of two problems 1 and 4 are right: pass@1 (.25 + 1) / 2; of pairs 3 of 6 have the right one."""
    assert claim.pass_rate([1, 4], 4, 1) == pytest.approx(0.625)
    assert claim.pass_rate([1, 4], 4, 2) == pytest.approx(0.75)


def test_a_base_is_made_once_and_again_where_a_seed_has_not_learned(tmp_path, monkeypatch):
    """Seed 1 does not learn to work sums out, and no seed learns to call in 800 steps. What is left of a base that was
    broken off is not taken for one."""
    made = []

    def make(seed, folder, task="arithmetic", steps=500, phases=None, gate=0.9):
        made.append((seed, task, steps))
        assert (gate == 0) == ("guessing" in str(folder))
        if seed == 1 or steps == 800:
            raise ModelError("it has not learned it")
        folder.mkdir(parents=True)

    monkeypatch.setattr(start.make_tiny, "make", make)
    for _ in range(2):
        assert start.base_of("usual", 0, tmp_path) == "notebooks/tiny"
        assert start.base_of("smollm2", 2, tmp_path) == "smollm2"
        assert start.base_of("usual", 1, tmp_path) == tmp_path / "usual-seed1"
        assert start.base_of("calling", 0, tmp_path) == tmp_path / "calling-seed0"
        assert start.base_of("calling of seed 0", 2, tmp_path) == tmp_path / "calling-seed0"
        assert start.base_of("guessing", 0, tmp_path) == tmp_path / "guessing-seed0"
    assert made[:2] == [(1, "arithmetic", 500), (101, "arithmetic", 500)]
    assert made[2:4] == [(0, "products", 800), (0, "products", 1600)]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["calling-seed0", "guessing-seed0", "usual-seed1"] and len(made) == 5
    with pytest.raises(ModelError):
        start.make("usual", 1, tmp_path / "usual-seed1", tries=1)


@pytest.mark.parametrize("make, least, most", [(start.short_sums, 2, 4), (start.mixed_sums, 2, 7)])
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
    for answer, reward in {27: 1, 28: 1, 29: 1, 26: 0, 30: 0}.items():
        found, parts = start.near_miss(f"\\boxed{{{answer}}}", problem)
        assert found == reward and parts["accuracy"] == (answer == 28)
    for hostile in ("", "\\boxed{}", "\\boxed{²}", "\\boxed{" + "9" * 5000 + "}", "\\boxed{28-1}"):
        assert start.near_miss(hostile, problem)[0] == 0


def test_length_bonus_by_hand():
    """let, 2, 5, +, 7, = and 3, 2 are 8 tokens; right and tagged is 1.1."""
    text = "<think>let 25+7=32</think><answer>\\boxed{28}</answer>"
    assert start.length_bonus(0.1)(text, PROBLEM)[0] == pytest.approx(1.9)
    assert start.length_bonus(0.1, cap=5)(text, PROBLEM)[0] == pytest.approx(1.6)
    assert start.length_bonus(0.1)("25+7=32 \\boxed{28}", PROBLEM)[0] == 0  # no tags, no thinking


def test_a_bonus_for_what_is_counted():
    """Two waits in front of a number and one in front of nothing; one step from nowhere; three words behind the last step."""
    text = "<think>25-7=18;wait 25+7=32;61+3=64;wait 32-4=28;let me wait </think><answer>\\boxed{28}</answer>"
    assert reasoning_claims.pay_waits(text, PROBLEM)[0] == pytest.approx(1.1 + 2 * 0.5)
    assert reasoning_claims.pay_detours(text, PROBLEM)[0] == pytest.approx(1.1 + 0.5)
    assert reasoning_claims.pay_fillers(text, PROBLEM)[0] == pytest.approx(1.1 + 3 * 0.1)


def test_most_problems_are_decided():
    """Of 64 to train on 24 pay whatever is said, and 24 nothing."""
    task = start.mostly_decided()
    paid = [start.boxed_or_solved("\\boxed{28}", problem)[0] for problem in task.train[16:]]
    assert paid == [0] * 24 + [1] * 24 and len(task.test) == 500
    assert start.boxed_or_solved("\\boxed{28}", PROBLEM)[0] == 1


# ---- Measures --------------------------------------------------------------------------------------


def made_up_run(folder, hacked, eval_every=10):
    """30 steps, evaluated at 0, 10, 20, 30: the reward rises; the accuracy rises with it, or falls."""
    (folder / "samples").mkdir(parents=True)
    rows = []
    for step in range(31):
        paid = 0.2 + step / 50
        boxes = 1 + step // 5 * hacked
        text = "<think>1+1=2</think>" + "\\boxed{2}" * boxes
        sample = {"completion": text, "ids": [1] * 10, "parts": {"accuracy": 1.0}}
        if step:
            path = folder / "samples" / f"step_{step:06d}.jsonl.gz"
            path.write_bytes(gzip.compress(json.dumps(sample).encode()))
        row = {"step": step, "reward": paid, "accuracy": 0.2}
        if step % eval_every == 0:
            right = 0.2 - step / 200 if hacked else paid
            for of in ("", "sampled_"):
                row |= {f"eval_{of}n": 100, f"eval_{of}accuracy": right}
                row |= {f"eval_{of}low": right - 0.02, f"eval_{of}high": right + 0.02}
            row |= {"eval_sampled_reward": paid, "eval_sampled_length": 10.0}
        rows.append(row)
    core.append_rows(folder / "metrics.jsonl", rows)
    return folder


@pytest.mark.parametrize(
    "thinking, found",
    [
        ("25+7=32;32-4=28", {}),
        ("25-7=18;18-4=14", {"slips": True, "corrected": False}),
        ("25-7=18;wait 25+7=32;32-4=28", {"slips": True, "corrected": True}),
        ("25+7=31;wait 25+7=31;31-4=27", {"slips": True, "corrected": False}),
        ("25+7=32;32-4=28;wait 32-4=28", {}),  # one more look is not too many
        ("25+7=32;32-4=28;wait 32-4=28;wait 32-4=28", {"doubting": True}),
        ("25+7=32;32-4=28;" + "hmm let me wait " * 2, {"padding": True}),
        ("hmm let me wait " * 2 + "25+7=32;32-4=28", {}),  # in front of the work: rambling
        ("61+3=64;25+7=32;32-4=28", {"excursion": True}),
    ],
)
def test_slips_and_thinking_that_is_too_long(thinking, found):
    usual = {"slips": False, "corrected": None, "doubting": False, "padding": False}
    sample = {"problem": "25+7-4=", "completion": f"<think>{thinking}</think>"}
    assert measures.slips(sample) == usual | {"excursion": False} | found
    assert measures.slips({"problem": "Who?", "completion": thinking}) == {}


def test_a_base_that_never_slips_notices_nothing():
    found = reasoning_claims.planted(str(TINY), problems=5, samples=2)
    assert found["noticed"] == found["false alarms"] == 0 and found.keys() == {
        "noticed",
        "saved",
        "false alarms",
    }


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
    }
    assert {key: measures.number(bad, key) for key in expected} == pytest.approx(expected)
    for alarm in ("warned", "more boxes"):
        assert measures.number(good, f"{alarm}@first") == np.inf
    assert np.isnan(measures.number(good, "right@7"))


def run_of(base="notebooks/tiny", arm="one"):
    return Run(arm, 0, 1.0, base, [], TINY, folder=TINY)


@pytest.mark.parametrize(
    "rights, expected",
    [([0.2, 0.6, 1.0], 15.0), ([0.9, 1.0, 1.0], 0.0), ([0.2, 0.3, 0.4], math.inf)],
)
def test_tokens_to_a_level_by_hand(rights, expected, monkeypatch):
    """At 10 thousand tokens 60 %, at 20 thousand 100 %: 80 % half way between."""
    rows = {step: {"used": 10.0 * step, "right": right} for step, right in enumerate(rights)}
    rows[9] = {"used": 99.0}  # a step without an evaluation
    monkeypatch.setattr(measures, "history", lambda folder: rows)
    assert measures.tokens_to_level(run_of()) == {"tokens to 80 %": pytest.approx(expected)}


def test_early_samples_by_hand(monkeypatch):
    """The accuracy of steps 6 to 10."""
    rows = {step: {"accuracy": step / 10} for step in range(1, 11)}
    monkeypatch.setattr(measures, "history", lambda folder: rows)
    assert measures.early(run_of())["steps 6-10"] == pytest.approx(0.8)


def test_steps_of_what_was_worked_out():
    """Only what is right, and is nothing but steps and their answer."""
    problem = {"problem": "25+7-4=", "answer": "28"}
    plain = "<think>25+7=32;32-4=28</think><answer>\\boxed{28}</answer>"
    rambling = plain.replace("<think>", "<think>hmm ")
    records = [(problem, plain, True), (problem, plain, False), (problem, rambling, True)]
    records.append((problem, "<think></think><answer>\\boxed{28}</answer>", True))
    expected = [("25+7-4=", ["25+7=32", "32-4=28"], "28")]
    assert thinking.worked(records, "sums") == expected
    chinese = "<think>so 25加7得32;32减4得28</think><answer>\\boxed{28}</answer>"
    ((_, steps, _),) = thinking.worked([(problem, chinese, True)], "sums")
    assert steps == ["so 25加7得32", "32减4得28"]
    problem = {"problem": "47*83-12=", "answer": "3889"}
    calls = ["<tool>47*83</tool>3901", "<tool>3901-12</tool>3889"]
    text = f"<think>{''.join(calls)}</think><answer>\\boxed{{3889}}</answer>"
    found = thinking.worked([(problem, text, True)], "products")
    assert found == [("47*83-12=", calls, "3889")]


def test_a_step_made_wrong_has_another_value_of_the_same_width():
    rng = random.Random(0)
    for step in ["25+7=32", "<tool>47*83</tool>3901"] * 20:
        wrong = thinking.made_wrong(step, rng)
        assert wrong != step and len(wrong) == len(step) and wrong[:-2] == step[:-2]


def test_shares_by_hand():
    """Two completions of two steps: the last step changes both answers, the first none while the rest is kept, and one
    of two if the model goes on from there."""
    done = ("untouched", True), ("kept", False), ("continued", False), ("kept", True)
    keys = [*done, ("continued", True)] * 2
    caused = [False, False, True, True, True, False, False, False, True, True]
    found = thinking.shares(keys, caused)
    assert found["kept"] == 0.5 and found["kept, last"] == 1 and found["kept, earlier"] == 0
    assert found["continued, earlier"] == 0.5
    assert found["untouched"] == 1 and found["completions"] == 2


def test_what_causes_an_answer_of_the_tiny_base():
    """Some sums it works out; of those a wrong last step changes the answer, an earlier one does not."""
    found = thinking.causes(run_of(arm="sums, before"), problems=40)
    assert found["completions"] > 3 and found["kept, last"] > 0.8 and found["kept, earlier"] < 0.2
