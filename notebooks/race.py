"""race.py - how many completions until 90 % of the held-out sums are right?

the default, and a recipe of your own (any flags of train.py):
    python -m notebooks.race
    python -m notebooks.race --lr 3e-3 --prompts-per-step 4 --steps 50

RACE.md has the rules and the table. Three seeds are trained. After each step
the model answers the 500 held-out sums once, by sampling. All completions that
were sampled for training until then count, trained on or not.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[1]))  # if it is started as a file

import train
from appendix.plumbing import DataError, get_method, git_commit, read_log
from notebooks.command import parser_of, run_command
from notebooks.look.show import samples_of
from rlvr import GRPO

ROOT = Path(__file__).resolve().parents[1]
GOAL = 0.9
SEEDS = (0, 1, 2)
GAME = ["--model", str(ROOT / "notebooks" / "tiny"), "--task", "arithmetic", "--eval-every", "1"]
FIXED = "model task reward prompt stop template eval_every eval_problems resume"


def check_rules(flags):
    """Raise DataError if these flags change what is counted, or how completions are sampled."""
    usual, read = train.parse_args(GAME), train.parse_args([*GAME, *flags])
    for name in FIXED.split():
        if getattr(read, name) != getattr(usual, name):
            raise DataError(f"--{name.replace('_', '-')} is the same for everybody: leave it out")
    method = get_method(GRPO, read.method, read.settings)
    if method.settings.temperature != 1 or type(method).roll_out is not GRPO.roll_out:
        raise DataError("completions must be sampled as GRPO samples them, at temperature 1")


def completions_needed(flags, seed, game=GAME, goal=GOAL):
    """Train with this seed. Returns how many completions were sampled until the goal was reached, or None."""
    with tempfile.TemporaryDirectory() as folder:
        where = f"--seed {seed} --runs {folder} --name run".split()
        command = [sys.executable, "train.py", *game, *flags, *where]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if ran.returncode != 0:
            raise DataError(f"seed {seed}: {(ran.stdout + ran.stderr).splitlines()[-1]}")
        run = Path(folder, "run")
        found = {n: row.get("eval_sampled_accuracy", 0) for n, row in read_log(run).items()}
        reached = [n for n in found if found[n] >= goal]
        if not reached:
            return None
        files = sorted(run.glob("samples/*.gz"))[: min(reached)]
        return sum(len([*samples_of(file)]) for file in files)


def main(argv=None):
    parser = parser_of(__doc__)
    _, flags = parser.parse_known_args(argv)
    check_rules(flags)
    counts = []
    for seed in SEEDS:
        counts.append(completions_needed(flags, seed))
        print(f"seed {seed}: {counts[-1] or 'not reached'}", flush=True)
    mean = "not reached" if None in counts else f"{fmean(counts):,.0f}"
    numbers = [f"{count:,}" if count else "-" for count in counts]
    command = " ".join(["python -m notebooks.race", *flags])
    row = [mean, *numbers, f"`{command}`", git_commit()]
    columns = ["completions", *(f"seed {seed}" for seed in SEEDS), "command", "commit"]
    print(json.dumps({"columns": columns, "rows": [row], "seeds": SEEDS}))


if __name__ == "__main__":
    run_command(main)
