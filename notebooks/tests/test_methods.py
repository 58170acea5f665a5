"""notebooks/methods: what each method changes, worked by hand, and two steps of each."""

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from notebooks.models import make_tiny
import train
import verifiers
from eval import evaluate, get_method, wilson_interval
from notebooks.models.make_tiny import init_weights
from model import load
from rlvr import (
    GRPO,
    LossInputs,
    MicroBatch,
    Rollouts,
    Sampling,
    Step,
    Stopped,
    compute_grpo_loss,
    group_advantages,
    loss_weights,
    padded_rows,
    roll_out,
    sample,
    token_logprobs,
    update_gradients,
)

ROOT = Path(__file__).resolve().parents[2]
METHODS = ROOT / "notebooks" / "methods"
FILES = {path.name: path.read_text() for path in sorted(METHODS.glob("*.py"))}
SPECS = {
    name: f"{file}:{name}"
    for file, text in FILES.items()
    for name in re.findall(r"^class (\w+)\(\w+\):", text, re.M)
}
SAMPLE_OTHERWISE = ["Chapter", "KeepSamplingMask", "Stale", "TopP"]  # than what is trained
OWN_LOSS = ["CISPO", "DeepSeekV32", "DPPO", "GSPO", "KeepSamplingMask", "MaskedIS", "Olmo3"]
OWN_LOSS += ["Reinforce"]
sys.path.insert(0, str(METHODS))

from gdpo import terms_of
from shared_prompts import micro_batch, shared_prompts
from top_p import kept_tokens


def method(name, **settings):
    return get_method(f"{METHODS}/{SPECS[name]}", settings)


def how(num_samples, max_new_tokens, temperature):
    """How to sample from a model alone: until its own stop token, with random numbers of torch."""
    return Sampling(num_samples, max_new_tokens, temperature, None, None, None, True, None)


# ---- Every file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_a_method_says_what_it_is_and_stands_in_the_table(name):
    file = SPECS[name].partition(":")[0]
    parts = FILES[file].split('"""')[1]
    if len([spec for spec in SPECS.values() if spec.startswith(file)]) > 1:
        parts = parts[parts.index(f"\n{name}: ") :]
    for part in ("\nSource:", "\nFormula:", "\nChanges:", "\nMissing:"):
        assert part in parts
    assert isinstance(method(name), GRPO)
    table = (METHODS / "README.md").read_text()
    assert f"| [{file}]({file}) |" in table or f"| [{SPECS[name]}]({file}) |" in table


