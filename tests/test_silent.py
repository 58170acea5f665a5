"""Nothing silent: faults that could spoil a run without a message. Each is refused with a sentence that says what to
do, or handled correctly; and a run always shows something on the screen."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import tokenizers
import torch
import transformers

import eval as evaluation
import ranks
import train
import verifiers
from appendix.plumbing import DataError, append_rows, run_all
from model import Config, ModelError, Tokenizer, load
from ranks import ROOT, SMALL, checkpoints, loaded, main, rows_of, weights
from rlvr import sample, token_advantages
from test_model import edit_config, edit_weights, write_checkpoint, write_tokenizer

TINY = ROOT / "notebooks" / "tiny"


def run(runs, *flags):
    """Run train.py. Returns its last message if it ends early, else None."""
    return main(*SMALL, "--runs", str(runs), "--name", "run", *flags)


# ---- The model and its tokenizer ---------------------------------------------------------------------------------

LINEAR = {"rope_type": "linear", "factor": 2.0}
TWO = {"rope_type": "default", "rope_theta": 2e4}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_parameters": TWO},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}},
        {"rope_scaling": LINEAR, "rope_parameters": TWO},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5},
        {"rope_parameters": {**TWO, "partial_rotary_factor": 0.5}},
    ],
    ids=str,
)
def test_rope_is_what_transformers_reads_or_refused(tmp_path, rope):
    """A file may have both spellings, or a theta outside of them."""
    write_checkpoint(tmp_path)
    edit_config(tmp_path, **rope)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    if theirs["rope_type"] == "default" and "partial_rotary_factor" not in theirs:
        assert Config.from_dir(tmp_path).rope_theta == theirs["rope_theta"]
    else:
        with pytest.raises(ModelError, match="only dense models with (rope_type|partial_rotary)"):
            Config.from_dir(tmp_path)


def test_of_one_file_and_shards_the_file_counts_as_in_transformers(tmp_path):
    write_checkpoint(tmp_path, max_shard_size="60KB")
    whole = write_checkpoint(tmp_path / "whole")
    with torch.no_grad():
        whole.model.norm.weight.fill_(2.0)
    whole.save_pretrained(tmp_path / "whole")
    shutil.copy(tmp_path / "whole" / "model.safetensors", tmp_path)
    ours, _ = load(tmp_path)
    assert ours.model.norm.weight.eq(2).all()


ENDS = ["<|begin|>", "<|User|>", "<|Assistant|>", "<|end|>"]
DISTILLED = (  # as in DeepSeek's distilled models: only an assistant's turn ends with a stop token
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
    "{% else %}<|Assistant|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)
GENEROUS = (  # uses everything that transformers provides
    "{% if tools is not none or documents is not none %}{{ raise_exception('no') }}{% endif %}"
    "{{ eos_token }}{{ pad_token }}{{ {'b': '<é', 'a': 1} | tojson }}{{ strftime_now('%Y') }}"
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}<|end|>"
)


@pytest.mark.parametrize("source", [DISTILLED, GENEROUS, "list"], ids=["distilled", "all", "list"])
def test_a_chat_template_gets_what_transformers_gives_it(tmp_path, source):
    """Templates may be files of their own, or a list with names, and may use all that transformers provides."""
    vocabulary = write_tokenizer(tmp_path, ENDS, ENDS[0])
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["pad_token"] = {"content": ENDS[3], "__type": "AddedToken"}
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": DISTILLED}]
    config["chat_template"] = named if source == "list" else None
    path.write_text(json.dumps({**config, "pad_token": ENDS[3]}))
    if source != "list":  # newer models have a file of its own
        (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "1+1="}]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    for known in (config, {**config, "pad_token": ENDS[3]}):
        path.write_text(json.dumps(known))
        ours = Tokenizer.from_dir(tmp_path, (vocabulary[ENDS[3]],))
        assert ours.template == "chat"
        assert ours.prompt_text("1+1=") == text.replace("é", " ")  # for which it has no token
    assert Tokenizer.from_dir(tmp_path, (vocabulary["a"],)).template == "plain"  # another stop


def test_a_chat_template_that_fails_is_an_error_and_not_none(tmp_path):
    vocabulary = write_tokenizer(tmp_path, ["<|im_start|>", "<|im_end|>"])
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    eos = (vocabulary["<|im_end|>"],)
    with pytest.raises(ModelError, match="roles must alternate.*use --template plain"):
        Tokenizer.from_dir(tmp_path, eos).encode_prompt("1")
    assert Tokenizer.from_dir(tmp_path, eos, "plain").encode_prompt("1") == [vocabulary["1"]]


def test_the_settings_of_a_fine_tune_cut_no_prompt_short(tmp_path):
    """tokenizer.json may contain a trainer's truncation and padding, which transformers ignores, too."""
    backend = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    ids = backend.encode("25+7+9-4=").ids
    backend.enable_truncation(5)
    backend.enable_padding(length=20)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_dir(tmp_path, (0,)).encode_prompt("25+7+9-4=") == ids


