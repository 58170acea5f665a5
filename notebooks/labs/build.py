r"""build.py - two labs as one page for a browser: compose a reward, design a reasoning reward.

    python -m notebooks.labs.build           writes lab.html

The verifiers judge the prepared completions here, in Python, and their verdicts are written into the
page. Weights, rewards and advantages are computed by the page, in JavaScript (lab.js): it needs no
kernel and no network. notebooks/tests/test_labs.py checks that the page is what this command writes,
and, in a browser, that its numbers are Python's.

Left out: a page cannot run a program or a grader, so a text of your own is read by small copies of
the rules (in lab.js), and an answer of your own is right only if it is the same number or text.
"""

from dataclasses import asdict
from pathlib import Path

from notebooks.look.report import fill
from notebooks.rewards.guards import is_hacking
from notebooks.rewards.process import verify_steps
from notebooks.rewards.program_parts import CODE_PARTS, code_parts_reward
from notebooks.rewards.reasoning import REASONING_PRESETS, repetition
from notebooks.rewards.structured import verify_tool_call
from verifiers import (
    CODE_RULES,
    FORMAT_RULES,
    MATH_RULES,
    ReasoningReward,
    extract_code,
    split_tags,
    verify_code,
    verify_format,
    verify_math,
)

HERE = Path(__file__).resolve().parent


def tagged(think, answer):
    return f"<think>{think}</think><answer>{answer}</answer>"


def boxed(think, answer):
    return tagged(think, f"\\boxed{{{answer}}}")


def thought(words, of="because the roots multiply to six and add up to five"):
    """So many words that never repeat: because0 the1 roots2 .."""
    of = of.split()
    return " ".join(f"{of[i % len(of)]}{i}" for i in range(words))


# ---- 1. Compose a reward: three families ---------------------------------------------------------

EQUATION = {"problem": "Solve x^2 - 5x + 6 = 0. Put the smaller root in \\boxed{}.", "answer": "2"}

MATH_TEXTS = {
    "right": boxed("x^2-5x+6 = (x-2)(x-3), and 2*3=6, 2+3=5", "2"),
    "right, by the formula": boxed("the discriminant: 25-24=1, the smaller root: (5-1)/2=2", "2"),
    "wrong, good form": boxed("the discriminant: 25-24=1, the smaller root: (5+1)/2=3", "3"),
    "right, no tags": "The smaller root is \\boxed{2}.",
    "right, no tags and no box": "The smaller root is 2.",
    "right by a slip": boxed("2*3=6 and 2+3=6, so the roots are 2 and 3", "2"),
    "a guess": boxed("", "2"),
    "only announced": boxed("The answer is clearly 2.", "2"),
    "two boxes": tagged("2*3=6 and 2+3=5", "\\boxed{2} or \\boxed{3}"),
    "answer before thinking": "<answer>\\boxed{2}</answer><think>because 2*3=6 and 2+3=5</think>",
    "never closed": "<think>2*3=6 and 2+3=5, so \\boxed{2}",
}


def judge_math(text):
    verdict = verify_math(text, EQUATION["answer"], EQUATION["problem"])
    scores = {
        "format": verdict["format"],
        "answer": verdict["answer"],
        "think_length": verify_format(text)["think_length"],
        "steps": verify_steps(text)["frac"] if verdict["format"] else 0.0,  # as steps_reward
        "hack": float(is_hacking(text)),
    }
    return scores, [f"read as the answer: {verdict['extracted'] or 'nothing'}"]


PALINDROME = {
    "problem": "Write is_palindrome(text): does it read the same backwards? Case does not matter.",
    "tests": [
        "assert is_palindrome('level')",
        "assert not is_palindrome('levels')",
        "assert is_palindrome('')",
        "assert is_palindrome('Level')",
        "assert not is_palindrome('Levels')",
    ],
}


def program(*lines):
    return "```python\n" + "\n".join(lines) + "\n```"


CODE_TEXTS = {
    "all five tests": program(
        "def is_palindrome(text):",
        "    text = text.lower()",
        "    return text == text[::-1]",
    ),
    "forgets the case": program("def is_palindrome(text):", "    return text == text[::-1]"),
    "always True": program("def is_palindrome(text):", "    return True"),
    "imports os": program(
        "import os",
        "def is_palindrome(text):",
        "    return text.lower() == text.lower()[::-1]",
    ),
    "loops on one test": program(
        "def is_palindrome(text):",
        "    while text == '': pass",
        "    return text.lower() == text.lower()[::-1]",
    ),
    "does nothing": program("pass"),
    "exits with 0": program("import sys", "sys.exit(0)"),
    "prints success": program("print('5 passed')", "raise SystemExit(0)"),
    "equals everything": program(
        "class Yes(int):",
        "    def __eq__(self, other): return True",
        "    def __bool__(self): return True",
        "def is_palindrome(text): return Yes()",
    ),
    "not Python": program("def is_palindrome(text) return text == text[::-1]"),
    "no program": "It compares the text with text[::-1].",
}


