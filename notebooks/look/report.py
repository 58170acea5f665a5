"""report.py - a run as one page: curves, and the completions of some steps.

    python -m notebooks.look.report runs/NAME      writes runs/NAME/report.html

The page is one file that loads nothing and runs no script. What it leaves out
it says.
"""

import json
import sys
from html import escape
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import DataError
from notebooks.command import log_of, new_path, parser_of, run_command
from notebooks.look.show import is_mixed, parts_of, samples_of, text_of

BYTES = 10_000_000  # the page is no larger
SIZES = [(4000, 60), (1000, 60), (250, 60), (250, 10), (250, 2)]  # characters of a text, and steps
POINTS = 1000  # of a curve
CURVES = "reward eval_accuracy eval_sampled_accuracy completion_length entropy mixed".split()
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Report of {run}</title><style>
body {{ max-width: 58rem; margin: auto; padding: 1rem; font: 15px/1.5 system-ui, sans-serif }}
svg {{ width: 27rem; max-width: 100% }} polyline {{ fill: none; stroke: #0063a8; stroke-width: 2 }}
pre {{ padding: .5rem; background: #f6f7f9; unicode-bidi: isolate }}
pre, h1, summary {{ white-space: pre-wrap; overflow-wrap: anywhere }}
</style><h1>Report of {run}</h1>
"""

# ---- 1. What a run holds -------------------------------------------------------------------------


def thin(items, most):
    """At most so many (two or more) of the items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def read_run(folder):
    """Raises DataError for what is missing. The samples of a step are whole once it is in the log."""
    log = {row["step"]: row for row in log_of(folder)}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    flags = {**config["flags"], **config["settings"]}
    files = {int(file.name[5:11]): file for file in sorted(folder.glob("samples/step_*.jsonl.gz"))}
    files = {step: file for step, file in files.items() if step in log}
    return SimpleNamespace(name=str(folder), flags=flags, rows=[*log.values()], files=files)


# ---- 2. HTML -------------------------------------------------------------------------------------
# critical: whatever a model or a file said comes to the page through escape() alone.


def details(title, inside):
    return f"<details><summary>{escape(title)}</summary>{inside}</details>\n"


def text_html(text, most):
    """Of a long one three quarters from the start, and one from the end, where the answer stands."""
    if len(text) > most:
        gap = f" [{len(text) - most:,} characters more] "
        text = text[: most * 3 // 4] + gap + text[-(most // 4) :]
    return f"<pre>{escape(text)}</pre>"


def completion_html(row, most):
    right = "\u2713 right" if row["accuracy"] > 0.5 else "\u2717 wrong"
    parts = ", ".join(f"{name} {value:.3g}" for name, value in parts_of(row).items())
    end = "cut off" if row["truncated"] else "ended"
    paid = f"reward {row['reward']:.3g}, advantage {row['advantage']:+.2f}"
    said = f"{right}, {paid}; {len(row['ids'])} tokens, {end}; {escape(parts)}"
    return said + text_html(text_of(row), most)


def group_html(step, number, rows, most):
    right = sum(row["accuracy"] > 0.5 for row in rows)
    title = f"step {step}, group {number}: {right} of {len(rows)} right"
    title += ", mixed" if is_mixed(rows) else ""
    asked = text_html(f"{rows[0].get('problem')}\ntruth: {rows[0].get('answer')}", most)
    return details(title, asked + "".join(completion_html(row, most) for row in rows))


def curve_html(column, rows):
    """A column of the log as an SVG; at most POINTS of its steps are drawn. NaN, and integers too large for a float,
    are not."""
    points = [(row["step"], row[column]) for row in rows if column in row]
    line = thin([point for point in points if abs(point[1]) < 1e300], POINTS)
    if not line:
        return f"<p>{column}: nothing to draw</p>\n"
    some = f", {len(line)} of {len(points)} points" if len(line) < len(points) else ""
    last = max(1, line[-1][0])
    low = min(value for _, value in line)
    high = max(low + 1e-9, *(value for _, value in line))
    places = [
        f"{60 + 350 * step / last:.1f},{150 - 140 * (value - low) / (high - low):.1f}"
        for step, value in line
    ]
    drawn = f'<text y="12">{high:.3g}</text><text y="150">{low:.3g}</text>'
    drawn += f'<text x="60" y="168">{column}, to step {last}{some}</text>'
    drawn += f'<polyline points="{" ".join(places)}"/>'
    return f'<svg viewBox="0 0 420 175" font-size="12">{drawn}</svg>\n'


# ---- 3. The page ---------------------------------------------------------------------------------


def page_of(run, steps, most):
    flags = "".join(f"{name} {value}\n" for name, value in run.flags.items())
    page = PAGE.format(run=escape(run.name)) + details("Flags", text_html(flags, most))
    page += "".join(curve_html(column, run.rows) for column in CURVES)
    page += f"<p>The completions of {len(steps)} of {len(run.files)} steps are here.</p>"
    size = run.flags["num_samples"]
    for step in steps:
        rows = list(samples_of(run.files[step]))
        groups = [rows[i : i + size] for i in range(0, len(rows), size)]
        page += "".join(group_html(step, i, group, most) for i, group in enumerate(groups, 1))
    return page.encode("utf-8", "replace")  # half a character becomes a "?"


def report(folder):
    """-> the page of a run, at most BYTES long."""
    run = read_run(folder)
    for most, count in SIZES:
        page = page_of(run, thin([*run.files], count), most)
        if len(page) <= BYTES:
            return page
    raise DataError(f"{folder}: two steps are too large; raise BYTES in {__file__}")


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path, help="its folder")
    parser.add_argument("-o", "--out", help="a new file (default: RUN/report.html)")
    args = parser.parse_args(argv)
    out = new_path(args.out) if args.out else args.run / "report.html"  # which is its own
    page = report(args.run)
    out.write_bytes(page)
    print(f"{out}: {len(page) / 1e6:.1f} MB; open it in a browser")


if __name__ == "__main__":
    run_command(main, ValueError, KeyError)
