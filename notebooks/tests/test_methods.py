"""notebooks/methods: what each method changes, worked by hand. test_methods_runs.py trains with them."""

import copy
import itertools
import json
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rlvr
import train
from appendix.plumbing import DataError, get_method
from model import ModelError
from notebooks.models.make_tiny import init_weights
from rlvr import Batch, LossInputs, MicroBatch, Rollouts
from rlvr import group_advantages, padded_rows, row_uniforms, sample, token_logprobs

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "notebooks" / "tiny"
METHODS = ROOT / "notebooks" / "methods"
FILES = {path.name: path.read_text() for path in sorted(METHODS.glob("*.py"))}
SPECS = {}  # name of the class -> FILE.py:Class
for file, text in FILES.items():
    for name in re.findall(r"^class (\w+)\([\w, ]+\):", text, re.M):
        SPECS[name] = f"{file}:{name}"
sys.path.insert(0, str(METHODS))

from gdpo import terms_of
from keep_sampling_mask import KeepSamplingMask
from kl import KL, kl_penalty
from shared_prompts import shared_prompts


def method(name, **settings):
    return get_method(rlvr.GRPO, f"{METHODS}/{SPECS[name]}", settings)


OWN_LOSS = [name for name in SPECS if "loss" in vars(type(method(name)))]


# ---- Every method --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPECS)
def test_a_method_says_what_it_is_and_stands_in_the_table(name):
    file = SPECS[name].partition(":")[0]
    document = FILES[file].split('"""')[1]
    shared = len(re.findall(r"^class \w+\([\w, ]+\):", FILES[file], re.M)) > 1
    if shared:
        document = document.partition(f"\n{name}: ")[2]
    for part in ("\nSource:", "\nFormula:", "\nChanges:", "\nMissing:"):
        assert part in document
    row = f"| [{SPECS[name] if shared else file}]({file}) |"
    assert row in (METHODS / "README.md").read_text()


REFUSED = {
    "DAPO": {"overlong": "soften"},
    "TopP": {"top_p": 0.0},
    "Stale": {"staleness": -1},
    "NoisyVerifier": {"false_accepts": 1.5},
    "TinyLoRA": {"numbers": 0},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_cannot_be_is_refused(name):
    with pytest.raises(ValueError, match=[*REFUSED[name]][0]):
        method(name, **REFUSED[name])


class Counts(rlvr.GRPO):
    """A second method, whose state is the number of steps so far."""

    def after_step(self, row, model):
        self.steps += 1

    def state(self):
        return {"steps": self.steps}

    def load_state(self, state):
        self.steps = state["steps"]


REMEMBER = [name for name in SPECS if {"state", "after_step"} & {*vars(type(method(name)))}]


@pytest.mark.parametrize("name", REMEMBER)
def test_of_two_methods_in_one_the_second_keeps_its_state(model, name):
    both = type("Both", (type(method(name)), Counts), {})()
    both.load_state({"kl": 1.0, "seen": [], "steps": 7})
    both.after_step({"kl": 0.1, "completion_length": 30.0}, model)
    assert both.state()["steps"] == 8


SETTINGS = {
    "Chapter": {"prompts_per_step": 1, "num_samples": 4, "norm": "sum"},
    "CISPO": {"clip": (0.999, 3.0), "updates_per_batch": 4, "norm": "token"},
    "DAPO": {"clip": (0.2, 0.28), "norm": "token", "scale": "std"},
    "DPPO": {"norm": "constant", "scale": "none", "delta": 0.15},
    "DrGRPO": {"norm": "constant", "scale": "none"},
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


def batch_of(rewards, lengths=None, limit=100, finished=None, parts=None, step=1):
    """Return a Batch with these rewards (P, G), lengths of completions (P*G,) and parts. Prompts have one
    token. Completions as long as the limit were cut off."""
    rewards = torch.tensor(rewards)
    lengths = torch.tensor(lengths or [5] * rewards.numel())
    finished = lengths < limit if finished is None else torch.tensor(finished)
    ids = torch.zeros(len(lengths), int(lengths.max()) + 1, dtype=torch.long)
    logp = torch.zeros(ids[:, 1:].shape)
    mask = (torch.arange(ids.size(1) - 1) < lengths[:, None]).float()  # a prompt is one token
    G = rewards.size(1)
    rollouts = Rollouts(ids, torch.ones_like(lengths), lengths, finished, logp, mask, G)
    return Batch([], rollouts, [], rewards, parts, step=step)


def advantages(name, rewards, **settings):
    return method(name, **settings).advantages(batch_of(rewards))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("PaperGRPO", [[1.7320, -0.5773, -0.5773, -0.5773], [1, -1, 1, -1]]),
        ("DrGRPO", [[0.75, -0.25, -0.25, -0.25], [0.5, -0.5, 0.5, -0.5]]),
        ("RLOO", [[1, -1 / 3, -1 / 3, -1 / 3], [2 / 3, -2 / 3, 2 / 3, -2 / 3]]),
        ("LitePPO", [[1.4491, -0.4830, -0.4830, -0.4830], [0.9661, -0.9661, 0.9661, -0.9661]]),
        ("Chapter", [[1.5, -0.5, -0.5, -0.5], [0.8660, -0.8660, 0.8660, -0.8660]]),
        ("MaxRL", [[3.0, -1, -1, -1], [1, -1, 1, -1]]),
        ("Negative", [[0.0, -1, -1, -1], [0, -1, 0, -1]]),
    ],
)
def test_advantages_by_hand(name, expected):
    """The rewards are 1 0 0 0 (mean 1/4, std sqrt(3)/4 = 0.4330) and 1 0 1 0 (mean 1/2, std 1/2). RLOO
    leaves one out: the first gets 1 - 0, the others of its group 0 - 1/3. LitePPO takes the std of the
    batch: 3 of 8 are 1, so the squared differences from 3/8 add up to 3 * 5/8 = 1.875, and
    sqrt(1.875 / 7) = 0.5175. The chapter divides by G - 1: its stds are sqrt(0.75 / 3) = 0.5 and
    sqrt(1 / 3) = 0.5774. MaxRL divides by the mean: a rare success counts most."""
    found = advantages(name, [[1.0, 0, 0, 0], [1, 0, 1, 0]])
    torch.testing.assert_close(found, torch.tensor(expected), atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["Chapter", "DAPO", "PaperGRPO", "LitePPO", "MaxRL", "RLOO"])