def judge_code(text):
    _, scores = code_parts_reward(text, PALINDROME)
    scores = {rule.name: float(scores[rule.name]) for rule in CODE_PARTS}
    code = extract_code(text)
    if code is None:
        return scores, ["there is no program"]
    why = verify_code(code, PALINDROME["tests"])["why"]
    whys = [line.partition(":")[0] for line in why]  # messages differ from Python to Python
    return scores, [f"{test}: {line}" for test, line in zip(PALINDROME["tests"], whys)]


TOOLS = {
    "search": {
        "type": "object",
        "required": ["query"],
        "properties": {"query": {"type": "string"}},
    }
}
CALL = '<tool_call>{"name": "search", "arguments": {"query": "capital of France"}}</tool_call>'

FORMAT_TEXTS = {
    "thinks, then calls": tagged("I should look this up first.", CALL),
    "thinks, then answers": tagged("France's capital is well known.", "Paris"),
    "empty thinking": tagged("", CALL),
    "hardly any thinking": tagged("hm", "Paris"),
    "a call in the thinking": tagged(CALL, "Paris"),
    "a call, no tags": CALL,
    "no such tool": tagged("I should look this up first.", CALL.replace("search", "shell")),
    "wrong argument": tagged("I should look this up first.", CALL.replace('"query"', '"q"')),
    "a call that is not JSON": tagged(
        "I should look this up first.", "<tool_call>search(France)</tool_call>"
    ),
    "two answers": tagged("It is Paris.", "Paris") + "<answer>Lyon</answer>",
    "plain text": "Paris.",
}


def judge_format(text):
    verdict = verify_format(text)
    call = verify_tool_call(text, TOOLS)
    scores = {
        "structure": verdict["structure"],
        "think_length": verdict["think_length"],
        "call": call["frac"],
    }
    return scores, [f"{call['valid']} of {call['calls']} calls are well-formed"]


def weights_of(rules):
    return {rule.name: rule.weight for rule in rules}


def judged(texts, judge):
    """[{name, text, scores, notes}, ..]: what the project's verifiers say of each text."""
    found = []
    for name, text in texts.items():
        scores, notes = judge(text)
        found.append({"name": name, "text": text, "scores": scores, "notes": notes})
    return found


def math_family():
    main = weights_of(MATH_RULES)
    return {
        "name": "math",
        "problem": EQUATION["problem"],
        "truth": EQUATION["answer"],
        "rules": {
            "format": "the tags are there, in order, and nothing is outside them",
            "answer": "the last box inside <answer> has the right value",
            "think_length": "at least 8 characters of thinking",
            "steps": "the share of the equations in the thinking that hold",
            "hack": "it looks like an answer without a derivation (give it a negative weight)",
        },
        "completions": judged(MATH_TEXTS, judge_math),
        "own": "math",
        "presets": {
            "R1-Zero": {"weights": main},
            "answer only": {"weights": {"answer": 1.0}},
            "format only": {"weights": {"format": 1.0}},
            "all or nothing": {"weights": main, "combine": "product"},
            "with steps": {"weights": main | {"steps": 0.05}},
            "guarded": {"weights": main | {"hack": -0.5}},
        },
        "groups": {
            "right against wrong": ["right", "wrong, good form"],
            "the chapter's four": [
                "right",
                "wrong, good form",
                "right, no tags and no box",
                "right, by the formula",
            ],
            "all right": ["right", "right, by the formula"],
            "all of them": [*MATH_TEXTS],
        },
    }


def code_family():
    return {
        "name": "code",
        "problem": PALINDROME["problem"] + " Its five tests:\n" + "\n".join(PALINDROME["tests"]),
        "truth": None,
        "rules": {
            "syntax": "it is Python",
            "tests": "the share of the tests that pass",
            "speed": "1, or 0.5 above five seconds; 0 if no test passes",
            "safety": "it names nothing dangerous; 0 if no test passes",
        },
        "completions": judged(CODE_TEXTS, judge_code),
        "own": "by hand",
        "presets": {
            "tests only": {"weights": {"tests": weights_of(CODE_RULES)["frac"]}},
            "four parts": {"weights": weights_of(CODE_PARTS)},
            "all or nothing": {"weights": weights_of(CODE_PARTS), "combine": "product"},
            "no tests": {"weights": {"syntax": 0.5, "speed": 0.25, "safety": 0.25}},
        },
        "groups": {
            "honest": ["all five tests", "forgets the case", "always True", "not Python"],
            "forged": ["all five tests", "exits with 0", "prints success", "equals everything"],
            "all of them": [*CODE_TEXTS],
        },
    }


