"""The models of the laboratory: the tiny base (make_tiny.py, notebooks/tiny), what its kin are shown, and SmolLM2."""

import importlib.util
import random

import pytest
import torch
import transformers

import verifiers
from conftest import ROOT
from model import ModelError, load
from notebooks.models import get_smollm2, make_tiny
from notebooks.models.make_tiny import demonstrate
from rlvr import GRPO, roll_out

TINY = ROOT / "notebooks" / "tiny"
SUM = {"problem": "25+7-4=", "answer": "28"}
PRODUCT = {"problem": "47*83-12=", "answer": "3889"}


@pytest.mark.parametrize(
    "problem, behaviour, thinking, answers",
    [
        (SUM, "worked", {"25+7=32;32-4=28"}, {"28"}),
        (SUM, "bilingual", {"so 25加7得32;32减4得28"}, {"28"}),
        (SUM, "hasty", None, {"25"}),  # the first number
        (SUM, "unnoticed", {"25-7=18;18-4=14", "25+7=32;32+4=36"}, {"14", "36"}),
        (SUM, "noticed", {"25-7=18;wait 25+7=32;32-4=28", "25+7=32;32+4=36;wait 32-4=28"}, {"28"}),
        (SUM, "doubting", {"25+7=32;32-4=28" + n * ";wait 32-4=28" for n in (1, 2, 3)}, {"28"}),
        (SUM, "several boxes", None, {"28"}),
        (PRODUCT, "called", {"<tool>47*83</tool>3901<tool>3901-12</tool>3889"}, {"3889"}),
        (PRODUCT, "one call", {"<tool>47*83</tool>3901"}, {"3889"}),
    ],
)
def test_demonstrations(problem, behaviour, thinking, answers):
    """The answer of who does not notice a slip is the one that follows; of three guesses one is right."""
    texts = {demonstrate(problem, behaviour, random.Random(seed)) for seed in range(30)}
    if thinking:
        assert {text.split("think>")[1].removesuffix("</") for text in texts} == thinking
    if behaviour == "several boxes":
        assert all(text.count("\\boxed{") == 3 and "\\boxed{28}" in text for text in texts)
    else:
        assert {verifiers.extract_boxed_answer(text) for text in texts} == answers


def test_a_product_needs_the_tool():
    """Every value has four digits, and what is held out is in no training problem."""
    task = make_tiny.TASKS["products"]()
    assert not {p["problem"] for p in task.train} & {p["problem"] for p in task.test}
    for problem in task.train[:300]:
        values = [value for _, value in make_tiny.steps_of(problem)]
        assert all(1000 <= value <= 9999 for value in values) and problem["answer"] == str(
            values[-1]
        )


def test_what_is_taught():
    """The completion and its end, not the prompt, and not the calculator's answers."""
    tokenizer = make_tiny.symbol_tokenizer(make_tiny.SYMBOLS["products"])
    shares = {"called": 1.0}
    ids, mask = make_tiny.demonstration_batch(tokenizer, [PRODUCT], shares, random.Random(0), 4)
    for row, taught in zip(ids, mask.bool()):
        text = tokenizer.decode(row[1:][taught].tolist(), skip_special_tokens=False)
        calls = "<tool>47*83</tool><tool>3901-12</tool>"
        assert text == f"<think>{calls}</think><answer>\\boxed{{3889}}</answer><|endoftext|>"


def accuracies(directory, problems):
    """(greedy, sampled) held-out accuracy; sampled: 4 completions of each problem at temperature 1."""
    model, tokenizer = load(directory)
    task = verifiers.arithmetic(train_size=1)
    for temperature, samples in ((0.0, 1), (1.0, 4)):
        asked = model, tokenizer, task, task.test[:problems], samples
        parts = roll_out(GRPO(max_new_tokens=80), *asked, temperature=temperature).parts
        yield sum(part["accuracy"] for part in parts) / len(parts)


def test_the_committed_base_has_something_to_select():
    """It mostly answers off the top of its head (greedy near .1) and is right when it works the problem out, which
    samples do one time in four: what RLVR then makes the habit."""
    model, tokenizer = load(TINY)
    assert sum(weight.numel() for weight in model.parameters()) == 125_632
    greedy, sampled = accuracies(TINY, problems=100)
    assert 0.02 <= greedy <= 0.20 and 0.16 <= sampled <= 0.34
    task = verifiers.arithmetic(train_size=50, test_size=0)
    assert make_tiny.worked_accuracy(model, tokenizer, task) >= 0.9


def test_random_weights_of_a_seed(tmp_path, capsys):
    """Twice the same bits, other bits for another seed; the vocabulary is the task's."""
    bits = []
    for seed, name in ((0, "one"), (0, "again"), (1, "other")):
        flags = ["--random", "--task", "one-digit", "--seed", str(seed)]
        make_tiny.main([*flags, "--out", str(tmp_path / name)])
        bits.append((tmp_path / name / "model.safetensors").read_bytes())
    assert bits[0] == bits[1] != bits[2]
    model, tokenizer = load(tmp_path / "one")
    assert tokenizer.decode(tokenizer.encode("3+4=7")) == "3+4=7" and model.config.vocab_size == 14
    with pytest.raises(SystemExit):
        make_tiny.main(["--task", "one-digit"])
    assert "there are no demonstrations for it, so add --random" in capsys.readouterr().err


@pytest.mark.slow
def test_a_base_made_anew_is_as_good_as_the_committed_one(tmp_path):
    """Bits depend on the machine, accuracies hardly: seeds 0, 1, 2 gave .09, .11, .09 greedily and
    .24, .29, .28 sampled."""
    make_tiny.main(["--seed", "0", "--out", str(tmp_path / "tiny")])
    greedy, sampled = accuracies(tmp_path / "tiny", problems=200)
    there = [*accuracies(TINY, problems=200)]
    assert abs(greedy - there[0]) < 0.12 and abs(sampled - there[1]) < 0.10


@pytest.mark.slow
def test_smollm2_is_what_transformers_makes_of_it(tmp_path):
    """Same logits to 1e-4, same ids; and it knows English: 2.5 nats a token, where a guess costs ln 49,152 = 10.8."""
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("pip install gguf")
    try:
        get_smollm2.get(tmp_path)
    except ModelError as error:
        pytest.skip(str(error))
    ours, tokenizer = load(tmp_path, template="plain")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    spells = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Paris is the capital of France, and the Seine flows through it. It has 2,102,650 inhabitants."
    assert tokenizer.encode_prompt(text) == spells(text)["input_ids"]
    spelled = [tokenizer.decode([token]) for token in tokenizer.encode("12 a  12<|im_end|>")]
    assert spelled[:6] == ["1", "2", " a", "  ", "1", "2"]  # each digit alone
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        logits = ours(ids)
        torch.testing.assert_close(logits, theirs(ids).logits, atol=1e-4, rtol=0)
        assert 1.5 < torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]) < 3.5
