"""Attributes of operators as data, and the choices of rounding."""

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
# The attribute ``rounding`` of an operator takes values of one of them. Graphs and files hold the values as plain strings; the
# formulas are in :mod:`microc.numerics`.


class DocumentedEnum(StrEnum):
    """Enumeration of an attribute's values, each with its meaning, which the page of operators prints."""

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
    def times(self) -> Callable[..., Any]:
        """The function ``f(x, mantissa, shift, arith)`` that multiplies ``x`` by mantissa and shift in this rounding mode."""
        if self is Multiplier.WIDE:
            return numerics.multiply_by_reduced_factor
        return numerics.multiply_single_rounding if self is Multiplier.SINGLE else numerics.multiply_double_rounding


class Ties(DocumentedEnum):
    """Rounding of real numbers that lie halfway between two integers."""

    AWAY = "away", "away from zero (TFLite)"
    EVEN = "even", "to the even one (ONNX)"


class Rounding(DocumentedEnum):
    """Arithmetic of quantised surface operators, named after the runtime that defines it; clamp bounds and tables follow
    it."""

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
        """The rounding mode of fixed-point multiplication, for operators that scale integers without floats."""
        return Multiplier.SINGLE if self is Rounding.SINGLE else Multiplier.DOUBLE


# ---- Declarations of attributes: types, bounds and defaults, beside the operator, as data.
#
# The verifier rejects what is not declared (:meth:`Attribute.fault`), builders of nodes take the defaults from here, and the
# page of operators prints it. The functions below that are named after types build them: ``integer("how many", 1, least=1)``.


class Absent(Enum):
    """Placeholder for an attribute's default: the attribute is required, or it may be left out and then has no value."""

    REQUIRED = "required"
    OPTIONAL = "may be left out"
    """Leaving the attribute out means something that no value expresses."""


REQUIRED, OPTIONAL = Absent.REQUIRED, Absent.OPTIONAL


_INT_LIMIT = 1 << 63
"""Bound of integers: they must fit int64 or uint64, as extents and bounds of uint64 do."""


def _is_int(value: object) -> bool:
    return type(value) is int and -_INT_LIMIT <= value < 2 * _INT_LIMIT


def _is_float(value: object) -> bool:
    return isinstance(value, float)


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float))


def _tuple_check(element_check: Callable[[object], bool]) -> Callable[[object], bool]:
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
        "ints": _tuple_check(_is_int),
        "numbers": _tuple_check(_is_number),
        "names": _tuple_check(lambda value: isinstance(value, str)),
        "rows of ints": _tuple_check(_tuple_check(_is_int)),
        "axis": _is_int,
        "axes": _tuple_check(_is_int),
        "axes in order": _tuple_check(_is_int),
        "extents": _tuple_check(_is_int),
        "ints by axis": _tuple_check(_is_int),
        "pairs by axis": _tuple_check(_tuple_check(_is_int)),
    }
)


@frozen
class Attribute:
    """Declaration of one attribute of an operator.

    ``kind``: the attribute's type, a key of ``_TYPE_CHECKS``. ``choices``: the only values permitted. ``length``: of a
    tuple. ``least`` and ``most``: bounds of a number, or of every number in a tuple. ``nothing``: None is permitted,
    too."""

    kind: str
    doc: str
    default: Attr | Absent = REQUIRED
    choices: tuple[Attr, ...] = ()
    length: int | None = None
    least: int | None = None
    nothing: bool = False
    most: int | None = None

    def fault(self, value: object) -> str:
        """Return why ``value`` is invalid for the attribute, or an empty string if it is valid."""
        if value is None and self.nothing:
            return ""
        if not _TYPE_CHECKS[self.kind](value):
            return f"is not of kind {self.kind}"
        if self.choices and value not in self.choices:
            return f"is none of {', '.join(map(repr, self.choices))}"
        if isinstance(value, tuple) and self.length is not None and len(value) != self.length:
            return f"has {len(value)} elements, not {self.length}"
        numbers: Any = value if isinstance(value, tuple) else (value,)
        if self.least is not None and any(number < self.least for number in numbers):
            return f"is less than {self.least}"
        if self.most is not None and any(number > self.most for number in numbers):
            return f"is more than {self.most}"
        return ""

    def spelled(self) -> str:
        """Describe type, values and default for the page of operators."""
        if self.choices:
            text = " ".join(f"`{choice}`" if choice != "" else "empty" for choice in self.choices)
        else:
            text = self.kind if self.length is None else f"{self.length} {self.kind}"
        if isinstance(self.default, Absent):
            return text + (" (may be left out)" if self.default is OPTIONAL else "")
        return f"{text} = {self.default!r}" if self.default != "" or not self.choices else f"{text} = empty"


Attributes = Mapping[str, Attribute]


def default_attributes(declared: Attributes) -> dict[str, Attr]:
    """Return the default values of all attributes that have one, by attribute name."""
    return {name: each.default for name, each in declared.items() if not isinstance(each.default, Absent)}


def attribute_error_message(declared: Attributes, attribute_values: Mapping[str, object]) -> str:
    """Return why a node's attributes are invalid (one unknown, missing or out of range), or an empty string."""
    for name, value in attribute_values.items():
        if name not in declared:
            known = similar_names_hint(name, declared) or f"it has {', '.join(declared) or 'none'}"
            return f"there is no attribute {name!r}; {known}"
        if reason := declared[name].fault(value):
            return f"attribute {name}={value!r} {reason}"
    missing = next((n for n, each in declared.items() if each.default is REQUIRED and n not in attribute_values), "")
    return f"attribute {missing!r} is missing" if missing else ""


# ---------------------------------------------------------------- declarations by type


