"""notebooks/grpo_step.py: the page of chapters 14 and 15 gives the gradient of the core, and its parts do what it says."""

import copy

import pytest
import torch

from conftest import ROOT
from model import load
from notebooks.grpo_step import collect, grpo_loss, grpo_step, reasoning_grpo_step
from rlvr import GRPO, group_advantages, padded_rows, update_gradients
from verifiers import ReasoningReward, arithmetic

PROBLEMS = arithmetic(20, 5).train[:3]
PROMPTS = [problem["problem"] for problem in PROBLEMS]
SMALL = {"G": 6, "max_new_tokens": 60}


@pytest.fixture(scope="module")
def base():
    torch.manual_seed(0)
    return load(ROOT / "notebooks" / "tiny")


def right(prompt, completion, meta):
    return float(f"{{{meta['answer']}}}" in completion)


def moved(model, size=0.02):
    """A copy with other weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += size * torch.randn_like(weight)
    return other


def gradient(model):
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
def test_the_gradient_of_the_page_is_that_of_the_core(base, kl_coef):
    """The first update on a batch, for a policy that has left the reference."""
    model, tokenizer = base
    policy = moved(model)
    loss, batch = grpo_step(
        policy, model, PROMPTS, PROBLEMS, right, tokenizer, kl_coef=kl_coef, **SMALL
    )
    policy.zero_grad()
    loss.backward()
    found = gradient(policy)
    method = GRPO(kl_coef=kl_coef, num_samples=6)
    policy.zero_grad()
    every_row = torch.ones(len(batch.texts), dtype=torch.bool)
    micros = padded_rows(batch.rollouts, every_row, 4096)
    advantages = group_advantages(batch.rewards)
    update_gradients(policy, batch.rollouts, advantages, method, micros, reference=model)
    assert found.norm() > 0
    assert torch.allclose(found, gradient(policy), atol=1e-5 * found.norm().item())


def test_advantages_are_those_of_the_group_and_what_was_cut_off_earns_nothing(base):
    model, tokenizer = base
    batch = collect(model, PROMPTS, PROBLEMS, right, tokenizer, **SMALL)
    assert batch.rewards.shape == (3, 6) and batch.rewards.std() > 0
    assert torch.allclose(batch.advantages.view(3, 6), group_advantages(batch.rewards), atol=1e-4)
    cut = collect(model, PROMPTS, PROBLEMS, lambda *_: 1.0, tokenizer, G=2, max_new_tokens=3)
    assert not cut.rollouts.finished.any() and cut.rewards.sum() == 0


def test_padding_has_no_gradient_and_no_weight(base):
    """Other ids behind the end of a completion change nothing."""
    model, tokenizer = base
    batch = collect(moved(model), PROMPTS, PROBLEMS, right, tokenizer, **SMALL)
    loss, _ = grpo_loss(model, model, batch)
    columns = torch.arange(batch.rollouts.ids.size(1))
    ends = batch.rollouts.prompt_lengths + batch.rollouts.lengths
    padding = columns >= ends[:, None]
    assert padding.any()
    batch.rollouts.ids[padding] = 5
    assert grpo_loss(model, model, batch)[0].item() == pytest.approx(loss.item(), abs=1e-6)


def test_the_clip_acts_once_the_policy_has_moved_and_the_kl_is_zero_at_the_reference(base):
    model, tokenizer = base
    batch = collect(model, PROMPTS, PROBLEMS, right, tokenizer, **SMALL)
    _, at_start = grpo_loss(model, model, batch)
    _, later = grpo_loss(moved(model, 0.05), model, batch)
    assert at_start["clipped"] == 0 and at_start["kl"] == pytest.approx(0, abs=1e-6)
    assert later["clipped"] > 0.05 and later["kl"] > 0.01


def test_chapter_15_is_the_same_step_with_other_settings(base):
    model, tokenizer = base
    truths = [problem["answer"] for problem in PROBLEMS]
    reward = ReasoningReward(w_lang=0.0)
    loss, batch = reasoning_grpo_step(
        model, model, PROMPTS, truths, reward, tokenizer, max_new_tokens=60
    )
    assert batch.rewards.shape == (3, 16) and batch.temperature == 0.6 and loss.requires_grad
    assert batch.rewards[1, 2].item() == pytest.approx(
        reward(batch.texts[18], truths[1])["R"] if batch.rollouts.finished[18] else 0.0
    )
