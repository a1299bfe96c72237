"""Loading desktop libraries: shared objects as they are, source archives after the host's compiler."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from microc.device.toolchain import compile_shared
from microc.driver import accepted
from microc.driver.desktop.library import Library
from microc.errors import ModelError, OutputError

SOURCES = ("model.c", "model_data.c", "shared.c")
MEMBERS = (*SOURCES, "model.h", "model_data.h", "manifest.json")


def load_library(path: str | Path) -> Library:
    """Load what :meth:`Library.export_library` wrote; a source archive is compiled first."""
    source = accepted.path("a library", path)
    if not source.is_file():
        raise OutputError(f"there is no library {source}", where=str(source))
    if source.suffix != ".tar":
        return Library(source.resolve())
    return build_library(_read_tar(source))


def _read_tar(path: Path) -> dict[str, str]:
    """The members that we write, nothing else; names are compared, never followed."""
    try:
        most = path.stat().st_size
        with tarfile.open(path, "r:") as archive:  # as it is: what is packed or sparse may unfold for ever
            found = {}
            for member in archive:
                wanted = member.isreg() and not member.issparse() and member.size <= most and member.name in MEMBERS
                handle = archive.extractfile(member) if wanted else None
                if handle is not None:
                    found[member.name] = handle.read().decode()
    except (tarfile.TarError, UnicodeDecodeError, EOFError) as error:
        raise ModelError(f"{path.name} is no source archive made by microc", where=str(path)) from error
    missing = [name for name in MEMBERS if name not in found]
    if missing:
        raise ModelError(f"{path.name} lacks {', '.join(missing)}", where=str(path), hint="export it again")
    return found


def build_library(sources: Mapping[str, str], *flags: str, elsewhere: Callable[[], Library] | None = None) -> Library:
    """Compile C sources into a shared library and load it; ``flags`` are more arguments for the compiler, ``elsewhere`` as in
    :class:`Library`."""
    folder = tempfile.TemporaryDirectory(prefix="microc-")
    library = compile_sources(sources, Path(folder.name), "model.so", *flags)
    return Library(library, sources, folder, elsewhere)


def compile_sources(sources: Mapping[str, str], folder: Path, name: str, *flags: str) -> Path:
    """Write C sources into a folder, and compile them into the shared library ``name`` there."""
    for file, text in sources.items():
        (folder / file).write_text(text)
    return compile_shared(folder, [folder / file for file in SOURCES], folder / name, *flags)
