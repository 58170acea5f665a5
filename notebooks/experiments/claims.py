"""claims.py - a claim of 2025-26 as one honest trial: what claims_distill.py and its likes have in common.

    python notebooks/experiments/claims_tools.py --costs       what it will cost
    python notebooks/experiments/claims_tools.py --seeds 3     tune, train what is missing, judge, draw, write

An arm is a base and flags of train.py. Its learning rate is the best of two or three tries, multiples of what is usual for
the size of the model, on a seed that is not counted; all arms of a trial have the same steps, warm-up and cosine. The
checks are those of experiments.py: each names the effect it looks for, the line is drawn in the middle, and where a
trial of this size and spread would be wrong more than one time in ten it says "cannot tell". Finished runs are kept
and not repeated.

notebooks/results/claims_NAME.json holds command, seeds, rates, rows, checks, verdicts, machine and commit;
claims_NAME.svg is the figure. SmolLM2 in place of the tiny model: --large FOLDER.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import stats

from _root import NOTEBOOKS, ROOT
import experiments as lab
import make_tiny
import train
from curve import band
from eval import git_commit
from model import ModelError, load, save

RESULTS = NOTEBOOKS / "results"
TUNING = 3  # the seed on which rates are chosen; it is never counted
RATES = {"tiny": train.TINY["lr"], "large": 1e-5}  # that of notebook 9 for SmolLM2
STEPS_LARGE = 20

# ---- 1. Bases --------------------------------------------------------------------------------------
# "calling" sometimes calls a calculator. "hasty" is the usual base with another habit: it mostly
# takes the first number of a problem for the answer, so that this is what most completions say.

HASTY = {"hasty": 0.55, "direct": 0.15, "worked": 0.20, "no box": 0.05, "no tags": 0.05}


def base_of(name, seed, runs):
    """The folder of a base, which is made first if need be."""
    folder = runs / "bases" / f"{name}-seed{seed}"
    if name == "usual":
        return lab.base_of(name, seed, 60, str(runs))
    if not folder.exists():
        if name == "calling":
            make_calling(seed, folder)
        else:
            model, tokenizer = load(str(base_of("usual", seed, runs)))
            problems = make_tiny.TASKS["arithmetic"]()
            phases = [{}, HASTY]
            make_tiny.warm_up(model, tokenizer, problems, seed, phases, 0, 200, lr=2e-3, gate=0.0)
            save(model, tokenizer, folder)
    return folder


def make_calling(seed, folder):
    """A base that calls; a seed that has not learnt it in 800 steps gets more."""
    try:
        make_tiny.make(seed, folder, "products", steps=800)
    except ModelError:
        make_tiny.make(seed, folder, "products", steps=1600)


# ---- 2. Arms and runs ------------------------------------------------------------------------------


@dataclass
class Arm:
    """What is trained. times: the rates that are tried, in multiples of the usual one; a single
    one is not tuned. teacher: the arm whose last model stands for {teacher} in the flags."""

    flags: str = ""
    base: str = "usual"
    times: tuple = (1, 3)
    teacher: str = ""


@dataclass
class Trial:
    """A claim as data. checks and controls: lists of experiments.Check on x(arm, column)."""

    name: str
    claim: str
    source: str
    change_our_mind: str
    arms: dict[str, Arm]
    steps: int
    seconds: float  # of one run, measured once, for the table of costs
    checks: list
    controls: list
    columns: list  # of the table
    panels: dict  # what is drawn over the steps, or over the tokens sampled: column -> title
    measure: Callable = lambda folder: {}  # more columns of a run
    tuned_by: str = "right"
    over: str = "step"
    also: Callable = field(default=lambda: {})  # what else the result holds
    others: dict = field(default_factory=dict)  # further verdicts: name -> checks


def flags_of(trial, arm, seed, times, options):
    """The command line of one run."""
    chosen = trial.arms[arm]
    size = "large" if options.large else "tiny"
    if options.large:
        base = options.large
        sizes = f"@{NOTEBOOKS}/recipes/smollm2.txt --eval-every 5"
    else:
        base = base_of(chosen.base, seed, options.runs)
        sizes = "--device cpu --eval-every 5 --eval-problems 200 --micro-batch-tokens 4096"
    teacher = ""
    if chosen.teacher == "base":
        teacher = base
    elif chosen.teacher:
        teacher = run(trial, chosen.teacher, seed, best(trial, chosen.teacher, options), options)
        teacher = teacher / "final"
    own = chosen.flags.format(teacher=teacher).split()
    own = [
        lab.PLACES[flag[:2]].format(flag[2:]) if flag[:2] in lab.PLACES else flag for flag in own
    ]
    steps = options.steps or (STEPS_LARGE if options.large else trial.steps)
    last = ["--model", str(base), "--steps", str(steps), "--seed", str(seed), "--save-every", "999"]
    return [*sizes.split(), *own, *last, "--lr", f"{times * RATES[size]:g}"]


def run(trial, arm, seed, times, options):
    """Train, unless that is done already -> the folder of the run."""
    flags = flags_of(trial, arm, seed, times, options)
    name = f"{trial.name}-{arm}-{times:g}-seed{seed}{'-large' if options.large else ''}"
    folder = options.runs / name.replace(" ", "-")
    kept = folder.with_suffix(folder.suffix + ".flags")
    if not kept.exists() or kept.read_text() != " ".join(flags):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"training {folder.name}", file=sys.stderr, flush=True)
        with open(f"{folder}.log", "w") as log, contextlib.redirect_stdout(log):
            train.main([*flags, "--runs", str(folder.parent), "--name", folder.name])
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        kept.write_text(" ".join(flags))
    return folder


def best(trial, arm, options):
    """The best of an arm's rates, on the seed that is not counted."""
    times = trial.arms[arm].times
    if len(times) == 1:
        return times[0]
    tries = {x: lab.number(run(trial, arm, TUNING, x, options), trial.tuned_by) for x in times}
    return max(tries, key=tries.get)


