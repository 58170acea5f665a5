"""Training: the memory and speed of an update, how a step's time splits, and steps per second beside TRL's GRPOTrainer.

    python tests/bench_training.py                           tiny: whole steps with sampling, and TRL if installed
    python tests/bench_training.py --shape 0.6B --rows 1     random weights in the shape of Qwen3-0.6B: peak memory
    python tests/bench_training.py --count                   kernels, bytes and FLOPs of a step on a GPU, counted
    python tests/bench_training.py --cards                   which card needs which flags, computed
    python tests/bench_training.py --curve runs/sums-0       SmolLM2: TRL trains the first --steps of such runs again

The peaks are at the two worst moments of a step: sampling, with a full cache of all --batch rows, and the update, with
a micro-batch of --rows rows at full length while the gradients of earlier ones wait (their number makes no difference).
Every configuration runs in its own process, and the peak is that process's (on CUDA the allocator's). "plain" is the
update that one writes first: it keeps full logits and all activations. All have fp32 weights and torch's AdamW, and
compute in --dtype. The last line is a JSON object.

--curve gives TRL a run's base, problems in their order, groups, reward, learning rate of each step, AdamW, clipping
of the gradient and mean over tokens; eval.py evaluates the weights of both. What differs: random numbers; TRL's std of a
group divides by G - 1; TRL stops only at a newline (train.py also at <|im_end|>, in one completion of a hundred); and if
no group is mixed, TRL still takes a step, from momentum. The seconds are comparable only if both ran on as many threads.
"""

import argparse
import functools
import importlib.util
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]
import train  # noqa: E402
import verifiers  # noqa: E402
from notebooks import page
from notebooks.environments.adapters import for_trl
from notebooks.models.make_tiny import tiny_config
from model import Config, KVCache, Qwen3, pick_device  # noqa: E402
from rlvr import (  # noqa: E402
    CHUNK_ELEMENTS,
    GRPO,
    MicroBatch,
    Rollouts,
    choose,
    loss_weights,
    sample_tokens_that_fit,
    trained_logprobs,
    update_gradients,
)
from train import cast_weights  # noqa: E402


# ---- Memory: one configuration in this process -----------------------------------------------------------------------


