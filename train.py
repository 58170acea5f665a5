"""train.py - the loop, and what it takes to run it.

    python train.py --steps 100                     on a laptop: a tiny model learns to work sums out;
                                                    with a CUDA GPU: Qwen3-0.6B-Base on MATH
    torchrun --nproc-per-node 8 train.py --fsdp     the same on 8 GPUs, each with an eighth of the model

The loop is section 5, one function from pick to step; the rest can be skipped on a first reading.
"""

import argparse
import contextlib
import datetime
import functools
import gzip
import hashlib
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import sys
import time
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from filelock import FileLock, Timeout          # comes with huggingface_hub
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from tqdm import tqdm

import verifiers
from eval import append_rows, evaluate, git_commit, hash_of, located, read_rows, roll_out, use_reward
from model import ModelError, load, pick_device, save
from rlvr import Rollouts, decode, group_advantages, policy_loss, update_gradients

# ---- 1. Flags ------------------------------------------------------------------------------------

# What is not given: of a tiny model (a file of less than 16 MB), and of any other.
TINY = dict(num_samples=16, max_new_tokens=80, lr=4e-4, micro_batch_tokens=2048, eval_every=25)
LARGE = dict(num_samples=8, max_new_tokens=512, lr=3e-6, micro_batch_tokens=4096, eval_every=50)


@dataclass
class Flags:
    """A field is a flag, its comment its help. NAME: of the core, or file.py:name (README, "Fork it")."""
    model: str = None               # hub id or folder (default: notebooks/tiny for arithmetic, else Qwen/Qwen3-0.6B-Base)
    task: str = None                # NAME or .jsonl (default: math; arithmetic for tiny models, or without --model and CUDA)
    reward: str = None              # NAME (default: the task's own)
    prompt: str = None              # the sentence that asks, with {problem} in it (default: the task's own)
    stop: list = None               # texts that end a completion, for models that seldom stop (default: the task's)
    template: str = None            # plain, chat or chat-nothink (default: chat if <|im_end|> is a stop, else plain)
    train_problems: int = None      # train only on so many, the first of a random order (default: all)
    pick: str = "all"               # NAME of what picks the problems of a step
    prompts_per_step: int = 8       # P, problems a step
    num_samples: int = None         # G, completions of each
    max_new_tokens: int = None      # longest completion
    temperature: float = 1.0        # of sampling, and of the log-probs that are trained
    advantage: str = "std"          # NAME: std (GRPO), none (Dr. GRPO)
    loss: str = "ppo"               # NAME
    log: str = "file"               # NAME of what else is given each row of metrics.jsonl
    loss_norm: str = "token"        # token (DAPO), sequence (GRPO), constant (Dr. GRPO), sum (the chapter)
    clip: tuple = (0.2, 0.2)        # LOW HIGH: ratios below 1 - LOW or above 1 + HIGH gain nothing; DAPO has 0.2 0.28
    updates_per_batch: int = 1      # on the same completions; from the second on clipping can act
    kl_coef: float = 0.0            # weight of a KL towards the model the run started from, then kept in memory
    kl_cap: float = None            # stop when that KL exceeds so many nats a completion, of those trained on
    lr: float = None                # highest rate: 5 steps of warm-up, on a cosine down to a tenth
    micro_batch_tokens: int = None  # tokens in a forward pass; fewer take less memory and give the same gradient
    compile: bool = False           # torch.compile decoding, and the blocks in training; slow to start
    fsdp: bool = False              # with torchrun: each process holds its share of weights, gradients, moments
    steps: int = 100                # in all
    seed: int = 0                   # of everything random
    eval_every: int = None          # steps between evaluations
    eval_problems: int = 500        # held-out problems each time
    save_every: int = 50            # steps between checkpoints
    runs: str = "runs"              # folder of all runs
    name: str = None                # of this run's folder in it (default: task, date and time)
    resume: bool = False            # go on with run --name, or the newest one; steps, device, fsdp and log may be new
    device: str = None              # cpu, cuda or mps (default: the best there is)


ANEW = {"steps", "device", "fsdp", "log", "runs", "name", "resume"}    # what may differ when a run goes on
PATHS = ("model", "task", "reward", "pick", "advantage", "loss", "log")    # may name files of the user's
CHOICES = {"template": ["plain", "chat", "chat-nothink"], "device": ["cpu", "cuda", "mps"],
           "loss_norm": ["token", "sequence", "constant", "sum"]}
