"""The laboratory's tests: with what the core's tests share (tests/conftest.py), read out of that file, for both are
called conftest. The folder tests/ is on the path for its helpers (ranks.py)."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "notebooks"), str(ROOT / "notebooks" / "tests"), str(ROOT / "tests")]

import _root

from headless import browser  # noqa: F401, a fixture

spec = importlib.util.spec_from_file_location("core_conftest", ROOT / "tests" / "conftest.py")
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)

pytest_addoption = core.pytest_addoption
pytest_configure = core.pytest_configure
pytest_collection_modifyitems = core.pytest_collection_modifyitems
seeded = core.seeded
tokenizer = core.tokenizer
model = core.model
prompts = core.prompts
