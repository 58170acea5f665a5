"""The exact atlas: its sums agree with sampling and with the core's own update, and it shows when a method is wrong."""

import copy

import pytest
import torch
import torch.nn.functional as F

from notebooks.claims import atlas
from notebooks.look import keep
from rlvr import GRPO, token_advantages, update_gradients

RLOO = atlas.find("RLOO")


@pytest.fixture(scope="module")
def world():
    return atlas.World(n=500)


@pytest.fixture(scope="module")
def later(world):
    """The rows of the second prompt, for a policy that is a random step away from the one that sampled."""
    policy = copy.deepcopy(world.policy)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.03 * torch.randn_like(weight)
    rows = atlas.make_rows(policy, [1], sampler=world.policy)
    assert 0.01 < rows.p @ (rows.sampled - rows.logp).sum(1) < 1.0  # nats a completion
    return rows


def exact(method, rows):
    return atlas.expected(method, rows, atlas.listing(method, rows))


def cosine(a, b):
    return F.cosine_similarity(a, b, 0).item()


def test_every_completion_is_listed_once(world):
    assert atlas.N == len(set(atlas.COMPLETIONS)) == 1365
    for one, rate in zip(world.ones, atlas.PASS_RATES):
        assert one.p.sum().item() == pytest.approx(1)
        assert (one.p @ one.reward).item() == pytest.approx(rate, abs=0.002)


def test_the_exact_gradient_is_that_of_autograd(world):
    (loss,) = [atlas.log_probs(world.policy, 1).sum(1).exp() @ world.ones[1].reward]
    parts = torch.autograd.grad(loss, [*world.policy.parameters()])
    flat = torch.cat([part.flatten() for part in parts])
    assert torch.allclose(flat, world.truths[1], atol=1e-12)


@pytest.mark.parametrize("G", [2, 4, 8, 16])
def test_rloo_is_the_exact_gradient(world, G):
    for one, truth in zip(world.ones, world.truths):
        mean, _ = exact(RLOO(num_samples=G, max_new_tokens=5), one)
        assert (mean - truth).norm() < 1e-9 * truth.norm()


FRESH = [(GRPO, {}), ("PaperGRPO", {}), ("MaxRL", {})]
FRESH += [("PassAtK", {"best_of": 2}), ("Negative", {})]
STALE = [("Stale", {"correct": "ppo"}), ("GSPO", {"clip": (0.2, 0.2)}), ("MaskedIS", {})]


def agree(kind, given, rows, policy, n=4000):
    """Check that a sampled mean is within three standard errors of the exact one, along it and in ten other directions."""
    kind = kind if kind is GRPO else atlas.find(kind)
    method = atlas.ready(kind, policy, num_samples=4, **given)
    mean, trace = exact(method, rows)
    updates = atlas.sampled(method, rows, n)
    others = torch.randn(10, len(mean), generator=torch.Generator().manual_seed(2)).double()
    axes = F.normalize(torch.cat([mean[None], others]), dim=1)
    seen = updates @ axes.T
    z = (seen.mean(0) - axes @ mean) / (seen.std(0) / n**0.5)
    assert z.abs().max() < 3
    assert (updates.var(0).sum() / trace).item() == pytest.approx(1, abs=3 / n**0.5)


@pytest.mark.parametrize("kind, given", FRESH)
def test_sampling_gives_the_same(world, kind, given):
    agree(kind, given, world.ones[1], world.policy)


@pytest.mark.slow
@pytest.mark.parametrize("kind, given", STALE)
def test_sampling_an_older_policy_gives_the_same(later, world, kind, given):
    later.old = later.logp if kind == "MaskedIS" else later.sampled
    agree(kind, given, later, world.policy, 20000)


@pytest.mark.parametrize("name", ["PaperGRPO", "MaxRL"])
def test_the_core_makes_the_same_update(world, name):
    """They differ only because the core computes log-probs in fp32."""
    method = atlas.ready(atlas.find(name), world.policy)
    picks = atlas.draw(method, world.batch, 1, world.batch.p)[0]
    batch = atlas.batch_of(world.batch, picks)
    every = torch.ones(picks.numel(), dtype=torch.bool)
    micros = method.layout(batch.rollouts, every, 100)
    model = copy.deepcopy(world.policy)
    update_gradients(model, batch.rollouts, token_advantages(method, batch), method, micros)
    theirs = -torch.cat([weight.grad.flatten() for weight in model.parameters()])
    (ours,) = atlas.sampled(method, world.batch, 1)
    assert (ours - theirs).norm() < 1e-6 * ours.norm()