LEAST = {"num_samples": 2, "kl_coef": 0, "seed": -math.inf}         # of other whole numbers 1, of others above 0


def parse_args(argv=None):
    """Preset < config.json of the run to resume < command line -> Flags. All is checked before anything is written."""
    parser = argparse.ArgumentParser(description="Train with verifiable rewards (GRPO). @FILE: flags from a file.",
                                     allow_abbrev=False, argument_default=argparse.SUPPRESS, fromfile_prefix_chars="@")
    parser.convert_arg_line_to_args = functools.partial(shlex.split, comments=True)
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", Path(__file__).read_text(encoding="utf-8"), re.M))
    kinds = {bool: {"action": "store_true"}, tuple: {"nargs": 2, "type": float}, list: {"nargs": "+"}}
    for field in fields(Flags):
        default = f"{LARGE[field.name]}; tiny {TINY[field.name]}" if field.name in TINY else field.default
        default = f" (default: {default})" if default else ""
        options = kinds.get(field.type, {"type": field.type, "choices": CHOICES.get(field.name)})
        parser.add_argument(f"--{field.name.replace('_', '-')}", help=comments[field.name] + default, **options)
    given = vars(parser.parse_args(argv))
    flags = Flags(**{**(saved_flags(parser, given) if "resume" in given else {}), **given})
    flags.device = pick_device(flags.device)[0]
    if flags.model is None:
        laptop = flags.task == "arithmetic" or flags.task is None and flags.device != "cuda"
        flags.model = str(Path(__file__).parent / "notebooks" / "tiny") if laptop else "Qwen/Qwen3-0.6B-Base"
    tiny = 0 < sum(file.stat().st_size for file in Path(flags.model).glob("*.safetensors")) < 2**24
    flags.task = flags.task or ("arithmetic" if tiny else "math")
    for name, value in (TINY if tiny else LARGE).items():
        setattr(flags, name, value if getattr(flags, name) is None else getattr(flags, name))
    if flags.name and not flags.resume and Path(flags.runs, flags.name).exists():
        parser.error(f"{Path(flags.runs, flags.name)} exists: go on with it by --resume, or choose another --name")
    for field in fields(Flags):
        value, least = getattr(flags, field.name), LEAST.get(field.name, 1 if field.type is int else 1e-12)
        if field.type in (int, float) and value is not None and not least <= value < math.inf:
            parser.error(f"--{field.name.replace('_', '-')} is {value}: it must be a number from {least} on")
    if not 0 <= flags.clip[0] < 1 or not 0 <= flags.clip[1] < math.inf:
        parser.error("--clip: LOW is from 0 to below 1, HIGH 0 or more")
    if flags.fsdp and ("RANK" not in os.environ or flags.compile):
        parser.error("--fsdp: start it as torchrun --nproc-per-node 8 train.py --fsdp .., without --compile")
    return flags


def saved_flags(parser, given):
    """The flags of the run to resume."""
    runs, name = given.get("runs", "runs"), given.get("name", "*")
    found = sorted(Path(runs).glob(f"{name}/config.json"), key=os.path.getmtime)
    if not found:
        parser.error(f"--resume: there is no run {name} to go on with in {runs}")
    if refused := given.keys() - ANEW:
        parser.error(f"--resume keeps the run's own flags: leave out {', '.join(sorted(refused)).replace('_', '-')}")
    run = found[-1].parent
    try:
        saved = json.loads(found[-1].read_text(encoding="utf-8"))["flags"]
        flags = {field.name: saved[field.name] for field in fields(Flags)}
    except (ValueError, KeyError, TypeError) as error:
        parser.error(f"{found[-1]} is damaged or of another version ({error!r}): this run cannot go on")
    done = max((row["step"] for row in read_rows(run / "metrics.jsonl", ("step", "reward"))), default=0)
    if given.get("steps", flags["steps"]) < done:
        parser.error(f"{run} has already made {done} steps: give --steps a larger number")
    here = {name: located(run, flags[name]) for name in PATHS}
    return {**flags, **here, "runs": runs, "name": run.name, "fsdp": False}


# ---- 2. Checkpoints ------------------------------------------------------------------------------
# No random state is saved: random numbers are functions of (seed, step, row). So a resumed run equals an uninterrupted
# one bit for bit; on another number of processes, up to rounding. It unpickles: resume only what you trust.

