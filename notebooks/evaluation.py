"""evaluation.py - second looks at runs and at the records of evaluations.

    python notebooks/evaluation.py show runs/NAME --step 30         a group: completions, rewards, advantages
    python notebooks/evaluation.py show runs/NAME --best-first      what is paid most, to find hacks
    python notebooks/evaluation.py canary runs/NAME                 did reward and accuracy part?
    python notebooks/evaluation.py tax runs/NAME                    how much of a step the verifiers took
    python notebooks/evaluation.py compare eval.jsonl               two models on the same problems
    python notebooks/evaluation.py regrade eval.jsonl --k 1 8       judge again, without a model
    python notebooks/evaluation.py check-verifier labelled.jsonl    judge the judge

An eval.jsonl is what `python eval.py runs/NAME --out eval.jsonl` writes: the completions of the trained
model and of the one it came from. What samples from a model on many GPUs, or with examples in the
prompt, is in measure.py.

The columns that eval.py prints, and this file:

    n                   problems
    accuracy, low, high share of right completions; one that was cut off is wrong. low and high: its 95 %
                        interval. Samples of one problem resemble each other, and the interval takes that
                        into account (eval.clustered_interval)
    length, truncated   mean tokens; share that was cut off
    answered            share with an answer to grade
    failed              share on which the verifier failed
    pass@k              chance that one of k is right (unbiased)

Two models are compared on the same problems. Each completion of the one is paired with each of the
other. If only one of the two stopped, what was gained or lost is *stopping*; else if only one has an
answer, it is *format*; else *mathematics*. The three add up to the difference.
"""

import argparse
import gzip
import heapq
import itertools
import json
import math
import statistics
import sys
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch

import _root

import eval as core
import verifiers
from model import ModelError
from rlvr import score
from train import read_log
from verifiers import DataError, extract_boxed_answer, grade_answer

# ---- 1. Look at a run ------------------------------------------------------------------------------


def show(run, step=None, groups=1, best_first=False):
    """Print completions of a training step (default: the last) as they were trained on: whole groups,
    first those with unequal rewards; with best_first as many completions by falling reward."""
    files = sorted(Path(run, "samples").glob("step_*.jsonl.gz"))
    if step is not None:
        files = [path for path in files if path.name == f"step_{step:06d}.jsonl.gz"]
    if not files:
        raise DataError(
            f"{run}/samples holds nothing of step {step}; give a run's folder and a step that it made"
        )
    config = json.loads(Path(run, "config.json").read_text(encoding="utf-8"))
    G = config["settings"]["num_samples"]
    rows = samples_of(files[-1])  # a stream: only what is shown is kept in memory
    if best_first:
        best = heapq.nlargest(groups * G, rows, key=lambda row: row["reward"])
        chosen = [[row] for row in best]
    else:
        in_groups = iter(lambda: list(itertools.islice(rows, G)), [])
        chosen = heapq.nlargest(groups, in_groups, key=is_mixed)
    for group in chosen:
        print(f"step {group[0]['step']}: {group[0]['problem']!r}, truth {group[0]['answer']!r}")
        for row in group:
            print_completion(row)
        print()


def is_mixed(group):
    return len({row["reward"] for row in group}) > 1


def print_completion(row):
    """How likely a token was is the geometric mean: near 100 % nothing is explored any more."""
    parts = ", ".join(f"{name} {value:g}" for name, value in parts_of(row).items())
    length = len(row["ids"])
    likely = math.exp(sum(row["logps"]) / max(1, length))
    end = "cut off" if row["truncated"] else "ended"
    print(
        f"\n  reward {row['reward']:.2f}, advantage {row['advantage']:+.2f}; {length} tokens, {end}, "
        f"a token {likely:.0%} likely; boxed {extract_boxed_answer(row['completion'])}; {parts}"
    )
    print("    " + row["completion"].replace("\n", "\n    "))


