"""seeds.py - the same training with several seeds: what was reached, and how sure that is.

    python -m notebooks.claims.seeds --name tiny --seeds 0 1 2 -- --steps 100
    python -m notebooks.claims.seeds --name sums -- @notebooks/recipes/smollm2.txt

Behind -- stand flags of train.py. Seed 3 is trained into RUNS/NAME-3, its output goes to RUNS/NAME-3.log. What is
finished is not trained again, and what was interrupted goes on. An accuracy is greedy and sampled on held-out problems:
the mean over the seeds, and behind the sampled one its lowest and highest. Last line: a JSON object.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import time
from pathlib import Path

import train
from model import ModelError
from verifiers import DataError

ROOT = Path(__file__).resolve().parents[2]

COLUMNS = ["run", "steps", "before", "half way", "in the end", "thousand tokens", "trained on", "s"]


def train_run(flags, folder):
    """Into the folder, unless that is done; what was interrupted goes on -> the seconds that it took. Of what is done the
    checkpoints leave."""
    done = folder.with_suffix(".json")
    if not done.exists():
        print(f"training {folder.name}: {' '.join(flags)}", file=sys.stderr, flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        place = ["--runs", str(folder.parent), "--name", folder.name]
        command = ["--resume", *place]
        if not any(folder.glob("checkpoints/step_*")):
            shutil.rmtree(folder, ignore_errors=True)  # stopped before there was anything to keep
            command = [*flags, *place]
        with open(f"{folder}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(command)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        kept = {"flags": " ".join(flags), "seconds": time.perf_counter() - began}
        done.write_text(json.dumps(kept))
    return json.loads(done.read_text())["seconds"]


def summary(run):
    """What one run reached: at steps of evaluation the two accuracies; what it cost."""
    rows = train.read_log(run)
    steps = [step for step in rows if step > 0]
    config = json.loads((run / "config.json").read_text())["settings"]
    batch = config["prompts_per_step"] * config["num_samples"]
    return {
        "greedy": {s: row["eval_accuracy"] for s, row in rows.items() if "eval_accuracy" in row},
        "sampled": {
            s: row["eval_sampled_accuracy"] for s, row in rows.items() if "eval_accuracy" in row
        },
        "tokens": sum(rows[step]["completion_length"] for step in steps) * batch,
        "trained": sum(rows[step]["trained"] for step in steps),
        "seconds": sum(rows[s]["sample_seconds"] + rows[s]["update_seconds"] for s in steps),
        "last line": Path(f"{run}.log").read_text().splitlines()[-1],
    }


def short(value):
    """0.123 as .123, as tables of accuracies have it."""
    return f"{value:.3f}".removeprefix("0")


def spread(values):
    """mean [lowest - highest]"""
    return f"{short(statistics.fmean(values))} [{short(min(values))} - {short(max(values))}]"


def from_to(values):
    """lowest - highest, in whole numbers."""
    low = f"{min(values):.0f}"
    high = f"{max(values):.0f}"
    return low if low == high else f"{low} - {high}"


def table_row(label, runs):
    """A row of COLUMNS for the summaries of several seeds."""
    steps = sorted(runs[0]["greedy"])
    last = steps[-1]
    half = min(steps, key=lambda step: abs(step - last / 2))
    accuracies = []
    for step in (0, half, last):
        greedy = short(statistics.fmean([run["greedy"][step] for run in runs]))
        accuracies.append(f"{greedy}, {spread([run['sampled'][step] for run in runs])}")
    if half not in (0, last):
        accuracies[1] += f" (step {half})"
    costs = [
        from_to([run["tokens"] / 1000 for run in runs]),
        from_to([run["trained"] for run in runs]),
        from_to([run["seconds"] for run in runs]),
    ]
    return [label, str(last), *accuracies, *costs]


def sentences(runs):
    """For the text of a page."""
    last = max(runs[0]["greedy"])
    ends = {key: spread([run[key][last] for run in runs]) for key in ("greedy", "sampled")}
    before = short(statistics.fmean([run["sampled"][0] for run in runs]))
    return {
        "line": f"`{runs[0]['last line'].partition(';')[0]}`",
        "greedy": f"{ends['greedy']} over {len(runs)} seeds",
        "sampled": f"from {before} to {ends['sampled']} over {len(runs)} seeds",
    }


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the runs, less their seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", default=str(ROOT / "runs"), help="folder of the runs")
    parser.add_argument("flags", nargs="*", help="behind --: flags of train.py")
    args = parser.parse_args(argv)
    folders = [Path(args.runs, f"{args.name}-{seed}") for seed in args.seeds]
    for seed, folder in zip(args.seeds, folders):
        if not (folder / "final").exists():  # it may be train.py's own
            train_run([*args.flags, "--seed", str(seed)], folder)
    runs = [summary(folder) for folder in folders]
    row = table_row(args.name, runs)
    for column, cell in zip(COLUMNS, row):
        print(f"{column:16} {cell}")
    said = sentences(runs)
    result = {"columns": COLUMNS, "rows": [row], "sentences": said, "seeds": args.seeds}
    print(json.dumps({**result, "runs": runs}))


if __name__ == "__main__":
    try:
        main()
    except (ModelError, DataError) as error:
        sys.exit(f"error: {error}")