DAMAGE = (Exception, dcp.api.CheckpointException)       # the latter is none of the former
warnings.filterwarnings("ignore", "torch.distributed is disabled|FSDP2-wrapped module .* returned a view|Mismatch dtype")


def save_checkpoint(run, step, model, optimizer, memory):
    """Write under another name, then rename: a crash at any moment leaves the last good one."""
    folder, first = run / "checkpoints", processes()[0] == 0
    path, partial = folder / f"step_{step:06d}", folder / "partial"
    try:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.save(state, checkpoint_id=partial, no_dist=not dist.is_initialized())
        if first:
            parts = {file.name: hash_of(file) for file in partial.iterdir()}
            (partial / "progress.json").write_text(json.dumps({"step": step, "memory": memory, "parts": parts}))
            shutil.rmtree(path, ignore_errors=True)  # one of the same step, which could not be read
            partial.rename(path)
            for old in sorted(folder.glob("step_*"))[:-2]:               # two are kept
                shutil.rmtree(old)
    except DAMAGE as error:                             # a full disk has many names
        shutil.rmtree(partial, ignore_errors=True)
        reason = (str(error).strip() or repr(error)).splitlines()[-1][:200]        # below a traceback of its own
        raise ModelError(f"{path}: cannot write the checkpoint ({reason}); free some space") from error


def load_checkpoint(run, model, optimizer):
    """Restore the newest checkpoint that is whole -> (its step, memory); (0, {}) if there is none."""
    for path in sorted(run.glob("checkpoints/step_*"), reverse=True):
        try:
            progress = json.loads((path / "progress.json").read_text())
            if changed := [name for name, digest in progress["parts"].items() if hash_of(path / name) != digest]:
                raise ValueError(f"{changed[0]} is not what was written")
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
            dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
        except DAMAGE as error:                         # cut short, damaged, or of another model
            print(f"{path} cannot be used ({type(error).__name__}: {str(error)[:150]}); trying the one before")
            continue
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return progress["step"], progress["memory"]
    return 0, {}


# ---- 3. Log --------------------------------------------------------------------------------------

COLUMNS = [("step", "step", "5d"), ("reward", "reward", "6.3f"), ("acc", "accuracy", "5.2f"),
           ("solved", "solved", "6.2f"), ("mixed", "mixed", "5.2f"), ("length", "completion_length", "6.1f"),
           ("cut", "truncated", "4.2f"), ("entropy", "entropy", "7.3f"), ("grad", "grad_norm", "5.2f"),
           ("mismatch", "mismatch", "8.0e"), ("tok/s", "tokens_per_second", "6.0f"), ("sec", "seconds", "5.1f"),
           ("greedy", "eval_accuracy", "6.3f"), ("sampled", "eval_sampled_accuracy", "7.3f")]


def print_row(row):
    if row["step"] % 5 == 0 or "eval_accuracy" in row or shutil.get_terminal_size()[0] > 120:    # a wide one shows all
        tqdm.write(" ".join(f"{row[key]:{form}}" if key in row else " " * int(form[0]) for _, key, form in COLUMNS))


def batch_metrics(rewards, parts, rollouts):
    """Rewards (P, G) and parts of B rows -> (means and shares of the batch, the share of right completions of each
    problem). A group with unequal rewards is mixed; of the others, which teach nothing, the right ones are solved."""
    right = torch.tensor([part["accuracy"] * (1 - part["truncated"]) for part in parts]).view(rewards.shape).mean(1)
    mixed, names = rewards.amax(1) > rewards.amin(1), sorted({n for part in parts for n in part} - {"accuracy", "step"})
    return {**{name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names},
            "reward": rewards.mean().item(), "accuracy": right.mean().item(),
            "completion_length": rollouts.lengths.float().mean().item(),
            "finished_length": rollouts.lengths[rollouts.finished].float().mean().nan_to_num().item(),
            "mixed": mixed.float().mean().item(), "solved": (~mixed & (right > 0.5)).float().mean().item(),
            "hopeless": (~mixed & (right <= 0.5)).float().mean().item()}, right.tolist()


