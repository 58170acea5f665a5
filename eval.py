"""eval.py - did it work: accuracy on held-out problems, and what it is worth.

What you will learn here: how completions are sampled and judged (section 1), and what an accuracy
measured on so many problems is worth (2). Sections 3 and 4, files and the command, can wait.

    python eval.py runs/NAME                          the trained model, and the one it came from
    python eval.py Qwen/Qwen3-0.6B --task math500 --num-samples 8 --k 1 8 --out eval.jsonl
    python notebooks/evaluation.py --help             compare two models, regrade, show completions
"""

import argparse
import ast
import contextlib
import json
import math
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from tqdm import tqdm

import verifiers
from model import ModelError, _read_json, check_lengths, find, load, memory_for, pick_device
from rlvr import GRPO, Rollouts, Step, row_uniforms, score

# ---- 1. From problems to judged completions ------------------------------------------------------


def roll_out(
    method,
    model,
    tokenizer,
    task,
    problems,
    num_samples=1,
    temperature=1.0,
    rows=None,
):
    """num_samples completions of each problem, sampled by the method, judged by the task -> Step.

    rows: names of the P*G completions, see row_uniforms. They are sampled in batches that fit into
    the setting sample_tokens and a GPU's free memory; in fp32 that changes nothing but rounding."""
    G = num_samples
    settings = method.settings
    limit = settings.max_new_tokens
    rows = rows or range(len(problems) * G)
    prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
    stop_ids = list(model.config.eos_token_id)
    if task.stops:
        stop_ids += tokenizer.tokens_with(task.stops)
    longest = max(len(prompt) for prompt in prompts) + limit
    room = min(settings.sample_tokens, model.tokens_that_fit())
    size = max(1, room // (longest * G))  # problems in a batch
    batches = []
    for start in tqdm(range(0, len(prompts), size), "sampling", leave=False, delay=2, disable=None):
        end = start + size
        batch = prompts[start:end]
        uniforms = row_uniforms(rows[start * G : end * G], limit, settings.seed)
        with memory_for("--sample-tokens"):
            sampled = method.roll_out(
                model, tokenizer, batch, G, temperature, limit, stop_ids, uniforms
            )
        batches.append(sampled)
    rollouts = Rollouts.join(batches)
    for row, ids in enumerate(rollouts.completions() if task.stops else []):
        rollouts.end_at(row, tokenizer.length_to_stop(ids, task.stops))
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    for stop in task.stops:  # what is judged is the text before it
        texts = [text.partition(stop)[0] for text in texts]
    began = time.perf_counter()
    rewards, parts = score(rollouts, texts, problems, task.reward)
    return Step(problems, rollouts, texts, rewards, parts, time.perf_counter() - began)


def evaluate(method, model, tokenizer, task, problems, num_samples=1, temperature=0.0, ks=()):
    """Sample and judge num_samples completions of each problem -> (summary, records).
    Temperature 0 is greedy. method: e.g. GRPO(max_new_tokens=512, seed=0). ks: for pass@k."""
    step = roll_out(method, model, tokenizer, task, problems, num_samples, temperature)
    records = records_of(step)
    return summarise(records, num_samples, ks), records


def records_of(step):
    """A dict for each completion: the problem's columns, its index, sample, parts, text, length in
    tokens and reward. One that was cut off is wrong, even if a box in it is right: its accuracy is
    0."""
    lengths = step.rollouts.mask.sum(1).int().tolist()
    records = []
    for row, part in enumerate(step.parts):
        index, sample = divmod(row, step.rollouts.num_samples)
        record = {
            **step.problems[index],
            **part,
            "index": index,
            "sample": sample,
            "completion": step.texts[row],
            "length": lengths[row],
            "reward": step.rewards[index, sample].item(),
            "accuracy": part["accuracy"] * (1 - part["truncated"]),
        }
        records.append(record)
    return records


def summarise(records, num_samples, ks=()):
    """n problems; means over the completions; low, high: the 95 % interval of the accuracy; and
    pass@k for each k."""
    accuracy = torch.tensor([record["accuracy"] for record in records], dtype=torch.float64)
    accuracy = accuracy.view(-1, num_samples)  # (P, G)
    low, high = clustered_interval(accuracy.mean(1).tolist(), num_samples)
    summary = {"n": len(accuracy), "accuracy": accuracy.mean().item(), "low": low, "high": high}
    for name in ("reward", "length", "truncated", "answered", "failed"):
        summary[name] = statistics.fmean(record[name] for record in records)
    right = (accuracy == 1).sum(1).tolist()
    for k in ks:
        summary[f"pass@{k}"] = statistics.fmean(pass_at_k(num_samples, c, k) for c in right)
    return summary


# ---- 2. What a number is worth -------------------------------------------------------------------


def wilson_interval(share, n, z=1.96):
    """95 % interval of a share measured on n problems (Wilson 1927): (low, high). Sound near 0
    and 1. Example: 8 of 10 right -> (0.490, 0.943); 0 of 10 -> (0, 0.278)."""
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def clustered_interval(shares, num_samples):
    """95 % interval of the mean of `shares`, each measured on num_samples completions of a problem.

    Samples of one problem are correlated: n problems with k samples each are worth n* independent
    ones, n <= n* <= n k. The variance s^2 between problems gives n* = p (1 - p) / (s^2 / n)
    (Miller 2024, arXiv 2411.00640).
    subtle: where few problems differ, s^2 is mostly too small, so half a problem that is always
    right and half a problem that never is are added."""
    n = len(shares)
    p = (sum(shares) + 0.5) / (n + 1)
    squares = sum((share - p) ** 2 for share in shares) + 0.5 * (1 - p) ** 2 + 0.5 * p**2
    independent = p * (1 - p) * n / (squares / n)
    worth = min(n * num_samples, max(n, independent))
    return wilson_interval(statistics.fmean(shares), worth)


def pass_at_k(n, c, k):
    """Unbiased estimate of the chance that one or more of k samples are right, from c right of n:
    1 - C(n - c, k) / C(n, k) (Codex, arXiv 2107.03374, eq. 1). Example: n 4, c 1, k 2 -> 0.5."""
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(
            f"pass@{k} of {c} right among {n}: needs 0 <= c <= n and 1 <= k <= n samples"
        )
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


# ---- 3. Files and flags --------------------------------------------------------------------------


def git_commit():
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):  # there may be no git
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def read_rows(path, needed=()):
    """The objects of a .jsonl file, each with the needed keys; an unfinished last line is left out.
    Raises verifiers.DataError."""
    lines = verifiers.read_text(path).split("\n")  # not splitlines: completions may hold U+2028
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        where = f"{path}, line {number}"
        row = verifiers.read_json(line, where)
        if not isinstance(row, dict) or not row.keys() >= set(needed):
            raise verifiers.DataError(f"{where}: it needs an object with {', '.join(needed)}")
        rows.append(row)
    return rows


