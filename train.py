"""train.py - the training loop, and everything that a run needs around it.

    python train.py --steps 100           on a laptop: a tiny model learns to work sums out;
                                          with a CUDA GPU: Qwen3-0.6B-Base on MATH
    torchrun --nproc-per-node 8 train.py --fsdp
                                          the same on 8 GPUs, each with an eighth of the model

Section 1 is the loop. The other sections can be skipped on a first reading.
"""

import contextlib
import datetime
import gc
import gzip
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
import warnings
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage, and looking for it takes half a second

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from filelock import FileLock, Timeout  # comes with huggingface_hub
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import verifiers
from appendix.chat import transcript
from appendix.plumbing import DataError, append_rows, as_json, cell, clear_errors, get_method
from appendix.plumbing import git_commit, hashes_of, option, read_command, read_log, run_all, shown
from eval import TaskFlags, evaluate, read_config
from model import ModelError, Qwen3, Tokenizer, _read_json, check_model, check_prompts
from model import fetch, load, oom_hint, pick_device, save
from rlvr import GRPO, Rollouts, Stopped, bad_return, limit_sampling, records_of
from rlvr import roll_out, token_advantages, update_gradients

# ---- 1. The loop ---------------------------------------------------------------------------------


def train_rlvr(run):
    """The training loop, from the step after run.step to flags.steps.

    Raises Stopped after Ctrl-C, when the method raises it, when the verifier fails on every
    completion, and when the loss or the gradient is not finite (the weights are not updated).
    Whatever it raises, train_until_the_end tries to save the steps made so far."""
    flags = run.flags
    for step in range(run.step + 1, flags.steps + 1):
        began = time.perf_counter()
        settings = run.method.settings
        torch.manual_seed(settings.seed + step)  # for methods that draw random numbers

        # Sample P problems and G completions of each, and score them. (A reward may use the step.)
        problems = [{**run.task.train[i], "step": step} for i in pick_problems(run, step)]
        batch = roll_out_all(run, problems, settings.num_samples, settings.temperature, str(step))
        batch.step = step
        sampled_at = time.perf_counter()

        # How much better each completion is than its group, token by token.
        advantages = token_advantages(run.method, batch)  # (B, T-1)

        # Update the weights once, or several times on the same completions. The first update
        # returns the log-probs of pi_old; nothing is clipped in it.
        lr = set_learning_rate(run, step)
        stats, old_logp = update(run, batch, advantages)
        for _ in range(settings.updates_per_batch - 1):
            again, _ = update(run, batch, advantages, old_logp)
            stats["clipped"] = again["clipped"]
        updated_at = time.perf_counter()
        run.step = step

        # Write the samples and the log; now and then evaluate, and save a checkpoint.
        row = {
            **stats,
            **batch_metrics(batch),
            "verify_seconds": batch.verify_seconds,
            "step": step,
            "lr": lr,
            "sample_seconds": sampled_at - began,
            "update_seconds": updated_at - sampled_at,
        }
        try:
            if is_due(run, flags.eval_every):
                row |= evaluate_both(run)
        finally:  # even if the evaluation runs out of memory, the step has been made
            row["seconds"] = time.perf_counter() - began
            finish_step(run, row, batch, advantages)


@dataclass
class Run:
    """The state of a run. load_run makes it."""

    flags: "Flags"
    folder: Path
    task: verifiers.Task
    method: GRPO
    model: Qwen3
    tokenizer: Tokenizer
    parameters: list  # the trained parameters
    optimizer: torch.optim.Optimizer
    rates: list  # the peak learning rate of each parameter group
    # critical: dtype is the dtype of the computation. Trained weights stay in fp32: at a learning
    # rate of 1e-6 nearly every update of a bf16 weight would be rounded away.
    dtype: torch.dtype
    memory: dict = field(default_factory=dict)  # for the method's pick; saved in checkpoints
    progress: str = ""  # what a checkpoint saves besides the tensors, as JSON
    step: int = 0  # the step that the weights belong to; -1 while an update changes them
    saved: int = 0  # the step of the newest checkpoint
    idle: int = 0  # steps in a row without a mixed group, so far
    stopping: bool = False  # after Ctrl-C


def pick_problems(run, step):
    """Ask the method which problems the step trains on. Returns their indices."""
    N = len(run.task.train)
    indices = run.method.pick(run.task.train, step, run.memory)
    if not isinstance(indices, list) or not indices or any(i not in range(N) for i in indices):
        raise bad_return(run.method, "pick", indices, f"indices of problems, from 0 to {N - 1}")
    return indices


