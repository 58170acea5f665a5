"""AutoRule: it reads preferences, asks models, extracts and judges rules. Each formula is worked by hand."""

import json
import math
import random
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import train
from appendix.plumbing import DataError
from model import load
from notebooks.autorule import autorule
from notebooks.autorule import autorule_world as world
from notebooks.claims import measures

# ---- 1. Preferences --------------------------------------------------------------------------------------------------


def write_lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_preferences_as_texts_and_as_ultrafeedback_has_them(tmp_path):
    """UltraFeedback-binarized repeats the prompt in chosen and rejected. A longer conversation is refused by its line."""
    texts = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    asks, two, three = ({"role": "", "content": text} for text in texts.values())
    messages = texts | {"chosen": [asks, two], "rejected": [asks, three], "score_chosen": 8}
    path = write_lines(tmp_path / "pairs.jsonl", texts, messages)
    assert autorule.read_preferences(path) == [texts, texts | {"score_chosen": 8.0}]
    write_lines(path, texts, messages | {"chosen": [asks, two, asks, three]})
    with pytest.raises(DataError, match="line 2: .*more than a question and an answer"):
        autorule.read_preferences(path)


def test_the_filter_by_hand():
    """Appendix B.6, with 4 words for its 512 tokens: 3 words stay, 4 are dropped, and so are equal scores and the word
    "Confidence". A pair without scores stays."""
    stays = {"chosen": "a b c", "rejected": "d"}
    scored = stays | {"score_chosen": 6.0, "score_rejected": 5.0}
    changes = [{"chosen": "a b c d"}, {"rejected": "my Confidence"}, {"score_rejected": 6.0}]
    pairs = [stays, scored, *(scored | change for change in changes)]
    found = autorule.filter_preferences(pairs, lambda text: len(text.split()), max_tokens=4)
    assert found == [stays, scored]


# ---- 2. A model to ask -----------------------------------------------------------------------------------------------


def test_split_reasoning():
    said = {"<think>why</think> so ": ("why", "so"), "so": ("", "so"), "<think>on": ("on", "")}
    for text, (reasoning, after) in said.items():
        assert autorule.split_reasoning(text) == {"reasoning": reasoning, "text": after}


def test_a_local_model_answers_the_same_whatever_else_is_asked(any_text):
    local = autorule.Local(any_text, max_new_tokens=8)
    (one,) = local(["why?"], seed=1)
    assert local(["x", "why?", "yy"], seed=1)[1] == one != local(["why?"], seed=2)[0]
    assert local(["x" * 2041]) == [None]  # with 8 new tokens, one more than it can read


# ---- 3. Reason, extract, merge ---------------------------------------------------------------------------------------


def say(prompt):
    """A teacher that thinks that short is good and says that clear is good. It merges by taking each rule once."""
    if prompt.startswith("Two assistants"):
        return "it is clear"
    if prompt.startswith("Below"):
        return '["Be short.", "Be  true."]' if "is short" in prompt else '["Be clear."]'
    lines = prompt.split("[Rules]")[1].strip().split("\n")
    return json.dumps([*dict.fromkeys(line[2:] for line in lines)])


def teacher(prompts, seed=0):
    return [{"reasoning": "it is short", "text": say(prompt)} for prompt in prompts]


def pairs_of(n):
    return [{"prompt": f"p{i}", "chosen": f"good{i}", "rejected": f"bad{i}"} for i in range(n)]


def test_rules_come_out_of_the_chain_of_thought_or_out_of_what_follows():
    found = autorule.extract_rules(pairs_of(5), teacher)
    assert found["rules"] == ["Be short.", "Be true."]
    assert found["counts"] == {"pairs": 5, "chains": 5, "extracted": 10, "unreadable": 0}
    assert autorule.extract_rules(pairs_of(5), teacher, source="text")["rules"] == ["Be clear."]


