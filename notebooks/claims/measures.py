"""measures.py - what the claims measure on a run: columns of its log as numbers (section 1), and functions that take a
claim.Run and return {column: number} (sections 2 and 3)."""

import functools
import re
import statistics

import numpy as np

import train
import verifiers
from model import load
from notebooks.autorule import autorule
from notebooks.autorule import autorule_world as world
from notebooks.look.sharpen import sample_base, sharpen
from notebooks.look.show import samples_of
from notebooks.models.make_tiny import carried_on, steps_of
from notebooks.rewards.process import process_model
from rlvr import GRPO, roll_out

METHOD = GRPO(max_new_tokens=80)

# ---- 1. Columns ------------------------------------------------------------------------------------


def look(sample):
    """Classify a completion by its text. A column that is None is left out of the mean."""
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
        "plain length": len(sample["ids"]) if plain else None,
    }


STEP = re.compile(r"(wait )?(([0-9]+)[-+][0-9]+=([0-9]+))")
FILLER = "(?:let|me|think|wait|hmm) "


def kinds_of(sample):
    """Return the kind of each step of the thinking, and the text after the last step.

    right       a step of the problem's solution
    corrected   a right step, after "wait" and a slip
    again       a right step, after "wait", that has been written before
    slip        a wrong step
    excursion   a step that begins with a number that has not occurred before
    """
    thinking = sample["completion"].partition("</think>")[0]
    right = {f"{calculation}={value}" for calculation, value in steps_of(sample)}
    known = set(re.findall("^[0-9]+", sample["problem"]))
    kinds = []
    said = []
    for wait, step, number, value in STEP.findall(thinking):
        kind = "right" if step in right else "slip" if number in known else "excursion"
        if wait and kind == "right":
            kind = "again" if step in said else "corrected" if kinds[-1:] == ["slip"] else kind
        kinds.append(kind)
        said.append(step)
        known.add(value)
    return kinds, STEP.split(thinking)[-1]


def slips(sample):
    """Find out where the thinking goes wrong, and where it is too long.

    slips         a step is wrong
    corrected     the first wrong step is followed by "wait" and a right one; None without a slip
    doubting      "wait" and a right step that has been written before, twice or more
    padding       eight or more words of filler after the last step
    excursion     a step that leads nowhere
    """
    kinds, behind = kinds_of(sample)
    at = kinds.index("slip") + 1 if "slip" in kinds else None
    return {
        "slips": at is not None,
        "corrected": None if at is None else kinds[at : at + 1] == ["corrected"],
        "doubting": kinds.count("again") >= 2,
        "padding": len(re.findall(FILLER, behind)) >= 8,
        "excursion": "excursion" in kinds,
    }


def looks(samples):
    """Return the mean of each column of look() and slips() over the completions of a step."""
    seen = [look(sample) | slips(sample) for sample in samples]
    means = {}
    for column in seen[0]:
        values = [each[column] for each in seen if each[column] is not None]
        if values:
            means[column] = float(np.mean(values))
    return means


HELD_OUT = {
    "right": "eval_sampled_accuracy",
    "paid": "eval_sampled_reward",
    "length": "eval_sampled_length",
    "greedy": "eval_accuracy",
}


@functools.cache
def history(run):
    """Return {step: columns} of a finished run: the columns of metrics.jsonl, the means of look and slips, and

    right, paid, length   accuracy, reward and tokens of sampled completions of held-out problems
    greedy                accuracy of greedy decoding on held-out problems
    """
    rows = train.read_log(run)
    for step, row in rows.items():
        row |= {name: row[column] for name, column in HELD_OUT.items() if column in row}
        if step > 0:
            row |= looks([*samples_of(run / "samples" / f"step_{step:06d}.jsonl.gz")])
    return rows


