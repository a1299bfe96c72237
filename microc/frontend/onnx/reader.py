"""The ONNX reader: a model file's bytes as a Graph; functions inlined, constants folded, refusals explained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from microc.base.dtypes import HALF
from microc.base.immutable import Registry
from microc.errors import UnsupportedError, UsageError
from microc.frontend.onnx import operators_control as onnx_control
from microc.frontend.onnx import operators_control as onnx_scan
from microc.frontend.onnx import operators_elementwise as onnx_elementwise
from microc.frontend.onnx import operators_elementwise as onnx_logic
from microc.frontend.onnx import operators_gather as onnx_places
from microc.frontend.onnx import operators_images as onnx_sampling
from microc.frontend.onnx import operators_images as onnx_upsample
from microc.frontend.onnx import operators_language as onnx_attention
from microc.frontend.onnx import operators_language as onnx_language
from microc.frontend.onnx import operators_linear as onnx_determinant
from microc.frontend.onnx import operators_linear as onnx_dynamic
from microc.frontend.onnx import operators_linear as onnx_neural
from microc.frontend.onnx import operators_linear as onnx_signal
from microc.frontend.onnx import operators_ml as onnx_ml
from microc.frontend.onnx import operators_quantized as onnx_quantized
from microc.frontend.onnx import operators_quantized as onnx_weight_only
from microc.frontend.onnx import operators_recurrent as onnx_recurrent
from microc.frontend.onnx import operators_shape as onnx_shape
from microc.frontend.onnx import operators_shape as onnx_slice
from microc.frontend.onnx import operators_windows as onnx_pool
from microc.frontend.onnx import operators_windows as onnx_window
from microc.frontend.onnx.context import FOLDS, Application, Builder, Spelling, fold
from microc.frontend.onnx.file import DTYPES, OLD, Attributes, Input, OnnxFile, Operator, decode
from microc.graph.ir import Graph, Loc, TensorType

# ---- The nodes of a function's body put in the place of an operator, under names of their own.

Names = dict[str, str]


def operators(
    nodes: Iterable[Any], names: Names, given: Mapping[str, Any], fresh: Callable[[str], str], index: int, opset: int
) -> tuple[Operator, ...]:
    """Nodes under new names: ``names`` says those that are known and grows by what ``fresh`` gives the nodes' own results.

    ``given``: attributes that nodes of a function refer to. Names that nothing here defines stay what they are.
    """
    found = []
    for node in nodes:
        for name in node.output:
            if name and name not in names:
                names[name] = fresh(name)
        attributes = _attributes(node.attribute, names, given, fresh)
        inputs, outputs = (tuple(names.get(name, name) for name in words) for words in (node.input, node.output))
        domain = "" if node.domain == "ai.onnx" else node.domain
        where = Attributes(attributes, f"#{index} {node.op_type}")
        found.append(Operator(index, "", node.op_type, domain, inputs, outputs, where, opset))
    return tuple(found)


def _attributes(
    attributes: Iterable[Any], names: Names, given: Mapping[str, Any], fresh: Callable[[str], str]
) -> list[Any]:
    """Attributes filled in, graphs in them renamed; a reference to an attribute that is not given is left out."""
    import onnx

    found = []
    for attribute in attributes:
        if attribute.ref_attr_name and attribute.ref_attr_name not in given:
            continue
        copy = onnx.AttributeProto()
        copy.CopyFrom(given[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        copy.name = attribute.name
        if copy.type == onnx.AttributeProto.GRAPH:
            _rename(copy.g, names, given, fresh)
        found.append(copy)
    return found


def _rename(graph: Any, outer: Names, given: Mapping[str, Any], fresh: Callable[[str], str]) -> None:
    """Give a graph's values names of its own, and what it reads from outside the names that it has there now."""
    names = dict(outer)
    for value in (*graph.input, *graph.initializer):
        names[value.name] = fresh(value.name)
        value.name = names[value.name]
    for node in graph.node:
        for name in node.output:
            if name:
                names[name] = fresh(name)
        attributes = _attributes(node.attribute, names, given, fresh)
        del node.attribute[:]
        node.attribute.extend(attributes)
        for words in (node.input, node.output):
            words[:] = [names.get(name, name) for name in words]
    for value in graph.output:
        value.name = names.get(value.name, value.name)


