"""The methods that notebook 6 tries (maxrl, negative, pass_at_k, noisy_verifier, stale), each worked by hand."""

import itertools
import math

import pytest
import torch

import verifiers
from notebooks.claims.atlas import find
from rlvr import LossInputs, Sampling, Step, group_advantages, token_logprobs


def method(name, **settings):
    return find(name)(**settings)


def step_of(rewards, number=1):
    """A Step with these rewards (P, G) and nothing else that these methods look at."""
    return Step([], None, [], torch.tensor(rewards), [], number=number)


def advantages(name, rewards, **settings):
    return method(name, **settings).advantages(step_of(rewards))


# ---- MaxRL ---------------------------------------------------------------------------------------


def test_maxrl_divides_by_the_mean():
    """Rewards 1 0 0 0 (mean 1/4): 3, -1, -1, -1. Rewards 1 0 1 0 (mean 1/2): 1, -1, 1, -1. Under the
    std the first right one would count 1.73, under nothing 0.75: a rare success counts most here."""
    found = advantages("MaxRL", [[1.0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    expected = torch.tensor([[3.0, -1, -1, -1], [1, -1, 1, -1], [0, 0, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_maxrl_averages_to_the_gradient_of_the_first_terms_of_log_p():
    """A policy that is right with probability p = sigmoid(z): the score d log pi / dz of a right one is
    1 - p, of a wrong one -p. Over all outcomes of G samples the mean of A_i times the score is
    (1 - p) (1 - (1 - p)^(G-1)), that of the first G - 1 terms of log p = -sum_k (1 - p)^k / k, whose
    gradients are (1 - p)^(k-1) p (1 - p). (The baseline holds the completion itself, so of G terms one
    is missing.) As G grows it is 1 - p, the gradient of log p; GRPO without std has p (1 - p) at most."""
    p = 0.3
    for G in (2, 3, 6):
        mean = 0.0
        for outcome in itertools.product([1.0, 0.0], repeat=G):
            chance = math.prod(p if right else 1 - p for right in outcome)
            scores = torch.tensor([1 - p if right else -p for right in outcome])
            mean += chance * (advantages("MaxRL", [[*outcome]])[0] * scores).mean().item()
        series = sum((1 - p) ** (k - 1) * p * (1 - p) for k in range(1, G))
        assert mean == pytest.approx(series, abs=1e-4), G


def test_maxrl_refuses_a_negative_reward():
    """A mean below 0 would turn the signs around: what is better would become less likely."""
    with pytest.raises(verifiers.DataError, match="a reward of -1; it needs rewards of 0 and 1"):
        advantages("MaxRL", [[-1.0, 0, 0, 0]])


# ---- Negative-only -------------------------------------------------------------------------------


def test_only_what_is_wrong_is_trained():
    """Also in a group without a right answer, and in none without a wrong one. 1.1 is right and 0.1 is
    not: DeepSeek-R1-Zero's reward for the form alone."""
    found = advantages("Negative", [[1.1, 0.1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert found.tolist() == [[0, -1, -1, 0], [-1, -1, -1, -1], [0, 0, 0, 0]]


def test_weighted_reinforce_and_positive_only():
    rewards = [[1.0, 0, 0, 1]]
    weighted = advantages("Negative", rewards, positive=0.1)
    torch.testing.assert_close(weighted, torch.tensor([[0.1, -1, -1, 0.1]]))
    only = advantages("Negative", rewards, positive=1.0, negative=0.0)
    assert only.tolist() == [[1, 0, 0, 1]]
    with pytest.raises(ValueError, match="positive is -1"):
        method("Negative", positive=-1.0)


# ---- Pass@k training -----------------------------------------------------------------------------


def test_pass_at_k_by_hand():
    """One right of four, k = 2: of six pairs three hold it, rho = 1/2 and sigma = 1/2. The right one is
    in paid pairs only: (1 - 1/2) / (1/2) = 1. A wrong one is in three pairs, of which one is paid:
    (1/3 - 1/2) / (1/2) = -1/3. With three right all pairs are paid: nothing is left to learn."""
    found = advantages("PassAtK", [[1.0, 0, 0, 0], [1, 1, 1, 0]], best_of=2)
    expected = torch.tensor([[1, -1 / 3, -1 / 3, -1 / 3], [0, 0, 0, 0]])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("right", [1, 2, 3, 4, 5])
def test_pass_at_k_is_the_mean_over_all_groups_of_k(right):
    """Six completions, k = 3: the twenty groups one by one, each with the reward of its best."""
    rewards = [1.0] * right + [0.0] * (6 - right)
    groups = [*itertools.combinations(range(6), 3)]
    paid = torch.tensor([max(rewards[i] for i in group) for group in groups])
    sigma = paid.std(correction=0)
    expected = []
    for i in range(6):
        own = torch.tensor([i in group for group in groups])
        expected.append((paid[own].mean() - paid.mean()) / sigma if sigma > 0 else torch.zeros(()))
    found = advantages("PassAtK", [rewards], best_of=3, num_samples=6)[0]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)


def test_pass_at_1_is_grpo():
    rewards = [[1.0, 0, 0, 0, 1, 0], [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]
    found = advantages("PassAtK", rewards, best_of=1)
    torch.testing.assert_close(found, group_advantages(torch.tensor(rewards)), atol=1e-4, rtol=0)


def test_k_is_at_most_g():
    """An evaluation may take fewer samples than that; only training sets the method up."""
    some = method("PassAtK", best_of=9, num_samples=8)
    with pytest.raises(
        verifiers.DataError, match="best_of is 9, and must be from 1 to num_samples, 8"
    ):
        some.setup(None, None)


# ---- A noisy verifier ----------------------------------------------------------------------------


def test_the_verifier_errs_as_often_as_it_says():
    """20 % of 40,000 wrong answers are paid, and 5 % of as many right ones are not."""
    some = method("NoisyVerifier", false_accepts=0.2, false_rejects=0.05)
    rewards = [[1.0, 0.0] * 8] * 5000
    judged = some.judged(step_of(rewards))
    assert judged[:, 1::2].mean().item() == pytest.approx(0.2, abs=0.01)
    assert judged[:, 0::2].mean().item() == pytest.approx(0.95, abs=0.01)
    assert judged.equal(some.judged(step_of(rewards)))  # the same in every process
    assert not judged.equal(some.judged(step_of(rewards, number=2)))
    honest = method("NoisyVerifier").judged(step_of(rewards))
    assert honest.equal(torch.tensor(rewards))


def test_a_coin_knows_nothing():
    """Half of the wrong and half of the right are paid;"""
    rates = {"false_accepts": 0.5, "false_rejects": 0.5}
    coin = method("NoisyVerifier", **rates)
    judged = coin.judged(step_of([[1.0, 0.0] * 8] * 5000))
    assert judged[:, 0::2].mean().item() == pytest.approx(0.5, abs=0.01)
    assert judged[:, 1::2].mean().item() == pytest.approx(0.5, abs=0.01)
    with pytest.raises(ValueError, match="together at most 1"):
        method("NoisyVerifier", false_accepts=0.7, false_rejects=0.5)


# ---- Staleness -----------------------------------------------------------------------------------


def sampled(some, model, prompts, training):
    """Completions with the same random numbers each time."""
    uniforms = torch.rand(len(prompts) * 2, 10, generator=torch.Generator().manual_seed(0))
    how = Sampling(2, 10, 1.0, None, uniforms, None, training, None)
    return some.roll_out(model, None, prompts, how)


def move(model):
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1 * torch.randn_like(param))


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_completions_are_those_of_the_policy_so_many_steps_ago(model, prompts, staleness):
    """Three steps, each of which moves the weights: what is sampled in the fourth has the log-probs of
    the policy after step 3 - staleness; the weights are today's again, and an evaluation uses them."""
    some = method("Stale", staleness=staleness)
    some.setup(model, None)
    past = []
    for _ in range(3):
        move(model)
        some.after_step({}, model)
        past.append({name: value.clone() for name, value in model.state_dict().items()})
    rollouts = sampled(some, model, prompts, True)
    assert all(map(torch.equal, model.state_dict().values(), past[2].values()))
    evaluated = sampled(some, model, prompts, False)
    for found, weights in ((evaluated, past[2]), (rollouts, past[2 - staleness])):
        model.load_state_dict(weights)
        with torch.no_grad():
            logp = token_logprobs(model, found.ids, 1.0, found.mask)
        torch.testing.assert_close(found.logp, logp, atol=1e-4, rtol=0)
    assert rollouts.ids.equal(evaluated.ids) == (staleness == 0)


def test_two_ways_with_an_older_policy_by_hand():
    """One token each of two completions, A = 1 and -1, weights 1/2. pi_now / pi_s is 4 and 1/2; pi is
    pi_now still, so the gradients are: none -1/2 and 1/2, as if on-policy;
    ppo: a ratio of 4 above 1.2 with A = 1 is clipped, 1/2 below .8 with A = -1 too: 0."""
    now = torch.tensor([[-1.0], [-2.0]])
    sampler = now - torch.tensor([[4.0], [0.5]]).log()
    halves, credit = torch.full((2, 1), 0.5), torch.tensor([[1.0], [-1.0]])
    inputs = LossInputs(None, now, sampler, credit, halves)
    expected = {"none": [-0.5, 0.5], "ppo": [0.0, 0.0]}
    for correct, values in expected.items():
        logp = now.clone().requires_grad_()
        method("Stale", correct=correct).loss(logp, inputs).backward()
        assert logp.grad.flatten().tolist() == pytest.approx(values), correct
    assert inputs.weights.tolist() == [[0.5], [0.5]] and inputs.old_logp is now


def test_settings_of_stale_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="staleness is -1"):
        method("Stale", staleness=-1)
    with pytest.raises(ValueError, match="correct 'vtrace'"):
        method("Stale", correct="vtrace")
