"""atlas.py - a method's mean update, and how noisy it is, without training.

the row of your own method, in about twenty seconds:
    python -m notebooks.claims.atlas mine.py
the rows of all methods in methods/, in three worlds, as a JSON object; the
second command also saves them in results/tables.json and on the pages:
    python -m notebooks.claims.atlas
    python -m notebooks.look.keep atlas

A Qwen3 with 1,004 weights writes at most five tokens, of five kinds, so each
of three prompts has 1,365 completions. They can all be listed, so the gradient
of J, the mean reward, is a sum and not an estimate. A method's update is
sum_it c_it grad log pi(o_it),  c_it = -d loss / d log pi(o_it), by its own
`advantages`, `loss` and setting norm. Groups are listed by classes of
completions with equal rewards. If that is not enough, their lengths and ends
must be equal, too (a test on 200 groups decides). If the prompts of a step
interact (norm=token, a std of the batch), or if an advantage depends on more,
steps are sampled. Section 4 moves a policy: notebook 10 uses it for outdated
samplers and for whole paths of training.

    cos      cosine of the mean update and the gradient of J: 1 means no bias
    ratio    ratio of their lengths, which a learning rate can make up for
    s/n      |mean update| / sqrt(trace of its covariance), 128 completions
    longer   tokens by which wrong answers grow for each unit that J gains

Letters: N completions of a prompt, L tokens, V kinds of token, D weights,
P prompts, R = P*N rows, G completions of a group, n steps or groups,
K classes.
"""

import copy
import json
import math
import re
import sys
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.func import functional_call, jacrev, vmap
from torch.distributions import Binomial
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if it is started as a file

from appendix.plumbing import find_method
from model import Config, Qwen3
from notebooks.command import parser_of, run_command
from rlvr import GRPO, Batch, LossInputs, MicroBatch, Rollouts, loss_weights

METHODS = Path(__file__).resolve().parents[1] / "methods"
V = 5  # 0 is the stop
L = 5
PASS_RATES = (0.05, 0.3, 0.8)  # of the base, on each prompt
FORM_RATE = 0.3  # how often completions begin with token 4 and stop, which has nothing to do with the answer

# ---- 1. The world: every completion, its probability, its scores -----------------------------------

PREFIXES = [text for n in range(L) for text in product(range(1, V), repeat=n)]
COMPLETIONS = [(*text, 0) for text in PREFIXES] + [*product(range(1, V), repeat=L)]
NUMBER = {text: i for i, text in enumerate(PREFIXES)}
N = len(COMPLETIONS)


def padded(texts, width):
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])


def nodes_of(text):
    """Return the place of each token of a text in a table of all prefixes and tokens."""
    return [NUMBER[text[:t]] * V + token for t, token in enumerate(text)]


def answer_of(text):
    """Return the last token before the stop if another token precedes that token; else 0."""
    return text[-2] if len(text) > 2 and text[-1] == 0 else 0


TOKENS = padded(COMPLETIONS, L)  # (N, L)
NODES = padded([nodes_of(text) for text in COMPLETIONS], L)
LENGTHS = torch.tensor([len(text) for text in COMPLETIONS])
FINISHED = torch.tensor([text[-1] == 0 for text in COMPLETIONS])
MASK = (torch.arange(L) < LENGTHS[:, None]).double()
ENDS = torch.tensor([len(text) for text in PREFIXES])
ANSWERS = torch.tensor([answer_of(text) for text in COMPLETIONS])  # prompt k asks for k + 1
FORM = ((TOKENS[:, 0] == V - 1) & FINISHED).double()


def ids_of(prompt):
    return F.pad(padded(PREFIXES, L - 1), (1, 0), value=V + prompt)  # (prefixes, L)


def log_probs(model, prompt):
    """Return the log-probs of all completions: (N, L), 0 after the end."""
    logits = model(ids_of(prompt))[torch.arange(len(PREFIXES)), ENDS, :V]
    return logits.log_softmax(-1).flatten()[NODES] * MASK


def score_table(model, prompt):
    """Return the gradient of log pi for each prefix and token: (prefixes * V, D)."""

    def row(weights, ids, place):
        logits = functional_call(model, weights, (ids[None],))[0, :, :V]  # (L, V)
        return (logits * place[:, None]).sum(0).log_softmax(-1)

    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    places = F.one_hot(ENDS, L).double()
    with sdpa_kernel(SDPBackend.MATH):  # the kernel that vmap supports
        found = vmap(jacrev(row), (None, 0, 0), chunk_size=64)(weights, ids_of(prompt), places)
    return torch.cat([part.flatten(2) for part in found.values()], 2).flatten(0, 1)


