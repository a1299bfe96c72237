"""Loading desktop libraries: shared objects as they are, source archives after the host's compiler."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from microc.base.file_access import open_regular
from microc.codegen.c.source import shared_source
from microc.compiler import validation
from microc.device.toolchain import MOST_CORES, compile_object, compile_shared, link_shared, machine_flags
from microc.errors import ModelError, OutputError
from microc.isa import CORES
from microc.run.desktop.library import Library

SOURCES = ("model.c", "model_data.c", "shared.c")
MEMBERS = (*SOURCES, "model.h", "model_data.h", "manifest.json")
_FOLDERS = tuple(str(level) for level in range(1, MOST_CORES))
"""Of an archive: where the kernels for a library's second core are, and for others behind it."""


def load_library(path: str | Path, core: str = "") -> Library:
    """Load what :meth:`Library.export_library` wrote to ``path``; a source archive is compiled first.

    Of a library for several cores the kernels run that are for the first which this computer is, or those of ``core``.
    ModelError where this computer is none of them, and for what is no library.
    """
    source, wanted = validation.path("a library", path), validation.text("a core", core)
    if not source.is_file():
        raise OutputError(f"there is no library {source}", where=str(source))
    if source.suffix != ".tar":
        return Library(source.resolve(), core=wanted)
    found = _read_tar(source)
    if any("/" in name for name in found):
        return build_levels(found, wanted)
    return build_library(found, *_flags(found["manifest.json"], source), core=wanted)


def _flags(manifest: str, path: Path) -> tuple[str, ...]:
    """The options of the core that sources were made for, where this computer is one."""
    try:
        core = CORES.get(json.loads(manifest)["options"]["cpu"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path.name} is no source archive made by microc", where=str(path)) from error
    return machine_flags(core.machine) if core is not None and core.probe is not None else ()


def _read_tar(path: Path) -> dict[str, str]:
    """The members that we write, nothing else; names are compared, never followed."""
    known = {*MEMBERS, *(f"{folder}/{name}" for folder in _FOLDERS for name in MEMBERS)}
    try:
        most = path.stat().st_size
        # as it is: what is packed or sparse may unfold for ever
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            found = {}
            for member in archive:
                wanted = member.isreg() and not member.issparse() and member.size <= most and member.name in known
                handle = archive.extractfile(member) if wanted else None
                if handle is not None:
                    found[member.name] = handle.read().decode()
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}", where=str(path)) from error
    except (tarfile.TarError, UnicodeDecodeError, EOFError) as error:
        raise ModelError(f"{path.name} is no source archive made by microc", where=str(path)) from error
    folders = {name.rpartition("/")[0] for name in found} - {""}
    places = ("", *(f"{folder}/" for folder in sorted(folders)))
    missing = [f"{place}{name}" for place in places for name in MEMBERS if f"{place}{name}" not in found]
    if missing:
        raise ModelError(f"{path.name} lacks {', '.join(missing)}", where=str(path), hint="export it again")
    return found


def build_library(
    sources: Mapping[str, str], *flags: str, elsewhere: Callable[[], Library] | None = None, core: str = ""
) -> Library:
    """Compile C sources into a shared library and load it; ``flags`` are more arguments for the compiler, ``elsewhere`` and
    ``core`` as in :class:`Library`."""
    folder = tempfile.TemporaryDirectory(prefix="microc-")
    library = compile_sources(sources, Path(folder.name), "model.so", *flags)
    return Library(library, sources, folder, elsewhere, core)


def levels_of(cores: Sequence[Mapping[str, str]], model: str) -> dict[str, str]:
    """The sources of a library for several cores from those for each, whose networks have names of their own; ``model``: what
    all are called. Those of the first stand as those of a library for one core do, others in a folder each."""
    found: dict[str, str] = {}
    for level, sources in enumerate(cores):
        place = f"{level}/" if level else ""
        told = json.loads(sources["manifest.json"])
        found |= {f"{place}{name}": text for name, text in sources.items()}
        found[f"{place}shared.c"] = shared_source(told, level, model)
    return found


def build_levels(sources: Mapping[str, str], core: str = "") -> Library:
    """Compile what :func:`levels_of` made into a library, each level for its core, and load it."""
    folder = tempfile.TemporaryDirectory(prefix="microc-")
    root, objects = Path(folder.name), []
    for place in ("", *sorted({name.partition("/")[0] for name in sources if "/" in name})):
        home = root / (place or "0")
        home.mkdir()
        own = {name: sources[f"{place}/{name}" if place else name] for name in MEMBERS}
        for name, text in own.items():
            (home / name).write_text(text)
        made_for = CORES.get(json.loads(own["manifest.json"])["options"]["cpu"])
        flags = made_for.machine.split() if made_for and made_for.probe else []
        objects.append(compile_object(home, [home / name for name in SOURCES], root / f"{home.name}.o", *flags))
    library = link_shared(root, objects, root / "model.so")
    return Library(library, sources, folder, core=core)


def compile_sources(sources: Mapping[str, str], folder: Path, name: str, *flags: str) -> Path:
    """Write C sources into a folder, and compile them into the shared library ``name`` there, with external code as its
    manifest says."""
    for file, text in sources.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    files, libraries = [folder / file for file in SOURCES], []
    external = json.loads(sources["manifest.json"]).get("external") if "manifest.json" in sources else None
    if external:
        files += [folder / file for file in external["sources"]]
        libraries = [part for each in external["folders"] for part in (f"-L{each}", f"-Wl,-rpath,{each}")]
        libraries += [f"-l{library}" for library in external["libraries"]]
        flags = (*flags, "-w", *(f"-I{folder / each}" for each in external["include"]))
        flags += tuple(f"-D{each}" for each in external["defines"])
    return compile_shared(folder, files, folder / name, *flags, libraries=libraries)
