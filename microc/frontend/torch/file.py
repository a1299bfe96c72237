# SPDX-License-Identifier: Apache-2.0
"""Checker of PyTorch program archives (``.pt2``): rewrites an archive so that loading it with PyTorch executes no code
from the file."""

from __future__ import annotations

import io
import json
import keyword
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_NESTED, MAX_STORED, parse_model_json

# ---- Check of the JSON of a PyTorch program, string by string, before PyTorch generates Python code from it.
#
# When PyTorch loads a program, it looks up the names of operators in its modules, compiles the names of nodes as Python,
# evaluates expressions, and imports modules that the descriptions of arguments name. After the check, operators are PyTorch's
# own, names are identifiers, extents are numbers, and arguments are in tuples, lists and dictionaries. Parts that microc does
# not need are removed: guards, ranges of symbolic extents, metadata of nodes, signatures of inner modules.

_TARGET = re.compile(r"torch\.ops\.(aten|prims|quantized_decomposed)\.(\w+)\.\w+", re.ASCII)
_TORCHAO = re.compile(
    r"torch\.ops\.torchao\.(quantize_affine|dequantize_affine|choose_qparams_affine)\.default", re.ASCII
)
"""Operators of torchao that are PyTorch's own after decomposition, or that microc converts."""
_SUBCLASS = "torch.ops.export.access_subclass_inner_tensor.default"
"""Operator on a tensor subclass, whose content is a pickled object of another library."""
_OTHERS = (
    "_operator.getitem",
    "torch.ops.higher_order.cond",
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
)
"""Allowed targets of calls that are no operators: selection of one of several results, a condition, and a region without
gradients."""
_FILES = ("from_file", "save")
"""Names of ATen operators that access files. They are refused."""
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,999}", re.ASCII)
_PLAIN = re.compile(r"[\w.:+\-/ <>]{0,1000}", re.ASCII)
_PRINTED = ("as_string", "as_strings")
"""JSON keys of string arguments. Any text is allowed there, because PyTorch quotes it."""
_REFUSED = {
    "expr_str": ("an extent that is an expression", "export without dynamic shapes"),
    "as_custom_obj": ("an object that is no tensor", "keep tensors in the module only"),
    "custom_obj": ("an object that is no tensor", "keep tensors in the module only"),
    "as_operator": ("an operator as an operand", "let forward() call it"),
}
_TREES = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
_MOST_NODES = 20_000


def check_program(program: Any, file_name: str) -> dict[str, Any]:
    """Check a program; return it without the parts that PyTorch would evaluate or that microc does not need.

    ``program``: the parsed JSON. Raises UnsupportedError for parts that need evaluation as Python, and for operators
    that are not PyTorch's own; the error lists all of these operators. Raises ModelError for invalid names. May raise
    KeyError, TypeError and similar exceptions if parts are missing.
    """
    module = program["graph_module"]
    reduced = {**program, "range_constraints": {}, "guards_code": []}
    reduced["graph_module"] = {**module, "metadata": {}, "treespec_namedtuple_fields": {}}
    reduced["graph_module"]["module_call_graph"] = [_check_program_signature(module["module_call_graph"], file_name)]
    checker = _ProgramChecker(file_name)
    checker.check_json_value(reduced, "", 0)
    if checker.unknown_operators:
        lines = [f"{name}: the operator is unknown to microc" for name in checker.unknown_operators]
        raise UnsupportedError(
            lines[0] if len(lines) == 1 else "operators that are not supported:\n  " + "\n  ".join(lines[:40]),
            where=file_name,
            hint="use operators that `microc operators` lists",
        )
    return reduced


