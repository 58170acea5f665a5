"""claim.py - a claim as data: what to train, with how many seeds, what to measure, and what to check.

    python -m notebooks.claims.claims                         lists the claims, and how long each took
    python -m notebooks.claims.claims growth lora --seeds 3   trains missing runs, checks the claims, saves and prints
    python -m notebooks.claims.claims growth --judge          checks the saved runs again and trains nothing
    python -m notebooks.claims.claim --name tiny --seeds 0 1 2 -- --steps 100

Your own file with `main([Claim(..)])` is such a command, too. The last command checks no claim: it repeats one training
with several seeds, and its last line is a table of the results.

An arm is a base model and flags of train.py. If an arm lists several learning rates, it uses the rate that is best on
average over the seeds TUNING, which are not counted.

A check names the effect that it looks for; its line is halfway between this effect and none. If a trial of this size
and spread would be wrong more than one time in ten, the check says "cannot tell". It still decides if the seeds are so
far from the line that a t-test on them is sure.

A run's folder is inside a folder named after the commit, and is named after its seed and a digest of its flags. So a
finished run is not repeated, an interrupted run is resumed, claims that need the same run share it, and a new commit
gets new runs. (If you have uncommitted changes, give another --runs.)
notebooks/results/claims.json holds the runs with their numbers, the checks and their results.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

import train
from appendix.plumbing import git_commit
from notebooks.claims.measures import history, number
from notebooks.claims.show import KEPT, cell_of, read, report, table_of
from notebooks.claims.start import base_of
from notebooks.command import parser_of, run_command, wrapped
from notebooks.look.keep import ROOT, load, origin, write_json

TUNING = (7, 8, 9)  # the seeds for choosing learning rates; the seeds that count are 0, 1, ..
LEAST = 3  # the number of seeds below which no check is decided

# ---- 1. A claim ------------------------------------------------------------------------------------


@dataclass
class Arm:
    """What to train. rates: learning rates to choose from. A single rate is used as it is; without rates, nothing is
    trained."""

    flags: str = ""
    base: str = "usual"
    rates: tuple = (4e-4,)


@dataclass
class Check:
    """A sentence to check.

    change: a function of x, where x(arm, column) is an array with one number per seed. It returns one number per seed:
        at least `effect` if the sentence is true, and 0 if nothing changed.
    noise: the standard deviation of such a number due to evaluation alone.
    same: True if the sentence says that nothing changed; then `effect` would refute it."""

    sentence: str
    change: Callable
    effect: float
    noise: float
    same: bool = False


@dataclass
class Claim:
    """claim: the checks; if a claim has several parts, `said` has the checks of each part. controls: checks that show
    whether the comparison means anything. A column is a number that `measure` returns for a Run, or else one that
    measures.number finds."""

    name: str
    sentence: str
    doubt: str  # what would change our mind
    arms: dict[str, Arm]
    panels: str  # columns that the figure shows, joined by commas
    columns: str = ""  # columns of the table (default: the columns of the panels)
    claim: list = field(default_factory=list)
    said: dict = field(default_factory=dict)
    controls: list = field(default_factory=list)
    every: int = 5  # its curves show every 5th step; 0: there is no figure
    flags: str = "--eval-every 5 --eval-problems 200"
    steps: int = 60
    measure: Callable = lambda run: {}

    def checks(self):
        parts = {"claim": self.claim, **self.said, "controls": self.controls}
        return {said: checks for said, checks in parts.items() if checks}

    def shown(self):
        return (self.columns or self.panels).split(", ")


# ---- 2. Kinds of checks ----------------------------------------------------------------------------

POINTS = 0.05  # noise of a difference of two accuracies on 200 problems: sqrt(2 * 0.25 / 200)
# Noise of a share of 1,280 completions: twice sqrt(0.25 / 1280), because the completions of a group are alike.
SHARE = 0.03
# Noise of a difference in these columns; in other columns it is POINTS.
NOISE = {"bilingual": SHARE, "rambling": SHARE, "boxes": 0.1, "alignment": 0.02, "r_model": 0.1}


def difference(sentence, one, other, by, same=False):
    """Check that `one` is `by` above `other`, or equal to it if same=True. Each is a pair: an arm and its column."""
    noise = NOISE.get(one[1], POINTS)
    return Check(sentence, lambda x: x(*one) - x(*other), by, noise, same)


def more(arm, other, column="right", by=0.1):
    """Check that the column is higher in the first arm."""
    sentence = f"{column}: {arm} is {by:g} above {other}"
    return difference(sentence, (arm, column), (other, column), by)


def as_much(arm, other, column="right", by=0.1):
    """Check that the arms differ by less than half of `by`; a difference of `by` would refute it."""
    sentence = f"{column}: {arm} is equal to {other} ({by:g} would refute it)"
    return difference(sentence, (arm, column), (other, column), by, same=True)


def rises(arm, by=0.3, column="right", since=""):
    """Check that a column rises. since: the column to compare with (default: the same column before training)."""
    sentence = f"{arm}: {column} rises by {by:g}" + f" from {since}" * bool(since)
    return difference(sentence, (arm, column), (arm, since or f"{column}@0"), by)


def grows(arm, column="accuracy", by=0.3):
    return rises(arm, by, column, f"{column}@start")


def falls(arm, by, column="right", since=""):
    sentence = f"{arm}: {column} falls by {by:g}" + f" from {since}" * bool(since)
    return difference(sentence, (arm, since or f"{column}@0"), (arm, column), by)


def stays(arm, by=0.1, column="right", since=""):
    sentence = f"{arm}: {column} stays ({by:g} would refute it)"
    return difference(sentence, (arm, column), (arm, since or f"{column}@0"), by, same=True)


def keeps(arm, by=0.2):
    """Check that accuracy stays at its best; a loss of `by` would refute it."""
    sentence = f"{arm}: right is no {by:g} below right@best ({by:+g} is no loss)"
    return Check(sentence, lambda x: x(arm, "right") - x(arm, "right@best") + by, by, POINTS)


def longer(arm, column, since, by, same=False):
    """Check the ratio of two mean lengths, minus 1. since: (arm, column)."""
    sentence = f"{arm}: {column} is {by:.0%} more than {' '.join(since)}"
    if same:
        sentence = f"{arm}: {column} is no more than {' '.join(since)} ({by:.0%} would refute it)"
    return Check(sentence, lambda x: x(arm, column) / x(*since) - 1, by, 0.05, same)


def above(arm, column, level, by):
    """Check that the column is above the level. The line is at the level."""
    sentence = f"{arm}: {column} is above {level:g} (less {level - by:g})"
    return Check(sentence, lambda x: x(arm, column) - level + by, 2 * by, 0.02)


def reaches(arm, column, by, noise):
    """Check that the column is about `by`; the line is at half of that."""
    return Check(f"{column}: {arm} has {by:g}", lambda x: x(arm, column), by, noise)


def has_none(arm, column, by, noise):
    sentence = f"{column}: {arm} has none ({by:g} would refute it)"
    return Check(sentence, lambda x: x(arm, column), by, noise, same=True)


# ---- 3. Decide a check -----------------------------------------------------------------------------


def wrong_verdicts(effect, deviation, seeds):
    """Return how often the mean over the seeds is on the wrong side of effect / 2 if the true effect is 0 or `effect`:
    Phi(-effect sqrt(seeds) / (2 deviation)). Example: 10 points, 200 problems evaluated twice (deviation
    sqrt(2 * 0.25 / 200) = 0.05), 3 seeds: Phi(-1.73) = 4.2 %. For 5 points it would be 19 %."""
    from scipy import stats  # imported here, so that --help works without it

    return float(stats.norm.cdf(-effect * math.sqrt(seeds) / (2 * deviation)))


def smallest_effect(deviation, seeds, sides=1, known=True):
    """Return the effect below which results are wrong more than 10 % of the time: a trial of this size could miss it.
    The mean over the seeds follows the normal law if the deviation is known, and Student's t if it is measured on the
    seeds."""
    from scipy import stats

    law = stats.norm if known else stats.t(seeds - 1)
    return float(2 * deviation * law.ppf(1 - 0.1 / sides) / math.sqrt(seeds))


def judge(check, rows):
    """Return the check with its numbers. holds is True, False, or None for "cannot tell". An effect below the smallest
    one is decided only if a one-sided t-test at 10 % is sure of the side of the line. Example: 0.24 beyond the line, a
    spread of 0.15, 3 seeds: t = 2.77 > 1.89."""
    values = np.asarray(check.change(table_of(rows)), dtype=float)
    seeds = len(values)
    own = values.std(ddof=1) if seeds > 1 and np.isfinite(values).all() else 0.0
    deviation = max(own, check.noise)
    smallest = smallest_effect(deviation, seeds, 1 + check.same, own <= check.noise)
    sure = smallest_effect(deviation, seeds, known=False) / 2
    mean = float(values.mean())
    line = check.effect / 2
    distance = (abs(mean) if check.same else mean) - line
    told = check.effect >= smallest or abs(distance) > sure
    holds = distance < 0 if check.same else distance > 0
    return {
        "sentence": check.sentence,
        "holds": holds if told and seeds >= LEAST and math.isfinite(mean) else None,
        "mean": mean,
        "line": line,
        "smallest effect": smallest,
    }


def verdict(checks):
    """Combine checks: "does not hold" if one does not hold, else "cannot tell" if one cannot tell, else "holds"."""
    holds = [check["holds"] for check in checks]
    return "does not hold" if False in holds else "cannot tell" if None in holds else "holds"


def result_of(claim, rows):
    """Apply the checks to the measured rows. Returns what a page shows."""
    parts = claim.checks().items()
    checks = {said: [judge(check, rows) for check in some] for said, some in parts}
    return {
        "claim": claim.sentence,
        "change our mind": claim.doubt,
        "columns": claim.shown(),
        "panels": claim.panels.split(", "),
        "checks": checks,
        "verdicts": {said: verdict(judged) for said, judged in checks.items()},
    }


# ---- 4. Train and measure --------------------------------------------------------------------------


@dataclass
class Run:
    """One arm with one seed. final: the folder of the model that is measured. An arm that is not trained has no run
    folder, and `final` is its base."""

    arm: str
    seed: int
    base: str
    final: Path
    folder: Path | None = None


def run_of(claim, name, seed, rate, runs):
    """Make the base of an arm and train the arm, unless that has been done. Returns a Run."""
    arm = claim.arms[name]
    base = str(base_of(arm.base, seed, runs / "bases"))
    if not arm.rates:
        return Run(name, seed, base, Path(base))
    flags = f"{claim.flags} {arm.flags.format(seed=seed)} --model {base} --device cpu"
    flags += f" --steps {claim.steps} --seed {seed} --save-every 20 --lr {rate:g}"
    folder = runs / f"seed{seed}-{hashlib.sha256(flags.encode()).hexdigest()[:10]}"
    train_run(flags.split(), folder)
    return Run(name, seed, base, folder / "final", folder)


def train_run(flags, folder):
    """Train into the folder, unless its run is finished; an interrupted run is resumed. The checkpoints of a finished
    run are deleted."""
    if not (folder / "final").exists():
        print(f"training {folder.name}: {' '.join(flags)}", file=sys.stderr, flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = ["--runs", str(folder.parent), "--name", folder.name]
        command = ["--resume", *place]
        if not any(folder.glob("checkpoints/step_*")):
            shutil.rmtree(folder, ignore_errors=True)  # stopped before the first checkpoint
            command = [*flags, *place]
        with open(f"{folder}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(command)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def row_of(claim, run, rate):
    """Return what is measured on one run, or on an untrained base."""
    row = {"claim": claim.name, "arm": run.arm, "seed": run.seed, "rate": rate}
    row |= claim.measure(run)
    if run.folder:
        names = ["right", *claim.shown()]
        found = {name: number(run.folder, name) for name in names if name not in row}
        row |= {name: value for name, value in found.items() if math.isfinite(value)}
    if claim.every:
        steps = {at: seen for at, seen in history(run.folder).items() if at % claim.every == 0}
        row["curves"] = {column: curve(steps, column) for column in claim.panels.split(", ")}
    return row


def curve(steps, column):
    """Return a column's curve for a figure, with four digits. No check uses it."""
    return {at: float(f"{seen[column]:.4g}") for at, seen in steps.items() if column in seen}


