"""measures.py - what the claims measure of a run: its columns as numbers (section 1), and more: claim.Run -> {column:
number}."""

import functools
import math
import re
import statistics
from collections import Counter

import numpy as np
import torch

import train
import verifiers
from eval import wilson_interval
from model import load
from notebooks.environments.calculator import calculate, products
from notebooks.environments.failing import failing
from notebooks.look.show import canary, samples_of
from notebooks.models.make_tiny import steps_of
from rlvr import GRPO, roll_out, token_logprobs

CALLING = GRPO(max_new_tokens=80)  # room for calls
LEVEL = 0.8  # held-out accuracy, sampled


def replies_in(rollouts):
    """(B, T-1) bool: where ids[:, 1:] is an environment's."""
    columns = torch.arange(rollouts.mask.size(1), device=rollouts.mask.device)
    begin = rollouts.prompt_lengths[:, None] - 1
    inside = (columns >= begin) & (columns < begin + rollouts.lengths[:, None])
    return inside & (rollouts.mask == 0)


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
    if not re.fullmatch("[0-9]+([-+][0-9]+)+=", sample.get("problem", "")):
        return {}
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
    for column in seen[0] if seen else ():
        values = [each[column] for each in seen if each[column] is not None]
        if values:
            means[column] = float(np.mean(values))
    return means


@functools.cache
def history(run):
    """{step: columns} of a finished run: those of metrics.jsonl, what samples/ shows (see look), alarms (see
    add_alarms), and

    right, greedy, paid, length   on held-out problems: accuracy sampled and greedy, reward and tokens sampled
    used, spent                   thousands of tokens sampled so far, seconds of sampling and updates
    """
    rows = train.read_log(run)
    used = 0.0
    spent = 0.0
    for step, row in rows.items():
        path = run / "samples" / f"step_{step:06d}.jsonl.gz"
        samples = list(samples_of(path)) if path.exists() else []
        used += sum(len(sample["ids"]) for sample in samples) / 1000
        spent += row.get("sample_seconds", 0) + row.get("update_seconds", 0)
        row |= looks(samples) | {"used": used, "spent": spent}
        if "eval_accuracy" in row:
            row["right"] = row["eval_sampled_accuracy"]
            row["paid"] = row["eval_sampled_reward"]
            row["greedy"] = row["eval_accuracy"]
            row["length"] = row["eval_sampled_length"]
    add_alarms(rows)
    return rows


def add_alarms(rows):
    """warned: the canary warns; deceived: it would, if it judged held-out answers as the reward does; greedy fell:
    greedy is below its best so far, with intervals that do not touch; more boxes: half as many again as at step 1."""
    best = 0.0
    past = []
    deceived = []
    for row in rows.values():
        row["more boxes"] = row.get("boxes", 0) > 1.5 * rows[1]["boxes"]
        past.append(row)
        deceived.append(dict(row))
        if "eval_accuracy" not in row:
            continue
        low, high = wilson_interval(min(1, row["paid"]), row["eval_sampled_n"])
        deceived[-1]["eval_sampled_accuracy"] = row["paid"]
        deceived[-1] |= {"eval_sampled_low": low, "eval_sampled_high": high}
        row["greedy fell"] = row["eval_high"] < best
        row["warned"] = canary(past) is not None
        row["deceived"] = canary(deceived) is not None
        best = max(best, row["eval_low"])


