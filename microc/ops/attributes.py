"""Attributes of operators as data, and the choices of rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any

from microc import numerics
from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import nearest
from microc.graph.ir import Attr, Graph

# ---- How scaled numbers become integers: three questions, an enumeration of the answers to each.
#
# An operator declares in its attribute ``rounding`` which of them it answers. Graphs and files hold answers as plain strings; the
# formulas are those of :mod:`microc.numerics`.


class Answer(StrEnum):
    """A value of an attribute, and what it means."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Answer:
        made = str.__new__(cls, value)
        made._value_, made.meaning = value, meaning
        return made

    def __repr__(self) -> str:
        return repr(self.value)


class Multiplier(Answer):
    """How an integer is multiplied by a scale in fixed point."""

    DOUBLE = (
        "double",
        "int32, rounds twice: the upper half of the product with ties up, its shift with ties away from zero",
    )
    SINGLE = "single", "int32, rounds once: the product of 64 bits is shifted with ties up"
    WIDE = "wide", "int64 sums by a multiplier of 16 bits, rounds once with ties up"

    @property
    def times(self) -> Callable[..., Any]:
        """``f(x, mantissa, shift, arith)``."""
        if self is Multiplier.WIDE:
            return numerics.multiply_reduced
        return numerics.multiply_single_rounding if self is Multiplier.SINGLE else numerics.multiply_double_rounding


class Ties(Answer):
    """Where a real number in the middle between two integers goes."""

    AWAY = "away", "away from zero (TFLite)"
    EVEN = "even", "to the even one (ONNX)"


class Rounding(Answer):
    """Whose arithmetic gives the quantised result of an operator as formats have it; its bounds and tables follow."""

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
        """What scales integers, where that is no float."""
        return Multiplier.SINGLE if self is Rounding.SINGLE else Multiplier.DOUBLE


# ---- What the attributes of an operator may be: declared once, beside the operator, as data.
#
# The verifier refuses what is not declared (:func:`fault`), builders of nodes take the defaults from here, and the page of
# operators prints it. An attribute is declared by the function that is named after its kind: ``integer("how many", 1, least=1)``.


class Absent(Enum):
    """What stands in the place of a default."""

    REQUIRED = "required"
    OPTIONAL = "may be left out"
    """An application without it is another one than any value would make it."""


REQUIRED, OPTIONAL = Absent.REQUIRED, Absent.OPTIONAL


_MOST_INT = 1 << 63
"""Attributes are numbers of at most 64 bits: extents, bounds of uint64 and the like."""


def _is_int(value: object) -> bool:
    return type(value) is int and -_MOST_INT <= value < 2 * _MOST_INT


def _is_float(value: object) -> bool:
    return isinstance(value, float)


def _is_number(value: object) -> bool:
    return isinstance(value, (bool, int, float))


def _tuple_of(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(map(kind, value))


_KINDS: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "bool": lambda value: type(value) is bool,
        "int": _is_int,
        "float": _is_float,
        "number": _is_number,
        "str": lambda value: isinstance(value, str),
        "dtype": lambda value: isinstance(value, str) and (not value or dtypes.is_valid(value)),
        "graph": lambda value: isinstance(value, Graph),
        "ints": _tuple_of(_is_int),
        "numbers": _tuple_of(_is_number),
        "names": _tuple_of(lambda value: isinstance(value, str)),
        "rows of ints": _tuple_of(_tuple_of(_is_int)),
        "axis": _is_int,
        "axes": _tuple_of(_is_int),
        "axes in order": _tuple_of(_is_int),
        "extents": _tuple_of(_is_int),
        "ints by axis": _tuple_of(_is_int),
        "pairs by axis": _tuple_of(_tuple_of(_is_int)),
    }
)


@frozen
class Attribute:
    """One attribute of an operator.

    ``kind``: a key of the table above. ``choices``: the only values; ``length``: of a tuple; ``least`` and ``most``: of a
    number, or of every number in a tuple; ``nothing``: None is a value too.
    """

    kind: str
    doc: str
    default: Attr | Absent = REQUIRED
    choices: tuple[Attr, ...] = ()
    length: int | None = None
    least: int | None = None
    nothing: bool = False
    most: int | None = None

    def fault(self, value: object) -> str:
        """What is wrong with a value, or nothing."""
        if value is None and self.nothing:
            return ""
        if not _KINDS[self.kind](value):
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
        """What it may be, for the page of operators."""
        if self.choices:
            text = " ".join(f"`{choice}`" if choice != "" else "empty" for choice in self.choices)
        else:
            text = self.kind if self.length is None else f"{self.length} {self.kind}"
        if isinstance(self.default, Absent):
            return text + (" (may be left out)" if self.default is OPTIONAL else "")
        return f"{text} = {self.default!r}" if self.default != "" or not self.choices else f"{text} = empty"


Attributes = Mapping[str, Attribute]