def parts_of(row):
    """The parts of the reward of a completion in samples/. A number of the data, such as a level, is among them."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in verifiers.RESERVED
    }


def samples_of(path):
    """The completions of a step, one by one. Raises DataError where the file is damaged."""
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                yield json.loads(line)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path}, after line {number}: cannot be read ({error}); is the file damaged?"
        ) from None


def canary(rows):
    """Has what is rewarded come apart from what is wanted? -> a warning or None; rows: of metrics.jsonl so far.

    The mean training reward since the last evaluation is compared with that of the best evaluation: if it is no
    lower but the held-out accuracy is, and the intervals do not touch, something else is being paid for.
    """
    points = []
    rewards = []
    for row in rows:
        rewards.append(row["reward"])
        if "eval_accuracy" in row:
            points.append((statistics.fmean(rewards), row))
            rewards = []
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
    """The command canary: what it would have said first."""
    rows = [*read_log(Path(run)).values()]
    for i in range(len(rows)):
        warning = canary(rows[: i + 1])
        if warning:
            return warning
    return "no warning"


def tax(run):
    """The command tax: the verifier tax (chapter 000), the share of the training steps in which the run waited for
    its verifiers; and of the rest, the share of sampling and of the update."""
    rows = [row for row in read_log(Path(run)).values() if "verify_seconds" in row]
    if not rows:
        raise DataError(f"{run}/metrics.jsonl has no step with verify_seconds: train one, or anew")
    verify = sum(row["verify_seconds"] for row in rows)
    sample = sum(row["sample_seconds"] for row in rows) - verify  # which holds it
    update = sum(row["update_seconds"] for row in rows)
    whole = verify + sample + update
    slowest = max(rows, key=lambda row: row["verify_seconds"])
    return (
        f"verifiers {verify / whole:.1%} of {len(rows)} steps ({verify / len(rows):.3g} s a step; most, "
        f"{slowest['verify_seconds']:.3g} s, in step {slowest['step']}); sampling {sample / whole:.1%}, "
        f"update {update / whole:.1%}; evaluations not counted"
    )


# ---- 2. Judge again --------------------------------------------------------------------------------

KINDS = {
    "completion": str,
    "answer": str,
    "problem": str,
    "model": str,
    "decoding": str,
    "index": int,
    "sample": int,
    "truncated": (int, float),
    "accuracy": (int, float),
    "length": (int, float),
}


DEFAULTS = {
    "model": "file",
    "decoding": "",
    "sample": 0,
    "problem": "",
    "truncated": 0.0,
    "length": 0,
}


def read_saved(paths):
    """Saved evaluations -> (headers by model, {model: {decoding: records, sorted, complete}})."""
    headers = {}
    found = defaultdict(lambda: defaultdict(list))
    for path in paths:
        for number, row in enumerate(core.read_rows(path), 1):
            if is_header(row):
                headers[row["header"]["model"]] = row["header"]
                continue
            row = {**DEFAULTS, "index": number, **row}
            wrong = [key for key, kind in KINDS.items() if not isinstance(row.get(key, 0.0), kind)]
            if wrong:
                raise DataError(
                    f"{path}, entry {number}: {', '.join(wrong)} is missing or of a wrong kind. A record "
                    'needs "completion" and "answer", both text'
                )
            found[row["model"]][row["decoding"]].append(row)
    if not found:
        raise DataError(f"{', '.join(map(str, paths))}: there is no completion in it")
    saved = {}
    for model, by_decoding in found.items():
        saved[model] = {}
        for decoding, rows in by_decoding.items():
            num_samples = 1 + max(row["sample"] for row in rows)
            saved[model][decoding] = complete(rows, num_samples)
    return headers, saved


def is_header(row):
    """A line that says how a model was evaluated; a column of the data may be called header too."""
    return (
        "completion" not in row and isinstance(row.get("header"), dict) and "model" in row["header"]
    )


def complete(records, num_samples):
    """Sorted by problem and sample, each once, without problems of which samples are missing."""
    places = {(r["index"], r["sample"]): r for r in records}
    there = Counter(index for index, _ in places)
    return [places[place] for place in sorted(places) if there[place[0]] == num_samples]


def regrade(records, reward):
    """The same completions under another verifier, or another version of it."""
    finished = torch.tensor([not record.get("truncated") for record in records])
    rewards, parts = score(
        SimpleNamespace(finished=finished, num_samples=1),
        [record["completion"] for record in records],
        records,
        reward,
    )
    again = []
    for record, value, part in zip(records, rewards.flatten().tolist(), parts):
        accuracy = part["accuracy"] * (1 - part["truncated"])
        again.append({**record, **part, "reward": value, "accuracy": accuracy})
    return again


OF_TASKS = {
    "arithmetic": "tagged",
    "one-digit": f"{_root.NOTEBOOKS}/one_digit.py:exact_reward",
}  # where a header names no reward


def reward_name(header, records):
    """What judged these records: as the header says, else the reward of the task's kind."""
    default = "code" if "tests" in records[0] else "boxed"
    return header.get("reward") or OF_TASKS.get(header.get("task"), default)


