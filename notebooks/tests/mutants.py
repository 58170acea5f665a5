"""Mutants: is a fault noticed? One operator, number, condition or statement of a script is changed
in a copy of the project, and the script's tests run there until the first fails.

    python notebooks/tests/mutants.py FILE                  # 30 mutants of a script, 20 of an appendix
    python notebooks/tests/mutants.py FILE rlvr --seed abc  # of one

A hash of the seed (default: the commit) and of the change draws the sample. Each verdict is a line
of FILE, and what stands there is not tested again. Texts and annotations are left as they are."""

import argparse
import ast
import collections
import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = {  # the quickest first
    "rlvr": "rlvr worked_out turns faults silent eval train",
    "model": "model worked_out rlvr silent gpu eval train",
    "verifiers": "verifiers worked_out border rlvr silent eval sandbox train",
    "eval": "eval faults silent train",
    "train": "train faults turns silent gpu ranks",
    "grading": "grading worked_out border verifiers attacks",
    "sandbox": "sandbox attacks verifiers border windows",
}
PAIRS = "Add Sub,Mult Div,Lt LtE,Gt GtE,Eq NotEq,In NotIn,Is IsNot,And Or,BitAnd BitOr".split(",")
SWAPS = dict(pair.split() for pair in PAIRS)
SWAPS |= {b: a for a, b in SWAPS.items()} | dict.fromkeys(["FloorDiv", "Mod", "Pow"], "Mult")
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Break, ast.Continue)
EQUIVALENT = {  # how the names of survivors that no test could kill begin .. and end, and why
    "rlvr: CHUNK_ELEMENTS = .. 2 -> (3)": "only memory: other chunks, the same numbers",
    "rlvr: CHUNK_ELEMENTS = .. 2**25 -> (2 * 25)": "only memory: other chunks, the same numbers",
    "rlvr: for epoch in .. -> ((start + P - 1) * N)": "what is too much is cut off",
    "rlvr: verify_seconds: .. 0.0 -> (1.0)": "roll_out always gives it",
    'eval: values["method"] = spec: .. -> pass': "the flag, the run or the field's default say the same",
    "train: reference = .. False -> (True)": "it is read without gradients",
    "train: torch.manual_seed( .. -> (settings.seed - number)": "still a seed of its own each step",
    "train: sys.exit(str(error) .. 1 -> (2)": "torchrun asks only whether it is 0",
    "sandbox: time.sleep(0.01): .. -> pass": "it waits all the same, busily",
    "sandbox: _leave(0): .. -> pass": "the loop that it goes back to ends at a closed socket",
    "sandbox: if control.recv(1) .. 1 -> (2)": "one byte is sent",
}


def changes(node, field):
    """What a node, the field of another, may become."""
    operators = getattr(node, "ops", [getattr(node, "op", None)])
    swap = SWAPS.get(type(operators[0]).__name__)
    if swap:
        new = getattr(ast, swap)()
        other = copy.copy(node)
        other.op = new
        other.ops = [new, *operators[1:]]
        yield other
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(not node.value if type(node.value) is bool else node.value + 1)
    if isinstance(node, STATEMENTS) and not isinstance(getattr(node, "value", 0), ast.Constant):
        yield ast.Pass()
    if field == "test" and not isinstance(node, ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)


def below(node):
    """The nodes below it, without texts and annotations, each with the name of its field."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns") and not isinstance(node, ast.JoinedStr):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child, field
                    yield from below(child)


def mutants(script):
    """-> of each mutant its name and the text of the script."""
    source = (ROOT / f"{script}.py").read_bytes()
    lines = source.splitlines(keepends=True)
    seen = collections.Counter()
    for node, field in below(ast.parse(source)):
        for other in changes(node, field):
            start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
            end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
            new = f"({ast.unparse(other)})" if isinstance(node, ast.expr) else ast.unparse(other)
            line = lines[node.lineno - 1].decode().strip()
            name = f"{script}: {line}: {source[start:end].decode()} -> {new}"
            seen[name] += 1
            text = source[:start] + new.encode() + source[end:]
            yield name + f" #{seen[name]}" * (seen[name] > 1), text


def killer(folder, script, text):
    """The first test that fails with this text of the script; None: it survives."""
    (folder / f"{script}.py").write_bytes(text)
    files = [f"tests/test_{name}.py" for name in TESTS[script].split()]
    command = [sys.executable, "-B", "-m", "pytest", "-xq", "--tb=no", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run([*command, *files], cwd=folder, stdout=-1, text=True, timeout=1200)
    except subprocess.TimeoutExpired:
        return "no end"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    return None if done.returncode == 0 else failed[1] if failed else "no end"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("file")
    parser.add_argument("scripts", nargs="*", default=list(TESTS))
    parser.add_argument("--seed", help="default: the commit")
    args = parser.parse_args()
    seed = args.seed or subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    folder = Path(tempfile.mkdtemp()) / "main"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", "runs", "__pycache__"))
    known = dict(map(json.loads, open(args.file))) if os.path.exists(args.file) else {}
    for script in args.scripts:
        if killer(folder, script, (ROOT / f"{script}.py").read_bytes()):
            raise SystemExit(
                f"error: {script}'s tests fail without a mutant, so they can kill none"
            )
        drawn = sorted(
            mutants(script), key=lambda m: hashlib.sha256((seed + m[0]).encode()).digest()
        )
        counts = collections.Counter()
        for name, text in drawn[: 20 if script in ("grading", "sandbox") else 30]:
            if name not in known:
                known[name] = killer(folder, script, text)
                shutil.copy(ROOT / f"{script}.py", folder)
                with open(args.file, "a") as file:
                    file.write(json.dumps([name, known[name]]) + "\n")
            pairs = [line.split(" .. ") for line in EQUIVALENT]
            same = any(name.startswith(begin) and name.endswith(end) for begin, end in pairs)
            verdict = "killed" if known[name] else "equivalent" if same else "survived"
            counts[verdict] += 1
            print(f"{name}  {verdict} {known[name] or ''}", flush=True)
        print(script, dict(counts), flush=True)
    shutil.rmtree(folder.parent)


if __name__ == "__main__":
    main()
