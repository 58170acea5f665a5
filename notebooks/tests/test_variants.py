"""GRPO and its family: notebooks/variants.py beside the core's own, worked by hand and in a run."""

import dataclasses
import gzip
import json
import math
import re
import shlex
from types import SimpleNamespace

import pytest
import torch

import make_tiny
import ranks
import rlvr
import train
import variants
import verifiers
from conftest import ROOT
from rlvr import (
    Rollouts,
    choose,
    group_advantages,
    kl_penalty,
    loss_weights,
    policy_loss,
    sample,
    token_logprobs,
    update_gradients,
)

V = f"{ROOT / 'notebooks' / 'variants.py'}:"
LOSSES = {
    "ppo": policy_loss,
    "gspo": variants.gspo,
    "cispo": variants.cispo,
    "reinforce": variants.reinforce,
}
OTHERS = (
    variants.tis,
    variants.sequence_mask,
    variants.deepseek,
    variants.ppo_k1,
    variants.ppo_k2,
    variants.ppo_k3_ratio,
)

# ---- Advantages ------------------------------------------------------------------------------------


def batch_of(lengths, limit=100, **flags):
    """What an advantage function is told besides rewards: completions of these lengths."""
    lengths = torch.tensor(lengths)
    flags = {"max_new_tokens": limit, "loss_norm": "token", "prompts_per_step": 2, **flags}
    return {
        "rollouts": SimpleNamespace(lengths=lengths, finished=lengths < limit),
        "parts": None,
        "flags": SimpleNamespace(**flags),
    }


@pytest.mark.parametrize(
    "advantage, expected",
    [
        (group_advantages, [[1.7320, -0.5773, -0.5773, -0.5773], [1, -1, 1, -1]]),
        (variants.loo, [[1, -1 / 3, -1 / 3, -1 / 3], [2 / 3, -2 / 3, 2 / 3, -2 / 3]]),
        (variants.batch, [[1.4491, -0.4830, -0.4830, -0.4830], [0.9661, -0.9661, 0.9661, -0.9661]]),
    ],
)
def test_advantages_by_hand(advantage, expected):
    """Rewards 1 0 0 0 (mean 1/4, std sqrt(3)/4 = .4330) and 1 0 1 0 (mean 1/2, std 1/2). Leave one
    out: the first has 1 - 0, the others of its group 0 - 1/3. Batch: 3 of 8 are 1, so the squares
    of what differs from 3/8 add up to 3 * 5/8 = 1.875, and sqrt(1.875 / 7) = .5175."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 0, 1, 0]])
    torch.testing.assert_close(advantage(rewards), torch.tensor(expected), atol=2e-4, rtol=0)


def test_the_std_of_the_batch_holds_what_differs_between_groups():
    """Two groups, one solved: 1 1 1 1 and 1 0 0 0. Within the groups only the second differs, by
    3/4 + 3/16 = .75 in squares; the raw rewards have 5 ones of 8: 5 * 3/8 = 1.875, more than twice
    as much, as in Lite PPO's own code. (Divided by the former the first would be 2.45, not 1.45.)"""
    advantages = variants.batch(torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0]]))
    assert advantages[0].tolist() == [0.0] * 4
    assert advantages[1, 0].item() == pytest.approx(0.75 / math.sqrt(1.875 / 7), abs=1e-4)


@pytest.mark.parametrize(
    "advantage",
    [group_advantages, variants.loo, variants.batch, variants.mask, variants.mixed_only],
)
def test_equal_rewards_give_exactly_zero(advantage):
    rewards = torch.tensor([[0.1] * 5, [1.0, 0, 0, 0, 0]])
    about = batch_of([5] * 10)
    assert advantage(rewards, **about)[0].tolist() == [0.0] * 5
    assert not advantage(torch.full((2, 5), 0.7), **about).any()


# ---- GDPO ------------------------------------------------------------------------------------------


def taken_apart(weights, *columns, finished=None, names=("accuracy", "format"), more=None):
    """rewards (1, G) and what GDPO is told, of a reward with these weights and columns of parts."""
    columns = torch.tensor(columns)
    finished = torch.ones(columns.size(1), dtype=torch.bool) if finished is None else finished
    rewards = (torch.tensor(weights) @ columns * finished)[None]
    parts = [
        {
            "accuracy": 0.0,
            "answered": 1.0,
            "failed": 0.0,
            "truncated": 0.0,
            **dict(zip(names, row.tolist())),
            **(more or {}),
        }
        for row in columns.T
    ]
    return {"rewards": rewards, "rollouts": SimpleNamespace(finished=finished), "parts": parts}


def test_gdpo_tells_apart_what_a_sum_confuses():
    """Accuracy 1 0 0 0 and format 1 1 0 1. Apart: 1.732, -.577, -.577, -.577 and .577, .577,
    -1.732, .577; the sums 2.309, 0, -2.309, 0 have the mean square 2.667, root 1.633: 1.414, 0,
    -1.414, 0. With accuracy 0 0 1 0 and format 1 1 0 0 three completions have the same sum; apart
    the rarer accuracy counts for more."""
    both = variants.gdpo(**taken_apart([1.0, 1], [1.0, 0, 0, 0], [1.0, 1, 0, 1]))
    torch.testing.assert_close(both, torch.tensor([[1.4142, 0, -1.4142, 0]]), atol=1e-3, rtol=0)
    told = taken_apart([1.0, 1], [0.0, 0, 1, 0], [1.0, 1, 0, 0])
    assert told["rewards"].tolist() == [[1, 1, 1, 0]]
    rarer = variants.gdpo(**told)[0]
    assert rarer[2] > rarer[0] > rarer[3]


