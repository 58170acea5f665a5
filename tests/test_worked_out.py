r"""The question is not its own answer: only answers that are worked out are rewarded.

41+2-7 has the value 36, so a grader that compares values accepts it. If a reward did, a policy would
learn to copy the question: that solves every problem of arithmetic. grade_answer only compares values;
reward_rlvr, and all that is built on it, asks for more.
"""

import pytest
from notebooks.rewards.reasoning import ReasoningReward
from notebooks.tasks.one_digit import exact_reward, one_digit
from verifiers import (
    arithmetic,
    boxed_reward,
    grade_answer,
    reward_rlvr,
    tagged_reward,
    verify_math,
    worked_out,
)


def tagged(box):
    return f"<think>some thinking here</think><answer>\\boxed{{{box}}}</answer>"


def test_to_copy_the_question_of_a_shipped_task_earns_nothing():
    for problem in arithmetic(200, 50).test:
        for box in (problem["problem"], problem["problem"].rstrip("=")):
            assert grade_answer(box, problem["answer"])  # by value they are equal
            reward, parts = tagged_reward(tagged(box), problem)
            assert reward == pytest.approx(0.1)  # for the tags alone
            assert parts["accuracy"] == 0 and parts["copied"] == 1
            assert reward_rlvr(f"\\boxed{{{box}}}", problem["answer"]) == 0
            assert ReasoningReward().reward(tagged(box), problem)[1]["accuracy"] == 0
        right = tagged_reward(tagged(problem["answer"]), problem)
        assert right[0] == pytest.approx(1.1) and right[1]["copied"] == 0
    for problem in one_digit().train:
        assert exact_reward(problem["problem"], problem)[0] == 0


# (ground truth, answers that are worked out, answers of the same value that are not)
WORKED_OUT = [
    ("540", ["540", "540.0", "x = 540", r"540\text{ km}", r"\$540", r"9 \times 60 = 540",
             r"5.4 \times 10^2", r"\textbf{540}", "(540)", "{540}", "5.4e2"],
     [r"9 \times 60", "500+40", "541-1", r"\frac{1080}{2}", "1080/2", r"\sqrt{291600}",
      r"540 \cdot 1", r"\frac{90}{10} \times \sqrt{3600}", "540^1", r"500\frac{40}{1}", "1000011100_2", r"\frac{540}{1}"]),
    ("0.75", ["0.75", ".75", r"\frac34", "3/4", r"{3 \over 4}"],
     [r"\frac68", r"3 \div 4 + 0", "1-0.25", r"0.5 \cdot 1.5"]),
    (r"\frac{3}{2}", [r"\frac32", r"1\frac12", "1.5"],
     [r"-\frac{-3}{2}", r"\frac{9}{6}", r"1+\frac12", r"\frac12 \cdot 3", r"\frac{1+2}{2}"]),
    (r"50\%", [r"50\%", "50 percent"], [r"100\% - 50\%", r"25 \cdot 2"]),
    ("60", ["60 eggs"], ["5 dozen", r"5\text{ dozen eggs}", r"5 \times 12", "5*12"]),
    ("x = 4", ["4", "x=4"], ["2x = 8", "x = 3x-8"]),  # still to be solved
    (r"y = x(1 \pm \sqrt{c-x^2})", [r"y = x(1 \pm \sqrt{c - x^2})"], []),  # it has no numerical value
    (r"-\frac12", ["-(1/2)", "(-1)/2", "-0.5"], ["-(1-1/2)"]),
    ("2500000", [r"\$2.5\text{ million}", "2{,}500{,}000"], [r"25 \cdot 10^5 + 0"]),
    (r"2^{10}", ["1024", r"4^5", "2^{10}"], []),  # the truth itself is no plain number: only the value counts
    ("x^2+y^2=25", ["y^2 + x^2 = 25"], ["x^2+y^2=5^2"]),
    (r"5\sqrt2", [r"5\sqrt{2}", r"\sqrt{50}"], [r"\sqrt{(4-3)^2+(9-2)^2}", r"5\sqrt{1+1}"]),
    ("(1,2)", ["(1, 2)", "(x, y) = (1, 2)"], ["(1, 1+1)", r"(1, \frac{4}{2})"]),
    ("(3,7)", ["3 < x < 7", "7 > x > 3"], ["3 < x < 2+5"]),
    ("x > 2", [r"(2,\infty)", "2 < x"], [r"(1+1,\infty)", "4x+6 > 14"]),
    ("2, -2", [r"\pm 2"], [r"\pm\sqrt4"]),
    (r"\frac{\sqrt3}{2}", [r"\frac12\sqrt3"], [r"\sin 60^\circ", r"\frac{2\sqrt3}{4}"]),
    (r"2\cos 15^\circ", [r"\frac{\sqrt6+\sqrt2}{2}"], []),
    (r"9\pi", [r"\pi \cdot 9"], [r"\pi \cdot 3 \cdot 3", r"\frac{18\pi}{2}", r"\frac{-9\pi}{-1}", r"4\pi+5\pi"]),
    ("6+9i", ["9i+6", r"\frac32(4+6i)"], ["5+9i+1", "3(2+3i)", "(1+2i)+(5+7i)"]),
    ("1+i", ["i+1"], [r"\frac{2}{1-i}"]),
    (r"\sqrt2-1", [r"-1+\sqrt2"], [r"\frac{1}{1+\sqrt2}"]),
    (r"14+8\sqrt3", [r"2(7+4\sqrt3)"], [r"2(2+\sqrt3)^2", r"(2+2\sqrt3)(1+3\sqrt3)-6"]),
    ("8x-5", ["-5+8x"], ["5x-7+3x+2", r"\frac{16x}{2}-5", r"4(2x-1)-1"]),  # numbers before letters
    ("2, 3", ["x = 2, x = 3", r"\{3, 2\}"], ["2, 1+2"]),
    ("3202_5", ["3202_{5}", "427_{10} = 3202_5"], ["427", "427_{10}", "1AB_{16}"]),
    ("3.14", [r"x \approx 3.14", r"\approx 3.14"], [r"3+0.14 \approx 3.14"]),
    (r"\frac13", [r"0.\overline{3}", r"x = \frac13 \approx 0.33"], []),
    (r"2\text{ hours } 15\text{ minutes}", ["2 hours 15 minutes"], []),  # no number to our parser
]  # fmt: skip