def test_equal_rewards_give_exactly_zero(name):
    assert advantages(name, [[0.1] * 5, [1.0, 0, 0, 0, 0]])[0].tolist() == [0.0] * 5
    assert not advantages(name, [[0.7] * 5] * 2).any()


def test_maxrl_refuses_a_negative_reward():
    """A mean below 0 would reverse the signs: better completions would become less likely."""
    with pytest.raises(DataError, match="a reward of -1; it needs rewards of 0 and 1"):
        advantages("MaxRL", [[-1.0, 0, 0, 0]])


@pytest.mark.parametrize("right", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [1, 3])
def test_pass_at_k_is_the_mean_over_all_groups_of_k(right, k):
    """It lists all groups of k of six completions. Each gets the reward of its best; with k = 1 this is GRPO."""
    rewards = [1.0] * right + [0.0] * (6 - right)
    groups = [*itertools.combinations(range(6), k)]
    paid = torch.tensor([max(rewards[i] for i in group) for group in groups])
    sigma = paid.std(correction=0)
    expected = []
    for i in range(6):
        own = torch.tensor([i in group for group in groups])
        expected.append((paid[own].mean() - paid.mean()) / sigma if sigma > 0 else torch.zeros(()))
    found = advantages("PassAtK", [rewards], best_of=k, num_samples=6)
    torch.testing.assert_close(found[0], torch.stack(expected), atol=1e-5, rtol=0)


def test_k_is_at_most_g():
    """Only training calls setup, which checks this: an evaluation may use fewer samples."""
    some = method("PassAtK", best_of=9, num_samples=8)
    with pytest.raises(DataError, match="must be from 1 to num_samples, 8"):
        some.setup(None, None)


@pytest.mark.parametrize("accepts, rejects", [(0.2, 0.05), (0.7, 0.6), (1.0, 0.9)])
def test_the_verifier_errs_as_often_as_it_says(accepts, rejects):
    """In the first case 20 % of 40,000 wrong answers are rewarded, and 5 % of 40,000 right ones are not.
    In the other two, wrong answers are rewarded more often than right ones."""
    some = method("NoisyVerifier", false_accepts=accepts, false_rejects=rejects)
    rewards = [[1.0, 0.0] * 8] * 5000
    judged = some.judged(batch_of(rewards))
    assert judged[:, 1::2].mean().item() == pytest.approx(accepts, abs=0.01)
    assert judged[:, 0::2].mean().item() == pytest.approx(1 - rejects, abs=0.01)
    assert judged.equal(some.judged(batch_of(rewards)))  # the same in every process
    assert not judged.equal(some.judged(batch_of(rewards, step=2)))


def test_no_truth_is_looked_at():
    """The rewards say that 3 is right; the majority says 7. Completions that were cut off have no vote:
    in the second group only the answer 5 counts."""
    answers = ["7", "7", "3", None, "4", "4", "5", None]
    finished = [True] * 4 + [False, False, True, True]
    batch = batch_of([[0.0, 0, 1, 0], [1, 1, 0, 0]], finished=finished)
    batch.texts = [f"\\boxed{{{answer}}}" if answer else "none" for answer in answers]
    expected = torch.tensor([[1, 1, -1, -1], [-0.5773, -0.5773, 1.7320, -0.5773]])
    found = method("TTRL").advantages(batch)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


# ---- GDPO ----------------------------------------------------------------------------------------


def parts_of(weights, *columns, finished=None, names=("accuracy", "format")):
    """Return a Batch of one group whose rewards weight these columns of parts by these weights."""
    columns = torch.tensor(columns)
    finished = finished or [True] * columns.size(1)
    rewards = torch.tensor(weights) @ columns * torch.tensor(finished)
    usual = {"accuracy": 0.0, "answered": 1.0, "failed": 0.0, "truncated": 0.0}
    parts = [{**usual, **dict(zip(names, row))} for row in columns.T.tolist()]
    return batch_of([rewards.tolist()], finished=finished, parts=parts)


def test_gdpo_tells_apart_what_a_sum_confuses():
    """Accuracy is 1 0 0 0 and format 1 1 0 1. Normalised separately they are 1.732, -0.577, -0.577, -0.577
    and 0.577, 0.577, -1.732, 0.577. The sums 2.309, 0, -2.309, 0 have the root mean square 1.633, so the
    advantages are 1.414, 0, -1.414, 0. With accuracy 0 0 1 0 and format 1 1 0 0 three completions have
    the same sum; normalised separately, the rarer accuracy counts for more."""
    gdpo = method("GDPO")
    both = gdpo.advantages(parts_of([1.0, 1], [1.0, 0, 0, 0], [1.0, 1, 0, 1]))
    torch.testing.assert_close(both, torch.tensor([[1.4142, 0, -1.4142, 0]]), atol=1e-3, rtol=0)
    batch = parts_of([1.0, 1], [0.0, 0, 1, 0], [1.0, 1, 0, 0])
    assert batch.rewards.tolist() == [[1, 1, 1, 0]]
    rarer = gdpo.advantages(batch)[0]
    assert rarer[2] > rarer[0] > rarer[3]


def test_gdpo_counts_what_was_cut_off_and_what_failed_as_nothing():
    """R = accuracy - 0.5 language. The third and fourth are cut off: the third has lost 0.5, and the
    fourth earns nothing. The verifier failed on the last: it gets the worst reward of the group, and
    no terms."""
    finished = [True, True, False, False, True]
    columns = ([1.0, 0, 0, 1, 0], [0.0, 0, 1, 1, 0])
    batch = parts_of([1.0, -0.5], *columns, finished=finished, names=("accuracy", "language"))
    batch.rewards = torch.tensor([[1.0, 0, -0.5, 0, -0.5]])
    batch.parts[4] = {"accuracy": 0.0, "answered": 0.0, "failed": 1.0, "truncated": 0.0}
    (one, accuracy), (minus, language) = terms_of(batch)
    assert (one, minus) == pytest.approx((1, -0.5))
    assert accuracy.tolist() == [[1, 0, 0, 0, 0]] and language.tolist() == [[0, 0, 1, 0, 0]]
    (found,) = method("GDPO").advantages(batch).tolist()
    # If it were better than another, a policy would learn to crash its verifier.
    assert found[4] == min(found) < 0


