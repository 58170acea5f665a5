"""model.py - the policy: a Qwen3 that fits on a few pages, how to load it and how to talk to it.

What you will learn here: what happens between a list of token ids and the logits of the next token. Qwen3 is a pre-norm
decoder with RMSNorm, rotary positions (RoPE), grouped-query attention (GQA) with a norm on each query and key head,
a SwiGLU MLP and, in the small sizes, an output head tied to the embedding. Its relatives load as well: Qwen2 has biases
on queries, keys and values in place of those norms, Llama neither. Modules carry the names of the published
checkpoints, so loading is a check of names and shapes and needs no mapping table.

    python model.py Qwen/Qwen3-0.6B-Base "The capital of France is"

Letters: B rows, T tokens, S cache slots, V vocabulary, C hidden size, H query heads, K key/value heads, D head size.
Sources: Qwen3 Technical Report (arXiv 2505.09388); RoPE (2104.09864); GQA (2305.13245); RMSNorm (1910.07467); SwiGLU
(2002.05202). Left out: mixture of experts, sliding windows, rope scaling (YaRN, Llama 3.1), quantisation, any attention
kernel but PyTorch's own.
"""

import ast
import difflib
import functools
import json
import math
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import huggingface_hub
import tokenizers
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import RMSNorm                    # x * weight / sqrt(mean(x^2) + eps), the mean taken in fp32
from torch.utils.checkpoint import checkpoint


class ModelError(Exception):
    """A model that cannot be loaded or saved: the message names the file or tensor and says what to do."""


# ---- 1. Config -------------------------------------------------------------------------------------------------------

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
PLAIN = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False,
         "layer_types": ["full_attention"], "rope_type": "default"}       # other values are not implemented


@dataclass
class Config:
    """The numbers that fix the architecture, named as in config.json. The defaults are Qwen3-0.6B-Base."""

    model_type: str = "qwen3"            # or a relative, see ARCHITECTURES
    vocab_size: int = 151936
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128                  # not hidden_size / num_attention_heads: 16 * 128 != 1024
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    eos_token_id: tuple = (151643,)      # every token that ends a completion
    num_tokens: int = 0                  # ids below have a token; Qwen3 pads the embedding beyond (0: no padding)

    def __post_init__(self):
        eos = self.eos_token_id
        self.eos_token_id = (eos,) if isinstance(eos, int) else tuple(eos or ())
        self.num_tokens = self.num_tokens or self.vocab_size

    @classmethod
    def from_dir(cls, directory):
        """Read config.json, and the stop tokens from generation_config.json: a post-trained Qwen3 lists both of its
        stop tokens only there. Raises ModelError for an architecture that is not implemented here."""
        path = Path(directory) / "config.json"
        raw = {"tie_word_embeddings": False, **_read_json(path)}
        family = raw.get("model_type")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}   # transformers 5 writes the former
        raw["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
        raw["layer_types"] = sorted(set(raw.get("layer_types") or PLAIN["layer_types"]))
        if family not in ARCHITECTURES:
            raise ModelError(f"{path}: model_type is {family!r}, but only the dense models of the families "
                             f"{', '.join(ARCHITECTURES)} are implemented here; Qwen/Qwen3-0.6B-Base is one")
        for key, value in PLAIN.items():
            if raw.get(key, value) != value:
                raise ModelError(f"{path}: {key} is {raw[key]!r}, but only {value!r} is implemented here; "
                                 "choose another model, such as Qwen/Qwen3-0.6B-Base")
        raw["rope_theta"] = raw.get("rope_theta") or rope.get("rope_theta")
        if family != "qwen3":                           # what the configs of the relatives may leave out
            heads = raw.get("num_attention_heads") or 1
            raw["head_dim"] = raw.get("head_dim") or raw.get("hidden_size", 0) // heads
            raw["rope_theta"] = raw["rope_theta"] or 1e4
        generation = path.with_name("generation_config.json")
        if generation.exists():
            raw["eos_token_id"] = _read_json(generation).get("eos_token_id") or raw.get("eos_token_id")
        names = [name for name in cls.__dataclass_fields__ if name != "num_tokens"]
        missing = [name for name in names if raw.get(name) is None]
        if missing:
            raise ModelError(f"{path}: no value for {', '.join(missing)}; is the file complete?")
        return cls(**{name: raw[name] for name in names})

    def to_json(self, dtype):
        fields = {key: value for key, value in asdict(self).items() if key != "num_tokens"}
        eos = self.eos_token_id[0] if len(self.eos_token_id) == 1 else list(self.eos_token_id)
        return {"architectures": [ARCHITECTURES[self.model_type]], **fields, "eos_token_id": eos,
                "hidden_act": "silu", "torch_dtype": str(dtype).removeprefix("torch.")}


def _read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; a model directory holds config.json, tokenizer.json "
                         "and model.safetensors") from None
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error}); fetch the file again") from None


