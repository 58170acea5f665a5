"""autorule_tools.py - what AutoRule needs besides its method: preferences, and models to ask.

    teacher = open_model("Qwen/Qwen3-8B", cache="answers.jsonl")     a model directory or a hub id
    teacher = open_model("http://localhost:8000/v1#Qwen/Qwen3-8B")   a server, URL#MODEL, as OpenAI's
    answers = teacher(["Why is the sky blue?"])                      [{"text", "reasoning", ..}]

Each answer is written to the cache file as it comes, so that after an interruption nothing is paid for
again. A server may fail or send garbage: it is asked again a few times, and then the answer is None. The
key stands in $OPENAI_API_KEY and goes into one header, nowhere else. Left out: proxies, redirects,
streaming, a server that sends a byte now and then.
"""

import collections
import contextlib
import hashlib
import json
import math
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
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


def counter_of(backend):
    """What counts the tokens of a text for filter_preferences: the tokenizer of a model that runs here,
    as in the paper; words where a server or a program answers."""
    tokenizer = getattr(backend, "tokenizer", None)
    return lambda text: len(tokenizer.encode(text) if tokenizer else text.split())


# ---- 2. A model to ask ---------------------------------------------------------------------------


def split_reasoning(text):
    """(chain of thought, the text after it); if the chain never ends, there is no text."""
    before, end, after = text.partition("</think>")
    if end or "<think>" in text:
        return before.replace("<think>", "", 1).strip(), after.strip()
    return "", text.strip()


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
        asked = [(key, self.tokenizer.encode_prompt(prompt)) for key, prompt in prompts.items()]
        room = self.model.config.max_position_embeddings - self.max_new_tokens
        asked = [(key, ids) for key, ids in asked if 0 < len(ids) <= room]  # others: no answer
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


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args):
        return None  # it would carry the key elsewhere


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)


class Server:
    """An OpenAI-compatible server, named URL#MODEL; eight requests at once. time_limit: seconds without a
    byte. subtle: messages of servers and libraries may repeat the key, so ours quote none of them."""

    def __init__(
        self, url, temperature=0.6, max_new_tokens=4096, time_limit=120.0, retries=4, pause=0.5
    ):
        parts = urllib.parse.urlsplit(url)
        unsafe = "@" in parts.netloc or parts.query  # may be a key, and we repeat the address
        if parts.scheme not in ("http", "https") or not parts.hostname or unsafe:
            raise DataError(
                "a server is named http(s)://HOST/PATH#MODEL; the key stands in $OPENAI_API_KEY"
            )
        address, _, model = url.partition("#")
        self.address = address.rstrip("/") + "/chat/completions"
        self.body = {"model": model, "temperature": temperature, "max_tokens": max_new_tokens}
        self.time_limit = time_limit
        self.retries = retries
        self.pause = pause
        self.identity = [url, temperature, max_new_tokens]

    def __call__(self, prompts, keep, seed):
        pool = ThreadPoolExecutor(8)
        try:
            list(pool.map(lambda item: self.ask(*item, keep, seed), prompts.items()))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C nothing more is asked, or paid

    def ask(self, key, prompt, keep, seed):
        """Ask until there is an answer, the retries are used up, or the server refuses."""
        body = self.body | {"seed": seed, "messages": [{"role": "user", "content": prompt}]}
        for attempt in range(self.retries + 1):
            status = answer = None
            with contextlib.suppress(Exception):  # lost connections and garbage have many types
                status, reply = self.post(json.dumps(body).encode())
                answer = read_reply(reply)
            if answer:
                return keep(key, answer)
            if status in (401, 403, 404):
                raise DataError(
                    f"{self.address} answers with status {status}: is there a model of that "
                    "name, and is the key in $OPENAI_API_KEY right?"
                )
            if status in (400, 413, 422):  # this prompt, for its length perhaps
                return None
            if attempt < self.retries:
                time.sleep(min(30, self.pause * 2**attempt))

    def post(self, body):
        """(status, reply) of one request."""
        headers = {"Content-Type": "application/json"}
        if secret():
            headers["Authorization"] = f"Bearer {secret()}"
        request = urllib.request.Request(self.address, body, headers)
        try:
            with OPENER.open(request, timeout=self.time_limit) as response:
                return response.status, response.read(8_000_000)
        except urllib.error.HTTPError as error:
            return error.code, b""


def secret():
    return os.environ.get("OPENAI_API_KEY", "").strip()


def read_reply(reply):
    """The answer in a server's reply; raises one thing or another if there is none, or if it repeats the
    key, which would stand in the cache file then. The chain of thought has a field of its own (vLLM,
    DeepSeek: reasoning_content; reasoning) or stands in think tags."""
    if secret() and secret().encode() in reply:
        raise DataError("the reply repeats the key")
    reply = json.loads(reply)
    message = reply["choices"][0]["message"]
    usage = reply.get("usage") or {}
    reasoning, text = split_reasoning(message["content"] or "")
    reasoning = message.get("reasoning_content") or message.get("reasoning") or reasoning
    counts = {
        "tokens_in": int(usage.get("prompt_tokens") or 0),
        "tokens_out": int(usage.get("completion_tokens") or 0),
    }
    return {"text": text, "reasoning": reasoning + "", **counts}


class Asked:
    """asked(prompts) -> an answer for each, or None where the backend failed.

    cache:  a file of JSON lines, {"key", "answer"}; the key is a hash of identity, seed and prompt.
    counts: prompts new, known and failed; tokens_in, tokens_out of all answers (Table 2), those that
            were known included, so that a resumed extraction counts what a whole one does.
    """

    def __init__(self, backend, cache=None):
        self.backend = backend
        self.known = {}
        self.lock = threading.Lock()
        self.file = open(cache, "a+b") if cache else None
        self.counts = collections.Counter(new=0, known=0, failed=0, tokens_in=0, tokens_out=0)
        if self.file:
            self.read()

    def read(self):
        self.file.seek(0)
        lines = self.file.read().splitlines(keepends=True)
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, LookupError):  # half a line
                record = json.loads(line)
                self.known[record["key"]] = dict(record["answer"])
        if lines and not lines[-1].endswith(b"\n"):
            self.file.write(b"\n")  # subtle: or the next answer would be lost in that line too

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
            for answer in filter(None, found.values()):
                self.counts.update(tokens_in=answer["tokens_in"], tokens_out=answer["tokens_out"])
        return answers

    def keep(self, key, answer):
        if self.file:  # without one nothing is remembered: a judge runs long
            with self.lock:
                self.known[key] = answer
                self.file.write(json.dumps({"key": key, "answer": answer}).encode() + b"\n")
                self.file.flush()


def open_model(name, cache=None, **settings):
    """The Asked of a directory, a hub id or URL#MODEL; settings: what Local or Server takes."""
    return Asked((Server if "://" in name else Local)(name, **settings), cache)