REFUSED = {
    "DAPO": {"overlong": "soften"},
    "Reinforce": {"kl": "k4"},
    "KLCap": {"on_exceed": "back"},
    "TopP": {"top_p": 0.0},
    "Stratified": {"target": (0.0, 0.0)},
    "MaskedIS": {"how": "drop"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_cannot_be_is_refused(name):
    with pytest.raises(ValueError, match=f"{[*REFUSED[name]][0]}"):
        method(name, **REFUSED[name])


SETTINGS = {
    "Chapter": {"prompts_per_step": 1, "num_samples": 4, "norm": "sum"},
    "CISPO": {"clip": (0.999, 3.0), "updates_per_batch": 4, "norm": "token"},
    "DAPO": {"clip": (0.2, 0.28), "norm": "token", "scale": "std", "kl_coef": 0},
    "DPPO": {"norm": "constant", "scale": "none", "delta": 0.15},
    "DrGRPO": {"norm": "constant", "scale": "none", "kl_coef": 0},
    "PaperGRPO": {"norm": "sequence", "scale": "std", "kl_coef": 0.04},
    "GSPO": {"clip": (3e-4, 4e-4), "norm": "sequence"},
    "MaskedIS": {"level": "token", "how": "mask", "low": 0.5, "high": 5},
    "Olmo3": {"clip": (0.2, 0.272), "scale": "none", "overlong": "none"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_those_of_the_paper(name):
    found = vars(method(name).settings)
    assert {setting: found[setting] for setting in SETTINGS[name]} == SETTINGS[name]


# ---- Advantages ----------------------------------------------------------------------------------


def step_of(rewards, lengths=None, limit=100, finished=None, parts=None):
    """A Step with these rewards (P, G), lengths of completions (P*G,) and parts; the prompts are
    one token long. What is as long as the limit was cut off."""
    rewards = torch.tensor(rewards)
    lengths = torch.tensor(lengths or [5] * rewards.numel())
    finished = lengths < limit if finished is None else torch.tensor(finished)
    ids = torch.zeros(len(lengths), int(lengths.max()) + 1, dtype=torch.long)
    logp = torch.zeros(ids[:, 1:].shape)
    mask = (torch.arange(ids.size(1) - 1) < lengths[:, None]).float()  # a prompt is one token
    G = rewards.size(1)
    rollouts = Rollouts(ids, torch.ones_like(lengths), lengths, finished, logp, mask, G)
    return Step([], rollouts, [], rewards, parts)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("PaperGRPO", [[1.7320, -0.5773, -0.5773, -0.5773], [1, -1, 1, -1]]),
        ("DrGRPO", [[0.75, -0.25, -0.25, -0.25], [0.5, -0.5, 0.5, -0.5]]),
        ("RLOO", [[1, -1 / 3, -1 / 3, -1 / 3], [2 / 3, -2 / 3, 2 / 3, -2 / 3]]),
        ("LitePPO", [[1.4491, -0.4830, -0.4830, -0.4830], [0.9661, -0.9661, 0.9661, -0.9661]]),
        ("Chapter", [[1.5, -0.5, -0.5, -0.5], [0.8660, -0.8660, 0.8660, -0.8660]]),
    ],
)
def test_advantages_by_hand(name, expected):
    """Rewards 1 0 0 0 (mean 1/4, std sqrt(3)/4 = .4330) and 1 0 1 0 (mean 1/2, std 1/2). Leave one
    out: the first has 1 - 0, the others of its group 0 - 1/3. The batch: 3 of 8 are 1, so the
    squares of what differs from 3/8 add up to 3 * 5/8 = 1.875, and sqrt(1.875 / 7) = .5175. The
    chapter divides by G - 1: its stds are sqrt(.75 / 3) = .5 and sqrt(1 / 3) = .5774."""
    step = step_of([[1.0, 0, 0, 0], [1, 0, 1, 0]])
    found = method(name).advantages(step)
    torch.testing.assert_close(found, torch.tensor(expected), atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["Chapter", "DAPO", "PaperGRPO", "LitePPO", "Olmo3", "RLOO"])
def test_equal_rewards_give_exactly_zero(name):
    step = step_of([[0.1] * 5, [1.0, 0, 0, 0, 0]])
    assert method(name).advantages(step)[0].tolist() == [0.0] * 5
    assert not method(name).advantages(step_of([[0.7] * 5] * 2)).any()


# ---- GDPO ----------------------------------------------------------------------------------------


def parts_of(weights, *columns, finished=None, names=("accuracy", "format")):
    """A Step of one group whose reward has these weights on these columns of parts."""
    columns = torch.tensor(columns)
    finished = finished or [True] * columns.size(1)
    rewards = torch.tensor(weights) @ columns * torch.tensor(finished)
    usual = {"accuracy": 0.0, "answered": 1.0, "failed": 0.0, "truncated": 0.0}
    parts = [{**usual, **dict(zip(names, row))} for row in columns.T.tolist()]
    return step_of([rewards.tolist()], finished=finished, parts=parts)


def test_gdpo_tells_apart_what_a_sum_confuses():
    """Accuracy 1 0 0 0 and format 1 1 0 1. Apart: 1.732, -.577, -.577, -.577 and .577, .577,
    -1.732, .577; the sums 2.309, 0, -2.309, 0 have the mean square 2.667, root 1.633: 1.414, 0,
    -1.414, 0. With accuracy 0 0 1 0 and format 1 1 0 0 three completions have the same sum; apart
    the rarer accuracy counts for more."""
    gdpo = method("GDPO")
    both = gdpo.advantages(parts_of([1.0, 1], [1.0, 0, 0, 0], [1.0, 1, 0, 1]))
    torch.testing.assert_close(both, torch.tensor([[1.4142, 0, -1.4142, 0]]), atol=1e-3, rtol=0)
    step = parts_of([1.0, 1], [0.0, 0, 1, 0], [1.0, 1, 0, 0])
    assert step.rewards.tolist() == [[1, 1, 1, 0]]
    rarer = gdpo.advantages(step)[0]
    assert rarer[2] > rarer[0] > rarer[3]


def test_the_terms_are_the_rewards_own_and_those_logged_first():
    """R = 2 accuracy - 0.5 language; "copy" equals language, and thinking has no part in it."""
    accuracy, language = [1.0, 0, 1, 0, 1, 0], [0.0, 0, 1, 1, 0, 0]
    names = ("accuracy", "language", "copy", "thinking")
    columns = (accuracy, language, language, [3.0, 1, 4, 1, 5, 9])
    (two, first), (minus, second) = terms_of(parts_of([2.0, -0.5, 0, 0], *columns, names=names))
    assert (two, minus) == pytest.approx((2, -0.5))
    assert (first.tolist(), second.tolist()) == ([accuracy], [language])


def test_gdpo_counts_what_was_cut_off_and_what_failed_as_nothing():
    """R = accuracy - 0.5 language: cut off, the third has lost 0.5 and the fourth earned nothing.
    The verifier failed on the last, which has the worst reward of the group and no terms."""
    finished = [True, True, False, False, True]
    columns = ([1.0, 0, 0, 1, 0], [0.0, 0, 1, 1, 0])
    step = parts_of([1.0, -0.5], *columns, finished=finished, names=("accuracy", "language"))
    step.rewards = torch.tensor([[1.0, 0, -0.5, 0, -0.5]])
    step.parts[4] = {"accuracy": 0.0, "answered": 0.0, "failed": 1.0, "truncated": 0.0}
    (one, accuracy), (minus, language) = terms_of(step)
    assert (one, minus) == pytest.approx((1, -0.5))
    assert accuracy.tolist() == [[1, 0, 0, 0, 0]] and language.tolist() == [[0, 0, 1, 0, 0]]
    (advantages,) = method("GDPO").advantages(step).tolist()
    # Were it better than a neighbour, a policy would learn to crash its verifier.
    assert advantages[4] == min(advantages) < 0


def test_gdpo_refuses_a_reward_that_is_no_sum_of_its_parts():
    """A coin's reward: as a control it would be void if its logged accuracy were trained on."""
    step = parts_of([1.0, 0.1], [1.0, 0, 0, 0] * 4, [0.0, 1, 0, 0] * 4)
    step.rewards = torch.tensor([[1.0, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0]])
    with pytest.raises(
        verifiers.DataError, match=r"no weighted sum .*\(accuracy, format, answered\)"
    ):
        method("GDPO").advantages(step)


# ---- DAPO: what was cut off, and groups that teach nothing ---------------------------------------


def dapo(**settings):
    return method("DAPO", **{"max_new_tokens": 100, "prompts_per_step": 2, **settings})


def test_what_a_completion_that_is_cut_off_costs():
    """Rewards 1, 0 and, cut off, 0; lengths 50, 90, 100 of 100. The mean is 1/3 and the std .4714.
    Filter: the same, but the third teaches nothing. Soft: off go 0, .5 and 1, so 1, -.5, -1, with
    the mean -1/6 and the std .8498. Of 80 tokens nothing goes off, of 85 a quarter."""
    step = step_of([[1.0, 0, 0]], [50, 90, 100])
    expected = {
        "none": [1.4142, -0.7071, -0.7071],
        "filter": [1.4142, -0.7071, 0],
        "soft": [1.3728, -0.3922, -0.9806],
    }
    for overlong, values in expected.items():
        found = dapo(overlong=overlong, prompts_per_step=1).advantages(step)[0]
        assert found.tolist() == pytest.approx(values, abs=1e-3)
    late = dapo(prompts_per_step=1).advantages(step_of([[1.0, 1, 0]], [80, 85, 10]))[0]
    plain = group_advantages(torch.tensor([1.0, 0.75, 0]))
    torch.testing.assert_close(late, plain)


def test_dapo_keeps_the_first_mixed_groups_and_their_divisor():
    """4 groups of 2, P = 2; groups 1 and 3 are mixed, 0 is solved, 2 hopeless. Tokens 10 + 10, 20 +
    30, 15 + 15, 10 + 20 = 130, in the kept groups 80: the advantages +-1 become +-130/80, and Olmo
    3's R - mean +-1/2 of that. Where every completion counts the same: 4 groups over 2."""
    step = step_of([[1.0, 1], [1, 0], [0, 0], [0, 1]], [10, 10, 20, 30, 15, 15, 10, 20])
    expected = torch.tensor([[0.0, 0], [1, -1], [0, 0], [-1, 1]])
    torch.testing.assert_close(dapo().advantages(step), expected * 130 / 80)
    # Two of three are not: the first fills up. The penalty for 90 tokens makes no group mixed.
    few = step_of([[1.0, 1], [1, 0], [0, 0]], [10, 90, 20, 30, 15, 15])
    torch.testing.assert_close(dapo().advantages(few), expected[:3] * 180 / 150)
    olmo = method("Olmo3", prompts_per_step=2)
    torch.testing.assert_close(olmo.advantages(step), expected * 130 / 80 / 2)
    torch.testing.assert_close(dapo(norm="sequence").advantages(step), expected * 4 / 2)
    first = dapo(norm="sequence", prompts_per_step=1).advantages(step)
    torch.testing.assert_close(first, torch.tensor([[0.0, 0], [4, -4], [0, 0], [0, 0]]))


@pytest.mark.parametrize("norm", ["token", "sequence"])
def test_the_gradient_of_dapo_is_that_of_the_kept_groups_alone(model, prompts, norm):
    """Of 3 groups the second is all equal: the gradient of the three is that of a batch of two."""
    rollouts = sample(model, prompts, 4, 20)
    first, _, third = (Rollouts.join([group]) for group in groups_of(rollouts))
    rewards = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 0]])
    some = dapo(norm=norm, max_new_tokens=20, overlong="none")
    alone = group_advantages(rewards[[0, 2]])
    together = some.advantages(Step([], rollouts, [], rewards, []))
    expected, _ = gradient(model, Rollouts.join([first, third]), alone, some)
    found, _ = gradient(model, rollouts, together, some)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def groups_of(rollouts):
    G = rollouts.num_samples
    names = ("ids", "prompt_lengths", "lengths", "finished", "logp", "mask")
    for start in range(0, len(rollouts.ids), G):
        yield Rollouts(*(getattr(rollouts, name)[start : start + G] for name in names), G)


