"""against_trl.py - the same training by TRL's GRPOTrainer, to compare with: curves, and seconds a step.

    python -m notebooks.claims.against_trl smollm2 --name trl-0 --steps 20      its curve in runs/trl-0/metrics.jsonl,
                                                                                     beside that of --beside runs/sums-0
    python -m notebooks.claims.against_trl smollm2 --time                       seconds of both, in turn

The same weights, problems in the same order, groups, reward, learning rate step by step, AdamW, clipping of the
gradient and mean over tokens, without KL; TRL's trainer samples, judges by our reward and updates, and our eval.py
evaluates its weights. What differs: random numbers; the std of a group is TRL's (G - 1 below the root); TRL pays only
what ends in a newline (train.py also what ends in <|im_end|>: one completion in a hundred) and steps, on momentum, when
no group is mixed. In time: train.py reads a prompt once for its group (in the update by methods/shared_prompts.py) and
computes no gradient of rows without an advantage, TRL reads it for each row and computes all; rows that have ended
leave train.py's batch. Both checkpoint gradients, as is their default. Last line: a JSON object. Needs: pip install trl
"""

import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import torch

import train
from eval import append_rows
from model import ModelError

ROOT = Path(__file__).resolve().parents[2]


def flags_for(args, folder):
    flags = "--lr 1e-5 --device cpu --save-every 1000 --eval-every 10 --template plain".split()
    flags += ["--model", args.model, "--task", f"{ROOT}/notebooks/tasks/smollm2.py:sums"]
    flags += ["--method", f"{ROOT}/notebooks/methods/shared_prompts.py", "--runs", str(folder)]
    return [*flags, "--seed", str(args.seed), "--max-new-tokens", "10"]


def train_trl(flags, steps, folder):
    """GRPOTrainer for the first steps of a run with these flags -> a row of metrics for each step and for the untrained
    model, written to the folder too. Evaluated every flags.eval_every steps."""
    import datasets
    import transformers
    import trl

    run = train.load_run(flags)
    settings = run.method.settings
    tokenizer = run.tokenizer
    task = run.task
    picked = [
        task.train[i]
        for step in range(1, steps + 1)
        for i in run.method.pick(task.train, step, run.memory)
    ]
    prompts = [
        tokenizer.decode(tokenizer.encode_prompt(task.prompt(p)), skip_special_tokens=False)
        for p in picked
    ]
    data = datasets.Dataset.from_list(
        [{"prompt": prompt, **problem} for prompt, problem in zip(prompts, picked)]
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(flags.model, dtype=torch.float32)
    names = transformers.AutoTokenizer.from_pretrained(flags.model)
    [newline] = names(task.stops[0])["input_ids"]
    # GRPOTrainer knows one that ends a completion.
    names.eos_token = names.convert_ids_to_tokens(newline)
    rows = [{"step": 0}]
    started = []
    rewards = []
    rates = []

    def reward(completions, completion_ids, problem, answer, **_):
        """Ours: what was cut off earns nothing."""
        values = [
            task.reward(text, {"problem": question, "answer": truth})[0]
            * (ids[-1] == names.eos_token_id)
            for text, ids, question, truth in zip(completions, completion_ids, problem, answer)
        ]
        rewards.append(sum(values) / len(values))
        return values

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_, optimizer, **__):
            started.append(time.perf_counter())
            rates.append(optimizer.param_groups[0]["lr"])

        def on_step_end(self, arguments, state, control, **_):
            seconds = time.perf_counter() - started[-1]
            rows.append({"step": state.global_step, "reward": rewards[-1]})
            rows[-1] |= {"lr": rates[-1], "seconds": seconds}
            if state.global_step % flags.eval_every == 0 or state.global_step == steps:
                evaluate(rows[-1])
            append_rows(folder / "metrics.jsonl", rows[-1:])
            print(rows[-1], flush=True)

    def evaluate(row):
        names = run.model.state_dict().keys()
        weights = {name: weight for name, weight in model.state_dict().items() if name in names}
        run.model.load_state_dict(weights)
        row |= train.evaluate_both(run)

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=flags.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda n: min(1.0, (n + 1) / 5) * (0.55 + 0.45 * math.cos(math.pi * (n + 1) / flags.steps)),
    )
    config = trl.GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        seed=settings.seed,
        num_generations=settings.num_samples,
        per_device_train_batch_size=settings.prompts_per_step * settings.num_samples,
        shuffle_dataset=False,
        max_completion_length=settings.max_new_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        max_grad_norm=1.0,
        gradient_checkpointing=True,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    evaluate(rows[0])
    rows[0]["reward"] = rows[0]["eval_sampled_reward"]
    folder.mkdir(parents=True)
    append_rows(folder / "metrics.jsonl", rows)
    trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=data,
        processing_class=names,
        optimizers=(optimizer, schedule),
        callbacks=[Clock()],
    ).train()
    return rows