class WrongSign(RLOO):
    def advantages(self, batch):
        return -super().advantages(batch)


class NoStop(RLOO):
    """The last token of a completion is not trained."""

    def loss(self, logp, inputs):
        inside = F.pad(inputs.weights[:, 1:], (0, 1)) > 0
        return -(inputs.weights * inside * inputs.advantages * logp).sum()


class Across(RLOO):
    """The baseline is the mean over the prompts of the step."""

    def advantages(self, batch):
        return batch.rewards - batch.rewards.mean()


def test_a_wrong_sign_and_an_untrained_stop_are_biases(world):
    cells = dict(zip(atlas.COLUMNS[1:], world.row(WrongSign(max_new_tokens=5))))
    assert cells["cos"].item() == pytest.approx(-1)
    cells = dict(zip(atlas.COLUMNS[1:], world.row(NoStop(max_new_tokens=5))))
    assert cells["cos"] < 0.9 and cells["error"] == 0


def test_a_baseline_across_prompts_is_no_bias_but_noise(world):
    cells = dict(zip(atlas.COLUMNS[1:], world.row(Across(max_new_tokens=5))))
    right = dict(zip(atlas.COLUMNS[1:], world.row(RLOO(max_new_tokens=5))))
    assert cells["cos at 0.3"] is None  # groups meet: the steps are sampled
    assert abs(cells["cos"] - 1) < 3 * cells["error"] + 0.01
    assert cells["s/n"] < 0.95 * right["s/n"]


def test_a_method_that_reads_the_answers_is_sampled(world):
    assert atlas.listing(atlas.ready(atlas.find("TTRL"), world.policy), world.ones[2]) is None


def test_rloo_maximises_p_itself(world):
    """For RLOO F' is 1 at every p, so F(0.1) = 0.1. Dividing by the group's std makes F steeper near 0 and 1."""
    p = torch.linspace(0, 1, 101).double()
    for name, at in {"RLOO": 0.1, "PaperGRPO": 0.134}.items():
        table = atlas.two_sides(atlas.ready(atlas.find(name), world.policy), world.ones[1])
        means = torch.stack([atlas.mean_advantages(table, one) for one in p])
        slopes = means[:, 0] - means[:, 1]
        slopes = slopes / slopes[50]
        assert torch.trapezoid(slopes[:11], p[:11]).item() == pytest.approx(at, abs=5e-4)


def test_a_path_begins_with_the_exact_mean_update(world):
    """mean_update equals the sum over all groups, and a small first step along it gains what was asked for."""
    method = RLOO(num_samples=4, max_new_tokens=5)
    policy, rows = world.policy, world.batch
    table = atlas.two_sides(method, rows)
    logp = torch.cat([atlas.log_probs(policy, prompt) for prompt in range(3)])
    update = atlas.mean_update(method, table, rows, policy, logp)
    mean = torch.stack([exact(method, one)[0] for one in world.ones]).mean(0)
    assert torch.allclose(update, mean, atol=1e-9)
    first, second = atlas.follow(method, policy, steps=1, gain=0.001)
    J = [now.sum(1).exp() @ rows.reward / 3 for now in (first, second)]
    assert (J[1] - J[0]).item() == pytest.approx(0.001, rel=0.05)


def test_the_kept_rows_are_those_of_todays_methods(world):
    kept = keep.load("atlas")
    rows = {name: numbers for name, *numbers in kept["rows"]}
    assert rows.keys() == atlas.kinds_that_differ().keys()
    for name in ("RLOO", "PaperGRPO", "DeepSeekV32"):  # exact: nothing is sampled
        cells = world.row(atlas.ready(atlas.find(name), world.policy))
        assert atlas.shown(name, cells) == [name, *rows[name][: len(cells)]]
