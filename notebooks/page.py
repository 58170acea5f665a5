"""RLVR on one page: a Qwen3, a sampler with a KV cache, a verifier, GRPO and the training loop.

    python notebooks/page.py                        a tiny Qwen3 learns to work sums out
    python notebooks/page.py FOLDER problems.jsonl  your Qwen3; lines {"problem": .., "answer": ..}

Letters: P prompts, G completions of each, B = P*G rows, T tokens, S = T + cached tokens, N new
tokens, V vocabulary, C hidden size, H query heads, K key/value heads, D head size.
"""

import json
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer


# ---- The policy: Qwen3 (arXiv 2505.09388), read from a Hugging Face folder ----
class Qwen3:
    def __init__(self, folder):
        self.config = json.loads(Path(folder, "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        self.weights = {}  # by their published names
        for file in Path(folder).glob("*.safetensors"):
            for name, tensor in load_file(file, str(torch.get_default_device())).items():
                self.weights[name] = tensor.float().requires_grad_()

    def __call__(self, ids, real, cache=None):
        """ids (B, T): the newest of S tokens; real (B, S): False for padding -> logits (B, T, V).
        cache: {} at first, keeps keys and values; with it only the last logits: (B, 1, V)."""
        c = self.config
        T, S, D = ids.size(1), real.size(1), c["head_dim"]
        theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
        p = torch.arange(S - T, S)[:, None]  # positions; padding counts, but only distances matter
        angles = p * theta ** -(torch.arange(0, D, 2) / D)  # (T, D/2)
        cos, sin = angles.cos(), angles.sin()

        def linear(x, name):
            return F.linear(x, self.weights[name + ".weight"])

        def norm(x, name):  # RMSNorm: x * weight / sqrt(mean(x^2) + eps)
            return F.rms_norm(x, x.shape[-1:], self.weights[name + ".weight"], c["rms_norm_eps"])

        def rotate(x):  # RoPE: turn each pair (x_i, x_{i+D/2}) by the angle p * theta^(-2i/D)
            left, right = x.chunk(2, dim=-1)
            return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

        # A token sees the real tokens up to itself: (B, 1, T, S).
        mask = torch.ones(S, S, dtype=torch.bool).tril()[S - T :] & real[:, None, None, :]
        x = F.embedding(ids, self.weights["model.embed_tokens.weight"])  # (B, T, C)
        for i in range(c["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            y = norm(x, f"{layer}.input_layernorm")
            q = linear(y, f"{layer}.self_attn.q_proj").unflatten(2, (-1, D)).transpose(1, 2)
            k = linear(y, f"{layer}.self_attn.k_proj").unflatten(2, (-1, D)).transpose(1, 2)
            v = linear(y, f"{layer}.self_attn.v_proj").unflatten(2, (-1, D)).transpose(1, 2)
            q = rotate(norm(q, f"{layer}.self_attn.q_norm"))  # (B, H, T, D)
            k = rotate(norm(k, f"{layer}.self_attn.k_norm"))
            if cache is not None:  # k, v (B, K, T, D) -> (B, K, S, D)
                if layer in cache:
                    k = torch.cat((cache[layer][0], k), dim=2)
                    v = torch.cat((cache[layer][1], v), dim=2)
                cache[layer] = (k, v)
            # softmax(q k^T / sqrt(D)) v; H / K query heads share a key head (GQA): (B, H, T, D)
            y = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
            x = x + linear(y.transpose(1, 2).flatten(2), f"{layer}.self_attn.o_proj")
            y = norm(x, f"{layer}.post_attention_layernorm")
            y = F.silu(linear(y, f"{layer}.mlp.gate_proj")) * linear(y, f"{layer}.mlp.up_proj")
            x = x + linear(y, f"{layer}.mlp.down_proj")
        head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
        x = x if cache is None else x[:, -1:]  # to sample, the newest is enough
        return linear(norm(x, "model.norm"), head)


# ---- Completions: o_1 .. o_G ~ pi(. | q) ----
@torch.no_grad()
def sample(model, prompts, G, max_new_tokens, temperature):
    """G completions of each prompt -> ids (B, T), real (B, T), start, finished (B,).
    Prompts are padded on the left, so all completions begin in the column `start`."""
    stop_ids = torch.tensor(model.config["eos_token_id"])  # one, or several
    start = max(map(len, prompts))
    ids = torch.tensor([[0] * (start - len(prompt)) + prompt for prompt in prompts])
    lengths = torch.tensor([[len(prompt)] for prompt in prompts])  # (P, 1)
    real = (torch.arange(start) >= start - lengths).repeat_interleave(G, dim=0)
    ids = ids.repeat_interleave(G, dim=0)
    new = ids  # what the model has not read yet: the prompts (B, start), later a token (B, 1)
    running = torch.ones(len(ids), dtype=torch.bool)
    cache = {}
    while running.any() and ids.size(1) < start + max_new_tokens:
        logits = model(new, real, cache)[:, -1]  # (B, V)
        new = torch.multinomial((logits / temperature).softmax(-1), 1)  # (B, 1)
        ids = torch.cat((ids, new), dim=1)
        real = torch.cat((real, running[:, None]), dim=1)  # the stop token is real, too
        running = running & ~torch.isin(new[:, 0], stop_ids)
    return ids, real, start, ~running


# ---- The verifier: a rule, no model ----
def extract_boxed_answer(text):
    """What is in the last \\boxed{..}, up to the brace that closes it; None if there is none."""
    _, found, rest = text.rpartition("\\boxed{")
    depth = 1
    for end, character in enumerate(rest if found else ""):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:end].strip()


def reward_rlvr(response, ground_truth):
    """R = 1 if the answer is right, else 0."""
    return float(extract_boxed_answer(response) == ground_truth.strip())


def roll_out(model, problems, G, max_new_tokens, temperature):
    """Sample completions and score them -> ids, real, start, rewards (P, G), texts (B)."""
    prompts = [model.tokenizer.encode(problem).ids for problem, _ in problems]
    ids, real, start, finished = sample(model, prompts, G, max_new_tokens, temperature)
    written = [row[keep].tolist() for row, keep in zip(ids[:, start:], real[:, start:])]
    texts = model.tokenizer.decode_batch(written)  # leaves out special tokens such as the stop
    answers = [answer for _, answer in problems for _ in range(G)]
    rewards = torch.tensor([*map(reward_rlvr, texts, answers)]) * finished  # 0 if it was cut off
    return ids, real, start, rewards.view(-1, G), texts


# ---- GRPO (arXiv 2402.03300) with one update per batch, so no ratio and no clip; no KL term ----
def token_logprobs(model, ids, real, start, temperature):
    """log pi(o_t | q, o_<t) for the tokens from the column `start` on -> (B, N)."""
    logits = model(ids[:, :-1], real[:, :-1])[:, start - 1 :]  # (B, N, V): column t predicts t + 1
    return (logits / temperature).log_softmax(-1).gather(2, ids[:, start:, None]).squeeze(2)


def compute_grpo_loss(model, ids, real, start, rewards, temperature):
    """L = -sum_i sum_t A_i log pi(o_it | q, o_i<t) / the tokens of all completions (DAPO).
    A completion above the mean of its group becomes more likely, one below it less likely."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=0, keepdim=True)
    advantages = (rewards - mean) / (std + 1e-6)  # A_i, within the group of a prompt: (P, G)
    logp = token_logprobs(model, ids, real, start, temperature)
    mask = real[:, start:]  # (B, N): what the policy wrote, the stop token too
    return -(advantages.view(-1, 1) * logp * mask).sum() / mask.sum()


def train_rlvr(model, train, test, steps, P, G, max_new_tokens, lr, temperature=1.0):
    """train, test: lists of (problem, answer) -> the mean reward of each step."""
    optimizer = torch.optim.AdamW(model.weights.values(), lr, betas=(0.9, 0.95), weight_decay=0)
    history = []
    for step in range(steps + 1):
        if step % 25 == 0:
            *_, R, _ = roll_out(model, test, 1, max_new_tokens, temperature=1e-6)  # one per problem
            print(f"step {step:3}  held-out accuracy {R.mean():.3f} (greedy, n={len(test)})")
        if step == steps:
            return history
        problems = random.sample(train, P)
        ids, real, start, R, texts = roll_out(model, problems, G, max_new_tokens, temperature)
        history.append(R.mean().item())
        if step % 5 == 0:
            print(f"step {step:3}  reward {R.mean():.2f}  {problems[0][0]}{texts[0]}", flush=True)
        compute_grpo_loss(model, ids, real, start, R, temperature).backward()
        torch.nn.utils.clip_grad_norm_(model.weights.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def sums(number):
    """Problems such as 25+7+9-4= with the answer 37, all different; no value leaves 10 .. 99."""
    problems = {}
    while len(problems) < number:
        value = random.randint(10, 99)
        problem = str(value)
        for _ in range(random.randint(2, 4)):
            change = random.choice([d for d in range(-9, 10) if d and 10 <= value + d <= 99])
            value += change
            problem += f"{change:+d}"
        problems[problem + "="] = str(value)
    return [*problems.items()]


TINY = {"steps": 50, "P": 8, "G": 16, "max_new_tokens": 80, "lr": 4e-4}
REAL = {"steps": 100, "P": 1, "G": 8, "max_new_tokens": 256, "lr": 3e-6}
if __name__ == "__main__":
    if "--step" in sys.argv:  # --step mine.py, at the end: its functions replace those above
        *sys.argv, _, file = sys.argv
        exec(compile(Path(file).read_text(encoding="utf-8"), file, "exec"))
    torch.manual_seed(0)
    random.seed(0)
    if len(sys.argv) == 1:
        torch.set_num_threads(1)
        problems = sums(1000)
        train_rlvr(Qwen3(Path(__file__).parent / "tiny"), problems[200:], problems[:200], **TINY)
    else:
        torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
        rows = [*map(json.loads, filter(str.strip, open(sys.argv[2], encoding="utf-8-sig")))]
        random.shuffle(rows)
        ask = "\n\nPut your final answer within \\boxed{}.\n\n"
        problems = [(row["problem"] + ask, str(row["answer"])) for row in rows]
        n = max(1, min(50, len(problems) // 5))
        train_rlvr(Qwen3(sys.argv[1]), problems[n:], problems[:n], **REAL)
