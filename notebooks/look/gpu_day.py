"""gpu_day.py - one command for the day a GPU is there: what the pages say of GPUs, put to the test.

    python -m notebooks.look.gpu_day                 about 25 minutes of one card (estimated, never tried)
    python -m notebooks.look.gpu_day --small         the same code with a small model, on a CPU too: two minutes of one core
    python -m notebooks.kept --write                 then MEASURED.md shows what was found, not what was computed

It ends with a table CLAIM | EXPECTED | FOUND, in which REFUTED marks what does not hold. All of it is written to
results/gpu_day.json (--small: runs/gpu_day/small.json) as soon as it is found. Each part runs in a process of its own,
for at most ten minutes. A check that fails, or a part that dies, is a row, and the next one begins. The same command
goes on with parts that are missing or died; when the code has changed, or the file is gone, it begins anew.

No network is needed: random weights in the shape of Qwen3-0.6B, the tiny model, and SmolLM2 if the folder smollm2 is
there. Where the hub answers, the last part trains Qwen3-0.6B-Base on MATH; if ten minutes are too few, call again.

Left out: a sampler that records its steps as a CUDA graph. What it could gain is measured on a single token.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))

import bench_sampling
import train
from bench_training import BF16, CARDS, counted_step
from model import Config, Qwen3, load, save
from notebooks import kept
from notebooks.models.make_tiny import init_weights, symbol_tokenizer, tiny_config
from rlvr import GRPO, row_uniforms, sample, token_logprobs

LIMIT = 590  # seconds of a part
COMMAND = "python -m notebooks.look.gpu_day"
WORK = ROOT / "runs" / "gpu_day"  # its runs and models


@dataclass
class Day:
    """What every check gets."""

    small: bool
    device: str
    out: Path  # the result


# ---- 1. What checks share --------------------------------------------------------------------------
# A check yields rows: claim, expected, found, and whether it holds, if anything is claimed.


def ran(*words):
    """A command of the project -> its last line. Raises RuntimeError with the end of what it printed."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-900:]}")
    return done.stdout.splitlines()[-1]


def trained(day, name, *flags, start=("train.py",)):
    """A run of that name, begun anew unless it is to resume -> the rows of its log, by step."""
    if "--resume" not in flags:
        shutil.rmtree(WORK / name, ignore_errors=True)
    ran(*start, "--runs", WORK, "--name", name, "--device", day.device, *flags)
    return train.read_log(WORK / name)


def model_folder(day):
    """Random weights, and a tokenizer with a character for each token."""
    folder = WORK / ("small" if day.small else "0.6B")
    if not folder.exists():
        tokens = 500 if day.small else 151669
        tokenizer = symbol_tokenizer([chr(0x20000 + i) for i in range(tokens - 2)])
        config = tiny_config(512, 0) if day.small else Config(eos_token_id=0)
        save(init_weights(Qwen3(config), None).to(BF16), tokenizer, folder)
    return folder


def prompts_of(rows, tokens):
    return torch.randint(2, 400, (rows, tokens), generator=torch.Generator().manual_seed(0))


class Full(GRPO):
    """Random weights never stop: no completion counts as cut off."""

    def roll_out(self, *given):
        rollouts = super().roll_out(*given)
        rollouts.finished[:] = True
        return rollouts


def size_flags(day):
    """Flags of a run of random weights on problems of 128 tokens, paid by a coin."""
    texts = ["".join(chr(0x20000 + i) for i in ids) for ids in prompts_of(256, 128).tolist()]
    lines = [json.dumps({"problem": text, "answer": "1"}) for text in texts]
    problems = WORK / "problems.jsonl"
    problems.write_text("\n".join(lines))
    flags = ["--model", model_folder(day), "--task", problems, "--prompt", "{problem}"]
    flags += "--reward notebooks/rewards/controls.py:coin --eval-problems 2".split()
    flags += "--method notebooks/look/gpu_day.py:Full --max-new-tokens".split()
    return [*flags, 16 if day.small else 512]


