"""ledger.py - what the lines of the scripts buy beyond page.py: a table of code lines.

    python -m notebooks.ledger

A code line is neither blank nor a comment nor part of a docstring. Each function and each class of
the core belongs to one row; a file without a colon belongs there whole.
"""

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = [*"verifiers model rlvr eval train".split()]
CORE += [f"appendix/{name}" for name in "grading sandbox chat plumbing".split()]
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
SILENT |= {tokenize.ENDMARKER, tokenize.ENCODING}
ROWS = [  # (what is bought, where, what goes wrong without it)
    (
        "the idea: what the page has, too",
        """model: rope_tables apply_rope KVCache Attention Block Qwen3
        rlvr: Rollouts choose sample Batch score group_advantages policy_loss update_gradients
        verifiers: extract_boxed_answer reward_rlvr arithmetic_problem arithmetic
        train: train_rlvr pick_problems update step_optimizer is_due evaluate_both""",
        "a step of the page takes 1.6 times as long",
    ),
    (
        "batches of unequal rows, micro-batches, a warm-up",
        """rlvr: prefill MicroBatch LossInputs padded_rows log_probs_of token_logprobs loss_weights
        token_advantages train: means_over_tokens set_learning_rate""",
        "finished completions stay in the page's batch: two of three positions that it samples are thrown away",
    ),
    (
        "memory",
        """rlvr: trained_logprobs logprobs_of ChunkLogprobs limit_sampling
        model: sample_tokens_that_fit oom_hint train: cast_weights""",
        "one completion of 1,024 tokens takes 16.3 GB at Qwen3-0.6B's shape; the scripts need 10.6 for eight",
    ),
    (
        "other models, chat templates, the hub",
        """model: Config _with_defaults _read_json pick_device load fetch check_model _read_tensors save
        Tokenizer check_prompts rlvr: own_words train: is_tiny defaults_for
        appendix/chat: fail Chat transcript""",
        "a Llama, a Qwen2: `KeyError: 'model.layers.0.self_attn.q_norm.weight'`; a chat model gets no template",
    ),
    (
        "many GPUs",
        """train: roll_out_all start_processes all_sum gather gather_batches equal_share clip_gradients
        Sharder unsharded""",
        "weights, gradients and two moments of Qwen3-8B are 131 GB (16 bytes a parameter): too much for one GPU",
    ),
    (
        "resume: the same bits after a crash",
        """rlvr: row_uniforms epoch_order train: Run load_run set_up state_of save_checkpoint keep_steps
        load_checkpoint read_run write_config origin_of train_until_the_end save_final resume_hint
        appendix/plumbing: hashes_of git_commit as_json""",
        "the page keeps nothing: Ctrl-C in step 99 loses 99 steps",
    ),
    (
        "preflight and messages",
        """model: ModelError rlvr: Stopped bad_return check_rollouts
        verifiers: checked with_parts check_task __getattr__ train: preflight why_rewards_are_equal
        main start appendix/plumbing: DataError place_of clear_errors shown hint bar run_all""",
        "a base that never writes a box trains for 100 steps at reward 0.00, and nobody says so",
    ),
    (
        "a log, all completions kept",
        """rlvr: records_of train: write_samples finish_step log_row batch_metrics
        appendix/plumbing: read_rows append_rows read_log cell""",
        "the page shows 1 completion of 640; hacks are found by reading",
    ),
    (
        "environments",
        "appendix/chat: Turns close_environments write_replies read_replies",
        "a calculator cannot answer: the first stop ends a completion",
    ),
    (
        "methods as files, settings as flags",
        """rlvr: GRPO Settings roll_out train: TrainFlags Flags parse_args
        appendix/plumbing: lookup find_method get_method _import_file option add_flags read_command
        fields_in""",
        "each published method would be a copy of the page",
    ),
    (
        "rewards and tasks as files",
        """verifiers: RuleSpec aggregate box_parts boxed_reward tagged_reward get_reward Task held_out
        words_of math500 math_task _file_task with_accuracy_of get_task
        appendix/plumbing: read_problems _problem hub_problems read_text read_json""",
        "one reward; and a problem that stands twice in the file may be trained on and held out",
    ),
    (
        "grading by value",
        "appendix/grading verifiers: grade_answer is_rewarded",
        "as strings 641 of the kit's 1,109 answers are judged right, by value 1,091: 0.5 is not `\\frac12`",
    ),
    (
        "programs",
        "appendix/sandbox verifiers: extract_code code_reward",
        "a program cannot be judged; with `exec` it could remove your files",
    ),
    (
        "evaluation",
        "eval",
        "all of 200 right means .981 to 1.000, and the page does not say so; no pass@k, no votes",
    ),
    (
        "the chapters' own forms",
        "rlvr: compute_grpo_loss verifiers: split_tags verify_math verify_format",
        "`verify_math` and others that a reader of the chapters looks for",
    ),
]


def code_lines(path):
    """The numbers of the code lines of a file, and for each function and class of its top level those that are its."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            docs |= {*range(node.lineno, node.end_lineno + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {token.start[0] for token in tokens if token.type not in SILENT} - docs
    owned = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            owned[node.name] = len(lines & {*range(first, node.end_lineno + 1)})
    return len(lines), owned


def named(places):
    """ "eval rlvr: a b" -> {("eval", None), ("rlvr", "a"), ("rlvr", "b")}"""
    found = set()
    file = None
    for word in places.split():
        if word in CORE:
            found.add((word, None))
        elif word.endswith(":"):
            file = word[:-1]
        else:
            found.add((file, word))
    return found


def counted():
    """-> rows (what, lines, files, without), the last one for what is in no function. Raises KeyError for a function
    that is nowhere, or twice."""
    totals, owned = zip(*(code_lines(ROOT / f"{name}.py") for name in CORE))
    left = {(file, name): n for file, names in zip(CORE, owned) for name, n in names.items()}
    total = dict(zip(CORE, totals))
    rows = []
    for what, places, without in ROWS:
        lines = 0
        files = []
        for file, name in sorted(named(places), key=lambda pair: CORE.index(pair[0])):
            if name:
                n = left.pop((file, name))
                total[file] -= n
            else:
                n = total[file]
                total[file] = 0
                left = {key: own for key, own in left.items() if key[0] != file}
            lines += n
            files += [f"{file}.py"] * (f"{file}.py" not in files)
        rows.append((what, lines, files, without))
    if left:
        raise KeyError(f"in no row: {[*left]}")
    rows.append(("imports and constants of these files", sum(total.values()), [], ""))
    return rows


def table():
    """The ledger in Markdown. The page's own code lines are its first row."""
    page, _ = code_lines(ROOT / "notebooks" / "page.py")
    lines = ["| what | code lines | where | without it |", "| --- | --- | --- | --- |"]
    lines.append(f"| the page | {page} | page.py |  |")
    lines += [
        f"| {what} | {n} | {', '.join(files)} | {without} |"
        for what, n, files, without in counted()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
