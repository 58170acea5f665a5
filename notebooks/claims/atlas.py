"""atlas.py - what a method's update is on average, and how noisy it is, without training.

    python -m notebooks.claims.atlas mine.py        the row of a method, in seconds
    python -m notebooks.claims.atlas                all tables; the last line is a JSON object
    python -m notebooks.claims.atlas --write        the same, kept in notebooks/results/atlas.json and on the pages

A Qwen3 of 1,004 weights writes at most five tokens, of five kinds: 1,365 completions of each of three prompts. They can all
be listed, so the gradient of J, the mean reward, is a sum and no estimate. A method's update is
sum_it c_it grad log pi(o_it),  c_it = -d loss / d log pi(o_it), by its own `advantages`, `loss` and setting norm.
Groups are listed by classes of completions: of one reward or, if that is not enough, of one reward, length and end. Where
the prompts of a step meet (norm=token, a std of the batch) or an advantage depends on more, steps are sampled.

    cos      of the mean update with the gradient of J: 1 is no bias of direction
    ratio    of their lengths: what a learning rate makes up for
    s/n      |mean update| / sqrt(trace of its covariance), for 128 completions
    longer   tokens that wrong answers grow by, for each unit that J gains

Letters: N completions of a prompt, L tokens, V kinds of token, D weights, P prompts, R = P*N rows, G completions of a
group, n steps or groups, K classes.
"""

import argparse
import copy
import itertools
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from model import Config, Qwen3
from rlvr import GRPO, LossInputs, Rollouts, Step, loss_weights
from verifiers import find_class

METHODS = Path(__file__).resolve().parents[1] / "methods"
V = 5  # 0 is the stop
L = 5
PASS_RATES = (0.05, 0.3, 0.8)  # of a base, on each prompt
FORM_RATE = 0.3  # of a habit that has nothing to do with the answer: to begin with token 4

# ---- 1. The world: every completion, its probability, its scores -----------------------------------

PREFIXES = [text for n in range(L) for text in itertools.product(range(1, V), repeat=n)]
COMPLETIONS = [(*text, 0) for text in PREFIXES] + [*itertools.product(range(1, V), repeat=L)]
NUMBER = {text: i for i, text in enumerate(PREFIXES)}
N = len(COMPLETIONS)


def padded(texts, width):
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])


def nodes_of(text):
    """Where each of its tokens stands in a table of all prefixes and tokens."""
    return [NUMBER[text[:t]] * V + token for t, token in enumerate(text)]


TOKENS = padded(COMPLETIONS, L)  # (N, L)
NODES = padded([nodes_of(text) for text in COMPLETIONS], L)
LENGTHS = torch.tensor([len(text) for text in COMPLETIONS])
FINISHED = torch.tensor([text[-1] == 0 for text in COMPLETIONS])
MASK = (torch.arange(L) < LENGTHS[:, None]).double()
ENDS = torch.tensor([len(text) for text in PREFIXES])
# The last token before the stop, behind at least one other. Prompt k asks for k + 1.
ANSWERS = torch.tensor([text[-2] if text[2:] and text[-1] == 0 else 0 for text in COMPLETIONS])
FORM = ((TOKENS[:, 0] == V - 1) & FINISHED).double()
TEXTS = [rf"\boxed{{{answer}}}" for answer in ANSWERS.tolist()]


def ids_of(prompt):
    return F.pad(padded(PREFIXES, L - 1), (1, 0), value=V + prompt)  # (prefixes, L)


def log_probs(model, prompt):
    """-> (N, L), 0 behind the end."""
    logits = model(ids_of(prompt))[torch.arange(len(PREFIXES)), ENDS, :V]
    return logits.log_softmax(-1).flatten()[NODES] * MASK


