"""autorule_tools.py - what AutoRule needs besides its method: preferences, models to ask, baselines.

    teacher = open_model("Qwen/Qwen3-8B", cache="answers.jsonl")     a model directory or a hub id
    teacher = open_model("http://localhost:8000/v1#Qwen/Qwen3-8B")   a server, URL#MODEL, as OpenAI's
    answers = teacher(["Why is the sky blue?"])                      [{"text", "reasoning", ..}]

Each answer is written to the cache file as it comes, so that after an interruption nothing is paid for
again. A server may fail, be slow or send garbage: it is asked again a few times, and then the answer is
None. The key stands in $OPENAI_API_KEY and goes into one header, nowhere else. Left out:
proxies, redirects, streaming.
"""

import collections
import contextlib
import hashlib
import http.client
import json
import math
import os
import random
import re
import socket
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from model import load, pick_device
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


def read_preferences(path):
    """JSON lines with prompt, chosen and rejected, texts or messages (the last of which is the response)
    -> dicts of these three texts, and of score_chosen, score_rejected where the file has them."""
    pairs = []
    scores = ("score_chosen", "score_rejected")
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            chosen = row["chosen"]
            rejected = row["rejected"]
            if isinstance(chosen, list) and (len(chosen) > 2 or "prompt" not in row):
                row["prompt"] = chosen[:-1]  # UltraFeedback's "prompt" is the first turn
            sides = [side if isinstance(side, str) else [side[-1]] for side in (chosen, rejected)]
            texts = [as_text(value) for value in (row["prompt"], *sides)]
            pair = dict(zip(("prompt", "chosen", "rejected"), texts))
            pairs.append(pair | {name: float(row[name]) for name in scores if name in row})
        except (ValueError, TypeError, LookupError, RecursionError) as error:
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
    """(chain of thought, the text after it); if the chain never ends, there is no text."""
    before, end, after = text.partition("</think>")
    if end or "<think>" in text:
        return before.replace("<think>", "", 1).strip(), after.strip()
    return "", text.strip()


# A backend has an identity (what its answers depend on, besides prompt and seed), and is called with
# {key: prompt}, a function keep(key, answer) for each answer as it comes, a seed, and a deadline on the
# clock of time.monotonic.


BATCH = 16  # prompts that a model here answers at once; their answers are kept together


class Local:
    """A model sampled here. Its answer depends on seed and prompt, not on what else is asked."""

    def __init__(self, name, temperature=0.6, max_new_tokens=4096):
        device, dtype = pick_device()
        self.model, self.tokenizer = load(name, device, dtype)
        self.temperature = temperature
        self.max_new_tokens = max_new_tokens
        self.identity = [str(name), temperature, max_new_tokens]

    def __call__(self, prompts, keep, seed, deadline):
        asked = [(key, self.tokenizer.encode_prompt(prompt)) for key, prompt in prompts.items()]
        room = self.model.config.max_position_embeddings - self.max_new_tokens
        asked = [(key, ids) for key, ids in asked if 0 < len(ids) <= room]  # others: no answer
        if not asked:
            return

        for start in range(0, len(asked), BATCH):
            self.answer(asked[start : start + BATCH], keep, seed)

    def answer(self, asked, keep, seed):
        uniforms = row_uniforms([int(key[:8], 16) for key, _ in asked], self.max_new_tokens, seed)
        prompts = [ids for _, ids in asked]
        sizes = (1, self.max_new_tokens, self.temperature)
        rollouts = sample(self.model, prompts, *sizes, uniforms=uniforms)
        for (key, prompt), ids in zip(asked, rollouts.completions(), strict=True):
            reasoning, text = split_reasoning(self.tokenizer.decode(ids))
            counts = {"tokens_in": len(prompt), "tokens_out": len(ids)}
            keep(key, {"text": text, "reasoning": reasoning, **counts})


