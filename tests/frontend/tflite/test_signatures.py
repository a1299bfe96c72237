# SPDX-License-Identifier: Apache-2.0
"""Converters' signatures against TFLite's schema: names of options, and the defaults of fields that a file leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tflite

from microc.frontend.signature import REQUIRED, BoundConverter
from microc.frontend.tflite.builtin_options import OperatorOptions
from microc.frontend.tflite.reader import CONVERTERS

DECLARED = {code: c.convert.signature for code, c in CONVERTERS.items() if isinstance(c.convert, BoundConverter)}
BUILTIN = [code for code, signature in DECLARED.items() if signature.attributes and not code.startswith("CUSTOM:")]
DIFFERENT = {
    # Without options the layer has no factor; the schema's default is 0.
    ("SOFTMAX", "beta"),
    # None tells an operator without options from one with an empty vector.
    ("RESHAPE", "new_shape"),
}
ABSENT = (None, "", (), REQUIRED)
"""Defaults that stand for the schema's default of an enumeration or a vector."""


def schema_default(table: str, field: str, method: str) -> Any:
    fields = OperatorOptions(0, None, "options").fields(table)
    read: dict[str, Callable[[str], Any]] = {
        "flag": fields.read_integer,
        "integer": fields.read_integer,
        "integers": fields.read_integers,
        "real": fields.read_float,
        "reals": fields.read_floats,
        "text": fields.read_string,
    }
    return read[method](field)


@pytest.mark.parametrize("code", BUILTIN)
def test_options(code: str) -> None:
    table = CONVERTERS[code].options_table
    assert hasattr(tflite, table)
    for option in DECLARED[code].attributes:
        default = schema_default(table, option.name, option.method)
        if option.default not in ABSENT and (code, option.name) not in DIFFERENT:
            assert option.default == default, option.name


def test_converters_without_options_name_no_table() -> None:
    assert [code for code in DECLARED if CONVERTERS[code].options_table and code not in BUILTIN] == []
    assert len(DECLARED) > 150
