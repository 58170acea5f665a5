"""One claim, tried on the tiny model: arms that are tuned, at least three seeds, power, two verdicts.

The files claims_*.py each hold a Trial and are the commands; this module runs it:

    python notebooks/experiments/claims_objectives.py                 tune, train, measure, judge, draw
    python notebooks/experiments/claims_objectives.py --costs         only the table of what it will cost

An arm is a base, a task and flags of train.py. Its learning rate is the better of two, on a seed that
is not counted (TUNING); all arms of a trial have the same steps, warm-up and cosine. What is measured
of the last weights are pass@k of completions sampled with the same random numbers in all arms. A check
is experiments.Check: it names the effect it looks for, and says "cannot tell" where so few seeds would
be wrong more than one time in ten. Finished runs are kept in runs/claims and not repeated.

Results are notebooks/results/claims_NAME.json: command, seeds, machine, commit, every row, every check.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import random
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from scipy import stats

from _root import ROOT
import experiments as lab
import make_tiny
import train
import verifiers
from eval import evaluate, git_commit, pass_at_k
from evaluation import accuracies
from model import load, save
from rlvr import GRPO

RESULTS = ROOT / "notebooks" / "results"
TUNING = 9  # the seed on which rates are chosen; it is never counted
LARGE = ("notebooks/recipes/smollm2.txt", (5e-6, 1e-5), 20)  # --model: recipe, rates, steps

# ---- 1. Tasks and bases ----------------------------------------------------------------------------
# Rewards are 0 and 1, the right box: MaxRL and pass@k training know no others.


def sums(least, most, train_size=2000, test_size=200):
    """Arithmetic as in verifiers.arithmetic, with so many steps; held out by the same hash."""
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


# Bases that continue the usual one of their seed: (shares of behaviours, steps).
CONTINUED = {
    "mostly right": ({"worked": 0.65, "direct": 0.35}, 150),
    "rarely right": ({"worked": 0.04, "direct": 0.1, "no box": 0.86}, 150),
}


def base_of(name, seed, runs):
    """The folder of a base, which is made first if need be (make_tiny.py, 20 to 100 s)."""
    if name not in CONTINUED:
        return lab.base_of(name, seed, 60, str(runs))
    base = runs / "bases" / f"{name.replace(' ', '-')}-seed{seed}"
    if not base.exists():
        model, tokenizer = load(str(base_of("usual", seed, runs)))
        teach(model, tokenizer, *CONTINUED[name], seed)
        save(model, tokenizer, base)
    return base


def teach(model, tokenizer, shares, steps, seed):
    """Supervised training on demonstrations in these shares, as the second phase of make_tiny.py."""
    rng = random.Random(f"teach {seed}")
    problems = verifiers.arithmetic().train
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - 0.9 * step / steps)
        ids, mask = make_tiny.demonstration_batch(tokenizer, problems, shares, rng)
        logits = model(ids[:, :-1]).transpose(1, 2)
        loss = F.cross_entropy(logits, ids[:, 1:], reduction="none")  # (B, T-1)
        optimizer.zero_grad()
        ((loss * mask).sum() / 1500).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


# ---- 2. A trial ------------------------------------------------------------------------------------


@dataclass
class Arm:
    """What is trained: a base, a task of this file, flags of train.py (M:NAME is a method)."""

    base: str
    task: str
    flags: str = ""


@dataclass
class Trial:
    """A claim as data. claims and controls: name -> checks (experiments.Check) on x(arm, column)."""

    name: str
    claim: str
    source: str
    change_our_mind: str
    arms: dict[str, Arm]
    rates: tuple[float, float]
    steps: int
    seconds: float  # of one run, measured once, for the table of costs
    claims: dict[str, list]
    controls: list
    panels: dict[str, str]  # what the figure shows: column -> title
    tuned_by: tuple = ("pass@1",)  # the rate with the highest mean of these columns is taken
    problems: int = 200  # held out, for the last weights
    samples: int = 8  # of each
    watched: int = 50  # held-out problems of the evaluations in between
    ks: tuple = (1, 8)
    untrained: tuple = ()  # arms that are only measured
    plane: tuple = ()  # two columns whose trade-off the figure shows


def flags_of(trial, arm, seed, rate, options):
    """The command line of one run."""
    chosen = trial.arms[arm]
    places = (
        lab.PLACES[flag[:2]].format(flag[2:]) if flag[:2] in lab.PLACES else flag
        for flag in chosen.flags.split()
    )
    steps = options.steps or trial.steps
    if options.model:
        start = [f"@{LARGE[0]}", "--model", options.model]
    else:
        base = base_of(chosen.base, seed, options.runs)
        start = ["--model", str(base), "--device", "cpu", "--task", f"{__file__}:{chosen.task}"]
    sizes = {
        "--steps": steps,
        "--eval-every": max(1, steps // 4),
        "--eval-problems": trial.watched,
        "--lr": rate,
        "--seed": seed,
        "--save-every": 10**6,
    }
    return [*start, *(str(part) for pair in sizes.items() for part in pair), *places]


def run(trial, arm, seed, rate, options):
    """Train and measure, unless that is done already -> a row."""
    flags = flags_of(trial, arm, seed, rate, options)
    name = f"{trial.name} {arm} {rate:g}".replace(" ", "-").replace("/", "-")
    folder = options.runs / f"{name}-seed{seed}{'-large' if options.model else ''}"
    kept = folder.with_suffix(folder.suffix + ".json")
    if kept.exists():
        row = json.loads(kept.read_text())
        if row["flags"] == shown(flags):
            return row
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    if arm in trial.untrained:
        final = flags[flags.index("--model") + 1]
        row = {}
    else:
        with open(f"{folder}.log", "w") as log, contextlib.redirect_stdout(log):
            train.main([*flags, "--runs", str(options.runs), "--name", folder.name])
        final = folder / "final"
        row = history(folder)
    row = {
        "arm": arm,
        "seed": seed,
        "lr": rate,
        "flags": shown(flags),
        **row,
        **measure(trial, flags, final),
    }
    row["seconds"] = time.perf_counter() - began
    kept.write_text(json.dumps(row))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return row


def shown(flags):
    """The flags, wherever the project stands."""
    return " ".join(flags).replace(f"{ROOT}/", "")


def history(folder):
    """Curves {step: value} of a run, and means over its steps, over the first and over the last."""
    log = train.read_log(folder)
    rows = [row for step, row in log.items() if step > 0]
    settings = json.loads((folder / "config.json").read_text())["settings"]
    completions = settings["prompts_per_step"] * settings["num_samples"]

    def mean(name, some):
        return statistics.fmean(row[name] for row in some)

    names = ("eval_sampled_accuracy", "entropy")
    found = {
        "curves": {key: {n: row[key] for n, row in log.items() if key in row} for key in names}
    }
    for name in ("mixed", "clipped", "mismatch", "completion_length"):
        found[f"mean {name}"] = mean(name, rows)
    found["first mixed"] = mean("mixed", rows[:3])
    found["entropy fell"] = mean("entropy", rows[:3]) - mean("entropy", rows[-5:])
    found["k tokens"] = mean("completion_length", rows) * len(rows) * completions / 1000
    return found


def measure(trial, flags, final):
    """pass@k of these weights on held-out problems, and the share of answers that are worked out."""
    parsed = train.parse_args(flags)
    task = verifiers.get_task(parsed.task, parsed.prompt, parsed.stop or (), parsed.reward)
    model, tokenizer = load(str(final), "cpu", template=parsed.template)
    room = parsed.settings["max_new_tokens"]
    problems = task.test[: trial.problems]
    _, records = evaluate(
        GRPO(max_new_tokens=room), model, tokenizer, task, problems, trial.samples, 1.0
    )
    right = [round(share * trial.samples) for share in accuracies(records, trial.samples)]
    found = {
        f"pass@{k}": statistics.fmean(pass_at_k(trial.samples, c, k) for c in right)
        for k in trial.ks
    }
    found["works"] = statistics.fmean(
        float("=" in record["completion"] or "得" in record["completion"]) for record in records
    )
    return found


# ---- 3. Rates, seeds, checks -----------------------------------------------------------------------


def tuned(trial, options):
    """Each arm at both rates on the seed that is not counted -> (its better rate, all these rows)."""
    rates_tried = LARGE[1] if options.model else trial.rates
    rates = {arm: rates_tried[0] for arm in trial.arms}
    rows = []
    for arm in trial.arms:
        if arm in trial.untrained:
            continue
        tries = [run(trial, arm, TUNING, rate, options) for rate in rates_tried]
        best = max(tries, key=lambda row: statistics.fmean(row[name] for name in trial.tuned_by))
        rates[arm] = best["lr"]
        rows += tries
    return rates, rows


def table_of(rows):
    """-> x(arm, column): the numbers of the seeds, in their order."""

    def x(arm, column):
        return np.array([row.get(column, np.nan) for row in rows if row["arm"] == arm], dtype=float)

    return x


def could_show(check, values):
    """The smallest effect for which at most one verdict in ten would be wrong, with this spread of
    the seeds: experiments.wrong_verdicts solved for the effect."""
    own = statistics.stdev(values) if len(values) > 1 else 0.0
    spread = max(own, check.noise)
    among = check.among * (1 + check.same)
    level = 1 - 0.1 / among
    known = own <= check.noise
    quantile = stats.norm.ppf(level) if known else stats.t.ppf(level, len(values) - 1)
    return float(2 * spread * quantile / math.sqrt(len(values)))


def judged(check, x):
    """A check as a row of the result."""
    values = [float(value) for value in check.change(x)]
    holds, mean, wrong = check.judge(x)
    return {
        "sentence": check.sentence,
        "holds": holds,
        "mean": mean,
        "values": values,
        "effect": check.effect,
        "nothing changed": check.same,
        "wrong verdicts": wrong,
        "smallest effect": could_show(check, values),
    }


def verdicts_of(trial, rows):
    """-> (name -> judged checks, name -> verdict); the controls are one of the names."""
    x = table_of(rows)
    named = {**trial.claims, "controls": trial.controls}
    checks = {name: [judged(check, x) for check in these] for name, these in named.items()}
    return checks, {
        name: lab.verdict(row["holds"] for row in rows) for name, rows in checks.items()
    }


# ---- 4. Differences that checks ask for ------------------------------------------------------------

NOISE = {"pass@1": 0.02, "pass@64": 0.03}  # of a difference, from evaluation alone


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


# ---- 5. The command --------------------------------------------------------------------------------


def read_options(argv, trial):
    parser = argparse.ArgumentParser(description=trial.claim)
    parser.add_argument("--seeds", type=int, default=3, help="how many are counted: 0, 1, ..")
    parser.add_argument(
        "--tiny-only", action="store_true", help="no SmolLM2 even if --model is given"
    )
    parser.add_argument("--model", help="SmolLM2's folder: its sums in place of tiny's, 20 steps")
    parser.add_argument("--steps", type=int, help=f"(default: {trial.steps})")
    parser.add_argument("--runs", default="runs/claims", help="where runs are kept")
    parser.add_argument("--costs", action="store_true", help="print what it would cost, and stop")
    options = parser.parse_args(argv)
    options.runs = (ROOT / options.runs).resolve()
    if options.tiny_only:
        options.model = None
    if options.model:
        options.model = str(Path(options.model).resolve())
        options.steps = options.steps or LARGE[2]
        os.chdir(ROOT)  # the recipe names its files from there
    return options


def print_costs(trial, options):
    """Runs x seconds, before anything is run."""
    trained = len(trial.arms) - len(trial.untrained)
    counts = {"to choose rates": trained * len(trial.rates), "counted": trained * options.seeds}
    print(f"{trial.name}: {len(trial.arms)} arms, {options.steps or trial.steps} steps")
    for what, count in counts.items():
        print(
            f"  {what:16} {count:4} runs x {trial.seconds:4.0f} s = {count * trial.seconds / 60:5.1f} min"
        )
    print(f"  together {sum(counts.values()) * trial.seconds / 60:.1f} min of one core", flush=True)


def main(trial, argv=None):
    """Run the trial, print table and verdicts, write JSON and figure -> the result."""
    options = read_options(argv, trial)
    print_costs(trial, options)
    if options.costs:
        return None
    options.runs.mkdir(parents=True, exist_ok=True)
    rates, tries = tuned(trial, options)
    seeds = [*range(options.seeds)]
    rows = [run(trial, arm, seed, rates[arm], options) for arm in trial.arms for seed in seeds]
    checks, verdicts = verdicts_of(trial, rows)
    result = {
        "claim": trial.claim,
        "source": trial.source,
        "change our mind": trial.change_our_mind,
        "command": f"python notebooks/experiments/claims_{trial.name}.py --seeds {options.seeds}",
        "model": options.model or "tiny",
        "steps": options.steps or trial.steps,
        "seeds": seeds,
        "tuning seed": TUNING,
        "rates tried": sorted({row["lr"] for row in tries}),
        "rates": rates,
        "tries": [{key: row[key] for key in ("arm", "lr", *trial.tuned_by)} for row in tries],
        "rows": rows,
        "panels": trial.panels,
        "plane": trial.plane,
        "checks": checks,
        "verdicts": verdicts,
        "seconds": sum(row["seconds"] for row in rows + tries),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "git": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    name = f"claims_{trial.name}{'_large' if options.model else ''}"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    matplotlib.rcParams["svg.hashsalt"] = "rlvr"  # the same file for the same runs
    draw(result).savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
    report(result)
    return result


# ---- 6. What a page shows --------------------------------------------------------------------------


def read(name):
    """A result that has been written."""
    return json.loads((RESULTS / f"claims_{name}.json").read_text())


def report(result):
    """Print the table of arms, each check with its power, and the verdicts."""
    x = table_of(result["rows"])
    columns = [*result["panels"]]
    print(f"{len(result['seeds'])} seeds, {result['steps']} steps: mean [lowest-highest]")
    arms = [*dict.fromkeys(row["arm"] for row in result["rows"])]
    table = [["", "rate", *columns]]
    for arm in arms:
        cells = [cell_of(x(arm, name)) for name in columns]
        table.append([arm, f"{result['rates'][arm]:g}", *cells])
    widths = [max(map(len, column)) for column in zip(*table)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    for name, checks in result["checks"].items():
        print(f"{name}: {result['verdicts'][name]}")
        for check in checks:
            answer = {True: "yes", False: "NO ", None: " ? "}[check["holds"]]
            line = f"the line is at {check['effect'] / 2:.2f}"
            power = f"these seeds could have shown {check['smallest effect']:.2f}"
            print(f"  {answer} {check['sentence']}: {check['mean']:+.3f}; {line}, {power}")


def cell_of(values):
    """Mean, lowest and highest; nothing where it was not measured, as without training."""
    return "" if np.isnan(values).all() else lab.spread(values)


def draw(result):
    """A panel for each column: every seed a dot, the mean a bar, an arm a line of the panel. Where the
    result names two columns as "plane", one more: every run a dot between them, and as rings the runs
    on which the rates were chosen."""
    x = table_of(result["rows"])
    arms = [*dict.fromkeys(row["arm"] for row in result["rows"])]
    panels = result["panels"]
    plane = result.get("plane")
    count = len(panels) + bool(plane)
    size = (3 + 2.6 * count, max(3.0, 1.2 + 0.26 * len(arms)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, (column, title) in zip(axes, panels.items()):
        for place, arm in enumerate(arms):
            draw_seeds(axis, x(arm, column), place)
        axis.set(xlabel=title, ylim=(len(arms) - 0.5, -0.5))
        axis.set_yticks(range(len(arms)), arms if axis is axes[0] else [""] * len(arms))
        axis.grid(axis="x", alpha=0.3)
    if plane:
        draw_plane(axes[-1], result, arms, *plane)
    return figure


def draw_seeds(axis, values, place):
    color = f"C{place % 10}"
    axis.plot(values, [place] * len(values), "o", color=color, alpha=0.5, markersize=5)
    axis.plot(values.mean(), place, "|", color=color, markersize=16, markeredgewidth=2)


def draw_plane(axis, result, arms, across, up):
    for rows, style in ((result["tries"], "none"), (result["rows"], "full")):
        for row in rows:
            color = f"C{arms.index(row['arm']) % 10}"
            axis.plot(row[across], row[up], "o", color=color, fillstyle=style, markersize=5)
    axis.set(xlabel=across, ylabel=up)
    axis.grid(alpha=0.3)