def make_base(seed=0):
    """Make a policy with these pass rates. 30 % of right and of wrong completions begin with token 4 and stop."""
    torch.manual_seed(seed)
    # Vocabulary, hidden and inner size, layers, heads, key heads, size of a head.
    config = Config("qwen3", V + len(PASS_RATES), 12, 16, 1, 2, 1, 4, eos_token_id=0)
    config.num_tokens = V  # prompts have embeddings, but are never sampled
    model = Qwen3(config).double()
    wanted = torch.tensor([[p, FORM_RATE, p * FORM_RATE] for p in PASS_RATES]).double().logit()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=80, line_search_fn="strong_wolfe")

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
    """All completions of one or several prompts, one below the other."""

    prompts: list
    reward: torch.Tensor  # (R,)
    logp: torch.Tensor  # (R, L), of the policy
    sampled: torch.Tensor  # (R, L), of the sampler
    old: torch.Tensor  # (R, L), old_logp of the loss
    ref: torch.Tensor  # (R, L)
    scores: torch.Tensor  # (P * prefixes * V, D)

    def __post_init__(self):
        P = len(self.prompts)
        starts = torch.arange(P).repeat_interleave(N)[:, None] * len(PREFIXES) * V
        self.p = self.sampled.exp().prod(1)  # their sum is 1 for each prompt
        self.mask = MASK.repeat(P, 1)
        self.nodes = NODES.repeat(P, 1) + starts

    def each(self, c):
        """Return sum_t c_t grad log pi(o_t) of each row: c (R, L) -> (R, D)."""
        return torch.einsum("rl,rld->rd", c * self.mask, self.scores[self.nodes])

    def gradient(self, values):
        """Return the gradient (D,) of the mean of values (R,) over the policy's completions, summed over prompts."""
        return self.logp.exp().prod(1) * values @ self.each(self.mask)


@torch.no_grad()
def make_rows(policy, prompts, sampler=None, ref=None):
    """Make Rows with a reward of 1 for a right answer. Their old log-probs are the policy's."""
    parts = []
    for prompt in prompts:
        models = (policy, sampler or policy, policy, ref or policy)
        correct = (ANSWERS == prompt + 1).double()
        logps = [log_probs(model, prompt) for model in models]
        parts.append([correct, *logps, score_table(policy, prompt)])
    return Rows([*prompts], *(torch.cat(column) for column in zip(*parts)))


# ---- 2. A method's update: its own functions on every group ----------------------------------------


