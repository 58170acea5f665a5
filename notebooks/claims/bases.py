"""bases.py - how accurate each base model is before any training, in one table.

    python -m notebooks.claims.bases        reads the results that other commands wrote, and measures nothing

Accuracies are shares of completions. The same base has several: another decoding (greedy or sampled), other problems
or another reward give another number, and so does another draw. So each row says what was asked and where it is from.
"""

import json
import re
import statistics
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1]


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


def of_claim(base, problems, name, arm, column="right@0", greedy=""):
    """A row from results/claims_NAME.json: a column of an arm, by seed; greedy: that of greedy answers, if there is
    one."""
    rows = [row for row in load(f"claims_{name}")["rows"] if row["arm"] == arm]
    likeliest = over_seeds([row[greedy] for row in rows]) if greedy else ""
    sampled = over_seeds([row[column] for row in rows])
    return [base, problems, likeliest, sampled, f"`claims_{name}`"]


def tiny():
    runs = load("main")["details"][0]["runs"]
    greedy = digits(runs[0]["greedy"]["0"])
    sampled = over_seeds([run["sampled"]["0"] for run in runs])
    return ["tiny, one base", "500 sums, five draws", greedy, sampled, "`main`"]


def smollm2(name, run, problems):
    """A row of a table of seeds.py: its third column is "greedy, sampled" before training, and the last line of a run
    has the number of problems."""
    result = load(name)
    place = [row[0] for row in result["rows"]].index(run)
    greedy, sampled = result["rows"][place][2].split(", ")
    last_line = result["details"][place]["runs"][0]["last line"]
    count = re.search(r"n=(\d+)", last_line)[1]
    return ["SmolLM2-135M", f"{count} {problems}", greedy, sampled, f"`{name}`"]


def table():
    usual = "usual: tiny and two more"
    guessing = "guessing: never shows a step"
    hasty = "hasty: its most frequent answer is wrong"
    bilingual = "bilingual: works out mostly in Chinese"
    calling = "calling: may ask a calculator"
    short = "200 sums of 2 to 4 steps, box only"
    long = "100 sums of 2 to 7 steps, box only"
    pass_at_1 = load("before_after")["rows"][0][1]
    return [
        tiny(),
        of_claim(usual, "200 sums", "selection", "default", greedy="greedy@0"),
        of_claim("the same", "200 sums, box only", "controls", "random"),
        of_claim("the same", short, "noise", "base", "pass@1"),
        of_claim("the same", long, "objectives", "base", "pass@1"),
        of_claim(guessing, "200 sums", "selection", "guessing", greedy="greedy@0"),
        of_claim(bilingual, "200 sums", "design", "A, bilingual base"),
        of_claim(hasty, "200 sums", "ttrl", "majority, hasty"),
        of_claim("rarely right", short, "groups", "low, base", "pass@1"),
        of_claim("mostly right", short, "groups", "high, base", "pass@1"),
        of_claim(calling, "200 products, with it", "tools", "masked"),
        of_claim(calling, "200 products, it is silent", "tools", "silent tool"),
        smollm2("sums", "sums", "sums of two numbers"),
        ["SmolLM2-135M", "36 of these, 64 completions each", "", pass_at_1, "`before_after`"],
        smollm2("other_tasks", "digit-sums", "sums of two terms, reasoning-gym's wording"),
        smollm2("other_tasks", "all-sizes", "sums from 16 on"),
        smollm2("other_tasks", "one-wording", "sums, in another wording"),
    ]


if __name__ == "__main__":
    print(json.dumps({"columns": COLUMNS, "rows": table()}, ensure_ascii=False))