def test_gdpo_weighs_the_terms_as_the_reward_does():
    """Accuracy 1 0 0 0 and format 0 1 0 0, R = accuracy + 0.1 format: each term apart is 1.732 for
    the one that has it and -.577 for the others, so 1.732 - .0577, .1732 - .577, -.635, -.635: the
    squares add up to 2.803 + .163 + 2 * .403, root of the mean .971."""
    advantages = variants.gdpo(**taken_apart([1.0, 0.1], [1.0, 0, 0, 0], [0.0, 1, 0, 0]))[0]
    raw = torch.tensor([1.6743, -0.4041, -0.6351, -0.6351])
    torch.testing.assert_close(advantages, raw / raw.square().mean().sqrt(), atol=1e-3, rtol=0)


def test_a_reward_of_one_term_has_the_plain_advantages_over_the_batch():
    """One group, so the std of the batch is that of the group: GRPO's own advantages."""
    told = taken_apart([1.0], [1.0, 0, 0, 1], names=("accuracy",))
    torch.testing.assert_close(variants.gdpo(**told), group_advantages(told["rewards"]))


def test_the_terms_are_the_rewards_own_and_those_logged_first():
    """R = 2 accuracy - 0.5 language; "copy" equals language, and thinking has no part in it."""
    accuracy = [1.0, 0, 1, 0, 1, 0]
    language = [0.0, 0, 1, 1, 0, 0]
    names = ("accuracy", "language", "copy", "thinking")
    told = taken_apart(
        [2.0, -0.5, 0, 0], accuracy, language, language, [3.0, 1, 4, 1, 5, 9], names=names
    )
    (two, first), (minus, second) = variants.terms_of(**told)
    assert (two, minus) == pytest.approx((2, -0.5))
    assert first.tolist() == [accuracy] and second.tolist() == [language]


def test_gdpo_counts_what_was_cut_off_and_what_failed_as_nothing():
    """The third was cut off with a right answer, on the fourth the verifier failed: both earn 0."""
    finished = torch.tensor([True, True, False, True])
    told = taken_apart([1.0, 0.1], [1.0, 0, 1, 0], [0.0, 1, 1, 0], finished=finished)
    told["parts"][3] = {"accuracy": 0.0, "answered": 0.0, "failed": 1.0, "truncated": 0.0}
    same = taken_apart([1.0, 0.1], [1.0, 0, 0, 0], [0.0, 1, 0, 0])
    torch.testing.assert_close(variants.gdpo(**told), variants.gdpo(**same))


def test_gdpo_keeps_the_terms_of_a_punishment_that_was_cut_off():
    """R = accuracy - 0.5 language: cut off, the third has lost 0.5 and the fourth earned nothing. The verifier failed on
    the last, which has the worst reward of the group and no terms."""
    finished = torch.tensor([True, True, False, False, True])
    told = taken_apart(
        [1.0, -0.5], [1.0, 0, 0, 1, 0], [0.0, 0, 1, 1, 0], names=("accuracy", "language")
    )
    told["rollouts"].finished, told["rewards"] = finished, torch.tensor([[1.0, 0, -0.5, 0, -0.5]])
    told["parts"][4] = {"accuracy": 0.0, "answered": 0.0, "failed": 1.0, "truncated": 0.0}
    (one, accuracy), (minus, language) = variants.terms_of(**told)
    assert (one, minus) == pytest.approx((1, -0.5))
    assert accuracy.tolist() == [[1, 0, 0, 0, 0]] and language.tolist() == [[0, 0, 1, 0, 0]]


def test_gdpo_refuses_a_reward_that_is_no_sum_of_its_parts():
    """A coin's reward: as a control it would be void if its logged accuracy were trained on."""
    told = taken_apart([1.0, 0.1], [1.0, 0, 0, 0] * 4, [0.0, 1, 0, 0] * 4)
    told["rewards"] = torch.tensor([[1.0, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0]])
    with pytest.raises(
        ValueError, match=r"no weighted sum of the parts .*\(accuracy, format, answered\)"
    ):
        variants.gdpo(**told)


# ---- Completions that are cut off, groups that teach nothing ----------------------------------------


def test_what_a_completion_that_is_cut_off_costs():
    """Rewards 1, 0 and, cut off, 0 (what score gives); lengths 50, 90, 100 of 100. Core: the mean is
    1/3 and the std .4714. Mask: the same, but the third teaches nothing. Soft: off go 0, .5 and 1,
    so 1, -.5, -1, with the mean -1/6 and the std .8498."""
    rewards = torch.tensor([[1.0, 0, 0]])
    about = batch_of([50, 90, 100])
    expected = {
        group_advantages: [1.4142, -0.7071, -0.7071],
        variants.mask: [1.4142, -0.7071, 0],
        variants.soft: [1.3728, -0.3922, -0.9806],
    }
    for advantage, values in expected.items():
        assert advantage(rewards, **about)[0].tolist() == pytest.approx(values, abs=1e-3)
    late = variants.soft(torch.ones(1, 3), **batch_of([10, 80, 85]))[0]  # 80 is still free
    assert late[0] == late[1] > 0 > late[2]


def test_mixed_only_keeps_the_first_mixed_groups_and_their_normaliser():
    """4 groups of 2, P = 2; groups 1 and 3 are mixed, 0 is solved, 2 hopeless. Tokens 10 + 10, 20 +
    30, 15 + 15, 10 + 20 = 130, in the kept groups 80: the advantages +-1 become +-130/80."""
    rewards = torch.tensor([[1.0, 1], [1, 0], [0, 0], [0, 1]])
    about = batch_of([10, 10, 20, 30, 15, 15, 10, 20])
    expected = torch.tensor([[0.0, 0], [1, -1], [0, 0], [-1, 1]])
    torch.testing.assert_close(variants.mixed_only(rewards, **about), expected * 130 / 80)
    torch.testing.assert_close(
        variants.olmo(rewards, **about), expected * 130 / 80 / 2
    )  # R - mean: +-1/2
    about["flags"].loss_norm = "sequence"
    torch.testing.assert_close(variants.mixed_only(rewards, **about), expected * 4 / 2)
    about["flags"].prompts_per_step = 1  # the first mixed group alone
    assert variants.mixed_only(rewards, **about).abs().sum(1).tolist() == pytest.approx(
        [0, 8, 0, 0], abs=1e-4
    )


