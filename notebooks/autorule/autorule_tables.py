"""autorule_tables.py - the paper's Tables 1, 2, 4, 6, 15 and 16, as far as the simulated world reaches.

    python notebooks/autorule/autorule_tables.py         from the runs of autorule_world.py

Table 1 asks how often a trained policy wins against the policy it started from; Table 2 what the
teacher costs; Table 4 what each rule scored at the start and at the end of training; Table 6, of
which the column of FLOPs is here, what a judge costs; Table 15 how much the three stages of extraction
change when they are run again; Table 16 which rules of two sets have a counterpart in the other.

Left out, because nothing here could measure it: AlpacaEval and MT-Bench; PPO, length control, RaR and
RLCF (Table 1); what the single judges of Table 6 are worth, since a simulated one shows only what we
put in. Table 10, the settings of training, is notebooks/recipes/autorule.txt. K and L rules, N responses.
"""

import functools
import json
import math
import re
from collections import Counter
from itertools import combinations

import numpy as np

import _root  # noqa: F401
import autorule
import autorule_tools as tools
import autorule_world as world
import train
from model import load
from rlvr import row_uniforms, sample

# ---- Table 1: wins against the base --------------------------------------------------------------


def completions_of(folder, count):
    """One completion at T = 1 for each of so many held-out problems, with its length in tokens."""
    model, tokenizer = load(str(folder))
    problems = [problem["problem"] for problem in world.world()[2].test[:count]]
    prompts = [tokenizer.encode(problem) for problem in problems]
    rollouts = sample(model, prompts, 1, 80, uniforms=row_uniforms(range(count), 80, "table 1"))
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    return problems, texts, rollouts.lengths.numpy()


def wins(gains):
    """The share of comparisons that are won; a draw counts half."""
    return float(np.mean((gains > 0) + 0.5 * (gains == 0)))


def win_rate(folder, count=200, length_bias=0.4):
    """Against the base: as the user prefers, who likes ten more tokens for their own sake, and as the user
    would without that liking, which stands for the paper's length-controlled rate."""
    prompts, texts, lengths = completions_of(folder, count)
    _, others, base_lengths = completions_of(world.TINY, count)
    useful = [world.utility(prompt, text) for prompt, text in zip(prompts, texts)]
    before = [world.utility(prompt, text) for prompt, text in zip(prompts, others)]
    gains = 8 * (np.array(useful) - np.array(before))
    return {
        "win rate": wins(gains + length_bias * (lengths - base_lengths) / 10),
        "without length": wins(gains),
        "tokens": float(lengths.mean()),
    }


def table_1(arms, seeds, steps, runs):
    """{arm: [the numbers of a seed, ..]}"""
    return {
        arm: [win_rate(world.run_arm(arm, seed, steps, runs) / "final") for seed in seeds]
        for arm in arms
    }


# ---- Table 2: what the teacher costs -------------------------------------------------------------


def table_2(pairs, prompts, seed=0):
    """Tokens that the teacher reads and writes: {method: (input, output)}. AutoRule asks about the pairs
    alone. A method that makes rules for each prompt asks at least once for every prompt; like the paper
    we extrapolate, and take such a question to be as long as one of AutoRule's first stage."""
    whole = tools.Asked(world.Teacher(0.1))
    autorule.extract_rules(pairs, whole, seed, at_most=20)
    first = tools.Asked(world.Teacher(0.1))
    asked = [
        autorule.JUSTIFY.format(winner="A", prompt=p["prompt"], a=p["chosen"], b=p["rejected"])
        for p in pairs
    ]
    first(asked, seed)
    times = prompts / len(pairs)
    return {
        "AutoRule": (whole.counts["tokens_in"], whole.counts["tokens_out"]),
        "rules for each prompt": (
            round(times * first.counts["tokens_in"]),
            round(times * first.counts["tokens_out"]),
        ),
    }


# ---- Table 4: what each rule scored --------------------------------------------------------------


def rule_scores(run):
    """(steps, K): the share of completions of a step to which the judge said Yes, by rule."""
    rows = [row for step, row in train.read_log(run).items() if step > 0]
    names = sorted(name for name in rows[0] if re.fullmatch("rule_[0-9]+", name))
    return np.array([[row[name] for name in names] for row in rows])


def table_4(arm, seed, steps, runs):
    """[(rule, score in the first five steps, in the last five, alignment), ..]"""
    rules = world.rules_of(arm, seed)
    scores = rule_scores(world.run_arm(arm, seed, steps, runs))
    aligned = autorule.alignment(*world.verdicts(seed, 0.1, rules, 500))
    start = scores[:5].mean(0)
    end = scores[-5:].mean(0)
    return [*zip(rules, start, end, aligned)]


# ---- Table 6: what a judge costs -----------------------------------------------------------------

JUDGE = 8.0e9  # parameters of the paper's judge, Llama-3-8B


def judge_flops(tokens, parameters=JUDGE):
    """A model multiplies and adds once for each parameter and each token that it reads or writes."""
    return 2 * parameters * tokens


def tokens_for(flops, calls, parameters=JUDGE):
    """How many tokens a call has, if so many calls take so many FLOPs together."""
    return flops / (2 * parameters * calls)


def tokens_of_rules(conversation, rule, rules, shared):
    """Tokens that a judge reads for all rules: with the conversation once (shared; yes_probabilities
    does so, since the rule stands behind it), or once for each rule."""
    return (conversation + rules * rule) if shared else rules * (conversation + rule)


