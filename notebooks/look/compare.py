"""compare.py - which of two models is better, and why, from their evaluations.

compare two models on the same problems:
    python -m notebooks.look.compare eval.jsonl
score the completions again, without a model:
    python -m notebooks.look.compare eval.jsonl --regrade boxed --k 1 8

`python eval.py runs/NAME --out eval.jsonl` writes the completions of the
trained model and of the model that it started from. If a model was evaluated
more than once, the last evaluation counts.

eval.py and this command print these columns:

    n                   number of problems
    accuracy, low, high share of right completions; one that was cut off is
                        wrong. low and high: its 95 % interval. Samples of one
                        problem resemble each other, and the interval takes
                        that into account (eval.clustered_interval)
    length, truncated   mean number of tokens; share that was cut off
    answered            share with an answer to grade
    failed              share on which the verifier failed
    pass@k              chance that at least one of k is right (unbiased)

Two models are compared on the same problems. Each completion of the one is
paired with each of the other. If only one of the two was cut off, the gain or
loss is *stopping*; else, if only one has an answer, it is *format*; else
*mathematics*. The three add up to the difference.
"""

import itertools
import math
import statistics
import sys
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

import verifiers
from appendix.plumbing import DataError, read_rows
from eval import evaluate
from notebooks.command import parser_of, run_command, say
from rlvr import score


def read_saved(paths):
    """Read files of `eval.py --out` -> {model: {decoding: its records, sorted and complete}}. Prints
    what it leaves out."""
    found = defaultdict(lambda: defaultdict(list))
    for row in itertools.chain.from_iterable(map(read_rows, paths)):
        if row.keys() >= {"model", "decoding", "index", "sample"}:  # else a header
            place = row["index"], row["sample"]
            evaluations = found[row["model"]][row["decoding"]]
            # An evaluation begins at its first row, because its rows are in order. Its header may be further
            # up: if two evaluations are written at once, both headers may come first.
            if place == (0, 0) or not evaluations:
                evaluations.append({})
            evaluations[-1][place] = row
    return {
        model: {name: complete(f"{model}, {name}", *those) for name, those in by_decoding.items()}
        for model, by_decoding in found.items()
    }


def complete(title, *evaluations):
    """Return the records of a model's last evaluation, in order, without problems that lack some of
    their samples. evaluations: each is {(problem, sample): record}."""
    *earlier, rows = evaluations
    # Do not mention an earlier evaluation that the last one repeats, as for a baseline.
    others = [other for other in earlier if not other.items() <= rows.items()]
    if others:
        sizes = ", ".join(str(len({index for index, _ in other})) for other in others)
        say(f"{title}: the last evaluation counts; left out are earlier ones, of {sizes} problems")
    there = Counter(index for index, _ in rows)
    samples = 1 + max(sample for _, sample in rows)
    whole = [rows[place] for place in sorted(rows) if there[place[0]] == samples]
    if not whole:
        raise DataError(f"{title}: no problem has all its samples")
    problems = 1 + max(there)
    lost = problems - len(whole) // samples
    if lost:
        say(f"{title}: problems without all their samples are left out, {lost} of {problems}")
    return whole


def regrade(records, reward):
    """Score the same completions with another verifier, or another version of it."""
    finished = torch.tensor([not record["truncated"] for record in records])
    texts = [record["completion"] for record in records]
    _, parts = score(SimpleNamespace(finished=finished, num_samples=1), texts, records, reward)
    again = [{**record, **part} for record, part in zip(records, parts)]
    for record in again:
        record["accuracy"] *= 1 - record["truncated"]
    return again


def judge_saved(saved, reward):
    """Score all records again, in place, and print which results changed (--regrade)."""
    changed = []
    for by_decoding in saved.values():
        for decoding, records in by_decoding.items():
            by_decoding[decoding] = regrade(records, reward)
            pairs = zip(records, by_decoding[decoding])
            changed += [new for old, new in pairs if old["accuracy"] != new["accuracy"]]
    print(f"{len(changed)} verdicts changed" + "; the first 20:" * (len(changed) > 20))
    for record in changed[:20]:
        verdict = "right" if record["accuracy"] else "wrong"
        say(f"now {verdict}: truth {record['answer']}, completion ..", "    ")
        print(textwrap.indent(record["completion"][-80:], "        | ", lambda line: True))


def by_problem(records, num_samples):
    return [records[i : i + num_samples] for i in range(0, len(records), num_samples)]


def accuracies(records, num_samples):
    """Return the share of right completions of each problem."""
    groups = by_problem(records, num_samples)
    return [statistics.fmean(record["accuracy"] for record in group) for group in groups]


