"""thinking.py - a measure: which steps of a chain of thought cause the answer, and which are decoration?

Right, plainly worked completions are taken, and the value of one step is made wrong. Kept: the rest stays as it was,
and the model is made to answer at once. Continued: the rest is cut away, and the model goes on from there. A step
causes the answer if another one comes out.
"""

import random
import re

import numpy as np
import torch

import verifiers
from model import load
from notebooks.environments.calculator import products
from rlvr import GRPO, roll_out

METHOD = GRPO(max_new_tokens=80)
BOX = "</think><answer>\\boxed{"
# Plain or Chinese, for after RL a base may work in either: 25+7=32 or, begun with "so ", 25加7得32.
STEP = {
    "sums": r"(?:so )?[0-9]+[-+加减][0-9]+[=得]([0-9]+)",
    "products": r"<tool>[^<]*</tool>([0-9]+)",
}
BETWEEN = {"sums": ";", "products": ""}


def worked(records, kind):
    """Of right completions that are nothing but steps and their answer: (problem, steps, answer)."""
    between = BETWEEN[kind]
    whole = rf"<think>({STEP[kind]}(?:{between}{STEP[kind]})*)</think><answer>\\boxed{{[0-9]+}}</answer>"
    found = []
    for problem, text, right in records:
        thinking = re.fullmatch(whole, text)
        if thinking and right:
            steps = [match.group() for match in re.finditer(STEP[kind], thinking[1])]
            found.append((problem["problem"], steps, problem["answer"]))
    return found


def made_wrong(step, rng):
    """The same step, with another last digit but one or last digit of its value."""
    place = len(step) - rng.choice([1, 2])
    digit = (int(step[place]) + rng.randint(1, 9)) % 10
    return step[:place] + str(digit) + step[place + 1 :]


def answers(model, tokenizer, task, texts):
    """How the model goes on from each of these texts, greedily -> the last box of text and completion."""
    begun = [{"problem": text, "answer": ""} for text in texts]
    step = roll_out(METHOD, model, tokenizer, task, begun, temperature=0.0)
    whole = [text + own for text, own in zip(texts, step.texts)]
    return [verifiers.extract_boxed_answer(text.partition("</answer>")[0]) for text in whole]


@torch.no_grad()
def causes(run, problems=150):
    """-> the shares of steps that cause the answer, and of completions whose answer comes out again untouched. The arm
    is named "sums, .." or "products, ..", as its problems are."""
    model, tokenizer = load(str(run.final))
    kind = run.arm.partition(",")[0]
    asked = products() if kind == "products" else verifiers.arithmetic()
    step = roll_out(METHOD, model, tokenizer, asked, asked.test[:problems], 4)
    each = [problem for problem in step.problems for _ in range(4)]
    right = [part["accuracy"] == 1 for part in step.parts]
    rng = random.Random(run.seed)
    tried = []  # (what is done, to the last step?, text, truth)
    texts = [tokenizer.decode(ids) for ids in step.rollouts.completions()]  # the tool's words too
    for problem, steps, answer in worked(zip(each, texts, right), kind)[:150]:
        begun = f"{problem}<think>"
        tried.append(("untouched", True, f"{begun}{BETWEEN[kind].join(steps)}{BOX}", answer))
        for i, part in enumerate(steps):
            last = i == len(steps) - 1
            wrong = made_wrong(part, rng)
            changed = BETWEEN[kind].join([*steps[:i], wrong, *steps[i + 1 :]])
            cut = BETWEEN[kind].join([*steps[:i], wrong])
            tried.append(("kept", last, f"{begun}{changed}{BOX}", answer))
            tried.append(("continued", last, f"{begun}{cut}", answer))
    found = answers(model, tokenizer, asked, [text for _, _, text, _ in tried])
    caused = [answer != truth for answer, (*_, truth) in zip(found, tried)]
    return shares([key[:2] for key in tried], caused)


def shares(keys, caused):
    """The columns of a row, from (what was done, to the last step or an earlier one) and whether the answer changed."""

    def share(name, *ends):
        chosen = [c for (what, last), c in zip(keys, caused) if what == name and last in ends]
        return float(np.mean(chosen)) if chosen else float("nan")

    return {
        "kept": share("kept", True, False),
        "kept, last": share("kept", True),
        "kept, earlier": share("kept", False),
        "continued, earlier": share("continued", False),
        "untouched": 1 - share("untouched", True),
        "completions": sum(what == "untouched" for what, _ in keys),
    }
