"""train.py - the loop, and what it takes to run it.

    python train.py --steps 100                     on a laptop: a tiny model learns to work sums out;
                                                    with a CUDA GPU: Qwen3-0.6B-Base on MATH
    python train.py --model Qwen/Qwen3-1.7B-Base --task gsm8k --name gsm8k-1.7b
    python train.py --task mine.jsonl --reward mine.py:terse
    python train.py --resume                        go on with the newest run where it stopped
    torchrun --nproc-per-node 8 train.py --fsdp     the same on 8 GPUs, each with an eighth of the model

What you will learn here: how the five steps of rlvr.py become a training run. The loop is section 6, one function
from pick to step. The rest can be skipped at first: flags, fp32 weights, checkpoints, a log, checks before the first
step, many GPUs. Left out: tensor and pipeline parallelism, a separate inference engine.
"""

import argparse
import contextlib
import datetime
import functools
import gzip
import hashlib
import inspect
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import statistics
import sys
import time
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from tqdm import tqdm

try:
    import fcntl
except ImportError:             # Windows
    fcntl = None

import verifiers
from eval import append_rows, evaluate, git_commit, hash_of, read_rows, roll_out, use_reward
from model import ModelError, load, pick_device, save
from rlvr import Rollouts, decode, group_advantages, policy_loss, update_gradients

# ---- 1. Flags --------------------------------------------------------------------------------------

TINY = str(Path(__file__).resolve().parent / "notebooks" / "tiny")

# What was not given depends on the model: a tiny one (a file of less than 16 MB) by its task, else "text".
PRESETS = {
    "arithmetic": dict(prompts_per_step=8, num_samples=16, max_new_tokens=80, lr=4e-4, micro_batch_tokens=2048,
                       eval_every=25, eval_problems=500, save_every=50),
    "one-digit": dict(prompts_per_step=64, num_samples=16, max_new_tokens=4, lr=5e-4, micro_batch_tokens=16384,
                      eval_every=50, eval_problems=100, save_every=200),
    "text": dict(prompts_per_step=8, num_samples=8, max_new_tokens=512, lr=3e-6, micro_batch_tokens=4096,
                 eval_every=50, eval_problems=500, save_every=50),
}


@dataclass
class Flags:
    """One field a flag; its comment is its help. NAME: a name of the core, or file.py:name (README, "Fork it")."""

    model: str = None               # a hub id or a model directory (default: Qwen/Qwen3-0.6B-Base; notebooks/tiny without CUDA)
    task: str = None                # NAME, or a data file (.jsonl with problem and answer); default: math, tiny arithmetic
    reward: str = None              # NAME; default: the task's own
    prompt: str = None              # the sentence that asks, with {problem} in it; default: the task's own
    stop: list = None               # texts that end a completion, for models that seldom stop; default: the task's own
    template: str = None            # plain, chat or chat-nothink; default: plain for base models, chat for others
    train_problems: int = None      # train only on so many, the first of a random order; default: all
    pick: str = "all"               # NAME of what picks the problems of a step
    # sampling
    prompts_per_step: int = None    # P, problems a step
    num_samples: int = None         # G, completions of each
    max_new_tokens: int = None      # longest completion
    temperature: float = 1.0        # of sampling and of the log-probs that are trained
    compile: bool = False           # torch.compile decoding and the blocks in training; the first steps are slow
    # loss
    advantage: str = "std"          # NAME: std (GRPO), none (Dr. GRPO)
    loss: str = "ppo"               # NAME
    loss_norm: str = "token"        # token (DAPO), sequence (GRPO), constant (Dr. GRPO), sum (the chapter)
    clip: tuple = (0.2, 0.2)        # LOW HIGH: ratios stay between 1 - LOW and 1 + HIGH; DAPO 0.2 0.28
    updates_per_batch: int = 1      # on the same completions; from the second on clipping can act
    kl_coef: float = 0.0            # weight of a KL towards the model the run started from, kept in memory
    kl_cap: float = None            # stop when that KL exceeds so many nats a completion
    # optimiser (AdamW on fp32 weights, betas 0.9 0.95, no weight decay, gradients clipped to norm 1)
    lr: float = None                # highest learning rate: 5 steps of warm-up, then a cosine down to a tenth
    micro_batch_tokens: int = None  # tokens in a forward pass; fewer take less memory and give the same gradient
    fsdp: bool = False              # with torchrun: each process holds its share of weights, gradients, moments
    # run
    steps: int = 100                # steps in all
    seed: int = 0                   # of everything random
    eval_every: int = None          # steps between evaluations
    eval_problems: int = None       # held-out problems each time
    save_every: int = None          # steps between checkpoints
    runs: str = "runs"              # folder of all runs
    name: str = None                # of this run's folder in it; default: task, date and time
    resume: bool = False            # go on with run --name, or the newest; --steps, --device, --fsdp may be new
    device: str = None              # cpu, cuda or mps; default: the best there is


ANEW = {"steps", "device", "fsdp", "runs", "name", "resume"}       # what may differ when a run goes on
PATHS = ("model", "task", "reward", "pick", "advantage", "loss")   # may name files of the user's
CHOICES = {"template": ["plain", "chat", "chat-nothink"], "device": ["cpu", "cuda", "mps"],
           "loss_norm": ["token", "sequence", "constant", "sum"]}


