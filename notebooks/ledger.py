"""ledger.py - a table of what the scripts' lines of code add to page.py.

    python -m notebooks.ledger

A code line is neither blank nor a comment nor part of a docstring. It counts in the
row that names its function, or else its section: "rlvr 2" is section 2 of rlvr.py,
and section 0 is everything above section 1.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = "verifiers model rlvr eval train appendix/chat appendix/plumbing appendix/grading appendix/sandbox".split()
SILENT = "COMMENT NL NEWLINE INDENT DEDENT ENDMARKER".split()
ROWS = {  # what: "where | what goes wrong without it"
    "the idea, as on the page": "verifiers 1, model 2, rlvr 2, rlvr 3, rlvr 4, train 1 | a step of the page takes 1.2 times as long",
    "batches of unequal rows, micro-batches": "prefill, MicroBatch, LossInputs, padded_rows, log_probs_of, token_logprobs, means_over_tokens | finished completions stay in the page's batch: two of three positions that it samples are thrown away",
    "memory": "trained_logprobs, logprobs_of, ChunkLogprobs, limit_sampling, sample_tokens_that_fit, cast_weights | one completion of 1,024 tokens takes 16.3 GB at Qwen3-0.6B's shape; the scripts need 10.6 for eight",
    "other models, chat templates, the hub": "model 1, model 3, model 4, own_words, appendix/chat 1 | a Llama, a Qwen2: `KeyError: 'model.layers.0.self_attn.q_norm.weight'`; with YaRN the logits are wrong, and nothing says so; no chat template",
    "many GPUs": "train 3, roll_out_all | weights, gradients and moments of Qwen3-8B are 131 GB (16 bytes a parameter): too much for one GPU",
    "resume: the same bits after a crash": "row_uniforms, Run, train 2, train 4, train_until_the_end, save_final, resume_hint, hashes_of, git_commit | the page keeps nothing: Ctrl-C in step 99 loses 99 steps",
    "preflight, checks and messages": "preflight, why_rewards_are_equal, train 7, check_rollouts, checked, check_task, appendix/plumbing 1, appendix/plumbing 5 | a base that never writes a box trains for 100 steps at reward 0.00, and nobody says so",
    "a log, all completions kept": "train 5, records_of, write_samples, finish_step, read_rows, append_rows, read_log, cell, as_json | the page shows 1 completion of 640; hacks are found by reading",
    "environments": "appendix/chat 2 | a calculator cannot answer: the first stop ends a completion",
    "methods as files, settings as flags": "rlvr 5, train 6, appendix/plumbing 3, appendix/plumbing 4 | each published method would be a copy of the page",
    "rewards and tasks as files": "verifiers 3, verifiers 4, verifiers 5, appendix/plumbing 2 | one reward; and a problem that stands twice in the file may be trained on and held out",
    "grading by value": r"appendix/grading, verifiers 2 | equal strings agree with 641 of the kit's 1,109 labels, equal values with 1,091: 0.5 is not `\frac12`",
    "programs": "appendix/sandbox, extract_code, code_reward | a program cannot be tested; with `exec` it could remove your files",
    "evaluation": "eval, evaluate_both | all of 200 right means 0.981 to 1.000, and the page does not say so; no pass@k, no votes",
    "the chapter's own step": "rlvr 1 | a reader of 9.5 looks for its listing",
    "imports and constants": "verifiers 0, model 0, rlvr 0, train 0, appendix/chat 0, appendix/plumbing 0 | ",
}


def code_lines(path):
    """Yield, for each code line, its section and the function or class that it is in, or ""."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            docs |= {*range(node.lineno, node.end_lineno + 1)}
    owners = {}
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        owners |= dict.fromkeys(range(first, node.end_lineno + 1), getattr(node, "name", ""))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    coded = {
        token.start[0] for token in tokens if tokenize.tok_name[token.type] not in SILENT
    } - docs
    section = 0
    for number, line in enumerate(source.splitlines(), 1):
        heading = re.match(r"# -+ (\d)", line)
        section = int(heading[1]) if heading else section
        if number in coded:
            yield section, owners.get(number, "")


def counted():
    """Return rows (what, code lines, files, what goes wrong without it). Raises KeyError for a line that has no row."""
    rows = {}
    lines = Counter()
    files = {what: [] for what in ROWS}
    for what, row in ROWS.items():
        rows |= dict.fromkeys(row.partition(" | ")[0].split(", "), what)
    for file in CORE:
        for section, owner in code_lines(ROOT / f"{file}.py"):
            what = rows.get(owner) or rows.get(file) or rows[f"{file} {section}"]
            lines[what] += 1
            files[what] += [f"{file}.py"] * (f"{file}.py" not in files[what])
    return [(what, lines[what], files[what], ROWS[what].partition(" | ")[2]) for what in ROWS]


def table():
    """Return the ledger in Markdown. Its first row is the page."""
    page = len([*code_lines(ROOT / "notebooks" / "page.py")])
    lines = ["| what | code lines | where | without it |", "| --- | --- | --- | --- |"]
    lines.append(f"| the page | {page} | page.py |  |")
    lines += [f"| {what} | {n} | {', '.join(files)} | {why} |" for what, n, files, why in counted()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
