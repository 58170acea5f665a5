"""notebooks/rewards/, how scores become a reward (verifiers.py, section 4), and hacks that must not be rewarded."""

import math
import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch

import verifiers
from conftest import ROOT
from model import load
from notebooks.rewards import guards, process, program_parts, proofs, reasoning, structured
from notebooks.rewards.guards import first_box, guarded, is_hacking, quotas, robust_reward
from notebooks.rewards.process import steps_reward, verify_steps
from notebooks.rewards.reasoning import REASONING_PRESETS, ReasoningReward, RepetitionReward
from notebooks.rewards.reasoning import kimi, olmo
from rlvr import group_advantages
from verifiers import CODE_RULES, MATH_RULES, aggregate, arithmetic
from verifiers import boxed_reward, extract_code, tagged_reward, verify_format, verify_math

TWO = {"problem": "Solve x^2-5x+6=0. Smaller root in \\boxed{}.", "answer": "2"}


def tagged(think, answer="\\boxed{2}"):
    return f"<think>{think}</think><answer>{answer}</answer>"


# ---- JSON and tool calls ---------------------------------------------------------------------------

SCHEMA = {"type": "object", "required": ["unit"]}
SCHEMA["properties"] = {
    "unit": {"type": "string", "enum": ["C", "F"]},
    "days": {"type": "array", "items": {"type": "integer"}},
}


@pytest.mark.parametrize(
    "text, parses, valid",
    [
        ('{"unit": "C", "days": [1, 2]}', 1, 1),
        ('{"days": [1]}', 1, 0),  # required
        ('{"unit": "K"}', 1, 0),  # not in the enum
        ('{"unit": "C", "days": [1, 2.0]}', 1, 0),  # 2.0 is no integer here
        ('{"unit": "C", "days": [true]}', 1, 0),  # in Python True is an int
        ('{"unit": "C", "unit": "F"}', 0, 0),  # two answers to choose from
        ('{"unit": "C", "days": NaN}', 0, 0),
        ("[" * 19_000, 0, 0),  # RecursionError in json.loads
        ("9" * 10_000, 0, 0),  # more digits than Python converts
        ('{"unit": "C"}' + " " * 20_000, 1, 0),  # too long
    ],
)
def test_verify_json(text, parses, valid):
    out = structured.verify_json(text, SCHEMA)
    assert (out["parses"], out["valid"]) == (parses, valid)


TOOLS = {"search": {"type": "object", "required": ["query"], "additionalProperties": False}}
TOOLS["search"]["properties"] = {"query": {"type": "string"}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "capital of France"}}\n</tool_call>'


@pytest.mark.parametrize(
    "text, calls, valid",
    [
        (CALL, 1, 1),
        ("<think>I should look it up.</think>" + CALL + "\n" + CALL, 2, 2),
        (f"<think>{CALL}</think>I know it.", 0, 0),  # a thought is not a call
        (CALL.replace("search", "shell"), 1, 0),  # there is no such tool
        (CALL.replace("query", "q"), 1, 0),  # not its argument
        (CALL.replace("</tool_call>", ""), 1, 0),  # not closed
        ("<tool_call>search(query='x')</tool_call>", 1, 0),
    ],
)
def test_verify_tool_call(text, calls, valid):
    expected = {"calls": calls, "valid": valid, "frac": valid / max(calls, 1)}
    assert structured.verify_tool_call(text, TOOLS) == expected


def episode(calls, answer="Paris", failed=0, call=CALL, padding=""):
    turns = []
    for i in range(calls):
        turns.append({"role": "assistant", "content": call})
        turns.append({"role": "tool", "content": "...", "error": i < failed})
    last = f"<think>{padding}</think><answer>{answer}</answer>"
    return [*turns, {"role": "assistant", "content": last}]


@pytest.mark.parametrize(
    "trajectory, reward",
    [
        (episode(3), 1.0),
        (episode(6), 0.97),
        (episode(10), 0.93),
        (episode(11), 0.9),  # cost 1, 0.7, 0.3, 0
        (episode(1, "Rome"), 0.3),
        (episode(2, failed=1), 0.95),  # half of the calls succeeded
        (episode(1, call=CALL.replace("query", "q")), 0.85),  # malformed: no format, no success
        (episode(1, padding="so " * 8000), 0.975),  # length halves
        (episode(0), 0.85),  # from memory
        (episode(0, "Rome"), 0.15),
        (episode(1, "Rome", failed=1), 0.2),  # silence does not beat a failed try
        ([], 0.15),
    ],
)
def test_search_agent_reward(trajectory, reward):
    problem = {"answer": "Paris", "tools": TOOLS}
    assert structured.search_agent_reward(trajectory, problem)[0] == pytest.approx(reward)


# ---- Translation -----------------------------------------------------------------------------------


def test_bleu_by_hand():
    """Against "the cat is on the mat", "the cat sat on the mat" has 5 of 6 words, 3 of 5 pairs, 1 of 4
    triples and 0 of 3 fours. One is added to numerator and denominator of the last three: 4/6, 2/5, 1/4.
    The lengths are equal, and (5/6 * 4/6 * 2/5 * 1/4)^(1/4) = 0.4855."""
    out = structured.verify_translation("The cat sat on the mat", "the cat is on the mat")
    assert out["precisions"] == pytest.approx([5 / 6, 4 / 6, 2 / 5, 1 / 4])
    assert out["brevity"] == 1.0
    assert out["bleu"] == pytest.approx(0.4855, abs=5e-5)


def test_bleu_clips_counts_and_takes_the_reference_closest_in_length():
    """Papineni et al. 2002, section 2.1: seven times "the" is found seven times, but "the" is there
    only twice."""
    bleu = structured.verify_translation
    references = ["the cat is on the mat", "the the the"]
    assert bleu("the " * 7, references[0])["precisions"][0] == pytest.approx(2 / 7)
    assert bleu("the " * 7, references)["precisions"][0] == pytest.approx(3 / 7)
    assert bleu("我 是学生。", "我是学生。")["bleu"] == pytest.approx(1.0)
    assert bleu("", "the cat")["bleu"] == bleu("dog", "the cat")["bleu"] == 0.0