def roll_out_all(run, problems, num_samples, temperature, stream, training=True):
    """Call rlvr.roll_out with the problems divided among the processes. Returns the whole Batch."""
    mine = torch.arange(len(problems)).tensor_split(WORLD)[RANK].tolist()
    # The random numbers of a row depend on its place in the whole batch, not on its process.
    streams = [f"{stream} {i * num_samples + g}" for i in mine for g in range(num_samples)]
    share = [problems[i] for i in mine]
    how = (num_samples, temperature, streams, training)
    batches = []
    errors = []
    with unsharded(run.model), cast_weights(run.dtype, run.model):
        try:
            if mine:  # with more processes than problems, some have none
                batches = [roll_out(run.method, run.model, run.tokenizer, run.task, share, *how)]
        except Exception as error:
            if WORLD == 1:
                raise
            errors = [f"error: {str(error) or repr(error)}"]
    # If one process fails, all stop together, so that they can save the last finished step.
    for why in gather(errors):
        raise Stopped(why)
    return batches[0] if WORLD == 1 else gather_batches(batches, run.model.device)


def set_learning_rate(run, step):
    """Set the learning rate of each parameter group: a cosine from its peak to a tenth of it, with
    five steps of warm-up. Returns the last group's rate, for the log."""
    warm_up = min(1.0, step / 5)
    cosine = 0.55 + 0.45 * math.cos(math.pi * step / run.flags.steps)
    for group, rate in zip(run.optimizer.param_groups, run.rates):
        group["lr"] = rate * warm_up * cosine
    return group["lr"]


def update(run, batch, advantages, old_logp=None):
    """Update the weights once. Returns statistics for the log, and the log-probs (B, T-1) before
    the update."""
    rollouts = batch.rollouts
    keep = run.method.rows(rollouts, advantages)  # (B,)
    if getattr(keep, "shape", None) != (len(advantages),) or keep.dtype != torch.bool:
        raise bad_return(run.method, "rows", keep, "a tensor of B bools")
    trained = int(keep.sum())
    per_rank = math.ceil(trained / WORLD)  # small enough for every rank to get some rows
    room = min(run.flags.micro_batch_tokens, per_rank * rollouts.ids.size(1))
    micros = equal_share(run.method.layout(rollouts, keep, room) or [])
    half = run.dtype == torch.bfloat16 and not run.flags.fsdp  # FSDP casts by itself
    with torch.autocast(run.flags.device, run.dtype, enabled=half), oom_hint("micro_batch_tokens"):
        sums, logp = update_gradients(run.model, rollouts, advantages, run.method, micros, old_logp)
    stats = means_over_tokens(sums, rollouts.mask[keep])
    stats["trained"] = trained
    # subtle: if there is no gradient, Adam's momentum must not move the weights.
    stats["grad_norm"] = step_optimizer(run, batch.step, stats["loss"]) if trained else 0.0
    run.model.zero_grad()  # including parameters that are not in the optimizer
    return stats, logp


def means_over_tokens(sums, mask):
    """Add up the sums of all processes and divide them by the number of trained tokens. The loss
    stays a sum. mask: the mask of the rows that the layout was given."""
    sums = {name: float(all_sum(value)) for name, value in sums.items()}
    tokens = sums.pop("tokens")
    if tokens != mask.sum():
        raise ModelError("the method's layout left out tokens, or gave some twice")
    return {name: value / max(1.0, tokens) for name, value in sums.items()} | {"loss": sums["loss"]}


def step_optimizer(run, step, loss):
    """Clip the gradients and step the optimizer. Returns the norm before clipping. Raises Stopped
    for NaN or infinity."""
    norm = clip_gradients(run.parameters)
    if not math.isfinite(loss + norm):
        found = f"loss {loss} and gradient norm {norm}"
        raise Stopped(f"error: step {step} has {found}: look at the method's loss, or lower --lr")
    run.step = -1  # if the update fails half-way, the weights belong to no step
    run.optimizer.step()
    return norm


def is_due(run, every):
    return run.step % every == 0 or run.step == run.flags.steps


def evaluate_both(run):
    """Evaluate on held-out problems, greedily and by sampling. Returns columns of the log."""
    problems = run.task.test[: run.flags.eval_problems]
    columns = {}
    for prefix, temperature in (("eval_", 0.0), ("eval_sampled_", run.method.settings.temperature)):
        batch = roll_out_all(run, problems, 1, temperature, "held out", training=False)
        summary = evaluate(records_of(batch), 1)
        columns |= {f"{prefix}{name}": value for name, value in summary.items()}
    return columns


