# SPDX-License-Identifier: Apache-2.0
"""Custom options of TFLite operators, which come from outside as any other byte of a model."""

from __future__ import annotations

import random

from flatbuffers import flexbuffers

from microc.frontend.tflite.builtin_options import decode_custom_options


def test_plain_values_come_out() -> None:
    fields = {"alpha": 0.5, "count": 3, "mode": "a", "axes": [1, 2], "wide": True}
    assert decode_custom_options(bytes(flexbuffers.Dumps(fields))) == {**fields, "axes": (1, 2)}
    nested = {"a": {"b": 1}, "c": [[1]], "d": list(range(300)), "e": 7}
    assert decode_custom_options(bytes(flexbuffers.Dumps(nested))) == {"e": 7}
    for other in (b"", bytes(flexbuffers.Dumps([1, 2])), bytes(1 << 20)):
        assert decode_custom_options(other) == {}


def test_damage_is_no_surprise() -> None:
    """A changed byte gives other options or none: no exception, no time, no memory."""
    data = bytes(flexbuffers.Dumps({"alpha": 0.5, "count": 3, "mode": "a", "axes": [1, 2], "wide": True}))
    dice = random.Random(4)
    for _ in range(3000):
        broken = bytearray(data[: dice.randrange(1, len(data) + 1)])
        broken[dice.randrange(len(broken))] = dice.randrange(256)
        decode_custom_options(bytes(broken))