class Server:
    """An OpenAI-compatible server, named URL#MODEL; several requests at once. subtle: messages of servers
    and libraries may repeat the key, so ours quote none of them."""

    def __init__(
        self,
        url,
        temperature=0.6,
        max_new_tokens=4096,
        time_limit=120.0,
        retries=4,
        at_once=8,
        pause=0.5,
    ):
        self.url = urllib.parse.urlsplit(url)
        unsafe = "@" in self.url.netloc or self.url.query  # may be a key, and we repeat the address
        if self.url.scheme not in ("http", "https") or not self.url.hostname or unsafe:
            raise DataError(
                "a server is named http(s)://HOST/PATH#MODEL; the key stands in $OPENAI_API_KEY"
            )
        self.body = {
            "model": self.url.fragment,
            "temperature": temperature,
            "max_tokens": max_new_tokens,
        }
        self.time_limit = time_limit
        self.retries = retries
        self.at_once = at_once
        self.pause = pause
        self.identity = [url, temperature, max_new_tokens]

    def __call__(self, prompts, keep, seed, deadline):
        pool = ThreadPoolExecutor(self.at_once)
        try:
            list(pool.map(lambda item: self.ask(*item, keep, seed, deadline), prompts.items()))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C nothing more is asked, or paid

    def ask(self, key, prompt, keep, seed, deadline):
        """Ask until there is an answer, the time or the retries are used up, or the server refuses."""
        body = json.dumps(
            self.body | {"seed": seed, "messages": [{"role": "user", "content": prompt}]}
        )
        for attempt in range(self.retries + 1):
            limit = min(self.time_limit, deadline - time.monotonic())
            if limit <= 0:
                return
            status = answer = None
            with contextlib.suppress(Exception):  # lost connections and garbage have many types
                status, reply = self.post(body, limit)
                leaks = secret() and secret().encode() in reply  # it would stand in the cache file
                answer = read_reply(reply) if status == 200 and not leaks else None
            if answer:
                return keep(key, answer)
            if status in (401, 403, 404):
                raise DataError(
                    f"{self.url.geturl()} answers with status {status}: is there a model of that "
                    "name, and is the key in $OPENAI_API_KEY right?"
                )
            if status in (400, 413, 422):  # this prompt, for its length perhaps
                return
            if attempt < self.retries:
                time.sleep(max(0, min(30, self.pause * 2**attempt, deadline - time.monotonic())))

    def post(self, body, limit):
        """(status, reply) of one request. subtle: the timeout of a socket begins anew with each byte, so a
        server that sends a byte now and then would hold us for ever; the alarm closes the connection after
        so many seconds in all."""
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        connection = kinds[self.url.scheme](self.url.netloc, timeout=limit)
        headers = {"Content-Type": "application/json"}
        if secret():
            headers["Authorization"] = f"Bearer {secret()}"
        connection.connect()
        alarm = threading.Timer(limit, hang_up, [connection.sock])
        alarm.start()
        try:
            path = self.url.path.rstrip("/") + "/chat/completions"
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(8_000_000)
        finally:
            alarm.cancel()
            connection.close()


def secret():
    return os.environ.get("OPENAI_API_KEY", "").strip()


def hang_up(connected):
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def read_reply(reply):
    """The answer in a server's reply; raises one thing or another if there is none. The chain of thought
    has a field of its own (vLLM, DeepSeek: reasoning_content; reasoning) or stands in think tags."""
    reply = json.loads(reply)
    message = reply["choices"][0]["message"]
    usage = reply.get("usage") or {}
    reasoning, text = split_reasoning(message["content"] or "")
    reasoning = message.get("reasoning_content") or message.get("reasoning") or reasoning
    tokens_in, tokens_out = (
        int(usage.get(f"{kind}_tokens") or 0) for kind in ("prompt", "completion")
    )
    return {
        "text": text,
        "reasoning": reasoning + "",
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
    }


