"""Many networks as one shared library of this computer: how test suites of thousands of small models are run.

One run of the C compiler builds all; every network keeps its own prefix, as it would in a firmware that holds several. Large
constants are linked as they are: as C text, the weights of a network for servers would take the compiler minutes and gigabytes.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from microc import __version__
from microc.codegen.network import network_files
from microc.device.toolchain import compile_shared
from microc.dtypes import Array, to_numpy
from microc.errors import InternalError, UsageError
from microc.frozen import frozen
from microc.module import Module

_ALIGN = 64
_LARGE = 1 << 16
"""Bytes from which on a constant is no C text."""


@frozen
class Network:
    """One network of a batch, called with its inputs in the module's order."""

    module: Module
    library: ctypes.CDLL
    folder: Any  # keeps the temporary folder alive

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """The outputs; state starts anew. UsageError where the arrays are not what the network takes."""
        module = self.module
        if len(arrays) != len(module.inputs):
            raise UsageError(f"{module.name} takes {len(module.inputs)} inputs, {len(arrays)} were given")
        for name, array in zip(module.inputs, arrays, strict=True):
            value = module.values[name]
            if (array.shape, array.dtype) != (value.shape, to_numpy(value.dtype)):
                raise UsageError(f"{name} is {value.dtype}{value.shape}, not {array.dtype}{array.shape}")
        plan = module.plan
        if plan is None:
            raise InternalError("the module has no memory plan")
        raw = np.zeros(max(1, plan.size) + _ALIGN, np.uint8)
        arena = ctypes.c_void_p(raw.ctypes.data + -raw.ctypes.data % _ALIGN)
        given = [np.ascontiguousarray(array) for array in arrays]
        made = [np.empty(v.shape, to_numpy(v.dtype)) for v in (module.values[name] for name in module.outputs)]
        getattr(self.library, f"{module.name}_reset")(arena)
        status = getattr(self.library, f"{module.name}_run")(arena, _pointers(given), _pointers(made))
        if status != 0:
            raise InternalError(f"{module.name} returned {status}")
        return tuple(made)


def _pointers(arrays: Sequence[Array]) -> Any:
    """``struct <name>_inputs`` and ``_outputs`` hold pointers and nothing else, as an array of them does."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))


def build_batch(modules: Sequence[Module], optimize: str = "-O1") -> Mapping[str, Network]:
    """The networks by name, which must differ. Modules are planned with inputs and outputs outside of the arena or inside."""
    names = [module.name for module in modules]
    if len(set(names)) != len(names):
        raise UsageError("two networks of a batch have one name")
    folder = tempfile.TemporaryDirectory(prefix="microc-")
    sources = []
    for module in modules:
        root = Path(folder.name) / module.name
        root.mkdir()
        sources += _sources(module, root)
    path = compile_shared(Path(folder.name), sources, Path(folder.name) / "batch.so", optimize)
    library = ctypes.CDLL(str(path))
    return {module.name: Network(module, library, folder) for module in modules}


def _sources(module: Module, root: Path) -> list[Path]:
    """Write a network into its folder: what is to be compiled."""
    large = {n for n, value in module.values.items() if value.storage == "const" and value.nbytes >= _LARGE}
    lines = ['.section .note.GNU-stack, "", %progbits', ".section .rodata"]
    for name in sorted(large):
        data, symbol, path = module.values[name].data, f"{module.name}_{name}", root / f"{name}.bin"
        if data is None:
            raise InternalError(f"the constant {name} has no data")
        path.write_bytes(np.ascontiguousarray(data).tobytes())
        lines += [f".globl {symbol}", f".balign {_ALIGN}", f"{symbol}:", f'.incbin "{path}"']
    values = {name: replace(value, data=None) if name in large else value for name, value in module.values.items()}
    for name, text in network_files(replace(module, values=values), __version__).items():
        (root / name).write_text(text)
    (root / "large.s").write_text("\n".join(lines) + "\n")
    return [root / "model.c", root / "model_data.c", *([root / "large.s"] if large else [])]
