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
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from tqdm import tqdm

import verifiers
from model import ModelError, _read_json, find, load, pick_device
from rlvr import GRPO, Rollouts, Step, row_uniforms

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

    rows: names of the completions, see row_uniforms. More problems than fit into the setting
    sample_tokens, or into what is free on a GPU, are sampled in batches, which in fp32 changes
    nothing but rounding."""
    G = num_samples
    settings = method.settings
    limit = settings.max_new_tokens
    rows = rows or range(len(problems) * G)
    prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
    stop_ids = list(model.config.eos_token_id)
    if task.stops:
        stop_ids += stop_tokens(tokenizer, task.stops)
    longest = max(len(prompt) for prompt in prompts) + limit
    room = min(settings.sample_tokens, model.tokens_that_fit())
    size = max(1, room // (longest * G))  # problems in a batch
    batches = []
    for start in tqdm(range(0, len(prompts), size), "sampling", leave=False, delay=2, disable=None):
        end = start + size
        batch = prompts[start:end]
        uniforms = row_uniforms(rows[start * G : end * G], limit, settings.seed)
        how = (G, temperature, limit, stop_ids, uniforms)
        with memory_for("--sample-tokens"):
            batches.append(method.roll_out(model, tokenizer, batch, *how))
    rollouts = Rollouts.join(batches)
    if task.stops:
        cut_at_stops(rollouts, tokenizer, task.stops)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    for stop in task.stops:  # what is judged is the text before it
        texts = [text.partition(stop)[0] for text in texts]
    began = time.perf_counter()
    rewards, parts = score(rollouts, texts, problems, task.reward)
    return Step(problems, rollouts, texts, rewards, parts, time.perf_counter() - began)


@contextlib.contextmanager
def memory_for(flag):
    """Within, an error for lack of memory names the flag that helps there."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(f"too little memory: give a smaller {flag}. {error}"[:500]) from error


def stop_tokens(tokenizer, stops):
    """The tokens whose own text contains one of the stop texts."""
    tokens = range(tokenizer.num_tokens)
    return [token for token in tokens if contains_stop(tokenizer, [token], stops)]


def contains_stop(tokenizer, ids, stops):
    text = tokenizer.decode(ids, False)
    return any(stop in text for stop in stops)


def cut_at_stops(rollouts, tokenizer, stops):
    """End each completion at the token that completes a stop text; what follows is not trained."""
    for row, ids in enumerate(rollouts.completions()):
        if contains_stop(tokenizer, ids, stops):
            length = 1
            while not contains_stop(tokenizer, ids[:length], stops):
                length += 1
            rollouts.lengths[row] = length
            rollouts.finished[row] = True
            rollouts.mask[row, rollouts.prompt_lengths[row] + length - 1 :] = 0.0


LOGGED = {"step", "reward", "completion_length", "mixed", "solved", "hopeless", "loss", "entropy"}
LOGGED |= {"mismatch", "clipped", "kl", "trained", "grad_norm", "lr", "truncated", "seconds"}
PATIENCE = 60.0  # seconds without any verdict after which the verifiers still at work have failed


