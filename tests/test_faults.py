"""Bad days: whatever kills a run, no more is lost than the steps since the last checkpoint, and the way on is said.
(Faults of one process among several are in test_ranks.py, of data in test_verifiers.py, of models in test_model.py.)"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ranks
import train
from conftest import ROOT
from model import Config, Qwen3
from ranks import main, metrics, weights

FLAGS = [
    "--model",
    ranks.base(),
    "--task",
    "one-digit",
    "--reward",
    ranks.COIN,
    "--device",
    "cpu",
    "--prompts-per-step",
    "4",
    "--num-samples",
    "8",
    "--max-new-tokens",
    "4",
    "--eval-every",
    "5",
    "--eval-problems",
    "9",
    "--save-every",
    "3",
    "--steps",
    "40",
    "--lr",
    "1e-3",
]


def saved(folder):
    return max((int(path.name[5:]) for path in folder.glob("checkpoints/step_*")), default=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs")
    assert ranks.run(1, main, *FLAGS, "--runs", str(folder), "--name", "whole") == [None]
    return folder / "whole"


def same_as(whole, folder):
    return metrics(folder) == metrics(whole) and torch.equal(weights(folder), weights(whole))


# ---- kill -9 ---------------------------------------------------------------------------------------------------------


def test_killed_at_twenty_random_moments_it_ends_as_if_nothing_had_happened(whole):
    """Every second time at its start, else soon after two more steps are logged; the last time it is left alone. The
    checkpoint is always at most 3 steps behind the log. (A folder in which there is nothing yet is not a run.)"""
    folder, rng, flags = whole.with_name("killed"), random.Random(0), [*FLAGS, "--name", "killed"]
    reached = set()
    for turn in range(20):
        (process,), _ = ranks.start(1, main, *flags, "--runs", str(whole.parent))
        while turn % 2 and last_step(folder) < 2 * turn and process.is_alive():
            time.sleep(0.002)
        process.join(rng.uniform(0.0, 0.1))
        process.kill()
        process.join()
        if (folder / "config.json").exists():
            flags = ["--resume", "--name", "killed"]
            done = last_step(folder)
            reached.add(done)
            assert saved(folder) >= 3 * (done // 3) - 3 * (done % 3 == 0)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    assert len(reached) > 2 and ranks.run(1, main, *flags, "--runs", str(whole.parent)) == [None]
    assert same_as(whole, folder)


def last_step(folder):
    """Of the rows of the log that are whole."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []
    return max([row["step"] for row in rows], default=0)