def row_of(trial, arm, seed, times, options):
    """What is measured of one run."""
    folder = run(trial, arm, seed, times, options)
    columns = {trial.tuned_by, *trial.columns} - set(trial.measure(folder))
    numbers = {column: lab.number(folder, column) for column in columns}
    curves = {
        key: {row[trial.over]: row[key] for row in lab.history(folder).values() if key in row}
        for key in trial.panels
    }
    seconds = sum(row.get("seconds", 0.0) for row in lab.history(folder).values())
    row = {"arm": arm, "seed": seed, "times": times, "seconds": seconds}
    return {**row, **numbers, **trial.measure(folder), "curves": curves}


# ---- 3. Verdicts -----------------------------------------------------------------------------------


def smallest_effect(check, values):
    """The smallest effect for which at most one verdict in ten would be wrong, with the spread of these seeds:
    experiments.wrong_verdicts, solved for the effect."""
    own = statistics.stdev(values) if len(values) > 1 and np.isfinite(values).all() else 0.0
    level = 1 - 0.1 / (check.among * (1 + check.same))
    known = own <= check.noise
    quantile = stats.norm.ppf(level) if known else stats.t.ppf(level, len(values) - 1)
    return float(2 * max(own, check.noise) * quantile / math.sqrt(len(values)))


def judge(checks, rows):
    """-> (each check with its numbers, the verdict on all)."""

    def x(arm, column):
        return np.array([row[column] for row in rows if row["arm"] == arm], dtype=float)

    judged = []
    for check in checks:
        values = [float(value) for value in check.change(x)]
        holds, mean, wrong = check.judge(x)
        judged.append(
            {
                "sentence": check.sentence,
                "holds": holds,
                "mean": mean,
                "values": values,
                "line": check.effect / 2,
                "wrong verdicts": wrong,
                "smallest effect": smallest_effect(check, values),
            }
        )
    return judged, lab.verdict(row["holds"] for row in judged)


