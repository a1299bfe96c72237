# SPDX-License-Identifier: Apache-2.0
"""Signatures of converters: a converter's parameters are the operands and attributes of the operator that it converts.

::

    @CONVERTERS.register("LayerNormalization")
    def convert_layer_normalization(
        context: OpContext, x: Value, scale: SameDtype, bias: SameDtype | None, *, axis: Axis = -1, epsilon: float = 1e-5
    ) -> None:

Positional parameters are the operands, in the order of the operator's inputs. ``| None`` marks an operand that may be
absent; a star takes all inputs that are left. Keyword-only parameters are attributes: they have the names of the format's
definition, and its defaults. An attribute without a default is required. Attributes that several operators share, and
consecutive inputs that belong together, are a frozen class, whose fields they are; a parameter of this class takes them all.
Two stars take float attributes that are declared where the converter is registered, for converters that are made from tables.

The type of a parameter says what the converter receives, and what is checked before it is called:

===================  =========================================================================================
``Value``            an operand, constant or not
``Array``            the data of a constant operand, or of an attribute that is a tensor
``Ints``, ``Floats`` the elements of a constant operand, or of an attribute that is a list
``int``, ``float``   the only element of a constant operand, or an attribute
``bool``, ``str``    an attribute
``Argument``         an operand or attribute as the format has it, for those that may be of several types
``Literal[...]``     an attribute that is one of these texts or integers
===================  =========================================================================================

``Annotated`` adds the markers below, such as :class:`Rank`. Signatures are inspected at the first call of a converter, so
that importing a reader stays fast.

In formats whose calls have named arguments (PyTorch, Keras), operands are found by the names of the parameters instead of by
their order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Quant, TensorType

# ---- Types of parameters, and markers for ``Annotated``.

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Strings = tuple[str, ...]
Argument = Any


class Value(str):
    """Name of a value of the graph under construction, with the value's type and, if it is a constant, its data.

    It is a str, so that whatever takes the name of a value takes a ``Value``. The graph itself stores plain names."""

    __slots__ = ("constant", "type")
    type: TensorType
    constant: Array | None

    def __new__(cls, name: str, value_type: TensorType, constant: Array | None = None) -> Value:
        value = super().__new__(cls, name)
        value.type, value.constant = value_type, constant
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the value."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    @property
    def dtype(self) -> str:
        """Dtype of the elements."""
        return self.type.dtype

    @property
    def quant(self) -> Quant | None:
        """Scales and zero points; None if the value is not quantised."""
        return self.type.quant


@frozen
class Rank:
    """Marker of an operand that has ``minimum`` to ``maximum`` axes; ``maximum`` None stands for any larger number.

    ``has_elements``: no axis may have the extent 0."""

    minimum: int
    maximum: int | None
    has_elements: bool = False

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Test whether an operand may have this shape."""
        is_short = self.maximum is None or len(shape) <= self.maximum
        return self.minimum <= len(shape) and is_short and not (self.has_elements and 0 in shape)

    def __str__(self) -> str:
        return self._format_axes() + (" and extents of at least 1" if self.has_elements else "")

    def _format_axes(self) -> str:
        """Return the number of axes in words."""
        if self.maximum is None:
            return f"at least {_COUNTS[self.minimum]}"
        if not self.minimum:
            return f"at most {_COUNTS[self.maximum]}"
        ranks = [_COUNTS[rank] for rank in range(self.minimum, self.maximum + 1)]
        return format_alternatives(ranks)


_COUNTS = ("no axes", "one axis", "two axes", "three axes", "four axes", "five axes")


class SameDtypeMarker:
    """Marker of an operand that has the dtype of the first operand."""


class AxisMarker:
    """Marker of an attribute that is an axis, or a list of axes, of the first operand. Negative ones count from the
    end; the converter receives numbers of 0 to rank - 1."""


class DtypeMarker:
    """Marker of an attribute that is the format's number of a dtype; the converter receives the dtype."""


