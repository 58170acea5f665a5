"""The conformance kit: its file is current, this project passes, and known mistakes are recognised by name."""

import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from conftest import ROOT

KIT = ROOT / "notebooks" / "conformance"
sys.path[:0] = [str(KIT)]

import check
import make_vectors
from keep_verdicts import cases_of
from notebooks.conformance import broken

CASES = {case["name"]: case for case in check.read_cases()}


def adapter(name):
    return check.load_adapter(KIT / "adapters" / f"{name}.py")


# ---- The file ------------------------------------------------------------------------------------


def test_vectors_json_is_what_make_vectors_writes():
    assert (KIT / "vectors.json").read_text(encoding="utf-8") == make_vectors.as_text()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_can_be_understood_and_its_outputs_told_apart(case):
    for text in ("tests", "derivation", "run"):
        assert len(case[text]) > 10, text
    known = [*case["answers"].items(), *case["mistakes"].items()]
    for number, (name, outputs) in enumerate(known):
        assert len(outputs) == len(case["calls"]), name
        for other, others in known[:number]:
            alike = check.same(check.numbers(outputs), others, case["tolerance"])
            assert not alike, f"{name} and {other} give the same"


# ---- This project --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the verifier failed")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_this_project_gives_the_answers_that_plain_python_derives(case):
    result = check.judge(adapter("this_project"), case)
    lists = (
        case["name"] == "reward: a list of the wrong length"
    )  # a reward here is of one completion
    assert result.verdict == ("not offered" if lists else "ok"), result.what


@pytest.mark.parametrize("norm", ["token", "sequence", "constant", "sum"])
def test_a_step_of_this_project_has_the_gradients_of_each_norm(norm):
    one = adapter("this_project")
    one.NORM = norm
    for name, kl in (("step: the gradient", ""), ("step: with a KL", "; k3")):
        result = check.judge(one, CASES[name])
        assert (result.verdict, result.what) == ("ok", f"{norm}, std with G{kl}")


# ---- Known mistakes ------------------------------------------------------------------------------


def standardise(rewards, dims, correction=0, eps=1e-8):
    centred = rewards - rewards.mean(dims, keepdim=True)
    return centred / (rewards.std(dims, keepdim=True, correction=correction) + eps)


def across_prompts(rewards):
    P, G = rewards.shape
    return standardise(rewards.reshape(G, P), 0).reshape(P, G)


def surrogate(gain):
    """A loss out of gain(ratio, A, clip) -> (B, T-1); the mean over the tokens of the mask."""

    def loss(logp, old_logp, advantages, mask, clip):
        A = advantages[:, None]
        values = gain((logp - old_logp).exp(), A, clip) * mask
        return -values.sum() / mask.sum()

    return loss


def clipped(ratio, clip):
    return ratio.clamp(1 - clip[0], 1 + clip[1])


def minimum(ratio, A, clip):
    return torch.minimum(ratio * A, clipped(ratio, clip) * A)


def maximum(ratio, A, clip):
    return torch.maximum(ratio * A, clipped(ratio, clip) * A)


def padded_mean(logp, old_logp, advantages, mask, clip):
    """The mean over all columns, padding too."""
    return -((logp - old_logp).exp() * advantages[:, None] * mask).mean()


def mean_of_means(logp, old_logp, advantages, mask, clip):
    """Without a clamp an empty completion has 0 / 0."""
    gain = ((logp - old_logp).exp() * advantages[:, None] * mask).sum(1) / mask.sum(1)
    return -gain.mean()


def masks(is_trained):
    """A completion_mask out of is_trained(row, place, start, stop_id, pad_id) -> bool."""

    def completion_mask(ids, prompt_lengths, stop_id, pad_id, tool_mask=None):
        rows = []
        for row, start in zip(ids.tolist(), prompt_lengths.tolist()):
            places = range(1, len(row))
            rows.append([float(is_trained(row, place, start, stop_id, pad_id)) for place in places])
        return torch.tensor(rows)

    return completion_mask


def end_of(row, start, stop):
    return row.index(stop, start) if stop in row[start:] else len(row) - 1


def not_pad(row, place, start, stop, pad):
    return place >= start and row[place] != pad


def all_behind_the_prompt(row, place, start, stop, pad):
    return place >= start


def stop_in_the_prompt(row, place, start, stop, pad):
    return start <= place <= end_of(row, 0, stop)


def pads_not_counted(row, place, start, stop, pad):
    left = next(index for index, token in enumerate(row) if token != pad)
    return start - left <= place <= end_of(row, start - left, stop)


