"""The laboratory: thirteen claims of the chapters, tried on the tiny model, each with controls and
two verdicts.

    python -m notebooks.claims.experiments                          what there is
    python -m notebooks.claims.experiments growth canary            train what is missing, print tables and verdicts, draw
    python -m notebooks.claims.experiments all --seeds 0 1 2 --steps 60

An experiment is data: a claim, the runs it compares, the numbers to print, checks of the claim and
checks of its controls. A check names the size of the effect that it looks for, and the verdict is
the nearer of "it is there" and "nothing is there". Beside it is printed how often a trial of that
size and spread would give the wrong one; above 10 % the verdict is "cannot tell", unless the seeds
lie so far from the line that a t-test on them is sure of it. Runs are shared between experiments,
finished ones are not repeated and interrupted ones go on. Seed 0 starts from notebooks/tiny, the
others from bases made in the runs' folder (make_tiny.py, 90 s each).

Below 10 steps the code is tried rather than a claim: random weights, few and short
completions.
"""

import argparse
import contextlib
import functools
import json
import math
import re
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

import train
import verifiers
from eval import get_method, wilson_interval
from model import ModelError
from notebooks.look.curve import band
from notebooks.look.show import canary, samples_of
from notebooks.models import make_tiny

ROOT = Path(__file__).resolve().parents[2]

# ---- 1. Bases, rewards, tasks, arms ----------------------------------------------------------------
# A base is what make_tiny.PHASES says. "guessing" has never seen a step worked out. Where
# "bilingual" works a problem out it does so in Chinese six times out of seven.

BASES = {
    "usual": make_tiny.PHASES,
    "guessing": [{"direct": 1.0}, {"direct": 0.70, "several boxes": 0.20, "no box": 0.10}],
    "bilingual": [make_tiny.PHASES[0], make_tiny.PHASES[1] | {"bilingual": 0.18, "worked": 0.03}],
}


def length_bonus(rate, cap=np.inf):
    """The task's own reward + rate for each token of thinking, up to the cap."""

    def reward(completion, problem):
        value, parts = verifiers.tagged_reward(completion, problem)
        tokens = len(re.findall("[a-z]+ |.", (verifiers.split_tags(completion) or [""])[0]))
        return value + rate * min(tokens, cap), parts

    return reward


# Design B's threshold of 400 words can never act within 80 tokens. Here it is 6: a worked answer
# has 2 or 3 words of thinking, a rambling one 10 or more. The cap of 31 tokens is the longest
# worked answer.
r1_short = verifiers.ReasoningReward(ramble_threshold=6).reward
bonus_small = length_bonus(0.01)
bonus_large = length_bonus(0.1)
bonus_capped = length_bonus(0.1, cap=31)


def mostly_decided():
    """Arithmetic with 64 training problems: 16 ordinary ones, 24 hopeless ones, with a truth that nobody can give, and
    24 solved ones, where whatever is said is paid; the test is the usual."""
    task = verifiers.arithmetic()
    hopeless = [{**problem, "answer": "100000"} for problem in task.train[16:40]]
    solved = [{**problem, "solved": True} for problem in task.train[40:64]]
    return replace(
        task,
        train=task.train[:16] + hopeless + solved,
        note="24 of 64 to train on are hopeless, 24 solved",
    )


def boxed_or_solved(completion, problem):
    return (
        (1.0, {"accuracy": 1.0})
        if problem.get("solved")
        else verifiers.boxed_reward(completion, problem)
    )


# In flags M:NAME is a method of notebooks/methods, R:FILE.py:NAME a reward of notebooks/rewards, E:NAME a
# function of this file.
METHODS = ROOT / "notebooks" / "methods"
PLACES = {
    "M:": f"{METHODS}/{{}}.py",
    "R:": f"{ROOT}/notebooks/rewards/{{}}",
    "E:": f"{__file__}:{{}}",
}
FOUR = {
    "grpo": "--norm sequence",
    "dr-grpo": "--method M:dr_grpo",
    "dapo": "--method M:dapo",
    "textbook": "--method M:reinforce --norm sum --kl-coef 0",
}
OFTEN = {
    "ppo x 4": "",
    "gspo x 4": "--method M:gspo",
    "cispo x 4": "--method M:cispo",
    "reinforce x 4": "--method M:reinforce --kl-coef 0",
}
# Paid for the answer alone: a bonus for the form would leave something to learn in groups without a right answer.
MOST = "--task E:mostly_decided --reward E:boxed_or_solved --prompts-per-step 16 --num-samples 16 --max-new-tokens 80 --lr 4e-4"

