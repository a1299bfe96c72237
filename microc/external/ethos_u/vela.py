"""Vela, Arm's compiler, over a TFLite model: a process of its own, bounded in time and memory, and what it writes."""

from __future__ import annotations

import csv
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from microc.base.immutable import frozen
from microc.errors import ModelError, ToolError
from microc.external.ethos_u.accelerator import ALIGN, Configuration
from microc.frontend.tflite.options import reading

SECONDS, MEMORY = 300, 8 << 30
"""What a run may take. A network of a megabyte takes a second, and a quarter of a gigabyte."""
LARGEST = 256 << 20
_WARNED = re.compile(r"^Warning \([^()\n]*\) operator: .*, ofm: '([^'\n]*)'\nReason: (.+(?:\n.*\S.*)*)", re.MULTILINE)
"""How Vela says why an operator is not for the accelerator; an empty line ends it."""
_REASON = 200
OPERATOR = b"ethos-u"
_GET = "pip install 'microc[ethos-u]'"
_BOUNDED = """import runpy, sys
try:
    import resource
except ImportError:
    pass
else:
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
del sys.argv[1]
runpy.run_module("ethosu.vela", run_name="__main__", alter_sys=True)
"""


@frozen
class Compiled:
    """A model as the driver takes it: the payload with the stream of commands, the weights, bytes of scratch memory and of fast
    scratch memory (0: it is the same), where in the first of these inputs and outputs lie, by name, and the cycles that Vela
    estimates."""

    payload: bytes
    weights: bytes
    scratch: int
    fast: int
    places: Mapping[str, int]
    cycles: float


@frozen
class Left:
    """What Vela leaves to a processor: the operators' results by name, each with Vela's reason, or nothing where it says none."""

    reasons: Mapping[str, str]


def require() -> None:
    """ToolError where Vela is not installed."""
    try:
        found = importlib.util.find_spec("ethosu.vela")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ToolError("Vela, Arm's compiler for Ethos-U, is not installed", hint=_GET)


@lru_cache(maxsize=16)
def compile_model(model: bytes, configuration: Configuration) -> Compiled | Left:
    """Run Vela. ToolError where it is not installed, refuses the model, takes too long, or writes what is not sound."""
    require()
    with tempfile.TemporaryDirectory(prefix="microc-vela-") as folder:
        (Path(folder) / "region.tflite").write_bytes(model)
        said = _run(Path(folder), configuration)
        made = Path(folder) / "out" / "region_vela.tflite"
        summary = next(iter(sorted((Path(folder) / "out").glob("region_summary_*.csv"))), None)
        if not made.is_file() or summary is None or made.stat().st_size > LARGEST:
            raise ToolError("Vela wrote no model, or no summary", hint="ethos-u-vela 5.2.0 is known")
        try:
            with reading(made.name):
                return _read(made.read_bytes(), _cycles(summary), reasons(said))
        except ModelError as error:
            raise ToolError(f"Vela's model cannot be read: {error.what}", hint="ethos-u-vela 5.2.0 is known") from error


def reasons(said: str) -> dict[str, str]:
    """Why operators are left to a processor, by their results, out of what Vela prints: a line each, which a report may hold."""
    found = ((name, "; ".join(line.strip(" -") for line in text.splitlines())) for name, text in _WARNED.findall(said))
    return {name: "".join(filter(str.isprintable, text.replace(":; ", ": ")))[:_REASON] for name, text in found}


def _run(folder: Path, configuration: Configuration) -> str:
    """What Vela prints."""
    words = [
        sys.executable, "-P", "-c", _BOUNDED, str(MEMORY), "region.tflite", "--output-dir", "out",
        "--accelerator-config", configuration.accelerator, "--config", "Arm/vela.ini",
        "--system-config", configuration.reckoned, "--memory-mode", configuration.memory,
        "--cop-format", "COP1",
    ]  # fmt: skip
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"Vela took more than {SECONDS} s", hint="leave out external, or cut the network") from error
    if done.returncode:
        said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace").splitlines()
        last = next(filter(str.strip, reversed(said)), "it says nothing")
        raise ToolError(
            f"Vela refuses a region: {''.join(filter(str.isprintable, last.strip()))[:200]}",
            hint="leave out external, or name another memory mode or system",
        )
    return done.stdout.decode("utf-8", "replace")


def _cycles(summary: Path) -> float:
    """The whole number of cycles of the one row."""
    with summary.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return float(rows[0]["cycles_total"])
    except (IndexError, KeyError, ValueError) as error:
        raise ToolError("Vela's summary says nothing about cycles", hint="ethos-u-vela 5.2.0 is known") from error


def _read(data: bytes, cycles: float, why: Mapping[str, str]) -> Compiled | Left:
    """The operators' results that are left, with ``why``, or all of the one that is for the accelerator: stream, weights, scratch
    memories, and behind these the model's inputs."""
    model = tflite.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    operators = [graph.Operators(k) for k in range(graph.OperatorsLength())]
    names = [graph.Tensors(k).Name().decode("utf-8", "replace") for k in range(graph.TensorsLength())]
    left = [each for each in operators if model.OperatorCodes(each.OpcodeIndex()).CustomCode() != OPERATOR]
    if left:
        return Left(
            {name: why.get(name, "") for each in left for name in (names[int(k)] for k in each.OutputsAsNumpy())}
        )
    if len(operators) != 1:
        raise ModelError(f"it has {len(operators)} operators for the accelerator")
    (each,) = operators
    command, weights, scratch, fast, *inputs = (int(k) for k in each.InputsAsNumpy())
    outputs = [int(k) for k in each.OutputsAsNumpy()]
    offsets = _offsets(model, len(names))
    sizes = {k: int(np.prod(graph.Tensors(k).ShapeAsNumpy())) for k in (scratch, fast, *inputs, *outputs)}
    for k in (*inputs, *outputs):
        if not 0 <= offsets[k] <= sizes[scratch] - sizes[k]:
            raise ModelError(f"{names[k]} lies at {offsets[k]}, outside of {sizes[scratch]} bytes")
    payload, constants = (_data(model, graph.Tensors(k)) for k in (command, weights))
    apart = 0 if fast == scratch else -(-sizes[fast] // ALIGN) * ALIGN
    whole = -(-sizes[scratch] // ALIGN) * ALIGN
    return Compiled(payload, constants, whole, apart, {names[k]: offsets[k] for k in (*inputs, *outputs)}, cycles)


def _data(model: Any, tensor: Any) -> bytes:
    buffer = model.Buffers(tensor.Buffer())
    return bytes(buffer.DataAsNumpy()) if buffer.DataLength() else b""


def _offsets(model: Any, count: int) -> list[int]:
    """Where tensors lie in scratch memory (-1: not there), as the metadata say: a version, 1 subgraph, how many, offsets."""
    for each in _metadata(model):
        words = np.frombuffer(each, "<i4").tolist()
        if words[:3] == [0, 1, count] and len(words) == 3 + count:
            return [int(word) for word in words[3:]]
    raise ModelError("it does not say where its tensors lie")


def _metadata(model: Any) -> Iterator[bytes]:
    for k in range(model.MetadataLength()):
        each = model.Metadata(k)
        if each.Name() == b"OfflineMemoryAllocation":
            yield bytes(model.Buffers(each.Buffer()).DataAsNumpy())
