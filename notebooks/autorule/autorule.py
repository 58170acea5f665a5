"""autorule.py - AutoRule (the paper of that name): rules read out of preferences, judged by a model, paid as a reward.

    python -m notebooks.autorule.autorule pairs.jsonl --teacher Qwen/Qwen3-8B --judge Qwen/Qwen3-8B --out rules.json
    AUTORULE=rules.json python train.py --reward notebooks/autorule/autorule.py:rules_reward --kl-coef 0.001 ...

What you will learn here: how "this answer was preferred to that" becomes sentences that anybody can
read (3.1: reason, extract, merge), and those a number (3.2: Yes or No to each), which is added to a
learned reward model (Table 9). Numbers in brackets are the paper's, the prompts our own. Departure: the
judge reads the conversation before the rule, so that all rules share its keys and values. Left out:
rubrics for each prompt (RaR, RLCF). autorule_world.py is a simulated world to try it in. Letters: K and L
rules, N responses or pairs, B rows, C hidden size.

A teacher or judge is a model directory or a hub id. A program in its place, such as a client of a server, is a
backend (section 2).
"""

import argparse
import collections
import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import random
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from model import KVCache, load, pick_device, save
from rlvr import row_uniforms, sample
from verifiers import DataError

# ---- 1. Preferences ------------------------------------------------------------------------------


def as_text(value):
    """A string, or a list of {"role", "content"}: one message's content, or a line for each."""
    if isinstance(value, str):
        return value
    if len(value) == 1:
        return value[0]["content"] + ""
    return "\n".join(turn["role"] + ": " + turn["content"] for turn in value)


def read_preference(row):
    chosen = row["chosen"]
    rejected = row["rejected"]
    prompt = row.get("prompt")
    if isinstance(chosen, list) and (len(chosen) > 2 or prompt is None):
        prompt = chosen[:-1]  # UltraFeedback's "prompt" is the first turn
    sides = [side if isinstance(side, str) else [side[-1]] for side in (chosen, rejected)]
    texts = [as_text(value) for value in (prompt, *sides)]
    scores = {key: float(row[key]) for key in ("score_chosen", "score_rejected") if key in row}
    return dict(zip(("prompt", "chosen", "rejected"), texts)) | scores


def read_preferences(path):
    """JSON lines with prompt, chosen and rejected, texts or messages (the last of which is the response)
    -> dicts of these three texts, and of score_chosen, score_rejected where the file has them."""
    pairs = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            pairs.append(read_preference(json.loads(line)))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{path}, line {number}: not a preference ({error!r}); wanted is an object "
                "with prompt, chosen, rejected: texts or lists of messages"
            ) from None
    return pairs


def filter_preferences(pairs, count_tokens, max_tokens=512, banned="confidence"):
    """The paper's filter (B.6): both responses below max_tokens, the chosen one scored higher (where
    there are scores), the banned word in neither -> (those that stay, {reason: how many went})."""
    kept = []
    gone = collections.Counter()
    for pair in pairs:
        sides = pair["chosen"], pair["rejected"]
        if max(map(count_tokens, sides)) >= max_tokens:
            gone["too long"] += 1
        elif pair.get("score_chosen", math.inf) <= pair.get("score_rejected", -math.inf):
            gone["not scored higher"] += 1
        elif banned and banned in " ".join(sides).lower():
            gone[f"says {banned}"] += 1
        else:
            kept.append(pair)
    return kept, dict(gone)


# ---- 2. A model to ask ---------------------------------------------------------------------------


def split_reasoning(text):
    """The chain of thought, and the text after it; if the chain never ends, there is no text."""
    before, end, after = text.partition("</think>")
    if end or "<think>" in text:
        before = before.replace("<think>", "", 1)
        return {"text": after.strip(), "reasoning": before.strip()}
    return {"text": text.strip(), "reasoning": ""}


# A backend has an identity (what its answers depend on, besides prompt and seed), and is called with
# {key: prompt}, a function keep(key, answer) for each answer as it comes, and a seed.

BATCH = 16  # prompts that a model here answers at once; their answers are kept together


