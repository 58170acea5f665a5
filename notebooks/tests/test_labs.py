"""notebooks/labs: the page is what build.py writes, and its arithmetic is Python's.

The script's first part, its arithmetic, runs in node where there is one.
"""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from conftest import ROOT
from notebooks.labs import build as labs
from rlvr import group_advantages

PAGE = (ROOT / "notebooks" / "lab.html").read_text(encoding="utf-8")
DATA = json.loads(re.search(r'id="data">(.*?)</script>', PAGE)[1])


def test_the_page_is_what_the_command_writes():
    """With verdicts of today's verifiers: if this fails, run `python -m notebooks.labs.build`."""
    assert PAGE == labs.page()


def test_the_page_loads_nothing():
    assert "default-src 'none'" in PAGE and len(PAGE) < 100_000
    for word in (" src=", "<link", "@import", "url(", "fetch(", "innerHTML", "eval("):
        assert word not in PAGE, word


def in_node(expression):
    """The value of an expression behind the first part of the page's script and its data."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    (script,) = re.findall(r"<script>(.*?)// ---- 2. Elements", PAGE, re.S)
    program = f"{script}\nconst data = {json.dumps(DATA)};console.log(JSON.stringify({expression}))"
    told = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


@pytest.mark.parametrize("needs_tags", [False, True])
def test_every_design_pays_what_python_pays(needs_tags):
    found = in_node(
        "Object.values(data.designs).map((design) => "
        "[...data.rollouts, ...data.hacks].map((item) => "
        f"designed(item, {{...design, needs_tags: {str(needs_tags).lower()}}})))"
    )
    texts = [*labs.SIX.values(), *[text for _, text in labs.HACKS.values()]]
    for design, paid in zip(labs.DESIGNS.values(), found):
        design = replace(design, needs_tags=needs_tags)
        assert paid == pytest.approx([design(text, "2")["R"] for text in texts]), design


def test_advantages_are_those_of_the_group():
    """The chapter's four rollouts have 0.998, -0.903, -1.093, 0.998; equal rewards teach nothing."""
    for rewards in ([1.1, 0.1, 0.0, 1.1], [0.1] * 7, [1.0, 0.94, -0.4]):
        expected = pytest.approx(group_advantages(rewards), abs=1e-6)
        assert in_node(f"groupAdvantages({rewards})") == expected
    four = in_node("groupAdvantages([1.1, 0.1, 0, 1.1])")
    assert four == pytest.approx([0.998, -0.903, -1.093, 0.998], abs=5e-4)


def test_what_each_design_makes_more_likely():
    """R1-Zero does not see rambling and language mixing, R1 is ordered, form alone pays a wrong answer."""
    zero, r1, form, *_ = in_node(
        "Object.values(data.designs).map((design) => diagnosis(groupAdvantages("
        "data.rollouts.map((item) => designed(item, {...design, needs_tags: false})))))"
    )
    assert "rambling" in zero and "language" in zero
    assert "ordered" in r1 and "a wrong answer in good form" in form
