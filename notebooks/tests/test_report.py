"""notebooks/report.py and sinks.py: what the page holds, by hand; the page itself in a real browser, where one is."""

import fcntl
import gzip
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
import types

import pytest
import tokenizers

import ranks
import report
import sinks
from model import Tokenizer
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
        "length": 3,
        "finished": True,
        "logp": -1.0,
        "parts": {"accuracy": float(reward == 1), "truncated": 0.0},
        **more,
    }


def write_run(run, samples, num_samples=2, steps=None):
    """A run's folder; samples: {step: lines}."""
    (run / "samples").mkdir(parents=True)
    (run / "config.json").write_text(
        json.dumps({"flags": {"model": "hub/model", "num_samples": num_samples}})
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


def test_thinning_keeps_the_first_and_the_last():
    """Four of 1 .. 10: 0, 3, 6, 9 places from the start."""
    assert report.thin([*range(1, 11)], 4) == [1, 4, 7, 10]
    assert report.thin([3, 5], 4) == [3, 5] and report.thin([*range(1000)], 2) == [0, 999]


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
    assert (
        report.pieces_of({**row, "completion": "o\u4e2d"}, bytes_tokenizer) == pieces[:2]
    )  # cut at a --stop
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


def test_percent_of_a_token(bytes_tokenizer):
    """exp(-0.693) = 0.5; a log-prob above 0, by rounding, is certain."""
    row = completion("ab", ids=bytes_tokenizer.encode("ab"), logps=[-0.693, 0.001])
    assert report.for_page(row, bytes_tokenizer, 100)["percent"] == [50, 100]


# ---- 3. Two runs -----------------------------------------------------------------------------------


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
    with gzip.open(earlier, "wt") as file:
        file.write('{"problem": "1+1=", "completion": 2}\n')
    with pytest.raises(
        DataError, match="step_000002.jsonl.gz, line 1: completion, reward, .* Move it away"
    ):
        report.report([run])


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda run: shutil.rmtree(run), "there is no .*config.json: give the folder of a run"),
        (lambda run: (run / "config.json").write_text("{"), "config.json is damaged"),
        (
            lambda run: (run / "config.json").write_text('{"flags": {"num_samples": null}}'),
            "config.json is damaged",
        ),
        (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl: cannot be read"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "metrics.jsonl holds no step yet"),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"step": "x", "reward": 1}\n'),
            "one without a number",
        ),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"step": 1\n{"step": 2}\n'),
            "metrics.jsonl, line 1: not valid",
        ),
    ],
)
def test_what_is_not_a_run(tmp_path, break_it, message):
    run = write_run(tmp_path / "run", {1: [completion("2", 1.0)] * 2})
    break_it(run)
    with pytest.raises(DataError, match=message):
        report.main([str(run), "-o", str(tmp_path / "report.html")])
    assert not (tmp_path / "report.html").exists()


# ---- 5. In a browser -------------------------------------------------------------------------------

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
PATIENCE = (
    60  # seconds that the browser may take to answer; even the largest page takes it about one
)


