# SPDX-License-Identifier: Apache-2.0
"""The desktop backend: generated C as a shared library that is called with numpy arrays.

A library may contain the kernels of a network for several cores. Those of the first core whose instructions this
computer has are used.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.source import entry_point_suffix
from microc.codegen.output_files import replace_atomically
from microc.codegen.project.additions import EXTERNAL_FOLDER
from microc.codegen.project.manifest import SCHEMA_VERSION, is_inference
from microc.codegen.render import format_signature
from microc.compiler import validation
from microc.compiler.sizes.general import RunShapes, as_array
from microc.device.toolchain import MOST_CORES, PLAIN, PORTABLE
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import ModelError, OutputError, UsageError, known_names_hint

# ---- Levels: the kernels in a library, one set for each core that it was compiled for.

_ENTRIES = ("run", "run_kernel", "run_batch", "reset", "runs_here")
"""Functions that a library exports for each core."""


@frozen
class CoreKernels:
    """The kernels of a library for one core, and the C functions that run them.

    ``manifest``: manifest of the network as it was compiled for the core. ``folder``: folder of its C sources in a
    source archive, with a final slash, empty for the library's first core. ``run`` to ``runs_here``: C functions that
    the library exports."""

    manifest: dict[str, Any]
    folder: str
    run: Callable[..., int]
    run_kernel: Callable[..., int]
    run_batch: Callable[..., int]
    reset: Callable[..., None]
    runs_here: Callable[[], int]

    @property
    def core(self) -> str:
        """Core whose instructions the kernels need; ``portable`` if none."""
        core = self.manifest["options"]["cpu"]
        return PORTABLE if core == PLAIN else str(core)


def select_core_kernels(library: ctypes.CDLL, path: Path, core: str = "") -> CoreKernels:
    """Select the kernels of a library for ``core``; without a core, the first kernels that this computer can run.

    ``path``: path of the library, for errors. Raises Raises ModelError if the file is no library of this version, or
    this computer can run none of its kernels; raises UsageError if the library was not compiled for ``core``."""
    all_kernels = _list_core_kernels(library, path)
    if core and core not in {candidate.core for candidate in all_kernels}:
        known = ", ".join(candidate.core for candidate in all_kernels)
        raise UsageError(
            f"{path.name} has no kernels for {core!r}, expected one of {known}",
            where=str(path),
            hint="name one of these cores, or leave out core",
        )
    candidates = [candidate for candidate in all_kernels if core in ("", candidate.core)]
    selected = next((candidate for candidate in candidates if candidate.runs_here()), None)
    if selected is None:
        names = " or ".join(candidate.core for candidate in candidates)
        raise ModelError(
            f"{path.name} is made for {names}, whose instructions this computer does not have",
            where=str(path),
            hint=f'compile it with target="portable", or for both: target="{candidates[0].core},portable"',
        )
    return selected


def _list_core_kernels(library: ctypes.CDLL, path: Path) -> list[CoreKernels]:
    """List the kernels of a library for each of its cores, in order, without calling its code.

    ``path``: path of the library, for errors. Raises Raises ModelError if the file is no library of this version."""
    all_kernels: list[CoreKernels] = []
    for number in range(MOST_CORES):
        suffix = entry_point_suffix(number)
        if number and not hasattr(library, f"microc_manifest{suffix}"):
            break
        try:
            symbol = ctypes.c_char.in_dll(library, f"microc_manifest{suffix}")
            manifest = json.loads(ctypes.string_at(ctypes.addressof(symbol)).decode())
        except ValueError as error:
            raise ModelError(
                f"{path.name} is no library of microc: its manifest is missing or no JSON",
                where=str(path),
                hint="export the network again",
            ) from error
        entries = [getattr(library, f"microc_{name}{suffix}", None) for name in _ENTRIES]
        if manifest.get("schema_version") != SCHEMA_VERSION or None in entries:
            raise ModelError(
                f"{path.name} was made by another version of microc: got schema {manifest.get('schema_version')}, "
                f"expected {SCHEMA_VERSION}",
                hint="export the network again",
            )
        folder = f"{number}/" if number else ""
        all_kernels.append(CoreKernels(manifest, folder, *entries))  # type: ignore[arg-type]  # none of them is None
    return all_kernels


# ---- Exporting libraries as shared objects or source archives. Files are written completely or not at all.


def export_shared(library: Path, target: Path) -> Path:
    """Copy a built shared library to the path ``target``, and return that path."""
    with replace_atomically(target) as temporary:
        shutil.copyfile(library, temporary)
        os.chmod(temporary, 0o755)
    return target


def export_tar(sources: Mapping[str, str], target: Path) -> Path:
    """Write C sources as a tar archive at the path ``target``, and return that path.

    ``sources``: text of each file by name. Owners and times are fixed, so that equal sources give equal bytes. Raises
    OutputError for a library without sources or with external code."""
    if not sources:
        raise OutputError(
            f"{target.name}: a library that was loaded from a .so file has no C sources to export, expected a name in .so",
            where=str(target),
            hint="export to .so",
        )
    if any("/" in name and name.startswith(EXTERNAL_FOLDER) for name in sources):
        raise OutputError(
            f"{target.name}: an archive cannot contain external code, expected a name in .so",
            where=str(target),
            hint="export to .so",
        )
    with replace_atomically(target) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(sources):
            data = sources[name].encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return target


# ---- Inputs and outputs by name or position.

Tensors = Sequence[Mapping[str, Any]]
"""Tensors of a manifest, which have a ``name`` in C and a ``label`` in the model."""


def find_tensor_position(key: int | str, tensors: Tensors, tensor_kind: str) -> int:
    """Return the position of the tensor that ``key`` selects: by its position, its C name or its label.

    ``tensor_kind``: ``input`` or ``output``, for the error. Raises UsageError if there is no such tensor."""
    names = [t["name"] for t in tensors]
    labels = [t["label"] for t in tensors]
    if isinstance(key, str) and (key in names or key in labels):
        return names.index(key) if key in names else labels.index(key)
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < len(tensors):
        return int(key)
    raise UsageError(
        f"there is no {tensor_kind} {validation.short_repr(key)}",
        hint=known_names_hint(key if isinstance(key, str) else "", names, f"{tensor_kind}s"),
    )


def order_inputs(
    inputs: Tensors, positional_arrays: Sequence[Any], arrays_by_name: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the input arrays of a call in the order of the network's inputs; the caller may give some by position and
    some by name.

    Raises UsageError if an input is missing or given twice."""
    by_position: dict[int, Any] = dict(enumerate(positional_arrays))
    for name, array in arrays_by_name.items():
        position = find_tensor_position(name, inputs, "input")
        if position in by_position:
            raise UsageError(
                f"input {name!r} is given twice, expected once", hint="give it either by position or by name"
            )
        by_position[position] = array
    missing = [tensor["name"] for position, tensor in enumerate(inputs) if position not in by_position]
    if missing:
        raise UsageError(
            f"input {missing[0]!r} is missing", hint="give all inputs: " + ", ".join(t["name"] for t in inputs)
        )
    return tuple(by_position[position] for position in sorted(by_position))


