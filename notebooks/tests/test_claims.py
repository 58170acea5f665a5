"""The claims: their arms can be run, their numbers are right, and the saved rows give the saved verdicts. Also the
models that they start from: the tiny base (make_tiny.py, notebooks/tiny), its demonstrations, and SmolLM2."""

import gzip
import json
import math
import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

import train
import verifiers
from appendix.plumbing import append_rows
from conftest import ROOT
from model import ModelError, load
from notebooks.autorule import autorule
from notebooks.claims import claim, measures, show, start
from notebooks.claims.claim import Arm, Check, Claim, smallest_effect, wrong_verdicts
from notebooks.claims.claims import CLAIMS
from notebooks.look import keep
from notebooks.models import get_smollm2, make_tiny
from rlvr import GRPO, roll_out

TINY = ROOT / "notebooks" / "tiny"
SUM = {"problem": "25+7-4=", "answer": "28"}
PRODUCT = {"problem": "47*83-12=", "answer": "3889"}
KEPT = [record["name"] for record in keep.load("claims")["claims"]]


@pytest.fixture
def bases(monkeypatch):
    """Use the committed base for every seed, and the project's folder as the current one."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(claim, "base_of", lambda name, seed, home: "notebooks/tiny")


# ---- What is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_the_kept_runs_give_the_kept_verdicts_and_the_table(name, tmp_path, monkeypatch, capsys):
    """--judge trains nothing. It applies the checks to the saved rows, and gets the saved numbers and verdicts. Every arm
    has all seeds at its chosen learning rate, and its mean is in the table."""
    monkeypatch.setattr(claim, "train_run", None)
    claim.main(CLAIMS.values(), [name, "--judge", "--results", str(tmp_path)])
    kept = show.read(name)
    assert show.read(name, tmp_path / "claims.json") == kept
    assert not {*claim.TUNING} & {*kept["seeds"]} and len(kept["seeds"]) >= claim.LEAST
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 79
    x = show.table_of(kept["rows"])
    for arm, chosen in CLAIMS[name].arms.items():
        rows = [(row["seed"], row["rate"]) for row in kept["rows"] if row["arm"] == arm]
        tries = {row["rate"]: row["right"] for row in kept["tries"] if row["arm"] == arm}
        rate = max(tries or chosen.rates or [0.0], key=tries.get)
        assert rows == [(seed, rate) for seed in kept["seeds"]]
        means = [x(arm, column).mean() for column in kept["columns"]]
        # The table is in parts, and each has a line of this arm.
        own = [line for line in lines if re.match(rf"{re.escape(arm)} .*\[", line)]
        cells = [float(cell.split()[-1]) for line in own for cell in line.split(" [")[:-1]]
        assert cells == pytest.approx([mean for mean in means if not np.isnan(mean)], abs=0.06)
    assert (show.show(name, "A finding") is None) == (CLAIMS[name].every == 0)  # its figure


# ---- Arms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("some", CLAIMS.values(), ids=CLAIMS)
def test_checks_speak_of_arms_that_can_be_run(some, bases, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(claim, "train_run", lambda flags, folder: seen.append(flags))
    monkeypatch.setattr(autorule, "train_reward_model", lambda *args, **how: None)
    for arm, chosen in some.arms.items():
        run = claim.run_of(some, arm, 4, 2e-3, tmp_path)
        assert (run.folder is None) == (not chosen.rates)
    for flags in map(train.parse_args, seen):
        assert (flags.steps, flags.settings["seed"], flags.lr) == (some.steps, 4, 2e-3)
        assert verifiers.get_task(flags.task, flags.prompt, flags.stop, flags.reward).test
    looked = set()
    for check in sum(some.checks().values(), []):
        check.change(lambda arm, column: looked.add(arm) or np.ones(3))
    assert looked <= some.arms.keys()


SMALL = "--prompts-per-step 2 --num-samples 4 --max-new-tokens 30 --eval-problems 4 --eval-every 1"


def test_a_claim_from_end_to_end(bases, tmp_path, capsys):
    """Each run makes two steps. What is written can be read, and finished runs are not repeated. 2 rates are tried with
    3 seeds each, and 6 runs count."""
    arms = {"one": Arm(rates=(4e-4, 8e-4)), "other": Arm("--reward boxed", rates=(8e-4,))}
    few = f"{SMALL} --task tests/ranks.py:few_sums"
    made_up = Claim("made-up", "Two steps change nothing.", "", arms, "right", flags=few, steps=2)
    made_up.every, made_up.claim = 1, [claim.stays("one", by=0.9)]
    made_up.controls = [claim.more("other", "one", by=2.0)]
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    claim.main([made_up], ["made-up", *places])
    assert "controls: does not hold" in capsys.readouterr().out
    kept = show.read("made-up", tmp_path / "claims.json")
    assert len(kept["rows"]) == 6 and kept["seeds"] == [0, 1, 2] and len(kept["tries"]) == 2
    assert kept["rows"][0]["curves"]["right"].keys() == {"0", "1", "2"}
    kept["rows"][-1]["curves"] = {}  # so "other" is left out of the figure
    assert [line.get_label() for line in show.draw(kept, "").axes[0].lines] == ["one"]
    assert len([*tmp_path.glob("runs/seed*/final")]) == 2 * 3 + 3 + 3
    claim.main([made_up], ["made-up", *places])
    assert "training" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        claim.main([made_up], ["made-down"])
    assert "Two steps change nothing." in capsys.readouterr().err


def test_several_seeds_of_one_training(bases, tmp_path, capsys):
    names = ["--name", "a", "--seeds", "3", "4", "--runs", str(tmp_path / "runs")]
    claim.several([*names, "--curves", "accuracy", "--", "--steps", "2", *SMALL.split()])
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert row[:2] == ["a", "2"] and "(step 1)" in row[3] and len(row) == len(claim.COLUMNS)
    assert found["seeds"] == [3, 4] and "held-out accuracy 0." in found["sentences"]["line"]
    assert [{*curve} for curve in found["curves"]["accuracy"]] == [{"0", "1", "2"}] * 2
    assert claim.over_seeds("1.000 [1.000 - 1.000]", 5) == "1.000 in 5 of 5 seeds"


def test_a_run_that_was_broken_off_goes_on(tmp_path, monkeypatch):
    """If it has a checkpoint, it is resumed; if not, it starts from scratch."""
    asked = []
    monkeypatch.setattr(train, "main", lambda argv: asked.append(argv[0]))
    (tmp_path / "run" / "checkpoints" / "step_000001").mkdir(parents=True)
    claim.train_run(["--steps", "2"], tmp_path / "run")
    claim.train_run(["--steps", "2"], tmp_path / "run")
    assert asked == ["--resume", "--steps"] and not (tmp_path / "run").exists()


# ---- Checks ----------------------------------------------------------------------------------------


def test_the_power_of_a_check_by_hand_and_by_simulation():
    """For 10 points, noise of 0.05 and 3 seeds, the line is 0.1 * 1.732 / 0.1 = 1.732 standard deviations away, so 4.2 %
    of checks decide wrongly; for 5 points it is 0.866 away, 19 %. The smallest effect that nine of ten trials detect is
    2 * 0.0289 * 1.2816 = 0.074. The simulation counts how often "it rises by 10 points" holds if nothing changes."""
    assert wrong_verdicts(0.1, 0.05, 3) == pytest.approx(0.0416, abs=1e-4)
    assert wrong_verdicts(0.05, 0.05, 3) == pytest.approx(0.193, abs=1e-3)
    assert smallest_effect(0.05, 3) == pytest.approx(0.0740, abs=1e-4)
    means = np.random.default_rng(0).normal(0, 0.05, (20000, 3)).mean(1)
    assert np.mean(means > 0.05) == pytest.approx(wrong_verdicts(0.1, 0.05, 3), abs=0.005)


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
    check = Check("", lambda x: values, **{"effect": 0.1, "noise": 0.05, **more})
    assert claim.judge(check, [])["holds"] is holds


# ---- Bases, rewards, measures ----------------------------------------------------------------------


def test_a_base_is_made_once_and_again_where_a_seed_has_not_learned(tmp_path, monkeypatch):
    """Seed 1 does not learn to work sums out, and neither do seeds 2, 102 and 202."""
    made = []

    def make(seed, folder):
        made.append(seed)
        if seed in (1, 2, 102, 202):
            raise ModelError("it has not learned it")
        folder.mkdir()

    monkeypatch.setattr(start.make_tiny, "make", make)
    assert start.base_of("usual", 0, tmp_path) == "notebooks/tiny"
    assert start.base_of("runs/mine", 2, tmp_path) == "runs/mine"
    for _ in range(2):
        assert start.base_of("usual", 1, tmp_path) == tmp_path / "usual-seed1"
    assert made == [1, 101]
    with pytest.raises(ModelError):
        start.base_of("usual", 2, tmp_path)


def test_a_power_finds_what_a_lower_temperature_does_not():
    found = measures.sharpened(SimpleNamespace(base=ROOT / "notebooks" / "tiny"), problems=10)
    assert found["best power"] == max(found[f"p^{a}"] for a in (2, 4, 50)) > 0.8
    assert found["temperature 1/4"] < 0.5


def test_a_bonus_for_what_is_counted():
    """There are two waits before a number and one before nothing, one step out of nowhere, and three words at the end."""
    text = "<think>25-7=18;wait 25+7=32;61+3=64;wait 32-4=28;let me wait </think><answer>\\boxed{28}</answer>"
    assert start.pay_waits(text, SUM)[0] == pytest.approx(1.1 + 2 * 0.5)
    assert start.pay_detours(text, SUM)[0] == pytest.approx(1.1 + 0.5)
    assert start.pay_fillers(text, SUM)[0] == pytest.approx(1.1 + 3 * 0.1)


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
        ("hmm let me wait " * 2 + "25+7=32;32-4=28", {}),  # before the work it is rambling
        ("61+3=64;25+7=32;32-4=28", {"excursion": True}),
    ],
)
def test_slips_and_thinking_that_is_too_long(thinking, found):
    usual = {"slips": False, "corrected": None, "doubting": False, "padding": False}
    sample = SUM | {"completion": f"<think>{thinking}</think>"}
    assert measures.slips(sample) == usual | {"excursion": False} | found


def test_a_base_that_never_slips_notices_nothing():
    found = measures.planted(str(TINY), problems=5, samples=2)
    assert found["noticed"] == found["false alarms"] == 0 and "saved" in found


def test_numbers_of_a_made_up_run(tmp_path):
    """The run has 30 steps and evaluations at 0, 10, 20 and 30. Its reward rises, its accuracy falls, and every five steps
    add a box."""
    (tmp_path / "samples").mkdir()
    rows = [{"step": step, "reward": 0.2 + step / 50} for step in range(31)]
    for step in range(0, 31, 10):
        rows[step] |= {"eval_sampled_accuracy": 0.2 - step / 200, "eval_sampled_reward": 0.8}
    append_rows(tmp_path / "metrics.jsonl", rows)
    for step in range(1, 31):
        text = "<think>1+1=2</think>" + "\\boxed{2}" * (1 + step // 5)
        sample = {"problem": "1+1=", "completion": text, "ids": [1] * 10}
        path = tmp_path / "samples" / f"step_{step:06d}.jsonl.gz"
        path.write_bytes(gzip.compress(json.dumps(sample).encode()))
    expected = {"right@0": 0.2, "right": 0.05, "right@10": 0.15, "paid": 0.8, "works@mean": 1}
    expected |= {"reward": 0.2 + 25.5 / 50, "boxes@start": 1, "boxes@max": 7, "plain length": 10}
    assert {key: measures.number(tmp_path, key) for key in expected} == pytest.approx(expected)
    assert np.isnan(measures.number(tmp_path, "right@7"))


# ---- The models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem, behaviour, thinking, answers",
    [
        (SUM, "worked", {"25+7=32;32-4=28"}, {"28"}),
        (SUM, "bilingual", {"so 25加7得32;32减4得28"}, {"28"}),
        (SUM, "hasty", None, {"25"}),  # the first number
        (SUM, "unnoticed", {"25-7=18;18-4=14", "25+7=32;32+4=36"}, {"14", "36"}),
        (SUM, "noticed", {"25-7=18;wait 25+7=32;32-4=28", "25+7=32;32+4=36;wait 32-4=28"}, {"28"}),
        (SUM, "doubting", {"25+7=32;32-4=28" + n * ";wait 32-4=28" for n in (1, 2, 3)}, {"28"}),
        (PRODUCT, "called", {"<tool>47*83</tool>3901<tool>3901-12</tool>3889"}, {"3889"}),
    ],
)
def test_demonstrations(problem, behaviour, thinking, answers):
    """If a slip goes unnoticed, the answer is the one that follows from it."""
    texts = {make_tiny.demonstrate(problem, behaviour, random.Random(seed)) for seed in range(30)}
    if thinking:
        assert {text.split("think>")[1].removesuffix("</") for text in texts} == thinking
    assert {verifiers.extract_boxed_answer(text) for text in texts} == answers


def test_a_product_needs_the_tool():
    """Every value has four digits, and no held-out problem is trained on."""
    task = make_tiny.products()
    assert not {p["problem"] for p in task.train} & {p["problem"] for p in task.test}
    for problem in task.train[:300]:
        values = [value for _, value in make_tiny.steps_of(problem)]
        assert min(values) >= 1000 and max(values) <= 9999 and problem["answer"] == str(values[-1])


def test_what_is_taught():
    """The completion and its end token are taught, but not the prompt or the calculator's answers."""
    tokenizer = make_tiny.symbol_tokenizer(make_tiny.SYMBOLS["products"])
    asked = [PRODUCT], {"called": 1.0}, random.Random(0), 4
    ids, mask = make_tiny.demonstration_batch(tokenizer, *asked)
    for row, taught in zip(ids, mask.bool()):
        text = tokenizer.decode(row[1:][taught].tolist(), skip_special_tokens=False)
        calls = "<tool>47*83</tool><tool>3901-12</tool>"
        assert text == f"<think>{calls}</think><answer>\\boxed{{3889}}</answer><|endoftext|>"


