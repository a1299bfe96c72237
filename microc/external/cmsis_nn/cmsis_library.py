# SPDX-License-Identifier: Apache-2.0
"""The user's copy of CMSIS-NN: its version and source files, the C of its structures, and the workspace sizes of its
functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from microc.base.dtypes import Array
from microc.base.file_access import read_bytes
from microc.base.immutable import frozen
from microc.errors import MicrocError, UsageError
from microc.external.backend import Region
from microc.graph.ir import Graph, Node
from microc.isa import CORES, FAMILIES
from microc.module import Sources
from microc.numerics import round_up_to_multiple
from microc.ops.attributes import Multiplier, Rounding
from microc.ops.convolution.geometry import Geometry
from microc.target import Target
from microc.transform.pass_context import PassContext
from microc.transform.quantised.legalize import legalize

# ---- Members of CMSIS-NN's structures for a region: integers of the legalised layer (one on integers alone), and extents.

MVE, DSP, PLAIN = "mve", "dsp", "plain"
_VARIANT_OF_FEATURE = (("Arm MVE", MVE), ("Arm DSP", DSP))


def kernel_variant(target: Target) -> str:
    """Return the variant of the library's kernels that is compiled for the target's core: ``mve`` (vectors), ``dsp``
    (SIMD within registers) or ``plain``."""
    sets = {each.name for each in CORES[target.cpu].sets}
    return next((kind for name, kind in _VARIANT_OF_FEATURE if name in sets), PLAIN)


@frozen
class RequantizeParams:
    """The parameters by which a layer's int32 sums are requantised to its result.

    ``multiplier`` and ``shift`` (positive: to the left): for each channel, or one for all channels. ``zero_point``:
    zero point of the result; ``minimum`` and ``maximum``: range to which the result is clipped."""

    multiplier: Array
    shift: Array
    zero_point: int
    minimum: int
    maximum: int


def legalised_nodes_by_operator(region: Region) -> dict[str, Node]:
    """Legalise a region to operators on integers; return its nodes by the name of the operator.

    The dictionary is empty if an operator occurs twice, or if the region cannot be legalised."""
    try:
        nodes = legalize(region.graph, PassContext()).nodes
    except MicrocError:
        return {}
    by_name = {node.op: node for node in nodes}
    return by_name if len(by_name) == len(nodes) else {}


def region_requantize_params(region: Region) -> RequantizeParams:
    """Return the parameters of the ``requantize`` node to which a region legalises; the region has passed its check."""
    graph = legalize(region.graph, PassContext())
    return requantize_params(graph, next(node for node in graph.nodes if node.op == "requantize"))


def requantize_params(graph: Graph, node: Node) -> RequantizeParams:
    """Return the parameters of a ``requantize`` node of a legalised graph."""
    operands = [graph.consts[name] for name in node.inputs[1:] if name]
    numbers = []
    for name in ("multiplier", "shift"):
        value = node.attr(name)
        numbers.append(np.array([value]) if value is not None else operands.pop(0).reshape(-1))
    multiplier, shift = (array.astype(np.int32) for array in numbers)
    if node.attr("rounding") == Multiplier.WIDE:  # a 16-bit multiplier; the library uses the upper half of 32 bits
        multiplier = multiplier << 16
    return RequantizeParams(multiplier, shift, node.attr("zero_point"), node.attr("minimum"), node.attr("maximum"))


def zero_point(region: Region, value_name: str) -> int:
    """Return the zero point of a value that is quantised per tensor."""
    quant = region.type(value_name).quant
    assert quant is not None
    return quant.zero_point[0]


SUFFIXES = {"int8": "s8", "int16": "s16"}
"""Suffix of the library's function names, by the dtype of the data."""


def function_suffix(region: Region) -> str:
    """Return the suffix of the library's functions for the dtype of a region's result: ``s8`` or ``s16``."""
    return SUFFIXES[region.output_types[0].dtype]


def unsupported_reason(region: Region, expected_operators: Sequence[str]) -> str:
    """Return why the library cannot compute a region with these dtypes, rounding and integer operators; empty if it
    can.

    ``expected_operators``: the integer operators to which the region must legalise, exactly."""
    types = [region.type(name) for name in (region.root.inputs[0], region.root.outputs[0])]
    for type_ in types:
        if type_.dtype not in SUFFIXES or type_.dtype != types[0].dtype:
            return f"its data and results are {types[0].dtype} and {types[1].dtype}, expected both int8 or both int16"
        if type_.quant is None or type_.quant.axis is not None:
            return "its data are not quantised per tensor"
    if region.root.attrs.get("rounding", Rounding.DOUBLE) != Rounding.DOUBLE:
        return f"it is rounded as {region.root.attr('rounding')}, the library rounds twice, as TFLite Micro does"
    core = legalised_nodes_by_operator(region)
    if set(core) != set(expected_operators):
        return f"its integer operators are {' and '.join(core) or 'none'}, expected {' and '.join(expected_operators)}"
    return ""


