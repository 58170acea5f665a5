"""AutoRule: preferences are read, models asked, rules extracted and judged, and each formula is worked by hand."""

import json
import math
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import train
from model import load, save
from notebooks.autorule import autorule
from notebooks.autorule import autorule_world as world
from notebooks.claims import measures
from notebooks.claims.claim import Run

# ---- 1. Preferences --------------------------------------------------------------------------------------------------


def write_lines(path, *rows):
    path.write_text("\n".join(json.dumps(row) if row else "" for row in rows))
    return path


def says(role, content):
    return {"role": role, "content": content}


def test_preferences_as_texts_and_as_ultrafeedback_has_them(tmp_path):
    """UltraFeedback-binarized repeats the prompt in chosen and rejected; of a longer talk all turns are the prompt."""
    asks = says("user", "1+1?")
    two, three = says("assistant", "2"), says("assistant", "3")
    texts = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    messages = {"prompt": "1+1?", "chosen": [asks, two], "rejected": [asks, three]}
    messages |= {"score_chosen": 8, "score_rejected": 2.5}
    before = [says("user", "Hi"), says("assistant", "Hello")]
    talk = {"prompt": "Hi", "chosen": [*before, asks, two], "rejected": [three]}
    path = write_lines(tmp_path / "pairs.jsonl", texts, "", messages, talk)
    plain, scored, long = autorule.read_preferences(path)
    assert plain == texts
    assert scored == plain | {"score_chosen": 8.0, "score_rejected": 2.5}
    assert long == plain | {"prompt": "user: Hi\nassistant: Hello\nuser: 1+1?"}


def test_the_filter_by_hand():
    """B.6 with 4 words for 512 tokens: 3 words stay, 4 go; equal scores go; "Confidence" goes; no scores, no matter."""

    def pair(chosen="a b c", rejected="d", **scores):
        return {"prompt": "p", "chosen": chosen, "rejected": rejected, **scores}

    pairs = [
        pair(),
        pair("a b c d"),
        pair(rejected="a b c d e"),
        pair(score_chosen=5.0, score_rejected=5.0),
        pair(score_chosen=6.0, score_rejected=5.0),
        pair("my Confidence"),
    ]
    kept, gone = autorule.filter_preferences(pairs, lambda text: len(text.split()), max_tokens=4)
    assert kept == [pairs[0], pairs[4]]
    assert gone == {"too long": 2, "not scored higher": 1, "says confidence": 1}
    assert len(autorule.filter_preferences(pairs, len, 512, banned=None)[0]) == 5


# ---- 2. A model to ask -----------------------------------------------------------------------------------------------


def test_split_reasoning():
    said = {"<think>why</think>so": ("why", "so"), "why</think> so ": ("why", "so")}
    said |= {"so": ("", "so"), "<think>never ends": ("never ends", ""), "": ("", "")}
    for text, (reasoning, after) in said.items():
        assert autorule.split_reasoning(text) == {"reasoning": reasoning, "text": after}


# ---- A small model with letters for tokens ---------------------------------------------------------------------------


@pytest.fixture
def small(any_text):
    """With weights so large that no two texts are worth the same."""
    model, tokenizer = load(any_text)
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return model, tokenizer


def test_a_local_model_answers_the_same_whatever_else_is_asked(small, tmp_path):
    save(*small, tmp_path / "model")
    asked = autorule.open_model(str(tmp_path / "model"), tmp_path / "cache", max_new_tokens=8)
    (one,) = asked(["why?"], seed=1)
    alone = autorule.open_model(str(tmp_path / "model"), max_new_tokens=8)
    assert alone(["x", "why?", "yy"], seed=1)[1] == one
    assert asked.counts["new"] == 1
    assert asked(["why?"], seed=2) != [one]
    fresh = autorule.open_model(str(tmp_path / "model"), tmp_path / "cache", max_new_tokens=8)
    assert fresh(["why?"], seed=1) == [one] and fresh.counts["known"] == 1
    assert fresh(["x" * 2041, ""]) == [None, None]  # longer than the model can read with 8 to come
    greedy = autorule.open_model(str(tmp_path / "model"), temperature=0.0, max_new_tokens=8)
    assert greedy(["why?"], seed=1) == greedy(["why?"], seed=2)


