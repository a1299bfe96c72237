# SPDX-License-Identifier: Apache-2.0
"""Find the quantisation points of a float network: the values that become integers, their number of bits, and common
scales."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node, Quant
from microc.ops import registry
from microc.quantization.calibration_data import storage_of_values_from_input_bytes
from microc.quantization.integer_scheme import Activation
from microc.quantization.network_structure import DataFlow, ValueLink, find_loop_invariants, flatten_graph
from microc.transform.quantised.qdq import find_constant_addition_after, has_integer_form
from microc.transform.quantised.qdq_values import CHOICES, CLAMPS, JOINS, only_moves_elements

# ---- The result: a record of all quantisation points.


@frozen
class QuantisationPoints:
    """Quantisation points of a network: the values that become integers.

    ``values``: activations that become integers, in the order of the network. ``leader_by_value``: for each of these
    values the representative (leader) of the group of values that share its scale. ``weights``: constants with a scale
    for each channel. ``constants``: constants with a single scale. ``result_by_table``: constants whose elements an
    operator only moves or selects, each mapped to the result of this operator. The constant has the scale of the
    result.

    ``loop_invariants``: values that a loop passes unchanged to all iterations, by their names in the loop's body. The
    same values are in ``values`` under their names outside of the loop. ``values_with_16_bits``: values with 16 bits.
    ``values_read_in_8_bits``: 16-bit values that layers read in 8 bits. ``results_with_16_bits``: results of operators
    that were chosen to have 16-bit activations. ``storage_known_without_data``: dtype, scale and zero point of values
    that require no calibration. ``bounds_by_leader``: bounds (low, high) that hold for any sample, by leader.
    ``dequantised_weights``: integer weights of layers that compute in floats."""

    values: tuple[str, ...]
    leader_by_value: dict[str, str]
    weights: tuple[str, ...]
    constants: tuple[str, ...]
    result_by_table: dict[str, str]
    loop_invariants: frozenset[str]
    values_with_16_bits: frozenset[str]
    values_read_in_8_bits: frozenset[str]
    results_with_16_bits: frozenset[str]
    storage_known_without_data: dict[str, Activation]
    bounds_by_leader: dict[str, tuple[float, float]]
    dequantised_weights: tuple[str, ...] = ()

    @property
    def values_to_observe(self) -> list[str]:
        """Names of the values for which calibration collects statistics: all but those in ``loop_invariants``."""
        return [value for value in self.values if value not in self.loop_invariants]

    def groups(self) -> dict[str, list[str]]:
        """Return the groups of values that share a scale, by leader. The values of a group are in the order of
        ``values``."""
        by_leader: dict[str, list[str]] = {}
        for value in self.values:
            by_leader.setdefault(self.leader_by_value[value], []).append(value)
        return by_leader


# ---- Values that share a scale, and scales that need no calibration.
#
# Both follow from the integer operators into which :mod:`microc.transform.quantised.qdq` converts ``dequantize -> operator ->
# quantize``.

_ADDITIONS = frozenset(("add", "sub"))
_UNIT_INT16 = Activation("int16", Quant((2.0**-15,), (0,)))
"""Storage of numbers from -1 to 1 as int16."""
SATURATING_STORAGE: Mapping[str, Activation] = MappingProxyType({"sigmoid": _UNIT_INT16, "tanh": _UNIT_INT16})
"""Storage of the 16-bit results of operators that saturate, by operator. TFLite defines the same scales."""
FIXED_STORAGE: Mapping[str, Activation] = MappingProxyType(
    {
        "log_softmax": Activation("int8", Quant((1 / 16,), (127,))),
        "l2_normalize": Activation("int8", Quant((1 / 128,), (0,))),
    }
)
"""Storage of the 8-bit results of operators whose integer form supports no other scale, by operator.