def measured(claim, seeds, runs):
    """Choose learning rates, train missing runs, and measure. Returns the measurements and their origin."""

    def row(name, seed, rate):
        return row_of(claim, run_of(claim, name, seed, rate, runs), rate)

    began = time.perf_counter()
    tries, rows = [], []
    for name, arm in claim.arms.items():
        rate = arm.rates[0] if arm.rates else 0.0
        if len(arm.rates) > 1:
            tried = [[row(name, seed, rate)["right"] for seed in TUNING] for rate in arm.rates]
            found = dict(zip(arm.rates, np.mean(tried, 1).tolist()))
            tries += [{"arm": name, "rate": at, "right": right} for at, right in found.items()]
            rate = max(found, key=found.get)
        rows += [row(name, seed, rate) for seed in range(seeds)]
    module = f"notebooks.claims.{Path(sys.argv[0]).stem}"
    return {
        "name": claim.name,
        **origin(f"python -m {module} {claim.name} --seeds {seeds}"),
        "steps": claim.steps,
        "seeds": [*range(seeds)],
        "tries": tries,
        "seconds": time.perf_counter() - began,
        "rows": rows,
    }


# ---- 5. The command --------------------------------------------------------------------------------


def rounded(result):
    """Round floats to six digits. Pages show three digits, and checks use the saved numbers."""
    return json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.6g}"))