def write_samples(run, batch, advantages):
    """Write all completions of the step, with their scores, tokens and log-probs."""
    if RANK > 0:
        return
    rollouts = batch.rollouts
    own = rollouts.mask > 0  # (B, T-1)
    counts = own.sum(1).tolist()
    tensors = (advantages, rollouts.ids[:, 1:], rollouts.logp)  # (B, T-1)
    columns = [tensor[own].split(counts) for tensor in tensors]
    lines = []
    for record, advantage, ids, logps in zip(records_of(batch), *columns):
        record.update(advantage=advantage.mean().item(), ids=ids.tolist(), logps=logps.tolist())
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    path = run.folder / "samples" / f"step_{batch.step:06d}.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write("".join(lines).encode("utf-8", "replace"))


def finish_step(run, row, batch, advantages):
    """Log the step, write its samples, and save a checkpoint if one is due."""
    method = run.method
    try:
        method.after_step(row, run.model)  # it may add columns, or raise Stopped
    finally:
        progress = {
            "memory": run.memory,
            "method": method.state(),
            "settings": asdict(method.settings),
        }
        # JSON turns dict keys into strings. Convert at every step, so that a run sees the same
        # memory whether it was interrupted or not, and a value that JSON cannot hold fails at once.
        where = "the memory of pick, the state of the method, or its columns"
        run.progress = as_json(progress, where)
        run.memory = json.loads(run.progress)["memory"]
        as_json(row, where)
        log_row(run, row)
        write_samples(run, batch, advantages)
    if row["failed"] == 1:
        raise Stopped("error: the verifier failed on every completion; see the warnings")
    if any(gather([run.stopping])):  # after Ctrl-C in any process
        raise Stopped("stopped")
    if is_due(run, run.flags.save_every):
        save_checkpoint(run)


# ---- 2. A run ------------------------------------------------------------------------------------


def load_run(flags):
    """Load the task, the model and the method that the flags name. Returns a Run."""
    print(f"model {flags.model} on {flags.device}, task {flags.task}")
    check_model(flags.model)
    try:
        Path(flags.runs).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=flags.runs).close()
    except OSError as error:
        raise ModelError(f"--runs {flags.runs}: cannot be written to ({error})") from None
    task = verifiers.get_task(flags.task, flags.prompt, flags.stop, flags.reward)
    if not task.train:
        raise DataError(f"task {task.name} has no problems to train on: choose another --task")
    method = get_method(GRPO, flags.method, flags.settings)
    _, dtype = pick_device(flags.device)
    sharder = Sharder(flags.device, dtype) if flags.fsdp else None
    model, tokenizer = load(flags.model, flags.device, torch.float32, flags.template, sharder)
    small = is_tiny(flags.model)
    model.checkpoint_blocks = not small
    if flags.device == "cpu" and small:
        torch.set_num_threads(1)  # on tensors this small, threads mostly wait for each other
    check_prompts(model, tokenizer, task, task.train + task.test, method.settings.max_new_tokens)
    parameters = set_up(method, model, tokenizer)
    optimizer = method.optimizer(parameters, flags.lr)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise bad_return(method, "optimizer", optimizer, "a torch.optim.Optimizer")
    limit_sampling(method, model, dtype)
    rates = [group["lr"] for group in optimizer.param_groups]
    folder = Path(flags.runs, flags.name)
    return Run(flags, folder, task, method, model, tokenizer, parameters, optimizer, rates, dtype)


def set_up(method, model, tokenizer):
    """Call method.setup. Returns the parameters to train, equal on every rank. They must belong to
    the model, because a checkpoint saves nothing else. A method that adds parameters needs an
    export that removes them."""
    torch.manual_seed(method.settings.seed)
    usual = dict(model.named_parameters())
    parameters = method.setup(model, tokenizer)
    own = set(model.parameters())
    if not isinstance(parameters, list) or not parameters or not own.issuperset(parameters):
        raise bad_return(method, "setup", parameters, "a list of parameters of the model")
    added = dict(model.named_parameters()).keys() - usual
    if added and type(method).export is GRPO.export:
        raise bad_return(
            method, "export", f"the model with {sorted(added)}", "a model that load can read"
        )
    for param in parameters:
        if WORLD > 1 and not isinstance(param, DTensor):
            dist.broadcast(param.data, 0)
    return parameters


@contextlib.contextmanager
def cast_weights(dtype, model):
    """Temporarily cast the weights. For sampling this beats autocast, which casts again at every
    matmul. In return, sampler and update disagree a little more (the log's mismatch)."""
    whole = {param: param.data for param in model.parameters()}
    try:
        for param in whole:
            param.data = param.data.to(dtype)  # may run out of memory
        yield
    finally:
        for param, data in whole.items():
            param.data = data


def origin_of(run):
    """Hash what the run begins with: the weights, the problems, and the Python files of the task
    and the reward. (The method's file may change.)"""
    flags = run.flags
    files = [Path(spec.rpartition(":")[0]) for spec in (flags.task, flags.reward or "")]
    return {
        "weights": hashes_of(fetch(flags.model).glob("*.safetensors")),
        "problems": zlib.crc32(json.dumps([run.task.train, run.task.test]).encode()),
        "files": hashes_of(filter(Path.is_file, files)),
    }


