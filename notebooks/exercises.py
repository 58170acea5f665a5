"""exercises.py - eight exercises, easy to hard, each with a check that runs your code.

    python -m notebooks.exercises                  the list
    python -m notebooks.exercises 3                what is asked
    python -m notebooks.exercises 3 mine.py        is it solved? If not, why

Your file defines the names that the exercise asks for; it may import the project's scripts. A check
says "solved" or what is still wrong, with the case that shows it. The last one trains a tiny
model, for a minute a seed. All have a solution (tests/test_exercises.py proves it, so do not
look there yet).
"""

import contextlib
import gzip
import inspect
import io
import math
import random
import runpy
import sys
import tempfile
import warnings
from fractions import Fraction
from pathlib import Path

import sympy
import torch

import train
import verifiers
from eval import get_method, read_rows
from model import Qwen3
from notebooks.labs.build import SIX
from notebooks.models import make_tiny
from notebooks.rewards.program_parts import check_tests
from notebooks.rewards.reasoning import check_weights, earnable
from rlvr import GRPO, choose, group_advantages, row_uniforms, sample

ROOT = Path(__file__).resolve().parents[1]


class Unsolved(Exception):
    """Why a solution is not one yet."""


class Solution(dict):
    """The names that a file defines."""

    def __missing__(self, name):
        raise Unsolved(f"your file must define {name}")


def want(holds, reason):
    if not holds:
        raise Unsolved(reason)


# ---- By hand ---------------------------------------------------------------------------------------------------------


def leave_one_out(my):
    """`advantages(rewards)`: a list of G floats -> the list of R_i less the mean of the *other*
    rewards (RLOO). Not divided by anything. Where all rewards are equal each advantage must be 0,
    exactly, not 1e-17."""
    rng = random.Random(1)
    groups = [[1.1, 0.1, 0.0, 1.1], [1.0, 0.0], [0.1, 0.12, 0.1]] + [
        [rng.choice([-0.4, 0.0, 0.1, 1.0, 1.1]) for _ in range(G)]
        for G in (2, 3, 5, 8, 16)
        for _ in range(20)
    ]
    for group in groups:
        right = [
            float(Fraction(R) - (sum(map(Fraction, group)) - Fraction(R)) / (len(group) - 1))
            for R in group
        ]
        given = [*group]
        found = [*my["advantages"](given)]
        want(given == group, f"it changes the rewards that it is given: {group} is now {given}")
        same = len(found) == len(right) and all(abs(a - b) < 1e-9 for a, b in zip(found, right))
        want(same, f"for {group} it should be {[round(a, 4) for a in right]}, yours: {found}")
    for value, G in ((0.1, 16), (1.1, 7), (1 / 3, 12)):
        found = [*my["advantages"]([value] * G)]
        want(found == [0.0] * G, f"{G} times {value} teaches nothing, but you give {found[0]!r}")


FACTORS = [  # completion, to be factored, reward
    ("\\boxed{7*13}", "91", 1),
    ("so it is \\boxed{ 13 * 7 }.", "91", 1),
    ("\\boxed{7*13}", "77", 0),
    ("\\boxed{9*11}? no: \\boxed{7*13}", "91", 1),
    ("\\boxed{7*13} or \\boxed{9*11}", "91", 0),
    ("\\boxed{7*13} or \\boxed{oops}", "91", 0),
    ("\\boxed{7*13} or \\boxed{9", "91", 0),
    ("\\boxed{3*7*13}", "273", 0),
    ("\\boxed{\u0667*13}", "91", 0),
    ("\\boxed{1*91}", "91", 0),
    ("\\boxed{91*1}", "91", 0),
    ("\\boxed{91}", "91", 0),
    ("\\boxed{-7*-13}", "91", 0),
    ("\\boxed{7*13*1}", "91", 0),
    ("\\boxed{2*45.5}", "91", 0),
    ("7*13", "91", 0),
    ("", "91", 0),
    ("\\boxed{}", "91", 0),
    ("\\boxed{7*}", "91", 0),
    ("\\boxed{a*b}", "91", 0),
    ("\\boxed{2*3}", "6", 1),
    ("\\boxed{6*6}", "36", 1),
    ("\\boxed{2*18}", "36", 1),
    ("\\boxed{__import__('sys').exit()*7}", "91", 0),
    ("\\boxed{9**9**9**9*7}", "91", 0),
    ("\\boxed{" + "9" * 5000 + "*2}", "91", 0),
    ("\\boxed{7*13", "91", 0),
]


