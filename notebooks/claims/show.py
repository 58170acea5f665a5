"""show.py - prints and draws the results of a claim, from results/claims.json alone.

report    prints everything: each number with its range, each check with its power; `claims.py NAME --judge` calls it
show      prints what a notebook needs: a small table, what the checks found, and draws the figure
"""

import json
from pathlib import Path

import numpy as np

from notebooks.command import say

KEPT = Path(__file__).resolve().parents[1] / "results" / "claims.json"
NAMES = {  # the label of a panel's axis (default: the column)
    "right": "held-out accuracy",
    "accuracy": "accuracy in training",
    "completion_length": "tokens per completion",
    "works": "share worked out",
    "bilingual": "share in Chinese",
    "rambling": "share that rambles",
    "padding": "share that is padded",
    "slips": "share with a slip",
    "boxes": "boxes per completion",
    "mixed": "share of mixed groups",
}
ANSWERS = {True: "yes", False: "no", None: "cannot tell"}
ANSWERS |= {"holds": "yes", "does not hold": "no", "cannot tell": "cannot tell"}

# ---- 1. Text ---------------------------------------------------------------------------------------


def read(name, path=KEPT):
    """Return the saved record of a claim, with its runs as "rows"."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    (record,) = [each for each in kept["claims"] if each["name"] == name]
    return record | {"rows": [run for run in kept["runs"] if run["claim"] == name]}


def table_of(rows):
    """Return a function x(arm, column) that gives one number per seed, in the order of the seeds."""

    def x(arm, column):
        return np.array([row.get(column, np.nan) for row in rows if row["arm"] == arm], dtype=float)

    return x


def arms_of(result):
    return [*dict.fromkeys(row["arm"] for row in result["rows"])]


def report(result):
    """Print the table of arms, each check with its power, the results, and the origin of the numbers."""
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
    machine = result["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}"
    where += f", torch {machine['torch']}" if "torch" in machine else ""
    minutes = result["seconds"] / 60
    say(f"{result['commands'][0]}   ({minutes:.1f} min, {where}, commit {result['commit']})")
    say(f"what would change our mind: {result['change our mind']}")


def print_narrow(table):
    """Print rows of texts. A table wider than 79 columns is printed in parts, each with the first column."""
    columns = [[cell.ljust(max(map(len, column))) for cell in column] for column in zip(*table)]
    first, *others = columns
    while others:
        part = [first]
        while others and sum(len(column[0]) + 2 for column in [*part, others[0]]) <= 81:
            part.append(others.pop(0))
        for cells in zip(*part):
            print("  ".join(cells).rstrip())


def cell_of(values):
    """Return "mean [lowest-highest]", or an empty text if the column was not measured in this arm."""
    if np.isnan(values).all():
        return ""
    digits = 3 if np.nanmax([*values, 0]) <= 1.2 else 1
    parts = (values.mean(), values.min(), values.max())
    mean, low, high = (f"{value:.{digits}f}" for value in parts)
    return f"{mean} [{low}-{high}]"


def labelled(names):
    return names if isinstance(names, dict) else dict(zip(names, names))


def means(result, arms, columns):
    """Return rows of texts, the headings first. arms, columns: names, or {name: label}."""
    x = table_of(result["rows"])
    columns = labelled(columns)
    table = [["", *columns.values()]]
    for arm, label in labelled(arms).items():
        found = [x(arm, column).mean() for column in columns]
        texts = ["" if np.isnan(mean) else f"{mean:.{1 if mean >= 10 else 2}f}" for mean in found]
        table.append([label, *texts])
    return table


def answers(result, said=None):
    """Return {"yes": names, ..}: the parts of a claim by their result, or its checks if it has no parts. said: other
    names for the parts or checks, in their order."""
    found = {part: holds for part, holds in result["verdicts"].items() if part != "controls"}
    if [*found] == ["claim"]:
        found = {check["sentence"]: check["holds"] for check in result["checks"]["claim"]}
    by = {}
    for name, holds in zip(said or found, found.values(), strict=True):
        by.setdefault(ANSWERS[holds], []).append(name)
    if "controls" in result["verdicts"]:
        by["controls as expected"] = [ANSWERS[result["verdicts"]["controls"]]]
    return by


def show(name, finding="", columns=None, arms=None, table=None, said=None):
    """Print the means of some columns and what the checks found. Returns the figure, if the claim has curves.

    finding   the title of the figure
    columns   the columns of its panels (default: those of the claim)
    arms      the arms that are shown, or {arm: its label} (default: all)
    table     the columns of the table, or {column: its heading} (default: those of the claim)
    said      plain words for the parts or checks of the claim, in their order"""
    result = read(name)
    print_narrow(means(result, arms or arms_of(result), table or result["columns"]))
    for answer, named in answers(result, said).items():
        say(f"{answer}: {'; '.join(named)}")
    print(f"all checks: python -m notebooks.claims.claims {name} --judge")
    return draw(result, finding, columns, arms) if "curves" in result["rows"][0] else None


# ---- 2. Figure -------------------------------------------------------------------------------------


def draw(result, finding, columns=None, arms=None):
    """Draw a panel for each column, below the finding: the mean of an arm's seeds as a line, their range as a band. An
    arm without a curve of the column is left out."""
    # Imported here, because trying a claim needs no matplotlib.
    from notebooks.look.style import band, name_lines, panels

    columns = columns or result["panels"]
    _, axes = panels(finding, names=[""] * len(columns), xlabel="step")
    for axis, column in zip(axes, columns):
        for i, (arm, label) in enumerate(labelled(arms or arms_of(result)).items()):
            own = [row["curves"].get(column) for row in result["rows"] if row["arm"] == arm]
            if all(own):
                curves = [{int(step): value for step, value in curve.items()} for curve in own]
                band(axis, curves, label, f"C{i}")
        axis.set(ylabel=NAMES.get(column, column), ylim=(0, None))
    return name_lines(*axes)
