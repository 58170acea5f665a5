"""canary.py - GRPO that also scores problems it never trains on, by exact string match.

Source:  chapter "Reward Design for Reasoning", the eval-vs-train reward gap: the reward rises, but
         the ability that it should measure does not.
Formula: warn if the step's reward is at least that of an earlier evaluation, but the share of right
         canaries is lower, and the two 95 % intervals do not overlap.
Changes: each evaluation adds a column canary to the log. A warning is printed, and the run
         continues.
         python train.py --method notebooks/methods/canary.py --canary FILE --canary-prompt {problem}
         To combine it with another method, write class Mine(Canary, DAPO) in a file of your own.
         Departure: in the chapter, the reward's own verifier scores the canaries. A hole in that
         verifier then raises both numbers, and the alarm stays silent.
Missing: sharing the work: with several processes, each samples all canaries. --fsdp is not
         supported.
"""

from dataclasses import dataclass

from appendix.plumbing import DataError, read_problems
from eval import evaluate
from rlvr import GRPO, records_of, roll_out
from verifiers import BOXED, Task, extract_boxed_answer


def strictest(completion, problem):
    """Return 1 if there is exactly one box and its content equals the answer letter by letter."""
    box = extract_boxed_answer(completion)
    right = float(box == problem["answer"] and completion.count(r"\boxed") == 1)
    return right, {"accuracy": right, "answered": float(box is not None)}


class Canary(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        canary: str = ""  # a file of problems, as for --task
        canary_prompt: str = BOXED  # must contain {problem}

    def setup(self, model, tokenizer):
        self.tokenizer = tokenizer
        if not self.settings.canary:
            raise DataError("canary.py needs problems: --canary FILE")
        problems = read_problems(self.settings.canary)
        self.task = Task("canary", [], problems, self.settings.canary_prompt, strictest)
        self.seen = []  # at each evaluation: the reward, and the low end of the share's interval
        return super().setup(model, tokenizer)

    def after_step(self, row, model):
        super().after_step(row, model)
        if "eval_accuracy" not in row:
            return
        given = (self.task, self.task.test, 1, 0.0)  # greedy
        batch = roll_out(self, model, self.tokenizer, *given)
        found = evaluate(records_of(batch), 1)
        row["canary"] = found["accuracy"]
        for reward, low in self.seen:
            if row["reward"] >= reward and found["high"] < low:
                rewards = f"the reward is {row['reward']:.3f}, it was {reward:.3f}"
                shares = f"{found['accuracy']:.1%} are right, it was {low:.1%} or more"
                print(f"warning: {rewards}; of the canaries {shares}")
                break
        self.seen.append([row["reward"], found["low"]])

    def state(self):
        return {**super().state(), "seen": self.seen}

    def load_state(self, state):
        super().load_state(state)
        self.seen = state["seen"]