def write_samples(run, step, problems, texts, rewards, advantages, rollouts, parts):
    """samples/step_000001.jsonl.gz: a line for each completion."""
    (run / "samples").mkdir(exist_ok=True)
    said, B = rollouts.mask.bool(), range(len(texts))
    columns = {"completion": texts, "reward": rewards.flatten().tolist(), "advantage": advantages.flatten().tolist(),
               "length": rollouts.lengths.tolist(), "finished": rollouts.finished.tolist(), "parts": parts,
               "ids": [rollouts.ids[i, 1:][said[i]].tolist() for i in B],
               "logps": [[round(logp, 3) for logp in rollouts.logp[i][said[i]].tolist()] for i in B]}
    with gzip.open(run / "samples" / f"step_{step:06d}.jsonl.gz", "wt", encoding="utf-8", errors="replace") as file:
        for i, values in enumerate(zip(*columns.values())):
            problem = problems[i // rollouts.num_samples]
            row = {"step": step, "problem": problem["problem"], "answer": problem["answer"], **dict(zip(columns, values))}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


# ---- 4. Preflight --------------------------------------------------------------------------------

class Stopped(Exception):
    """The run ends before its last step: the message says why, what is saved and how to go on."""


def preflight(model, tokenizer, task, functions, flags):
    """Show the first prompt and what a batch earns; stop if nothing can be learnt from it (64 completions prove that)."""
    problems, G = task.train[:flags.prompts_per_step], flags.num_samples
    prompt = tokenizer.decode(tokenizer.encode_prompt(task.prompt(problems[0])), skip_special_tokens=False)
    print(f"model {flags.model}, {sum(p.numel() for p in model.parameters()):,} parameters, on {flags.device}\n"
          f"task {task.name}: {len(task.train)} problems to train on, {len(task.test)} held out ({task.note})\n"
          f"first prompt ({tokenizer.template}):\n    " + prompt.replace("\n", "\n    "))
    rollouts, texts, rewards, parts = shared_roll_out(
        model, tokenizer, task, problems, G, flags.temperature, flags.max_new_tokens, flags.seed,
        rows=[f"preflight {i}" for i in range(len(problems) * G)], label="preflight")
    means, _ = batch_metrics(rewards, parts, rollouts)
    print(f"preflight: of {len(texts)} completions {means['accuracy']:.0%} are right, {means['truncated']:.0%} cut off; "
          f"rewards differ in {means['mixed']:.0%} of the groups. Two of one group, with reward R and advantage A:")
    group = int((rewards.amax(1) > rewards.amin(1)).float().argmax())
    advantages = functions[1](rewards, rollouts=rollouts, parts=parts, flags=flags)         # --advantage
    for i in (int(rewards[group].argmax()), int(rewards[group].argmin())):
        print(f"    R {rewards[group, i]:.2f}  A {advantages[group, i]:+.2f}  {texts[group * G + i][-200:]!r}")
    if means["failed"] > 0.5:
        trouble = f"the verifier fails on {means['failed']:.0%} of the completions, see the warnings above"
    elif means["truncated"] >= 0.9:
        trouble = "nearly all completions are cut off: try more --max-new-tokens, a --stop text, another --template"
    elif means["mixed"] == 0:
        trouble = "no group has unequal rewards, so none teaches: try an easier or harder task, more --num-samples"
    else:
        return
    if means["failed"] == 1 or len(texts) >= 64:
        raise Stopped(f"error: {trouble}")
    print(f"preflight: warning: {trouble} ({len(texts)} completions prove little, so the run goes on)")


# ---- 5. The loop ---------------------------------------------------------------------------------

def every_problem(problems, step, memory, flags):
    """Which problems a step sees: a walk through a new random order of them in every epoch -> their indices."""
    P, N = flags.prompts_per_step, len(problems)
    places = [divmod(i, N) for i in range((step - 1) * P, step * P)]   # (epoch, place in its order)
    orders = {epoch: random.Random(f"order {flags.seed} {epoch}").sample(range(N), N) for epoch, _ in places}
    return [orders[epoch][place] for epoch, place in places]


ADVANTAGES = {"std": group_advantages, "none": functools.partial(group_advantages, scale="none")}
LOSSES = {"ppo": policy_loss}
LOGS = {"file": lambda run, flags: lambda row: None}         # metrics.jsonl is written in any case
PICKERS = {"all": every_problem}                     # a function of your own has the same signature
STOP_ASKED = []             # when Ctrl-C was pressed


def train_rlvr(model, tokenizer, task, functions, flags, optimizer, memory, run, log, reference=None):
    """The training loop: from the last step of `log`, the rows so far, to flags.steps. Trains the model in place.

    functions: of --pick, --advantage, --loss, --log. memory, kept as JSON: {"visits": {str(index): last 3
    mean accuracies}}, a picker's own. Raises Stopped: after Ctrl-C, for --kl-cap, before NaN or infinity reach the weights.
    """
    (pick, advantage_of, loss, also_log), G = functions, flags.num_samples
    (rank, world), visits = processes(), memory.setdefault("visits", {})
    decoding = torch.compile(decode, dynamic=True) if flags.compile else decode
    add_up = (lambda tensor: dist.all_reduce(tensor) or tensor) if world > 1 else lambda tensor: tensor
    sample_and_judge = shared_roll_out if dist.is_initialized() else roll_out

    for step in range(log[-1]["step"] + 1, flags.steps + 1):
        if log[-1].get("drift", 0.0) > (flags.kl_cap or math.inf):
            raise Stopped(f"stopped at step {step - 1}: the KL from the start is above --kl-cap {flags.kl_cap}")
        # Problems, and G completions of each, judged.
        began = time.perf_counter()
        indices = pick(task.train, step, memory, flags)
        problems = [{**task.train[i], "step": step} for i in indices]
        with model.autocast():
            rollouts, texts, rewards, parts = sample_and_judge(
                model, tokenizer, task, problems, G, flags.temperature, flags.max_new_tokens, flags.seed,
                rows=[f"{step} {i}" for i in range(len(problems) * G)], label=f"step {step}", step=decoding)
        sampled = time.perf_counter()

        # How much better than its group each of them is.
        advantages = advantage_of(rewards, rollouts=rollouts, parts=parts, flags=flags)     # (P, G)

        # One update, or several on the same completions: then the first one's log-probs are pi_old.
        lr = flags.lr * min(1.0, step / 5) * (0.55 + 0.45 * math.cos(math.pi * step / flags.steps))
        optimizer.param_groups[0]["lr"] = lr
        old_logp, updates = None, []
        for _ in range(flags.updates_per_batch):
            with model.autocast():
                stats, logp = update_gradients(
                    model, rollouts, advantages, flags.temperature, flags.loss_norm, flags.max_new_tokens,
                    flags.micro_batch_tokens, old_logp, flags.clip, loss, reference, flags.kl_coef, rank, world, add_up)
            old_logp = logp if old_logp is None else old_logp
            signal_there = stats["trained"] > 0 or flags.kl_coef > 0
            stats["grad_norm"] = clip_gradients(model) if signal_there else 0.0
            if not all(map(math.isfinite, numbers := (stats["loss"], stats["grad_norm"]))):
                if not updates and (step - 1) % flags.save_every:     # else saved, or no longer the weights of step - 1
                    save_checkpoint(run, step - 1, model, optimizer, memory)
                torch.save({"rollouts": vars(rollouts), "advantages": advantages}, run / f"bad_batch_{rank}.pt")
                raise Stopped(f"error: step {step} has loss and gradient norm {numbers}; see {run}. Try a lower --lr")
            if signal_there:      # subtle: else Adam's momentum would move the weights all the same
                optimizer.step()
            optimizer.zero_grad()
            updates.append(stats)
        updated = time.perf_counter()

        # What was seen of the problems; the log; from time to time held-out problems, and a checkpoint.
        means, right = batch_metrics(rewards, parts, rollouts)
        for index, share in zip(map(str, indices), right):
            visits[index] = [*visits.get(index, []), share][-3:]
        row = {"step": step, **means, **updates[0], "clipped": sum(stats["clipped"] for stats in updates) / len(updates),
               "lr": lr, "sample_seconds": sampled - began, "update_seconds": updated - sampled,
               "tokens_per_second": rollouts.lengths.sum().item() / (sampled - began)}
        if step % flags.eval_every == 0 or step == flags.steps:
            row |= evaluate_both(model, tokenizer, task, flags, decoding)
            best = max((r["eval_sampled_accuracy"] for r in log[1:] if "eval_accuracy" in r), default=-1)
            if row["eval_sampled_accuracy"] > best:          # the last model is not always the best
                export(model, tokenizer, run / "best", flags)
        row |= {"drift": row["kl"] * row["completion_length"]} if "kl" in row else {}      # KL in nats a completion
        row["seconds"] = time.perf_counter() - began
        log.append(row)
        print_row(row)
        if rank == 0:
            append_rows(run / "metrics.jsonl", [row])
            also_log(row)
            write_samples(run, step, problems, texts, rewards, advantages, rollouts, parts)
        stopping = any(gather(STOP_ASKED[:1]) if world > 1 else STOP_ASKED)
        drifted = row.get("drift", 0.0) > (flags.kl_cap or math.inf)
        if step % flags.save_every == 0 or step == flags.steps or stopping or drifted:
            save_checkpoint(run, step, model, optimizer, memory)
        if stopping:
            raise Stopped(f"stopped; step {step} is saved. {how_to_go_on(flags)}")


def on_signal(number, frame):
    """Stop after this step, at a second one at once. subtle: torchrun and `timeout` send one wish twice in a moment."""
    if STOP_ASKED and time.monotonic() - STOP_ASKED[0] > 1:
        raise KeyboardInterrupt
    STOP_ASKED.append(time.monotonic())
    tqdm.write("stopping after this step; press Ctrl-C again to stop at once")


def evaluate_both(model, tokenizer, task, flags, step=decode):
    """Greedy and sampled accuracy on held-out problems -> the columns of the log."""
    problems, columns = task.test[:flags.eval_problems], {}
    for prefix, temperature in (("eval_", 0.0), ("eval_sampled_", flags.temperature)):
        summary, _ = evaluate(model, tokenizer, task, problems, 1, temperature, flags.max_new_tokens, flags.seed, step=step,
                              rows=[f"held out {i}" for i in range(len(problems))], roll_out=shared_roll_out)
        columns |= {prefix + key: value for key, value in summary.items()}
    return columns


# ---- 6. Many GPUs (skip it when you have one) ----------------------------------------------------
# Sampling and evaluation are shared out by problems, the update by micro-batches; all processes hold the whole batch and
# decide alike, and the first writes. critical: nobody may wait for one that does something else, so a sharded model is
# brought together before sampling, and all make equally many passes.

MINUTES = 10.0          # that one process waits for another before it stops and says who is missing


def processes():
    """(rank, number of processes); (0, 1) for a single one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(items):
    """The lists of all processes as one list, in every process."""
    if not dist.is_initialized():
        return items
    if not hasattr(gather, "group"):     # monitored_barrier, which names who is missing, needs gloo
        gather.group = dist.new_group(backend="gloo", timeout=datetime.timedelta(minutes=MINUTES))
    dist.monitored_barrier(gather.group, datetime.timedelta(minutes=MINUTES), wait_all_ranks=True)
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, items, gather.group)
    return [item for part in parts for item in part]


def clip_gradients(model):
    """Clip the gradient to norm 1 -> its norm before. Replicas first sum theirs; shards were summed on the way back."""
    for param in model.parameters() if dist.is_initialized() else ():
        if param.grad is not None and not isinstance(param.grad, dist.tensor.DTensor):
            dist.all_reduce(param.grad)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return (norm.full_tensor() if isinstance(norm, dist.tensor.DTensor) else norm).item()


def shared_roll_out(model, tokenizer, task, problems, num_samples, *args, rows, **kwargs):
    """eval.roll_out, each process for its share of the problems; all get everything."""
    rank, world = processes()
    mine, done = slice(len(problems) * rank // world, len(problems) * (rank + 1) // world), []
    with whole_weights(model), model.autocast():
        if problems[mine]:                              # there may be more processes than problems
            rows = rows[mine.start * num_samples:mine.stop * num_samples]
            done = [roll_out(model, tokenizer, task, problems[mine], num_samples, *args, rows=rows, **kwargs)]
    if world == 1:
        return done[0]
    done = [([x.cpu() for x in list(vars(rollouts).values())[:-1]], *rest) for rollouts, *rest in done]
    tensors, texts, rewards, parts = zip(*gather(done))
    width = max(ids.size(1) for ids, *_ in tensors)     # rows one below the other, padded to the widest
    columns = zip(*([torch.nn.functional.pad(x, (0, width - ids.size(1))) if x.ndim == 2 else x for x in (ids, *rest)]
                    for ids, *rest in tensors))
    rollouts = Rollouts(*(torch.cat(column).to(model.device) for column in columns), num_samples)
    return rollouts, sum(texts, []), torch.cat(rewards), sum(parts, [])


def shard(model, device, dtype):
    """Shard a model that has no weights yet (FSDP2, arXiv 2304.11277); weights are kept in fp32 and used in dtype,
    gradients summed, not averaged, in fp32. -> what cuts a process's part out of a weight, see model.load."""
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    # subtle: a KV cache that is cast would be a copy, and what is written to it lost.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=precision)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)                   # gloo has no other
    return lambda tensor, param: dist.tensor.distribute_tensor(tensor, mesh, param.placements, src_data_rank=None)


@contextlib.contextmanager
def whole_weights(model):
    """Within, every process holds all weights of a sharded model, and no forward pass communicates."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    yield
    for module in sharded:
        module.set_reshard_after_forward(module is not model, recurse=False)
        module.reshard()


def export(model, tokenizer, directory, flags):
    """Write the whole model, gathered into the first process's host memory."""
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if processes()[0] == 0:
        dtype = pick_device(flags.device)[1]
        save(model, tokenizer, directory, {name: weight.to(dtype) for name, weight in weights.items()})


# ---- 7. Start and end ----------------------------------------------------------------------------

def load_all(flags):
    """Load what the flags name -> (model, tokenizer, task, functions of --pick, --advantage, --loss, --log)."""
    task = verifiers.get_task(flags.task, flags.prompt, flags.stop or ())
    if flags.reward:
        use_reward(task, flags.reward)
    functions = [verifiers.find(getattr(flags, name), known, f"--{name}")
                 for name, known in (("pick", PICKERS), ("advantage", ADVANTAGES), ("loss", LOSSES), ("log", LOGS))]
    if flags.train_problems:
        task.train = random.Random(f"train {flags.seed}").sample(task.train, len(task.train))[:flags.train_problems]
    model, tokenizer = load_model(flags)
    small = sum(param.numel() for param in model.parameters()) < 4e6
    if flags.device == "cpu" and small:
        torch.set_num_threads(1)            # its tensors are so small that more threads mostly wait for each other
    model.checkpoint_blocks, model.compile_blocks = not small, flags.compile
    room = model.config.max_position_embeddings - flags.max_new_tokens
    for split, problems in (("train", task.train), ("test", task.test)):
        fit = [problem for problem in problems if len(tokenizer.encode_prompt(task.prompt(problem))) <= room]
        if len(fit) < len(problems):
            print(f"{len(problems) - len(fit)} problems to {split} on are left out: longer than {room} tokens")
        if not fit:
            raise verifiers.DataError(f"--task {flags.task} has no problem to {split} on")
        setattr(task, split, fit)
    return model, tokenizer, task, functions


def load_model(flags):
    """-> (model, tokenizer) to start from, in fp32: at lr 1e-6 most changes of a bf16 weight would round to nothing."""
    dtype = pick_device(flags.device)[1]
    model, tokenizer = load(flags.model, flags.device, torch.float32, flags.template,
                            shard=functools.partial(shard, device=flags.device, dtype=dtype) if flags.fsdp else None)
    half = dtype != torch.float32 and not flags.fsdp             # a sharded model does it by itself
    model.autocast = functools.partial(torch.autocast, flags.device, dtype, enabled=half)
    return model, tokenizer


def write_config(flags, run, task, start):
    """config.json: flags, with paths relative to the run; versions and commit of every start; a hash of the problems."""
    data = hashlib.sha256(json.dumps([task.train, task.test], sort_keys=True).encode()).hexdigest()
    config = json.loads((run / "config.json").read_text()) if flags.resume else {"starts": [], "data": data}
    if config["data"] != data:
        raise verifiers.DataError(f"--task {flags.task}: its problems have changed since {run} began; start a new run")
    config["flags"] = {**vars(flags), "resume": False}
    for name in PATHS:
        file, colon, function = (getattr(flags, name) or "").partition(".py:")
        if (name == "model" or colon or "." in file) and os.path.exists(file + colon[:3]):     # no NAME of the core
            config["flags"][name] = os.path.relpath(file + colon[:3], run) + colon[3:] + function
    config["versions"] = {"python": sys.version.split()[0], "torch": torch.__version__, "git": git_commit()}
    config["starts"].append({"step": start, "process": os.getpid(), "host": os.uname().nodename, **config["versions"]})
    (run / "config.partial").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (run / "config.partial").replace(run / "config.json")


def how_to_go_on(flags):
    program = "python" if processes()[1] == 1 else f"torchrun --nproc-per-node {processes()[1]}"
    return f"Go on with: {program} train.py{' --fsdp' * flags.fsdp} --resume --name {flags.name} --runs {flags.runs}"


def main(argv=None):
    flags, began = parse_args(argv), time.perf_counter()
    if "RANK" in os.environ:                            # torchrun
        if gpu := torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=datetime.timedelta(minutes=MINUTES))
        if dist.get_rank():                             # only the first prints
            sys.stdout = open(os.devnull, "w")
            tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)
    first = processes()[0] == 0
    name = f"{Path(flags.task.partition('.py:')[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    flags.name = gather([flags.name or name])[0]
    run = Path(flags.runs, flags.name)
    try:
        loaded = load_all(flags)
        if not flags.resume:
            preflight(*loaded, flags)
        if first:
            run.mkdir(parents=True, exist_ok=flags.resume)     # not one that somebody has just made
        with FileLock(run / "lock", timeout=0) if first else contextlib.nullcontext():      # ends with the process
            log = start_and_train(*loaded, flags, run, first)
    except Timeout:
        last = json.loads((run / "config.json").read_text())["starts"][-1]
        raise ModelError(f"{run} is in use by process {last['process']} on {last['host']}: stop that one first") from None
    except Stopped as error:
        sys.exit(str(error) if first else 1)
    before, *_, after = [row for row in log if "eval_accuracy" in row] * 2
    print(f"held-out accuracy {before['eval_accuracy']:.3f} -> {after['eval_accuracy']:.3f} (greedy, n={after['eval_n']}) "
          f"in {time.perf_counter() - began:.0f} s; model in {run / 'final'}")


