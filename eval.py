"""eval.py - did training work? Accuracy on held-out problems, and how far to trust it.

What you will learn here: how far to trust an accuracy measured on a few hundred problems
(section 1). You can skip sections 2 and 3, the flags and the command, on a first reading. The
function rlvr.roll_out samples and scores the completions.

    python eval.py runs/NAME                          a run's final model and its starting model
    python eval.py Qwen/Qwen3-0.6B --task math500 --num-samples 8 --k 1 8 --out eval.jsonl
    python -m notebooks.look.compare --help           compare two models, score completions again
"""

import math
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import verifiers
from appendix.plumbing import DataError, append_rows, cell, clear_errors, git_commit, option
from appendix.plumbing import read_command, shown
from model import ModelError, _read_json, check_model, check_prompts, load, oom_hint, pick_device
from rlvr import GRPO, limit_sampling, records_of, roll_out

# ---- 1. What a number is worth -------------------------------------------------------------------


def evaluate(records, num_samples, ks=()):
    """Summarise the records of num_samples completions per problem (rlvr.records_of). Returns a
    dict: n is the number of problems; low and high are the 95 % interval of the accuracy; pass@k
    and majority@k have a value for each k in ks. The other values are means over the completions.
    pass@k only counts completions with accuracy 1 as right. majority@k is the accuracy of a
    majority vote among the first k completions of each problem."""
    accuracy = torch.tensor([record["accuracy"] for record in records], dtype=torch.float64)
    accuracy = accuracy.view(-1, num_samples)  # (P, G)
    low, high = clustered_interval(accuracy.mean(1).tolist(), num_samples)
    summary = {"n": len(accuracy), "accuracy": accuracy.mean().item(), "low": low, "high": high}
    for name in ("reward", "length", "truncated", "answered", "failed"):
        summary[name] = statistics.fmean(record[name] for record in records)
    right = (accuracy == 1).sum(1).tolist()
    for k in ks:
        summary[f"pass@{k}"] = statistics.fmean(pass_at_k(num_samples, c, k) for c in right)
        firsts = [records[i : i + k] for i in range(0, len(records), num_samples)]
        chosen = [majority(group)["accuracy"] for group in firsts]
        summary[f"majority@{k}"] = statistics.fmean(chosen)
    return summary


def majority(records):
    """Majority vote (self-consistency, arXiv 2203.11171): return the first completion with the
    most frequent text in its box. In a tie, the text that came first wins. 1/2 and 0.5 are
    different texts. A completion that was cut off has no vote. If none votes, return the first."""
    votes = {}  # {box: its records}
    for record in records:
        box = verifiers.extract_boxed_answer(record.get("completion"))
        if box and not record["truncated"]:
            votes.setdefault(box, []).append(record)
    return max(votes.values(), key=len, default=records)[0]


def wilson_interval(share, n):
    """Return (low, high), the 95 % interval of a share measured on n problems (Wilson 1927). It is
    also valid near 0 and 1. Examples: 8 of 10 right -> (0.490, 0.943); 0 of 10 -> (0, 0.278)."""
    z = 1.96
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def clustered_interval(shares, num_samples):
    """Return the 95 % interval of the mean of `shares`. Each share is the fraction of a problem's
    num_samples completions that are right.

    Samples of one problem are correlated, so n problems with k samples each count as n_effective
    independent samples, where n <= n_effective <= n k. This number is p (1 - p) divided by the
    variance of the mean (Miller 2024, arXiv 2411.00640). Example: if 5 of 10 problems are always
    right and 5 always wrong, with 8 samples each, n_effective is 10, not 80.
    subtle: if few problems differ, the estimated variance is usually too small. We therefore add
    half a problem that is always right and half a problem that is always wrong."""
    n = len(shares)
    p = (sum(shares) + 0.5) / (n + 1)
    squares = sum((share - p) ** 2 for share in shares) + 0.5 * (1 - p) ** 2 + 0.5 * p**2
    variance = squares / n  # between problems; the variance of the mean is variance / n
    n_effective = p * (1 - p) * n / variance
    n_effective = min(n * num_samples, max(n, n_effective))
    return wilson_interval(statistics.fmean(shares), n_effective)


