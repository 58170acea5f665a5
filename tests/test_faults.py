"""Bad days: whatever kills a run, only the steps since the last checkpoint are lost, and a message says
how to resume. (test_ranks.py tests faults of one process among several.)"""

import gzip
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ranks
import rlvr
import train
from ranks import ROOT, SMALL, checkpoints, last_step, main, metrics, rows_of, weights

FLAGS = [*SMALL, "--steps", "12"]
posix = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals and limits of POSIX")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of an undisturbed run of 12 steps."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(*FLAGS, "--runs", str(folder), "--name", "whole") is None
    return folder / "whole"


def there(whole, name):
    """Return the flags for a run of this name beside the undisturbed one."""
    return ["--runs", str(whole.parent), "--name", name]


def goes_on_as(whole, name):
    """Resume the run of that name. Returns True if it ends as if nothing had happened."""
    assert main("--resume", *there(whole, name)) is None
    folder = whole.with_name(name)
    same_samples = samples(folder) == samples(whole)
    same_weights = torch.equal(weights(folder), weights(whole))
    return metrics(folder) == metrics(whole) and same_samples and same_weights


def samples(folder):
    return [gzip.decompress(path.read_bytes()) for path in sorted((folder / "samples").iterdir())]


def begin(whole, name, function, *args):
    """Call function(*args, *flags of a run) in its own process. Returns (process, queue)."""
    (process,), queue = ranks.start(1, function, *args, *FLAGS, *there(whole, name))
    return process, queue


# ---- kill -9 -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_ten_random_moments(whole):
    """Some kills come while it starts. A folder without config.json is no run yet."""
    folder = whole.with_name("often")
    rng = random.Random(0)
    flags = FLAGS
    reached = set()
    for turn in range(10):
        (process,), _ = ranks.start(1, main, *flags, *there(whole, "often"))
        while turn % 2 and last_step(folder) < turn and process.is_alive():
            time.sleep(0.002)
        process.join(rng.uniform(0.0, 0.2))
        process.kill()
        process.join()
        reached.add(last_step(folder))
        if (folder / "config.json").exists():
            flags = ["--resume"]
        else:
            shutil.rmtree(folder, ignore_errors=True)
    assert len(reached) > 3
    assert goes_on_as(whole, "often")


def killed_in(name, when, *flags):
    """kill -9 in call number `when` of a function that train.py uses (for rename: at checkpoint `when`)."""
    owner = {"rename": Path, "save": train.dcp}.get(name, train)
    ordinary = getattr(owner, name)
    calls = []

    def deadly(*args, **options):
        calls.append(1)
        now = len(calls) == when
        if name == "rename":
            now = Path(args[1]).name == f"step_{when:06d}"
        elif now:
            ordinary(*args, **options)  # after save: files are written, but no progress.json
        if now:
            os.kill(os.getpid(), signal.SIGKILL)
        return ordinary(*args, **options)

    setattr(owner, name, deadly)
    main(*flags)


SLOW = pytest.mark.slow


@posix
@pytest.mark.parametrize(
    "name, when, logged, kept",
    [
        ("save", 3, 9, 6),  # after step 9 was logged
        pytest.param("roll_out", 9, 3, 3, marks=SLOW),
        pytest.param("update_gradients", 8, 7, 6, marks=SLOW),
        pytest.param("rename", 6, 6, 3, marks=SLOW),
    ],
)
def test_killed_in_the_middle_of_sampling_update_and_save(whole, name, when, logged, kept):
    """roll_out has 3 calls before step 1 and 2 more in the evaluation of step 3, so call 9 is in step 4."""
    process, _ = begin(whole, name, killed_in, name, when)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert checkpoints(whole.with_name(name))[-1] == f"step_{kept:06d}"
    assert last_step(whole.with_name(name)) == logged
    for partial in whole.with_name(name).glob("checkpoints/partial"):
        (partial / "of the first attempt").write_text("")
    assert goes_on_as(whole, name)
    assert not [*whole.with_name(name).rglob("of the first attempt")]
    assert not (whole.with_name(name) / "checkpoints" / "partial").exists()


# ---- Errors between two checkpoints --------------------------------------------------------------


