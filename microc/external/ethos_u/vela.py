# SPDX-License-Identifier: Apache-2.0
"""Run Vela, Arm's compiler for Ethos-U, on a TFLite model, and read its output. Vela runs in a process of its own,
bounded in time and memory."""

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
from microc.frontend.tflite.builtin_options import guard_flatbuffer

MAX_SECONDS, MAX_MEMORY_BYTES = 300, 8 << 30
"""Limits of a run of Vela: seconds, and bytes of memory. For a network of a megabyte it needs one second and 256 MB."""
MAX_FILE_BYTES = 256 << 20  # largest size, in bytes, of a compiled model that is read
_LEFT_OPERATOR_MESSAGE = re.compile(
    r"^Warning \([^()\n]*\) operator: .*, ofm: '([^'\n]*)'\nReason: (.+(?:\n.*\S.*)*)", re.MULTILINE
)
"""Pattern of Vela's message that it leaves an operator to the processor, with the reason; an empty line ends the
message."""
_MAX_REASON_CHARACTERS = 200  # largest number of characters of a reason
OPERATOR = b"ethos-u"
_INSTALL_HINT = "pip install 'microc[ethos-u]'"
_BOUNDED_PROGRAM = """import runpy, sys
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
class VelaModel:
    """A region that Vela has compiled, as Arm's driver needs it.

    ``payload``: the command stream with its headers; ``weights``: the encoded weights; ``scratch_bytes``: bytes of
    scratch memory; ``fast_scratch_bytes``: bytes of fast scratch memory, 0 if it is the same as the scratch memory;
    ``offsets_by_tensor``: byte offsets of inputs and outputs in scratch memory, by tensor name; ``cycles``: accelerator
    cycles of a run, by Vela's estimate."""

    payload: bytes
    weights: bytes
    scratch_bytes: int
    fast_scratch_bytes: int
    offsets_by_tensor: Mapping[str, int]
    cycles: float


@frozen
class OperatorsLeftToProcessor:
    """The operators of a region that Vela leaves to the processor.

    ``reasons``: for every result of such an operator, Vela's reason by the result's name; empty if Vela prints none."""

    reasons: Mapping[str, str]


def require_vela() -> None:
    """Raise ToolError if Vela is not installed."""
    try:
        found = importlib.util.find_spec("ethosu.vela")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ToolError("Vela, Arm's compiler for Ethos-U, is not installed", hint=_INSTALL_HINT)


@lru_cache(maxsize=16)
def compile_model(model: bytes, configuration: Configuration) -> VelaModel | OperatorsLeftToProcessor:
    """Compile a TFLite model by Vela; return the compiled model, or the operators that Vela leaves to the processor.

    Raises ToolError if Vela is not installed, fails, takes too long, or writes malformed files."""
    require_vela()
    with tempfile.TemporaryDirectory(prefix="microc-vela-") as folder:
        (Path(folder) / "region.tflite").write_bytes(model)
        output = _run_vela(Path(folder), configuration)
        model_file = Path(folder) / "out" / "region_vela.tflite"
        summary = next(iter(sorted((Path(folder) / "out").glob("region_summary_*.csv"))), None)
        if not model_file.is_file() or summary is None or model_file.stat().st_size > MAX_FILE_BYTES:
            raise ToolError("Vela wrote no model, or no summary", hint="install ethos-u-vela 5.2.0")
        try:
            with guard_flatbuffer(model_file.name):
                return _read_vela_model(
                    model_file.read_bytes(), _read_total_cycles(summary), parse_refusal_reasons(output)
                )
        except ModelError as error:
            raise ToolError(f"Vela's model cannot be read: {error.what}", hint="install ethos-u-vela 5.2.0") from error


def parse_refusal_reasons(vela_output: str) -> dict[str, str]:
    """Parse Vela's messages; return why Vela leaves operators to the processor, by the names of the operators' results.

    Each reason is shortened to one line of printable characters."""
    warnings = (
        (name, "; ".join(line.strip(" -") for line in text.splitlines()))
        for name, text in _LEFT_OPERATOR_MESSAGE.findall(vela_output)
    )
    return {
        name: "".join(filter(str.isprintable, text.replace(":; ", ": ")))[:_MAX_REASON_CHARACTERS]
        for name, text in warnings
    }


def _run_vela(folder: Path, configuration: Configuration) -> str:
    """Run Vela on the file ``region.tflite`` in a folder, and return the text that Vela prints to standard output.

    Raises ToolError if Vela fails, or takes longer than :data:`MAX_SECONDS`."""
    command = [
        sys.executable, "-P", "-c", _BOUNDED_PROGRAM, str(MAX_MEMORY_BYTES), "region.tflite", "--output-dir", "out",
        "--accelerator-config", configuration.accelerator_name, "--config", "Arm/vela.ini",
        "--system-config", configuration.system_config_for_estimates, "--memory-mode", configuration.memory_mode,
        "--cop-format", "COP1",
    ]  # fmt: skip
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, timeout=MAX_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            f"Vela took more than {MAX_SECONDS} s",
            hint="leave out --external, or compile a part of the network (--inputs, --outputs)",
        ) from error
    if result.returncode:
        lines = (result.stdout + b"\n" + result.stderr).decode("utf-8", "replace").splitlines()
        last = next(filter(str.strip, reversed(lines)), "it says nothing")
        raise ToolError(
            f"Vela refuses a region: {''.join(filter(str.isprintable, last.strip()))[:200]}",
            hint="leave out --external, or name another memory mode or system configuration",
        )
    return result.stdout.decode("utf-8", "replace")


