"""train.py as it is used: a run, its files, a stop and a resume, functions of one's own, bad flags. Toy sizes, a minute
in all. (What kills a run is in test_faults.py, many processes are in test_ranks.py.)"""

import gzip
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import ranks
import train
import verifiers
from conftest import ROOT
from model import ModelError, load

FAST = [
    "--task",
    "one-digit",
    "--device",
    "cpu",
    "--prompts-per-step",
    "4",
    "--num-samples",
    "4",
    "--max-new-tokens",
    "4",
    "--eval-every",
    "3",
    "--eval-problems",
    "20",
    "--save-every",
    "2",
    "--model",
    ranks.base(),
]
LUCK = ["--reward", ranks.COIN]  # from random weights on hardly anything else is ever paid


def run(tmp_path, *flags, name="run"):
    train.main([*FAST, "--runs", str(tmp_path), "--name", name, *flags])
    return tmp_path / name


def resume(tmp_path, *flags):
    train.main(["--resume", "--device", "cpu", "--runs", str(tmp_path), *flags])


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_clock(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def weights(folder, part="final"):
    return load_file(folder / part / "model.safetensors")


def samples(folder, step):
    with gzip.open(
        folder / "samples" / f"step_{step:06d}.jsonl.gz", "rt", encoding="utf-8"
    ) as file:
        return [json.loads(line) for line in file]


def same(folder, other):
    """Bit for bit the same log, weights and samples."""
    ours, theirs = weights(folder), weights(other)
    return (
        without_clock(metrics(folder)) == without_clock(metrics(other))
        and all(torch.equal(ours[name], theirs[name]) for name in theirs)
        and all(
            samples(folder, row["step"]) == samples(other, row["step"])
            for row in metrics(other)[1:]
        )
    )


# ---- What a run leaves behind ------------------------------------------------------------------------


def test_a_run_and_its_files(tmp_path, capsys):
    folder = run(tmp_path, *LUCK, "--steps", "5")
    out = capsys.readouterr().out
    assert re.fullmatch(
        r"held-out accuracy [01]\.\d{3} -> [01]\.\d{3} \(greedy, n=20\) in \d+ s; model in "
        + re.escape(str(folder / "final")),
        out.strip().splitlines()[-1],
    )
    assert max(len(line) for line in out.splitlines() if re.match(" +[0-9]", line)) <= 100
    rows = metrics(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all({"reward", "accuracy", "completion_length"} <= row.keys() for row in rows)
    assert [row["step"] for row in rows if "eval_accuracy" in row] == [0, 3, 5]
    rewards = [row["reward"] for row in samples(folder, 2)]
    assert len(rewards) == 16 and sum(rewards) / 16 == pytest.approx(rows[2]["reward"])
    assert samples(folder, 5)[0].keys() >= {
        "problem",
        "completion",
        "reward",
        "advantage",
        "finished",
        "parts",
    }
    _, tokenizer = load(ranks.base())
    for row in samples(folder, 5):  # every token with its log-prob
        assert tokenizer.decode(row["ids"]) == row["completion"]
        assert len(row["logps"]) == len(row["ids"]) == row["length"] and max(row["logps"]) <= 0
    config = json.loads((folder / "config.json").read_text())
    flags = config["flags"]
    assert flags["steps"] == 5 and flags["lr"] == train.TINY["lr"]
    assert os.path.samefile(folder / flags["model"], ranks.base())  # relative to the run
    assert config["starts"][0]["step"] == 0 and config["versions"].keys() >= {
        "python",
        "torch",
        "git",
    }
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step_000004",
        "step_000005",
    ]
    for part in ("final", "best"):
        assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= {
            path.name for path in (folder / part).iterdir()
        }
    model, tokenizer = load(folder / "final")
    assert tokenizer.decode(tokenizer.encode("3+4=7")) == "3+4=7"
    assert not any("kl" in row for row in rows)  # nobody asked for it


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    seeds = {"a": "1", "b": "1", "c": "2", "d": str(10**20)}
    a, b, c, _ = (
        run(tmp_path, *LUCK, "--steps", "3", "--seed", seed, name=name)
        for name, seed in seeds.items()
    )
    assert same(a, b) and without_clock(metrics(a)) != without_clock(metrics(c))


def test_it_learns_the_form_of_an_answer_from_random_weights(tmp_path):
    """The first plateau of one-digit: a digit, then the end; one in ten is then right by luck. Then it goes on."""
    folder = run(
        tmp_path,
        "--steps",
        "16",
        "--prompts-per-step",
        "64",
        "--num-samples",
        "16",
        "--lr",
        "4e-3",
        "--eval-every",
        "60",
        "--save-every",
        "60",
    )
    rewards = [row["reward"] for row in metrics(folder)[1:]]
    assert sum(rewards[:2]) / 2 < 0.03 and sum(rewards[-3:]) / 3 > 0.12


def test_the_learning_rate_by_hand(tmp_path):
    """10 steps, --lr 1: a fifth more in each of the first 5, on a cosine from 1 to 0.1; half-way down it is 0.55."""
    rows = metrics(run(tmp_path, *LUCK, "--steps", "10", "--lr", "1e-3", "--eval-every", "10"))[1:]
    decay = [0.55 + 0.45 * math.cos(math.pi * step / 10) for step in range(1, 11)]
    rise = [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 1]
    assert [row["lr"] for row in rows] == pytest.approx([1e-3 * d * r for d, r in zip(decay, rise)])
    assert rows[4]["lr"] == pytest.approx(0.55e-3) and rows[9]["lr"] == pytest.approx(1e-4)


def test_updates_on_the_same_batch_clip_and_a_reference_pulls(tmp_path):
    rows = metrics(
        run(
            tmp_path,
            *LUCK,
            "--steps",
            "2",
            "--updates-per-batch",
            "3",
            "--clip",
            "0.001",
            "0.002",
            "--lr",
            "5e-3",
            "--kl-coef",
            "0.1",
        )
    )
    assert (
        rows[1]["clipped"] > 0 and rows[1]["kl"] == pytest.approx(0, abs=1e-6) and rows[2]["kl"] > 0
    )


# ---- Stop and resume ---------------------------------------------------------------------------------


def command(tmp_path, *flags):
    return [sys.executable, "train.py", *FAST, *LUCK, "--runs", str(tmp_path), *flags]


def test_ctrl_c_then_resume_equals_an_uninterrupted_run(tmp_path):
    whole = run(tmp_path, *LUCK, "--steps", "40", "--save-every", "100", name="whole")
    process = subprocess.Popen(
        command(tmp_path, "--steps", "40", "--save-every", "100", "--name", "cut"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    path = tmp_path / "cut" / "metrics.jsonl"
    deadline = time.time() + 120
    while not (path.exists() and len(path.read_text().splitlines()) > 4) and time.time() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    stopped = len(metrics(tmp_path / "cut")) - 1
    assert 3 < stopped < 40 and f"step {stopped} is saved" in output
    assert re.search("python train.py --resume .*--name cut", output) and process.returncode != 0
    with open(path, "a") as file:  # as if it had been killed while a later row was written
        file.write(json.dumps({"step": stopped + 1, "reward": -1}) + "\n" + '{"step": 9, "rewa')
    resume(tmp_path, "--name", "cut")
    assert same(tmp_path / "cut", whole)
    starts = json.loads((tmp_path / "cut" / "config.json").read_text())["starts"]
    assert [start["step"] for start in starts] == [0, stopped]  # and the commit of each


def test_resume_goes_on_to_more_steps(tmp_path, capsys):
    folder = run(tmp_path, *LUCK, "--steps", "4")
    resume(tmp_path, "--steps", "6")
    assert "after step 4 of 6" in capsys.readouterr().out
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3, 4, 5, 6]
    assert json.loads((folder / "config.json").read_text())["flags"]["steps"] == 6


def test_given_is_given_though_it_is_the_default(tmp_path, monkeypatch):
    """100 steps are what a new run makes; --steps 100 on resume is no less an order than --steps 99. And a run made with
    --device cpu goes on there, where a better one is found."""
    run(tmp_path, "--steps", "2")
    assert train.parse_args(["--resume", "--runs", str(tmp_path), "--steps", "100"]).steps == 100
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    flags = train.parse_args(["--resume", "--runs", str(tmp_path)])
    assert (flags.steps, flags.device) == (2, "cpu")
    assert (
        train.parse_args(["--resume", "--runs", str(tmp_path), "--device", "mps"]).device == "mps"
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--steps", "3"], "has already made 4 steps"),
        (["--lr", "1"], "leave out (--)?lr\n"),
        (["--save-every", "9", "--reward", "boxed"], "leave out (--)?reward, (--)?save-every"),
        (["--task", "one-digit"], "leave out (--)?task"),
        (["--name", "nope"], "there is no run nope"),
    ],
)
def test_what_cannot_be_given_anew_is_refused_by_name_and_nothing_is_written(
    tmp_path, capsys, flags, message
):
    folder = run(tmp_path, "--steps", "4")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit):
        resume(tmp_path, *flags)
    assert re.search(message, capsys.readouterr().err)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "nope").exists()
    resume(tmp_path, "--steps", "5")  # and it can still go on


