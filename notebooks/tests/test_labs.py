"""notebooks/labs/build.py: the page is what it writes, and a browser computes what Python does."""

import json
import math
from dataclasses import replace

import pytest

from conftest import ROOT
from headless import FAULTS, SCREENS
from notebooks.labs import build as labs
from notebooks.rewards.process import steps_reward
from notebooks.rewards.program_parts import code_parts_reward
from notebooks.rewards.reasoning import REASONING_PRESETS, gated, weights
from rlvr import group_advantages
from verifiers import MATH_RULES, ReasoningReward, aggregate, extract_boxed_answer, split_tags
from verifiers import tagged_reward, verify_format

PAGE = ROOT / "notebooks" / "lab.html"


@pytest.fixture(scope="module")
def families():
    """Judged once, for programs take their time."""
    return labs.families()


# ---- 1. The page as a file -------------------------------------------------------------------------


def test_the_page_is_what_the_command_writes():
    """With verdicts of today's verifiers: if this fails, run `python -m notebooks.labs.build`."""
    assert PAGE.read_text(encoding="utf-8") == labs.page()


def test_the_page_loads_nothing():
    text = PAGE.read_text()
    assert "script-src 'sha256-" in text and "unsafe-" not in text and len(text) < 100_000
    for word in (" src=", "<link", "@import", "url(", "fetch(", "innerHTML", "eval("):
        assert word not in text, word


def test_the_verdicts_add_up_to_the_rewards_of_training(families):
    """The scores in the page, under a preset's weights, are what the reward of that name pays."""
    math_family, code_family, _ = families
    for completion in math_family["completions"]:
        scores = completion["scores"]
        paid, _ = tagged_reward(completion["text"], labs.EQUATION)
        assert aggregate(scores, MATH_RULES) == pytest.approx(paid)
        paid, _ = steps_reward(completion["text"], labs.EQUATION)
        preset = math_family["presets"]["with steps"]["weights"]
        assert aggregate(scores, weights(**preset)) == pytest.approx(paid)
    for completion in code_family["completions"]:
        paid, _ = code_parts_reward(completion["text"], labs.PALINDROME)
        preset = code_family["presets"]["four parts"]["weights"]
        assert aggregate(completion["scores"], weights(**preset)) == pytest.approx(paid)


# ---- 2. In a browser: compose a reward -------------------------------------------------------------


@pytest.mark.parametrize("place, shown", [("", "compose"), ("#reasoning", "reasoning")])
def test_one_lab_is_shown(browser, place, shown):
    browser.open(PAGE, place)
    sections = "[...document.querySelectorAll('section')]"
    visible = f"{sections}.filter((node) => getComputedStyle(node).display !== 'none')"
    assert browser.value(f"{visible}.map((node) => node.id)") == [shown]


def named_button(text, tab="#compose"):
    nodes = f"[...document.querySelectorAll('{tab} button')]"
    return f"{nodes}.find((node) => node.textContent === {json.dumps(text)})"


def column(kind, table="#composed"):
    """The numbers of a column of the results, with all their digits."""
    cells = f"[...document.querySelectorAll('{table} td.{kind}')]"
    return f"{cells}.map((node) => Number(node.dataset.value))"


def move(browser, name, keys):
    """Put the keyboard on a slider, and press."""
    browser.value(f"document.querySelector('input[name={name}]').focus()")
    for key in keys:
        browser.press(key)


def combined(scores, weight, combine):
    """What the page's four ways of combining should give."""
    if combine == "sum":
        return aggregate(scores, weights(**weight))
    rules = weights(**{name: value for name, value in weight.items() if value > 0})
    counted = [rule.score_fn(scores) for rule in rules]
    if combine == "product":
        return gated(scores, rules)
    if combine == "minimum":
        return min(counted)
    return 1 - math.prod(1 - score for score in counted)


