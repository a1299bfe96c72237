# SPDX-License-Identifier: Apache-2.0
"""Conversion of a network's inputs and outputs to the form that the application uses: preprocessing of images, names,
dtypes, layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UsageError, known_names_hint
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType, fresh_name
from microc.ops.attributes import Multiplier, Rounding, Ties
from microc.transform.channels_last import CHANNELS_FIRST, CHANNELS_LAST
from microc.transform.transposes import permute_type

# ---- Preprocessing of an input: from a sensor's raw numbers, such as a camera's frame, to the network's input.
#
# A frame is cropped, resized, converted to the network's channels and normalised, in this order. Until it is normalised it keeps
# the frame's integer dtype; the results of resizing and of colour conversion are rounded once each.
#
# Source: half-pixel centres, as in TensorFlow 2's and PyTorch's resizing (``align_corners=False``); luma after ITU-R BT.601.

_FRAMED = ("uint8", "int8", "uint16", "int16", "float32", "float64")
"""Dtypes that the frames of a camera may have."""
_LUMA, _LUMA_BITS = (77, 150, 29), 8
"""Weights 0.299, 0.587 and 0.114 of red, green and blue in 256ths, and the number of their fractional bits."""
_BITS = 11
"""Number of fractional bits of bilinear weights along one axis. With it 255 * 2**22, the product for both axes, fits an
int32."""
Refuse = Callable[[str, str], UsageError]
"""Function that returns the error for a reason and a hint."""
Numbers = tuple[float, ...]


@frozen
class Preparation:
    """Preprocessing of an input. An empty field means that the step is left out.

    ``normalize``: mean and deviation for (x - mean) / deviation, each one number or one per channel of the network.
    ``colour``: channels of the camera's frame. ``frame``: height and width of the frame. ``crop``: height and width of
    the part in the centre that is kept. ``resize``: interpolation by which this part is resized to the network's
    input."""

    normalize: tuple[Numbers, Numbers] | None = None
    colour: str = ""
    frame: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resize: str = ""

    def __bool__(self) -> bool:
        return self != Preparation()

    @property
    def is_image(self) -> bool:
        """True if the preprocessing is of an image: a field concerns rows, columns or channels."""
        return bool(self.colour or self.frame or self.crop or self.resize)


@frozen
class PreparationStep:
    """One operator of the preprocessing. It applies ``op`` to a value of type ``outer_type``, nearer to the
    application, and to constant ``operands``."""

    op: str
    outer_type: TensorType
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    operands: tuple[Array, ...] = ()


def collect_preparations(**fields_by_name: Mapping[str, Any]) -> dict[str, Preparation]:
    """Return the preparation of each input.

    ``fields_by_name`` maps each field of :class:`Preparation` to its values, by name of the input.

    The name ``*`` contains defaults for all inputs."""
    names = {name for wish in fields_by_name.values() for name in wish}
    return {
        name: Preparation(
            **{
                field: wish.get(name, wish.get("*"))
                for field, wish in fields_by_name.items()
                if {name, "*"} & set(wish)
            }
        )
        for name in names
    }


def build_normalisation_steps(
    mean_and_deviation: tuple[Numbers, Numbers],
    tensor_type: TensorType,
    channel_axis: int,
    raw_dtype: str,
    refuse: Refuse,
) -> Iterator[PreparationStep]:
    """Yield the operators that normalise an input, beginning with the one nearest to the network.

    ``mean_and_deviation``: each one number, or one per channel. ``tensor_type``: type of the network's input.
    ``raw_dtype``: dtype of the numbers that the application passes. ``channel_axis``: axis of the channels. ``refuse``:
    builder of errors. A quantised input is rounded to the nearest integer, ties to even."""
    if not (dtypes.is_float(tensor_type.dtype) or (tensor_type.quant is not None and tensor_type.quant.axis is None)):
        raise refuse(
            f"cannot be normalised; got {tensor_type.dtype}, expected a float or a quantised integer",
            "leave out --input-normalize for this input",
        )
    mean, deviation = (
        _broadcast_numbers_by_channel(numbers, what, tensor_type, channel_axis, refuse)
        for numbers, what in zip(mean_and_deviation, ("mean", "deviation"), strict=True)
    )
    if dtypes.is_integer(tensor_type.dtype):
        assert tensor_type.quant is not None
        real = TensorType(tensor_type.shape, "float32", layout=tensor_type.layout)
        attrs: Mapping[str, Attr] = {
            "scale": tensor_type.quant.scale,
            "zero_point": tensor_type.quant.zero_point,
            "axis": None,
        }
        yield PreparationStep("quantize", real, {**attrs, "out_dtype": tensor_type.dtype, "rounding": Ties.EVEN})
        tensor_type = real
    dtype = dtypes.to_numpy(tensor_type.dtype)
    if (deviation != 1).any():
        yield PreparationStep("mul", tensor_type, {}, ((1 / deviation).astype(dtype),))
    if mean.any():
        yield PreparationStep("sub", tensor_type, {}, (mean.astype(dtype),))
    if raw_dtype != tensor_type.dtype:
        yield PreparationStep("cast", replace(tensor_type, dtype=raw_dtype), {"dtype": tensor_type.dtype})


def _broadcast_numbers_by_channel(
    numbers: Numbers, numbers_name: str, tensor_type: TensorType, channel_axis: int, refuse: Refuse
) -> Array:
    """Return the numbers as an array with one element, or one per channel, that broadcasts along ``channel_axis``.

    ``numbers_name``: noun for the numbers in the error message, such as "mean"."""
    rank, count = len(tensor_type.shape), len(set(numbers))
    if len(numbers) > 1 and (not rank or tensor_type.shape[channel_axis] != len(numbers)):
        channels = tensor_type.shape[channel_axis] if rank else 1
        hint = f"give one {numbers_name}, or {channels} between commas"
        raise refuse(
            f"needs one {numbers_name}, or one per channel; got {len(numbers)} numbers, expected 1 or {channels}", hint
        )
    used_numbers = numbers if count > 1 else numbers[:1]
    return np.array(used_numbers, np.float64).reshape(
        [len(used_numbers) if k == channel_axis % rank else 1 for k in range(rank)] if rank else ()
    )


def build_frame_conversion_steps(
    preparation: Preparation, tensor_type: TensorType, axes: tuple[int, int, int], refuse: Refuse
) -> Iterator[PreparationStep]:
    """Yield the operators that convert a camera's frame to the network's pixels, beginning with the one nearest to the
    network.

    ``axes``: axes of rows, columns and channels."""
    if tensor_type.dtype not in _FRAMED:
        raise refuse(f"cannot be an image; got dtype {tensor_type.dtype}", "use one of " + ", ".join(_FRAMED))
    channels = tensor_type.shape[axes[2]]
    if channels not in (1, 3):
        raise refuse(
            f"is no image; got {channels} channels, expected 1 or 3",
            "leave out --input-colour, --input-frame, --input-crop and --input-resize",
        )
    frame_channels = {"": channels, "gray": 1}.get(preparation.colour, 3)
    inner, tensor_type = (
        tensor_type,
        replace(tensor_type, shape=_replace_extents(tensor_type.shape, {axes[2]: frame_channels})),
    )
    yield from _build_colour_conversion_steps(preparation.colour, inner, tensor_type, axes[2])
    if preparation.frame is None:
        if preparation.crop or preparation.resize:
            raise refuse("has frames of unknown size", "give the size: --input-frame HEIGHTxWIDTH")
        return
    size = (tensor_type.shape[axes[0]], tensor_type.shape[axes[1]])
    crop = preparation.crop or preparation.frame
    if crop[0] > preparation.frame[0] or crop[1] > preparation.frame[1]:
        raise refuse(
            "cannot be cropped; got a crop of {}x{}, expected at most {}x{}".format(*crop, *preparation.frame),
            "give a smaller --input-crop, or a larger --input-frame",
        )
    outer = replace(
        tensor_type, shape=_replace_extents(tensor_type.shape, dict(zip(axes, preparation.frame, strict=False)))
    )
    first = [(whole - part) // 2 for whole, part in zip(preparation.frame, crop, strict=True)]
    if crop != size:
        yield _build_crop_and_resize_step(preparation.resize, outer, axes[:2], first, crop, size)
    elif crop != preparation.frame:
        begin = _replace_extents((0,) * len(tensor_type.shape), dict(zip(axes, first, strict=False)))
        end = tuple(map(sum, zip(begin, tensor_type.shape, strict=True)))
        yield PreparationStep("slice", outer, {"begin": begin, "end": end, "strides": (1,) * len(end)})


def _replace_extents(shape: tuple[int, ...], new_extents: Mapping[int, int]) -> tuple[int, ...]:
    """Return a shape with other extents for the axes in ``new_extents``."""
    return tuple(new_extents.get(axis, extent) for axis, extent in enumerate(shape))


def _build_colour_conversion_steps(
    colour: str, network_type: TensorType, frame_type: TensorType, channel_axis: int
) -> Iterator[PreparationStep]:
    """Yield the operator that computes the network's channels from the channels of the frame, if one is needed."""
    if network_type.shape == frame_type.shape:
        if colour == "bgr":
            yield PreparationStep("reverse", frame_type, {"axes": (channel_axis,)})
    elif colour == "gray":
        yield PreparationStep("broadcast_to", frame_type, {"shape": network_type.shape})
    else:
        weights = np.array([_LUMA if colour == "rgb" else _LUMA[::-1]], np.int16)
        tables = (
            np.arange(3, dtype=np.int16)[None],
            _convert_fixed_point_weights(weights, _LUMA_BITS, frame_type.dtype),
        )
        yield PreparationStep("resample", frame_type, {"axes": (channel_axis,), "shift": _LUMA_BITS}, tables)


