"""claims/devices.py: what is counted, worked by hand on two layers; what memory a card needs."""

from dataclasses import replace

import pytest

from notebooks.claims import devices

THIN = replace(devices.SHAPES["small"], num_hidden_layers=2)


def test_rounded_weights_are_cast_no_more_and_a_cut_head_for_every_token():
    found = {
        how: devices.count(THIN, how) for how in ("autocast, head cut", "autocast", "bf16 weights")
    }
    assert [n["weights cast"] for n in found.values()] == [1, 0, 0]
    kernels = [n["kernels"] for n in found.values()]
    assert kernels == sorted(kernels, reverse=True)
    # The cast of the head reads 4 and writes 2 bytes a weight; that is all the cut costs.
    cut, whole, _ = (n["bytes"] for n in found.values())
    assert cut - whole == pytest.approx(6 * THIN.vocab_size * THIN.hidden_size, rel=0.01)


def test_a_layer_of_a_token_by_hand():
    """7 products; 4 norms; 2 writes into the cache; 4 for each of two rotations: two products, a
    joint and a sum; attention; silu and a product; 2 sums."""
    counts = [
        devices.count(replace(THIN, num_hidden_layers=layers), "bf16 weights")["kernels"]
        for layers in (1, 2, 3)
    ]
    assert counts[2] - counts[1] == counts[1] - counts[0] == 7 + 4 + 2 + 8 + 1 + 2 + 2


def test_twelve_gigabytes_cannot_train_qwen3_0_6b():
    for rows in (1, 8):
        sampling, update = devices.memory(devices.SHAPES["0.6B"], rows, 640, 8)
        assert 12e9 < update < 16e9
        assert sampling < update
