"""rlvr.py: the chapter's numbers, sampling compared with the plain way, and mistakes that raise no error."""

import math
from dataclasses import replace

import pytest
import torch

import rlvr
from model import Block, Qwen3
from notebooks.models.make_tiny import init_weights, tiny_config
from rlvr import (
    GRPO,
    MicroBatch,
    Rollouts,
    choose,
    compute_grpo_loss,
    group_advantages,
    loss_weights,
    padded_rows,
    policy_loss,
    row_uniforms,
    sample,
    token_logprobs,
    trained_logprobs,
    update_gradients,
)
from verifiers import MATH_RULES, aggregate, verify_math


# ---- Advantages ------------------------------------------------------------------------------------------------------


def test_the_chapters_group_from_rollouts_to_advantages():
    """ "RLVR", one GRPO step by hand: rewards 1.10, 0.10, 0.00, 1.10; mean 0.575, std 0.526."""
    rollouts = [
        "<think>factor (x-2)(x-3)</think><answer>\\boxed{2}</answer>",
        "<think>quadratic formula</think><answer>\\boxed{3}</answer>",
        "The smaller root is 2.",
        "<think>again</think><answer>\\boxed{2}</answer>",
    ]
    rewards = [aggregate(verify_math(rollout, "2"), MATH_RULES) for rollout in rollouts]
    assert rewards == pytest.approx([1.10, 0.10, 0.00, 1.10])
    assert group_advantages(rewards) == pytest.approx([0.998, -0.903, -1.093, 0.998], abs=5e-4)


def test_each_group_has_its_own_mean_and_scale():
    rewards = torch.tensor([[1.0, 0.0], [10.0, 0.0]])
    advantages = group_advantages(rewards)
    assert advantages.flatten().tolist() == pytest.approx([1, -1, 1, -1], abs=1e-4)
    assert group_advantages(rewards, scale="none").tolist() == [[0.5, -0.5], [5, -5]]


@pytest.mark.parametrize("value", [0.0, 0.1, 1.1, 0.3333333])
def test_equal_rewards_give_exactly_zero(value):
    """In fp32 the mean of 16 times 0.1 is not 0.1. Divided by eps, the difference would become a gradient."""
    assert not group_advantages(torch.full((2, 16), value)).any()
    assert group_advantages([value] * 7) == [0.0] * 7 and group_advantages([value]) == [0.0]


@pytest.mark.parametrize("rewards", [[[1, 0, 0, 1]], [[True, False, False, True]]])
def test_whole_numbers_and_truth_values_are_rewards_too(rewards):
    """Two of four are right: mean and std are 1/2, whatever type the rewards have."""
    advantages = group_advantages(torch.tensor(rewards))
    assert advantages.dtype == torch.float32
    assert advantages[0].tolist() == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert group_advantages(rewards[0]) == pytest.approx([1, -1, -1, 1], abs=1e-5)


# ---- Loss ------------------------------------------------------------------------------------------------------------

MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0.0]])  # two completions of 3 tokens and of 1


@pytest.mark.parametrize(
    "norm, expected",
    [
        ("token", [[0, 1 / 4, 1 / 4, 1 / 4], [0, 1 / 4, 0, 0]]),  # 4 tokens in the batch
        ("sequence", [[0, 1 / 6, 1 / 6, 1 / 6], [0, 1 / 2, 0, 0]]),  # 2 rows, of 3 and of 1
        ("constant", [[0, 0.05, 0.05, 0.05], [0, 0.05, 0, 0]]),  # 2 rows of at most 10 tokens
        ("sum", [[0, 1 / 2, 1 / 2, 1 / 2], [0, 1 / 2, 0, 0]]),  # 2 rows
    ],
)
def test_what_a_token_counts(norm, expected):
    torch.testing.assert_close(loss_weights(MASK, norm, max_new_tokens=10), torch.tensor(expected))