def flip(checkpoint):
    """Change one bit of its weights."""
    path = max(checkpoint.iterdir(), key=os.path.getsize)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_checkpoint_with_a_flipped_bit_is_not_used_but_the_one_before(tmp_path, capsys):
    """One bit of one weight would go unnoticed, and then into final/."""
    whole = run(tmp_path, *LUCK, "--steps", "6", name="whole")
    folder = run(tmp_path, *LUCK, "--steps", "6")
    flip(folder / "checkpoints" / "step_000006")
    resume(tmp_path, "--name", "run")
    out = capsys.readouterr().out
    assert (
        "step_000006 cannot be used" in out and "after step 4 of 6" in out and same(folder, whole)
    )


def test_resume_does_not_start_over_when_there_are_logs_but_no_checkpoint(tmp_path):
    """All are damaged, or somebody has deleted checkpoints/ to make room: the logs stay."""
    folder = run(tmp_path, *LUCK, "--steps", "4")
    before = (folder / "metrics.jsonl").read_bytes()
    for damage in (
        lambda: [flip(path) for path in folder.glob("checkpoints/*")],
        lambda: [path.unlink() for path in folder.glob("checkpoints/*/progress.json")],
        lambda: shutil.rmtree(folder / "checkpoints"),
    ):
        damage()
        with pytest.raises(
            ModelError, match="logged 4 steps, but no checkpoint is there or can be used"
        ):
            resume(tmp_path)
        assert (folder / "metrics.jsonl").read_bytes() == before and len(samples(folder, 4)) == 16