def start_and_train(model, tokenizer, task, functions, flags, run, first):
    """From the checkpoint, or the untrained model, to the last step -> the rows of the log."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    start, memory = load_checkpoint(run, model, optimizer)
    log = read_rows(run / "metrics.jsonl", ("step", "reward")) if flags.resume else []
    if start == 0 and log and log[-1]["step"] > flags.save_every:
        raise ModelError(f"{run} has logged {log[-1]['step']} steps, but no checkpoint is there or can be used: to start "
                         "over would throw away its logs. Put checkpoints/ back, or start a new run")
    log = [row for row in log if row["step"] <= start] if start else []
    if first:
        write_config(flags, run, task, start)
        (run / "metrics.partial").write_text("".join(json.dumps(row) + "\n" for row in log))     # forget what came later
        (run / "metrics.partial").replace(run / "metrics.jsonl")
        for path in (run / "samples").glob("step_*.jsonl.gz"):
            if int(path.name[5:11]) > start:
                path.unlink()
    also_log = functions[3] = (functions[3] if first else LOGS["file"])(run, flags)
    reference = load_model(flags)[0].requires_grad_(False) if flags.kl_coef or flags.kl_cap else None
    if start == 0:
        row = {"step": 0, **evaluate_both(model, tokenizer, task, flags)}
        log = [{**row, "reward": row["eval_sampled_reward"], "accuracy": row["eval_sampled_accuracy"],
                "completion_length": row["eval_sampled_length"], "truncated": row["eval_sampled_truncated"]}]
        append_rows(run / "metrics.jsonl", log if first else [])
        also_log(log[0])
    else:
        print(f"going on with {run} after step {start} of {flags.steps}")
    tqdm.write(" ".join(f"{title:>{form[0]}}" for title, _, form in COLUMNS))
    print_row(log[-1])
    STOP_ASKED.clear()
    handlers = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        train_rlvr(model, tokenizer, task, functions, flags, optimizer, memory, run, log, reference)
        export(model, tokenizer, run / "final", flags)
    except (KeyboardInterrupt, RuntimeError, OSError, ModelError) as error:
        if isinstance(error, RuntimeError) and not dist.is_initialized():
            raise
        raise Stopped(f"error: {str(error)[:500] or 'stopped'}. The last checkpoint is kept. {how_to_go_on(flags)}")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return log


if __name__ == "__main__":
    try:
        main()
        if dist.is_initialized():
            dist.destroy_process_group()
    except torch.OutOfMemoryError as error:
        sys.exit(f"error: {error}\nTry less --micro-batch-tokens, --max-new-tokens, --num-samples, or a smaller model")
    except (ModelError, verifiers.DataError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped before the first step; nothing was saved yet")
