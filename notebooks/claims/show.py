"""show.py - what a page shows of a claim: a table, checks and verdicts, a figure; from results/claims.json alone."""

import json
from pathlib import Path

import numpy as np

from notebooks.command import say

KEPT = Path(__file__).resolve().parents[1] / "results" / "claims.json"
NAMES = {  # beside a panel; any other column's is its own
    "right": "held-out accuracy, sampled",
    "accuracy": "accuracy of a step's samples",
    "completion_length": "tokens per completion",
    "works": "share worked out",
    "bilingual": "share in Chinese",
    "rambling": "share that rambles",
    "padding": "share that is padded",
    "slips": "share with a slip",
    "boxes": "boxes per completion",
    "mixed": "share of mixed groups",
}

# ---- 1. Text ---------------------------------------------------------------------------------------


def read(name, path=KEPT):
    """What is kept of a claim: its record, and its runs as "rows"."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    (record,) = [each for each in kept["claims"] if each["name"] == name]
    return record | {"rows": [run for run in kept["runs"] if run["claim"] == name]}


def table_of(rows):
    """-> x(arm, column): the numbers of the seeds, in their order."""

    def x(arm, column):
        return np.array([row.get(column, np.nan) for row in rows if row["arm"] == arm], dtype=float)

    return x


def arms_of(result):
    return [*dict.fromkeys(row["arm"] for row in result["rows"])]


def report(result):
    """Print the table of arms, each check with its power, and the verdicts."""
    x = table_of(result["rows"])
    trained = f", {result['steps']} steps" if result["steps"] else ""
    say(result["claim"], hang="")
    print(f"{len(result['seeds'])} seeds{trained}: mean [lowest-highest]")
    table = [["", "rate", *result["columns"]]]
    for arm in arms_of(result):
        rate = x(arm, "rate")[0]
        cells = [cell_of(x(arm, column)) for column in result["columns"]]
        table.append([arm, f"{rate:g}" if rate else "", *cells])
    print_narrow(table)
    for said, checks in result["checks"].items():
        print(f"{said}: {result['verdicts'][said]}")
        for check in checks:
            answer = {True: "yes", False: "NO ", None: " ? "}[check["holds"]]
            line = f"the line is at {check['line']:.2f}"
            power = f"these seeds could have shown {check['smallest effect']:.2f}"
            say(f"{answer} {check['sentence']}: {check['mean']:+.3f}; {line}, {power}", "  ")


def print_narrow(table):
    """Rows of texts, in as many parts as 79 columns need. Each part begins with the first column."""
    columns = [[cell.ljust(max(map(len, column))) for cell in column] for column in zip(*table)]
    first, *others = columns
    while others:
        part = [first]
        while others and sum(len(column[0]) + 2 for column in [*part, others[0]]) <= 81:
            part.append(others.pop(0))
        for cells in zip(*part):
            print("  ".join(cells).rstrip())


def cell_of(values):
    """Mean [lowest-highest]; nothing where it was not measured, as of an arm without a bonus."""
    if np.isnan(values).all():
        return ""
    digits = 3 if np.nanmax([*values, 0]) <= 1.2 else 1
    parts = (values.mean(), values.min(), values.max())
    mean, low, high = (f"{value:.{digits}f}" for value in parts)
    return f"{mean} [{low}-{high}]"


def show(name, *drawn):
    """Print what a page says of a claim: arms, checks, verdicts, command -> its figure, if it has curves. drawn: the
    figure's finding, and what else draw takes."""
    result = read(name)
    report(result)
    machine = result["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}"
    where += f", torch {machine['torch']}" if "torch" in machine else ""
    minutes = result["seconds"] / 60
    say(f"{result['commands'][0]}   ({minutes:.1f} min, {where}, commit {result['commit']})")
    say(f"what would change our mind: {result['change our mind']}")
    return draw(result, *drawn) if "curves" in result["rows"][0] else None


# ---- 2. Figure -------------------------------------------------------------------------------------


def draw(result, finding, columns=None, arms=None):
    """A panel for each column, below the finding: the mean of an arm's seeds as a line, lowest to highest as a band."""
    # Imported here, because trying a claim needs no matplotlib.
    from notebooks.look.style import band, name_lines, panels

    columns = columns or result["panels"]
    _, axes = panels(finding, names=[""] * len(columns), xlabel="step")
    for axis, column in zip(axes, columns):
        for arm in arms or arms_of(result):
            own = [row["curves"][column] for row in result["rows"] if row["arm"] == arm]
            band(axis, [{int(step): value for step, value in curve.items()} for curve in own], arm)
        axis.set(ylabel=NAMES.get(column, column), ylim=(0, None))
    return name_lines(*axes)
