# SPDX-License-Identifier: Apache-2.0
"""The schedule primitives by name, and the check of their arguments. A primitive is a function of a TIR function and
of arguments that JSON can represent; it returns the changed TIR function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from microc.errors import ScheduleError
from microc.schedule.primitives import (
    compute_at,
    float_functions,
    identity_selection,
    intrinsic_selection,
    loops,
    padding,
    reductions,
    storage,
    tensor_unit,
    tensorize,
    tensorize_bits,
)
from microc.schedule.primitives import loops as doubling
from microc.schedule.primitives import loops as flags
from microc.schedule.primitives import storage as packing
from microc.schedule.primitives import tensorize as pairing
from microc.schedule.primitives import tensorize as tap_pairs
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
        "compute_at": compute_at.compute_at,
        "reverse_compute_at": compute_at.reverse_compute_at,
        "compute_inline": compute_at.compute_inline,
        "reverse_compute_inline": compute_at.reverse_compute_inline,
        "cache_read": storage.cache_read,
        "cache_write": storage.cache_write,
        "set_scope": storage.set_scope,
        "set_dtype": packing.set_dtype,
        "transform_layout": packing.transform_layout,
        "storage_align": padding.storage_align,
        "pad_reduction": padding.pad_reduction,
        "decompose_padding": padding.decompose_padding,
        "double_reduction": doubling.double_reduction,
        "decompose_reduction": reductions.decompose_reduction,
        "defer_init": reductions.defer_init,
        "blockize": reductions.blockize,
        "rfactor": reductions.rfactor,
        "tensorize": tensorize.tensorize,
        "tensorize_pairs": pairing.tensorize_pairs,
        "tensorize_taps": tap_pairs.tensorize_taps,
        "pack_bits": packing.pack_bits,
        "tensorize_bits": tensorize_bits.tensorize_bits,
        "tensorize_bit_columns": tensorize_bits.tensorize_bit_columns,
        "select_functions": float_functions.select_functions,
        "apply_identities": identity_selection.apply_identities,
        "select_intrinsics": intrinsic_selection.select_intrinsics,
        "align_rows": tensor_unit.align_rows,
        "double_buffer": tensor_unit.double_buffer,
        "compile_with": flags.compile_with,
    }
)


def check_arguments(primitive: str, args: tuple[Any, ...]) -> None:
    """Check the number and the types of a primitive's arguments. Raise ScheduleError if they do not match the
    primitive's signature.

    Traces come from files and from users, and the primitives themselves do not check the types of names and numbers."""
    required, parameters = _required_count_and_parameters(primitive)
    if not required <= len(args) <= len(parameters):
        takes = ", ".join(name for name, _ in parameters) or "nothing"
        raise ScheduleError(f"{primitive}: wrong number of arguments; got {len(args)}, expected {takes}")
    for (name, type_), value in zip(parameters, args, strict=False):
        if not _is_of_type(value, type_):
            expected = type_.__name__ if isinstance(type_, type) else str(type_)
            raise ScheduleError(f"{primitive}: argument {name} has a wrong type; got {value!r}, expected {expected}")


@lru_cache(maxsize=64)
def _required_count_and_parameters(primitive: str) -> tuple[int, tuple[tuple[str, Any], ...]]:
    """Return the number of required arguments of a primitive, and (name, type) of each parameter except the first,
    which is the TIR function."""
    function = PRIMITIVES[primitive]
    types = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    required = sum(parameter.default is inspect.Parameter.empty for parameter in parameters)
    return required, tuple((parameter.name, types[parameter.name]) for parameter in parameters)


def _is_of_type(argument: Any, annotation: Any) -> bool:
    """Test whether a value has an annotated type: a name, a number, None, or a union or tuple (of any length) of
    these."""
    if isinstance(annotation, UnionType):
        return any(_is_of_type(argument, each) for each in get_args(annotation))
    if get_origin(annotation) is tuple:
        return isinstance(argument, tuple) and all(_is_of_type(each, get_args(annotation)[0]) for each in argument)
    if annotation is int:
        return isinstance(argument, int) and not isinstance(argument, bool)
    return isinstance(argument, annotation)
