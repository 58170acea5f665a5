"""autorule_world.py - the laboratory of AutoRule: diagnostics, baselines, and six experiments in a simulated world.

    python notebooks/autorule_world.py                 train what is missing, print tables and verdicts (25 minutes)
    python notebooks/autorule_world.py hacking --seeds 0

No teacher of the paper's size runs on a laptop, so the world is *simulated*: completions and training are those of the
tiny base, but the user who prefers, the teacher who gives reasons and the judge are the programs of section 3, with
error rates that we chose. They know the same list of concepts, as people share a language. What is real is the rest:
prompts, parsing, merging, caching, judging, the reward model, GRPO. So this shows what the method does *if* teacher and
judge are as good as stated, not that a language model is. Letters: N responses or pairs, K and L rules.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import random
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]
import autorule  # noqa: E402
import train  # noqa: E402
import verifiers  # noqa: E402
from asking import Asked  # noqa: E402
from model import load  # noqa: E402
from rlvr import row_uniforms, sample  # noqa: E402

# ---- 1. Diagnostics: verdicts are arrays of 0 and 1, (N, K) --------------------------------------------------------


def alignment(chosen, rejected):
    """Of the pairs that a rule tells apart, the share in which the chosen response has the Yes (5.3):
    two (N, K) -> (K,), NaN where no pair is told apart."""
    apart = (chosen != rejected).sum(0)
    return np.where(apart > 0, (chosen > rejected).sum(0) / np.maximum(apart, 1), np.nan)


def agreement(verdicts, others):
    """Behavioural agreement (5.3): 1 - the normalised Hamming distance of two rules over N responses; the
    rules of two sets are matched by the Hungarian algorithm: (N, K), (N, L) -> (min(K, L),)."""
    from scipy.optimize import linear_sum_assignment             # here only: the core does without scipy
    same = (verdicts[:, :, None] == others[:, None, :]).mean(0)  # (K, L)
    return same[linear_sum_assignment(same, maximize=True)]


def determinism(yes, no):
    """max(yes, no) / (yes + no), counts of repeated judgements at T = 1 (appendix E)."""
    return np.maximum(yes, no) / (yes + no)


def margins(chosen, rejected):
    """The shares of pairs whose rule score is > 0, = 0, < 0 for the chosen response (Table 7)."""
    sign = np.sign(chosen.sum(1) - rejected.sum(1))
    return [float((sign == side).mean()) for side in (1, 0, -1)]


def correlation(verdicts, others):
    """Pearson's r of the total scores that two rule sets give the same responses (Figure 2d)."""
    return float(np.corrcoef(verdicts.mean(1), others.mean(1))[0, 1])


def judge_all(judge, rules, responses, concise=True):
    """N pairs (prompt, response) -> verdicts (N, K)."""
    return np.array([[verdict is True for verdict in autorule.judge_rules(judge, rules, *response, concise)]
                     for response in responses], dtype=int)


# ---- 2. Baselines ----------------------------------------------------------------------------------------------------

CONCISE_RULE = ["The assistant's answer is concise."]                                             # B.7
DIMENSIONS = ["The assistant does what it is asked to do and nothing else.",                      # after UltraFeedback's
              "The assistant's answer is useful and correct.",                                    # four dimensions
              "The assistant's answer agrees with the world and with itself.",                    # (Table 4)
              "The assistant says where it is not certain."]


def length_penalty(length, target=300):
    """What B.4 takes off the reward: length / (2 L) - 1/2; 0 at the target, 0.5 at twice the target."""
    return 0.5 * length / target - 0.5


GUIDES = {"long": "First think at length: restate the task, check each statement, weigh what is good against what is "
                  "bad, compare with an ideal answer, and reconsider.", "short": "First think in a few sentences."}
RATE = """Rate the assistant's last answer as a whole from 1 (worthless) to 10 (perfect).
{guide}

[Conversation]
user: {prompt}
assistant: {completion}
[End of the conversation]

End with a line "Score: n"."""