def write_config(run, origin):
    """Write config.json: flags, settings, versions, commit, and the origin, see origin_of. Raises
    ModelError if the file names other weights or problems. If origin is {}, the file's origin
    stays."""
    path = run.folder / "config.json"
    config = _read_json(path, optional=True)
    for name, value in origin.items():
        if config.get(name, value) != value:
            why = f"{path}: the {name} have changed since the run began"
            if name != "files":
                raise ModelError(f"{why}: restore them, or choose another --name")
            print(f"warning: {why}")
    given = run.flags.settings["sample_tokens"]
    config |= {
        **origin,
        "flags": {**asdict(run.flags), "resume": False},  # as if the run had not been interrupted
        # after_step may have changed them. A resumed run works out again how many tokens fit.
        "settings": {**asdict(run.method.settings), "sample_tokens": given},
        "versions": {"python": sys.version, "torch": torch.__version__, "git": git_commit()},
    }
    partial = run.folder / "config.partial"
    partial.write_text(json.dumps(config, indent=2))
    partial.replace(path)


# ---- 3. Many GPUs (skip it when you have one) ----------------------------------------------------
# Each process samples for a share of the problems, and runs a share of the micro-batches of the
# update. Every process holds the whole batch and makes the same decisions; the first one writes.
# So a method's pick, advantages, rows, layout and after_step must return the same in every process;
# its roll_out, before_update and loss see a share.
# critical: all ranks must issue the same collectives in the same order. So sharded weights are
# gathered before sampling, and every rank makes the same number of forward passes.
# With one process there is nothing to share: RANK is 0, WORLD is 1; all_sum(x) and gather(x) are x,
# equal_share(x) is list(x); clip_gradients only clips, and unsharded(model) does nothing.

RANK = int(os.environ.get("RANK", 0))  # torchrun sets both
WORLD = int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else 1
TIMEOUT_MINUTES = 10.0  # how long one process waits for another


def start_processes(device):
    """Under torchrun, join the other processes. Only rank 0 prints; any rank may raise an error."""
    if "RANK" not in os.environ:
        return
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(minutes=TIMEOUT_MINUTES))
    if RANK > 0:
        sys.stdout = open(os.devnull, "w")


def all_sum(tensor):
    """Sum a tensor over all processes. (FSDP has already summed the shards of a gradient.)"""
    if WORLD > 1 and not isinstance(tensor, DTensor):
        dist.all_reduce(tensor)
    return tensor


def gather(items):
    """Join the lists of all processes into one list, which every process gets."""
    if WORLD == 1:
        return items
    lists = [None] * WORLD
    dist.all_gather_object(lists, items)
    return sum(lists, [])


def gather_batches(batches, device):
    """Join the Batches of all processes into one, which every process gets."""
    for one in batches:
        one.rollouts = Rollouts.join([one.rollouts], "cpu")
    batches = gather(batches)
    whole = batches[0]
    whole.rollouts = Rollouts.join([one.rollouts for one in batches], device)
    whole.rewards = torch.cat([one.rewards for one in batches])
    for name in "problems texts parts turns".split():
        setattr(whole, name, [item for one in batches for item in getattr(one, name)])
    return whole


def equal_share(micros):
    """Return this process's share of the micro-batches. All shares have the same length: if
    necessary, copies with loss_scale 0 are added."""
    micros = list(micros)
    while len(micros) % WORLD:
        micros.append(replace(micros[-1], loss_scale=0.0))
    return micros[RANK::WORLD]


def clip_gradients(parameters):
    """Sum the gradients of all processes and clip them to norm 1. Returns the norm before that."""
    for param in parameters:
        if param.grad is not None:
            all_sum(param.grad)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()


class Sharder:
    """Used by model.load to give every process a part of each weight (PyTorch's FSDP2; FSDP: arXiv
    2304.11277). Weights are stored in fp32 and used in dtype; gradients are summed in fp32."""

    def __init__(self, device, dtype):
        self.mesh = dist.init_device_mesh(device, (WORLD,))
        # subtle: a cast KV cache would be a copy, and whatever is written to a copy is lost.
        self.precision = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)

    def wrap(self, model):
        """Shard a model that has no weights yet."""
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=self.mesh, mp_policy=self.precision)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction

    def cut(self, tensor, parameter):
        """Return the part of a weight that this process stores."""
        return distribute_tensor(tensor, self.mesh, parameter.placements, src_data_rank=None)


@contextlib.contextmanager
def unsharded(model):
    """Gather a sharded model's weights for the duration of the block, so that its forward passes
    need no communication."""
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


