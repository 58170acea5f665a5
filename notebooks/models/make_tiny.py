"""make_tiny.py - makes the laboratory's base, a Qwen3 of 125,632 parameters.

A pretrained model is a mixture of behaviours: it mostly answers off the top of
its head, sometimes works a problem out, sometimes forgets the form, rambles or
changes language. The tiny base imitates that mixture after a short supervised
warm-up. So RLVR has something to select from. It teaches the model nothing
new: it only makes the best behaviour more likely.

the base in notebooks/tiny, and another one, in 70 to 150 s each:
    python -m notebooks.models.make_tiny --seed 0 --out runs/tiny-0
    python -m notebooks.models.make_tiny --seed 1 --out runs/tiny-1
random weights; a base that sometimes calls a calculator:
    python -m notebooks.models.make_tiny --random --task one-digit --out DIR
    python -m notebooks.models.make_tiny --task products --out runs/calling

The warm-up uses the task's training problems and never its held-out ones. The
base in notebooks/tiny was made by the first command (950 + 500 steps, 70 s on
one CPU core, torch 2.13, OMP_NUM_THREADS=1). On held-out problems its accuracy
is 0.086 greedily and 0.244 sampled, in one draw of 500 (MEASURED.md has all
bases, and more draws). On another machine you get similar accuracies, but not
the same bits.
"""

import math
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

import verifiers
from model import Config, ModelError, Qwen3, Tokenizer, save
from notebooks.command import new_path, parser_of, run_command
from notebooks.environments.calculator import products
from notebooks.environments.search import FIRST, LAST, TOWNS, Search, search
from rlvr import GRPO, roll_out

TINY = Path(__file__).resolve().parents[1] / "tiny"

# ---- 1. The model and its symbols ------------------------------------------------------------------------------------

FILLERS = ["let ", "me ", "think ", "wait ", "hmm "]
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
ARITHMETIC = [*"0123456789+-*=;,. ", *TAGS, "\\boxed{", "}", *FILLERS, "so ", *"加减得先再"]
ASKED = ["Where was ", " born?", "Where does ", " work?", " was born in ", " works in ", ".", " "]
PAGES = ["<search>", " born", " works", "</search>", "<information>", "</information>"]
SYMBOLS = {
    "arithmetic": ARITHMETIC,
    "one-digit": [*"0123456789+="],
    "game": [*"0123456789<>.", "guess"],
    "search": [*[f"{name} " for name in FIRST], *LAST, *TOWNS, *ASKED, *PAGES, *TAGS[2:]],
    "products": [*ARITHMETIC, "<tool>", "</tool>", "error"],
}
TASKS = {"arithmetic": verifiers.arithmetic, "products": products, "search": search}


def tiny_config(vocab_size, eos_token_id):
    """Return a Qwen3 config that is quick on any CPU: 125,632 parameters with the 37 arithmetic tokens."""
    layers = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    ends = {"max_position_embeddings": 1024, "eos_token_id": eos_token_id}
    return Config(vocab_size=vocab_size, rope_theta=1e4, **layers, **heads, **ends)


