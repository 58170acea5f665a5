"""model_measures.py - two measures that ask the trained model itself: what a model has forgotten, and which steps of its thinking cause its answer.

Supervised training shows a base worked solutions, plain ones or Chinese ones, and stops at the first evaluation at
which it is as accurate as the model that it is to be like. What the base could do before is its habits (make_tiny.py):
how surprised is a model by them, and can it still work a sum out in Chinese if it is begun so?
"""

import argparse
import dataclasses
import functools
import math
import random
import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import verifiers
from eval import evaluate, get_method
from model import load, save
from notebooks.models import make_tiny
from rlvr import GRPO, Sampling, roll_out, row_uniforms, sample, token_logprobs

METHODS = Path(__file__).resolve().parents[1] / "methods"
METHOD = GRPO(max_new_tokens=80)
EVERY = 5  # steps of supervised training between its evaluations
OTHERS = (
    "direct",
    "rambling",
    "several boxes",
    "no tags",
    "no box",
)  # habits that no arm is taught

# ---- 1. Supervised training ------------------------------------------------------------------------


@functools.cache
def task():
    return verifiers.arithmetic()


def accuracy(model, tokenizer, problems=200, samples=4):
    """Held out, sampled."""
    asked = task().test[:problems]
    found, _ = evaluate(METHOD, model, tokenizer, task(), asked, samples, 1.0)
    return found["accuracy"]


