# SPDX-License-Identifier: Apache-2.0
"""Declarations of operator attributes (type, bounds, default) as data, and the enumerations of rounding modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any

from microc import numerics
from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import similar_names_hint
from microc.graph.ir import Attr, Graph

# ---- Enumerations of rounding modes: of fixed-point multiplication, of ties, and of a format's quantised operators.
#
# The attribute ``rounding`` of an operator has a value of one of these enumerations. Graphs and files store the values as plain
# strings; the formulas are in :mod:`microc.numerics`.


class DocumentedEnum(StrEnum):
    """Enumeration of an attribute's values. Each value has a ``meaning``, a text that the documentation page of
    operators prints."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> DocumentedEnum:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member

    def __repr__(self) -> str:
        return repr(self.value)


class Multiplier(DocumentedEnum):
    """Rounding modes of the fixed-point multiplication of an integer by a real scale."""

    DOUBLE = (
        "double",
        "int32, rounds twice: the upper half of the product with ties up, its shift with ties away from zero",
    )
    SINGLE = "single", "int32, rounds once: the product of 64 bits is shifted with ties up"
    WIDE = "wide", "int64 sums by a multiplier of 16 bits, rounds once with ties up"

    @property
    def multiply_function(self) -> Callable[..., Any]:
        """The function ``f(x, mantissa, shift, arith)`` that multiplies ``x`` by a fixed-point scale in this rounding
        mode."""
        if self is Multiplier.WIDE:
            return numerics.multiply_by_reduced_factor
        return numerics.multiply_single_rounding if self is Multiplier.SINGLE else numerics.multiply_double_rounding


class Ties(DocumentedEnum):
    """Rounding modes of real numbers that are halfway between two integers."""

    AWAY = "away", "away from zero (TFLite)"
    EVEN = "even", "to the even one (ONNX)"


class Rounding(DocumentedEnum):
    """Arithmetic of quantised surface operators, by the runtime that defines it.

    It selects the rounding of scaled results, and also of quantised clamp bounds and of tables."""

    DOUBLE = "double", "a multiplier in fixed point that rounds twice, reals with ties away from zero (TFLite Micro)"
    SINGLE = "single", "a multiplier in fixed point that rounds once (TFLITE_SINGLE_ROUNDING)"
    LITERT = (
        "litert",
        "as LiteRT's own kernels: a product's sum is scaled once by the exact scale, a quotient by a float",
    )
    EVEN = "even", "a scale in float32, ties to even (ONNX)"
    NONE = "", "numbers that are no quantised ones"

    @property
    def multiplier(self) -> Multiplier:
        """The rounding mode of fixed-point multiplication, for operators that scale integers without float
        arithmetic."""
        return Multiplier.SINGLE if self is Rounding.SINGLE else Multiplier.DOUBLE


# ---- Declarations of attributes: types, bounds and defaults, as data that each operator's definition contains.
#
# The verifier rejects attributes that are not declared (:func:`attribute_error_message`), builders of nodes use the declared
# defaults, and the documentation page of operators prints the declarations. The functions below build declarations and are named
# after the attribute's type: ``integer("number of elements", 1, least=1)``.


class Absent(Enum):
    """Placeholder for the default of an attribute that has none: the attribute is required, or it may be omitted and
    then has no value."""

    REQUIRED = "required"
    OPTIONAL = "may be left out"
    """Omitting the attribute has a meaning that no value of the attribute expresses."""


REQUIRED, OPTIONAL = Absent.REQUIRED, Absent.OPTIONAL


_INT_LIMIT = 1 << 63
"""Limit of integer attributes: from ``-_INT_LIMIT`` to ``2 * _INT_LIMIT - 1``, so that each fits int64 or uint64."""


def _is_int(value: object) -> bool:
    return type(value) is int and -_INT_LIMIT <= value < 2 * _INT_LIMIT