# ---- Steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "think, hold, equations",
    [
        ("66+3=69;69+2=71", 2, 2),
        ("66+3=69;69+2=72", 1, 2),
        ("so 2*3+1 = 6+1 = 7, and \\frac12+\\frac12 = 2", 2, 3),  # a chain is two equations
        ("area = 2 × 3 = 6. Then 1,000 + 1 = 1,001", 2, 2),
        ("2x = 6, so x = 3", 0, 0),  # free variables: they do not count
        ("1=1;1=1;5=5.0;2+2=2+2", 0, 0),  # trivial
        ("2+2=4;2+2=4;2 + 2 = 4;3+3=7", 1, 2),  # repeated
        ("half of 10 = 5; 20% of 50 = 10; cost - 3 = 5; floor(7/2) = 3; 22/7 ≈ 3.14; 5 != 6", 0, 0),
        ("Step 1: 移项 → 2x = 10 - 4 = 6\nStep 2: 除 2 → x = 3", 1, 1),
        ("Step 1: 移项 → 2x = 10 + 4 = 14\nStep 2: 除 2 → x = 7", 1, 1),
        ("2x = 10 - 4 = 14", 0, 1),
    ],
)
def test_verify_steps_counts_the_equations_that_hold(think, hold, equations):
    """The last three are of the chapter's example (Verifier-based RL, section 7.2): 2x + 4 = 10. A
    process model gives 1, 1 to the first solution and 0, 0 to the second. Code that only computes
    finds 10 - 4 = 6 true, but 10 + 4 = 14 as well: it does not see that 2x = 10 + 4 does not follow
    from the question. It is no process model, and the outcome must decide. A slip of arithmetic, as
    in the last row, it does see."""
    expected = {"equations": equations, "hold": hold, "frac": hold / max(equations, 1)}
    assert verify_steps(tagged(think)) == verify_steps(think) == expected


def test_steps_are_a_small_part_of_a_reward():
    assert steps_reward(tagged("1+1=2;2+0=3"), TWO)[0] == pytest.approx(1.1 + 0.05 / 2)
    assert steps_reward("1+1=2", TWO)[0] == 0.0  # not in the form


# ---- A wrong step found by sampling, and a process reward model ---------------------------------------

TASK = arithmetic(20, 20)
SUM = {"problem": "59-8-1+8=", "answer": "58"}


@pytest.fixture(scope="module")
def base():
    torch.manual_seed(0)
    return load(ROOT / "notebooks" / "tiny")


def test_prefixes_end_with_steps_and_leave_the_answer_out():
    text = r"<think>1+2=3;3+4=7</think><answer>\boxed{7}</answer>"
    assert process.prefixes(text) == ["<think>", "<think>1+2=3;", "<think>1+2=3;3+4=7"]


FALLS = [([0.9, 0.95, 0.1, 0.05], 2), ([0.9, 0.2, 0.0], 1), ([0.5, 0.6], None), ([0.0, 0.0], None)]


@pytest.mark.parametrize("found, place", FALLS)
def test_the_wrong_step_is_where_the_share_falls(found, place):
    assert process.wrong_step(found) == place


def test_few_continuations_of_a_wrong_step_are_right_and_many_of_a_right_one(base):
    """The base continues from the last step: after 51-1=50 it gets 58, after 51-1=40 it does not. Cut off is wrong."""
    torch.manual_seed(0)
    texts = ["<think>59-8=51;51-1=50;50+8=58", "<think>59-8=51;51-1=40;"]
    good, bad = process.shares(*base, TASK, SUM, texts, N=32)
    assert good > 0.7 and bad < 0.1
    assert process.shares(*base, TASK, SUM, texts[:1], N=4, max_new_tokens=2) == [0.0]


def test_a_vote_refuses_what_one_judge_alone_believes(base):
    """The question in the box has the right value, but neither the right text nor the majority's number."""
    torch.manual_seed(0)

    def by_value(completion, problem):
        said = verifiers.extract_boxed_answer(completion)
        return float(verifiers.grade_answer(said, problem["answer"])), {}

    judges = (process.string_judge, by_value, process.majority_judge(*base, TASK, N=64))
    said = (r"\boxed{58}", r"\boxed{58.0}", r"\boxed{57}", r"\boxed{59-8-1+8}")
    votes = [robust_reward(text, SUM, judges)[1]["votes"] for text in said]
    assert votes == [3, 2, 0, 1]


def test_states_stand_at_the_end_of_steps(base):
    """For 25+7=32;32-4=28 they are the states at ; and at the last 8. They do not depend on what follows."""
    model, tokenizer = base
    found = process.at_steps(*base, "25+7-4=", "<think>25+7=32;32-4=28</think>")
    assert found.shape == (2, model.config.hidden_size)
    begun = torch.tensor([tokenizer.encode("25+7-4=<think>25+7=32;")])
    alone = model(begun, head=lambda hidden, weight: hidden)[0, -1]
    torch.testing.assert_close(found[0], alone, atol=1e-5, rtol=1e-4)
    assert len(process.at_steps(*base, "25+7-4=", "<think></think>")) == 0


def test_the_logistic_regression_finds_the_line():
    """Labels depend on the first number alone: they are 0.9 above 0, and 0.1 below."""
    states = torch.tensor([[-1.0, 1], [-1, -1], [1, 1], [1, -1]])
    labels = torch.tensor([0.1, 0.1, 0.9, 0.9])
    weight, bias = process.fit(states, labels)
    torch.testing.assert_close((states @ weight + bias).sigmoid(), labels, atol=0.02, rtol=0)


TOTALS = [("mean", [0.6, 0.9, 0, 0]), ("min", [0.3, 0.9, 0, 0]), ("sum", [1.2, 0.9, 0, 0])]


