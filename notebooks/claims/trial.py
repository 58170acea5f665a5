"""One claim of 2025-26, tried: arms that are tuned, seeds that are counted, checks with their power, verdicts.

The files claims_*.py each hold a Trial and are the commands; this module runs it:

    python -m notebooks.claims.claims_lora --costs               only the table of what it will cost
    python -m notebooks.claims.claims_lora --seeds 3             tune, train what is missing, judge, draw, write
    python -m notebooks.claims.claims_lora --model smollm2       with SmolLM2's arms, where there are any

An arm is a base and flags of train.py. Its learning rate is the best of those tried, multiples of the
trial's, on a seed that is not counted (TUNING); all arms of a trial have the same steps, warm-up and
cosine. A check is experiments.Check: it names the effect it looks for, the line stands in the middle, and
where a trial of this size and spread would be wrong more than one time in ten it says "cannot tell".

A run's folder is named after its seed and a digest of its flags: a finished one is not repeated, and two
trials that ask for the same run share it. notebooks/results/claims_NAME.json holds command, seeds, rates,
rows, checks, verdicts, machine and commit; notebook 6 draws it.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import platform
import random
import shutil
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import stats

import train
import verifiers
from eval import evaluate, git_commit, pass_at_k
from model import ModelError, load, save
from notebooks.claims import experiments as lab
from notebooks.look.compare import accuracies
from notebooks.look.curve import band
from notebooks.models import make_tiny
from notebooks.results import write_json
from rlvr import GRPO

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"

RESULTS = NOTEBOOKS / "results"
TUNING = 9  # the seed on which rates are chosen; it is never counted
LEAST = 3  # seeds: with fewer no check is decided

# ---- 1. Tasks and bases ----------------------------------------------------------------------------


def sums(least, most, train_size=2000, test_size=200):
    """Arithmetic as in verifiers.arithmetic, with so many steps; held out by the same hash. Rewards are
    0 and 1, the right box: MaxRL and pass@k training know no others."""
    rng = random.Random(f"sums {least} {most}")
    train_set = {}
    test_set = {}
    while len(train_set) < train_size or len(test_set) < test_size:
        problem = sum_of(rng, rng.randint(least, most))
        split, size = (
            (test_set, test_size) if verifiers.held_out(problem) else (train_set, train_size)
        )
        if len(split) < size:
            split[problem["problem"]] = problem
    name = f"sums of {least} to {most} steps"
    problems = [*train_set.values()], [*test_set.values()]
    return verifiers.Task(name, *problems, "{problem}", verifiers.boxed_reward, "split by a hash")


def sum_of(rng, steps):
    value = rng.randint(10, 99)
    text = str(value)
    for _ in range(steps):
        change = rng.choice([d for d in range(-9, 10) if d and 10 <= value + d <= 99])
        value += change
        text += f"{change:+d}"
    return {"problem": f"{text}=", "answer": str(value)}


def short_sums():
    """2 to 4 steps, as the bases have seen them."""
    return sums(2, 4)


def mixed_sums():
    """2 to 7 steps: five and more are more than any base has seen, and seldom right."""
    return sums(2, 7)


# Bases that continue the usual one of their seed: (shares of behaviours, steps). The hasty one mostly takes the
# first number of a problem for the answer, so that this is what most completions say.
HABITS = {
    "mostly right": ({"worked": 0.65, "direct": 0.35}, 150),
    "rarely right": ({"worked": 0.04, "direct": 0.1, "no box": 0.86}, 150),
    "hasty": (
        {"hasty": 0.55, "direct": 0.15, "worked": 0.20, "no box": 0.05, "no tags": 0.05},
        200,
    ),
}


def base_of(name, seed, runs):
    """The folder of a base, which is made first if need be (make_tiny.py, 20 to 100 s)."""
    folder = runs / "bases" / f"{name.replace(' ', '-')}-seed{seed}"
    if name == "usual":
        return lab.base_of(name, seed, 60, str(runs))
    if folder.exists():
        return folder
    if name == "calling":
        make_calling(seed, folder)
        return folder
    shares, steps = HABITS[name]
    model, tokenizer = load(str(base_of("usual", seed, runs)))
    problems = make_tiny.TASKS["arithmetic"]()
    make_tiny.warm_up(model, tokenizer, problems, seed, [{}, shares], 0, steps, lr=2e-3, gate=0.0)
    save(model, tokenizer, folder)
    return folder


def make_calling(seed, folder):
    """A base that sometimes calls a calculator; a seed that has not learnt it in 800 steps gets more."""
    try:
        make_tiny.make(seed, folder, "products", steps=800)
    except ModelError:
        make_tiny.make(seed, folder, "products", steps=1600)


# ---- 2. A trial ------------------------------------------------------------------------------------


@dataclass
class Arm:
    """What is trained. times: the rates that are tried, in multiples of the trial's; a single one is
    not tuned, and without any the base is only measured. teacher: the arm whose last model (or "base")
    stands for {teacher} in the flags."""

    flags: str = ""
    base: str = "usual"
    times: tuple = (1, 3)
    teacher: str = ""


@dataclass
class Trial:
    """A claim as data. claims and controls: checks (experiments.Check) on x(arm, column).

    A column is one of experiments.number, of what `measure` finds in a run's folder, or, where ks are
    given, pass@k of the last weights and `works`, the share of answers that are worked out."""

    name: str
    claim: str
    source: str
    change_our_mind: str
    claims: dict[str, list]  # what is said, one or several things -> their checks
    controls: list
    panels: dict[str, str]  # what the figure shows: column -> title
    arms: dict[str, Arm] = field(default_factory=dict)
    flags: str = "--device cpu --eval-every 5 --eval-problems 200 --micro-batch-tokens 4096"
    rate: float = train.TINY["lr"]
    steps: int = 0
    seconds: float = 0.0  # of one run, measured once, for the table of costs
    tuned_by: tuple = ("right",)  # the rate with the highest mean of these columns is taken
    columns: tuple = ()  # of the table (default: those of the panels)
    over: str = ""  # the column that the panels are drawn over; without it each seed is a dot
    plane: tuple = ()  # two columns whose trade-off the figure shows
    ks: tuple = ()
    problems: int = 200  # held out, for pass@k
    samples: int = 8  # of each
    measure: Callable = lambda folder: {}
    also: Callable = dict  # what else the result holds


SHORT = "--device cpu --task T:short_sums --prompts-per-step 8 --num-samples 16"
# Half of notebook 8's batch, at its rate, which is not tuned, and 16 samples of a problem. Of a step's own samples the
# accuracy is known anyway: on the way it takes the place of evaluations.
ON_SMOLLM2 = {
    "flags": "@notebooks/recipes/smollm2.txt --device cpu --prompts-per-step 4 --eval-every 20 "
    "--eval-problems 12",
    "rate": 1e-5,
    "tuned_by": (),
    "steps": 20,
    "seconds": 180,
    "ks": (1, 16),
    "problems": 36,
    "samples": 16,
}
PLACES = {**lab.PLACES, "T:": f"{__file__}:{{}}", "S:": f"{NOTEBOOKS}/claims/shared.py:{{}}"}


def start_of(trial, arm, seed, options):
    """The folder of the model that an arm starts from."""
    return options.model or base_of(trial.arms[arm].base, seed, options.runs)


def flags_of(trial, arm, seed, times, options):
    """The command line of one run. T:NAME is a task of this file, S:NAME a method of shared.py; for M:, R:
    and E: see experiments.py."""
    chosen = trial.arms[arm]
    base = start_of(trial, arm, seed, options)
    teacher = base
    if chosen.teacher not in ("", "base"):
        rate = best(trial, chosen.teacher, options)
        teacher = run(trial, chosen.teacher, seed, rate, options) / "final"
    words = f"{trial.flags} {chosen.flags.format(teacher=teacher)}".split()
    words = [PLACES[word[:2]].format(word[2:]) if word[:2] in PLACES else word for word in words]
    own = {
        "--model": base,
        "--steps": options.steps or trial.steps,
        "--seed": seed,
        "--lr": f"{times * trial.rate:g}",
        "--save-every": 10**6,
    }
    return [*words, *(str(part) for pair in own.items() for part in pair)]


def shown(flags):
    """The flags, wherever the project stands."""
    return " ".join(map(str, flags)).replace(f"{ROOT}/", "")


def digest(*parts):
    return hashlib.sha256(shown(parts).encode()).hexdigest()[:10]


def run(trial, arm, seed, times, options):
    """Train, unless that is done already -> the folder of the run."""
    flags = flags_of(trial, arm, seed, times, options)
    folder = options.runs / f"seed{seed}-{digest(*flags)}"
    done = folder.with_suffix(".flags")
    if not done.exists():
        print(f"training {trial.name}: {arm}, seed {seed}: {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        with open(f"{folder}.log", "w") as log, contextlib.redirect_stdout(log):
            train.main([*flags, "--runs", str(folder.parent), "--name", folder.name])
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        done.write_text(shown(flags) + "\n")
    return folder


def row_of(trial, arm, seed, times, options):
    """What is measured of one run, or of a base that is not trained."""
    flags = flags_of(trial, arm, seed, times, options)
    row = {"arm": arm, "seed": seed, "times": times, "flags": shown(flags), "seconds": 0.0}
    final = start_of(trial, arm, seed, options)
    if trial.arms[arm].times:
        folder = run(trial, arm, seed, times, options)
        final = folder / "final"
        names = dict.fromkeys([*trial.tuned_by, *trial.columns, *trial.panels])
        row |= {name: lab.number(folder, name) for name in names}
        row |= trial.measure(folder)
        steps = lab.history(folder).values()
        row["seconds"] = sum(step.get("seconds", 0.0) for step in steps)
        if trial.over:
            row["curves"] = {key: curve(steps, key, trial.over) for key in trial.panels}
    if trial.ks:
        found = sampled(trial, flags, final, options)
        rates = {f"pass@{k}": pass_rate(found["right"], trial.samples, k) for k in trial.ks}
        row |= {**rates, "works": found["works"]}
        row["seconds"] += found["seconds"]
    return row


def curve(steps, key, over):
    """To be drawn, so with four digits; no check looks at it."""
    return {step[over]: float(f"{step[key]:.4g}") for step in steps if key in step}


def pass_rate(right, samples, k):
    """The mean of pass@k over problems, from how many samples of each are right."""
    return statistics.fmean(pass_at_k(samples, count, k) for count in right)


def sampled(trial, flags, final, options):
    """Samples of held-out problems by these weights, drawn once, then kept: how many of each problem are
    right, and the share that is worked out. In all arms they are drawn with the same random numbers."""
    parsed = train.parse_args(flags)
    key = digest(final, parsed.task, trial.problems, trial.samples)
    kept = options.runs / f"sampled-{key}.json"
    if not kept.exists():
        began = time.perf_counter()
        task = verifiers.get_task(parsed.task, parsed.prompt, parsed.stop, parsed.reward)
        model, tokenizer = load(str(final), "cpu", template=parsed.template)
        method = GRPO(max_new_tokens=parsed.settings["max_new_tokens"])
        problems = task.test[: trial.problems]
        _, records = evaluate(method, model, tokenizer, task, problems, trial.samples, 1.0)
        shares = accuracies(records, trial.samples)
        texts = [record["completion"] for record in records]
        found = {
            "right": [round(share * trial.samples) for share in shares],
            "works": statistics.fmean("=" in text or "得" in text for text in texts),
            "seconds": time.perf_counter() - began,
        }
        kept.write_text(json.dumps(found))
    return json.loads(kept.read_text())


# ---- 3. Rates, seeds, checks -----------------------------------------------------------------------


def tries_of(trial, arm, options):
    """An arm at each of its rates, on the seed that is not counted; a single rate is not tried."""
    times = trial.arms[arm].times
    if len(times) < 2:
        return []
    return [row_of(trial, arm, TUNING, x, options) for x in times]


def best(trial, arm, options):
    """The best of an arm's rates."""
    tries = tries_of(trial, arm, options)
    if not tries:
        return max(trial.arms[arm].times, default=1)
    return max(tries, key=lambda row: statistics.fmean(row[name] for name in trial.tuned_by))[
        "times"
    ]


