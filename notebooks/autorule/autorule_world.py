"""autorule_world.py - the laboratory of AutoRule: seven experiments in a simulated world.

    python -m notebooks.autorule.autorule_world [name]    train what is missing, print tables and verdicts

No teacher of the paper's size runs on a laptop, so the world is *simulated*: completions and training
are those of the tiny base, but the user who prefers, the teacher who gives reasons and the judge are
programs (section 1) with error rates that we chose, who share a list of concepts. Prompts, parsing,
merging, reward model and GRPO are real. So this shows what the method does *if* teacher and judge are
as good as stated, not that a language model is. N responses or pairs, K rules.
"""

import argparse
import functools
import json
import math
import os
import random
import re
from pathlib import Path

import numpy as np
import torch

import train
from model import load
from notebooks.autorule import autorule
from notebooks.autorule.autorule import agreement, alignment, correlation, margins
from notebooks.autorule.autorule_tools import (
    CONCISE_RULE,
    DIMENSIONS,
    Asked,
    Simulated,
    fields_of,
    length_penalty,
)
from notebooks.claims.seeds import train_seed
from rlvr import row_uniforms, sample
from verifiers import arithmetic

ROOT = Path(__file__).resolve().parents[2]

TINY = str(ROOT / "notebooks" / "tiny")

# ---- 1. The simulated world ----------------------------------------------------------------------


def right(prompt, text):
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    return bool(boxes) and int(boxes[-1]) == sum(map(int, re.findall(r"[+-]?\d+", prompt)))


def has(pattern, least=1, most=math.inf):
    """Does a response have the pattern so many times?"""
    return lambda prompt, text: least <= len(re.findall(pattern, text)) <= most


# What the user cares about: does a response have it, its weight, and how a teacher may put it.
CONCEPTS = {
    "right": (right, 3, ["The number in the last box is right.", "The result must be correct."]),
    "worked": (has("[=得]"), 1, ["Each step is shown.", "Intermediate results are written down."]),
    "form": (
        has("^<think>.*</think><answer>.*</answer>$"),
        1,
        ["The tags are kept.", "The form is right."],
    ),
    "one box": (
        has("boxed", 1, 1),
        1,
        ["One result is put into a box.", "The answer commits itself once."],
    ),
    "one script": (
        has("[加减得先再]", 0, 0),
        1,
        ["There is one language.", "No other script is used."],
    ),
    "no filler": (
        has("(?:let|me|think|wait|hmm) ", 0, 2),
        1,
        ["No filler words.", "No phrase is empty."],
    ),
}
# What weighs nothing, but is named in error, or where a preference has no good reason.
CLEAR = "The answer is clear."
IDLE = {
    rule: (check, 0, [rule])
    for rule, check in {
        CLEAR: has(""),
        "The answer is long.": has("^.{60}"),
        "The assistant says hmm.": has("hmm "),
        "The thinking begins with let.": has("<think>let "),
        "The boxed number is even.": has(r"[02468]\}"),
        **{f"The digit {digit} occurs.": has(str(digit)) for digit in range(10)},
    }.items()
}
KNOWN = CONCEPTS | IDLE
CONCEPT_OF = {rule: name for name, (_, _, rules) in KNOWN.items() for rule in rules}
# The judge reads hand-written rules as vaguely as they are worded: nearly all responses satisfy three of
# them (Table 4).
VAGUE = dict(
    zip(
        DIMENSIONS + CONCISE_RULE,
        [has("boxed|answer"), has("boxed"), has("boxed", 0, 2), has("hmm |wait "), has("")],
    )
)


def utility(prompt, text):
    """What a response is worth to the user, from 0 to 1: the gold that no reward sees."""
    return sum(weight * check(prompt, text) for check, weight, _ in CONCEPTS.values()) / 8