def memory_used(device):
    """Return the peak bytes so far: of tensors on a GPU, of the whole process on a CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def random_model(shape, device):
    with torch.device("meta"):
        model = Qwen3(Config() if shape == "0.6B" else tiny_config(64, eos_token_id=63))
    model.to_empty(device=device)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.02) if p.ndim == 2 else p.fill_(1.0)
    return model


def full_length_rollouts(rows, prompt, tokens, device):
    ids = torch.randint(63, (rows, prompt + tokens), device=device)
    ids[1:, :prompt] = ids[0, :prompt]  # one group
    full = torch.full((rows,), 1, device=device)
    logp = torch.zeros(rows, prompt + tokens - 1, device=device)
    mask = torch.ones_like(logp)
    mask[:, : prompt - 1] = 0.0
    return Rollouts(ids, full * prompt, full * tokens, full.bool(), logp, mask, rows)


def measure(args):
    """Measure args.config. On a CPU, call it in a new process, because the peak is the whole process's."""
    device, dtype = pick_device()[0], getattr(torch, args.dtype)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = random_model(args.shape, device)
    peaks, optimizer = {}, torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    rollouts = full_length_rollouts(args.rows, args.prompt_tokens, args.tokens, device)
    model.checkpoint_blocks = args.config == "train.py"
    method = GRPO(max_new_tokens=args.tokens)
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        if args.config != "plain":
            with torch.no_grad(), cast_weights(dtype, model):
                cache = KVCache(model, args.batch, args.prompt_tokens + args.tokens)
                for layer in cache.k + cache.v:
                    layer.fill_(0)  # memory that was never written is not counted
                cache.used = args.prompt_tokens + args.tokens - 1
                cache.lengths += cache.used
                last = rollouts.ids[:1, :1].expand(args.batch, 1)
                choose(model(last, cache)[:, -1], torch.rand(args.batch, device=device))
            peaks["sampling"] = memory_used(device)
            del cache
    wait = torch.cuda.synchronize if device == "cuda" else int
    times = []
    for _ in range(4 if device == "cuda" else 2):  # from the second one on, AdamW has its moments
        for p in model.parameters():
            p.grad = torch.zeros_like(p).fill_(0)
        wait()
        began = time.perf_counter()
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            if args.config == "plain":
                logp = model(rollouts.ids).float().log_softmax(-1)[:, :-1]
                logp = logp.gather(2, rollouts.ids[:, 1:, None]).squeeze(2)
                (-(loss_weights(rollouts.mask) * logp).sum()).backward()
                del logp
            else:
                micros = method.layout(rollouts, rollouts.mask.any(1), 10**9)
                advantages = rollouts.mask  # 1 for each token of the policy
                update_gradients(model, rollouts, advantages, method, micros)
        train.clip_gradients(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        wait()
        times.append(time.perf_counter() - began)
    seconds = min(times[1:])
    peaks["update"] = memory_used(device)
    return {
        "config": args.config,
        "peaks": peaks,
        "seconds": seconds,
        "tokens_per_second": args.rows * (args.prompt_tokens + args.tokens) / seconds,
    }


def memory_table(args):
    print(
        f"{args.shape} in {args.dtype}: {args.batch} rollouts of {args.prompt_tokens} + {args.tokens} tokens, "
        f"micro-batches of {args.rows}\n"
    )
    print(f"{'configuration':<18} {'sampling GB':>12} {'update GB':>10} {'tokens/s':>9}")
    rows = []
    for config in args.configs:
        command = [sys.executable, __file__, "--config", config] + [
            f"--{name.replace('_', '-')}={getattr(args, name)}"
            for name in ("shape", "rows", "batch", "prompt_tokens", "tokens", "dtype")
        ]
        row = json.loads(
            subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True
            ).stdout.splitlines()[-1]
        )
        sampling = f"{row['peaks']['sampling'] / 1e9:.2f}" if "sampling" in row["peaks"] else "-"
        print(
            f"{config:<18} {sampling:>12} {row['peaks']['update'] / 1e9:>10.2f} {row['tokens_per_second']:>9.0f}",
            flush=True,
        )
        rows.append(row)
    return rows


# ---- What a GPU would have to do, counted -----------------------------------------------------------------

BF16 = torch.bfloat16
CARDS = {  # bytes/s, dense operations/s, and their dtype, from NVIDIA's data sheets (SXM; A100 with 80 GB)
    "H200": (4.8e12, 989e12, BF16),
    "H100": (3.35e12, 989e12, BF16),
    "A100": (2.039e12, 312e12, BF16),
    "RTX 5090": (1.792e12, 209.5e12, BF16),
    "RTX 4090": (1.008e12, 165e12, BF16),
    "RTX 3090": (0.936e12, 71e12, BF16),
    "L4": (0.3e12, 121e12, BF16),
    "T4": (0.32e12, 8.1e12, torch.float32),  # has no bf16: everything is computed in fp32
}
START = 7.5e-6  # seconds to start a kernel from Python, measured on a CPU
# PyTorch's counter leaves addmm_ out.
ADDMM = {torch.ops.aten.addmm_: lambda total, a, b, out_shape: 2 * math.prod(a) * b[1]}
NO_KERNEL = "empty empty_like new_empty _unsafe_view detach alias device".split()