def test_policy_loss_by_hand():
    """Two rows have weights 1/4. The ratios of row 0 (A = 2) are 1, 1.5 (clipped to 1.2) and 0.5. Row 1 (A = -1) has 1.5,
    not clipped, because for a negative advantage the clip only acts below 0.8.
    loss = -1/4 (2 * 1 + 2 * 1.2 + 2 * 0.5 - 1 * 1.5) = -0.975
    """
    logp = torch.tensor([[1, 1, 1.5, 0.5], [1, 1.5, 1, 1]]).log().requires_grad_()
    loss = policy_loss(logp, torch.zeros(2, 4), torch.tensor([2.0, -1.0]), MASK / 4)
    assert loss.item() == pytest.approx(-0.975)
    loss.backward()
    # -w A ratio, and nothing where it is clipped
    expected = torch.tensor([[0, -0.5, 0, -0.25], [0, 0.375, 0, 0]])
    torch.testing.assert_close(logp.grad, expected)


def test_clip_higher_has_two_bounds_and_advantages_are_of_rows_or_of_tokens():
    """clip is (0.2, 0.28), as in DAPO; the ratios are 1.5 and 0.5. If A = 1, 1.5 counts as 1.28 and 0.5 as
    itself. If A = -2, 1.5 counts as itself and 0.5 as 0.8. loss = -(1.28 + 0.5) + 2 (1.5 + 0.8) = 2.82
    """
    logp = torch.tensor([[1.5, 0.5], [1.5, 0.5]]).log()
    advantages = torch.tensor([1.0, -2.0])
    loss = policy_loss(logp, torch.zeros(2, 2), advantages, torch.ones(2, 2), clip=(0.2, 0.28))
    assert loss.item() == pytest.approx(2.82)
    # Each row's two tokens have the advantages 1 and -2: -2 (1.28 - 2 * 0.8) = 0.64
    of_tokens = torch.tensor([[1.0, -2.0], [1.0, -2.0]])
    loss = policy_loss(logp, torch.zeros(2, 2), of_tokens, torch.ones(2, 2), clip=(0.2, 0.28))
    assert loss.item() == pytest.approx(0.64)


# ---- Sampling --------------------------------------------------------------------------------------------------------