# ---- 4. Checkpoints ------------------------------------------------------------------------------
# No random state is saved, because random numbers depend on (seed, step, row) alone. So a resumed
# run equals an uninterrupted one: on a CPU bit for bit, on a GPU or with another WORLD up to
# rounding.
# Checkpoints are pickle files, which can execute code: resume only runs that you trust.

# CheckpointException is not an Exception.
CHECKPOINT_ERRORS = (Exception, dcp.api.CheckpointException)
warnings.filterwarnings(
    "ignore", "torch.distributed is disabled|FSDP2-wrapped module .* a view|Mismatch dtype"
)


def state_of(run):
    model, optimizer = get_state_dict(run.model, run.optimizer)
    return {"model_state_dict": model, "optim_state_dict": optimizer}


def save_checkpoint(run):
    """Write a checkpoint under another name, then rename it, so that a crash at any moment leaves
    the previous one intact. Raises ModelError if that fails or if the weights hold NaN."""
    folder = run.folder / "checkpoints"
    path = folder / f"step_{run.step:06d}"
    partial = folder / "partial"
    if not all(param.sum().isfinite() for param in run.parameters):  # needs no memory
        raise ModelError(f"{path}: not written: the weights hold NaN; begin with a lower --lr")
    try:
        if RANK == 0:
            shutil.rmtree(partial, ignore_errors=True)
        dcp.save(state_of(run), checkpoint_id=partial)
        if RANK == 0:
            (partial / "progress.json").write_text(run.progress)
            (partial / "hashes.json").write_text(json.dumps(hashes_of(partial.iterdir())))
            shutil.rmtree(path, ignore_errors=True)  # an unreadable checkpoint of the same step
            partial.rename(path)
            for old in sorted(folder.glob("step_??????"))[:-2]:  # keep the last two
                shutil.rmtree(old)
        run.saved = run.step
    except CHECKPOINT_ERRORS as error:  # a full disk raises many kinds of errors
        shutil.rmtree(partial, ignore_errors=True)
        raise ModelError(f"{path}: cannot be written ({error!r:.200}); free some space") from error


def keep_steps(run):
    """Save the steps since the last checkpoint, if the weights belong to a finished step."""
    if run.progress and run.step > run.saved:
        with contextlib.suppress(ModelError):  # run.saved stays as it is
            save_checkpoint(run)


def load_checkpoint(run):
    """Restore the newest checkpoint that is intact, if there is one."""
    paths = sorted(run.folder.glob("checkpoints/step_??????"), reverse=True)
    for path in paths:
        try:
            hashes = _read_json(path / "hashes.json")
            if hashes_of(path / name for name in hashes) != hashes:
                raise ValueError("its files have changed since they were written")
            progress = _read_json(path / "progress.json")
            state = state_of(run)
            dcp.load(state, checkpoint_id=path)
        except CHECKPOINT_ERRORS as error:  # truncated, damaged, or of another model
            print(f"{path} cannot be used ({error!r:.150}); trying the previous one")
            continue
        set_state_dict(run.model, run.optimizer, **state)
        run.step = run.saved = int(path.name.removeprefix("step_"))
        run.memory = progress["memory"]
        kept = progress["settings"]  # after_step may have changed them
        kept.pop("sample_tokens")  # load_run has set it for this machine
        run.method.settings = replace(run.method.settings, **kept)
        run.method.load_state(progress["method"])
        return
    if paths or max(read_log(run.folder), default=0) > run.flags.save_every:
        raise ModelError(f"{run.folder} has no usable checkpoint: start again with another --name")


# ---- 5. Log and preflight ------------------------------------------------------------------------

COLUMNS = {  # columns of metrics.jsonl, and their titles in the printed table
    "reward": "reward",
    "accuracy": "acc",
    "mixed": "mixed",
    "completion_length": "len",
    "truncated": "cut",
    "entropy": "entropy",
    "grad_norm": "grad",
    "mismatch": "mismatch",
    "seconds": "sec",
    "eval_accuracy": "greedy",
    "eval_sampled_accuracy": "sampled",
}


IDLE = 10  # after this many steps without a mixed group, the run says so


def log_row(run, row):
    if RANK == 0:
        append_rows(run.folder / "metrics.jsonl", [row])
    if row["step"] % 5 == 0 or "eval_accuracy" in row or row["seconds"] > 1:
        print(f"{row['step']:4}", *(cell(row.get(key), title) for key, title in COLUMNS.items()))
    run.idle = 0 if row.get("mixed", 1) else run.idle + 1
    if run.idle == IDLE:
        print(f"     nothing was learned in {IDLE} steps: no group had unequal rewards")
    if row.get("failed"):
        print(f"     the verifier failed on {row['failed']:.1%} of the completions")


