"""Custom options of TFLite operators, which come from outside as any other byte of a model."""

from __future__ import annotations

import random

import pytest
from flatbuffers import flexbuffers

from microc.errors import ModelError
from microc.frontend.tflite_options import Options


def test_custom_options_are_plain_values_or_refused() -> None:
    """FlexBuffers of numbers, strings and lists of them come out; whatever else the bytes are is the file's fault."""
    fields = {"alpha": 0.5, "count": 3, "mode": "a", "axes": [1, 2], "wide": True}
    data = bytes(flexbuffers.Dumps(fields))
    assert Options(0, None, "#0", data).custom_fields() == {**fields, "axes": (1, 2)}
    assert Options(0, None, "#0").custom_fields() == {}
    dice = random.Random(4)
    for _ in range(300):
        broken = bytearray(data[: dice.randrange(1, len(data) + 1)])
        broken[dice.randrange(len(broken))] = dice.randrange(256)
        try:
            Options(0, None, "#0", bytes(broken)).custom_fields()
        except ModelError as error:
            assert error.where == "#0"
    with pytest.raises(ModelError, match="no map"):
        Options(0, None, "#0", bytes(flexbuffers.Dumps([1, 2]))).custom_fields()
    with pytest.raises(ModelError, match="neither"):
        Options(0, None, "#0", bytes(flexbuffers.Dumps({"a": {"b": 1}}))).custom_fields()