def parse_args(argv=None):
    """Flags: preset < config.json of the run to resume < command line. All is checked before anything is written."""
    parser = argparse.ArgumentParser(description="Train a language model with verifiable rewards (GRPO).",
                                     allow_abbrev=False, argument_default=argparse.SUPPRESS)
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(Flags), re.M))
    for field in fields(Flags):
        presets = [f"{values[field.name]} for {key}" for key, values in PRESETS.items() if field.name in values]
        default = f" (default: {', '.join(presets) or field.default})" if presets or field.default else ""
        kinds = {bool: {"action": "store_true"}, tuple: {"nargs": 2, "type": float}, list: {"nargs": "+"}}
        options = kinds.get(field.type, {"type": field.type, "choices": CHOICES.get(field.name)})
        parser.add_argument(f"--{field.name.replace('_', '-')}", help=comments[field.name] + default, **options)
    if int(os.environ.get("RANK", 0)):                  # of N processes the first complains; then torchrun ends all
        parser.error = lambda message: time.sleep(30)
    given = vars(parser.parse_args(argv))
    chosen = {**vars(Flags()), **(saved_flags(parser, given) if "resume" in given else {}), **given}
    if chosen["model"] is None:
        tiny = chosen["task"] in PRESETS or chosen["task"] is None and pick_device(chosen["device"])[0] != "cuda"
        chosen["model"] = TINY if tiny else "Qwen/Qwen3-0.6B-Base"
    small = 0 < sum(file.stat().st_size for file in Path(chosen["model"]).glob("*.safetensors")) < 2**24
    chosen["task"] = chosen["task"] or ("arithmetic" if small else "math")
    preset = PRESETS.get(chosen["task"], PRESETS["text"]) if small else PRESETS["text"]
    return check_flags(parser, Flags(**{**chosen, **{k: v for k, v in preset.items() if chosen[k] is None}}))


def saved_flags(parser, given):
    """The flags of the run to resume. Paths in them are relative to its folder, wherever that is now."""
    runs = Path(given.get("runs", "runs"))
    run = runs / given["name"] if "name" in given else newest_run(runs)
    if run is None or not (run / "config.json").exists():
        parser.error(f"--resume: there is no run to go on with in {run or runs}")
    if refused := given.keys() - ANEW:
        parser.error(f"--resume goes on with the run's own flags: leave out --{', --'.join(sorted(refused))}")
    try:
        flags = json.loads((run / "config.json").read_text(encoding="utf-8"))["flags"]
        flags = {field.name: flags[field.name] for field in fields(Flags)}
    except (ValueError, KeyError, TypeError) as error:
        parser.error(f"{run / 'config.json'} is damaged, or of another version ({error!r}): this run cannot go on")
    done = max((row["step"] for row in read_metrics(run)), default=0)
    if given.get("steps", flags["steps"]) < done:
        parser.error(f"{run} has already made {done} steps: give --steps a larger number")
    here = {name: str(run / flags[name]) for name in PATHS if flags[name] and (run / file_of(flags[name])).exists()}
    return {**flags, **here, "runs": str(runs), "name": run.name, "fsdp": False, "device": None}


def check_flags(parser, flags):
    """Refuse what cannot be, by the flag's name -> flags."""
    def need(fine, name, what):
        if not fine:
            parser.error(f"--{name.replace('_', '-')} is {getattr(flags, name)}: {what}")
    for name in ("train_problems", "prompts_per_step", "max_new_tokens", "updates_per_batch", "micro_batch_tokens",
                 "steps", "eval_every", "eval_problems", "save_every"):
        need(getattr(flags, name) is None or getattr(flags, name) >= 1, name, "it must be at least 1")
    need(flags.num_samples >= 2, "num_samples", "an advantage compares at least 2 completions of one problem")
    for name in ("temperature", "lr"):
        need(0 < getattr(flags, name) < math.inf, name, "it must be a number above 0")
    need(0 <= flags.kl_coef < math.inf, "kl_coef", "it must be a number, 0 or more")
    need(flags.kl_cap is None or 0 < flags.kl_cap < math.inf, "kl_cap", "it must be a number above 0")
    need(0 <= flags.clip[0] < 1 and 0 <= flags.clip[1] < math.inf, "clip", "LOW is from 0 to below 1, HIGH 0 or more")
    need(not flags.fsdp or "RANK" in os.environ, "fsdp", "start it with torchrun --nproc-per-node 8 train.py --fsdp ..")
    need(not (flags.compile and flags.fsdp), "compile", "it does not go together with --fsdp yet")
    world = int(os.environ.get("WORLD_SIZE", 1))
    need(world <= flags.prompts_per_step, "prompts_per_step", f"{world} processes share out the problems of a step")
    need(flags.name is None or flags.name == Path(flags.name).name, "name", "it names a folder in --runs, not a path")
    return flags


def file_of(spec):
    """The file in `file.py:name`; any other path or name itself."""
    return spec.rpartition(":")[0] if ".py:" in spec else spec


# ---- 2. Optimiser ----------------------------------------------------------------------------------

class Optimizer:
    """AdamW (arXiv 1711.05101) on fp32 weights, whatever precision the model computes in.

    At lr 1e-6 an Adam step changes a weight by about 1e-6, and bf16 keeps 8 bits: added to a bf16 weight of 0.02,
    nearly all such steps round to nothing. So a bf16 model has fp32 master weights, which take the step and are then
    rounded into it. Gradients are summed in fp32 too. Bytes a parameter in bf16: weight 2, master 4, moments 4 + 4,
    gradient 4 during the update. Of a sharded model (section 7) each process updates its part.
    """

    def __init__(self, model):
        self.params = dict(model.named_parameters())
        self.weights, self.updates = {}, 0
        for name, param in self.params.items():
            self.weights[name] = param
            if param.dtype != torch.float32:
                param.grad_dtype = torch.float32
                self.weights[name] = param.detach().float()
        self.adam = torch.optim.AdamW(self.weights.values(), betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        for weight in self.weights.values():            # now, so that memory that is short shows at once
            self.adam.state[weight] = {"step": torch.zeros((), device=weight.device),
                                       "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}

    def clip(self):
        """Clip the gradient to norm 1 -> its norm before."""
        norm = torch.nn.utils.clip_grad_norm_(self.params.values(), 1.0)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

    @torch.no_grad()
    def step(self, lr):
        self.updates += 1
        self.adam.param_groups[0]["lr"] = lr
        for name, param in self.params.items():
            self.weights[name].grad = param.grad
        self.adam.step()
        self.discard()
        self.round()

    def discard(self):
        for tensor in (*self.params.values(), *self.weights.values()):
            tensor.grad = None

    def round(self):
        for name, param in self.params.items():
            if self.weights[name] is not param:
                param.data.copy_(self.weights[name])

    def state(self):
        """What a checkpoint holds, by name: this process's part of each tensor."""
        return {f"{kind} {name}": local_part(tensor) for name, weight in self.weights.items()
                for kind, tensor in (("weight", weight.data), ("exp_avg", self.adam.state[weight]["exp_avg"]),
                                     ("exp_avg_sq", self.adam.state[weight]["exp_avg_sq"]))}


def learning_rate(step, flags):
    """5 steps of linear warm-up to --lr, then a cosine down to a tenth of it at the last step."""
    decay = 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / flags.steps)))
    return flags.lr * min(1.0, step / 5) * decay


