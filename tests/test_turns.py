"""Environments: a policy says something, reads a reply and continues. All tokens are checked."""

import threading
import time
from dataclasses import replace

import pytest
import torch

import rlvr
from appendix import chat
from appendix.plumbing import DataError
from conftest import ROOT, init_weights, symbol_tokenizer, tiny_config
from model import Qwen3, Tokenizer, load
from pretend_gpu import PretendGPU
from rlvr import GRPO, loss_weights, policy_loss, records_of, roll_out, sample, token_logprobs
from verifiers import Task, arithmetic, boxed_reward, tagged_reward

SYMBOLS = [*"0123456789+-*=", "<tool>", "</tool>", "\\boxed{", "}"]


@pytest.fixture
def tokenizer():
    return symbol_tokenizer(SYMBOLS)


@pytest.fixture
def policy(tokenizer):
    """A policy with random weights. It ends a turn, by </tool> or token 0, about every ten tokens."""
    config = tiny_config(tokenizer.num_tokens, eos_token_id=0)
    return init_weights(Qwen3(config), torch.Generator().manual_seed(0))


def scripted(logits, uniforms, temperature):
    """A `choose` that takes its random numbers as the tokens."""
    tokens = uniforms.long()
    logp = logits.float().log_softmax(-1)
    return tokens, logp.gather(1, tokens[:, None]).squeeze(1)


class Says(GRPO):
    """A method whose policy says these texts, one in each row."""

    texts = ()

    def roll_out(self, model, tokenizer, prompts, training, **how):
        table = torch.zeros(how["uniforms"].shape)  # after its text comes token 0, the end
        for row, text in zip(table, self.texts):
            ids = torch.tensor(tokenizer.encode(text))
            row[: len(ids)] = ids
        how |= {"uniforms": table, "choose": scripted}
        return super().roll_out(model, tokenizer, prompts, training, **how)


class Answers:
    """Gives four replies of 0 to 9 tokens, then None."""

    def __init__(self, problem):
        self.replies = iter(["7*7=49", "", "1", "+" * 9])

    def reply(self, text):
        return next(self.replies, None)


def always_right(text, problem):
    return 1.0, {}


def task_with(turns, reward=always_right, stops=("</tool>",), problem="1+1=", answer="4"):
    problems = [{"problem": problem, "answer": answer}]
    return Task("t", problems, problems, "{problem}", reward, stops, turns)


def said(policy, tokenizer, task, texts, limit=40):
    """Return the Batch in which a policy says these texts, turn after turn. A text also has a character for
    each token of a reply; these are skipped."""
    method = Says(max_new_tokens=limit)
    method.texts = texts
    return roll_out(method, policy, tokenizer, task, task.test, len(texts))


# ---- What is written where -----------------------------------------------------------------------


def test_a_reply_follows_the_stop_and_the_policy_goes_on_behind_it(policy, tokenizer):
    """It says 1+1</tool>, reads 7*7=49, and says its next token in the eleventh place."""
    batch = said(policy, tokenizer, task_with(Answers), ["1+1</tool>0000002"])
    (ids,) = batch.rollouts.completions()
    assert tokenizer.decode(ids, False).startswith("1+1</tool>7*7=492")
    own = batch.rollouts.mask[0, 3:] > 0  # the prompt has 4 tokens
    assert own[:11].tolist() == [True] * 4 + [False] * 6 + [True]
    assert batch.texts == ["1+1</tool>2"]  # a reward reads only the policy's own words
    (turns,) = batch.turns
    assert turns[:2] == [("1+1</tool>", "7*7=49"), ("2", "")]
    assert len(turns) == 5 and turns[-1][1] is None
    assert records_of(batch)[0]["turns"] == turns


def test_what_was_sampled_is_never_tokenised_again(policy, tokenizer):
    """The reply is tokenised alone, and the tokens before it do not change."""
    text = "12</tool>"
    batch = said(policy, tokenizer, task_with(Answers), [text])
    (ids,) = batch.rollouts.completions()
    assert ids[:3] == tokenizer.encode(text)
    assert ids[3:9] == tokenizer.encode("7*7=49")


def test_a_stop_text_of_three_tokens_ends_a_turn_where_it_is_complete(policy, tokenizer):
    """Without an environment it ends the completion. "4-5" has three tokens, and the 5 in 715 already looks
    like its end."""
    task = task_with(None, stops=("4-5",))
    batch = said(policy, tokenizer, task, ["7154-555", "714-", "123"], limit=8)
    assert [tokenizer.decode(ids) for ids in batch.rollouts.completions()][0] == "7154-5"
    assert batch.texts == ["715", "714-", "123"]  # the text before the stop is scored
    assert batch.rollouts.lengths.tolist() == [6, 5, 4]
    assert batch.rollouts.finished.all()