# ---- 3. Reason, extract, merge ---------------------------------------------------------------------------------------


class Script(world.Simulated):
    """A backend that answers by a function of the prompt."""

    def __init__(self, function):
        super().__init__()
        self.function, self.prompts = function, []

    def say(self, prompt, rng):
        self.prompts.append(prompt)
        answer = autorule.split_reasoning(self.function(prompt))
        return answer["reasoning"], answer["text"]


def teacher(prompt):
    """Thinks that short is good, says that clear is good; merges by taking each rule once."""
    if prompt.startswith("Two assistants"):
        return "<think>it is short</think>it is clear"
    if prompt.startswith("Below"):
        short = "short" in prompt.split("[Reasoning]")[1]
        return '["Be short.", "Be  true."]' if short else '["Be clear."]'
    lines = prompt.split("[Rules]")[1].strip().split("\n")
    return json.dumps([*dict.fromkeys(line[2:] for line in lines)])


def test_what_was_answered_is_not_asked_again(tmp_path):
    """Neither in another run, nor behind half a line that a crash left."""
    script = Script(lambda prompt: f"<think>{prompt}?</think>{prompt}!")
    cache = tmp_path / "cache"
    answers = autorule.Asked(script, cache)(["a", "b"])
    assert answers[0] == {"reasoning": "a?", "text": "a!"}
    cache.write_text(cache.read_text() + '\n{"key": "half a li')
    asked = autorule.Asked(script, cache)
    assert asked(["a", "b", "c"])[:2] == answers and script.prompts == ["a", "b", "c"]
    assert asked.counts == {"new": 1, "known": 2, "failed": 0}
    assert autorule.Asked(script, cache)(["c"]) == asked(["c"]) and len(script.prompts) == 3


def pairs_of(n):
    return [{"prompt": f"p{i}", "chosen": f"good{i}", "rejected": f"bad{i}"} for i in range(n)]


def extract(pairs, backend, *args, **settings):
    return autorule.extract_rules(pairs, autorule.Asked(backend), *args, **settings)


def test_rules_come_out_of_the_chain_of_thought_or_out_of_what_follows():
    found = extract(pairs_of(5), Script(teacher))
    assert found["rules"] == ["Be short.", "Be true."]
    counts = {"pairs": 5, "chains": 5, "extracted": 10, "unreadable": 0, "merges": 1}
    assert found["counts"] == counts
    assert extract(pairs_of(5), Script(teacher), source="text")["rules"] == ["Be clear."]


def test_more_rules_than_a_prompt_holds_are_merged_in_parts(monkeypatch):
    """Ten in parts of four: three prompts, each of which makes two; as these are the same two, one prompt is left."""
    monkeypatch.setattr(autorule, "MERGE_SIZE", 4)
    found = extract(pairs_of(5), Script(teacher))
    assert found["rules"] == ["Be short.", "Be true."] and found["counts"]["merges"] == 3 + 1


def test_the_chosen_answer_stands_first_or_second_by_a_seeded_coin():
    def orders(seed):
        script = Script(teacher)
        extract(pairs_of(40), script, seed)
        reasons = script.prompts[:40]
        for i, prompt in enumerate(reasons):  # whoever is said to be preferred is the chosen one
            winner = prompt.split("preferred answer ")[1][0]
            assert f"[Answer {winner}]\ngood{i}\n" in prompt and f"bad{i}" in prompt
        return [prompt.split("preferred answer ")[1][0] for prompt in reasons]

    assert 10 < orders(0).count("A") < 30
    assert orders(0) == orders(0) != orders(1)


def test_parse_rules():
    said = {
        '["a", "b"]': ["a", "b"],
        'Here they are:\n```json\n["a"]\n```': ["a"],
        "[]": [],
        'See [1] and ["a  b\\nc"]': ["a b c"],
        '["a", "a", 7, null, "", ["b"]]': ["a"],
        json.dumps(["x" * 301, "y" * 300]): ["y" * 300],
        '{"rules": ["a"]}': ["a"],
    }
    unreadable = ["none", '["a", "b', "[" * 200_000]
    for text, rules in (said | dict.fromkeys(unreadable)).items():
        assert autorule.parse_rules(text) == rules