def counted(seeds):
    """0, 1, .. without the one on which rates are chosen."""
    return [seed for seed in range(seeds + 1) if seed != TUNING][:seeds]


def table_of(rows):
    """-> x(arm, column): the numbers of the seeds, in their order."""

    def x(arm, column):
        return np.array([row.get(column, np.nan) for row in rows if row["arm"] == arm], dtype=float)

    return x


def smallest_effect(check, values):
    """The smallest effect for which at most one verdict in ten would be wrong, with this spread of the seeds:
    experiments.wrong_verdicts, solved for the effect."""
    own = statistics.stdev(values) if len(values) > 1 and np.isfinite(values).all() else 0.0
    level = 1 - 0.1 / (check.among * (1 + check.same))
    known = own <= check.noise
    quantile = stats.norm.ppf(level) if known else stats.t.ppf(level, len(values) - 1)
    return float(2 * max(own, check.noise) * quantile / math.sqrt(len(values)))


def judge(checks, rows):
    """-> (each check with its numbers, the verdict on all)."""
    x = table_of(rows)
    judged = []
    for check in checks:
        values = [float(value) for value in check.change(x)]
        holds, mean, wrong = check.judge(x)
        judged.append(
            {
                "sentence": check.sentence,
                "holds": holds if len(values) >= LEAST else None,
                "mean": mean,
                "values": values,
                "line": check.effect / 2,
                "wrong verdicts": wrong,
                "smallest effect": smallest_effect(check, values),
            }
        )
    return judged, lab.verdict(row["holds"] for row in judged)


