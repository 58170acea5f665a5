"""The laboratory: eleven claims of the chapters, tried on the tiny model, each with a control and a verdict.

    python notebooks/experiments.py                          what there is
    python notebooks/experiments.py growth canary            train what is missing, print tables and verdicts, draw
    python notebooks/experiments.py all --seeds 0 1 2 --steps 60

An experiment is data: a claim, the runs it compares, the numbers to print, and checks which those numbers pass or not.
A verdict is no opinion: "reproduced" if all checks hold, "not reproduced" if none does, else "partly". Runs are shared
between experiments, finished ones are not repeated and interrupted ones go on. Below 10 steps the code is tried rather
than the claim: random weights, few and short completions.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import re
import sys
from pathlib import Path
from unittest.mock import patch

import matplotlib
import numpy as np
from curve import band
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import train  # noqa: E402
import verifiers  # noqa: E402
from eval import wilson_interval  # noqa: E402

# ---- 1. Bases, rewards, arms -----------------------------------------------------------------------------------------
# A base is what train.PHASES says. "guessing" has never seen a step worked out, and is made without the check that
# stops a base which cannot work. Where "bilingual" works a problem out it does so in Chinese six times out of seven.

BASES = {"usual": train.PHASES,
         "guessing": [{"direct": 1.0}, {"direct": .70, "several boxes": .20, "no box": .10}],
         "bilingual": [train.PHASES[0], train.PHASES[1] | {"bilingual": .18, "worked": .03}]}


def length_bonus(rate, cap=np.inf):
    """The task's own reward + rate for each token of thinking, up to the cap."""
    def reward(completion, problem):
        value, parts = verifiers.tagged_reward(completion, problem)
        tokens = len(re.findall("[a-z]+ |.", (verifiers.split_tags(completion) or [""])[0]))
        return value + rate * min(tokens, cap), parts
    return reward


# Design B's threshold of 400 words can never act within 80 tokens. Here it is 6: a worked answer has 2 or 3 words of
# thinking, a rambling one 10 or more. The cap of 31 tokens is the longest worked answer.
REWARDS = {"r1-short": verifiers.ReasoningReward(ramble_threshold=6).reward, "bonus-0.01": length_bonus(0.01),
           "bonus-0.1": length_bonus(0.1), "bonus-capped": length_bonus(0.1, cap=31)}

GRPO = {"default": "", "grpo": "--loss-norm sequence", "dr-grpo": "--loss-norm constant --advantage-scale none",
        "dapo": "--clip 0.2 0.28 --dynamic-sampling 2 --truncated soft", "textbook": "--loss reinforce --loss-norm sum",
        "rloo": "--loss-norm sequence --advantage-scale loo", "ppo x 4": "--updates-per-batch 4",
        "gspo x 4": "--updates-per-batch 4 --loss gspo --loss-norm sequence --clip 3e-4 4e-4",
        "cispo x 4": "--updates-per-batch 4 --loss cispo", "reinforce x 4": "--updates-per-batch 4 --loss reinforce"}
FOUR = ["grpo", "dr-grpo", "dapo", "textbook"]
FAST = ["default", *FOUR, "ppo x 4", "cispo x 4"]

ARMS = {name: ("usual", flags) for name, flags in {                      # name -> (base, flags of train.py)
    **GRPO, **{f"{name}, fast": f"{GRPO[name]} --lr 2e-3" for name in FAST},
    "random": "--reward random", "inverted": "--reward inverted", "format only": "--reward format-only",
    "design A": "--reward r1-zero", "design B": "--reward r1-short",
    "bonus 0.01": "--reward bonus-0.01", "bonus 0.1": "--reward bonus-0.1", "0.1, capped": "--reward bonus-capped",
    "last box": "--reward boxed", "any box": "--reward any-box",
    "1 problem": "--one-shot", "64 problems": "--train-problems 64",
    "64, filter": "--train-problems 64 --pick filter", "64, dynamic": "--train-problems 64 --dynamic-sampling 2",
}.items()}
ARMS |= {"A, bilingual base": ("bilingual", "--reward r1-zero"),
         "B, bilingual base": ("bilingual", "--reward r1-short"),
         "guessing": ("guessing", "")}
