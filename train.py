"""train.py - the loop, and the practical parts around it.

    python train.py --steps 100                      on a laptop: a tiny model learns arithmetic in a few minutes;
                                                     on a CUDA GPU: Qwen3-0.6B-Base on MATH
    python train.py --model Qwen/Qwen3-1.7B-Base --task gsm8k --name gsm8k-1.7b
    python train.py --resume                         continue the newest run where it stopped

What you will learn here: how the five steps of rlvr.py become a training run. The loop itself is section 6 and fits one
screen; sections 2 to 5 are what it takes to run it in practice (a base model for the laptop, fp32 master weights,
checkpoints, a log), and each can be skipped on a first reading. Left out for now: several GPUs, several updates per
batch, activation checkpointing.
"""

import argparse
import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

import verifiers
from eval import describe_overlap, evaluate, git_commit
from model import Config, ModelError, Qwen3, load, pick_device, save, symbol_tokenizer
from rlvr import group_advantages, row_uniforms, sample, score, update_gradients

# ---- 1. Flags --------------------------------------------------------------------------------------------------------

# Defaults that differ: for tiny by its task, and "text" for every other model, whatever its task.
PRESETS = {
    "arithmetic": dict(prompts_per_step=8, num_samples=16, max_new_tokens=80, lr=4e-4, lr_warmup=0,
                       micro_batch_tokens=16384, eval_every=25, eval_problems=500, save_every=50),
    "one-digit": dict(prompts_per_step=64, num_samples=16, max_new_tokens=4, lr=5e-4, lr_warmup=0,
                      micro_batch_tokens=16384, eval_every=50, eval_problems=100, save_every=200),
    "text": dict(prompts_per_step=8, num_samples=8, max_new_tokens=512, lr=3e-6, lr_warmup=5,
                 micro_batch_tokens=4096, eval_every=50, eval_problems=500, save_every=50),
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
    group = parser.add_argument_group("loss")
    group.add_argument("--advantage-scale", choices=["std", "none"], default="std", help="divide advantages by the "
                       "group's std (GRPO), or not (Dr. GRPO) (default: std)")
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
    group = parser.add_argument_group("run")
    group.add_argument("--steps", type=int, default=100, help="updates in all (default: 100)")
    group.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    group.add_argument("--eval-every", type=int, help=f"steps between evaluations ({preset('eval_every')})")
    group.add_argument("--eval-problems", type=int, help=f"held-out problems each time ({preset('eval_problems')})")
    group.add_argument("--save-every", type=int, help=f"steps between checkpoints ({preset('save_every')})")
    group.add_argument("--runs", default="runs", help="folder of all runs (default: runs)")
    group.add_argument("--name", help="this run's folder in it (default: task, date and time)")
    group.add_argument("--resume", action="store_true", help="continue run --name, or the newest, with its own flags; "
                       "only --steps may be given anew")
    group.add_argument("--device", choices=["cpu", "cuda", "mps"], help="(default: the best the machine has)")
    group.add_argument("--dtype", choices=["float32", "bfloat16"], help="of the computation; the optimiser keeps fp32 "
                       "weights either way (default: bfloat16 on a GPU that has it, else float32)")
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
        return argparse.Namespace(**{**vars(given), **flags, "steps": steps, "name": run.name, "runs": args.runs,
                                     "resume": True})
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
    if args.warmup_steps and (args.model, args.task) != ("tiny", "arithmetic"):
        parser.error("--warmup-steps: there are demonstrations only for --model tiny --task arithmetic")
    if args.warmup_steps is None:
        args.warmup_steps = 500 if args.model == "tiny" and args.task == "arithmetic" else 0
    for name in ("prompts_per_step", "max_new_tokens", "steps", "eval_every", "eval_problems", "save_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if args.num_samples < 2:
        parser.error("--num-samples must be at least 2: an advantage compares the completions of one problem")
    if args.temperature <= 0 or args.lr <= 0:
        parser.error("--temperature and --lr must be above 0")
    args.name = args.name or f"{Path(args.data).stem if args.data else args.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    if Path(args.runs, args.name).exists():
        parser.error(f"{Path(args.runs, args.name)} exists: continue it with --resume, or choose another --name")
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
    """AdamW on fp32 master weights, whatever precision the model computes in.

    At lr 1e-6 an Adam step changes a weight by about 1e-6, and bf16 keeps 8 bits: added to a bf16 weight of 0.02, 98 %
    of such steps round to nothing. So each bf16 parameter has an fp32 master that takes the step and is rounded into
    the model afterwards; gradients of micro-batches are summed in fp32 too. An fp32 model is its own master.
    """

    def __init__(self, model, args):
        self.args = args
        self.names = [name for name, _ in model.named_parameters()]
        self.params = list(model.parameters())
        self.masters = [p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self.params]
        for param, master in zip(self.params, self.masters):
            if param is not master:
                param.register_post_accumulate_grad_hook(self._accumulate_into(master))
        self.adamw = torch.optim.AdamW(self.masters, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)

    @staticmethod
    def _accumulate_into(master):
        def hook(param):
            master.grad = param.grad.float() if master.grad is None else master.grad.add_(param.grad)
            param.grad = None
        return hook

    def learning_rate(self, step):
        """Linear warm-up over --lr-warmup steps, then a cosine down to --lr-final of --lr at the last step."""
        warmup, final = self.args.lr_warmup, self.args.lr_final
        if step <= warmup:
            return self.args.lr * step / warmup
        progress = (step - warmup) / max(1, self.args.steps - warmup)
        return self.args.lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))

    def clip(self):
        """Clip the gradient -> its norm before."""
        return torch.nn.utils.clip_grad_norm_(self.masters, self.args.max_grad_norm).item()

    def step(self, step):
        self.adamw.param_groups[0]["lr"] = self.learning_rate(step)
        self.adamw.step()
        self.adamw.zero_grad()
        self.copy_to_model()

    @torch.no_grad()
    def copy_to_model(self):
        for param, master in zip(self.params, self.masters):
            if param is not master:
                param.copy_(master)

    def state(self):
        return {"weights": dict(zip(self.names, self.masters)), "adamw": self.adamw.state_dict()}

    @torch.no_grad()
    def load_state(self, state):
        for name, master in zip(self.names, self.masters):
            master.copy_(state["weights"][name])
        self.adamw.load_state_dict(state["adamw"])
        self.copy_to_model()