def format_structure(structure: str, constant_name: str, **fields: object) -> str:
    """Format the C definition of a constant whose type is one of the library's structures.

    ``structure``: the C type; ``fields``: values of its members, by name."""
    members = ", ".join(f".{key} = {_format_initialiser(value)}" for key, value in fields.items())
    return f"const {structure} {constant_name} = {{{members}}};"


def _format_initialiser(member_value: object) -> str:
    """Format a value as a C initialiser: a mapping as a structure with named members, any other value by ``str``."""
    if isinstance(member_value, Mapping):
        return f"{{{', '.join(f'.{key} = {_format_initialiser(part)}' for key, part in member_value.items())}}}"
    return str(member_value)


def format_dims(constant_name: str, *extents: int) -> str:
    """Format a constant of type ``cmsis_nn_dims``; its extents are: number of images or rows, height, width,
    channels."""
    return format_structure("cmsis_nn_dims", constant_name, **dict(zip("nhwc", extents, strict=True)))


def tile_members_of_extents(extents: Sequence[int]) -> dict[str, int]:
    """Return the members of a ``cmsis_nn_tile``, by name, for the extents (height, width)."""
    return {"w": extents[1], "h": extents[0]}


def format_workspace_context(workspace_bytes: int) -> str:
    """Format the ``cmsis_nn_context`` of a call, with ``workspace_bytes`` bytes of scratch memory."""
    return format_structure(
        "cmsis_nn_context", "context", buf="scratch" if workspace_bytes else "NULL", size=workspace_bytes
    )


# ---- A copy of CMSIS-NN on disk: the check of its function signatures, and the source files that some functions need.
#
# Source files are found by text search: the file that defines a function is needed, and so are the files that define the names in
# its text. Nothing in the copy is executed here. Files are read up to a limited size, and from the copy's folder only.

NAME, HEADER = "cmsis-nn", "arm_nnfunctions.h"
FUNCTIONS: Mapping[str, int] = {
    "arm_convolve_wrapper_s8": 11,
    "arm_depthwise_conv_wrapper_s8": 11,
    "arm_fully_connected_s8": 11,
    "arm_fully_connected_per_channel_s8": 11,
    "arm_vector_sum_s8": 7,
    "arm_avgpool_s8": 7,
    "arm_max_pool_s8": 7,
    "arm_elementwise_add_s8": 16,
    "arm_softmax_s8": 7,
    "arm_convolve_wrapper_s16": 11,
    "arm_depthwise_conv_wrapper_s16": 11,
    "arm_fully_connected_s16": 11,
    "arm_avgpool_s16": 7,
    "arm_max_pool_s16": 7,
    "arm_elementwise_add_s16": 16,
    "arm_softmax_s16": 7,
    "arm_lstm_unidirectional_s8": 4,
    "arm_lstm_unidirectional_s16": 4,
    "arm_svdf_s8": 18,
    "arm_svdf_state_s16_s8": 17,
}
"""Number of parameters of every library function that the generated code calls.

The number differs between releases of CMSIS-NN. It is checked because a C compiler need not reject a call that is
wrong."""
_STATEFUL_FUNCTION = re.compile(r"_lstm_")
"""Functions that keep their hidden state from call to call only if the structure of buffers that they get has a member
for it. In older releases it has none."""
_INSTALL_HINT = (
    "git clone https://github.com/ARM-software/CMSIS-NN (release 7.0 or later), then give --external cmsis-nn=CMSIS-NN"
)
_SUBFOLDERS = ("", "CMSIS/NN", "CMSIS-NN")
"""Subfolders of the user's folder that may contain the library. The folder may be a clone, a pack, or CMSIS 5."""
_MAX_FILES, _MAX_FILE_BYTES = 600, 1 << 20
_FLOAT_FILE = re.compile(r"_(f16|f32|flt)\.[ch]$")
_WORD = re.compile(r"\b\w*arm_\w+")
_FUNCTION_DEFINITION = re.compile(r"^(?!static\b|__STATIC)[A-Za-z_][\w \t*]*?\b(arm_\w+)\s*\(", re.MULTILINE)
_TABLES, _TYPES = "arm_nntables.c", "arm_nn_types.h"
_NEWER_COPY_HINT = (
    "run git clone https://github.com/ARM-software/CMSIS-NN again: its LSTM keeps the hidden state since June 2026"
)