def accuracies(model, tokenizer, problems):
    """Yield the greedy and the sampled held-out accuracy, the latter from 4 completions per problem at temperature 1."""
    task = verifiers.arithmetic(train_size=1)
    for temperature, samples in ((0.0, 1), (1.0, 4)):
        asked = model, tokenizer, task, task.test[:problems], samples
        parts = roll_out(GRPO(max_new_tokens=80), *asked, temperature=temperature).parts
        yield sum(part["accuracy"] for part in parts) / len(parts)


def test_the_committed_base_has_something_to_select():
    """It mostly answers off the top of its head (greedy accuracy near 0.1), but is right when it works the problem out,
    as about one sample in four does. RLVR makes that its habit."""
    model, tokenizer = load(TINY)
    assert sum(weight.numel() for weight in model.parameters()) == 125_632
    greedy, sampled = accuracies(model, tokenizer, problems=100)
    assert 0.02 <= greedy <= 0.20 and 0.16 <= sampled <= 0.34
    assert make_tiny.worked_accuracy(model, tokenizer, verifiers.arithmetic(50, 0)) >= 0.9


def test_random_weights_of_a_seed(tmp_path):
    """A seed always gives the same bits, another seed other bits. The vocabulary is the task's."""
    bits = []
    for seed, name in ((0, "one"), (0, "again"), (1, "other")):
        flags = ["--random", "--task", "one-digit", "--seed", str(seed)]
        make_tiny.main([*flags, "--out", str(tmp_path / name)])
        bits.append((tmp_path / name / "model.safetensors").read_bytes())
    assert bits[0] == bits[1] != bits[2]
    model, tokenizer = load(tmp_path / "one")
    assert tokenizer.decode(tokenizer.encode("3+4=7")) == "3+4=7" and model.config.vocab_size == 14