def longest_prompt(ids, prompt_lengths, stop_id, pad_id):
    longest = prompt_lengths.max().expand_as(prompt_lengths)
    right = masks(lambda row, place, start, stop, pad: start <= place <= end_of(row, start, stop))
    return right(ids, longest, stop_id, pad_id)


def untempered(logits, ids, temperature, top_p=1.0, top_k=0, num_tokens=None):
    logp = logits.log_softmax(-1)[:, :-1]
    return logp.gather(2, ids[:, 1:, None]).squeeze(2).float()


def not_shifted(logits, ids, temperature):
    return (logits / temperature).log_softmax(-1)[:, 1:].gather(2, ids[:, 1:, None]).squeeze(2)


def k3(logp, ref_logp):
    d = logp - ref_logp
    return (-d).exp() - 1 + d


def box_of(text, last):
    start = (text.rfind if last else text.find)("\\boxed{")
    end = text.find("}", start)
    return text[start + 7 : end] if start >= 0 and end >= 0 else None


def earlier_box(text, truth, finished):
    """The last box that is closed."""
    closed = [part.partition("}") for part in text.split("\\boxed{")[1:]]
    answers = [answer for answer, brace, _ in closed if brace]
    return float(bool(answers) and answers[-1] == truth)


def within_1e6(answer, truth):
    return answer == truth or bool(answer) and abs(float(answer) - float(truth)) < 1e-6


def search_left(logits, uniforms, temperature):
    cdf = (logits / temperature).softmax(-1).cumsum(-1)
    return torch.searchsorted(cdf, uniforms[:, None]).squeeze(1)


def sum_of_question(text, truth, finished):
    """Pays whatever has the right value, a question too."""
    numbers = text[7:-2].replace("-", "+-").split("+")
    return float(sum(map(int, numbers)) == int(truth))


def one_generator(rows, steps, seed):
    return torch.rand(len(rows), steps, generator=torch.Generator().manual_seed(seed))


def corrected(bound=torch.clamp, power=1, always=None, padding=False):
    """A correction with one mistake; bound(rho, low, high)."""

    def correction(old_logp, sampled_logp, mask, level, how, low, high):
        log_rho = power * (old_logp - sampled_logp)
        if (always or level) == "sequence":
            log_rho = (log_rho if padding else log_rho * mask).sum(1, keepdim=True)
        return bound(log_rho.exp(), low, high)

    return correction


def left_out(rho, low, high):
    return rho * ((rho >= low) & (rho <= high))


def trust_region(stops):
    """DPPO, where stops(pi - pi_s, ratio, A, delta) says which tokens have no gradient."""

    def loss(logp, sampled_logp, advantages, mask, delta):
        ratio = (logp - sampled_logp).exp()
        moved = (logp.exp() - sampled_logp.exp()).detach()
        A = advantages[:, None]
        return -(~stops(moved, ratio.detach(), A, delta) * ratio * A * mask).sum()

    return loss


def mean_of_the_rows_with_a_signal(logp, old_logp, advantages, mask, clip):
    gain = (logp - old_logp).exp() * advantages[:, None] * mask
    return -gain.sum() / (mask * (advantages != 0)[:, None]).sum()


def conversation(again=False, reply_trained=0):
    """Two turns; again: the first is kept as text, and encoded once more."""

    def turns(prompt, sampled, replies, tokenizer):
        first, second = sampled
        first = tokenizer.encode(tokenizer.decode(first)) if again else first
        reply = tokenizer.encode(replies[0])
        mask = [1] * len(first) + [reply_trained] * len(reply) + [1] * len(second)
        return [*prompt, *first, *reply, *second], mask

    return turns


def mask_not_used(model, ids, attention_mask):
    logp = model(ids).logits.log_softmax(-1)[:, :-1]
    return logp.gather(2, ids[:, 1:, None]).squeeze(2)


def without_the_kl(model, reference, kl_coef, ids, mask, rewards):
    adapter("this_project").step(model, None, 0.0, ids, mask, rewards)


