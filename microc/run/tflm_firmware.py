# SPDX-License-Identifier: Apache-2.0
"""TFLite Micro (TFLM) on the board of a project: the same firmware, with TFLM's interpreter in the place of microc's kernels.

The user has TFLM: a clone in which its own makefile built ``libtensorflow-microlite.a``, or a folder with this library and
the headers. A project is written again (:func:`write_tflm_project`): start-up code, drivers, protocol and compiler options
stay, and ``templates/tflm`` replaces the network. So both firmwares answer the same host and differ in the network alone.
The board is then asked for the smallest arena that TFLM accepts, for outputs, time and stack (:func:`measure_tflm`).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.file_access import read_bytes, read_text, write_text
from microc.base.immutable import frozen
from microc.codegen.output_files import PROJECT_MARKER
from microc.codegen.project.manifest import to_json
from microc.codegen.render import Code, Name, Word, render
from microc.compiler.fit.budget import region_bytes
from microc.device.board_info import make_printable
from microc.device.toolchain import LinkedSizes, install_hint, require_program
from microc.errors import FitError, ToolError, UnsupportedError, UsageError
from microc.frontend.tflite.file import Operator, TfliteFile
from microc.run.board_project import AUTO, Project, build_project, open_project
from microc.run.session import Device, flash_project
from microc.target import Board

# ---- The user's copy: its library for a board's core, and the operators that its resolver knows.

FOLDER = "MICROC_TFLM"
"""Environment variable that names the folder of TFLM."""
LIBRARY = "libtensorflow-microlite.a"
RESOLVER = "tensorflow/lite/micro/micro_mutable_op_resolver.h"
_DOWNLOADS = "tensorflow/lite/micro/tools/make/downloads"
_THIRD_PARTY = ("flatbuffers/include", "gemmlowp", "ruy", "kissfft")
INCLUDE = tuple(f"{root}/{name}" for root in ("third_party", _DOWNLOADS) for name in _THIRD_PARTY)
"""Folders with headers below that of TFLM: of a tree that ``create_tflm_tree.py`` wrote, and of a clone."""
MAX_LIBRARY_BYTES, MAX_HEADER_BYTES = 1 << 28, 1 << 22
_CLONE = "git clone https://github.com/tensorflow/tflite-micro"
_MAKE = "make -C tflite-micro -f tensorflow/lite/micro/tools/make/Makefile"
_KERNELS = "OPTIMIZED_KERNEL_DIR=cmsis_nn BUILD_TYPE=release microlite"
_HARD_FLOAT_SUFFIX = {"cortex-m4": "+fp", "cortex-m7": "+fp"}
"""Suffix of TARGET_ARCH for an FPU and its calling convention, where a core's name alone means that it has none."""
_SOFT_FLOAT_SUFFIX = {"cortex-m33": "+nodsp", "cortex-m55": "+nofp"}
_METHOD = re.compile(r"TfLiteStatus (Add\w+)\(([^{}]*)\)\s*\{")
_BUILTIN = re.compile(r"AddBuiltin\(\s*BuiltinOperator_(\w+)")
_CUSTOM = re.compile(r'AddCustom\(\s*"(\w+)"')


@frozen
class TflmCopy:
    """A copy of TFLM that is built for a core.

    ``folder``: root of its headers. ``library``: the static library. ``methods``: by operator (a builtin's name, or
    ``CUSTOM:<name>``) the method of the resolver that adds it, and True if the method takes a registration.
    ``int8_kernels``: builtin operators with kernels for int8 alone, which take less flash. ``has_cmsis_nn``: True if
    the library contains CMSIS-NN. ``has_messages``: False if it was built without texts of messages, as a release is."""

    folder: Path
    library: Path
    methods: Mapping[str, tuple[str, bool]]
    int8_kernels: frozenset[str]
    has_cmsis_nn: bool
    has_messages: bool

    @property
    def label(self) -> str:
        """Path of the library's build below the copy's folder, which names core, optimised kernels and build type."""
        build = self.library.parent.parent if self.library.parent.name == "lib" else self.library.parent
        return make_printable(build.name, 100)


