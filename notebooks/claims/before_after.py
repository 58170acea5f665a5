"""before_after.py - what SmolLM2 could do before it was trained, and what it can do after (notebook 8).

    python -m notebooks.claims.before_after smollm2 runs/smollm2/sums-0 runs/smollm2/sums-1

The base model, then finished runs. Each is asked problems that no run was trained on: the held-out sums, of which many
samples show what it could find with luck (pass@k), and tasks of smollm2.py that are near them; then a plain text and
five facts, to see what was lost. Last line: a JSON object.
"""

import argparse
import json
import sys
from pathlib import Path

from eval import evaluate
from model import ModelError, load
from notebooks.tasks import smollm2
from rlvr import GRPO

COLUMNS = ["sampled at T = 1", "before", "after, by run", "problems x samples"]
NEAR = ("larger", "words", "differences", "three_terms")


def look(directory, problems, samples):
    """One model -> {what was measured: a number}."""
    model, tokenizer = load(directory, template="plain")
    task = smollm2.sums()
    test = task.test[:problems]
    ks = [k for k in (1, 8, 64) if k <= samples]
    method = GRPO(max_new_tokens=10)
    summary, _ = evaluate(method, model, tokenizer, task, test, samples, 1.0, ks)
    found = {f"held-out sums, pass@{k}": summary[f"pass@{k}"] for k in ks}
    for name in NEAR:
        task = getattr(smollm2, name)()
        few = min(8, samples)
        summary, _ = evaluate(method, model, tokenizer, task, task.test[:problems], few, 1.0)
        found[f"{task.name}: {task.note}"] = summary["accuracy"]
    found["perplexity of a plain text"] = smollm2.perplexity(model, tokenizer)
    found[f"facts known, of {len(smollm2.FACTS)}"] = smollm2.facts_known(model, tokenizer)
    return found


def shown(value):
    """An accuracy as .123, a perplexity as 22.26, a count as it is."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.2f}" if value > 1 else f"{value:.3f}".removeprefix("0")


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="directory of the model before, see get_smollm2.py")
    parser.add_argument("runs", nargs="+", help="finished runs")
    parser.add_argument("--problems", type=int, default=36)
    parser.add_argument("--samples", type=int, default=64)
    args = parser.parse_args(argv)
    models = {"before": args.base, **{run: Path(run) / "final" for run in args.runs}}
    found = {}
    for name, directory in models.items():
        found[name] = look(directory, args.problems, args.samples)
        print(name, *(f"{key}: {shown(value)}" for key, value in found[name].items()), sep="\n  ")
    rows = []
    for key, before in found["before"].items():
        after = ", ".join(shown(found[run][key]) for run in args.runs)
        samples = args.samples if "pass@" in key else min(8, args.samples)
        size = f"{args.problems} x {samples}" if before <= 1 else ""
        rows.append([key, shown(before), after, size])
    print(json.dumps({"columns": COLUMNS, "rows": rows, "models": found}))


if __name__ == "__main__":
    try:
        main()
    except (ModelError, OSError) as error:
        sys.exit(f"error: {error}")
