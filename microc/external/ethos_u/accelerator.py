# SPDX-License-Identifier: Apache-2.0
"""Ethos-U accelerators: their configuration, their compiler Vela, and the check of the command streams that it
generates."""

from __future__ import annotations

import csv
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, ToolError, UsageError, known_names_hint
from microc.frontend.tflite.builtin_options import guard_flatbuffer

# ---- Run Vela, Arm's compiler for Ethos-U, on a TFLite model, and read its output. Vela runs in a process of its
# own, bounded in time and memory.


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
_INSTALL_HINT = 'pip install "microc[ethos-u]"'
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


# ---- The configuration of an Ethos-U accelerator, and the check of the command streams that Vela generates for it.


# ---- The configuration, such as ``ethos-u55-128,memory=Shared_Sram,system=NAME,driver=FOLDER``. What the board file states may
# be left out; the configuration must not contradict it.

NAME = "ethos-u"
_DRIVER = "driver="
"""Prefix of the folder of Arm's driver; it is the last item of a configuration."""
_CONFIGURATION_HINT = (
    "write --external ethos-u=ethos-u55-128, optionally followed by ,memory=MODE ,system=NAME ,driver=FOLDER"
)
_DEDICATED = "Dedicated"
_WORD = re.compile(r"[A-Za-z0-9_]{1,64}")


@frozen
class Accelerator:
    """A model of Arm's Ethos-U accelerators.

    ``product_number``: the number of its product family in payloads; ``log2_macs``: base-2 logarithm of its
    multiply-accumulates per cycle; ``default_system_config``: Vela's system configuration (memories and clocks for its
    estimates) that is used by default; ``dedicated_sram_system_config``: the default for memory modes in which the
    accelerator has SRAM of its own in front of DRAM, empty if the model supports no such mode."""

    product_number: int
    log2_macs: int
    default_system_config: str
    dedicated_sram_system_config: str = ""


_U55, _U65 = ("Ethos_U55_High_End_Embedded",), ("Ethos_U65_Embedded", "Ethos_U65_High_End")
ACCELERATORS: Mapping[str, Accelerator] = {
    "ethos-u55-32": Accelerator(0, 5, *_U55),
    "ethos-u55-64": Accelerator(0, 6, *_U55),
    "ethos-u55-128": Accelerator(0, 7, *_U55),
    "ethos-u55-256": Accelerator(0, 8, *_U55),
    "ethos-u65-256": Accelerator(1, 8, *_U65),
    "ethos-u65-512": Accelerator(1, 9, *_U65),
}
"""Supported accelerators, by Vela's name. Ethos-U85 is not supported: it has other commands than :func:`check_payload`
knows."""
MEMORY_MODES = ("Sram_Only", "Shared_Sram", "Dedicated_Sram", "Dedicated_Sram_256KB", "Dedicated_Sram_512KB")
"""Names of the memory modes in Vela's configuration file. In a mode that begins with Dedicated, the accelerator has
SRAM of its own, which an Ethos-U65 may have."""


@frozen
class Configuration:
    """The parsed configuration of the backend.

    ``accelerator_name``: Vela's name of the accelerator; ``memory_mode``: name of Vela's memory mode;
    ``system_config``: name of Vela's system configuration, empty for the default; ``driver_folder``: a folder that
    contains Arm's driver, or empty."""

    accelerator_name: str
    memory_mode: str = "Shared_Sram"
    system_config: str = ""
    driver_folder: str = ""

    @property
    def accelerator_model(self) -> Accelerator:
        return ACCELERATORS[self.accelerator_name]

    @property
    def system_config_for_estimates(self) -> str:
        """Name of the system configuration for Vela's estimates: the configured name, else the accelerator's
        default."""
        return self.system_config or (
            self.accelerator_model.dedicated_sram_system_config
            if self.memory_mode.startswith(_DEDICATED)
            else self.accelerator_model.default_system_config
        )


def add_board_facts(user_configuration: str, board_configuration: str) -> str:
    """Return the user's configuration completed by the board's configuration (:attr:`microc.target.Target.npu`).

    Raises UsageError if the two contradict each other."""
    if not board_configuration:
        return user_configuration
    facts_text, keyword, driver = _split_driver(user_configuration)
    first, *rest = facts_text.split(",")
    accelerator, rest = ("", [first, *rest]) if "=" in first else (first, rest)
    own, *facts = board_configuration.split(",")
    if accelerator not in ("", own):
        raise _contradiction_error(own, accelerator)
    for fact in facts:
        key = fact.partition("=")[0] + "="
        user_facts = [word for word in rest if word.startswith(key)]
        if user_facts and user_facts != [fact]:
            raise _contradiction_error(fact, ",".join(user_facts))
        rest += [] if user_facts else [fact]
    return ",".join((own, *rest, *([f"{keyword}{driver}"] if keyword else [])))


