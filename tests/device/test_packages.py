# SPDX-License-Identifier: Apache-2.0
"""Hints name what the computer's own package manager has."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable

import pytest

from microc.device import toolchain
from microc.project.first_steps import PROGRAMS

Become = Callable[[str], None]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Another system: darwin, win32, or a Linux by its ID."""

    def system(name: str) -> None:
        linux = name not in ("darwin", "win32")
        monkeypatch.setattr(sys, "platform", "linux" if linux else name)
        monkeypatch.setattr(
            platform, "freedesktop_os_release", lambda: {"ID": name, "ID_LIKE": "x debian" * (name == "mint")}
        )
        monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
        monkeypatch.setattr(shutil, "which", lambda _: None)

    return system


@pytest.mark.parametrize(
    ("system", "hint"),
    [
        ("debian", "apt-get install -y --no-install-recommends qemu-system-arm"),
        ("mint", "apt-get install -y --no-install-recommends qemu-system-arm"),
        ("fedora", "dnf install -y qemu-system-arm"),
        ("darwin", "brew install qemu"),
        ("win32", "winget install --exact SoftwareFreedomConservancy.QEMU"),
        ("plan9", "install qemu-system-arm and put it on PATH"),
    ],
)
def test_a_hint_is_of_the_system(system: str, hint: str, become: Become) -> None:
    become(system)
    assert toolchain.install_hint("qemu-system-arm") == hint
    assert toolchain.install_hint("frobnicate") == "install frobnicate and put it on PATH"


def test_one_line_for_several(become: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    become("debian")
    lines = toolchain.install_commands(["qemu-system-riscv32", "make", "qemu-system-avr", "frobnicate"])
    assert lines == (
        ("apt-get", "update"),
        ("apt-get", "install", "-y", "--no-install-recommends", "qemu-system-misc", "make"),
    )
    assert toolchain.install_commands(["frobnicate"]) == ()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert toolchain.install_commands(["make"])[1][:2] == ("apt-get", "install"), "no sudo here"
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert [line[:2] for line in toolchain.install_commands(["make"])] == [("sudo", "apt-get")] * 2
    become("darwin")
    assert toolchain.install_commands(["make", "openocd"]) == (("brew", "install", "make", "open-ocd"),)


def test_chocolatey_where_winget_is_not(become: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    become("win32")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "choco" else None)
    assert toolchain.install_hint("openocd") == "choco install -y openocd"


def test_npm_installs_beside_this_python_on_every_system(become: Become) -> None:
    for system in ("debian", "darwin", "plan9"):
        become(system)
        line = ("npm", "install", "--global", "--prefix", sys.prefix, "rp2040js")
        assert toolchain.install_commands(["rp2040js"]) == (line,)
        assert toolchain.install_hint("rp2040js") == " ".join(line)
    become("debian")
    assert toolchain.install_commands(["rp2040js", "make"])[-2:] == (
        ("apt-get", "install", "-y", "--no-install-recommends", "make"),
        line,
    )


def test_every_program_that_is_looked_for_has_a_package() -> None:
    assert {name for name, *_ in PROGRAMS} - set(toolchain.PACKAGES) == {"hazard3-sim"}