def append_rows(path, rows):
    """Add objects to a .jsonl file, each a line; a line that a crash left unfinished is removed.
    path None: write nothing."""
    if path is None:
        return
    with open(path, "ab+") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        for row in rows:
            line = json.dumps(row, ensure_ascii=False) + "\n"
            file.write(line.encode("utf-8", "replace"))


def flag(default, help, **options):
    """A field of Flags: its default, its help, and what else argparse should know."""
    return field(default=default, metadata={"help": help, **options})


def add_flags(parser, kind):
    """The fields of a dataclass as flags of a command."""
    for f in fields(kind):
        options = dict(f.metadata)
        if f.type is not bool:
            options.setdefault("type", above_zero(f.type) if f.type in (int, float) else f.type)
        parser.add_argument("--" + f.name.replace("_", "-"), **options)


def above_zero(kind):
    def number(text):
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return number


@dataclass
class TaskFlags:
    """The flags that train.py and eval.py share."""

    task: str = flag(
        None, "NAME, data file or file.py:name (default: math; tiny arithmetic; eval.py math500)"
    )
    reward: str = flag(None, "NAME or file.py:name (default: the task's own)")
    prompt: str = flag(None, "the sentence that asks, with {problem} in it (default: the task's)")
    stop: str = flag((), "texts that end a completion (default: the task's)", nargs="+")
    template: str = flag(
        None,
        "how a problem is shown (default: chat if the model stops at <|im_end|>, else plain)",
        choices=["plain", "chat", "chat-nothink"],
    )
    method: str = flag(None, "grpo, or a file.py with a class like GRPO (default: grpo)")
    set: list = flag(
        (),
        "NAME=VALUE: settings of the method, as clip=0.2,0.28",
        nargs="+",
        type=lambda text: text.partition("=")[::2],
    )
    device: str = flag(None, "(default: the best there is)", choices=["cpu", "cuda", "mps"])


JSON = {int: float, list: tuple}  # a float may be read back as an int, a tuple as a list


def get_method(spec, given):
    """grpo, or the subclass of GRPO in file.py or file.py:Class -> an object with its settings.
    given: values by name; they may be text, as on the command line."""
    kind = GRPO if spec == "grpo" else verifiers.find_class(spec, GRPO)
    types = {f.name: f.type for f in fields(kind.Settings)}
    settings = {}
    for name, value in given.items():
        wanted = types.get(name)
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            value = ast.literal_eval(value)  # what is no literal stays text
        if wanted and JSON.get(type(value)) is wanted:
            value = wanted(value)
        if type(value) is not wanted:
            known = ", ".join(f"{key} ({kind.__name__})" for key, kind in types.items())
            raise verifiers.DataError(f"--set {name}={value}: {spec} has the settings {known}")
        settings[name] = value
    try:
        method = kind(**settings)
    except ValueError as error:
        raise verifiers.DataError(f"--set, or the method {spec}: {error}") from error
    if kind is not GRPO:
        for name in RETURNS:
            check_first(spec, method, name)
    return method


