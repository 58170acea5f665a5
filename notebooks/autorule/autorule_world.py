"""autorule_world.py - AutoRule in a simulated world: who prefers, who gives reasons, who judges, what an arm is paid.

    python train.py --task notebooks/autorule/autorule_world.py:rules_0 ..      one arm, in the world of seed 0
    python -m notebooks.claims.claims autorule_hack                            three arms, in those of three seeds

No teacher of the paper's size runs on a laptop, so the world is *simulated*: completions and training
are those of the tiny base, but the user who prefers, the teacher who gives reasons and the judge are
programs with error rates that we chose, who share a list of concepts. Prompts, parsing, merging, reward
model and GRPO are real. So this shows what the method does *if* teacher and judge are as good as stated,
not that a language model is. N responses or pairs, K rules.
"""

import functools
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from model import load
from notebooks.autorule import autorule
from notebooks.autorule.autorule import CONCISE_RULE, DIMENSIONS, Asked
from rlvr import row_uniforms, sample
from verifiers import arithmetic, boxed_reward

TINY = str(Path(__file__).resolve().parents[1] / "tiny")

# ---- 1. The user ---------------------------------------------------------------------------------


def right(prompt, text):
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    return bool(boxes) and int(boxes[-1]) == sum(map(int, re.findall(r"[+-]?\d+", prompt)))


def has(pattern, least=1, most=math.inf):
    """Does a response have the pattern so many times?"""
    return lambda prompt, text: least <= len(re.findall(pattern, text)) <= most


FORM = "^<think>.*</think><answer>.*</answer>$"
FILLER = "(?:let|me|think|wait|hmm) "
# What the user cares about: does a response have it, and how a teacher may put it.
CONCEPTS = {
    "right": (right, ["The number in the last box is right.", "The result must be correct."]),
    "worked": (has("[=得]"), ["Each step is shown.", "Intermediate results are written down."]),
    "form": (has(FORM), ["The tags are kept.", "The form is right."]),
    "one box": (
        has("boxed", 1, 1),
        ["One result is put into a box.", "The answer commits itself once."],
    ),
    "one script": (
        has("[加减得先再]", 0, 0),
        ["There is one language.", "No other script is used."],
    ),
    "no filler": (has(FILLER, 0, 2), ["No filler words.", "No phrase is empty."]),
}
# What weighs nothing, but is named in error, or where a preference has no good reason.
CLEAR = "The answer is clear."
IDLE = {
    CLEAR: "",
    "The answer is long.": "^.{60}",
    "The assistant says hmm.": "hmm ",
    "The thinking begins with let.": "<think>let ",
    "The boxed number is even.": r"[02468]\}",
    **{f"The digit {digit} occurs.": str(digit) for digit in range(10)},
}
KNOWN = CONCEPTS | {rule: (has(pattern), [rule]) for rule, pattern in IDLE.items()}
CONCEPT_OF = {rule: name for name, (_, rules) in KNOWN.items() for rule in rules}
# The judge reads hand-written rules as vaguely as they are worded: nearly all responses satisfy three of
# them (Table 4).
READINGS = [has("boxed|answer"), has("boxed"), has("boxed", 0, 2), has("hmm |wait "), has("")]
VAGUE = dict(zip(DIMENSIONS + CONCISE_RULE, READINGS))


def utility(prompt, text):
    """What a response is worth to the user, from 0 to 1: the gold that no reward sees. A right result
    weighs 3 of 8, the others 1."""
    kept = sum(check(prompt, text) for check, _ in CONCEPTS.values())
    return (kept + 2 * right(prompt, text)) / 8


@functools.cache
def world():
    """The tiny base and its problems -> (model, tokenizer, task)."""
    return *load(TINY), arithmetic()


