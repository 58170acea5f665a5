"""eval.py - did it work: accuracy on held-out problems, with an interval, and whether one model beats another.

What you will learn here: what an accuracy of n problems is worth (Wilson interval), what a model could do with k tries
(pass@k, unbiased), and how two models are compared on the same problems (paired difference, exact sign test).

    python eval.py runs/NAME                                        the trained model against the model it came from
    python eval.py Qwen/Qwen3-0.6B --task math500 --max-new-tokens 2048
    python eval.py runs/NAME/final --task arithmetic --num-samples 16 --k 1 4 16

Left out for now: majority voting, few-shot prompts, several GPUs.
"""

import argparse
import contextlib
import json
import math
import os
import sys
from pathlib import Path

from tqdm import tqdm

import verifiers
from model import ModelError, load, pick_device
from rlvr import row_uniforms, sample, score, verdict_threads

# ---- 1. Evaluate -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def verifying(tokenizer, task, problems, num_samples, label):
    """Judge completions while others are still being sampled -> (on_finished for sample, verdicts for score)."""
    verdicts, threads = {}, os.cpu_count() or 1
    begin = verdict_threads(task.reward, threads)
    with tqdm(total=len(problems) * num_samples, desc=label, unit="row", leave=False, delay=2, disable=None) as bar:
        def on_finished(row, ids):
            verdicts[row] = begin(tokenizer.decode(ids), problems[row // num_samples])
            bar.update()
        try:
            yield on_finished, verdicts
        finally:
            for _ in range(threads):
                begin(None, None)                                       # each ends one thread, when all work is done


def evaluate(model, tokenizer, task, problems, num_samples=1, temperature=0.0, max_new_tokens=512, seed=0, top_p=1.0,
             top_k=0, min_p=0.0, cache_tokens=65536, label="evaluating", compiled=False):
    """Sample and judge num_samples completions of each problem -> (summary dict, records).

    temperature 0 is greedy. Every completion has its own random numbers (row_uniforms), so in fp32 the result does not
    depend on cache_tokens, the number of prompt and completion tokens that are held in memory at once.
    Summary: n, accuracy, low, high (95 % interval), reward, length (tokens), truncated and answered (shares).
    Records: one dict per completion, with the text, its length, reward, parts and whether it finished.
    """
    prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
    uniforms = row_uniforms(range(len(problems) * num_samples), max_new_tokens, seed)
    with verifying(tokenizer, task, problems, num_samples, label) as (on_finished, verdicts):
        rollouts = sample(model, prompts, num_samples, max_new_tokens, temperature, top_p, top_k, min_p,
                          uniforms=uniforms, cache_tokens=cache_tokens, on_finished=on_finished, compiled=compiled)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    rewards, parts = score(rollouts, texts, problems, task.reward, verdicts)
    records = []
    for i, (text, reward, part) in enumerate(zip(texts, rewards.flatten().tolist(), parts)):
        problem = problems[i // num_samples]
        records.append({"problem": problem["problem"], "answer": problem["answer"], "completion": text,
                        "length": int(rollouts.lengths[i]), "reward": reward, **part,
                        # what was cut off is not an answer, even if a right box stands in it
                        "accuracy": part["accuracy"] * (1 - part["truncated"])})
    return summarise(records, num_samples), records


def summarise(records, num_samples):
    """Means over the completions. The interval is for n problems: samples of one problem are not independent."""
    n = len(records) // num_samples
    mean = {key: sum(r[key] for r in records) / len(records)
            for key in ("accuracy", "reward", "length", "truncated", "answered")}
    low, high = wilson_interval(mean["accuracy"], n)
    return {"n": n, "low": low, "high": high, **mean}


# ---- 2. What a number is worth ---------------------------------------------------------------------------------------

def wilson_interval(share, n, z=1.96):
    """95 % interval of a share measured on n problems (Wilson 1927): (low, high).

    It stays inside [0, 1] and is honest near both ends, where share +- z sqrt(share (1 - share) / n) is not.
    Example: 8 of 10 right -> (0.490, 0.943); 0 of 10 -> (0, 0.278).
    """
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n)), min(1.0, (centre + spread) / (1 + z * z / n))


def pass_at_k(n, c, k):
    """The chance that at least one of k samples is right, estimated without bias from c right ones among n:
    1 - C(n - c, k) / C(n, k) (Codex, arXiv 2107.03374, eq. 1). Example: n 4, c 1, k 2 -> 0.5.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got n {n}, c {c}, k {k}; draw at least k samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(records, num_samples, k):
    groups = [records[i:i + num_samples] for i in range(0, len(records), num_samples)]
    return sum(pass_at_k(num_samples, sum(r["accuracy"] > 0 for r in group), k) for group in groups) / len(groups)


def compare(before, after, num_samples=1, z=1.96):
    """Two models on the same problems: the paired difference of their accuracies -> dict.

    difference, low, high: mean over the problems and its 95 % interval; better, worse: problems that changed, and
    p: the exact two-sided sign test on those, the chance of so uneven a split if nothing had changed.
    """
    def per_problem(records):
        return [sum(r["accuracy"] for r in records[i:i + num_samples]) / num_samples
                for i in range(0, len(records), num_samples)]
    changes = [b - a for a, b in zip(per_problem(before), per_problem(after), strict=True)]
    n, mean = len(changes), sum(changes) / len(changes)
    error = z * math.sqrt(sum((c - mean) ** 2 for c in changes) / max(1, n - 1) / n)
    better, worse = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    tail = sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1)) / 2 ** (better + worse)
    return {"difference": mean, "low": mean - error, "high": mean + error, "better": better, "worse": worse,
            "p": min(1.0, 2 * tail)}


# ---- 3. The command --------------------------------------------------------------------------------------------------

def parse_args(argv=None):
    parser = argparse.ArgumentParser(description="Accuracy of a model on held-out problems; see the top of eval.py.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model directory, a hub id, or runs/NAME: its final model against its base")
    parser.add_argument("--baseline", help="a second model, evaluated on the same problems and compared")
    parser.add_argument("--task", help=f"one of {', '.join(verifiers.TASKS)} (default: the run's own, else math500)")
    parser.add_argument("--data", help="a .jsonl file with problem and answer, all of it used, instead of --task")
    parser.add_argument("--reward", help="whose accuracy counts, one of verifiers.REWARDS (default: the run's, else "
                        "the task's)")
    parser.add_argument("--problems", type=int, default=500, help="how many, from the first (default: 500)")
    parser.add_argument("--template", choices=["plain", "chat", "chat-nothink"],
                        help="how prompts are presented (default: plain for base models, chat for post-trained ones)")
    parser.add_argument("--num-samples", type=int, default=1, help="completions per problem, sampled (default: 1)")
    parser.add_argument("--k", type=int, nargs="*", default=[], help="pass@k for these k, each at most --num-samples")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampled row (default: 1.0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens of this mass (default: 1)")
    parser.add_argument("--top-k", type=int, default=0, help="keep this many likeliest tokens (default: 0, all)")
    parser.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the top (default: 0)")
    parser.add_argument("--max-new-tokens", type=int, help="longest completion (default: the run's own, else 1024)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampled row (default: 0)")
    parser.add_argument("--device", choices=["cpu", "cuda", "mps"], help="(default: the best the machine has)")
    parser.add_argument("--out", help="write every completion and its verdict to this .jsonl file")
    args = parser.parse_args(argv)
    if any(not 1 <= k <= args.num_samples for k in args.k):
        parser.error(f"--k: each k must be from 1 to --num-samples ({args.num_samples})")
    if args.problems < 1 or args.num_samples < 1:
        parser.error("--problems and --num-samples must be at least 1")
    return args


def read_run(args):
    """If args.model is a run directory, fill in from its config.json what the flags leave open."""
    config = Path(args.model) / "config.json"
    flags = json.loads(config.read_text()).get("flags") if config.exists() else None
    if flags:                                          # a model's config.json has no flags
        args.baseline = args.baseline or flags["base"]
        args.task, args.data = args.task or flags["task"], args.data or flags["data"]
        args.reward = args.reward or flags.get("reward")
        args.max_new_tokens = args.max_new_tokens or flags["max_new_tokens"]
        args.template, args.model = args.template or flags["template"], str(Path(args.model) / "final")
    args.max_new_tokens = args.max_new_tokens or 1024


def evaluate_model(name, task, problems, args):
    """Print the rows of one model -> {"greedy": records, "sampled": records}."""
    device, dtype, _ = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    if name == args.model:
        print(f"first prompt ({tokenizer.template}): "
              f"{tokenizer.decode(tokenizer.encode_prompt(task.prompt(problems[0])), skip_special_tokens=False)!r}\n")
        print(f"{'model':40} {'decoding':10} {'accuracy':>8} {'95 % interval':>15} {'length':>7} {'cut off':>8} "
              f"{'no answer':>9}" + "".join(f"{f'pass@{k}':>9}" for k in args.k))
    results = {}
    for label, samples, temperature in (("greedy", 1, 0.0), ("sampled", args.num_samples, args.temperature)):
        s, records = evaluate(model, tokenizer, task, problems, samples, temperature, args.max_new_tokens, args.seed,
                              args.top_p, args.top_k, args.min_p, label=f"{Path(name).name} {label}")
        print(f"{name[-40:]:40} {label:10} {s['accuracy']:8.3f} {s['low']:7.3f} - {s['high']:5.3f} {s['length']:7.1f} "
              f"{s['truncated']:8.1%} {1 - s['answered']:9.1%}"
              + "".join(f"{mean_pass_at_k(records, samples, k):9.3f}" for k in args.k if samples >= k))
        results[label] = records
    return results


def main(argv=None):
    args = parse_args(argv)
    read_run(args)
    if args.data and not args.task:
        problems = verifiers.read_problems(args.data)
        task = verifiers.Task(Path(args.data).stem, [], problems, verifiers.BOXED, verifiers.boxed_reward)
    else:
        task = verifiers.get_task(args.task or "math500", args.data)
    if args.reward:
        task.reward = verifiers.get_reward(args.reward)
    problems = task.test[:args.problems]
    print(f"task {task.name}: {len(problems)} problems, at most {args.max_new_tokens} tokens each")
    runs = {name: evaluate_model(name, task, problems, args) for name in (args.model, args.baseline) if name}
    if args.baseline:
        for label, samples in (("greedy", 1), ("sampled", args.num_samples)):
            c = compare(runs[args.baseline][label], runs[args.model][label], samples)
            print(f"{label}: difference {c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}], {c['better']} "
                  f"problems better, {c['worse']} worse, sign test p = {c['p']:.2g}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            for name, results in runs.items():
                for label, records in results.items():
                    for record in records:
                        file.write(json.dumps({"model": name, "decoding": label, **record}, ensure_ascii=False) + "\n")
        print(f"completions in {args.out}")


if __name__ == "__main__":
    try:
        main()
    except (ModelError, verifiers.DataError, ValueError) as error:
        sys.exit(f"error: {error}")