def test_gdpo_refuses_a_reward_that_is_no_sum_of_its_parts():
    """The reward is a coin's. If its logged accuracy were trained on, it would no longer be a control."""
    batch = parts_of([1.0, 0.1], [1.0, 0, 0, 0] * 4, [0.0, 1, 0, 0] * 4)
    batch.rewards = torch.tensor([[1.0, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0]])
    refusal = r"no weighted sum .*\(accuracy, format, answered\)"
    with pytest.raises(DataError, match=refusal):
        method("GDPO").advantages(batch)


# ---- DAPO: completions that were cut off, and groups without a gradient --------------------------


def dapo(**settings):
    return method("DAPO", **{"max_new_tokens": 100, "prompts_per_step": 2, **settings})


def test_what_a_completion_that_is_cut_off_costs():
    """The rewards are 1, 0 and 0, the lengths 50, 90 and 100 of 100, so the third is cut off. The mean is
    1/3 and the std 0.4714. filter: the third is not trained on, and the loss is divided by 140 tokens, not
    by 240. soft: 0, 0.5 and 1 are subtracted, which gives 1, -0.5, -1, with mean -1/6 and std 0.8498. The
    penalty is 0 at 80 tokens and 0.25 at 85."""
    batch = batch_of([[1.0, 0, 0]], [50, 90, 100])
    expected = {
        "none": [1.4142, -0.7071, -0.7071],
        "filter": [1.4142 * 240 / 140, -0.7071 * 240 / 140, 0],
        "soft": [1.3728, -0.3922, -0.9806],
    }
    for overlong, values in expected.items():
        found = dapo(overlong=overlong, prompts_per_step=1).advantages(batch)[0]
        assert found.tolist() == pytest.approx(values, abs=1e-3)
    late = dapo(prompts_per_step=1).advantages(batch_of([[1.0, 1, 0]], [80, 85, 10]))[0]
    torch.testing.assert_close(late, group_advantages(torch.tensor([1.0, 0.75, 0])))


@pytest.mark.parametrize("norm", ["token", "sequence", "constant", "sum"])
def test_what_is_filtered_is_not_in_the_divisor(norm):
    """The first and the last group are trained on; three of their completions are cut off. The loss equals
    that of a batch with only the other five."""
    rewards = [[1.0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]]
    batch = batch_of(rewards, [10, 20, 100, 100, 5, 5, 5, 5, 100, 30, 40, 50])
    five, mask = [0, 1, 9, 10, 11], batch.rollouts.mask
    alone = group_advantages(batch.rewards).view(12, 1)[five]
    found = dapo(norm=norm, overlong="filter").advantages(batch).view(12, 1)
    found = found * rlvr.loss_weights(mask, norm, 100)
    torch.testing.assert_close(found[five], alone * rlvr.loss_weights(mask[five], norm, 100))
    assert found.any(1).nonzero().flatten().tolist() == five


@pytest.mark.parametrize("long, penalty", [(100, 1), (85, 0.25)])
@pytest.mark.parametrize("short", [0.1, 1 / 3])
def test_rewards_that_the_penalty_makes_equal_have_no_advantage(long, penalty, short):
    """In fp32 1.1 - 1 is not 0.1. That difference, divided by an equally small std, must not become an
    advantage."""
    batch = batch_of([[short + penalty, short, short, short]], [long, 9, 9, 9], finished=[True] * 4)
    assert dapo().advantages(batch).tolist() == [[0.0] * 4]


def test_dapo_keeps_the_first_mixed_groups_and_their_divisor():
    """There are 4 groups of 2, and P = 2. Groups 1 and 3 are mixed, 0 is solved, 2 is hopeless. All have
    10 + 10 + 20 + 30 + 15 + 15 + 10 + 20 = 130 tokens, the mixed ones 80: the advantages +-1 become
    +-130/80, and Olmo 3's R - mean half of that. With the norm sequence the factor is 4 groups over 2."""
    batch = batch_of([[1.0, 1], [1, 0], [0, 0], [0, 1]], [10, 10, 20, 30, 15, 15, 10, 20])
    expected = torch.tensor([[0.0, 0], [1, -1], [0, 0], [-1, 1]])
    torch.testing.assert_close(dapo().advantages(batch), expected * 130 / 80)
    # One of three is mixed; the first one fills the batch. The penalty for 90 tokens makes no group mixed.
    few = batch_of([[1.0, 1], [1, 0], [0, 0]], [10, 90, 20, 30, 15, 15])
    torch.testing.assert_close(dapo().advantages(few), expected[:3] * 180 / 150)
    olmo = method("Olmo3", prompts_per_step=2)
    torch.testing.assert_close(olmo.advantages(batch), expected * 130 / 80 / 2)
    torch.testing.assert_close(dapo(norm="sequence").advantages(batch), expected * 4 / 2)


def gradient(model, rollouts, credit, some, tokens=10**9, layout=padded_rows, keep=None, **more):
    """Return the gradient of the method's loss as one vector, and the sums of update_gradients."""
    model.zero_grad()
    credit = credit.reshape(len(rollouts.ids), -1) * rollouts.mask
    keep = (credit != 0).any(1) if keep is None else keep
    micros = layout(rollouts, keep, tokens)
    sums, _ = rlvr.update_gradients(model, rollouts, credit, some, micros, **more)
    return torch.cat([param.grad.flatten() for param in model.parameters()]), sums


# ---- Losses --------------------------------------------------------------------------------------

# Two completions, of 3 tokens (A = 1) and of 2 (A = -1), and their ratios; column 0 is the prompt.
RATIOS = torch.tensor([[1, 1.5, 0.5, 1], [1, 0.5, 1.5, 1]])
MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0.0]])
ADVANTAGES = torch.tensor([1.0, -1])
OLD = torch.tensor([[0, -1.0, -2, -3], [0, -1, -2, 0]])
NOW = OLD + RATIOS.log()