class Teacher(Simulated):
    """Names what only the preferred response has; if that is nothing, something idle or that it is clear.
    In error, at the stated rate, it names something else, and a quarter as often gives no list."""

    def say(self, prompt, rng):
        if given := fields_of(autorule.JUSTIFY, prompt):
            sides = (given["a"], given["b"])[:: 1 if given["winner"] == "A" else -1]
            return self.reason(rng, given["winner"], given["prompt"], *sides)
        if given := fields_of(autorule.EXTRACT, prompt):
            rules = re.findall("^- (.*)$", given["reasoning"], re.M)
            return (
                "",
                "I see none." if rng.random() < self.error / 4 else f"Rules:\n{json.dumps(rules)}",
            )
        given = fields_of(autorule.MERGE, prompt)
        names = [CONCEPT_OF[rule[2:]] for rule in given["rules"].split("\n")]
        often = sorted(dict.fromkeys(names), key=names.count, reverse=True)
        limit = re.search(r"\d+", given["limit"])
        kept = (
            often[: int(limit[0])]
            if limit
            else [n for n in often if names.count(n) > 0.02 * len(names)]
        )
        return "", json.dumps([rng.choice(KNOWN[name][2]) for name in kept])

    def reason(self, rng, winner, prompt, better, worse):
        only = [
            name
            for name, (check, *_) in KNOWN.items()
            if check(prompt, better) and not check(prompt, worse)
        ]
        named = [name for name in only if name in CONCEPTS] or [rng.choice([CLEAR, *only])]
        named = [rng.choice([*KNOWN]) if rng.random() < self.error else name for name in named]
        said = [f"- {rng.choice(KNOWN[name][2])}\n" for name in named]
        return f"Only {winner} has these:\n" + "".join(
            said
        ), f"Answer {winner} is better.\n{rng.choice(said)}"


class Judge(Simulated):
    """Yes or No, in error at the stated rate, a tenth as often neither. Concise: up to 90 characters."""

    def say(self, prompt, rng):
        concise = autorule.CONDITIONS[True] in prompt
        given = fields_of(
            autorule.VERIFY.replace("{condition}", autorule.CONDITIONS[concise]), prompt
        )
        rule = given["rule"]
        said = given["completion"]
        check = VAGUE[rule] if rule in VAGUE else KNOWN[CONCEPT_OF[rule]][0]
        yes = check(given["prompt"], said) and (len(said) <= 90 or not concise)
        yes ^= rng.random() < self.error
        return (
            "",
            "It depends." if rng.random() < self.error / 10 else f"[{'Yes' if yes else 'No'}]",
        )


def judge_of(error, seed=0):
    asked = Asked(Judge(error))
    return lambda texts: [
        answer and autorule.read_verdict(answer["text"]) for answer in asked(texts, seed)
    ]


@functools.cache
def world():
    """The tiny base and its problems -> (model, tokenizer, task)."""
    torch.set_num_threads(1)  # its tensors are so small that threads wait for each other
    return *load(TINY), arithmetic()


@functools.cache
def preferences(count, seed, sharpness=2.0, length_bias=0.4):
    """Pairs of different completions. The user prefers by 8 * utility, with the noise of sigmoid(sharpness *
    difference), and, as many do, likes length for its own sake: length_bias for ten tokens more."""
    model, tokenizer, task = world()
    rng = random.Random(f"pairs {seed}")
    pairs = []
    asked = [problem["problem"] for problem in rng.sample(task.train, count)]
    rollouts = sample(
        model,
        [tokenizer.encode(prompt) for prompt in asked],
        2,
        80,
        uniforms=row_uniforms(range(2 * count), 80, f"pairs {seed}"),
    )
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    lengths = rollouts.lengths.tolist()
    for row, prompt in enumerate(asked):
        sides = texts[2 * row : 2 * row + 2]
        a, b = (
            8 * utility(prompt, text) + length_bias * length / 10
            for text, length in zip(sides, lengths[2 * row :])
        )
        chosen, rejected = sides[
            :: 1 if rng.random() < 1 / (1 + math.exp(sharpness * (b - a))) else -1
        ]
        if chosen != rejected:
            pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return pairs


def extracted(seed, num_pairs=256, run=0, **settings):
    return autorule.extract_rules(
        preferences(2000, seed)[:num_pairs], Asked(Teacher(0.1)), run, **settings
    )["rules"]


# ---- 2. Arms: what is changed of GRPO on the reward model with six extracted rules ---------------