def test_rewards_and_advantages_are_pythons(browser, families):
    """Every family, preset, way of combining and group: the numbers shown against verifiers.py's and rlvr.py's."""
    browser.open(PAGE)
    for family in families:
        browser.click(named_button(family["name"]))
        scores = {item["name"]: item["scores"] for item in family["completions"]}
        for name, preset in family["presets"].items():
            browser.click(named_button(name, "#weights fieldset:first-child"))
            for combine in ("sum", "product", "minimum", "soft or"):
                browser.click(named_button(combine, "#weights fieldset:nth-child(2)"))
                expected = [combined(one, preset["weights"], combine) for one in scores.values()]
                shown = browser.value(column("reward"))[:-1]  # the last row is for one's own text
                assert shown == pytest.approx(expected), (family["name"], name, combine)
        for group, members in family["groups"].items():
            browser.click(named_button(group))
            rewards = [combined(scores[one], preset["weights"], "soft or") for one in members]
            order = [one for one in scores if one in members]
            expected = dict(zip(members, group_advantages(rewards)))
            assert browser.value(column("advantage")) == pytest.approx(
                [expected[one] for one in order], abs=1e-6
            )
    assert browser.troubles() == []


def test_the_chapters_four_rollouts(browser):
    """1.10, 0.10, 0.00, 1.10: mean 0.575, std 0.526, advantages 0.998, -0.903, -1.093, 0.998."""
    browser.open(PAGE)
    browser.click(named_button("R1-Zero"))
    browser.click(named_button("the chapter's four"))
    summary = browser.value("document.getElementById('summary').textContent")
    assert summary.startswith("G = 4, mean 0.575, std 0.526.")
    found = browser.value(column("advantage"))
    assert found == pytest.approx([0.998, 0.998, -0.903, -1.093], abs=5e-4)  # in the page's order


def test_a_slider_and_a_count_change_the_group(browser):
    """One step of a slider is 0.05, and the preset is no longer in use. Twice the right and once the wrong: mean
    (2 * 1.15 + 0.15) / 3."""
    browser.open(PAGE)
    pressed = "#compose [aria-pressed=true]"
    assert browser.texts(pressed) == ["math", "R1-Zero", "sum", "right against wrong"]
    move(browser, "format", ["ArrowUp"])
    assert browser.texts(pressed) == ["math", "sum", "right against wrong"]
    assert browser.value(column("reward"))[:3] == pytest.approx([1.15, 1.15, 0.15])
    browser.value(
        "(() => { const input = document.querySelector('input[type=number]'); input.value = 2; "
        "input.dispatchEvent(new Event('input')); })()"
    )
    expected = group_advantages([1.15, 1.15, 0.15])
    assert browser.value(column("advantage")) == pytest.approx([expected[0], expected[2]])
    browser.click(named_button("all right"))
    assert browser.value(column("advantage")) == [0, 0]
    assert "no gradient" in browser.value("document.getElementById('summary').textContent")
    assert browser.troubles() == []


OWN = [
    "<think>because it fits</think><answer>\\boxed{2}</answer>",
    "<think>because it fits</think><answer>\\boxed{4/2}</answer>",
    "<think> </think><answer>so \\boxed{3} or \\boxed{2.0}</answer>",
    " <think>a\nb c d e f g</think>\n<answer>\\boxed{2</answer> ",
    "<think>because</think><answer>\\boxed{\\text{2}} \\boxed 2</answer>",
    "<think>one</think><think>two</think><answer>\\boxed{2}</answer>",
    "<answer>\\boxed{2}</answer>",
    "<img src=x onerror=\"document.title = 'broken'\">",
    "",
]


def test_the_pages_copies_of_the_rules_agree_with_the_verifiers(browser):
    """Tags, box and form: on every prepared text and on some that are badly formed. An answer that the copy
    calls right is right; it refuses more than grading.py does."""
    browser.open(PAGE)
    texts = [*labs.MATH_TEXTS.values(), *labs.FORMAT_TEXTS.values(), *OWN]
    for text in texts:
        said = json.dumps(text)
        tags = split_tags(text)
        assert browser.value(f"splitTags({said})") == (tags and [*tags]), text
        assert browser.value(f"lastBox({said})") == extract_boxed_answer(text), text
        copy = browser.value(f"judgeMath({said}, '2').scores")
        exact = labs.judge_math(text)[0]
        assert copy["format"] == exact["format"] and copy["think_length"] == exact["think_length"]
        assert copy["answer"] <= exact["answer"], text
        assert browser.value(f"judgeFormat({said}).scores") == labs.judge_format(text)[0], text
        assert verify_format(text)["structure"] == copy["format"]
    assert browser.troubles() == []


