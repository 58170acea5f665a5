"""autorule.py - AutoRule (the paper of that name): a model reads rules out of
preferences and judges answers by them, and the result is a reward.

    python -m notebooks.autorule.autorule pairs.jsonl --teacher Qwen/Qwen3-8B \\
        --judge Qwen/Qwen3-8B --out rules.json
    AUTORULE=rules.json python train.py \\
        --reward notebooks/autorule/autorule.py:rules_reward ...

What you will learn here: how "this answer was preferred to that" becomes
sentences that anybody can read (3.1: reason, extract, merge), how these become
a number (3.2: Yes or No to each), and how it is added to a learned reward
model (Table 9). Numbers in brackets refer to the paper; the prompts are our
own.
Departure: the judge reads the conversation before the rule, so that all rules
share its keys and values. Left out: rubrics for each prompt (RaR, RLCF).
autorule_world.py is a simulated world to try it in. Letters: K and L rules,
N responses or pairs, B rows, C hidden size.

A teacher or judge is a model directory or a hub id; from Python it can be any
function (sections 2 and 4).
"""

import contextlib
import functools
import json
import os
import random
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import DataError
from notebooks.command import new_path, parser_of, run_command, say
from model import load, pick_device
from rlvr import prefill, row_uniforms, sample

# ---- 1. Preferences ------------------------------------------------------------------------------


def text_of(side):
    """Return a text as it is, or the last message of a list: UltraFeedback repeats the question in
    chosen and rejected."""
    if isinstance(side, str):
        return side
    if len(side) > 2:
        raise ValueError("more than a question and an answer")
    return side[-1]["content"] + ""


def read_preferences(path):
    """Read JSON lines with prompt, chosen and rejected: texts, or lists of messages that end with the
    response. Returns dicts of these three texts, with score_chosen and score_rejected if the file has
    them."""
    pairs = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            pair = {side: text_of(row[side]) for side in ("prompt", "chosen", "rejected")}
            scores = {key: float(row[key]) for key in row if key.startswith("score_")}
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: no preference ({error!r})") from None
        pairs.append(pair | scores)
    return pairs


def filter_preferences(pairs, count_tokens, max_tokens=512):
    """Return the pairs that pass the paper's filter (B.6): both responses are shorter than
    max_tokens, the chosen one has the higher score (if there are scores), and neither has the word
    "confidence"."""

    def good(pair):
        sides = [pair["chosen"], pair["rejected"]]
        short = max(map(count_tokens, sides)) < max_tokens
        scored = pair.get("score_chosen", 1) > pair.get("score_rejected", 0)
        return short and scored and "confidence" not in " ".join(sides).lower()

    return [pair for pair in pairs if good(pair)]


# ---- 2. A model to ask ---------------------------------------------------------------------------


def split_reasoning(text):
    """Return the chain of thought and the text after it. If the chain never ends, the text is empty."""
    if "<think>" not in text and "</think>" not in text:
        return {"reasoning": "", "text": text.strip()}
    before, _, after = text.partition("</think>")
    return {"reasoning": before.replace("<think>", "", 1).strip(), "text": after.strip()}


BATCH = 16  # prompts that are sampled at once


