"""gpu_day.py - tests what the pages say about GPUs: eight minutes on one card.

on a machine with a CUDA GPU (no network is needed):
    python -m notebooks.look.gpu_day
a dry run with a small model, also on a CPU:
    python -m notebooks.look.gpu_day --small
some parts only, even if they are done:
    python -m notebooks.look.gpu_day --parts memory ranks

Each row, PART | CLAIM | EXPECTED | FOUND, is printed and written to
runs/gpu_day/found.json (--small: small.json) as soon as it is known. What
train.py prints goes into a .txt beside that file. REFUTED marks a claim that
fails. A check that raises an error, a part that crashes and a part that runs
out of time are rows, too. The whole table comes last, whatever happens. Run
the same command again to continue with the parts that are not done; at another
commit it starts over. MEASURED.md shows how to put the table into the pages.

The models are random weights in the shape of Qwen3-0.6B, made on the device;
the tiny model; and SmolLM2, if the folder smollm2 is there. The most valuable
parts come first. Each part runs in a fork of this process, so nothing is
imported twice, and if a part crashes, the others still run. This process must
not touch the GPU itself: its forks could not use it then.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # looking for a GPU does not touch it

import torch
import torch._dynamo  # AdamW's first step needs it: import it once for all forks
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "tests")]

import bench_sampling
import bench_training
import train
from appendix.plumbing import DataError
from bench_training import BF16, CARDS, random_model
from notebooks.command import parser_of, run_command, say
from notebooks.look import keep
from notebooks.models.make_tiny import symbol_tokenizer
from notebooks.rewards.guards import coin
from rlvr import row_uniforms, sample, token_logprobs

COMMAND = "python -m notebooks.look.gpu_day"
FORK = multiprocessing.get_context("fork")
WORK = ROOT / "runs" / "gpu_day"  # folder of its runs
TOGETHER = "--model, or --fsdp"  # what train.py suggests if no other flag helps
COLUMNS = ["part", "claim", "expected", "found"]
ENDED = "it took"  # the claim in the last row of a part that is done
LONGEST = 150  # seconds for one part: if it hangs, the others still have time


@dataclass
class Day:
    """The options that every check gets."""

    small: bool
    device: str
    out: Path  # file of the result


# ---- 1. What checks share --------------------------------------------------------------------------
# A check yields rows: claim, expected, found and, if it claims something, whether that is true.


def random_policy(day):
    """Return a model with random weights on the device, and a tokenizer with a character for each token."""
    model = random_model("tiny" if day.small else "0.6B", day.device)
    tokens = 60 if day.small else 151669
    model.config.num_tokens = tokens
    return model, symbol_tokenizer([chr(0x20000 + i) for i in range(tokens - 2)])


def prompts_of(rows, tokens):
    return torch.randint(2, 58, (rows, tokens), generator=torch.Generator().manual_seed(0))


def trained(day, name, *flags):
    """Run train.py, from the start unless --resume is given -> the rows of its log, by step."""
    if "--resume" not in flags:
        shutil.rmtree(WORK / name, ignore_errors=True)
    words = ["--runs", WORK, "--name", name, "--device", day.device, *flags]
    with open(day.out.with_suffix(".txt"), "a") as log, contextlib.redirect_stdout(log):
        print("train.py", *words)
        with train.oom_hint("model"):
            train.main([*map(str, words)])
    return train.read_log(WORK / name)


def debt(completion, problem):
    """Return 0 or -1, by a coin. Random weights never stop, and a completion that is cut off earns at most 0."""
    reward, parts = coin(completion, problem)
    return reward - 1, parts


def trained_at_random(day, name, *flags):
    """Like trained, with random weights, on problems of 128 tokens that a coin rewards. There is no preflight,
    evaluation or checkpoint, because nobody would look at them."""
    folder = WORK / "random"  # its model has no file of weights
    folder.mkdir(exist_ok=True)
    texts = ["".join(chr(0x20000 + i) for i in ids) for ids in prompts_of(256, 128).tolist()]
    lines = [json.dumps({"problem": text, "answer": "1"}) for text in texts]
    (folder / "problems.jsonl").write_text("\n".join(lines))
    words = ["--model", folder, "--task", folder / "problems.jsonl", "--prompt", "{problem}"]
    words += ["--reward", f"{__file__}:debt", "--eval-problems", 2]
    if day.small:
        words += "--prompts-per-step 2 --num-samples 4 --max-new-tokens 16".split()
    nothing = "check_model preflight start evaluate_both save_checkpoint save_final".split()
    instead = dict.fromkeys(nothing, lambda *given: {})
    instead["load"] = lambda *given: random_policy(day)
    with mock.patch.multiple(train, **instead):
        return trained(day, name, *words, *flags)


# ---- 2. Facts --------------------------------------------------------------------------------------


def card_name():
    """Return the card's name in CARDS, or its own name if it is not there."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return next((known for known in CARDS if f" {known} " in f" {name} ".replace("-", " ")), name)


