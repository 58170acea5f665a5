"""rlvr.py: the chapter's numbers, sampling against the plain way of doing it, and the traps that give no error."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import rlvr
from model import Block, KVCache
from rlvr import (Rollouts, choose, compute_grpo_loss, decode, group_advantages, kl_penalty, loss_weights,
                  microbatches, policy_loss, row_uniforms, sample, score, token_logprobs, update_gradients)
from verifiers import MATH_RULES, aggregate, reward_rlvr, verify_math

grow = KVCache.grow


# ---- Advantages ------------------------------------------------------------------------------------------------------

def test_the_chapters_group_from_rollouts_to_advantages():
    """"RLVR", one GRPO step by hand: rewards 1.10, 0.10, 0.00, 1.10; mean 0.575, std 0.526."""
    rollouts = ["<think>factor (x-2)(x-3)</think><answer>\\boxed{2}</answer>",
                "<think>quadratic formula</think><answer>\\boxed{3}</answer>",
                "The smaller root is 2.",
                "<think>again</think><answer>\\boxed{2}</answer>"]
    rewards = [aggregate(verify_math(rollout, "2"), MATH_RULES) for rollout in rollouts]
    assert rewards == pytest.approx([1.10, 0.10, 0.00, 1.10])
    assert group_advantages(rewards) == pytest.approx([0.998, -0.903, -1.093, 0.998], abs=5e-4)


def test_designs_a_and_b_of_the_reasoning_chapter():
    """"Reward design for reasoning", six rollouts under two designs; the table gives two decimals.

    Design A's std is printed as 0.345, with which rollout 5 gets -2.37; the exact std is 0.367, which gives -2.22. The
    table's own column then follows from 0.345, so we check the exact values and, scaled, the printed ones.
    """
    a = torch.tensor([[1.10, 1.10, 1.10, 1.00, 0.10, 1.10]])
    advantages = group_advantages(a)[0]
    assert advantages.tolist() == pytest.approx([0.499, 0.499, 0.499, 0.227, -2.223, 0.499], abs=2e-3)
    printed = [.53, .53, .53, .24, -2.37, .53]
    assert (advantages * a.std(correction=0) / 0.345).tolist() == pytest.approx(printed, abs=6e-3)
    b = group_advantages(torch.tensor([[1.10, 1.10, 0.94, 1.00, 0.10, 0.60]]))[0]
    assert b.argsort(descending=True).tolist()[2:] == [3, 2, 5, 4]      # ideal, no format, rambling, bilingual, wrong


def test_each_group_has_its_own_mean_and_scale():
    advantages = group_advantages(torch.tensor([[1.0, 0.0], [10.0, 0.0]]))
    assert advantages.flatten().tolist() == pytest.approx([1, -1, 1, -1], abs=1e-4)
    assert group_advantages(torch.tensor([[1.0, 0.0], [10.0, 0.0]]), scale="none").tolist() == [[.5, -.5], [5, -5]]


@pytest.mark.parametrize("value", [0.0, 0.1, 1.1, 0.3333333])
def test_equal_rewards_give_exactly_zero(value):
    """The mean of 16 times 0.1 is not 0.1 in fp32; divided by eps the difference would be a gradient."""
    assert not group_advantages(torch.full((2, 16), value)).any()
    assert group_advantages([value] * 7) == [0.0] * 7 and group_advantages([value]) == [0.0]


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="'variance', not 'std' or 'none'"):
        group_advantages(torch.ones(1, 2), scale="variance")


@pytest.mark.parametrize("rewards", [[[1, 0, 0, 1]], [[True, False, False, True]]])
def test_whole_numbers_and_truth_values_are_rewards_too(rewards):
    """Two right of four: mean 1/2, std 1/2, whatever type the rewards have."""
    advantages = group_advantages(torch.tensor(rewards))
    assert advantages.dtype == torch.float32
    assert advantages[0].tolist() == pytest.approx([1, -1, -1, 1], abs=1e-5)
    assert group_advantages(rewards[0]) == pytest.approx([1, -1, -1, 1], abs=1e-5)


# ---- Loss ------------------------------------------------------------------------------------------------------------

MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0.]])                     # two completions of 3 tokens and of 1


@pytest.mark.parametrize("norm, expected", [
    ("token", [[0, 1/4, 1/4, 1/4], [0, 1/4, 0, 0]]),                   # 4 tokens in the batch
    ("sequence", [[0, 1/6, 1/6, 1/6], [0, 1/2, 0, 0]]),                # 2 rows, of 3 and of 1
    ("constant", [[0, 1/20, 1/20, 1/20], [0, 1/20, 0, 0]]),            # 2 rows x max_new_tokens 10
    ("sum", [[0, 1/2, 1/2, 1/2], [0, 1/2, 0, 0]]),                     # 2 rows
])
def test_what_a_token_counts(norm, expected):
    torch.testing.assert_close(loss_weights(MASK, norm, max_new_tokens=10), torch.tensor(expected))


def test_policy_loss_by_hand():
    """Two rows, weights 1/4. Ratios of row 0 (A = 2): 1, 1.5 clipped to 1.2, 0.5; of row 1 (A = -1): 1.5, not clipped,
    because for a negative advantage the clip only acts below 0.8.
    loss = -1/4 (2 * 1 + 2 * 1.2 + 2 * 0.5 - 1 * 1.5) = -0.975
    """
    logp = torch.tensor([[0, 0, math.log(1.5), math.log(0.5)], [0, math.log(1.5), 0, 0]], requires_grad=True)
    loss = policy_loss(logp, torch.zeros(2, 4), torch.tensor([2.0, -1.0]), MASK / 4)
    assert loss.item() == pytest.approx(-0.975)
    loss.backward()
    assert logp.grad.tolist() == [[0, -0.5, 0, -0.25], [0, 0.375, 0, 0]]     # clipped: no gradient; else -w A ratio


def test_on_policy_the_gradient_is_the_chapters():
    """With pi = pi_old the ratio is 1, and d(-w A ratio) = d(-w A logp): clipping and ratio make no difference."""
    logp = torch.randn(2, 4, requires_grad=True)
    advantages = torch.tensor([0.7, -1.3])
    clipped, = torch.autograd.grad(policy_loss(logp, logp.detach(), advantages, loss_weights(MASK, "sum")), logp)
    chapter, = torch.autograd.grad(-(advantages * (logp * MASK).sum(1)).mean(), logp)
    torch.testing.assert_close(clipped, chapter)


def test_the_kl_by_hand():
    """pi twice as likely as pi_ref: d = log 2, 1/2 - 1 + log 2 = 0.193; equal: 0. Half of it is added."""
    logp, ref = torch.tensor([[math.log(0.8), 0.3]]), torch.tensor([[math.log(0.4), 0.3]])
    weights = torch.ones(1, 2)
    assert kl_penalty(logp, ref, weights).item() == pytest.approx(math.log(2) - 0.5)
    without = policy_loss(logp, logp, torch.tensor([1.0]), weights)
    with_it = policy_loss(logp, logp, torch.tensor([1.0]), weights, ref_logp=ref, kl_coef=0.5)
    assert (with_it - without).item() == pytest.approx((math.log(2) - 0.5) / 2)


# ---- Sampling --------------------------------------------------------------------------------------------------------

def naive_sample(model, prompt, uniforms, temperature):
    """One row, no cache, the whole text read again for every token."""
    ids, logps = list(prompt), []
    for u in uniforms:
        token, logp = choose(model(torch.tensor([ids]))[:, -1], u[None], temperature)
        logps.append(logp.item())
        ids.append(token.item())
        if token == 0:
            break
    return ids[len(prompt):], logps


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_ragged_cached_batch_equals_one_row_at_a_time(model, prompts, temperature):
    uniforms = row_uniforms(range(12), 25, seed=1)
    rollouts = sample(model, prompts, 4, 25, temperature, uniforms=uniforms)
    for row, completion in enumerate(rollouts.completions()):
        expected, logps = naive_sample(model, prompts[row // 4], uniforms[row], temperature)
        assert completion == expected
        start = len(prompts[row // 4]) - 1
        assert rollouts.logp[row, start:start + len(logps)].tolist() == pytest.approx(logps, abs=1e-5)
    assert rollouts.finished.any() and not rollouts.finished.all()           # rows left the batch early, others did not


def test_a_row_alone_equals_the_same_row_in_a_batch(model, prompts):
    uniforms = row_uniforms(range(9), 20, seed=2)
    together = sample(model, prompts, 3, 20, uniforms=uniforms).completions()
    alone = sample(model, prompts[1:2], 3, 20, uniforms=uniforms[3:6]).completions()
    assert alone == together[3:6]


@pytest.mark.parametrize("patience", [1, 8])                                 # as on a CPU and as on a GPU
@pytest.mark.parametrize("cache_tokens", [1, 90, 200, 450])
def test_waiting_rows_take_the_places_of_finished_ones(model, prompts, cache_tokens, patience, monkeypatch):
    """1, 2, 5 and 11 rows at a time: the same tokens and log-probs as 12 at once, which end in another order."""
    monkeypatch.setattr(rlvr, "PATIENCE", {"cpu": patience})
    uniforms = row_uniforms(range(12), 25, seed=1)
    together = sample(model, prompts, 4, 25, uniforms=uniforms)
    few = sample(model, prompts, 4, 25, uniforms=uniforms, cache_tokens=cache_tokens)
    assert len(set(together.lengths.tolist())) > 4
    assert few.completions() == together.completions() and torch.equal(few.finished, together.finished)
    torch.testing.assert_close(few.logp, together.logp, atol=1e-5, rtol=0)


def test_no_more_rows_at_once_than_the_cache_has_room_for(model, prompts):
    rows = []

    def counted(model, token, *rest):
        rows.append(len(token))
        return decode(model, token, *rest)
    sample(model, prompts, 4, 25, cache_tokens=5 * (len(prompts[2]) + 25), step=counted)
    assert max(rows) == 5 and min(rows) < 5                                  # in the end nobody waits and rows leave


def test_a_cache_that_grows_equals_one_that_need_not(model, prompts, monkeypatch):
    uniforms = row_uniforms(range(6), 60, seed=8)
    whole = sample(model, prompts, 2, 60, uniforms=uniforms, stop_ids=())
    grown = []
    monkeypatch.setattr(rlvr, "CACHE_BUCKET", 4)
    monkeypatch.setattr(KVCache, "grow", lambda cache, slots: grown.append(slots) or grow(cache, slots))
    assert sample(model, prompts, 2, 60, uniforms=uniforms, stop_ids=()).completions() == whole.completions()
    assert grown == [24, 48, len(prompts[2]) + 61]              # 12 doubled, and again, then the limit and one to spare


def test_completions_are_handed_out_while_others_go_on(model, prompts):
    """Once each, as they are returned; a verifier can be at work before the longest row has ended."""
    told, steps = [], []

    def counted(*args):
        steps.append(1)
        return decode(*args)
    rollouts = sample(model, prompts, 4, 25, uniforms=row_uniforms(range(12), 25, seed=1), step=counted,
                      on_finished=lambda row, ids: told.append((row, ids, len(steps))))
    assert sorted(pair for *pair, _ in told) == [[*pair] for pair in enumerate(rollouts.completions())]
    assert all(len(ids) <= step + 1 for _, ids, step in told) and told[0][2] < 10 < len(steps) == 24


@pytest.mark.parametrize("patience", [1, 8])
@pytest.mark.parametrize("cache_tokens", [10**6, 90])
def test_a_row_stops_right_behind_a_text(model, prompts, patience, cache_tokens, monkeypatch):
    """Token 5 ends a row here, as a text would: its log-probs and mask end there, it is finished, and neither how
    often one looks (a few tokens too many are sampled and forgotten) nor the other rows matter."""
    monkeypatch.setattr(rlvr, "PATIENCE", {"cpu": patience})
    uniforms, told = row_uniforms(range(12), 25, seed=1), {}

    def until_5(ids):
        return ids.index(5) + 1 if 5 in ids else 0
    plain = sample(model, prompts, 4, 25, uniforms=uniforms)
    cut = sample(model, prompts, 4, 25, uniforms=uniforms, cache_tokens=cache_tokens, stop_after=until_5,
                 on_finished=told.__setitem__)
    expected = [ids[:until_5(ids) or len(ids)] for ids in plain.completions()]
    assert cut.completions() == expected != plain.completions() and told == dict(enumerate(expected))
    assert cut.mask.sum(1).tolist() == [len(ids) for ids in expected]
    assert cut.finished.tolist() == [ids[-1] in (0, 5) for ids in expected] and not cut.finished.all()
    width = cut.logp.size(1)
    torch.testing.assert_close(cut.logp, plain.logp[:, :width] * cut.mask, atol=1e-5, rtol=0)


@pytest.fixture
def compiler():
    try:
        torch.compile(lambda x: 2 * x)(torch.ones(3))
    except Exception as error:
        pytest.skip(f"no working compiler here: {error}")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    return torch._dynamo.utils.counters["stats"]


@pytest.mark.slow
def test_compiled_decoding_equals_the_plain_one(model, prompts, compiler):
    """And is compiled once for all shapes, and once more for a last row that is alone: rows that wait, rows that leave,
    other prompts and a growing cache fit as well."""
    step = torch.compile(decode, dynamic=True)
    for seed, some, cache_tokens in ((1, prompts, 10**6), (2, prompts[:2], 10**6), (3, prompts, 640)):
        uniforms = row_uniforms(range(4 * len(some)), 70, seed)
        plain = sample(model, some, 4, 70, uniforms=uniforms, cache_tokens=cache_tokens)
        compiled = sample(model, some, 4, 70, uniforms=uniforms, cache_tokens=cache_tokens, step=step)
        assert compiled.completions() == plain.completions()
        torch.testing.assert_close(compiled.logp, plain.logp, atol=1e-5, rtol=0)
    assert compiler["unique_graphs"] <= 2


@pytest.mark.slow
def test_a_compiled_update_equals_the_plain_one(model, prompts, compiler):
    """All blocks share a compilation, whatever the lengths: one where rows share lines, one where they do not (prompts
    of one token), and each again for micro-batches of a single line."""
    for some, tokens in ((prompts, 20), (prompts, 33), ([[3], [4], [5]], 20)):
        rollouts = sample(model, some, 4, tokens, uniforms=row_uniforms(range(12), tokens, seed=1))
        advantages, gradients = torch.linspace(-1, 1, 12).view(3, 4), []
        for model.compile_blocks in (False, True):
            model.zero_grad()
            update_gradients(model, rollouts, advantages, micro_batch_tokens=100)
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-4)
    assert 2 <= compiler["unique_graphs"] <= 4


def test_what_rollouts_hold(model, prompts):
    rollouts = sample(model, prompts, 2, 20, uniforms=row_uniforms(range(6), 20, seed=3))
    for row, completion in enumerate(rollouts.completions()):
        prompt, mask = prompts[row // 2], rollouts.mask[row]
        assert rollouts.ids[row, :len(prompt)].tolist() == prompt
        assert rollouts.ids[row, 1:][mask.bool()].tolist() == completion     # column t of the mask is token t + 1
        assert mask.sum() == rollouts.lengths[row] == len(completion)
        assert not rollouts.logp[row][~mask.bool()].any()
        assert rollouts.finished[row] == (completion[-1] == 0) and 0 not in completion[:-1]


def test_the_stop_token_is_trained_and_padding_is_not(model):
    """The stop token 0 doubles as padding here and as an ordinary token of the prompt, as in Qwen3-Base."""
    rollouts = sample(model, [[5, 0, 6]], 64, 20, uniforms=row_uniforms(range(64), 20, seed=4))
    row = int(rollouts.finished.nonzero()[0])
    trained = rollouts.ids[row, 1:][rollouts.mask[row].bool()].tolist()
    assert trained[-1] == 0 and len(trained) == rollouts.lengths[row]
    assert rollouts.ids[row, 1] == 0 and rollouts.mask[row, 0] == 0          # the prompt's own 0 is not


def test_sampled_logprobs_equal_recomputed_ones(model, prompts):
    for temperature in (1.0, 0.6):
        rollouts = sample(model, prompts, 4, 30, temperature)
        again = token_logprobs(model, rollouts.ids, temperature) * rollouts.mask
        torch.testing.assert_close(rollouts.logp, again, atol=1e-5, rtol=0)


def test_greedy_is_the_most_likely_token_and_needs_no_luck(model, prompts):
    first, second = (sample(model, prompts, 1, 15, temperature=0) for _ in range(2))
    assert first.completions() == second.completions()
    start = len(prompts[0])
    assert first.ids[0, start] == model(torch.tensor([prompts[0]]))[0, -1].argmax()


def chosen(probs, *uniforms, **filters):
    """The token for each of these random numbers, all from the same probabilities."""
    logits = torch.tensor(probs).log().expand(len(uniforms), -1)
    return choose(logits, torch.tensor(uniforms), **filters)[0].tolist()


def test_choose_inverts_the_distribution_function():
    probs = [0.5, 0.0, 0.3, 0.2]
    assert chosen(probs, 0.0, 0.49, 0.5, 0.79, 0.81, 0.999999) == [0, 0, 2, 2, 3, 3]
    # A number that rounds up to the whole mass never gets a token that cannot be.
    assert chosen([0.1, 0.9, 0.0, 0.0], 1 - 2**-24) == [1]
    drawn = choose(torch.tensor(probs).log().expand(40_000, 4), torch.rand(40_000))[0]
    shares = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.tensor(probs), atol=0.01, rtol=0)


def test_filters_by_hand():
    """Probabilities .5 .3 .15 .05; of what stays, every token comes within 0 .. 1, the rest never."""
    probs, numbers = [0.5, 0.3, 0.15, 0.05], [i / 100 for i in range(100)]

    def kept(**filters):
        return sorted(set(chosen(probs, *numbers, **filters)))
    assert kept() == [0, 1, 2, 3]
    assert kept(top_k=2) == [0, 1] and kept(top_k=9) == [0, 1, 2, 3]
    assert kept(top_p=0.6) == [0, 1]                                    # .5 is not enough, .5 + .3 is
    assert kept(top_p=0.4) == [0]                                       # at least one token stays
    assert kept(top_p=0.9, top_k=1) == [0]
    assert chosen(probs, 0.62, 0.63, top_k=2) == [0, 1]                 # .5 of .8 is 0.625
    logp = choose(torch.tensor([probs]).log(), torch.zeros(1), top_k=1)[1]
    assert logp.exp().item() == pytest.approx(0.5)                      # still the policy's own log-prob


def test_temperature_zero_takes_the_likeliest_and_reports_its_probability_at_one():
    token, logp = choose(torch.tensor([[0.2, 0.5, 0.3]]).log(), torch.tensor([0.999]), temperature=0)
    assert token.item() == 1 and logp.exp().item() == pytest.approx(0.5)


def test_ids_without_a_token_are_never_sampled_nor_counted(model):
    """Qwen3 has 151,936 embedding rows and 151,669 tokens; here the last 10 rows stand for the rest."""
    model.config.num_tokens -= 10
    with torch.no_grad():
        model.model.embed_tokens.weight[-10:] = 3 * model.model.embed_tokens.weight[:10]         # tempting
    rollouts = sample(model, [[3, 4]], 64, 10)
    assert rollouts.ids.max() < model.config.num_tokens
    again = token_logprobs(model, rollouts.ids) * rollouts.mask
    torch.testing.assert_close(rollouts.logp, again, atol=1e-5, rtol=0)


def test_random_numbers_belong_to_rows():
    table = row_uniforms(range(10), 5, seed=0)
    assert torch.equal(table[4:6], row_uniforms([4, 5], 5, seed=0))
    assert torch.equal(table[:, :3], row_uniforms(range(10), 3, seed=0))       # fewer steps: the same beginning
    assert not torch.equal(table, row_uniforms(range(10), 5, seed=1)) and len(table.unique()) == 50


def test_neighbouring_seeds_share_no_random_numbers():
    """Of 30 seeds, 40 steps and 20 rows no two begin alike; 1,000,003 rows on, seeds 0 and 1 once met again."""
    firsts = [row_uniforms([f"{step} {row}" for step in range(40) for row in range(20)], 2, seed)
              for seed in range(30)]
    assert len(torch.cat(firsts).unique(dim=0)) == 30 * 40 * 20
    assert not torch.equal(row_uniforms([1_000_003 + 7], 2, 0), row_uniforms([7], 2, 1))
    assert row_uniforms([0], 3, 10**30).shape == (1, 3)                         # any seed will do


def test_empty_prompts_are_refused(model):
    for prompts in ([], [[1], []]):
        with pytest.raises(ValueError, match="at least one"):
            sample(model, prompts)


# ---- Log-probs and gradients -----------------------------------------------------------------------------------------

def test_chunked_logprobs_equal_the_naive_ones(model, prompts, monkeypatch):
    """Values, entropies and gradients; chunks of 7 positions against one log-softmax over the full logits."""
    rollouts = sample(model, prompts, 3, 20)
    monkeypatch.setattr(rlvr, "CHUNK_ELEMENTS", 7 * model.config.num_tokens)
    logp, entropy = token_logprobs(model, rollouts.ids, 0.9, rollouts.mask, return_entropy=True)
    grads = torch.autograd.grad(logp.sum(), model.parameters())
    full = (model(rollouts.ids)[:, :-1] / 0.9).log_softmax(-1)                                   # (B, T-1, V)
    naive = full.gather(2, rollouts.ids[:, 1:, None]).squeeze(2) * rollouts.mask
    torch.testing.assert_close(logp, naive, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(entropy, -(full.exp() * full).sum(-1) * rollouts.mask, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(grads, torch.autograd.grad(naive.sum(), model.parameters())):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def gradient(model, rollouts, advantages, **options):
    """The gradient as one vector, and the statistics."""
    model.zero_grad()
    stats, _ = update_gradients(model, rollouts, advantages, **options)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads]), stats


@pytest.mark.parametrize("norm", ["token", "sequence", "constant", "sum"])
def test_the_micro_batch_split_does_not_change_the_gradient(model, prompts, norm):
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4))
    options = dict(norm=norm, max_new_tokens=20)
    whole, stats = gradient(model, rollouts, advantages, micro_batch_tokens=10**9, **options)
    for tokens in (1, 40, 100):
        split, split_stats = gradient(model, rollouts, advantages, micro_batch_tokens=tokens, **options)
        torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-4)
        assert split_stats == pytest.approx(stats, abs=1e-5)
    logp = token_logprobs(model, rollouts.ids)                               # and it is the gradient of the formula
    weights = loss_weights(rollouts.mask, norm, 20)
    plain = torch.autograd.grad(-(weights * advantages.view(-1, 1) * logp).sum(), model.parameters())
    torch.testing.assert_close(whole, torch.cat([g.flatten() for g in plain]), atol=1e-6, rtol=1e-4)


def test_checkpointed_blocks_give_the_same_gradient(model, prompts, monkeypatch):
    rollouts, calls, forward = sample(model, prompts, 4, 20), [], Block.forward
    advantages = group_advantages(torch.rand(3, 4))
    kept, stats = gradient(model, rollouts, advantages)
    model.checkpoint_blocks = True
    monkeypatch.setattr(Block, "forward", lambda *args: calls.append(1) or forward(*args))
    again, again_stats = gradient(model, rollouts, advantages)
    assert torch.equal(again, kept) and again_stats == stats
    assert len(calls) == 2 * len(model.model.layers)                         # every block ran twice


def test_groups_without_signal_give_exactly_no_gradient(model, prompts):
    rollouts = sample(model, prompts, 4, 20)
    none, stats = gradient(model, rollouts, group_advantages(torch.ones(3, 4)))
    assert not none.any() and stats["trained"] == 0 and stats["loss"] == 0
    rewards = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0.1] * 4])
    some, stats = gradient(model, rollouts, group_advantages(rewards))
    assert some.any() and stats["trained"] == 4


def lines(rollouts, *args):
    """The rows in each line of each micro-batch."""
    width = rollouts.ids.size(1) - 1
    return [[[*dict.fromkeys(i // width for i in line if i >= 0)] for line in index.tolist()]
            for index, _ in microbatches(rollouts, *args)]


@pytest.mark.parametrize("hidden_size", [0, 64, 4096])
@pytest.mark.parametrize("tokens", [1, 40, 100, 10**6])
def test_microbatches_hold_each_kept_token_once_longest_first_and_no_more_than_asked(model, prompts, hidden_size, tokens):
    rollouts, keep = sample(model, prompts, 5, 20), (torch.rand(15) > 0.3).tolist()
    batches = [index for index, _ in microbatches(rollouts, keep, tokens, hidden_size)]
    asked = torch.tensor(keep)[:, None] & rollouts.mask.bool()
    found = torch.cat([index[index >= 0] for index in batches])
    assert torch.equal(found[asked.flatten()[found]].sort()[0], asked.flatten().nonzero().squeeze(1))
    sizes = [n for index in batches for n in (index >= 0).sum(1).tolist()]
    assert sizes == sorted(sizes, reverse=True)
    for index, rows in zip(batches, lines(rollouts, keep, tokens, hidden_size)):
        assert index.numel() <= tokens or len(index) == 1 and len(rows[0]) == 1                  # a row at least


def test_a_group_shares_lines_while_that_is_cheaper():
    """Rows of 20 tokens behind prompts of 11 and of 51, hidden size 64: best is a line where they say sqrt(10 (6 * 64 +
    10)) = 62 together, three rows, and sqrt(50 (6 * 64 + 50)) = 147, so all four. Nothing is shared of one token."""
    rollouts = Rollouts(torch.zeros(12, 72).long(), torch.tensor([11] * 4 + [51] * 4 + [1] * 4), torch.tensor([20] * 12), None, None, 4)
    assert lines(rollouts, [True] * 12, 10**6, 64) == [[[4, 5, 6, 7], [0, 1, 2], [3], [8], [9], [10], [11]]]
    assert lines(rollouts, [False] + [True] * 5 + [False] * 6, 10**6, 64) == [[[4, 5], [1, 2, 3]]]
    assert lines(rollouts, [True] * 8 + [False] * 4, 100, 64) == [[[4, 5]], [[6, 7]], [[0, 1, 2]], [[3]]]  # of at most 100


def test_no_process_gets_more_of_a_group_than_its_share():
    """8 rows of 40 tokens behind a prompt of 10, hidden size 1024: alone a process takes 5 and 3 to a line. Of four each
    has a line of 2; otherwise two of them would do nothing."""
    rollouts = Rollouts(torch.zeros(8, 50).long(), torch.tensor([10] * 8), torch.tensor([40] * 8), None, None, 8)
    assert lines(rollouts, [True] * 8, 10**6, 1024) == [[[0, 1, 2, 3, 4], [5, 6, 7]]]
    assert [lines(rollouts, [True] * 8, 10**6, 1024, rank, 4) for rank in range(4)] == [[[[0, 1]]], [[[2, 3]]], [[[4, 5]]], [[[6, 7]]]]


def test_rows_that_share_a_line_have_the_log_probs_and_gradients_they_have_alone(model, prompts, monkeypatch):
    """Prompts of different lengths, one of a single token, and not all rows. Each prompt is read once."""
    rollouts, read, forward = sample(model, [prompts[0], [3], prompts[2]], 4, 20), [], model.forward
    keep = [row not in (2, 4, 5, 6) for row in range(12)]
    alone, alone_entropy = token_logprobs(model, rollouts.ids, 0.7, rollouts.mask, True)
    monkeypatch.setattr(model, "forward", lambda ids, **more: read.append(ids.shape) or forward(ids, **more))
    [(index, _)] = microbatches(rollouts, keep, 10**6, 1000)
    rows = [row for row in range(12) if keep[row]]
    shared, entropy = token_logprobs(model, rollouts.ids, 0.7, rollouts.mask, True, index)
    starts, lengths = (rollouts.prompt_lengths - 1).tolist(), rollouts.lengths.tolist()
    assert read == [(3, max(starts[4 * i] + sum(lengths[4 * i + j] for j in range(4) if keep[4 * i + j]) for i in range(3)))]
    torch.testing.assert_close(shared[rows], alone[rows], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy[rows], alone_entropy[rows], atol=1e-5, rtol=1e-5)
    assert len(rows) == 8 and not shared[[2, 4, 5, 6]].any()
    for one, other in zip(*(torch.autograd.grad(x[rows].sum(), model.parameters()) for x in (shared, alone))):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_mismatch_is_rounding_when_both_see_the_same_and_large_when_not(model, prompts):
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4))
    stats = gradient(model, rollouts, advantages)[1]
    assert stats["mismatch"] < 1e-5 and abs(stats["ratio"] - 1) < 1e-5
    stats = gradient(model, rollouts, advantages, temperature=0.8)[1]
    assert stats["mismatch"] > 1e-2 and abs(stats["ratio"] - 1) > 1e-4
    rollouts.logp -= 1.0                            # a sampler that is far off: what clips is pi / pi_old all the same
    stats = gradient(model, rollouts, advantages)[1]
    assert stats["mismatch"] == pytest.approx(1, abs=1e-4) and stats["clipped"] == 0


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


def test_a_second_update_measures_from_the_first_ones_log_probs(model, prompts):
    """pi_old is what the first call returned. On-policy all ratios are 1; after a step they are not, and the loss is
    policy_loss of the two, whose gradient the clip may cut."""
    rollouts = sample(model, prompts, 4, 20)
    advantages = group_advantages(torch.rand(3, 4))
    _, old = update_gradients(model, rollouts, advantages)
    torch.testing.assert_close(old, rollouts.logp, atol=1e-5, rtol=0)
    with torch.no_grad():
        for p in model.parameters():
            p -= 3 * p.grad
    stats = gradient(model, rollouts, advantages, old_logp=old)[1]
    logp = token_logprobs(model, rollouts.ids, mask=rollouts.mask)
    weights = loss_weights(rollouts.mask)
    expected = policy_loss(logp, old, advantages.view(-1), weights)
    assert stats["loss"] == pytest.approx(expected.item(), abs=1e-5)
    outside = ((logp - old).exp() - 1).abs() > 0.2
    assert stats["clipped"] == pytest.approx((outside * weights).sum().item(), abs=1e-5) and stats["clipped"] > 0


def test_a_loss_of_ones_own_gets_what_the_signature_says(model, prompts):
    """REINFORCE: the log-probs themselves. On-policy it has the gradient of the ratio, so of the core's loss."""
    rollouts, seen = sample(model, prompts, 4, 20), []

    def reinforce(logp, old_logp, advantages, weights, clip, sampled_logp, ref_logp, kl_coef):
        seen.append((logp.shape, old_logp.shape, advantages.shape, sampled_logp.shape, ref_logp, clip, kl_coef))
        return -(weights * advantages[:, None] * logp).sum()
    advantages = group_advantages(torch.rand(3, 4))
    ours, _ = gradient(model, rollouts, advantages, loss=reinforce, clip=(0.1, 0.3))
    torch.testing.assert_close(ours, gradient(model, rollouts, advantages)[0], atol=1e-6, rtol=1e-4)
    shape = rollouts.logp.shape
    assert seen == [(shape, shape, (12,), shape, None, (0.1, 0.3), 0.0)]


