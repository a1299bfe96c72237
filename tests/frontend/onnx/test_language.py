# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's operators of language models compute what ONNX Runtime computes, step after step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from tests.frontend.onnx_model import expected, node, proto, read
from tests.frontend.run import library

RNG = np.random.default_rng(3)
MICROSOFT = "com.microsoft"
ROOM, WIDTH = 9, 32


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def angles(half: int = WIDTH // 2) -> dict[str, Array]:
    turns = np.arange(16)[:, None] / 50.0 ** (np.arange(half) / half)
    return {"cos": np.cos(turns).astype(np.float32), "sin": np.sin(turns).astype(np.float32)}


def compared(model: Any, given: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime makes of a model, which our C makes, too."""
    arrays = list(given.values())
    wanted = expected(model, arrays)
    found = library(read(model, {name: x.shape for name, x in given.items()}))(*arrays)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    for ours, theirs in zip(results, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    return wanted


def test_norm() -> None:
    x = normal(2, 3, 8)
    each = node("SimplifiedLayerNormalization", ("x", "w"), epsilon=1e-3, axis=-1)
    compared(proto([each], {"x": x.shape}, {"w": normal(8)}), {"x": x})


@pytest.mark.parametrize("biased", [False, True])
def test_norm_of_a_sum(biased: bool) -> None:
    given = {"x": normal(1, 3, 8), "s": normal(1, 3, 8)}
    constants = {"w": normal(8), **({"b": normal(8)} if biased else {})}
    each = node(
        "SkipSimplifiedLayerNormalization", (*given, *constants), ("y", "", "", "t"), MICROSOFT, epsilon=1e-5
    )  # fmt: skip
    compared(proto([each], {name: x.shape for name, x in given.items()}, constants, ("y", "t")), given)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(2, 3, 2 * WIDTH), (2, 2, 3, WIDTH)])
def test_positions_as_rotations(interleaved: int, shape: tuple[int, ...]) -> None:
    heads: dict[str, Any] = {"num_heads": 2} if len(shape) == 3 else {}
    each = node("RotaryEmbedding", ("x", "p", "cos", "sin"), domain=MICROSOFT, interleaved=interleaved, **heads)
    given = {"x": normal(*shape), "p": np.array([[4, 5, 6], [0, 9, 2]], np.int64)}
    dtypes = {"p": "int64"}
    compared(proto([each], {name: x.shape for name, x in given.items()}, angles(), dtypes=dtypes), given)
    given["p"] = np.array([5], np.int64)
    compared(proto([each], {name: x.shape for name, x in given.items()}, angles(), dtypes=dtypes), given)


def attention(
    rows: int, packed: bool, past: int | None = ROOM, total: int | None = ROOM, half: int = WIDTH // 2, **attrs: int
) -> tuple[Any, dict[str, Array]]:
    """A model of four heads that share two, and inputs for it but the last position (0)."""
    parts = {"q": 4, "k": 2, "v": 2}
    data = {"q": normal(1, rows, 8 * WIDTH)} if packed else {n: normal(1, rows, c * WIDTH) for n, c in parts.items()}
    caches = {"pk": normal(1, 2, past, WIDTH), "pv": normal(1, 2, past, WIDTH)} if past else {}
    given = {**data, **caches, "last": np.array([[0]], np.int32)}
    constants = {"total": np.array(total, np.int32), **(angles(half) if attrs.get("do_rotary") else {})}
    names = [
        n if n in given or n in constants else "" for n in ("q", "k", "v", "pk", "pv", "last", "total", "cos", "sin")
    ]
    while not names[-1]:
        names.pop()
    each = node("GroupQueryAttention", names, ("y", "nk", "nv"), MICROSOFT, num_heads=4, kv_num_heads=2, **attrs)
    shapes = {name: x.shape for name, x in given.items()}
    return proto([each], shapes, constants, ("y", "nk", "nv"), dtypes={"last": "int32"}), given


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attrs", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}])
def test_steps_with_a_cache(packed: bool, attrs: Mapping[str, int]) -> None:
    model, given = attention(1, packed, **attrs)
    wanted = [np.zeros(given["pk"].shape, np.float32)] * 3
    for position in range(4):
        caches = {"pk": wanted[1], "pv": wanted[2]}
        fresh = {name: normal(*x.shape) for name, x in given.items() if name in "qkv"}
        wanted = compared(model, {**given, **caches, **fresh, "last": np.array([[position]], np.int32)})


def test_several_rows_behind_others() -> None:
    """Beyond what it holds the past is zeros, which ONNX Runtime leaves where caches do not share their memory."""
    model, given = attention(3, True, do_rotary=1)
    for name in ("pk", "pv"):
        given[name][:, :, 4:] = 0
    compared(model, {**given, "last": np.array([[6]], np.int32)})


@pytest.mark.parametrize("half", [WIDTH // 2, WIDTH // 4])
def test_a_beginning_without_a_past(half: int) -> None:
    model, given = attention(5, False, past=None, total=5, do_rotary=1, half=half)
    compared(model, {**given, "last": np.array([[4]], np.int32)})


def test_a_past_that_is_full_grows() -> None:
    model, given = attention(2, True, past=4, total=6, do_rotary=1)
    wanted = compared(model, {**given, "last": np.array([[5]], np.int32)})
    assert wanted[1].shape == (1, 2, 6, WIDTH)


@pytest.mark.parametrize(
    ("attrs", "what"), [({"local_window_size": 4}, "local_window_size"), ({"softcap": 2.0}, "softcap")]
)
def test_variants_that_are_not_built_are_refused(attrs: Mapping[str, Any], what: str) -> None:
    model, _ = attention(1, True, **attrs)
    with pytest.raises(UnsupportedError, match=what):
        read(model)


@pytest.mark.parametrize("attrs", [{"num_heads": 3}, {"num_heads": 0}, {"kv_num_heads": 3}])
def test_heads_that_do_not_fit_are_refused(attrs: Mapping[str, int]) -> None:
    model, _ = attention(1, True)
    for attribute in model.graph.node[0].attribute:
        attribute.i = attrs.get(attribute.name, attribute.i)
    with pytest.raises(ModelError, match="heads"):
        read(model)


def test_tables_that_are_none_are_refused() -> None:
    model, _ = attention(1, True, do_rotary=1)
    for table in model.graph.initializer:
        if table.name == "cos":
            del table.dims[:]
            table.dims.extend([16 * WIDTH // 2])
    with pytest.raises(ModelError, match="input 7 has shape"):
        read(model)
