"""filter.py - makes a task file of the problems that a model sometimes solves.

    python eval.py MODEL --task mine.jsonl --train --problems 2000 \\
        --num-samples 8 --out solved.jsonl
    python -m notebooks.look.filter solved.jsonl --from 0.1 --to 0.9 \\
        --out mid.jsonl

A problem that is never or always solved gives no gradient. The new file has
the training problems whose share of right completions (sampled, not greedy) is
from --from to --to, and all held-out problems of the task. The command that
trains on it is printed: add the sampling settings that you evaluated with.
"""

import shlex
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

import verifiers
from appendix.plumbing import DataError, append_rows, read_rows
from notebooks.command import new_path, parser_of, run_command, say


def read_training(path, model=None):
    """Return (the header of a model, {index: its records}) for the training problems. If the model was evaluated
    more than once, the last evaluation counts."""
    headers = {}
    latest = {}
    records = {}
    for row in read_rows(path):
        if "header" in row:
            latest[row["header"]["model"]] = row["header"]
        elif row["decoding"] == "sampled" and latest.get(row["model"], {}).get("train"):
            name = row["model"]
            if headers.get(name) is not latest[name]:
                headers[name] = latest[name]
                records[name] = defaultdict(dict)
            records[name][row["index"]][row["sample"]] = row
    evaluated = [*records]
    if not evaluated:
        command = f"python eval.py MODEL --train --problems 2000 --num-samples 8 --out {path}"
        raise DataError(f"{path} has no samples of training problems: make them with `{command}`")
    if model not in evaluated and (model or len(evaluated) > 1):
        raise DataError(f"{path}: choose one of its models: --model {' or '.join(evaluated)}")
    chosen = model or evaluated[0]
    groups = {index: [*samples.values()] for index, samples in records[chosen].items()}
    return headers[chosen], groups


def task_of(header, groups):
    """Return the task of the evaluation. Raises DataError if it has changed since, or cannot be a file."""
    spec = header["task"]
    task = verifiers.get_task(spec, header["prompt"], header["stop"], header["reward"])
    if task.turns:
        raise DataError(f"task {spec} has an environment, which a file of problems cannot have")
    for index, group in groups.items():
        known = task.train[index]["problem"] if index < len(task.train) else None
        if any(record["problem"] != known for record in group):
            raise DataError(f"task {spec} has changed: training problem {index} is another one now")
    return task


def flags_for(task, header, rows):
    """Return (flags, remark): the flags of train.py that give the problems of a file this task's prompt and
    reward."""
    programs = all(isinstance(row.get("tests"), list) for row in rows)
    own = verifiers.code_reward if programs else verifiers.boxed_reward
    flags = []
    remark = ""
    if task.instruction != (verifiers.PROGRAM if programs else verifiers.BOXED):
        flags += ["--prompt", task.instruction]
    names = [name for name, reward in verifiers.REWARDS.items() if reward is task.reward]
    if header["reward"]:
        flags += ["--reward", header["reward"]]
        if header["reward"] not in verifiers.REWARDS:
            remark = f'if {header["reward"]} has no part "accuracy", {own.__name__} decides what is right'
    elif task.reward is not own and names:
        flags += ["--reward", *names]
    elif task.reward is not own:
        remark = f"the reward of {task.name} has no name: add --reward FILE.py:NAME"
    if task.stops:
        flags += ["--stop", *[stop.replace("\n", "\\n") for stop in task.stops]]
    if header.get("template"):
        flags += ["--template", header["template"]]
    return flags, remark


def main(argv=None):
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("file", help="a file that eval.py --train --out has written")
    add(
        "--from",
        dest="low",
        type=float,
        default=0.1,
        help="lowest share of right completions (default: 0.1)",
    )
    add(
        "--to",
        dest="high",
        type=float,
        default=0.9,
        help="highest share of right completions (default: 0.9)",
    )
    add("--model", help="which model, if the file has several")
    add("--out", required=True, help="a new .jsonl file")
    args = parser.parse_args(argv)
    if not 0 <= args.low <= args.high <= 1:
        parser.error("--from must be at most --to, and both from 0 to 1")
    out = new_path(args.out)
    if out.suffix != ".jsonl":
        parser.error(f"--out {out}: its name must end in .jsonl")
    header, groups = read_training(args.file, args.model)
    task = task_of(header, groups)
    rates = {index: fmean(r["accuracy"] for r in group) for index, group in groups.items()}
    within = sorted(index for index, rate in rates.items() if args.low <= rate <= args.high)
    count = {
        "never": sum(rate == 0 for rate in rates.values()),
        "below": sum(0 < rate < args.low for rate in rates.values()),
        "within": len(within),
        "above": sum(args.high < rate < 1 for rate in rates.values()),
        "always": sum(rate == 1 for rate in rates.values()),
    }
    say(f"{header['model']} on {len(rates)} training problems of {task.name}:")
    say(", ".join(f"{name} {number}" for name, number in count.items()), "    ")
    if not within:
        raise DataError(f"no problem is within {args.low} to {args.high}: choose a wider range")
    rows = [{**task.train[index], "held_out": False} for index in within]
    rows += [{**problem, "held_out": True} for problem in task.test]
    append_rows(out, rows)
    left = len(task.train) - len(rates)
    say(
        f"{out}: {len(within)} to train on, {len(task.test)} held out; {left} not evaluated: left out"
    )
    flags, remark = flags_for(task, header, rows)
    command = ["python", "train.py", "--model", header["model"], "--task", str(out), *flags]
    print(shlex.join(command))
    if remark:
        say(remark)


if __name__ == "__main__":
    run_command(main, KeyError)