@pytest.mark.slow
def test_the_warm_up_makes_working_a_habit_and_buries_it():
    """Fifty steps of each phase take the committed base there and back. (The whole warm-up takes minutes: seeds 0, 1 and 2
    give bases that are right in 0.09, 0.11 and 0.09 greedily, and in 0.24, 0.29 and 0.28 sampled.)"""
    model, tokenizer = load(TINY)
    before = [*accuracies(model, tokenizer, problems=200)]
    task = verifiers.arithmetic()
    make_tiny.warm_up(model, tokenizer, task, 0, make_tiny.PHASES, first=50, second=0, gate=0.0)
    assert min(accuracies(model, tokenizer, problems=200)) > 0.5
    make_tiny.warm_up(model, tokenizer, task, 0, make_tiny.PHASES, first=0, second=50, gate=0.9)
    greedy, sampled = accuracies(model, tokenizer, problems=200)
    assert abs(greedy - before[0]) < 0.12 and abs(sampled - before[1]) < 0.10


@pytest.mark.slow
def test_smollm2_is_what_transformers_makes_of_it(tmp_path):
    """Its logits agree to 1e-4, its ids exactly. It knows English: 2.5 nats a token; a guess costs ln 49,152 = 10.8."""
    pytest.importorskip("gguf")
    try:
        get_smollm2.get(tmp_path)
    except ModelError as error:
        pytest.skip(str(error))
    ours, tokenizer = load(tmp_path, template="plain")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    text = "Paris is the capital of France, and the Seine flows through it. It has 2,102,650 inhabitants."
    spelled = transformers.AutoTokenizer.from_pretrained(tmp_path)(text)
    assert tokenizer.encode_prompt(text) == spelled["input_ids"]
    spelled = [tokenizer.decode([token]) for token in tokenizer.encode("12 a  12<|im_end|>")]
    assert spelled[:6] == ["1", "2", " a", "  ", "1", "2"]  # each digit alone
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        found = theirs(ids, labels=ids)
        torch.testing.assert_close(ours(ids), found.logits, atol=1e-4, rtol=0)
    assert 1.5 < found.loss < 3.5
