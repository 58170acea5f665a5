"""Sinks for train.py's --log: the numbers of metrics.jsonl go to TensorBoard or Weights & Biases too."""
import importlib
from verifiers import DataError

def package(module, name):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"--log needs a package that is not here ({error}): pip install {name}") from None

def numbers(row):
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}

def tensorboard(run, flags):
    ...
