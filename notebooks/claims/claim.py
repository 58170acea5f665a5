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
not repeated, an interrupted one goes on, claims that ask for the same run share it, and a new commit trains anew.
notebooks/results/claims.json holds the runs with their numbers, the checks and the verdicts.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import stats

import train
from eval import git_commit
from model import ModelError
from notebooks.claims.measures import history, number
from notebooks.claims.show import KEPT, read, report, table_of
from notebooks.claims.start import base_of
from notebooks.look.keep import ROOT, origin, write_json
from verifiers import DataError

TUNING = 9  # the seed on which learning rates are chosen; it is never counted
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
    """checks: what is said -> its checks; under "controls" those that show whether the comparison is worth anything. A
    column is what `measure` finds of a Run; else one of measures.number."""

    name: str
    sentence: str
    source: str
    doubt: str  # what would change our mind
    arms: dict[str, Arm]
    checks: dict[str, list[Check]]
    panels: tuple  # columns that the figure shows
    columns: tuple = ()  # of the table (default: those of the panels)
    every: int = (
        0  # of the steps its curves have every so many-th; without curves each seed is a dot
    )
    flags: str = ""
    steps: int = 0
    measure: Callable = lambda run: {}


# ---- 2. What is said -------------------------------------------------------------------------------

POINTS = 0.05  # noise of a difference of two accuracies on 200 problems: sqrt(2 * 0.25 / 200)
# of a share of 1,280 completions: twice sqrt(0.25 / 1280), for those of a group are alike
SHARE = 0.03
NOISE = {"bilingual": SHARE, "rambling": SHARE}  # of a difference, where it is not POINTS


def more(arm, other, column="right", by=0.1):
    """The first arm has more of the column."""
    sentence = f"{column}: {arm} is {by:g} above {other}"
    return difference(sentence, (arm, column), (other, column), by)


def as_much(arm, other, column="right", by=0.1):
    """They differ by less than half of `by`; `by` would refute it."""
    sentence = f"{column}: {arm} is equal to {other} ({by:g} would refute it)"
    return difference(sentence, (arm, column), (other, column), by, same=True)


def rises(arm, by=0.3, column="right"):
    sentence = f"{arm}: {column} rises by {by:g}"
    return difference(sentence, (arm, column), (arm, f"{column}@0"), by)


def stays(arm, by=0.1, column="right"):
    sentence = f"{arm}: {column} stays ({by:g} would refute it)"
    return difference(sentence, (arm, column), (arm, f"{column}@0"), by, same=True)


def falls(arm, by, column="right"):
    sentence = f"{arm}: {column} falls by {by:g}"
    return difference(sentence, (arm, f"{column}@0"), (arm, column), by)


def grows(arm, column="accuracy", by=0.3):
    """From the first three steps to the last ten."""
    sentence = f"{arm}: {column} grows by {by:g}"
    return difference(sentence, (arm, column), (arm, f"{column}@start"), by)


def difference(sentence, one, other, by, same=False):
    """one, other: an arm and its column."""
    noise = NOISE.get(one[1], POINTS)
    return Check(sentence, lambda x: x(*one) - x(*other), by, noise, same)


def longer(sentence, one, other, by, same=False):
    """The ratio of two mean lengths, less 1. Noise: twice what the mean lengths of an arm's seeds differ by."""
    return Check(sentence, lambda x: x(*one) / x(*other) - 1, by, 0.05, same)


def reaches(arm, column, by, noise):
    """There is something, about `by` of it; the line is at half."""
    return Check(f"{column}: {arm} has {by:g}", lambda x: x(arm, column), by, noise)


def has_none(arm, column, by, noise):
    sentence = f"{column}: {arm} has none ({by:g} would refute it)"
    return Check(sentence, lambda x: x(arm, column), by, noise, same=True)


# ---- 3. Is it so? ----------------------------------------------------------------------------------


def law(seeds, known):
    """Of the mean over the seeds: the normal one, or Student's t where the deviation is that of the seeds."""
    return stats.norm if known else stats.t(seeds - 1)


