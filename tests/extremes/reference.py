# SPDX-License-Identifier: Apache-2.0
"""TFLite Micro in a process of its own, for it ends the process on models that break its assertions; ONNX Runtime, too."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any, BinaryIO

from microc.base.dtypes import Array
from tests.support.onnx_session import session

ARENA = 1 << 20


class Died(Exception):
    """The process ended on the model."""


class Reference:
    """A worker of a runtime, ``tflite`` or ``onnx``, that is started again when a model ended it."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, model: bytes, runs: tuple[tuple[Array, ...], ...]) -> list[list[Array]] | str:
        """The outputs of every run, or why the model was refused; Died where it ended the process."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.extremes.reference", self._runtime]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            pickle.dump((model, runs), stdin)
            stdin.flush()
            answer: list[list[Array]] | str = pickle.load(stdout)
        except (EOFError, BrokenPipeError):
            code = self._process.wait()
            self._process = None
            raise Died(f"ended with {code}") from None
        return answer

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def _tflite_micro(model: bytes, runs: tuple[tuple[Array, ...], ...]) -> list[list[Array]] | str:
    from tflite_micro import runtime

    try:
        interpreter = runtime.Interpreter.from_bytes(model, arena_size=ARENA)
        results = []
        for arrays in runs:
            for position, array in enumerate(arrays):
                interpreter.set_input(array, position)
            interpreter.invoke()
            results.append([interpreter.get_output(0).copy()])
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return results


def _onnxruntime(model: bytes, runs: tuple[tuple[Array, ...], ...]) -> list[list[Array]] | str:
    """Operator by operator, as the model says, and with products of bytes that do not saturate."""
    try:
        runtime = session(model, fused=False)
        names = [given.name for given in runtime.get_inputs()]
        return [runtime.run(None, dict(zip(names, arrays, strict=True))) for arrays in runs]
    except Exception as error:  # noqa: BLE001 - a class of each kind of refusal, and none that they share
        return f"{type(error).__name__}: {error}"


_ANSWERS = {"tflite": _tflite_micro, "onnx": _onnxruntime}


def serve(runtime: str, requests: BinaryIO, answers: BinaryIO) -> None:
    while True:
        try:
            request: Any = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(_ANSWERS[runtime](*request), answers)
        answers.flush()


if __name__ == "__main__":
    own = os.dup(1)
    os.dup2(2, 1)  # what runtimes print is no answer
    serve(sys.argv[1], sys.stdin.buffer, os.fdopen(own, "wb"))