def test_resume_of_a_run_that_was_killed_before_its_first_checkpoint_starts_over(tmp_path):
    folder = run(tmp_path, *LUCK, "--steps", "3", "--save-every", "100")
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "final")
    first = without_clock(metrics(folder))
    resume(tmp_path)
    assert without_clock(metrics(folder)) == first


def test_resume_of_a_run_that_is_complete_says_its_last_line_again(tmp_path, capsys):
    folder = run(tmp_path, "--steps", "2")
    last = capsys.readouterr().out.strip().splitlines()[-1].partition(" in ")[0]
    shutil.rmtree(folder / "final")
    resume(tmp_path)
    assert (
        capsys.readouterr().out.strip().splitlines()[-1].startswith(last)
        and (folder / "final").exists()
    )


def test_a_run_can_be_moved_and_goes_on_from_any_folder(tmp_path, monkeypatch):
    """Paths in config.json are relative to the run: here the runs, the model and the reward move together."""
    (tmp_path / "a" / "sub").mkdir(parents=True)
    shutil.copytree(ranks.base(), tmp_path / "a" / "base")
    (tmp_path / "a" / "moved_reward.py").write_text(
        "def luck(text, problem):\n    return len(text) % 2, {}\n"
    )
    monkeypatch.chdir(tmp_path / "a")
    flags = [
        *FAST,
        "--model",
        "base",
        "--runs",
        "r",
        "--name",
        "run",
        "--reward",
        "moved_reward.py:luck",
    ]
    train.main([*flags, "--steps", "4"])
    train.main([*flags, "--steps", "2", "--name", "half"])
    (tmp_path / "a").rename(tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b" / "sub")
    monkeypatch.delitem(sys.modules, "moved_reward")
    resume("../r", "--name", "half", "--steps", "4")
    assert len(metrics(tmp_path / "b" / "r" / "half")) == 5


def test_data_that_have_changed_since_are_noticed(tmp_path):
    rows = [
        json.dumps({"problem": f"{i}+{j}=", "answer": str((i + j) % 10)})
        for i in range(10)
        for j in range(10)
    ]
    data = tmp_path / "sums.jsonl"
    data.write_text("\n".join(rows))
    folder = run(tmp_path, "--steps", "2", "--task", str(data))
    before = (folder / "config.json").read_bytes()
    data.write_text("\n".join([*rows[:-1], '{"problem": "9+9=", "answer": "18"}']))
    with pytest.raises(verifiers.DataError, match="its problems have changed since"):
        resume(tmp_path, "--steps", "4")
    assert (folder / "config.json").read_bytes() == before and len(metrics(folder)) == 3
    data.write_text("\n".join(rows))
    resume(tmp_path, "--steps", "4")


@pytest.mark.parametrize(
    "file, text, message",
    [
        ("config.json", '{"flags": {', "config.json is damaged"),
        ("config.json", "[]", "config.json is damaged"),
        ("config.json", '{"flags": {"steps": 4}}', "config.json is damaged or of another version"),
        ("config.json", b"\xff\xfe", "config.json is damaged"),
        ("metrics.jsonl", '{"step": 0\n{"step": 1, "reward": 0}\n', "metrics.jsonl, line 1"),
        ("metrics.jsonl", "[1]\n", "metrics.jsonl"),
        ("metrics.jsonl", b"\xff\xfe\n{}", "metrics.jsonl"),
    ],
)
def test_damaged_files_of_a_run_are_named(tmp_path, capsys, file, text, message):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    flags = {**vars(train.parse_args([*FAST, "--runs", str(tmp_path)])), "name": "run"}
    (tmp_path / "run" / "config.json").write_text(
        json.dumps({"flags": flags, "starts": [], "data": ""})
    )
    (tmp_path / "run" / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((SystemExit, verifiers.DataError)) as raised:
        resume(tmp_path)
    assert message in str(raised.value) + capsys.readouterr().err


# ---- The folder of a run -----------------------------------------------------------------------------


def test_an_existing_run_is_not_overwritten(tmp_path, capsys):
    folder = run(tmp_path, "--steps", "1")
    before = (folder / "config.json").read_bytes()
    with pytest.raises((SystemExit, ModelError)) as refused:
        run(tmp_path, "--steps", "1")
    said = str(refused.value) + capsys.readouterr().err
    assert "exists: go on with it by --resume, or choose another --name" in said
    assert (folder / "config.json").read_bytes() == before


def test_two_runs_that_start_in_the_same_second_have_two_folders(tmp_path):
    started = [
        ranks.start(1, ranks.main, *FAST, "--runs", str(tmp_path), "--steps", "1") for _ in range(2)
    ]
    assert [queue.get(timeout=60)[1] for _, queue in started] == [None, None]
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2 and [len(metrics(folder)) for folder in folders] == [2, 2]


def test_a_run_that_is_in_use_says_by_whom(tmp_path):
    """A second process must not resume into a living run; of a dead one nothing stays locked."""
    folder = run(tmp_path, "--steps", "2")
    processes, _ = ranks.start(
        1, slow, 0.5, "--resume", "--runs", str(tmp_path), "--name", "run", "--steps", "50"
    )
    deadline = time.time() + 60
    while len(metrics(folder)) < 4 and time.time() < deadline:
        time.sleep(0.05)
    before = len(metrics(folder))
    with pytest.raises(ModelError, match=f"in use by process {processes[0].pid} on "):
        resume(tmp_path)
    assert processes[0].is_alive() and len(metrics(folder)) >= before
    processes[0].kill()
    processes[0].join()
    resume(tmp_path, "--steps", "6" if len(metrics(folder)) < 7 else "60")


def slow(seconds, *flags):
    """A run whose steps take at least so long, so that it can be disturbed."""
    ordinary = train.roll_out
    train.roll_out = lambda *args, **kwargs: (time.sleep(seconds), ordinary(*args, **kwargs))[1]
    return ranks.main(*flags)


# ---- Functions of one's own --------------------------------------------------------------------------

PLUGINS = '''
import json
import torch
from verifiers import Task

SEEN = []

def terse(completion, problem):
    """+-1 and beyond, no parts at all; a training step is known, an evaluation has none."""
    SEEN.append(problem.get("step"))
    return (2.0 if len(completion) < 2 else -1), {}

def parted(completion, problem):
    return float(len(completion) == 1), {"accuracy": 0.5, "digits": sum(map(str.isdigit, completion))}

def countdown():
    problems = [{"problem": f"{i}+{j}=", "answer": "x", "level": i} for i in range(10) for j in range(10)]
    reward = lambda completion, problem: (len(completion) % 2, {"answered": 1.0, "level": problem["level"]})
    return Task("countdown", problems[10:], problems[:10], "0={problem}", reward, stops=("+",))

def by_digits(rewards, rollouts, parts, flags):
    """The reward's own part as the baseline; one dict a row, the flags at hand."""
    assert len(parts) == rewards.numel() == len(rollouts.lengths) and flags.num_samples == rewards.size(1)
    return rewards - torch.tensor([part["digits"] for part in parts]).view_as(rewards) / flags.max_new_tokens

def reinforce(logp, old_logp, advantages, weights, clip, sampled_logp, ref_logp, kl_coef):
    assert logp.shape == old_logp.shape == sampled_logp.shape == weights.shape and ref_logp is None
    return -(weights * advantages[:, None] * logp).sum()

class Climber:
    """Any object that can be called: always the problem least often visited; counts its own calls."""
    def __call__(self, problems, step, memory, flags):
        memory["calls"] = memory.get("calls", 0) + 1
        assert memory["calls"] == step
        few = sorted(range(len(problems)), key=lambda i: (len(memory["visits"].get(str(i), [])), i))
        return few[:3 if step % 2 else 5]                   # fewer or more than --prompts-per-step

climb = Climber()

def note(run, flags):
    def write(row):
        with open(run / "noted", "a") as file:
            print(json.dumps(row), file=file)
    return write

def bursting(logp, old_logp, advantages, weights, clip, sampled_logp, ref_logp, kl_coef):
    """A number in the first update of a batch, none in the second."""
    return (weights * logp).sum() * (1 if torch.equal(logp.detach(), old_logp) else float("nan"))

def meddling(completion, problem):
    """Parts with names that are taken."""
    return 1.0 * (len(completion) % 2), {"step": 7, "reward": -3, "length": -3, "completion_length": -3, "answer": -3}

def worthless(rewards, **_):
    return rewards * float("nan")
'''


@pytest.fixture
def plugins(tmp_path):
    """A file of the user's, of another name in each test, as modules have."""
    path = tmp_path / f"plugins_{os.path.basename(tmp_path)}.py"
    path.write_text(PLUGINS)
    return str(path)


def test_a_reward_of_my_own_of_any_scale(tmp_path, plugins):
    """2 and -1 without parts: held-out accuracy is still what the task calls right, and no percentage is above 1."""
    folder = run(tmp_path, "--steps", "3", "--reward", f"{plugins}:terse")
    rows, paid = (
        metrics(folder),
        {row["reward"] for step in (1, 2, 3) for row in samples(folder, step)},
    )
    assert paid - {0} == {2, -1} and all(
        0 <= row["accuracy"] <= 1 for row in rows
    )  # 0: 2, but cut off
    assert all(
        0 <= row[f"eval_{kind}"] <= 1
        for row in rows
        if "eval_accuracy" in row
        for kind in ("accuracy", "low", "high", "sampled_accuracy")
    )
    module = sys.modules[os.path.basename(plugins)[:-3]]
    assert set(module.SEEN) == {None, 1, 2, 3}
    assert (
        "digits"
        in metrics(run(tmp_path, "--steps", "1", "--reward", f"{plugins}:parted", name="b"))[1]
    )


def test_a_task_of_my_own_with_its_stop_text(tmp_path, plugins):
    folder = run(
        tmp_path, "--steps", "2", "--task", f"{plugins}:countdown", "--max-new-tokens", "6"
    )
    rows = samples(folder, 2)
    assert not any("+" in row["completion"] for row in rows) and "level" in metrics(folder)[1]
    stopped = [
        row for row in rows if row["finished"] and row["length"] == len(row["completion"]) + 1
    ]
    assert stopped and all(row["problem"][0] != "0" for row in rows)  # those are held out


def test_a_file_of_problems_with_a_prompt_and_a_stop_of_my_own(tmp_path, capsys):
    data = tmp_path / "sums.jsonl"
    data.write_text(
        "".join(
            json.dumps({"problem": f"{i}+{j}=", "answer": str(i + j)}) + "\n"
            for i in range(10)
            for j in range(9)
        )
    )
    folder = run(
        tmp_path,
        "--steps",
        "2",
        "--task",
        str(data),
        "--prompt",
        "1+1=2{problem}",
        "--stop",
        "+",
        "=",
        "--max-new-tokens",
        "6",
    )
    assert "    1+1=2" in capsys.readouterr().out
    assert not any(set("+=") & set(row["completion"]) for row in samples(folder, 2))
    flags = json.loads((folder / "config.json").read_text())["flags"]
    assert flags["prompt"] == "1+1=2{problem}" and flags["stop"] == ["+", "="]
    resume(tmp_path, "--steps", "3")  # and both are kept
    assert not any(set("+=") & set(row["completion"]) for row in samples(folder, 3))


def test_an_advantage_and_a_loss_of_my_own(tmp_path, plugins, capsys):
    """Baseline: the number of digits / 4. REINFORCE has the gradient of ppo as long as nothing is clipped."""
    flags = ["--steps", "2", "--reward", f"{plugins}:parted", "--advantage", f"{plugins}:by_digits"]
    folder = run(tmp_path, *flags)
    for row in samples(folder, 2):
        assert row["advantage"] == pytest.approx(row["reward"] - row["parts"]["digits"] / 4)
    shown = re.findall(
        r"R (\S+)  A (\S+)  '(.*)'", capsys.readouterr().out
    )  # the preflight's two completions
    assert len(shown) == 2
    for R, A, text in shown:
        assert float(A) == pytest.approx(float(R) - sum(map(str.isdigit, text)) / 4, abs=0.011)
    other = run(tmp_path, *flags, "--loss", f"{plugins}:reinforce", name="other")
    ours, theirs = weights(folder), weights(other)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)
    assert metrics(folder)[1]["loss"] != metrics(other)[1]["loss"]


def test_a_log_of_my_own_sees_every_row_once(tmp_path, plugins):
    """Also the evaluation before the first step; a resumed run may name another, and it sees only what is new."""
    folder = run(tmp_path, *LUCK, "--steps", "2", "--log", f"{plugins}:note")
    assert [json.loads(line) for line in (folder / "noted").read_text().splitlines()] == metrics(
        folder
    )
    (folder / "noted").unlink()
    resume(tmp_path, "--name", "run", "--steps", "4", "--log", f"{plugins}:note")
    assert (folder / "noted").read_text() == "".join(
        (folder / "metrics.jsonl").read_text().splitlines(True)[3:]
    )


def test_tensorboard_is_sent_every_number_of_every_row(tmp_path):
    """What its own reader finds in the event files are the numbers of metrics.jsonl, to six digits: it keeps floats."""
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed: pip install tensorboard"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = ["--log", f"{ROOT}/notebooks/sinks.py:tensorboard"]
    folder = run(tmp_path, *LUCK, *sink, "--steps", "2", "--train-problems", "10")
    resume(tmp_path, "--name", "run", "--steps", "3", *sink)  # a second event file beside the first
    events, logged = EventAccumulator(str(folder / "tensorboard")).Reload(), {}
    for row in metrics(folder):
        for name in [name for name, value in row.items() if isinstance(value, (int, float))]:
            logged.setdefault(name, []).append(
                (row["step"], pytest.approx(row[name], rel=1e-6, nan_ok=True))
            )
    found = {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    assert found == logged
    assert (
        [step for step, _ in found["reward"]] == [0, 1, 2, 3] == [step for step, _ in found["step"]]
    )
    assert [step for step, _ in found["eval_accuracy"]] == [0, 2, 3] and [
        step for step, _ in found["lr"]
    ] == [1, 2, 3]


def test_a_picker_of_my_own_and_its_memory_survive_a_resume_bit_for_bit(tmp_path, plugins):
    flags = [*LUCK, "--pick", f"{plugins}:climb"]
    whole = run(tmp_path, "--steps", "6", *flags, name="whole")
    assert [len(samples(whole, step)) for step in range(1, 7)] == [12, 20, 12, 20, 12, 20]
    progress = json.loads((whole / "checkpoints" / "step_000006" / "progress.json").read_text())
    assert progress["memory"]["calls"] == 6 and len(progress["memory"]["visits"]) == 3 * 8
    folder = run(tmp_path, "--steps", "6", *flags)
    flip(folder / "checkpoints" / "step_000006")  # so it goes on from step 4
    resume(tmp_path, "--name", "run")
    assert same(folder, whole)


def test_visits_are_those_of_each_problem_even_when_a_step_sees_one_twice(tmp_path):
    """3 problems, 4 a step: after 3 steps each was seen 4 times, and the last 3 means are kept."""
    folder = run(tmp_path, *LUCK, "--steps", "3", "--train-problems", "3", "--save-every", "3")
    memory = json.loads((folder / "checkpoints" / "step_000003" / "progress.json").read_text())[
        "memory"
    ]
    assert sorted(memory["visits"]) == ["0", "1", "2"] and all(
        len(v) == 3 for v in memory["visits"].values()
    )


def test_what_cannot_be_found_or_does_not_fit_is_said_before_the_model_is_loaded(tmp_path, plugins):
    for flag, name, message in (
        ("--loss", "pp0", "there is no --loss 'pp0'.*choose"),
        ("--pick", f"{plugins}:climbb", "there is no --pick 'climbb' in"),
        ("--advantage", "nofile.py:f", "there is no such Python file"),
        ("--reward", "bxoed", "there is no reward 'bxoed'.*boxed"),
    ):
        with pytest.raises(verifiers.DataError, match=message):
            run(tmp_path, "--steps", "1", flag, name, "--model", "no/model", name="r")
        assert not (tmp_path / "r").exists()


def test_a_loss_that_is_not_a_number_stops_the_run_and_loses_nothing(tmp_path, plugins):
    """From step 3 on: the weights saved are those after step 2, and the batch can be looked at."""
    folder = run(tmp_path, *LUCK, "--steps", "2", "--save-every", "50")
    config = json.loads((folder / "config.json").read_text())
    config["flags"]["advantage"] = f"{plugins}:worthless"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        SystemExit, match="step 3 has loss and gradient norm .nan.*Try a lower --lr"
    ):
        resume(tmp_path, "--steps", "9")
    (batch,) = folder.glob("bad_batch*.pt")
    assert torch.load(batch, weights_only=True)["advantages"].isnan().any()
    model = load(ranks.base())[0]
    assert train.load_checkpoint(folder, model, adamw(model))[0] == 2
    assert all(weight.isfinite().all() for weight in model.parameters())
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2]