def test_hostile_lists_are_bounded_in_number_and_time():
    start = time.process_time()
    assert len(autorule.parse_rules(json.dumps([str(i) for i in range(10_000)]))) == 500
    assert autorule.parse_rules("[" * 10_000_000) is None and time.process_time() - start < 2


# ---- 4. Judge --------------------------------------------------------------------------------------------------------

RULES = ["Be short.", "Be kind to everybody.", "Be."]


def questions(completion="2", rules=RULES):
    said = {"prompt": "1+1?", "completion": completion, "condition": autorule.CONDITIONS[True]}
    return [autorule.VERIFY.format(rule=rule, **said) for rule in rules]


def test_the_verdict_compares_two_probabilities_after_reading_the_conversation_once(small):
    """The same numbers as reading each question whole; and of K questions the common part is read once."""
    model, tokenizer = small
    read = []
    forward = model.forward
    model.forward = lambda ids, *args, **kwargs: (
        read.append(tuple(ids.shape)) or forward(ids, *args, **kwargs)
    )
    together = autorule.yes_probabilities(model, tokenizer, questions())
    model.forward = forward
    apart = []
    for question in questions():
        with torch.no_grad():
            probs = model(torch.tensor([tokenizer.encode(question)]))[0, -1].softmax(-1)
        apart.append((probs[2] / (probs[2] + probs[3])).item())  # tokens 2 and 3 are Yes and No
    assert together == pytest.approx(apart, abs=1e-5) and len({round(p, 6) for p in together}) == 3
    shared = len(tokenizer.encode(questions()[0].split("Be short")[0] + "Be"))
    assert read == [(1, shared), (3, len(" kind to everybody."))]
    assert autorule.yes_probabilities(model, tokenizer, questions()) == together
    (alone,) = autorule.yes_probabilities(model, tokenizer, questions()[:1])
    assert alone == pytest.approx(together[0], abs=1e-5)


def test_read_verdict():
    said = {"Yes": True, "[[No]]": False, "**yes**.": True, " NO \n": False}
    unclear = ["Yes and no", "Yes, because", "", "maybe", "yesno", "." * 100_000 + "yes"]
    for text, verdict in (said | dict.fromkeys(unclear)).items():
        assert autorule.read_verdict(text) is verdict


def test_the_reward_by_hand():
    """Three of four rules: 10 * 0.75 - 7.5 = 0, 5 * 0.75 - 3 = 0.75; with a reward model's 1.5 and a lift of 10."""

    class Learned:
        def score(self, prompt, completion):
            assert (prompt, completion) == ("1+1?", "2")
            return 1.5

    def judge(texts):
        return ["rule 2" not in text for text in texts]

    rules = [f"rule {k}" for k in range(4)]
    value, parts = autorule.RulesReward(rules, judge)("2", {"problem": "1+1?", "answer": "2"})
    kept = {"rule_00": 1.0, "rule_01": 1.0, "rule_02": 0.0, "rule_03": 1.0}
    assert value == 10.0
    assert parts == {"r_rules": 0.0, "r_model": 0.0, "judge_failed": 0, **kept}
    rate = autorule.RulesReward(rules, judge, 5.0, -3.0, reward_model=Learned())
    value, parts = rate("2", {"problem": "1+1?"})
    assert (value, parts["r_rules"], parts["r_model"]) == (12.25, 0.75, 1.5)
    assert parts["accuracy"] == 0.75  # where nothing is right or wrong


def broken(texts):
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    "judge, failed",
    [(broken, 3), (lambda texts: [None, True, None], 2), (lambda texts: ["lies", 1, True], 0)],
)
def test_a_judge_that_fails_or_says_nonsense_costs_rules_and_nothing_else(judge, failed):
    value, parts = autorule.RulesReward(RULES, judge)("2", {"problem": "1+1?"})
    assert parts["judge_failed"] == failed and value == pytest.approx(10 * parts["accuracy"] + 2.5)
    assert parts["accuracy"] == pytest.approx(0 if judge is broken else 1 / 3)


