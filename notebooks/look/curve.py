"""curve.py - draws how runs learn: their mean at each step, and a band over all.

draw these runs:
    python -m notebooks.look.curve runs/a-* -o curve.svg
draw the README's figure again, from results/tables.json:
    python -m notebooks.look.curve
"""

import sys
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import DataError
from notebooks.command import log_of, new_path, parser_of, run_command
from notebooks.look import keep

README = keep.ROOT / "notebooks" / "curve.svg"


def read(run, key):
    """Return {step: value} of one column of a run's metrics.jsonl, for the steps that have it."""
    found = {row["step"]: row[key] for row in log_of(run) if key in row}
    if not found:
        raise DataError(f"{run}/metrics.jsonl has no {key}: it cannot be drawn")
    return found


def kept(result, key):
    """Return such a curve for each seed of a result in tables.json."""
    curves = keep.load(result)["curves"][key]
    return [{int(step): value for step, value in curve.items()} for curve in curves]


WIDTH = 5  # steps in a running mean: a step samples few completions, so its accuracy jumps
LINES = {"training": "accuracy", "sampled": "eval_sampled_accuracy", "greedy": "eval_accuracy"}


def accuracies(read_one):
    """Return the accuracies on training samples, and on held-out problems, sampled and greedy."""
    return {name: read_one(key) for name, key in LINES.items()}


def running_mean(curve):
    """Return, for each step, the mean over it and up to WIDTH - 1 steps before it."""
    steps = sorted(curve)
    last = {step: steps[max(0, i + 1 - WIDTH) : i + 1] for i, step in enumerate(steps)}
    return {step: fmean(curve[one] for one in some) for step, some in last.items()}


def draw(out, *panels):
    """Draw panels: (title, label of the y axis, {name of a line: the curves of its runs}). In an .svg, a line has the
    id "title: name"."""
    from notebooks.look import style  # here, so that --help needs no matplotlib

    titles = [title for title, *_ in panels]
    figure, axes = style.panels(*titles, height=2.5, xlabel="training step")
    for axis, (title, ylabel, lines) in zip(axes, panels):
        for name, curves in lines.items():
            training = name == "training"
            line = style.band(axis, [*map(running_mean, curves)] if training else curves, name)
            line.set(gid=f"{title}: {name}", marker="" if training else ".")
        axis.set(ylabel=ylabel, ylim=(0, 1.05 if ylabel == "accuracy" else None))
        style.name_lines(axis)
    figure.savefig(out, metadata={"Date": None} if Path(out).suffix == ".svg" else None)
    print(f"figure in {out}")


def draw_readme(out=README):
    draw(
        out,
        ("A tiny Qwen3 learns sums", "accuracy", accuracies(lambda key: kept("main", key))),
        ("Its answers get longer", "tokens", {"training": kept("main", "completion_length")}),
        ("SmolLM2 learns to add", "accuracy", accuracies(lambda key: kept("sums", key))),
    )


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("-o", "--out", help="a new file, .svg or .png")
    args = parser.parse_args(argv)
    if not args.runs:
        return draw_readme(new_path(args.out) if args.out else README)
    if not args.out:
        raise DataError("name the file to draw: -o curve.svg")
    lengths = [read(run, "completion_length") for run in args.runs]
    draw(
        new_path(args.out),
        ("Accuracy", "accuracy", accuracies(lambda key: [read(run, key) for run in args.runs])),
        ("Length", "tokens", {"training": lengths}),
    )


if __name__ == "__main__":
    run_command(main, ValueError)  # savefig names the formats that it knows