def card(day):
    name = card_name()
    result = json.loads(day.out.read_text())
    result["machine"]["card"] = name
    keep.write_json(day.out, result)
    bandwidth = CARDS[name][0] / 1e12 if name in CARDS else 0.0
    found = bench_sampling.bandwidth(day.device) / 1e12
    yield f"{name}: reading memory, TB/s", f"{bandwidth:.2f} on paper", f"{found:.2f}"


def attention(day):
    yield from bench_sampling.attention_rows()


def waits(day):
    yield from bench_sampling.waiting_rows(random_policy(day)[0].to(BF16))


def recorded(day):
    model = random_policy(day)[0].to(BF16)
    yield from bench_sampling.recorded_rows(model, tokens=24 if day.small else 512)


# ---- 3. A step -------------------------------------------------------------------------------------


def whole_steps(day):
    """Make three steps with the default flags."""
    log = trained_at_random(day, "steps", "--steps", 3)
    least = {row[0]: row[1:] for row in keep.load("counted")["rows"]}
    least = least.get(card_name(), ["?"] * 5)
    for name, expected in (("sample", least[:2]), ("update", least[2:4])):
        found = f"{log[3][f'{name}_seconds']:.2f}"
        yield f"s of {name} in a step", f"at least {', '.join(expected)}", found
    off = log[3]["mismatch"]
    yield "mismatch of a step", "< 0.05", f"{off:.1e}", off < 0.05
    if day.device == "cuda":
        with torch.device("meta"):
            model = random_model("0.6B", "meta")
        expected = bench_training.peak_memory(model, BF16, 64 * 640) / 1e9
        peak = torch.cuda.max_memory_allocated() / 1e9
        yield "GB of a step", f"{expected:.1f} computed, < 16", f"{peak:.1f}", peak < 16
        yield "    with what PyTorch reserves", "", f"{torch.cuda.max_memory_reserved() / 1e9:.1f}"


def mismatch(day):
    """Compare log-probs as sampled with those that an update computes."""
    model, _ = random_policy(day)
    prompts = prompts_of(4, 40).tolist()
    uniforms = row_uniforms(range(16), 16 if day.small else 128, 0)
    for dtype, bar in ((torch.float32, 1e-5), (BF16, 0.05)):
        with train.cast_weights(dtype, model):
            rollouts = sample(model, prompts, 4, uniforms.size(1), 1.0, [], uniforms)
        with torch.no_grad(), torch.autocast(day.device, BF16, enabled=dtype == BF16):
            logp = token_logprobs(model, rollouts.ids, mask=rollouts.mask)
        off = (logp - rollouts.logp).abs()[rollouts.mask > 0].mean().item()
        yield f"mismatch, {dtype}", f"< {bar}", f"{off:.1e}", off < bar


# ---- 4. Beside transformers ------------------------------------------------------------------------


@torch.no_grad()
def same_logits(day):
    model, _ = random_policy(day)
    ids = prompts_of(4, 64).to(day.device)
    logits = []
    for dtype in (torch.float32, BF16):
        model.to(dtype)
        logits.append(bench_sampling.transformers_twin(model)(ids).logits.double())
        logits.append(model(ids).double())
    exact = logits[0]
    fp32, theirs, ours = (((found - exact).norm() / exact.norm()).item() for found in logits[1:])
    yield "logits differ from transformers', fp32", "< 1e-5", f"{fp32:.1e}", fp32 < 1e-5
    bar = f"at most 1.5 x theirs, {theirs:.1e}"
    yield "error of the logits in bf16", bar, f"{ours:.1e}", ours <= 1.5 * theirs


