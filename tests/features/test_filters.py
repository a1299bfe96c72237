# SPDX-License-Identifier: Apache-2.0
"""Filters are scipy's, in floats closely, in integers within the rounding of their taps; streams go on where they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.errors import UsageError
from microc.features import Biquads, Fir, Pipeline, Preemphasis, Resample, Stage
from tests.features.sounds import compared, int16, sound

signal: Any = pytest.importorskip("scipy.signal")


def _butter() -> Any:
    return signal.butter(4, [0.05, 0.4], "bandpass", output="sos")


CASES: dict[str, tuple[Stage, Any, float]] = {
    "preemphasis": (Preemphasis(0.97), lambda x: signal.lfilter([1, -0.97], 1, x), 3e-5),
    "fir": (Fir(tuple(signal.firwin(31, 0.3))), lambda x: signal.lfilter(signal.firwin(31, 0.3), 1, x), 6e-5),
    "biquads": (Biquads(_butter().tolist()), lambda x: signal.sosfilt(_butter(), x), 3e-5),
    "down": (Resample(1, 2), lambda x: signal.upfirdn(Resample(1, 2).filter(), x, 1, 2)[: x.size // 2], 6e-5),
    "ratio": (Resample(6, 4), lambda x: signal.upfirdn(Resample(3, 2).filter(), x, 3, 2)[: x.size * 3 // 2], 8e-5),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_scipys(name: str) -> None:
    stage, filtered, bound = CASES[name]
    x = sound(0.1)
    got, want = Pipeline((stage,))(x), filtered(x.astype(np.float64))
    size = len(got)
    assert size >= len(want) - 3
    np.testing.assert_allclose(got, want[:size], atol=2e-6)
    q = int16(x / 2)
    integers = Pipeline((stage,), input_dtype="int16")
    assert integers.stored(q)[0].dtype == np.int16
    np.testing.assert_allclose(integers(q), filtered(q / 32768)[:size], atol=bound)


def test_the_resamplers_filter_is_scipys() -> None:
    x = sound(0.1).astype(np.float64)
    up, down, late = 3, 2, 30
    whole = signal.upfirdn(Resample(up, down).filter(), x, up, down)
    want = signal.resample_poly(x, up, down)
    np.testing.assert_allclose(whole[late // down :][: len(want)], want, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("name", CASES)
def test_streams_equal_the_whole_run(name: str, dtype: str) -> None:
    x = sound(0.05)
    tolerance = 1e-5 if dtype == "float32" else 0.0
    compared(Pipeline((CASES[name][0],), input_dtype=dtype), x if tolerance else int16(x), tolerance, hop=40)


def test_channels_are_filtered_alike() -> None:
    x = np.stack([sound(0.05, seed=seed) for seed in range(3)], axis=1)
    got = Pipeline((Biquads(_butter().tolist()), Resample(3, 2)), channels=3)(x)
    alone = Pipeline((Biquads(_butter().tolist()), Resample(3, 2)))
    np.testing.assert_allclose(
        got, np.stack([alone(np.ascontiguousarray(x[:, c])) for c in range(3)], axis=1), atol=1e-6
    )
    compared(Pipeline((Biquads(_butter().tolist()), Fir((0.5, 0.5))), channels=3, input_dtype="int16"), int16(x))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Preemphasis(3.0), "Preemphasis.coefficient"),
        (lambda: Fir(()), "Fir.taps"),
        (lambda: Fir((float("nan"),)), "finite"),
        (lambda: Biquads([[1, 0, 0, 0, 0, 0]]), "a0 that is zero"),
        (lambda: Biquads([[1.0, 2.0]]), r"shape \(1, 2\)"),
        (lambda: Resample(0, 1), "Resample.up"),
        (lambda: Pipeline((Biquads([[9, 0, 0, 1, 0, 0]]),), input_dtype="int16").graph(9), "less than 8"),
        (lambda: Pipeline(()), "got no stages"),
        (lambda: Pipeline((Fir((1,)),))(np.zeros(4)), "float32"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        made: Stage | Pipeline = make()
        assert made is None
