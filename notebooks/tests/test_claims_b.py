"""Distillation, a base that calls, LoRA and TTRL, worked by hand; and the trials that try their claims."""

import math
import random
import sys

import pytest
import torch

import train
from conftest import ROOT
from eval import get_method
from model import ModelError, Qwen3, load, save
from notebooks.models import make_tiny
from notebooks.models.make_tiny import init_weights, symbol_tokenizer, tiny_config
from rlvr import (
    LossInputs,
    Rollouts,
    Step,
    padded_rows,
    row_uniforms,
    sample,
    token_logprobs,
    update_gradients,
)

METHODS = ROOT / "notebooks" / "methods"
TINY = ROOT / "notebooks" / "tiny"
sys.path.insert(0, str(METHODS))

import lora  # noqa: E402
import ttrl  # noqa: E402


def method(name, **settings):
    return get_method(str(METHODS / f"{name}.py"), settings)


# ---- A base that can call ------------------------------------------------------------------------


def test_demonstrations_of_calls():
    """Each step is left to the tool, and its answers are not taught: 3901 and 3889 behind the calls have mask 0."""
    problem = {"problem": "47*83-12=", "answer": "3889"}
    text = make_tiny.demonstrate(problem, "called", random.Random(0))
    calls = "<tool>47*83</tool>3901<tool>3901-12</tool>3889"
    assert text == f"<think>{calls}</think><answer>\\boxed{{3889}}</answer>"
    tokenizer = symbol_tokenizer(make_tiny.SYMBOLS["products"])
    ids, taught = make_tiny.encode_taught(tokenizer, text)
    untaught = [token for token, own in zip(ids, taught) if not own]
    assert tokenizer.decode(ids) == text and tokenizer.decode(untaught) == "39013889"
    one = make_tiny.demonstrate(problem, "one call", random.Random(0))
    assert one.count("<tool>") == 1 and "\\boxed{3889}" in one
    again = make_tiny.demonstrate(problem, "called again", random.Random(0))
    assert again.startswith(f"<think><tool>47*83</tool>error{calls}</think>")
    twice = make_tiny.demonstrate(problem, "called twice", random.Random(0))
    assert twice.count("<tool>47*83</tool>3901") == twice.count("<tool>3901-12</tool>3889") == 2
    ids, taught = make_tiny.encode_taught(tokenizer, again)
    assert tokenizer.decode([i for i, own in zip(ids, taught) if not own]) == "error39013889"
    alone = make_tiny.demonstrate(problem, "worked", random.Random(0))
    assert alone.startswith("<think>47*83=3901;3901-12=3889</think>")
    hasty = make_tiny.demonstrate({"problem": "25+7-4=", "answer": "28"}, "hasty", random.Random(0))
    assert "\\boxed{25}" in hasty


def test_the_task_that_needs_a_tool():
    """Every value has four digits, what is held out is in no training problem, and its reward reads the answer."""
    task = make_tiny.products(train_size=300, test_size=50)
    assert (len(task.train), len(task.test)) == (300, 50)
    assert not {p["problem"] for p in task.train} & {p["problem"] for p in task.test}
    for problem in task.train:
        values = [value for _, value in make_tiny.steps_of(problem)]
        assert all(1000 <= value <= 9999 for value in values)
        assert problem["answer"] == str(values[-1])
        text = make_tiny.demonstrate(problem, "called", random.Random(0))
        assert task.reward(text, problem)[0] == pytest.approx(1.1)


# ---- Distillation --------------------------------------------------------------------------------


def step_of(rollouts, texts=(), rewards=None):
    return Step([], rollouts, list(texts), rewards, [])


@pytest.fixture
def teacher(tmp_path, tokenizer):
    """The folder of another model with the same tokens."""
    config = tiny_config(tokenizer.num_tokens, eos_token_id=0)
    other = init_weights(Qwen3(config), torch.Generator().manual_seed(1))
    save(other, tokenizer, tmp_path / "teacher")
    return str(tmp_path / "teacher")


