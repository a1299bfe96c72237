"""A network as code that a board loads while it runs: linked for the address at which it will lie, its constants elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from microc.codegen.network import network_files
from microc.codegen.render import render
from microc.codegen.text import Code, Name
from microc.frozen import frozen
from microc.module import Module

SCRIPT, SOURCES = "image.ld", ("model.c", "load.c")
"""The linker script, and what is compiled."""


@frozen
class ImageContext:
    """What ``load.c.j2`` and ``image.ld.j2`` show: the network, the addresses of its constants, and its own."""

    name: Name
    upper: Name
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    constants: tuple[tuple[Name, Code], ...]
    start: Code


def image_files(module: Module, version: str, constants: Mapping[str, int], start: int) -> dict[str, str]:
    """The C and the linker script of a planned module that begins at ``start``; ``constants``: addresses by their names."""
    values = {n: replace(v, data=None) if v.storage == "const" else v for n, v in module.values.items()}
    files = network_files(replace(module, values=values), version)  # constants without data are defined elsewhere
    context = ImageContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        inputs=tuple(map(Name, module.inputs)),
        outputs=tuple(map(Name, module.outputs)),
        constants=tuple((Name(f"{module.name}_{name}"), Code(f"{at:#x}")) for name, at in sorted(constants.items())),
        start=Code(f"{start:#x}"),
    )
    own = {name: render(f"loading/{name}.j2", context) for name in ("load.c", SCRIPT)}
    return {name: text for name, text in files.items() if name != "model_data.c"} | own