def test_a_chat_without_special_tokens_is_one_text_and_is_told_of_thinking(tmp_path):
    write_tokenizer(tmp_path, ["<e>"])
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }} {{ enable_thinking }}")
    tokenizer = Tokenizer.from_dir(tmp_path, (0,), "chat-nothink")
    tokenizer.special = {}
    pieces = []
    tokenizer.encode = lambda text: pieces.append(text) or []
    tokenizer.encode_prompt("12")
    assert "".join(pieces) == "12 False" and "12 False" in pieces


def test_weights_that_are_no_numbers_are_said_and_not_called_wrong_answers(tmp_path):
    """Otherwise NaN would sample any token, and the accuracy would be 0, or an index out of range."""
    name = str(shutil.copytree(TINY, tmp_path / "broken"))
    edit_weights(tmp_path / "broken", lambda w: w["model.norm.weight"].__setitem__(0, torch.nan))
    said = run(tmp_path, "--model", name, "--steps", "1")
    assert "finite log-probs" in said and "NaN in the weights?" in said
    with pytest.raises(DataError, match="finite log-probs"):
        evaluation.main([name, "--task", "arithmetic", "--problems", "4"])
    policy, tokenizer = load(name)
    assert sample(policy, [tokenizer.encode("1+1=")], 3, 4).logp.isnan().any()


METHODS = """
import torch
from torch import nn
from rlvr import *
class Noisy(GRPO):
    def setup(self, model, tokenizer):
        model.model.norm.weight.data += torch.randn(64)
        return super().setup(model, tokenizer)
class Unseeded(Noisy):
    def setup(self, model, tokenizer):
        torch.seed()
        return super().setup(model, tokenizer)
class Outside(GRPO):
    def setup(self, model, tokenizer):
        self.head = nn.Linear(64, 1)
        return super().setup(model, tokenizer) + list(self.head.parameters())
class Inside(GRPO):
    def setup(self, model, tokenizer):
        model.value_head = nn.Linear(64, 1)
        return super().setup(model, tokenizer)
class TakesAway(Inside):
    def after_step(self, row, model):
        self.settings.temperature = 0.5
    def export(self, model):
        del model.value_head
        return model
class Forgets(Inside):
    def export(self, model):
        return model
class Sees(GRPO):
    seen = []
    def roll_out(self, model, tokenizer, prompts, training, **how):
        assert len(how["uniforms"]) == len(prompts) * how["num_samples"]
        self.seen.append((training, len(prompts)))
        return super().roll_out(model, tokenizer, prompts, training, **how)
class Misspelt(GRPO):
    def advantage(self, step):
        return -group_advantages(step.rewards)
class Below(Misspelt):
    pass
class Undecorated(GRPO):
    class Settings(GRPO.Settings):
        temperature: float = 0.5
class Untyped(GRPO):
    @dataclass
    class Settings(GRPO.Settings):
        temperature = 0.5
class Subset(GRPO):
    def optimizer(self, parameters, lr):
        return super().optimizer(parameters[:1], lr)
class Apart(GRPO):
    def optimizer(self, parameters, lr):
        fast = {"params": [param for param in parameters if param.ndim == 2], "lr": 10 * lr}
        slow = {"params": [param for param in parameters if param.ndim != 2]}
        return torch.optim.SGD([fast, slow], lr, momentum=0.9)
class Off(GRPO):
    "The sampler says of one token that it is less likely than it is."
    def roll_out(self, *args, **how):
        rollouts = super().roll_out(*args, **how)
        row, column = rollouts.mask.nonzero()[0].tolist()
        rollouts.logp[row, column] -= 0.5
        return rollouts
    def advantages(self, step):
        return torch.ones_like(step.rewards)
"""


