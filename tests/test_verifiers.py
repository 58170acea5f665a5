"""verifiers.py: what a completion earns, where problems come from, and how plug-ins are found."""

import csv
import gzip
import itertools
import json
import os
import sys
from functools import partial

import huggingface_hub
import pytest

import hub
import verifiers
from appendix.plumbing import DataError, read_problems
from verifiers import (
    FORMAT_RULES,
    MATH_RULES,
    RuleSpec,
    Task,
    aggregate,
    arithmetic,
    get_reward,
    get_task,
    grade_answer,
    held_out,
    reward_rlvr,
    split_tags,
    tagged_reward,
    verify_format,
    verify_math,
)

GOOD = "<think>factor (x-2)(x-3)</think><answer>\\boxed{2}</answer>"


# ---- Rewards ---------------------------------------------------------------------------------------------------------


def test_reward_rlvr_is_one_for_the_right_last_box():
    assert reward_rlvr("so x is \\boxed{4}.", "4") == 1.0
    assert reward_rlvr("so x is 4", "4") == 0.0  # the form is part of the task
    assert reward_rlvr("\\boxed{4}? no, \\boxed{5}", "4") == 0.0
    assert reward_rlvr("", "4") == 0.0


def test_verify_math_returns_the_chapters_parts():
    assert verify_math(GOOD, "2") == {"format": 1.0, "answer": 1.0, "extracted": "2"}
    assert verify_math(GOOD, "3") == {"format": 1.0, "answer": 0.0, "extracted": "2"}
    nothing = {"format": 0.0, "answer": 0.0, "extracted": None}
    assert verify_math("The smaller root is 2.", "2") == nothing
    assert verify_math("<think>2</think><answer>2</answer>", "2")["extracted"] is None  # no box


HACKS = {
    "the answer first, thinking after": "<answer>\\boxed{2}</answer><think>because</think>",
    "two answers to choose from": "<think>a</think><answer>\\boxed{3}</answer><answer>\\boxed{2}</answer>",
    "thinking twice": "<think>a</think><think>b</think><answer>\\boxed{2}</answer>",
    "an answer outside of the tags": "\\boxed{2}<think>a</think><answer>\\boxed{2}</answer>",
    "text between the blocks": "<think>a</think> so <answer>\\boxed{2}</answer>",
    "text after the end": "<think>a</think><answer>\\boxed{2}</answer> or 3",
    "a block that is not closed": "<think>a</think><answer>\\boxed{2}",
    "tags inside out": "</think>a<think><answer>\\boxed{2}</answer>",
    "the box in the thinking only": "<think>\\boxed{2}</think><answer>2</answer>",
}


@pytest.mark.parametrize("rollout", HACKS.values(), ids=HACKS)
def test_a_malformed_rollout_earns_no_accuracy(rollout):
    assert verify_math(rollout, "2")["answer"] == 0.0


def test_white_space_around_the_blocks_is_no_offence():
    assert split_tags(" <think>a</think>\n\n<answer>b</answer>\n") == ("a", "b")


def test_verify_format_wants_some_thinking():
    for text, structure, think_length in (
        (GOOD, 1.0, 1.0),
        ("<think></think><answer>\\boxed{2}</answer>", 1.0, 0.0),
        ("<think>       hm      </think><answer>2</answer>", 1.0, 0.0),
        ("2", 0.0, 0.0),
    ):
        assert verify_format(text) == {"structure": structure, "think_length": think_length}


def test_aggregate_is_the_weighted_sum():
    assert aggregate(verify_math(GOOD, "2"), MATH_RULES) == pytest.approx(1.1)
    assert aggregate(verify_format(GOOD), FORMAT_RULES) == pytest.approx(1.2)
    rules = [RuleSpec("half", 2.0, lambda v: v["x"]), RuleSpec("one", 1.0, lambda v: 1.0)]
    assert aggregate({"x": 0.5}, rules) == 2.0


def test_rewards_report_their_parts():
    """answered: there is a box; copied: it repeats an expression from the question."""
    parts = {"accuracy": 1, "format": 1, "answered": 1, "copied": 0}
    assert tagged_reward(GOOD, {"answer": "2"}) == (pytest.approx(1.1), parts)


def test_the_reward_for_reasoning_is_in_the_laboratory():
    """If you look for it here, by the chapter's name, the message names its file."""
    with pytest.raises(ImportError, match="notebooks/rewards/reasoning.py"):
        from verifiers import ReasoningReward  # noqa: F401
    with pytest.raises(DataError, match="reward 'r1': choose boxed, .*, or file.py:name, as .*:r1"):
        get_reward("r1")


