"""livecodebench.py - the problems of LiveCodeBench, as a task.

    python -m notebooks.tasks.livecodebench test6.jsonl --out lcb.jsonl
    python eval.py MODEL --task lcb.jsonl

test6.jsonl is a file of livecodebench/code_generation_lite on the Hugging Face
hub. As in its own checker, a tuple counts as a list, and a float may be off by
1e-6, absolutely or relatively.
"""

import base64
import json
import pickletools
import sys
import zlib
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import append_rows, read_json, read_text
from notebooks.command import new_path, parser_of, run_command, say

# The checker imports these ahead of a program, in this order.
BEFORE = "".join(
    f"from {module} import *\nimport {module}\n"
    for module in "string re datetime collections heapq bisect copy math random statistics itertools "
    "functools operator io sys json builtins typing".split()
)
# Part of each test. Tests run outside the program's process: what it returns is only data there.
SAME = """
def same(value, expected):
    if isinstance(expected, list) and isinstance(value, (list, tuple)):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, float) and isinstance(value, (int, float)):
        return abs(value - expected) <= 1e-6 * max(1.0, abs(expected))
    return value == expected
"""


def read_cases(text):
    """Return the test cases [{"input", "output", "testtype"}]. The private ones are a pickled
    text, which is read without running code that a pickle may contain."""
    if not text.lstrip().startswith("["):
        pickled = zlib.decompress(base64.b64decode(text))
        parts = (part for _, part, _ in pickletools.genops(pickled) if isinstance(part, str))
        text = next(parts)
    return json.loads(text)


def as_assert(call, given, due):
    """Return a test that the call, with the arguments in `given` (one JSON value per line),
    returns `due`."""
    arguments = [json.loads(line) for line in given.split("\n")]
    return f"{SAME}assert same({call}(*{arguments!r}), {json.loads(due)!r})"


def as_problem(row):
    """Return a problem for verifiers.code_reward. row: one line of the data set's file."""
    cases = read_cases(row["public_test_cases"]) + read_cases(row["private_test_cases"])
    if not cases:
        raise ValueError(f"problem {row['question_id']} has no test cases")
    starter = row["starter_code"]
    problem = {"problem": row["question_content"], "answer": row["question_id"], "tolerance": 1e-6}
    problem["tests"] = [[case["input"], case["output"]] for case in cases]
    if cases[0]["testtype"] == "functional":
        name = json.loads(row["metadata"])["func_name"]
        in_class = "class Solution" in starter
        call = f"Solution().{name}" if in_class else name
        problem["problem"] += f"\n\nStart from:\n```python\n{starter}\n```"
        problem["entry_points"] = ["Solution" if in_class else name]
        problem["before"] = BEFORE
        problem["tests"] = [as_assert(call, *pair) for pair in problem["tests"]]
    return problem


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("file", help="a file of the data set")
    parser.add_argument("--out", required=True, help="the new file of problems")
    args = parser.parse_args(argv)
    lines = enumerate(read_text(args.file).split("\n"), 1)
    rows = [read_json(line, f"{args.file}, line {n}") for n, line in lines if line.strip()]
    problems = [as_problem(row) for row in rows]
    append_rows(new_path(args.out), problems)
    say(f"{len(problems)} problems are in {args.out}")


if __name__ == "__main__":
    run_command(main, KeyError, ValueError, zlib.error)