def inputs_of(norm="token", sampled=OLD):
    """Return what a loss looks at. Its MicroBatch has no tokens, because there is no model."""
    weights = rlvr.loss_weights(MASK, norm, max_new_tokens=4)
    micro = MicroBatch(None, None, torch.arange(2))
    return LossInputs(micro, OLD, sampled, ADVANTAGES[:, None] * MASK, weights)


def without_kl(name, **settings):
    """Return the method. If it has a KL term, the term is set to 0."""
    some = method(name, **settings)
    if isinstance(some, KL):
        some.settings.kl_coef = 0.0
        some.mask = some.ref_logp = MASK
    return some


def value(name, norm, logp=NOW, inputs=None, **settings):
    return without_kl(name, **settings).loss(logp, inputs or inputs_of(norm)).item()


def test_clip_higher_by_hand():
    """min(r A, clip(r) A) is min(1.5, 1.28) + min(0.5, 0.8) + 1 = 2.78 in the first completion, and
    min(-0.5, -0.8) + min(-1.5, -1.28) = -2.3 in the second. The token mean is 0.48 / 5; with the usual
    clip it is (2.7 - 2.3) / 5."""
    assert value("DAPO", "token") == pytest.approx(-0.48 / 5)
    assert value("DAPO", "token", clip=(0.2, 0.2)) == pytest.approx(-0.4 / 5)


def test_gspo_by_hand():
    """The geometric means are (1.5 * 0.5 * 1)^(1/3) = 0.9086 and (0.5 * 1.5)^(1/2) = 0.8660. With clip
    0.1 the second, whose A is negative, is clipped to 0.9: the mean over rows is (0.9086 - 0.9) / 2."""
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


def test_sapo_by_hand():
    """4 / tau sigmoid(tau (r - 1)): sigmoid(x) + sigmoid(-x) is 1, so ratios of .5 and 1.5 give 4 / tau
    together, and a ratio of 1 gives 2 / tau. tau is 1, and 1.05 where A is negative."""
    assert value("SAPO", "token") == pytest.approx(-(4 + 2 - 4 / 1.05) / 5)


def test_gmpo_by_hand():
    """The logs of ratios are clipped on the side of A. In the first completion ln 1.5 is clipped to 0.4, but
    not ln 0.5; in the second, with A = -1, ln 0.5 is clipped to -0.4, but not ln 1.5."""
    first = math.exp((0.4 + math.log(0.5) + 0) / 3)
    second = math.exp((-0.4 + math.log(1.5)) / 2)
    assert value("GMPO", "sequence") == pytest.approx(-(first - second) / 2)


@pytest.mark.parametrize("name", OWN_LOSS)
def test_on_policy_all_have_the_gradient_of_the_chapter(name):
    logp = OLD.clone().requires_grad_()
    inputs = inputs_of("sequence")
    unfiltered = {"top_p": 1.0} if name == "KeepSamplingMask" else {}
    without_kl(name, **unfiltered).loss(logp, inputs).backward()
    torch.testing.assert_close(logp.grad, -inputs.weights * inputs.advantages)


SAMPLER = OLD - torch.tensor([[1, 0.4, 4, 1], [1, 1, 1.6, 1]]).log()


FACTORS = [("Olmo3", [[0.4, 2, 1], [1, 1.6, 0]]), ("MaskedIS", [[0, 4, 1], [1, 1.6, 0]])]


@pytest.mark.parametrize("name, factors", FACTORS)
def test_importance_weights_by_hand(name, factors):
    """pi_old / pi_sampler is 0.4, 4, 1 in the first completion, and 1, 1.6 in the second. Olmo 3 truncates at 2; MaskedIS
    masks outside 0.5 to 5. In the first update a token's gradient is -w f A. (conformance/ tests whole completions.)"""
    inputs = inputs_of(sampled=SAMPLER)
    logp = OLD.clone().requires_grad_()
    method(name).loss(logp, inputs).backward()
    factors = torch.cat([torch.zeros(2, 1), torch.tensor(factors)], 1)
    torch.testing.assert_close(logp.grad, -inputs.weights * factors * ADVANTAGES[:, None])


def test_completions_that_the_policy_has_left_are_masked_by_hand():
    """The second completion (A = -1) has ratios .5 and 1.5, so log(pi_sampler / pi) is on average
    -ln(.75) / 2 = .144, above .1: it is masked, and 2.7 of test_clip_higher_by_hand is left, over
    all five tokens. A delta of .2 keeps it, and so does a sampler with e^-.05 of the probability:
    .144 - .05. The first has .096, above .05, but A = 1."""
    assert value("DeepSeekV32", "token") == pytest.approx(-2.7 / 5)
    assert value("DeepSeekV32", "token", delta=0.2) == pytest.approx(-0.4 / 5)
    unlikely = inputs_of(sampled=OLD - 0.05)
    assert value("DeepSeekV32", "token", inputs=unlikely) == pytest.approx(-0.4 / 5)
    assert value("DeepSeekV32", "token", delta=0.05) == pytest.approx(-2.7 / 5)


# ---- KL ------------------------------------------------------------------------------------------


def test_the_kl_of_nearly_equal_models_is_never_negative():
    """exp(-d) - 1 + d is d^2 / 2 for small d. In fp32 exp(-d) - 1 keeps three digits of d = 1e-4, and a
    part of the sums comes out below 0."""
    d = 1e-4 * torch.randn(1, 10_000)
    zeros = torch.zeros_like(d)
    each = [kl_penalty(d[:, i : i + 1], zeros[:, :1], torch.ones(1, 1)).item() for i in range(500)]
    assert min(each) >= 0
    exact = (d.double() ** 2 / 2).sum().item()
    assert kl_penalty(d, zeros, torch.ones_like(d)).item() == pytest.approx(exact, rel=1e-2)
    assert (torch.exp(-d) - 1 + d).min() < 0, "the plain formula would be negative here"


def move(model):
    """Return the model, moved some way off."""
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1 * torch.randn_like(param))
    return model