class Kernels(TorchDispatchMode):
    """Counts operations, and the bytes that they read and write. Views do not count."""

    def __init__(self):
        super().__init__()
        self.number = 0
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        returns = [value.alias_info for value in func._schema.returns]
        is_view = any(alias and not alias.is_write for alias in returns)
        if not is_view and name not in NO_KERNEL:
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
            if name in ("scatter_", "embedding"):  # these touch only what they move
                tensors = [tensors[-2 if name == "scatter_" else -1]] * 2
            if name in ("new_zeros", "ones_like"):  # these only write
                tensors = tensors[-1:]
            self.number += 1
            self.bytes += sum(x.nbytes for x in tensors)
        return out


def norm(x, *rest):
    """Stands in for a norm, which is many operations on a CPU and one kernel on a GPU: a softmax reads and writes as much,
    also in its backward pass. Autocast computes both in fp32."""
    return (x.float() if torch.is_autocast_enabled("cpu") else x).softmax(-1)


def counted(prepare, dtype=torch.float32):
    """Count (kernels, bytes, operations of matrix products) of the work that prepare(model) returns. The model, with
    weights in dtype, has Qwen3-0.6B's shape. Its tensors have shapes, but no numbers."""
    config = Config()
    config.num_tokens = 151669  # as Qwen3's tokenizer has
    real = F.rms_norm
    F.rms_norm = norm
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = Qwen3(config)
            model.checkpoint_blocks = True
            with cast_weights(dtype, model):
                work = prepare(model)
                with (
                    FlopCounterMode(display=False, custom_mapping=ADDMM) as flops,
                    Kernels() as kernels,
                ):
                    work()
    finally:
        F.rms_norm = real
    return kernels.number, kernels.bytes, flops.get_total_flops()


PROMPT, TOKENS, ROWS, MICRO = 128, 512, 64, 6  # 6 rows of 639 tokens: --micro-batch-tokens 4096


def one_token(model):
    """Return the work of a token for each row, in the middle of a completion, as in rlvr.sample."""
    cache = KVCache(model, ROWS, PROMPT + TOKENS)
    cache.used = PROMPT + TOKENS // 2
    ids = torch.zeros(ROWS, 1, dtype=torch.long)

    @torch.no_grad()
    def work():
        choose(model.next_logits(ids, cache, (slice(None), -1)), torch.zeros(ROWS))

    return work


def one_micro_batch(model, autocast=True):
    """Return the work of a micro-batch: forward pass, backward pass, and adding up the gradients."""
    ids = torch.zeros(MICRO, PROMPT + TOKENS - 1, dtype=torch.long)
    # This is no mask, because the number of its places would be unknown without numbers.
    rows = torch.arange(MICRO).repeat_interleave(TOKENS)
    places = torch.arange(PROMPT - 1, PROMPT + TOKENS - 1).repeat(MICRO)
    micro = MicroBatch(ids, (rows, places), rows)
    sums = {param: torch.zeros(param.shape) for param in model.parameters()}

    def work():
        for param, total in sums.items():
            param.grad = total if total.dtype == param.dtype else None
        with torch.autocast("cpu", BF16, enabled=autocast):
            logp, _ = trained_logprobs(model, micro, places)
            logp.sum().backward()
        for param, total in sums.items():
            if param.grad is not None and param.grad is not total:  # norms have none here
                total.add_(param.grad)

    return work


def counted_step():
    """Compute lower bounds on the seconds of a step with 64 completions, all of full length."""
    in_fp32 = functools.partial(one_micro_batch, autocast=False)
    token = {dtype: counted(one_token, dtype) for dtype in (BF16, torch.float32)}
    update = {BF16: counted(one_micro_batch), torch.float32: counted(in_fp32)}
    print(f"one token of {ROWS} rows after {PROMPT + TOKENS // 2}; {MICRO} rows in an update")
    for name, (kernels, moved, flops) in (
        ("token, bf16", token[BF16]),
        ("token, fp32", token[torch.float32]),
        ("update, bf16", update[BF16]),
        ("update, fp32", update[torch.float32]),
    ):
        print(f"{name:15} {kernels:6,} kernels, {moved / 1e9:7.2f} GB, {flops / 1e12:6.2f} TFLOP")
    micros = ROWS / MICRO
    rows = []
    for card, (bandwidth, rate, dtype) in CARDS.items():
        seconds = [TOKENS * token[dtype][0] * START, TOKENS * token[dtype][1] / bandwidth]
        seconds += [micros * update[dtype][2] / rate, micros * update[dtype][1] / bandwidth]
        rows.append([card, *(f"{value:.1f}" for value in seconds)])
        print(*(cell.rjust(15) for cell in rows[-1]))
    columns = ["seconds, at least", "sampling: starting kernels", "moving bytes"]
    columns += ["update: computing", "moving bytes"]
    return {"columns": columns, "rows": rows}


