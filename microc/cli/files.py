"""Files that commands write beside what they print; whole or not at all."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def check_places(**places: Path | Sequence[Path] | None) -> None:
    """OutputError, before the work, where a file cannot be written that an option of this name asks for."""
    from microc.codegen.files import check_place

    for option, paths in places.items():
        for path in [paths] if isinstance(paths, Path) else paths or ():
            check_place(path, option)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with commas, one row a line."""
    from microc.codegen.files import replacing

    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    from microc.codegen.files import replacing

    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
