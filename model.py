"""model.py - the policy: a Qwen3 that fits on a few pages, how to load it and how to talk to it.

What you will learn here: how a list of token ids becomes logits for the next token.
Qwen3 is a pre-norm decoder with RMSNorm, rotary positions (RoPE), grouped-query attention (GQA)
with a norm on each query and key head, a SwiGLU MLP and, in the small sizes, an output head tied to
the embedding. Its relatives load as well: Qwen2 has biases on q, k and v in place of these norms,
and Llama has neither. Modules have the same names as in the published checkpoints.

    model, tokenizer = load("Qwen/Qwen3-0.6B-Base")  # or a local folder
    ids = tokenizer.encode_prompt("The capital of France is")
    while len(ids) < 50 and ids[-1] not in model.config.eos_token_id:
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())  # greedy; see rlvr.sample
    print(tokenizer.decode(ids))

Letters: B rows, T tokens, S cache slots, V vocabulary, C hidden size, H query heads, K key/value
heads, D head size.
Sources: Qwen3 Technical Report (arXiv 2505.09388); RoPE (2104.09864); GQA (2305.13245); RMSNorm
(1910.07467); SwiGLU (2002.05202). Mixture of experts, sliding windows, quantisation, and YaRN or
other scaling of RoPE are not implemented.
"""

import contextlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property, partial
from pathlib import Path

import huggingface_hub
import tokenizers
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import RMSNorm  # x * weight / sqrt(mean(x^2) + eps); the mean is taken in fp32
from torch.utils.checkpoint import checkpoint

# On an H100, PyTorch prefers cuDNN's attention, which spends up to 0.4 s planning each new shape.
torch.backends.cuda.enable_cudnn_sdp(False)


class ModelError(Exception):
    """A model cannot be loaded, run or saved. The message says what to do."""


# ---- 1. Config -----------------------------------------------------------------------------------

IMPLEMENTED = {
    "model_type": ["qwen3", "qwen2", "llama"],
    "hidden_act": ["silu"],
    "rope_type": ["default"],
    "partial_rotary_factor": [1.0],
    "use_sliding_window": [False],
    "layer_types": [{"full_attention"}],
    "attention_bias": [False],
    "mlp_bias": [False],
}


@dataclass
class Config:
    """The architecture, with the names of config.json. The defaults describe Qwen3-0.6B-Base."""

    model_type: str = "qwen3"
    vocab_size: int = 151936
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128  # not hidden_size / num_attention_heads: 16 * 128 != 1024
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    eos_token_id: tuple = (151643,)  # every token that ends a completion

    def __post_init__(self):
        eos = self.eos_token_id
        eos = (eos,) if type(eos) is int else tuple(eos or ())
        self.eos_token_id = eos
        for f in fields(self):
            value = getattr(self, f.name)
            if not isinstance(value, (f.type, int)):
                raise ValueError(f"{f.name} is {value!r}, not {f.type.__name__}")
        if min(eos, default=-1) < 0 or max(eos) >= self.vocab_size:
            raise ValueError(f"eos_token_id is {eos!r}: expected one or more ids below vocab_size")
        self.num_tokens = self.vocab_size  # load lowers it if some ids have no token

    @classmethod
    def from_dir(cls, directory):
        """Read config.json, and the stop tokens from generation_config.json: a post-trained Qwen3
        has two, and only the second file lists both. Raises ModelError if the architecture is not
        implemented."""
        path = Path(directory) / "config.json"
        raw = _read_json(path)
        if "flags" in raw:
            raise ModelError(f"{directory} is a training run, not a model: pass {directory}/final")
        generation = _read_json(path.with_name("generation_config.json"), optional=True)
        try:
            values = _with_defaults(raw)
            for key, known in IMPLEMENTED.items():
                value = values.get(key, known[0])
                if value not in known:
                    raise ModelError(
                        f"{path}: {key} is {value!r}, but only dense models with {key} "
                        f"{' or '.join(map(repr, known))} are implemented; try Qwen/Qwen3-0.6B"
                    )
            if generation.get("eos_token_id") is not None:
                values["eos_token_id"] = generation["eos_token_id"]
            return cls(**{f.name: values.get(f.name) for f in fields(cls)})
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:  # e.g. 0 heads
            raise ModelError(f"{path}: {error}; download the file again") from error


