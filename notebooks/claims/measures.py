"""measures.py - what the claims measure of a run: its columns as numbers (section 1), and more: claim.Run -> {column:
number}."""

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
    """What kind of completion is it? Read off the text. None is left out of the mean."""
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
    """What each step of the thinking is, and what is said behind the last one.

    right, or slip: it is none of the problem's; corrected: right, behind "wait" and a slip; again: right, behind
    "wait", and said before; excursion: it begins with a number that is not there before.
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
    """Where the thinking goes wrong, and where it is too long.

    slips         a step is wrong
    corrected     the first wrong one is followed by "wait" and a right one; None without a slip
    doubting      "wait" and a right step that stands there already, twice or more
    padding       eight or more words of filler behind the last step
    excursion     a step that serves nothing
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
    """The mean of each column of look() and slips() over the completions of a step."""
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
    """{step: columns} of a finished run: those of metrics.jsonl, what samples/ shows (see look and slips), and

    right, paid, length, greedy   on held-out problems: accuracy, reward and tokens, sampled; accuracy, greedy
    """
    rows = train.read_log(run)
    for step, row in rows.items():
        row |= {name: row[column] for name, column in HELD_OUT.items() if column in row}
        if step > 0:
            row |= looks([*samples_of(run / "samples" / f"step_{step:06d}.jsonl.gz")])
    return rows


def number(run, column):
    """A column of the history as one number: "right" is its mean over the last ten steps (the last third of a run of
    fewer than 16), "right@20" at step 20, "works@start" over steps 1 to 3, "mixed@mean" and "boxes@max" over all
    steps."""
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


# ---- 2. What a claim wants besides -----------------------------------------------------------------


def label_of(run, group=16):
    """In how many groups of the first three steps the most frequent answer is the right one."""
    right = []
    for step in (1, 2, 3):
        rows = list(samples_of(run.folder / "samples" / f"step_{step:06d}.jsonl.gz"))
        for start in range(0, len(rows), group):
            some = rows[start : start + group]
            answers = [verifiers.extract_boxed_answer(row["completion"]) for row in some]
            given = [answer for answer in answers if answer is not None]
            label = statistics.mode(given or [""])  # of several, the first
            right.append(verifiers.grade_answer(label, some[0]["answer"]))
    return {"label": float(np.mean(right))}


def sharpened(run, problems=100):
    """The accuracy of the base to the power of 2, 4 and 50 on held-out problems, the best of them, and that at
    temperature 1 / 4."""
    task = verifiers.arithmetic()
    loaded = METHOD, *load(str(run.base)), task, task.test[:problems]
    logps, right = sample_base(loaded, 128)
    found = {f"p^{a}": sharpen(logps, right, a)[0].mean().item() for a in (2, 4, 50)}
    found["best power"] = max(found.values())
    return found | {"temperature 1/4": sample_base(loaded, 8, 0.25)[1].mean().item()}


def before_and_after(measure):
    """Of the weights that a run ended with; of those that it began with the same, marked @0."""

    def measured(run):
        before = measure(str(run.base)).items()
        return measure(str(run.final)) | {f"{name}@0": value for name, value in before}

    return measured


@functools.cache
def planted(folder, problems=100, samples=2):
    """The model goes on from a first step with the wrong sign, and from the right one -> the shares that say "wait" and
    write the right step; that end in the right answer after the wrong one; and that say "wait" after the right one."""
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
    """What the process model says of the steps of held-out completions: mean, and sum; how many steps there are; and as a
    sample what was said to the first problem."""
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
    """On 500 pairs that no rule was read out of, with a judge who errs once in ten: alignment, also with the labels of
    half of the pairs swapped; undecided, against: pairs that the rules leave open, or decide the other way (Table 7)."""
    chosen, rejected = world.verdicts(seed, 0.1, rules, 500)
    swap = np.random.default_rng(seed).random((len(chosen), 1)) < 0.5
    swapped = np.where(swap, rejected, chosen), np.where(swap, chosen, rejected)
    aligned = np.nanmean(autorule.alignment(chosen, rejected))
    shuffled = np.nanmean(autorule.alignment(*swapped))
    _, undecided, against = autorule.margins(chosen, rejected)
    found = {"alignment": aligned, "shuffled": shuffled}
    return found | {"undecided": undecided, "against": against}


def agreements(seed):
    """5.3: the rules of four more extractions, and of 32 pairs instead of 256, against those of the first one."""
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
    """Accuracy over the first five steps, the last ten, and the ten in which it was best; r_model: what the reward model
    paid."""
    rows = [row for step, row in train.read_log(run.folder).items() if step > 0]
    right = np.array([row["accuracy"] for row in rows])
    start = max(range(max(1, len(rows) - 9)), key=lambda at: right[at : at + 10].mean())
    best = slice(start, start + 10)
    found = {"right@start": right[:5].mean(), "right@best": right[best].mean()}
    found["right"] = right[-10:].mean()
    if "r_model" in rows[0]:
        paid = np.array([row["r_model"] for row in rows])
        found |= {"r_model@best": paid[best].mean(), "r_model": paid[-10:].mean()}
    return found
