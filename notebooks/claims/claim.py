"""claim.py - a claim as data: arms x seeds of training, what is measured of them, checks, a verdict.

    python -m notebooks.claims.paper_claims                          the claims, and how long each took
    python -m notebooks.claims.paper_claims noise lora --seeds 3     train what is missing, judge, write, print
    python -m notebooks.claims.paper_claims noise --judge            judge the kept runs again; nothing is trained
    python -m notebooks.claims.chapter_claims growth                 a claim of the chapters

A file of your own with `main([Claim(..)])` is such a command too.

An arm is flags of train.py and a base. Where an arm names several learning rates, the best on a seed that is not
counted is taken (TUNING). How its checks are decided: see checks.py.

A run's folder is named after its seed, and a digest of its flags and of all code that they stand on: a finished run is
not repeated, an interrupted one goes on, claims that ask for the same run share it, and changed code trains anew.
notebooks/results/claims_NAME.json holds the runs with their numbers, the checks and the verdicts.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

import train
import verifiers
from eval import evaluate, git_commit, pass_at_k
from model import load
from notebooks.claims.checks import Check, result_of
from notebooks.claims.measures import history, number
from notebooks.claims.seeds import train_run
from notebooks.claims.show import RESULTS, ROOT, read, report
from notebooks.claims.start import base_of
from notebooks.look.compare import accuracies
from notebooks.kept import hashes, write_json
from rlvr import GRPO

TUNING = 9  # the seed on which learning rates are chosen; it is never counted
RATES = (4e-4, 1.2e-3)  # tiny's own learning rate, and three times that

# ---- 1. A claim ------------------------------------------------------------------------------------


@dataclass
class Arm:
    """What is trained. rates: learning rates to choose from; one is taken as it is, and without any the base alone
    is measured. teacher: the arm whose last model (or "base") stands for {teacher} in the flags. steps: the claim's,
    if there are none."""

    flags: str = ""
    base: str = "usual"
    rates: tuple = RATES
    teacher: str = ""
    steps: int = 0


@dataclass
class Claim:
    """checks: what is said -> its checks; under "controls" those that show whether the comparison is worth anything.

    A column is what `measure` finds of a Run; where ks are given, pass@k of the last weights and `works`, the share of
    answers that are worked out; else one of measures.number."""

    name: str
    sentence: str
    source: str
    doubt: str  # what would change our mind
    arms: dict[str, Arm]
    checks: dict[str, list[Check]]
    panels: tuple  # columns that the figure shows
    columns: tuple = ()  # of the table (default: those of the panels)
    over: str = ""  # the column that the panels are drawn over; without it each seed is a dot
    every: int = 1  # of the steps such a curve has every 1st, 5th, ..
    plane: tuple = ()  # two columns whose trade-off the figure shows
    flags: str = "--eval-every 5 --eval-problems 200 --micro-batch-tokens 4096"
    steps: int = 0
    tuned_by: tuple = ("right",)  # the rate with the highest mean of these columns is taken
    ks: tuple = ()
    problems: int = 200  # held out, for pass@k
    samples: int = 8  # of each
    measure: Callable = lambda run: {}


# ---- 2. Train --------------------------------------------------------------------------------------


@dataclass
class Trial:
    """A claim at one size. tries: of each arm with several rates the rows of the seed that is not counted."""

    claim: Claim
    steps: int | None  # in place of the claim's
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
    flags: list
    final: Path
    folder: Path | None = None
    seconds: float = 0.0


def run_of(trial, arm, seed, rate):
    """Train, unless that is done already -> Run. Its base and its teacher come first."""
    chosen = trial.claim.arms[arm]
    bases = digest(code_of("notebooks/claims/start.py"))
    base = str(base_of(chosen.base, seed, trial.runs / f"bases-{bases}"))
    teacher = base
    if chosen.teacher not in ("", "base"):
        teacher = run_of(trial, chosen.teacher, seed, rate_of(trial, chosen.teacher)).final
    steps = trial.steps or chosen.steps or trial.claim.steps
    flags = f"{trial.claim.flags} {chosen.flags.format(teacher=teacher, seed=seed)} --model {base}"
    flags += f" --device cpu --steps {steps} --seed {seed} --save-every 20"
    flags += f" --lr {rate:g}" if rate else ""
    flags = flags.replace(f"{ROOT}/", "").split()
    if not chosen.rates:
        return Run(arm, seed, rate, base, flags, Path(base))
    folder = trial.runs / f"seed{seed}-{digest(flags, code_of(' '.join(['train.py', *flags])))}"
    seconds = train_run(flags, folder)
    return Run(arm, seed, rate, base, flags, folder / "final", folder, seconds)


def code_of(text):
    """{file: hash} of the tiny weights, of the scripts that a text names, and of all that they import."""
    return hashes([text], "notebooks/tiny/model.safetensors")


def digest(*parts):
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]


def rate_of(trial, arm):
    """The best of an arm's rates; a single one is not tried."""
    rates = trial.claim.arms[arm].rates or (0.0,)
    if arm not in trial.tries:
        tried = rates if len(rates) > 1 else ()
        trial.tries[arm] = [row_of(trial, run_of(trial, arm, TUNING, rate)) for rate in tried]
    best = max(trial.tries[arm], key=lambda row: score(trial.claim, row), default=None)
    return best["rate"] if best else rates[0]


def score(claim, row):
    return statistics.fmean(row[column] for column in claim.tuned_by)