def _with_defaults(raw):
    """Add the settings that some families leave out, and give each setting a single name."""
    given = {name: value for name, value in raw.items() if value is not None}
    rope = given.get("rope_scaling") or given.get("rope_parameters", {})  # old name, new name
    return {
        "tie_word_embeddings": False,
        "head_dim": given.get("hidden_size", 0) // given.get("num_attention_heads", 1),
        "rope_theta": 1e4,
        "rope_type": rope.get("type", "default"),
        **given,
        **rope,  # overrides the same names outside it, as in transformers
        "layer_types": set(given.get("layer_types", ["full_attention"])),
    }


def _read_json(path, optional=False):
    if optional and not path.exists():
        return {}
    try:
        return {**json.loads(path.read_text(encoding="utf-8"))}  # TypeError if it is not an object
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            f"{path}: cannot be read ({error}); restore it, or download it again"
        ) from None


# ---- 2. The network ------------------------------------------------------------------------------


def rope_tables(positions, config, dtype):
    """Return (cos a, cos a) and (-sin a, sin a), each (..., 1, T, D), for positions (..., T). The
    angles are a = position * theta^(-2i/D) for i = 0 to D/2 - 1. They are computed in fp32, because
    bf16 cannot count past 256."""
    D = config.head_dim
    frequencies = config.rope_theta ** -(torch.arange(0, D, 2, device=positions.device) / D)
    # cos(-a) = cos a, and sin(-a) = -sin a
    angles = positions[..., None, :, None].float() * torch.cat((-frequencies, frequencies))
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x, cos, sin):
    """Rotate each pair (x_i, x_{i+D/2}) of x (B, heads, T, D) by the angle of its position. The
    published weights expect this half-split pairing. The RoPE paper pairs neighbours
    (x_2i, x_2i+1), which is the same rotation with the dimensions in another order."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((right, left), dim=-1) * sin  # sin is negative on the left


class KVCache:
    """The keys and values of the tokens seen so far. k and v hold a (B, K, S, D) tensor per layer.

    Slot s of a row holds the token at position s, so a query at position p may see exactly the
    slots <= p. This rule also handles rows of different lengths: whatever is in the later slots
    (the padding of a shorter prompt) stays hidden until it is overwritten.

    lengths: (B,) the number of tokens in each row.
    used:    the longest row's length, as a Python int, so that decoding never waits for the GPU."""

    def __init__(self, model, rows, slots):
        config = model.config
        weight = model.model.embed_tokens.weight
        shape = (rows, config.num_key_value_heads, slots, config.head_dim)
        layers = range(config.num_hidden_layers)
        # zeros, not empty: a masked slot has weight 0, but 0 * NaN would still be NaN
        self.k = [weight.new_zeros(shape) for _ in layers]  # on the weight's device, in its dtype
        self.v = [weight.new_zeros(shape) for _ in layers]
        self.lengths = weight.new_zeros(rows, dtype=torch.long)
        self.used = 0
        self.seen = 0  # decoding reads at least this many slots: see `record` in rlvr.sample

    def write(self, layer, k, v, positions):
        """Store k, v (B, K, T, D) at positions (B, T). Returns the layer's k and v (B, K, S, D),
        without the later slots, which hold nothing yet."""
        index = positions[:, None, :, None].expand_as(k)
        seen = max(self.seen, self.used + k.size(2))
        both = []
        for cached, new in ((self.k[layer], k), (self.v[layer], v)):
            cached.scatter_(2, index, new.to(cached.dtype))  # under autocast the dtypes differ
            both.append(cached[:, :, :seen])
        return both

    def rewind(self, lengths):
        """Cut each row to its new length (B,). The tokens after it will be overwritten."""
        self.lengths = lengths
        self.used = int(lengths.max())

    def take(self, rows):
        """Keep these rows, in this order. A row may be listed several times."""
        for cached in (self.k, self.v):
            for layer, tensor in enumerate(cached):  # one by one: two whole caches never coexist
                cached[layer] = tensor.index_select(0, rows)
        self.rewind(self.lengths[rows])