class Local:
    """A model sampled here. Its answer depends on seed and prompt, not on what else is asked."""

    def __init__(self, name, temperature=0.6, max_new_tokens=4096):
        self.model, self.tokenizer = load(name, *pick_device())
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.identity = [str(name), temperature, max_new_tokens]

    def __call__(self, prompts, keep, seed):
        asked = {key: self.tokenizer.encode_prompt(prompt) for key, prompt in prompts.items()}
        room = self.model.config.max_position_embeddings - self.max_new_tokens
        fits = [key for key, ids in asked.items() if 0 < len(ids) <= room]  # others: no answer
        sizes = (1, self.max_new_tokens, self.temperature)
        for start in range(0, len(fits), BATCH):
            keys = fits[start : start + BATCH]
            uniforms = row_uniforms([int(key[:8], 16) for key in keys], self.max_new_tokens, seed)
            prompts = [asked[key] for key in keys]
            rollouts = sample(self.model, prompts, *sizes, uniforms=uniforms)
            for key, ids in zip(keys, rollouts.completions(), strict=True):
                keep(key, split_reasoning(self.tokenizer.decode(ids)))


class Asked:
    """asked(prompts) -> an answer for each, or None where the backend failed.

    cache:  a file of JSON lines, {key: answer}; the key is a hash of identity, seed and prompt.
    counts: prompts new, known and failed.
    """

    def __init__(self, backend, cache=None):
        self.backend = backend
        self.known = {}
        self.lock = threading.Lock()
        self.file = open(cache, "a+b") if cache else None
        self.counts = collections.Counter(new=0, known=0, failed=0)
        if self.file:
            self.read()

    def read(self):
        self.file.seek(0)
        for line in self.file.read().splitlines():
            with contextlib.suppress(ValueError):  # half a line, after a crash
                self.known |= json.loads(line)

    def __call__(self, prompts, seed=0):
        """Prompts that were answered before, in this run or an earlier one, are not asked again."""
        identity = self.backend.identity
        texts = [json.dumps([identity, seed, prompt]).encode() for prompt in prompts]
        keys = [hashlib.sha256(text).hexdigest() for text in texts]
        found = {key: self.known.get(key) for key in keys}
        new = {key: prompt for key, prompt in zip(keys, prompts) if found[key] is None}

        def keep(key, answer):
            found[key] = answer
            self.keep(key, answer)

        if new:
            self.backend(new, keep, seed)
        answers = [found[key] for key in keys]
        with self.lock:
            self.counts.update(new=len(new), known=len(keys) - len(new), failed=answers.count(None))
        return answers

    def keep(self, key, answer):
        if self.file:  # without one nothing is remembered: a judge runs long
            with self.lock:
                self.known[key] = answer
                # subtle: the line ends before each answer, or one would be lost behind half a line
                self.file.write(b"\n" + json.dumps({key: answer}).encode())
                self.file.flush()


def open_model(name, cache=None, **settings):
    """The Asked of a directory or a hub id; settings: what Local takes."""
    return Asked(Local(name, **settings), cache)


# ---- 3. Reason, extract, merge (3.1) -------------------------------------------------------------

JUSTIFY = """Two assistants answered the same user, and a reader preferred answer {winner}.

[User]
{prompt}
[Answer A]
{a}
[Answer B]
{b}

Explain point by point why: think of correctness, completeness, clarity, form, tone and length."""

EXTRACT = """Below somebody thinks about why answer {winner} was preferred to another.
Write down the rules for good answers that this implies. A rule is one sentence about any answer, to
be checked with yes or no on it alone, such as "The answer names the unit of each quantity."
Reply with a JSON array of strings and nothing else.

[Reasoning]
{reasoning}"""

MERGE = """These rules were collected from many readers, and many say the same.
Merge those that mean the same or nearly so, drop what hardly anybody says, begin with what most say.{limit}
Reply with a JSON array of strings and nothing else.

[Rules]
{rules}"""


def parse_rules(text):
    """The first JSON array with strings in a text, or an empty one -> its rules; None if there is none.
    Bounded, since a model wrote it: 200,000 characters, 20 tries, 500 rules of 300 characters."""
    for match in itertools.islice(re.finditer(r"\[", text[:200_000]), 20):
        with contextlib.suppress(ValueError, RecursionError):
            found, _ = json.JSONDecoder().raw_decode(text[:200_000], match.start())
            rules = [" ".join(rule.split()) for rule in found if isinstance(rule, str)]
            if rules or not found:
                return list(dict.fromkeys(rule for rule in rules if 0 < len(rule) <= 300))[:500]
    return None


def ask_for_rules(teacher, prompts, seed):
    return [answer and parse_rules(answer["text"]) for answer in teacher(prompts, seed)]


def justify(pair, winner):
    sides = {"A": ("chosen", "rejected"), "B": ("rejected", "chosen")}
    a, b = (pair[side] for side in sides[winner])
    return JUSTIFY.format(winner=winner, prompt=pair["prompt"], a=a, b=b)


