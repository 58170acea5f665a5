"""notebooks/kl_cap.py: a cap that is hit after the first step, and what each of the two ways out does."""

import json
import os

import pytest

import kl_cap
import ranks
import train
from test_train import FAST, LUCK, metrics


def run(tmp_path, then, *flags, cap="1e-6", lr="1e-2", times="1"):
    kl_cap.main(
        [
            "--then",
            then,
            "--times",
            times,
            "--",
            *FAST,
            *LUCK,
            "--runs",
            str(tmp_path),
            *"--name far --steps 9 --lr".split(),
            lr,
            "--kl-cap",
            cap,
            *flags,
        ]
    )
    return tmp_path / "far"


def flags_of(folder):
    return json.loads((folder / "config.json").read_text())["flags"]


@pytest.mark.parametrize("learnt", [True, False])
def test_back_is_a_new_run_from_the_best_weights_for_the_steps_that_remain(
    tmp_path, monkeypatch, learnt
):
    """Any update exceeds a millionth of a nat: the step after the first one with a signal is the last, in far-2 too.
    What was evaluated is made up: at step 0 a half is right, then more or less."""

    def evaluate_both(model, tokenizer, task, flags, *in_training):
        share = 0.5 + (0.25 if learnt else -0.25) * bool(in_training)
        names = ("accuracy", "reward", "length", "truncated", "n")
        return {f"{prefix}{name}": share for prefix in ("eval_", "eval_sampled_") for name in names}

    monkeypatch.setattr(train, "evaluate_both", evaluate_both)
    with pytest.raises(SystemExit, match="above --kl-cap"):
        run(tmp_path, "back", "--eval-every", "1")
    far = tmp_path / "far"
    again = tmp_path / "far-2"
    assert metrics(far)[-1]["drift"] > 1e-6
    assert flags_of(again)["steps"] == 9 - metrics(far)[-1]["step"]
    assert (
        flags_of(again)["seed"] == flags_of(far)["seed"] + 1
        and flags_of(again)["lr"] == flags_of(far)["lr"]
    )
    assert os.path.samefile(
        again / flags_of(again)["model"], far / "best" if learnt else ranks.base()
    )
    assert not (tmp_path / "far-2-2").exists()  # --times 1


def test_slower_goes_on_at_half_the_rate_and_with_twice_the_cap(tmp_path, capsys):
    """The rate is halved as often as the cap is doubled: their product stays 1e-3 * 1e-6."""
    far = run(tmp_path, "slower", lr="1e-3", times="9")
    assert [row["step"] for row in metrics(far)] == [*range(10)] and (far / "final").is_dir()
    config = json.loads((far / "config.json").read_text())
    for change in config["slower"]:
        before = metrics(far)[change["step"]]
        after = metrics(far)[change["step"] + 1]
        assert before["drift"] <= change["kl_cap"] and change["lr"] * change[
            "kl_cap"
        ] == pytest.approx(1e-9)
        assert after["lr"] <= change["lr"]
    assert config["slower"][-1]["lr"] == flags_of(far)["lr"] < 1e-3
    assert len(config["starts"]) == 1 + len(config["slower"])


def test_what_it_needs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        kl_cap.main(["--then", "back", "--", *FAST, "--runs", str(tmp_path), "--kl-cap", "5"])
    assert "behind -- the run needs a --name" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        kl_cap.main(["--then", "back", "--", *FAST, "--runs", str(tmp_path), "--name", "far"])
    assert "behind -- the run needs a --kl-cap" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="unequal rewards"):  # any other end is an end
        run(
            tmp_path,
            "slower",
            "--reward",
            f"{__file__}:nothing",
            "--num-samples",
            "16",
        )
    assert not (tmp_path / "far").exists()


def nothing(completion, problem):
    return 0.0, {}