USUAL = dict(
    rules=lambda rules: rules[:6],
    source="reasoning",
    alpha=10.0,
    beta=-7.5,
    concise=True,
    error=0.1,
    learned=True,
    penalty=0.0,
)
MODEL = {"rules": lambda rules: [], "alpha": 0.0, "beta": 0.0}
ARMS = {
    "reward model": MODEL,
    "length penalty": MODEL | {"penalty": 1.0},
    "rules": {},
    "true answer": dict(
        rules=lambda rules: CONCEPTS["right"][2], error=0.0, concise=False, learned=False
    ),
    "idle rules": {"rules": lambda rules: [f"The digit {digit} occurs." for digit in range(6)]},
    "no rule on the result": {
        "rules": lambda rules: [rule for rule in rules[:6] if CONCEPT_OF[rule] != "right"]
    },
    "concise rule": {"rules": lambda rules: CONCISE_RULE},
    "dimensions": {"rules": lambda rules: DIMENSIONS},
    "from justifications": {"source": "text"},
    "2 rules": {"rules": lambda rules: rules[:2]},
    "20 rules": {"rules": lambda rules: rules},
    "no conciseness": {"concise": False},
    "no scale": {"alpha": 1.0, "beta": 0.0, "concise": False},
    "error 0.3": {"error": 0.3},
    "error 0.5": {"error": 0.5},
}


@functools.cache
def learned_reward(seed, runs):
    """The reward model that the arms of a seed share, made once, of 2,000 pairs."""
    folder = Path(runs) / f"reward-model-seed{seed}"
    if not folder.exists():
        made = autorule.RewardModel(*load(TINY))
        autorule.train_reward_model(
            made, preferences(2000, seed), 2, batch_size=32, lr=1e-3, seed=seed
        )
        made.save(folder)
    return autorule.RewardModel.load(folder)


def rules_of(arm, seed):
    """The rules that an arm is paid for, in the order of its columns rule_00, rule_01, .."""
    settings = USUAL | ARMS[arm]
    return settings["rules"](extracted(seed, at_most=20, source=settings["source"]))


@functools.cache
def reward_of(arm, seed, runs):
    rules = rules_of(arm, seed)
    arm = USUAL | ARMS[arm]
    learned = learned_reward(seed, runs) if arm["learned"] else None
    rate = autorule.RulesReward(
        rules, judge_of(arm["error"], seed), arm["alpha"], arm["beta"], arm["concise"], learned
    )

    def reward(completion, problem):
        value, parts = rate(completion, problem)
        value -= arm["penalty"] * length_penalty(len(world()[1].encode(completion)), target=32)
        return value, parts | {"gold": utility(problem["problem"], completion)}

    return reward


def reward(completion, problem):
    """For --reward; $AUTORULE_ARM is a JSON list: arm, seed, folder."""
    with autorule.LOADING:
        function = reward_of(*json.loads(os.environ["AUTORULE_ARM"]))
    return function(completion, problem)


FLAGS = (
    "--task arithmetic --prompts-per-step 8 --num-samples 8 --max-new-tokens 80 --lr 1e-3 --kl-coef 0.001 "
    "--micro-batch-tokens 4096 --eval-every 1000 --eval-problems 50 --save-every 1000"
)


def run_arm(arm, seed, steps, runs):
    """Train an arm, unless that is done -> its folder. What train.py prints goes to FOLDER.log."""
    runs = (ROOT / runs).resolve()
    learned_reward(seed, runs)
    os.environ["AUTORULE_ARM"] = json.dumps([arm, seed, str(runs)])
    flags = ["--model", TINY, "--reward", f"{__file__}:reward", "--steps", str(steps)]
    name = f"{arm.replace(' ', '-').replace('.', '')}-{steps}"
    return train_seed(name, seed, runs, [*flags, *FLAGS.split()])


# ---- 3. Experiments ------------------------------------------------------------------------------
# A table is {row: {column: a value for each seed}}; a check is a function of x(row, column).


def numbers(run):
    """Means over the first five steps, the last ten, and the ten of best accuracy; a step has 64 completions
    of problems that are new to the policy. right: accuracy; paid: by the reward model; gold: utility."""
    rows = [row for step, row in train.read_log(run).items() if step > 0]
    right, paid, gold, length = (
        np.array([row[name] for row in rows])
        for name in ("accuracy", "r_model", "gold", "completion_length")
    )
    best = max(range(max(1, len(rows) - 9)), key=lambda start: right[start : start + 10].mean())
    return {
        "right@start": right[:5].mean(),
        "right@best": right[best : best + 10].mean(),
        "right": right[-10:].mean(),
        "paid@best": paid[best : best + 10].mean(),
        "paid": paid[-10:].mean(),
        "gold": gold[-10:].mean(),
        "length": length[-10:].mean(),
    }


def table_of(rows):
    """{row: one dict of numbers a seed} -> a table."""
    return {
        row: {key: np.array([each[key] for each in dicts]) for key in dicts[0]}
        for row, dicts in rows.items()
    }


