"""autorule_tables.py - the paper's Tables 1 and 4, as far as the simulated world reaches.

    python -m notebooks.autorule.autorule_tables         from the runs of autorule_world.py

Table 1 asks how often a trained policy wins against the policy it started from; Table 4 what each rule
scored at the start and at the end of training.

Left out, because nothing here could measure it: AlpacaEval and MT-Bench; PPO, length control, RaR and
RLCF (Table 1). Table 10, the settings of training, is notebooks/recipes/autorule.txt. K rules.
"""

import re

import numpy as np

import train
from model import load
from notebooks.autorule import autorule
from notebooks.autorule import autorule_world as world
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
    """A table of world: {arm: {column: a value for each seed}}."""
    finals = {
        arm: [world.run_arm(arm, seed, steps, runs) / "final" for seed in seeds] for arm in arms
    }
    return world.table_of({arm: [win_rate(final) for final in finals[arm]] for arm in arms})


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


def main():
    arms = ["reward model", "length penalty", "concise rule", "dimensions", "rules"]
    print("Table 1: wins against the base")
    world.print_table(table_1(arms, [0, 1, 2], 80, "runs/autorule"))
    for arm in ("dimensions", "rules"):
        print(f"\nTable 4: {arm}, seed 0")
        for rule, start, end, aligned in table_4(arm, 0, 80, "runs/autorule"):
            print(f"{start:.2f} -> {end:.2f}  align {aligned:.2f}  {rule}")


if __name__ == "__main__":
    main()