# ---- Timing.


@frozen
class TimingResult(Showable):
    """Seconds per run: mean, median, minimum and maximum over ``repeats`` measurements of ``number`` runs each."""

    mean: float
    median: float
    min: float
    max: float
    repeats: int
    number: int

    def document(self) -> Document:
        """Return the times as a document, for a notebook."""
        rows = ((name, f"{getattr(self, name) * 1e6:,.2f} us") for name in ("mean", "median", "min", "max"))
        return document(facts(rows), title=f"time of a run, {self.repeats} measurements of {self.number}")


def time_runs(run: Callable[[], None], number: int, repeats: int) -> TimingResult:
    """Time ``repeats`` measurements of ``number`` calls of ``run`` each, after one warm-up call."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            run()
        seconds.append((time.perf_counter() - start) / number)
    return TimingResult(fmean(seconds), median(seconds), min(seconds), max(seconds), repeats, number)


# ---- The library as an object.


class Library(Showable):
    """A compiled network in this process. ``lib(x)`` runs one sample, :meth:`batch` runs many. The methods
    ``set_input``, ``run``, ``get_output`` and ``reset`` do the same in steps.

    A call reads its arrays in place and returns new ones. The steps copy inputs and outputs; the first step after a
    call also copies that call's arrays. An instance has one arena, which also holds its state: use one instance per
    thread (:meth:`instance`).

    ``path``: the shared library. ``sources``: its C files by name. ``folder``: a temporary folder to keep while the
    library is in use. ``build_for_export``: builds the library to export; None unless this library uses instructions
    that only some computers have. ``core``: core whose kernels run; empty for the first that this computer can run.
    """

    def __init__(
        self,
        path: Path,
        sources: Mapping[str, str] | None = None,
        folder: Any = None,
        build_for_export: Callable[[], Library] | None = None,
        core: str = "",
    ) -> None:
        self.path = path
        self._build_for_export = build_for_export
        self._sources = dict(sources or {})
        self._folder = folder  # reference that keeps a temporary folder from being deleted
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise _make_load_error(path, error) from error
        self._level = select_core_kernels(library, path, core)
        self.manifest: dict[str, Any] = self._level.manifest
        self._tensors: dict[str, dict[str, Any]] = {t["name"]: t for t in self.manifest["tensors"]}
        self.inputs = tuple(self._tensors[n] for n in self.manifest["inputs"])
        self.outputs = tuple(self._tensors[n] for n in self.manifest["outputs"])
        self._arena = np.zeros(max(16, self.manifest["arena_size"]) + 64, dtype=np.uint8)
        self._start = -self._arena.ctypes.data % 64
        self._in = [_zeros_for_tensor(t) for t in self.inputs]
        self._out = [_zeros_for_tensor(t) for t in self.outputs]
        self._buffers = {"arena": self._arena[self._start :]} | {
            t["name"]: a.reshape(-1).view(np.uint8)
            for t, a in zip((*self.inputs, *self.outputs), (*self._in, *self._out), strict=True)
        }
        self._shapes = RunShapes(self.manifest)
        self._input_shapes = [self._shapes.shape_of(t) for t in self.inputs]
        self._memory = ctypes.c_void_p(self._arena.ctypes.data + self._start)
        self._in_pointers, self._out_pointers = _make_pointer_array(self._in), _make_pointer_array(self._out)
        self._input_types, self._output_types = (
            [(a.shape, a.dtype) for a in arrays] for arrays in (self._in, self._out)
        )
        self._call_in, self._call_out = _make_pointer_array(self._in), _make_pointer_array(self._out)
        # Inputs and outputs of the last call, until a step needs them and copies them.
        self._last_call: tuple[Sequence[Array], Sequence[Array]] | None = None
        self.reset()

    @property
    def core(self) -> str:
        """Core whose kernels run; ``portable`` if they need no particular one."""
        return self._level.core

    @property
    def _sizes(self) -> tuple[Any, ...]:
        """Additional argument of the C entry points in a tuple: the sizes of this run. The tuple is empty if no sizes
        vary."""
        return (self._shapes.vector.ctypes,) if self._shapes.sizes else ()

    def set_input(self, key: int | str, value: Any) -> None:
        """Copy ``value`` into an input, by position or name. Shape and dtype must match; nothing is converted.

        In a network with variable sizes, the shape of ``value`` determines some of them.
        """
        index = find_tensor_position(key, self.inputs, "input")
        self._copy_last_call()
        self._shapes.set_sizes_from_inputs([self.inputs[index]], [value])
        self._copy_into_input(index, self._shapes.check_array(value, self.inputs[index]))

    def _copy_into_input(self, index: int, array: Array) -> None:
        """Copy an array into the memory that this library keeps for an input, and record its shape."""
        self._in[index].reshape(-1)[: array.size] = array.reshape(-1)
        self._input_shapes[index] = array.shape

    def _copy_last_call(self) -> None:
        """Copy inputs and outputs of the last call into this library's memory, since the caller may change its
        arrays."""
        if self._last_call is not None:
            (inputs, outputs), self._last_call = self._last_call, None
            for index, array in enumerate(inputs):
                self._copy_into_input(index, array)
            for buffer, array in zip(self._out, outputs, strict=True):
                buffer.reshape(-1)[: array.size] = array.reshape(-1)

    def run(self) -> None:
        """Run one inference on the inputs that were set."""
        self._copy_last_call()
        for tensor, shape in zip(self.inputs, self._input_shapes, strict=True) if self._shapes.sizes else ():
            if shape != self._shapes.shape_of(tensor):
                raise UsageError(
                    f"input {tensor['name']}: its shape contradicts the sizes {self._shapes.sizes} of other inputs; "
                    f"got {shape}, expected {self._shapes.shape_of(tensor)}",
                    hint="set all inputs whose shapes change",
                )
        self._check_status(self._level.run(self._memory, self._in_pointers, self._out_pointers, *self._sizes))

    def _check_status(self, status: int) -> None:
        """Raise UsageError unless the status that a C function returned is 0."""
        if status != 0:
            raise UsageError(
                f"the network returned error {status}, expected 0",
                hint="look up the number in the network's model.h: ERROR_NULL, ERROR_SIZE ...",
            )

    def run_kernel(self, kernel: int) -> None:
        """Run one kernel by its position in the order of execution. All kernels in order are one inference."""
        number = validation.as_integer("a kernel", kernel, most=(1 << 32) - 1)
        self._copy_last_call()
        status = self._level.run_kernel(
            self._memory, self._in_pointers, self._out_pointers, ctypes.c_uint32(number), *self._sizes
        )
        if status != 0:
            raise UsageError(
                f"there is no kernel {kernel}, expected 0 to {len(self.manifest['kernels']) - 1}",
                hint="give a position in the order of execution",
            )

    def get_output(self, key: int | str) -> Array:
        """Return a copy of an output, by position or name."""
        index = find_tensor_position(key, self.outputs, "output")
        self._copy_last_call()
        return _reshape_leading_elements(self._out[index], self._shapes.shape_of(self.outputs[index])).copy()

    def instance(self) -> Library:
        """Return the same network with memory and state of its own, for use in another thread."""
        return Library(self.path, self._sources, self._folder, self._build_for_export, self.core)

    def reset(self) -> None:
        """Reset the state of recurrent layers to its initial content."""
        self._level.reset(self._memory)

    def __repr__(self) -> str:
        network = format_signature(self.manifest["model"], self.inputs, self.outputs)
        return f"<Library {network}, {len(self.manifest['kernels'])} kernels>"

    def document(self) -> Document:
        """Return the number of kernels and the size of the arena as a document, for a notebook."""
        rows = (("kernels", len(self.manifest["kernels"])), ("arena, bytes", self.manifest["arena_size"]))
        return document(facts(rows), title=format_signature(self.manifest["model"], self.inputs, self.outputs))

    def __call__(self, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run on arrays in the order of the network's inputs, or by name.

        Returns a new array, or a tuple of them if there are several outputs. Contiguous arrays are not copied. A network
        that learns infers if labels and rate are left out, and returns its outputs without the loss."""
        if named:
            arrays = order_inputs(self.inputs, arrays, named)
        if is_inference(self.manifest, arrays):
            return self._infer(arrays)
        if (
            len(arrays) == len(self._input_types)
            and all(map(_is_readable_in_place, arrays, self._input_types))
            and not self._shapes.sizes
        ):
            inputs: Sequence[Array] = arrays
            outputs = [np.empty(shape, dtype) for shape, dtype in self._output_types]
        else:
            self._check_single_sample(arrays)
            inputs = [np.require(a, requirements=("C", "A")) for a in self._shapes.check_inputs(self.inputs, arrays)]
            outputs = [np.empty(self._shapes.shape_of(t), dtypes.to_numpy(t["dtype"])) for t in self.outputs]
        for k, array in enumerate(inputs):
            self._call_in[k] = _address_of_elements(array)
        for k, array in enumerate(outputs):
            self._call_out[k] = _address_of_elements(array)
        self._last_call = inputs, outputs
        self._check_status(self._level.run(self._memory, self._call_in, self._call_out, *self._sizes))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _infer(self, arrays: Sequence[Any]) -> Array | tuple[Array, ...]:
        """Run the kernels of a network that learns that infer; return its outputs without the loss."""
        for key, array in enumerate(arrays):
            self.set_input(key, array)
        for kernel in range(self.manifest["learning"]["kernels"]):
            self.run_kernel(kernel)
        outputs = tuple(map(self.get_output, range(len(self.outputs) - 1)))
        return outputs[0] if len(outputs) == 1 else outputs

    def _check_single_sample(self, arrays: Sequence[Any]) -> None:
        """Raise UsageError, which suggests :meth:`batch`, if a call's arrays hold several samples."""
        for tensor, array in zip(self.inputs, arrays, strict=False):
            shape, given = self._shapes.shape_of(tensor), tuple(getattr(array, "shape", ()))
            if self._shapes.sizes or given == shape or not given or given[0] < 2:
                continue
            samples = given[1:] == shape or (shape[:1] == (1,) and given[1:] == shape[1:])
            if samples:
                axes = "" if given[1:] == shape else f".reshape(-1, {', '.join(map(str, shape))})"
                raise UsageError(
                    f"input {tensor['name']}: got shape {given}, expected {shape}",
                    hint=f"for {given[0]} samples in one call: lib.batch(array{axes})",
                )

    def batch(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """Run many samples in one call. The first axis of inputs and outputs counts the samples. State continues from
        sample to sample. Only samples that are not contiguous are copied.

        Raises UsageError if inputs have different numbers of samples, or the shape or dtype of a sample does not match.
        """
        inputs = [as_array(f"input {k}", array) for k, array in enumerate(arrays)]
        counts = {len(array) if array.ndim else None for array in inputs}
        if len(counts) > 1:
            raise UsageError(
                f"batch: the inputs have different numbers of samples; got {', '.join(str(a.shape) for a in inputs)}",
                hint="give as many samples for each input, along the first axis",
            )
        count = next(iter(counts), 0) or 0
        for tensor, array in zip(self.inputs, inputs, strict=False):
            self._check_batch_shape(tensor, array)
        self._shapes.check_inputs(self.inputs, [a[0] if count else np.empty(a.shape[1:], a.dtype) for a in inputs])
        inputs = [np.require(array, requirements=("C", "A")) for array in inputs]
        outputs = [np.empty((count, *self._shapes.shape_of(t)), dtypes.to_numpy(t["dtype"])) for t in self.outputs]
        steps = [(ctypes.c_size_t * max(1, len(group)))(*(a[:1].nbytes for a in group)) for group in (inputs, outputs)]
        pointers = _make_pointer_array(inputs), steps[0], _make_pointer_array(outputs), steps[1], ctypes.c_size_t(count)
        self._check_status(self._level.run_batch(self._memory, *pointers, *self._sizes))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _check_batch_shape(self, tensor: Mapping[str, Any], array: Array) -> None:
        """Raise UsageError, with the reshape to do, if the samples of a batch do not have the input's shape."""
        shape = self._shapes.shape_of(tensor)
        if self._shapes.sizes or array.shape[1:] == shape:
            return
        fits = array.ndim and array[:1].size == np.prod(shape, dtype=int)
        raise UsageError(
            f"input {tensor['name']} takes samples of shape {shape}; got an array of shape {array.shape}",
            hint=f"reshape it: array.reshape(-1, {', '.join(map(str, shape))})"
            if fits
            else "give an array whose first axis counts the samples",
        )

    def tensor(self, name: str) -> Array:
        """Return a copy of any tensor of the manifest.

        An intermediate tensor is valid only until a later kernel reuses its memory."""
        tensor, memory = self._find_tensor_memory(name)
        return _reshape_leading_elements(
            np.frombuffer(memory.tobytes(), dtypes.to_numpy(tensor["dtype"])), self._shapes.shape_of(tensor)
        )

    def set_tensor(self, name: str, value: Any) -> None:
        """Overwrite any tensor of the manifest, for verification."""
        tensor, memory = self._find_tensor_memory(name)
        data = np.ascontiguousarray(self._shapes.check_array(value, tensor)).reshape(-1).view(np.uint8)
        memory[: data.size] = data

    def _find_tensor_memory(self, name: str) -> tuple[dict[str, Any], Array]:
        """Return the manifest's entry for a tensor, and an array that views the tensor's bytes in memory. Raises
        UsageError if there is none."""
        tensor = self._tensors.get(validation.as_text("a tensor", name))
        if tensor is None:
            raise UsageError(f"there is no tensor {name!r}", hint=known_names_hint(name, self._tensors, "tensors"))
        self._copy_last_call()
        return tensor, self._buffers[tensor["buffer"]][tensor["offset"] :][: tensor["bytes"]]

    def time_evaluator(self, number: int = 10, repeats: int = 5) -> TimingResult:
        """Time ``repeats`` measurements of ``number`` runs each on the inputs that were set."""
        number, repeats = validation.as_integer("number", number, 1), validation.as_integer("repeats", repeats, 1)
        return time_runs(self.run, number, repeats)

    @property
    def model_c(self) -> str:
        """C source of the kernels that run; empty if the library was loaded as a shared object."""
        return self._sources.get(f"{self._level.folder}model.c", "")

    def export_library(self, path: str | Path) -> Path:
        """Write the network to ``path``: a shared library (``.so``) or its C sources (``.tar``).

        A network compiled for ``host`` is compiled again as portable C, so that it runs on any computer with this
        processor architecture; floats may differ in their last bits. A network compiled for a named core keeps its
        kernels, and computers without the core's instructions refuse to load the library. A network compiled for
        several cores contains the kernels of each; loading selects one. Raises OutputError if the model's file has
        changed since it was compiled.
        """
        target = validation.as_path("a library", path)
        if target.suffix not in (".tar", ".so"):
            raise OutputError(
                f"cannot export to {target.name}, expected .so or .tar",
                where=str(target),
                hint="end the name in .so or .tar",
            )
        exported = self._build_for_export() if self._build_for_export else self
        if exported.manifest["sha256"] != self.manifest["sha256"]:
            raise OutputError(
                "the model's file has changed since it was compiled", where=str(target), hint="compile it again"
            )
        if target.suffix == ".tar":
            return export_tar(exported._sources, target)
        return export_shared(exported.path, target)


def _zeros_for_tensor(tensor: Mapping[str, Any]) -> Array:
    """Return an array of zeros in a tensor's shape and dtype."""
    return np.zeros(tensor["shape"], dtype=dtypes.to_numpy(tensor["dtype"]))


def _make_pointer_array(arrays: Sequence[Array]) -> Any:
    """Return the addresses of arrays as a C array of pointers, with at least one element."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(_address_of_elements, arrays))


def _address_of_elements(array: Any) -> int:
    """Return the address of an array's elements.

    ``ctypes.from_buffer`` works for writable arrays only. It is faster than numpy's ``ctypes.data``, which takes about
    a microsecond."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, or of a dtype that has no buffers
        return int(array.ctypes.data)


def _is_readable_in_place(array: Any, expected_shape_and_dtype: tuple[tuple[int, ...], Any]) -> bool:
    """Test whether C can read an array without a copy: it has the expected shape and dtype, is contiguous and aligned."""
    if type(array) is not np.ndarray or (array.shape, array.dtype) != expected_shape_and_dtype:
        return False
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def _reshape_leading_elements(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the first elements of an array, reshaped to ``shape``; the array may have more elements than ``shape``."""
    return array.reshape(-1)[: prod(shape)].reshape(shape)


def _make_load_error(path: Path, error: OSError) -> ModelError:
    """Return the error for a library that the system's loader rejects. If a shared library that it needs is missing,
    the error names this library."""
    text = str(error)
    missing = text.split(":")[0].strip()
    if "cannot open shared object file" in text and missing not in (str(path), path.name):
        return ModelError(
            f"{path.name} needs the shared library {missing}, which was not found",
            where=str(path),
            hint="install it, or add its folder to LD_LIBRARY_PATH",
        )
    return ModelError(f"{path.name} is no library of microc: {text}", where=str(path))
