"""check.py - does an implementation of GRPO give the right answers?

    python notebooks/conformance/check.py \\
        notebooks/conformance/adapters/this_project.py
    python notebooks/conformance/check.py ADAPTER.py --explain
        shows the derivation of each wrong case
    python notebooks/conformance/check.py mine.py --mine
        a line for each function, and what to do next

Copy check.py and vectors.json beside your own file, and run `python check.py
mine.py` there: they need nothing else. An adapter is a Python file (or
FILE.py:NAME, a class in it) with any of these functions. They are called by
keyword with float32 tensors (ids are int64), and may return tensors or lists:

    advantages(rewards (P, G)) -> (P, G)
    judged(rewards (P, G)) -> (P, G), the advantages if a verifier has returned
        these rewards, NaN among them
    loss(logp, old_logp, advantages (B,), mask, clip) -> scalar; all others (B,
        T-1), clip is (low, high)
    completion_mask(ids (B, T), prompt_lengths (B,), stop_id, pad_id) -> (B,
        T-1), 1 where ids[:, 1:] is trained
    logprobs(logits (B, T, V), ids (B, T), temperature) -> (B, T-1)
    gradient_of_logprobs: the same arguments -> (B, T, V), the gradient of
        their sum
    kl(logp, ref_logp) -> (B, T-1)
    gradient_of_kl(logp, ref_logp) -> (B, T-1), of the term as it is trained
    reward(text, truth, finished) -> float
    extract(text) -> str or None
    grade(answer, truth) -> bool
    choose(logits (R, V), uniforms (R,), temperature) -> tokens (R,)
    random_numbers(rows, steps, seed) -> (R, steps)
    tokens_read(prompt_length, num_samples, max_new_tokens)
    correction(old_logp, sampled_logp, mask, level, how, low, high) -> (B,
        T-1), the weight of each token if another engine has sampled it: level
        is token or sequence, how is truncate or mask
    trust_region(logp, sampled_logp, advantages (B,), mask, delta) -> scalar: a
        loss that stops tokens whose probability has moved by more than delta
    batch_rewards(returned, count) -> count rewards, or an error, if a reward
        function has returned this list
    turns(prompt, sampled, replies, tokenizer) -> ids (T,), mask (T-1,) of a
        completion of several turns. sampled: the ids of each turn; replies:
        the texts between them; tokenizer: a Words
    padded_logprobs(model, ids, attention_mask) -> (B, T-1)
    after_update(lora) -> log-probs of some tokens under the sampler, the
        trained model, and the model before the update
    step(model, reference, kl_coef, ids, mask, rewards (P, G)): one training
        step on these completions. It does not clip the gradient, and leaves it
        in the model's .grad. model and reference (of a KL term) are Tiny. If
        step takes rank, it gets the rows of this rank's prompts (RANK and
        WORLD_SIZE are set, gloo is initialised)

A function takes further arguments if its project has the feature: loss takes
batch_mask (the mask of the whole batch; the rows may be a micro-batch),
completion_mask tool_mask (B, T), logprobs top_p, top_k and num_tokens, and
step rank. A function that is missing, or that raises NotImplementedError,
counts as not offered. Raise it, for example, if the project refuses some
arguments with a clear error. A loss that divides by a fixed length must divide
by 8. `check.py ADAPTER.py --only step` tests only whole steps, on a model with
48 weights. The exit status is 1 if anything is wrong, or if nothing is
offered; with --mine, until all is right. Choices (G or G - 1, four norms) are
reported and are not mistakes.
"""

import faulthandler
import importlib.util
import inspect
import json
import math
import os
import sys
import tempfile
import textwrap
import traceback
import warnings
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter, namedtuple
from pathlib import Path
from types import SimpleNamespace

import torch

INTEGERS = ("ids", "prompt_lengths", "attention_mask")  # all other lists of numbers are float32
NOT_TENSORS = "clip rows company micro_batches returned words prompt sampled replies".split()
OPTIONAL = {*"tool_mask top_p top_k num_tokens rank".split()}
PER_ROW = "logp old_logp sampled_logp advantages mask".split()


