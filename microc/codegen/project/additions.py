# SPDX-License-Identifier: Apache-2.0
"""Files that a project gets beside its network: external code, the model of a tensor unit, and samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.interface import print_constant_definition
from microc.codegen.render import Code, Label, Name, Word
from microc.errors import InternalError, UsageError
from microc.isa import CORES
from microc.isa.vocabulary.matrix_products import UNIT_WORDS
from microc.module import Module, Sources, Value

# ---- The sources of external code: their paths in a folder of the project, and the settings that they are compiled with.

EXTERNAL_FOLDER = "external"
OWN_CODE_FOLDER = "own"
"""Folder of a project for the same network without external code, whose results the external code is compared with."""


@frozen
class ExternalContext:
    """Build settings of a project's external code, merged over all backends, for templates.

    ``sources``: paths of C files in the project. ``include``: paths of include folders in the project. ``defines``: definitions
    of macros. ``libraries``: names of libraries to link. ``folders``: folders in which the linker finds these libraries."""

    sources: tuple[Word, ...]
    include: tuple[Word, ...]
    defines: tuple[Word, ...]
    libraries: tuple[Word, ...]
    folders: tuple[Word, ...]


def merge_external_code_sources(modules: Sequence[Module]) -> tuple[Sources, ...]:
    """Return the sources of the external code that some networks use: one merged entry for each backend.

    UsageError if two networks use different copies of a backend's code."""
    merged: dict[str, Sources] = {}
    for sources in (sources for module in modules for sources in module.sources):
        existing = merged.get(sources.name)
        merged[sources.name] = sources if existing is None else _merge_sources(existing, sources)
    return tuple(merged.values())


def _merge_sources(first: Sources, second: Sources) -> Sources:
    """Return the union of two networks' sources of one backend. UsageError if a file or the macro definitions differ."""
    differs = [path for path in first.files.keys() & second.files.keys() if first.files[path] != second.files[path]]
    if differs or first.defines != second.defines:
        raise UsageError(
            f"external code {first.name}: got different copies of {min(differs, default='its macro definitions')} "
            "in two networks, expected equal ones",
            hint="compile all networks of the firmware with the same copy",
        )
    files, libraries = {**first.files, **second.files}, dict.fromkeys((*first.libraries, *second.libraries))
    include, folders = ((*first.include, *second.include), (*first.folders, *second.folders))
    return replace(
        first,
        files=files,
        include=tuple(dict.fromkeys(include)),
        libraries=tuple(libraries),
        folders=tuple(dict.fromkeys(folders)),
    )


def make_external_context(all_sources: Sequence[Sources]) -> ExternalContext | None:
    """Return the build settings of all backends of external code, for templates; None if there is no external code."""
    if not all_sources:
        return None
    return ExternalContext(
        sources=tuple(Word(f"{EXTERNAL_FOLDER}/{each.name}/{path}") for each in all_sources for path in each.c_paths),
        include=tuple(
            Word(f"{EXTERNAL_FOLDER}/{each.name}/{path}".rstrip("/")) for each in all_sources for path in each.include
        ),
        defines=tuple(Word(name) for each in all_sources for name in each.defines),
        libraries=tuple(Word(name) for each in all_sources for name in each.libraries),
        folders=tuple(Word(name) for each in all_sources for name in each.folders),
    )


def list_external_files(all_sources: Sequence[Sources]) -> dict[str, bytes]:
    """Return the content of all files of external code (kernels of vendors' libraries), by path in the project."""
    return {
        f"{EXTERNAL_FOLDER}/{Word(each.name)}/{Word(path)}": data
        for each in all_sources
        for path, data in each.files.items()
    }


def describe_external_code(module: Module) -> dict[str, Any]:
    """Return the entry ``external`` of a manifest as a dict with this key; an empty dict if no kernel is external code.

    The entry contains the backends with version and licence, the build settings, and the steps that external code computes."""
    context = make_external_context(module.sources)
    kernels = {kernel.name: kernel.external for kernel in module.kernels if kernel.external is not None}
    if not kernels:
        return {}
    return {
        "external": {
            "sources": list(context.sources) if context else [],
            "include": list(context.include) if context else [],
            "defines": list(context.defines) if context else [],
            "libraries": list(context.libraries) if context else [],
            "folders": list(context.folders) if context else [],
            "backends": [
                {"name": each.name, "version": each.version, "licence": each.licence, "files": len(each.files)}
                for each in module.sources
            ],
            "kernels": [
                {
                    "index": k,
                    "backend": external.backend,
                    "bound": external.bound,
                    **({"differs": str(Label(external.differs))} if external.differs else {}),
                }
                for k, call in enumerate(module.calls)
                if (external := kernels.get(call.kernel)) is not None
            ],
        }
    }


