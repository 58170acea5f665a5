"""GRPO and its family: every advantage and loss worked by hand, and the choices of train.py around them."""

import json
import math
import re
from argparse import Namespace

import pytest
import torch

import eval as evaluation
import train
import verifiers
from rlvr import (batch_logprobs, clipped_share, decoupled_advantages, group_advantages, join, kl_penalty, loss_weights,
                  policy_loss, sample, soften_cuts, token_logprobs, update_gradients)
from test_train import metrics, run, without_clock

# ---- Advantages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale, expected", [
    ("none", [[.75, -.25, -.25, -.25], [.5, -.5, .5, -.5]]),
    ("std", [[1.7320, -.5773, -.5773, -.5773], [1, -1, 1, -1]]),
    ("loo", [[1, -1 / 3, -1 / 3, -1 / 3], [2 / 3, -2 / 3, 2 / 3, -2 / 3]]),
    ("batch", [[1.6036, -.5345, -.5345, -.5345], [1.0690, -1.0690, 1.0690, -1.0690]]),
])
def test_advantages_by_hand(scale, expected):
    """Rewards 1 0 0 0 (mean 1/4, std sqrt(3)/4 = .4330) and 1 0 1 0 (mean 1/2, std 1/2). Leave-one-out: the first has
    1 - 0, the others of its group 0 - 1/3. Batch: the squares add up to .75 + 1, and sqrt(1.75 / 8) = .4677."""
    rewards = torch.tensor([[1., 0, 0, 0], [1, 0, 1, 0]])
    torch.testing.assert_close(group_advantages(rewards, scale), torch.tensor(expected), atol=2e-4, rtol=0)


@pytest.mark.parametrize("scale", ["std", "none", "batch", "loo"])
def test_equal_rewards_give_exactly_zero(scale):
    assert group_advantages(torch.tensor([[.1] * 5, [1., 0, 0, 0, 0]]), scale)[0].tolist() == [0.0] * 5
    assert not group_advantages(torch.full((2, 3), 0.7), scale).any()


def test_decoupled_advantages_tell_apart_what_a_sum_confuses():
    """Accuracy 1 0 0 0 and format 1 1 0 1, one group. Apart: 1.732, -.577, -.577, -.577 and .577, .577, -1.732, .577;
    the sums 2.309, 0, -2.309, 0 have the mean square 2.667, root 1.633: 1.414, 0, -1.414, 0. With accuracy 0 0 1 0 and
    format 1 1 0 0, three completions have one reward each and the same sum; here the rarer accuracy counts for more."""
    form = torch.tensor([[1., 1, 0, 1]])
    both = decoupled_advantages(torch.stack([torch.tensor([[1., 0, 0, 0]]), form]))
    torch.testing.assert_close(both, torch.tensor([[1.4142, 0, -1.4142, 0]]), atol=1e-3, rtol=0)
    apart = decoupled_advantages(torch.stack([torch.tensor([[0., 0, 1, 0]]), form]))
    assert not group_advantages(torch.tensor([[0., 0, 1, 0]]) + form).any() and apart.abs().max() < 1e-3
    rarer = decoupled_advantages(torch.stack([torch.tensor([[0., 0, 1, 0]]), torch.tensor([[1., 1, 0, 0]])]))[0]
    assert rarer[2] > rarer[0] > rarer[3]                    # the sum would say: equal


# ---- Losses ----------------------------------------------------------------------------------------------------------

# Two completions, of 3 tokens (A = 1) and of 2 (A = -1), and their ratios pi / pi_old; column 0 is the prompt.
RATIOS = torch.tensor([[1, 1.5, .5, 1], [1, .5, 1.5, 1]])
MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0.]])
ADVANTAGES = torch.tensor([1., -1])
OLD = torch.tensor([[0, -1., -2, -3], [0, -1, -2, 0]])


def value(loss, norm, clip=(0.2, 0.2)):
    weights = loss_weights(MASK, norm, max_new_tokens=4)
    return policy_loss(OLD + RATIOS.log(), OLD, ADVANTAGES, weights, clip, loss).item()


@pytest.mark.parametrize("norm, expected", [
    ("token", -.4 / 5), ("sequence", .125), ("constant", -.4 / 8), ("sum", -.2)])