class Local:
    """A model that is sampled here: local(prompts, seed) -> {"reasoning", "text"} for each prompt, or
    None for one that is too long. An answer depends on the seed and its prompt, not on the other
    prompts."""

    def __init__(self, name, temperature=0.6, max_new_tokens=4096):
        self.model, self.tokenizer = load(name, *pick_device())
        self.sizes = (1, max_new_tokens, temperature)

    def __call__(self, prompts, seed=0):
        rows = {prompt: self.tokenizer.encode_prompt(prompt) for prompt in prompts}
        room = self.model.config.max_position_embeddings - self.sizes[1]
        fits = [prompt for prompt, ids in rows.items() if len(ids) <= room]
        answers = {}
        for start in range(0, len(fits), BATCH):
            batch = fits[start : start + BATCH]
            asked = [rows[prompt] for prompt in batch]
            uniforms = row_uniforms(batch, self.sizes[1], seed)
            rollouts = sample(self.model, asked, *self.sizes, uniforms=uniforms)
            for prompt, ids in zip(batch, rollouts.completions()):
                answers[prompt] = split_reasoning(self.tokenizer.decode(ids))
        return [answers.get(prompt) for prompt in prompts]


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
    """Return the strings of the first JSON array in a text that has any, or is empty; None without
    such an array. All sizes are bounded, since a model wrote the text: 200,000 characters, 20 tries,
    500 rules of 300 characters."""
    text = text[:200_000]
    for start in [match.start() for match in re.finditer(r"\[", text)][:20]:
        with contextlib.suppress(ValueError, RecursionError):
            found, _ = json.JSONDecoder().raw_decode(text, start)
            rules = [" ".join(rule.split()) for rule in found if isinstance(rule, str)]
            if rules or not found:
                return list(dict.fromkeys(rule for rule in rules if 0 < len(rule) <= 300))[:500]
    return None


def justify(pair, winner):
    sides = [pair["chosen"], pair["rejected"]]
    a, b = sides if winner == "A" else sides[::-1]
    return JUSTIFY.format(winner=winner, prompt=pair["prompt"], a=a, b=b)


def extract_rules(pairs, teacher, seed=0, source="reasoning", at_most=None):
    """Extract rules from preferences -> {"rules", "counts"}. teacher(prompts, seed) returns
    {"reasoning", "text"} for each prompt, None if it fails. A seeded coin decides whether the
    preferred response is answer A or B. source: where the rules are read, in the teacher's chain of
    thought ("reasoning") or in the text after it ("text", Table 3). Answers that cannot be read are
    counted and skipped."""
    winners = random.Random(seed).choices("AB", k=len(pairs))
    reasons = teacher([justify(*each) for each in zip(pairs, winners)], seed)
    chains = [
        EXTRACT.format(winner=winner, reasoning=answer[source])
        for winner, answer in zip(winners, reasons)
        if answer and answer[source]
    ]
    found = [answer and parse_rules(answer["text"]) for answer in teacher(chains, seed)]
    rules = [rule for each in found for rule in each or []]
    counts = {"pairs": len(pairs), "chains": len(chains)}
    counts |= {"extracted": len(rules), "unreadable": found.count(None)}
    if not rules:
        raise DataError(f"no rules: {counts}; source='text' is for a teacher without thoughts")
    return {"rules": merge_rules(rules, teacher, seed, at_most), "counts": counts}


def merge_rules(rules, teacher, seed=0, at_most=None):
    """Let the teacher merge the rules. If its list cannot be read, the rules stay as they are.
    Returns at most at_most of them, or 500."""
    limit = f" Keep at most {at_most}." if at_most else ""
    text = "\n".join(f"- {rule}" for rule in rules)
    (answer,) = teacher([MERGE.format(limit=limit, rules=text)], seed)
    merged = answer and parse_rules(answer["text"])
    return list(dict.fromkeys(merged or rules))[: at_most or 500]


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


