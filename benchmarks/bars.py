"""What the benchmark asks for, as data: the cores it measures on, the peer it divides by, how far below the peer we want to be.

A bar is the largest ratio of ours to the peer's that counts as met; the aim is where we would like to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Core:
    """A core to measure on: the emulated board, the core that code is made for, and the peer's row to compare with."""

    board: str
    code_for: str
    peer: str
    peer_core: str
    formats: tuple[str, ...]


CORES: Mapping[str, Core] = {
    "m4": Core("mps2-an386", "cortex-m4", "tflm-cmsis-nn", "cortex-m4", ("int8", "float")),
    "m7": Core("mps2-an500", "cortex-m7", "tflm-cmsis-nn", "cortex-m7", ("int8",)),
    "m55": Core("mps3-an547", "cortex-m55", "tflm-cmsis-nn", "cortex-m55", ("int8",)),
    "m0": Core("mps2-an385", "cortex-m0", "tflm-reference", "cortex-m4", ("int8",)),
}
"""Armv6-M code is counted on the emulated M3, whose instruction set contains it, against the peer's portable kernels."""

INT8 = ("kws", "vww", "ic", "ad", "strww")
FLOAT = ("kws_float", "vww_float", "ic_float", "ad_float")


@dataclass(frozen=True)
class Bars:
    """Ratios to the peer, and the aims beside them; a figure without a bar is absent."""

    most: Mapping[str, float] = field(default_factory=dict)
    aim: Mapping[str, float] = field(default_factory=dict)


def _table(**columns: tuple[float, ...]) -> dict[str, dict[str, float]]:
    """Columns of figures, one entry for each int8 network, as a mapping by network."""
    return {model: {name: column[k] for name, column in columns.items()} for k, model in enumerate(INT8)}


_MEMORY = {"arena": (0.45, 0.42, 0.66, 0.33, 0.35), "code": (0.40, 0.50, 0.40, 0.30, 0.50), "flash": (1.0,) * 5}
_MEMORY_AIM = {"arena": (0.38, 0.30, 0.62, 0.31, 0.25)}
_SCALAR = _table(instructions=(0.48, 0.27, 0.38, 0.65, 0.48), **_MEMORY)
_SCALAR_AIM = _table(instructions=(0.40, 0.22, 0.30, 0.60, 0.40), **_MEMORY_AIM)
_VECTOR = _table(instructions=(0.70, 0.45, 0.75, 0.75, 0.70), **_MEMORY)
_VECTOR_AIM = _table(instructions=(0.50, 0.34, 0.60, 0.72, 0.52), **_MEMORY_AIM)
_PLAIN = _table(instructions=(0.40,) * 5)


def bars(core: str, model: str) -> Bars:
    """The bars of a network (``kws``, ``kws_float``) on a core of :data:`CORES`."""
    if model.endswith("_float"):
        return Bars({"instructions": 0.45 if model == "ad_float" else 0.30})
    match core:
        case "m4" | "m7":
            return Bars(_SCALAR[model], _SCALAR_AIM[model])
        case "m55":
            return Bars(_VECTOR[model], _VECTOR_AIM[model])
        case _:
            return Bars(_PLAIN[model])


COMPILE: Mapping[str, float] = {
    **{f"mlperf_{name}_int8": 1.5 for name in INT8},
    "mobilenet": 8.0,
    "transformer": 6.0,
    "corpus": 15.0,
}
"""CPU seconds of a first compilation at most, by model; ``corpus``: any other."""
AGAIN = 0.6
"""CPU seconds of a second one at most, beyond those of reading the model."""
MEMORY = 1024
"""MiB of a compilation at most."""