# verdict: ok, MISTAKE or not offered; what: the choice, the mistake, or why it is not offered
Result = namedtuple("Result", "case verdict what", defaults=[""])


def read_cases():
    """Read the cases of vectors.json, in which NaN is written "nan".

    "calls": the arguments of each call of the function; "answers": {name: right output} (several names mean a choice);
    "mistakes": {name: output of a known mistake}; "otherwise": the name of a mistake that has many outputs. "tests",
    "derivation" (how to check the answers by hand) and "run" (what shows in a run) are texts.
    """
    text = Path(__file__).with_name("vectors.json").read_text(encoding="utf-8")
    return json.loads(text.replace('"nan"', "NaN"))


def load_adapter(target):
    """Return the module in that file. For FILE.py:NAME, return that class, or what that function returns."""
    path, _, name = str(target).removesuffix(".py").partition(".py:")
    path = Path(f"{path}.py").resolve()
    spec = importlib.util.spec_from_file_location(f"adapter_{path.stem}", path)
    if spec is None or not path.is_file():
        raise SystemExit(f"error: {path}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    adapter = getattr(module, name) if name else module
    if inspect.isfunction(adapter):
        adapter = SimpleNamespace(__doc__=adapter.__doc__, **adapter())
    adapter.__file__ = target  # another process loads it from there
    return adapter


def adapter_of(target):
    """Load an adapter for a command, which ends with one line if that fails."""
    try:
        return load_adapter(target)
    except (Exception, SystemExit) as error:
        raise SystemExit(f"error: {target}: {type(error).__name__}: {error}") from error


# ---- A model and a tokenizer, in the manner of transformers --------------------------------------


class Output(dict):
    __getattr__ = dict.__getitem__


class Tiny(torch.nn.Module):
    """A causal model with these weights. Its one layer mixes the mean of the embeddings so far into each token's own."""

    device = "cpu"

    def __init__(self, weights):
        super().__init__()
        for name, rows in weights.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(rows)))

    def hidden(self, ids, attention_mask=None, position_ids=None):
        """Map ids (B, T) to hidden states (B, T, C)."""
        seen = torch.ones_like(ids) if attention_mask is None else attention_mask
        if position_ids is None:  # as in transformers
            position_ids = torch.arange(ids.size(1)).expand_as(ids)
        x = (self.tokens[ids] + self.places[position_ids]) * seen[..., None]
        mean = x.cumsum(1) / seen.cumsum(1).clamp(min=1)[..., None]
        return x + torch.tanh(mean @ self.mix)

    def forward(self, input_ids, attention_mask=None, position_ids=None, logits_to_keep=0, **_):
        hidden = self.hidden(input_ids, attention_mask, position_ids)
        return Output(logits=hidden[:, -logits_to_keep:] @ self.head.T)


class Words:
    """A tokenizer with these words. It takes the longest word that fits, so if the tokens a and b are decoded and
    encoded again, they become the token ab."""

    def __init__(self, words):
        self.words = words

    def encode(self, text):
        ids = []
        while text:
            word = max((word for word in self.words if text.startswith(word)), key=len)
            ids.append(self.words.index(word))
            text = text[len(word) :]
        return ids

    def decode(self, ids, skip_special_tokens=False):
        return "".join(self.words[token] for token in ids)


# ---- Arguments in, outputs out -------------------------------------------------------------------


def arguments_of(call):
    """Convert the arguments of a call in vectors.json to what an adapter gets."""
    arguments = {}
    for name, value in call.items():
        if isinstance(value, list) and name not in NOT_TENSORS:
            dtype = "int64" if name in INTEGERS else call.get("dtype", "float32")
            value = torch.tensor(value, dtype=getattr(torch, dtype))
        arguments[name] = tuple(value) if name == "clip" else value
    arguments.pop("dtype", None)
    return arguments