@pytest.mark.parametrize(
    "truth, paid, unpaid", WORKED_OUT, ids=[truth for truth, _, _ in WORKED_OUT]
)
def test_what_is_worked_out(truth, paid, unpaid):
    for answer in paid:
        assert grade_answer(answer, truth) and worked_out(answer, truth), answer
        assert reward_rlvr(f"\\boxed{{{answer}}}", truth) == 1, answer
    for answer in unpaid:
        assert grade_answer(answer, truth) and not worked_out(answer, truth), answer
        assert reward_rlvr(f"\\boxed{{{answer}}}", truth) == 0, answer


NO_COPIES = [
    ("Is 5, 7 or 9 a prime? Which is even?", "5", "5"),  # a number
    ("Which one?\nA. x+1\nB. x+2", "B", "B. x+2"),  # a choice
    ("Which is irreducible, x^2+1 or x^2-1?", "x^2+1", "x^2 + 1"),  # the truth's own text
    (r"An angle of $90^\circ$ is turned twice ..", "90", r"90^\circ"),
    ("Which of the points $(9,11)$, $(5,7)$ is not on the line?", "(9,11)", "(9, 11)"),
    (r"On $[0,\pi/2]$, where ..", r"\frac{\pi}{2}", r"x=\pi/2"),
    ("It is 11/24 of the way ..", r"\frac12", "1/2"),  # other numbers
    ("Expand $(x+1)(x-2)$.", "x^2-x-2", "(x+1)(x-2) = x^2-x-2"),
    ("Factor $x^2-x-2$.", "(x-2)(x+1)", "(x+1)(x-2)"),
    ("Factor $ab+5b+2a+10$.", "(a+5)(b+2)", "b(a+5)+2(a+5)"),  # shorter than the question
    (
        r"Simplify $\frac{4+6a}{5}-\frac{1+3a}{4}$.",
        r"\frac{11+9a}{20}",
        r"\frac{11}{20}+\frac{9a}{20}",
    ),
    ("Find the distance between (1,2) and (4,5).", r"3\sqrt2", r"\sqrt{18}"),
    ("Compute 41+2-7.", "36", r"x \approx 36"),
    ("Find the domain of $f$.", "[-3,2]", r"-3 \le x \le 2"),  # x is not read as part of \le
]