@pytest.mark.parametrize("total, paid", TOTALS)
def test_a_process_reward_by_hand(total, paid, monkeypatch):
    """Completions have two steps, one, none, or are cut off. Only the sum rewards two steps more than one."""
    said = {"two": [0.9, 0.3], "one": [0.9], "none": [], "cut off": [0.9]}
    monkeypatch.setattr(process, "process_model", lambda: lambda problem, text: said[text])
    method = process.ProcessReward(total=total)
    method.setup(torch.nn.Linear(1, 1), None)
    rollouts = SimpleNamespace(finished=torch.tensor([True, True, True, False]))
    batch = SimpleNamespace(problems=[SUM], texts=[*said], rollouts=rollouts)
    torch.testing.assert_close(method.advantages(batch), group_advantages(torch.tensor([paid])))
    row = {}
    method.after_step(row, None)
    assert row == {"prm": pytest.approx(sum(paid) / 4), "steps": 1.0}


# ---- Composition -----------------------------------------------------------------------------------


def test_a_gate_is_a_product():
    wrong = verify_math(tagged("a", "\\boxed{3}"), "2")
    assert aggregate(wrong, MATH_RULES) == pytest.approx(0.1)
    assert reasoning.gated(wrong, MATH_RULES) == 0.0
    assert reasoning.gated(verify_math(tagged("a"), "2"), MATH_RULES) == 1.0


def test_the_penalty_for_mixing_languages_begins_at_step_30():
    mixed = tagged("let me factor 先因式分解 then 所以较小的根是 2 and ok")
    paid = [reasoning.language_later(mixed, {**TWO, "step": step})[0] for step in (1, 29, 30, 300)]
    assert paid == pytest.approx([1.1, 1.1, 0.6, 0.6])


@pytest.mark.filterwarnings("ignore:correctness")
@pytest.mark.parametrize(
    "other, message", [("cost", "correctness has 50%"), ("format", "form has 50%")]
)
def test_weights_that_do_not_let_correctness_dominate_are_warned_of(other, message):
    rules = reasoning.weights(answer=0.5, **{other: 0.5})
    with pytest.warns(UserWarning, match=message):
        assert reasoning.check_weights(rules) == rules  # a warning, not a refusal


def test_the_weights_of_the_chapters_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rules in (MATH_RULES, CODE_RULES, structured.SEARCH_RULES):
            reasoning.check_weights(rules)  # format: 0.1 of 1.1 is 9.1 %
        for preset in REASONING_PRESETS.values():
            reasoning.check_weights(reasoning.earnable(preset))  # a penalty cannot be earned


def test_the_curriculum_of_the_chapter():
    """Verifier-based RL, section 6.3: correctness, from step 1000 also 0.1 format, from step 3000 also
    0.1 cost. The training loop sets problem["step"]; in an evaluation, which has no step, the last
    phase counts."""
    costly = reasoning.with_term(tagged_reward, "cost", lambda *_: 0.5, 0.1)
    reward = reasoning.Curriculum([(0, boxed_reward), (1000, tagged_reward), (3000, costly)])
    steps = (0, 999, 1000, 2999, 3000, 9999)
    seen = [round(reward(tagged("a"), TWO | {"step": step})[0], 6) for step in steps]
    assert seen == [1.0, 1.0, 1.1, 1.1, 1.15, 1.15]
    assert reward(tagged("a"), TWO)[0] == pytest.approx(1.15)


@pytest.mark.parametrize(
    "text, votes",
    [
        (r"\boxed{2}", 3),
        (r"\boxed{2}, checked 3 times", 2),  # the last number is another
        (r"\boxed{3}, no: \boxed{2}", 2),  # the first box is
        (r"\boxed{2}, or \boxed{3}, no: 2", 2),  # the last box is
        ("so it is 2", 1),
        (r"\boxed{7}, \boxed{41}, \boxed{2}: one of 3", 1),  # a hack that would please the last box
    ],
)
def test_two_of_three_verifiers(text, votes):
    """They read the last box, the first box and the last number. In three rows above two overrule the third."""
    reward, parts = robust_reward(text, TWO)
    assert (reward, parts["votes"]) == (float(votes >= 2), votes)
    assert parts["answered"] == float("boxed" in text)


def test_score_group_is_the_chapters_example():
    """Right, wrong, without tags and right earn 1.10, 0.10, 0.00 and 1.10, with mean 0.575 and std 0.526."""
    texts = [tagged("x = 2"), tagged("x = 3", "\\boxed{3}"), "\\boxed{2}", tagged("again 2")]
    out = reasoning.score_group(texts, "2")
    assert out["rewards"] == pytest.approx([1.10, 0.10, 0.00, 1.10])
    assert out["advantages"] == pytest.approx([0.998, -0.903, -1.093, 0.998], abs=1e-3)
    assert reasoning.score_group([tagged("a")] * 3, "2")["advantages"] == [0.0] * 3


def math_reward(prompt, completion, meta):
    """The chapter's reward, with our verifier: 0, 0.1 or 1.1."""
    return aggregate(verify_math(completion, meta["answer"]), MATH_RULES)


def length_term(prompt, completion, meta):
    return -0.01 * len(completion.split()) * (prompt != "At length:")


def test_addition_is_composition():
    """The answer earns 1.1, and three words cost 0.03. A term gets the prompt and the metadata. With --reward FILE:NAME
    the problem is the metadata, and each term is a column of the log."""
    terms = [reasoning.RewardFn(f.__name__, f) for f in (math_reward, length_term)]
    combined = reasoning.make_reward(*terms)
    assert combined("Solve.", tagged("x = 2"), {"answer": "2"}) == pytest.approx(1.1 - 0.03)
    assert combined("At length:", tagged("x = 2"), {"answer": "3"}) == pytest.approx(0.1)
    value, parts = combined.reward(tagged("x = 2"), TWO)
    assert value == pytest.approx(1.07)
    assert parts == pytest.approx({"math_reward": 1.1, "length_term": -0.03})


# ---- Code ------------------------------------------------------------------------------------------


