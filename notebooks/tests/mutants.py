"""Mutants: is a fault noticed? One operator, number, condition or statement of a script is changed
in a copy of the project, and the script's tests run there until the first fails.

    python notebooks/tests/mutants.py FILE                   # 190 of seven scripts: an hour
    python notebooks/tests/mutants.py FILE rlvr --seed abc   # 30 of one

A hash of the seed (default: the commit) and of the change draws the sample, so it stays the same
while other lines are edited. Each verdict is a line of FILE, and what stands there is not tested
again. Texts, docstrings and annotations are left as they are. EQUIVALENT names those survivors
that no test could kill, each with its reason.
"""

import argparse
import ast
import collections
import contextlib
import copy
import hashlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch  # noqa: F401  # here: the process of a mutant is a fork of this one
import transformers  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
TESTS = {  # of each script, the quickest first
    "rlvr": "rlvr worked_out turns faults silent eval train",
    "model": "model worked_out rlvr silent eval train",
    "verifiers": "verifiers worked_out border rlvr silent eval train",
    "eval": "eval faults silent train",
    "train": "train faults turns silent gpu",
    "grading": "grading border verifiers attacks",
    "sandbox": "sandbox attacks verifiers border windows",
}
SIZES = {"grading": 20, "sandbox": 20}  # of the others 30
PAIRS = "Add Sub Mult Div Lt LtE Gt GtE Eq NotEq In NotIn Is IsNot And Or BitAnd BitOr".split()
SWAPS = {"FloorDiv": "Mult", "Mod": "Mult", "Pow": "Mult"}
SWAPS |= {a: b for a, b in zip(PAIRS[::2], PAIRS[1::2])} | {
    b: a for a, b in zip(PAIRS[::2], PAIRS[1::2])
}
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Break, ast.Continue)
CPU_SECONDS = 200  # of a mutant's tests; what needs more, or WAIT seconds, has no end
WAIT = 900
EQUIVALENT = {}  # {"script: line: before -> after": reason}


def changes(node):
    """What one node of a syntax tree may become."""
    other = copy.deepcopy(node)
    kind = type(node)
    if kind is ast.Compare and (name := SWAPS.get(type(node.ops[0]).__name__)):
        other.ops[0] = getattr(ast, name)()
        yield other
    elif kind in (ast.BinOp, ast.BoolOp, ast.AugAssign) and (
        name := SWAPS.get(type(node.op).__name__)
    ):
        other.op = getattr(ast, name)()
        yield other
    elif kind is ast.UnaryOp:
        yield node.operand
    elif kind is ast.Constant and type(node.value) in (int, float, bool):
        other.value = not node.value if type(node.value) is bool else node.value + 1
        yield other
    if kind in STATEMENTS and not isinstance(getattr(node, "value", None), ast.Constant):
        yield ast.Pass()


def visible(node):
    """The nodes below it, without texts and annotations; a condition as its negation besides."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child, [*changes(child)]
                if field == "test" and not isinstance(child, ast.UnaryOp):
                    yield child, [ast.UnaryOp(ast.Not(), child)]
                yield from visible(child)


def mutants(script):
    """All mutants of a script: what identifies it, the line, the text of the script."""
    source = (ROOT / f"{script}.py").read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]
    seen = collections.Counter()
    for node, others in visible(ast.parse(source)):
        if not hasattr(node, "lineno"):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source[begin:end].decode()
        for other in others:
            after = ast.unparse(other)
            if isinstance(node, ast.expr):
                after = f"({after})"
            line = lines[node.lineno - 1].decode().strip()
            name = f"{script}: {line}: {before} -> {after}"
            seen[name] += 1
            text = source[:begin] + after.encode() + source[end:]
            yield name + f" #{seen[name]}" * (seen[name] > 1), node.lineno, text


def naming(script, line):
    """The tests of the script's files that name the function, or the class, around that line."""
    tree = ast.parse((ROOT / f"{script}.py").read_text())
    around = [n for n in ast.walk(tree) if hasattr(n, "name") and hasattr(n, "end_lineno")]
    names = [n.name for n in around if n.lineno <= line <= n.end_lineno]
    names = re.compile(rf"\b({'|'.join(name for name in names if name[:2] != '__')})\b")
    found = []
    for file in TESTS[script].split() if names.pattern != r"\b()\b" else ():
        text = (ROOT / "tests" / f"test_{file}.py").read_text()
        for node in ast.parse(text).body:
            if getattr(node, "name", "").startswith("test_"):
                if names.search(ast.get_source_segment(text, node)):
                    found.append(f"tests/test_{file}.py::{node.name}")
    return found


def run(script, line, copied):
    """Run the script's tests in the copy, first those that name what was changed -> the first that
    fails, or None."""
    out = copied / "out.txt"
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(copied)
        sys.path[0] = str(copied)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        with open(out, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        files = [f"tests/test_{name}.py" for name in TESTS[script].split()]
        code = 0
        for tests in (naming(script, line), files):
            if tests and not code:
                code = pytest.main(["-xq", "--tb=no", "-p", "no:cacheprovider", *tests])
        sys.stdout.flush()
        os._exit(int(code))
    done = 0
    while not done and time.monotonic() - began < WAIT:
        time.sleep(0.05)
        done, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    if not done or os.WIFSIGNALED(status):
        return "no end"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", out.read_text(errors="replace"), re.M)
    return None if status == 0 else failed[1] if failed else "crash"


CLOCK = itertools.count(10**9)


def put(path, text):
    """Write a script, each time of another second, for which Python compiles it anew."""
    path.write_bytes(text)
    second = next(CLOCK)
    os.utime(path, (second, second))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", help="verdicts, one a line")
    parser.add_argument("scripts", nargs="*", default=list(TESTS))
    parser.add_argument("--seed", help="default: the commit")
    args = parser.parse_args()
    seed = args.seed or subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True)
    file = Path(args.file)
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {row["mutant"]: row for row in known}
    copied = Path(tempfile.mkdtemp(prefix="mutants-")) / "main"
    shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".git", "runs", "__pycache__"))
    table = []
    for script in args.scripts:
        drawn = sorted(
            mutants(script), key=lambda m: hashlib.sha256((seed + m[0]).encode()).digest()
        )
        drawn = drawn[: SIZES.get(script, 30)]
        counts = collections.Counter()
        for name, line, text in drawn:
            if name not in known:
                put(copied / f"{script}.py", text)
                known[name] = {"mutant": name, "line": line, "killer": run(script, line, copied)}
                put(copied / f"{script}.py", (ROOT / f"{script}.py").read_bytes())
                with file.open("a") as out:
                    out.write(json.dumps(known[name]) + "\n")
            killer = known[name]["killer"]
            verdict = "killed" if killer else "equivalent" if name in EQUIVALENT else "survived"
            counts[verdict] += 1
            print(
                f"{script}.py:{line} {name.partition(': ')[2]}  {verdict} {killer or ''}",
                flush=True,
            )
        table.append(
            (script, len(drawn), *(counts[v] for v in ("killed", "equivalent", "survived")))
        )
    print("script mutants killed equivalent survived")
    for row in table:
        print(*row)
    shutil.rmtree(copied.parent)


if __name__ == "__main__":
    main()