# ---- 4. Checkpoints --------------------------------------------------------------------------------------------------
# No random state is saved: problems and random numbers are functions of (seed, step), so weights, Adam's moments and
# the step say all. A resumed run equals an uninterrupted one bit for bit (on the same machine and number of threads).

KEEP = 2                    # checkpoints of a run


def save_checkpoint(run, step, optimizer):
    """Write under another name, flush to disk, rename: a crash at any moment leaves the last good one."""
    folder = run / "checkpoints"
    folder.mkdir(exist_ok=True)
    path, partial = folder / f"step_{step:06d}.pt", folder / "partial"
    try:
        with open(partial, "wb") as file:
            torch.save({"step": step, **optimizer.state()}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as error:            # torch reports a full disk as RuntimeError
        partial.unlink(missing_ok=True)
        raise ModelError(f"{path}: cannot write the checkpoint ({error}). Free some space, then continue with "
                         f"--resume --name {run.name}") from error
    for old in sorted(folder.glob("step_*.pt"))[:-KEEP]:
        old.unlink()


def load_checkpoint(run, optimizer):
    """Restore the newest checkpoint that can be read -> its step, 0 if there is none. Raises ModelError if there are
    some but none can be used: starting over would throw away what they and the logs hold."""
    paths = sorted(run.glob("checkpoints/step_*.pt"), reverse=True)
    for path in paths:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            optimizer.load_state(state)
            return state["step"]
        except Exception as error:                      # cut short, damaged, or of another model
            print(f"{path}: cannot be used ({type(error).__name__}: {str(error)[:100]}); trying the one before")
    if paths:
        raise ModelError(f"{run / 'checkpoints'}: no checkpoint can be used; start a new run with another --name")
    return 0


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
            kept = filter(keep, path.read_text(encoding="utf-8").splitlines())
            partial = path.with_suffix(".partial")
            partial.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            partial.replace(path)


def batch_metrics(rewards, parts, rollouts):
    """What a batch of completions was worth: rewards (P, G), parts of B rows -> means and shares.

    A group with unequal rewards is mixed; of the others, which teach nothing, those that are right are solved.
    """
    right = torch.tensor([part["accuracy"] * (1 - part["truncated"]) for part in parts]).view_as(rewards)
    mixed = rewards.amax(1) > rewards.amin(1)
    names = sorted({name for part in parts for name in part} - {"accuracy"})
    return {"reward": rewards.mean().item(), "accuracy": right.mean().item(),
            "completion_length": rollouts.lengths.float().mean().item(),
            **{name: sum(part.get(name, 0.0) for part in parts) / len(parts) for name in names},
            "mixed": mixed.float().mean().item(),
            "solved": (~mixed & (right.mean(1) > 0.5)).float().mean().item(),
            "hopeless": (~mixed & (right.mean(1) <= 0.5)).float().mean().item()}


# ---- 6. The loop -----------------------------------------------------------------------------------------------------

def pick_problems(problems, step, count, seed):
    """The `count` problems of a step: a walk through a new random order of all problems in every epoch."""
    chosen = []
    for i in range((step - 1) * count, step * count):
        epoch, place = divmod(i, len(problems))
        chosen.append(problems[_epoch_order(len(problems), epoch, seed)[place]])
    return chosen


@functools.lru_cache(maxsize=2)
def _epoch_order(n, epoch, seed):
    return random.Random(f"order {seed} {epoch}").sample(range(n), n)


def evaluate_both(model, tokenizer, task, args):
    """Greedy and sampled accuracy on held-out problems -> the columns of the log."""
    problems, columns = task.test[:args.eval_problems], {}
    for label, prefix, temperature in (("greedy", "eval_", 0.0), ("sampled", "eval_sampled_", args.temperature)):
        summary, _ = evaluate(model, tokenizer, task, problems, 1, temperature, args.max_new_tokens, seed=-1,
                              progress=f"evaluating, {label}")
        columns |= {prefix + key: value for key, value in summary.items()}
    return columns


def train_rlvr(model, tokenizer, task, args, optimizer, run, stop, start=0):
    """The training loop, from update start + 1 to args.steps. Writes to the folder `run`; trains `model` in place.

    stop: a StopSignal; when it is requested the step is finished and saved, and KeyboardInterrupt(step) is raised.
    Raises NonFinite before a loss or gradient that is not a number can reach the weights.
    """
    B = args.prompts_per_step * args.num_samples
    for step in range(start + 1, args.steps + 1):
        clock = Clock()
        if hasattr(task.reward, "step"):        # a curriculum; set anew at every step, so a resumed run is in its phase
            task.reward.step = step
        problems = pick_problems(task.train, step, args.prompts_per_step, args.seed)
        prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in problems]
        uniforms = row_uniforms(range(step * B, (step + 1) * B), args.max_new_tokens, args.seed)
        with progress_bar(f"step {step}: sampling", B) as on_token:
            rollouts = sample(model, prompts, args.num_samples, args.max_new_tokens, args.temperature,
                              uniforms=uniforms, on_token=on_token)
        clock.lap("sample_seconds")

        texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
        rewards, parts = score(rollouts, texts, problems, task.reward)                                      # (P, G)
        advantages = group_advantages(rewards, args.advantage_scale)                                        # (P, G)
        clock.lap("score_seconds")

        stats = update_gradients(model, rollouts, advantages, args.temperature, args.loss_norm, args.max_new_tokens,
                                 args.micro_batch_tokens)
        grad_norm = optimizer.clip() if stats["trained"] else 0.0
        if not math.isfinite(stats["loss"] + grad_norm):
            raise NonFinite(step, stats["loss"], grad_norm, rollouts, rewards)
        if stats["trained"]:                    # without any signal Adam's momentum must not move the weights either
            optimizer.step(step)
        clock.lap("update_seconds")

        row = {"step": step, **batch_metrics(rewards, parts, rollouts), **stats, "grad_norm": grad_norm,
               "lr": optimizer.learning_rate(step)}
        if step % args.eval_every == 0 or step == args.steps:
            row |= evaluate_both(model, tokenizer, task, args)
            clock.lap("eval_seconds")
        row |= clock.laps | {"seconds": clock.total(), "tokens_per_second":
                             rollouts.lengths.sum().item() / clock.laps["sample_seconds"]}
        print_row(row)
        append_jsonl(run / "metrics.jsonl", row)
        append_jsonl(run / "samples.jsonl", *sample_rows(step, problems, texts, rewards, advantages, rollouts))
        if step % args.save_every == 0 or step == args.steps or stop.requested:
            save_checkpoint(run, step, optimizer)
        if stop.requested:
            raise KeyboardInterrupt(step)


