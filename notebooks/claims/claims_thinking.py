"""claims_thinking.py - claim 9: which steps of a chain of thought cause the answer, and which are decoration?

    python -m notebooks.claims.claims_thinking --seeds 3        trains what claims_distill.py and _tools.py have not

Right, plainly worked completions are taken, and the value of one step is made wrong. Kept: the rest stays as it was,
and the model is made to answer at once. Continued: the rest is cut away, and the model goes on from there. A step
causes the answer if another one comes out. Before is the base, after is what GRPO made of it.
"""

import random
import re
import time
from pathlib import Path

import numpy as np
import torch

import verifiers
from eval import get_method
from model import load
from notebooks.claims import claims_distill, claims_tools
from notebooks.claims import experiments as lab
from notebooks.claims.trial import Trial, base_of, best, finish, print_costs, read_options, run
from notebooks.models.make_tiny import products
from rlvr import Sampling, roll_out
from verifiers import extract_boxed_answer

NOTEBOOKS = Path(__file__).resolve().parents[1]

BOX = "</think><answer>\\boxed{"
# Plain or Chinese, for after RL a base may work in either: 25+7=32 or, begun with "so ", 25加7得32.
STEP = {
    "sums": r"(?:so )?[0-9]+[-+加减][0-9]+[=得]([0-9]+)",
    "products": r"<tool>[^<]*</tool>([0-9]+)",
}
BETWEEN = {"sums": ";", "products": ""}
NAMES = ("kept", "kept, last", "kept, earlier", "continued, earlier", "untouched", "completions")


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


def answers(model, tokenizer, method, texts):
    """How the model goes on from each of these texts, greedily -> the last box of text and completion."""
    prompts = [tokenizer.encode(text) for text in texts]
    room = method.settings.max_new_tokens
    uniforms = torch.zeros(len(texts), room)
    how = Sampling(1, room, 0.0, model.config.eos_token_id, uniforms, [], False)
    completions = method.roll_out(model, tokenizer, prompts, how).completions()
    whole = [text + tokenizer.decode(ids) for text, ids in zip(texts, completions)]
    return [extract_boxed_answer(text.partition("</answer>")[0]) for text in whole]


@torch.no_grad()
def measure(folder, kind, seed, problems=150):
    """-> the shares of steps that cause the answer, and of completions whose answer comes out again untouched."""
    model, tokenizer = load(str(folder))
    task = products() if kind == "products" else verifiers.arithmetic()
    spec = f"{NOTEBOOKS}/methods/tools.py" if kind == "products" else "grpo"
    method = get_method(spec, {"max_new_tokens": 80})
    step = roll_out(method, model, tokenizer, task, task.test[:problems], 4)
    records = zip(
        [problem for problem in step.problems for _ in range(4)],
        step.texts,
        [part["accuracy"] == 1 for part in step.parts],
    )
    rng = random.Random(seed)
    texts, keys, truths = [], [], []
    for problem, steps, answer in worked(records, kind)[:150]:
        texts.append(f"{problem}<think>{BETWEEN[kind].join(steps)}{BOX}")
        keys.append(("untouched", True))
        truths.append(answer)
        for i, part in enumerate(steps):
            last = i == len(steps) - 1
            wrong = made_wrong(part, rng)
            changed = BETWEEN[kind].join([*steps[:i], wrong, *steps[i + 1 :]])
            begun = BETWEEN[kind].join([*steps[:i], wrong])
            texts += [f"{problem}<think>{changed}{BOX}", f"{problem}<think>{begun}"]
            keys += [("kept", last), ("continued", last)]
            truths += [answer, answer]
    caused = [
        found != truth for found, truth in zip(answers(model, tokenizer, method, texts), truths)
    ]
    return shares(keys, caused)


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


def rise(kind):
    return lab.Check(
        f"{kind}: after RL 20 points more of the steps cause the answer",
        lambda x: x(f"{kind}, after", "kept") - x(f"{kind}, before", "kept"),
        0.2,
        0.05,
    )


def decoration(kind):
    return lab.Check(
        f"{kind}, after: half of the steps are decoration while the rest is kept",
        lambda x: 1 - x(f"{kind}, after", "kept"),
        0.5,
        0.05,
    )


def at_least(arm, column, what):
    return lab.Check(what, lambda x: x(arm, column), 1.0, 0.1)


TRIAL = Trial(
    name="thinking",
    claim="Many steps of a chain of thought are decoration: to make them wrong does not change the answer.",
    source="2510.24941, Can Aha Moments Be Fake? (read: the abstract; its True Thinking Score is another measure)",
    change_our_mind=(
        "A model that can answer without its steps: this one cannot, so a step that is decoration here is one whose "
        "value a later step repeats."
    ),
    claims={
        "claim": [decoration("sums"), decoration("products")],
        "effect of RL": [rise("sums"), rise("products")],
    },
    controls=[
        at_least("sums, after", "untouched", "sums: untouched thinking gives the same answer"),
        at_least("products, after", "untouched", "products: the same"),
        at_least("sums, after", "kept, last", "sums: a wrong last step changes the answer"),
        at_least(
            "sums, after",
            "continued, earlier",
            "sums: a wrong earlier step changes it, if the rest is not kept",
        ),
    ],
    columns=NAMES,
    panels={"kept, last": "a wrong last step", "kept, earlier": "a wrong earlier step, rest kept"}
    | {"continued, earlier": "a wrong earlier step, continued"},
)

PAIRS = {"sums": (claims_distill.TRIAL, "grpo"), "products": (claims_tools.TRIAL, "masked")}


def rows_of(options, seeds):
    rows = []
    for kind, (trial, arm) in PAIRS.items():
        times = best(trial, arm, options)
        for seed in seeds:
            before = base_of(trial.arms[arm].base, seed, options.runs)
            after = run(trial, arm, seed, times, options) / "final"
            for when, folder in (("before", before), ("after", after)):
                began = time.perf_counter()
                row = {"arm": f"{kind}, {when}", "seed": seed, **measure(folder, kind, seed)}
                rows.append(row | {"seconds": time.perf_counter() - began})
    return rows


if __name__ == "__main__":
    options = read_options(TRIAL)
    print_costs(TRIAL, options)
    if not options.costs:
        finish(TRIAL, options, rows_of(options, [*range(options.seeds)]))