# ---- Operators that ONNX defines by others: the body of the definition takes the operator's place.

_MOST_NODES = 4096


def body_of(application: Application) -> tuple[Operator, ...]:
    """The operators that ONNX's schema gives as the meaning of one; none where it gives no body.

    Bodies exist for some versions of the operator set; the newest that is not newer than the model's is taken. Values inside get
    new names, attributes that the body refers to are filled in.
    """
    function = _function(application)
    if function is None or len(function.node) > _MOST_NODES:
        return ()
    operator, builder = application.operator, application.builder
    names = {"": ""} | {
        inner: operator.inputs[k] if k < len(operator.inputs) else "" for k, inner in enumerate(function.input)
    }
    names |= {inner: outer for inner, outer in zip(function.output, operator.outputs, strict=False) if outer}
    version = next((entry.version for entry in function.opset_import if entry.domain in ("", "ai.onnx")), 0)
    given = {**_defaults(application), **operator.attributes.protos()}

    def fresh(name: str) -> str:
        return builder.unique(f"{application.output()}_{name}")

    return operators(function.node, names, given, fresh, operator.index, version)


def has_body(application: Application) -> bool:
    """Whether ONNX defines an operator by others."""
    schema = _schema(application)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def has_changed(application: Application) -> bool:
    """Whether an operator of an old model means something else in version 7 of the operator set."""
    from onnx import defs

    schema = _schema(application)
    return schema is None or defs.get_schema(application.operator.code, OLD, "").since_version != schema.since_version


def _schema(application: Application) -> Any:
    from onnx import defs

    try:
        return defs.get_schema(application.operator.code, application.opset, application.operator.domain)
    except defs.SchemaError:
        return None


def _function(application: Application) -> Any:
    """The FunctionProto, or None."""
    import onnx

    schema = _schema(application)
    if schema is None:
        return None
    if schema.has_context_dependent_function:
        version = _newest(schema.context_dependent_function_opset_versions, application.opset)
        types = [_type_proto(application, k).SerializeToString() for k in range(application.count())]
        node = _node_proto(application).SerializeToString()
        data = schema.get_context_dependent_function_with_opset_version(version, node, types)
    elif schema.has_function:
        data = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, application.opset))
    else:
        return None
    return onnx.FunctionProto.FromString(data)