# ---- Which card needs which flags, computed ----------------------------------------------------------

LORA = "--method notebooks/methods/lora.py --lr 3e-5"
SIZES = {  # bytes of the card, the dtype that it computes in
    "8 GB": (8 * 2**30, BF16),
    "12 GB": (12 * 2**30, BF16),
    "16 GB": (16 * 2**30, BF16),
    "T4, 16 GB": (15.8e9, torch.float32),
    "24 GB": (24 * 2**30, BF16),
    "80 GB": (80 * 2**30, BF16),
}
CONTEXT = 0.6e9  # bytes that CUDA, its kernels and libraries take, assumed


def peak_memory(model, dtype, sampled, micro_tokens=4096, trained=None):
    """Bytes at the worst moment of a step, roughly. It is either sampling, with a cache of `sampled` tokens in rows of
    640, or an update by micro-batches of micro_tokens. trained: the number of trained weights (default: all)."""
    c = model.config
    n = sum(p.numel() for p in model.parameters())
    whole = trained is None
    trained = n if whole else trained
    size = dtype.itemsize  # of a number that is computed: 2 or 4 bytes
    V = c.vocab_size
    C = c.hidden_size

    weights = 4 * n
    copies = 2 * n if size == 2 else 0  # the same weights in bf16
    moments = 8 * trained  # Adam's two

    cache = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * size * sampled
    logits = 18 * V * math.ceil(sampled / 640)  # with some fp32 tensors of the same size
    sampling = cache + logits

    heads = c.num_attention_heads + c.num_key_value_heads
    block = 5 * C + 4 * c.intermediate_size + 5 * c.head_dim * heads  # numbers a token
    kept = size * micro_tokens * (block + C * c.num_hidden_layers)  # a block, and inputs of all
    chunk = 18 * min(CHUNK_ELEMENTS, micro_tokens * V)  # logits
    table = V * C if whole else 0
    head = kept + chunk + (2 * table if size == 2 else 0)  # the gradient of a chunk, if in bf16
    update = 4 * trained + max(head, 4 * table)  # at the end, the embedding's gradient
    return weights + copies + moments + max(sampling, update)


def card_table():
    """Compute the table for Qwen3-0.6B with the default flags and rows of 128 + 512 tokens."""
    with torch.device("meta"):
        model = Qwen3(Config())
    weights = 4 * sum(p.numel() for p in model.parameters())
    adapters = sum(8 * sum(w.shape) for w in model.model.layers.parameters() if w.ndim == 2)
    rows = []
    for card, (total, dtype) in SIZES.items():
        usable = total - CONTEXT
        sampled = sample_tokens_that_fit(model.config, dtype, usable - weights)
        ways = {"none": None, LORA: adapters}
        peaks = {way: peak_memory(model, dtype, sampled, trained=n) for way, n in ways.items()}
        way = next((way for way, peak in peaks.items() if peak < usable), "does not fit")
        cells = [str(dtype).removeprefix("torch."), f"{sampled:,}", way]
        rows.append([card, *cells, f"{peaks.get(way, 0) / 1e9:.1f}"])
    columns = ["card", "computes in", "tokens sampled at once", "flags that it needs"]
    return {"columns": [*columns, "GB at the worst moment"], "rows": rows}