# ---- 3. Checkpoints --------------------------------------------------------------------------------
# No random state is saved: random numbers are functions of (seed, step, row), so weights, Adam's moments, the step
# and what is known of the problems say all. A resumed run equals an uninterrupted one bit for bit (on the same machine
# and number of processes; on other numbers up to rounding). Each process writes its part of the tensors as safetensors.

KEEP = 2                    # checkpoints of a run


def save_checkpoint(run, step, optimizer, memory, flags):
    """Write under another name, flush to disk, rename: a crash at any moment leaves the last good one."""
    folder, (rank, world) = run / "checkpoints", processes()
    path, partial = folder / f"step_{step:06d}", folder / "partial"

    def prepare():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def commit():
        parts = {file.name: hash_of(file) for file in sorted(partial.glob("*.safetensors"))}
        write_json(partial / "progress.json", {"step": step, "updates": optimizer.updates, "memory": memory,
                                               "parts": parts})
        shutil.rmtree(path, ignore_errors=True)         # one of the same step, which could not be read
        partial.rename(path)
        for old in sorted(folder.glob("step_*"))[:-KEEP]:
            shutil.rmtree(old)
    problem = None
    try:
        in_first_process(prepare)
        if rank == 0 or flags.fsdp:                     # replicas hold the same
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in optimizer.state().items()}
            save_file(tensors, partial / f"part_{rank:04d}.safetensors")
    except Exception as error:                          # a full disk has many names
        problem = str(error).strip()[:150]
    problems = [text for text in gather([problem]) if text]
    if not problems:
        try:
            return in_first_process(commit)
        except OSError as error:
            problems = [str(error)]
    in_first_process(shutil.rmtree, partial, ignore_errors=True)
    raise ModelError(f"{path}: cannot write the checkpoint ({problems[0]}). Free some space, then go on with --resume "
                     f"--name {run.name}")


def load_checkpoint(run, optimizer):
    """Restore the newest checkpoint that is whole -> (its step, memory); (0, {}) if none was ever due. Raises
    ModelError if one should be there and none can be used: to start over would throw away what the logs hold."""
    for path in in_first_process(lambda: sorted(run.glob("checkpoints/step_*"), reverse=True)):
        try:
            progress = in_first_process(read_progress, path)
            read_parts(path, progress["parts"], optimizer.state())
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            print(f"{path} cannot be used ({type(error).__name__}: {str(error)[:150]}); trying the one before")
            continue
        optimizer.updates = progress["updates"]
        for weight in optimizer.weights.values():
            optimizer.adam.state[weight]["step"].fill_(optimizer.updates)
        optimizer.round()
        return progress["step"], progress["memory"]
    return 0, {}


def read_progress(path):
    progress = json.loads((path / "progress.json").read_text())
    for name, digest in progress["parts"].items():
        if hash_of(path / name) != digest:
            raise ValueError(f"{name} has changed since it was written")
    return progress