# ---- Tasks -----------------------------------------------------------------------------------------------------------


def test_arithmetic_is_right_seeded_and_split():
    task = arithmetic(train_size=2000, test_size=200)
    other = arithmetic(2000, 200, seed=1)
    assert task.train == arithmetic(2000, 200).train != other.train
    for problem in task.train + task.test:
        expression = problem["problem"].removesuffix("=")
        assert eval(expression) == int(problem["answer"])  # safe: our own text, not a model's
        assert 10 <= int(problem["answer"]) <= 99
    texts = [problem["problem"] for problem in task.train + task.test]
    assert len(set(texts)) == 2200  # no duplicates, so train and test do not overlap
    assert all(map(held_out, task.test)) and not any(map(held_out, task.train))
    assert not any(map(held_out, other.train))  # no seed trains on held-out problems


def write_rows(path, rows, encoding="utf-8"):
    """Write a .jsonl file, gzipped if its name ends in .gz. Returns its path as text."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding=encoding) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(n, **more):
    return [{"problem": f"{i}+1?", "answer": i + 1, **more} for i in range(n)]


def test_the_instruction_asks_for_what_the_reward_reads(tmp_path):
    rows = [{"problem": f"{{{i}}} + 1?", "answer": i + 1} for i in range(40)]
    task = get_task(write_rows(tmp_path / "d.jsonl", rows))
    first = task.train[0]
    prompt = task.prompt(first)
    assert "\\boxed{}" in prompt and first["problem"] in prompt  # its braces stay as they are
    assert len(task.train) + len(task.test) == 40
    assert task.test and all(map(held_out, task.test))
    assert task.name == "d"
    assert task.reward(f"\\boxed{{{first['answer']}}}", first)[0] == 1.0


def test_problems_from_jsonl_and_json_in_the_columns_of_other_sets(tmp_path):
    """It reads AIME's capitals, AMC's floats, and the answer after GSM8K's ####. Other columns stay. Files may
    be gzipped, and have empty lines. A .csv file holds texts only."""
    rows = [
        {"problem": "1+1", "answer": "2", "level": 3},
        {"ID": "I-1", "Problem": "a?", "Solution": "So 3.", "Answer": 3},
        {"question": "b?", "answer": 27.0},
        {"question": "c?", "answer": "2+2=<<2+2=4>>4\n#### 4"},
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    write_rows(tmp_path / "a.jsonl.gz", rows)
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "answer"])
        writer.writeheader()
        writer.writerows([{"problem": "a,\nb?", "answer": 3}, {"problem": "c?"}])
    with pytest.raises(DataError, match='a.csv, row 2: needs "problem"'):
        get_task(f"{tmp_path}/a.csv")
    (tmp_path / "a.csv").write_text("question,answer\nWhat is 1,000+1?,1001\n")
    with pytest.raises(DataError, match='a.csv, row 1: needs "problem"'):  # a comma too many
        get_task(f"{tmp_path}/a.csv")
    (tmp_path / "a.csv").write_bytes("problem,answer\né,2\n".encode("latin-1"))
    with pytest.raises(DataError, match="a.csv, row 1: not valid JSON in UTF-8"):
        get_task(f"{tmp_path}/a.csv")
    (tmp_path / "a.csv").write_text("Question,Answer,level\n1+1,2,3\n")
    assert read_problems(tmp_path / "a.csv") == [
        {"question": "1+1", "problem": "1+1", "answer": "2", "level": "3"}
    ]
    for name in ("a.json", "a.jsonl", "a.jsonl.gz"):
        problems = read_problems(tmp_path / name)
        expected = [("1+1", "2"), ("a?", "3"), ("b?", "27.0"), ("c?", "4")]
        assert [(p["problem"], p["answer"]) for p in problems] == expected
        assert problems[0]["level"] == 3
        assert problems[1]["solution"] == "So 3."  # a column of its own
        assert grade_answer("27", problems[2]["answer"])


def test_what_a_file_of_problems_may_look_like(tmp_path):
    """A line separator in a text ends no line, and a byte order mark does not hide the first problem. A column
    may have any name. Half a file is an error."""
    (tmp_path / "u.jsonl").write_text('{"problem": "a\u2028b", "answer": 1}\n', encoding="utf-8")
    assert read_problems(tmp_path / "u.jsonl")[0]["problem"] == "a\u2028b"
    windows = read_problems(write_rows(tmp_path / "w.jsonl", sums(3), encoding="utf-8-sig"))
    assert [problem["problem"] for problem in windows] == ["0+1?", "1+1?", "2+1?"]
    names = dict(header={"model": "x"}, name="n", step=7, reward=1, completion="c", parts={})
    problem = read_problems(write_rows(tmp_path / "d.jsonl.gz", sums(20, **names)))[0]
    assert problem == {"problem": "0+1?", "answer": "1", **names}
    (tmp_path / "cut.jsonl.gz").write_bytes((tmp_path / "d.jsonl.gz").read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        read_problems(tmp_path / "cut.jsonl.gz")


def test_a_problem_that_stands_twice_in_a_file_is_one_problem(tmp_path, capsys):
    """Copies would make an accuracy look too certain. Trailing white space must not put one on both sides of the split."""
    rows = sums(40) + sums(40, problem_end=" \n") + sums(40)
    task = get_task(str(write_rows(tmp_path / "copies.jsonl", rows)))
    assert "left out 80 of 120 problems: copies" in capsys.readouterr().out
    assert len(task.train) + len(task.test) == 40


GOOD_LINE = '{"problem": "1", "answer": "1"}\n'


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD_LINE + '{"problem": "2"\n', "line 2: not valid JSON .*delimiter"),
        (GOOD_LINE + '\n\n{"problem": "2"}\n', 'line 4: needs "problem"'),
        ('{"problem": "1", "answer": ""}\n', "line 1: needs"),
        ('{"problem": "1", "answer": "5 ####"}\n', "line 1: needs"),
        ('{"problem": 5, "answer": "1"}\n', "line 1: needs"),
        ('{"problem": "x", "tests": []}', "line 1: needs"),
        ('{"problem": "x", "answer": true}', "line 1: needs"),
        ('{"problem": "x", "answer": NaN}', "line 1: needs"),
        ('{"problem": "x", "answer": "1", "Answer": "2"}', "line 1: two columns have the same"),
        ('{"problem": "x", "answer": "1", "held_out": "no"}', "line 1: .*must be true or false"),
        ('{"problem": "x", "tests": [{"input": "1"}]}', 'line 1: its "tests" must be asserts, or'),
        ('[{"problem": "1", "answer": "1"}, 3]', "entry 2: needs"),
        (f"[{GOOD_LINE}, oops]", "bad.jsonl: not valid JSON .*line 2 column 3"),
        # Half a character, a Latin-1 one, too deep, a number too long for int.
        (GOOD_LINE + '{"problem": "\\ud83d", "answer": "1"}', "line 2: not valid .*surrogates"),
        (GOOD_LINE + '{"problem": "caf\udce9", "answer": "1"}', "line 2: not valid JSON in UTF-8"),
        (GOOD_LINE + "[" * 100_000, "line 2: not valid JSON"),
        (GOOD_LINE + '{"problem": "1", "answer": ' + "9" * 5000 + "}", "line 2: not valid JSON"),
        ("", "none of its 0 problems is held out"),
    ],
)
def test_bad_data_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=message):
        get_task(str(path))


def test_a_column_may_say_what_is_held_out(tmp_path):
    lines = [json.dumps({"problem": f"{n}", "answer": n, "held_out": n > 3}) for n in range(9)]
    (tmp_path / "split.jsonl").write_text("\n".join(lines))
    task = get_task(str(tmp_path / "split.jsonl"))
    assert [row["answer"] for row in task.train] == ["0", "1", "2", "3"] and len(task.test) == 5


def test_another_instruction_and_where_a_completion_ends():
    """Base models need a prompt with examples, and texts that end a completion. Braces in the prompt stay
    braces."""
    task = get_task("arithmetic", prompt="1+1=\\boxed{2}\n{problem}", stops=("\n", "Problem:"))
    first = task.test[0]
    assert task.prompt(first) == "1+1=\\boxed{2}\n" + first["problem"]
    assert task.stops == ("\n", "Problem:")
    assert get_task("arithmetic").prompt(first) == first["problem"]
    assert get_task("arithmetic").stops == ()
    with pytest.raises(DataError, match=r"prompt needs \{problem\}"):
        get_task("arithmetic", prompt="Solve it.")


def test_what_cannot_be_found_says_so(tmp_path):
    with pytest.raises(DataError, match="task 'maths': choose arithmetic, math, math500, file.py:"):
        get_task("maths")
    with pytest.raises(DataError, match="none.jsonl: cannot be read"):
        get_task(str(tmp_path / "none.jsonl"))


# ---- The plug-in device: file.py:name --------------------------------------------------------------------------------

PLUGIN = """
import my_words_{n}
print("executed")
def terse(completion, problem):
    return len(completion) < my_words_{n}.LIMIT, {{"accuracy": 1.0}}