def _contradiction_error(board_fact: str, user_fact: str) -> UsageError:
    """Return the error for an item of the user's configuration that contradicts the board's configuration.

    Both facts are items such as ``memory=Shared_Sram``, or the name of an accelerator."""
    return UsageError(
        f"the configuration contradicts the board; got {user_fact}, expected {board_fact}",
        hint=f"give --external {NAME} alone to use the board's configuration; or write a board file for another configuration",
    )


def _split_driver(configuration: str) -> tuple[str, str, str]:
    """Split a configuration into the items before the driver, the keyword ``driver=``, and the driver's folder.

    Keyword and folder are empty strings if the configuration contains no driver."""
    words, driven, driver = f",{configuration}".partition(f",{_DRIVER}")
    return words[1:], driven[1:], driver


def parse_configuration(configuration: str) -> Configuration:
    """Parse a configuration such as ``ethos-u55-128,memory=Shared_Sram,driver=FOLDER``; UsageError if it is invalid."""
    words, keyword, driver = _split_driver(configuration)
    accelerator, *rest = words.split(",")
    if keyword and not driver:
        raise UsageError("driver= names no folder, expected driver=FOLDER", hint=_CONFIGURATION_HINT)
    if accelerator not in ACCELERATORS:
        if not accelerator:
            raise UsageError(f"{NAME} needs the name of an accelerator", hint=_CONFIGURATION_HINT)
        known = known_names_hint(accelerator, sorted(ACCELERATORS), "accelerators")
        raise UsageError(f"unknown accelerator; got {accelerator!r}", hint=known)
    values = dict[str, str]()
    for word in rest:
        key, equals, value = word.partition("=")
        if key not in ("memory", "system") or not equals or not value or key in values:
            raise UsageError(
                f"unknown item in the configuration; got {word!r}, expected memory=NAME or system=NAME, each at most once",
                hint=_CONFIGURATION_HINT,
            )
        if key == "memory" and value not in MEMORY_MODES:
            raise UsageError(f"unknown memory mode; got {value!r}", hint=known_names_hint(value, MEMORY_MODES, "modes"))
        if key == "system" and not _WORD.fullmatch(value):
            raise UsageError(
                f"invalid name of a system configuration; got {value!r}",
                hint="choose one of Vela's list: vela --list-configs Arm/vela.ini",
            )
        values[key] = value
    chosen = Configuration(accelerator, values.get("memory", "Shared_Sram"), values.get("system", ""), driver)
    if not chosen.accelerator_model.dedicated_sram_system_config and chosen.memory_mode.startswith(_DEDICATED):
        raise UsageError(
            f"{accelerator} has no memory of its own; got memory={chosen.memory_mode}",
            hint="choose memory=Shared_Sram or memory=Sram_Only",
        )
    return chosen


def driver_folder_of(configuration: str) -> str:
    """Return the folder of Arm's driver that a configuration contains; an empty string if it contains none."""
    return _split_driver(configuration)[2]


# ---- Check of Vela's payload (driver actions and a command stream). It is parsed as the driver and the accelerator parse it:
# headers, every command, every address.
#
# The payload consists of 32-bit words: ``COP1``, then driver actions. The low byte of an action is its code: CONFIG (two more
# words, which contain the accelerator's configuration), NOTHING, or STREAM (a command stream follows; bits 16 to 31 are the low
# bits of its length in words, bits 8 to 15 the high bits). A command of the stream is a word: bits 0 to 9 are its code, bits 14
# and 15 state whether another word follows, and the upper half is a parameter (Arm, Ethos-U55 NPU technical reference manual,
# command stream).

