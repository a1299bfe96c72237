"""What a step of a trace may be: every primitive by its name, a function of a function and of JSON-able arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from microc.schedule import (
    bit_columns,
    bit_pairs,
    blockize,
    conversion,
    doubling,
    flags,
    loops,
    packing,
    padding,
    pairing,
    placement,
    polynomials,
    reduction,
    rfactor,
    selection,
    storage,
    tap_pairs,
    tensorize,
    unit,
)
from microc.tir import ir

PRIMITIVES: Mapping[str, Callable[..., ir.PrimFunc]] = MappingProxyType(
    {
        "split": loops.split,
        "fuse": loops.fuse,
        "reorder": loops.reorder,
        "set_kind": loops.set_kind,
        "annotate_loop": loops.annotate_loop,
        "annotate_block": loops.annotate_block,
        "rename_block": loops.rename_block,
        "compute_at": placement.compute_at,
        "reverse_compute_at": placement.reverse_compute_at,
        "compute_inline": placement.compute_inline,
        "reverse_compute_inline": placement.reverse_compute_inline,
        "cache_read": storage.cache_read,
        "cache_write": storage.cache_write,
        "set_scope": storage.set_scope,
        "set_dtype": packing.set_dtype,
        "transform_layout": packing.transform_layout,
        "storage_align": padding.storage_align,
        "pad_reduction": padding.pad_reduction,
        "decompose_padding": padding.decompose_padding,
        "double_reduction": doubling.double_reduction,
        "decompose_reduction": reduction.decompose_reduction,
        "defer_init": reduction.defer_init,
        "blockize": blockize.blockize,
        "rfactor": rfactor.rfactor,
        "tensorize": tensorize.tensorize,
        "tensorize_pairs": pairing.tensorize_pairs,
        "tensorize_taps": tap_pairs.tensorize_taps,
        "pack_bits": packing.pack_bits,
        "tensorize_bits": bit_pairs.tensorize_bits,
        "tensorize_bit_columns": bit_columns.tensorize_bit_columns,
        "select_rounding": selection.select_rounding,
        "select_saturation": selection.select_saturation,
        "select_fma": selection.select_fma,
        "select_byte_products": selection.select_byte_products,
        "select_conversion": conversion.select_conversion,
        "select_functions": polynomials.select_functions,
        "select_high_mul": selection.select_high_mul,
        "select_high_mac": selection.select_high_mac,
        "select_clamp": selection.select_clamp,
        "align_rows": unit.align_rows,
        "double_buffer": unit.double_buffer,
        "compile_with": flags.compile_with,
    }
)
