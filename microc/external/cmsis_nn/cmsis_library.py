"""A copy of CMSIS-NN on disk: its version, files, structures and workspaces."""

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
from microc.ops.attributes import Multiplier, Rounding
from microc.ops.convolution.geometry import Geometry
from microc.target import Target
from microc.transform.pass_context import PassContext
from microc.transform.quantised.legalize import legalize

# ---- What CMSIS-NN's structures hold, from a region: integers as the legalised layer has them, and extents.

MVE, DSP, PLAIN = "mve", "dsp", "plain"
_SETS = (("Arm MVE", MVE), ("Arm DSP", DSP))


def kind_of(target: Target) -> str:
    """Which of the library's three versions a core compiles."""
    sets = {each.name for each in CORES[target.cpu].sets}
    return next((kind for name, kind in _SETS if name in sets), PLAIN)


@frozen
class Scaled:
    """The requantisation of a layer: ``multiplier`` and ``shift`` (positive to the left) of each channel, or of all."""

    multiplier: Array
    shift: Array
    zero_point: int
    minimum: int
    maximum: int


def core_of(region: Region) -> dict[str, Node]:
    """The region's core operators by name; none where there are several of one, or integers do not do it."""
    try:
        nodes = legalize(region.graph, PassContext()).nodes
    except MicrocError:
        return {}
    found = {node.op: node for node in nodes}
    return found if len(found) == len(nodes) else {}


def scaled(region: Region) -> Scaled:
    """The requantisation of a region that a check has passed."""
    graph = legalize(region.graph, PassContext())
    return requantisation(graph, next(node for node in graph.nodes if node.op == "requantize"))


def requantisation(graph: Graph, node: Node) -> Scaled:
    """The numbers of a ``requantize`` of a legalised graph."""
    operands = [graph.consts[name] for name in node.inputs[1:] if name]
    numbers = []
    for name in ("multiplier", "shift"):
        value = node.attr(name)
        numbers.append(np.array([value]) if value is not None else operands.pop(0).reshape(-1))
    multiplier, shift = (array.astype(np.int32) for array in numbers)
    if node.attr("rounding") == Multiplier.WIDE:  # the upper half, which the library takes of a whole one
        multiplier = multiplier << 16
    return Scaled(multiplier, shift, node.attr("zero_point"), node.attr("minimum"), node.attr("maximum"))


def zero_point(region: Region, value: str) -> int:
    quant = region.type(value).quant
    assert quant is not None
    return quant.zero_point[0]


SUFFIXES = {"int8": "s8", "int16": "s16"}
"""What functions' names end with, by the dtype of data."""


def suffix_of(region: Region) -> str:
    return SUFFIXES[region.output_types[0].dtype]


def refused(region: Region, ops: Sequence[str]) -> str:
    """Why a region's numbers are not for the library: dtypes of data, rounding, and what the layer is in integers."""
    types = [region.type(name) for name in (region.root.inputs[0], region.root.outputs[0])]
    for kind in types:
        if kind.dtype not in SUFFIXES or kind.dtype != types[0].dtype:
            return f"it has data of {kind.dtype}, the library of {' or '.join(SUFFIXES)}"
        if kind.quant is None or kind.quant.axis is not None:
            return "its data are not quantised, or by channel"
    if region.root.attrs.get("rounding", Rounding.DOUBLE) != Rounding.DOUBLE:
        return f"it is rounded as {region.root.attr('rounding')}, the library rounds twice, as TFLite Micro does"
    core = core_of(region)
    if set(core) != set(ops):
        return f"it is {' and '.join(core) or 'no layer'} of integers, not {' and '.join(ops)}"
    return ""


def structure(kind: str, name: str, **fields: object) -> str:
    """A constant of one of the library's structures, member by member."""
    return f"const {kind} {name} = {{{', '.join(f'.{key} = {_words(value)}' for key, value in fields.items())}}};"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'.{key} = {_words(part)}' for key, part in value.items())}}}"
    return str(value)


def dims(name: str, *extents: int) -> str:
    """Of images or rows, height, width, channels."""
    return structure("cmsis_nn_dims", name, **dict(zip("nhwc", extents, strict=True)))