def test_only_tokens_that_may_complete_a_stop_text_are_looked_at(tokenizer):
    """They contain its last character. Special tokens count, too."""
    names = [tokenizer.backend.id_to_token(i) for i in tokenizer.tokens_that_end(("swer>",))]
    assert sorted(names) == ["</tool>", "<tool>", "<|endoftext|>"]
    assert tokenizer.tokens_that_end(()) == []
    assert tokenizer.tokens_that_end(("a",)) is tokenizer.tokens_that_end(("a",))  # found once


@pytest.mark.parametrize("room, own", [(4, 4), (7, 4), (10, 4), (11, 5)])
def test_replies_count_in_max_new_tokens_and_are_cut_there(policy, tokenizer, room, own):
    """It has four own tokens, six of the reply, then own ones. If cut off, it earns at most 0."""
    batch = said(policy, tokenizer, task_with(Answers), ["1+1</tool>"], limit=room)
    assert batch.rollouts.lengths.item() == room and batch.rollouts.mask.sum() == own
    assert not batch.rollouts.finished.item() and batch.rewards.item() == 0.0


def test_a_chat_model_reads_a_reply_as_a_turn_of_its_template(policy, tokenizer):
    """If it ends its turn by token 0, what the template writes next follows. If a stop text ends it in the
    middle of its turn, it reads plain text."""
    each = "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}"
    template = each + "{% if add_generation_prompt %}={% endif %}"
    tokenizer = Tokenizer(tokenizer.backend, "chat", {"chat_template": template})
    batch = said(policy, tokenizer, task_with(Answers), ["12", "12</tool>"])
    ended, called = batch.rollouts.completions()
    turn = tokenizer.encode("12") + [0] + tokenizer.encode("7*7=49") + [0] + tokenizer.encode("=")
    assert ended[: len(turn)] == turn
    assert tokenizer.decode(called, False).startswith("12</tool>7*7=49<|endoftext|>")


def test_with_thinking_off_it_is_off_in_every_turn(policy, tokenizer):
    """So the template closes the thought before the policy goes on."""
    each = "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}"
    template = each + "{% if enable_thinking is false %}=={% endif %}"
    tokenizer = Tokenizer(tokenizer.backend, "chat-nothink", {"chat_template": template})
    (ids,) = said(policy, tokenizer, task_with(Answers), ["12"]).rollouts.completions()
    turn = tokenizer.encode("12") + [0] + tokenizer.encode("7*7=49") + [0]
    assert ids[: len(turn) + 2] == turn + tokenizer.encode("==")


# ---- The numbers ---------------------------------------------------------------------------------


def six_turns(policy, tokenizer, prompts, limit=90, rows=16, choose=rlvr.choose):
    """Return rollouts of a random policy. Each of its first five turns gets a reply."""
    turns = dict.fromkeys(range(len(prompts) * rows), 0)
    replies = ["7*7=49", "1", "+" * 9, "2=2", "3"]

    def reply(asking, completions):
        new = []
        for row in asking:
            turns[row] += 1
            go_on = turns[row] <= 5
            new.append(tokenizer.encode(replies[turns[row] - 1]) if go_on else None)
        return new

    stop_ids = [0, *tokenizer.encode("</tool>")]
    uniforms = rlvr.row_uniforms(range(len(prompts) * rows), limit, 0)
    found = sample(policy, prompts, rows, limit, 1.0, stop_ids, uniforms, choose, reply)
    assert max(turns.values()) == 6
    return found


def test_sampled_log_probs_equal_recomputed_ones_over_six_turns(policy, tokenizer):
    prompts = [tokenizer.encode(text) for text in ("<tool>1+1", "47*83=", "9=", "1+2*3-4=")]
    rollouts = six_turns(policy, tokenizer, prompts)
    assert (rollouts.lengths - rollouts.mask.sum(1)).max() > 15  # tokens of replies
    with torch.no_grad():
        again = token_logprobs(policy, rollouts.ids, 1.0, rollouts.mask)
    off = (again - rollouts.logp).abs()
    assert off.max() < 5e-6 and off.sum() / rollouts.mask.sum() < 1e-6


