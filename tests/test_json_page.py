# SPDX-License-Identifier: Apache-2.0
"""docs/json.md and its schema say what commands print with --json."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from microc.cli import main
from microc.cli.parser import COMMANDS
from tests import json_schemas
from tests.device.smoke import needs


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads(json_schemas.SCHEMA.read_text(encoding="utf-8"))


def test_every_command_has_a_schema(schema: Any) -> None:
    assert set(schema["$defs"]) == set(COMMANDS) == set(json_schemas.COMMANDS)


def test_the_page_shows_the_schema(schema: Any) -> None:
    assert json_schemas.PAGE.read_text(encoding="utf-8") == json_schemas.page(schema)


@needs("arm-none-eabi-gcc", "qemu-system-arm")  # of a board that takes a network
def test_what_commands_print_is_of_it(schema: Any) -> None:
    with json_schemas.prepared():
        for command, words in json_schemas.COMMANDS.items():
            found = json_schemas.said(command, words)
            jsonschema.validate(found, schema["$defs"][command])
            assert set(found) == set(schema["$defs"][command]["properties"]), (
                f"python -m tests.json_schemas ({command})"
            )


def test_a_refusal_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boards", "show", "x", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert set(error) == {"code", "what", "where", "hint"} and all(isinstance(text, str) for text in error.values())