# Differences that checks ask for.

NOISE = {"pass@1": 0.02, "pass@16": 0.03, "pass@64": 0.03}  # of a difference, from evaluation alone


def above(arm, other, column, by, what, **more):
    """How much more of the column the first arm has than the second."""
    noise = NOISE.get(column, 0.02)
    return lab.Check(what, lambda x: x(arm, column) - x(other, column), by, noise, **more)


def no_less(arm, other, column, by, what):
    """The first arm has as much of the column; a loss of `by` would refute it."""
    noise = NOISE.get(column, 0.02)
    sentence = f"{what} ({by:+.3f} is no loss)"
    return lab.Check(sentence, lambda x: x(arm, column) - x(other, column) + by, by, noise)


def as_much(arm, other, column, by, what):
    """The two arms differ by less than half of `by`; `by` would refute it."""
    return above(arm, other, column, by, what, same=True)


# ---- 4. The command --------------------------------------------------------------------------------


def read_options(trial, smollm2=None, argv=None):
    parser = argparse.ArgumentParser(description=trial.claim)
    parser.add_argument("--seeds", type=int, default=3, help="how many are counted: 0, 1, ..")
    parser.add_argument(
        "--model", help="SmolLM2's folder: its arms and its sums in place of tiny's"
    )
    parser.add_argument("--steps", type=int, help="(default: the trial's)")
    parser.add_argument("--runs", default="runs/claims", help="where runs are kept")
    parser.add_argument("--results", default=str(RESULTS), help="where the JSON goes")
    parser.add_argument("--costs", action="store_true", help="print what it costs, and stop")
    options = parser.parse_args(argv)
    options.runs = (ROOT / options.runs).resolve()
    options.results = Path(options.results).resolve()
    if options.model and not smollm2:
        parser.error(f"claims_{trial.name}.py has no arms for SmolLM2: leave out --model")
    if options.model:
        options.model = str(Path(options.model).resolve())
        os.chdir(ROOT)  # the recipe names its files from there
    if not options.costs:
        options.runs.mkdir(parents=True, exist_ok=True)
    return options