def norm_of(path, name):
    return loaded("--method", f"{path}:{name}").model.model.norm.weight.detach().clone()


def test_what_a_method_draws_in_setup_is_the_same_again_and_on_every_rank(write):
    """torch is seeded before setup. If setup seeds it anew, all ranks get the first rank's weights."""
    path = write(METHODS)
    assert torch.equal(norm_of(path, "Noisy"), norm_of(path, "Noisy"))
    assert not torch.equal(norm_of(path, "Unseeded"), norm_of(path, "Unseeded"))
    first, second = ranks.run(2, on_a_rank, path)
    assert first == second


def on_a_rank(path):
    train.start_processes("cpu")
    return norm_of(path, "Unseeded").tolist()


@pytest.mark.parametrize(
    "name, message",
    [
        ("Outside", "setup returns .*not a list of parameters of the model"),
        ("Inside", r"export returns the model with \['value_head.bias', 'value_head.weight'\]"),
    ],
)
def test_a_parameter_that_would_be_lost_is_refused_before_step_1(tmp_path, write, name, message):
    """Otherwise the run would fail at its first checkpoint, or write a final/ that cannot be loaded."""
    assert re.search(message, run(tmp_path, "--method", f"{write(METHODS)}:{name}"))
    assert not (tmp_path / "run").exists()


def test_final_is_loaded_before_a_run_says_that_it_is_there(tmp_path, write):
    path = write(METHODS)
    assert run(tmp_path, "--method", f"{path}:TakesAway", "--steps", "1") is None
    load(tmp_path / "run" / "final")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["temperature"] == 0.5  # eval.py uses the final settings
    said = run(tmp_path / "b", "--method", f"{path}:Forgets", "--steps", "1")
    assert "Unexpected key" in said and "value_head" in said


def test_roll_out_sees_its_problems_and_whether_they_are_trained_on(tmp_path, write):
    r = loaded("--method", f"{write(METHODS)}:Sees")
    train.preflight(r)
    train.evaluate_both(r)
    assert r.method.seen == [(True, 4), (False, 16), (False, 16)]


@pytest.mark.parametrize(
    "name, message",
    [
        ("Misspelt", "nothing calls advantage. You can override Settings, advantages, "),
        ("Below", "nothing calls advantage. You can override Settings, advantages, "),
        ("Undecorated", "temperature would be no flag: write it, with its type, in `@dataclass"),
        ("Untyped", "temperature would be no flag: write it, with its type, in `@dataclass"),
    ],
)
def test_what_a_method_means_to_change_is_changed_or_refused(capsys, write, name, message):
    """Otherwise it would be plain GRPO, at temperature 1."""
    with pytest.raises(SystemExit):
        train.parse_args(["--device", "cpu", "--method", f"{write(METHODS)}:{name}"])
    assert message in capsys.readouterr().err


def test_what_the_optimizer_leaves_out_has_no_part_in_the_gradients_norm(write):
    """Otherwise it would grow from step to step, and with it the norm by which all gradients are clipped."""
    r = loaded("--method", f"{write(METHODS)}:Subset")
    batch = train.roll_out_all(r, r.task.train[:4], 4, 1.0, "1")
    batch.rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(4, 1)
    for _ in range(2):
        train.update(r, batch, token_advantages(r.method, batch))
    assert all(param.grad is None for param in r.model.parameters())