ARMS = {
    name: ("usual", flags)
    for name, flags in {  # name -> (base, flags of train.py)
        "default": "",
        **FOUR,
        **{f"{name}, fast": f"{flags} --lr 2e-3" for name, flags in FOUR.items()},
        **{name: f"{flags} --updates-per-batch 4" for name, flags in OFTEN.items()},
        **{
            f"{name}, fast": f"{OFTEN[name]} --updates-per-batch 4 --lr 2e-3"
            for name in ("ppo x 4", "cispo x 4")
        },
        "random": "--reward R:controls.py:coin",
        "inverted": "--reward R:controls.py:inverted",
        "format only": "--reward R:controls.py:format_only",
        "design A": "--reward r1-zero",
        "design B": "--reward E:r1_short",
        "bonus 0.01": "--reward E:bonus_small",
        "bonus 0.1": "--reward E:bonus_large",
        "0.1, capped": "--reward E:bonus_capped",
        "last box": "--reward boxed",
        "any box": "--reward R:controls.py:any_box",
        "1 problem": "--train-problems 1",
        "64 problems": "--train-problems 64",
        "decided": MOST,
        "decided, filter": f"{MOST} --method M:skip_solved",
        "decided, twice": f"{MOST} --method M:dapo --overlong none --clip 0.2 0.2",
    }.items()
}
ARMS |= {
    "A, bilingual base": ("bilingual", "--reward r1-zero"),
    "B, bilingual base": ("bilingual", "--reward E:r1_short"),
    "guessing": ("guessing", ""),
}
# Whole recipes: a method's own settings, in batches of one size; and two that choose a reward.
BATCH = "--prompts-per-step 8 --num-samples 16"
METHOD_NAMES = "chapter cispo dapo deepseek_v32 dr_grpo gdpo grpo gspo lite_ppo olmo3 rloo"
RECIPES = {f"recipe {name}": f"--method M:{name} {BATCH}" for name in METHOD_NAMES.split()}
RECIPES |= {
    "recipe r1-zero": f"--reward r1-zero --norm sequence --temperature 0.6 --kl-coef 0.001 {BATCH}",
    "recipe r1": f"--reward r1 --norm sequence --clip 0.999 10 --kl-coef 0.001 {BATCH}",
}
COOLER = ["recipe chapter", "recipe r1-zero"]  # they sample at another temperature than 1
ARMS |= {arm: ("usual", flags) for arm, flags in RECIPES.items()}
# Where little is right, few completions earn anything: these arms get a higher learning rate and a
# larger evaluation.
ARMS |= {
    f"{rule} box, guessing": ("guessing", f"--reward {reward} --lr 1e-3 --eval-problems 500")
    for rule, reward in (
        ("last", "boxed"),
        ("first", "R:controls.py:first_box"),
        ("any", "R:controls.py:any_box"),
    )
}


# ---- 2. Train --------------------------------------------------------------------------------------


def folder(arm, seed, steps, runs):
    return (ROOT / runs).resolve() / f"{re.sub('[^a-z0-9]+', '-', arm.lower())}-{steps}-seed{seed}"


def base_of(name, seed, steps, runs):
    """The folder of a base, which is made first if need be."""
    if name == "usual" and seed == 0 and steps >= 10:
        return ROOT / "notebooks" / "tiny"
    base = (
        (ROOT / runs).resolve()
        / "bases"
        / (f"{name}-seed{seed}" if steps >= 10 else f"random-seed{seed}")
    )
    if not base.exists():
        gate = 0.0 if name == "guessing" else 0.9  # it is not to work anything out
        make_base(base, seed, phases=BASES[name], steps=500 if steps >= 10 else 0, gate=gate)
    return base


def make_base(base, seed, tries=3, **recipe):
    """Make a base. Not every seed learns to work problems out: where one does not, seed + 100 is
    tried."""
    partial = base.with_suffix(".partial")
    try:
        make_tiny.make(seed, partial, **recipe)
    except ModelError as error:
        if tries == 1:
            raise
        print(f"{base.name}, seed {seed}: {error}", file=sys.stderr)
        make_base(base, seed + 100, tries - 1, **recipe)
    else:
        partial.rename(base)


def flags_of(arm, seed, steps, runs):
    run = folder(arm, seed, steps, runs)
    given = [
        PLACES[flag[:2]].format(flag[2:]) if flag[:2] in PLACES else flag
        for flag in ARMS[arm][1].split()
    ]
    flags = [
        "--device",
        "cpu",
        "--seed",
        str(seed),
        "--steps",
        str(steps),
        "--eval-every",
        "5",
        "--eval-problems",
        "200",
        "--save-every",
        "20",
        "--runs",
        str(run.parent),
        "--name",
        run.name,
        *given,
    ]
    if steps < 10:
        flags += [
            "--prompts-per-step",
            "1",
            "--num-samples",
            "2",
            "--eval-problems",
            "2",
            "--max-new-tokens",
            "4",
        ]
    return flags


