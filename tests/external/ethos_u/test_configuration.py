"""What the user says of an accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest

from microc.errors import ToolError, UsageError
from microc.external.ethos_u import BACKEND, vela
from microc.external.ethos_u.configuration import ACCELERATORS, Configuration, parse


def test_an_accelerator_is_enough() -> None:
    assert parse("ethos-u55-128") == Configuration("ethos-u55-128", "Shared_Sram", "", "")
    assert parse("ethos-u55-128").reckoned == "Ethos_U55_High_End_Embedded"
    assert parse("ethos-u65-256,memory=Dedicated_Sram").reckoned == "Ethos_U65_High_End"
    assert parse("ethos-u55-64,system=Ethos_U55_Deep_Embedded,memory=Sram_Only").reckoned == "Ethos_U55_Deep_Embedded"
    assert parse("ethos-u65-512,driver=/a/b=c").driver == "/a/b=c"
    assert len({(a.product, a.log2_macs) for a in ACCELERATORS.values()}) == len(ACCELERATORS)


def test_the_drivers_folder_lies_beside_a_file() -> None:
    said = "ethos-u55-128,memory=Sram_Only,driver="
    assert BACKEND.beside(f"{said}../d", Path("/p")) == f"{said}/p/../d" and BACKEND.folder(f"{said}../d") == "../d"
    assert BACKEND.beside("ethos-u55-128", Path("/p")) == "ethos-u55-128" and not BACKEND.folder("ethos-u55-128")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "stands for several accelerators"),
        ("ethos-u85-256", "there is no accelerator 'ethos-u85-256' here"),
        ("ethos-u55-128,fast", "'fast' says nothing"),
        ("ethos-u55-128,driver=", "names no folder"),
        ("ethos-u55-128,memory=Sram_Only,memory=Shared_Sram", "says nothing"),
        ("ethos-u55-128,memory=Fast", "no memory mode 'Fast'"),
        ("ethos-u55-128,system=a b", "is no name of a system"),
        ("ethos-u55-128,memory=Dedicated_Sram", "has no memory of its own"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text)


def test_without_vela_there_is_a_word_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolError, match="Vela, Arm's compiler for Ethos-U, is not installed") as caught:
        vela.require()
    assert caught.value.hint == "pip install 'microc[ethos-u]'"