def read_parts(path, parts, state):
    """Fill the tensors of `state`, parts of which lie in the files one after the other along their first dimension."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(safe_open(path / name, framework="pt")) for name in sorted(parts)]
        for name, tensor in state.items():
            whole = torch.cat([file.get_tensor(name) for file in files]) if tensor.ndim else files[0].get_tensor(name)
            rank, world = processes() if len(whole) != len(tensor) else (0, 1)
            start = min(len(whole), rank * -(-len(whole) // world))          # as torch.chunk, and so FSDP2, divides
            tensor.copy_(whole[start:start + len(tensor)])


def newest_run(runs):
    found = sorted(Path(runs).glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


def write_json(path, value):
    """In one piece or not at all."""
    partial = path.with_suffix(".partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


# ---- 4. Log ----------------------------------------------------------------------------------------

COLUMNS = (" step reward   acc solved/mixed/hopeless length  cut entropy   grad mismatch  tok/s   sec"
           "  held-out*")


def print_row(row):
    """At most 100 columns; every fifth step, unless a terminal is wide."""
    if row["step"] > 1 and row["step"] % 5 and "eval_accuracy" not in row and shutil.get_terminal_size((80, 0))[0] < 120:
        return
    line = f"{row['step']:5d} {row['reward']:6.3f} {row['accuracy']:5.2f} "
    if row["step"]:
        line += (f"{row['solved']:10.2f} {row['mixed']:4.2f} {row['hopeless']:4.2f} {row['completion_length']:6.1f} "
                 f"{row['truncated']:4.2f} {row['entropy']:7.3f} {row['grad_norm']:6.2f} {row['mismatch']:8.1e} "
                 f"{row['tokens_per_second']:6.0f} {row['seconds']:5.1f}")
    else:
        line += f"{'':20} {row['completion_length']:6.1f} {row['truncated']:4.2f}" + " " * 37
    if "eval_accuracy" in row:
        line += f"  {row['eval_accuracy']:.3f} {row['eval_sampled_accuracy']:.3f}"
    tqdm.write(line)


def batch_metrics(rewards, parts, rollouts):
    """What a batch of completions was worth: rewards (P, G), parts of B rows -> means and shares. A group with unequal
    rewards is mixed; of the others, which teach nothing, those that are right are solved."""
    right = right_answers(parts, len(rewards))
    mixed = rewards.amax(1) > rewards.amin(1)
    names = sorted({name for part in parts for name in part} - {"accuracy"})
    return {"reward": rewards.mean().item(), "accuracy": right.mean().item(),
            "completion_length": rollouts.lengths.float().mean().item(),
            "finished_length": rollouts.lengths[rollouts.finished].float().mean().nan_to_num().item(),
            **{name: statistics.fmean(part.get(name, 0.0) for part in parts) for name in names},
            "mixed": mixed.float().mean().item(),
            "solved": (~mixed & (right.mean(1) > 0.5)).float().mean().item(),
            "hopeless": (~mixed & (right.mean(1) <= 0.5)).float().mean().item()}


def right_answers(parts, groups):
    """Parts of B rows -> (groups, B / groups): accuracy where the completion was not cut off."""
    return torch.tensor([part["accuracy"] * (1 - part["truncated"]) for part in parts]).view(groups, -1)


def write_samples(run, step, problems, texts, rewards, advantages, rollouts, parts, tokenizer):
    """samples/step_000001.jsonl.gz: a line for each completion. likely, unlikely: the three tokens of highest and of
    lowest probability as [text, probability]."""
    G, inside = rollouts.num_samples, rollouts.mask > 0
    low, high = (rollouts.logp.masked_fill(~inside, fill).topk(min(3, inside.size(1)), largest=fill < 0)
                 for fill in (math.inf, -math.inf))

    def tokens(top, row):
        return [[tokenizer.decode([rollouts.ids[row, place + 1]], skip_special_tokens=False), round(math.exp(logp), 4)]
                for logp, place in zip(top.values[row].tolist(), top.indices[row].tolist()) if inside[row, place]]
    columns = zip(texts, rewards.flatten().tolist(), advantages.flatten().tolist(), rollouts.lengths.tolist(),
                  rollouts.finished.tolist(), parts)
    rows = [{"step": step, "problem": problems[i // G]["problem"], "answer": problems[i // G]["answer"],
             "completion": text, "reward": reward, "advantage": advantage, "length": length, "finished": finished,
             "parts": part, "likely": tokens(high, i), "unlikely": tokens(low, i)}
            for i, (text, reward, advantage, length, finished, part) in enumerate(columns)]
    (run / "samples").mkdir(exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (run / "samples" / f"step_{step:06d}.jsonl.gz").write_bytes(gzip.compress(text.encode("utf-8", "replace"), 6))


def canary(rows):
    """Has what is rewarded come apart from what is wanted? -> a warning or None; rows: the log so far.

    At an evaluation the mean training reward since the one before is compared with that of the best evaluation: if it
    is no lower but the held-out accuracy is, with intervals that do not touch, something else is being paid for
    ("Reward design for reasoning", the alarm against reward hacking).
    """
    points, rewards = [], []
    for row in rows:
        rewards.append(row["reward"])
        if "eval_accuracy" in row:
            points.append((statistics.fmean(rewards), row))
            rewards = []
    if len(points) < 2:
        return None
    (now, last), (then, best) = points[-1], max(points[:-1], key=lambda point: point[1]["eval_sampled_accuracy"])
    if now < then or last["eval_sampled_high"] >= best["eval_sampled_low"]:
        return None
    return (f"warning: the training reward went from {then:.3f} (step {best['step']}) to {now:.3f}, but held-out "
            f"accuracy from {best['eval_sampled_accuracy']:.3f} to {last['eval_sampled_accuracy']:.3f}: read samples/ "
            "for a hack")


def read_metrics(run):
    """The rows of metrics.jsonl. A line that a killed process left unfinished is passed over."""
    path = run / "metrics.jsonl"
    rows = read_rows(path) if path.exists() else []
    if not all(isinstance(row, dict) and {"step", "reward"} <= row.keys() for row in rows):
        raise verifiers.DataError(f"{path}: a line is no row of a run; is the file damaged?")
    return rows


def cut_logs(run, step):
    """Forget what was logged after the checkpoint that is resumed; without one, everything."""
    kept = [row for row in read_metrics(run) if step > 0 and row["step"] <= step]
    partial = run / "metrics.partial"
    partial.unlink(missing_ok=True)
    append_rows(partial, kept)
    partial.replace(run / "metrics.jsonl")
    for path in (run / "samples").glob("*.gz"):
        if step == 0 or path.name > f"step_{step:06d}.jsonl.gz":
            path.unlink()


# ---- 5. Preflight ----------------------------------------------------------------------------------
# What goes wrong most often goes wrong at once: memory, a prompt the model does not understand, a verifier that never
# pays, completions that never end. So all of it is tried before step 1; nothing of it is felt afterwards.

class PreflightError(Exception):
    """The run would fail or learn nothing: the message says why and what to do."""


def preflight(model, tokenizer, task, flags, optimizer):
    """Sample a batch, show what it earns, and run the largest possible micro-batch.

    Raises PreflightError if memory will not do, and, if 64 completions or more say so (fewer prove little, and then it
    only warns), when the verifier fails, when nearly all is cut off and when no group has mixed rewards.
    """
    problems, G = task.train[:flags.prompts_per_step], flags.num_samples
    longest = max(len(tokenizer.encode_prompt(task.prompt(problem))) for problem in problems)
    width = longest + flags.max_new_tokens
    rows = max(1, min(flags.micro_batch_tokens // width, -(-len(problems) * G // processes()[1])))
    try:
        with whole_weights(model):
            rollouts, texts, rewards, parts = shared_roll_out(
                model, tokenizer, task, problems, G, flags.temperature, flags.max_new_tokens, flags.seed,
                rows=[f"preflight {i}" for i in range(len(problems) * G)], label="preflight")
        ids, ones = torch.zeros(rows, width, dtype=torch.long, device=flags.device), torch.ones(rows, device=flags.device)
        largest = Rollouts(ids, (ones * longest).long(), (ones * flags.max_new_tokens).long(), ones.bool(),
                           ids[:, 1:].float(), rows)
        update_gradients(model, largest, ones[None], flags.temperature, flags.loss_norm, flags.max_new_tokens,
                         flags.micro_batch_tokens)
        optimizer.discard()
    except torch.OutOfMemoryError as error:
        raise PreflightError(f"out of memory ({str(error)[:150]}): try less --micro-batch-tokens, --max-new-tokens, "
                             "--num-samples or --prompts-per-step, or a smaller model") from error
    mixed = rewards.amax(1) > rewards.amin(1)
    cut, failed = (statistics.fmean(part[key] for part in parts) for key in ("truncated", "failed"))
    right = right_answers(parts, len(rewards)).mean().item()
    print(f"preflight: of {len(texts)} completions {right:.0%} are right and {cut:.0%} cut off; rewards differ within "
          f"{int(mixed.sum())} of {len(rewards)} groups. Two completions of one problem, with reward R and advantage A:")
    group = int(mixed.float().argmax())
    advantages = group_advantages(rewards)[group]
    for i in (int(rewards[group].argmax()), int(rewards[group].argmin())):
        print(f"    R {rewards[group, i]:.2f}  A {advantages[i]:+.2f}  {texts[group * G + i][-160:]!r}")
    if failed > 0.5:
        trouble = f"the verifier fails on {failed:.0%} of the completions (its errors are in the warnings above)"
    elif cut >= 0.9:
        trouble = (f"{cut:.0%} of the completions are cut off at {flags.max_new_tokens} tokens and earn nothing: try "
                   "more --max-new-tokens, a --stop text, or the --template this model was trained with")
    elif not mixed.any():
        trouble = "in every group all rewards are equal, so there is nothing to learn: try " + (
            "a harder task" if right > 0.5 else "an easier task, more --num-samples or another --template or --prompt")
    else:
        return
    if len(texts) >= 64 or failed == 1:
        raise PreflightError(trouble)
    print(f"preflight: warning: {trouble} ({len(texts)} completions prove little, so the run goes on)")


# ---- 6. The loop -----------------------------------------------------------------------------------

def every_problem(problems, step, memory, flags):
    """Which problems a step sees: a walk through a new random order of them in every epoch -> their indices."""
    P, N = flags.prompts_per_step, len(problems)
    places = (divmod(i, N) for i in range((step - 1) * P, step * P))
    return [epoch_order(N, epoch, flags.seed)[place] for epoch, place in places]


@functools.lru_cache(maxsize=4)
def epoch_order(n, epoch, seed):
    return random.Random(f"order {seed} {epoch}").sample(range(n), n)


# What --advantage, --loss and --pick may name; a function of your own has the same signature.
ADVANTAGES = {"std": group_advantages, "none": functools.partial(group_advantages, scale="none")}
LOSSES = {"ppo": policy_loss}
PICKERS = {"all": every_problem}


def train_rlvr(model, tokenizer, task, flags, optimizer, memory, run, stop, start=0, reference=None):
    """The training loop, from step start + 1 to flags.steps. Writes to the folder `run`; trains `model` in place.

    memory: what is known of the problems, {"visits": {index: mean accuracies of the last 3 visits}} and what a picker
    keeps there. stop: a StopSignal; when it is requested the step is finished and saved, and KeyboardInterrupt(step) is
    raised. Raises NonFinite before a loss or gradient that is no number can reach the weights, Drifted for --kl-cap.
    """
    pick = verifiers.find(flags.pick, PICKERS, "--pick")
    advantage_of = verifiers.find(flags.advantage, ADVANTAGES, "--advantage")
    loss = verifiers.find(flags.loss, LOSSES, "--loss")
    decoding = torch.compile(decode, dynamic=True) if flags.compile else decode
    P, G, (rank, world) = flags.prompts_per_step, flags.num_samples, processes()
    visits = memory.setdefault("visits", {})

    for step in range(start + 1, flags.steps + 1):
        began = time.perf_counter()
        # G completions of each of P problems, judged.
        indices = pick(task.train, step, memory, flags)
        problems = [{**task.train[i], "step": step} for i in indices]
        with whole_weights(model):
            rollouts, texts, rewards, parts = shared_roll_out(
                model, tokenizer, task, problems, G, flags.temperature, flags.max_new_tokens, flags.seed,
                rows=[f"{step} {i}" for i in range(len(problems) * G)], label=f"step {step}", step=decoding)
        sampled = time.perf_counter()

        # How much better than its group each of them is.
        advantages = advantage_of(rewards, rollouts=rollouts, parts=parts, flags=flags)          # (P, G)

        # One update, or several on the same completions: then the first one's log-probs are pi_old.
        old_logp, lr, history = None, learning_rate(step, flags), []
        for _ in range(flags.updates_per_batch):
            stats, logp = update_gradients(model, rollouts, advantages, flags.temperature, flags.loss_norm,
                                           flags.max_new_tokens, flags.micro_batch_tokens, old_logp, flags.clip, loss,
                                           reference, flags.kl_coef, rank, world, sum_over_processes)
            sum_gradients(model)
            any_signal = stats["trained"] > 0 or flags.kl_coef > 0
            stats["grad_norm"] = optimizer.clip() if any_signal else 0.0
            if not math.isfinite(stats["loss"] + stats["grad_norm"]):
                raise NonFinite(step, stats["loss"], stats["grad_norm"], rollouts, advantages)
            if any_signal:                      # subtle: else Adam's momentum would move the weights all the same
                optimizer.step(lr)
            old_logp = logp if old_logp is None else old_logp
            history.append(stats)
        clipped = statistics.fmean(stats["clipped"] for stats in history)
        updated = time.perf_counter()

        # What was seen: the problems, the log, from time to time held-out problems.
        for index, right in zip(indices, right_answers(parts, len(problems)).mean(1).tolist()):
            visits[str(index)] = [*visits.get(str(index), []), right][-3:]
        row = {"step": step, **batch_metrics(rewards, parts, rollouts), **history[0], "clipped": clipped, "lr": lr,
               "sample_seconds": sampled - began, "update_seconds": updated - sampled,
               "tokens_per_second": rollouts.lengths.sum().item() / (sampled - began)}
        if step % flags.eval_every == 0 or step == flags.steps:
            row |= evaluate_both(model, tokenizer, task, flags, decoding)
            rows = in_first_process(read_metrics, run)
            best = max((r["eval_sampled_accuracy"] for r in rows if r["step"] and "eval_accuracy" in r), default=-1)
            if row["eval_sampled_accuracy"] > best:         # the last model is not always the best
                export(model, tokenizer, run / "best", flags)
            row["eval_seconds"] = time.perf_counter() - updated
            if warning := canary([*rows, row]):
                tqdm.write(warning)
        row["seconds"] = time.perf_counter() - began
        print_row(row)
        in_first_process(append_rows, run / "metrics.jsonl", [row])
        in_first_process(write_samples, run, step, problems, texts, rewards, advantages, rollouts, parts, tokenizer)

        stopping = any(gather([stop.requested]))
        if step % flags.save_every == 0 or step == flags.steps or stopping:
            save_checkpoint(run, step, optimizer, memory, flags)
        check_drift(row, flags)
        if stopping:
            raise KeyboardInterrupt(step)


def check_drift(row, flags):
    if flags.kl_cap and row.get("kl", 0.0) * row["completion_length"] > flags.kl_cap:
        raise Drifted(row["step"], row["kl"] * row["completion_length"])


def evaluate_both(model, tokenizer, task, flags, step=decode):
    """Greedy and sampled accuracy on held-out problems -> the columns of the log."""
    problems, columns = task.test[:flags.eval_problems], {}
    for label, prefix, temperature in (("greedy", "eval_", 0.0), ("sampled", "eval_sampled_", flags.temperature)):
        with whole_weights(model):
            summary, _ = evaluate(model, tokenizer, task, problems, 1, temperature, flags.max_new_tokens, flags.seed,
                                  rows=[f"held out {i}" for i in range(len(problems))], label=f"evaluating, {label}",
                                  step=step, roll_out=shared_roll_out)
        columns |= {prefix + key: value for key, value in summary.items()}
    return columns


class Drifted(Exception):
    """The policy is further from its start than --kl-cap allows: (step, KL in nats per completion)."""


class NonFinite(Exception):
    """The loss or the gradient of a step is no number: (step, loss, grad_norm, rollouts, advantages)."""


class StopSignal:
    """Ctrl-C (or SIGTERM) asks for a stop after the running step; a second one, a second later, stops at once."""

    def __enter__(self):
        self.requested, self.since = False, 0.0
        self.before = {number: signal.signal(number, self.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def on_signal(self, number, frame):
        # subtle: torchrun and `timeout` send theirs twice within milliseconds; that is one wish, not two.
        if self.requested and time.monotonic() - self.since > 1:
            raise KeyboardInterrupt
        self.requested, self.since = True, self.since or time.monotonic()
        tqdm.write("stopping after this step; press Ctrl-C again to stop at once")


# ---- 7. Many GPUs (skip it when you have one) ------------------------------------------------------
# torchrun starts N processes of this script. Sampling and evaluation are shared out by problems, and what came of them
# is gathered: every process holds the whole batch and decides everything alike (rewards, advantages, when to stop). The
# update is shared out by micro-batches of the whole batch, with weights of the whole batch; the gradients add up to
# those of one process. No process can wait for one that does something else:
#   - a sharded model is brought together once before sampling, so the token loop has no collective;
#   - all make equally many forward and backward passes (rlvr.microbatches fills up with weight 0);
#   - token counts, "is there any signal" and "stop now" are sums or decisions over all.

MINUTES = 10.0              # that one process waits for another before it stops and says who is missing


def join_processes():
    """Join the processes that torchrun started, if it did. Only the first prints."""
    if "RANK" not in os.environ:
        return
    gpu, limit = torch.cuda.is_available(), datetime.timedelta(minutes=MINUTES)
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=limit)
    if dist.get_rank():
        sys.stdout = open(os.devnull, "w")
        tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)


def processes():
    """(rank, number of processes); (0, 1) for a single one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@functools.cache
