"""check_verifier.py - judge the judge: a verifier against labelled answers.

python -m notebooks.look.check_verifier notebooks/check_verifier.jsonl [--reward boxed]
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter

import eval as core
import verifiers
from notebooks.look.compare import regrade
from verifiers import DataError, grade_answer


def check_verifier(rows, reward):
    """Verdicts against labels -> (number of right verdicts, the wrong ones as (kind, row)).

    rows: "gold" and "expect" (true, false, or null: debatable, not counted), and "pred", an answer for
    grade_answer, or "completion", a text for the reward. False accepts are worse: training finds them.
    """
    right = 0
    wrong = []
    for row in rows:
        if row.get("expect") is None:
            continue
        if "pred" in row:
            accepted = grade_answer(row["pred"], row["gold"])
        else:
            (record,) = regrade([{"answer": row["gold"], **row}], reward)
            accepted = record["accuracy"] == 1
        if accepted == row["expect"]:
            right += 1
        else:
            wrong.append(("false accept" if accepted else "false reject", row))
    return right, wrong


def judge_verifier(path, spec):
    """The command check-verifier: its accuracy on labelled answers, and the disagreements to read."""
    rows = core.read_rows(path)
    for number, row in enumerate(rows, 1):
        texts = (row.get("gold"), row.get("pred", row.get("completion")))
        if "expect" not in row or not all(isinstance(text, str) for text in texts):
            form = '"gold" and "pred" (or "completion") must be text, and "expect" be there'
            raise DataError(f"{path}, entry {number}: {form}")
    right, wrong = check_verifier(rows, verifiers.get_reward(spec))
    n = right + len(wrong)
    kinds = Counter(kind for kind, _ in wrong)
    low, high = core.wilson_interval(right / max(1, n), max(1, n))
    print(
        f"{n} labelled answers: {right / max(1, n):.2%} judged right [{low:.2%}, {high:.2%}], "
        f"{kinds['false accept']} false accepts, {kinds['false reject']} false rejects"
    )
    for kind, row in wrong:
        print(
            f"    {kind}: truth {row['gold']!r}, answer {row.get('pred', row.get('completion'))!r}"
        )


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("file", help='.jsonl: "gold", "expect", and "pred" or "completion"')
    parser.add_argument("--reward", default="boxed", help="whose verdict counts (default: boxed)")
    args = parser.parse_args(argv)
    judge_verifier(args.file, args.reward)


if __name__ == "__main__":
    try:
        main()
    except (DataError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
