"""changes.py - change one line of page.py, train the tiny model, and see.

    python -m notebooks.changes                          all, three seeds each
    python -m notebooks.changes "no baseline" --seeds 0

Whatever a change rewards, the unchanged page measures the accuracy. Notebook 0
makes these changes one by one.
"""

import contextlib
import io
import json
import random
import re
import sys
from pathlib import Path
from statistics import mean
from types import ModuleType

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if it is started as a file

from notebooks import page
from notebooks.command import parser_of, run_command

SOURCE = Path(page.__file__).read_text(encoding="utf-8")
ADVANTAGE = "(rewards - mean) / (std + 1e-6)"
REWARD = "float(extract_boxed_answer(response) == ground_truth.strip())"
MASK = "mask = real[:, start:]"
CHANGES = {  # name: (a piece of a line, its replacement), or settings of train_rlvr
    "nothing changed": {},
    "G = 2": {"P": 64, "G": 2},
    "no baseline": (ADVANTAGE, "rewards"),
    "no baseline, and rewards of 1 and 2": (ADVANTAGE, "rewards + 1"),
    "the first box": ("text.rpartition(", "text.partition("),
    "a reward for length": (REWARD, f"{REWARD} + len(response) / 20"),
    "temperature 2": {"temperature": 2.0},
    "the stop is not trained": (MASK, f"{MASK} & (ids[:, start:] != 0)"),
    "padding is trained": (MASK, f"{MASK} | True"),
    "log-probs of the wrong column": ("[:, start - 1 :]", "[:, start - 2 : -1]"),
}


def changed_page(change):
    """Return page.py with the change, as a module, and the settings that change."""
    module = ModuleType("changed_page")
    module.__file__ = page.__file__
    settings = change if isinstance(change, dict) else {}
    assert settings is change or SOURCE.count(change[0]) == 1, f"{change[0]} is not on one line"
    source = SOURCE if settings is change else SOURCE.replace(*change)
    exec(compile(source, "page.py, changed", "exec"), module.__dict__)
    return module, settings


def diff(change):
    """Return the change as lines of text."""
    if isinstance(change, dict):
        return [f"{key} = {value}" for key, value in change.items()]
    (line,) = [
        line.partition("  #")[0].strip() for line in SOURCE.splitlines() if change[0] in line
    ]
    return [f"- {line}", f"+ {line.replace(*change)}"]


def run(change, seed=0, steps=50):
    """Train with the change. Returns the accuracy and the mean reward of each step and, measured on held-out problems
    afterwards, the greedy accuracy, the sampled accuracy, the mean length of samples in tokens, and one sample."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random.seed(seed)
    changed, settings = changed_page(change)
    usual = changed.roll_out
    accuracies = []

    def roll_out(model, problems, G, *others, **how):
        *rollouts, texts = usual(model, problems, G, *others, **how)
        if G > 1:  # not in an evaluation
            ids, real, *_ = rollouts
            ended = ~real[:, -1] | (ids[:, -1] == 0)  # not cut off
            truths = [answer for _, answer in problems for _ in range(G)]
            right = torch.tensor([*map(page.reward_rlvr, texts, truths)])
            accuracies.append((right * ended).mean().item())
        return *rollouts, texts

    changed.roll_out = roll_out
    model = changed.Qwen3(Path(page.__file__).parent / "tiny")
    problems = changed.sums(1000)
    train, test = problems[200:], problems[:200]
    with contextlib.redirect_stdout(io.StringIO()):
        rewards = changed.train_rlvr(
            model, train, test, **{**changed.TINY, "steps": steps, **settings}
        )
    *_, greedy, _ = page.roll_out(model, test, 1, 80, 1e-6)
    _, real, start, sampled, texts = page.roll_out(model, test, 4, 80, 1.0)
    tokens = real[:, start:].sum(1).float().mean()
    after = [value.mean().item() for value in (greedy, sampled, tokens)]
    return accuracies, rewards, *after, test[0][0] + texts[0]


def tell(name, steps):
    """Print a change and what happens. Returns the accuracies of the steps."""
    print(*diff(CHANGES[name]), sep="\n")
    accuracies, rewards, greedy, sampled, tokens, text = run(CHANGES[name], steps=steps)
    blocks = [mean(accuracies[i : i + 5]) for i in range(0, steps, 5)]
    print("accuracy, five steps at a time:", *(f"{block:.2f}" for block in blocks))
    print(f"mean reward {rewards[0]:.2f} -> {rewards[-1]:.2f}")
    print(
        f"held-out: greedy {greedy:.2f}, sampled {sampled:.2f}, {tokens:.0f} tokens, for example {text}"
    )
    return accuracies


def show(name, seeds):
    """Run the change with each seed. Returns its row of the table."""
    accuracies, _, *after, _ = zip(*(run(CHANGES[name], seed) for seed in seeds))
    columns = [[mean(curve[20:25]) for curve in accuracies], after[1], after[0]]
    cells = [f"{mean(c):.2f} [{min(c):.2f} - {max(c):.2f}]" for c in columns]
    print(name, *cells, sep="  ", flush=True)
    return [name, *cells, f"{mean(after[2]):.0f}"]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="CHANGE", help=f"one of: {', '.join(CHANGES)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    if unknown := {*args.names} - {*CHANGES}:
        parser.error(f"there is no change {unknown.pop()!r}: choose one of {', '.join(CHANGES)}")
    rows = [show(name, args.seeds) for name in args.names or CHANGES]
    columns = ["one change of the page", "steps 21 to 25", "after 50 steps", "greedy", "tokens"]
    sentences = {re.sub(r"\W+", "_", row[0]): row[2] for row in rows}
    print(
        json.dumps({"columns": columns, "rows": rows, "seeds": args.seeds, "sentences": sentences})
    )


if __name__ == "__main__":
    run_command(main)
