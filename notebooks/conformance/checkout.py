"""checkout.py - a project's own functions out of a checkout, for adapters of projects that are no packages.

KIT_SRC is the folder that holds the checkouts, each under its project's name, at the commit that the adapter names:

    git clone https://github.com/karpathy/nanochat $KIT_SRC/nanochat && git -C $KIT_SRC/nanochat checkout 92d63d4
    KIT_SRC=... python notebooks/conformance/check.py notebooks/conformance/adapters/nanochat.py
"""

import ast
import os
from pathlib import Path
from types import SimpleNamespace

import torch


def path_of(name):
    path = Path(os.environ.get("KIT_SRC", "KIT_SRC-is-not-set"), name)
    if not path.exists():
        raise FileNotFoundError(path)
    return path


def functions(name, *wanted, **given):
    """The functions, methods and classes of these names, executed as they stand in that file, with given as its globals.

    For files that cannot be imported since they need a GPU's packages. Decorators of functions (torch.compile, no_grad)
    are left out.
    """
    tree = ast.parse(path_of(name).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name in wanted]
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            node.decorator_list = []
    lazy = ast.parse("from __future__ import annotations").body
    scope = {"torch": torch, "F": torch.nn.functional, "nn": torch.nn, **given}
    exec(compile(ast.Module(lazy + nodes, []), name, "exec"), scope)
    return SimpleNamespace(**{one: scope[one] for one in wanted})


class Stub(dict):
    """A tokenizer, model, batch or config that has what it is given; called, or put on a device, it is itself."""

    __getattr__ = dict.__getitem__

    def __call__(self, *_, **__):
        return self

    to = __call__


def gradient_of(kl):
    """The gradient_of_kl of a project that adds this term to its loss."""

    def gradient_of_kl(logp, ref_logp):
        logp = logp.requires_grad_()
        return torch.autograd.grad(kl(logp, ref_logp).sum(), logp)[0]

    return gradient_of_kl


def row_by_row(mask_of):
    """A completion_mask out of mask_of(prompt, completion, stop_id, pad_id) -> which of the completion's ids are trained."""

    def completion_mask(ids, prompt_lengths, stop_id, pad_id):
        mask = torch.zeros(len(ids), ids.size(1) - 1)
        for row, start in enumerate(prompt_lengths.tolist()):
            found = mask_of(ids[row, :start], ids[row, start:], stop_id, pad_id)
            mask[row, start - 1 :][: len(found)] = torch.as_tensor(found)
        return mask

    return completion_mask


def one_width(prompt_lengths):
    """The length of the prompts, for projects whose batch has one."""
    if len(set(prompt_lengths.tolist())) > 1:
        raise NotImplementedError("all prompts of a batch have one width")
    return int(prompt_lengths[0])
