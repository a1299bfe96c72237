"""The archive of a PyTorch program (``.pt2``), made harmless: what goes to PyTorch is written here, and nothing in it runs.

``torch.export.load`` trusts its file. It unpickles (sample inputs, old and odd weights, custom objects), which runs what the
pickle says; it evaluates symbolic extents and guards as Python, imports the modules that descriptions of arguments name, and
compiles the names of nodes as Python. So a new archive is made of the parts that are plain data, each checked: weights as raw
bytes, and the program without what microc has no use for. Anything else is refused. PyTorch is not needed here.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import MAX_STORED, read_json
from microc.frontend.torch.program import checked_program, flat

SUFFIX = "models/model.json"
_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_SAMPLES = "data/sample_inputs/model.pt"
_MOST_JSON = 64 << 20
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 12: 1, 13: 2, 28: 2}
"""Bytes of an element by PyTorch's number of its dtype: integers, floats and bool."""
_STRIDED = 7
_AGAIN = "load and save it with PyTorch 2.9 or later, or compile the object: microc.compile(program)"


def is_archive(names: list[str]) -> bool:
    """Whether an archive with such members is an exported program, of this form or an older one."""
    return any(name.endswith((f"/{SUFFIX}", "serialized_exported_program.json")) for name in names)


def harmless(data: bytes, file_name: str) -> bytes:
    """An archive that holds the same program and nothing that could run.

    ``data``: the whole file. Raises ModelError where it is broken, UnsupportedError where parts can only be had by unpickling or
    by evaluating Python.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _Members(archive, file_name)
            made = {
                "archive_format": b"pt2",
                "archive_version": members.read("archive_version"),
                "byteorder": members.read("byteorder"),
                ".data/version": members.read(".data/version"),
                SUFFIX: _json(checked_program(members.json(SUFFIX), file_name)),
                **_payload(members, _WEIGHTS, "weights"),
                **_payload(members, _CONSTANTS, "constants"),
                _SAMPLES: b"",
            }
    except (zipfile.BadZipFile, KeyError, TypeError, AttributeError, IndexError, ValueError, *_ZIP) as error:
        raise ModelError(f"the program's archive is broken: {error!r}", where=file_name) from error
    if made["byteorder"] != b"little":
        raise UnsupportedError("weights stored big end first", where=file_name, hint=_AGAIN)
    return _written(made)


_ZIP = (NotImplementedError, RuntimeError, EOFError, OverflowError, RecursionError)
"""What archives raise that are encrypted, packed in a way that is not known or cut off, and JSON that is nested too deeply."""


class _Members:
    """The members of the archive that are asked for, by their names below the one folder that holds all."""

    def __init__(self, archive: zipfile.ZipFile, file_name: str) -> None:
        self.archive, self.file = archive, file_name
        infos = archive.infolist()
        names = [info.filename for info in infos]
        roots = [name.removesuffix(SUFFIX) for name in names if name.endswith(f"/{SUFFIX}")]
        if len(roots) != 1 or len(set(names)) != len(names):
            older = any(name.endswith("serialized_exported_program.json") for name in names)
            if older:
                raise UnsupportedError("the program was saved with its weights pickled", where=file_name, hint=_AGAIN)
            raise ModelError("the archive holds no program, or several", where=file_name)
        if sum(info.file_size for info in infos) > MAX_STORED:
            raise ModelError("the archive unfolds to too many bytes", where=file_name)
        self.root = roots[0]
        self.sizes = {info.filename.removeprefix(self.root): info.file_size for info in infos}

    def read(self, name: str) -> bytes:
        return self.archive.read(self.root + name)

    def json(self, name: str) -> Any:
        if self.sizes.get(name, 0) > _MOST_JSON:
            raise ModelError(f"{name} has {self.sizes[name]} bytes", where=self.file)
        return read_json(self.read(name), f"{self.file} {name}")


def _payload(members: _Members, folder: str, what: str) -> dict[str, bytes]:
    """The tensors in a folder and their description, all of them stored as they are."""
    name = f"{folder}model_{what}_config.json"
    if f"{folder}model.pt" in members.sizes:
        raise UnsupportedError(f"the {what} are pickled", where=members.file, hint=_AGAIN)
    config = members.json(name)
    found: dict[str, bytes] = {}
    total = 0
    for key, entry in config["config"].items():
        where = f"{members.file} {what} {key!r}"
        path = str(entry["path_name"])
        if entry["use_pickle"] is not False or not path.startswith(("weight_", "tensor_")):
            raise UnsupportedError("it is pickled: to read it is to run it", where=where, hint=_AGAIN)
        if not path.partition("_")[2].isdecimal():
            raise ModelError(f"it is kept in {path!r}", where=where)
        total += _checked_meta(entry["tensor_meta"], members.sizes[folder + path], where)
        if total > MAX_STORED:
            raise ModelError(f"the {what} unfold to more than {MAX_STORED} bytes", where=members.file)
        if folder + path not in found:
            found[folder + path] = members.read(folder + path)
    return {name: _json(config), **found}


def _checked_meta(meta: Mapping[str, Any], stored: int, where: str) -> int:
    """The bytes of a tensor that lies within ``stored`` bytes as its extents and strides say."""
    width = _BYTES.get(meta["dtype"], 0)
    if not width or meta["layout"] != _STRIDED or meta["device"]["type"] not in ("cpu", "cuda"):
        raise UnsupportedError("a tensor of no plain dtype, layout or device", where=where, hint="save it on the CPU")
    sizes, strides = flat(meta["sizes"]), flat(meta["strides"])
    (offset,) = flat([meta["storage_offset"]])
    if len(sizes) != len(strides) or min((offset, *sizes, *strides)) < 0:
        raise ModelError(f"extents {sizes}, strides {strides}", where=where)
    elements = 1
    for extent in sizes:
        elements *= extent
    last = offset + sum((extent - 1) * stride for extent, stride in zip(sizes, strides, strict=True))
    if elements and (last + 1) * width > stored:
        raise ModelError(f"{stored} bytes for extents {sizes}, strides {strides} from {offset} on", where=where)
    return elements * width


def _json(x: Any) -> bytes:
    return json.dumps(x).encode()


def _written(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"model/{name}"), content)
    return file.getvalue()
