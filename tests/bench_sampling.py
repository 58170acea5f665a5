"""Sampling: compares tokens/s of rlvr.sample, transformers.generate and a plain batched sampler.

    python tests/bench_sampling.py [--shape tiny|mid|SmolLM2|0.6B] [--rows 128] [--group 8] [--lengths fixed|spread]

mid has 8 layers of 512 channels, 8 query and 4 key heads, and a vocabulary of 32,000 (42 million parameters).
CTranslate2 (pip install ctranslate2) runs only with --lengths fixed, because its rows cannot be told when to end.

All samplers have the same random weights, prompts, number of rows and length of each completion. They take turns in one
process, and the best of --repeats counts. On a CPU the seconds are CPU seconds per thread. "plain" is the sampler that
one writes first: it repeats prompts for the group, concatenates its cache token by token, and keeps all rows to the end.
Lengths are either all --max-new-tokens, or spread like a policy's: exponential, with a third of that as the mean, and
cut off there. There are two lower limits: reading all weights and each running row's cache once a step, at the bandwidth
measured here; and the products with the weights alone, timed here. The last line is a JSON object.
"""

import argparse
import functools
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
import warnings

import torch
import torch.nn.functional as F

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, "notebooks")]
import rlvr  # noqa: E402
from notebooks.models.make_tiny import tiny_config
from model import Config, KVCache, Qwen3, pick_device  # noqa: E402

SAMPLERS = {}
SHAPES = {
    "tiny": functools.partial(tiny_config, 64, eos_token_id=63),
    "mid": functools.partial(
        Config,
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        eos_token_id=31999,
    ),
    "SmolLM2": functools.partial(
        Config,
        model_type="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        rope_theta=1e5,
        eos_token_id=49151,
    ),
    "0.6B": Config,
}


def sampler(name):
    return lambda function: SAMPLERS.setdefault(name, function)


def row_lengths(rows, longest, kind):
    if kind == "fixed":
        return [longest] * rows
    quantiles = [
        (i + 0.5) / rows
        for i in torch.randperm(rows, generator=torch.Generator().manual_seed(1)).tolist()
    ]
    return [max(1, min(longest, round(-longest / 3 * math.log(1 - q)))) for q in quantiles]


# ---- The samplers: (model, prompts, group, lengths, stop id) ---------------------------------------------------------


def choose_to_length(logits, u, *settings):
    """Choose the stop id, which is the last id, if u is 2, and any other token otherwise."""
    token, logp = rlvr.choose(logits, u.clamp(max=0.999), *settings)
    stop = logits.size(-1) - 1
    return token.clamp(max=stop - 1).masked_fill(u > 1, stop), logp


@sampler("rlvr.sample")
def ours(model, prompts, group, lengths, stop):
    uniforms = rlvr.row_uniforms(range(len(lengths)), max(lengths), seed=0)
    uniforms[range(len(lengths)), [length - 1 for length in lengths]] = 2.0
    options = {"stop_ids": [stop], "uniforms": uniforms, "choose": choose_to_length}
    rollouts = rlvr.sample(model, prompts, group, max(lengths), **options)
    assert rollouts.lengths.tolist() == lengths
    return rollouts


def transformers_twin(model):
    """Return transformers' model with the same tensors as weights (no copies)."""
    import transformers

    numbers = {key: value for key, value in vars(model.config).items() if key != "num_tokens"}
    numbers["eos_token_id"] = list(model.config.eos_token_id)
    config = transformers.AutoConfig.for_model(**numbers)
    with torch.device("meta"):
        twin = transformers.AutoModelForCausalLM.from_config(config)
    weights = dict(model.state_dict())
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    twin.load_state_dict(weights, assign=True)
    twin.model.rotary_emb = type(twin.model.rotary_emb)(config).to(model.device)
    return twin.eval()


@sampler("transformers")
def transformers_generate(model, prompts, group, lengths, stop):
    import transformers

    class StopAt(transformers.LogitsProcessor):
        def __call__(self, ids, scores):
            made = ids.size(1) - len(prompts[0]) + 1
            scores[:, stop] = -math.inf
            ends = torch.tensor(lengths, device=ids.device) == made
            scores[ends] = -math.inf
            scores[ends, stop] = 0.0
            return scores

    if not hasattr(model, "twin"):
        model.__dict__["twin"] = transformers_twin(model)  # not a part of the model
    ids = torch.tensor(prompts, device=model.device)
    out = model.twin.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_return_sequences=group,
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=max(lengths),
        eos_token_id=stop,
        pad_token_id=stop,
        logits_processor=transformers.LogitsProcessorList([StopAt()]),
    )
    assert out.size(1) == len(prompts[0]) + max(lengths)