def padded(rows, model):
    """Pad B lists of ids with zeros on the right -> (B, T)."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(model.device)


@torch.inference_mode()
def yes_probabilities(model, tokenizer, texts):
    """Return p(Yes) / (p(Yes) + p(No)) of the token after each text: K floats. The beginning that the
    texts share, the conversation, is read once. Nothing is sampled, so this is deterministic."""
    rows = [tokenizer.encode_prompt(text) for text in texts]
    words = [tokenizer.encode(word)[0] for word in ("Yes", "No")]
    longest = max(map(len, rows))
    if longest > model.config.max_position_embeddings:
        raise DataError(f"{longest} tokens are more than this judge can read")
    # Each row has at least one token of its own.
    shared = min(len(os.path.commonprefix(rows)), min(map(len, rows)) - 1)
    _, cache, _ = prefill(model, [rows[0][:shared]], len(rows), longest - shared)
    last = [len(row) - shared - 1 for row in rows]
    rests = padded([row[shared:] for row in rows], model)
    logits = model.next_logits(rests, cache, (range(len(rows)), last))  # (K, V)
    return logits[:, words].float().softmax(-1)[:, 0].tolist()


def open_judge(name):
    """Return judge(texts) -> True or False for each: whether the model's next token is likelier to be
    Yes than No. It does not think first."""
    model, tokenizer = load(name, *pick_device()[:2])
    if tokenizer.encode("Yes")[0] == tokenizer.encode("No")[0]:
        raise DataError(f"{name}: a judge must know the words Yes and No")
    if model.config.model_type == "qwen3" and tokenizer.template == "chat":
        tokenizer.template = "chat-nothink"
    return lambda texts: [p > 0.5 for p in yes_probabilities(model, tokenizer, texts)]


@dataclass
class RulesReward:
    """r = alpha * (share of rules with Yes) + beta + r_model (3.2). Each rule is a part in the log. If a
    problem has no answer, the share is logged as accuracy. If the judge raises an error, all rules count as
    No.

    critical: a completion that was cut off earns at most 0 (see roll_out in rlvr.py), which would be a
    prize beside a beta of -7.5. So `lift` is added to every reward. A constant changes no advantage
    among finished completions."""

    rules: list
    judge: object
    alpha: float = 10.0
    beta: float = -7.5
    concise: bool = True
    reward_model: object = None
    lift: float = 10.0

    def __call__(self, completion, problem):
        verdicts = judge_rules(self.judge, self.rules, problem["problem"], completion, self.concise)
        yes = [float(verdict is True) for verdict in verdicts]
        share = sum(yes) / max(1, len(yes))
        r_rules = self.alpha * share + self.beta
        learned = self.reward_model
        r_model = learned.score(problem["problem"], completion) if learned else 0.0
        parts = {f"rule_{k:02}": value for k, value in enumerate(yes)}
        parts |= {"r_rules": r_rules, "r_model": r_model, "judge_failed": verdicts.count(None)}
        if not problem.get("answer"):
            parts["accuracy"] = share
        return r_rules + r_model + self.lift, parts


def judge_rules(judge, rules, prompt, completion, concise=True):
    """Return True, False or None for each rule. If the judge raises an error, all are None."""
    given = {"prompt": prompt, "completion": completion, "condition": CONDITIONS[concise]}
    questions = [VERIFY.format(rule=rule, **given) for rule in rules]
    with contextlib.suppress(Exception):
        return judge(questions)
    return [None] * len(rules)


# Several threads score completions: without this lock, each would load the judge.
LOADING = threading.Lock()


@functools.cache
def from_settings(path):
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    reward = dict(settings["reward"])
    return RulesReward(settings["rules"], open_judge(reward.pop("judge")), **reward)


def rules_reward(completion, problem):
    """For --reward notebooks/autorule/autorule.py:rules_reward. $AUTORULE names a JSON file (default:
    rules.json). Its "rules" is a list; its "reward" has the name of the judge and numbers for
    RulesReward."""
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
        torch.nn.init.zeros_(self.head.weight)  # at first all scores are 0

    def forward(self, rows):
        last = range(len(rows)), [len(row) - 1 for row in rows]
        hidden = self.model(padded(rows, self.model), head=lambda x, weight: x[last])  # (B, C)
        return self.head(hidden.float()).squeeze(-1)

    def encode(self, prompt, completion):
        said = self.tokenizer.encode(completion)
        return [*self.tokenizer.encode_prompt(prompt), *said, self.model.config.eos_token_id[0]]

    @torch.inference_mode()
    def score(self, prompt, completion):
        return self([self.encode(prompt, completion)]).item()


def pairwise_loss(chosen, rejected):
    """Return the mean of -log sigmoid(r_chosen - r_rejected), two (B,); log 2 for equal scores."""
    return -torch.nn.functional.logsigmoid(chosen - rejected).mean()


def train_reward_model(made, pairs, epochs=1, batch_size=256, lr=5e-6, warmup=0.1, seed=42):
    """Train with AdamW, a constant rate after a warm-up, and gradients clipped to norm 5 -> the loss
    of each step."""
    optimizer = torch.optim.AdamW(made.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    orders = [random.Random(seed + epoch).sample(pairs, len(pairs)) for epoch in range(epochs)]
    order = sum(orders, [])
    steps = range(0, len(order), batch_size)
    for step, start in enumerate(steps, 1):
        batch = order[start : start + batch_size]
        chosen = [made.encode(pair["prompt"], pair["chosen"]) for pair in batch]
        rejected = [made.encode(pair["prompt"], pair["rejected"]) for pair in batch]
        loss = pairwise_loss(*made(chosen + rejected).chunk(2))
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(made.parameters(), 5.0)
        optimizer.param_groups[0]["lr"] = lr * min(1.0, step / max(1.0, warmup * len(steps)))
        optimizer.step()
        optimizer.zero_grad()
    return losses


# ---- 6. Baselines and diagnostics; verdicts are arrays of 0 and 1, (N, K) ------------------------


def length_penalty(length, target=300):
    """Return what B.4 subtracts from the reward, length / (2 L) - 1/2: 0 at the target L, 0.5 at
    twice the target."""
    return 0.5 * length / target - 0.5


def alignment(chosen, rejected):
    """Return, for each rule, how often the chosen response has the Yes if only one of the two has it
    (5.3): two (N, K) -> (K,), NaN if no pair differs."""
    apart = (chosen != rejected).sum(0)
    return np.where(apart > 0, (chosen > rejected).sum(0) / np.maximum(apart, 1), np.nan)


def agreement(verdicts, others):
    """Return 1 - the normalised Hamming distance over N responses, for pairs of rules from two sets
    that the Hungarian algorithm matches (5.3, appendix D): (N, K), (N, L) -> (min(K, L),)."""
    from scipy.optimize import linear_sum_assignment  # here only: training does without scipy

    same = (verdicts[:, :, None] == others[:, None, :]).mean(0)  # (K, L)
    return same[linear_sum_assignment(same, maximize=True)]


def margins(chosen, rejected):
    """Return the shares of pairs in which the chosen response has a higher, an equal and a lower rule
    score (Table 7)."""
    sign = np.sign(chosen.sum(1) - rejected.sum(1))
    return [float((sign == side).mean()) for side in (1, 0, -1)]


def correlation(verdicts, others):
    """Return Pearson's r between the total scores that two rule sets give the same responses (Figure
    2d)."""
    return float(np.corrcoef(verdicts.mean(1), others.mean(1))[0, 1])


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("pairs", help="preferences, a file of JSON lines")
    parser.add_argument(
        "--teacher", required=True, help="model that finds rules: directory or hub id"
    )
    parser.add_argument("--judge", help="model that judges in training (default: the teacher)")
    parser.add_argument(
        "--num-pairs", type=int, default=256, help="how many, drawn at random (default: 256)"
    )
    parser.add_argument("--out", default="rules.json", help="a new file (default: rules.json)")
    args = parser.parse_args(argv)
    out = new_path(args.out)
    pairs = read_preferences(args.pairs)
    teacher = Local(args.teacher)
    pairs = filter_preferences(pairs, lambda text: len(teacher.tokenizer.encode(text)))
    pairs = random.Random(0).sample(pairs, min(args.num_pairs, len(pairs)))
    found = extract_rules(pairs, teacher)
    found["reward"] = {"judge": args.judge or args.teacher, "alpha": 10.0, "beta": -7.5}
    out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    for rule in found["rules"]:
        say(rule)
    counts = ", ".join(f"{name} {count}" for name, count in found["counts"].items())
    say(f"{len(found['rules'])} rules in {out}; {counts}")


if __name__ == "__main__":
    run_command(main)
