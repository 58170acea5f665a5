"""shared_prompts.py - GRPO that reads the prompt of a group only once per update.

Source:  prefix sharing, as in tree attention (arXiv 2401.10774) and Prefix Grouper (2506.05433);
         the loss and its gradient are those of rlvr.py.
Formula: a line is: prompt, completion 1, completion 2, .. A token attends to the prompt and to the
         earlier tokens of its own completion. Its position counts only these tokens.
Changes: only the layout of the update. G completions of n tokens after a prompt of m tokens take
         m + G n tokens, not G (m + n). This saves work if prompts are longer than completions, for
         instance with examples in the prompt; otherwise rows are padded as usual.
Missing: a kernel that skips masked positions: attention is computed for the whole square.
"""

import torch
from torch.nn.utils.rnn import pad_sequence

from rlvr import GRPO, MicroBatch, padded_rows


class SharedPrompts(GRPO):
    def layout(self, rollouts, keep, max_tokens):
        if rollouts.prompt_lengths.sum() > rollouts.lengths.sum():
            return shared_prompts(rollouts, keep, max_tokens)
        return padded_rows(rollouts, keep, max_tokens)


def shared_prompts(rollouts, keep, max_tokens):
    """Yield the rows where keep (B,) is True, in MicroBatches of at most max_tokens (or one
    row)."""
    lines = lines_of(rollouts, keep, max_tokens)
    lines.sort(key=lambda line: width(rollouts, line), reverse=True)
    while lines:
        count = max(1, max_tokens // width(rollouts, lines[0]))
        yield micro_batch(rollouts, lines[:count])
        lines = lines[count:]


def width(rollouts, rows):
    """Return the number of tokens of these rows of one group in one line."""
    return int(rollouts.prompt_lengths[rows[0]] + rollouts.lengths[rows].sum())


def lines_of(rollouts, keep, max_tokens):
    """Put as many rows of one group into a line as fit -> lists of rows."""
    G = rollouts.num_samples
    lines = []
    for row in keep.nonzero().flatten().tolist():
        same_group = bool(lines) and lines[-1][0] // G == row // G
        if same_group and width(rollouts, [*lines[-1], row]) <= max_tokens:
            lines[-1].append(row)
        else:
            lines.append([row])
    return lines


def micro_batch(rollouts, lines):
    tables = [table(rollouts, line) for line in lines]
    padded = pad_sequence(tables, True, -1).to(rollouts.ids.device)  # (N, L, 3)
    rows, columns, owners = padded.unbind(2)
    trained = (owners > 0) & (rollouts.mask[rows, columns] > 0)
    same = owners[:, :, None] == owners[:, None, :]
    prompt = owners[:, None, :] == 0
    mask = (same | prompt).tril()[:, None]  # (N, 1, L, L)
    own = torch.tensor([row for line in lines for row in line], device=rows.device)
    return MicroBatch(rollouts.ids[rows, columns], trained, own, columns, mask)


def table(rollouts, line):
    """Return where each token of a line comes from: (L, 3) of row, column, owner. Owner 0 is the
    prompt, owner k the k-th completion. A completion begins at the last token of the prompt,
    which predicts the completion's first token."""
    last = int(rollouts.prompt_lengths[line[0]]) - 1
    tokens = [(line[0], column, 0) for column in range(last)]
    for k, row in enumerate(line, 1):
        end = last + int(rollouts.lengths[row])
        tokens += [(row, column, k) for column in range(last, end)]
    return torch.tensor(tokens)