def test_answers_that_cannot_be_read_are_skipped():
    """The first prompt of each stage fails. Without a merged list the rules stay as they are, without duplicates."""
    found = autorule.extract_rules(pairs_of(5), lambda *asked: [None, *teacher(*asked)[1:]])
    assert found["counts"] == {"pairs": 5, "chains": 4, "extracted": 6, "unreadable": 1}
    assert found["rules"] == ["Be short.", "Be true."]


def test_the_chosen_answer_stands_first_or_second_by_a_seeded_coin():
    asked = Mock(side_effect=teacher)
    autorule.extract_rules(pairs_of(40), asked)
    prompts = asked.call_args_list[0].args[0]
    winners = [prompt.split("preferred answer ")[1][0] for prompt in prompts]
    assert 10 < winners.count("A") < 30
    for i, winner in enumerate(winners):  # the answer that is called preferred is the chosen one
        assert f"[Answer {winner}]\ngood{i}\n" in prompts[i] and f"bad{i}" in prompts[i]


def test_parse_rules():
    """It returns the first list that contains strings; of a hostile list it reads a bounded part in bounded time."""
    said = {
        'Here they are:\n```json\n["a", "b"]\n```': ["a", "b"],
        'See [1] and ["a  b\\nc", "a b c", 7, null, "", ["b"]]': ["a b c"],
        json.dumps(["x" * 301, *map(str, range(10_000))]): [*map(str, range(500))],
    }
    said |= {"[]": [], "none": None, '["a", "b': None, "[" * 10_000_000: None}
    start = time.process_time()
    assert [autorule.parse_rules(text) for text in said] == [*said.values()]
    assert time.process_time() - start < 2


# ---- 4. Judge --------------------------------------------------------------------------------------------------------

RULES = ["Be short.", "Be kind to everybody.", "Be.", "Be fair."]


@pytest.fixture
def small(any_text):
    """A model whose tokens are letters, with weights so large that no two texts get the same score."""
    model, tokenizer = load(any_text)
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return model, tokenizer


@torch.no_grad()
def test_the_verdict_compares_two_probabilities_after_reading_the_conversation_once(small):
    """It gives the same numbers as reading each question whole, but reads what K questions share only once."""
    model, tokenizer = small
    given = {"prompt": "1+1?", "completion": "2", "condition": autorule.CONDITIONS[True]}
    questions = [autorule.VERIFY.format(rule=rule, **given) for rule in RULES]
    rows = [tokenizer.encode(question) for question in questions]
    probs = [model(torch.tensor([row]))[0, -1].softmax(-1) for row in rows]
    apart = [(p[2] / (p[2] + p[3])).item() for p in probs]  # tokens 2 and 3 are Yes and No
    shapes = []
    model.register_forward_pre_hook(lambda model, inputs: shapes.append(tuple(inputs[0].shape)))
    together = autorule.yes_probabilities(model, tokenizer, questions)
    assert together == pytest.approx(apart, abs=1e-5) and len({round(p, 6) for p in together}) == 4
    assert shapes == [(1, len(rows[2]) - 1), (4, len(" kind to everybody."))]


def test_the_reward_by_hand():
    """Three of four rules hold: 10 * 0.75 - 7.5 = 0 and 5 * 0.75 - 3 = 0.75. A reward model adds 1.5, and the lift 10."""
    judge = Mock(return_value=[True, True, False, True])
    value, parts = autorule.RulesReward(RULES, judge)("2", {"problem": "1+1?", "answer": "2"})
    kept = {"rule_00": 1.0, "rule_01": 1.0, "rule_02": 0.0, "rule_03": 1.0}
    assert value == 10.0
    assert parts == {"r_rules": 0.0, "r_model": 0.0, "judge_failed": 0, **kept}
    learned = Mock(**{"score.return_value": 1.5})
    rate = autorule.RulesReward(RULES, judge, 5.0, -3.0, reward_model=learned)
    value, parts = rate("2", {"problem": "1+1?"})
    assert (value, parts["r_rules"], parts["r_model"]) == (12.25, 0.75, 1.5)
    assert parts["accuracy"] == 0.75  # if there is no right answer, it is the share of rules


