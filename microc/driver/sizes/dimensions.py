"""The symbolic dimensions that a compilation leaves open, and the model at any sizes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from microc.codegen.names import is_free
from microc.driver.model import read_model
from microc.driver.options import Bound, Options
from microc.errors import UsageError
from microc.frontend.symbols import Shape, symbolic_inputs
from microc.graph.ir import Graph
from microc.module import Size

BATCH = "batch"
"""The first axes of all inputs, where the model leaves them open without a name."""
_LONGEST = 32
"""Letters of a size's name in C at most."""
Read = Callable[[Mapping[str, int]], Graph]


def open_sizes(source: Path | Graph, options: Options) -> tuple[tuple[Size, ...], Read]:
    """The sizes that the bounds of the options leave open, and what reads the model at some sizes, by label.

    UsageError for a bound of something that is no symbolic dimension; it lists those that are.
    """
    shapes = symbolic_inputs(source) if isinstance(source, Path) and source.is_file() else {}
    if BATCH in options.bounds and not any(BATCH in shape for shape in shapes.values()):
        shapes = {name: tuple(BATCH if e == f"{name}:0" else e for e in shape) for name, shape in shapes.items()}
    symbols = dict.fromkeys(extent for shape in shapes.values() for extent in shape if isinstance(extent, str))
    for label in options.bounds:
        if label not in symbols:
            known = ", ".join(symbols) or "it has none"
            raise UsageError(
                f"the model has no symbolic dimension {label!r}",
                where=str(source),
                hint=f"symbolic dimensions: {known}",
            )

    def read(at: Mapping[str, int]) -> Graph:
        given = dict(options.input_shapes)
        for name, shape in shapes.items():
            if any(extent in at for extent in shape):
                given[name] = _shape(name, shape, at, options)
        return read_model(source, replace(options, input_shapes=given))

    return named_sizes(options.bounds), read


def named_sizes(bounds: Mapping[str, Bound]) -> tuple[Size, ...]:
    """A size for every bound."""
    sizes: list[Size] = []
    for label, bound in bounds.items():
        name = _identifier(label, {size.name for size in sizes})
        sizes.append(Size(name, label, bound.minimum, bound.maximum // bound.step * bound.step, bound.step))
    return tuple(sizes)


def _shape(name: str, shape: Shape, at: Mapping[str, int], options: Options) -> tuple[int, ...]:
    """The shape of an input; extents without a bound are as given, a batch (the first) is 1."""
    given = options.input_shapes.get(name, options.input_shapes.get("*"))
    found = []
    for axis, extent in enumerate(shape):
        if isinstance(extent, int):
            found.append(extent)
        elif extent in at:
            found.append(at[extent])
        elif given is not None and axis < len(given):
            found.append(given[axis])
        elif axis == 0:
            found.append(1)
        else:
            raise UsageError(
                f"dimension {extent!r} of input {name!r} has neither a bound nor a size",
                hint=f"--bound {extent}=64, or --input-shape {name}=...",
            )
    return tuple(found)


def _identifier(label: str, taken: Collection[str]) -> str:
    """A member of the struct of sizes, for the model's own name of one; kernels have it with ``size_`` in front."""
    name = re.sub(r"[^0-9A-Za-z]+", "_", label).strip("_").lower()[-_LONGEST:]
    name = name if name and not name[0].isdigit() else f"n_{name}"
    while name in taken or not is_free(name) or not is_free(f"size_{name}"):
        name += "_"
    return name