def in_turn(day):
    """Time rlvr.sample and transformers.generate, by turns."""
    flags = "--rows 16 --repeats 1" if day.small else "--shape 0.6B --rows 64"
    with contextlib.redirect_stdout(None):
        ratio = bench_sampling.main(flags.split())["ratios"]["transformers"]
    yield "transformers.generate takes", "more than 1 x", f"{ratio:.2f} x", ratio > 1


# ---- 5. Runs ---------------------------------------------------------------------------------------


def main_command(day):
    flags = ["--steps", 5, "--eval-problems", 20] if day.small else []
    rows = trained(day, "tiny", "--model", "notebooks/tiny", *flags)
    last = rows[max(rows)]
    accuracy = last["eval_accuracy"]
    yield "the main command", "-> 1.000", f"-> {accuracy:.3f}", day.small or accuracy > 0.95
    yield "    its mismatch", "< 0.05", f"{last['mismatch']:.1e}", last["mismatch"] < 0.05


def equal_runs(day):
    """Make two equal runs. The second then loses its last three steps and is resumed. The step after the
    checkpoint has the same weights and random numbers as before, so even on a GPU nearly all of its tokens are the
    same."""
    flags = "--model notebooks/tiny --steps 6 --save-every 3 --eval-problems 4".split()
    trained(day, "once", *flags)
    before = trained(day, "twice", *flags)[4]["entropy"]
    yield "weights of two equal runs", *distance(day)
    for late in ("checkpoints/step_000006", "final"):
        shutil.rmtree(WORK / "twice" / late)
    after = trained(day, "twice", "--resume")[4]["entropy"]
    yield "weights of a resumed run", *distance(day)
    same = abs(after - before) <= 0.01 * before
    yield "    entropy of its first step", f"{before:.4f}, to 1 %", f"{after:.4f}", same


def distance(day):
    one, other = (load_file(WORK / name / "final/model.safetensors") for name in ("once", "twice"))
    most = max((one[name] - other[name]).abs().max().item() for name in one)
    holds = most == 0 or day.device == "cuda"  # where sums are added in any order
    return "equal on a CPU", f"{most:.1e} apart", holds


def sharded(day):
    """Train with --fsdp on a single process, started as by torchrun. (tests/test_ranks.py tests several
    processes.)"""
    process = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    process |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29613"}
    process |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    flags = ["--fsdp", "--model", "notebooks/tiny", "--steps", 3, "--eval-problems", 4]
    with mock.patch.dict(os.environ, process):
        off = trained(day, "fsdp", *flags)[3]["mismatch"]
    yield "--fsdp on one process: mismatch", "< 0.05", f"{off:.1e}", off < 0.05


def smollm2(day):
    if day.small or not (ROOT / "smollm2").exists():
        return
    rows = trained(day, "smollm2", "@notebooks/recipes/smollm2.txt")
    accuracy = rows[max(rows)]["eval_sampled_accuracy"]
    yield "SmolLM2, sampled", ".213 -> .782", f"-> {accuracy:.3f}", accuracy > 0.7


# ---- 6. Memory -------------------------------------------------------------------------------------


def update_of_8(day):
    """Update on 8 completions of 1,024 tokens."""
    size = {"shape": "0.6B", "rows": 8, "batch": 8, "tokens": 1024}
    if day.small:
        size = {"shape": "tiny", "rows": 2, "batch": 2, "tokens": 16}
    given = SimpleNamespace(config="train.py", prompt_tokens=128, dtype="bfloat16", **size)
    found = bench_training.measure(given)
    peak = found["peaks"]["update"] / 1e9
    yield "GB of an update of 8 x 1,024", "12.8 computed, at most 14", f"{peak:.2f}", peak <= 14
    yield "its seconds", "", f"{found['seconds']:.2f}"


def out_of_memory(day):
    """Run out of memory while loading, sampling and updating: train.py must name the flag that helps."""
    total = torch.cuda.get_device_properties(0).total_memory
    places = {
        TOGETHER: (2.0, 512),
        "--sample-tokens": (4.5, 512),
        "--micro-batch-tokens": (6.0, 64),
    }
    for flag, (gb, tokens) in places.items():
        tokens = 16 if day.small else tokens
        gc.collect()  # free what earlier checks and runs left
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(gb * 1e9 / total)
        found = "it fits"
        try:
            trained_at_random(day, "oom", "--steps", 1, "--max-new-tokens", tokens)
        except (Exception, SystemExit) as error:
            found = str(error)
        message = found.partition("too little memory: give a smaller ")[2]
        yield f"out of memory with {gb} GB", flag, message[:60] or found, message.startswith(flag)
    torch.cuda.set_per_process_memory_fraction(1.0)