def naive_sample(model, prompt, uniforms, temperature):
    """Sample one row without a cache: read the whole text again for every token."""
    ids, logps = list(prompt), []
    for u in uniforms:
        token, logp = choose(model(torch.tensor([ids]))[:, -1], u[None], temperature)
        logps.append(logp.item())
        ids.append(token.item())
        if token == 0:
            break
    return ids[len(prompt) :], logps


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ragged_cached_batch_equals_one_row_at_a_time(model, prompts, temperature):
    uniforms = row_uniforms(range(12), 25, seed=1)
    sizes = []

    def noted(logits, *how):
        sizes.append(len(logits))
        return choose(logits, *how)

    rollouts = sample(model, prompts, 4, 25, temperature, uniforms=uniforms, choose=noted)
    for row, completion in enumerate(rollouts.completions()):
        expected, logps = naive_sample(model, prompts[row // 4], uniforms[row], temperature)
        assert completion == expected
        start = len(prompts[row // 4]) - 1
        found = rollouts.logp[row, start : start + len(logps)].tolist()
        assert found == pytest.approx(logps, abs=1e-5)
    # Rows left the batch, so the last unfinished row has moved to another place in it.
    last = (~rollouts.finished).nonzero()[-1].item()
    assert len(sizes) == 25 and sizes[-1] <= last < sizes[0] == 12


def test_what_rollouts_hold(model, prompts):
    model.config.eos_token_id = (0, 7)  # a post-trained Qwen3 has two stop tokens
    rollouts = sample(model, prompts, 2, 20, uniforms=row_uniforms(range(6), 20, seed=2))
    assert {0, 7} < {completion[-1] for completion in rollouts.completions()}  # one was cut off
    for row, completion in enumerate(rollouts.completions()):
        prompt, mask = prompts[row // 2], rollouts.mask[row]
        assert rollouts.ids[row, : len(prompt)].tolist() == prompt
        trained = rollouts.ids[row, 1:][mask.bool()]  # column t of the mask is token t + 1
        assert trained.tolist() == completion
        assert mask.sum() == rollouts.lengths[row] == len(completion)
        assert not rollouts.logp[row][~mask.bool()].any()
        assert rollouts.finished[row] == (completion[-1] in (0, 7))
        assert not {0, 7}.intersection(completion[:-1])
    short = sample(model, prompts, stop_ids=range(model.config.vocab_size))
    assert short.ids.size(1) == max(map(len, prompts)) + 1  # no column that no row needs


def test_the_stop_token_is_trained_and_padding_is_not(model):
    """Here the stop token 0 is also the padding, and an ordinary token of the prompt, as in Qwen3-Base."""
    rollouts = sample(model, [[5, 0, 6]], 64, 20, uniforms=row_uniforms(range(64), 20, seed=4))
    row = int(rollouts.finished.nonzero()[0])
    trained = rollouts.ids[row, 1:][rollouts.mask[row].bool()].tolist()
    assert trained[-1] == 0 and len(trained) == rollouts.lengths[row]
    assert rollouts.ids[row, 1] == 0 and rollouts.mask[row, 0] == 0  # not the prompt's own 0


def test_greedy_is_the_most_likely_token_with_its_probability_at_temperature_1(model, prompts):
    first, second = (sample(model, prompts, 1, 15, temperature=0) for _ in range(2))
    assert first.completions() == second.completions()
    start = len(prompts[0])
    logp = model(torch.tensor([prompts[0]]))[0, -1].log_softmax(-1)
    assert first.ids[0, start] == logp.argmax()
    assert first.logp[0, start - 1].item() == pytest.approx(logp.max().item(), abs=1e-5)


def chosen(probs, *uniforms, **filters):
    """Return the token for each of these random numbers, all from the same probabilities."""
    logits = torch.tensor(probs).log().expand(len(uniforms), -1)
    return choose(logits, torch.tensor(uniforms), **filters)[0].tolist()


def test_choose_inverts_the_distribution_function():
    probs = [0.5, 0.0, 0.3, 0.2]
    assert chosen(probs, 0.0, 0.49, 0.5, 0.79, 0.81, 0.999999) == [0, 0, 2, 2, 3, 3]
    # Even a number that rounds up to 1 never gives a token of probability 0.
    assert chosen([0.1, 0.9, 0.0, 0.0], 1 - 2**-24, 1.0) == [1, 1]
    drawn = choose(torch.tensor(probs).log().expand(40_000, 4), torch.rand(40_000))[0]
    shares = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.tensor(probs), atol=0.01, rtol=0)


def test_ids_without_a_token_are_never_sampled_nor_counted(model):
    """Qwen3 has 151,936 embedding rows and 151,669 tokens; here the last 10 rows stand for the rest."""
    model.config.num_tokens -= 10
    with torch.no_grad():
        model.model.embed_tokens.weight[-10:] = 3 * model.model.embed_tokens.weight[:10]  # tempting
    rollouts = sample(model, [[3, 4]], 64, 10)
    assert rollouts.ids.max() < model.config.num_tokens
    again = token_logprobs(model, rollouts.ids) * rollouts.mask
    torch.testing.assert_close(rollouts.logp, again, atol=1e-5, rtol=0)


def test_random_numbers_belong_to_rows():
    table = row_uniforms(range(10), 5, seed=0)
    assert torch.equal(table[4:6], row_uniforms([4, 5], 5, seed=0))
    assert torch.equal(table[:, :3], row_uniforms(range(10), 3, seed=0))  # the same beginning
    assert not torch.equal(table, row_uniforms(range(10), 5, seed=1)) and len(table.unique()) == 50


def test_empty_prompts_and_empty_completions_are_refused(model):
    for given in ([[]], [[[1], []]], [[[1]], 1, 0]):
        with pytest.raises(ValueError, match="at least one"):
            sample(model, *given)


# ---- Log-probs and gradients -----------------------------------------------------------------------------------------


def test_one_step_raises_the_rewarded_completion(model, prompts):
    rollouts = sample(model, prompts, 2, 20, uniforms=row_uniforms(range(6), 20, seed=5))
    before = token_logprobs(model, rollouts.ids, mask=rollouts.mask).sum(1).view(3, 2)
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
    gradient(model, rollouts, advantages)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    change = token_logprobs(model, rollouts.ids, mask=rollouts.mask).sum(1).view(3, 2) - before
    assert change[0, 0] > 0 > change[0, 1] and change[2, 1] > 0 > change[2, 0]


def test_groups_of_equal_rewards_have_exactly_no_gradient(model, prompts):
    """The mean of three times 0.1 is not 0.1, not even in fp64. A single other reward gives a gradient."""
    rollouts = sample(model, prompts, 3, 20)
    rewards = torch.full((3, 3), 0.1, dtype=torch.float64)
    assert not gradient(model, rollouts, group_advantages(rewards))[0].any()
    rewards[1, 2] = 1.0
    assert gradient(model, rollouts, group_advantages(rewards))[0].any()


def gradient(model, rollouts, advantages, method=None, max_tokens=10**6, old=None):
    """Return the gradient as one vector, and the means of the statistics over the trained tokens."""
    method = method or GRPO()
    advantages = advantages.reshape(len(rollouts.ids), -1) * rollouts.mask
    keep = torch.ones(len(rollouts.ids), dtype=torch.bool)
    micros = method.layout(rollouts, keep, max_tokens)
    model.zero_grad()
    sums, _ = update_gradients(model, rollouts, advantages, method, micros, old)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    stats = {name: float(value / sums["tokens"]) for name, value in sums.items()}
    return torch.cat([grad.flatten() for grad in grads]), {**stats, "loss": float(sums["loss"])}


def of_the_formula(loss, model):
    """Return the gradient of a loss, from autograd alone, as one vector."""
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, model.parameters())])


def assert_gradient_of_the_formula(found, model, rollouts, advantages, *norm):
    """Check that it is the gradient of -sum_it w_it A_it log pi_it, over all rows at once."""
    weights = loss_weights(rollouts.mask, *norm)
    formula = -(weights * advantages * token_logprobs(model, rollouts.ids)).sum()
    torch.testing.assert_close(found, of_the_formula(formula, model), atol=1e-6, rtol=1e-4)


def test_sampled_logprobs_equal_recomputed_ones(model, prompts):
    for temperature in (1.0, 0.6):
        rollouts = sample(model, prompts, 4, 30, temperature)
        again = token_logprobs(model, rollouts.ids, temperature) * rollouts.mask
        torch.testing.assert_close(rollouts.logp, again, atol=1e-5, rtol=0)
        masked = token_logprobs(model, rollouts.ids, temperature, rollouts.mask)
        torch.testing.assert_close(masked, again, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype, bar", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", ["trained", "frozen", "with a hook"])
def test_chunks_have_the_gradient_of_one(tied, head, dtype, bar, prompts, monkeypatch):
    """They have it in two backward passes, the second of which adds to the first one's .grad, and in
    torch.autograd.grad, which does not change .grad. The last ids of the vocabulary are no tokens."""
    config = replace(tiny_config(30, eos_token_id=0), tie_word_embeddings=tied)
    model = init_weights(Qwen3(config), torch.Generator().manual_seed(0))
    config.num_tokens = 25
    rollouts = sample(model, prompts, 3, 20)
    weight = (model.lm_head or model.model.embed_tokens).weight.requires_grad_(head != "frozen")
    if head == "with a hook":
        weight.register_hook(lambda grad: grad * torch.arange(30)[:, None])
    parameters = [param for param in model.parameters() if param.requires_grad]
    trained = rollouts.mask > 0
    micro = MicroBatch(rollouts.ids[:, :-1], trained, torch.arange(9))
    found = []

    def loss():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            found.append(trained_logprobs(model, micro, rollouts.ids[:, 1:][trained], 0.9))
        return found[-1][0].sum()

    def results():
        loss().backward()
        loss().backward()
        assert all((param.grad is not None) == param.requires_grad for param in model.parameters())
        added = [param.grad.clone() for param in parameters]
        asked = torch.autograd.grad(loss(), parameters)
        assert all(param.grad.equal(grad) for param, grad in zip(parameters, added))
        model.zero_grad()
        return [*found[-1], torch.cat([grad.flatten() for grad in (*added, *asked)])]

    whole = results()
    monkeypatch.setattr(rlvr, "CHUNK_ELEMENTS", 7 * 25)
    for ours, expected in zip(results(), whole, strict=True):  # log-probs, entropies, gradient
        assert (ours - expected).norm() < bar * expected.norm()


@pytest.mark.parametrize("max_tokens", [1, 40, 100, 10**6])
def test_micro_batches_hold_each_row_once_longest_first_and_no_more_than_asked(
    model, prompts, max_tokens
):
    rollouts = sample(model, prompts, 5, 20)
    keep = torch.rand(15) > 0.3
    micros = list(padded_rows(rollouts, keep, max_tokens))
    found = torch.zeros_like(rollouts.mask)
    for micro in micros:
        found[micro.rows, : micro.ids.size(1)] += micro.trained
        assert micro.ids.numel() <= max_tokens or len(micro.ids) == 1  # a row at least
    assert torch.equal(found, rollouts.mask * keep[:, None])
    widths = [micro.ids.size(1) for micro in micros]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("norm", ["token", "sequence", "constant", "sum"])
def test_the_micro_batch_split_does_not_change_the_gradient(model, prompts, norm):
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4))
    method = GRPO(norm=norm, max_new_tokens=20)
    whole, stats = gradient(model, rollouts, advantages, method)
    for max_tokens in (1, 40, 100):
        split, split_stats = gradient(model, rollouts, advantages, method, max_tokens)
        torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-4)
        assert split_stats == pytest.approx(stats, abs=1e-5)
    assert_gradient_of_the_formula(whole, model, rollouts, advantages.view(-1, 1), norm, 20)