def fence(code):
    return f"<think>easy</think>Here:\n```python\n{code}\n```"


FOUR = {"answer": "", "tests": [*["assert f() == 1"] * 3, "assert f() == 2"]}
ONE = "def f(): return 1"  # passes three of them


@pytest.mark.parametrize(
    "response, more, reward",
    [
        (fence(ONE), {}, 0.1 + 0.7 * 0.75 + 0.1 + 0.1),
        (fence(ONE), {"seconds": 0}, 0.1 + 0.7 * 0.75 + 0.05 + 0.1),  # slow
        (fence(ONE), {"baseline": 0.5}, 0.1 + 0.7 * 0.5 + 0.1 + 0.1),  # half of the way up
        (fence(f"import os\n{ONE}"), {}, 0.1 + 0.7 * 0.75 + 0.1),
        (fence("def f( return 1"), {}, 0.0),
        (fence("pass"), {}, 0.1),  # the chapter's listing: 0.3
        (ONE, {}, 0.0),  # no block
    ],
)
def test_code_parts_reward(response, more, reward):
    value, parts = program_parts.code_parts_reward(response, FOUR | more)
    assert value == pytest.approx(reward) and parts["accuracy"] == 0.0  # accuracy: all tests
    strict, _ = program_parts.code_strict(response, FOUR)  # three of four are none
    assert strict == pytest.approx(0.1 * parts["syntax"])


def test_three_tests_of_many():
    """f doubles all but 7: it earns 1 if 7 is not among the three tests, else (1 + 2/3) / 2. Passing none earns 0."""
    tests = [f"assert f({n}) == {2 * n}" for n in (2, 4, 5, 7, 8, 9)]
    problems = [{"problem": str(k), "tests": tests} for k in range(12)]
    said = fence("def f(n): return 2 * n if n != 7 else 0")
    paid = {program_parts.quick_code_reward(said, problem)[0] for problem in problems}
    assert sorted(paid) == pytest.approx([(1 + 2 / 3) / 2, 1.0])
    for said in ("pass", "def f(n) return 2 * n", ""):
        assert program_parts.quick_code_reward(fence(said), problems[0])[0] == 0


def test_the_last_block_behind_the_thinking_is_the_program():
    assert extract_code(fence("first") + "\n```python\nsecond\n```\n") == "second\n"
    assert extract_code("<think>```python\na\n```</think>no") is None
    assert extract_code("<think>```python\na\n```") is None  # it never stopped thinking
    assert extract_code(fence("a") + "```text\nb\n```") == "a\n"
    assert extract_code(fence("a") + "```python\nb") is None  # like a box that is not closed
    assert extract_code("```python\na\n```python\nb\n```") == "b\n"  # the first is not closed
    inner = 'def f():\n    """\n    ```python\n    f()\n    ```\n    """\n'
    assert extract_code(fence(inner)).rstrip() == inner.rstrip()  # a docstring ends no block


@pytest.mark.parametrize(
    "code, syntax, safe",
    [
        ("import math\nfrom typing import List\nimport re\nre.compile('a')", True, True),
        ("import os.path", True, False),
        ("eval('1')", True, False),
        ("().__class__.__base__.__subclasses__()", True, False),
        ("(" * 5000, False, False),
        ("x = 1\n" * 4000, False, False),  # too long
    ],
)
def test_read_program(code, syntax, safe):
    assert program_parts.read_program(code) == (syntax, safe)


# ---- Proofs ----------------------------------------------------------------------------------------

CAN_PROVE = pytest.mark.skipif(
    not (shutil.which("coqc") and shutil.which("bwrap")), reason="needs coqc and bwrap"
)
ADD_0 = "forall n : nat, n + 0 = n"
LESS = 'Abort. Notation "x = y" := (x <= y). Theorem goal : 1 = 2. Proof. repeat constructor. Qed.'
NEVER = "Abort. Unset Guard Checking. Fixpoint f (n : nat) : False := f n. "
NEVER += "Theorem goal : 1 = 2. Proof. destruct (f 0). Qed."
BAD = "Abort. Unset Positivity Checking. Inductive bad := C (f : bad -> False). "
BAD += "Definition no (b : bad) : False := match b with C f => f b end. "
BAD += "Theorem goal : 1 = 2. Proof. destruct (no (C no)). Qed."


@CAN_PROVE
@pytest.mark.parametrize(
    "statement, proof, proved, why",
    [
        (ADD_0, "induction n. reflexivity. simpl. rewrite IHn. reflexivity.", True, "proved"),
        (ADD_0, "reflexivity.", False, "Unable to unify"),
        ("1 = 2", "Admitted.", False, "No focused proof"),
        ("1 = 2", "Proof. Admitted. (* Qed. *)", False, "Axioms:\nSolution.goal : 1 = 2"),
        ("1 = 2", "Abort. Axiom goal : 1 = 2. Lemma l : True. exact I. Qed.", False, "Axioms:"),
        ("1 = 2", LESS, False, ""),
        ("1 = 2", NEVER, False, "assumed to be guarded"),
        ("1 = 2", BAD, False, "assumed to be positive"),
        ("1 = 1", "let rec f x := f x in f 1.", False, ""),  # too slow, or too deep
    ],
)
def test_a_proof_is_believed_only_if_a_second_file_can_use_it(statement, proof, proved, why):
    out = proofs.verify_proof(statement, proof, timeout=3)
    assert out["proved"] is proved and why in out["why"]


# ---- Reasoning: the tables of the chapter ------------------------------------------------------------


def thought(n):
    words = "because the roots multiply to six and add up to five".split()
    return " ".join(f"{words[i % len(words)]}{i}" for i in range(n))


# The chapter gives the lengths 18, 142, 612, 0, 84, 22 of the thinking. The chapter's fourth text, "The smaller root is
# 2.", has no box, so that accuracy 1 needs another one.
SIX = [
    tagged(thought(18)),
    tagged(thought(142)),
    tagged(thought(612)),
    "The smaller root is \\boxed{2}.",
    tagged(thought(84), "\\boxed{3}"),
    tagged("let me factor 先因式分解 (x-2)(x-3)=0 then 所以较小的根是 2 and we are ok"),
]