@pytest.mark.parametrize("text, truth, box", NO_COPIES)
def test_what_stands_in_the_problem_may_still_be_the_answer(text, truth, box):
    right, parts = boxed_reward(f"\\boxed{{{box}}}", {"problem": text, "answer": truth})
    assert right == 1 and parts["copied"] == 0


# (problem, ground truth, copies of the problem: unchanged, edited or reordered, or numbers still to convert)
COPIES = [
    (r"Compute $54 \times 46$.", "2484", [r"54 \times 46"]),
    (r"Evaluate $\log_2 8 + 5!$.", "123", [r"\log_2 8 + 5!"]),
    (r"What is $\binom{7}{2}$?", "21", [r"\binom{7}{2}"]),
    ("Write $2^{10}$ as a number.", "1024", ["2^{10}"]),
    (r"Simplify $\sqrt{50}$.", r"5\sqrt2", [r"\sqrt{50}", r"\sqrt 50.", r"{\sqrt{50}}", r"x=\sqrt{50}", r"(√50)",
     r"\sqrt{50}+0", r"\sqrt{50}\,", r"-(-\sqrt{50})", r"\frac{\sqrt{50}}{1}", r"\sqrt{50}^1",
     r"\frac{2\sqrt{50}}{2}", r"\sqrt{50} \cdot 10^0", r"\ln e^{\sqrt{50}}"]),
    (r"Reduce $\dfrac{84}{144}$.", r"\frac{7}{12}", [r"\frac{84}{144}", "84/144", r"{84 \over 144}"]),
    ("Expand $(x+1)(x-2)$.", "x^2-x-2", ["(x+1)(x-2)", r"(x-2) \cdot (x+1)", "f(x) = (x+1)(x-2)", "(x+1)(x-2), x > 1"]),
    ("Factor $x^2-x-2$.", "(x-2)(x+1)", ["x^{2}-x-2.", "-2-x+x^2"]),
    ("Express 0.45 as a common fraction.", r"\frac{9}{20}", ["0.450", ".45"]),
    (r"Express $0.\overline{28}$ as a fraction.", r"\frac{28}{99}", [r"0.\bar{28}", "0.(28)"]),
    ("Write 5,000,000 in scientific notation.", r"5 \times 10^6", ["5000000", r"5\,000\,000"]),
    ("Write $4x-2y=-6$ in the form $y=mx+b$.", "y=2x+3", ["4x-2y=-6."]),
    ("Factor $ab+5b+2a+10$.", "(a+5)(b+2)", ["ab+(4+1)b+2a+10", r"ab+\frac{10}{2}b+2a+10", r"ab+\sqrt{25}b+2a+10"]),
    (r"Expand $(x+1)^2$.", "x^2+2x+1", [r"\frac{2(x+1)^2}{2}"]),
    (r"Rationalize $\frac{5}{\sqrt3}$.", r"\frac{5\sqrt3}{3}", [r"2(\frac{5}{\sqrt3})-\frac{5}{\sqrt3}"]),
    ("Expand $(q-5)(3r+6)$.", "3qr+6q-15r-30", [r"(q-4.\overline{9})(3r+6)", "(q-101_2)(3r+6)", "(q-5e0)(3r+6)"]),
    ("Factor $x^2+5x+6$.", "(x+2)(x+3)", ["x(x+5)+6"]),
]  # fmt: skip


@pytest.mark.parametrize("text, truth, boxes", COPIES, ids=[text for text, _, _ in COPIES])
def test_to_copy_a_problem_of_math_earns_nothing(text, truth, boxes):
    problem = {"problem": text, "answer": truth}
    for box in boxes:
        assert grade_answer(box, truth), box
        reward, parts = boxed_reward(f"\\boxed{{{box}}}", problem)
        assert reward == 0 and parts == {"accuracy": 0, "answered": 1, "copied": 1}, box
        assert verify_math(tagged(box), truth, text)["answer"] == 0
        assert ReasoningReward()(tagged(box), truth, problem=text)["acc"] == 0
    right = boxed_reward(f"\\boxed{{{truth}}}", problem)
    assert right == (1, {"accuracy": 1, "answered": 1, "copied": 0})


def test_one_of_several_accepted_answers():
    """As in TriviaQA, each of them earns the reward."""
    truths = ["four", "4"]
    assert reward_rlvr(r"\boxed{4}", truths) == reward_rlvr(r"\boxed{Four}", truths) == 1
    assert reward_rlvr(r"\boxed{5}", truths) == 0
