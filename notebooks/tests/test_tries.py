"""The questions under "Try" have solutions that run, and PATH.md answers every question."""

import json
import re

import pytest

import tries
from conftest import ROOT

LAB = ROOT / "notebooks"
# Answered in PATH.md alone: 2.2 is exercise 4, the others ask for an argument or take hours.
IN_WORDS = {"2.2", "7.3", "9.1", "9.2", "9.3", "12.3"}
PRINTS = {  # what a quick one prints, or a part of it
    "1.1": "R = 0.0",
    "1.2": "[0.0, 0.0, 0.0, 0.0]",
    "1.3": " 1 of 16 right: largest advantage 3.87, without the std 0.94",
    "2.1": "paid by any_box and not by tagged_reward: 18 of 512",
    "2.3": "honest, in words  paid 1.1, guarded 1.0; names the problem's numbers: False",
    "3.1": "long      R 1.155",
    "3.2": "'fmt': 0.0",
    "3.3": "penalty for rambling 0.3: from 1128 words",
    "4.1": "row 1: the logits are off by 1.6e+00",
    "4.2": "turns after 20 positions: 3.18 1.01 0.32",
    "4.3": "7.5 GB",
    "7.1": "8B: 147.4 GB alone; sharded, 9 GPUs",
    "7.2": "21 rows",
    "12.1": "here: 0.0",
    "12.2": "4096 tokens: norm of the gradient 0.009",
    "13.3": "by 0.968",
    "14.3": "earns 1.0",
}


def questions():
    """NOTEBOOK.QUESTION of each numbered line below a heading Try."""
    for path in sorted(LAB.glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        _, _, below = text.partition("## Try\n")
        number = path.name.partition("_")[0]
        yield from (
            f"{number}.{question}" for question in re.findall(r"^(\d)\. ", below, flags=re.M)
        )


def test_every_question_has_a_solution_that_runs_or_an_answer_in_words():
    assert {*questions()} == {*tries.TRIES} | IN_WORDS
    assert not {*tries.TRIES} & IN_WORDS


def test_path_answers_every_question():
    _, _, page = (LAB / "PATH.md").read_text().partition("## Answers to Try")
    answers = dict(re.findall(r"^\*\*(\d+)\.\*\* (.*?)(?=^\*\*|^## )", page, flags=re.M | re.S))
    for name in questions():
        number, _, question = name.partition(".")
        assert re.search(rf"(^|\s){question}: ", answers[number]), name


@pytest.mark.parametrize("number", PRINTS)
def test_a_solution_prints_what_path_says(number, capsys):
    tries.TRIES[number]()
    assert PRINTS[number] in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("number", [name for name in tries.TRIES if name not in PRINTS])
def test_a_longer_solution_runs(number, capsys):
    tries.TRIES[number]()
    assert capsys.readouterr().out.strip()