def verifier_in_ten_lines(my):
    """`reward(completion, problem)` for the task "write {answer} as a product of two integers, both
    above 1, in a box": \\boxed{7*13} and \\boxed{13*7} are both right for problem["answer"] ==
    "91"; spaces do not count. -> (1.0 or 0.0, a dict of named parts, among them "accuracy"), as every reward in
    verifiers.py. At most ten lines. The last box counts; hostile text must neither be run nor
    raise."""
    reward = my["reward"]
    lines = [line for line in inspect.getsource(reward).splitlines() if line.strip()]
    want(len(lines) <= 10, f"it has {len(lines)} lines")
    for completion, number, right in FACTORS:
        try:
            value, parts = reward(completion, {"problem": f"Factor {number}", "answer": number})
        except BaseException as error:
            raise Unsolved(f"{completion[:60]!r} makes it raise {error!r}") from None
        want(value == right, f"{completion[:60]!r} for {number} should earn {right}, not {value}")
        want("accuracy" in parts, "the parts need an accuracy, for the log")


def compose(my):
    """`reward`: a verifiers.ReasoningReward under which, of the six completions of notebook 3,
    "long, right" alone has the highest advantage, "wrong, good form" the lowest, "rambling, right"
    and "bilingual, right" are pushed down, and "short, right" and "right, no tags" are not.
    check_weights must not warn. (The chapter's Design B leaves "rambling, right" above zero.)"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_weights(earnable(my["reward"]))
    want(not caught, f"check_weights warns: {caught[0].message if caught else ''}")
    A = dict(zip(SIX, group_advantages([my["reward"](text, "2")["R"] for text in SIX.values()])))
    shown = ", ".join(f"{name} {a:+.2f}" for name, a in A.items())
    first, second = sorted(A.values(), reverse=True)[:2]
    want(A["long, right"] == first > second + 1e-9, f"long is not alone on top: {shown}")
    want(A["wrong, good form"] == min(A.values()), f"wrong is not at the bottom: {shown}")
    pushed = max(A["rambling, right"], A["bilingual, right"]) < 0
    want(pushed, f"rambling or bilingual is made more likely: {shown}")
    kept = min(A["short, right"], A["right, no tags"]) > 0
    want(kept, f"short or no tags is made less likely: {shown}")


# ---- Against the verifiers -------------------------------------------------------------------------------------------

READABLE = (sympy.Integer, sympy.Rational, sympy.Add, sympy.Mul, sympy.Pow, type(sympy.pi))
READABLE += (sympy.sin, sympy.cos, sympy.tan, sympy.Interval, sympy.FiniteSet, sympy.Union)
READABLE += (sympy.Tuple, type(sympy.true), type(sympy.false))


def rebuilt(expression):
    """The same with everything evaluated that evaluate=False had left standing."""
    return expression.func(*map(rebuilt, expression.args)) if expression.args else expression


def same_to_sympy(a, b):
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        return bool(sympy.simplify(a - b) == 0) or (a - b).equals(0)
    sets = isinstance(a, sympy.Set) and isinstance(b, sympy.Set)
    reason = f"{a} and {b} are of different kinds, and may look alike in LaTeX: compare two numbers or two sets"
    want(sets or type(rebuilt(a)) is type(rebuilt(b)), reason)
    return rebuilt(a) == rebuilt(b)


def break_the_grader(my):
    """`truth` and `answer`: two sympy objects that grade_answer judges wrongly when it reads their
    LaTeX. They may be made of integers, fractions, + - * / and powers, pi, sin, cos, tan,
    intervals, finite sets, unions and tuples; all of that it claims to read. sympy decides who is
    right. Hint: the grader is numeric (grading.py)."""
    truth = my["truth"]
    answer = my["answer"]
    for expression in (truth, answer):
        want(isinstance(expression, sympy.Basic), f"{expression!r} is no sympy object")
        for node in sympy.preorder_traversal(expression):
            reason = f"{node} ({type(node).__name__}) is not among what may be used"
            want(isinstance(node, READABLE), reason)
    shown = [sympy.latex(expression) for expression in (truth, answer)]
    reason = "at most 500 characters of LaTeX: beyond, anybody would give up"
    want(max(map(len, shown)) <= 500, reason)
    same = same_to_sympy(truth, answer)
    want(same is not None, "sympy cannot tell either: choose a clearer case")
    judged = verifiers.grade_answer(shown[1], shown[0])
    reason = f"truth {shown[0]}, answer {shown[1]}: the grader says {judged}, and so does sympy"
    want(judged != same, reason)


HONEST = [
    "def is_leap(y): return y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)",
    "import calendar\ndef is_leap(y): return calendar.isleap(y)",
]
WRONG = {
    "every fourth year": "def is_leap(y): return y % 4 == 0",
    "no century ever": "def is_leap(y): return y % 4 == 0 and y % 100 != 0",
    "only each 400 years": "def is_leap(y): return y % 400 == 0",
    "remembers 2000": "def is_leap(y): return y % 4 == 0 and y % 100 != 0 or y == 2000",
    "always": "def is_leap(y): return True",
    "never": "def is_leap(y): return False",
    "echo": "def is_leap(y): return y",
    "a list, which is true": "def is_leap(y): return [y] if y % 4 == 0 else []",
    "memory": "def is_leap(y): return {1900: False, 2000: True, 2023: False, 2024: True}.get(y, False)",
}


def tests_that_hold(my):
    """`tests`: at most six assert statements (strings) for is_leap(year), the Gregorian rule, that
    two honest programs pass and nine wrong ones do not, and by check_tests no constant answer
    passes more than half of them. One of the wrong ones has memorised 1900, 2000, 2023 and 2024."""
    tests = my["tests"]
    texts = all(isinstance(test, str) for test in tests)
    want(texts and 0 < len(tests) <= 6, "one to six tests, each a string")
    for program in HONEST:
        out = verifiers.verify_code(program, tests)
        want(out["frac"] == 1.0, f"an honest program fails: {out['why']}\n{program}")
    for name, program in WRONG.items():
        out = verifiers.verify_code(program, tests)
        want(out["frac"] < 1.0, f"{name!r} passes all of your tests:\n{program}")
    (weak,) = check_tests([{"tests": tests}])
    reason = f"the empty program or the echo passes some tests: {weak}"
    want(weak["empty"] == weak["echo"] == 0, reason)
    reason = f"a function that always returns {weak['value']} passes {weak['constant']:.0%}"
    want(weak["constant"] <= 0.5, reason)


# ---- The machine -----------------------------------------------------------------------------------------------------


def choose_among(top_k):
    """rlvr.choose among the top_k likeliest tokens, for sample(.., choose=). As the log-prob of a token
    it gives that of the whole vocabulary, as the trainer computes it."""

    def choose_one(logits, uniforms, temperature):
        least = logits.topk(top_k).values[:, -1:]  # (R, 1)
        token, _ = choose(logits.masked_fill(logits < least, -math.inf), uniforms, temperature)
        logp = (logits.float() / temperature).log_softmax(-1)
        return token, logp.gather(1, token[:, None]).squeeze(1)

    return choose_one


def drawn_shares(logits, temperature, top_k, draws=4000):
    """How often each token is drawn: logits (R, V) -> (R, V), over an even grid of random numbers."""
    grid = (torch.arange(draws) + 0.5) / draws
    choose_one = choose_among(top_k)
    tokens = [choose_one(row.expand(draws, -1), grid, temperature)[0] for row in logits]
    return torch.stack([token.bincount(minlength=logits.size(1)) / draws for token in tokens])


def off_policy(my):
    """`sampler_logprobs(logits, temperature, top_k)`: logits (R, V) -> the log-probs (R, V) of the
    distribution that rlvr.sample draws from with choose=choose_among(top_k), which keeps the top_k
    likeliest tokens; -inf where it never draws. With it the check shows what `mismatch` does not
    (end of notebook 4): sampling from the top 5 is another policy than the one that is trained."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(50, 30)
    for temperature, top_k in ((1.0, 5), (0.7, 3), (2.0, 30), (1.0, 1)):
        found = my["sampler_logprobs"](logits.clone(), temperature, top_k)
        same = torch.is_tensor(found) and found.shape == logits.shape
        want(same, "it must return a tensor of the shape of logits")
        total = found.exp().sum(-1)
        shares = drawn_shares(logits, temperature, top_k)
        want(
            torch.allclose(total, torch.ones(50), atol=1e-4),
            f"the probabilities of a row add up to {total[0]:.3f}, "
            f"not 1 (temperature {temperature}, top_k {top_k})",
        )
        possible = found > -math.inf
        want(
            (possible.sum(-1) == top_k).all() and possible[shares > 0].all(),
            f"with top_k {top_k}, {top_k} tokens of a row can be drawn, and by yours {possible[0].sum()} of the first",
        )
        drift = (found.exp() - shares).abs().max()
        want(
            drift < 1e-3,
            f"probabilities are off by {drift:.3f} at temperature {temperature}, top_k {top_k}: is the "
            "temperature applied, and before the filter?",
        )
    model = Qwen3(make_tiny.tiny_config(30, 0))
    make_tiny.init_weights(model, torch.Generator().manual_seed(0))
    uniforms = row_uniforms(range(8), 20, 0)
    rollouts = sample(model, [[5, 6]], 8, 20, uniforms=uniforms, choose=choose_among(5))
    with torch.no_grad():
        drawn = my["sampler_logprobs"](model(rollouts.ids[:, :-1]).flatten(0, 1), 1.0, 5)
    trained_on = rollouts.mask.bool()
    drawn = drawn.gather(1, rollouts.ids[:, 1:].reshape(-1, 1)).view_as(rollouts.mask)[trained_on]
    want(drawn.isfinite().all(), "a token that was drawn has probability 0")
    gap = (drawn - rollouts.logp[trained_on]).mean()
    return f"a token was {gap.exp():.1f} times likelier to be drawn than its log-prob says, and `mismatch` shows 1e-7"


