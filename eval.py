"""eval.py - did it work: accuracy on held-out problems, what it is worth, where a gain comes from.

What you will learn here: how completions are judged while others are being sampled (1), what an
accuracy is worth (2), how two models are compared, and how much of a gain is form and how much
mathematics (3). Sections 4 and 5 can be skipped: records on disk, the command.

    python eval.py runs/NAME                          the trained model against the one it came from
    python eval.py Qwen/Qwen3-0.6B --task math500 --num-samples 8 --k 1 8 --out eval.jsonl
    python notebooks/evaluation.py --help             many GPUs, few-shot rows, regrading, runs
"""

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

import verifiers
from model import ModelError, _read_json, find, load, pick_device
from rlvr import decode, row_uniforms, sample, score

# ---- 1. From problems to judged completions ------------------------------------------------------

def roll_out(model, tokenizer, task, problems, num_samples=1, temperature=1.0, max_new_tokens=512, seed=0,
             top_p=1.0, top_k=0, rows=None, cache_tokens=65536, label="sampling", step=decode):
    """num_samples completions of each problem, judged -> (rollouts, texts, rewards (P, G), parts). rows: see row_uniforms."""
    G, texts, verdicts = num_samples, {}, {}
    pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))
    with tqdm(total=len(problems) * G, desc=label, unit="row", leave=False, delay=2, disable=None) as bar:
        def on_finished(row, ids):
            texts[row] = text_of(tokenizer, ids, task.stops)
            verdicts[row] = pool.submit(task.reward, texts[row], problems[row // G])
            bar.update()
        prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
        uniforms = row_uniforms(range(len(problems) * G) if rows is None else rows, max_new_tokens, seed)
        ends = (lambda ids: stop_after(tokenizer, task.stops, ids)) if task.stops else None
        rollouts = sample(model, prompts, G, max_new_tokens, temperature, top_p, top_k, uniforms=uniforms,
                          cache_tokens=cache_tokens, on_finished=on_finished, stop_after=ends, step=step)
    texts = [texts[row] for row in sorted(texts)]
    rewards, parts = score(rollouts, texts, problems, task.reward, verdicts)
    pool.shutdown(wait=False, cancel_futures=True)
    return rollouts, texts, rewards, parts


def text_of(tokenizer, ids, stops=()):
    """What is judged: the text up to the first of the stop texts."""
    text = tokenizer.decode(ids)
    return min((text.partition(stop)[0] for stop in stops), key=len, default=text)


def stop_after(tokenizer, stops, ids):
    """How many of these ids it takes to say one of the stop texts; 0 if they do not."""
    if not any(stop in tokenizer.decode(ids, False) for stop in stops):
        return 0
    return next(n for n in range(1, len(ids) + 1) if any(stop in tokenizer.decode(ids[:n], False) for stop in stops))


def evaluate(model, tokenizer, task, problems, num_samples=1, temperature=0.0, max_new_tokens=512, seed=0,
             top_p=1.0, top_k=0, cache_tokens=65536, label="evaluating", rows=None, step=decode, roll_out=roll_out):
    """Judge num_samples completions of each problem; temperature 0 is greedy -> (summary, records: a dict
    for each completion with the problem's columns, completion, length in tokens, reward and its parts).
    In fp32 cache_tokens and the number of processes matter by rounding only."""
    rollouts, texts, rewards, parts = roll_out(
        model, tokenizer, task, problems, num_samples, temperature, max_new_tokens, seed, top_p, top_k,
        rows=rows, cache_tokens=cache_tokens, label=label, step=step)
    records = [{**part, **problems[i // num_samples], "completion": text, "length": length, "reward": reward,
                "answered": part["answered"], "truncated": part["truncated"],
                "accuracy": part["accuracy"] * (1 - part["truncated"])}     # cut off: no answer, even if a box is right
               for i, (text, length, reward, part) in enumerate(zip(
                   texts, rollouts.lengths.tolist(), rewards.flatten().tolist(), parts))]
    return summarise(records, num_samples), records


def summarise(records, num_samples):
    """n problems; means over the completions; low and high: the accuracy's 95 % interval."""
    means = {key: statistics.fmean(record[key] for record in records)
             for key in ("accuracy", "reward", "length", "truncated", "answered")}
    low, high = clustered_interval(accuracies(records, num_samples), num_samples)
    return {"n": len(records) // num_samples, "low": low, "high": high, **means}


def use_reward(task, spec):
    """Judge by another reward. If it has no accuracy, the task's own is asked for that."""
    own, other = task.reward, verifiers.get_reward(spec)
    def judged(completion, problem):
        reward, parts = other(completion, problem)
        if "accuracy" not in parts:
            number, known = own(completion, problem)
            parts = {"accuracy": known.get("accuracy", min(1.0, max(0.0, number))), **parts}
        return reward, parts
    task.reward = judged


def by_problem(records, num_samples):
    return [records[i:i + num_samples] for i in range(0, len(records), num_samples)]


def accuracies(records, num_samples):
    """The share of right completions of each problem."""
    return [statistics.fmean(r["accuracy"] for r in group) for group in by_problem(records, num_samples)]


# ---- 2. What a number is worth -------------------------------------------------------------------

def wilson_interval(share, n, z=1.96):
    """95 % interval of a share measured on n problems (Wilson 1927): (low, high). Honest near both
    ends. Example: 8 of 10 right -> (0.490, 0.943); 0 of 10 -> (0, 0.278)."""
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n)), min(1.0, (centre + spread) / (1 + z * z / n))


def clustered_interval(shares, num_samples):
    """95 % interval of the mean of `shares`, each measured on num_samples completions of a problem.

    Samples of one problem resemble each other: n problems with k samples are worth n* independent
    ones, n to n k; s^2 between the problems tells, n* = p (1 - p) / (s^2 / n) (Miller 2024, arXiv 2411.00640).
    subtle: where few differ, s^2 is mostly too small: half a problem always right and half a one never are added.
    """
    n, mean = len(shares), statistics.fmean(shares)
    p = (sum(shares) + 0.5) / (n + 1)
    variance = (sum((share - p) ** 2 for share in shares) + 0.5 * (1 - p) ** 2 + 0.5 * p ** 2) / n
    return wilson_interval(mean, min(n * num_samples, max(n, p * (1 - p) * n / variance)))


def pass_at_k(n, c, k):
    """The chance that one of k samples is right, without bias, from c right ones among n:
    1 - C(n - c, k) / C(n, k) (Codex, arXiv 2107.03374, eq. 1). Example: n 4, c 1, k 2 -> 0.5."""
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n, 0 <= c <= n, got n {n}, c {c}, k {k}; draw at least k samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(records, num_samples, k):
    return statistics.fmean(pass_at_k(num_samples, sum(r["accuracy"] == 1 for r in group), k)
                            for group in by_problem(records, num_samples))


# ---- 3. Two models on the same problems ----------------------------------------------------------

def paired_interval(changes, z=1.96):
    """Mean of one change per problem, each from -1 to 1, and its 95 % interval: (mean, low, high).
    As if two more problems had got better and two worse (plus-four rule, Agresti and Coull 1998):
    where few problems changed, or none, the plain interval is far too short."""
    n, mean = len(changes) + 4, statistics.fmean(changes)
    centre = sum(changes) / n
    variance = (sum((c - centre) ** 2 for c in changes) + 2 * (1 - centre) ** 2 + 2 * (1 + centre) ** 2) / (n - 1)
    error = z * math.sqrt(variance / n)
    return mean, max(-1.0, min(mean, centre - error)), min(1.0, max(mean, centre + error))


def compare(before, after, num_samples=1):
    """The paired difference of two accuracies -> dict: difference, its 95 % interval low, high, how many
    problems got better, worse, and p, the chance of so uneven a split by luck (two-sided sign test)."""
    changes = [b - a for a, b in zip(accuracies(before, num_samples), accuracies(after, num_samples), strict=True)]
    mean, low, high = paired_interval(changes)
    better, worse = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    tail = sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1)) / 2 ** (better + worse)
    return {"difference": mean, "low": low, "high": high, "better": better, "worse": worse, "p": min(1.0, 2 * tail)}