def score(rollouts, texts, problems, reward_fn):
    """Judge every completion -> (rewards (P, G), a dict of named parts for each of the B rows).

    reward_fn(completion, problem) -> (number, {name: number}), called from several threads. The
    part "accuracy" is what evaluation counts (default: the reward, within 0 and 1). If it raises,
    hangs or returns something else (part "failed"), the completion gets the lowest reward of its
    group, and at most 0: to make the verifier fail must never pay."""
    G = rollouts.num_samples
    pool = ThreadPoolExecutor()
    verdicts = [pool.submit(reward_fn, text, problems[row // G]) for row, text in enumerate(texts)]
    waiting = verdicts
    done = True
    while waiting and done:
        done, waiting = wait(waiting, timeout=PATIENCE)
    pool.shutdown(wait=False, cancel_futures=True)

    rewards = []
    parts = []
    for verdict, finished in zip(verdicts, rollouts.finished.tolist(), strict=True):
        reward, own = read_verdict(verdict)
        rewards.append(reward if finished else min(0.0, reward))  # departure 5
        parts.append({**own, "truncated": float(not finished)})
    rewards = torch.tensor(rewards).view(len(problems), G)
    failed = torch.tensor([part["failed"] > 0 for part in parts]).view_as(rewards)
    return torch.where(failed, rewards.amin(1, keepdim=True), rewards), parts


def read_verdict(verdict):
    """A call of a reward function -> (reward, parts); 0 and the part "failed" if it failed."""
    try:
        reward, own = verdict.result(timeout=0)
        reward = float(reward)
        if LOGGED & own.keys():
            raise ValueError(f"its parts {LOGGED & own.keys()} are columns of the log")
        parts = {"accuracy": min(1.0, max(0.0, reward)), "answered": 1.0, "failed": 0.0, **own}
        parts = {name: float(part) for name, part in parts.items()}
        if not math.isfinite(reward + sum(parts.values())) or not 0 <= parts["accuracy"] <= 1:
            raise ValueError(f"it returned {reward}, {own}")
        return reward, parts
    except Exception as error:
        warnings.warn(  # Python shows the same warning only once
            f"the verifier failed ({type(error).__name__}: {str(error)[:200]}). A reward returns "
            '(number, {name: number}), finite, with "accuracy" from 0 to 1 or none, in a minute',
            stacklevel=3,
        )
        return 0.0, {"accuracy": 0.0, "answered": 0.0, "failed": 1.0}


def evaluate(method, model, tokenizer, task, problems, num_samples=1, temperature=0.0, ks=()):
    """Judge num_samples completions of each problem; temperature 0 is greedy -> (summary, records).
    method: GRPO(max_new_tokens=512, seed=0), for instance. ks: of pass@k."""
    step = roll_out(method, model, tokenizer, task, problems, num_samples, temperature)
    records = records_of(step)
    return summarise(records, num_samples, ks), records


def records_of(step):
    """A dict for each completion: the problem's columns and its index, parts, completion, length in
    tokens, reward. One that was cut off has no answer, even if a box in it is right: its accuracy
    is 0."""
    lengths = step.rollouts.mask.sum(1).int().tolist()
    records = []
    for row, part in enumerate(step.parts):
        index, sample = divmod(row, step.rollouts.num_samples)
        record = {**step.problems[index], **part, "index": index, "sample": sample}
        record["completion"] = step.texts[row]
        record["length"] = lengths[row]
        record["reward"] = step.rewards[index, sample].item()
        record["accuracy"] = part["accuracy"] * (1 - part["truncated"])
        records.append(record)
    return records


def summarise(records, num_samples, ks=()):
    """n problems; means over the completions; low, high: the 95 % interval of the accuracy; and
    pass@k for each k."""
    groups = by_problem(records, num_samples)
    shares = [statistics.fmean(record["accuracy"] for record in group) for group in groups]
    low, high = clustered_interval(shares, num_samples)
    summary = {"n": len(groups), "accuracy": statistics.fmean(shares), "low": low, "high": high}
    for name in ("reward", "length", "truncated", "answered", "failed"):
        summary[name] = statistics.fmean(record[name] for record in records)
    right = [sum(record["accuracy"] == 1 for record in group) for group in groups]
    for k in ks:
        summary[f"pass@{k}"] = statistics.fmean(pass_at_k(num_samples, c, k) for c in right)
    return summary


def by_problem(records, num_samples):
    return [records[i : i + num_samples] for i in range(0, len(records), num_samples)]


# ---- 2. What a number is worth -------------------------------------------------------------------


def wilson_interval(share, n, z=1.96):
    """95 % interval of a share measured on n problems (Wilson 1927): (low, high). Honest near both
    ends. Example: 8 of 10 right -> (0.490, 0.943); 0 of 10 -> (0, 0.278)."""
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def clustered_interval(shares, num_samples):
    """95 % interval of the mean of `shares`, each measured on num_samples completions of a problem.

    Samples of one problem resemble each other: n problems with k samples are worth n* independent
    ones, from n to n k. The variance s^2 between the problems tells: n* = p (1 - p) / (s^2 / n)
    (Miller 2024, arXiv 2411.00640).
    subtle: where few problems differ, s^2 is mostly too small, so half a problem that is always
    right and half a one that never is are added."""
    n = len(shares)
    p = (sum(shares) + 0.5) / (n + 1)
    squares = sum((share - p) ** 2 for share in shares) + 0.5 * (1 - p) ** 2 + 0.5 * p**2
    independent = p * (1 - p) * n / (squares / n)
    worth = min(n * num_samples, max(n, independent))
    return wilson_interval(statistics.fmean(shares), worth)


def pass_at_k(n, c, k):
    """The chance that at least one of k samples is right, without bias, from c right ones among n:
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
    rows = [verifiers.read_json(line, f"{path}, line {n}") for n, line in enumerate(lines[:-1], 1)]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not row.keys() >= set(needed):
            raise verifiers.DataError(
                f"{path}, line {number}: it needs an object with {', '.join(needed)}"
            )
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


JSON = {int: float, list: tuple}  # how a float and a tuple may come back


def get_method(spec, given):
    """grpo, or the subclass of GRPO in file.py or file.py:Class -> an object with its settings.
    given: values by name; they may be text, as on the command line."""
    kind = GRPO if spec == "grpo" else verifiers.find_class(spec, GRPO)
    types = {f.name: f.type for f in fields(kind.Settings)}
    settings = {}
    for name, value in given.items():
        if name not in types:
            raise verifiers.DataError(
                f"{spec} has no setting {name!r}: there is {', '.join(types)}"
            )
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)  # other values are text
        if JSON.get(type(value)) is types[name]:
            value = types[name](value)
        if type(value) is not types[name]:
            raise verifiers.DataError(f"--set {name}={value}: it must be {types[name].__name__}")
        settings[name] = value
    try:
        method = kind(**settings)
    except ValueError as error:
        raise verifiers.DataError(f"--set, or the method {spec}: {error}") from error
    for name in RETURNS:
        check_first(spec, method, name)
    return method


RETURNS = {  # what the functions of a method return
    "setup": ("a list of parameters", lambda out: isinstance(out, list) and out),
    "pick": ("indices of problems", lambda out: len(out) and [int(i) for i in out] == [*out]),
    "roll_out": ("Rollouts with finite log-probs", lambda out: out.logp.isfinite().all()),
    "advantages": ("a tensor of finite numbers", lambda out: out.isfinite().all()),
    "loss": ("a tensor of one number", lambda out: out.numel() == 1),
    "export": ("a model", lambda out: out.config),
}


def check_first(spec, method, name):
    """Check what a function of the method returns when it first returns."""
    function = getattr(method, name)
    wanted, is_right = RETURNS[name]

    def first(*args, **kwargs):
        out = function(*args, **kwargs)
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # it is no such object
            if is_right(out):
                setattr(method, name, function)
                return out
        raise verifiers.DataError(f"{spec}: {name} returns {str(out)[:100]}, not {wanted}")

    setattr(method, name, first)


# ---- 4. The command ------------------------------------------------------------------------------


@dataclass
class Flags:
    baseline: str = flag(None, "a second model, on the same problems (default: the run's base)")
    task: str = flag(None, "NAME, data file or file.py:name (default: the run's, or math500)")
    prompt: str = flag(None, "the sentence that asks, with {problem} in it (default: the task's)")
    stop: str = flag((), "texts that end a completion (default: the task's)", nargs="+")
    reward: str = flag(None, "whose accuracy counts (default: the run's, or the task's)")
    template: str = flag(
        None,
        "how a problem is shown (default: the run's, or see train.py)",
        choices=["plain", "chat", "chat-nothink"],
    )
    method: str = flag(None, "whose roll_out samples (default: the run's, or grpo)")
    set: str = flag((), "NAME=VALUE: settings of the method", nargs="+")
    problems: int = flag(500, "how many, from the first")
    num_samples: int = flag(1, "completions of each problem in the sampled row")
    k: int = flag((), "pass@k for these k, each at most --num-samples", nargs="*")
    temperature: float = flag(1.0, "of the sampled row; 0: no such row", type=float)
    max_new_tokens: int = flag(None, "longest completion (default: the run's, or 1024)")
    seed: int = flag(0, "of the sampled row", type=int)
    sample_tokens: int = flag(None, "sampled at once: bounds the KV cache (default: 65536)")
    device: str = flag(None, "cpu, cuda or mps (default: the best the machine has)")
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
    """Take from the config.json of a run what the flags leave open -> the method, with its
    settings."""
    run = Path(args.model)
    path = run / "config.json"
    config = _read_json(path) if path.exists() else {}
    settings = config.get("settings", {})
    if settings:  # a model's config.json has none
        if not (run / "final").is_dir():
            place = f"--name {shlex.quote(run.name)} --runs {shlex.quote(str(run.parent))}"
            finish = f"python train.py --resume {place}"
            raise ModelError(f"{run} has no final/ yet: finish it with `{finish}`")
        args.model = str(run / "final")
        args.baseline = args.baseline or config["flags"]["model"]
        for name in ("task", "reward", "prompt", "stop", "template", "method"):
            setattr(args, name, getattr(args, name) or config["flags"][name])
    settings.setdefault("max_new_tokens", 1024)
    for name in ("max_new_tokens", "sample_tokens", "seed"):
        if getattr(args, name) is not None:
            settings[name] = getattr(args, name)
    settings |= dict(text.partition("=")[::2] for text in args.set)
    return get_method(args.method or "grpo", settings)


def evaluate_model(name, task, method, args):
    """Print the rows of one model, and write its completions to --out."""
    device, dtype = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    problems = task.test[: args.problems]
    first = tokenizer.encode_prompt(task.prompt(problems[0]))
    prompt = tokenizer.decode(first, skip_special_tokens=False)
    print(f"first prompt of {name} ({tokenizer.template}): {prompt!r}")
    header = {**vars(args), "model": name, "settings": asdict(method.settings), "prompt": prompt}
    append_rows(args.out, [{"header": {**header, "dtype": str(dtype), "git": git_commit()}}])
    decodings = [("greedy", 1, 0.0)]
    if args.temperature > 0:
        decodings.append(("sampled", args.num_samples, args.temperature))
    for decoding, num_samples, temperature in decodings:
        ks = [k for k in args.k if k <= num_samples]
        parts = (method, model, tokenizer, task, problems)
        summary, records = evaluate(*parts, num_samples, temperature, ks)
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
