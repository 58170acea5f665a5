"""run_all.py - the runs broken on purpose, one after the other, on the tiny model: a few seconds each.

    python notebooks/conformance/broken/run_all.py              all of them, into curves.json
    python notebooks/conformance/broken/run_all.py off_by_one   some of them

Each is compared with a right run of the same flags. notebooks/9_conformance.ipynb shows the curves.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
STEPS = 15
ONCE = ""
FOUR = "--updates-per-batch 4 --lr 1e-3"
KL = "--kl-coef 0.5"
MICRO = "--micro-batch-tokens 600"
NO_CASE = "none: only a run shows it"
COLUMNS = "reward accuracy completion_length truncated mixed entropy mismatch clipped kl grad_norm"


@dataclass
class Broken:
    name: str  # of the method's file
    flags: str
    column: str  # of metrics.jsonl, which shows it first
    cause: str
    case: str  # of vectors.json, which finds it without a run


BROKEN = [
    Broken("no_baseline", ONCE, "grad_norm", "rewards are the advantages", "advantages: std of the group"),
    Broken("across_prompts", ONCE, "accuracy", "groups across prompts", "advantages: rows of a group"),
    Broken("sign_reversed", ONCE, "reward", "the loss has the wrong sign", "loss: the first update"),
    Broken("one_stream", ONCE, "error", "one random stream for a group", "sampling: seed and row"),
    Broken("stale_sampler", ONCE, "mismatch", "the sampler has old weights", NO_CASE),
    Broken("other_temperature", ONCE, "mismatch", "sampled at 0.7, trained at 1", "log-probs: temperature"),
    Broken("off_by_one", ONCE, "mismatch", "the mask is a column late", "mask: the pad is the stop token"),
    Broken("stop_not_trained", ONCE, "completion_length", "the stop is masked out", "mask: the pad is the stop token"),
    Broken("prompt_trained", ONCE, "mismatch", "the mask covers the prompt", "mask: prompts of different lengths, padded on the right"),
    Broken("padding_trained", ONCE, "completion_length", "the mask covers the padding", "mask: a stop in the middle"),
    Broken("own_means", MICRO, "grad_norm", "micro-batches have means of their own", "loss: micro-batches"),
    Broken("wrong_side", FOUR, "clipped", "max for min", "loss: clip at both signs"),
    Broken("ratio_of_one", FOUR, "clipped", "old log-probs computed anew", "loss: three updates"),
    Broken("k1_in_the_loss", KL, "kl", "k1 as a loss", "KL: gradient"),
    Broken("kl_reversed", KL, "kl", "the KL term has the wrong sign", "KL: gradient"),
]  # fmt: skip


def run(flags, folder, method=None):
    """-> {column: its values by step} of a run of STEPS steps, or {"error": why it did not run}."""
    command = [sys.executable, str(ROOT / "train.py"), "--runs", str(folder), "--name", "run"]
    command += f"--steps {STEPS} --eval-every 1000 --save-every 1000 --eval-problems 8".split()
    command += flags.split()
    if method:
        command += ["--method", str(HERE / f"{method}.py")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode != 0:
        return {"error": ran.stderr.strip().splitlines()[-1]}
    lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("grad_norm") is not None]
    return {column: [float(f"{row[column]:.4g}") for row in rows] for column in COLUMNS.split()}


def main(names):
    path = HERE / "curves.json"
    curves = json.loads(path.read_text()) if path.exists() else {}
    chosen = [broken for broken in BROKEN if not names or broken.name in names]
    runs = {f"right {broken.flags}".strip(): (broken.flags, None) for broken in chosen}
    runs |= {broken.name: (broken.flags, broken.name) for broken in chosen}
    for name, (flags, method) in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            curves[name] = run(flags, folder, method)
        print(name, flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(curve)}" for name, curve in curves.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