class SubgraphMarker:
    """Marker of an attribute that is a graph; the converter receives it as the file stores it."""


class UncheckedMarker:
    """Marker of a float attribute that may be NaN or infinite."""


@frozen
class AttributeBefore:
    """Marker of an operand that was an attribute before version ``opset`` of the operator set.

    ``name``: name of the attribute; empty if it is that of the parameter."""

    opset: int
    name: str = ""


@frozen
class DefaultBefore:
    """Marker of an attribute whose default was ``value`` before version ``opset`` of the operator set."""

    opset: int
    value: Any


_UNBOUNDED = (1 << 31) - 1
"""Maximum of an attribute without an upper bound: that of an int32."""


@frozen
class Range:
    """Marker of an integer attribute of ``minimum`` to ``maximum``."""

    minimum: int = 0
    maximum: int = _UNBOUNDED

    def __str__(self) -> str:
        return f"at least {self.minimum}" if self.maximum == _UNBOUNDED else f"{self.minimum}..{self.maximum}"


@frozen
class ReadWith:
    """Marker of an operand that ``read`` returns for the context and the index of the input. It checks what only this
    format has, such as the scales of integers."""

    read: Callable[[Any, int], Any]


@frozen
class PresentIf:
    """Marker of an operand that the operator has only if ``test`` is true for the context."""

    test: Callable[[Any], bool]


@frozen
class DecodeWith:
    """Marker of an attribute that the format stores as an integer, such as a member of an enumeration. ``decode`` returns
    what the converter receives, for the context and the integer."""

    decode: Callable[[Any, int], Any]


@frozen
class Only:
    """Marker of an attribute with a single supported value. ``hint``: advice for models that have another one."""

    value: Any
    hint: str


SameDtype = Annotated[Value, SameDtypeMarker()]
Matrix = Annotated[Value, Rank(2, 2)]
Image = Annotated[Value, Rank(4, 4)]
Axis = Annotated[int, AxisMarker()]
Axes = Annotated[Ints, AxisMarker()]
Dtype = Annotated[str, DtypeMarker()]
UncheckedFloat = Annotated[float, UncheckedMarker()]
Subgraph = Annotated[Any, SubgraphMarker()]