def name_folder(folder: Path | None) -> Path:
    """Return ``folder``, or the one that :data:`FOLDER` names. Raises UsageError if there is neither."""
    if folder is None and not os.environ.get(FOLDER):
        raise UsageError(
            f"--against tflm: got no copy of TFLite Micro, expected --tflm DIR or {FOLDER}",
            hint=f"{_CLONE} && {_MAKE} TARGET=cortex_m_generic TARGET_ARCH=cortex-m4+fp {_KERNELS} && "
            f"export {FOLDER}=$PWD/tflite-micro",
        )
    return folder or Path(os.environ[FOLDER])


def find_tflm(folder: Path | None, board: Board) -> TflmCopy:
    """Find the copy of TFLM that :func:`name_folder` returns, and its library for a board's core.

    Raises UsageError if no folder is named, and ToolError if it is no copy of TFLM or not built for the core; the hint
    has the commands."""
    named, build = name_folder(folder), _build_command(board)
    header = named / RESOLVER
    if not header.is_file():
        raise ToolError(
            f"{named} is no copy of TFLite Micro: it has no {RESOLVER}", where=str(named), hint=f"{_CLONE} && {build}"
        )
    library = _find_library(named, board)
    if library is None:
        raise ToolError(f"TFLite Micro is not built for {board.target.cpu}", where=str(named), hint=build)
    try:
        methods = dict(list_resolver_methods(read_text(header, MAX_HEADER_BYTES)))
        content = read_bytes(library, MAX_LIBRARY_BYTES)
    except (OSError, ValueError) as error:
        raise ToolError(f"cannot read TFLite Micro: {error}", where=str(named), hint=build) from error
    int8 = frozenset(
        name for name in methods if f"Register_{name}_INT8Ev".encode() in content
    )  # the Itanium ABI's name of a function without parameters
    has_cmsis_nn, has_messages = b"arm_convolve_wrapper_s8" in content, b"_Z11MicroPrintfPKcz" in content
    return TflmCopy(named.resolve(), library.resolve(), methods, int8, has_cmsis_nn, has_messages)


def list_resolver_methods(header: str) -> Iterator[tuple[str, tuple[str, bool]]]:
    """List the operators of ``micro_mutable_op_resolver.h``: the operator, its method, and True if the method takes a
    registration."""
    _, *pieces = _METHOD.split(header)
    for method, parameters, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if builtin := _BUILTIN.search(body):
            yield builtin[1], (method, "registration" in parameters)
        elif custom := _CUSTOM.search(body):
            yield f"CUSTOM:{custom[1]}", (method, False)


def _target_architecture(board: Board) -> str:
    """Return TARGET_ARCH of TFLM's makefile for a board's core and calling convention."""
    if board.target.isa == "host":
        return platform.machine()
    cpu = board.target.cpu
    is_hard = "-mfloat-abi=hard" in board.raw["build"]["c_flags"]
    return cpu + (_HARD_FLOAT_SUFFIX if is_hard else _SOFT_FLOAT_SUFFIX).get(cpu, "")


def _build_command(board: Board) -> str:
    """Return the command that builds TFLM for a board's core, run beside the clone."""
    architecture = _target_architecture(board)
    if board.target.isa == "host":
        return f"{_MAKE} BUILD_TYPE=release microlite"
    if architecture.startswith("cortex-m"):
        return f"{_MAKE} TARGET=cortex_m_generic TARGET_ARCH={architecture} {_KERNELS}"
    return f"build {LIBRARY} for {board.target.cpu}, and put it into the folder of TFLite Micro"