def test_the_kl_reaches_rows_without_an_advantage_and_is_logged_only_when_asked_for(model, prompts):
    """All rewards are equal: nothing to learn, but the KL still pulls back to the reference."""
    rollouts, nothing = sample(model, prompts, 4, 20), torch.zeros(3, 4)
    assert "kl" not in gradient(model, rollouts, nothing)[1]
    reference = type(model)(model.config)
    reference.load_state_dict({name: w + 0.1 * torch.randn(w.shape) for name, w in model.state_dict().items()})
    pulled, stats = gradient(model, rollouts, nothing, reference=reference, kl_coef=0.5)
    logp, ref = (token_logprobs(m, rollouts.ids, mask=rollouts.mask) for m in (model, reference))
    kl = kl_penalty(logp, ref, loss_weights(rollouts.mask))
    assert stats["kl"] == pytest.approx(kl.item(), rel=1e-4) and stats["loss"] == pytest.approx(kl.item() / 2, rel=1e-4)
    plain = torch.autograd.grad(kl / 2, model.parameters())
    torch.testing.assert_close(pulled, torch.cat([g.flatten() for g in plain]), atol=1e-6, rtol=1e-3)
    # Both at the temperature of the sampling: from itself no model is away.
    assert abs(gradient(model, rollouts, nothing, temperature=0.7, reference=model, kl_coef=0.5)[1]["kl"]) < 1e-9