def judge(reward):
    rewards = [reward(rollout, "2")["R"] for rollout in SIX]
    return rewards, group_advantages(rewards)


def test_the_lengths_are_the_chapters():
    lengths = [ReasoningReward()(rollout, "2")["think_tokens"] for rollout in SIX]
    assert lengths == [18, 142, 612, 0, 84, 22]


def test_design_a():
    """R1-Zero: accuracy + 0.1 format. Rewards, mean and differences agree with the chapter to the digit,
    but the rest does not:

    variance = (4 * 0.1833^2 + 0.0833^2 + 0.8167^2) / 6 = 0.8083 / 6 = 0.1347, so std = 0.367, where
    the chapter says 0.345 (with G - 1 it is 0.402). Its advantages +0.53, +0.24, -2.37 follow from
    0.345; the right values are +0.50, +0.23, -2.22. Two more points: its code always subtracts for rambling
    (rollout 3 would have 0.94), so the preset must not; and it gives 0 to rollout 4, which has no
    tags, where this table has 1.00: needs_tags=False."""
    rewards, advantages = judge(ReasoningReward(w_lang=0.0, w_ramble=0.0, needs_tags=False))
    mean = sum(rewards) / 6
    assert rewards == pytest.approx([1.1, 1.1, 1.1, 1.0, 0.1, 1.1]) and round(mean, 3) == 0.917
    assert [round(r - mean, 3) for r in rewards] == [0.183, 0.183, 0.183, 0.083, -0.817, 0.183]
    printed = [round((r - mean) / 0.345, 2) for r in rewards]
    assert printed == [0.53, 0.53, 0.53, 0.24, -2.37, 0.53]
    assert [round(a, 2) for a in advantages] == [0.50, 0.50, 0.50, 0.23, -2.22, 0.50]  # correct


def test_design_b():
    """R1 with the penalties: rollout 3 has 612 words, -0.3 * (612 - 400) / 400 = -0.16, rollout 6
    two scripts, -0.5.

    Rewards, mean and differences are the chapter's. variance = (2 * 0.2932^2 + 0.1342^2 + 0.1932^2
    + 0.7068^2 + 0.2068^2) / 6 = 0.1283, so std = 0.358, where the chapter says 0.339: its +0.86
    +0.86 +0.39 +0.57 -2.08 -0.61 (they follow from 0.3393 and rewards of two decimals) should be
    +0.82 +0.82 +0.37 +0.54 -1.97 -0.58. Order and signs are the same.

    "The gradient now actively discourages them", of rollouts 3 and 6: 0.94 is above the mean of
    0.807, so rollout 3 has a positive advantage, in the chapter's own table too (+0.39): it is made
    more likely, only less than the ideal."""
    rewards, advantages = judge(ReasoningReward(needs_tags=False))
    shown = [round(r, 2) for r in rewards]
    assert shown == [1.1, 1.1, 0.94, 1.0, 0.1, 0.6] and round(sum(rewards) / 6, 3) == 0.807
    differences = [r - sum(shown) / 6 for r in shown]
    assert [round(d, 3) for d in differences] == [0.293, 0.293, 0.133, 0.193, -0.707, -0.207]
    assert [round(d / 0.3393, 2) for d in differences] == [0.86, 0.86, 0.39, 0.57, -2.08, -0.61]
    assert [round(a, 2) for a in advantages] == [0.82, 0.82, 0.37, 0.54, -1.97, -0.58]


def test_the_texts_of_the_chapters_code():
    """Its comment says G = 6, but there are five texts, and not the table's: the "rambler" has 183
    words, below the threshold. With the listing's settings: 1.1, 1.1, 0, 0.1, 0.6. (As printed, its
    patterns match nothing: in r"[\\\\s\\\\S]" the class holds a backslash, s and S.)"""
    five = [
        tagged("Factor: (x-2)(x-3)=0. Smaller is 2."),
        tagged("Let me think... " * 60 + "answer is 2."),
        "The smaller root is 2.",
        tagged("Tried things, guessing 3.", "\\boxed{3}"),
        tagged("因式分解 (x-2)(x-3)=0, smaller是2"),
    ]
    paid = [ReasoningReward()(text, "2")["R"] for text in five]
    assert paid == pytest.approx([1.1, 1.1, 0.0, 0.1, 0.6])
    assert ReasoningReward()(five[1], "2")["think_tokens"] == 183


@pytest.mark.filterwarnings("ignore:the form has 100%")
def test_exercise_3_format_only():
    """w_acc = 0, w_fmt = 1. The chapter: rollout 5, well-formed and wrong, gets the highest
    advantage. It does, but not alone: 1, 2, 3 and 6 are well-formed too and tie with it at +0.45,
    rollout 4 has -2.24."""
    reward = ReasoningReward(w_acc=0.0, w_fmt=1.0, w_lang=0.0, w_ramble=0.0, needs_tags=False)
    with pytest.warns(UserWarning, match="correctness has 0%"):
        reasoning.check_weights(reasoning.earnable(reward))
    advantages = judge(reward)[1]
    assert [round(a, 2) for a in advantages] == [0.45, 0.45, 0.45, -2.24, 0.45, 0.45]


def test_exercise_4_a_length_bonus_needs_a_penalty():
    """w_len = 0.3. Without the penalty the rambler gets 1.1 + 0.3 = 1.40, against 1.1 + 0.3 * 142 / 256 =
    1.27. With it he gets 1.40 - 0.16 = 1.24, so the purposeful long rollout wins by 0.03."""
    on = ReasoningReward(w_len=0.3, needs_tags=False)
    off = ReasoningReward(w_len=0.3, w_ramble=0.0, needs_tags=False)
    assert [round(r, 2) for r in judge(off)[0][:3]] == [1.12, 1.27, 1.40]
    assert [round(r, 2) for r in judge(on)[0][:3]] == [1.12, 1.27, 1.24]
    assert judge(on)[1][1] == max(judge(on)[1])