@pytest.mark.parametrize("half", [False, True])
def test_the_kl_reaches_rows_without_an_advantage(model, prompts, half):
    """All rewards are equal, but the KL still pulls back to the start. Autocast keeps 16-bit copies of the weights; it
    must not use the start's copies for the policy."""
    rollouts = sample(model, prompts, 4, 20)
    start = move(copy.deepcopy(model))
    some = method("KL", kl_coef=0.5)
    some.setup(start, None)
    assert some.rows(rollouts, torch.zeros_like(rollouts.logp)).all()
    before = copy.deepcopy(model.state_dict())
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        given = (rollouts, torch.zeros(3, 4), some)
        pulled, sums = gradient(model, *given, keep=torch.ones(12, dtype=torch.bool))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logp, ref = (token_logprobs(m, rollouts.ids, mask=rollouts.mask) for m in (model, start))
    kl = kl_penalty(logp, ref, rlvr.loss_weights(rollouts.mask))
    grads = torch.autograd.grad(kl / 2, model.parameters())
    expected = torch.cat([grad.flatten() for grad in grads])
    close = 0.05 if half else 1e-3
    assert (sums["kl"] / sums["tokens"]).item() == pytest.approx(kl.item(), rel=close)
    assert sums["loss"].item() == pytest.approx(kl.item() / 2, rel=close)
    assert (pulled - expected).norm() < close * expected.norm()
    assert all(map(torch.equal, model.state_dict().values(), before.values()))


def test_a_model_is_not_away_from_itself(model, prompts):
    """Both log-probs are computed at the sampling temperature."""
    some = method("KL", temperature=0.7)
    some.setup(model, None)
    _, sums = gradient(model, sample(model, prompts, 4, 20), torch.randn(3, 4), some)
    assert abs(sums["kl"] / sums["tokens"]) < 1e-9


@pytest.mark.parametrize("name", "DAPO GSPO CISPO DPPO Olmo3 RLOO MaskedIS Reinforce".split())
def test_another_method_with_a_kl_has_the_gradients_of_both(model, prompts, name):
    kind = type(method(name))
    own = {}
    if kind.Settings is not rlvr.GRPO.Settings:
        own = {"Settings": dataclass(type("Settings", (kind.Settings, KL.Settings), {}))}
    both = type("Both", (KL, kind), own)(kl_coef=0.5)
    assert vars(both.settings).items() >= vars(method(name).settings).items()
    alone = method("KL", kl_coef=0.5, norm=both.settings.norm)
    for some in (both, alone):
        some.setup(copy.deepcopy(model), None)
    move(model)
    rollouts = sample(model, prompts, 4, 20)
    credit = torch.randn(3, 4)
    # Old log-probs of another policy, so that the losses differ.
    old = rollouts.logp + 0.6 * torch.randn_like(rollouts.logp) * rollouts.mask
    given = {"keep": torch.ones(12, dtype=torch.bool), "old_logp": old}
    found, _ = gradient(model, rollouts, credit, both, **given)
    own, _ = gradient(model, rollouts, credit, method(name), **given)
    kl, _ = gradient(model, rollouts, torch.zeros(3, 4), alone, **given)
    torch.testing.assert_close(found, own + kl, atol=1e-6, rtol=1e-4)


def penalty(name, now, old, ref, weight=1.0, **settings):
    """Return what the KL adds to the loss for tokens with these log-probs and an advantage of 0."""
    logp, old, ref = (torch.as_tensor(x)[:, None] for x in (now, old, ref))
    weights = torch.as_tensor(weight).expand(len(logp))[:, None]
    micro = MicroBatch(None, None, torch.arange(len(logp)))
    inputs = LossInputs(micro, old, old, torch.zeros_like(logp), weights)
    some = method(name, kl_coef=1.0, **settings)
    some.ref_logp, some.mask = ref, torch.ones_like(ref)
    return some.loss(logp, inputs)


PULLS = [("KL", {"kl": "k1"}, 0.6931), ("KL", {"kl": "k2"}, 0.2402), ("KL", {"kl": "k3"}, 0.1931)]
PULLS += [(name, {}, 0.1931) for name in ("PaperGRPO", "KLCap", "DeepSeekV32")]


@pytest.mark.parametrize("name, settings, expected", PULLS)
def test_kl_estimates_by_hand(name, settings, expected):
    """pi = 0.8 and pi_ref = 0.4, so d = ln 2: k1 is 0.6931, k2 0.2402, k3 0.5 - 1 + 0.6931 = 0.1931."""
    now, ref = torch.tensor([0.8]).log(), torch.tensor([0.4]).log()
    assert penalty(name, now, now, ref, **settings).item() == pytest.approx(expected, abs=1e-4)


def test_only_deepseeks_kl_is_right_for_what_an_older_policy_sampled():
    """The sum over all tokens is weighted by pi_old, which sampled them. With the ratio, value and gradient
    are those of KL(pi || ref); without it neither is."""
    z = torch.tensor([0.5, -1, 0.2], requires_grad=True)
    old, ref = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    logp = z.log_softmax(0)
    exact = (logp.exp() * (logp - ref.log())).sum()
    ours = penalty("DeepSeekV32", logp, old.log(), ref.log(), old)
    plain = penalty("PaperGRPO", logp, old.log(), ref.log(), old)
    kinds = exact, ours, plain
    right, found, wrong = (torch.autograd.grad(x, z, retain_graph=True)[0] for x in kinds)
    assert ours.item() == pytest.approx(exact.item()) and abs(plain.item() - exact.item()) > 0.1
    torch.testing.assert_close(found, right)
    assert (wrong - right).abs().max() > 0.1