def gradient(model, rollouts, advantages, some, tokens=10**9, layout=padded_rows, **more):
    """The gradient of the method's loss as one vector, and the sums of update_gradients."""
    model.zero_grad()
    of_rows = advantages.reshape(len(rollouts.ids), -1)
    keep = (of_rows * rollouts.mask != 0).any(1)
    micros = layout(rollouts, keep, tokens)
    sums, _ = update_gradients(model, rollouts, advantages, some, micros, **more)
    return torch.cat([param.grad.flatten() for param in model.parameters()]), sums


def test_dapo_draws_what_two_steps_of_the_usual_walk_would_see():
    wide = GRPO(prompts_per_step=4)
    problems = list(range(10))
    for step in (1, 2, 3, 4):
        assert dapo().pick(problems, step, {}) == wide.pick(problems, step, {})


# ---- Losses --------------------------------------------------------------------------------------

# Two completions, of 3 tokens (A = 1) and of 2 (A = -1), and their ratios; column 0 is the prompt.
RATIOS = torch.tensor([[1, 1.5, 0.5, 1], [1, 0.5, 1.5, 1]])
MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0.0]])
ADVANTAGES = torch.tensor([1.0, -1])
OLD = torch.tensor([[0, -1.0, -2, -3], [0, -1, -2, 0]])
NOW = OLD + RATIOS.log()


def inputs_of(norm="token", sampled=OLD):
    """What a loss looks at: no model, so no MicroBatch."""
    weights = loss_weights(MASK, norm, max_new_tokens=4)
    return LossInputs(None, OLD, sampled, ADVANTAGES[:, None] * MASK, weights)


def value(name, norm, logp=NOW, inputs=None, **settings):
    some = method(name, **{"kl_coef": 0.0, **settings})
    return some.loss(logp, inputs or inputs_of(norm)).item()


def test_clip_higher_by_hand():
    """min(r A, clip(r) A). First: min(1.5, 1.28) + min(.5, .8) + 1 = 2.78; second: min(-.5, -.8) +
    min(-1.5, -1.28) = -2.3. The token mean is .48 / 5; with the usual clip it is (2.7 - 2.3) /
    5."""
    assert value("DAPO", "token") == pytest.approx(-0.48 / 5)
    assert value("DAPO", "token", clip=(0.2, 0.2)) == pytest.approx(-0.4 / 5)


def test_gspo_by_hand():
    """The geometric means are (1.5 * .5 * 1)^(1/3) = .9086 and (.5 * 1.5)^(1/2) = .8660. With clip
    0.1 the second, whose A is negative, is held at .9: mean of rows (.9086 - .9) / 2 = .0043."""
    expected = -(0.75 ** (1 / 3) - 0.9) / 2
    assert value("GSPO", "sequence", clip=(0.1, 0.1)) == pytest.approx(expected)


def test_cispo_by_hand():
    """-w clip(r) A log pi. First: 1.4 (ln 1.5 - 1) + .8 (ln .5 - 2) - 3; second, with A = -1: -.8
    (ln .5 - 1) - 1.4 (ln 1.5 - 2). Unlike GRPO's, the gradient of a clipped token is not 0 but
    -w clip(r) A."""
    expected = 1.4 * (math.log(1.5) - 1) + 0.8 * (math.log(0.5) - 2) - 3
    expected -= 0.8 * (math.log(0.5) - 1) + 1.4 * (math.log(1.5) - 2)
    assert value("CISPO", "token", clip=(0.2, 0.4)) == pytest.approx(-expected / 5)
    logp = NOW.clone().requires_grad_()
    method("CISPO", clip=(0.2, 0.4)).loss(logp, inputs_of()).backward()
    expected = torch.tensor([[0, -0.28, -0.16, -0.2], [0, 0.16, 0.28, 0]])
    torch.testing.assert_close(logp.grad, expected)


@pytest.mark.parametrize("name", ["Reinforce", "RLOO", "Chapter"])
def test_reinforce_by_hand(name):
    """The chapter's -(adv * logp).mean(), logp summed over a completion: ln 1.5 + ln .5 - 6 = ln
    .75 - 6 and ln .75 - 3."""
    expected = -(math.log(0.75) - 6 - (math.log(0.75) - 3)) / 2
    assert value(name, "sum") == pytest.approx(expected)