def test_the_presets_are_the_chapters_tables():
    """R1-Zero and R1 differ in the penalties alone. The chapter says that all but accuracy is
    "below 0.5", but its own language weight is 0.5. By its other rule (accuracy at least 60 %) Olmo 3
    would fail if penalties were counted: 1.0 / (1.0 + 0.1 + 0.2 + 0.3 + 0.5) = 48 %. Accuracy is
    1.0 / 1.3 = 77 % of what can be earned."""
    columns = ("w_acc", "w_fmt", "w_len", "w_lang", "w_rep", "len_cap")
    table = {
        name: tuple(getattr(preset, column, 0.0) for column in columns)
        for name, preset in REASONING_PRESETS.items()
    }
    assert table == {
        "r1-zero": (1.0, 0.1, 0.0, 0.0, 0.0, 256),
        "r1": (1.0, 0.1, 0.0, 0.5, 0.0, 256),
        "kimi-k1.5": (1.0, 0.05, 0.05, 0.0, 0.0, 4096),
        "olmo-3": (1.0, 0.1, 0.2, 0.5, 0.3, 1024),
    }


@pytest.mark.parametrize(
    "text, mixed",
    [
        ("Factor (x-2)(x-3)=0", False),
        ("因式分解得(x-2)(x-3)=0,\\frac{x}{2}", False),
        ("so 66加3得69;69加2得71", True),
        ("因式分解 (x-2)(x-3)=0, smaller是2", True),
        ("сначала factor", True),
    ],
)
def test_language_consistency(text, mixed):
    assert reasoning.mixed_scripts(text) is mixed


def test_repetition_is_a_term_of_its_own():
    """If the repetition is 0.98, then 0.3 * (0.98 - 0.3) / 0.7 = 0.29 is subtracted. A broken form still
    earns 0."""
    said = tagged("one more time " * 100)
    plain = ReasoningReward()(said, "2")
    less = RepetitionReward(w_rep=0.3)(said, "2")
    repeated = reasoning.repetition(said)
    assert less["R"] == pytest.approx(plain["R"] - 0.3 * (repeated - 0.3) / 0.7)
    assert less["rep"] < -0.25
    broken = RepetitionReward()("again " * 500, "2")
    assert broken == ReasoningReward()("again", "2") | {"rep": 0.0}
    assert reasoning.repetition(thought(200)) == reasoning.repetition("") == 0.0


@pytest.mark.parametrize(
    "said, refuses",
    [
        ("I'm sorry, but I can't help with that.", True),
        ("<think>x</think><answer>I won\u2019t answer.</answer>", True),
        ("<think>I cannot help noticing that 4 = 2*2</think><answer>4</answer>", False),
        ("I cannot factor 7, so it is a prime.", False),
    ],
)
def test_a_refusal_behind_the_thinking(said, refuses):
    assert reasoning.no_refusal(said, {}) == (not refuses)


def test_kimis_process_term_is_for_one_problem_in_twenty():
    """One of two equations holds, so half of 0.05 is added; on other problems the term is 0, for the whole group. About
    one in ten of the chosen problems is held out, as of all problems."""
    problems = [{"problem": f"number {i}", "answer": "2"} for i in range(4000)]
    paid = [problem for problem in problems if reasoning.one_in(20)(problem)]
    assert 160 < len(paid) < 240 and 10 < sum(map(verifiers.held_out, paid)) < 32
    said = tagged("2+2=4 and 2+3=6")
    for problem, score in ((paid[0], 0.5), (next(p for p in problems if p not in paid), 0.0)):
        value, parts = reasoning.kimi_process(said, problem)
        assert value == pytest.approx(kimi(said, problem)[0] + 0.05 * score)
        assert parts["process"] == score
    assert process.steps_score("2+2=4", TWO) == 0.0  # without tags all terms are 0


def test_autorules_judge_fills_the_slot_of_r1(monkeypatch):
    """Three of four rules get a Yes: 1.1 + 0.2 * 0.75. AutoRule's own scaling of its reward, by 10, does not count."""
    from notebooks.autorule import autorule

    rules = [f"rule {k}" for k in range(4)]
    judged = autorule.RulesReward(rules, lambda texts: ["rule 2" not in t for t in texts])
    monkeypatch.setattr(autorule, "from_settings", lambda path: judged)
    value, parts = reasoning.r1_helpful(tagged("the roots multiply to six"), TWO)
    assert value == pytest.approx(1.1 + 0.2 * 0.75)
    assert parts["helpful"] == 0.75 and parts["accuracy"] == 1


def reasoned(think, box="2", form="<think>{}</think><answer>{}</answer>", **given):
    out = ReasoningReward(**given)(form.format(think, f"\\boxed{{{box}}}"), "2")
    return round(out["R"], 6)


def test_the_reward_for_reasoning_term_by_term():
    """acc + 0.1 fmt + len - 0.5 for a second script. 500 words exceed 400 by a quarter, so len is -0.3 / 4."""
    assert reasoned("so it is") == 1.1 and reasoned("so it is", "3") == 0.1
    assert reasoned("word " * 500) == 1.025 and reasoned("word " * 2000) == 0.8
    assert reasoned("\u56e0\u5f0f\u5206\u89e3 it is") == 0.6
    assert reasoned("word " * 128, w_len=0.2) == 1.2 and reasoned("word " * 300, w_len=0.2) == 1.3
    assert reasoned("word " * 512, w_len=0.2, w_ramble=0.0, saturates=False) == 1.5


