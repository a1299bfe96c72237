# SPDX-License-Identifier: Apache-2.0
"""Libraries on this computer: building and loading, and OpenCL devices."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.file_access import open_regular_file, write_text
from microc.base.operating_system import make_library_folder
from microc.codegen.c.source import render_shared_library_source
from microc.codegen.opencl import DeviceKernel, print_opencl_kernel
from microc.codegen.render import format_signature
from microc.compiler import validation
from microc.compiler.single_function import make_boundary_graph
from microc.compiler.sizes.general import as_array
from microc.device.toolchain import (
    MOST_CORES,
    compile_library_object,
    compile_shared_library,
    flags_if_machine_available,
    link_shared_library,
)
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import ModelError, OutputError, ToolError, UsageError, similar_files_hint
from microc.isa import CORES
from microc.run.desktop.library import Library, TimingResult, time_runs
from microc.schedule.schedule import Schedule

# ---- Build and load desktop libraries: from C sources, shared objects, and source archives.


SOURCES = ("model.c", "model_data.c", "shared.c")
MEMBERS = (*SOURCES, "model.h", "model_data.h", "manifest.json")
_FOLDERS = tuple(str(level) for level in range(1, MOST_CORES))
"""Folders in an archive with the kernels of a library's second and further cores."""


def load_library(path: str | Path, core: str = "") -> Library:
    """Load the library that :meth:`Library.export_library` wrote to ``path``; a source archive is compiled first.

    If the library has kernels for several cores, those for ``core`` run; without ``core``, those for the first core
    whose instructions this computer has. Raises ModelError if it can run none of them, or if the file is no library."""
    source, core_name = validation.as_path("a library", path), validation.as_text("a core", core)
    if not source.is_file():
        raise OutputError(
            f"there is no file {source}, expected an exported library",
            where=str(source),
            hint=similar_files_hint(source) or "check the path",
        )
    if source.suffix != ".tar":
        return Library(source.resolve(), core=core_name)
    sources = _read_tar(source)
    if any("/" in name for name in sources):
        return build_library_for_cores(sources, core_name)
    return build_library(sources, *_compiler_flags_of_core(sources["manifest.json"], source), core=core_name)


