"""What installs the programs that microc starts, by the package managers of the systems that people have.

Those of apt are what the tests install; the others are as their lists of packages have them.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType


def _packages(apt: str = "", dnf: str = "", brew: str = "", winget: str = "", choco: str = "") -> Mapping[str, str]:
    return MappingProxyType({"apt": apt, "dnf": dnf, "brew": brew, "winget": winget, "choco": choco})


def _qemu(apt: str, dnf: str) -> Mapping[str, str]:
    return _packages(apt, dnf, "qemu", "SoftwareFreedomConservancy.QEMU", "qemu")


PACKAGES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cc": _packages("gcc libc6-dev", "gcc glibc-devel", "gcc", "BrechtSanders.WinLibs.POSIX.UCRT", "mingw"),
        "make": _packages("make", "make", "make", "ezwinports.make", "make"),
        "arm-none-eabi-gcc": _packages(
            "gcc-arm-none-eabi libnewlib-arm-none-eabi",
            "arm-none-eabi-gcc-cs arm-none-eabi-newlib",
            "gcc-arm-embedded",
            "Arm.GnuArmEmbeddedToolchain",
            "gcc-arm-embedded",
        ),
        "riscv64-unknown-elf-gcc": _packages("gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"),
        "avr-gcc": _packages("gcc-avr avr-libc", "avr-gcc avr-libc"),
        "qemu-system-arm": _qemu("qemu-system-arm", "qemu-system-arm"),
        "simavr": _packages("libsimavr-dev", "simavr-devel", "simavr"),
        "qemu-system-riscv32": _qemu("qemu-system-misc", "qemu-system-riscv"),
        "qemu-system-riscv64": _qemu("qemu-system-misc", "qemu-system-riscv"),
        "verilator": _packages("verilator", "verilator", "verilator"),
        "gdb-multiarch": _packages("gdb-multiarch"),
        "openocd": _packages("openocd", "openocd", "open-ocd", choco="openocd"),
        "avrdude": _packages("avrdude", "avrdude", "avrdude", choco="avrdude"),
        "bossac": _packages("bossa-cli", "bossa"),
        "st-flash": _packages("stlink-tools", "stlink", "stlink"),
        "teensy_loader_cli": _packages("teensy-loader-cli", brew="teensy_loader_cli"),
    }
)
"""Of every program the packages, by manager; empty where a manager has none."""
_INSTALL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "apt": ("apt-get", "install", "-y", "--no-install-recommends"),
        "dnf": ("dnf", "install", "-y"),
        "brew": ("brew", "install"),
        "winget": ("winget", "install", "--exact"),
        "choco": ("choco", "install", "-y"),
    }
)
_LINUX: Mapping[str, str] = MappingProxyType({"debian": "apt", "ubuntu": "apt", "fedora": "dnf", "rhel": "dnf"})


def manager() -> str:
    """The package manager of this computer; empty where it is none of ours."""
    if sys.platform == "darwin":
        return "brew"
    if sys.platform == "win32":
        return "choco" if shutil.which("choco") and not shutil.which("winget") else "winget"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    names = (release["ID"], *release.get("ID_LIKE", "").split())
    return next((_LINUX[name] for name in names if name in _LINUX), "")


def install_commands(programs: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The commands that install programs here, each a program and its arguments, through sudo where that is needed and there;
    none where no package of this computer's manager has any of them."""
    here = manager()
    packages = _packages_of(programs, here)
    if not packages:
        return ()
    refresh = (("apt-get", "update"),) if here == "apt" else ()
    root = here not in ("apt", "dnf") or os.geteuid() == 0 or not shutil.which("sudo")
    return tuple(each if root else ("sudo", *each) for each in (*refresh, (*_INSTALL[here], *packages)))


def install_hint(program: str) -> str:
    """How to get one program, for whoever lacks it."""
    here = manager()
    packages = _packages_of([program], here)
    return " ".join((*_INSTALL[here], *packages)) if packages else f"install {program} and put it on PATH"


def _packages_of(programs: Iterable[str], manager: str) -> tuple[str, ...]:
    cells = (PACKAGES[program][manager] for program in programs if manager and program in PACKAGES)
    return tuple(dict.fromkeys(package for cell in cells for package in cell.split()))
