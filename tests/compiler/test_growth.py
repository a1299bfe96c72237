# SPDX-License-Identifier: Apache-2.0
"""The C of networks does not grow with the turns of a loop, nor with the steps of a sequence, nor do the calls of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from microc.graph.ir import Graph, TensorType
from microc.ops import registry
from microc.ops.control import UNBOUNDED, running_sum_loop_body
from microc.ops.registry import Case
from tests.compiler.control.test_function import single
from tests.frontend.onnx_model import node, proto, read
from tests.support.growth import network_size


@pytest.mark.parametrize("guarded", [False, True])
def test_turns_of_a_loop(guarded: bool) -> None:
    value, flag = TensorType((2, 3), "float32"), TensorType((), "bool")
    types = (flag, value, value, flag) if guarded else (value, value)
    attrs = {"body": running_sum_loop_body((2, 3), guarded), "carried": 2 if guarded else 1, "guarded": guarded}
    sizes = [network_size(single("loop", Case({**attrs, "count": count}, types))) for count in (8, 64, 5000)]
    assert len(set(sizes)) == 1


def test_a_loop_that_its_guard_alone_ends() -> None:
    case = next(case for case in registry.get("loop").cases() if case.name == "guarded")
    body = case.attrs["body"]
    assert isinstance(body, Graph)
    bare = replace(body, outputs=body.outputs[:2])
    sizes = [
        network_size(single("loop", replace(case, attrs={**case.attrs, "body": bare, "count": count})))
        for count in (3, UNBOUNDED)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("code", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_steps_of_a_recurrent_layer(code: str, gates: int) -> None:
    units, depth, rng = 5, 4, np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(2, gates * units, depth)).astype(np.float32),
        "r": rng.normal(size=(2, gates * units, units)).astype(np.float32),
    }
    layer = node(code, ("x", "w", "r"), hidden_size=units, direction="bidirectional")
    sizes = [network_size(read(proto([layer], {"x": (steps, 1, depth)}, weights))) for steps in (8, 80)]
    assert sizes[0] == sizes[1]