# ---- Rewards and the whole -------------------------------------------------------------------------------------------

def test_a_completion_that_was_cut_off_earns_at_most_nothing():
    """A right answer that goes on is worth 0. Where a wrong one costs 1, it also does so if it never stops: else that
    would be the way out."""
    finished = torch.tensor([True, False, True, False])
    rollouts = Rollouts(torch.zeros(4, 3), torch.ones(4), torch.ones(4), finished, None, num_samples=4)
    texts = ["\\boxed{4}", "\\boxed{4} and so on and", "\\boxed{5}", "\\boxed{5} and so on and"]
    rewards, parts = score(rollouts, texts, [{"answer": "4"}],
                           lambda text, problem: (2 * reward_rlvr(text, problem["answer"]) - 1, {}))
    assert rewards.tolist() == [[1.0, 0.0, -1.0, -1.0]] and [part["truncated"] for part in parts] == [0, 1, 0, 1]


def finished_rollouts(rows):
    return Rollouts(torch.zeros(rows, 3), torch.ones(rows), torch.ones(rows), torch.ones(rows).bool(), None, rows)


@pytest.mark.filterwarnings("ignore:the verifier failed")
@pytest.mark.parametrize("early", [False, True])
def test_a_verifier_that_raises_costs_a_reward_and_not_the_run(early):
    def reward(text, problem):
        return 1 / float(text), {}
    pool, texts = ThreadPoolExecutor(2), ["1", "0", "2", "two"]
    verdicts = {row: pool.submit(reward, text, {}) for row, text in enumerate(texts)} if early else None
    rewards, parts = score(finished_rollouts(4), texts, [{}], reward, verdicts)
    assert rewards.tolist() == [[1.0, 0.0, 0.5, 0.0]] and [part["failed"] for part in parts] == [0, 1, 0, 1]
    assert [part["accuracy"] for part in parts] == [1.0, 0.0, 0.5, 0.0]
    with pytest.warns(UserWarning, match="could not convert string to float: 'two'"):
        score(finished_rollouts(4), texts, [{}], reward)