@sampler("CTranslate2")
def ctranslate2_generate(model, prompts, group, lengths, stop):
    import ctranslate2
    import tokenizers
    import transformers

    if not hasattr(model, "converted"):
        words = {f"w{i}": i for i in range(model.config.vocab_size)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
        ends = {"unk_token": "w0", "bos_token": "w0", "eos_token": f"w{stop}"}
        with tempfile.TemporaryDirectory() as folder:
            transformers_twin(model).save_pretrained(f"{folder}/hf")
            tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **ends)
            tokenizer.save_pretrained(f"{folder}/hf")
            converter = ctranslate2.converters.TransformersConverter(f"{folder}/hf")
            converter.convert(f"{folder}/ct2")
            model.__dict__["converted"] = ctranslate2.Generator(
                f"{folder}/ct2", intra_threads=torch.get_num_threads(), compute_type="float32"
            )
    tokens = [[f"w{i}" for i in prompt] for prompt in prompts for _ in range(group)]
    results = model.converted.generate_batch(
        tokens,
        max_batch_size=len(tokens),
        min_length=lengths[0],
        max_length=lengths[0],
        sampling_topk=0,
        include_prompt_in_result=False,
    )
    assert {len(result.sequences_ids[0]) for result in results} == {lengths[0]}


class ConcatenatedCache(KVCache):
    def write(self, layer, k, v, positions):
        for side, new in ((self.k, k), (self.v, v)):
            side[layer] = torch.cat((side[layer][:, :, : self.used], new), dim=2)
        return self.k[layer], self.v[layer]


@sampler("plain")
@torch.no_grad()
def plain(model, prompts, group, lengths, stop):
    ids = torch.tensor(prompts, device=model.device).repeat_interleave(group, 0)
    slots = len(prompts[0]) + max(lengths)
    cache = ConcatenatedCache(model, len(ids), slots)
    ends = torch.tensor(lengths, device=model.device)
    finished = torch.zeros(len(ids), dtype=torch.bool, device=model.device)
    for t in range(1, max(lengths) + 1):
        logits = model(
            ids, cache, head=lambda h, w: F.linear(h[:, -1], w[: model.config.num_tokens])
        )
        token = torch.multinomial(logits.float().softmax(-1), 1).squeeze(1)
        finished |= ends == t
        ids = token.masked_fill(finished, stop)[:, None]
        if finished.all():
            break


# ---- Measuring -------------------------------------------------------------------------------------------------------


def bandwidth(device):
    """Measure how many bytes per second can be read from memory."""
    block = torch.ones(2**28, device=device)
    again = range(10 if device == "cuda" else 1)  # the time to start a single sum would count
    times = [timed(lambda: [block.sum() for _ in again], device) for _ in range(4)]
    return len(again) * block.numel() * 4 / min(times)


def timed(function, device):
    """Return the seconds of a call; on a CPU, CPU seconds per thread, so that other processes do not count."""
    if device == "cpu":
        start = time.process_time()
        function()
        return (time.process_time() - start) / torch.get_num_threads()
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def floor_seconds(model, prompt, lengths, bytes_per_second):
    c, size = model.config, model.model.embed_tokens.weight.element_size()
    weights = sum(p.numel() for p in model.parameters()) * size
    token = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * size
    moved = sum(
        weights + token * sum(prompt + t for n in lengths if n > t) for t in range(max(lengths))
    )
    return moved / bytes_per_second


def products_seconds(model, prompts, lengths):
    """Return the seconds of the products with the weights alone, for the prompts and for all running rows."""
    weights = [param for param in model.model.layers.parameters() if param.ndim == 2]
    head = (model.lm_head or model.model.embed_tokens).weight
    read = sum(map(len, prompts))
    most = max(read, len(lengths))
    inputs = {size: torch.randn(most, size) for size in {w.size(1) for w in (*weights, head)}}
    inputs = {size: x.to(head) for size, x in inputs.items()}
    running = [sum(n > t for n in lengths) for t in range(1, max(lengths))]

    @torch.no_grad()
    def work():
        for rows, last in zip([read, *running], [len(prompts), *running]):
            for weight in weights:
                F.linear(inputs[weight.size(1)][:rows], weight)
            F.linear(inputs[head.size(1)][:last], head)

    return min(timed(work, model.device.type) for _ in range(2))


