"""notebooks/look/report.py and sinks.py: what the page holds, by hand; the page itself in a real browser, where one is."""

import gzip
import json
import re
import sys
import types

import pytest
import tokenizers

import train
from headless import FAULTS, SCREENS
from model import Tokenizer
from notebooks.look import report, sinks
from verifiers import DataError

HOSTILE = [
    "</script><script>document.title = 'broken'</script>",
    "<img src=x onerror=\"document.title = 'broken'\">",
    "<!--<script>",
    "lone \ud800 surrogate",
    "nul \0 inside",
    "line\u2028separator\u2029and \u202eright to left",
    "x" * 100_000 + "THE END",
    "DATA HASH-OF-SCRIPT ${alert(1)} \\u003cb> &lt;",
    "\"'}]);alert(1)//",
]


def completion(text, reward=0.0, **more):
    """A line of samples/."""
    return {
        "step": 1,
        "problem": "1+1=",
        "answer": "2",
        "completion": text,
        "reward": reward,
        "advantage": reward - 0.5,
        "ids": [1, 2, 3],
        "logps": [-1.0, -1.0, -1.0],
        "accuracy": float(reward == 1),
        "truncated": 0.0,
        **more,
    }


def write_run(run, samples, num_samples=2, steps=None):
    """A run's folder; samples: {step: lines}."""
    (run / "samples").mkdir(parents=True)
    flags = {"task": "sums.py:sums", "model": "hub/model", "method": "grpo"}
    (run / "config.json").write_text(
        json.dumps({"flags": flags, "settings": {"num_samples": num_samples}})
    )
    rows = [
        {
            "step": step,
            "reward": step / 10,
            "entropy": 0.5,
            "solved": 0.2,
            "mixed": 0.5,
            "hopeless": 0.3,
            "completion_length": 3.0,
        }
        for step in range(0, max(samples, default=0) + 1)
    ]
    rows[0] |= {"eval_accuracy": 0.1, "eval_low": 0.0, "eval_high": 0.3}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, lines in samples.items():
        with gzip.open(run / "samples" / f"step_{step:06d}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({**line, "step": step}) + "\n" for line in lines)
    return run


# ---- 1. Less of it ---------------------------------------------------------------------------------


def test_the_middle_of_a_long_completion_is_left_out():
    """Of ten characters in pieces of three eight stay: six from the start, two from the end; 2 are left out."""
    pieces = [("abc", -1), ("def", -2), ("ghi", -3), ("j", -4), ("", -5)]
    assert report.shorten(pieces, 8) == [
        ("abc", -1),
        ("def", -2),
        (2, None),
        ("i", -3),
        ("j", -4),
        ("", -5),
    ]
    assert report.shorten(pieces, 10) == pieces


def test_numbers_are_finite_and_steps_are_whole():
    row = {
        "step": 1_234_567,
        "reward": 1.100000023841858,
        "loss": float("nan"),
        "note": "text",
        "finished": True,
    }
    assert report.numbers(row) == {"step": 1_234_567, "reward": 1.1, "finished": 1}


def test_the_interval_is_that_of_groups():
    """Means 0.5, 0.7, 0.9: 0.7 -+ 2 x 0.2 / sqrt(3) = 0.7 -+ 0.2309; a single group has none."""
    groups = [
        {"completions": [{"reward": mean - 0.1}, {"reward": mean + 0.1}]}
        for mean in (0.5, 0.7, 0.9)
    ]
    assert report.interval(groups, "reward") == pytest.approx((0.4691, 0.9309), abs=1e-4)
    assert report.numbers({"low": report.interval(groups[:1], "reward")[0]}) == {}


# ---- 2. Tokens -------------------------------------------------------------------------------------


@pytest.fixture
def bytes_tokenizer():
    """A token for each byte, and 256, which ends a completion and has no text."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({sign: i for i, sign in enumerate(sorted(alphabet))}, [])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend)


def test_tokens_that_only_together_are_a_character_make_one_piece(bytes_tokenizer):
    """o, the three bytes of a Chinese character, k, the end: the character's log-prob is the sum of three."""
    ids = bytes_tokenizer.encode("o\u4e2dk") + [256]
    row = {"ids": ids, "logps": [-1, -0.5, -0.25, -0.125, -2, -3], "completion": "o\u4e2dk"}
    pieces = [("o", -1), ("\u4e2d", -0.875), ("k", -2), ("", -3)]
    assert len(ids) == 6 and report.pieces_of(row, bytes_tokenizer) == pieces
    # Cut at a --stop.
    assert report.pieces_of({**row, "completion": "o\u4e2d"}, bytes_tokenizer) == pieces[:2]
    half = {"ids": ids[:3], "logps": [-1, -1, -1], "completion": bytes_tokenizer.decode(ids[:3])}
    assert report.pieces_of(half, bytes_tokenizer) == [("o", -1), ("\ufffd", -2)]


def test_without_ids_or_with_another_tokenizer_there_are_no_colours(bytes_tokenizer):
    plain = [("hello", None)]
    assert report.pieces_of({"completion": "hello"}, bytes_tokenizer) == plain
    row = {"completion": "hello", "ids": bytes_tokenizer.encode("olleh"), "logps": [-1] * 5}
    assert report.pieces_of(row, bytes_tokenizer) == plain
    assert report.pieces_of({**row, "ids": bytes_tokenizer.encode("hello")}, None) == plain
    assert report.pieces_of({**row, "ids": ["a"], "logps": None}, bytes_tokenizer) == plain
    assert "percent" not in report.for_page(completion("hello"), bytes_tokenizer, 100)


# ---- 3. Two runs -----------------------------------------------------------------------------------


def test_a_reply_stands_behind_the_turn_that_it_answers():
    """It was not sampled: it has no probability, and -1 in the place of the percentage."""
    pieces = [("1+", -1.0), ("1?", -1.0), ("2", -1.0), ("", -1.0)]
    turns = [["1+1?", "2"], ["2", None]]
    shown = report.with_replies(pieces, turns)
    assert shown == [pieces[0], pieces[1], ("2", report.REPLY), pieces[2], pieces[3]]
    assert report.with_replies(pieces, []) == pieces


def test_changed_verdicts(tmp_path):
    """Right, wrong against right, right: one of two has changed, and each gets the other's text. Step 2 is not shared,
    nor is another problem."""
    other_problem = completion("8", problem="4+4=")
    one = write_run(
        tmp_path / "one", {1: [completion("2", 1.0), completion("3"), *[other_problem] * 2]}
    )
    two = write_run(
        tmp_path / "two",
        {1: [completion("2", 1.0), completion("is 2", 1.0)], 2: [completion("2", 1.0)]},
    )
    ours, theirs = (report.read_run(run, {1, 2}, 100) for run in (one, two))
    said = report.compare(ours, theirs)
    assert "Of 2 completions" in said and "0 are right only in one, 1 only in two" in said
    others = [row.get("other") for group in ours["groups"] for row in group["completions"]]
    assert others == [None, ["is 2"], None, None]
    assert theirs["groups"][0]["completions"][1]["other"] == ["3"]
    assert "share no problem of a step" in report.compare(ours, report.read_run(two, {2}, 100))


# ---- 4. The page -----------------------------------------------------------------------------------


def test_nothing_in_the_data_is_markup(tmp_path):
    """What stands between the tags of the data is ASCII without a "<", and reads back as what was said."""
    run = write_run(tmp_path / "run", {1: [completion(text) for text in HOSTILE]})
    page, _ = report.report([run])
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[
        1
    ]
    assert held.isascii() and "<" not in held and page.count("</script>") == 2
    assert "script-src 'sha256-" in page and "unsafe-" not in page
    rows = [row for group in json.loads(held)["runs"][0]["groups"] for row in group["completions"]]
    assert [row["pieces"] for row in rows[:6]] == [[text] for text in HOSTILE[:6]]
    head, left_out, tail = rows[6]["pieces"]
    assert (len(head), left_out, len(tail)) == (3000, 96_007, 1000) and tail.endswith("THE END")


def test_a_page_is_bounded_and_says_what_it_leaves_out(tmp_path, monkeypatch):
    """Ten steps of two completions of 3,000 characters into 30,000 bytes more than an empty page."""
    run = write_run(tmp_path / "run", {step: [completion("y" * 3000)] * 2 for step in range(1, 11)})
    empty, _ = report.report([write_run(tmp_path / "empty", {})])
    monkeypatch.setattr(report, "BYTES", len(empty) + 30_000)
    monkeypatch.setattr(report, "STEPS", 5)
    page, runs = report.report([run])
    assert len(page) <= report.BYTES
    assert {group["step"] for group in runs[0]["groups"]} == {
        1,
        3,
        5,
        8,
        10,
    }  # round(4.5) is 4, round(6.75) is 7
    assert (
        "10 completions, those of 5 of 10 steps, are here; 10 were longer than 2,000"
        in runs[0]["notes"][0]
    )
    monkeypatch.setattr(report, "BYTES", 10)
    with pytest.raises(DataError, match="raise BYTES"):
        report.report([run])


def test_a_run_that_goes_on_and_one_that_is_damaged(tmp_path):
    """The newest file may be half written; any other that cannot be read is an error that names it."""
    run = write_run(tmp_path / "run", {step: [completion("2", 1.0)] * 2 for step in (1, 2, 3)})
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "rew')
    newest, earlier = (run / "samples" / f"step_00000{step}.jsonl.gz" for step in (3, 2))
    newest.write_bytes(newest.read_bytes()[:-9])
    _, runs = report.report([run])
    assert len(runs[0]["rows"]) == 4 and "Step 3 is left out" in runs[0]["notes"][0]
    earlier.write_bytes(earlier.read_bytes()[:-9])
    with pytest.raises(DataError, match="step_000002.jsonl.gz, after line 2: cannot be read"):
        report.report([run])
    (run / "config.json").write_text('{"flags": {}')
    with pytest.raises(DataError, match="config.json is damaged .*put it back"):
        report.report([run])


# ---- 5. In a browser -------------------------------------------------------------------------------

COUNT = "document.getElementById('count').textContent"
CARDS = "document.querySelectorAll('#list .card').length"


def radio(value):
    return f"[...document.querySelectorAll('input[type=radio]')].find((node) => node.value == '{value}')"


def test_filters_and_search_change_what_is_shown(tmp_path, browser):
    """Two steps of two groups of two. Step 1, 1+1: right and wrong, so mixed; 4+4: both wrong, one cut off. Step 2: all
    right. In the other run the first completion is wrong too: one verdict has changed, and it is shown in both runs."""
    first = [
        completion("it is 2", 1.0),
        completion("it is 3"),
        completion("banana", problem="4+4="),
        completion("cut", problem="4+4=", truncated=1.0),
    ]
    second = [completion("Two: 2", 1.0)] * 4
    one = write_run(tmp_path / "one", {1: first, 2: second})
    two = write_run(tmp_path / "two", {1: [completion("sure, 5"), *first[1:]], 2: second})
    report.main([str(one), str(two), "-o", str(tmp_path / "report.html")])
    browser.open(tmp_path / "report.html")
    what = "(task sums.py:sums, model model, method grpo)"
    assert browser.value("document.title") == f"Report of the runs one {what} and two {what}"
    assert browser.value(COUNT) == "16 of 16 completions, in 8 of 8 groups"
    assert browser.value(CARDS) == 16
    assert browser.value("document.querySelectorAll('svg').length") >= 6
    filters = {"mixed groups": (2, 1), "cut off": (2, 2), "right": (9, 5), "wrong": (7, 4)}
    for choice, (shown, groups) in {**filters, "changed verdicts": (2, 2)}.items():
        browser.click(radio(choice))
        said = f"{shown} of 16 completions, in {groups} of 8 groups"
        assert (browser.value(COUNT), browser.value(CARDS)) == (said, shown), choice
    assert browser.value("document.querySelector('#list .card').textContent").endswith(
        "two is wrong:sure, 5"
    )
    browser.click(radio("all"))
    browser.click(radio("lowest reward"))
    assert "wrong, reward 0" in browser.value("document.querySelector('.card').textContent")
    browser.click(radio("highest reward"))
    assert "right, reward 1" in browser.value("document.querySelector('.card').textContent")
    browser.click("document.querySelector('input[type=search]')")
    browser.call("Input.insertText", text="BANANA")
    assert browser.value(COUNT) == "2 of 16 completions, in 2 of 8 groups"
    browser.click(
        "document.querySelector('#list button')"
    )  # all of this problem: both of 4+4, in both runs
    assert browser.value(COUNT) == "4 of 16 completions, in 2 of 8 groups"
    assert browser.troubles() == []


def test_a_hostile_completion_is_shown_as_text_and_nothing_runs(tmp_path, browser):
    lines = [
        completion(text, problem=HOSTILE[1], answer=HOSTILE[0], accuracy=0.0, **{HOSTILE[0]: i})
        for i, text in enumerate(HOSTILE)
    ]
    run = write_run(tmp_path / "run", {1: lines}, num_samples=len(lines))
    report.main([str(run), "-o", str(tmp_path / "report.html")])
    browser.open(tmp_path / "report.html")
    shown = browser.texts(".card .text")
    assert shown[:3] == HOSTILE[:3] and shown[4:6] == HOSTILE[4:6] and shown[7:] == HOSTILE[7:]
    assert shown[6] == "x" * 3000 + " [96,007 characters more] " + "x" * 993 + "THE END"
    assert browser.value("document.title").startswith("Report of the run run (task sums.py:sums")
    assert browser.value("document.querySelectorAll('main script, main img').length") == 0
    assert browser.troubles() == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two steps of training; and two runs of a hundred steps, with a long completion and one with a reply."""
    folder = tmp_path_factory.mktemp("runs")
    flags = "--task arithmetic --device cpu --steps 2 --prompts-per-step 2 --num-samples 4 --max-new-tokens 40"
    train.main([*flags.split(), "--eval-problems", "4", "--runs", str(folder), "--name", "short"])
    lines = [completion("2" * 300, 1.0), completion("is 3", other=-0.0833, turns=[["is 3", "no"]])]
    one, two = (write_run(folder / name, {100: lines}) for name in ("one", "two"))
    report.main([str(folder / "short"), "-o", str(folder / "real.html")])
    report.main([str(one), str(two), "-o", str(folder / "two.html")])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("width, scheme", SCREENS)
def test_a_report_fits_reads_and_can_be_reached(pages, browser, width, scheme):
    """headless.py's FAULTS; the title says what was run, and a reply is marked."""
    browser.open(pages / "real.html", "", width, scheme)
    assert (
        browser.texts("head title, h1")
        == ["Report of the run short (task arithmetic, model tiny, method grpo)"] * 2
    )
    assert browser.value(FAULTS) == [] and browser.troubles() == []
    browser.open(pages / "two.html", "", width, scheme)
    assert browser.texts(".reply") == ["no", "no"]
    assert browser.value(FAULTS) == [] and browser.troubles() == []


@pytest.mark.slow
def test_the_focus_stays_in_the_list(tmp_path, browser):
    """All of a problem is shown: the button of its group has it. The last of them are shown: the first new one has it."""
    run = write_run(tmp_path / "run", {1: [completion("2", 1.0)] * 2, 2: [completion("3")] * 60})
    report.main([str(run), "-o", str(tmp_path / "report.html")])
    browser.open(tmp_path / "report.html")
    focused = "document.activeElement.textContent"
    browser.value("document.querySelector('main > button').focus()")
    browser.press("Enter")
    assert browser.value(focused) == "3" and browser.value(CARDS) == 62
    browser.value("document.querySelectorAll('#list button')[1].focus()")
    browser.press("Enter")
    assert browser.value(focused) == "all of this problem"


# ---- 6. Sinks --------------------------------------------------------------------------------------

ROWS = [
    {"step": 0, "reward": 0.25, "note": "no number"},
    {"step": 1, "reward": 0.5, "entropy": 2.0},
]


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = sinks.tensorboard(tmp_path, None)
    for row in ROWS:
        log(row)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [
        (0, 0.25),
        (1, 0.5),
    ]
    assert sorted(events.Tags()["scalars"]) == ["entropy", "reward", "step"]


def test_wandb_is_given_the_flags_and_the_numbers(tmp_path, monkeypatch):
    begun = []
    logged = []
    module = types.ModuleType("wandb")
    module.__spec__ = types.SimpleNamespace()
    module.init = lambda **given: (
        begun.append(given)
        or types.SimpleNamespace(log=lambda row, step: logged.append((step, row)))
    )
    monkeypatch.setitem(sys.modules, "wandb", module)
    log = sinks.wandb(tmp_path / "name", types.SimpleNamespace(lr=0.5))
    for row in ROWS:
        log(row)
    assert (
        begun[0]["id"] == "name"
        and begun[0]["config"] == {"lr": 0.5}
        and begun[0]["resume"] == "allow"
    )
    assert logged == [(0, {"step": 0, "reward": 0.25}), (1, ROWS[1])]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=f"pip install {name}"):
        getattr(sinks, name)(tmp_path, types.SimpleNamespace(lr=0.5))
