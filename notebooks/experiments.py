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
import functools
import json
import re
import sys
from pathlib import Path

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
# stops a base which cannot work. In "bilingual" the Chinese way of working was practised twice as often as the other.

BASES = {"usual": train.PHASES,
         "guessing": [{"direct": 1.0}, {"direct": .70, "several boxes": .20, "no box": .10}],
         "bilingual": [{"bilingual": .60, "worked": .30, "direct": .10}, train.PHASES[1]]}

def length_bonus(cap=np.inf):
    """The task's own reward + 0.01 for each token of thinking, up to the cap."""
    def reward(completion, problem):
        value, parts = verifiers.tagged_reward(completion, problem)
        tokens = len(re.findall("[a-z]+ |.", (verifiers.split_tags(completion) or [""])[0]))
        return value + 0.01 * min(tokens, cap), parts
    return reward


# Design B's threshold of 400 words can never act within 80 tokens. Here it is 6: a worked answer has 2 or 3 words of
# thinking, a rambling one 10 or more. The cap of 31 tokens is the longest worked answer.
verifiers.REWARDS |= {"r1-short": verifiers.ReasoningReward(ramble_threshold=6).reward,
                      "bonus": length_bonus(), "bonus-capped": length_bonus(cap=31)}

GRPO = {"default": "", "grpo": "--loss-norm sequence", "dr-grpo": "--loss-norm constant --advantage-scale none",
        "dapo": "--clip 0.2 0.28 --dynamic-sampling 2 --truncated soft", "textbook": "--loss reinforce --loss-norm sum",
        "rloo": "--loss-norm sequence --advantage-scale loo", "ppo x 4": "--updates-per-batch 4",
        "gspo x 4": "--updates-per-batch 4 --loss gspo --loss-norm sequence --clip 3e-4 4e-4",
        "cispo x 4": "--updates-per-batch 4 --loss cispo", "reinforce x 4": "--updates-per-batch 4 --loss reinforce"}
FAST = ["default", "grpo", "dr-grpo", "dapo", "textbook", "ppo x 4", "cispo x 4"]