def test_weights_that_a_second_update_has_spoilt_are_not_saved(tmp_path, plugins):
    """The first of two updates has moved them, the second has no loss: the checkpoint of step 2 stays as it was."""
    folder = run(tmp_path, *LUCK, "--steps", "2", "--updates-per-batch", "2", "--save-every", "50")
    config = json.loads((folder / "config.json").read_text())
    config["flags"]["loss"] = f"{plugins}:bursting"
    (folder / "config.json").write_text(json.dumps(config))
    (saved,) = folder.glob("checkpoints/*/progress.json")
    before = saved.read_text()  # with the hashes of all files
    with pytest.raises(SystemExit, match="step 3 has loss and gradient norm .nan"):
        resume(tmp_path, "--steps", "9")
    assert [*folder.glob("checkpoints/*/progress.json")] == [saved] and saved.read_text() == before


def test_parts_of_a_reward_do_not_replace_what_the_core_writes(tmp_path, plugins):
    folder = run(tmp_path, "--reward", f"{plugins}:meddling", "--steps", "2")
    rows, said = metrics(folder), samples(folder, 2)
    assert [row["step"] for row in rows] == [0, 1, 2] and min(row["reward"] for row in rows) >= 0
    assert rows[2]["completion_length"] == sum(row["length"] for row in said) / 16
    assert (
        rows[2]["eval_length"] > 0
        and said[0]["answer"].isdigit()
        and said[0]["parts"]["answer"] == -3
    )