def test_an_optimizer_of_my_own_with_rates_of_its_own(tmp_path, write):
    """Matrices have another rate. The schedule keeps the factor between the rates, and a resumed run has the same bits."""
    flags = ["--method", f"{write(METHODS)}:Apart", "--save-every", "2", "--eval-every", "9"]
    assert run(tmp_path, *flags, "--steps", "4") is None
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step_000004")
    assert main("--resume", "--runs", str(tmp_path), "--name", "again") is None
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "again"))
    r = train.load_run(train.parse_args(["--resume", "--runs", str(tmp_path), "--name", "again"]))
    train.load_checkpoint(r)
    last = 4 / 5 * 0.1  # the warm-up and the cosine of step 4
    rates = [group["lr"] for group in r.optimizer.param_groups]
    assert rates == pytest.approx([10 * 4e-4 * last, 4e-4 * last])


# ---- Runs, checkpoints and data ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the folder of a run with checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("saved")
    assert run(folder, "--steps", "2", "--save-every", "1", "--eval-every", "9") is None
    return folder / "run"


def resumed(folder):
    flags = train.parse_args(["--resume", "--runs", str(folder.parent), "--name", folder.name])
    r = train.load_run(flags)
    train.load_checkpoint(r)
    return r.step


def test_a_flipped_bit_is_found_in_every_file_of_a_checkpoint(saved, tmp_path, capsys):
    """Each file has a hash. A damaged checkpoint is skipped, and the one before it is loaded."""
    assert resumed(saved) == 2
    names = {path.name for path in (saved / "checkpoints" / "step_000002").iterdir()}
    assert names >= {"progress.json", "hashes.json", ".metadata"}
    for name in names:
        folder = shutil.copytree(saved, tmp_path / name.strip("."))
        path = folder / "checkpoints" / "step_000002" / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert resumed(folder) == 1
        assert "step_000002 cannot be used" in capsys.readouterr().out


def test_a_copy_of_a_checkpoint_stays_and_a_damaged_only_one_begins_nothing_again(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "run") / "checkpoints"
    shutil.copytree(folder / "step_000001", folder / "step_000001_best")
    main("--resume", "--runs", str(tmp_path), "--name", "run", "--steps", "4")
    kept = {"step_000001_best", "step_000003", "step_000004"}
    assert {path.name for path in folder.iterdir()} == kept
    for name in ("step_000003", "step_000004"):
        (folder / name / ".metadata").write_bytes(b"")
    before = rows_of(folder.parent)
    said = main("--resume", "--runs", str(tmp_path), "--name", "run", "--steps", "5")
    assert "has no usable checkpoint" in said and rows_of(folder.parent) == before


def test_the_last_line_is_of_the_step_that_was_asked_for(saved, tmp_path, capsys):
    """The log may have a later row, if the run was killed after its last checkpoint."""
    folder = shutil.copytree(saved, tmp_path / "run")
    later = {**rows_of(folder)[-1], "step": 4, "eval_accuracy": 0.777, "eval_n": 16}
    append_rows(folder / "metrics.jsonl", [later])
    main("--resume", "--runs", str(tmp_path), "--name", "run", "--steps", "3")
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"-> {rows_of(folder)[-1]['eval_accuracy']:.3f} (greedy" in last and "0.777" not in last


def test_a_run_goes_on_with_no_other_model_than_its_own(saved, tmp_path):
    """Otherwise a KL would compare with another model. A model that was moved still counts as the same."""
    folder = shutil.copytree(saved, tmp_path / "run")
    go_on = ["--resume", "--runs", str(tmp_path), "--name", "run", "--steps", "3"]
    other = shutil.copytree(TINY, tmp_path / "other")
    edit_weights(other, lambda w: w["model.norm.weight"].mul_(1.001))
    before = rows_of(folder)
    said = main(*go_on, "--model", str(other))
    assert "config.json: the weights have changed since the run began: restore them" in said
    assert rows_of(folder) == before and checkpoints(folder) == checkpoints(saved)
    moved = shutil.copytree(TINY, tmp_path / "moved")
    assert main(*go_on, "--model", str(moved)) is None


