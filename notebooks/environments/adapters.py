"""adapters.py - rewards of TRL, and environments with reset and step, as this project's.

    task.reward = of_trl(f)                          TRL's f(prompts, completions, **columns) -> list
    GRPOTrainer(reward_funcs=for_trl(reward), ..)    and back
    task.turns = lambda problem: Stepped(make(), problem, read)
    task.turns = lambda problem: Served(client().sync(), problem, read)      a session of an OpenEnv server
    task.reward = steps_reward                       the sum of what its steps paid

read: the text of a turn -> an action, or None: no action, the completion ends. What a policy says is text from a model:
read matches it against a pattern and never runs it. Tried with Gymnasium 1.4, TRL 1.16, and a local server of
openenv-core 0.3.
"""


def of_trl(function, chat=False):
    """A reward of TRL's GRPOTrainer, asked for one completion. chat: in the form of a conversation."""

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
    """A reward of this project as TRL's: the data set's columns are the problem's."""

    def function(completions, **columns):  # some are no columns: its trainer's state and functions
        columns = {name: values for name, values in columns.items() if isinstance(values, list)}
        rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        return [reward(text, row)[0] for text, row in zip(completions, rows)]

    return function


class Stepped:
    """An environment with reset(seed=..) and step(action) of Gymnasium, or of OpenEnv, whose steps return an object.
    What it shows at first belongs into the problem's text; problem["seed"] makes it."""

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


class Served(Stepped):
    """A session of an OpenEnv server, by the synchronous form of its client. It ends once the batch is judged; the server
    has to allow one for each completion of a batch (max_concurrent_envs)."""


def steps_reward(completion, problem):
    return problem["environment"].total, {}
