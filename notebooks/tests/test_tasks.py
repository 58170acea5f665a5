"""notebooks/tasks/: several families of verifiers, other wordings, and the sums of notebook 8."""

import base64
import json
import pickle
import zlib
from collections import Counter

import pytest
import torch

import verifiers
from conftest import ROOT
from notebooks.tasks import families, livecodebench, smollm2
from notebooks.tasks.families import PROBLEMS, mixed_reward
from verifiers import Task, arithmetic, boxed_reward, check_task

# ---- Families ----

RIGHT = {
    "math": r"58*3=174, 174/4=43.5, so \boxed{\frac{87}{2}}",
    "choice": r"51=3*17, 57=3*19, 63=7*9, so \boxed{C}",
    "json": '{"city": "Lyon", "people": 520774}',
    "code": "```python\ndef is_leap(y):\n    return y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)\n```",
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem["family"])
def test_a_right_completion_earns_at_least_1_and_that_of_another_family_nothing(problem):
    value, parts = mixed_reward(RIGHT[problem["family"]], problem)
    assert value >= 1 and parts["accuracy"] == parts[f"{problem['family']}_right"] == 1
    for family, completion in RIGHT.items():
        if family != problem["family"]:
            assert mixed_reward(completion, problem)[1]["accuracy"] == 0


@pytest.mark.parametrize(
    "said, right",
    [
        ("C", 1), ("c", 1), ("(C)", 1), ("C.", 1), ("C. 59", 1), (r"\text{C}", 1), ("59", 1),
        ("B", 0), ("51", 0), ("58", 0), ("C or B", 0), ("C. 51", 0), ("AC", 0), ("E", 0), ("", 0), ("cat", 0),
    ],
)  # fmt: skip
def test_a_choice_is_named_by_its_letter_or_its_text(said, right):
    """A letter followed by another choice's text is two guesses, and so is "C or B"."""
    assert families.choice_reward(f"so \\boxed{{{said}}}", PROBLEMS[1])[0] == right


def test_two_choices_of_the_same_text_are_no_choice_and_json_of_the_wrong_form_earns_a_tenth():
    problem = {"choices": ["yes", "no", "Yes"], "answer": "A"}
    assert families.choice_reward(r"\boxed{yes}", problem)[0] == 0
    assert mixed_reward('<think>easy</think>{"city": "Lyon"}', PROBLEMS[2])[0] == pytest.approx(0.1)


def test_a_family_that_nobody_judges_is_named():
    reward = families.by_field("family", {"math": families.choice_reward})
    with pytest.raises(ValueError, match="family 'music', and rewards are for: math"):
        reward("la", {"family": "music"})


def polite(completion, problem):
    """Stands in for a reward model: it gives any text a number, and calls none right."""
    assert problem["problem"] == "hello"  # without the words that ask for it
    return 0.7 * ("please" in completion), {"accuracy": 0.0}


def test_a_mixture_of_what_rules_judge_and_what_a_model_judges():
    """70 % are sums, and 30 % are one problem, repeated. Each has its own prompt and reward."""
    talk = Task("talk", [{"problem": "hello", "answer": "-"}], [], "Say: {problem}", polite)
    task = families.mixture({"sums": (0.7, arithmetic()), "talk": (0.3, talk)}, 100)
    check_task(task)
    of = {name: [p for p in task.train if p["family"] == name] for name in ("sums", "talk")}
    assert (len(of["sums"]), len(of["talk"])) == (70, 30)
    assert {p["family"] for p in task.train[:20]} == {"sums", "talk"}  # not one after the other
    assert task.prompt(of["talk"][0]) == "Say: hello"
    assert len(task.test) == len(arithmetic().test)
    one = of["sums"][0]
    right = f"<think></think><answer>\\boxed{{{one['answer']}}}</answer>"
    assert task.reward(right, one)[0] == arithmetic().reward(right, one)[0] > 0
    assert task.reward("please", of["talk"][0]) == (0.7, {"accuracy": 0.0, "talk_right": 0.0})


# ---- Wordings --------------------------------------------------------------------------------------

NUMBERS = [{"problem": f"number {i}", "answer": str(i)} for i in range(4)]
ADD = Task("add", NUMBERS[:3], NUMBERS[3:], "{problem}?", boxed_reward, stops=("\n",))


def test_a_problem_comes_in_other_words_each_time_and_the_test_in_words_never_trained_on():
    wordings = ("Say {problem}", "Box {} {problem}", "{problem}:")
    task = families.in_wordings(ADD, wordings, "What is {problem}?")
    problem = task.train[0]
    asked = Counter(task.prompt({**problem, "step": step}) for step in range(300))
    assert {*asked} == {"Say number 0", "Box {} number 0", "number 0:"} and min(asked.values()) > 70
    # The preflight sees a training prompt.
    assert task.prompt(problem) == task.prompt({**problem, "step": 0})
    for held_out in (task.test[0], {**task.test[0], "step": 7}):
        assert task.prompt(held_out) == "What is number 3?"
    assert task.stops == ("\n",) and task.reward is boxed_reward