# Where little is right, few completions earn anything: these arms get a higher learning rate and a larger evaluation.
ARMS |= {f"{rule} box, guessing": ("guessing", f"--reward {reward} --lr 1e-3 --eval-problems 500")
         for rule, reward in (("last", "boxed"), ("first", "first-box"), ("any", "any-box"))}


# ---- 2. Train --------------------------------------------------------------------------------------------------------

def folder(arm, seed, steps, runs):
    return (ROOT / runs).resolve() / f"{re.sub('[^a-z0-9]+', '-', arm.lower())}-{steps}-seed{seed}"


def flags_of(arm, seed, steps, runs):
    run = folder(arm, seed, steps, runs)
    flags = ["--model", "tiny", "--seed", str(seed), "--steps", str(steps), "--eval-every", "10", "--eval-problems",
             "200", "--save-every", "1000", "--runs", str(run.parent), "--name", run.name, *ARMS[arm][1].split(),
             # with which all results were made: micro-batches of another size sum in another order
             "--micro-batch-tokens", "16384"]
    if steps < 10:
        flags += ["--warmup-steps", "0", "--prompts-per-step", "1", "--num-samples", "2", "--eval-problems", "2",
                  "--max-new-tokens", "4"]
    return flags


arithmetic = functools.cache(verifiers.arithmetic)                                     # 10,000 problems, drawn once


@contextlib.contextmanager
def setting(base):
    """What an arm needs beside flags, for a while. train.py refuses a base that is less than 90 % right when it works
    problems out; NaN is not less."""
    gate = (lambda *_: float("nan")) if base == "guessing" else train.worked_accuracy
    with (patch.object(train, "PHASES", BASES[base]), patch.dict(verifiers.REWARDS, REWARDS),
          patch.dict(verifiers.TASKS, arithmetic=lambda: dataclasses.replace(arithmetic())),
          patch.object(train, "worked_accuracy", gate)):
        yield


