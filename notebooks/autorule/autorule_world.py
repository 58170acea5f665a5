"""autorule_world.py - AutoRule in a simulated world: a user who prefers, a teacher, a judge, and rewards to compare.

    python train.py --task notebooks/autorule/autorule_world.py:rules_0 ..      one arm, in the world of seed 0
    python -m notebooks.claims.claims autorule_hack                            four arms, in the worlds of three seeds

No teacher of the paper's size runs on a laptop, so the world is *simulated*. Completions and training are those of
the tiny base. The user who prefers, the teacher who gives reasons and the judge are programs with error rates that we
chose, and they share a list of concepts. Prompts, parsing, merging, reward model and GRPO are real. So this shows
what the method does *if* teacher and judge are as good as stated; it does not show that a language model is that good.
Letters: N responses or pairs, K rules.
"""

import collections
import functools
import json
import math
import random
import re
from dataclasses import replace

import numpy as np

from model import load
from notebooks.autorule import autorule
from notebooks.models.make_tiny import TINY
from rlvr import row_uniforms, sample
from verifiers import arithmetic, boxed_reward

# ---- 1. The user ---------------------------------------------------------------------------------


def right(prompt, text):
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    return bool(boxes) and int(boxes[-1]) == sum(map(int, re.findall(r"[+-]?\d+", prompt)))


def has(pattern, least=1, most=math.inf):
    """Return a check: does a response have the pattern at least `least` and at most `most` times?"""
    return lambda prompt, text: least <= len(re.findall(pattern, text)) <= most


FORM = has("^<think>.*</think><answer>.*</answer>$")
ONE_BOX = has("boxed", 1, 1)
ONE_SCRIPT = has("[加减得先再]", 0, 0)
NO_FILLER = has("(?:let|me|think|wait|hmm) ", 0, 2)
# What the user cares about: for each concept, a check whether a response has it, and how a teacher may say it.
CONCEPTS = {
    "right": (right, ["The number in the last box is right.", "The result must be correct."]),
    "worked": (has("[=得]"), ["Each step is shown.", "Intermediate results are written down."]),
    "form": (FORM, ["The tags are kept.", "The form is right."]),
    "one box": (ONE_BOX, ["One result is put into a box.", "The answer commits itself once."]),
    "one script": (ONE_SCRIPT, ["There is one language.", "No other script is used."]),
    "no filler": (NO_FILLER, ["No filler words.", "No phrase is empty."]),
}
# Rules of no value to the user. A teacher names them in error, or when a preference has no good reason.
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
# Rules written by hand, after UltraFeedback's four dimensions (Table 4). The judge reads them as vaguely as they are
# worded: nearly all responses satisfy three of them.
DIMENSIONS = {
    "The assistant does what it is asked to do and nothing else.": has("boxed|answer"),
    "The assistant's answer is useful and correct.": has("boxed"),
    "The assistant's answer agrees with the world and with itself.": has("boxed", 0, 2),
    "The assistant says where it is not certain.": has("hmm |wait "),
}
CHECK_OF = {rule: KNOWN[name][0] for rule, name in CONCEPT_OF.items()} | DIMENSIONS


def utility(prompt, text):
    """Return what a response is worth to the user, from 0 to 1: the gold score, which no reward sees. A right
    result weighs 3 of 8, each of the other five concepts 1."""
    kept = sum(check(prompt, text) for check, _ in CONCEPTS.values())
    return (kept + 2 * right(prompt, text)) / 8


@functools.cache
def world():
    """Return the tiny base and its problems: (model, tokenizer, task)."""
    return *load(TINY), arithmetic()


@functools.cache
def preferences(count, seed):
    """Return pairs of different completions. The user prefers one by 8 * utility, with the noise of sigmoid(2 *
    difference). As many people do, the user likes length for its own sake: ten more tokens add 0.4."""
    rng = random.Random(f"pairs {seed}")
    model, tokenizer, task = world()
    asked = [problem["problem"] for problem in rng.sample(task.train, count)]
    uniforms = row_uniforms(range(2 * count), 80, f"pairs {seed}")
    rollouts = sample(model, list(map(tokenizer.encode, asked)), 2, 80, uniforms=uniforms)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    likes = [0.4 * length / 10 for length in rollouts.lengths.tolist()]
    pairs = []
    for row, prompt in enumerate(asked):
        sides = texts[2 * row : 2 * row + 2]
        a, b = (8 * utility(prompt, texts[k]) + likes[k] for k in (2 * row, 2 * row + 1))
        chosen, rejected = sides if rng.random() < 1 / (1 + math.exp(2 * (b - a))) else sides[::-1]
        if chosen != rejected:
            pairs.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return pairs


# ---- 2. Teacher and judge ------------------------------------------------------------------------


