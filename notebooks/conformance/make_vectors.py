"""make_vectors.py - write vectors.json: the cases of the conformance kit, each small enough to check by hand.

    python notebooks/conformance/make_vectors.py

Every right answer here is derived in plain Python, out of the formula, with no function of this project: the project's
own functions derive it a second time when `check.py adapters/this_project.py` runs. The answers of known mistakes are
derived in the same way. A case is a function here; the first line of its docstring is its name, and below stand

    tests             what it is about
    derivation        how to check the answer by hand
    run               how one notices the mistake in a run, and which column of metrics.jsonl shows it

It gives

    calls             the arguments of the adapter's function that @case names, once for each call
    answers           {name: outputs}: right; if there are several, the difference is a choice
    mistakes          {name: outputs}: what a known mistake gives; otherwise: its name if it gives many things

For the function loss an output is the gradient by logp: the value of a loss may differ by a constant.
"""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).parent
NAN = "nan"  # JSON has no other word for it


CASES = []


def case(function):
    """The decorated function is a case for this function of an adapter."""

    def keep(make):
        name, *texts = re.split(r"\n\s*(tests|derivation|run): ", make.__doc__)
        told = {texts[i]: " ".join(texts[i + 1].split()) for i in range(0, len(texts), 2)}
        CASES.append({"name": name.strip(), "function": function} | make() | told)
        return make

    return keep


def given(calls, answers, mistakes, tolerance=1e-4, **more):
    found = {"calls": calls, "answers": answers, "mistakes": mistakes}
    return {**found, "tolerance": tolerance, **more}


# ---- Advantages ----------------------------------------------------------------------------------


def normalised(numbers, divisor):
    """(x - mean) / std with the sum of squares divided by that divisor; not scaled if it is None."""
    exact = [Fraction(number) for number in numbers]
    mean = sum(exact) / len(exact)
    if divisor is None:
        return [float(number - mean) for number in exact]
    std = math.sqrt(sum((number - mean) ** 2 for number in exact) / divisor)
    return [float(number - mean) / std if std else 0.0 for number in exact]


def reshape(numbers, width):
    return [numbers[start : start + width] for start in range(0, len(numbers), width)]


def interleaved(rewards, divisor):
    """The mistake: the rows of a group are taken to lie P apart, and they lie side by side."""
    flat = sum(rewards, [])
    P = len(rewards)
    result = [0.0] * len(flat)
    for p in range(P):
        result[p::P] = normalised(flat[p::P], divisor)
    return reshape(result, len(rewards[0]))


@case("advantages")
def advantages_std_of_the_group():
    """advantages: std of the group

    tests: (R - mean) / std, where mean and std are those of one prompt's completions
    derivation: 1, 0, 0, 0: mean 1/4, variance 3/16 with G (1/4 with G - 1), so 3/4 / sqrt(3/16) = 1.732 (1.5).
    run: Hard to see: without a baseline grad_norm is half as large, and accuracy much the same in a short run.
    """
    rewards = [[1, 0, 0, 0], [1, 1, 1, 0]]
    flat = sum(rewards, [])
    return given(
        [{"rewards": rewards}],
        {
            "std with G": [[normalised(row, 4) for row in rewards]],
            "std with G - 1": [[normalised(row, 3) for row in rewards]],
            "not divided by a std": [[normalised(row, None) for row in rewards]],
        },
        {
            "normalised over the batch, not the group": [reshape(normalised(flat, 8), 4)],
            "normalised over the batch with B - 1": [reshape(normalised(flat, 7), 4)],
            "no baseline: the rewards themselves": [rewards],
        },
        tolerance=1e-3,
    )


@case("advantages")
def advantages_rows_of_a_group():
    """advantages: rows of a group

    tests: rows p*G .. p*G + G-1 are the group of prompt p; repeat(G) and repeat_interleave(G) differ
    derivation: 1, 0, 0: mean 1/3, variance 2/9 (1/3 with G - 1): 1.414, -0.707, -0.707 (1.155, -0.577, -0.577).
    run: Not at all in a short run: the baseline is that of other prompts, and every column looks as usual.
    """
    rewards = [[1, 0, 0], [1, 1, 0]]
    return given(
        [{"rewards": rewards}],
        {
            "std with G": [[normalised(row, 3) for row in rewards]],
            "std with G - 1": [[normalised(row, 2) for row in rewards]],
            "not divided by a std": [[normalised(row, None) for row in rewards]],
        },
        {
            "groups are read across prompts": [interleaved(rewards, 3)],
            "groups are read across prompts, G - 1": [interleaved(rewards, 2)],
            "groups are read across prompts, no std": [interleaved(rewards, None)],
        },
        tolerance=1e-3,
    )