def run_arm(arm, seed, steps, runs):
    """Train one arm, unless that is done already -> its folder. What train.py prints goes to FOLDER.log."""
    run, flags = folder(arm, seed, steps, runs), flags_of(arm, seed, steps, runs)
    if not (run / "final").exists():
        print(f"training {run.name}", file=sys.stderr, flush=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        if run.exists():
            flags = ["--resume", *flags[flags.index("--runs"):flags.index("--name") + 2]]
        with setting(ARMS[arm][0]), open(f"{run}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main(flags)
    return run


# ---- 3. Measure ------------------------------------------------------------------------------------------------------

def look(sample):
    """What kind of completion is it? Read off the text; averaged over the completions of a step, None left out."""
    text = sample["completion"]
    works, chinese = re.search("[=得]", text) is not None, re.search("[加减得]", text) is not None
    rambles = len(re.findall("(?:let|me|think|wait|hmm) ", text)) >= 8
    plain = works and not chinese and not rambles
    return {"works": works, "bilingual": chinese, "rambling": rambles, "boxes": text.count("\\boxed{"),
            "plain length": sample["length"] if plain else None}


@functools.cache
def history(run):
    """{step: columns} of a finished run: those of metrics.jsonl, what samples.jsonl shows (see look), and

    right, greedy, paid, length   on held-out problems: accuracy sampled and greedy, reward and tokens sampled
    used                          thousands of tokens sampled in training so far; reached: right is 80 % or more
    warned                        the canary warns; deceived: it would, if it judged held-out answers as the reward does
    greedy fell                   greedy is below its best so far, with intervals that do not touch
    more boxes                    a reader of samples.jsonl finds half as many boxes again as at step 1
    """
    rows, seen = {row["step"]: row for row in train.read_metrics(run)}, {}
    with open(run / "samples.jsonl", encoding="utf-8") as lines:
        for sample in map(json.loads, lines):
            for key, value in look(sample).items():
                if value is not None:
                    seen.setdefault((sample["step"], key), []).append(value)
    for (step, key), values in seen.items():
        rows[step][key] = float(np.mean(values))
    used, best, past, deceived = 0.0, 0.0, [], []
    for row in rows.values():
        used += row.get("tokens_per_second", 0) * row.get("sample_seconds", 0) / 1000
        row |= {"used": used, "more boxes": row.get("boxes", 0) > 1.5 * rows[1]["boxes"]}
        past.append(row)
        deceived.append(dict(row))
        if "eval_accuracy" in row:
            row |= {"right": row["eval_sampled_accuracy"], "paid": row["eval_sampled_reward"],
                    "greedy": row["eval_accuracy"], "length": row["eval_sampled_length"],
                    "reached": row["eval_sampled_accuracy"] >= 0.8, "greedy fell": row["eval_high"] < best}
            low, high = wilson_interval(min(1, row["paid"]), row["eval_sampled_n"])
            deceived[-1] |= {"eval_sampled_accuracy": row["paid"], "eval_sampled_low": low, "eval_sampled_high": high}
            row |= {"warned": train.canary(past) is not None, "deceived": train.canary(deceived) is not None}
            best = max(best, row["eval_low"])
    return rows


def number(run, column):
    """A column of the history as one number: "right" is its mean over the last ten steps, "right@20" at step 20,
    "works@start" over steps 1 to 3, "mixed@mean" and "boxes@max" over all steps, "used@reached" at the first evaluation
    with 80 % right, "warned@first" the first step at which it holds. What never happens is infinite."""
    key, _, at = column.partition("@")
    rows = history(run)
    values = {step: row[key] for step, row in rows.items() if key in row}
    if at in ("first", "reached"):
        step = next((step for step, row in rows.items() if row.get(key if at == "first" else at)), np.inf)
        return float(step if at == "first" else values.get(step, np.inf))
    chosen = {"": lambda step: step > max(rows) - 10, "start": lambda step: 1 <= step <= 3,
              "max": lambda step: True, "mean": lambda step: True}.get(at, lambda step: str(step) == at)
    values = [value for step, value in values.items() if chosen(step)] or [np.nan]
    return float(np.max(values) if at == "max" else np.mean(values))


# ---- 4. The experiments ----------------------------------------------------------------------------------------------
# name -> (claim and where the chapters make it, arms, columns of the table, what is drawn over the steps, checks).
# A check is a sentence and a function of x(arm, column): the numbers of the seeds, as an array. It must hold for each.

EXPERIMENTS = {
    "growth": (
        "Under a reward for accuracy alone thinking grows by itself (seed chapter 15, length dynamics).",
        ["default", "random"], ["right@0", "right", "length@0", "length@30", "length", "works@start", "works",
                                "plain length@start", "plain length"], ["right", "completion_length", "works"], {
            "completions grow by half or more": lambda x: x("default", "length") > 1.5 * x("default", "length@0"),
            "under random rewards by a tenth at most": lambda x: x("random", "length") < 1.1 * x("random", "length@0"),
            "they still grow after step 30, by 5 % or more": lambda x:
                x("default", "length") > 1.05 * x("default", "length@30"),
            "those that work it out plainly grow too, by 5 % or more (means)": lambda x:
                x("default", "plain length").mean() > 1.05 * x("default", "plain length@start").mean()}),
    "design": (
        "Design A (accuracy and form) leaves bilingual and rambling thinking; design B (penalties too) removes both at "
        "equal accuracy (seed chapter 15, language consistency; walkthrough).",
        ["design A", "design B", "A, bilingual base", "B, bilingual base"],
        ["right@0", "right", "bilingual@start", "bilingual", "rambling@start", "rambling"],
        ["right", "bilingual", "rambling"], {
            "A: half or more of the bilingual thinking stays": lambda x:
                x("design A", "bilingual") > 0.5 * x("design A", "bilingual@start"),
            "A: half or more of the rambling stays": lambda x:
                x("design A", "rambling") > 0.5 * x("design A", "rambling@start"),
            "A, bilingual base: bilingual thinking grows": lambda x:
                x("A, bilingual base", "bilingual") > x("A, bilingual base", "bilingual@start"),
            "B leaves less than 1 % of either, with both bases": lambda x:
                [x(arm, kind) < 0.01 for arm in ("design B", "B, bilingual base")
                 for kind in ("bilingual", "rambling")],
            "B is as accurate as A (means within 3 points)": lambda x:
                [abs(x(a, "right").mean() - x(b, "right").mean()) < 0.03
                 for a, b in (("design A", "design B"), ("A, bilingual base", "B, bilingual base"))]}),
    "format": (
        "Paid only for the form, the reward saturates and accuracy collapses (seed chapter 15, reward components).",
        ["format only", "default"], ["paid@0", "paid", "right@0", "right", "length@0", "length"],
        ["reward", "right", "completion_length"], {
            "the reward saturates (above 0.97)": lambda x: x("format only", "paid") > 0.97,
            "accuracy falls to half or less": lambda x: x("format only", "right") <= 0.5 * x("format only", "right@0"),
            "the control's rises": lambda x: x("default", "right") > x("default", "right@0")}),
    "length": (
        "Any length bonus needs a cap, or the policy learns to pad before it learns to think (seed chapter 15, length "
        "dynamics).",
        ["default", "bonus 0.01", "bonus 0.1", "0.1, capped"], ["right", "length@0", "length", "rambling@start",
                                                               "rambling", "truncated"],
        ["right", "completion_length", "rambling"], {
            "0.01 a token: half as long again as without a bonus": lambda x:
                x("bonus 0.01", "length") > 1.5 * x("default", "length"),
            "0.1 a token: half as long again": lambda x: x("bonus 0.1", "length") > 1.5 * x("default", "length"),
            "and 5 points or more less accurate": lambda x: x("bonus 0.1", "right") < x("default", "right") - 0.05,
            "0.1, capped: within a fifth of the default's length": lambda x:
                x("0.1, capped", "length") < 1.2 * x("default", "length"),
            "and within 3 points of its accuracy (means)": lambda x:
                abs(x("0.1, capped", "right").mean() - x("default", "right").mean()) < 0.03}),
    "boxes": (
        "A verifier that takes the first box or any box is hacked by spamming guesses; one that takes the last box is "
        "not (seed chapter 15, reasoning-specific hacks).",
        ["any box, guessing", "first box, guessing", "last box, guessing", "any box", "last box"],
        ["paid@0", "paid", "right@0", "right", "boxes@start", "boxes@max", "boxes"], ["reward", "right", "boxes"], {
            **{f"{arm}: half as much again is paid, and less is right": lambda x, arm=arm: [
                x(arm, "paid") > 1.5 * x(arm, "paid@0"), x(arm, "right") < x(arm, "right@0")]
               for arm in ("any box, guessing", "first box, guessing")},
            "last box, guessing: boxes do not multiply": lambda x:
                x("last box, guessing", "boxes") < 1.5 * x("last box, guessing", "boxes@start"),
            "any box, a base that can work: 5 points less right than with the last box (means)": lambda x:
                x("any box", "right").mean() < x("last box", "right").mean() - 0.05}),
    "problems": (
        "One problem suffices to start the training; to finish takes more (seed chapter 9.5, 1-shot RLVR).",
        ["1 problem", "64 problems", "default"], ["right@0", "right", "greedy@0", "greedy", "accuracy", "mixed"],
        ["right", "accuracy", "mixed"], {
            "one problem gives half of the gain or more (means)": lambda x:
                (x("1 problem", "right") - x("1 problem", "right@0")).mean()
                > 0.5 * (x("default", "right") - x("default", "right@0")).mean(),
            "it stays 10 points or more behind all problems": lambda x:
                x("1 problem", "right") < x("default", "right") - 0.1,
            "64 problems are as good as all (means within 3 points)": lambda x:
                abs(x("64 problems", "right").mean() - x("default", "right").mean()) < 0.03}),
    "groups": (
        "Solved and hopeless groups teach nothing; passing them by doubles what a sample is worth (seed chapter 15, "
        "difficulty-aware shaping).",
        ["default", "64 problems", "64, filter", "64, dynamic"],
        ["solved@start", "hopeless@start", "solved", "hopeless", "mixed@mean", "right", "used@max", "used@reached"],
        ["solved", "mixed", "right"], {
            "in the end half of the groups or more teach nothing (mean)": lambda x:
                (x("default", "solved") + x("default", "hopeless")).mean() > 0.5,
            "the filter meets 5 points more mixed groups (means)": lambda x:
                x("64, filter", "mixed@mean").mean() > x("64 problems", "mixed@mean").mean() + 0.05,
            **{f"{arm}: two thirds of the tokens or less until 80 % (means)": lambda x, arm=arm:
                x(arm, "used@reached").mean() < 0.67 * x("64 problems", "used@reached").mean()
               for arm in ("64, filter", "64, dynamic")}}),
    "family": (
        "GRPO, DAPO, Dr. GRPO and the chapter's loss differ in stability (seed chapters 9.5 and 15). Fast: five times "
        "the default learning rate; x 4: four updates per batch.",
        [*GRPO, *(f"{name}, fast" for name in FAST)], ["right@20", "right", "greedy", "length"], ["right"], {
            "default rate: one of the four ends below 80 %": lambda x: min(x(a, "right").min() for a in FOUR) < 0.8,
            "default rate: the ranges of two of them do not touch": lambda x:
                max(x(a, "right").min() for a in FOUR) > min(x(a, "right").max() for a in FOUR),
            "fast: one of the four ends below 80 %": lambda x: min(x(f"{a}, fast", "right").min() for a in FOUR) < 0.8,
            "fast: four updates per batch end below 50 % (means)": lambda x: max(
                x(f"{a} x 4, fast", "right").mean() for a in ("ppo", "cispo")) < 0.5}),
    "controls": (
        "A reward that knows nothing of the answer teaches nothing, an inverted one harms (the control for all others; "
        "Shao et al. 2025, arXiv 2506.10947, found gains under random rewards).",
        ["random", "inverted", "default"], ["paid@0", "paid", "right@0", "right", "length@0", "length", "works"],
        ["reward", "right", "works"], {
            "random: within 5 points of the start": lambda x: abs(x("random", "right") - x("random", "right@0")) < 0.05,
            "inverted: half of the accuracy or less": lambda x: x("inverted", "right") < 0.5 * x("inverted", "right@0"),
            "the real reward: 50 points more": lambda x: x("default", "right") > x("default", "right@0") + 0.5}),
    "selection": (
        "RLVR unlocks what is there: a base that has never worked a problem out cannot be helped (seed chapter 9.5, "
        "1-shot RLVR).",
        ["guessing", "default"], ["right@0", "right", "greedy@0", "greedy", "works@start", "works"],
        ["right", "works", "hopeless"], {
            "without the worked mode accuracy stays below 25 %": lambda x: x("guessing", "right") < 0.25,
            "and no steps appear (1 % at most)": lambda x: x("guessing", "works") < 0.01,
            "with it accuracy reaches 85 %": lambda x: x("default", "right") >= 0.85}),
    "canary": (
        "An alarm on reward and held-out accuracy that come apart finds a hack early (seed chapter 15, eval-vs-train "
        "gap). The first step at which each alarm rings, by seed:",
        ["any box, guessing", "bonus 0.1", "format only", "inverted", "default", "last box, guessing"],
        ["warned@first", "deceived@first", "greedy fell@first", "more boxes@first"], ["reward", "paid", "right"], {
            "it warns in every run that spams boxes": lambda x: x("any box, guessing", "warned@first") < np.inf,
            "it is silent in honest runs": lambda x:
                [x(arm, "warned@first") == np.inf for arm in ("default", "last box, guessing")],
            "it warns before the greedy accuracy has visibly fallen": lambda x:
                x("any box, guessing", "warned@first") < x("any box, guessing", "greedy fell@first"),
            "it also warns if it judges as the reward does, the chapter's way": lambda x:
                x("any box, guessing", "deceived@first") < np.inf}),
}


# ---- 5. Report -------------------------------------------------------------------------------------------------------

def spread(values, one_by_one=False):
    """mean [lowest-highest], or all values."""
    if one_by_one or np.isinf(values).any():
        return ", ".join("never" if np.isinf(value) else f"{value:.0f}" for value in values)
    digits = 3 if np.nanmax([*values, 0]) <= 1.2 else 1
    mean, low, high = (f"{value:.{digits}f}".removeprefix("0") for value in (values.mean(), values.min(), values.max()))
    return f"{mean} [{low}-{high}]"


def verdict(results):
    results = [*results]
    partly = f"partly ({sum(results)} of {len(results)} checks)"
    return "reproduced" if all(results) else partly if any(results) else "not reproduced"


def report(name, steps, seeds, runs):
    """Train what is missing; print the claim, the table, each check and the verdict -> the verdict."""
    claim, arms, columns, _, checks = EXPERIMENTS[name]
    folders = {arm: [run_arm(arm, seed, steps, runs) for seed in seeds] for arm in arms}

    def x(arm, column):
        return np.array([number(run, column) for run in folders[arm]])
    rows = [["", *columns]] + [[arm, *(spread(x(arm, column), column.endswith("@first")) for column in columns)]
                               for arm in arms]
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(f"{name}: {claim}\n{steps} steps, {len(seeds)} seeds: mean [lowest-highest]")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    results = {sentence: bool(np.all(check(x))) for sentence, check in checks.items()}
    for sentence, holds in results.items():
        print(f"  {'yes' if holds else 'NO '}  {sentence}")
    print(f"verdict: {verdict(results.values())}\n")
    return verdict(results.values())


TITLES = {"right": "held-out accuracy, sampled", "reward": "training reward", "works": "share that works it out",
          "completion_length": "tokens per completion", "accuracy": "accuracy on the problems trained on",
          "paid": "held-out reward", "boxes": "boxes per completion"}


def draw(name, steps, seeds, runs):
    """Columns over the steps, a band over the seeds for each arm; with many arms a panel for each -> Figure."""
    _, arms, _, keys, _ = EXPERIMENTS[name]
    panels = [(key, key, arms) for key in keys] if len(arms) <= 8 else [(arm, keys[0], [arm]) for arm in arms]
    lines = -(-len(panels) // 6)
    figure = Figure(figsize=(11, 1 + 1.7 * lines), layout="constrained", dpi=80)
    axes = figure.subplots(lines, -(-len(panels) // lines), sharex=True, sharey=lines > 1, squeeze=False).ravel()
    for axis, (title, key, shown) in zip(axes, panels):
        for i, arm in enumerate(shown):
            rows = [history(folder(arm, seed, steps, runs)) for seed in seeds]
            band(axis, [{step: row[key] for step, row in run.items() if key in row} for run in rows], arm, f"C{i}")
        axis.set_title(TITLES.get(title, title), fontsize=9)
        axis.set_ylim(0, None)
    for axis in axes[len(panels):]:
        axis.remove()
    if len(panels) == len(keys):
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"all, or some of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", default="runs/lab", help="folder of the runs (default: runs/lab)")
    parser.add_argument("-o", "--out", help="folder of the figures (default: that of the runs)")
    args = parser.parse_args(argv)
    names = list(EXPERIMENTS) if "all" in args.names else args.names
    if not names or set(names) - set(EXPERIMENTS):
        parser.error("which one?\n" + "\n".join(f"{name:10} {EXPERIMENTS[name][0]}" for name in EXPERIMENTS))
    matplotlib.rcParams |= {"svg.hashsalt": "rlvr", "svg.fonttype": "none"}         # the same file for the same runs
    found = {}
    for name in names:
        found[name] = report(name, args.steps, args.seeds, args.runs)
        figure = draw(name, args.steps, args.seeds, args.runs)
        figure.savefig(ROOT / (args.out or args.runs) / f"{name}.svg", metadata={"Date": None})
    print("\n".join(f"{name:10} {result}" for name, result in found.items()))


if __name__ == "__main__":
    main()
