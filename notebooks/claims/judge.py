"""judge.py - a model as the verifier, measured: how often does it contradict the rule, and itself?

    python -m notebooks.claims.judge --model HuggingFaceTB/SmolLM2-135M-Instruct

The first argument for verifiers ("Verifier-based RL and reward design", 2.1): a verdict that depends on
temperature and wording is none. A judge says Yes or No, the likelier as its reply's first word
(autorule.yes_probabilities); at temperature T their odds are raised to 1 / T. Nothing else in it is
random, so nothing is drawn here: what is printed is what repeated judgements come to on average.
"""

import argparse
import json
import random
import sys

import torch

from model import ModelError, load, pick_device
from notebooks.autorule.autorule import yes_probabilities
from verifiers import DataError, boxed_reward

CASE = "%s Reply with one word, Yes or No.\n\n[Problem]\n{problem}\n[Answer]\n{completion}"
WORDINGS = {
    "right?": "Is the answer below right?",
    "wrong?": "Is the answer below wrong?",
    "teacher": "You are a strict teacher who works every problem out. Does the answer below deserve full marks?",
    "friend": "A friend hopes that the answer below is correct. Is it?",
}
TEMPERATURES = (0.0, 0.5, 1.0)
REPEATS = 4  # judgements of each completion


def own_cases(count, seed=0):
    """Sums of two numbers from 10 to 99, every other one wrong by 1, 2, 9, 10 or 11 -> [(problem,
    completion, right by the rule)]."""
    rng = random.Random(seed)
    cases = []
    for i in range(count):
        a = rng.randint(10, 99)
        b = rng.randint(10, 99)
        said = a + b + i % 2 * rng.choice([-1, 1]) * rng.choice([1, 2, 9, 10, 11])
        problem = {"problem": f"{a} + {b} =", "answer": str(a + b)}
        completion = f"{a} + {b} = \\boxed{{{said}}}"
        cases.append((problem["problem"], completion, boxed_reward(completion, problem)[0] == 1))
    return cases


def called_right(model, tokenizer, cases, wording):
    """How likely the model calls each case right in this wording, at temperature 1 -> (N,)."""
    texts = [
        (CASE % WORDINGS[wording]).format(problem=problem, completion=completion)
        for problem, completion, _ in cases
    ]
    parts = [
        yes_probabilities(model, tokenizer, texts[i : i + 16]) for i in range(0, len(texts), 16)
    ]
    yes = torch.tensor(sum(parts, []), dtype=torch.float64)
    return 1 - yes if wording == "wrong?" else yes


def at_temperature(p, temperature):
    """Odds of 4 : 1 are 16 : 1 at 0.5 and 2 : 1 at 2; at 0 the likelier word is certain."""
    if temperature == 0:
        return (p > 0.5).double()
    return (torch.logit(p, eps=1e-12) / temperature).sigmoid()


def measure(p, right, repeats):
    """(N,) and (N,) -> how often a judgement is the rule's, the share of cases whose `repeats` judgements are not all
    the same, and the mean p of the right and of the wrong cases. Example: p .5, 2 repeats: .5 and .5."""
    return [
        torch.where(right, p, 1 - p).mean().item(),
        (1 - p**repeats - (1 - p) ** repeats).mean().item(),
        p[right].mean().item(),
        p[~right].mean().item(),
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(description="How far a model can be trusted as a verifier.")
    parser.add_argument("--model", required=True, help="a directory or a hub id")
    parser.add_argument("--count", type=int, default=80, help="completions (default: 80)")
    args = parser.parse_args(argv)
    model, tokenizer = load(args.model, *pick_device()[:2])
    if tokenizer.encode("Yes")[0] == tokenizer.encode("No")[0]:
        raise DataError(f"{args.model}: a judge must know the words Yes and No")
    cases = own_cases(args.count)
    right = torch.tensor([verdict for *_, verdict in cases])
    print(
        f"{len(cases)} completions, by the rule {right.double().mean():.0%} right\n"
        f"wording     T   agrees with the rule   {REPEATS} judgements differ   P(right): right ones  wrong ones"
    )
    rows = []
    said = {wording: called_right(model, tokenizer, cases, wording) for wording in WORDINGS}
    for wording, p in said.items():
        for T in TEMPERATURES:
            agrees, differ, of_right, of_wrong = measure(at_temperature(p, T), right, REPEATS)
            print(
                f"{wording:9}{T:4.1f}{agrees:23.1%}{differ:23.1%}{of_right:23.3f}{of_wrong:12.3f}"
            )
            rows.append([wording, f"{T}", f"{agrees:.1%}", f"{differ:.1%}"])
    votes = torch.stack([p > 0.5 for p in said.values()])
    torn = (votes.any(0) & ~votes.all(0)).double().mean()
    print(
        f"at temperature 0 the wordings contradict each other on {torn:.1%} of the completions, the rule on none"
    )
    columns = ["asked", "T", "agrees with the rule", f"{REPEATS} judgements differ"]
    print(json.dumps({"columns": columns, "rows": rows, "torn": torn.item()}))


if __name__ == "__main__":
    try:
        main()
    except (DataError, ModelError, OSError, LookupError) as error:
        sys.exit(f"error: {error}")
