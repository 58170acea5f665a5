"""evaluate.py - eval.py for long evaluations: on many GPUs, continued after an interruption, with examples.

    python -m notebooks.look.evaluate runs/NAME --shots 4             ... and its base with 4 examples
    torchrun --nproc-per-node 8 -m notebooks.look.evaluate Qwen/Qwen3-0.6B --preset thinking \\
        --task notebooks/tasks/benchmarks.py:aime24 --num-samples 8 --out eval.jsonl

Every completion has random numbers of its own, so in fp32 batch size, number of processes and
interruptions change log-probs by rounding, in the sixth digit, and hardly ever a token. In bf16 they do:
sums inside a matrix product are rounded differently at different shapes, and once two tokens are nearly
equally likely, the texts part.

--out writes a header for each model (hash of the weights, commit, dtype, device, the method's settings,
template and first prompt, stop texts, hashes of the data and of the grader) and one line for each
completion. One base model is quoted at 15 % and at 32 % (Qwen3-0.6B-Base: on MATH-500 without examples in
*Reasoning from Scratch*, on MATH with four in Qwen3's report), so compare with --shots 4 before you speak
of reasoning. It takes the flags of eval.py, --preset and --shots.
"""

import dataclasses
import hashlib
import inspect
import json
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch
import torch.distributed as dist

import eval as core
import grading
import train
import verifiers
from model import ModelError, fetch, load, pick_device
from notebooks.look.compare import complete, is_header, print_columns, print_comparisons, print_row
from rlvr import records_of, roll_out
from verifiers import DataError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"

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
    shown = "".join(map(solved, task.train[:count]))
    opening = task.prompt({"problem": "\0"}).partition("\0")[0].split("\n\n")
    stops = (*task.stops, *(f"\n\n{line.strip()}" for line in opening if line.strip()))
    return dataclasses.replace(task, instruction=shown + task.instruction, stops=stops)


# ---- 2. Many GPUs, interruptions -------------------------------------------------------------------

# What Qwen3's model card recommends; for thinking it warns of greedy decoding, so there is no such row.
TOP_P = f"--method {NOTEBOOKS}/methods/top_p.py --top-k 20"
PRESETS = {
    "thinking": f"{TOP_P} --top-p 0.95 --template chat --temperature 0.6 --max-new-tokens 32768",
    "non-thinking": f"{TOP_P} --top-p 0.8 --template chat-nothink --temperature 0.7 --max-new-tokens 16384",
}
SAVE_EVERY = 256  # completions of each process; what an interruption loses at most


