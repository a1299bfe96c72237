"""A network by itself: its C files, and these with entry points for a desktop library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.codegen.data import definition
from microc.codegen.external import external_files
from microc.codegen.manifest import manifest, to_json
from microc.codegen.render import render
from microc.codegen.source import ModelContext, model_context
from microc.codegen.text import Code, Name
from microc.frozen import frozen
from microc.isa import CORES
from microc.module import Module, Value


@frozen
class SharedContext:
    """What ``shared.c.j2`` shows: entry points of a desktop library."""

    name: Name
    upper: Name
    prototypes: tuple[Code, ...]
    manifest_lines: tuple[Code, ...]
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    sizes: tuple[Name, ...]
    arenas: tuple[ArenaStart, ...]
    end: Code
    probe: ProbeContext


@frozen
class ArenaStart:
    """Where an arena of several begins in the one block that the library is given."""

    name: Name
    start: int


@frozen
class ProbeContext:
    """How the library asks whether this computer has the instructions that it was compiled to: :class:`microc.isa.sets.Probe`."""

    guard: Code
    text: Code
    header: Code
    attribute: Code


def network_files(module: Module, version: str) -> dict[str, str]:
    """The network alone: ``model.c``, ``model.h``, ``model_data.c``, ``model_data.h``."""
    return render_network(model_context(module, version))


def render_network(context: ModelContext) -> dict[str, str]:
    """The network's own files, by the names that the context's stem gives them."""
    ends = (".c", ".h", "_data.c", "_data.h")
    return {context.stem + end: render(f"project/model{end}.j2", context) for end in ends}


def shared_files(module: Module, version: str) -> dict[str, str]:
    """The network with entry points for a desktop library, and what its external code is built from."""
    data = manifest(module, version)
    foreign = {path: data.decode("utf-8", "replace") for path, data in external_files(module.sources).items()}
    own = {**network_files(module, version), "shared.c": shared_source(data), "manifest.json": to_json(data)}
    return {**own, **foreign}


def own_files(module: Module, version: str) -> dict[str, str]:
    """The network for this computer, to be compared with what a board computes."""
    return {**network_files(module, version), "manifest.json": to_json(manifest(module, version))}


def shared_source(data: Mapping[str, Any], level: int = 0, model: str = "") -> str:
    """``shared.c``: a manifest's network as a desktop library; ``level``: its place where a library has several of them, for one
    core each, which all are called ``model``."""
    end, core = entry_end(level), CORES.get(data["options"]["cpu"])
    probe = core.probe if core else None
    asked = (probe.guard, probe.text, probe.header, probe.attribute) if probe else ("", "", "", "")
    sizes = tuple(Name(size["name"]) for size in data.get("sizes", ()))
    last = ", const int32_t *sizes" if sizes else ""
    several = [arena for arena in data.get("arenas", ()) if arena["size"]]
    prototypes = (
        f"extern const int8_t microc_manifest{end}[];",
        f"int microc_runs_here{end}(void);",
        f"int microc_run_kernel{end}(void *arena, const void *const *inputs, void *const *outputs, uint32_t kernel{last});",
        f"int microc_run{end}(void *arena, const void *const *inputs, void *const *outputs{last});",
        f"int microc_run_batch{end}(void *arena, const void *const *inputs, const size_t *input_steps, void *const *outputs,\n"
        f"    const size_t *output_steps, size_t count{last});",
        f"void microc_reset{end}(void *arena);",
    )
    told = {**data, "model": model or data["model"]}
    manifest_lines = definition(_text_value(f"microc_manifest{end}", json.dumps(told, ensure_ascii=True)))
    context = SharedContext(
        name=Name(data["model"]),
        upper=Name(data["model"].upper()),
        prototypes=tuple(map(Code, prototypes)),
        manifest_lines=tuple(map(Code, manifest_lines)),
        inputs=tuple(map(Name, data["inputs"])),
        outputs=tuple(map(Name, data["outputs"])),
        sizes=sizes,
        arenas=tuple(ArenaStart(Name(a["memory"]), a["start"]) for a in several) if len(several) > 1 else (),
        end=Code(end),
        probe=ProbeContext(*map(Code, asked)),
    )
    return render("project/shared.c.j2", context)


def entry_end(level: int) -> str:
    """What the names of a level's entry points end with."""
    return f"_{level}" if level else ""


def _text_value(name: str, text: str) -> Value:
    """ASCII text as an array of bytes with a final zero: C99 promises string literals of 4095 characters only."""
    data = np.frombuffer(text.encode("ascii") + b"\0", dtype=np.int8)
    return Value(name, data.shape, "int8", "const", data)
