# SPDX-License-Identifier: Apache-2.0
"""Quantizer for PyTorch's PT2E flow (torchao): annotates the operators of an exported program that microc computes in integers.

:class:`MicrocQuantizer` is given to ``prepare_pt2e`` or ``prepare_qat_pt2e``. It walks over the program three times:

1. which operators compute in integers: those of the tables below whose operands allow it; moves, if a neighbour does;
2. which values have one scale: the operand and the result of a move, and all operands and the result of a concatenation;
3. the annotations. The first value of each scale is observed, all others refer to it.

torchao is imported when a program is annotated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from microc.base.immutable import frozen
from microc.errors import ToolError, UsageError

# ---- Operators by their form in integers, by the names that ATen has for them before decomposition. A trailing underscore (in
# place) is left out.

_LAYERS: Mapping[str, int] = MappingProxyType(
    {"conv1d": 0, "conv2d": 0, "conv_transpose1d": 1, "conv_transpose2d": 1, "linear": 0}
)
"""Layers with weights, with the axis of the output channels in their weights. Each channel has a scale."""
_CONVOLUTIONS = ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d")
"""Layers into which ``prepare_qat_pt2e`` folds the batch normalisation that follows."""
_PRODUCTS = ("bmm", "matmul", "mm")
_SUMS = ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "mean", "relu", "relu6", "sum")
"""Operators whose result has a scale of its own, for activations of 8 and of 16 bits.

An average has a scale of its own and not that of its operand: the mean of four integers is half way between two integers
every fourth time, where PyTorch's float sums round either way."""
_ARITHMETIC = ("add", "div", "mul", "sub")
_FUNCTIONS = (
    *("abs", "celu", "clamp", "clamp_max", "clamp_min", "cos", "elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish"),
    *("hardtanh", "leaky_relu", "log", "mish", "neg", "prelu", "reciprocal", "rsqrt", "selu", "sigmoid", "silu", "sin"),
    *("softmax", "softplus", "sqrt", "square", "tanh"),
)
"""Operators whose result has a scale of its own, for activations of 8 bits. Functions become tables of 256 numbers."""
_CLAMPS = ("clamp", "clamp_max", "clamp_min", "hardtanh", "relu", "relu6")
"""Functions that the operator before them computes when it rounds, if nothing else reads its result."""
_MOVES = (
    *("adaptive_max_pool2d", "amax", "amin", "channel_shuffle", "chunk", "clone", "constant_pad_nd", "contiguous"),
    *("detach", "dropout", "expand", "expand_as", "flatten", "flip", "getitem", "max_pool1d", "max_pool2d", "movedim"),
    *("narrow", "pad", "permute", "pixel_shuffle", "pixel_unshuffle", "repeat", "reshape", "roll", "select", "slice"),
    *("split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze"),
    *("upsample_nearest1d", "upsample_nearest2d", "view"),
)
"""Operators whose results are elements of their operand: both have one scale."""
_JOINS = ("cat", "concat", "maximum", "minimum", "stack")
"""Operators whose results are elements of several operands: all have one scale."""
_FIXED_RANGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"hardsigmoid": (0, 1), "sigmoid": (0, 1), "softmax": (0, 1), "tanh": (-1, 1)}
)
"""Functions of a known range. Their scales are those of TFLite: the range divided by the number of integers."""
_UNTRACKED = ("_assert_tensor_metadata", "getitem", "sym_size")
"""Calls that compute no numbers, which no report lists."""

_WAYS_ROUND: Mapping[str, str] = MappingProxyType(
    {
        "batch_norm": "place it directly behind a convolution, into whose weights it is folded",
        "gru": "use microc.quantize(dynamic_range=[...]) for it",
        "layer_norm": "use batch_norm behind a convolution",
        "lstm": "use microc.quantize(dynamic_range=[...]) for it",
        "scaled_dot_product_attention": "write it as matmul, softmax, matmul",
    }
)
"""Ways round, by operators that have no integer form."""

_BITS = (8, 4, 2)
_WEIGHT_EPS = 2.0**-20
"""Least scale of weights. A bias of up to 2048 times the scale of the data then fits int32, also for a channel without
weights: 2**31 * 2**-20."""


@frozen
class _ActivationType:
    """Name of the dtype of activations, its range, and its quantisation scheme in torch."""

    low: int
    high: int
    scheme: str


_ACTIVATIONS: Mapping[str, _ActivationType] = MappingProxyType(
    {
        "int8": _ActivationType(-128, 127, "per_tensor_affine"),
        "uint8": _ActivationType(0, 255, "per_tensor_affine"),
        "int16": _ActivationType(-(1 << 15), (1 << 15) - 1, "per_tensor_symmetric"),
    }
)