def _newest(versions: list[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _defaults(application: Application) -> Mapping[str, Any]:
    """Attributes with default values."""
    attributes = _schema(application).attributes
    return {name: each.default_value for name, each in attributes.items() if each.default_value.name}


def _node_proto(application: Application) -> Any:
    import onnx

    operator = application.operator
    node = onnx.helper.make_node(operator.code, operator.inputs, operator.outputs, domain=operator.domain)
    node.attribute.extend(operator.attributes.protos().values())
    return node


def _type_proto(application: Application, position: int) -> Any:
    import onnx

    if not application.has(position):
        return onnx.TypeProto()
    kind = application.type(application.value(position))
    code = next(number for number, name in DTYPES.items() if name == kind.dtype)
    return onnx.helper.make_tensor_type_proto(code, kind.shape)


# ---- What is said of ONNX operators that microc does not do: why, and what helps.

_CUT_BEFORE = "cut the network before it (--outputs) and do this in the application"
_CUT_BEHIND = "do this in the application and cut the network behind it (--inputs)"

_SEQUENCES = (
    "ConcatFromSequence",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
)
_STRINGS = (
    "CastMap",
    "CategoryMapper",
    "DictVectorizer",
    "RegexFullMatch",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "TfIdfVectorizer",
)


def _alike(names: Iterable[str], what: str, hint: str) -> Mapping[str, tuple[str, str]]:
    return dict.fromkeys(names, (what, hint))


KNOWN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **_alike(
            ("Compress", "NonMaxSuppression", "NonZero", "Unique"),
            "how large its result is depends on data",
            _CUT_BEFORE,
        ),
        **_alike(
            _SEQUENCES,
            "it works on a sequence of tensors",
            "export lists as tensors, or simplify the model with onnxslim, which unfolds sequences of known length",
        ),
        **_alike(
            ("Optional", "OptionalGetElement", "OptionalHasElement"),
            "it works on an optional tensor",
            "export the model with its optional inputs decided",
        ),
        **_alike(
            _STRINGS,
            "it works on strings or dictionaries",
            _CUT_BEHIND,
        ),
        **_alike(("ImageDecoder",), "it decodes files", _CUT_BEHIND),
        **_alike(
            ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
            "it is random",
            "give random numbers as an input: cut the network behind it (--inputs)",
        ),
        **_alike(
            ("Adagrad", "Adam", "Gradient", "Momentum"), "it is part of training", "export the model for inference"
        ),
        "MaxRoiPool": ("it divides boxes by rounding", "export RoiAlign with mode max instead"),
    }
)
"""By the operator: what is said, and the hint."""

UNKNOWN = "the operator is unknown to microc"


def reason(code: str, foreign: bool) -> tuple[str, str]:
    """What is said of an operator that has no spelling, and the hint; ``foreign``: of a domain of others."""
    if code in KNOWN:
        return KNOWN[code]
    if foreign:
        return UNKNOWN, "export the model with ONNX's own operators, or teach this one to microc with --plugin"
    return UNKNOWN, "replace the layer, or simplify the model with onnxslim or onnxruntime's offline optimiser"


# ---- The ONNX reader: a model file's bytes as a Graph in our operators.
#
# Convolutions and pools keep ONNX's channels-first layout and say so (``layout="NCHW"``); quantisation stays as literal
# quantize and dequantize nodes. Whatever depends on constants and static shapes only is computed here.

SPELLINGS: Mapping[str, Mapping[str, Spelling]] = {
    "": {
        **onnx_control.CONTROL_SPELLINGS,
        **onnx_scan.SCAN_SPELLINGS,
        **onnx_determinant.DETERMINANT_SPELLINGS,
        **onnx_elementwise.ELEMENTWISE_SPELLINGS,
        **onnx_logic.LOGIC_SPELLINGS,
        **onnx_neural.NEURAL_SPELLINGS,
        **onnx_places.SPELLINGS,
        **onnx_pool.POOL_SPELLINGS,
        **onnx_quantized.QUANTIZED_SPELLINGS,
        **onnx_recurrent.SPELLINGS,
        **onnx_sampling.SAMPLING_SPELLINGS,
        **onnx_shape.SHAPE_SPELLINGS,
        **onnx_signal.SIGNAL_SPELLINGS,
        **onnx_slice.SLICE_SPELLINGS,
        **onnx_upsample.UPSAMPLE_SPELLINGS,
        **onnx_window.WINDOW_SPELLINGS,
        "SimplifiedLayerNormalization": onnx_language.LANGUAGE_SPELLINGS["SimplifiedLayerNormalization"],
    },
    "ai.onnx.ml": onnx_ml.SPELLINGS,
    "com.microsoft": {
        **onnx_attention.ATTENTION_SPELLINGS,
        **onnx_dynamic.DYNAMIC_SPELLINGS,
        **onnx_language.LANGUAGE_SPELLINGS,
        **onnx_quantized.MICROSOFT,
        **onnx_weight_only.WEIGHT_ONLY_SPELLINGS,
        "Gelu": onnx_elementwise.ELEMENTWISE_SPELLINGS["Gelu"],
    },
}
"""By domain, then by operator."""

