"""Distillation, tools, LoRA and TTRL, worked by hand; and the trials that try their claims."""

import math
import random
import sys
import time

import pytest
import torch

import train
from conftest import ROOT
from eval import get_method
from model import ModelError, Qwen3, load, save
from notebooks.environments.calculator import answer_calls, calculator
from notebooks.models import make_tiny
from notebooks.models.make_tiny import init_weights, symbol_tokenizer, tiny_config
from rlvr import (
    LossInputs,
    Rollouts,
    Sampling,
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
import self_distill  # noqa: E402
import tools  # noqa: E402
import ttrl  # noqa: E402


def method(name, **settings):
    return get_method(str(METHODS / f"{name}.py"), settings)


# ---- The calculator ------------------------------------------------------------------------------


def test_the_calculator_by_hand():
    assert calculator("47*83") == 3901
    assert calculator(" 3901 - 12 ") == 3889
    assert calculator("-7+-5") == -12


@pytest.mark.parametrize(
    "call",
    ["", "1+2+3", "2**9", "9**9**9", "1/0", "1234567890+1", "__import__('os').system('ls')"]
    + ["1e5+1", "1_0+1", "１+１", "1+1\n2+2", "(1+1)", "9" * 10**6, "1+" * 10**6],
)
def test_the_calculator_refuses_all_else(call):
    with pytest.raises(ValueError, match="is not one sum, difference or product"):
        calculator(call)


def test_the_last_whole_call_is_answered():
    """Text before it is not looked at; a call that has not ended is none."""
    texts = ["<tool>1+1</tool>2<tool>2*3</tool>", "<tool>1+1", "2+2", "<tool><tool>1+2</tool>"]
    assert answer_calls(calculator, texts) == ["6", None, None, "3"]


def test_tools_that_fail_hang_or_ramble():
    """Two seconds for each of fifty hanging calls would be 100; they are made side by side, in 0.3."""

    def tool(call):
        if call == "hang":
            time.sleep(5)
        return {"fail": 1 // (call != "fail"), "book": "x" * 10**6, "nothing": ""}.get(call, call)

    texts = [f"<tool>{call}</tool>" for call in ["fail", "book", "nothing", "same", *["hang"] * 50]]
    began = time.monotonic()
    found = answer_calls(tool, texts, seconds=0.3)
    assert time.monotonic() - began < 2
    assert found == ["error", "x" * 100, "error", "same"] + ["error"] * 50


# ---- A loop with tools ---------------------------------------------------------------------------

SYMBOLS = [*"0123456789+-*=", "<tool>", "</tool>", "\\boxed{", "}", "error"]


@pytest.fixture
def symbols():
    return symbol_tokenizer(SYMBOLS)


@pytest.fixture
def policy(symbols):
    """Random weights; token 0 ends a completion."""
    config = tiny_config(symbols.num_tokens, eos_token_id=0)
    return init_weights(Qwen3(config), torch.Generator().manual_seed(0))


def scripted(monkeypatch, tokenizer, *scripts):
    """In place of sampling, row i says its script, and then ends."""
    said = [[*tokenizer.encode(script), 0] for script in scripts]
    rows = {}

    def choose(logits, uniforms, temperature):
        tokens = []
        for i in range(len(uniforms)):
            row = round(float(uniforms[i]) * 100)  # the tests' uniforms are row / 100
            waiting = rows.setdefault(row, list(said[row]))
            tokens.append(waiting[0] if waiting else 0)
        return torch.tensor(tokens), None

    own = tools.Tools.choose

    def watched(self, logits, numbers, temperature):
        """A token of the script is used up only where no answer stands in its place."""
        speaks = [not self.rows[i].waiting for i in numbers.int()]
        found = own(self, logits, numbers, temperature)
        for i, speaking in zip(numbers.int().tolist(), speaks):
            if speaking and rows[i]:
                rows[i].pop(0)
        return found

    monkeypatch.setattr(tools, "choose", choose)
    monkeypatch.setattr(tools.Tools, "choose", watched)


def how(rows, room, uniforms, stop_ids=(0,)):
    return Sampling(rows, room, 1.0, [*stop_ids], uniforms, [], True)


def talk(policy, tokenizer, rows, room=40, **settings):
    """One prompt, so many completions of it -> Rollouts."""
    some = tools.Tools(max_new_tokens=room, **settings)
    uniforms = (torch.arange(rows) / 100)[:, None].expand(rows, room)
    prompt = tokenizer.encode("47*83-12=")
    return some.roll_out(policy, tokenizer, [prompt], how(rows, room, uniforms))


def test_a_conversation_by_hand(monkeypatch, policy, symbols):
    """Two calls; the tool's 3901 and 3889 stand behind them, and are in no mask. The prompt has 9 tokens, so the first
    token of the completion is column 8 of (B, T-1)."""
    scripted(monkeypatch, symbols, "<tool>47*83</tool><tool>3901-12</tool>\\boxed{3889}")
    rollouts = talk(policy, symbols, 1)
    (ids,) = rollouts.completions()
    text = symbols.decode(ids)
    assert text == "<tool>47*83</tool>3901<tool>3901-12</tool>3889\\boxed{3889}"
    mask = [1] * 7 + [0] * 4 + [1] * 9 + [0] * 4 + [1] * 7  # the last one is the end token
    assert rollouts.mask[0, 8:].tolist() == mask and not rollouts.mask[0, :8].any()
    assert rollouts.lengths.tolist() == [31] and rollouts.finished.tolist() == [True]
    assert rollouts.mask.sum() == 23  # the length that is logged, and divides


def test_a_hostile_call_is_an_error_and_the_tool_falls_silent(monkeypatch, policy, symbols):
    """A call that is no calculation, and a call more than is allowed."""
    scripted(monkeypatch, symbols, "<tool>9*9*9</tool>1", "<tool>1+1</tool>3<tool>2+2</tool>5")
    found = [symbols.decode(ids) for ids in talk(policy, symbols, 2, max_calls=1).completions()]
    assert found == ["<tool>9*9*9</tool>error1", "<tool>1+1</tool>23<tool>2+2</tool>5"]


def test_an_answer_makes_no_call_and_ends_nothing(monkeypatch, policy, symbols):
    """The tool says what the policy would say to call it; and what ends a completion, which is left out."""
    scripted(monkeypatch, symbols, "<tool>1+1</tool>7")
    monkeypatch.setattr(tools.Tools, "tool", staticmethod(lambda call: "<tool>2+2</tool>"))
    (ids,) = talk(policy, symbols, 1).completions()
    assert symbols.decode(ids) == "<tool>1+1</tool><tool>2+2</tool>7"
    seven = symbols.encode("7")[0]
    monkeypatch.setattr(tools.Tools, "tool", staticmethod(lambda call: "787"))
    scripted(monkeypatch, symbols, "<tool>1+1</tool>9")
    some = tools.Tools(max_new_tokens=20)
    sampling = how(1, 20, torch.zeros(1, 20), [0, seven])
    rollouts = some.roll_out(policy, symbols, [symbols.encode("1=")], sampling)
    assert symbols.decode(rollouts.completions()[0]) == "<tool>1+1</tool>89"


def test_no_room_is_left_by_either_voice(monkeypatch, policy, symbols):
    """10 tokens: 7 of the call, and 3 of the answer's 4. It was cut off, for it did not end by itself."""
    scripted(monkeypatch, symbols, "<tool>47*83</tool>1")
    rollouts = talk(policy, symbols, 1, room=10)
    assert symbols.decode(rollouts.completions()[0]) == "<tool>47*83</tool>390"
    assert rollouts.mask.sum() == 7 and not rollouts.finished.any()


def test_a_call_that_is_spelt_in_pieces(monkeypatch):
    """No token has all of </tool> in it, as in real vocabularies: any that holds a > may end one. Nothing is tokenised
    again: the policy's own pieces are kept."""
    pieces = symbol_tokenizer([*"0123456789+*=b", "<", "</", "tool", ">", "error"])
    config = tiny_config(pieces.num_tokens, eos_token_id=0)
    model = init_weights(Qwen3(config), torch.Generator().manual_seed(0))
    scripted(monkeypatch, pieces, "<tool>6*7</tool>b>b")
    some = tools.Tools(max_new_tokens=30)
    sampling = how(1, 30, torch.zeros(1, 30))
    rollouts = some.roll_out(model, pieces, [pieces.encode("1+1=")], sampling)
    assert pieces.decode(rollouts.completions()[0]) == "<tool>6*7</tool>42b>b"
    assert rollouts.mask.sum() == rollouts.lengths.sum() - 2


@pytest.mark.parametrize("masked", [True, False])
def test_the_samplers_log_probs_are_those_of_training(policy, symbols, masked):
    """Random weights call by chance, and the tool answers 77: the log-probs that sampling gave are those computed
    afterwards, of the policy's tokens alone or, unmasked, of all."""
    some = tools.Tools(max_new_tokens=60, masked=masked, max_calls=2)
    some.tool = lambda call: "77"
    prompts = [symbols.encode(text) for text in ("<tool>1+1", "47*83=")]
    uniforms = row_uniforms(range(16), 60, 0)
    rollouts = some.roll_out(policy, symbols, prompts, how(8, 60, uniforms, []))  # none ends
    logp = token_logprobs(policy, rollouts.ids, 1.0, rollouts.mask)
    torch.testing.assert_close(logp, rollouts.logp, atol=1e-5, rtol=0)
    texts = [symbols.decode(ids) for ids in rollouts.completions()]
    calls = [min(2, text.count("</tool>")) for text in texts]
    inserted = int(rollouts.lengths.sum() - rollouts.mask.sum())
    assert sum(calls) > 8  # an answer may be cut off at the end
    assert inserted == 0 if not masked else 2 * sum(calls) - 4 <= inserted <= 2 * sum(calls)


def test_the_tools_tokens_have_no_gradient(policy, symbols):
    """The loss counts the policy's tokens alone. Where the mask is 0 another log-prob changes nothing."""
    some = tools.Tools(max_new_tokens=40)
    some.tool = lambda call: "77"
    prompts = [symbols.encode("<tool>1+1")]
    uniforms = row_uniforms(range(8), 40, 0)
    rollouts = some.roll_out(policy, symbols, prompts, how(8, 40, uniforms))
    advantages = torch.randn(1, 8)
    micros = list(padded_rows(rollouts, torch.ones(8, dtype=torch.bool), 10**6))
    sums, logp = update_gradients(policy, rollouts, advantages, some, micros)
    assert sums["tokens"] == rollouts.mask.sum() < rollouts.lengths.sum()
    assert not logp[rollouts.mask == 0].any() and sums["mismatch"] / sums["tokens"] < 1e-5


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


# ---- Self-distillation ---------------------------------------------------------------------------


def test_who_is_shown_what():
    """The next right one of the group. The only right one is shown to the others and learns nothing; without a right
    one nobody does."""
    right = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 0]]) > 0
    pairs = [(0, 2), (1, 2), (2, 0), (3, 4), (5, 4)]
    assert self_distill.shown_to(right) == pairs