@pytest.mark.parametrize(
    "said, failed, yes",
    [(RuntimeError, 4, 0), ([None, True, None, None], 3, 1), (["lies", 1, True, "Yes"], 0, 1)],
)
def test_a_judge_that_fails_or_says_nonsense_costs_rules_and_nothing_else(said, failed, yes):
    rate = autorule.RulesReward(RULES, Mock(side_effect=[said]))
    value, parts = rate("2", {"problem": "1+1?"})
    assert (parts["judge_failed"], value) == (failed, 10 * yes / 4 - 7.5 + 10)


def test_the_command_leaves_rules_that_train_py_pays_by(any_text, tmp_path, capsys, monkeypatch):
    """The teacher is a program, and the judge a model with random weights."""
    local = Mock(side_effect=teacher, **{"tokenizer.encode": str.split})
    monkeypatch.setattr(autorule, "Local", lambda name: local)
    out = tmp_path / "rules.json"
    path = write_lines(tmp_path / "pairs.jsonl", *pairs_of(4))
    autorule.main(f"{path} --teacher wise --judge {any_text} --num-pairs 3 --out {out}".split())
    assert capsys.readouterr().out.startswith("Be short.\nBe true.\n2 rules in")
    assert json.loads(out.read_text())["counts"]["pairs"] == 3
    monkeypatch.setenv("AUTORULE", str(out))
    flags = f"--model {world.TINY} --reward {autorule.__file__}:rules_reward --steps 1 --name run"
    flags += " --prompts-per-step 1 --num-samples 2 --max-new-tokens 16 --eval-problems 1"
    train.main([*flags.split(), "--runs", str(tmp_path)])
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"rule_01", "r_rules"} <= last.keys() and last["failed"] == 0


# ---- 5. The reward model ---------------------------------------------------------------------------------------------


def test_pairwise_loss_by_hand():
    """-log sigmoid(2 - 1) = log(1 + e^-1) = 0.3133; equal scores: log 2."""
    loss = autorule.pairwise_loss(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 3.0]))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(2)) / 2)


def test_a_score_depends_on_the_last_token_and_not_on_the_padding(small):
    made = autorule.RewardModel(*small)
    torch.nn.init.normal_(made.head.weight)
    texts = ["2", "2, of course"]
    together = made([made.encode("1+1?", text) for text in texts]).tolist()
    assert together == pytest.approx([made.score("1+1?", text) for text in texts], abs=1e-5)
    assert together[0] != together[1] and made.encode("?", "2")[-1] == 0  # the stop token


def test_a_reward_model_learns_what_was_preferred(small):
    """In these pairs the answer with an x is preferred. After training it tells unseen pairs apart, too."""
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh", k=8)) for _ in range(178)]
    pairs = [{"prompt": "?", "chosen": f"{t[:4]}x{t[5:]}", "rejected": t} for t in texts]
    made = autorule.RewardModel(*small)
    losses = autorule.train_reward_model(made, pairs[50:], epochs=4, batch_size=16, lr=3e-3)
    assert len(losses) == 32 and losses[0] == pytest.approx(math.log(2)) and losses[-1] < 0.3
    won = [made.score("?", p["chosen"]) > made.score("?", p["rejected"]) for p in pairs[:50]]
    assert sum(won) > 45


# ---- 6. Baselines and diagnostics ------------------------------------------------------------------------------------


def test_the_length_penalty_by_hand():
    """Appendix B.4: 300 tokens cost nothing, 600 cost a half, 0 earn a half."""
    assert [autorule.length_penalty(length) for length in (300, 600, 0)] == [0.0, 0.5, -0.5]


def test_alignment_by_hand():
    """Rule 1 tells three of four pairs apart and is right in two of them; rule 2 tells none apart."""
    chosen = np.array([[1, 1], [1, 1], [0, 0], [1, 0]])
    rejected = np.array([[0, 1], [0, 1], [1, 0], [1, 0]])
    aligned = autorule.alignment(chosen, rejected)
    assert aligned[0] == pytest.approx(2 / 3) and np.isnan(aligned[1])


