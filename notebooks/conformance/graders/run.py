r"""run.py - does a grader tell right answers from wrong ones, refuse copies of the question, and always finish?

    python -m notebooks.conformance.graders.run MINE.py:grade --show           grade(answer, truth) -> bool
    python -m notebooks.conformance.graders.run MINE.py:grade MINE.py:reward   reward(problem, answer, truth) -> number
    python -m notebooks.conformance.graders.run MINE.py:grade --python ~/venv/bin/python   where its packages are

If a row has a question, reward decides, or grade if there is no reward. Each call runs in another process, which may
use 8 GiB and is killed after --limit seconds. This needs Linux or macOS. Each row counts once: as right, a false
accept, a false reject, no verdict (the grader raised an error, returned None, died, or was killed), or as a copy of the
question that was rewarded. The exit status is 1 if there is a false accept, unless --keep is given. Rewarded copies are
counted but do not change it.

A row of answers.jsonl has "kind", "gold", "answer" (a list [[text, n], ..] means each text n times) and "expect": true,
false, or null, which is not counted. Rows with a "problem" test what a reward accepts. Instead of an answer, your own
rows (--cases) may have a "completion", a whole text for a reward. The labels follow these rules:

- Two answers are equal if a mathematician who sees only the two strings calls them the same thing. Units, \% and \$ do
  not count.
- A decimal equals its fraction. A truncated decimal is another number, unless it has twelve digits or more.
- Lists and sets have no order, tuples have one. The ends of an interval matter, and so does the base of a numeral.
- x = 5 is 5, and 2^5 is 32. A text that does not parse, has a free variable or names two answers is not a number.
- A reward accepts an answer that is worked out: not the question's own expression, reordered or dressed up, and not a
  sum in place of a number.
"""

import argparse
import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

CASES = Path(__file__).with_name("answers.jsonl")
COLUMNS = "grader,right,false accepts,false rejects,no verdict,copied,slowest".split(",")

# ---- 1. The worker: this file as a script, in the grader's own Python ----------------------------------


def load(target):
    """Return the function that FILE.py:NAME names (default: grade)."""
    file, _, name = target.partition(":")
    sys.path.insert(0, str(Path(file).resolve().parent))
    sys.path.append(os.getcwd())  # last: an installed package may have the name of a file of ours
    return getattr(importlib.import_module(Path(file).stem), name or "grade")


def judge(row, grade, reward=None):
    """Is the answer accepted? Returns None if the grader returns None."""
    if reward and {"problem", "completion"} & row.keys():
        verdict = reward(row.get("problem", ""), row["answer"], row["gold"])
    else:
        verdict = grade(row["answer"], row["gold"])
    return None if verdict is None else bool(verdict > 0)


def work(*targets):
    """Grade the rows on stdin. The grader's own output is thrown away."""
    resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))  # bytes
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        functions = [load(target) for target in targets]
    except BaseException as error:
        why = f"{' '.join(targets)} cannot be loaded: {type(error).__name__}: {error}"
        return print(json.dumps({"error": why}), file=said)
    for line in sys.stdin:
        try:
            verdict = judge(json.loads(line), *functions)
        except BaseException as error:
            verdict = f"raised {type(error).__name__}"
        print(json.dumps(verdict), file=said)


# ---- 2. Under a limit ---------------------------------------------------------------------------------


def ask(process, row, limit):
    """Return the line that it replies, or "" if it has died or its time is over."""
    timer = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL))  # kills children, too
    timer.start()
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(row), file=process.stdin, flush=True)
    line = process.stdout.readline()
    timer.cancel()
    return line


def start(command):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    line = ask(process, {"gold": "1", "answer": "1.0"}, limit=300)  # time to import
    reply = json.loads(line or '{"error": "the grader did not reply within 300 s"}')
    if isinstance(reply, dict):
        raise SystemExit(f"error: {reply['error']}")
    return process


def measure(rows, limit, command):
    """Yield for each row the verdict, or a text that says why there is none, and the seconds that it took."""
    process = start(command)
    for row in rows:
        began = time.perf_counter()
        line = ask(process, row, limit)
        yield json.loads(line) if line else "no reply", time.perf_counter() - began
        if not line:
            process = start(command)
    os.killpg(process.pid, signal.SIGKILL)


# ---- 3. The board -------------------------------------------------------------------------------------


def read(path):
    """Read the rows that count, with the answer, or the completion, as text."""
    try:
        rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {path} is not a file of JSON lines: {error}") from None
    for number, row in enumerate(rows, 1):
        row = row if isinstance(row, dict) else {}
        row.setdefault("answer", row.get("completion"))
        if None in (row["answer"], row.get("gold")) or "expect" not in row:
            raise SystemExit(f'error: {path}, line {number}: needs "gold", "expect" and "answer"')
        if isinstance(row["answer"], list):
            row["answer"] = "".join(text * times for text, times in row["answer"])
    counted = [row for row in rows if row["expect"] is not None]
    if not counted:
        raise SystemExit(f"error: {path} has no answers that count")
    return counted


def outcome(row, verdict):
    if verdict == row["expect"]:
        return "right"
    if verdict is True:
        return "copied" if "problem" in row else "false accept"
    return "false reject" if verdict is False else "no verdict"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("function", nargs="+", help="FILE.py:NAME of grade, and perhaps of reward")
    parser.add_argument("--python", default=sys.executable, help="the grader's own interpreter")
    parser.add_argument("--cases", default=CASES, help="your own labelled answers, as .jsonl")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per call (default: 10)")
    parser.add_argument("--show", action="store_true", help="show every row that went wrong")
    parser.add_argument("--keep", metavar="NAME", help="print JSON for look.keep under this name")
    args = parser.parse_args(argv)
    for target in args.function:
        if not Path(target.partition(":")[0]).is_file():
            parser.error(f"{target}: there is no such Python file")
    if not shutil.which(args.python):
        parser.error(f"--python {args.python}: there is no such program")
    rows = read(args.cases)
    command = (args.python, __file__, "--worker", *args.function)
    verdicts, seconds = zip(*measure(rows, args.limit, command))
    found = [outcome(row, verdict) for row, verdict in zip(rows, verdicts)]
    line = [args.keep or args.function[0], f"{found.count('right'):,} of {len(found):,}"]
    line += [str(found.count(column.removesuffix("s"))) for column in COLUMNS[2:-1]]
    line += [f"{max(seconds):.2g} s, {verdicts.count('no reply')} without reply"]
    print("\n".join(f"{column:16}{value}" for column, value in zip(COLUMNS, line)))
    for row, what, verdict, spent in zip(rows, found, verdicts, seconds):
        wrong = what != "right" and args.show
        if wrong or verdict == "no reply" or spent == max(seconds):
            pair = f"{row['gold']} <- {row['answer'][:90]}"
            if not wrong and verdict != "no reply":
                what = "slowest"
            text = f"{what:16}{row.get('kind')}: {pair} ({verdict}, {spent:.2g} s)"
            print(textwrap.fill(text, 79, subsequent_indent=" " * 16, break_on_hyphens=False))
    if args.keep:
        print(json.dumps({"columns": COLUMNS, "rows": [line]}))
    return not args.keep and "false accept" in found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main())
