"""train.py - the loop, and what it takes to run it.

    python train.py --steps 100                     on a laptop: a tiny model learns to work sums out;
                                                    with a CUDA GPU: Qwen3-0.6B-Base on MATH
    python train.py --task mine.jsonl --reward mine.py:terse
    python train.py --resume                        go on with the newest run where it stopped
    torchrun --nproc-per-node 8 train.py --fsdp     the same on 8 GPUs, each with an eighth of the model

The loop is section 6, one function from pick to step; the rest can be skipped on a first reading. Left out: tensor and
pipeline parallelism, an inference engine of its own.
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
import statistics
import sys
import time
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from filelock import FileLock, Timeout          # comes with huggingface_hub
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from tqdm import tqdm

import verifiers
from eval import append_rows, evaluate, git_commit, hash_of, located, read_rows, roll_out, use_reward
from model import ModelError, load, pick_device, save
from rlvr import Rollouts, decode, group_advantages, policy_loss, update_gradients

# ---- 1. Flags --------------------------------------------------------------------------------------

TINY = str(Path(__file__).resolve().parent / "notebooks" / "tiny")

# Defaults of a tiny model (a file of less than 16 MB) by its task; of all others: "text".
PRESETS = {
    "arithmetic": dict(prompts_per_step=8, num_samples=16, max_new_tokens=80, lr=4e-4, micro_batch_tokens=2048,
                       eval_every=25, eval_problems=500, save_every=50),
    "one-digit": dict(prompts_per_step=64, num_samples=16, max_new_tokens=4, lr=5e-4, micro_batch_tokens=16384,
                      eval_every=50, eval_problems=100, save_every=200),
    "text": dict(prompts_per_step=8, num_samples=8, max_new_tokens=512, lr=3e-6, micro_batch_tokens=4096,
                 eval_every=50, eval_problems=500, save_every=50)}


@dataclass
class Flags:
    """One field a flag; its comment is its help. NAME: a name of the core, or file.py:name (README, "Fork it")."""

    model: str = None               # a hub id or a model directory (default: Qwen/Qwen3-0.6B-Base; notebooks/tiny without CUDA)
    task: str = None                # NAME, or a data file: .jsonl with problem and answer (default: math; tiny arithmetic)
    reward: str = None              # NAME (default: the task's own)
    prompt: str = None              # the sentence that asks, with {problem} in it (default: the task's own)
    stop: list = None               # texts that end a completion, for models that seldom stop (default: the task's own)
    template: str = None            # plain, chat or chat-nothink (default: plain for base models, chat for others)
    train_problems: int = None      # train only on so many, the first of a random order (default: all)
    pick: str = "all"               # NAME of what picks the problems of a step
    prompts_per_step: int = None    # P, problems a step
    num_samples: int = None         # G, completions of each
    max_new_tokens: int = None      # longest completion
    temperature: float = 1.0        # of sampling, and of the log-probs that are trained
    advantage: str = "std"          # NAME: std (GRPO), none (Dr. GRPO)
    loss: str = "ppo"               # NAME
    loss_norm: str = "token"        # token (DAPO), sequence (GRPO), constant (Dr. GRPO), sum (the chapter)
    clip: tuple = (0.2, 0.2)        # LOW HIGH: ratios stay between 1 - LOW and 1 + HIGH; DAPO has 0.2 0.28
    updates_per_batch: int = 1      # on the same completions; from the second on clipping can act
    kl_coef: float = 0.0            # weight of a KL towards the model the run started from, then kept in memory
    kl_cap: float = None            # stop when that KL exceeds so many nats a completion
    lr: float = None                # highest learning rate: 5 steps of warm-up, then a cosine down to a tenth
    micro_batch_tokens: int = None  # tokens in a forward pass; fewer take less memory and give the same gradient
    compile: bool = False           # torch.compile decoding, and the blocks in training; the first steps are slow
    fsdp: bool = False              # with torchrun: each process holds its share of weights, gradients and moments
    steps: int = 100                # in all
    seed: int = 0                   # of everything random
    eval_every: int = None          # steps between evaluations
    eval_problems: int = None       # held-out problems each time
    save_every: int = None          # steps between checkpoints
    runs: str = "runs"              # folder of all runs
    name: str = None                # of this run's folder in it (default: task, date and time)
    resume: bool = False            # go on with run --name, or the newest; --steps, --device, --fsdp may be new
    device: str = None              # cpu, cuda or mps (default: the best there is)


ANEW = {"steps", "device", "fsdp", "runs", "name", "resume"}       # what may differ when a run goes on
PATHS = ("model", "task", "reward", "pick", "advantage", "loss")   # may name files of the user's
CHOICES = {"template": ["plain", "chat", "chat-nothink"], "device": ["cpu", "cuda", "mps"],
           "loss_norm": ["token", "sequence", "constant", "sum"]}
LEAST = dict(train_problems=1, prompts_per_step=1, num_samples=2, max_new_tokens=1, updates_per_batch=1, steps=1,
             micro_batch_tokens=1, eval_every=1, eval_problems=1, save_every=1, temperature=1e-3, lr=1e-12, kl_coef=0,
             kl_cap=1e-9)


def parse_args(argv=None):
    """Preset < config.json of the run to resume < command line -> Flags. All is checked before anything is written."""
    parser = argparse.ArgumentParser(description="Train a language model with verifiable rewards (GRPO).",
                                     allow_abbrev=False, argument_default=argparse.SUPPRESS)
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(Flags), re.M))
    kinds = {bool: {"action": "store_true"}, tuple: {"nargs": 2, "type": float}, list: {"nargs": "+"}}
    for field in fields(Flags):
        presets = [f"{values[field.name]} for {key}" for key, values in PRESETS.items() if field.name in values]
        default = f" (default: {', '.join(presets) or field.default})" if presets or field.default else ""
        options = kinds.get(field.type, {"type": field.type, "choices": CHOICES.get(field.name)})
        parser.add_argument(f"--{field.name.replace('_', '-')}", help=comments[field.name] + default, **options)
    if int(os.environ.get("RANK", 0)):                  # of N processes the first complains; then torchrun ends all
        parser.error = lambda message: time.sleep(30)
    given = vars(parser.parse_args(argv))
    flags = Flags(**{**(saved_flags(parser, given) if "resume" in given else {}), **given})
    flags.device = pick_device(flags.device)[0]
    if flags.model is None:
        tiny = flags.task in PRESETS or flags.task is None and flags.device != "cuda"
        flags.model = TINY if tiny else "Qwen/Qwen3-0.6B-Base"
    small = 0 < sum(file.stat().st_size for file in Path(flags.model).glob("*.safetensors")) < 2**24
    flags.task = flags.task or ("arithmetic" if small else "math")
    for name, value in PRESETS[flags.task if small and flags.task in PRESETS else "text"].items():
        setattr(flags, name, value if getattr(flags, name) is None else getattr(flags, name))
    for name, least in LEAST.items():
        if (value := getattr(flags, name)) is not None and not least <= value < math.inf:
            parser.error(f"--{name.replace('_', '-')} is {value}: it must be a number from {least} on")
    world = int(os.environ.get("WORLD_SIZE", 1))
    for fine, message in (
            (0 <= flags.clip[0] < 1 and 0 <= flags.clip[1] < math.inf, "--clip: LOW is from 0 to below 1, HIGH 0 or more"),
            (not flags.fsdp or "RANK" in os.environ, "--fsdp: start it as torchrun --nproc-per-node 8 train.py --fsdp .."),
            (not (flags.fsdp and flags.compile), "--compile and --fsdp do not go together yet"),
            (world <= flags.prompts_per_step, f"--prompts-per-step: {world} processes share out the problems of a step")):
        if not fine:
            parser.error(message)
    return flags


def saved_flags(parser, given):
    """The flags of the run to resume."""
    runs = given.get("runs", "runs")
    found = sorted(Path(runs).glob(f"{given.get('name', '*')}/config.json"), key=os.path.getmtime)
    if not found:
        parser.error(f"--resume: there is no run {given.get('name', '')} to go on with in {runs}")
    if refused := given.keys() - ANEW:
        parser.error(f"--resume goes on with the run's own flags: leave out --{', --'.join(sorted(refused))}")
    try:
        run, flags = found[-1].parent, json.loads(found[-1].read_text(encoding="utf-8"))["flags"]
        flags = {field.name: flags[field.name] for field in fields(Flags)}
    except (ValueError, KeyError, TypeError) as error:
        parser.error(f"{found[-1]} is damaged or of another version ({error!r}): this run cannot go on")
    done = read_metrics(run)[-1:] or [{"step": 0}]
    if given.get("steps", flags["steps"]) < done[0]["step"]:
        parser.error(f"{run} has already made {done[0]['step']} steps: give --steps a larger number")
    here = {name: located(run, flags[name]) for name in PATHS}
    return {**flags, **here, "runs": runs, "name": run.name, "fsdp": False, "device": None}


# ---- 2. Optimiser ----------------------------------------------------------------------------------

class Optimizer:
    """AdamW (arXiv 1711.05101) on fp32 weights, whatever precision the model computes in.

    At lr 1e-6 a step of Adam changes a weight by about 1e-6, and bf16 keeps 8 bits: added to a bf16 weight of 0.02,
    nearly all such steps round to nothing. So a bf16 model has fp32 master weights, which take the step and are then
    rounded into it. Bytes a parameter in bf16: weight 2, master 4, moments 4 + 4, fp32 gradient 4 during the update.
    """

    def __init__(self, model):
        self.params, self.updates = list(model.parameters()), 0
        self.weights = [param if param.dtype == torch.float32 else param.detach().float() for param in self.params]
        self.adam = torch.optim.AdamW(self.weights, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self.state = {}                                 # what a checkpoint holds, by name
        for (name, param), weight in zip(model.named_parameters(), self.weights):
            param.grad_dtype = torch.float32
            moments = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
            # Made here, not in the first step: so memory that is short shows at once.
            self.adam.state[weight] = {"step": torch.zeros((), device=weight.device), **moments}
            self.state |= {f"{kind} {name}": tensor.detach() for kind, tensor in {"weight": weight, **moments}.items()}

    @torch.no_grad()
    def step(self, lr=None):
        """Step with the gradient, and forget it; without lr only forget it. Round the weights into the model."""
        if lr is not None:
            self.updates += 1
            self.adam.param_groups[0]["lr"] = lr
            for param, weight in zip(self.params, self.weights):
                weight.grad = param.grad
            self.adam.step()
        for param, weight in zip(self.params, self.weights):
            param.grad = weight.grad = None
            if weight is not param:
                param.data.copy_(weight)


# ---- 3. Checkpoints --------------------------------------------------------------------------------
# No random state is saved: random numbers are functions of (seed, step, row), so weights, Adam's moments, the step
# and what is known of the problems say all. A resumed run equals an uninterrupted one bit for bit, on the same machine
# and number of processes; on others up to rounding. Each process writes its part of the tensors as safetensors.

KEEP = 2                    # checkpoints of a run


def save_checkpoint(run, step, optimizer, memory, flags):
    """Write under another name, flush to disk, rename: a crash at any moment leaves the last good one."""
    folder, rank = run / "checkpoints", processes()[0]
    path, partial, part = folder / f"step_{step:06d}", folder / "partial", f"part_{rank:04d}.safetensors"
    try:
        if rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        parts = gather([])                              # the folder is there for all
        if rank == 0 or flags.fsdp:                     # replicas hold the same
            save_file({name: own_part(tensor).cpu().contiguous() for name, tensor in optimizer.state.items()}, partial / part)
            parts = [(part, hash_of(partial / part))]
        parts = dict(gather(parts))
        if rank == 0:
            write_json(partial / "progress.json", {"step": step, "updates": optimizer.updates, "memory": memory,
                                                   "parts": parts})
            shutil.rmtree(path, ignore_errors=True)     # one of the same step, which could not be read
            partial.rename(path)
            for old in sorted(folder.glob("step_*"))[:-KEEP]:
                shutil.rmtree(old)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(f"{path}: cannot write the checkpoint ({str(error)[:150]}). Free some space, then go on with "
                         f"--resume --name {run.name}") from error


def load_checkpoint(run, optimizer):
    """Restore the newest checkpoint that is whole -> (its step, memory); (0, {}) if there is none. Its files hold the
    processes' parts of each tensor, one after the other along the first dimension."""
    for path in sorted(run.glob("checkpoints/step_*"), reverse=True):
        try:
            progress = json.loads((path / "progress.json").read_text())
            if changed := [name for name, digest in progress["parts"].items() if hash_of(path / name) != digest]:
                raise ValueError(f"{changed[0]} is not what was written")
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(safe_open(path / name, "pt")) for name in sorted(progress["parts"])]
                for name, tensor in optimizer.state.items():
                    whole = torch.cat([file.get_tensor(name) for file in files])
                    if isinstance(tensor, DTensor):
                        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
                    own_part(tensor).copy_(own_part(whole))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            print(f"{path} cannot be used ({type(error).__name__}: {str(error)[:150]}); trying the one before")
            continue
        optimizer.updates = progress["updates"]
        for state in optimizer.adam.state.values():
            state["step"].fill_(optimizer.updates)
        optimizer.step()                                # without a rate: rounds the weights into the model
        return progress["step"], progress["memory"]
    return 0, {}


