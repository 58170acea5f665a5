"""process.py - process rewards (chapter 15). Are the equations of a completion right (verify_steps)? Without labels:
how often does a prefix still lead to the answer (shares)?

    python train.py --reward notebooks/rewards/process.py:steps_reward

A process reward model needs a label for each step, and people are expensive. In Math-Shepherd
(arXiv 2312.08935) a model makes the labels: it continues each prefix N times, and the right answers
are counted.

    soft label of step k   share of right answers among N continuations of the first k steps
    hard label             1 if any of them is right

At a wrong step the share falls. The model that continues must be trained already: it has to solve
the problem from a good prefix. Only the true answer is needed, for the usual verifier of
outcomes. The price is N completions per step. Notebook 3 measures how often this finds the step.
"""

import contextlib
import functools
import re
import statistics
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
import torch.nn.functional as F

from appendix.plumbing import option
from model import load
from rlvr import GRPO, group_advantages, roll_out, sample
from verifiers import arithmetic, explain_grade, extract_boxed_answer, split_tags, tagged_reward

TINY = Path(__file__).resolve().parents[1] / "tiny"

# ---- Right steps -----------------------------------------------------------------------------------

MAX_STEPS = 60  # equations read in one completion
_NAMED = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt pi".split()
_KNOWN = {*_NAMED, *"frac dfrac tfrac cdot times div left right".split()}
_BREAK = re.compile(r"[;\n≈→。；，：]|\\\\|=>|->|[.,:](?=\s|$)")
_PROSE = re.compile(
    rf"(?<![A-Za-z\\])(?!(?:{'|'.join(_NAMED)})(?![A-Za-z]))[A-Za-z]{{2,}}"
    r"|[<>!]=|==|[^\x00-\x7f×÷−·√π²³]+"
)
_SPOKEN = re.compile(
    r"(?i)%|\b(?:of|plus|minus|times|over|by|half|twice|double|squared|cubed|mod)\b"
)


def verify_steps(rollout: str) -> dict:
    """Return a dict. equations: how many the thinking has; hold: how many of them hold; frac: their
    share, a process reward in code.

    In 66+3=69;69+2=72 one of two equations holds; a chain a=b=c is two. These do not count: an
    equation with a free variable (2x=6), one that cannot be read or was stated before, and 1=1:
    repeating is no work. Two limits: each equation is read alone, so 2x=10+4=14 passes after 2x+4=10;
    and easy equations dilute a wrong one, so keep the weight small. About MAX_STEPS equations are
    read at most, in the think block or, if there is none, in the whole text.
    """
    tags = split_tags(rollout)
    verdicts = {}
    for line in _BREAK.split(tags[0] if tags else rollout):
        if "=" not in line or len(verdicts) >= MAX_STEPS or _SPOKEN.search(line):
            continue
        # \0 marks where words were.
        sides = _PROSE.sub("\0", line.replace("&", "")).split("=", MAX_STEPS)
        for pair in map(_beside, sides, sides[1:]):
            if pair not in verdicts:
                verdicts[pair] = _holds(*pair)
    counted = [holds for holds in verdicts.values() if holds is not None]
    frac = sum(counted) / max(1, len(counted))
    return {"equations": len(counted), "hold": sum(counted), "frac": frac}


def _beside(left, right):
    """Return the sides of an equals sign up to the next words: "so 2+3", "5 and" -> "2+3", "5". If
    a word is part of a side, as in cost - 3 = 5 or floor(7/2) = 3, both are empty."""
    (_, word, left), (right, _, rest) = left.rpartition("\0"), right.partition("\0")
    torn = word and left.strip()[:1] in [*"+-*/^("] or rest.strip()[:1] in [*"+-*/^"]
    return ("", "") if torn else ("".join(left.split()), "".join(right.split()))


def _holds(left, right):
    """Return True or False for a statement about numbers, None for anything else."""
    words = {*re.findall("[A-Za-z]+", left), *re.findall("[A-Za-z]+", right)}
    if not words <= _KNOWN or max(len(left), len(right)) > 60:
        return None
    (holds, rung, *_), (_, other, *_) = explain_grade(left, right), explain_grade(right, left)
    if rung == "string" or rung == "decimal" and holds:  # 5=5.0: trivial
        return None
    return holds if {rung, other} <= {"decimal", "spelling", "number"} else None


def steps_reward(completion, problem):
    """tagged_reward + 0.05 times the share of equations that hold: too little for easy equations
    to pay off."""
    reward, parts = tagged_reward(completion, problem)
    steps = verify_steps(completion)["frac"] if parts["format"] else 0.0
    return reward + 0.05 * steps, parts | {"steps": steps}


def steps_score(completion, problem):
    """Return the share of equations that hold, or 0 without the tagged form."""
    return verify_steps(completion)["frac"] if split_tags(completion) else 0.0


# ---- Steps that still lead to the answer -----------------------------------------------------------

_NUMBER = re.compile(r"-?\d{1,15}(?:[./]\d{1,15})?")


def prefixes(completion: str) -> list[str]:
    """Return the completion up to each of its steps, from no step to the whole thinking:
    "<think>1+2=3;3+4=7</think>.." -> ["<think>", "<think>1+2=3;", "<think>1+2=3;3+4=7"]."""
    start = completion.find("<think>") + len("<think>") if "<think>" in completion else 0
    thinking, _, _ = completion.partition("</think>")
    ends = [i + 1 for i in range(start, len(thinking)) if thinking[i] in ";\n"]
    ends = [start, *ends, len(thinking)]
    return [completion[:end] for end in sorted(set(ends))]


