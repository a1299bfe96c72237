"""The configuration of an Ethos-U, and the command stream that its driver reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ToolError, UsageError, suggestion

# ---- What the user says of an Ethos-U: ``ethos-u55-128,memory=Shared_Sram,system=NAME,driver=FOLDER``. What the
# board's file says of its own may be left out, and is not said otherwise.

NAME = "ethos-u"
_DRIVER = "driver="
"""What stands before the driver's folder, which is last."""
_EXAMPLE = "--external ethos-u=ethos-u55-128, and behind it ,memory=MODE ,system=NAME ,driver=FOLDER as needed"
_DEDICATED = "Dedicated"
_WORD = re.compile(r"[A-Za-z0-9_]{1,64}")


@frozen
class Accelerator:
    """A product of the family, as its driver numbers it, the base-2 logarithm of its products a cycle, and the systems that
    Vela reckons with, unless another is named: with flash, and with DRAM behind a memory of the accelerator's own."""

    product: int
    log2_macs: int
    system: str
    dedicated: str = ""


_U55, _U65 = ("Ethos_U55_High_End_Embedded",), ("Ethos_U65_Embedded", "Ethos_U65_High_End")
ACCELERATORS: Mapping[str, Accelerator] = {
    "ethos-u55-32": Accelerator(0, 5, *_U55),
    "ethos-u55-64": Accelerator(0, 6, *_U55),
    "ethos-u55-128": Accelerator(0, 7, *_U55),
    "ethos-u55-256": Accelerator(0, 8, *_U55),
    "ethos-u65-256": Accelerator(1, 8, *_U65),
    "ethos-u65-512": Accelerator(1, 9, *_U65),
}
"""By Vela's name. Ethos-U85 has other commands, which :mod:`microc.external.ethos_u.accelerator` does not know."""
MEMORY_MODES = ("Sram_Only", "Shared_Sram", "Dedicated_Sram", "Dedicated_Sram_256KB", "Dedicated_Sram_512KB")
"""Of Vela's file of configurations. Dedicated: a memory that the accelerator has for itself, which U65 may have."""


@frozen
class Configuration:
    """``accelerator``, ``memory`` and ``system`` in Vela's words; ``driver``: a folder with the library of Arm's driver, or
    empty."""

    accelerator: str
    memory: str = "Shared_Sram"
    system: str = ""
    driver: str = ""

    @property
    def target(self) -> Accelerator:
        return ACCELERATORS[self.accelerator]

    @property
    def reckoned(self) -> str:
        """The system that is named, or the accelerator's usual one."""
        return self.system or (self.target.dedicated if self.memory.startswith(_DEDICATED) else self.target.system)


def on_board(text: str, npu: str) -> str:
    """What the user says, with what the board says of its accelerator (:attr:`microc.target.Target.npu`) where that is left out.
    UsageError where the two differ."""
    if not npu:
        return text
    words, driven, driver = _parted(text)
    first, *rest = words.split(",")
    accelerator, rest = ("", [first, *rest]) if "=" in first else (first, rest)
    own, *facts = npu.split(",")
    if accelerator not in ("", own):
        raise _contradiction(own, accelerator)
    for fact in facts:
        key = fact.partition("=")[0] + "="
        said = [word for word in rest if word.startswith(key)]
        if said and said != [fact]:
            raise _contradiction(fact, ",".join(said))
        rest += [] if said else [fact]
    return ",".join((own, *rest, *([f"{driven}{driver}"] if driven else [])))


def _contradiction(board: str, user: str) -> UsageError:
    return UsageError(
        f"the board has {board}, not {user}",
        hint=f"--external {NAME} takes what the board has; where yours differs, name a board file of your own",
    )


def _parted(text: str) -> tuple[str, str, str]:
    """The words, what introduces the driver's folder, and that; the last two are empty where there is none."""
    words, driven, driver = f",{text}".partition(f",{_DRIVER}")
    return words[1:], driven[1:], driver