def collect_library_sources(folder: str, target: Target, functions: Iterable[str]) -> Sources:
    """Return the files of the user's copy of CMSIS-NN that define ``functions``, with all headers and the licence.

    ``folder``: the folder of the copy. Raises UsageError if the folder contains no copy, if the library does not
    support the target, or if the copy lacks one of the functions or declares it with another number of parameters."""
    if not folder:
        raise UsageError(
            f"{NAME} is not part of microc; got no folder, expected the folder of a copy", hint=_INSTALL_HINT
        )
    if FAMILIES[target.isa].flash_space:
        raise UsageError(
            f"{NAME} does not support {target.cpu}, whose constants are in a separate address space",
            hint="leave out --external",
        )
    functions = tuple(functions)
    root = _find_library_root(Path(folder))
    declared = _read_inside_root(root, root / "Include" / HEADER).decode("utf-8", "replace")
    for name in functions:
        _check_signature(name, declared, folder)
    if any(map(_STATEFUL_FUNCTION.search, functions)) and b"hidden_state" not in _read_inside_root(
        root, root / "Include" / _TYPES
    ):
        raise UsageError(
            "this copy of CMSIS-NN is too old: its LSTM clears the state at every call",
            where=folder,
            hint=_NEWER_COPY_HINT,
        )
    files = _read_library_files(root)
    chosen = _find_files_that_define(files, functions)
    headers = {path: data for path, data in files.items() if path.endswith(".h")}
    licence = root / "LICENSE"
    kept = {"LICENSE": _read_inside_root(root, licence)} if licence.is_file() else {}
    return Sources(
        NAME,
        {**headers, **{path: files[path] for path in chosen}, **kept},
        include=("Include",),
        licence="Apache-2.0",
        version=next(_read_releases_of_pack(root), ""),
    )


def _find_library_root(folder: Path) -> Path:
    """Return the root folder of the library, which may be ``folder`` itself or a known subfolder; UsageError if there
    is none."""
    for subfolder in _SUBFOLDERS:
        if (folder / subfolder / "Include" / HEADER).is_file() and (folder / subfolder / "Source").is_dir():
            return (folder / subfolder).resolve()
    raise UsageError(f"there is no copy of CMSIS-NN in {folder}", where=str(folder), hint=_INSTALL_HINT)


def _check_signature(function_name: str, header: str, copy_folder: str) -> None:
    """Raise UsageError if the library's copy lacks a function, or declares it with another number of parameters."""
    declaration = re.search(rf"\b{function_name}\s*\(([^;{{]*)\)\s*;", header)
    count = declaration[1].count(",") + 1 if declaration else 0
    if count != FUNCTIONS[function_name]:
        what = f"has {count} parameters, expected {FUNCTIONS[function_name]}" if declaration else "is missing"
        raise UsageError(
            f"this copy of CMSIS-NN does not match: {function_name} {what}", where=copy_folder, hint=_INSTALL_HINT
        )


def _read_library_files(root: Path) -> dict[str, bytes]:
    """Read the library's C files and headers, except those for floats; return them by path relative to ``root``."""
    files: dict[str, bytes] = {}
    for folder in ("Include", "Source"):
        for path in sorted((root / folder).rglob("*.[ch]")):
            if path.is_symlink() or not path.is_file() or _FLOAT_FILE.search(path.name):
                continue
            if len(files) == _MAX_FILES:
                raise UsageError(
                    f"the folder is no copy of CMSIS-NN: it has more than {_MAX_FILES} files",
                    where=str(root),
                    hint=_INSTALL_HINT,
                )
            files[path.relative_to(root).as_posix()] = _read_inside_root(root, path)
    return files


def _read_inside_root(root: Path, path: Path) -> bytes:
    """Read a file of the user's copy of CMSIS-NN.

    Raises UsageError if it cannot be read, is larger than 1 MiB, or is outside of ``root`` after links are followed."""
    try:
        if path.resolve().is_relative_to(root):
            return read_bytes(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot read the copy of CMSIS-NN: {error.strerror or error}", where=str(path), hint=_INSTALL_HINT
        ) from error
    raise UsageError(
        "copy of CMSIS-NN: got a file whose path leads out of the folder, expected files inside of it",
        where=str(path),
        hint=_INSTALL_HINT,
    )