def _build_crop_and_resize_step(
    interpolation: str,
    frame_type: TensorType,
    axes: tuple[int, ...],
    crop_start: list[int],
    crop_size: tuple[int, int],
    output_size: tuple[int, int],
) -> PreparationStep:
    """Return the operator that crops a frame to ``crop_size`` pixels from ``crop_start`` on and resizes this part to
    ``output_size``.

    Bilinear weights are multiples of 1 / 2048. An 8-bit result differs from that of exact weights by at most 0.5 + 255
    / 2048: along each axis the error of a weight is at most 2**-12, and neighbouring pixels differ by at most 255."""
    indices, weights = [], []
    for start, extent, count in zip(crop_start, crop_size, output_size, strict=True):
        positions = (np.arange(count) + 0.5) * (extent / count)
        if interpolation == "nearest":
            indices.append(np.clip(np.floor(positions), 0, extent - 1).astype(np.int16)[:, None] + np.int16(start))
            continue
        positions = np.clip(positions - 0.5, 0, extent - 1)
        below = np.minimum(np.floor(positions), max(extent - 2, 0)).astype(np.int64)
        share = np.rint((positions - below) * (1 << _BITS)).astype(np.int16)
        indices.append((start + np.stack([below, np.minimum(below + 1, extent - 1)], 1)).astype(np.int16))
        weights.append(
            _convert_fixed_point_weights(
                np.stack([(1 << _BITS) - share, share], 1).astype(np.int16), _BITS, frame_type.dtype
            )
        )
    shift = 2 * _BITS if weights else 0
    return PreparationStep("resample", frame_type, {"axes": axes, "shift": shift}, (*indices, *weights))


