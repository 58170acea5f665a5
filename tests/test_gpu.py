"""Finds without a GPU what would fail on one, or wait for it: the scripts run on a device that pretends
to be CUDA (pretend_gpu.py). Nothing here says how fast a real GPU is."""

import json
from pathlib import Path
from unittest import mock

import pytest
import torch

import bench_sampling
import eval as evaluation
import rlvr
import train
from model import Config, ModelError, Qwen3, load, save
from notebooks.models.make_tiny import init_weights
from pretend_gpu import OnGPU, PretendGPU, Tape
from ranks import FEW, KL
from rlvr import compute_grpo_loss, row_uniforms, sample

TINY = str(Path(train.__file__).parent / "notebooks" / "tiny")
SMALL = ["--device", "cuda", "--model", TINY, *FEW, "--eval-problems", "2", "--num-samples", "8"]
SMALL += ["--prompts-per-step", "2", "--max-new-tokens", "12", "--save-every", "1"]


def test_a_run_its_resumption_and_its_evaluation_stay_on_the_device(tmp_path):
    flags = ["--method", KL, "--updates-per-batch", "2", "--stop", "zzz"]
    run = tmp_path / "x"
    where = ["--runs", str(tmp_path), "--name", "x"]
    with PretendGPU() as gpu:
        train.main([*SMALL, *flags, *where, "--steps", "1"])
        train.main(["--resume", *where, "--steps", "2"])
        evaluation.main([str(run), "--problems", "2", "--num-samples", "2"])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1]["grad_norm"] > 0
    assert rows[1]["mismatch"] < 0.05  # bf16 rounds
    dtypes = {args[0].dtype for args, _ in gpu.attention}
    assert dtypes == {torch.bfloat16}, "CUDA's fast attention needs 16 bits"
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # it makes a plan for every new shape


def test_decoding_waits_for_the_device_at_most_once_in_8_tokens():
    with PretendGPU() as gpu:
        model, tokenizer = load(TINY, "cuda", torch.bfloat16)
        prompts = [tokenizer.encode("1+2=")] * 2
        never = range(1000, 1012)  # with ten or more torch.isin would wait
        counts = []
        for tokens in (16, 32):
            gpu.waits.clear()
            gpu.uploads.clear()
            uniforms = row_uniforms(range(8), tokens, 0)
            rollouts = sample(model, prompts, 4, tokens, stop_ids=never, uniforms=uniforms)
            assert rollouts.lengths.tolist() == [tokens] * 8
            counts.append((gpu.waits.total(), gpu.uploads.total()))
    (few, sent), (many, sent_later) = counts
    assert 0 < many - few <= (32 - 16) // 8
    assert sent_later == sent