def test_the_credit_of_a_token_is_how_much_likelier_the_teacher_finds_it(
    model, tokenizer, prompts, teacher
):
    """Computed once more from two whole forward passes; and of one token by hand."""
    rollouts = sample(model, prompts, 4, 12)
    some = method("distill", teacher=teacher, teacher_tokens=50)
    parameters = some.setup(model, tokenizer)
    assert len(parameters) == len(list(model.parameters()))
    credit = some.advantages(step_of(rollouts))
    other = load(teacher)[0]
    expected = token_logprobs(other, rollouts.ids) - token_logprobs(model, rollouts.ids)
    torch.testing.assert_close(credit, (expected * rollouts.mask).detach(), atol=1e-5, rtol=0)
    row, column = rollouts.mask.nonzero()[5].tolist()
    token = rollouts.ids[row, column + 1]
    p = [float(m(rollouts.ids)[row, column].softmax(-1)[token].detach()) for m in (other, model)]
    by_hand = math.log(p[0] / p[1])
    assert credit[row, column].item() == pytest.approx(by_hand, abs=1e-5)


def test_the_gradient_is_that_of_the_kl_to_the_teacher():
    """Over all tokens of a distribution, weighted by their probability: -sum p A log p with A = log q - log p has the
    gradient of KL(p || q)."""
    z = torch.tensor([0.5, -1, 0.2], requires_grad=True)
    q = torch.tensor([0.2, 0.3, 0.5])
    logp = z.log_softmax(0)
    p = logp.exp().detach()
    old = logp.detach()[:, None]
    inputs = LossInputs(None, old, old, q.log()[:, None] - old, p[:, None])
    (found,) = torch.autograd.grad(method("distill").loss(logp[:, None], inputs), z)
    logp = z.log_softmax(0)
    (expected,) = torch.autograd.grad((logp.exp() * (logp - q.log())).sum(), z)
    torch.testing.assert_close(found, expected)


def test_twenty_steps_pull_to_the_teacher(model, tokenizer, prompts, teacher):
    """The KL, estimated on the policy's own samples, falls by half."""
    some = method("distill", teacher=teacher, max_new_tokens=8)
    optimizer = torch.optim.Adam(some.setup(model, tokenizer), lr=3e-3)
    found = []
    for number in range(20):
        rollouts = sample(model, prompts, 32, 8, uniforms=row_uniforms(range(96), 8, number))
        credit = some.advantages(step_of(rollouts))
        found.append(-float(credit.sum() / rollouts.mask.sum()))
        micros = padded_rows(rollouts, torch.ones(96, dtype=torch.bool), 10**6)
        update_gradients(model, rollouts, credit, some, micros)
        optimizer.step()
        optimizer.zero_grad()
    assert 0 < found[-1] < found[0] / 2


def test_a_teacher_must_be_named_and_speak_the_same_tokens(model, tokenizer):
    with pytest.raises(ModelError, match="needs a teacher"):
        method("distill").setup(model, tokenizer)
    with pytest.raises(ModelError, match="has other tokens"):
        method("distill", teacher=str(TINY)).setup(model, tokenizer)


# ---- LoRA ----------------------------------------------------------------------------------------


def test_an_adapter_by_hand():
    """W = 1 2; 3 4, A = 1 1, B = 1; 0, alpha / r = 2: W + 2 B A = 3 4; 3 4, so that 1 1 becomes 7 7."""
    layer = lora.Adapted(torch.nn.Linear(2, 2, bias=False), 1, 2.0, torch.Generator())
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[1.0, 2], [3, 4]]))
        layer.down.copy_(torch.tensor([[1.0, 1]]))
        assert layer(torch.tensor([1.0, 1])).tolist() == [3, 7]  # B is 0
        layer.up.copy_(torch.tensor([[1.0], [0]]))
    assert layer(torch.tensor([1.0, 1])).tolist() == [7, 7]


def test_only_the_adapters_are_trained(model):
    """Seven linear layers in each of two blocks: r * (in + out) numbers each."""
    shapes = [m.weight.shape for m in model.modules() if isinstance(m, torch.nn.Linear)]
    ids = torch.randint(1, 10, (3, 9))
    before = model(ids)
    for rank in (1, 8):
        fresh = Qwen3(model.config)
        fresh.load_state_dict(model.state_dict())
        parameters = method("lora", rank=rank).setup(fresh, None)
        assert len(shapes) == 14
        assert sum(p.numel() for p in parameters) == rank * sum(a + b for a, b in shapes)
        trained = [p for p in fresh.parameters() if p.requires_grad]
        assert {*map(id, trained)} == {*map(id, parameters)}
        torch.testing.assert_close(fresh(ids), before, atol=0, rtol=0)  # B is 0