def _find_library(folder: Path, board: Board) -> Path | None:
    """Find the library for a board's core: in the folder itself or its ``lib``, or among the builds of a clone.

    A build's folder is named ``<TARGET>_<TARGET_ARCH>_<BUILD_TYPE>[_<kernels>]_<compiler>``. Of several, the one with
    optimised kernels and without texts of messages, which is the fastest and the smallest."""
    for path in (folder / LIBRARY, folder / "lib" / LIBRARY):
        if path.is_file():
            return path
    architecture = f"_{_target_architecture(board)}_"
    builds = [path for path in (folder / "gen").glob(f"*/lib/{LIBRARY}") if architecture in path.parent.parent.name]

    def rank(path: Path) -> tuple[bool, bool, str]:
        name = path.parent.parent.name
        return "cmsis_nn" not in name, "_release_" not in name or "with_logs" in name, name

    return min(builds, key=rank, default=None)


def list_registrations(data: bytes, file_name: str, copy: TflmCopy) -> tuple[Code, ...]:
    """List the calls that add a TFLite model's operators to TFLM's resolver, each once, such as
    ``AddConv2D(tflite::Register_CONV_2D_INT8())``.

    An operator whose tensors are all int8 gets the kernels for int8 alone, where the library has such. Raises
    UnsupportedError for operators that this copy of TFLM does not have, with all of them."""
    is_int8: dict[str, bool] = {}
    first = TfliteFile(data, file_name)
    for number in range(first.subgraphs):
        subgraph = first.subgraph(number)
        for operator in map(subgraph.operator, range(subgraph.operator_count)):
            is_int8[operator.code] = is_int8.get(operator.code, True) and _computes_in_int8(subgraph, operator)
    if missing := sorted(set(is_int8) - set(copy.methods)):
        raise UnsupportedError(
            f"TFLite Micro has no {', '.join(make_printable(name) for name in missing)}",
            where=file_name,
            hint="leave out --against, or give a newer copy of TFLite Micro",
        )
    return tuple(_print_registration(name, copy, is_int8[name]) for name in sorted(is_int8))


def _computes_in_int8(subgraph: TfliteFile, operator: Operator) -> bool:
    """Test whether an operator's data, weights and results are int8."""
    tensors = [subgraph.tensor(index) for index in (*operator.inputs[:2], *operator.outputs) if index >= 0]
    return all(tensor.type.dtype == "int8" and not tensor.is_packed_int4 for tensor in tensors)


def _print_registration(operator: str, copy: TflmCopy, is_int8: bool) -> Code:
    """Print the call that adds an operator to the resolver."""
    method, takes_registration = copy.methods[operator]
    kernels = takes_registration and is_int8 and operator in copy.int8_kernels
    return Code(f"{Name(method)}({f'tflite::Register_{Name(operator)}_INT8()' if kernels else ''})")


# ---- The firmware: a project whose network TFLM runs.

CONTROL = "tflm_control"
"""Tensor with the arena's limit, which the host writes, and with the result of the set-up."""
_CONTROL_FORMAT = "<III84s"
_CONTROL_BYTES = struct.calcsize(_CONTROL_FORMAT)
_OPERATORS, _ALLOCATION, _SHAPES = 1, 2, 3
"""Status of a set-up that failed; ``enum tflm_status`` of ``tflm.h``."""
_MAX_ARENA = 1 << 26
_RESERVE = 16 * 1024
"""RAM for TFLM's own variables, in bytes; MobileNet takes 1 KiB beside its arena."""
_LINE = 24
"""Bytes of the model in a line of C."""


@frozen
class TflmTensor:
    """An input or output in the RPC descriptor: bytes, number of the kernel that writes it, and C enumerators."""

    size: int
    kernel: Code
    dtype: Name
    kind: Name


@frozen
class TflmContext:
    """Variables of the templates in ``templates/tflm``.

    ``arena``: bytes reserved for TFLM's arena. ``include``: folders with headers below the copy's. ``registrations``:
    calls that add operators to the resolver. ``flatbuffer``: the model's bytes as lines of a C array."""

    name: Name
    is_host: bool
    arena: int
    has_cmsis_nn: bool
    has_messages: bool
    include: tuple[Word, ...]
    registrations: tuple[Code, ...]
    inputs: int
    outputs: int
    tensors: tuple[TflmTensor, ...]
    fingerprint: tuple[Code, ...]
    flatbuffer: tuple[Code, ...]