# ---- SmolLM2's sums --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sums", "larger", "three_terms", "differences", "words"])
def test_every_answer_earns_the_reward_and_no_held_out_problem_is_trained_on(name):
    task = verifiers.get_task(f"{ROOT}/notebooks/tasks/smollm2.py:{name}")
    trained = {problem["problem"] for problem in task.train}
    assert len(task.test) == 72 and not trained & {problem["problem"] for problem in task.test}
    for problem in task.train + task.test:
        assert task.reward(f" \\boxed{{{problem['answer']}}}\n", problem)[0] == 1
        assert task.reward(f" \\boxed{{{int(problem['answer']) + 1}}}\n", problem)[0] == 0


def test_no_held_out_sum_has_its_twin_in_training_or_stands_in_a_prompt():
    """If 13 + 18 is held out, neither it nor 18 + 13 is trained on. (Split by sums, 57 of 72 have a twin in training.)"""
    known = {frozenset(pair) for pair in [*smollm2.TRAIN, *smollm2.SHOWN]}
    held_out = {frozenset(pair) for pair in smollm2.TEST}
    assert not known & held_out and len(held_out) == 72
    assert {(b, a) for a, b in smollm2.TRAIN} == {*smollm2.TRAIN} and len(smollm2.PAIRS) == 293


def test_perplexity_of_a_model_that_knows_nothing(model, tokenizer):
    """If all logits are equal, each of the V tokens has probability 1 / V, and the perplexity is V."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert smollm2.perplexity(model, tokenizer, "25+7-4=") == pytest.approx(model.config.num_tokens)


def test_a_row_of_a_model_has_a_cell_for_each_column(any_text, monkeypatch):
    """Each task has two problems. Random weights get nothing right, so the test calls another share of
    each task right."""
    shares = {"sums": 32 / 64, "words": 1 / 8, "larger": 2 / 8, "differences": 3 / 8}
    shares["three-terms"] = 4 / 8
    sample_base = smollm2.sample_base

    def few(loaded, num_samples):
        *others, task, problems = loaded
        logps, right = sample_base((*others, task, problems[:2]), num_samples)
        right[:, : int(shares[task.name] * num_samples)] = 1
        return logps, right

    monkeypatch.setattr(smollm2, "sample_base", few)
    row = dict(zip(smollm2.COLUMNS, smollm2.row_of(any_text), strict=True))
    pass_at = {"pass@1": "0.500", "pass@8": "0.998", "pass@64": "1.000"}
    assert row.items() >= {"model": "any_text", **pass_at, "facts": "0 of 5"}.items()
    assert all(0 <= float(row[power]) <= 1 for power in ("p^4", "p^50"))
    others = [row[name][:6] for name in ("words", "larger", "differences", "three terms")]
    assert others == ["0.125 ", "0.250 ", "0.375 ", "0.500 "]
    assert 50 < float(row["perplexity"]) < 500  # of 102 tokens


# ---- LiveCodeBench ----

STARTER = "class Solution:\n    def halves(self, xs: List[int]) -> List[float]:\n        "
ANSWERS = {  # -> the reward
    "return [x / 2 for x in xs]": 1,
    "return tuple(x / 2 + 1e-9 for x in xs)": 1,
    "return [x / 2 + 1e-3 for x in xs]": 0,
    "return [0.5]": 1 / 2,
    "return type('L', (list,), {'__eq__': lambda s, o: True, '__len__': lambda s: len(xs)})()": 0,
}


def lcb_row(cases, **columns):
    private = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases[1:])))).decode()
    row = {"question_content": "Halve.", "question_id": "7", "starter_code": "", "metadata": "{}"}
    row |= {"public_test_cases": json.dumps(cases[:1]), "private_test_cases": private}
    return row | columns


@pytest.mark.parametrize("body", ANSWERS)
def test_livecodebench_takes_a_tuple_for_a_list_and_a_float_that_is_close(body):
    case = {"testtype": "functional"}
    cases = [
        case | {"input": "[1]", "output": "[0.5]"},
        case | {"input": "[2, 3]", "output": "[1.0, 1.5]"},
    ]
    row = lcb_row(cases, starter_code=STARTER, metadata='{"func_name": "halves"}')
    program = f"```python\n{STARTER}{body}\n```"
    _, parts = verifiers.code_reward(program, livecodebench.as_problem(row))
    assert parts["tests"] == ANSWERS[body]


def test_livecodebench_has_programs_that_print_and_a_pickle_is_not_run():
    row = lcb_row([{"testtype": "stdin", "input": "1 3", "output": "0.3333333333"}])
    problem = livecodebench.as_problem(row)
    program = "```python\na, b = map(int, input().split())\nprint(f'{a / b:.%df}')\n```"
    rewards = [verifiers.code_reward(program % digits, problem)[0] for digits in (7, 3)]
    assert rewards == [1.0, 0.0]
    payload = base64.b64encode(zlib.compress(b"cos\nsystem\n(S'exit 7'\ntR.")).decode()
    with pytest.raises(ValueError):
        livecodebench.read_cases(payload)