@functools.cache
def preferences(count, seed, sharpness=2.0, length_bias=0.4):
    """Pairs of different completions. The user prefers by 8 * utility, with the noise of sigmoid(sharpness *
    difference), and, as many do, likes length for its own sake: length_bias for ten tokens more."""
    rng = random.Random(f"pairs {seed}")
    pairs = []
    model, tokenizer, task = world()
    asked = [problem["problem"] for problem in rng.sample(task.train, count)]
    prompts = [tokenizer.encode(prompt) for prompt in asked]
    uniforms = row_uniforms(range(2 * count), 80, f"pairs {seed}")
    rollouts = sample(model, prompts, 2, 80, uniforms=uniforms)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    likes = length_bias * rollouts.lengths.numpy() / 10
    for row, prompt in enumerate(asked):
        sides = texts[2 * row : 2 * row + 2]
        useful = [8 * utility(prompt, text) for text in sides]
        a, b = np.add(useful, likes[2 * row : 2 * row + 2]).tolist()
        first = rng.random() < 1 / (1 + math.exp(sharpness * (b - a)))
        chosen, rejected = sides if first else sides[::-1]
        if chosen != rejected:
            pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return pairs


# ---- 2. Teacher and judge ------------------------------------------------------------------------


def fields_of(template, prompt):
    """The values that were formatted into a template, or None if the prompt was not made from it."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.*?)", re.escape(template))
    match = re.fullmatch(pattern, prompt, re.DOTALL)
    return match and match.groupdict()


class Simulated:
    """A program in place of a model: a subclass has say(prompt, rng) -> (chain of thought, text), and None
    where it fails. Its random numbers depend on seed and prompt."""

    def __init__(self, error=0.0):
        self.error = error
        self.identity = [type(self).__name__, "simulated", error]

    def __call__(self, prompts, keep, seed):
        for key, prompt in prompts.items():
            said = self.say(prompt, random.Random(f"{seed} {prompt}"))
            if said:
                keep(key, dict(zip(("reasoning", "text"), said)))


class Teacher(Simulated):
    """Names what only the preferred response has; if that is nothing, something idle or that it is clear.
    In error, at the stated rate, it names something else, and a quarter as often gives no list."""

    def say(self, prompt, rng):
        if given := fields_of(autorule.JUSTIFY, prompt):
            sides = (given["a"], given["b"])[:: 1 if given["winner"] == "A" else -1]
            return self.reason(rng, given["winner"], given["prompt"], *sides)
        if given := fields_of(autorule.EXTRACT, prompt):
            rules = re.findall("^- (.*)$", given["reasoning"], re.M)
            silent = rng.random() < self.error / 4
            return "", "I see none." if silent else f"Rules:\n{json.dumps(rules)}"
        given = fields_of(autorule.MERGE, prompt)
        names = [CONCEPT_OF[rule[2:]] for rule in given["rules"].split("\n")]
        often = sorted(dict.fromkeys(names), key=names.count, reverse=True)
        limit = re.search(r"\d+", given["limit"])
        kept = [name for name in often if names.count(name) > 0.02 * len(names)]
        kept = often[: int(limit[0])] if limit else kept
        return "", json.dumps([rng.choice(KNOWN[name][1]) for name in kept])

    def reason(self, rng, winner, prompt, better, worse):
        checks = {name: check for name, (check, _) in KNOWN.items()}
        only = [
            name for name in checks if checks[name](prompt, better) > checks[name](prompt, worse)
        ]
        named = [name for name in only if name in CONCEPTS] or [rng.choice([CLEAR, *only])]
        named = [rng.choice([*KNOWN]) if rng.random() < self.error else name for name in named]
        said = [f"- {rng.choice(KNOWN[name][1])}\n" for name in named]
        chain = f"Only {winner} has these:\n" + "".join(said)
        return chain, f"Answer {winner} is better.\n{rng.choice(said)}"


class Judge(Simulated):
    """Yes or No, in error at the stated rate, a tenth as often neither. Concise: up to 90 characters."""

    def say(self, prompt, rng):
        concise = autorule.CONDITIONS[True] in prompt
        template = autorule.VERIFY.replace("{condition}", autorule.CONDITIONS[concise])
        given = fields_of(template, prompt)
        rule = given["rule"]
        check = VAGUE[rule] if rule in VAGUE else KNOWN[CONCEPT_OF[rule]][0]
        said = given["completion"]
        yes = check(given["prompt"], said) and (len(said) <= 90 or not concise)
        yes ^= rng.random() < self.error
        neither = rng.random() < self.error / 10
        return "", "It depends." if neither else f"[{'Yes' if yes else 'No'}]"


def judge_of(error, seed=0):
    asked = Asked(Judge(error))
    return lambda texts: [autorule.read_verdict(answer["text"]) for answer in asked(texts, seed)]


def extracted(seed, num_pairs=256, run=0, **settings):
    """The rules that a teacher who errs once in ten finds in the preferences of a seed."""
    pairs = preferences(2000, seed)[:num_pairs]
    return autorule.extract_rules(pairs, Asked(Teacher(0.1)), run, **settings)["rules"]


def verdicts(seed, error, rules, num_pairs=250, draw=0):
    """On pairs that no rule was read out of -> [chosen (N, K), rejected (N, K)], True for Yes."""
    pairs = preferences(600, seed + 1000)[:num_pairs]
    judge = judge_of(error, draw)

    def said(pair, side):
        answers = autorule.judge_rules(judge, rules, pair["prompt"], pair[side])
        return [answer is True for answer in answers]

    return [np.array([said(pair, side) for pair in pairs]) for side in ("chosen", "rejected")]


# ---- 3. Arms: what is changed of the reward model with six extracted rules -----------------------

USUAL = {"rules": lambda found: found[:6], "alpha": 10.0, "beta": -7.5, "concise": True}
MODEL = {"rules": lambda found: [], "alpha": 0.0, "beta": 0.0}
ARMS = {
    "rules": {},
    "reward_model": MODEL,
    "length_penalty": MODEL | {"penalty": 1.0},
    "concise_rule": {"rules": lambda found: CONCISE_RULE},
    "dimensions": {"rules": lambda found: DIMENSIONS},
    "2_rules": {"rules": lambda found: found[:2]},
    "20_rules": {"rules": lambda found: found},
    "no_conciseness": {"concise": False},
    "no_scale": {"alpha": 1.0, "beta": 0.0, "concise": False},
    "no_rule_on_the_result": {
        "rules": lambda found: [rule for rule in found[:6] if CONCEPT_OF[rule] != "right"]
    },
}


@functools.cache
def learned_reward(seed):
    """The reward model that the arms of a seed share, trained once (half a minute)."""
    made = autorule.RewardModel(*load(TINY))
    pairs = preferences(2000, seed)
    autorule.train_reward_model(made, pairs, 2, batch_size=32, lr=1e-3, seed=seed)
    return made


def rules_of(arm, seed):
    """The rules that an arm is paid for, in the order of its columns rule_00, rule_01, .."""
    return (USUAL | ARMS[arm])["rules"](extracted(seed, at_most=20))


def task_of(arm, seed):
    """Arithmetic, paid as the arm is. (A task is made before training, without the clock that a reward has.)"""
    chosen = USUAL | ARMS[arm]
    settings = chosen["alpha"], chosen["beta"], chosen["concise"], learned_reward(seed)
    rate = autorule.RulesReward(rules_of(arm, seed), judge_of(0.1, seed), *settings)

    @functools.lru_cache(10_000)  # late in training a group says the same thing several times
    def paid(completion, prompt, answer):
        problem = {"problem": prompt, "answer": answer}
        value, parts = rate(completion, problem)
        length = len(world()[1].encode(completion))
        value -= chosen.get("penalty", 0.0) * autorule.length_penalty(length, target=32)
        graded = boxed_reward(completion, problem)[1]
        return value, parts | graded | {"gold": utility(prompt, completion)}

    def reward(completion, problem):
        value, parts = paid(completion, problem["problem"], problem["answer"])
        return value, dict(parts)

    return replace(world()[2], reward=reward)


# For --task: rules_0 is the arm "rules" in the world of seed 0.
for _arm in ARMS:
    for _seed in range(11):
        globals()[f"{_arm}_{_seed}"] = functools.partial(task_of, _arm, _seed)