@pytest.mark.filterwarnings("ignore:the verifier failed")
def test_to_make_the_verifier_fail_earns_no_more_than_the_worst_of_the_group():
    """How far from 7? Words cannot be compared, and must not be the nearest that way."""
    rewards, _ = score(finished_rollouts(3), ["5", "seven", "8"], [{}], lambda text, problem: (-abs(float(text) - 7), {}))
    assert rewards.tolist() == [[-2.0, -2.0, -1.0]]


@pytest.mark.filterwarnings("ignore:the verifier failed")
def test_a_verifier_that_hangs_holds_up_the_step_only_so_long():
    """One of two threads hangs; what the other judges counts, in the order of the rows."""
    enough = threading.Event()

    def reward(text, problem):
        if text == "hang":
            enough.wait(60)
            return 9.0, {}
        return float(text), {}
    pool, texts = ThreadPoolExecutor(2), ["1", "hang", "2", "3"]
    verdicts = {row: pool.submit(reward, texts[row], {}) for row in (3, 1, 0, 2)}         # the order of finishing
    rewards, parts = score(finished_rollouts(4), texts, [{}], reward, verdicts, patience=0.5)
    enough.set()
    assert rewards.tolist() == [[1.0, 0.0, 2.0, 3.0]] and [part["failed"] for part in parts] == [0, 1, 0, 0]


