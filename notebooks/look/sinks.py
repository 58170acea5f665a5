"""--log notebooks/look/sinks.py:tensorboard, or :wandb: the numbers of metrics.jsonl go there too, row by row."""

import importlib.util

from appendix.plumbing import DataError


def package(name, module):
    if importlib.util.find_spec(name) is None:
        raise DataError(f"--log {name} needs a package: pip install {name}")
    return importlib.import_module(module)


def numbers(row):
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def tensorboard(run, flags):
    writer = package("tensorboard", "torch.utils.tensorboard").SummaryWriter(run / "tensorboard")
    return lambda row: (
        [writer.add_scalar(*item, row["step"]) for item in numbers(row).items()] and writer.flush()
    )


def wandb(run, flags):
    there = dict(project="rlvr", id=run.name, dir=run, config=vars(flags), resume="allow")
    run_there = package("wandb", "wandb").init(**there)
    return lambda row: run_there.log(numbers(row), step=row["step"])