def wrong_verdicts(effect, deviation, seeds, sides=1, known=True):
    """How often the mean over the seeds lies on the wrong side of effect / 2, when nothing is there or all of it is:
    Phi(-effect sqrt(seeds) / (2 deviation)). Example: 10 points, 200 problems evaluated twice (deviation
    sqrt(2 * 0.25 / 200) = 0.05), 3 seeds: Phi(-1.73) = 4.2 %; for 5 points it would be 19 %."""
    distance = effect * math.sqrt(seeds) / (2 * deviation)
    return sides * float(law(seeds, known).cdf(-distance))


def smallest_effect(deviation, seeds, sides=1, known=True):
    """The effect below which a verdict is wrong in more than 10 %: what a trial of this size could have missed."""
    return float(2 * deviation * law(seeds, known).ppf(1 - 0.1 / sides) / math.sqrt(seeds))


def beyond(distance, deviation, seeds):
    """Is a mean of this many seeds, at that distance from the line, on its side of it for sure? A one-sided t-test at
    10 %. Example: .24 beyond, a spread of .15, 3 seeds: t = 2.77 > 1.89."""
    return abs(distance) > stats.t.ppf(0.9, seeds - 1) * deviation / math.sqrt(seeds)


def judge(check, rows):
    """-> the check with its numbers; holds is True, False, or None for "cannot tell"."""
    values = np.asarray(check.change(table_of(rows)), dtype=float)
    seeds = len(values)
    own = statistics.stdev(values) if seeds > 1 and np.isfinite(values).all() else 0.0
    deviation = max(own, check.noise)
    known = own <= check.noise
    sides = 1 + check.same
    wrong = wrong_verdicts(check.effect, deviation, seeds, sides, known)
    mean = float(values.mean())
    line = check.effect / 2
    distance = (abs(mean) if check.same else mean) - line
    told = wrong <= 0.1 or beyond(distance, deviation, seeds)
    holds = distance < 0 if check.same else distance > 0
    return {
        "sentence": check.sentence,
        "holds": holds if told and seeds >= LEAST and math.isfinite(mean) else None,
        "mean": mean,
        "line": line,
        "smallest effect": smallest_effect(deviation, seeds, sides, known),
    }


def verdict(checks):
    """All must hold; one that does not hold decides; else one that cannot be told leaves it open."""
    holds = [check["holds"] for check in checks]
    return "does not hold" if False in holds else "cannot tell" if None in holds else "holds"


def result_of(claim, rows):
    """Judge what was measured -> what a page shows."""
    checks = {said: [judge(check, rows) for check in some] for said, some in claim.checks.items()}
    return {
        "claim": claim.sentence,
        "source": claim.source,
        "change our mind": claim.doubt,
        "columns": [*(claim.columns or claim.panels)],
        "panels": [*claim.panels],
        "checks": checks,
        "verdicts": {said: verdict(judged) for said, judged in checks.items()},
    }


# ---- 4. Train and measure --------------------------------------------------------------------------


@dataclass
class Trial:
    """A claim at one size. tries: of each arm with several rates the rows of the seed that is not counted."""

    claim: Claim
    steps: int
    runs: Path
    tries: dict = field(default_factory=dict)


@dataclass
class Run:
    """One arm with one seed. final: the folder of the model that is measured; an arm that is not trained has no folder,
    and its base is final."""

    arm: str
    seed: int
    rate: float
    base: str
    final: Path
    folder: Path | None = None
    seconds: float = 0.0


def run_of(trial, arm, seed, rate):
    """Train, unless that is done already -> Run. Its base comes first."""
    chosen = trial.claim.arms[arm]
    base = str(base_of(chosen.base, seed, trial.runs / "bases"))
    if not chosen.rates:
        return Run(arm, seed, rate, base, Path(base))
    flags = f"{trial.claim.flags} {chosen.flags.format(seed=seed)} --model {base} --device cpu"
    flags += f" --steps {trial.steps} --seed {seed} --save-every 20 --lr {rate:g}"
    digest = hashlib.sha256(flags.encode()).hexdigest()[:10]
    folder = trial.runs / f"seed{seed}-{digest}"
    seconds = train_run(flags.split(), folder)
    return Run(arm, seed, rate, base, folder / "final", folder, seconds)


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


