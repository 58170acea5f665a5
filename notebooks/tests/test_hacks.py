"""Reward hacks, each named after what it tries: the rollout must earn no more than an honest one.

Fourteen rows stand in the chapters' tables: six in "Rule-Based Rewards for Verifiable Tasks", eight
in "Reward Design for Reasoning", three of them the same. The chapter on verifier-based RL adds
quotas, patterns and votes. The two rows about programs, printing the unit tests and reading the
truth from a file, are hacks of verify_code and tested there.
"""

import pytest

from notebooks.rewards.guards import first_box, guarded, is_hacking, quotas, robust_reward
from notebooks.rewards.process import steps_reward, verify_steps
from notebooks.rewards.reasoning import REASONING_PRESETS, RepetitionReward, kimi, olmo
from notebooks.rewards.structured import search_agent_reward
from verifiers import (
    ReasoningReward,
    boxed_reward,
    get_reward,
    tagged_reward,
    verify_format,
    verify_math,
)

PROBLEM = {"problem": "What is 6*7?", "answer": "42"}
HONEST = "<think>6*7 is 6*5 plus 6*2, and 30+12=42</think><answer>\\boxed{42}</answer>"
WRONG = HONEST.replace("\\boxed{42}", "\\boxed{41}")
STRICT = RepetitionReward(w_len=0.2, w_rep=0.3)
FILLER = "let me think about it once more, hmm, wait, "


def earned(rollout, truncated=False):
    return STRICT(rollout, "42", truncated)["R"]


def behind_guards(rollout):
    return guarded(STRICT.reward)(rollout, PROBLEM)[0]


def boxes(*values):
    return HONEST.replace("\\boxed{42}", " or ".join(f"\\boxed{{{value}}}" for value in values))


# ---- The tables ------------------------------------------------------------------------------------------------------

R1_ZERO = get_reward("r1-zero")
R1 = get_reward("r1")


@pytest.mark.parametrize(
    "reward", [boxed_reward, tagged_reward, R1_ZERO, R1, kimi, olmo, steps_reward]
)
def test_many_boxes_with_different_values(reward):
    """Hedging. The last one counts; and one that is not closed is no answer, not a way back to the
    one before."""
    for rollout in (boxes(42, 41), boxes(40, 42, 41), boxes(42).replace("}</", "}\\boxed{4</")):
        assert reward(rollout, PROBLEM)[1]["accuracy"] == 0.0
        assert reward(rollout, PROBLEM)[0] <= reward(WRONG, PROBLEM)[0]
    assert first_box(boxes(42, 41), PROBLEM)[0] == 1.0  # the textbook's search would have paid


@pytest.mark.parametrize("think", ["", "   \n", "hm", "......."])
def test_empty_think(think):
    rollout = f"<think>{think}</think><answer>\\boxed{{42}}</answer>"
    assert verify_format(rollout)["think_length"] == 0.0
    assert earned(rollout) <= earned(HONEST)  # the chapter's listing pays for the tags alone
    assert behind_guards(rollout) <= behind_guards(HONEST) - 0.5


@pytest.mark.parametrize(
    "think",
    [
        "The answer is 42",
        "So it is obviously 42.",
        "\\boxed{42}",
        "42 42 42 42 42 42",
        "答案显然是42,答案是42",
        "based on the above, it is 42",
    ],
)
def test_copy_the_answer_into_think(think):
    """The chapter's patch, no box in the thinking, misses its own example, "The answer is 42"; its
    other one, 8 words, would refuse its ideal rollout, "Factor: (x-2)(x-3)=0. Smaller is 2.", which
    has 5. So: what is left without the answer and the words that announce it."""
    rollout = f"<think>{think}</think><answer>\\boxed{{42}}</answer>"
    assert is_hacking(rollout) and behind_guards(rollout) < behind_guards(HONEST) - 0.4


def test_repeat_the_answer_a_thousand_times():
    # Repetition is on top: no bonus to win.
    assert earned(boxes(*[42] * 1000)) <= earned(HONEST) - 0.2
    assert tagged_reward(boxes(*[42] * 1000), PROBLEM)[0] == tagged_reward(HONEST, PROBLEM)[0]


@pytest.mark.parametrize("digits", ["４２", "𝟒𝟐", "4\u200b2"])
def test_look_alike_digits(digits):
    """Both sides are normalised (NFKC). That a look-alike earns what the digits earn is no hack but
    the repair of one: an unnoticed rejection of right answers. Letters that only look alike stay
    different."""
    assert earned(boxes(digits)) == earned(HONEST)
    assert (
        verify_math(boxes("4Z"), "42")["answer"] == verify_math(boxes("Ꮞ2"), "42")["answer"] == 0.0
    )  # Cherokee


def test_bilingual_thinking():
    rollout = HONEST.replace("and 30+12=42", "所以三十加十二得四十二")
    assert R1_ZERO(rollout, PROBLEM)[0] == R1_ZERO(HONEST, PROBLEM)[0]  # nothing noticed
    assert R1(rollout, PROBLEM)[0] == R1(HONEST, PROBLEM)[0] - 0.5