def batch_metrics(batch):
    """Return columns of the log: means over the completions of the batch, and shares of its groups.

    A group with unequal rewards is mixed. Groups with equal rewards give no gradient: the problem
    is solved (most completions are right) or hopeless."""
    names = sorted({name for part in batch.parts for name in part})
    row = {name: statistics.fmean(part.get(name, 0.0) for part in batch.parts) for name in names}
    right = batch.accuracy.mean(1)  # (P,)
    mixed = batch.rewards.amax(1) > batch.rewards.amin(1)  # (P,)
    values = {
        "reward": batch.rewards,
        "accuracy": right,
        "completion_length": batch.rollouts.mask.sum(1),
        "mixed": mixed,
        "solved": ~mixed & (right > 0.5),
        "hopeless": ~mixed & (right <= 0.5),
    }
    return row | {name: value.float().mean().item() for name, value in values.items()}


def preflight(run):
    """Sample one batch before training. Stop, or warn, if there is nothing to learn from it."""
    task = run.task
    settings = run.method.settings
    problems = task.train[: settings.prompts_per_step]
    if settings.num_samples == 1 and type(run.method).advantages is GRPO.advantages:
        raise Stopped("error: a group needs two or more completions: raise --num-samples")
    if run.flags.lr > 0.01:
        print(f"warning: --lr {run.flags.lr} is far above the usual 3e-6 (4e-4 for a tiny model)")
    print(f"{len(task.train)} problems to train on, {len(task.test)} held out")
    prompt = run.tokenizer.prompt_text(task.prompt(problems[0]))
    print(f"the first prompt ({run.tokenizer.template} template):\n{shown(prompt)}")
    began = time.perf_counter()
    batch = roll_out_all(run, problems, settings.num_samples, settings.temperature, "preflight")
    took = time.perf_counter() - began
    means = batch_metrics(batch)
    print(
        f"preflight: of {len(batch.texts)} completions {means['accuracy']:.0%} are right and\n"
        f"{means['truncated']:.0%} cut off; rewards differ in {means['mixed']:.0%} of the groups"
    )
    rewards = batch.rewards.flatten()
    for row in dict.fromkeys((rewards.argmax().item(), rewards.argmin().item())):
        text = transcript(batch.texts[row], batch.turns[row] if batch.turns else [])
        print(f"a completion with reward {rewards[row]:.2f}:\n{shown(text[-400:])}")
    why_stop = None
    if means["failed"] > 0.5:
        why_stop = f"the verifier fails on {means['failed']:.0%} of the texts; see the warnings"
    elif means["truncated"] >= 0.9:
        why_stop = "nearly all completions are cut off: try --max-new-tokens, --stop or --template"
    elif means["mixed"] == 0 and settings.num_samples > 1:
        why_stop = f"no group has unequal rewards: {why_rewards_are_equal(task, batch, means)}"
    # With fewer than 64 completions this may be chance.
    if why_stop and (means["failed"] == 1 or len(batch.texts) >= 64):
        raise Stopped(f"error: {why_stop}")
    verdict = f"warning:\n{shown(why_stop)}" if why_stop else "there is something to learn"
    print("preflight:", verdict)
    estimate = datetime.timedelta(seconds=round(2 * took * run.flags.steps))
    print(f"{run.flags.steps} steps take about {estimate}, if an update takes as long as sampling")


def why_rewards_are_equal(task, batch, means):
    """Say why every group of the batch has equal rewards, and what to do about it."""
    if (batch.accuracy.amax(1) > batch.accuracy.amin(1)).any():
        return "right and wrong completions earn the same; do parts of the reward cancel?"
    if means["solved"] > 0.5:
        return f"the problems are too easy; try harder ones. {FILTER}"
    if len(set(batch.texts)) <= len(batch.problems):
        return "all completions of a problem are alike: raise --temperature"
    why = f"the problems are too hard; try easier ones, or more --num-samples. {FILTER}"
    if means["answered"] < 0.1:
        why = "few completions have a form that is rewarded; try --prompt or --template"
    if task.turns or "tests" in batch.problems[0]:
        return why
    # Does the reward accept the right answer to the worst group's problem, in a usual form?
    worst = batch.rewards.amax(1).argmin()
    problem = {**batch.problems[worst], "turns": []}
    box = f"\\boxed{{{problem['answer']}}}"
    replies = [f"<think>It is clear.</think> <answer>{box}</answer>", box]
    rewards = [verifiers.checked(one)[0] for one in run_all(replies, [problem] * 2, task.reward)]
    reward, reply = max(zip(rewards, replies))
    if reward <= batch.rewards[worst].max():
        return f"not even {box} earns more; does the reward read problem['answer']?"
    return f"{why}. This would have been rewarded: {reply}"