# ---- Tensor units (matrix accelerators) in a network's C: parameters of the C model that simulates a unit.

UNIT_NAMES = frozenset(word.name for word in UNIT_WORDS)
"""Names of the C functions that ``templates/project/tensor_unit.c.j2`` defines: the instructions of a tensor unit."""


@frozen
class UnitContext:
    """Parameters of a core's tensor unit (:class:`microc.isa.instruction_set.TensorUnit`) for templates.

    ``rows``, ``columns`` and ``depth`` are the shape of the matrix product that takes ``tile_cycles`` cycles. ``input``,
    ``weight`` and ``sums`` are the sizes of the unit's scratchpad memories, in elements. ``bus`` is the number of bytes that a
    load or store moves per cycle, and ``start`` the number of cycles before the first byte. ``events`` is the number of types of
    synchronisation tokens. ``macs`` is the largest number of multiply-accumulates per cycle."""

    name: Word
    rows: int
    columns: int
    depth: int
    tile_cycles: int
    input: int
    weight: int
    sums: int
    bus: int
    start: int
    events: int
    macs: int


def make_tensor_unit_context(module: Module, helpers: Collection[str]) -> UnitContext | None:
    """Return the parameters of the core's tensor unit for templates; None if no kernel uses the unit.

    ``helpers``: names of the helper functions that the module's kernels call."""
    if not UNIT_NAMES & set(helpers):
        return None
    unit = CORES[module.options["cpu"]].tensor_unit
    if unit is None:
        raise InternalError(
            f"core {module.options['cpu']}: it has no tensor unit, but kernels call one; expected kernels without it"
        )
    return UnitContext(
        Word(unit.name),
        unit.rows,
        unit.columns,
        unit.depth,
        unit.tile_cycles,
        unit.input.nbytes,
        unit.weight.nbytes,
        unit.sums.nbytes // 4,
        unit.bus,
        unit.start,
        unit.events,
        int(unit.macs),
    )


# ---- The sample on which an export's example program runs the network: one frame, or several for a network with state.
#
# The results of a network with state depend on earlier frames. Its example therefore passes several different frames, one after
# the other. It resets the network once, before the first frame.

Frame = tuple[Array, ...]
"""Inputs of one run of a network: an array for every input, in the network's order."""
MAX_FRAMES = 8
"""Maximum number of frames in the sample of a network with state."""
MAX_SAMPLE_BYTES = 16 * 1024
"""Maximum number of bytes of all frames of a sample. A network with state has at least two frames even if they exceed it."""