def tile(extents: Sequence[int]) -> dict[str, int]:
    """Of height and width."""
    return {"w": extents[1], "h": extents[0]}


def context(workspace: int) -> str:
    return structure("cmsis_nn_context", "context", buf="scratch" if workspace else "NULL", size=workspace)


# ---- A copy of CMSIS-NN on disk: whether it is one that we can call, and which of its files some functions need.
#
# Files are found by text: a function's is the one that defines it, and it needs what the names in it say. Nothing of a copy runs
# here; what is read is bounded, and nothing outside of its folder is.

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
"""What is called, with its number of parameters: releases differ in them, and C would take a wrong one for a cast."""
_STATEFUL = re.compile(r"_lstm_")
"""Functions that keep a hidden state between calls only where their structure of buffers has one."""
_GET = "git clone https://github.com/ARM-software/CMSIS-NN, and --external cmsis-nn=CMSIS-NN; release 7.0 or later"
_PLACES = ("", "CMSIS/NN", "CMSIS-NN")
"""Where a folder may have it: a clone, a pack, CMSIS 5."""
_MOST_FILES, _MOST_BYTES = 600, 1 << 20
_FLOATS = re.compile(r"_(f16|f32|flt)\.[ch]$")
_WORD = re.compile(r"\b\w*arm_\w+")
_DEFINED = re.compile(r"^(?!static\b|__STATIC)[A-Za-z_][\w \t*]*?\b(arm_\w+)\s*\(", re.MULTILINE)
_TABLES, _TYPES = "arm_nntables.c", "arm_nn_types.h"
_NEWER = "git clone https://github.com/ARM-software/CMSIS-NN: it keeps the hidden state since June 2026"


def open_copy(place: str, target: Target, functions: Iterable[str]) -> Sources:
    """What ``functions`` are built from, out of the copy at ``place``."""
    if not place:
        raise UsageError(f"{NAME} is not part of microc", hint=_GET)
    if FAMILIES[target.isa].flash_space:
        raise UsageError(f"{NAME} is not for {target.cpu}", hint="leave out external")
    functions = tuple(functions)
    root = _root(Path(place))
    declared = _read(root, root / "Include" / HEADER).decode("utf-8", "replace")
    for name in functions:
        _check(name, declared, place)
    if any(map(_STATEFUL.search, functions)) and b"hidden_state" not in _read(root, root / "Include" / _TYPES):
        raise UsageError("LSTM of this copy of CMSIS-NN begins anew with every call", where=place, hint=_NEWER)
    files = _files(root)
    chosen = _needed(files, functions)
    headers = {path: data for path, data in files.items() if path.endswith(".h")}
    licence = root / "LICENSE"
    kept = {"LICENSE": _read(root, licence)} if licence.is_file() else {}
    return Sources(
        NAME,
        {**headers, **{path: files[path] for path in chosen}, **kept},
        include=("Include",),
        licence="Apache-2.0",
        version=_version(root),
    )


def _root(folder: Path) -> Path:
    for place in _PLACES:
        if (folder / place / "Include" / HEADER).is_file() and (folder / place / "Source").is_dir():
            return (folder / place).resolve()
    raise UsageError(f"there is no copy of CMSIS-NN in {folder}", where=str(folder), hint=_GET)


def _check(name: str, header: str, place: str) -> None:
    """UsageError where a copy has not the function that we call."""
    found = re.search(rf"\b{name}\s*\(([^;{{]*)\)\s*;", header)
    count = found[1].count(",") + 1 if found else 0
    if count != FUNCTIONS[name]:
        what = f"takes {count} arguments, not {FUNCTIONS[name]}" if found else "is not there"
        raise UsageError(f"{name} of this copy of CMSIS-NN {what}", where=place, hint=_GET)


def _files(root: Path) -> dict[str, bytes]:
    """C files and headers of integers, by path."""
    found: dict[str, bytes] = {}
    for folder in ("Include", "Source"):
        for path in sorted((root / folder).rglob("*.[ch]")):
            if path.is_symlink() or not path.is_file() or _FLOATS.search(path.name):
                continue
            if len(found) == _MOST_FILES:
                raise UsageError(f"the copy of CMSIS-NN has more than {_MOST_FILES} files", where=str(root), hint=_GET)
            found[path.relative_to(root).as_posix()] = _read(root, path)
    return found


