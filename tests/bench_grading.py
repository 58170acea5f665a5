"""The math grader against Math-Verify on labelled pairs: right, false accepts and rejects, time.

    python tests/bench_grading.py [--cases FILE.jsonl]
    pip install "math-verify[antlr4_13_2]"              (for the second row)

A case is one JSON object a line: gold, pred, expect (true or false; null = debatable, left out).
Both graders get every case in this one process, in turn, so that a slow moment of the machine hits
both. Last line: a JSON object.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from verifiers import grade_answer  # noqa: E402


def math_verify_grader():
    """Math-Verify at its best: both sides as boxed LaTeX, falling back to its expression parser."""
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ImportError:
        return None
    logging.disable(logging.CRITICAL)
    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def grade(predicted, ground_truth):
        gold, pred = (
            parse(rf"\boxed{{{text}}}", extraction_config=configs)
            for text in (ground_truth, predicted)
        )
        return bool(verify(gold, pred))

    return grade


def timed(grader, predicted, ground_truth):
    start = time.perf_counter()
    try:
        verdict = grader(predicted, ground_truth)
    except Exception:
        verdict = None  # counts as wrong
    return verdict, 1e3 * (time.perf_counter() - start)


def summary(cases, results):
    milliseconds = sorted(ms for _, ms in results)
    verdicts = [(case["expect"], verdict) for case, (verdict, _) in zip(cases, results)]
    return {
        "accuracy": sum(e is v for e, v in verdicts) / len(verdicts),
        "false_accepts": sum(v is True and not e for e, v in verdicts),
        "false_rejects": sum(v is not True and e for e, v in verdicts),
        "p50_ms": statistics.median(milliseconds),
        "p99_ms": milliseconds[int(0.99 * len(milliseconds))],
        "worst_ms": milliseconds[-1],
    }


COLUMNS = ["grader", "right", "false accepts", "false rejects", "median", "p99", "worst"]


def cells(row):
    """What follows the name in a row of COLUMNS."""
    counts = [f"{row['accuracy']:.1%}", str(row["false_accepts"]), str(row["false_rejects"])]
    times = [row[key] for key in ("p50_ms", "p99_ms", "worst_ms")]
    return counts + [f"{time:.0f} ms" if time > 10 else f"{time:.2g} ms" for time in times]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shipped = os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..", "notebooks", "check_verifier.jsonl"
    )
    parser.add_argument(
        "--cases", default=shipped, help="labelled cases (default: notebooks/check_verifier.jsonl)"
    )
    path = parser.parse_args().cases
    with open(path, encoding="utf-8") as file:
        cases = [
            case for case in map(json.loads, file) if case["expect"] is not None and "pred" in case
        ]
    graders = {"ours": grade_answer, "math-verify": math_verify_grader()}
    if graders["math-verify"] is None:
        print("math-verify is not installed: only our own row\n")
        del graders["math-verify"]
    for grader in graders.values():
        timed(grader, r"\frac{1}{2}+x", "0.5+x")  # imports and caches are not what we time
    results = {name: [] for name in graders}
    for case in cases:
        for name, grader in graders.items():
            results[name].append(timed(grader, case["pred"], case["gold"]))
    rows = {name: summary(cases, r) for name, r in results.items()}
    print(f"{len(cases)} labelled pairs from {path}\n")
    print(
        f"{'grader':<12} {'right':>8} {'false acc.':>11} {'false rej.':>11} "
        f"{'p50 ms':>9} {'p99 ms':>9} {'worst ms':>9}"
    )
    for name, row in rows.items():
        print(
            f"{name:<12} {row['accuracy']:>8.1%} {row['false_accepts']:>11} "
            f"{row['false_rejects']:>11} {row['p50_ms']:>9.3f} {row['p99_ms']:>9.2f} "
            f"{row['worst_ms']:>9.1f}"
        )
    if len(rows) > 1:
        ratio = rows["ours"]["p50_ms"] / rows["math-verify"]["p50_ms"]
        print(f"\nours takes {ratio:.3f} of math-verify's median time")
    names = {"ours": "`grade_answer`", "math-verify": "Math-Verify"}
    table = [[f"{names[name]}, {len(cases)} pairs", *cells(row)] for name, row in rows.items()]
    print(json.dumps({"columns": COLUMNS, "rows": table, "cases": len(cases), **rows}))


if __name__ == "__main__":
    main()