def test_ppo_by_hand(norm, expected):
    """min(r A, clip(r) A), clip 0.8 to 1.2. First: min(1.5, 1.2) + min(.5, .8) + 1 = 1.2 + .5 + 1 = 2.7; second:
    min(-.5, -.8) + min(-1.5, -1.2) = -.8 - 1.5 = -2.3. Token mean (2.7 - 2.3) / 5 = .08; mean of means
    (2.7 / 3 - 2.3 / 2) / 2 = -.125; by a constant of 2 x 4: .05; mean over rows of sums: .2. The loss is minus that."""
    assert value("ppo", norm) == pytest.approx(expected)


def test_clip_higher_by_hand():
    """DAPO's 0.2 and 0.28: the first token of the first completion now gives 1.28: 2.78 - 2.3 = .48, by 5 tokens."""
    assert value("ppo", "token", (0.2, 0.28)) == pytest.approx(-.48 / 5)


def test_gspo_by_hand():
    """The geometric means are (1.5 * .5 * 1)^(1/3) = .9086 and (.5 * 1.5)^(1/2) = .8660. With clip 0.1 the second,
    whose A is negative, is held at .9: mean of rows (.9086 - .9) / 2 = .0043."""
    assert value("gspo", "sequence", (0.1, 0.1)) == pytest.approx(-(.75 ** (1 / 3) - .9) / 2)


def test_cispo_by_hand():
    """-w clip(r) A log pi. First: 1.2 (ln 1.5 - 1) + .8 (ln .5 - 2) - 3; second, with A = -1: -.8 (ln .5 - 1)
    - 1.2 (ln 1.5 - 2). Unlike ppo's, the gradient of a clipped token is not 0 but -w clip(r) A."""
    expected = 1.2 * (math.log(1.5) - 1) + .8 * (math.log(.5) - 2) - 3
    expected -= .8 * (math.log(.5) - 1) + 1.2 * (math.log(1.5) - 2)
    assert value("cispo", "token") == pytest.approx(-expected / 5)
    logp = (OLD + RATIOS.log()).requires_grad_()
    policy_loss(logp, OLD, ADVANTAGES, MASK / 5, loss="cispo").backward()
    torch.testing.assert_close(logp.grad, torch.tensor([[0, -.24, -.16, -.2], [0, .16, .24, 0]]))


def test_reinforce_by_hand():
    """The chapter's -(adv * logp).mean(), logp summed over a completion: ln 1.5 + ln .5 - 6 and ln .75 - 3."""
    assert value("reinforce", "sum") == pytest.approx(-(math.log(.75) - 6 - (math.log(.75) - 3)) / 2)


def formula(loss, logp, weights, clip):
    """The same losses once more, token by token in plain Python, as the papers write them."""
    total = 0.0
    for i in range(2):
        tokens = [t for t in range(4) if MASK[i, t]]
        A = ADVANTAGES[i].item()
        whole = torch.exp(sum(logp[i, t] - OLD[i, t] for t in tokens) / len(tokens))
        for t in tokens:
            r = whole if loss == "gspo" else torch.exp(logp[i, t] - OLD[i, t])
            bounded = torch.clip(r, 1 - clip[0], 1 + clip[1])
            term = {"ppo": min(r * A, bounded * A), "gspo": min(r * A, bounded * A),
                    "cispo": bounded.item() * A * logp[i, t], "reinforce": A * logp[i, t]}[loss]
            total = total - weights[i, t] * term
    return total


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo", "reinforce"])
@pytest.mark.parametrize("norm", ["token", "sequence", "constant", "sum"])
def test_value_and_gradient_are_those_of_the_formula(loss, norm):
    weights = loss_weights(MASK, norm, max_new_tokens=4)
    ours, theirs = ((OLD + RATIOS.log()).requires_grad_() for _ in range(2))
    a, b = policy_loss(ours, OLD, ADVANTAGES, weights, (.2, .3), loss), formula(loss, theirs, weights, (.2, .3))
    a.backward()
    b.backward()
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo", "reinforce"])
def test_on_policy_all_have_the_gradient_of_the_chapter(loss):
    weights = loss_weights(MASK, "sequence")
    logp = OLD.clone().requires_grad_()
    policy_loss(logp, OLD, ADVANTAGES, weights, loss=loss).backward()
    torch.testing.assert_close(logp.grad, -weights * ADVANTAGES[:, None])