@pytest.mark.parametrize("name", OWN_LOSS)
def test_the_micro_batches_change_no_loss(model, prompts, name):
    """The old log-probs are another policy's and the sampled ones another engine's, as in the last update of a batch."""
    some = method(name, norm="sequence")
    some.setup(init_weights(type(model)(model.config), torch.Generator().manual_seed(1)), None)
    if isinstance(some, KeepSamplingMask):
        some.model = model
    rollouts = sample(model, prompts, 4, 20)
    rollouts.logp += 0.6 * torch.randn_like(rollouts.logp) * rollouts.mask
    with torch.no_grad():
        old = token_logprobs(model, rollouts.ids, mask=rollouts.mask)
    old = old + 0.3 * torch.randn_like(old) * rollouts.mask
    credit = torch.randn(3, 4)
    results = []
    for tokens in (10**9, 60):
        some.kept = {}
        results.append(gradient(model, rollouts, credit, some, tokens, old_logp=old))
    (whole, sums), (parts, other) = results
    torch.testing.assert_close(whole, parts, atol=1e-6, rtol=1e-4)
    assert ("kl" in sums) == isinstance(some, KL)
    for column in sums:
        assert sums[column].item() == pytest.approx(other[column].item(), rel=1e-4, abs=1e-5)


# ---- The chapter's page --------------------------------------------------------------------------


def test_the_gradient_of_chapter_is_that_of_the_chapters_page(model, tokenizer):
    """compute_grpo_loss samples for one prompt, and the method gets the same completions."""
    given = {"num_rollouts": 6, "max_new_tokens": 9}
    given["reward_fn"] = lambda text, truth: float(len(text) % 2 == 0)
    page = rlvr.compute_grpo_loss(model, tokenizer, "3+4=", "7", **given)
    model.zero_grad()
    page["loss_tensor"].backward()
    expected = torch.cat([param.grad.flatten() for param in model.parameters()])
    chapter = method("Chapter", num_samples=6)
    batch = Batch([], page["rollouts"], [], torch.tensor([page["rewards"]]), [])
    found, sums = gradient(model, page["rollouts"], chapter.advantages(batch), chapter)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert sums["loss"].item() == pytest.approx(page["loss"], abs=1e-5)


def roll_out(some, model, prompts, *sizes, uniforms=None, training=True):
    """Sample with a method from a model, until its stop token. sizes: num_samples, max_new_tokens, temperature."""
    how = dict(zip(("num_samples", "max_new_tokens", "temperature"), sizes))
    return some.roll_out(model, None, prompts, training, uniforms=uniforms, **how)


def test_the_chapter_samples_at_another_temperature_than_it_trains(model, prompts):
    """The sampler's log-probs are at temperature 0.8. Greedy decoding stays greedy."""
    chapter = method("Chapter")
    rollouts = roll_out(chapter, model, prompts, 2, 10, 1.0)
    with torch.no_grad():
        at = {t: token_logprobs(model, rollouts.ids, t, rollouts.mask) for t in (0.8, 1.0)}
    torch.testing.assert_close(rollouts.logp, at[0.8], atol=1e-5, rtol=0)
    assert (rollouts.logp - at[1.0]).abs().max() > 0.01
    greedy = roll_out(chapter, model, prompts, 1, 10, 0.0)
    assert greedy.ids.equal(sample(model, prompts, 1, 10, 0.0).ids)


# ---- An older policy -----------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_completions_are_those_of_the_policy_so_many_steps_ago(model, prompts, staleness):
    """Each step moves the weights. Samples of the fourth step have the log-probs of the policy `staleness`
    steps earlier; afterwards the model has its own weights back, and an evaluation uses them. A resumed
    run loads its checkpoint's weights and state, and begins with these weights."""
    some = method("Stale", staleness=staleness)
    uniforms = row_uniforms(range(6), 10, 0)
    policies = []
    for _ in range(4):
        policies.append(copy.deepcopy(model))
        rollouts = roll_out(some, model, prompts, 2, 10, 1.0, uniforms=uniforms)
        evaluated = roll_out(some, model, prompts, 2, 10, 1.0, uniforms=uniforms, training=False)
        move(model)
        some.after_step({}, model)
    some.load_state({})
    resumed = roll_out(some, model, prompts, 2, 10, 1.0, uniforms=uniforms)
    expected = (evaluated, policies[3]), (rollouts, policies[3 - staleness]), (resumed, model)
    for found, policy in expected:
        with torch.no_grad():
            logp = token_logprobs(policy, found.ids, 1.0, found.mask)
        torch.testing.assert_close(found.logp, logp, atol=1e-4, rtol=0)
    assert rollouts.ids.equal(evaluated.ids) == (staleness == 0)


def test_with_and_without_the_ratio_to_an_older_policy_by_hand():
    """Two completions have one token each, A = 1 and -1, and weights 1/2. pi_now / pi_s is 4 and 1/2, and pi
    is still pi_now: without a correction the gradients are -1/2 and 1/2, as if on-policy. ppo clips both,
    a ratio of 4 above 1.2 with A = 1 and a ratio of 1/2 below 0.8 with A = -1, so the gradients are 0."""
    now = torch.tensor([[-1.0], [-2.0]])
    sampler = now - torch.tensor([[4.0], [0.5]]).log()
    halves, credit = torch.full((2, 1), 0.5), torch.tensor([[1.0], [-1.0]])
    for correct, values in {"none": [-0.5, 0.5], "ppo": [0.0, 0.0]}.items():
        logp = now.clone().requires_grad_()
        inputs = LossInputs(None, now, sampler, credit, halves)
        method("Stale", correct=correct).loss(logp, inputs).backward()
        assert logp.grad.flatten().tolist() == pytest.approx(values)


# ---- A part of the vocabulary --------------------------------------------------------------------


