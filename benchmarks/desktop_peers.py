# SPDX-License-Identifier: Apache-2.0
"""What the desktop's libraries are timed beside: ONNX Runtime for .onnx files, LiteRT with XNNPACK for .tflite files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

KINDS = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(int64)": np.int64}


@dataclass(frozen=True)
class Peer:
    """A network loaded by a peer.

    Attributes:
        inputs: random values for each input by its name in the file.
        open: names of inputs whose extents the file leaves open; these are 1 here.
        run: one inference.
        outputs: of the last inference, in the file's order.
    """

    inputs: Mapping[str, Any]
    open: frozenset[str]
    run: Callable[[], Any]
    outputs: Callable[[], Sequence[Any]]


def peer_of(path: Path, threads: int) -> Peer:
    """The peer that reads such a file, on so many threads."""
    return litert(path, threads) if path.suffix == ".tflite" else onnx_runtime(path, threads)


def onnx_runtime(path: Path, threads: int) -> Peer:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    every = session.get_inputs()
    shapes = {each.name: [n if isinstance(n, int) else 1 for n in each.shape] for each in every}
    made = _random({each.name: (shapes[each.name], KINDS[each.type]) for each in every})
    loose = frozenset(each.name for each in every if list(each.shape) != shapes[each.name])
    return Peer(made, loose, lambda: session.run(None, made), lambda: session.run(None, made))


def litert(path: Path, threads: int) -> Peer:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    interpreter.allocate_tensors()
    every = interpreter.get_input_details()
    made = _random({each["name"]: (each["shape"], each["dtype"]) for each in every})
    for each in every:
        interpreter.set_tensor(each["index"], made[each["name"]])
    order = [each["index"] for each in interpreter.get_output_details()]
    return Peer(made, frozenset(), interpreter.invoke, lambda: [interpreter.get_tensor(index) for index in order])


def _random(wanted: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Numbers for every input: of a normal distribution, or small integers."""
    dice, made = np.random.default_rng(0), {}
    for name, (shape, kind) in wanted.items():
        small = dice.integers(0, 8, shape)
        made[name] = (dice.normal(size=shape) if np.issubdtype(kind, np.floating) else small).astype(kind)
    return made