def test_a_reward_of_the_core_stays_one_beside_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exact").mkdir()
    folder = run(
        tmp_path,
        "--reward",
        "exact",
        "--prompts-per-step",
        "16",
        "--num-samples",
        "2",
        "--steps",
        "1",
    )
    assert json.loads((folder / "config.json").read_text())["flags"]["reward"] == "exact"
    resume(tmp_path, "--steps", "2")
    assert metrics(folder)[-1]["step"] == 2


def test_the_kl_cap_stops_a_run_and_no_resume_goes_a_step_further(tmp_path):
    flags = ["--steps", "30", "--kl-cap", "1e-6", "--lr", "1e-2"]
    with pytest.raises(SystemExit, match="above --kl-cap 1e-06"):
        run(tmp_path, *LUCK, *flags)
    steps = len(metrics(tmp_path / "run"))
    assert steps < 10
    for _ in range(2):
        with pytest.raises(SystemExit, match="above --kl-cap 1e-06"):
            resume(tmp_path)
        assert len(metrics(tmp_path / "run")) == steps


# ---- Preflight ---------------------------------------------------------------------------------------


def test_the_preflight_leaves_the_run_bitwise_unchanged(tmp_path, monkeypatch, capsys):
    flags = ["--steps", "3", "--prompts-per-step", "64", "--num-samples", "16", "--lr", "1e-3"]
    with_it = run(tmp_path, *flags, name="with")
    assert "preflight: of 1024 completions" in capsys.readouterr().out
    monkeypatch.setattr(train, "preflight", lambda *args: None)
    without = run(tmp_path, *flags, name="without")
    assert metrics(without)[-1]["trained"] and same(with_it, without)