ARMS = {name: ("usual", flags) for name, flags in {                      # name -> (base, flags of train.py)
    **GRPO, **{f"{name}, fast": f"{GRPO[name]} --lr 2e-3" for name in FAST},
    "random": "--reward random", "inverted": "--reward inverted", "format only": "--reward format-only",
    "design A": "--reward r1-zero", "design B": "--reward r1-short",
    "bonus": "--reward bonus", "bonus, capped": "--reward bonus-capped",
    "last box": "--reward boxed", "first box": "--reward first-box", "any box": "--reward any-box",
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
             "200", "--save-every", "1000", "--runs", str(run.parent), "--name", run.name, *ARMS[arm][1].split()]
    if steps < 10:
        flags += ["--warmup-steps", "0", "--prompts-per-step", "2", "--num-samples", "4", "--eval-problems", "8",
                  "--eval-every", "1", "--max-new-tokens", "16"]
    return flags


@contextlib.contextmanager
def base_model(base):
    """train.py makes and keeps its base by train.PHASES, and refuses one that cannot work problems out."""
    before = train.PHASES, train.worked_accuracy
    train.PHASES = BASES[base]
    if base == "guessing":
        train.worked_accuracy = lambda *_: float("nan")                 # not below 0.9, so nothing is refused
    try:
        yield
    finally:
        train.PHASES, train.worked_accuracy = before


def run_arm(arm, seed, steps, runs):
    """Train one arm, unless that is done already -> its folder. What train.py prints goes to FOLDER.log."""
    run, flags = folder(arm, seed, steps, runs), flags_of(arm, seed, steps, runs)
    if not (run / "final").exists():
        print(f"training {run.name}", file=sys.stderr, flush=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        if run.exists():
            flags = ["--resume", *flags[flags.index("--runs"):flags.index("--name") + 2]]
        with base_model(ARMS[arm][0]), open(f"{run}.log", "a") as log, contextlib.redirect_stdout(log):
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
            "plain": plain, "plain length": sample["length"] if plain else None}


@functools.cache
def history(run):
    """{step: columns} of a finished run: metrics.jsonl, what samples.jsonl shows of the behaviour, and alarms:

    warned          the canary warns
    same verifier   it would, if held-out answers were judged as the reward judges
    greedy fell     the greedy accuracy is below its best so far, with intervals that do not touch
    more boxes      a reader of samples.jsonl finds half as many boxes again as at step 1
    """
    rows, seen = {row["step"]: row for row in train.read_metrics(run)}, {}
    with open(run / "samples.jsonl", encoding="utf-8") as lines:
        for sample in map(json.loads, lines):
            for key, value in look(sample).items():
                if value is not None:
                    seen.setdefault((sample["step"], key), []).append(value)
    for (step, key), values in seen.items():
        rows[step][key] = float(np.mean(values))
    tokens, best, past, deceived = 0.0, 0.0, [], []
    for row in rows.values():
        tokens += row.get("tokens_per_second", 0) * row.get("sample_seconds", 0) / 1000
        row |= {"tokens": tokens, "more boxes": row.get("boxes", 0) > 1.5 * rows[1]["boxes"]}
        past.append(row)
        deceived.append(dict(row))
        if "eval_accuracy" in row:
            paid = row["eval_sampled_reward"]
            low, high = wilson_interval(min(1, paid), row["eval_sampled_n"])
            deceived[-1] |= {"eval_sampled_accuracy": paid, "eval_sampled_low": low, "eval_sampled_high": high}
            row |= {"warned": train.canary(past) is not None, "same verifier": train.canary(deceived) is not None,
                    "greedy fell": row["eval_high"] < best, "reached": row["eval_sampled_accuracy"] >= 0.8}
            best = max(best, row["eval_low"])
    return rows


def number(run, spec):
    """One number of a run. "key": mean over the last ten steps; "key@start": over steps 1 to 3; "key@20": at step 20;
    "key@max", "key@mean": over all steps; "key@first": the first step at which it holds; "key@reached": at the first
    evaluation above 80 %. What never happens is infinite, what was not measured NaN."""
    key, _, at = spec.partition("@")
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
# columns: title -> number (section 3). panels: title -> what is drawn over the steps. checks: sentence -> a function of
# x(arm, title), the numbers of the seeds as an array.

ACCURACY = {"accuracy before": "eval_sampled_accuracy@0", "after": "eval_sampled_accuracy"}
PAID = {"paid before": "eval_sampled_reward@0", "paid after": "eval_sampled_reward"}
TOKENS = {"tokens before": "eval_sampled_length@0", "tokens after": "eval_sampled_length"}
RIGHT = {"held-out accuracy, sampled": "eval_sampled_accuracy"}

EXPERIMENTS = {
    "growth": dict(
        claim="Under a reward for accuracy alone thinking grows by itself (seed chapter 15, length dynamics).",
        arms=["default", "random"],
        columns={**ACCURACY, **TOKENS, "at step 30": "eval_sampled_length@30", "works before": "works@start",
                 "works after": "works", "tokens of worked": "plain length@start", ".. after": "plain length"},
        panels={**RIGHT, "tokens per completion": "completion_length", "share that works it out": "works"},
        checks={
            "completions grow by half or more": lambda x: (
                x("default", "tokens after") > 1.5 * x("default", "tokens before")).all(),
            "under random rewards by less than a tenth": lambda x: (
                x("random", "tokens after") < 1.1 * x("random", "tokens before")).all(),
            "they still grow after step 30, by 5 % or more": lambda x: (
                x("default", "tokens after") > 1.05 * x("default", "at step 30")).all(),
            "answers of one kind, the worked ones, grow too, by 5 % or more": lambda x: (
                x("default", ".. after").mean() > 1.05 * x("default", "tokens of worked").mean())}),
    "design": dict(
        claim="Design A (accuracy and form) leaves bilingual and rambling thinking; design B (and penalties) removes "
              "both at equal accuracy (seed chapter 15, language consistency and walkthrough).",
        arms=["design A", "design B", "A, bilingual base", "B, bilingual base"],
        columns={**ACCURACY, "bilingual before": "bilingual@start", "bilingual after": "bilingual",
                 "rambling before": "rambling@start", "rambling after": "rambling"},
        panels={**RIGHT, "bilingual": "bilingual", "rambling": "rambling"},
        checks={
            "A: bilingual thinking stays (at least half of it)": lambda x: (
                x("design A", "bilingual after") > 0.5 * x("design A", "bilingual before")).all(),
            "A: rambling stays (at least half of it)": lambda x: (
                x("design A", "rambling after") > 0.5 * x("design A", "rambling before")).all(),
            "A, bilingual base: bilingual thinking grows": lambda x: (
                x("A, bilingual base", "bilingual after") > x("A, bilingual base", "bilingual before")).all(),
            "B: below 1 % of either, with both bases": lambda x: max(
                x(arm, f"{kind} after").max() for arm in ("design B", "B, bilingual base")
                for kind in ("bilingual", "rambling")) < 0.01,
            "B is as accurate as A (means within 3 points)": lambda x: all(
                abs(x(f"{a}", "after").mean() - x(f"{b}", "after").mean()) < 0.03
                for a, b in (("design A", "design B"), ("A, bilingual base", "B, bilingual base")))}),
    "format": dict(
        claim="Paid only for the form, the reward saturates and accuracy collapses (seed chapter 15, the reward "
              "components; chapter 14, reward hacks).",
        arms=["format only", "default"], columns={**PAID, **ACCURACY, **TOKENS},
        panels={"training reward": "reward", **RIGHT, "tokens per completion": "completion_length"},
        checks={
            "the reward saturates (above 0.97)": lambda x: x("format only", "paid after").min() > 0.97,
            "accuracy falls to half or less": lambda x: (
                x("format only", "after") <= 0.5 * x("format only", "accuracy before")).all(),
            "the control rises": lambda x: (x("default", "after") > x("default", "accuracy before")).all()}),
    "length": dict(
        claim="A length bonus without a cap teaches padding before thinking; a cap stops it (seed chapter 15, length "
              "dynamics).",
        arms=["default", "bonus", "bonus, capped"],
        columns={"accuracy": "eval_sampled_accuracy", **TOKENS, "rambling": "rambling", "cut off": "truncated",
                 "paid": "reward"},
        panels={**RIGHT, "tokens per completion": "completion_length", "rambling": "rambling"},
        checks={
            "no cap: half as long again as without a bonus": lambda x: (
                x("bonus", "tokens after") > 1.5 * x("default", "tokens after")).all(),
            "no cap: costs 5 points of accuracy or more": lambda x: (
                x("bonus", "accuracy") < x("default", "accuracy") - 0.05).all(),
            "cap: accuracy as without a bonus (means within 3 points)": lambda x: abs(
                x("bonus, capped", "accuracy").mean() - x("default", "accuracy").mean()) < 0.03,
            "cap: length as without a bonus (within a fifth)": lambda x: (
                x("bonus, capped", "tokens after") < 1.2 * x("default", "tokens after")).all()}),
    "boxes": dict(
        claim="A verifier that takes the first box or any box is hacked by spamming guesses; one that takes the last "
              "box is not (seed chapter 15, reasoning-specific hacks).",
        arms=[f"{rule} box{base}" for base in (", guessing", "") for rule in ("any", "first", "last")],
        columns={**PAID, "right before": "eval_sampled_accuracy@0", "right after": "eval_sampled_accuracy",
                 "boxes before": "boxes@start", "most": "boxes@max", "boxes after": "boxes"},
        panels={"paid": "reward", "right (last box)": "accuracy", "boxes per completion": "boxes"},
        checks={
            "any box, a base that guesses: half as much again is paid, less is right": lambda x: (
                (x("any box, guessing", "paid after") > 1.5 * x("any box, guessing", "paid before"))
                & (x("any box, guessing", "right after") < x("any box, guessing", "right before"))).all(),
            "first box, a base that guesses: the same": lambda x: (
                (x("first box, guessing", "paid after") > 1.5 * x("first box, guessing", "paid before"))
                & (x("first box, guessing", "right after") < x("first box, guessing", "right before"))).all(),
            "last box, a base that guesses: boxes do not multiply": lambda x: (
                x("last box, guessing", "boxes after") < 1.5 * x("last box, guessing", "boxes before")).all(),
            "any box, a base that can work: 5 points less is right than with the last box": lambda x: (
                x("any box", "right after").mean() < x("last box", "right after").mean() - 0.05)}),
    "problems": dict(
        claim="One problem suffices to start the training; to finish it takes more (seed chapter 9.5, 1-shot RLVR).",
        arms=["1 problem", "64 problems", "default"],
        columns={**ACCURACY, "greedy after": "eval_accuracy", "on its own problems": "accuracy",
                 "mixed groups": "mixed"},
        panels={**RIGHT, "accuracy on its own problems": "accuracy", "mixed groups": "mixed"},
        checks={
            "one problem gives half of the gain or more": lambda x: (
                (x("1 problem", "after") - x("1 problem", "accuracy before")).mean()
                > 0.5 * (x("default", "after") - x("default", "accuracy before")).mean()),
            "it stays 10 points or more behind all problems": lambda x: (
                x("1 problem", "after").mean() < x("default", "after").mean() - 0.1),
            "64 problems are as good as all (means within 3 points)": lambda x: abs(
                x("64 problems", "after").mean() - x("default", "after").mean()) < 0.03}),
    "groups": dict(
        claim="Solved and hopeless groups teach nothing; leaving them out saves about half of the samples (seed "
              "chapter 15, difficulty-aware shaping).",
        arms=["default", "64 problems", "64, filter", "64, dynamic"],
        columns={"solved before": "solved@start", "hopeless before": "hopeless@start", "solved after": "solved",
                 "hopeless after": "hopeless", "mixed, mean": "mixed@mean", "accuracy after": "eval_sampled_accuracy",
                 "1000 tokens": "tokens@max", ".. until 80 %": "tokens@reached"},
        panels={"solved": "solved", "mixed": "mixed", **RIGHT},
        checks={
            "in the end half of the groups or more teach nothing (all problems)": lambda x: (
                x("default", "solved after") + x("default", "hopeless after")).mean() >= 0.5,
            "the filter keeps more groups mixed": lambda x: (
                x("64, filter", "mixed, mean").mean() > x("64 problems", "mixed, mean").mean()),
            "the filter needs two thirds of the tokens until 80 %, or less": lambda x: (
                x("64, filter", ".. until 80 %").mean() < 0.67 * x("64 problems", ".. until 80 %").mean()),
            "so does dynamic sampling": lambda x: (
                x("64, dynamic", ".. until 80 %").mean() < 0.67 * x("64 problems", ".. until 80 %").mean())}),
    "family": dict(
        claim="GRPO, DAPO, Dr. GRPO and the chapter's loss differ in stability (seed chapters 9.5 and 15); 'fast' is "
              "five times the default learning rate, 'x 4' four updates per batch.",
        arms=[*GRPO, *(f"{name}, fast" for name in FAST)],
        columns={"at step 20": "eval_sampled_accuracy@20", "after": "eval_sampled_accuracy", "greedy": "eval_accuracy",
                 "tokens after": "eval_sampled_length"},
        panels=RIGHT,
        checks={
            "default rate: one of the four falls below 80 %": lambda x: min(
                x(arm, "after").min() for arm in FAST[1:5]) < 0.8,
            "default rate: one of the four ends outside the others' ranges": lambda x: (
                max(x(arm, "after").min() for arm in FAST[1:5]) > min(x(arm, "after").max() for arm in FAST[1:5])),
            "five times the rate: one of the four falls below 80 %": lambda x: min(
                x(f"{arm}, fast", "after").min() for arm in FAST[1:5]) < 0.8,
            "five times the rate: four updates per batch collapse, one does not": lambda x: (
                x("ppo x 4, fast", "after").mean() < 0.5 < x("default, fast", "after").min())}),
    "controls": dict(
        claim="A reward that knows nothing of the answer teaches nothing, an inverted one harms (controls for all "
              "others; Shao et al. 2025 found gains under random rewards).",
        arms=["default", "random", "inverted"], columns={**PAID, **ACCURACY, **TOKENS},
        panels={"training reward": "reward", **RIGHT, "share that works it out": "works"},
        checks={
            "random: within 5 points of the start": lambda x: (
                abs(x("random", "after") - x("random", "accuracy before")) < 0.05).all(),
            "inverted: half of the accuracy or less is left": lambda x: (
                x("inverted", "after") < 0.5 * x("inverted", "accuracy before")).all(),
            "the real reward gains 50 points or more": lambda x: (
                x("default", "after") > x("default", "accuracy before") + 0.5).all()}),
    "selection": dict(
        claim="RLVR unlocks what is there: a base that has never worked a problem out cannot be helped (seed chapter "
              "9.5, 1-shot RLVR).",
        arms=["guessing", "default"],
        columns={**ACCURACY, "greedy after": "eval_accuracy", "works before": "works@start", "works after": "works"},
        panels={**RIGHT, "share that works it out": "works", "hopeless groups": "hopeless"},
        checks={
            "without the worked mode accuracy stays below 25 %": lambda x: x("guessing", "after").max() < 0.25,
            "and no steps appear (in 1 % at most)": lambda x: x("guessing", "works after").max() < 0.01,
            "with it accuracy reaches 85 %": lambda x: x("default", "after").min() >= 0.85}),
    "canary": dict(
        claim="An alarm on reward and held-out accuracy that come apart finds a hack early (seed chapter 15, "
              "eval-vs-train gap). First step at which each alarm rings:",
        arms=["any box, guessing", "format only", "inverted", "any box", "default", "last box, guessing"],
        columns={"canary": "warned@first", "judged as the reward does": "same verifier@first",
                 "greedy accuracy fell": "greedy fell@first", "more boxes": "more boxes@first"},
        panels={"training reward": "reward", "held-out, as the reward judges": "eval_sampled_reward", **RIGHT},
        checks={
            "it warns in every run that spams boxes": lambda x: (x("any box, guessing", "canary") < np.inf).all(),
            "it does not warn in honest runs": lambda x: all(
                (x(arm, "canary") == np.inf).all() for arm in ("default", "last box, guessing")),
            "it warns before the greedy accuracy has visibly fallen": lambda x: (
                x("any box, guessing", "canary") < x("any box, guessing", "greedy accuracy fell")).all(),
            "so it does when it judges as the reward does (the chapter's way)": lambda x: (
                x("any box, guessing", "judged as the reward does") < np.inf).all()}),
}


# ---- 5. Report -------------------------------------------------------------------------------------------------------

def spread(values):
    """mean [lowest-highest]; or one by one where one of them never happened."""
    if np.isinf(values).any():
        return " ".join("never" if np.isinf(value) else f"{value:.0f}" for value in values)
    digits = 3 if np.nanmax([*values, 0]) <= 1.2 else 1
    mean, low, high = (f"{value:.{digits}f}".removeprefix("0") for value in (values.mean(), values.min(), values.max()))
    return f"{mean} [{low}-{high}]"


def verdict(results):
    return "reproduced" if all(results) else "partly" if any(results) else "not reproduced"


def report(name, steps, seeds, runs):
    """Train what is missing; print the claim, the table, each check and the verdict -> the verdict."""
    experiment = EXPERIMENTS[name]
    folders = {arm: [run_arm(arm, seed, steps, runs) for seed in seeds] for arm in experiment["arms"]}

    def x(arm, title):
        return np.array([number(run, experiment["columns"][title]) for run in folders[arm]])
    rows = [["", *experiment["columns"]]]
    rows += [[arm, *(spread(x(arm, title)) for title in experiment["columns"])] for arm in folders]
    widths = [max(map(len, column)) for column in zip(*rows)]
    print(f"{name}: {experiment['claim']}\n{steps} steps, {len(seeds)} seeds: mean [lowest-highest]")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    results = {sentence: bool(check(x)) for sentence, check in experiment["checks"].items()}
    for sentence, holds in results.items():
        print(f"  {'yes' if holds else 'NO '}  {sentence}")
    print(f"verdict: {verdict(results.values())}\n")
    return verdict(results.values())


def draw(name, steps, seeds, runs):
    """The panels of an experiment, a band over the seeds for each arm -> Figure."""
    experiment = EXPERIMENTS[name]
    many = len(experiment["arms"]) > 8                                                   # then a panel for each arm
    panels = [(arm, *experiment["panels"].values(), [arm]) for arm in experiment["arms"]] if many else [
        (title, key, experiment["arms"]) for title, key in experiment["panels"].items()]
    columns = 5 if many else len(panels)
    figure = Figure(figsize=(11, 1.9 * -(-len(panels) // columns) if many else 2.8), layout="constrained")
    axes = figure.subplots(-(-len(panels) // columns), columns, sharex=True, sharey=many, squeeze=False).flat
    for axis, (title, key, arms) in zip(axes, panels):
        for i, arm in enumerate(arms):
            rows = [history(folder(arm, seed, steps, runs)) for seed in seeds]
            curves = [{step: row[key] for step, row in run.items() if key in row} for run in rows]
            band(axis, curves, arm, f"C{i}")
        axis.set_title(title, fontsize=9)
        axis.set_ylim(0, 1.02 if many else None)
    if not many:
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*EXPERIMENTS, "all", []], help="which (default: list them)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", default="runs/lab", help="folder of the runs (default: runs/lab)")
    parser.add_argument("-o", "--out", default="notebooks/experiments", help="folder of the figures")
    args = parser.parse_args(argv)
    if not args.names:
        print("\n".join(f"{name:10} {experiment['claim']}" for name, experiment in EXPERIMENTS.items()))
    matplotlib.rcParams |= {"svg.hashsalt": "rlvr", "svg.fonttype": "none"}         # the same file for the same runs
    out, verdicts = ROOT / args.out, {}
    for name in EXPERIMENTS if "all" in args.names else args.names:
        verdicts[name] = report(name, args.steps, args.seeds, args.runs)
        out.mkdir(parents=True, exist_ok=True)
        draw(name, args.steps, args.seeds, args.runs).savefig(out / f"{name}.svg", metadata={"Date": None})
    for name, found in verdicts.items():
        print(f"{name:10} {found}")


if __name__ == "__main__":
    main()