def test_the_credit_of_what_the_shown_policy_finds_likelier(model, tokenizer, prompts):
    """Of one token by hand: the policy reads problem, solution, problem, completion. Rows that are shown nothing have
    no credit."""
    rollouts = sample(model, prompts, 4, 12, uniforms=row_uniforms(range(12), 12, 0))
    some = method("self_distill", teacher_rows=3)
    some.setup(model, tokenizer)
    rewards = torch.tensor([[1.0, 0, 0, 1.0], [0, 0, 1.1, 0], [0, 0, 0, 0]])
    credit = some.advantages(step_of(rollouts, rewards=rewards))
    assert credit.shape == rollouts.mask.shape and not credit[rollouts.mask == 0].any()
    taught = credit.abs().sum(1) > 0
    assert taught.tolist() == [True] * 4 + [True, True, False, True] + [False] * 4
    row, peer = 1, 3
    start = int(rollouts.prompt_lengths[row])
    own = rollouts.ids[row, : start + int(rollouts.lengths[row])].tolist()
    solved = rollouts.ids[peer, : start + int(rollouts.lengths[peer])].tolist()
    for column in range(start, len(own)):
        shown = model(torch.tensor([solved + own[:column]]))[0, -1].softmax(-1)
        alone = model(torch.tensor([own[:column]]))[0, -1].softmax(-1)
        by_hand = math.log(float(shown[own[column]].detach())) - math.log(
            float(alone[own[column]].detach())
        )
        assert credit[row, column - 1].item() == pytest.approx(by_hand, abs=1e-5)