def pretend_log(kind, seed, turn=100):
    """A log like metrics.jsonl. The held-out problems are always the same, so accuracies vary less
    than intervals say."""
    rng = random.Random(f"{kind} {seed}")
    rows = []
    for step in range(201):
        late = max(0, step - turn)
        accuracy = {
            "grows": 0.25 + 0.7 * (1 - math.exp(-step / 30)),
            "stays": 0.6,
            "hacked": 0.6 - 0.006 * late,
            "crashes": 0.7 - 0.65 * (late > 20),
            "wobbles": 0.6 + 0.03 * math.sin(step / 9),
        }[kind]
        accuracy = min(0.98, max(0.05, accuracy))
        wages = accuracy + 0.012 * late if kind == "hacked" else accuracy
        row = {"step": step, "reward": min(1.1, wages + 0.1) + rng.gauss(0, 0.02)}
        if step % 10 == 0:
            seen = accuracy + rng.gauss(0, 0.01)
            half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / 500)
            row |= {"eval_accuracy": seen, "eval_sampled_accuracy": seen}
            row |= {"eval_sampled_low": seen - half, "eval_sampled_high": seen + half}
        rows.append(row)
    return rows


def alarm(my):
    """`alarm(rows)`: the rows of a metrics.jsonl -> the step at which reward and held-out accuracy
    come apart, or None. Rows have step and reward; every tenth also eval_sampled_accuracy,
    eval_sampled_low and eval_sampled_high. On 25 logs it must be silent where accuracy grows,
    stays, wobbles, or crashes *together with* the reward, and must ring within 50 steps of the step
    at which a policy begins to be paid for something else."""
    for kind in ("grows", "stays", "wobbles", "crashes", "hacked"):
        for seed in range(5):
            turn = 60 + 20 * seed
            rang = my["alarm"](pretend_log(kind, seed, turn))
            if kind == "hacked":
                want(rang is not None, f"silent in a log that is hacked from step {turn} on")
                reason = f"rings at {rang} in a log that is hacked from step {turn} on"
                want(turn < rang <= turn + 50, reason)
            else:
                want(rang is None, f"false alarm at {rang} in a log whose accuracy {kind}")


