"""The desktop backend: generated C as a shared library, by levels of a core."""

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
from typing import TYPE_CHECKING, Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.source import entry_end
from microc.codegen.output_files import replacing
from microc.codegen.project.accelerators import FOLDER
from microc.codegen.project.manifest import SCHEMA_VERSION
from microc.compiler import validation
from microc.compiler.representation import signature, table
from microc.compiler.sizes.run_shapes import RunShapes, as_array
from microc.device.toolchain import MOST_CORES, PLAIN, PORTABLE
from microc.errors import ModelError, OutputError, UsageError, suggestion

# ---- The sets of kernels in a library, one for each core that it was made for: which of them this computer runs.

_ENTRIES = ("run", "run_kernel", "run_batch", "reset", "runs_here")


@frozen
class Level:
    """The kernels for a core: what the library says of them, their folder in an archive, their entry points."""

    manifest: dict[str, Any]
    folder: str
    run: Callable[..., int]
    run_kernel: Callable[..., int]
    run_batch: Callable[..., int]
    reset: Callable[..., None]
    runs_here: Callable[[], int]

    @property
    def core(self) -> str:
        """The core whose instructions it takes; ``portable`` where it takes none in particular."""
        core = self.manifest["options"]["cpu"]
        return PORTABLE if core == PLAIN else str(core)


def level_of(library: ctypes.CDLL, path: Path, core: str = "") -> Level:
    """The kernels that are to run: the first ones that this computer has the instructions for, or those of a core by its name.

    ModelError where the file is no library of this version, or this computer is none of its cores; UsageError for a core that
    the library was not made for.
    """
    levels = _levels(library, path)
    if core and core not in {level.core for level in levels}:
        known = ", ".join(level.core for level in levels)
        raise UsageError(f"{path.name} was not made for {core!r}", where=str(path), hint=f"it was made for: {known}")
    wanted = [level for level in levels if core in ("", level.core)]
    found = next((level for level in wanted if level.runs_here()), None)
    if found is None:
        names = " or ".join(level.core for level in wanted)
        raise ModelError(
            f"{path.name} is made for {names}, whose instructions this computer does not have",
            where=str(path),
            hint=f'export it from target="portable", or for both: target="{wanted[0].core},portable"',
        )
    return found


def _levels(library: ctypes.CDLL, path: Path) -> list[Level]:
    """All that a library has, in its order; no kernel is called."""
    found: list[Level] = []
    for number in range(MOST_CORES):
        end = entry_end(number)
        if number and not hasattr(library, f"microc_manifest{end}"):
            break
        try:
            place = ctypes.c_char.in_dll(library, f"microc_manifest{end}")
            manifest = json.loads(ctypes.string_at(ctypes.addressof(place)).decode())
        except ValueError as error:
            raise ModelError(f"{path.name} is no library made by microc", where=str(path)) from error
        entries = [getattr(library, f"microc_{name}{end}", None) for name in _ENTRIES]
        if manifest.get("schema_version") != SCHEMA_VERSION or None in entries:
            raise ModelError(f"{path.name} was made by another version of microc", hint="export it again")
        folder = f"{number}/" if number else ""
        found.append(Level(manifest, folder, *entries))  # type: ignore[arg-type]  # none of them is None
    return found


# ---- Writing desktop libraries: shared objects and source archives. Both are whole or absent, never half there.


def export_shared(library: Path, target: Path) -> Path:
    """Copy the built shared library."""
    with replacing(target) as temporary:
        shutil.copyfile(library, temporary)
        os.chmod(temporary, 0o755)
    return target


def export_tar(sources: Mapping[str, str], target: Path) -> Path:
    """The C sources as a tar archive with fixed owners and times, so that equal sources give equal bytes."""
    if not sources:
        raise OutputError("a library loaded from .so has no sources to export", where=str(target), hint="export to .so")
    if any("/" in name and name.startswith(FOLDER) for name in sources):
        raise OutputError("an archive of sources has no external code", where=str(target), hint="export to .so")
    with replacing(target) as temporary, tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(sources):
            data = sources[name].encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return target