FILTER = "To keep problems that are sometimes solved: python -m notebooks.look.filter --help"


# ---- 6. Flags ------------------------------------------------------------------------------------

# Defaults for a tiny model (less than 16 MB of weights), and for other models. The rate of 3e-6
# and, with a GPU, the Base model are departure 11 in rlvr.py.
DEFAULTS = {
    "task": ("arithmetic", "math"),
    "num_samples": (16, 8),
    "max_new_tokens": (80, 512),
    "lr": (4e-4, 3e-6),
    "micro_batch_tokens": (2048, 4096),
    "eval_every": (25, 50),
}


@dataclass
class TrainFlags(TaskFlags):
    """Training"""

    steps: int = option(
        100, "total number of steps; changing it with --resume changes the remaining learning rates"
    )
    lr: float = option(
        None, "peak rate: 5 steps of warm-up, then a cosine to a tenth (default: 3e-6; tiny 4e-4)"
    )
    micro_batch_tokens: int = option(
        None, "tokens per forward pass of the update; fewer save memory (default: 4096; tiny 2048)"
    )
    eval_every: int = option(None, "steps between two evaluations (default: 50; tiny model: 25)")
    eval_problems: int = option(500, "number of held-out problems in an evaluation")
    fsdp: bool = option(False, "with torchrun: shard weights, gradients and optimizer state")


@dataclass
class Flags(TrainFlags):
    """The run"""

    name: str = option(None, "name of the run's folder (default: task, date, time, process id)")
    runs: str = option("runs", "folder that holds all runs")
    save_every: int = option(50, "steps between two checkpoints")
    resume: bool = option(False, "continue the run called --name")

    def __post_init__(self):
        super().__post_init__()
        if self.fsdp and "RANK" not in os.environ:
            raise ValueError("--fsdp: start torchrun --nproc-per-node 8 train.py --fsdp ..")
        if not self.name.strip(" ./"):
            raise ValueError(f"--name {self.name!r} names no folder: give the run a name")
        if not self.resume and Path(self.runs, self.name, "config.json").exists():
            raise ValueError(f"{self.name} exists: add --resume, or choose another --name")
        if Path(self.model).is_dir():
            self.model = os.path.abspath(self.model)


# Flags that may differ when a run is resumed.
MAY_CHANGE = "model sample_tokens micro_batch_tokens steps device fsdp runs name resume".split()


ABOUT = """Train a model with verifiable rewards (GRPO). Without flags, on a laptop a
tiny model learns arithmetic, and with a CUDA GPU Qwen3-0.6B-Base learns MATH.

examples:
  python train.py --steps 100
  python train.py --model DIR --task problems.jsonl
  python train.py --method notebooks/methods/dapo.py --help   # its settings"""


def parse_args(argv=None):
    """Read the command line. Returns flags, with the method's settings as flags.settings.

    A value comes from the last of these that gives one: the defaults; the defaults for the model's
    size (DEFAULTS); the method's own defaults; config.json, if a run is resumed; the command line.
    Everything is checked before anything is written."""
    flags, method = read_command(argv, Flags, GRPO, ABOUT, read_run, defaults_for, MAY_CHANGE)
    flags.settings = asdict(method.settings)
    return flags


def read_run(known):
    """Return the flags and settings of the run to --resume; otherwise {}."""
    if "resume" not in known:
        return {}
    runs = known.get("runs", "runs")
    folder = Path(runs, known.get("name", ""))
    run = read_config(folder)
    if not run:
        there = ", ".join(sorted(path.parent.name for path in Path(runs).glob("*/config.json")))
        why = f"there is no run to --resume in {folder}"
        raise ValueError(f"{why}; --name may be one of: {there or 'none yet'}")
    return {**run, "runs": runs, "fsdp": False}


def defaults_for(known, settings):
    """Return the defaults that depend on the machine and on the model's size, as a dict."""
    device, _ = pick_device(known.get("device"))
    task = known.get("task")
    model = known.get("model")
    if model is None:
        laptop = task == "arithmetic" or (task is None and device != "cuda")
        if device == "cpu" and not laptop:
            raise ValueError("give a --model: on a CPU only arithmetic has a default model")
        tiny = f"{Path(__file__).parent}/notebooks/tiny"
        model = tiny if laptop else "Qwen/Qwen3-0.6B-Base"
    small = is_tiny(model)
    values = {
        name: for_tiny if small else for_others
        for name, (for_tiny, for_others) in DEFAULTS.items()
        # The method's own defaults take precedence.
        if getattr(settings, name, None) == getattr(GRPO.Settings, name, None)
    }
    stem = Path((task or values["task"]).partition(".py:")[0]).stem
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return {**values, "model": model, "device": "cpu" if small else device, "name": name}