def print_costs(trial, options):
    """Runs x seconds, before anything is run."""
    tries = [len(arm.times) for arm in trial.arms.values()]
    tuning = sum(count for count in tries if count > 1)
    trained = sum(count > 0 for count in tries) * options.seeds
    print(f"{trial.name}: {len(tries)} arms, {options.steps or trial.steps} steps")
    for what, runs in (("to tune", tuning), ("counted", trained), ("together", tuning + trained)):
        minutes = runs * trial.seconds / 60
        print(f"  {what:8} {runs:3} runs x {trial.seconds:.0f} s = {minutes:5.1f} min", flush=True)


def main(trial, smollm2=None, argv=None):
    """Tune, train, judge, print, write -> the result. smollm2: the Trial that --model asks for."""
    options = read_options(trial, smollm2, argv)
    trial = smollm2 if options.model else trial
    print_costs(trial, options)
    if options.costs:
        return None
    tries = [row for arm in trial.arms for row in tries_of(trial, arm, options)]
    times = {arm: best(trial, arm, options) for arm in trial.arms}
    seeds = counted(options.seeds)
    rows = [row_of(trial, arm, seed, times[arm], options) for arm in trial.arms for seed in seeds]
    return finish(trial, options, rows, times, tries)


def finish(trial, options, rows, times=None, tries=()):
    """Judge what was measured, write and print it -> the result."""
    asked = {**trial.claims, "controls": trial.controls}
    judged = {name: judge(checks, rows) for name, checks in asked.items()}
    more = " --model smollm2" if options.model else ""
    command = f"python -m notebooks.claims.claims_{trial.name} --seeds {options.seeds}{more}"
    result = {
        "claim": trial.claim,
        "source": trial.source,
        "change our mind": trial.change_our_mind,
        "command": command,
        "model": "SmolLM2-135M" if options.model else "tiny",
        "steps": options.steps or trial.steps,
        "seeds": sorted({row["seed"] for row in rows}),
        "tuning seed": TUNING,
        "rate": trial.rate,
        "arms": [*dict.fromkeys(row["arm"] for row in rows)],
        "times": times or {},
        "tries": [{key: row[key] for key in ("arm", "times", *trial.tuned_by)} for row in tries],
        "columns": [*(trial.columns or trial.panels)],
        "panels": trial.panels,
        "over": trial.over,
        "plane": trial.plane,
        "rows": rows,
        "checks": {name: checks for name, (checks, _) in judged.items()},
        "verdicts": {name: verdict for name, (_, verdict) in judged.items()},
        "seconds": sum(row["seconds"] for row in [*rows, *tries]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "git": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
        **trial.also(),
    }
    options.results.mkdir(parents=True, exist_ok=True)
    name = f"claims_{trial.name}{'_smollm2' if options.model else ''}"
    write_json(options.results / f"{name}.json", result)
    report(result)
    return result


# ---- 5. What a page shows --------------------------------------------------------------------------


def read(name):
    """A result that has been written."""
    return json.loads((RESULTS / f"claims_{name}.json").read_text())


def report(result):
    """Print the table of arms, each check with its power, and the verdicts."""
    x = table_of(result["rows"])
    trained = f", {result['steps']} steps" if result["steps"] else ""
    print(f"{result['claim']}\n{len(result['seeds'])} seeds{trained}: mean [lowest-highest]")
    rates = {arm: [f"{times * result['rate']:g}"] for arm, times in result["times"].items()}
    table = [["", *(["rate"] if rates else []), *result["columns"]]]
    for arm in result["arms"]:
        cells = [cell_of(x(arm, column)) for column in result["columns"]]
        table.append([arm, *rates.get(arm, []), *cells])
    widths = [max(map(len, column)) for column in zip(*table)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
    for name, checks in result["checks"].items():
        print(f"{name}: {result['verdicts'][name]}")
        for check in checks:
            answer = {True: "yes", False: "NO ", None: " ? "}[check["holds"]]
            line = f"the line is at {check['line']:.2f}"
            power = f"these seeds could have shown {check['smallest effect']:.2f}"
            if len(check["values"]) < LEAST:
                power = f"fewer than {LEAST} seeds decide nothing"
            print(f"  {answer} {check['sentence']}: {check['mean']:+.3f}; {line}, {power}")


def cell_of(values):
    """Mean, lowest and highest; nothing where it was not measured, as without training."""
    return "" if np.isnan(values).all() else lab.spread(values)


def show(name):
    """Print what a page says of a trial: arms, checks, verdicts, command, source -> its figure."""
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
        model = "" if result["model"] == "tiny" else f" ({result['model']})"
        print(f"{result['claim']}{model}\n    {result['source']}")
        for what, checks in result["checks"].items():
            power = max(check["smallest effect"] for check in checks)
            print(f"    {result['verdicts'][what]:14} {what:50} {power:.2f}")


def draw(result):
    """A panel for each column. Over steps or tokens: the mean of an arm's seeds as a line, lowest to highest as a
    band. Else every seed is a dot, the mean a bar. And where the result names two columns as its plane, one
    more: every run a dot between them, and as rings the runs on which the rates were chosen."""
    return draw_curves(result) if result["over"] else draw_dots(result)


def draw_curves(result):
    panels = result["panels"]
    figure = Figure(figsize=(1 + 3.6 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (column, title) in zip(axes, panels.items()):
        trained = dict.fromkeys(row["arm"] for row in result["rows"] if "curves" in row)
        for place, arm in enumerate(trained):
            own = [row["curves"][column] for row in result["rows"] if row["arm"] == arm]
            curves = [{float(at): value for at, value in points.items()} for points in own]
            if result["over"] != "step":
                curves = on_one_grid(curves)
            band(axis, curves, arm, f"C{place}")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel({"used": "thousand tokens sampled"}.get(result["over"], result["over"]))
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
    arms = result["arms"]
    panels = result["panels"]
    count = len(panels) + bool(result["plane"])
    size = (3 + 2.6 * count, max(3.0, 1.2 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, (column, title) in zip(axes, panels.items()):
        for place, arm in enumerate(arms):
            draw_seeds(axis, x(arm, column), place)
        axis.set(xlabel=title, ylim=(len(arms) - 0.5, -0.5))
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
    for rows, style in ((result["tries"], "none"), (result["rows"], "full")):
        for row in rows:
            color = f"C{result['arms'].index(row['arm']) % 10}"
            axis.plot(row[across], row[up], "o", color=color, fillstyle=style, markersize=5)
    axis.set(xlabel=across, ylabel=up)
    axis.grid(alpha=0.3)
