"""page.py: it computes what the scripts compute, on a page that imports nothing of ours."""

import ast
import random
import runpy
import sys

import pytest
import torch
import transformers

import rlvr
import train
import verifiers
from conftest import ROOT
from model import load
from notebooks import page

PAGE = ROOT / "notebooks" / "page.py"
TINY = ROOT / "notebooks" / "tiny"
G = 6


def test_it_fits_on_a_page_and_stands_alone():
    source = PAGE.read_text()
    assert len(source.splitlines()) <= 200
    nodes = [*ast.walk(ast.parse(source))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in names}
    assert roots - {*sys.stdlib_module_names} == {"torch", "safetensors", "tokenizers"}


# ---- The same model --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["tiny", "tied", "untied"])
def folder(request, tmp_path_factory):
    """notebooks/tiny, or a random Qwen3 as transformers writes it, with the tokenizer of tiny. (6 * 16 is not 48.)"""
    if request.param == "tiny":
        return TINY
    path = tmp_path_factory.mktemp(request.param)
    config = transformers.Qwen3Config(
        vocab_size=37,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        eos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
        tie_word_embeddings=request.param == "tied",
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    theirs = transformers.Qwen3ForCausalLM(config)
    for weight in theirs.parameters():
        if weight.ndim == 1:  # norms, which would all be 1
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    theirs.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((TINY / name).read_bytes())
    return path


@pytest.fixture
def both(folder):
    """The model of the page, and ours with its tokenizer."""
    torch.manual_seed(0)
    return page.Qwen3(folder), *load(folder)


def completions(ours, tokenizer, num=G):
    """Sampled by ours from prompts of different lengths -> (Rollouts, and what the page reads in its layout)."""
    prompts = [tokenizer.encode(text) for text in ("25+7=", "90-8+7-6+5=", "11-1+2=")]
    rollouts = rlvr.sample(ours, prompts, num, max_new_tokens=30)
    start = max(map(len, prompts))
    shifts = start - rollouts.prompt_lengths  # the page pads on the left
    columns = torch.arange(start + int(rollouts.lengths.max())) - shifts[:, None]
    real = (columns >= 0) & (columns < rollouts.ends[:, None])
    ids = rollouts.ids.gather(1, columns.clamp(0, rollouts.ids.size(1) - 1)) * real
    return rollouts, (ids, real, start)


def test_its_logits_are_those_of_model_py(both):
    theirs, ours, tokenizer = both
    rollouts, (ids, real, _) = completions(ours, tokenizer)
    with torch.no_grad():
        expected = ours(rollouts.ids)
        found = theirs(ids, real)
    assert len(set(rollouts.prompt_lengths.tolist())) == 3
    for row, end in enumerate(rollouts.ends):
        assert torch.allclose(found[row][real[row]], expected[row, :end], atol=1e-5)


def test_with_a_cache_it_gives_the_same_logits(both):
    theirs, ours, tokenizer = both
    _, (ids, real, start) = completions(ours, tokenizer)
    cache = {}
    with torch.no_grad():
        whole = theirs(ids, real)
        theirs(ids[:, :start], real[:, :start], cache)
        for end in range(start + 1, start + 6):
            new = theirs(ids[:, end - 1 : end], real[:, :end], cache)[:, 0]
            own = real[:, end - 1]
            assert torch.allclose(new[own], whole[own, end - 1], atol=1e-5)


def test_its_greedy_completions_are_those_of_sample(both):
    theirs, ours, tokenizer = both
    prompts = [tokenizer.encode(text) for text in ("25+7=", "90-8+7-6+5=", "11-1+2=")]
    expected = rlvr.sample(ours, prompts, 1, max_new_tokens=30, temperature=0.0)
    ids, real, start, finished = page.sample(theirs, prompts, 1, 30, temperature=1e-6)
    found = [row[own].tolist() for row, own in zip(ids[:, start:], real[:, start:])]
    assert found == expected.completions()
    assert finished.tolist() == expected.finished.tolist()


def test_its_log_probs_are_those_of_the_sampler(both):
    theirs, ours, tokenizer = both
    rollouts, (ids, real, start) = completions(ours, tokenizer)
    with torch.no_grad():
        found = page.token_logprobs(theirs, ids, real, start, temperature=1.0)
    assert torch.allclose(
        found[real[:, start:]], rollouts.logp[rollouts.mask > 0], atol=1e-5
    )  # row by row, each in its order


def test_the_gradient_of_its_loss_is_that_of_update_gradients(both):
    """Two of three groups are mixed."""
    theirs, ours, tokenizer = both
    rollouts, (ids, real, start) = completions(ours, tokenizer)
    rewards = torch.zeros(3, G)
    rewards[0, 1] = rewards[1, :4] = 1.0
    page.compute_grpo_loss(theirs, ids, real, start, rewards, temperature=0.7).backward()

    method = rlvr.GRPO(temperature=0.7)
    advantages = rlvr.group_advantages(rewards).view(-1, 1) * rollouts.mask
    micros = method.layout(rollouts, method.rows(rollouts, advantages), 40)
    rlvr.update_gradients(ours, rollouts, advantages, method, micros)
    size = sum(weight.grad.square().sum() for weight in ours.parameters()).sqrt()
    assert size > 0
    for name, weight in ours.named_parameters():
        assert torch.allclose(theirs.weights[name].grad, weight.grad, atol=1e-6 * size), name


# ---- The same judge --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{7}",
        r"first \boxed{5}, then \boxed{ 7 }",
        r"\boxed{\frac{1}{2}} or {so}",
        r"\boxed{7} or \boxed{8",
        "7",
        "",
    ],
)
def test_it_reads_the_box_that_verifiers_py_reads(text):
    assert page.extract_boxed_answer(text) == verifiers.extract_boxed_answer(text)
    assert page.reward_rlvr(text, "7") == verifiers.reward_rlvr(text, "7")


