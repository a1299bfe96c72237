"""Samples in a project: the example's input, and the self-test's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.interface import definition
from microc.codegen.render import Code, Name
from microc.module import Module, Value

# ---- The sample that the example of an export runs on: one input of every tensor, or a sequence of them.
#
# A network that keeps something from run to run is given frame after frame, each another one: what it says of a frame depends on
# those before, so that one input again and again would show little of it. The example resets it once, before the first.

Frame = tuple[Array, ...]
"""An array for every input of the network, in order."""
FRAMES = 8
"""Frames for a network with state, where they take little flash."""
BYTES = 16 * 1024
"""What all frames take at most, unless two of them take more."""


def sample_frames(module: Module) -> tuple[Frame, ...]:
    """Frames that are the same everywhere: bytes of a pattern, floats from -1 on to 1. One for a network without state."""
    size = sum(module.values[name].nbytes for name in module.inputs)
    count = min(FRAMES, max(2, BYTES // max(size, 1))) if module.state else 1
    return tuple(
        tuple(_pattern(module.values[name], k, frame) for k, name in enumerate(module.inputs)) for frame in range(count)
    )


def sample(module: Module) -> Frame:
    """The first of :func:`sample_frames`."""
    return sample_frames(module)[0]


def _pattern(value: Value, number: int, frame: int) -> Array:
    steps: Array = (np.arange(value.nbytes // dtypes.nbytes(value.dtype)) * 37 + 101 * number + 59 * frame) % 256
    if value.dtype == "bool":
        steps = steps % 2
    elif dtypes.is_float(value.dtype):
        steps = (steps - 128) / 128
    elif dtypes.int_range(value.dtype)[0] < 0:
        steps = steps - 128
    return steps.astype(dtypes.to_numpy(value.dtype)).reshape(value.shape)


def definitions(module: Module, frames: Sequence[Frame], space: str) -> tuple[Code, ...]:
    """Arrays of C, one for every input: its frames one after the other. ``space`` as in :func:`definition`."""
    arrays = (np.stack(parts) for parts in zip(*frames, strict=True))
    return tuple(
        Code("static " + "\n".join(definition(_stored(f"{name}_values", array), space=space)))
        for name, array in zip(module.inputs, arrays, strict=bool(frames[0]))
    )


def _stored(name: str, array: Array) -> Value:
    """An array as a constant of C; halves of floats are their bits there."""
    bits = array.view(np.uint16) if str(array.dtype) in dtypes.HALF else array
    return Value(name, bits.shape, str(bits.dtype), "const", bits)


def literals(frames: Sequence[Frame], width: int = 24) -> tuple[tuple[tuple[Code, ...], ...], ...]:
    """Of every frame, every input: literals of bytes in Python, which stand side by side."""
    return tuple(tuple(_lines(array.tobytes(), width) for array in frame) for frame in frames)


def _lines(data: bytes, width: int) -> tuple[Code, ...]:
    rows = (data[k : k + width] for k in range(0, len(data), width))
    return tuple(Code('b"' + "".join(f"\\x{byte:02x}" for byte in row) + '"') for row in rows)


# ---- The samples that a network checks itself with, as its C shows them.


@frozen
class TestTensor:
    """An input or output of the self-test: its constant with all samples, elements of one, what floats may differ by."""

    name: Name
    constant: Name
    elements: int
    bound: Code


@frozen
class TestContext:
    """What ``model.c.j2`` shows of the self-test."""

    samples: int
    inputs: tuple[TestTensor, ...]
    outputs: tuple[TestTensor, ...]


def test_context(module: Module) -> TestContext | None:
    """The self-test of a module, if it has one."""
    found = module.self_test
    if found is None:
        return None

    def tensors(values: Mapping[str, Value]) -> tuple[TestTensor, ...]:
        return tuple(_tensor(module, name, value) for name, value in values.items())

    return TestContext(found.samples, tensors(found.inputs), tensors(found.outputs))


def _tensor(module: Module, name: str, value: Value) -> TestTensor:
    assert module.self_test is not None
    bound = module.self_test.bounds.get(name)
    literal = "" if bound is None else ExprPrinter().literal(bound, module.values[name].dtype)
    return TestTensor(
        name=Name(name),
        constant=Name(f"{module.name}_{value.name}"),
        elements=prod(module.values[name].shape),
        bound=Code(literal),
    )


def test_data(module: Module) -> dict[str, Any] | None:
    """What a manifest says of it, plain data: samples, bytes of flash, the symbols that hold them."""
    found = module.self_test
    if found is None:
        return None
    symbols = [f"{module.name}_{value.name}" for value in found.values]
    return {"samples": found.samples, "bytes": found.nbytes, "symbols": symbols, "bounds": dict(found.bounds)}
