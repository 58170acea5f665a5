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

import pytest
import torch

import ranks
import train
from conftest import ROOT
from ranks import main, metrics, weights

FLAGS = ["--task", "one-digit", "--reward", "random", "--device", "cpu", "--prompts-per-step", "4",
         "--num-samples", "8", "--eval-every", "5", "--eval-problems", "9", "--save-every", "3", "--steps", "40",
         "--lr", "1e-3"]


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
    """Every time the checkpoint is at most 3 steps behind the log; the last time it is left alone."""
    folder, rng, flags = whole.with_name("killed"), random.Random(0), [*FLAGS, "--name", "killed"]
    for _ in range(20):
        (process,), _ = ranks.start(1, main, *flags, "--runs", str(whole.parent))
        process.join(rng.uniform(0.1, 1.5))
        process.kill()
        process.join()
        if (folder / "config.json").exists():
            flags = ["--resume", "--name", "killed"]
            done = max([row["step"] for row in metrics_so_far(folder)], default=0)
            assert saved(folder) >= 3 * (done // 3) - 3 * (done % 3 == 0)
    assert ranks.run(1, main, *flags, "--runs", str(whole.parent)) == [None]
    assert same_as(whole, folder)


def metrics_so_far(folder):
    """The rows of the log that are whole."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def killed_in(name, call, *flags):
    """kill -9 this process in the middle of the n-th call of a function that train.py uses."""
    calls, owner = [0], {"write_data": train.dcp.FileSystemWriter, "rename": train.Path}.get(name, train)
    ordinary = getattr(owner, name)

    def deadly(*args, **kwargs):
        calls[0] += 1
        if calls[0] == call:
            if name == "update_gradients":                      # half of the gradient is there
                ordinary(*args, **kwargs)
            if name == "write_data":                            # half of the file is there
                (args[0].path / "__0_0.distcp").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(*args, **kwargs)
    setattr(owner, name, deadly)
    main(*flags)


@pytest.mark.parametrize("name, call, kept", [("sample", 8, 6), ("update_gradients", 9, 6), ("write_data", 3, 6),
                                              ("rename", 5, 3)])
def test_killed_in_the_middle_of_sampling_update_and_save(whole, name, call, kept):
    """In step 8, in step 8 (the preflight's update is the first), in the third checkpoint, and when the second is whole
    but not yet in its place (the first renaming of a checkpoint is torch's, and best/ is renamed too)."""
    folder = whole.with_name(name)
    (process,), _ = ranks.start(1, killed_in, name, call, *FLAGS, "--runs", str(whole.parent), "--name", name)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL and saved(folder) == kept
    assert ranks.run(1, main, "--resume", "--runs", str(whole.parent), "--name", name) == [None]
    assert same_as(whole, folder) and not (folder / "checkpoints" / "partial").exists()


# ---- Signals ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("signals, said", [([signal.SIGTERM], "a checkpoint of step"),
                                           ([signal.SIGINT, signal.SIGINT], "nothing more was saved")])
def test_sigterm_saves_and_leaves_and_a_second_ctrl_c_leaves_at_once(whole, signals, said):
    name = f"signal-{signals[0]}"
    (process,), queue = ranks.start(1, slow_main, *FLAGS, "--runs", str(whole.parent), "--name", name)
    deadline = time.time() + 60
    while len(metrics_so_far(whole.with_name(name))) < 6 and time.time() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)                                                     # into the sampling of the next step
    for number in signals:
        os.kill(process.pid, number)
        time.sleep(0.1)
    message = queue.get(timeout=60)[1]
    assert said in message and f"python train.py --resume --name {name}" in message
    assert ranks.run(1, main, "--resume", "--runs", str(whole.parent), "--name", name) == [None]
    assert same_as(whole, whole.with_name(name))


def slow_main(*flags):
    ordinary = train.sample
    train.sample = lambda *args, **kwargs: (time.sleep(0.5), ordinary(*args, **kwargs))[1]
    return main(*flags)


