"""The conformance kit: its answers follow from the formulas, this project passes, and known mistakes are recognised by
name. Also the graders' kit."""

import json
import math
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from conftest import ROOT

KIT = ROOT / "notebooks" / "conformance"
sys.path[:0] = [str(KIT)]

import board
import check
from notebooks.conformance import broken
from notebooks.conformance.graders import run
from notebooks.look import keep

CASES = {case["name"]: case for case in check.read_cases()}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
one_number = pytest.mark.filterwarnings("ignore:.*degrees of freedom")


def adapter(name):
    return check.load_adapter(KIT / "adapters" / f"{name}.py")


@each_case
def test_a_case_can_be_understood_and_its_outputs_told_apart(case):
    assert all(len(case[text]) > 10 for text in ("tests", "derivation", "run"))
    known = [*case["answers"].items(), *case["mistakes"].items()]
    for number, (name, outputs) in enumerate(known):
        assert len(outputs) == len(case["calls"]), name
        for other, before in known[:number]:
            assert not check.same(outputs, before, case["tolerance"]), f"{name} is {other}"


# ---- The answers again, in fractions -------------------------------------------------------------


def ratio_of(logp, other):
    return Fraction(math.exp(logp - other)).limit_denominator(10**6)


def advantages(rewards):
    found = {"std with G": [], "std with G - 1": [], "not divided by a std": []}
    for row in rewards:
        centred = [Fraction(reward) - Fraction(sum(row), len(row)) for reward in row]
        squares = sum(number**2 for number in centred)
        for rows, divisor in zip(found.values(), (len(row), len(row) - 1, squares)):
            rows.append([float(number) / math.sqrt(squares / divisor) for number in centred])
    return found


def loss(logp, old_logp, advantages, mask, clip, micro_batches=None):
    lengths = [sum(row) for row in mask]
    divisors = {"token": [max(1, sum(lengths))] * len(mask), "sum": [len(mask)] * len(mask)}
    divisors["sequence"] = [len(mask) * max(1, length) for length in lengths]
    divisors["constant"] = [len(mask) * 8] * len(mask)
    found = {name: [] for name in divisors}
    for row, A in enumerate(advantages):
        ratios = [ratio_of(*pair) for pair in zip(logp[row], old_logp[row])]
        kept = [r * A <= min(max(r, 1 - clip[0]), 1 + clip[1]) * A for r in ratios]
        slopes = [-r * A * one for r, one in zip(ratios, mask[row])]
        for name, rows in found.items():
            rows.append([float(slope * k) / divisors[name][row] for slope, k in zip(slopes, kept)])
    return found


def correction(old_logp, sampled_logp, mask, level, how, low, high):
    rows = []
    for pairs in zip(old_logp, sampled_logp):
        rhos = [ratio_of(*pair) for pair in zip(*pairs)][:3]  # the fourth column is padding
        rhos = [math.prod(rhos)] * 3 if level == "sequence" else rhos
        bounds = {"truncate": [min(rho, high) for rho in rhos]}
        bounds["mask"] = [rho * (low <= rho <= high) for rho in rhos]
        rows.append([*map(float, bounds[how]), 0.0])
    return {"": rows}


def logprobs(logits, ids, temperature, top_p=1.0, top_k=0, num_tokens=None):
    found = [[] for _ in ids]
    for one, row in enumerate(ids):
        for numbers, token in zip(logits[one], row[1:]):
            weights = [ratio_of(logit / temperature, 0) for logit in numbers]
            kept = sorted(weights[:num_tokens], reverse=True)[: top_k or None]
            while top_p < 1 and sum(kept[:-1]) >= top_p * sum(weights):
                kept.pop()
            found[one].append(math.log(weights[token] / sum(kept)))
    return {"": found}


def kl(logp, ref_logp):
    d = logp[0][0] - ref_logp[0][0]
    return {"k1": [[d]], "k2": [[d * d / 2]], "k3": [[math.expm1(-d) + d]]}


OTHERS = [
    f"advantages: {name}"
    for name in ("equal rewards", "a group of one", "an equal group beside a mixed one")
]
OTHERS.append("log-probs: bf16")
FORMULAS = {one.__name__: one for one in (advantages, loss, correction, logprobs, kl)}
DERIVED = [name for name, case in CASES.items() if case["function"] in FORMULAS]