class MicrocQuantizer:
    """Quantizer for torchao's ``prepare_pt2e`` and ``prepare_qat_pt2e``.

    ``weights``: bits of weights, 8, 4 or 2, symmetric, with a scale for each output channel; layers with groups, whose weights
    are not packed, keep 8. ``activations``: int8, uint8 (with a zero point) or int16 (without). ``is_qat``: True for
    ``prepare_qat_pt2e``. ``float_layers``: names of modules (``features.0``) or of nodes that stay in floats.

    Biases are int32 at the accumulator's scale; with int16, and where a batch normalisation is folded in training, they stay
    floats, which microc rounds to the accumulator's scale. After ``prepare_pt2e``, ``float_operators`` maps the nodes that stay
    in floats to the reason. Raises UsageError for other arguments, and ToolError without torchao.
    """

    def __init__(
        self,
        *,
        weights: int = 8,
        activations: str = "int8",
        is_qat: bool = False,
        float_layers: Sequence[str] = (),
    ) -> None:
        if weights not in _BITS:
            raise UsageError(f"weights: got {weights!r}, expected one of {_BITS}", hint="use 8, 4 or 2 bits")
        if activations not in _ACTIVATIONS:
            raise UsageError(
                f"activations: got {activations!r}, expected one of {tuple(_ACTIVATIONS)}", hint="use int8 by default"
            )
        self.weights, self.activations, self.is_qat = weights, activations, is_qat
        self.float_layers = (float_layers,) if isinstance(float_layers, str) else tuple(float_layers)
        self.float_operators: dict[str, str] = {}
        self._specs = _SpecFactory(weights, activations, is_qat)

    def transform_for_annotation(self, model: Any) -> Any:
        """Return the program unchanged."""
        return model

    def annotate(self, model: Any) -> Any:
        """Annotate the nodes of a program (a ``torch.fx.GraphModule``) that compute in integers; return the program."""
        annotator = _ProgramAnnotator(model, self._specs, self.float_layers)
        annotator.choose_integer_nodes()
        annotator.group_scales()
        annotator.write_annotations()
        self.float_operators = annotator.float_operators
        return model

    def validate(self, model: Any) -> None:
        """Accept every program: what has no integer form is not annotated."""

    def prepare_obs_or_fq_callback(self, model: Any, edge_or_node_to_obs_or_fq: Any) -> None:
        """Leave the observers as they are."""