# ---- 7. The day ------------------------------------------------------------------------------------

PARTS = {  # the most valuable first, as time may run out
    "facts": [card, attention, waits, recorded],
    "step": [whole_steps, mismatch],
    "transformers": [same_logits, in_turn],
    "main": [main_command, equal_runs],
    "memory": [update_of_8, out_of_memory],
    "ranks": [sharded],
    "smollm2": [smollm2],
}
GPU_ONLY = [attention, waits, recorded, out_of_memory]


def begin(day):
    """Continue the file if it is of the same commit, else start a new one."""
    origin = keep.origin(COMMAND)
    if day.out.exists() and "columns" not in read(day):
        raise DataError(f"{day.out} is no result of this command: give another --out")
    if not day.out.exists() or read(day).get("commit") != origin["commit"]:
        day.out.parent.mkdir(parents=True, exist_ok=True)
        keep.write_json(day.out, {**origin, "columns": COLUMNS, "rows": []})


def read(day):
    return json.loads(day.out.read_text())


def write(day, part, rows):
    """Replace the rows of a part. Once the part is done, its last row has its time in seconds."""
    result = read(day)
    others = [row for row in result["rows"] if row[0] != part]
    keep.write_json(day.out, {**result, "rows": [*others, *([part, *row] for row in rows)]})


def rows_of(day, check):
    """Yield the rows of a check as they are found. An error is a row, too."""
    if day.device == "cpu" and check in GPU_ONLY:
        yield [check.__name__, "", "not on a CPU"]
        return
    try:
        for claim, expected, found, *holds in check(day):
            yield [claim, expected, found if all(holds) else f"REFUTED {found}"]
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        yield [check.__name__, "no error", f"REFUTED {error!r:.300}"]


def run_part(day, part):
    began = time.monotonic()
    if day.small:
        torch.set_num_threads(1)  # with tensors so small, threads mostly wait for each other
    rows = []
    for check in PARTS[part]:
        for row in rows_of(day, check):
            say(f"{row[0]} | {row[1]} | {row[2]}")
            rows.append(row)
            write(day, part, rows)
    write(day, part, [*rows, [ENDED, "", f"{time.monotonic() - began:.1f} s"]])


def in_a_process(seconds, work, *given):
    """Run work(*given) in a fork. Returns what went wrong, or "" if it ended well within this time."""
    process = FORK.Process(target=work, args=given)
    process.start()
    try:
        process.join(seconds)
        if process.is_alive():
            return f"not done after {seconds:.0f} s"
        return f"exit code {process.exitcode}" if process.exitcode else ""
    finally:
        process.kill()
        process.join(20)  # the driver may delay its end


def find_gpu():
    sys.exit(not torch.cuda.is_available())


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("--small", action="store_true", help="a dry run with a small model")
    parser.add_argument("--minutes", type=float, default=8, help="time for all parts (default: 8)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, help="file of the result (default: see above)")
    args = parser.parse_args(argv)
    end = time.monotonic() + 60 * args.minutes
    out = args.out or WORK / ("small.json" if args.small else "found.json")
    device = "cpu" if in_a_process(60, find_gpu) else "cuda"
    if device == "cpu" and not args.small:
        raise SystemExit("error: there is no CUDA GPU: --small is the dry run")
    day = Day(args.small, device, out.resolve())
    WORK.mkdir(parents=True, exist_ok=True)
    begin(day)
    ended = {row[0] for row in read(day)["rows"] if row[1] == ENDED}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    try:
        for part in args.parts or [part for part in PARTS if part not in ended]:
            print(f"== {part}", flush=True)
            left = min(end - time.monotonic(), LONGEST)
            why = in_a_process(left, run_part, day, part) if left > 0 else "no time is left"
            if why:
                rows = [row[1:] for row in read(day)["rows"] if row[0] == part and left > 0]
                write(day, part, [*rows, [part, "", f"NOT DONE: {why}; call again"]])
    finally:
        for row in read(day)["rows"]:
            say(" | ".join(row))


if __name__ == "__main__":
    run_command(main, ValueError)
