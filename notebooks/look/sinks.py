"""sinks.py - a run's log in TensorBoard or Weights & Biases.

    python -m notebooks.look.sinks tensorboard runs/NAME
    python -m notebooks.look.sinks wandb runs/NAME --follow

--follow: while the run goes on, every new row is sent; Ctrl-C ends it.
"""

import argparse
import importlib
import importlib.util
import sys
import time
from pathlib import Path

from appendix.plumbing import DataError
from train import read_log


def package(name, module):
    if importlib.util.find_spec(name) is None:
        raise DataError(f"{name} is not installed: pip install {name}")
    return importlib.import_module(module)


def numbers(row):
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def tensorboard(run):
    """-> a function of one row of the log."""
    writer = package("tensorboard", "torch.utils.tensorboard").SummaryWriter(run / "tensorboard")
    return lambda row: (
        [writer.add_scalar(*item, row["step"]) for item in numbers(row).items()] and writer.flush()
    )


def wandb(run):
    there = package("wandb", "wandb").init(project="rlvr", id=run.name, dir=run, resume="allow")
    return lambda row: there.log(numbers(row), step=row["step"])


SINKS = {"tensorboard": tensorboard, "wandb": wandb}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sink", choices=SINKS)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--follow", action="store_true", help="go on while the run does")
    args = parser.parse_args(argv)
    if not (args.run / "config.json").exists():
        raise DataError(f"{args.run} is no folder of a run: give one in runs/")
    send = SINKS[args.sink](args.run)
    sent = -1
    while True:
        is_over = (args.run / "final").exists() or not args.follow
        for step, row in sorted(read_log(args.run).items()):
            if step > sent:
                send(row)
                sent = step
        if is_over:
            return
        time.sleep(2)


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"error: {error}")