@pytest.mark.parametrize("loss, expected", [("ppo", 2 / 5), ("cispo", 4 / 5), ("gspo", 2 / 5), ("reinforce", 0)])
def test_clipped_share_by_hand(loss, expected):
    """ppo: 1.5 with A > 0 and .5 with A < 0; .5 with A > 0 may rise again. cispo bounds all four. gspo, clip .1: .8660
    with A < 0 and all its two tokens, .9086 is inside."""
    clip = (.1, .1) if loss == "gspo" else (.2, .2)
    assert clipped_share(OLD + RATIOS.log(), OLD, ADVANTAGES, MASK, clip, loss).item() == pytest.approx(expected)


def test_kl_estimators_by_hand():
    """d = ln 2: k1 .6931, k2 .2402, k3 .5 - 1 + .6931 = .1931."""
    logp, weights = torch.tensor([[math.log(.8)]]), torch.ones(1, 1)
    values = [kl_penalty(logp, torch.tensor([[math.log(.4)]]), weights, name).item() for name in ("k1", "k2", "k3")]
    assert values == pytest.approx([.6931, .2402, .1931], abs=1e-4)


def test_what_the_gradients_of_the_kl_estimators_are_on_average():
    """Over all tokens of a distribution p, weighted by p: k1's gradient vanishes, k2's is that of KL(p || q), k3's that
    of KL(q || p). The values of k1 and of k3 average to KL(p || q)."""
    z, q = torch.tensor([.5, -1, .2], requires_grad=True), torch.tensor([.2, .3, .5])

    def grad(loss):
        return torch.autograd.grad(loss, z)[0]
    logp = z.log_softmax(0)
    p, kl = logp.exp().detach(), (logp.exp() * (logp - q.log())).sum()
    means = {name: kl_penalty(z.log_softmax(0)[:, None], q.log()[:, None], p[:, None], name)
             for name in ("k1", "k2", "k3")}
    assert means["k1"].item() == pytest.approx(kl.item()) and means["k3"].item() == pytest.approx(kl.item())
    torch.testing.assert_close(grad(means["k1"]), torch.zeros(3), atol=1e-7, rtol=0)
    torch.testing.assert_close(grad(means["k2"]), grad(kl))
    torch.testing.assert_close(grad(means["k3"]), grad((q * (q.log() - z.log_softmax(0))).sum()))


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo", "reinforce"])
def test_the_micro_batch_split_changes_no_loss(model, prompts, loss):
    rollouts = sample(model, prompts, 4, 20)
    advantages, results = group_advantages(torch.rand(3, 4)), []
    old = batch_logprobs(model, rollouts) + 0.3 * torch.randn_like(rollouts.logp) * rollouts.mask
    for tokens in (10**9, 60):
        model.zero_grad()
        stats = update_gradients(model, rollouts, advantages, norm="sequence", micro_batch_tokens=tokens, old_logp=old,
                                 loss=loss, ref_logp=old, kl_coef=0.1)
        results.append((stats, torch.cat([p.grad.flatten() for p in model.parameters()])))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-5) and results[0][0]["kl"] > 0
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-4)


def test_batch_logprobs_are_the_samplers(model, prompts):
    rollouts = sample(model, prompts, 4, 20)
    torch.testing.assert_close(batch_logprobs(model, rollouts, micro_batch_tokens=50), rollouts.logp, atol=1e-5, rtol=0)


def test_join_and_take_are_inverse(model, prompts):
    short, long = sample(model, prompts, 2, 5), sample(model, prompts[:2], 2, 20)
    both = join([short, long])
    assert both.completions() == short.completions() + long.completions()
    again = both.take([3, 4])
    assert again.completions() == long.completions() and again.num_samples == 2
    width = long.ids.size(1)
    assert torch.equal(again.ids[:, :width], long.ids) and torch.equal(again.logp[:, :width - 1], long.logp)
    torch.testing.assert_close(token_logprobs(model, again.ids, mask=again.mask), again.logp, atol=1e-5, rtol=0)