def test_too_few_mixed_groups_make_a_small_step():
    """One of three is mixed and P = 2: the first other fills up, in the normaliser (20 + 50 of 100
    tokens) and not in the gradient. Soft advantages do not bring it back."""
    rewards = torch.tensor([[1.0, 1], [1, 0], [0, 0]])
    about = batch_of([10, 10, 20, 30, 15, 15], limit=30)
    torch.testing.assert_close(
        variants.mixed_only(rewards, **about), torch.tensor([[0.0, 0], [1, -1], [0, 0]]) * 100 / 70
    )
    assert variants.dapo(rewards, **about)[[0, 2]].eq(0).all()


@pytest.mark.parametrize("norm", ["token", "sequence", "constant", "sum"])
def test_the_gradient_of_mixed_only_is_that_of_the_kept_groups_alone(model, prompts, norm):
    """Of 3 groups the second is all equal: the gradient of the three is that of a batch of two."""
    rollouts = sample(model, prompts, 4, 20)
    rows = [0, 1, 2, 3, 8, 9, 10, 11]
    kept = Rollouts(
        *(
            tensor[rows]
            for tensor in (
                rollouts.ids,
                rollouts.prompt_lengths,
                rollouts.lengths,
                rollouts.finished,
                rollouts.logp,
            )
        ),
        4,
    )
    rewards = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 0]])
    flags = SimpleNamespace(prompts_per_step=2, loss_norm=norm, max_new_tokens=20)
    grads = []
    for batch, advantages in (
        (kept, group_advantages(rewards[[0, 2]])),
        (rollouts, variants.mixed_only(rewards, rollouts, None, flags)),
    ):
        model.zero_grad()
        update_gradients(model, batch, advantages, norm=norm, max_new_tokens=20)
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=1e-4)


# ---- Losses ----------------------------------------------------------------------------------------

# Two completions, of 3 tokens (A = 1) and of 2 (A = -1), and their ratios; column 0 is the prompt.
RATIOS = torch.tensor([[1, 1.5, 0.5, 1], [1, 0.5, 1.5, 1]])
MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0.0]])
ADVANTAGES = torch.tensor([1.0, -1])
OLD = torch.tensor([[0, -1.0, -2, -3], [0, -1, -2, 0]])


def value(loss, norm, clip=(0.2, 0.2)):
    weights = loss_weights(MASK, norm, max_new_tokens=4)
    return LOSSES[loss](OLD + RATIOS.log(), OLD, ADVANTAGES, weights, clip).item()


@pytest.mark.parametrize(
    "norm, expected",
    [("token", -0.4 / 5), ("sequence", 0.125), ("constant", -0.4 / 8), ("sum", -0.2)],
)
def test_ppo_by_hand(norm, expected):
    """min(r A, clip(r) A), clip 0.8 to 1.2. First: min(1.5, 1.2) + min(.5, .8) + 1 = 2.7; second:
    min(-.5, -.8) + min(-1.5, -1.2) = -2.3. Token mean (2.7 - 2.3) / 5 = .08; mean of means (2.7 / 3
    - 2.3 / 2) / 2 = -.125; by a constant of 2 x 4: .05; mean over rows of sums: .2. The loss is
    minus that."""
    assert value("ppo", norm) == pytest.approx(expected)


def test_clip_higher_by_hand():
    """DAPO's 0.2 and 0.28: the first token of the first completion now gives 1.28: 2.78 - 2.3."""
    assert value("ppo", "token", (0.2, 0.28)) == pytest.approx(-0.48 / 5)


def test_gspo_by_hand():
    """The geometric means are (1.5 * .5 * 1)^(1/3) = .9086 and (.5 * 1.5)^(1/2) = .8660. With clip
    0.1 the second, whose A is negative, is held at .9: mean of rows (.9086 - .9) / 2 = .0043."""
    assert value("gspo", "sequence", (0.1, 0.1)) == pytest.approx(-(0.75 ** (1 / 3) - 0.9) / 2)


def test_cispo_by_hand():
    """-w clip(r) A log pi. First: 1.2 (ln 1.5 - 1) + .8 (ln .5 - 2) - 3; second, with A = -1: -.8
    (ln .5 - 1) - 1.2 (ln 1.5 - 2). Unlike ppo's, the gradient of a clipped token is not 0 but
    -w clip(r) A."""
    expected = 1.2 * (math.log(1.5) - 1) + 0.8 * (math.log(0.5) - 2) - 3
    expected -= 0.8 * (math.log(0.5) - 1) + 1.2 * (math.log(1.5) - 2)
    assert value("cispo", "token") == pytest.approx(-expected / 5)
    logp = (OLD + RATIOS.log()).requires_grad_()
    variants.cispo(logp, OLD, ADVANTAGES, MASK / 5).backward()
    torch.testing.assert_close(
        logp.grad, torch.tensor([[0, -0.24, -0.16, -0.2], [0, 0.16, 0.24, 0]])
    )


def test_reinforce_by_hand():
    """The chapter's -(adv * logp).mean(), logp summed over a completion: ln 1.5 + ln .5 - 6 = ln .75
    - 6 and ln .75 - 3."""
    assert value("reinforce", "sum") == pytest.approx(
        -(math.log(0.75) - 6 - (math.log(0.75) - 3)) / 2
    )