@pytest.mark.parametrize("name", OWN_LOSS)
def test_on_policy_all_have_the_gradient_of_the_chapter(name):
    logp = OLD.clone().requires_grad_()
    inputs = inputs_of("sequence")
    unfiltered = {"top_p": 1.0} if name == "KeepSamplingMask" else {}
    method(name, kl_coef=0.0, **unfiltered).loss(logp, inputs).backward()
    torch.testing.assert_close(logp.grad, -inputs.weights * inputs.advantages)


def test_truncated_importance_sampling_by_hand():
    """pi_old / pi_sampler is .5, 4, 1 in the first completion (A = 1), 1, 1.6 in the second (-1);
    the 4 is cut to 2. With pi = pi_old: (.5 + 2 + 1 - 1 - 1.6) / 5 = .18, and each token's gradient
    is its weight's share. Off-policy the terms are those of the usual clip, weighted: .5 * 1.2 + 2
    * .5 + 1 - .8 - 1.6 * 1.5 = -.6."""
    sampler = OLD - torch.tensor([[1, 0.5, 4, 1], [1, 1, 1.6, 1]]).log()
    inputs = inputs_of(sampled=sampler)
    logp = OLD.clone().requires_grad_()
    olmo = method("Olmo3", clip=(0.2, 0.2))
    loss = olmo.loss(logp, inputs)
    loss.backward()
    assert loss.item() == pytest.approx(-0.18)
    expected = torch.tensor([[0, -0.1, -0.4, -0.2], [0, 0.2, 0.32, 0]])
    torch.testing.assert_close(logp.grad, expected)
    assert olmo.loss(NOW, inputs).item() == pytest.approx(0.6 / 5)


def test_completions_that_the_policy_has_left_are_masked_by_hand():
    """The second completion (A = -1) has ratios .5 and 1.5, so log(pi_sampler / pi) is on average
    -ln(.75) / 2 = .144, above .1: it is masked, and 2.7 of test_clip_higher_by_hand is left, over
    all five tokens. A delta of .2 keeps it, and so does a sampler with e^-.05 of the probability:
    .144 - .05. The first has .096, above .05, but A = 1. A masked completion has no gradient."""
    assert value("DeepSeekV32", "token") == pytest.approx(-2.7 / 5)
    assert value("DeepSeekV32", "token", delta=0.2) == pytest.approx(-0.4 / 5)
    unlikely = inputs_of(sampled=OLD - 0.05)
    assert value("DeepSeekV32", "token", inputs=unlikely) == pytest.approx(-0.4 / 5)
    assert value("DeepSeekV32", "token", delta=0.05) == pytest.approx(-2.7 / 5)
    logp = NOW.clone().requires_grad_()
    method("DeepSeekV32", kl_coef=0).loss(logp, inputs_of()).backward()
    assert logp.grad[0].any() and not logp.grad[1].any()


def test_the_trust_region_of_probabilities_by_hand():
    """Two completions of three tokens, A = 1 and A = -1, each weighted by 1/6. Up from .001 to .1 is
    a ratio of 100 and a move of .099: trained. From .5 to .7 is a move of .2: masked. Down from .9
    to .7 is a move back where A = 1: trained. With A = -1, .9 to .74 is masked, though its ratio of
    .82 would pass a clip; .5 to .4, and .1 to .3, which comes back, are trained. The gradient is
    -w M r A."""
    sampler = torch.tensor([[0.001, 0.5, 0.9], [0.9, 0.5, 0.1]]).log()
    logp = torch.tensor([[0.1, 0.7, 0.7], [0.74, 0.4, 0.3]]).log().requires_grad_()
    advantages = torch.tensor([[1.0], [-1]]).expand(2, 3)
    inputs = LossInputs(None, logp.detach(), sampler, advantages, torch.full((2, 3), 1 / 6))
    method("DPPO").loss(logp, inputs).backward()
    expected = torch.tensor([[-100, 0, -0.7 / 0.9], [0, 0.8, 3]]) / 6
    torch.testing.assert_close(logp.grad, expected)


@pytest.mark.parametrize(
    "settings, factors",
    [
        ({}, [[0.5, 4, 1], [1, 1.6, 0]]),  # IcePop: all are from 0.5 to 5
        ({"high": 3.0}, [[0.5, 0, 1], [1, 1.6, 0]]),
        ({"how": "truncate", "high": 2.0}, [[0.5, 2, 1], [1, 1.6, 0]]),
        ({"level": "sequence", "low": 0.0, "high": 3.0}, [[2, 2, 2], [1.6, 1.6, 0]]),  # TRL
        ({"level": "sequence", "high": 1.8}, [[0, 0, 0], [1.6, 1.6, 0]]),
    ],
)
def test_importance_weights_by_hand(settings, factors):
    """pi_old / pi_s is .5, 4, 1 in the first completion, whose product is 2, and 1, 1.6 in the second.
    On the first update the gradient of a token is -w f A."""
    inputs = inputs_of(sampled=OLD - torch.tensor([[1, 0.5, 4, 1], [1, 1, 1.6, 1]]).log())
    logp = OLD.clone().requires_grad_()
    method("MaskedIS", **settings).loss(logp, inputs).backward()
    factors = torch.cat([torch.zeros(2, 1), torch.tensor(factors)], 1)
    torch.testing.assert_close(logp.grad, -inputs.weights * factors * ADVANTAGES[:, None])


def test_only_the_weight_of_a_whole_completion_is_unbiased():
    """Completions of two bits, of which the second depends on the first: all four, each as often as
    an older policy samples it. The exact gradient is that of -sum pi(o) R(o)."""
    first, second = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    rewards = torch.tensor([0.0, 1, 3, 0])

    def log_probs(z):
        logits = torch.stack([z[0].expand(4), z[1 + first]], 1)
        return F.logsigmoid(logits * (2 * torch.stack([first, second], 1) - 1))

    z = torch.tensor([0.3, -0.5, 0.8], requires_grad=True)
    logp, sampler = log_probs(z), log_probs(torch.tensor([-0.4, 0.2, 0.1]))
    often = sampler.sum(1, keepdim=True).exp().expand(4, 2)
    inputs = LossInputs(None, logp.detach(), sampler, rewards[:, None].expand(4, 2), often)
    (exact,) = torch.autograd.grad(-(logp.sum(1).exp() * rewards).sum(), z, retain_graph=True)
    errors = {}
    for level in ("sequence", "token"):
        some = method("MaskedIS", level=level, how="truncate", high=math.inf)
        (found,) = torch.autograd.grad(some.loss(logp, inputs), z, retain_graph=True)
        errors[level] = (found - exact).abs().max().item()
    assert errors["sequence"] < 1e-6 and errors["token"] > 0.1


