"""curve.py - draw how runs learn, step by step: the mean of the runs, and a band from the lowest to the highest.

python -m notebooks.look.curve runs/a-* -o curve.svg
python -m notebooks.look.curve                       the README's figure again, from results/tables.json
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import DataError
from notebooks.command import log_of, new_path, parser_of, run_command
from notebooks.look import keep

README = keep.ROOT / "notebooks" / "curve.svg"


def read(run, key):
    """{step: value} of one column of a run's metrics.jsonl, where it was measured."""
    found = {row["step"]: row[key] for row in log_of(run) if key in row}
    if not found:
        raise DataError(f"{run}/metrics.jsonl has no {key}: it cannot be drawn")
    return found


def kept(name, key):
    """The same of each seed of a result in tables.json."""
    curves = keep.load(name)["curves"][key]
    return [{int(step): value for step, value in curve.items()} for curve in curves]


def draw(out, *drawn):
    """drawn: (title, label of the y axis, {name of a line: the curves of its runs}) for each panel"""
    from notebooks.look.style import (
        band,
        name_lines,
        panels,
    )  # here, so that --help needs no matplotlib

    figure, axes = panels(*(title for title, *_ in drawn), height=2.4, xlabel="training step")
    for axis, (title, ylabel, lines) in zip(axes, drawn):
        for name, curves in lines.items():
            band(axis, curves, name).set_gid(f"{title}, {name}")
        top = 1.02 if ylabel == "accuracy" else None
        axis.set(ylabel=ylabel, ylim=(0, top))
        name_lines(axis)
    figure.savefig(out, metadata={"Date": None} if Path(out).suffix == ".svg" else None)
    print(f"figure in {out}")


def both(read_one):
    """What is sampled for training at every step, and greedy answers to held-out problems."""
    return {"sampled": read_one("accuracy"), "greedy": read_one("eval_accuracy")}


def draw_readme(out=README):
    draw(
        out,
        ("Tiny Qwen3: right answers", "accuracy", both(lambda key: kept("main", key))),
        ("It writes more", "tokens", {"sampled": kept("main", "completion_length")}),
        ("SmolLM2-135M", "accuracy", both(lambda key: kept("sums", key))),
    )


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("-o", "--out", help="a new file, .svg or .png")
    args = parser.parse_args(argv)
    if not args.runs:
        return draw_readme()
    if not args.out:
        raise DataError("name the file to draw into: -o curve.svg")
    curves = {
        key: [read(run, key) for run in args.runs]
        for key in ("accuracy", "eval_accuracy", "completion_length")
    }
    accuracy = ("Accuracy", "accuracy", both(curves.get))
    length = ("Length", "tokens per completion", {"sampled": curves["completion_length"]})
    draw(new_path(args.out), accuracy, length)


if __name__ == "__main__":
    run_command(main, ValueError)  # savefig names the formats that it knows