def _read(root: Path, path: Path) -> bytes:
    try:
        if path.resolve().is_relative_to(root):
            return read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot read the copy of CMSIS-NN: {error.strerror or error}", where=str(path), hint=_GET
        ) from error
    raise UsageError("a file leads out of the copy of CMSIS-NN", where=str(path), hint=_GET)


def _needed(files: Mapping[str, bytes], functions: Iterable[str]) -> list[str]:
    """The C files that define some functions, and what these call."""
    texts = {path: data.decode("utf-8", "replace") for path, data in files.items() if path.endswith(".c")}
    makers = {name: path for path, text in texts.items() for name in _defined(text)}
    tables = [path for path in texts if path.endswith(_TABLES)]
    chosen: dict[str, None] = {}
    waiting = [makers[name] for name in functions if name in makers]
    while waiting:
        path = waiting.pop()
        if path not in chosen:
            chosen[path] = None
            waiting += [makers[word] for word in _library_words(texts[path]) if word in makers]
            waiting += tables if "arm_nn_tables.h" in texts[path] else []
    return sorted(chosen)


@lru_cache(maxsize=1024)
def _defined(text: str) -> tuple[str, ...]:
    return tuple(_DEFINED.findall(text))


@lru_cache(maxsize=1024)
def _library_words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _version(root: Path) -> str:
    """The newest release that the pack's description names, if there is one."""
    return next(_releases(root), "")


def _releases(root: Path) -> Iterator[str]:
    for path in sorted(root.glob("*CMSIS-NN.pdsc"))[:1]:
        yield from re.findall(r'<release version="([0-9][\w.\-]*)"', _read(root, path).decode("utf-8", "replace"))


# ---- Bytes of workspace that the library's functions ask for, in the version that a core compiles: what its own
# ``arm_*_get_buffer_size`` functions say, against which a copy's are held by the tests.

BLOCK = 124
"""Channels that the version for MVE takes at once of a depthwise layer of bytes (``CH_IN_BLOCK_MVE``)."""
_LARGEST = 512
"""Taps from which on a depthwise layer of int16 goes without."""


def convolution_bytes(g: Geometry, kind: str, *, wide: bool) -> int:
    """``arm_convolve_wrapper_s8`` or (``wide``) ``_s16``: patches of the data, four with MVE, else two of int16."""
    depth = g.kernel[0] * g.kernel[1] * g.channels
    if wide:
        return 8 * _whole(depth, 8) if kind == MVE else 4 * depth
    if g.kernel == (1, 1) and g.dilation == (1, 1) and not any(g.padding[:2]):
        return 4 * g.channels if kind == DSP and g.strides == (1, 1) else 0  # of one compiler: another needs nothing
    if kind != MVE:
        return 4 * _whole(depth, 4)
    row = (g.kernel[1] + g.padding[1]) * g.channels if g.height == 1 else 0
    return _whole(max(4 * _whole(depth, 16), row), 4)


def depthwise_bytes(g: Geometry, kind: str, *, wide: bool) -> int:
    """``arm_depthwise_conv_wrapper_s8`` or ``_s16``: a patch of int16, or four of blocks of channels, where the library has a
    fast way."""
    taps = g.kernel[0] * g.kernel[1]
    fast = g.out_channels == g.channels and g.dilation == (1, 1) and (taps < _LARGEST if wide else g.batch == 1)
    if not fast or kind not in (MVE, DSP):
        return 0
    if kind == MVE:
        return 8 * g.channels * taps + 8 if wide else 4 * BLOCK * taps
    small = g.kernel == (3, 3) and max(g.padding[:2]) <= 1
    return 0 if small and not wide else _whole(2 * g.channels * taps, 4)


def average_bytes(channels: int, kind: str) -> int:
    """``arm_avgpool_s8`` and ``_s16``: a sum for every channel."""
    return 4 * channels if kind == DSP else 0


def _whole(count: int, step: int) -> int:
    return -(-count // step) * step