CUSTOM: Registry[Spelling] = Registry("an ONNX operator", {})
"""Operators of plugins, by ``domain::operator``."""

EVERY_INPUT = "*"
_LISTED = 40


def read(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The network in ``data``.

    ``file_name`` has no folders; it goes into every location. ``input_shapes`` binds symbolic extents: input name ->
    shape, or ``"*"`` -> the shape of every input not named. A symbolic first extent (the batch) is 1 unless bound; an
    extent of a symbol that another input binds takes its value.

    Raises ModelError for a corrupt or inconsistent file, UnsupportedError, which lists all operators that microc does
    not do, and UsageError for ``input_shapes`` that do not fit the model.
    """
    file = decode(data, file_name)
    builder = Builder(file, _translate_all)
    _bind_inputs(builder, input_shapes)
    builder.translate(builder, file.operators)
    return builder.graph(file.graph_name or file_name)


def _translate_all(builder: Builder, operators: Sequence[Operator]) -> None:
    """Spell or compute the operators in order; UnsupportedError, which lists all that microc does not do."""
    refusals = []
    for operator in operators:
        try:
            _translate(builder, operator)
        except UnsupportedError as error:
            builder.lost.update(name for name in operator.outputs if name)
            refusals.append(error)
    if refusals:
        raise _listed(builder.file, refusals)


def _translate(builder: Builder, operator: Operator) -> None:
    """Spell or compute one operator; one that depends on something refused is skipped."""
    label = operator.name or next((name for name in operator.outputs if name), "")
    application = Application(operator, builder, Loc(builder.file.name, operator.index, label))
    for name in operator.outputs:
        if name in builder.file.initializers or name in builder.file.unreadable:
            application.broken(f"{name!r} is an initialiser and an output")
        if operator.outputs.count(name) > 1 and name:
            application.broken(f"the output {name!r} is listed twice")
    custom = CUSTOM.get(f"{operator.domain}::{operator.code}")
    spelling = SPELLINGS.get(operator.domain, {}).get(operator.code, custom)
    computed = not operator.domain and operator.code in FOLDS
    if not any(operator.outputs):
        application.broken("no output has a name")
    if application.opset < OLD and not operator.domain and has_changed(application):
        application.refuse(
            f"version {application.opset} of the operator", "convert the model with onnx.version_converter"
        )
    known = spelling is not None or computed
    if not known and not has_body(application):
        application.refuse(*reason(operator.code, operator.domain not in SPELLINGS))
    if builder.lost & {*operator.inputs, *operator.attributes.read_inside()}:
        builder.lost.update(name for name in operator.outputs if name)
        return
    if spelling is None and not computed:
        if not _spell_body(application):
            application.refuse(*reason(operator.code, operator.domain not in SPELLINGS))
        return
    values = [application.value(position) for position in range(application.count()) if application.has(position)]
    known = bool(values) and all(value in builder.consts for value in values)
    if computed and known:
        fold(application)
        return
    if spelling is None:
        hint = "shapes are static: make its operands constants, or simplify the model with onnxslim"
        application.refuse("the operator is only computed on constants", hint)
    if spelling.dtypes:
        found = application.type(application.value(0)).dtype
        if found in HALF and found not in spelling.dtypes:
            if spelling.stepwise and _spell_body(application):
                return
            _spell_widened(application, spelling, found)
            return
        if found not in spelling.dtypes:
            application.refuse(f"{found} data", "export the model in float32, or quantised to 8 bits")
    spelling.spell(replace(application, folds=known))


def _spell_body(application: Application) -> bool:
    """An operator as those by which ONNX defines it; whether it does."""
    body = body_of(application)
    for inner in body:
        _translate(application.builder, inner)
    return bool(body)


def _spell_widened(application: Application, spelling: Spelling, dtype: str) -> None:
    """An operator on floats of 16 bits is computed in float32, its results are rounded: as ONNX's definition says, which no
    core computes otherwise."""
    builder, operator = application.builder, application.operator
    inputs = list(operator.inputs)
    for position, name in enumerate(operator.inputs):
        if name and application.type(application.value(position)).dtype in HALF:
            inputs[position] = application.emit("cast", (application.value(position),), {"dtype": "float32"})
    wide = [builder.unique(f"{name}_wide") if name else "" for name in operator.outputs]
    widened = replace(operator, inputs=tuple(inputs), outputs=tuple(wide))
    spelling.spell(Application(widened, builder, application.loc))
    for position, name in enumerate(wide):
        if not name:
            continue
        value = builder.value(name, application.where)
        if application.type(value).dtype == "float32":
            application.result("cast", (value,), {"dtype": dtype}, position)
        else:
            application.result_alias(value, position)


def _listed(file: OnnxFile, refusals: list[UnsupportedError]) -> UnsupportedError:
    """One error for all; a hint that all share becomes its hint."""
    if len(refusals) == 1:
        return refusals[0]
    lines = [f"{error.where}: {error.what}" + (f" (help: {error.hint})" if error.hint else "") for error in refusals]
    if len(lines) > _LISTED:
        lines[_LISTED:] = [f"and {len(lines) - _LISTED} more"]
    return UnsupportedError(
        f"the model uses {len(refusals)} operators that are not supported:\n  " + "\n  ".join(lines), where=file.name
    )


def _bind_inputs(builder: Builder, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the inputs their types."""
    inputs = {value.name: value for value in builder.file.inputs}
    for name in shapes:
        if name not in inputs and name != EVERY_INPUT:
            known = ", ".join(map(repr, inputs))
            raise UsageError(
                f"the model has no input {name!r}", where=builder.file.name, hint=f"its inputs are {known}"
            )
    symbols: dict[str, int] = {}
    for value in inputs.values():
        given = shapes.get(value.name, shapes.get(EVERY_INPUT))
        if given is not None:
            _check_given(builder, value, given)
            declared = value.shape or (None,) * len(given)
            for extent, bound in zip(declared, given, strict=True):
                if isinstance(extent, str):
                    symbols.setdefault(extent, bound)
    for value in builder.file.inputs:
        given = shapes.get(value.name, shapes.get(EVERY_INPUT))
        shape = tuple(given) if given is not None else _inferred(builder, value, symbols)
        builder.define(value.name, TensorType(shape, value.dtype), _where(builder, value))


def _where(builder: Builder, value: Input) -> str:
    return f"{builder.file.name} input {value.name!r}"


def _spelled(value: Input) -> str:
    if value.shape is None:
        return "of unknown rank"
    return "(" + ", ".join("?" if extent is None else str(extent) for extent in value.shape) + ")"


def _check_given(builder: Builder, value: Input, given: tuple[int, ...]) -> None:
    declared = value.shape if value.shape is not None else (None,) * len(given)
    fits = len(declared) == len(given) and all(
        bound >= 1 and (not isinstance(extent, int) or extent == bound)
        for extent, bound in zip(declared, given, strict=True)
    )
    if not fits:
        raise UsageError(
            f"shape {tuple(given)} does not fit the input",
            where=_where(builder, value),
            hint=f"it is {_spelled(value)}",
        )


def _inferred(builder: Builder, value: Input, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input that the caller does not bind."""
    found: list[int] = []
    for axis, extent in enumerate(value.shape or ()):
        bound = symbols.get(extent) if isinstance(extent, str) else extent
        if bound is None and axis == 0:
            bound = 1
        if bound is not None:
            found.append(bound)
    if value.shape is None or len(found) != len(value.shape):
        raise UnsupportedError(
            f"the input's shape {_spelled(value)} is not fully known",
            where=_where(builder, value),
            hint=f"kernels are compiled for one shape: give it with --input-shape {value.name}=1,...",
        )
    return tuple(found)