def test_a_text_of_ones_own_joins_the_group(browser):
    browser.open(PAGE)
    browser.click("document.querySelector('textarea')")
    browser.call("Input.insertText", text=OWN[0])
    assert browser.value(column("reward"))[-1] == pytest.approx(1.1)
    assert browser.value(column("advantage")) == pytest.approx(group_advantages([1.1, 0.1, 1.1]))
    browser.value("document.querySelector('textarea').select()")
    browser.call("Input.insertText", text=OWN[-2])
    assert browser.value(column("reward"))[-1] == 0
    shown = browser.value("[...document.querySelectorAll('#compose pre')].at(-1).textContent")
    assert shown == OWN[-2] and browser.value("document.querySelectorAll('main img').length") == 0
    assert browser.value("document.title") == "Two labs for rewards" and browser.troubles() == []


# ---- 3. In a browser: a reasoning reward -----------------------------------------------------------


def check_design(browser, design):
    """Both tables of the page against the same design in Python."""
    paid = [design(text, "2")["R"] for text in labs.SIX.values()]
    assert browser.value(column("reward", "#group")) == pytest.approx(paid)
    expected = group_advantages(paid)
    assert browser.value(column("advantage", "#group")) == pytest.approx(expected, abs=1e-6)


def hack_columns(browser):
    """What the page says each hack earns: rows of one's own design and the five."""
    cells = "[...document.querySelectorAll('#hacks td[data-value]')]"
    paid = browser.value(f"{cells}.map((node) => Number(node.dataset.value))")
    return [paid[i : i + 6] for i in range(0, len(paid), 6)]


@pytest.mark.parametrize("needs_tags", [False, True])
def test_every_design_pays_what_python_pays(browser, needs_tags):
    browser.open(PAGE, "#reasoning")
    if needs_tags:
        browser.click("document.querySelector('input[name=needs_tags]')")
    designs = [replace(design, needs_tags=needs_tags) for design in labs.DESIGNS.values()]
    for name, design in zip(labs.DESIGNS, designs):
        browser.click(named_button(name, "#design"))
        check_design(browser, design)
        assert browser.texts("#design [aria-pressed=true]") == [name]
        for (_, text), shown in zip(labs.HACKS.values(), hack_columns(browser)):
            expected = [one(text, "2")["R"] for one in [design, *designs]]
            assert shown == pytest.approx(expected), (name, text[:60])
    assert browser.troubles() == []


def test_the_chapters_exercises(browser):
    """R1-Zero does not see rambling and language mixing, R1 is ordered, form alone pays a wrong answer; and a length
    bonus of 0.3 without the penalty puts the rambler on top, with it the purposeful thinker."""
    browser.open(PAGE, "#reasoning")
    diagnosis = "document.getElementById('diagnosis').textContent"
    browser.click(named_button("R1-Zero", "#design"))
    assert "rambling" in browser.value(diagnosis) and "language" in browser.value(diagnosis)
    browser.click(named_button("format only", "#design"))
    assert "a wrong answer in good form" in browser.value(diagnosis)
    browser.click(named_button("R1", "#design"))
    assert "ordered" in browser.value(diagnosis)
    move(browser, "w_len", ["ArrowUp"] * 6)
    design = ReasoningReward(w_len=0.3, needs_tags=False)
    check_design(browser, design)
    best = f"(() => {{ const all = {column('advantage', '#group')}; return all.indexOf(Math.max(...all)); }})()"
    assert browser.value(best) == 1
    move(browser, "w_ramble", ["ArrowDown"] * 6)
    check_design(browser, replace(design, w_ramble=0.0))
    assert browser.value(best) == 2
    assert browser.value("document.querySelectorAll('#design [aria-pressed=true]').length") == 0


