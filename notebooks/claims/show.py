"""show.py - what a page shows of a claim: a table, checks and verdicts, a figure; from notebooks/results alone."""

import json
import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from notebooks.look.curve import band

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "notebooks" / "results"
TITLES = {  # of a figure's panels; any other column's is its name
    "right": "held-out accuracy, sampled",
    "right@20": "held-out accuracy, step 20",
    "paid": "held-out reward",
    "reward": "training reward",
    "accuracy": "accuracy of a step's samples",
    "length": "tokens per completion",
    "completion_length": "tokens per completion",
    "works": "share worked out",
    "bilingual": "share in Chinese",
    "rambling": "share that rambles",
    "boxes": "boxes per completion",
    "mixed": "share of mixed groups",
    "mixed@mean": "share of mixed groups",
    "solved": "share of solved groups",
    "hopeless": "share of hopeless groups",
    "clipped": "share of clipped tokens",
    "entropy": "entropy, nats",
    "mismatch@mean": "mismatch, nats a token",
    "grad_norm": "gradient norm",
    "used": "thousand tokens sampled",
    "kept, last": "a wrong last step",
    "kept, earlier": "a wrong earlier step, rest kept",
    "continued, earlier": "a wrong earlier step, continued",
}

# ---- 1. Text ---------------------------------------------------------------------------------------


def read(name):
    """A result that has been written."""
    return json.loads((RESULTS / f"claims_{name}.json").read_text())


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
    print(f"{result['claim']}\n{len(result['seeds'])} seeds{trained}: mean [lowest-highest]")
    table = [["", "rate", *result["columns"]]]
    for arm in arms_of(result):
        rate = f"{result['rates'][arm]:g}" if arm in result["rates"] else ""
        cells = [cell_of(x(arm, column), column) for column in result["columns"]]
        table.append([arm, rate, *cells])
    widths = [max(map(len, column)) for column in zip(*table)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
    for said, checks in result["checks"].items():
        print(f"{said}: {result['verdicts'][said]}")
        for check in checks:
            answer = {True: "yes", False: "NO ", None: " ? "}[check["holds"]]
            line = f"the line is at {check['line']:.2f}"
            power = f"these seeds could have shown {check['smallest effect']:.2f}"
            print(f"  {answer} {check['sentence']}: {check['mean']:+.3f}; {line}, {power}")


def cell_of(values, column):
    """Mean [lowest-highest]; of first steps, and where some never happened, the values one by one; nothing where it was
    not measured, as without training."""
    if np.isnan(values).all():
        return ""
    if column.endswith("@first") or np.isinf(values).any():
        return ", ".join("never" if np.isinf(value) else f"{value:.0f}" for value in values)
    digits = 3 if np.nanmax([*values, 0]) <= 1.2 else 1
    parts = (values.mean(), values.min(), values.max())
    mean, low, high = (f"{value:.{digits}f}".removeprefix("0") for value in parts)
    return f"{mean} [{low}-{high}]"


def show(name):
    """Print what a page says of a claim: arms, checks, verdicts, command, source -> its figure."""
    result = read(name)
    report(result)
    minutes = result["seconds"] / 60
    print(f"{result['command']}   ({minutes:.1f} min, {result['machine']}, commit {result['git']})")
    for title in ("source", "change our mind"):
        text = f"{title.replace('change', 'what would change')}: {result[title]}"
        print(textwrap.fill(text, 118, subsequent_indent="    "))
    return draw(result)


def summary(names):
    """Print each claim, and of each thing that is said its verdict and the smallest effect that the seeds could
    have shown, of the check that could show least."""
    for name in names:
        result = read(name)
        print(f"{name}: {result['claim']}\n    {result['source']}")
        for said, checks in result["checks"].items():
            power = max(check["smallest effect"] for check in checks)
            print(f"    {result['verdicts'][said]:14} {said:50} {power:.2f}")


# ---- 2. Figure -------------------------------------------------------------------------------------


def draw(result):
    """A panel for each column. Over steps or tokens: the mean of an arm's seeds as a line, lowest to highest as a
    band. Else every seed is a dot, the mean a bar. And where the result names two columns as its plane, one
    more: every run a dot between them, and as rings the runs on which the rates were chosen."""
    return draw_curves(result) if result["over"] else draw_dots(result)


def draw_curves(result):
    panels = result["panels"]
    figure = Figure(figsize=(1 + 3.6 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    trained = dict.fromkeys(row["arm"] for row in result["rows"] if "curves" in row)
    for axis, column in zip(axes, panels):
        for place, arm in enumerate(trained):
            own = [row["curves"][column] for row in result["rows"] if row["arm"] == arm]
            curves = [{float(at): value for at, value in points.items()} for points in own]
            if result["over"] != "step":
                curves = on_one_grid(curves)
            band(axis, curves, arm, f"C{place}")
        axis.set_title(TITLES.get(column, column), fontsize=10)
        axis.set_xlabel(TITLES.get(result["over"], result["over"]))
        axis.set_ylim(0, None)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def on_one_grid(curves, points=40):
    """Curves that were measured at different places, at the same ones: by straight lines between."""
    end = min(max(curve) for curve in curves)
    grid = np.linspace(0, end, points)
    return [dict(zip(grid, np.interp(grid, list(curve), list(curve.values())))) for curve in curves]


def draw_dots(result):
    x = table_of(result["rows"])
    arms = arms_of(result)
    panels = result["panels"]
    count = len(panels) + bool(result["plane"])
    size = (3 + 2.6 * count, max(3.0, 1.2 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, column in zip(axes, panels):
        for place, arm in enumerate(arms):
            draw_seeds(axis, x(arm, column), place)
        axis.set(xlabel=TITLES.get(column, column), ylim=(len(arms) - 0.5, -0.5))
        axis.set_yticks(range(len(arms)), arms if axis is axes[0] else [""] * len(arms))
        axis.grid(axis="x", alpha=0.3)
    if result["plane"]:
        draw_plane(axes[-1], result, *result["plane"])
    return figure


def draw_seeds(axis, values, place):
    color = f"C{place % 10}"
    axis.plot(values, [place] * len(values), "o", color=color, alpha=0.5, markersize=5)
    axis.plot(values.mean(), place, "|", color=color, markersize=16, markeredgewidth=2)


def draw_plane(axis, result, across, up):
    arms = arms_of(result)
    for rows, style in ((result["tries"], "none"), (result["rows"], "full")):
        for row in rows:
            color = f"C{arms.index(row['arm']) % 10}"
            axis.plot(row[across], row[up], "o", color=color, fillstyle=style, markersize=5)
    axis.set(xlabel=across, ylabel=up)
    axis.grid(alpha=0.3)
