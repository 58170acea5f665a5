"""game.py - an environment: guess a digit in three turns, and learn after each guess if it is lower or higher.

    python -m notebooks.models.make_tiny --random --task game --out runs/game
    python train.py --model runs/game --task notebooks/environments/game.py:game --steps 200 --lr 1e-3 \
        --num-samples 32

The reward comes at the end, and only the environment knows it. A policy that gets empty hints (`silent`, the control)
finds at most 3 of the 10 digits. By halving the range each time, a policy finds 1 + 2 + 4 = 7. A policy with random
initial weights learns to do so.
"""

from verifiers import Task

TURNS = 3


class Game:
    """Replies "<" if the digit is lower than the guess, ">" if it is higher, and None once the game is over."""

    def __init__(self, problem):
        self.digit = problem["answer"]
        self.guesses = 0
        self.won = False

    def reply(self, text):
        guess = text[-1:]
        if not guess.isdigit():
            return None  # the policy has ended its turn without a guess
        self.guesses += 1
        self.won = guess == self.digit
        if self.won or self.guesses == TURNS:
            return None
        return "<" if self.digit < guess else ">"


class Silent(Game):
    def reply(self, text):
        return super().reply(text) and "."


def won_reward(completion, problem):
    game = problem["environment"]
    return float(game.won), {"guesses": game.guesses}


def game(turns=Game):
    problems = [{"problem": "guess", "answer": digit} for digit in "0123456789"]
    stops = tuple("0123456789")
    return Task("game", problems * 8, problems, "{problem}", won_reward, stops, turns)


def silent():
    return game(Silent)
