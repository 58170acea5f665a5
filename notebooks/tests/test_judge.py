"""notebooks/claims/judge.py: a model as a verifier, with its figures worked by hand and a model of random weights."""

import re

import pytest
import torch

from notebooks.claims import judge


def test_temperature_sharpens_and_flattens_odds():
    """4 : 1, which is .8: at 0.5 16 : 1, at 2 2 : 1; 1 : 4 the other way round; a certain word stays certain."""
    p = torch.tensor([0.8, 0.2, 1.0, 0.0], dtype=torch.float64)
    assert judge.at_temperature(p, 0.5).tolist() == pytest.approx([16 / 17, 1 / 17, 1, 0])
    assert judge.at_temperature(p, 2).tolist() == pytest.approx([2 / 3, 1 / 3, 1, 0], abs=1e-5)
    assert judge.at_temperature(p, 1).tolist() == pytest.approx(p.tolist())
    assert judge.at_temperature(p, 0).tolist() == [1, 0, 1, 0]


def test_what_is_measured_by_hand():
    """Two right cases called right with .9 and .5, two wrong ones with .5 and 0. Agreement (.9 + .5 + .5 + 1) / 4; two
    judgements differ with 2 p (1 - p): (.18 + .5 + .5 + 0) / 4; the means are .7 and .25."""
    p = torch.tensor([0.9, 0.5, 0.5, 0.0])
    right = torch.tensor([True, True, False, False])
    assert judge.measure(p, right, 2) == pytest.approx([0.725, 0.295, 0.7, 0.25])
    assert judge.measure(p, right, 1)[1] == pytest.approx(0)  # one judgement cannot differ


def test_that_is_what_drawing_comes_to():
    """10,000 times 4 draws of the wording's verdict at .8: not all the same 1 - .8^4 - .2^4 = .589."""
    p = torch.full((10_000,), 0.8)
    right = torch.ones(10_000, dtype=torch.bool)
    said = torch.rand(10_000, 4, generator=torch.Generator().manual_seed(0)) < p[:, None]
    differ = (said.any(1) & ~said.all(1)).float().mean().item()
    agrees, differs, *_ = judge.measure(p, right, 4)
    assert differs == pytest.approx(0.5888, abs=1e-4) and differ == pytest.approx(differs, abs=0.02)
    assert said.float().mean().item() == pytest.approx(agrees, abs=0.01)


def test_every_other_sum_of_its_own_is_wrong_by_the_rule():
    cases = judge.own_cases(40)
    assert [right for *_, right in cases] == [True, False] * 20 and cases == judge.own_cases(40)
    for problem, completion, right in cases:
        a, b, said = map(int, re.findall("[0-9]+", completion))
        assert problem == f"{a} + {b} =" and (a + b == said) == right


def test_the_table(any_text, capsys):
    """Four wordings at three temperatures; the question turned round counts a No as "right". Between 0 and 1 a judge of
    random weights contradicts itself, at 0 never."""
    judge.main(["--model", any_text, "--count", "20"])
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()[2:-2]]
    assert [row[:2] for row in rows] == [
        [wording, T] for wording in judge.WORDINGS for T in ("0.0", "0.5", "1.0")
    ]
    assert "20 completions, by the rule 50% right" in out and "4 judgements differ" in out
    differs = [float(row[3].rstrip("%")) for row in rows]
    assert differs[::3] == [0] * 4 and all(b > a > 0 for a, b in zip(differs[1::3], differs[2::3]))
    assert re.search(r"contradict each other on \d+\.\d% of the completions", out)


def test_wrong_turned_round_is_right(monkeypatch):
    monkeypatch.setattr(
        judge, "yes_probabilities", lambda model, tokenizer, texts: [0.9] * len(texts)
    )
    cases = judge.own_cases(20)
    assert judge.called_right(None, None, cases, "right?").tolist() == pytest.approx([0.9] * 20)
    assert judge.called_right(None, None, cases, "wrong?").tolist() == pytest.approx([0.1] * 20)