def single_judge(asked, kind="long", calls=1):
    """Table 6: the mean score of one long judgement, or of three short ones, on the scale of the rules, 0 to 1; what
    cannot be read counts 1, the worst -> a function (prompt, completion) -> (score, how many could not be read)."""
    def judge(prompt, completion):
        question = RATE.format(guide=GUIDES[kind], prompt=prompt, completion=completion)
        texts = [(asked([question], seed)[0] or {"text": ""})["text"] for seed in range(calls)]
        found = [re.findall(r"Score: *(10|[1-9])\b", text[-1000:]) for text in texts]
        return sum(int(each[-1]) - 1 if each else 0 for each in found) / (9 * calls), found.count([])
    return judge


# ---- 3. The simulated world ------------------------------------------------------------------------------------------

def right(prompt, text):
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    return bool(boxes) and int(boxes[-1]) == sum(map(int, re.findall(r"[+-]?\d+", prompt)))


def fillers(text):
    return len(re.findall("(?:let|me|think|wait|hmm) ", text))


def has(pattern):
    return lambda prompt, text: re.search(pattern, text) is not None


# What the user cares about: does a response have it, how much it weighs, and how a teacher may put it.
CONCEPTS = {
    "right": (right, 3, ["The number in the last box is the right result.", "The final result must be correct."]),
    "worked": (has("[=得]"), 1, ["Each step of the calculation is shown.", "Intermediate results are written down."]),
    "form": (has("^<think>.*</think><answer>.*</answer>$"), 1, [
        "Thinking and answer stand in their tags.", "The tags that were asked for are kept."]),
    "one box": (lambda prompt, text: text.count("\\boxed{") == 1, 1, [
        "Exactly one result is put into a box.", "The answer commits itself to a single boxed result."]),
    "one script": (lambda prompt, text: not re.search("[加减得先再]", text), 1, [
        "The answer keeps to one language.", "No foreign script is mixed in."]),
    "no filler": (lambda prompt, text: fillers(text) < 3, 1, [
        "The answer does without filler words.", "There are no empty phrases."])}
# What weighs nothing, but may be named by a teacher in error, or when the label is wrong and no good reason is there.
CLEAR = "The answer is clear."
IDLE = {rule: (check, 0, [rule]) for rule, check in {
    CLEAR: lambda prompt, text: True, "The answer is long.": lambda prompt, text: len(text) > 60, "The assistant says hmm.": has("hmm "),
    "The thinking begins with let.": has("<think>let "), "The boxed number is even.": has(r"[02468]\}"),
    **{f"The digit {digit} occurs.": has(str(digit)) for digit in range(10)}}.items()}
# How the judge takes the hand-written rules: they are vague, so that nearly all satisfies three of them (Table 4).
VAGUE = dict(zip(DIMENSIONS + CONCISE_RULE, [
    has("boxed|answer"), has("boxed"), lambda prompt, text: text.count("boxed") < 3, has("hmm |wait "),
    lambda prompt, text: True]))
CHECKS = VAGUE | {rule: check for check, _, rules in [*CONCEPTS.values(), *IDLE.values()] for rule in rules}
CONCEPT_OF = {rule: name for name, (_, _, rules) in (CONCEPTS | IDLE).items() for rule in rules}


def utility(prompt, text):
    """What a response is worth to the user, from 0 to 1: the gold that no reward sees."""
    return sum(weight * check(prompt, text) for check, weight, _ in CONCEPTS.values()) / 8