# ---- 2. Facts --------------------------------------------------------------------------------------


def card_name(day):
    """The name in CARDS, or the card's own."""
    name = torch.cuda.get_device_name() if day.device == "cuda" else "CPU"
    return next((known for known in CARDS if known in name), name)


def card(day):
    bandwidth, _ = CARDS.get(card_name(day), (0, 0))
    found = bench_sampling.bandwidth(day.device) / 1e12
    yield "reading memory, TB/s", f"{bandwidth / 1e12:.2f} on paper", f"{found:.2f}"


def kernels(day):
    """Which attend; how often decoding waits for them; whether it pays to record them."""
    yield from bench_sampling.attention_rows()
    model, _ = load(model_folder(day), day.device, BF16)
    yield from bench_sampling.waiting_rows(model)
    yield from bench_sampling.recorded_rows(model)


# ---- 3. Parity -------------------------------------------------------------------------------------


@torch.no_grad()
def with_transformers(day):
    import transformers

    ids = prompts_of(4, 64).to(day.device)
    logits = []
    for dtype in (torch.float32, BF16):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(model_folder(day), dtype=dtype)
        logits.append(theirs.to(day.device)(ids).logits.double())
        logits.append(load(model_folder(day), day.device, dtype)[0](ids).double())
    exact = logits[0]
    fp32, theirs, ours = (((found - exact).norm() / exact.norm()).item() for found in logits[1:])
    yield "logits differ from transformers', fp32", "< 1e-5", f"{fp32:.1e}", fp32 < 1e-5
    bar = f"at most 1.5 x theirs, {theirs:.1e}"
    yield "error of the logits in bf16", bar, f"{ours:.1e}", ours <= 1.5 * theirs


def mismatch(day):
    """Log-probs as sampled, and as an update recomputes them."""
    model, _ = load(model_folder(day), day.device)
    prompts = prompts_of(4, 40).tolist()
    uniforms = row_uniforms(range(16), 16 if day.small else 128, 0)
    for dtype, bar in ((torch.float32, 1e-5), (BF16, 0.05)):
        with train.weights_in(dtype, model):
            rollouts = sample(model, prompts, 4, uniforms.size(1), 1.0, [], uniforms)
        with torch.no_grad(), torch.autocast(day.device, BF16, enabled=dtype == BF16):
            logp = token_logprobs(model, rollouts.ids, mask=rollouts.mask)
        off = (logp - rollouts.logp).abs()[rollouts.mask > 0].mean().item()
        yield f"mismatch, {dtype}", f"< {bar}", f"{off:.1e}", off < bar


# ---- 4. Runs ---------------------------------------------------------------------------------------


def learning(day):
    """The main command; and SmolLM2, if it is there."""
    flags = ["--steps", 5, "--eval-problems", 20] if day.small else []
    rows = trained(day, "tiny", "--model", "notebooks/tiny", *flags)
    last = rows[max(rows)]
    accuracy = last["eval_accuracy"]
    yield "the main command", "-> 1.000", f"-> {accuracy:.3f}", day.small or accuracy > 0.95
    yield "    its mismatch", "< 0.05", f"{last['mismatch']:.1e}", last["mismatch"] < 0.05
    if (ROOT / "smollm2").exists() and not day.small:
        rows = trained(day, "smollm2", "@notebooks/recipes/smollm2.txt")
        accuracy = rows[max(rows)]["eval_sampled_accuracy"]
        yield "SmolLM2, sampled", ".213 -> .764", f"-> {accuracy:.3f}", accuracy > 0.7


def equal_runs(day):
    """Two equal runs; then the second loses its last three steps, and is resumed."""
    flags = "--model notebooks/tiny --steps 6 --save-every 3 --eval-problems 4"
    trained(day, "once", *flags.split())
    trained(day, "twice", *flags.split())
    yield "weights of two equal runs", *distance(day)
    for late in ("checkpoints/step_000006", "final"):
        shutil.rmtree(WORK / "twice" / late)
    trained(day, "twice", "--resume")
    yield "weights of a resumed run", *distance(day)


