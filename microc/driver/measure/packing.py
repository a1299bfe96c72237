"""The network of a project as a blob: linked twice, proved to be the same wherever it lies, and described for a board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from microc.codegen.board import abi_of
from microc.codegen.files import replacing
from microc.codegen.relocatable import LINKED
from microc.device.blob import Blob, BlobTensor
from microc.device.image import Segment, segments
from microc.device.toolchain import Symbol, section_sizes
from microc.errors import ToolError
from microc.target import Board

NETWORK = "network.bin"
"""The blob of a project."""
_IMAGE, _THREAD = ".image", ".tbss"


def pack(folder: Path, manifest: dict[str, Any], board: Board) -> Blob:
    """Make ``network.bin`` of what a relocatable project has linked. ToolError where code or constants depend on where they lie,
    or where the program writes memory that is not the network's."""
    first, second = (_linked(folder / name, at) for name, at in LINKED.items())
    (here, symbols), (there, _) = first, second
    if here != there:
        at = next((k for k, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
        raise _fixed(folder, _function_at(symbols, min(LINKED.values()) + at))
    entries = {s.name: (s.address & ~1) - min(LINKED.values()) for s in symbols}
    blob = Blob(
        name=manifest["model"],
        fingerprint=manifest["fingerprint"],
        core=board.target.cpu,
        abi=abi_of(board),
        memory=max(manifest["arena_size"], 1),
        stack=manifest["stack_bound"],
        kernels=len(manifest["kernels"]),
        tensors=_tensors(manifest),
        image=here,
        run=entries["microc_enter"],
        reset=entries.get("microc_reset"),
    )
    with replacing(folder / NETWORK) as temporary:
        temporary.write_bytes(blob.pack())
    return blob


def _linked(elf: Path, address: int) -> tuple[bytes, tuple[Symbol, ...]]:
    """The bytes of the image, and its symbols."""
    found: tuple[Segment, ...] = segments(elf)
    sizes = section_sizes(elf)
    others = [name for name, _ in sizes.sections if name not in (_IMAGE, _THREAD)]
    if others or [at for at, _ in found] != [address]:
        named = [s.name for s in sizes.symbols if s.section in others]
        raise ToolError(
            f"the network writes memory that is not its own: {', '.join(named[:4]) or ', '.join(others)}",
            where=str(elf),
            hint="functions of the C library do that; --math fast computes exp, tanh, erf and log without it",
        )
    return found[0][1], sizes.symbols


def _function_at(symbols: tuple[Symbol, ...], address: int) -> str:
    return next((s.name for s in symbols if s.address & ~1 <= address < (s.address & ~1) + s.size), "a function")


def _fixed(folder: Path, name: str) -> ToolError:
    return ToolError(
        f"{name} reaches its constants by fixed addresses, so that the network cannot lie anywhere",
        where=str(folder),
        hint="the C library is compiled so; --math fast computes exp, tanh, erf and log without it",
    )


def _tensors(manifest: dict[str, Any]) -> tuple[BlobTensor, ...]:
    """The board's table, in the manifest's order."""
    written = {name: k["index"] for k in manifest["kernels"] for name in k["outputs"]}
    begins = {"arena": 0, **{m["name"]: m["offset"] for m in manifest["memory"]}}
    return tuple(
        BlobTensor(begins[t["buffer"]] + t["offset"], t["bytes"], t["dtype"], t["kind"], written.get(t["name"]))
        for t in manifest["tensors"]
    )