def test_agreement_by_hand():
    """The first rule agrees 3/4 and 2/4 with the other two, the second 3/4 and 0: the best sum is 2/4 + 3/4. If rules
    were matched one after the other, the first would take its best partner, and the second get what is left."""
    pytest.importorskip("scipy")
    first = np.array([[0, 1, 1, 1], [1, 0, 1, 1]]).T
    second = np.array([[1, 1, 1, 1], [0, 1, 0, 0]]).T
    assert autorule.agreement(first, second).tolist() == [0.5, 0.75]
    assert autorule.agreement(first, first[:, ::-1]).tolist() == [1, 1]


# ---- 7. The simulated world ------------------------------------------------------------------------------------------

GOOD = "<think>25+7=32;32-4=28</think><answer>\\boxed{28}</answer>"
GUESS = "<think></think><answer>\\boxed{31}</answer>"
BOXES = "<think>hmm </think><answer>\\boxed{28}\\boxed{27}</answer>"


@pytest.mark.parametrize(
    "text, worth", [(GOOD, 8), (GUESS, 4), (BOXES, 3), ("let me think wait 得\\boxed{28}", 5)]
)
def test_what_a_response_is_worth_by_hand(text, worth):
    """The weights are 3 (right) and 1 each (worked, form, one box, one script, no filler): 8 in total."""
    assert 8 * world.utility("25+7-4=", text) == worth


def test_the_simulated_teacher_names_what_only_the_preferred_response_has():
    """The worked answer beats the guess in being right and worked: if reasons have no errors, they become those two
    rules, in some wording. Merging counts by concept."""
    pairs = [{"prompt": "25+7-4=", "chosen": GOOD, "rejected": GUESS}] * 3
    pairs += [{"prompt": "25+7-4=", "chosen": GUESS, "rejected": BOXES}]
    rules = autorule.extract_rules(pairs, world.Teacher(0.0))["rules"]
    concepts = [world.CONCEPT_OF[rule] for rule in rules]
    assert set(concepts[:2]) == {"right", "worked"} and concepts[2:] == ["one box"]


@pytest.fixture
def flat(monkeypatch):
    """A reward model that knows nothing, six rules (the first is about the result), and a judge that makes no errors."""
    made = autorule.RewardModel(*world.world()[:2])
    rules = [wordings[0] for _, wordings in world.CONCEPTS.values()]
    judge = world.judge_of(0.0)
    monkeypatch.setattr(world, "learned_reward", lambda seed: made)
    monkeypatch.setattr(world, "extracted", lambda *args, **settings: rules)
    monkeypatch.setattr(world, "judge_of", lambda *args: judge)


def test_what_each_arm_pays_for_a_guess(flat):
    """A guess follows four of the six rules, all but the first two. Its 8 tokens are a quarter of the target length."""
    pays = {"rules": 10 * 4 / 6 - 7.5, "no_rule_on_the_result": 10 * 4 / 5 - 7.5}
    pays |= {"reward_model": 0.0, "length_penalty": 0.5 - 0.5 / 4}
    for arm, paid in pays.items():
        task = getattr(world, f"{arm}_0")()
        value, parts = task.reward(GUESS, {"problem": "25+7-4=", "answer": "28"})
        assert value == pytest.approx(10 + paid)
        assert (parts["gold"], parts["accuracy"]) == (4 / 8, 0)


def test_what_rules_are_worth(flat, monkeypatch):
    """In these pairs the chosen response is right and worked, and the rejected one a guess: two rules tell them apart."""
    pairs = [{"prompt": "25+7-4=", "chosen": GOOD, "rejected": GUESS}] * 40
    monkeypatch.setattr(world, "preferences", lambda *args: pairs)
    found = measures.worth(world.extracted(0), 0)
    assert (found["alignment"], found["undecided"], found["against"]) == (1, 0, 0)
    assert 0.2 < found["shuffled"] < 0.8
    assert [*measures.agreements(0).values()] == pytest.approx([1] * 4)
