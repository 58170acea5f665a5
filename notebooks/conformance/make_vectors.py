"""make_vectors.py - write vectors.json: the cases of the conformance kit, each small enough to check by hand.

    python notebooks/conformance/make_vectors.py

Every right answer here is derived in plain Python, out of the formula, with no function of this project: the project's
own functions derive it a second time when `check.py adapters/this_project.py` runs. The answers of known mistakes are
derived in the same way. What needs no arithmetic (masks, texts, rewards, sampling) is written by hand in vectors.json
alone, and stays as it is. A case is a function here; the first line of its docstring is its name, and below stand

    tests             what it is about
    derivation        how to check the answer by hand
    run               how one notices the mistake in a run, and which column of metrics.jsonl shows it

It gives

    calls             the arguments of the adapter's function that @case names, once for each call
    answers           {name: outputs}: right; if there are several, the difference is a choice
    mistakes          {name: outputs}: what a known mistake gives; otherwise: its name if it gives many things

For the function loss an output is the gradient by logp: the value of a loss may differ by a constant.
"""

import cmath
import copy
import json
import math
import operator
import re
from fractions import Fraction
from pathlib import Path

PATH = Path(__file__).parent / "vectors.json"
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


SCALES = {"std with G": 0, "std with G - 1": 1, "not divided by a std": None}


def scaled(groups, before=""):
    """{name: output} of the three ways to scale the advantages of a group."""
    found = {}
    for name, less in SCALES.items():
        rows = [normalised(row, None if less is None else len(row) - less) for row in groups]
        found[before + name] = [rows]
    return found


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
    mistakes = {
        "normalised over the batch, not the group": [reshape(normalised(flat, 8), 4)],
        "normalised over the batch with B - 1": [reshape(normalised(flat, 7), 4)],
        "no baseline: the rewards themselves": [rewards],
    }
    return given([{"rewards": rewards}], scaled(rewards), mistakes, tolerance=1e-3)


@case("advantages")
def advantages_rows_of_a_group():
    """advantages: rows of a group

    tests: rows p*G .. p*G + G-1 are the group of prompt p; repeat(G) and repeat_interleave(G) differ
    derivation: 1, 0, 0: mean 1/3, variance 2/9 (1/3 with G - 1): 1.414, -0.707, -0.707 (1.155, -0.577, -0.577).
    run: Not at all in a short run: the baseline is that of other prompts, and every column looks as usual.
    """
    rewards = [[1, 0, 0], [1, 1, 0]]
    mistakes = {
        "groups are read across prompts": [interleaved(rewards, 3)],
        "groups are read across prompts, G - 1": [interleaved(rewards, 2)],
        "groups are read across prompts, no std": [interleaved(rewards, None)],
    }
    return given([{"rewards": rewards}], scaled(rewards), mistakes, tolerance=1e-3)


@case("judged")
def advantages_a_verifier_that_returns_nan():
    """advantages: a verifier that returns NaN

    tests: a verifier that fails, on a text that a policy wrote, must neither poison the batch nor pay
    derivation: 1, 0, 1/2, 1/4: mean 7/16. Or 1, 1/2, 1/4: mean 7/12, and the failed one gets 0.
    run: loss is NaN from one step to the next; the column failed says why.
    """
    answers = scaled([[1, 0, 0.5, 0.25]], "it counts as 0; ")
    for name, [[row]] in scaled([[1, 0.5, 0.25]], "it is left out; ").items():
        answers[name] = [[[row[0], 0.0, *row[1:]]]]
    mistakes = {
        "the whole group is NaN": [[[NAN] * 4]],
        "a failed verifier pays like the mean of the others": [
            [normalised([1, Fraction(7, 12), 0.5, 0.25], 4)]
        ],
    }
    return given([{"rewards": [[1, NAN, 0.5, 0.25]]}], answers, mistakes, tolerance=1e-3)


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


@case("loss")
def loss_groups_without_signal():
    """loss: groups without signal

    tests: whether rows of groups of equal rewards count in the divisor, and a batch that has no others
    derivation: token: 1/9 each if they count, 1/5 if not. Then the step has the same size however few groups have a
        signal; divided by all, it is the gradient of the mean over prompts. In a batch without signal every A is 0.
    run: loss and grad_norm are NaN in the first step in which mixed is 0. Else a choice: grad_norm follows mixed, or not.
    """
    lengths = [1, 4, 2, 2]
    counted = norms(lengths, 4, [1.0, -1.0, 0.0, 0.0])
    zeros = [[0.0] * 4] * 4
    others = norms(lengths[:2], 4, [1.0, -1.0])
    others = {name: gradient + zeros[2:] for name, gradient in others.items()}
    calls = [tokens_case(lengths, 4, row) for row in ([1.0, -1.0, 0.0, 0.0], [0.0] * 4)]
    answers = {name: [gradient, zeros] for name, gradient in counted.items()}
    for name, gradient in others.items():
        answers[f"{name}, of the groups with a signal"] = [gradient, zeros]
    nothing = "NaN: a batch without signal is 0 / 0"
    return given(calls, answers, {nothing: [others["token"], [[NAN] * 4] * 4]})


