"""notebooks/look/: two models on the same problems, second looks by hand, and the viewer of a run."""

import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import numpy
import pytest
import torch

import bench_sampling
import eval as core
import train
import verifiers
from eval import git_commit
from notebooks.look import compare, gpu_day, keep, show
from notebooks.look.compare import decompose, paired_interval, regrade
from notebooks.models import make_tiny
from pretend_gpu import PretendGPU
from ranks import ONE_DIGIT, ROOT
from rlvr import row_uniforms, sample


def records(*verdicts):
    return [{"accuracy": float(verdict)} for verdict in verdicts]


def record(answer, **columns):
    """A record of a completion that boxes this answer, or that has no box; the truth is 0.5."""
    completion = "I do not know" if answer is None else f"so \\boxed{{{answer}}}"
    reward, parts = verifiers.boxed_reward(completion, {"answer": "0.5"})
    asked = {"problem": "half?", "answer": "0.5", "completion": completion, "length": 10}
    return {**asked, "reward": reward, **parts, "truncated": 0.0, "failed": 0.0, **columns}


RIGHT = record("0.5")
WRONG = record("7")
NO_ANSWER = record(None)
CUT_OFF = record("0.5", truncated=1.0, accuracy=0.0)


def test_the_difference_is_paired():
    """Of 8 problems 5 got better and none worse. Were nothing changed, a split so uneven would have the
    chance 2 / 2^5."""
    result = compare.compare(records(0, 0, 0, 0, 0, 1, 1, 0), records(1, 1, 1, 1, 1, 1, 1, 0))
    assert (result["difference"], result["better"], result["worse"]) == (0.625, 5, 0)
    assert result["p"] == 2 / 32
    assert -0.1 < result["low"] < 0 < 0.8 < result["high"]


def test_three_equal_problems_prove_little():
    result = compare.compare(records(1, 0, 1), records(1, 0, 1))
    assert (result["difference"], result["p"]) == (0, 1)
    assert result["low"] < 0 < result["high"]


def test_samples_of_a_problem_count_as_one_problem():
    result = compare.compare(records(1, 0, 0, 0), records(1, 1, 0, 0), num_samples=2)
    assert (result["difference"], result["better"], result["worse"]) == (0.25, 1, 0)


def test_models_with_different_numbers_of_problems_are_not_compared():
    with pytest.raises(ValueError):
        compare.compare(records(1, 0), records(1, 0, 1))


@pytest.mark.parametrize("n", [30, 500])
@pytest.mark.parametrize(
    "better, worse", [(0, 0), (0.02, 0), (0.02, 0.02), (0.1, 0.02), (0.5, 0.1)]
)
def test_the_interval_covers_the_difference(n, better, worse):
    """A share of the problems is mastered, another lost, the others are unchanged, each with a chance of
    its own. The plain interval holds a gain of few problems in 85 % of the trials only."""
    rng = numpy.random.default_rng(0)
    for k in (1, 64):
        before, luck = rng.random((2, 500, n))
        gained = luck < better
        lost = luck > 1 - worse
        before = numpy.where(gained, 0.0, numpy.where(lost, 1.0, before))
        after = numpy.where(gained, 1.0, numpy.where(lost, 0.0, before))
        changes = ((rng.binomial(k, after) - rng.binomial(k, before)) / k).tolist()
        intervals = [paired_interval(row)[1:] for row in changes]
        held = sum(low <= better - worse <= high for low, high in intervals)
        assert held / 500 >= 0.93, k
        assert all(low < high for low, high in intervals)


def test_the_gain_is_decomposed_by_hand():
    """The example of the docstring: cut off -> right, no answer -> right, no answer -> wrong, wrong ->
    right, right -> cut off."""
    before = [CUT_OFF, NO_ANSWER, NO_ANSWER, WRONG, RIGHT]
    after = [RIGHT, RIGHT, WRONG, RIGHT, CUT_OFF]
    parts = decompose(before, after)
    means = {part: mean for part, (mean, _, _) in parts.items()}
    assert means == {"stopping": 0.0, "format": 0.2, "mathematics": 0.2}
    assert compare.compare(before, after)["difference"] == 0.4
    assert decompose(before[:1], after[:1])["stopping"][0] == 1
    assert decompose(before[4:], after[4:])["stopping"][0] == -1
    # 0, 1, 0, 0, 0 and four more: centre 1/9, variance (4 * 1 + 64 + 2 * 64 + 2 * 100) / 81 / 8 = 11/18
    error = 1.96 * math.sqrt(11 / 18 / 9)
    assert parts["format"][1:] == pytest.approx((1 / 9 - error, 1 / 9 + error))