def sample_frames(module: Module) -> tuple[Frame, ...]:
    """Return the frames of a network's sample: one frame for a network without state, several for a network with state.

    The numbers follow a fixed pattern, so that they are the same on every computer. Floats are from -1 to 1."""
    size = sum(module.values[name].nbytes for name in module.inputs)
    count = min(MAX_FRAMES, max(2, MAX_SAMPLE_BYTES // max(size, 1))) if module.state else 1
    return tuple(
        tuple(_sample_array(module.values[name], k, frame) for k, name in enumerate(module.inputs))
        for frame in range(count)
    )


def first_sample(module: Module) -> Frame:
    """Return the first frame of a network's sample (:func:`sample_frames`)."""
    return sample_frames(module)[0]


def _sample_array(value: Value, input_index: int, frame_index: int) -> Array:
    """Return the array of one input in one frame of a network's sample: numbers of a fixed pattern, floats from -1 to 1."""
    steps: Array = (
        np.arange(value.nbytes // dtypes.nbytes(value.dtype)) * 37 + 101 * input_index + 59 * frame_index
    ) % 256
    if value.dtype == "bool":
        steps = steps % 2
    elif dtypes.is_float(value.dtype):
        steps = (steps - 128) / 128
    elif dtypes.int_range(value.dtype)[0] < 0:
        steps = steps - 128
    return steps.astype(dtypes.to_numpy(value.dtype)).reshape(value.shape)


def print_sample_definitions(module: Module, frames: Sequence[Frame], address_space: str) -> tuple[Code, ...]:
    """Print the definitions of C arrays that contain a network's sample.

    There is one array for every input, which contains the input's data of all frames one after the other. ``address_space``:
    see :func:`print_constant_definition`."""
    arrays = (np.stack(parts) for parts in zip(*frames, strict=True))
    return tuple(
        Code(
            "static "
            + "\n".join(
                print_constant_definition(_to_constant_value(f"{name}_values", array), address_space=address_space)
            )
        )
        for name, array in zip(module.inputs, arrays, strict=bool(frames[0]))
    )


def _to_constant_value(name: str, array: Array) -> Value:
    """Return an array as the constant ``name`` of generated C. 16-bit floats are converted to their bits, as uint16."""
    bits = array.view(np.uint16) if str(array.dtype) in dtypes.HALF else array
    return Value(name, bits.shape, str(bits.dtype), "const", bits)


def sample_byte_literals(frames: Sequence[Frame], bytes_per_line: int = 24) -> tuple[tuple[tuple[Code, ...], ...], ...]:
    """Return the sample as Python literals of bytes, indexed by frame, input and line.

    Each line has at most ``bytes_per_line`` bytes."""
    return tuple(tuple(_byte_literal_lines(array.tobytes(), bytes_per_line) for array in frame) for frame in frames)


def _byte_literal_lines(data: bytes, bytes_per_line: int) -> tuple[Code, ...]:
    """Print bytes as several Python literals, one for each line, each of at most ``bytes_per_line`` bytes."""
    rows = (data[k : k + bytes_per_line] for k in range(0, len(data), bytes_per_line))
    return tuple(Code('b"' + "".join(f"\\x{byte:02x}" for byte in row) + '"') for row in rows)


# ---- The samples of a network's self-test, in the network's C.


@frozen
class SelfTestTensor:
    """An input or output of a network in its self-test.

    ``constant``: name of the C array that contains all samples of the tensor. ``elements``: number of elements of one sample.
    ``bound``: C literal of the largest permitted difference from the expected floats; empty if results must be equal."""

    name: Name
    constant: Name
    elements: int
    bound: Code


@frozen
class SelfTestContext:
    """Variables of the template ``model.c.j2`` for a network's self-test. ``samples``: number of samples."""

    samples: int
    inputs: tuple[SelfTestTensor, ...]
    outputs: tuple[SelfTestTensor, ...]


def make_self_test_context(module: Module) -> SelfTestContext | None:
    """Return the variables of a network's self-test for templates; None if the network has no self-test."""
    self_test = module.self_test
    if self_test is None:
        return None

    def self_test_tensors(values: Mapping[str, Value]) -> tuple[SelfTestTensor, ...]:
        return tuple(_self_test_tensor(module, name, value) for name, value in values.items())

    return SelfTestContext(self_test.samples, self_test_tensors(self_test.inputs), self_test_tensors(self_test.outputs))


def _self_test_tensor(module: Module, name: str, value: Value) -> SelfTestTensor:
    """Return the template variables of an input or output in the self-test. ``value``: the constant with its samples."""
    assert module.self_test is not None
    bound = module.self_test.bounds.get(name)
    literal = "" if bound is None else ExprPrinter().print_literal(bound, module.values[name].dtype)
    return SelfTestTensor(
        name=Name(name),
        constant=Name(f"{module.name}_{value.name}"),
        elements=prod(module.values[name].shape),
        bound=Code(literal),
    )


def describe_self_test(module: Module) -> dict[str, Any] | None:
    """Return the manifest's entry ``self_test``; None if the network has no self-test.

    It contains the number of samples, their bytes of flash, the C names of the arrays of samples, and the largest permitted
    difference of the floats of each output."""
    self_test = module.self_test
    if self_test is None:
        return None
    symbols = [f"{module.name}_{value.name}" for value in self_test.values]
    return {
        "samples": self_test.samples,
        "bytes": self_test.nbytes,
        "symbols": symbols,
        "bounds": dict(self_test.bounds),
    }
