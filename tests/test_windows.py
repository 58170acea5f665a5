"""Finds without Windows what would fail there: the scripts run on a Linux without what Windows lacks
(pretend_windows.py says what is pretended, and what is not)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SELF = Path(__file__)
TESTS = SELF.parent
ROOT = TESTS.parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc says which files are open")


def on_windows(*command, cwd=ROOT):
    """Run a command on the pretended Windows. Returns what it printed; it must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONIOENCODING", None)
    script = [sys.executable, TESTS / "pretend_windows.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([*script, *command], cwd=cwd, env=environment, **pipes)
    printed = done.stdout.decode("cp1252")
    assert done.returncode == 0, printed
    return printed


ENGLISH_OR_CHINESE = """# 题目 \U0001f600: cp1252 has none of these characters
from verifiers import Task, boxed_reward

def sums():
    problems = [{"problem": f"{n}+1=", "answer": str(n + 1), "note": "答案"} for n in range(99)]
    return Task("题目", problems[50:], problems[:50], "答案 {problem}", boxed_reward)
"""

COMMANDS = """import json, runpy, sys
for command in json.loads(sys.argv[1]):  # in one process: PyTorch is imported once
    sys.argv = command
    sys.path[0] = "."
    runpy.run_path(command[0], run_name="__main__")
"""


def test_train_resume_and_evaluate(tmp_path):
    """The task prints Chinese into a pipe whose encoding is cp1252."""
    (tmp_path / "commands.py").write_text(COMMANDS, encoding="utf-8")
    (tmp_path / "mine.py").write_text(ENGLISH_OR_CHINESE, encoding="utf-8")
    where = ["--runs", str(tmp_path), "--name", "x"]
    flags = ["--model", "notebooks/tiny", "--task", f"{tmp_path / 'mine.py'}:sums"]
    flags += ["--prompts-per-step", "4", "--num-samples", "4", "--max-new-tokens", "16"]
    flags += ["--eval-problems", "4", "--save-every", "1", "--prompt", "{problem}"]
    commands = [
        ["train.py", *flags, *where, "--steps", "1"],
        ["train.py", "--resume", *where, "--steps", "3"],
        ["eval.py", str(tmp_path / "x"), "--problems", "4", "--out", f"{tmp_path}/out"],
    ]
    printed = on_windows(tmp_path / "commands.py", json.dumps(commands))
    assert "\\u9898\\u76ee" in printed  # the name of the task
    assert "resuming" in printed
    assert "held-out accuracy" in printed
    assert "sampled" in printed.splitlines()[-1]
    assert "答案" in (tmp_path / "out").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_the_suite(half):
    """Tests that need fork, signals or limits of POSIX are skipped, and no other test fails. This leaves out
    tests that only compute (grading, the algorithm, turns) or refuse (silent faults), those of train.py's flags
    and plug-ins (test_faults.py trains, too), those of several processes, attacks (they need Linux), and the
    other pretended device."""
    out = "attacks gpu grading ranks rlvr silent train turns windows worked_out".split()
    names = {path.name for path in TESTS.glob("test_*.py")} - {f"test_{name}.py" for name in out}
    files = [f"tests/{name}" for name in sorted(names)]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-k", "not what_is_wrong_with_a_file_of_mine"]
    printed = on_windows(*command, *files[half::2])
    assert " passed" in printed.splitlines()[-1]


MISTAKES = {
    "import fcntl": "ModuleNotFoundError",
    "import os; os.uname()": "AttributeError",
    "from signal import SIGKILL": "ImportError",
    "print('\\u4f60')": "UnicodeEncodeError",
    "open('a', 'w').write('\\u4f60')": "UnicodeEncodeError",
    "file = open('c', 'w'); import os; os.rename('c', 'd')": "PermissionError",
    "open('a', 'w').close(); open('b', 'w').close(); import os; os.rename('a', 'b')": "FileExistsError",
    "open('12:30', 'w')": "OSError",
}


def test_it_raises_what_windows_raises(tmp_path):
    (tmp_path / "site-packages").mkdir()  # as in a .venv beside the script
    (tmp_path / "site-packages" / "installed.py").write_text("import os; os.uname()")
    lines = ["import sys; sys.path.append('site-packages'); import installed"]
    for mistake, error in MISTAKES.items():
        lines += [f"try:\n    {mistake}", f"except {error}:\n    print('raised')"]
    (tmp_path / "mistakes.py").write_text("\n".join(lines), encoding="utf-8")
    printed = on_windows("mistakes.py", cwd=tmp_path)
    assert printed.split() == ["raised"] * len(MISTAKES)