def gloo_group():
    return dist.new_group(backend="gloo")               # monitored_barrier, which names who is missing, needs it


def gather(items):
    """The lists of all processes as one list, in every process."""
    if not dist.is_initialized():
        return items
    dist.monitored_barrier(gloo_group(), datetime.timedelta(minutes=MINUTES), wait_all_ranks=True)
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, items, group=gloo_group())
    return [item for part in parts for item in part]


def in_first_process(function, *args, **kwargs):
    """What the first process's call returns, or raises, in every process. For files, and for choices like a name."""
    result, error = None, None
    if processes()[0] == 0:
        try:
            result = function(*args, **kwargs)
        except (Exception, SystemExit) as raised:
            error = raised
    result, error = gather([(result, error)])[0]
    if error is not None:
        raise error
    return result


def sum_over_processes(tensor):
    """In place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def sum_gradients(model):
    """Replicas: every process gets the sum of all gradients. Sharded gradients were summed on the way back."""
    for param in model.parameters():
        if param.grad is not None and not isinstance(param.grad, DTensor):
            sum_over_processes(param.grad)


def shared_roll_out(model, tokenizer, task, problems, num_samples=1, *args, rows, **kwargs):
    """eval.roll_out, each process for its share of the problems; all get everything."""
    rank, world = processes()
    mine = slice(len(problems) * rank // world, len(problems) * (rank + 1) // world)
    done = []
    if problems[mine]:                                  # there may be more processes than problems
        rows = rows[mine.start * num_samples:mine.stop * num_samples]
        done = [roll_out(model, tokenizer, task, problems[mine], num_samples, *args, rows=rows, **kwargs)]
    if world == 1:
        return done[0]
    batches, texts, rewards, parts = zip(*gather([(on_cpu(batch), *rest) for batch, *rest in done]))
    width = max(batch.ids.size(1) for batch in batches)
    for batch in batches:                               # their rows one below the other, padded to the widest
        batch.ids, batch.logp = (F.pad(x, (0, width - batch.ids.size(1))) for x in (batch.ids, batch.logp))
    columns = zip(*(list(vars(batch).values())[:-1] for batch in batches))
    rollouts = Rollouts(*(torch.cat(column).to(model.device) for column in columns), num_samples)
    return rollouts, sum(texts, []), torch.cat(rewards), sum(parts, [])


def on_cpu(rollouts):
    return Rollouts(*(x.cpu() if torch.is_tensor(x) else x for x in vars(rollouts).values()))


def shard(model, flags, dtype):
    """Shard a model that has no weights yet (FSDP2, arXiv 2304.11277): each block, and the rest with the tied embedding
    as the root. Weights are kept in fp32, gathered and used in dtype; gradients are summed, not averaged, in fp32.
    Returns a function that cuts a process's part out of a whole weight, see model.load."""
    mesh = init_device_mesh(flags.device, (dist.get_world_size(),))
    # subtle: a KV cache that is cast would be a copy, and what is written to it lost.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=precision)
    for module in sharded(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)                   # gloo has no other
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")      # none is changed in place
    return lambda tensor, param: distribute_tensor(tensor, mesh, param.placements, src_data_rank=None)


