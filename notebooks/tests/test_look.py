"""notebooks/look/: it compares models, shows what a run sampled and logged, and checks a GPU (gpu_day.py)."""

import gzip
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import bench_sampling
import train
import verifiers
from appendix.plumbing import DataError, append_rows, git_commit
from notebooks.look import compare, curve, gpu_day, keep, sharpen, show, sinks, style
from notebooks.look.compare import decompose
from pretend_gpu import PretendGPU
from ranks import ROOT
from eval import clustered_interval
from model import load
from rlvr import GRPO, records_of, roll_out

# ---- Two models ------------------------------------------------------------------------------------


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
    """Of 8 problems 5 got better and none worse. If nothing had changed, so uneven a split would have the
    probability 2 / 2^5. Samples of one problem count as one problem."""
    result = compare.compare(records(0, 0, 0, 0, 0, 1, 1, 0), records(1, 1, 1, 1, 1, 1, 1, 0))
    assert (result["difference"], result["better"], result["worse"]) == (0.625, 5, 0)
    assert result["p"] == 2 / 32
    assert -0.1 < result["low"] < 0 < 0.8 < result["high"]
    result = compare.compare(records(1, 0, 0, 0), records(1, 1, 0, 0), num_samples=2)
    assert (result["difference"], result["better"], result["worse"]) == (0.25, 1, 0)


def test_the_gain_is_decomposed_by_hand():
    """The example of the docstring: cut off -> right, no answer -> right, no answer -> wrong, wrong ->
    right, right -> cut off."""
    before = [CUT_OFF, NO_ANSWER, NO_ANSWER, WRONG, RIGHT]
    after = [RIGHT, RIGHT, WRONG, RIGHT, CUT_OFF]
    parts = decompose(before, after)
    means = {part: mean for part, (mean, _, _) in parts.items()}
    assert means == {"stopping": 0.0, "format": 0.2, "mathematics": 0.2}
    assert compare.compare(before, after)["difference"] == 0.4
    # 0, 1, 0, 0, 0 and four more: centre 1/9, variance (4 * 1 + 64 + 2 * 64 + 2 * 100) / 81 / 8 = 11/18
    error = 1.96 * math.sqrt(11 / 18 / 9)
    assert parts["format"][1:] == pytest.approx((1 / 9 - error, 1 / 9 + error))


