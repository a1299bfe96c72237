"""Running TIR on numpy arrays: the meaning of a PrimFunc, and the proof tool for its arithmetic.

The function is translated to Python source and executed. Integers are Python's, so that signed overflow is *seen*: it
raises :class:`InternalError`, as do indices out of bounds, block iterators outside their domain, division by zero and
shifts by more than the width. Unsigned arithmetic and integer casts wrap. Floats are numpy scalars of their own dtype.
Workspace memory starts poisoned (0x55 bytes, NaN), so that reading it too early shows. Every loop runs serially.

Checks are left out where the ranges of the operands already exclude the fault (ranges from loop extents, block domains and
dtypes only).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from microc import dtypes
from microc.dtypes import Array, to_numpy
from microc.errors import InternalError
from microc.tir import ir, operators
from microc.tir.interp_source import SourceWriter
from microc.tir.mathematics import FUNCTIONS
from microc.tir.symbolic import require_fixed

Intrinsics = Mapping[str, Callable[[list[Any]], Any]]
_NONE: Intrinsics = MappingProxyType({})


def run(func: ir.PrimFunc, args: Sequence[Array], intrinsics: Intrinsics = _NONE) -> None:
    """Execute ``func`` on C-contiguous arrays in parameter order; outputs are written in place.

    ``intrinsics`` gives calls that are no mathematical function their meaning: ``f(args) -> value``, where an
    :class:`~microc.tir.ir.AddressOf` argument is passed as (flat array view, flat element index).
    """
    compile_func(func)(args, intrinsics)


def execute(func: ir.PrimFunc, arrays: Sequence[Array], intrinsics: Intrinsics = _NONE) -> list[Array]:
    """Like :func:`run` on copies, which are returned in parameter order."""
    copies = [np.array(array, order="C") for array in arrays]
    run(func, copies, intrinsics)
    return copies


def compile_func(func: ir.PrimFunc) -> Callable[[Sequence[Array], Intrinsics], None]:
    """The translated function, for running it many times: ``compiled(args, intrinsics)``."""
    require_fixed(func)
    writer = SourceWriter(func)
    source = writer.source()
    environment: dict[str, Any] = {**_ENVIRONMENT, **writer.constants, "_func": func.name, "_math": FUNCTIONS}
    exec(compile(source, f"<tir {func.name}>", "exec"), environment)
    kernel = environment["kernel"]

    def compiled(args: Sequence[Array], intrinsics: Intrinsics = _NONE) -> None:
        missing = sorted(writer.intrinsics - set(intrinsics))
        if missing:
            raise InternalError(f"no meaning is given for {', '.join(missing)}", where=func.name)
        _check_arguments(func, args)
        try:
            with np.errstate(all="ignore"):
                kernel([array.reshape(-1) for array in args], intrinsics)
        except ZeroDivisionError as fault:
            raise InternalError("integer division by zero", where=func.name) from fault

    return compiled


def _check_arguments(func: ir.PrimFunc, args: Sequence[Array]) -> None:
    if len(args) != len(func.params):
        raise InternalError(f"{len(func.params)} arrays expected, {len(args)} given", where=func.name)
    for buffer, array in zip(func.params, args, strict=True):
        if array.shape != buffer.shape or array.dtype != to_numpy(buffer.dtype):
            raise InternalError(
                f"{buffer.name} is {buffer.dtype}{list(buffer.shape)}, given {array.dtype}{list(array.shape)}",
                where=func.name,
            )
        if not array.flags.c_contiguous:
            raise InternalError(f"{buffer.name}: the array is not contiguous", where=func.name)


# ---------------------------------------------------------------- what the generated source calls


def _overflow(func: str, op: str, dtype: str, value: int) -> NoReturn:
    raise InternalError(f"{op} overflows {dtype}: {value}", where=func)


def _out_of_bounds(func: str, buffer: str, shape: tuple[int, ...], indices: tuple[int, ...]) -> NoReturn:
    raise InternalError(f"{buffer}{list(indices)} lies outside {list(shape)}", where=func)


def _out_of_domain(func: str, block: str, var: str, extent: int, value: int) -> NoReturn:
    raise InternalError(f"block {block}: {var} = {value} is not in 0..{extent - 1}", where=func)


def _bad_shift(func: str, op: str, dtype: str, value: int) -> NoReturn:
    raise InternalError(f"{op} of {dtype} by {value}", where=func)


def _float_to_int(func: str, dtype: str, low: int, high: int, value: Any) -> int:
    if not np.isfinite(value) or not low <= int(value) <= high:
        raise InternalError(f"{value} does not fit {dtype}", where=func)
    return int(value)


def _int_to_float32(value: int) -> np.float32:
    """One rounding also beyond 2**53, where a detour through double would round twice."""
    return np.float32(np.uint64(value) if value >> 63 > 0 else np.int64(value))


def _reinterpret(source: str, dtype: str, value: Any) -> Any:
    bits = np.array([value], to_numpy(source)).view(to_numpy(dtype))[0]
    return bits if dtypes.is_float(dtype) else int(bits)


def _allocate(size: int, dtype: str) -> Array:
    kind = to_numpy(dtype)
    if kind.kind == "f":
        return np.full(size, np.nan, kind)
    if kind.kind == "b":
        return np.ones(size, kind)
    return np.full(size * kind.itemsize, 0x55, np.uint8).view(kind)


_ENVIRONMENT: Mapping[str, Any] = MappingProxyType(
    {
        "overflow": _overflow,
        "out_of_bounds": _out_of_bounds,
        "out_of_domain": _out_of_domain,
        "bad_shift": _bad_shift,
        "float_to_int": _float_to_int,
        "int_to_float32": _int_to_float32,
        "reinterpret": _reinterpret,
        "allocate": _allocate,
        **{name: each.value for name, each in operators.BINARY.items() if not each.text},
        "f16": np.float16,
        "bf16": lambda x: dtypes.to_numpy("bfloat16").type(x),
        "f32": np.float32,
        "f64": np.float64,
    }
)
