"""claims_ttrl.py - claim 6: the majority of the group as the label, where it is right and where it is not.

    python -m notebooks.claims.claims_ttrl --costs
    python -m notebooks.claims.claims_ttrl --seeds 3

The usual base guesses in all directions, so that of its answers the right one is mostly the most frequent. The hasty
one (trial.py) mostly takes the first number of a problem for the answer; its right answers are as many.
With labels the rate is the one that claims_distill.py and claims_lora.py found for GRPO on the usual base.
"""

import functools
from collections import Counter

import numpy as np

from notebooks.claims import experiments as lab
from notebooks.claims.trial import Arm, Trial, main
from notebooks.look.show import samples_of
from verifiers import extract_boxed_answer, grade_answer

G = 16


@functools.cache
def measure(folder):
    """label: in how many groups of the first three steps the most frequent answer is the right one."""
    right = []
    for step in (1, 2, 3):
        rows = list(samples_of(folder / "samples" / f"step_{step:06d}.jsonl.gz"))
        for start in range(0, len(rows), G):
            group = rows[start : start + G]
            answers = [extract_boxed_answer(row["completion"]) for row in group]
            given = Counter(answer for answer in answers if answer is not None)
            label = given.most_common(1)[0][0] if given else ""
            right.append(grade_answer(label, group[0]["answer"]))
    return {"label": float(np.mean(right))}


# The reward of the majority arms is logged alone: accuracy means the same in all arms.
MAJORITY = f"--method M:ttrl --reward boxed --num-samples {G}"
TRUTH = f"--reward boxed --num-samples {G}"

TRIAL = Trial(
    name="ttrl",
    claim="Reinforcement learning on the majority of one's own answers raises accuracy as labels do.",
    source="TTRL, 2504.16084 (read: the abstract and figure 1)",
    change_our_mind=(
        "A base whose most frequent answer is wrong, and that TTRL sets right all the same. Or a vote among many more "
        "samples than are trained on, as the paper has it."
    ),
    arms={
        "majority": Arm(MAJORITY),
        "truth": Arm(TRUTH, times=(3,)),
        "majority, hasty": Arm(MAJORITY, "hasty"),
        "truth, hasty": Arm(TRUTH, "hasty", times=(3,)),
    },
    steps=40,
    seconds=30,
    claims={
        "claim": [
            lab.rises(
                "majority",
                by=0.3,
                what="where the majority is mostly right, accuracy rises by 30 points",
            ),
            lab.behind(
                "majority",
                "truth",
                0.1,
                "it ends where labels lead (10 points would refute it)",
                same=True,
            ),
            lab.rises(
                "majority, hasty",
                by=0.1,
                what="where it is mostly wrong, accuracy rises by 10 points too",
            ),
        ]
    },
    controls=[
        lab.rises("truth", by=0.3, what="with labels accuracy rises by 30 points"),
        lab.rises("truth, hasty", by=0.3, what="with labels accuracy rises by 30 points"),
    ],
    columns=("right@0", "label", "right", "solved", "mixed"),
    over="step",
    measure=measure,
    panels={"right": "held-out accuracy, sampled", "mixed": "share of mixed groups"},
)

if __name__ == "__main__":
    main(TRIAL)
