"""kl_cap.py - a run that hits its --kl-cap need not end there: go back, or go on more slowly.

    python notebooks/kl_cap.py --then back -- --name far --kl-cap 15      behind --: train.py's

back    Run far-2 takes far's best weights, or its first if none was better, for the steps that
        remain. Its warm-up, cosine and KL begin anew there. (Verifier-based RL, 8.2.)
slower  Run far goes on at half the rate with twice the cap, as often as it takes until the cap is
        above the KL, or no step would be made. Its flags are in config.json alone: that is edited.
"""

import argparse
import json
import sys
from pathlib import Path

import _root
import train


def back(run, config, rows, flags):
    """-> the flags of the run that starts again."""
    best = max(
        (row for row in rows if "eval_accuracy" in row),
        key=lambda row: row["eval_sampled_accuracy"],
    )
    model = run / "best" if best["step"] else train.located(run, config["flags"]["model"])
    # subtle: with the same seed the first weights would be led to the same place again.
    steps = config["flags"]["steps"] - rows[-1]["step"]
    seed = config["flags"]["seed"] + 1
    return [
        *flags,
        "--model",
        str(model),
        "--name",
        f"{run.name}-2",
        "--steps",
        str(steps),
        "--seed",
        str(seed),
    ]


def slower(run, config, rows, flags):
    """Change the rate and the cap in config.json -> the flags with which the run goes on."""
    saved = config["flags"]
    while saved["kl_cap"] < rows[-1]["drift"]:
        saved |= {"lr": saved["lr"] / 2, "kl_cap": saved["kl_cap"] * 2}
    config.setdefault("slower", []).append(
        {"step": rows[-1]["step"], "lr": saved["lr"], "kl_cap": saved["kl_cap"]}
    )
    (run / "config.partial").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (run / "config.partial").replace(run / "config.json")
    return ["--resume", "--runs", str(run.parent), "--name", run.name, "--device", saved["device"]]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Train, and go on when the KL cap is hit.", allow_abbrev=False
    )
    parser.add_argument("--then", choices=["back", "slower"], required=True)
    parser.add_argument(
        "--times", type=int, default=3, help="how often, before it stops after all (default: 3)"
    )
    parser.add_argument(
        "flags", nargs="*", help="behind --: those of train.py, with --name and --kl-cap"
    )
    args = parser.parse_args(argv)
    for left in range(args.times, -1, -1):
        wanted = train.parse_args(args.flags)
        if wanted.kl_cap is None:
            parser.error("behind -- the run needs a --kl-cap")
        run = Path(wanted.runs, wanted.name or parser.error("behind -- the run needs a --name"))
        try:
            return train.main(args.flags)
        except SystemExit as stop:
            if "above --kl-cap" not in str(stop) or not left:
                raise
        print(f"{run}: the KL is above the cap; now {args.then}")
        config = json.loads((run / "config.json").read_text())
        rows = train.read_rows(run / "metrics.jsonl", ["reward"])
        args.flags = {"back": back, "slower": slower}[args.then](run, config, rows, args.flags)


if __name__ == "__main__":
    try:
        main()
    except (train.ModelError, train.verifiers.DataError, OSError) as error:
        sys.exit(f"error: {error}")
