# SPDX-License-Identifier: Apache-2.0
"""Tables of the benchmarks: cores to measure on, networks, peers, and how far below a peer we want to be.

A bar is the largest ratio of ours to the peer's that counts as met; the aim is where we would like to be.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from microc.device.boards import load_board
from microc.target import Board, target_for

ROOT = Path(__file__).resolve().parents[1]

# ---- Cores, and the emulated boards on which they are counted.


@dataclass(frozen=True)
class Core:
    """A core to measure on: the emulated board, the core that code is made for, and the peer's row to compare with."""

    board: str
    code_for: str
    peer: str = ""
    peer_core: str = ""
    formats: tuple[str, ...] = ()


CORES: Mapping[str, Core] = {
    "m4": Core("mps2-an386", "cortex-m4", "tflm-cmsis-nn", "cortex-m4", ("int8", "float")),
    "m7": Core("mps2-an500", "cortex-m7", "tflm-cmsis-nn", "cortex-m7", ("int8",)),
    "m33": Core("mps2-an505", "cortex-m33", formats=("int8",)),
    "m55": Core("mps3-an547", "cortex-m55", "tflm-cmsis-nn", "cortex-m55", ("int8",)),
    "m0": Core("mps2-an385", "cortex-m0", "tflm-reference", "cortex-m4", ("int8",)),
    "m3": Core("mps2-an385", "cortex-m3"),
    "rv32": Core("qemu-riscv32", "rv32imc"),
    "rv32f": Core("qemu-riscv32", "rv32imafc"),
}
"""Armv6-M code is counted on the emulated M3, whose instruction set contains it, against the peer's portable kernels."""
PEERED = tuple(name for name, core in CORES.items() if core.peer)
"""Cores on which a peer was measured."""


def board_of(core: Core) -> Board:
    """The board of a core; where code is made for a smaller core, with that core's compiler options."""
    board = load_board(core.board)
    if board.target.cpu == core.code_for:
        return board
    build = board.raw["build"]
    flags = [f"-mcpu={core.code_for}" if f.startswith("-mcpu=") else f for f in build["c_flags"]]
    raw = {**board.raw, "build": {**build, "c_flags": flags}, "cpu": core.code_for}
    return replace(board, target=target_for(core.code_for), raw=raw)


# ---- Networks: files of the corpus.

INT8 = ("kws", "vww", "ic", "ad", "strww")
FLOAT = ("kws_float", "vww_float", "ic_float", "ad_float")
"""Networks of MLPerf Tiny."""


def corpus() -> Path:
    """The corpus folder, or an explanation and exit code 2."""
    folder = Path(os.environ.get("MICROC_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not (folder / "manifest.json").is_file():
        sys.exit("benchmark: the model corpus is absent: set MICROC_CORPUS or put it at ../shared/corpus")
    return folder


def network_path(model: str) -> Path:
    """The TFLite file of a network in the corpus: of MLPerf Tiny by its short name (``kws``, ``kws_float``), others by theirs."""
    name = f"mlperf_{model}_int8" if model in INT8 else f"mlperf_{model}" if model in FLOAT else model
    return corpus() / "tflite" / f"{name}.tflite"


# ---- Peers, and what we ask of ourselves beside them.


def peers() -> dict[tuple[str, str, str], dict[str, Any]]:
    """The peers' figures by (peer, model, core); empty where they are absent."""
    path = corpus().parent / "peers" / "tflm.json"
    rows = json.loads(path.read_text()) if path.is_file() else []
    return {(r["peer"], r["model"], r["core"]): r for r in rows}


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
    """The bars of a network (``kws``, ``kws_float``) on a core of :data:`CORES`; none of a network beside MLPerf Tiny."""
    if model not in (*INT8, *FLOAT):
        return Bars()
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