def is_tiny(model):
    return 0 < sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) < 2**24


# ---- 7. Start and end ----------------------------------------------------------------------------


def resume_hint(flags):
    command = "python" if WORLD == 1 else f"torchrun --nproc-per-node {WORLD}"
    place = f"--name {shlex.quote(flags.name)} --runs {shlex.quote(flags.runs)}"
    return f"Resume with: {command} train.py --resume {place}"


def main(argv=None):
    began = time.perf_counter()
    flags = parse_args(argv)
    start_processes(flags.device)
    flags.name = gather([flags.name])[0]  # all use the first process's name
    try:
        run = load_run(flags)
        if not flags.resume:
            preflight(run)
        (run.folder / "samples").mkdir(parents=True, exist_ok=True)
        with FileLock(run.folder / f".lock{RANK}", timeout=0):
            start(run)
            train_until_the_end(run)
    except Timeout:
        raise ModelError(f"{run.folder} is in use by another process: stop it first") from None
    except Stopped as error:
        sys.exit(1 if RANK > 0 else str(error))
    rows = read_log(run.folder)
    if {0, flags.steps} <= rows.keys():  # the user may have deleted the log
        first, last = rows[0], rows[flags.steps]
        if run.idle >= IDLE:
            print(f"warning: in the last {run.idle} steps no group had unequal rewards")
        if last["eval_accuracy"] <= first["eval_accuracy"]:
            print("warning: held-out accuracy is no higher than before training")
        before = f"held-out accuracy {first['eval_accuracy']:.3f} ->"
        print(before, f"{last['eval_accuracy']:.3f} (greedy, n={last['eval_n']})", end=" ")
    print(f"in {time.perf_counter() - began:.0f} s; model in {run.folder / 'final'}")


def start(run):
    """Continue from the checkpoint, or log an evaluation of the untrained model as step 0. If an
    evaluation is due at the checkpoint's step, but is missing in the log, make it now."""
    flags = run.flags
    load_checkpoint(run)
    if run.step > flags.steps:
        raise ModelError(f"{run.folder} is already at step {run.step}: pass a larger --steps")
    if RANK == 0:
        write_config(run, origin_of(run))
    print("step", *(title.rjust(5) for title in COLUMNS.values()))
    row = {"step": 0}
    if run.step > 0:
        print(f"resuming {run.folder} after step {run.step} of {flags.steps}")
        row = read_log(run.folder).get(run.step, {"eval_accuracy": None})
    if is_due(run, flags.eval_every) and "eval_accuracy" not in row:
        row |= evaluate_both(run)
        for name in "reward accuracy truncated".split():
            row.setdefault(name, row[f"eval_sampled_{name}"])
        row.setdefault("completion_length", row["eval_sampled_length"])
        log_row(run, row)


def train_until_the_end(run):
    """Train, then save the final model. Ctrl-C or SIGTERM stops after the current step. After an
    error, save the steps made so far, if possible, and say how to resume."""

    def on_signal(number, frame):
        run.stopping = True
        print("stopping after this step (Ctrl-\\ stops at once, without a checkpoint)")

    handlers = {n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        train_rlvr(run)
        save_final(run)
    except BaseException as error:
        is_shared = isinstance(error, Stopped)
        if is_shared or WORLD == 1:  # else the other processes wait, and saving needs them all
            keep_steps(run)
        lost = "" if run.step == run.saved else "; later steps are lost"
        kept = f"step {run.saved} is saved{lost}. {resume_hint(run.flags)}"
        if WORLD == 1 and not isinstance(error, (Stopped, OSError, ModelError, DataError)):
            print(kept)
            raise
        why = error if is_shared else f"error: {(str(error) or repr(error))[:500]}"
        sys.exit(1 if is_shared and RANK > 0 else f"{why}; {kept}")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def save_final(run):
    """Write the final model, unsharded and in the dtype that it was sampled in."""
    model = run.method.export(run.model)
    if not hasattr(model, "config"):
        raise bad_return(run.method, "export", model, "a model")
    with unsharded(model), cast_weights(run.dtype, model):
        if RANK == 0:
            folder = run.folder / "final"
            save(model, run.tokenizer, folder)
            write_config(run, {})
            load(folder, "meta")  # raises an error if names or shapes do not fit config.json


if __name__ == "__main__":
    gc.freeze()  # imported objects stay: never look at them again
    gc.enable()
    with clear_errors(ModelError), oom_hint("model"):
        main()
        if dist.is_initialized():
            dist.destroy_process_group()
            sys.stdout.flush()
            # A gloo thread that asks for the GIL while Python exits aborts Python (pytorch#190489).
            os._exit(0)