def parse(text: str) -> Configuration:
    """UsageError for what makes no sense."""
    words, driven, driver = _parted(text)
    accelerator, *rest = words.split(",")
    if driven and not driver:
        raise UsageError("driver= names no folder", hint=_EXAMPLE)
    if accelerator not in ACCELERATORS:
        if not accelerator:
            raise UsageError(f"{NAME} stands for several accelerators", hint=_EXAMPLE)
        known = suggestion(accelerator, sorted(ACCELERATORS), "accelerators")
        raise UsageError(f"there is no accelerator {accelerator!r} here", hint=known)
    said = dict[str, str]()
    for word in rest:
        key, equals, value = word.partition("=")
        if key not in ("memory", "system") or not equals or not value or key in said:
            raise UsageError(f"{word!r} says nothing about an accelerator", hint=_EXAMPLE)
        if key == "memory" and value not in MEMORY_MODES:
            raise UsageError(f"there is no memory mode {value!r}", hint=suggestion(value, MEMORY_MODES, "modes"))
        if key == "system" and not _WORD.fullmatch(value):
            raise UsageError(
                f"{value!r} is no name of a system", hint="as in Vela's list: vela --list-configs Arm/vela.ini"
            )
        said[key] = value
    chosen = Configuration(accelerator, said.get("memory", "Shared_Sram"), said.get("system", ""), driver)
    if not chosen.target.dedicated and chosen.memory.startswith(_DEDICATED):
        raise UsageError(f"{accelerator} has no memory of its own", hint="memory=Shared_Sram or memory=Sram_Only")
    return chosen


def folder_of(text: str) -> str:
    """The driver's folder, or nothing."""
    return _parted(text)[2]


# ---- What Vela hands to the driver, read and checked as driver and accelerator will: headers, every command, every
# address.
#
# The payload is words of 32 bits: ``COP1``, then driver actions, whose low byte says which: the accelerator that the stream is
# for (two more words), nothing, or the stream (its length in words in the upper half, and the bits above in the second byte). A
# command is a word, of which bits 0 to 9 say which, bits 14 and 15 whether another word follows it, and the upper half is a
# parameter (Arm, Ethos-U55 NPU technical reference manual, command stream).

MAGIC = int.from_bytes(b"COP1", "little")
CONFIG, STREAM, NOTHING = 1, 2, 5
ALIGN = 16
"""Bytes, of the stream and of every region."""
_LONG = 0x4000
_STOP, _CONVOLUTION, _DEPTHWISE, _POOL, _ELEMENTWISE, _COPY = 0x000, 0x002, 0x003, 0x005, 0x006, 0x010
_OPERATIONS = {_STOP, 0x001, _CONVOLUTION, _DEPTHWISE, _POOL, _ELEMENTWISE, _COPY, 0x011, 0x012, 0x013}
_SETTINGS = range(0x100, 0x200)
_IFM, _OFM, _IFM2 = 0x00, 0x10, 0x80
"""Of the registers of a feature map: data, result, second operand."""
_INTERNAL = 1 << 8
"""Of a copy's region: it goes to the accelerator's own memory."""
Registers = Mapping[int, int]
Reached = tuple[str, int, int, int, int]


def check_payload(data: bytes, accelerator: Accelerator, regions: Sequence[int]) -> None:
    """ToolError where a payload is not for ``accelerator``, is not whole, or reaches beyond its ``regions``, whose sizes in bytes
    these are: weights, scratch, fast scratch."""
    for registers, operation in _operations(_commands(data, accelerator)):
        for name, region, start, size, step in _reached(registers, operation):
            if start % step:
                raise _broken(f"{name} lie at byte {start:,} of region {region}, no multiple of {step}")
            if region >= len(regions) or start < 0 or size < 0 or start + size > regions[region]:
                raise _broken(f"{name} reach to byte {start + size:,} of region {region}, which has no such")


def _broken(what: str) -> ToolError:
    return ToolError(f"what Vela made is not sound: {what}", hint="another version of ethos-u-vela; 5.2.0 is known")


def _commands(data: bytes, accelerator: Accelerator) -> Array:
    """The words of the one stream in a payload."""
    if len(data) % 4 or len(data) < 8:
        raise _broken(f"a payload of {len(data)} bytes")
    words = np.frombuffer(data, "<u4")
    if words[0] != MAGIC:
        raise _broken("a payload without COP1 in front")
    place, configured, found = 1, False, list[Array]()
    while place < len(words):
        word = int(words[place])
        action, length = word & 0xFF, (word >> 8 & 0xFF) << 16 | word >> 16
        if action == CONFIG and place + 2 < len(words):
            configured = _fits(int(words[place + 1]), accelerator)
            place += 3
        elif action == STREAM and place + 1 + length <= len(words):
            if (place + 1) * 4 % ALIGN:
                raise _broken(f"the stream begins at byte {(place + 1) * 4}, no multiple of {ALIGN}")
            found.append(words[place + 1 : place + 1 + length])
            place += 1 + length
        elif action == NOTHING:
            place += 1
        else:
            raise _broken(f"driver action {action} at byte {4 * place}")
    if not configured or len(found) != 1:
        raise _broken(f"{len(found)} streams, {'one' if configured else 'no'} configuration")
    return found[0]


