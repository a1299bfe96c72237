# SPDX-License-Identifier: Apache-2.0
"""Models with extreme numbers, 100 of TFLite and 30 of ONNX, in a campaign three times as many; any number of them by
``python -m tests.extremes``."""

from __future__ import annotations

import pytest

from tests.extremes.campaign import campaign
from tests.extremes.formats import ONNX
from tests.support.campaign import everything

TIMES = 3 if everything() else 1


def test_c_is_what_tflite_micro_computes_or_the_model_is_refused() -> None:
    pytest.importorskip("tflite_micro")
    found = campaign(TIMES * 100, seed=0)
    assert not found.failures
    assert found.counts["compiled"] > TIMES * 80
    assert found.counts["undefined elements"] < found.counts["elements"] / 10


def test_quantised_onnx_is_what_onnxruntime_computes_or_refused() -> None:
    """Averages are often ties, which onnxruntime's floats round to either side; little else is another quantum."""
    pytest.importorskip("onnxruntime")
    found = campaign(TIMES * 30, seed=0, source=ONNX)
    assert not found.failures
    assert found.counts["compiled"] > TIMES * 24
    assert found.counts["undefined elements"] < found.counts["elements"] / 10
    assert found.counts["elements of another quantum"] < found.counts["elements"] / 500