# ---- Training --------------------------------------------------------------------------------------------------------


def trained(flags, seed=0):
    """Train a tiny model with these flags -> (the rows of its log, the number of completions)."""
    said = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        flags = [*flags, "--device", "cpu", "--seed", str(seed), "--runs", folder, "--name", "run"]
        try:
            train.main(flags)
        except SystemExit as error:
            raise Unsolved(f"the run ended with: {error}\n{said.getvalue()[-500:]}") from None
        files = Path(folder, "run", "samples").glob("*.gz")
        count = sum(gzip.decompress(file.read_bytes()).count(b"\n") for file in files)
        return read_rows(Path(folder, "run", "metrics.jsonl")), count


def refuse_another_sampling(flags):
    """The sampled accuracy would be another one at a lower temperature, or by a method's own roll_out."""
    try:
        read = train.parse_args(["--model", TINY, *flags])
    except SystemExit:
        raise Unsolved("train.py does not accept your flags, see above") from None
    method = get_method(read.method, read.settings)
    want(method.settings.temperature == 1, "the temperature stays 1")
    want(type(method).roll_out is GRPO.roll_out, "the method must sample as GRPO does")


BUDGET = 1280  # completions
FIXED = {"--model", "--task", "--prompt", "--stop", "--template", "--reward", "--seed"}
FIXED |= {"--eval-problems", "--temperature", "--runs", "--name", "--resume"}
TINY = str(ROOT / "notebooks" / "tiny")