# ---- Completions that are cut off ------------------------------------------------------------------------------------

def cut(rewards, lengths, how, limit=100):
    finished = torch.tensor([length < limit for length in lengths])
    rollouts = Namespace(lengths=torch.tensor(lengths), finished=finished)
    parts = [{"accuracy": reward} for reward in rewards]
    args = Namespace(truncated=how, advantage_scale="none", max_new_tokens=limit)
    return train.advantages_of(torch.tensor([rewards]), parts, rollouts, args)[0].tolist()


def test_three_ways_with_completions_that_are_cut_off():
    """Rewards 1, 0 and, cut off, 0 (what score gives). Zero: the mean is 1/3. Mask: the same, but the third teaches
    nothing. Soft, lengths 50, 90, 100 of 100: off go 0, .5 and 1, so 1, -.5, -1, with the mean -1/6."""
    assert cut([1., 0, 0], [50, 90, 100], "zero") == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert cut([1., 0, 0], [50, 90, 100], "mask") == pytest.approx([2 / 3, -1 / 3, 0])
    assert cut([1., 0, 0], [50, 90, 100], "soft") == pytest.approx([7 / 6, -1 / 3, -5 / 6])
    softened = soften_cuts(torch.ones(1, 2), Namespace(lengths=torch.tensor([80, 85])), 100)
    assert softened[0].tolist() == pytest.approx([1, .75])


# ---- Which problems --------------------------------------------------------------------------------------------------

def picker(n=12, count=3, **options):
    return train.Picker(list(range(n)), Namespace(prompts_per_step=count, seed=0, steps=10, **options))


