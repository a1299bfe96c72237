"""A copy of CMSIS-NN on disk: whether it is one that we can call, and which of its files some functions need.

Files are found by text: a function's is the one that defines it, and it needs what the names in it say. Nothing of a copy runs
here; what is read is bounded, and nothing outside of its folder is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from microc.errors import UsageError
from microc.isa import FAMILIES
from microc.module import Sources
from microc.reading import read_bytes
from microc.target import Target

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
            waiting += [makers[word] for word in _words(texts[path]) if word in makers]
            waiting += tables if "arm_nn_tables.h" in texts[path] else []
    return sorted(chosen)


@lru_cache(maxsize=1024)
def _defined(text: str) -> tuple[str, ...]:
    return tuple(_DEFINED.findall(text))


@lru_cache(maxsize=1024)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _version(root: Path) -> str:
    """The newest release that the pack's description names, if there is one."""
    return next(_releases(root), "")


def _releases(root: Path) -> Iterator[str]:
    for path in sorted(root.glob("*CMSIS-NN.pdsc"))[:1]:
        yield from re.findall(r'<release version="([0-9][\w.\-]*)"', _read(root, path).decode("utf-8", "replace"))