HOPELESS = """
def never(text, problem):
    return 0.0, {}
def always(text, problem):
    return 1.0, {"accuracy": 1}
def broken(text, problem):
    return 1 / 0
def off_by_far(text, problem):
    return 1.0, {"accuracy": 7}
"""


@pytest.mark.parametrize(
    "name, stop, message",
    [
        ("never", True, "unequal rewards.*easier"),
        ("always", True, "unequal rewards.*harder"),
        ("broken", True, "the verifier fails on 100%"),
        ("off_by_far", True, "the verifier fails on 100%"),
        ("always", False, "cut off.*--max-new-tokens.*--stop"),
    ],
)
@pytest.mark.filterwarnings("ignore:the verifier failed")
def test_a_hopeless_run_stops_with_a_reason(tmp_path, name, stop, message, capsys):
    """16 completions are too few to give up, unless the verifier fails on all of them; 64 are not."""
    path = tmp_path / f"hopeless_{name}_{stop}.py"
    path.write_text(HOPELESS)
    flags = ["--steps", "1", "--reward", f"{path}:{name}"]
    # An untrained model seldom ends in time: so any digit ends a completion, or nothing does.
    flags += ["--stop", *"?0123456789+="] if stop else ["--model", str(ROOT / "notebooks" / "tiny")]
    if name not in ("broken", "off_by_far"):
        run(tmp_path, *flags, name="few")
        assert re.search(f"warning: .*({message})", capsys.readouterr().out, re.S)
    with pytest.raises(SystemExit, match=message):
        run(tmp_path, *flags, "--num-samples", "16", name="many")
    assert not (tmp_path / "many").exists()


