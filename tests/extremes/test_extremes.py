"""300 models with extreme numbers; ``python -m tests.extremes`` does any number of them."""

from __future__ import annotations

import pytest

from tests.extremes.campaign import campaign


def test_c_is_what_tflite_micro_computes_or_the_model_is_refused() -> None:
    pytest.importorskip("tflite_micro")
    found = campaign(300, seed=0)
    assert not found.failures
    assert found.counts["compiled"] > 240
    assert found.counts["undefined elements"] < found.counts["elements"] / 10
