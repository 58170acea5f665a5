"""build.py - a page with sliders: design a reasoning reward.

    python -m notebooks.labs.build           writes lab.html

The verifiers score the completions here, in Python, and their scores are
written into the page (page.html). The page computes rewards and advantages in
JavaScript, so it needs no kernel and no network. notebooks/tests/test_labs.py
checks that the page is what this command writes, and that its arithmetic gives
the same results as Python.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from notebooks.command import parser_of
from notebooks.rewards.reasoning import REASONING_PRESETS, ReasoningReward, repetition
from verifiers import split_tags

HERE = Path(__file__).resolve().parent


def tagged(think, answer):
    return f"<think>{think}</think><answer>{answer}</answer>"


def boxed(think, answer="2"):
    return tagged(think, f"\\boxed{{{answer}}}")


def thought(words, of="because the roots multiply to six and add up to five"):
    """Return this many words, none of which repeat: because0 the1 roots2 .."""
    of = of.split()
    return " ".join(f"{of[i % len(of)]}{i}" for i in range(words))


# ---- 1. Six rollouts, five designs, and the hacks --------------------------------------------------

EQUATION = {"problem": "Solve x^2 - 5x + 6 = 0. Put the smaller root in \\boxed{}.", "answer": "2"}

SIX = {
    "short, right": boxed(thought(18)),
    "long, right": boxed(thought(142)),
    "rambling, right": boxed(thought(612)),
    "right, no tags": "The smaller root is \\boxed{2}.",
    "wrong, good form": boxed(thought(84), "3"),
    "bilingual, right": boxed("let me factor 先因式分解 (x-2)(x-3)=0 then 所以较小的根是 2, ok"),
}

GUESS = thought(84)
HACKS = {  # name -> (its honest twin, the text)
    "padding with new words": ("long, right", boxed(thought(1200))),
    "padding with one phrase": ("long, right", boxed("let me think once more, hmm, wait, " * 70)),
    "mixing languages": ("short, right", SIX["bilingual, right"]),
    "no thinking": ("short, right", boxed("")),
    "no tags": ("short, right", SIX["right, no tags"]),
    "no answer": ("wrong, good form", tagged(GUESS, "I do not know.")),
    "no answer, padded": ("wrong, good form", tagged(thought(400), "I do not know.")),
    "no answer, broken tags": ("wrong, good form", f"<think>{GUESS}"),
    "many boxes": ("wrong, good form", tagged(GUESS, "\\boxed{1}\\boxed{2}\\boxed{3}")),
}

DESIGNS = {
    "R1-Zero": REASONING_PRESETS["r1-zero"],
    "R1": REASONING_PRESETS["r1"],
    "format only": ReasoningReward(w_acc=0.0, w_fmt=1.0, w_lang=0.0, w_ramble=0.0),
    "Kimi k1.5": REASONING_PRESETS["kimi-k1.5"],
    "Olmo 3": REASONING_PRESETS["olmo-3"],
}


def measured(name, text, **more):
    """Return what a design can reward in a text: each term of ReasoningReward before its weight."""
    seen = ReasoningReward(w_lang=1.0, w_ramble=0.0, needs_tags=False)(text, EQUATION["answer"])
    bare = "broken" if "<think>" in text else "bare"
    return more | {
        "name": name,
        "text": text,
        "form": "tagged" if split_tags(text) else bare,
        "acc": seen["acc"],
        "fmt": seen["fmt"],
        "words": int(seen["think_tokens"]),
        "mixed": abs(seen["lang"]),
        "repetition": repetition(text),
    }


def reasoning_reward():
    without = {"w_rep": 0.0, "rep_threshold": 0.3}  # only Olmo 3's design has these
    return {
        "problem": EQUATION["problem"],
        "rollouts": [measured(name, text) for name, text in SIX.items()],
        "hacks": [measured(name, text, twin=twin) for name, (twin, text) in HACKS.items()],
        "designs": {name: without | asdict(design) for name, design in DESIGNS.items()},
    }


# ---- 2. The page ---------------------------------------------------------------------------------


def page():
    """Return the lab as one HTML text. The data contains no "<", so it cannot close its element."""
    text = json.dumps(reasoning_reward(), separators=(",", ":")).replace("<", "\\u003c")
    return (HERE / "page.html").read_text(encoding="utf-8").replace("DATA", text)


if __name__ == "__main__":
    parser_of(__doc__).parse_args()
    path = HERE.parent / "lab.html"
    path.write_text(page(), encoding="utf-8", newline="\n")
    print(f"{path}: open it in a browser")