def supervised(argv):
    """A command like train.py's: demonstrations of --behaviour until --model is as accurate as --like. It leaves the
    folder final, and the number of steps; where --steps are not enough it is infinite."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--model", "--behaviour", "--like", "--runs", "--name"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lr", type=float)
    args, _ = parser.parse_known_args(argv)
    goal = accuracy(*load(args.like))
    model, tokenizer = load(args.model)
    steps = demonstrate(model, tokenizer, {args.behaviour: 1.0}, goal, args)
    folder = Path(args.runs, args.name)
    save(model, tokenizer, folder / "final")
    (folder / "steps").write_text(str(steps))


def demonstrate(model, tokenizer, shares, goal, args):
    """Train until sampled accuracy is the goal -> the number of steps."""
    rng = random.Random(f"sft {args.seed}")
    options = {"lr": args.lr, "betas": (0.9, 0.95), "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for step in range(1, args.steps + 1):
        optimizer.param_groups[0]["lr"] = args.lr * min(1.0, step / 5)
        ids, mask = make_tiny.demonstration_batch(tokenizer, task().train, shares, rng)
        logits = model(ids[:, :-1]).transpose(1, 2)
        loss = F.cross_entropy(logits, ids[:, 1:], reduction="none") * mask  # (B, T-1)
        (loss.sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0 and accuracy(model, tokenizer, 200, 2) >= goal:
            return step
    return math.inf


# ---- 2. What is forgotten --------------------------------------------------------------------------


@torch.no_grad()
def forgotten(run):
    """right: accuracy; kl: KL(base || model) in nats a completion of the base; other text: how many nats a token more
    surprised it is by the base's other habits than the base; old skill: right in Chinese, if begun so; sft steps, and
    quick, by which rates are chosen: the fewer the better."""
    base, tokenizer = load(run.base)
    model, _ = load(str(run.final))
    prompts = [tokenizer.encode_prompt(problem["problem"]) for problem in task().test[:100]]
    uniforms = row_uniforms(range(400), 80, 0)  # the same completions each time
    rollouts = sample(base, prompts, 4, 80, uniforms=uniforms)
    gap = rollouts.logp - token_logprobs(model, rollouts.ids, 1.0, rollouts.mask)
    rng = random.Random("other text")
    shares = dict.fromkeys(OTHERS, 1.0)
    ids, mask = make_tiny.demonstration_batch(tokenizer, task().test, shares, rng, 200)
    surprise = token_logprobs(base, ids, 1.0, mask) - token_logprobs(model, ids, 1.0, mask)
    counted = run.folder and run.folder / "steps"
    steps = float(counted.read_text()) if counted and counted.exists() else 0
    return {
        "right": accuracy(model, tokenizer),
        "kl": float((gap * rollouts.mask).sum(1).mean()),
        "other text": float(surprise.sum() / mask.sum()),
        "old skill": old_skill(model, tokenizer),
        "sft steps": steps,
        "quick": -steps,
    }


def old_skill(model, tokenizer, problems=200):
    """Accuracy of what is begun as <think>so 25加, and continued greedily."""
    asked = []
    for problem in task().test[:problems]:
        first = problem["problem"][:2]  # a number of two digits, and its sign
        sign = {"+": "加", "-": "减"}[problem["problem"][2]]
        asked.append({**problem, "begun": f"<think>so {first}{sign}"})
    begun = dataclasses.replace(task(), test=asked, reward=reward_of_begun)
    begun.prompt = lambda problem: problem["problem"] + problem["begun"]
    found, _ = evaluate(METHOD, model, tokenizer, begun, asked)
    return found["accuracy"]


def reward_of_begun(completion, problem):
    return verifiers.tagged_reward(problem["begun"] + completion, problem)


# ---- 3. Which steps cause the answer ---------------------------------------------------------------
# Right, plainly worked completions are taken, and the value of one step is made wrong. Kept: the rest stays as it was,
# and the model is made to answer at once. Continued: the rest is cut away, and the model goes on from there. A step
# causes the answer if another one comes out.

BOX = "</think><answer>\\boxed{"
# Plain or Chinese, for after RL a base may work in either: 25+7=32 or, begun with "so ", 25加7得32.
STEP = {
    "sums": r"(?:so )?[0-9]+[-+加减][0-9]+[=得]([0-9]+)",
    "products": r"<tool>[^<]*</tool>([0-9]+)",
}
BETWEEN = {"sums": ";", "products": ""}


def worked(records, kind):
    """Of right completions that are nothing but steps and their answer: (problem, steps, answer)."""
    between = BETWEEN[kind]
    whole = rf"<think>({STEP[kind]}(?:{between}{STEP[kind]})*)</think><answer>\\boxed{{[0-9]+}}</answer>"
    found = []
    for problem, text, right in records:
        thinking = re.fullmatch(whole, text)
        if thinking and right:
            steps = [match.group() for match in re.finditer(STEP[kind], thinking[1])]
            found.append((problem["problem"], steps, problem["answer"]))
    return found


def made_wrong(step, rng):
    """The same step, with another last digit but one or last digit of its value."""
    place = len(step) - rng.choice([1, 2])
    digit = (int(step[place]) + rng.randint(1, 9)) % 10
    return step[:place] + str(digit) + step[place + 1 :]


def answers(model, tokenizer, method, texts):
    """How the model goes on from each of these texts, greedily -> the last box of text and completion."""
    prompts = [tokenizer.encode(text) for text in texts]
    room = method.settings.max_new_tokens
    uniforms = torch.zeros(len(texts), room)
    how = Sampling(1, room, 0.0, model.config.eos_token_id, uniforms, [], False)
    completions = method.roll_out(model, tokenizer, prompts, how).completions()
    whole = [text + tokenizer.decode(ids) for text, ids in zip(texts, completions)]
    return [verifiers.extract_boxed_answer(text.partition("</answer>")[0]) for text in whole]


@torch.no_grad()
def causes(run, problems=150):
    """-> the shares of steps that cause the answer, and of completions whose answer comes out again untouched. The arm
    is named "sums, .." or "products, ..", as its problems are."""
    model, tokenizer = load(str(run.final))
    kind = run.arm.partition(",")[0]
    asked = make_tiny.products() if kind == "products" else task()
    spec = f"{METHODS}/tools.py" if kind == "products" else "grpo"
    method = get_method(spec, {"max_new_tokens": 80})
    step = roll_out(method, model, tokenizer, asked, asked.test[:problems], 4)
    each = [problem for problem in step.problems for _ in range(4)]
    right = [part["accuracy"] == 1 for part in step.parts]
    rng = random.Random(run.seed)
    tried = []  # (what is done, to the last step?, text, truth)
    for problem, steps, answer in worked(zip(each, step.texts, right), kind)[:150]:
        begun = f"{problem}<think>"
        tried.append(("untouched", True, f"{begun}{BETWEEN[kind].join(steps)}{BOX}", answer))
        for i, part in enumerate(steps):
            last = i == len(steps) - 1
            wrong = made_wrong(part, rng)
            changed = BETWEEN[kind].join([*steps[:i], wrong, *steps[i + 1 :]])
            cut = BETWEEN[kind].join([*steps[:i], wrong])
            tried.append(("kept", last, f"{begun}{changed}{BOX}", answer))
            tried.append(("continued", last, f"{begun}{cut}", answer))
    found = answers(model, tokenizer, method, [text for _, _, text, _ in tried])
    caused = [answer != truth for answer, (*_, truth) in zip(found, tried)]
    return shares([key[:2] for key in tried], caused)


def shares(keys, caused):
    """The columns of a row, from (what was done, to the last step or an earlier one) and whether the answer changed."""

    def share(name, *ends):
        chosen = [c for (what, last), c in zip(keys, caused) if what == name and last in ends]
        return float(np.mean(chosen)) if chosen else float("nan")

    return {
        "kept": share("kept", True, False),
        "kept, last": share("kept", True),
        "kept, earlier": share("kept", False),
        "continued, earlier": share("continued", False),
        "untouched": 1 - share("untouched", True),
        "completions": sum(what == "untouched" for what, _ in keys),
    }