# ---- 2. The blocks ---------------------------------------------------------------------------------------------------

def rope_tables(positions, config, dtype):
    """(cos a, cos a) and (-sin a, sin a) of the angles a = position * theta^(-2i/D), i = 0 .. D/2-1:
    (..., T) -> two of (..., 1, T, D)."""
    exponents = torch.arange(0, config.head_dim, 2, device=positions.device).float() / config.head_dim
    angles = positions[..., None].float() * config.rope_theta ** -exponents   # fp32: bf16 cannot count past 256
    angles = angles.unsqueeze(-3)                                             # (..., 1, T, D/2), 1: all heads
    cos, sin = torch.cat((angles, angles), dim=-1).cos(), torch.cat((-angles, angles), dim=-1).sin()
    return cos.to(dtype), sin.to(dtype)


def apply_rope(x, cos, sin):
    """Rotate each pair (x_i, x_{i+D/2}) by its position's angle. The published weights expect this half-split pairing;
    the RoPE paper pairs neighbours (x_2i, x_2i+1): the same rotation with the dimensions in another order."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((right, left), dim=-1) * sin                   # sin is negative on the left


class KVCache:
    """Keys and values of the tokens seen so far, preallocated. Rows are left-aligned: slot s of a row holds its token
    at position s, so a query at position p may see exactly the slots <= p. That one rule serves ragged rows, and makes
    whatever stands in later slots (the right padding of a shorter prompt) invisible until it is overwritten.

    k, v: a list over layers of (B, K, S, D). lengths: (B,) tokens that each row holds. used: no row holds more; a plain
    int, so that no step has to ask the device for it, and attention reads no slot beyond.
    rope: the tables of all slots, (1, S, D) each, so that no step computes its angles again.
    """

    def __init__(self, config, rows, slots, device, dtype):
        shape = (rows, config.num_key_value_heads, slots, config.head_dim)
        layers = range(config.num_hidden_layers)
        # zeros, not empty: a masked slot has weight 0, but 0 * NaN would still be NaN
        self.k = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.v = [torch.zeros(shape, device=device, dtype=dtype) for _ in layers]
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.rows = torch.arange(rows, device=device)[:, None]
        self.config, self.used = config, 0
        self._make_rope()

    @property
    def slots(self):
        return self.k[0].size(2)

    def end(self, T):
        """Attention over T more tokens reads the slots before this one."""
        if self.used + T > self.slots:
            raise ValueError(f"the cache has {self.slots} slots, too few for {self.used} + {T} tokens")
        return self.used + T

    def write(self, layer, k, v, positions):
        """Store k, v (B, K, T, D) at positions (B, T); returns all keys and values so far, (B, K, end, D)."""
        end = self.end(k.size(2))
        self.k[layer][self.rows, :, positions] = k.transpose(1, 2)
        self.v[layer][self.rows, :, positions] = v.transpose(1, 2)
        return self.k[layer][:, :, :end], self.v[layer][:, :, :end]

    def put(self, places, other, rows):
        """Put the given rows of another cache into places of this one, which need not be empty; a row of the other may
        be named several times."""
        for ours, theirs in zip(self.k + self.v, other.k + other.v):
            ours[places, :, :other.slots] = theirs[rows]
        self.lengths[places] = other.lengths[rows]

    def take(self, rows):
        """Keep only the given rows, a LongTensor."""
        self._change(lambda old: old[rows])
        self.lengths = self.lengths[rows]
        self.rows = torch.arange(len(rows), device=rows.device)[:, None]

    def grow(self, slots):
        """Make room for so many tokens in each row."""
        self._change(lambda old: F.pad(old, (0, 0, 0, slots - old.size(2))))
        self._make_rope()

    def _change(self, function):
        for side in (self.k, self.v):
            for layer, old in enumerate(side):        # layer by layer: two whole caches never coexist
                side[layer] = function(old)

    def _make_rope(self):
        slots = torch.arange(self.slots, device=self.k[0].device)
        self.rope = rope_tables(slots, self.config, self.k[0].dtype)


class Attention(nn.Module):
    """Causal self-attention with fewer key/value heads than query heads and an RMSNorm on each head before RoPE."""

    def __init__(self, config, layer):
        super().__init__()
        C, H, K, D = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
        bias = config.model_type == "qwen2"
        self.H, self.K, self.D, self.layer = H, K, D, layer
        self.q_proj = nn.Linear(C, H * D, bias=bias)
        self.k_proj = nn.Linear(C, K * D, bias=bias)
        self.v_proj = nn.Linear(C, K * D, bias=bias)
        self.o_proj = nn.Linear(H * D, C, bias=False)
        for name in ("q_norm", "k_norm"):
            norm = RMSNorm(D, config.rms_norm_eps) if config.model_type == "qwen3" else nn.Identity()
            self.add_module(name, norm)

    def forward(self, x, rope, positions, mask, cache):
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, self.H, self.D)).transpose(1, 2)      # (B, H, T, D)
        k = self.k_norm(self.k_proj(x).view(B, T, self.K, self.D)).transpose(1, 2)      # (B, K, T, D)
        v = self.v_proj(x).view(B, T, self.K, self.D).transpose(1, 2)                   # (B, K, T, D)
        q, k = apply_rope(q, *rope), apply_rope(k, *rope)
        if cache is not None:
            k, v = cache.write(self.layer, k, v, positions)                             # (B, K, S, D)
        if T == 1:
            # One query per row: the H/K query heads that share a key head can stand where queries stand, and no key
            # has to be repeated. is_causal would be wrong here: SDPA aligns it to the first key, not to the last.
            q = q.reshape(B, self.K, self.H // self.K, self.D)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(y.reshape(B, self.H, T, self.D).transpose(1, 2).reshape(B, T, self.H * self.D))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, rope, positions, mask, cache):
        x = x + self.self_attn(self.input_layernorm(x), rope, positions, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


@functools.cache
def _compiled_block():
    """One compilation for all blocks and all shapes."""
    return torch.compile(lambda block, *inputs: block(*inputs), dynamic=True)


# ---- 3. Qwen3 --------------------------------------------------------------------------------------------------------

class Qwen3(nn.Module):
    """The language model: `model(ids)` maps ids (B, T) to logits (B, T, V)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.checkpoint_blocks = False      # keep only each block's input; compute the rest again on the way back
        self.compile_blocks = False         # torch.compile them for training, where there is no cache
        V, C = config.vocab_size, config.hidden_size
        self.model = nn.ModuleDict(dict(
            # the weight that nn.Embedding itself would make; but on the meta device it imports the compiler first (3 s)
            embed_tokens=nn.Embedding(V, C, _weight=torch.randn(V, C)),
            layers=nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers)),
            norm=RMSNorm(C, config.rms_norm_eps)))
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(C, V, bias=False)

    def forward(self, ids, cache=None, head=None):
        """ids (B, T) -> logits (B, T, V).

        cache: a KVCache; the ids then continue its rows, and their keys and values are added to it. Without one, row b
               starts at position 0; shorter rows are padded on the right, where causal attention never looks.
        head:  a function (hidden (B, T, C), weight (V, C)) -> anything, called in place of the full projection by those
               who do not need all of (B, T, V). It runs in here so that the weight it gets is whole even when sharded.
        """
        B, T = ids.shape
        positions = torch.arange(T, device=ids.device).expand(B, T)
        mask, end = None, None if cache is None else cache.end(T)
        if cache is not None and cache.used > 0:
            positions = positions + cache.lengths[:, None]                              # (B, T)
            later = torch.arange(end, device=ids.device) > positions[:, None, :, None]  # (B, 1, T, S)
            mask = torch.zeros_like(later, dtype=cache.k[0].dtype).masked_fill(later, -math.inf)
        x = self.model.embed_tokens(ids)                                                # (B, T, C)
        rope = (rope_tables(positions, self.config, x.dtype) if cache is None
                else [table[0, positions].unsqueeze(1) for table in cache.rope])        # two of (B, 1, T, D)
        for block in self.model.layers:
            if self.compile_blocks and cache is None:
                block = functools.partial(_compiled_block(), block)
            if self.checkpoint_blocks and torch.is_grad_enabled():
                block = functools.partial(checkpoint, block, use_reentrant=False, preserve_rng_state=False)
            x = block(x, rope, positions, mask, cache)
        if cache is not None:
            cache.lengths, cache.used = cache.lengths + T, end
        x = self.model.norm(x)
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(x, weight) if head is None else head(x, weight)

    @property
    def device(self):
        return self.model.embed_tokens.weight.device

    def new_cache(self, rows, slots):
        return KVCache(self.config, rows, slots, self.device, self.model.embed_tokens.weight.dtype)


