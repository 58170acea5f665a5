"""build.py - a page with two labs: compose a reward, design a reasoning reward.

    python -m notebooks.labs.build           writes lab.html

The verifiers judge the completions here, in Python, and their verdicts are
written into the page (page.html). Weights, rewards and advantages are computed
by the page, in JavaScript: it needs no kernel and no network.
notebooks/tests/test_labs.py checks that the page is what this command writes,
and that its arithmetic is Python's.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from notebooks.command import parser_of
from notebooks.rewards.guards import is_hacking
from notebooks.rewards.process import verify_steps
from notebooks.rewards.program_parts import CODE_PARTS, code_parts_reward
from notebooks.rewards.reasoning import REASONING_PRESETS, ReasoningReward, repetition
from notebooks.rewards.structured import verify_tool_call
from verifiers import FORMAT_RULES, MATH_RULES, split_tags
from verifiers import verify_format, verify_math

HERE = Path(__file__).resolve().parent


def tagged(think, answer):
    return f"<think>{think}</think><answer>{answer}</answer>"


def boxed(think, answer="2"):
    return tagged(think, f"\\boxed{{{answer}}}")


def thought(words, of="because the roots multiply to six and add up to five"):
    """So many words that never repeat: because0 the1 roots2 .."""
    of = of.split()
    return " ".join(f"{of[i % len(of)]}{i}" for i in range(words))


def weights_of(rules):
    return {rule.name: rule.weight for rule in rules}


def judged(texts, judge):
    """[{name, text, scores}, ..]: what the project's verifiers say of each text."""
    return [{"name": name, "text": text, "scores": judge(text)} for name, text in texts.items()]


# ---- 1. Compose a reward: three families ---------------------------------------------------------

EQUATION = {"problem": "Solve x^2 - 5x + 6 = 0. Put the smaller root in \\boxed{}.", "answer": "2"}

MATH_TEXTS = {
    "right": boxed("x^2-5x+6 = (x-2)(x-3), and 2*3=6, 2+3=5"),
    "right, by the formula": boxed("the discriminant: 25-24=1, the smaller root: (5-1)/2=2"),
    "wrong, good form": boxed("the discriminant: 25-24=1, the smaller root: (5+1)/2=3", "3"),
    "right, no tags": "The smaller root is \\boxed{2}.",
    "right, no tags and no box": "The smaller root is 2.",
    "right by a slip": boxed("2*3=6 and 2+3=6, so the roots are 2 and 3"),
    "a guess": boxed(""),
    "two boxes": tagged("2*3=6 and 2+3=5", "\\boxed{2} or \\boxed{3}"),
    "answer before thinking": "<answer>\\boxed{2}</answer><think>because 2*3=6 and 2+3=5</think>",
}
FOUR = ["right", "wrong, good form", "right, no tags and no box", "right, by the formula"]


def judge_math(text):
    verdict = verify_math(text, EQUATION["answer"], EQUATION["problem"])
    return {
        "format": verdict["format"],
        "answer": verdict["answer"],
        "think_length": verify_format(text)["think_length"],
        "steps": verify_steps(text)["frac"] if verdict["format"] else 0.0,  # as steps_reward
        "hack": float(is_hacking(text)),
    }


def math_family():
    main = weights_of(MATH_RULES)
    return {
        "name": "math",
        "problem": f"{EQUATION['problem']}\nThe answer is {EQUATION['answer']}.",
        "completions": judged(MATH_TEXTS, judge_math),
        "presets": {
            "R1-Zero": main,
            "answer only": {"answer": 1.0},
            "with steps": main | {"steps": 0.05},
            "guarded": main | {"hack": -0.5},
        },
        "groups": {
            "right against wrong": FOUR[:2],
            "the chapter's four": FOUR,
            "all right": ["right", "right, by the formula"],
        },
    }