TFLite defines the same scales."""

_ZERO_TO_ONE, _MINUS_ONE_TO_ONE = (0.0, 1.0), (-1.0, 1.0)
RESULT_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **dict.fromkeys(("softmax", "sigmoid", "hard_sigmoid"), _ZERO_TO_ONE),
        **dict.fromkeys(("tanh", "erf", "sin", "cos", "softsign", "l2_normalize"), _MINUS_ONE_TO_ONE),
    }
)
"""Bounds (low, high) of the results of operators for any operand, by operator."""


class ScaleGroups:
    """Groups of values that must have the same scale, found by union-find.

    ``values``: all values that become integers. ``wide``: values with 16 bits; all others have 8 bits. ``leader``: the
    parent of each value in the union-find structure; the root is the representative of the group (see
    :meth:`find_leader`)."""

    def __init__(self, flow: DataFlow, values: Sequence[str], wide: frozenset[str]) -> None:
        self.flow, self.values, self.wide = flow, values, wide
        self.leader = {value: value for value in values}
        for a, b in flow.links:
            if a in self.leader:
                self.join_groups(a, b)
        for node in flow.graph.nodes:
            if node.outputs[0] in self.leader:
                self.join_values_of_node(node)

    def join_values_of_node(self, node: Node) -> None:
        """Join the groups of a node's operands and result, as far as these must have the same scale.

        An operator that only moves or chooses elements: its first operand and its result. A 16-bit addition or
        subtraction: its result and its 16-bit operands, except results of functions that saturate. A concatenation: its
        result and the operands that no other operator reads."""
        if self.flow.keeps_scale(node) and node.inputs[0] in self.leader:
            self.join_groups(node.inputs[0], node.outputs[0])
        elif node.op in _ADDITIONS and node.outputs[0] in self.wide:
            for name in self.flow.activations(node):
                if name in self.wide and not self.is_result_of_saturating_function(name):
                    self.join_groups(name, node.outputs[0])
        elif node.op == "concat":
            for name in node.inputs:
                is_only_reader = len(self.flow.consumers[name]) == 1 and name not in self.flow.graph.outputs
                if name in self.leader and is_only_reader:
                    self.join_groups(name, node.outputs[0])

    def find_leader(self, value: str) -> str:
        """Return the representative of the group of values that share a value's scale."""
        while self.leader[value] != value:
            value = self.leader[value]
        return value

    def join_groups(self, value: str, other_value: str) -> None:
        """Join the groups of the values ``value`` and ``other_value``, so that they share a scale, if both have the
        same number of bits."""
        if (value in self.wide) == (other_value in self.wide):
            value, other_value = self.find_leader(value), self.find_leader(other_value)
            self.leader[other_value] = value

    def is_result_of_saturating_function(self, value: str) -> bool:
        """Test whether a value is the result of a function that saturates, such as sigmoid."""
        return value in self.flow.makers and self.flow.makers[value].op in SATURATING_STORAGE

    def storage_without_calibration(self) -> dict[str, Activation]:
        """Return the storage of values whose scale is known without calibration.

        Such values are results of operators with a fixed scale (:data:`SATURATING_STORAGE`, :data:`FIXED_STORAGE`), and
        values whose elements are moved from such results. State is included only if its initial value is zero."""
        state = self.flow.graph.state
        linked_values = {
            link.target for link in self.flow.links if link.target not in state or not state[link.target].any()
        }
        by_leader = dict[str, Activation]()
        for leader, ops in self.operators_by_leader(linked_values).items():
            op_storages = {SATURATING_STORAGE.get(op, FIXED_STORAGE.get(op)) for op in ops}
            storage = op_storages.pop() if len(op_storages) == 1 else None
            if storage is not None:
                by_leader[leader] = storage
        storages = ((value, by_leader.get(self.find_leader(value))) for value in self.values)
        return {
            value: storage
            for value, storage in storages
            if storage is not None and (storage.dtype == "int16") == (value in self.wide)
        }

    def operators_by_leader(self, excluded: Collection[str] = ()) -> dict[str, set[str]]:
        """Return the names of the operators that compute the values of each group, by the leader of the group.

        The empty name stands for an input. Operators that only move or choose elements are left out, as are operators
        that compute values in ``excluded``."""
        operators: dict[str, set[str]] = {}
        for value in self.values:
            maker = self.flow.makers.get(value)
            if value not in excluded and not (maker is not None and self.flow.keeps_scale(maker)):
                operators.setdefault(self.find_leader(value), set()).add(maker.op if maker is not None else "")
        return operators

    def bounds_by_leader(self) -> dict[str, tuple[float, float]]:
        """Return bounds (low, high) of the values of each group that hold for any sample, by the leader of the group.

        A group is left out if one of its values is not the result of a bounded function."""
        operators = self.operators_by_leader()
        bounds_of_operators = {leader: [RESULT_BOUNDS.get(op) for op in ops] for leader, ops in operators.items()}
        return {
            leader: (min(low for low, _ in known_bounds), max(high for _, high in known_bounds))
            for leader, bounds in bounds_of_operators.items()
            if (known_bounds := [bound for bound in bounds if bound is not None]) and len(known_bounds) == len(bounds)
        }

    def storage_of_input_bytes(self, byte_storage: Mapping[str, Activation | None]) -> dict[str, Activation]:
        """Return the storage of values that are functions of a byte of an input, and of values that are moved from such
        values.

        ``byte_storage``: the storage of values that are functions of a byte, as
        :func:`storage_of_values_from_input_bytes` returns it."""
        sources: dict[str, set[Activation | None]] = {}
        for value in self.values:
            maker = self.flow.makers.get(value)
            if maker is None or not (self.flow.keeps_scale(maker) and self.flow.is_activation(maker.inputs[0])):
                sources.setdefault(self.find_leader(value), set()).add(byte_storage.get(value))
        by_leader = {
            leader: next(iter(group_storages)) for leader, group_storages in sources.items() if len(group_storages) == 1
        }
        storages = ((value, by_leader.get(self.find_leader(value))) for value in self.values if value not in self.wide)
        return {value: storage for value, storage in storages if storage is not None}