def format_alternatives(words: Sequence[str]) -> str:
    """Return words as text for an error message, such as ``a, b or c``."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# ---- Where operands and attributes are read from: the context of a format's operator.


class AttributeReader(Protocol):
    """Interface of an operator's attributes: read by name, with the type that a method's name says.

    Methods raise ModelError if the attribute is absent or has another type. A format that has attributes of further types
    has a method for each of them (:data:`_READ_ATTRIBUTE`)."""

    def __contains__(self, name: str) -> bool: ...
    def flag(self, attribute_name: str) -> bool: ...
    def integer(self, attribute_name: str) -> int: ...
    def integers(self, attribute_name: str) -> Ints: ...
    def real(self, attribute_name: str) -> float: ...
    def text(self, attribute_name: str) -> str: ...


class OperatorReader(Protocol):
    """Interface of one operator of a model file, whose operands and attributes a signature reads.

    Inputs are found by their key: an index, or a name in formats whose calls have named arguments. Methods with a body
    are for formats that do not need them: TFLite has no operator sets, for example."""

    @property
    def attributes(self) -> AttributeReader: ...
    @property
    def opset(self) -> int:
        return 0

    def has_input(self, input_key: Any) -> bool: ...
    def input_count(self) -> int: ...
    def value(self, input_key: Any) -> Value: ...
    def constant(self, input_key: Any) -> Array: ...
    def constant_number(self, input_key: Any) -> float: ...
    def constant_integer(self, input_key: Any) -> int: ...
    def integers(self, input_key: Any) -> Ints: ...
    def reals(self, input_key: Any) -> Floats: ...
    def axis(self, signed_axis: int, rank: int) -> int: ...
    def normalize_axes(self, signed_axes: Sequence[int], rank: int) -> Ints: ...
    def broken(self, what: str) -> NoReturn: ...
    def refuse(self, what: str, hint: str) -> NoReturn: ...
    def decode_dtype(self, dtype_code: int) -> str:
        self.broken(f"got dtype number {dtype_code}, expected none: the format has no numbers of dtypes")

    def refuse_extra_outputs(self, output_count: int = 1) -> None:
        return None


_READ_OPERAND: dict[Any, str] = {
    Value: "value",
    Array: "constant",
    Ints: "integers",
    Floats: "reals",
    int: "constant_integer",
    float: "constant_number",
    Any: "argument",
}
"""Method of an :class:`OperatorReader` that reads an operand, by the type of the parameter."""

_READ_ATTRIBUTE: dict[Any, str] = {
    bool: "flag",
    int: "integer",
    float: "real",
    str: "text",
    Array: "tensor",
    Ints: "integers",
    Floats: "reals",
    Strings: "texts",
    Any: "argument",
}
"""Method of an :class:`AttributeReader` that reads an attribute, by the type of the parameter."""


# ---- A signature: parameters as data, each of which reads its value.

REQUIRED: Any = inspect.Parameter.empty
"""Default of a parameter without one."""


@frozen
class AttributeParameter:
    """An attribute of an operator.

    ``name``: its name in the format. ``method``: method of :class:`AttributeReader` that reads it. ``choices``: the
    texts or integers that it may be; empty if any. ``decode``: function that decodes the integer that is stored."""

    name: str
    method: str
    default: Any
    choices: tuple[str | int, ...]
    old_default: DefaultBefore | None
    only: Only | None
    range: Range | None
    decode: Callable[[Any, int], Any] | None
    is_axis: bool
    is_dtype: bool

    def read(self, context: OperatorReader) -> Any:
        """Return the attribute's value, or its default if it is absent; raise an error unless it is valid."""
        attributes = context.attributes
        if self.name in attributes or self.default is REQUIRED:
            value = getattr(attributes, self.method)(self.name)
            if self.decode is not None:
                return self.decode(context, value)
        elif self.old_default is not None and context.opset < self.old_default.opset:
            value = self.old_default.value
        else:
            value = self.default
        if value is None:
            return None
        if self.choices and value not in self.choices:
            context.broken(f"{self.name} is {value!r}, expected {format_alternatives([*map(str, self.choices)])}")
        if self.range is not None and not self.range.minimum <= value <= self.range.maximum:
            context.broken(f"{self.name} is {value}, expected {self.range}")
        if self.only is not None and value != self.only.value:
            got, expected = (int(v) if isinstance(v, bool) else v for v in (value, self.only.value))
            context.refuse(f"{self.name} is {got}, expected {expected}", self.only.hint)
        if self.is_dtype and isinstance(value, int):
            return context.decode_dtype(value)
        if self.is_axis:
            rank = context.value(0).rank
            return context.axis(value, rank) if isinstance(value, int) else context.normalize_axes(value, rank)
        return value


@frozen
class OperandParameter:
    """An operand of an operator: input ``index``, or all inputs from there on if ``is_variadic``.

    ``key``: what the context finds it by, its index or its name. ``method``: method of :class:`OperatorReader` that reads
    it. ``read_with``: function that reads it instead. ``default``: value if the input is absent; REQUIRED if it must not
    be. ``attribute``: the attribute that it was before version ``first_opset`` of the operator set. ``is_present``: test
    of the context for an operand that not every operator of this type has."""

    name: str
    index: int
    key: int | str
    method: str
    read_with: ReadWith | None
    default: Any
    is_variadic: bool
    rank: Rank | None
    attribute: AttributeParameter | None
    first_opset: int
    is_present: Callable[[Any], bool] | None

    def read(self, context: OperatorReader) -> Any:
        """Return the operand; raise an error unless it is valid."""
        if self.attribute is not None and context.opset < self.first_opset:
            return self.attribute.read(context)
        return self.read_input(context, self.key)

    def read_input(self, context: OperatorReader, input_key: Any) -> Any:
        """Return the input with the index or name ``input_key`` as this operand; raise an error unless it is valid."""
        if self.default is not REQUIRED and not context.has_input(input_key):
            return self.default
        read_with = self.read_with
        value = getattr(context, self.method)(input_key) if read_with is None else read_with.read(context, input_key)
        if self.rank is not None and not self.rank.allows(value.shape):
            context.broken(f"input {input_key} has shape {value.shape}, expected {self.rank}")
        return value