# ---- KL ------------------------------------------------------------------------------------------


def penalty(name, now, old, ref, weight=1.0, **settings):
    """What the KL adds to the loss where tokens with these log-probs have advantage 0."""
    logp, old, ref = (torch.as_tensor(x)[:, None] for x in (now, old, ref))
    weights = torch.as_tensor(weight).expand(len(logp))[:, None]
    inputs = LossInputs(None, old, old, torch.zeros_like(logp), weights, ref)
    return method(name, kl_coef=1.0, **settings).loss(logp, inputs)


@pytest.mark.parametrize(
    "name, settings, expected",
    [("Reinforce", {"kl": "k1"}, 0.6931), ("Reinforce", {"kl": "k2"}, 0.2402)]
    + [("Reinforce", {"kl": "k3"}, 0.1931), ("DeepSeekV32", {}, 0.1931)]
    + [(name, {}, 0.1931) for name in ("CISPO", "PaperGRPO", "GSPO", "Olmo3")],
)
def test_kl_estimates_by_hand(name, settings, expected):
    """pi = .8, pi_ref = .4: d = ln 2: k1 .6931, k2 .2402, k3 .5 - 1 + .6931 = .1931."""
    now, ref = torch.tensor([0.8]).log(), torch.tensor([0.4]).log()
    assert penalty(name, now, now, ref, **settings).item() == pytest.approx(expected, abs=1e-4)


def test_what_the_gradients_of_the_kl_estimates_are_on_average():
    """Over all tokens of a distribution p, weighted by p: k1's gradient vanishes, k2's is that of
    KL(p || q), k3's that of KL(q || p). The values of k1 and of k3 average to KL(p || q)."""
    z, q = torch.tensor([0.5, -1, 0.2], requires_grad=True), torch.tensor([0.2, 0.3, 0.5])
    logp = z.log_softmax(0)
    p = logp.exp().detach()
    k1, k2, k3 = (
        penalty("Reinforce", logp, p.log(), q.log(), p, kl=name) for name in ("k1", "k2", "k3")
    )
    forward = (logp.exp() * (logp - q.log())).sum()
    backward = (q * (q.log() - logp)).sum()
    grads = [
        torch.autograd.grad(x, z, retain_graph=True)[0] for x in (k1, k2, k3, forward, backward)
    ]
    assert k1.item() == pytest.approx(forward.item()) and k3.item() == pytest.approx(forward.item())
    torch.testing.assert_close(grads[0], torch.zeros(3), atol=1e-7, rtol=0)
    torch.testing.assert_close(grads[1], grads[3])
    torch.testing.assert_close(grads[2], grads[4])


def test_only_deepseeks_kl_is_right_for_what_an_older_policy_sampled():
    """Over all tokens, weighted by the probabilities of pi_old that sampled them: with the ratio
    the value and the gradient are those of KL(pi || ref), without it neither is."""
    z = torch.tensor([0.5, -1, 0.2], requires_grad=True)
    old, ref = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    logp = z.log_softmax(0)
    exact = (logp.exp() * (logp - ref.log())).sum()
    ours = penalty("DeepSeekV32", logp, old.log(), ref.log(), old)
    plain = penalty("PaperGRPO", logp, old.log(), ref.log(), old)
    right, found, wrong = (
        torch.autograd.grad(x, z, retain_graph=True)[0] for x in (exact, ours, plain)
    )
    assert ours.item() == pytest.approx(exact.item()) and abs(plain.item() - exact.item()) > 0.1
    torch.testing.assert_close(found, right)
    assert (wrong - right).abs().max() > 0.1


@pytest.mark.parametrize("name", OWN_LOSS)
def test_the_micro_batches_change_no_loss(model, prompts, name):
    """An older policy, and another engine's log-probs. The last update of a batch is looked at."""
    some = method(name, norm="sequence", kl_coef=0.1)
    some.setup(model, None)
    rollouts = sample(model, prompts, 4, 20)
    rollouts.logp += 0.6 * torch.randn_like(rollouts.logp) * rollouts.mask
    with torch.no_grad():
        old = token_logprobs(model, rollouts.ids, mask=rollouts.mask)
    old = old + 0.3 * torch.randn_like(old) * rollouts.mask
    reference = init_weights(type(model)(model.config), torch.Generator().manual_seed(1))
    advantages = torch.randn(3, 4)
    results = []
    for tokens in (10**9, 60):
        some.kept = {}
        given = {"old_logp": old, "reference": reference}
        results.append(gradient(model, rollouts, advantages, some, tokens, **given))
    (whole, sums), (parts, other) = results
    torch.testing.assert_close(whole, parts, atol=1e-6, rtol=1e-4)
    assert sums["kl"] > 0 and sums["loss"].item() == pytest.approx(other["loss"].item(), abs=1e-5)


# ---- The chapter's page --------------------------------------------------------------------------


def test_the_gradient_of_chapter_is_that_of_the_chapters_page(model, tokenizer):
    """compute_grpo_loss on one prompt, and the method on the completions that it sampled."""

    def even(text, truth):
        return float(len(text) % 2 == 0)

    page = compute_grpo_loss(
        model, tokenizer, "3+4=", "7", num_rollouts=6, max_new_tokens=9, reward_fn=even
    )
    model.zero_grad()
    page["loss_tensor"].backward()
    expected = torch.cat([param.grad.flatten() for param in model.parameters()])
    chapter = method("Chapter", num_samples=6)
    step = Step([], page["rollouts"], [], torch.tensor([page["rewards"]]), [])
    found, sums = gradient(model, page["rollouts"], chapter.advantages(step), chapter)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert sums["loss"].item() == pytest.approx(page["loss"], abs=1e-5)


