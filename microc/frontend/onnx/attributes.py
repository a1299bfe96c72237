"""The attributes of an ONNX operator: each is checked against the type that is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from microc.dtypes import Array
from microc.errors import ModelError
from microc.frontend.onnx.tensor import array, text

_FLOAT, _INT, _STRING, _TENSOR, _GRAPH, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 5, 6, 7, 8
_KINDS = {_FLOAT: "a float", _INT: "an integer", _STRING: "a string", _TENSOR: "a tensor", _GRAPH: "a graph"}
_KINDS |= {_FLOATS: "a list of floats", _INTS: "a list of integers", _STRINGS: "a list of strings"}


class Attributes:
    """The attributes of one operator, each asked for by name and type."""

    def __init__(self, attributes: Iterable[Any], where: str) -> None:
        self._found: dict[str, Any] = {}
        self._where = where
        for attribute in attributes:
            name = text(attribute.name, where)
            if name in self._found:
                raise ModelError(f"attribute {name!r} is given twice", where=where)
            self._found[name] = attribute

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def protos(self) -> Mapping[str, Any]:
        """The attributes as the file holds them."""
        return self._found

    def names(self) -> tuple[str, ...]:
        return tuple(self._found)

    def _get(self, name: str, kind: int) -> Any:
        attribute = self._found[name]
        if attribute.type != kind or attribute.ref_attr_name:
            raise ModelError(f"attribute {name!r} is not {_KINDS[kind]}", where=self._where)
        return attribute

    def _absent(self, name: str) -> NoReturn:
        raise ModelError(f"attribute {name!r} is missing", where=self._where)

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer; ModelError if it is absent and there is no default."""
        if name in self._found:
            return int(self._get(name, _INT).i)
        return self._absent(name) if default is None else default

    def flag(self, name: str, default: bool = False) -> bool:
        return self.integer(name, int(default)) != 0

    def raw_real(self, name: str, default: float) -> float:
        """A float32, NaN and infinities too."""
        return float(self._get(name, _FLOAT).f) if name in self._found else default

    def real(self, name: str, default: float | None = None) -> float:
        """A finite float32."""
        if name not in self._found:
            return self._absent(name) if default is None else default
        number = float(self._get(name, _FLOAT).f)
        if not math.isfinite(number):
            raise ModelError(f"attribute {name!r} is {number}", where=self._where)
        return number

    def reals(self, name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """Float32 numbers; ModelError where they are absent and have no default."""
        if name not in self._found:
            return self._absent(name) if default is None else default
        return tuple(float(number) for number in self._get(name, _FLOATS).floats)

    def text(self, name: str, default: str) -> str:
        if name not in self._found:
            return default
        return str(self._get(name, _STRING).s.decode("utf-8", "replace"))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, empty if it is absent."""
        if name not in self._found:
            return ()
        return tuple(word.decode("utf-8", "replace") for word in self._get(name, _STRINGS).strings)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        if name in self._found:
            return tuple(int(number) for number in self._get(name, _INTS).ints)
        return self._absent(name) if default is None else default

    def tensor(self, name: str) -> Array:
        """A tensor; ModelError where it is absent."""
        if name not in self._found:
            self._absent(name)
        return array(self._get(name, _TENSOR).t, f"{self._where} attribute {name!r}")

    def graph(self, name: str) -> Any:
        """The protobuf of a graph, which must be there; :func:`decode_body` makes sense of it."""
        return self._get(name, _GRAPH).g if name in self._found else self._absent(name)

    def read_inside(self) -> set[str]:
        """What the operators of graphs in attributes read."""
        graphs = [attribute.g for attribute in self._found.values() if attribute.type == _GRAPH]
        found: set[str] = set()
        while graphs:
            for node in graphs.pop().node:
                found.update(node.input)
                graphs += [attribute.g for attribute in node.attribute if attribute.type == _GRAPH]
        return found