@case("trust_region")
def loss_trust_region_on_probabilities():
    """loss: trust region on probabilities

    tests: DPPO stops a token that has moved by more than 0.15 of probability where A pushes it, whatever its ratio
    derivation: .001 to .003 is a ratio of 3 and moves .002: -3. .5 to .7 has moved by .2: 0; with A = -1 it comes back:
        1.4. .9 to .7 likewise. .9 to .8 has moved by .1: .8/.9.
    run: Rare tokens stop at once and likely ones late: clipped is large although pi hardly moves.
    """
    moves = [(0.001, 0.003, 1), (0.5, 0.7, 1), (0.5, 0.7, -1), (0.9, 0.7, -1), (0.9, 0.7, 1)]
    moves.append((0.9, 0.8, -1))

    def gradients(stops):
        return each([0 if stops(pi, old, A) else -A * pi / old for old, pi, A in moves])

    calls = []
    for old, pi, A in moves:
        one = {"logp": [[math.log(pi)]], "sampled_logp": [[math.log(old)]], "mask": [[1]]}
        calls.append({**one, "advantages": [A], "delta": 0.15})
    return given(
        calls,
        {"": gradients(lambda pi, old, A: A * (pi - old) > 0.15)},
        {
            "a clip of ratios": gradients(lambda pi, old, A: A * (pi / old - 1) > 0.15),
            "what comes back is stopped too": gradients(lambda pi, old, A: abs(pi - old) > 0.15),
            "only what comes back is stopped": gradients(lambda pi, old, A: A * (old - pi) > 0.15),
            "nothing stops": gradients(lambda pi, old, A: False),
        },
    )


# ---- What another engine sampled -----------------------------------------------------------------

RHO = [[4.0, 0.25, 1.5, 9.0], [6.0, 5.0, 1.0, 9.0]]  # pi_old / pi_s; the last column is padding
BOUNDS = {
    "truncate": lambda rho, low, high: min(rho, high),
    "mask": lambda rho, low, high: rho if low <= rho <= high else 0,
    "clamp": lambda rho, low, high: min(max(rho, low), high),
    "none": lambda rho, low, high: rho,
}


def corrected(level, how, low, high=3.0, **more):
    def weights(level=level, how=how, power=1, width=3):
        rows = []
        for row in RHO:
            rhos = [rho**power for rho in row[:width]]
            if level != "token":
                rhos = [math.prod(rhos) ** (1 / width if level == "mean" else 1)] * width
            rows.append([BOUNDS[how](rho, low, high) for rho in rhos[:3]] + [0.0])
        return [rows]

    mistakes = {
        "the ratio is inverted": weights(power=-1),
        "no bound": weights(how="none"),
        "truncated, not left out": weights(how="truncate"),
        "clamped on both sides, not left out": weights(how="clamp"),
        "left out, not truncated": weights(how="mask"),
        "of the token": weights(level="token"),
        "of the completion": weights(level="sequence"),
        "the mean over the completion, not the product": weights(level="mean"),
        "padding is a part of the product": weights(width=4),
    }
    call = {"sampled_logp": [[-math.log(rho) - 1 for rho in row] for row in RHO]}
    call |= {"old_logp": [[-1.0] * 4] * 2, "mask": [[1, 1, 1, 0]] * 2}
    call |= {"level": level, "how": how, "low": low, "high": high}
    wrong = {}
    for name, found in mistakes.items():
        if found not in (weights(), *wrong.values()):  # the others are the same in this case
            wrong[name] = found
    return given([call], {"": weights(), **more}, wrong)


@case("correction")
def correction_token_truncated():
    """correction: of a token, truncated

    tests: a sampler of other arithmetic or older weights: each token weighs pi_old / pi_s, and at most 3 (TIS)
    derivation: 4, 1/4, 3/2 become 3, 1/4, 3/2, and 6, 5, 1 become 3, 3, 1; nothing bounds them from below.
    run: mismatch stays large and reward sinks late: the gradient is that of the sampler's tokens.
    """
    return corrected("token", "truncate", 0.0)