# ---- Disks -----------------------------------------------------------------------------------------------------------

def on_a_small_disk(size, *flags):
    """No file may grow beyond so many bytes: what a full disk says, without one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return main(*flags)


def test_a_full_disk_while_saving_keeps_the_last_checkpoint_and_says_what_to_do(whole):
    """The model takes 0.5 MB, a checkpoint 1.5 MB: the run gets as far as its first one, then there is more room."""
    flags = "--runs", str(whole.parent), "--name", "full"
    said, = ranks.run(1, on_a_small_disk, 1_000_000, *FLAGS, *flags)
    assert "cannot write the checkpoint" in said and "File too large" in said and "--resume --name full" in said
    assert saved(whole.with_name("full")) == 0 and not any(whole.with_name("full").glob("checkpoints/*"))
    assert ranks.run(1, main, "--resume", *flags) == [None]
    assert same_as(whole, whole.with_name("full"))


def full_log(*flags):
    """The log cannot take the row of step 7."""
    ordinary = train.append_jsonl

    def append(path, *rows):
        if rows[0]["step"] == 7:
            raise OSError(28, "No space left on device", str(path))
        ordinary(path, *rows)
    train.append_jsonl = append
    return main(*flags)


def test_a_full_disk_while_logging_says_how_to_go_on(whole):
    flags = "--runs", str(whole.parent), "--name", "log"
    said, = ranks.run(1, full_log, *FLAGS, *flags)
    assert "No space left on device" in said and "metrics.jsonl" in said and "--resume --name log" in said
    assert ranks.run(1, main, "--resume", *flags) == [None]
    assert same_as(whole, whole.with_name("log"))


def test_a_truncated_checkpoint_costs_only_the_steps_since_the_one_before(whole):
    folder = shutil.copytree(whole, whole.with_name("truncated"))
    last = folder / "checkpoints" / f"step_{saved(folder):06d}" / "__0_0.distcp"
    os.truncate(last, last.stat().st_size - 1000)
    assert ranks.run(1, main, "--resume", "--runs", str(whole.parent), "--name", "truncated") == [None]
    assert same_as(whole, folder)


def test_a_checkpoint_of_another_model_is_refused(whole, tmp_path, capsys):
    """The run's base was made anew with other sizes: nothing is loaded in part."""
    from model import Config, Qwen3
    other = train.Optimizer(Qwen3(Config(14, 32, 64, 2, 2, 1, 16, max_position_embeddings=64)), None)
    with pytest.raises(train.ModelError, match="no checkpoint can be used"):
        train.load_checkpoint(whole, other, None)
    assert "Size mismatch" in capsys.readouterr().out


# ---- Data ------------------------------------------------------------------------------------------------------------

def test_broken_lines_are_named_and_skipped_only_when_asked(tmp_path, capsys):
    path = tmp_path / "data.jsonl"
    lines = [json.dumps({"problem": f"{i}+1=", "answer": str(i + 1)}) for i in range(50)]
    lines[6], lines[20] = lines[6][:-5], '{"problem": "no answer"}'
    path.write_text("\n".join(lines))
    with pytest.raises(train.verifiers.DataError, match=r"data.jsonl, line 7: not valid JSON .*--skip-broken-lines"):
        train.verifiers.from_file(path)
    task = train.verifiers.from_file(path, skip_broken=True)
    assert len(task.train) + len(task.test) == 48
    assert "skipped 2 broken lines, read 48: 7, 21" in capsys.readouterr().out


def test_the_command_says_so_too(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"problem": "1+1="}\n')
    command = [sys.executable, "train.py", "--model", str(tmp_path), "--data", str(tmp_path / "data.jsonl"), "--device",
               "cpu", "--runs", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 1 and said.stderr.startswith("error: ") and "Traceback" not in said.stderr
    assert "data.jsonl, line 1: needs" in said.stderr