def settings_in(path, monkeypatch, rules=RULES, **reward):
    path.write_text(json.dumps({"rules": rules, "reward": reward}))
    monkeypatch.setenv("AUTORULE", str(path))


def test_rules_reward_reads_its_settings_from_the_environment(any_text, tmp_path, monkeypatch):
    settings_in(tmp_path / "rules.json", monkeypatch, judge=any_text, alpha=5.0, beta=-3.0)
    value, parts = autorule.rules_reward("2", {"problem": "1+1?"})
    assert value == pytest.approx(5 * parts["accuracy"] - 3 + 10) and len(parts) == 3 + 4


def test_the_command_leaves_rules_and_settings(any_text, tmp_path, capsys, monkeypatch):
    script = Script(teacher)
    script.tokenizer = SimpleNamespace(encode=str.split)
    monkeypatch.setattr(autorule, "open_model", lambda name, cache: autorule.Asked(script, cache))
    out = tmp_path / "rules.json"
    banned = {"prompt": "p", "chosen": "confidence", "rejected": "x"}
    path = write_lines(tmp_path / "pairs.jsonl", *pairs_of(4), banned)
    flags = [str(path), "--teacher", "wise", "--judge", any_text, "--num-pairs", "3"]
    autorule.main([*flags, "--out", str(out)])
    found = json.loads(out.read_text())
    asked = len(script.prompts)
    printed = capsys.readouterr().out
    assert printed.startswith("Be short.\nBe true.\n2 rules in")
    assert "left out: {'says confidence': 1}" in printed
    assert found["rules"] == ["Be short.", "Be true."]
    assert found["reward"] == {"judge": any_text, "alpha": 10.0, "beta": -7.5}
    assert found["counts"]["pairs"] == 3
    autorule.main([*flags, "--out", str(out)])
    assert len(script.prompts) == asked  # the second time all answers were known
    monkeypatch.setenv("AUTORULE", str(out))
    assert autorule.rules_reward("2", {"problem": "1+1?"})[1]["judge_failed"] == 0


# ---- 5. The reward model ---------------------------------------------------------------------------------------------


def test_pairwise_loss_by_hand():
    """-log sigmoid(2 - 1) = log(1 + e^-1) = 0.3133; equal scores: log 2."""
    loss = autorule.pairwise_loss(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 3.0]))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-1)) + math.log(2)) / 2)


def test_a_score_depends_on_the_last_token_and_not_on_the_padding(small):
    made = autorule.RewardModel(*small)
    torch.nn.init.normal_(made.head.weight)
    short = made.encode("1+1?", "2")
    long = made.encode("1+1?", "2, of course")
    with torch.no_grad():
        together = made([short, long]).tolist()
    alone = [made.score("1+1?", said) for said in ("2", "2, of course")]
    assert together == pytest.approx(alone, abs=1e-5)
    assert together[0] != together[1] and short[-1] == 0  # what is scored ends with the stop token


def test_a_reward_model_learns_what_was_preferred_and_is_read_again(small, tmp_path):
    """In these pairs the answer with an x is preferred; pairs it has not seen are told apart then."""
    rng = random.Random(0)

    def pair():
        text = "".join(rng.choices("abcdefgh", k=8))
        return {"prompt": "?", "chosen": text[:4] + "x" + text[5:], "rejected": text}

    made = autorule.RewardModel(*small)
    pairs = [pair() for _ in range(128)]
    losses = autorule.train_reward_model(made, pairs, epochs=4, batch_size=16, lr=3e-3)
    assert len(losses) == 32 and losses[0] == pytest.approx(math.log(2)) and losses[-1] < 0.3
    unseen = [pair() for _ in range(50)]
    won = [made.score("?", p["chosen"]) > made.score("?", p["rejected"]) for p in unseen]
    assert sum(won) > 45
    made.save(tmp_path / "rm")
    again = autorule.RewardModel.load(tmp_path / "rm")
    assert again.score("?", "abxd") == pytest.approx(made.score("?", "abxd"), abs=1e-6)