EQUAL = "a rounding error of the mean is divided by a tiny std, and becomes a signal"
MUTANTS = [  # case, the name by which it must be recognised, the function of the adapter
    ("advantages: std of the group", "normalised over the batch, not the group", lambda rewards: standardise(rewards, (0, 1))),
    ("advantages: std of the group", "no baseline: the rewards themselves", lambda rewards: rewards),
    ("advantages: rows of a group", "groups are read across prompts", across_prompts),
    ("advantages: equal rewards", EQUAL, lambda rewards: standardise(rewards, 1)),
    ("advantages: a group of one", "NaN: the std of one number with G - 1", lambda rewards: standardise(rewards, 1, 1)),
    ("advantages: a verifier that returns NaN", "the whole group is NaN", lambda rewards: standardise(rewards, 1)),
    ("loss: the first update", "no gradient: the ratio is computed without one", surrogate(lambda r, A, clip: minimum(r.detach(), A, clip))),
    ("loss: the first update", "the sign is reversed", surrogate(lambda r, A, clip: -minimum(r, A, clip))),
    ("loss: clip at both signs", "max for min: clipped on the wrong side", surrogate(maximum)),
    ("loss: clip at both signs", "clipped ratio without the min", surrogate(lambda r, A, clip: clipped(r, clip) * A)),
    ("loss: clip at both signs", "negative advantages are clipped on the wrong side", surrogate(lambda r, A, clip: A * torch.minimum(r, clipped(r, clip)) if A > 0 else maximum(r, A, clip))),
    ("loss: clip at both signs", "not clipped", surrogate(lambda r, A, clip: r * A)),
    ("loss: three updates", "the ratio is always 1", surrogate(lambda r, A, clip: r / r.detach() * A)),
    ("loss: three updates", "the ratio is inverted", surrogate(lambda r, A, clip: minimum(1 / r, A, (0.2, 0.2)))),
    ("loss: clip-higher", "the low one is used for both", surrogate(lambda r, A, clip: minimum(r, A, (0.2, 0.2)))),
    ("loss: clip-higher", "low and high are exchanged", surrogate(lambda r, A, clip: minimum(r, A, clip[::-1]))),
    ("loss: normalisation", "padding counts in the mean", padded_mean),
    ("loss: an empty completion", "NaN: 0 / 0", mean_of_means),
    ("loss: micro-batches", "each micro-batch is divided by its own number of tokens", surrogate(minimum)),
    ("loss: groups without signal", "NaN: a batch without signal is 0 / 0", mean_of_the_rows_with_a_signal),
    ("loss: trust region on probabilities", "a clip of ratios", trust_region(lambda moved, ratio, A, delta: A * (ratio - 1) > delta)),
    ("loss: trust region on probabilities", "what comes back is stopped too", trust_region(lambda moved, ratio, A, delta: moved.abs() > delta)),
    ("loss: trust region on probabilities", "only what comes back is stopped", trust_region(lambda moved, ratio, A, delta: -A * moved > delta)),
    ("loss: trust region on probabilities", "nothing stops", trust_region(lambda moved, ratio, A, delta: ratio < 0)),
    ("correction: of a token, truncated", "the ratio is inverted", corrected(power=-1)),
    ("correction: of a token, truncated", "of the completion", corrected(always="sequence")),
    ("correction: of a token, truncated", "left out, not truncated", corrected(left_out)),
    ("correction: of a token, masked", "clamped on both sides, not left out", corrected()),
    ("correction: of a completion, truncated", "padding is a part of the product", corrected(padding=True)),
    ("correction: of a completion, truncated", "no bound", corrected(lambda rho, low, high: rho)),
    ("correction: of a completion, masked", "of the token", corrected(left_out, always="token")),
    ("mask: the pad is the stop token", "the stop token is never trained", masks(not_pad)),
    ("mask: the pad is the stop token", "padding is trained", masks(all_behind_the_prompt)),
    ("mask: a stop in the middle", "what follows the stop is trained", masks(not_pad)),
    ("mask: a stop in the prompt", "the stop is looked for in the prompt too", masks(stop_in_the_prompt)),
    ("mask: prompts of different lengths, padded on the right", "the longest prompt's length is used for all", longest_prompt),
    ("mask: prompts padded on the left", "the padding on the left is not counted", masks(pads_not_counted)),
    ("mask: tokens of a tool", "the tool's tokens are trained", masks(not_pad)),
    ("mask: turns are not tokenised again", "what was sampled is tokenised again", conversation(again=True)),
    ("mask: turns are not tokenised again", "the reply is trained", conversation(reply_trained=1)),
    ("log-probs: padding on the left", "the padding is attended to", mask_not_used),
    ("log-probs: temperature", "at temperature 1, although 0.5 was sampled at", untempered),
    ("log-probs: off by one", "logits and tokens are off by one", not_shifted),
    ("log-probs: top-p", "over the whole vocabulary, although a part was sampled from", untempered),
    ("log-probs: top-k", "over the whole vocabulary, although a part was sampled from", untempered),
    ("log-probs: padded vocabulary", "ids that are no tokens take part", untempered),
    ("log-probs: bf16", "the softmax is not taken in fp32", untempered),
    ("KL: which estimator", "k3 the other way round", lambda logp, ref_logp: k3(ref_logp, logp)),
    ("KL: which estimator", "k1 the other way round", lambda logp, ref_logp: ref_logp - logp),
    ("KL: gradient", "k1 in the loss: the gradient is 1 wherever the reference is", lambda logp, ref_logp: torch.ones_like(logp)),
    ("KL: gradient", "the sign is reversed: away from the reference", lambda logp, ref_logp: (ref_logp - logp).exp() - 1),
    ("KL: gradient", "of k3 the other way round: exp(d) - 1", lambda logp, ref_logp: (logp - ref_logp).exp() - 1),
    ("KL: k3 in fp32 at small differences", "exp(-d) - 1 loses a small d to rounding (use expm1)", k3),
    ("reward: cut off", "a completion that was cut off is paid", lambda text, truth, finished: 1.0),
    ("reward: the last box", "the first box counts", lambda text, truth, finished: float(box_of(text, False) == truth)),
    ("reward: a broken last box", "an earlier box counts if the last one is broken", earlier_box),
    ("reward: copying the question", "a copy of the question is paid", sum_of_question),
    ("reward: a list of the wrong length", "one reward becomes that of all", lambda returned, count: torch.tensor(returned).expand(count)),
    ("reward: a list of the wrong length", "a list that is too long is cut", lambda returned, count: [returned[row] for row in range(count)] if len(returned) >= count else 1 / 0),
    ("reward: a list of the wrong length", "no length is looked at", lambda returned, count: returned),
    ("reward: a list of the wrong length", "what is missing is 0", lambda returned, count: (returned + [0.0] * count)[:count]),
    ("extract: last, empty, nested", "the first box, up to the first }", lambda text: box_of(text, False)),
    ("extract: last, empty, nested", "the last box, up to the first }", lambda text: box_of(text, True)),
    ("reward: nested braces and an empty box", "a right answer with braces in it is not paid", lambda text, truth, finished: float(box_of(text, True) == truth)),
    ("grade: two spellings", "compared as text", lambda answer, truth: answer == truth),
    ("grade: a number near by", "floats within 1e-6 are equal", within_1e6),
    ("sampling: the distribution", "the temperature is not used", lambda logits, uniforms, temperature: search_left(logits, uniforms, 1.0)),
    ("sampling: tokens of probability 0", "u = 0 picks the first token", search_left),
    ("sampling: seed and row", "a row depends on the rows above it", one_generator),
    ("sampling: seed and row", "all rows are the same", lambda rows, steps, seed: one_generator([0], steps, seed).repeat(len(rows), 1)),
    ("sampling: seed and row", "the seed is not used", lambda rows, steps, seed: torch.stack([one_generator([0], steps, row)[0] for row in rows])),
    ("sampling: after an update", "the sampler keeps the weights of the start", lambda lora: adapter("this_project").after_update(lora, broken.StaleSampler())),
    ("sampling: after an update of LoRA", "the sampler keeps the weights of the start", lambda lora: adapter("this_project").after_update(lora, type("Mine", (broken.StaleSampler, adapter("this_project").LoRA), {})())),
    ("step: with a KL", "no KL; token, std with G", without_the_kl),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(
    ("name", "mistake", "function"),
    MUTANTS,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_known_mistake_is_recognised_by_name(name, mistake, function):
    case = CASES[name]
    result = check.judge(SimpleNamespace(**{case["function"]: function}), case)
    assert (result.verdict, result.what) == ("MISTAKE", mistake)


def test_every_case_has_a_mutant_but_those_without_a_mistake_and_the_one_below():
    without = {"sampling: the prompt is read once", "step: the gradient", "step: two ranks"}
    assert {name for name, _, _ in MUTANTS} == CASES.keys() - without


RANKS = """
import torch

def step(model, reference, kl_coef, ids, mask, rewards, rank=None):
    if rank is not None:
        model = torch.nn.parallel.DistributedDataParallel(model){module}
    logp = model(ids).logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)
    (-(advantages * logp * mask).sum() / mask.sum()).backward()
"""


RANK_MISTAKES = {
    ".module": "each rank trains a model of its own",  # so DDP does not see the forward pass
    "": "the ranks' own means are averaged, or their gradients added",
}


@pytest.mark.parametrize("module", RANK_MISTAKES)
def test_a_mistake_of_two_ranks_is_recognised(module, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(RANKS.replace("{module}", module))
    results = check.check(
        check.load_adapter(path), [CASES["step: the gradient"], CASES["step: two ranks"]]
    )
    assert [result.what for result in results] == [
        "token, not divided by a std",
        RANK_MISTAKES[module],
    ]


# ---- The command ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_what_is_a_choice_is_reported_and_what_is_missing_is_no_mistake():
    def advantages(rewards):
        return standardise(rewards, 1, correction=1)

    one = SimpleNamespace(advantages=advantages)
    results = {result.case["name"]: result for result in check.check(one)}
    assert results["advantages: std of the group"].what == "std with G - 1"
    assert results["advantages: std of the group"].verdict == "ok"
    assert results["KL: gradient"].verdict == "not offered"


def test_an_exception_is_one_wrong_case():
    def extract(text):
        return text[:2] + text[100]

    case = CASES["extract: last, empty, nested"]
    result = check.judge(SimpleNamespace(extract=extract), case)
    assert result.what == "it raises IndexError: string index out of range"


def test_the_command_names_the_mistake_and_fails(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("def kl(logp, ref_logp):\n    return ref_logp - logp\n")
    assert check.main([str(path), "--explain"]) == 1
    printed = capsys.readouterr().out
    assert "MISTAKE KL: which estimator: k1 the other way round" in printed
    assert "0 ok, 2 wrong" in printed
    path.write_text("def kl(logp, ref_logp):\n    return logp - ref_logp\n")
    assert check.main([str(path)]) == 0


def test_the_command_needs_nothing_but_torch(tmp_path):
    """An adapter of somebody else's, in a Python that does not find this project."""
    path = tmp_path / "mine.py"
    path.write_text("def kl(logp, ref_logp):\n    return logp - ref_logp\n")
    code = "import runpy, sys; sys.argv[1:] = [sys.argv[2]]; runpy.run_path(sys.argv[0], run_name='__main__')"
    code = code.replace("sys.argv[0]", repr(str(KIT / "check.py")))
    command = [sys.executable, "-c", code, "", str(path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and "2 ok, 0 wrong" in ran.stdout, ran.stderr


def test_the_command_judges_this_project_wherever_it_is_started(tmp_path):
    command = [sys.executable, KIT / "check.py", KIT / "adapters" / "this_project.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and "52 ok, 0 wrong" in ran.stdout, ran.stderr


# ---- Others --------------------------------------------------------------------------------------


KEPT = json.loads((KIT / "verdicts.json").read_text(encoding="utf-8"))
CHAPTERS = ["Chapter9_5", "Rules", "Reasoning", "AutoRule", "Verifiers"]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", CHAPTERS)
def test_what_is_kept_of_the_chapters_is_what_their_adapters_give(name):
    one = check.load_adapter(KIT / "adapters" / f"chapters.py:{name}")
    assert KEPT[name]["cases"] == cases_of(one)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KEPT.keys() - {*CHAPTERS}))
def test_a_project_gives_what_is_kept_of_it(name):
    """With another version the answers may be others: then the page has to be written anew."""
    try:
        one = adapter(name)
    except (ImportError, FileNotFoundError) as missing:
        pytest.skip(f"its package or checkout is not here: {missing}")
    assert KEPT[name]["cases"] == cases_of(one)


REPORTS = (KIT / "UPSTREAM.md").read_text(encoding="utf-8").split("\n## ")[1:]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.split(":")[0])
def test_a_report_for_upstream_is_short_and_its_reproduction_prints_what_it_says(report, capsys):
    assert len(report.strip().splitlines()) <= 25
    code, said = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", report, re.DOTALL).groups()
    assert set(re.findall(r"import (\w+)", code)) == {"torch"}
    exec(code, {})
    assert capsys.readouterr().out == said


def test_each_run_that_is_broken_on_purpose_has_a_class_a_curve_and_a_case():
    curves = json.loads((KIT / "curves.json").read_text())
    classes = {name for name, value in vars(broken).items() if hasattr(value, "__mro__")}
    classes = {name for name in classes if getattr(broken, name).__module__ == broken.__name__}
    assert {one.name for one in broken.BROKEN} == classes - {"Broken"}
    for one in broken.BROKEN:
        assert one.case in CASES
        right = curves[f"right {one.flags}".strip()]
        wrong = curves[one.name]
        assert wrong.get(one.column) and wrong[one.column] != right.get(one.column)


def test_nan_is_equal_to_nan_and_to_nothing_else():
    assert check.same([math.nan, 1.0], ["nan", 1], 1e-4)
    assert not check.same([0.0, 1.0], ["nan", 1], 1e-4)
    assert not check.same([math.nan], [1], 1e-4)
