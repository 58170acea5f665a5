"""AutoRule: preferences are read, models asked, rules extracted and judged, and each formula is worked by hand.
The servers are local, and not all of them are well."""

import json
import math
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

import train  # noqa: E402
from model import Config, Qwen3, load, save  # noqa: E402
from notebooks.autorule import autorule
from notebooks.autorule import autorule_tools as tools
from notebooks.autorule import autorule_world as world
from verifiers import DataError  # noqa: E402

KEY = "sk-this-must-never-be-seen"


# ---- 1. Preferences --------------------------------------------------------------------------------------------------


def write_lines(path, *rows):
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows),
        encoding="utf-8",
    )
    return path


def says(role, content):
    return {"role": role, "content": content}


def test_preferences_as_texts_and_as_ultrafeedback_has_them(tmp_path):
    """UltraFeedback-binarized repeats the prompt in chosen and rejected; of a longer talk all turns are the prompt."""
    messages = {
        "prompt": "1+1?",
        "chosen": [says("user", "1+1?"), says("assistant", "2")],
        "score_chosen": 8,
        "rejected": [says("user", "1+1?"), says("assistant", "3")],
        "score_rejected": 2.5,
    }
    talk = {
        "chosen": [
            says("user", "Hi"),
            says("assistant", "Hello"),
            says("user", "1+1?"),
            says("assistant", "2"),
        ],
        "rejected": [says("assistant", "3")],
        "prompt": "Hi",
    }
    path = write_lines(
        tmp_path / "pairs.jsonl",
        {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
        "",
        messages,
        talk,
    )
    plain, scored, long = tools.read_preferences(path)
    assert plain == {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
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
    kept, gone = tools.filter_preferences(pairs, lambda text: len(text.split()), max_tokens=4)
    assert kept == [pairs[0], pairs[4]]
    assert gone == {"too long": 2, "not scored higher": 1, "says confidence": 1}
    assert len(tools.filter_preferences(pairs, len, 512, banned=None)[0]) == 5


# ---- 2. A model to ask -----------------------------------------------------------------------------------------------


class Sick(ThreadingHTTPServer):
    """A server that does what its plan says, one entry a request, the last one for ever; it keeps what it was asked."""

    daemon_threads = True

    def __init__(self, *plan):
        self.plan, self.asked, self.lock = list(plan), [], threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}/v1#judge"

    def handle_error(self, request, client_address):
        pass  # a client that hung up


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(
                {"path": self.path, "key": self.headers["Authorization"], **body}
            )
            plan = self.server.plan.pop(0) if len(self.server.plan) > 1 else self.server.plan[0]
        plan(self, body["messages"][0]["content"])

    def reply(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *args):
        pass


def says_back(text="Yes", **more):
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    return lambda handler, prompt: handler.reply(
        200, {"choices": [{"message": {"content": text or prompt, **more}}], "usage": usage}
    )


def fails(status, body=b"no", **headers):
    return lambda handler, prompt: handler.reply(status, body, **headers)


@pytest.fixture
def sick():
    servers = []

    def start(*plan):
        servers.append(Sick(*plan))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def open_server(server, cache=None, **settings):
    return tools.open_model(
        server.url, cache, pause=0.01, **{"time_limit": 5.0, "retries": 3, **settings}
    )


def test_a_server_is_asked_as_openai_has_it(sick):
    server = sick(says_back("<think>hm</think> Yes"))
    (answer,) = open_server(server, temperature=0.0, max_new_tokens=9)(["Is it?"], seed=4)
    assert answer == {"text": "Yes", "reasoning": "hm", "tokens_in": 7, "tokens_out": 2}
    assert server.asked == [
        {
            "path": "/v1/chat/completions",
            "key": f"Bearer {KEY}",
            "model": "judge",
            "seed": 4,
            "temperature": 0.0,
            "max_tokens": 9,
            "messages": [says("user", "Is it?")],
        }
    ]


GARBAGE = [
    b"",
    b"<html>",
    b"[]",
    b"{}",
    b'{"choices": []}',
    b'{"choices": [{"message": {"content": 7}}]}',
    b'{"choices": [{"message": null}]}',
    b"[" * 100_000,
    b"\xff\xfe\x00",
    b'{"choices": {"0": 1}}',
]


@pytest.mark.parametrize(
    "trouble",
    [
        fails(500),
        fails(429),
        fails(503),
        *(fails(200, body) for body in GARBAGE),
        lambda handler, prompt: handler.connection.close(),
    ],
)
def test_what_fails_for_a_while_is_asked_again(sick, trouble):
    server = sick(trouble, trouble, says_back("Yes"))
    asked = open_server(server)
    assert asked(["?"])[0]["text"] == "Yes" and len(server.asked) == 3
    assert asked.counts == {"new": 1, "known": 0, "failed": 0, "tokens_in": 7, "tokens_out": 2}


def test_what_fails_for_good_is_none_after_the_retries_and_waits_longer_each_time(
    sick, monkeypatch
):
    """Pauses of 1, 2 and 4 hundredths."""
    pauses = []
    monkeypatch.setattr(tools.time, "sleep", pauses.append)
    server = sick(fails(500))
    asked = open_server(server)
    assert asked(["?"]) == [None] and len(server.asked) == 4 and asked.counts["failed"] == 1
    assert pauses == pytest.approx([0.01, 0.02, 0.04], abs=1e-6)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_ends_it_at_once_and_the_key_is_told_nobody(sick, tmp_path, capfd, status):
    server = sick(fails(status, f"your key {KEY} is wrong".encode()))
    with pytest.raises(DataError, match=f"status {status}.*OPENAI_API_KEY") as error:
        open_server(server, tmp_path / "cache", at_once=1)([str(i) for i in range(50)])
    assert len(server.asked) < 5  # the others were not asked
    printed = "".join(capfd.readouterr()) + repr(error.value) + (tmp_path / "cache").read_text()
    assert KEY not in printed


def test_no_redirect_carries_the_key_elsewhere(sick):
    thief = sick(says_back())
    server = sick(fails(302, Location=thief.url), fails(307, Location=thief.url))
    assert open_server(server)(["?"]) == [None] and thief.asked == []


def test_several_are_asked_at_once(sick):
    """Eight answers of 0.3 s each, eight at once: well below 2.4 s."""

    def slow(handler, prompt):
        time.sleep(0.3)
        says_back(None)(handler, prompt)

    start = time.monotonic()
    prompts = [str(i) for i in range(8)]
    assert [answer["text"] for answer in open_server(sick(slow), at_once=8)(prompts)] == prompts
    assert time.monotonic() - start < 1.5


def test_an_interruption_costs_nothing_twice(sick, tmp_path):
    """The third answer is a wrong key; what came before stays, half a line is no harm, tokens count once."""
    server = sick(says_back(), says_back(), fails(401), says_back())
    prompts = ["a", "b", "c", "d"]
    with pytest.raises(DataError):
        open_server(server, tmp_path / "cache", at_once=1)(prompts)
    assert (
        len((tmp_path / "cache").read_text().splitlines()) >= 2
        and KEY not in (tmp_path / "cache").read_text()
    )
    with open(tmp_path / "cache", "a") as file:
        file.write('{"key": "half a li')
    before = len(server.asked)
    known = len((tmp_path / "cache").read_text().splitlines()) - 1
    asked = open_server(server, tmp_path / "cache")
    assert None not in asked(prompts) and len(server.asked) == before + 4 - known
    assert (asked.counts["known"], asked.counts["tokens_in"]) == (known, 28)
    again = open_server(server, tmp_path / "cache")
    assert again(prompts) == asked(prompts) and len(server.asked) == before + 4 - known


@pytest.mark.parametrize(
    "text, parts",
    [
        ("<think>why</think>so", ("why", "so")),
        ("why</think> so ", ("why", "so")),
        ("so", ("", "so")),
        ("<think>never ends", ("never ends", "")),
        ("", ("", "")),
    ],
)
def test_split_reasoning(text, parts):
    assert tools.split_reasoning(text) == parts


# ---- A small model with letters for tokens ---------------------------------------------------------------------------


@pytest.fixture
def small(any_text):
    torch.manual_seed(0)
    _, tokenizer = load(any_text)
    config = Config(
        vocab_size=tokenizer.num_tokens,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=1e4,
        max_position_embeddings=2048,
        eos_token_id=0,
    )
    model = Qwen3(config)
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.3)
    return model, tokenizer


