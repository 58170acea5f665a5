"""train.py as it is used: a run, its files, a stop and a resume, bad flags and bad days. Toy sizes, a minute in all."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file

import eval as evaluation
import train
import verifiers
from conftest import ROOT
from model import Config, Qwen3, load
from rlvr import sample, update_gradients

FAST = ["--task", "one-digit", "--device", "cpu", "--prompts-per-step", "4", "--num-samples", "4", "--eval-every", "3",
        "--eval-problems", "20", "--save-every", "2"]


def run(tmp_path, *flags, name="run"):
    train.main([*FAST, "--runs", str(tmp_path), "--name", name, *flags])
    return tmp_path / name


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_clock(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


# ---- What a run leaves behind ----------------------------------------------------------------------------------------

def test_a_run_and_its_files(tmp_path, capsys):
    folder = run(tmp_path, "--steps", "5")
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert re.fullmatch(r"held-out accuracy [01]\.\d{3} -> [01]\.\d{3} \(greedy, n=20\) in \d+ s; model in "
                        + re.escape(str(folder / "final")), last)
    rows = metrics(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all({"reward", "accuracy", "completion_length"} <= row.keys() for row in rows)
    assert [row["step"] for row in rows if "eval_accuracy" in row] == [0, 3, 5]
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 5 * 4 * 4 and {"completion", "reward", "advantage", "finished"} <= samples[0].keys()
    assert sum(s["reward"] for s in samples if s["step"] == 2) / 16 == pytest.approx(rows[2]["reward"])
    flags = json.loads((folder / "config.json").read_text())["flags"]
    assert flags["steps"] == 5 and flags["lr"] == train.PRESETS["one-digit"]["lr"] and flags["model"] == "tiny"
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_000004", "step_000005"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= {
        path.name for path in (folder / "final").iterdir()}
    model, tokenizer = load(folder / "final")
    assert tokenizer.decode(tokenizer.encode("3+4=7")) == "3+4=7"


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    seeds = {"a": "1", "b": "1", "c": "2"}
    a, b, c = (run(tmp_path, "--steps", "3", "--seed", seed, name=name) for name, seed in seeds.items())
    assert without_clock(metrics(a)) == without_clock(metrics(b)) != without_clock(metrics(c))


def test_it_learns_the_form_of_an_answer_from_random_weights(tmp_path):
    """The first plateau of one-digit: a digit, then the end. One in ten is then right by luck."""
    folder = run(tmp_path, "--steps", "60", "--prompts-per-step", "64", "--num-samples", "16", "--lr", "1e-3",
                 "--lr-final", "1", "--eval-every", "60", "--save-every", "60")
    rewards = [row["reward"] for row in metrics(folder)[1:]]
    assert sum(rewards[:3]) / 3 < 0.03 and sum(rewards[-3:]) / 3 > 0.07


# ---- Stop and resume -------------------------------------------------------------------------------------------------

def command(tmp_path, *flags):
    return [sys.executable, "train.py", *FAST, "--runs", str(tmp_path), *flags]


def test_ctrl_c_then_resume_equals_an_uninterrupted_run(tmp_path):
    whole = run(tmp_path, "--steps", "40", "--save-every", "100", name="whole")
    process = subprocess.Popen(command(tmp_path, "--steps", "40", "--save-every", "100", "--name", "cut"), cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    path = tmp_path / "cut" / "metrics.jsonl"
    deadline = time.time() + 120
    while not (path.exists() and len(path.read_text().splitlines()) > 4) and time.time() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    stopped = len(metrics(tmp_path / "cut")) - 1
    assert 3 < stopped < 40 and f"a checkpoint of step {stopped} is saved" in output
    assert "python train.py --resume --name cut" in output and process.returncode != 0
    with open(path, "a") as file:                               # as if it had been killed while a later row was written
        file.write(json.dumps({"step": stopped + 1, "reward": -1}) + "\n" + '{"step": 9, "rewa')
    train.main(["--resume", "--runs", str(tmp_path), "--name", "cut"])
    assert without_clock(metrics(tmp_path / "cut")) == without_clock(metrics(whole))
    ours, theirs = (load_file(folder / "final" / "model.safetensors") for folder in (tmp_path / "cut", whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_resume_goes_on_to_more_steps_and_skips_a_damaged_checkpoint(tmp_path, capsys):
    folder = run(tmp_path, "--steps", "4")
    os.truncate(folder / "checkpoints" / "step_000004" / "__0_0.distcp", 1000)
    train.main(["--resume", "--runs", str(tmp_path), "--steps", "6"])
    out = capsys.readouterr().out
    assert "step_000004: cannot be used" in out and "after step 2 of 6" in out
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(train.ModelError, match="already made 6 steps"):
        train.main(["--resume", "--runs", str(tmp_path), "--steps", "3"])


def test_resume_does_not_start_over_when_all_checkpoints_are_damaged(tmp_path):
    folder = run(tmp_path, "--steps", "2")
    before = (folder / "metrics.jsonl").read_text()
    (folder / "checkpoints" / "step_000002" / "progress.json").unlink()
    with pytest.raises(train.ModelError, match="no checkpoint can be used"):
        train.main(["--resume", "--runs", str(tmp_path), "--steps", "4"])
    assert (folder / "metrics.jsonl").read_text() == before


def test_resume_of_a_run_that_saved_nothing_starts_over(tmp_path):
    folder = run(tmp_path, "--steps", "3", "--save-every", "100")
    for checkpoint in (folder / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    first = without_clock(metrics(folder))
    train.main(["--resume", "--runs", str(tmp_path)])
    assert without_clock(metrics(folder)) == first


def test_a_loss_that_is_not_a_number_stops_the_run_and_loses_nothing(tmp_path, monkeypatch):
    """A reward turns NaN in step 3: the weights saved are those after step 2, and the batch can be looked at."""
    calls = {"n": 0}

    def task():
        ordinary = verifiers.one_digit()

        def reward(completion, problem):
            calls["n"] += 1
            value, parts = verifiers.exact_reward(completion, problem)
            return (float("nan") if calls["n"] > 2 * 20 + 2 * 16 else value), parts     # 2 evaluations, then 2 steps
        ordinary.reward = reward
        return ordinary
    monkeypatch.setitem(verifiers.TASKS, "one-digit", task)
    monkeypatch.setattr(train, "score", pretend(finished=True))
    monkeypatch.setattr(train, "preflight", lambda *args: None)
    with pytest.raises(SystemExit, match="step 3 has loss nan"):
        run(tmp_path, "--steps", "10")
    folder = tmp_path / "run"
    bad = torch.load(folder / "bad_batch.pt", weights_only=True)
    assert bad["step"] == 3 and bad["advantages"].isnan().any() and bad["rollouts"]["ids"].shape[0] == 16
    optimizer = train.Optimizer(load(next((tmp_path / "base").iterdir()))[0], None)
    assert train.load_checkpoint(folder, optimizer, Namespace()) == 2
    assert all(w.isfinite().all() for w in optimizer.state()["weights"].values())
    assert [row["step"] for row in metrics(folder)] == [0, 1, 2]


def pretend(finished):
    """score, for completions that all count as finished (an untrained model rarely ends in time), or all as cut off."""
    from rlvr import score

    def pretending(rollouts, *rest):
        rollouts.finished = torch.full_like(rollouts.finished, finished)
        return score(rollouts, *rest)
    return pretending


# ---- Preflight -------------------------------------------------------------------------------------------------------

def test_the_preflight_leaves_the_run_bitwise_unchanged(tmp_path, monkeypatch, capsys):
    flags = ["--steps", "3", "--prompts-per-step", "64", "--num-samples", "16"]
    with_it = run(tmp_path, *flags, name="with")
    assert "preflight: of 1024 completions" in capsys.readouterr().out
    monkeypatch.setattr(train, "preflight", lambda *args: None)
    without = run(tmp_path, *flags, name="without")
    assert without_clock(metrics(with_it)) == without_clock(metrics(without)) and metrics(without)[-1]["trained"]
    ours, theirs = (load_file(folder / "final" / "model.safetensors") for folder in (with_it, without))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_preflight_alone_runs_the_largest_micro_batch_and_writes_nothing(tmp_path, monkeypatch, capsys):
    shapes, forward = [], Qwen3.forward
    monkeypatch.setattr(Qwen3, "forward", lambda model, ids, *args, **kw: (
        shapes.append(tuple(ids.shape)) if torch.is_grad_enabled() else None, forward(model, ids, *args, **kw))[1])
    folder = run(tmp_path, "--preflight", "--micro-batch-tokens", "60")
    out = capsys.readouterr().out
    assert shapes == [(7, 7)]                             # 7 rows of 4 + 4 tokens; the last is not read
    assert "micro-batch of 7 x 8 tokens" in out and "truth" in out and not folder.exists()


@pytest.mark.parametrize("reward, finished, message", [
    (lambda text, problem: (0.0, {}), True, "all rewards are equal.*an easier task"),
    (lambda text, problem: (1.0, {}), True, "all rewards are equal.*a harder task"),
    (lambda text, problem: 1 / 0, True, "the verifier fails on 100%"),
    (verifiers.exact_reward, False, "100% of the completions are cut off at 4 tokens"),
])
@pytest.mark.filterwarnings("ignore:the verifier failed")
def test_a_hopeless_run_stops_with_a_reason(tmp_path, monkeypatch, capsys, reward, finished, message):
    """16 completions are too few to give up; 64 are not."""
    def task():
        ordinary = verifiers.one_digit()
        ordinary.reward = reward
        return ordinary
    monkeypatch.setitem(verifiers.TASKS, "one-digit", task)
    monkeypatch.setattr(evaluation, "score", pretend(finished))
    run(tmp_path, "--steps", "1", "--prompts-per-step", "1", name="few")
    assert re.search("preflight: warning: .*" + message, capsys.readouterr().out)
    with pytest.raises(train.PreflightError, match=message):
        run(tmp_path, "--steps", "1", "--num-samples", "16", name="many")
    assert not (tmp_path / "many").exists()


def test_too_little_memory_is_seen_before_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "memory_of", lambda device: 1e6)
    with pytest.raises(train.PreflightError, match=r"cpu has 0\.0 GB, about 0\.\d are needed: less --micro-batch"):
        run(tmp_path, "--steps", "1", "--prompts-per-step", "64", "--num-samples", "64")


# ---- Optimiser -------------------------------------------------------------------------------------------------------

def masters(optimizer):
    return [weight.float() for weight in optimizer.state()["weights"].values()]


def test_fp32_masters_keep_the_small_steps_that_bf16_weights_lose():
    """lr 1e-6, 20 steps in one direction: every master moves; rounded to bf16 each time almost none would."""
    args = Namespace(lr=1e-6, lr_warmup=0, lr_final=1.0, steps=20, max_grad_norm=1e9)
    model = Qwen3(Config.tiny(20, 0)).init_weights(torch.Generator().manual_seed(0)).to(torch.bfloat16)
    before = [p.detach().float().clone() for p in model.parameters()]
    naive = [p.detach().clone() for p in model.parameters()]
    optimizer = train.Optimizer(model, args)
    for step in range(1, 21):
        for _ in (1, 2):                                                  # two micro-batches, summed in fp32
            sum(p.sum() for p in model.parameters()).backward()
        optimizer.step(step)
        naive = [p - 1e-6 for p in naive]
    moved = [m - b for m, b in zip(masters(optimizer), before)]
    assert all(torch.allclose(m, torch.full_like(m, -20e-6), rtol=0.05) for m in moved)
    lost = sum((n.float() == b).sum().item() for n, b in zip(naive, before)) / sum(b.numel() for b in before)
    assert lost > 0.8
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_optimizer_is_torchs_adamw_on_fp32_weights_bit_for_bit(tmp_path, dtype):
    args = Namespace(lr=3e-6, lr_warmup=2, lr_final=0.1, steps=9, max_grad_norm=1.0)
    model = Qwen3(Config.tiny(20, 0)).init_weights(torch.Generator().manual_seed(0)).to(dtype)
    optimizer, twin = train.Optimizer(model, args), [p.detach().float().clone() for p in model.parameters()]
    reference = torch.optim.AdamW(twin, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(1, 10):
        for param, master in zip(model.parameters(), twin):
            param.grad, master.grad = (torch.randn(param.shape) * 10.0 ** -step for _ in range(2))
            master.grad.copy_(param.grad)
        optimizer.clip()
        torch.nn.utils.clip_grad_norm_(twin, args.max_grad_norm)
        optimizer.step(step)
        reference.param_groups[0]["lr"] = optimizer.learning_rate(step)
        reference.step()
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(masters(optimizer), twin))
    assert all((p.float() - m).abs().le(m.abs() * 2**-8).all() for p, m in zip(model.parameters(), twin))
    again, problems = train.Optimizer(Qwen3(model.config).to(dtype), args), {"next": 7, "visits": {3: [0.5]}}
    train.save_checkpoint(tmp_path, 9, optimizer, Namespace(state=problems))   # and it survives a checkpoint
    picker = Namespace()
    assert train.load_checkpoint(tmp_path, again, picker) == 9 and picker.state == problems and again.updates == 9
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(masters(again), twin))
    assert all(torch.equal(again.params[name], p) for name, p in model.named_parameters())


def test_splitting_fp32_loses_nothing_and_rounds_to_nearest():
    numbers = torch.cat([torch.randn(100_000) * 10.0 ** torch.randint(-30, 30, (100_000,)),
                         torch.tensor([0.0, -0.0, 1.0, -1.0, 2**-126, 3e38, 1 + 2**-8])])       # the last: a tie
    weight, rest = torch.empty_like(numbers, dtype=torch.bfloat16), torch.empty_like(numbers, dtype=torch.int16)
    train.split_fp32(numbers, weight, rest)
    assert torch.equal(train.join_fp32(weight, rest).view(torch.int32), numbers.view(torch.int32))
    tie = numbers.view(torch.int32) % 2**16 == 2**15                            # PyTorch rounds these to even
    assert tie[-1] and torch.equal(weight[~tie], numbers.to(torch.bfloat16)[~tie])


def test_learning_rate_by_hand():
    """lr 1, 4 steps of warm-up, 20 steps in all, down to 0.1: 0.25 ... 1, half-way (1 + 0.1) / 2, at the end 0.1."""
    model = Qwen3(Config.tiny(20, 0))
    optimizer = train.Optimizer(model, Namespace(lr=1.0, lr_warmup=4, lr_final=0.1, steps=20, max_grad_norm=1.0))
    assert [optimizer.learning_rate(step) for step in (1, 4, 12, 20)] == pytest.approx([0.25, 1.0, 0.55, 0.1])


def test_bf16_training_step_on_cpu(prompts, model):
    """What a GPU does, on the CPU: bf16 sampling and gradients; sampler and trainer agree to bf16 rounding."""
    model.to(torch.bfloat16)
    args = Namespace(lr=1e-3, lr_warmup=0, lr_final=1.0, steps=5, max_grad_norm=1.0)
    optimizer = train.Optimizer(model, args)
    rollouts = sample(model, prompts, 4, 20)
    stats = update_gradients(model, rollouts, torch.randn(3, 4))
    assert stats["mismatch"] < 0.05 and rollouts.logp.dtype == torch.float32
    norm = optimizer.clip()
    assert 0 < norm < float("inf") and all(p.grad.dtype == torch.float32 for p in model.parameters())
    optimizer.step(1)


# ---- Problems, flags -------------------------------------------------------------------------------------------------

def test_every_problem_comes_once_per_epoch_in_a_new_order():
    problems = list(range(10))

    def pick(step, seed):
        return train.Picker(problems, Namespace(pick="all", prompts_per_step=4, seed=seed)).pick(step)
    steps = [pick(step, seed=0) for step in range(1, 11)]
    seen = [problem for step in steps for problem in step]
    epochs = [seen[i:i + 10] for i in range(0, 40, 10)]
    assert all(sorted(epoch) == problems for epoch in epochs) and epochs[0] != epochs[1]
    assert pick(7, seed=0) == steps[6] != pick(7, seed=1)


@pytest.mark.parametrize("flags, message", [
    (["--num-samples", "1"], "--num-samples must be at least 2"),
    (["--steps", "0"], "--steps must be at least 1"),
    (["--temperature", "0"], "--temperature and --lr must be above 0"),
    (["--model", "tiny", "--task", "math"], "tiny knows only the characters"),
    (["--resume", "--runs", "nowhere"], "no run to continue in nowhere"),
    (["--loss-norm", "median"], "invalid choice: 'median'"),
    (["--device", "tpu"], "invalid choice: 'tpu'"),
    (["--task", "one-digit", "--warmup-steps", "500"], "demonstrations only for"),
])
def test_bad_flags_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        train.parse_args(flags)
    assert message in capsys.readouterr().err


def test_an_existing_run_is_not_overwritten(tmp_path, capsys):
    run(tmp_path, "--steps", "1")
    with pytest.raises(SystemExit):
        run(tmp_path, "--steps", "1")
    assert "continue it with --resume, or choose another --name" in capsys.readouterr().err


def test_without_a_compiler_the_run_says_so_and_goes_on(tmp_path, monkeypatch, capsys):
    def no_compiler(function, **options):
        raise RuntimeError("no C++ compiler found")
    monkeypatch.setattr(torch, "compile", no_compiler)
    folder = run(tmp_path, "--steps", "1", "--compile")
    assert "torch.compile does not work here (no C++ compiler found)" in capsys.readouterr().out
    assert not json.loads((folder / "config.json").read_text())["flags"]["compile"]


def test_defaults_follow_the_machine(monkeypatch):
    args = train.parse_args([])
    if not torch.cuda.is_available():
        assert (args.model, args.task, args.device, args.dtype) == ("tiny", "arithmetic", args.device, "float32")
    monkeypatch.setattr(train, "pick_device", lambda wanted=None: ("cuda", torch.bfloat16, "a GPU with bf16"))
    args = train.parse_args([])
    assert (args.model, args.task, args.dtype) == ("Qwen/Qwen3-0.6B-Base", "math", "bfloat16")
    assert args.max_new_tokens == train.PRESETS["text"]["max_new_tokens"]
    assert train.parse_args(["--task", "arithmetic"]).model == "tiny"


def test_help_shows_every_default(capsys):
    with pytest.raises(SystemExit):
        train.parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for flag in re.findall(r"(--[a-z-]+) [A-Z{]", text):
        assert "default" in text.split(flag + " ")[-1][:400], flag


# ---- The embedded base -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("behaviour", sorted({name for phase in train.PHASES for name in phase}))
def test_demonstrations(behaviour, tokenizer):
    """25+7-4= worked is 25+7=32;32-4=28. The tags and the box are missing exactly where the behaviour says so."""
    import random
    problem = {"problem": "25+7-4=", "answer": "28"}
    symbols = train.symbol_tokenizer(train.SYMBOLS["arithmetic"])
    for seed in range(20):
        text = train.demonstrate(problem, behaviour, random.Random(seed))
        assert symbols.decode(symbols.encode(text)) == text                  # the tiny vocabulary spells all of it
        reward, parts = verifiers.tagged_reward(text, problem)
        assert parts["format"] == (behaviour != "no tags") and "28" in text
        if behaviour in ("worked", "bilingual", "rambling", "direct"):
            assert reward == pytest.approx(1.1)
    if behaviour == "worked":
        assert text == "<think>25+7=32;32-4=28</think><answer>\\boxed{28}</answer>"
    if behaviour == "several boxes":
        assert text.count("\\boxed{") == 3


def test_the_base_is_made_once_per_recipe_and_seed(tmp_path):
    task = verifiers.one_digit()
    args = Namespace(runs=str(tmp_path), seed=0, warmup_steps=0)
    first = train.tiny_base(args, task)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert train.tiny_base(args, task) == first and (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert train.tiny_base(Namespace(**{**vars(args), "seed": 1}), task) != first