def print_table(saved, ks):
    """Print a line for each decoding under the name of its model, followed by pass@k."""
    columns = ["accuracy", "low", "high", "length", "truncated", "answered", "failed"]
    print("decoding      n ", *(f"{title:>7}" for title in columns))
    for label, by_decoding in saved.items():
        print(label)
        for decoding, records in by_decoding.items():
            samples = records[-1]["sample"] + 1
            summary = evaluate(records, samples, [k for k in ks if k <= samples])
            cells = [f"{summary[name]:.3f}".rjust(max(7, len(name))) for name in columns]
            print(f"  {decoding:8}{summary['n']:5} ", *cells)
            shares = [f"pass@{k} {summary[f'pass@{k}']:.3f}" for k in ks if k <= samples]
            if shares:
                say("  ".join(shares), "    ")


def paired_interval(changes, z=1.96):
    """Return the mean of one change per problem (-1 to 1) and its 95 % interval: (mean, low, high).

    The interval is computed as if two more problems had changed by 1 and two by -1 (plus-four rule,
    Agresti and Coull 1998). If few problems changed, or none, the plain interval is far too short."""
    mean = statistics.fmean(changes)
    padded = [*changes, 1.0, 1.0, -1.0, -1.0]
    centre = statistics.fmean(padded)
    error = z * statistics.stdev(padded) / math.sqrt(len(padded))
    low = min(mean, centre - error)
    high = max(mean, centre + error)
    return mean, max(-1.0, low), min(1.0, high)


def compare(before, after, num_samples=1):
    """Compare two accuracies, paired by problem -> {"difference", "low", "high", "better", "worse",
    "p"}.

    low, high: 95 % interval of the difference. better, worse: numbers of problems. p: the chance of
    so uneven a split by luck (two-sided sign test). Example: 5 better, 1 worse -> 2 (1 + 6) / 2^6 =
    0.22."""
    old = accuracies(before, num_samples)
    new = accuracies(after, num_samples)
    changes = [b - a for a, b in zip(old, new, strict=True)]
    mean, low, high = paired_interval(changes)
    better = sum(change > 0 for change in changes)
    worse = sum(change < 0 for change in changes)
    splits = [math.comb(better + worse, i) for i in range(min(better, worse) + 1)]
    p = min(1.0, 2 * sum(splits) / 2 ** (better + worse))
    return {"difference": mean, "low": low, "high": high, "better": better, "worse": worse, "p": p}


PARTS = ("stopping", "format", "mathematics")


def kind_of_change(old, new):
    """Return why one model's completion is right and the other's is not."""
    if old["truncated"] != new["truncated"]:
        return "stopping"  # one of them was cut off
    if old["answered"] != new["answered"]:
        return "format"  # one of them has no answer
    return "mathematics"  # two answers, one right and one wrong


def decompose(before, after, num_samples=1):
    """Return where the difference of two accuracies comes from: {part: (mean, low, high)}. The means add
    up.

    Each completion of a problem before is paired with each after. Example, 5 problems, before ->
    after: cut off -> right, no answer -> right, no answer -> wrong, wrong -> right, right -> cut off.
    The gain of 2/5 is stopping 0, format 1/5 and mathematics 1/5."""
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
    """Print how much `after` gained over `before`, how certain that is, and where the gain comes
    from."""
    num_samples = after[-1]["sample"] + 1
    c = compare(before, after, num_samples)
    say(
        f"{decoding}: difference {c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}] to {name}, "
        f"{c['better']} problems better, {c['worse']} worse, sign test p = {c['p']:.2g}"
    )
    parts = decompose(before, after, num_samples).items()
    shown = [f"{part} {mean:+.3f} [{low:+.3f}, {high:+.3f}]" for part, (mean, low, high) in parts]
    say("of it " + ", ".join(shown), "    ")


def print_comparisons(results):
    """Compare the first model with every other, in each decoding that both have."""
    first, *others = results
    for other in others:
        for decoding in [name for name in results[first] if name in results[other]]:
            after = results[first][decoding]
            before = results[other][decoding]
            asked = [[(r["problem"], r["sample"]) for r in records] for records in (before, after)]
            if asked[0] != asked[1]:
                raise DataError(f"{first} and {other} were not evaluated on the same problems")
            print_comparison(decoding, before, after, other)


def main(argv=None):
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("files", nargs="+", help="files that eval.py --out has written")
    add("--regrade", metavar="REWARD", help="score the completions again with this reward")
    add("--k", type=int, nargs="*", default=[], help="values of k for pass@k")
    args = parser.parse_args(argv)
    saved = read_saved(args.files)
    if len(saved) < (1 if args.regrade else 2):
        hint = "`python eval.py runs/NAME --out FILE` writes two, or give it a --baseline"
        raise DataError(f"{', '.join(args.files)}: holds too few models. {hint}")
    if args.regrade:
        judge_saved(saved, verifiers.get_reward(args.regrade))
    print_table(saved, args.k)
    print_comparisons(saved)


if __name__ == "__main__":
    run_command(main, ValueError, KeyError)