def test_a_local_model_answers_the_same_whatever_else_is_asked(small, tmp_path):
    save(*small, tmp_path / "model")
    asked = tools.open_model(str(tmp_path / "model"), tmp_path / "cache", max_new_tokens=8)
    (one,) = asked(["why?"], seed=1)
    assert (
        tools.open_model(str(tmp_path / "model"), max_new_tokens=8)(["x", "why?", "yy"], seed=1)[1]
        == one
    )
    assert asked.counts["new"] == 1 and (one["tokens_in"], one["tokens_out"] <= 8) == (4, True)
    assert asked(["why?"], seed=2) != [one]
    fresh = tools.open_model(str(tmp_path / "model"), tmp_path / "cache", max_new_tokens=8)
    assert fresh(["why?"], seed=1) == [one] and fresh.counts["known"] == 1
    assert fresh(["x" * 2041, ""]) == [None, None]  # longer than the model can read with 8 to come
    greedy = tools.open_model(str(tmp_path / "model"), temperature=0.0, max_new_tokens=8)
    assert greedy(["why?"], seed=1) == greedy(["why?"], seed=2)


# ---- 3. Reason, extract, merge ---------------------------------------------------------------------------------------


class Script(tools.Simulated):
    """A backend that answers by a function of the prompt; None is a failure."""

    def __init__(self, function):
        super().__init__()
        self.function, self.prompts = function, []

    def say(self, prompt, rng):
        self.prompts.append(prompt)
        said = self.function(prompt)
        return said if said is None else tools.split_reasoning(said)


