"""chat.py - conversation: a model's chat template, and turns with an environment.

Skip it on a first reading: a base model that solves a problem in one go needs neither. model.py
asks `Chat` for the token ids of a turn. rlvr.sample asks `Turns` what comes next where a turn has
ended; write_replies and read_replies are the two sides of that. Letters as in rlvr.py.
"""

import json
import re
import time
from functools import cached_property, partial

import torch
from jinja2 import TemplateError  # comes with torch
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from appendix.plumbing import run_all
from model import ModelError

# ---- 1. Chat templates ---------------------------------------------------------------------------

# ChatML, Qwen's and SmolLM2's markup, for a model whose files hold no template of their own.
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
MARK = "\ufdd1"  # stands for what the assistant said
# A Unicode noncharacter, put inside a user's "<|im_end|>" so that it is no special token.
GUARD = "\ufdd0"


class Generation(Extension):
    """{% generation %} .. {% endgeneration %}. Elsewhere these mark what is trained; here the text
    between them is simply written."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def fail(message):
    """raise_exception of chat templates."""
    raise TemplateError(message)


class Chat:
    """The chat template of a model: messages -> the text it was trained on -> token ids. Every
    function may raise ModelError, for a template that fails."""

    def __init__(self, config, special, encode):
        """config: of tokenizer_config.json; special: {special token: id}; encode: text -> ids."""
        self.config = config
        self.special = special
        self.encode = encode

    def first_turn(self, text, thinking=True):
        """A user's message, and the assistant's turn opened -> ids."""
        return self.ids(self.text([("user", text)], thinking))

    def next_turn(self, text, role="user", thinking=True):
        """What a chat writes from the end of the assistant's turn to the start of its next one,
        with `text` between them -> ids."""
        messages = [("user", "?"), ("assistant", MARK), (role, text)]
        chat = self.text(messages, thinking)
        if MARK not in chat:
            raise ModelError("the chat template hides what was said: use --template plain")
        return self.ids(chat.partition(MARK)[2])  # the first: a text may hold it too

    def writes_any(self, tokens):
        """Does a turn of the assistant end with one of these special tokens?"""
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        text = self.render(messages=turns)
        return any(token in text for token in tokens)

    def text(self, messages, thinking):
        """A chat, with the assistant's turn opened -> text, as transformers' apply_chat_template
        gives it, but for GUARD."""
        guarded = []
        for role, content in messages:
            for token in self.special:
                content = content.replace(token, token[0] + GUARD + token[1:])
            guarded.append({"role": role, "content": content})
        options = {} if thinking else {"enable_thinking": False}
        return self.render(messages=guarded, add_generation_prompt=True, **options)

    def ids(self, text):
        """A rendered chat -> ids. Special tokens have their own ids, but for those with a GUARD."""
        any_special = "|".join([*map(re.escape, self.special), r"\Z"])  # \Z: if there is none
        ids = []
        for piece in re.split(f"({any_special})", text):
            if piece in self.special:
                ids.append(self.special[piece])
            else:
                ids += self.encode(piece.replace(GUARD, ""))
        return ids

    def render(self, **given):
        """What the chat template makes of messages -> text."""
        try:
            return self.template.render(**given)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            why = f"the model's chat template fails ({error}): use --template plain"
            raise ModelError(why) from None

    @cached_property
    def template(self):
        """The compiled template, which sees what transformers shows it. Compiling takes longer than
        rendering a thousand prompts."""
        source = self.config.get("chat_template") or CHATML
        if isinstance(source, list):
            source = {each["name"]: each["template"] for each in source}["default"]
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals |= {"raise_exception": fail, "strftime_now": time.strftime}
        environment.globals |= {"tools": None, "documents": None}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = self.config.get(name) or ""
            environment.globals[name] = token if isinstance(token, str) else token["content"]
        return environment.from_string(source)


# ---- 2. Turns ------------------------------------------------------------------------------------

LONGEST_REPLY = 4000  # characters of an environment's reply
ENVIRONMENT_TIMEOUT = 5.0  # seconds without any reply, after which those still missing have failed
GO_ON = []  # a reply of no tokens: the policy's turn has not ended
END = None  # the completion ends here


class Turns:
    """The `reply` of rlvr.sample: every row has its own environment (Task.turns).

    A turn ends at a stop token of the model, or where its text contains one of task.stops. In the
    first case a chat model reads the reply as a turn of its template, else as plain text. Sampled
    tokens are never tokenised again.
    problems: one dict for each row. Turns adds the row's "environment" (or the error that it
        raised), and to its list "turns" pairs of what the policy said and the reply; a reward sees
        both.
    over: how many rows have ended by a stop."""

    def __init__(self, tokenizer, task, problems, eos):
        self.tokenizer = tokenizer
        self.task = task
        self.eos = eos
        self.problems = problems
        self.over = 0
        self.begins = [0] * len(problems)  # where in the completion the turn begins
        if task.turns:
            timeout = ENVIRONMENT_TIMEOUT
            new = run_all(self.begins, problems, lambda _, row: task.turns(row), timeout)
            for problem, environment in zip(problems, new):
                problem["environment"] = environment

    def __call__(self, rows, completions):
        """The numbers of some rows, and their completions so far (lists of ids) -> for each the ids
        that come next, GO_ON or END."""
        replies = run_all(rows, completions, self.after, ENVIRONMENT_TIMEOUT)
        for place, row in enumerate(rows):
            if isinstance(replies[place], BaseException):
                self.problems[row]["environment"] = replies[place]
                replies[place] = END
        self.over += replies.count(END)
        return replies

    def after(self, row, ids):
        """What comes after this completion of that row."""
        stopped = ids[-1] in self.eos
        end = len(ids) - 1 if stopped else len(ids)
        said = ids[self.begins[row] : end]
        text = self.tokenizer.decode(said, skip_special_tokens=False)
        if not stopped and not any(stop in text for stop in self.task.stops):
            return GO_ON  # the token only looked like the end of a stop text
        problem = self.problems[row]
        environment = problem.get("environment")
        if isinstance(environment, BaseException):  # it could not be made
            raise environment
        reply = environment.reply(text) if self.task.turns else None
        new = END
        if reply is not None:
            reply = str(reply)[:LONGEST_REPLY]
            new = self.ids_of(reply, getattr(environment, "role", "user"), ids[-1], stopped)
            self.begins[row] = len(ids) + len(new)
        problem["turns"].append((text, reply))
        return new

    def ids_of(self, reply, role, last, stopped):
        """The reply as the policy reads it, after a turn with this last token -> ids."""
        template = self.tokenizer.template
        if not stopped or template == "plain":
            return self.tokenizer.encode(reply)
        ids = self.tokenizer.chat.next_turn(reply, role, thinking=template != "chat-nothink")
        return ids[1:] if ids[0] == last else ids  # the policy has ended its turn itself


def write_replies(rollouts, rows, reply, limit):
    """Ask the environments of the rows that have sampled a stop token, and write their replies into
    the rollouts. A completion is cut off at the limit, also in a reply."""
    asking = rows[rollouts.finished[rows]]
    numbers = asking.tolist()
    replies = reply(numbers, rollouts.completions(asking))
    for row, new in zip(numbers, replies, strict=True):
        rollouts.finished[row] = new is END
        start = int(rollouts.prompt_lengths[row] + rollouts.lengths[row])
        new = torch.tensor(new or [], dtype=torch.long)[: limit - int(rollouts.lengths[row])]
        rollouts.ids[row, start : start + len(new)] = new.to(rollouts.ids.device)
        rollouts.lengths[row] += len(new)


def read_replies(model, cache, rollouts, rows):
    """Read the token that each of these A rows has sampled, and a reply after it -> logits (A, V).
    All rows read as many tokens as the longest reply needs, W: a row with a shorter one reads some
    tokens again that the cache holds already."""
    ends = rollouts.prompt_lengths[rows] + rollouts.lengths[rows]  # (A,)
    W = int((ends - cache.lengths).max())
    begin = (ends - W).clamp(min=0)  # (A,)
    columns = begin[:, None] + torch.arange(W, device=ends.device)  # (A, W)
    last = torch.arange(len(rows), device=ends.device), ends - begin - 1
    cache.rewind(begin)
    logits = model.next_logits(rollouts.ids[rows[:, None], columns], cache, last)
    cache.lengths = ends
    return logits
