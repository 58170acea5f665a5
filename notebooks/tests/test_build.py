"""build/: a solution is right and trains; what students write instead is named rightly; the judge says what comes next."""

import subprocess
import sys

import pytest

import train
from appendix.plumbing import DataError
from conftest import ROOT
from notebooks import page, race

LAB = ROOT / "notebooks"
sys.path.insert(0, str(LAB / "conformance"))

import check

SKELETON = (LAB / "build" / "mine.py").read_text()
SOLUTION = (LAB / "build" / "solution.py").read_text()


def told(source, folder, capsys):
    """What check.py --mine prints of a file: {the function: its line}, what comes next, and the exit status."""
    (folder / "mine.py").write_text(source)
    status = check.main([str(folder / "mine.py"), "--mine"])
    lines, _, following = capsys.readouterr().out.partition("\nnext: ")
    lines = " ".join(lines.split())
    for number, name in enumerate(dict.fromkeys(check.STEPS.values()), 1):
        lines = lines.replace(f"{number} {name} ", f"\n{name}: ")
    return dict(line.split(": ", 1) for line in lines.split("\n") if line), following, status


def test_what_is_not_written_is_not_spoken_of(tmp_path, capsys):
    assert told(SKELETON, tmp_path, capsys) == ({}, f"write extract_boxed_answer ({PAGE}1)\n", 0)
    box = SOLUTION.partition("def advantages")[0]
    lines, following, status = told(SKELETON + box, tmp_path, capsys)
    assert lines == {"extract_boxed_answer": "right in 6 cases "} or [*lines] == [*lines][:1]
    assert following == f"write advantages ({PAGE}2)\n" and status == 0


PAGE = "notebooks/build/README.md, section "


def test_the_solution_is_right_and_comes_to_the_end(tmp_path, capsys):
    lines, following, status = told(SKELETON + SOLUTION, tmp_path, capsys)
    assert len(lines) == 6 and all(line.startswith("right in ") for line in lines.values())
    assert following.startswith("train with it: python notebooks/page.py --step") and status == 0
    source = SOLUTION.replace("torch.expm1(-d)", "(-d).exp() - 1")  # the KL is judged, and stops nobody
    lines, following, status = told(SKELETON + source, tmp_path, capsys)
    assert "wrong in 1 of 3" in lines["kl"] and following.startswith("train with it") and status == 1