def formula(loss, logp, weights, clip):
    """The same losses once more, token by token in plain Python, as the papers write them."""
    total = 0.0
    for i in range(2):
        tokens = [t for t in range(4) if MASK[i, t]]
        A = ADVANTAGES[i].item()
        whole = torch.exp(sum(logp[i, t] - OLD[i, t] for t in tokens) / len(tokens))
        for t in tokens:
            r = whole if loss == "gspo" else torch.exp(logp[i, t] - OLD[i, t])
            bounded = torch.clip(r, 1 - clip[0], 1 + clip[1])
            term = {
                "ppo": min(r * A, bounded * A),
                "gspo": min(r * A, bounded * A),
                "cispo": bounded.item() * A * logp[i, t],
                "reinforce": A * logp[i, t],
            }[loss]
            total = total - weights[i, t] * term
    return total


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("norm", ["token", "sequence", "constant", "sum"])
def test_value_and_gradient_are_those_of_the_formula(loss, norm):
    weights = loss_weights(MASK, norm, max_new_tokens=4)
    ours, theirs = ((OLD + RATIOS.log()).requires_grad_() for _ in range(2))
    a = LOSSES[loss](ours, OLD, ADVANTAGES, weights, (0.2, 0.3))
    b = formula(loss, theirs, weights, (0.2, 0.3))
    a.backward()
    b.backward()
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("loss", [*LOSSES.values(), *OTHERS])
def test_on_policy_all_have_the_gradient_of_the_chapter(loss):
    weights = loss_weights(MASK, "sequence")
    logp = OLD.clone().requires_grad_()
    loss(logp, OLD, ADVANTAGES, weights).backward()
    torch.testing.assert_close(logp.grad, -weights * ADVANTAGES[:, None])


def test_truncated_importance_sampling_by_hand():
    """pi_old / pi_sampler is .5, 4, 1 in the first completion (A = 1), 1, 1.6 in the second (-1); the
    4 is cut to 2. With pi = pi_old: (.5 + 2 + 1 - 1 - 1.6) / 5 = .18, and each token's gradient is
    its weight's share. Off-policy the terms are those of test_ppo_by_hand, weighted: .5 * 1.2 + 2 *
    .5 + 1 - .8 - 1.6 * 1.5 = -.6."""
    sampler = OLD - torch.tensor([[1, 0.5, 4, 1], [1, 1, 1.6, 1]]).log()
    logp = OLD.clone().requires_grad_()
    loss = variants.tis(logp, OLD, ADVANTAGES, MASK / 5, sampled_logp=sampler)
    loss.backward()
    assert loss.item() == pytest.approx(-0.18)
    torch.testing.assert_close(logp.grad, torch.tensor([[0, -0.1, -0.4, -0.2], [0, 0.2, 0.32, 0]]))
    loss = variants.tis(OLD + RATIOS.log(), OLD, ADVANTAGES, MASK / 5, sampled_logp=sampler)
    assert loss.item() == pytest.approx(0.6 / 5)


def test_sequences_that_the_policy_has_left_are_masked_by_hand():
    """The second completion (A = -1) has ratios .5 and 1.5, so log(pi_old / pi) is on average -ln(.75)
    / 2 = .144, above .1: it is masked, and 2.7 of test_ppo_by_hand is left, over all five tokens. A
    delta of .2 keeps it, and so does a sampler that said its tokens with e^-.05 of the probability:
    .144 - .05. The first has .096, above .05, but A = 1. A masked completion has no gradient."""

    def masked(sampler=OLD, logp=None, **more):
        logp = OLD + RATIOS.log() if logp is None else logp
        return variants.sequence_mask(logp, OLD, ADVANTAGES, MASK / 5, sampled_logp=sampler, **more)

    assert masked().item() == pytest.approx(-2.7 / 5)
    assert masked(delta=0.2).item() == masked(OLD - 0.05).item() == pytest.approx(-0.4 / 5)
    assert masked(delta=0.05).item() == pytest.approx(-2.7 / 5)
    logp = (OLD + RATIOS.log()).requires_grad_()
    masked(logp=logp).backward()
    assert logp.grad[0].any() and not logp.grad[1].any()


def test_kl_estimators_by_hand():
    """d = ln 2: k1 .6931, k2 .2402, k3 .5 - 1 + .6931 = .1931. Each is what its loss adds: with
    ratio 1, A = 1 and kl_coef 2 the loss is -1 + 2 k."""
    logp = torch.tensor([[math.log(0.8)]])
    ref = torch.tensor([[math.log(0.4)]])
    one = torch.ones(1, 1)
    values = [k(logp, ref, one).item() for k in (variants.k1, variants.k2, kl_penalty)]
    assert values == pytest.approx([0.6931, 0.2402, 0.1931], abs=1e-4)
    losses = {variants.ppo_k1: values[0], variants.ppo_k2: values[1]}
    for loss in (*LOSSES.values(), *OTHERS):
        expected = losses.get(loss, values[2])
        with_kl, without = (
            loss(logp, logp, one[0], one, ref_logp=ref, kl_coef=c).item() for c in (2, 0)
        )
        assert with_kl - without == pytest.approx(2 * expected)


def test_what_the_gradients_of_the_kl_estimators_are_on_average():
    """Over all tokens of a distribution p, weighted by p: k1's gradient vanishes, k2's is that of
    KL(p || q), k3's that of KL(q || p). The values of k1 and of k3 average to KL(p || q)."""
    z = torch.tensor([0.5, -1, 0.2], requires_grad=True)
    q = torch.tensor([0.2, 0.3, 0.5])

    def grad(loss):
        return torch.autograd.grad(loss, z)[0]

    logp = z.log_softmax(0)
    p = logp.exp().detach()
    kl = (logp.exp() * (logp - q.log())).sum()
    k1, k2, k3 = (
        k(z.log_softmax(0)[:, None], q.log()[:, None], p[:, None])
        for k in (variants.k1, variants.k2, kl_penalty)
    )
    assert k1.item() == pytest.approx(kl.item()) and k3.item() == pytest.approx(kl.item())
    torch.testing.assert_close(grad(k1), torch.zeros(3), atol=1e-7, rtol=0)
    torch.testing.assert_close(grad(k2), grad(kl))
    torch.testing.assert_close(grad(k3), grad((q * (q.log() - z.log_softmax(0))).sum()))