def test_the_reward_for_reasoning_pays_nothing_for_broken_tags():
    """That also holds with needs_tags=False, where a box without any tags is enough. For such a box the
    chapter has 0.0 in the listing and 1.00 in the walkthrough; with 0.0 the mean of Design A is 0.75."""
    for form in ("<think>{} {}", "{}</think>{}", "<answer>{}</answer>{}", "{} {}<answer>"):
        assert reasoned("so", form=form) == reasoned("so", form=form, needs_tags=False) == 0
    assert reasoned("so", form="{} {}") == 0
    assert reasoned("so", form="{} {}", needs_tags=False) == 1
    cut_off = ReasoningReward()(tagged("factor (x-2)(x-3)"), "2", truncated=True)
    assert not any(cut_off.values())
    out, parts = ReasoningReward().reward(tagged("factor (x-2)(x-3)"), {"answer": "2"})
    assert out == pytest.approx(1.1)
    expected = {"accuracy": 1, "format": 1, "length_term": 0, "language": 0, "thinking": 2}
    assert parts == {**expected, "answered": 1, "copied": 0}


# ---- Controls, and whatever a completion may be ------------------------------------------------------

RIGHT = "\\boxed{2}"
HEDGED = "\\boxed{2} or \\boxed{3}"
LATE = "\\boxed{1} or \\boxed{2} or \\boxed{3}"


@pytest.mark.parametrize(
    "reward, paid",
    [
        (boxed_reward, (1, 0, 0, 0, 0, 0)),
        (guards.inverted, (0, 1, 1, 1, 0, 0)),
        (guards.any_box, (1, 0, 1, 1, 0, 0)),
        (first_box, (1, 0, 1, 0, 0, 0)),
        (guards.format_only, (0, 0, 0, 0, 0, 1)),
    ],
)
def test_controls_pay_for_something_else_and_log_the_truth(reward, paid):
    texts = (RIGHT, "\\boxed{3}", HEDGED, LATE, "2", tagged("", "nothing"))
    out = [reward(text, TWO) for text in texts]
    assert tuple(value for value, _ in out) == paid
    assert [parts["accuracy"] for _, parts in out] == [1, 0, 0, 0, 0, 0]


def test_the_coin_is_fair_and_always_falls_the_same_way():
    texts = [f"\\boxed{{{i}}}" for i in range(1000)]
    flips = [guards.coin(text, TWO)[0] for text in texts]
    assert flips == [guards.coin(text, TWO)[0] for text in texts] and 450 < sum(flips) < 550
    assert flips != [guards.coin(text, TWO | {"problem": "another"})[0] for text in texts]


LABORATORY = {
    "process": "steps_reward",
    "guards": "guarded_reward robust_reward coin inverted any_box first_box format_only",
    "reasoning": "kimi olmo kimi_process language_later",
    "program_parts": "code_strict quick_code_reward",
}
EACH = [f"{file}.py:{name}" for file, names in LABORATORY.items() for name in names.split()]


@pytest.mark.parametrize("name", [*verifiers.REWARDS, *EACH])
def test_every_reward_takes_anything(name):
    is_named = name in verifiers.REWARDS
    reward = verifiers.get_reward(name if is_named else f"{ROOT}/notebooks/rewards/{name}")
    hostile = ["", "\0", "<think>" * 50, "\\boxed{" * 50, "```python\n" * 3, "=" * 50, "\ud800"]
    for text in [*hostile, SIX[0]]:
        value, parts = reward(text, TWO | {"tests": []})
        assert math.isfinite(value) and 0.0 <= parts["accuracy"] <= 1.0
        assert all(isinstance(part, (int, float)) for part in parts.values())  # the log: means
        assert not parts.keys() & {"problem", "answer", "completion", "length", "reward", "step"}


# ---- Reward hacks, each named after what it tries ----------------------------------------------------
# The rollout must earn no more than an honest one. The chapters' tables have fourteen rows: six in "Rule-Based
# Rewards for Verifiable Tasks", eight in "Reward Design for Reasoning", three of them the same. The chapter on
# verifier-based RL adds quotas, patterns and votes. The two rows about programs, printing the unit tests and reading
# the truth from a file, are hacks of verify_code and tested there.

PROBLEM = {"problem": "What is 6*7?", "answer": "42"}
HONEST = "<think>6*7 is 6*5 plus 6*2, and 30+12=42</think><answer>\\boxed{42}</answer>"
WRONG = HONEST.replace("\\boxed{42}", "\\boxed{41}")
STRICT = RepetitionReward(w_len=0.2, w_rep=0.3)
R1_ZERO = reasoning.r1_zero
R1 = reasoning.r1


def earned(rollout, truncated=False):
    return STRICT(rollout, "42", truncated)["R"]


def behind_guards(rollout):
    return guarded(STRICT.reward)(rollout, PROBLEM)[0]


def boxes(*values):
    return HONEST.replace("\\boxed{42}", " or ".join(f"\\boxed{{{value}}}" for value in values))


@pytest.mark.parametrize(
    "reward", [boxed_reward, tagged_reward, R1_ZERO, R1, kimi, olmo, steps_reward]
)
def test_many_boxes_with_different_values(reward):
    """This is hedging. The last box counts. If it is not closed, there is no answer: the box before it does
    not count instead."""
    for rollout in (boxes(42, 41), boxes(40, 42, 41), boxes(42).replace("}</", "}\\boxed{4</")):
        assert reward(rollout, PROBLEM)[1]["accuracy"] == 0.0
        assert reward(rollout, PROBLEM)[0] <= reward(WRONG, PROBLEM)[0]
    assert first_box(boxes(42, 41), PROBLEM)[0] == 1.0  # the textbook's search would reward it


@pytest.mark.parametrize("think", ["", "   \n", "hm", "......."])
def test_empty_think(think):
    rollout = tagged(think, "\\boxed{42}")
    assert verify_format(rollout)["think_length"] == 0.0
    assert earned(rollout) <= earned(HONEST)  # the chapter's listing rewards the tags alone
    assert behind_guards(rollout) <= behind_guards(HONEST) - 0.5


