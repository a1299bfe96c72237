# SPDX-License-Identifier: Apache-2.0
"""Networks to export: the digits example, and one whose names and types are as awkward as they may be."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

import microc
from microc.codegen.exports import list_formats
from microc.codegen.project.additions import sample_frames
from microc.compiler.api import Program
from microc.device.boards import make_board_of_core
from microc.graph.ir import Graph, Loc, Node, TensorType
from tests.support import digits

FORMATS = list_formats()
ROW = TensorType((1, 20), "float32")
FLAGS = TensorType((3,), "bool")


def awkward() -> Graph:
    """Two inputs, three outputs, a state that sums up; names are words of C, C++ and Rust, and the header's own."""
    nodes = (
        Node("exp", ("class",), ("match",), loc=Loc("net", 0, "exp")),
        Node("logical_not", ("arena",), ("in",), loc=Loc("net", 1, "not")),
        Node("add", ("class", "static"), ("run",), loc=Loc("net", 2, "sum")),
    )
    return Graph(
        name="double",
        inputs=("class", "arena"),
        outputs=("match", "in", "run"),
        nodes=nodes,
        types={"class": ROW, "match": ROW, "static": ROW, "run": ROW, "arena": FLAGS, "in": FLAGS},
        consts={},
        state={"static": np.zeros((1, 20), np.float32)},
        updates={"static": "run"},
    )


def kinds() -> Graph:
    """A tensor of every type, turned."""
    names = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")] + ["float16", "float32", "float64"]
    types = {f"x{k}": TensorType((2, 3), name) for k, name in enumerate(names)}
    nodes = tuple(Node("transpose", (x,), (f"y{x[1:]}",), {"axes": (1, 0)}, loc=Loc("net", 0, x)) for x in types)
    types |= {f"y{k}": TensorType((3, 2), name) for k, name in enumerate(names)}
    outputs = tuple(node.outputs[0] for node in nodes)
    return Graph("kinds", tuple(x for x in types if x[0] == "x"), outputs, nodes, types, {}, {}, {})


@cache
def program(which: str = "digits", target: str = "host", io_in_arena: bool = True) -> Program:
    """A network compiled for a core; each is compiled once."""
    source = {"awkward": awkward, "kinds": kinds}.get(which, lambda: digits.INT8)()
    name = "math" if which == "math" else ""
    return microc.compile(source, board=make_board_of_core(target), io_in_arena=io_in_arena, name=name)


@cache
def said(which: str = "digits", turns: int = 0) -> str:
    """What every example prints about a network on its sample, frame after frame; the library runs the same C.

    ``turns``: of a loop that goes round, and begins the sample again after its last frame; 0: the sample once.
    """
    library, frames = program(which).library(), sample_frames(program(which).module)
    lines = []
    for turn in range(turns or len(frames)):
        results = library(*frames[turn % len(frames)])
        for tensor, array in zip(library.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            values = (array.view(np.uint16) if array.dtype == np.float16 else array).reshape(-1).tolist()
            words = [f"{x:g}" if isinstance(x, float) else str(int(x)) for x in values[:16]]
            more = f" ... ({len(values)} values)" if len(values) > 16 else ""
            lines.append(f"{tensor['name']}: {' '.join(words)}{more}\n")
    return "".join(lines)


def export(folder: Path, name: str, which: str = "digits", target: str = "host", io_in_arena: bool = True) -> Path:
    """The folder of an export."""
    program(which, target, io_in_arena).export(name, folder)
    return folder


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """What a command prints, which must succeed; a make that is around us does not tell the one inside what to say."""
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**own, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def have(*tools: str) -> bool:
    return all(shutil.which(tool) for tool in tools)
