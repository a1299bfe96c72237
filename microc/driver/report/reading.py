"""Reports that were saved: the JSON of ``microc report``, or a page, in which the same stands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

from microc.driver import accepted
from microc.driver.report.accuracy import refuse_constant
from microc.driver.report.report import Report
from microc.driver.report.schema import SCHEMA, VERSION
from microc.errors import UsageError
from microc.reading import open_regular, read_text

LARGEST = 256 << 20
"""Bytes of a file that is read."""
_PAGE, _OBJECT = b"<!DOCTYPE html>", b"{"
_EMBEDDED = re.compile(r'<script type="application/json" id="report-data">(.*?)</script>', re.DOTALL)
_HINT = "microc report MODEL --board BOARD -o report.json writes one"


def is_report(path: Path) -> bool:
    """Whether a file looks like one: a page, or an object of JSON. No model does."""
    try:
        with open_regular(path) as file:
            return file.read(64).lstrip().startswith((_PAGE, _OBJECT))
    except OSError:
        return False


def read_report(path: str | Path) -> Report:
    """The report in a file, its page or its JSON. UsageError for what is none, or of another version."""
    file = accepted.path("a report", path)
    try:
        text = read_text(file, LARGEST)
        found = _EMBEDDED.search(text) if text.lstrip().startswith(_PAGE.decode()) else None
        data = json.loads(found[1] if found else text, parse_constant=refuse_constant)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}", where=str(file), hint=_HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is no report", where=str(file), hint=_HINT) from error
    return Report(_checked(data, file))


def _checked(data: Any, file: Path) -> Mapping[str, Any]:
    """The data, which are what a page may show."""
    version = data.get("report_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise UsageError(
            f"{file} is a report of version {version}, this microc knows {VERSION}", where=str(file), hint=_HINT
        )
    try:
        jsonschema.validate(data, SCHEMA)
    except jsonschema.ValidationError as error:
        place = "/".join(map(str, error.absolute_path))
        what = f"{place} is not as it should be" if place else "it lacks what a report has"
        raise UsageError(f"{file} is no report: {what}", where=str(file), hint=_HINT) from error
    kept: dict[str, Any] = {name: value for name, value in data.items() if name not in ("schema_version", "command")}
    return kept
