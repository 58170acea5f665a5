"""page.py: it computes what the scripts compute, on a page that imports nothing of ours."""

import ast
import random
import re
import runpy
import subprocess
import sys

import nbformat
import pytest
import torch
import transformers

import rlvr
import train
import verifiers
from conftest import ROOT
from eval import wilson_interval
from model import load
from notebooks import changes, ledger, page
from notebooks.look import keep

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


def notebook_cells(kind):
    """The cells of notebook 0."""
    (path,) = (ROOT / "notebooks").glob("0_*.ipynb")
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def test_notebook_0_reads_all_of_it_piece_by_piece():
    source = PAGE.read_text()
    shown = "\n".join(cell.source for cell in notebook_cells("code"))
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)):
            assert ast.get_source_segment(source, node) in shown


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


# ---- One line changed, and what the other lines are for ----------------------------------------------


@pytest.mark.parametrize("name", changes.CHANGES)
def test_a_change_is_one_line_of_the_page(name):
    change = {**changes.CHANGES[name]}
    changed = changes.changed_page(change.pop("old", ""), change.pop("new", ""))
    assert changed.train_rlvr.__code__ is not page.train_rlvr.__code__
    assert {*change} <= {"P", "G", "temperature"} and len(changes.diff(name)) in (0, 1, 2)


def test_a_changed_page_is_judged_by_the_page_as_it_is(capsys):
    """A coin of 1000 on top is not counted as accuracy."""
    changes.CHANGES["rich"] = {"old": changes.REWARD, "new": f"{changes.REWARD} + 1000"}
    accuracies = changes.tell("rich", steps=2, P=2, G=4)
    del changes.CHANGES["rich"]
    assert len(accuracies) == 2 and all(0 <= accuracy <= 1 for accuracy in accuracies)
    said = capsys.readouterr().out
    assert said.startswith("- return float(") and "mean reward 100" in said


def test_each_function_of_the_core_is_in_one_row_of_the_ledger():
    rows = ledger.counted()  # raises KeyError otherwise
    totals = [ledger.code_lines(ROOT / f"{name}.py")[0] for name in ledger.CORE]
    assert sum(n for _, n, *_ in rows) == sum(totals)
    assert {f"{name}.py" for name in ledger.CORE} == {file for row in rows for file in row[2]}


def test_a_function_that_is_new_must_find_its_row(monkeypatch):
    short = [(what, places.replace(" sample ", " "), why) for what, places, why in ledger.ROWS]
    monkeypatch.setattr(ledger, "ROWS", short)
    with pytest.raises(KeyError, match="sample"):
        ledger.counted()


def test_notebook_0_shows_the_ledger_of_today():
    outputs = [out for cell in notebook_cells("code") for out in cell.outputs]
    tables = [
        out["data"]["text/markdown"] for out in outputs if "text/markdown" in out.get("data", {})
    ]
    assert tables == [ledger.table()]
    lines = sum(n for _, n, *_ in ledger.counted())
    times = lines / ledger.code_lines(PAGE)[0]
    assert f"have {times:.0f} times as many code lines" in "".join(
        cell.source for cell in notebook_cells("markdown")
    )


def test_numbers_of_the_ledger_are_measured(tmp_path):
    """By the kept results, or here."""
    table = ledger.table()
    kept = keep.tables()
    steps = {row[0]: row[2] for row in kept["steps"]["rows"]}
    assert f"takes {steps['page.py'].rstrip(' x')} times as long" in table
    update = {row[0].partition(",")[0]: row[2] for row in kept["memory"]["rows"][:2]}
    assert f"{update['plain']} GB" in table and f"need {update['train.py']} for eight" in table
    right = kept["graders"]["rows"][0][1]
    (tmp_path / "equal.py").write_text("def grade(answer, truth):\n    return answer == truth\n")
    command = [sys.executable, "-m", "notebooks.conformance.graders.run"]
    command += [f"{tmp_path}/equal.py:grade"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    same = re.search(r"right +([\d,]+) of ([\d,]+)", said)
    assert f"as strings {same[1]} of the kit's {same[2]} answers" in table
    assert right.startswith("1,091 of") and "by value 1,091" in table
    assert "KeyError: 'model.layers.0.self_attn.q_norm.weight'" in table
    low, high = wilson_interval(1.0, 200)
    assert f"means {low:.3f} to {high:.3f}".replace(" 0.", " .") in table


def test_the_page_knows_no_other_architecture(tmp_path):
    """As the ledger says, and two of three positions that it samples are thrown away."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    config = transformers.LlamaConfig(vocab_size=37, num_attention_heads=2, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    ids = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(KeyError, match="model.layers.0.self_attn.q_norm.weight"):
        page.Qwen3(tmp_path)(ids, ids == ids)
    *_, real, start, _, _ = page.roll_out(page.Qwen3(TINY), page.sums(8), 16, 80, 1.0)
    assert real[:, start:].float().mean().item() == pytest.approx(1 / 3, abs=0.05)