def test_what_was_cut_off_earns_nothing(monkeypatch):
    monkeypatch.setattr(page, "reward_rlvr", lambda *_: 1.0)
    torch.manual_seed(0)
    ids, real, start, rewards, _ = page.roll_out(page.Qwen3(TINY), page.sums(4), 8, 12, 1.0)
    stopped = (ids * real)[:, -1] == 0  # the stop token, or the padding behind it
    assert torch.equal(rewards.flatten() > 0, stopped) and 0 < rewards.mean() < 1


# ---- The same run ----------------------------------------------------------------------------------


def test_the_command_trains_a_checkpoint_of_ones_own(folder, tmp_path, monkeypatch, capsys):
    """With two steps of a few tokens; its head is tied or not."""
    problems = "".join(f'{{"problem": "{n}+1=", "answer": {n + 1}}}\n' for n in range(20, 30))
    (tmp_path / "problems.jsonl").write_text(problems)
    source = PAGE.read_text()
    for long, short in (('"steps": 100', '"steps": 2'), (": 512", ": 4")):
        assert source.count(long) == 1
        source = source.replace(long, short)
    (tmp_path / "page.py").write_text(source)
    monkeypatch.setattr(sys, "argv", ["page.py", str(folder), str(tmp_path / "problems.jsonl")])
    ran = runpy.run_path(str(tmp_path / "page.py"), run_name="__main__")
    assert ran["problems"][0] == ("20+1=\n\nPut your final answer within \\boxed{}.\n\n", "21")
    assert "step   0  held-out accuracy 0.000 (greedy, n=2)" in capsys.readouterr().out


def curve_of_the_page(seed, steps):
    torch.manual_seed(seed)
    random.seed(seed)
    problems = page.sums(1000)
    settings = {**page.TINY, "steps": steps}
    return page.train_rlvr(page.Qwen3(TINY), problems[200:], problems[:200], **settings)


def curve_of_the_command(seed, steps, folder):
    flags = (
        f"--steps {steps} --seed {seed} --name {seed} --runs {folder} --reward boxed --device cpu"
    )
    train.main(f"{flags} --eval-problems 1".split())
    log = train.read_log(folder / str(seed))
    return [log[step]["reward"] for step in range(1, steps + 1)]


@pytest.mark.slow
def test_it_learns_as_the_main_command_does(tmp_path, monkeypatch):
    """Over three seeds, at the same reward and at a constant learning rate, which is the page's: means of five steps
    differ by less than .1. (One such mean of one seed varies by .04.)"""
    monkeypatch.setattr(train, "set_learning_rate", lambda run, step: run.flags.lr)
    torch.set_num_threads(1)
    curves = [curve_of_the_page(seed, 30) for seed in range(3)]
    others = [curve_of_the_command(seed, 30, tmp_path) for seed in range(3)]
    found, expected = (torch.tensor(c).view(3, 6, 5).mean((0, 2)) for c in (curves, others))
    assert found[0] < 0.4 and found[-1] > 0.85
    assert torch.allclose(found, expected, atol=0.1)