def function_of(adapter, name, arguments=()):
    """Return the adapter's function, which must take these arguments. Raises NotImplementedError."""
    function = getattr(adapter, name, None)
    if function is None:
        raise NotImplementedError(name)
    parameters = inspect.signature(function).parameters
    missing = [argument for argument in arguments if argument not in parameters]
    if missing and OPTIONAL.isdisjoint(missing):
        raise TypeError(f"its arguments are called {', '.join(arguments)}")
    if missing:
        raise NotImplementedError(f"{name} without {', '.join(missing)}")
    return function


def plain(output):
    """Convert tensors to lists, even inside lists. Bools, numbers, texts and None stay as they are."""
    if isinstance(output, (list, tuple)):
        return [plain(inner) for inner in output]
    return output.tolist() if hasattr(output, "tolist") else output


def answer_of(adapter, name, **arguments):
    return function_of(adapter, name, arguments)(**arguments)


def call_loss(adapter, name, micro_batches=(slice(None),), **arguments):
    """Return the gradient of the loss by logp. The losses of micro-batches are added up if the loss takes batch_mask,
    and averaged if not."""
    loss = function_of(adapter, name, arguments)
    whole = "batch_mask" in inspect.signature(loss).parameters  # it knows the batch: losses add up
    more = {"batch_mask": arguments["mask"]} if whole else {}
    logp = arguments["logp"].requires_grad_()
    total = 0.0
    for rows in micro_batches:
        some = {key: value[rows] for key, value in arguments.items() if key in PER_ROW}
        part = loss(**arguments | some, **more)
        if not isinstance(part, torch.Tensor) or part.dim():
            raise ValueError(f"a loss is a tensor of one number, this is {part}")
        total = total + (part if whole else part / len(micro_batches))
    if not total.requires_grad:
        return torch.zeros_like(logp)
    return torch.autograd.grad(total, logp)[0]


def call_random_numbers(adapter, name, rows, company, seed, other_seed):
    """Test three properties of the rows' random numbers."""
    function = function_of(adapter, name)
    first = plain(function(rows=rows, steps=4, seed=seed))
    second = plain(function(rows=company, steps=4, seed=seed))
    third = plain(function(rows=rows, steps=4, seed=other_seed))
    shared = {*rows} & {*company}
    alike = [first[rows.index(row)] == second[company.index(row)] for row in shared]
    return {
        "same in other company": all(alike),
        "rows differ": len({tuple(row) for row in first}) == len(rows),
        "seeds differ": first != third,
    }


def call_correction(adapter, name, **arguments):
    """Return the weights, with 0 where no token was sampled."""
    return answer_of(adapter, name, **arguments) * arguments["mask"]


def call_batch_rewards(adapter, name, **arguments):
    function = function_of(adapter, name, arguments)
    try:
        return [float(reward) for reward in function(**arguments)]
    except NotImplementedError:
        raise
    except Exception:
        return "an error"


def call_turns(adapter, name, **arguments):
    words = Words(arguments.pop("words"))
    return answer_of(adapter, name, **arguments, tokenizer=words)


def call_padded_logprobs(adapter, name, **arguments):
    """Return the log-probs, with 0 unless both a token and the one before it belong to the row."""
    model = Tiny(arguments.pop("weights"))
    seen = arguments["attention_mask"]
    found = answer_of(adapter, name, model=model, **arguments)
    return found * seen[:, 1:] * seen[:, :-1]


def call_after_update(adapter, name, **arguments):
    """Test two properties of the sampler's log-probs after an update."""
    sampler, trained, before = answer_of(adapter, name, **arguments)
    return {
        "the sampler has the new weights": torch.allclose(sampler, trained, atol=1e-5),
        "the update changes the model": not torch.allclose(trained, before, atol=1e-3),
    }


