"""Environments by hand: what a policy says, what it reads in reply, and what that earns."""

import math
import statistics
import string
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from model import Qwen3
from notebooks.environments import adapters, game, search
from notebooks.environments.calculator import calculate, silent
from notebooks.models import make_tiny
from notebooks.models.make_tiny import init_weights, symbol_tokenizer, tiny_config
from rlvr import GRPO, roll_out
from verifiers import Task, boxed_reward


# A model with random weights, whose tokens are all characters of a keyboard. Token 0 ends a turn.
TOKENIZER = symbol_tokenizer(string.printable)
CONFIG = tiny_config(TOKENIZER.num_tokens, eos_token_id=0)
MODEL = init_weights(Qwen3(CONFIG), torch.Generator().manual_seed(0))


class Scripted(GRPO):
    """Says what it is told. A script is a whole completion, replies included; the replies in it are skipped, not said."""

    def __init__(self, scripts):
        super().__init__(max_new_tokens=200)
        self.scripts = scripts

    def roll_out(self, model, tokenizer, prompts, training, **how):
        ids = [torch.tensor([*tokenizer.encode(script), 0.0]) for script in self.scripts]
        said = pad_sequence([*ids, torch.zeros(200)], True)[:-1]

        def choose(logits, said, temperature):
            return said.long(), torch.zeros(len(said))

        how |= {"uniforms": said, "choose": choose}
        return super().roll_out(model, tokenizer, prompts, training, **how)


def play(task, problem, *scripts):
    """Return the Batch of these completions of one problem. A tag is several tokens, as in most real vocabularies."""
    return roll_out(Scripted(scripts), MODEL, TOKENIZER, task, [problem], len(scripts))


# ---- The calculator ------------------------------------------------------------------------------


def test_the_calculator_by_hand():
    calls = ("47*83", " 3901 - 12 ", "-7+-5")
    assert [calculate(call) for call in calls] == ["3901", "3889", "-12"]
    assert silent().turns({}).reply("<tool>47*83</tool>") == ""


CALLS = ["", "1+2+3", "2**9", "9**9**9", "1/0", "1234567890+1", "__import__('os').system('ls')"]
CALLS += ["1e5+1", "1_0+1", "１+１", "1+1\n2+2", "(1+1)", "9" * 10**6, "1+" * 10**6]


@pytest.mark.parametrize("call", CALLS)
def test_the_calculator_refuses_all_else(call):
    assert calculate(call) == "error"


def test_a_conversation_with_the_calculator_by_hand():
    """It makes two calls, and answers in a third turn. Only the policy's own words are rewarded and trained on."""
    task = make_tiny.products(10, 10)
    problem = {"problem": "47*83-12=", "answer": "3889"}
    answer = "</think><answer>\\boxed{3889}</answer>"
    said = "<think><tool>47*83</tool>", "<tool>3901-12</tool>", answer
    batch = play(task, problem, f"{said[0]}3901{said[1]}3889{said[2]}")
    assert batch.turns == [[(said[0], "3901"), (said[1], "3889"), (answer, None)]]
    assert batch.texts == ["".join(said)] and batch.rewards.item() == pytest.approx(1.1)
    assert batch.rollouts.lengths.item() == len("".join(said)) + 8 + 1  # 8 digits; the end token
    assert batch.rollouts.mask.sum() == len("".join(said)) + 1


def test_a_hostile_call_is_an_error_and_the_calculator_falls_silent():
    """A call that is no calculation gets "error". Four calls are answered; the fifth gets an empty reply."""
    task = make_tiny.products(10, 10)
    calls = "<tool>1+1</tool>2" * 4 + "<tool>2+2</tool>5"
    batch = play(task, task.test[0], "<tool>9*9*9</tool>error1", calls)
    replies = [[reply for _, reply in turns] for turns in batch.turns]
    assert replies == [["error", None], ["2", "2", "2", "2", "", None]]


# ---- The game, and the search engine -------------------------------------------------------------