def hash_of(*paths):
    """The first digits of the SHA-256 of these files."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:12]


def reopen(path, header):
    """Begin the part of the file that has this header, or find it -> its records so far.

    A completion is a function of what the header names and of its row, so a continued evaluation equals
    an uninterrupted one. With another header it would be a mixture, and is refused; only the commit may
    differ."""
    rows = core.read_rows(path) if Path(path).exists() else []
    headers = [row["header"] for row in rows if is_header(row)]
    known = [saved for saved in headers if saved["model"] == header["model"]]
    for saved in known[:1]:
        differ = [key for key in header if key != "git" and header[key] != saved.get(key)]
        if differ:
            raise DataError(
                f"{path} holds another evaluation of {header['model']}: {', '.join(differ)} differ. "
                "Choose another --out"
            )
    partial = Path(f"{path}.partial")
    partial.unlink(missing_ok=True)
    core.append_rows(partial, rows)  # without a line that was cut short
    if not known:
        core.append_rows(partial, [{"header": header}])
    partial.replace(path)
    return [row for row in rows if "completion" in row and row.get("model") == header["model"]]


def name_of(reward):
    """What --reward would call it: a name of the core, or file.py:name; None if it has none."""
    for name, function in verifiers.REWARDS.items():
        if function == reward:
            return name
    if not inspect.isfunction(reward) or "<" in reward.__qualname__:
        return None
    return f"{os.path.relpath(inspect.getfile(reward), ROOT)}:{reward.__name__}"


def measure_model(label, name, task, method, args):
    """Print the rows of one model -> {"greedy": records, "sampled": records}."""
    device, dtype = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    problems = task.test[: args.problems]
    # Through JSON, so that it compares equal to what is read from the file.
    header = {
        "model": label,
        "weights": hash_of(*fetch(name).glob("*.safetensors")),
        "task": task.name,
        "data": hashlib.sha256(json.dumps(problems).encode()).hexdigest()[:12],
        "template": tokenizer.template,
        "prompt": task.prompt(problems[0]),
        "stops": task.stops,
        "reward": args.reward or name_of(task.reward),
        "grader": hash_of(verifiers.__file__, grading.__file__),
        "dtype": str(dtype),
        "device": device,
        "git": core.git_commit(),
        "method": args.method,
        "settings": dataclasses.asdict(method.settings),
    }
    del header["settings"]["sample_tokens"]  # it changes nothing but the memory
    header = json.loads(json.dumps(header))
    saved = train.gather(reopen(args.out, header) if args.out and train.RANK == 0 else [])
    settings = method.settings
    rows = {"greedy": (1, 0.0), "sampled": (settings.num_samples, settings.temperature)}
    if args.preset:
        del rows["greedy"]
    if args.greedy:
        del rows["sampled"]
    results = {}
    for decoding, (samples, temperature) in rows.items():
        records = complete([r for r in saved if r["decoding"] == decoding], samples)
        done = {record["index"] for record in records}
        todo = [i for i in range(len(problems)) if i not in done]
        size = len(problems)
        if args.out:
            size = max(1, SAVE_EVERY * train.WORLD // samples)
        for start in range(0, len(todo), size):
            part = todo[start : start + size]
            found = judge_share(method, model, tokenizer, task, part, samples, temperature)
            new = [{**record, "model": label, "decoding": decoding} for record in found]
            if args.out and train.RANK == 0:
                core.append_rows(args.out, new)
            records += new
        results[decoding] = complete(records, samples)
        print_row(label, decoding, results[decoding], args.k)
    return results


def judge_share(method, model, tokenizer, task, indices, samples, temperature):
    """Completions of these problems of the test, each process for its share -> records, in every process."""
    records = []
    mine = [indices[i] for i in torch.arange(len(indices)).tensor_split(train.WORLD)[train.RANK]]
    if mine:
        problems = [task.test[i] for i in mine]
        rows = [i * samples + j for i in mine for j in range(samples)]
        sizes = (samples, temperature, rows)
        records = records_of(roll_out(method, model, tokenizer, task, problems, *sizes))
        for row, record in zip(rows, records, strict=True):
            record |= {"index": row // samples, "sample": row % samples}
    return train.gather(records)


def parse_args(argv=None):
    """eval.py's flags, and two more -> (flags, method). A preset is a set of flags; what is given besides wins."""
    parser = ArgumentParser(
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="All other flags are eval.py's: see python eval.py --help.",
    )
    add = parser.add_argument
    add("--preset", choices=[*PRESETS], help="the sampling that Qwen3's card recommends")
    add("--shots", type=int, default=0, help="solved examples in the prompt of the baseline")
    ours, rest = parser.parse_known_args(argv)
    if rest and not rest[0].startswith("-"):
        rest = ["--model", *rest]
    args, method = core.parse_args([*PRESETS.get(ours.preset, "").split(), *rest])
    args.preset = ours.preset
    args.shots = ours.shots
    return args, method


def main(argv=None):
    args, method = parse_args(argv)
    train.MINUTES = 7 * 24 * 60  # one process may sample for hours longer than another
    train.start_processes(pick_device(args.device)[0])
    task = verifiers.get_task(args.task or "math500", args.prompt, args.stop, args.reward)
    entrants = {name: (name, task) for name in (args.model, args.baseline) if name}
    if args.shots:
        name = args.baseline or args.model
        entrants[f"{name} {args.shots}-shot"] = (name, few_shot(task, args.shots))
    count = len(task.test[: args.problems])
    longest = method.settings.max_new_tokens
    print(f"task {task.name}: {count} problems, at most {longest} tokens each")
    print_columns(args.k)
    results = {}
    for label, (name, its_task) in entrants.items():
        results[label] = measure_model(label, name, its_task, method, args)
    print_comparisons(results)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except (ModelError, DataError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