def killed_in(name, when, *flags):
    """kill -9 this process in the middle of the n-th call of a function that train.py uses; of hash_of and rename in
    those of a checkpoint: that of step n."""
    calls, step, owner = [0], [0], Path if name == "rename" else train
    ordinary, save_checkpoint = getattr(owner, name), train.save_checkpoint

    def deadly(*args, **kwargs):
        calls[0] += 1
        if name == "hash_of" and step[0] == when:
            os.truncate(args[0], 1000)  # half of the file is there
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "rename" and args[1].name == f"step_{when:06d}":
            os.kill(os.getpid(), signal.SIGKILL)
        if name not in ("hash_of", "rename") and calls[0] == when:
            if name == "update_gradients":  # half of the gradient is there
                ordinary(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(*args, **kwargs)

    def saving(run, number, *rest):
        step[0] = number
        save_checkpoint(run, number, *rest)

    setattr(owner, name, deadly)
    train.save_checkpoint = saving
    main(*flags)


@pytest.mark.parametrize(
    "name, when, kept",
    [("roll_out", 13, 6), ("update_gradients", 8, 6), ("hash_of", 9, 6), ("rename", 6, 3)],
)
def test_killed_in_the_middle_of_sampling_update_and_save(whole, name, when, kept):
    """In step 8 (before it are the preflight and two evaluations, of two samplings each), in its update, in the
    checkpoint of step 9, and when that of step 6 is whole but not yet in its place."""
    folder = whole.with_name(name)
    (process,), _ = ranks.start(
        1, killed_in, name, when, *FLAGS, "--runs", str(whole.parent), "--name", name
    )
    process.join(60)
    assert process.exitcode == -signal.SIGKILL and saved(folder) == kept
    assert ranks.run(1, main, "--resume", "--runs", str(whole.parent), "--name", name) == [None]
    assert same_as(whole, folder) and not (folder / "checkpoints" / "partial").exists()


# ---- Signals -----------------------------------------------------------------------------------------


def slow_main(*flags):
    """Step 7 takes three seconds."""
    ordinary = train.roll_out

    def roll_out(*args, **kwargs):
        time.sleep(3 if kwargs["label"] == "step 7" else 0)
        return ordinary(*args, **kwargs)

    train.roll_out = roll_out
    return main(*flags)


@pytest.mark.parametrize(
    "signals, pause, said, step",
    [
        ([signal.SIGTERM], 0, "step 7 is saved", 7),
        ([signal.SIGTERM, signal.SIGTERM], 0.002, "step 7 is saved", 7),  # as `timeout` sends them
        ([signal.SIGINT, signal.SIGTERM, signal.SIGINT], 0.3, "step 7 is saved", 7),
        ([signal.SIGINT, signal.SIGINT], 1.2, "The last checkpoint is kept", 6),
    ],
    ids=["one", "timeout's two", "three within a second", "a second Ctrl-C"],
)
def test_a_signal_saves_the_running_step_and_a_later_one_leaves_at_once(
    whole, signals, pause, said, step
):
    name = f"signal-{len(signals)}-{pause}"
    (process,), queue = ranks.start(
        1, slow_main, *FLAGS, "--runs", str(whole.parent), "--name", name
    )
    deadline = time.time() + 60
    while last_step(whole.with_name(name)) < 6 and time.time() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)  # into the sampling of step 7
    for number in signals:
        os.kill(process.pid, number)
        time.sleep(pause)
    message = queue.get(timeout=60)[1]
    assert said in message and "python train.py --resume" in message and f"--name {name}" in message
    assert saved(whole.with_name(name)) == step
    assert ranks.run(1, main, "--resume", "--runs", str(whole.parent), "--name", name) == [None]
    assert same_as(whole, whole.with_name(name))


def interrupted_at_the_end(*flags):
    ordinary = train.export

    def export(model, tokenizer, directory, *rest):
        if directory.name == "final":
            os.kill(os.getpid(), signal.SIGINT)
        ordinary(model, tokenizer, directory, *rest)

    train.export = export
    return main(*flags)


def test_ctrl_c_while_the_final_model_is_written_does_not_lose_it(whole):
    """No step is left to be finished, so the run simply ends."""
    flags = [
        *FLAGS,
        "--steps",
        "3",
        "--eval-every",
        "9",
        "--runs",
        str(whole.parent),
        "--name",
        "end",
    ]
    (process,), queue = ranks.start(1, interrupted_at_the_end, *flags)
    assert (
        queue.get(timeout=60)[1] is None
        and (whole.with_name("end") / "final" / "model.safetensors").exists()
    )


# ---- Disks -------------------------------------------------------------------------------------------


