"""page.py computes what the scripts compute, on one page that imports none of our files."""

import ast
import random
import re
import runpy
import subprocess
import sys

import nbformat
import pytest
import torch

import rlvr
import train
import verifiers
from conftest import ROOT
from eval import wilson_interval
from model import load
from notebooks import changes, ledger, page
from notebooks.look import keep
from test_model import write_checkpoint

PAGE = ROOT / "notebooks" / "page.py"
TINY = ROOT / "notebooks" / "tiny"
G = 6


def test_it_fits_on_a_page_and_stands_alone():
    source = PAGE.read_text()
    assert len(source.splitlines()) <= 200 and max(map(len, source.splitlines())) <= 100
    nodes = [*ast.walk(ast.parse(source))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in names}
    assert roots - {*sys.stdlib_module_names} == {"torch", "safetensors", "tokenizers"}


def notebook_cells(kind):
    """Return the cells of notebook 0 of this kind."""
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
    """Return notebooks/tiny, or a random Qwen3 written by transformers: tied in shards, or untied in bf16."""
    if request.param == "tiny":
        return TINY
    path = tmp_path_factory.mktemp(request.param)
    tied = request.param == "tied"
    shape = {"vocab_size": 14, "eos_token_id": [13, 0], "initializer_range": 0.2}
    shape["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e4}
    theirs = write_checkpoint(path, "40KB" if tied else "5GB", tie_word_embeddings=tied, **shape)
    if not tied:
        theirs.bfloat16().save_pretrained(path)
    return path


@pytest.fixture
def both(folder):
    """Return the page's model, and ours with its tokenizer."""
    torch.manual_seed(0)
    return page.Qwen3(folder), *load(folder)


def completions(ours, tokenizer, num=G):
    """Sample with our model from prompts of different lengths. Returns (Rollouts, the same in the page's layout)."""
    prompts = [tokenizer.encode(text) for text in ("25+7=", "90+8+7+6+5=", "11+1+2=")]
    rollouts = rlvr.sample(ours, prompts, num, max_new_tokens=30)
    start = max(map(len, prompts))
    shifts = start - rollouts.prompt_lengths  # the page pads on the left
    columns = torch.arange(start + int(rollouts.lengths.max())) - shifts[:, None]
    real = (columns >= 0) & (columns < rollouts.ends[:, None])
    ids = rollouts.ids.gather(1, columns.clamp(0, rollouts.ids.size(1) - 1)) * real
    return rollouts, (ids, real, start)


def test_its_logits_are_those_of_model_py_and_its_log_probs_those_of_the_sampler(both):
    theirs, ours, tokenizer = both
    rollouts, (ids, real, start) = completions(ours, tokenizer)
    with torch.no_grad():
        expected = ours(rollouts.ids)
        found = theirs(ids, real)
        logp = page.token_logprobs(theirs, ids, real, start, temperature=1.0)[real[:, start:]]
    assert torch.allclose(logp, rollouts.logp[rollouts.mask > 0], atol=1e-5)  # row by row
    for row, end in enumerate(rollouts.ends):
        assert torch.allclose(found[row][real[row]], expected[row, :end], atol=1e-5)


def test_its_greedy_completions_are_those_of_sample(both):
    """page.sample uses its cache and reads each token once."""
    theirs, ours, tokenizer = both
    prompts = [tokenizer.encode(text) for text in ("25+7=", "90+8+7+6+5=", "11+1+2=")]
    expected = rlvr.sample(ours, prompts, 1, max_new_tokens=30, temperature=0.0)
    ids, real, start, finished = page.sample(theirs, prompts, 1, 30, temperature=1e-6)
    found = [row[own].tolist() for row, own in zip(ids[:, start:], real[:, start:])]
    assert found == expected.completions()
    assert finished.tolist() == expected.finished.tolist()


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


TEXTS = r"""
\boxed{7}
first \boxed{5}, then \boxed{ 7 }
\boxed{\frac{1}{2}} or {so}
\boxed{7} or \boxed{8
7
"""


@pytest.mark.parametrize("text", TEXTS.splitlines())
def test_it_reads_the_box_that_verifiers_py_reads(text):
    assert page.extract_boxed_answer(text) == verifiers.extract_boxed_answer(text)
    assert page.reward_rlvr(text, " 7 ") == verifiers.reward_rlvr(text, " 7 ")


# ---- The same run ----------------------------------------------------------------------------------


def test_a_step_is_adamw_on_the_gradient_of_what_was_sampled(monkeypatch):
    """Log-probs are at the sampling temperature. Held-out problems are evaluated once, greedily. Cut off earns 0."""
    torch.manual_seed(0)
    model, twin = page.Qwen3(TINY), page.Qwen3(TINY)
    calls, sampled = [], []
    roll_out, sample = page.roll_out, page.sample
    monkeypatch.setattr(page, "sample", lambda *args: sampled.append(args[2:]) or sample(*args))

    def spy(model, problems, *how, **more):
        calls.append((problems, roll_out(model, problems, *how, **more)))
        return calls[-1][1]

    monkeypatch.setattr(page, "roll_out", spy)
    monkeypatch.setattr(page, "reward_rlvr", lambda text, truth: float(truth[0] in text))
    problems = page.sums(40)
    history = page.train_rlvr(model, problems[8:], problems[:8], 2, 3, 8, 20, 1e-3, 0.8)
    assert sampled == [(1, 20, 1e-6), (8, 20, 0.8), (8, 20, 0.8)]
    optimizer = torch.optim.AdamW(twin.weights.values(), 1e-3, (0.9, 0.95), weight_decay=0.0)
    for (batch, (ids, real, start, R, texts)), mean in zip(calls[1:], history):
        assert not {*batch} & {*problems[:8]} and mean == R.mean().item()
        ended = (ids[:, start:] * real[:, start:] == 0).any(1)
        truths = [answer for _, answer in batch for _ in range(8)]
        paid = torch.tensor([*map(page.reward_rlvr, texts, truths)])
        assert torch.equal(R.flatten(), paid * ended) and (paid * ended).sum() < paid.sum()
        page.compute_grpo_loss(twin, ids, real, start, R, 0.8).backward()
        torch.nn.utils.clip_grad_norm_(twin.weights.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in model.weights.items():
        assert torch.equal(weight, twin.weights[name]), name


def test_the_command_trains_a_checkpoint_of_ones_own(folder, tmp_path, monkeypatch, capsys):
    """It makes two steps with a few tokens."""
    problems = "".join(f'{{"problem": "{n}+1=", "answer": {n + 1}}}\n\n' for n in range(20, 30))
    (tmp_path / "problems.jsonl").write_text(problems)
    source = PAGE.read_text()
    for long, short in (('"steps": 100', '"steps": 2'), (": 256", ": 4")):
        assert source.count(long) == 1
        source = source.replace(long, short)
    (tmp_path / "page.py").write_text(source)
    monkeypatch.setattr(sys, "argv", ["page.py", str(folder), str(tmp_path / "problems.jsonl")])
    ran = runpy.run_path(str(tmp_path / "page.py"), run_name="__main__")
    ask = "\n\nPut your final answer within \\boxed{}.\n\n"
    assert sorted(ran["problems"])[0] == (f"20+1={ask}", "21") != ran["problems"][0]
    assert "step   0  held-out accuracy 0.000 (greedy, n=2)" in capsys.readouterr().out


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_shows_lines_of_the_page():
    (block,) = re.findall(r"^```python\n(def reward_rlvr.*?)^```", README, flags=re.M | re.S)
    source = PAGE.read_text(encoding="utf-8")
    functions = block.split("\n\n")
    assert len(functions) == 2 and all(function.strip() in source for function in functions)


def accuracies(text):
    """Return {(step, name): value} from the page's output."""
    found = re.findall(r"^step +(\d+)  (held-out accuracy|reward) (\S+)", text, flags=re.M)
    return {(int(step), what): float(value) for step, what, value in found}


@pytest.mark.slow
def test_the_readme_shows_what_the_page_prints():
    """They agree to 0.05: another kind of CPU rounds differently, and so samples other completions."""
    (block,) = re.findall(r"^```\n(step   0  held-out.*?)^```", README, flags=re.M | re.S)
    printed = subprocess.run([sys.executable, PAGE], capture_output=True, text=True).stdout
    shown, found = accuracies(block), accuracies(printed)
    assert len(shown) == 5
    assert shown == pytest.approx({place: found[place] for place in shown}, abs=0.05)


@pytest.mark.slow
def test_it_learns_as_the_main_command_does(tmp_path, monkeypatch):
    """With the page's reward and its constant learning rate, means over two seeds and five steps differ by less than
    0.1. (A mean over five steps of one seed varies by 0.04.)"""
    monkeypatch.setattr(train, "set_learning_rate", lambda run, step: run.flags.lr)
    curves, others = [], []
    for seed in range(2):
        torch.manual_seed(seed)
        random.seed(seed)
        problems = page.sums(1000)
        asked = page.Qwen3(TINY), problems[200:], problems[:1]
        curves.append(page.train_rlvr(*asked, **page.TINY | {"steps": 20}))
        flags = f"--steps 20 --seed {seed} --reward boxed --device cpu --eval-problems 1"
        train.main([*flags.split(), "--runs", str(tmp_path), "--name", str(seed)])
        log = train.read_log(tmp_path / str(seed))
        others.append([log[step]["reward"] for step in range(1, 21)])
    found, expected = (torch.tensor(c).view(2, 4, 5).mean((0, 2)) for c in (curves, others))
    assert found[0] < 0.4 and found[-1] > 0.7
    assert torch.allclose(found, expected, atol=0.1)


# ---- One line changed, and what the other lines are for ----------------------------------------------


def test_a_change_is_on_one_line_of_the_page():
    for change in changes.CHANGES.values():
        changed, settings = changes.changed_page(change)
        assert {*settings} <= {"P", "G", "temperature"} and len(changes.diff(change)) < 3


def test_a_changed_page_is_judged_by_the_page_as_it_is(capsys, monkeypatch):
    """The change adds 1,000 to every reward. The accuracy ignores that."""
    monkeypatch.setitem(changes.CHANGES, "rich", (changes.REWARD, f"{changes.REWARD} + 1000"))
    accuracies = changes.tell("rich", steps=2)
    assert len(accuracies) == 2 and all(0.1 < accuracy < 0.5 for accuracy in accuracies)
    assert "mean reward 1000" in capsys.readouterr().out


def test_each_code_line_of_the_core_is_in_one_row_of_the_ledger(monkeypatch):
    """A new section or file needs a row, and every function that a row names exists."""
    lines = [line for name in ledger.CORE for line in ledger.code_lines(ROOT / f"{name}.py")]
    assert sum(n for _, n, *_ in ledger.counted()) == len(lines) > 3000
    places = [place for row in ledger.ROWS.values() for place in row.split(" | ")[0].split(", ")]
    known = {owner for _, owner in lines} | {*ledger.CORE}
    for name in ledger.CORE:
        known |= {f"{name} {section}" for section, _ in ledger.code_lines(ROOT / f"{name}.py")}
    assert len(places) == len({*places}) and {*places} <= known
    fewer = {what: row for what, row in ledger.ROWS.items() if what != "environments"}
    monkeypatch.setattr(ledger, "ROWS", fewer)
    with pytest.raises(KeyError, match="chat 2"):
        ledger.counted()


def test_notebook_0_shows_the_ledger_of_today():
    outputs = [out.get("data", {}) for cell in notebook_cells("code") for out in cell.outputs]
    tables = [data["text/markdown"] for data in outputs if "text/markdown" in data]
    assert tables == [ledger.table()]
    times = sum(n for _, n, *_ in ledger.counted()) / len([*ledger.code_lines(PAGE)])
    prose = "".join(cell.source for cell in notebook_cells("markdown"))
    assert f"have {times:.0f} times as many code lines" in prose


def test_numbers_of_the_ledger_are_those_of_the_results(tmp_path):
    table = ledger.table()
    kept = keep.tables()
    steps = {row[0]: row[2] for row in kept["steps"]["rows"]}
    assert f"takes {steps['page.py'].rstrip(' x')} times as long" in table
    update = {row[0].partition(",")[0]: row[2] for row in kept["memory"]["rows"][:2]}
    assert f"{update['plain']} GB" in table and f"need {update['train.py']} for eight" in table
    (tmp_path / "same.py").write_text("def grade(answer, truth):\n    return answer == truth\n")
    command = f"{sys.executable} -m notebooks.conformance.graders.run {tmp_path}/same.py:grade"
    ran = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True)
    same = re.search(r"right +([\d,]+) of ([\d,]+)", ran.stdout)
    value = kept["graders"]["rows"][0][1].partition(" of")[0]
    said = f"strings agree with {same[1]} of the kit's {same[2]} labels, equal values with {value}"
    assert said in table
    low, high = wilson_interval(1.0, 200)
    assert f"means {low:.3f} to {high:.3f}" in table


def test_what_the_page_cannot_do_is_as_the_ledger_says(tmp_path):
    write_checkpoint(tmp_path, family="llama")
    ids = torch.arange(30)[None]
    with pytest.raises(KeyError) as error:
        page.Qwen3(tmp_path)(ids, ids == ids)
    assert f"KeyError: {error.value}" in ledger.table()
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    theirs = write_checkpoint(tmp_path / "yarn", rope_parameters=rope, initializer_range=0.2)
    found = page.Qwen3(tmp_path / "yarn")(ids, ids == ids)
    assert not torch.allclose(found, theirs(ids).logits, atol=0.1)
    torch.manual_seed(0)
    _, real, start, *_ = page.roll_out(page.Qwen3(TINY), page.sums(8), 16, 80, 1.0)
    assert real[:, start:].float().mean().item() == pytest.approx(1 / 3, abs=0.05)
