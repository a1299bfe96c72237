"""Find the quantisation points of a float network: the values that become integers, their number of bits, and common scales."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node, Quant
from microc.ops import registry
from microc.quantization.calibration_data import storage_of_byte_functions
from microc.quantization.integer_scheme import Activation
from microc.quantization.network_structure import DataFlow, flatten_graph, loop_operands
from microc.transform.quantised.qdq import LAYERS, find_constant_sum_after, has_integer_form
from microc.transform.quantised.qdq_values import CHOICES, CLAMPS, JOINS, moves_elements

# ---- The result: a record of all quantisation points.


@frozen
class QuantisationPoints:
    """Quantisation points of a network: the values that become integers.

    ``values``: activations that become integers, in order. ``leader``: for each of these values the representative of the
    values that share its scale. ``weights``: constants with a scale for each channel. ``constants``: constants with a single
    scale. ``tables``: constants whose elements an operator only moves or selects, each with the result of this operator, whose
    scale the constant has.

    ``given``: values that a loop passes unchanged to all iterations, by their names in its body. They are also in ``values``
    under their names outside. ``wide``: values with 16 bits. ``narrowed``: those of the latter that layers read in fewer bits,
    except layers whose results are in ``widened``. ``known``: storage of values whose range requires no calibration.
    ``reach``: bounds that hold for any sample, by leader. ``opened``: integer weights of layers that compute in floats.
    """

    values: tuple[str, ...]
    leader: dict[str, str]
    weights: tuple[str, ...]
    constants: tuple[str, ...]
    tables: dict[str, str]
    given: frozenset[str]
    wide: frozenset[str]
    narrowed: frozenset[str]
    widened: frozenset[str]
    known: dict[str, Activation]
    reach: dict[str, tuple[float, float]]
    opened: tuple[str, ...] = ()

    @property
    def seen(self) -> list[str]:
        """Names of the values for which calibration collects statistics."""
        return [value for value in self.values if value not in self.given]

    def groups(self) -> dict[str, list[str]]:
        """Map the leader (representative) of each group of values that share a scale to the values of the group, in order."""
        by_leader: dict[str, list[str]] = {}
        for value in self.values:
            by_leader.setdefault(self.leader[value], []).append(value)
        return by_leader


# ---- Values that share a scale, and scales that need no calibration.
#
# Both follow from the integer operators into which :mod:`microc.transform.quantised.qdq` converts ``dequantize -> operator ->
# quantize``.

_SUMS = frozenset(("add", "sub"))
_ONE = Activation("int16", Quant((2.0**-15,), (0,)))
SATURATING: Mapping[str, Activation] = MappingProxyType({"sigmoid": _ONE, "tanh": _ONE})
"""Storage of the 16-bit results of functions that saturate, by operator: that of TFLite."""
FIXED: Mapping[str, Activation] = MappingProxyType(
    {
        "log_softmax": Activation("int8", Quant((1 / 16,), (127,))),
        "l2_normalize": Activation("int8", Quant((1 / 128,), (0,))),
    }
)
"""Storage of the 8-bit results of operators whose integer form supports no other scale, by operator: that of TFLite."""

_SHARE, _SINE = (0.0, 1.0), (-1.0, 1.0)
REACH: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **dict.fromkeys(("softmax", "sigmoid", "hard_sigmoid"), _SHARE),
        **dict.fromkeys(("tanh", "erf", "sin", "cos", "softsign", "l2_normalize"), _SINE),
    }
)
"""Bounds of the results of operators, which hold for any operand, by operator."""


class ScaleGroups:
    """Groups of ``values`` that must have the same scale, found by union-find. Values in ``wide`` have 16 bits.

    ``leader``: the parent of each value in the union-find structure; :meth:`find` returns the representative of its group.
    """

    def __init__(self, flow: DataFlow, values: Sequence[str], wide: frozenset[str]) -> None:
        self.flow, self.values, self.wide = flow, values, wide
        self.leader = {value: value for value in values}
        for a, b in flow.links:
            if a in self.leader:
                self.join(a, b)
        for node in flow.graph.nodes:
            if node.outputs[0] in self.leader:
                self.share(node)

    def share(self, node: Node) -> None:
        """Join the groups of the values of a node that must have the same scale.

        They are the operand and the result of an operator that only moves or chooses elements; the result of a 16-bit sum and
        its 16-bit operands, except results of functions that saturate; and the result of a concatenation and those operands
        that no other operator reads."""
        if self.flow.keeps_scale(node) and node.inputs[0] in self.leader:
            self.join(node.inputs[0], node.outputs[0])
        elif node.op in _SUMS and node.outputs[0] in self.wide:
            for name in self.flow.activations(node):
                if name in self.wide and not self.saturates(name):
                    self.join(name, node.outputs[0])
        elif node.op == "concat":
            for name in node.inputs:
                is_only_reader = len(self.flow.consumers[name]) == 1 and name not in self.flow.graph.outputs
                if name in self.leader and is_only_reader:
                    self.join(name, node.outputs[0])

    def find(self, value: str) -> str:
        """Return the representative of the group of values that share a value's scale."""
        while self.leader[value] != value:
            value = self.leader[value]
        return value

    def join(self, a: str, b: str) -> None:
        """Join the groups of two values, which then share a scale, if the values have the same number of bits."""
        if (a in self.wide) == (b in self.wide):
            a, b = self.find(a), self.find(b)
            self.leader[b] = a

    def saturates(self, value: str) -> bool:
        """Test whether a value is the result of a function that saturates, such as sigmoid."""
        return value in self.flow.makers and self.flow.makers[value].op in SATURATING

    def known_storage(self) -> dict[str, Activation]:
        """Return the storage of values whose scale is known without calibration.

        They are results of functions with a fixed scale (:data:`SATURATING`, :data:`FIXED`), and values whose elements are
        moved from such results. State is among them only if its initial value is zero.
        """
        state = self.flow.graph.state
        linked = {into for _, into in self.flow.links if into not in state or not state[into].any()}
        by_leader = dict[str, Activation]()
        for leader, ops in self.group_operators(linked).items():
            op_storages = {SATURATING.get(op, FIXED.get(op)) for op in ops}
            storage = op_storages.pop() if len(op_storages) == 1 else None
            if storage is not None:
                by_leader[leader] = storage
        storages = ((value, by_leader.get(self.find(value))) for value in self.values)
        return {
            value: storage
            for value, storage in storages
            if storage is not None and (storage.dtype == "int16") == (value in self.wide)
        }

    def group_operators(self, without: Collection[str] = ()) -> dict[str, set[str]]:
        """Return the names of the operators that compute the values of each group, by the representative of the group.

        The name for an input is empty. Operators that only move or choose elements, and those that compute values in
        ``without``, are left out.
        """
        operators: dict[str, set[str]] = {}
        for value in self.values:
            maker = self.flow.makers.get(value)
            if value not in without and not (maker is not None and self.flow.keeps_scale(maker)):
                operators.setdefault(self.find(value), set()).add(maker.op if maker is not None else "")
        return operators

    def reach(self) -> dict[str, tuple[float, float]]:
        """Return bounds that hold for any sample, by the representative of each group of values.

        Groups with a value that is not the result of a bounded function are left out."""
        ends = {leader: [REACH.get(op) for op in ops] for leader, ops in self.group_operators().items()}
        return {
            leader: (min(low for low, _ in known_bounds), max(high for _, high in known_bounds))
            for leader, bounds in ends.items()
            if (known_bounds := [bound for bound in bounds if bound is not None]) and len(known_bounds) == len(bounds)
        }

    def known_bytes(self, raw: Mapping[str, Activation | None]) -> dict[str, Activation]:
        """Return the storage of values that equal bytes of 8-bit inputs, and of values that are only moved from such values.

        ``raw``: the storage of values that are functions of a byte, as :func:`storage_of_byte_functions` returns it."""
        sources: dict[str, set[Activation | None]] = {}
        for value in self.values:
            maker = self.flow.makers.get(value)
            if maker is None or not (self.flow.keeps_scale(maker) and self.flow.is_activation(maker.inputs[0])):
                sources.setdefault(self.find(value), set()).add(raw.get(value))
        by_leader = {
            leader: next(iter(group_storages)) for leader, group_storages in sources.items() if len(group_storages) == 1
        }
        storages = ((value, by_leader.get(self.find(value))) for value in self.values if value not in self.wide)
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

    ``floating``: results of the operators that are computed in floats, together with a bias and a clamp that follow a layer.
    ``wide``: results of the operators with 16-bit activations. ``weight_only``: results of the layers that compute in floats and
    have integer weights.
    """
    points = _PointFinder(graph, floating | weight_only, wide).find_points()
    opened = (node.inputs[1] for node in flatten_graph(graph).nodes if node.outputs[0] in weight_only)
    return replace(points, opened=tuple(dict.fromkeys(name for name in opened if name not in points.weights)))


class _PointFinder(DataFlow):
    """Finder of the quantisation points of a network: the values that become integers.

    ``absorbed``: results of nodes that are fused with the preceding operator, which are no values of their own.
    ``floating``: results of operators that are computed in floats. ``bytes``: storage of functions of a byte. ``wide``: values
    with 16 bits."""

    def __init__(self, graph: Graph, floating: frozenset[str], wide: frozenset[str]) -> None:
        super().__init__(graph)
        self.widened = wide
        self.bytes = storage_of_byte_functions(self.graph)
        self.absorbed: set[str] = set()
        self.floating = self.add_followers(floating)
        self.wide = self.find_16_bit_values()

    def find_points(self) -> QuantisationPoints:
        """Return the quantisation points: the operands and results of all operators that become integer operators.

        Values that operators only move from or to such values are included. Values that share a scale are grouped."""
        points: set[str] = set()
        weights, constants = dict[str, None](), dict[str, None]()
        for node in self.graph.nodes:
            # A fused node is a part of the operator before it, and its result is that of this operator.
            if not self.becomes_integer(node) or node.outputs[0] in self.absorbed:
                continue
            points.update(self.activations(node))
            points.add(self.end_with_clamp(self.end_with_bias(node)))
            for position, name in enumerate(node.inputs):
                if name in self.graph.consts and self.is_float(name) and not self.is_bias_or_table(node, position):
                    (weights if node.op in LAYERS else constants)[name] = None
        points = self.spread_over_moves(points)
        values = [value for value in self.all_values() if value in points]
        scales = ScaleGroups(self, values, self.wide)
        tables = {
            node.inputs[0]: node.outputs[0]
            for node in self.graph.nodes
            if self.keeps_scale(node) and node.outputs[0] in points and node.inputs[0] in self.graph.consts
        }
        return QuantisationPoints(
            values=tuple(values),
            leader={value: scales.find(value) for value in values},
            weights=tuple(weights),
            constants=tuple(name for name in constants if name not in weights and name not in tables),
            tables=tables,
            given=frozenset(b for node in self.graph.nodes for a, b in loop_operands(node) if self.is_activation(a)),
            wide=self.wide,
            narrowed=frozenset(node.inputs[0] for node in self.graph.nodes if self.is_narrow(node)) & self.wide,
            widened=self.widened,
            known=scales.known_storage() | scales.known_bytes(self.bytes),
            reach=scales.reach(),
        )

    def add_followers(self, floating: frozenset[str]) -> frozenset[str]:
        """Return results of operators together with the results of nodes that are fused with these operators.

        Such nodes are added constants and clamps. ``floating``: results of the operators."""
        self.floating = frozenset()
        for node in self.graph.nodes:
            if node.outputs[0] in floating:
                self.end_with_clamp(self.end_with_bias(node))
        followers, self.absorbed = floating | self.absorbed, set()
        return followers

    def becomes_integer(self, node: Node) -> bool:
        """Test whether an operator becomes an integer operator.

        It does if it has an integer form, is not to be computed in floats, and is no function of a byte of an input."""
        return (
            node.outputs[0] not in self.floating
            and node.outputs[0] not in self.bytes
            and self.is_float(node.outputs[0])
            and has_integer_form(node, self.graph)
        )

    @staticmethod
    def is_bias_or_table(node: Node, position: int) -> bool:
        """Test whether an operand is a bias, or a constant whose elements are no quantities, such as indices.

        Neither has a scale of its own: a bias has the scale of the sums that it is added to. ``position``: index of the
        operand."""
        return (node.op in LAYERS and position == 2) or (position > 0 and registry.get(node.op).tables)

    def end_with_bias(self, node: Node) -> str:
        """Return the result of an operator after the constants that are fused with it, and record these nodes as absorbed.

        They are an added constant (bias) after a layer, and a factor and a term after a layer normalisation."""
        if node.op == "layer_norm":
            return self.end_with_constants(node, "mul", "add")
        if node.op not in LAYERS:
            return node.outputs[0]
        sum_ = find_constant_sum_after(
            node, self.graph.types[node.inputs[1]].shape[0], self.graph.types, self.only_user
        )
        if sum_ is None or sum_.term not in self.graph.consts or sum_.output in self.floating:
            return node.outputs[0]
        self.absorbed.add(sum_.output)
        return sum_.output

    def end_with_constants(self, node: Node, *ops: str) -> str:
        """Return the result after the operators ``ops`` with constants that follow a node, in this order, and absorb them.

        The sequence ends at the first operator that does not follow or that another node reads as well."""
        value = node.outputs[0]
        for op in ops:
            user = self.only_user(value)
            if user is None or user.op != op or user.outputs[0] in self.floating or user.attrs.get("activation", ""):
                break
            if not any(name in self.graph.consts for name in user.inputs):
                break
            value = user.outputs[0]
            self.absorbed.add(value)
        return value

    def end_with_clamp(self, value: str) -> str:
        """Return the value of an operator that is quantised: the result of a clamp if only the clamp reads ``value``.

        Without such a clamp it is ``value`` itself."""
        user = self.only_user(value)
        if user is not None and user.op in CLAMPS and user.outputs[0] not in self.floating:
            self.absorbed.add(user.outputs[0])
            return self.end_with_clamp(user.outputs[0])
        return value

    def spread_over_moves(self, wanted: set[str]) -> set[str]:
        """Add to ``wanted`` all values that have the scale of a value in it, and return the set.

        They are operands and results of operators that only move or choose elements, and other names of the same value: in the
        body of a loop, in the next iteration or in the next run."""
        count = -1
        while count != len(wanted):
            count = len(wanted)
            for node in reversed(self.graph.nodes):
                if self.keeps_scale(node) and node.outputs[0] in wanted:
                    wanted.update(self.activations(node))
            for node in self.graph.nodes:
                if self.keeps_scale(node) and any(name in wanted for name in node.inputs[:1]):
                    wanted.add(node.outputs[0])
            for link in self.links:
                if not wanted.isdisjoint(link):
                    wanted.update(link)
        return wanted

    def find_16_bit_values(self) -> frozenset[str]:
        """Return the values with 16 bits.

        They are the values that recurrent operators other than layers read, the values of operators for which the user requested
        16 bits, and all values from which these are moved, clamped or joined, within a run, between iterations or between runs.
        """
        flows, wide = list(self.links), set[str]()
        for node in self.graph.nodes:
            if moves_elements(node) or node.op in CLAMPS | CHOICES | JOINS:
                flows += ((name, node.outputs[0]) for name in self.activations(node))
            elif node.op not in LAYERS and node.op != "loop" and node.outputs[0] in self.recurrent:
                wide.update(self.activations(node))
        wide |= self.find_requested_16_bits()
        count = -1
        while count != len(wide):
            count = len(wide)
            wide.update(name for name, result in reversed(flows) if result in wide)
        return frozenset(wide)

    def find_requested_16_bits(self) -> set[str]:
        """Return the values that have 16 bits because the user requested 16 bits for operators.

        They are operands and results of these operators, and results of operators, neither layers nor recurrent, whose operands
        all have 16 bits. A result that only 8-bit layers read is left out.
        """
        wide_values = set[str]()
        for node in self.graph.nodes:
            if not self.becomes_integer(node) or node.outputs[0] in self.absorbed or node.op == "loop":
                continue
            result, data = self.end_with_clamp(self.end_with_bias(node)), list(self.activations(node))
            is_requested = node.outputs[0] in self.widened
            wide_values.update(data if is_requested else ())
            follows = (
                node.op not in LAYERS
                and node.outputs[0] not in self.recurrent
                and data
                and wide_values.issuperset(data)
            )
            if (is_requested or follows) and not self.only_narrow_layers_read(result):
                wide_values.add(result)
        return wide_values

    def only_narrow_layers_read(self, value: str) -> bool:
        """Test whether only 8-bit layers read a value, directly or after operators that only move or choose elements."""
        users = () if value in self.graph.outputs else self.consumers.get(value, ())
        moved = (self.keeps_scale(user) and self.only_narrow_layers_read(user.outputs[0]) for user in users)
        return bool(users) and all(a or self.is_narrow(user) for a, user in zip(moved, users, strict=True))

    def is_narrow(self, node: Node) -> bool:
        """Test whether a node is a layer that reads its data in 8 bits."""
        return node.op in LAYERS and node.outputs[0] not in self.widened