def pass_at_k(n, c, k):
    """Return an unbiased estimate of the chance that at least one of k samples is right, if c of n
    are: 1 - C(n - c, k) / C(n, k) (Codex, arXiv 2107.03374, eq. 1). Example: n 4, c 1, k 2 -> 0.5.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(
            f"pass@{k} with {c} of {n} samples right: it needs 0 <= c <= n and 1 <= k <= n"
        )
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


# ---- 2. Flags and checks, shared with train.py ---------------------------------------------------


@dataclass
class TaskFlags:
    """Model and task"""

    model: str = option(
        None,
        "Hugging Face id or folder (default of train.py: Qwen/Qwen3-0.6B-Base with a CUDA GPU, "
        "else notebooks/tiny)",
    )
    task: str = option(
        None,
        "arithmetic, math, math500, a .jsonl or .csv file, or file.py:function (default of "
        "train.py: math, or arithmetic for a tiny model; of eval.py: math500)",
    )
    reward: str = option(
        None, "boxed, tagged, code, or file.py:function (default: the task's own reward)"
    )
    prompt: str = option(
        None, "text that asks for an answer to {problem} (default: the task's own text)"
    )
    stop: tuple = option((), "texts that end a completion (default: the task's own)")
    template: str = option(
        None,
        "show a problem as plain text, as a turn of the model's chat template, or as such a turn "
        "without thinking (default: chat if the template writes a stop token, else plain)",
        choices=["plain", "chat", "chat-nothink"],
    )
    method: str = option(
        "grpo", "grpo, or a file such as notebooks/methods/dapo.py; its settings are flags"
    )
    device: str = option(
        None, "default: the fastest, but cpu to train a tiny model", choices=["cpu", "cuda", "mps"]
    )

    def __post_init__(self):
        for name, value in vars(self).items():
            if type(value) in (int, float) and not 0 < value < 1e12:
                raise ValueError(f"{name} is {value}: it must be above 0 and below 1e12")


def read_config(folder):
    """Return the flags and settings of the run in this folder, or {} if there is none."""
    config = _read_json(folder / "config.json", optional=True)
    try:
        return {**config["flags"], **config["settings"]}
    except (KeyError, TypeError):  # a model's config.json, or a damaged one
        return {}


# ---- 3. The command ------------------------------------------------------------------------------


@dataclass
class Flags(TaskFlags):
    """Evaluation"""

    baseline: str = option(
        None, "second model to evaluate (default: the model that the run started from)"
    )
    problems: int = option(
        500, "number of problems: the first held-out ones, or with --train training problems"
    )
    greedy: bool = option(False, "greedy decoding only; skip the sampled evaluation")
    k: tuple = option(
        (), "print pass@k and majority@k for these k, at most --num-samples", type=int
    )
    train: bool = option(False, "evaluate on training problems (for notebooks/look/filter.py)")
    out: str = option(None, "append every completion to this .jsonl file, after a header")


COLUMNS = "accuracy low high reward length truncated answered failed".split()


ABOUT = """Measure a model's accuracy on held-out problems, with greedy decoding and with
sampling. The first argument is the model: a folder, a Hugging Face id, or
runs/NAME, which is evaluated with its task, prompt and settings, beside the
model it started from. One completion per problem is sampled, unless
--num-samples says more.

examples:
  python eval.py runs/NAME
  python eval.py Qwen/Qwen3-0.6B --num-samples 8 --k 1 8 --out eval.jsonl"""


def parse_args(argv=None):
    """Return (flags, method). If the model is a run, omitted flags take that run's values."""
    words = sys.argv[1:] if argv is None else argv
    if words and not words[0].startswith(("-", "@")):
        words = ["--model", *words]
    args, method = read_command(words, Flags, GRPO, ABOUT, read_run)
    if not args.model:
        sys.exit("error: give a model as the first argument, such as runs/NAME")
    most = 0 if args.greedy else method.settings.num_samples
    if not all(0 < k <= most for k in args.k):
        sys.exit(f"error: each --k must be from 1 to --num-samples, here {most} (--greedy: 0)")
    final = Path(args.model) / "final"
    if final.is_dir():
        args.model = str(final)
    return args, method


def read_run(known):
    """Return the flags and settings of the run, if the model is a run. In any case, the default
    is one sampled completion per problem."""
    folder = Path(known.get("model", ""))
    if (folder / "progress.json").exists():
        raise ModelError(
            f"{folder} is a checkpoint, not a model. To evaluate it, copy the run, delete later "
            "checkpoints there, and let `train.py --resume --name COPY --steps STEP` write final/"
        )
    if folder.name == "final":
        folder = folder.parent
    run = read_config(folder)
    if run and not (folder / "final").is_dir():
        finish = f"train.py --resume --name {folder.name!r} --runs {str(folder.parent)!r}"
        raise ModelError(f"{folder} has no final/ yet: finish it with `python {finish}`")
    return {**run, "device": None, "baseline": run.get("model"), "num_samples": 1}


def evaluate_model(name, task, problems, method, args):
    """Evaluate one model: print a table, and append the completions to --out."""
    device, dtype = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    limit_sampling(method, model, dtype)
    settings = method.settings
    check_prompts(model, tokenizer, task, problems, settings.max_new_tokens)
    prompt = tokenizer.prompt_text(task.prompt(problems[0]))
    print(f"{name}: the first prompt ({tokenizer.template} template):\n{shown(prompt)}")
    print(" " * 13, *(column.rjust(5) for column in COLUMNS))
    header = {
        **asdict(args),
        "model": name,
        "settings": asdict(settings),
        "first_prompt": prompt,
        "dtype": str(dtype),
        "git": git_commit(),
    }
    append_rows(args.out, [{"header": header}])

    def report(decoding, num_samples, temperature, ks=()):
        batch = roll_out(method, model, tokenizer, task, problems, num_samples, temperature)
        records = records_of(batch)
        for record in records:
            record.update(model=name, decoding=decoding)
        append_rows(args.out, records)
        summary = evaluate(records, num_samples, ks)
        print(f"{decoding:13}", *(cell(summary[column], column) for column in COLUMNS))
        for title, accuracy in summary.items():
            if "@" in title:
                print(f"{title:13}", cell(accuracy, "accuracy"))

    report("greedy", 1, 0.0)
    if not args.greedy:
        report("sampled", settings.num_samples, settings.temperature, args.k)


def main(argv=None):
    args, method = parse_args(argv)
    models = [name for name in (args.model, args.baseline) if name]
    for name in models:
        check_model(name)
    task = verifiers.get_task(args.task or "math500", args.prompt, args.stop, args.reward)
    append_rows(args.out, [])  # fails now if it cannot be written
    problems = (task.train if args.train else task.test)[: args.problems]
    if not problems:
        raise DataError(f"task {task.name} has no problems to train on: leave out --train")
    print(f"task {task.name}: {len(problems)} problems")
    for name in models:
        evaluate_model(name, task, problems, method, args)


if __name__ == "__main__":
    with clear_errors(ModelError), oom_hint("model"):
        main()
