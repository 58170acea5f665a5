"""changes.py - change one line of page.py, train the tiny model, and see what happens.

    python -m notebooks.changes                             all changes below, three seeds each
    python -m notebooks.changes "no baseline" --seeds 0

Whatever is rewarded, accuracy is judged by the unchanged page. Notebook 0 makes these changes one by one.
"""

import contextlib
import io
import json
import random
import re
from pathlib import Path
from statistics import mean
from types import ModuleType

import torch

from appendix.plumbing import DataError
from notebooks import page
from notebooks.command import parser_of, run_command

SOURCE = Path(page.__file__).read_text(encoding="utf-8")
ADVANTAGE = "(rewards - mean) / (std + 1e-6)"
REWARD = "float(extract_boxed_answer(response) == ground_truth)"
MASK = "mask = real[:, start:]"
CHANGES = {  # a piece of a line and what replaces it, or other settings of train_rlvr
    "nothing changed": {},
    "G = 2": {"P": 64, "G": 2},
    "no baseline": {"old": ADVANTAGE, "new": "rewards"},
    "no baseline, and rewards of 1 and 2": {"old": ADVANTAGE, "new": "rewards + 1"},
    "the first box": {"old": "text.rpartition(", "new": "text.partition("},
    "a reward for length": {"old": REWARD, "new": f"{REWARD} + len(response) / 20"},
    "temperature 2": {"temperature": 2.0},
    "the stop is not trained": {"old": MASK, "new": f"{MASK} & (ids[:, start:] != 0)"},
    "padding is trained": {"old": MASK, "new": f"{MASK} | True"},
    "log-probs of the wrong column": {"old": "[:, start - 1 :]", "new": "[:, start - 2 : -1]"},
}


def changed_page(old="", new=""):
    """page.py with one line changed, as a module."""
    assert not old or SOURCE.count(old) == 1, f"{old!r} is not in exactly one line of page.py"
    module = ModuleType("changed_page")
    module.__file__ = page.__file__
    exec(compile(SOURCE.replace(old, new), "page.py, changed", "exec"), module.__dict__)
    return module


def run(old="", new="", seed=0, **settings):
    """Train -> (accuracy of the completions of each step, what is measured afterwards)."""
    torch.set_num_threads(1)
    changed = changed_page(old, new)
    usual = changed.roll_out
    accuracies = []

    def roll_out(model, problems, G, *others, **how):
        *rollouts, texts = usual(model, problems, G, *others, **how)
        if G > 1:  # not in an evaluation
            truths = [answer for _, answer in problems for _ in range(G)]
            accuracies.append(mean(map(page.reward_rlvr, texts, truths)))
        return *rollouts, texts

    changed.roll_out = roll_out
    torch.manual_seed(seed)
    random.seed(seed)
    model = page.Qwen3(Path(page.__file__).parent / "tiny")
    problems = page.sums(1000)
    with contextlib.redirect_stdout(io.StringIO()):
        rewards = changed.train_rlvr(
            model, problems[200:], problems[:200], **{**page.TINY, **settings}
        )
    *_, greedy, _ = page.roll_out(model, problems[:200], 1, 80, 1e-6)
    _, real, start, sampled, texts = page.roll_out(model, problems[:200], 4, 80, 1.0)
    return accuracies, {
        "reward": rewards,
        "greedy": greedy.mean().item(),
        "sampled": sampled.mean().item(),
        "tokens": real[:, start:].sum(1).float().mean().item(),
        "text": problems[0][0] + texts[0],
    }


def diff(name):
    """The change as lines."""
    change = CHANGES[name]
    if "old" not in change:
        return [f"{key} = {value}" for key, value in change.items()]
    line = next(line for line in SOURCE.splitlines() if change["old"] in line)
    line = line.partition("  #")[0].strip()
    return [f"- {line}", f"+ {line.replace(change['old'], change['new'])}"]


def tell(name, **settings):
    """Print a change and what happens -> the accuracies of the steps."""
    print(*diff(name), sep="\n")
    accuracies, after = run(**{**CHANGES[name], **settings})
    blocks = [mean(accuracies[i : i + 5]) for i in range(0, len(accuracies), 5)]
    print("accuracy, five steps at a time:", *(f"{block:.2f}" for block in blocks))
    print(
        f"mean reward {after['reward'][0]:.2f} -> {after['reward'][-1]:.2f};  afterwards, on held-out "
        f"problems: sampled {after['sampled']:.2f}, greedy {after['greedy']:.2f}, {after['tokens']:.0f} tokens"
    )
    print(after["text"])
    return accuracies


def show(name, seeds):
    """Run the change with each seed -> its row of the table."""
    runs = [run(**CHANGES[name], seed=seed) for seed in seeds]
    half = [mean(accuracies[20:25]) for accuracies, _ in runs]
    columns = [
        half,
        *([after[key] for _, after in runs] for key in ("sampled", "greedy", "tokens")),
    ]
    cells = [f"{mean(c):.2f} [{min(c):.2f} - {max(c):.2f}]" for c in columns[:3]]
    row = [name, *cells, f"{mean(columns[3]):.0f}"]
    print("  ".join(row), flush=True)
    return row


def main():
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="CHANGE", help=f"one of: {', '.join(CHANGES)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    names = args.names or [*CHANGES]
    if unknown := {*names} - {*CHANGES}:
        raise DataError(f"there is no change {unknown.pop()!r}: choose one of {', '.join(CHANGES)}")
    rows = [show(name, args.seeds) for name in names]
    columns = "one change of the page,steps 21 to 25,after 50 steps,greedy,tokens"
    result = {"columns": columns.split(","), "rows": rows, "seeds": args.seeds}
    result["sentences"] = {re.sub(r"\W+", "_", row[0]): row[2] for row in rows}
    print(json.dumps(result))


if __name__ == "__main__":
    run_command(main)