def score_table(model, prompt):
    """The gradient of log pi of each prefix and token -> (prefixes * V, D)."""

    def row(weights, ids, place):
        logits = functional_call(model, weights, (ids[None],))[0, :, :V]  # (L, V)
        return (logits * place[:, None]).sum(0).log_softmax(-1)

    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    places = F.one_hot(ENDS, L).double()
    with sdpa_kernel(SDPBackend.MATH):  # the one that vmap knows
        found = vmap(jacrev(row), (None, 0, 0), chunk_size=64)(weights, ids_of(prompt), places)
    return torch.cat([part.flatten(2) for part in found.values()], 2).flatten(0, 1)


def make_base(seed=0):
    """A policy with these pass rates, and the habit in three of ten right and of ten wrong answers."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Config(vocab_size=V + len(PASS_RATES), eos_token_id=0, **sizes, **heads)
    config.num_tokens = V  # prompts have embeddings, but are never sampled
    model = Qwen3(config).double()
    wanted = torch.tensor([[p, FORM_RATE, p * FORM_RATE] for p in PASS_RATES]).double().logit()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=100, tolerance_grad=1e-4, line_search_fn="strong_wolfe"
    )

    def loss():
        optimizer.zero_grad()
        error = 0.0
        for prompt, rates in enumerate(wanted):
            correct = (ANSWERS == prompt + 1).double()
            values = torch.stack([correct, FORM, correct * FORM])  # (3, N)
            found = values @ log_probs(model, prompt).sum(1).exp()
            error = error + (found.logit() - rates).square().sum()
        error.backward()
        return error

    optimizer.step(loss)
    return model


@dataclass
class Rows:
    """All completions of a prompt, or of several, one below the other."""

    policy: Qwen3
    prompts: list
    correct: torch.Tensor  # (R,)
    reward: torch.Tensor  # (R,)
    logp: torch.Tensor  # (R, L), of the policy
    sampled: torch.Tensor  # (R, L), of what sampled
    old: torch.Tensor  # (R, L), old_logp of the loss
    ref: torch.Tensor  # (R, L)
    scores: torch.Tensor = None  # (P * prefixes * V, D)

    def __post_init__(self):
        P = len(self.prompts)
        starts = torch.arange(P).repeat_interleave(N)[:, None] * len(PREFIXES) * V
        self.p = self.sampled.exp().prod(1)  # their sum is 1 for each prompt
        self.mask = MASK.repeat(P, 1)
        self.nodes = NODES.repeat(P, 1) + starts

    def each(self, c):
        """(R, L) -> sum_t c_t grad log pi(o_t) of each row (R, D)."""
        return torch.einsum("rl,rld->rd", c * self.mask, self.scores[self.nodes])

    def gradient(self, values):
        """Of the mean of values (R,) over the policy's completions, a sum over prompts -> (D,)."""
        return self.logp.exp().prod(1) * values @ self.each(self.mask)


@torch.no_grad()
def make_rows(policy, prompts, sampler=None, ref=None, scores=True):
    """Rows with a reward of 1 for a right answer; old is the policy."""
    parts = []
    for prompt in prompts:
        logp = log_probs(policy, prompt)
        sampled = log_probs(sampler or policy, prompt)
        correct = (ANSWERS == prompt + 1).double()
        table = score_table(policy, prompt) if scores else logp
        parts.append(
            [correct, correct, logp, sampled, logp, log_probs(ref or policy, prompt), table]
        )
    return Rows(policy, [*prompts], *(torch.cat(column) for column in zip(*parts)))


# ---- 2. A method's update: its own functions on every group ----------------------------------------


def load(file, policy, G=4, **settings):
    """A method of a file, or the default."""
    kind = find_class(str(file), GRPO) if file else GRPO
    if hasattr(kind.Settings, "best_of"):
        settings["best_of"] = G // 2
    method = kind(num_samples=G, max_new_tokens=L, **settings)
    method.setup(copy.deepcopy(policy), None)
    return method


