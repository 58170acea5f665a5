"""How many completions a second each verifier scores, and how testing a program compares to starting Python:

    python tests/bench_verifiers.py

The textbook's verify_code ("RLVR") starts a Python for every test. The last line is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]
from notebooks.rewards.process import verify_steps
from notebooks.rewards.structured import verify_tool_call, verify_translation
from notebooks.rewards.reasoning import r1
from verifiers import reward_rlvr, verify_code, verify_format, verify_math, verify_stdio  # noqa: E402

CODE, TESTS = "def f(x):\n    return x + 1\n", [f"assert f({i}) == {i + 1}" for i in range(5)]
ROLLOUT = (
    "<think>"
    + ";".join(f"{n}+7={n + 7}" for n in range(30))
    + r"</think><answer>\boxed{\frac{37}{2}}</answer>"
)
CALL = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
SENTENCE = "the quick brown fox jumps over the lazy dog and runs away from the old hunter"


def textbook():
    """Run the chapter's baseline: one subprocess per test; exit code 0 is a pass."""
    passed = 0
    for test in TESTS:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(f"{CODE}\n{test}\n")
            file.flush()
            passed += (
                subprocess.run(
                    [sys.executable, file.name], capture_output=True, timeout=2
                ).returncode
                == 0
            )
    return passed / len(TESTS)


def rate(action, seconds):
    action()
    began, n = time.perf_counter(), 0
    while (spent := time.perf_counter() - began) < seconds:
        action()
        n += 1
    return n / spent


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row (default: 2)")
    seconds = parser.parse_args().seconds
    threads = os.cpu_count()
    start = [sys.executable, "-I", "-S", "-c", "pass"]
    with ThreadPoolExecutor(threads) as pool:
        rows = {
            "reward_rlvr, equal strings": lambda: reward_rlvr(
                r"\boxed{\frac{37}{2}}", r"\frac{37}{2}"
            ),
            "verify_math, equal values": lambda: verify_math(ROLLOUT, "18.5"),
            "verify_format": lambda: verify_format(ROLLOUT),
            "verify_steps, 30 equations": lambda: verify_steps(ROLLOUT),
            "ReasoningReward r1": lambda: r1(ROLLOUT, {"answer": "18.5"}),
            "verify_tool_call": lambda: verify_tool_call(CALL, {"search": {}}),
            "verify_translation, 15 words": lambda: verify_translation(SENTENCE, SENTENCE),
            "verify_code, 5 tests": lambda: verify_code(CODE, TESTS),
            f"verify_code, 5 tests, {threads} threads": lambda: list(
                pool.map(lambda _: verify_code(CODE, TESTS), range(threads))
            ),
            "verify_stdio, 1 case": lambda: verify_stdio("print(int(input()) + 1)", [("1", "2")]),
            "python -I -S -c pass": lambda: subprocess.run(start, stdin=subprocess.DEVNULL),
            "the textbook's, 5 tests": textbook,
        }
        rates = {
            name: rate(action, seconds) * (threads if "threads" in name else 1)
            for name, action in rows.items()
        }
    for name, value in rates.items():
        print(f"{name:36} {value:12,.0f} / s")
    bare, ours = rates["python -I -S -c pass"], rates["verify_code, 5 tests"]
    ratios = {
        "verify_code / python": ours / bare,
        "verify_code / textbook": ours / rates["the textbook's, 5 tests"],
    }
    print(
        json.dumps(
            {
                "columns": ["verifier", "per second"],
                "rows": [[name, f"{value:,.0f}"] for name, value in rates.items()],
                "per_second": {name: round(value, 1) for name, value in rates.items()},
                "threads": threads,
                **{name: round(value, 2) for name, value in ratios.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