def own_part(tensor):
    """This process's part of a sharded tensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def write_json(path, value):
    """In one piece or not at all."""
    partial = path.with_suffix(".partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


# ---- 4. Log ----------------------------------------------------------------------------------------

COLUMNS = [("step", "step", 5, "d"), ("reward", "reward", 6, ".3f"), ("acc", "accuracy", 5, ".2f"),
           ("solved", "solved", 6, ".2f"), ("mixed", "mixed", 5, ".2f"), ("length", "completion_length", 6, ".1f"),
           ("cut", "truncated", 4, ".2f"), ("entropy", "entropy", 7, ".3f"), ("grad", "grad_norm", 5, ".2f"),
           ("mismatch", "mismatch", 8, ".0e"), ("tok/s", "tokens_per_second", 6, ".0f"), ("sec", "seconds", 5, ".1f"),
           ("greedy", "eval_accuracy", 6, ".3f"), ("sampled", "eval_sampled_accuracy", 7, ".3f")]


def print_row(row, above=False):
    """Every fifth step, or all of them in a wide terminal; `above`: the titles first."""
    if above:
        tqdm.write(" ".join(f"{title:>{width}}" for title, _, width, _ in COLUMNS))
    if above or row["step"] == 1 or row["step"] % 5 == 0 or "eval_accuracy" in row or shutil.get_terminal_size()[0] > 120:
        tqdm.write(" ".join(f"{row[key]:{width}{form}}" if key in row else " " * width
                            for _, key, width, form in COLUMNS))


def batch_metrics(rewards, parts, rollouts):
    """What a batch of completions was worth: rewards (P, G), parts of B rows -> (means and shares, for each problem the
    share of right completions). A group with unequal rewards is mixed; of the others, which teach nothing, those that
    are right are solved."""
    right = torch.tensor([part["accuracy"] * (1 - part["truncated"]) for part in parts]).view(rewards.shape).mean(1)
    mixed, names = rewards.amax(1) > rewards.amin(1), sorted({name for part in parts for name in part} - {"accuracy"})
    return {"reward": rewards.mean().item(), "accuracy": right.mean().item(),
            "completion_length": rollouts.lengths.float().mean().item(),
            "finished_length": rollouts.lengths[rollouts.finished].float().mean().nan_to_num().item(),
            **{name: statistics.fmean(part.get(name, 0.0) for part in parts) for name in names},
            "mixed": mixed.float().mean().item(), "solved": (~mixed & (right > 0.5)).float().mean().item(),
            "hopeless": (~mixed & (right <= 0.5)).float().mean().item()}, right.tolist()


def write_samples(run, step, problems, texts, rewards, advantages, rollouts, parts):
    """samples/step_000001.jsonl.gz: a line for each completion."""
    (run / "samples").mkdir(exist_ok=True)
    columns = zip(texts, rewards.flatten().tolist(), advantages.flatten().tolist(), rollouts.lengths.tolist(),
                  rollouts.finished.tolist(), rollouts.logp.sum(1).tolist(), parts)
    with gzip.open(run / "samples" / f"step_{step:06d}.jsonl.gz", "wt", encoding="utf-8", errors="replace") as file:
        for i, (text, reward, advantage, length, finished, logp, part) in enumerate(columns):
            problem = problems[i // rollouts.num_samples]
            row = {"step": step, "problem": problem["problem"], "answer": problem["answer"], "completion": text,
                   "reward": reward, "advantage": advantage, "length": length, "finished": finished, "logp": logp,
                   "parts": part}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_metrics(run):
    """The rows of metrics.jsonl so far."""
    path = run / "metrics.jsonl"
    return read_rows(path, ("step", "reward")) if path.exists() else []


def cut_logs(run, log):
    """Forget what was logged after the checkpoint that is resumed; without one, everything."""
    (run / "metrics.partial").unlink(missing_ok=True)
    append_rows(run / "metrics.partial", log)
    (run / "metrics.partial").replace(run / "metrics.jsonl")
    for path in (run / "samples").glob("step_*.jsonl.gz"):
        if int(path.name[5:11]) > (log[-1]["step"] if log else 0):
            path.unlink()


# ---- 5. Preflight ----------------------------------------------------------------------------------
# What goes wrong most often goes wrong at once: memory, a prompt the model does not understand, a verifier that never
# pays, completions that never end. So all of it is tried before step 1, and nothing of it is felt afterwards.

class PreflightError(Exception):
    """The run would fail or learn nothing: the message says why and what to do."""


def preflight(model, tokenizer, task, flags, optimizer):
    """Sample a batch, show what it earns, run the largest possible micro-batch. Raises PreflightError if memory will
    not do, if the verifier fails and, if 64 completions say so (fewer prove little: then it warns), if nearly all is cut
    off or no group has unequal rewards."""
    problems, G = task.train[:flags.prompts_per_step], flags.num_samples
    longest = max(task.train, key=lambda problem: len(problem["problem"]))
    prompt = len(tokenizer.encode_prompt(task.prompt(longest)))
    width = prompt + flags.max_new_tokens
    rows = max(1, min(flags.micro_batch_tokens // width, len(problems) * G))
    try:
        rollouts, texts, rewards, parts = shared_roll_out(
            model, tokenizer, task, problems, G, flags.temperature, flags.max_new_tokens, flags.seed,
            rows=[f"preflight {i}" for i in range(len(problems) * G)], label="preflight")
        ids, ones = torch.zeros(rows, width, dtype=torch.long), torch.ones(rows, dtype=torch.long)
        largest = [ids, ones * prompt, ones * flags.max_new_tokens, ones > 0, ids[:, 1:].float()]
        update_gradients(model, Rollouts(*(x.to(model.device) for x in largest), rows), ones[None].float(),
                         flags.temperature, flags.loss_norm, flags.max_new_tokens, flags.micro_batch_tokens)
        optimizer.step()                                # without a rate: forgets the gradient
    except torch.OutOfMemoryError as error:
        raise PreflightError(f"out of memory ({str(error)[:150]}): try less --micro-batch-tokens, --max-new-tokens, "
                             "--num-samples or --prompts-per-step, or a smaller model") from error
    means, _ = batch_metrics(rewards, parts, rollouts)
    print(f"preflight: of {len(texts)} completions {means['accuracy']:.0%} are right, {means['truncated']:.0%} cut off; "
          f"{means['mixed']:.0%} of the groups have unequal rewards. Two of one group, with reward R and advantage A:")
    group = int((rewards.amax(1) > rewards.amin(1)).float().argmax())
    for i in (int(rewards[group].argmax()), int(rewards[group].argmin())):
        A = group_advantages(rewards)[group, i]
        print(f"    R {rewards[group, i]:.2f}  A {A:+.2f}  {texts[group * G + i][-200:]!r}")
    trouble = (f"the verifier fails on {means['failed']:.0%} of the completions, see the warnings above"
               if means["failed"] > 0.5 else
               f"nearly all completions are cut off at {flags.max_new_tokens} tokens and earn nothing: try more "
               "--max-new-tokens, a --stop text, or the --template that the model was trained with"
               if means["truncated"] >= 0.9 else
               "in every group all rewards are equal, so there is nothing to learn: try "
               f"{'a harder' if means['accuracy'] > 0.5 else 'an easier'} task, more --num-samples, another --template"
               if means["mixed"] == 0 else None)
    if trouble and (means["failed"] == 1 or len(texts) >= 64):
        raise PreflightError(trouble)
    if trouble:
        print(f"preflight: warning: {trouble} ({len(texts)} completions prove little, so the run goes on)")


# ---- 6. The loop -----------------------------------------------------------------------------------

def every_problem(problems, step, memory, flags):
    """Which problems a step sees: a walk through a new random order of them in every epoch -> their indices."""
    P, N = flags.prompts_per_step, len(problems)
    places = [divmod(i, N) for i in range((step - 1) * P, step * P)]               # (epoch, place in its order)
    orders = {epoch: random.Random(f"order {flags.seed} {epoch}").sample(range(N), N) for epoch, _ in places}
    return [orders[epoch][place] for epoch, place in places]


# What --advantage, --loss and --pick may name. A function of your own has the same signature.
ADVANTAGES = {"std": group_advantages, "none": functools.partial(group_advantages, scale="none")}
LOSSES = {"ppo": policy_loss}
PICKERS = {"all": every_problem}


def train_rlvr(model, tokenizer, task, functions, flags, optimizer, memory, run, log, reference=None):
    """The training loop: from the last step of `log`, the rows so far, to flags.steps. Trains the model in place.

    functions: of --pick, --advantage and --loss. memory: {"visits": {index: mean accuracies of a problem's last 3
    visits}} and what a picker keeps there. Raises Stopped after Ctrl-C (the step is finished and saved), for --kl-cap
    and before a loss or gradient that is no number can reach the weights.
    """
    pick, advantage_of, loss = functions
    sample_and_judge = shared_roll_out if dist.is_initialized() else roll_out
    decoding = torch.compile(decode, dynamic=True) if flags.compile else decode
    G, (rank, world), visits = flags.num_samples, processes(), memory.setdefault("visits", {})

    for step in range(log[-1]["step"] + 1, flags.steps + 1):
        # Problems, and G completions of each, judged.
        began = time.perf_counter()
        indices = pick(task.train, step, memory, flags)
        problems = [{**task.train[i], "step": step} for i in indices]
        rollouts, texts, rewards, parts = sample_and_judge(
            model, tokenizer, task, problems, G, flags.temperature, flags.max_new_tokens, flags.seed,
            rows=[f"{step} {i}" for i in range(len(problems) * G)], label=f"step {step}", step=decoding)
        sampled = time.perf_counter()

        # How much better than its group each of them is.
        advantages = advantage_of(rewards, rollouts=rollouts, parts=parts, flags=flags)          # (P, G)

        # One update, or several on the same completions: then the first one's log-probs are pi_old. The rate rises
        # for 5 steps, on a cosine that goes down to a tenth at the last.
        lr = flags.lr * min(1.0, step / 5) * (0.55 + 0.45 * math.cos(math.pi * step / flags.steps))
        old_logp, updates = None, []
        for _ in range(flags.updates_per_batch):
            stats, logp = update_gradients(
                model, rollouts, advantages, flags.temperature, flags.loss_norm, flags.max_new_tokens,
                flags.micro_batch_tokens, old_logp, flags.clip, loss, reference, flags.kl_coef, rank, world, add_up)
            old_logp = logp if old_logp is None else old_logp
            signal_there = stats["trained"] > 0 or flags.kl_coef > 0
            stats["grad_norm"] = clip_gradients(model) if signal_there else 0.0
            if not math.isfinite(stats["loss"] + stats["grad_norm"]):
                save_checkpoint(run, step - 1, optimizer, memory, flags)        # the last good weights
                torch.save({"rollouts": vars(rollouts), "advantages": advantages}, run / f"bad_batch_{rank}.pt")
                raise Stopped(f"error: step {step} has loss {stats['loss']} and gradient norm {stats['grad_norm']}. The "
                              f"batch is in {run}, the weights before it in its checkpoints. Try a lower --lr")
            if signal_there:                    # subtle: else Adam's momentum would move the weights all the same
                optimizer.step(lr)
            updates.append(stats)
        updated = time.perf_counter()

        # What was seen of the problems; the log; from time to time held-out problems, and a checkpoint.
        means, right = batch_metrics(rewards, parts, rollouts)
        for index, share in zip(map(str, indices), right):
            visits[index] = [*visits.get(index, []), share][-3:]
        row = {"step": step, **means, **updates[0], "clipped": statistics.fmean(stats["clipped"] for stats in updates),
               "lr": lr, "sample_seconds": sampled - began, "update_seconds": updated - sampled,
               "tokens_per_second": rollouts.lengths.sum().item() / (sampled - began)}
        if step % flags.eval_every == 0 or step == flags.steps:
            row |= evaluate_both(model, tokenizer, task, flags, decoding)
            best = max((r["eval_sampled_accuracy"] for r in log[1:] if "eval_accuracy" in r), default=-1)
            if row["eval_sampled_accuracy"] > best:             # the last model is not always the best
                export(model, tokenizer, run / "best", flags)
            row["eval_seconds"] = time.perf_counter() - updated
        row["seconds"] = time.perf_counter() - began
        log.append(row)
        print_row(row)
        if rank == 0:
            append_rows(run / "metrics.jsonl", [row])
            write_samples(run, step, problems, texts, rewards, advantages, rollouts, parts)
        stopping, drifted = any(gather(STOP_ASKED[:1])), drift(row) > (flags.kl_cap or math.inf)
        if step % flags.save_every == 0 or step == flags.steps or stopping or drifted:
            save_checkpoint(run, step, optimizer, memory, flags)
        if drifted:
            raise Stopped(f"stopped after step {step}: the KL from the start is {drift(row):.1f} nats a completion, above "
                          f"--kl-cap {flags.kl_cap}. The weights are in {run}/checkpoints")
        if stopping:
            raise Stopped(f"stopped; step {step} is saved. {how_to_go_on(flags)}")


STOP_ASKED = []             # when Ctrl-C was pressed in this run


def on_signal(number, frame):
    """Ctrl-C or SIGTERM asks for a stop after the running step; a second one stops at once. subtle: torchrun and
    `timeout` send theirs twice in a moment; that is one wish."""
    if STOP_ASKED and time.monotonic() - STOP_ASKED[0] > 1:
        raise KeyboardInterrupt
    STOP_ASKED.append(time.monotonic())
    tqdm.write("stopping after this step; press Ctrl-C again to stop at once")


class Stopped(Exception):
    """The run ends before its last step: the message says why, what is saved and how to go on."""


def drift(row):
    """The KL from the start, in nats a completion, if it was measured."""
    return row.get("kl", 0.0) * row["completion_length"]


def evaluate_both(model, tokenizer, task, flags, step=decode):
    """Greedy and sampled accuracy on held-out problems -> the columns of the log."""
    problems, columns = task.test[:flags.eval_problems], {}
    for label, prefix, temperature in (("greedy", "eval_", 0.0), ("sampled", "eval_sampled_", flags.temperature)):
        summary, _ = evaluate(model, tokenizer, task, problems, 1, temperature, flags.max_new_tokens, flags.seed,
                              rows=[f"held out {i}" for i in range(len(problems))], label=f"evaluating, {label}",
                              step=step, roll_out=shared_roll_out)
        columns |= {prefix + key: value for key, value in summary.items()}
    return columns


# ---- 7. Many GPUs (skip it when you have one) ------------------------------------------------------
# torchrun starts N processes of this script. Sampling and evaluation are shared out by problems and gathered, so every
# process holds the whole batch and decides everything alike; the first one writes. The update is shared out by
# micro-batches, with weights of the whole batch; the gradients add up to those of one process. critical: nobody may
# wait for one that does something else. So a sharded model is brought together once before sampling (no collective in
# the token loop), and all make equally many passes (rlvr.microbatches fills up with weight 0).

MINUTES = 10.0              # that one process waits for another before it stops and says who is missing


def join_processes():
    """Join the processes that torchrun started, if it did. Only the first prints."""
    if "RANK" in os.environ:
        gpu = torch.cuda.is_available()
        if gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=datetime.timedelta(minutes=MINUTES))
        if dist.get_rank():
            sys.stdout = open(os.devnull, "w")
            tqdm.__init__ = functools.partialmethod(tqdm.__init__, disable=True)


def processes():
    """(rank, number of processes); (0, 1) for a single one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(items):
    """The lists of all processes as one list, in every process."""
    if not dist.is_initialized():
        return items
    if not hasattr(gather, "group"):                    # monitored_barrier, which names who is missing, needs gloo
        gather.group = dist.new_group(backend="gloo")
    dist.monitored_barrier(gather.group, datetime.timedelta(minutes=MINUTES), wait_all_ranks=True)
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, items, gather.group)
    return [item for part in parts for item in part]


