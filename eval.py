"""eval.py - did it work: accuracy on held-out problems, what it is worth, and where a gain comes from.

What you will learn here: how an accuracy is measured so that others get the same one (1 and 4), what it is worth
(intervals, pass@k, majority vote: 2), how two models are compared on the same problems and how much of the gain is form
and how much mathematics (3), and whether the test was in the training data (5). Sections 4 and 6 can be skipped at
first.

    python eval.py runs/NAME                                        the trained model against the model it came from
    python eval.py runs/NAME --few-shot 4 --out runs/NAME/eval.jsonl         ... and the latter with 4 solved examples
    python eval.py Qwen/Qwen3-0.6B --preset thinking --task aime24 --num-samples 16 --k 1 8 16
    torchrun --nproc-per-node 8 eval.py runs/NAME --out eval.jsonl           the same numbers, on 8 GPUs
    python eval.py --regrade eval.jsonl                             judge saved completions again, without a model
    python eval.py --check-verifier labelled.jsonl                  judge the judge, on answers labelled by people
    python eval.py --show runs/NAME --step 30                       what a group of step 30 said and earned
"""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm import tqdm

import verifiers
from model import ModelError, _find, load, pick_device
from rlvr import row_uniforms, sample, score, verdict_threads

# ---- 1. Evaluate -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def verifying(text_of, task, problems, num_samples, label):
    """Judge completions while others are still being sampled -> (on_finished for sample, verdicts for score).
    text_of: from token ids to what is judged."""
    verdicts, threads = {}, max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    begin = verdict_threads(task.reward, threads)
    with tqdm(total=len(problems) * num_samples, desc=label, unit="row", leave=False, delay=2, disable=None) as bar:
        def on_finished(row, ids):
            verdicts[row] = begin(text_of(ids), problems[row // num_samples])
            bar.update()
        try:
            yield on_finished, verdicts
        finally:
            for _ in range(threads):
                begin(None, None)                                       # each ends one thread, when all work is done


def evaluate(model, tokenizer, task, problems, num_samples=1, temperature=0.0, max_new_tokens=512, seed=0, top_p=1.0,
             top_k=0, min_p=0.0, cache_tokens=65536, label="evaluating", compiled=False, rows=None, stops=()):
    """Sample and judge num_samples completions of each problem -> (summary dict, records).

    temperature 0 is greedy. Every completion has its own random numbers (row_uniforms), so in fp32 the result does not
    depend on cache_tokens, the number of prompt and completion tokens that are held in memory at once. rows: which
    random numbers (default: 0, 1, ...), for a part of the problems. stops: texts that end a completion, see few_shot.
    Summary: n, accuracy, low, high (95 % interval), reward, length (tokens), truncated and answered (shares).
    Records: one dict per completion, with the text, its length, reward, parts and whether it finished.
    """
    prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
    uniforms = row_uniforms(range(len(problems) * num_samples) if rows is None else rows, max_new_tokens, seed)

    def text_of(ids):
        text = tokenizer.decode(ids)
        return min((text.partition(stop)[0] for stop in stops), key=len, default=text)
    with verifying(text_of, task, problems, num_samples, label) as (on_finished, verdicts):
        rollouts = sample(model, prompts, num_samples, max_new_tokens, temperature, top_p, top_k, min_p,
                          uniforms=uniforms, cache_tokens=cache_tokens, on_finished=on_finished, compiled=compiled)
    texts = [text_of(ids) for ids in rollouts.completions()]
    for i, ids in enumerate(rollouts.completions() if stops else ()):
        if texts[i] != tokenizer.decode(ids):                           # finished: what follows is not the answer
            rollouts.finished[i], rollouts.lengths[i] = True, len(tokenizer.encode(texts[i]))
    rewards, parts = score(rollouts, texts, problems, task.reward, verdicts)
    records = []
    for i, (text, reward, part) in enumerate(zip(texts, rewards.flatten().tolist(), parts)):
        records.append({**problems[i // num_samples], "completion": text, "length": int(rollouts.lengths[i]),
                        "reward": reward, **part,
                        # what was cut off is not an answer, even if a right box stands in it
                        "accuracy": part["accuracy"] * (1 - part["truncated"])})
    return summarise(records, num_samples), records


def summarise(records, num_samples):
    """Means over the completions, and the interval of the accuracy for n problems with num_samples each."""
    mean = {key: sum(r[key] for r in records) / len(records)
            for key in ("accuracy", "reward", "length", "truncated", "answered")}
    low, high = clustered_interval(accuracies(records, num_samples), num_samples)
    return {"n": len(records) // num_samples, "low": low, "high": high, **mean}


def by_problem(records, num_samples):
    return [records[i:i + num_samples] for i in range(0, len(records), num_samples)]


def accuracies(records, num_samples):
    return [sum(r["accuracy"] for r in group) / num_samples for group in by_problem(records, num_samples)]


# ---- 2. What a number is worth ---------------------------------------------------------------------------------------

def wilson_interval(share, n, z=1.96):
    """95 % interval of a share measured on n problems (Wilson 1927): (low, high).

    It stays inside [0, 1] and is honest near both ends, where share +- z sqrt(share (1 - share) / n) is not.
    Example: 8 of 10 right -> (0.490, 0.943); 0 of 10 -> (0, 0.278).
    """
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n)), min(1.0, (centre + spread) / (1 + z * z / n))


def clustered_interval(shares, num_samples):
    """95 % interval of the mean of `shares`, each measured on num_samples completions of one problem: (low, high).

    Samples of one problem resemble each other, so n problems with k samples are worth more than n samples, but less
    than n k. How many, n* = p (1 - p) / (s^2 / n), is read off the variance s^2 between problems (the error is
    clustered by problem: Miller 2024, arXiv 2411.00640), kept within n .. n k, and given to Wilson's interval, which
    unlike p +- 1.96 s / sqrt(n) is honest near 0 and 1. With k = 1 it is Wilson's.
    Example, 8 samples each: shares 1, 1, 0, 0 have s^2 1/3, n* 3 -> 4: no more is known than from 4 samples. Shares
    1/2, 1/2, 1/2, 1/2 have s^2 0: all 32 count.
    """
    n, mean = len(shares), sum(shares) / len(shares)
    variance = statistics.variance(shares) if n > 1 else 0.0
    worth = n if mean in (0, 1) else mean * (1 - mean) * n / variance if variance else math.inf
    return wilson_interval(mean, max(n, min(worth, n * num_samples)))


def between_passes(records, num_samples):
    """Standard deviation of the accuracy from one pass over the problems to the next: with num_samples 8, of 8 passes.

    The samples of a problem are as independent as those of another seed would be; so k samples are k seeds.
    """
    return statistics.stdev(statistics.mean(r["accuracy"] for r in records[i::num_samples]) for i in range(num_samples))


def pass_at_k(n, c, k):
    """The chance that at least one of k samples is right, estimated without bias from c right ones among n:
    1 - C(n - c, k) / C(n, k) (Codex, arXiv 2107.03374, eq. 1). Example: n 4, c 1, k 2 -> 0.5.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, got n {n}, c {c}, k {k}; draw at least k samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_pass_at_k(records, num_samples, k):
    groups = by_problem(records, num_samples)
    return sum(pass_at_k(num_samples, sum(r["accuracy"] > 0 for r in group), k) for group in groups) / len(groups)


def majority(records):
    """Accuracy of the answer that most of these completions give (self-consistency, arXiv 2203.11171), in [0, 1].

    Answers are the same if grade_answer says so: 1/2 and 0.5 vote together. Only finished completions with an answer
    vote. A tie is drawn by lot, so it counts as the mean over the answers that tie.
    Example: 1/2, 7, 0.5 with the truth 0.5 -> 1.0; 7, 0.5 -> 0.5; 7, 7, 0.5 -> 0.0.
    """
    answers = []                                                        # [answer, votes, is it right]
    for r in records:
        if r["answered"] and not r["truncated"]:
            said = verifiers.extract_boxed_answer(r["completion"]) or r["completion"].strip()
            same = next((known for known in answers if verifiers.grade_answer(said, known[0])), None)
            if same is None:
                answers.append(same := [said, 0, r["accuracy"]])
            same[1] += 1
    most = max((votes for _, votes, _ in answers), default=0)
    winners = [right for _, votes, right in answers if votes == most]
    return sum(winners) / max(1, len(winners))


def majority_at_k(records, num_samples, k):
    """maj@k: the mean over all problems, and over the disjoint sets of k that num_samples completions hold."""
    votes = [majority(group[i:i + k]) for group in by_problem(records, num_samples)
             for i in range(0, num_samples - k + 1, k)]
    return sum(votes) / len(votes)


# ---- 3. Two models on the same problems ------------------------------------------------------------------------------

def paired_interval(changes, z=1.96):
    """Mean of one change per problem and its 95 % interval: (mean, low, high)."""
    n, mean = len(changes), sum(changes) / len(changes)
    error = z * math.sqrt(sum((c - mean) ** 2 for c in changes) / max(1, n - 1) / n)
    return mean, mean - error, mean + error


def compare(before, after, num_samples=1):
    """Two models on the same problems: the paired difference of their accuracies -> dict.

    difference, low, high: mean over the problems and its 95 % interval; better, worse: problems that changed, and
    p: the exact two-sided sign test on those, the chance of so uneven a split if nothing had changed.
    """
    changes = [b - a for a, b in zip(accuracies(before, num_samples), accuracies(after, num_samples), strict=True)]
    mean, low, high = paired_interval(changes)
    better, worse = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    tail = sum(math.comb(better + worse, i) for i in range(min(better, worse) + 1)) / 2 ** (better + worse)
    return {"difference": mean, "low": low, "high": high, "better": better, "worse": worse, "p": min(1.0, 2 * tail)}


def decompose(before, after, num_samples=1):
    """Where the difference of two accuracies comes from -> {"stopping", "format", "mathematics"}, each (mean, low,
    high). The three means add up to the difference.

    Every completion of a problem before is paired with every one after. What the pair changed in accuracy goes to
      stopping      if one of the two was cut off and the other was not,
      format        else, if one of them has an answer and the other has none,
      mathematics   else: two answers, one right and one wrong.
    So the first two are all that better form made visible, which may hide some mathematics: a base that never stops
    shows none. The last is what cannot be form.
    Example, 5 problems, before -> after: cut off -> right, no answer -> right, no answer -> wrong, wrong -> right,
    right -> cut off. The gain of 2/5 is stopping 1/5 - 1/5 = 0, format 1/5 and mathematics 1/5.
    """
    parts = {"stopping": [], "format": [], "mathematics": []}
    for old, new in zip(by_problem(before, num_samples), by_problem(after, num_samples), strict=True):
        change = dict.fromkeys(parts, 0.0)
        for a in old:
            for b in new:
                part = ("stopping" if a["truncated"] != b["truncated"] else
                        "format" if a["answered"] != b["answered"] else "mathematics")
                change[part] += (b["accuracy"] - a["accuracy"]) / num_samples**2
        for part, value in change.items():
            parts[part].append(value)
    return {part: paired_interval(changes) for part, changes in parts.items()}


# ---- 4. Records: what was measured, so that it can be judged again, continued and quoted -----------------------------

def git_commit():
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except OSError:
        return None


def short_hash(data):
    return hashlib.sha256(data).hexdigest()[:12]


def grader_version():
    """A hash of what decides and rewards: sections 1 to 10 of verifiers.py."""
    return short_hash(Path(verifiers.__file__).read_bytes().partition(b"\n# ---- 11.")[0])


def model_hash(name):
    """A hash of the files of the weights."""
    files = sorted(_find(name).glob("*.safetensors"))
    return short_hash(b"".join(hashlib.file_digest(path.open("rb"), "sha256").digest() for path in files))


def read_rows(path):
    """The objects of a .jsonl file; a line that a killed process left unfinished is passed over."""
    rows = []
    try:
        with open(path, encoding="utf-8") as file:                      # str.splitlines would also split at U+2028
            for line in file:
                with contextlib.suppress(json.JSONDecodeError):
                    rows.append(json.loads(line))
    except (OSError, UnicodeDecodeError) as error:
        raise verifiers.DataError(f"{path}: cannot be read ({error})") from error
    return rows


def append_rows(path, rows):
    """In one write, so that several processes can share the file."""
    with open(path, "ab", buffering=0) as file:
        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def reopen(path, header):
    """Begin the part of the file that has this header, or find it -> its records so far.

    A completion is a function of what the header names and of its row, so a continued evaluation equals an
    uninterrupted one. With another header it would be a mixture, and is refused; only the commit may differ.
    """
    rows = read_rows(path) if Path(path).exists() else []
    known = next((row["header"] for row in rows if row.get("header", {}).get("model") == header["model"]), None)
    differ = [key for key in header if known and key != "git" and header[key] != known.get(key)]
    if differ:
        raise verifiers.DataError(f"{path} holds another evaluation of {header['model']}: {', '.join(differ)} differ. "
                                  "Choose another --out")
    partial = Path(f"{path}.partial")
    partial.unlink(missing_ok=True)
    append_rows(partial, rows if known else [*rows, {"header": header}])        # without a line that was cut short
    partial.replace(path)
    return [row for row in rows if row.get("model") == header["model"]]


def complete(records, num_samples):
    """Sorted by problem and sample, each once, without the problems of which samples are missing."""
    places = {(r["index"], r["sample"]): r for r in records}
    there = Counter(index for index, _ in places)
    return [places[place] for place in sorted(places) if there[place[0]] == num_samples]


def regrade(records, reward):
    """The same completions under another verifier, or another version of it."""
    again = []
    for record in records:
        value, parts = reward(record["completion"], record)
        parts, finished = {"accuracy": value, "answered": 1.0, **parts}, 1.0 - record.get("truncated", 0.0)
        again.append({**record, **parts, "reward": value * finished, "accuracy": parts["accuracy"] * finished})
    return again


def check_verifier(rows, reward):
    """Verdicts against labels -> (number of right verdicts, the wrong ones as (kind, row)).

    rows: "gold" and "expect" (true, false, or null: debatable, not counted), and "pred", an answer for grade_answer,
    or "completion", a text for the reward. False accepts are the worse ones: they are what training finds.
    """
    right, wrong = 0, []
    for row in rows:
        if row.get("expect") is not None:
            said = (verifiers.grade_answer(row["pred"], row["gold"]) if "pred" in row else
                    regrade([{"answer": row["gold"], **row}], reward)[0]["accuracy"] == 1)
            right += said == row["expect"]
            wrong += [("false accept" if said else "false reject", row)] * (said != row["expect"])
    return right, wrong


# ---- 5. What it was measured on: solved examples in the prompt, test problems in the training data -------------------

def few_shot(task, count):
    """The task with `count` solved training problems before every question -> (task, stops).

    Examples show a base model the form of an answer and where it ends, so they are the fair thing to compare with.
    Only, it then goes on with a question of its own: stops are the texts at which such a one begins. (It is sampled on
    to --max-new-tokens all the same.) Each example is shown in the first form that the task's own reward accepts.
    """
    def solved(problem):
        answer, solution = problem["answer"], problem.get("solution", "").strip()
        box = f"\\boxed{{{answer}}}"
        for form in (solution, f"{solution} {box}".strip(), f"<think>{solution}</think><answer>{box}</answer>", answer):
            value, parts = task.reward(form, problem)
            if parts.get("accuracy", value) == 1:
                question = task.prompt(problem)
                return question + " " * question.endswith(":") + form + "\n\n"
        raise verifiers.DataError(f"--few-shot: task {task.name} has no solution to show that its own reward accepts")

    if len(task.train) < count:
        raise verifiers.DataError(f"--few-shot {count}: task {task.name} has {len(task.train)} training problems to "
                                  "show (for MATH-500 use --task math)")
    shown = "".join(map(solved, task.train[:count]))
    opening = task.prompt({"problem": "\0"}).partition("\0")[0].split("\n\n")
    return (dataclasses.replace(task, instruction=shown.replace("{", "{{").replace("}", "}}") + task.instruction),
            [f"\n\n{line.strip()}" for line in opening if line.strip()])


def overlap(train, test, n=8):
    """Test problems that are in the training data: {"exact", "near"}, each {test index: train index}.

    exact: the same text but for case and white space. near: at least half of the n-grams of the test problem (words and
    signs) stand in one training problem, as when only names or numbers were changed. One pass over the training data.
    """
    def ngrams(text):
        tokens = re.findall(r"\w+|[^\w\s]", text)
        return {tuple(tokens[i:i + n]) for i in range(max(1, len(tokens) - n + 1))}
    texts = [" ".join(problem["problem"].casefold().split()) for problem in test]
    grams, where, found = [ngrams(text) for text in texts], defaultdict(list), {"exact": {}, "near": {}}
    for i, text in enumerate(texts):
        for gram in (text, *grams[i]):
            where[gram].append(i)
    for j, problem in enumerate(train):
        text = " ".join(problem["problem"].casefold().split())
        found["exact"].update(dict.fromkeys(where.get(text, ()), j))
        shared = Counter(i for gram in ngrams(text) for i in where.get(gram, ()))
        found["near"].update({i: j for i, count in shared.items() if 2 * count >= len(grams[i])})
    return {"exact": found["exact"], "near": {i: j for i, j in found["near"].items() if i not in found["exact"]}}


def describe_overlap(task):
    found = overlap(task.train, task.test)
    return (f"of {len(task.test)} test problems {len(found['exact'])} are in the training data but for case and white "
            f"space, and {len(found['near'])} nearly (half of their 8-grams in one problem)")


# ---- 6. Several processes --------------------------------------------------------------------------------------------

def join_processes(minutes):
    """Join the processes that torchrun started, if it did. Only rank 0 prints. minutes: one waits for another."""
    if "RANK" not in os.environ:
        return
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=datetime.timedelta(minutes=minutes))
    if dist.get_rank():
        sys.stdout = open(os.devnull, "w")
        tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)


def processes():
    """(rank, number of processes); (0, 1) for a single one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def share(items):
    """The part of a list or range that falls to this rank."""
    rank, world = processes()
    return items[len(items) * rank // world:len(items) * (rank + 1) // world]


def gather(items):
    """The lists of all ranks as one list, on every rank."""
    if not dist.is_initialized():
        return items
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]


# ---- 7. Look at a run ------------------------------------------------------------------------------------------------

def show(run, step=None, groups=1, best_first=False):
    """Print completions of a training step as the policy gradient saw them: reward, parts, advantage, how they ended,
    what was extracted, and the tokens that the policy was most and least sure of.

    step: default the last. Printed are whole groups, first those with unequal rewards; with best_first as many
    completions of the step by falling reward, to be read for hacks (seed chapter 4, 8.3).
    """
    config = Path(run) / "config.json"
    if not config.exists():
        raise verifiers.DataError(f"{run}: no run, it has no config.json; give the folder that train.py wrote")
    G = json.loads(config.read_text())["flags"]["num_samples"]
    with open(Path(run) / "samples.jsonl", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if step is None or line.startswith(f'{{"step": {step},')]
    if not rows:
        raise verifiers.DataError(f"{run}/samples.jsonl holds nothing of step {step}")
    rows = [row for row in rows if row["step"] == rows[-1]["step"]]
    chosen = [rows[i:i + G] for i in range(0, len(rows), G)]
    if best_first:
        chosen = [[row] for row in sorted(rows, key=lambda row: -row["reward"])[:groups * G]]
    else:
        chosen = sorted(chosen, key=lambda group: len({row["reward"] for row in group}) == 1)[:groups]
    for group in chosen:
        print(f"step {group[0]['step']}: {group[0]['problem']!r}, truth {group[0]['answer']!r}")
        for row in group:
            parts = ", ".join(f"{name} {value:g}" for name, value in row["parts"].items())
            print(f"\n  reward {row['reward']:.2f}, advantage {row['advantage']:+.2f}; {row['length']} tokens, "
                  f"{'ended' if row['finished'] else 'cut off'}; boxed "
                  f"{verifiers.extract_boxed_answer(row['completion'])}; {parts}")
            print("    " + row["completion"].replace("\n", "\n    "))
            for label, name in (("most likely ", "likely"), ("least likely", "unlikely")):
                print(f"    {label}: " + ", ".join(f"{text!r} {chance:.3f}" for text, chance in row[name]))
        print()


# ---- 8. The command --------------------------------------------------------------------------------------------------

# What Qwen3's model card recommends; for thinking it warns of greedy decoding, which repeats itself without end.
PRESETS = {"thinking": dict(template="chat", temperature=0.6, top_p=0.95, top_k=20, max_new_tokens=32768),
           "non-thinking": dict(template="chat-nothink", temperature=0.7, top_p=0.8, top_k=20, max_new_tokens=16384)}


SAVE_EVERY = 256        # completions; what an interrupted evaluation with --out loses at most, for each process


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description="Accuracy of a model on held-out problems; see the top of eval.py.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model directory, a hub id, or runs/NAME: its final model against "
                        "its base")
    parser.add_argument("--baseline", help="a second model, evaluated on the same problems and compared")
    parser.add_argument("--few-shot", type=int, default=0, help="also the baseline (or else the model) with so many "
                        "solved training problems in the prompt (default: 0)")
    parser.add_argument("--task", help=f"one of {', '.join(verifiers.TASKS)} (default: the run's own, else math500)")
    parser.add_argument("--data", help="a .jsonl file with problem and answer, all of it used, instead of --task")
    parser.add_argument("--reward", help="whose accuracy counts, one of verifiers.REWARDS (default: the run's, else "
                        "the task's)")
    parser.add_argument("--problems", type=int, default=500, help="how many, from the first (default: 500)")
    parser.add_argument("--template", choices=["plain", "chat", "chat-nothink"],
                        help="how prompts are presented (default: plain for base models, chat for post-trained ones)")
    parser.add_argument("--preset", choices=PRESETS, help="template, temperature, top-p, top-k and length that Qwen3's "
                        "model card recommends, and no greedy row; flags beside it win")
    parser.add_argument("--num-samples", type=int, default=1, help="completions per problem, sampled (default: 1)")
    parser.add_argument("--k", type=int, nargs="*", default=[], help="pass@k and maj@k for these k, each at most "
                        "--num-samples")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampled row; 0: no such row (default: "
                        "1.0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens of this mass (default: 1)")
    parser.add_argument("--top-k", type=int, default=0, help="keep this many likeliest tokens (default: 0, all)")
    parser.add_argument("--min-p", type=float, default=0.0, help="drop tokens below this share of the top (default: 0)")
    parser.add_argument("--max-new-tokens", type=int, help="longest completion (default: the run's own, else 1024)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampled row (default: 0)")
    parser.add_argument("--device", choices=["cpu", "cuda", "mps"], help="(default: the best the machine has)")
    parser.add_argument("--cache-tokens", type=int, default=65536, help="tokens in memory at once (default: 65536)")
    parser.add_argument("--out", help="write every completion and its verdict to this .jsonl file; an interrupted "
                        "evaluation goes on from it")
    parser.add_argument("--regrade", nargs="+", metavar="FILE", help="judge the completions of such files again")
    parser.add_argument("--show", metavar="RUN", help="print a group of completions of a training run")
    parser.add_argument("--step", type=int, help="of --show (default: the last)")
    parser.add_argument("--groups", type=int, default=1, help="of --show (default: 1)")
    parser.add_argument("--best-first", action="store_true", help="with --show: the completions of the step with the "
                        "highest rewards, instead of groups")
    parser.add_argument("--check-verifier", metavar="FILE", help="judge labelled answers: a .jsonl file with gold, "
                        "pred (or completion) and expect")
    chosen, _ = parser.parse_known_args(argv)
    parser.set_defaults(**PRESETS.get(chosen.preset, {}))
    args = parser.parse_args(argv)
    if args.preset and args.temperature == 0:
        parser.error("--preset: it has no greedy row, so --temperature must be above 0")
    if sum(map(bool, (args.model, args.regrade, args.check_verifier, args.show))) != 1:
        parser.error("give a model to evaluate, or --regrade, or --check-verifier, or --show")
    if any(not 1 <= k <= args.num_samples for k in args.k) and not args.regrade:
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


def evaluate_model(label, name, task, stops, args):
    """Print the rows of one model -> {"greedy": records, "sampled": records}."""
    device, dtype, _ = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    problems = task.test[:args.problems]
    prompt = tokenizer.decode(tokenizer.encode_prompt(task.prompt(problems[0])), skip_special_tokens=False)
    print(f"first prompt of {label} ({tokenizer.template}): {prompt!r}")
    flags = ("num_samples", "temperature", "top_p", "top_k", "min_p", "max_new_tokens", "seed", "cache_tokens")
    header = {"model": label, "weights": model_hash(name), "template": tokenizer.template, "prompt": prompt,
              "stop_ids": list(model.config.eos_token_id), "task": task.name, "problems": len(problems),
              "data": short_hash(json.dumps(problems).encode()), "grader": grader_version(),
              "reward": next((key for key, value in verifiers.REWARDS.items() if value is task.reward), None),
              "dtype": str(dtype), "device": device, "git": git_commit(),
              **{flag: getattr(args, flag) for flag in flags}}
    saved = gather(reopen(args.out, header) if args.out and processes()[0] == 0 else [])
    results = {}
    for decoding, samples, temperature in (("greedy", 1, 0.0), ("sampled", args.num_samples, args.temperature)):
        if decoding == "greedy" and args.preset or decoding == "sampled" and temperature == 0:
            continue
        records = complete([r for r in saved if r["decoding"] == decoding], samples)
        todo = sorted(set(range(len(problems))) - {r["index"] for r in records})
        fresh, mine = [], share(todo)
        step = max(1, SAVE_EVERY // samples) if args.out else len(problems)
        for part in (mine[i:i + step] for i in range(0, len(mine), step)):
            rows = [i * samples + j for i in part for j in range(samples)]
            _, new = evaluate(model, tokenizer, task, [problems[i] for i in part], samples, temperature,
                              args.max_new_tokens, args.seed, args.top_p, args.top_k, args.min_p, args.cache_tokens,
                              f"{Path(name).name} {decoding}, from problem {part[0]}", rows=rows, stops=stops)
            new = [record | {"model": label, "decoding": decoding, "index": row // samples, "sample": row % samples}
                   for row, record in zip(rows, new)]
            if args.out:
                append_rows(args.out, new)
            fresh += new
        results[decoding] = complete(records + gather(fresh), samples)
        print_row(results[decoding], args.k)
    return results


def print_columns(ks):
    print(f"{'model':36} {'decoding':10} {'accuracy':>8} {'95 % interval':>15} {'n':>5} {'sd':>5} {'length':>7} "
          f"{'cut off':>8} {'no answer':>9} {'answered':>8}"
          + "".join(f"{f'pass@{k}':>9}" + f"{f'maj@{k}':>9}" * (k > 1) for k in ks))


def print_row(records, ks):
    samples = records[-1]["sample"] + 1
    s, answered = summarise(records, samples), [r["accuracy"] for r in records if r["answered"] and not r["truncated"]]
    line = (f"{records[0]['model'][-36:]:36} {records[0]['decoding']:10} {s['accuracy']:8.3f} {s['low']:7.3f} - "
            f"{s['high']:5.3f} {s['n']:5} {f'{between_passes(records, samples):.3f}' if samples > 1 else '':>5} "
            f"{s['length']:7.1f} {s['truncated']:8.1%} {1 - s['answered']:9.1%} "
            f"{sum(answered) / max(1, len(answered)):8.3f}")
    for k in ks:
        if k <= samples:                                # programs are not counted as votes: no two are spelt the same
            vote = "" if "tests" in records[0] else f"{majority_at_k(records, samples, k):.3f}"
            line += f"{mean_pass_at_k(records, samples, k):9.3f}" + f"{vote:>9}" * (k > 1)
    print(line)


def print_comparison(results):
    """The first model against every other: what it gained, how surely, and whence."""
    first, *others = results
    for other, decoding in ((o, d) for o in others for d in results[o] if d in results[first]):
        before, after = results[other][decoding], results[first][decoding]
        if [(r["problem"], r["sample"]) for r in before] != [(r["problem"], r["sample"]) for r in after]:
            raise verifiers.DataError(f"{first} and {other} were not evaluated on the same problems")
        c, parts = (f(before, after, before[-1]["sample"] + 1) for f in (compare, decompose))
        print(f"{decoding}: difference {c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}] to {other}, "
              f"{c['better']} problems better, {c['worse']} worse, sign test p = {c['p']:.2g}\n    of it " + ", ".join(
                  f"{part} {mean:+.3f} [{low:+.3f}, {high:+.3f}]" for part, (mean, low, high) in parts.items()))


def print_kinds(results):
    """Accuracy by level and by subject, where the problems have them."""
    rows = {f"{label[-20:]} {decoding}": records for label in results for decoding, records in results[label].items()}
    for key in ("level", "subject"):
        kinds = sorted({str(r[key]) for records in rows.values() for r in records if key in r})
        if kinds:
            print(f"\n{key:24} {'n':>5}" + "".join(f"{name:>32}" for name in rows))
        for kind in kinds:
            cells = [summarise([r for r in records if str(r.get(key)) == kind], records[-1]["sample"] + 1)
                     for records in rows.values()]
            print(f"{kind:24} {cells[0]['n']:5}" + "".join(
                f"{s['accuracy']:16.3f} {s['low']:7.3f} - {s['high']:5.3f}" for s in cells))


def judge_saved(args):
    """--regrade: judge saved completions again. A line needs "completion" and "answer"."""
    rows = [row for path in args.regrade for row in read_rows(path)]
    headers = {row["header"]["model"]: row["header"] for row in rows if "header" in row}
    lacking = {"model": "file", "decoding": "", "sample": 0, "problem": "", "truncated": 0.0, "length": 0}
    saved, results, changed = defaultdict(list), defaultdict(dict), []
    for i, row in enumerate(row for row in rows if "completion" in row):
        saved[row.get("model", "file"), row.get("decoding", "")].append({**lacking, "index": i, **row})
    print_columns(args.k)
    for (label, decoding), records in saved.items():
        records = complete(records, 1 + max(r["sample"] for r in records))
        reward = verifiers.get_reward(args.reward or headers.get(label, {}).get("reward") or "boxed")
        results[label][decoding] = again = regrade(records, reward)
        changed += [new for old, new in zip(records, again) if old.get("accuracy", new["accuracy"]) != new["accuracy"]]
        print_row(again, args.k)
    print_comparison(results)
    print_kinds(results)
    print(f"{len(changed)} verdicts changed (grader {', '.join({h['grader'] for h in headers.values()}) or 'unknown'} "
          f"-> {grader_version()})")
    for r in changed[:20]:
        print(f"    now {'right' if r['accuracy'] else 'wrong'}: truth {r['answer']!r}, said {r['completion'][-80:]!r}")


def judge_verifier(args):
    """--check-verifier: its accuracy on answers that people have labelled, and the disagreements to read."""
    right, wrong = check_verifier(read_rows(args.check_verifier), verifiers.get_reward(args.reward or "boxed"))
    n, kinds = right + len(wrong), Counter(kind for kind, _ in wrong)
    if n == 0:
        raise verifiers.DataError(f'{args.check_verifier}: no line has "gold", "pred" and "expect"')
    low, high = wilson_interval(right / n, n)
    print(f"{n} labelled answers: {right / n:.2%} judged right [{low:.2%}, {high:.2%}], {kinds['false accept']} false "
          f"accepts, {kinds['false reject']} false rejects (grader {grader_version()})")
    for kind, row in wrong:
        print(f"    {kind}: truth {row['gold']!r}, answer {row.get('pred', row.get('completion'))!r}")


def main(argv=None):
    args = parse_args(argv)
    if args.show:
        return show(args.show, args.step, args.groups, args.best_first)
    if args.regrade or args.check_verifier:
        return judge_saved(args) if args.regrade else judge_verifier(args)
    # Ranks wait for each other once, at the end of a row of the table, and one may sample for hours longer.
    join_processes(minutes=7 * 24 * 60)
    read_run(args)
    task = (verifiers.from_file(args.data, hold_out=False) if args.data and not args.task else
            verifiers.get_task(args.task or "math500", args.data))
    if args.reward:
        task.reward = verifiers.get_reward(args.reward)
    print(f"task {task.name}: {len(task.test[:args.problems])} problems, at most {args.max_new_tokens} tokens each"
          + (f"\n{describe_overlap(task)}" if task.train else ""))
    entrants = {name: (name, task, ()) for name in (args.model, args.baseline) if name}
    if args.few_shot:
        name = args.baseline or args.model
        entrants[f"{name} {args.few_shot}-shot"] = (name, *few_shot(task, args.few_shot))
    print_columns(args.k)
    results = {label: evaluate_model(label, *entrant, args) for label, entrant in entrants.items()}
    print_comparison(results)
    print_kinds(results)
    if args.out:
        print(f"completions in {args.out}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except (ModelError, verifiers.DataError, ValueError) as error:
        sys.exit(f"error: {error}")