def teacher(prompt):
    """Thinks that short is good, says that clear is good; merges by taking each rule once."""
    if prompt.startswith("Two assistants"):
        return "<think>it is short</think>it is clear"
    if prompt.startswith("Below"):
        return (
            '["Be short.", "Be  true."]'
            if "short" in prompt.split("[Reasoning]")[1]
            else '["Be clear."]'
        )
    return json.dumps(
        list(dict.fromkeys(line[2:] for line in prompt.split("[Rules]")[1].strip().split("\n")))
    )


def pairs_of(n):
    return [{"prompt": f"p{i}", "chosen": f"good{i}", "rejected": f"bad{i}"} for i in range(n)]


def test_rules_come_out_of_the_chain_of_thought_or_out_of_what_follows():
    found = autorule.extract_rules(pairs_of(5), tools.Asked(Script(teacher)))
    assert found["rules"] == ["Be short.", "Be true."]
    assert found["counts"] == {
        "pairs": 5,
        "chains": 5,
        "extracted": 10,
        "unreadable": 0,
        "merges": 1,
    }
    assert autorule.extract_rules(pairs_of(5), tools.Asked(Script(teacher)), source="text")[
        "rules"
    ] == ["Be clear."]


def test_the_chosen_answer_stands_first_or_second_by_a_seeded_coin():
    def orders(seed):
        script = Script(teacher)
        autorule.extract_rules(pairs_of(40), tools.Asked(script), seed)
        reasons = script.prompts[:40]
        for i, prompt in enumerate(reasons):  # whoever is said to be preferred is the chosen one
            winner = prompt.split("preferred answer ")[1][0]
            assert f"[Answer {winner}]\ngood{i}\n" in prompt and f"bad{i}" in prompt
        return [prompt.split("preferred answer ")[1][0] for prompt in reasons]

    assert 10 < orders(0).count("A") < 30
    assert orders(0) == orders(0) != orders(1)


@pytest.mark.parametrize(
    "text, rules",
    [
        ('["a", "b"]', ["a", "b"]),
        ('Here they are:\n```json\n["a"]\n```', ["a"]),
        ("[]", []),
        ("none", None),
        ('See [1] and ["a  b\\nc"]', ["a b c"]),
        ('["a", "a", 7, null, "", ["b"]]', ["a"]),
        ('["a", "b', None),
        (json.dumps(["x" * 301, "y" * 300]), ["y" * 300]),
        ('{"rules": ["a"]}', ["a"]),
        ("[" * 200_000, None),
    ],
)
def test_parse_rules(text, rules):
    assert autorule.parse_rules(text) == rules


def test_hostile_lists_are_bounded_in_number_and_time():
    start = time.monotonic()
    assert len(autorule.parse_rules(json.dumps([str(i) for i in range(10_000)]))) == 500
    assert autorule.parse_rules("[" * 10_000_000) is None and time.monotonic() - start < 2


# ---- 4. Judge --------------------------------------------------------------------------------------------------------

RULES = ["Be short.", "Be kind to everybody.", "Be."]


def questions(completion="2", rules=RULES):
    return [
        autorule.VERIFY.format(
            prompt="1+1?", completion=completion, rule=rule, condition=autorule.CONDITIONS[True]
        )
        for rule in rules
    ]


def test_the_verdict_compares_two_next_token_probabilities_after_reading_the_conversation_once(
    small,
):
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


