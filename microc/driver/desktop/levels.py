"""The sets of kernels in a library, one for each core that it was made for: which of them this computer runs."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from microc.codegen.manifest import SCHEMA_VERSION
from microc.codegen.network import entry_end
from microc.device.machine import MOST_CORES, PLAIN, PORTABLE
from microc.errors import ModelError, UsageError
from microc.frozen import frozen

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
