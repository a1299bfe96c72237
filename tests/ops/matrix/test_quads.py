# SPDX-License-Identifier: Apache-2.0
"""Four channels' weights in a word: the proof of the bounds, and dense layers for cores without SIMD as machine code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from microc.ops.matrix.swar import CHANNELS, FIELD, HIGH, LONG_TERMS, LOW, _pack_quads_in_blocks, pack_quads
from tests.ops.compiled import Built, assert_compiled, cases_of_bytes, compiled_cases
from tests.support.campaign import everything

DICE = np.random.default_rng(7)
WEIGHTS = {
    "small": DICE.integers(-9, 10, (8, 48)),
    "ordinary": np.clip(DICE.normal(0, 18, (16, 100)), -127, 127).astype(int),
    "a large one": np.where(np.arange(160).reshape(4, 40) % 53 == 7, -128, DICE.integers(-20, 20, (4, 40))),
    "lowest": np.full((4, 8), -128),
}


@pytest.mark.parametrize("terms", LONG_TERMS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_no_inputs_leave_the_fields(name: str, terms: int) -> None:
    """For the inputs that make each block's sum largest and smallest; and nothing of the weights is lost."""
    weights = WEIGHTS[name]
    packing = _pack_quads_in_blocks(weights, terms)
    if packing is None:
        pytest.skip("these weights need too many columns")
    blocks = packing.weights.astype(int).reshape(len(weights), -1, terms)
    for high, low in ((HIGH, LOW), (LOW, HIGH)):
        sums = np.where(blocks > 0, blocks * high, blocks * low).sum(-1)
        assert np.all((sums >= -FIELD) & (sums < FIELD))
    depth = weights.shape[1]
    total = packing.weights[:, :depth].astype(int)
    for column, source in enumerate(packing.repeated_inputs):
        total[:, source] += packing.weights[:, depth + column]
    np.testing.assert_array_equal(total, weights)


def test_words_hold_four_channels() -> None:
    weights = WEIGHTS["small"]
    packing = pack_quads(weights, LONG_TERMS)
    assert packing is not None and packing.terms_per_block == max(LONG_TERMS) and not packing.repeated_inputs.size
    taken = packing.words.view(np.uint8).reshape(len(weights) // CHANNELS, -1, CHANNELS).astype(int) - 128
    np.testing.assert_array_equal(taken.transpose(0, 2, 1).reshape(weights.shape), weights)


@pytest.fixture(scope="module")
def built() -> Built:
    """Most layers have one function on all of these cores."""
    return {}


@pytest.mark.parametrize("cpu", ["cortex-m0", "cortex-m3", "rv32imc"])
def test_dense_layers_equal_the_reference(
    cpu: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], built: Built
) -> None:
    """All cases in quads. Others have the functions of any core, and are built where everything is asked for."""
    if everything():
        cases = compiled_cases("matrix.dense", cpu)
    else:
        is_chosen = cases_of_bytes("matrix.dense")
        cases = compiled_cases("matrix.dense", cpu, is_chosen, lambda schedule: schedule.rule == "matrix quads")
    assert sum(case.schedule.rule == "matrix quads" for case in cases.values()) > 2, cases
    assert_compiled(cases, tmp_path, built=built)
    assert "runtime error" not in capfd.readouterr().err