def add_up(tensor):
    """Sum a tensor over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def clip_gradients(model):
    """Clip the gradient to norm 1 -> its norm before. Replicas first sum theirs; shards were summed on the way back."""
    for param in model.parameters():
        if dist.is_initialized() and param.grad is not None and not isinstance(param.grad, DTensor):
            add_up(param.grad)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()


def shared_roll_out(model, tokenizer, task, problems, num_samples, *args, rows, **kwargs):
    """eval.roll_out, each process for its share of the problems; all get everything."""
    rank, world = processes()
    mine, done = slice(len(problems) * rank // world, len(problems) * (rank + 1) // world), []
    with whole_weights(model):
        if problems[mine]:                              # there may be more processes than problems
            rows = rows[mine.start * num_samples:mine.stop * num_samples]
            done = [roll_out(model, tokenizer, task, problems[mine], num_samples, *args, rows=rows, **kwargs)]
    if world == 1:
        return done[0]
    cpu = [([x.cpu() for x in list(vars(rollouts).values())[:-1]], *rest) for rollouts, *rest in done]
    tensors, texts, rewards, parts = zip(*gather(cpu))
    width = max(ids.size(1) for ids, *_ in tensors)     # rows one below the other, padded to the widest
    columns = zip(*([F.pad(x, (0, width - ids.size(1))) if x.ndim == 2 else x for x in (ids, *others)]
                    for ids, *others in tensors))
    rollouts = Rollouts(*(torch.cat(column).to(model.device) for column in columns), num_samples)
    return rollouts, sum(texts, []), torch.cat(rewards), sum(parts, [])


def shard(model, device, dtype):
    """Shard a model that has no weights yet (FSDP2, arXiv 2304.11277): each block, and the rest with the tied embedding
    as the root. Weights are kept in fp32, gathered and used in dtype; gradients are summed, not averaged, in fp32.
    Returns a function that cuts a process's part out of a whole weight, see model.load."""
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    # subtle: a KV cache that is cast would be a copy, and what is written to it lost.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=precision)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)                   # gloo has no other
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")      # none is changed in place
    return lambda tensor, param: distribute_tensor(tensor, mesh, param.placements, src_data_rank=None)