def decompose(before, after, num_samples=1):
    """Whence the difference of two accuracies -> {part: (mean, low, high)}; the means add up to it.

    Each completion of a problem before is paired with each after. A change in accuracy goes to
      stopping      if one of the two was cut off and the other was not,
      format        else, if one of them has an answer and the other has none,
      mathematics   else: two answers, one right and one wrong.
    Example, 5 problems, before -> after: cut off -> right, no answer -> right, no answer -> wrong,
    wrong -> right, right -> cut off. The gain of 2/5 is stopping 0, format 1/5 and mathematics 1/5.
    """
    pairs = [*zip(by_problem(before, num_samples), by_problem(after, num_samples), strict=True)]
    parts = {part: [0.0] * len(pairs) for part in ("stopping", "format", "mathematics")}
    for i, (old, new) in enumerate(pairs):
        for a, b in ((a, b) for a in old for b in new):
            part = ("stopping" if a["truncated"] != b["truncated"] else
                    "format" if a["answered"] != b["answered"] else "mathematics")
            parts[part][i] += (b["accuracy"] - a["accuracy"]) / num_samples**2
    return {part: paired_interval(changes) for part, changes in parts.items()}


# ---- 4. Records: what was measured, to be continued, judged again and quoted ---------------------

def git_commit():
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def hash_of(*paths):
    """The first digits of the SHA-256 of these files."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:12]


def read_rows(path, needed=()):
    """The objects of a .jsonl file, each with the needed keys; an unfinished last line is passed over."""
    rows, lines, number = [], [], 0
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")     # splitlines: at U+2028, too
        for number, line in enumerate(lines, 1):
            rows += [json.loads(line)] if line.strip() else []
            if rows and not (isinstance(rows[-1], dict) and rows[-1].keys() >= {*needed}):
                raise ValueError(f"there should be an object with {', '.join(needed) or 'names'}")
    except (OSError, ValueError) as error:
        where, what = (f"{path}, line {number}", "not valid JSON") if number else (path, "cannot be read")
        if number == 0 or number < len(lines):
            raise verifiers.DataError(f"{where}: {what} ({error}); is the file damaged?") from None
    return rows


def located(run, spec):
    """What a run's config.json names, where that is now: its paths are relative to the run."""
    file = run / spec.partition(".py:")[0] if spec else None
    return str(run / spec) if spec and (file.exists() or file.with_suffix(".py").exists()) else spec