def test_the_filter_passes_by_what_teaches_nothing_and_comes_back_to_it():
    """Problem 0 is always solved, 1 never, 2 sometimes, in epochs of three: after LAST = 3 visits, 0 and 1 are passed
    by once, lose their oldest visit, and are tried again in the next epoch."""
    p, seen = picker(3, 1, pick="filter"), []
    for step in range(1, 16):
        problem = p.pick(step)[0]
        seen.append(problem)
        p.update([{0: 1.0, 1: 0.0, 2: 0.5}[problem]])
    assert sorted(seen[:9]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert seen[9] == 2 and sorted(seen[10:13]) == [0, 1, 2] and seen[13] == 2


def test_strata_are_filled_evenly_as_far_as_there_are_problems():
    p = picker(pick="stratified", count=6)
    p.state["visits"] = {0: [0.0], 1: [0.1], 2: [0.2], 3: [0.9], 4: [1.0]}              # the others are unknown
    chosen = p.pick(1)
    assert len(chosen) == 6 and len({*chosen} & {0, 1, 2}) == 2 and len({*chosen} & {3, 4}) == 2


def test_the_curriculum_moves_from_easy_to_hard():
    p = picker(200, 20, pick="curriculum")
    p.state["visits"] = {i: [i / 200] for i in range(200)}
    early, late = (sum(p.mean(i) for i in p.pick(step)) / 20 for step in (1, 10))
    assert early > 0.65 and late < 0.55


def test_a_resumed_filter_remembers(tmp_path):
    """State of the problems is in the checkpoint: 4 steps, stop, 4 more equal 8."""
    flags = ["--pick", "filter", "--train-problems", "6", "--save-every", "4"]
    whole = run(tmp_path, *flags, "--steps", "8", name="whole")
    cut = run(tmp_path, *flags, "--steps", "4", "--lr-final", "1", name="cut")
    constant = run(tmp_path, *flags, "--steps", "8", "--lr-final", "1", name="constant")
    train.main(["--resume", "--runs", str(tmp_path), "--name", "cut", "--steps", "8"])
    assert without_clock(metrics(cut))[-3:] == without_clock(metrics(constant))[-3:]
    state = json.loads((whole / "checkpoints" / "step_000008" / "progress.json").read_text())["problems"]
    assert state["next"] >= 32 and len(state["visits"]) == 6


def samples(folder, step):
    rows = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    return [row for row in rows if row["step"] == step]


def test_one_shot(tmp_path):
    folder = run(tmp_path, "--one-shot", "--steps", "2")
    assert len({row["problem"] for step in (1, 2) for row in samples(folder, step)}) == 1


def test_dynamic_sampling_replaces_groups_without_signal(tmp_path, monkeypatch):
    """Only sums below 5 can earn anything: groups of other problems are sampled until 4 are mixed, at most 3 times
    more. Those without signal are logged and get no advantage; the log's means are over all that was sampled."""
    task = verifiers.one_digit()

    def reward(completion, problem):
        return float(len(completion) % 2 and int(problem["answer"]) < 5), {}
    task.reward = reward
    monkeypatch.setitem(verifiers.TASKS, "one-digit", lambda: task)
    monkeypatch.setattr(train, "preflight", lambda *args: None)
    folder = run(tmp_path, "--steps", "1", "--dynamic-sampling", "3", "--temperature", "2", "--num-samples", "8")
    rows, (metric,) = samples(folder, 1), metrics(folder)[1:]
    groups = [rows[i:i + 8] for i in range(0, len(rows), 8)]
    mixed = [group for group in groups if len({row["reward"] for row in group}) > 1]
    assert 4 < len(groups) <= 16 and len(groups) % 4 == 0 and len({group[0]["problem"] for group in groups}) > 4
    assert metric["mixed"] == pytest.approx(len(mixed) / len(groups))
    assert metric["trained"] == sum(row["advantage"] != 0 for group in mixed[:4] for row in group)


@pytest.fixture
def lively(monkeypatch):
    """one-digit with a reward that random weights earn every other time, so that a few steps can learn something."""
    task = verifiers.one_digit()

    def reward(completion, problem):
        return float(len(completion) % 2), {"format": float(completion[:1] in {*"12345"})}
    task.reward = reward
    monkeypatch.setitem(verifiers.TASKS, "one-digit", lambda: task)
    return ["--max-new-tokens", "20", "--lr-final", "1"]


# ---- Several updates, KL ---------------------------------------------------------------------------------------------

def test_with_one_update_clipping_cannot_act_and_with_several_it_does(tmp_path, lively):
    flags = [*lively, "--steps", "3", "--lr", "1e-2"]
    once, tight = run(tmp_path, *flags, name="once"), run(tmp_path, *flags, "--clip", "0.01", "0.01", name="tight")
    assert without_clock(metrics(once)) == without_clock(metrics(tight)) and metrics(once)[-1]["clipped"] == 0
    often = run(tmp_path, *flags, "--updates-per-batch", "4", name="often")
    loose = run(tmp_path, *flags, "--updates-per-batch", "4", "--clip", "0.9", "9", name="loose")
    assert metrics(often)[-1]["clipped"] > metrics(loose)[-1]["clipped"]
    assert metrics(often)[1]["mismatch"] < 1e-5              # measured in the first update of a batch


def test_kl_holds_the_policy_near_its_start_and_the_cap_stops_a_run_that_left(tmp_path, lively):
    flags = [*lively, "--steps", "6", "--lr", "5e-3"]
    free = metrics(run(tmp_path, *flags, "--kl-cap", "1e9", name="free"))
    held = metrics(run(tmp_path, *flags, "--kl-coef", "3", name="held"))
    assert free[1]["kl"] == held[1]["kl"] == 0 and 0 <= held[-1]["kl"] < free[-1]["kl"]
    with pytest.raises(SystemExit, match="stopped after step .*: the KL from the start is .* above --kl-cap"):
        run(tmp_path, *flags, "--kl-cap", "0.001", name="capped")
    assert list((tmp_path / "capped" / "checkpoints").glob("step_*"))


@pytest.mark.parametrize("flags", [
    ["--loss", "gspo", "--loss-norm", "sequence", "--clip", "3e-4", "4e-4", "--updates-per-batch", "2"],
    ["--loss", "cispo", "--updates-per-batch", "2"], ["--loss", "reinforce", "--loss-norm", "sum"],
    ["--advantage-scale", "gdpo"], ["--advantage-scale", "loo"], ["--advantage-scale", "batch", "--truncated", "mask"],
    ["--pick", "stratified"], ["--pick", "curriculum", "--truncated", "soft"],
    ["--kl-coef", "0.1", "--kl-estimator", "k2"]])
def test_every_variant_trains(tmp_path, lively, flags):
    rows = metrics(run(tmp_path, "--steps", "3", *lively, *flags))[1:]
    assert len(rows) == 3 and all(math.isfinite(row["loss"]) for row in rows) and rows[0]["grad_norm"] > 0


# ---- Alarm, best model, samples --------------------------------------------------------------------------------------

def log(*points):
    points = [(.2, .3), *points]                             # step 0: the reward and accuracy of the base
    return [
        {"step": 10 * i, "reward": reward, "eval_accuracy": 0, "eval_sampled_accuracy": accuracy,
         "eval_sampled_low": accuracy - .04, "eval_sampled_high": accuracy + .04}
        for i, (reward, accuracy) in enumerate(points)]


def test_the_canary_sings_when_reward_and_accuracy_part():
    assert train.canary(log((.5, .5), (.6, .6))) is None and train.canary(log((.5, .5))) is None
    assert train.canary(log((.5, .5), (.6, .45))) is None                            # within the intervals
    assert train.canary(log((.5, .5), (.4, .3))) is None                             # both fell: no hack, only worse
    warning = train.canary(log((.5, .5), (.9, .3), (.9, .3)))
    assert "reward went from 0.500 (step 10) to 0.900" in warning and "0.500 to 0.300" in warning
    assert "from 0.200 (step 0) to 0.980" in train.canary(log((.9, .25), (.98, .15)))        # worse than the base


def test_the_best_model_is_kept_apart_from_the_last(tmp_path, monkeypatch):
    scores = iter([.1, .5, .8, .6])

    def evaluate_both(*args):
        score = next(scores)
        return {"eval_accuracy": score, "eval_n": 9, "eval_sampled_accuracy": score, "eval_sampled_reward": score,
                "eval_sampled_length": 1.0, "eval_sampled_truncated": 0.0, "eval_sampled_low": 0,
                "eval_sampled_high": 1}
    monkeypatch.setattr(train, "evaluate_both", evaluate_both)
    saved = []
    save = train.save
    monkeypatch.setattr(train, "save", lambda model, tokenizer, folder, weights=None: (
        saved.append(folder.name), save(model, tokenizer, folder, weights)))
    run(tmp_path, "--steps", "6", "--eval-every", "2")
    assert saved[1:] == ["best", "best", "final"]                # after steps 2 and 4, not 6


def test_samples_tell_the_likeliest_and_the_least_likely_tokens(tmp_path):
    folder = run(tmp_path, "--steps", "1", "--max-new-tokens", "6")
    for row in samples(folder, 1):
        (_, least), (_, most) = row["unlikely"][0], row["likely"][0]
        assert 0 < least <= most <= 1 and len(row["likely"]) == min(3, row["length"]) and "accuracy" in row["parts"]


def test_the_viewer_shows_a_group_and_the_best_completions(tmp_path, lively, capsys):
    folder = run(tmp_path, "--steps", "2", *lively)
    capsys.readouterr()
    evaluation.main(["--show", str(folder), "--step", "1"])
    shown, rows = capsys.readouterr().out, samples(folder, 1)
    group = next(rows[i:i + 4] for i in range(0, 16, 4) if len({row["reward"] for row in rows[i:i + 4]}) > 1)
    assert shown.startswith(f"step 1: {group[0]['problem']!r}, truth") and shown.count("advantage") == 4
    for row in group:
        assert f"reward {row['reward']:.2f}, advantage {row['advantage']:+.2f}; {row['length']} tokens" in shown
        assert f"most likely : {row['likely'][0][0]!r} {row['likely'][0][1]:.3f}" in shown
    evaluation.main(["--show", str(folder), "--best-first"])
    best = [float(value) for value in re.findall(r"reward ([-0-9.]+),", capsys.readouterr().out)]
    assert best == sorted((row["reward"] for row in samples(folder, 2)), reverse=True)[:4]
    with pytest.raises(verifiers.DataError, match="nothing of step 9"):
        evaluation.main(["--show", str(folder), "--step", "9"])