# ---- Speed: whole steps of the tiny model ------------------------------------------------------------

TINY = ROOT / "notebooks" / "tiny"


def our_steps(steps, folder, log):
    """Run train.py as it is. Returns the seconds of each step, and adds its metrics to the list `log`."""
    train.main(
        [
            "--model",
            str(TINY),
            "--task",
            "arithmetic",
            "--device",
            "cpu",
            "--steps",
            str(steps),
            "--runs",
            folder,
            "--name",
            "ours",
            "--eval-every",
            "1000",
            "--eval-problems",
            "1",
            "--save-every",
            "1000",
        ]
    )
    rows = [
        json.loads(line) for line in Path(folder, "ours", "metrics.jsonl").read_text().splitlines()
    ][1:]
    log += rows
    return [row["sample_seconds"] + row["update_seconds"] for row in rows]


def train_trl(
    model,
    tokenizer,
    rows,
    reward,
    folder,
    steps,
    completions,
    tokens,
    report=lambda step, rate: None,
    optimizers=(None, None),
    **how,
):
    """Run GRPOTrainer without KL, with one update a batch. Returns the seconds of each step. completions: (problems, G)
    of a step. report(step, its learning rate) is called after each."""
    import datasets
    import transformers
    import trl

    times = []
    rates = []

    class Stopwatch(transformers.TrainerCallback):
        def on_step_begin(self, *_, optimizer, **__):
            times.append(time.perf_counter())
            rates.append(optimizer.param_groups[0]["lr"])

        def on_step_end(self, arguments, state, control, **_):
            times[-1] = time.perf_counter() - times[-1]
            report(state.global_step, rates[-1])

    P, G = completions
    config = trl.GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=P * G,
        num_generations=G,
        max_completion_length=tokens,
        beta=0.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **how,
    )
    trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Stopwatch()],
        optimizers=optimizers,
    ).train()
    return times


def trl_steps(task, steps, folder):
    """Train the tiny model with the same weights, reward, sizes and learning rate."""
    import transformers

    P, G = page.TINY["P"], page.TINY["G"]
    reward = for_trl(verifiers.tagged_reward)
    rows = [{"prompt": p["problem"], "answer": p["answer"]} for p in task.train[: P * steps]]
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    how = {"learning_rate": page.TINY["lr"], "gradient_checkpointing": False}
    tokens = page.TINY["max_new_tokens"]
    return train_trl(model, tokenizer, rows, reward, folder, steps, (P, G), tokens, **how)


def page_steps(steps):
    """Run page.py with the same reward. Returns the seconds of each step, which ends when the next one begins."""
    stamps, usual, box = [], page.roll_out, page.reward_rlvr

    def roll_out(model, problems, G, *rest, **how):
        if G > 1:  # not in an evaluation
            stamps.append(time.perf_counter())
        return usual(model, problems, G, *rest, **how)

    page.roll_out = roll_out
    page.reward_rlvr = lambda text, truth: verifiers.tagged_reward(text, {"answer": truth})[0]
    problems = page.sums(1000)
    page.train_rlvr(page.Qwen3(TINY), problems, problems[:1], **{**page.TINY, "steps": steps + 1})
    page.roll_out, page.reward_rlvr = usual, box
    return [end - begin for begin, end in zip(stamps, stamps[1:])]


