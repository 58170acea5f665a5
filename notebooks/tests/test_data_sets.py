"""tasks/benchmarks.py: GSM8K, and files that are read like it."""

import hashlib
from pathlib import Path

import pytest

from conftest import ROOT
from notebooks.tasks import benchmarks
from verifiers import DataError, get_task, read_problems


def test_gsm8k_is_checked_by_its_hash(tmp_path, monkeypatch):
    content = b'{"question": "2+2?", "answer": "2+2=4\\n#### 4"}\n'
    (tmp_path / "train.jsonl").write_bytes(content)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    url = (tmp_path / "train.jsonl").as_uri()
    with pytest.raises(DataError, match="invalid hash"):
        benchmarks._download(url, "x.jsonl", "00000000")
    assert not list((tmp_path / "home").rglob("*.jsonl"))
    path = benchmarks._download(url, "x.jsonl", hashlib.sha256(content).hexdigest()[:8])
    assert path.read_bytes() == content
    with pytest.raises(DataError, match="cannot be fetched"):
        benchmarks._download((tmp_path / "none").as_uri(), "y.jsonl", "00")


@pytest.mark.skipif(
    not (ROOT.parent / "shared" / "data").exists(), reason="the real data is not here"
)
def test_the_real_data_reads():
    data = ROOT.parent / "shared" / "data"
    for split, sha in benchmarks.GSM8K_FILES.items():
        path = data / f"gsm8k_{split}.jsonl"
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(sha)
        assert all("####" not in p["answer"] for p in read_problems(path))
    assert len(read_problems(data / "math500.jsonl")) == 500
    task = get_task(str(data / "math_train_4500.jsonl"))
    assert len(task.train) + len(task.test) == 4500 and 400 < len(task.test) < 500
