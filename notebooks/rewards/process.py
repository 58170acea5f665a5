"""process.py - process rewards without labels: how often does a prefix still lead to the answer?

A process reward model wants a label for each step, and people are expensive. In Math-Shepherd
(arXiv 2312.08935) a model makes the labels: it continues each prefix N times, and the right answers
are counted.

    soft label of step k   share of right answers among N continuations of the first k steps
    hard label             1 if any of them is right

A wrong step is where the share falls. The model that continues must be able to solve the problem from
a good prefix, so it is a trained one. Nothing is needed but the true answer, for the usual verifier of
outcomes. The price is N completions a step. Notebook 3 measures how often the place is right.
"""

import re
from collections import Counter
from fractions import Fraction

from rlvr import sample
from verifiers import extract_boxed_answer

_NUMBER = re.compile(r"-?\d{1,15}(?:[./]\d{1,15})?")


def prefixes(completion: str, separators=";\n") -> list[str]:
    """The completion up to each of its steps, from none to all of the thinking: "<think>1+2=3;3+4=7</think>.."
    -> ["<think>", "<think>1+2=3;", "<think>1+2=3;3+4=7"]."""
    start = completion.find("<think>") + len("<think>") if "<think>" in completion else 0
    thinking, _, _ = completion.partition("</think>")
    ends = [i + 1 for i in range(start, len(thinking)) if thinking[i] in separators]
    ends = [start, *ends, len(thinking)]
    return [completion[:end] for end in sorted(set(ends))]


def shares(model, tokenizer, task, problem, texts, N=16, max_new_tokens=80, temperature=1.0):
    """The share of right answers among N continuations of each text -> a list of floats."""
    prompt = task.prompt(problem)
    starts = [tokenizer.encode(prompt + text) for text in texts]
    rollouts = sample(model, starts, N, max_new_tokens, temperature)
    right = []
    for row, (ids, finished) in enumerate(zip(rollouts.completions(), rollouts.finished.tolist())):
        completion = texts[row // N] + tokenizer.decode(ids)
        accuracy = task.reward(completion, problem)[1]["accuracy"]
        right.append(accuracy if finished else 0.0)
    return [sum(right[i : i + N]) / N for i in range(0, len(right), N)]


def wrong_step(found: list[float], keeps=0.5):
    """The first step after which less than `keeps` of the share before it is left, or None.

    found[0] is the share without any step. Example: 0.9, 0.95, 0.1, 0.05 -> 2. After a share of 0
    nothing can fall further, so the first fall names the step, and what follows from it is not named.
    """
    for k in range(1, len(found)):
        if found[k] < keeps * found[k - 1]:
            return k
    return None


def last_number(text: str):
    """The last number of a text, as a Fraction, or None."""
    numbers = _NUMBER.findall(text)
    try:
        return Fraction(numbers[-1]) if numbers else None
    except ZeroDivisionError:  # 3/0
        return None


def string_judge(completion, problem):
    """1 if the last box holds the truth letter by letter. It computes nothing, so no grader can be fooled."""
    said = extract_boxed_answer(completion)
    right = float(said is not None and said.replace(" ", "") == problem["answer"].replace(" ", ""))
    return right, {"accuracy": right, "answered": float(said is not None)}


def majority_judge(model, tokenizer, task, N=16, max_new_tokens=80):
    """A judge that does not know the true answer: it solves the problem N times itself, and pays a
    completion that ends with the number that most of its own solutions end with -> a reward, for
    guards.robust_reward."""
    answers = {}

    def own_answer(problem):
        text = problem["problem"]
        if text not in answers:
            ids = tokenizer.encode_prompt(task.prompt(problem))
            rollouts = sample(model, [ids], N, max_new_tokens)
            found = [last_number(tokenizer.decode(ids)) for ids in rollouts.completions()]
            answers[text] = Counter(found).most_common(1)[0][0]
        return answers[text]

    def judge(completion, problem):
        said = last_number(completion)
        right = float(said is not None and said == own_answer(problem))
        return right, {"accuracy": right, "answered": float(said is not None)}

    return judge