def sample_rows(step, problems, texts, rewards, advantages, rollouts):
    G = rollouts.num_samples
    columns = zip(texts, rewards.flatten().tolist(), advantages.flatten().tolist(), rollouts.lengths.tolist(),
                  rollouts.finished.tolist())
    return [{"step": step, "problem": problems[i // G]["problem"], "answer": problems[i // G]["answer"],
             "completion": text, "reward": reward, "advantage": advantage, "length": length, "finished": finished}
            for i, (text, reward, advantage, length, finished) in enumerate(columns)]


class NonFinite(Exception):
    """The loss or the gradient of a step is not a number: (step, loss, grad_norm, rollouts, rewards)."""


class StopSignal:
    """Ctrl-C (or SIGTERM) asks for a stop after the running step; a second Ctrl-C stops at once."""

    def __enter__(self):
        self.requested = False
        self.before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _on_signal(self, number, frame):
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
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


@contextlib.contextmanager
def progress_bar(label, rows):
    """Rows that have finished, shown only on a terminal and only while it lasts."""
    with tqdm(total=rows, desc=label, unit="row", leave=False, delay=2, disable=None) as bar:
        yield lambda running: bar.update(rows - running - bar.n)


# ---- 7. Start and end ------------------------------------------------------------------------------------------------

def start_run(args):
    """Load what the flags name and write config.json -> (model, tokenizer, task, run folder)."""
    task = verifiers.get_task(args.task, args.data)
    if not task.train:
        raise verifiers.DataError(f"task {args.task} is for evaluation only: train on another one")
    if args.reward:
        task.reward = verifiers.get_reward(args.reward)
    if args.device == "cpu" and args.model == "tiny":
        torch.set_num_threads(1)            # its tensors are so small that more threads mostly wait for each other
    if not args.resume:
        args.base = str(tiny_base(args, task)) if args.model == "tiny" else args.model
    model, tokenizer = load(args.base, args.device, getattr(torch, args.dtype), args.template)
    run = Path(args.runs, args.name)
    run.mkdir(parents=True, exist_ok=True)
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "git": git_commit()}
    (run / "config.json").write_text(json.dumps({"flags": vars(args), "versions": versions}, indent=2))
    return model, tokenizer, task, run