@pytest.mark.parametrize("returned, accuracy", [
    ((-1.0, {}), 0.0), ((1.0, {}), 1.0), ((7, {"terse": 3}), 1.0),      # a reward of one's own scale
    ((0.3, {"accuracy": 1}), 1.0), ((True, {}), 1.0),
])
def test_rewards_of_any_scale_are_taken_as_they_are(returned, accuracy):
    rewards, (part,) = score(finished_rollouts(1), [""], [{}], lambda text, problem: returned)
    assert rewards.item() == pytest.approx(float(returned[0])) and part["accuracy"] == accuracy and part["failed"] == 0


@pytest.mark.parametrize("returned", [float("nan"), (float("nan"), {}), (math.inf, {}), (1.0, {"accuracy": 2.0}),
                                      (1.0, {"accuracy": -1}), (1.0, {"terse": math.nan}), (1.0, None), "1"])
def test_what_is_no_reward_costs_the_completion_and_says_what_is_expected(returned):
    """Not a gradient of NaN three functions later, nor an accuracy above 1."""
    with pytest.warns(UserWarning, match=r'returns \(number, \{name: number\}\), finite, with "accuracy" from 0 to 1'):
        rewards, (part,) = score(finished_rollouts(1), [""], [{}], lambda text, problem: returned)
    assert rewards.item() == 0 and part["accuracy"] == 0 and part["failed"] == 1