def compare_seconds(args, turns=3, steps=3):
    """Steps of both in turn, so that what else the machine does falls on both. The first step warms up."""
    ours = []
    theirs = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            flags = [*flags_for(args, folder), "--steps", str(steps), "--eval-problems", "1"]
            train.main([*flags, "--name", "ours"])
            rows = train.read_log(Path(folder, "ours"))
            took = [
                row["sample_seconds"] + row["update_seconds"]
                for row in rows.values()
                if row["step"] > 1
            ]
            ours.append(statistics.mean(took))
            rows = train_trl(
                train.parse_args([*flags, "--name", "trl"]), steps, Path(folder, "trl")
            )
            theirs.append(statistics.mean(row["seconds"] for row in rows[2:]))
        print(
            f"train.py {ours[-1]:.1f} s a step, TRL {theirs[-1]:.1f}: {theirs[-1] / ours[-1]:.2f} x",
            flush=True,
        )
    ratios = [other / own for own, other in zip(ours, theirs)]
    row = [", ".join(f"{value:.1f}" for value in values) for values in (ours, theirs, ratios)]
    columns = ["train.py, s a step", "TRL, s a step", "TRL takes"]
    print(json.dumps({"columns": columns, "rows": [row], "seeds": [args.seed]}))


CURVE = [
    "",
    "reward, first half",
    "second half",
    "held out half way: greedy, sampled",
    "in the end",
    "s a step",
]


def curve_row(label, folder, steps):
    """The first steps of a run as a row of CURVE."""
    rows = train.read_log(folder)
    half = steps // 2
    cells = [label]
    for part in (range(1, half + 1), range(half + 1, steps + 1)):
        cells.append(f"{statistics.mean(rows[step]['reward'] for step in part):.3f}")
    for step in (half, steps):
        row = rows[step]
        measured = "eval_accuracy" in row
        accuracies = (row["eval_accuracy"], row["eval_sampled_accuracy"]) if measured else ()
        cells.append(", ".join(f"{accuracy:.3f}" for accuracy in accuracies))
    seconds = statistics.mean(rows[step]["seconds"] for step in range(1, steps + 1))
    return [*cells, f"{seconds:.1f}"]


def print_curves(args):
    """A table of TRL's run, and of the run --beside it."""
    folders = {"TRL": Path(args.runs, args.name)}
    if args.beside:
        folders["train.py"] = Path(args.beside)
    rows = [
        curve_row(f"{label}, seed {args.seed}", folder, args.steps)
        for label, folder in folders.items()
    ]
    for row in [CURVE, *rows]:
        print("   ".join(row))
    print(json.dumps({"columns": CURVE, "rows": rows, "seeds": [args.seed]}))


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory, see get_smollm2.py")
    parser.add_argument("--time", action="store_true", help="only seconds, three turns")
    parser.add_argument(
        "--steps", type=int, default=20, help="how many of the steps of recipes/smollm2.txt"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--name", default="trl", help="what is there is not trained again")
    parser.add_argument("--beside", help="the run of train.py to print beside it")
    args = parser.parse_args(argv)
    if args.time:
        return compare_seconds(args)
    if args.steps > 40:
        parser.error("--steps: at most the recipe's 40")
    folder = Path(args.runs, args.name)
    if not folder.exists():
        partial = Path(args.runs, f"{args.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was stopped
        flags = train.parse_args([*flags_for(args, args.runs), "--steps", "40"])
        flags.name = partial.name
        train_trl(flags, args.steps, partial)
        partial.rename(folder)
    print_curves(args)


if __name__ == "__main__":
    try:
        main()
    except ModelError as error:
        sys.exit(f"error: {error}")