def test_a_mixture_with_grpo(model, tokenizer, prompts):
    """mix=1 is GRPO; between, a weighted sum."""
    rollouts = sample(model, prompts, 4, 6, uniforms=row_uniforms(range(12), 6, 0))
    step = step_of(rollouts, rewards=torch.tensor([[1.0, 0, 0, 0]] * 3))
    found = {}
    for mix in (0.0, 0.25, 1.0):
        some = method("self_distill", mix=mix)
        some.setup(model, tokenizer)
        found[mix] = some.advantages(step) * rollouts.mask
    grpo = method("grpo").advantages(step).reshape(-1, 1) * rollouts.mask
    torch.testing.assert_close(found[1.0], grpo)
    torch.testing.assert_close(found[0.25], 0.25 * grpo + 0.75 * found[0.0])


def test_wrong_completions_lose_by_hand(model, tokenizer, monkeypatch):
    """Three completions of one token, each as likely as 1 in 4; the first is right. To the policy that has seen it
    the others are as likely as 1 in 10: log(.1 / .25) = -.916 each. The right one is shown nothing."""
    some = method("self_distill")
    some.setup(model, tokenizer)
    ids = torch.tensor([[5, 7], [5, 8], [5, 9]])
    lengths = torch.ones(3, dtype=torch.long)
    logp = torch.full((3, 1), math.log(0.25))
    rollouts = Rollouts(ids, lengths, lengths, lengths > 0, logp, torch.ones(3, 1), 3)

    def shown(model, ids, temperature):
        assert ids.tolist() == [[5, 7, 5, 8], [5, 7, 5, 9]]
        return torch.full((2, 3), math.log(0.1))

    monkeypatch.setattr(self_distill, "token_logprobs", shown)
    credit = some.advantages(step_of(rollouts, rewards=torch.tensor([[1.0, 0, 0]])))
    assert credit.flatten().tolist() == pytest.approx([0, -0.9163, -0.9163], abs=1e-4)