@contextlib.contextmanager
def whole_weights(model):
    """Within, every process holds all weights of a sharded model, and no forward pass communicates."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in sharded:
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


def export(model, tokenizer, directory, flags):
    """Write the whole model, gathered tensor by tensor into the first process's host memory."""
    weights, dtype = {}, pick_device(flags.device)[1]
    for name, weight in model.state_dict().items():
        weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
        weights |= {name: weight.to("cpu", dtype)} if processes()[0] == 0 else {}
    if weights:
        save(model, tokenizer, directory, weights)


# ---- 8. Start and end ------------------------------------------------------------------------------

def load_all(flags):
    """Load what the flags name -> (model, tokenizer, task, functions of --pick, --advantage, --loss)."""
    task = verifiers.get_task(flags.task, flags.prompt, flags.stop or ())
    if flags.reward:
        use_reward(task, flags.reward)
    functions = [verifiers.find(getattr(flags, name), known, f"--{name}")
                 for name, known in (("pick", PICKERS), ("advantage", ADVANTAGES), ("loss", LOSSES))]
    if flags.train_problems:
        task.train = random.Random(f"train {flags.seed}").sample(task.train, len(task.train))[:flags.train_problems]
    model, tokenizer = load_model(flags)
    small = sum(param.numel() for param in model.parameters()) < 4e6
    if flags.device == "cpu" and small:
        torch.set_num_threads(1)            # its tensors are so small that more threads mostly wait for each other
    model.checkpoint_blocks, model.compile_blocks = not small, flags.compile
    room = model.config.max_position_embeddings - flags.max_new_tokens
    for split, problems in (("train", task.train), ("test", task.test)):
        fit = [problem for problem in problems if len(task.prompt(problem).encode()) < room - 20     # bytes >= tokens
               or len(tokenizer.encode_prompt(task.prompt(problem))) <= room]
        if len(fit) < len(problems):
            print(f"{len(problems) - len(fit)} of {len(problems)} problems to {split} on are left out: they and "
                  f"--max-new-tokens are more than the model's {model.config.max_position_embeddings} positions")
        if not fit:
            raise verifiers.DataError(f"--task {flags.task} has no problem to {split} on")
        setattr(task, split, fit)
    return model, tokenizer, task, functions


