"""benchmarks.py - Where more problems are: GSM8K.

python eval.py MODEL --task notebooks/tasks/benchmarks.py:gsm8k
"""

from pathlib import Path

from verifiers import BOXED, DataError, Task, boxed_reward, read_problems

GSM8K = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
    "grade_school_math/data/"
)
GSM8K_FILES = {
    "train": "17f347dc51477c50",
    "test": "3730d312f6e34405",
}  # the first digits of their SHA-256


def gsm8k() -> Task:
    """Cobbe et al. 2021 in its original form; the hub holds it as parquet, which needs another package."""
    train, test = (
        read_problems(_download(f"{GSM8K}{split}.jsonl", f"gsm8k_{split}.jsonl", sha))
        for split, sha in GSM8K_FILES.items()
    )
    return Task("gsm8k", train, test, BOXED, boxed_reward, "the original split of GSM8K")


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
