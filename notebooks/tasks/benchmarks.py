"""benchmarks.py - Where more problems are: GSM8K, HumanEval.

python eval.py MODEL --task notebooks/tasks/benchmarks.py:gsm8k
"""

import ast
import gzip
import json
from pathlib import Path

from verifiers import (
    BOXED,
    PROGRAM,
    DataError,
    Task,
    boxed_reward,
    code_reward,
    read_problems,
)

GSM8K = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
    "grade_school_math/data/"
)
GSM8K_FILES = {
    "train": "17f347dc51477c50",
    "test": "3730d312f6e34405",
}  # the first digits of their SHA-256
HUMANEVAL = (
    "https://raw.githubusercontent.com/openai/human-eval/463c980b59e818ace59f6f9803cd92c749ceae61/data/"
    "HumanEval.jsonl.gz"
)
HUMANEVAL_SHA = "b796127e635a67f9"


def gsm8k() -> Task:
    """Cobbe et al. 2021 in its original form; the hub holds it as parquet, which needs another package."""
    train, test = (
        _gsm8k_problems(_download(f"{GSM8K}{split}.jsonl", f"gsm8k_{split}.jsonl", sha))
        for split, sha in GSM8K_FILES.items()
    )
    return Task("gsm8k", train, test, BOXED, boxed_reward, "the original split of GSM8K")


def _gsm8k_problems(path):
    """With the worked solutions, which read_problems leaves out, for few-shot prompts."""
    with open(path, encoding="utf-8") as file:
        solutions = [json.loads(line)["answer"].rpartition("####")[0].strip() for line in file]
    problems = read_problems(path)
    return [{**row, "solution": text} for row, text in zip(problems, solutions, strict=True)]


def humaneval(path=None) -> Task:
    """164 Python functions to complete (Codex, arXiv 2107.03374), judged by verify_code."""
    path = path or _download(HUMANEVAL, "HumanEval.jsonl.gz", HUMANEVAL_SHA)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        problems = [_humaneval_problem(json.loads(line)) for line in file]
    return Task("humaneval", [], problems, PROGRAM, code_reward, "for evaluation only")


def _humaneval_problem(row):
    """HumanEval's check(candidate) as tests: its asserts one by one, or whole where it has loops or names of its own.

    What the prompt gives (imports, helpers, and the function, which is a docstring still) runs before the answer: a
    program that does not repeat it is not wrong.
    """
    function = row["entry_point"]
    (check,) = (
        node
        for node in ast.parse(row["test"]).body
        if isinstance(node, ast.FunctionDef) and node.name == "check"
    )
    for node in ast.walk(check):
        if isinstance(node, ast.Name) and node.id == "candidate":
            node.id = function
    tests = [f"{row['test']}\ncheck({function})"]
    if all(
        isinstance(line, ast.Assert) for line in check.body
    ):  # some are `assert True`: those test nothing
        tests = [test for test in map(ast.unparse, check.body) if f"{function}(" in test]
    return {
        "problem": f"Complete this program:\n\n```python\n{row['prompt']}```",
        "answer": "\n".join(tests),
        "before": row["prompt"] + "\n",
        "entry_points": [function],
        "tests": tests,
        "task_id": row.get("task_id"),
    }


def _download(url, name, sha256) -> Path:
    from torch.hub import (
        download_url_to_file,
    )  # shows a progress bar; a broken transfer leaves no file

    path = Path.home() / ".cache" / "rlvr" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(url, str(path), hash_prefix=sha256)
        except (OSError, RuntimeError) as error:  # RuntimeError: the hash is not the expected one
            raise DataError(
                f"{url}: cannot be fetched ({error}). Fetch it yourself and pass it as --task"
            ) from error
    return path
