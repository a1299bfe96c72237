# SPDX-License-Identifier: Apache-2.0
"""Add external code (kernels of a vendor's library) and the model of a tensor unit to a project."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.render import Label, Word
from microc.errors import InternalError, UsageError
from microc.isa import CORES
from microc.isa.vocabulary.matrix_products import UNIT_WORDS
from microc.module import Module, Sources

# ---- The sources of external code: their paths in a folder of the project, and the settings that they are compiled with.

EXTERNAL_FOLDER = "external"
OWN_CODE_FOLDER = "own"
"""Folder of a project for the same network without external code, whose results the external code is compared with."""


@frozen
class ExternalContext:
    """Build settings of a project's external code, merged over all backends, for templates.

    ``sources``: paths of C files in the project. ``include``: paths of include folders in the project. ``defines``: definitions
    of macros. ``libraries``: names of libraries to link. ``folders``: folders in which the linker finds these libraries."""

    sources: tuple[Word, ...]
    include: tuple[Word, ...]
    defines: tuple[Word, ...]
    libraries: tuple[Word, ...]
    folders: tuple[Word, ...]


def merge_external_code_sources(modules: Sequence[Module]) -> tuple[Sources, ...]:
    """Return the sources of the external code that some networks use: one merged entry for each backend.

    UsageError if two networks use different copies of a backend's code."""
    merged: dict[str, Sources] = {}
    for sources in (sources for module in modules for sources in module.sources):
        existing = merged.get(sources.name)
        merged[sources.name] = sources if existing is None else _merge_sources(existing, sources)
    return tuple(merged.values())


def _merge_sources(first: Sources, second: Sources) -> Sources:
    """Return the union of two networks' sources of one backend. UsageError if a file or the macro definitions differ."""
    differs = [path for path in first.files.keys() & second.files.keys() if first.files[path] != second.files[path]]
    if differs or first.defines != second.defines:
        raise UsageError(
            f"external code {first.name}: got different copies of {min(differs, default='its macro definitions')} "
            "in two networks, expected equal ones",
            hint="compile all networks of the firmware with the same copy",
        )
    files, libraries = {**first.files, **second.files}, dict.fromkeys((*first.libraries, *second.libraries))
    include, folders = ((*first.include, *second.include), (*first.folders, *second.folders))
    return replace(
        first,
        files=files,
        include=tuple(dict.fromkeys(include)),
        libraries=tuple(libraries),
        folders=tuple(dict.fromkeys(folders)),
    )


def make_external_context(all_sources: Sequence[Sources]) -> ExternalContext | None:
    """Return the build settings of all backends of external code, for templates; None if there is no external code."""
    if not all_sources:
        return None
    return ExternalContext(
        sources=tuple(Word(f"{EXTERNAL_FOLDER}/{each.name}/{path}") for each in all_sources for path in each.c_paths),
        include=tuple(
            Word(f"{EXTERNAL_FOLDER}/{each.name}/{path}".rstrip("/")) for each in all_sources for path in each.include
        ),
        defines=tuple(Word(name) for each in all_sources for name in each.defines),
        libraries=tuple(Word(name) for each in all_sources for name in each.libraries),
        folders=tuple(Word(name) for each in all_sources for name in each.folders),
    )


def list_external_files(all_sources: Sequence[Sources]) -> dict[str, bytes]:
    """Return the content of all files of external code (kernels of vendors' libraries), by path in the project."""
    return {
        f"{EXTERNAL_FOLDER}/{Word(each.name)}/{Word(path)}": data
        for each in all_sources
        for path, data in each.files.items()
    }


def describe_external_code(module: Module) -> dict[str, Any]:
    """Return the entry ``external`` of a manifest as a dict with this key; an empty dict if no kernel is external code.

    The entry contains the backends with version and licence, the build settings, and the steps that external code computes."""
    context = make_external_context(module.sources)
    kernels = {kernel.name: kernel.external for kernel in module.kernels if kernel.external is not None}
    if not kernels:
        return {}
    return {
        "external": {
            "sources": list(context.sources) if context else [],
            "include": list(context.include) if context else [],
            "defines": list(context.defines) if context else [],
            "libraries": list(context.libraries) if context else [],
            "folders": list(context.folders) if context else [],
            "backends": [
                {"name": each.name, "version": each.version, "licence": each.licence, "files": len(each.files)}
                for each in module.sources
            ],
            "kernels": [
                {
                    "index": k,
                    "backend": external.backend,
                    "bound": external.bound,
                    **({"differs": str(Label(external.differs))} if external.differs else {}),
                }
                for k, call in enumerate(module.calls)
                if (external := kernels.get(call.kernel)) is not None
            ],
        }
    }


# ---- Tensor units (matrix accelerators) in a network's C: parameters of the C model that simulates a unit.

UNIT_NAMES = frozenset(word.name for word in UNIT_WORDS)
"""Names of the C functions that ``templates/project/tensor_unit.c.j2`` defines: the instructions of a tensor unit."""


@frozen
class UnitContext:
    """Parameters of a core's tensor unit (:class:`microc.isa.instruction_set.TensorUnit`) for templates.

    ``rows``, ``columns`` and ``depth`` are the shape of the matrix product that takes ``tile_cycles`` cycles. ``input``,
    ``weight`` and ``sums`` are the sizes of the unit's scratchpad memories, in elements. ``bus`` is the number of bytes that a
    load or store moves per cycle, and ``start`` the number of cycles before the first byte. ``events`` is the number of types of
    synchronisation tokens. ``macs`` is the largest number of multiply-accumulates per cycle."""

    name: Word
    rows: int
    columns: int
    depth: int
    tile_cycles: int
    input: int
    weight: int
    sums: int
    bus: int
    start: int
    events: int
    macs: int


def make_tensor_unit_context(module: Module, helpers: Collection[str]) -> UnitContext | None:
    """Return the parameters of the core's tensor unit for templates; None if no kernel uses the unit.

    ``helpers``: names of the helper functions that the module's kernels call."""
    if not UNIT_NAMES & set(helpers):
        return None
    unit = CORES[module.options["cpu"]].tensor_unit
    if unit is None:
        raise InternalError(
            f"core {module.options['cpu']}: it has no tensor unit, but kernels call one; expected kernels without it"
        )
    return UnitContext(
        Word(unit.name),
        unit.rows,
        unit.columns,
        unit.depth,
        unit.tile_cycles,
        unit.input.nbytes,
        unit.weight.nbytes,
        unit.sums.nbytes // 4,
        unit.bus,
        unit.start,
        unit.events,
        int(unit.macs),
    )