def write_tflm_project(project: Project, model: bytes, copy: TflmCopy, arena: int, folder: Path) -> Project:
    """Write the project of TFLM beside a built one of microc; return it. ``model``: bytes of the TFLite file.

    ``arena``: bytes to reserve for TFLM. ``folder``: a new folder. Raises UnsupportedError for operators that TFLM lacks."""
    manifest = project.manifest
    ends = [project.tensors[name] for name in (*manifest["inputs"], *manifest["outputs"])]
    context = TflmContext(
        name=Name(manifest["model"]),
        is_host=project.board.target.isa == "host",
        arena=arena,
        has_cmsis_nn=copy.has_cmsis_nn,
        has_messages=copy.has_messages,
        include=tuple(map(Word, INCLUDE)),
        registrations=list_registrations(model, manifest["source"], copy),
        inputs=len(manifest["inputs"]),
        outputs=len(manifest["outputs"]),
        tensors=tuple(map(_describe_tensor, ends)),
        fingerprint=tuple(Code(f"0x{manifest['fingerprint'][k : k + 2]}") for k in range(0, 32, 2)),
        flatbuffer=tuple(
            Code("".join(f"{byte}," for byte in model[k : k + _LINE])) for k in range(0, len(model), _LINE)
        ),
    )
    shutil.copytree(
        project.folder, folder, ignore=shutil.ignore_patterns("build", "firmware.elf", "model.c", "*_data.*")
    )
    for template in ("GNUmakefile", "tflm.h", "model.cc", "model_data.c", "rpc_model.c"):
        write_text(folder / template, render(f"tflm/{template}.j2", context))
    try:  # links, for make splits paths with blanks
        (folder / "tflm").symlink_to(copy.folder, target_is_directory=True)
        (folder / "tflm_library.a").symlink_to(copy.library)
    except OSError as error:
        raise ToolError(
            f"cannot make a link to TFLite Micro: {error}", where=str(folder), hint="on Windows, enable developer mode"
        ) from error
    write_text(folder / PROJECT_MARKER, to_json(_describe_tflm_project(manifest, ends)))
    return open_project(folder)


def _describe_tensor(tensor: Mapping[str, Any]) -> TflmTensor:
    """Return the entry of an input or output of a manifest in the RPC descriptor."""
    kernel = Code("MICROC_NO_KERNEL" if tensor["kind"] == "input" else "0")
    return TflmTensor(
        tensor["bytes"], kernel, Name(f"MICROC_{tensor['dtype'].upper()}"), Name(f"MICROC_{tensor['kind'].upper()}")
    )