class _SpecFactory:
    """Factory of torchao's quantisation specifications."""

    def __init__(self, weight_bits: int, activations: str, is_qat: bool) -> None:
        try:
            import torch
            from torchao.quantization import pt2e
            from torchao.quantization.pt2e import quantizer
        except ImportError as error:
            raise ToolError(
                "MicrocQuantizer needs torchao, which is not installed", hint="install it: pip install torch torchao"
            ) from error
        self.torch, self.pt2e, self.classes = torch, pt2e, quantizer
        self.weight_bits, self.is_qat = weight_bits, is_qat
        self.dtype = getattr(torch, activations)
        self.type = _ACTIVATIONS[activations]
        self.has_integer_biases = self.type.high < 1 << 8

    def make_activation_spec(self) -> Any:
        """Return the specification of an activation: one scale, observed on data."""
        observer = self.pt2e.MinMaxObserver
        if self.is_qat:
            moving_average = self.pt2e.MovingAverageMinMaxObserver
            observer = self.pt2e.FusedMovingAvgObsFakeQuantize.with_args(observer=moving_average)
        elif self.has_integer_biases:
            # The histogram has as many bins as the dtype has integers: too slow for 16 bits, which need no clipping of outliers.
            observer = self.pt2e.HistogramObserver
        return self._make_spec(self.dtype, observer, self.type.low, self.type.high, self.type.scheme)

    def make_fixed_spec(self, low: int, high: int) -> Any:
        """Return the specification of a function with values from ``low`` to ``high``, -1, 0 or 1."""
        is_symmetric = low < 0 or self.type.scheme == "per_tensor_symmetric"
        span = 1 << 15 if not self.has_integer_biases else 1 << 7 if is_symmetric else 1 << 8
        zero_point = (self.type.low + self.type.high + 1) // 2 if is_symmetric else self.type.low
        return self.classes.FixedQParamsQuantizationSpec(
            dtype=self.dtype,
            scale=1 / span,
            zero_point=zero_point,
            quant_min=self.type.low,
            quant_max=self.type.high,
            qscheme=getattr(self.torch, self.type.scheme),
        )

    def make_weight_spec(self, channel_axis: int, has_groups: bool) -> Any:
        """Return the specification of weights with a scale for each channel along ``channel_axis``."""
        high = (1 << ((8 if has_groups else self.weight_bits) - 1)) - 1
        if self.is_qat:
            # ``ch_axis`` of the specification does not reach the observer inside of a fake quantiser.
            observer = self.pt2e.FusedMovingAvgObsFakeQuantize.with_args(
                observer=self.pt2e.MovingAveragePerChannelMinMaxObserver, eps=_WEIGHT_EPS, ch_axis=channel_axis
            )
        else:
            observer = self.pt2e.PerChannelMinMaxObserver.with_args(eps=_WEIGHT_EPS)
        return self._make_spec(self.torch.int8, observer, -high, high, "per_channel_symmetric", channel_axis)

    def make_table_spec(self) -> Any:
        """Return the specification of the rows of an embedding: one scale."""
        observer = self.pt2e.MinMaxObserver
        if self.is_qat:
            observer = self.pt2e.FusedMovingAvgObsFakeQuantize.with_args(observer=self.pt2e.MovingAverageMinMaxObserver)
        return self._make_spec(self.dtype, observer, self.type.low, self.type.high, self.type.scheme)

    def make_bias_spec(self, data_edge: Any, weight_edge: Any) -> Any:
        """Return the specification of a bias: int32, with the scale of data times that of each channel's weights."""

        def multiply_scales(observers: Sequence[Any]) -> tuple[Any, Any]:
            (data_scale, _), (weight_scale, _) = (observer.calculate_qparams() for observer in observers)
            scale = data_scale.reshape(-1) * weight_scale.reshape(-1)
            return scale, self.torch.zeros_like(scale, dtype=self.torch.int32)

        return self.classes.DerivedQuantizationSpec(
            derived_from=[data_edge, weight_edge],
            derive_qparams_fn=multiply_scales,
            dtype=self.torch.int32,
            quant_min=-(1 << 31),
            quant_max=(1 << 31) - 1,
            qscheme=self.torch.per_channel_symmetric,
            ch_axis=0,
        )

    def _make_spec(
        self, dtype: Any, observer: Any, low: int, high: int, scheme: str, channel_axis: int | None = None
    ) -> Any:
        return self.classes.QuantizationSpec(
            dtype=dtype,
            observer_or_fake_quant_ctr=observer,
            quant_min=low,
            quant_max=high,
            qscheme=getattr(self.torch, scheme),
            ch_axis=channel_axis,
        )


class _Scale:
    """Scale of values. ``fixed_range``: range that is known, or None. ``first``: the node or edge that is observed.

    ``merged_into``: the scale that replaces this one."""

    def __init__(self, fixed_range: tuple[int, int] | None = None) -> None:
        self.fixed_range = fixed_range
        self.first: Any = None
        self.merged_into: _Scale | None = None

    def find_root(self) -> _Scale:
        """Return the scale that stands for this one after all merges."""
        scale = self
        while scale.merged_into is not None:
            scale = scale.merged_into
        return scale


