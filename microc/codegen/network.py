"""A network by itself: its C files, and these with entry points for a desktop library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from microc.codegen.data import definition
from microc.codegen.manifest import manifest, to_json
from microc.codegen.render import render
from microc.codegen.source import ModelContext, model_context
from microc.codegen.stack import stack_bound
from microc.codegen.text import Code, Name
from microc.module import Module, Value


@dataclass(frozen=True, slots=True)
class SharedContext:
    """What ``shared.c.j2`` shows: entry points of a desktop library."""

    name: Name
    upper: Name
    prototypes: tuple[Code, ...]
    manifest_lines: tuple[Code, ...]
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    sizes: tuple[Name, ...]


def network_files(module: Module, version: str) -> dict[str, str]:
    """The network alone: ``model.c``, ``model.h``, ``model_data.c``, ``model_data.h``."""
    return render_network(model_context(module, version, stack_bound(module)))


def render_network(context: ModelContext) -> dict[str, str]:
    """The network's own files, by the names that the context's stem gives them."""
    ends = (".c", ".h", "_data.c", "_data.h")
    return {context.stem + end: render(f"project/model{end}.j2", context) for end in ends}


def shared_files(module: Module, version: str) -> dict[str, str]:
    """The network with entry points for a desktop library."""
    data = manifest(module, version)
    return {**network_files(module, version), "shared.c": shared_source(data), "manifest.json": to_json(data)}


def shared_source(data: Mapping[str, Any]) -> str:
    """``shared.c``: a manifest's network as a desktop library."""
    sizes = tuple(Name(size["name"]) for size in data.get("sizes", ()))
    last = ", const int32_t *sizes" if sizes else ""
    prototypes = (
        "extern const int8_t microc_manifest[];",
        f"int microc_run_kernel(void *arena, const void *const *inputs, void *const *outputs, uint32_t kernel{last});",
        f"int microc_run(void *arena, const void *const *inputs, void *const *outputs{last});",
        "int microc_run_batch(void *arena, const void *const *inputs, const size_t *input_steps, void *const *outputs,\n"
        f"    const size_t *output_steps, size_t count{last});",
        "void microc_reset(void *arena);",
    )
    manifest_lines = definition(_text_value("microc_manifest", json.dumps(data, ensure_ascii=True)))
    context = SharedContext(
        name=Name(data["model"]),
        upper=Name(data["model"].upper()),
        prototypes=tuple(map(Code, prototypes)),
        manifest_lines=tuple(map(Code, manifest_lines)),
        inputs=tuple(map(Name, data["inputs"])),
        outputs=tuple(map(Name, data["outputs"])),
        sizes=sizes,
    )
    return render("project/shared.c.j2", context)


def _text_value(name: str, text: str) -> Value:
    """ASCII text as an array of bytes with a final zero: C99 promises string literals of 4095 characters only."""
    data = np.frombuffer(text.encode("ascii") + b"\0", dtype=np.int8)
    return Value(name, data.shape, "int8", "const", data)
