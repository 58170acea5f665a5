"""lesson.py - the first cell of every notebook: it goes to the project's folder and draws a map of the step.

    from lesson import you_are_here

    you_are_here("rewards")

A notebook starts in its own folder, notebooks/. Importing this file makes the folder above it the working directory
and a place to import from.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEP = "problem policy completions verifier rewards advantages loss update".split()
LOG = "log"  # on the way back from the update to the policy
WIDTH, HEIGHT, GAP = 701, 30, 13  # pixels: the drawing's width, a box's height, the gap
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" {2}>{3}</svg>'
TEXT = 'font-family="Helvetica, Arial, sans-serif" font-size="12" text-anchor="middle"'

os.chdir(ROOT)
sys.path.insert(0, str(ROOT))


class Boxes:
    """Boxes in a row. lit: the names of the blue ones. A loop leads from the last box back to the second."""

    def __init__(self, names, lit=(), loop=False):
        self.names = names
        self.lit = lit
        self.loop = loop
        self.width = (WIDTH - 2 - GAP * (len(names) - 1)) / len(names)

    def __repr__(self):
        return " > ".join(name.upper() if name in self.lit else name for name in self.names)

    def box(self, name, x, y, height=HEIGHT):
        fill, color = ("#0072B2", "#ffffff") if name in self.lit else ("#f4f4f4", "#444444")
        size = f'x="{x:.1f}" y="{y}" width="{self.width:.1f}" height="{height}" rx="5"'
        text = f'x="{x + self.width / 2:.1f}" y="{y + height / 2 + 4}" fill="{color}"'
        return f'<rect {size} fill="{fill}" stroke="#999999"/><text {text}>{name}</text>'

    def _repr_svg_(self):
        lefts = [1 + i * (self.width + GAP) for i in range(len(self.names))]
        drawn = [arrow(f"M{x - GAP:.1f} 16H{x:.1f}", (x - 1, 16), "l-5 -3v6z") for x in lefts[1:]]
        drawn += map(self.box, self.names, lefts, [1] * len(lefts))
        if self.loop:
            start, end = lefts[-1] + self.width / 2, lefts[1] + self.width / 2
            drawn.append(arrow(f"M{start:.1f} 31V55H{end:.1f}V36", (end, 32), "l-3 5h6z"))
            drawn.append(self.box(LOG, (start + end - self.width) / 2, 45, 20))
        return SVG.format(WIDTH, 68 if self.loop else 33, TEXT, "".join(drawn))


def arrow(line, end, head):
    """Return the SVG of a line with an arrowhead at its end (x, y)."""
    tip = f"M{end[0]:.1f} {end[1]}{head}"
    return f'<path d="{line}" fill="none" stroke="#777777"/><path d="{tip}" fill="#777777"/>'


def you_are_here(*lit):
    """Return the map of a step. lit: the boxes that the notebook is about (default: all of them)."""
    unknown = {*lit} - {*STEP, LOG}
    if unknown:
        raise ValueError(f"there is no box {', '.join(unknown)}: use {', '.join(STEP)} or {LOG}")
    return Boxes(STEP, lit or STEP, loop=True)


def chain(*names):
    """Return the boxes of a pipeline, each leading to the next."""
    return Boxes(names)