def extract_rules(pairs, teacher, seed=0, source="reasoning", at_most=None):
    """Rules out of preferences -> what rules.json holds: rules, and what it takes to make them again. The
    preferred response is answer A or B by a seeded coin. source: read the rules out of the teacher's chain
    of thought ("reasoning") or what it says after it ("text", Table 3). Answers that cannot be read are
    counted and skipped."""
    winners = random.Random(seed).choices("AB", k=len(pairs))
    reasons = teacher([justify(*each) for each in zip(pairs, winners)], seed)
    chains = [
        EXTRACT.format(winner=winner, reasoning=answer[source])
        for winner, answer in zip(winners, reasons)
        if answer and answer[source]
    ]
    found = ask_for_rules(teacher, chains, seed)
    rules = [rule for each in found for rule in each or []]
    unreadable = found.count(None)
    if not rules:
        raise DataError(
            f"no rules: of {len(pairs)} answers {len(chains)} have a {source}, and of those "
            f"{unreadable} gave no list; source='text' is for a teacher without thoughts"
        )
    counts = collections.Counter(
        pairs=len(pairs), chains=len(chains), extracted=len(rules), unreadable=unreadable
    )
    found = {"rules": merge_rules(rules, teacher, seed, at_most, counts)}
    found |= {"counts": dict(counts), "asked": dict(teacher.counts), "pairs": pairs, "seed": seed}
    found |= {"source": source, "at_most": at_most, "teacher": teacher.backend.identity}
    return found | {"prompts": [JUSTIFY, EXTRACT, MERGE]}


MERGE_SIZE = 400  # rules that one prompt holds


def merge_rules(rules, teacher, seed, at_most, counts):
    """More rules than one prompt holds are merged in parts, then again, at most eight times: a teacher may
    never merge. An answer that cannot be read leaves its part as it was."""
    limit = f" Keep at most {at_most}." if at_most else ""
    for level in range(8):
        parts = [rules[start : start + MERGE_SIZE] for start in range(0, len(rules), MERGE_SIZE)]
        lists = ["\n".join(f"- {rule}" for rule in part) for part in parts]
        prompts = [MERGE.format(limit=limit, rules=text) for text in lists]
        merged = ask_for_rules(teacher, prompts, seed + level)
        counts.update(merges=len(parts), unreadable=merged.count(None))
        kept = [rule for part, less in zip(parts, merged) for rule in less or part]
        rules = list(dict.fromkeys(kept))
        if len(parts) == 1 and merged[0]:
            break
    return rules[:at_most]


# ---- 4. Judge (3.2) ------------------------------------------------------------------------------

VERIFY = """You judge an assistant's last answer by one rule and by nothing else.

[Conversation]
user: {prompt}
assistant: {completion}
[End of the conversation]

{condition} A rule that does not apply here counts as satisfied. Reply with one word, Yes or No.
Rule: {rule}"""
CONDITIONS = {
    True: "Say Yes only if the answer satisfies the rule below and is concise in doing so, otherwise No.",
    False: "Say Yes if the answer satisfies the rule below, otherwise No.",
}


@torch.inference_mode()
def yes_probabilities(model, tokenizer, texts):
    """p(Yes) / (p(Yes) + p(No)) of the token after each text -> K floats. What the texts have in common,
    the conversation, is read once. Nothing is drawn, so it is deterministic."""
    rows = [tokenizer.encode_prompt(text) for text in texts]
    words = [tokenizer.encode(word)[0] for word in ("Yes", "No")]
    longest = max(map(len, rows))
    if longest > model.config.max_position_embeddings:
        raise DataError(f"{longest} tokens are more than this judge can read")
    # Each row keeps a token of its own.
    shared = min(len(os.path.commonprefix(rows)), min(map(len, rows)) - 1)
    rests = [row[shared:] + [0] * (longest - len(row)) for row in rows]
    last = [len(row) - shared - 1 for row in rows]
    cache = KVCache(model, 1, longest)
    start = torch.tensor([rows[0][:shared]], device=model.device)
    if shared:
        model(start, cache, head=lambda hidden, weight: None)
    cache.take([0] * len(rows))  # one row becomes K
    logits = model(
        torch.tensor(rests, device=model.device),
        cache,  # (K, 2)
        head=lambda hidden, weight: F.linear(hidden[range(len(rows)), last], weight[words]),
    )
    return logits.float().softmax(-1)[:, 0].tolist()


def read_verdict(text):
    """Yes: True, No: False, with or without brackets; anything else: None."""
    match = re.fullmatch(r"\W{0,9}(yes|no)\W{0,9}", text.strip().lower())
    return match and match[1] == "yes"