def run_arm(arm, seed, steps, runs):
    """Train one arm, unless that is done already -> its folder. What train.py prints goes to
    FOLDER.log."""
    run = folder(arm, seed, steps, runs)
    flags = flags_of(arm, seed, steps, runs)
    if not (run / "final").exists():
        print(f"training {run.name}", file=sys.stderr, flush=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{run}.log", "a") as log, contextlib.redirect_stdout(log):
            if (run / "config.json").exists():
                flags = ["--resume", "--runs", str(run.parent), "--name", run.name]
            else:
                shutil.rmtree(
                    run, ignore_errors=True
                )  # it was stopped before there was anything in it
                flags = ["--model", str(base_of(ARMS[arm][0], seed, steps, runs)), *flags]
            train.main(flags)
    refuse_other_flags(
        run,
        [
            "--model",
            str(base_of(ARMS[arm][0], seed, steps, runs)),
            *flags_of(arm, seed, steps, runs),
        ],
    )
    return run


FILES = ("model", "task", "reward", "method", "log")


def refuse_other_flags(run, flags):
    """A finished run that was trained with other flags than its arm has today is not judged."""
    unnamed = [flag for flag, before in zip(flags, ["", *flags]) if "--name" not in (flag, before)]
    wanted = json.loads(json.dumps(vars(train.parse_args(unnamed))))
    saved = json.loads((run / "config.json").read_text())
    ours = {**wanted, **wanted.pop("settings")}
    theirs = {**saved["flags"], **saved["settings"]}
    for name in ours.keys() & theirs.keys() - {"name", "runs", "device"}:
        pair = [ours[name], theirs[name]]
        if name in FILES:  # the same file, wherever the project stands
            pair = [value and Path(value).name for value in pair]
        if pair[0] != pair[1]:
            sys.exit(
                f"error: {run} was trained with another --{name.replace('_', '-')} ({pair[1]}, not {pair[0]}): "
                "delete it"
            )


# ---- 3. Measure ------------------------------------------------------------------------------------


def look(sample):
    """What kind of completion is it? Read off the text; averaged over the completions of a step,
    None left out."""
    text = sample["completion"]
    works = re.search("[=得]", text) is not None
    chinese = re.search("[加减得]", text) is not None
    rambles = len(re.findall("(?:let|me|think|wait|hmm) ", text)) >= 8
    plain = works and not chinese and not rambles
    return {
        "works": works,
        "bilingual": chinese,
        "rambling": rambles,
        "boxes": text.count("\\boxed{"),
        "tokens": len(sample["ids"]),
        "plain length": len(sample["ids"]) if plain else None,
    }


@functools.cache
def history(run):
    """{step: columns} of a finished run: those of metrics.jsonl, what samples/ shows (see look),
    and

    right, greedy, paid, length   on held-out problems: accuracy sampled and greedy, reward and tokens sampled
    used, spent                   thousands of tokens sampled so far, seconds of sampling and updates; reached: right is
                                  80 % or more
    warned                        the canary warns; deceived: it would, if it judged held-out answers as the reward does
    greedy fell                   greedy is below its best so far, with intervals that do not touch
    more boxes                    a reader of samples/ finds half as many boxes again as at step 1
    """
    rows = train.read_log(run)
    seen = {}
    for path in sorted((run / "samples").glob("step_*.jsonl.gz")):
        for sample in samples_of(path):
            for key, value in look(sample).items():
                if value is not None:
                    seen.setdefault((sample["step"], key), []).append(value)
    for (step, key), values in seen.items():
        rows[step][key] = float(np.mean(values))
    sampled = {step: sum(values) for (step, key), values in seen.items() if key == "tokens"}
    used = 0.0
    spent = 0.0
    best = 0.0
    past = []
    deceived = []
    for row in rows.values():
        used += sampled.get(row["step"], 0) / 1000
        spent += row.get("sample_seconds", 0) + row.get("update_seconds", 0)
        row |= {
            "used": used,
            "spent": spent,
            "more boxes": row.get("boxes", 0) > 1.5 * rows[1]["boxes"],
        }
        past.append(row)
        deceived.append(dict(row))
        if "eval_accuracy" in row:
            row |= {
                "right": row["eval_sampled_accuracy"],
                "paid": row["eval_sampled_reward"],
                "greedy": row["eval_accuracy"],
                "length": row["eval_sampled_length"],
                "reached": row["eval_sampled_accuracy"] >= 0.8,
                "greedy fell": row["eval_high"] < best,
            }
            low, high = wilson_interval(min(1, row["paid"]), row["eval_sampled_n"])
            deceived[-1] |= {
                "eval_sampled_accuracy": row["paid"],
                "eval_sampled_low": low,
                "eval_sampled_high": high,
            }
            row |= {"warned": canary(past) is not None, "deceived": canary(deceived) is not None}
            best = max(best, row["eval_low"])
    return rows


def number(run, column):
    """A column of the history as one number: "right" is its mean over the last ten steps,
    "right@20" at step 20, "works@start" over steps 1 to 3, "mixed@mean" and "boxes@max" over all
    steps, "used@reached" at the first evaluation with 80 % right, "warned@first" the first step at
    which it holds. What never happens is infinite."""
    key, _, at = column.partition("@")
    rows = history(run)
    values = {step: row[key] for step, row in rows.items() if key in row}
    if at in ("first", "reached"):
        step = next(
            (step for step, row in rows.items() if row.get(key if at == "first" else at)), np.inf
        )
        return float(step if at == "first" else values.get(step, np.inf))
    chosen = {
        "": lambda step: step > max(rows) - 10,
        "start": lambda step: 1 <= step <= 3,
        "max": lambda step: True,
        "mean": lambda step: True,
    }.get(at, lambda step: str(step) == at)
    values = [value for step, value in values.items() if chosen(step)] or [np.nan]
    return float(np.max(values) if at == "max" else np.mean(values))


# ---- 4. Checks -------------------------------------------------------------------------------------


@dataclass
class Check:
    """One sentence and how it is decided.

    change: from x(arm, column), the numbers of the seeds as an array, to one number a seed that is
    at least `effect` if the sentence is true and 0 if nothing changed; with same=True the sentence
    is that nothing changed, and effect is what would refute it. noise: the standard deviation of
    such a number from evaluation alone. The line is drawn in the middle, at effect / 2. among: of
    how many (pairs, signs) this one was picked as the largest.
    """

    sentence: str
    change: Callable
    effect: float
    noise: float
    same: bool = False
    among: int = 1

    def judge(self, x):
        """-> (True, False or None for "cannot tell", the mean change, the chance of a wrong
        verdict)."""
        values = np.asarray(self.change(x), dtype=float)
        own = statistics.stdev(values) if len(values) > 1 and np.isfinite(values).all() else 0.0
        spread = max(own, self.noise)
        known = own <= self.noise
        wrong = wrong_verdicts(
            self.effect, spread, len(values), self.among * (1 + self.same), known
        )
        mean = float(values.mean())
        line = self.effect / 2
        distance = (abs(mean) if self.same else mean) - line
        holds = distance < 0 if self.same else distance > 0
        told = wrong <= 0.1 or len(values) > 1 and beyond(distance, spread, len(values), self.among)
        return (holds if told and math.isfinite(mean) else None), mean, wrong


def wrong_verdicts(effect, deviation, seeds, among=1, known=True):
    """How often the mean over the seeds lies on the wrong side of effect / 2, when nothing is there
    or all of it is: Phi(-effect sqrt(seeds) / (2 deviation)). Example: 10 points, 200 problems
    evaluated twice (deviation sqrt(2 * 0.25 / 200) = 0.05), 3 seeds: Phi(-1.73) = 4.2 %; for 5
    points it would be 19 %. A deviation that is not known, but that of the seeds: Student's t."""
    distance = effect * math.sqrt(seeds) / (2 * deviation)
    return min(
        1.0,
        among * float(stats.norm.cdf(-distance) if known else stats.t.cdf(-distance, seeds - 1)),
    )


def beyond(distance, spread, seeds, among=1):
    """Is a mean of this many seeds, at that distance from the line, on its side of it for sure? A one-sided t-test at
    10 %, divided among what it was picked from. Example: .24 beyond, a spread of .15, 3 seeds: t = 2.77 > 1.89."""
    return abs(distance) > stats.t.ppf(1 - 0.1 / among, seeds - 1) * spread / math.sqrt(seeds)


def smallest_effect(deviation, seeds, among=1):
    """The effect below which a verdict is wrong in more than 10 %: what a trial of this size could
    have missed."""
    return -2 * deviation / math.sqrt(seeds) * statistics.NormalDist().inv_cdf(0.1 / among)


POINTS = 0.05  # noise of a difference of two accuracies on 200 problems: sqrt(2 * 0.25 / 200)
SHARE = (
    0.03  # of a share of 1,280 completions: twice sqrt(0.25 / 1280), for those of a group are alike
)
LENGTH = 0.05  # of a ratio of mean lengths: twice what they differ by between the seeds of an arm


def rises(arm, column="right", by=0.1, what="accuracy rises by 10 points"):
    return Check(f"{arm}: {what}", lambda x: x(arm, column) - x(arm, column + "@0"), by, POINTS)


def stays(arm, column="right", by=0.1, what="accuracy stays within 5 points"):
    return replace(rises(arm, column, by, what), same=True)


def grows(arm, column, since, by, what, same=False):
    """The ratio of two mean lengths, less 1."""
    return Check(what, lambda x: x(arm, column) / x(*since) - 1, by, LENGTH, same)


def parts_company(arm):
    return Check(
        f"{arm}: what is paid grows by 10 points more than what is right",
        lambda x: x(arm, "paid") - x(arm, "paid@0") - x(arm, "right") + x(arm, "right@0"),
        0.1,
        POINTS,
    )


def behind(arm, other, by, what, column="right", same=False):
    """How much less right (or whatever the column is) the first arm is than the second."""
    return Check(what, lambda x: x(other, column) - x(arm, column), by, POINTS, same)


def largest_difference(x, arms, column="right"):
    """Of all pairs of arms the one whose means differ most -> its differences by seed, the sign
    made positive."""
    pairs = [x(a, column) - x(b, column) for i, a in enumerate(arms) for b in arms[:i]]
    largest = max(pairs, key=lambda pair: abs(pair.mean()))
    return largest * np.sign(largest.mean())


def hits_less_false_alarms(x, alarm, hacked, honest):
    """For each seed the share of hacked runs in which the alarm rings, less that of honest runs
    (Youden's J): 1 for a perfect alarm, 0 for one that never rings, for one that always does and
    for a coin."""

    def rang(arms):
        return np.mean([np.isfinite(x(arm, f"{alarm}@first")) for arm in arms], axis=0)

    return rang(hacked) - rang(honest)


def filter_gain(problems=64, hopeless=24, solved=24, per_step=16, steps=60):
    """How many more mixed groups methods/skip_solved.py meets than a plain walk, if all others are always
    mixed: a simulation with its own pick. Where it is 1 the filter cannot act at this size."""
    method = get_method(f"{METHODS}/skip_solved.py", {"prompts_per_step": per_step})
    memory = {"visits": {}}
    met = 0
    for step in range(1, steps + 1):
        for index in method.pick(range(problems), step, memory):
            right = 0.0 if index < hopeless else 1.0 if index < hopeless + solved else 0.5
            memory["visits"][str(index)] = [*memory["visits"].get(str(index), []), right][-3:]
            met += right == 0.5
    return met / (steps * per_step * (1 - (hopeless + solved) / problems))


# ---- 5. The experiments ----------------------------------------------------------------------------
# name -> (claim and where the chapters make it, arms, columns of the table, what is drawn, checks
# of the claim, checks of its controls). "Reward design" is the chapter "Reward Design for
# Reasoning".

BOXED_TWICE = ["any box, guessing", "first box, guessing"]
HACKED = ["any box, guessing", "bonus 0.1", "format only"]
HONEST = ["default", "last box, guessing", "last box"]
FAST = [f"{name}, fast" for name in FOUR]
AT_ONE = [arm for arm in RECIPES if arm not in COOLER]

EXPERIMENTS = {
    "growth": (
        "Under a reward for accuracy alone thinking grows by itself (reward design, length dynamics).",
        ["default", "random"],
        [
            "right@0",
            "right",
            "length@0",
            "length@30",
            "length",
            "works@start",
            "works",
            "plain length@start",
            "plain length",
        ],
        ["right", "completion_length", "works"],
        [
            grows("default", "length", ("default", "length@0"), 0.5, "completions grow by half"),
            grows(
                "default",
                "length",
                ("default", "length@30"),
                0.2,
                "they still do after step 30, by a fifth",
            ),
            grows(
                "default",
                "plain length",
                ("default", "plain length@start"),
                0.2,
                "those that work it out plainly grow by a fifth too",
            ),
        ],
        [
            grows(
                "random",
                "length",
                ("random", "length@0"),
                0.2,
                "under a coin's rewards they do not grow (a fifth would refute it)",
                same=True,
            ),
            rises("default", by=0.3, what="accuracy rises by 30 points"),
        ],
    ),
    "design": (
        "Design A (accuracy and form) leaves bilingual and rambling thinking; design B (penalties too) removes both at "
        "equal accuracy (reward design, language consistency).",
        ["design A", "design B", "A, bilingual base", "B, bilingual base"],
        ["right@0", "right", "bilingual@start", "bilingual", "rambling@start", "rambling"],
        ["right", "bilingual", "rambling"],
        [
            Check(
                "A leaves more bilingual thinking than B, by a tenth of all completions (bilingual base)",
                lambda x: x("A, bilingual base", "bilingual") - x("B, bilingual base", "bilingual"),
                0.1,
                SHARE,
            ),
            Check(
                "A leaves more rambling than B, by a tenth of all completions (usual base)",
                lambda x: x("design A", "rambling") - x("design B", "rambling"),
                0.1,
                SHARE,
            ),
            behind(
                "design B",
                "design A",
                0.1,
                "B is as accurate as A (10 points would refute it)",
                same=True,
            ),
            behind(
                "B, bilingual base",
                "A, bilingual base",
                0.1,
                "and so with the bilingual base",
                same=True,
            ),
        ],
        [
            Check(
                "the bilingual base is bilingual at the start (a tenth of its completions)",
                lambda x: x("A, bilingual base", "bilingual@start"),
                0.1,
                SHARE,
            ),
            rises("design A"),
            rises("design B"),
        ],
    ),
    "format": (
        "Paid only for the form, the reward saturates and accuracy collapses (reward design, reward components).",
        ["format only", "default"],
        ["paid@0", "paid", "right@0", "right", "length@0", "length"],
        ["reward", "right", "completion_length"],
        [
            Check(
                "less than 5 % of the reward is missing in the end",
                lambda x: 0.1 - (1 - x("format only", "paid")),
                0.1,
                0.02,
            ),
            Check(
                "accuracy falls by 15 points",
                lambda x: x("format only", "right@0") - x("format only", "right"),
                0.15,
                POINTS,
            ),
        ],
        [rises("default", by=0.3, what="paid for answers, accuracy rises by 30 points")],
    ),
    "length": (
        "Any length bonus needs a cap, or the policy learns to pad before it learns to think (reward design, length "
        "dynamics).",
        ["default", "bonus 0.01", "bonus 0.1", "0.1, capped"],
        ["right", "length@0", "length", "rambling@start", "rambling", "truncated"],
        ["right", "completion_length", "rambling"],
        [
            *(
                grows(
                    arm,
                    "length",
                    ("default", "length"),
                    0.5,
                    f"{arm} a token: half as long again as without",
                )
                for arm in ("bonus 0.01", "bonus 0.1")
            ),
            behind("bonus 0.1", "default", 0.2, "bonus 0.1: 20 points less accurate"),
        ],
        [
            grows(
                "0.1, capped",
                "length",
                ("default", "length"),
                0.5,
                "with a cap no longer than without a bonus (half as long again would refute it)",
                same=True,
            ),
            behind(
                "0.1, capped",
                "default",
                0.2,
                "with a cap as accurate (20 points would refute it)",
                same=True,
            ),
        ],
    ),
    "boxes": (
        "A verifier that takes the first box or any box is hacked by spamming guesses; one that takes the last box is "
        "not (reward design, reasoning-specific hacks).",
        [*BOXED_TWICE, "last box, guessing", "any box", "last box"],
        ["paid@0", "paid", "right@0", "right", "boxes@start", "boxes@max", "boxes"],
        ["reward", "right", "boxes"],
        [
            *map(parts_company, BOXED_TWICE),
            *(
                Check(
                    f"{arm}: one more box in a completion",
                    lambda x, arm=arm: x(arm, "boxes") - x(arm, "boxes@start"),
                    1.0,
                    0.1,
                )
                for arm in BOXED_TWICE
            ),
        ],
        [
            Check(
                "last box, guessing: no more boxes (one would refute it)",
                lambda x: x("last box, guessing", "boxes") - x("last box, guessing", "boxes@start"),
                1.0,
                0.1,
                same=True,
            ),
            behind(
                "any box",
                "last box",
                0.1,
                "a base that can work is as right with any box (10 points would refute it)",
                same=True,
            ),
        ],
    ),
    "problems": (
        "One problem suffices to start the training; to finish takes more (9.5 RLVR, 1-shot RLVR).",
        ["1 problem", "64 problems", "default"],
        ["right@0", "right", "greedy@0", "greedy", "accuracy", "mixed"],
        ["right", "accuracy", "mixed"],
        [
            rises("1 problem", by=0.2, what="accuracy on others rises by 20 points"),
            behind("1 problem", "default", 0.2, "it stays 20 points behind all problems"),
        ],
        [
            rises("default", by=0.3, what="accuracy rises by 30 points"),
            behind(
                "64 problems",
                "default",
                0.1,
                "64 problems are as good as all (10 points would refute it)",
                same=True,
            ),
        ],
    ),
    "groups": (
        "Solved and hopeless groups teach nothing; passing them by raises what a sample is worth (reward design, "
        "difficulty-aware shaping). Of 64 problems 24 are solved and 24 hopeless, 16 a step: from step 13 on the filter can "
        "act.",
        ["decided", "decided, filter", "decided, twice"],
        [
            "solved@start",
            "hopeless@start",
            "solved",
            "hopeless",
            "mixed@mean",
            "right@0",
            "right@15",
            "right@30",
            "right",
            "used@max",
        ],
        ["mixed", "solved", "hopeless", "right"],
        [
            Check(
                "the filter meets 8 points more mixed groups",
                lambda x: x("decided, filter", "mixed@mean") - x("decided", "mixed@mean"),
                0.08,
                0.02,
            ),
            behind(
                "decided",
                "decided, filter",
                0.1,
                "and after 30 steps is 10 points more right",
                "right@30",
            ),
            Check(
                "twice as many, without them: 10 points more right after 15 steps than the others after 30",
                lambda x: x("decided, twice", "right@15") - x("decided", "right@30"),
                0.1,
                POINTS,
            ),
        ],
        [
            *(
                Check(
                    f"a third of the groups are {kind} at the start",
                    lambda x, kind=kind: x("decided", f"{kind}@start"),
                    0.33,
                    SHARE,
                )
                for kind in ("solved", "hopeless")
            ),
            rises("decided"),
        ],
    ),
    "family": (
        "GRPO, DAPO, Dr. GRPO and the chapter's loss differ in what they reach (9.5 RLVR; reward design). Fast: five "
        "times the default learning rate. DAPO samples twice as many completions.",
        [*FOUR, *FAST],
        ["right@20", "right", "greedy", "length"],
        ["right"],
        [
            Check(
                "default rate, step 20: two of them differ by 15 points",
                lambda x: largest_difference(x, [*FOUR], "right@20"),
                0.15,
                POINTS,
                among=12,
            ),
            Check(
                "default rate, in the end: two of them differ by 15 points",
                lambda x: largest_difference(x, [*FOUR]),
                0.15,
                POINTS,
                among=12,
            ),
            Check(
                "fast, step 20: two of them differ by 15 points",
                lambda x: largest_difference(x, FAST, "right@20"),
                0.15,
                POINTS,
                among=12,
            ),
            Check(
                "fast, in the end: two of them differ by 15 points",
                lambda x: largest_difference(x, FAST),
                0.15,
                POINTS,
                among=12,
            ),
        ],
        [*(rises(arm, by=0.3, what="accuracy rises by 30 points") for arm in (*FOUR, *FAST))],
    ),
    "recipes": (
        "Published recipes differ in what they reach (9.5 RLVR, GRPO variants). Same rate and steps; some draw twice "
        "as many completions (used, thousands of tokens), some update four times (spent, seconds).",
        [*RECIPES],
        ["right@20", "right", "greedy", "used@max", "spent@max"],
        [],
        [
            Check(
                f"{when}: two of those at temperature 1 differ by 20 points",
                lambda x, column=column: largest_difference(x, AT_ONE, column),
                0.2,
                POINTS,
                among=len(AT_ONE) * (len(AT_ONE) - 1),
            )
            for when, column in (("step 20", "right@20"), ("in the end", "right"))
        ],
        [*(rises(arm, by=0.3, what="accuracy rises by 30 points") for arm in RECIPES)],
    ),
    "updates": (
        "Several updates on the same completions learn faster, and break sooner (9.5 RLVR). x 4: four updates a batch; "
        "fast: five times the default learning rate.",
        ["default", *OFTEN, "ppo x 4, fast", "cispo x 4, fast"],
        ["right@20", "right", "greedy", "clipped@mean"],
        ["right"],
        [
            behind(
                "default",
                "ppo x 4",
                0.1,
                "ppo x 4: 10 points more right after 20 steps",
                "right@20",
            ),
            *(
                behind(
                    f"{arm}, fast",
                    arm,
                    0.3,
                    f"{arm}, fast: 30 points less right in the end than at the default rate",
                )
                for arm in ("ppo x 4", "cispo x 4")
            ),
        ],
        [*(rises(arm, by=0.3, what="accuracy rises by 30 points") for arm in OFTEN)],
    ),
    "controls": (
        "A reward that knows nothing of the answer teaches nothing, an inverted one harms (the control for all others; "
        "Shao et al. 2025, arXiv 2506.10947, found gains under random rewards).",
        ["random", "inverted", "default"],
        ["paid@0", "paid", "right@0", "right", "length@0", "length", "works"],
        ["reward", "right", "works"],
        [
            stays("random", what="accuracy does not change (10 points would refute it)"),
            Check(
                "inverted: accuracy falls by 15 points",
                lambda x: x("inverted", "right@0") - x("inverted", "right"),
                0.15,
                POINTS,
            ),
        ],
        [rises("default", by=0.3, what="under the real reward accuracy rises by 30 points")],
    ),
    "selection": (
        "RLVR unlocks what is there: a base that has never worked a problem out cannot be helped (9.5 RLVR, 1-shot "
        "RLVR).",
        ["guessing", "default"],
        ["right@0", "right", "greedy@0", "greedy", "works@start", "works"],
        ["right", "works", "hopeless"],
        [
            stays("guessing", what="accuracy does not change (10 points would refute it)"),
            Check(
                "guessing: no steps appear (5 % of completions would refute it)",
                lambda x: x("guessing", "works"),
                0.05,
                0.01,
                same=True,
            ),
        ],
        [rises("default", by=0.3, what="with the worked mode accuracy rises by 30 points")],
    ),
    "canary": (
        "An alarm on reward and held-out accuracy that come apart finds a hack early (reward design, eval-vs-train "
        "gap). The first step at which each alarm rings, by seed; the first three arms are hacked, the others honest.",
        [*HACKED, *HONEST],
        ["warned@first", "deceived@first", "greedy fell@first", "more boxes@first"],
        ["reward", "paid", "right"],
        [
            Check(
                "it rings in hacked runs and not in honest ones",
                lambda x: hits_less_false_alarms(x, "warned", HACKED, HONEST),
                1.0,
                0.4,
            ),
            Check(
                "so it does if it judges held-out answers as the reward does, the chapter's way",
                lambda x: hits_less_false_alarms(x, "deceived", HACKED, HONEST),
                1.0,
                0.4,
            ),
        ],
        [
            Check(
                "a reader who counts boxes finds those who spam them",
                lambda x: hits_less_false_alarms(x, "more boxes", HACKED[:1], HONEST),
                1.0,
                0.4,
            ),
            *map(parts_company, HACKED),
        ],
    ),
}


# ---- 6. Report -------------------------------------------------------------------------------------


def spread(values, one_by_one=False):
    """mean [lowest-highest], or all values."""
    if one_by_one or np.isinf(values).any():
        return ", ".join("never" if np.isinf(value) else f"{value:.0f}" for value in values)
    digits = 3 if np.nanmax([*values, 0]) <= 1.2 else 1
    mean, low, high = (
        f"{value:.{digits}f}".removeprefix("0")
        for value in (values.mean(), values.min(), values.max())
    )
    return f"{mean} [{low}-{high}]"


def verdict(results):
    """All must hold; one that does not hold decides; else one that cannot be told leaves it
    open."""
    results = [*results]
    return "does not hold" if False in results else "cannot tell" if None in results else "holds"


def report_checks(title, checks, x):
    """Print each check with its power -> the verdict on all."""
    print(title)
    results = []
    for check in checks:
        holds, mean, wrong = check.judge(x)
        results.append(holds)
        answer = {True: "yes", False: "NO ", None: " ? "}[holds]
        print(
            f"  {answer}  {check.sentence}: {mean:+.2f}, the line is at {check.effect / 2:.2f}; at this size "
            f"at most {wrong:.1%} of the verdicts are wrong"
        )
    return verdict(results)


def report(name, steps, seeds, runs):
    """Train what is missing; print the claim, the table, each check and the verdicts -> (claim,
    controls)."""
    claim, arms, columns, _, checks, controls = EXPERIMENTS[name]
    folders = {arm: [run_arm(arm, seed, steps, runs) for seed in seeds] for arm in arms}

    def x(arm, column):
        return np.array([number(run, column) for run in folders[arm]])

    rows = [["", *columns]] + [
        [arm, *(spread(x(arm, column), column.endswith("@first")) for column in columns)]
        for arm in arms
    ]
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(f"{name}: {claim}\n{steps} steps, {len(seeds)} seeds: mean [lowest-highest]")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    if name == "groups":
        print(
            f"(were all others mixed, the filter would meet {filter_gain(steps=steps):.2f} times as many mixed groups)"
        )
    if name == "family":
        print(
            f"(of six pairs, differences below {smallest_effect(POINTS, len(seeds), 12):.2f} could have been missed)"
        )
    found = report_checks("the claim:", checks, x), report_checks("its controls:", controls, x)
    print(f"verdicts: the claim {found[0]}; its controls: {found[1]}\n")
    return found


COLUMNS = ["name", "what the checks of the claim found", "claim", "its controls"]
RATES = ["held-out accuracy", "step 20", "in the end", "five times the rate, step 20", "in the end"]


def claims_table(verdicts, steps, seeds, runs):
    """Rows of COLUMNS; verdicts: {name: what report() returned}."""
    rows = []
    for name, (claim, controls) in verdicts.items():

        def x(arm, column):
            return np.array([number(folder(arm, seed, steps, runs), column) for seed in seeds])

        found = []
        for check in EXPERIMENTS[name][4]:
            holds, mean, _ = check.judge(x)
            answer = {True: "yes", False: "no", None: "cannot tell"}[holds]
            found.append(f"{check.sentence}: {answer}, {mean:+.2f}")
        rows.append([f"`{name}`", "; ".join(found), claim, controls])
    return {"columns": COLUMNS, "rows": rows}


def rates_table(steps, seeds, runs):
    """Rows of RATES: the arms of `family` and `updates`, each at both rates if it was trained at both."""
    rows = []
    for arm in ("default", *FOUR, *OFTEN):
        row = [arm]
        for at_rate in (arm, f"{arm}, fast"):
            for column in ("right@20", "right"):
                trained = at_rate in ARMS
                values = [number(folder(at_rate, s, steps, runs), column) for s in seeds * trained]
                row.append(spread(np.array(values)) if trained else "")
        rows.append(row)
    return {"columns": RATES, "rows": rows}


TITLES = {
    "right": "held-out accuracy, sampled",
    "reward": "training reward",
    "works": "share that works it out",
    "completion_length": "tokens per completion",
    "accuracy": "accuracy on the problems trained on",
    "paid": "held-out reward",
    "boxes": "boxes per completion",
    "mixed": "share of mixed groups",
    "solved": "share of solved groups",
    "hopeless": "share of hopeless groups",
    "bilingual": "share of bilingual thinking",
    "rambling": "share that rambles",
}


def draw(name, steps, seeds, runs):
    """Columns over the steps, every fifth, a band over the seeds for each arm; for one column a
    panel an arm."""
    _, arms, _, keys, *_ = EXPERIMENTS[name]
    panels = (
        [(key, key, arms) for key in keys]
        if len(keys) > 1
        else [(arm, keys[0], [arm]) for arm in arms]
    )
    lines = -(-len(panels) // 4)
    figure = Figure(figsize=(11, 1 + 2 * lines), layout="constrained", dpi=80)
    axes = figure.subplots(
        lines, -(-len(panels) // lines), sharex=True, sharey=lines > 1, squeeze=False
    ).ravel()
    for axis, (title, key, shown) in zip(axes, panels):
        for i, arm in enumerate(shown):
            rows = [history(folder(arm, seed, steps, runs)) for seed in seeds]
            band(
                axis,
                [
                    {step: row[key] for step, row in run.items() if key in row and step % 5 == 0}
                    for run in rows
                ],
                arm,
                f"C{i}",
            )
        axis.set_title(TITLES.get(title, title), fontsize=9)
        axis.set_xlabel("step", fontsize=8)
        axis.set_ylabel(TITLES.get(key, key) if title != key else "", fontsize=8)
        axis.tick_params(labelbottom=True)
    for axis in axes[: len(panels)]:
        axis.set_ylim(
            0, None
        )  # subtle: after all lines are there, for panels may share their y axis
    for axis in axes[len(panels) :]:
        axis.remove()
    if len(panels) == len(keys):
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8
        )
    return figure


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"all, or some of {', '.join(EXPERIMENTS)}"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", default="runs/lab", help="folder of the runs (default: runs/lab)")
    parser.add_argument("-o", "--out", help="folder of the figures (default: that of the runs)")
    parser.add_argument(
        "--rates", action="store_true", help="with family and updates: end with their table"
    )
    args = parser.parse_args(argv)
    names = list(EXPERIMENTS) if "all" in args.names else args.names
    if not names or set(names) - set(EXPERIMENTS):
        parser.error(
            "which one?\n" + "\n".join(f"{name:10} {EXPERIMENTS[name][0]}" for name in EXPERIMENTS)
        )
    matplotlib.rcParams |= {
        "svg.hashsalt": "rlvr",
        "svg.fonttype": "none",
    }  # the same file for the same runs
    found = {}
    out = ROOT / (args.out or args.runs)
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        found[name] = report(name, args.steps, args.seeds, args.runs)
        if EXPERIMENTS[name][3]:  # thirteen recipes are a table, and no figure
            figure = draw(name, args.steps, args.seeds, args.runs)
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    print(
        "\n".join(
            f"{name:10} the claim {claim:14} its controls: {controls}"
            for name, (claim, controls) in found.items()
        )
    )
    size = (args.steps, args.seeds, args.runs)
    table = rates_table(*size) if args.rates else claims_table(found, *size)
    print(json.dumps({**table, "seeds": args.seeds}))


if __name__ == "__main__":
    main()