def load_model(flags):
    """The model that the run starts from -> (model, tokenizer)."""
    dtype = pick_device(flags.device)[1]
    return load(flags.model, flags.device, torch.float32 if flags.fsdp else dtype, flags.template,
                shard=functools.partial(shard, device=flags.device, dtype=dtype) if flags.fsdp else None)


def make_folder(flags):
    """The run's folder: made here and now, so that nobody else has it, or found -> its name."""
    name = flags.name or f"{Path(flags.task.partition('.py:')[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    for name in [name] if flags.name else [name, *(f"{name}-{number}" for number in range(2, 99))]:
        with contextlib.suppress(FileExistsError):
            Path(flags.runs, name).mkdir(parents=True, exist_ok=flags.resume)
            return name
    raise ModelError(f"{Path(flags.runs, name)} exists: go on with it by --resume, or choose another --name")


def write_config(flags, run, task, start):
    """config.json: flags, with paths relative to the run; versions and commit of every start; a hash of the problems."""
    data = hashlib.sha256(json.dumps([task.train, task.test], sort_keys=True).encode()).hexdigest()
    config = json.loads((run / "config.json").read_text(encoding="utf-8")) if flags.resume else {"starts": [], "data": data}
    if config["data"] != data:
        raise verifiers.DataError(f"--task {flags.task}: its problems have changed since {run} began. Put the old ones "
                                  "back, or start a new run")
    config["flags"] = {**vars(flags), "resume": False}
    for name in PATHS:
        file, colon, function = (getattr(flags, name) or "").partition(".py:")
        if os.path.exists(file + colon[:3]):
            config["flags"][name] = os.path.relpath(file + colon[:3], run) + colon[3:] + function
    config["versions"] = {"python": sys.version.split()[0], "torch": torch.__version__, "git": git_commit()}
    config["starts"].append({"step": start, "process": os.getpid(), "host": os.uname().nodename, **config["versions"]})
    write_json(run / "config.json", config)