SAMPLE_TOKENS = 49152  # including prompts; the cache of Qwen3-0.6B in bf16 then takes 5.6 GB


def sample_tokens_that_fit(config, dtype, free):
    """Return how many tokens to sample at once on a GPU with `free` free bytes. Their keys and
    values may take 35 % of these bytes; logits, moments, gradients and activations get the rest."""
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return max(1, min(SAMPLE_TOKENS, int(0.35 * free / (numbers * dtype.itemsize))))


class Attention(nn.Module):
    """Causal self-attention with shared key/value heads (GQA): (B, T, C) -> (B, T, C)."""

    def __init__(self, config, layer):
        super().__init__()
        C = config.hidden_size
        self.H = H = config.num_attention_heads
        self.K = K = config.num_key_value_heads
        self.D = D = config.head_dim
        self.layer = layer
        bias = config.model_type == "qwen2"
        norm = RMSNorm if config.model_type == "qwen3" else nn.Identity  # ignores its arguments
        self.q_proj = nn.Linear(C, H * D, bias=bias)
        self.k_proj = nn.Linear(C, K * D, bias=bias)
        self.v_proj = nn.Linear(C, K * D, bias=bias)
        self.o_proj = nn.Linear(H * D, C, bias=False)
        self.q_norm = norm(D, config.rms_norm_eps)
        self.k_norm = norm(D, config.rms_norm_eps)

    def forward(self, x, rope, positions, mask, cache):
        B, T, _ = x.shape
        heads = (B, T, -1, self.D)
        q = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)  # (B, H, T, D)
        k = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)  # (B, K, T, D)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, K, T, D)
        q = apply_rope(q, *rope)
        k = apply_rope(k, *rope)
        if cache:
            k, v = cache.write(self.layer, k, v, positions)  # (B, K, S, D)
        group = self.H // self.K  # query heads per key/value head
        if T == 1:
            # Decoding: the queries of a group share one key head, so we pass them to SDPA as if
            # they were several tokens of that head. No key is copied.
            q = q.reshape(B, self.K, group, self.D)
        else:
            # Each query head gets a copy of its keys, because CUDA's fast kernels support groups
            # or a mask, but not both.
            k = k.repeat_interleave(group, 1)  # (B, H, S, D)
            v = v.repeat_interleave(group, 1)
        # subtle: SDPA aligns is_causal to the first key, which would be wrong for one new token.
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None and T > 1)
        y = y.reshape(B, self.H, T, self.D).transpose(1, 2)  # (B, T, H, D)
        return self.o_proj(y.flatten(2))


class Block(nn.Module):
    """Attention across the tokens of a row, then a SwiGLU MLP per token: (B, T, C) -> (B, T, C)."""

    def __init__(self, config, layer):
        super().__init__()
        C = config.hidden_size
        width = config.intermediate_size
        self.input_layernorm = RMSNorm(C, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(C, config.rms_norm_eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(C, width, bias=False),
                "up_proj": nn.Linear(C, width, bias=False),
                "down_proj": nn.Linear(width, C, bias=False),
            }
        )

    def forward(self, x, rope, positions, mask, cache):
        x = x + self.self_attn(self.input_layernorm(x), rope, positions, mask, cache)
        y = self.post_attention_layernorm(x)
        gate = F.silu(self.mlp.gate_proj(y))
        return x + self.mlp.down_proj(gate * self.mlp.up_proj(y))


