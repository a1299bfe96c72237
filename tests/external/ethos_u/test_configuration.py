# SPDX-License-Identifier: Apache-2.0
"""What the user says of an accelerator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from microc.base import file_access
from microc.errors import ToolError, UsageError
from microc.external.ethos_u import BACKEND, accelerator
from microc.external.ethos_u.accelerator import (
    ACCELERATORS,
    MEMORY_MODES,
    Configuration,
    add_board_facts,
    parse_configuration,
)


def test_an_accelerator_is_enough() -> None:
    assert parse_configuration("ethos-u55-128") == Configuration("ethos-u55-128", "Shared_Sram", "", "")
    assert parse_configuration("ethos-u55-128").system_config_for_estimates == "Ethos_U55_High_End_Embedded"
    assert (
        parse_configuration("ethos-u65-256,memory=Dedicated_Sram").system_config_for_estimates == "Ethos_U65_High_End"
    )
    assert (
        parse_configuration("ethos-u55-64,system=Ethos_U55_Deep_Embedded,memory=Sram_Only").system_config_for_estimates
        == "Ethos_U55_Deep_Embedded"
    )
    assert parse_configuration("ethos-u65-512,driver=/a/b=c").driver_folder == "/a/b=c"
    assert len({(a.product_number, a.log2_macs) for a in ACCELERATORS.values()}) == len(ACCELERATORS)


def test_the_drivers_folder_lies_beside_a_file() -> None:
    said = "ethos-u55-128,memory=Sram_Only,driver="
    assert BACKEND.beside(f"{said}../d", Path("/p")) == f"{said}/p/../d" and BACKEND.folder(f"{said}../d") == "../d"
    assert BACKEND.beside("ethos-u55-128", Path("/p")) == "ethos-u55-128" and not BACKEND.folder("ethos-u55-128")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs the name of an accelerator"),
        ("driver=d", "needs the name of an accelerator"),
        ("ethos-u85-256", "unknown accelerator; got 'ethos-u85-256'"),
        ("ethos-u55-128,fast", "unknown item in the configuration; got 'fast'"),
        ("ethos-u55-128,driver=", "names no folder"),
        ("ethos-u55-128,memory=Sram_Only,memory=Shared_Sram", "unknown item in the configuration"),
        ("ethos-u55-128,memory=Fast", "unknown memory mode; got 'Fast'"),
        ("ethos-u55-128,system=a b", "invalid name of a system configuration; got 'a b'"),
        ("ethos-u55-128,memory=Dedicated_Sram", "has no memory of its own"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_configuration(text)


@pytest.mark.parametrize(
    ("said", "npu", "meant"),
    [
        ("", "ethos-u55-128", "ethos-u55-128"),
        ("ethos-u55-128", "ethos-u55-128,memory=Sram_Only", "ethos-u55-128,memory=Sram_Only"),
        ("memory=Sram_Only", "ethos-u55-128", "ethos-u55-128,memory=Sram_Only"),
        ("driver=a,b", "ethos-u55-64,system=S", "ethos-u55-64,system=S,driver=a,b"),
        (
            "system=S,driver=d",
            "ethos-u55-64,memory=Sram_Only,system=S",
            "ethos-u55-64,system=S,memory=Sram_Only,driver=d",
        ),
        ("ethos-u55-32,driver=d", "", "ethos-u55-32,driver=d"),
    ],
)
def test_a_board_says_what_is_left_out(said: str, npu: str, meant: str) -> None:
    assert add_board_facts(said, npu) == meant
    assert add_board_facts(meant, npu) == meant


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("ethos-u55-256", "got ethos-u55-256, expected ethos-u55-128"),
        ("memory=Sram_Only", "got memory=Sram_Only, expected memory=Shared_Sram"),
        ("ethos-u55-128,system=Mine", "got system=Mine, expected system=S"),
    ],
)
def test_what_contradicts_a_board_is_refused(said: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        add_board_facts(said, "ethos-u55-128,memory=Shared_Sram,system=S")
    assert "write a board file" in caught.value.hint


def test_board_files_say_the_same_words() -> None:
    schema = json.loads((file_access.boards_folder() / "board.schema.json").read_text())["properties"]["npu"][
        "properties"
    ]
    assert schema["accelerator"]["enum"] == list(ACCELERATORS)
    assert schema["memory"]["enum"] == list(MEMORY_MODES)


def test_without_vela_there_is_a_word_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolError, match="Vela, Arm's compiler for Ethos-U, is not installed") as caught:
        accelerator.require_vela()
    assert caught.value.hint == 'pip install "microc[ethos-u]"'