def parse_extents(extents: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return a list of extents in the JSON, such as a shape, as integers. ValueError if an extent is no integer.

    The JSON stores each number as an object whose key is its type, ``as_int``."""
    values = tuple(extent["as_int"] for extent in extents)
    if any(type(extent) is not int for extent in values):
        raise ValueError(f"extents: got {values}, expected integers")
    return values


class _ProgramChecker:
    """Checker that traverses the JSON of a program.

    ``node_count`` counts the nodes of the program, ``unknown_operators`` collects the names of operators that are not
    PyTorch's own, in order."""

    def __init__(self, file: str) -> None:
        self.file, self.node_count = file, 0
        self.unknown_operators: dict[str, None] = {}

    def check_json_value(self, json_value: Any, json_key: str, depth: int) -> None:
        """Check ``json_value`` and all values nested in it. ``json_key`` is its key in the enclosing JSON object.

        Metadata of nodes is removed in place. Raise an error for a value that is not allowed."""
        if depth > MAX_NESTED:
            raise ModelError(
                f"program: JSON is nested more than {MAX_NESTED} deep, expected at most {MAX_NESTED}", where=self.file
            )
        if isinstance(json_value, str):
            self.check_string(json_value, json_key)
        elif isinstance(json_value, list):
            for item in json_value:
                self.check_json_value(item, json_key, depth + 1)
        elif isinstance(json_value, dict):
            if isinstance(json_value.get("target"), str):
                self.check_node(json_value)
            for name, value in json_value.items():
                if name in _REFUSED and value is not None:
                    raise UnsupportedError(_REFUSED[name][0], where=self.file, hint=_REFUSED[name][1])
                self.check_string(name, "")
                self.check_json_value(value, name, depth + 1)

    def check_node(self, node: dict[str, Any]) -> None:
        """Check the target of a node, the operator that it calls. Collect it in ``unknown_operators`` if it is not
        PyTorch's own."""
        self.node_count += 1
        if self.node_count > _MOST_NODES:
            raise UnsupportedError(
                f"program: got more than {_MOST_NODES} operators, expected at most {_MOST_NODES}", where=self.file
            )
        node["metadata"] = {}
        target = node["target"]
        known = _TARGET.fullmatch(target)
        if target == _SUBCLASS:
            raise UnsupportedError(
                "the program contains tensor subclasses, which are pickled objects; got one, expected plain tensors",
                where=self.file,
                hint="unfold them before saving: torch.export.save(program.run_decompositions({}), file)",
            )
        if not (known and known[2] not in _FILES) and target not in _OTHERS and not _TORCHAO.fullmatch(target):
            self.unknown_operators[ascii(target)] = None

    def check_string(self, string: str, json_key: str) -> None:
        """Check a string of the JSON; ModelError if it is not allowed.

        The value of a key that stores names must be an identifier. Other strings may contain only characters that
        cannot form Python code."""
        if json_key in _PRINTED or json_key in ("in_spec", "out_spec", "target"):
            return  # quoted, checked where the call is, refused with the operator
        if json_key in ("name", "as_name", "forward_arg_names"):
            is_valid = not string or (_IDENTIFIER.fullmatch(string) and not keyword.iskeyword(string))
        else:
            is_valid = _PLAIN.fullmatch(string) is not None
        if not is_valid:
            raise ModelError(f"got the name {string[:80]!a}, expected an identifier or plain text", where=self.file)


def _check_program_signature(module_calls: Sequence[Mapping[str, Any]], file: str) -> dict[str, Any]:
    """Return the call signature of the whole program, after checking the nesting of its arguments.

    ``module_calls``: signatures of all modules of the program. The nesting is described by JSON inside of a string.
    """
    call = dict(next(call for call in module_calls if call["fqn"] == ""))
    for name in ("in_spec", "out_spec"):
        _, tree = json.loads(call["signature"][name])
        _check_argument_tree(tree, file, 0)
    return call


def _check_argument_tree(argument_tree: Mapping[str, Any], file: str, depth: int) -> None:
    """Check a description of nested arguments; UnsupportedError unless they are in tuples, lists and dictionaries.

    For other containers PyTorch would look up a class and import its module."""
    context = json.loads(argument_tree["context"]) if argument_tree["context"] is not None else None
    has_plain_words = context is None or (isinstance(context, list) and all(isinstance(w, (str, int)) for w in context))
    if argument_tree["type"] not in _TREES or not has_plain_words or depth > MAX_NESTED:
        raise UnsupportedError(
            f"forward() arguments: got a container {argument_tree['type']!a}, expected tuple, list or dict",
            where=file,
            hint="pass arguments in tuples, lists and dictionaries",
        )
    for child in argument_tree["children_spec"]:
        _check_argument_tree(child, file, depth + 1)


# ---- A new archive from the checked parts of a PyTorch program archive (``.pt2``).
#
# ``torch.export.load`` trusts its file. It unpickles sample inputs, older and unusual weights, and custom objects, and a pickle
# can execute code. It evaluates symbolic extents and guards as Python, imports modules that descriptions of arguments name, and
# compiles the names of nodes as Python. Therefore microc writes a new archive that contains only checked plain data: weights as
# raw bytes, and the checked program. Files that need anything else are refused. This module does not import PyTorch.

SUFFIX = "models/model.json"
_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_SAMPLES = "data/sample_inputs/model.pt"
_MOST_JSON = 64 << 20
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 12: 1, 13: 2, 28: 2}
"""Number of bytes of an element, by PyTorch's number of the dtype. Contains integers, floats and bool."""
_STRIDED = 7
_SAVE_AGAIN = "load and save it with PyTorch 2.9 or later, or compile the object: microc.compile(program)"