def sharded(model):
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextlib.contextmanager
def whole_weights(model):
    """Within, every process holds all weights of a sharded model, and no forward pass communicates."""
    for module in sharded(model):
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in sharded(model):
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


def local_part(tensor):
    """This process's part of a sharded tensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def export(model, tokenizer, directory, flags):
    """Write the whole model, gathered tensor by tensor into the first process's host memory."""
    dtype, weights = pick_device(flags.device)[1], {}
    for name, weight in model.state_dict().items():
        weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
        if processes()[0] == 0:
            weights[name] = weight.to("cpu", dtype)
    in_first_process(save, model, tokenizer, directory, weights)


# ---- 8. Start and end ------------------------------------------------------------------------------

def open_run(flags):
    """The run's folder, made or found, and locked."""
    Path(flags.runs).mkdir(parents=True, exist_ok=True)
    task = Path(file_of(flags.task)).name.partition(".")[0]
    name = flags.name or f"{task}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(2, 100):
        run = Path(flags.runs, name)
        try:
            if not flags.resume:
                run.mkdir()                             # fails if somebody has made it in the same moment
            break
        except FileExistsError:
            if flags.name:
                raise ModelError(f"{run} exists: go on with it by --resume, or choose another --name") from None
            name = f"{name.partition('.')[0]}.{number}"
    lock(run)
    return run


