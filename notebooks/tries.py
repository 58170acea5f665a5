"""tries.py - a solution to the questions under "Try" at the end of the notebooks, each a function that runs.

    python notebooks/tries.py                 the list, with the seconds that each takes on one core
    python notebooks/tries.py 4.1             the solution to question 1 of notebook 4
    python notebooks/tries.py 4.1 --source    its code

PATH.md ("Answers to Try") says in words what they print. Questions that ask for an idea rather than for a number, and
those of notebook 9, which take hours of a core, are answered there alone.
"""

import argparse
import contextlib
import gzip
import inspect
import io
import json
import math
import re
import sys
import tempfile
from pathlib import Path

from _root import ROOT

import torch

import train
from eval import evaluate, read_rows
from evaluation import canary
from grpo_step import collect, grpo_loss
from make_tiny import PHASES, make
from model import KVCache, load, rope_tables
from process import last_number, prefixes, shares, wrong_step
from rewards import any_box, guarded_reward, robust_reward
from rlvr import GRPO, compute_grpo_loss, group_advantages, row_uniforms, sample
from verifiers import (
    MATH_RULES,
    ReasoningReward,
    aggregate,
    arithmetic,
    boxed_reward,
    get_task,
    reward_rlvr,
    tagged_reward,
    verify_code,
    verify_math,
)

TINY = str(ROOT / "notebooks" / "tiny")
TASK = arithmetic()

# ---- 0. The chapter in one page ----------------------------------------------------------------------------------------