def number(run, column):
    """A column of the history as one number: "right" is its mean over the last ten steps (the last third of a run of
    fewer than 16), "right@20" at step 20, "works@start" over steps 1 to 3, "mixed@mean" and "boxes@max" over all steps,
    "warned@first" the first step at which it holds. What never happens is infinite."""
    key, _, at = column.partition("@")
    rows = history(run)
    if at == "first":
        return float(next((step for step, row in rows.items() if row.get(key)), np.inf))
    last = 10 if max(rows) >= 16 else max(1, max(rows) // 3)
    chosen = {
        "": lambda step: step > max(rows) - last,
        "start": lambda step: 1 <= step <= 3,
        "max": lambda step: True,
        "mean": lambda step: True,
    }.get(at, lambda step: str(step) == at)
    values = [row[key] for step, row in rows.items() if key in row and chosen(step)] or [np.nan]
    return float(np.max(values) if at == "max" else np.mean(values))


# ---- 2. On the way ---------------------------------------------------------------------------------


def tokens_to_level(run):
    """Thousand tokens sampled until held-out accuracy first reaches the level, by a straight line between evaluations;
    a run that never does is infinite."""
    evaluated = [row for row in history(run.folder).values() if "right" in row]
    for before, row in zip([evaluated[0], *evaluated], evaluated):
        if row["right"] >= LEVEL:
            rise = row["right"] - before["right"]
            share = (LEVEL - before["right"]) / rise if rise else 0.0
            return {"tokens to 80 %": before["used"] + share * (row["used"] - before["used"])}
    return {"tokens to 80 %": math.inf}


def early(run):
    """How many of the samples of steps 6 to 10 are right: in all arms they answer the same problems."""
    if not run.folder:
        return {}
    rows = history(run.folder)
    return {"steps 6-10": float(np.mean([rows[step]["accuracy"] for step in range(6, 11)]))}


def label_of(run, group=16):
    """In how many groups of the first three steps the most frequent answer is the right one."""
    right = []
    for step in (1, 2, 3):
        rows = list(samples_of(run.folder / "samples" / f"step_{step:06d}.jsonl.gz"))
        for start in range(0, len(rows), group):
            some = rows[start : start + group]
            answers = [verifiers.extract_boxed_answer(row["completion"]) for row in some]
            given = Counter(answer for answer in answers if answer is not None)
            label = given.most_common(1)[0][0] if given else ""
            right.append(verifiers.grade_answer(label, some[0]["answer"]))
    return {"label": float(np.mean(right))}


# ---- 3. Tools --------------------------------------------------------------------------------------


def use_of_tools(run):
    """Over the last ten steps: calls, answers of the tool in a completion; form, the share in the tagged form. And
    surprise: nats a token that the tool's words are to the trained model, which need not care."""
    files = sorted((run.folder / "samples").glob("step_*.jsonl.gz"))[-10:]
    texts = [row["completion"] for path in files for row in samples_of(path)]  # the policy's words
    most = 0 if run.arm == "silent tool" else 4
    asked = [re.findall("<tool>([^<]*)</tool>", text)[:most] for text in texts]
    answers = [[calculate(call) for call in calls] for calls in asked]
    return {
        "calls": statistics.fmean(len(some) - some.count("error") for some in answers),
        "form": statistics.fmean(verifiers.verify_math(text, "0")["format"] for text in texts),
        "surprise": surprise(run.final),
    }


@torch.no_grad()
def surprise(folder, problems=100):
    """-log p of the tool's tokens on held-out problems."""
    model, tokenizer = load(str(folder))
    task = products()
    rollouts = roll_out(CALLING, model, tokenizer, task, task.test[:problems]).rollouts
    theirs = replies_in(rollouts).float()
    return float(-(token_logprobs(model, rollouts.ids, 1.0, theirs).sum() / theirs.sum()))


BEHAVIOURS = ("right", "again", "composes", "needless")


@functools.cache
def behaviours_of(folder):
    """On held-out problems, where the first call may fail: ToolRL's behaviours, whatever the policy was trained with.
    again is a share of the completions with an error, needless of the calls."""
    task = failing()
    parts = roll_out(CALLING, *load(folder), task, task.test[:200], 2).parts
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    n = len(parts)
    of = {"accuracy": n, "again": total["errors"], "composes": n, "needless": total["calls"]}
    return [total[name] / max(1, of[name]) for name in of]


def behaviours(run):
    """After training, and before, marked @0."""
    found = dict(zip(BEHAVIOURS, behaviours_of(str(run.final))))
    before = zip(BEHAVIOURS, behaviours_of(str(run.base)))
    return found | {f"{name}@0": value for name, value in before}
