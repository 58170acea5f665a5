"""report.py - a run as one page to look at: curves, histograms of what was paid, the completions.

    python -m notebooks.look.report runs/NAME                   writes report.html, for any browser
    python -m notebooks.look.report runs/NAME runs/OTHER        two runs, and where their verdicts differ

The page is one file that loads nothing. What a model said is in it as JSON and is only ever shown as
text; besides, its content security policy lets no script run but its own. What it leaves out it says.
"""

import base64
import hashlib
import json
import math
import re
import statistics
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from pathlib import Path

import train
from model import ModelError, Tokenizer
from notebooks.look.show import parts_of, samples_of
from verifiers import DataError

BYTES = 10_000_000  # the page is no larger
STEPS = 60  # of so many steps it shows completions
CHARACTERS = 4000  # of a completion; halved, as then STEPS is, until the page is small enough
ROWS = 2000  # rows of metrics.jsonl that are drawn
COLUMNS = re.compile(
    "step|(reward|completion_length)(_low|_high)?|entropy|solved|mixed|hopeless|eval_.*"
)
NUMBER = (int, float)

# ---- 1. Less of it -------------------------------------------------------------------------------


def thin(items, most):
    """At most so many (two or more) of the items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def between(pieces, start, end):
    """The pieces, or parts of them, from character `start` to `end` of the text that they spell."""
    found = []
    place = 0
    for text, logp in pieces:
        part = text[max(0, start - place) : max(0, end - place)]
        if part or not text and start <= place <= end:  # the end token has no text
            found.append((part, logp))
        place += len(text)
    return found


def shorten(pieces, most):
    """[(text, logp), ..] longer than so many characters -> three quarters of them from the start, one from
    the end, where the answer stands, and between them (how many characters are left out, None)."""
    total = sum(len(text) for text, _ in pieces)
    if total <= most:
        return pieces
    start = most * 3 // 4
    end = total - most // 4
    return between(pieces, 0, start) + [(end - start, None)] + between(pieces, end, total)


def numbers(row):
    """What is a finite number in it, to five digits; JSON has no NaN."""
    return {
        name: int(value) if isinstance(value, int) else float(f"{value:.5g}")
        for name, value in row.items()
        if isinstance(value, NUMBER) and math.isfinite(value)
    }


# ---- 2. What a run holds -------------------------------------------------------------------------


def read_log(run):
    """(flags and settings, rows of metrics.jsonl, {step: file of its samples}). Raises DataError for what is missing."""
    path = run / "config.json"
    if not path.is_file():
        raise DataError(f"there is no {path}: give the folder of a run, runs/NAME")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        flags = {**config["flags"], **config["settings"]}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is damaged ({error!r}): put it back, or give another run"
        ) from None
    rows = [numbers(row) for row in train.read_log(run).values()]
    if not rows or not all("step" in row for row in rows):
        raise DataError(
            f"{run}/metrics.jsonl holds no step yet, or one without a number: wait for the first evaluation"
        )
    files = {int(file.name[5:11]): file for file in sorted(run.glob("samples/step_*.jsonl.gz"))}
    return flags, rows, files


def tokenizer_of(run, flags):
    """That of the run, or of the model it started from; None if neither is on this disk."""
    for directory in (run / "final", Path(str(flags.get("model")))):
        if (directory / "tokenizer.json").is_file():
            try:
                return Tokenizer.from_dir(directory, (), "plain")
            except ModelError:  # it is just being written, or damaged
                continue


def pieces_of(row, tokenizer):
    """What each token added to the completion -> [(text, log-prob), ..]; not known: [(completion, None)].

    subtle: a byte-level token can be a part of a character, and what it adds depends on the one before. So
    the last piece is decoded again with what follows; tokens that make one character make one piece."""
    ids = row.get("ids")
    logps = row.get("logps")
    completion = row["completion"]
    pieces = []
    last = 0
    done = 0
    before = ""  # `before` is the last piece, ids[last:done]
    try:
        for i in range(1, len(ids) + 1):
            now = tokenizer.decode(ids[last:i])
            if i == len(ids) or len(now) > len(before) and not now.endswith("\ufffd"):
                pieces.append((now[len(before) :], sum(logps[done:i])))
                last, done, before = done, i, tokenizer.decode(ids[done:i])
    except (AttributeError, TypeError, OverflowError):  # no tokenizer, an older run, damage
        return [(completion, None)]
    said = "".join(text for text, _ in pieces)
    if not pieces or len(ids) != len(logps) or not said.startswith(completion):
        return [(completion, None)]  # the tokenizer is another
    return pieces if said == completion else between(pieces, 0, len(completion))  # cut at a --stop


REPLY = 1.0  # in the place of a log-prob, which is never above 0


def with_replies(pieces, turns):
    """Behind the piece that ends a turn stands what the environment replied, as (reply, REPLY)."""
    shown = []
    length = 0
    turns = [*turns]
    for text, logp in pieces:
        shown.append((text, logp))
        length += len(text)
        while turns and length >= len(turns[0][0]):
            said, reply = turns.pop(0)
            length -= len(said)
            shown += [(reply, REPLY)] if reply else []
    return shown


def for_page(row, tokenizer, most):
    """A line of samples/ as the page wants it; a number among the pieces: characters left out."""
    pieces = with_replies(pieces_of(row, tokenizer), row.get("turns", []))
    pieces = shorten(pieces, most)
    shown = {
        **numbers({name: row[name] for name in ("reward", "advantage")}),
        "parts": numbers(parts_of(row)),
        "length": len(row["ids"]),
        "finished": not row["truncated"],
        "pieces": [text for text, _ in pieces],
        "right": row["accuracy"] > 0.5,
    }
    if any(logp is not None for _, logp in pieces):
        shown["percent"] = [
            logp if logp is None else -1 if logp == REPLY else round(100 * math.exp(min(0, logp)))
            for _, logp in pieces
        ]
    return shown


def read_groups(step, path, num_samples, tokenizer, most):
    """The groups of a step, with problem and completions."""
    rows = list(samples_of(path))
    groups = []
    for number, start in enumerate(range(0, len(rows), num_samples), 1):
        group = rows[start : start + num_samples]
        asked = {
            name: shorten([(str(group[0].get(name, "")), None)], most)
            for name in ("problem", "answer")
        }
        groups.append(
            {
                "step": step,
                "number": number,
                "completions": [for_page(row, tokenizer, most) for row in group],
                **{name: [text for text, _ in pieces] for name, pieces in asked.items()},
            }
        )
    return groups


def interval(groups, name):
    """Mean -+ two standard errors of a step's completions -> (low, high). Those of one problem resemble each
    other, so the means of the groups are what varies freely: 0.5, 0.7, 0.9 -> 0.7 -+ 2 x 0.2 / sqrt(3)."""
    means = [
        statistics.fmean(row.get(name, math.nan) for row in group["completions"])
        for group in groups
    ]
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return statistics.fmean(means) - 2 * error, statistics.fmean(means) + 2 * error


def read_run(run, steps, most):
    """All that the page shows of a run: its numbers, and of these steps the completions."""
    flags, rows, files = read_log(run)
    tokenizer = tokenizer_of(run, flags)
    by_step = {row["step"]: row for row in rows}
    groups = []
    notes = []
    for step in sorted(steps & files.keys()):
        try:
            here = read_groups(step, files[step], flags["num_samples"], tokenizer, most)
        except DataError:
            if step != max(files):
                raise
            notes.append(f"Step {step} is left out: its file is not whole (is it being written?).")
            continue
        groups += here
        for column, name in (("reward", "reward"), ("completion_length", "length")) if here else ():
            low, high = interval(here, name)
            by_step.get(step, {}).update(numbers({f"{column}_low": low, f"{column}_high": high}))
    shown = [row for group in groups for row in group["completions"]]
    cut = sum(any(isinstance(piece, int) for piece in row["pieces"]) for row in shown)
    notes.append(
        f"{len(shown):,} completions, those of {len({group['step'] for group in groups})} of {len(files):,} "
        f"steps, are here; {cut:,} were longer than {most:,} characters and lack their middle."
    )
    if bare := sum("percent" not in row for row in shown):
        why = "the log has no fitting token ids" if tokenizer else "there is no tokenizer here"
        notes.append(f"Tokens are not coloured in {bare:,} completions: {why}.")
    if len(rows) > ROWS:
        notes.append(f"The curves are drawn through {ROWS:,} of {len(rows):,} steps.")
    rows = [
        {name: row[name] for name in row if COLUMNS.fullmatch(name)} for row in thin(rows, ROWS)
    ]
    return {
        "name": run.resolve().name,
        "flags": {name: str(flags[name]) for name in flags},
        "rows": rows,
        "groups": groups,
        "notes": notes,
    }


# ---- 3. Two runs ---------------------------------------------------------------------------------


def places(run):
    """A run's completions by step, problem and which of that problem's completions it is."""
    seen = Counter()
    for group in run["groups"]:
        for row in group["completions"]:
            seen[of := (group["step"], *group["problem"])] += 1
            yield (*of, seen[of]), row


def compare(one, other):
    """Give each completion that was judged unlike the other run's at the same place that one's text, as
    "other" -> what the page says of it. With one --seed both runs drew the same random numbers there."""
    ours = dict(places(one))
    theirs = dict(places(other))
    pairs = [(ours[place], theirs[place]) for place in ours if place in theirs]
    changed = [(mine, yours) for mine, yours in pairs if mine["right"] != yours["right"]]
    for mine, yours in changed:
        mine["other"], yours["other"] = yours["pieces"], mine["pieces"]
    if not pairs:
        return "No verdicts can be compared: the runs share no problem of a step (same --task and --seed?)."
    won = sum(mine["right"] for mine, _ in changed)
    return (
        f"Of {len(pairs):,} completions that both runs gave to the same problem at the same step, "
        f"{won:,} are right only in {one['name']}, {len(changed) - won:,} only in {other['name']}."
    )


# ---- 4. The page ---------------------------------------------------------------------------------


def fill(template, data):
    """The page. critical: nothing of the data is markup. As JSON in ASCII without a "<" it can neither end its
    element nor begin another, and only scripts and styles with these hashes count."""
    for tag in ("script", "style"):
        code = re.search(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        template = template.replace(f"HASH-OF-{tag.upper()}", f"sha256-{digest}")
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return template.replace("DATA", text.replace("<", "\\u003c"))


def report(folders):
    """One or two runs -> (the page, at most BYTES long; what read_run found)."""
    template = Path(__file__).with_name("report.template.html").read_text(encoding="utf-8")
    files = [[*read_log(run)[2]] for run in folders]
    most = CHARACTERS
    steps = STEPS
    while True:
        chosen = {step for of_run in files for step in thin(of_run, max(2, steps // len(folders)))}
        runs = [read_run(run, chosen, most) for run in folders]
        if len({run["name"] for run in runs}) < len(runs):
            runs = [{**run, "name": str(folder)} for run, folder in zip(runs, folders)]
        page = fill(template, {"runs": runs, "compared": compare(*runs) if len(runs) == 2 else ""})
        if len(page.encode()) <= BYTES:
            return page, runs
        if steps < 2:
            raise DataError(f"{folders[0]}: two steps are too large; raise BYTES in {__file__}")
        most, steps = (most // 2, steps) if most > 250 else (most, steps // 2)


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="run", help="one or two folders")
    parser.add_argument(
        "-o", "--out", type=Path, default="report.html", help="(default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if len(args.runs) > 2:
        parser.error("give one run or two")
    page, runs = report(args.runs)
    args.out.write_text(page, encoding="utf-8", newline="\n")
    print("\n".join(f"{run['name']}: {' '.join(run['notes'])}" for run in runs))
    print(f"{args.out}: {len(page) / 1e6:.1f} MB; open it in a browser")


if __name__ == "__main__":
    try:
        main()
    except (ModelError, DataError, OSError) as error:
        sys.exit(f"error: {error}")