@pytest.mark.parametrize(
    "text, verdict",
    [
        ("Yes", True),
        ("[[No]]", False),
        ("**yes**.", True),
        (" NO \n", False),
        ("Yes and no", None),
        ("Yes, because", None),
        ("", None),
        ("maybe", None),
        ("yesno", None),
        ("." * 100_000 + "yes", None),
    ],
)
def test_read_verdict(text, verdict):
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
    assert value == 10.0 and parts == {
        "r_rules": 0.0,
        "r_model": 0.0,
        "judge_failed": 0,
        "rule_00": 1.0,
        "rule_01": 1.0,
        "rule_02": 0.0,
        "rule_03": 1.0,
    }
    value, parts = autorule.RulesReward(rules, judge, 5.0, -3.0, reward_model=Learned())(
        "2", {"problem": "1+1?"}
    )
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


def test_rules_reward_reads_its_settings_from_the_environment(sick, tmp_path, monkeypatch):
    server = sick(says_back("Yes"))
    path = tmp_path / "rules.json"
    path.write_text(
        json.dumps({"rules": RULES, "reward": {"judge": server.url, "alpha": 5.0, "beta": -3.0}})
    )
    monkeypatch.setenv("AUTORULE", str(path))
    value, parts = autorule.rules_reward("2", {"problem": "1+1?"})
    assert (value, parts["accuracy"], len(server.asked)) == (12.0, 1.0, 3)
    assert (
        "1+1?" in server.asked[0]["messages"][0]["content"]
        and server.asked[0]["temperature"] == 0.0
    )


def test_the_command_extracts_rules_and_leaves_settings_for_the_training(
    sick, tmp_path, capsys, monkeypatch
):
    def think(handler, prompt):
        reasoning, text = tools.split_reasoning(teacher(prompt))
        says_back(text, reasoning=reasoning)(handler, prompt)

    server = sick(think)
    out = tmp_path / "rules.json"
    path = write_lines(
        tmp_path / "pairs.jsonl",
        *pairs_of(4),
        {"prompt": "p", "chosen": "confidence", "rejected": "x"},
    )
    flags = [str(path), "--teacher", server.url, "--num-pairs", "3", "--out", str(out)]
    autorule.main(flags)
    found = json.loads(out.read_text())
    asked = len(server.asked)
    printed = capsys.readouterr().out
    assert (
        printed.startswith("Be short.\nBe true.\n2 rules in")
        and "left out: {'says confidence': 1}" in printed
    )
    assert found["rules"] == ["Be short.", "Be true."] and KEY not in out.read_text()
    assert (
        found["reward"] == {"judge": server.url, "alpha": 10.0, "beta": -7.5}
        and found["counts"]["pairs"] == 3
    )
    autorule.main(flags)
    assert len(server.asked) == asked  # the second time all answers were known
    monkeypatch.setenv("AUTORULE", str(out))
    # This one lists rules, always.
    assert autorule.rules_reward("2", {"problem": "1+1?"})[1]["judge_failed"] == 2


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
    assert together == pytest.approx(
        [made.score("1+1?", "2"), made.score("1+1?", "2, of course")], abs=1e-5
    )
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
    margins = [
        made.score("?", p["chosen"]) - made.score("?", p["rejected"])
        for p in (pair() for _ in range(50))
    ]
    assert sum(margin > 0 for margin in margins) > 45
    made.save(tmp_path / "rm")
    again = autorule.RewardModel.load(tmp_path / "rm")
    assert again.score("?", "abxd") == pytest.approx(made.score("?", "abxd"), abs=1e-6)


# ---- 6. Baselines and diagnostics ------------------------------------------------------------------------------------


def test_the_length_penalty_by_hand():
    """B.4: 300 tokens cost nothing, 600 cost a half, 0 earn a half."""
    assert [tools.length_penalty(length) for length in (300, 600, 0)] == [0.0, 0.5, -0.5]
    assert tools.length_penalty(48, target=32) == 0.25


def test_a_model_that_runs_here_counts_tokens_and_a_server_words():
    """tiny's tokenizer has a token for each sign of "1+1=", and words are between spaces."""
    local = tools.Local(world.TINY, max_new_tokens=4)
    assert tools.counter_of(local)("1+1=") == 4
    assert tools.counter_of(tools.Server("http://localhost:1/v1#m"))("1 + 1 =") == 4


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


def test_determinism_margins_and_correlation_by_hand():
    """84 Yes of 100 and 16 of 100 are equally determined; scores 2:1, 1:1, 0:2 and 0:1 are a quarter > 0, a quarter
    = 0 and half < 0; a rule set has correlation 1 with itself, -1 with its negation."""
    assert autorule.determinism(np.array([84, 16, 50]), np.array([16, 84, 50])).tolist() == [
        0.84,
        0.84,
        0.5,
    ]
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
    assert {name: 8 * world.utility("25+7-4=", text) for name, text in TEXTS.items()} == {
        "good": 8,
        "guess": 4,
        "boxes": 3,
    }
    assert 8 * world.utility("25+7-4=", "let me think wait 得\\boxed{28}") == 3 + 1 + 1


