"""claims/devices.py: what memory a card needs, as MEASURED.md says it."""

from conftest import ROOT
from model import Config
from notebooks.claims import devices


def test_twelve_gigabytes_cannot_train_qwen3_0_6b():
    for rows in (1, 8):
        sampling, update = devices.memory(Config(), rows, 640, 8)
        assert 12e9 < update < 16e9
        assert sampling < update


def test_the_page_says_what_is_computed():
    page = (ROOT / "notebooks" / "MEASURED.md").read_text()
    for row in devices.table(Config()):
        assert f"| {' | '.join(row)} |" in page