@pytest.mark.parametrize("name", [name for name in DERIVED if name not in OTHERS])
def test_the_answers_follow_from_the_formulas(name):
    case = CASES[name]
    derived = [FORMULAS[case["function"]](**call) for call in case["calls"]]
    answers = case["answers"]
    if len(answers) == 1:
        derived = [{[*answers][0]: [*one.values()][0]} for one in derived]
    shared = answers.keys() & derived[0]
    assert shared
    for name in shared:
        assert check.same([one[name] for one in derived], answers[name], 1e-9), name


# ---- This project --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the verifier or environment failed")
@each_case
def test_this_project_gives_the_right_answers(case):
    result = check.judge(adapter("this_project"), case)
    lists = case["name"] == "reward: a list of the wrong length"  # ours score one completion
    assert result.verdict == ("not offered" if lists else "ok"), result.what


@pytest.mark.parametrize("norm", ["sequence", "constant", "sum"])
def test_a_step_of_this_project_has_the_gradients_of_each_norm(norm):
    one = adapter("this_project")
    one.NORM = norm
    result = check.judge(one, CASES["step: with a KL"])
    assert (result.verdict, result.what) == ("ok", f"{norm}, std with G; k3")


# ---- Known mistakes ------------------------------------------------------------------------------


def standardise(rewards, dims, correction=0):
    centred = rewards - rewards.mean(dims, keepdim=True)
    return centred / (rewards.std(dims, keepdim=True, correction=correction) + 1e-8)


def across_prompts(rewards):
    return standardise(rewards.reshape(*rewards.T.shape), 0).reshape(rewards.shape)


def surrogate(gain):
    """Return a loss: minus the mean, over the tokens of the mask, of gain(ratio, A, clipped ratio), which is (B, T-1)."""

    def loss(logp, old_logp, advantages, mask, clip):
        ratio = (logp - old_logp).exp()
        values = gain(ratio, advantages[:, None], ratio.clamp(1 - clip[0], 1 + clip[1]))
        return -(values * mask).sum() / mask.sum()

    return loss


def not_pad(ids, prompt_lengths, stop_id, pad_id, tool_mask=None):
    behind = torch.arange(1, ids.size(1)) >= prompt_lengths[:, None]
    return (behind & (ids[:, 1:] != pad_id)).float()


def untempered(logits, ids, temperature, top_p=1.0, top_k=0, num_tokens=None):
    return logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)


def k3(logp, ref_logp):
    return (ref_logp - logp).exp() - 1 + logp - ref_logp


MUTANTS = [  # case, the name of the mistake, the adapter's function that makes it
    ("advantages: rows of a group", "groups are read across prompts", across_prompts),
    ("advantages: equal rewards", CASES["advantages: equal rewards"]["otherwise"], lambda rewards: standardise(rewards, 1)),
    ("advantages: a group of one", "NaN: the std of one number with G - 1", lambda rewards: standardise(rewards, 1, 1)),
    ("loss: micro-batches", "each micro-batch is divided by its own number of tokens", surrogate(lambda r, A, clipped: r * A)),
    ("mask: tokens of a tool", "the tool's tokens are trained", not_pad),
    ("log-probs: top-p", "over the whole vocabulary, although a part was sampled from", untempered),
    ("KL: k3 in fp32 at small differences", "exp(-d) - 1 loses a small d to rounding (use expm1)", k3),
    ("reward: cut off", "a completion that was cut off is rewarded", lambda text, truth, finished: 1.0),
    ("reward: a list of the wrong length", "one reward becomes that of all", lambda returned, count: torch.tensor(returned).expand(count)),
    ("grade: a number near by", "floats within 1e-6 are equal", lambda answer, truth: answer != "" and abs(float(answer) - float(truth)) < 1e-6),
    ("sampling: seed and row", "a row depends on the rows above it", lambda rows, steps, seed: torch.rand(len(rows), steps, generator=torch.Generator().manual_seed(seed))),
    ("sampling: after an update", "the sampler keeps the weights of the start", lambda lora: adapter("this_project").after_update(lora, broken.StaleSampler())),
]  # fmt: skip


