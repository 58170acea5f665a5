"""build/: the solution is right and trains, the checker names students' mistakes and says what comes next; and race.py
counts completions."""

import json
import runpy
import sys
from types import SimpleNamespace

import pytest
import torch

from appendix.plumbing import DataError
from conftest import ROOT
from notebooks import page, race

LAB = ROOT / "notebooks"
sys.path.insert(0, str(LAB / "conformance"))

import check

SKELETON = (LAB / "build" / "mine.py").read_text()
SOLUTION = (LAB / "build" / "solution.py").read_text()


def told(source, folder, capsys):
    """Return what check.py --mine prints about a file: {function: its line}, and what comes next."""
    (folder / "mine.py").write_text(source)
    status = check.main([str(folder / "mine.py"), "--mine"])
    lines, _, following = capsys.readouterr().out.partition("\nnext: ")
    assert status == (not following.startswith("train with it"))
    lines = " ".join(lines.split())
    for number, name in enumerate(dict.fromkeys(check.STEPS.values()), 1):
        lines = lines.replace(f"{number} {name} ", f"\n{name}: ")
    return dict(line.strip().split(": ", 1) for line in lines.split("\n") if line), following


def test_what_is_not_written_is_not_spoken_of(tmp_path, capsys):
    where = "notebooks/build/README.md, section"
    assert told(SKELETON, tmp_path, capsys) == ({}, f"write extract_boxed_answer ({where} 1)\n")
    box = SOLUTION.partition("def advantages")[0]
    lines, following = told(SKELETON + box, tmp_path, capsys)
    assert [*lines] == ["extract_boxed_answer"] and following == f"write advantages ({where} 2)\n"


def test_the_solution_is_right_and_comes_to_the_end(tmp_path, capsys):
    lines, following = told(SKELETON + SOLUTION, tmp_path, capsys)
    assert len(lines) == 6 and all(line.startswith("right in ") for line in lines.values())
    assert following.startswith("train with it: python notebooks/page.py --step")
    without = SOLUTION.partition("def kl")[0]  # without kl nobody is stopped
    assert told(SKELETON + without, tmp_path, capsys)[1] == following


