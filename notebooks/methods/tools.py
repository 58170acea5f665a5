"""tools.py - a calculator that the policy calls inside <tool>..</tool>.

    python -m notebooks.models.make_tiny --task products --out runs/calling
    python train.py --model runs/calling --task notebooks/models/make_tiny.py:products --method notebooks/methods/tools.py

Source:  Search-R1 (arXiv 2503.09516): a policy and a tool take turns; "retrieved token masking".
Formula: completion = y_1 a_1 y_2 a_2 .. y_n: y_k is sampled, up to a </tool>, and a_k is what the
         tool answers. The loss is the usual one, over the tokens of the y_k alone.
Changes: the sampling, in training and in evaluation. An answer is written token by token where
         else the next ones would be sampled: nothing is tokenised again, the cache is kept, and
         max_new_tokens bounds the tokens of both. The stored mask is 0 there, so that the tool's
         tokens are in no loss, no statistic and no length; masked=False trains them like the
         policy's own, for comparison. After max_calls answers the tool is silent.
         A tool that raises answers "error", and so does one that takes longer than `seconds`, in
         which all calls that end at the same token are made. An answer has at most 100 characters.
         A call consists of the policy's tokens alone: what the tool answers cannot be a call. Another tool is a subclass
         with its own `tool`, a function of a text.
Missing: Search-R1's search engine and its tags. On a GPU every token is copied to the CPU, which
         looks for a call, and sampling waits for that.
"""

from dataclasses import dataclass, replace

import torch

from notebooks.environments.calculator import answer_calls, calculator
from rlvr import GRPO, choose


class Row:
    """One completion in the making."""

    def __init__(self):
        self.said = []  # what the policy wrote since the last answer
        self.waiting = []  # what of the tool's answer is not written yet
        self.calls = 0  # answered


class Tools(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        max_calls: int = 4
        seconds: float = 2.0
        masked: bool = True

    tool = staticmethod(calculator)

    def roll_out(self, model, tokenizer, prompts, how):
        uniforms = how.uniforms
        self.stop_ids = how.stop_ids
        self.tokenizer = tokenizer
        self.closing = tokenizer.tokens_with((">",))  # tokens that may be the end of a </tool>
        self.rows = [Row() for _ in uniforms]
        self.columns = iter(uniforms.T.to(model.device))
        # subtle: sample does not tell `choose` whose logits it sees. So it gets the numbers of the
        # rows in place of uniforms, and those come column by column, one a token.
        numbers = torch.arange(len(uniforms))[:, None].expand_as(uniforms)
        rollouts = super().roll_out(
            model, tokenizer, prompts, replace(how, uniforms=numbers, choose=self.choose)
        )
        rollouts.mask[rollouts.logp > 0] = 0.0
        rollouts.logp *= rollouts.mask
        return rollouts

    def choose(self, logits, numbers, temperature):
        """The next token of each row: of the tool's answer, or else sampled."""
        tokens, _ = choose(logits, next(self.columns)[numbers], temperature)
        rows = [self.rows[i] for i in numbers]
        inserted = torch.tensor([bool(row.waiting) for row in rows])
        asking = []
        for i, row in enumerate(rows):
            if row.waiting:
                tokens[i] = row.waiting.pop(0)
                continue
            row.said.append(int(tokens[i]))
            if row.said[-1] in self.closing and row.calls < self.settings.max_calls:
                asking.append(row)
        self.answer(asking)
        logp = (logits.float() / (temperature or 1.0)).log_softmax(-1)
        logp = logp.gather(1, tokens[:, None]).squeeze(1)
        if self.settings.masked:
            logp[inserted] = 1.0  # what no log-prob is: roll_out masks it
        return tokens, logp

    def answer(self, rows):
        """Ask the tool: from the next token on the rows that have called hold its answers."""
        texts = [self.tokenizer.decode(row.said, False) for row in rows]
        for row, answer in zip(rows, answer_calls(self.tool, texts, self.settings.seconds)):
            if answer:
                row.waiting = [
                    token for token in self.tokenizer.encode(answer) if token not in self.stop_ids
                ]
                row.said = []
                row.calls += 1
