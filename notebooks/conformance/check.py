"""check.py - does an implementation of GRPO give the right answers?  It needs torch, and what the adapter imports.

    python notebooks/conformance/check.py notebooks/conformance/adapters/this_project.py
    python notebooks/conformance/check.py ADAPTER.py --explain      with the derivation of each wrong case

An adapter is a Python file (or FILE.py:NAME, a class in it) with any of these functions, called by keyword with
float32 tensors (ids are int64):

    advantages(rewards (P, G)) -> (P, G)          judged(rewards (P, G)) -> the same, where a verifier returned NaN
    loss(logp, old_logp, advantages (B,), mask, clip) -> scalar           the others (B, T-1); clip is (low, high)
    completion_mask(ids (B, T), prompt_lengths (B,), stop_id, pad_id) -> (B, T-1), 1 where ids[:, 1:] is trained
    logprobs(logits (B, T, V), ids (B, T), temperature) -> (B, T-1)
    kl(logp, ref_logp) -> (B, T-1)          gradient_of_kl(logp, ref_logp) -> (B, T-1), of the term as it is trained
    reward(text, truth, finished) -> float          extract(text) -> str or None          grade(answer, truth) -> bool
    choose(logits (R, V), uniforms (R,), temperature) -> tokens (R,)
    random_numbers(rows, steps, seed) -> (R, steps)         tokens_read(prompt_length, num_samples, max_new_tokens)

Further arguments, which a function takes if its project has the thing: batch_mask of loss (the mask of the whole batch,
when the rows are a micro-batch), tool_mask (B, T) of completion_mask, top_p, top_k and num_tokens of logprobs. What is
missing, or raises NotImplementedError (say for what a project refuses with a clear error), counts as not offered. A loss that divides by a fixed length takes 8 for it.
The exit status is 1 if anything is wrong. What is a choice (G or G - 1, four norms) is reported, not judged.
"""

import argparse
import importlib.util
import inspect
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
INTEGERS = ("ids", "prompt_lengths")  # all other lists of numbers are float32
NOT_TENSORS = ("clip", "rows", "company", "micro_batches")


@dataclass
class Result:
    case: dict
    verdict: str  # ok, MISTAKE or not offered
    what: str = ""  # the choice, the mistake, or why it is not offered


class NotOffered(Exception):
    """The adapter lacks the function, or one of its arguments."""