def test_k3_with_the_ratio_by_hand():
    """pi = .8, pi_old = .4, pi_ref = .2: d = ln 4, k3 = .25 - 1 + 1.3863 = .6363, times .8 / .4. It
    is what its losses add: with one token, A = 1 and a clip of .2 the loss without is -1.2."""
    logp, old, ref, one = (torch.tensor([[p]]).log() for p in (0.8, 0.4, 0.2, math.e))
    assert variants.k3_ratio(logp, ref, one, old).item() == pytest.approx(1.2726, abs=1e-4)
    for loss in (variants.ppo_k3_ratio, variants.deepseek):
        assert loss(logp, old, one[0], one, ref_logp=ref, kl_coef=2).item() == pytest.approx(
            -1.2 + 2.5452, abs=1e-4
        )


def test_only_with_the_ratio_is_k3_right_for_what_an_older_policy_sampled():
    """Over all tokens, weighted by the probabilities of pi_old that sampled them: with the ratio the
    value and the gradient are those of KL(pi || ref), without it neither is."""
    z = torch.tensor([0.5, -1, 0.2], requires_grad=True)
    old = torch.tensor([0.6, 0.3, 0.1])
    ref = torch.tensor([0.2, 0.3, 0.5])
    logp = z.log_softmax(0)
    exact = (logp.exp() * (logp - ref.log())).sum()
    ours = variants.k3_ratio(logp[:, None], ref.log()[:, None], old[:, None], old.log()[:, None])
    plain = kl_penalty(logp[:, None], ref.log()[:, None], old[:, None])
    (right,), (grad,), (wrong,) = (
        torch.autograd.grad(value, z, retain_graph=True) for value in (exact, ours, plain)
    )
    assert ours.item() == pytest.approx(exact.item()) and abs(plain.item() - exact.item()) > 0.1
    torch.testing.assert_close(grad, right)
    assert (wrong - right).abs().max() > 0.1


@pytest.mark.parametrize("loss", [*LOSSES.values(), *OTHERS])
def test_the_micro_batch_split_changes_no_loss(model, prompts, loss):
    rollouts = sample(model, prompts, 4, 20)
    results = []
    rollouts.logp += (
        0.6 * torch.randn_like(rollouts.logp) * rollouts.mask
    )  # as if another engine had sampled
    advantages = group_advantages(torch.rand(3, 4))
    with torch.no_grad():
        old = token_logprobs(model, rollouts.ids, mask=rollouts.mask)
    old = old + 0.3 * torch.randn_like(old) * rollouts.mask
    reference = make_tiny.init_weights(type(model)(model.config), torch.Generator().manual_seed(1))
    for tokens in (10**9, 60):
        model.zero_grad()
        stats, _ = update_gradients(
            model,
            rollouts,
            advantages,
            norm="sequence",
            micro_batch_tokens=tokens,
            old_logp=old,
            loss=loss,
            reference=reference,
            kl_coef=0.1,
        )
        results.append((stats, torch.cat([p.grad.flatten() for p in model.parameters()])))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-5) and results[0][0]["kl"] > 0
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-4)


# ---- Sampling from a part of the vocabulary -----------------------------------------------------------


def test_choose_reports_the_whole_softmax_even_where_it_draws_from_a_part():
    """.5 .3 .15 .05 and top-p .75: two tokens are kept, and 80 evenly spread numbers choose them 50
    and 30 times. So they are said with .625 and .375; choose reports .5 and .3."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(80, 4)
    uniforms = (torch.arange(80) + 0.5) / 80
    token, reported = choose(logits, uniforms, top_p=0.75)
    same, really = variants.choose_kept(logits, uniforms, top_p=0.75)
    assert token.bincount().tolist() == [50, 30] and same.equal(token)
    assert {*zip(token.tolist(), reported.exp().mul(1000).round().tolist())} == {(0, 500), (1, 300)}
    assert {*zip(token.tolist(), really.exp().mul(1000).round().tolist())} == {(0, 625), (1, 375)}
    assert variants.choose_kept(logits[:1].flip(1), uniforms[:1], temperature=0, top_p=0.1)[
        0
    ].tolist() == [3]


@pytest.mark.parametrize(
    "top_p, top_k", [(1, 0), (0.9, 0), (0.5, 0), (1e-9, 0), (1, 3), (0.9, 3), (1, 1), (1, 99)]
)
def test_what_is_kept_is_what_choose_draws(top_p, top_k):
    logits = torch.randn(12)
    uniforms = torch.rand(20_000)
    drawn, _ = choose(logits.expand(20_000, 12), uniforms, 0.7, top_p, top_k)
    assert [*drawn.unique()] == [
        *variants.kept_tokens(logits, 0.7, top_p, top_k).nonzero().squeeze(1)
    ]


def gradients(model, rollouts):
    """The log's statistics of an update on these completions."""
    model.zero_grad()
    return update_gradients(model, rollouts, torch.tensor([[1.0, -1, 1, -1]] * 3), 0.8)[0]


def test_filtered_sampling_is_on_policy_only_under_the_kept_mask(model, prompts, monkeypatch):
    """`mismatch`, three times. As the core is, it is 0 and wrong: sampler and trainer both speak of
    the whole softmax, which nobody drew from. If the sampler is honest the trainer differs, by -log
    of the mass kept. If the trainer keeps the mask both agree, and the ratio is 1 again."""

    def drawn():
        return sample(model, prompts, 4, 20, 0.8, top_p=0.7, uniforms=uniforms)

    uniforms = torch.rand(12, 20)
    blind = drawn()
    assert gradients(model, blind)["mismatch"] < 1e-5
    monkeypatch.setattr(rlvr, "choose", variants.choose_kept)
    honest = drawn()
    without = gradients(model, honest)
    assert honest.ids.equal(blind.ids) and without["mismatch"] > 0.1
    assert 0.69 < without["ratio"] < 0.95  # pi / pi_sampler: the mass kept, at least top-p
    monkeypatch.setattr(
        rlvr,
        "token_logprobs",
        lambda *args, **more: variants.kept_logprobs(*args, **more, top_p=0.7),
    )
    kept = gradients(model, honest)
    assert kept["mismatch"] < 1e-5 and kept["ratio"] == pytest.approx(1, abs=1e-5)
    assert kept["entropy"] < without["entropy"]  # of fewer tokens