@pytest.mark.parametrize("filler", [FILLER, FILLER.replace(" ", "_"), "嗯让我再想想", "6*7=42;"])
def test_rambling_to_inflate_the_length_bonus(filler):
    """612 words of talk to itself, also without spaces. Paid by length alone it would win."""
    rollout = HONEST.replace("<think>", "<think>" + filler * (10_000 // len(filler)))
    naive = ReasoningReward(w_len=0.3, w_ramble=0.0, w_lang=0.0)
    assert naive(rollout, "42")["R"] > naive(HONEST, "42")["R"] and earned(rollout) < earned(HONEST)


def test_never_close_the_thinking():
    """End-of-sequence suppression: a completion that was cut off earns nothing, whatever it holds
    so far."""
    assert earned(HONEST.partition("</think>")[0]) == 0.0
    assert earned(HONEST, truncated=True) == 0.0  # rlvr.score does the same for all rewards
    assert ReasoningReward(needs_tags=False)("<think>it is \\boxed{42}", "42")["R"] == 0.0


@pytest.mark.parametrize(
    "rollout",
    [
        "<answer>\\boxed{42}</answer><think>because 6*7=42, of course</think>",
        "\\boxed{42}<think>6*7=42, of course</think><answer>\\boxed{42}</answer>",
    ],
)
def test_think_after_the_answer(rollout):
    assert (
        earned(rollout)
        == tagged_reward(rollout, PROBLEM)[0]
        == verify_format(rollout)["structure"]
        == 0.0
    )
    assert is_hacking(rollout)


# ---- Quotas, patterns, votes (verifier-based RL, section 8) ----------------------------------------------------------


def test_think_spam():
    rollout = HONEST.replace("<think>", "<think>" * 11)
    assert quotas(rollout) == 0.5 and quotas(HONEST) == 0.0 and earned(rollout) == 0.0
    assert (
        guarded(boxed_reward)(rollout, PROBLEM)[0]
        == 0.5
        < guarded(boxed_reward)(HONEST, PROBLEM)[0]
        == 1.0
    )


def test_excessive_length():
    assert (
        quotas("so " * 16_001) == 0.3
        and quotas("嗯" * 16_001) == 0.3
        and quotas("so " * 16_000) == 0.0
    )


def test_tool_call_spam():
    call = {
        "role": "assistant",
        "content": '<tool_call>{"name": "search", "arguments": {}}</tool_call>',
    }
    done = {"role": "tool", "content": "", "error": False}
    last = {"role": "assistant", "content": "<answer>42</answer>"}
    problem = PROBLEM | {"tools": {"search": {"type": "object"}}}
    scores = [search_agent_reward([call, done] * n + [last], problem)[0] for n in (1, 3, 6, 21)]
    assert scores[0] == scores[1] > scores[2] > scores[3] and quotas(call["content"] * 21) == 0.5


def test_forge_the_results_of_tools():
    """Only the environment's messages are results; a result in the model's own text is text."""
    call = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    said = [
        {
            "role": "assistant",
            "content": call + "<tool_response>found</tool_response><answer>42</answer>",
        }
    ]
    problem = PROBLEM | {"tools": {"search": {"type": "object"}}}
    assert search_agent_reward(said, problem)[1]["call_success"] == 0.0


@pytest.mark.parametrize(
    "rollout, hacking",
    [
        (HONEST, False),
        (WRONG, False),  # being wrong is no hack
        ("First 6*5=30, then 6*2=12, together \\boxed{42}", False),  # no tags, but a derivation
        (
            "<think>30+12=42</think><answer>Based on the above, it is 42: \\boxed{42}</answer>",
            False,
        ),
        ("<think>答案显然是 42</think><answer>\\boxed{42}</answer>", True),
        ("\\boxed{42}", True),
        ("The answer is \\boxed{42}", True),
        ("", True),
    ],
)
def test_adversarial_patterns(rollout, hacking):
    """The chapter's three: a bare assertion (答案显然是 42), a template ("based on the above, 42"), a
    box right behind </think>. The third, </think>.*\\boxed, matches HONEST, like every answer in
    the form; the second an honest last sentence; and two are strings in a list on whose items
    .search is called. is_hacking asks for a derivation."""
    assert is_hacking(rollout) == hacking


def test_please_one_verifier_only():
    """A vote: the last box is right, but it is neither the first one nor the last number."""
    spam = "".join(rf"\boxed{{{n}}} " for n in (7, 41, 42)) + "one of 3"
    assert boxed_reward(spam, PROBLEM)[0] == 1.0
    assert robust_reward(spam, PROBLEM)[0] == 0.0 and robust_reward(HONEST, PROBLEM)[0] == 1.0


# ---- Hacks of the terms that this project adds -----------------------------------------------------------------------


def test_pad_with_trivial_equations():
    rollout = HONEST.replace("and 30+12=42", "1=1;" * 500 + "2+2=5;" + "0=0.0;" * 500 + "7=7;" * 9)
    assert verify_steps(rollout)["frac"] == 0.0
    assert steps_reward(rollout, PROBLEM)[0] < steps_reward(HONEST, PROBLEM)[0]


def test_true_equations_do_not_make_up_for_a_wrong_answer():
    lecture = ";".join(f"{n}+1={n + 1}" for n in range(2, 40))
    assert (
        steps_reward(WRONG.replace("6*7", lecture), PROBLEM)[0]
        < 0.16
        < steps_reward(HONEST, PROBLEM)[0]
    )


@pytest.mark.parametrize("name", REASONING_PRESETS)
def test_no_form_pays_like_the_answer(name):
    """The best that a wrong answer can do against the plainest right one."""
    wrong = WRONG.replace("and", " ".join(f"word{i}" for i in range(390)))
    assert (
        REASONING_PRESETS[name](wrong, "42")["R"]
        < 0.35
        < 1.0
        <= REASONING_PRESETS[name](HONEST, "42")["R"]
    )
