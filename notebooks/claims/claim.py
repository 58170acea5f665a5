"""claim.py - a claim as data: arms x seeds of training, what is measured of them, checks, a verdict.

    python -m notebooks.claims.claims                         the claims, and how long each took
    python -m notebooks.claims.claims growth lora --seeds 3   train what is missing, judge, write, print
    python -m notebooks.claims.claims growth --judge          judge the kept runs again; nothing is trained
    python -m notebooks.claims.claim --name tiny --seeds 0 1 2 -- --steps 100

A file of your own with `main([Claim(..)])` is such a command too. The last command is no claim: the same training with
several seeds, and as its last line a table of what was reached.

An arm is flags of train.py and a base. Where an arm names several learning rates, the best on a seed that is not
counted is taken (TUNING).

A check names the effect that it looks for, and the line stands in the middle between that and none. Where a trial of
this size and spread would be wrong more than one time in ten it says "cannot tell", unless the seeds lie so far from
the line that a t-test on them is sure of it.

A run's folder lies in a folder of the commit, and is named after its seed and a digest of its flags: a finished run is
not repeated, an interrupted one goes on, claims that ask for the same run share it, and a new commit trains anew. (What
is not committed wants another --runs.)
notebooks/results/claims.json holds the runs with their numbers, the checks and the verdicts.
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

TUNING = 9  # the seed on which learning rates are chosen; those that are counted are 0, 1, ..
LEAST = 3  # seeds: with fewer no check is decided

# ---- 1. A claim ------------------------------------------------------------------------------------


@dataclass
class Arm:
    """What is trained. rates: learning rates to choose from; one is taken as it is, and without any nothing is trained."""

    flags: str = ""
    base: str = "usual"
    rates: tuple = (4e-4,)


@dataclass
class Check:
    """One sentence. change: from x(arm, column), the numbers of the seeds as an array, to one number a seed that is at
    least `effect` if the sentence is true and 0 if nothing changed; with same=True the sentence is that nothing
    changed, and effect is what would refute it. noise: the standard deviation of such a number from evaluation alone."""

    sentence: str
    change: Callable
    effect: float
    noise: float
    same: bool = False


@dataclass
class Claim:
    """claim: its checks; of a claim with several parts `said` has those of each. controls: those that show whether the
    comparison is worth anything. A column is what `measure` finds of a Run; else one of measures.number."""

    name: str
    sentence: str
    doubt: str  # what would change our mind
    arms: dict[str, Arm]
    panels: str  # columns that the figure shows, joined by commas
    columns: str = ""  # of the table (default: those of the panels)
    claim: list = field(default_factory=list)
    said: dict = field(default_factory=dict)
    controls: list = field(default_factory=list)
    every: int = 5  # of the steps its curves have every so many-th; 0: there is no figure
    flags: str = "--eval-every 5 --eval-problems 200"
    steps: int = 60
    measure: Callable = lambda run: {}

    def checks(self):
        parts = {"claim": self.claim, **self.said, "controls": self.controls}
        return {said: checks for said, checks in parts.items() if checks}

    def shown(self):
        return (self.columns or self.panels).split(", ")


# ---- 2. What is said -------------------------------------------------------------------------------

POINTS = 0.05  # noise of a difference of two accuracies on 200 problems: sqrt(2 * 0.25 / 200)
# of a share of 1,280 completions: twice sqrt(0.25 / 1280), for those of a group are alike
SHARE = 0.03
# Of a difference, where it is not POINTS.
NOISE = {"bilingual": SHARE, "rambling": SHARE, "boxes": 0.1, "alignment": 0.02, "r_model": 0.1}


def difference(sentence, one, other, by, same=False):
    """one, other: an arm and its column."""
    noise = NOISE.get(one[1], POINTS)
    return Check(sentence, lambda x: x(*one) - x(*other), by, noise, same)


def more(arm, other, column="right", by=0.1):
    """The first arm has more of the column."""
    sentence = f"{column}: {arm} is {by:g} above {other}"
    return difference(sentence, (arm, column), (other, column), by)


def as_much(arm, other, column="right", by=0.1):
    """They differ by less than half of `by`; `by` would refute it."""
    sentence = f"{column}: {arm} is equal to {other} ({by:g} would refute it)"
    return difference(sentence, (arm, column), (other, column), by, same=True)


def rises(arm, by=0.3, column="right", since=""):
    """since: another column; if there is none, the same before training."""
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
    """A loss of `by` would refute it."""
    sentence = f"{arm}: right is no {by:g} below right@best ({by:+g} is no loss)"
    return Check(sentence, lambda x: x(arm, "right") - x(arm, "right@best") + by, by, POINTS)


def longer(arm, column, since, by, same=False):
    """The ratio of two mean lengths, less 1. since: (arm, column). Noise: twice what the mean lengths of an arm's seeds
    differ by."""
    sentence = f"{arm}: {column} is {by:.0%} more than {' '.join(since)}"
    if same:
        sentence = f"{arm}: {column} is no more than {' '.join(since)} ({by:.0%} would refute it)"
    return Check(sentence, lambda x: x(arm, column) / x(*since) - 1, by, 0.05, same)


def above(arm, column, level, by):
    """The line is at the level."""
    sentence = f"{arm}: {column} is above {level:g} (less {level - by:g})"
    return Check(sentence, lambda x: x(arm, column) - level + by, 2 * by, 0.02)


def reaches(arm, column, by, noise):
    """There is something, about `by` of it; the line is at half."""
    return Check(f"{column}: {arm} has {by:g}", lambda x: x(arm, column), by, noise)


def has_none(arm, column, by, noise):
    sentence = f"{column}: {arm} has none ({by:g} would refute it)"
    return Check(sentence, lambda x: x(arm, column), by, noise, same=True)


# ---- 3. Is it so? ----------------------------------------------------------------------------------


def wrong_verdicts(effect, deviation, seeds):
    """How often the mean over the seeds lies on the wrong side of effect / 2, when nothing is there or all of it is:
    Phi(-effect sqrt(seeds) / (2 deviation)). Example: 10 points, 200 problems evaluated twice (deviation
    sqrt(2 * 0.25 / 200) = 0.05), 3 seeds: Phi(-1.73) = 4.2 %; for 5 points it would be 19 %."""
    from scipy import stats  # here, so that --help works without it

    return float(stats.norm.cdf(-effect * math.sqrt(seeds) / (2 * deviation)))


def smallest_effect(deviation, seeds, sides=1, known=True):
    """The effect below which a verdict is wrong in more than 10 %: what a trial of this size could have missed. The law
    of the mean over the seeds is the normal one, or Student's t where the deviation is that of the seeds."""
    from scipy import stats

    law = stats.norm if known else stats.t(seeds - 1)
    return float(2 * deviation * law.ppf(1 - 0.1 / sides) / math.sqrt(seeds))