def test_who_halves_what_is_left_wins_seven_games_of_ten():
    """Guess 5, then the middle of the range that is left, then a neighbour. The silent game reveals nothing."""
    task = game.game()
    won = []
    for problem in task.test:
        digit = int(problem["answer"])
        second = 5 if digit == 5 else (2 if digit < 5 else 7)
        third = second + (1 if digit > second else -1)
        signs = ["" if digit == guess else "<" if digit < guess else ">" for guess in (5, second)]
        batch = play(task, problem, f"5{signs[0]}{second}{signs[1]}{third}")
        won.append(batch.rewards.item())
    assert sum(won) == 7
    assert game.silent().turns({"answer": "3"}).reply("5") == "."


def test_a_search_finds_the_page_and_only_the_answer_is_paid():
    """As in the paper, only the outcome is rewarded. An answer that is on a page, but was not given, earns nothing."""
    task = search.search()
    problem = task.test[0]
    query = f"<search>{problem['query']}</search>"
    found = search.Search(problem).reply(query)
    nothing = search.Nothing(problem).reply(query)
    assert problem["answer"] in found and nothing == "<information></information>"
    right = f"<answer>{problem['answer']}</answer>"
    batch = play(task, problem, query + found + right, query + found + "<answer>?</answer>")
    assert batch.rewards.tolist() == [[1.0, 0.0]]
    form = search.with_form(query + right, {**problem, "turns": []})
    assert form[0] == pytest.approx(1.1)


def test_bm25_by_hand(monkeypatch):
    """No page repeats a word. Of three pages of two words one has "a": idf = ln(4 / 1.5), over 2.2 at the mean length."""
    assert all(len({*words}) == len(words) for words in search.PAGES.values())
    assert statistics.fmean(map(len, search.PAGES.values())) == search.MEAN
    pages = {page: search.words(page) for page in ("a b", "b c", "b d")}
    monkeypatch.setattr(search, "PAGES", pages)
    monkeypatch.setattr(search, "MEAN", 2)
    assert [*search.bm25("a").values()] == pytest.approx([math.log(4 / 1.5) / 2.2, 0, 0])


# ---- Others' rewards and worlds --------------------------------------------------------------------


def test_trls_rewards_both_ways():
    """TRL's own accuracy_reward scores one conversation, and our reward is called as TRL's trainer calls it."""
    rewards = pytest.importorskip("trl.rewards")
    reward = adapters.of_trl(rewards.accuracy_reward, chat=True)
    problem = {"problem": "1+1=", "answer": "2", "solution": "$2$"}
    assert reward("So \\boxed{2}", problem)[0] == 1.0
    assert reward("So \\boxed{3}", problem)[0] == 0.0
    ours = adapters.for_trl(boxed_reward)
    given = {"problem": ["1+1=", "1+2="], "answer": ["2", "2"]}
    given |= {"trainer_state": object(), "log_metric": print}
    assert ours(completions=["\\boxed{2}", "\\boxed{3}"], **given) == [1.0, 0.0]


def test_gymnasiums_lake_is_an_environment():
    """Down, down, right, right, down, right, on ice that is not slippery: the goal gives a reward of 1."""
    gymnasium = pytest.importorskip("gymnasium")

    def lake(problem):
        world = gymnasium.make("FrozenLake-v1", is_slippery=False)
        return adapters.Stepped(world, problem, lambda text: "<v>^".find(text[-1:]))

    problem = {"problem": "S", "answer": "G", "seed": 0}
    task = Task("lake", [], [], "{problem}", adapters.steps_reward, ("v", ">"), lake)
    batch = play(task, problem, "v4v8>9>10v14>", "v4>")
    assert batch.rewards.tolist() == [[1.0, 0.0]]
    assert [reply for _, reply in batch.turns[0]] == ["4", "8", "9", "10", "14", None]


def test_a_step_may_return_an_object():
    """OpenEnv's steps do. The session stays open until close, which roll_out calls at the end."""
    results = [SimpleNamespace(observation=n, reward=0.5, done=n > 2) for n in (2, 3)]
    world = Mock(**{"step.side_effect": results})
    served = adapters.Stepped(world, {"seed": 0}, int)
    assert served.reply("1") == "2" and not world.close.called
    assert served.reply("2") is None and not world.close.called  # the reward may still look
    served.close()
    assert world.close.called
    assert adapters.steps_reward("", {"environment": served}) == (1.0, {})