def judge_saved(paths, spec, ks):
    """The command regrade: the table again, and which verdicts changed."""
    headers, saved = read_saved(paths)
    results = defaultdict(dict)
    changed = []
    print_columns(ks)
    for label, by_decoding in saved.items():
        header = headers.get(label, {})
        for decoding, records in by_decoding.items():
            name = spec or reward_name(header, records)
            again = regrade(records, verifiers.get_reward(name))
            for old, new in zip(records, again):
                if old.get("accuracy", new["accuracy"]) != new["accuracy"]:
                    changed.append(new)
            results[label][decoding] = again
            print_row(label, decoding, again, ks)
    print_comparisons(results)
    before = ", ".join({str(header.get("git")) for header in headers.values()}) or "unknown"
    now = core.git_commit()
    print(f"{len(changed)} verdicts changed (commit {before} -> {now}, reward {name})")
    for record in changed[:20]:
        verdict = "right" if record["accuracy"] else "wrong"
        end = record["completion"][-80:]
        print(f"    now {verdict}: truth {record['answer']!r}, completion {end!r}")


def check_verifier(rows, reward):
    """Verdicts against labels -> (number of right verdicts, the wrong ones as (kind, row)).

    rows: "gold" and "expect" (true, false, or null: debatable, not counted), and "pred", an answer for
    grade_answer, or "completion", a text for the reward. False accepts are worse: training finds them.
    """
    right = 0
    wrong = []
    for row in rows:
        if row.get("expect") is None:
            continue
        if "pred" in row:
            accepted = grade_answer(row["pred"], row["gold"])
        else:
            (record,) = regrade([{"answer": row["gold"], **row}], reward)
            accepted = record["accuracy"] == 1
        if accepted == row["expect"]:
            right += 1
        else:
            wrong.append(("false accept" if accepted else "false reject", row))
    return right, wrong


def judge_verifier(path, spec):
    """The command check-verifier: its accuracy on labelled answers, and the disagreements to read."""
    rows = core.read_rows(path)
    for number, row in enumerate(rows, 1):
        texts = (row.get("gold"), row.get("pred", row.get("completion")))
        if "expect" not in row or not all(isinstance(text, str) for text in texts):
            form = '"gold" and "pred" (or "completion") must be text, and "expect" be there'
            raise DataError(f"{path}, entry {number}: {form}")
    right, wrong = check_verifier(rows, verifiers.get_reward(spec))
    n = right + len(wrong)
    kinds = Counter(kind for kind, _ in wrong)
    low, high = core.wilson_interval(right / max(1, n), max(1, n))
    print(
        f"{n} labelled answers: {right / max(1, n):.2%} judged right [{low:.2%}, {high:.2%}], "
        f"{kinds['false accept']} false accepts, {kinds['false reject']} false rejects"
    )
    for kind, row in wrong:
        print(
            f"    {kind}: truth {row['gold']!r}, answer {row.get('pred', row.get('completion'))!r}"
        )


# ---- 3. A table of models --------------------------------------------------------------------------


def by_problem(records, num_samples):
    return [records[i : i + num_samples] for i in range(0, len(records), num_samples)]


def accuracies(records, num_samples):
    """The share of right completions of each problem."""
    groups = by_problem(records, num_samples)
    return [statistics.fmean(record["accuracy"] for record in group) for group in groups]


COLUMNS = ("accuracy", "low", "high", "length", "truncated", "answered", "failed")


def print_columns(ks):
    """The titles of the table that print_row continues."""
    titles = [*COLUMNS, *(f"pass@{k}" for k in ks)]
    print(f"{'model':36} decoding     n", *(f"{title:>9}" for title in titles))


def print_row(label, decoding, records, ks):
    samples = records[-1]["sample"] + 1
    possible = [k for k in ks if k <= samples]
    summary = core.summarise(records, samples, possible)
    names = [*COLUMNS, *(f"pass@{k}" for k in possible)]
    title = f"{label[-36:]:36} {decoding:8} {summary['n']:5}"
    print(title, *(f"{summary[name]:9.3f}" for name in names))


# ---- 4. Two models on the same problems ------------------------------------------------------------


def paired_interval(changes, z=1.96):
    """The mean of one change per problem, each from -1 to 1, and its 95 % interval -> (mean, low, high).

    It is computed as if two more problems had got better by 1 and two worse (plus-four rule, Agresti and
    Coull 1998): where few problems changed, or none, the plain interval is far too short."""
    mean = statistics.fmean(changes)
    padded = [*changes, 1.0, 1.0, -1.0, -1.0]
    n = len(padded)
    centre = sum(padded) / n
    variance = sum((change - centre) ** 2 for change in padded) / (n - 1)
    error = z * math.sqrt(variance / n)
    low = min(mean, centre - error)
    high = max(mean, centre + error)
    return mean, max(-1.0, low), min(1.0, high)


