r"""by_answer.py - every kind of answer as often, however rare it is in the data.

Source:  chapter "Reward Design for Reasoning", the eval-vs-train reward gap: a model that has
         learned to guess small integers needs other answers as often.
Formula: the kinds take turns. kind=type: integer, decimal, fraction or expression (10,\!080 and
         90^\circ are integers, 2\frac13 is a fraction, \frac{\pi}{2} an expression). kind=size: the
         number of binary digits of an integer (4 to 7 have 3), 0 for all else.
Changes: which problems a step sees. Each kind walks through its own problems, in a new random
         order in every epoch, so that the problems of a rare kind come more often.
Missing: nothing of the chapter's.
"""

import re
from dataclasses import dataclass

from rlvr import GRPO
from skip_solved import walk

# Units, dollars, spaces, and the comma of 10,080 or 10,\!080.
NO_PART = re.compile(
    r"\\text\{[^{}]*\}|\^\{?\\circ\}?|\\?[%$]|,(?=(?:\\!)?[0-9]{3}(?![0-9]))|\\[!,; ]|\s"
)
TYPES = {
    "integer": r"[+-]?[0-9]+",
    "decimal": r"[+-]?[0-9]*\.[0-9]+",
    "fraction": r"[+-]?[0-9]*\\[dt]?frac(\{-?[0-9]+\}|[0-9]){2}|[+-]?[0-9]+/[0-9]+"
    r"|[+-]?[0-9]*\.[0-9]*\\overline\{[0-9]+\}",
}


def answer_type(answer):
    number = NO_PART.sub("", answer)
    for name, form in TYPES.items():
        if re.fullmatch(form, number):
            return name
    return "expression"


def answer_size(answer):
    return int(answer).bit_length() if re.fullmatch("-?[0-9]{1,1000}", answer) else 0


KINDS = {"type": answer_type, "size": answer_size}


class ByAnswer(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        kind: str = "type"

        def __post_init__(self):
            super().__post_init__()
            if self.kind not in KINDS:
                raise ValueError(f"kind is {self.kind!r}, not {' or '.join(KINDS)}")

    def pick(self, problems, step, memory):
        kinds = {}
        for index, problem in enumerate(problems):
            kind = KINDS[self.settings.kind](problem["answer"])
            kinds.setdefault(kind, []).append(index)
        groups = [kinds[kind] for kind in sorted(kinds)]
        P = self.settings.prompts_per_step
        chosen = []
        for place in range((step - 1) * P, step * P):
            group = groups[place % len(groups)]
            chosen.append(group[walk(len(group), place // len(groups), self.settings.seed)])
        return chosen
