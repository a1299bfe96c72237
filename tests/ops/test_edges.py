# SPDX-License-Identifier: Apache-2.0
"""Every operator is tested on NaN, infinities, the ends of its integers and empty tensors, or the reason stands here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops import registry
from tests.ops.edges import EMPTY, edge_cases, shown_edges, wanted_edges
from tests.ops.harness import UNDEFINED, attributes

_SUMS = "a kernel, a window or a row has one element at least"
_INDEXED = "there is nothing to point into"
REFUSED = {
    "conv2d": _SUMS,
    "conv2d_transpose": _SUMS,
    "convolution": _SUMS,
    "convolution_transpose": _SUMS,
    "dynamic_quantize": "a row without elements has no scale",
    "dynamic_slice": "a part has one element at least",
    "dynamic_update_slice": "a part has one element at least",
    "l2_normalize": _SUMS,
    "log_softmax": _SUMS,
    "max": "nothing has no maximum",
    "mean": "nothing has no mean",
    "min": "nothing has no minimum",
    "mirror_pad": "there is nothing to mirror",
    "prod": _SUMS,
    "ql2_normalize": _SUMS,
    "roi_align": _SUMS,
    "scatter_elements": _INDEXED,
    "signal_energy": "its frequencies lie within the spectrum",
    "slice": "a slice has one element at least: readers leave out what has none",
    "sum": _SUMS,
    "suppress": "there is no box to choose",
}
"""Operators that raise ModelError where an extent is zero."""

OPERATORS = [definition for definition in registry.registry().values() if not definition.composed]


@pytest.mark.parametrize("definition", OPERATORS, ids=lambda definition: definition.name)
def test_every_edge_is_shown_or_argued(definition: registry.OpDef) -> None:
    shown, made = shown_edges(definition), {case.name for case in edge_cases(definition)}
    missing = set(wanted_edges(definition)) - shown - made
    assert missing == ({EMPTY} if definition.name in REFUSED else set())


def test_exemptions_are_of_operators_and_edges_that_exist() -> None:
    for name, edges in UNDEFINED.items():
        assert set(edges) <= {case.name for case in edge_cases(registry.get(name))}, name
    assert set(REFUSED) <= set(registry.registry())


ONE_WAY = ("prelu", "qprelu", "requantize_float", "signal_window", "where")
"""Slopes, scales, and a window broadcast to the data; a condition is broadcast with what it chooses from."""
BROADCASTING = [
    d for d in OPERATORS if d.elementwise and not d.whole and d.name not in ONE_WAY and len(d.operand_names) == 2
]


@pytest.mark.parametrize("definition", BROADCASTING, ids=lambda definition: definition.name)
def test_operands_broadcast_both_ways(definition: registry.OpDef) -> None:
    """Each of the first two operands is the smaller one in some case, or each is in one."""
    smaller = set()
    for case in definition.cases():
        (result,) = definition.infer(attributes(definition, case), case.types)
        smaller |= {k for k, kind in enumerate(case.types[:2]) if np.prod(kind.shape) < np.prod(result.shape)}
    assert smaller == {0, 1}


def test_the_lowest_integer_by_minus_one() -> None:
    """It has no quotient that fits; operators have a result for it nevertheless."""
    low = np.iinfo(np.int32).min
    for name, wanted in (("div", low), ("floor_div", low), ("floor_mod", 0), ("fmod", 0)):
        definition = registry.get(name)
        made = definition.reference(dict(definition.defaults), [np.array([low], np.int32), np.array([-1], np.int32)])
        assert made[0].tolist() == [wanted]


def test_empty_axes_are_refused_clearly() -> None:
    with pytest.raises(ModelError, match="conv2d: data and weights need four axes"):
        registry.infer("conv2d", {}, [TensorType((0, 4, 4, 2), "float32"), TensorType((3, 1, 1, 2), "float32")])


_LOW = -(1 << 31)
PROMISES: tuple[tuple[str, dict[str, Any], tuple[Any, ...], Any], ...] = (
    ("abs", {}, ([_LOW],), [_LOW]),
    ("neg", {}, ([_LOW],), [_LOW]),
    ("add", {}, ([_LOW], [-1]), [-1 - _LOW]),
    ("mul", {}, ([1 << 30], [6]), [_LOW]),
    ("div", {}, ([5, _LOW], [0, -1]), [0, _LOW]),
    ("floor_div", {}, ([-5, _LOW], [0, -1]), [0, _LOW]),
    ("fmod", {}, ([5, _LOW], [0, -1]), [0, 0]),
    ("shift_left", {}, ([3, 3], [32, -1]), [0, 0]),
    ("shift_right", {}, ([-3, 3, -3], [32, 40, -1]), [-1, 0, -1]),
    ("cast", {"dtype": "int32"}, ([3e9, -np.inf, np.nan],), [-1 - _LOW, _LOW, 0]),
    ("cast", {"dtype": "uint8"}, ([300.0, -1.0],), [44, 255]),
    ("quantize", {"scale": (1.0,), "zero_point": (5,), "out_dtype": "uint8"}, ([np.nan, np.inf],), [0, 255]),
    ("gather", {}, ([1, 2, 3], [5, -1, -9]), [3, 3, 1]),
    ("scatter_nd", {}, ([1, 2, 3], [[7], [-9]], [8, 9]), [9, 2, 8]),
    ("dynamic_slice", {"size": (2,)}, ([1, 2, 3], [9]), [2, 3]),
    ("dynamic_slice", {"size": (2,)}, ([1, 2, 3], [-9]), [1, 2]),
    ("max", {"axes": (0,)}, ([1.0, np.nan, 3.0],), np.nan),
    ("argmax", {"axis": 0}, ([1.0, np.nan, 3.0],), 2),
    ("argmax", {"axis": 0}, ([np.nan, 1.0, 3.0],), 0),
)


@pytest.mark.parametrize(("name", "attrs", "operands", "wanted"), PROMISES)
def test_what_the_page_of_operators_says(
    name: str, attrs: dict[str, Any], operands: tuple[Any, ...], wanted: Any
) -> None:
    """Where formats define nothing; the references here, which the C is held to by ``test_compiled.py``."""
    definition = registry.get(name)
    arrays = [np.array(each, np.float32 if isinstance(each[0], float) else np.int32) for each in operands]
    (made,) = definition.reference({**definition.defaults, **attrs}, arrays)
    np.testing.assert_array_equal(made, wanted)
    assert definition.edges
