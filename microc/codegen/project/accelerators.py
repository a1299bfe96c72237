"""External code and tensor units in a project."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.render import Label, Word
from microc.errors import InternalError, UsageError
from microc.isa import CORES
from microc.isa.vocabulary.matrix_products import UNIT_WORDS
from microc.module import External, Module, Sources

# ---- What external code is built from, beside the network: its files in a folder of the project, and how they are
# compiled.

FOLDER = "external"
OWN = "own"
"""Where a project keeps its network in code of ours, which external code is compared with."""


@frozen
class ExternalContext:
    """Of all backends together: C files and folders of headers, in the project, definitions, libraries and
    where these are."""

    sources: tuple[Word, ...]
    include: tuple[Word, ...]
    defines: tuple[Word, ...]
    libraries: tuple[Word, ...]
    folders: tuple[Word, ...]


def external_of(modules: Sequence[Module]) -> tuple[Sources, ...]:
    """What the external code of some networks is built from, each backend's once."""
    found: dict[str, Sources] = {}
    for each in (sources for module in modules for sources in module.sources):
        known = found.get(each.name)
        found[each.name] = each if known is None else _joined(known, each)
    return tuple(found.values())


def _joined(one: Sources, other: Sources) -> Sources:
    differs = [path for path in one.files.keys() & other.files.keys() if one.files[path] != other.files[path]]
    if differs or one.defines != other.defines:
        raise UsageError(
            f"networks have different copies of {one.name}: {min(differs, default='its definitions')}",
            hint="compile all of a firmware with one copy",
        )
    files, libraries = {**one.files, **other.files}, dict.fromkeys((*one.libraries, *other.libraries))
    include, folders = ((*one.include, *other.include), (*one.folders, *other.folders))
    return replace(
        one,
        files=files,
        include=tuple(dict.fromkeys(include)),
        libraries=tuple(libraries),
        folders=tuple(dict.fromkeys(folders)),
    )


def external_context(found: Sequence[Sources]) -> ExternalContext | None:
    """None where there is no external code."""
    if not found:
        return None
    return ExternalContext(
        sources=tuple(Word(f"{FOLDER}/{each.name}/{path}") for each in found for path in each.compiled),
        include=tuple(Word(f"{FOLDER}/{each.name}/{path}".rstrip("/")) for each in found for path in each.include),
        defines=tuple(Word(name) for each in found for name in each.defines),
        libraries=tuple(Word(name) for each in found for name in each.libraries),
        folders=tuple(Word(name) for each in found for name in each.folders),
    )


def external_files(found: Sequence[Sources]) -> dict[str, bytes]:
    """The files by their paths in a project."""
    return {f"{FOLDER}/{Word(each.name)}/{Word(path)}": data for each in found for path, data in each.files.items()}


def external_data(module: Module) -> dict[str, Any]:
    """What a manifest says of it: whose code, of which version and licence, how it is built, and which steps it computes."""
    context = external_context(module.sources)
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
                {"index": k, "backend": found.backend, "bound": found.bound, **_difference(found)}
                for k, call in enumerate(module.calls)
                if (found := kernels.get(call.kernel)) is not None
            ],
        }
    }


def _difference(found: External) -> dict[str, str]:
    return {"differs": str(Label(found.differs))} if found.differs else {}


# ---- The tensor unit in a network's C: what its model is made from, where kernels use it.

UNIT_NAMES = frozenset(word.name for word in UNIT_WORDS)
"""Functions that ``templates/project/tensor_unit.c.j2`` defines."""


@frozen
class UnitContext:
    """The unit as templates show it; memories in elements."""

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


def unit_context(module: Module, helpers: Collection[str]) -> UnitContext | None:
    """That of the module's core, if ``helpers``, the functions that kernels call, are of a unit."""
    if not UNIT_NAMES & set(helpers):
        return None
    unit = CORES[module.options["cpu"]].tensor_unit
    if unit is None:
        raise InternalError(f"kernels call a tensor unit, which {module.options['cpu']} has not")
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