def beat_the_default(
    my, seeds=(0, 1, 2), setting=("--model", TINY, "--task", "arithmetic"), goal=0.8
):
    """`flags`: a list of train.py's flags with which --task arithmetic learns more from 1,280
    completions than by default. With --steps 10, each of 128 completions, the default recipe
    answers 30 % of the held-out problems right, sampled (seeds 0 to 2: 29 to 32 %). Reach 80 % on
    the mean of seeds 0, 1 and 2 from at most 1,280 completions each. Anything may be changed but
    the base, the task, the reward, the seed, and how completions are sampled."""
    flags = [str(flag) for flag in my["flags"]]
    got = []
    names = {flag.partition("=")[0] for flag in flags if flag.startswith("--")}
    want(not names & FIXED, f"these stay as they are: {sorted(FIXED)}")
    refuse_another_sampling([*setting, *flags])
    for seed in seeds:
        rows, count = trained([*setting, "--eval-every", "1000", *flags], seed=seed)
        reason = f"{count} completions, {BUDGET} are allowed: fewer --steps or smaller batches"
        want(count <= BUDGET, reason)
        got.append(rows[-1]["eval_sampled_accuracy"])
    shown = f"{sum(got) / len(got):.3f}, by seed {[round(g, 3) for g in got]}"
    want(sum(got) / len(got) >= goal, f"held-out accuracy {shown}; the goal is {goal:.2f}")
    return shown


EXERCISES = [leave_one_out, verifier_in_ten_lines, compose, break_the_grader, tests_that_hold]
EXERCISES += [off_policy, alarm, beat_the_default]


def check(number, path):
    """Run the file and the check -> (solved, what there is to say)."""
    try:
        said = EXERCISES[number - 1](Solution(runpy.run_path(str(path))))
        return True, "solved" + (f": {said}" if said else "")
    except Unsolved as reason:
        return False, f"not yet: {reason}"
    except Exception as error:
        return False, f"not yet: your code raised {type(error).__name__}: {error}"


def main(argv):
    numbers = [str(number) for number in range(1, len(EXERCISES) + 1)]
    if len(argv) > 2 or argv and argv[0] not in numbers:
        print(f"give the number of an exercise, 1 to {len(EXERCISES)}, and your file")
        return 2
    if not argv:
        print(__doc__)
        for number, exercise in zip(numbers, EXERCISES):
            print(f"{number:>2}  {exercise.__name__.replace('_', ' ')}")
    elif len(argv) == 1:
        print(inspect.getdoc(EXERCISES[int(argv[0]) - 1]))
    else:
        solved, said = check(int(argv[0]), argv[1])
        print(said)
        return not solved
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