def shares(model, tokenizer, task, problem, texts, N=16, max_new_tokens=80):
    """Return, for each text, the share of right answers among N continuations of it."""
    prompt = task.prompt(problem)
    starts = [tokenizer.encode(prompt + text) for text in texts]
    rollouts = sample(model, starts, N, max_new_tokens)
    right = []
    for row, (ids, finished) in enumerate(zip(rollouts.completions(), rollouts.finished.tolist())):
        completion = texts[row // N] + tokenizer.decode(ids)
        accuracy = task.reward(completion, problem)[1]["accuracy"]
        right.append(accuracy if finished else 0.0)
    return [sum(right[i : i + N]) / N for i in range(0, len(right), N)]


def wrong_step(found: list[float], keeps=0.5):
    """Return the first step after which less than `keeps` of the share before it is left, or None.

    found[0] is the share before the first step. Example: 0.9, 0.95, 0.1, 0.05 -> 2. The first fall
    names the wrong step. Later steps are not named: once the share is 0, it cannot fall further.
    """
    falls = (k for k in range(1, len(found)) if found[k] < keeps * found[k - 1])
    return next(falls, None)


def last_number(text: str):
    """Return the last number of a text as a Fraction, or None."""
    with contextlib.suppress(IndexError, ZeroDivisionError):  # no number; 3/0
        return Fraction(_NUMBER.findall(text)[-1])


def string_judge(completion, problem):
    """Return 1 if the last box has the truth letter by letter. It computes nothing, so there is no
    grader to fool."""
    said = extract_boxed_answer(completion)
    right = float(said is not None and said.replace(" ", "") == problem["answer"].replace(" ", ""))
    return right, {"accuracy": right, "answered": float(said is not None)}


def majority_judge(model, tokenizer, task, N=16, max_new_tokens=80):
    """Return a reward that does not know the true answer, for guards.robust_reward. It solves the
    problem N times itself, and gives 1 to completions that end with the most frequent final number
    of its own solutions."""

    @functools.cache
    def own_answer(text):
        ids = tokenizer.encode_prompt(task.prompt({"problem": text}))
        rollouts = sample(model, [ids], N, max_new_tokens)
        return statistics.mode(last_number(tokenizer.decode(ids)) for ids in rollouts.completions())

    def judge(completion, problem):
        said = last_number(completion)
        right = float(said is not None and said == own_answer(problem["problem"]))
        return right, {"accuracy": right, "answered": float(said is not None)}

    return judge


# ---- A process reward model ------------------------------------------------------------------------
# Small on purpose: the tiny base, frozen, and a logistic regression on its hidden state at the end of a step. It models
# how the base's own samples go on, so it knows only the kinds of wrong steps that occur in them.


@torch.no_grad()
def at_steps(model, tokenizer, problem, completion):
    """Return the hidden state at the end of each step: (steps, C). A completion without steps has none."""
    prompt = tokenizer.encode(problem)
    ends = [len(prompt + tokenizer.encode(text)) - 1 for text in prefixes(completion)[1:]]
    ids = torch.tensor([prompt + tokenizer.encode(completion)])
    return model(ids, head=lambda hidden, weight: hidden)[0, ends]


def fit(states, labels, decay=1e-3, steps=200):
    """Fit a logistic regression to states (n, C) and soft labels (n) -> weight (C), bias."""
    weight = torch.zeros(states.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(states @ weight + bias, labels)
        (loss + decay * weight.square().sum()).backward()
        optimizer.step()
    return weight.detach(), bias.detach()


@functools.cache
def process_model(problems=40, samples=8, N=8):
    """Train on steps of the tiny base and the shares of right answers when they are continued (about ten seconds).
    Returns a function (problem, completion) -> scores of its steps, 0 to 1."""
    model, tokenizer = load(str(TINY))
    task = arithmetic()
    batch = roll_out(
        GRPO(max_new_tokens=80), model, tokenizer, task, task.train[:problems], samples
    )
    states = []
    labels = []
    for place, problem in enumerate(batch.problems):
        begun = []
        for text in dict.fromkeys(batch.texts[place * samples : (place + 1) * samples]):
            states.append(at_steps(model, tokenizer, problem["problem"], text))
            begun += prefixes(text)[1:]
        with torch.random.fork_rng():
            torch.manual_seed(place)
            labels += shares(model, tokenizer, task, problem, begun, N) if begun else []
    weight, bias = fit(torch.cat(states), torch.tensor(labels))

    def scores(problem, completion):
        return (at_steps(model, tokenizer, problem, completion) @ weight + bias).sigmoid().tolist()

    return scores


TOTALS = {"mean": statistics.fmean, "min": min, "sum": sum}


class ProcessReward(GRPO):
    """GRPO that rewards the process model's scores of the steps, in place of the task's reward. The answer does not
    count. A completion that was cut off, or has no step, earns 0. (This is a method, because the process model must
    be trained first.)"""

    @dataclass
    class Settings(GRPO.Settings):
        total: str = option("mean", "how to combine the scores of the steps: mean, min, sum")

    def setup(self, model, tokenizer):
        self.scores = process_model()
        return super().setup(model, tokenizer)

    def advantages(self, batch):
        total = TOTALS[self.settings.total]
        G = len(batch.texts) // len(batch.problems)
        asked = [problem["problem"] for problem in batch.problems for _ in range(G)]
        found = [self.scores(*pair) for pair in zip(asked, batch.texts)]
        whole = batch.rollouts.finished.tolist()
        paid = [total(some) if some and end else 0.0 for some, end in zip(found, whole)]
        self.seen = {"prm": statistics.fmean(paid), "steps": statistics.fmean(map(len, found))}
        return group_advantages(torch.tensor(paid).view(-1, G), self.settings.scale)

    def after_step(self, row, model):
        row |= self.seen