# ---- Search for quantisation points, and for those that need 16 bits.
#
# The points follow from the integer operators that :mod:`microc.transform.quantised.qdq` generates. Rounding errors accumulate
# over the iterations of a loop, and over runs that state connects. Values that are computed there therefore have 16 bits, except
# values that only layers read, because layers are the bulk of the work. State whose elements are only moved, such as a window of
# past inputs, has 8 bits.


def find_quantisation_points(
    graph: Graph,
    floating: frozenset[str] = frozenset(),
    wide: frozenset[str] = frozenset(),
    weight_only: frozenset[str] = frozenset(),
) -> QuantisationPoints:
    """Find the quantisation points of a float graph: the values that become integers.

    The options name operators by their results. ``floating``: operators that are computed in floats, including the bias
    and clamp that follow a layer. ``wide``: operators with 16-bit activations. ``weight_only``: layers with integer
    weights that compute in floats."""
    points = _QuantisationPointFinder(graph, floating | weight_only, wide).find_points()
    opened = (node.inputs[1] for node in flatten_graph(graph).nodes if node.outputs[0] in weight_only)
    return replace(
        points, dequantised_weights=tuple(dict.fromkeys(name for name in opened if name not in points.weights))
    )


class _QuantisationPointFinder(DataFlow):
    """Finder of the quantisation points of a network: the values that become integers.

    ``absorbed``: results of nodes that are fused with the preceding operator; such a node is not quantised on its own.
    ``float_results``: results of operators that are computed in floats. ``byte_storage``: storage of values that are
    functions of a byte of an input. ``wide``: values with 16 bits. ``widened``: results of operators that were chosen
    to have 16-bit activations."""

    def __init__(self, graph: Graph, floating: frozenset[str], wide: frozenset[str]) -> None:
        super().__init__(graph)
        self.widened = wide
        self.byte_storage = storage_of_values_from_input_bytes(self.graph)
        self.absorbed: set[str] = set()
        self.float_results = self.add_fused_results(floating)
        self.wide = self.find_16_bit_values()

    def find_points(self) -> QuantisationPoints:
        """Return the quantisation points: the operands and results of all operators that become integer operators.

        Values whose elements are moved from or to such operands and results are included."""
        points: set[str] = set()
        weights, constants = dict[str, None](), dict[str, None]()
        for node in self.graph.nodes:
            # A fused node belongs to the operator before it: only the result of the whole is a quantisation point.
            if not self.becomes_integer_operator(node) or node.outputs[0] in self.absorbed:
                continue
            points.update(self.activations(node))
            points.add(self.absorb_following_clamps(self.absorb_fused_constants(node)))
            for operand_index, name in enumerate(node.inputs):
                if name in self.graph.consts and self.is_float(name) and not self.is_bias_or_table(node, operand_index):
                    (weights if registry.is_layer(node) else constants)[name] = None
        points = self.add_values_of_same_scale(points)
        values = [value for value in self.all_values() if value in points]
        scales = ScaleGroups(self, values, self.wide)
        tables = {
            node.inputs[0]: node.outputs[0]
            for node in self.graph.nodes
            if self.keeps_scale(node) and node.outputs[0] in points and node.inputs[0] in self.graph.consts
        }
        return QuantisationPoints(
            values=tuple(values),
            leader_by_value={value: scales.find_leader(value) for value in values},
            weights=tuple(weights),
            constants=tuple(name for name in constants if name not in weights and name not in tables),
            result_by_table=tables,
            loop_invariants=frozenset(
                b for node in self.graph.nodes for a, b in find_loop_invariants(node) if self.is_activation(a)
            ),
            values_with_16_bits=self.wide,
            values_read_in_8_bits=frozenset(node.inputs[0] for node in self.graph.nodes if self.reads_8_bit_data(node))
            & self.wide,
            results_with_16_bits=self.widened,
            storage_known_without_data=scales.storage_without_calibration()
            | scales.storage_of_input_bytes(self.byte_storage),
            bounds_by_leader=scales.bounds_by_leader(),
        )

    def add_fused_results(self, floating: frozenset[str]) -> frozenset[str]:
        """Add to ``floating`` the results of nodes that are fused with these operators, and return the set.

        Fused nodes add or multiply a constant, or clamp. ``floating``: results of operators that are computed in
        floats."""
        self.float_results = frozenset()
        for node in self.graph.nodes:
            if node.outputs[0] in floating:
                self.absorb_following_clamps(self.absorb_fused_constants(node))
        with_fused_results, self.absorbed = floating | self.absorbed, set()
        return with_fused_results

    def becomes_integer_operator(self, node: Node) -> bool:
        """Test whether an operator becomes an integer operator.

        It does if it has an integer form, if it is not computed in floats, and if its result is no function of a byte
        of an input."""
        return (
            node.outputs[0] not in self.float_results
            and node.outputs[0] not in self.byte_storage
            and self.is_float(node.outputs[0])
            and has_integer_form(node, self.graph)
        )

    @staticmethod
    def is_bias_or_table(node: Node, operand_index: int) -> bool:
        """Test whether an operand of a node is a bias, or a table whose elements are no quantities, such as indices.

        Neither has a scale of its own: a bias has the scale of the sums to which it is added."""
        return (registry.is_layer(node) and operand_index == 2) or (operand_index > 0 and registry.get(node.op).tables)

    def absorb_fused_constants(self, node: Node) -> str:
        """Return the result of an operator after the constants that are fused with it, and record these results as
        absorbed.

        A constant (bias) that is added is fused with a layer. A constant factor and a constant term are fused with a
        layer normalisation."""
        if node.op == "layer_norm":
            return self.absorb_operators_with_constants(node, "mul", "add")
        if not registry.is_layer(node):
            return node.outputs[0]
        sum_ = find_constant_addition_after(
            node, self.graph.types[node.inputs[1]].shape[0], self.graph.types, self.only_user
        )
        if sum_ is None or sum_.constant_name not in self.graph.consts or sum_.output in self.float_results:
            return node.outputs[0]
        self.absorbed.add(sum_.output)
        return sum_.output

    def absorb_operators_with_constants(self, node: Node, *ops: str) -> str:
        """Return the result of the operators with constants that follow a node, and record their results as absorbed.

        ``ops``: names of these operators, in order. The sequence ends early if the next operator is missing, or if its
        operand has several readers."""
        value = node.outputs[0]
        for op in ops:
            user = self.only_user(value)
            if (
                user is None
                or user.op != op
                or user.outputs[0] in self.float_results
                or user.attrs.get("activation", "")
            ):
                break
            if not any(name in self.graph.consts for name in user.inputs):
                break
            value = user.outputs[0]
            self.absorbed.add(value)
        return value

    def absorb_following_clamps(self, value: str) -> str:
        """Return the result of the last clamp that follows ``value``, and record the results of the clamps as absorbed.

        A clamp must be the only reader of its operand. Without such a clamp, return ``value`` itself."""
        user = self.only_user(value)
        if user is not None and user.op in CLAMPS and user.outputs[0] not in self.float_results:
            self.absorbed.add(user.outputs[0])
            return self.absorb_following_clamps(user.outputs[0])
        return value

    def add_values_of_same_scale(self, values: set[str]) -> set[str]:
        """Add to ``values`` all values that have the scale of one of its values, and return the set.

        Such values are operands and results of operators that only move or choose elements, and other names of the same
        value: in the body of a loop, in the next iteration or in the next run."""
        count = -1
        while count != len(values):
            count = len(values)
            for node in reversed(self.graph.nodes):
                if self.keeps_scale(node) and node.outputs[0] in values:
                    values.update(self.activations(node))
            for node in self.graph.nodes:
                if self.keeps_scale(node) and any(name in values for name in node.inputs[:1]):
                    values.add(node.outputs[0])
            for link in self.links:
                if not values.isdisjoint(link):
                    values.update(link)
        return values

    def find_16_bit_values(self) -> frozenset[str]:
        """Return the values with 16 bits.

        These are the operands of recurrent operators other than layers, and the values of operators for which the user
        requested 16 bits. Values from which other 16-bit values are moved, clamped or joined have 16 bits too, within a
        run, between iterations and between runs."""
        flows, wide = list(self.links), set[str]()
        for node in self.graph.nodes:
            if only_moves_elements(node) or node.op in CLAMPS | CHOICES | JOINS:
                flows += (ValueLink(name, node.outputs[0]) for name in self.activations(node))
            elif not registry.is_layer(node) and node.op != "loop" and node.outputs[0] in self.recurrent:
                wide.update(self.activations(node))
        wide |= self.find_requested_16_bits()
        count = -1
        while count != len(wide):
            count = len(wide)
            wide.update(name for name, result in reversed(flows) if result in wide)
        return frozenset(wide)

    def find_requested_16_bits(self) -> set[str]:
        """Return the values that have 16 bits because the user requested 16 bits for operators.

        These are the operands and results of such operators. The results of other operators that are neither layers nor
        recurrent are included if all their operands have 16 bits. A result that only 8-bit layers read is left out."""
        wide_values = set[str]()
        for node in self.graph.nodes:
            if not self.becomes_integer_operator(node) or node.outputs[0] in self.absorbed or node.op == "loop":
                continue
            result, data = self.absorb_following_clamps(self.absorb_fused_constants(node)), list(self.activations(node))
            is_requested = node.outputs[0] in self.widened
            wide_values.update(data if is_requested else ())
            follows = (
                not registry.is_layer(node)
                and node.outputs[0] not in self.recurrent
                and data
                and wide_values.issuperset(data)
            )
            if (is_requested or follows) and not self.is_read_by_8_bit_layers_only(result):
                wide_values.add(result)
        return wide_values

    def is_read_by_8_bit_layers_only(self, value: str) -> bool:
        """Test whether only 8-bit layers read a value, directly or after operators that only move or choose
        elements."""
        users = () if value in self.graph.outputs else self.consumers.get(value, ())
        moved = (self.keeps_scale(user) and self.is_read_by_8_bit_layers_only(user.outputs[0]) for user in users)
        return bool(users) and all(a or self.reads_8_bit_data(user) for a, user in zip(moved, users, strict=True))

    def reads_8_bit_data(self, node: Node) -> bool:
        """Test whether a node is a layer that reads its data in 8 bits."""
        return registry.is_layer(node) and node.outputs[0] not in self.widened
