"""Models with extreme numbers, 300 of TFLite and 60 of ONNX; ``python -m tests.extremes`` does any number of them."""

from __future__ import annotations

import pytest

from tests.extremes.campaign import campaign
from tests.extremes.formats import ONNX


def test_c_is_what_tflite_micro_computes_or_the_model_is_refused() -> None:
    pytest.importorskip("tflite_micro")
    found = campaign(300, seed=0)
    assert not found.failures
    assert found.counts["compiled"] > 240
    assert found.counts["undefined elements"] < found.counts["elements"] / 10


def test_quantised_onnx_is_what_onnxruntime_computes_or_refused() -> None:
    """Averages are often ties, which onnxruntime's floats round to either side; little else is another quantum."""
    pytest.importorskip("onnxruntime")
    found = campaign(60, seed=0, source=ONNX)
    assert not found.failures
    assert found.counts["compiled"] > 48
    assert found.counts["undefined elements"] < found.counts["elements"] / 10
    assert found.counts["elements of another quantum"] < found.counts["elements"] / 500