class Qwen3(nn.Module):
    """The language model: `model(ids)` maps ids (B, T) to logits (B, T, V)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.checkpoint_blocks = False  # True: store only block inputs, recompute in backward
        V = config.vocab_size
        C = config.hidden_size
        self.model = nn.ModuleDict(
            {
                # _weight: nn.Embedding's own initialisation would import the compiler on the meta
                # device.
                "embed_tokens": nn.Embedding(V, C, _weight=torch.randn(V, C)),
                "layers": nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers)),
                "norm": RMSNorm(C, config.rms_norm_eps),
            }
        )
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(C, V, bias=False)

    def forward(self, ids, cache=None, head=F.linear, positions=None, mask=None):
        """Map ids (B, T) to logits (B, T, V).

        cache: a KVCache. The ids continue its rows, and their keys and values are added to it.
            Without a cache, rows start at position 0; shorter rows are padded on the right, where
            causal attention never looks.
        head: a function of (hidden (B, T, C), weight (V, C)), whose result forward returns; by
            default the projection to all logits. Pass another if you do not need all of them. It
            is called inside forward because a sharded model's weight is whole only there.
        positions (B, T), mask (B, 1, T, T): needed if rows hold several texts; not with a cache.
            The mask is True where a token may attend to another."""
        B, T = ids.shape
        if positions is None:
            positions = torch.arange(T, device=ids.device).expand(B, T)
        if cache and cache.used > 0:
            positions = positions + cache.lengths[:, None]  # (B, T)
            slots = torch.arange(max(cache.seen, cache.used + T), device=ids.device)
            future = slots > positions[:, None, :, None]  # (B, 1, T, S)
            # -inf hides a slot. SDPA would convert a boolean mask in every layer, so this is float.
            mask = cache.k[0].new_zeros(future.shape).masked_fill(future, -torch.inf)
        x = self.model.embed_tokens(ids)  # (B, T, C)
        rope = rope_tables(positions, self.config, x.dtype)  # two of (B, 1, T, D)
        for block in self.model.layers:
            if cache:
                block = block.forward  # FSDP's hooks would gather each block anew for every token
            elif self.checkpoint_blocks:
                block = partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
            x = block(x, rope, positions, mask, cache)
        if cache:
            cache.lengths = cache.lengths + T
            cache.used += T
        weight = (self.lm_head or self.model.embed_tokens).weight
        return head(self.model.norm(x), weight)

    def next_logits(self, ids, cache, last):
        """Run the model on ids (B, T), which continue the rows of the cache. Returns the logits
        (B, V) after one token of each row, without a gradient. last: the indices (rows, columns) of
        these tokens."""
        V = self.config.num_tokens  # subtle: ids >= V have an embedding but are not tokens
        with torch.inference_mode():  # less bookkeeping for each operation than under no_grad
            logits = self(ids, cache, head=lambda x, weight: F.linear(x[last], weight)[:, :V])
        return logits.clone()  # an ordinary tensor, which may be changed in place

    device = property(lambda model: model.model.embed_tokens.weight.device)


# ---- 3. Load and save ----------------------------------------------------------------------------


def pick_device(wanted=None):
    """Return (device, compute dtype). The dtype is bf16 on a CUDA GPU that supports it, else fp32,
    which runs everywhere. Call it before anything uses CUDA: it selects the process's own GPU."""
    found = [name for name in ("cuda", "mps", "cpu") if getattr(torch, name).is_available()]
    device = wanted or found[0]
    if device not in found:
        raise ModelError(f"PyTorch {torch.__version__} finds no {device} device; change --device")
    if device == "cuda" and "LOCAL_RANK" in os.environ:  # set by torchrun
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    half = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return device, torch.bfloat16 if half else torch.float32


def load(name_or_dir, device="cpu", dtype=torch.float32, template=None, sharder=None):
    """Load a model from a local directory or a hub id. Returns (model, tokenizer). Raises
    ModelError.

    template: see Tokenizer.
    sharder:  a train.Sharder, if no process should hold the whole model. wrap(model) is called
              before there are weights; cut(tensor, parameter) returns the part to store."""
    directory = fetch(str(name_or_dir), SMALL_FILES)
    config = Config.from_dir(directory)
    tokenizer = Tokenizer.from_dir(directory, config.eos_token_id, template)
    if tokenizer.num_tokens > config.vocab_size:
        raise ModelError(
            f"{directory}: tokenizer.json has {tokenizer.num_tokens} tokens, but config.json "
            f"says {config.vocab_size}: the files belong to different models; download both again"
        )
    config.num_tokens = tokenizer.num_tokens
    with torch.device("meta"):  # spend no memory or time on weights that are replaced
        model = Qwen3(config)
    if sharder:
        sharder.wrap(model)
    parameters = model.state_dict()

    directory = fetch(str(name_or_dir))
    copies = {"lm_head.weight"} - set(parameters)  # a tied model's head only repeats the embedding
    weights = {}
    for name, tensor in _read_tensors(directory, copies):
        tensor = tensor.to(device, dtype)
        if sharder and name in parameters:
            tensor = sharder.cut(tensor, parameters[name])
        weights[name] = tensor
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:  # it names every tensor that does not fit
        raise ModelError(
            f"{directory}: the weights do not match config.json or are incomplete: "
            f"download both again. {str(error)[:500]}"
        ) from None
    return model, tokenizer