@case("advantages")
def advantages_equal_rewards():
    """advantages: equal rewards

    tests: equal rewards carry no signal, although their mean in fp32 may differ from them in the last bit
    derivation: Each reward equals the mean, so each difference is 0, whatever it is divided by.
    run: grad_norm is not 0 in steps in which mixed is 0.
    """
    return given(
        [{"rewards": [[1.1] * 7, [0.7] * 7]}],
        {"0": [[[0.0] * 7, [0.0] * 7]]},
        {},
        otherwise="a rounding error of the mean is divided by a tiny std, and becomes a signal",
        tolerance=1e-3,
    )


@case("advantages")
def advantages_a_group_of_one():
    """advantages: a group of one

    tests: a group of one has nothing to be compared with
    derivation: R - mean = 0. With G - 1 its std is 0/0. Without a baseline it is REINFORCE.
    run: loss and grad_norm are NaN in the first step.
    """
    return given(
        [{"rewards": [[1], [0]]}],
        {"0": [[[0.0], [0.0]]], "the reward itself: no baseline": [[[1.0], [0.0]]]},
        {"NaN: the std of one number with G - 1": [[[NAN], [NAN]]]},
        tolerance=1e-3,
    )


@case("judged")
def advantages_a_verifier_that_returns_nan():
    """advantages: a verifier that returns NaN

    tests: a verifier that fails, on a text that a policy wrote, must neither poison the batch nor pay
    derivation: 1, 0, 1/2, 1/4: mean 7/16. Or 1, 1/2, 1/4: mean 7/12, and the failed one gets 0.
    run: loss is NaN from one step to the next; the column failed says why.
    """
    as_zero = [1, 0, 0.5, 0.25]
    as_mean = [1, Fraction(7, 12), 0.5, 0.25]

    def left_out(divisor):
        first, *others = normalised([1, 0.5, 0.25], divisor)
        return [[[first, 0.0, *others]]]

    return given(
        [{"rewards": [[1, NAN, 0.5, 0.25]]}],
        {
            "it counts as 0; std with G": [[normalised(as_zero, 4)]],
            "it counts as 0; std with G - 1": [[normalised(as_zero, 3)]],
            "it counts as 0; not divided by a std": [[normalised(as_zero, None)]],
            "it is left out; std with G": left_out(3),
            "it is left out; std with G - 1": left_out(2),
            "it is left out; not divided by a std": left_out(None),
        },
        {
            "the whole group is NaN": [[[NAN] * 4]],
            "a failed verifier pays like the mean of the others": [[normalised(as_mean, 4)]],
        },
        tolerance=1e-3,
    )


# ---- Loss ----------------------------------------------------------------------------------------


def one_token(ratio, advantage, clip=(0.2, 0.2)):
    """The arguments of loss for one row of one token."""
    return {
        "logp": [[math.log(ratio) - 1]],
        "old_logp": [[-1.0]],
        "advantages": [advantage],
        "mask": [[1]],
        "clip": list(clip),
    }


def each(gradients):
    return [[[gradient]] for gradient in gradients]


@case("loss")
def loss_the_first_update():
    """loss: the first update

    tests: in the first update pi = pi_old: the ratio is 1, but its gradient is not 0
    derivation: d/dlogp of -exp(logp - old) A at logp = old is -A.
    run: grad_norm is 0, or reward falls from the first steps on.
    """
    return given(
        [one_token(1.0, 2.0), one_token(1.0, -1.0)],
        {"-A": each([-2, 1])},
        {
            "no gradient: the ratio is computed without one": each([0, 0]),
            "the sign is reversed": each([2, -1]),
        },
    )


@case("loss")
def loss_clip_at_both_signs():
    """loss: clip at both signs

    tests: what moved too far already gains nothing more; what moved the wrong way may always come back
    derivation: d/dlogp of -min(r A, clip(r) A) is -r A where r A is the smaller of the two, and 0 where the clipped
        one is. r = 1.5, A = -1: min(-1.5, -1.2) = -1.5 is not the clipped one, so the gradient is 1.5.
    run: updates_per_batch above 1: clipped is larger in some steps; on one seed this is hard to tell.
    """
    ratios_and_advantages = [(1.5, 1.0), (1.5, -1.0), (0.5, 1.0), (0.5, -1.0)]
    return given(
        [one_token(*pair) for pair in ratios_and_advantages],
        {"PPO's min": each([0, 1.5, -0.5, 0])},
        {
            "max for min: clipped on the wrong side": each([-1.5, 0, 0, 0.5]),
            "clipped ratio without the min": each([0, 0, 0, 0]),
            "negative advantages are clipped on the wrong side": each([0, 0, -0.5, 0.5]),
            "not clipped": each([-1.5, 1.5, -0.5, 0.5]),
            "the ratio is always 1": each([-1, 1, -1, 1]),
        },
    )


