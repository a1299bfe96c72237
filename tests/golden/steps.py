# SPDX-License-Identifier: Apache-2.0
"""Schedule primitives: a function before and after one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from microc.schedule.primitives.tree import Step
from microc.schedule.schedule import PRIMITIVES, Schedule
from microc.tir import ir
from microc.tir.text import to_text
from tests.golden.kernels import derived
from tests.schedule.functions import chain, matmul, padded_rows
from tests.schedule.test_float import product as floats

Start = Callable[[], Schedule]


def product() -> Schedule:
    return Schedule(matmul(2, 8, 4))


def window() -> Schedule:
    return Schedule(padded_rows(4, 2))


WRITTEN: Mapping[str, tuple[Start, Step]] = {
    "split": (product, Step("split", ("k", (None, 4)))),
    "split_tail": (product, Step("split", ("k", (None, 3)))),
    "fuse": (product, Step("fuse", (("p", "o"),))),
    "reorder": (product, Step("reorder", (("k", "o", "p"),))),
    "set_kind": (product, Step("set_kind", ("k", "unrolled"))),
    "annotate_loop": (product, Step("annotate_loop", ("p", "peel", 0))),
    "annotate_block": (product, Step("annotate_block", ("acc", "bound", 9))),
    "compute_at": (product, Step("compute_at", ("acc", "p_out"))),
    "compute_at_padded": (window, Step("compute_at", ("padded", "y_acc"))),
    "reverse_compute_at": (product, Step("reverse_compute_at", ("out", "o"))),
    "reverse_compute_inline": (lambda: Schedule(chain(6)), Step("reverse_compute_inline", ("out",))),
    "rfactor": (lambda: product().split("k", (None, 4)), Step("rfactor", ("acc", "k_1"))),
    "blockize": (
        lambda: product().tile("p", "o", 2, 2).reorder("p_0", "o_0", "k", "p_1", "o_1"),
        Step("blockize", ("p_1",)),
    ),
    "compute_at_tile": (
        lambda: product().split("o", (None, 4)).blockize("o_1").split("o_out", (None, 4)),
        Step("compute_at", ("acc_o", "o_out_0")),
    ),
    "tensorize_tile": (
        lambda: product().split("k", (None, 4)).blockize("k_1"),
        Step("tensorize", ("acc_o", "dot4_int8_int8")),
    ),
    "compute_inline": (window, Step("compute_inline", ("padded",))),
    "rename_block": (product, Step("rename_block", ("out", "end"))),
    "cache_read": (product, Step("cache_read", ("acc", "x", "workspace"))),
    "cache_write": (product, Step("cache_write", ("out", "workspace"))),
    "set_scope": (lambda: product().reverse_compute_at("out", "o"), Step("set_scope", ("acc", "register"))),
    "set_dtype": (product, Step("set_dtype", ("weight", "int16"))),
    "set_dtype_half": (lambda: Schedule(floats(2, 8, 4)), Step("set_dtype", ("weight", "float16"))),
    "set_dtype_words": (lambda: Schedule(floats(2, 8, 4)), Step("set_dtype", ("weight", "float16x2"))),
    "pack_bits": (product, Step("pack_bits", ("weight", 4, "neighbours"))),
    "transform_layout": (product, Step("transform_layout", ("weight", ((None,), (None, 2)), (1, 0, 2)))),
    "storage_align": (window, Step("storage_align", ("padded", 0, 4))),
    "pad_reduction": (lambda: window().split("y_acc", (None, 3)), Step("pad_reduction", ("acc",))),
    "decompose_padding": (
        lambda: window().reorder("c_acc", "y_acc").compute_at("padded", "c_acc"),
        Step("decompose_padding", ("padded",)),
    ),
    "decompose_reduction": (product, Step("decompose_reduction", ("acc", "k"))),
    "align_rows": (lambda: product().set_scope("acc", "unit_sums"), Step("align_rows", ("acc", 16))),
    "double_buffer": (
        lambda: product().reverse_compute_at("out", "p").set_scope("acc", "unit_sums"),
        Step("double_buffer", ("acc", "p")),
    ),
    "tensorize_unit": (
        lambda: product().cache_read("acc", "weight", "unit_weight"),
        Step("tensorize", ("weight_unit_weight_i0", "unit_load_weight")),
    ),
    "compile_with": (product, Step("compile_with", ("no-gcse,unroll-loops",))),
    "tensorize": (
        lambda: product().split("k", (None, 4)).decompose_reduction("acc", "k_0"),
        Step("tensorize", ("k_1", "dot4_int8_int8")),
    ),
}
"""Steps on two small functions."""

TAKEN: Mapping[str, str] = {
    "defer_init": "pointwise_m55",
    "double_reduction": "pointwise_m4",
    "tensorize_pairs": "dense_paired_m4",
    "tensorize_taps": "depthwise_vnni",
    "tensorize_bits": "pointwise_bits_m4",
    "tensorize_bit_columns": "dense_bits_m4",
    "apply_identities": "requantize_channels_m4",
    "select_intrinsics": "requantize_m4",
    "select_functions": "erf_v3",
}
"""Primitives that need what operators write: the first such step of a kernel of :mod:`tests.golden.kernels`."""


def _text(step: str, before: ir.PrimFunc, after: ir.PrimFunc) -> str:
    return f"# before {step}\n{to_text(before)}\n# after\n{to_text(after)}"


def _written(name: str) -> str:
    start, step = WRITTEN[name]
    before = start()
    return _text(str(step), before.func, before.apply(step.primitive, *step.args).func)


def _taken(primitive: str) -> str:
    (part,) = derived(TAKEN[primitive]).parts
    before = part.start.func
    for step, after in part.steps:
        if step.primitive == primitive:
            return _text(str(step), before, after)
        before = after
    raise AssertionError(f"{TAKEN[primitive]} takes no {primitive}: {[str(step) for step, _ in part.steps]}")


TEXTS: Mapping[str, Callable[[], str]] = {
    **{f"steps/{name}.tir": partial(_written, name) for name in WRITTEN},
    **{f"steps/{name}.tir": partial(_taken, name) for name in TAKEN},
}
_MISSING = PRIMITIVES.keys() - {step.primitive for _, step in WRITTEN.values()} - set(TAKEN)
assert not _MISSING, f"tests/golden/steps.py has no example of {', '.join(sorted(_MISSING))}"