def how_to_go_on(flags):
    world = processes()[1]
    command = "python train.py" if world == 1 else f"torchrun --nproc-per-node {world} train.py" + " --fsdp" * flags.fsdp
    return f"Go on with: {command} --resume --name {flags.name}" + f" --runs {flags.runs}" * (flags.runs != "runs")


def main(argv=None):
    flags, began = parse_args(argv), time.perf_counter()
    join_processes()
    loaded, rank = load_all(flags), processes()[0]
    flags.name = gather([make_folder(flags)] if rank == 0 else [])[0]
    run = Path(flags.runs, flags.name)
    STOP_ASKED.clear()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:                                                # the system takes the lock back when the process ends
        with FileLock(run / "lock", timeout=0) if rank == 0 else contextlib.nullcontext():
            log = start_and_train(*loaded, flags, run, rank)
    except Timeout:
        last = json.loads((run / "config.json").read_text())["starts"][-1]
        raise ModelError(f"{run} is in use by process {last['process']} on {last['host']}: stop that one first") from None
    except Stopped as error:
        sys.exit(str(error) if rank == 0 else 1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    first, *_, last = [row for row in log if "eval_accuracy" in row] * 2
    print(f"held-out accuracy {first['eval_accuracy']:.3f} -> {last['eval_accuracy']:.3f} (greedy, n={last['eval_n']}) in "
          f"{time.perf_counter() - began:.0f} s; model in {run / 'final'}")


def start_and_train(model, tokenizer, task, functions, flags, run, rank):
    """From the first look at everything to the last step -> the rows of the log."""
    prompt = tokenizer.decode(tokenizer.encode_prompt(task.prompt(task.train[0])), skip_special_tokens=False)
    print(f"model {flags.model}, {sum(p.numel() for p in model.parameters()):,} parameters, on {flags.device} "
          f"({pick_device(flags.device)[2]})\ntask {task.name}: {len(task.train)} problems to train on, {len(task.test)} "
          f"held out ({task.note})\neach step {flags.prompts_per_step} problems x {flags.num_samples} completions; first "
          f"prompt ({tokenizer.template}):\n    " + prompt.replace("\n", "\n    "))
    optimizer, log = Optimizer(model), read_metrics(run)
    start, memory = load_checkpoint(run, optimizer)
    if start == 0 and log and log[-1]["step"] >= flags.save_every:
        raise ModelError(f"{run} has logged {log[-1]['step']} steps, but no checkpoint is there or can be used: to start "
                         "over would throw away its logs. Put checkpoints/ back, or start a new run")
    if start == 0:
        try:
            preflight(model, tokenizer, task, flags, optimizer)
        except PreflightError:
            if rank == 0 and not flags.resume:
                shutil.rmtree(run)                      # there is nothing in it yet
            raise
    reference = load_model(flags)[0].requires_grad_(False) if flags.kl_coef or flags.kl_cap else None
    log = [row for row in log if 0 < start >= row["step"]]
    if rank == 0:
        write_config(flags, run, task, start)
        cut_logs(run, log)
    if start:
        print(f"going on with {run} after step {start} of {flags.steps}")
    else:
        row = {"step": 0, **evaluate_both(model, tokenizer, task, flags)}
        log = [{**row, "reward": row["eval_sampled_reward"], "accuracy": row["eval_sampled_accuracy"],
                "completion_length": row["eval_sampled_length"], "truncated": row["eval_sampled_truncated"]}]
        if rank == 0:
            append_rows(run / "metrics.jsonl", log)
    print_row(log[-1], above=True)
    if drift(log[-1]) > (flags.kl_cap or math.inf):
        raise Stopped(f"{run} has stopped at --kl-cap {flags.kl_cap}, and goes no further")
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)
        train_rlvr(model, tokenizer, task, functions, flags, optimizer, memory, run, log, reference)
        export(model, tokenizer, run / "final", flags)
    except (KeyboardInterrupt, RuntimeError, OSError, ModelError) as error:
        if isinstance(error, RuntimeError) and not dist.is_initialized():
            raise
        raise Stopped(f"error: {str(error)[:500] or 'stopped'}. The last checkpoint is saved. {how_to_go_on(flags)}")
    return log


if __name__ == "__main__":
    try:
        main()
        if dist.is_initialized():
            dist.destroy_process_group()
    except (ModelError, PreflightError, verifiers.DataError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped before the first step; nothing was saved yet")