@case("correction")
def correction_token_masked():
    """correction: of a token, masked

    tests: IcePop: a token whose ratio is below 1/2 or above 3 teaches nothing; the others weigh their ratio
    derivation: 4 and 1/4 are outside: 0, 0, 3/2. So are 6 and 5: 0, 0, 1.
    run: off is not 0, and these few tokens carry the largest gradients.
    """
    return corrected("token", "mask", 0.5)


@case("correction")
def correction_completion_truncated():
    """correction: of a completion, truncated

    tests: the ratio of a completion is the product of its tokens' ratios, and a weight of each of them
    derivation: 4 * 1/4 * 3/2 = 3/2; 6 * 5 * 1 = 30, which becomes 3.
    run: Long completions have weights near 0 or at the bound.
    """
    return corrected("sequence", "truncate", 0.0)


@case("correction")
def correction_completion_masked():
    """correction: of a completion, masked

    tests: a whole completion is left out if the product of its ratios is too far from 1 (TRL's default)
    derivation: 3/2 is inside of 1/2 to 3 and stays; 30 is outside: 0. Or the mean ratios decide, 1.14 and 3.11, and what
        is inside keeps its tokens' own ratios.
    run: Few long completions are trained: their products leave the bounds first.
    """
    by_the_mean = [[[*RHO[0][:3], 0.0], [0.0] * 4]]
    more = {"the mean ratio decides, tokens keep their own": by_the_mean}
    return corrected("sequence", "mask", 0.5, **more)


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


LOGS = [math.log(number) for number in (1, 2, 4)]
LOGITS = [LOGS, LOGS[::-1], [LOGS[1], LOGS[0], LOGS[2]]]


@case("logprobs")
def log_probs_temperature():
    """log-probs: temperature

    tests: the policy that is trained is the one that was sampled from: softmax(logits / temperature)
    derivation: Weights 1, 2, 4 become 1, 4, 16 at 0.5: log 16/21 and log 4/21.
    run: mismatch is far above rounding (1e-6 in fp32) in the first step.
    """
    ids = [0, 2, 1]
    return given(
        [{"logits": [LOGITS], "ids": [ids], "temperature": 0.5}],
        {"": picked(LOGITS, ids, 0.5)},
        {
            "at temperature 1, although 0.5 was sampled at": picked(LOGITS, ids, 1.0),
            "multiplied by the temperature": picked(LOGITS, ids, 2.0),
            "logits and tokens are off by one": picked(LOGITS, ids, 0.5, shift=0),
        },
    )


@case("logprobs")
def log_probs_off_by_one():
    """log-probs: off by one

    tests: the logits at t predict the token at t + 1
    derivation: log 4/7 (token 2 of 1, 2, 4) and log 2/7 (token 1 of 4, 2, 1).
    run: mismatch is far above rounding in the first step.
    """
    ids = [0, 2, 1]
    call = {"logits": [LOGITS], "ids": [ids], "temperature": 1.0}
    off = picked(LOGITS, ids, shift=0)
    return given([call], {"": picked(LOGITS, ids)}, {"logits and tokens are off by one": off})


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


TINY = {  # a token and its place (rows of 3), their mixture, the head: see check.Tiny
    "tokens": [[0.5, -0.3, 0.1], [-0.4, 0.6, 0.2], [0.3, 0.2, -0.5], [-0.1, -0.6, 0.4]],
    "places": [[0.1, 0.2, -0.1], [-0.3, 0.1, 0.2], [0.2, -0.2, 0.3], [0.4, 0.1, -0.2], [0.0, 0.3, 0.1]],
    "mix": [[0.7, -0.2, 0.4], [0.1, 0.5, -0.6], [-0.3, 0.8, 0.2]],
    "head": [[0.9, -0.4, 0.3], [-0.5, 0.7, 0.1], [0.2, 0.3, -0.8], [-0.6, -0.1, 0.5]],
}  # fmt: skip


def model_logps(weights, ids, places=None):
    """log pi of ids[1:], of one row, by the formula of check.Tiny. The weights may be complex."""
    total = [0.0] * 3
    result = []
    for t, token in enumerate(ids[:-1]):
        place = weights["places"][places[t] if places else t]
        x = [one + other for one, other in zip(weights["tokens"][token], place)]
        total = [one + other for one, other in zip(total, x)]
        for column in range(3):
            mixed = sum(total[row] * weights["mix"][row][column] for row in range(3)) / (t + 1)
            x[column] += cmath.tanh(mixed)
        logits = [sum(map(operator.mul, x, row)) for row in weights["head"]]
        everything = cmath.log(sum(map(cmath.exp, logits)))
        result.append(logits[ids[t + 1]] - everything)
    return result