def _convert_fixed_point_weights(weights: Array, fraction_bits: int, dtype: str) -> Array:
    """Return fixed-point weights with ``fraction_bits`` fractional bits as they are for an integer ``dtype``, or as
    real numbers for a float one."""
    return (weights / (1 << fraction_bits)).astype(dtype) if dtypes.is_float(dtype) else weights


# ---- Renaming of values.


def rename_inputs_and_outputs(graph: Graph, new_names: Mapping[str, str]) -> Graph:
    """Rename inputs and outputs. If another value of the graph already has one of the new names, that value gets a
    different name.

    Raise UsageError for a name that is no input or output, or if two of them would have the same name."""
    ends = dict.fromkeys((*graph.inputs, *graph.outputs))
    for name in new_names:
        if name not in ends:
            hint = known_names_hint(name, ends, "inputs and outputs")
            raise UsageError(
                f"cannot rename {name!r}: the network has no such input or output", where=graph.name, hint=hint
            )
    wanted = [new_names.get(name, name) for name in ends]
    for name in wanted:
        if wanted.count(name) > 1:
            raise UsageError(
                f"two inputs or outputs would be named {name!r}; expected different names",
                where=graph.name,
                hint="choose another name",
            )
    taken = {**graph.types, **dict.fromkeys(wanted, None)}
    inner_names = {
        new: fresh_name(taken, f"{new}.inner") for new in new_names.values() if new in graph.types and new not in ends
    }
    return rename_values(graph, {**inner_names, **new_names})