@one_number
@pytest.mark.parametrize(("name", "mistake", "function"), MUTANTS)
def test_a_known_mistake_is_recognised_by_name(name, mistake, function):
    case = CASES[name]
    result = check.judge(SimpleNamespace(**{case["function"]: function}), case)
    assert (result.verdict, result.what) == ("MISTAKE", mistake)


RANKS = """
import torch

def step(model, reference, kl_coef, ids, mask, rewards, rank=None):
    if rank is not None:
        model = torch.nn.parallel.DistributedDataParallel(model).module  # does not see the pass
    logp = model(ids).logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)
    (-(advantages * logp * mask).sum() / mask.sum()).backward()
"""


def test_two_ranks_that_train_two_models_are_recognised(tmp_path):
    (tmp_path / "mine.py").write_text(RANKS)
    one = check.load_adapter(tmp_path / "mine.py")
    assert check.judge(one, CASES["step: the gradient"]).what == "token, not divided by a std"
    assert check.judge(one, CASES["step: two ranks"]).what == "each rank trains a model of its own"


# ---- The command ---------------------------------------------------------------------------------

MINE = """
def advantages(rewards):
    return [[reward - sum(group) / len(group) for reward in group] for group in rewards]

def extract(text):
    return text[:2] + text[100]

def kl(logp, ref_logp):
    return ref_logp - logp
"""


def test_two_files_in_an_empty_folder_judge_a_file_of_ones_own(tmp_path):
    for name in ("check.py", "vectors.json"):
        shutil.copy(KIT / name, tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    command = [sys.executable, "check.py", "mine.py", "--explain"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    assert "ok      advantages: std of the group: not divided by a std" in ran.stdout
    assert "MISTAKE extract: last, empty, nested: it raises IndexError: string index" in ran.stdout
    assert "MISTAKE KL: which estimator: k1 the other" in ran.stdout
    assert "by hand: d = 1/2: k2 = 1/8" in ran.stdout
    assert "-       loss: normalisation: not offered (loss)" in ran.stdout


def test_the_command_judges_this_project_wherever_it_is_started(tmp_path):
    command = [sys.executable, KIT / "check.py", KIT / "adapters" / "this_project.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and "59 ok, 0 wrong" in ran.stdout, ran.stderr


# ---- Others --------------------------------------------------------------------------------------

KEPT = json.loads((KIT / "verdicts.json").read_text(encoding="utf-8"))
CHAPTERS = ["Chapter9_5", "Rules", "Reasoning", "AutoRule", "Verifiers"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(KEPT.keys() - {*CHAPTERS})]


@one_number
@pytest.mark.parametrize("name", CHAPTERS + SLOW)
def test_a_project_gives_what_is_kept_of_it(name):
    """Another version may give other answers. Then make the board again (board.py)."""
    file = "chapters" if name in CHAPTERS else "peers"
    try:
        one = adapter(name if name == "trl_grpo" else f"{file}.py:{name}")
    except (ImportError, FileNotFoundError) as missing:
        pytest.skip(f"its package or checkout is not here: {missing}")
    assert KEPT[name]["cases"] == board.cases_of(one)
    assert KEPT[name]["project"] == one.__doc__.split(":")[0]


def test_9_5_reads_nan_and_no_fraction():
    """float("22/7") raises, so its own example is graded wrong; and 3.1428 is not 22/7 at any
    number of digits."""
    theirs, ours = (adapter(name).grade for name in ("chapters.py:Chapter9_5", "this_project"))
    assert not theirs("22/7", "44/14") and ours("22/7", "44/14")
    assert theirs("nan", "nan") and not ours("nan", "nan") and not ours("3.1428", "22/7")


CHECKOUT = """
import math
import vllm

@torch.compile
def standardise(rewards):
    return [(r - mean_of(rewards)) / math.sqrt(SCALE) for r in rewards]
"""


def test_a_function_of_a_file_that_cannot_be_imported_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "CHECKOUTS", tmp_path)
    (tmp_path / "theirs.py").write_text(CHECKOUT)
    theirs = board.functions("theirs.py", "standardise", SCALE=4, mean_of=min)
    assert theirs.standardise([1, 3]) == [0, 1]


def test_each_bug_shows_in_its_column_and_has_a_case_and_a_section():
    kept = keep.load("bugs")
    page = (ROOT / "notebooks" / "BUGS.md").read_text(encoding="utf-8")
    sections = re.split(r"^## \d+\. ", page, flags=re.M)[1:]
    for one, section in zip(broken.BROKEN, sections, strict=True):
        assert issubclass(getattr(broken, one.name), broken.GRPO) and one.case in CASES
        right, wrong = kept["curves"][one.name]
        assert right != wrong and f"**Log:** `{one.column}`" in section
        assert section.startswith(one.bug) and f"**Case:** `{one.case}`" in section
        flag = f"broken.py:{one.name} {one.flags.removeprefix(KL_METHOD)}".strip()
        assert f"**Flag:** `--method notebooks/conformance/{flag}`" in section
        assert re.search(r"\(https://github\.com/\S+\)", section)


KL_METHOD = "--method notebooks/methods/kl.py "


# ---- Graders -------------------------------------------------------------------------------------

THEIRS = f"{ROOT}/notebooks/conformance/graders/others.py:"


def test_the_answers_are_many_and_no_two_differ_in_numbers_alone():
    rows = [json.loads(line) for line in run.CASES.read_text().splitlines()]
    skeletons = {re.sub(r"\d+", "#", json.dumps([row | {"kind": 0}])) for row in rows}
    assert len(rows) == len(skeletons) == 1109
    assert {row["expect"] for row in rows} == {True, False} and len({r["kind"] for r in rows}) == 35


SUM = {"problem": "What is 2 + 3?", "gold": "5"}
ROWS = [
    {"gold": "0.5", "answer": r"\frac{1}{2}", "expect": True},
    {"gold": "5", "answer": [["9^", 3], ["9", 1]], "expect": False},
    {**SUM, "answer": "5", "expect": True},
    {**SUM, "answer": "2 + 3", "expect": False},
    {"gold": "5", "answer": "five", "expect": None},
]


def graded(folder, capsys, code, rows, *flags):
    """Return the exit status and the output for a grader with this code."""
    (folder / "mine_grader.py").write_text(f"def grade(answer, truth):\n    {code}")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cases = ["--cases", str(folder / "rows.jsonl")]
    return run.main([f"{folder}/mine_grader.py:grade", *flags, *cases]), capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "status", "counts"),
    [
        ("return True", 1, "2 of 4, 1, 0, 0, 1"),  # everything is accepted, even a copy
        ("return False", 0, "2 of 4, 0, 2, 0, 0"),
        ("1 / 0", 0, "0 of 4, 0, 0, 4, 0"),
        ("return 'torch' in __import__('sys').modules", 0, "2 of 4, 0, 2, 0, 0"),  # never imported
    ],
)
def test_every_answer_counts_once(code, status, counts, tmp_path, capsys):
    found, printed = graded(tmp_path, capsys, code, ROWS)
    assert (found, ", ".join(line[16:] for line in printed.splitlines()[1:6])) == (status, counts)