@pytest.mark.parametrize(
    "owner, name, call, kept",
    [
        # Before the weights change, the steps before this one are saved. Checkpoints are due at 3, 6, ..
        pytest.param(train, "pick_problems", 5, 4, marks=SLOW),
        (train, "roll_out_all", 10, 4),  # 1 preflight, 2 evaluations of 2, and steps 1 to 5
        pytest.param(train, "token_advantages", 5, 4, marks=SLOW),
        pytest.param(train, "update_gradients", 5, 4, marks=SLOW),
        pytest.param(train, "clip_gradients", 5, 4, marks=SLOW),
        # While they change, nothing can be saved.
        (torch.optim.AdamW, "step", 5, 3),
        # After that, this step is saved, too. An evaluation is due at steps 3, 6, ..
        (train, "evaluate_both", 3, 6),
        pytest.param(train, "write_samples", 5, 5, marks=SLOW),
        pytest.param(rlvr.GRPO, "after_step", 5, 5, marks=SLOW),
        pytest.param(train, "append_rows", 6, 5, marks=SLOW),  # of the log, from step 0
        pytest.param(train, "save_checkpoint", 2, 6, marks=SLOW),
        (train, "save", 1, 12),  # of the final model
    ],
)
def test_wherever_a_run_ends_the_steps_made_are_kept(whole, monkeypatch, owner, name, call, kept):
    """Whatever fails, the last checkpoint has every step that was made."""
    ordinary = getattr(owner, name)
    calls = []

    def failing(*args, **options):
        calls.append(1)
        if len(calls) == call:
            raise OSError("no space, no memory, no network")
        return ordinary(*args, **options)

    monkeypatch.setattr(owner, name, failing)
    run = f"ends-in-{name}"
    message = main(*FLAGS, *there(whole, run))
    monkeypatch.undo()
    lost = "; later steps are lost" if name == "step" else ""
    said = f"error: no space, no memory, no network; step {kept} is saved{lost}. Resume with: "
    assert message.startswith(said) and f"--resume --name {run}" in message
    folder = whole.with_name(run)
    assert checkpoints(folder)[-1] == f"step_{kept:06d}"
    assert main("--resume", *there(whole, run)) is None
    assert torch.equal(weights(folder), weights(whole))
    expected = {row["step"]: row for row in metrics(whole)}
    rows = {row["step"]: row for row in metrics(folder)}
    assert rows == {step: expected[step] for step in rows}
    assert len(rows) == (12 if name == "append_rows" else 13)


def test_a_bug_keeps_its_traceback_and_the_steps(whole, monkeypatch, capsys):
    def buggy(method, row, model):
        if row["step"] == 5:
            row["missing"]

    monkeypatch.setattr(rlvr.GRPO, "after_step", buggy)
    with pytest.raises(KeyError, match="missing"):
        main(*FLAGS, *there(whole, "bug"))
    assert "step 5 is saved. Resume with: " in capsys.readouterr().out
    assert checkpoints(whole.with_name("bug"))[-1] == "step_000005"


def on_a_small_disk(size, *flags):
    """Limit the size of files: writing fails as on a full disk."""
    import resource  # Windows has none

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return main(*flags)


@posix
def test_a_full_disk_keeps_the_log_and_says_what_to_do(whole):
    """A checkpoint takes 1.5 MB, so the run fails at its first one. It is resumed with more room."""
    _, queue = begin(whole, "full", on_a_small_disk, 1_000_000)
    _, message, _ = queue.get(timeout=60)
    assert "checkpoints/step_000003" in message
    assert "free some space" in message
    assert "--resume --name full" in message
    folder = whole.with_name("full")
    assert list((folder / "checkpoints").iterdir()) == []
    assert [row["step"] for row in rows_of(folder)] == [0, 1, 2, 3]
    assert goes_on_as(whole, "full")


def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(whole, capsys):
    assert checkpoints(whole) == ["step_000009", "step_000012"]  # of four, two are kept
    folder = shutil.copytree(whole, whole.with_name("damaged"))
    part = max((folder / "checkpoints" / "step_000012").iterdir(), key=os.path.getsize)
    os.truncate(part, part.stat().st_size // 2)
    assert goes_on_as(whole, folder.name)
    said = capsys.readouterr().out
    assert "step_000012 cannot be used" in said
    assert "after step 9 of 12" in said


@pytest.mark.parametrize("rows, half", [(0, 20), (9, 20)])
def test_a_log_that_is_behind_its_checkpoint_costs_no_step(whole, rows, half, capsys):
    """The log ends in half a row: its first one, or that of step 9, whose checkpoint is complete."""
    folder = shutil.copytree(whole, whole.with_name(f"behind-{rows}-{half}"))
    shutil.rmtree(folder / "checkpoints" / "step_000012")
    shutil.rmtree(folder / "final")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:rows]) + lines[rows][:half])
    train.main(["--resume", *there(whole, folder.name)])
    assert "after step 9 of 12" in capsys.readouterr().out
    assert [row["step"] for row in rows_of(folder)] == [*range(rows), 10, 11, 12]
    assert torch.equal(weights(folder), weights(whole))


INTERRUPTED = """
import runpy, sys
import model
def load(*args, **options): raise KeyboardInterrupt
model.load = load
sys.argv[1:] = {flags}
runpy.run_path("{train}", run_name="__main__")
"""


def test_ctrl_c_while_a_resumed_run_loads_says_that_what_it_had_is_kept(whole):
    folder = shutil.copytree(whole, whole.with_name("interrupted"))
    before = sorted(path.name for path in folder.rglob("*"))
    flags = ["--resume", *there(whole, folder.name)]
    program = INTERRUPTED.format(flags=flags, train=ROOT / "train.py")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "stopped; what was saved before is intact\n"
    assert sorted(path.name for path in folder.rglob("*")) == before