SMALL_FILES = ["*config.json", "tokenizer.json", "*.jinja", "*.index.json"]


def fetch(name, patterns=(*SMALL_FILES, "*.safetensors")):
    """Return the directory of a model. If name is a hub id (owner/name), its files are downloaded
    once, into the hub's cache."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.count("/") != 1 or path.parent.is_dir():  # not a hub id
        folders = ", ".join(sorted(folder.name for folder in path.parent.glob("*/")))
        raise ModelError(
            f"{name}: no such directory; found {folders[:200] or 'no folder'} in {path.parent}/. "
            "(A hub id has the form owner/name and works only if no folder here is named owner.)"
        )
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # many types: no such model, no network, ..
        raise ModelError(
            f"{name}: no such folder, and the hub did not send it: {str(error)[:400].strip()} "
            f"({error.__cause__ or type(error).__name__})\nCheck the spelling, the network, "
            "HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN. An interrupted download will resume"
        ) from error


def check_model(name):
    """Raise ModelError if there is no such model, or if its architecture is not implemented. No
    weights are downloaded."""
    Config.from_dir(fetch(name, SMALL_FILES))


def _read_tensors(directory, skipped):
    """Yield the (name, tensor) pairs of a checkpoint, except for the skipped names."""
    whole = directory / "model.safetensors"
    index = _read_json(directory / "model.safetensors.index.json", optional=True)
    shards = {directory / file for file in index.get("weight_map", {}).values()}
    if whole.exists() or not shards:
        shards = {whole}
    for path in sorted(shards):
        try:
            with safe_open(path, framework="pt") as reader:
                for name in set(reader.keys()) - skipped:
                    yield name, reader.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{path}: missing, damaged or cut short ({error}); download it again (or convert "
                "the model: a .bin file is not read)"
            ) from error


def save(model, tokenizer, directory):
    """Write a Hugging Face model directory that `load`, transformers and vLLM can read. A tied head
    is not stored. A model that is already there is replaced only once the new one is complete."""
    directory = Path(directory)
    weights = dict(model.named_parameters())  # not state_dict(): FSDP leaves it in parts
    config = {
        **asdict(model.config),
        "architectures": [f"{model.config.model_type.capitalize()}ForCausalLM"],
        "torch_dtype": str(model.model.embed_tokens.weight.dtype).removeprefix("torch."),
        "pad_token_id": model.config.eos_token_id[0],
    }
    new = directory.with_name(directory.name + ".partial")
    try:
        new.mkdir(parents=True, exist_ok=True)
        (new / "config.json").write_text(json.dumps(config, indent=2))
        tokenizer.save(new)
        save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(directory, ignore_errors=True)
        new.rename(directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise ModelError(
            f"{directory}: cannot write the model ({error}); free some space or use another folder"
        ) from error


@contextlib.contextmanager
def oom_hint(setting):
    """Turn an out-of-memory error inside the block into advice: which setting to lower."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        why = f"too little memory: give a smaller --{setting.replace('_', '-')}. {error}"
        raise ModelError(why[:500]) from error


# ---- 4. Tokenizer --------------------------------------------------------------------------------