def speed_table(args):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        task = verifiers.get_task("arithmetic")
        trainers = {"train.py": lambda out: our_steps(args.steps, out, rows)}
        trainers["page.py"] = lambda out: page_steps(args.steps)
        if importlib.util.find_spec("trl"):
            trainers["TRL"] = lambda out: trl_steps(task, args.steps, out)
        else:
            print("TRL is not installed: only our own rows\n")
        rows, seconds = [], {name: [] for name in trainers}
        for turn in range(args.repeats):
            for name, trainer in trainers.items():  # the first step warms up
                seconds[name].append(statistics.median(trainer(f"{folder}/{turn}")[1:]))
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    split = {
        key: sum(row[key] for row in rows)
        / sum(row["sample_seconds"] + row["update_seconds"] for row in rows)
        for key in ("sample_seconds", "update_seconds")
    }
    trained = sum(row["completion_length"] * 128 for row in rows) / sum(
        row["update_seconds"] for row in rows
    )
    print(
        f"\ntiny, 8 problems x 16 completions, {args.repeats} turns of {args.steps} steps, 1 CPU thread; median:"
    )
    for name, value in middle.items():
        ratios = [time / other for time, other in zip(seconds[name], seconds["train.py"])]
        print(
            f"{name:<18} {value:6.2f} s   {1 / value:5.2f} steps/s   {statistics.median(ratios):5.2f} x "
            f"[{min(ratios):.2f} - {max(ratios):.2f}]"
        )
    print(
        "of a step of train.py: "
        + ", ".join(f"{key.removesuffix('_seconds')} {share:.0%}" for key, share in split.items())
        + f"; the update takes {trained:.0f} completion tokens/s"
    )
    return {
        "steps_per_second": {name: 1 / value for name, value in middle.items()},
        "seconds": seconds,
        "split": split,
    }


def memory_rows(args, found):
    """Return the table for a page."""
    columns = ["GB at the worst moment", "first sampling, cache full", "update"]
    rows = []
    for one in found:
        peaks = [
            f"{one['peaks'][key] / 1e9:.1f}" if key in one["peaks"] else ""
            for key in ("sampling", "update")
        ]
        rows.append([f"{one['config']}, micro-batches of {args.rows} of {args.batch} rows", *peaks])
    sentences = {f"rows{args.rows}": f"{found[0]['peaks']['update'] / 1e9:.1f} GB"}
    return {"columns": columns, "rows": rows, "sentences": sentences}


def speed_rows(found):
    """Return the table for whole steps: the seconds of each turn."""
    rows = []
    for name, times in found["seconds"].items():
        ratios = [time / ours for time, ours in zip(times, found["seconds"]["train.py"])]
        turns = ", ".join(f"{time:.2f}" for time in times)
        rows.append([name, turns, f"{statistics.median(ratios):.1f} x"])
    return {"columns": ["trainer", "s a step, turn by turn", "takes"], "rows": rows}


# ---- The learning curve of SmolLM2, beside TRL's --------------------------------------------------------

CURVE = ["", "reward, first half", "second half", "held out half way: greedy, sampled"]
CURVE += ["in the end", "s a step"]