@frozen
class OperandGroup:
    """A parameter that takes consecutive operands, as a frozen class ``group`` with a field for each of them."""

    group: Callable[..., Any]
    operands: tuple[OperandParameter, ...]

    def read(self, context: OperatorReader) -> Any:
        """Return the operands as an object of the group's class."""
        return self.group(*(operand.read(context) for operand in self.operands))


@frozen
class AttributeGroup:
    """A parameter that takes several attributes, as a frozen class ``group`` with a field for each of them."""

    name: str
    group: Callable[..., Any]
    attributes: tuple[AttributeParameter, ...]

    def read(self, context: OperatorReader) -> Any:
        """Return the attributes as an object of the group's class."""
        return self.group(**{attribute.name: attribute.read(context) for attribute in self.attributes})


@frozen
class Signature:
    """The operands and attributes of an operator, as its converter declares them.

    ``by_name``: operands are found by name, in a call that the format's own library has compared with the operator's
    schema."""

    positional: tuple[OperandParameter | OperandGroup, ...]
    keywords: tuple[AttributeParameter | AttributeGroup, ...]
    by_name: bool = False

    @property
    def operands(self) -> tuple[OperandParameter, ...]:
        """All operands, including those of groups, in the order of the inputs."""
        return tuple(
            operand
            for parameter in self.positional
            for operand in (parameter.operands if isinstance(parameter, OperandGroup) else (parameter,))
        )

    @property
    def attributes(self) -> tuple[AttributeParameter, ...]:
        """All attributes, including those of groups and those that operands were in older operator sets."""
        own = [
            attribute
            for keyword in self.keywords
            for attribute in (keyword.attributes if isinstance(keyword, AttributeGroup) else (keyword,))
        ]
        return (*own, *(operand.attribute for operand in self.operands if operand.attribute is not None))

    @property
    def is_variadic(self) -> bool:
        """True if the operator takes any number of inputs."""
        return any(operand.is_variadic for operand in self.operands[-1:])

    def format_restrictions(self) -> str:
        """Return what models must keep to, for the page of operators: inputs that must be constant, and attributes
        with a single supported value. Empty if there is nothing of this kind."""
        constants = [operand.name for operand in self.operands if operand.method not in ("value", "operand")]
        restrictions = [f"constant {', '.join(constants)}"] if constants else []
        for attribute in self.attributes:
            if attribute.only is not None:
                value = attribute.only.value
                number = int(value) if isinstance(value, bool) else value
                restrictions.append(f"no {attribute.name}" if value == () else f"{attribute.name} = {number}")
        return "; ".join(restrictions)

    def read(self, context: OperatorReader) -> tuple[list[Any], dict[str, Any]]:
        """Return the converter's positional and keyword arguments, read from an operator; raise an error for any that is
        invalid."""
        positional: list[Any] = []
        for parameter in self.positional:
            if isinstance(parameter, OperandParameter) and parameter.is_variadic:
                positional += [parameter.read_input(context, k) for k in range(parameter.index, context.input_count())]
            else:
                positional.append(parameter.read(context))
        if not self.by_name and not self.is_variadic:
            count = len(self.operands)
            if any(map(context.has_input, range(count, context.input_count()))):
                context.broken(f"got {context.input_count()} inputs, expected at most {count}")
        return positional, {keyword.name: keyword.read(context) for keyword in self.keywords}