HELD = []                       # the open lock file; the system takes the lock back when the process ends


def lock(run):
    """Nobody else may write to this run until this process ends or unlocks."""
    HELD.append(open(run / "lock", "a+"))
    if fcntl is None:           # Windows
        return
    try:
        fcntl.flock(HELD[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        HELD.pop().close()
        raise ModelError(f"{run} is in use by process {(run / 'lock').read_text()}: stop that one first") from None
    HELD[-1].truncate(0)
    HELD[-1].write(f"{os.getpid()} on {socket.gethostname()}")
    HELD[-1].flush()


def unlock():
    while HELD:
        HELD.pop().close()


def load_all(flags):
    """Load what the flags name -> (model, tokenizer, task)."""
    task = verifiers.get_task(flags.task, flags.prompt, flags.stop or ())
    if not task.train:
        raise verifiers.DataError(f"--task {flags.task} is for evaluation only: train on another one")
    if flags.reward:
        use_reward(task, flags.reward)
    for spec, known, flag in ((flags.pick, PICKERS, "--pick"), (flags.advantage, ADVANTAGES, "--advantage"),
                              (flags.loss, LOSSES, "--loss")):
        verifiers.find(spec, known, flag)               # now, not after the model is loaded
    if flags.train_problems:
        order = random.Random(f"train {flags.seed}").sample(task.train, len(task.train))
        task.train = order[:flags.train_problems]
    model, tokenizer = load_model(flags)
    small = sum(param.numel() for param in model.parameters()) < 4e6
    if flags.device == "cpu" and small:
        torch.set_num_threads(1)            # its tensors are so small that more threads mostly wait for each other
    model.checkpoint_blocks, model.compile_blocks = not small, flags.compile
    room = model.config.max_position_embeddings - flags.max_new_tokens
    for split in ("train", "test"):                     # a token is at least a character, so most need no counting
        problems = getattr(task, split)
        fit = [p for p in problems if len(p["problem"]) < room - 1000
               or len(tokenizer.encode_prompt(task.prompt(p))) <= room]
        if len(fit) < len(problems):
            print(f"{len(problems) - len(fit)} of {len(problems)} problems to {split} on are left out: with --max-new-tokens "
                  f"{flags.max_new_tokens} they do not fit the model's {model.config.max_position_embeddings} positions")
        setattr(task, split, fit)
    if not task.train or not task.test:
        raise verifiers.DataError(f"--task {flags.task}: no problem is left to train or to test on")
    return model, tokenizer, task


def load_model(flags):
    """The model that the run starts from -> (model, tokenizer)."""
    dtype = pick_device(flags.device)[1]
    if flags.fsdp:
        return load(flags.model, flags.device, torch.float32, flags.template, shard=lambda m: shard(m, flags, dtype))
    return load(flags.model, flags.device, dtype, flags.template)


def write_config(flags, run, task, start):
    """config.json: flags, with paths relative to the run; versions and commit of every start; a hash of the problems."""
    path = run / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if flags.resume else {"starts": []}
    data = hashlib.sha256(json.dumps([task.train, task.test], sort_keys=True).encode()).hexdigest()[:12]
    if config.get("data", data) != data:
        raise verifiers.DataError(f"--task {flags.task}: the problems have changed since {run} began; put the old file "
                                  "back, or start a new run")
    saved = {**asdict(flags), "resume": False}
    for name in PATHS:
        if saved[name] and Path(file_of(saved[name])).exists():
            rest = saved[name].removeprefix(file_of(saved[name]))
            saved[name] = os.path.relpath(file_of(saved[name]), run) + rest
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "git": git_commit()}
    starts = [*config["starts"], {"step": start, **versions}]
    write_json(path, {"flags": saved, "versions": versions, "starts": starts, "data": data})


def describe(model, tokenizer, task, flags, reason):
    print(f"model {flags.model}, {sum(p.numel() for p in model.parameters()):,} parameters, on {reason}; task {task.name}: "
          f"{len(task.train)} problems to train on, {len(task.test)} held out ({task.note})")
    once = flags.updates_per_batch == 1
    print(f"each step {flags.prompts_per_step} problems x {flags.num_samples} completions, {flags.updates_per_batch} "
          f"update{'s' * (not once)}{' (so clipping cannot act)' * once}; first prompt ({tokenizer.template}):")
    prompt = tokenizer.encode_prompt(task.prompt(task.train[0]))
    print("    " + tokenizer.decode(prompt, skip_special_tokens=False).replace("\n", "\n    "))


def main(argv=None):
    flags, began = parse_args(argv), time.perf_counter()
    flags.device, _, reason = pick_device(flags.device)
    join_processes()
    model, tokenizer, task = load_all(flags)
    run = in_first_process(open_run, flags)
    flags.name = run.name
    try:
        describe(model, tokenizer, task, flags, reason)
        optimizer = Optimizer(model)
        start, memory = load_checkpoint(run, optimizer)
        logged = max((row["step"] for row in in_first_process(read_metrics, run)), default=0)
        if start == 0 and logged >= flags.save_every:
            raise ModelError(f"{run} has logged {logged} steps, but no checkpoint is there or can be used: to start over "
                             "would throw away its logs. Put checkpoints/ back, or start a new run")
        try:
            if start == 0:
                preflight(model, tokenizer, task, flags, optimizer)
        except PreflightError:
            if not flags.resume:
                in_first_process(shutil.rmtree, run)            # there is nothing in it yet
            raise
        reference = load_model(flags)[0].requires_grad_(False) if flags.kl_coef or flags.kl_cap else None
        in_first_process(write_config, flags, run, task, start)
        if flags.resume:
            in_first_process(cut_logs, run, start)
            print(f"going on with {run} after step {start} of {flags.steps}")
        print(COLUMNS)
        if start == 0:
            row = {"step": 0, **evaluate_both(model, tokenizer, task, flags)}
            row |= {name: row[f"eval_sampled_{key}"] for name, key in (
                ("reward", "reward"), ("accuracy", "accuracy"), ("completion_length", "length"),
                ("truncated", "truncated"))}
            print_row(row)
            in_first_process(append_rows, run / "metrics.jsonl", [row])
        with StopSignal() as stop:
            try:
                if start:
                    check_drift(in_first_process(read_metrics, run)[-1], flags)
                train_rlvr(model, tokenizer, task, flags, optimizer, memory, run, stop, start, reference)
                export(model, tokenizer, run / "final", flags)
            except (KeyboardInterrupt, NonFinite, Drifted, RuntimeError, OSError, ModelError) as error:
                leave(error, flags, run, optimizer, memory)
    finally:
        unlock()
    rows = [row for row in in_first_process(read_metrics, run) if "eval_accuracy" in row]
    print(f"held-out accuracy {rows[0]['eval_accuracy']:.3f} -> {rows[-1]['eval_accuracy']:.3f} (greedy, "
          f"n={rows[-1]['eval_n']}) in {time.perf_counter() - began:.0f} s; model in {run / 'final'}")


def leave(error, flags, run, optimizer, memory):
    """End a run before its last step: save what can be saved, say what happened and how to go on."""
    rank, world = processes()
    command = "python train.py" if world == 1 else f"torchrun --nproc-per-node {world} train.py" + " --fsdp" * flags.fsdp
    again = f"Go on with: {command} --resume --name {run.name}" + f" --runs {flags.runs}" * (flags.runs != "runs")
    if isinstance(error, KeyboardInterrupt):
        message = f"stopped; {'a checkpoint of this step' if error.args else 'the last checkpoint'} is saved. {again}"
    elif isinstance(error, NonFinite):
        step, loss, grad_norm, rollouts, advantages = error.args
        in_first_process(torch.save, {"rollouts": vars(rollouts), "advantages": advantages}, run / "bad_batch.pt")
        save_checkpoint(run, step - 1, optimizer, memory, flags)        # the update was not made: the last good weights
        message = (f"error: step {step} has loss {loss} and gradient norm {grad_norm}. The batch is in "
                   f"{run / 'bad_batch.pt'}, the weights before it in {run / 'checkpoints'}. Try a lower --lr")
    elif isinstance(error, Drifted):
        step, kl = error.args
        save_checkpoint(run, step, optimizer, memory, flags)
        message = (f"stopped after step {step}: the KL from the start is {kl:.1f} nats a completion, above --kl-cap "
                   f"{flags.kl_cap}. The weights are in {run / 'checkpoints'}")
    elif isinstance(error, (OSError, ModelError)) or dist.is_initialized():
        message = f"error: {str(error)[:500]}. The last checkpoint is saved. {again}"
    else:
        raise error
    sys.exit(message if rank == 0 or dist.is_initialized() and "monitoredBarrier" in message else 1)


if __name__ == "__main__":
    try:
        main()
        if dist.is_initialized():
            dist.destroy_process_group()
    except (ModelError, PreflightError, verifiers.DataError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped before the first step; nothing was saved yet")