FIRST = r"""
import re
def extract_boxed_answer(text):
    found = re.search(r"\\boxed\{([^}]*)\}", text)
    return found.group(1) if found else None
"""
NOT_PAD = """
def completion_mask(ids, prompt_lengths, stop_id, pad_id):
    return (torch.arange(1, ids.size(1)) >= prompt_lengths[:, None]) & (ids[:, 1:] != pad_id)
"""
OVER = "(rewards - rewards.mean({0})) / (rewards.std({0}) + 1e-8)"
WRONG = [  # the function; (a piece of the solution, its replacement), or whole functions; what the checker says
    ("extract_boxed_answer", FIRST, "the first box, up to the first }"),
    ("extract_boxed_answer", FIRST.replace("search", "findall").replace("found.group(1)", "found[-1]"), "the last box, up to the first }"),
    ("extract_boxed_answer", ("rpartition", "partition"), "the first box"),
    ("extract_boxed_answer", ("    return None", "    return rest if box else None"), "a box that is never closed counts"),
    ("extract_boxed_answer", ("    return None", "    return ''"), "no box is ''"),
    ("advantages", f"def advantages(rewards): return {OVER.format('')}", "normalised over the batch with B - 1"),
    ("advantages", f"def advantages(rewards): return {OVER.format(0)}", "over the prompts, not over the group, G - 1"),
    ("advantages", "def advantages(rewards): return rewards", "no baseline: the rewards themselves"),
    ("advantages", (".masked_fill(equal, 0.0)", ""), "a rounding error of the mean is divided by a tiny std, and becomes a signal"),
    ("advantages", ("rewards - mean", "mean - rewards"), "the sign is reversed"),
    ("completion_mask", NOT_PAD, "the stop token is never trained"),
    ("completion_mask", (".float()[:, 1:]", ".float()[:, :-1]"), "one too late"),
    ("completion_mask", (".float()[:, 1:]", ".float()"), "its shape is (2, 7), and should be (2, 6)"),
    ("completion_mask", ("(ids == stop_id) & completion", "(ids == stop_id)"), "the stop is looked for in the prompt too"),
    ("completion_mask", ("(stops_before == 0)", "(stops_before >= 0)"), "padding is trained"),
    ("completion_mask", ("prompt_lengths[:, None]", "prompt_lengths[0]"), "the first prompt's length is used for all"),
    ("logprobs", (" / temperature", ""), "at temperature 1, although 0.5 was sampled at"),
    ("logprobs", (".log_softmax(-1)[:, :-1]", ".log_softmax(-1)[:, 1:]"), "logits and tokens are off by one"),
    ("logprobs", ("log_softmax", "softmax"), "probabilities, not their logarithms"),
    ("logprobs", ("logits.float()", "logits"), "the softmax is not taken in fp32"),
    ("loss", ("return -(", "return ("), "the sign is reversed, or the ratio is inverted"),
    ("loss", ("minimum", "maximum"), "max for min: clipped on the wrong side"),
    ("loss", ("torch.minimum(ratio * A, clipped * A)", "clipped * A"), "clipped ratio without the min"),
    ("loss", ("torch.minimum(ratio * A, clipped * A)", "ratio * A"), "not clipped"),
    ("loss", ("logp - old_logp)", "logp - logp.detach())"), "the ratio is always 1"),
    ("loss", ("(logp - old_logp).exp()", "logp - old_logp"), "a difference of log-probs, not a ratio"),
    ("loss", ("/ batch_mask", "/ mask"), "each micro-batch is divided by its own number of tokens, and they are added"),
    ("loss", (".sum() / batch_mask.sum().clamp(min=1)", ".mean()"), "padding counts in the mean"),
    ("loss", ("-(gain * mask)", "-gain"), "the mask is not used in the sum"),
    ("loss", ("(gain * mask).sum() / batch_mask.sum().clamp(min=1)", "(gain * mask)"), "it raises ValueError: a loss is a tensor of one number, this is .."),
    ("kl", ("torch.expm1(-d) + d", "d"), "k1 in the loss: the gradient is 1, wherever the reference is"),
    ("kl", ("logp - ref_logp", "ref_logp - logp"), "k3 with its arguments exchanged"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("function, written, says", WRONG)
def test_what_students_write_is_named(function, written, says, tmp_path, capsys):
    source = SOLUTION
    if isinstance(written, tuple):
        assert source.count(written[0]) == 1
        written = source.replace(*written)
    lines, following = told(SKELETON + source + "\n\n" + written, tmp_path, capsys)
    said = lines[function].partition(" cases: ")[2]
    assert said == says or says.endswith("..") and said.startswith(says[:-2])
    assert [name for name, line in lines.items() if "wrong in" in line] == [function]
    assert following.startswith(f"fix {function} (") and "by hand: " in following


def test_the_page_trains_with_it(tmp_path, monkeypatch, capsys):
    """It trains for two steps. Students' functions replace the page's; the gradient is the same up to rounding."""
    (tmp_path / "mine.py").write_text(SKELETON + SOLUTION + "\nTINY['steps'] = 2\n")
    monkeypatch.setattr(sys, "argv", ["page.py", "--step", str(tmp_path / "mine.py")])
    ran = runpy.run_path(str(LAB / "page.py"), run_name="__main__")
    assert "step   0  held-out accuracy 0.0" in capsys.readouterr().out
    model = page.Qwen3(LAB / "tiny")
    ids, real, start, rewards, _ = page.roll_out(model, page.sums(4), 8, 40, 1.0)
    gradients = []
    for loss in (ran["compute_grpo_loss"], page.compute_grpo_loss):
        value = loss(model, ids, real, start, rewards, 0.8)
        gradients.append(
            torch.cat([g.flatten() for g in torch.autograd.grad(value, [*model.weights.values()])])
        )
    assert ran["extract_boxed_answer"] is not page.extract_boxed_answer
    assert torch.allclose(*gradients, atol=1e-6) and gradients[0].norm() > 0.01


# ---- The race ----------------------------------------------------------------------------------------


def test_completions_count_until_the_goal(monkeypatch, capsys):
    game = ["--model", str(LAB / "tiny"), "--task", "arithmetic", "--eval-problems", "4"]
    flags = "--steps 3 --prompts-per-step 8 --num-samples 4 --max-new-tokens 40".split()
    found = dict(enumerate({"eval_sampled_accuracy": value} for value in (0.2, 0.5, 0.9, 0.8)))
    monkeypatch.setattr(race, "read_log", lambda run: found)
    assert race.completions_needed(flags, 0, game) == 2 * 8 * 4
    with pytest.raises(DataError, match="seed 0: .*there is no --fast"):
        race.completions_needed(["--fast"], 0, game)
    done = SimpleNamespace(returncode=0, stdout="")
    monkeypatch.setattr(race.subprocess, "run", lambda *args, **how: done)
    assert race.completions_needed(flags, 0, game, goal=0.91) is None
    counts = 1000, 2000, None
    monkeypatch.setattr(race, "completions_needed", lambda flags, seed: counts[seed % 3])
    race.main(["--lr", "1e-3"])
    row = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][0]
    assert row[:5] == ["not reached", "1,000", "2,000", "-", "`python -m notebooks.race --lr 1e-3`"]


OTHER = "--temperature 0.6, --reward boxed, --eval-problems 10, --method notebooks/methods/top_p.py"


@pytest.mark.parametrize("flags", OTHER.split(", "))
def test_another_game_is_refused(flags, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(DataError, match="the same for everybody|as GRPO samples"):
        race.check_rules(flags.split())
