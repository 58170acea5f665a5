"""canary.py - GRPO with problems that are never trained on, judged by the strictest verifier.

Source:  chapter "Reward Design for Reasoning", the eval-vs-train reward gap: the reward rises,
         and what it stands for does not.
Formula: warn when the reward of the step is no lower than at an earlier evaluation, but the share of
         right canaries is, and the two 95 % intervals do not touch.
Changes: at each evaluation the log has a column canary; a warning is printed, the run goes on.
         python train.py --method notebooks/methods/canary.py --canary FILE --canary-prompt {problem}
         With another method: class Mine(Canary, DAPO) in a file of your own.
         Departure: in the chapter the canary is judged by the reward's own verifier. A hole in it
         is then paid in both, and the alarm stays silent (notebook 6, the experiment canary).
Missing: on several processes each samples all canaries; not with --fsdp.
"""

from dataclasses import dataclass

from appendix.plumbing import DataError, read_problems
from eval import evaluate
from rlvr import GRPO, records_of, roll_out
from verifiers import BOXED, Task, extract_boxed_answer


def strictest(completion, problem):
    """1 if there is one box, and it holds the answer letter by letter."""
    box = extract_boxed_answer(completion)
    right = float(box == problem["answer"] and completion.count(r"\boxed") == 1)
    return right, {"accuracy": right, "answered": float(box is not None)}


class Canary(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        canary: str = ""  # a file of problems, as --task reads it
        canary_prompt: str = BOXED  # with {problem} in it

    def setup(self, model, tokenizer):
        self.tokenizer = tokenizer
        if not self.settings.canary:
            raise DataError("canary.py needs problems: --canary FILE")
        problems = read_problems(self.settings.canary)
        self.task = Task("canary", [], problems, self.settings.canary_prompt, strictest)
        self.seen = []  # reward, low, high of the share at each evaluation
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