def flag(doc: str, default: bool | Absent = False) -> Attribute:
    return Attribute("bool", doc, default)


def integer(
    doc: str, default: int | Absent | None = REQUIRED, least: int | None = None, most: int | None = None
) -> Attribute:
    """Declare an integer attribute. If ``default`` is None, None is also a value."""
    return Attribute("int", doc, default, least=least, nothing=default is None, most=most)


def exponent(doc: str, default: int | Absent | None = REQUIRED, least: int = -31, most: int = 30) -> Attribute:
    """Declare a binary exponent of a 32-bit number: a left shift if positive, a right shift if negative."""
    return integer(doc, default, least, most)


def mantissa(doc: str, default: int | Absent | None = REQUIRED, most: int = (1 << 31) - 1) -> Attribute:
    """Declare the fixed-point mantissa of a scale, an integer from 0 to ``most``."""
    return integer(doc, default, 0, most)


def real(doc: str, default: float | Absent | None = REQUIRED) -> Attribute:
    """Declare a float attribute. If ``default`` is None, None is also a value."""
    return Attribute("float", doc, default, nothing=default is None)


def number(doc: str, default: float | Absent = REQUIRED) -> Attribute:
    """Declare a number that stands for an element of a tensor: an int, a float or a bool."""
    return Attribute("number", doc, default)


def choice(doc: str, *choices: str, default: str | Absent = REQUIRED) -> Attribute:
    return Attribute("str", doc, default, choices)


def enum_choice(doc: str, *among: DocumentedEnum, default: DocumentedEnum) -> Attribute:
    """Declare an attribute with the values ``among`` of an enumeration, whose meanings are appended to ``doc``."""
    meanings = "; ".join(f"{f'`{each}`' if each else 'empty'}: {each.meaning}" for each in among)
    return choice(f"{doc}. {meanings}", *among, default=default)


def algorithm_choice(*names: str) -> Attribute:
    """Declare the attribute ``algorithm`` of an operator with several algorithms (``OpDef.algorithms``)."""
    return choice("how it is computed; empty: open", "", "direct", *names, default="")


def element_type(doc: str = "of the result", default: str | Absent = REQUIRED) -> Attribute:
    """Declare the name of a dtype, or an empty string."""
    return Attribute("dtype", doc, default)


def integers(
    doc: str,
    default: tuple[int, ...] | Absent = REQUIRED,
    *,
    length: int | None = None,
    least: int | None = None,
    most: int | None = None,
) -> Attribute:
    return Attribute("ints", doc, default, length=length, least=least, most=most)


def numbers(doc: str, default: tuple[float, ...] | Absent = REQUIRED) -> Attribute:
    return Attribute("numbers", doc, default)


def names(doc: str, default: tuple[str, ...] | Absent = REQUIRED) -> Attribute:
    return Attribute("names", doc, default)


def int_rows(doc: str) -> Attribute:
    """Declare a tuple of tuples of ints."""
    return Attribute("rows of ints", doc)


def subgraph(doc: str) -> Attribute:
    return Attribute("graph", doc)


def one_axis(
    doc: str = "which axis; negative ones count from the end", default: int | Absent | None = REQUIRED
) -> Attribute:
    """Declare the index of an axis of the first operand. If ``default`` is None, None is also a value."""
    return Attribute("axis", doc, default, nothing=default is None)


def some_axes(doc: str, *, in_order: bool = False) -> Attribute:
    """Declare indices of axes of the first operand: a set, or (``in_order``) a sequence whose order matters."""
    return Attribute("axes in order" if in_order else "axes", doc)


def result_extents(doc: str) -> Attribute:
    """Declare the extents of the result."""
    return Attribute("extents", doc, least=0)


def ints_by_axis(doc: str, least: int) -> Attribute:
    """Declare one integer for each axis of the first operand."""
    return Attribute("ints by axis", doc, least=least)


def int_pairs_by_axis(doc: str) -> Attribute:
    """Declare a pair of integers for each axis of the first operand, one for either end."""
    return Attribute("pairs by axis", doc)


# ---------------------------------------------------------------- attributes shared by operators

ACTIVATION = choice("what is applied to the result", "", "relu", "relu6", "relu_n1_to_1", "tanh", "sigmoid", default="")
_OF_FORMATS = (Rounding.DOUBLE, Rounding.SINGLE, Rounding.EVEN, Rounding.NONE)
ROUNDING = enum_choice("of quantised results", *_OF_FORMATS, default=Rounding.DOUBLE)
ROUNDING_LITERT = enum_choice("of quantised results", *_OF_FORMATS, Rounding.LITERT, default=Rounding.DOUBLE)
MULTIPLIER_ROUNDING = enum_choice("of what is scaled", Multiplier.DOUBLE, Multiplier.SINGLE, default=Multiplier.DOUBLE)
DYNAMIC = choice(
    "of bytes as weights: the data are quantised by row when the network runs",
    "asymmetric",
    "symmetric",
    default=OPTIONAL,
)
REDUCTION = choice("of elements that meet; empty: the last stays", "", "add", "mul", "max", "min", default="")
INDEX = choice("of the places", "int32", "int64", default="int64")
SPATIAL: Attributes = MappingProxyType(
    {
        "strides": integers("of each spatial axis", least=1),
        "padding": integers("before each spatial axis, then behind each"),
        "dilation": integers("of each spatial axis", least=1),
    }
)
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
"""Attributes of the result of scaling: offset, clamp and dtype."""
SCALED: Attributes = MappingProxyType(
    {"multiplier": mantissa("the scale's mantissa, Q0.31"), "shift": exponent("its exponent, positive to the left")}
)