class Stubborn:
    def __call__(self, completion, problem):
        return 0.5, {{}}
stubborn, LEVEL = Stubborn(), 3
def countdown():
    from verifiers import Task
    sums = [{{"problem": "0+0=", "answer": "0"}}]
    return Task("countdown", sums, sums, "Count down: {{problem}}", terse)
def not_a_task():
    return []
"""


NUMBERS = itertools.count()


@pytest.fixture
def plugin(tmp_path):
    """Write a user's file, and a second one that it imports from its folder, under new names in each test.
    Returns the first one's path."""
    n = next(NUMBERS)
    (tmp_path / f"my_words_{n}.py").write_text("LIMIT = 5")
    (tmp_path / f"mine_{n}.py").write_text(PLUGIN.format(n=n))
    return str(tmp_path / f"mine_{n}.py")


def test_a_reward_of_a_file_of_mine(plugin, capsys):
    before = list(sys.path)
    assert get_reward(f"{plugin}:terse")("four", {}) == (True, {"accuracy": 1.0})
    assert get_reward(f"{plugin}:stubborn")("four", {})[0] == 0.5  # any object that can be called
    again = get_reward(f"{os.path.relpath(plugin)}:terse")
    assert get_reward(f"{plugin}:terse") is again and sys.path == before
    assert capsys.readouterr().out == "executed\n"  # once, for all names and flags