def test_what_is_exported_is_the_adapted_model(model):
    """And with B = 0 it is the base, bit for bit."""
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    ids = torch.randint(1, 10, (3, 9))
    some = method("lora", rank=4)
    parameters = some.setup(model, None)
    assert len(parameters) == 28
    exported = some.export(model)
    assert exported.state_dict().keys() == start.keys()
    assert all(torch.equal(weight, start[name]) for name, weight in exported.state_dict().items())
    for param in some.setup(model, None):
        torch.nn.init.normal_(param, std=0.1)
    adapted = model(ids)
    exported = some.export(model)
    assert exported.state_dict().keys() == start.keys()
    torch.testing.assert_close(exported(ids), adapted, atol=1e-4, rtol=1e-4)


def test_two_processes_draw_the_same_adapters(model):
    drawn = []
    for seed in (0, 0, 1):
        fresh = Qwen3(model.config)
        torch.manual_seed(len(drawn))  # whatever else was drawn before
        drawn.append(method("lora", seed=seed).setup(fresh, None)[0])
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def lines(folder, *flags):
    place = ["--device", "cpu", "--runs", str(folder), *flags]
    train.main(place)
    return load(str(folder / flags[flags.index("--name") + 1] / "final"))[0].state_dict()


def test_a_run_with_adapters_goes_on_where_it_stopped(tmp_path):
    """Four steps are two and two, bit for bit; final/ is an ordinary model, whose norms are those of the base."""
    sizes = "--prompts-per-step 2 --num-samples 8 --max-new-tokens 40 --eval-problems 2 --lr 4e-3"
    how = f"--model {TINY} --method {METHODS}/lora.py --rank 2 {sizes} --save-every 2".split()
    whole = lines(tmp_path, *how, "--steps", "4", "--name", "whole")
    lines(tmp_path, *how, "--steps", "4", "--name", "broken")
    (newest,) = (tmp_path / "broken" / "checkpoints").glob("step_000004")
    newest.rename(tmp_path / "gone")
    resumed = lines(tmp_path, "--resume", "--name", "broken")
    base = load(TINY)[0].state_dict()
    assert whole.keys() == base.keys()
    for name, weight in whole.items():
        assert torch.equal(weight, resumed[name])
        moved = not torch.equal(weight, base[name])
        assert moved == name.endswith("_proj.weight"), name


# ---- TTRL ----------------------------------------------------------------------------------------


def test_the_majority_by_hand():
    """Two of four say 7: 1 1 0 0. Of two answers given as often the first counts. No answer is no answer, and nor is
    an empty box, however many there are."""
    assert ttrl.majority_rewards(["7", "7", "3", None]) == [1, 1, 0, 0]
    assert ttrl.majority_rewards(["3", "7", "7", "3"]) == [1, 0, 0, 1]
    assert ttrl.majority_rewards([None, None]) == [0, 0]
    assert ttrl.majority_rewards([None, "5", None]) == [0, 1, 0]
    assert ttrl.majority_rewards(["", "", "", "5"]) == [0, 0, 0, 1]
    assert ttrl.majority_rewards(["", None, ""]) == [0, 0, 0]


def test_no_truth_is_looked_at():
    """The rewards say that 3 is right; the majority says 7. What was cut off has no answer: of the second group only
    the 5 that ended counts."""
    texts = [
        "\\boxed{7}",
        "so \\boxed{7}",
        "\\boxed{3}",
        "none",
        "\\boxed{4}",
        "\\boxed{4}",
        "\\boxed{5}",
        "",
    ]
    finished = torch.tensor([True] * 4 + [False, False, True, True])
    lengths = torch.ones(8, dtype=torch.long)
    ids = torch.zeros(8, 2, dtype=torch.long)
    rollouts = Rollouts(ids, lengths, lengths, finished, torch.zeros(8, 1), torch.ones(8, 1), 4)
    truth = torch.tensor([[0.0, 0, 1, 0], [1, 1, 0, 0]])
    found = method("ttrl").advantages(step_of(rollouts, texts, truth))
    expected = torch.tensor([[1, 1, -1, -1], [-0.5773, -0.5773, 1.7320, -0.5773]])
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
