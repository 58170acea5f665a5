"""command.py - what the commands of the laboratory share: help, lines of 79 columns, and one-line error messages."""

import sys
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from appendix.plumbing import DataError, clear_errors, read_log
from model import ModelError


def parser_of(doc):
    """Return a parser whose --help begins with this docstring, line by line."""
    return ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)


def wrapped(text, indent="", hang="    "):
    """Wrap a text at 79 columns. Words are not broken, so a long path stays whole. hang: the additional indentation of
    all lines except the first."""
    whole = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, 79, initial_indent=indent, subsequent_indent=indent + hang, **whole)


def say(text, indent="", hang="    "):
    print(wrapped(text, indent, hang), flush=True)


def new_path(path):
    """Return a path to write to. Raises DataError if something is already there: no command replaces it."""
    path = Path(path)
    if path.is_dir() and not any(path.iterdir()):
        return path
    if path.exists():
        raise DataError(f"{path} exists already: give another name, or remove it first")
    return path


def check_run(folder):
    """Raise DataError if this is not the folder of a run."""
    if not Path(folder, "config.json").is_file() or Path(folder, "tokenizer.json").exists():
        raise DataError(f"{folder} is not the folder of a run, runs/NAME, as train.py writes it")


def log_of(run):
    """Return the rows of a run's log. Raises DataError if `run` is not a run, or has no step yet."""
    check_run(run)
    rows = read_log(Path(run))
    if not rows:
        raise DataError(f"{run}/metrics.jsonl has no step yet: train the run first")
    return [*rows.values()]


def run_command(main, *errors):
    """Run a command. If the user has made a mistake, it ends with one line instead of a traceback. errors: further
    kinds of errors whose messages are for the user."""
    with clear_errors(ModelError, *errors):
        try:
            sys.exit(main())
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] in ("appendix", "notebooks"):
                raise
            command = "pip install -r notebooks/requirements.txt"
            raise DataError(f"{error.name} is not installed: {command}") from None
        except KeyError as error:
            if KeyError not in errors:
                raise
            raise DataError(
                f"a file lacks the field {error}: was it written by this version?"
            ) from None