def test_the_simulated_teacher_names_what_only_the_preferred_response_has():
    """The worked answer beats the guess in being right and worked: of error-free reasons those two are made, in some
    wording; merging counts by concept."""
    pairs = [{"prompt": "25+7-4=", "chosen": TEXTS["good"], "rejected": TEXTS["guess"]}] * 3 + [
        {"prompt": "25+7-4=", "chosen": TEXTS["guess"], "rejected": TEXTS["boxes"]}
    ]
    found = autorule.extract_rules(pairs, tools.Asked(world.Teacher(0.0)))
    concepts = [world.CONCEPT_OF[rule] for rule in found["rules"]]
    assert set(concepts[:2]) == {"right", "worked"} and concepts[2:] == ["one box"]
    assert found["counts"]["unreadable"] == 0
    assert (
        len(autorule.extract_rules(pairs, tools.Asked(world.Teacher(0.0)), at_most=1)["rules"]) == 1
    )


def made_up(**rows):
    """A table of one seed's numbers; what is not given is 0."""
    return lambda row, column: np.array([rows.get(row.replace(" ", "_"), {}).get(column, 0.0)])


def test_the_checks_of_hacking_on_made_up_numbers():
    checks = world.CHECKS["hacking"]
    hacked = {"right@start": 0.2, "right@best": 0.6, "right": 0.1, "paid@best": 2.0, "paid": 3.0}
    honest = {"right@start": 0.2, "right@best": 0.9, "right": 0.88, "paid@best": 2.0, "paid": 2.5}
    others = {arm: hacked for arm in ("idle_rules", "no_rule_on_the_result")}
    claimed = [
        bool(
            np.all(check(made_up(reward_model=hacked, rules=honest, true_answer=honest, **others)))
        )
        for check in checks.values()
    ]
    assert claimed == [True] * 7
    turned = [
        bool(np.all(check(made_up(reward_model=honest, rules=hacked)))) for check in checks.values()
    ]
    assert turned[:4] == [True, False, True, False]


@pytest.mark.slow
def test_a_report_trains_once_and_prints_a_verdict(tmp_path, capsys, monkeypatch):
    """Two steps of one seed, with a reward model that knows nothing, from the command line's device to the verdict."""
    model, tokenizer, _ = world.world()
    autorule.RewardModel(model, tokenizer).save(tmp_path / "reward-model-seed0")
    results = world.report("count", [0], 2, tmp_path)
    printed = capsys.readouterr().out
    assert "verdict: " in printed and set(results) == {"2 rules: less gold", "20 rules: less gold"}
    row = json.loads((tmp_path / "rules-2-0" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["r_rules"] == pytest.approx(
        10 * np.mean([row[f"rule_{k:02}"] for k in range(6)]) - 7.5
    )
    assert row["reward"] == pytest.approx(row["r_rules"] + 10, abs=0.01) and row["r_model"] == 0
    before = (tmp_path / "rules-2-0" / "metrics.jsonl").read_text()
    world.report("count", [0], 2, tmp_path)
    assert (tmp_path / "rules-2-0" / "metrics.jsonl").read_text() == before


def test_the_reward_works_from_the_command_line(sick, tmp_path, monkeypatch):
    """train.py --reward notebooks/autorule/autorule.py:rules_reward, with a judge on a server that fails now and then."""
    server = sick(says_back("No"), fails(500), says_back("garbage"), says_back("Yes"))
    path = tmp_path / "rules.json"
    path.write_text(
        json.dumps({"rules": ["Be right.", "Be short."], "reward": {"judge": server.url}})
    )
    monkeypatch.setenv("AUTORULE", str(path))
    autorule.from_settings.cache_clear()
    reward = Path(autorule.__file__)
    train.main(
        [
            "--model",
            world.TINY,
            "--task",
            "arithmetic",
            "--reward",
            f"{reward}:rules_reward",
            *"--steps 2 --prompts-per-step 1 --num-samples 2 --max-new-tokens 16".split(),
            *"--eval-problems 1 --runs".split(),
            str(tmp_path),
            "--name",
            "run",
        ]
    )
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert (
        len(rows) == 3
        and "r_rules" in rows[-1]
        and len(server.asked) > 8
        and rows[-1]["failed"] == 0
    )
