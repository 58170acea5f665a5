"""bases.py - how accurate each base model is before any training, in one table.

    python notebooks/experiments/bases.py        reads the results that other commands wrote, and measures nothing

Accuracies are shares of completions. The same base has several: another decoding (greedy or sampled), other problems
or another reward give another number, and so does another draw. So each row says what was asked and where it is from.
"""

import json
import re
import statistics

from _root import NOTEBOOKS

RESULTS = NOTEBOOKS / "results"
COLUMNS = ["base", "problems", "greedy", "sampled at temperature 1", "from"]


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def digits(value):
    return f"{value:.3f}".removeprefix("0")


def over_seeds(values):
    """Mean [lowest - highest]."""
    lowest, highest = min(values), max(values)
    return f"{digits(statistics.fmean(values))} [{digits(lowest)} - {digits(highest)}]"


def rows_of(name, arm, column):
    """A column of an arm of a claim, by seed."""
    return over_seeds([row[column] for row in load(name)["rows"] if row["arm"] == arm])


def printed(experiment, arm):
    """The first column (right@0) that experiments.py printed for an arm."""
    text = (NOTEBOOKS / "experiments" / "RESULTS.md").read_text()
    section = text.partition(f"\n## {experiment}\n")[2].partition("\n## ")[0]
    return re.search(rf"^{re.escape(arm)} +(\S+ \[\S+\])", section, flags=re.M)[1].replace(
        "-", " - "
    )


def tiny():
    runs = load("main")["details"][0]["runs"]
    greedy = digits(runs[0]["greedy"]["0"])
    sampled = over_seeds([run["sampled"]["0"] for run in runs])
    return ["tiny, one base", "500 sums, five draws", greedy, sampled, "`main`"]


def smollm2(name, run, problems):
    """A row of a table of seeds.py: its third column is "greedy, sampled" before training."""
    (before,) = [row[2] for row in load(name)["rows"] if row[0] == run]
    greedy, sampled = before.split(", ")
    return ["SmolLM2-135M", problems, greedy, sampled, f"`{name}`"]


def table():
    experiments = "[RESULTS](experiments/RESULTS.md)"
    pass_at_1 = load("before_after")["rows"][0][1]
    return [
        tiny(),
        ["usual: tiny and two more", "200 sums", "", printed("growth", "default"), experiments],
        [
            "the same",
            "200 sums of 2 to 4 steps, box only",
            "",
            rows_of("claims_noise", "base", "pass@1"),
            "`claims_noise`",
        ],
        [
            "the same",
            "100 sums of 2 to 7 steps, box only",
            "",
            rows_of("claims_objectives", "base", "pass@1"),
            "`claims_objectives`",
        ],
        [
            "guessing: never shows a step",
            "200 sums",
            "",
            printed("selection", "guessing"),
            experiments,
        ],
        [
            "bilingual: works out mostly in Chinese",
            "200 sums",
            "",
            printed("design", "A, bilingual base"),
            experiments,
        ],
        [
            "hasty: a wrong answer is its most frequent",
            "200 sums",
            "",
            rows_of("claims_ttrl", "majority, hasty", "right@0"),
            "`claims_ttrl`",
        ],
        [
            "rarely right",
            "200 sums of 2 to 4 steps, box only",
            "",
            rows_of("claims_groups", "low, base", "pass@1"),
            "`claims_groups`",
        ],
        [
            "mostly right",
            "the same",
            "",
            rows_of("claims_groups", "high, base", "pass@1"),
            "`claims_groups`",
        ],
        [
            "calling: may ask a calculator",
            "200 products, with the calculator",
            "",
            rows_of("claims_tools", "masked", "right@0"),
            "`claims_tools`",
        ],
        [
            "the same",
            "the calculator is silent",
            "",
            rows_of("claims_tools", "silent tool", "right@0"),
            "`claims_tools`",
        ],
        smollm2("sums", "sums", "72 sums of two numbers"),
        ["the same", "36 of these, 64 completions each", "", pass_at_1, "`before_after`"],
        smollm2("other_tasks", "digit-sums", "72 sums of two digits (reasoning-gym's wording)"),
        smollm2("other_tasks", "all-sizes", "57 sums from 16 on"),
        smollm2("other_tasks", "one-wording", "72 sums, in another wording"),
    ]


if __name__ == "__main__":
    print(json.dumps({"columns": COLUMNS, "rows": table()}, ensure_ascii=False))
