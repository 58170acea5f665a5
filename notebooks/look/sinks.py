"""sinks.py - sends a run's log to TensorBoard or Weights & Biases.

    python -m notebooks.look.sinks tensorboard runs/NAME
    python -m notebooks.look.sinks wandb runs/NAME --follow

It sends every row of the log. With --follow it also sends new rows, until the
last step or Ctrl-C.
"""

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import DataError
from notebooks.command import check_run, parser_of, run_command
from train import read_log


def package(name, module):
    if importlib.util.find_spec(name) is None:
        raise DataError(f"{name} is not installed: pip install {name}")
    return importlib.import_module(module)


def numbers(row):
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def tensorboard(run):
    """Return a function that sends one row of the log."""
    writer = package("tensorboard", "torch.utils.tensorboard").SummaryWriter(run / "tensorboard")
    return lambda row: (
        [writer.add_scalar(*item, row["step"]) for item in numbers(row).items()] and writer.flush()
    )


def wandb(run):
    init = package("wandb", "wandb").init
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    there = init(project="rlvr", id=run.name, dir=run, config=config, resume="allow")
    return lambda row: there.log(numbers(row), step=row["step"])


SINKS = {"tensorboard": tensorboard, "wandb": wandb}


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("sink", choices=SINKS)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--follow", action="store_true", help="continue while the run does")
    args = parser.parse_args(argv)
    check_run(args.run)
    send = SINKS[args.sink](args.run)
    steps = json.loads((args.run / "config.json").read_text(encoding="utf-8"))["flags"]["steps"]
    sent = -1
    while True:
        for step, row in sorted(read_log(args.run).items()):
            if step > sent:
                send(row)
                sent = step
        if sent >= steps or not args.follow:
            return
        time.sleep(2)


if __name__ == "__main__":
    run_command(main, ValueError, KeyError)
