"""The archive of a PyTorch program, checked before PyTorch sees it."""

from __future__ import annotations

import io
import json
import keyword
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import MAX_NESTED, MAX_STORED, read_json

# ---- The JSON of a PyTorch program, checked word by word before PyTorch makes Python of it.
#
# PyTorch looks up the names of operators in its modules, compiles the names of nodes as Python, evaluates expressions and imports
# what descriptions of arguments name. What comes through here has operators of PyTorch's own set only, names that are
# identifiers, extents that are numbers, and arguments in tuples, lists and dictionaries. What microc has no use for is left
# out: guards, ranges, where a node came from, calls of modules but the outermost.

_TARGET = re.compile(r"torch\.ops\.(aten|prims|quantized_decomposed)\.(\w+)\.\w+", re.ASCII)
_OTHERS = ("_operator.getitem", "torch.ops.higher_order.wrap_with_set_grad_enabled")
"""What is called beside operators: items of several results, and a region without gradients."""
_FILES = ("from_file", "save")
"""Operators that reach files."""
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,999}", re.ASCII)
_PLAIN = re.compile(r"[\w.:+\-/ <>]{0,1000}", re.ASCII)
_PRINTED = ("as_string", "as_strings")
"""Strings that are operands: PyTorch quotes them."""
_REFUSED = {
    "expr_str": ("an extent that is an expression", "export without dynamic shapes"),
    "as_custom_obj": ("an object that is no tensor", "keep tensors in the module only"),
    "custom_obj": ("an object that is no tensor", "keep tensors in the module only"),
    "as_operator": ("an operator as an operand", "let forward() call it"),
}
_TREES = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
_MOST_NODES = 20_000


def checked_program(program: Any, file_name: str) -> dict[str, Any]:
    """The program with nothing in it that runs.

    ``program``: what its JSON holds. Raises UnsupportedError, which lists all operators of others, where it says what only
    Python could tell; ModelError where it is no program. May raise KeyError, TypeError and the like where parts are missing.
    """
    module = program["graph_module"]
    made = {**program, "range_constraints": {}, "guards_code": []}
    made["graph_module"] = {**module, "metadata": {}, "treespec_namedtuple_fields": {}}
    made["graph_module"]["module_call_graph"] = [_outermost(module["module_call_graph"], file_name)]
    checker = _Checker(file_name)
    checker.walk(made, "", 0)
    if checker.foreign:
        lines = [f"{name}: the operator is unknown to microc" for name in checker.foreign]
        raise UnsupportedError(
            lines[0] if len(lines) == 1 else "operators that are not supported:\n  " + "\n  ".join(lines[:40]),
            where=file_name,
            hint="`microc operators` lists those that are known",
        )
    return made


def flat(extents: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Extents that are numbers, of which PyTorch says what they are."""
    found = tuple(extent["as_int"] for extent in extents)
    if any(type(extent) is not int for extent in found):
        raise ValueError(f"extents {found}")
    return found


class _Checker:
    """One walk over the JSON. ``foreign``: the operators that are not PyTorch's own, in order."""

    def __init__(self, file: str) -> None:
        self.file, self.nodes = file, 0
        self.foreign: dict[str, None] = {}

    def walk(self, x: Any, key: str, depth: int) -> None:
        """Look at everything below ``x``, which is found under ``key``; nodes lose what they say of their origin."""
        if depth > MAX_NESTED:
            raise ModelError(f"the program is nested more than {MAX_NESTED} deep", where=self.file)
        if isinstance(x, str):
            self.word(x, key)
        elif isinstance(x, list):
            for item in x:
                self.walk(item, key, depth + 1)
        elif isinstance(x, dict):
            if isinstance(x.get("target"), str):
                self.node(x)
            for name, value in x.items():
                if name in _REFUSED and value is not None:
                    raise UnsupportedError(_REFUSED[name][0], where=self.file, hint=_REFUSED[name][1])
                self.word(name, "")
                self.walk(value, name, depth + 1)

    def node(self, node: dict[str, Any]) -> None:
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise UnsupportedError(f"more than {_MOST_NODES} operators", where=self.file)
        node["metadata"] = {}
        target = node["target"]
        known = _TARGET.fullmatch(target)
        if not (known and known[2] not in _FILES) and target not in _OTHERS:
            self.foreign[ascii(target)] = None

    def word(self, word: str, key: str) -> None:
        """A string: an identifier where it becomes a name, else of letters that mean nothing to Python."""
        if key in _PRINTED or key in ("in_spec", "out_spec", "target"):
            return  # quoted, checked where the call is, refused with the operator
        if key in ("name", "as_name", "forward_arg_names"):
            good = not word or (_IDENTIFIER.fullmatch(word) and not keyword.iskeyword(word))
        else:
            good = _PLAIN.fullmatch(word) is not None
        if not good:
            raise ModelError(f"the name {word[:80]!a} is none", where=self.file)


def _outermost(calls: Sequence[Mapping[str, Any]], file: str) -> dict[str, Any]:
    """What the whole program is called with; how it nests is text, which PyTorch reads once more."""
    found = dict(next(call for call in calls if call["fqn"] == ""))
    for name in ("in_spec", "out_spec"):
        _, tree = json.loads(found["signature"][name])
        _check_tree(tree, file, 0)
    return found


def _check_tree(tree: Mapping[str, Any], file: str, depth: int) -> None:
    """Tuples, lists and dictionaries with words as keys: no class is looked up for these, no module imported."""
    context = json.loads(tree["context"]) if tree["context"] is not None else None
    words = context is None or (isinstance(context, list) and all(isinstance(w, (str, int)) for w in context))
    if tree["type"] not in _TREES or not words or depth > MAX_NESTED:
        raise UnsupportedError(
            f"arguments in {tree['type']!a}", where=file, hint="tuples, lists and dictionaries are read"
        )
    for child in tree["children_spec"]:
        _check_tree(child, file, depth + 1)


# ---- The archive of a PyTorch program (``.pt2``), made harmless: what goes to PyTorch is written here, and nothing
# in it runs.
#
# ``torch.export.load`` trusts its file. It unpickles (sample inputs, old and odd weights, custom objects), which runs what the
# pickle says; it evaluates symbolic extents and guards as Python, imports the modules that descriptions of arguments name, and
# compiles the names of nodes as Python. So a new archive is made of the parts that are plain data, each checked: weights as raw
# bytes, and the program without what microc has no use for. Anything else is refused. PyTorch is not needed here.

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