# ---- What only a GPU has -------------------------------------------------------------------------------
# Rows for notebooks/look/gpu_day.py: claim, expected, found, and whether it holds.


def attention_rows():
    """Show which kernel attends in an update and in decoding, and its time for a shape that it has not seen before."""
    kernels = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    for name, wanted in (("update", "flash"), ("decoding", "efficient")):
        times = []
        for slots in range(401, 521, 8):
            q = k = torch.randn(8, 16, slots, 128, device="cuda", dtype=torch.bfloat16)
            mask = None
            if name == "decoding":
                q = q[:, :, :2]
                mask = torch.zeros(8, 1, 1, slots, device="cuda", dtype=torch.bfloat16)
            call = functools.partial(F.scaled_dot_product_attention, q, k, k, mask)
            times.append(timed(functools.partial(call, is_causal=mask is None), "cuda"))
        number = torch._fused_sdp_choice(q, k, k, mask, 0.0, mask is None)
        found = kernels.get(number, f"backend {number}")
        yield f"attention of {name}", wanted, found, found == wanted
        new = statistics.median(times) * 1e3
        yield "    a shape not seen before, ms", "< 5 (no plans)", f"{new:.2f}", new < 5


def waiting_rows(model):
    """Count how often decoding waits for the GPU. (tests/test_gpu.py counts it on a pretended one.)"""
    counts = []
    for tokens in (32, 96):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            rlvr.sample(model, [[5] * 40] * 8, 8, tokens, stop_ids=[])
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("called a synchronizing" in str(warning.message) for warning in seen))
    each = (counts[1] - counts[0]) / (96 - 32)
    yield "waits for the GPU in a decoded token", "at most 1 in 8", f"{each:.3f}", each <= 1 / 8