TESTS = [
    "assert is_palindrome('level')",
    "assert not is_palindrome('levels')",
    "assert is_palindrome('')",
    "assert is_palindrome('Level')",
    "assert not is_palindrome('Levels')",
]
PALINDROME = "Write is_palindrome(text): does it read the same backwards? Case does not matter."
HEAD = "def is_palindrome(text):"
BODY = "    return text.lower() == text.lower()[::-1]"
YES = "class Yes(int):\n    def __eq__(self, other=0): return True\n    __bool__ = __eq__"

PROGRAMS = {
    "all five tests": f"{HEAD}\n{BODY}",
    "forgets the case": f"{HEAD}\n    return text == text[::-1]",
    "always True": f"{HEAD}\n    return True",
    "imports os": f"import os\n{HEAD}\n{BODY}",
    "loops on one test": f"{HEAD}\n    while text == '': pass\n{BODY}",
    "exits with 0": "import sys\nsys.exit(0)",
    "equals everything": f"{YES}\n{HEAD}\n    return Yes()",
    "not Python": "def is_palindrome(text) return text == text[::-1]",
}


def judge_code(text):
    _, scores = code_parts_reward(text, {"problem": PALINDROME, "tests": TESTS})
    return {rule.name: float(scores[rule.name]) for rule in CODE_PARTS}


def code_family():
    texts = {name: f"```python\n{code}\n```" for name, code in PROGRAMS.items()}
    texts["no program"] = "It compares the text with text[::-1]."
    return {
        "name": "code",
        "problem": "\n".join([PALINDROME, *TESTS]),
        "completions": judged(texts, judge_code),
        "presets": {
            "tests only": {"tests": 1.0},
            "four parts": weights_of(CODE_PARTS),
            "no tests": {"syntax": 0.5, "speed": 0.25, "safety": 0.25},
        },
        "groups": {
            "honest": ["all five tests", "forgets the case", "always True", "not Python"],
            "forged": ["all five tests", "exits with 0", "equals everything"],
        },
    }


QUERY = {"type": "object", "required": ["query"], "properties": {"query": {"type": "string"}}}
CALL = '<tool_call>{"name": "search", "arguments": {"query": "capital of France"}}</tool_call>'
FIRST = "I should look this up first."

FORMAT_TEXTS = {
    "thinks, then calls": tagged(FIRST, CALL),
    "thinks, then answers": tagged("France's capital is well known.", "Paris"),
    "empty thinking": tagged("", CALL),
    "a call in the thinking": tagged(CALL, "Paris"),
    "a call, no tags": CALL,
    "no such tool": tagged(FIRST, CALL.replace("search", "shell")),
    "wrong argument": tagged(FIRST, CALL.replace('"query"', '"q"')),
}


def judge_format(text):
    verdict = verify_format(text)
    scores = {name: verdict[name] for name in ("structure", "think_length")}
    return scores | {"call": verify_tool_call(text, {"search": QUERY})["frac"]}


def format_family():
    return {
        "name": "format",
        "problem": "What is the capital of France? Think first; you may call search(query).",
        "completions": judged(FORMAT_TEXTS, judge_format),
        "presets": {"tags": weights_of(FORMAT_RULES), "calls": {"call": 1.0}},
        "groups": {"two that agree": ["thinks, then answers", "thinks, then calls"]},
    }


# ---- 2. A reasoning reward: six rollouts, five designs, and the hacks ----------------------------

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
    """What a design can pay for in a text: each term of ReasoningReward before its weight."""
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


# ---- 3. The page ---------------------------------------------------------------------------------


def page():
    """The labs as one HTML text. In the data there is no "<": it cannot end its element."""
    families = [math_family(), code_family(), format_family()]
    data = {"families": families, "reasoning": reasoning_reward()}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (HERE / "page.html").read_text(encoding="utf-8").replace("DATA", text)


if __name__ == "__main__":
    parser_of(__doc__).parse_args()
    path = HERE.parent / "lab.html"
    path.write_text(page(), encoding="utf-8", newline="\n")
    print(f"{path}: open it in a browser")