def trained(*arms):
    return lambda seeds, steps, runs: table_of(
        {arm: [numbers(run_arm(arm, seed, steps, runs)) for seed in seeds] for arm in arms}
    )


def verdicts(seed, error, rules, num_pairs=250, draw=0):
    """On pairs that no rule was read out of -> [chosen (N, K), rejected (N, K)]."""
    pairs = preferences(600, seed + 1000)[:num_pairs]
    judge = judge_of(error, draw)
    said = [
        [autorule.judge_rules(judge, rules, pair["prompt"], pair[side]) for pair in pairs]
        for side in ("chosen", "rejected")
    ]
    # None is no Yes.
    return [np.equal(np.array(side, dtype=object), True).astype(bool) for side in said]


def consistency(seeds, steps, runs):
    def row(seed, error, sets):
        first, *others = [np.concatenate(verdicts(seed, error, rules)) for rules in sets]
        return {
            "agreement": np.mean([agreement(first, other).mean() for other in others]),
            "correlation": np.mean([correlation(first, other) for other in others]),
            "rules": len(sets[-1]),
        }

    five = {seed: [extracted(seed, run=run) for run in range(5)] for seed in seeds}
    rows = {
        f"5 runs, error {error}": [row(seed, error, five[seed]) for seed in seeds]
        for error in (0, 0.1)
    }
    for count in (128, 64, 32):
        rows[f"{count} pairs for 256"] = [
            row(seed, 0, [five[seed][0], extracted(seed, count, 1)]) for seed in seeds
        ]
    return table_of(rows)


def aligned(seeds, steps, runs):
    def row(seed, rules, shuffled=False):
        sides = verdicts(seed, 0.1, rules, 500)
        swap = np.random.default_rng(seed).random((len(sides[0]), 1)) < 0.5 * shuffled
        sides = np.where(swap, *sides[::-1]), np.where(swap, *sides)
        each = alignment(*sides)
        return {
            "alignment": np.nanmean(each),
            "lowest": np.nanmin(each),
            "highest": np.nanmax(each),
            "satisfied": np.mean(sides),
            **dict(zip(("> 0", "= 0", "< 0"), margins(*sides))),
        }

    sets = {f"{count} rules": functools.partial(extracted, at_most=count) for count in (2, 6, 20)}
    sets |= {
        "from justifications": functools.partial(extracted, at_most=6, source="text"),
        "dimensions": lambda seed: DIMENSIONS,
    }
    rows = {name: [row(seed, rules(seed)) for seed in seeds] for name, rules in sets.items()}
    return table_of(
        rows | {"labels shuffled": [row(seed, extracted(seed, at_most=6), True) for seed in seeds]}
    )


def less(arm, than, column, by=0.0):
    """The mean of an arm is lower than that of another, by so much."""
    return lambda x: x(arm, column).mean() < x(than, column).mean() - by


def above(row, column, value):
    return lambda x: x(row, column) > value


def higher(row, than, column, by=0.0):
    """In every seed, by so much."""
    return lambda x: x(row, column) > x(than, column) + by


def rises(arm, column="right", since="right@start", by=0.1):
    return lambda x: x(arm, column) > x(arm, since) + by


def falls(arm):
    """To half of its best."""
    return lambda x: x(arm, "right") <= 0.5 * x(arm, "right@best")


def keeps(arm):
    """It ends within 5 points of its best."""
    return rises(arm, since="right@best", by=-0.05)