def test_advantages_of_single_tokens_reach_these_tokens_alone(model, prompts):
    """A teacher gives each token its own advantage, so the formula has A_it in place of A_i. A method may
    return (B, T-1), or (P, G), one number for all tokens of a row."""
    rollouts = sample(model, prompts, 2, 20)
    advantages = torch.randn(rollouts.mask.shape)
    ours, _ = gradient(model, rollouts, advantages)
    assert_gradient_of_the_formula(ours, model, rollouts, advantages)
    batch = rlvr.Batch([], rollouts, [], torch.rand(3, 2), [])
    of_rows = group_advantages(batch.rewards).view(6, 1)
    assert torch.equal(rlvr.token_advantages(GRPO(), batch), of_rows * rollouts.mask)
    with pytest.raises(AssertionError, match="see token_advantages"):
        update_gradients(model, rollouts, group_advantages(batch.rewards), GRPO(), [])


def test_text_that_the_policy_did_not_write_is_not_trained(model, prompts):
    """The tokens of a tool's answer have mask 0: they are read, but have no weight."""
    rollouts = sample(model, prompts, 2, 20, stop_ids=())
    start = rollouts.prompt_lengths + 5
    columns = torch.arange(rollouts.mask.size(1))
    rollouts.mask[(columns >= start[:, None]) & (columns < start[:, None] + 4)] = 0.0
    advantages = group_advantages(torch.rand(3, 2))
    ours, stats = gradient(model, rollouts, advantages)
    assert_gradient_of_the_formula(ours, model, rollouts, advantages.view(-1, 1))
    assert stats["mismatch"] < 1e-5