def open_judge(name):
    """judge(texts) -> True or False for each: the likelier of two tokens of a model that does not think."""
    model, tokenizer = load(name, *pick_device()[:2])
    if tokenizer.encode("Yes")[0] == tokenizer.encode("No")[0]:
        raise DataError(f"{name}: a judge must know the words Yes and No")
    if model.config.model_type == "qwen3" and tokenizer.template == "chat":
        tokenizer.template = "chat-nothink"
    return lambda texts: [p > 0.5 for p in yes_probabilities(model, tokenizer, texts)]


@dataclass
class RulesReward:
    """r = alpha * (share of rules with Yes) + beta + r_model (3.2); each rule is a part of the log, and where
    a problem has no answer the share is its accuracy. A judge that fails or is slow says No.

    critical: the core pays 0 for a completion that was cut off, a prize beside a beta of -7.5. So `lift`
    is added to all that are judged; a constant changes no advantage between them."""

    rules: list
    judge: Callable
    alpha: float = 10.0
    beta: float = -7.5
    concise: bool = True
    reward_model: object = None
    lift: float = 10.0

    def __call__(self, completion, problem):
        verdicts = judge_rules(self.judge, self.rules, problem["problem"], completion, self.concise)
        yes = [float(verdict is True) for verdict in verdicts]
        mean = sum(yes) / max(1, len(yes))
        r_rules = self.alpha * mean + self.beta
        learned = self.reward_model
        r_model = learned.score(problem["problem"], completion) if learned else 0.0
        parts = {f"rule_{k:02}": value for k, value in enumerate(yes)}
        parts |= {"r_rules": r_rules, "r_model": r_model, "judge_failed": verdicts.count(None)}
        parts |= {} if problem.get("answer") else {"accuracy": mean}
        return r_rules + r_model + self.lift, parts


def judge_rules(judge, rules, prompt, completion, concise=True):
    """A verdict for each rule, True, False or None; of a judge that raises all are None."""
    given = {"prompt": prompt, "completion": completion, "condition": CONDITIONS[concise]}
    questions = [VERIFY.format(rule=rule, **given) for rule in rules]
    with contextlib.suppress(Exception):
        return judge(questions)
    return [None] * len(rules)


# Completions are judged by several threads, which all would load the judge.
LOADING = threading.Lock()


@functools.cache
def from_settings(path):
    try:
        settings = json.loads(Path(path).read_text(encoding="utf-8"))
        rules = settings["rules"]
        reward = dict(settings["reward"])
        judge = open_judge(reward.pop("judge"))
        learned = reward.pop("reward_model", None)
        reward["reward_model"] = learned and RewardModel.load(learned)
        return RulesReward(rules, judge, **reward)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DataError(
            f"$AUTORULE: {path} does not describe a reward ({error!r}); make it with "
            "python -m notebooks.autorule.autorule pairs.jsonl --teacher NAME --judge NAME"
        ) from None


def rules_reward(completion, problem):
    """For --reward notebooks/autorule/autorule.py:rules_reward. $AUTORULE names a file (default: rules.json) with the
    "rules", and under "reward" the name of the judge and what RulesReward takes, reward_model as a directory."""
    with LOADING:
        reward = from_settings(os.environ.get("AUTORULE", "rules.json"))
    return reward(completion, problem)


# ---- 5. A learned reward model to add to it (Table 9) --------------------------------------------


class RewardModel(torch.nn.Module):
    """A Qwen3 with a scalar head on the last token: B lists of ids -> (B,) scores."""

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.head = torch.nn.Linear(model.config.hidden_size, 1, bias=False, device=model.device)
        torch.nn.init.zeros_(self.head.weight)  # at first all are worth the same

    def forward(self, rows):
        longest = max(map(len, rows))
        last = [len(row) - 1 for row in rows]
        ids = torch.tensor(
            [row + [0] * (longest - len(row)) for row in rows], device=self.model.device
        )
        # (B, C)
        hidden = self.model(ids, head=lambda hidden, weight: hidden[range(len(rows)), last])
        return self.head(hidden.float()).squeeze(-1)

    def encode(self, prompt, completion):
        asked = self.tokenizer.encode_prompt(prompt)
        said = self.tokenizer.encode(completion)
        return [*asked, *said, self.model.config.eos_token_id[0]]

    @torch.inference_mode()
    def score(self, prompt, completion):
        return self([self.encode(prompt, completion)]).item()

    def save(self, directory):
        save(self.model, self.tokenizer, directory)
        save_file({"head": self.head.weight.detach().cpu()}, Path(directory) / "head.safetensors")

    @classmethod
    def load(cls, directory):
        made = cls(*load(directory, *pick_device()[:2]))
        made.head.weight.data.copy_(load_file(Path(directory) / "head.safetensors")["head"])
        return made