TRAINED = {  # the experiments on training: name -> its arms
    "hacking": ("reward model", "rules", "true answer", "idle rules", "no rule on the result"),
    "count": ("2 rules", "rules", "20 rules"),
    "construction": ("rules", "no conciseness", "no scale"),
    "baselines": ("rules", "concise rule", "dimensions", "length penalty", "from justifications"),
    "noise": ("reward model", "rules", "error 0.3", "error 0.5"),
}
MEASURED = {"consistency": consistency, "alignment": aligned}
CLAIMS = {
    "hacking": "GRPO on the reward model alone is hacked, with the rules it is not (5.4).",
    "consistency": "Rules of five runs, and of fewer pairs, agree above 0.9 (5.3).",
    "alignment": "Extracted rules align better than hand-written ones and than chance.",
    "count": "Too few rules and too many are worse (Table 5).",
    "construction": "Without conciseness, and without scaling too, it is worse (Table 5).",
    "baselines": "One rule, four hand-written ones, or those from justifications do less (Tables 1 and 3).",
    "noise": "At which error rate of the judge do rules stop helping? (ours)",
}
CHECKS = {
    "hacking": {
        "accuracy rises": rises("reward model", "right@best"),
        "then falls to half of its best": falls("reward model"),
        "while more is paid": rises("reward model", "paid", since="paid@best", by=0),
        "rules: it ends within 5 points of its best": keeps("rules"),
        "control: on the true answer it does too": keeps("true answer"),
        "control: idle rules: it falls": falls("idle rules"),
        "control: no rule on the result: it falls": falls("no rule on the result"),
    },
    "consistency": {
        "five runs, a judge without error": above("5 runs, error 0", "agreement", 0.9),
        "five runs, the usual judge": above("5 runs, error 0.1", "agreement", 0.9),
        "32 pairs for 256": above("32 pairs for 256", "agreement", 0.9),
        "total scores correlate above 0.95": above("5 runs, error 0", "correlation", 0.95),
    },
    "alignment": {
        "than the dimensions": higher("6 rules", "dimensions", "alignment"),
        "than shuffled labels": higher("6 rules", "labels shuffled", "alignment", 0.05),
        "than rules from justifications": less("from justifications", "6 rules", "alignment"),
        "of more rules fewer pairs are undecided (Table 7)": less("20 rules", "2 rules", "= 0"),
        "and more are decided against the preference": less("2 rules", "20 rules", "< 0"),
    },
    "count": {
        "2 rules: less gold": less("2 rules", "rules", "gold"),
        "20 rules: less gold": less("20 rules", "rules", "gold"),
    },
    "construction": {
        "no conciseness: less gold": less("no conciseness", "rules", "gold"),
        "no conciseness: 3 tokens longer": less("rules", "no conciseness", "length", 3),
        "no scale: less gold": less("no scale", "rules", "gold"),
        "no scale: 5 points less accurate": less("no scale", "rules", "right", 0.05),
    },
    "baselines": {
        f"{arm}: 5 points less accurate": less(arm, "rules", "right", 0.05)
        for arm in TRAINED["baselines"][1:]
    },
    "noise": {
        "rules: 10 points above the reward model": less("reward model", "rules", "right", 0.1),
        "error 0.3: 10 points above the reward model": less(
            "reward model", "error 0.3", "right", 0.1
        ),
        "control: not so with a coin": lambda x: (
            not less("reward model", "error 0.5", "right", 0.1)(x)
        ),
    },
}


def print_table(table):
    """Of each row and column the mean over the seeds, and in brackets the lowest and the highest."""
    lines = [["", *next(iter(table.values()))]]
    for row, columns in table.items():
        cells = [f"{v.mean():.2f} [{v.min():.2f}-{v.max():.2f}]" for v in columns.values()]
        lines.append([row, *cells])
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def verdict_of(results):
    """{check: does it hold?} -> the verdict in words."""
    claims = [holds for check, holds in results.items() if not check.startswith("control")]
    controls = [holds for check, holds in results.items() if check.startswith("control")]
    partly = f"partly ({sum(claims)} of {len(claims)} checks)"
    found = "reproduced" if all(claims) else partly if any(claims) else "not reproduced"
    if not all(controls):
        found = f"cannot tell, for a control fails (without controls: {found})"
    return f"{found}; controls that hold: {sum(controls)} of {len(controls)}"


def report(name, seeds=(0, 1, 2), steps=80, runs="runs/autorule"):
    """Train what is missing; print claim, table, checks and verdict -> {check: does it hold?}."""
    measure = MEASURED.get(name) or trained(*TRAINED[name])
    table = measure(seeds, steps, runs)
    print(f"{name}: {CLAIMS[name]}\n{len(seeds)} seeds: mean [lowest-highest]")
    print_table(table)
    results = {}
    for check, holds in CHECKS[name].items():
        results[check] = bool(np.all(holds(lambda row, column: table[row][column])))
        print(f"  {'yes' if results[check] else 'NO '}  {check}")
    print(f"verdict: {verdict_of(results)}\n")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="AutoRule's experiments in a simulated world")
    parser.add_argument("names", nargs="*", choices=["all", *CLAIMS], default="all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    for chosen in CLAIMS if "all" in args.names else args.names:
        report(chosen, args.seeds)
