"""Shared by the laboratory's tests. It loads the fixtures of tests/conftest.py by their path, because both files are
called conftest. The folder tests/ is on the path for its helpers (ranks.py)."""

import importlib.util
import string
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "notebooks" / "tests"), str(ROOT / "tests")]


from model import Qwen3, save
from notebooks.models.make_tiny import init_weights, symbol_tokenizer, tiny_config

spec = importlib.util.spec_from_file_location("core_conftest", ROOT / "tests" / "conftest.py")
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)

pytest_addoption = core.pytest_addoption
pytest_configure = core.pytest_configure
seeded = core.seeded
tokenizer = core.tokenizer
model = core.model
prompts = core.prompts


def pytest_collection_modifyitems(config, items):
    """Run the longest files first, so that with two processes neither begins one of them at the end."""
    core.pytest_collection_modifyitems(config, items)
    items.sort(key=lambda item: item.path.stem not in ("test_notebooks", "test_claims"))


@pytest.fixture(scope="session")
def any_text(tmp_path_factory):
    """The folder of a model with random weights whose tokens are Yes, No, and all characters of a keyboard."""
    tokenizer = symbol_tokenizer(["Yes", "No", *string.printable])
    config = tiny_config(tokenizer.num_tokens, eos_token_id=0)
    model = init_weights(Qwen3(config), torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("model") / "any_text"
    save(model, tokenizer, folder)
    return str(folder)