def rename_values(graph: Graph, new_names: Mapping[str, str]) -> Graph:
    """Rename values of a graph. If ``new_names`` maps two values to the same name, they become one value."""

    def new_name(old_name: str) -> str:
        return new_names.get(old_name, old_name)

    nodes = (
        replace(n, inputs=tuple(map(new_name, n.inputs)), outputs=tuple(map(new_name, n.outputs))) for n in graph.nodes
    )  # fmt: skip
    return replace(
        graph,
        inputs=tuple(map(new_name, graph.inputs)),
        outputs=tuple(map(new_name, graph.outputs)),
        nodes=tuple(nodes),
        types={new_name(name): kind for name, kind in graph.types.items()},
        consts={new_name(name): data for name, data in graph.consts.items()},
        state={new_name(name): data for name, data in graph.state.items()},
        updates={new_name(name): new_name(value) for name, value in graph.updates.items()},
    )


# ---- Conversion of dtype and layout by operators at the network's inputs and outputs.

LAYOUTS = ("NCHW", "NHWC")
EVERY = "*"
"""Name that stands for all inputs or all outputs that have no request of their own."""
_DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "bool"),
)
_NONE: Mapping[str, str] = MappingProxyType({})


@frozen
class Boundary:
    """Requested form of inputs and outputs, by name. The name ``*`` means all others to which the request can apply.

    Dtypes: ``*`` applies to real numbers (floats and quantised tensors). Layouts: ``NCHW`` or ``NHWC``; ``*`` applies
    to tensors of four axes. ``preparations``: preprocessing of inputs; by default its input is uint8, and images have
    channels last."""

    input_dtypes: Mapping[str, str] = field(default_factory=lambda: _NONE)
    output_dtypes: Mapping[str, str] = field(default_factory=lambda: _NONE)
    input_layouts: Mapping[str, str] = field(default_factory=lambda: _NONE)
    output_layouts: Mapping[str, str] = field(default_factory=lambda: _NONE)
    preparations: Mapping[str, Preparation] = field(default_factory=dict)


def adapt_inputs_and_outputs(graph: Graph, boundary: Boundary) -> Graph:
    """Insert operators before inputs and after outputs that convert them as ``boundary`` requests. Names do not change.

    A quantised tensor can become a float tensor (by ``quantize`` at an input, ``dequantize`` at an output) or change
    its signedness, with its zero point adjusted. A float input that is only quantised, or a float output that is only
    dequantised, can become the integer tensor: this operator is then removed. Tensors without quantisation are cast
    from float to float, or from integer to integer.

    Raise UsageError for unknown inputs and outputs and for impossible conversions."""
    ends: tuple[tuple[str, tuple[str, ...], tuple[Mapping[str, object], ...]], ...] = (
        ("input", graph.inputs, (boundary.input_dtypes, boundary.input_layouts, boundary.preparations)),
        ("output", graph.outputs, (boundary.output_dtypes, boundary.output_layouts)),
    )
    for what, names, wishes in ends:
        for name in sorted({name for wish in wishes for name in wish} - {EVERY, *names}):
            raise UsageError(
                f"the network has no {what} {name!r}",
                where=graph.name,
                hint=f"name one of its {what}s: {', '.join(names)}",
            )
    if EVERY in boundary.preparations and len(graph.inputs) != 1:
        raise UsageError(
            f"preprocessing: the option names no input; got a network of {len(graph.inputs)} inputs", where=graph.name,
            hint=f"name the input: --input-normalize {graph.inputs[0]}=127.5 127.5; inputs: {', '.join(graph.inputs)}",
        )  # fmt: skip
    for name in graph.inputs:
        wanted = boundary.preparations.get(name) or boundary.preparations.get(EVERY)
        end = _GraphEnd(graph, name, "input")
        if wanted:
            dtype = boundary.input_dtypes.get(name) or boundary.input_dtypes.get(EVERY, "uint8")
            layout = boundary.input_layouts.get(name) or boundary.input_layouts.get(EVERY, "")
            graph = end.insert_preprocessing(wanted, dtype, layout)
        else:
            graph = end.convert_as_requested(boundary.input_dtypes, boundary.input_layouts)
    for name in graph.outputs:
        graph = _GraphEnd(graph, name, "output").convert_as_requested(boundary.output_dtypes, boundary.output_layouts)
    return graph