def test_in_fp64_they_do_to_twelve_digits(policy, tokenizer):
    exact = []

    def choose(logits, uniforms, temperature):
        tokens, _ = rlvr.choose(logits, uniforms, temperature)
        exact.append(logits.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1))
        return tokens, exact[-1].float()

    policy = policy.double()
    rollouts = six_turns(policy, tokenizer, [tokenizer.encode("47*83=")], rows=1, choose=choose)
    with torch.no_grad():
        logp = policy(rollouts.ids[:, :-1]).log_softmax(-1)
    own = logp.gather(2, rollouts.ids[:, 1:, None]).squeeze(2)[rollouts.mask > 0]
    assert (torch.cat(exact) - own).abs().max() < 1e-12


def test_nothing_is_learned_from_a_token_that_was_not_sampled(policy, tokenizer):
    rollouts = six_turns(policy, tokenizer, [tokenizer.encode("47*83=")])
    logits = policy(rollouts.ids[:, :-1])
    logits.retain_grad()
    logp = logits.log_softmax(-1).gather(2, rollouts.ids[:, 1:, None]).squeeze(2)
    advantages = torch.randn(len(logp))
    policy_loss(logp, logp.detach(), advantages, loss_weights(rollouts.mask)).backward()
    assert torch.equal(logits.grad.abs().sum(-1) > 0, rollouts.mask > 0)


def test_a_row_is_the_same_alone_and_in_a_batch(policy, tokenizer):
    """Therefore the number of processes that share the rows does not matter."""
    problems = [{"problem": text, "answer": "4"} for text in ("47*83=", "9=", "<tool>1+2")]
    task = replace(task_with(Answers), train=problems, test=problems)
    method = GRPO(max_new_tokens=60)
    whole = roll_out(method, policy, tokenizer, task, problems, 4, 1.0, [*range(12)])
    assert sum(reply is not None for turns in whole.turns for _, reply in turns) > 12
    for place, problem in enumerate(problems):
        streams = [*range(4 * place, 4 * place + 4)]
        part = roll_out(method, policy, tokenizer, task, [problem], 4, 1.0, streams)
        mine = slice(4 * place, 4 * place + 4)
        assert part.texts == whole.texts[mine] and part.turns == whole.turns[mine]
        width = part.rollouts.logp.size(1)
        assert torch.allclose(part.rollouts.logp, whole.rollouts.logp[mine, :width], atol=1e-5)


def test_a_long_reply_is_read_in_one_forward_pass(policy, tokenizer, monkeypatch):
    widths = []
    forward = Qwen3.forward

    def counting(model, ids, *more, **options):
        widths.append(ids.size(1))
        return forward(model, ids, *more, **options)

    class Book(Answers):
        def __init__(self, problem):
            self.replies = iter(["1" * 500])

    monkeypatch.setattr(Qwen3, "forward", counting)
    batch = said(policy, tokenizer, task_with(Book), ["1+1</tool>", "2" * 30], limit=600)
    assert batch.rollouts.lengths.tolist() == [4 + 500 + 1, 31 + 500 + 1]
    assert [width for width in widths if width > 1] == [4, 501, 501]  # the prompt, and two books
    assert len(widths) < 40
    batch = said(policy, tokenizer, task_with(Book), ["</tool>", "2" * 30], limit=30)
    assert batch.rollouts.lengths.tolist() == [30, 30]  # a reply is cut off at the limit


# ---- Environments that fail ------------------------------------------------------------------------


def test_an_environment_that_fails_costs_its_own_row_alone(policy, tokenizer, monkeypatch):
    """It raises an error when it is made or asked, or never answers. The row has failed, as when a verifier
    fails, and its neighbours wait for the timeout only, here 0.3 s."""
    monkeypatch.setattr(chat, "ENVIRONMENT_TIMEOUT", 0.3)
    forever = threading.Event()
    made = iter(["as it is made", "when asked", "never", "well", "well"])

    class Bad(Answers):
        def __init__(self, problem):
            super().__init__(problem)
            self.how = next(made)
            if self.how == "as it is made":
                raise OSError("no such server")

        def reply(self, text):
            if self.how == "when asked":
                raise ValueError("what?")
            if self.how == "never":
                forever.wait()
            return super().reply(text)

    began = time.monotonic()
    with pytest.warns(UserWarning, match="no such server|what\\?|in time"):
        batch = said(policy, tokenizer, task_with(Bad), ["1</tool>"] * 5)
    assert time.monotonic() - began < 20
    forever.set()
    assert sorted(part["failed"] for part in batch.parts) == [0, 0, 1, 1, 1]
    assert sorted(batch.rewards[0].tolist()) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("limit", [40, 12])