def test_a_grader_that_hangs_or_dies_is_ended_and_named(tmp_path, capsys):
    code = "while '9^9' in answer: pass\n    return answer != '2 + 3' or __import__('os')._exit(3)"
    _, printed = graded(tmp_path, capsys, code, ROWS, "--limit", "1")
    assert re.search(r"no verdict +2\n", printed) and "2 without reply" in printed
    assert "5 <- 9^9^9^9 (no reply, 1" in printed and "5 <- 2 + 3 (no reply" in printed


def test_a_reward_is_asked_where_there_is_a_question_or_a_whole_text(tmp_path, capsys):
    rows = [*ROWS[:-1], {"gold": "3", "completion": r"\boxed{4}, no \boxed{3}", "expect": True}]
    code = "return __import__('verifiers').grade_answer(answer, truth)"
    _, printed = graded(tmp_path, capsys, code, rows, THEIRS + "completion", "--show")
    assert re.search(r"right +4 of 5\n", printed) and "false reject    None: 5 <- 5 " in printed


def test_the_board_says_of_ours_what_the_command_says(capsys):
    kept = keep.load("graders")
    run.main(["verifiers.py:grade_answer", THEIRS + "this_project", "--keep", kept["rows"][0][0]])
    (line,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert line[:-1] == kept["rows"][0][:-1]  # all but the time