def trl_run(run, ours, steps):
    """Let TRL train the first steps of a run again. Returns its log. ours: the log of the run."""
    import transformers

    flags, settings, task = run.flags, run.method.settings, run.task
    log = {step: {"step": step} for step in range(1, steps + 1)}
    rewards = []
    picked = [task.train[i] for t in log for i in run.method.pick(task.train, t, run.memory)]
    rows = []
    for problem in picked:
        ids = run.tokenizer.encode_prompt(task.prompt(problem))
        rows.append({"prompt": run.tokenizer.decode(ids, skip_special_tokens=False), **problem})
    model = transformers.AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32)
    names = transformers.AutoTokenizer.from_pretrained(flags.model)
    [newline] = names(task.stops[0])["input_ids"]
    names.eos_token = names.convert_ids_to_tokens(newline)

    def reward(completions, completion_ids, problem, answer, **_):
        """The task's; a completion that was cut off earns nothing."""
        texts = zip(completions, completion_ids, problem, answer)
        values = [
            task.reward(text, {"problem": asked, "answer": truth})[0] * (ids[-1] == newline)
            for text, ids, asked, truth in texts
        ]
        rewards.append(statistics.mean(values))
        return values

    def report(step, rate):
        assert math.isclose(rate, ours[step]["lr"], rel_tol=1e-6), (step, rate, ours[step]["lr"])
        log[step]["reward"] = rewards[-1]
        if step in (steps // 2, steps):
            weights = model.state_dict()
            run.model.load_state_dict({name: weights[name] for name in run.model.state_dict()})
            log[step] |= train.evaluate_both(run)
        print(log[step], flush=True)

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=flags.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    rates = [ours[min(step + 1, max(ours))]["lr"] / flags.lr for step in range(steps + 1)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__)
    groups = settings.prompts_per_step, settings.num_samples
    how = {"seed": settings.seed, "shuffle_dataset": False, "loss_type": "dapo"}
    how |= {"max_grad_norm": 1.0, "gradient_checkpointing": True}
    how |= {"optimizers": (optimizer, schedule), "report": report}
    with tempfile.TemporaryDirectory() as folder:
        tokens = settings.max_new_tokens
        times = train_trl(model, names, rows, reward, folder, steps, groups, tokens, **how)
    return [row | {"seconds": seconds} for row, seconds in zip(log.values(), times)]


def curve_table(folders, steps):
    """Return two rows for each run, TRL's and its own, over the first steps. TRL's log stays in the run's folder."""
    rows = []
    ratios = []
    seeds = []
    for folder in folders:
        ours = train.read_log(folder)
        for row in ours.values():
            row["seconds"] = row.get("sample_seconds", 0) + row.get("update_seconds", 0)
        flags = train.parse_args(["--resume", "--runs", str(folder.parent), "--name", folder.name])
        log = folder / f"trl_{steps}.json"
        if not log.exists():
            log.write_text(json.dumps(trl_run(train.load_run(flags), ours, steps)))
        theirs = {row["step"]: row for row in json.loads(log.read_text())}
        half = steps // 2
        seconds = []
        seeds.append(flags.settings["seed"])
        for name, seen in (("TRL", theirs), ("train.py", ours)):
            cells = [f"{name}, seed {seeds[-1]}"]
            for part in (range(1, half + 1), range(half + 1, steps + 1)):
                cells.append(f"{statistics.mean(seen[step]['reward'] for step in part):.3f}")
            for step in (half, steps):
                row = seen[step]
                cells.append(f"{row['eval_accuracy']:.3f}, {row['eval_sampled_accuracy']:.3f}")
            seconds.append(statistics.mean(seen[step]["seconds"] for step in range(1, steps + 1)))
            rows.append([*cells, f"{seconds[-1]:.1f}"])
        ratios.append(seconds[0] / seconds[1])
    takes = f"{min(ratios):.1f} to {max(ratios):.1f} times as long"
    return {"columns": CURVE, "rows": rows, "sentences": {"takes": takes}, "seeds": seeds}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=["tiny", "0.6B"], default="tiny")
    parser.add_argument("--rows", type=int, default=1, help="rows of a micro-batch")
    parser.add_argument("--batch", type=int, default=8, help="rows that are sampled at once")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument(
        "--configs",
        nargs="*",
        default=["train.py"],
        help="of: train.py, activations kept, plain",
    )
    parser.add_argument("--config", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--cards", action="store_true")
    parser.add_argument(
        "--curve", type=Path, nargs="+", metavar="RUN", help="runs of recipes/smollm2.txt"
    )
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="turns that each trainer takes",
    )
    args = parser.parse_args()
    if args.config:
        return print(json.dumps(measure(args)))
    if args.cards:
        table = card_table()
        for row in (table["columns"], *table["rows"]):
            print(*(cell.ljust(24) for cell in row))
        return print(json.dumps(table))
    if args.count:
        return print(json.dumps(counted_step()))
    if args.curve:
        return print(json.dumps(curve_table(args.curve, args.steps)))
    result = memory_table(args) if args.shape == "0.6B" else speed_table(args)
    table = memory_rows(args, result) if args.shape == "0.6B" else speed_rows(result)
    print(json.dumps({**table, "shape": args.shape, "result": result}))


if __name__ == "__main__":
    main()