def symbol_tokenizer(symbols, end="<|endoftext|>"):
    """Return a tokenizer with one token per symbol (a tag such as <think> is one symbol); id 0 is the end token. It
    is an ordinary tokenizer.json, so the tiny model is saved and loaded like any other."""
    known = dict.fromkeys([end, "?", *symbols])  # "?": anything else
    vocabulary = {symbol: i for i, symbol in enumerate(known)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    longest_first = sorted((s for s in symbols if len(s) > 1), key=len, reverse=True)
    pattern = tokenizers.Regex("|".join([*map(re.escape, longest_first), r"[\s\S]"]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(pattern, behavior="isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens([end])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {"eos_token": end, "pad_token": end, "unk_token": "?"}
    return Tokenizer(backend, config=config)


@torch.no_grad()
def init_weights(model, generator):
    """Draw random initial weights: std C^-1/2, smaller where a layer writes to the residual stream."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            std = model.config.hidden_size**-0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std /= (2 * model.config.num_hidden_layers) ** 0.5
            weight.normal_(0, std, generator=generator)
    return model


# ---- 2. Demonstrations -----------------------------------------------------------------------------------------------

# Shares of the behaviours of `demonstrate`. Phase 1 teaches the model to work problems out; phase 2 buries that under
# other habits.
PHASES = [
    {"worked": 0.70, "bilingual": 0.20, "direct": 0.10},
    {"direct": 0.48, "worked": 0.12, "bilingual": 0.09, "rambling": 0.09, "several boxes": 0.09}
    | {"no tags": 0.07, "no box": 0.06},
]
CALLING = [  # for products: "called" is the behaviour that works
    {"called": 0.70, "worked": 0.20, "direct": 0.10},
    {"direct": 0.38, "called": 0.16, "one call": 0.10, "worked": 0.12, "rambling": 0.06}
    | {"several boxes": 0.06, "no tags": 0.06, "no box": 0.06},
]
SEARCHING = [  # "searched" is the behaviour that works
    {"searched": 0.80, "direct": 0.20},
    {"direct": 0.48, "searched": 0.20, "unread": 0.12, "vague": 0.12, "no answer": 0.08},
]
DEMONSTRATED = {"arithmetic": PHASES, "products": CALLING, "search": SEARCHING}


def steps_of(problem):
    """Return the steps of a problem, each a calculation and its value: 25+7-4= has 25+7, 32 and 32-4, 28."""
    value, *others = re.findall(r"[-+*]?\d+", problem["problem"])
    steps = []
    for term in others:
        calculation = f"{value}{term}"
        value = int(value) * int(term[1:]) if term[0] == "*" else int(value) + int(term)
        steps.append((calculation, value))
    return steps


def carried_on(steps, at):
    """Return the steps after the sign of step `at` has been changed, with the values that follow from that."""
    first = re.match(r"\d+", steps[0][0]).group()
    terms = [re.search(r"[-+]\d+$", calculation).group() for calculation, _ in steps]
    terms[at] = terms[at].translate(str.maketrans("+-", "-+"))
    return steps_of({"problem": first + "".join(terms)})


def slipping_work(steps, behaviour, rng):
    """Return the text of the thinking, with a wrong sign or with superfluous words or steps.

    For 25+7=32;32-4=28 it is: 25-7=18;18-4=14 (unnoticed), 25-7=18;wait 25+7=32;32-4=28 (noticed),
    25+7=32;32-4=28;wait 32-4=28;wait 32-4=28 (doubting), 25+7=32;32-4=28;hmm let .. (padded), 61+3=64;25+7=32;32-4=28
    (excursion).
    """
    at = rng.randrange(len(steps))
    slipped = carried_on(steps, at)
    lines = [f"{calculation}={value}" for calculation, value in steps]
    wrong = [f"{calculation}={value}" for calculation, value in slipped]
    possible = all(10 <= value <= 99 for _, value in slipped)  # numbers like those of the task
    if behaviour == "unnoticed" and possible:
        lines = wrong
    elif behaviour == "noticed" and possible:
        lines[at] = f"{wrong[at]};wait {lines[at]}"
    elif behaviour == "doubting":
        lines += [f"wait {lines[-1]}"] * rng.randint(1, 3)
    elif behaviour == "padded":
        lines.append("".join(rng.choices(FILLERS, k=rng.randint(8, 16))))
    elif behaviour == "excursion":
        first, change = rng.randint(10, 89), rng.randint(1, 9)
        lines.insert(0, f"{first}+{change}={first + change}")
    return ";".join(lines)


def demonstrate(problem, behaviour, rng):
    """Return one completion of an arithmetic problem in the style of a behaviour. It contains the right answer, except
    in "hasty" and "unnoticed".

    Working 25+7-4= out means writing 25+7=32;32-4=28. Only a model that writes these steps down can do them. "direct"
    also ends with the right answer, but a tiny model cannot compute it in one go, so it learns to guess. "called"
    leaves each step to a calculator: <tool>47*83</tool>3901<tool>3901-12</tool>3889.
    """
    answer = problem["answer"]
    steps = steps_of(problem)
    work = ";".join(f"{calculation}={value}" for calculation, value in steps)
    calls = [f"<tool>{calculation}</tool>{value}" for calculation, value in steps]
    glance = "".join(rng.choices(FILLERS, k=rng.randint(0, 2)))
    fixed = {
        "worked": work,
        "bilingual": f"so {work.translate(str.maketrans('+-=', '加减得'))}",
        "called": "".join(calls),
        "one call": calls[0],  # the last step is left to a guess
    }
    thinking = fixed.get(behaviour, glance)
    if behaviour == "rambling":
        thinking = "".join(rng.choices(FILLERS, k=rng.randint(8, 16))) + work
    elif behaviour in ("unnoticed", "noticed", "doubting", "padded", "excursion"):
        thinking = slipping_work(steps, behaviour, rng)
    if behaviour == "unnoticed":
        answer = re.findall(r"\d+", thinking)[-1]
    elif behaviour == "hasty":  # takes the first number for the answer
        answer = re.match(r"\d+", problem["problem"]).group()
    box = answer if behaviour == "no box" else f"\\boxed{{{answer}}}"
    if behaviour == "several boxes":  # hedging: the truth is one of three guesses
        guesses = [int(answer) + d for d in rng.sample([-3, -2, -1, 1, 2, 3], 2)] + [int(answer)]
        rng.shuffle(guesses)
        box = "".join(f"\\boxed{{{guess}}}" for guess in guesses)
    if behaviour == "no tags":
        return f"{work if rng.random() < 0.5 else glance}{box}"
    return f"<think>{thinking}</think><answer>{box}</answer>"


def demonstrate_search(problem, behaviour, rng):
    """Return one completion of a question, including the search engine's reply. Only "searched" answers from the
    page; "no answer" gives none, and all others guess."""
    query = problem["query"].split()[1] if behaviour == "vague" else problem["query"]
    call = f"<search>{query}</search>"
    found = call + Search(problem).reply(call)
    guess = f"<answer>{rng.choice(TOWNS)}</answer>"
    if behaviour == "searched":
        return f"{found}<answer>{problem['answer']}</answer>"
    return {"direct": guess, "no answer": found}.get(behaviour, found + guess)


REPLY = r"((?<=</tool>)\d+|<information>.*?</information>)"


def encode_taught(tokenizer, text):
    """Return the ids of a completion and, for each, 1.0 if it is taught. An environment's replies are not taught,
    because the model never has to write them."""
    ids = []
    taught = []
    for i, piece in enumerate(re.split(REPLY, text)):  # every second piece is a reply
        found = tokenizer.encode(piece)
        ids += found
        taught += [float(i % 2 == 0)] * len(found)
    return ids, taught


def demonstration_batch(tokenizer, problems, shares, rng, rows=32):
    """Return ids (rows, T), padded on the right, and the mask (rows, T-1) of the taught tokens: the model's own,
    and the end."""
    asked = rng.choices(problems, k=rows)
    behaviours = rng.choices([*shares], [*shares.values()], k=rows)
    wholes = []
    masks = []
    for problem, behaviour in zip(asked, behaviours):
        prompt = tokenizer.encode(problem["problem"])
        told = demonstrate_search if "query" in problem else demonstrate
        ids, taught = encode_taught(tokenizer, told(problem, behaviour, rng))
        wholes.append(torch.tensor(prompt + ids + [0]))
        masks.append(torch.tensor([0.0] * (len(prompt) - 1) + taught + [1.0]))
    return pad_sequence(wholes, True), pad_sequence(masks, True)


# ---- 3. Warm-up ------------------------------------------------------------------------------------------------------


def worked_accuracy(model, tokenizer, task, problems=200):
    """Return how often the working behaviour is right. The completion is begun with <think> and a digit, with a
    call if the model knows the tool, or with a search for a question, and then continued greedily."""
    begun = []
    for problem in task.train[:problems]:
        start = "<search>" if "query" in problem else "<think>" + problem["problem"][0]
        if "<tool>" in tokenizer.backend.get_vocab():
            start = "<think><tool>"
        begun.append({**problem, "problem": problem["problem"] + start, "start": start})

    def from_the_start(completion, problem):
        return task.reward(problem["start"] + completion, problem)

    whole = replace(task, reward=from_the_start)
    batch = roll_out(GRPO(max_new_tokens=60), model, tokenizer, whole, begun, temperature=0.0)
    return sum(part["accuracy"] for part in batch.parts) / len(batch.parts)


def warm_up(model, tokenizer, task, seed, phases, first=500, second=500, lr=5e-3, gate=0.9):
    """Train on demonstrations, in two phases of `first` and `second` steps.

    The first phase goes on until the share of right worked answers, checked every 50 steps, reaches the gate, for at
    most ten times its steps: a base that cannot work gives RLVR nothing to select, and no reward makes up for that. A
    gate of 0 is for bases that are not meant to work anything out. The loss is divided by a constant: with a mean over
    the batch's tokens, tokens would weigh more in a batch of short completions.
    Raises ModelError if the share is below the gate after the second phase.
    """
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)

    def train(shares, rate):
        optimizer.param_groups[0]["lr"] = lr * rate
        ids, mask = demonstration_batch(tokenizer, task.train, shares, rng)
        # (B, T-1)
        loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
        optimizer.zero_grad()
        ((loss * mask).sum() / 1500).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    done = 0
    right = 0.0
    while done < first or (right < gate and done < 10 * first):
        for step in range(done, done + 50):
            train(phases[0], min(1, (step + 1) / 50))
        done += 50
        right = worked_accuracy(model, tokenizer, task)
        print(f"step {done}: {right:.0%} of worked answers are right", flush=True)
    for step in range(second):
        train(phases[1], 0.1 + 0.45 * (1 + math.cos(math.pi * step / second)))
    right = worked_accuracy(model, tokenizer, task)
    if right < gate:
        raise ModelError(f"{right:.0%} of worked answers are right: try another --seed")


# ---- 4. Make one -----------------------------------------------------------------------------------------------------


def make(seed, out, task="arithmetic", phases=None, steps=500, gate=0.9):
    """Write a tiny base to the directory `out` and return its path. steps=0: random weights."""
    tokenizer = symbol_tokenizer(SYMBOLS[task])
    model = Qwen3(tiny_config(tokenizer.num_tokens, eos_token_id=0))
    init_weights(model, torch.Generator().manual_seed(seed))
    if steps:
        phases = phases or DEMONSTRATED[task]
        warm_up(model, tokenizer, TASKS[task](), seed, phases, steps, gate=gate)
    save(model, tokenizer, out)
    return Path(out)


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="a new folder for the model")
    parser.add_argument(
        "--task", choices=list(SYMBOLS), default="arithmetic", help="its task and tokens"
    )
    parser.add_argument("--random", action="store_true", help="no warm-up: random weights")
    args = parser.parse_args(argv)
    if not args.random and args.task not in DEMONSTRATED:
        parser.error(f"--task {args.task}: there are no demonstrations for it, so add --random")
    make(args.seed, new_path(args.out), args.task, steps=0 if args.random else 500)
    print(f"a tiny model in {args.out}")


if __name__ == "__main__":
    run_command(main)
