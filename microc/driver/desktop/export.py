"""Writing desktop libraries: shared objects and source archives. Both are whole or absent, never half there."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from microc.codegen.external import FOLDER
from microc.codegen.files import replacing
from microc.errors import OutputError


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