def batch_of(rows, picks, step=0):
    """Return the project's Batch of the rows picks (P, G)."""
    flat = picks.flatten()
    own = flat % N
    prompts = torch.tensor(rows.prompts)[flat // N]
    ids = torch.cat([V + prompts[:, None], TOKENS[own]], 1)
    places = torch.ones_like(flat), LENGTHS[own], FINISHED[own]
    sampled = rows.sampled[flat].float(), MASK[own].float()
    rollouts = Rollouts(ids, *places, *sampled, picks.size(1))
    texts = [rf"\boxed{{{answer}}}" for answer in ANSWERS[own].tolist()]
    terms = torch.stack([ANSWERS[own] == prompts + 1, FORM[own]], 1).tolist()
    parts = [dict(zip(("correct", "form"), row)) for row in terms]
    return Batch([{}] * len(picks), rollouts, texts, rows.reward[picks], parts, step=step)


def weights_of(method, mask):
    """Return loss weights (n, B, L) for n steps with masks (n, B, L). Each step has its own normaliser."""
    settings = method.settings
    return vmap(lambda step: loss_weights(step, settings.norm, settings.max_new_tokens))(mask)


def slopes(method, rows, picks, advantages, weights):
    """Return -d loss / d log pi (b, L) of the rows picks (b,). advantages: (b, 1 or L), weights: (b, L)."""
    logp = rows.logp[picks].requires_grad_()
    advantages = advantages * rows.mask[picks]
    micro = MicroBatch(None, None, torch.arange(len(picks)))
    inputs = LossInputs(micro, rows.old[picks], rows.sampled[picks], advantages, weights)
    method.ref_logp, method.mask = rows.ref[picks], rows.mask[picks]  # for kl.py: see before_update
    return -torch.autograd.grad(method.loss(logp, inputs), logp)[0]


def alone(method, rows, advantage):
    """Return the slopes (R, L) of each row as a step of its own."""
    advantages = torch.full((len(rows.p), 1), advantage).double()
    weights = weights_of(method, rows.mask[:, None])[:, 0]
    return slopes(method, rows, torch.arange(len(rows.p)), advantages, weights)


def draw(method, rows, n, chances):
    """Draw n steps (n, P, G) from rows with these chances (R,)."""
    G = method.settings.num_samples
    generator = torch.Generator().manual_seed(0)
    found = torch.multinomial(chances.view(-1, N), n * G, True, generator=generator)
    shift = N * torch.arange(len(rows.prompts))
    return (found.view(-1, n, G) + shift[:, None, None]).transpose(0, 1)


def credit(method, rows, picks):
    """Return the advantages of n steps (n, P, G), taken one by one, in a flat tensor, row after row."""
    batches = [batch_of(rows, some, step) for step, some in enumerate(picks)]
    return torch.cat([method.advantages(batch).flatten() for batch in batches]).double()


def sampled(method, rows, n):
    """Return the updates (n, D) of n sampled steps."""
    picks = draw(method, rows, n, rows.p)
    flat = picks.flatten()
    advantages = credit(method, rows, picks).view(len(flat), -1)
    weights = weights_of(method, rows.mask[picks.flatten(1)]).flatten(0, 1)
    c = slopes(method, rows, flat, advantages, weights).view(n, -1)
    table = c.new_zeros(n, len(rows.scores))
    return table.scatter_add(1, rows.nodes[flat].view(n, -1), c) @ rows.scores


def shares(method, rows, groups):
    """For groups (n, G) of one prompt, return (n, G): each row's advantage, times the ratio of its weight in the step
    to its weight alone."""
    advantages = credit(method, rows, groups[None]).view(groups.shape)
    together = weights_of(method, rows.mask[groups]).amax(2)
    by_itself = weights_of(method, rows.mask[:, None]).amax(2).flatten()
    return advantages * together / by_itself[groups]


def listing(method, rows):
    """List all groups of one prompt, by classes. Returns classes (R,), groups of classes (n, G) and their shares
    (n, G). Returns None if that is impossible, for example because groups of a step interact, tokens of a row have
    different advantages, or the loss is not linear in the advantages."""
    often = rows.reward + 0.05  # about as many right completions as wrong ones, of all kinds
    few = draw(method, rows, 200, often)[:, 0]
    together = credit(method, rows, few[None])
    apart = credit(method, rows, few[:, None])
    linear = torch.allclose(alone(method, rows, 0.5) * 2, alone(method, rows, 1.0))
    if not linear or len(together) > few.numel() or not torch.allclose(together, apart):
        return None
    for columns in ([rows.reward], [rows.reward, LENGTHS, FINISHED]):
        table = torch.stack([column.double() for column in columns], 1)
        kinds, classes = table.unique(dim=0, return_inverse=True)
        first = torch.stack([(classes == k).nonzero()[0, 0] for k in range(len(kinds))])
        likewise = first[classes[few]]
        if torch.allclose(shares(method, rows, likewise), shares(method, rows, few)):
            groups = torch.tensor([*combinations_with_replacement(range(len(kinds)), few.size(1))])
            return classes, groups, shares(method, rows, first[groups])
    return None


def expected(method, rows, listed):
    """Return the exact mean (D,) of the update of a step with G completions of one prompt, and the trace of its
    covariance."""
    classes, groups, share = listed
    members = F.one_hot(classes).T * rows.p  # (K, R)
    q = members.sum(1)
    counts = F.one_hot(groups, len(q)).sum(1).double()
    logp = (counts * q.log() - torch.lgamma(counts + 1)).sum(1)
    chances = (logp + math.lgamma(groups.size(1) + 1)).exp()  # (n,)

    # A row's update is its share times its update at an advantage of 1 or -1. Take means over each class.
    ways = [rows.each(alone(method, rows, sign)) for sign in (1.0, -1.0)]  # (R, D)
    members = members / q[:, None]
    means = torch.cat([members @ way for way in ways])  # (2K, D)
    spread = torch.cat([members @ way.square().sum(1) for way in ways]) - means.square().sum(1)
    side = groups + len(q) * (share < 0)
    pushes = share.new_zeros(len(groups), 2 * len(q)).scatter_add(1, side, share.abs()) @ means
    mean = chances @ pushes
    squares = pushes.square().sum(1) + (share.square() * spread[side]).sum(1)
    return mean, chances @ squares - mean.square().sum()


# ---- 3. Tables -------------------------------------------------------------------------------------


def length_of_wrong(one):
    """Return values (R,) whose gradient is the gradient of the mean length of wrong answers."""
    share = (1 - one.reward) / (one.p @ (1 - one.reward))
    return share * (LENGTHS - one.p @ (share * LENGTHS))


def methods():
    """Return the methods in methods/ as {name of the class: class}."""
    found = {}
    for path in sorted(METHODS.glob("*.py")):
        for name in re.findall(r"^class (\w+)\([\w, ]+\):", path.read_text(encoding="utf-8"), re.M):
            found[name] = find_method(GRPO, f"{path}:{name}")
    return found


def find(name):
    return methods()[name]


def ready(kind, policy, **settings):
    """Make a method of this class and set it up for the policy."""
    method = kind(max_new_tokens=L, **settings)
    method.setup(copy.deepcopy(policy), None)
    return method


class World:
    """A base, and the methods measured in it."""

    def __init__(self, seed=0, n=2000):
        self.n = n  # sampled steps
        self.policy = make_base(seed)
        prompts = range(len(PASS_RATES))
        self.ones = [make_rows(self.policy, [prompt]) for prompt in prompts]
        self.batch = make_rows(self.policy, prompts)
        self.truths = torch.stack([one.gradient(one.reward) for one in self.ones])
        self.truth = self.truths.mean(0)
        self.longer = sum(one.gradient(length_of_wrong(one)) for one in self.ones) / len(prompts)

    def estimate(self, method):
        """Estimate from sampled steps: the mean (D,), its squared length, the trace of the covariance, and the standard
        error of the cosine."""
        updates = sampled(method, self.batch, self.n)
        mean = updates.mean(0)
        trace = updates.var(0).sum()
        others = (10 * mean - updates.view(10, -1, len(mean)).mean(1)) / 9  # a jackknife
        lengths = (others.square().sum(1) - trace / self.n / 0.9).sqrt()  # minus what noise adds
        cosines = others @ F.normalize(self.truth, dim=0) / lengths
        return mean, mean.square().sum() - trace / self.n, trace, cosines.std() * 9 / math.sqrt(10)

    def row(self, method):
        """Return the numbers of COLUMNS; a number that is not known is None."""
        listed = [listing(method, one) for one in self.ones]
        cells = [None] * len(listed)
        if None not in listed:
            found = [expected(method, *pair) for pair in zip(self.ones, listed)]
            means = torch.stack([mean for mean, _ in found])
            cells = F.cosine_similarity(means, self.truths).tolist()
        if None in listed or method.settings.norm == "token":
            mean, square, trace, error = self.estimate(method)
        else:
            mean = means.mean(0)
            square = mean.square().sum()
            trace = sum(trace for _, trace in found) / len(found) ** 2
            error = 0.0
        ratio = square.sqrt() / self.truth.norm()
        gain = mean @ self.truth
        cos = gain / self.truth.square().sum() / ratio
        signal = (square / trace * 128 / method.settings.num_samples / len(listed)).sqrt()
        return [*cells, cos, error, ratio, signal, mean @ self.longer / gain]


# ---- 4. Policies that move: older samplers, whole paths --------------------------------------------


def gradient_of(value, policy):
    parts = torch.autograd.grad(value, [*policy.parameters()], retain_graph=True)
    return parameters_to_vector(parts)


@torch.no_grad()
def move(policy, vector):
    vector_to_parameters(parameters_to_vector(policy.parameters()) + vector, policy.parameters())


def two_sides(method, rows):
    """Return (2, G): the advantage of a right completion, and of a wrong one of the same length, in a group with 0 to
    G - 1 other right completions."""
    G = method.settings.num_samples
    long = rows.mask.sum(1) == 3
    good, bad = ((long & (rows.reward == value)).nonzero()[0] for value in (1, 0))
    groups = torch.stack([torch.cat([good] * c + [bad] * (G - c)) for c in range(G + 1)])
    A = credit(method, rows, groups[:, None]).view(G + 1, G)
    return torch.stack([A[1:, 0], A[:-1, -1]])


def mean_advantages(table, p):
    """Return E[A | right] and E[A | wrong] at pass rate p, from the table of two_sides."""
    others = Binomial(table.size(1) - 1, torch.as_tensor(p).double())
    return table @ others.log_prob(torch.arange(table.size(1)).double()).exp()


def mean_update(method, table, rows, policy, logp):
    """Return the mean update (D,) of a method that only sees rewards of 0 and 1, and so has the advantages of
    two_sides."""
    P = len(rows.prompts)
    rates = (rows.p * rows.reward).view(P, N).sum(1)
    sides = torch.stack([mean_advantages(table, rate) for rate in rates]).abs()  # (P, 2)
    right, wrong = sides.repeat_interleave(N, 0)[:, :, None].unbind(1)  # (R, 1) each
    pushed = right * alone(method, rows, 1.0)
    c = torch.where(rows.reward[:, None] > 0, pushed, wrong * alone(method, rows, -1.0))
    return gradient_of((rows.p[:, None] * c * logp).sum() / P, policy)


def follow(method, base, every=1, steps=48, gain=0.02):
    """Make mean updates, one after the other. Returns log-probs (R, L) at each step. Samples are new after `every`
    steps. The learning rate is such that the first step raises J by `gain`, to first order."""
    policy = copy.deepcopy(base)
    P = len(PASS_RATES)
    reward = torch.cat([ANSWERS == prompt + 1 for prompt in range(P)]).double()
    table = two_sides(method, make_rows(base, range(P)))
    trail = []
    for step in range(steps + 1):
        logp = torch.cat([log_probs(policy, prompt) for prompt in range(P)])
        now = logp.detach()
        if step % every == 0:
            then = now
        trail.append(now)
        rows = Rows([*range(P)], reward, now, then, now, now, None)
        update = mean_update(method, table, rows, policy, logp)
        if step == 0:
            rate = gain / (update @ gradient_of(logp.sum(1).exp() @ reward / P, policy))
        move(policy, rate * update)
    return trail


# ---- 5. The command --------------------------------------------------------------------------------

COLUMNS = ["method", *[f"cos at {p}" for p in PASS_RATES], "cos", "error", "ratio", "s/n", "longer"]
# Distill and KeepSamplingMask need more than rewards, and KL and KLCap need a reference other than the policy. The
# other methods in this list only pick different problems.
LEFT_OUT = ["Distill", "KeepSamplingMask", "KL", "KLCap", "Curriculum", "Stratified", "SkipSolved"]


def shown(name, cells):
    return [name, *["" if cell is None else f"{cell:.3f}" for cell in cells]]


def kinds_that_differ():
    """Return the default, and the methods whose update can differ from the default's."""
    kinds = {"default": GRPO}
    for name, kind in methods().items():
        same = kind.advantages is GRPO.advantages and kind.loss is GRPO.loss
        if name not in LEFT_OUT and not (same and kind.Settings().norm == "token"):
            kinds[name] = kind
    return kinds


def tables():
    """Return the table of the methods that differ, with the cosine in two more worlds."""
    worlds = [World(0), World(1, n=1000), World(2, n=1000)]
    rows = []
    for name, kind in kinds_that_differ().items():
        cells, *others = [world.row(ready(kind, world.policy)) for world in worlds]
        rows.append(shown(name, [*cells, *[other[3] for other in others]]))
        print(*rows[-1], flush=True)
    straight = [row for row in rows if all(float(row[i]) >= 0.985 for i in (4, -2, -1))]
    said = {"straight": f"{len(straight)} of {len(rows)}"}
    return {"columns": [*COLUMNS, "cos, world 2", "cos, world 3"], "rows": rows, "sentences": said}


def main(argv=None):
    parser = parser_of(__doc__)
    parser.add_argument("files", nargs="*", help="your own methods: FILE.py or FILE.py:CLASS")
    files = parser.parse_args(argv).files
    if not files:
        print(json.dumps(tables()))
        return
    kinds = {"default": GRPO} | {file: find_method(GRPO, file) for file in files}
    world = World()
    titles = COLUMNS[1:]
    print("  ".join(titles))
    for name, kind in kinds.items():
        _, *cells = shown(name, world.row(ready(kind, world.policy)))
        print(name)
        print("  ".join(cell.rjust(len(title)) for cell, title in zip(cells, titles)))


if __name__ == "__main__":
    run_command(main)