# ---- 6. Baselines and diagnostics ------------------------------------------------------------------------------------


def test_the_length_penalty_by_hand():
    """B.4: 300 tokens cost nothing, 600 cost a half, 0 earn a half."""
    assert [autorule.length_penalty(length) for length in (300, 600, 0)] == [0.0, 0.5, -0.5]
    assert autorule.length_penalty(48, target=32) == 0.25


def test_alignment_by_hand():
    """Rule 1 tells three of four pairs apart and is right in two of them; rule 2 none."""
    chosen = np.array([[1, 1], [1, 1], [0, 0], [1, 0]])
    rejected = np.array([[0, 1], [0, 1], [1, 0], [1, 0]])
    aligned = autorule.alignment(chosen, rejected)
    assert aligned[0] == pytest.approx(2 / 3) and np.isnan(aligned[1])


def test_agreement_by_hand():
    """The second set is the first in another order, with one of four verdicts turned: 1 and 3/4. Were rules matched
    one after the other, the first would take its best, and the second get what is left."""
    pytest.importorskip("scipy")
    first = np.array([[1, 0], [1, 0], [0, 1], [0, 0]])
    assert sorted(autorule.agreement(first, first[:, ::-1])) == [1, 1]
    second = first[:, ::-1].copy()
    second[0, 0] = 1
    assert sorted(autorule.agreement(first, second)) == [0.75, 1]
    assert autorule.agreement(first, second[:, :1]).shape == (1,)
    # agreements 3/4 and 2/4 of the first rule, 3/4 and 0 of the second: the best sum is 2/4 + 3/4
    a = np.array([[0, 1, 1, 1], [1, 0, 1, 1]]).T
    b = np.array([[1, 1, 1, 1], [0, 1, 0, 0]]).T
    assert autorule.agreement(a, b).tolist() == [0.5, 0.75]


def test_margins_and_correlation_by_hand():
    """Scores 2:1, 1:1, 0:2 and 0:1 are a quarter > 0, a quarter = 0 and half < 0; a rule set has correlation 1 with
    itself, -1 with its negation."""
    chosen = np.array([[1, 1], [1, 0], [0, 0], [0, 0]])
    rejected = np.array([[1, 0], [0, 1], [1, 1], [0, 1]])
    assert autorule.margins(chosen, rejected) == [0.25, 0.25, 0.5]
    assert autorule.correlation(chosen, chosen) == pytest.approx(1)
    assert autorule.correlation(chosen, 1 - chosen) == pytest.approx(-1)


# ---- 7. The simulated world ------------------------------------------------------------------------------------------

TEXTS = {
    "good": "<think>25+7=32;32-4=28</think><answer>\\boxed{28}</answer>",
    "guess": "<think></think><answer>\\boxed{31}</answer>",
    "boxes": "<think>hmm </think><answer>\\boxed{28}\\boxed{27}</answer>",
}


def test_what_a_response_is_worth_by_hand():
    """Weights 3 (right), 1 (worked, form, one box, one script, no filler): 8 in all. A guess has 4."""
    worth = {name: 8 * world.utility("25+7-4=", text) for name, text in TEXTS.items()}
    assert worth == {"good": 8, "guess": 4, "boxes": 3}
    assert 8 * world.utility("25+7-4=", "let me think wait 得\\boxed{28}") == 3 + 1 + 1


def test_the_simulated_teacher_names_what_only_the_preferred_response_has():
    """The worked answer beats the guess in being right and worked: of error-free reasons those two are made, in some
    wording; merging counts by concept."""
    good, guess, boxes = TEXTS.values()
    pairs = [{"prompt": "25+7-4=", "chosen": good, "rejected": guess}] * 3
    pairs += [{"prompt": "25+7-4=", "chosen": guess, "rejected": boxes}]
    found = extract(pairs, world.Teacher(0.0))
    concepts = [world.CONCEPT_OF[rule] for rule in found["rules"]]
    assert set(concepts[:2]) == {"right", "worked"} and concepts[2:] == ["one box"]
    assert found["counts"]["unreadable"] == 0
    assert len(extract(pairs, world.Teacher(0.0), at_most=1)["rules"]) == 1