def test_without_a_filter_the_kept_logprobs_are_the_plain_ones(model, prompts):
    rollouts = sample(model, prompts, 2, 10, 0.8)
    ours, theirs = (
        f(model, rollouts.ids, 0.8, rollouts.mask, return_entropy=True)
        for f in (variants.kept_logprobs, token_logprobs)
    )
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


def test_after_an_update_the_mask_stays_that_of_the_sampler():
    """pi_old .5 .3 .15 .05 kept two tokens, pi is .3 .3 .3 .1. Under the same mask pi is .5 .5, and
    the ratios .5 / .625 and .5 / .375 are 1 on average over what was sampled; pi's own mask would
    keep three (.333 each), and two thirds of the probability are missing: 1 is not reached."""

    def fixed(*probs):
        """A model whose next token never depends on anything."""

        def model(ids):
            return torch.tensor(probs).log().expand(*ids.shape, 4)

        model.config = SimpleNamespace(num_tokens=4)
        return model

    old = fixed(0.5, 0.3, 0.15, 0.05)
    now = fixed(0.3, 0.3, 0.3, 0.1)
    ids = torch.tensor([[0, 0], [0, 1]])
    said = (0.625, 0.375)
    before, after, wrong = (
        variants.kept_logprobs(model, ids, top_p=0.75, sampler=sampler).exp().squeeze(1)
        for model, sampler in ((old, None), (now, old), (now, None))
    )
    assert before.tolist() == pytest.approx(said) and after.tolist() == pytest.approx([0.5, 0.5])
    assert sum(p * ratio for p, ratio in zip(said, (after / before).tolist())) == pytest.approx(1)
    assert sum(p * ratio for p, ratio in zip(said, (wrong / before).tolist())) == pytest.approx(
        2 / 3
    )


# ---- Which problems --------------------------------------------------------------------------------


def pick(name, n, step, memory, count=3, **flags):
    flags = SimpleNamespace(prompts_per_step=count, seed=0, steps=10, **flags)
    return getattr(variants, name)(list(range(n)), step, memory, flags)


def visit(memory, index, accuracy):
    """As the loop does."""
    visits = memory.setdefault("visits", {})
    visits[str(index)] = [*visits.get(str(index), []), accuracy][-3:]