def rate_of(trial, arm):
    """The best of an arm's rates; a single one is not tried."""
    rates = trial.claim.arms[arm].rates
    if len(rates) < 2:
        return rates[0] if rates else 0.0
    if arm not in trial.tries:
        tried = [row_of(trial, run_of(trial, arm, TUNING, rate)) for rate in rates]
        trial.tries[arm] = tried
    return max(trial.tries[arm], key=lambda row: row["right"])["rate"]


def row_of(trial, run):
    """What is measured of one run, or of a base that is not trained."""
    claim = trial.claim
    began = time.perf_counter()
    row = {"claim": claim.name, "arm": run.arm, "seed": run.seed, "rate": run.rate}
    row |= claim.measure(run)
    if run.folder:
        names = dict.fromkeys(["right", *(claim.columns or claim.panels)])
        row |= {name: number(run.folder, name) for name in names if name not in row}
    if claim.every:
        rows = history(run.folder)
        steps = [step for step in rows if step % claim.every == 0]
        row["curves"] = {
            # to be drawn, so with four digits; no check looks at it
            column: {
                step: float(f"{rows[step][column]:.4g}") for step in steps if column in rows[step]
            }
            for column in claim.panels
        }
    row["seconds"] = run.seconds + time.perf_counter() - began
    return row


def counted(seeds):
    """0, 1, .. without the one on which rates are chosen."""
    return [seed for seed in range(seeds + 1) if seed != TUNING][:seeds]


def measured(trial, seeds):
    """Tune, train what is missing, measure -> what was measured, and where."""
    claim = trial.claim
    rates = {arm: rate_of(trial, arm) for arm in claim.arms}
    rows = [
        row_of(trial, run_of(trial, arm, seed, rates[arm]))
        for arm in claim.arms
        for seed in counted(seeds)
    ]
    tries = [row for some in trial.tries.values() for row in some]
    seconds = sum(row.pop("seconds") for row in [*rows, *tries])
    module = f"notebooks.claims.{Path(sys.argv[0]).stem}"
    return {
        "name": claim.name,
        **origin(f"python -m {module} {claim.name} --seeds {seeds}"),
        "steps": trial.steps,
        "seeds": counted(seeds),
        "rates": {arm: rate for arm, rate in rates.items() if rate},
        "tries": [{key: row[key] for key in ("arm", "rate", "right")} for row in tries],
        "seconds": seconds,
        "rows": rows,
    }


# ---- 5. The command --------------------------------------------------------------------------------