@frozen
class _GraphEnd:
    """One input or output of a graph. Methods return the changed graph.

    ``side``: ``input`` or ``output``."""

    graph: Graph
    name: str
    side: str

    @property
    def tensor_type(self) -> TensorType:
        """Type of the input or output."""
        return self.graph.types[self.name]

    def make_error(self, reason: str, hint: str = "") -> UsageError:
        """Return the error for this input or output; ``reason`` follows its name in the message."""
        return UsageError(f"{self.side} {self.name!r} {reason}", where=self.graph.name, hint=hint)

    def convert_as_requested(self, wanted_dtypes: Mapping[str, str], wanted_layouts: Mapping[str, str]) -> Graph:
        """Return the graph with this input or output in the dtype and layout that are requested for it."""
        end, kind = self, self.tensor_type
        layout = wanted_layouts.get(self.name) or (wanted_layouts.get(EVERY) if len(kind.shape) == 4 else None)
        real = kind.quant is not None or dtypes.is_float(kind.dtype)
        dtype = wanted_dtypes.get(self.name) or (wanted_dtypes.get(EVERY) if real else None)
        if dtype is not None:
            self.check_dtype(dtype)
        if dtype is not None and dtypes.is_integer(dtype) and dtypes.is_float(kind.dtype):
            end = replace(end, graph=end.replace_float_by_its_integers())
        if layout is not None:
            end = replace(end, graph=end.convert_layout(layout, self.layout_of_image_operators))
        return end.graph if dtype is None else end.convert_dtype(dtype)

    def check_dtype(self, dtype: str) -> None:
        """Raise UsageError for a dtype that inputs and outputs cannot have."""
        if dtype not in _DTYPES:
            raise self.make_error(f"cannot have dtype {dtype!r}", "use one of " + ", ".join(_DTYPES))

    # ------------------------------------------------------------ preparation

    def insert_preprocessing(self, preparation: Preparation, dtype: str, layout: str) -> Graph:
        """Return the graph with preprocessing at this input, whose raw numbers then have the dtype ``dtype`` and the
        layout ``layout``.

        An empty layout means channels last for images, and the network's own layout for other inputs."""
        self.check_dtype(dtype)
        end, rank = self, len(self.tensor_type.shape)
        if preparation.is_image and rank != 4:
            raise self.make_error(
                f"is no image; got {rank} axes, expected 4",
                "leave out --input-colour, --input-frame, --input-crop and --input-resize",
            )
        own = self.layout_of_image_operators
        if not own and preparation.is_image:
            _, first, _, last = self.tensor_type.shape
            own = "NCHW" if first in (1, 3) and last not in (1, 3) else "NHWC"
        layout = layout or ("NHWC" if preparation.is_image else own)
        if layout:
            end = replace(end, graph=end.convert_layout(layout, own))
        channels = 1 if layout == "NCHW" and rank in CHANNELS_FIRST else rank - 1
        if preparation.normalize is not None:
            for step in build_normalisation_steps(
                preparation.normalize, end.tensor_type, channels, dtype, self.make_error
            ):
                end = replace(end, graph=end.insert_operator(step.op, step.attrs, step.outer_type, step.operands))
        elif dtypes.is_float(end.tensor_type.dtype) and dtype != end.tensor_type.dtype:
            cast = end.insert_operator("cast", {"dtype": end.tensor_type.dtype}, replace(end.tensor_type, dtype=dtype))
            end = replace(end, graph=cast)
        else:
            end = replace(end, graph=end.convert_dtype(dtype))
        if preparation.is_image:
            axes = (2, 3, 1) if layout == "NCHW" else (1, 2, 3)
            for step in build_frame_conversion_steps(preparation, end.tensor_type, axes, self.make_error):
                end = replace(end, graph=end.insert_operator(step.op, step.attrs, step.outer_type, step.operands))
        return end.graph

    # ------------------------------------------------------------ layout

    @property
    def layout_of_image_operators(self) -> str:
        """Layout of the network's convolutions and pools; empty if there are none or if they have different layouts."""
        own = {str(node.attrs["layout"]) for node in self.graph.nodes if "layout" in node.attrs}
        return own.pop() if len(own) == 1 else ""

    def convert_layout(self, target_layout: str, network_layout: str) -> Graph:
        """Return the graph with this input or output in ``target_layout``. ``network_layout``: layout that the network
        uses for it."""
        if target_layout not in LAYOUTS:
            raise self.make_error(f"cannot have layout {target_layout!r}", "use one of " + ", ".join(LAYOUTS))
        rank = len(self.tensor_type.shape)
        if network_layout == target_layout:
            return self.graph
        if rank not in CHANNELS_LAST:
            raise self.make_error(
                f"has no layout; got {rank} axes, expected 3 or 4", "leave out the layout for this tensor"
            )
        if not network_layout:
            raise self.make_error(
                "has an unknown layout: the network's convolutions and pools do not determine one",
                "leave out the layout",
            )
        first, last = CHANNELS_FIRST[rank], CHANNELS_LAST[rank]
        to_wanted, back = (first, last) if target_layout == "NCHW" else (last, first)
        axes: dict[str, Attr] = {"axes": back if self.side == "input" else to_wanted}
        return self.insert_operator("transpose", axes, permute_type(self.tensor_type, to_wanted))

    # ------------------------------------------------------------ dtype

    def convert_dtype(self, target_dtype: str) -> Graph:
        """Return the graph with this input or output in ``target_dtype``: quantised, dequantised, with other
        signedness, or cast."""
        kind, quant = self.tensor_type, self.tensor_type.quant
        if target_dtype == kind.dtype:
            return self.graph
        if quant is not None and quant.axis is None and target_dtype == "float32":
            outer = TensorType(kind.shape, target_dtype, layout=kind.layout)
            if self.side == "output":
                return self.insert_operator("dequantize", _attrs_of_quantize_node(quant), outer)
            return self.insert_operator("quantize", self.build_quantize_attrs(kind, Ties.AWAY), outer)
        if quant is not None and quant.axis is None and _differ_in_sign_only(target_dtype, kind.dtype):
            moved = quant.zero_point[0] + dtypes.int_range(target_dtype)[0] - dtypes.int_range(kind.dtype)[0]
            outer = replace(kind, dtype=target_dtype, quant=Quant(quant.scale, (moved,)))
            return self.insert_operator(
                "quantize", self.build_quantize_attrs(kind if self.side == "input" else outer, Multiplier.DOUBLE), outer
            )
        same_category = dtypes.is_float(target_dtype) == dtypes.is_float(kind.dtype)
        if quant is not None or not same_category:
            prefix = "quantised " if quant is not None else ""
            other = "float dtype" if dtypes.is_float(kind.dtype) else "integer dtype"
            expected = "float32 or the integer of other signedness" if quant else f"another {other}"
            raise self.make_error(f"is {prefix}{kind.dtype} and cannot become {target_dtype}", f"use {expected}")
        inner = kind.dtype if self.side == "input" else target_dtype
        return self.insert_operator("cast", {"dtype": inner}, replace(kind, dtype=target_dtype))

    def build_quantize_attrs(self, target_type: TensorType, rounding: str) -> dict[str, Attr]:
        """Return the attributes of a ``quantize`` node that computes a tensor of type ``target_type``.

        If the network rounds ties to even, this node does so, too; otherwise it uses ``rounding``."""
        assert target_type.quant is not None
        even = rounding_of_ties(self.graph) is Ties.EVEN
        return {
            **_attrs_of_quantize_node(target_type.quant),
            "out_dtype": target_type.dtype,
            "rounding": Ties.EVEN if even else rounding,
        }

    def replace_float_by_its_integers(self) -> Graph:
        """Return the graph with the float at this end replaced by the integers to which it is quantised, or from which
        it is dequantised."""
        graph, name = self.graph, self.name
        op, neighbours_of = (
            ("quantize", graph.consumers()) if self.side == "input" else ("dequantize", graph.producer())
        )
        neighbours = neighbours_of.get(name, ())
        nodes = neighbours if isinstance(neighbours, tuple) else (neighbours,)
        attrs = {(n.op, tuple(n.attrs.items())) for n in nodes}
        values = [n.outputs[0] if self.side == "input" else n.inputs[0] for n in nodes]
        fixed = {*graph.inputs, *graph.outputs, *graph.consts, *graph.state, *graph.updates.values()} - {name}
        is_read_elsewhere = self.side == "input" and (name in graph.outputs or name in graph.updates.values())
        if (
            len(attrs) != 1
            or nodes[0].op != op
            or len(nodes[0].attr("scale")) != 1
            or is_read_elsewhere
            or fixed & set(values)
        ):
            raise self.make_error(
                f"is {self.tensor_type.dtype} and cannot become an integer; expected "
                + (
                    "equal quantize operators of one scale as its only readers"
                    if self.side == "input"
                    else "a dequantize operator of one scale that computes it"
                ),
                "leave out the dtype for this tensor",
            )
        kind = graph.types[values[0]]
        quant = Quant(nodes[0].attr("scale"), nodes[0].attr("zero_point"))
        real = fresh_name(graph.types, f"{name}.real")
        names = {name: real, **dict.fromkeys(values, name)}
        is_removed = self.side == "input" or name not in graph.consumers()
        remaining = tuple(n for n in graph.nodes if not is_removed or n not in nodes)
        renamed = rename_values(replace(graph, nodes=remaining), names)
        types = {**renamed.types, name: replace(kind, quant=quant)}
        ends = replace(renamed, inputs=graph.inputs, outputs=graph.outputs, types=types)
        return ends.with_nodes(ends.nodes)

    # ------------------------------------------------------------ edit

    def insert_operator(
        self, op: str, attrs: Mapping[str, Attr], outer_type: TensorType, operands: Sequence[Array] = ()
    ) -> Graph:
        """Return the graph with an operator inserted at this input or output.

        The new outer value has type ``outer_type`` and keeps the name; the network's value gets another name. At an
        input, constant ``operands`` of the operator follow it."""
        graph, name = self.graph, self.name
        inner = fresh_name(graph.types, f"{name}.inner")
        renamed = rename_values(graph, {name: inner})
        types, consts = {**renamed.types, name: outer_type}, dict(renamed.consts)
        if self.side == "input":
            operand_names = [name]
            for array in operands:
                operand_names.append(fresh_name(types, f"{name}.{op}"))
                types[operand_names[-1]], consts[operand_names[-1]] = TensorType(array.shape, array.dtype.name), array
            nodes = (Node(op, tuple(operand_names), (inner,), attrs, graph.location_of_input(name)), *renamed.nodes)
            return replace(renamed, inputs=graph.inputs, types=types, consts=consts, nodes=nodes)
        nodes = (*renamed.nodes, Node(op, (inner,), (name,), attrs, graph.location_of_input(name)))
        return replace(renamed, outputs=graph.outputs, types=types, nodes=nodes)


def rounding_of_ties(graph: Graph) -> Ties:
    """Return the rounding of ties in this network, which operators at its inputs and outputs use, too."""
    even = any(node.attrs.get("rounding") == Rounding.EVEN for node in graph.nodes)
    return Ties.EVEN if even else Ties.AWAY


def _attrs_of_quantize_node(quant: Quant) -> dict[str, Attr]:
    """Return a quantisation with one scale as attributes of ``quantize`` and ``dequantize``."""
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}


def _differ_in_sign_only(first: str, second: str) -> bool:
    """Test whether two dtypes are integers of the same width, one signed and one unsigned."""
    return dtypes.dtype_parts(first).bits == dtypes.dtype_parts(second).bits and {
        dtypes.dtype_parts(first).kind,
        dtypes.dtype_parts(second).kind,
    } == {
        "int",
        "uint",
    }
