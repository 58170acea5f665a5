"""Compare the members of GRPO's family on the tiny model: same problems, completions and learning rate, several seeds.

    python notebooks/variants.py [--seeds 0 1 2] [--steps 100] [--lr 4e-4] [--only dapo grpo] [-o variants.svg]

Runs that exist are not repeated, so it can be stopped and started again. All take as many completions a step, except
dapo, whose dynamic sampling may take up to three times as many.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

from curve import band, read  # noqa: E402

VARIANTS = {
    "default": [],                                                         # token mean (DAPO's), std, one update
    "grpo": ["--loss-norm", "sequence"],
    "dr-grpo": ["--loss-norm", "constant", "--advantage-scale", "none"],
    "rloo": ["--loss-norm", "sequence", "--advantage-scale", "loo"],
    "textbook": ["--loss", "reinforce", "--loss-norm", "sum"],
    "gdpo": ["--advantage-scale", "gdpo"],
    "dapo": ["--clip", "0.2", "0.28", "--dynamic-sampling", "2", "--truncated", "soft"],
    "ppo x 4": ["--updates-per-batch", "4"],
    "gspo x 4": ["--updates-per-batch", "4", "--loss", "gspo", "--loss-norm", "sequence", "--clip", "3e-4", "4e-4"],
    "cispo x 4": ["--updates-per-batch", "4", "--loss", "cispo"],
    "reinforce x 4": ["--updates-per-batch", "4", "--loss", "reinforce"],
    "kl 0.1": ["--kl-coef", "0.1"],
}


def name(variant, seed, args):
    return f"variant-{variant.replace(' ', '')}-lr{args.lr:g}-seed{seed}"


def train(variant, seed, args):
    if (Path(args.runs) / name(variant, seed, args) / "final").exists():
        return
    command = [sys.executable, str(Path(__file__).parent.parent / "train.py"), "--model", "tiny", "--seed", str(seed),
               "--lr", str(args.lr), "--steps", str(args.steps), "--eval-every", "20", "--eval-problems", "200",
               "--save-every", "1000", "--runs", args.runs, "--name", name(variant, seed, args), *VARIANTS[variant]]
    if (Path(args.runs) / name(variant, seed, args)).exists():
        command = [*command[:2], "--resume", "--runs", args.runs, "--name", name(variant, seed, args)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", default="runs")
    parser.add_argument("-o", "--out", default="notebooks/variants.svg")
    args = parser.parse_args()
    plt.rcParams["svg.hashsalt"] = "rlvr"
    columns = 4
    figure, axes = plt.subplots(-(-len(args.only) // columns), columns, figsize=(10, 6), layout="constrained",
                                sharex=True, sharey=True, squeeze=False)
    print(f"{'':14} {'sampled at step 20':>20} {'at the end':>20} {'greedy':>7} {'end / best':>10} {'clipped':>8} "
          f"{'length':>7}")
    for variant, axis in zip(args.only, axes.flat):
        for seed in args.seeds:
            train(variant, seed, args)
        runs = [Path(args.runs) / name(variant, seed, args) for seed in args.seeds]
        accuracy = [read(run, "eval_sampled_accuracy") for run in runs]
        last = max(accuracy[0])

        def spread(values):
            return f"{sum(values) / len(values):.3f} [{min(values):.3f} - {max(values):.3f}]"

        def mean(key, last=last, runs=runs):
            return sum(read(run, key)[last] for run in runs) / len(runs)
        kept = min(curve[last] / max(curve.values()) for curve in accuracy)
        print(f"{variant:14} {spread([curve[20] for curve in accuracy]):>20} "
              f"{spread([curve[last] for curve in accuracy]):>20} {mean('eval_accuracy'):7.3f} {kept:10.3f} "
              f"{mean('clipped'):8.3f} {mean('eval_sampled_length'):7.1f}", flush=True)
        band(axis, runs, "eval_sampled_accuracy", variant, "tab:orange")
        axis.set(title=variant, ylim=(0, 1.02))
    figure.suptitle(f"held-out accuracy, sampled at T = 1, over {args.steps} steps; {len(args.seeds)} seeds, learning "
                    f"rate {args.lr:g}")
    figure.savefig(args.out, metadata={"Date": None})
    print(f"figure in {args.out}")


if __name__ == "__main__":
    main()