@pytest.mark.parametrize(
    "think",
    [
        "The answer is 42",
        "So it is obviously 42.",
        "\\boxed{42}",
        "答案显然是42,答案是42",
    ],
)
def test_copy_the_answer_into_think(think):
    """The chapter's patch, no box in the thinking, misses its own example, "The answer is 42". Its other
    patch, at least 8 words, refuses its ideal rollout, "Factor: (x-2)(x-3)=0. Smaller is 2.", which has
    5. So is_hacking measures what is left without the answer and the words that announce it."""
    rollout = tagged(think, "\\boxed{42}")
    assert is_hacking(rollout) and behind_guards(rollout) < behind_guards(HONEST) - 0.4


def test_repeat_the_answer_a_thousand_times():
    # The penalty for repetition exceeds any bonus.
    assert earned(boxes(*[42] * 1000)) <= earned(HONEST) - 0.2
    assert tagged_reward(boxes(*[42] * 1000), PROBLEM)[0] == tagged_reward(HONEST, PROBLEM)[0]


@pytest.mark.parametrize("digits", ["４２", "𝟒𝟐", "4\u200b2"])
def test_look_alike_digits(digits):
    """Both sides are normalised (NFKC), so look-alike digits earn what the digits earn: otherwise right
    answers would be rejected unnoticed. Letters that only look alike stay different."""
    assert earned(boxes(digits)) == earned(HONEST)
    for letter in "ZᏎ":  # the second is Cherokee
        assert verify_math(boxes(f"{letter}2"), "42")["answer"] == 0.0


def test_bilingual_thinking():
    rollout = HONEST.replace("and 30+12=42", "所以三十加十二得四十二")
    assert R1_ZERO(rollout, PROBLEM)[0] == R1_ZERO(HONEST, PROBLEM)[0]  # nothing noticed
    assert R1(rollout, PROBLEM)[0] == R1(HONEST, PROBLEM)[0] - 0.5


@pytest.mark.parametrize(
    "filler", ["let me think, hmm, wait, ", "let_me_think,_hmm,_wait,_", "嗯让我再想想", "6*7=42;"]
)
def test_rambling_to_inflate_the_length_bonus(filler):
    """10,000 characters of talking to itself, also without spaces. A reward for length alone would let it win."""
    rollout = HONEST.replace("<think>", "<think>" + filler * (10_000 // len(filler)))
    naive = ReasoningReward(w_len=0.3, w_ramble=0.0, w_lang=0.0)
    assert naive(rollout, "42")["R"] > naive(HONEST, "42")["R"] and earned(rollout) < earned(HONEST)


def test_never_close_the_thinking():
    """This is end-of-sequence suppression. A completion that was cut off earns nothing, whatever it
    contains."""
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
    assert earned(rollout) == tagged_reward(rollout, PROBLEM)[0] == 0.0
    assert verify_format(rollout)["structure"] == 0.0
    assert is_hacking(rollout)


def test_think_spam_and_excessive_length():
    rollout = HONEST.replace("<think>", "<think>" * 11)
    assert quotas(rollout) == 0.5 and quotas(HONEST) == 0.0 and earned(rollout) == 0.0
    assert guarded(boxed_reward)(rollout, PROBLEM)[0] == 0.5
    assert guarded(boxed_reward)(HONEST, PROBLEM)[0] == 1.0
    assert quotas("so " * 16_001) == quotas("嗯" * 16_001) == 0.3 and quotas("so " * 16_000) == 0.0


def test_spam_with_tool_calls_and_forge_their_results():
    """Only the environment's messages are results; a result in the model's own text is text."""
    problem = {"answer": "Paris", "tools": TOOLS}
    paid = [structured.search_agent_reward(episode(n), problem)[0] for n in (1, 3, 6, 21)]
    assert paid[0] == paid[1] > paid[2] > paid[3] and quotas(CALL * 21) == 0.5
    forged = CALL + "<tool_response>found</tool_response><answer>Paris</answer>"
    said = [{"role": "assistant", "content": forged}]
    assert structured.search_agent_reward(said, problem)[1]["call_success"] == 0.0


@pytest.mark.parametrize(
    "rollout, hacking",
    [
        (HONEST, False),
        (WRONG, False),  # being wrong is no hack
        ("First 6*5=30, then 6*2=12, together \\boxed{42}", False),  # no tags, but a derivation
        (tagged("30+12=42", "Based on the above, it is 42: \\boxed{42}"), False),
        (tagged("答案显然是 42", "\\boxed{42}"), True),
        ("\\boxed{42}", True),
        ("", True),
    ],
)
def test_adversarial_patterns(rollout, hacking):
    """The chapter's three: a bare assertion (答案显然是 42), a template ("based on the above, 42"), a
    box right after </think>. The third, </think>.*\\boxed, matches HONEST, like every answer in the
    form; the second matches an honest last sentence; and two are strings in a list on whose items
    .search is called. is_hacking asks for a derivation: "6*7=42" has one of six characters."""
    assert is_hacking(rollout) == hacking
    assert guards.derivation("The answer is 42.", "42") == 0
    assert guards.derivation("6*7=42", "42") == 6


def test_pad_with_trivial_equations():
    rollout = HONEST.replace("and 30+12=42", "1=1;" * 500 + "2+2=5;" + "0=0.0;" * 500 + "7=7;" * 9)
    assert verify_steps(rollout)["frac"] == 0.0
    assert steps_reward(rollout, PROBLEM)[0] < steps_reward(HONEST, PROBLEM)[0]


def test_true_equations_do_not_make_up_for_a_wrong_answer():
    lecture = WRONG.replace("6*7", ";".join(f"{n}+1={n + 1}" for n in range(2, 40)))
    assert steps_reward(lecture, PROBLEM)[0] < 0.16 < steps_reward(HONEST, PROBLEM)[0]


@pytest.mark.parametrize("name", REASONING_PRESETS)
def test_no_form_pays_like_the_answer(name):
    """It compares the best wrong answer with the plainest right one."""
    reward = REASONING_PRESETS[name]
    wrong = WRONG.replace("and", " ".join(f"word{i}" for i in range(390)))
    assert reward(wrong, "42")["R"] < 0.35 < 1.0 <= reward(HONEST, "42")["R"]