def print_report(result):
    """The table of arms, each check with its power, and the two verdicts."""
    rates = ["times the rate"] if result["times"] else []
    table = [["", *rates, *result["columns"]]]
    for arm in result["arms"]:
        cells = [arm, *(f"{result['times'][arm]:g}" for _ in rates)]
        for column in result["columns"]:
            values = [row[column] for row in result["rows"] if row["arm"] == arm]
            cells.append(lab.spread(np.array(values, dtype=float)))
        table.append(cells)
    widths = [max(map(len, column)) for column in zip(*table)]
    trained = f"{result['steps']} steps, " if result["steps"] else ""
    print(f"{result['claim']}\n{trained}{len(result['seeds'])} seeds: mean [range]")
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
    for title, verdict in result["verdicts"].items():
        print(f"the {title}: {verdict}")
        for check in result["checks"][title]:
            answer = {True: "yes", False: "NO ", None: " ? "}[check["holds"]]
            power = f"these seeds could have shown {check['smallest effect']:.2f}"
            line = f"the line is at {check['line']:.2f}"
            print(f"  {answer} {check['sentence']}: {check['mean']:+.3f}; {line}, {power}")


def draw(result):
    """A panel for each column. Over the steps: the mean of an arm's seeds as a line, lowest to highest as a band; where
    there are none: every seed a dot, the mean a bar."""
    panels = result["panels"]
    figure = Figure(figsize=(1 + 3.6 * len(panels), 3.2), layout="constrained", dpi=64)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (column, title) in zip(axes, panels.items()):
        for i, arm in enumerate(result["arms"]):
            rows = [row for row in result["rows"] if row["arm"] == arm]
            if result["over"]:
                draw_curves(axis, [row["curves"][column] for row in rows], arm, result["over"], i)
            else:
                values = [row[column] for row in rows]
                axis.plot([i] * len(values), values, "o", color=f"C{i}", alpha=0.5)
                axis.plot(i, np.mean(values), "_", color=f"C{i}", markersize=20, label=arm)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel({"used": "thousand tokens sampled"}.get(result["over"], result["over"]))
        axis.set_ylim(0, None)
        if not result["over"]:
            top = max(1.0, *(row[column] for row in result["rows"]))
            axis.set_ylim(-0.05 * top, 1.08 * top)  # a dot at 0 or 1 is seen whole
            axis.set_xticks([])
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def draw_curves(axis, curves, arm, over, i):
    curves = [{float(place): value for place, value in curve.items()} for curve in curves]
    band(axis, curves if over == "step" else on_one_grid(curves), arm, f"C{i}")


def on_one_grid(curves, points=40):
    """Curves that were measured at different places, at the same ones: by straight lines between."""
    end = min(max(curve) for curve in curves)
    grid = np.linspace(0, end, points)
    return [dict(zip(grid, np.interp(grid, list(curve), list(curve.values())))) for curve in curves]


# ---- 4. The command --------------------------------------------------------------------------------


def read_options(trial, argv=None):
    parser = argparse.ArgumentParser(description=trial.claim)
    parser.add_argument("--seeds", type=int, default=3, help="how many are counted: 0, 1, .. ")
    parser.add_argument("--steps", type=int, help=f"(default: {trial.steps})")
    parser.add_argument(
        "--large", help="folder of SmolLM2: its sums, 20 steps (not for all trials)"
    )
    parser.add_argument("--runs", default="runs/claims", help="where runs are kept")
    parser.add_argument("--results", default=str(RESULTS), help="where the JSON and the figure go")
    parser.add_argument("--costs", action="store_true", help="print what it costs, and stop")
    options = parser.parse_args(argv)
    options.runs = (ROOT / options.runs).resolve()
    return options


