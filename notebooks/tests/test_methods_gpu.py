"""Each method on a device that pretends to be CUDA (tests/pretend_gpu.py): nothing stays on the CPU,
and dtypes fit under CUDA's autocast."""

import json
import sys
from pathlib import Path

import pytest

import train
import verifiers
from notebooks.claims.atlas import methods
from pretend_gpu import PretendGPU

ROOT = Path(__file__).resolve().parents[2]
METHODS = ROOT / "notebooks" / "methods"
NAMES = sorted(methods())
FLAGS = ["--model", str(ROOT / "notebooks" / "tiny"), "--device", "cuda", "--steps", "2"]
FLAGS += ["--prompts-per-step", "4", "--num-samples", "8", "--max-new-tokens", "12"]
FLAGS += ["--updates-per-batch", "2", "--eval-problems", "2", "--save-every", "9"]
MORE = {
    "KLCap": "--kl-cap 1e-9 --on-exceed reset",
    "TopP": "--top-p 0.5 --top-k 4",
    "KeepSamplingMask": "--top-p 0.5 --top-k 4",
    "DeepSeekV32": "--top-p 0.5 --top-k 4",
    "SharedPrompts": "--max-new-tokens 3",  # shorter than the prompts: they share a line
    "Distill": f"--teacher {ROOT}/notebooks/tiny --temperature 0.7",
    "MaxRL": "--max-new-tokens 40",
    "PassAtK": "--max-new-tokens 40",
    "NoisyVerifier": "--max-new-tokens 40",
    "Canary": "--canary {folder}/canaries.jsonl --canary-prompt {{problem}}",
}


def shorter(completion, problem):
    """At most 0, so that what is cut off is paid as well."""
    return -float(len(completion)), {"accuracy": 0.0, "shorter": -float(len(completion))}


def even(completion, problem):
    """For methods that need rewards of 0 and 1."""
    return float(len(completion) % 2 == 0), {}


@pytest.fixture
def short(monkeypatch):
    """Without what a step and the last evaluation do once more: the preflight, and the first evaluation."""
    evaluate = train.evaluate_both
    names = "sampled_reward sampled_accuracy sampled_truncated sampled_length accuracy".split()
    untrained = {f"eval_{name}": 0.0 for name in names}
    monkeypatch.setattr(train, "preflight", lambda run: None)
    monkeypatch.setattr(
        train, "evaluate_both", lambda run: evaluate(run) if run.step else untrained
    )


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_of_each_method_stay_on_the_device(name, short, tmp_path, monkeypatch):
    zero_or_one = name in ("MaxRL", "PassAtK", "NoisyVerifier")
    monkeypatch.setitem(verifiers.REWARDS, "mine", even if zero_or_one else shorter)
    flags = [
        *FLAGS,
        "--method",
        f"{METHODS}/{Path(sys.modules[methods()[name].__module__].__file__).name}:{name}",
    ]
    flags += ["--reward", "mine", "--runs", str(tmp_path), "--name", "x"]
    flags += MORE.get(name, "").format(folder=tmp_path).split()
    (tmp_path / "canaries.jsonl").write_text('{"problem": "1+1=", "answer": "2"}\n')
    with PretendGPU():
        train.main(flags)
    lines = (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert max(row["grad_norm"] for row in rows[1:]) > 0
