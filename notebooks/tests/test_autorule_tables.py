"""notebooks/autorule/autorule_tables.py: the measures of the paper's tables, by hand."""

import json

import numpy as np
import pytest

from conftest import ROOT

import autorule
import autorule_tables as tables
import autorule_world as world
import train


def test_a_draw_is_half_a_win():
    """Won, lost, drawn, drawn: (1 + 0 + 0.5 + 0.5) / 4."""
    assert tables.wins(np.array([2.0, -1.0, 0.0, 0.0])) == 0.5


def test_the_base_draws_with_itself():
    """The same prompts and random numbers give the same completions, so every comparison is a draw."""
    found = tables.win_rate(world.TINY, count=4)
    assert found["win rate"] == found["without length"] == 0.5 and found["tokens"] > 0


def test_the_overlap_of_two_reasons():
    """a b b c against b b d: two words are shared of 4 and 3; of a, b, c, d one occurs in both."""
    bleu, rouge, jaccard = tables.overlap("a b b c", "b b d")
    assert (bleu, rouge, jaccard) == pytest.approx((2 / 4, 2 * 2 / 7, 1 / 4))


def test_spread_over_runs():
    """Two runs score three responses 0, 0.5, 1 and 1, 0.5, 0: opposite; sigma is 0.5, 0, 0.5."""
    scores = np.array([[0, 0.5, 1], [1, 0.5, 0]])
    assert tables.spread(scores) == pytest.approx({"sigma": 1 / 3, "r": -1})
    assert np.isnan(tables.spread(np.ones((2, 3)))["r"])  # rules that all satisfy do not vary


def test_wordings_of_one_concept_are_one_concept():
    sets = [
        tables.concepts(rules)
        for rules in (["Each step is shown."], ["Intermediate results are written down."])
    ]
    assert sets == [{"worked"}, {"worked"}] and tables.mean_jaccard(sets) == 1
    assert tables.mean_jaccard([{"worked", "form"}, {"worked", "right"}]) == pytest.approx(1 / 3)


def test_the_agreement_matrix():
    """Rule 0 says Yes, Yes, No, No; rule 1 Yes, No, No, No: they agree on three of four."""
    verdicts = np.array([[1, 1], [1, 0], [0, 0], [0, 0]])
    assert autorule.agreement_matrix(verdicts, verdicts).tolist() == [[1, 0.75], [0.75, 1]]


def test_unique_and_similar_rules(monkeypatch):
    """Of each rule of the first set the highest agreement with any of the second: .6, .9 and .7."""
    matrix = np.array([[0.6, 0.5], [0.2, 0.9], [0.7, 0.7]])
    monkeypatch.setattr(tables, "agreement_of_sets", lambda *_: matrix)
    unique, similar = tables.table_16(0, ["a", "b", "c"], ["d", "e"], count=2)
    assert unique == [("a", 0.6), ("c", 0.7)] and similar == [("b", 0.9), ("c", 0.7)]


def test_rule_scores_are_read_from_the_log(tmp_path):
    rows = [{"step": 0, "reward": 1.0}]
    rows += [
        {"step": n, "reward": 1.0, "rule_01": n / 10, "rule_00": 0.5, "r_rules": 3.0}
        for n in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tables.rule_scores(tmp_path).tolist() == [[0.5, 0.1], [0.5, 0.2]]


def test_what_the_teacher_costs():
    """Rules for each of ten times as many prompts: ten times the tokens of the first stage alone."""
    pairs = world.preferences(40, 0)
    found = tables.table_2(pairs, 10 * len(pairs))
    whole, each = found["AutoRule"], found["rules for each prompt"]
    assert 0 < each[0] / 10 < whole[0] and 0 < each[1] / 10 < whole[1]
    assert tables.table_2(pairs, len(pairs))["rules for each prompt"][0] == each[0] // 10


def test_what_a_judge_costs():
    """The paper's 200.4e12 FLOPs for 25 rules: 2 x 8e9 for each of 501 tokens, 25 times."""
    assert tables.tokens_for(200.4e12, 25) == pytest.approx(501)
    assert tables.judge_flops(25 * 501) == pytest.approx(200.4e12)
    assert tables.tokens_of_rules(461, 40, 25, shared=False) == 25 * 501
    assert tables.tokens_of_rules(461, 40, 25, shared=True) == 461 + 25 * 40


def test_the_recipe_has_the_papers_settings():
    """Table 10, GRPO: 1024 completions a step, 2 of each prompt, lr 5e-7, KL 0.001, temperature 1, 1024 tokens."""
    recipe = f"@{ROOT / 'notebooks' / 'recipes' / 'autorule.txt'}"
    flags = train.parse_args([recipe, "--model", world.TINY, "--name", "recipe"])
    settings = flags.settings
    assert settings["prompts_per_step"] * settings["num_samples"] == 1024
    assert (settings["num_samples"], settings["kl_coef"], flags.lr) == (2, 0.001, 5e-7)
    assert (settings["temperature"], settings["max_new_tokens"]) == (1.0, 1024)