# ---- 4. Load and save ------------------------------------------------------------------------------------------------

FILES = ["config.json", "generation_config.json", "model.safetensors.index.json", "*.safetensors",
         "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


def load(name_or_dir, device="cpu", dtype=torch.float32, template=None, shard=None):
    """A model and its tokenizer from a local directory or a Hugging Face hub id -> (model, tokenizer).

    A hub id is downloaded once into huggingface_hub's cache; HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN are respected.
    template: see Tokenizer; by default a base model gets the plain prompt and a post-trained one the chat markup.
    shard:    called with the model before it has weights -> a function (tensor, the parameter it is for) -> the tensor
              to keep of it; so a model need never be whole in memory.
    Raises ModelError, with the file or tensor and the remedy, for whatever is missing, damaged or of another shape.
    """
    directory = find(str(name_or_dir))
    config = Config.from_dir(directory)
    tokenizer = Tokenizer.from_dir(directory, config.eos_token_id, template)
    if tokenizer.num_tokens > config.vocab_size:
        raise ModelError(f"{directory}: tokenizer.json has {tokenizer.num_tokens} tokens but config.json only "
                         f"{config.vocab_size} embedding rows; the two files belong to different models")
    config.num_tokens = tokenizer.num_tokens
    with torch.device("meta"):                      # no memory and no time for weights that are replaced at once
        model = Qwen3(config)
    keep = shard(model) if shard else lambda tensor, parameter: tensor
    weights = _read_weights(directory, model.state_dict(), device, dtype, keep)
    model.load_state_dict(weights, assign=True)
    return model, tokenizer


def find(name):
    """The directory of a model: a local one, or that of a hub id (owner/name), downloaded if need be."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.count("/") != 1 or name.startswith(("/", ".", "~")) or path.parent.is_dir():
        parent = next(folder for folder in path.parents if folder.is_dir())
        beside = [entry.name for entry in parent.iterdir() if entry.is_dir()]
        near = ", ".join(difflib.get_close_matches(path.name, beside, n=5, cutoff=0)) or "no directory at all"
        raise ModelError(f"{name}: no such directory; in {parent}/ there is {near}. (A hub id has the form "
                         "owner/name, and there must be no folder of the owner's name here.)")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=FILES))
    except Exception as error:                      # no such model, no network, a broken connection: of many types
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0][:200]
        raise ModelError(f"{name}: not here, and the hub did not send it ({type(cause).__name__}: {reason}). Check the "
                         "spelling, the network, HF_ENDPOINT, HF_HUB_OFFLINE and, for a private model, HF_TOKEN; the "
                         "same command goes on where a download stopped; or pass a model directory") from error


def _read_weights(directory, wanted, device, dtype, keep):
    """All tensors of the checkpoint on `device`, checked by name and shape against `wanted`, a state dict."""
    index = directory / "model.safetensors.index.json"
    names = set(_read_json(index)["weight_map"].values()) if index.exists() else {"model.safetensors"}
    tensors, problems = {}, []
    for file in sorted(directory / name for name in names):
        if not file.exists():
            raise ModelError(f"{file}: no such file; the checkpoint is incomplete, fetch it again")
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():
                    if name == "lm_head.weight" and name not in wanted:
                        continue                    # a copy of the embedding; a tied model does without
                    tensor = reader.get_tensor(name)
                    if name not in wanted:
                        problems.append(f"{name} is not part of the model in config.json")
                    elif tensor.shape != wanted[name].shape:
                        problems.append(f"{name} has shape {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}")
                    elif not problems:
                        tensors[name] = keep(tensor.to(device=device, dtype=dtype), wanted[name])
        except SafetensorError as error:
            raise ModelError(f"{file}: damaged or cut short ({error}); delete it and fetch it again") from error
    problems = problems or [f"{name} is missing" for name in wanted if name not in tensors]
    if problems:
        more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
        raise ModelError(f"{directory}: {'; '.join(problems[:4])}{more}. config.json and the weights do not belong "
                         "together, or the checkpoint is incomplete: fetch the directory again")
    return tensors


def save(model, tokenizer, directory, weights=None):
    """Write a Hugging Face model directory that `load`, transformers and vLLM read as it is. A tied head is not stored.
    It is written under another name first and then renamed, so that a full disk never leaves half a model behind.
    weights: a state dict to write in place of the model's own."""
    directory = Path(directory)
    partial = directory.with_name(directory.name + ".partial")
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in (weights or model.state_dict()).items()}
    dtype, stop = next(iter(weights.values())).dtype, list(model.config.eos_token_id)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "config.json").write_text(json.dumps(model.config.to_json(dtype), indent=2))
        (partial / "generation_config.json").write_text(json.dumps({"eos_token_id": stop, "pad_token_id": stop[0]}))
        tokenizer.save(partial)
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        size = sum(weight.nbytes for weight in weights.values()) / 1e9
        raise ModelError(f"{directory}: cannot write the model ({error}). It needs {size:.2f} GB: free some space "
                         "or choose another place") from error