def test_problems_that_are_too_long_for_the_model_are_left_out_and_counted(tmp_path, capsys):
    """1,024 positions, 4 of them for the completion. A prompt of 2,000 once hung the preflight."""
    rows = [
        {"problem": f"{i}+{j}=", "answer": str((i + j) % 10)} for i in range(10) for j in range(10)
    ]
    rows += [{"problem": "1+" * 1000 + f"{i}=", "answer": "0"} for i in range(200)]
    data = tmp_path / "long.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(tmp_path, "--steps", "1", "--task", str(data))
    left_out = re.findall(r"(\d+) problems to (\w+) on are left out", capsys.readouterr().out)
    assert sum(int(count) for count, _ in left_out) == 200
    data.write_text("".join(json.dumps(row) + "\n" for row in rows[100:]))
    with pytest.raises(verifiers.DataError, match="has no problem to train on"):
        run(tmp_path, "--steps", "1", "--task", str(data), name="none")


# ---- Optimiser ---------------------------------------------------------------------------------------


def adamw(model):
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def test_a_checkpoint_holds_all_that_the_optimiser_knows(tmp_path):
    """Three steps, a checkpoint, three more: the same weights, bit for bit, in the model that was saved as in another
    that read it. Its memory comes back as JSON."""
    torch.manual_seed(0)
    gradients = [
        [torch.randn(p.shape) for p in load(ranks.base())[0].parameters()] for _ in range(6)
    ]

    def steps(model, optimizer, some):
        for gradient in some:
            for param, values in zip(model.parameters(), gradient):
                param.grad = values.clone()
            optimizer.param_groups[0]["lr"] = 1e-3
            optimizer.step()

    model, other = (load(ranks.base())[0] for _ in range(2))
    optimizer, again, memory = adamw(model), adamw(other), {"next": 7, "visits": {"3": [0.5]}}
    steps(model, optimizer, gradients[:3])
    train.save_checkpoint(tmp_path, 3, model, optimizer, memory)
    assert train.load_checkpoint(tmp_path, other, again) == (3, memory)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters()))
    steps(model, optimizer, gradients[3:])
    steps(other, again, gradients[3:])
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters()))


def test_two_checkpoints_are_kept(tmp_path):
    model = load(ranks.base())[0]
    for step in (1, 2, 3):
        train.save_checkpoint(tmp_path, step, model, adamw(model), {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_000002",
        "step_000003",
    ]


def test_bf16_is_for_computing_only(tmp_path, monkeypatch):
    """What a GPU does, on the CPU. At --lr 1e-6 nearly every change of a bf16 weight of 0.02 rounds to nothing; the
    fp32 weights move. Sampler and trainer agree to bf16's rounding, and final/ is in bf16."""
    monkeypatch.setattr(
        train, "pick_device", lambda wanted=None: ("cpu", torch.bfloat16, "as on a GPU")
    )
    folder = run(tmp_path, *LUCK, "--steps", "2", "--lr", "1e-6")
    base, model = (load(ranks.base())[0] for _ in range(2))
    assert train.load_checkpoint(folder, model, adamw(model))[0] == 2
    for name, weight in model.named_parameters():
        moved = (weight - base.get_parameter(name)).abs()
        assert weight.dtype == torch.float32 and 0 < moved.max() < 3e-6
        lost = weight.bfloat16() == base.get_parameter(name).bfloat16()
        assert weight.ndim == 1 or lost.float().mean() > 0.9
    assert {weight.dtype for weight in weights(folder).values()} == {torch.bfloat16}
    trained = [row for row in metrics(folder)[1:] if row["trained"]]
    assert trained and all(0 <= row["mismatch"] < 0.05 for row in trained)


def test_a_batch_without_signal_moves_nothing(tmp_path):
    """Adam's momentum would, all the same: here the rewards are equal from step 3 on."""
    path = tmp_path / "nothing_left.py"
    path.write_text(
        "def spent(text, problem):\n"
        "    return (len(text) % 2 if problem.get('step', 1) < 3 else 0), {}\n"
    )
    short = run(tmp_path, "--steps", "2", "--reward", f"{path}:spent", name="short")
    resume(tmp_path, "--name", "short", "--steps", "5")
    rows = metrics(short)
    assert rows[2]["trained"] > 0 and [row["trained"] for row in rows[3:]] == [0, 0, 0]
    assert [row["grad_norm"] for row in rows[3:]] == [0, 0, 0]
    before, after = load(ranks.base())[0], load(ranks.base())[0]
    train.load_checkpoint(short, after, adamw(after))
    shutil.rmtree(short / "checkpoints" / "step_000005")
    train.load_checkpoint(short, before, adamw(before))  # of step 4
    assert all(torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters()))


