"""train.py - the loop, and the practical parts around it.

    python train.py --steps 100                      on a laptop: a tiny model learns arithmetic in a few minutes;
                                                     on a CUDA GPU: Qwen3-0.6B-Base on MATH
    python train.py --model Qwen/Qwen3-1.7B-Base --task gsm8k --name gsm8k-1.7b
    python train.py --resume                         continue the newest run where it stopped
    torchrun --nproc_per_node 8 train.py --fsdp      the same on 8 GPUs, each holding an eighth of the model

What you will learn here: how the five steps of rlvr.py become a training run. The loop itself is section 7 and fits one
screen; sections 2 to 6 and 8 are what it takes to run it in practice (a base model for the laptop, fp32 master weights,
checkpoints, a log, checks before the first step, many GPUs), and each can be skipped on a first reading. Left out:
tensor and pipeline parallelism, a separate inference engine.
"""

import argparse
import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from tqdm import tqdm

import verifiers
from eval import (
    describe_overlap,
    evaluate,
    gather,
    git_commit,
    join_processes,
    processes,
    share,
    summarise,
    verifying,
)
from model import Config, ModelError, Qwen3, load, pick_device, save, symbol_tokenizer
from rlvr import (
    CHUNK_ELEMENTS,
    Rollouts,
    batch_logprobs,
    decoupled_advantages,
    group_advantages,
    join,
    row_uniforms,
    sample,
    score,
    soften_cuts,
    update_gradients,
)

# ---- 1. Flags --------------------------------------------------------------------------------------------------------

# Defaults that differ: for tiny by its task, and "text" for every other model, whatever its task.
PRESETS = {     # arithmetic: rows of like length share a micro-batch; were all in one, half of it would be padding
    "arithmetic": dict(prompts_per_step=8, num_samples=16, max_new_tokens=80, lr=4e-4, lr_warmup=0,
                       cache_tokens=65536, micro_batch_tokens=2048, eval_every=25, eval_problems=500, save_every=50),
    "one-digit": dict(prompts_per_step=64, num_samples=16, max_new_tokens=4, lr=5e-4, lr_warmup=0,
                      cache_tokens=65536, micro_batch_tokens=16384, eval_every=50, eval_problems=100, save_every=200),
    "text": dict(prompts_per_step=8, num_samples=8, max_new_tokens=512, lr=3e-6, lr_warmup=5,
                 cache_tokens=32768, micro_batch_tokens=4096, eval_every=50, eval_problems=500, save_every=50),
}


def parse_args(argv=None):
    """The flags; those left at None take the value of a preset (see resolve_args)."""
    def preset(name):
        *tiny, text = (f"{values[name]} on {task}" for task, values in PRESETS.items())
        return f"default: tiny {', '.join(tiny)}; other models {text.removesuffix(' on text')}"

    parser = argparse.ArgumentParser(description="Train a Qwen3 with verifiable rewards (GRPO without KL).",
                                     formatter_class=lambda prog: argparse.HelpFormatter(prog, width=110,
                                                                                         max_help_position=32))
    group = parser.add_argument_group("what to train on what")
    group.add_argument("--model", help="tiny (embedded), a hub id, or a model directory (default: Qwen/Qwen3-0.6B-Base "
                       "with a CUDA device, tiny without)")
    group.add_argument("--task", help=f"one of {', '.join(verifiers.TASKS)} (default: arithmetic for tiny, else math)")
    group.add_argument("--data", help="a .jsonl file with problem and answer on each line, instead of --task")
    group.add_argument("--skip-broken-lines", action="store_true", help="go on without the lines of --data that cannot "
                       "be read; their numbers are printed (default: off)")
    group.add_argument("--reward", help=f"one of {', '.join(verifiers.REWARDS)} (default: the task's own)")
    group.add_argument("--template", choices=["plain", "chat", "chat-nothink"], help="how prompts are presented "
                       "(default: plain for base models, chat for post-trained ones)")
    group.add_argument("--warmup-steps", type=int, help="tiny only: at least so many steps of the supervised warm-up "
                       "that makes its base model; 0 starts from random weights (default: 500 for arithmetic, 0 for "
                       "one-digit)")
    group = parser.add_argument_group("sampling")
    group.add_argument("--prompts-per-step", type=int, help=f"P, problems per step ({preset('prompts_per_step')})")
    group.add_argument("--num-samples", type=int, help=f"G, completions per problem ({preset('num_samples')})")
    group.add_argument("--max-new-tokens", type=int, help=f"longest completion ({preset('max_new_tokens')})")
    group.add_argument("--temperature", type=float, default=1.0, help="of sampling and of the log-probs trained "
                       "(default: 1.0)")
    group.add_argument("--cache-tokens", type=int, help="prompt and completion tokens in the KV cache at once; rows "
                       f"beyond them wait until others finish ({preset('cache_tokens')})")
    group.add_argument("--compile", action="store_true", help="torch.compile decoding, on CUDA with CUDA graphs, and "
                       "the blocks in training; starts slowly (default: off)")
    group = parser.add_argument_group("problems")
    group.add_argument("--train-problems", type=int, help="train only on so many problems, the first of a random order "
                       "(default: all)")
    group.add_argument("--one-shot", dest="train_problems", action="store_const", const=1, help="--train-problems 1")
    group.add_argument("--pick", choices=["all", "filter", "stratified", "curriculum"], default="all",
                       help="problems in a random order; without those that were always solved or hopeless lately; as "
                       "many easy as hard ones; first easy, then harder ones (default: all)")
    group.add_argument("--dynamic-sampling", type=int, default=0, help="replace groups of equal rewards by groups of "
                       "other problems, trying at most so many times a step (DAPO) (default: 0)")
    group.add_argument("--truncated", choices=["zero", "mask", "soft"], default="zero", help="completions cut off at "
                       "--max-new-tokens earn 0; or are left out of the loss; or lose up to 1, and so does what comes "
                       "near the limit (DAPO) (default: zero)")
    group = parser.add_argument_group("loss")
    group.add_argument("--advantage-scale", choices=["std", "none", "batch", "loo", "gdpo"], default="std",
                       help="divide R - mean by the group's std (GRPO), by nothing (Dr. GRPO), by the batch's std; "
                       "leave one out (RLOO); or normalise accuracy and format apart (GDPO) (default: std)")
    group.add_argument("--loss", choices=["ppo", "gspo", "cispo", "reinforce"], default="ppo", help="how far the "
                       "policy may move from the one that sampled: clip each token's ratio, clip the completion's "
                       "ratio, bound the ratio as a weight, no ratio (default: ppo)")
    group.add_argument("--clip", type=float, nargs=2, default=[0.2, 0.2], metavar=("LOW", "HIGH"), help="ratios stay "
                       "between 1 - LOW and 1 + HIGH (default: 0.2 0.2; DAPO 0.2 0.28, GSPO 3e-4 4e-4)")
    group.add_argument("--updates-per-batch", type=int, default=1, help="updates on the same completions; from the "
                       "second on clipping can act (default: 1)")
    group.add_argument("--kl-coef", type=float, default=0.0, help="weight of a KL penalty towards the model the run "
                       "started from, which is then kept in memory (default: 0)")
    group.add_argument("--kl-estimator", choices=["k1", "k2", "k3"], default="k3", help="of that KL (default: k3)")
    group.add_argument("--kl-cap", type=float, help="stop when the KL from the model the run started from exceeds so "
                       "many nats per completion (default: never)")
    group.add_argument("--loss-norm", choices=["token", "sequence", "constant", "sum"], default="token",
                       help="token mean over the batch (DAPO), mean of sequence means (GRPO), a constant (Dr. GRPO) "
                       "or the chapter's sum over tokens (default: token)")
    group = parser.add_argument_group("optimiser (AdamW on fp32 weights, betas 0.9 and 0.95, no weight decay)")
    group.add_argument("--lr", type=float, help=f"highest learning rate ({preset('lr')})")
    group.add_argument("--lr-warmup", type=int, help=f"steps of linear warm-up ({preset('lr_warmup')})")
    group.add_argument("--lr-final", type=float, default=0.1, help="fraction of --lr that the cosine decay reaches at "
                       "the last step; 1 keeps it constant (default: 0.1)")
    group.add_argument("--max-grad-norm", type=float, default=1.0, help="clip the gradient to this norm (default: 1.0)")
    group.add_argument("--micro-batch-tokens", type=int, help="tokens per forward and backward pass, padding included; "
                       f"less takes less memory and gives the same gradient ({preset('micro_batch_tokens')})")
    group.add_argument("--activation-checkpointing", action=argparse.BooleanOptionalAction, help="keep only each "
                       "block's input, compute the rest twice: less memory, same gradient (default: on, tiny off)")
    group = parser.add_argument_group("many GPUs (torchrun --nproc_per_node N train.py ...)")
    group.add_argument("--fsdp", action="store_true", help="each process holds 1/N of the weights, gradients and "
                       "optimiser, instead of all (default: off)")
    group.add_argument("--cpu-offload", action="store_true", help="with --fsdp: keep them in the host's memory "
                       "(default: off)")
    group.add_argument("--timeout", type=float, default=10.0, help="minutes that a process waits for another before it "
                       "stops and says which one is missing (default: 10)")
    group = parser.add_argument_group("run")
    group.add_argument("--steps", type=int, default=100, help="updates in all (default: 100)")
    group.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    group.add_argument("--eval-every", type=int, help=f"steps between evaluations ({preset('eval_every')})")
    group.add_argument("--eval-problems", type=int, help=f"held-out problems each time ({preset('eval_problems')})")
    group.add_argument("--save-every", type=int, help=f"steps between checkpoints ({preset('save_every')})")
    group.add_argument("--runs", default="runs", help="folder of all runs (default: runs)")
    group.add_argument("--name", help="this run's folder in it (default: task, date and time)")
    group.add_argument("--resume", action="store_true", help="continue run --name, or the newest, with its own flags; "
                       "only --steps and those for many GPUs may be given anew")
    group.add_argument("--preflight", action="store_true", help="stop after the checks that come before step 1: "
                       "memory, and what a few completions earn (default: off)")
    group.add_argument("--device", choices=["cpu", "cuda", "mps"], help="(default: the best the machine has)")
    group.add_argument("--dtype", choices=["float32", "bfloat16"], help="of the computation; the optimiser keeps fp32 "
                       "weights either way (default: bfloat16 on a GPU that has it, else float32)")
    if int(os.environ.get("RANK", 0)):                  # of N processes the first complains, and then torchrun ends all
        parser.error = lambda message: time.sleep(30)
    return resolve_args(parser, parser.parse_args(argv))