# ---- Inputs and outputs by their names, beside their places in the graph's order.

Tensors = Sequence[Mapping[str, Any]]
"""As a manifest has them: ``name`` in C, ``label`` in the model."""


def position_of(key: int | str, tensors: Tensors, what: str) -> int:
    """The place of one of ``tensors``, which are ``what`` (``input``), by that or by a name; UsageError for what is neither."""
    names = [t["name"] for t in tensors]
    labels = [t["label"] for t in tensors]
    if isinstance(key, str) and (key in names or key in labels):
        return names.index(key) if key in names else labels.index(key)
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < len(tensors):
        return int(key)
    raise UsageError(
        f"there is no {what} {validation.shown(key)}",
        hint=suggestion(key if isinstance(key, str) else "", names, f"{what}s"),
    )


def in_order(inputs: Tensors, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arrays of a call, some by place and others by name, in order. UsageError where one is missing or given twice."""
    found: dict[int, Any] = dict(enumerate(arrays))
    for name, array in named.items():
        place = position_of(name, inputs, "input")
        if place in found:
            raise UsageError(f"input {name!r} is given twice", hint="by its place or by its name")
        found[place] = array
    missing = [tensor["name"] for place, tensor in enumerate(inputs) if place not in found]
    if missing:
        raise UsageError(f"input {missing[0]!r} is missing", hint="inputs: " + ", ".join(t["name"] for t in inputs))
    return tuple(found[place] for place in sorted(found))


# ---- How long runs of a library take.


@frozen
class TimingResult:
    """Seconds per run: mean, median, min, max over ``repeats`` measurements of ``number`` runs each."""

    mean: float
    median: float
    min: float
    max: float
    repeats: int
    number: int

    def _repr_html_(self) -> str:
        rows = [(name, f"{getattr(self, name) * 1e6:,.2f} us") for name in ("mean", "median", "min", "max")]
        return table(f"time of a run, {self.repeats} measurements of {self.number}", rows)


def time_runs(run: Callable[[], None], number: int, repeats: int) -> TimingResult:
    """Time ``repeats`` x ``number`` runs, after one that is not counted."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            run()
        seconds.append((time.perf_counter() - start) / number)
    return TimingResult(fmean(seconds), median(seconds), min(seconds), max(seconds), repeats, number)


# ---- The desktop backend: the generated C as a shared library, driven with numpy arrays.

if TYPE_CHECKING:
    pass


class Library:
    """A compiled network in this process. ``lib(x)`` runs it, :meth:`batch` on many samples; ``set_input / run / get_output /
    reset`` do so in steps.

    A call reads arrays where they lie and writes into new ones; steps copy in and out, and go on with copies of what the last
    call was given and gave. One instance has one arena, where its state lives, too: use one per thread; :meth:`instance` gives
    more of them.

    ``elsewhere`` makes what is exported, where this one uses what only some computers have. ``core``: whose kernels run, where
    the library has those of several; the first ones that this computer runs unless given.
    """

    def __init__(
        self,
        path: Path,
        sources: Mapping[str, str] | None = None,
        folder: Any = None,
        elsewhere: Callable[[], Library] | None = None,
        core: str = "",
    ) -> None:
        self.path = path
        self._elsewhere = elsewhere
        self._sources = dict(sources or {})
        self._folder = folder  # keeps a temporary folder alive
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise _not_loaded(path, error) from error
        self._level = level_of(library, path, core)
        self.manifest: dict[str, Any] = self._level.manifest
        self._tensors: dict[str, dict[str, Any]] = {t["name"]: t for t in self.manifest["tensors"]}
        self.inputs = tuple(self._tensors[n] for n in self.manifest["inputs"])
        self.outputs = tuple(self._tensors[n] for n in self.manifest["outputs"])
        self._arena = np.zeros(max(16, self.manifest["arena_size"]) + 64, dtype=np.uint8)
        self._start = -self._arena.ctypes.data % 64
        self._in = [_empty(t) for t in self.inputs]
        self._out = [_empty(t) for t in self.outputs]
        self._buffers = {"arena": self._arena[self._start :]} | {
            t["name"]: a.reshape(-1).view(np.uint8)
            for t, a in zip((*self.inputs, *self.outputs), (*self._in, *self._out), strict=True)
        }
        self._shapes = RunShapes(self.manifest)
        self._given = [self._shapes.of(t) for t in self.inputs]
        self._memory = ctypes.c_void_p(self._arena.ctypes.data + self._start)
        self._in_pointers, self._out_pointers = _pointers(self._in), _pointers(self._out)
        self._wanted, self._made = ([(a.shape, a.dtype) for a in each] for each in (self._in, self._out))
        self._call_in, self._call_out = _pointers(self._in), _pointers(self._out)
        # what the last call was given and gave, until steps have copied it
        self._called: tuple[Sequence[Array], Sequence[Array]] | None = None
        self.reset()

    @property
    def core(self) -> str:
        """The core whose kernels run; ``portable`` where they need none in particular."""
        return self._level.core

    @property
    def _sizes(self) -> tuple[Any, ...]:
        """What entry points are told behind their arguments: the sizes of the run, where they vary."""
        return (self._shapes.vector.ctypes,) if self._shapes.sizes else ()

    def set_input(self, key: int | str, value: Any) -> None:
        """Copy ``value`` into an input, by position or name. Shape and dtype must match; nothing is converted silently.

        Where sizes vary, its shape tells some of them.
        """
        index = position_of(key, self.inputs, "input")
        self._keep_call()
        self._shapes.learn([self.inputs[index]], [value])
        self._keep_input(index, self._shapes.checked(value, self.inputs[index]))

    def _keep_input(self, index: int, array: Array) -> None:
        self._in[index].reshape(-1)[: array.size] = array.reshape(-1)
        self._given[index] = array.shape

    def _keep_call(self) -> None:
        """Copy what the last call was given and gave, which the caller may change, to where steps find it."""
        if self._called is not None:
            (given, made), self._called = self._called, None
            for index, array in enumerate(given):
                self._keep_input(index, array)
            for mine, array in zip(self._out, made, strict=True):
                mine.reshape(-1)[: array.size] = array.reshape(-1)

    def run(self) -> None:
        """One inference on the inputs set before."""
        self._keep_call()
        for tensor, shape in zip(self.inputs, self._given, strict=True) if self._shapes.sizes else ():
            if shape != self._shapes.of(tensor):
                raise UsageError(
                    f"input {tensor['name']} of shape {shape} does not fit the sizes {self._shapes.sizes} of other inputs",
                    hint="set all inputs whose shapes change",
                )
        self._check(self._level.run(self._memory, self._in_pointers, self._out_pointers, *self._sizes))

    def _check(self, status: int) -> None:
        if status != 0:
            raise UsageError(f"the network returned error {status}")

    def run_kernel(self, kernel: int) -> None:
        """One kernel of the call sequence; all in order are one inference."""
        number = validation.integer("a kernel", kernel, most=(1 << 32) - 1)
        self._keep_call()
        status = self._level.run_kernel(
            self._memory, self._in_pointers, self._out_pointers, ctypes.c_uint32(number), *self._sizes
        )
        if status != 0:
            raise UsageError(f"there is no kernel {kernel}")

    def get_output(self, key: int | str) -> Array:
        """A copy of an output, by position or name."""
        index = position_of(key, self.outputs, "output")
        self._keep_call()
        return _front(self._out[index], self._shapes.of(self.outputs[index])).copy()

    def instance(self) -> Library:
        """The same network with memory of its own, at its initial state: what the two run does not touch each other."""
        return Library(self.path, self._sources, self._folder, self._elsewhere, self.core)

    def reset(self) -> None:
        """Put the state (recurrent layers) to its initial content."""
        self._level.reset(self._memory)

    def __repr__(self) -> str:
        network = signature(self.manifest["model"], self.inputs, self.outputs)
        return f"<Library {network}, {len(self.manifest['kernels'])} kernels>"

    def _repr_html_(self) -> str:
        rows = [("kernels", len(self.manifest["kernels"])), ("arena, bytes", self.manifest["arena_size"])]
        return table(signature(self.manifest["model"], self.inputs, self.outputs), rows)

    def __call__(self, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run on arrays in the graph's order, or by name; one output comes as a new array, several as a tuple. Arrays whose
        elements lie in the order of C are not copied."""
        if named:
            arrays = in_order(self.inputs, arrays, named)
        if len(arrays) == len(self._wanted) and all(map(_is_ready, arrays, self._wanted)) and not self._shapes.sizes:
            given: Sequence[Array] = arrays
            made = [np.empty(shape, dtype) for shape, dtype in self._made]
        else:
            self._refuse_samples(arrays)
            given = [np.require(a, requirements=("C", "A")) for a in self._shapes.fitting(self.inputs, arrays)]
            made = [np.empty(self._shapes.of(t), dtypes.to_numpy(t["dtype"])) for t in self.outputs]
        for k, array in enumerate(given):
            self._call_in[k] = _address(array)
        for k, array in enumerate(made):
            self._call_out[k] = _address(array)
        self._called = given, made
        self._check(self._level.run(self._memory, self._call_in, self._call_out, *self._sizes))
        return made[0] if len(made) == 1 else tuple(made)

    def _refuse_samples(self, arrays: Sequence[Any]) -> None:
        """UsageError that names :meth:`batch` for a call with several samples."""
        for tensor, array in zip(self.inputs, arrays, strict=False):
            shape, given = self._shapes.of(tensor), tuple(getattr(array, "shape", ()))
            if self._shapes.sizes or given == shape or not given or given[0] < 2:
                continue
            samples = given[1:] == shape or (shape[:1] == (1,) and given[1:] == shape[1:])
            if samples:
                axes = "" if given[1:] == shape else f".reshape(-1, {', '.join(map(str, shape))})"
                raise UsageError(
                    f"input {tensor['name']} has shape {shape}, {given} was given",
                    hint=f"for {given[0]} samples in one call: lib.batch(array{axes})",
                )

    def batch(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """Run on many samples, one after the other, in one call: ``arrays`` have an axis more than inputs, the first, and so
        have the outputs, which come as in a call. State lives from sample to sample. Nothing is copied but samples whose
        elements do not lie in the order of C.

        UsageError where inputs have different numbers of samples, and for what a call refuses.
        """
        given = [as_array(f"input {k}", array) for k, array in enumerate(arrays)]
        counts = {len(array) if array.ndim else None for array in given}
        if len(counts) > 1:
            raise UsageError(
                "the inputs of a batch have different numbers of samples",
                hint="the first axis counts the samples, as many for each input",
            )
        count = next(iter(counts), 0) or 0
        for tensor, array in zip(self.inputs, given, strict=False):
            self._check_samples(tensor, array)
        self._shapes.fitting(self.inputs, [a[0] if count else np.empty(a.shape[1:], a.dtype) for a in given])
        given = [np.require(array, requirements=("C", "A")) for array in given]
        made = [np.empty((count, *self._shapes.of(t)), dtypes.to_numpy(t["dtype"])) for t in self.outputs]
        steps = [(ctypes.c_size_t * max(1, len(each)))(*(a[:1].nbytes for a in each)) for each in (given, made)]
        places = _pointers(given), steps[0], _pointers(made), steps[1], ctypes.c_size_t(count)
        self._check(self._level.run_batch(self._memory, *places, *self._sizes))
        return made[0] if len(made) == 1 else tuple(made)

    def _check_samples(self, tensor: Mapping[str, Any], array: Array) -> None:
        """UsageError for samples that are not as large as the input, with the reshape that makes them so."""
        shape = self._shapes.of(tensor)
        if self._shapes.sizes or array.shape[1:] == shape:
            return
        fits = array.ndim and array[:1].size == np.prod(shape, dtype=int)
        raise UsageError(
            f"input {tensor['name']} takes samples of shape {shape}, an array of shape {array.shape} was given",
            hint=f"array.reshape(-1, {', '.join(map(str, shape))})" if fits else "the first axis counts the samples",
        )

    def tensor(self, name: str) -> Array:
        """A copy of any tensor of the manifest; an intermediate one holds its value only until its memory is used again."""
        found, memory = self._place(name)
        return _front(np.frombuffer(memory.tobytes(), dtypes.to_numpy(found["dtype"])), self._shapes.of(found))

    def set_tensor(self, name: str, value: Any) -> None:
        """Overwrite any tensor of the manifest, for verification."""
        found, memory = self._place(name)
        data = np.ascontiguousarray(self._shapes.checked(value, found)).reshape(-1).view(np.uint8)
        memory[: data.size] = data

    def _place(self, name: str) -> tuple[dict[str, Any], Array]:
        """A tensor of the manifest and its bytes."""
        found = self._tensors.get(validation.text("a tensor", name))
        if found is None:
            raise UsageError(f"there is no tensor {name!r}", hint=suggestion(name, self._tensors, "tensors"))
        self._keep_call()
        return found, self._buffers[found["buffer"]][found["offset"] :][: found["bytes"]]

    def time_evaluator(self, number: int = 10, repeats: int = 5) -> TimingResult:
        """Time ``repeats`` x ``number`` runs on the inputs set before."""
        number, repeats = validation.integer("number", number, 1), validation.integer("repeats", repeats, 1)
        return time_runs(self.run, number, repeats)

    @property
    def model_c(self) -> str:
        """C of the kernels that run; empty where the library was loaded as a shared object."""
        return self._sources.get(f"{self._level.folder}model.c", "")

    def export_library(self, path: str | Path) -> Path:
        """Write the network to ``path``: a shared library (``.so``) or its C sources (``.tar``).

        What was compiled for ``host`` is compiled again as portable C, so that it runs on any computer of this kind; floats may
        differ in their last bits. A core that was named is kept, and needed where the library is loaded: elsewhere it is refused.
        What was compiled for several holds the kernels of each, and chooses when it is loaded. OutputError where the model's
        file has changed since.
        """
        target = validation.path("a library", path)
        if target.suffix not in (".tar", ".so"):
            raise OutputError(f"cannot export to {target.name}", where=str(target), hint="end the name in .so or .tar")
        exported = self._elsewhere() if self._elsewhere else self
        if exported.manifest["sha256"] != self.manifest["sha256"]:
            raise OutputError("the model has changed since it was compiled", where=str(target), hint="compile it again")
        if target.suffix == ".tar":
            return export_tar(exported._sources, target)
        return export_shared(exported.path, target)


def _empty(tensor: Mapping[str, Any]) -> Array:
    return np.zeros(tensor["shape"], dtype=dtypes.to_numpy(tensor["dtype"]))


def _pointers(arrays: Sequence[Array]) -> Any:
    """The addresses of arrays as an array of C, of one element at least."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(_address, arrays))


def _address(array: Any) -> int:
    """Where the elements of an array lie. numpy's own way takes a microsecond; buffers are there for what may be written."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, or of a dtype that has no buffers
        return int(array.ctypes.data)


def _is_ready(array: Any, wanted: tuple[tuple[int, ...], Any]) -> bool:
    """Whether C can read what was given as it lies; all else has to be looked at, and is perhaps refused."""
    if type(array) is not np.ndarray or (array.shape, array.dtype) != wanted:
        return False
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned)


def _front(array: Array, shape: tuple[int, ...]) -> Array:
    """The elements at the front of an array, in a shape."""
    return array.reshape(-1)[: prod(shape)].reshape(shape)


def _not_loaded(path: Path, error: OSError) -> ModelError:
    """The refusal of a shared object by the system's loader, which names a missing dependency."""
    text = str(error)
    missing = text.split(":")[0].strip()
    if "cannot open shared object file" in text and missing not in (str(path), path.name):
        return ModelError(
            f"{path.name} needs the library {missing}, which is not found",
            where=str(path),
            hint="install it, or add its folder to LD_LIBRARY_PATH",
        )
    return ModelError(f"{path.name} is no library made by microc: {text}", where=str(path))