def pairwise_loss(chosen, rejected):
    """-log sigmoid(r_chosen - r_rejected), (B,) and (B,) -> their mean; log 2 for equal scores."""
    return -F.logsigmoid(chosen - rejected).mean()


def train_reward_model(made, pairs, epochs=1, batch_size=256, lr=5e-6, warmup=0.1, seed=42):
    """AdamW, a constant rate after a warm-up, gradients clipped to norm 5 -> the loss of each step."""
    optimizer = torch.optim.AdamW(made.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    order = []
    for epoch in range(epochs):
        order += random.Random(seed + epoch).sample(pairs, len(pairs))
    steps = range(0, len(order), batch_size)
    for step, start in enumerate(steps, 1):
        batch = order[start : start + batch_size]
        sides = [(pair, side) for side in ("chosen", "rejected") for pair in batch]
        rows = [made.encode(pair["prompt"], pair[side]) for pair, side in sides]
        loss = pairwise_loss(*made(rows).chunk(2))
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(made.parameters(), 5.0)
        optimizer.param_groups[0]["lr"] = lr * min(1.0, step / max(1.0, warmup * len(steps)))
        optimizer.step()
        optimizer.zero_grad()
    return losses


# ---- 6. Baselines; diagnostics, of verdicts as arrays of 0 and 1, (N, K) -------------------------

CONCISE_RULE = ["The assistant's answer is concise."]  # B.7
DIMENSIONS = [  # after UltraFeedback's four (Table 4)
    "The assistant does what it is asked to do and nothing else.",
    "The assistant's answer is useful and correct.",
    "The assistant's answer agrees with the world and with itself.",
    "The assistant says where it is not certain.",
]


def length_penalty(length, target=300):
    """What B.4 takes off the reward, length / (2 L) - 1/2: 0 at the target, 0.5 at twice as much."""
    return 0.5 * length / target - 0.5


def alignment(chosen, rejected):
    """Of the pairs that a rule tells apart, the share in which the chosen response has the Yes (5.3):
    two (N, K) -> (K,), NaN where no pair is told apart."""
    apart = (chosen != rejected).sum(0)
    return np.where(apart > 0, (chosen > rejected).sum(0) / np.maximum(apart, 1), np.nan)


def agreement(verdicts, others):
    """1 - the normalised Hamming distance over N responses of two rules, those of two sets matched by the
    Hungarian algorithm (5.3, appendix D): (N, K), (N, L) -> (min(K, L),)."""
    from scipy.optimize import linear_sum_assignment  # here only: training does without scipy

    same = (verdicts[:, :, None] == others[:, None, :]).mean(0)  # (K, L)
    return same[linear_sum_assignment(same, maximize=True)]


def margins(chosen, rejected):
    """The shares of pairs whose rule score is > 0, = 0, < 0 for the chosen response (Table 7)."""
    sign = np.sign(chosen.sum(1) - rejected.sum(1))
    return [float((sign == side).mean()) for side in (1, 0, -1)]


def correlation(verdicts, others):
    """Pearson's r of the total scores that two rule sets give the same responses (Figure 2d)."""
    return float(np.corrcoef(verdicts.mean(1), others.mean(1))[0, 1])


def main(argv=None):
    parser = argparse.ArgumentParser(description="Rules out of preferences")
    parser.add_argument("pairs", help="a file of JSON lines")
    parser.add_argument("--teacher", required=True, help="a directory or a hub id")
    parser.add_argument("--judge", help="the same, for the training (default: the teacher)")
    parser.add_argument("--num-pairs", type=int, default=256, help="drawn at random (default: 256)")
    parser.add_argument("--at-most", type=int, help="rules (default: what the teacher leaves)")
    parser.add_argument("--out", default="rules.json", help="answers are kept in OUT.cache")
    args = parser.parse_args(argv)
    pairs = read_preferences(args.pairs)
    teacher = open_model(args.teacher, f"{args.out}.cache")
    tokenizer = teacher.backend.tokenizer
    pairs, gone = filter_preferences(pairs, lambda text: len(tokenizer.encode(text)))
    pairs = random.Random(0).sample(pairs, min(args.num_pairs, len(pairs)))
    found = extract_rules(pairs, teacher, at_most=args.at_most)
    found["reward"] = {"judge": args.judge or args.teacher, "alpha": 10.0, "beta": -7.5}
    Path(args.out).write_text(json.dumps(found, indent=1), encoding="utf-8")
    count = len(found["rules"])
    print(*found["rules"], sep="\n")
    print(f"{count} rules in {args.out}; left out: {gone}; {found['counts']}")


if __name__ == "__main__":
    try:
        main()
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")