def describe(model, tokenizer, task, args):
    print(f"model {args.base}, {sum(p.numel() for p in model.parameters()):,} parameters; on {args.reason}")
    print(f"task {task.name}: {len(task.train)} problems to train on, {len(task.test)} held out ({task.note})")
    if args.data or task.name == "math":
        print(describe_overlap(task))
    print(f"each step {args.prompts_per_step} problems x {args.num_samples} completions; first prompt "
          f"({tokenizer.template}):")
    prompt = tokenizer.encode_prompt(task.prompt(pick_problems(task.train, 1, 1, args.seed)[0]))
    print("    " + tokenizer.decode(prompt, skip_special_tokens=False).replace("\n", "\n    "))


def main(argv=None):
    args = parse_args(argv)
    began = time.perf_counter()
    model, tokenizer, task, run = start_run(args)
    describe(model, tokenizer, task, args)
    optimizer = Optimizer(model, args)
    start = load_checkpoint(run, optimizer)
    if start > args.steps:
        raise ModelError(f"{run} has already made {start} steps: give --steps a larger number")
    if args.resume:
        cut_logs(run, start)
        print(f"continuing {run} after step {start} of {args.steps}")
    print(COLUMNS)
    if start == 0:
        row = {"step": 0, **evaluate_both(model, tokenizer, task, args)}
        row |= {name: row[f"eval_sampled_{key}"] for name, key in (
            ("reward", "reward"), ("accuracy", "accuracy"), ("completion_length", "length"),
            ("truncated", "truncated"))}
        print_row(row)
        append_jsonl(run / "metrics.jsonl", row)
    try:
        with StopSignal() as stop:
            train_rlvr(model, tokenizer, task, args, optimizer, run, stop, start)
    except KeyboardInterrupt as stop:
        done = f"a checkpoint of step {stop.args[0]} is saved" if stop.args else "nothing more was saved"
        sys.exit(f"stopped; {done}. Continue with: python train.py --resume --name {args.name}")
    except NonFinite as error:
        step, loss, grad_norm, rollouts, rewards = error.args
        torch.save({"step": step, "rollouts": vars(rollouts), "rewards": rewards}, run / "bad_batch.pt")
        save_checkpoint(run, step - 1, optimizer)                       # the update was not made: still the last good
        sys.exit(f"error: step {step} has loss {loss} and gradient norm {grad_norm}. The batch is in "
                 f"{run / 'bad_batch.pt'}, the weights before it in {run / 'checkpoints'}. Try a lower --lr")
    save(model, tokenizer, run / "final")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = (row for row in rows if "eval_accuracy" in row)
    print(f"held-out accuracy {first['eval_accuracy']:.3f} -> {last['eval_accuracy']:.3f} (greedy, n={last['eval_n']}) "
          f"in {time.perf_counter() - began:.0f} s; model in {run / 'final'}")


if __name__ == "__main__":
    try:
        main()
    except (ModelError, verifiers.DataError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped before the first step: nothing to save yet")
