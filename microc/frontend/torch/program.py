"""The JSON of a PyTorch program, checked word by word before PyTorch makes Python of it.

PyTorch looks up the names of operators in its modules, compiles the names of nodes as Python, evaluates expressions and imports
what descriptions of arguments name. What comes through here has operators of PyTorch's own set only, names that are identifiers,
extents that are numbers, and arguments in tuples, lists and dictionaries. What microc has no use for is left out: guards,
ranges, where a node came from, calls of modules but the outermost.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import MAX_NESTED

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