def _find_files_that_define(texts_by_path: Mapping[str, bytes], functions: Iterable[str]) -> list[str]:
    """Return the paths of the C files that define ``functions``, and everything that they call directly or
    indirectly."""
    texts = {path: data.decode("utf-8", "replace") for path, data in texts_by_path.items() if path.endswith(".c")}
    definitions = {name: path for path, text in texts.items() for name in _find_defined_functions(text)}
    tables = [path for path in texts if path.endswith(_TABLES)]
    chosen: dict[str, None] = {}
    pending = [definitions[name] for name in functions if name in definitions]
    while pending:
        path = pending.pop()
        if path not in chosen:
            chosen[path] = None
            pending += [definitions[word] for word in _find_library_identifiers(texts[path]) if word in definitions]
            pending += tables if "arm_nn_tables.h" in texts[path] else []
    return sorted(chosen)


@lru_cache(maxsize=1024)
def _find_defined_functions(c_source: str) -> tuple[str, ...]:
    return tuple(_FUNCTION_DEFINITION.findall(c_source))


@lru_cache(maxsize=1024)
def _find_library_identifiers(c_source: str) -> frozenset[str]:
    """Return the identifiers in a C text that contain ``arm_``."""
    return frozenset(_WORD.findall(c_source))


def _read_releases_of_pack(root: Path) -> Iterator[str]:
    """Yield the releases that the pack description (the ``.pdsc`` file) lists, in its order."""
    for path in sorted(root.glob("*CMSIS-NN.pdsc"))[:1]:
        yield from re.findall(
            r'<release version="([0-9][\w.\-]*)"', _read_inside_root(root, path).decode("utf-8", "replace")
        )


# ---- Workspace bytes of the library's functions, by kernel variant. They equal the results of the library's own
# ``arm_*_get_buffer_size`` functions; tests compare the two.

BLOCK = 124
"""Number of channels that the MVE variant of a depthwise int8 layer computes at once (``CH_IN_BLOCK_MVE`` in
CMSIS-NN)."""
_MAX_WORKSPACE_WINDOW = 512
"""Number of elements of a window from which on an int16 depthwise layer needs no workspace."""


def convolution_workspace_bytes(geometry: Geometry, variant: str, *, int16_data: bool) -> int:
    """Return the number of workspace bytes of ``arm_convolve_wrapper_s8``, or of its ``_s16`` version for
    ``int16_data``.

    ``variant``: the variant of the kernels (:func:`kernel_variant`). The workspace contains patches of the data
    (the elements under one window): four with MVE, else two, stored as int16."""
    depth = geometry.kernel[0] * geometry.kernel[1] * geometry.channels
    if int16_data:
        return 8 * round_up_to_multiple(depth, 8) if variant == MVE else 4 * depth
    if geometry.kernel == (1, 1) and geometry.dilation == (1, 1) and not any(geometry.padding[:2]):
        # Only one of the supported C compilers needs the DSP buffer.
        return 4 * geometry.channels if variant == DSP and geometry.strides == (1, 1) else 0
    if variant != MVE:
        return 4 * round_up_to_multiple(depth, 4)
    row = (geometry.kernel[1] + geometry.padding[1]) * geometry.channels if geometry.height == 1 else 0
    return round_up_to_multiple(max(4 * round_up_to_multiple(depth, 16), row), 4)


def depthwise_workspace_bytes(geometry: Geometry, variant: str, *, int16_data: bool) -> int:
    """Return the number of workspace bytes of ``arm_depthwise_conv_wrapper_s8``, or of its ``_s16`` version for
    ``int16_data``.

    0 if the library has no fast version for the layer. The workspace contains one patch of the data (the elements under
    a window) as int16 or, with MVE and int8, four patches of ``BLOCK`` channels. ``variant``: the variant of the
    kernels (:func:`kernel_variant`)."""
    taps = geometry.kernel[0] * geometry.kernel[1]
    fast = (
        geometry.out_channels == geometry.channels
        and geometry.dilation == (1, 1)
        and (taps < _MAX_WORKSPACE_WINDOW if int16_data else geometry.batch == 1)
    )
    if not fast or variant not in (MVE, DSP):
        return 0
    if variant == MVE:
        return 8 * geometry.channels * taps + 8 if int16_data else 4 * BLOCK * taps
    small = geometry.kernel == (3, 3) and max(geometry.padding[:2]) <= 1
    return 0 if small and not int16_data else round_up_to_multiple(2 * geometry.channels * taps, 4)


def average_pool_workspace_bytes(channels: int, variant: str) -> int:
    """Return the number of workspace bytes of ``arm_avgpool_s8`` and ``arm_avgpool_s16``: with DSP, an int32 sum for
    every channel."""
    return 4 * channels if variant == DSP else 0