def distance(day):
    one, other = (load_file(WORK / name / "final/model.safetensors") for name in ("once", "twice"))
    most = max((one[name] - other[name]).abs().max().item() for name in one)
    found = "equal" if most == 0 else f"up to {most:.1e} apart"
    return "equal (on a GPU: nearly)", found, most == 0 or day.device == "cuda"


def sharded(day):
    start = "-m torch.distributed.run --standalone --nproc-per-node 1 train.py --fsdp".split()
    flags = ["--model", "notebooks/tiny", "--steps", 3, "--eval-problems", 4]
    off = trained(day, "fsdp", *flags, start=start)[3]["mismatch"]
    yield "--fsdp on one process: mismatch", "< 0.05", f"{off:.1e}", off < 0.05


LIMITED = """import runpy, torch; torch.cuda.set_per_process_memory_fraction({})
runpy.run_path('train.py', run_name='__main__')"""


def out_of_memory(day):
    """While loading, sampling, updating."""
    total = torch.cuda.get_device_properties(0).total_memory / 1e9
    for gb in (2.0, 4.5, 9.0):
        start = ["-c", LIMITED.format(gb / total)]
        try:
            trained(day, "oom", *size_flags(day), "--steps", 1, start=start)
            found = "it fits"
        except RuntimeError as error:
            found = str(error).partition("too little memory: ")[2][:60]
        yield f"with {gb} GB", "give a smaller --..", found, found.startswith("give a smaller --")


# ---- 5. Step ---------------------------------------------------------------------------------------


def whole_steps(day):
    """Three by the default flags, in this process, so that its peak can be read."""
    shutil.rmtree(WORK / "steps", ignore_errors=True)
    flags = [*size_flags(day), "--steps", 3, "--runs", WORK, "--name", "steps"]
    flags += "--prompts-per-step 2 --num-samples 4".split() if day.small else []
    train.main([*map(str, flags), "--device", day.device])
    last = train.read_log(WORK / "steps")[3]
    computed = {} if day.small else {row[0]: row[1:] for row in counted_step()["rows"]}
    least = computed.get(card_name(day), "?????")
    for name, expected in (("sample", least[:2]), ("update", least[2:4])):
        found = f"{last[f'{name}_seconds']:.2f}"
        yield f"s of {name} in a step", f"at least {', '.join(expected)}", found
    off = last["mismatch"]
    yield "mismatch of a step", "< 0.05", f"{off:.1e}", off < 0.05
    peak = torch.cuda.max_memory_allocated() / 1e9  # on a CPU 0
    yield "GB of a step (on a CPU 0)", "13.2 computed, < 16", f"{peak:.1f}", peak < 16


def update_of_8(day):
    """8 completions of 1,024 tokens: as train.py updates, and on bf16 copies of the weights."""
    flags = "--shape 0.6B --rows 8" if not day.small else "--rows 2 --batch 2 --tokens 16"
    for way in ("train.py", "copies"):
        found = json.loads(ran("tests/bench_training.py", *flags.split(), "--config", way))
        peak = found["peaks"]["update"] / 1e9
        yield f"GB of an update of 8 x 1,024, {way}", "at most 14", f"{peak:.2f}", peak <= 14
        yield f"its seconds, {way}", "copies take less", f"{found['seconds']:.2f}"


# ---- 6. Speed, and the hub -------------------------------------------------------------------------


def in_turn(day):
    """rlvr.sample and transformers.generate, by turns."""
    flags = "--rows 16 --repeats 1" if day.small else "--shape 0.6B --rows 64"
    found = json.loads(ran("tests/bench_sampling.py", *flags.split()))
    ratio = found["ratios"]["transformers"]
    yield "transformers.generate takes", "more than 1 x", f"{ratio:.2f} x", ratio > 1


