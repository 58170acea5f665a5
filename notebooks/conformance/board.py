"""board.py - check an adapter, and save its results in verdicts.json.

    cd notebooks/conformance
    python board.py adapters/trl_grpo.py trl torch transformers math-verify
    KIT_SRC=.. python board.py adapters/peers.py:nanochat

Notebook 9 makes its board from verdicts.json. After the adapter, name the
packages whose versions should be saved. The adapter's docstring is saved up to
its first colon, because it begins with the project and its commit. KIT_SRC is
the folder of the checkouts, each under its project's name and at that commit:

    git clone https://github.com/karpathy/nanochat $KIT_SRC/nanochat
    git -C $KIT_SRC/nanochat checkout 92d63d4
"""

import ast
import datetime
import json
import os
import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).resolve().parent))  # if it is started as a module

import check
import torch

KEPT = Path(__file__).with_name("verdicts.json")
CHECKOUTS = Path(os.environ.get("KIT_SRC", "KIT_SRC-is-not-set"))

# ---- What adapters of others need ----------------------------------------------------------------


def functions(name, *wanted, **given):
    """Execute the functions, methods and classes of these names, unchanged from that file, with `given` as its globals.

    This is for files that cannot be imported because they need packages for a GPU. Functions of the file that they use
    come with them, and so do its imports of Python's own modules, torch and numpy. Decorators of functions
    (torch.compile, no_grad) are left out.
    """
    tree = ast.parse(Path(CHECKOUTS, name).read_text(encoding="utf-8"))
    own = rf"(import|from) ({'|'.join([*sys.stdlib_module_names, 'torch', 'numpy'])})\b"
    imports = [node for node in tree.body if re.match(own, ast.unparse(node))]
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    defined = {node.name: node for node in statements if hasattr(node, "name")}
    todo = [*wanted]
    found = {}
    while todo:
        node = defined.get(todo.pop())
        if node and node.name not in {*found, *given}:
            found[node.name] = node
            todo += [used.id for used in ast.walk(node) if isinstance(used, ast.Name)]
            if not isinstance(node, ast.ClassDef):
                node.decorator_list = []
    lazy = ast.parse("from __future__ import annotations").body
    scope = {}
    exec(compile(ast.Module(lazy + imports + [*found.values()], []), name, "exec"), scope)
    scope |= given
    return SimpleNamespace(**{one: scope[one] for one in wanted})


class Stub(dict):
    """A tokenizer, model, batch or config with these attributes. Other attributes are empty stubs. A call returns the
    stub itself."""

    def __getattr__(self, name):
        return self.get(name, Stub())

    def __call__(self, *_, **__):
        return self

    to = __call__


def needs(condition, why):
    """Raise NotImplementedError, so that the case counts as not offered, unless the condition holds."""
    if not condition:
        raise NotImplementedError(why)


def offers(*functions, **others):
    """Make an adapter of these functions, by their names."""
    return {function.__name__: function for function in functions} | others


def gradient_of(kl):
    """Return gradient_of_kl for a project that adds this KL term to its loss."""

    def gradient_of_kl(logp, ref_logp):
        logp = logp.requires_grad_()
        return torch.autograd.grad(kl(logp, ref_logp).sum(), logp)[0]

    return gradient_of_kl


def row_by_row(mask_of):
    """Make a completion_mask from mask_of(prompt, completion, stop_id, pad_id), which marks the completion's ids that
    are trained."""

    def completion_mask(ids, prompt_lengths, stop_id, pad_id):
        mask = torch.zeros(len(ids), ids.size(1) - 1)
        for row, start in enumerate(prompt_lengths.tolist()):
            found = mask_of(ids[row, :start], ids[row, start:], stop_id, pad_id)
            mask[row, start - 1 :][: len(found)] = torch.as_tensor(found)
        return mask

    return completion_mask


# ---- The command ---------------------------------------------------------------------------------


def cases_of(adapter):
    """Return {case: [verdict, explanation]} for the cases that the adapter offers."""
    found = {one.case["name"]: [one.verdict, one.what] for one in check.check(adapter)}
    return {name: kept for name, kept in found.items() if kept[0] != "not offered"}


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="ADAPTER", help="FILE.py, or FILE.py:NAME")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    args = parser.parse_args(argv)
    adapter = check.adapter_of(args.target)
    if not adapter.__doc__:
        parser.error(f"{args.target}: its docstring must begin with the project's name and a colon")
    target, packages = args.target, args.packages
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    kept[target.removesuffix(".py").split("/")[-1].split(":")[-1]] = {
        "project": adapter.__doc__.split(":")[0],
        "versions": {package: version(package) for package in packages},
        "date": str(datetime.date.today()),
        "cases": cases_of(adapter),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(kept.items())]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