def fields_of(template, prompt):
    """The values that were formatted into a template, or None if the prompt was not made from it."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.*?)", re.escape(template))
    match = re.fullmatch(pattern, prompt, re.DOTALL)
    return match and match.groupdict()


class Simulated:
    """A program in place of a model, for laboratory and tests: a subclass has say(prompt, rng) -> (chain of
    thought, text), and None where it fails. Its random numbers depend on seed and prompt; words count as tokens."""

    def __init__(self, error=0.0):
        self.error = error
        self.identity = [type(self).__name__, "simulated", error]

    def __call__(self, prompts, keep, seed, deadline):
        for key, prompt in prompts.items():
            said = self.say(prompt, random.Random(f"{seed} {prompt}"))
            if said:
                reasoning, text = said
                counts = {
                    "tokens_in": len(prompt.split()),
                    "tokens_out": len(f"{reasoning} {text}".split()),
                }
                keep(key, {"text": text, "reasoning": reasoning, **counts})


class Asked:
    """asked(prompts) -> an answer for each, or None where the backend failed.

    cache:    a file of JSON lines, {"key", "answer"}; the key is a hash of identity, seed and prompt.
    patience: seconds for all prompts of a call (a local model takes the time it takes). If they pass
              without any answer, the next call gets half as many, so that a server that is down delays
              a run by minutes and does not end it.
    counts:   prompts new, known and failed; tokens_in, tokens_out of all answers (Table 2), those that
              were known included, so that a resumed extraction counts what a whole one does.
    """

    REMEMBER = 100_000  # answers in memory when there is no file: a judge runs long

    def __init__(self, backend, cache=None, patience=float("inf")):
        self.patience = self.left = patience
        self.backend = backend
        self.known = {}
        self.lock = threading.Lock()
        self.file = None
        self.counts = collections.Counter(new=0, known=0, failed=0, tokens_in=0, tokens_out=0)
        if cache:
            self.file = open(cache, "a+b")
            self.file.seek(0)
            self.read(self.file.read().splitlines(keepends=True))

    def read(self, lines):
        for line in lines:
            with contextlib.suppress(
                ValueError, TypeError, LookupError
            ):  # half a line, after a crash
                record = json.loads(line)
                self.known[record["key"]] = dict(record["answer"])
        if lines and not lines[-1].endswith(b"\n"):
            self.file.write(b"\n")  # subtle: or the next answer would be lost in that line too

    def __call__(self, prompts, seed=0):
        """Prompts that were answered before, in this run or an earlier one, are not asked again."""
        keys = [
            hashlib.sha256(json.dumps([self.backend.identity, seed, prompt]).encode()).hexdigest()
            for prompt in prompts
        ]
        found = {key: self.known.get(key) for key in keys}
        new = {key: prompt for key, prompt in zip(keys, prompts) if found[key] is None}

        def keep(key, answer):
            found[key] = answer
            self.keep(key, answer)

        if new:
            self.backend(new, keep, seed, time.monotonic() + self.left)
        answers = [found[key] for key in keys]
        self.left = self.patience if any(answers) else self.left / 2
        with self.lock:
            self.counts.update(new=len(new), known=len(keys) - len(new), failed=answers.count(None))
            for answer in filter(None, found.values()):
                self.counts.update(tokens_in=answer["tokens_in"], tokens_out=answer["tokens_out"])
        return answers

    def keep(self, key, answer):
        with self.lock:
            if self.file:
                self.file.write(json.dumps({"key": key, "answer": answer}).encode() + b"\n")
                self.file.flush()
            elif len(self.known) >= self.REMEMBER:
                self.known.clear()
            self.known[key] = answer


def open_model(name, cache=None, patience=float("inf"), **settings):
    """The Asked of a directory, a hub id or URL#MODEL; settings: what Local or Server takes."""
    return Asked((Server if "://" in name else Local)(name, **settings), cache, patience)


# ---- 3. Baselines --------------------------------------------------------------------------------

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


def counter_of(backend):
    """What counts the tokens of a text for filter_preferences: the tokenizer of a model that runs here,
    as in the paper; words where a server or a program answers."""
    tokenizer = getattr(backend, "tokenizer", None)
    if tokenizer is None:
        return lambda text: len(text.split())
    return lambda text: len(tokenizer.encode(text))
