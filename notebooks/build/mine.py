"""mine.py - write these functions yourself; a checker names each mistake, and at the end they train a model.

    cp notebooks/build/mine.py mine.py
    python notebooks/conformance/check.py mine.py --mine    what is right, what is wrong, and what comes next
    python notebooks/page.py --step mine.py                 trains the tiny model with what you wrote

README.md in this folder says why each function is needed. A function that still raises NotImplementedError counts
as not written.

Letters: P prompts, G completions of each, B = P*G rows, T tokens, V vocabulary. Position t of a tensor (B, T-1) is
about the token ids[:, t + 1], because no token comes before the first.
"""

import torch

# ---- Write these ---------------------------------------------------------------------------------


def extract_boxed_answer(text):
    """Return what is inside the last \\boxed{..} of the text, or None if there is no whole box."""
    raise NotImplementedError


def advantages(rewards):
    """How much better is each completion than the others of its group? rewards (P, G) -> (P, G)."""
    raise NotImplementedError


def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    """Return (B, T-1): 1 where ids[:, 1:] is a token that the policy chose, the first stop included, else 0.

    ids (B, T): prompt, completion, padding; prompt_lengths (B,): where the completions begin.
    """
    raise NotImplementedError


def logprobs(logits, ids, temperature):
    """Return log pi of each token ids[:, 1:], at this temperature. logits (B, T, V), ids (B, T) -> (B, T-1)."""
    raise NotImplementedError


def loss(logp, old_logp, advantages, mask, clip, batch_mask):
    """Return the loss of these rows, one number. logp, old_logp, mask (B, T-1); advantages (B,); clip: (low, high).

    The rows may be a part of a batch, whose mask is batch_mask. The losses of the parts are added up.
    """
    raise NotImplementedError


def kl(logp, ref_logp):
    """Estimate the KL to a reference at each token: (B, T-1) -> (B, T-1). Checked, but not used in training."""
    raise NotImplementedError


# ---- Given: how the checker and page.py call them --------------------------------------------------


def extract(text):
    return extract_boxed_answer(text)


def reward(text, truth, finished):
    return float(finished and extract_boxed_answer(text) == truth.strip())


def gradient_of_logprobs(logits, ids, temperature):
    logits = logits.requires_grad_()
    return torch.autograd.grad(logprobs(1 * logits, ids, temperature).sum(), logits)[0]


def gradient_of_kl(logp, ref_logp):
    logp = logp.requires_grad_()
    return torch.autograd.grad(kl(logp, ref_logp).sum(), logp)[0]


def compute_grpo_loss(model, ids, real, start, rewards, temperature):
    """The loss of page.py: one update per batch, so the old log-probs are the current ones."""
    logp = logprobs(model(ids, real), ids, temperature)
    # There may be several stops: here they all become the first.
    stops = torch.tensor(model.config["eos_token_id"]).flatten()
    one_stop = ids.where(~torch.isin(ids, stops), stops[0])
    # Padding is on the left, so all prompts end in one column.
    widths = torch.full((len(ids),), start)
    mask = completion_mask(one_stop, widths, stops[0], pad_id=0)
    return loss(logp, logp.detach(), advantages(rewards).flatten(), mask, (0.2, 0.2), mask)