def _fits(word: int, accelerator: Accelerator) -> bool:
    product, log2_macs = word >> 28, word & 0xF
    if (product, log2_macs) != (accelerator.product, accelerator.log2_macs):
        raise _broken(f"it is for product {product} with {1 << log2_macs} products a cycle")
    return True


def _operations(words: Array) -> Iterator[tuple[Registers, int]]:
    """The registers at every operation that reaches into memory, in order; those of long commands have numbers from 0x4000 on."""
    registers = dict[int, int]()
    position, whole = 0, words.tolist()
    while position < len(whole):
        word = whole[position]
        code, kind, parameter = word & 0x3FF, word & 0xC000, word >> 16
        if kind == _LONG and position + 1 < len(whole):
            registers[_LONG | code] = (parameter & 0xFF) << 32 | whole[position + 1]
            position += 2
            continue
        position += 1
        if kind or not (code in _OPERATIONS or code in _SETTINGS):
            raise _broken(f"command {word:#010x} at word {position - 1}")
        if code in _SETTINGS:
            registers[code] = parameter
        elif code in (_CONVOLUTION, _DEPTHWISE, _POOL, _ELEMENTWISE, _COPY):
            yield registers, code
        elif code == _STOP:
            if position != len(whole):
                raise _broken("commands behind the end")
            return
    raise _broken("a stream without end")


def _reached(registers: Registers, operation: int) -> Iterator[Reached]:
    """What an operation reaches: what it is, the region, the first byte, how many, and of what that is a multiple."""
    try:
        if operation == _COPY:
            source, target = registers[0x130], registers[0x131]
            length = registers[_LONG | 0x32]
            yield "copied data", source & 7, registers[_LONG | 0x30], length, 1
            if not target & _INTERNAL:
                yield "copies", target & 7, registers[_LONG | 0x31], length, 1
            return
        yield from _feature_map("results", registers, _OFM, registers[0x112] + 1)
        yield from _feature_map("data", registers, _IFM, 0)
        if operation == _ELEMENTWISE and not registers.get(0x180, 0) & 0x80:
            yield from _feature_map("second operands", registers, _IFM2, 0)
        if operation in (_CONVOLUTION, _DEPTHWISE):
            yield from _weights(registers)
    except KeyError as error:
        raise _broken(f"register {error} is read before it is set") from error


def _weights(registers: Registers) -> Iterator[Reached]:
    """Weights and scales, and those of the second core, where there is one."""
    for name, region, *cores in (("weights", 0x128, 0x20, 0x90), ("scales", 0x129, 0x22, 0x92)):
        for core in cores:
            if registers.get(_LONG | core + 1, 0):
                yield name, registers[region] & 7, registers[_LONG | core], registers[_LONG | core + 1], ALIGN


def _feature_map(what: str, registers: Registers, kind: int, height: int) -> Iterator[Reached]:
    """The tiles of a feature map: the one at its origin as far as it goes, of others where they begin. ``height``: of all rows,
    where it is known; the rows behind the first tile lie in the third."""
    short, long = 0x100 | kind, _LONG | kind
    region, precision = registers[short | 0xF] & 7, registers[short | 5 if kind != _OFM else 0x114]
    element, bricks = 1 << (precision >> 2 & 3), precision >> 6 & 3
    first_rows, width = registers[short | 0xB] + 1, registers[short | 0xA] + 1
    depth = registers[{_IFM: 0x104, _OFM: 0x113}[kind]] + 1 if kind != _IFM2 else 1
    across, down, deep = (registers[long | k] for k in (4, 5, 6))

    def size(rows: int) -> int:
        if bricks:
            return (rows - 1) * down + (depth - 1) // 16 * deep + ((width - 1) * 16 + (depth - 1) % 16 + 1) * element
        return (rows - 1) * down + (width - 1) * across + depth * element

    rows = min(first_rows, height) if height else first_rows
    step = ALIGN if bricks else element
    yield what, region, registers[long], size(rows), step
    if height > first_rows:
        yield what, region, registers[long | 2], size(height - first_rows), step