MAGIC = int.from_bytes(b"COP1", "little")
CONFIG, STREAM, NOTHING = 1, 2, 5
ALIGN = 16
"""Alignment, in bytes, of the command stream and of every memory region that it accesses."""
_LONG_COMMAND = 0x4000
_STOP, _CONVOLUTION, _DEPTHWISE, _POOL, _ELEMENTWISE, _COPY = 0x000, 0x002, 0x003, 0x005, 0x006, 0x010
_OPERATIONS = {_STOP, 0x001, _CONVOLUTION, _DEPTHWISE, _POOL, _ELEMENTWISE, _COPY, 0x011, 0x012, 0x013}
_SETTINGS = range(0x100, 0x200)
_IFM, _OFM, _IFM2 = 0x00, 0x10, 0x80
"""Base numbers of the registers that describe a feature map: the input (IFM), the output (OFM), and the second operand
(IFM2)."""
_INTERNAL = 1 << 8
"""Flag of a copy's destination region: the destination is the accelerator's own memory."""
Registers = Mapping[int, int]
MemoryAccess = tuple[str, int, int, int, int]


def check_payload(payload: bytes, accelerator: Accelerator, region_sizes: Sequence[int]) -> None:
    """Raise ToolError if a payload is malformed, is for another accelerator, or accesses memory outside of its regions.

    ``region_sizes``: sizes in bytes of the memory regions that the payload may access: weights, scratch memory and fast
    scratch memory, in this order.
    """
    for registers, operation in _iterate_operations_with_registers(_extract_command_stream(payload, accelerator)):
        for name, region, start, size, step in _iterate_memory_accesses(registers, operation):
            if start % step:
                raise _payload_error(
                    f"{name} begin at byte {start:,} of region {region}, expected a multiple of {step}"
                )
            if region >= len(region_sizes) or start < 0 or size < 0 or start + size > region_sizes[region]:
                raise _payload_error(
                    f"{name} reach to byte {start + size:,} of region {region}, which has "
                    f"{region_sizes[region] if region < len(region_sizes) else 0:,}"
                )


def _payload_error(problem: str) -> ToolError:
    """Return the error for a payload of Vela that fails the check; ``problem`` describes the fault as a clause."""
    return ToolError(
        f"Vela's output fails the check: {problem}", hint="install ethos-u-vela 5.2.0, which is known to work"
    )


def _extract_command_stream(payload: bytes, accelerator: Accelerator) -> Array:
    """Return the words of the only command stream in a payload.

    Raises ToolError if the payload is malformed, or is for another accelerator."""
    if len(payload) % 4 or len(payload) < 8:
        raise _payload_error(f"the payload has {len(payload)} bytes, expected a multiple of 4 from 8 on")
    words = np.frombuffer(payload, "<u4")
    if words[0] != MAGIC:
        raise _payload_error(f"the payload begins with {payload[:4]!r}, expected b'COP1'")
    position, is_configured, streams = 1, False, list[Array]()
    while position < len(words):
        word = int(words[position])
        action, length = word & 0xFF, (word >> 8 & 0xFF) << 16 | word >> 16
        if action == CONFIG and position + 2 < len(words):
            is_configured = _configures_accelerator(int(words[position + 1]), accelerator)
            position += 3
        elif action == STREAM and position + 1 + length <= len(words):
            if (position + 1) * 4 % ALIGN:
                raise _payload_error(f"the stream begins at byte {(position + 1) * 4}, expected a multiple of {ALIGN}")
            streams.append(words[position + 1 : position + 1 + length])
            position += 1 + length
        elif action == NOTHING:
            position += 1
        else:
            raise _payload_error(f"driver action {action} at byte {4 * position} is unknown or cut off")
    if not is_configured or len(streams) != 1:
        raise _payload_error(
            f"the payload has {len(streams)} command streams and {int(is_configured)} configurations of the accelerator, "
            "expected 1 of each"
        )
    return streams[0]


def _configures_accelerator(word: int, accelerator: Accelerator) -> bool:
    """Return True if the payload's configuration word states this accelerator; raise ToolError if it states another
    one."""
    product, log2_macs = word >> 28, word & 0xF
    if (product, log2_macs) != (accelerator.product_number, accelerator.log2_macs):
        raise _payload_error(
            f"the payload is for product family {product} with {1 << log2_macs} multiply-accumulates per cycle, "
            f"expected family {accelerator.product_number} with {1 << accelerator.log2_macs}"
        )
    return True