def append_rows(path, rows):
    with open(path, "a", encoding="utf-8", errors="replace") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# ---- 5. The command ------------------------------------------------------------------------------

def parse_args(argv=None):
    parser = argparse.ArgumentParser(description="Accuracy on held-out problems.", allow_abbrev=False,
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("model", help="a model directory, a hub id, or runs/NAME: its final model against its base")
    add("--baseline", help="a second model, on the same problems, compared")
    add("--task", help=f"{', '.join(verifiers.TASKS)}, a data file or file.py:name (default: the run's, or math500)")
    add("--prompt", help='the sentence that asks, with {problem} in it (default: the task\'s)')
    add("--stop", nargs="+", help="texts that end a completion (default: the task's)")
    add("--reward", help="whose accuracy counts (default: the run's, or the task's)")
    add("--template", choices=["plain", "chat", "chat-nothink"], help="(default: chat if <|im_end|> is a stop, else plain)")
    add("--problems", type=int, default=500, help="how many, from the first")
    add("--num-samples", type=int, default=1, help="completions of each problem in the sampled row")
    add("--k", type=int, nargs="*", default=[], help="pass@k for these k, each at most --num-samples")
    add("--temperature", type=float, default=1.0, help="of the sampled row; 0: no such row")
    add("--top-p", type=float, default=1.0, help="keep the likeliest tokens of this mass")
    add("--top-k", type=int, default=0, help="keep this many of the likeliest tokens; 0: all")
    add("--max-new-tokens", type=int, help="longest completion (default: the run's, or 1024)")
    add("--seed", type=int, default=0, help="of the sampled row")
    add("--device", choices=["cpu", "cuda", "mps"], help="(default: the best the machine has)")
    add("--out", help="add a header for each model and every completion to this .jsonl file")
    args = parser.parse_args(argv)
    if any(not 1 <= k <= args.num_samples for k in args.k) or args.problems < 1 or args.num_samples < 1:
        parser.error("--problems and --num-samples are at least 1, and each --k is from 1 to --num-samples")
    if not 0 <= args.temperature < math.inf or not 0 < args.top_p <= 1 or args.top_k < 0:
        parser.error("--temperature and --top-k are 0 or more, and --top-p is above 0 and at most 1")
    return args


def read_run(args):
    """If args.model is a run directory, fill in from its config.json what the flags leave open."""
    run, config = Path(args.model), Path(args.model) / "config.json"
    flags = _read_json(config).get("flags") if config.exists() else None
    if flags:                                           # a model's config.json has no flags
        if not (run / "final").is_dir():
            raise ModelError(f"{run} has no final/ yet" + f"; `python eval.py {run}/best`" * (run / "best").is_dir())
        args.model, args.baseline = str(run / "final"), args.baseline or located(run, flags["model"])
        for name in ("task", "reward", "prompt", "stop", "template", "max_new_tokens"):
            if getattr(args, name) is None:
                value = flags.get(name)
                setattr(args, name, located(run, value) if name in ("task", "reward") else value)
    args.max_new_tokens = args.max_new_tokens or 1024


def evaluate_model(name, task, args):
    """Print the rows of one model -> {"greedy": records, "sampled": records}."""
    device, dtype, _ = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    problems = task.test[:args.problems]
    prompt = tokenizer.decode(tokenizer.encode_prompt(task.prompt(problems[0])), skip_special_tokens=False)
    print(f"first prompt of {name} ({tokenizer.template}): {prompt!r}")
    names = {reward: known for known, reward in verifiers.REWARDS.items()}
    header = {
        **vars(args), "model": name, "weights": hash_of(*find(name).glob("*.safetensors")),
        "prompt": prompt, "stop_ids": list(model.config.eos_token_id), "task": task.name,
        "problems": len(problems), "data": hashlib.sha256(json.dumps(problems).encode()).hexdigest()[:12],
        "grader": hash_of(verifiers.__file__), "reward": args.reward or names.get(task.reward),
        "dtype": str(dtype), "device": device, "git": git_commit()}
    out = args.out or os.devnull
    append_rows(out, [{"header": header}])
    results = {}
    for decoding, samples, temperature in (("greedy", 1, 0.0), ("sampled", args.num_samples, args.temperature)):
        if decoding == "greedy" or temperature > 0:
            _, records = evaluate(model, tokenizer, task, problems, samples, temperature, args.max_new_tokens,
                                  args.seed, args.top_p, args.top_k, label=f"{Path(name).name} {decoding}")
            results[decoding] = [{**record, "model": name, "decoding": decoding, "index": i // samples,
                                  "sample": i % samples} for i, record in enumerate(records)]
            append_rows(out, results[decoding])
            print_row(results[decoding], args.k)
    return results


def print_row(records, ks):
    samples = records[-1]["sample"] + 1
    s, answered = summarise(records, samples), [r["accuracy"] for r in records if r["answered"] and not r["truncated"]]
    print(f"{records[0]['model'][-36:]:36} {records[0]['decoding']:8} {s['accuracy']:8.3f} {s['low']:7.3f} - "
          f"{s['high']:5.3f} {s['n']:5} {s['length']:7.1f} {s['truncated']:8.1%} {1 - s['answered']:9.1%} "
          f"{sum(answered) / max(1, len(answered)):8.3f}"
          + "".join(f"{mean_pass_at_k(records, samples, k):8.3f}" for k in ks if k <= samples))


def print_comparison(results):
    """The first model against the second: what it gained, how surely, and whence."""
    (_, after), (other, before) = results.items()
    for decoding in after:
        num_samples = after[decoding][-1]["sample"] + 1
        c, parts = (f(before[decoding], after[decoding], num_samples) for f in (compare, decompose))
        print(f"{decoding}: difference {c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}] to {other}, "
              f"{c['better']} problems better, {c['worse']} worse, sign test p = {c['p']:.2g}\n    of it " + ", ".join(
                  f"{part} {mean:+.3f} [{low:+.3f}, {high:+.3f}]" for part, (mean, low, high) in parts.items()))


def main(argv=None):
    args = parse_args(argv)
    read_run(args)
    # find: a mistyped model is named before a task's data is fetched
    models = [name for name in (args.model, args.baseline) if name and find(name)]
    task = verifiers.get_task(args.task or "math500", args.prompt, args.stop or ())
    if args.reward:
        use_reward(task, args.reward)
    print(f"task {task.name}: {len(task.test[:args.problems])} problems, at most {args.max_new_tokens} tokens each\n"
          f"{'model':36} {'decoding':8} {'accuracy':>8} {'95 % interval':>15} {'n':>5} {'length':>7} {'cut off':>8} "
          f"{'no answer':>9} {'answered':>8}" + "".join(f"{f'pass@{k}':>8}" for k in args.k))
    results = {name: evaluate_model(name, task, args) for name in models}
    if len(results) == 2:
        print_comparison(results)
    if args.out:
        print(f"completions in {args.out}")


if __name__ == "__main__":
    try:
        main()
    except (ModelError, verifiers.DataError, ValueError) as error:
        sys.exit(f"error: {error}")
