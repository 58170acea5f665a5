"""model.py agrees with transformers, in both directions, and says what is wrong with a checkpoint."""

import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from functools import partial

import huggingface_hub
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import hub
from conftest import ROOT
from appendix.chat import CHATML
from notebooks.models.make_tiny import symbol_tokenizer
import model as model_file
from model import KVCache, ModelError, Tokenizer, fetch, load, save

SHAPE = dict(
    vocab_size=120,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    eos_token_id=5,
    pad_token_id=5,
)  # 6 * 16 != 48, as in Qwen3-0.6B
TINY = ROOT / "notebooks" / "tiny"
QWEN_TOKENIZER = ROOT.parent / "shared" / "data" / "qwen3_tokenizer"
needs_qwen_tokenizer = pytest.mark.skipif(
    not QWEN_TOKENIZER.exists(), reason="Qwen3's tokenizer is not here"
)


FAMILIES = {
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),  # biases on q, k and v
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
}


def write_checkpoint(directory, max_shard_size="5GB", family="qwen3", **changes):
    """Let transformers write a random checkpoint, with norm weights that are not all 1 and biases that are not all 0.
    Returns transformers' model."""
    torch.manual_seed(0)
    config, model = FAMILIES[family]
    theirs = model(config(**{**SHAPE, **changes}))
    for weight in theirs.parameters():
        if weight.ndim == 1:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    theirs.save_pretrained(directory, max_shard_size=max_shard_size)
    symbol_tokenizer("0123456789+=").save(directory)
    return theirs.eval()


def edit_config(directory, **changes):
    """Change values in config.json. None removes the key."""
    path = directory / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: value for k, value in values.items() if value is not None}))


def edit_weights(directory, change):
    path = directory / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def assert_same_logits(ours, theirs, shape=(2, 30), atol=1e-5):
    ids = torch.randint(0, ours.config.vocab_size, shape)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=atol, rtol=0)


def assert_same_greedy_tokens(ours, theirs, count):
    """Decode from a prompt of 10 tokens, one token at a time, through the cache."""
    prompt = torch.randint(0, ours.config.vocab_size, (1, 10))
    cache = KVCache(ours, 1, 10 + count)
    ids = step = prompt
    for _ in range(count):
        step = ours(step, cache)[:, -1:].argmax(-1)
        ids = torch.cat([ids, step], 1)
    everything = torch.ones_like(prompt)  # or transformers hides tokens that equal the pad id
    options = {"do_sample": False, "max_new_tokens": count, "eos_token_id": None, "pad_token_id": 5}
    assert ids.tolist() == theirs.generate(prompt, attention_mask=everything, **options).tolist()


# ---- Parity ----------------------------------------------------------------------------------------------------------

CHECKPOINTS = {
    "tied": dict(tie_word_embeddings=True),
    "untied": dict(tie_word_embeddings=False),
    "sharded": dict(tie_word_embeddings=True, max_shard_size="60KB"),
    "rope theta 5e6": dict(rope_parameters={"rope_type": "default", "rope_theta": 5e6}),
    "no grouping": dict(num_key_value_heads=6),
    "Qwen2, tied": dict(family="qwen2", tie_word_embeddings=True),
    "Qwen2, untied": dict(family="qwen2", tie_word_embeddings=False),
    "Llama, tied": dict(family="llama", tie_word_embeddings=True),
    "Llama, untied": dict(family="llama", tie_word_embeddings=False),
}