def fields_of(template, prompt):
    """The values that were formatted into a template, or None if the prompt was not made from it."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.*?)", re.escape(template))
    match = re.fullmatch(pattern, prompt, re.DOTALL)
    return match and match.groupdict()


class Simulated:
    """A backend (see asking.py) whose answers come from a method `say`; its chance depends on seed and prompt."""

    def __init__(self, error):
        self.error, self.identity = error, [type(self).__name__, "simulated", error]

    def __call__(self, prompts, keep, seed, deadline):
        for key, prompt in prompts.items():
            reasoning, text = self.say(prompt, random.Random(f"{seed} {prompt}"))
            keep(key, {"text": text, "reasoning": reasoning, "tokens_in": len(prompt.split()),
                       "tokens_out": len((reasoning + text).split())})


class Teacher(Simulated):
    """Names what only the preferred response has; where that is nothing (perhaps a wrong label), something idle or that
    it is clear. In error, with the stated rate, it names something else, and a quarter as often gives no list."""

    def say(self, prompt, rng):
        if given := fields_of(autorule.JUSTIFY, prompt):
            return self.reason(rng, given["winner"], given["prompt"], *(given[x] for x in sorted("ab")))
        if given := fields_of(autorule.EXTRACT, prompt):
            rules = re.findall(r"^- (.*)$", given["reasoning"], re.M)
            return "", "I see no rules." if rng.random() < self.error / 4 else f"The rules:\n{json.dumps(rules)}"
        given = fields_of(autorule.MERGE, prompt)
        return "", json.dumps(self.merge(rng, given["rules"], re.search(r"\d+", given["limit"])))

    def reason(self, rng, winner, prompt, a, b):
        better, worse = (a, b) if winner == "A" else (b, a)
        only = [name for name, (check, *_) in (CONCEPTS | IDLE).items()
                if check(prompt, better) and not check(prompt, worse)]
        named = [name for name in only if name in CONCEPTS] or [rng.choice([CLEAR, *only])]
        named = [rng.choice([*CONCEPTS, *IDLE]) if rng.random() < self.error else name for name in named]
        said = [rng.choice((CONCEPTS | IDLE)[name][2]) for name in named]
        return (f"Only answer {winner}, which says {better!r}, has these:\n" + "".join(f"- {rule}\n" for rule in said),
                f"Answer {winner} is better.\n- {rng.choice(said)}")

    def merge(self, rng, rules, limit):
        names = [CONCEPT_OF[rule[2:]] for rule in rules.split("\n")]
        ranked = sorted(dict.fromkeys(names), key=names.count, reverse=True)
        often = [name for name in ranked if limit or names.count(name) > 0.02 * len(names)]
        return [rng.choice((CONCEPTS | IDLE)[name][2]) for name in often[:int(limit[0]) if limit else None]]


class Judge(Simulated):
    """Says Yes or No to a rule it knows, in error with the stated rate, and a tenth as often neither."""

    def say(self, prompt, rng):
        for concise, condition in autorule.CONDITIONS.items():
            if given := fields_of(autorule.VERIFY.replace("{condition}", condition), prompt):
                completion = given["completion"]
                yes = CHECKS[given["rule"]](given["prompt"], completion) and (not concise or len(completion) <= 90)
                yes ^= rng.random() < self.error
                return "", "It depends." if rng.random() < self.error / 10 else f"[{'Yes' if yes else 'No'}]"


def judge_of(error, seed=0):
    asked = Asked(Judge(error))
    return lambda texts: [answer and autorule.read_verdict(answer["text"]) for answer in asked(texts, seed)]


@functools.cache
def base():
    return load(ROOT / "notebooks" / "tiny")


def preferences(count, seed, shuffled=False, sharpness=2.0, length_bias=0.4):
    """Pairs of different completions of the tiny base. The user prefers by 8 x utility, with noise, sigmoid(sharpness x
    difference), and, as in the paper's data, likes length for its own sake, length_bias for ten tokens more. shuffled:
    a coin says which is chosen."""
    model, tokenizer = base()
    problems = random.Random(f"pairs {seed}").sample(arithmetic().train, count)
    prompts = [tokenizer.encode(problem["problem"]) for problem in problems]
    rollouts = sample(model, prompts, 2, 80, uniforms=row_uniforms(range(2 * count), 80, f"pairs {seed}"))
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    worth = [8 * utility(problems[row // 2]["problem"], text) + length_bias * rollouts.lengths[row].item() / 10
             for row, text in enumerate(texts)]
    rng, pairs = random.Random(f"labels {seed}"), []
    for i, problem in enumerate(problems):
        p = 0.5 if shuffled else 1 / (1 + math.exp(sharpness * (worth[2 * i + 1] - worth[2 * i])))
        chosen, rejected = texts[2 * i:2 * i + 2][::1 if rng.random() < p else -1]
        if chosen != rejected:
            pairs.append({"prompt": problem["problem"], "chosen": chosen, "rejected": rejected})
    return pairs


arithmetic = functools.cache(verifiers.arithmetic)


# ---- 4. Train --------------------------------------------------------------------------------------------------------
# An arm is what it changes of GRPO on the reward model with six extracted rules and (alpha, beta) = (10, -7.5).

USUAL = {"rules": 6, "alpha": 10.0, "beta": -7.5, "concise": True, "error": 0.1, "model": True, "penalty": 0.0}
MODEL = {"rules": [], "alpha": 0.0, "beta": 0.0}
ARMS = {"reward model": MODEL, "rules": {}, "rules alone": {"model": False},
        "idle rules": {"rules": [rule for rule in IDLE if rule.startswith("The digit")][:6]},
        "no rule on the result": {"rules": "no result"}, "length penalty": MODEL | {"penalty": 1.0},
        "concise rule": {"rules": CONCISE_RULE}, "dimensions": {"rules": DIMENSIONS},
        "2 rules": {"rules": 2}, "20 rules": {"rules": 20}, "no conciseness": {"concise": False},
        "no scale": {"alpha": 1.0, "beta": 0.0, "concise": False},
        "error 0.3": {"error": 0.3}, "error 0.4": {"error": 0.4}, "error 0.5": {"error": 0.5}}


@functools.cache
def prepared(seed, runs):
    """What all arms of a seed share, made once: 2,000 pairs, the reward model, 20 rules out of 256 pairs."""
    folder = Path(runs) / f"world-seed{seed}"
    pairs = preferences(2000, seed)
    if not (folder / "rules.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = autorule.RewardModel(*load(ROOT / "notebooks" / "tiny"))
        autorule.train_reward_model(made, pairs, epochs=2, batch_size=32, micro=32, lr=1e-3, seed=seed)
        made.save(folder / "reward_model")
        found = autorule.extract_rules(pairs[:256], Asked(Teacher(0.1)), seed, at_most=20)
        (folder / "rules.json").write_text(json.dumps(found, indent=1))
    rules = json.loads((folder / "rules.json").read_text())["rules"]
    return pairs, rules, autorule.RewardModel.load(folder / "reward_model")


@functools.cache
def reward_of(arm, seed, runs):
    arm = USUAL | ARMS[arm]
    _, rules, learned = prepared(seed, runs)
    if arm["rules"] == "no result":
        rules = [rule for rule in rules[:6] if CONCEPT_OF[rule] != "right"]
    else:
        rules = rules[:arm["rules"]] if isinstance(arm["rules"], int) else arm["rules"]
    judged = autorule.RulesReward(rules, judge_of(arm["error"], seed), arm["alpha"], arm["beta"], arm["concise"],
                                  learned if arm["model"] else None)

    def reward(completion, problem):
        value, parts = judged(completion, problem)
        length = len(base()[1].encode(completion))
        value -= arm["penalty"] * length_penalty(length, target=32)
        return value, parts | {"gold": utility(problem["problem"], completion)}
    return reward


def reward(completion, problem):
    """For --reward notebooks/autorule_world.py:reward; $AUTORULE_ARM is a JSON list of arm, seed and folder."""
    with autorule.LOADING:
        function = reward_of(*json.loads(os.environ["AUTORULE_ARM"]))
    return function(completion, problem)


def run_arm(arm, seed, steps, runs):
    """Train an arm, unless that is done already -> its folder. What train.py prints goes to FOLDER.log."""
    runs = (ROOT / runs).resolve()
    run = runs / f"{arm.replace(' ', '-').replace('.', '')}-{steps}-seed{seed}"
    if not (run / "final").exists():
        print(f"training {run.name}", file=sys.stderr, flush=True)
        prepared(seed, runs)
        os.environ["AUTORULE_ARM"] = json.dumps([arm, seed, str(runs)])
        flags = ["--model", str(ROOT / "notebooks" / "tiny"), "--task", "arithmetic", "--reward", f"{__file__}:reward",
                 "--prompts-per-step", "8", "--num-samples", "8", "--max-new-tokens", "80", "--lr", "1e-3",
                 "--kl-coef", "0.001", "--eval-every", "10", "--eval-problems", "200", "--save-every", "1000",
                 "--micro-batch-tokens", "4096", "--steps", str(steps), "--seed", str(seed)]
        flags = ["--resume"] if run.exists() else flags
        with open(f"{run}.log", "a") as log, contextlib.redirect_stdout(log):
            train.main([*flags, "--runs", str(runs), "--name", run.name])
    return run