def counted(seeds):
    """0, 1, .. without the one on which rates are chosen."""
    return [seed for seed in range(seeds + 1) if seed != TUNING][:seeds]


def print_costs(trial, options):
    """Runs x seconds, before anything is run."""
    tuning = sum(len(arm.times) for arm in trial.arms.values() if len(arm.times) > 1)
    for what, runs in (("to tune", tuning), ("counted", len(trial.arms) * options.seeds)):
        minutes = runs * trial.seconds / 60
        print(f"{trial.name}: {what:8} {runs:3} runs x {trial.seconds:.0f} s = {minutes:4.1f} min")


def main(trial, argv=None):
    """Tune, train, judge, print, write -> the result."""
    options = read_options(trial, argv)
    print_costs(trial, options)
    if options.costs:
        return None
    options.runs.mkdir(parents=True, exist_ok=True)
    times = {arm: best(trial, arm, options) for arm in trial.arms}
    tries = [
        row_of(trial, arm, TUNING, x, options)
        for arm, chosen in trial.arms.items()
        if len(chosen.times) > 1
        for x in chosen.times
    ]
    seeds = counted(options.seeds)
    rows = [row_of(trial, arm, seed, times[arm], options) for arm in trial.arms for seed in seeds]
    return finish(trial, options, rows, times, tries)


def finish(trial, options, rows, times=None, tries=()):
    """Judge what was measured, write and print it -> the result."""
    asked = {"claim": trial.checks, "controls": trial.controls, **trial.others}
    judged = {name: judge(checks, rows) for name, checks in asked.items()}
    arms = [*dict.fromkeys(row["arm"] for row in rows)]
    result = {
        "claim": trial.claim,
        "source": trial.source,
        "change our mind": trial.change_our_mind,
        "command": f"python notebooks/experiments/claims_{trial.name}.py --seeds {options.seeds}",
        "model": "SmolLM2-135M" if options.large else "tiny",
        "steps": options.steps or (STEPS_LARGE if options.large else trial.steps),
        "seeds": sorted({row["seed"] for row in rows}),
        "tuning seed": TUNING,
        "arms": arms,
        "times": times or {},
        "tries": [{key: row[key] for key in ("arm", "times", trial.tuned_by)} for row in tries],
        "columns": trial.columns,
        "panels": trial.panels,
        "over": trial.over,
        "rows": rows,
        "checks": {name: checks for name, (checks, _) in judged.items()},
        "verdicts": {name: verdict for name, (_, verdict) in judged.items()},
        "seconds": sum(row["seconds"] for row in [*rows, *tries]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "git": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
        **trial.also(),
    }
    write(result, f"{options.results}/claims_{trial.name}{'_large' if options.large else ''}")
    print_report(result)
    return result


def write(result, path):
    """The JSON, and its figure."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.json", "w") as file:
        file.write(json.dumps(result, indent=1) + "\n")
    matplotlib.rcParams |= {"svg.hashsalt": "rlvr", "svg.fonttype": "none"}  # the same file again
    draw(result).savefig(f"{path}.svg", metadata={"Date": None})


def read(name):
    """A result that has been written."""
    return json.loads((RESULTS / f"claims_{name}.json").read_text())


def show(name):
    """Print what a page says of a trial: claim, source, arms, checks, verdicts, and what would change our mind -> its
    figure."""
    result = read(name)
    print_report(result)
    minutes = result["seconds"] / 60
    print(f"{result['command']}   ({minutes:.1f} min, {result['machine']}, commit {result['git']})")
    for title in ("source", "change our mind"):
        text = f"{title.replace('change', 'what would change')}: {result[title]}"
        print(textwrap.fill(text, 118, subsequent_indent="    "))
    return draw(result)


def summary(names):
    """Print one line for each trial: its claim, and the two verdicts."""
    for name in names:
        result = read(name)
        print(result["claim"])
        for what, verdict in result["verdicts"].items():
            print(f"    the {what}: {verdict}")