def test_the_parts_add_up_to_the_gain():
    rng = random.Random(1)
    before, after = (rng.choices([CUT_OFF, NO_ANSWER, WRONG, RIGHT], k=40) for _ in range(2))
    means = [mean for mean, _, _ in decompose(before, after, num_samples=4).values()]
    assert sum(means) == pytest.approx(compare.compare(before, after, 4)["difference"])
    assert min(abs(mean) for mean in means) > 0.001


# ---- The command -----------------------------------------------------------------------------------


def saved(model, *answers):
    """What eval.py --out writes of a model, greedy, one completion a problem."""
    rows = [{"header": {"model": model, "reward": "boxed"}}]
    for index, answer in enumerate(answers):
        place = {"model": model, "decoding": "greedy", "index": index, "sample": 0}
        rows.append({**record(answer), **place, "problem": f"problem {index}"})
    return rows


def test_the_command_compares_the_two_models_of_a_file(tmp_path, capsys):
    """After: right, right, right; before: wrong, no answer, right."""
    path = tmp_path / "eval.jsonl"
    core.append_rows(path, saved("new", "1/2", "0.5", "0.5") + saved("old", "7", None, "0.5"))
    compare.main([str(path)])
    titles, new, old, difference, parts = capsys.readouterr().out.splitlines()
    assert titles.split()[:4] == ["model", "decoding", "n", "accuracy"]
    assert new.split()[:4] == ["new", "greedy", "3", "1.000"]
    assert old.split()[:4] == ["old", "greedy", "3", "0.333"]
    assert difference.startswith("greedy: difference +0.667 [")
    assert difference.endswith("to old, 2 problems better, 0 worse, sign test p = 0.5")
    assert [text.split(" [")[0] for text in parts.split("], ")] == [
        "    of it stopping +0.000",
        "format +0.333",
        "mathematics +0.333",
    ]


def test_what_cannot_be_compared_is_refused(tmp_path):
    path = tmp_path / "eval.jsonl"
    core.append_rows(path, saved("new", "0.5", "0.5"))
    with pytest.raises(verifiers.DataError, match="holds too few models. .* --baseline"):
        compare.main([str(path)])
    other = [
        json.loads(json.dumps(row).replace("problem 1", "another")) for row in saved("old", 1, 1)
    ]
    core.append_rows(path, other)
    with pytest.raises(verifiers.DataError, match="not evaluated on the same problems"):
        compare.main([str(path)])


# ---- Judge again -----------------------------------------------------------------------------------


def saved_rows(label, *answers):
    """A saved evaluation: two problems, the answers alternate between them."""
    return [
        {
            **record(answer),
            "model": label,
            "decoding": "sampled",
            "index": i % 2,
            "sample": i // 2,
            "problem": f"problem {i % 2}",
            "level": i % 2 + 1,
        }
        for i, answer in enumerate(answers)
    ]


def write(path, rows):
    core.append_rows(path, rows)
    return str(path)


def test_saved_completions_are_judged_again(tmp_path, capsys):
    """Two models, two problems, two samples each; the truth is 0.5 and the file's verdict on 1/2 is wrong.

    New: 3 of 4 right; old: 1 of 4. Problem 0: wrong, wrong -> right, right: mathematics 1. Problem 1: none,
    right -> right, wrong: of the four pairs none -> right is format 1/4, right -> wrong mathematics -1/4."""
    rows = saved_rows("new", "1/2", "0.5", "0.5", "7") + saved_rows("old", "7", None, "7", "0.5")
    rows[0] |= {"accuracy": 0.0, "completion": "a line\u2028and another: " + rows[0]["completion"]}
    rows.insert(0, {"header": {"model": "new", "git": "abc", "reward": "boxed"}})
    path = write(tmp_path / "saved.jsonl", rows)
    compare.main([path, "--regrade", "boxed", "--k", "1", "2"])
    changed, which, titles, new, old, difference, parts = capsys.readouterr().out.splitlines()
    names = titles.split()
    new = dict(zip(names, new.split(), strict=True))
    old = dict(zip(names, old.split(), strict=True))
    low, high = core.clustered_interval([1, 0.5], 2)
    assert [new[name] for name in ("model", "n", "accuracy", "low", "high")] == [
        *("new", "2", "0.750"),
        f"{low:.3f}",
        f"{high:.3f}",
    ]
    assert [new[name] for name in ("answered", "pass@1", "pass@2")] == ["1.000", "0.750", "1.000"]
    assert [old[name] for name in ("answered", "pass@1", "pass@2")] == ["0.750", "0.250", "0.500"]
    assert difference.startswith("sampled: difference +0.500 [")
    for part in ("stopping +0.000", "format +0.125", "mathematics +0.375"):
        assert part in parts
    assert changed == "1 verdicts changed"
    assert "now right: truth '0.5'" in which


