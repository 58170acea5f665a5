"""Every command of the laboratory: its --help, and its messages about users' mistakes."""

import json
import subprocess
import sys

import pytest

from appendix.plumbing import DataError, append_rows
from notebooks import command
from ranks import ROOT

COMMANDS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "notebooks").glob("**/*.py"))
    if 'if __name__ == "__main__"' in path.read_text()
    and "tests" not in path.parts
    and path.stem not in ("page", "ledger")  # which have no --help
]
REQUIRED = "matplotlib scipy ipywidgets ipykernel transformers gguf trl wandb tensorboard".split()
# Runs commands in forks of a process that has imported slow modules. Modules named in its first argument are missing.
RUNNER = """
import json, os, runpy, sys, tempfile
import numpy, safetensors.torch, sympy, tokenizers, torch._dynamo

root, results = sys.argv[2], []
if sys.argv[3:]:
    sys.path[0] = root
    import eval, notebooks.rewards.reasoning, notebooks.claims.start, train
sys.modules |= dict.fromkeys(sys.argv[1].split())
for how, name, *words in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            file = os.path.join(root, name.replace(".", "/") + ".py")
            sys.argv = [file, *words]
            sys.path[0] = os.path.dirname(file) if how == "file" else root
            start = {"run_name": "__main__"}
            code = 0
            try:
                runpy.run_path(file, **start) if how == "file" else runpy.run_module(name, alter_sys=True, **start)
            except SystemExit as end:
                code = end.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
            sys.stdout.flush()
            os._exit(0 if code in (0, None) else 1)  # sys.exit would take a second to free all that is imported
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        results.append([[how, name, *words], status, said.read()])
print(json.dumps(results))
"""


def run(commands, folder, without=(), quickly=()):
    """Return [(command, exit status, what it printed)]. quickly: import the project's own files only once, too."""
    command = [sys.executable, "-c", RUNNER, " ".join(without), str(ROOT), *quickly]
    given = json.dumps(commands)
    done = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_needs_no_requirements_and_a_figure_says_what_it_needs(tmp_path):
    """Each command is started as a file and with -m, in another folder, without the packages that only some need."""
    assert len(COMMANDS) >= 21
    columns = "step accuracy completion_length eval_accuracy eval_sampled_accuracy".split()
    append_rows(tmp_path / "metrics.jsonl", [dict.fromkeys(columns, 0)])
    (tmp_path / "config.json").write_text("{}")
    asked = [[how, name, "--help"] for how in ("file", "module") for name in COMMANDS]
    asked.append(["module", "notebooks.look.curve", ".", "-o", "new.svg"])
    *helps, (_, *figure) = run(asked, tmp_path, REQUIRED)
    for _, status, said in helps:
        assert status == 0 and said.startswith("usage: "), said
        assert max(map(len, said.splitlines())) <= 79, said
    hint = "pip install -r notebooks/requirements.txt"
    assert figure == [1, f"error: matplotlib is not installed: {hint}\n"]


MISTAKES = """
look.show {}
look.show {} --canary
look.show {} --tax
look.compare {}
look.compare {} --regrade boxed
look.filter {} --out new.jsonl
look.sinks tensorboard {}
look.curve {} -o new.svg
look.sharpen {}
tasks.smollm2 {}
tasks.livecodebench {} --out new.jsonl
autorule.autorule {} --teacher DIR
claims.atlas {}
conformance.check {}
conformance.board {}
conformance.graders.run {}
conformance.graders.run nothing.py --cases {}
models.make_tiny --random --out {}
models.get_smollm2 {}
"""
WRONG = "missing empty text.txt run full broken.py nothing.py".split()
FINE = [  # these are no mistakes: a new folder, an empty one, and a run without samples, which still has a log
    "models.make_tiny --random --out missing",
    "models.make_tiny --random --out empty",
    "models.get_smollm2 missing",
    "models.get_smollm2 empty",
    "look.show full --canary",
    "look.sinks tensorboard full",
]
MORE = """
look.keep nobody
look.curve full -o text.txt
look.show full --step 7
look.gpu_day --small --out text.txt
look.compare text.txt --k x
claims.claims nobody
claims.claims
claims.claim
conformance.graders.run nothing.py --python nobody
conformance.check nothing.py --only nobody
race --temperature 0.6
models.make_tiny
autorule.autorule text.txt --teacher DIR --out text.txt
"""


OTHERS = pytest.param([*WRONG[1:], "--unknown"], marks=pytest.mark.slow, id="others")


@pytest.mark.parametrize("mistakes", [WRONG[:1], OTHERS])
def test_a_mistake_ends_with_one_line_and_writes_nothing(mistakes, tmp_path):
    """The mistakes are a missing path, an empty folder, a file of another kind, a run without a log or without samples, a
    missing argument, and an unknown option."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("a text\n")
    (tmp_path / "broken.py").write_text("def grade(:\n")
    (tmp_path / "nothing.py").write_text("x = 1\n")
    for name, log in ("run", []), ("full", [{"step": 0}]):
        (tmp_path / name).mkdir()
        config = {"flags": {"steps": 0}, "settings": {"num_samples": 2}}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        append_rows(tmp_path / name / "metrics.jsonl", log)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    lines = [line.format(wrong) for wrong in mistakes for line in MISTAKES.strip().splitlines()]
    lines = [line for line in lines if line not in FINE]
    if "--unknown" in mistakes:
        lines += MORE.strip().splitlines()
        lines += [f"{name.removeprefix('notebooks.')} --unknown" for name in COMMANDS]
    commands = [["module", *f"notebooks.{line}".split()] for line in lines]
    for words, status, said in run(commands, tmp_path, ["gguf", "tensorboard"], ["quickly"]):
        assert status != 0 and "Traceback" not in said, (words, said)
        assert "error: " in said, (words, said)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*")} == before


def test_prose_is_wrapped_and_paths_stay_whole(capsys):
    path = "/".join(["folder"] * 20)
    command.say(f"{'word ' * 30}{path} end", "  ")
    *lines, long, last = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 79 and (long.strip(), last.strip()) == (path, "end")


def test_nothing_is_replaced(tmp_path):
    """An empty folder may be filled, and a new one made."""
    assert command.new_path(tmp_path) == tmp_path
    (tmp_path / "a").write_text("")
    for taken in (tmp_path, tmp_path / "a"):
        with pytest.raises(DataError, match="exists already: give another name"):
            command.new_path(taken)
