# SPDX-License-Identifier: Apache-2.0
"""Two pixels in one multiplication: the proof of the bounds, and convolutions for cores without SIMD as machine code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.lowering import kernel_selection
from microc.ops.matrix.swar import FIELD, HIGH, LOW, MAX_MOVED, TERMS, PairPacking, _pack_pairs_in_blocks, pack_pairs
from microc.schedule.rules.rule import undominated_algorithms
from microc.schedule.schedule import Schedule
from tests.ops.compiled import Built, assert_compiled, cases_of_bytes, compiled_cases
from tests.support.campaign import everything

DICE = np.random.default_rng(5)
WEIGHTS = {
    "small": DICE.integers(-9, 10, (6, 48)),
    "ordinary": np.clip(DICE.normal(0, 40, (16, 144)), -127, 127).astype(int),
    "extreme": np.where(np.eye(4, 12) > 0, -128, 127),
    "lowest": np.full((2, 8), -128),
    "one column": DICE.integers(-128, 128, (3, 1)),
}


def unpacked(packing: PairPacking) -> Array:
    """Blocks of weights as they are summed, the moved ones last: (channels, blocks, terms or moved)."""
    kept = packing.uint8_weights.astype(int) - 128
    return kept.reshape(len(kept), -1, packing.terms_per_block)


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_no_pixels_leave_the_fields(name: str, terms: int) -> None:
    """For the pixels that make each block's sum largest and smallest; and nothing of the weights is lost."""
    weights = WEIGHTS[name]
    packing = _pack_pairs_in_blocks(weights, terms)
    if packing is None:
        pytest.skip("these weights need more than fits the last block")
    blocks = [unpacked(packing), packing.moved_weights[:, None, :].astype(int)]
    for block in blocks:
        for high, low in ((HIGH, LOW), (LOW, HIGH)):
            sums = np.where(block > 0, block * high, block * low).sum(-1)
            assert np.all((sums >= -FIELD) & (sums < FIELD))
    total = np.zeros((len(weights), packing.uint8_weights.shape[1]), int)
    total += unpacked(packing).reshape(len(weights), -1)
    for channel, (places, parts) in enumerate(
        zip(packing.moved_input_indices.astype(int), packing.moved_weights, strict=True)
    ):
        np.add.at(total[channel], places // (terms + 1) * terms + places % (terms + 1), parts)
    np.testing.assert_array_equal(total[:, : weights.shape[1]], weights)
    assert not total[:, weights.shape[1] :].any()


def test_larger_blocks_for_smaller_weights() -> None:
    small, ordinary, lowest = (pack_pairs(WEIGHTS[name]) for name in ("small", "ordinary", "lowest"))
    assert small is not None and ordinary is not None and lowest is not None
    assert small.terms_per_block == max(TERMS) and not small.moved_weights.size
    assert 2 < ordinary.terms_per_block < 8 and 0 < ordinary.moved_weights.shape[1] <= MAX_MOVED
    assert lowest.terms_per_block == 2 or lowest.moved_weights.size


def is_of_pairs(schedule: Schedule) -> bool:
    return schedule.rule in ("matrix pairs", "depthwise bytes")


def test_convolutions_equal_the_reference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cases of the family that may be in pairs, each for one core in turn: an odd number of pixels and borders among them.
    Other cases are what they are on any core, and built where everything is asked for."""
    monkeypatch.setattr(
        kernel_selection,
        "undominated_algorithms",
        lambda names: ("pairs",) if "pairs" in names else undominated_algorithms(names),
    )
    built: Built = {}
    known = {
        "cortex-m0": {"matrix pairs", "depthwise bytes"},
        "cortex-m3": {"matrix pairs"},
        "rv32imc": {"matrix pairs"},
    }
    for position, (cpu, rules) in enumerate(known.items()):
        if everything():
            cases = compiled_cases("convolution.conv2d", cpu)
        else:
            is_chosen = cases_of_bytes("convolution.conv2d", position, len(known))
            cases = compiled_cases("convolution.conv2d", cpu, is_chosen, is_of_pairs)
        assert rules <= {case.schedule.rule for case in cases.values()}
        assert_compiled(cases, tmp_path / cpu, built=built)
    assert "runtime error" not in capfd.readouterr().err