@case("loss")
def loss_three_updates():
    """loss: three updates

    tests: three updates on the same completions: the old log-probs stay those of the policy that sampled
    derivation: log r = 0, 0.1, 0.3: r = 1, 1.105, 1.350, and the last one is above 1.2.
    run: clipped stays 0 although updates_per_batch is above 1.
    """
    ratios = [1.0, math.exp(0.1), math.exp(0.3)]
    return given(
        [one_token(ratio, 1.0) for ratio in ratios],
        {"-r A, then clipped": each([-1, -math.exp(0.1), 0])},
        {
            "the ratio is always 1": each([-1, -1, -1]),
            "not clipped": each([-ratio for ratio in ratios]),
            "the ratio is inverted": each([1, math.exp(-0.1), math.exp(-0.3)]),
        },
    )


@case("loss")
def loss_clip_higher():
    """loss: clip-higher

    tests: DAPO's clip-higher: ratios from 1 - 0.2 to 1 + 0.28
    derivation: d/dlogp of -min(r A, clip(r) A) is -r A where r A is the smaller of the two, and 0 where the clipped
        one is. 1.25 is below 1.28, 0.75 is below 0.8, and 1.5 above 1.28.
    run: clipped hardly differs between --clip 0.2 0.2 and --clip 0.2 0.28.
    """
    return given(
        [
            one_token(1.25, 1.0, (0.2, 0.28)),
            one_token(0.75, -1.0, (0.2, 0.28)),
            one_token(1.5, 1.0, (0.2, 0.28)),
        ],
        {"low and high": each([-1.25, 0, 0])},
        {
            "the low one is used for both": each([0, 0, 0]),
            "low and high are exchanged": each([0, 0.75, 0]),
            "the high one is used for both": each([-1.25, 0.75, 0]),
            "not clipped": each([-1.25, 0.75, -1.5]),
        },
    )


def tokens_case(lengths, width, advantages):
    """All log-probs -1, so every ratio is 1 and the gradient shows the weights of the tokens."""
    rows = [[-1.0] * width for _ in lengths]
    mask = [[int(column < length) for column in range(width)] for length in lengths]
    return {
        "logp": rows,
        "old_logp": rows,
        "advantages": advantages,
        "mask": mask,
        "clip": [0.2, 0.2],
    }


CONSTANT = 8  # an adapter of a project that divides by a fixed length takes this one


def weighted(lengths, width, advantages, weight):
    """The gradient -weight * A of each token of a completion, and 0 behind it."""
    gradient = []
    for row, length in enumerate(lengths):
        inside = [-weight(row) * advantages[row]] * length
        gradient.append(inside + [0.0] * (width - length))
    return gradient


def norms(lengths, width, advantages):
    """The gradients with the four usual normalisations."""
    B = len(lengths)
    weights = {
        "token": lambda row: 1 / sum(lengths),
        "sequence": lambda row: 1 / (B * max(1, lengths[row])),
        "constant": lambda row: 1 / (B * CONSTANT),
        "sum": lambda row: 1 / B,
    }
    return {name: weighted(lengths, width, advantages, weight) for name, weight in weights.items()}


@case("loss")
def loss_normalisation():
    """loss: normalisation

    tests: which of the four usual means the loss is; two more columns of padding must change nothing
    derivation: token: every token of the batch weighs 1/4; sequence: 1/2 and 1/2/3; sum: 1/2; constant: 1/2/8.
    run: Not in a column: with sequence, each token of a long wrong completion is punished less.
    """
    advantages = [1.0, -1.0]
    narrow = norms([1, 3], 3, advantages)
    wide = norms([1, 3], 5, advantages)
    padded = [
        weighted([1, 3], width, advantages, lambda row, width=width: 1 / (2 * width))
        for width in (3, 5)
    ]
    return given(
        [tokens_case([1, 3], 3, advantages), tokens_case([1, 3], 5, advantages)],
        {name: [narrow[name], wide[name]] for name in narrow},
        {
            "padding counts in the mean": padded,
            "the sign is reversed": [
                [[-number for number in row] for row in narrow["token"]],
                [[-number for number in row] for row in wide["token"]],
            ],
        },
    )


@case("loss")
def loss_an_empty_completion():
    """loss: an empty completion

    tests: a completion of no trained tokens has no gradient and breaks nothing
    derivation: token: 1/4 each; sequence: 1/3/3 and 1/3; sum: 1/3; constant: 1/3/8.
    run: loss and grad_norm are NaN in some steps only.
    """
    advantages = [1.0, -1.0, 1.0]
    empty = norms([3, 0, 1], 3, advantages)
    return given(
        [tokens_case([3, 0, 1], 3, advantages)],
        {
            **{name: [gradient] for name, gradient in empty.items()},
            "sequence, without the empty ones": [
                weighted([3, 0, 1], 3, advantages, lambda row: (1 / 6, 0, 1 / 2)[row])
            ],
        },
        {
            "NaN: 0 / 0": [
                weighted([3, 3, 1], 3, advantages, lambda row: (1 / 9, math.nan, 1 / 3)[row])
            ]
        },
        otherwise="the empty row changes the gradient of the others, or makes it NaN",
    )