def test_checkpointed_blocks_give_the_same_gradient(model, prompts, monkeypatch):
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4))
    kept, stats = gradient(model, rollouts, advantages)
    model.checkpoint_blocks = True
    calls = []
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda *args: calls.append(1) or forward(*args))
    again, again_stats = gradient(model, rollouts, advantages)
    assert torch.equal(again, kept)
    assert again_stats == stats
    assert len(calls) == 2 * len(model.model.layers)  # every block ran twice


def test_mismatch_is_rounding_when_both_see_the_same_and_large_when_not(model, prompts):
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4))
    assert gradient(model, rollouts, advantages)[1]["mismatch"] < 1e-5
    assert gradient(model, rollouts, advantages, GRPO(temperature=0.8))[1]["mismatch"] > 1e-2
    rollouts.logp -= 1.0  # the sampler is far off, but pi / pi_old is what clips
    stats = gradient(model, rollouts, advantages)[1]
    assert stats["mismatch"] == pytest.approx(1, abs=1e-4)
    assert stats["clipped"] == 0


def test_a_second_update_measures_from_the_first_ones_log_probs(model, prompts):
    """pi_old is what the first call returned. On-policy all ratios are 1. After a step they are not, and the
    loss is policy_loss of both log-probs, with clipping."""
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4)).view(-1, 1) * rollouts.mask
    method = GRPO()
    micros = list(method.layout(rollouts, torch.ones(12, dtype=torch.bool), 10**6))
    _, old = update_gradients(model, rollouts, advantages, method, micros)
    torch.testing.assert_close(old, rollouts.logp, atol=1e-5, rtol=0)
    with torch.no_grad():
        for p in model.parameters():
            p -= 3 * p.grad
    ours, stats = gradient(model, rollouts, advantages, old=old)
    logp = token_logprobs(model, rollouts.ids)
    weights = loss_weights(rollouts.mask)
    expected = policy_loss(logp, old, advantages, weights)
    assert stats["loss"] == pytest.approx(expected.item(), abs=1e-5)
    torch.testing.assert_close(ours, of_the_formula(expected, model), atol=1e-6, rtol=1e-4)
    outside = ((logp - old).exp() - 1).abs() > 0.2
    assert stats["clipped"] == pytest.approx((outside * weights).sum().item(), abs=1e-5)
    assert stats["clipped"] > 0