def format_family():
    return {
        "name": "format",
        "problem": "What is the capital of France? Think first; you may call search(query).",
        "truth": None,
        "rules": {
            "structure": "the tags are there, in order, and nothing is outside them",
            "think_length": "at least 8 characters of thinking",
            "call": "the share of the tool calls behind the thinking that are well-formed",
        },
        "completions": judged(FORMAT_TEXTS, judge_format),
        "own": "format",
        "presets": {
            "tags": {"weights": weights_of(FORMAT_RULES)},
            "function calling": {"weights": {"call": 1.0}},
            "both": {"weights": {"structure": 0.1, "think_length": 0.1, "call": 1.0}},
            "all or nothing": {
                "weights": {"structure": 1.0, "think_length": 1.0, "call": 1.0},
                "combine": "product",
            },
        },
        "groups": {
            "four": ["thinks, then calls", "empty thinking", "wrong argument", "plain text"],
            "two that agree": ["thinks, then answers", "thinks, then calls"],
            "all of them": [*FORMAT_TEXTS],
        },
    }


def families():
    return [math_family(), code_family(), format_family()]


# ---- 2. A reasoning reward: six rollouts, five designs, and the hacks ----------------------------

SIX = {
    "short, right": boxed(thought(18), "2"),
    "long, right": boxed(thought(142), "2"),
    "rambling, right": boxed(thought(612), "2"),
    "right, no tags": "The smaller root is \\boxed{2}.",
    "wrong, good form": boxed(thought(84), "3"),
    "bilingual, right": boxed(
        "let me factor 先因式分解 (x-2)(x-3)=0 then 所以较小的根是 2 and we are ok", "2"
    ),
}

GUESS = thought(84)
HACKS = {  # name -> (its honest twin, the text)
    "padding with new words": ("long, right", boxed(thought(1200), "2")),
    "padding with one phrase": (
        "long, right",
        boxed("let me think about it once more, hmm, wait, " * 70, "2"),
    ),
    "mixing languages": ("short, right", SIX["bilingual, right"]),
    "no thinking": ("short, right", boxed("", "2")),
    "no tags": ("short, right", SIX["right, no tags"]),
    "no answer": ("wrong, good form", tagged(GUESS, "I do not know.")),
    "no answer, padded": ("wrong, good form", tagged(thought(400), "I do not know.")),
    "no answer, no tags": ("wrong, good form", "I do not know."),
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


def measured(name, text):
    """What a design can pay for in a text: each term of ReasoningReward before its weight."""
    seen = ReasoningReward(w_lang=1.0, w_ramble=0.0, needs_tags=False)(text, EQUATION["answer"])
    if split_tags(text):
        form = "tagged"
    else:
        form = "broken" if "<think>" in text else "bare"
    return {
        "name": name,
        "text": text,
        "form": form,
        "acc": seen["acc"],
        "fmt": seen["fmt"],
        "words": int(seen["think_tokens"]),
        "mixed": abs(seen["lang"]),
        "repetition": repetition(text),
    }


def reasoning_reward():
    without = {"w_rep": 0.0, "rep_threshold": 0.3}  # only Olmo 3's design has these
    hacks = [measured(name, text) | {"twin": twin} for name, (twin, text) in HACKS.items()]
    return {
        "problem": EQUATION["problem"],
        "rollouts": [measured(name, text) for name, text in SIX.items()],
        "hacks": hacks,
        "designs": {name: without | asdict(design) for name, design in DESIGNS.items()},
    }


# ---- 3. The page ---------------------------------------------------------------------------------


def page():
    """The labs as one HTML text: the template with the script and its data."""
    script = (HERE / "lab.js").read_text(encoding="utf-8")
    template = (HERE / "template.html").read_text(encoding="utf-8").replace("LAB-JS", script)
    return fill(template, {"families": families(), "reasoning": reasoning_reward()})


if __name__ == "__main__":
    path = HERE.parent / "lab.html"
    path.write_text(page(), encoding="utf-8", newline="\n")
    print(f"{path}: open it in a browser")
