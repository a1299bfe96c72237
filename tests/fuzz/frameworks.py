# SPDX-License-Identifier: Apache-2.0
"""What TFLite Micro and ONNX Runtime make of a mutant: in a process of its own, since what we refuse may crash them."""

from __future__ import annotations

import io
import os
import resource
import select
import time
from collections.abc import Sequence

import numpy as np

from microc.base.dtypes import Array
from tests.support.onnx_session import session

_SECONDS = 10
_ARENA = 1 << 21


def outputs(kind: str, data: bytes, inputs: Sequence[Array]) -> list[Array] | None:
    """The outputs of one run; None where the framework is not there, refuses the file, crashes or takes too long."""
    if kind not in ("tflite", "onnx"):
        return None
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(near)
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            file = io.BytesIO()
            np.savez(file, *(_tflm if kind == "tflite" else _onnxruntime)(data, inputs))
            with os.fdopen(far, "wb") as pipe:
                pipe.write(file.getvalue())
        finally:
            os._exit(0)
    os.close(far)
    said = _everything(near, child)
    os.close(near)
    os.waitpid(child, 0)
    try:
        with np.load(io.BytesIO(said)) as found:
            return [found[f"arr_{k}"] for k in range(len(found.files))]
    except (ValueError, EOFError, OSError):
        return None


def _everything(pipe: int, child: int) -> bytes:
    said, deadline = bytearray(), time.monotonic() + 20 * _SECONDS
    while time.monotonic() < deadline:
        if select.select([pipe], [], [], 1.0)[0]:
            data = os.read(pipe, 1 << 16)
            if not data:
                return bytes(said)
            said += data
    os.kill(child, 9)
    return b""


def _tflm(data: bytes, inputs: Sequence[Array]) -> list[Array]:
    from tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(data, arena_size=_ARENA)
    for position, array in enumerate(inputs):
        interpreter.set_input(array, position)
    interpreter.invoke()
    found: list[Array] = []
    while True:
        try:
            found.append(np.asarray(interpreter.get_output(len(found))))
        except Exception:  # noqa: BLE001 - there is no asking how many there are
            return found


def _onnxruntime(data: bytes, inputs: Sequence[Array]) -> list[Array]:
    runtime = session(data, fused=False)
    names = [given.name for given in runtime.get_inputs()]
    return [np.asarray(a) for a in runtime.run(None, dict(zip(names, inputs, strict=True)))]