def call_step(adapter, name, **arguments):
    """Return the gradient of each parameter. On two ranks, compare the gradients of the ranks instead."""
    if arguments.pop("ranks", 1) == 2:
        return on_two_ranks(adapter, name, arguments)
    model = Tiny(arguments.pop("weights"))
    reference = arguments.pop("reference", None)
    reference = reference and Tiny(reference)
    answer_of(adapter, name, model=model, reference=reference, **arguments)
    return [param.grad.tolist() for param in model.parameters()]


def on_two_ranks(adapter, name, arguments):
    """Run the step in two processes, each with its own prompt, and in this process with both prompts."""
    function_of(adapter, name, ["rank"])
    whole = call_step(adapter, name, **arguments)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (adapter.__file__, arguments, folder), 2)
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in (0, 1)]
    return {
        "both ranks have one gradient": same(*ranks, 1e-6),
        "it is that of the batch": all(same(rank, whole, 1e-4) for rank in ranks),
    }


def run_rank(rank, path, arguments, folder):
    """Run one of two processes, with the rows of its prompt."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    where = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    rows = len(arguments["ids"]) // 2
    for name, size in (("ids", rows), ("mask", rows), ("rewards", 1)):
        arguments[name] = arguments[name][rank * size :][:size]
    found = call_step(load_adapter(path), "step", **arguments, rank=rank)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.barrier()  # neither leaves while the other still needs it
    torch.distributed.destroy_process_group()
    # A gloo thread that asks for the GIL while Python exits aborts it (pytorch#190489).
    os._exit(0)


def output_of(adapter, name, call):
    return plain(CALLS.get(name, answer_of)(adapter, name, **arguments_of(call)))


CALLS = {name[5:]: call for name, call in globals().items() if name.startswith("call_")}
CALLS["trust_region"] = call_loss


# ---- Verdicts ------------------------------------------------------------------------------------


def same(found, expected, tolerance):
    """Do both have the same form, and the same numbers up to the tolerance? NaN equals NaN."""
    if isinstance(expected, list):
        if not isinstance(found, (list, tuple)) or len(found) != len(expected):
            return False
        return all(same(one, other, tolerance) for one, other in zip(found, expected))
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        both_nan = math.isnan(found) and math.isnan(expected)
        return both_nan or abs(found - expected) <= tolerance
    return found == expected


def judge(adapter, case):
    """Check one case. Returns a Result."""
    try:
        outputs = [output_of(adapter, case["function"], call) for call in case["calls"]]
    except NotImplementedError as error:
        return Result(case, "not offered", str(error))
    except (Exception, SystemExit) as error:
        file = Path(getattr(adapter, "__file__", "")).name
        frames = traceback.extract_tb(error.__traceback__)
        where = [f" (line {one.lineno})" for one in frames if Path(one.filename).name == file]
        said = f"it raises {type(error).__name__}: {error}{''.join(where[-1:])}"
        return Result(case, "MISTAKE", said)
    for verdict, known in (("ok", case["answers"]), ("MISTAKE", case["mistakes"])):
        for name, expected in known.items():
            if same(outputs, expected, case["tolerance"]):
                several = verdict == "MISTAKE" or len(known) > 1
                return Result(case, verdict, name if several else "")
    answers = [*case["answers"].values()]
    wanted = {shape(answer[0]) for answer in answers}
    if shape(outputs[0]) not in wanted and wanted != {()}:
        found = (
            f"its shape is {shape(outputs[0])}" if shape(outputs[0]) else f"it returns {outputs[0]}"
        )
        return Result(case, "MISTAKE", f"{found}, and should be {' or '.join(map(str, wanted))}")
    number = next(
        i for i, one in enumerate(outputs) if not same(one, answers[0][i], case["tolerance"])
    )
    right = {repr(shortened(answer[number])): None for answer in answers}
    other = f"another answer: {shortened(outputs[number])!r}, right is {' or '.join(right)}"
    return Result(case, "MISTAKE", case.get("otherwise", other))


def shape(value):
    return (len(value), *shape(value[0])) if isinstance(value, list) and value else ()


def shortened(value):
    if isinstance(value, (list, tuple)):
        return [shortened(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def check(adapter, cases=None):
    """Check an adapter. Returns a Result for each case."""
    return [judge(adapter, case) for case in (read_cases() if cases is None else cases)]


def say(text):
    print(textwrap.fill(text, 79, subsequent_indent=" " * 12, break_on_hyphens=False))


STEPS = {  # a function of the kit: the function of notebooks/build that it tests
    "extract": "extract_boxed_answer",
    "reward": "extract_boxed_answer",
    "advantages": "advantages",
    "completion_mask": "completion_mask",
    "logprobs": "logprobs",
    "gradient_of_logprobs": "logprobs",
    "loss": "loss",
    "kl": "kl",
    "gradient_of_kl": "kl",
}


def tell_steps(results, file):
    """Print a line for each function that is written, and what to do next. Returns the exit status."""
    steps = {name: [] for name in STEPS.values()}
    for result in results:
        name = STEPS.get(result.case["function"], result.case["function"])
        if result.verdict != "not offered":
            steps.setdefault(name, []).append(result)
    todo = []
    for number, (name, found) in enumerate(steps.items(), 1):
        wrong = [result for result in found if result.verdict == "MISTAKE"]
        if wrong:
            say(f"{number} {name:22}wrong in {len(wrong)} of {len(found)} cases: {wrong[0].what}")
        elif found:
            choices = [f": {result.what}" for result in found if result.what] or [""]
            say(f"{number} {name:22}right in {len(found)} cases{choices[0]}")
        if wrong or not found and name != "kl":
            todo.append((not wrong, number, name, wrong[:1]))  # fix first
    if not todo:
        print(f"\nnext: train with it: python notebooks/page.py --step {file}")
        return 0
    _, number, name, wrong = min(todo)
    verb = "fix" if wrong else "write"
    print(f"\nnext: {verb} {name} (notebooks/build/README.md, section {number})")
    for result in wrong:
        say(f"case:     {result.case['name']}: {result.case['tests']}")
        say(f"call:     {str(result.case['calls'][0])[:300]}")
        say(f"by hand:  {result.case['derivation']}")
    return 1


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("adapter", help="a file with some of the functions, or FILE.py:CLASS")
    parser.add_argument("--explain", action="store_true", help="show derivations of wrong cases")
    parser.add_argument("--only", default="", help="check only cases whose names begin with this")
    parser.add_argument("--mine", action="store_true", help="for students: say what to do next")
    flags = parser.parse_args(argv)
    cases = [case for case in read_cases() if case["name"].startswith(flags.only)]
    if not cases:
        parser.error(f"--only {flags.only}: no case's name begins so")
    adapter = adapter_of(flags.adapter)
    warnings.filterwarnings("ignore", "std.*degrees of freedom")
    if flags.mine:
        # A student's loop may never end.
        faulthandler.dump_traceback_later(15, exit=True, file=sys.__stderr__)
    results = check(adapter, cases)
    if flags.mine:
        faulthandler.cancel_dump_traceback_later()
        return tell_steps(results, flags.adapter)
    for result in results:
        missing = result.verdict == "not offered"
        what = f"not offered ({result.what})" if missing else result.what
        say(f"{'-' if missing else result.verdict:8}{result.case['name']}{what and ': ' + what}")
        if result.verdict == "MISTAKE":
            say(f"{'':10}in a run: {result.case['run']}")
            if flags.explain:
                say(f"{'':10}tested: {result.case['tests']}")
                say(f"{'':10}by hand: {result.case['derivation']}")
    found = Counter(result.verdict for result in results)
    wrong = found["MISTAKE"]
    left = found["not offered"]
    if left == len(results):
        say(f"error: {flags.adapter} has none of these functions (a class? FILE.py:NAME)")
    print(f"{found['ok']} ok, {wrong} wrong, {left} not offered, of {len(results)} cases")
    return int(wrong > 0 or left == len(results))


if __name__ == "__main__":
    sys.exit(main())