@pytest.fixture
def flat(monkeypatch):
    """A reward model that knows nothing, and six rules of which the first is on the result."""
    made = autorule.RewardModel(*world.world()[:2])
    monkeypatch.setattr(world, "learned_reward", lambda seed: made)
    rules = [world.KNOWN[name][1][0] for name in world.CONCEPTS]
    monkeypatch.setattr(world, "extracted", lambda *args, **settings: rules)
    monkeypatch.setattr(world, "judge_of", lambda *args: world_judge)


def world_judge(texts):
    judge = world.Judge(0.0)
    return [autorule.read_verdict(judge.say(text, random.Random(0))[1]) for text in texts]


def test_what_each_arm_pays_for_a_guess(flat):
    """It keeps four of the six rules, all but the first two; it has 8 tokens, a quarter of the length's target."""
    rules_pay = {"rules": 10 * 4 / 6 - 7.5, "no_scale": 4 / 6, "2_rules": -7.5}
    rules_pay |= {"no_rule_on_the_result": 10 * 4 / 5 - 7.5, "reward_model": 0.0}
    for arm, pays in (rules_pay | {"length_penalty": 0.5 - 0.5 / 4}).items():
        problem = {"problem": "25+7-4=", "answer": "28"}
        value, parts = getattr(world, f"{arm}_0")().reward(TEXTS["guess"], problem)
        assert value == pytest.approx(10 + pays) and parts["gold"] == 4 / 8
        assert parts["accuracy"] == 0


def run_of(arm, folder=None, final=world.TINY):
    return Run(arm, 0, world.TINY, final, folder)


def test_a_run_at_its_best_and_in_the_end(tmp_path):
    """Accuracy rises to .9 at steps 11 to 20 and falls to .1, the reward model pays a tenth of the step."""
    rights = {0: 0.3, 1: 0.9, 2: 0.1}
    rows = [{"step": 0, "accuracy": 0.0}]
    for step in range(1, 31):
        right = rights[(step - 1) // 10]
        rows.append({"step": step, "accuracy": right, "r_model": step / 10})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = measures.at_best(run_of("rules", tmp_path))
    expected = {"right@start": 0.3, "right@best": 0.9, "right": 0.1}
    assert found == pytest.approx(expected | {"r_model@best": 1.55, "r_model": 2.55})


def test_what_rules_are_worth(flat, monkeypatch):
    """Of pairs whose chosen response is right and worked, and whose rejected one is a guess: two rules tell them apart."""
    good, guess, _ = TEXTS.values()
    pair = {"prompt": "25+7-4=", "chosen": good, "rejected": guess}
    monkeypatch.setattr(world, "preferences", lambda *args: [pair] * 40)
    found = measures.worth(world.extracted(0), 0)
    assert (found["alignment"], found["undecided"], found["against"]) == (1, 0, 0)
    assert 0.2 < found["shuffled"] < 0.8
    assert measures.agreements(0) == pytest.approx(
        {"32 pairs": 1, "agreement": 1, "agreement, judge errs": 1, "correlation": 1}
    )


def test_the_reward_works_from_the_command_line(any_text, tmp_path, monkeypatch):
    """train.py --reward .. with a judge of random weights."""
    rules = ["Be right.", "Be short."]
    settings_in(tmp_path / "rules.json", monkeypatch, rules, judge=any_text)
    autorule.from_settings.cache_clear()
    flags = ["--model", world.TINY, "--reward", f"{autorule.__file__}:rules_reward"]
    flags += "--steps 2 --prompts-per-step 1 --num-samples 2 --max-new-tokens 16".split()
    train.main([*flags, "--eval-problems", "1", "--runs", str(tmp_path), "--name", "run"])
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1])
    assert len(rows) == 3 and "r_rules" in last and last["failed"] == 0
