"""Draw accuracy and length over training, with the band over several runs.

    python -m notebooks.look.curve runs/a-* -o curve.svg
    python -m notebooks.look.curve runs/a-* --beside runs/b-* -o curve.svg

--beside: runs of another model, whose accuracy gets a panel of its own.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import DataError
from notebooks.command import log_of, new_path, parser_of, run_command, say


def read(run, key):
    """{step: value} of one column of a run's metrics.jsonl, where it was measured."""
    found = {row["step"]: row[key] for row in log_of(run) if key in row}
    if not found:
        raise DataError(f"{run}/metrics.jsonl has no {key}: it cannot be drawn")
    return found


def band(axis, curves, label, color):
    """curves: {step: value} of each run. Their mean as a line, lowest to highest as a band. Prints the steps that
    it leaves out because not every run has reached them."""
    steps = sorted(set.intersection(*map(set, curves)))
    others = sorted(set().union(*curves).difference(steps))
    if others:
        say(f"{label}: left out are steps that not every run has: {' '.join(map(str, others))}")
    values = [[curve[step] for curve in curves] for step in steps]
    lowest = [*map(min, values)]
    axis.fill_between(steps, lowest, [*map(max, values)], color=color, alpha=0.2, linewidth=0)
    axis.plot(steps, [sum(v) / len(v) for v in values], color=color, label=label)


def accuracy_panel(axis, runs):
    sampled = [read(run, "eval_sampled_accuracy") for run in runs]
    band(axis, [read(run, "eval_accuracy") for run in runs], "greedy", "tab:blue")
    band(axis, sampled, "sampled at T = 1", "tab:orange")
    axis.set(xlabel="step", ylabel="held-out accuracy", ylim=(0, 1.02))
    axis.legend(loc="lower right")


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--beside", nargs="+", default=[])
    parser.add_argument("-o", "--out", required=True, help="a new file, .svg or .png")
    args = parser.parse_args(argv)
    out = new_path(args.out)

    import matplotlib  # here, so that --help works without it
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "rlvr"  # the same file for the same runs
    figure = Figure(figsize=(9 + 3 * bool(args.beside), 3.2), layout="constrained")
    left, right, *third = figure.subplots(1, 2 + bool(args.beside))
    accuracy_panel(left, args.runs)
    lengths = [read(run, "eval_sampled_length") for run in args.runs]
    band(right, lengths, "sampled at T = 1", "tab:orange")
    right.set(xlabel="step", ylabel="tokens per completion", ylim=(0, None))
    if args.beside:
        accuracy_panel(*third, args.beside)
        left.set_title(f"tiny Qwen3, arithmetic, {len(args.runs)} seeds", fontsize=10)
        third[0].set_title(f"SmolLM2-135M, sums, {len(args.beside)} seeds", fontsize=10)
    figure.suptitle("mean, lowest and highest", fontsize=10)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    print(f"figure in {out}")


if __name__ == "__main__":
    run_command(main, ValueError)  # savefig names the formats that it knows
