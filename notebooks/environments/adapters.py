"""adapters.py - uses rewards of TRL and environments with reset and step here, and our rewards in TRL.

    task.reward = of_trl(f)                          TRL's f(prompts, completions, **columns) -> list
    GRPOTrainer(reward_funcs=for_trl(reward), ..)    one of our rewards in TRL
    task.turns = lambda problem: Stepped(make(), problem, read)
    task.turns = lambda problem: Stepped(client().sync(), problem, read)     a session of an OpenEnv server
    task.reward = steps_reward                       the sum of the steps' rewards

read turns the text of a turn into an action, or None if it has no action: then the completion ends. The text comes
from a model, so read must match it against a pattern and never run it. Tested with Gymnasium 1.4, TRL 1.16, and a
local server of openenv-core 0.3, which must allow one session for each completion of a batch (max_concurrent_envs).
"""

from verifiers import checked


def of_trl(function, chat=False):
    """Return a reward of TRL's GRPOTrainer as one of ours, called for one completion at a time. chat: pass prompt
    and completion as a conversation."""

    def reward(completion, problem):
        prompt = problem["problem"]
        if chat:
            prompt = [{"role": "user", "content": prompt}]
            completion = [{"role": "assistant", "content": completion}]
        columns = {name: [value] for name, value in problem.items()}
        [value] = function(prompts=[prompt], completions=[completion], **columns)
        return value or 0.0, {}

    return reward


def for_trl(reward):
    """Return one of our rewards as TRL's. The columns of the data set become the problem. If a completion is a
    conversation, the reward gets the text of its last message."""

    def function(completions, **columns):  # TRL also passes its trainer's state and functions
        columns = {name: values for name, values in columns.items() if isinstance(values, list)}
        rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
        return [checked(reward(text, row))[0] for text, row in zip(texts, rows)]

    function.__name__ = reward.__name__  # TRL logs each reward by its name
    return function


class Stepped:
    """An environment with reset(seed=..) and step(action), as in Gymnasium, or in OpenEnv, whose steps return an
    object. The problem's text must contain the first observation, which reset(seed=problem["seed"]) reproduces."""

    def __init__(self, environment, problem, read):
        self.environment = environment
        self.read = read
        self.total = 0.0
        environment.reset(seed=problem["seed"])

    def reply(self, text):
        action = self.read(text)
        if action is None:
            return None
        result = self.environment.step(action)
        if not isinstance(result, tuple):
            result = (result.observation, result.reward, result.done, False)
        self.total += float(result[1] or 0.0)
        return None if result[2] or result[3] else str(result[0])

    def close(self):
        self.environment.close()


def steps_reward(completion, problem):
    return problem["environment"].total, {}
