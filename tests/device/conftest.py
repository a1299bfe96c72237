# SPDX-License-Identifier: Apache-2.0
"""Firmware for this machine, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.firmware import make


@pytest.fixture(scope="session")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that serves the fake network of runtime_c/tests on its standard input and output, sanitized."""
    folder = tmp_path_factory.mktemp("runtime_c")
    make(f"{folder}/firmware", f"BUILD={folder}", "SANITIZE=1")
    return folder / "firmware"


@pytest.fixture(scope="session")
def small_firmware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with payloads of 32 bytes, the smallest that there are."""
    folder = tmp_path_factory.mktemp("runtime_c_small")
    make(f"{folder}/firmware", f"BUILD={folder}", "SANITIZE=1", "PAYLOAD=32")
    return folder / "firmware"