def test_compute_grpo_loss_is_the_chapters_arithmetic(model, tokenizer):
    """The listing of "9.5 RLVR" line by line on the same completions: one at a time, log-probs of the plain model
    (temperature 1, though 0.8 was sampled at), R.std() with G - 1, the sum over the tokens of a completion."""
    def reward(text, truth):                             # something a random model gets right now and then
        return float(truth in text)
    out = compute_grpo_loss(model, tokenizer, "3+4=", "7", num_rollouts=6, max_new_tokens=12, reward_fn=reward)
    prompt, rewards, logps = tokenizer.encode("3+4="), [], []
    for completion in out["rollouts"].completions():
        rewards.append(reward(tokenizer.decode(completion), "7"))
        logprobs = torch.log_softmax(model(torch.tensor([prompt + completion])), dim=-1)[0]
        logps.append(sum(logprobs[len(prompt) + i - 1, token] for i, token in enumerate(completion)))
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
    for value in (0.0, 1.0, True):                          # a rule may also answer with yes or no
        out = compute_grpo_loss(model, tokenizer, "3+4=", "7", reward_fn=lambda text, truth: value, max_new_tokens=5)
        assert out["loss"] == 0.0 and out["loss_tensor"] is None and out["rewards"] == [value] * 4


def test_the_chapters_loss_and_ours_differ_by_the_departures_alone(model, tokenizer):
    """At temperature 1, with norm "sum" and the advantages of the chapter, our gradient is the chapter's."""
    out = compute_grpo_loss(model, tokenizer, "3+4=", "7", num_rollouts=6, max_new_tokens=12, temperature=1.0,
                            reward_fn=lambda text, truth: float(truth in text))
    out["loss_tensor"].backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    ours, _ = gradient(model, out["rollouts"], torch.tensor([out["advantages"]]), norm="sum")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    # G - 1 in the std: sqrt(6 / 5) between ours and the chapter's advantages
    scaled = [a * math.sqrt(6 / 5) for a in out["advantages"]]
    assert group_advantages(out["rewards"]) == pytest.approx(scaled, abs=1e-5)
