# SPDX-License-Identifier: Apache-2.0
"""Build and load desktop libraries: from C sources, shared objects, and source archives."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from microc.base.file_access import open_regular_file
from microc.codegen.c.source import render_shared_library_source
from microc.compiler import validation
from microc.device.toolchain import (
    MOST_CORES,
    compile_library_object,
    compile_shared_library,
    flags_if_machine_available,
    link_shared_library,
)
from microc.errors import ModelError, OutputError, similar_files_hint
from microc.isa import CORES
from microc.run.desktop.library import Library

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
    folder = tempfile.TemporaryDirectory(prefix="microc-")
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
    folder = tempfile.TemporaryDirectory(prefix="microc-")
    root, objects = Path(folder.name), []
    for level in ("", *sorted({name.partition("/")[0] for name in sources if "/" in name})):
        level_folder = root / (level or "0")
        level_folder.mkdir()
        texts = {name: sources[f"{level}/{name}" if level else name] for name in MEMBERS}
        for name, text in texts.items():
            (level_folder / name).write_text(text)
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
        (folder / file).write_text(text)
    files, libraries = [folder / file for file in SOURCES], []
    external = json.loads(sources["manifest.json"]).get("external") if "manifest.json" in sources else None
    if external:
        files += [folder / file for file in external["sources"]]
        libraries = [part for item in external["folders"] for part in (f"-L{item}", f"-Wl,-rpath,{item}")]
        libraries += [f"-l{library}" for library in external["libraries"]]
        flags = (*flags, "-w", *(f"-I{folder / item}" for item in external["include"]))
        flags += tuple(f"-D{item}" for item in external["defines"])
    return compile_shared_library(folder, files, folder / name, *flags, libraries=libraries)