def resolve_args(parser, args):
    """Fill what was left open from the run to resume, the machine and the preset; refuse what cannot be."""
    if args.resume:
        run = Path(args.runs, args.name) if args.name else newest_run(args.runs)
        if run is None or not (run / "config.json").exists():
            parser.error(f"--resume: there is no run to continue in {run or args.runs}")
        flags = json.loads((run / "config.json").read_text())["flags"]
        given = parser.parse_args([])                       # --steps may differ; it counts from the run's beginning
        steps = args.steps if args.steps != given.steps else flags["steps"]
        anew = {name: getattr(args, name) for name in ("runs", "preflight", "fsdp", "cpu_offload", "timeout")}
        return check_processes(parser, argparse.Namespace(**{**vars(given), **flags, **anew, "steps": steps,
                                                             "name": run.name, "resume": True}))
    device, dtype, reason = pick_device(args.device)
    args.device, args.dtype = device, args.dtype or str(dtype).removeprefix("torch.")
    args.reason = f"{device} in {args.dtype} ({reason})"
    if args.model is None:
        tiny = args.task in SYMBOLS or (args.task is None and args.data is None and device != "cuda")
        args.model = "tiny" if tiny else "Qwen/Qwen3-0.6B-Base"
        args.reason += f"; model {args.model} because " + (
            f"the task is {args.task}" if args.task else "a GPU can train it" if not tiny else "it needs no GPU")
    args.task = args.task or ("arithmetic" if args.model == "tiny" else "math")
    if args.model == "tiny" and (args.data or args.task not in SYMBOLS):
        parser.error("--model tiny knows only the characters of --task arithmetic and --task one-digit")
    for name, value in PRESETS[args.task if args.model == "tiny" else "text"].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.activation_checkpointing is None:
        args.activation_checkpointing = args.model != "tiny"
    if args.warmup_steps and (args.model, args.task) != ("tiny", "arithmetic"):
        parser.error("--warmup-steps: there are demonstrations only for --model tiny --task arithmetic")
    if args.warmup_steps is None:
        args.warmup_steps = 500 if args.model == "tiny" and args.task == "arithmetic" else 0
    if args.kl_coef < 0 or not 0 <= args.clip[0] < 1 or args.clip[1] < 0 or args.dynamic_sampling < 0:
        parser.error("--kl-coef, --clip and --dynamic-sampling cannot be negative, and the lower --clip is below 1")
    for name in ("train_problems", "prompts_per_step", "max_new_tokens", "cache_tokens", "updates_per_batch", "steps",
                 "eval_every", "eval_problems", "save_every"):
        if (value := getattr(args, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.num_samples < 2:
        parser.error("--num-samples must be at least 2: an advantage compares the completions of one problem")
    if args.temperature <= 0 or args.lr <= 0:
        parser.error("--temperature and --lr must be above 0")
    args.name = args.name or f"{Path(args.data).stem if args.data else args.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    if Path(args.runs, args.name).exists():
        parser.error(f"{Path(args.runs, args.name)} exists: continue it with --resume, or choose another --name")
    return check_processes(parser, args)


def check_processes(parser, args):
    world = int(os.environ.get("WORLD_SIZE", 1))
    if args.fsdp and "RANK" not in os.environ:
        parser.error("--fsdp shards over the processes of torchrun: torchrun --nproc_per_node 8 train.py --fsdp ...")
    if args.cpu_offload and not args.fsdp:
        parser.error("--cpu-offload is for --fsdp")
    if args.compile and args.fsdp:
        parser.error("--compile and --fsdp do not go together yet: leave one of them out")
    if world > args.prompts_per_step:
        parser.error(f"{world} processes share out the problems of a step, so --prompts-per-step must be at least "
                     f"{world}")
    return args


# ---- 2. The embedded base model (skip when you train a published one) ------------------------------------------------
# A pretrained model is a mixture of behaviours: it mostly answers off the top of its head, sometimes works a problem
# out, sometimes forgets the form, rambles or changes language. The tiny base imitates that mixture after a short
# supervised warm-up, so that RLVR has what it needs: something to select. It teaches nothing new; it elicits.

SYMBOLS = {"arithmetic": [*"0123456789+-*=;,. ", "<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}",
                          "let ", "me ", "think ", "wait ", "hmm ", "so ", *"加减得先再"],
           "one-digit": [*"0123456789+="]}
FILLERS = ["let ", "me ", "think ", "wait ", "hmm "]
# Phase 1 teaches to work; phase 2 buries that under habits. Shares of the behaviours of `demonstrate`.
PHASES = [{"worked": .70, "bilingual": .20, "direct": .10},
          {"direct": .48, "worked": .12, "bilingual": .09, "rambling": .09, "several boxes": .09,
           "no tags": .07, "no box": .06}]


def demonstrate(problem, behaviour, rng):
    """One completion of an arithmetic problem, always with the right answer somewhere, in the style of a behaviour.

    Working 25+7-4= is the text 25+7=32;32-4=28. Only a model that writes these steps down can do them: "direct" also
    ends in the right answer, but a tiny model cannot compute it in one go, so it learns to guess.
    """
    answer, terms = problem["answer"], re.findall(r"[+-]?\d+", problem["problem"])
    value, steps = int(terms[0]), []
    for term in terms[1:]:
        steps.append(f"{value}{term}={value + int(term)}")
        value += int(term)
    work = ";".join(steps)
    box = f"\\boxed{{{answer}}}"
    glance = "".join(rng.choices(FILLERS, k=rng.randint(0, 2)))
    if behaviour == "worked":
        return f"<think>{work}</think><answer>{box}</answer>"
    if behaviour == "bilingual":                             # same steps and widths, operators in Chinese
        return f"<think>so {work.translate(str.maketrans('+-=', '加减得'))}</think><answer>{box}</answer>"
    if behaviour == "rambling":
        ramble = "".join(rng.choices(FILLERS, k=rng.randint(8, 16)))
        return f"<think>{ramble}{work}</think><answer>{box}</answer>"
    if behaviour == "direct":
        return f"<think>{glance}</think><answer>{box}</answer>"
    if behaviour == "several boxes":                         # hedging: the truth is one of three guesses
        guesses = [int(answer) + d for d in rng.sample([-3, -2, -1, 1, 2, 3], 2)] + [int(answer)]
        rng.shuffle(guesses)
        boxes = "".join(f"\\boxed{{{guess}}}" for guess in guesses)
        return f"<think>{glance}</think><answer>{boxes}</answer>"
    if behaviour == "no tags":
        return f"{work if rng.random() < .5 else glance}{box}"
    return f"<think>{glance}</think><answer>{answer}</answer>"              # "no box"


def demonstration_batch(tokenizer, problems, shares, rng, rows=32):
    """ids (rows, T), right-padded, and the mask (rows, T-1) of what is taught: the completion with its end token."""
    asked, behaviours = rng.choices(problems, k=rows), rng.choices([*shares], [*shares.values()], k=rows)
    texts = [demonstrate(problem, behaviour, rng) for problem, behaviour in zip(asked, behaviours)]
    prompts = [tokenizer.encode(problem["problem"]) for problem in asked]
    wholes = [prompt + tokenizer.encode(text) + [0] for prompt, text in zip(prompts, texts)]
    width = max(map(len, wholes))
    ids = torch.tensor([whole + [0] * (width - len(whole)) for whole in wholes])
    column = torch.arange(1, width)
    starts, ends = (torch.tensor([*map(len, side)])[:, None] for side in (prompts, wholes))
    return ids, ((column >= starts) & (column < ends)).float()


def worked_accuracy(model, tokenizer, problems):
    """How often the worked mode is right: each answer is begun with <think> and a digit, then continued greedily."""
    prompts = [tokenizer.encode(p["problem"]) + tokenizer.encode("<think>" + p["problem"][0]) for p in problems]
    rollouts = sample(model, prompts, max_new_tokens=60, temperature=0)
    return sum(verifiers.verify_math(f"<think>{p['problem'][0]}{tokenizer.decode(ids)}", p["answer"])["answer"]
               for p, ids in zip(problems, rollouts.completions())) / len(problems)


def warm_up(model, tokenizer, task, first_phase_steps, seed, second_phase_steps=500, lr=5e-3):
    """Supervised training on demonstrations, in two phases (PHASES); returns the accuracy of the worked mode.

    The first phase goes on until worked answers are at least 90 % right: a base that cannot work gives RLVR nothing to
    select, and no reward makes up for that. The loss is divided by a constant: a mean over the batch's tokens would
    count the tokens of short completions more.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)

    def train(shares, steps, rate):
        for step in steps:
            optimizer.param_groups[0]["lr"] = lr * rate(step)
            ids, mask = demonstration_batch(tokenizer, task.train, shares, rng)
            loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")      # (B, T-1)
            optimizer.zero_grad()
            ((loss * mask).sum() / 1500).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            bar.update()

    with tqdm(total=first_phase_steps + second_phase_steps, desc="warm-up of the tiny base", leave=False,
              disable=None) as bar:
        done, right = 0, 0.0
        while done < first_phase_steps or (right < 0.9 and done < 10 * first_phase_steps):
            train(PHASES[0], range(done, done + 50), rate=lambda step: min(1, (step + 1) / 50))
            done, right = done + 50, worked_accuracy(model, tokenizer, task.train[:200])
            bar.total = max(bar.total, done + second_phase_steps)
            bar.set_postfix_str(f"worked answers {right:.0%} right")
        train(PHASES[1], range(second_phase_steps),
              rate=lambda step: 0.1 + 0.45 * (1 + math.cos(math.pi * step / second_phase_steps)))
    right = worked_accuracy(model, tokenizer, task.train[:200])
    if right < 0.9:
        raise ModelError(f"the tiny base did not learn to work problems out in {done} steps ({right:.0%} right): try "
                         "another --seed or more --warmup-steps")
    return right, done


def tiny_base(args, task):
    """The directory of the tiny base model for this task and seed, made on first use and kept in runs/base."""
    recipe = "".join(map(inspect.getsource, (warm_up, demonstrate, demonstration_batch, Config.tiny)))
    recipe += f"{SYMBOLS[task.name]} {PHASES} {args.warmup_steps} {args.seed} {task.train[0]}"
    version = hashlib.sha256(recipe.encode()).hexdigest()[:8]
    directory = Path(args.runs, "base", f"{task.name}-seed{args.seed}-{version}")
    if not directory.exists():
        tokenizer = symbol_tokenizer(SYMBOLS[task.name])
        config = Config.tiny(tokenizer.num_tokens, eos_token_id=0)
        model = Qwen3(config).init_weights(torch.Generator().manual_seed(args.seed))
        if args.warmup_steps:
            print(f"making the tiny base model for seed {args.seed}, once, in {directory}", flush=True)
            start = time.perf_counter()
            right, steps = warm_up(model, tokenizer, task, args.warmup_steps, args.seed)
            print(f"tiny base: warmed up in {time.perf_counter() - start:.0f} s, {steps} steps until it could work "
                  f"problems out ({right:.0%} right when it does)")
        save(model, tokenizer, directory)
    return directory


# ---- 3. Optimiser ----------------------------------------------------------------------------------------------------

class Optimizer:
    """AdamW (arXiv 1711.05101) on fp32 weights, whatever precision the model computes in.

    At lr 1e-6 an Adam step changes a weight by about 1e-6, and bf16 keeps 8 bits: added to a bf16 weight of 0.02, 98 %
    of such steps round to nothing. So each bf16 weight is stored with the 16 bits that it lacks: the two are an fp32
    number, exactly, and that takes the step. Gradients of micro-batches are summed in fp32 too.

    Bytes for each parameter in bf16: weight 2, lacking bits 2, Adam's moments 4 + 4, gradient 4 during the update.
    Of a sharded model (section 8) each process updates its part, in fp32.
    """

    def __init__(self, model, args):
        self.args, self.updates = args, 0
        self.params = dict(model.named_parameters())
        self.rest, self.m, self.v = {}, {}, {}
        for name, param in self.params.items():
            self.rest[name] = None
            if param.dtype != torch.float32:
                param.grad_dtype = torch.float32
                self.rest[name] = torch.zeros_like(param, dtype=torch.int16)
            self.m[name], self.v[name] = (torch.zeros_like(param, dtype=torch.float32) for _ in range(2))

    def learning_rate(self, step):
        """Linear warm-up over --lr-warmup steps, then a cosine down to --lr-final of --lr at the last step."""
        warmup, final = self.args.lr_warmup, self.args.lr_final
        if step <= warmup:
            return self.args.lr * step / warmup
        progress = (step - warmup) / max(1, self.args.steps - warmup)
        return self.args.lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))

    def clip(self):
        """Clip the gradient -> its norm before."""
        norm = torch.nn.utils.clip_grad_norm_(self.params.values(), self.args.max_grad_norm)
        return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()

    def discard(self):
        for param in self.params.values():
            param.grad = None

    @torch.no_grad()
    def step(self, step):
        self.updates += 1
        for name, param in self.params.items():
            tensors = [param.data, param.grad, self.m[name], self.v[name], self.rest[name]]
            # In slices, so that temporary fp32 copies of an embedding of 151,936 rows stay small.
            slices = [local(tensor).view(-1).split(2**24) for tensor in tensors if tensor is not None]
            for weight, grad, m, v, *rest in zip(*slices):
                master = join_fp32(weight, *rest) if rest else weight
                adamw_step(master, grad, m, v, self.updates, self.learning_rate(step))
                if rest:
                    split_fp32(master, weight, *rest)
        self.discard()

    def state(self):
        """What a checkpoint holds. The tensors are the optimiser's own, but for bf16 weights, joined to fp32."""
        weights = {name: param.data if self.rest[name] is None else join_fp32(param.data, self.rest[name]).cpu()
                   for name, param in self.params.items()}
        return {"weights": weights, "m": self.m, "v": self.v}

    @torch.no_grad()
    def load_state(self, state, updates):
        """Take over a state() into which a checkpoint was read."""
        self.updates = updates
        for name, param in self.params.items():
            if self.rest[name] is not None:
                split_fp32(state["weights"][name].to(param.device), param.data, self.rest[name])


def adamw_step(weight, grad, m, v, t, lr, beta1=0.9, beta2=0.95, eps=1e-8):
    """Step t, in place: m and v follow the means of g and g^2, and w -= lr m' / (sqrt(v') + eps), where m' and v' are
    m and v corrected for their start at 0. No weight decay. Bit for bit what torch.optim.AdamW computes."""
    m.lerp_(grad, 1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    denominator = (v.sqrt() / (1 - beta2 ** t) ** 0.5).add_(eps)
    weight.addcdiv_(m, denominator, value=-lr / (1 - beta1 ** t))


def split_fp32(master, weight, rest):
    """Write an fp32 tensor as bf16, rounded to nearest, and an int16 rest, so that read as integers fp32 is
    2^16 * bf16 + rest."""
    bits = master.view(torch.int32)
    high = (bits + 2**15) >> 16
    weight.view(torch.int16).copy_(high)
    rest.copy_(bits - (high << 16))


def join_fp32(weight, rest):
    return ((weight.view(torch.int16).int() << 16) + rest).view(torch.float32)


# ---- 4. Checkpoints --------------------------------------------------------------------------------------------------
# No random state is saved: random numbers are functions of (seed, step, row), so weights, Adam's moments, the step and
# what is known of the problems say all. A resumed run equals an uninterrupted one bit for bit (on the same machine and
# number of threads and processes; on other numbers up to rounding). torch.distributed.checkpoint writes a file for each
# process and reads it back into any number of them. It unpickles what it reads: resume only what you trust.

KEEP = 2                    # checkpoints of a run
warnings.filterwarnings("ignore", "torch.distributed is disabled")         # it warns of every run with one process


def save_checkpoint(run, step, optimizer, picker):
    """Write under another name, flush to disk, rename: a crash at any moment leaves the last good one."""
    folder = run / "checkpoints"
    path, partial = folder / f"step_{step:06d}", folder / "partial"
    progress = {"step": step, "updates": optimizer.updates, "problems": picker.state}

    def commit():
        with open(partial / "progress.json", "w") as file:
            json.dump(progress, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(path, ignore_errors=True)         # one of the same step, which could not be read
        partial.rename(path)
        for old in sorted(folder.glob("step_*"))[:-KEEP]:
            shutil.rmtree(old)
    try:
        first(shutil.rmtree, partial, ignore_errors=True)
        dcp.save(optimizer.state(), checkpoint_id=partial, no_dist=not dist.is_initialized())
        first(commit)
    except (Exception, dcp.api.CheckpointException) as error:          # a full disk has many names
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(f"{path}: cannot write the checkpoint ({reason_of(error)}). Free some space, then continue "
                         f"with --resume --name {run.name}") from error


def load_checkpoint(run, optimizer, picker):
    """Restore the newest checkpoint that can be read -> its step, 0 if there is none. Raises ModelError if there are
    some but none can be used: starting over would throw away what they and the logs hold."""
    paths = first(lambda: sorted(run.glob("checkpoints/step_*"), reverse=True))
    for path in paths:
        try:
            progress = first(lambda path=path: json.loads((path / "progress.json").read_text()))
            state = optimizer.state()
            dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
        except (Exception, dcp.api.CheckpointException) as error:      # cut short, damaged, or of another model
            print(f"{path}: cannot be used ({type(error).__name__}: {reason_of(error)}); trying the one before")
            continue
        optimizer.load_state(state, progress["updates"])
        visits = {int(index): means for index, means in progress["problems"]["visits"].items()}     # JSON has no ints
        picker.state = {**progress["problems"], "visits": visits}
        return progress["step"]
    if paths:
        raise ModelError(f"{run / 'checkpoints'}: no checkpoint can be used; start a new run with another --name")
    return 0


def reason_of(error):
    """What a process says went wrong; torch.distributed.checkpoint reports it for each of them."""
    failures = getattr(error, "failures", {})
    error = next(iter(failures.values()))[0] if failures else error
    return str(error).strip()[:150]


def newest_run(runs):
    found = sorted(Path(runs).glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


# ---- 5. Log ----------------------------------------------------------------------------------------------------------

COLUMNS = (f"{'step':>5} {'reward':>7} {'acc':>5} {'solved/mixed/hopeless':>22} {'length':>7} {'cut':>5} "
           f"{'entropy':>8} {'grad':>6} {'mismatch':>8} {'lr':>8} {'tok/s':>7} {'sec':>6}   held-out: greedy, sampled")


def print_row(row):
    line = f"{row['step']:5d} {row['reward']:7.3f} {row['accuracy']:5.2f} "
    if row["step"]:
        line += (f"{row['solved']:12.2f} {row['mixed']:4.2f} {row['hopeless']:4.2f} {row['completion_length']:7.1f} "
                 f"{row['truncated']:5.2f} {row['entropy']:8.3f} {row['grad_norm']:6.2f} {row['mismatch']:8.1e} "
                 f"{row['lr']:8.1e} {row['tokens_per_second']:7.0f} {row['seconds']:6.1f}")
    else:
        line += f"{'':22} {row['completion_length']:7.1f} {row['truncated']:5.2f}" + " " * 49
    if "eval_accuracy" in row:
        line += f"   {row['eval_accuracy']:.3f}, {row['eval_sampled_accuracy']:.3f}"
    tqdm.write(line)


def append_jsonl(path, *rows):
    if processes()[0]:                                  # all processes hold the same rows; the first writes them
        return
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def cut_logs(run, step):
    """Forget what was logged after the checkpoint that is resumed; without one, everything."""
    def keep(line):
        try:
            return step > 0 and json.loads(line)["step"] <= step
        except ValueError:                              # the process was killed while it wrote this line
            return False
    for path in (run / "metrics.jsonl", run / "samples.jsonl"):
        if path.exists():
            kept = filter(keep, path.read_text(encoding="utf-8").split("\n"))      # splitlines() splits at U+2028 too
            partial = path.with_suffix(".partial")
            partial.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            partial.replace(path)


def batch_metrics(rewards, parts, rollouts):
    """What a batch of completions was worth: rewards (P, G), parts of B rows -> means and shares.

    A group with unequal rewards is mixed; of the others, which teach nothing, those that are right are solved.
    """
    right = right_answers(parts, len(rewards))
    mixed = rewards.amax(1) > rewards.amin(1)
    names = sorted({name for part in parts for name in part} - {"accuracy"})
    return {"reward": rewards.mean().item(), "accuracy": right.mean().item(),
            "completion_length": rollouts.lengths.float().mean().item(),
            "finished_length": rollouts.lengths[rollouts.finished].float().mean().nan_to_num().item(),
            **{name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names},
            "mixed": mixed.float().mean().item(),
            "solved": (~mixed & (right.mean(1) > 0.5)).float().mean().item(),
            "hopeless": (~mixed & (right.mean(1) <= 0.5)).float().mean().item()}


def canary(rows):
    """Has what is rewarded come apart from what is wanted? -> a warning or None; rows: the log so far.

    At every evaluation the mean training reward since the one before is compared with that of the best evaluation so
    far, step 0 among them: if the reward is no lower but the held-out accuracy is, with intervals that do not touch,
    the policy is being paid for something else (seed chapter 15: the alarm against reward hacking).
    """
    points, rewards = [], []
    for row in rows:
        rewards.append(row["reward"])
        if "eval_accuracy" in row:
            points.append((sum(rewards) / len(rewards), row))
            rewards = []
    if len(points) < 2:
        return None
    (now, last), (then, best) = points[-1], max(points[:-1], key=lambda point: point[1]["eval_sampled_accuracy"])
    if now < then or last["eval_sampled_high"] >= best["eval_sampled_low"]:
        return None
    return (f"warning: the training reward went from {then:.3f} (step {best['step']}) to {now:.3f}, but held-out "
            f"accuracy from {best['eval_sampled_accuracy']:.3f} to {last['eval_sampled_accuracy']:.3f}: read "
            "samples.jsonl for a hack")


def read_metrics(run):
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line] if path.exists() else []


# ---- 6. Preflight ----------------------------------------------------------------------------------------------------
# What goes wrong most often goes wrong at once: memory, a prompt the model does not understand, a verifier that never
# pays, completions that never end. So all of it is tried before step 1, and nothing of it is felt afterwards: no
# update is made and no random state used.

class PreflightError(Exception):
    """The run would fail or learn nothing: the message says why and what to do."""


def preflight(model, tokenizer, task, args, optimizer):
    """Sample a batch and show what it earns, run the largest possible micro-batch, compare memory with what there is.

    Raises PreflightError if memory will not do, and, if 64 completions or more say so (fewer prove little, and then it
    only warns), when the verifier fails, when nearly all is cut off and when no group has mixed rewards.
    """
    longest = max(task.train, key=lambda problem: len(problem["problem"]))
    prompt = len(tokenizer.encode_prompt(task.prompt(longest)))
    width = prompt + args.max_new_tokens
    rows = min(-(-args.prompts_per_step * args.num_samples // processes()[1]), max(1, args.micro_batch_tokens // width))
    needed, there = memory_estimate(model, args, rows, width), memory_of(args.device)
    remedy = "less --micro-batch-tokens, --cache-tokens, --num-samples or --max-new-tokens, or a smaller model"
    if anywhere(there and needed > there):
        raise PreflightError(f"{args.device} has {there / 1e9:.1f} GB, about {needed / 1e9:.1f} are needed: {remedy}")
    clock, records = Clock(), []
    try:
        for step in (1, 2, 3):                          # one batch will do, unless it teaches nothing: then ask again
            problems = Picker(task.train, args).pick(step)
            records += evaluate_shared(model, tokenizer, task, problems, args, args.num_samples, args.temperature,
                                       seed=-1 - step, label="preflight")[1]
            if mixed_groups(records, args.num_samples):
                break
        clock.lap("sample")
        ids, ones = torch.zeros(rows, width, dtype=torch.long, device=args.device), torch.ones(rows, device=args.device)
        largest = Rollouts(ids, (ones * prompt).long(), (ones * args.max_new_tokens).long(), ones.bool(),
                           ids[:, 1:].float(), rows)
        for param in model.parameters():                # as if other micro-batches had gone before
            param.grad = torch.zeros_like(param, dtype=torch.float32)
        update_gradients(model, largest, ones[None], args.temperature, args.loss_norm, args.max_new_tokens,
                         args.micro_batch_tokens)
        optimizer.discard()
        clock.lap("update")
    except torch.OutOfMemoryError as error:
        raise PreflightError(f"out of memory ({str(error)[:200]}): {remedy}") from error
    audit(tokenizer, task, records, args)
    tokens = sum(len(tokenizer.encode_prompt(task.prompt(r))) + r["length"] for r in records)
    print(f"preflight: a step takes about {clock.laps['sample'] / step:.1f} s to sample and judge and "
          f"{clock.laps['update'] * tokens / step / (rows * width):.1f} s to update; memory {needed / 1e9:.1f} GB "
          f"estimated, {memory_used(args.device) / 1e9:.1f} measured with a micro-batch of {rows} x {width} tokens"
          + (f", {there / 1e9:.1f} there" if there else ""))


def mixed_groups(records, G):
    return sum(len({r["reward"] for r in records[i:i + G]}) > 1 for i in range(0, len(records), G))


def audit(tokenizer, task, records, args):
    """Show what a batch of completions earns, and stop if there is nothing to learn from it."""
    G, n, mixed = args.num_samples, len(records), mixed_groups(records, args.num_samples)
    right, cut, failed = (sum(r[key] for r in records) / n for key in ("accuracy", "truncated", "failed"))
    print(f"preflight: of {n} completions {right:.0%} are right and {cut:.0%} cut off; rewards differ within {mixed} "
          f"of {n // G} groups. For example:")
    for i in range(0, n, G)[:1 if args.model == "tiny" else 3]:
        r = max(records[i:i + G], key=lambda r: r["reward"])
        prompt = tokenizer.decode(tokenizer.encode_prompt(task.prompt(r)), skip_special_tokens=False)
        print(f"    {prompt[-100:]!r} -> {r['completion'][-100:]!r}: boxed "
              f"{verifiers.extract_boxed_answer(r['completion'])}, truth {r['answer'][:60]}, "
              f"{'cut off' if r['truncated'] else 'ended by itself'}, reward {r['reward']:.2f}")
    if failed > 0.5:
        trouble = f"the verifier fails on {failed:.0%} of the completions (its errors are in the warnings above)"
    elif cut >= 0.9:
        trouble = (f"{cut:.0%} of the completions are cut off at {args.max_new_tokens} tokens and earn nothing: try "
                   "more --max-new-tokens, or the --template this model was trained with")
    elif not mixed:
        trouble = "in every group all rewards are equal, so there is nothing to learn: try " + (
            "a harder task" if right > 0.5 else
            "an easier task, a stronger model, more --num-samples or another --template")
    else:
        return
    if n >= 64:
        raise PreflightError(trouble)
    print(f"preflight: warning: {trouble} ({n} completions prove little, so the run goes on)")


def memory_estimate(model, args, rows, width, world=None):
    """Bytes of a process at the worst moment, roughly: what sampling holds or what the largest micro-batch holds.

    Of `world` processes (default: those there are) each samples its share. With --fsdp weights, moments and gradients
    are shared too, but sampling holds the whole model in the dtype of the computation, and an update the largest piece
    of it: the embedding and a block.
    """
    c, V, world = model.config, model.config.num_tokens, world or processes()[1]
    n, size = sum(p.numel() for p in model.parameters()), getattr(torch, args.dtype).itemsize
    tokens, parts = rows * width, world if args.fsdp else 1
    asked = -(-max(args.prompts_per_step * args.num_samples, args.eval_problems) // world)
    sampled = min(asked, max(1, args.cache_tokens // width))
    cache = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * size * sampled * width
    block = 5 * c.hidden_size + 4 * c.intermediate_size + c.head_dim * (5 * c.num_attention_heads
                                                                        + 5 * c.num_key_value_heads)
    kept = block + c.hidden_size * c.num_hidden_layers if args.activation_checkpointing else block * c.num_hidden_layers
    sampling = cache + sampled * V * (size + 16)                              # logits and four fp32 tensors like them
    embedding = (2 * size + 4) * c.vocab_size * c.hidden_size                  # its gradient, twice, and cast to fp32
    update = 4 * n / parts + embedding + tokens * kept * size + min(CHUNK_ELEMENTS, tokens * V) * (size + 16)
    if args.compile and args.device == "cuda":
        update += cache                                                        # is kept, see Qwen3.new_cache
    if args.fsdp:
        sampling += size * n
        update += size * (c.vocab_size * c.hidden_size + 2 * n / c.num_hidden_layers)   # the next block comes early
    return (0 if args.cpu_offload else 12 * n / parts) + max(sampling, update)      # 12 n: weights and moments


def memory_of(device):
    """Bytes of memory for this process, None if unknown."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    if device == "mps":
        return torch.mps.recommended_max_memory()
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def memory_used(device):
    """The most bytes that were in use so far: tensors on a GPU, the whole process on a CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if device == "mps":
        return torch.mps.driver_allocated_memory()
    import resource                                                                # not on Windows
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---- 7. The loop -----------------------------------------------------------------------------------------------------

class Picker:
    """Which problems a step sees. "all" is a walk through a new random order of them in every epoch. The other choices
    (seed chapter 15, difficulty-aware shaping) remember the mean rewards of the last visits to each problem:

    filter      the same walk past problems with a mean above 0.95 or below 0.05 over the last LAST visits. Each time
                one is passed by, its oldest visit is forgotten, so it is tried again: the policy has changed
    stratified  a third each of hard (mean below 1/3), easy (above 2/3) and other or unknown ones, as far as there are
    curriculum  means near a target are likelier, which slides from 0.8 to 0.4: first easy problems, then harder ones
    """

    LAST = 3

    def __init__(self, problems, args):
        self.problems, self.args = problems, args
        self.state = {"next": 0, "visits": {}}           # the next place of the walk; problem -> last mean rewards

    def pick(self, step, attempt=0):
        """The problems of a step; attempt: of how many-th try, with --dynamic-sampling."""
        count, rng = self.args.prompts_per_step, random.Random(f"pick {self.args.seed} {step} {attempt}")
        if self.args.pick == "filter":
            indices = self.walk(count)
        elif self.args.pick == "stratified":
            indices = self.strata(count, rng)
        elif self.args.pick == "curriculum":
            target = 0.8 - 0.4 * step / self.args.steps
            keys = [rng.random() ** math.exp(((self.mean(i) - target) / 0.2) ** 2) for i in range(len(self.problems))]
            indices = sorted(range(len(keys)), key=keys.__getitem__)[-count:]      # weighted, without replacement
        else:
            indices = [self.place(i, attempt) for i in range((step - 1) * count, step * count)]
        self.indices = indices
        return [self.problems[i] for i in indices]

    def place(self, i, attempt=0):
        epoch, place = divmod(i, len(self.problems))
        seed = f"{self.args.seed} {attempt}" if attempt else self.args.seed
        return _epoch_order(len(self.problems), epoch, seed)[place]

    def walk(self, count):
        chosen, visits = [], self.state["visits"]
        while len(chosen) < count:
            index, self.state["next"] = self.place(self.state["next"]), self.state["next"] + 1
            last = visits.get(index, [])
            if len(last) == self.LAST and not 0.05 <= self.mean(index) <= 0.95:
                visits[index] = last[1:]
            else:
                chosen.append(index)
        return chosen

    def strata(self, count, rng):
        bins = [[], [], []]
        for index in rng.sample(range(len(self.problems)), len(self.problems)):
            bins[min(2, int(3 * self.mean(index)))].append(index)
        turns = [bin[turn] for turn in range(max(map(len, bins))) for bin in bins if turn < len(bin)]
        return turns[:count]

    def mean(self, index):
        last = self.state["visits"].get(index)
        return sum(last) / len(last) if last else 0.5

    def update(self, accuracies):
        """What the picked problems were worth: the share of right completions of each."""
        for index, accuracy in zip(self.indices, accuracies if self.args.pick != "all" else ()):
            self.state["visits"][index] = [*self.state["visits"].get(index, []), accuracy][-self.LAST:]


@functools.lru_cache(maxsize=4)
def _epoch_order(n, epoch, seed):
    return random.Random(f"order {seed} {epoch}").sample(range(n), n)


def evaluate_both(model, tokenizer, task, args):
    """Greedy and sampled accuracy on held-out problems -> the columns of the log."""
    problems, columns = task.test[:args.eval_problems], {}
    for label, prefix, temperature in (("greedy", "eval_", 0.0), ("sampled", "eval_sampled_", args.temperature)):
        summary, _ = evaluate_shared(model, tokenizer, task, problems, args, 1, temperature, seed=-1,
                                     label=f"evaluating, {label}")
        columns |= {prefix + key: value for key, value in summary.items()}
    return columns


def evaluate_shared(model, tokenizer, task, problems, args, num_samples, temperature, seed, label):
    """evaluate, shared out among the processes by problems -> (summary, records) of all of them."""
    mine, records = share(range(len(problems))), []
    with whole(model):
        if mine:                                                        # there may be more processes than problems
            records = evaluate(model, tokenizer, task, problems[mine.start:mine.stop], num_samples, temperature,
                               args.max_new_tokens, seed, cache_tokens=args.cache_tokens, label=label,
                               compiled=args.compile, rows=range(mine.start * num_samples, mine.stop * num_samples))[1]
    records = gather(records)
    return summarise(records, num_samples), records


def roll_out(model, tokenizer, task, problems, args, first_row, label):
    """G completions of each problem, judged -> (rollouts, texts, rewards (P, G), parts). Each process samples its share
    of the problems, and gets what came of all of them."""
    mine, G = share(range(len(problems))), args.num_samples
    problems = problems[mine.start:mine.stop]
    prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
    rows = range(first_row + mine.start * G, first_row + mine.stop * G)
    with whole(model), verifying(tokenizer.decode, task, problems, G, label) as (on_finished, verdicts):
        rollouts = sample(model, prompts, G, args.max_new_tokens, args.temperature,
                          uniforms=row_uniforms(rows, args.max_new_tokens, args.seed), cache_tokens=args.cache_tokens,
                          on_finished=on_finished, compiled=args.compile)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    rewards, parts = score(rollouts, texts, problems, task.reward, verdicts)
    if processes()[1] == 1:
        return rollouts, texts, rewards, parts
    rollouts, texts, rewards, parts = zip(*gather([(rollouts.to("cpu"), texts, rewards, parts)]))
    return join(rollouts).to(args.device), sum(texts, []), torch.cat(rewards), sum(parts, [])


def collect(model, tokenizer, task, picker, args, step):
    """The completions of a step -> (problems, rollouts, texts, rewards (P', G), parts, the groups to train on).

    P' is P, and all are trained on. With --dynamic-sampling N other problems are tried until P groups have unequal
    rewards, at most N times more (DAPO, 2503.14476, 3.2); all that was sampled is logged, P groups are trained on.
    """
    P, rounds = args.prompts_per_step, []
    for attempt in range(1 + args.dynamic_sampling):
        problems = picker.pick(step, attempt)
        first_row = (step + attempt * 10_000_000) * P * args.num_samples
        rounds.append((problems, *roll_out(model, tokenizer, task, problems, args, first_row, f"step {step}")))
        picker.update([group.mean().item() for group in right_answers(rounds[-1][4], P)])
        rewards = torch.cat([r[3] for r in rounds])                                                           # (P', G)
        mixed = (rewards.amax(1) > rewards.amin(1)).tolist()
        if sum(mixed) >= P:
            break
    problems, rollouts, texts, _, parts = zip(*rounds)
    groups = sorted(range(len(mixed)), key=lambda i: not mixed[i])[:P] if len(rounds) > 1 else list(range(len(mixed)))
    rollouts = join(rollouts) if len(rounds) > 1 else rollouts[0]
    return sum(problems, []), rollouts, sum(texts, []), rewards, sum(parts, []), groups


def right_answers(parts, groups):
    """Parts of B rows -> (groups, B / groups), 1.0 where the completion is right and was not cut off."""
    return torch.tensor([part["accuracy"] * (1 - part["truncated"]) for part in parts]).view(groups, -1)


def advantages_of(rewards, parts, rollouts, args):
    """The choices of --truncated and --advantage-scale: rewards (P, G) -> advantages (P, G)."""
    finished = rollouts.finished.view_as(rewards).to(rewards.device)
    if args.truncated == "soft":
        rewards = soften_cuts(rewards, rollouts, args.max_new_tokens)
    if args.advantage_scale == "gdpo":
        names = [name for name in ("accuracy", "format") if name in parts[0]]
        terms = torch.tensor([[part[name] for part in parts] for name in names]).view(-1, *rewards.shape) * finished
        advantages = decoupled_advantages(terms)
    else:
        advantages = group_advantages(rewards, args.advantage_scale)
    return advantages * finished if args.truncated == "mask" else advantages


def update(model, reference, optimizer, rollouts, advantages, args, step):
    """--updates-per-batch steps of the optimiser on the same completions -> statistics, those of the first update
    except clipped, which is the mean of all."""
    split = dict(zip(("rank", "world"), processes()), add_up=add_up)

    def logprobs(of):
        logp = batch_logprobs(of, rollouts, args.temperature, args.micro_batch_tokens, **split)
        for module in sharded(of):                      # without a backward pass the root would stay whole
            module.reshard()
        return logp
    ref_logp = logprobs(reference) if reference is not None else None
    old_logp = logprobs(model) if args.updates_per_batch > 1 else None
    history = []
    for _ in range(args.updates_per_batch):
        stats = update_gradients(model, rollouts, advantages, args.temperature, args.loss_norm, args.max_new_tokens,
                                 args.micro_batch_tokens, old_logp, args.clip, args.loss, ref_logp, args.kl_coef,
                                 args.kl_estimator, **split)
        add_up_gradients(model)
        anything = stats["trained"] > 0 or args.kl_coef > 0
        stats["grad_norm"] = optimizer.clip() if anything else 0.0
        if not math.isfinite(stats["loss"] + stats["grad_norm"]):
            raise NonFinite(step, stats["loss"], stats["grad_norm"], rollouts, advantages)
        if anything:                            # without any signal Adam's momentum must not move the weights either
            optimizer.step(step)
        history.append(stats)
    return {**history[0], "clipped": sum(stats["clipped"] for stats in history) / len(history)}


def train_rlvr(model, tokenizer, task, args, optimizer, picker, run, stop, start=0, reference=None):
    """The training loop, from update start + 1 to args.steps. Writes to the folder `run`; trains `model` in place.

    stop: a StopSignal; when it is requested the step is finished and saved, and KeyboardInterrupt(step) is raised.
    Raises NonFinite before a loss or gradient that is not a number can reach the weights, and Drifted for --kl-cap.
    """
    best = max((row["eval_sampled_accuracy"] for row in first(read_metrics, run) if row["step"] and "eval_accuracy"
                in row), default=-1)
    for step in range(start + 1, args.steps + 1):
        clock = Clock()
        if hasattr(task.reward, "step"):        # a curriculum; set anew at every step, so a resumed run is in its phase
            task.reward.step = step
        problems, rollouts, texts, rewards, parts, groups = collect(model, tokenizer, task, picker, args, step)
        clock.lap("sample_seconds")

        advantages = advantages_of(rewards, parts, rollouts, args)                                             # (P', G)
        batch = rollouts if len(groups) == len(rewards) else rollouts.take(groups)
        stats = update(model, reference, optimizer, batch, advantages[groups], args, step)
        clock.lap("update_seconds")

        row = {"step": step, **batch_metrics(rewards, parts, rollouts), **stats, "lr": optimizer.learning_rate(step)}
        if step % args.eval_every == 0 or step == args.steps:
            row |= evaluate_both(model, tokenizer, task, args)
            if row["eval_sampled_accuracy"] > best:         # the last model is not always the best
                best = row["eval_sampled_accuracy"]
                export(model, tokenizer, run / "best", args)
            clock.lap("eval_seconds")
        row |= clock.laps | {"seconds": clock.total(), "tokens_per_second":
                             rollouts.lengths.sum().item() / clock.laps["sample_seconds"]}
        print_row(row)
        append_jsonl(run / "metrics.jsonl", row)
        append_jsonl(run / "samples.jsonl", *sample_rows(step, problems, texts, rewards, advantages, rollouts, parts,
                                                         tokenizer))
        if "eval_accuracy" in row and (warning := first(lambda: canary(read_metrics(run)))):
            tqdm.write(warning)
        stopping = anywhere(stop.requested)
        if step % args.save_every == 0 or step == args.steps or stopping:
            save_checkpoint(run, step, optimizer, picker)
        if args.kl_cap and stats["kl"] * row["completion_length"] > args.kl_cap:
            raise Drifted(step, stats["kl"] * row["completion_length"])
        if stopping:
            raise KeyboardInterrupt(step)


def sample_rows(step, problems, texts, rewards, advantages, rollouts, parts, tokenizer):
    """One object per completion, for samples.jsonl. likely, unlikely: the three tokens of highest and of lowest
    probability as [text, probability]."""
    G, inside = rollouts.num_samples, rollouts.mask > 0
    low, high = (rollouts.logp.masked_fill(~inside, fill).topk(min(3, inside.size(1)), largest=fill < 0)
                 for fill in (math.inf, -math.inf))

    def tokens(top, row):
        return [[tokenizer.decode([rollouts.ids[row, place + 1]], skip_special_tokens=False), round(math.exp(logp), 4)]
                for logp, place in zip(top.values[row].tolist(), top.indices[row].tolist()) if inside[row, place]]
    columns = zip(texts, rewards.flatten().tolist(), advantages.flatten().tolist(), rollouts.lengths.tolist(),
                  rollouts.finished.tolist(), parts)
    return [{"step": step, "problem": problems[i // G]["problem"], "answer": problems[i // G]["answer"],
             "completion": text, "reward": reward, "advantage": advantage, "length": length, "finished": finished,
             "parts": part, "likely": tokens(high, i), "unlikely": tokens(low, i)}
            for i, (text, reward, advantage, length, finished, part) in enumerate(columns)]


class Drifted(Exception):
    """The policy is further from its start than --kl-cap allows: (step, KL in nats per completion)."""


class NonFinite(Exception):
    """The loss or the gradient of a step is not a number: (step, loss, grad_norm, rollouts, advantages)."""


class StopSignal:
    """Ctrl-C (or SIGTERM) asks for a stop after the running step; a second Ctrl-C stops at once."""

    def __enter__(self):
        self.requested, self.since = False, 0.0
        self.before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _on_signal(self, number, frame):
        # torchrun passes on to its processes the Ctrl-C that they have seen themselves: within a second it is the same.
        if self.requested and time.monotonic() - self.since > (1 if dist.is_initialized() else 0):
            raise KeyboardInterrupt
        self.requested, self.since = True, self.since or time.monotonic()
        tqdm.write("stopping after this step; press Ctrl-C again to stop at once")


class Clock:
    """Seconds by phase."""

    def __init__(self):
        self.start = self.last = time.perf_counter()
        self.laps = {}

    def lap(self, name):
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now

    def total(self):
        return time.perf_counter() - self.start


# ---- 8. Many GPUs (skip it when you have one) ------------------------------------------------------------------------
# torchrun starts N processes of this script. Sampling and evaluation are shared out by problems, and what came of them
# is gathered: every process holds the whole batch and decides everything alike (rewards, advantages, which groups to
# keep, when to stop), so sections 1 to 7 ask which process they are in only to share work out and to write files once.
# The update is shared out by micro-batches of the whole batch, with weights of the whole batch; the gradients add up to
# that of one process.
#
# No process can wait for one that does something else:
#   - the weights of a sharded model are brought together once before sampling (whole), so the token loop has no
#     collective and processes may sample for different times;
#   - all make equally many forward and backward passes (rlvr.microbatches fills up with weight 0);
#   - token counts, "is there any signal", what is not finite and "stop now" are sums or decisions over all;
#   - a verifier's error is caught where it happens (rlvr.score).

def first(function, *args, **kwargs):
    """What the first process's call returns, or raises, in every process. For files, and for choices like a name."""
    if not dist.is_initialized():
        return function(*args, **kwargs)
    box = [None, None]
    if dist.get_rank() == 0:
        try:
            box = [function(*args, **kwargs), None]
        except (Exception, SystemExit) as error:
            box = [None, error]
    dist.broadcast_object_list(box)
    if box[1] is not None:
        raise box[1]
    return box[0]


def anywhere(flag):
    """Whether the flag is up in any process."""
    return any(gather([bool(flag)]))


def add_up(tensor):
    """Sum a tensor over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def add_up_gradients(model):
    """Replicas: every process gets the sum of all gradients. Sharded gradients were summed on the way back."""
    for param in model.parameters():
        if param.grad is not None and not isinstance(param.grad, DTensor):
            add_up(param.grad)


def shard(model, args):
    """Shard a model that has no weights yet (FSDP2, arXiv 2304.11277): each block, and the rest with the tied embedding
    as the root. Weights are kept in fp32, gathered and used in args.dtype; gradients are summed, not averaged, in fp32.
    Returns a function that cuts a process's part out of a whole weight, see model.load."""
    mesh = init_device_mesh(args.device, (dist.get_world_size(),))
    # A KV cache that is cast would be a copy, and what is written to it lost.
    precision = MixedPrecisionPolicy(param_dtype=getattr(torch, args.dtype), reduce_dtype=torch.float32,
                                     cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=args.device == "cuda") if args.cpu_offload else OffloadPolicy()
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload)
    for module in sharded(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)                   # gloo has no other
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")      # none is changed in place
    return lambda tensor, param: distribute_tensor(tensor, mesh, param.placements, src_data_rank=None)


def sharded(model):
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextlib.contextmanager
def whole(model):
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


def local(tensor):
    """This process's part of a sharded tensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def export(model, tokenizer, directory, args):
    """Write the whole model, gathered tensor by tensor into the first process's host memory."""
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=bool(
        sharded(model)))) if dist.is_initialized() else model.state_dict()
    weights = {name: weight.to(getattr(torch, args.dtype)) for name, weight in weights.items()}
    first(save, model, tokenizer, directory, weights)


def show_pulse():
    """Count in the store of torchrun, for missing_processes, as long as this process lives and is not stopped."""
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()

    def beat():
        with contextlib.suppress(RuntimeError):                         # the store is gone: so is the run
            for count in itertools.count():
                store.set(f"pulse {rank}", str(count))
                time.sleep(0.5)
    threading.Thread(target=beat, daemon=True).start()


def missing_processes(seconds=5):
    """Which processes have ended or were stopped: those without a pulse. If all have one, those that do not answer a
    roll call: they hang in something. Ends all communication, so that whoever waits for this process gets to know."""
    store, (rank, world) = dist.distributed_c10d._get_default_store(), processes()
    store.set(f"here {rank}", "")
    threading.Thread(target=dist.destroy_process_group, daemon=True).start()        # it may hang itself

    def pulses():
        return [store.get(f"pulse {other}") for other in range(world)]
    before = pulses()
    for _ in range(10 * seconds):
        if not (silent := [other for other in range(world) if not store.check([f"here {other}"])]):
            return []
        time.sleep(0.1)
    after = pulses()                                    # who has answered may have left since: that is no missing pulse
    return [other for other in silent if before[other] == after[other]] or silent


# ---- 9. Start and end ------------------------------------------------------------------------------------------------

def load_model(args):
    """The model that the run starts from -> (model, tokenizer)."""
    if args.fsdp:
        return load(args.base, args.device, torch.float32, args.template, shard=lambda model: shard(model, args))
    return load(args.base, args.device, getattr(torch, args.dtype), args.template)


def load_all(args):
    """Load what the flags name -> (model, tokenizer, task)."""
    task = verifiers.get_task(args.task, args.data, args.skip_broken_lines)
    if not task.train:
        raise verifiers.DataError(f"task {args.task} is for evaluation only: train on another one")
    if args.reward:
        task.reward = verifiers.get_reward(args.reward)
    if args.device == "cpu" and args.model == "tiny":
        torch.set_num_threads(1)            # its tensors are so small that more threads mostly wait for each other
    if not args.resume:
        args.base = str(first(tiny_base, args, task)) if args.model == "tiny" else args.model
    if args.train_problems:                     # only now: the tiny base has practised on all of them
        task.train = random.Random(f"train {args.seed}").sample(task.train, min(args.train_problems, len(task.train)))
    model, tokenizer = load_model(args)
    model.checkpoint_blocks = args.activation_checkpointing
    if args.compile:
        try:
            torch.compile(lambda x: 2 * x)(torch.ones(3, device=args.device))
            model.compile_blocks = True
        except Exception as error:                      # no C++ compiler, or no Triton for this GPU
            args.compile = False
            print(f"--compile: torch.compile does not work here ({str(error)[:200]}); going on without")
    return model, tokenizer, task


def write_config(args, run):
    run.mkdir(parents=True, exist_ok=True)
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "git": git_commit()}
    (run / "config.json").write_text(json.dumps({"flags": vars(args), "versions": versions}, indent=2))


def describe(model, tokenizer, task, args):
    print(f"model {args.base}, {sum(p.numel() for p in model.parameters()):,} parameters; on {args.reason}")
    print(f"task {task.name}: {len(task.train)} problems to train on, {len(task.test)} held out ({task.note})")
    if args.data or task.name == "math":
        print(describe_overlap(task))
    clips = args.loss in ("ppo", "gspo") and args.updates_per_batch == 1
    print(f"each step {args.prompts_per_step} problems x {args.num_samples} completions, {args.updates_per_batch} "
          f"update{'s' * (args.updates_per_batch > 1)}{' (so clipping cannot act)' * clips}; first prompt "
          f"({tokenizer.template}):")
    prompt = tokenizer.encode_prompt(task.prompt(Picker(task.train, args).pick(1)[0]))
    print("    " + tokenizer.decode(prompt, skip_special_tokens=False).replace("\n", "\n    "))


def main(argv=None):
    args = parse_args(argv)
    join_processes(args.timeout)
    if dist.is_initialized():
        show_pulse()
    args.name, began = first(lambda: args.name), time.perf_counter()        # it may hold the time of day
    model, tokenizer, task = load_all(args)
    describe(model, tokenizer, task, args)
    run, optimizer, picker = Path(args.runs, args.name), Optimizer(model, args), Picker(task.train, args)
    start = load_checkpoint(run, optimizer, picker)
    if start == 0 or args.preflight:
        preflight(model, tokenizer, task, args, optimizer)
        if args.preflight:
            return
    reference = load_model(args)[0].requires_grad_(False) if args.kl_coef or args.kl_cap else None
    first(write_config, args, run)
    if start > args.steps:
        raise ModelError(f"{run} has already made {start} steps: give --steps a larger number")
    if args.resume:
        first(cut_logs, run, start)
        print(f"continuing {run} after step {start} of {args.steps}")
    print(COLUMNS)
    if start == 0:
        row = {"step": 0, **evaluate_both(model, tokenizer, task, args)}
        row |= {name: row[f"eval_sampled_{key}"] for name, key in (
            ("reward", "reward"), ("accuracy", "accuracy"), ("completion_length", "length"),
            ("truncated", "truncated"))}
        print_row(row)
        append_jsonl(run / "metrics.jsonl", row)
    with StopSignal() as stop:
        try:
            train_rlvr(model, tokenizer, task, args, optimizer, picker, run, stop, start, reference)
        except (KeyboardInterrupt, NonFinite, Drifted, RuntimeError, OSError, ModelError) as error:
            leave(error, args, run, optimizer, picker)
    export(model, tokenizer, run / "final", args)
    before, *_, after = (row for row in first(read_metrics, run) if "eval_accuracy" in row)
    print(f"held-out accuracy {before['eval_accuracy']:.3f} -> {after['eval_accuracy']:.3f} (greedy, "
          f"n={after['eval_n']}) in {time.perf_counter() - began:.0f} s; model in {run / 'final'}")


def leave(error, args, run, optimizer, picker):
    """End a run before its last step: save what can be saved, and say what happened and how to go on."""
    again, (rank, world) = f"Continue with: python train.py --resume --name {args.name}", processes()
    if isinstance(error, KeyboardInterrupt):
        done = f"a checkpoint of step {error.args[0]} is saved" if error.args else "nothing more was saved"
        message = f"stopped; {done}. {again}"
    elif isinstance(error, NonFinite):
        step, loss, grad_norm, rollouts, advantages = error.args
        batch = {"step": step, "rollouts": vars(rollouts), "advantages": advantages}
        first(torch.save, batch, run / "bad_batch.pt")
        save_checkpoint(run, step - 1, optimizer, picker)               # the update was not made: still the last good
        message = (f"error: step {step} has loss {loss} and gradient norm {grad_norm}. The batch is in "
                   f"{run / 'bad_batch.pt'}, the weights before it in {run / 'checkpoints'}. Try a lower --lr")
    elif isinstance(error, Drifted):
        step, kl = error.args
        save_checkpoint(run, step, optimizer, picker)
        message = (f"stopped after step {step}: the KL from the start is {kl:.1f} nats per completion, above --kl-cap "
                   f"{args.kl_cap}. The weights are in {run / 'checkpoints'}")
    elif dist.is_initialized() and (missing := missing_processes()):
        message = (f"error: no answer from process {', '.join(map(str, missing))} of {world}: it has ended or "
                   f"hangs. Saved is the last checkpoint. {again}")
    elif isinstance(error, OSError):                        # a log that could not be written, as on a full disk
        message = f"error: {error}. Saved is the last checkpoint. {again}"
    else:
        raise error
    sys.exit(message if rank == 0 or "no answer" in message else 1)


if __name__ == "__main__":
    try:
        main()
        if dist.is_initialized():
            dist.destroy_process_group()
    except (ModelError, PreflightError, verifiers.DataError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped before the first step: nothing to save yet")