def step_of(rows, picks, number=0):
    """picks (P, G) of rows -> the project's Step."""
    flat = picks.flatten()
    own = flat % N
    prompts = torch.tensor(rows.prompts)[flat // N]
    ids = torch.cat([V + prompts[:, None], TOKENS[own]], 1)
    sizes = torch.ones_like(flat), LENGTHS[own], FINISHED[own]
    rollouts = Rollouts(ids, *sizes, rows.sampled[flat].float(), MASK[own].float(), picks.size(1))
    texts = [TEXTS[i] for i in own.tolist()]
    pairs = zip(rows.correct[flat].tolist(), FORM[own].tolist())
    parts = [{"correct": correct, "form": form} for correct, form in pairs]
    return Step([{}] * len(picks), rollouts, texts, rows.reward[picks], parts, number=number)


def weights_of(method, mask):
    """mask (n, B, L) of steps, each with its own normaliser -> (n, B, L)."""
    settings = method.settings
    return vmap(lambda step: loss_weights(step, settings.norm, settings.max_new_tokens))(mask)


def slopes(method, rows, picks, advantages, weights):
    """-d loss / d log pi of rows picks (b,): advantages (b, 1 or L), weights (b, L) -> (b, L)."""
    logp = rows.logp[picks].requires_grad_()
    advantages = advantages * rows.mask[picks]
    told = rows.old[picks], rows.sampled[picks], advantages, weights, rows.ref[picks]
    return -torch.autograd.grad(method.loss(logp, LossInputs(None, *told)), logp)[0]


def alone(method, rows, advantage):
    """slopes of each row as a step of its own -> (R, L)."""
    advantages = torch.full((len(rows.p), 1), advantage).double()
    weights = weights_of(method, rows.mask[:, None])[:, 0]
    return slopes(method, rows, torch.arange(len(rows.p)), advantages, weights)


def draw(rows, G, n, chances=None):
    """n steps, from the sampler or with other chances -> (n, P, G)."""
    chances = (rows.p if chances is None else chances).view(-1, N)
    generator = torch.Generator().manual_seed(0)
    found = torch.multinomial(chances, n * G, True, generator=generator).view(-1, n, G)
    return (found + N * torch.arange(len(chances))[:, None, None]).transpose(0, 1)


def credit(method, rows, picks, size):
    """n steps, picks (n, P, G) -> their advantages, with size groups of steps in one call."""
    parts = picks.split(size)
    steps = [step_of(rows, some.flatten(0, 1), number) for number, some in enumerate(parts)]
    return torch.cat([method.advantages(step) for step in steps]).double()


def meet(method, rows):
    """Whether the prompts of a step, or its steps, meet in the advantages."""
    few = draw(rows, method.settings.num_samples, 20)
    together = credit(method, rows, few, len(few))
    return not torch.allclose(together, credit(method, rows, few.flatten(0, 1)[:, None], 1))


def sampled(method, rows, n, size=1):
    """The updates of n sampled steps -> (n, D)."""
    picks = draw(rows, method.settings.num_samples, n)
    flat = picks.flatten()
    advantages = credit(method, rows, picks, size).view(len(flat), -1)
    weights = weights_of(method, rows.mask[picks.flatten(1)]).flatten(0, 1)
    c = slopes(method, rows, flat, advantages, weights).view(n, -1)
    places = rows.nodes[flat].view(n, -1)
    updates = []
    for some, where in zip(c.split(500), places.split(500)):
        table = c.new_zeros(len(some), len(rows.scores))
        updates.append(table.scatter_add(1, where, some) @ rows.scores)
    return torch.cat(updates)


def shares(method, rows, picks):
    """Groups of one prompt, picks (n, G) -> (n, G): the advantage of each row, times its weight
    in the step over its weight alone."""
    advantages = credit(method, rows, picks[:, None], 1).view(picks.shape)
    together = weights_of(method, rows.mask[picks]).amax(2)
    by_itself = weights_of(method, rows.mask[:, None]).amax(2).flatten()
    return advantages * together / by_itself[picks]


def listing(method, rows):
    """All groups of one prompt, by classes -> classes (R,), groups of them (n, G), their shares (n, G).
    None where classes do not decide the shares, or the slopes are not as large as the advantage."""
    if not torch.allclose(alone(method, rows, 0.5) * 2, alone(method, rows, 1.0)):
        return None
    often = rows.correct + 0.05  # about as many right as wrong, of all kinds
    few = draw(rows, method.settings.num_samples, 200, often)[:, 0]
    if method.advantages(step_of(rows, few)).numel() > few.numel():  # one for each token
        return None
    wanted = shares(method, rows, few)
    for columns in ([rows.reward], [rows.reward, LENGTHS, FINISHED]):
        table = torch.stack([column.double() for column in columns], 1)
        classes = table.unique(dim=0, return_inverse=True)[1]
        K = int(classes.max()) + 1
        first = torch.stack([(classes == k).nonzero()[0, 0] for k in range(K)])
        if torch.allclose(shares(method, rows, first[classes[few]]), wanted):
            kinds = itertools.combinations_with_replacement(range(K), few.size(1))
            groups = torch.tensor([*kinds])
            return classes, groups, shares(method, rows, first[groups])
    return None


def pushes(rows, listed):
    """-> chances (n,) of the groups; what each adds to each class, (n, 2K): ups, then downs; each
    class's completions with their share of it (K, R)."""
    classes, groups, share = listed
    members = F.one_hot(classes).T * rows.p
    q = members.sum(1)
    counts = F.one_hot(groups, len(q)).sum(1).double()
    logp = (counts * q.log() - torch.lgamma(counts + 1)).sum(1)
    chances = (logp + math.lgamma(groups.size(1) + 1)).exp()
    side = groups + len(q) * (share < 0)
    zeros = share.new_zeros(len(groups), 2 * len(q))
    return chances, zeros.scatter_add(1, side, share.abs()), side, members / q[:, None]


def expected(method, rows, listed):
    """The update of a step with G completions of one prompt -> its mean (D,), the trace of its
    covariance. Exact."""
    chances, sizes, side, members = pushes(rows, listed)
    ways = [rows.each(alone(method, rows, sign)) for sign in (1.0, -1.0)]  # (R, D)
    means = torch.cat([members @ way for way in ways])  # (2K, D)
    spread = torch.cat([members @ way.square().sum(1) for way in ways]) - means.square().sum(1)
    mean = chances @ sizes @ means
    squares = (listed[2].square() * spread[side]).sum(1)  # within the classes
    return mean, chances @ ((sizes @ means).square().sum(1) + squares) - mean.square().sum()


# ---- 3. Tables -------------------------------------------------------------------------------------


def cosine(a, b):
    return F.cosine_similarity(a, b, 0).item()


class World:
    """A base, and the methods measured in it."""

    def __init__(self, seed=0, n=4000):
        self.n = n
        self.policy = make_base(seed)
        prompts = range(len(PASS_RATES))
        self.ones = [make_rows(self.policy, [prompt]) for prompt in prompts]
        self.batch = make_rows(self.policy, prompts)
        self.truth = self.batch.gradient(self.batch.reward) / len(prompts)
        wrong = 1 - self.batch.correct
        rate = (self.batch.p * wrong).view(-1, N).sum(1).repeat_interleave(N)  # (R,)
        length = LENGTHS.repeat(len(prompts))
        mean = (self.batch.p * wrong * length).view(-1, N).sum(1).repeat_interleave(N) / rate
        self.longer = self.batch.gradient(wrong * (length - mean) / rate) / len(prompts)

    def load(self, file, G=4, **settings):
        """A method of a file, or of this name, or the default; ready for this policy."""
        path = METHODS / f"{file}.py"
        kind = find_class(str(path if path.exists() else file), GRPO) if file else GRPO
        if hasattr(kind.Settings, "best_of"):
            settings["best_of"] = G // 2
        method = kind(num_samples=G, max_new_tokens=L, **settings)
        method.setup(copy.deepcopy(self.policy), None)
        return method

    def estimate(self, method, size):
        """-> mean (D,), its squared length, trace, standard error of the cosine: of sampled steps."""
        updates = sampled(method, self.batch, self.n, size)
        mean = updates.mean(0)
        trace = updates.var(0).sum()
        square = mean.square().sum() - trace / self.n  # less what noise adds to it
        unit = F.normalize(self.truth, dim=0)
        others = (10 * mean - updates.view(10, -1, len(mean)).mean(1)) / 9  # a jackknife
        cosines = others @ unit / (others.square().sum(1) - trace / self.n / 0.9).sqrt()
        return mean, square, trace, cosines.std() * 9 / math.sqrt(10)

    def row(self, method):
        """-> cosines on each prompt alone; cosine of a step of all three, its standard error (0: exact), ratio, s/n, longer."""
        listed = [listing(method, one) for one in self.ones]
        found = [expected(method, one, own) if own else None for one, own in zip(self.ones, listed)]
        cells = []
        for one, own in zip(self.ones, found):
            cells.append(cosine(own[0], one.gradient(one.reward)) if own else None)
        each = meet(method, self.batch)
        if each or method.settings.norm == "token" or None in found:
            mean, square, trace, error = self.estimate(method, 1 if each else self.n)
        else:
            mean = torch.stack([own[0] for own in found]).mean(0)
            square = mean.square().sum()
            trace = sum(own[1] for own in found) / len(found) ** 2
            error = 0.0
        gain = mean @ self.truth
        size = square.sqrt()
        completions = method.settings.num_samples * len(found)
        cells += [gain / self.truth.norm() / size, error, size / self.truth.norm()]
        return [*cells, size / (trace * completions / 128).sqrt(), mean @ self.longer / gain]


COLUMNS = ["method", *[f"cos at {p}" for p in PASS_RATES], "cos", "error", "ratio", "s/n", "longer"]


# What a row cannot be computed for, and why.
LEFT_OUT = {
    "distill": "needs a teacher",
    "echo": "needs the replies of an environment",
    "keep_sampling_mask": "needs the sets of tokens that top-p left",
    "self_distill": "its teacher reads a solution in the prompt, and this policy cannot",
}


def overrides(kind):
    """Whether the update of a method may be another than the default's."""
    same = kind.advantages is GRPO.advantages and kind.loss is GRPO.loss
    return not same or kind.Settings().norm != "token" or kind.Settings().scale != "std"


def shown(name, cells):
    return [name, *["" if cell is None else f"{cell:.3f}" for cell in cells]]


def tables():
    """All rows, in three bases -> the JSON object."""
    names = sorted(path.stem for path in METHODS.glob("*.py"))
    kinds = {name: find_class(f"{METHODS}/{name}.py", GRPO) for name in names}
    names = [name for name in names if overrides(kinds[name]) and name not in LEFT_OUT]
    worlds = [World(seed) for seed in range(3)]
    rows = []
    for name in ["", *names]:
        cells = [world.row(world.load(name)) for world in worlds]
        rows.append(shown(name or "default", cells[0]))
        print(*rows[-1], flush=True)
    left = {name: LEFT_OUT.get(name, "samples or picks") for name in kinds if name not in names}
    return {"columns": COLUMNS, "rows": rows, "left out": left}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "file", nargs="?", help="a method: its row, beside those of the default and of RLOO"
    )
    parser.add_argument("--write", action="store_true", help="keep all tables")
    args = parser.parse_args(argv)
    if args.write:
        kept = [sys.executable, "-m", "notebooks.kept", "--run", "atlas"]
        raise SystemExit(subprocess.call(kept))
    if not args.file:
        return print(json.dumps(tables()))
    world = World()
    print(*COLUMNS, sep="\t")
    for file in ("", "rloo", args.file):
        print(*shown(Path(file or "default").stem, world.row(world.load(file))), sep="\t")


if __name__ == "__main__":
    main()