def test_a_task_of_a_file_of_mine(plugin):
    task = get_task(f"{plugin}:countdown")
    assert task.prompt(task.test[0]) == "Count down: 0+0=" and isinstance(task, Task)
    with pytest.raises(DataError, match="not_a_task: it returns list, not verifiers.Task"):
        get_task(f"{plugin}:not_a_task")
    with pytest.raises(DataError, match="terse.. missing .*called without arguments"):
        get_task(f"{plugin}:terse")


def test_what_is_wrong_with_a_file_of_mine(plugin, tmp_path):
    with pytest.raises(DataError, match=r"no reward '.*mine_\d+.py:tersse': choose .*\bterse\b"):
        get_reward(f"{plugin}:tersse")
    with pytest.raises(DataError, match="there is no reward '.*:LEVEL': choose"):  # a number
        get_reward(f"{plugin}:LEVEL")
    with pytest.raises(DataError, match="nowhere.py: there is no such Python file"):
        get_reward("nowhere.py:f")
    for name, text, message in [
        ("breaks", "x = 1\ny = 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("garbled", "def f(:\n", "SyntaxError: .*garbled.py, line 1"),
        ("lacks", "\n\nimport no_such_module\n", "line 3: ModuleNotFoundError: No module"),
        ("leaves", "import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
        ("random", "def f(): pass\n", "another module is called 'random'"),
    ]:
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(DataError, match=f"{name}.py.*{message}"):
            get_reward(f"{tmp_path}/{name}.py:f")


def test_math500_comes_from_the_hub(tmp_path, monkeypatch):
    """It comes from a local stand-in, and then again without a network."""
    (tmp_path / "served").mkdir()
    write_rows(tmp_path / "served" / "test.jsonl", sums(50))
    (tmp_path / "served" / "info.json").write_text("{}")
    download = huggingface_hub.snapshot_download
    with hub.serve(tmp_path / "served", "HuggingFaceH4/MATH-500", kind="datasets") as server:
        place = {"endpoint": server.url, "cache_dir": tmp_path / "cache"}
        monkeypatch.setattr(huggingface_hub, "snapshot_download", partial(download, **place))
        for offline in (False, True):
            monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
            problems = get_task("math500").test
            assert len(problems) == 50 and problems[7]["answer"] == "8"
        with pytest.raises(DataError, match="math_full_minus_math500: the hub sent no file"):
            get_task("math")
    parts = {"rasbt/math_full_minus_math500": problems, "HuggingFaceH4/MATH-500": problems[:9]}
    monkeypatch.setattr(verifiers, "hub_problems", parts.get)
    assert get_task("math").train == problems[9:]