def compare(before, after, num_samples=1):
    """The paired difference of two accuracies -> {"difference", "low", "high", "better", "worse", "p"}.

    low, high: its 95 % interval. better, worse: how many problems. p: the chance of so uneven a split by
    luck (two-sided sign test). Example: 5 better, 1 worse -> 2 (1 + 6) / 2^6 = 0.22."""
    old = accuracies(before, num_samples)
    new = accuracies(after, num_samples)
    changes = [b - a for a, b in zip(old, new, strict=True)]
    mean, low, high = paired_interval(changes)
    better = sum(change > 0 for change in changes)
    worse = sum(change < 0 for change in changes)
    splits = [math.comb(better + worse, i) for i in range(min(better, worse) + 1)]
    p = min(1.0, 2 * sum(splits) / 2 ** (better + worse))
    return {
        "difference": mean,
        "low": low,
        "high": high,
        "better": better,
        "worse": worse,
        "p": p,
    }


PARTS = ("stopping", "format", "mathematics")


def kind_of_change(old, new):
    """Why a completion of one model is right and one of the other is not."""
    if old["truncated"] != new["truncated"]:
        return "stopping"  # one of them was cut off
    if old["answered"] != new["answered"]:
        return "format"  # one of them has no answer
    return "mathematics"  # two answers, one right and one wrong


def decompose(before, after, num_samples=1):
    """Where the difference of two accuracies comes from -> {part: (mean, low, high)}. The means add up.

    Each completion of a problem before is paired with each after. Example, 5 problems, before -> after:
    cut off -> right, no answer -> right, no answer -> wrong, wrong -> right, right -> cut off. The gain
    of 2/5 is stopping 0, format 1/5 and mathematics 1/5."""
    old_groups = by_problem(before, num_samples)
    new_groups = by_problem(after, num_samples)
    changes = {part: [] for part in PARTS}
    for old_group, new_group in zip(old_groups, new_groups, strict=True):
        sums = dict.fromkeys(PARTS, 0.0)
        for old, new in itertools.product(old_group, new_group):
            sums[kind_of_change(old, new)] += new["accuracy"] - old["accuracy"]
        for part in PARTS:
            changes[part].append(sums[part] / num_samples**2)
    return {part: paired_interval(changes[part]) for part in PARTS}


def print_comparison(decoding, before, after, name):
    """What the second model gained over the first, how surely, and where it comes from."""
    num_samples = after[-1]["sample"] + 1
    c = compare(before, after, num_samples)
    print(
        f"{decoding}: difference {c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}] to {name}, "
        f"{c['better']} problems better, {c['worse']} worse, sign test p = {c['p']:.2g}"
    )
    parts = decompose(before, after, num_samples).items()
    shown = [f"{part} {mean:+.3f} [{low:+.3f}, {high:+.3f}]" for part, (mean, low, high) in parts]
    print("    of it " + ", ".join(shown))


def print_comparisons(results):
    """The first model against every other, in each decoding that both have."""
    first, *others = results
    for other in others:
        for decoding in results[first]:
            after = results[first][decoding]
            before = results[other].get(decoding, [])
            if not before:
                continue
            asked = [[(r["problem"], r["sample"]) for r in records] for records in (before, after)]
            if asked[0] != asked[1]:
                raise DataError(f"{first} and {other} were not evaluated on the same problems")
            print_comparison(decoding, before, after, other)


def compare_saved(paths, ks):
    """The command compare."""
    _, saved = read_saved(paths)
    if len(saved) < 2:
        raise DataError(
            f"{', '.join(paths)}: holds one model, {next(iter(saved))}. Two are there after "
            "`python eval.py runs/NAME --out FILE`, or with --baseline"
        )
    print_columns(ks)
    for label, by_decoding in saved.items():
        for decoding, records in by_decoding.items():
            print_row(label, decoding, records, ks)
    print_comparisons(saved)


# ---- 5. The command --------------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    commands = ["show", "canary", "tax", "compare", "regrade", "check-verifier"]
    add("command", choices=commands)
    add("names", nargs="+", metavar="name", help="a run, or files")
    add("--step", type=int, help="of show (default: the last)")
    add("--groups", type=int, default=1, help="of show")
    add(
        "--best-first", action="store_true", help="with show: the highest rewards instead of groups"
    )
    add("--reward", help="whose verdict counts")
    add("--k", type=int, nargs="*", default=[], help="pass@k")
    args = parser.parse_args(argv)
    if args.command == "show":
        show(args.names[0], args.step, args.groups, args.best_first)
    elif args.command == "canary":
        print(first_warning(args.names[0]))
    elif args.command == "tax":
        print(tax(args.names[0]))
    elif args.command == "compare":
        compare_saved(args.names, args.k)
    elif args.command == "regrade":
        judge_saved(args.names, args.reward, args.k)
    else:
        judge_verifier(args.names[0], args.reward or "boxed")


if __name__ == "__main__":
    try:
        main()
    except (ModelError, DataError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