class Reinforce(GRPO):
    """Its loss has log-probs in place of ratios. On-policy both have the same gradient."""

    def loss(self, logp, micro):
        self.seen = micro
        return -(micro.weights * micro.advantages * logp).sum()


def test_a_method_overrides_the_loss_and_sees_a_micro_batch(model, prompts):
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4))
    method = Reinforce(clip=(0.1, 0.3))
    ours, _ = gradient(model, rollouts, advantages, method)
    torch.testing.assert_close(ours, gradient(model, rollouts, advantages)[0], atol=1e-6, rtol=1e-4)
    micro, shape = method.seen, rollouts.logp.shape
    assert micro.old_logp.shape == micro.sampled_logp.shape == micro.advantages.shape == shape


def test_rollouts_of_two_batches_are_joined(model, prompts):
    """This is how batches of two processes are joined: rows are padded, and nothing else changes."""
    uniforms = row_uniforms(range(6), 20, seed=6)
    whole = sample(model, prompts, 2, 20, uniforms=uniforms)
    parts = [sample(model, prompts[:1], 2, 20, uniforms=uniforms[:2])]
    parts += [sample(model, prompts[1:], 2, 20, uniforms=uniforms[2:])]
    joined = Rollouts.join(parts)
    assert joined.completions() == whole.completions()
    assert torch.equal(joined.mask, whole.mask)
    torch.testing.assert_close(joined.logp, whole.logp, atol=1e-5, rtol=0)