def test_the_chapter_samples_at_another_temperature_than_it_trains(model, prompts):
    """The sampler's log-probs are those at 0.8; greedy decoding stays greedy."""
    chapter = method("Chapter")
    rollouts = chapter.roll_out(model, None, prompts, how(2, 10, 1.0))
    with torch.no_grad():
        at = {t: token_logprobs(model, rollouts.ids, t, rollouts.mask) for t in (0.8, 1.0)}
    torch.testing.assert_close(rollouts.logp, at[0.8], atol=1e-5, rtol=0)
    assert (rollouts.logp - at[1.0]).abs().max() > 0.01
    greedy = chapter.roll_out(model, None, prompts, how(1, 10, 0.0))
    assert greedy.ids.equal(sample(model, prompts, 1, 10, 0.0).ids)


# ---- A part of the vocabulary --------------------------------------------------------------------


def test_top_p_by_hand():
    """.5 .3 .15 .05 and top-p .75: two tokens are kept, and 80 evenly spread numbers choose them 50
    and 30 times, with .5 / .8 = .625 and .375. Greedy decoding takes the likeliest as ever."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    uniforms = (torch.arange(80) + 0.5) / 80
    some = method("TopP", top_p=0.75)
    token, logp = some.choose(logits.expand(80, 4), uniforms, 1.0)
    assert token.bincount().tolist() == [50, 30]
    found = {*zip(token.tolist(), logp.exp().mul(1000).round().tolist())}
    assert found == {(0, 625), (1, 375)}
    assert some.choose(logits.flip(1), uniforms[:1], 0.0)[0].tolist() == [3]


def test_how_many_tokens_are_kept():
    """Of .5 .3 .15 .05: the first with .5 in all, the first three with .95. One always stays."""
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
    expected = {
        (1, 0): 4,
        (0.9, 0): 3,
        (0.5, 0): 1,
        (1e-9, 0): 1,
        (1, 3): 3,
        (0.9, 2): 2,
        (1, 9): 4,
    }
    found = {filters: kept_tokens(logits, 1.0, *filters) for filters in expected}
    assert {filters: int(kept.sum()) for filters, kept in found.items()} == expected
    assert all(kept[0, 1] for kept in found.values())


def test_what_was_sampled_from_a_part_is_on_policy_only_under_the_kept_mask(model, prompts):
    """Without the mask the trainer finds less probability than the sampler: -log of the mass kept,
    at least top-p. With it, and pi_old = pi, the ratio is 1: the gradient of the loss is -w A."""
    some = method("KeepSamplingMask", top_p=0.7, temperature=0.8)
    some.setup(model, None)
    rollouts = some.roll_out(model, None, prompts, how(4, 20, 0.8))
    keep = torch.ones(12, dtype=torch.bool)
    (micro,) = padded_rows(rollouts, keep, 10**9)
    weights = rollouts.mask[micro.rows]
    inputs = LossInputs(micro, None, rollouts.logp[micro.rows], None, weights)
    with torch.no_grad():
        whole = token_logprobs(model, rollouts.ids[micro.rows], 0.8, weights)
        masked, seen = some.under_mask(whole, inputs)
    ratios = (whole - inputs.sampled_logp).exp()[weights > 0]
    assert 0.69 < ratios.mean() < 0.95
    torch.testing.assert_close(masked, inputs.sampled_logp, atol=1e-4, rtol=0)
    assert seen.old_logp is inputs.sampled_logp


def fixed(*probs):
    """A model whose next token never depends on anything: its hidden states are the logits."""
    logits = torch.tensor(probs).log()

    def model(ids, head, positions, mask):
        return head(logits.expand(*ids.shape, 4), torch.eye(4))

    model.config = SimpleNamespace(num_tokens=4)
    return model


NOTHING = torch.tensor([[0], [0]])
TWO_TOKENS = MicroBatch(NOTHING, NOTHING == 0, torch.tensor([0, 1]))  # of two completions


def test_after_an_update_the_mask_stays_that_of_the_sampler():
    """pi_old .5 .3 .15 .05 kept two tokens, pi is .3 .3 .3 .1. Under the same mask pi is .5 .5;
    pi's own mask would keep three (.333 each), and its ratios would not be 1 on average over what
    was sampled, two thirds of the probability only."""
    some = method("KeepSamplingMask", top_p=0.75)
    inputs = LossInputs(TWO_TOKENS, weights=torch.ones(2, 1))

    def probs(model, *whole):
        some.model = model
        return some.under_mask(torch.tensor([whole]).T.log(), inputs)[0].exp().flatten().tolist()

    some.kept = {}
    assert probs(fixed(0.5, 0.3, 0.15, 0.05), 0.5, 0.3) == pytest.approx([0.625, 0.375])
    assert probs(fixed(0.3, 0.3, 0.3, 0.1), 0.3, 0.3) == pytest.approx([0.5, 0.5])
    some.kept = {}
    assert probs(fixed(0.3, 0.3, 0.3, 0.1), 0.3, 0.3) == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize("name", ["KeepSamplingMask", "DeepSeekV32"])
def test_under_the_mask_the_kl_is_that_of_whole_softmaxes_as_in_the_log(name):
    """pi .5 .3 of two tokens, under the mask .625 .375. A reference of .5 .3 is the same policy: no
    KL, which .625 beside .5 would not be. One of .25 .3 has d = ln 2 in the first: .5 - 1 + .6931."""
    some = method(name, top_p=0.75, kl_coef=1.0)
    some.model = fixed(0.5, 0.3, 0.15, 0.05)
    logp, sampled = torch.tensor([[0.5], [0.3]]).log(), torch.tensor([[0.625], [0.375]]).log()
    for ref, expected in (((0.5, 0.3), 0.0), ((0.25, 0.3), 0.1931)):
        some.kept = {}
        ref_logp = torch.tensor([ref]).T.log()
        none, one = torch.zeros(2, 1), torch.ones(2, 1)
        inputs = LossInputs(TWO_TOKENS, logp, sampled, none, one, ref_logp)
        assert some.loss(logp, inputs).item() == pytest.approx(expected, abs=1e-4)


# ---- The prompt of a group, read once ------------------------------------------------------------


def test_a_line_by_hand():
    """Prompt a b c, completions d e and f: the line is a b | c d | c f. Each c predicts the first
    token of its completion; d stands at position 3 and predicts e; e and f predict nothing."""
    a, b, c, d, e, f = range(1, 7)
    ids = torch.tensor([[a, b, c, d, e], [a, b, c, f, 0]])
    lengths = torch.tensor([2, 1])
    prompts = torch.tensor([3, 3])
    mask = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 0]])
    rollouts = Rollouts(ids, prompts, lengths, lengths > 0, torch.zeros(2, 4), mask, 2)
    micro = micro_batch(rollouts, [[0, 1]])
    assert micro.ids.tolist() == [[a, b, c, d, c]]
    assert micro.positions.tolist() == [[0, 1, 2, 3, 2]]
    assert micro.trained.tolist() == [[False, False, True, True, True]]
    assert micro.rows.tolist() == [0, 1]  # d and e of row 0, f of row 1
    assert micro.mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],  # the second c does not see the first completion
    ]


@pytest.mark.parametrize("tokens", [10**9, 100, 40, 1])
def test_the_gradient_is_that_of_the_padded_layout(model, prompts, tokens):
    """However many lines a micro-batch holds; some rows are left out, and of one completion two
    tokens in the middle are a tool's and not trained."""
    rollouts = sample(model, [prompt * 3 for prompt in prompts], 4, 8)
    rollouts.mask[5, int(rollouts.prompt_lengths[5]) : int(rollouts.prompt_lengths[5]) + 2] = 0.0
    advantages = torch.randn(3, 4)
    advantages[1, 2] = advantages[2, 0] = 0.0
    some = method("SharedPrompts", max_new_tokens=8)
    expected, sums = gradient(model, rollouts, advantages, some)
    found, others = gradient(model, rollouts, advantages, some, tokens, shared_prompts)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for name, total in sums.items():
        assert others[name].item() == pytest.approx(total.item(), abs=1e-4)


