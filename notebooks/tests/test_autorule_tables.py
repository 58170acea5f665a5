"""notebooks/autorule/autorule_tables.py: the measures of the paper's tables, by hand."""

import json

import numpy as np

import train
from conftest import ROOT
from notebooks.autorule import autorule
from notebooks.autorule import autorule_tables as tables
from notebooks.autorule import autorule_world as world


def test_a_draw_is_half_a_win():
    """Won, lost, drawn, drawn: (1 + 0 + 0.5 + 0.5) / 4."""
    assert tables.wins(np.array([2.0, -1.0, 0.0, 0.0])) == 0.5


def test_the_base_draws_with_itself():
    """The same prompts and random numbers give the same completions, so every comparison is a draw."""
    found = tables.win_rate(world.TINY, count=4)
    assert found["win rate"] == found["without length"] == 0.5 and found["tokens"] > 0


def test_the_agreement_matrix():
    """Rule 0 says Yes, Yes, No, No; rule 1 Yes, No, No, No: they agree on three of four."""
    verdicts = np.array([[1, 1], [1, 0], [0, 0], [0, 0]])
    assert autorule.agreement_matrix(verdicts, verdicts).tolist() == [[1, 0.75], [0.75, 1]]


def test_rule_scores_are_read_from_the_log(tmp_path):
    rows = [{"step": 0, "reward": 1.0}]
    rows += [
        {"step": n, "reward": 1.0, "rule_01": n / 10, "rule_00": 0.5, "r_rules": 3.0}
        for n in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert tables.rule_scores(tmp_path).tolist() == [[0.5, 0.1], [0.5, 0.2]]


def test_the_recipe_has_the_papers_settings():
    """Table 10, GRPO: 1024 completions a step, 2 of each prompt, lr 5e-7, KL 0.001, temperature 1, 1024 tokens."""
    recipe = f"@{ROOT / 'notebooks' / 'recipes' / 'autorule.txt'}"
    flags = train.parse_args([recipe, "--model", world.TINY, "--name", "recipe"])
    settings = flags.settings
    assert settings["prompts_per_step"] * settings["num_samples"] == 1024
    assert (settings["num_samples"], settings["kl_coef"], flags.lr) == (2, 0.001, 5e-7)
    assert (settings["temperature"], settings["max_new_tokens"]) == (1.0, 1024)