# ---- Problems, flags ---------------------------------------------------------------------------------


def test_every_problem_comes_once_per_epoch_in_a_new_order():
    def pick(step, seed, n=10, P=4):
        return train.every_problem(
            range(n), step, {}, SimpleNamespace(prompts_per_step=P, seed=seed)
        )

    steps = [pick(step, seed=0) for step in range(1, 11)]
    seen = [problem for step in steps for problem in step]
    epochs = [seen[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs) and epochs[0] != epochs[1]
    assert pick(7, seed=0) == steps[6] != pick(7, seed=1)
    assert sorted(pick(1, 0, n=3, P=6)) == [0, 0, 1, 1, 2, 2]  # fewer problems than a step sees


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--num-samples", "1"], "--num-samples is 1"),
        (["--steps", "0"], "--steps is 0"),
        (["--temperature", "0"], "--temperature is 0"),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--lr", "nan"], "--lr is nan"),
        (["--lr", "-1"], "--lr is -1"),
        (["--lr", "inf"], "--lr is inf"),
        (["--kl-coef", "-1"], "--kl-coef is -1"),
        (["--kl-cap", "0"], "--kl-cap is 0"),
        (["--clip", "1.5", "0.2"], "--clip"),
        (["--clip", "0.2", "nan"], "--clip"),
        (["--eval-every", "0"], "--eval-every is 0"),
        (["--train-problems", "0"], "--train-problems is 0"),
        (["--resume", "--runs", "nowhere"], "there is no run"),
        (["--loss-norm", "median"], "invalid choice: 'median'"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--num-sample", "4"], "unrecognized arguments: --num-sample"),  # no abbreviations
        (["--steps", "ten"], "--steps: invalid int value"),
        (["--fsdp"], "torchrun"),
    ],
)
def test_bad_flags_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        train.parse_args(flags)
    assert message in capsys.readouterr().err


def test_a_sharded_model_is_not_compiled(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert train.parse_args(["--fsdp"]).fsdp
    with pytest.raises(SystemExit):
        train.parse_args(["--fsdp", "--compile"])
    assert "without --compile" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it is there")
def test_a_device_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ModelError, match="finds no cuda"):
        run(tmp_path, "--steps", "1", "--device", "cuda")
    assert not (tmp_path / "run").exists()


def test_defaults_follow_the_machine(monkeypatch):
    flags = train.parse_args(["--device", "cpu"])
    assert (
        flags.model.endswith("notebooks/tiny")
        and flags.task == "arithmetic"
        and flags.prompts_per_step == 8
    )
    assert train.parse_args(["--device", "cpu", "--task", "math"]).model == "Qwen/Qwen3-0.6B-Base"
    monkeypatch.setattr(
        train, "pick_device", lambda wanted=None: ("cuda", torch.bfloat16, "a GPU with bf16")
    )
    flags = train.parse_args([])
    assert (flags.model, flags.task) == ("Qwen/Qwen3-0.6B-Base", "math")
    assert flags.max_new_tokens == train.LARGE["max_new_tokens"]
    assert train.parse_args(["--task", "arithmetic"]).model.endswith("notebooks/tiny")


def test_every_flag_is_a_field_with_its_comment(capsys):
    """One dataclass: --help prints the comments and the defaults; at most 33 of them."""
    with pytest.raises(SystemExit):
        train.parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.partition("options:")[2].split())
    names = [field.name for field in train.fields(train.Flags)]
    assert len(names) <= 33
    for name in names:
        about = text.partition(f"--{name.replace('_', '-')} ")[2]
        assert len(about.split(" --")[0]) > 10, name
    for key, value in train.TINY.items():  # of a tiny model other defaults
        assert f"(default: {train.LARGE[key]}; tiny {value})" in text, key


def test_flags_from_a_file(tmp_path):
    """@FILE: several flags a line, quotes as in a shell, # starts a comment; what comes later on the line wins."""
    (tmp_path / "recipe.txt").write_text(
        "# DAPO, 2503.14476\n--clip 0.2 0.28   # clip-higher\n\n"
        "--loss-norm token --prompt 'Say {problem} # now'\n--steps 9\n"
    )
    flags = train.parse_args([f"@{tmp_path}/recipe.txt", "--steps", "7", "--device", "cpu"])
    assert (flags.clip, flags.prompt, flags.steps) == ([0.2, 0.28], "Say {problem} # now", 7)


def test_what_everybody_types_still_means_the_same():
    flags = train.parse_args(
        "--steps 7 --seed 3 --name n --runs r --eval-every 2 --eval-problems 5 --save-every 4 "
        "--device cpu".split()
    )
    assert (flags.steps, flags.seed, flags.name, flags.runs) == (7, 3, "n", "r")
    assert (flags.eval_every, flags.eval_problems, flags.save_every) == (2, 5, 4)
