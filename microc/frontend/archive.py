"""Zip archives and HDF5, which several formats are."""

from __future__ import annotations

import io
import zipfile

ZIP = b"PK\x03\x04"
HDF5 = b"\x89HDF\r\n\x1a\n"
"""What each starts with."""


def members(data: bytes) -> list[str]:
    """The names of what an archive's bytes hold; none where they are no whole archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []
