"""chat.py - conversations: a model's chat template, and turns with an environment.

Skip it on a first reading: a base model that solves a problem in one go needs neither. model.py
asks `Chat` for the token ids of a turn. When a turn ends, rlvr.sample asks `Turns` what comes next:
write_replies writes the reply into the rollouts, and read_replies lets the model read it. The
letters mean the same as in rlvr.py.
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jinja2 import TemplateError  # comes with torch
from jinja2.sandbox import ImmutableSandboxedEnvironment

from appendix.plumbing import run_all
from model import ModelError

# ---- 1. Chat templates ---------------------------------------------------------------------------

# ChatML, the markup of Qwen and SmolLM2, is used if a model's files contain no chat template.
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
MARK = "\ufdd1"  # a placeholder for what the assistant said
# We put this Unicode noncharacter inside a user's "<|im_end|>", so that it is read as text.
GUARD = "\ufdd0"


def fail(message):
    """Chat templates call this function as raise_exception."""
    raise TemplateError(message)


@dataclass
class Chat:
    """A model's chat template. It turns messages into text in the format that the model was trained
    on, and the text into token ids. Every method may raise ModelError if the template fails."""

    config: dict  # from tokenizer_config.json
    special: dict  # {special token: id}
    encode: Callable  # text -> ids

    def first_turn(self, text, thinking=True):
        """Return the ids of a user's message and of the start of the assistant's turn."""
        return self.ids(self.text([("user", text)], thinking))

    def next_turn(self, text, role="user", thinking=True):
        """Return the ids from the end of one turn of the assistant to the start of its next turn,
        with the message `text` in between."""
        messages = [("user", "?"), ("assistant", MARK), (role, text)]
        chat = self.text(messages, thinking)
        if MARK not in chat:
            raise ModelError("the chat template leaves out a message: use --template plain")
        return self.ids(chat.partition(MARK)[2])  # the first MARK: a text may contain one, too

    def writes_any(self, tokens):
        """True if the template writes one of these special tokens in a chat of two turns."""
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        text = self.render(messages=turns)
        return any(token in text for token in tokens)

    def text(self, messages, thinking):
        """Return a chat as text, up to the start of the assistant's next turn. Except for GUARD, it
        is what transformers' apply_chat_template returns."""
        guarded = []
        for role, content in messages:
            for token in self.special:
                content = content.replace(token, token[0] + GUARD + token[1:])
            guarded.append({"role": role, "content": content})
        options = {} if thinking else {"enable_thinking": False}
        return self.render(messages=guarded, add_generation_prompt=True, **options)

    def ids(self, text):
        """Return the ids of a rendered chat. A special token without a GUARD becomes one id."""
        any_special = "|".join([*map(re.escape, self.special), r"\Z"])  # \Z: if there are none
        ids = []
        for piece in re.split(f"({any_special})", text):
            if piece in self.special:
                ids.append(self.special[piece])
            else:
                ids += self.encode(piece.replace(GUARD, ""))
        return ids

    def render(self, **given):
        """Render the chat template with these variables, such as messages. Returns text."""
        try:
            return self.template.render(**given)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ModelError(f"the chat template fails ({error}): use --template plain") from None

    @cached_property
    def template(self):
        """The compiled template, with the variables and functions that transformers gives it. It is
        cached because compiling takes longer than rendering a thousand prompts."""
        source = self.config.get("chat_template") or CHATML
        if isinstance(source, list):
            source = {each["name"]: each["template"] for each in source}["default"]
        # transformers accepts {% generation %}, which marks the text to train on; jinja2 does not.
        # A {% with %} block writes the same text.
        source = re.sub(r"({%[-+]?\s*(?:end)?)generation\b", r"\1with", source)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals |= {
            "raise_exception": fail,
            "strftime_now": time.strftime,
            "tools": None,
            "documents": None,
        }
        for name in "bos_token eos_token pad_token unk_token".split():
            token = self.config.get(name) or ""
            environment.globals[name] = token if isinstance(token, str) else token["content"]
        return environment.from_string(source)


# ---- 2. Turns ------------------------------------------------------------------------------------

LONGEST_REPLY = 4000  # characters; an environment's reply is cut off here
ENVIRONMENT_TIMEOUT = 5.0  # seconds without any reply before the missing ones count as failed
GO_ON = []  # a reply of no tokens: the policy's turn has not ended
END = None  # the completion ends here


class Turns:
    """The `reply` function of rlvr.sample. Every row has its own environment (Task.turns).

    A turn ends at a stop token of the model, or when its text contains one of task.stops. After a
    stop token, a chat model reads the reply as a turn of its template; otherwise the reply is plain
    text. Sampled tokens are never tokenised again.
    problems: one dict for each row. Turns sets its "environment" (or the error that was raised) and
        appends a pair to its list "turns" after each turn: what the policy said, and the reply.
        Rewards can read both.
    over: the number of rows that have received END."""

    def __init__(self, tokenizer, task, problems, eos):
        self.tokenizer = tokenizer
        self.task = task
        self.eos = eos
        self.problems = problems
        self.over = 0
        self.begins = [0] * len(problems)  # where in the completion the turn begins
        if task.turns:
            new = run_all(
                self.begins, problems, lambda _, row: task.turns(row), ENVIRONMENT_TIMEOUT
            )
            for problem, environment in zip(problems, new):
                problem["environment"] = environment

    def __call__(self, rows, completions):
        """Answer these rows (row numbers), given their completions so far (lists of ids). Returns
        one reply per row: the ids that come next, GO_ON or END."""
        replies = run_all(rows, completions, self.after, ENVIRONMENT_TIMEOUT)
        for place, reply in enumerate(replies):
            if isinstance(reply, BaseException):
                self.problems[rows[place]]["environment"] = reply
                replies[place] = END
        self.over += replies.count(END)
        return replies

    def after(self, row, ids):
        """Return what follows these ids, the row's completion so far: ids, GO_ON or END."""
        stopped = ids[-1] in self.eos
        end = len(ids) - stopped  # without the stop token
        said = ids[self.begins[row] : end]
        text = self.tokenizer.decode(said, skip_special_tokens=False)
        if not stopped and not any(stop in text for stop in self.task.stops):
            return GO_ON  # the token only looked like the end of a stop text
        problem = self.problems[row]
        environment = problem.get("environment")
        if isinstance(environment, BaseException):  # task.turns failed
            raise environment
        reply = environment.reply(text) if self.task.turns else None
        new = END
        if reply is not None:
            reply = reply[:LONGEST_REPLY]
            new = self.ids_of(reply, getattr(environment, "role", "user"), ids[-1], stopped)
            if self.tokenizer.unknown in new:
                raise ValueError(f"the model has no token for characters of the reply {reply!r}")
            self.begins[row] = len(ids) + len(new)
        problem["turns"].append((text, reply))
        return new

    def ids_of(self, reply, role, last, stopped):
        """Return the ids of a reply as the policy reads it. last: the last token before it."""
        template = self.tokenizer.template
        if not stopped or template == "plain":
            return self.tokenizer.encode(reply)
        ids = self.tokenizer.chat.next_turn(reply, role, thinking=template != "chat-nothink")
        return ids[1:] if ids[0] == last else ids  # the policy has already ended its turn


def transcript(text, turns):
    """Return a completion as text, with each reply in [[ ]] on a line of its own. text: all words
    of the policy; turns: pairs of (the policy's words, the reply)."""
    shown = "".join(said + f"\n[[{reply}]]\n" * bool(reply) for said, reply in turns)
    said = "".join(said for said, _ in turns)
    start = max(0, text.find(said))
    return shown + text[start + len(said) :]  # the words of a turn that was cut off


def close_environments(problems):
    """Call close() of every environment that has it, even if its completion was cut off. Errors in
    close() are ignored."""
    run_all(
        problems, problems, lambda problem, _: problem["environment"].close(), ENVIRONMENT_TIMEOUT
    )


def write_replies(rollouts, rows, reply, limit):
    """Ask the environments of the rows that have sampled a stop token, and write their replies into
    the rollouts. A completion is cut off at `limit` tokens, even inside a reply."""
    asking = rows[rollouts.finished[rows]]
    numbers = asking.tolist()
    replies = reply(numbers, rollouts.completions(asking))
    for row, new in zip(numbers, replies, strict=True):
        rollouts.finished[row] = new is END
        start = int(rollouts.ends[row])
        new = torch.tensor(new or [])[: limit - int(rollouts.lengths[row])]
        rollouts.ids[row, start : start + len(new)] = new
        rollouts.lengths[row] += len(new)


def read_replies(model, cache, rollouts, rows):
    """For each of these A rows, run the model on the sampled token and the reply after it. Returns
    logits (A, V). Every row reads W tokens, as many as the longest reply needs. A row with a
    shorter reply rereads some tokens that are already in the cache."""
    ends = rollouts.ends[rows]  # (A,)
    W = int((ends - cache.lengths).max())
    begin = (ends - W).clamp(min=0)  # (A,)
    columns = begin[:, None] + torch.arange(W, device=ends.device)  # (A, W)
    last = torch.arange(len(rows), device=ends.device), ends - begin - 1
    cache.rewind(begin)
    logits = model.next_logits(rollouts.ids[rows[:, None], columns], cache, last)
    cache.lengths = ends
    return logits