def test_settings_that_mean_nothing_are_refused():
    by_name = [{"temperature": 0.0}, {"num_samples": 0}, {"scale": "variance"}]
    for wrong in [*by_name, {"clip": (1.5, 0.2)}, {"clip": (0.2, math.nan)}, {"clip": (0.2,)}]:
        with pytest.raises(ValueError, match=[*wrong][0]):
            GRPO(**wrong)


def test_each_epoch_visits_every_problem_once_in_a_new_order():
    method = GRPO(prompts_per_step=4, seed=3)
    problems = list(range(10))
    walk = [i for step in range(1, 11) for i in method.pick(problems, step, {})]
    epochs = [walk[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(epoch) == problems for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert method.pick(problems, 2, {}) == walk[4:8]  # a resumed run picks the same


# ---- The chapter's page -------------------------------------------------------------------------------------------


def contains(text, truth):
    """A reward that a random model sometimes earns."""
    return float(truth in text)


def test_compute_grpo_loss_is_the_chapters_arithmetic(model, tokenizer):
    """The test follows the listing of "9.5 RLVR" on the same completions: one at a time, log-probs at temperature 1
    (although sampled at 0.8), R.std() with G - 1, and a sum over the tokens of a completion."""
    options = {"num_rollouts": 6, "max_new_tokens": 12, "reward_fn": contains}
    out = compute_grpo_loss(model, tokenizer, "3+4=", "7", **options)
    prompt, rewards, logps = tokenizer.encode("3+4="), [], []
    for completion in out["rollouts"].completions():
        rewards.append(contains(tokenizer.decode(completion), "7"))
        logprobs = torch.log_softmax(model(torch.tensor([prompt + completion])), dim=-1)[0]
        spots = range(len(prompt) - 1, len(prompt) + len(completion) - 1)
        logps.append(logprobs[spots, completion].sum())
    R = torch.tensor(rewards)
    assert out["rewards"] == rewards and 0 < sum(rewards) < 6
    advantages = (R - R.mean()) / (R.std() + 1e-8)
    assert out["advantages"] == pytest.approx(advantages.tolist())
    loss = -(advantages * torch.stack(logps)).mean()
    assert out["loss"] == out["loss_tensor"].item() == pytest.approx(loss.item(), abs=1e-4)
    theirs = torch.autograd.grad(loss, model.parameters())
    out["loss_tensor"].backward()
    for p, gradient in zip(model.parameters(), theirs):
        torch.testing.assert_close(p.grad, gradient, atol=1e-4, rtol=1e-4)


def test_compute_grpo_loss_has_nothing_to_say_when_all_rewards_are_equal(model, tokenizer):
    for value in (0.0, 1.0, True):  # a rule may also answer with yes or no
        rule = {"reward_fn": lambda text, truth, value=value: value, "max_new_tokens": 5}
        out = compute_grpo_loss(model, tokenizer, "3+4=", "7", **rule)
        assert out["loss"] == 0.0 and out["loss_tensor"] is None and out["rewards"] == [value] * 4


def test_the_chapters_loss_and_ours_differ_by_the_departures_alone(model, tokenizer):
    """At temperature 1, with norm "sum" and the chapter's advantages, our gradient is the chapter's."""
    options = {"num_rollouts": 6, "max_new_tokens": 12, "temperature": 1.0}
    out = compute_grpo_loss(model, tokenizer, "3+4=", "7", reward_fn=contains, **options)
    out["loss_tensor"].backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    ours, _ = gradient(model, out["rollouts"], torch.tensor([out["advantages"]]), GRPO(norm="sum"))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    # the chapter's std divides by G - 1, so our advantages are sqrt(6 / 5) times larger
    scaled = [a * math.sqrt(6 / 5) for a in out["advantages"]]
    assert group_advantages(out["rewards"]) == pytest.approx(scaled, abs=1e-5)