def _compiler_flags_of_core(manifest_text: str, path: Path) -> tuple[str, ...]:
    """Return the compiler flags for the core that C sources were generated for.

    The result is empty if the core needs no flags, or if this computer does not have its instructions.
    ``manifest_text``: text of ``manifest.json`` in the archive; ``path``: path of the archive, for errors."""
    try:
        core = CORES.get(json.loads(manifest_text)["options"]["cpu"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path.name} is no source archive made by microc", where=str(path)) from error
    return flags_if_machine_available(core.machine) if core is not None and core.probe is not None else ()


def _read_tar(path: Path) -> dict[str, str]:
    """Read the files of a source archive by name, and skip files that microc does not write.

    Names in the archive are compared with known names, but never used as paths. Raises ModelError if a file is
    missing."""
    member_names = {*MEMBERS, *(f"{folder}/{name}" for folder in _FOLDERS for name in MEMBERS)}
    try:
        archive_size = path.stat().st_size
        # mode "r:" excludes compression, and sparse members are skipped: either could expand without bound
        with open_regular_file(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            texts = {}
            for member in archive:
                is_known = (
                    member.isreg()
                    and not member.issparse()
                    and member.size <= archive_size
                    and member.name in member_names
                )
                handle = archive.extractfile(member) if is_known else None
                if handle is not None:
                    texts[member.name] = handle.read().decode()
    except OSError as error:
        raise OutputError(
            f"cannot read {path}: {error.strerror or error}", where=str(path), hint="check the permissions of the file"
        ) from error
    except (tarfile.TarError, UnicodeDecodeError, EOFError) as error:
        raise ModelError(f"{path.name} is no source archive made by microc", where=str(path)) from error
    folders = {name.rpartition("/")[0] for name in texts} - {""}
    prefixes = ("", *(f"{folder}/" for folder in sorted(folders)))
    missing = [f"{prefix}{name}" for prefix in prefixes for name in MEMBERS if f"{prefix}{name}" not in texts]
    if missing:
        raise ModelError(
            f"{path.name}: the archive lacks the files {', '.join(missing)}",
            where=str(path),
            hint="export the network again",
        )
    return texts


def build_library(
    sources: Mapping[str, str], *flags: str, build_for_export: Callable[[], Library] | None = None, core: str = ""
) -> Library:
    """Compile C sources into a shared library in a temporary folder, and load it.

    ``sources``: text of each file by name. ``flags``: more arguments for the compiler. ``build_for_export``, ``core``: see
    :class:`Library`."""
    folder = make_library_folder()
    library = compile_sources(sources, Path(folder.name), "model.so", *flags)
    return Library(library, sources, folder, build_for_export, core)


def merge_sources_of_cores(sources_by_core: Sequence[Mapping[str, str]], network_name: str) -> dict[str, str]:
    """Merge the C sources for several cores into those of one library, which selects the kernels of a core at loading.

    ``sources_by_core``: for each core, the text of its files by name; C names differ between cores. ``network_name``:
    name of the network. Files of the first core keep their names; those of core number N get the prefix ``N/``."""
    merged: dict[str, str] = {}
    for level, sources in enumerate(sources_by_core):
        prefix = f"{level}/" if level else ""
        manifest = json.loads(sources["manifest.json"])
        merged |= {f"{prefix}{name}": text for name, text in sources.items()}
        merged[f"{prefix}shared.c"] = render_shared_library_source(manifest, level, network_name)
    return merged


def build_library_for_cores(sources: Mapping[str, str], core: str = "") -> Library:
    """Compile the result of :func:`merge_sources_of_cores` into a library, and load it.

    The kernels of each core are compiled with its compiler flags. ``core``: core whose kernels run; empty for the first that
    this computer can run."""
    folder = make_library_folder()
    root, objects = Path(folder.name), []
    for level in ("", *sorted({name.partition("/")[0] for name in sources if "/" in name})):
        level_folder = root / (level or "0")
        level_folder.mkdir()
        texts = {name: sources[f"{level}/{name}" if level else name] for name in MEMBERS}
        for name, text in texts.items():
            write_text(level_folder / name, text)
        core_info = CORES.get(json.loads(texts["manifest.json"])["options"]["cpu"])
        flags = core_info.machine.split() if core_info and core_info.probe else []
        objects.append(
            compile_library_object(
                level_folder, [level_folder / name for name in SOURCES], root / f"{level_folder.name}.o", *flags
            )
        )
    library = link_shared_library(root, objects, root / "model.so")
    return Library(library, sources, folder, core=core)


def compile_sources(sources: Mapping[str, str], folder: Path, name: str, *flags: str) -> Path:
    """Write C sources into a folder and compile them into the shared library ``name`` there; return its path.

    ``sources``: text of each file by name. External code that ``manifest.json`` names is compiled and linked, too.
    ``flags``: more arguments for the compiler."""
    for file, text in sources.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / file, text)
    files, libraries = [folder / file for file in SOURCES], []
    external = json.loads(sources["manifest.json"]).get("external") if "manifest.json" in sources else None
    if external:
        files += [folder / file for file in external["sources"]]
        libraries = [part for item in external["folders"] for part in (f"-L{item}", f"-Wl,-rpath,{item}")]
        libraries += [f"-l{library}" for library in external["libraries"]]
        flags = (*flags, "-w", *(f"-I{folder / item}" for item in external["include"]))
        flags += tuple(f"-D{item}" for item in external["defines"])
    return compile_shared_library(folder, files, folder / name, *flags, libraries=libraries)


# ---- Run functions as OpenCL kernels on a device of this computer, through PyOpenCL and the device's driver.


_DRIVERS = "install a driver: the vendor's, or one for the processor (apt install pocl-opencl-icd)"


class OpenCLFunction(Showable):
    """A function that runs as an OpenCL kernel.

    ``source``: its OpenCL C. ``groups``: number of work-groups along x, y and z. ``items``: number of work-items of
    each group along x, y and z.

    Call it with numpy arrays in the order of its inputs. It returns an array, or a tuple if there are several outputs.
    The first call needs PyOpenCL and a driver. Raises ToolError if they are missing or the driver rejects the
    kernel."""

    def __init__(self, schedule: Schedule, constants: Mapping[str, Any]) -> None:
        ends = make_boundary_graph(schedule, constants)
        self._kernel: DeviceKernel = print_opencl_kernel(schedule.func)
        self._name, self._params = schedule.func.name, schedule.func.params
        self._constants = ends.consts
        self.inputs, self.outputs = ends.inputs, ends.outputs

    @property
    def source(self) -> str:
        return self._kernel.source

    @property
    def groups(self) -> tuple[int, int, int]:
        return self._kernel.groups

    @property
    def items(self) -> tuple[int, int, int]:
        return self._kernel.items

    @property
    def device(self) -> str:
        """Name of the device that runs it."""
        return str(self._device.name)

    def __call__(self, *arrays: Any) -> Array | tuple[Array, ...]:
        memory = self._upload_parameters(arrays)
        self._launch_and_wait(memory)
        outputs = tuple(self._read_buffer(memory[name], name) for name in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def time_evaluator(self, *arrays: Any, number: int = 10, repeats: int = 5) -> TimingResult:
        """Time ``repeats`` measurements of ``number`` launches each, without the copies of arrays to and from the
        device.

        A launch ends when the kernel has ended."""
        memory = self._upload_parameters(arrays)
        return time_runs(lambda: self._launch_and_wait(memory), number, repeats)

    def __repr__(self) -> str:
        return f"<OpenCLFunction {self._function_signature()}, {self.groups} groups of {self.items}>"

    def document(self) -> Document:
        """Return the number of groups and items as a document, for a notebook."""
        rows = (("groups", " x ".join(map(str, self.groups))), ("items", " x ".join(map(str, self.items))))
        return document(facts(rows), title=self._function_signature())

    def _function_signature(self) -> str:
        """Return the function's name with the names, dtypes and shapes of its inputs and outputs, as text."""
        tensors = {p.name: {"name": p.name, "dtype": p.dtype, "shape": p.shape} for p in self._params}
        inputs, outputs = ([tensors[name] for name in names] for names in (self.inputs, self.outputs))
        return format_signature(self._name, inputs, outputs)

    def _upload_parameters(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Copy the arrays of a call and the constants to buffers on the device; return the buffers by parameter name.

        Buffers of outputs start as zeros."""
        if len(arrays) != len(self.inputs):
            raise UsageError(
                f"{self._name}: got {len(arrays)} arrays, expected {len(self.inputs)}, one for each input",
                hint=f"give {', '.join(self.inputs)}",
            )
        arrays_by_name = {name: as_array(f"input {name!r}", a) for name, a in zip(self.inputs, arrays, strict=True)}
        cl, memory = _import_pyopencl(), {}
        for param in self._params:
            array = self._constants.get(param.name, arrays_by_name.get(param.name))
            if array is None:
                array = np.zeros(param.shape, dtypes.to_numpy(param.dtype))
            if (array.shape, str(array.dtype)) != (param.shape, param.dtype):
                raise UsageError(
                    f"{param.name!r}: got {array.dtype}{list(array.shape)}, expected {param.dtype}{list(param.shape)}",
                    hint="convert the array",
                )
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            memory[param.name] = cl.Buffer(self._context, flags, hostbuf=np.ascontiguousarray(array))
        return memory

    def _launch_and_wait(self, memory: Mapping[str, Any]) -> None:
        """Launch the kernel on buffers on the device, and wait for its end."""
        total = tuple(groups * items for groups, items in zip(self.groups, self.items, strict=True))
        self._program_kernel(self._queue, total, self.items, *(memory[p.name] for p in self._params)).wait()

    def _read_buffer(self, buffer: Any, name: str) -> Array:
        """Copy the buffer of parameter ``name`` from the device to a new array."""
        param = next(p for p in self._params if p.name == name)
        array = np.empty(param.shape, dtypes.to_numpy(param.dtype))
        _import_pyopencl().enqueue_copy(self._queue, array, buffer)
        return array

    @cached_property
    def _device(self) -> Any:
        cl = _import_pyopencl()
        try:
            return next(d for platform in cl.get_platforms() for d in platform.get_devices())
        except (cl.Error, StopIteration) as error:
            raise ToolError(
                "OpenCL found no device: no driver is installed", where="target opencl", hint=_DRIVERS
            ) from error

    @cached_property
    def _context(self) -> Any:
        return _import_pyopencl().Context([self._device])

    @cached_property
    def _queue(self) -> Any:
        return _import_pyopencl().CommandQueue(self._context)

    @cached_property
    def _program_kernel(self) -> Any:
        cl = _import_pyopencl()
        try:
            return cl.Kernel(cl.Program(self._context, self.source).build(), self._kernel.name)
        except cl.Error as error:
            messages = [line for line in str(error).splitlines() if "error:" in line] or [str(error)]
            raise ToolError(
                f"the OpenCL driver rejects the kernel of {self._name}: {messages[0].strip()}",
                where=self.device,
                hint="schedule smaller work-groups, or less shared memory",
            ) from error


def _import_pyopencl() -> Any:
    """Import PyOpenCL; raise ToolError if it is missing."""
    try:
        import pyopencl
    except ImportError as error:
        raise ToolError(
            "PyOpenCL is not installed", where="target opencl", hint='install it: pip install "microc[opencl]"'
        ) from error
    return pyopencl