class _ProgramAnnotator:
    """Annotator of one program.

    ``integer_nodes``: nodes that compute or move integers. ``tails``: by node, the last node of those that it is fused with,
    whose result is quantised. ``scales``: the scale of every quantised value, by the node that computes it.
    ``float_operators``: reasons, by the names of nodes that stay in floats."""

    def __init__(self, program: Any, specs: _SpecFactory, float_layers: Sequence[str]) -> None:
        self.specs, self.float_layers = specs, float_layers
        self.nodes: list[Any] = list(program.graph.nodes)
        self.integer_nodes: set[Any] = set()
        self.tails: dict[Any, Any] = {}
        self.scales: dict[Any, _Scale] = {}
        self.float_operators: dict[str, str] = {}

    # ---- Nodes that compute in integers.

    def choose_integer_nodes(self) -> None:
        """Find the nodes that compute in integers, the nodes that are fused with them, and reasons for all others."""
        fused: set[Any] = set()
        faults: dict[Any, str] = {}
        moves = [node for node in self.nodes if _is_move(node) and _has_float_operand(node)]
        for node in self.nodes:
            if node.op != "call_function" or node in fused or _read_operator(node) in (*_MOVES, *_UNTRACKED):
                continue
            fault = self.find_fault(node)
            if fault:
                faults[node] = fault
                continue
            chain = self.find_fused_nodes(node)
            self.integer_nodes.add(node)
            self.tails[node] = chain[-1]
            fused.update(chain[1:])
        # A move is on integers if one of its readers is, which later moves decide first, or if what it reads is.
        computed = {*self.tails.values(), *self.integer_nodes}
        for node in reversed(moves):
            if not self.is_named_float(node) and any(user in self.integer_nodes for user in node.users):
                self.integer_nodes.add(node)
        for node in moves:
            source = _list_operands(node)[0]
            if not self.is_named_float(node) and (source in computed or source in self.integer_nodes):
                self.integer_nodes.add(node)
            if node not in self.integer_nodes:
                faults[node] = "its operand and its readers are floats"
        for node in self.nodes:
            if node in faults and node.users and _is_float_tensor(node) and _list_operands(node):
                self.float_operators[node.name] = f"{_read_operator(node)}: {faults[node]}"

    def find_fault(self, node: Any) -> str:
        """Return the reason why a node that is no move stays in floats; an empty string if it computes integers."""
        operator, operands = _read_operator(node), _list_operands(node)
        if self.is_named_float(node):
            return "named in float_layers"
        if operator == "embedding":
            return "" if operands[0].op == "get_attr" else "the rows are computed"
        if operator in (*_ARITHMETIC, *_FUNCTIONS) and not self.specs.has_integer_biases:
            return "no integer form with int16; use int8, or accept floats here"
        if operator not in (*_LAYERS, *_PRODUCTS, *_SUMS, *_ARITHMETIC, *_FUNCTIONS, *_JOINS):
            return f"no integer form; {_WAYS_ROUND.get(operator, 'use another operator, or accept floats here')}"
        if not _is_float_tensor(node) or not operands or not all(map(_is_float_tensor, operands)):
            return "an operand is no float32 tensor"
        if operator in _LAYERS:
            if any(operand.op != "get_attr" for operand in operands[1:]):
                return "weights or bias are computed; make them parameters of the module"
            if operator.startswith("conv_transpose") and len(node.args) > 6 and node.args[6] != 1:
                return "transposed convolution with groups; use groups=1"
        if operator == "adaptive_avg_pool2d" and any(
            extent % out and out != 1
            for extent, out in zip(operands[0].meta["val"].shape[-2:], node.meta["val"].shape[-2:], strict=True)
        ):
            return "the result's extents do not divide the operand's; use avg_pool2d"
        if operator == "softmax" and node.args[1] not in (-1, node.meta["val"].dim() - 1):
            return "dim is not the last axis; transpose the operand first"
        if node.kwargs.get("alpha", 1) != 1:
            return "alpha is not 1; multiply the operand first"
        if operator == "div" and node.kwargs.get("rounding_mode") is not None:
            return "rounding_mode; divide without it"
        return ""

    def is_named_float(self, node: Any) -> bool:
        """Test whether ``float_layers`` names a node or a module around it."""
        modules = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        names = {node.name, *(str(path).removeprefix("L['self'].") for path in modules)}
        return any(name in names for name in self.float_layers)

    def find_fused_nodes(self, node: Any) -> list[Any]:
        """Return ``node`` and the nodes that it is computed with: a batch normalisation in training, and a clamp."""
        chain = [node]
        if self.specs.is_qat and _read_operator(node) in _CONVOLUTIONS:
            chain += _find_only_user(node, ("batch_norm",))
        if _read_operator(node) not in (*_JOINS, *_FIXED_RANGES, *_CLAMPS, "embedding"):
            chain += [user for user in _find_only_user(chain[-1], _CLAMPS) if not self.is_named_float(user)]
        return chain

    # ---- Values of one scale.

    def group_scales(self) -> None:
        """Find the scale of every integer value, in the order of the program."""
        for node in self.nodes:
            if node not in self.integer_nodes:
                continue
            operator = _read_operator(node)
            operands = [self.scale_of(operand) for operand in self.list_quantised_operands(node)]
            if operator in _MOVES:
                self.scales[node] = operands[0]
            elif operator in _JOINS:
                self.scales[node] = _merge_scales(operands)
            else:
                is_fixed = self.tails[node] is node
                self.scales[self.tails[node]] = _Scale(_FIXED_RANGES.get(operator) if is_fixed else None)

    def scale_of(self, operand: Any) -> _Scale:
        """Return the scale of an operand; a new one for a value that is computed in floats."""
        return self.scales.setdefault(operand, _Scale()).find_root()

    def list_quantised_operands(self, node: Any) -> list[Any]:
        """Return the operands that have activations' scales: the data of a layer, all float tensors of other nodes."""
        operands = _list_operands(node)
        if _read_operator(node) == "embedding":
            return []
        return operands[:1] if _read_operator(node) in (*_LAYERS, *_MOVES, "prelu") else operands

    # ---- Annotations.

    def write_annotations(self) -> None:
        """Annotate all integer nodes, in the order of the program, which is the order in which torchao reads scales."""
        outputs = {self.tails.get(node, node) for node in self.integer_nodes}
        for node in self.nodes:
            if node not in self.integer_nodes and node not in outputs:
                continue
            inputs: dict[Any, Any] = {}
            if node in self.integer_nodes:
                for operand in self.list_quantised_operands(node):
                    inputs.setdefault(operand, self.make_spec(self.scale_of(operand), (operand, node)))
                self.add_constant_operands(node, inputs)
            output = self.make_spec(self.scales[node].find_root(), node) if node in outputs else None
            node.meta["quantization_annotation"] = self.specs.classes.QuantizationAnnotation(
                input_qspec_map=inputs, output_qspec=output, allow_implicit_sharing=False, _annotated=True
            )

    def add_constant_operands(self, node: Any, inputs: dict[Any, Any]) -> None:
        """Add the specifications of a layer's weights and bias, and of the rows of an embedding."""
        operator, operands = _read_operator(node), _list_operands(node)
        if operator == "embedding":
            inputs[operands[0]] = self.specs.make_table_spec()
        if operator not in _LAYERS:
            return
        data, weight, *bias = operands
        axis = _LAYERS[operator]
        # Weights of a convolution with groups have fewer input channels than the data, whose channels are before the windows.
        rank = weight.meta["val"].dim()
        has_groups = (
            operator in ("conv1d", "conv2d") and weight.meta["val"].shape[1] != data.meta["val"].shape[1 - rank]
        )
        inputs[weight] = self.specs.make_weight_spec(axis, has_groups)
        is_folded = bool(_find_only_user(node, ("batch_norm",)))
        if bias and self.specs.has_integer_biases and not is_folded:
            inputs[bias[0]] = self.specs.make_bias_spec((data, node), (weight, node))

    def make_spec(self, scale: _Scale, edge_or_node: Any) -> Any:
        """Return the specification of a value: of its own if it is the first of its scale, else a shared one."""
        if scale.first is not None:
            return self.specs.classes.SharedQuantizationSpec(scale.first)
        scale.first = edge_or_node
        if scale.fixed_range is not None:
            return self.specs.make_fixed_spec(*scale.fixed_range)
        return self.specs.make_activation_spec()


