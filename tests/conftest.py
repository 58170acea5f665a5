"""Shared by all tests: it makes the scripts importable, adds --slow, and has a few small models and helpers."""

import faulthandler
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks")]

from notebooks.models.make_tiny import init_weights, symbol_tokenizer, tiny_config
from model import Qwen3  # noqa: E402

torch.set_num_threads(1)  # with tensors so small, more threads mostly wait for each other


def pytest_addoption(parser):
    try:
        parser.addoption(
            "--slow", action="store_true", help="also run the tests that need minutes or gigabytes"
        )
    except ValueError:  # notebooks/tests runs in the same command: its conftest.py has added it
        pass


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: needs minutes or gigabytes; runs with --slow")
    alone = "alone: takes more than two cores, or has a limit in seconds: run nothing beside it"
    config.addinivalue_line("markers", alone)
    config.addinivalue_line("filterwarnings", "ignore:torch.distributed is disabled")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs --slow"))


@pytest.fixture(autouse=True)
def seeded():
    """Give every test the same random numbers, whether it runs alone or after others."""
    torch.manual_seed(0)


@pytest.fixture
def no_hang():
    """Abort after two minutes. Bounded work takes a second or two, unbounded work would take hours."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def tokenizer():
    return symbol_tokenizer(
        [*"0123456789+-=;", "<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}"]
    )


@pytest.fixture
def model(tokenizer):
    """A tiny Qwen3 with random weights; token 0 ends a completion."""
    config = tiny_config(tokenizer.num_tokens, eos_token_id=0)
    return init_weights(Qwen3(config), torch.Generator().manual_seed(0))


@pytest.fixture
def prompts(tokenizer):
    """Three prompts of different lengths."""
    return [tokenizer.encode(text) for text in ("25+7-4=", "3+4=", "90-1+2-3+4=")]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a plug-in file, under a name that no other test uses, and returns its path."""

    def write(text):
        path = tmp_path / f"own_{tmp_path.name}.py"
        path.write_text(text)
        return str(path)

    return write
