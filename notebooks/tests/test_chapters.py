"""Every worked number of the chapters "Rule-Based Rewards for Verifiable Tasks" (chapter 14) and "Reward Design for
Reasoning" (chapter 15): where it is tested, and where the source does not agree with itself. Quoted figures (R1's
86.7 %, costs in dollars, hours of others) are not worked and not listed.

chapter 14
    R_max = 1.0 + 0.1                                     test_aggregate_is_the_weighted_sum
    think_length from 8 characters                        test_verify_format_wants_some_thinking
    four rollouts, R 1.10 0.10 0.00 1.10, A .998 ..       test_the_chapters_group_from_rollouts_to_advantages
    squares, variance 0.2769, std 0.526                   test_the_variance_of_the_chapters_group
    all wrong, all right                                  test_equal_rewards_give_exactly_zero
    the lab: 1.10 to 0.10                                 test_the_listing_has_no_reward_of_0_2
    the lab: +1 and -1, 0 and 0                           test_solved_mixed_and_hopeless_groups
    5/5, 3/5, 0/5 tests                                   test_the_reward_is_the_share_of_tests_passed
    80 us against 8 s, 10^5; two models less, 3 TB        4 x 20 us, 4 x 100 tokens / 50; 2 x 671e9 x 2 bytes = 2.7 TB
    seven orders of magnitude             INCONSISTENT    from 10 us to 10 s it is six
    50 prompts a second on one GPU        INCONSISTENT    with its 4 x 2 s for one prompt, 0.125 a second
    30 % time out, "the median rollout"   INCONSISTENT    a median takes 50 %
    returns 0, 0.1, 0.2, 1.1              INCONSISTENT    test_the_listing_has_no_reward_of_0_2
    std in Python and in PyTorch          INCONSISTENT    test_the_variance_of_the_chapters_group
    7 of 8 right: "tiny std"              INCONSISTENT    test_solved_mixed_and_hopeless_groups

chapter 15
    ramp to the cap of 256, -0.3 for rambling             test_the_reward_for_reasoning_term_by_term
    a tenth of another script                             test_language_consistency
    lengths 18 142 612 0 84 22                            test_the_lengths_are_the_chapters
    Design A, exercise 1                  INCONSISTENT    test_design_a (std 0.345, is 0.367)
    Design B, exercise 2, -0.16           INCONSISTENT    test_design_b (std 0.339, is 0.358)
    "actively discourages" rambling       INCONSISTENT    test_design_b (+0.37: more likely)
    exercise 3, format only               INCONSISTENT    test_exercise_3_format_only (the wrong one ties)
    exercise 4, length bonus                              test_exercise_4_a_length_bonus_needs_a_penalty
    no tags: 1.00 or 0                    INCONSISTENT    test_the_reward_for_reasoning_pays_nothing_for_broken_tags
    G = 6, five texts, 183 words          INCONSISTENT    test_the_texts_of_the_chapters_code
    R in (-w_lang, w_acc + w_fmt + w_len] INCONSISTENT    test_the_range_of_the_reasoning_reward
    14 of 16, 1 of 16 right               INCONSISTENT    test_solved_mixed_and_hopeless_groups
    the recipes; all others "below 0.5"   INCONSISTENT    test_the_presets_are_the_chapters_tables
    filter at 0.95, 0.05                   test_what_teaches_nothing_is_passed_by_and_tried_again
    fourteen hacks: test_rewards.py, test_hack_print_the_unit_tests_then_pass, test_hack_open_the_ground_truth_file

"9.5 RLVR"
    [^}]* in \\boxed{\\frac{1}{2}}         DOES NOT HOLD   test_a_project_gives_what_is_kept_of_it
    re.search finds the first box         DOES NOT HOLD   test_a_project_gives_what_is_kept_of_it
    "22/7" against 3.1428.. by float      DOES NOT HOLD   test_9_5_reads_nan_and_no_fraction
    nan < 1e-6 and equal strings          DOES NOT HOLD   test_9_5_reads_nan_and_no_fraction
    sampled at 0.8, log-probs at 1        DOES NOT HOLD   test_the_chapter_samples_at_another_temperature_than_it_trains
    the loss, to its formula                              test_compute_grpo_loss_is_the_chapters_arithmetic
"""

import re

import pytest
import torch

from conftest import ROOT
from notebooks.rewards.reasoning import ReasoningReward
from rlvr import group_advantages
from test_rewards import tagged
from verifiers import tagged_reward

GROUP = [1.10, 0.10, 0.00, 1.10]
TRUTH = {"problem": "", "answer": "2"}


