"""measure.py - eval.py for long evaluations: on many GPUs, continued after an interruption, with examples.

    python notebooks/measure.py runs/NAME --shots 4             ... and its base with 4 examples
    torchrun --nproc-per-node 8 notebooks/measure.py Qwen/Qwen3-0.6B --preset thinking \\
        --task notebooks/rewards.py:aime24 --num-samples 8 --out eval.jsonl

Every completion has random numbers of its own, so in fp32 batch size, number of processes and
interruptions change log-probs by rounding, in the sixth digit, and hardly ever a token. In bf16 they do:
sums inside a matrix product are rounded differently at different shapes, and once two tokens are nearly
equally likely, the texts part.

--out writes a header for each model (hash of the weights, commit, dtype, device, sampling parameters,
template and first prompt, stop ids, hashes of the data and of the grader, seed) and one line for each
completion. One base model is quoted at 15 % and at 32 % (Qwen3-0.6B-Base: on MATH-500 without examples in
*Reasoning from Scratch*, on MATH with four in Qwen3's report), so compare with --shots 4 before you speak
of reasoning. It takes the flags of eval.py, --preset and --shots.
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import inspect
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

import _root

import eval as core
import train
import verifiers
from evaluation import (
    complete,
    is_header,
    print_columns,
    print_comparisons,
    print_kinds,
    print_votes,
)
from model import ModelError, find, load, pick_device
from verifiers import DataError

# ---- 1. Examples in the prompt ---------------------------------------------------------------------


def few_shot(task, count):
    """The task with `count` solved training problems before every question, each in the first form that
    the task's own reward accepts. They show a base model what an answer looks like and where it ends, so
    this is the fair thing to compare with. It then goes on with a question of its own: the texts with
    which one begins become stops."""

    def solved(problem):
        answer = problem["answer"]
        solution = problem.get("solution", "").strip()
        box = f"\\boxed{{{answer}}}"
        for form in (
            solution,
            f"{solution} {box}".strip(),
            f"<think>{solution}</think><answer>{box}</answer>",
            answer,
        ):
            value, parts = task.reward(form, problem)
            if parts.get("accuracy", value) == 1:
                question = task.prompt(problem)
                return question + " " * question.endswith(":") + form + "\n\n"
        raise DataError(
            f"few-shot: task {task.name} has no solution to show that its own reward accepts"
        )

    if len(task.train) < count:
        raise DataError(
            f"few-shot: task {task.name} has {len(task.train)} training problems to show, not {count} "
            "(for MATH-500 take --task math)"
        )
    shown = "".join(map(solved, task.train[:count])).replace("{", "{{").replace("}", "}}")
    opening = task.prompt({"problem": "\0"}).partition("\0")[0].split("\n\n")
    stops = (*task.stops, *(f"\n\n{line.strip()}" for line in opening if line.strip()))
    return dataclasses.replace(task, instruction=shown + task.instruction, stops=stops)


# ---- 2. Many GPUs, interruptions -------------------------------------------------------------------

# What Qwen3's model card recommends; for thinking it warns of greedy decoding, so there is no such row.
PRESETS = {
    "thinking": "--template chat --temperature 0.6 --top-p 0.95 --top-k 20 --max-new-tokens 32768",
    "non-thinking": "--template chat-nothink --temperature 0.7 --top-p 0.8 --top-k 20 --max-new-tokens 16384",
}
SAVE_EVERY = 256  # completions of each process; what an interruption loses at most


def reopen(path, header):
    """Begin the part of the file that has this header, or find it -> its records so far. A completion is a
    function of what the header names and of its row, so a continued evaluation equals an uninterrupted one.
    With another header it would be a mixture, and is refused; only the commit may differ."""
    rows = core.read_rows(path) if Path(path).exists() else []
    known = next(
        (
            row["header"]
            for row in rows
            if is_header(row) and row["header"]["model"] == header["model"]
        ),
        None,
    )
    differ = [key for key in header if known and key != "git" and header[key] != known.get(key)]
    if differ:
        raise DataError(
            f"{path} holds another evaluation of {header['model']}: {', '.join(differ)} differ. Choose "
            "another --out"
        )
    partial = Path(f"{path}.partial")
    partial.unlink(missing_ok=True)
    core.append_rows(
        partial, rows if known else [*rows, {"header": header}]
    )  # without a line cut short
    partial.replace(path)
    return [row for row in rows if "completion" in row and row.get("model") == header["model"]]


def name_of(reward):
    """What --reward would call it: a name of the core, or file.py:name; None if it has none."""
    known = next((name for name, function in verifiers.REWARDS.items() if function == reward), None)
    if known or not inspect.isfunction(reward) or "<" in reward.__qualname__:
        return known
    return f"{os.path.relpath(inspect.getfile(reward), Path(verifiers.__file__).parent)}:{reward.__name__}"


def measure_model(label, name, task, args):
    """Print the rows of one model -> {"greedy": records, "sampled": records}."""
    (device, dtype, _), (rank, world) = pick_device(args.device), train.processes()
    model, tokenizer = load(name, device, dtype, args.template)
    model.autocast = contextlib.nullcontext  # unlike in training its weights are in that dtype
    problems = task.test[: args.problems]
    settings = ("num_samples", "temperature", "top_p", "top_k", "max_new_tokens", "seed")
    header = {
        "model": label,
        "weights": core.hash_of(*find(name).glob("*.safetensors")),
        "task": task.name,
        "data": hashlib.sha256(json.dumps(problems).encode()).hexdigest()[:12],
        "template": tokenizer.template,
        "prompt": task.prompt(problems[0]),
        "stops": list(task.stops),
        "reward": args.reward or name_of(task.reward),
        "grader": core.hash_of(verifiers.__file__),
        "dtype": str(dtype),
        "device": device,
        "git": core.git_commit(),
        **{name: getattr(args, name) for name in settings},
    }
    saved = train.gather(reopen(args.out, header) if args.out and rank == 0 else [])
    results = {}
    rows = [("greedy", 1, 0.0)] * (not args.preset) + [
        ("sampled", args.num_samples, args.temperature)
    ]
    for decoding, samples, temperature in rows if args.temperature else rows[:1]:
        records = complete([r for r in saved if r["decoding"] == decoding], samples)
        todo = sorted(set(range(len(problems))) - {r["index"] for r in records})
        size = max(1, SAVE_EVERY * world // samples) if args.out else len(problems)
        for part in (todo[i : i + size] for i in range(0, len(todo), size)):
            places = [(i, j) for i in part for j in range(samples)]
            _, new = core.evaluate(
                model,
                tokenizer,
                task,
                [problems[i] for i in part],
                samples,
                temperature,
                args.max_new_tokens,
                args.seed,
                args.top_p,
                args.top_k,
                label=f"{Path(name).name} {decoding}, from problem {part[0]}",
                rows=[i * samples + j for i, j in places],
                roll_out=train.shared_roll_out,
            )
            new = [
                {**record, "model": label, "decoding": decoding, "index": i, "sample": j}
                for (i, j), record in zip(places, new)
            ]
            if args.out and rank == 0:
                core.append_rows(args.out, new)
            records += new
        results[decoding] = complete(records, samples)
        core.print_row(results[decoding], args.k)
        print_votes(results[decoding], args.k)
    return results


def join_processes():
    """Join the processes that torchrun started, if it did. Only the first prints."""
    train.MINUTES = 7 * 24 * 60  # one may sample for hours longer than another
    if "RANK" in os.environ:
        if gpu := torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        limit = datetime.timedelta(minutes=train.MINUTES)
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=limit)
        if dist.get_rank():
            sys.stdout = open(os.devnull, "w")
            tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)


def parse_args(argv=None):
    """eval.py's flags, and two more. A preset is a set of flags; what is given besides wins."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="All other flags are eval.py's: see python eval.py --help.",
    )
    parser.add_argument(
        "--preset", choices=[*PRESETS], help="the sampling that Qwen3's card recommends"
    )
    parser.add_argument(
        "--shots", type=int, default=0, help="solved examples in the prompt of the baseline"
    )
    ours, rest = parser.parse_known_args(argv)
    args = core.parse_args([*PRESETS.get(ours.preset, "").split(), *rest])
    args.preset = ours.preset
    args.shots = ours.shots
    return args


def main(argv=None):
    args = parse_args(argv)
    join_processes()
    core.read_run(args)
    task = verifiers.get_task(args.task or "math500", args.prompt, args.stop or ())
    if args.reward:
        core.use_reward(task, args.reward)
    entrants = {name: (name, task) for name in (args.model, args.baseline) if name}
    if args.shots:
        name = args.baseline or args.model
        entrants[f"{name} {args.shots}-shot"] = (name, few_shot(task, args.shots))
    print(
        f"task {task.name}: {len(task.test[: args.problems])} problems, at most {args.max_new_tokens} tokens each"
    )
    print_columns(args.k)
    results = {label: measure_model(label, *entrant, args) for label, entrant in entrants.items()}
    print_comparisons(results)
    print_kinds(results)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except (ModelError, DataError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