def _describe_tflm_project(manifest: Mapping[str, Any], ends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest of TFLM's firmware: inputs, outputs and the control tensor, and a single kernel."""
    control = {
        **ends[0], "name": CONTROL, "label": CONTROL, "kind": "state", "dtype": "uint8", "shape": [_CONTROL_BYTES],
        "bytes": _CONTROL_BYTES, "scale": None, "buffer": CONTROL, "offset": 0, "written_by": [],
    }  # fmt: skip
    kernel = {
        **manifest["kernels"][0],
        "inputs": manifest["inputs"], "outputs": manifest["outputs"], "workspaces": [], "constants": [],
    }  # fmt: skip
    tensors = [*({**tensor, "written_by": []} for tensor in ends), control]
    return {**manifest, "tensors": tensors, "memory": [], "kernels": [kernel], "classes": None, "self_test": None}


# ---- Measurement.


@frozen
class TflmFigures:
    """Measurements of a network in TFLM on a board, beside those of microc.

    ``build``: name of the library's build. ``time``: duration of an inference in the unit of microc's figure, None if the
    board does not measure it. ``flash``: bytes of the firmware, the model among them. ``arena``: smallest arena in bytes
    that TFLM accepts, in steps of 16. ``ram``: static RAM with this arena, and the deepest stack that was measured.
    ``values``: number of compared values of outputs; ``different``: number of those that differ in a bit;
    ``largest``: largest difference, in the outputs' own numbers."""

    build: str
    time: int | None
    flash: int
    ram: int
    arena: int
    values: int
    different: int
    largest: float


def check_comparable(project: Project) -> None:
    """Raise UsageError if TFLM cannot run a project's network with the same inputs and outputs."""
    manifest, board = project.manifest, project.board
    reason = next(
        (
            reason
            for reason, holds in (
                ("its sizes vary", bool(manifest.get("sizes"))),
                ("it learns", "learning" in manifest),
                ("it streams", bool(manifest["streaming"])),
                ("it is loaded at run time", project.relocatable),
                ("external code computes a part of it", "external" in manifest),
                (f"its protocol is {manifest['options']['protocol']}", manifest["options"]["protocol"] != "rpc"),
                (f"{board.name} is built by a vendor's framework", "framework" in board.raw),
            )
            if holds
        ),
        "",
    )
    if reason:
        raise UsageError(
            f"--against tflm: {manifest['model']} cannot be compared: {reason}",
            where=manifest["source"],
            hint="give a TFLite file, without options that change its inputs, outputs or protocol",
        )


def measure_tflm(
    project: Project,
    sizes: LinkedSizes,
    model: bytes,
    copy: TflmCopy,
    samples: Sequence[Sequence[Array]],
    outputs: Sequence[Sequence[Array]],
    folder: Path,
    *,
    repeat: int = 1,
    patience: float = 10.0,
) -> TflmFigures:
    """Measure TFLM on the board of a built project. ``sizes``: those of microc's firmware.

    ``samples``: inputs of each inference, and ``outputs`` what microc computed from them. ``folder``: folder for TFLM's
    project, which is made. Raises FitError if the board has too little memory for TFLM, UnsupportedError if it cannot run
    the model, and ToolError if its firmware does not build."""
    check_comparable(project)
    capacity = _arena_capacity(project, sizes)
    tflm = write_tflm_project(project, model, copy, capacity, folder)
    prefix = project.board.raw["build"]["prefix"]
    require_program(f"{prefix}g++")
    try:
        linked = build_project(tflm).sizes
    except ToolError as error:
        if isinstance(error, FitError):
            raise
        raise ToolError(
            f"TFLite Micro's firmware: {error.what}", where=error.where, hint=_hint_of_build(error, project)
        ) from error
    if tflm.needs_hardware:
        flash_project(tflm, port=AUTO, patience=patience)
    with Device(tflm, AUTO if tflm.needs_hardware else "", patience=patience) as device:
        arena = _find_smallest_arena(device, capacity)
        results = [run_to_tuple(device, sample) for sample in samples]
        device.set_inputs(*samples[0])
        timing = device.time(repeat)
        clock = device.clock
        stack = device.stats().stack_bytes or 0
    is_timed = clock.counts_instructions or not clock.emulated
    return TflmFigures(
        build=copy.label,
        time=clock.convert_ticks(round(timing.mean)) if is_timed else None,
        flash=linked.flash,
        ram=linked.static_ram - capacity - _CONTROL_BYTES + arena + stack,
        arena=arena,
        **_compare_outputs(results, outputs),
    )


def _arena_capacity(project: Project, sizes: LinkedSizes) -> int:
    """Return the bytes of RAM that can be reserved for TFLM's arena on a project's board, a multiple of 16."""
    room = region_bytes(project.board, "ram") or _MAX_ARENA
    used: int = sizes.static_ram - project.manifest["arena_size"] + sizes.reserved_stack + _RESERVE
    if room <= used:
        raise FitError(f"TFLite Micro needs more RAM than the board has: {used:,} bytes beside its arena, of {room:,}")
    return min(_MAX_ARENA, room - used) // 16 * 16


def _hint_of_build(error: ToolError, project: Project) -> str:
    """Return the hint about a firmware of TFLM that does not build, empty if the reason is unknown."""
    if "fatal error: c" in error.what or "-lstdc++" in error.what:
        return install_hint(f"{project.board.raw['build']['prefix']}g++")
    if any(sign in error.what for sign in ("VFP register", "incompatible", "conflicting CPU", "file format")):
        return f"build the library for this core: {_build_command(project.board)}"
    return error.hint


def _find_smallest_arena(device: Device, capacity: int) -> int:
    """Find the smallest arena in bytes, a multiple of 16, that TFLM accepts; leave the interpreter set up with it.

    The used bytes that TFLM reports are a lower bound: planning takes memory of the arena for a while. Above it the
    search grows its steps until TFLM accepts, then halves the interval."""
    used = _set_up(device, capacity)
    low, step = max(used, 16), 16
    high = low = -(-low // 16) * 16
    while high < capacity and not _accepts_arena(device, high):
        low, high, step = high + 16, min(high + step, capacity), 2 * step
    while low < high:
        middle = (low + high) // 32 * 16
        low, high = (low, middle) if _accepts_arena(device, middle) else (middle + 16, high)
    _set_up(device, high)
    return high


def _set_up(device: Device, arena: int) -> int:
    """Set up TFLM with an arena of so many bytes; return the bytes that it uses.

    Raises UnsupportedError, with TFLM's message, if it does not accept the model, and FitError if the arena is the
    reason."""
    used, status, message = _try_set_up(device, arena)
    if not status:
        return used
    text = make_printable(message, 84)
    what = {
        _OPERATORS: "TFLite Micro does not register the model's operators",
        _SHAPES: "inputs and outputs of TFLite Micro differ in number or size from those that microc compiled",
    }.get(status, f"TFLite Micro does not allocate the model's tensors in {arena:,} bytes")
    if "buffer" in message or "rena" in message:
        raise FitError(f"{what}: {text}")
    hint = (
        "leave out options that change inputs or outputs"
        if status == _SHAPES
        else "build TFLite Micro with BUILD_TYPE=default for its messages"
    )
    raise UnsupportedError(f"{what}{f': {text}' if text else ''}", hint=hint)


def _accepts_arena(device: Device, arena: int) -> bool:
    """Test whether TFLM accepts an arena of so many bytes."""
    _, status, _ = _try_set_up(device, arena)
    return status == 0


def _try_set_up(device: Device, arena: int) -> tuple[int, int, str]:
    """Set up TFLM with an arena of so many bytes; return used bytes, status and message."""
    device.overwrite_first_bytes(CONTROL, struct.pack("<I", arena))
    device.reset()
    control: tuple[int, int, int, bytes] = struct.unpack(_CONTROL_FORMAT, device.read(CONTROL).tobytes())
    _, used, status, message = control
    return used, status, message.split(b"\0")[0].decode("ascii", "replace")


def run_to_tuple(device: Device, sample: Sequence[Array]) -> tuple[Array, ...]:
    """Run an inference on a board; return its outputs as a tuple, also if there is one."""
    result = device.run(*sample)
    return result if isinstance(result, tuple) else (result,)


def _compare_outputs(results: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]]) -> dict[str, Any]:
    """Count the compared values, those that differ in a bit, and return the largest difference (inf if one is not finite)."""
    values, different, largest = 0, 0, 0.0
    for ours, theirs in zip(results, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            differs = np.frombuffer(a.tobytes(), np.uint8).reshape(a.size, -1) != np.frombuffer(
                b.tobytes(), np.uint8
            ).reshape(b.size, -1)
            where = differs.any(axis=1).reshape(a.shape)
            values += a.size
            different += int(where.sum())
            with np.errstate(invalid="ignore"):
                gaps = np.abs(a[where].astype(np.float64) - b[where].astype(np.float64))
            largest = max([largest, *np.nan_to_num(gaps, nan=np.inf).tolist()])
    return {"values": values, "different": different, "largest": largest}
