"""claims_self.py - claim 2, the other half: a policy that is shown a right completion of its group teaches itself.

    python -m notebooks.claims.claims_self --costs
    python -m notebooks.claims.claims_self --seeds 3

Both arms sample as many completions and have the same rate. What the teacher can do is measured before any training:
problems of which one of eight samples is right are asked again, behind that solution. A model that is no more often
right then has nothing to teach.
"""

import functools
import json

import torch

from notebooks.claims import experiments as lab
from notebooks.claims.trial import Arm, Trial, main
from model import load
from rlvr import GRPO, roll_out, row_uniforms, sample
from verifiers import arithmetic

G = 8


@functools.cache
def of_base(path, problems=100):
    """How often this model is right, alone and shown one of its own right completions, over the problems that have
    one."""
    model, tokenizer = load(path)
    method = GRPO(max_new_tokens=80)
    task = arithmetic()
    step = roll_out(method, model, tokenizer, task, task.test[:problems], G)
    right = torch.tensor([part["accuracy"] == 1 for part in step.parts]).view(-1, G)
    solved = right.any(1).nonzero().flatten().tolist()
    completions = step.rollouts.completions()
    prompts = []
    for place in solved:
        prompt = tokenizer.encode_prompt(task.prompt(step.problems[place]))
        first = place * G + int(right[place].float().argmax())
        prompts.append(prompt + completions[first] + prompt)
    uniforms = row_uniforms(range(len(prompts)), 80, 1)
    again = sample(model, prompts, max_new_tokens=80, uniforms=uniforms)
    texts = [tokenizer.decode(ids) for ids in again.completions()]
    rewards = [task.reward(text, step.problems[place]) for text, place in zip(texts, solved)]
    shown = [parts["accuracy"] for _, parts in rewards]
    return {"alone": float(right[solved].float().mean()), "shown": sum(shown) / len(shown)}


def measure(folder):
    return of_base(json.loads((folder / "config.json").read_text())["flags"]["model"])


TRIAL = Trial(
    name="self",
    claim="A policy that is shown a right completion of its group teaches itself better than rewards do.",
    source=(
        "SDPO, 2601.20802 (read: the abstract, and the objective in a review; that small models fail "
        "at it is from a summary of the paper)"
    ),
    change_our_mind=(
        "A model that makes use of what stands in its prompt. This one was never shown two problems in a row."
    ),
    claims={
        "claim": [
            lab.behind(
                "grpo", "self-taught", 0.1, "on the way it is 10 points ahead of GRPO", "right@mean"
            ),
            lab.behind("grpo", "self-taught", 0.1, "it ends 10 points ahead"),
        ]
    },
    controls=[
        lab.rises("grpo", by=0.3, what="accuracy rises by 30 points"),
        lab.Check(
            "there is something to teach: shown a solution the base is right 10 points more often",
            lambda x: x("self-taught", "shown") - x("self-taught", "alone"),
            0.1,
            lab.POINTS,
        ),
    ],
    panels={"right": "held-out accuracy, sampled", "length": "tokens per completion"},
    arms={
        "grpo": Arm(times=(1,)),
        "self-taught": Arm("--method M:self_distill", times=(1,)),
        "half of each": Arm("--method M:self_distill --mix 0.5", times=(1,)),
    },
    steps=20,
    seconds=25,
    columns=("right@0", "alone", "shown", "right", "right@mean", "length"),
    over="step",
    measure=measure,
)

if __name__ == "__main__":
    main(TRIAL)