class Browser:
    """A headless Chromium, driven by the DevTools protocol over two pipes: JSON messages, each ended by a NUL."""

    def __init__(self, profile):
        (self.read_end, theirs_out), (theirs_in, self.write_end) = os.pipe(), os.pipe()
        # The browser reads from descriptor 3 and writes to 4; copies above 9 so that neither is in the way.
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        start = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
            "os.execv(sys.argv[3], sys.argv[3:])"
        )
        flags = [
            "--headless",
            "--remote-debugging-pipe",
            "--disable-gpu",
            f"--user-data-dir={profile}",
        ]
        flags += ["--no-sandbox"] * (os.geteuid() == 0)
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, *map(str, fds), BROWSER, *flags],
            pass_fds=fds,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for fd in (theirs_in, theirs_out, *fds):
            os.close(fd)
        self.buffer, self.events, self.number, self.session = b"", [], 0, None

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)

    def call(self, method, **params):
        """Send a command, and wait for its answer; what happens meanwhile is kept in `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self.buffer:
                ready, _, _ = select.select([self.read_end], [], [], max(0, end - time.monotonic()))
                data = os.read(self.read_end, 2**20) if ready else b""
                assert data, f"the browser did not answer {method}"
                self.buffer += data
            text, _, self.buffer = self.buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def open(self, path):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.readyState == 'complete' && location.protocol == 'file:'")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < end, f"never became true: {expression}"
            time.sleep(0.02)

    def click(self, expression):
        """A press and release of the mouse in the middle of that element, as a hand does it."""
        x, y = self.value(
            f"(() => {{ const node = {expression}; node.scrollIntoView({{block: 'center'}}); "
            "const box = node.getBoundingClientRect(); "
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode={"ArrowUp": 38, "ArrowDown": 40, "End": 35}[key],
            )

    def troubles(self):
        """Errors, warnings and dialogs so far."""
        kinds = (
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        )
        return [event for event in self.events if event.get("method") in kinds]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not BROWSER:
        pytest.skip(
            "no headless browser is installed: apt-get install chromium-headless-shell, or any Chromium"
        )
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


COUNT = "document.getElementById('count').textContent"
CARDS = "document.querySelectorAll('#list .card').length"
MORE, STEP = (
    "document.querySelector('#list + button')",
    "document.querySelector('select[name=step]')",
)
TEXTS = "[...document.querySelectorAll('#list .card .text')].map((node) => node.textContent)"
HEADINGS = "[...document.querySelectorAll('#list h3')].map((node) => node.textContent)"


def radio(value):
    return f"[...document.querySelectorAll('input[type=radio]')].find((node) => node.value == '{value}')"


def test_filters_and_search_change_what_is_shown(tmp_path, browser):
    """Two steps of two groups of two. Step 1, 1+1: right and wrong, so mixed; 4+4: both wrong, one cut off. Step 2: all
    right. In the other run the first completion is wrong too: one verdict has changed, and it is shown in both runs."""
    first = [
        completion("it is 2", 1.0),
        completion("it is 3"),
        completion("banana", problem="4+4="),
        completion("cut", problem="4+4=", finished=False),
    ]
    second = [completion("Two: 2", 1.0)] * 4
    one = write_run(tmp_path / "one", {1: first, 2: second})
    two = write_run(tmp_path / "two", {1: [completion("sure, 5"), *first[1:]], 2: second})
    report.main([str(one), str(two), "-o", str(tmp_path / "report.html")])
    browser.open(tmp_path / "report.html")
    assert browser.value("document.title") == "one and two"
    assert browser.value(COUNT) == "16 of 16 completions" and browser.value(CARDS) == 16
    assert browser.value("document.querySelectorAll('svg').length") >= 6
    for choice, shown in (
        ("mixed groups", 2),
        ("cut off", 2),
        ("right", 9),
        ("wrong", 7),
        ("changed verdicts", 2),
    ):
        browser.click(radio(choice))
        assert (browser.value(COUNT), browser.value(CARDS)) == (
            f"{shown} of 16 completions",
            shown,
        ), choice
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
    assert browser.value(COUNT) == "2 of 16 completions"
    browser.click(
        "document.querySelector('#list button')"
    )  # all of this problem: both of 4+4, in both runs
    assert browser.value(COUNT) == "4 of 16 completions"
    assert browser.troubles() == []


def test_all_of_a_problem_is_that_problem_and_no_other(tmp_path, browser):
    """5+3= is a part of 25+3=, and a search field would drop the line break of the third. Words typed into the field are
    searched for again. A run may be named as the choice of all runs nearly is."""
    texts = [
        completion(text, problem=problem)
        for problem in ("25+3=", "5+3=", "Let\nx = 1")
        for text in ("a", "b")
    ]
    runs = [write_run(tmp_path / name, {1: texts}) for name in ("both", "other")]
    report.main([*map(str, runs), "-o", str(tmp_path / "report.html")])
    browser.open(tmp_path / "report.html")
    browser.click(radio("both"))
    assert browser.value(COUNT) == "6 of 12 completions"
    for number, problem in ((1, "5+3="), (2, "Let")):
        browser.click(f"document.querySelectorAll('#list button')[{number}]")
        assert browser.value(COUNT) == "2 of 12 completions"
        assert browser.value("document.querySelector('#list .text').textContent").startswith(
            problem
        )
        browser.click("document.querySelector('input[type=search]')")
        browser.press("End")
        browser.call("Input.insertText", text="?")
        assert browser.value(COUNT) == "0 of 12 completions"
        browser.value(
            "(document.querySelector('input[type=search]').value = '') || "
            "document.querySelector('input[type=search]').dispatchEvent(new Event('input', {bubbles: true}))"
        )
    assert browser.troubles() == []


def test_a_step_can_be_chosen_and_more_shows_the_next_forty(tmp_path, browser):
    """Groups of three: 27 at step 2, 13 at step 20, so 120 completions: 40, 80, 120 of all, 40, 80, 81 of step 2, 39 of
    step 20. The 14th group and the 27th are cut by the end of a page, and each has one heading all the same."""
    lines = [completion(f"no. {i}", float(i in (5, 90))) for i in range(120)]
    run = write_run(tmp_path / "run", {2: lines[:81], 20: lines[81:]}, num_samples=3)
    report.main([str(run), "-o", str(tmp_path / "report.html")])
    browser.events.clear()
    browser.open(tmp_path / "report.html")
    assert browser.value(f"[...{STEP}.options].map((option) => option.text)") == ["all", "2", "20"]

    def shows(number, of, start=0):
        """So many cards of `of` completions, from that one on, with their headings; the button if there are more."""
        assert browser.value(COUNT) == f"{of} of 120 completions"
        assert browser.value(TEXTS) == [f"no. {i}" for i in range(start, start + number)]
        groups = [
            re.match("step (2|20), group ([0-9]+): ", heading).groups()
            for heading in browser.value(HEADINGS)
        ]
        numbers = range(start // 3, (start + number - 1) // 3 + 1)
        assert groups == [("2", str(i + 1)) if i < 27 else ("20", str(i - 26)) for i in numbers]
        assert browser.value(f"{MORE}.checkVisibility()") == (number < of)

    for of in (120, 81):  # all, then step 2
        shows(40, of)
        for number in (80, of):
            browser.click(MORE)
            shows(number, of)
        browser.value(f"{STEP}.focus()")
        browser.press("ArrowDown")
    shows(39, of=39, start=81)  # step 20
    browser.click(radio("right"))
    shows(1, of=1, start=90)
    browser.click(
        "document.querySelector('#list button')"
    )  # all of this problem, at whichever step
    assert browser.value(COUNT) == "2 of 120 completions" and browser.value(f"{STEP}.value") == ""
    assert browser.troubles() == []


HISTOGRAM = """[...document.querySelectorAll('svg[aria-label="rule"]')[%d].querySelectorAll('rect')].map((node) => {
    const box = node.getBoundingClientRect();
    return [box.y, box.x, node.textContent, Number(node.getAttribute('fill-opacity'))]; })"""


def bars(browser, columns, number=0):
    """What the cells of a histogram of the part "rule" say to who points at them, as they lie on the screen."""
    cells = sorted(browser.value(HISTOGRAM % number))
    for _, _, told, darkness in cells:
        assert darkness == pytest.approx(0.04 + 0.96 * float(told.split()[2]) / 100, abs=1e-3)
    assert len({y for y, *_ in cells}) * len({x for _, x, *_ in cells}) == len(
        cells
    )  # none lies upon another
    told = [told for _, _, told, _ in cells]
    return [told[i : i + columns] for i in range(0, len(told), columns)]


def ruled(*values):
    """Completions to which a rule gave these values; None: it did not judge."""
    return [
        completion("2", parts={"accuracy": 1.0} | ({} if value is None else {"rule": value}))
        for value in values
    ]


def test_the_histogram_of_a_rule(tmp_path, browser):
    """Three values at three steps: nine cells, the highest value on top. Of step 5 the rule judged three completions:
    one half and two ones, 33.3 % and 66.7 %. The mean of all: (0.5 + 2 + 2.5) / 11 = 0.455."""
    run = write_run(
        tmp_path / "run",
        {1: ruled(0, 0, 0.5, 0), 2: ruled(0.5, 1, 0, 0.5), 5: ruled(1, 0.5, None, 1)},
    )
    report.main([str(run), "-o", str(tmp_path / "report.html")])
    browser.events.clear()
    browser.open(tmp_path / "report.html")
    assert bars(browser, 3) == [
        ["step 1: 0 % at 1", "step 2: 25 % at 1", "step 5: 66.7 % at 1"],
        ["step 1: 25 % at 0.5", "step 2: 50 % at 0.5", "step 5: 33.3 % at 0.5"],
        ["step 1: 75 % at 0", "step 2: 25 % at 0", "step 5: 0 % at 0"],
    ]
    figures = browser.value(
        "[...document.querySelectorAll('figure')].map((figure) => "
        "[...figure.querySelectorAll('h3, svg text, p')].map((node) => node.textContent))"
    )
    assert ["rule: mean 0.455", "0", "0.5", "1", "step 1", "step 5"] in figures
    assert ["accuracy: mean 1", "the same in all completions"] in figures
    assert browser.troubles() == []


def test_a_histogram_of_many_values_has_six_ranges_and_each_run_its_own(tmp_path, browser):
    """Seven values, 0 .. 6: ranges that begin at 0, 1, .. 5; the last holds 5 and both 6: three of eight are 37.5 %."""
    one = write_run(tmp_path / "one", {1: ruled(0, 1, 2, 3, 4, 5, 6, 6)})
    two = write_run(tmp_path / "two", {1: ruled(0, 0, 0, 9)})
    report.main([str(one), str(two), "-o", str(tmp_path / "report.html")])
    browser.open(tmp_path / "report.html")
    assert bars(browser, 1) == [
        ["step 1: 37.5 % from 5"],
        *([f"step 1: 12.5 % from {i}"] for i in (4, 3, 2, 1, 0)),
    ]
    assert bars(browser, 1, number=1) == [["step 1: 25 % at 9"], ["step 1: 75 % at 0"]]


def test_a_run_of_64000_completions_makes_a_page_that_opens(tmp_path, browser, capsys):
    """1,000 steps of 64 completions of 5,000 characters. Of 60 steps there are 3,840 completions; 4,000 characters of
    each are 15 MB, so it is 2,000. All steps have the same file: which step it is, its name says."""
    lines = [completion(f"no. {i}: ".ljust(5000, "."), float(i % 2)) for i in range(64)]
    run = write_run(tmp_path / "run", {1000: lines}, num_samples=8)
    file = run / "samples" / "step_001000.jsonl.gz"
    for step in range(1, 1000):
        (run / "samples" / f"step_{step:06d}.jsonl.gz").write_bytes(file.read_bytes())
    report.main([str(run), "-o", str(tmp_path / "report.html")])
    note = "3,840 completions, those of 60 of 1,000 steps, are here; 3,840 were longer than 2,000 characters"
    assert note in capsys.readouterr().out
    assert 3840 * 2000 < (tmp_path / "report.html").stat().st_size <= report.BYTES == 10_000_000
    browser.events.clear()
    browser.open(tmp_path / "report.html")
    assert note in browser.value("document.getElementById('page').textContent")
    assert (browser.value(COUNT), browser.value(CARDS)) == ("3,840 of 3,840 completions", 40)
    assert (
        browser.value(
            "document.querySelector('svg[aria-label=Reward] polyline').points.numberOfItems"
        )
        == 1001
    )
    browser.value(f"{STEP}.focus()")
    browser.press("End")
    assert (browser.value(f"{STEP}.value"), browser.value(COUNT)) == (
        "1000",
        "64 of 3,840 completions",
    )
    browser.press("ArrowUp")  # round(58 / 59 * 999) steps after the first
    assert (browser.value(f"{STEP}.value"), browser.value(COUNT)) == (
        "983",
        "64 of 3,840 completions",
    )
    assert browser.troubles() == []


def test_a_hostile_completion_is_shown_as_text_and_nothing_runs(tmp_path, browser):
    lines = [
        completion(
            text, problem=HOSTILE[1], answer=HOSTILE[0], parts={HOSTILE[0]: i, "accuracy": 0.0}
        )
        for i, text in enumerate(HOSTILE)
    ]
    run = write_run(tmp_path / "run", {1: lines}, num_samples=len(lines))
    report.main([str(run), "-o", str(tmp_path / "report.html")])
    browser.events.clear()
    browser.open(tmp_path / "report.html")
    shown = browser.value(
        "[...document.querySelectorAll('.card .text')].map((node) => node.textContent)"
    )
    assert shown[:3] == HOSTILE[:3] and shown[4:6] == HOSTILE[4:6] and shown[7:] == HOSTILE[7:]
    assert shown[6] == "x" * 3000 + " [96,007 characters more] " + "x" * 993 + "THE END"
    assert browser.value("document.title") == "run"
    assert browser.value("document.querySelectorAll('main script, main img').length") == 0
    assert browser.troubles() == []


def test_the_page_refuses_what_it_does_not_need(tmp_path, browser):
    """Were a completion ever taken for markup, the policy would stop it: no innerHTML, no other script, no picture."""
    report.main(
        [
            str(write_run(tmp_path / "run", {1: [completion("2")]})),
            "-o",
            str(tmp_path / "report.html"),
        ]
    )
    browser.open(tmp_path / "report.html")
    tried = (
        "try { document.body.innerHTML = '<b>x</b>'; } "
        "catch (error) { document.body.dataset.caught = error.name; } "
        "const script = document.createElement('script'); script.append(\"document.title = 'broken'\"); "
        "document.body.append(script);"
    )
    browser.call("Runtime.evaluate", expression=tried)
    assert (
        browser.value("document.title") == "run"
        and browser.value("document.body.dataset.caught") == "TypeError"
    )


def test_tokens_are_coloured_by_their_probability(tmp_path, browser, bytes_tokenizer):
    """Certain, 50 % and 1 %, then the end: levels 0, 1, 3; without the box that asks for colours none is seen."""
    line = completion(
        "abc", ids=bytes_tokenizer.encode("abc") + [256], logps=[0, -0.693, -4.605, -0.01]
    )
    run = write_run(tmp_path / "run", {1: [line]})
    (run / "final").mkdir()
    bytes_tokenizer.save(run / "final")
    report.main([str(run), "-o", str(tmp_path / "report.html")])
    browser.open(tmp_path / "report.html")
    spans = "[...document.querySelectorAll('.card .text span')]"
    assert browser.value(
        f"{spans}.map((node) => node.className + node.textContent + node.title)"
    ) == ["p0a100 %", "p1b50 %", "p3c1 %", "p0 end99 %"]
    clear = "rgba(0, 0, 0, 0)"
    assert browser.value(f"getComputedStyle({spans}[2]).backgroundColor") != clear
    browser.click("document.querySelector('input[type=checkbox]')")
    assert browser.value(f"getComputedStyle({spans}[2]).backgroundColor") == clear


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


def log_and_die(folder):
    sinks.tensorboard(folder, None)(ROWS[0])
    os._exit(1)


def test_tensorboard_has_what_was_logged_before_a_run_is_killed(tmp_path):
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed: pip install tensorboard"
    )
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (process,), _ = ranks.start(1, log_and_die, tmp_path)
    process.join(60)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert process.exitcode == 1 and [event.value for event in events.Scalars("reward")] == [0.25]


def test_wandb_is_given_the_flags_and_the_numbers(tmp_path, monkeypatch):
    begun, logged = [], []
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
