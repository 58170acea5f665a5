"""The benchmarks still run: toy sizes, and no look at a time. What they measure is in the notebooks' README."""

import json
import subprocess
import sys

import pytest

from conftest import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, key",
    [
        (["bench_verifiers.py", "--seconds", "0.01"], "per_second"),
        ("bench_ranks.py --layers 1 --worlds 1 2".split(), "2 with --fsdp"),
        ("bench_sampling.py --rows 8 --max-new-tokens 4 --repeats 1".split(), "ratios"),
        (
            "bench_training.py --config train.py --tokens 8 --prompt-tokens 4".split(),
            "peaks",
        ),
        (
            "bench_training.py --config plain --tokens 8 --prompt-tokens 4".split(),
            "peaks",
        ),
    ],
    ids=["verifiers", "ranks", "sampling", "memory", "memory, plain"],
)
def test_a_benchmark_ends_with_a_json_object(command, key):
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / command[0], *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])[key]


def test_the_training_benchmark_times_the_loop_of_train(tmp_path):
    from bench_training import our_steps

    rows = []
    times = our_steps(1, str(tmp_path), rows)
    assert len(times) == len(rows) == 1 and {"sample_seconds", "update_seconds"} <= rows[0].keys()