def defaults_of(declared: Attributes) -> dict[str, Attr]:
    """The attributes that have a default, with it."""
    return {name: each.default for name, each in declared.items() if not isinstance(each.default, Absent)}


def fault(declared: Attributes, given: Mapping[str, object]) -> str:
    """What is wrong with the attributes of an application, or nothing: one unknown, one missing, or one of a wrong value."""
    for name, value in given.items():
        if name not in declared:
            known = nearest(name, declared) or f"it has {', '.join(declared) or 'none'}"
            return f"there is no attribute {name!r}; {known}"
        if wrong := declared[name].fault(value):
            return f"attribute {name}={value!r} {wrong}"
    missing = next((n for n, each in declared.items() if each.default is REQUIRED and n not in given), "")
    return f"attribute {missing!r} is missing" if missing else ""


# ---------------------------------------------------------------- by kind


def flag(doc: str, default: bool | Absent = False) -> Attribute:
    return Attribute("bool", doc, default)


def integer(
    doc: str, default: int | Absent | None = REQUIRED, least: int | None = None, most: int | None = None
) -> Attribute:
    """``default`` None: None is a value too."""
    return Attribute("int", doc, default, least=least, nothing=default is None, most=most)


def exponent(doc: str, default: int | Absent | None = REQUIRED, least: int = -31, most: int = 30) -> Attribute:
    """A shift of a number of 32 bits, positive to the left."""
    return integer(doc, default, least, most)


def mantissa(doc: str, default: int | Absent | None = REQUIRED, most: int = (1 << 31) - 1) -> Attribute:
    """A factor in fixed point, not negative."""
    return integer(doc, default, 0, most)


def real(doc: str, default: float | Absent | None = REQUIRED) -> Attribute:
    """``default`` None: None is a value too."""
    return Attribute("float", doc, default, nothing=default is None)


def number(doc: str, default: float | Absent = REQUIRED) -> Attribute:
    """An int, a float or a bool: an element of a tensor."""
    return Attribute("number", doc, default)


def choice(doc: str, *choices: str, default: str | Absent = REQUIRED) -> Attribute:
    return Attribute("str", doc, default, choices)


def answer(doc: str, *among: Answer, default: Answer) -> Attribute:
    """One of an enumeration's values, each with its meaning."""
    meanings = "; ".join(f"{f'`{each}`' if each else 'empty'}: {each.meaning}" for each in among)
    return choice(f"{doc}. {meanings}", *among, default=default)


def ways(*names: str) -> Attribute:
    """The attribute ``algorithm`` of an operator that is computed in several ways (``OpDef.algorithms``)."""
    return choice("how it is computed; empty: open", "", "direct", *names, default="")


def element_type(doc: str = "of the result", default: str | Absent = REQUIRED) -> Attribute:
    """The name of a dtype, or empty."""
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


def rows(doc: str) -> Attribute:
    """A tuple of tuples of ints."""
    return Attribute("rows of ints", doc)


def subgraph(doc: str) -> Attribute:
    return Attribute("graph", doc)


def one_axis(
    doc: str = "which axis; negative ones count from the end", default: int | Absent | None = REQUIRED
) -> Attribute:
    """An axis of the first operand. ``default`` None: None is a value too."""
    return Attribute("axis", doc, default, nothing=default is None)


def some_axes(doc: str, *, in_order: bool = False) -> Attribute:
    """Axes of the first operand, a set of them or (``in_order``) with something else for each."""
    return Attribute("axes in order" if in_order else "axes", doc)


def extents(doc: str) -> Attribute:
    """How many elements the result has along each axis."""
    return Attribute("extents", doc, least=0)


def by_axis(doc: str, least: int) -> Attribute:
    """A number for each axis of the first operand."""
    return Attribute("ints by axis", doc, least=least)


def pairs_by_axis(doc: str) -> Attribute:
    """Two numbers for each axis of the first operand, one of either end."""
    return Attribute("pairs by axis", doc)


# ---------------------------------------------------------------- that operators share

ACTIVATION = choice("what is applied to the result", "", "relu", "relu6", "relu_n1_to_1", "tanh", "sigmoid", default="")
_OF_FORMATS = (Rounding.DOUBLE, Rounding.SINGLE, Rounding.EVEN, Rounding.NONE)
ROUNDING = answer("of quantised results", *_OF_FORMATS, default=Rounding.DOUBLE)
ROUNDING_LITERT = answer("of quantised results", *_OF_FORMATS, Rounding.LITERT, default=Rounding.DOUBLE)
MULTIPLIER_ROUNDING = answer("of what is scaled", Multiplier.DOUBLE, Multiplier.SINGLE, default=Multiplier.DOUBLE)
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
"""What becomes of a scaled number: moved, clamped, stored."""
SCALED: Attributes = MappingProxyType(
    {"multiplier": mantissa("the scale's mantissa, Q0.31"), "shift": exponent("its exponent, positive to the left")}
)
