"""What the user says of an Ethos-U: ``ethos-u55-128,memory=Shared_Sram,system=NAME,driver=FOLDER``. What the board's file says
of its own may be left out, and is not said otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping

from microc.errors import UsageError, suggestion
from microc.frozen import frozen

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
"""By Vela's name. Ethos-U85 has other commands, which :mod:`microc.external.ethos_u.stream` does not know."""
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