# ---- Inspecting a converter.


def inspect_signature(
    converter: Callable[..., Any], float_attributes: Mapping[str, float], by_name: bool = False
) -> Signature:
    """Return the signature of a converter. Its first parameter, the context, is no part of the signature.

    ``float_attributes``: names and defaults of the attributes that its parameter with two stars takes. ``by_name``: see
    :class:`Signature`."""
    hints = get_type_hints(converter, include_extras=True)
    positional: list[OperandParameter | OperandGroup] = []
    input_count = 0
    keywords: list[AttributeParameter | AttributeGroup] = []
    for parameter in list(inspect.signature(converter).parameters.values())[1:]:
        hint = hints[parameter.name]
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords += [_make_attribute(name, hint, default) for name, default in float_attributes.items()]
        elif parameter.kind is parameter.KEYWORD_ONLY:
            keywords.append(_make_keyword(parameter.name, hint, parameter.default))
        elif _is_group(hint):
            positional.append(OperandGroup(hint, _make_grouped_operands(hint, input_count)))
            input_count += len(fields(hint))
        else:
            is_variadic = parameter.kind is parameter.VAR_POSITIONAL
            key = parameter.name if by_name else input_count
            positional.append(_make_operand(parameter.name, input_count, key, hint, parameter.default, is_variadic))
            input_count += 1
    return Signature(tuple(positional), tuple(keywords), by_name)


@dataclass(frozen=True)
class BoundConverter:
    """A converter together with its signature: a function of the context alone, which reads the converter's arguments
    and returns what the converter returns.

    The context is an :class:`OperatorReader`. ``output_count``: number of outputs that the converter writes; the model
    may have no further ones. None: the converter checks this itself. ``by_name``: see :class:`Signature`."""

    converter: Callable[..., Any]
    output_count: int | None = None
    float_attributes: Mapping[str, float] = field(default_factory=dict, hash=False)
    by_name: bool = False

    @cached_property
    def signature(self) -> Signature:
        """The converter's signature."""
        return inspect_signature(self.converter, self.float_attributes, self.by_name)

    def __call__(self, context: Any) -> Any:
        if self.output_count is not None:
            context.refuse_extra_outputs(self.output_count)
        positional, keywords = self.signature.read(context)
        return self.converter(context, *positional, **keywords)


