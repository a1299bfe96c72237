"""The ONNX reader: a model file's bytes as a Graph in our operators.

Convolutions and pools keep ONNX's channels-first layout and say so (``layout="NCHW"``); quantisation stays as literal
quantize and dequantize nodes. Whatever depends on constants and static shapes only is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.dtypes import HALF
from microc.errors import UnsupportedError, UsageError
from microc.frontend.onnx import attention as onnx_attention
from microc.frontend.onnx import control as onnx_control
from microc.frontend.onnx import determinant as onnx_determinant
from microc.frontend.onnx import dynamic as onnx_dynamic
from microc.frontend.onnx import elementwise as onnx_elementwise
from microc.frontend.onnx import language as onnx_language
from microc.frontend.onnx import logic as onnx_logic
from microc.frontend.onnx import ml as onnx_ml
from microc.frontend.onnx import neural as onnx_neural
from microc.frontend.onnx import places as onnx_places
from microc.frontend.onnx import pool as onnx_pool
from microc.frontend.onnx import quantized as onnx_quantized
from microc.frontend.onnx import recurrent as onnx_recurrent
from microc.frontend.onnx import sampling as onnx_sampling
from microc.frontend.onnx import scan as onnx_scan
from microc.frontend.onnx import shape as onnx_shape
from microc.frontend.onnx import signal as onnx_signal
from microc.frontend.onnx import slice as onnx_slice
from microc.frontend.onnx import upsample as onnx_upsample
from microc.frontend.onnx import weight_only as onnx_weight_only
from microc.frontend.onnx import window as onnx_window
from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.build import Builder
from microc.frontend.onnx.file import OLD, Input, OnnxFile, Operator, decode
from microc.frontend.onnx.fold import FOLDS, fold
from microc.frontend.onnx.function import body_of, has_body, has_changed
from microc.frontend.onnx.refusals import reason
from microc.graph.ir import Graph, Loc, TensorType
from microc.sealed import Registry

SPELLINGS: Mapping[str, Mapping[str, Spelling]] = {
    "": {
        **onnx_control.SPELLINGS,
        **onnx_scan.SPELLINGS,
        **onnx_determinant.SPELLINGS,
        **onnx_elementwise.SPELLINGS,
        **onnx_logic.SPELLINGS,
        **onnx_neural.SPELLINGS,
        **onnx_places.SPELLINGS,
        **onnx_pool.SPELLINGS,
        **onnx_quantized.SPELLINGS,
        **onnx_recurrent.SPELLINGS,
        **onnx_sampling.SPELLINGS,
        **onnx_shape.SPELLINGS,
        **onnx_signal.SPELLINGS,
        **onnx_slice.SPELLINGS,
        **onnx_upsample.SPELLINGS,
        **onnx_window.SPELLINGS,
        "SimplifiedLayerNormalization": onnx_language.SPELLINGS["SimplifiedLayerNormalization"],
    },
    "ai.onnx.ml": onnx_ml.SPELLINGS,
    "com.microsoft": {
        **onnx_attention.SPELLINGS,
        **onnx_dynamic.SPELLINGS,
        **onnx_language.SPELLINGS,
        **onnx_quantized.MICROSOFT,
        **onnx_weight_only.SPELLINGS,
        "Gelu": onnx_elementwise.SPELLINGS["Gelu"],
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