def test_a_run_goes_on_with_no_other_problems_or_reward_than_its_own(tmp_path, write, capsys):
    """Changed problems are refused. A changed reward gives a warning."""
    rows = [{"problem": f"{i}+{i % 7}=", "answer": str(i + i % 7)} for i in range(10, 90)]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward = Path(write("from verifiers import tagged_reward as mine\n"))
    own = ["--task", str(data), "--prompt", "{problem}", "--reward", f"{reward}:mine"]
    assert run(tmp_path, *own, "--steps", "1") is None
    go_on = ["--resume", "--runs", str(tmp_path), "--name", "run", "--steps", "2"]
    before = data.read_text()
    data.write_text(before.replace("+1=", "-1="))
    assert "the problems have changed since the run began: restore them" in main(*go_on)
    data.write_text(before)
    reward.write_text(reward.read_text() + "\n")
    assert main(*go_on) is None  # a mistake in a reward may be corrected
    assert "warning" in capsys.readouterr().out.split("the files have changed")[0].splitlines()[-1]


def test_markup_in_a_prompt_is_refused_because_it_would_be_text():
    """The model would read <|endoftext|> letter by letter, although the printed prompt looks right."""
    with pytest.raises(ModelError, match=r"<\|endoftext\|> would be read letter by letter"):
        loaded("--prompt", "{problem}<|endoftext|>")


@pytest.mark.parametrize(
    "switch", ["", "{% if enable_thinking is false %}<think></think>{% endif %}"]
)
def test_a_template_that_cannot_switch_thinking_off_is_not_asked_to(tmp_path, switch):
    """Otherwise chat-nothink would silently be chat."""
    name = shutil.copytree(TINY, tmp_path / "chat")
    source = "{% for m in messages %}{{ m.content }}{% endfor %}" + switch
    (name / "chat_template.jinja").write_text(source)
    flags = ["--model", str(name), "--template", "chat-nothink"]
    if switch:
        assert loaded(*flags).tokenizer.prompt_text("1+1=") == "1+1=<think></think>"
    else:
        with pytest.raises(ModelError, match="no switch for thinking.*Give --template chat"):
            loaded(*flags)


def task_of(**column):
    problems = [{"problem": f"{i}+1=", "answer": str(i + 1), **column} for i in range(20)]
    return verifiers.Task("own", problems, problems, "{problem}", verifiers.boxed_reward)


@pytest.mark.parametrize(
    "column, message",
    [
        ({"step": 3}, 'task own, problem 1: rename "step": a run adds its own column'),
        ({"turns": []}, 'task own, problem 1: rename "turns": a run adds its own column'),
        ({"level": numpy.int64(3)}, "task own, problem 1: .*int64 is not JSON"),
    ],
)
def test_a_column_that_would_be_overwritten_or_not_written_is_refused(column, message):
    """Otherwise this would happen only in training, or after step 1."""
    verifiers.check_task(task_of(level=3))
    with pytest.raises(DataError, match=message):
        verifiers.check_task(task_of(**column))


def test_the_mismatch_is_logged_as_its_mean_and_a_share(saved, write):
    """One wrong token in a thousand hardly moves a mean, but it counts in the share."""
    row = rows_of(saved)[1]
    assert 0 < row["mismatch"] < 1e-4 and row["off"] == 0
    r = loaded("--method", f"{write(METHODS)}:Off")
    batch = train.roll_out_all(r, r.task.train[:4], 4, 1.0, "1")
    stats, _ = train.update(r, batch, token_advantages(r.method, batch))
    tokens = batch.rollouts.mask.sum().item()
    assert stats["off"] == pytest.approx(1 / tokens)


# ---- What is on the screen -----------------------------------------------------------------------------------------