class Tokenizer:
    """Converts text to token ids and back, with the `tokenizers` library.

    template: how `encode_prompt` presents a problem. "plain" keeps the text as it is, for base
    models, which were never trained on chat markup. "chat" makes it one user turn of the model's
    chat template. "chat-nothink" also sets enable_thinking=False, so that a Qwen3 answers at once.
    The default is "chat" if the chat template writes one of the model's stop tokens, else "plain".
    (A base and a post-trained model may share all tokenizer files, but not the stop tokens.)
    config: the contents of tokenizer_config.json; stop_ids: the model's stop tokens."""

    def __init__(self, backend, template=None, config=None, stop_ids=()):
        backend.no_truncation()  # ignore these settings of a fine-tune, as transformers does
        backend.no_padding()
        backend.encode_special_tokens = True  # a problem that spells out "<|im_end|>" stays text
        self.backend = backend
        self.config = config or {}
        self.num_tokens = max(backend.get_vocab().values()) + 1
        added = backend.get_added_tokens_decoder()
        self.special = {token.content: i for i, token in added.items() if token.special}
        self.has_chat = self.config.get("chat_template") or "<|im_start|>" in self.special
        self.stops = [token for token, i in self.special.items() if i in stop_ids]
        self.unknown = backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
        if template:
            self.template = template

    @classmethod
    def from_dir(cls, directory, stop_ids, template=None):
        path = Path(directory) / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{path}: cannot be read ({error}); download it again") from None
        config = _read_json(path.with_name("tokenizer_config.json"), optional=True)
        own_file = path.with_name("chat_template.jinja")  # newer models store it here
        if own_file.exists():
            config["chat_template"] = own_file.read_text(encoding="utf-8")
        return cls(backend, template, config, stop_ids)

    @cached_property
    def template(self):
        return "chat" if self.has_chat and self.chat.writes_any(self.stops) else "plain"

    @cached_property
    def chat(self):
        """The model's chat template. Raises ModelError if there is none."""
        if not self.has_chat:
            raise ModelError("this model has no chat template: use --template plain")
        from appendix.chat import Chat  # imported here so that load needs only this file

        return Chat(self.config, self.special, self.encode)

    def encode(self, text):
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip_special_tokens=True):
        return self.backend.decode(list(ids), skip_special_tokens)

    def encode_prompt(self, text):
        """Return the ids that the policy continues. A plain prompt begins with a BOS token if the
        tokenizer adds one. Raises ModelError if the chat template fails."""
        if self.template != "plain":
            return self.chat.first_turn(text, thinking=self.template != "chat-nothink")
        return self.backend.encode(text).ids

    def prompt_text(self, text):
        """Return the prompt as the policy reads it, including special tokens."""
        return self.decode(self.encode_prompt(text), skip_special_tokens=False)

    @cache  # noqa: B019 (a tokenizer lives as long as its run)
    def tokens_that_end(self, stops):
        """Return the tokens that may complete one of the stop texts, because they contain its last
        character or an incomplete character."""
        if not stops:
            return []
        ends = {stop[-1] for stop in stops} | {"\ufffd"}
        return [i for i in range(self.num_tokens) if ends.intersection(self.decode([i], False))]

    def save(self, directory):
        self.backend.save(str(directory / "tokenizer.json"))
        (directory / "tokenizer_config.json").write_text(json.dumps(self.config, indent=2))


def check_prompts(model, tokenizer, task, problems, max_new_tokens):
    """Raise ModelError if the model cannot read the prompts of a task (verifiers.Task): if the
    instruction contains a special token, if the template cannot switch thinking off, if the
    tokenizer cannot encode a prompt, or if a prompt and its completion may exceed the context."""
    for token in tokenizer.special:
        if token in task.instruction:
            why = "would be read letter by letter, not as one token: leave it out of the prompt"
            raise ModelError(f"{token} {why}; --template chat writes the model's own markup")
    if tokenizer.template == "chat-nothink":
        if tokenizer.chat.first_turn("?") == tokenizer.chat.first_turn("?", False):
            why = "the chat template has no switch for thinking: it ignores enable_thinking"
            raise ModelError(f"{why}. Give --template chat or plain in place of chat-nothink")
    limit = model.config.max_position_embeddings
    for problem in problems:
        text = task.prompt(problem)
        ids = tokenizer.encode_prompt(text)
        prompt = f"The prompt is {text[:200]!r}"
        if tokenizer.unknown in ids:
            raise ModelError(
                "the model has no token for some letters: choose another --model or --prompt. "
                f"(The tiny model reads sums with --prompt '{{problem}}' --reward tagged.) {prompt}"
            )
        if len(ids) + max_new_tokens > limit:
            why = f"prompt and completion exceed the model's {limit} tokens"
            raise ModelError(f"{why}: lower --max-new-tokens. {prompt}")
