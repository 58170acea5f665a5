"""style.py - one look for every figure of the pages and notebooks.

A figure is 700 pixels wide and has no box. Its six colours can be told apart by
colour-blind readers (Okabe and Ito, "Color Universal Design", 2008). A title
states what is to be seen, and a line has its name at its end:

    figure, (left, right) = panels("Accuracy rises", "and so does length", xlabel="step")
    left.plot(steps, accuracy, label="sampled")
    name_lines(left)
"""

import io
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure

from notebooks.command import say

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
STYLE = {
    "figure.dpi": 100,
    "font.size": 9,
    "axes.titlesize": 10,
    "figure.titlesize": 10,
    "figure.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0,  # names begin where the axes end
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
    "grid.color": "#e6e6e6",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 2,
    "savefig.pad_inches": 0.04,
    "path.simplify": False,  # every point is drawn
    "svg.hashsalt": "rlvr",  # the same file for the same numbers
}
matplotlib.rcParams.update(STYLE)
GAP = 12  # points between two names
NAME = dict(textcoords="offset points", weight="bold", va="center", annotation_clip=False)


class Drawing(Figure):
    """A figure that a notebook shows if it is the last value of a cell."""

    def _repr_png_(self):
        file = io.BytesIO()
        self.savefig(file)
        return file.getvalue()


def panels(*titles, names=(), rows=1, height=2.6, width=7, **axis):
    """Return (figure, axes). titles: one for each panel, or a single one for the figure if each panel has one of the
    names. height: inches of a row. axis: settings that all panels share, such as xlabel."""
    figure = Drawing(figsize=(width, height * rows), layout="constrained")
    axes = figure.subplots(rows, len(names or titles) // rows, squeeze=False).flatten()
    if names:
        figure.suptitle(*titles, x=0.01, ha="left")
    for each, title in zip(axes, names or titles):
        each.set_title(title, weight="normal" if names else "bold")
        each.set(**axis)
    return figure, axes


def band(axis, curves, label=None, color=None):
    """Draw the mean of some runs as a line, and their lowest to highest values as a band. curves: {step: value} of
    each run. Prints the steps that are left out because not every run has reached them."""
    steps = sorted(set.intersection(*map(set, curves)))
    others = sorted(set().union(*curves).difference(steps))
    if others:
        say(f"{label}: left out are steps that not every run has: {' '.join(map(str, others))}")
    values = [[curve[step] for curve in curves] for step in steps]
    (line,) = axis.plot(steps, [sum(v) / len(v) for v in values], color=color, label=label)
    lowest, highest = [*map(min, values)], [*map(max, values)]
    axis.fill_between(steps, lowest, highest, color=line.get_color(), alpha=0.15, linewidth=0)
    return line


def name_lines(*axes):
    """Write each line's label at its end, in its colour, so that no two overlap. Returns the figure."""
    axes[0].figure.draw_without_rendering()  # places the axes
    points = 72 / axes[0].figure.dpi
    for axis in axes:
        named = [line for line in axis.lines if not line.get_label().startswith("_")]
        ends = {line: line.get_xydata()[-1] for line in named}
        heights = {line: axis.transData.transform(ends[line])[1] * points for line in named}
        named.sort(key=heights.get)
        bottom, top = axis.bbox.y0 * points, axis.bbox.y1 * points - GAP / 2
        places = spread([heights[line] for line in named], bottom, top)
        for line, place in zip(named, places):
            beside = 5, place - heights[line]
            axis.annotate(line.get_label(), ends[line], beside, color=line.get_color(), **NAME)
    return axes[0].figure


def spread(heights, bottom, top):
    """Move ascending heights to at least GAP apart, and as little as possible (pool adjacent violators)."""
    pools = []
    for i, height in enumerate(heights):
        pools.append([height - i * GAP])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    highest = top - (len(heights) - 1) * GAP
    levels = [fmean(pool) for pool in pools for _ in pool]
    return [i * GAP + min(max(level, bottom), highest) for i, level in enumerate(levels)]
