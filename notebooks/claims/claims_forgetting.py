"""claims_forgetting.py - claim 7: at the same accuracy, does RL forget less than supervised training?

    python -m notebooks.claims.claims_forgetting --seeds 3        trains what claims_distill.py has not

RL is claims_distill.py's GRPO. Supervised training shows the base worked solutions, plain ones or Chinese ones, and
stops at the first evaluation at which it is as accurate as RL is in the end. What the base could do before is its
habits (make_tiny.py): how surprised is each by them, and can it still work a sum out in Chinese if it is begun so?
"""

import dataclasses
import functools
import math
import random
import time

import torch
import torch.nn.functional as F

from notebooks.claims import claims_distill
from notebooks.claims import experiments as lab
from notebooks.models import make_tiny
import verifiers
from notebooks.claims.trial import (
    TUNING,
    Trial,
    base_of,
    best,
    finish,
    print_costs,
    read_options,
    run,
)
from eval import evaluate
from model import load
from rlvr import GRPO, row_uniforms, sample, token_logprobs

METHOD = GRPO(max_new_tokens=80)
LABELS = {"sft": "worked", "sft, Chinese": "bilingual"}
RATES = (3e-4, 1e-3)  # of supervised training, the two tries
EVERY = 5  # steps between its evaluations
MOST = 400  # steps
OTHERS = (
    "direct",
    "rambling",
    "several boxes",
    "no tags",
    "no box",
)  # habits that no arm is taught


@functools.cache
def task():
    return verifiers.arithmetic()


def accuracy(model, tokenizer, problems=200, samples=2):
    """Held out, sampled."""
    asked = task().test[:problems]
    found, _ = evaluate(METHOD, model, tokenizer, task(), asked, samples, 1.0)
    return found["accuracy"]


def supervised(base, behaviour, rate, goal, seed):
    """Train on demonstrations of one behaviour until sampled accuracy is the goal -> (model, steps)."""
    model, tokenizer = load(str(base))
    rng = random.Random(f"sft {seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(1, MOST + 1):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, step / 5)
        ids, mask = make_tiny.demonstration_batch(tokenizer, task().train, {behaviour: 1.0}, rng)
        logits = model(ids[:, :-1]).transpose(1, 2)
        loss = F.cross_entropy(logits, ids[:, 1:], reduction="none") * mask  # (B, T-1)
        (loss.sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 0 and accuracy(model, tokenizer) >= goal:
            return model, step
    return model, math.inf


@torch.no_grad()
def measure(model, base, tokenizer):
    """right: accuracy; kl: KL(base || model) in nats a completion of the base; other text: how many nats a token more
    surprised it is by the base's other habits than the base; old skill: right in Chinese, if begun so."""
    prompts = [tokenizer.encode_prompt(problem["problem"]) for problem in task().test[:100]]
    uniforms = row_uniforms(range(400), 80, 0)  # the same completions each time
    rollouts = sample(base, prompts, 4, 80, uniforms=uniforms)
    gap = rollouts.logp - token_logprobs(model, rollouts.ids, 1.0, rollouts.mask)
    rng = random.Random("other text")
    shares = dict.fromkeys(OTHERS, 1.0)
    ids, mask = make_tiny.demonstration_batch(tokenizer, task().test, shares, rng, 200)
    surprise = token_logprobs(base, ids, 1.0, mask) - token_logprobs(model, ids, 1.0, mask)
    return {
        "right": accuracy(model, tokenizer, 200, 4),
        "kl": float((gap * rollouts.mask).sum(1).mean()),
        "other text": float(surprise.sum() / mask.sum()),
        "old skill": old_skill(model, tokenizer),
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


def less(column, by, what, noise, arm="sft"):
    """How much more of the column supervised training has than RL."""
    return lab.Check(what, lambda x: x(arm, column) - x("rl", column), by, noise)


TRIAL = Trial(
    name="forgetting",
    claim="At the same accuracy RL is nearer to its base than supervised training, and forgets less.",
    source="RL's Razor, 2509.04259 (read: the abstract, and the forward KL on the new task)",
    change_our_mind=(
        "A model with skills apart from its task: all that this one knows is ways to answer one kind of sum, so that "
        "to choose one way is to forget the others, by whatever method."
    ),
    claims={
        "claim": [
            less(
                "kl",
                2.0,
                "KL(base || model) is 2 nats a completion smaller after RL than after SFT",
                0.3,
            ),
            less("other text", 0.2, "other habits surprise it by 0.2 nats a token less", 0.02),
            lab.Check(
                "of an old skill RL keeps 10 points more",
                lambda x: x("rl", "old skill") - x("sft", "old skill"),
                0.1,
                lab.POINTS,
            ),
        ]
    },
    controls=[
        lab.Check(
            "RL and SFT are equally right (10 points would refute it)",
            lambda x: x("rl", "right") - x("sft", "right"),
            0.1,
            lab.POINTS,
            same=True,
        ),
        lab.Check(
            "labels further from the base (Chinese) leave a KL that is larger by 2 nats",
            lambda x: x("sft, Chinese", "kl") - x("sft", "kl"),
            2.0,
            0.3,
        ),
        lab.Check(
            "the base has the old skill (half of the sums, in Chinese)",
            lambda x: x("base", "old skill"),
            0.5,
            lab.POINTS,
        ),
    ],
    columns=("right", "kl", "other text", "old skill", "sft steps"),
    panels={"right": "held-out accuracy", "kl": "KL(base || model), nats a completion"}
    | {"other text": "other habits: nats a token more", "old skill": "right in Chinese, begun so"},
)


def rate_of(behaviour, goal, options):
    """The rate that needs fewer steps to the goal, on the seed that is not counted."""
    base = base_of("usual", TUNING, options.runs)
    steps = {rate: supervised(base, behaviour, rate, goal, TUNING)[1] for rate in RATES}
    return min(steps, key=steps.get)


def rows_of(options, seeds):
    distill = claims_distill.TRIAL
    times = best(distill, "grpo", options)
    final = run(distill, "grpo", TUNING, times, options) / "final"
    goal = accuracy(*load(str(final)))
    rates = {arm: rate_of(behaviour, goal, options) for arm, behaviour in LABELS.items()}
    rows = []
    for seed in seeds:
        folder = base_of("usual", seed, options.runs)
        base, tokenizer = load(str(folder))
        after, _ = load(str(run(distill, "grpo", seed, times, options) / "final"))
        began = time.perf_counter()
        common = {"seed": seed, "sft steps": 0}
        rows.append({"arm": "base", **common, **measure(base, base, tokenizer)})
        rows.append({"arm": "rl", **common, **measure(after, base, tokenizer)})
        goal = rows[-1]["right"]
        for arm, behaviour in LABELS.items():
            model, steps = supervised(folder, behaviour, rates[arm], goal, seed)
            row = {"arm": arm, **common, "sft steps": steps, "rate": rates[arm]}
            rows.append(row | measure(model, base, tokenizer))
        for row in rows[-4:]:
            row["seconds"] = (time.perf_counter() - began) / 4
    return rows


if __name__ == "__main__":
    options = read_options(TRIAL)
    print_costs(TRIAL, options)
    if not options.costs:
        finish(TRIAL, options, rows_of(options, [*range(options.seeds)]))
