"""reasoning_claims.py - self-correction, three ways of thinking too long, and a process reward that is hacked: claims of
"Reward Design for Reasoning" on bases that slip (start.py). The command: see claim.py, under chapter_claims."""

import functools
import re
import statistics

import numpy as np

import verifiers
from model import load
from notebooks.claims.checks import Check, has_none, reaches, rises
from notebooks.claims.claim import Claim
from notebooks.claims.measures import FILLER, kinds_of
from notebooks.claims.rlvr_claims import REWARD, arm
from notebooks.claims.start import paid_for
from notebooks.models.make_tiny import carried_on, steps_of
from notebooks.rewards.process import process_model
from rlvr import GRPO, roll_out

METHOD = GRPO(max_new_tokens=80)
OWN = "--reward notebooks/claims/reasoning_claims.py"
# Each problem comes once, so that the accuracy of a step's samples is that on new problems, and next to none are held out.
CURVES = {"flags": "--eval-every 60 --eval-problems 20", "steps": 60, "over": "step", "every": 3}
SHARE = 0.05  # noise of a share: twice sqrt(0.25 / 384), of the first three steps' completions


def slipping(flags=""):
    return arm(flags, "slipping")


pay_waits = paid_for(0.5, lambda sample: len(re.findall(r"wait \d", sample["completion"])))
pay_detours = paid_for(0.5, lambda sample: kinds_of(sample)[0].count("excursion"))
pay_fillers = paid_for(0.1, lambda sample: len(re.findall(FILLER, kinds_of(sample)[1])))


def grows(arm, column="accuracy", by=0.3):
    """From the first three steps to the last ten."""
    sentence = f"{arm}: {column} grows by {by:g}"
    return Check(sentence, lambda x: x(arm, column) - x(arm, f"{column}@start"), by, SHARE)


def above(arm, other, column="accuracy", by=0.2):
    return Check(
        f"{column}: {arm} is {by:g} above {other}",
        lambda x: x(arm, column) - x(other, column),
        *(by, SHARE),
    )


OUTCOME = slipping()

# ---- noticing: does a reward for the answer select who notices slips? ------------------------------


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
    step = roll_out(METHOD, model, tokenizer, task, begun, samples)
    found = [text.startswith(begun[row // samples]["right"]) for row, text in enumerate(step.texts)]
    boxes = map(verifiers.extract_boxed_answer, step.texts)
    ends = [box == begun[row // samples]["answer"] for row, box in enumerate(boxes)]
    found, ends = (np.reshape(each, (-1, 2, samples)).mean((0, 2)) for each in (found, ends))
    return {"noticed": found[0], "saved": ends[0], "false alarms": found[1]}


def noticing(run):
    """After training, and before, marked @0; of the arms that are not paid for length."""
    if run.arm in KINDS:
        return {}
    before = planted(str(run.base)).items()
    return planted(str(run.final)) | {f"{name}@0": value for name, value in before}


KINDS = {"pay waits": "doubting", "pay detours": "excursion", "pay fillers": "padding"}


def longer(arm, by=0.25):
    column = "completion_length"
    sentence = f"{arm}: {by:.0%} longer than outcome"
    return Check(sentence, lambda x: x(arm, column) / x("outcome", column) - 1, by, 0.05)


SLIPS = Claim(
    name="slips",
    sentence="A reward for the answer selects noticing one's slips; and thinking gets too long in three ways that can be "
    "told apart: padding, repeated self-correction (doubting), excursion.",
    source="reward design, length dynamics",
    doubt="A base whose slips cannot be unlearned, and problems on which a second look or a detour pays.",
    arms={
        "outcome": OUTCOME,
        "random": slipping(f"{REWARD}:coin"),
        "pay waits": slipping(f"{OWN}:pay_waits"),
        "pay detours": slipping(f"{OWN}:pay_detours"),
        "pay fillers": slipping(f"{OWN}:pay_fillers"),
    },
    checks={
        "a planted slip is noticed more often": [
            rises("outcome", 0.2, column="noticed"),
            above("outcome", "random", "noticed"),
        ],
        "own slips are corrected more often": [grows("outcome", "corrected", 0.2)],
        "and are fewer": [
            Check(
                "outcome: half of the slips are gone",
                lambda x: 1 - x("outcome", "slips") / x("outcome", "slips@start"),
                *(0.5, 0.1),
            )
        ],
        "each way of too long grows where it is paid": [
            grows(arm, kind) for arm, kind in KINDS.items()
        ],
        "and there more than where another is": [
            above(arm, other, kind, 0.3)
            for arm, kind in KINDS.items()
            for other in KINDS
            if other != arm
        ],
        "length alone does not tell them apart": [longer(arm) for arm in KINDS],
        "controls": [
            grows("outcome"),
            rises("random", 0.2, same=True, column="noticed"),
            reaches("outcome", "noticed@0", 0.3, SHARE),
            *(has_none("outcome", kind, 0.2, SHARE) for kind in KINDS.values()),
        ],
    },
    columns=(
        *("accuracy@start", "accuracy", "noticed@0", "noticed", "saved@0", "saved"),
        *("false alarms", "slips@start", "slips", "corrected@start", "corrected"),
        *("padding@start", "padding", "doubting@start", "doubting", "excursion@start", "excursion"),
        *("completion_length@start", "completion_length", "truncated"),
    ),
    panels=("accuracy", "corrected", "padding", "doubting", "excursion", "completion_length"),
    measure=noticing,
    **CURVES,
)

# ---- prm: a process reward model as the reward -----------------------------------------------------

PROCESS = "--method notebooks/rewards/process.py"


@functools.cache
def scores_of(folder, problems=200):
    """What the process model says of the steps of held-out completions: mean, and sum; how many steps there are; and as a
    sample what was said to the first problem."""
    model, tokenizer = load(folder)
    task = verifiers.arithmetic()
    step = roll_out(METHOD, model, tokenizer, task, task.test[:problems])
    asked = [problem["problem"] for problem in step.problems]
    found = [process_model()(*pair) or [0.0] for pair in zip(asked, step.texts)]
    return {
        "score": statistics.fmean(map(statistics.fmean, found)),
        "sum": statistics.fmean(map(sum, found)),
        "steps": statistics.fmean(map(len, found)),
        "sample": asked[0] + step.texts[0],
    }


def scores(run):
    before = scores_of(str(run.base)).items()
    return scores_of(str(run.final)) | {f"{name}@0": value for name, value in before}


PRM = Claim(
    name="prm",
    sentence="A process reward model is hacked: what it pays rises, and right answers do not follow.",
    source="reward design, outcome and process rewards; verifiers, PRM and ORM",
    doubt="A process model that has seen the policy's own errors, or is trained again on the way.",
    arms={
        "outcome": OUTCOME,
        **{total: slipping(f"{PROCESS} --total {total}") for total in ("mean", "sum")},
    },
    checks={
        "paid the mean of the steps": [
            rises("mean", 0.2, column="score"),
            above("outcome", "mean"),
        ],
        "paid their sum": [
            rises("sum", 1.0, column="sum"),
            above("sum", "outcome", "steps", 1.0),
            above("outcome", "sum"),
        ],
        "controls": [grows("outcome")],
    },
    columns=(
        *("accuracy@start", "accuracy", "score@0", "score", "sum@0", "sum", "steps@0", "steps"),
        *("slips", "doubting", "excursion", "completion_length", "truncated"),
    ),
    panels=("accuracy", "completion_length", "slips"),
    measure=scores,
    **CURVES,
)

CLAIMS = [SLIPS, PRM]