def saved(label, *answers):
    """Return what eval.py saves for two problems, to which the answers belong in turn."""
    place = {"model": label, "decoding": "sampled"}
    return [
        record(answer, **place, index=i % 2, sample=i // 2, problem=f"problem {i % 2}")
        for i, answer in enumerate(answers)
    ]


def test_saved_completions_are_judged_again_and_compared(tmp_path, capsys):
    """Two models answer two problems twice each. The truth is 0.5, and the file calls 1/2 wrong.

    The new model is right in 3 of 4, the old one in 1 of 4. Problem 0: wrong, wrong -> right, right is mathematics 1.
    Problem 1: no answer, right -> right, wrong: of the four pairs one is format, 1/4, and one mathematics, -1/4."""
    path = tmp_path / "saved.jsonl"
    rows = saved("new", "1/2", "0.5", "0.5", "7")
    rows[0] |= {"accuracy": 0.0, "completion": "a line\u2028and another: " + rows[0]["completion"]}
    append_rows(path, [{"header": {"model": "new"}}, *rows])
    with pytest.raises(DataError, match="holds too few models. .* --baseline"):
        compare.main([str(path)])
    append_rows(path, saved("old", "7", None, "7", "0.5"))
    compare.main([str(path), "--regrade", "boxed", "--k", "4", "1", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 79
    assert lines[:2] == ["1 verdicts changed", "    now right: truth 0.5, completion .."]
    titles, *tables = lines[[line[:8] for line in lines].index("decoding") :][:7]
    assert tables[::3] == ["new", "old"]
    new, old = (dict(zip(titles.split(), line.split(), strict=True)) for line in tables[1::3])
    assert new.items() >= {"decoding": "sampled", "n": "2", "accuracy": "0.750"}.items()
    assert [new["low"], new["high"]] == [f"{end:.3f}" for end in clustered_interval([1, 0.5], 2)]
    assert [new["answered"], old["answered"]] == ["1.000", "0.750"]
    rates = [line.strip() for line in tables[2::3]]
    assert rates == ["pass@1 0.750  pass@2 1.000", "pass@1 0.250  pass@2 0.500"]
    said = " ".join(" ".join(lines).split())
    assert "sampled: difference +0.500 [" in said
    for part in ("stopping +0.000", "format +0.125", "mathematics +0.375"):
        assert part in said


FIRST = saved("a", "7", "7", "7", "7")
LEFT_OUT = "a, sampled: the last evaluation counts; left out are earlier ones, of 2\n    problems\n"
INCOMPLETE = "a, sampled: problems without all their samples are left out, 1 of 2\n"


def counted(tmp_path, *rows):
    """Return the records of model a that count in a file with these rows."""
    path = tmp_path / "saved.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return compare.read_saved([path])["a"]["sampled"]


def test_the_later_of_two_evaluations_counts_as_a_whole(tmp_path, capsys):
    """The later one has one sample of each problem instead of two, or fewer problems. If it repeats the earlier one, as
    for a baseline, nothing is left out. Two evaluations may be written at once, here with alternating rows: of two
    models, or of one model with the same settings."""
    for later, said in (saved("a", "0.5", "7"), LEFT_OUT), (saved("a", "7"), LEFT_OUT), (FIRST, ""):
        assert counted(tmp_path, *FIRST, *later) == counted(tmp_path, *later)
        assert capsys.readouterr().out == said
    for other in saved("b", "0.5", "0.5", "0.5", "0.5"), FIRST:
        assert counted(tmp_path, *sum(zip(FIRST, other), ())) == counted(tmp_path, *FIRST)
        assert capsys.readouterr().out == ""


def test_problems_without_all_their_samples_are_left_out_and_counted(tmp_path, capsys):
    """A row of problem 1 is lost; then the only row of problem 0; then one row of each."""
    assert counted(tmp_path, *FIRST[:3]) == [FIRST[0], FIRST[2]]
    assert counted(tmp_path, FIRST[1]) == [FIRST[1]]
    assert capsys.readouterr().out == INCOMPLETE * 2
    with pytest.raises(DataError, match="a, sampled: no problem has all its samples"):
        counted(tmp_path, *FIRST[1:3])


# ---- What a run sampled and logged -----------------------------------------------------------------


def completion(text, reward=0.0, **more):
    """Return a row of samples/."""
    asked = {"step": 1, "problem": "1+1=", "answer": "2", "completion": text, "ids": [1, 2]}
    verdict = {"accuracy": float(reward == 1), "truncated": 0.0, "advantage": reward - 0.5}
    return {**asked, **verdict, "reward": reward, "logps": [-1.0, -1.0], **more}


def write_run(run, samples, log=()):
    """Write a run's folder with groups of two. samples: {step: rows}. The log has these steps unless it is given."""
    (run / "samples").mkdir(parents=True)
    (run / "config.json").write_text('{"flags": {}, "settings": {"num_samples": 2}}')
    append_rows(run / "metrics.jsonl", log or [{"step": step} for step in samples])
    for step, lines in samples.items():
        with gzip.open(run / "samples" / f"step_{step:06d}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({**line, "step": step}) + "\n" for line in lines)
    return run


def test_the_viewer_shows_a_mixed_group_or_what_is_paid_most(tmp_path, capsys):
    lines = [completion("no"), completion("nor this"), completion("2", 1.0), completion("3", 0.5)]
    lines[3]["turns"] = [["1+1?", "2"], ["3", None]]
    run = write_run(tmp_path / "run", {3: lines})
    show.main([str(run), "--step", "3"])
    shown = capsys.readouterr().out
    assert shown.startswith("step 3\n  problem\n  | 1+1=\n  answer\n  | 2\n")
    assert "nor this" not in shown and max(map(len, shown.splitlines())) <= 79
    assert "reward 1.00, advantage +0.50; 2 tokens, ended, a token 37% likely" in shown  # e^-1
    assert "  policy\n  | 1+1?\n  environment\n  | 2\n  policy\n  | 3\n" in shown
    show.main([str(run), "--best-first"])
    shown = capsys.readouterr().out
    paid = [line.split()[1] for line in shown.splitlines() if "reward" in line]
    assert paid == ["1.00,", "0.50,"]
    with pytest.raises(DataError, match="has no step 2"):
        show.main([str(run), "--step", "2"])


def test_a_completion_that_is_cut_off_is_shown_to_its_end():
    """What the policy said before it was cut off is in no turn yet. If a turn has a special token that the completion
    lacks, it is not found there, and some words are shown twice."""
    task = verifiers.get_task("arithmetic", stops=("}",))
    task.turns = lambda problem: SimpleNamespace(reply=lambda text: "1")
    model = load(ROOT / "notebooks" / "tiny")
    for row in records_of(roll_out(GRPO(max_new_tokens=60), *model, task, task.test[:4], 4)):
        own = [text for who, text in show.turns_of(row) if who == "policy"]
        assert row["truncated"] and "".join(own) == row["completion"]
    row = completion("1+1?2+2?3 an", turns=[["1+1?", "2"], ["<|x|>2+2?", "4"]])
    own = [text for who, text in show.turns_of(row) if who == "policy"]
    assert own == ["1+1?", "<|x|>2+2?", "2+2?3 an"]


def test_any_number_of_the_data_is_shown(capsys):
    row = completion("2", huge=-(10**400), nan=math.nan, yes=True, level=-3, none=None)
    show.print_completion(row)
    assert "huge -1.00000e+400, nan nan, yes 1, level -3\n" in capsys.readouterr().out


def log(*points):
    """Return a log with these rewards and accuracies at steps 10, 20, ..; step 0 has the base's."""
    return [
        {"step": 10 * i, "reward": reward, "eval_accuracy": 0, "eval_sampled_accuracy": accuracy}
        | {"eval_sampled_low": accuracy - 0.04, "eval_sampled_high": accuracy + 0.04}
        for i, (reward, accuracy) in enumerate([(0.2, 0.3), *points])
    ]


def test_the_canary_sings_when_reward_and_accuracy_part(tmp_path, capsys):
    assert show.canary(log((0.5, 0.5), (0.6, 0.6))) is None and show.canary(log((0.5, 0.5))) is None
    assert show.canary(log((0.5, 0.5), (0.6, 0.45))) is None  # within the intervals
    assert show.canary(log((0.5, 0.5), (0.4, 0.3))) is None  # both fell: no hack, only worse
    worse_than_the_base = log((0.9, 0.25), (0.98, 0.15))
    assert "from 0.200 (step 0) to 0.980" in show.canary(worse_than_the_base)
    # It prints the first warning, whatever follows.
    write_run(tmp_path / "run", {}, log((0.5, 0.5), (0.9, 0.3), (0.9, 0.9)))
    show.main([str(tmp_path / "run"), "--canary"])
    warning = " ".join(capsys.readouterr().out.split())
    assert "reward went from 0.500 (step 10) to 0.900" in warning and "0.500 to 0.300" in warning


def test_the_verifier_tax_is_their_share_of_a_step(tmp_path, capsys):
    """verify_seconds is a part of sample_seconds; step 0, an evaluation, has neither."""
    times = {"reward": 0.5, "sample_seconds": 3.0, "update_seconds": 1.0}
    steps = [{"step": n, "verify_seconds": n / 2, **times} for n in (1, 2)]
    show.main([str(write_run(tmp_path / "run", {}, [{"step": 0}, *steps])), "--tax"])
    said = " ".join(capsys.readouterr().out.split())
    # 0.5 + 1 of 8 seconds for the verifiers, 4.5 to sample, 2 to update
    assert "verifiers 18.8% of 2 steps (0.75 s a step; most, 1 s, in step 2)" in said
    assert "sampling 56.2%, update 25.0%" in said


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_sink_is_given_the_numbers(name, tmp_path, monkeypatch):
    """Values that are no numbers are left out. A missing package is named."""
    with monkeypatch.context() as without:
        without.setattr(sinks.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(DataError, match=f"pip install {name}"):
            sinks.SINKS[name](tmp_path)
    there = mock.MagicMock()
    monkeypatch.setattr(sinks, "package", lambda *names: there)
    run = write_run(tmp_path / "run", {}, [{"step": 1, "reward": 0.5, "note": "-"}])
    (run / "config.json").write_text('{"flags": {"steps": 1}}')
    sinks.main([name, str(run), "--follow"])  # until its last step
    if name == "wandb":
        there.init.return_value.log.assert_called_once_with({"step": 1, "reward": 0.5}, step=1)
    else:
        writer = there.SummaryWriter.return_value
        writer.add_scalar.assert_has_calls([mock.call("step", 1, 1), mock.call("reward", 0.5, 1)])


def drawn(svg, name):
    """Return the points (x, y) of the line of a figure that has this gid."""
    (path,) = re.findall(rf'<g id="{re.escape(name)}">\s*<path d="([^"]+)"', svg)
    return [tuple(map(float, point)) for point in re.findall(r"[ML] (\S+) (\S+)", path)]


PANELS = """main  A tiny Qwen3 learns sums  training sampled greedy
main  Its answers get longer  training
sums  SmolLM2 learns to add  training sampled greedy"""


@pytest.mark.parametrize("panel", PANELS.splitlines())
def test_the_readmes_figure_is_drawn_from_the_results(panel):
    """Each line has a point for each measured step, at the mean over the seeds: positions in the figure are a linear
    function of steps and values, to 1/50 of a point."""
    svg = curve.README.read_text()
    result, title, names = panel.split("  ")
    for name in names.split():
        column = "completion_length" if "longer" in title else curve.LINES[name]
        curves = keep.load(result)["curves"][column]
        steps = [*map(int, curves[0])]
        means = [statistics.mean(seed[str(step)] for seed in curves) for step in steps]
        if name == "training":  # means of the last five steps
            means = [statistics.mean(means[max(0, i - 4) : i + 1]) for i in range(len(means))]
        points = drawn(svg, f"{title}: {name}")
        for values, places in zip((steps, means), zip(*points)):
            slope, start = statistics.linear_regression(values, places)
            assert places == pytest.approx([slope * value + start for value in values], abs=0.02)
            assert abs(slope) > 0.5


def test_a_band_says_which_steps_it_leaves_out(capsys):
    """One of the two runs has only reached step 10."""
    _, (axis,) = style.panels("Two runs")
    style.band(axis, [{0: 0.1, 10: 0.2, 20: 0.3}, {0: 0.1, 10: 0.3}], "greedy")
    assert capsys.readouterr().out == "greedy: left out are steps that not every run has: 20\n"


def test_names_stand_apart_and_near_their_lines():
    """If three lines end together, their names move up and down. At the top and the bottom, names stay inside."""
    assert style.spread([50, 50, 50, 90], 0, 100) == [38, 50, 62, 90]
    assert style.spread([1, 2, 99, 99], 0, 100) == [0, 12, 88, 100]


# ---- A sharpened base ------------------------------------------------------------------------------


def test_a_power_of_the_base_by_hand():
    """Three of four samples are wrong, with p 0.6, and one is right, with p 0.2. For p^2 it draws them with probabilities
    0.3, 0.3, 0.3 and 0.1, which are worth 1 / (3 * 0.09 + 0.01) equal ones."""
    logps = torch.tensor([[0.6, 0.6, 0.6, 0.2]]).log()
    right = torch.tensor([[0.0, 0, 0, 1]])
    for alpha, accuracy, effective in ((1, 0.25, 4), (2, 0.1, 1 / 0.28), (50, 0, 3)):
        found = sharpen.sharpen(logps, right, alpha)
        assert [value.item() for value in found] == pytest.approx([accuracy, effective], abs=1e-6)


def test_of_a_run_the_base_is_sharpened_with_its_settings(tmp_path, capsys):
    tiny = str(ROOT / "notebooks" / "tiny")
    sizes = "--max-new-tokens 9 --num-samples 4 --prompts-per-step 1 --steps 1 --eval-problems 1"
    run = ["--runs", str(tmp_path), "--name", "run", "--device", "cpu"]
    train.main(["--model", tiny, *sizes.split(), *run])
    capsys.readouterr()
    sharpen.main([str(tmp_path / "run"), "--problems", "3", "--alpha", "1", "4"])
    first, _, one, four, last = capsys.readouterr().out.splitlines()
    assert first == f"{tiny}, task arithmetic: 128 completions of each problem"
    assert one.split()[0] == "1" and " 128.0 " in one and four.split()[0] == "4"
    assert last.startswith(f"{tmp_path}/run/final, temperature 1: ")
    for wrong in ("nan", "inf", "0"):
        with pytest.raises(SystemExit, match="alpha must be above 0"):
            sharpen.main([tiny, "--task", "arithmetic", "--alpha", wrong])
    # 9 tokens are too few to work anything out, and nearly every completion is cut off
    assert all(float(line.split()[1]) < 0.2 for line in (one, four))


# ---- The day of a GPU ------------------------------------------------------------------------------


def memory(day):
    yield "GB of an update", "at most 14", "13.9", True
    yield "its seconds", "", "2.5"


def broken(day):
    yield "mismatch", "< 0.05", "0.3", False
    raise ValueError("no such kernel")


def dying(day):
    yield "card", "", "a card"
    os._exit(3)


def hanging(day):
    yield "card", "", "a card"
    time.sleep(99)


FOUND = [["GB of an update", "at most 14", "13.9"], ["its seconds", "", "2.5"]]


def test_a_check_that_fails_is_a_row_and_the_next_begins(tmp_path, monkeypatch):
    """The machine has no git. keep.py then stores the commit of this checkout."""
    monkeypatch.setattr(gpu_day, "PARTS", {"facts": [broken, memory]})
    day = gpu_day.Day(True, "cpu", tmp_path / "found.json")
    with monkeypatch.context() as machine:
        machine.setenv("PATH", "")
        gpu_day.begin(day)
    gpu_day.run_part(day, "facts")
    *rows, last = gpu_day.read(day)["rows"]
    failed = [["mismatch", "< 0.05", "REFUTED 0.3"]]
    failed += [["broken", "no error", "REFUTED ValueError('no such kernel')"]]
    assert rows == [["facts", *row] for row in failed + FOUND] and last[1] == gpu_day.ENDED
    kept = keep.measure([f"cat {day.out}"])
    assert gpu_day.read(day)["commit"] == "" and kept["commit"] == git_commit()
    assert kept["rows"] == [*rows, last] and kept["commands"] == [gpu_day.COMMAND]


ENDS = [(dying, "exit code 3"), (hanging, "not done after 2 s")]


@pytest.mark.parametrize("check, why", ENDS, ids=["dies", "hangs"])
def test_a_part_that_does_not_end_is_a_row(tmp_path, monkeypatch, capsys, check, why):
    """Its rows stay, and the table comes last. A second call runs unfinished parts; --parts runs finished ones, too."""
    out = tmp_path / "found.json"
    command = ["--small", "--out", str(out), "--minutes", "0.04"]
    monkeypatch.setattr(gpu_day, "PARTS", {"facts": [check], "speed": [memory]})
    gpu_day.main(command)
    found, died, *later = json.loads(out.read_text())["rows"]
    assert capsys.readouterr().out.endswith(" | ".join([died, *later][-1]) + "\n")
    assert found == ["facts", "card", "", "a card"]
    assert died == ["facts", "facts", "", f"NOT DONE: {why}; call again"]
    late = ["speed", "speed", "", "NOT DONE: no time is left; call again"]
    assert later[0] == (late if check is hanging else ["speed", *FOUND[0]])
    monkeypatch.setattr(gpu_day, "PARTS", {"facts": [memory], "speed": [memory]})
    for more in ([], ["--parts", "speed"]):
        gpu_day.main([*command, *more])
        rows = json.loads(out.read_text())["rows"]
        assert [row[1:] for row in rows if row[1] != gpu_day.ENDED] == FOUND * 2


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """Run on a pretended GPU. Recording, kernels and memory limits are pretended, too."""
    names = "set_sync_debug_mode reset_peak_memory_stats set_per_process_memory_fraction".split()
    pretended = {name: lambda *given: None for name in names}
    pretended["get_device_properties"] = lambda _: SimpleNamespace(total_memory=80e9)
    pretended["max_memory_allocated"] = lambda: 9 * 10**9
    pretended["max_memory_reserved"] = pretended["max_memory_allocated"]
    monkeypatch.setattr(bench_sampling, "Recorder", lambda: bench_sampling.rounded)
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
    assert gpu_day.read(gpu)["machine"]["card"] == "a GPU that is not there"


def test_too_little_memory_must_name_the_flag_of_its_place(gpu, monkeypatch):
    """In the first run sampling fails for lack of memory, but loading should; the other runs fit, but should not."""
    error = SystemExit("error: too little memory: give a smaller --sample-tokens. CUDA")
    runs = mock.Mock(side_effect=[error, None, None])
    monkeypatch.setattr(gpu_day, "trained_at_random", runs)
    assert [row[1:] for row in gpu_day.rows_of(gpu, gpu_day.out_of_memory)] == [
        ["--model, or --fsdp", "REFUTED --sample-tokens. CUDA"],
        ["--sample-tokens", "REFUTED it fits"],
        ["--micro-batch-tokens", "REFUTED it fits"],
    ]


@pytest.mark.slow
def test_the_whole_day_runs_on_a_cpu_with_a_small_model(tmp_path):
    out = tmp_path / "day.json"
    command = [sys.executable, "-m", "notebooks.look.gpu_day", "--small", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert "REFUTED" not in str(rows)
    assert [row[0] for row in rows if row[1] == gpu_day.ENDED] == [*gpu_day.PARTS]