def math(day):
    """Qwen3-0.6B-Base on MATH: MATH-500 before and after."""
    begun = (WORK / "math" / "config.json").exists()
    flags = "--resume" if begun else "--steps 100 --eval-every 100 --save-every 10"
    rows = trained(day, "math", *flags.split())
    before, after = rows[0]["eval_accuracy"], rows[100]["eval_accuracy"]
    yield "MATH-500, greedy", "rises", f"{before:.3f} -> {after:.3f}", after > before


# ---- 7. The day ------------------------------------------------------------------------------------

PARTS = {
    "facts": [card, kernels],
    "parity": [with_transformers, mismatch],
    "runs": [learning, equal_runs, sharded, out_of_memory],
    "step": [update_of_8, whole_steps],
    "speed": [in_turn],
    "hub": [math],
}
GPU_ONLY = [kernels, out_of_memory, math]


def rows_of(day, check):
    """The rows of a check as they are found; an error is a row, too."""
    if day.device == "cpu" and check in GPU_ONLY:
        yield [check.__name__, "", "not on a CPU"]
        return
    try:
        for claim, expected, found, *holds in check(day):
            yield [claim, expected, found if all(holds) else f"REFUTED {found}"]
    except (Exception, SystemExit) as error:
        no_hub = "the hub did not send it" in str(error)
        yield [check.__name__, "no error", "no hub" if no_hub else f"REFUTED {error!r:.300}"]


def run_part(day, part):
    rows = []
    for check in PARTS[part]:
        for row in rows_of(day, check):
            rows.append(row)
            keep(day, part, rows)
    keep(day, part, rows, ended=True)


def keep(day, part, rows, ended=False):
    result = json.loads(day.out.read_text())
    result["parts"][part] = {"rows": rows, "ended": ended}
    result["rows"] = [row for one in result["parts"].values() for row in one["rows"]]
    kept.write_json(day.out, result)


def begin(day):
    """-> the result so far, if it is of the same code; else a new one."""
    asked = {"commands": [COMMAND], "also": "tests/bench_*.py"}
    origin = kept.origin(kept.hashes(asked["commands"], asked["also"]))
    result = json.loads(day.out.read_text()) if day.out.exists() else {}
    if result.get("scripts") != origin["scripts"]:
        origin["machine"]["cpu"] += f" and one {card_name(day)}"
        table = {"columns": ["claim", "expected", "found"], "rows": [], "sentences": {}}
        result = {**asked, **origin, "seeds": [], **table, "parts": {}}
        kept.write_json(day.out, result)
    return result


def in_a_process(day, part):
    """If it dies, or takes too long, that is its last row."""
    command = [sys.executable, *COMMAND.split()[1:], "--part", part, "--out", str(day.out)]
    command += ["--small"] * day.small
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        why = f"exit code {process.wait(LIMIT)}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with its own processes
        why = f"not done after {LIMIT} s: call again"
    found = json.loads(day.out.read_text())["parts"].get(part, {"rows": []})
    if not found.get("ended"):
        keep(day, part, [*found["rows"], [part, "no error", f"REFUTED {why}"]])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a small model: the dry run")
    parser.add_argument("--out", type=Path, help="the result (default: see above)")
    parser.add_argument("--part", choices=PARTS, help="this one, in this process")
    args = parser.parse_args(argv)
    out = args.out or (WORK / "small.json" if args.small else kept.RESULTS / "gpu_day.json")
    day = Day(args.small, "cuda" if torch.cuda.is_available() else "cpu", out.resolve())
    if day.device == "cpu" and not day.small:
        raise SystemExit("there is no CUDA GPU: --small is the dry run")
    WORK.mkdir(parents=True, exist_ok=True)
    result = begin(day)
    if args.part:
        return run_part(day, args.part)
    for part in PARTS:
        if not result["parts"].get(part, {}).get("ended"):
            print(f"== {part}", flush=True)
            in_a_process(day, part)
    result = json.loads(day.out.read_text())
    for claim, expected, found in [result["columns"], *result["rows"]]:
        print(f"{claim:40} | {expected:30} | {found}")


if __name__ == "__main__":
    main()
