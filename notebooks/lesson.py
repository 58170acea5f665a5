"""lesson.py - the first cell of every notebook: it goes to the project's folder, and draws a map of the step.

    from lesson import you_are_here
    you_are_here("rewards")

A notebook starts in its own folder, notebooks/. Importing this file makes the folder above it, the project's, the
working directory, and a place to import from.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOXES = "problem", "policy", "completions", "verifier", "rewards", "advantages", "loss", "update"
LOG = "log"  # on the way back from the update to the policy
WIDTH, GAP, HEIGHT = 76, 13, 30  # of a box, in pixels

os.chdir(ROOT)
sys.path.insert(0, str(ROOT))


class Map:
    """One step of training as a row of boxes. lit: the names of those that a notebook is about."""

    def __init__(self, lit):
        self.lit = lit

    def __repr__(self):
        return " > ".join(name.upper() if name in self.lit else name for name in BOXES)

    def box(self, name, x, y, height=HEIGHT):
        fill, stroke, color = "#f4f4f4", "#999999", "#444444"
        if name in self.lit:
            fill, stroke, color = "#0072B2", "#0072B2", "#ffffff"
        shape = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="5" fill="{fill}" stroke="{stroke}"/>'
        middle = x + WIDTH / 2, y + height / 2 + 4
        return shape + '<text x="{}" y="{}" fill="{}">{}</text>'.format(*middle, color, name)

    def _repr_svg_(self):
        places = {name: 1 + i * (WIDTH + GAP) for i, name in enumerate(BOXES)}
        drawn = [self.box(name, x, 1) for name, x in places.items()]
        drawn += [arrow(x - GAP, 16, x - 2, 16) for x in [*places.values()][1:]]
        policy, update = (places[name] + WIDTH / 2 for name in ("policy", "update"))
        line = f"M{update} {HEIGHT + 1}V55H{policy}"
        drawn += [
            f'<path d="{line}" fill="none" stroke="#777777"/>',
            arrow(policy, 55, policy, HEIGHT + 3),
        ]
        drawn.append(self.box(LOG, (policy + update - WIDTH) / 2, 45, 20))
        style = 'font-family="Helvetica, Arial, sans-serif" font-size="12" text-anchor="middle"'
        page = '<svg xmlns="http://www.w3.org/2000/svg" width="701" height="68" viewBox="0 0 701 68" {}>{}</svg>'
        return page.format(style, "".join(drawn))


def arrow(x0, y0, x1, y1):
    """Return a line to (x1, y1), across or up, with a head."""
    across = y0 == y1
    head = "l-5 -3v6z" if across else "l-3 5h6z"
    line = f'<path d="M{x0} {y0}L{x1} {y1}" stroke="#777777"/>'
    return line + f'<path d="M{x1} {y1}{head}" fill="#777777"/>'


def you_are_here(*lit):
    """Return the map of a step. lit: the boxes that the notebook is about (default: all of them)."""
    unknown = {*lit} - {*BOXES, LOG}
    if unknown:
        raise ValueError(f"there is no box {', '.join(unknown)}: use {', '.join(BOXES)} or {LOG}")
    return Map(lit or BOXES)