def keep(result, path):
    """Save a result in the file, replacing the saved result of this claim."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    runs = [run for run in kept.get("runs", []) if run["claim"] != result["name"]]
    runs += result.pop("rows")
    claims = {record["name"]: record for record in kept.get("claims", [])}
    claims[result["name"]] = result
    runs.sort(key=lambda run: [*claims].index(run["claim"]))
    write_json(path, {"claims": [*claims.values()], "runs": runs})


def main(claims, argv=None):
    parser = parser_of("Try claims. Without a name it lists them.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, choices=range(1, TUNING[0] + 1), default=3)
    parser.add_argument("--judge", action="store_true", help="check the saved runs again")
    parser.add_argument("--runs", default=f"runs/claims/{git_commit()}", help="folder of the runs")
    parser.add_argument("--results", default=str(KEPT.parent), help="folder of claims.json")
    args = parser.parse_args(argv)
    named = {claim.name: claim for claim in claims}
    took = {each["name"]: round(each["seconds"] / 60) for each in load("claims")["claims"]}
    if args.judge and set(args.names) - set(took):
        parser.error(f"--judge: there are saved runs of {' '.join(took)}")
    if not args.names or set(args.names) - set(named):
        lines = [f"{it.name:14} {took.get(it.name, '?'):>3} min  {it.sentence}" for it in claims]
        parser.error("\n".join(["name claims:", *[wrapped(line, hang=" " * 24) for line in lines]]))
    os.chdir(ROOT)  # paths in flags are relative to it
    Path(args.results).mkdir(parents=True, exist_ok=True)
    for name in args.names:
        claim = named[name]
        result = read(name) if args.judge else rounded(measured(claim, args.seeds, Path(args.runs)))
        result |= rounded(result_of(claim, result["rows"]))
        report(result)
        keep(result, Path(args.results) / KEPT.name)


# ---- 6. Several seeds of one training --------------------------------------------------------------

COLUMNS = ["run", "steps", "before", "half way", "in the end", "seconds"]


def spread(logs, step, column):
    """Return "mean [lowest - highest]" over the seeds, or the value of a single seed."""
    cell = cell_of(np.array([log[step][column] for log in logs])).replace("-", " - ")
    return cell if len(logs) > 1 else cell.partition(" ")[0]


def over_seeds(cell, number):
    mean, *ends = re.findall(r"[\d.]+", cell)
    if {*ends} <= {mean}:
        return f"{mean} in {number} of {number} seeds"
    return f"{cell} over {number} seeds"


def accuracies(logs, step):
    """Return the greedy accuracy, and the sampled accuracy with its lowest and highest."""
    greedy = spread(logs, step, "eval_accuracy").partition(" ")[0]
    return f"{greedy}, {spread(logs, step, 'eval_sampled_accuracy')}"


def seconds_of(log):
    return sum(row["sample_seconds"] + row["update_seconds"] for step, row in log.items() if step)


def curve_of(log, column):
    """Return {step: value} for the steps at which the column was measured."""
    return {step: round(row[column], 3) for step, row in log.items() if column in row}


def several(argv=None):
    """Train with several seeds. Seed 3 is trained into RUNS/NAME-3, and its output goes to RUNS/NAME-3.log."""
    parser = parser_of("The same training with several seeds.")
    parser.add_argument("--name", required=True, help="name of the runs, without their seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", default=str(ROOT / "runs"), help="folder of the runs")
    parser.add_argument("--curves", nargs="+", default=[], help="columns to keep for every step")
    parser.add_argument("flags", nargs="*", help="flags of train.py, after --")
    args = parser.parse_args(argv)
    logs = []
    for seed in args.seeds:
        folder = Path(args.runs, f"{args.name}-{seed}")
        train_run([*args.flags, "--seed", str(seed)], folder)
        logs.append(train.read_log(folder))
    evaluated = [step for step, row in logs[0].items() if "eval_accuracy" in row]
    last = max(evaluated)
    half = min(evaluated, key=lambda step: abs(step - last / 2))
    before, middle, after = (accuracies(logs, step) for step in (0, half, last))
    if half not in (0, last):
        middle += f" (step {half})"
    seconds = [f"{value:.0f}" for value in sorted(map(seconds_of, logs))]
    line = Path(args.runs, f"{args.name}-{args.seeds[0]}.log").read_text().splitlines()[-1]
    said = {
        "line": f"`{line.partition(';')[0]}`",
        "greedy": over_seeds(spread(logs, last, "eval_accuracy"), len(logs)),
        "sampled": f"from {before.split()[1]} to {over_seeds(after.partition(', ')[2], len(logs))}",
    }
    ends = dict.fromkeys((seconds[0], seconds[-1]))  # the shortest run and the longest
    row = [args.name, str(last), before, middle, after, " - ".join(ends)]
    found = {"columns": COLUMNS, "rows": [row], "sentences": said, "seeds": args.seeds}
    if args.curves:
        found["curves"] = {
            column: [curve_of(log, column) for log in logs] for column in args.curves
        }
    print(json.dumps(found))


if __name__ == "__main__":
    run_command(several)
