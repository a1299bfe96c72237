"""A network that is loaded: what a project has beside it where the firmware is fixed, and the network comes over the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microc.codegen.render import render
from microc.codegen.text import Name
from microc.errors import UsageError
from microc.frozen import frozen
from microc.module import Module

SCRIPT, ENTRY, HEADER = "network.ld", "network.c", "network.h"
"""The linker script, how a board enters the network, and what the compiler reads before the network's files."""
LINKED = {"network.elf": 0x0010_0000, "network_moved.elf": 0x0334_5640}
"""The programs that are linked of it, each for an address of its own: they must have the same bytes. Boards place networks at
multiples of 64; the second address is one of no larger power of two, so that code that asks for more differs."""
BLOB_SUFFIX = ".bin"
"""Of the file that holds a network alone, instead of a project."""
POSITION_INDEPENDENT = "-fpie"


@frozen
class NetworkContext:
    """What the templates of ``loading/network`` show: the network, and where in its memory inputs and outputs lie."""

    name: Name
    upper: Name
    inputs: tuple[tuple[Name, int], ...]
    outputs: tuple[tuple[Name, int], ...]
    has_state: bool


def is_relocatable(options: Mapping[str, str]) -> bool:
    """Whether a network was compiled to be loaded, by its options."""
    return options.get("relocatable") == str(True)


def entry_files(modules: Sequence[Module]) -> dict[str, str]:
    """What makes the one network of a project a program that may lie anywhere; UsageError for several."""
    if len(modules) > 1:
        raise UsageError(
            "networks are loaded one by one", hint="compile each into a project of its own; they share one firmware"
        )
    module = modules[0]
    context = NetworkContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        inputs=tuple((Name(name), _offset(module, name)) for name in module.inputs),
        outputs=tuple((Name(name), _offset(module, name)) for name in module.outputs),
        has_state=bool(module.state),
    )
    return {name: render(f"loading/{name}.j2", context) for name in (ENTRY, HEADER, SCRIPT)}


def _offset(module: Module, name: str) -> int:
    base, offset = module.base_of(name)
    assert module.plan is not None
    return offset + module.plan.offsets[base]