def test_a_recorded_decode_step_samples_the_same(monkeypatch):
    """Its tensors keep their places and shapes, so it can be replayed without Python."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", lambda tape: tape)
    replays = mock.Mock(wraps=Tape.replay)
    monkeypatch.setattr(Tape, "replay", lambda tape: replays(tape))
    model, tokenizer = load(TINY)
    prompts = [tokenizer.encode("1+2="), tokenizer.encode("35-4+7=")]
    how = {"temperature": 1.5, "uniforms": row_uniforms(range(8), 100, 0)}
    records = (None, bench_sampling.rounded, bench_sampling.Recorder())
    usual, rounded, recorded = (sample(model, prompts, 4, 100, **how, record=r) for r in records)
    assert replays.call_count > 20  # it is recorded anew after rows were dropped
    assert recorded.logp.equal(rounded.logp)
    assert recorded.ids.equal(usual.ids)
    torch.testing.assert_close(recorded.logp, usual.logp, atol=1e-5, rtol=0)


def test_a_step_waits_for_the_device_a_bounded_number_of_times(tmp_path):
    """It does not wait for each completion: in one micro-batch 16 and 64 of them wait equally often."""
    waits = []
    for samples in (4, 16):
        flags = [*SMALL, "--num-samples", str(samples), "--runs", str(tmp_path)]
        flags += ["--name", str(samples), "--steps", "1", "--micro-batch-tokens", "100000"]
        with PretendGPU() as gpu:
            run = train.load_run(train.parse_args(flags))
            batch = train.roll_out_all(run, run.task.train[:4], samples, 1.0, "1")
            advantages = run.method.advantages(batch).to("cuda").view(-1, 1) * batch.rollouts.mask
            gpu.waits.clear()
            train.update(run, batch, advantages, None)
            waits.append(gpu.waits.total())
    assert 0 < waits[0] == waits[1] <= 40, gpu.waits


def test_the_chapters_page_runs_on_the_device():
    def reward(text, truth):
        return float(len(text))

    with PretendGPU():
        model, tokenizer = load(TINY, "cuda", torch.bfloat16)
        out = compute_grpo_loss(model, tokenizer, "1+2=", "3", max_new_tokens=8, reward_fn=reward)
        out["loss_tensor"].backward()
        assert isinstance(model.model.embed_tokens.weight.grad, OnGPU)


MISTAKES = {
    "another operand": lambda x, w: x + torch.ones(3),
    "numpy": lambda x, w: x.numpy(),
    "another generator": lambda x, w: x.uniform_(generator=torch.Generator()),
    "joined": lambda x, w: torch.cat([x, torch.ones(3, 3)]),
    "indices of a CPU tensor": lambda x, w: torch.ones(3)[x[0].long()],
    "another dtype": lambda x, w: x.index_put_((torch.tensor([0]),), (x @ w)[:1]),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_it_raises_what_cuda_raises(mistake):
    mistake(torch.ones(3, 3), torch.ones(3, 3))  # on the CPU it is no mistake
    with PretendGPU(), torch.autocast("cuda", torch.bfloat16):
        x = torch.ones(3, 3, device="cuda")
        w = torch.nn.Parameter(torch.ones(3, 3).cuda())
        with pytest.raises((RuntimeError, TypeError)):
            mistake(x, w)


def test_it_computes_and_casts_as_cuda_does():
    with PretendGPU(), torch.autocast("cuda", torch.bfloat16):
        x = torch.ones(3, 3, device="cuda")
        product = x @ torch.ones(3, 3).cuda()
        assert x.device.type == "cuda"
        assert product.dtype == torch.bfloat16
        assert product.cumsum(0).dtype == torch.float32
        mixed = x[torch.tensor([0])] * torch.tensor(2.0)  # CPU indices and CPU numbers are allowed
        assert mixed.tolist() == [[2.0] * 3]


def full(*args, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    "name, flag", [("sample", "--sample-tokens"), ("trained_logprobs", "--micro-batch-tokens")]
)
def test_too_little_memory_names_the_flag_that_helps_there(tmp_path, monkeypatch, name, flag):
    """In the preflight, or in the first update, before there is a checkpoint."""
    monkeypatch.setattr(rlvr, name, full)
    with pytest.raises((SystemExit, ModelError)) as raised:
        train.main([*SMALL, "--device", "cpu", "--runs", str(tmp_path), "--steps", "1"])
    assert f"too little memory: give a smaller {flag}" in str(raised.value)
    assert "2.00 GiB" in str(raised.value)


@pytest.mark.parametrize("device, backend", [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_each_process_takes_its_own_gpu_first_and_only_if_asked(monkeypatch, device, backend):
    calls = []
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(train.dist, "init_process_group", lambda name, **_: calls.append(name))
    with PretendGPU():
        monkeypatch.setattr(torch.cuda, "set_device", calls.append)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **how: calls.append(how))
        flags = train.parse_args(["--device", device, "--model", TINY])
        train.start_processes(flags.device)
    chosen = calls[:-1]
    assert calls[-1] == backend
    assert chosen[:2] == ([3, {"including_emulation": False}] if device == "cuda" else [])


# ---- How many tokens are sampled at once ---------------------------------------------------------


@pytest.fixture
def start(tmp_path, tokenizer, monkeypatch):
    """Return a function that loads a run on a card with this many free bytes and returns its sample_tokens.
    The model is small, but a token takes as much cache as in Qwen3-0.6B: 2 x 28 layers x 8 heads x 128."""
    sizes = {"vocab_size": tokenizer.num_tokens, "hidden_size": 8, "intermediate_size": 8}
    model = init_weights(Qwen3(Config(**sizes, eos_token_id=0)), None)
    save(model, tokenizer, tmp_path / "narrow")

    def start(free, *flags, half=True):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: half)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free), 0))
        flags = ["--device", "cuda", "--model", f"{tmp_path}/narrow", *flags]
        return train.load_run(train.parse_args(flags)).method.settings.sample_tokens

    with PretendGPU():
        yield start


CARDS = [("T4", 13e9, False, 19836), ("16 GB", 13e9, True, 39672)]  # a T4 has no bf16
CARDS += [("24 GB", 21e9, True, 49152), ("80 GB", 77e9, True, 49152)]


@pytest.mark.parametrize("card, free, half, tokens", CARDS)
def test_a_run_samples_as_many_tokens_at_once_as_fit(start, capsys, card, free, half, tokens):
    """The cache may take 35 % of the free memory. A number that the user gives is not changed."""
    assert tokens == min(49152, int(0.35 * free / (2 * 28 * 8 * 128 * (2 if half else 4))))
    assert start(free, half=half) == tokens
    second = capsys.readouterr().out.splitlines()[1]
    assert second == f"at most {tokens} tokens are sampled at once (setting sample_tokens)"
    assert start(free, "--sample-tokens", "60000") == 60000
    assert "at once" not in capsys.readouterr().out


@pytest.mark.parametrize("given, later", [([], 1367), (["--sample-tokens", "60000"], 60000)])
def test_a_resumed_run_asks_the_card_again_unless_the_user_has_said(tmp_path, given, later):
    """A token of the tiny model takes 256 bytes."""
    where = ["--runs", str(tmp_path), "--name", "x"]
    with PretendGPU():
        train.main([*SMALL, "--max-new-tokens", "1", *where, *given, "--steps", "1"])
        torch.cuda.mem_get_info = lambda: (1_000_000, 0)  # PretendGPU puts it back
        run = train.load_run(train.parse_args(["--resume", *where, "--steps", "2"]))
    assert run.method.settings.sample_tokens == later