def _is_float(value: object) -> bool:
    return isinstance(value, float)


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float))


def _make_tuple_check(element_check: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the predicate of tuples whose elements all satisfy ``element_check``."""
    return lambda value: isinstance(value, tuple) and all(map(element_check, value))


_TYPE_CHECKS: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "bool": lambda value: type(value) is bool,
        "int": _is_int,
        "float": _is_float,
        "number": _is_number,
        "str": lambda value: isinstance(value, str),
        "dtype": lambda value: isinstance(value, str) and (not value or dtypes.is_valid(value)),
        "graph": lambda value: isinstance(value, Graph),
        "ints": _make_tuple_check(_is_int),
        "numbers": _make_tuple_check(_is_number),
        "names": _make_tuple_check(lambda value: isinstance(value, str)),
        "rows of ints": _make_tuple_check(_make_tuple_check(_is_int)),
        "axis": _is_int,
        "axes": _make_tuple_check(_is_int),
        "axes in order": _make_tuple_check(_is_int),
        "extents": _make_tuple_check(_is_int),
        "ints by axis": _make_tuple_check(_is_int),
        "pairs by axis": _make_tuple_check(_make_tuple_check(_is_int)),
    }
)
"""Predicates that test whether a value has the attribute's type, by name of the type (``Attribute.kind``)."""


@frozen
class Attribute:
    """Declaration of one attribute of an operator: its type, default and permitted values.

    - ``kind``: name of the attribute's type, a key of ``_TYPE_CHECKS``.
    - ``choices``: the only values permitted; empty: no such limit.
    - ``length``: number of elements of a tuple.
    - ``least`` and ``most``: bounds of a number, or of every number in a tuple.
    - ``allows_none``: True if the value may also be None."""

    kind: str
    doc: str
    default: Attr | Absent = REQUIRED
    choices: tuple[Attr, ...] = ()
    length: int | None = None
    least: int | None = None
    allows_none: bool = False
    most: int | None = None

    def find_fault(self, value: object) -> str:
        """Return the reason why ``value`` is invalid for the attribute, or an empty string if it is valid."""
        if value is None and self.allows_none:
            return ""
        if not _TYPE_CHECKS[self.kind](value):
            return f"has a wrong type; expected {self.kind}"
        if self.choices and value not in self.choices:
            return f"has an unknown value; expected one of {', '.join(map(repr, self.choices))}"
        if isinstance(value, tuple) and self.length is not None and len(value) != self.length:
            return f"has a wrong length; got {len(value)} elements, expected {self.length}"
        numbers: Any = value if isinstance(value, tuple) else (value,)
        if self.least is not None and any(number < self.least for number in numbers):
            return f"is too small; expected at least {self.least}"
        if self.most is not None and any(number > self.most for number in numbers):
            return f"is too large; expected at most {self.most}"
        return ""

    def describe(self) -> str:
        """Return the attribute's type, permitted values and default as text for the documentation page of operators."""
        if self.choices:
            text = " ".join(f"`{choice}`" if choice != "" else "empty" for choice in self.choices)
        else:
            text = self.kind if self.length is None else f"{self.length} {self.kind}"
        if isinstance(self.default, Absent):
            return text + (" (may be left out)" if self.default is OPTIONAL else "")
        return f"{text} = {self.default!r}" if self.default != "" or not self.choices else f"{text} = empty"


Attributes = Mapping[str, Attribute]
"""Declarations of an operator's attributes, by attribute name."""


def default_attributes(declared: Attributes) -> dict[str, Attr]:
    """Return the default values of all attributes that have a default, by attribute name."""
    return {name: each.default for name, each in declared.items() if not isinstance(each.default, Absent)}


def attribute_error_message(declared: Attributes, attribute_values: Mapping[str, object]) -> str:
    """Return the reason why the attributes of a node are invalid, or an empty string if all are valid.

    An attribute is invalid if it is not declared, has an invalid value, or is required and missing."""
    for name, value in attribute_values.items():
        if name not in declared:
            known = similar_names_hint(name, declared) or f"it has {', '.join(declared) or 'none'}"
            return f"there is no attribute {name!r}; {known}"
        if reason := declared[name].find_fault(value):
            return f"attribute {name}={value!r} {reason}"
    missing = next((n for n, each in declared.items() if each.default is REQUIRED and n not in attribute_values), "")
    return f"attribute {missing!r} is missing" if missing else ""


# ---------------------------------------------------------------- declarations by type


def flag(doc: str, default: bool | Absent = False) -> Attribute:
    """Declare a boolean attribute."""
    return Attribute("bool", doc, default)


def integer(
    doc: str, default: int | Absent | None = REQUIRED, least: int | None = None, most: int | None = None
) -> Attribute:
    """Declare an integer attribute. If ``default`` is None, None is permitted as a value, too."""
    return Attribute("int", doc, default, least=least, allows_none=default is None, most=most)


def exponent(doc: str, default: int | Absent | None = REQUIRED, least: int = -31, most: int = 30) -> Attribute:
    """Declare an attribute that is the binary exponent of a scale of a 32-bit number: a left shift if positive, a right
    shift if negative."""
    return integer(doc, default, least, most)


def mantissa(doc: str, default: int | Absent | None = REQUIRED, most: int = (1 << 31) - 1) -> Attribute:
    """Declare an attribute that is the fixed-point mantissa of a scale, an integer from 0 to ``most``."""
    return integer(doc, default, 0, most)


def real(doc: str, default: float | Absent | None = REQUIRED) -> Attribute:
    """Declare a float attribute. If ``default`` is None, None is permitted as a value, too."""
    return Attribute("float", doc, default, allows_none=default is None)


def number(doc: str, default: float | Absent = REQUIRED) -> Attribute:
    """Declare an attribute that is the value of a tensor element: an int, a float or a bool."""
    return Attribute("number", doc, default)


def choice(doc: str, *choices: str, default: str | Absent = REQUIRED) -> Attribute:
    """Declare a string attribute that must be one of ``choices``."""
    return Attribute("str", doc, default, choices)


def enum_choice(doc: str, *members: DocumentedEnum, default: DocumentedEnum) -> Attribute:
    """Declare an attribute whose values are ``members`` of an enumeration; their meanings are appended to
    ``doc``."""
    meanings = "; ".join(f"{f'`{each}`' if each else 'empty'}: {each.meaning}" for each in members)
    return choice(f"{doc}. {meanings}", *members, default=default)


def algorithm_choice(*names: str) -> Attribute:
    """Declare the attribute ``algorithm`` of an operator that has several algorithms (``OpDef.algorithms``).

    Its value is empty (the compiler selects an algorithm), ``direct``, or one of ``names``."""
    return choice("algorithm; empty: the compiler chooses", "", "direct", *names, default="")


def element_type(doc: str = "of the result", default: str | Absent = REQUIRED) -> Attribute:
    """Declare an attribute that is the name of a dtype, or an empty string."""
    return Attribute("dtype", doc, default)


def integers(
    doc: str,
    default: tuple[int, ...] | Absent = REQUIRED,
    *,
    length: int | None = None,
    least: int | None = None,
    most: int | None = None,
) -> Attribute:
    """Declare an attribute that is a tuple of integers; ``least`` and ``most`` bound each of them."""
    return Attribute("ints", doc, default, length=length, least=least, most=most)


def numbers(doc: str, default: tuple[float, ...] | Absent = REQUIRED) -> Attribute:
    """Declare an attribute that is a tuple of numbers."""
    return Attribute("numbers", doc, default)


def names(doc: str, default: tuple[str, ...] | Absent = REQUIRED) -> Attribute:
    """Declare an attribute that is a tuple of strings."""
    return Attribute("names", doc, default)


def int_rows(doc: str) -> Attribute:
    """Declare an attribute that is a tuple of tuples of integers."""
    return Attribute("rows of ints", doc)


def subgraph(doc: str) -> Attribute:
    """Declare an attribute that is a graph."""
    return Attribute("graph", doc)


def one_axis(
    doc: str = "axis; negative numbers count from the end", default: int | Absent | None = REQUIRED
) -> Attribute:
    """Declare an attribute that is the index of an axis of the first operand.

    If ``default`` is None, None is permitted as a value, too."""
    return Attribute("axis", doc, default, allows_none=default is None)


def some_axes(doc: str, *, in_order: bool = False) -> Attribute:
    """Declare an attribute that is a tuple of axis indices of the first operand.

    The axes are a set, or with ``in_order`` a sequence whose order matters (a permutation)."""
    return Attribute("axes in order" if in_order else "axes", doc)


def result_extents(doc: str) -> Attribute:
    """Declare an attribute that is the shape of the result."""
    return Attribute("extents", doc, least=0)


def ints_by_axis(doc: str, least: int) -> Attribute:
    """Declare an attribute that has one integer, at least ``least``, for each axis of the first operand."""
    return Attribute("ints by axis", doc, least=least)


def int_pairs_by_axis(doc: str) -> Attribute:
    """Declare an attribute that has a pair of integers for each axis of the first operand: one for its start, one for
    its end."""
    return Attribute("pairs by axis", doc)


# ---------------------------------------------------------------- attributes shared by operators

ACTIVATION = choice(
    "activation function of the result", "", "relu", "relu6", "relu_n1_to_1", "tanh", "sigmoid", default=""
)
"""Attribute of operators with a fused activation function."""
_OF_FORMATS = (Rounding.DOUBLE, Rounding.SINGLE, Rounding.EVEN, Rounding.NONE)
ROUNDING = enum_choice("of quantised results", *_OF_FORMATS, default=Rounding.DOUBLE)
ROUNDING_LITERT = enum_choice("of quantised results", *_OF_FORMATS, Rounding.LITERT, default=Rounding.DOUBLE)
MULTIPLIER_ROUNDING = enum_choice("of what is scaled", Multiplier.DOUBLE, Multiplier.SINGLE, default=Multiplier.DOUBLE)
DYNAMIC = choice(
    "quantisation of the data by row at run time, for int8 weights",
    "asymmetric",
    "symmetric",
    default=OPTIONAL,
)
REDUCTION = choice(
    "how elements at equal indices are combined; empty: the last one remains",
    "",
    "add",
    "mul",
    "max",
    "min",
    default="",
)
INDEX = choice("dtype of the indices", "int32", "int64", default="int64")
SPATIAL: Attributes = MappingProxyType(
    {
        "strides": integers("of each spatial axis", least=1),
        "padding": integers("before each spatial axis, then behind each"),
        "dilation": integers("of each spatial axis", least=1),
    }
)
"""Attributes of the windows of convolutions and pooling."""
LAYOUT = choice("of the data", "NHWC", "NCHW", default="NHWC")
SURFACE: Attributes = MappingProxyType({"rounding": ROUNDING})
ACTIVATED: Attributes = MappingProxyType({"activation": ACTIVATION, "rounding": ROUNDING})
STORED: Attributes = MappingProxyType(
    {
        "zero_point": integer("added to the scaled number"),
        "minimum": integer("of the result, as stored"),
        "maximum": integer("of the result, as stored"),
        "out_dtype": element_type(),
    }
)
"""Attributes that describe how a scaled result is stored: offset, clamp bounds and dtype."""
SCALED: Attributes = MappingProxyType(
    {"multiplier": mantissa("the scale's mantissa, Q0.31"), "shift": exponent("its exponent, positive to the left")}
)
"""Attributes of a fixed-point scale: its mantissa and its exponent."""