def fields_of(template, prompt):
    """Return the values that were formatted into a template, or None if the prompt was not made from it."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.*?)", re.escape(template))
    match = re.fullmatch(pattern, prompt, re.DOTALL)
    return match and match.groupdict()


class Teacher:
    """Names what only the preferred response has. If there is nothing, it names an idle rule of that response, or
    that the answer is clear. At the stated rate it names something else in error, and a quarter as often it gives
    no list. Its random numbers depend on seed and prompt."""

    def __init__(self, error):
        self.error = error

    def __call__(self, prompts, seed=0):
        said = [self.say(prompt, random.Random(f"{seed} {prompt}")) for prompt in prompts]
        return [{"reasoning": chain, "text": text} for chain, text in said]

    def say(self, prompt, rng):
        if given := fields_of(autorule.JUSTIFY, prompt):
            sides = (given["a"], given["b"])[:: 1 if given["winner"] == "A" else -1]
            return self.reason(rng, given["winner"], given["prompt"], *sides)
        if given := fields_of(autorule.EXTRACT, prompt):
            rules = re.findall("^- (.*)$", given["reasoning"], re.M)
            silent = rng.random() < self.error / 4
            return "", "I see none." if silent else f"Rules:\n{json.dumps(rules)}"
        given = fields_of(autorule.MERGE, prompt)
        counts = collections.Counter(CONCEPT_OF[rule[2:]] for rule in given["rules"].split("\n"))
        limit = re.search(r"\d+", given["limit"])
        often = counts.most_common(int(limit[0]) if limit else None)
        kept = [name for name, count in often if limit or count > 0.02 * counts.total()]
        return "", json.dumps([rng.choice(KNOWN[name][1]) for name in kept])

    def reason(self, rng, winner, prompt, better, worse):
        checks = [(name, check) for name, (check, _) in KNOWN.items()]
        only = [name for name, has in checks if has(prompt, better) and not has(prompt, worse)]
        named = [name for name in only if name in CONCEPTS] or [rng.choice([CLEAR, *only])]
        named = [rng.choice([*KNOWN]) if rng.random() < self.error else name for name in named]
        said = [f"- {rng.choice(KNOWN[name][1])}\n" for name in named]
        chain = f"Only {winner} has these:\n" + "".join(said)
        return chain, f"Answer {winner} is better.\n{rng.choice(said)}"


def judge_of(error, seed=0):
    """Return judge(texts) -> True (Yes) or False (No) for each. It errs at the stated rate; a tenth as often it
    says neither (None). Concise means up to 90 characters."""

    def verdict(text):
        rng = random.Random(f"{seed} {text}")
        given = fields_of(autorule.VERIFY, text)
        said = given["completion"]
        concise = len(said) <= 90 or given["condition"] != autorule.CONDITIONS[True]
        yes = CHECK_OF[given["rule"]](given["prompt"], said) and concise
        yes ^= rng.random() < error
        return None if rng.random() < error / 10 else yes

    return lambda texts: [verdict(text) for text in texts]


def extracted(seed, num_pairs=256, run=0, **settings):
    """Return the rules that a teacher with an error rate of 0.1 finds in the preferences of a seed."""
    pairs = preferences(2000, seed)[:num_pairs]
    return autorule.extract_rules(pairs, Teacher(0.1), run, **settings)["rules"]


def verdicts(seed, error, rules, num_pairs=250):
    """Return [chosen (N, K), rejected (N, K)], True for Yes, on pairs from which no rule was read."""
    judge = judge_of(error)
    pairs = preferences(600, seed + 1000)[:num_pairs]

    def said(side):
        answers = [autorule.judge_rules(judge, rules, pair["prompt"], pair[side]) for pair in pairs]
        return np.array(answers, dtype=float) == 1  # None becomes NaN: no Yes

    return [said("chosen"), said("rejected")]


# ---- 3. Arms: a reward model with six extracted rules, and variants of it ------------------------

ARMS = ("rules", "no_rule_on_the_result", "reward_model", "length_penalty")


@functools.cache
def learned_reward(seed):
    """Return the reward model that the arms of a seed share. It is trained once (half a minute)."""
    made = autorule.RewardModel(*load(TINY))
    autorule.train_reward_model(made, preferences(2000, seed), 2, 32, lr=1e-3, seed=seed)
    return made


def rules_of(arm, seed):
    """Return the rules that an arm is rewarded for, in the order of its columns rule_00, rule_01, .."""
    six = extracted(seed, at_most=20)[:6]
    if arm == "no_rule_on_the_result":
        return [rule for rule in six if CONCEPT_OF[rule] != "right"]
    return six if arm == "rules" else []


def task_of(arm, seed):
    """Return arithmetic with the arm's reward. (This may train a reward model: the time limit of rewards does not
    apply to making a task.)"""
    rules = rules_of(arm, seed)
    scale = (10.0, -7.5) if rules else (0.0, 0.0)
    rate = autorule.RulesReward(rules, judge_of(0.1, seed), *scale, True, learned_reward(seed))

    def reward(completion, problem):
        value, parts = rate(completion, problem)
        if arm == "length_penalty":
            value -= autorule.length_penalty(len(world()[1].encode(completion)), target=32)
        graded = boxed_reward(completion, problem)[1]
        return value, parts | graded | {"gold": utility(problem["problem"], completion)}

    return replace(world()[2], reward=reward)


# For --task: rules_0 is the arm "rules" in the world of seed 0.
for _arm in ARMS:
    for _seed in range(11):
        globals()[f"{_arm}_{_seed}"] = functools.partial(task_of, _arm, _seed)
