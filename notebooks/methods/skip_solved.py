"""skip_solved.py - GRPO that leaves out problems that are always or never solved.

Source:  chapter "Reward Design for Reasoning", difficulty-aware shaping.
Formula: a problem is left out if its last three visits had a mean accuracy above 0.95 or below
         0.05.
Changes: which problems a step gets. Each time a problem is left out, its oldest visit is forgotten.
         So it is soon tried again, because the policy has changed by then.
Missing: an effect in the first three epochs, 3 * problems / prompts_per_step steps.
"""

from curriculum import Visits

from rlvr import GRPO


class SkipSolved(Visits, GRPO):
    def pick(self, problems, step, memory):
        """Walk through the usual order of problems; memory["next"] is the place in it."""
        P = self.settings.prompts_per_step
        visits = memory.setdefault("visits", {})
        drawn = {}  # the problems of each usual step
        chosen = []
        while len(chosen) < P:
            turn, place = divmod(memory.get("next", 0), P)
            memory["next"] = turn * P + place + 1
            if turn not in drawn:
                drawn[turn] = super().pick(problems, turn + 1, memory)
            index = drawn[turn][place]
            last = visits.get(str(index), [])
            if len(last) == 3 and not 0.05 <= round(sum(last) / 3, 6) <= 0.95:
                visits[str(index)] = last[1:]
            else:
                chosen.append(index)
        return self.visit(chosen, memory)