def is_program_archive(member_names: list[str]) -> bool:
    """Test whether an archive is an exported PyTorch program, of the current format or an older one.

    ``member_names``: names of the archive's members."""
    return any(name.endswith((f"/{SUFFIX}", "serialized_exported_program.json")) for name in member_names)


def sanitise_archive(data: bytes, file_name: str) -> bytes:
    """Return the bytes of a new archive with the same program, which PyTorch can load without executing code from the
    file.

    ``data``: bytes of the whole file. Raises ModelError if the archive is corrupt, UnsupportedError for parts that can
    only be read by unpickling or by evaluating Python.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _ArchiveMembers(archive, file_name)
            parts = {
                "archive_format": b"pt2",
                "archive_version": members.read("archive_version"),
                "byteorder": members.read("byteorder"),
                ".data/version": members.read(".data/version"),
                SUFFIX: _to_json_bytes(check_program(members.parse_json(SUFFIX), file_name)),
                **_read_raw_tensors(members, _WEIGHTS, "weights"),
                **_read_raw_tensors(members, _CONSTANTS, "constants"),
                _SAMPLES: b"",
            }
    except (zipfile.BadZipFile, KeyError, TypeError, AttributeError, IndexError, ValueError, *_ARCHIVE_ERRORS) as error:
        raise ModelError(f"the program's archive is broken: {error!r}", where=file_name) from error
    if parts["byteorder"] != b"little":
        raise UnsupportedError(
            "weights: got big-endian byte order, expected little-endian", where=file_name, hint=_SAVE_AGAIN
        )
    return _write_archive(parts)


_ARCHIVE_ERRORS = (NotImplementedError, RuntimeError, EOFError, OverflowError, RecursionError)
"""Exceptions that Python raises for archives that are encrypted, truncated or compressed by an unknown method, and for
JSON that is nested too deeply."""


class _ArchiveMembers:
    """Members of a program's archive, whose names begin with one common folder. Methods take names without this folder.

    ``byte_counts`` contains the uncompressed size of each member in bytes."""

    def __init__(self, archive: zipfile.ZipFile, file_name: str) -> None:
        self.archive, self.file = archive, file_name
        infos = archive.infolist()
        names = [info.filename for info in infos]
        roots = [name.removesuffix(SUFFIX) for name in names if name.endswith(f"/{SUFFIX}")]
        if len(roots) != 1 or len(set(names)) != len(names):
            older = any(name.endswith("serialized_exported_program.json") for name in names)
            if older:
                raise UnsupportedError(
                    "the program was saved with its weights pickled", where=file_name, hint=_SAVE_AGAIN
                )
            raise ModelError(
                f"got an archive with {len(roots)} programs, expected one, and each name once", where=file_name
            )
        if sum(info.file_size for info in infos) > MAX_STORED:
            raise ModelError(
                f"archive: got more than {MAX_STORED} bytes after decompression, expected at most {MAX_STORED}",
                where=file_name,
            )
        self.root = roots[0]
        self.byte_counts = {info.filename.removeprefix(self.root): info.file_size for info in infos}

    def read(self, name: str) -> bytes:
        """Return the bytes of the member ``name``."""
        return self.archive.read(self.root + name)

    def parse_json(self, name: str) -> Any:
        """Parse the member ``name`` as JSON; ModelError if it has more than _MOST_JSON bytes."""
        if self.byte_counts.get(name, 0) > _MOST_JSON:
            raise ModelError(
                f"{name} has {self.byte_counts[name]} bytes, expected at most {_MOST_JSON}", where=self.file
            )
        return parse_model_json(self.read(name), f"{self.file} {name}")


def _read_raw_tensors(members: _ArchiveMembers, folder: str, tensor_group: str) -> dict[str, bytes]:
    """Return the archive members with the tensors of ``folder``, by name, and the JSON file that describes the tensors.

    ``tensor_group`` is ``weights`` or ``constants``. Raise UnsupportedError if a tensor is pickled instead of stored as
    raw bytes."""
    name = f"{folder}model_{tensor_group}_config.json"
    if f"{folder}model.pt" in members.byte_counts:
        raise UnsupportedError(
            f"the {tensor_group} are pickled, expected raw bytes", where=members.file, hint=_SAVE_AGAIN
        )
    config = members.parse_json(name)
    tensors: dict[str, bytes] = {}
    total = 0
    for key, entry in config["config"].items():
        where = f"{members.file} {tensor_group} {key!r}"
        path = str(entry["path_name"])
        if entry["use_pickle"] is not False or not path.startswith(("weight_", "tensor_")):
            raise UnsupportedError(
                "the tensor is pickled, and reading a pickle runs its code", where=where, hint=_SAVE_AGAIN
            )
        if not path.partition("_")[2].isdecimal():
            raise ModelError(f"the tensor is stored in {path!r}, expected a name like weight_0", where=where)
        total += _check_tensor_byte_count(entry["tensor_meta"], members.byte_counts[folder + path], where)
        if total > MAX_STORED:
            raise ModelError(
                f"{tensor_group}: got more than {MAX_STORED} bytes in total, expected at most {MAX_STORED}",
                where=members.file,
            )
        if folder + path not in tensors:
            tensors[folder + path] = members.read(folder + path)
    return {name: _to_json_bytes(config), **tensors}


def _check_tensor_byte_count(tensor_meta: Mapping[str, Any], stored_byte_count: int, where: str) -> int:
    """Return the number of bytes of a tensor with all elements; ModelError if extents and strides need more than
    ``stored_byte_count``.

    ``tensor_meta``: JSON with the tensor's dtype, layout, device, sizes, strides and offset."""
    width = _BYTES.get(tensor_meta["dtype"], 0)
    if not width or tensor_meta["layout"] != _STRIDED or tensor_meta["device"]["type"] not in ("cpu", "cuda"):
        what = f"got dtype {tensor_meta['dtype']!r}, layout {tensor_meta['layout']!r}, device {tensor_meta['device']['type']!r}"
        raise UnsupportedError(
            f"the tensor: {what}", where=where, hint="save it as a strided tensor of numbers on the CPU"
        )
    sizes, strides = parse_extents(tensor_meta["sizes"]), parse_extents(tensor_meta["strides"])
    (offset,) = parse_extents([tensor_meta["storage_offset"]])
    if len(sizes) != len(strides) or min((offset, *sizes, *strides)) < 0:
        raise ModelError(
            f"got extents {sizes}, strides {strides} and offset {offset}, expected equal lengths and no "
            "negative number",
            where=where,
        )
    elements = 1
    for extent in sizes:
        elements *= extent
    last = offset + sum((extent - 1) * stride for extent, stride in zip(sizes, strides, strict=True))
    if elements and (last + 1) * width > stored_byte_count:
        raise ModelError(
            f"got {stored_byte_count} bytes, expected at least {(last + 1) * width} for extents {sizes}, strides "
            f"{strides}, offset {offset}",
            where=where,
        )
    return elements * width


def _to_json_bytes(plain_data: Any) -> bytes:
    """Serialise plain data as JSON; return its bytes."""
    return json.dumps(plain_data).encode()


def _write_archive(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of an uncompressed zip archive, with the members in a folder ``model``."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(f"model/{name}"), content)
    return file.getvalue()