@case("padded_logprobs")
def log_probs_padding_on_the_left():
    """log-probs: padding on the left

    tests: a prompt that is padded on the left has the log-probs that it has alone
    derivation: The same row without its padding, by the model's formula. If its first token has place 2 and not 0,
        rotary positions, which are differences, do not mind; a table of places, as here, does.
    run: mismatch of short prompts, if the sampler pads otherwise than the update does.
    """
    row = [1, 2, 3, 1]
    longer = [2, 2, 3, 1, 2]

    def found(logps):
        rows = [[0.0, *logps], model_logps(TINY, longer)]
        return [[[number.real for number in one] for one in rows]]

    column = "a place is a column: right with rotary positions only"
    call = {"weights": TINY, "ids": [[0, *row], longer]}
    return given(
        [{**call, "attention_mask": [[0, 1, 1, 1, 1], [1] * 5]}],
        {
            "places are counted from the first token": found(model_logps(TINY, row)),
            column: found(model_logps(TINY, row, [1, 2, 3, 4])),
        },
        {"the padding is attended to": found(model_logps(TINY, [0, *row])[1:])},
    )


# ---- KL ------------------------------------------------------------------------------------------


def differences(values, answers, mistakes, **more):
    """Cases of d = log pi - log pi_ref; answers and mistakes: functions of d."""
    calls = [{"logp": [[d - 1]], "ref_logp": [[-1.0]]} for d in values]
    outputs = [
        {name: each([function(d) for d in values]) for name, function in known.items()}
        for known in (answers, mistakes)
    ]
    return given(calls, *outputs, **more)


def k3(d):
    return math.exp(-d) - 1 + d


