"""sharpen.py - how accurate is a base that is sharpened, but not trained?

    python -m notebooks.look.sharpen runs/NAME
    python -m notebooks.look.sharpen notebooks/tiny --task arithmetic

RL makes likely completions likelier. So does sampling from p^alpha, a power of
the base's distribution, which needs neither training nor a verifier (arXiv
2510.14901, 2601.21590). If this reaches the same accuracy as RL, the gain does
not show that the verifier has taught anything. A run's base is sampled with
the run's flags and settings, and so is the model that it trained.

    accuracy       under p^alpha: N completions of a problem are sampled from
                   p, and one of them is chosen with a probability
                   proportional to p^(alpha - 1), where p belongs to the whole
                   completion. In brackets: the 95 % interval over problems
    effective      the effective sample size: how many of the N have a real
                   chance. Near 1, one sample decides
    temperature    accuracy at temperature 1 / alpha, which sharpens each
                   token by itself

This misses a likely completion that is not among the N. With long completions
that matters, and the papers' own samplers do better.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

import verifiers
from appendix.plumbing import option, read_command
from eval import TaskFlags, clustered_interval, read_run
from model import check_model, check_prompts, load, pick_device
from notebooks.command import run_command
from rlvr import GRPO, limit_sampling, roll_out


@dataclass
class Flags(TaskFlags):
    """Sharpening"""

    baseline: str = option(None, "the model to sharpen (default: the base of the run)")
    problems: int = option(100, "number of held-out problems")
    alpha: tuple = option((1.0, 1.5, 2.0, 4.0, 8.0, 50.0), "powers of p", type=float)


def load_model(name, args, method, task):
    """Return (method, model, tokenizer, task, held-out problems)."""
    device, dtype = pick_device(args.device)
    model, tokenizer = load(name, device, dtype, args.template)
    limit_sampling(method, model, dtype)
    problems = task.test[: args.problems]
    check_prompts(model, tokenizer, task, problems, method.settings.max_new_tokens)
    return method, model, tokenizer, task, problems


def sample_base(loaded, num_samples, temperature=1.0):
    """Return log-probs of whole completions (P, N), and whether they are right (P, N)."""
    batch = roll_out(*loaded, num_samples, temperature)
    logps = (batch.rollouts.logp * batch.rollouts.mask).sum(1)
    right = batch.accuracy.double().cpu()
    return logps.double().cpu().view_as(right), right


def sharpen(logps, right, alpha):
    """From samples of p, (P, N) each, return accuracies of p^alpha (P,) and effective sample
    sizes (P,)."""
    chances = ((alpha - 1) * logps).softmax(1)
    return (chances * right).sum(1), 1 / chances.square().sum(1)


def cell(accuracies, num_samples):
    low, high = clustered_interval(accuracies.tolist(), num_samples)
    return f"{accuracies.mean():.3f} [{low:.3f} - {high:.3f}]"


def print_sharpened(loaded, alphas, N):
    print("alpha  accuracy               effective  temperature 1 / alpha")
    logps, right = sample_base(loaded, N)
    for alpha in alphas:
        accuracies, effective = sharpen(logps, right, alpha)
        n = effective.mean().item()
        _, colder = sample_base(loaded, 8, 1 / alpha)
        print(f"{alpha:<5g}  {cell(accuracies, int(n))}  {n:9.1f}  {cell(colder.mean(1), 8)}")


def main(argv=None):
    words = sys.argv[1:] if argv is None else argv
    if words and not words[0].startswith(("-", "@")):
        words = ["--model", *words]

    def run_of(known):
        return {**read_run(known), "num_samples": 128}

    args, method = read_command(words, Flags, GRPO, __doc__, run_of)
    if not args.model:
        sys.exit("error: give a model as the first argument, such as runs/NAME")
    if not all(0 < alpha < math.inf for alpha in args.alpha):  # refuses NaN, too
        sys.exit("error: each --alpha must be above 0 and finite")
    final = Path(args.model) / "final"
    base = args.baseline or args.model
    check_model(base)
    task = verifiers.get_task(args.task or "math500", args.prompt, args.stop, args.reward)
    N = method.settings.num_samples
    print(f"{base}, task {task.name}: {N} completions of each problem")
    print_sharpened(load_model(base, args, method, task), args.alpha, N)
    if final.is_dir():
        _, right = sample_base(load_model(str(final), args, method, task), 8)
        print(f"{final}, temperature 1: {cell(right.mean(1), 8)}")


if __name__ == "__main__":
    run_command(main)