def test_every_test_named_above_exists():
    folders = (ROOT / "tests", ROOT / "notebooks" / "tests")
    tests = "".join(path.read_text() for folder in folders for path in folder.glob("test_*.py"))
    named = set(re.findall(r"\btest_\w+", __doc__)) - {"test_rewards"}
    assert named <= set(re.findall(r"^def (test_\w+)", tests, flags=re.M))


# ---- Chapter 14 ------------------------------------------------------------------------------------------------------


def test_the_variance_of_the_chapters_group():
    """(0.525^2 + 0.475^2 + 0.575^2 + 0.525^2) / 4 = (0.2756 + 0.2256 + 0.3306 + 0.2756) / 4 =
    0.2769 = 0.526^2. The chapter's plain Python uses this (pstdev). Its PyTorch step uses
    rewards.std(), which divides by G - 1: then the walkthrough's +0.998 -0.903 -1.093 would be
    +0.864 -0.782 -0.946. We divide by G, as in the formula."""
    differences = group_advantages(GROUP, scale="none")
    advantages = group_advantages(GROUP)
    assert [round(d, 3) for d in differences] == [0.525, -0.475, -0.575, 0.525]
    assert [round(d * d, 4) for d in differences] == [0.2756, 0.2256, 0.3306, 0.2756]
    assert [round(d / A, 3) for d, A in zip(differences, advantages)] == [0.526] * 4
    others = torch.tensor(differences) / torch.tensor(GROUP).std()
    assert [round(A, 3) for A in others.tolist()] == [0.864, -0.782, -0.946, 0.864]


def test_the_listing_has_no_reward_of_0_2():
    """The text beside math_reward says 0.2 for the right form with a wrong answer; the listing
    returns 0.1 there, as for a missing box, and its walkthrough has 0.10 too. Our rewards are 0,
    0.1, 0.1 and 1.1."""
    texts = ["2", tagged("x", "2"), tagged("x", "\\boxed{3}"), tagged("x", "\\boxed{2}")]
    assert [tagged_reward(text, TRUTH)[0] for text in texts] == pytest.approx([0, 0.1, 0.1, 1.1])


@pytest.mark.parametrize(
    "right, G, std, up, down",
    [
        (7, 8, 0.331, 0.378, -2.646),
        (14, 16, 0.331, 0.378, -2.646),
        (1, 16, 0.242, 3.873, -0.258),
        (8, 16, 0.5, 1.0, -1.0),
        (0, 8, 0.0, 0.0, 0.0),
        (16, 16, 0.0, 0.0, 0.0),
    ],
)
def test_solved_mixed_and_hopeless_groups(right, G, std, up, down):
    """k of G right: std = sqrt(k (G - k)) / G, A = sqrt((G - k) / k) and -sqrt(k / (G - k)). 7 of 8
    and 14 of 16 are the same case. Chapter 14 says that its std is tiny and each advantage large,
    chapter 15 that std and advantages are about 0: it is 0.331, and +0.378, -2.646. Chapter 15
    gives 1 of 16 a high std: it is 0.242, below that of 14 of 16; the success is loud, +3.873,
    because the std divides."""
    group = [1.0] * right + [0.0] * (G - right)
    advantages = group_advantages(group)
    assert torch.tensor(group).std(correction=0).item() == pytest.approx(std, abs=5e-4)
    assert (max(advantages), min(advantages)) == pytest.approx((up, down), abs=5e-4)


# ---- Chapter 15 ------------------------------------------------------------------------------------------------------


def test_the_range_of_the_reasoning_reward():
    """The chapter says that R is above -w_lang. But rambling is subtracted, too: a wrong, bilingual
    rollout of 800 words or more gets 0.1 - 0.3 - 0.5 = -0.7. And because broken tags earn 0, a wrong,
    bilingual rollout is better off without the form, which brings it to -0.4."""
    mixed = "let me think about it 让我再想一想这个问题 "
    assert ReasoningReward()(tagged(mixed * 60, "\\boxed{3}"), "2")["R"] == pytest.approx(-0.7)
    assert ReasoningReward()(tagged(mixed, "\\boxed{3}"), "2")["R"] == pytest.approx(-0.4)
    assert ReasoningReward()(mixed + "\\boxed{3}", "2")["R"] == 0.0
    best = ReasoningReward(w_len=0.2)(tagged(" ".join(f"step{i}" for i in range(300))), "2")["R"]
    assert best == pytest.approx(1.0 + 0.1 + 0.2)