def test_into_a_pipe_the_first_line_comes_at_once(tmp_path):
    """This holds without PYTHONUNBUFFERED, too. Lines of the table fit a screen of 80 columns, nothing goes to stderr, and
    the run estimates how long it will take."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    place = ["--runs", str(tmp_path), "--name", "x", "--steps", "10"]
    command = [sys.executable, "train.py", *SMALL, *place]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        first = process.stdout.readline()
        log = tmp_path / "x" / "metrics.jsonl"
        assert first.startswith("model ") and not log.exists()  # that is, before step 0
        out, error = process.communicate(timeout=100)
    assert process.returncode == 0 and error == ""
    _, *rows = table = out.partition("\nstep")[2].splitlines()[:-1]
    assert {int(row.split()[0]) for row in rows} >= {0, 3, 5, 6, 9, 10}  # a slow machine shows more
    assert max(map(len, table)) <= 79
    assert re.search(r"10 steps take about 0:00:\d\d", out)


def test_where_steps_take_seconds_each_has_a_row(capsys):
    """Faster steps share rows."""
    r = loaded()
    r.flags.runs = "nowhere"
    for seconds, rows in ((0.5, 0), (1.5, 1)):
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "append_rows", lambda path, rows: None)
            train.log_row(r, {"step": 3, "reward": 0.5, "seconds": seconds})
        assert len(capsys.readouterr().out.splitlines()) == rows


@pytest.mark.parametrize("value", ["0.273", "17.29", "2e-07", "1.000", "0.000", "-0.25"])
def test_a_number_in_the_table_takes_five_characters(value):
    assert train.cell(float(value), "acc") == value.rjust(5)


def test_on_a_cpu_nobody_is_given_the_large_model_unasked(capsys):
    """It must be asked for by name."""
    with pytest.raises(SystemExit):
        train.parse_args(["--device", "cpu", "--task", "math"])
    assert "give a --model" in capsys.readouterr().err


def test_a_run_is_evaluated_by_another_method_with_what_that_has(saved, write):
    """The run's config.json may have settings that the other method lacks."""
    config = json.loads((saved / "config.json").read_text())
    config["settings"]["rank"] = 8  # as of LoRA
    (saved / "config.json").write_text(json.dumps(config))
    flags, method = evaluation.parse_args([str(saved), "--method", f"{write(METHODS)}:Apart"])
    assert type(method).__name__ == "Apart" and method.settings.num_samples == 1
    assert method.settings.max_new_tokens == config["settings"]["max_new_tokens"]
    assert flags.task.endswith(":few_sums") and flags.baseline == config["flags"]["model"]


MISSPELT = [("train.py --step 4", "--steps"), ("eval.py x --num_samples=4", "--num-samples")]


@pytest.mark.parametrize("script, near", MISSPELT)
def test_a_misspelt_flag_has_one_suggestion(script, near, capsys):
    name, *flags = script.split()
    with pytest.raises(SystemExit):
        {"train.py": train, "eval.py": evaluation}[name].parse_args(flags)
    assert capsys.readouterr().err.endswith(f"see --help; did you mean {near}?\n")


def test_a_file_of_another_type_is_named_at_once():
    with pytest.raises(DataError, match="'x.xlsx'.* problems: .jsonl, .json, .gz, .csv"):
        verifiers.get_task("x.xlsx")


def test_a_reward_that_is_cancelled_costs_its_neighbours_nothing():
    """CancelledError is no Exception. It must not end the thread, which has other completions to score."""

    def cancelled(completion, problem):
        if completion == "8":
            raise asyncio.CancelledError
        return 1.0, {}

    results = run_all([*"0123456789"] * 9, [{}] * 90, cancelled)
    assert results.count((1.0, {})) == 81
    with pytest.warns(UserWarning, match="CancelledError"):
        assert verifiers.checked(results[8])[1]["failed"] == 1


def test_a_reward_that_fails_names_its_file_and_line(write):
    """The line is the one in the reward's own file, even if the error is raised in another file."""
    text = "import json\n\ndef mine(completion, problem):\n    return json.loads(completion), {}\n"
    path = write(text)
    mine = verifiers.get_reward(f"{path}:mine")
    with pytest.warns(UserWarning, match=rf"{re.escape(path)}, line 4: JSONDecodeError"):
        verifiers.checked(run_all(["no json"], [{}], mine)[0])