RETURNS = {  # what the functions of a method of your own should return
    "setup": ("a list of parameters", lambda out: isinstance(out, list) and out),
    "pick": ("indices of problems", lambda out: [int(index) for index in out] == [*out]),
    "roll_out": (
        "Rollouts with finite log-probs",
        lambda out: (out.logp * out.mask).isfinite().all(1).sum() == len(out.completions()),
    ),
    "advantages": ("a tensor of finite numbers", lambda out: out.isfinite().all()),
    "layout": ("MicroBatches", iter),
    "loss": ("a tensor of one number", lambda out: out.numel() == 1),
    "export": ("a model", lambda out: out.config),
}


def check_first(spec, method, name):
    """Check the first value that a function of the method returns."""
    function = getattr(method, name)
    wanted, is_right = RETURNS[name]

    def first(*args, **kwargs):
        out = function(*args, **kwargs)
        with contextlib.suppress(Exception):  # not even of that type
            if is_right(out):
                setattr(method, name, function)
                return out
        raise verifiers.DataError(f"{spec}: {name} returns {str(out)[:100]}, not {wanted}")

    setattr(method, name, first)


# ---- 4. The command ------------------------------------------------------------------------------


@dataclass
class Flags(TaskFlags):
    baseline: str = flag(None, "a second model, on the same problems (default: the run's base)")
    problems: int = flag(500, "how many, from the first")
    num_samples: int = flag(1, "completions of each problem in the sampled row")
    k: int = flag((), "pass@k for these k, each at most --num-samples", nargs="*")
    temperature: float = flag(1.0, "of the sampled row; 0: no such row", type=float)
    max_new_tokens: int = flag(None, "longest completion (default: the run's, or 512)")
    seed: int = flag(0, "of the sampled row", type=int)
    sample_tokens: int = flag(None, "sampled at once: bounds the KV cache (default: 65536)")
    out: str = flag(None, "add a header for each model and every completion to this .jsonl file")


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description="Accuracy on held-out problems.", allow_abbrev=False
    )
    parser.add_argument("model", help="a model directory, a hub id, or runs/NAME")
    add_flags(parser, Flags)
    parser.set_defaults(**asdict(Flags()))
    args = parser.parse_args(argv)
    if max(args.k, default=1) > args.num_samples:
        parser.error("each --k is at most --num-samples")
    if not 0 <= args.temperature < math.inf:
        parser.error("--temperature is 0 or more")
    return args


def read_run(args):
    """Fill what the flags leave open from a run's config.json -> the method with its settings."""
    run = Path(args.model)
    path = run / "config.json"
    config = _read_json(path) if path.exists() else {}
    settings = config.get("settings", {})
    if settings:  # a model's config.json has none
        if not (run / "final").is_dir():
            place = f"--name {shlex.quote(run.name)} --runs {shlex.quote(str(run.parent))}"
            finish = f"finish it with `python train.py --resume {place}`"
            raise ModelError(f"{run} has no final/ yet: {finish}")
        args.model = str(run / "final")
        args.baseline = args.baseline or config["flags"]["model"]
        for name in ("task", "reward", "prompt", "stop", "template", "method"):
            setattr(args, name, getattr(args, name) or config["flags"][name])
    for name in ("max_new_tokens", "sample_tokens", "seed"):
        if getattr(args, name) is not None:
            settings[name] = getattr(args, name)
    settings |= args.set
    return get_method(args.method or "grpo", settings)


def evaluate_model(name, task, method, args):
    """Print the rows of one model, and write its completions to --out."""
    device, dtype = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    problems = task.test[: args.problems]
    texts = [task.prompt(problem) for problem in problems]
    check_lengths(model, tokenizer, texts, method.settings.max_new_tokens)
    prompt = tokenizer.prompt_text(texts[0])
    print(f"first prompt of {name} ({tokenizer.template}): {prompt!r}")
    header = {**vars(args), "model": name, "settings": asdict(method.settings), "prompt": prompt}
    header |= {"dtype": str(dtype), "git": git_commit()}
    append_rows(args.out, [{"header": header}])
    decodings = {"greedy": (1, 0.0)}
    if args.temperature > 0:
        decodings["sampled"] = (args.num_samples, args.temperature, args.k)
    for decoding, how in decodings.items():
        summary, records = evaluate(method, model, tokenizer, task, problems, *how)
        print(f"{decoding:8}", *(f"{column} {value:<7.4g}" for column, value in summary.items()))
        labels = {"model": name, "decoding": decoding}
        append_rows(args.out, [{**record, **labels} for record in records])


def main(argv=None):
    args = parse_args(argv)
    method = read_run(args)
    models = [find(name) and name for name in (args.model, args.baseline) if name]
    task = verifiers.get_task(args.task or "math500", args.prompt, args.stop, args.reward)
    print(f"task {task.name}, at most {method.settings.max_new_tokens} tokens each")
    for name in models:
        evaluate_model(name, task, method, args)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # where a code page lacks a character
    try:
        main()
    except (ModelError, verifiers.DataError, OSError, torch.OutOfMemoryError) as error:
        sys.exit(f"error: {error}")