# ---- Table 15: the three stages, run again -------------------------------------------------------


def overlap(text, other):
    """BLEU-1 (without its brevity penalty), ROUGE-1 and Jaccard of the words of two texts."""
    words = Counter(text.lower().split())
    others = Counter(other.lower().split())
    shared = (words & others).total()
    union = len(words.keys() | others.keys())
    return (
        shared / max(1, words.total()),
        2 * shared / max(1, words.total() + others.total()),
        len(words.keys() & others.keys()) / max(1, union),
    )


def spread(scores):
    """sigma and r over runs: scores (runs, N), the share of rules that each response satisfies."""
    varying = [each for each in scores if each.std() > 0]  # the same for all: r is not defined
    pairs = [np.corrcoef(one, two)[0, 1] for one, two in combinations(varying, 2)]
    return {
        "sigma": float(scores.std(0).mean()),
        "r": float(np.mean(pairs)) if pairs else math.nan,
    }


def concepts(rules):
    """The concepts of a list of rules: in this world each wording has one."""
    return {world.CONCEPT_OF[rule] for rule in rules}


def mean_jaccard(sets):
    each = [len(one & two) / max(1, len(one | two)) for one, two in combinations(sets, 2)]
    return float(np.mean(each))


@functools.cache
def yes_share(seed, rules):
    """(N,): the share of these rules that each of 500 responses satisfies, for a judge without error."""
    return np.concatenate(world.verdicts(seed, 0, list(rules))).mean(1)


def behaviour(seed, sets):
    scores = np.array([yes_share(seed, tuple(rules)) for rules in sets])
    return spread(scores) | {"jaccard": mean_jaccard([concepts(rules) for rules in sets])}


def table_15(seed, times=8, num_pairs=10):
    """Run `times` over (the paper: 64): the reasons for ten pairs, the rules read out of them, six rules
    merged from 256 pairs. Departure: the paper repeats each stage on one input. Our teacher reads one
    reason and merges one list always alike, so here a stage gets what the stage before gave in its run."""
    pairs = world.preferences(2000, seed)
    teacher = tools.Asked(world.Teacher(0.1))
    asked = [
        autorule.JUSTIFY.format(winner="A", prompt=p["prompt"], a=p["chosen"], b=p["rejected"])
        for p in pairs[:num_pairs]
    ]
    reasons = [[answer["reasoning"] for answer in teacher(asked, run)] for run in range(times)]
    words = [overlap(*two) for texts in zip(*reasons) for two in combinations(texts, 2)]
    chains = [
        [autorule.EXTRACT.format(winner="A", reasoning=reason) for reason in each]
        for each in reasons
    ]
    read = [autorule.ask_for_rules(teacher, each, run) for run, each in enumerate(chains)]
    of_pair = [[rules for rules in sets if rules] for sets in zip(*read)]
    extraction = [behaviour(seed, sets) for sets in of_pair if len(sets) > 1]
    merged = [
        autorule.extract_rules(pairs[:256], teacher, run, at_most=6)["rules"]
        for run in range(times)
    ]
    names = ("sigma", "r", "jaccard")
    return {
        "reasoning": dict(zip(("BLEU-1", "ROUGE-1", "jaccard"), np.mean(words, 0).tolist())),
        "extraction": {name: float(np.nanmean([e[name] for e in extraction])) for name in names},
        "merging": behaviour(seed, merged),
    }


# ---- Table 16, and the figures of appendix D -----------------------------------------------------


def agreement_of_sets(seed, rules, others):
    """(K, L): how often two rules have the same verdict on 500 responses, for a judge without error."""
    one = np.concatenate(world.verdicts(seed, 0, rules))
    two = np.concatenate(world.verdicts(seed, 0, others))
    return autorule.agreement_matrix(one, two)


def table_16(seed, rules, others, count=3):
    """The rules of the first set that agree least, and most, with any rule of the second:
    (unique, similar), each [(rule, its highest agreement), ..]."""
    highest = agreement_of_sets(seed, rules, others).max(1)
    order = np.argsort(highest, kind="stable")
    ranked = [(rules[k], float(highest[k])) for k in order]
    return ranked[:count], ranked[::-1][:count]


# ---- Print ---------------------------------------------------------------------------------------


def show_table(rows, columns):
    """rows: {name: [one dict of numbers a seed, ..]}; the mean over seeds, lowest and highest."""
    width = max(map(len, rows))
    print(" " * width, *(f"{column:>18}" for column in columns))
    for name, seeds in rows.items():
        values = [np.array([each[column] for each in seeds]) for column in columns]
        cells = [f"{v.mean():6.2f} [{v.min():.2f}-{v.max():.2f}]" for v in values]
        print(f"{name:{width}}", *(f"{cell:>18}" for cell in cells))


def main():
    arms = ["reward model", "length penalty", "concise rule", "dimensions", "rules"]
    print("Table 1: wins against the base")
    table = table_1(arms, [0, 1, 2], 80, "runs/autorule")
    show_table(table, ["win rate", "without length", "tokens"])
    for arm in ("dimensions", "rules"):
        print(f"\nTable 4: {arm}, seed 0")
        for rule, start, end, aligned in table_4(arm, 0, 80, "runs/autorule"):
            print(f"{start:.2f} -> {end:.2f}  align {aligned:.2f}  {rule}")
    print("\nTable 15:", json.dumps(table_15(0), indent=1))


if __name__ == "__main__":
    main()