def read_cases(path=HERE / "vectors.json"):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def load_adapter(path):
    """The module in that file, or of FILE.py:NAME the class in it."""
    path, _, name = str(path).removesuffix(".py").partition(".py:")
    path = Path(f"{path}.py").resolve()
    spec = importlib.util.spec_from_file_location(f"adapter_{path.stem}", path)
    if spec is None or not path.is_file():
        raise SystemExit(f"{path}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name) if name else module


# ---- Arguments in, outputs out -------------------------------------------------------------------


def numbers(value):
    """Nested lists with "nan" as numbers."""
    if isinstance(value, list):
        return [numbers(inner) for inner in value]
    return math.nan if value == "nan" else value


def arguments_of(call):
    """The arguments of a call of vectors.json as an adapter gets them."""
    dtype = getattr(torch, call.get("dtype", "float32"))
    arguments = {}
    for name, value in call.items():
        if name == "clip":
            value = tuple(value)
        elif isinstance(value, list) and name not in NOT_TENSORS:
            value = torch.tensor(numbers(value), dtype=torch.long if name in INTEGERS else dtype)
        if name != "dtype":
            arguments[name] = value
    return arguments


def function_of(adapter, name, arguments=()):
    """The adapter's function, which must take these arguments. Raises NotOffered."""
    function = getattr(adapter, name, None)
    if function is None:
        raise NotOffered(name)
    parameters = inspect.signature(function).parameters
    missing = [argument for argument in arguments if argument not in parameters]
    if missing:
        raise NotOffered(f"{name} without {', '.join(missing)}")
    return function


def plain(output):
    """A tensor as lists; bool, number, text and None as they are."""
    return output.detach().tolist() if isinstance(output, torch.Tensor) else output


def call_loss(adapter, arguments):
    """The gradient of the loss by logp; of a batch in micro-batches: all of theirs together."""
    micro_batches = arguments.pop("micro_batches", None)
    loss = function_of(adapter, "loss", arguments)
    logp = arguments.pop("logp").requires_grad_()
    if micro_batches is None:
        total = loss(logp=logp, **arguments)
    else:
        whole = "batch_mask" in inspect.signature(loss).parameters
        total = 0.0
        for rows in micro_batches:
            some = {name: arguments[name][rows] for name in ("old_logp", "advantages", "mask")}
            if whole:  # the adapter knows the batch, and its losses add up
                some["batch_mask"] = arguments["mask"]
            part = loss(logp=logp[rows], clip=arguments["clip"], **some)
            total = total + (part if whole else part / len(micro_batches))
    if not total.requires_grad:
        return torch.zeros_like(logp)
    return torch.autograd.grad(total, logp)[0]


def call_random_numbers(adapter, rows, company, seed, other_seed):
    """What holds for the random numbers of the rows: three properties."""
    function = function_of(adapter, "random_numbers")
    first = torch.as_tensor(function(rows=rows, steps=4, seed=seed))
    second = torch.as_tensor(function(rows=company, steps=4, seed=seed))
    third = torch.as_tensor(function(rows=rows, steps=4, seed=other_seed))
    shared = [row for row in rows if row in company]
    return {
        "same in other company": all(
            torch.equal(first[rows.index(row)], second[company.index(row)]) for row in shared
        ),
        "rows differ": len({tuple(row.tolist()) for row in first}) == len(rows),
        "seeds differ": not torch.equal(first, third),
    }


def output_of(adapter, name, call):
    arguments = arguments_of(call)
    if name == "loss":
        return plain(call_loss(adapter, arguments))
    if name == "random_numbers":
        return call_random_numbers(adapter, **arguments)
    return plain(function_of(adapter, name, arguments)(**arguments))


# ---- Verdicts ------------------------------------------------------------------------------------


def same(found, expected, tolerance):
    """Equal in form, and in numbers up to the tolerance; NaN is equal to NaN."""
    if isinstance(expected, dict):
        return found == expected
    if isinstance(expected, list):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return False
        return all(same(one, other, tolerance) for one, other in zip(found, expected))
    if expected == "nan":
        return isinstance(found, float) and math.isnan(found)
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return abs(found - expected) <= tolerance
    return found == expected


def judge(adapter, case):
    """-> Result."""
    try:
        outputs = [output_of(adapter, case["function"], call) for call in case["calls"]]
    except (NotOffered, NotImplementedError) as error:
        return Result(case, "not offered", str(error))
    except Exception as error:
        return Result(case, "MISTAKE", f"it raises {type(error).__name__}: {error}")
    for verdict, known in (("ok", case["answers"]), ("MISTAKE", case["mistakes"])):
        for name, expected in known.items():
            if same(outputs, expected, case["tolerance"]):
                several = verdict == "MISTAKE" or len(known) > 1
                return Result(case, verdict, name if several else "")
    right = " or ".join(str(shortened(answer)) for answer in case["answers"].values())
    other = f"another answer: {shortened(outputs)}, right is {right}"
    return Result(case, "MISTAKE", case.get("otherwise", other))


def shortened(value):
    if isinstance(value, (list, tuple)):
        return [shortened(inner) for inner in value]
    return round(value, 10) if isinstance(value, float) else value


def check(adapter, cases=None):
    """-> one Result for each case."""
    return [judge(adapter, case) for case in (read_cases() if cases is None else cases)]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "adapter", help="a Python file with some of the functions, or FILE.py:CLASS"
    )
    parser.add_argument("--explain", action="store_true", help="the derivation of wrong cases")
    flags = parser.parse_args(argv)
    results = check(load_adapter(flags.adapter))
    for result in results:
        label = {"ok": "ok", "MISTAKE": "MISTAKE", "not offered": "-"}[result.verdict]
        what = f": {result.what}" if result.what else ""
        what = f": not offered ({result.what})" if result.verdict == "not offered" else what
        print(f"{label:8}{result.case['name']}{what}")
        if result.verdict == "MISTAKE":
            print(f"{'':8}  in a run: {result.case['run']}")
            if flags.explain:
                print(f"{'':8}  tested: {result.case['tests']}")
                print(f"{'':8}  by hand: {result.case['derivation']}")
    verdicts = [result.verdict for result in results]
    wrong = verdicts.count("MISTAKE")
    print(
        f"{verdicts.count('ok')} ok, {wrong} wrong, {verdicts.count('not offered')} not offered, "
        f"of {len(results)} cases"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
