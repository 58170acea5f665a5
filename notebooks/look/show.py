"""show.py - prints completions of a run, and what its log reveals.

a group of completions, with rewards and advantages:
    python -m notebooks.look.show runs/NAME --step 30
the completions with the highest rewards, to find hacks:
    python -m notebooks.look.show runs/NAME --best-first
does the reward rise while accuracy falls?
    python -m notebooks.look.show runs/NAME --canary
how much of the time do the verifiers take?
    python -m notebooks.look.show runs/NAME --tax
"""

import gzip
import heapq
import itertools
import json
import math
import statistics
import sys
import textwrap
import zlib
from decimal import Decimal
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

import verifiers
from appendix.plumbing import DataError
from notebooks.command import check_run, log_of, parser_of, run_command, say
from verifiers import extract_boxed_answer


def show(run, step=None, groups=1, best_first=False):
    """Print completions of a training step (default: the last) as they were trained on: whole groups, mixed ones
    first. With best_first, print as many completions by falling reward."""
    name = "step_*" if step is None else f"step_{step:06d}"
    check_run(run)
    files = sorted(Path(run, "samples").glob(f"{name}.jsonl.gz"))
    if not files:
        why = "no completions yet" if step is None else f"no step {step} (the first is 1)"
        raise DataError(f"{run}/samples has {why}: give a step that the run has made")
    config = json.loads(Path(run, "config.json").read_text(encoding="utf-8"))
    G = config["settings"]["num_samples"]
    rows = samples_of(files[-1])  # a stream: only completions to show stay in memory
    if best_first:
        best = heapq.nlargest(groups * G, rows, key=lambda row: row["reward"])
        chosen = [[row] for row in best]
    else:
        in_groups = iter(lambda: list(itertools.islice(rows, G)), [])
        chosen = heapq.nlargest(groups, in_groups, key=is_mixed)
    for group in chosen:
        print(f"step {group[0]['step']}")
        print_text("problem", group[0]["problem"])
        print_text("answer", group[0]["answer"])
        for row in group:
            print_completion(row)
        print()


def is_mixed(group):
    return len({row["reward"] for row in group}) > 1


def print_text(title, text):
    """Print a text below its title, with a mark at the beginning of each line."""
    print(f"  {title}")
    print(textwrap.indent(text, "  | ", lambda line: True))


def print_completion(row):
    """Print a completion with its scores. How likely a token was is a geometric mean: near 100 %, the policy no
    longer explores."""
    boxed = extract_boxed_answer(row["completion"])
    parts = [] if boxed is None else [f"boxed {boxed}"]
    parts += [f"{name} {value:.6g}" for name, value in parts_of(row).items()]
    length = len(row["ids"])
    likely = math.exp(sum(row["logps"]) / max(1, length))
    end = "cut off" if row["truncated"] else "ended"
    print()
    scores = f"reward {row['reward']:.2f}, advantage {row['advantage']:+.2f}"
    say(f"{scores}; {length} tokens, {end}, a token {likely:.0%} likely", "  ")
    say(", ".join(parts), "  ")
    for who, text in turns_of(row):
        print_text(who, text)


def turns_of(row):
    """Split a completion into turns: [("policy" or "environment", what it said)]. If it was cut off, or the
    environment failed, its last words are in no turn: they are the rest of the completion."""
    said = []
    rest = row["completion"]
    reply = ""
    for own, reply in row.get("turns", ()):
        said.append(("policy", own))
        if reply is not None:
            said.append(("environment", str(reply)))
        # subtle: a turn may have special tokens that the completion lacks. Then its words are shown twice.
        if own in rest:
            rest = rest[rest.index(own) + len(own) :]
    return said if reply is None or said and not rest else [*said, ("policy", rest)]


def parts_of(row):
    """Return the parts of a completion's reward, from samples/. They include numbers of the data, such as a level,
    which may be integers too large for a float."""
    return {
        name: Decimal(value) if abs(value) > 1e300 else value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in verifiers.RESERVED
    }


def samples_of(path):
    """Yield the completions of a step one by one. Raises DataError if the file is damaged."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); is the file damaged?") from None


def canary(rows):
    """Return a warning if the reward has come apart from held-out accuracy, else None. rows: metrics.jsonl so far.

    Each evaluation is paired with the mean training reward since the one before. The last is compared with the best
    earlier one: if its reward is no lower, but its accuracy is, and the intervals do not overlap, something else
    earns the reward.
    """
    points = []
    rewards = []
    for row in rows:
        rewards.append(row["reward"])
        if "eval_accuracy" in row:
            points.append((statistics.fmean(rewards), row))
            rewards = []
    if not points:  # the log has lost its beginning
        return None
    (now, last), earlier = points[-1], points[:-1] or points
    then, best = max(earlier, key=lambda point: point[1]["eval_sampled_accuracy"])
    if now < then or last["eval_sampled_high"] >= best["eval_sampled_low"]:
        return None
    return (
        f"warning: the training reward went from {then:.3f} (step {best['step']}) to {now:.3f}, but held-out "
        f"accuracy from {best['eval_sampled_accuracy']:.3f} to {last['eval_sampled_accuracy']:.3f} (step "
        f"{last['step']}): read samples/ for a hack"
    )


def first_warning(run):
    """Return the first warning of `canary` as the log grew (--canary)."""
    rows = log_of(run)
    warnings = (canary(rows[: i + 1]) for i in range(len(rows)))
    return next(filter(None, warnings), "no warning")


def tax(run):
    """Return the verifier tax (chapter 14): the share of the time of all training steps that the run waited for
    its verifiers. Also returns the shares of sampling and of the update (--tax)."""
    rows = [row for row in log_of(run) if "verify_seconds" in row]
    if not rows:
        raise DataError(f"{run}/metrics.jsonl has no step with verify_seconds: train a step first")
    verify = sum(row["verify_seconds"] for row in rows)
    sample = sum(row["sample_seconds"] for row in rows) - verify  # it includes verify_seconds
    update = sum(row["update_seconds"] for row in rows)
    whole = verify + sample + update
    slowest = max(rows, key=lambda row: row["verify_seconds"])
    return (
        f"verifiers {verify / whole:.1%} of {len(rows)} steps ({verify / len(rows):.3g} s a step; most, "
        f"{slowest['verify_seconds']:.3g} s, in step {slowest['step']}); sampling {sample / whole:.1%}, "
        f"update {update / whole:.1%}; evaluations not counted"
    )


def main(argv=None):
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("run", help="the folder of a run")
    add("--step", type=int, help="training step (default: the last)")
    add("--groups", type=int, default=1, help="number of groups (default: 1)")
    add("--best-first", action="store_true", help="highest rewards first, not by groups")
    add("--canary", action="store_true", help="print the first warning, if there is one")
    add("--tax", action="store_true", help="print the verifiers' share of the time")
    args = parser.parse_args(argv)
    if args.canary:
        say(first_warning(args.run))
    elif args.tax:
        say(tax(args.run))
    else:
        show(args.run, args.step, args.groups, args.best_first)


if __name__ == "__main__":
    run_command(main, ValueError, KeyError)