def rounded(decode, cache):
    """A `record` for rlvr.sample: a decode step that also reads up to 63 empty slots, so that for 64 tokens all its
    tensors keep their shapes and places."""
    if cache.used >= cache.seen:
        cache.seen = min((cache.used // 64 + 1) * 64, cache.k[0].size(2))
    lengths = cache.lengths
    decode()
    cache.lengths = lengths.copy_(cache.lengths)


class Recorder:
    """A `record` for rlvr.sample: the same step as one CUDA graph, because starting its kernels one by one takes longer
    than running them. It is recorded again when a shape changes: every 64 tokens, and when rows are dropped."""

    step = None

    def __call__(self, decode, cache):
        used = cache.used
        step = decode, len(cache.lengths), cache.seen
        if step == self.step and used < cache.seen:
            self.graph.replay()
        else:
            self.graph = None  # its memory is free now
            rounded(decode, cache)  # PyTorch's notes ask for a run before the recording
            cache.used = used  # recording runs the Python code again, but no kernel
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                rounded(decode, cache)
            self.step = decode, len(cache.lengths), cache.seen
        cache.used = used + 1


def recorded_rows(model, prompt=128, tokens=512):
    """Time a token of 64 rows, none of which is dropped: decoded as usual, by steps that can be recorded, and by recorded
    steps."""
    uniforms = rlvr.row_uniforms(range(64), tokens, 0)
    seconds = []
    logps = []
    for record in (None, rounded, Recorder()):
        sample = functools.partial(
            rlvr.sample, model, [[5] * prompt] * 8, 8, tokens, 1.0, [], uniforms, record=record
        )
        logps.append(sample().logp)  # the first call is not timed
        seconds.append(timed(sample, model.device.type) / tokens)
    usual, ready, recorded = (f"{1e3 * value:.2f}" for value in seconds)
    same = logps[1].equal(logps[2])
    yield "ms a token of 64 rows: rlvr.sample", "5.7 (759 launches)", usual
    yield "    by steps that can be recorded", "about as many", ready
    yield "    recorded", "less, if recording helps", recorded
    yield "    how many times faster that is", "", f"{seconds[0] / seconds[2]:.1f}"
    yield "    and samples the same", "True", str(same), same


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=80)
    parser.add_argument("--lengths", choices=["fixed", "spread"], default="spread")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], help="(default: as train.py chooses)"
    )
    parser.add_argument("--threads", type=int, help="number of CPU threads")
    args = parser.parse_args(argv)
    if args.rows % args.group:
        parser.error("--rows must be a multiple of --group")
    if args.threads:
        torch.set_num_threads(args.threads)
    device, dtype = pick_device()
    dtype = getattr(torch, args.dtype) if args.dtype else dtype
    config = SHAPES[args.shape]()
    stop = config.vocab_size - 1  # drawn only where a row is to end
    with torch.device("meta"):
        model = Qwen3(config).to(dtype)
    model.to_empty(device=device)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.02) if p.ndim == 2 else p.fill_(1.0)
    prompts = torch.randint(stop, (args.rows // args.group, args.prompt_tokens)).tolist()
    lengths = row_lengths(args.rows, args.max_new_tokens, args.lengths)
    samplers = dict(SAMPLERS)
    for name in ("transformers", "CTranslate2"):
        if not importlib.util.find_spec(name.lower()):
            print(f"{name} is not installed: without its row\n")
            del samplers[name]
    if "transformers" in samplers:
        import transformers

        transformers.logging.set_verbosity_error()
    if args.lengths == "spread" or device != "cpu":
        samplers.pop("CTranslate2", None)
    for function in samplers.values():  # imports and first calls are not timed
        function(model, prompts, args.group, [2] * args.rows, stop)
    seconds = {name: [] for name in samplers}
    for _ in range(args.repeats):
        for name, function in samplers.items():
            work = functools.partial(function, model, prompts, args.group, lengths, stop)
            seconds[name].append(timed(work, device))
    speed = bandwidth(device)
    floor, tokens = floor_seconds(model, args.prompt_tokens, lengths, speed), sum(lengths)
    print(
        f"{args.shape}, {str(dtype).removeprefix('torch.')} on {device} ({torch.get_num_threads()} CPU "
        f"threads), {args.rows} rows in groups of {args.group}, prompts of {args.prompt_tokens} tokens, completions "
        f"{args.lengths}: {min(lengths)} to {max(lengths)}, mean {tokens / args.rows:.0f}\n"
    )
    print(f"{'sampler':<24} {'seconds':>8} {'tokens/s':>9} {'rlvr.sample is':>15}")
    best = {name: min(times) for name, times in seconds.items()}
    for name, value in best.items():
        ratio = statistics.median(
            other / mine for other, mine in zip(seconds[name], seconds["rlvr.sample"])
        )
        print(f"{name:<24} {value:>8.2f} {tokens / value:>9.0f} {ratio:>13.2f} x")
    print(
        f"{'floor':<24} {floor:>8.2f} {tokens / floor:>9.0f}   reading memory at {speed / 1e9:.1f} GB/s"
    )
    products = products_seconds(model, prompts, lengths)
    share = products / best["rlvr.sample"]
    print(
        f"{'floor':<24} {products:>8.2f} {tokens / products:>9.0f}   the products with the weights alone"
    )
    ratios = {
        name: statistics.median(
            other / mine for other, mine in zip(seconds[name], seconds["rlvr.sample"])
        )
        for name in seconds
        if name != "rlvr.sample"
    }
    columns = ["model, rows, prompt, lengths", "rlvr.sample, tokens/s"]
    columns += [f"{name} is slower" for name in SAMPLERS if name != "rlvr.sample"]
    row = [f"{args.shape}, {args.rows}, {args.prompt_tokens}, {args.lengths} to {max(lengths)}"]
    row += [f"{tokens / best['rlvr.sample']:,.0f}"]
    row += [
        f"{ratios[name]:.1f} x" if name in ratios else ""
        for name in SAMPLERS
        if name != "rlvr.sample"
    ]
    result = {
        **vars(args),
        "columns": [*columns, "the products alone, tokens/s", "rlvr.sample reaches"],
        "rows": [[*row, f"{tokens / products:,.0f}", f"{share:.0%}"]],
        "tokens": tokens,
        "seconds": best,
        "floor_seconds": floor,
        "ratios": ratios,
    }
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()
