"""tool_loop.py - the older loop with a calculator, in which the claims tools and thinking were measured.

Kept as it was, so that their runs can be made again. For work of your own take environments/calculator.py: the core
samples the same with it, to the last digit (notebooks/tests/test_environments.py).

Source:  Search-R1 (arXiv 2503.09516): "retrieved token masking".
Formula: completion = y_1 a_1 y_2 a_2 .. y_n: y_k is sampled, up to a </tool>, and a_k is what the tool answers. The loss
         is over the tokens of the y_k alone; with masked=False, which an environment has not, over all of them.
"""

from dataclasses import dataclass, replace

import torch

from notebooks.environments.calculator import Calculator
from notebooks.models import make_tiny
from rlvr import GRPO, choose


def products():
    """The task without its environment."""
    return replace(make_tiny.products(), stops=(), turns=None)


class Row:
    """One completion in the making."""

    def __init__(self, calls):
        self.said = []  # what the policy wrote since the last answer
        self.waiting = []  # what of the tool's answer is not written yet
        self.tool = Calculator({})
        self.tool.left = calls


class Tools(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        max_calls: int = 4
        masked: bool = True

    def roll_out(self, model, tokenizer, prompts, how):
        uniforms = how.uniforms
        self.stop_ids = how.stop_ids
        self.tokenizer = tokenizer
        self.closing = tokenizer.tokens_that_end(("</tool>",))
        self.rows = [Row(self.settings.max_calls) for _ in uniforms]
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
        for i, row in enumerate(rows):
            if row.waiting:
                tokens[i] = row.waiting.pop(0)
                continue
            row.said.append(int(tokens[i]))
            if row.said[-1] in self.closing:
                self.answer(row)
        logp = (logits.float() / (temperature or 1.0)).log_softmax(-1)
        logp = logp.gather(1, tokens[:, None]).squeeze(1)
        if self.settings.masked:
            logp[inserted] = 1.0  # what no log-prob is: roll_out masks it
        return tokens, logp

    def answer(self, row):
        """From the next token on the row holds what the calculator answers."""
        answer = row.tool.reply(self.tokenizer.decode(row.said, False))
        if answer:
            ids = self.tokenizer.encode(answer)
            row.waiting = [token for token in ids if token not in self.stop_ids]
            row.said = []