@case("kl")
def kl_which_estimator():
    """KL: which estimator

    tests: d = log pi - log pi_ref: k1 = d, k2 = d*d/2, k3 = exp(-d) - 1 + d
    derivation: d = 1/2: k2 = 1/8, k3 = e^-0.5 - 1/2 = 0.1065; d = -1/2: k3 = e^0.5 - 3/2 = 0.1487.
    run: kl is negative on average, or grows faster than the log-probs part.
    """
    return differences(
        [0.5, -0.5],
        {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": k3},
        {
            "k1 the other way round": lambda d: -d,
            "k3 the other way round": lambda d: k3(-d),
            "|d|, which is no KL": abs,
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
    return differences(
        [0.5, -0.5],
        {
            "of k3: 1 - exp(-d)": lambda d: 1 - math.exp(-d),
            "d: of k2, of k1 in the reward, or of k3 times the ratio": lambda d: d,
        },
        {
            "k1 in the loss: the gradient is 1 wherever the reference is": lambda d: 1,
            "the sign is reversed: away from the reference": lambda d: math.exp(-d) - 1,
            "the sign is reversed: -d": lambda d: -d,
            "of k3 the other way round: exp(d) - 1": lambda d: math.exp(d) - 1,
            "no gradient": lambda d: 0,
        },
    )


@case("kl")
def kl_k3_in_fp32_at_small_differences():
    """KL: k3 in fp32 at small differences

    tests: early in a run d is small, and k3 about d*d/2
    derivation: d = 2^-13: k3 = 2^-27 = 7.45e-9 up to d^3/6 = 3e-13. exp(-d) in fp32 has steps of 6e-8.
    run: kl in the first steps is 0, negative or moves in steps of 6e-8. Small, and no harm to the gradient.
    """
    return differences(
        [2**-13, -(2**-13)],
        {"k3 (k2 is the same here)": lambda d: d * d / 2, "k1": lambda d: d},
        {},
        otherwise="exp(-d) - 1 loses a small d to rounding (use expm1)",
        tolerance=1e-11,
    )


# ---- A step in lockstep --------------------------------------------------------------------------

REFERENCE = {**TINY, "head": TINY["head"][::-1]}
ROWS = [[int(token) for token in row] for row in "21200 21320 21132 32100 32213 32112".split()]
LENGTHS = [1, 2, 3, 1, 3, 3]  # of the completions, behind prompts of two tokens
REWARDS = [[1.0, 0.0, 0.0], [1.0, 0.5, 0.0]]
NONE = "another gradient: that of none of the four norms and three scales"
STEP = 1e-30  # f(w + ih) = f(w) + ih f'(w): exact, as nothing is subtracted


def derivatives():
    """For each weight (name, i, j): d log pi of each token by it, of all rows."""
    found = {}
    for name, rows in TINY.items():
        for i, row in enumerate(rows):
            for j in range(3):
                moved = copy.deepcopy(TINY)
                moved[name][i][j] = row[j] + STEP * 1j
                logps = [model_logps(moved, ids) for ids in ROWS]
                found[name, i, j] = [[one.imag / STEP for one in row] for row in logps]
    return found


def gradients(factors):
    """sum of factor * d log pi -> the gradient of each parameter, as lists, for factors (B, T-1)."""
    result = {name: [[0.0] * 3 for _ in rows] for name, rows in TINY.items()}
    for (name, i, j), slopes in derivatives().items():
        pairs = zip(sum(factors, []), sum(slopes, []))
        result[name][i][j] = round(sum(factor * slope for factor, slope in pairs), 7)
    return [list(result.values())]


def trained(pull=None):
    """The answers of a step: four norms, three scales of the advantages; pull(d): what a KL adds, d = log pi / pi_ref."""
    answers = {}
    for scale, [groups] in scaled(REWARDS).items():
        advantages = sum(groups, [])
        units = norms(LENGTHS, 3, [-1.0] * 6)
        for norm, weights in units.items():
            factors = []
            for ids, A, row in zip(ROWS, advantages, weights):
                pairs = zip(model_logps(TINY, ids)[1:], model_logps(REFERENCE, ids)[1:], row)
                pulls = [pull((one - other).real) if pull else 0.0 for one, other, _ in pairs]
                factors.append([0.0, *[w * (p - A) for w, p in zip(row, pulls)]])
            answers[f"{norm}, {scale}"] = gradients(factors)
    return answers


def step_call(kl_coef, **more):
    mask = [[0, *[int(column < length) for column in range(3)]] for length in LENGTHS]
    call = {"weights": TINY, "ids": ROWS, "mask": mask, "rewards": REWARDS, "kl_coef": kl_coef}
    return [{**call, **more}]


@case("step")
def step_gradient():
    """step: the gradient

    tests: a whole step on six completions of two prompts: rewards, advantages, log-probs, loss and backward pass
    derivation: -sum w A dlog pi by each of the 57 weights, from the model's formula with w + ih for w: the imaginary
        part is h times the derivative.
    run: grad_norm. A factor in all weights is a matter of the norm or of the advantages' scale.
    """
    return given(step_call(0.0), trained(), {}, tolerance=2e-4, otherwise=NONE)


@case("step")
def step_with_a_kl():
    """step: with a KL

    tests: the same step with kl_coef 0.1 and another head as the reference
    derivation: k3 adds 0.1 w (1 - exp(-d)) dlog pi; k2, or k3 times the ratio, 0.1 w d dlog pi.
    run: kl does not get smaller where kl_coef gets larger.
    """
    answers = {}
    for name, pull in (("k3", lambda d: 1 - math.exp(-d)), ("k2, or k3 times the ratio", float)):
        found = trained(lambda d, pull=pull: 0.1 * pull(d))
        answers |= {f"{norm}; {name}": gradient for norm, gradient in found.items()}
    without = trained()
    wrong = {f"no KL; {norm}": without[norm] for norm in without if norm.endswith("with G")}
    return given(
        step_call(0.1, reference=REFERENCE), answers, wrong, tolerance=2e-4, otherwise=NONE
    )


@case("step")
def step_two_ranks():
    """step: two ranks

    tests: two processes with a prompt each end with one gradient, that of the batch on one process
    derivation: The first prompt's completions have 6 tokens and the second one's 7: each token weighs 1/13, not 1/12 or 1/14.
    run: grad_norm differs between ranks, or not at all from that of one rank: only the model of rank 0 is saved.
    """
    one = "both ranks have one gradient"
    batch = "it is that of the batch"
    mistakes = {
        "each rank trains a model of its own": [{one: False, batch: False}],
        "the ranks' own means are averaged, or their gradients added": [{one: True, batch: False}],
    }
    return given(step_call(0.0, ranks=2), {"": [{one: True, batch: True}]}, mistakes)


def as_text():
    """The file anew: each case on a line of its own, those that are derived here in their old places."""
    cases = {one["name"]: one for one in json.loads(PATH.read_text(encoding="utf-8"))}
    cases |= {one["name"]: cleaned(one) for one in CASES}
    lines = [json.dumps(one, ensure_ascii=False) for one in cases.values()]
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
    PATH.write_text(as_text(), encoding="utf-8")
    print(f"{len(CASES)} cases are derived, the others are as they were in {PATH}")