def test_limits_and_boxes_are_read(browser):
    browser.open(PAGE, "#reasoning")
    browser.click(named_button("Kimi k1.5", "#design"))
    browser.click("document.querySelector('input[name=saturates]')")
    browser.value(
        "for (const [name, value] of [['len_cap', 100], ['ramble_threshold', 300]]) { "
        "const input = document.querySelector(`input[name=${name}]`); input.value = value; "
        "input.dispatchEvent(new Event('input')); }"
    )
    kimi = REASONING_PRESETS["kimi-k1.5"]
    changed = replace(kimi, needs_tags=False, saturates=True, len_cap=100, ramble_threshold=300)
    check_design(browser, changed)


# ---- 4. In a browser: for every hand, eye and screen -----------------------------------------------

TABS = ("#compose", "#reasoning")


@pytest.mark.slow
@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("width, scheme", SCREENS)
def test_the_page_fits_reads_and_can_be_reached(browser, tab, width, scheme):
    """Every family, with the group that has all completions: headless.py's FAULTS, and distinct names of the buttons."""
    browser.open(PAGE, tab, width, scheme)
    for family in ("math", "code", "format") if tab == "#compose" else [None]:
        if family:
            browser.click(named_button(family))
            browser.click(named_button("all of them"))
        assert browser.value(FAULTS) == []
        names = browser.texts(f"{tab} button")
        assert len(names) == len(set(names)), names
    assert browser.troubles() == []


@pytest.mark.slow
@pytest.mark.parametrize("tab", TABS)
def test_the_focus_stays_where_a_key_was_pressed(browser, tab):
    """On every button, slider, box, number and text of a tab: Enter, the arrow up, the space."""
    browser.open(PAGE, tab)
    controls = f"[...document.querySelectorAll('{tab} :is(button, input, summary)')]"
    i = 0
    while i < browser.value(f"{controls}.length"):  # a family has more than another
        browser.value(f"window.pressed = {controls}[{i}]; pressed.focus()")
        i += 1
        for key in ("Enter", "ArrowUp", " "):
            browser.press(key)
            stays = browser.value("document.activeElement === pressed")
            assert stays, (key, browser.value("pressed.outerHTML"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 320])
@pytest.mark.parametrize("tab", TABS)
def test_a_phone_shows_the_result_beside_each_slider(browser, tab, width):
    """Slider and result are both on the screen, neither over the other, and R and A without scrolling sideways."""
    browser.open(PAGE, tab, width)
    boxes = f"[...document.querySelectorAll('{tab} SELECTOR')].map((node) => node.getBoundingClientRect().toJSON())"
    sliders = boxes.replace("SELECTOR", "input[type=range]")
    for i in range(len(browser.value(sliders))):
        browser.value(f"document.querySelectorAll('{tab} input[type=range]')[{i}].focus()")
        [result] = browser.value(boxes.replace("SELECTOR", ".result"))
        slider = browser.value(sliders)[i]
        assert 0 <= result["top"] < result["bottom"] <= slider["top"] < slider["bottom"] <= 844
    numbers = browser.value(boxes.replace("SELECTOR", "td:is(.reward, .advantage)"))
    assert max(box["right"] for box in numbers) <= width


@pytest.mark.parametrize("typed, kept", [("-3", "0"), ("1.5", "2"), ("99", "16"), ("12", "12")])
def test_a_count_is_a_whole_number_as_soon_as_it_is_typed(browser, typed, kept):
    browser.open(PAGE)
    browser.value("document.querySelector('input[type=number]').select()")
    for sign in typed:
        browser.call("Input.insertText", text=sign)
    assert browser.value("document.querySelector('input[type=number]').value") == kept
    summary = browser.value("document.getElementById('summary').textContent")
    assert summary.startswith(f"G = {int(kept) + 1}, ")