def on_a_small_disk(size, *flags):
    """No file may grow beyond so many bytes: what a full disk says, without one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return main(*flags)


def test_a_full_disk_while_saving_keeps_the_last_checkpoint_and_says_what_to_do(whole):
    """The model takes 0.5 MB, a checkpoint 1.5 MB: the run gets as far as its first one, then there is more room. (The
    row of step 3 is in the log by then; it must not keep the run from going on.)"""
    flags = "--runs", str(whole.parent), "--name", "full"
    (said,) = ranks.run(1, on_a_small_disk, 1_000_000, *FLAGS, *flags)
    assert "cannot write the checkpoint" in said and "--resume" in said and "--name full" in said
    assert "free some space" in said  # torch words the reason itself, in one of several ways
    assert saved(whole.with_name("full")) == 0 and not any(
        whole.with_name("full").glob("checkpoints/*")
    )
    assert ranks.run(1, main, "--resume", *flags) == [None]
    assert same_as(whole, whole.with_name("full"))


def test_a_full_disk_while_the_model_is_exported_says_so_too(whole):
    """The best model, at step 5, has no room; the checkpoint of step 3 has (it is written in parts)."""
    flags = "--runs", str(whole.parent), "--name", "export"
    (said,) = ranks.run(1, small_from_step_4, *FLAGS, *flags)
    assert "best: cannot write the model" in said and "--name export" in said
    assert saved(whole.with_name("export")) == 3
    assert ranks.run(1, main, "--resume", *flags) == [None]
    assert same_as(whole, whole.with_name("export"))


def small_from_step_4(*flags):
    ordinary = train.save

    def save(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        ordinary(*args)

    train.save = save
    return main(*flags)


def full_log(*flags):
    """The log cannot take the row of step 7."""
    ordinary = train.append_rows

    def append(path, rows):
        if any(row["step"] == 7 for row in rows):
            raise OSError(28, "No space left on device", str(path))
        ordinary(path, rows)

    train.append_rows = append
    return main(*flags)


def test_a_full_disk_while_logging_says_how_to_go_on(whole):
    flags = "--runs", str(whole.parent), "--name", "log"
    (said,) = ranks.run(1, full_log, *FLAGS, *flags)
    assert "No space left on device" in said and "metrics.jsonl" in said and "--name log" in said
    assert ranks.run(1, main, "--resume", *flags) == [None]
    assert same_as(whole, whole.with_name("log"))


@pytest.mark.parametrize("damage", ["cut short", "one bit", "no progress", "unreadable progress"])
def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(whole, damage):
    folder = shutil.copytree(whole, whole.with_name(damage.replace(" ", "-")))
    last = folder / "checkpoints" / f"step_{saved(folder):06d}"
    part, progress = max(last.iterdir(), key=os.path.getsize), last / "progress.json"
    if damage == "cut short":
        os.truncate(part, part.stat().st_size - 1000)
    elif damage == "one bit":
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 64
        part.write_bytes(data)
    elif damage == "no progress":
        progress.unlink()
    else:
        progress.write_bytes(b"\xff{")
    assert ranks.run(1, main, "--resume", "--runs", str(whole.parent), "--name", folder.name) == [
        None
    ]
    assert json.loads((folder / "config.json").read_text())["starts"][-1]["step"] == 39
    assert same_as(whole, folder)


def test_a_checkpoint_of_another_model_is_refused(whole, capsys):
    """The run's base was made anew with other sizes."""
    other = Qwen3(
        Config(
            vocab_size=14,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
        )
    )
    assert train.load_checkpoint(whole, other, torch.optim.AdamW(other.parameters())) == (0, {})
    assert capsys.readouterr().out.count("cannot be used") == 2


def test_a_disk_that_takes_nothing_is_no_traceback(tmp_path):
    """--runs below something that is no folder: the command says which path, in one line."""
    (tmp_path / "file").write_text("")
    command = [sys.executable, "train.py", *FLAGS, "--runs", str(tmp_path / "file" / "runs")]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 1 and "Traceback" not in said.stderr
    assert (
        said.stderr.splitlines()[-1].startswith("error: ") and str(tmp_path / "file") in said.stderr
    )


# ---- Data --------------------------------------------------------------------------------------------


def test_the_command_names_a_broken_line(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"problem": "1+1="}\n')
    command = [
        sys.executable,
        "train.py",
        "--model",
        str(tmp_path),
        "--task",
        str(tmp_path / "data.jsonl"),
        "--device",
        "cpu",
        "--runs",
        str(tmp_path),
    ]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (
        said.returncode == 1
        and said.stderr.startswith("error: ")
        and "Traceback" not in said.stderr
    )
    assert "data.jsonl, line 1: needs" in said.stderr