def chapter_loop(num_rollouts=32, lr=4e-4, reward_fn=reward_rlvr, problems_per_step=1, steps=20):
    """Notebook 0's loop, with as many problems a step as wanted -> the model."""
    torch.manual_seed(0)
    model, tokenizer = load(TINY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    averages = []
    silent = 0
    for step in range(steps):
        rewards = []
        optimizer.zero_grad()
        for problem in TASK.train[step * problems_per_step :][:problems_per_step]:
            stats = compute_grpo_loss(
                model,
                tokenizer,
                problem["problem"],
                problem["answer"],
                num_rollouts=num_rollouts,
                max_new_tokens=80,
                reward_fn=reward_fn,
            )
            rewards += stats["rewards"]
            if stats["loss_tensor"] is None:
                silent += 1
            else:
                stats["loss_tensor"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        averages.append(sum(rewards) / len(rewards))
    blocks = [sum(averages[i : i + 5]) / 5 for i in range(0, steps, 5)]
    print("reward of each block of five steps:", *(f"{mean:.2f}" for mean in blocks))
    print(f"problems without a gradient: {silent} of {steps * problems_per_step}")
    return model


def pass_at_1(model):
    task = get_task("arithmetic", reward="boxed")
    _, tokenizer = load(TINY)
    method = GRPO(max_new_tokens=80)
    summary, _ = evaluate(method, model, tokenizer, task, task.test[:60], 64, 1.0, ks=(1,))
    print(f"pass@1 {summary['pass@1']:.2f}")


def try_0_1():
    pass_at_1(chapter_loop(num_rollouts=4))


def try_0_2():
    base, tokenizer = load(TINY)
    prompts = [tokenizer.encode(problem["problem"]) for problem in TASK.train[:32]]
    texts = [
        tokenizer.decode(ids)
        for ids in sample(base, prompts, 16, 80, temperature=0.8).completions()
    ]
    long = sum(len(text) > 40 for text in texts) / len(texts)
    print(f"{long:.0%} of the base's completions have more than 40 characters")
    pass_at_1(chapter_loop(reward_fn=lambda completion, truth: float(len(completion) > 40)))


def try_0_3():
    chapter_loop(lr=5 * 4e-4, problems_per_step=8)


# ---- 1. One GRPO step by hand ------------------------------------------------------------------------------------------


def try_1_1():
    verdict = verify_math(r"The smaller root is \boxed{2}.", "2")
    print("without the tags:", verdict, " R =", aggregate(verdict, MATH_RULES))


def try_1_2():
    print("advantages of four rewards of 0:", group_advantages([0.0] * 4))


def try_1_3():
    for right, G in ((1, 2), (4, 8), (7, 8), (1, 16), (15, 16)):
        rewards = [1.0] * right + [0.0] * (G - right)
        with_std = max(map(abs, group_advantages(rewards)))
        without = max(map(abs, group_advantages(rewards, scale="none")))
        print(
            f"{right:2} of {G:2} right: largest advantage {with_std:.2f}, without the std {without:.2f}"
        )


# ---- 2. Verifiers ------------------------------------------------------------------------------------------------------


def try_2_1():
    model, tokenizer = load(TINY)
    problems = TASK.train[:32]
    prompts = [tokenizer.encode(problem["problem"]) for problem in problems]
    uniforms = row_uniforms(range(32 * 16), 80, seed=0)
    rollouts = sample(model, prompts, 16, 80, uniforms=uniforms)
    texts = [tokenizer.decode(ids) for ids in rollouts.completions()]
    pairs = [(text, problems[row // 16]) for row, text in enumerate(texts)]
    found = [pair for pair in pairs if any_box(*pair)[0] and tagged_reward(*pair)[0] < 1]
    right = sum(boxed_reward(*pair)[0] for pair in found)
    print(f"paid by any_box and not by tagged_reward: {len(found)} of {len(texts)}")
    print(f"of these {right:.0f} are right by the last box, without the tags")


def names_the_numbers(completion, problem):
    """A rule that padding breaks: the numbers of the problem occur before the answer."""
    thinking = completion.partition("</think>")[0]
    return {*re.findall(r"\d+", problem["problem"])} <= {*re.findall(r"\d+", thinking)}


def try_2_3():
    sums = ";".join(f"{n}+1={n + 1}" for n in range(12, 50))
    cases = {
        "padded": sums,
        "honest": "6*7 is 6*5+6*2, 30+12=42",
        "honest, in words": "six sevens are thirty and twelve, 30+12=42",
    }
    problem = {"problem": "6*7=", "answer": "42"}
    for name, thinking in cases.items():
        text = tagged(thinking, r"\boxed{42}")
        paid = tagged_reward(text, problem)[0]
        guarded = guarded_reward(text, problem)[0]
        kept = names_the_numbers(text, problem)
        print(f"{name:17} paid {paid}, guarded {guarded}; names the problem's numbers: {kept}")


# ---- 3. Rewards for reasoning ------------------------------------------------------------------------------------------


def thought(words):
    return " ".join(f"word{i}" for i in range(words))


def tagged(think, answer=r"\boxed{2}"):
    return f"<think>{think}</think><answer>{answer}</answer>"


def try_3_1():
    reward = ReasoningReward(w_len=0.1, w_ramble=1.0, needs_tags=False)
    for name, words in (("short", 18), ("long", 142), ("rambling", 612)):
        print(f"{name:9} R {reward(tagged(thought(words)), '2')['R']:.3f}")
    print(f"no tags   R {reward(chr(92) + 'boxed{2}', '2')['R']:.3f}")


def try_3_2():
    print(ReasoningReward()(tagged("The answer is 2."), "2"))


def try_3_3():
    for ramble in (0.0, 0.3):
        reward = ReasoningReward(saturates=False, w_len=0.3, w_ramble=ramble)
        right = reward(tagged(thought(18)), "2")["R"]
        words = 18
        while reward(tagged(thought(words), r"\boxed{3}"), "2")["R"] <= right:
            words += 1
        print(f"penalty for rambling {ramble}: from {words} words on a wrong answer is paid more")


# ---- 4. The model ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def try_4_1():
    model, tokenizer = load(TINY)
    prompts = [tokenizer.encode("25+7-4="), tokenizer.encode("3+4=")]
    width = len(prompts[0])
    padded = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
    cache = KVCache(model, rows=2, slots=12)
    model(padded, cache)
    cache.lengths = torch.tensor([width, width])  # wrong: row 1 has only 4 tokens
    for token in ("<think>", "2", "5"):
        model(torch.tensor([tokenizer.encode(token)] * 2), cache)
    cached = model(torch.tensor([tokenizer.encode("+")] * 2), cache)[:, -1]
    for row, prompt in enumerate(prompts):
        whole = model(torch.tensor([prompt + tokenizer.encode("<think>25+")]))[0, -1]
        print(f"row {row}: the logits are off by {(whole - cached[row]).abs().max():.1e}")


def try_4_2():
    config = load(TINY)[0].config
    cos, _ = rope_tables(torch.arange(2)[None], config, torch.float32)
    angles = [math.acos(cos[0, 0, 1, i]) for i in range(config.head_dim // 2)]
    print("turns after 20 positions:", *(f"{20 * angle / (2 * math.pi):.2f}" for angle in angles))


def try_4_3():
    print(f"{28 * 2 * 64 * 8 * 1024 * 128 * 2 / 1e9:.1f} GB")


# ---- 5. Reading a run --------------------------------------------------------------------------------------------------


def trained(*flags, see=lambda run: None):
    """A run of train.py in a folder of its own -> the rows of its log; see(folder) looks at the rest of it."""
    with tempfile.TemporaryDirectory() as runs:
        with contextlib.redirect_stdout(io.StringIO()):
            arguments = ["--task", "arithmetic", "--device", "cpu", "--runs", runs, "--name", "run"]
            train.main([*arguments, "--eval-problems", "500", *flags])
        see(Path(runs, "run"))
        return read_rows(Path(runs, "run", "metrics.jsonl"))


def try_5_1():
    reward = str(ROOT / "notebooks" / "rewards.py") + ":format_only"
    rows = trained("--reward", reward, "--steps", "60", "--eval-every", "10")
    for end in [n for n, row in enumerate(rows, 1) if "eval_accuracy" in row]:
        row = rows[end - 1]
        print(
            f"step {row['step']:2}: reward {row['reward']:.2f}, held-out accuracy, sampled,",
            f"{row['eval_sampled_accuracy']:.2f}, mixed {row.get('mixed', math.nan):.2f},",
            canary(rows[:end]) or "no warning",
        )


def long_run():
    return trained("--steps", "200", "--eval-every", "50")


def try_5_2():
    for row in long_run():
        if "eval_accuracy" in row and row["step"]:
            names = (
                "eval_accuracy",
                "eval_sampled_accuracy",
                "completion_length",
                "mixed",
                "entropy",
            )
            print(f"step {row['step']:3}:", *(f"{name} {row[name]:.3f}" for name in names))


def try_5_3():
    rows = [row for row in long_run() if row["step"]]
    columns = torch.tensor([[row["mixed"], row["grad_norm"]] for row in rows]).T
    print(f"correlation of mixed and grad_norm: {torch.corrcoef(columns)[0, 1]:.2f}")


# ---- 6. The experiments ------------------------------------------------------------------------------------------------


def rambling(run, step):
    """The share of a step's completions with eight or more filler words."""
    path = run / "samples" / f"step_{step:06d}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["completion"] for line in file]
    return sum(len(re.findall("(?:let|me|think|wait|hmm) ", text)) >= 8 for text in texts) / len(
        texts
    )


def try_6_1():
    plain, habits = PHASES
    shares = plain | {"worked": plain["worked"] - 0.3, "rambling": 0.3}  # rambles, and is right

    def see(run):
        for step in (1, 20, 40, 60):
            print(f"step {step:2}: {rambling(run, step):.0%} of the completions ramble")

    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            base = make(0, Path(folder, "base"), phases=[shares, habits])
        rows = trained("--model", str(base), "--steps", "60", see=see)
    print(f"held-out accuracy {rows[0]['accuracy']:.2f} -> {rows[-1]['eval_sampled_accuracy']:.2f}")


def try_6_2():
    task = ["--task", str(ROOT / "notebooks" / "experiments" / "trial.py") + ":mixed_sums"]
    filtered = ["--method", str(ROOT / "notebooks" / "methods" / "skip_solved.py")]
    for name, method in (("all problems", []), ("skip_solved", filtered)):
        rows = trained(*task, *method, "--model", TINY, "--train-problems", "64", "--steps", "60")
        mixed = sum(row["mixed"] for row in rows[-20:]) / 20
        print(f"{name}: mixed groups in the last 20 steps {mixed:.2f},", end=" ")
        print(f"held-out accuracy, sampled, {rows[-1]['eval_sampled_accuracy']:.2f}")


def early_alarm(rows, window=10):
    """The first step at which the training batches' accuracy is below that of the first steps, by intervals that do
    not touch, while their reward is above it. `accuracy` counts the last box alone, whatever the reward counts."""
    rows = [row for row in rows if row["step"]]
    first = rows[:window]
    for end in range(2 * window, len(rows) + 1):
        last = rows[end - window : end]
        before = mean_of(first, "accuracy")
        after = mean_of(last, "accuracy")
        error = math.sqrt(before * (1 - before) / (128 * window))  # 128 completions a step
        if after < before - 4 * error and mean_of(last, "reward") > mean_of(first, "reward"):
            return f"warns at step {last[-1]['step']}: accuracy {before:.3f} -> {after:.3f}"
    return "silent"


def try_6_3():
    with tempfile.TemporaryDirectory() as folder:
        guessing = [{"direct": 1.0}, {"direct": 0.70, "several boxes": 0.20, "no box": 0.10}]
        with contextlib.redirect_stdout(io.StringIO()):
            base = make(0, Path(folder, "base"), phases=guessing, gate=0)
        reward = str(ROOT / "notebooks" / "rewards.py") + ":any_box"
        hacked = ["--model", str(base), "--reward", reward, "--lr", "1e-3"]
        for name, flags in (("any box counts", hacked), ("the last box counts", [])):
            print(f"{name}: {early_alarm(trained(*flags, '--steps', '60'))}")


# ---- 7. Sizes ----------------------------------------------------------------------------------------------------------


def try_7_1():
    for name, parameters in (("0.6B", 0.596), ("1.7B", 1.72), ("4B", 4.02), ("8B", 8.19)):
        sharded = math.ceil(16 * parameters / (24 - 8))
        print(f"{name}: {18 * parameters:.1f} GB alone; sharded, {sharded} GPUs of 24 GB")


def try_7_2():
    token = 28 * 2 * 8 * 128 * 2
    print(f"{token:,} bytes a token: {int(10e9 / (4096 * token))} rows")


def stochastic(weight, generator):
    """fp32 -> bf16, up with the probability of what is cut off."""
    bits = weight.view(torch.int32)
    noise = torch.randint(0, 2**16, bits.shape, generator=generator, dtype=torch.int32)
    return ((bits + noise) >> 16).to(torch.int16).view(torch.bfloat16)


def try_7_4():
    generator = torch.Generator().manual_seed(0)
    start = (0.02 * torch.randn(10**5, generator=generator)).bfloat16().float()
    ends = {}
    for rounding in ("fp32", "bf16", "stochastic"):
        weight = start.clone()
        weight.grad = None
        optimizer = torch.optim.AdamW([weight], lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0)
        for step in range(20):
            noise = torch.randn(len(start), generator=torch.Generator().manual_seed(step))
            weight.grad = torch.linspace(-1, 1, len(start)) + noise
            optimizer.step()
            if rounding == "bf16":
                weight.copy_(weight.bfloat16())
            elif rounding == "stochastic":
                weight.copy_(stochastic(weight, generator))
        ends[rounding] = weight - start
    meant = ends["fp32"]
    for rounding in ("bf16", "stochastic"):
        way = (meant @ ends[rounding] / (meant @ meant)).item()
        error = ((ends[rounding] - meant).norm() / meant.norm()).item()
        print(
            f"{rounding:10} {way:.0%} of the way that was meant, with an error of {error:.1f} times the way"
        )


# ---- 12. The listings --------------------------------------------------------------------------------------------------


def try_12_1():
    program = """class Yes:
    def __eq__(self, other): return True
def is_palindrome(text): return Yes()
"""
    test = "assert is_palindrome('racecar') == True"
    namespace = {}
    exec(program, namespace)  # our own text, above
    exec(test, namespace)
    print("listing: the assert holds, 1.0   here:", verify_code(program, [test])["frac"])


def try_12_2():
    torch.manual_seed(0)
    logits = torch.randn(5, requires_grad=True)
    ref = torch.randn(5).log_softmax(-1)
    for samples in (16, 256, 4096):
        norms = []
        for _ in range(50):
            logp = logits.log_softmax(-1)
            tokens = torch.multinomial(logp.exp().detach(), samples, replacement=True)
            gradient = torch.autograd.grad((logp - ref)[tokens].mean(), logits)[0]
            norms.append(gradient.norm().item())
        print(f"{samples:5} tokens: norm of the gradient {sum(norms) / 50:.3f}")


# ---- 13. The page of chapters 14 and 15 --------------------------------------------------------------------------------


def page_run(kl_coef=0.04, masked=True):
    """Twenty steps of notebook 13's section 3 -> a row for each, and the policy."""
    torch.manual_seed(0)
    policy, tokenizer = load(TINY)
    ref, _ = load(TINY)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    rows = []
    for step in range(20):
        problems = TASK.train[8 * step : 8 * step + 8]
        prompts = [problem["problem"] for problem in problems]
        batch = collect(policy, prompts, problems, page_reward, tokenizer, 16, 1.0, 80)
        if not masked:
            batch.rollouts.mask = torch.ones_like(batch.rollouts.mask)
        loss, stats = grpo_loss(policy, ref, batch, 0.2, kl_coef)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        rows.append({"reward": batch.rewards.mean().item(), **stats})
    return rows, policy


def page_reward(prompt, completion, problem):
    return tagged_reward(completion, problem)[0]


def mean_of(rows, column):
    return sum(row[column] for row in rows) / len(rows)


def try_13_1():
    for kl_coef in (0.001, 0.04, 0.2, 0.5, 2.0):
        rows, _ = page_run(kl_coef)
        print(
            f"kl_coef {kl_coef}: reward of the last five steps {mean_of(rows[15:], 'reward'):.2f}"
        )


def try_13_2():
    rows, _ = page_run(masked=False)
    for name in ("clipped", "kl"):
        print(f"{name} in the first five steps: {mean_of(rows[:5], name):.2f}")
    print(f"reward of the last five: {mean_of(rows[15:], 'reward'):.2f}")


def try_13_3():
    print(f"by {math.sqrt(15 / 16):.3f}")


# ---- 14. Process rewards -----------------------------------------------------------------------------------------------


def running_place(problem, texts):
    """The first step whose last number is not the problem's running value."""
    values = [int(number) for number in re.findall(r"[+-]?\d+", problem["problem"])]
    for k in range(1, len(texts)):
        if last_number(texts[k]) != sum(values[: k + 1]):
            return k
    return None


def places(completer, policy, N):
    """How many of the policy's wrong completions, and of as many right ones, have the place found."""
    _, tokenizer = load(TINY)
    torch.manual_seed(1)
    prompts = [tokenizer.encode(problem["problem"]) for problem in TASK.test[:100]]
    rollouts = sample(policy, prompts, 8, 80)
    worked = [
        (TASK.test[row // 8], tokenizer.decode(ids))
        for row, ids in enumerate(rollouts.completions())
        if rollouts.finished[row]
    ]
    worked = [(problem, text) for problem, text in worked if ";" in text]
    wrong = [(p, text) for p, text in worked if not tagged_reward(text, p)[1]["accuracy"]]
    right = [(p, text) for p, text in worked if tagged_reward(text, p)[1]["accuracy"]][: len(wrong)]
    for name, some in (("wrong", wrong), ("right", right)):
        found = 0
        for problem, text in some:
            texts = prefixes(text)
            place = wrong_step(shares(completer, tokenizer, TASK, problem, texts, N))
            found += place == running_place(problem, texts)
        print(f"N = {N}, {name} completions: the place is right in {found} of {len(some)}")


def try_14_1():
    _, policy = page_run(kl_coef=0.0)
    for N in (4, 8):
        places(policy, policy, N)


def try_14_2():
    _, policy = page_run(kl_coef=0.0)
    base, tokenizer = load(TINY)
    places(base, policy, 32)
    steps = prefixes("<think>59-8=51;51-1=50;50+8=58</think>")
    found = shares(base, tokenizer, TASK, {"problem": "59-8-1+8=", "answer": "58"}, steps, 64)
    print("the base's shares behind each right step:", *(f"{share:.2f}" for share in found))


def try_14_3():
    text = r"\boxed{3} \boxed{58} \boxed{7}"
    problem = {"problem": "59-8-1+8=", "answer": "58"}
    print(text, "earns", robust_reward(text, problem, [any_box] * 3)[0])


# ---- The list ----------------------------------------------------------------------------------------------------------

TRIES = {
    name.removeprefix("try_").replace("_", "."): function
    for name, function in [*globals().items()]
    if name.startswith("try_")
}
SLOW = {
    "0.3": 30,
    "5.1": 30,
    "5.2": 70,
    "5.3": 70,
    "6.1": 200,
    "6.2": 100,
    "6.3": 150,
    "13.1": 90,
    "14.1": 40,
    "14.2": 40,
}  # seconds; of the others at most 20


def main():
    parser = argparse.ArgumentParser(description="Solutions to the questions under Try.")
    parser.add_argument("number", nargs="?", choices=TRIES, help="NOTEBOOK.QUESTION, as 4.1")
    parser.add_argument("--source", action="store_true", help="print its code instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.number is None:
        print(*(f"{number:5} {SLOW.get(number, 'up to 20')} s" for number in TRIES), sep="\n")
    elif args.source:
        print(inspect.getsource(TRIES[args.number]))
    else:
        TRIES[args.number]()


if __name__ == "__main__":
    sys.exit(main())
