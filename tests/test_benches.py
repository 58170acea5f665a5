"""The benchmarks still run: toy sizes, and no look at a time. What they measure is in the README."""

import json
import subprocess
import sys

import pytest

import train
import verifiers
from conftest import ROOT
from model import Config, Qwen3, save, symbol_tokenizer


@pytest.mark.parametrize("command, key", [
    (["bench_verifiers.py", "--seconds", "0.01"], "per_second"),
    (["bench_ranks.py", "--table"], "gigabytes"),
    (["bench_sampling.py", "--rows", "8", "--max-new-tokens", "4", "--repeats", "1"], None),
])
def test_a_benchmark_ends_with_a_json_object(command, key):
    run = subprocess.run([sys.executable, ROOT / "tests" / command[0], *command[1:]], cwd=ROOT, capture_output=True,
                         text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert isinstance(result, dict) and (key is None or result[key])


def test_the_training_benchmark_times_the_loop_of_train(tmp_path):
    from bench_training import our_steps
    tokenizer = symbol_tokenizer(train.SYMBOLS["arithmetic"])
    config = Config.tiny(tokenizer.num_tokens, eos_token_id=0)
    save(Qwen3(config), tokenizer, tmp_path / "base")
    rows = []
    times = our_steps(str(tmp_path / "base"), verifiers.get_task("arithmetic"), 1, str(tmp_path / "runs"), rows)
    assert len(times) == len(rows) == 1 and {"sample_seconds", "update_seconds"} <= rows[0].keys()