def test_every_environment_is_closed_once_it_is_no_longer_asked(policy, tokenizer, limit):
    """It is also closed if the completion was cut off. The reward still sees it open."""
    closed = []

    class Session(Answers):
        open = True

        def close(self):
            self.open = False
            closed.append(self)

    def is_open(text, problem):
        return float(problem["environment"].open), {}

    batch = said(policy, tokenizer, task_with(Session, is_open), ["12</tool>"] * 3, limit)
    assert batch.rollouts.finished.all() == (limit == 40)
    assert len(closed) == 3
    assert all(part["accuracy"] == 1 for part in batch.parts)


TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
ANSWER = "</think><answer>\\boxed{4}</answer>"


@pytest.mark.parametrize(
    "special, prompt, words",
    [
        ([], "{problem}", "<think>1+1=2" + ANSWER),
        (["<think>", "</think>"], "{problem}", "<think>1+1=2" + ANSWER),
        ([], "{problem}=<think>", "1+1=2" + ANSWER),
        (["<think>", "</think>"], "{problem}=<think>", "1+1=2" + ANSWER),
        ([], "{problem}<think></think>", ANSWER.removeprefix("</think>")),
        ([], "{problem}<think></think>", "<think>1+1=2" + ANSWER),
    ],
    ids=["the policy", "a special token", "the prompt", "both", "an empty one", "twice"],
)
def test_a_right_answer_is_paid_whoever_wrote_the_think_tag(special, prompt, words):
    """Some templates open <think> in the prompt, and in some models it is a special token. A reward must see
    the tag all the same."""
    tokenizer = symbol_tokenizer([*SYMBOLS, *TAGS])
    tokenizer.backend.add_special_tokens(special)
    policy = Qwen3(tiny_config(tokenizer.num_tokens, eos_token_id=0))
    task = replace(task_with(None, tagged_reward, ()), instruction=prompt)
    assert said(policy, tokenizer, task, [words]).rewards.item() == pytest.approx(1.1)


def test_what_an_environment_writes_is_never_paid(policy, tokenizer):
    class Gift(Answers):
        def __init__(self, problem):
            self.replies = iter(["\\boxed{4}"])

    batch = said(policy, tokenizer, task_with(Gift, boxed_reward), ["1+1</tool>", "\\boxed{4}"])
    assert "\\boxed{4}" in tokenizer.decode(batch.rollouts.completions()[0])
    assert batch.rewards.tolist() == [[0.0, 1.0]]


class Says10Million(Answers):
    def reply(self, text):
        return "1" * 10**7


def test_a_reply_of_any_length_is_bounded(policy, tokenizer):
    batch = said(policy, tokenizer, task_with(Says10Million), ["1</tool>"], limit=9000)
    assert len(batch.turns[0][0][1]) == 4000


@pytest.mark.parametrize("reply, why", [(12, "int"), ("higher", "no token for characters")])
def test_a_reply_is_text_that_the_model_can_read(reply, why, policy, tokenizer):
    """Otherwise the model would read "??????", and nobody would notice."""

    class Unreadable(Answers):
        def reply(self, text):
            return reply

    with pytest.warns(UserWarning, match=f"environment failed .*{why}"):
        batch = said(policy, tokenizer, task_with(Unreadable), ["1</tool>"])
    assert batch.parts[0]["failed"] == 1.0


def test_a_method_that_samples_without_the_environment_is_told_so(policy, tokenizer):
    class Deaf(GRPO):
        def roll_out(self, model, tokenizer, prompts, training, num_samples, **how):
            return sample(model, prompts, num_samples, how["max_new_tokens"])

    task = task_with(Answers)
    with pytest.raises(DataError, match="reply=reply"):
        roll_out(Deaf(max_new_tokens=200), policy, tokenizer, task, task.test, 8, 1.0)


def test_it_runs_where_the_device_is_a_gpu():
    """Replies are made on the CPU; samples stay on the device."""
    with PretendGPU():
        policy, tokenizer = load(ROOT / "notebooks" / "tiny", "cuda", torch.bfloat16)
        task = replace(arithmetic(10, 4), stops=("</think>",), turns=Answers)
        batch = roll_out(GRPO(max_new_tokens=40), policy, tokenizer, task, task.test, 2, 1.0)
        assert any(reply for turns in batch.turns for _, reply in turns)


def test_an_environment_that_answers_for_too_few_rows_is_an_error(policy, tokenizer):
    """Otherwise the other rows would end there without a message."""
    prompts = [tokenizer.encode("9=")]
    with pytest.raises(ValueError, match="shorter"):
        sample(policy, prompts, 8, 60, stop_ids=[*range(20)], reply=lambda rows, completions: [])
