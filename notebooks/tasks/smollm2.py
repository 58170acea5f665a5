"""smollm2.py - tasks, rewards and questions for SmolLM2 (notebook 8).

get the model once (93 MB; pip install gguf), then train it on sums:
    python -m notebooks.models.get_smollm2 smollm2
    python train.py @notebooks/recipes/smollm2.txt --name real
accuracy before and after, on sums and on another task (see below):
    python eval.py runs/real --num-samples 64 --k 1 8 64
    python eval.py runs/real --task notebooks/tasks/smollm2.py:words
what did it find, what carries over, and what did it lose? A row for each model
(COLUMNS, below), as JSON:
    python -m notebooks.tasks.smollm2 smollm2 runs/real/final

SmolLM2-135M-Instruct is prompted like a base model: three solved lines, then
one to finish; a newline ends a completion (Task.stops). In chat mode it boxes
5 to 10 % of its answers, none of them right.
"""

import json
import math
import random
import sys
from pathlib import Path
from statistics import fmean

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from eval import pass_at_k
from model import load
from notebooks.command import parser_of, run_command
from notebooks.look.sharpen import cell, sample_base, sharpen
from rlvr import GRPO, sample, token_logprobs
from verifiers import Task, boxed_reward

# ---- 1. Tasks --------------------------------------------------------------------------------------


def few_shot(*solved):
    """Return a prompt of solved lines such as "7 + 6 = 13", with boxed answers, and the problem
    as the last line."""
    lines = [line.rpartition(" ") for line in solved]
    return "".join(f"{problem} \\boxed{{{answer}}}\n" for problem, _, answer in lines) + "{problem}"


SHOWN = ((7, 6), (12, 5), (4, 4))
SOLVED = few_shot(*[f"{a} + {b} = {a + b}" for a, b in SHOWN])


def split():
    """Split the pairs of numbers from 2 to 20 that no prompt shows. Returns (training pairs in both orders, 72
    held-out pairs in one order).
    critical: split by pairs. If sums were split, most held-out ones would have their twin b + a in training."""
    pairs = [(a, b) for a in range(2, 21) for b in range(2, a + 1) if (a, b) not in SHOWN]
    rng = random.Random("sums")
    rng.shuffle(pairs)
    both = {order: None for a, b in pairs[72:] for order in ((a, b), (b, a))}
    return [*both], [tuple(rng.sample(pair, 2)) for pair in pairs[:72]]


TRAIN, TEST = split()
PAIRS = TRAIN + TEST


def task(name, asked, prompt):
    """Return a task. asked: (problem, answer) for each of PAIRS; the last 72 are held out in
    every task."""
    problems = [{"problem": problem, "answer": str(answer)} for problem, answer in asked]
    train = problems[: len(TRAIN)]
    test = problems[len(TRAIN) :]
    return Task(name, train, test, prompt, boxed_reward, stops=("\n",))


def sums():
    asked = [(f"{a} + {b} =", a + b) for a, b in PAIRS]
    return task("sums", asked, SOLVED)


# These tasks test what carries over: nothing trains on them. They hold out the same pairs as above.


def larger():
    """Sums of two numbers from 21 to 39."""
    asked = [(f"{a + 19} + {b + 19} =", a + b + 38) for a, b in PAIRS]
    return task("larger", asked, SOLVED)


def three_terms():
    asked = [(f"{a} + {b} + {a % 3 + 2} =", a + b + a % 3 + 2) for a, b in PAIRS]
    solved = few_shot("7 + 6 + 2 = 15", "12 + 5 + 3 = 20", "4 + 4 + 1 = 9")
    return task("three-terms", asked, solved)


def differences():
    asked = [(f"{a + b} - {b} =", a) for a, b in PAIRS]
    solved = few_shot(*[f"{a + b} - {b} = {a}" for a, b in SHOWN])
    return task("differences", asked, solved)


def words():
    """The same sums, each in a sentence."""
    sentence = "Tom has {} apples and gets {} more. Now he has"
    asked = [(sentence.format(a, b), a + b) for a, b in PAIRS]
    solved = few_shot(*[f"{sentence.format(a, b)} {a + b}" for a, b in SHOWN])
    return task("words", asked, solved)


# ---- 2. Controls -----------------------------------------------------------------------------------
# rewards/guards.py has two more, `coin` and `inverted`.


def any_number(completion, problem):
    """Return 1 for any boxed answer: it rewards the form alone."""
    right, parts = boxed_reward(completion, problem)
    return parts["answered"], {**parts, "accuracy": right}


# ---- 3. What was found, and what was lost ----------------------------------------------------------

# On 36 held-out problems: pass@k and powers of p from 64 samples of each sum, the other tasks from 8.
ACCURACIES = "pass@1, pass@8, pass@64, p^4, p^50, words, larger, differences, three terms"
COLUMNS = f"model, {ACCURACIES}, perplexity, facts".split(", ")
TEXT = """The river rises in the hills to the north of the town and flows through a wide valley before it reaches the
sea. In spring, when the snow melts, it floods the meadows on both sides, and the farmers move their animals to higher
ground. An old stone bridge, built more than three hundred years ago, is the only way across for many miles. People
say that the man who built it was never paid, and that he comes back on winter nights to look for his money."""
FACTS = {
    "The capital of France is": "Paris",
    "The opposite of hot is": "cold",
    "The first day of the week after Sunday is": "Monday",
    "Water is made of hydrogen and": "oxygen",
    "The largest planet of the solar system is": "Jupiter",
}


def perplexity(model, tokenizer, text=TEXT):
    """Return exp of the mean of -log pi over the tokens of the text."""
    with torch.no_grad():
        logp = token_logprobs(model, torch.tensor([tokenizer.encode(text)], device=model.device))
    return math.exp(-logp.mean().item())


def facts_known(model, tokenizer):
    """Return how many of the five sentences the model completes with the right word, greedily
    within 8 tokens."""
    prompts = [tokenizer.encode(question) for question in FACTS]
    rollouts = sample(model, prompts, 1, max_new_tokens=8, temperature=0.0)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    return sum(word.lower() in text.lower() for text, word in zip(texts, FACTS.values()))


def row_of(path):
    """Return a row of COLUMNS for the model in a folder."""
    model, tokenizer = load(path, template="plain")

    def sampled(task, num_samples):
        loaded = (GRPO(max_new_tokens=10), model, tokenizer, task, task.test[:36])
        return sample_base(loaded, num_samples)

    logps, right = sampled(sums(), 64)
    counts = right.sum(1).int().tolist()
    at = [f"{fmean(pass_at_k(64, count, k) for count in counts):.3f}" for k in (1, 8, 64)]
    powers = [f"{sharpen(logps, right, alpha)[0].mean():.3f}" for alpha in (4, 50)]
    others = [
        cell(sampled(make(), 8)[1].mean(1), 8) for make in (words, larger, differences, three_terms)
    ]
    known = f"{facts_known(model, tokenizer)} of {len(FACTS)}"
    folder = Path(path)
    name = (folder.parent if folder.name == "final" else folder).name
    return [name, *at, *powers, *others, f"{perplexity(model, tokenizer):.2f}", known]


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", help="folders of models, or hub ids")
    paths = parser.parse_args(argv).models
    rows = [row_of(path) for path in paths]
    print(json.dumps({"columns": COLUMNS, "rows": rows}))


if __name__ == "__main__":
    run_command(main)