def bind_converter(converter: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a converter of a plugin as a function of the context alone.

    A converter whose only parameter is the context reads operands and attributes itself; all others have a signature."""
    return converter if len(inspect.signature(converter).parameters) == 1 else BoundConverter(converter)


_Converter = TypeVar("_Converter")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class ConverterTable:
    """Converters of one subject by the name of the operator, in a format whose operands are found by name; each file of
    operators has one. ``converter_type``: class of the format's converters."""

    def __init__(self, converter_type: type[BoundConverter] = BoundConverter) -> None:
        self.converter_type = converter_type
        self.by_name: dict[str, BoundConverter] = {}

    def register(self, *operator_names: str, **options: Any) -> Callable[[_Function], _Function]:
        """Return a decorator that enters a function as the converter of the operators ``operator_names``.

        The function's parameters are the operator's operands and attributes. A parameter that only some of the operators
        have is optional. ``options``: further fields of the converter."""

        def enter(function: _Function) -> _Function:
            converter = self.converter_type(function, by_name=True, **options)
            self.by_name.update(dict.fromkeys(operator_names, converter))
            return function

        return enter


def merge_converters(*tables: Mapping[str, _Converter]) -> dict[str, _Converter]:
    """Return the converters of several tables by operator; raise ValueError if two tables convert the same operator."""
    merged: dict[str, _Converter] = {}
    for table in tables:
        if twice := merged.keys() & table.keys():
            raise ValueError(f"converters of {', '.join(sorted(twice))}: registered twice")
        merged |= table
    return merged


def _split_hint(hint: Any) -> tuple[Any, list[Any], bool]:
    """Return the type in an annotation, its markers, and whether it may be None."""
    is_optional = False
    markers: list[Any] = []
    while True:
        if get_origin(hint) is Annotated:
            markers += hint.__metadata__
            hint = hint.__origin__
        elif get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            (hint,) = (argument for argument in get_args(hint) if argument is not NoneType)
            is_optional = True
        else:
            return hint, markers, is_optional


def _find_marker(markers: Sequence[Any], marker_type: type) -> Any:
    """Return the marker of type ``marker_type``; None if there is none."""
    return next((marker for marker in markers if isinstance(marker, marker_type)), None)


def _make_operand(
    name: str, index: int, key: int | str, hint: Any, default: Any, is_variadic: bool
) -> OperandParameter:
    """Return the operand that a positional parameter declares."""
    type_, markers, is_optional = _split_hint(hint)
    method = "operand" if _find_marker(markers, SameDtypeMarker) else _READ_OPERAND[type_]
    default = None if is_optional and default is REQUIRED else default
    attribute, first_opset, before = None, 0, _find_marker(markers, AttributeBefore)
    if before is not None:
        attribute, first_opset = _make_attribute(before.name or name, hint, default), before.opset
    present_if = _find_marker(markers, PresentIf)
    return OperandParameter(
        name,
        index,
        key,
        method,
        _find_marker(markers, ReadWith),
        default,
        is_variadic,
        _find_marker(markers, Rank),
        attribute,
        first_opset,
        None if present_if is None else present_if.test,
    )


def _is_group(hint: Any) -> bool:
    """Test whether an annotation is a class whose fields are operands or attributes."""
    return isinstance(hint, type) and is_dataclass(hint)


def _make_grouped_operands(group: Any, first_index: int) -> tuple[OperandParameter, ...]:
    """Return the operands that the fields of a class declare, which are the inputs from ``first_index`` on."""
    hints = get_type_hints(group, include_extras=True)
    return tuple(
        _make_operand(field.name, first_index + k, first_index + k, hints[field.name], REQUIRED, is_variadic=False)
        for k, field in enumerate(fields(group))
    )


def _make_keyword(name: str, hint: Any, default: Any) -> AttributeParameter | AttributeGroup:
    """Return the attribute, or the group of attributes, that a keyword-only parameter declares."""
    if not _is_group(hint):
        return _make_attribute(name, hint, default)
    hints = get_type_hints(hint, include_extras=True)
    attributes = tuple(
        _make_attribute(field.name, hints[field.name], REQUIRED if field.default is MISSING else field.default)
        for field in fields(hint)
    )
    return AttributeGroup(name, hint, attributes)


def _make_attribute(name: str, hint: Any, default: Any) -> AttributeParameter:
    """Return the attribute ``name`` that a parameter or a field of a group declares."""
    type_, markers, _ = _split_hint(hint)
    choices = get_args(type_) if get_origin(type_) is Literal else ()
    is_dtype = _find_marker(markers, DtypeMarker) is not None
    decode_with = _find_marker(markers, DecodeWith)
    if is_dtype or decode_with is not None:
        method = "integer"
    elif _find_marker(markers, UncheckedMarker):
        method = "unchecked_real"
    elif _find_marker(markers, SubgraphMarker):
        method = "graph"
    else:
        method = _READ_ATTRIBUTE[type(choices[0]) if choices else type_]
    return AttributeParameter(
        name,
        method,
        default,
        choices,
        _find_marker(markers, DefaultBefore),
        _find_marker(markers, Only),
        _find_marker(markers, Range),
        None if decode_with is None else decode_with.decode,
        _find_marker(markers, AxisMarker) is not None,
        is_dtype,
    )