# ---- 3. Measure ------------------------------------------------------------------------------------


def row_of(trial, run):
    """What is measured of one run, or of a base that is not trained."""
    claim = trial.claim
    began = time.perf_counter()
    row = {"arm": run.arm, "seed": run.seed, "rate": run.rate}
    row |= claim.measure(run)
    row["seconds"] = run.seconds + time.perf_counter() - began
    if claim.ks:
        found = sampled(claim, run, trial.runs)
        row["seconds"] += found.pop("seconds")
        row |= found
    if run.folder:
        names = dict.fromkeys([*claim.tuned_by, *(claim.columns or claim.panels)])
        row |= {name: number(run.folder, name) for name in names if name not in row}
        if claim.over:
            rows = history(run.folder)
            steps = [rows[step] for step in rows if step % claim.every == 0]
            row["curves"] = {column: curve(steps, column, claim.over) for column in claim.panels}
    return row


def curve(steps, column, over):
    """To be drawn, so with four digits; no check looks at it."""
    return {step[over]: float(f"{step[column]:.4g}") for step in steps if column in step}


def sampled(claim, run, runs):
    """pass@k of these weights on held-out problems and the share that is worked out: drawn once, then kept. In all
    arms they are drawn with the same random numbers."""
    parsed = train.parse_args(run.flags)
    code = code_of(f"eval.py {parsed.task}")
    key = digest(str(run.final), parsed.task, claim.problems, claim.samples, code)
    path = runs / f"sampled-{key}.json"
    if not path.exists():
        began = time.perf_counter()
        task = verifiers.get_task(parsed.task, parsed.prompt, parsed.stop, parsed.reward)
        model, tokenizer = load(str(run.final), "cpu", template=parsed.template)
        method = GRPO(max_new_tokens=parsed.settings["max_new_tokens"])
        problems = task.test[: claim.problems]
        _, records = evaluate(method, model, tokenizer, task, problems, claim.samples, 1.0)
        shares = accuracies(records, claim.samples)
        works = ["=" in record["completion"] or "得" in record["completion"] for record in records]
        found = {
            "right": [round(share * claim.samples) for share in shares],
            "works": statistics.fmean(works),
            "seconds": time.perf_counter() - began,
        }
        path.write_text(json.dumps(found))
    found = json.loads(path.read_text())
    right = found.pop("right")
    return found | {f"pass@{k}": pass_rate(right, claim.samples, k) for k in claim.ks}


def pass_rate(right, samples, k):
    """The mean of pass@k over problems, from how many samples of each are right."""
    return statistics.fmean(pass_at_k(samples, count, k) for count in right)


# ---- 4. The command --------------------------------------------------------------------------------


def counted(seeds):
    """0, 1, .. without the one on which rates are chosen."""
    return [seed for seed in range(seeds + 1) if seed != TUNING][:seeds]


def measured(trial, seeds):
    """Tune, train what is missing, measure -> what was measured, and where."""
    arms = trial.claim.arms
    rates = {arm: rate_of(trial, arm) for arm in arms}
    rows = [
        row_of(trial, run_of(trial, arm, seed, rates[arm]))
        for arm in arms
        for seed in counted(seeds)
    ]
    tries = [row for some in trial.tries.values() for row in some]
    shown = ("arm", "rate", *trial.claim.tuned_by)
    seconds = sum(row.pop("seconds") for row in [*rows, *tries])
    module = f"notebooks.claims.{Path(sys.argv[0]).stem}"
    return {
        "command": f"python -m {module} {trial.claim.name} --seeds {seeds}",
        "steps": trial.steps or trial.claim.steps,
        "seeds": counted(seeds),
        "rates": {arm: rate for arm, rate in rates.items() if rate},
        "tries": [{key: row[key] for key in shown} for row in tries],
        "rows": rows,
        "seconds": seconds,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "git": git_commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def rounded(value):
    """Floats with six digits, at any depth: pages show three, and checks look at what is kept."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return value


def cost_of(claim):
    """Its line in the list of claims: arms, and the minutes that it took when it was last measured."""
    known = (RESULTS / f"claims_{claim.name}.json").exists()
    minutes = f"{read(claim.name)['seconds'] / 60:.0f} min" if known else "?"
    return f"{claim.name:18} {len(claim.arms):2} arms {minutes:>7}  {claim.sentence}"


def main(claims, argv=None):
    parser = argparse.ArgumentParser(description="Try claims.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, help="how many are counted: 0, 1, ..")
    parser.add_argument("--steps", type=int, help="(default: the claim's)")
    parser.add_argument("--judge", action="store_true", help="judge the kept runs again")
    parser.add_argument("--runs", default="runs/claims", help="where runs are kept")
    parser.add_argument("--results", default=str(RESULTS), help="where the JSON goes")
    args = parser.parse_args(argv)
    named = {claim.name: claim for claim in claims}
    if not args.names or set(args.names) - set(named):
        parser.error("which?\n" + "\n".join(cost_of(claim) for claim in claims))
    os.chdir(ROOT)  # flags name files from there
    for name in args.names:
        runs = Path(args.runs).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        trial = Trial(named[name], args.steps, runs)
        found = read(name) if args.judge else rounded(measured(trial, args.seeds))
        result = found | rounded(result_of(named[name], found["rows"]))
        write_json(Path(args.results) / f"claims_{name}.json", result)
        report(result)