def _iterate_operations_with_registers(words: Array) -> Iterator[tuple[Registers, int]]:
    """Yield every operation of a command stream that accesses memory, in order, as a pair (registers, code).

    ``registers`` are the values that the commands before the operation have set; ``code`` is the operation's code.
    Registers that long commands (of two words) set are numbered from 0x4000. Raises ToolError for a malformed
    stream."""
    registers = dict[int, int]()
    position, whole = 0, words.tolist()
    while position < len(whole):
        word = whole[position]
        code, format_, parameter = word & 0x3FF, word & 0xC000, word >> 16
        if format_ == _LONG_COMMAND and position + 1 < len(whole):
            registers[_LONG_COMMAND | code] = (parameter & 0xFF) << 32 | whole[position + 1]
            position += 2
            continue
        position += 1
        if format_ or not (code in _OPERATIONS or code in _SETTINGS):
            raise _payload_error(f"command {word:#010x} at word {position - 1} is unknown")
        if code in _SETTINGS:
            registers[code] = parameter
        elif code in (_CONVOLUTION, _DEPTHWISE, _POOL, _ELEMENTWISE, _COPY):
            yield registers, code
        elif code == _STOP:
            if position != len(whole):
                raise _payload_error(f"{len(whole) - position} words follow the end of the stream")
            return
    raise _payload_error("the command stream has no command that ends it")


def _iterate_memory_accesses(registers: Registers, operation: int) -> Iterator[MemoryAccess]:
    """Yield the memory accesses of an operation: name for errors, region number, first byte, size in bytes, and the
    alignment that the first byte needs."""
    try:
        if operation == _COPY:
            source, target = registers[0x130], registers[0x131]
            length = registers[_LONG_COMMAND | 0x32]
            yield "copied data", source & 7, registers[_LONG_COMMAND | 0x30], length, 1
            if not target & _INTERNAL:
                yield "copies", target & 7, registers[_LONG_COMMAND | 0x31], length, 1
            return
        yield from _iterate_feature_map_accesses("results", registers, _OFM, registers[0x112] + 1)
        yield from _iterate_feature_map_accesses("data", registers, _IFM, 0)
        if operation == _ELEMENTWISE and not registers.get(0x180, 0) & 0x80:
            yield from _iterate_feature_map_accesses("second operands", registers, _IFM2, 0)
        if operation in (_CONVOLUTION, _DEPTHWISE):
            yield from _iterate_weight_accesses(registers)
    except KeyError as error:
        raise _payload_error(f"register {error} is read before it is set") from error


def _iterate_weight_accesses(registers: Registers) -> Iterator[MemoryAccess]:
    """Yield the memory accesses of an operation to weights and scales, also those of a second core if there is one."""
    for name, region, *cores in (("weights", 0x128, 0x20, 0x90), ("scales", 0x129, 0x22, 0x92)):
        for core in cores:
            if registers.get(_LONG_COMMAND | core + 1, 0):
                yield (
                    name,
                    registers[region] & 7,
                    registers[_LONG_COMMAND | core],
                    registers[_LONG_COMMAND | core + 1],
                    ALIGN,
                )


def _iterate_feature_map_accesses(
    map_name: str, registers: Registers, register_base: int, height: int
) -> Iterator[MemoryAccess]:
    """Yield the memory accesses of an operation to a feature map.

    Registers can place a feature map in up to four tiles. The check covers the first tile, at the origin, and the
    third, which contains the rows below the first. ``map_name``: name of the feature map in errors; ``register_base``:
    base number of its registers; ``height``: number of its rows, 0 if unknown."""
    short, long = 0x100 | register_base, _LONG_COMMAND | register_base
    region, precision = registers[short | 0xF] & 7, registers[short | 5 if register_base != _OFM else 0x114]
    element, bricks = 1 << (precision >> 2 & 3), precision >> 6 & 3
    first_rows, width = registers[short | 0xB] + 1, registers[short | 0xA] + 1
    depth = registers[{_IFM: 0x104, _OFM: 0x113}[register_base]] + 1 if register_base != _IFM2 else 1
    across, down, deep = (registers[long | k] for k in (4, 5, 6))

    def byte_span_of_rows(row_count: int) -> int:
        """Return the number of bytes from the first element of ``row_count`` rows to the end of the last row."""
        if bricks:
            return (
                (row_count - 1) * down + (depth - 1) // 16 * deep + ((width - 1) * 16 + (depth - 1) % 16 + 1) * element
            )
        return (row_count - 1) * down + (width - 1) * across + depth * element

    rows = min(first_rows, height) if height else first_rows
    step = ALIGN if bricks else element
    yield map_name, region, registers[long], byte_span_of_rows(rows), step
    if height > first_rows:
        yield map_name, region, registers[long | 2], byte_span_of_rows(height - first_rows), step