@pytest.mark.parametrize("changes", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_same_logits_and_greedy_tokens_as_transformers(tmp_path, changes):
    theirs = write_checkpoint(tmp_path, **changes)
    ours, tokenizer = load(tmp_path)
    assert ours.config.num_tokens == tokenizer.num_tokens < ours.config.vocab_size
    assert_same_logits(ours, theirs, (3, 40))
    assert_same_greedy_tokens(ours, theirs, 30)
    assert ("max_shard_size" in changes) == (tmp_path / "model.safetensors.index.json").exists()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_what_save_wrote(tmp_path, family, tied):
    write_checkpoint(tmp_path / "theirs", family=family, tie_word_embeddings=tied)
    ours, tokenizer = load(tmp_path / "theirs")
    save(ours, tokenizer, tmp_path / "ours")
    # transformers reads in config.json which class to make
    back, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert type(back) is FAMILIES[family][1] and back.config.tie_word_embeddings == tied
    assert not any(info.values()), info  # nothing missing, unexpected, mismatched
    assert_same_logits(ours, back)
    assert ("lm_head.weight" in load_file(tmp_path / "ours" / "model.safetensors")) == (not tied)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert auto("12+3=")["input_ids"] == tokenizer.encode("12+3=")
    again, _ = load(tmp_path / "ours")
    torch.testing.assert_close(again.state_dict(), ours.state_dict(), atol=0, rtol=0)


def test_the_stored_head_of_a_tied_model_is_ignored(tmp_path):
    write_checkpoint(tmp_path)  # not tied: it has a head
    edit_config(tmp_path, tie_word_embeddings=True)
    ours, _ = load(tmp_path)
    assert ours.lm_head is None and "lm_head.weight" not in ours.state_dict()


OTHER_THETA = {"rope_parameters": {"rope_type": "default", "rope_theta": 123456.0}}
LEFT_OUT = dict.fromkeys(["head_dim", "rope_parameters", "tie_word_embeddings", "layer_types"])


@pytest.mark.parametrize(
    "family, written, published, read",
    [
        # The older spelling of rope_theta.
        ("qwen3", OTHER_THETA, {"rope_theta": 123456.0, "rope_parameters": None}, (16, 123456.0)),
        # 48 / 6 = 8; theta is 10,000, as in the first Llama.
        ("qwen2", {"head_dim": 8}, LEFT_OUT, (8, 10_000)),
        ("llama", {"head_dim": 8}, LEFT_OUT, (8, 10_000)),
    ],
)
def test_what_configs_spell_otherwise_or_leave_out(tmp_path, family, written, published, read):
    theirs = write_checkpoint(tmp_path, family=family, **written)
    edit_config(tmp_path, **published)
    ours, _ = load(tmp_path)
    assert (ours.config.head_dim, ours.config.rope_theta) == read
    assert ours.lm_head is not None  # not tied, unless the config says so
    assert_same_logits(ours, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_and_the_gradients_of_every_family(tmp_path, family):
    """Text read in pieces through the cache has the logits of a single pass. Every weight gets the same gradient as in
    transformers."""
    theirs = write_checkpoint(tmp_path, family=family)
    ours, _ = load(tmp_path)
    ids = torch.randint(6, 120, (2, 9))  # transformers freezes the pad token's row, 5
    with torch.no_grad():
        cache = KVCache(ours, 2, 9)
        pieces = torch.cat([ours(piece, cache) for piece in ids.split([1, 2, 1, 5], 1)], 1)
    torch.testing.assert_close(pieces, ours(ids), atol=1e-5, rtol=0)
    ours(ids).logsumexp(-1).sum().backward()
    theirs(ids).logits.logsumexp(-1).sum().backward()
    expected = dict(theirs.named_parameters())
    for name, weight in ours.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_the_shape_of_qwen3_0_6b(tmp_path):
    shape = dict(zip(SHAPE, (151936, 1024, 3072, 28, 16, 8, 128)))
    rope = {"rope_type": "default", "rope_theta": 1e6}
    theirs = write_checkpoint(tmp_path, **shape, tie_word_embeddings=True, rope_parameters=rope)
    ours, _ = load(tmp_path)
    assert sum(param.numel() for param in ours.parameters()) == 596_049_920
    assert_same_logits(ours, theirs, (2, 20), atol=1e-4)
    with torch.no_grad():
        assert_same_greedy_tokens(ours, theirs, 6)
    del theirs
    bf16, _ = load(tmp_path, dtype=torch.bfloat16)
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert_same_logits(bf16, theirs, (1, 10), atol=0.1)


def test_the_default_config_is_that_of_qwen3_0_6b_base():
    config = model_file.Config()
    with torch.device("meta"):
        parameters = model_file.Qwen3(config).parameters()
    assert sum(param.numel() for param in parameters) == 596_049_920
    assert (config.rope_theta, config.rms_norm_eps) == (1e6, 1e-6)
    assert (config.max_position_embeddings, config.eos_token_id) == (32768, (151643,))


# ---- Cache -----------------------------------------------------------------------------------------------------------


def test_a_full_cache_says_so(model):
    cache = KVCache(model, 1, 4)
    with pytest.raises(RuntimeError, match="index 4 is out of bounds"):
        model(torch.zeros(1, 5, dtype=torch.long), cache)


def test_the_example_in_the_header_runs(capsys):
    """With the tiny model in place of the large one."""
    example = model_file.__doc__.split("\n\n")[2].replace("Qwen/Qwen3-0.6B-Base", str(TINY))
    code = textwrap.dedent(example.replace("The capital of France is", "59-8-1+8="))
    exec(code, {"load": load, "torch": torch})
    assert capsys.readouterr().out.startswith("59-8-1+8=<think>")


# ---- Clear errors ----------------------------------------------------------------------------------------------------


def config(**changes):
    return partial(edit_config, **changes)


def weights(change):
    return partial(edit_weights, change=change)


def cut(name, size):
    return lambda directory: os.truncate(directory / name, size)


def gone(name):
    return lambda directory: (directory / name).unlink()


def holds(name, text):
    return lambda directory: (directory / name).write_text(text)


NORM = "model.norm.weight"
LLAMA3 = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_parameters": None}
MIXED = ["full_attention", "sliding_attention"]
STOPS = "generation_config.json"
WRONG = [
    # Features that are not implemented.
    (config(model_type="gemma3"), "'gemma3', but only dense models.*'qwen3' or 'qwen2'"),
    (config(model_type=None), "model_type is None"),
    (config(model_type="llama", **LLAMA3), "rope_type is 'llama3'"),
    (config(use_sliding_window=True), "use_sliding_window is True"),
    (config(layer_types=MIXED), "layer_types is .*sliding_attention"),
    (config(attention_bias=True), "attention_bias is True, but only .* attention_bias False"),
    (config(model_type="llama", mlp_bias=True), "mlp_bias is True"),
    # A number that defines the architecture is missing or different.
    (config(rms_norm_eps=None), "rms_norm_eps is None, not float"),
    (config(num_attention_heads=0), "config.json: .*division.* by zero"),
    (config(head_dim=8), r"size mismatch for .*q_proj.weight.*\[96, 48\].*\[48, 48\]"),
    # Tensors are missing, or there are too many (such as another architecture's biases).
    (weights(lambda w: w.pop(NORM)), f'Missing key.*"{NORM}"'),
    (weights(lambda w: w.update({"model.bias": torch.ones(2)})), 'Unexpected key.*"model.bias"'),
    # Files are cut short or missing.
    (cut("model.safetensors", 5000), "model.safetensors: .*cut short"),
    (gone("model.safetensors"), "model.safetensors: missing"),
    (cut("config.json", 40), "config.json: cannot be read .*line"),
    (gone("config.json"), "config.json: cannot be read .*No such file"),
    (gone("tokenizer.json"), "tokenizer.json: cannot be read"),
    # Files of something else: a run, another model, a base model without a chat template.
    (holds("config.json", '{"flags": {}}'), "is a training run, .*: pass .*final"),
    (symbol_tokenizer(map(chr, range(200, 500))).save, "belong to different models"),
    (holds("tokenizer_config.json", "{}"), "has no chat template: use --template plain"),
    # JSON is wrong.
    (holds("config.json", "[]"), "config.json: cannot be read .*'list' object is not a mapping"),
    (holds("generation_config.json", "[1]"), "generation_config.json: cannot be read"),
    (holds("tokenizer_config.json", '{"bos_token": '), "tokenizer_config.json: cannot be read"),
    (holds("tokenizer_config.json", '{"chat_template": "{{ 1 + messages }}"}'), "--template plain"),
    (holds("tokenizer_config.json", '{"chat_template": "{{ 1 / 0 }}"}'), "--template plain"),
    # Values can be read, but no model has them.
    (holds(STOPS, '{"eos_token_id": 99999}'), "eos_token_id is .*99999.*below vocab_size"),
    (holds(STOPS, '{"eos_token_id": []}'), "eos_token_id is .*: expected one or more"),
    (holds(STOPS, '{"eos_token_id": "2"}'), "config.json: .*str"),
    (holds(STOPS, '{"eos_token_id": true}'), "config.json: .*bool"),
    (config(tie_word_embeddings="false"), "tie_word_embeddings is 'false', not bool"),
]


@pytest.mark.parametrize("change, message", WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_with_a_checkpoint_is_named(tmp_path, change, message):
    write_checkpoint(tmp_path)
    change(tmp_path)
    with pytest.raises(ModelError, match=f"(?s){message}"):
        _, tokenizer = load(tmp_path, template="chat")
        tokenizer.encode_prompt("1+1=")


ALONE = """
import sys, torch
from model import load
for folder in sys.argv[1:]:
    print(load(folder)[0](torch.tensor([[1, 2, 3]]))[0, -1].tolist())
"""


def test_model_py_copied_alone_loads_a_model_and_gives_logits(tmp_path):
    """It loads the tiny model, and one with a chat template, which is needed only to write a turn."""
    write_checkpoint(tmp_path / "chat")
    holds("tokenizer_config.json", '{"chat_template": "{{ messages }}"}')(tmp_path / "chat")
    shutil.copy(model_file.__file__, tmp_path)
    folders = [str(TINY), str(tmp_path / "chat")]
    command = [sys.executable, "-c", ALONE, *folders]
    printed = subprocess.check_output(command, cwd=tmp_path, text=True)
    for folder, line in zip(folders, printed.splitlines(), strict=True):
        expected = load(folder)[0](torch.tensor([[1, 2, 3]]))[0, -1].tolist()
        assert json.loads(line) == pytest.approx(expected, abs=1e-5)


def test_a_missing_shard_is_named(tmp_path):
    write_checkpoint(tmp_path, max_shard_size="60KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=shard.name):
        load(tmp_path)


def test_a_mistyped_path_is_not_taken_for_a_hub_id(tmp_path, monkeypatch):
    """runs/a has the form owner/name, but there is a folder runs here, so the message lists what is in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("arithmetic-4", "countdown"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for name, there in (
        ("runs/a", "arithmetic-4, countdown in runs/"),
        ("run", "runs in ./"),
        ("./nowhere/at/all", "no folder in nowhere/at/"),
    ):
        with pytest.raises(ModelError, match=f"{name}: no such directory; found {there}"):
            fetch(name)


def test_a_full_disk_leaves_the_old_model(model, tokenizer, tmp_path):
    """The process may write at most 50 kB per file: the disk fills up in the middle of the weights."""
    save(model, tokenizer, tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert len(before) > 50_000
    resource = pytest.importorskip("resource")  # Windows has no such limits
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(ModelError, match="cannot write the model"):
            save(model, tokenizer, tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# ---- Download --------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve a checkpoint from a local stand-in for the hub, which load() asks in this process."""
    write_checkpoint(tmp_path / "served")
    (tmp_path / "served" / "README.md").write_text("not needed")
    download = huggingface_hub.snapshot_download
    with hub.serve(tmp_path / "served") as server:
        place = {"endpoint": server.url, "cache_dir": tmp_path / "cache"}
        monkeypatch.setattr(huggingface_hub, "snapshot_download", partial(download, **place))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield server


def test_download_takes_only_what_is_needed_and_once(served, tmp_path, monkeypatch):
    first, _ = load("owner/name")
    expected, _ = load(tmp_path / "served")
    torch.testing.assert_close(first.state_dict(), expected.state_dict())
    assert served.sent >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert "README.md" not in served.sent
    served.sent.clear()
    load("owner/name")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    load("owner/name")
    assert not served.sent


def test_what_the_hub_does_not_send_is_said_with_what_to_check(served, monkeypatch):
    """A file, the model, the network or the permission is missing; the message has the hub's own words."""
    served.missing = "model.safetensors"
    for name, offline, why in (("name", 0, "404"), ("other", 0, "404"), ("unseen", 1, "offline")):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", bool(offline))
        with pytest.raises(ModelError, match=f"(?s)did not send it.*{why}.*HF_HUB_OFFLINE"):
            load(f"owner/{name}")
    served.gated = True
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ModelError, match="(?s)Access to model owner/name is restricted.*HF_TOKEN"):
        load("owner/name")


def test_of_a_model_that_is_refused_no_weights_are_downloaded(served, tmp_path):
    edit_config(tmp_path / "served", model_type="gemma3")
    with pytest.raises(ModelError, match="only dense models with model_type"):
        load("owner/name")
    assert "config.json" in served.sent and "model.safetensors" not in served.sent


# ---- Tokenizer -------------------------------------------------------------------------------------------------------


def test_ids_of_a_tokenizer_may_have_gaps():
    """The largest id counts, so a stop token after a gap can be sampled."""
    words = tokenizers.models.WordLevel({"a": 0, "b": 1, "<eos>": 9}, unk_token="a")
    assert Tokenizer(tokenizers.Tokenizer(words)).num_tokens == 10


@functools.cache
def qwen_tokenizer(eos=(151645, 151643), template=None):
    return Tokenizer.from_dir(QWEN_TOKENIZER, eos, template)


@functools.cache
def published_tokenizer():
    return transformers.AutoTokenizer.from_pretrained(QWEN_TOKENIZER)


TEXTS = [
    "Solve $x^2 - 5x + 6 = 0$.\n\nPut it in \\boxed{}.",
    "1234567890 + 42",
    "  two  spaces\t\ttab",
    "因式分解 (x-2)",
    "naïve café Ω ﬁ",
    "<think>\nhm\n</think>\n\n<answer>2</answer>",
    "emoji 👩‍👩‍👧 ok",
    "",
    "\n\n\n",
    "don't WON'T I'll",
]


@needs_qwen_tokenizer
def test_qwen3_ids_equal_transformers():
    theirs = published_tokenizer()
    ours = qwen_tokenizer()
    assert ours.num_tokens == 151669
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@needs_qwen_tokenizer
@pytest.mark.parametrize("thinking", [True, False])
def test_qwen3_chat_template_equals_the_published_one(thinking):
    theirs = published_tokenizer()
    for text in TEXTS[:5]:
        messages = [{"role": "user", "content": text}]
        expected = theirs.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        ids = qwen_tokenizer(template="chat" if thinking else "chat-nothink").encode_prompt(text)
        assert qwen_tokenizer().decode(ids, skip_special_tokens=False) == expected
        assert ids == theirs(expected)["input_ids"]


def write_tokenizer(directory, special, bos=None, source=None):
    """Write a tokenizer of single characters and special tokens. bos, if any, begins every text, as in Llama."""
    vocabulary = {token: i for i, token in enumerate([*special, *map(chr, range(32, 127)), "\n"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=" "))
    single = tokenizers.Regex(r"[\s\S]")
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(single, behavior="isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(list(special))
    if bos:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary[bos])]
        )
    backend.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": special[-1],
        "bos_token": bos,
        "chat_template": source or (CHATML if "<|im_start|>" in special else None),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return vocabulary


def test_a_llama_prompt_begins_with_bos_and_its_completion_does_not(tmp_path):
    """As in transformers, a text on its own begins with one <s>. What follows a prompt is encoded without it."""
    vocabulary = write_tokenizer(tmp_path, ["<s>", "</s>"], bos="<s>")
    ours = Tokenizer.from_dir(tmp_path, (vocabulary["</s>"],))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.template == "plain"
    assert ours.encode_prompt("1+1=") == theirs("1+1=")["input_ids"] == [0, *ours.encode("1+1=")]
    assert theirs("1+1=", add_special_tokens=False)["input_ids"] == ours.encode("1+1=")
    assert ours.decode(ours.encode_prompt("1+1=")) == "1+1="
    ours.save(tmp_path)  # and after a round trip
    assert Tokenizer.from_dir(tmp_path, (1,)).encode_prompt("1+1=") == ours.encode_prompt("1+1=")


QWEN25 = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('user', 'assistant') or message.role == 'system' and not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


each_template = pytest.mark.parametrize(
    "source, special, bos",
    [(None, CHATML_TOKENS, None), (QWEN25, CHATML_TOKENS, None), (LLAMA3, HEADERS, HEADERS[0])],
    ids=["ChatML", "as Qwen2.5's, with a system turn of its own", "as Llama 3's, which trims"],
)


@each_template
@pytest.mark.parametrize("text", ["1+1=", "  1+1=\n\n", "1<|im_end|>2<|eot_id|>"])
def test_a_models_own_chat_template_is_rendered_as_transformers_renders_it(
    tmp_path, source, special, bos, text
):
    """The templates are like those that these families publish. A user's text never becomes a control token,
    although in transformers it would."""
    vocabulary = write_tokenizer(tmp_path, special, bos, source)
    ours = Tokenizer.from_dir(tmp_path, (vocabulary[special[-1]],))
    assert ours.template == "chat"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": text}]
    ids = ours.encode_prompt(text)
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.decode(ids, skip_special_tokens=False) == rendered
    if "<|" not in text:
        assert ids == theirs(rendered, add_special_tokens=False)["input_ids"]
    plain = ours.encode_prompt("1+1=")
    for token in special:
        assert ids.count(vocabulary[token]) == plain.count(vocabulary[token])


@each_template
def test_a_turn_is_what_the_template_writes_between_two_answers(tmp_path, source, special, bos):
    """The ids of what was said, each followed by next_turn, are the ids of the conversation as transformers
    renders it. An environment's text never becomes a control token either."""
    vocabulary = write_tokenizer(tmp_path, special, bos, source)
    ours = Tokenizer.from_dir(tmp_path, (vocabulary[special[-1]],))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "7*7="}]
    ids = ours.encode_prompt("7*7=")
    for said, reply in (("48", "too small"), ("50?", "too large")):
        ids += ours.encode(said) + ours.chat.next_turn(reply)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": reply}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ids == theirs(rendered, add_special_tokens=False)["input_ids"]
    next_turn = ours.chat.next_turn
    assert next_turn("a\ufdd1b")[:3] == next_turn("a")[:3]  # a mark in a text is text
    stop = vocabulary[special[-1]]
    assert next_turn(f"1{special[-1]}").count(stop) == next_turn("1").count(stop)