def rounded(value):
    """Floats with six digits, at any depth: pages show three, and checks look at what is kept."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return value


def keep(result, path):
    """In place of what the file has of this claim."""
    record = {key: value for key, value in result.items() if key != "rows"}
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    claims = [each for each in kept.get("claims", []) if each["name"] != result["name"]]
    runs = [run for run in kept.get("runs", []) if run["claim"] != result["name"]]
    write_json(path, {"claims": [*claims, record], "runs": [*runs, *result["rows"]]})


def cost_of(claim):
    """Its line in the list of claims: arms, and the minutes that it took when it was last measured."""
    known = {record["name"]: record for record in json.loads(KEPT.read_text())["claims"]}
    minutes = f"{known[claim.name]['seconds'] / 60:.0f} min" if claim.name in known else "?"
    return f"{claim.name:18} {len(claim.arms):2} arms {minutes:>7}  {claim.sentence}"


def main(claims, argv=None):
    parser = argparse.ArgumentParser(description="Try claims.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, help="how many are counted: 0, 1, ..")
    parser.add_argument("--steps", type=int, help="(default: the claim's)")
    parser.add_argument("--judge", action="store_true", help="judge the kept runs again")
    parser.add_argument("--runs", default=f"runs/claims/{git_commit()}", help="where runs are kept")
    parser.add_argument("--results", default=str(KEPT.parent), help="where claims.json goes")
    args = parser.parse_args(argv)
    named = {claim.name: claim for claim in claims}
    if not args.names or set(args.names) - set(named):
        parser.error("which?\n" + "\n".join(cost_of(claim) for claim in claims))
    os.chdir(ROOT)  # flags name files from there
    runs = Path(args.runs).resolve()
    runs.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        claim = named[name]
        trial = Trial(claim, args.steps or claim.steps, runs)
        found = read(name) if args.judge else rounded(measured(trial, args.seeds))
        result = found | rounded(result_of(claim, found["rows"]))
        keep(result, Path(args.results) / KEPT.name)
        report(result)


# ---- 6. Several seeds of one training --------------------------------------------------------------

COLUMNS = ["run", "steps", "before", "half way", "in the end", "thousand tokens", "trained on", "s"]


def summary(run):
    """What one run reached: at steps of evaluation the two accuracies; what it cost."""
    rows = train.read_log(run)
    config = json.loads((run / "config.json").read_text())["settings"]
    batch = config["prompts_per_step"] * config["num_samples"]
    evaluated = {step: row for step, row in rows.items() if "eval_accuracy" in row}
    steps = [row for step, row in rows.items() if step > 0]
    return {
        "greedy": {step: row["eval_accuracy"] for step, row in evaluated.items()},
        "sampled": {step: row["eval_sampled_accuracy"] for step, row in evaluated.items()},
        "tokens": sum(row["completion_length"] for row in steps) * batch / 1000,
        "trained": sum(row["trained"] for row in steps),
        "seconds": sum(row["sample_seconds"] + row["update_seconds"] for row in steps),
    }


def short(value):
    """0.123 as .123, as tables of accuracies have it."""
    return f"{value:.3f}".removeprefix("0")


def spread(values):
    """mean [lowest - highest]"""
    return f"{short(statistics.fmean(values))} [{short(min(values))} - {short(max(values))}]"


def from_to(values):
    """lowest - highest, in whole numbers."""
    ends = f"{min(values):.0f}", f"{max(values):.0f}"
    return " - ".join(dict.fromkeys(ends))


def table_row(label, runs):
    """A row of COLUMNS for the summaries of several seeds: accuracies are greedy, and sampled with lowest and highest."""
    steps = sorted(runs[0]["greedy"])
    last = steps[-1]
    half = min(steps, key=lambda step: abs(step - last / 2))
    accuracies = []
    for step in (0, half, last):
        greedy = short(statistics.fmean(run["greedy"][step] for run in runs))
        accuracies.append(f"{greedy}, {spread([run['sampled'][step] for run in runs])}")
    if half not in (0, last):
        accuracies[1] += f" (step {half})"
    costs = [from_to([run[cost] for run in runs]) for cost in ("tokens", "trained", "seconds")]
    return [label, str(last), *accuracies, *costs]


def several(argv=None):
    """Seed 3 is trained into RUNS/NAME-3, its output goes to RUNS/NAME-3.log."""
    parser = argparse.ArgumentParser(description="The same training with several seeds.")
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
    ends = {how: [run[how][max(run[how])] for run in runs] for how in ("greedy", "sampled")}
    before = short(statistics.fmean(run["sampled"][0] for run in runs))
    last = Path(f"{folders[0]}.log").read_text().splitlines()[-1]
    said = {
        "line": f"`{last.partition(';')[0]}`",
        "greedy": f"{spread(ends['greedy'])} over {len(runs)} seeds",
        "sampled": f"from {before} to {spread(ends['sampled'])} over {len(runs)} seeds",
    }
    row = table_row(args.name, runs)
    print(json.dumps({"columns": COLUMNS, "rows": [row], "sentences": said, "seeds": args.seeds}))


if __name__ == "__main__":
    try:
        several()
    except (ModelError, DataError) as error:
        sys.exit(f"error: {error}")
