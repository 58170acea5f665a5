"""conformance/graders/: what the labelled answers are like, and what run.py says of a grader."""

import json
import re

import pytest

from conftest import ROOT
from notebooks import kept
from notebooks.conformance.graders import others, run

OTHERS = f"{ROOT}/notebooks/conformance/graders/others.py:"


def skeleton(row):
    """A row without its numbers."""
    return re.sub(r"\d+", "#", json.dumps([row.get("problem"), row["gold"], row["answer"]]))


def test_the_answers_are_many_and_no_two_differ_in_numbers_alone():
    rows = [json.loads(line) for line in run.CASES.read_text().splitlines()]
    assert len(rows) >= 600 and len({skeleton(row) for row in rows}) == len(rows)
    verdicts = {(row["kind"], row["expect"]) for row in rows}
    kinds = {kind for kind, _ in verdicts} - {"slow"}
    assert len(kinds) >= 15 and verdicts == {(k, e) for k in kinds for e in (0, 1)} | {("slow", 0)}


def checked(folder, capsys, code, rows, *flags, reward=()):
    """The exit status, and what is printed, for a grader of this code."""
    (folder / "graders_test.py").write_text(code)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = [*reward, "--cases", str(folder / "rows.jsonl"), *flags]
    return run.main([f"{folder}/graders_test.py:grade", *flags]), capsys.readouterr().out


SUM = {"problem": "What is 2 + 3?", "gold": "5"}
ROWS = [
    {"gold": "0.5", "answer": r"\frac{1}{2}", "expect": True},
    {"gold": "5", "answer": [["9^", 3], ["9", 1]], "expect": False},
    {**SUM, "answer": "5", "expect": True},
    {**SUM, "answer": "2 + 3", "expect": False},
    {"gold": "5", "answer": "five", "expect": None},
]


@pytest.mark.parametrize(
    "verdict, status, counts",
    [
        ("True", 1, "2 of 4, 1, 0, 0, 1"),  # everything is accepted, and a copy paid
        ("False", 0, "2 of 4, 0, 2, 0, 0"),
        ("1 / 0", 0, "0 of 4, 0, 0, 4, 0"),
    ],
)
def test_everything_counts_once(verdict, status, counts, tmp_path, capsys):
    code = f"def grade(answer, truth):\n    return {verdict}"
    found, printed = checked(tmp_path, capsys, code, ROWS)
    line = [line[16:] for line in printed.splitlines()[1:6]]
    assert (found, ", ".join(line)) == (status, counts)


def test_a_grader_that_hangs_is_ended_and_named(tmp_path, capsys):
    hangs = "while '9^9' in answer: pass"
    dies = "return __import__('os')._exit(3) if answer == '2 + 3' else True"
    code = f"def grade(answer, truth):\n    {hangs}\n    {dies}"
    _, printed = checked(tmp_path, capsys, code, ROWS, "--limit", "1")
    assert re.search(r"no verdict +2\n", printed) and "2 without reply" in printed
    assert "5 <- 9^9^9^9 (no reply, 1" in printed and "5 <- 2 + 3 (no reply" in printed


def test_a_reward_is_asked_where_there_is_a_question_or_a_whole_text(tmp_path, capsys):
    rows = [*ROWS[:-1], {"gold": "3", "completion": r"\boxed{4}, no \boxed{3}", "expect": True}]
    code = "from others import completion\nfrom verifiers import grade_answer as grade"
    _, printed = checked(tmp_path, capsys, code, rows, "--show", reward=[OTHERS + "completion"])
    assert re.search(r"right +4 of 5\n", printed) and "false reject    None: 5 <- 5 " in printed


def test_the_worker_needs_nothing_of_ours(tmp_path, capsys):
    code = "import sys\ndef grade(answer, truth):\n    return 'torch' in sys.modules"
    assert "right           0 of 1" in checked(tmp_path, capsys, code, ROWS[:1])[1]


def test_a_row_without_a_label_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit, match='rows.jsonl, line 2: it needs "gold", "expect"'):
        checked(tmp_path, capsys, "", [ROWS[0], {"gold": "3", "answer": "3"}])


def test_the_board_says_of_ours_what_the_command_says(capsys):
    board = kept.load("graders")
    run.main(["verifiers.py:grade_answer", OTHERS + "this_project", "--keep", board["rows"][0][0]])
    (line,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert line[:-1] == board["rows"][0][:-1]  # all but the time


@pytest.mark.slow
@pytest.mark.parametrize("name", ["math_verify", "trl"])
def test_others_graders_are_called(name):
    pytest.importorskip(name)
    grade = getattr(others, name)
    assert grade("0.5", r"\frac{1}{2}") and not grade("3", "4")