def test_regrade_keeps_what_was_cut_off_wrong_and_survives_a_verifier_that_fails():
    (again,) = regrade([CUT_OFF], verifiers.boxed_reward)
    assert (again["accuracy"], again["reward"], again["answered"]) == (0.0, 0.0, 1.0)
    with pytest.warns(UserWarning, match="the verifier failed .*ZeroDivisionError"):
        (again,) = regrade([RIGHT], lambda completion, problem: 1 / 0)
    assert (again["accuracy"], again["reward"], again["failed"]) == (0.0, 0.0, 1.0)


# ---- Show ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model of random weights that knows digits."""
    return str(make_tiny.make(0, tmp_path_factory.mktemp("base") / "base", "one-digit", steps=0))


@pytest.fixture(scope="module")
def run(tmp_path_factory, base):
    """Two steps of a run whose reward random weights earn every other time."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "even_reward.py").write_text(
        "def even(completion, problem):\n    return float(len(completion) % 2), {}\n"
    )
    train.main(
        [
            "--model",
            base,
            *f"--task {ONE_DIGIT} --device cpu --prompts-per-step 4 --num-samples 4 --steps 2".split(),
            *"--max-new-tokens 20 --eval-problems 5 --runs".split(),
            str(folder),
            "--name",
            "r",
            "--reward",
            f"{folder / 'even_reward.py'}:even",
        ]
    )
    return folder / "r"


def samples(run, step):
    with gzip.open(run / "samples" / f"step_{step:06d}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_the_viewer_shows_a_mixed_group(run, capsys):
    show.main([str(run), "--step", "1"])
    shown = capsys.readouterr().out
    rows = samples(run, 1)
    group = next(
        rows[i : i + 4]
        for i in range(0, 16, 4)
        if len({row["reward"] for row in rows[i : i + 4]}) > 1
    )
    assert (
        shown.startswith(f"step 1: {group[0]['problem']!r}, truth")
        and shown.count("advantage") == 4
    )
    for row in group:
        assert (
            f"reward {row['reward']:.2f}, advantage {row['advantage']:+.2f}; {len(row['ids'])} tokens"
            in shown
        )
        assert f"a token {math.exp(sum(row['logps']) / len(row['ids'])):.0%} likely" in shown


def test_the_viewer_shows_what_is_paid_most(run, capsys):
    show.main([str(run), "--best-first"])
    best = [float(value) for value in re.findall(r"reward ([-0-9.]+),", capsys.readouterr().out)]
    assert best == sorted((row["reward"] for row in samples(run, 2)), reverse=True)[:4]


# ---- The canary ------------------------------------------------------------------------------------


def log(*points):
    points = [(0.2, 0.3), *points]  # step 0: the reward and accuracy of the base
    return [
        {
            "step": 10 * i,
            "reward": reward,
            "eval_accuracy": 0,
            "eval_sampled_accuracy": accuracy,
            "eval_sampled_low": accuracy - 0.04,
            "eval_sampled_high": accuracy + 0.04,
        }
        for i, (reward, accuracy) in enumerate(points)
    ]


def test_the_canary_sings_when_reward_and_accuracy_part():
    assert show.canary(log((0.5, 0.5), (0.6, 0.6))) is None and show.canary(log((0.5, 0.5))) is None
    assert show.canary(log((0.5, 0.5), (0.6, 0.45))) is None  # within the intervals
    assert show.canary(log((0.5, 0.5), (0.4, 0.3))) is None  # both fell: no hack, only worse
    warning = show.canary(log((0.5, 0.5), (0.9, 0.3), (0.9, 0.3)))
    assert "reward went from 0.500 (step 10) to 0.900" in warning and "0.500 to 0.300" in warning
    # Worse than the base.
    assert "from 0.200 (step 0) to 0.980" in show.canary(log((0.9, 0.25), (0.98, 0.15)))


def test_the_verifier_tax_is_their_share_of_a_step(tmp_path, capsys):
    """verify_seconds is a part of sample_seconds; step 0, an evaluation, has neither."""
    path = tmp_path / "metrics.jsonl"
    times = {"reward": 0.5, "sample_seconds": 3.0, "update_seconds": 1.0}
    steps = [{"step": n, "verify_seconds": n / 2, **times} for n in (1, 2)]
    write(path, [{"step": 0, "reward": 0.5}, *steps])
    show.main([str(tmp_path), "--tax"])
    said = capsys.readouterr().out
    # 0.5 + 1 of 8 seconds for the verifiers, 4.5 to sample, 2 to update
    assert "verifiers 18.8% of 2 steps (0.75 s a step; most, 1 s, in step 2)" in said
    assert "sampling 56.2%, update 25.0%" in said
    path.unlink()
    write(path, [{"step": 0, "reward": 0.5}])
    with pytest.raises(verifiers.DataError, match="no step with verify_seconds"):
        show.main([str(tmp_path), "--tax"])


def test_the_canary_on_a_run(tmp_path, capsys):
    """The first warning counts, and what came after it is not needed."""
    write(tmp_path / "metrics.jsonl", log((0.5, 0.5), (0.9, 0.3), (0.9, 0.9)))
    show.main([str(tmp_path), "--canary"])
    assert "0.500 to 0.300 (step 20)" in capsys.readouterr().out
    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path / "metrics.jsonl", log((0.5, 0.5), (0.9, 0.9)))
    show.main([str(tmp_path), "--canary"])
    assert capsys.readouterr().out == "no warning\n"


# ---- The day of a GPU ------------------------------------------------------------------------------


def memory(day):
    yield "GB of an update", "at most 14", "13.9", True
    yield "its seconds", "", "2.5"


def broken(day):
    yield "mismatch", "< 0.05", "0.3", False
    raise ValueError("no such kernel")


INVENTED = [["mismatch", "< 0.05", "REFUTED 0.3"]]
INVENTED += [["broken", "no error", "REFUTED ValueError('no such kernel')"]]
INVENTED += [["GB of an update", "at most 14", "13.9"], ["its seconds", "", "2.5"]]


def dying(day):
    yield "card", "", "a card"
    os._exit(3)


def hanging(day):
    yield "kernels", "", "a kernel"
    time.sleep(99)


@pytest.fixture
def day(tmp_path, monkeypatch):
    """A day of one part, on which the first of two checks fails."""
    monkeypatch.setattr(gpu_day, "PARTS", {"facts": [broken, memory]})
    day = gpu_day.Day(True, "cpu", tmp_path / "results" / "gpu_day.json")
    gpu_day.begin(day)
    return day


def rows_in(day):
    return json.loads(day.out.read_text())["rows"]


def test_a_check_that_fails_is_a_row_and_the_next_begins(day, capsys):
    gpu_day.run_part(day, "facts")
    assert rows_in(day) == INVENTED
    printed = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [[cell.strip() for cell in row] for row in printed] == INVENTED


@pytest.mark.parametrize(
    "check, row, why", [(dying, "card", "exit code 3"), (hanging, "kernels", "not done after 2 s")]
)
def test_a_part_that_dies_or_takes_too_long_is_a_row_and_so_are_those_after_it(
    day, monkeypatch, capsys, check, row, why
):
    """What it had found is kept. The table comes last, and a second call runs what has not ended."""
    monkeypatch.setattr(gpu_day, "PARTS", {"facts": [check], "speed": [memory]})
    command = ["--small", "--out", str(day.out), "--minutes", "0.04"]
    gpu_day.main(command)
    found, died, *later = rows_in(day)
    assert found[0] == row and died == ["facts", "", f"NOT DONE: {why}; call again"]
    if check is dying:
        assert later == INVENTED[2:]
    else:
        assert later == [["speed", "", "NOT DONE: no time is left; call again"]]
    table = capsys.readouterr().out.partition("== all\n")[2].splitlines()
    assert [line.split(" | ")[2] for line in table[1:-1]] == [cells[2] for cells in rows_in(day)]
    monkeypatch.setattr(gpu_day, "PARTS", {"facts": [memory], "speed": [memory]})
    gpu_day.main(command)
    assert rows_in(day) == INVENTED[2:] * 2


def test_a_part_is_run_again_only_if_it_is_named(day, monkeypatch):
    calls = []
    monkeypatch.setattr(gpu_day, "PARTS", {"facts": [], "speed": []})

    def in_a_process(work, seconds, *given):
        """No fork: the part is noted, and has ended."""
        if given:
            calls.append(given[1])
            gpu_day.write(day, given[1], [], seconds=0.5)
        return ""

    monkeypatch.setattr(gpu_day, "in_a_process", in_a_process)
    for more in ([], [], ["--parts", "speed"]):
        gpu_day.main(["--small", "--out", str(day.out), *more])
    assert calls == ["facts", "speed", "speed"]


def test_a_result_of_a_machine_without_git_is_of_the_commit_of_the_checkout_that_keeps_it(
    day, monkeypatch
):
    day.out.unlink()
    with monkeypatch.context() as machine:
        machine.setenv("PATH", "")
        gpu_day.begin(day)
    gpu_day.run_part(day, "facts")
    found = json.loads(day.out.read_text())
    kept = keep.measure([f"cat {day.out}"])
    assert found["commit"] == "" and kept["commit"] == git_commit() != ""
    assert kept["rows"] == INVENTED and kept["commands"] == [gpu_day.COMMAND]


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """The day on a pretended GPU: recording, kernels and limits of memory are pretended, too."""
    card = SimpleNamespace(total_memory=80e9)
    pretended = {"get_device_properties": lambda _: card, "max_memory_allocated": lambda: 9 * 10**9}
    pretended["max_memory_reserved"] = pretended["max_memory_allocated"]
    for (
        name
    ) in "set_sync_debug_mode reset_peak_memory_stats set_per_process_memory_fraction".split():
        pretended[name] = lambda *given: None
    monkeypatch.setattr(bench_sampling, "record", lambda step: step)
    monkeypatch.setattr(bench_sampling, "bandwidth", lambda device: 3.1e12)
    monkeypatch.setattr(bench_sampling, "timed", lambda work, device: 0.001)
    with PretendGPU(), mock.patch.multiple(torch.cuda, **pretended):
        day = gpu_day.Day(True, "cuda", tmp_path / "gpu_day.json")
        gpu_day.begin(day)
        yield day


@pytest.mark.slow
def test_what_only_a_gpu_has_runs_on_a_pretended_one(gpu):
    checks = [*gpu_day.PARTS["facts"], gpu_day.whole_steps, gpu_day.update_of_8]
    rows = [row for check in checks for row in gpu_day.rows_of(gpu, check)]
    found = {row[0].strip(): row[2] for row in rows}
    assert found["waits for the GPU in a decoded token"] == "0.000"
    assert found["and samples the same"] == "True"
    assert found["GB of a step"] == "9.0"
    assert not [row for row in rows if row[1] == "no error"]
    assert json.loads(gpu.out.read_text())["machine"]["card"] == "a GPU that is not there"


def test_too_little_memory_must_name_the_flag_of_its_place(gpu, monkeypatch):
    """Here sampling has too little in the first run, where loading should, and the others fit."""
    ends = iter([SystemExit("error: too little memory: give a smaller --sample-tokens. CUDA")])

    def trained(*given):
        for error in ends:
            raise error

    monkeypatch.setattr(gpu_day, "trained_at_random", trained)
    rows = [*gpu_day.rows_of(gpu, gpu_day.out_of_memory)]
    assert rows[0][1:] == ["--model, or --fsdp", "REFUTED --sample-tokens. CUDA"]
    assert rows[1][1:] == ["--sample-tokens", "REFUTED it fits"]
    assert rows[2][1:] == ["--micro-batch-tokens", "REFUTED it fits"]


def test_a_recorded_step_samples_what_sample_samples(model, prompts, tokenizer):
    """With all its tensors in one place, and attention over the whole cache."""
    begin, step, sampled = bench_sampling.static_decoder(model, prompts, 4, 20)
    for _ in range(2):  # from the beginning again, as a recording is
        begin()
        for _ in range(19):
            step()
    uniforms = row_uniforms(range(12), 20, 0)
    expected = sample(model, prompts, 4, 20, stop_ids=[], uniforms=uniforms)
    assert sampled.tolist() == expected.completions()


@pytest.mark.parametrize(
    "name, known",
    [("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA A100-SXM4-80GB", "A100"), ("Tesla T4", "T4")]
    + [("NVIDIA L40S", "NVIDIA L40S"), ("NVIDIA T400", "NVIDIA T400")],
)
def test_a_card_is_known_by_a_whole_word_of_its_name(monkeypatch, name, known):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert gpu_day.card_name() == known


@pytest.mark.slow
def test_the_whole_day_runs_on_a_cpu_with_a_small_model(tmp_path):
    out = tmp_path / "day.json"
    command = [sys.executable, "-m", "notebooks.look.gpu_day", "--small", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert "REFUTED" not in str(result["rows"])
    assert all(part["seconds"] is not None for part in result["parts"].values())
    assert result["parts"].keys() == gpu_day.PARTS.keys()