def _merge_scales(scales: Sequence[_Scale]) -> _Scale:
    """Merge the scales of the operands of a concatenation; return the scale of its result.

    Fixed ranges are not merged with others: such operands are rescaled."""
    if len({scale.fixed_range for scale in scales}) == 1 and scales[0].fixed_range is not None:
        return scales[0]
    free = [scale for scale in scales if scale.fixed_range is None] or [_Scale()]
    for scale in free[1:]:
        if scale.find_root() is not free[0].find_root():
            scale.find_root().merged_into = free[0].find_root()
    return free[0].find_root()


def _read_operator(node: Any) -> str:
    """Return the name of the operator that a node calls, without namespace, overload and the underscore of operators in
    place; an empty string for other nodes."""
    if node.op != "call_function":
        return ""
    schema = getattr(node.target, "_schema", None)
    name = getattr(node.target, "__name__", "") if schema is None else schema.name.split("::")[-1]
    return str(name).rstrip("_")


def _list_operands(node: Any) -> list[Any]:
    """Return the nodes among the arguments of a node, in order; those in lists, too."""
    arguments: Iterable[Any] = (*node.args, *node.kwargs.values())
    flat = [part for part in arguments for part in (part if isinstance(part, (list, tuple)) else (part,))]
    return [part for part in flat if hasattr(part, "users")]


def _is_float_tensor(node: Any) -> bool:
    """Test whether the result of a node is a float32 tensor, or several."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (list, tuple)) and value else value
    return str(getattr(value, "dtype", "")) == "torch.float32"


def _is_move(node: Any) -> bool:
    """Test whether a node's results are elements of its operand.

    A getitem of a layer's results (lstm) is no move, because the layer computes them."""
    operator = _read_operator(node)
    return operator in _MOVES and (operator != "getitem" or _read_operator(node.args[0]) in _MOVES)


def _has_float_operand(node: Any) -> bool:
    operands = _list_operands(node)
    return bool(operands) and _is_float_tensor(operands[0])


def _find_only_user(node: Any, operators: Sequence[str]) -> list[Any]:
    """Return the only reader of a node if it calls one of ``operators``, else an empty list."""
    users = list(node.users)
    return users if len(users) == 1 and _read_operator(users[0]) in operators else []