def test_the_filter_passes_by_what_teaches_nothing_and_comes_back_to_it():
    """Problem 0 is always solved, 1 never, 2 sometimes, in epochs of three: after 3 visits, 0 and 1
    are passed by once, lose their oldest visit, and are tried again in the next epoch."""
    memory = {}
    seen = []
    for step in range(1, 16):
        (problem,) = pick("filter", 3, step, memory, count=1)
        seen.append(problem)
        visit(memory, problem, {0: 1.0, 1: 0.0, 2: 0.5}[problem])
        memory = json.loads(json.dumps(memory))  # as a checkpoint keeps it
    assert sorted(seen[:9]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert seen[9] == 2 and sorted(seen[10:13]) == [0, 1, 2] and seen[13] == 2


def test_without_memory_the_filter_walks_as_the_core_does():
    flags = SimpleNamespace(prompts_per_step=4, seed=3, steps=10)
    memory = {}
    problems = list(range(10))
    for step in (1, 2, 3):
        indices = variants.filter(problems, step, memory, flags)
        assert indices == train.every_problem(problems, step, {}, flags)
    both = [variants.twice(problems, step, {}, flags) for step in (1, 2)]
    flags.prompts_per_step = 8
    assert both == [train.every_problem(problems, step, {}, flags) for step in (1, 2)]


def test_strata_are_filled_evenly_as_far_as_there_are_problems():
    memory = {
        "visits": {"0": [0.0], "1": [0.1], "2": [0.2], "3": [0.9], "4": [1.0]}
    }  # 5 .. 11: unknown
    chosen = pick("stratified", 12, 1, memory, count=6)
    assert len(chosen) == 6 and len({*chosen} & {0, 1, 2}) == 2 and len({*chosen} & {3, 4}) == 2


def test_the_curriculum_moves_from_easy_to_hard():
    memory = {"visits": {str(i): [i / 200] for i in range(200)}}
    early, late = (
        sum(pick("curriculum", 200, step, memory, count=20)) / 20 / 200 for step in (1, 10)
    )
    assert early > 0.65 and late < 0.55


def test_the_curriculum_is_random_among_hopeless_problems_too():
    """Their weights are e^-16 and less, all alike: which of 64 come is luck, another one at every step."""
    memory = {"visits": {str(i): [0.0] for i in range(64)}}
    assert (
        len(
            {
                index
                for step in range(1, 10)
                for index in pick("curriculum", 64, step, memory, count=8)
            }
        )
        > 30
    )


@pytest.mark.parametrize("name", ["filter", "stratified", "curriculum", "twice"])
def test_with_fewer_problems_than_a_step_asks_some_come_twice(name):
    """2 problems, 5 a step: each two or three times (of `twice` each five times)."""
    chosen = pick(name, 2, 1, {}, count=5)
    assert sorted(map(chosen.count, (0, 1))) == ([5, 5] if name == "twice" else [2, 3])


# ---- Runs ------------------------------------------------------------------------------------------

OWN = '''
def odd(completion, problem):
    """What random weights earn every other time, so that a few steps can learn something."""
    right, form = float(len(completion) % 2), float(completion[:1] in {*"12345"})
    return right + 0.1 * form, {"accuracy": right, "format": form}

def rare(completion, problem):
    """Only sums below 5 can earn anything."""
    return float(len(completion) % 2 and int(problem["answer"]) < 5), {}

def fair(completion, problem):
    """No sum of what it logs."""
    return float(len(completion) % 3 == 0), {"accuracy": float(len(completion) % 2)}
'''


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Flags with random weights that know digits, and the rewards above -> (flags, their file)."""
    folder = tmp_path_factory.mktemp("variants")
    (folder / "odd_rewards.py").write_text(OWN)
    make_tiny.make(0, folder / "base", "one-digit", steps=0)
    own = f"{folder / 'odd_rewards.py'}:"
    return [
        "--model",
        str(folder / "base"),
        *"--task one-digit --device cpu --prompts-per-step 4 --num-samples 4".split(),
        *"--max-new-tokens 20 --eval-problems 10 --eval-every 100".split(),
    ], own


def run(folder, base, *flags, name="r", reward="odd"):
    """Train in folder/name -> that folder."""
    train.main(
        [*base[0], "--reward", base[1] + reward, "--runs", str(folder), "--name", name, *flags]
    )
    return folder / name


def metrics(run):
    """The log without what depends on the clock."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def samples(run, step):
    with gzip.open(run / "samples" / f"step_{step:06d}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "flags",
    [
        ["--loss", V + "ppo_k1", "--kl-coef", "0.1"],
        ["--loss", V + "ppo_k2", "--kl-coef", "0.1"],
        ["--loss", V + "ppo_k3_ratio", "--kl-coef", "0.1"],
        ["--loss", V + "sequence_mask"],
        ["--advantage", V + "mask"],
        ["--pick", V + "filter", "--advantage", V + "soft"],
        ["--pick", V + "stratified"],
        ["--pick", V + "curriculum"],
    ],
    ids=lambda flags: " ".join(flags).replace(V, ""),
)
def test_every_variant_trains(tmp_path, base, flags):
    """Those that are in no recipe."""
    rows = metrics(run(tmp_path, base, "--steps", "2", *flags))[1:]
    assert (
        len(rows) == 2
        and all(math.isfinite(row["loss"]) for row in rows)
        and rows[0]["grad_norm"] > 0
    )


def flags_of(file):
    """What a file of flags says: {flag: its values}, every one a text."""
    flags = {}
    for word in shlex.split(file.read_text(), comments=True):
        if word.startswith("--"):
            values = flags[word[2:].replace("-", "_")] = []
        else:
            values.append(word)
    return flags


@pytest.mark.parametrize(
    "file", sorted((ROOT / "notebooks" / "recipes").iterdir()), ids=lambda file: file.stem
)
def test_a_recipe_says_whence_it_is_and_names_only_what_exists(file):
    text = file.read_text()
    flags = flags_of(file)
    assert text.startswith("# ") and flags.keys() <= {
        field.name for field in dataclasses.fields(train.Flags)
    }
    if file.stem in variants.RECIPES:
        assert (
            all(f"# {part}: " in text for part in ("source", "changes", "missing"))
            and len(text.splitlines()) <= 12
        )
        assert re.search(r"\b2\d{3}\.\d{5}\b|chapter \"", text)  # of arxiv.org, or a chapter
        plugins = [value.split(":") for value, *_ in flags.values() if ".py:" in value]
        assert all(
            path == "notebooks/variants.py" and callable(getattr(variants, name))
            for path, name in plugins
        )


def test_the_recipes_are_those_of_the_chapters():
    assert variants.RECIPES.keys() >= {
        "chapter",
        "grpo",
        "dapo",
        "dr-grpo",
        "rloo",
        "gspo",
        "cispo",
        "gdpo",
        "olmo-3",
        "deepseek-v3.2",
        "lite-ppo",
        "r1-zero",
        "r1",
    }


@pytest.mark.parametrize("recipe", variants.RECIPES)
def test_every_recipe_trains_and_config_json_holds_what_it_says(tmp_path, monkeypatch, recipe):
    """Two steps of the tiny model. The recipe comes last, so nothing before it overrides it."""
    monkeypatch.chdir(ROOT)  # its paths are relative to the root
    train.main(
        [
            "--device",
            "cpu",
            "--runs",
            str(tmp_path),
            *"--name r --steps 2 --prompts-per-step 2 --num-samples 8 --max-new-tokens 40".split(),
            *"--eval-problems 2".split(),
            f"@{variants.RECIPES[recipe]}",
        ]
    )
    saved = json.loads((tmp_path / "r" / "config.json").read_text())["flags"]
    for flag, values in flags_of(variants.RECIPES[recipe]).items():
        for value, kept in zip(
            values, saved[flag] if isinstance(saved[flag], list) else [saved[flag]], strict=True
        ):
            if isinstance(kept, str) and ".py:" in kept:  # relative to the run
                value = str(ROOT / value)
                kept = str((tmp_path / "r" / kept).resolve())
            assert kept == value or float(value) == kept
    rows = metrics(tmp_path / "r")[1:]
    assert (
        len(rows) == 2
        and all(math.isfinite(row["loss"]) for row in rows)
        and rows[0]["grad_norm"] > 0
    )


def test_what_stands_behind_a_recipe_overrides_it_and_elsewhere_its_paths_fail(
    tmp_path, monkeypatch
):
    flags = [
        "--device",
        "cpu",
        "--runs",
        str(tmp_path),
        "--name",
        "r",
        f"@{variants.RECIPES['gspo']}",
    ]
    assert train.parse_args([*flags, "--clip", "0.1", "0.1"]).clip == [0.1, 0.1]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(verifiers.DataError, match="variants.py: there is no such Python file"):
        train.main(flags)


def test_gdpo_stops_a_run_whose_reward_is_no_sum(tmp_path, base):
    with pytest.raises(verifiers.DataError, match="no weighted sum of the parts that it logs"):
        run(tmp_path, base, "--steps", "1", "--advantage", V + "gdpo", reward="fair")


def test_dynamic_sampling_trains_on_the_mixed_groups(tmp_path, base):
    """Only sums below 5 can earn anything, so about half of 8 groups are mixed; at most 4 of them are
    trained on, the others are logged without advantage."""
    flags = [
        *"--steps 1 --temperature 2 --num-samples 8 --pick".split(),
        V + "twice",
        "--advantage",
    ]
    folder = run(tmp_path, base, *flags, V + "mixed_only", reward="rare")
    rows, (metric,) = samples(folder, 1), metrics(folder)[1:]
    groups = [rows[i : i + 8] for i in range(0, len(rows), 8)]
    mixed = [group for group in groups if len({row["reward"] for row in group}) > 1]
    assert len(groups) == 8 and 1 <= len(mixed) < 8 and metric["mixed"] == len(mixed) / 8
    assert metric["trained"] == sum(row["advantage"] != 0 for group in mixed[:4] for row in group)
    assert not any(row["advantage"] for group in groups if group not in mixed[:4] for row in group)


def test_a_resumed_filter_remembers(tmp_path, base):
    """What is known of the problems is in the checkpoint: 4 of 8 steps, stop, 4 more equal 8."""
    flags = ["--pick", V + "filter", *"--train-problems 6 --save-every 4 --steps 8".split()]
    whole = run(tmp_path, base, *flags, name="whole")
    cut = run(tmp_path, base, *flags, name="cut")
    for folder in (cut / "final", cut / "checkpoints" / "step_000008"):
        folder.rename(tmp_path / folder.name)  # as if it had been killed before
    train.main(["--resume", "--runs", str(tmp_path), "--name", "cut"])
    assert metrics(cut) == metrics(whole)
    progress = [
        json.loads((run / "checkpoints" / "step_000008" / "progress.json").read_text())
        for run in (whole, cut)
    ]
    assert progress[0]["memory"] == progress[1]["memory"]
    assert progress[0]["memory"]["next"] >= 32 and len(progress[0]["memory"]["visits"]) == 6


@pytest.mark.parametrize("name", ["stratified", "curriculum", "filter", "all"])
def test_three_problems_in_two_processes_are_remembered_as_in_one(tmp_path, base, name):
    """4 a step are asked for, so some come twice; every process remembers the same of each."""
    spec = name if name == "all" else V + name
    flags = [*"--steps 3 --train-problems 3 --save-every 3 --pick".split(), spec]
    one = run(tmp_path, base, *flags, name="one")
    two = [*base[0], "--reward", base[1] + "odd", "--runs", str(tmp_path), "--name", "two", *flags]
    assert ranks.run(2, ranks.main, *two) == [None, None]
    one, two = (
        json.loads((tmp_path / run / "checkpoints" / "step_000003" / "progress.json").read_text())[
            "memory"
        ]
        for run in ("one", "two")
    )
    assert one == two and sum(map(len, one["visits"].values())) <= 9 and len(one["visits"]) == 3


def test_with_one_update_clipping_cannot_act_and_with_several_it_does(tmp_path, base):
    flags = "--steps 3 --lr 1e-2".split()
    once = metrics(run(tmp_path, base, *flags, name="once"))
    tight = metrics(run(tmp_path, base, *flags, "--clip", "0.01", "0.01", name="tight"))
    assert once == tight and once[-1]["clipped"] == 0
    often = metrics(run(tmp_path, base, *flags, "--updates-per-batch", "4", name="often"))
    loose = metrics(
        run(tmp_path, base, *flags, *"--updates-per-batch 4 --clip 0.9 9".split(), name="loose")
    )
    assert often[-1]["clipped"] > loose[-1]["clipped"]
    assert often[1]["mismatch"] < 1e-5  # measured in the first update of a batch


def test_kl_holds_the_policy_near_its_start_and_the_cap_stops_a_run_that_left(tmp_path, base):
    flags = "--steps 6 --lr 5e-3".split()
    free = metrics(run(tmp_path, base, *flags, "--kl-cap", "1e9", name="free"))
    held = metrics(run(tmp_path, base, *flags, "--kl-coef", "3", name="held"))
    assert free[1]["kl"] == held[1]["kl"] == 0 and 0 <= held[-1]["kl"] < free[-1]["kl"]
    with pytest.raises(SystemExit, match="stopped.*KL from the start is .*above --kl-cap"):
        run(tmp_path, base, *flags, "--kl-cap", "0.001", name="capped")
    assert list((tmp_path / "capped" / "checkpoints").glob("step_*"))


# ---- Best model ------------------------------------------------------------------------------------


def test_the_best_model_is_kept_apart_from_the_last(tmp_path, base, monkeypatch):
    scores = iter([0.1, 0.5, 0.8, 0.6])
    saved = []
    save = train.save

    def evaluate_both(*args):
        score = next(scores)
        return {
            "eval_accuracy": score,
            "eval_n": 9,
            "eval_sampled_accuracy": score,
            "eval_sampled_reward": score,
            "eval_sampled_length": 1.0,
            "eval_sampled_truncated": 0.0,
            "eval_sampled_low": 0,
            "eval_sampled_high": 1,
        }

    monkeypatch.setattr(train, "evaluate_both", evaluate_both)
    monkeypatch.setattr(
        train,
        "save",
        lambda model, tokenizer, folder, weights=None: (
            saved.append(folder.name),
            save(model, tokenizer, folder, weights),
        ),
    )
    run(tmp_path, base, *"--steps 6 --eval-every 2".split())
    assert saved == ["best", "best", "final"]  # after steps 2 and 4, not 6