def test_top_p_by_hand():
    """With probabilities 0.5 0.3 0.15 0.05 and top-p 0.75 two tokens are kept. 80 evenly spread numbers choose
    them 50 and 30 times, with 0.5 / 0.8 = 0.625 and 0.375. Greedy decoding takes the likeliest token."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    uniforms = (torch.arange(80) + 0.5) / 80
    some = method("TopP", top_p=0.75, top_k=3)
    token, logp = some.choose(logits.expand(80, 4), uniforms, 1.0)
    assert token.bincount().tolist() == [50, 30]
    found = {*zip(token.tolist(), logp.exp().mul(1000).round().tolist())}
    assert found == {(0, 625), (1, 375)}
    assert some.choose(logits.flip(1), uniforms[:1], 0.0)[0].tolist() == [3]


def test_what_was_sampled_from_a_part_is_on_policy_only_under_the_kept_mask(model, prompts):
    """Without the mask a token is less likely to the trainer than to the sampler, by the kept mass, which is
    at least top-p. With the mask, and pi_old = pi, the log-probs agree, so the ratio is 1."""
    some = method("KeepSamplingMask", top_p=0.7, temperature=0.8)
    some.setup(model, None)
    rollouts = roll_out(some, model, prompts, 4, 20, 0.8)
    keep = torch.ones(12, dtype=torch.bool)
    (micro,) = padded_rows(rollouts, keep, 10**9)
    weights = rollouts.mask[micro.rows]
    inputs = LossInputs(micro, None, rollouts.logp[micro.rows], None, weights)
    with torch.no_grad():
        whole = token_logprobs(model, rollouts.ids[micro.rows], 0.8, weights)
        masked, seen = some.under_mask(whole, inputs)
    assert 0.69 < (whole - inputs.sampled_logp).exp()[weights > 0].mean() < 0.95
    torch.testing.assert_close(masked, inputs.sampled_logp, atol=1e-4, rtol=0)
    assert seen.old_logp is inputs.sampled_logp


def fixed(*probs):
    """Return a model whose next token always has these probabilities: its hidden states are the logits."""
    logits = torch.tensor(probs).log()

    def model(ids, head, positions, mask):
        return head(logits.expand(*ids.shape, 4), torch.eye(4))

    model.config = SimpleNamespace(num_tokens=4)
    return model


NOTHING = torch.tensor([[0], [0]])
TWO_TOKENS = MicroBatch(NOTHING, NOTHING == 0, torch.tensor([0, 1]))  # of two completions


def test_after_an_update_the_mask_stays_that_of_the_sampler():
    """pi_old 0.5 0.3 0.15 0.05 kept two tokens, and pi is 0.3 0.3 0.3 0.1. Under the same mask pi is 0.5 0.5.
    Its own mask would keep three tokens (0.333 each); then the ratios of the sampled tokens would average
    2/3, not 1."""
    some = method("KeepSamplingMask", top_p=0.75)
    inputs = LossInputs(TWO_TOKENS, weights=torch.ones(2, 1))

    def probs(model, *whole):
        some.model = model
        return some.under_mask(torch.tensor([whole]).T.log(), inputs)[0].exp().flatten().tolist()

    some.kept = {}
    assert probs(fixed(0.5, 0.3, 0.15, 0.05), 0.5, 0.3) == pytest.approx([0.625, 0.375])
    assert probs(fixed(0.3, 0.3, 0.3, 0.1), 0.3, 0.3) == pytest.approx([0.5, 0.5])


# ---- The prompt of a group, read once ------------------------------------------------------------


@pytest.mark.parametrize("tokens", [10**9, 100, 40, 1])
def test_the_gradient_is_that_of_the_padded_layout(model, prompts, tokens):
    """This holds for any number of lines in a micro-batch. Some rows are left out, and one completion has two
    tokens in the middle that a tool wrote and that are not trained."""
    rollouts = sample(model, [prompt * 3 for prompt in prompts], 4, 8)
    rollouts.mask[5, int(rollouts.prompt_lengths[5]) : int(rollouts.prompt_lengths[5]) + 2] = 0.0
    credit = torch.randn(3, 4)
    credit[1, 2] = credit[2, 0] = 0.0
    some = method("SharedPrompts", max_new_tokens=8)
    expected, sums = gradient(model, rollouts, credit, some)
    found, others = gradient(model, rollouts, credit, some, tokens, shared_prompts)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for name, total in sums.items():
        assert others[name].item() == pytest.approx(total.item(), abs=1e-4)


def test_the_prompt_is_shared_only_where_it_is_longer_than_what_is_answered(model, prompts):
    """With long few-shot prompts, three groups of 16 take three lines; otherwise each completion takes its own."""
    keep = torch.ones(48, dtype=torch.bool)
    for times, length, lines in ((8, 6, 3), (1, 20, 48)):
        rollouts = sample(model, [prompt * times for prompt in prompts], 16, length, stop_ids=())
        (micro,) = method("SharedPrompts").layout(rollouts, keep, 10**9)
        assert len(micro.ids) == lines


# ---- Which problems ------------------------------------------------------------------------------


def test_what_teaches_nothing_is_passed_by_and_tried_again():
    """Problem 0 is always solved, 1 never and 2 sometimes; an epoch has these three. After 3 visits 0 and 1
    are skipped once, lose their oldest visit, and are tried again in the next epoch."""
    some = method("SkipSolved", prompts_per_step=1)
    memory, seen = {"visits": {}}, []
    for step in range(1, 16):
        some.chosen = ()
        (problem,) = some.pick(range(3), step, memory)
        seen.append(problem)
        visits = memory["visits"].get(str(problem), [])
        memory["visits"][str(problem)] = [*visits, {0: 1.0, 1: 0.0, 2: 0.5}[problem]][-3:]
        memory = json.loads(json.dumps(memory))  # as a checkpoint keeps it
    assert sorted(seen[:9]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert seen[9] == 2 and sorted(seen[10:13]) == [0, 1, 2] and seen[13] == 2


def test_a_problem_keeps_the_accuracies_of_its_last_three_visits():
    some, memory = method("Curriculum", prompts_per_step=2), {}
    for right in ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]):
        chosen = some.pick(range(2), 1, memory)
        batch = batch_of(
            [right, right[::-1]],
            parts=[{"accuracy": x, "truncated": 0.0} for x in right + right[::-1]],
        )
        some.advantages(batch)
        memory = json.loads(json.dumps(memory))  # as a checkpoint keeps it
        assert sorted(chosen) == [0, 1]
    assert memory["visits"] == {"0": [1.0, 0.0, 0.5], "1": [1.0, 0.0, 0.5]}
    some.pick(range(2), 5, memory)
    # Here a user's own advantages method hides Visits.advantages.
    with pytest.raises(DataError, match="nothing called Visits.advantages"):
        some.pick(range(2), 6, memory)


def test_the_curriculum_moves_from_easy_to_hard():
    memory = {"visits": {str(i): [i / 200] for i in range(200)}}
    some = method("Curriculum", prompts_per_step=20, slide_steps=10)
    means = []
    for step in (1, 10, 99):
        some.chosen = ()
        means.append(sum(some.pick(range(200), step, memory)) / 4000)
    early, late, after = means
    assert early > 0.65 and late < 0.55 and after < 0.55


def test_a_step_has_the_target_histogram():
    """Of the ten problems of a step 1, 2, 4, 2 and 1 have means in the fifths of 0 to 1. There are 100
    problems, with means 0, 0.01, .., 0.99."""
    memory = {"visits": {str(i): [i / 100] for i in range(100)}}
    some = method("Stratified", prompts_per_step=10)
    for step in range(1, 6):
        some.chosen = ()
        chosen = some.pick(range(100), step, memory)
        assert Counter(index // 20 for index in chosen) == {0: 1, 1: 2, 2: 4, 3: 2, 4: 1}
        assert len({*chosen}) == 10


def test_a_mean_on_a_boundary_is_not_moved_by_rounding():
    """Accuracies are fp32 numbers: 0.7, 0.7 and 0.4 must be as hard as 0.6, 0.6 and 0.6, and the mean of
    1, 1 and 0.85 is not above 0.95."""
    visits = {"0": [0.6] * 3, "1": [0.7, 0.7, 0.4], "2": [1.0, 1.0, 0.85]}
    visits = {index: torch.tensor(last).tolist() for index, last in visits.items()}
    seen = set()
    for step in range(20):
        seen |= {*method("Stratified", prompts_per_step=1).pick(range(2), step, {"visits": visits})}
    assert seen == {0, 1}  # a step of one problem takes it from one fifth
    memory = {"visits": {"0": visits["2"]}}
    method("SkipSolved", prompts_per_step=1).pick(range(1), 1, memory)
    assert len(memory["visits"]["0"]) == 3  # it was not skipped


# ---- A cap on the KL --------------------------------------------------------------------------


def test_the_cap_stops_a_run_and_no_resume_goes_a_step_further():
    """0.1 nats a token and 30 tokens are 3 nats a completion; 0.2 and 30 are 6."""
    some = method("KLCap", kl_cap=5)
    some.after_step({"kl": 0.1, "completion_length": 30.0}, None)
    with pytest.raises(rlvr.Stopped, match="the KL from the start is 6, above kl_cap 5"):
        some.after_step({"kl": 0.2, "completion_length": 30.0}, None)
    with pytest.raises(rlvr.Stopped, match="above kl_cap 5"):
        method("KLCap", kl_cap=5).load_state(json.loads(json.dumps(some.state())))


def test_or_the_weights_are_those_of_the_start_again(model):
    some = method("KLCap", kl_cap=5, on_exceed="reset")
    start = [param.detach().clone() for param in some.setup(model, None)]
    move(model)
    some.after_step({"kl": 0.1, "completion_length": 30.0}, model)
    assert not any(map(torch.equal, model.parameters(), start))
    some.after_step({"kl": 0.2, "completion_length": 30.0}, model)
    assert all(map(torch.equal, model.parameters(), start))


# ---- A teacher, and adapters ---------------------------------------------------------------------


def test_the_credit_of_a_token_is_how_much_likelier_the_teacher_finds_it(model, prompts):
    """The test computes it from two whole forward passes."""
    rollouts = sample(model, prompts, 4, 12)
    some = method("Distill", teacher_tokens=50)
    some.teacher = init_weights(type(model)(model.config), torch.Generator().manual_seed(1))
    credit = some.advantages(Batch([], rollouts, [], None, []))
    expected = token_logprobs(some.teacher, rollouts.ids) - token_logprobs(model, rollouts.ids)
    torch.testing.assert_close(credit, (expected * rollouts.mask).detach(), atol=1e-5, rtol=0)


def test_a_teacher_must_be_named_and_speak_the_same_tokens(model, tokenizer):
    with pytest.raises(ModelError, match="needs a teacher"):
        method("Distill").setup(model, tokenizer)
    with pytest.raises(ModelError, match="has other tokens"):
        method("Distill", teacher=str(TINY)).setup(model, tokenizer)


def test_only_the_adapters_are_trained_and_what_is_exported_is_the_adapted_model(model):
    """Each of two blocks has seven linear layers, and each layer r * (in + out) new numbers. With B = 0 the
    model is the base, bit for bit."""
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    shapes = [m.weight.shape for m in model.modules() if isinstance(m, torch.nn.Linear)]
    some = method("LoRA", rank=4)
    parameters = some.setup(model, None)
    assert len(shapes) == 14 and [p for p in model.parameters() if p.requires_grad] == parameters
    assert sum(p.numel() for p in parameters) == 4 * sum(a + b for a, b in shapes)
    exported = some.export(model).state_dict()
    assert exported.keys() == start.keys()
    assert all(torch.equal(weight, start[name]) for name, weight in exported.items())
    for param in some.setup(model, None):
        torch.nn.init.normal_(param, std=0.1)
    ids = torch.randint(1, 10, (3, 9))
    adapted = model(ids)
    torch.testing.assert_close(some.export(model)(ids), adapted, atol=1e-4, rtol=1e-4)


def test_thirteen_numbers_move_all_layers(model):
    """At 0 the model is the base. Each of the 14 matrices changes by a matrix of rank 2, and so does the
    exported model."""
    ids = torch.randint(1, 10, (3, 9))
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    before = model(ids)
    some = method("TinyLoRA")
    (v,) = some.setup(model, None)
    assert v.shape == (13,) and torch.equal(model(ids), before)
    torch.nn.init.normal_(v)
    adapted = model(ids)
    with train.cast_weights(torch.bfloat16, model):  # as for sampling on a GPU
        torch.testing.assert_close(model(ids).float(), adapted, atol=0.5, rtol=0.1)
    torch.testing.assert_close(some.export(model)(ids), adapted, atol=1e-4, rtol=1e-4)
    changes = [weight - start[name] for name, weight in model.state_dict().items()]
    ranks = [torch.linalg.matrix_rank(change, rtol=1e-3) for change in changes if change.any()]
    assert ranks == [2] * 14


def test_sgd_keeps_nothing_but_the_weight():
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = method("SGD").optimizer([weight], 0.1)
    (2 * weight).sum().backward()
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 * 2) and not any(optimizer.state.values())