# ---- 5. Tokenizer ----------------------------------------------------------------------------------------------------

class Tokenizer:
    """Text to token ids and back, on the `tokenizers` library, with the chat markup (ChatML) written out by hand.

    template: how `encode_prompt` presents a question. "plain": as it stands, for base models, which were never trained
    on chat markup; "chat": one user turn, and a Qwen3 writes its own <think>; "chat-nothink": an empty think block is
    already there, so the model answers at once.
    """

    def __init__(self, backend, template="plain", extra_files=None):
        # A problem that spells out "<|im_end|>" must not be able to end the user's turn: its text stays text.
        backend.encode_special_tokens = True
        self.backend, self.template, self.extra_files = backend, template, extra_files or {}
        self.num_tokens = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_dir(cls, directory, eos_token_id, template=None):
        path = Path(directory) / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:                  # the library raises plain Exception
            raise ModelError(f"{path}: cannot be read ({error}); fetch the file again") from None
        if template is None:
            # Base and post-trained models share a tokenizer file; only their stop tokens tell them apart.
            template = "chat" if backend.token_to_id("<|im_end|>") in eos_token_id else "plain"
        others = [path.with_name(name) for name in ("tokenizer_config.json", "chat_template.jinja")]
        return cls(backend, template, {file.name: file.read_text(encoding="utf-8") for file in others if file.exists()})

    def encode(self, text):
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip_special_tokens=True):
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def encode_prompt(self, text):
        """The ids that the policy continues, under this tokenizer's template; Llama's begin with its BOS token."""
        if self.template != "plain":
            return self.chat(text, thinking=self.template == "chat")
        return self.backend.encode(text, add_special_tokens=True).ids

    def chat(self, user, system=None, thinking=True):
        """The chat template for one user turn, with the assistant's turn opened -> ids."""
        start, end = (self.backend.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
        if start is None or end is None:
            raise ModelError("this tokenizer has no <|im_start|> and <|im_end|>: use template='plain'")
        ids = []
        for role, content in (("system", system), ("user", user)):
            if content is not None:
                ids += [start, *self.encode(f"{role}\n{content}"), end, *self.encode("\n")]
        return ids + [start, *self.encode("assistant\n" + ("" if thinking else "<think>\n\n</think>\n\n"))]

    def save(self, directory):
        self.backend.encode_special_tokens = False
        self.backend.save(str(Path(directory) / "tokenizer.json"))
        self.backend.encode_special_tokens = True
        for name, text in self.extra_files.items():
            (Path(directory) / name).write_text(text, encoding="utf-8")


# ---- 6. Try it -------------------------------------------------------------------------------------------------------

def pick_device(wanted=None):
    """(device, compute dtype, reason): CUDA with bf16 where the GPU has it; otherwise fp32, which runs everywhere."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    device = wanted or next(name for name, there in available.items() if there)
    if not available[device]:
        raise ModelError(f"device {device} is not available to this PyTorch ({torch.__version__}); there is "
                         f"{', '.join(name for name, there in available.items() if there)}")
    if device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return device, torch.bfloat16, f"{torch.cuda.get_device_name()}, which has bf16"
    reason = {"cuda": "a GPU without bf16", "mps": "an Apple GPU", "cpu": "no GPU found"}[device]
    return device, torch.float32, "as asked" if wanted == "cpu" else reason


@torch.no_grad()
def main(name, text, max_new_tokens=64):
    """Greedy completion of one prompt, the plainest use of model and cache (rlvr.sample is the general one)."""
    device, dtype, _ = pick_device()
    model, tokenizer = load(name, device, dtype)
    ids = tokenizer.encode_prompt(text)
    cache = model.new_cache(rows=1, slots=len(ids) + max_new_tokens)
    step = torch.tensor([ids], device=device)                                   # (1, T): the prompt, then single tokens
    while len(ids) < cache.slots and ids[-1] not in model.config.eos_token_id:
        ids.append(model(step, cache)[0, -1, :model.config.num_tokens].argmax().item())
        step = torch.tensor([ids[-1:]], device=device)
    print(tokenizer.decode(ids))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except ModelError as error:
        sys.exit(f"error: {error}")