def number(run, column):
    """Return a column of the history as one number. "right" is its mean over the last ten steps (in a run of fewer than
    16 steps, over the last third), "right@20" its value at step 20, and "works@start" its mean over steps 1 to 3.
    "mixed@mean" and "boxes@max" cover all steps."""
    key, _, at = column.partition("@")
    rows = history(run)
    steps = sorted(rows)
    if at == "start":
        steps = [1, 2, 3]
    elif at.isdigit():
        steps = [int(at)]
    elif not at:
        steps = steps[-10:] if len(steps) > 16 else steps[-max(1, steps[-1] // 3) :]
    values = [rows[step][key] for step in steps if key in rows.get(step, {})] or [np.nan]
    return float(np.max(values) if at == "max" else np.mean(values))


# ---- 2. Other measures ------------------------------------------------------------------------------


def label_of(run, group=16):
    """Return the share of groups, in the first three steps, whose most frequent answer is right."""
    right = []
    for step in (1, 2, 3):
        rows = list(samples_of(run.folder / "samples" / f"step_{step:06d}.jsonl.gz"))
        for start in range(0, len(rows), group):
            some = rows[start : start + group]
            answers = [verifiers.extract_boxed_answer(row["completion"]) for row in some]
            given = [answer for answer in answers if answer is not None]
            label = statistics.mode(given or [""])  # in a tie, the first
            right.append(verifiers.grade_answer(label, some[0]["answer"]))
    return {"label": float(np.mean(right))}


def sharpened(run, problems=100):
    """Return accuracies of the base on held-out problems: raised to the power of 2, 4 and 50, the best of these, and at
    temperature 1 / 4."""
    task = verifiers.arithmetic()
    loaded = METHOD, *load(str(run.base)), task, task.test[:problems]
    logps, right = sample_base(loaded, 128)
    found = {f"p^{a}": sharpen(logps, right, a)[0].mean().item() for a in (2, 4, 50)}
    found["best power"] = max(found.values())
    return found | {"temperature 1/4": sample_base(loaded, 8, 0.25)[1].mean().item()}


def before_and_after(measure):
    """Measure a run's final weights. The same columns of its base are marked @0."""

    def measured(run):
        before = measure(str(run.base)).items()
        return measure(str(run.final)) | {f"{name}@0": value for name, value in before}

    return measured


@functools.cache
def planted(folder, problems=100, samples=2):
    """Let the model continue from a first step with the wrong sign, and from the right one. Returns shares.

    noticed        the model writes "wait" and the right step after the wrong one
    saved          it gives the right answer after the wrong step
    false alarms   it writes "wait" and the right step after the right one
    """
    model, tokenizer = load(folder)
    task = verifiers.arithmetic()
    begun = []
    for problem in task.test[:problems]:
        (calculation, value), *_ = steps_of(problem)
        slip, wrong = carried_on(steps_of(problem), 0)[0]
        right = f"{calculation}={value}"
        if 10 <= wrong <= 99:
            for step in (f"{slip}={wrong}", right):
                text = f"{problem['problem']}<think>{step};"
                begun.append(problem | {"problem": text, "right": f"wait {right}"})
    batch = roll_out(METHOD, model, tokenizer, task, begun, samples)
    found = [
        text.startswith(begun[row // samples]["right"]) for row, text in enumerate(batch.texts)
    ]
    boxes = map(verifiers.extract_boxed_answer, batch.texts)
    ends = [box == begun[row // samples]["answer"] for row, box in enumerate(boxes)]
    found, ends = (np.reshape(each, (-1, 2, samples)).mean((0, 2)) for each in (found, ends))
    return {"noticed": found[0], "saved": ends[0], "false alarms": found[1]}


@functools.cache
def scores_of(folder, problems=200):
    """Score the steps of held-out completions with the process model. Returns the mean score, the sum, the number of
    steps, and as a sample the first problem with its completion."""
    model, tokenizer = load(folder)
    task = verifiers.arithmetic()
    batch = roll_out(METHOD, model, tokenizer, task, task.test[:problems])
    asked = [problem["problem"] for problem in batch.problems]
    found = [process_model()(*pair) or [0.0] for pair in zip(asked, batch.texts)]
    return {
        "score": statistics.fmean(map(statistics.fmean, found)),
        "sum": statistics.fmean(map(sum, found)),
        "steps": statistics.fmean(map(len, found)),
        "sample": asked[0] + batch.texts[0],
    }


# ---- 3. AutoRule -----------------------------------------------------------------------------------


def of_rules(run):
    found = worth(world.rules_of("rules", run.seed), run.seed) | agreements(run.seed)
    found["dimensions"] = worth(world.DIMENSIONS, run.seed)["alignment"]
    return found


def worth(rules, seed):
    """Compare rules with the preferences of 500 pairs that are new to them, with a judge who errs once in ten. Returns
    the alignment, the alignment if the labels of half of the pairs are swapped (shuffled), and the shares of pairs that
    the rules leave open (undecided) or decide the other way (against; Table 7)."""
    chosen, rejected = world.verdicts(seed, 0.1, rules, 500)
    swap = np.random.default_rng(seed).random((len(chosen), 1)) < 0.5
    swapped = np.where(swap, rejected, chosen), np.where(swap, chosen, rejected)
    aligned = np.nanmean(autorule.alignment(chosen, rejected))
    shuffled = np.nanmean(autorule.alignment(*swapped))
    _, undecided, against = autorule.margins(chosen, rejected)
    return {"alignment": aligned, "shuffled": shuffled, "undecided": undecided, "against": against}


def agreements(seed):
    """Compare the rules of the first extraction with the rules of four more, and with rules from 32 pairs instead of
    256 (section 5.3)."""
    first, *others = [world.extracted(seed, run=run) for run in range(5)]

    def against_first(compare, sets, error=0.0):
        told = [np.concatenate(world.verdicts(seed, error, rules)) for rules in [first, *sets]]
        return np.mean([np.mean(compare(told[0], theirs)) for theirs in told[1:]])

    return {
        "agreement": against_first(autorule.agreement, others),
        "agreement, judge errs": against_first(autorule.agreement, others, 0.1),
        "32 pairs": against_first(autorule.agreement, [world.extracted(seed, 32, 1)]),
        "correlation": against_first(autorule.correlation, others),
    }


def at_best(run):
    """Return the accuracy over the first five steps, the last ten, and the best ten. r_model: the score of the reward
    model. sample: the completion with the highest reward in the last step."""
    rows = [row for step, row in train.read_log(run.folder).items() if step > 0]
    right = np.array([row["accuracy"] for row in rows])
    start = max(range(max(1, len(rows) - 9)), key=lambda at: right[at : at + 10].mean())
    best = slice(start, start + 10)
    found = {"right@start": right[:5].mean(), "right@best": right[best].mean()}
    found["right"] = right[-10:].mean()
    if "r_model" in rows[0]:
        paid = np.array([row["r_model"] for row in rows])
        found |= {"r_model@best": paid[best].mean(), "r_model": paid[-10:].mean()}
    samples = samples_of(sorted(run.folder.glob("samples/step_*.jsonl.gz"))[-1])
    highest = max(samples, key=lambda sample: sample["reward"])
    return found | {"sample": highest["problem"] + highest["completion"]}