def judge(check, rows):
    """-> the check with its numbers; holds is True, False, or None for "cannot tell". Below the smallest effect it can
    be told if a one-sided t-test at 10 % is sure of the side of the line. Example: .24 beyond it, a spread of .15, 3
    seeds: t = 2.77 > 1.89."""
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
    """All must hold; one that does not hold decides; else one that cannot be told leaves it open."""
    holds = [check["holds"] for check in checks]
    return "does not hold" if False in holds else "cannot tell" if None in holds else "holds"


def result_of(claim, rows):
    """Judge what was measured -> what a page shows."""
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
    """One arm with one seed. final: the folder of the model that is measured; an arm that is not trained has no folder,
    and its base is final."""

    arm: str
    seed: int
    base: str
    final: Path
    folder: Path | None = None


def run_of(claim, name, seed, rate, runs):
    """Train an arm, unless that is done already -> Run. Its base comes first."""
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
    """Into the folder, unless that is done; what was interrupted goes on. Of what is done the checkpoints leave."""
    if not (folder / "final").exists():
        print(f"training {folder.name}: {' '.join(flags)}", file=sys.stderr, flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = ["--runs", str(folder.parent), "--name", folder.name]
        command = ["--resume", *place]
        if not any(folder.glob("checkpoints/step_*")):
            shutil.rmtree(folder, ignore_errors=True)  # stopped before there was anything to keep
            command = [*flags, *place]
        with open(f"{folder}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(command)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def row_of(claim, run, rate):
    """What is measured of one run, or of a base that is not trained."""
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
    """To be drawn, so with four digits; no check looks at it."""
    return {at: float(f"{seen[column]:.4g}") for at, seen in steps.items() if column in seen}


def measured(claim, seeds, runs):
    """Tune, train what is missing, measure -> what was measured, and where."""

    def row(name, seed, rate):
        return row_of(claim, run_of(claim, name, seed, rate, runs), rate)

    began = time.perf_counter()
    tries = []
    rows = []
    for name, arm in claim.arms.items():
        rate = arm.rates[0] if arm.rates else 0.0
        if len(arm.rates) > 1:
            tried = [row(name, TUNING, rate) for rate in arm.rates]
            tries += [{key: each[key] for key in ("arm", "rate", "right")} for each in tried]
            rate = max(tried, key=lambda row: row["right"])["rate"]
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
    """Floats with six digits: pages show three, and checks look at what is kept."""
    return json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.6g}"))


def keep(result, path):
    """In place of what the file has of this claim."""
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
    parser.add_argument("--seeds", type=int, choices=range(1, TUNING + 1), default=3)
    parser.add_argument("--judge", action="store_true", help="judge the kept runs again")
    parser.add_argument("--runs", default=f"runs/claims/{git_commit()}", help="where runs are kept")
    parser.add_argument("--results", default=str(KEPT.parent), help="where claims.json goes")
    args = parser.parse_args(argv)
    named = {claim.name: claim for claim in claims}
    took = {each["name"]: round(each["seconds"] / 60) for each in load("claims")["claims"]}
    if args.judge and set(args.names) - set(took):
        parser.error(f"--judge: there are kept runs of {' '.join(took)}")
    if not args.names or set(args.names) - set(named):
        lines = [f"{it.name:14} {took.get(it.name, '?'):>3} min  {it.sentence}" for it in claims]
        parser.error("\n".join(["name claims:", *[wrapped(line, hang=" " * 24) for line in lines]]))
    os.chdir(ROOT)  # flags name files from there
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
    """mean [lowest - highest] over the seeds; of one seed its value"""
    cell = cell_of(np.array([log[step][column] for log in logs])).replace("-", " - ")
    return cell if len(logs) > 1 else cell.partition(" ")[0]


def over_seeds(cell, number):
    mean, *ends = re.findall(r"[\d.]+", cell)
    if {*ends} <= {mean}:
        return f"{mean} in {number} of {number} seeds"
    return f"{cell} over {number} seeds"


def accuracies(logs, step):
    """Greedy, and sampled with lowest and highest."""
    greedy = spread(logs, step, "eval_accuracy").partition(" ")[0]
    return f"{greedy}, {spread(logs, step, 'eval_sampled_accuracy')}"


def seconds_of(log):
    return sum(row["sample_seconds"] + row["update_seconds"] for step, row in log.items() if step)


def curve_of(log, column):
    """{step: value} where it was measured"""
    return {step: round(row[column], 3) for step, row in log.items() if column in row}


def several(argv=None):
    """Seed 3 is trained into RUNS/NAME-3, its output goes to RUNS/NAME-3.log."""
    parser = parser_of("The same training with several seeds.")
    parser.add_argument("--name", required=True, help="of the runs, less their seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", default=str(ROOT / "runs"), help="folder of the runs")
    parser.add_argument("--curves", nargs="+", default=[], help="columns to keep for every step")
    parser.add_argument("flags", nargs="*", help="behind --: flags of train.py")
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