@case("loss")
def loss_micro_batches():
    """loss: micro-batches

    tests: the gradient of a batch in two micro-batches is the gradient of the batch
    derivation: 12 tokens: 1/12 each. With own means: 1/4/2 in the first half, 1/8/2 in the second.
    run: grad_norm and the course of a run change with --micro-batch-tokens.
    """
    lengths = [1, 3, 2, 6]
    advantages = [1.0, 1.0, -1.0, -1.0]
    whole = norms(lengths, 6, advantages)
    own_means = weighted(
        lengths, 6, advantages, lambda row: 1 / (2 * sum(lengths[row // 2 * 2 : row // 2 * 2 + 2]))
    )
    return given(
        [{**tokens_case(lengths, 6, advantages), "micro_batches": [[0, 1], [2, 3]]}],
        {name: [gradient] for name, gradient in whole.items()},
        {"each micro-batch is divided by its own number of tokens": [own_means]},
    )


# ---- Masks ---------------------------------------------------------------------------------------


def spans(width, *rows):
    """Masks (B, width): 1 for ids[:, t+1] with t+1 in start .. end-1."""
    masks = []
    for start, end in rows:
        masks.append([int(start <= column < end) for column in range(1, width + 1)])
    return masks


def masks(ids, prompts, right, mistakes, stop, pad):
    """right, and each mistake: the span of each row."""
    width = len(ids[0]) - 1
    call = {"ids": ids, "prompt_lengths": prompts, "stop_id": stop, "pad_id": pad}
    mistakes = {
        "one too early": [(start - 1, end - 1) for start, end in right],
        "one too late": [(start + 1, end + 1) for start, end in right],
        "the prompt is trained too": [(1, end) for _, end in right],
        **mistakes,
    }
    found = {name: [spans(width, *rows)] for name, rows in mistakes.items()}
    found = {name: mask for name, mask in found.items() if mask != [spans(width, *right)]}
    trained = ", ".join(f"{start} to {end - 1}" for start, end in right)
    derivation = f"Column t stands for ids[t+1]; trained are ids {trained}."
    return given([call], {"": [spans(width, *right)]}, found, derivation=derivation)


@case("completion_mask")
def mask_the_pad_is_the_stop_token():
    """mask: the pad is the stop token

    tests: the first stop token of a completion is trained, padding with the same id is not; row 2 was cut off
    run: completion_length, which counts what is trained, is one less at once; truncated may rise in a long run.
    """
    return masks(
        [[5, 6, 7, 8, 0, 0, 0], [5, 6, 7, 7, 8, 8, 9]],
        [2, 2],
        [(2, 5), (2, 7)],
        {
            "the stop token is never trained": [(2, 4), (2, 7)],
            "padding is trained": [(2, 7), (2, 7)],
        },
        stop=0,
        pad=0,
    )


@case("completion_mask")
def mask_a_stop_in_the_middle():
    """mask: a stop in the middle

    tests: a batched generation writes on behind a stop token: that is not the completion
    run: mismatch is large (if the sampler kept no log-probs there), completion_length too long.
    """
    return masks(
        [[5, 6, 7, 1, 8, 9, 1]],
        [2],
        [(2, 4)],
        {
            "what follows the stop is trained": [(2, 7)],
            "the stop token is never trained": [(2, 3)],
        },
        stop=1,
        pad=0,
    )


@case("completion_mask")
def mask_a_stop_in_the_prompt():
    """mask: a stop in the prompt

    tests: a chat template ends the user's turn with the token that ends a completion
    run: The column trained stays, and no token is: loss is 0, grad_norm is 0, reward does not move.
    """
    return masks(
        [[5, 1, 6, 7, 8, 1, 0], [1, 1, 6, 7, 1, 0, 0]],
        [3, 3],
        [(3, 6), (3, 5)],
        {
            "the stop is looked for in the prompt too": [(3, 3), (3, 3)],
            "the stop token is never trained": [(3, 5), (3, 4)],
            "padding is trained": [(3, 7), (3, 7)],
        },
        stop=1,
        pad=0,
    )


@case("completion_mask")
def mask_prompts_of_different_lengths_padded_on_the_right():
    """mask: prompts of different lengths, padded on the right

    tests: a completion begins where its own prompt ends
    run: mismatch: log-probs of prompt tokens, which were never sampled, are compared with 0.
    """
    return masks(
        [[5, 6, 7, 8, 1, 0, 0], [5, 6, 6, 6, 7, 8, 1]],
        [2, 4],
        [(2, 5), (4, 7)],
        {
            "the longest prompt's length is used for all": [(4, 5), (4, 7)],
            "the first prompt's length is used for all": [(2, 5), (2, 7)],
        },
        stop=1,
        pad=0,
    )


@case("completion_mask")
def mask_prompts_padded_on_the_left():
    """mask: prompts padded on the left

    tests: with padding on the left all prompts end in one column: prompt_lengths is that width, pads included
    run: mismatch: the first log-probs of short prompts are wrong.
    """
    return masks(
        [[0, 0, 5, 6, 7, 1, 0], [5, 6, 6, 6, 7, 8, 1]],
        [4, 4],
        [(4, 6), (4, 7)],
        {
            "the padding on the left is not counted": [(2, 6), (4, 7)],
            "padding is trained": [(4, 7), (4, 7)],
            "the stop token is never trained": [(4, 5), (4, 6)],
        },
        stop=1,
        pad=0,
    )


@case("completion_mask")
def mask_tokens_of_a_tool():
    """mask: tokens of a tool

    tests: what a tool wrote into a completion was not sampled by the policy (tool_mask: 1 where a tool wrote)
    derivation: ids[3] and ids[4] are the tool's: columns 2 and 3.
    run: mismatch and entropy rise with the number of calls; the policy learns to imitate the tool.
    """
    tool = [[0, 0, 0, 1, 1, 0, 0]]
    right = [[0, 1, 0, 0, 1, 1]]
    call = {
        "ids": [[5, 6, 7, 8, 8, 9, 1]],
        "prompt_lengths": [2],
        "stop_id": 1,
        "pad_id": 0,
        "tool_mask": tool,
    }
    return given(
        [call],
        {"": [right]},
        {
            "the tool's tokens are trained": [[[0, 1, 1, 1, 1, 1]]],
            "all after the tool's first token is left out": [[[0, 1, 0, 0, 0, 0]]],
            "one too early": [[[1, 0, 0, 1, 1, 1]]],
        },
    )


# ---- Log-probs -----------------------------------------------------------------------------------


def log_softmax(logits, temperature=1.0):
    exponentials = [math.exp(logit / temperature) for logit in logits]
    total = sum(exponentials)
    return [math.log(number / total) if number else -math.inf for number in exponentials]


def picked(logits, ids, temperature=1.0, shift=1, keep=None):
    """log pi of ids[t+1] under the logits at t, of one row; keep: among these tokens only."""
    result = []
    for t in range(len(ids) - 1):
        row = logits[t + 1 - shift]
        kept = range(len(row)) if keep is None else keep
        logps = log_softmax([row[token] for token in kept], temperature)
        result.append(logps[list(kept).index(ids[t + 1])])
    return [[result]]


def bf16(number):
    """The nearest number with 8 bits."""
    mantissa, exponent = math.frexp(number)
    return round(mantissa * 2**8) / 2**8 * 2**exponent


@case("logprobs")
def log_probs_temperature():
    """log-probs: temperature

    tests: the policy that is trained is the one that was sampled from: softmax(logits / temperature)
    derivation: Weights 1, 2, 4 become 1, 4, 16 at 0.5: log 16/21 and log 4/21.
    run: mismatch is far above rounding (1e-6 in fp32) in the first step.
    """
    logs = [math.log(number) for number in (1, 2, 4)]
    rows = [logs, logs[::-1], [logs[1], logs[0], logs[2]]]
    ids = [0, 2, 1]
    return given(
        [{"logits": [rows], "ids": [ids], "temperature": 0.5}],
        {"": picked(rows, ids, 0.5)},
        {
            "at temperature 1, although 0.5 was sampled at": picked(rows, ids, 1.0),
            "multiplied by the temperature": picked(rows, ids, 2.0),
            "logits and tokens are off by one": picked(rows, ids, 0.5, shift=0),
        },
    )


@case("logprobs")
def log_probs_off_by_one():
    """log-probs: off by one

    tests: the logits at t predict the token at t + 1
    derivation: log 4/7 (token 2 of 1, 2, 4) and log 2/7 (token 1 of 4, 2, 1).
    run: mismatch is far above rounding in the first step.
    """
    logs = [math.log(number) for number in (1, 2, 4)]
    rows = [logs, logs[::-1], [logs[1], logs[0], logs[2]]]
    ids = [0, 2, 1]
    return given(
        [{"logits": [rows], "ids": [ids], "temperature": 1.0}],
        {"": picked(rows, ids)},
        {"logits and tokens are off by one": picked(rows, ids, shift=0)},
    )


PART = [math.log(number) for number in (0.5, 0.3, 0.15, 0.05)]


def from_a_part(setting, mistakes):
    ids = [0, 1, 0]
    whole = "over the whole vocabulary, although a part was sampled from"
    found = {name: picked([PART] * 3, ids, keep=keep) for name, keep in mistakes.items()}
    return given(
        [{"logits": [[PART] * 3], "ids": [ids], "temperature": 1.0, **setting}],
        {"": picked([PART] * 3, ids, keep=[0, 1])},
        {whole: picked([PART] * 3, ids), **found},
    )


@case("logprobs")
def log_probs_top_p():
    """log-probs: top-p

    tests: with top-p sampling, tokens come from a part of the vocabulary, renormalised
    derivation: 0.5 and 0.3 are kept: log 3/8 and log 5/8. The token that crosses 0.7 belongs to top-p.
    run: mismatch in the first step is about -log of what is kept, here 0.22.
    """
    return from_a_part({"top_p": 0.7}, {})


@case("logprobs")
def log_probs_top_k():
    """log-probs: top-k

    tests: with top-k sampling, tokens come from a part of the vocabulary, renormalised
    derivation: 0.5 and 0.3 are kept: log 3/8 and log 5/8. The token that crosses 0.7 belongs to top-p.
    run: mismatch in the first step is about -log of what is kept, here 0.22.
    """
    return from_a_part({"top_k": 2}, {"one token too many is kept": [0, 1, 2]})


@case("logprobs")
def log_probs_padded_vocabulary():
    """log-probs: padded vocabulary

    tests: rows of the embedding from num_tokens on are padding: no token, and not in the softmax
    derivation: log 2/4 and log 1/4, not log 2/8 and log 1/8.
    run: mismatch, if the sampler leaves them out; or sampled ids that the tokenizer does not know.
    """
    row = [math.log(number) for number in (1, 2, 1, 4)]
    return given(
        [{"logits": [[row] * 3], "ids": [[0, 1, 2]], "temperature": 1.0, "num_tokens": 3}],
        {"": picked([row] * 3, [0, 1, 2], keep=[0, 1, 2])},
        {"ids that are no tokens take part": picked([row] * 3, [0, 1, 2])},
    )


@case("logprobs")
def log_probs_bf16():
    """log-probs: bf16

    tests: the model may run in bf16, the softmax may not: it needs fp32
    derivation: log(1 + e^-5 + e^-5.5 + e^-8) = 0.0111; bf16 has 8 bits, so -5.0111 becomes -5.
    run: mismatch is far above rounding in fp32, if the sampler takes its softmax in fp32.
    """
    row = [8.0, 3.0, 2.5, 0.0]
    exact = picked([row] * 3, [1, 0, 1])
    return given(
        [{"logits": [[row] * 3], "ids": [[1, 0, 1]], "temperature": 1.0, "dtype": "bfloat16"}],
        {"": exact},
        {"the log-probs are rounded to bf16": [[[bf16(logp) for logp in exact[0][0]]]]},
        otherwise="the softmax is not taken in fp32",
    )


# ---- KL ------------------------------------------------------------------------------------------


@case("kl")
def kl_which_estimator():
    """KL: which estimator

    tests: d = log pi - log pi_ref: k1 = d, k2 = d*d/2, k3 = exp(-d) - 1 + d
    derivation: d = 1/2: k2 = 1/8, k3 = e^-0.5 - 1/2 = 0.1065; d = -1/2: k3 = e^0.5 - 3/2 = 0.1487.
    run: kl is negative on average, or grows faster than the log-probs part.
    """

    def calls(differences):
        return [{"logp": [[d - 1]], "ref_logp": [[-1.0]]} for d in differences]

    def outputs(function, differences):
        return each([function(d) for d in differences])

    def k3(d):
        return math.exp(-d) - 1 + d

    differences = [0.5, -0.5]
    return given(
        calls(differences),
        {
            "k1": outputs(lambda d: d, differences),
            "k2": outputs(lambda d: d * d / 2, differences),
            "k3": outputs(k3, differences),
        },
        {
            "k1 the other way round": outputs(lambda d: -d, differences),
            "k3 the other way round": outputs(lambda d: k3(-d), differences),
            "|d|, which is no KL": outputs(abs, differences),
        },
    )


@case("gradient_of_kl")
def kl_gradient():
    """KL: gradient

    tests: the term must pull log pi down where it is above the reference, up where it is below
    derivation: d/dlogp: k1 has 1, whose mean over samples of pi is 0; k2 has d; k3 has 1 - e^-d, and with pi /
        pi_old as a factor d.
    run: kl does not get smaller when kl_coef gets larger; with the sign reversed it gets larger.
    """

    def calls(differences):
        return [{"logp": [[d - 1]], "ref_logp": [[-1.0]]} for d in differences]

    def outputs(function, differences):
        return each([function(d) for d in differences])

    differences = [0.5, -0.5]
    return given(
        calls(differences),
        {
            "of k3: 1 - exp(-d)": outputs(lambda d: 1 - math.exp(-d), differences),
            "d: of k2, of k1 in the reward, or of k3 times the ratio": outputs(
                lambda d: d, differences
            ),
        },
        {
            "k1 in the loss: the gradient is 1 wherever the reference is": each([1, 1]),
            "the sign is reversed: away from the reference": outputs(
                lambda d: math.exp(-d) - 1, differences
            ),
            "the sign is reversed: -d": outputs(lambda d: -d, differences),
            "of k3 the other way round: exp(d) - 1": outputs(
                lambda d: math.exp(d) - 1, differences
            ),
            "no gradient": each([0, 0]),
        },
    )


@case("kl")
def kl_k3_in_fp32_at_small_differences():
    """KL: k3 in fp32 at small differences

    tests: early in a run d is small, and k3 about d*d/2
    derivation: d = 2^-13: k3 = 2^-27 = 7.45e-9 up to d^3/6 = 3e-13. exp(-d) in fp32 has steps of 6e-8.
    run: kl in the first steps is 0, negative or moves in steps of 6e-8. Small, and no harm to the gradient.
    """

    def calls(differences):
        return [{"logp": [[d - 1]], "ref_logp": [[-1.0]]} for d in differences]

    def outputs(function, differences):
        return each([function(d) for d in differences])

    small = [2**-13, -(2**-13)]
    return given(
        calls(small),
        {
            "k3 (k2 is the same here)": outputs(lambda d: d * d / 2, small),
            "k1": outputs(lambda d: d, small),
        },
        {},
        otherwise="exp(-d) - 1 loses a small d to rounding (use expm1)",
        tolerance=1e-11,
    )


# ---- Rewards -------------------------------------------------------------------------------------


def rewards(calls, right, mistakes):
    calls = [{"text": text, "truth": truth, "finished": done} for text, truth, done in calls]
    return given(calls, right if isinstance(right, dict) else {"": right}, mistakes)


@case("reward")
def reward_cut_off():
    """reward: cut off

    tests: a right answer in a completion that never stopped earns at most 0
    derivation: Only the second one ended by itself.
    run: truncated and completion_length rise: never to stop is free.
    """
    return rewards(
        [(r"so \boxed{4}. Or", "4", False), (r"so \boxed{4}", "4", True)],
        [0.0, 1.0],
        {"a completion that was cut off is paid": [1.0, 1.0]},
    )


@case("reward")
def reward_the_last_box():
    """reward: the last box

    tests: the last box is the answer, so that boxing everything one tries does not pay
    derivation: The last boxes are 4 and 5. Who reads the set of all boxes pays neither.
    run: reward rises and the held-out accuracy by the last box does not; many boxes in samples.jsonl.
    """
    return rewards(
        [
            (r"\boxed{3}? No: \boxed{4}", "4", True),
            (r"\boxed{4}? No: \boxed{5}", "4", True),
        ],
        {"the last box": [1.0, 0.0], "several boxes are one answer, a set": [0.0, 0.0]},
        {"the first box counts": [0.0, 1.0], "any box counts": [1.0, 1.0]},
    )


@case("reward")
def reward_a_broken_last_box():
    """reward: a broken last box

    tests: a last box that is never closed is no answer, even if an earlier one was right
    derivation: The last box begins with 5 and has no end.
    run: Broken boxes behind right ones in samples.jsonl: the policy gets two tries.
    """
    return rewards(
        [(r"\boxed{4} \boxed{5", "4", True)],
        [0.0],
        {"an earlier box counts if the last one is broken": [1.0]},
    )


@case("reward")
def reward_copying_the_question():
    """reward: copying the question

    tests: the question 41+2-7-3-2= in a box is no answer, although it has the value of one
    derivation: 41 + 2 - 7 - 3 - 2 = 31; but nothing was worked out.
    run: accuracy near 1 with completions as long as the problem.
    """
    return rewards(
        [(r"\boxed{41+2-7-3-2=}", "31", True)],
        [0.0],
        {"a copy of the question is paid": [1.0]},
    )


@case("extract")
def extract_last_empty_nested():
    r"""extract: last, empty, nested

    tests: the content of the last box, with braces in braces; an empty box is no answer
    derivation: Count braces: in \boxed{\frac{1}{2}} the depth is 0 again at the last one.
    run: answered is far below 1 on MATH although the samples have boxes; short answers are preferred.
    """
    texts = [r"\boxed{3} or \boxed{4}", r"\boxed{}", r"\boxed{\frac{1}{2}}", "no box"]
    return given(
        [{"text": text} for text in texts],
        {
            "an empty box is ''": ["4", "", r"\frac{1}{2}", None],
            "an empty box is none": ["4", None, r"\frac{1}{2}", None],
        },
        {
            "the first box, up to the first }": ["3", "", r"\frac{1", None],
            "the first box, up to the first }; empty: none": ["3", None, r"\frac{1", None],
            "the last box, up to the first }": ["4", "", r"\frac{1", None],
            "the first box": ["3", "", r"\frac{1}{2}", None],
        },
    )


@case("reward")
def reward_nested_braces_and_an_empty_box():
    """reward: nested braces and an empty box

    tests: every right fraction of MATH has braces in the box
    derivation: The answers are 1/2 and nothing.
    run: accuracy on MATH is too low: right completions with a fraction in the box get 0.
    """
    return rewards(
        [(r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", True), (r"\boxed{}", "4", True)],
        [1.0, 0.0],
        {
            "a right answer with braces in it is not paid": [0.0, 0.0],
            "an empty box is paid": [1.0, 1.0],
        },
    )


@case("grade")
def grade_two_spellings():
    """grade: two spellings

    tests: two spellings of a number are one answer; how many are read is a choice
    derivation: 1/2 is 0.5; a comma between thousands is none.
    run: accuracy is too low: completions in samples.jsonl are right and get 0.
    """
    return given(
        [{"answer": "0.5", "truth": r"\frac{1}{2}"}, {"answer": "10,000", "truth": "10000"}],
        {
            "fractions and commas": [True, True],
            "fractions only": [True, False],
            "commas only": [False, True],
        },
        {"compared as text": [False, False]},
    )


@case("grade")
def grade_a_number_near_by():
    """grade: a number near by

    tests: another number is another answer
    derivation: They differ by 1e-7, which is not 0.
    run: Answers with many digits in samples.jsonl where the problem asks for an exact one.
    """
    return given(
        [
            {"answer": "3.0000001", "truth": "3"},
            {"answer": "2.9999999", "truth": "3"},
            {"answer": "", "truth": "3"},
        ],
        {"": [False, False, False]},
        {"floats within 1e-6 are equal": [True, True, False]},
    )


# ---- Sampling ------------------------------------------------------------------------------------


@case("choose")
def sampling_the_distribution():
    """sampling: the distribution

    tests: u picks the first token whose cumulated probability is above u
    derivation: Cumulated: 0.5, 0.8, 1. At 0.5 the weights are 25, 9, 4 of 38: 0.658, 0.895, 1.
    run: mismatch: log-probs are those of another temperature; entropy does not change with it.
    """
    logits = [math.log(number) for number in (0.5, 0.3, 0.2)]
    uniforms = [0.0, 0.49, 0.51, 0.79, 0.81, 0.9999]
    return given(
        [
            {
                "logits": [logits] * len(uniforms),
                "uniforms": uniforms,
                "temperature": temperature,
            }
            for temperature in (1.0, 0.5)
        ],
        {"": [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 2]]},
        {"the temperature is not used": [[0, 0, 1, 1, 2, 2]] * 2},
    )


@case("choose")
def sampling_tokens_of_probability_0():
    """sampling: tokens of probability 0

    tests: neither u = 0 nor the largest u below 1 may pick a token of probability 0
    derivation: Cumulated: 0, 1/2, 1, 1: above 0 is token 1 first, above 1 - 2^-24 token 2.
    run: Rarely, a log-prob is -1e9: mismatch and loss jump in one step.
    """
    logits = [-1e9, 0.0, 0.0, -1e9]
    return given(
        [{"logits": [logits] * 2, "uniforms": [0.0, 1 - 2**-24], "temperature": 1.0}],
        {"": [[1, 2]]},
        {
            "u = 0 picks the first token": [[0, 2]],
            "u near 1 picks the last token": [[1, 3]],
            "both ends pick tokens of probability 0": [[0, 3]],
        },
    )


@case("random_numbers")
def sampling_seed_and_row():
    """sampling: seed and row

    tests: a completion depends on its seed and its row, and not on the batch it is sampled in
    derivation: Row 5 is asked for with rows 3 and 8, and with row 1: the same numbers; all others differ.
    run: Samples change with --sample-tokens or the number of processes; or all of a group are equal (mixed is 0).
    """
    names = ("same in other company", "rows differ", "seeds differ")
    return given(
        [{"rows": [3, 5, 8], "company": [5, 1], "seed": 7, "other_seed": 8}],
        {"a stream for each row": [dict.fromkeys(names, True)]},
        {
            "a row depends on the rows above it": [
                {"same in other company": False, "rows differ": True, "seeds differ": True}
            ],
            "all rows are the same": [
                {"same in other company": True, "rows differ": False, "seeds differ": True}
            ],
            "the seed is not used": [
                {"same in other company": True, "rows differ": True, "seeds differ": False}
            ],
        },
    )


@case("tokens_read")
def sampling_the_prompt_is_read_once():
    """sampling: the prompt is read once

    tests: how many tokens the model reads for 4 completions of 3 tokens: a matter of time only
    derivation: 7 tokens of the prompt, and of each completion the first two. The last one is not read.
    run: seconds of sampling: long prompts cost G times as much.
    """
    return given(
        [{"prompt_length": 7, "num_samples": 4, "max_new_tokens": 3}],
        {
            "once for a group": [7 + 4 * 2],
            "once for each completion": [4 * (7 + 2)],
            "again for every token: no cache": [4 * (7 + 8 + 9)],
        },
        {},
    )


def as_text():
    """Each case on a line of its own."""
    lines = [json.dumps(cleaned(one), ensure_ascii=False) for one in CASES]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def cleaned(value):
    """Numbers rounded to 12 digits, so that another C library writes the same file; NaN as text."""
    if isinstance(value, dict):
        return {name: cleaned(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(inner) for inner in value]
    if isinstance(value, float):
        return NAN if math.isnan(value) else float(f"{value:.12g}")
    return value


if __name__ == "__main__":
    (HERE / "vectors.json").write_text(as_text(), encoding="utf-8")
    print(f"{len(CASES)} cases in {HERE / 'vectors.json'}")
