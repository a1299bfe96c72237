# SPDX-License-Identifier: Apache-2.0
"""Models of single operators, damaged: each is a graph or a refusal with its place, soon, and in little memory.

``test_tflite_corpus.py`` does so with real models.
"""

from __future__ import annotations

import resource
from collections import Counter

import numpy as np
import pytest

from microc.errors import MicrocError
from microc.frontend.tflite import reader as tflite
from tests.frontend.mutate import survey
from tests.frontend.tflite.test_compressed import header, model_of, stream
from tests.frontend.tflite.test_detection import post_process
from tests.frontend.tflite.test_int4 import network
from tests.frontend.tflite.test_recurrent import lstm
from tests.frontend.tflite_model import Op, Subgraph, Tensor, constant, model
from tests.ops.oracle import single

X, Y = Tensor("x", (4, 6)), Tensor("y", (4, 6))
IMAGE = Tensor("x", (1, 4, 4, 2))


def ints(name: str, *values: int) -> Tensor:
    return constant(name, np.array(values, np.int32))


def calling(called: int) -> bytes:
    """A model that calls a subgraph, which calls another one."""
    call = Op("CALL", ("x",), ("y",), "CallOptions", {"Subgraph": 1})
    inner = Subgraph((X, Y), (Op("CALL", ("x",), ("y",), "CallOptions", {"Subgraph": called}),), ("x",), ("y",))
    last = Subgraph((X, Y), (Op("RELU", ("x",), ("y",)),), ("x",), ("y",))
    return model((X, Y), (call,), ("x",), ("y",), (inner, last))


def models() -> dict[str, bytes]:
    """Operators whose constants say how much there is to do."""
    made = {
        "call": calling(2),
        "compressed": model_of(
            bytes(64), header(0, 3, 8) + bytes(8), Tensor("w", (5, 7), "INT8", scale=(0.5,), zero_point=(0,))
        ),
        "detection": post_process(True, 1),
        "four bits": network(True),
        "lstm": lstm("int8", 1, 3, False, 0.0),
        "stream": stream(2),
    }
    ops: dict[str, tuple[Op, tuple[Tensor, ...]]] = {
        "fill": (Op("FILL", ("n", "x"), ("y",)), (ints("n", 4, 6), Tensor("x", ()), Y)),
        "range": (
            Op("RANGE", ("a", "b", "c"), ("y",), "RangeOptions"),
            (ints("a", 1), ints("b", 9), ints("c", 2), Tensor("y", (4,), "INT32")),
        ),
        "resize": (
            Op("RESIZE_BILINEAR", ("x", "n"), ("y",), "ResizeBilinearOptions"),
            (IMAGE, ints("n", 6, 6), Tensor("y", (1, 6, 6, 2))),
        ),
        "scatter": (
            Op("SCATTER_ND", ("at", "x", "n"), ("y",)),
            (constant("at", np.array([[1], [3]], np.int32)), Tensor("x", (2, 6)), ints("n", 4, 6), Y),
        ),
        "segments": (
            Op("UNSORTED_SEGMENT_SUM", ("x", "at", "n"), ("y",)),
            (X, ints("at", 0, 2, 1, 1), ints("n", 4), Y),
        ),
        "sparse": (
            Op("SPARSE_TO_DENSE", ("at", "n", "x", "z"), ("y",)),
            (
                ints("at", 1, 3),
                ints("n", 9),
                Tensor("x", (2,)),
                constant("z", np.zeros((), np.float32)),
                Tensor("y", (9,)),
            ),
        ),
        "tile": (Op("TILE", ("x", "n"), ("y",)), (X, ints("n", 2, 3), Tensor("y", (8, 18)))),
        "pad": (
            Op("PAD", ("x", "n"), ("y",)),
            (X, constant("n", np.array([[1, 1], [0, 2]], np.int32)), Tensor("y", (6, 8))),
        ),
        "one hot": (
            Op("ONE_HOT", ("x", "n", "a", "b"), ("y",), "OneHotOptions", {"Axis": -1}),
            (
                Tensor("x", (4,), "INT32"),
                ints("n", 6),
                constant("a", np.ones((), np.float32)),
                constant("b", np.zeros((), np.float32)),
                Y,
            ),
        ),
        "dilate": (
            Op("DILATE", ("x", "n", "z"), ("y",), "DilateOptions"),
            (X, ints("n", 2, 3), constant("z", np.zeros((), np.float32)), Tensor("y", (7, 16))),
        ),
    }
    return made | {name: single(op, tensors) for name, (op, tensors) in ops.items()}


MODELS = models()


@pytest.mark.parametrize("name", MODELS)
def test_damage_is_refused_soon_and_cheaply(name: str) -> None:
    """The most memory that this process ever had grows by little."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = survey(lambda mutant: tflite.read_tflite(mutant, "mutant.tflite"), MODELS[name], 120, seed=len(name))
    assert outcomes["ModelError"] > 10, outcomes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000


@pytest.mark.parametrize("name", MODELS)
def test_numbers_that_are_too_large_are_refused(name: str) -> None:
    """Every word that looks like a small count, made huge or negative."""
    data, outcomes = MODELS[name], Counter[str]()
    for place in range(0, len(data) - 4, 4):
        if int.from_bytes(data[place : place + 4], "little") in (2, 3, 4, 6, 9):
            for number in (0x7FFFFFFF, 0x00FFFFFF, 0x80000000):
                mutant = data[:place] + number.to_bytes(4, "little") + data[place + 4 :]
                try:
                    tflite.read_tflite(mutant, "mutant.tflite")
                except MicrocError as error:
                    outcomes[type(error).__name__] += 1
    assert outcomes["ModelError"]


def test_subgraphs_that_call_themselves_end() -> None:
    with pytest.raises(MicrocError, match="calls itself"):
        tflite.read_tflite(calling(1), "circle.tflite")