def test_the_prompt_is_shared_only_where_it_is_longer_than_what_is_answered(model, prompts):
    """Few-shot prompts: three lines for three groups of 16, of a fifth of the tokens. Otherwise
    rows."""
    some = method("SharedPrompts")
    keep = torch.ones(48, dtype=torch.bool)
    few_shot = sample(model, [prompt * 8 for prompt in prompts], 16, 6, stop_ids=())
    (micro,) = some.layout(few_shot, keep, 10**9)
    (padded,) = padded_rows(few_shot, keep, 10**9)
    assert len(micro.ids) == 3 and micro.ids.numel() < padded.ids.numel() / 4
    (micro,) = some.layout(sample(model, prompts, 16, 20, stop_ids=()), keep, 10**9)
    assert micro.mask is None and len(micro.ids) == 48


# ---- Which problems ------------------------------------------------------------------------------


def problems_with(*answers):
    return [{"problem": f"number {i}", "answer": answer} for i, answer in enumerate(answers)]


def visit(memory, index, accuracy):
    """As the loop does."""
    visits = memory.setdefault("visits", {})
    visits[str(index)] = [*visits.get(str(index), []), accuracy][-3:]


def test_what_teaches_nothing_is_passed_by_and_tried_again():
    """Problem 0 is always solved, 1 never, 2 sometimes, in epochs of three: after 3 visits, 0 and 1
    are passed by once, lose their oldest visit, and are tried again in the next epoch."""
    some = method("SkipSolved", prompts_per_step=1)
    memory, seen = {}, []
    for step in range(1, 16):
        (problem,) = some.pick(range(3), step, memory)
        seen.append(problem)
        visit(memory, problem, {0: 1.0, 1: 0.0, 2: 0.5}[problem])
        memory = json.loads(json.dumps(memory))  # as a checkpoint keeps it
    assert sorted(seen[:9]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert seen[9] == 2 and sorted(seen[10:13]) == [0, 1, 2] and seen[13] == 2


def test_without_memory_it_walks_as_the_core_does():
    memory = {}
    for step in (1, 2, 3):
        usual = GRPO(prompts_per_step=4, seed=3).pick(range(10), step, {})
        assert (
            method("SkipSolved", prompts_per_step=4, seed=3).pick(range(10), step, memory) == usual
        )


def test_the_curriculum_moves_from_easy_to_hard():
    memory = {"visits": {str(i): [i / 200] for i in range(200)}}
    some = method("Curriculum", prompts_per_step=20, slide_steps=10)
    early, late, after = (sum(some.pick(range(200), step, memory)) / 4000 for step in (1, 10, 99))
    assert early > 0.65 and late < 0.55 and after < 0.55


def test_a_step_has_the_target_histogram():
    """Ten problems a step: 1 2 4 2 1 with a mean in the fifths of 0 to 1. 100 problems with means
    0, .01 .. .99; what has not been seen counts as 1/2. Thirds: 2 2 2 of 6."""
    memory = {"visits": {str(i): [i / 100] for i in range(100)}}
    some = method("Stratified", prompts_per_step=10)
    for step in range(1, 6):
        chosen = some.pick(range(100), step, memory)
        assert Counter(index // 20 for index in chosen) == {0: 1, 1: 2, 2: 4, 3: 2, 4: 1}
        assert len({*chosen}) == 10
    assert sorted(method("Stratified", prompts_per_step=3).pick(range(3), 1, {})) == [0, 1, 2]
    thirds = method("Stratified", prompts_per_step=6, target=(1, 1, 1)).pick(range(100), 1, memory)
    assert Counter(index * 3 // 100 for index in thirds) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("name", ["Curriculum", "DAPO", "SkipSolved", "Stratified"])
def test_with_fewer_problems_than_a_step_asks_some_come_twice(name):
    """2 problems, 5 a step: each two or three times (of DAPO's twice as many five times)."""
    chosen = method(name, prompts_per_step=5).pick(problems_with("1", "2"), 1, {})
    assert sorted(map(chosen.count, (0, 1))) == ([5, 5] if name == "DAPO" else [2, 3])


# ---- The cap on the KL ---------------------------------------------------------------------------


def test_the_cap_stops_a_run_and_no_resume_goes_a_step_further():
    """0.1 nats a token and 30 tokens are 3 nats a completion; 0.2 and 30 are 6."""
    some = method("KLCap", kl_cap=5)
    some.after_step({"kl": 0.1, "completion_length": 30.0}, None)
    with pytest.raises(Stopped, match="the KL from the start is 6, above kl_cap 5"):
        some.after_step({"kl": 0.2, "completion_length": 30.0}, None)
    resumed = method("KLCap", kl_cap=5)
    with pytest.raises(Stopped, match="above kl_cap 5"):
        resumed.load_state(json.loads(json.dumps(some.state())))


def test_or_the_weights_are_those_of_the_start_again(model):
    some = method("KLCap", kl_cap=5, on_exceed="reset")
    start = [param.detach().clone() for param in some.setup(model, None)]
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1.0)
    some.after_step({"kl": 0.1, "completion_length": 30.0}, model)
    assert not any(map(torch.equal, model.parameters(), start))
    some.after_step({"kl": 0.2, "completion_length": 30.0}, model)
    assert all(map(torch.equal, model.parameters(), start))


# ---- Runs ----------------------------------------------------------------------------------------

TINY = ROOT / "notebooks" / "tiny"


def canary_file(tmp_path, problems):
    path = tmp_path / "canary.jsonl"
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return str(path)


@pytest.fixture(scope="session")
def teacher(tmp_path_factory):
    """What a method cannot do without: another model with random weights, canaries."""
    folder = tmp_path_factory.mktemp("teacher")
    canaries = canary_file(folder, verifiers.arithmetic(10, 40).test)
    return {
        "Distill": {"teacher": str(make_tiny.make(1, folder / "random", steps=0))},
        "Canary": {"canary": canaries},
    }


@pytest.mark.parametrize("name", SPECS)
def test_two_steps_of_every_method(name, teacher):
    """The loop of train.py in short: problems, completions, advantages, updates. The log-probs of
    the sampler are those of the trainer, except where a method samples in another way; the weights
    move."""
    model, tokenizer = load(TINY, "cpu", torch.float32)
    reference = load(TINY, "cpu", torch.float32)[0]
    task = verifiers.arithmetic(train_size=50, test_size=1)
    sizes = {"prompts_per_step": 3, "num_samples": 8, "max_new_tokens": 50}
    some = method(name, **sizes, **teacher.get(name, {}))
    settings = some.settings
    parameters = some.setup(model, tokenizer)
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    memory = {"visits": {}}
    for number in (1, 2):
        problems = [task.train[index] for index in some.pick(task.train, number, memory)]
        sizes = (settings.num_samples, settings.temperature)
        rows = [f"{number} {row}" for row in range(len(problems) * settings.num_samples)]
        step = roll_out(some, model, tokenizer, task, problems, *sizes, rows, training=True)
        advantages = some.advantages(step)
        old_logp = None
        for _ in range(settings.updates_per_batch):
            given = {"old_logp": old_logp, "reference": reference if settings.kl_coef else None}
            keep = torch.ones(len(rows), dtype=torch.bool)
            micros = some.layout(step.rollouts, keep, 1000)
            sums, logp = update_gradients(model, step.rollouts, advantages, some, micros, **given)
            if old_logp is None:
                mismatch = sums["mismatch"] / sums["tokens"]
                assert mismatch < 1e-5 or name in SAMPLE_OTHERWISE
            old_logp = logp if old_logp is None else old_logp
            assert all(math.isfinite(total) for total in sums.values())
            assert sum(param.grad.abs().sum() for param in parameters) > 0
            optimizer.step()
            optimizer.zero_grad()
        kl = float(sums["kl"] / sums["tokens"])
        some.after_step({"kl": kl, "completion_length": 30.0}, model)
    some.load_state(json.loads(json.dumps(some.state())))


def run(folder, name, *flags):
    """Train two steps by command line -> (config.json, rows of the log)."""
    sizes = "--steps 2 --prompts-per-step 2 --num-samples 8 --max-new-tokens 40 --eval-problems 2"
    place = ["--device", "cpu", "--runs", str(folder), "--name", "r"]
    path = f"{METHODS}/{SPECS[name]}"
    train.main(["--model", str(TINY), "--method", path, *place, *sizes.split(), *flags])
    rows = [json.loads(line) for line in (folder / "r" / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "r" / "config.json").read_text()), rows


def test_a_run_keeps_the_settings_of_its_method(tmp_path):
    """Those of the file, those of the command line, and for the others the defaults."""
    config, rows = run(tmp_path, "CISPO", *"--overlong none --clip 0.5 2 --seed 3".split())
    settings = config["settings"]
    assert settings["overlong"] == "none" and settings["clip"] == [0.5, 2.0]
    assert settings["updates_per_batch"] == 4 and settings["seed"] == 3
    assert len(rows) == 3 and rows[1]["grad_norm"] > 0


# ---- The canary ----------------------------------------------------------------------------------


def test_the_canary_warns_when_the_reward_holds_and_the_strict_share_falls(
    tmp_path, monkeypatch, capsys
):
    """50 canaries, of which 90 % are right, then 80 %, within the noise, then 20 % while the reward rises."""
    problems = verifiers.arithmetic(10, 60).test
    some = method("Canary", canary=canary_file(tmp_path, problems), canary_prompt="{problem}")
    some.setup(*load(ROOT / "notebooks" / "tiny"))
    shares = iter([0.9, 0.8, 0.2])

    def measured(*_):
        share = next(shares)
        low, high = wilson_interval(share, 50)
        return {"accuracy": share, "low": low, "high": high}, []

    monkeypatch.setattr(sys.modules["canary"], "evaluate", measured)
    for reward, share in ((0.5, 0.9), (0.6, 0.8), (0.7, 0.2)):
        assert "warning" not in capsys.readouterr().out
        row = {"reward": reward, "eval_accuracy": 0.5}
        some.after_step(row, None)
        assert row["canary"] == share
    assert "the reward is 0.700, it was 0.500" in capsys.readouterr().out
    again = method("Canary")
    again.load_state(json.loads(json.dumps(some.state())))
    assert again.seen == some.seen


def test_the_canaries_are_sampled_and_judged_letter_by_letter(tmp_path):
    strictest = sys.modules["canary"].strictest
    problem = {"problem": "1/2=", "answer": "0.5"}
    assert strictest(r"\boxed{0.5}", problem)[0] == 1
    assert strictest(r"\boxed{1/2}", problem)[0] == 0  # equal by value
    assert strictest(r"\boxed{7} \boxed{0.5}", problem)[0] == 0  # a guess too many
    model, tokenizer = load(ROOT / "notebooks" / "tiny")
    problems = verifiers.arithmetic(10, 30).test
    flags = {"canary": canary_file(tmp_path, problems), "canary_prompt": "{problem}"}
    some = method("Canary", max_new_tokens=40, **flags)
    some.setup(model, tokenizer)
    row = {"reward": 0.5, "eval_accuracy": 0.1}
    some.after_step(row, model)
    found, _ = evaluate(some, model, tokenizer, verifiers.arithmetic(10, 30), problems)
    assert row["canary"] == pytest.approx(found["accuracy"], abs=0.1)