def _read_total_cycles(summary: Path) -> float:
    """Read the estimated cycles of the whole model from the only row of Vela's summary, which is a CSV file."""
    with summary.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return float(rows[0]["cycles_total"])
    except (IndexError, KeyError, ValueError) as error:
        raise ToolError("Vela's summary has no cycles", hint="install ethos-u-vela 5.2.0") from error


def _read_vela_model(
    data: bytes, cycles: float, reasons_by_name: Mapping[str, str]
) -> VelaModel | OperatorsLeftToProcessor:
    """Read the TFLite model that Vela wrote.

    If Vela has compiled the whole region, the model consists of a single custom operator for the accelerator. The
    operands of this operator are: command stream, weights, scratch memory, fast scratch memory, then the region's
    inputs. If the model contains other operators, return these as the operators that Vela left to the processor.
    ``cycles``: the estimate in Vela's summary; ``reasons_by_name``: Vela's reasons, by the names of the operators'
    results."""
    model = tflite.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    operators = [graph.Operators(k) for k in range(graph.OperatorsLength())]
    names = [graph.Tensors(k).Name().decode("utf-8", "replace") for k in range(graph.TensorsLength())]
    left = [each for each in operators if model.OperatorCodes(each.OpcodeIndex()).CustomCode() != OPERATOR]
    if left:
        return OperatorsLeftToProcessor(
            {
                name: reasons_by_name.get(name, "")
                for each in left
                for name in (names[int(k)] for k in each.OutputsAsNumpy())
            }
        )
    if len(operators) != 1:
        raise ModelError(f"the model has {len(operators)} operators for the accelerator, expected one")
    (each,) = operators
    command, weights, scratch, fast, *inputs = (int(k) for k in each.InputsAsNumpy())
    outputs = [int(k) for k in each.OutputsAsNumpy()]
    offsets = _scratch_offsets_of_tensors(model, len(names))
    sizes = {k: int(np.prod(graph.Tensors(k).ShapeAsNumpy())) for k in (scratch, fast, *inputs, *outputs)}
    for k in (*inputs, *outputs):
        if not 0 <= offsets[k] <= sizes[scratch] - sizes[k]:
            raise ModelError(
                f"{names[k]} begins at byte {offsets[k]}, outside of the {sizes[scratch]} bytes of the arena"
            )
    payload, constants = (_constant_data_of_tensor(model, graph.Tensors(k)) for k in (command, weights))
    fast_bytes = 0 if fast == scratch else -(-sizes[fast] // ALIGN) * ALIGN
    scratch_bytes = -(-sizes[scratch] // ALIGN) * ALIGN
    return VelaModel(
        payload, constants, scratch_bytes, fast_bytes, {names[k]: offsets[k] for k in (*inputs, *outputs)}, cycles
    )


def _constant_data_of_tensor(model: Any, tensor: Any) -> bytes:
    """Return the constant data of a tensor in a TFLite model; empty if the tensor has none."""
    buffer = model.Buffers(tensor.Buffer())
    return bytes(buffer.DataAsNumpy()) if buffer.DataLength() else b""


def _scratch_offsets_of_tensors(model: Any, tensor_count: int) -> list[int]:
    """Return the byte offset of every tensor in scratch memory, -1 for a tensor that is not in scratch memory.

    The offsets come from the model's metadata entry ``OfflineMemoryAllocation``. It consists of int32 words: version,
    number of the subgraphs (1), number of the tensors, and an offset for each tensor. Raises ModelError if there is no
    such entry for ``tensor_count`` tensors."""
    for data in _offline_allocation_entries(model):
        numbers = np.frombuffer(data, "<i4").tolist()
        if numbers[:3] == [0, 1, tensor_count] and len(numbers) == 3 + tensor_count:
            return [int(word) for word in numbers[3:]]
    raise ModelError(f"the model has no offsets in scratch memory for its {tensor_count} tensors")


def _offline_allocation_entries(model: Any) -> Iterator[bytes]:
    """Yield the data of every metadata entry ``OfflineMemoryAllocation`` in a TFLite model."""
    for k in range(model.MetadataLength()):
        each = model.Metadata(k)
        if each.Name() == b"OfflineMemoryAllocation":
            yield bytes(model.Buffers(each.Buffer()).DataAsNumpy())