def test_a_template_that_leaves_out_what_was_said_has_no_turns(tmp_path):
    source = QWEN25.replace("('user', 'assistant')", "('user',)")
    vocabulary = write_tokenizer(tmp_path, CHATML_TOKENS, source=source)
    ours = Tokenizer.from_dir(tmp_path, (vocabulary["<|im_end|>"],))
    with pytest.raises(ModelError, match="leaves out a message.*use --template plain"):
        ours.chat.next_turn("too small")


@needs_qwen_tokenizer
def test_base_and_post_trained_models_get_their_own_prompt_and_stop_tokens(tmp_path):
    """The published base has eos 151643 in config.json; the post-trained one lists both in generation_config.json."""
    write_checkpoint(tmp_path, vocab_size=151936, num_hidden_layers=1, eos_token_id=151643)
    for file in QWEN_TOKENIZER.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    model, tokenizer = load(tmp_path)
    assert model.config.eos_token_id == (151643,) and tokenizer.template == "plain"
    assert model.config.num_tokens == 151669  # the embedding has 267 rows that no token uses
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    model, tokenizer = load(tmp_path)
    assert model.config.eos_token_id == (151645, 151643) and tokenizer.template == "chat"
    prompt = tokenizer.decode(tokenizer.encode_prompt("hi"), False)
    assert prompt.startswith("<|im_start|>user\nhi<|im_end|>")
    save(model, tokenizer, tmp_path / "saved")
    assert load(tmp_path / "saved")[0].config.eos_token_id == (151645, 151643)
    assert "chat_template" in (tmp_path / "saved" / "tokenizer_config.json").read_text()
