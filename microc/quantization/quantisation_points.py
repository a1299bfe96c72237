"""Quantisation points: which values of a float network become integers, which of them have 16 bits, and which share a scale."""

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
from microc.transform.quantised.qdq import LAYERS, find_sum_behind, has_integer_form
from microc.transform.quantised.qdq_values import CHOICES, CLAMPS, JOINS, moves_elements

# ---- Result records.


@frozen
class QuantisationPoints:
    """Quantisation points of a network.

    ``values``: activations that become integers, in order. ``leader``: maps a value to the first of those that share its scale.
    ``weights``: constants with a scale per channel; ``constants``: with one scale. ``tables``: maps a constant whose elements
    are moved to the value that they become, whose scale it takes.

    ``given``: values that a loop passes to all iterations; outside of it they are values as well. ``wide``: values of 16 bits;
    ``narrowed``: those of them that a layer reads in fewer bits, unless its result is in ``widened``; ``known``: storage of
    values whose range needs no calibration; ``reach``: bounds of values, by leader; ``opened``: weights of layers that compute
    in floats on integer weights.
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
        """Values whose statistics calibration collects."""
        return [value for value in self.values if value not in self.given]

    def groups(self) -> dict[str, list[str]]:
        """Map each leader to the values that share its scale, in order."""
        by_leader: dict[str, list[str]] = {}
        for value in self.values:
            by_leader.setdefault(self.leader[value], []).append(value)
        return by_leader


# ---- Values that share a scale, and scales that need no calibration.
#
# Both follow from the integer operators that :mod:`microc.transform.quantised.qdq` makes of ``dequantize -> operator ->
# quantize``.

_SUMS = frozenset(("add", "sub"))
_ONE = Activation("int16", Quant((2.0**-15,), (0,)))
SATURATING: Mapping[str, Activation] = MappingProxyType({"sigmoid": _ONE, "tanh": _ONE})
"""Storage of 16-bit results with known range: TFLite's."""
FIXED: Mapping[str, Activation] = MappingProxyType(
    {
        "log_softmax": Activation("int8", Quant((1 / 16,), (127,))),
        "l2_normalize": Activation("int8", Quant((1 / 128,), (0,))),
    }
)
"""Storage of 8-bit results whose integer form has this scale only: TFLite's."""

_SHARE, _SINE = (0.0, 1.0), (-1.0, 1.0)
REACH: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **dict.fromkeys(("softmax", "sigmoid", "hard_sigmoid"), _SHARE),
        **dict.fromkeys(("tanh", "erf", "sin", "cos", "softsign", "l2_normalize"), _SINE),
    }
)
"""Bounds of results for any sample."""


class ScaleGroups:
    """Groups of ``values`` with one scale (union-find). Values in ``wide`` have 16 bits.

    ``leader``: maps a value to one of its group, not always the first.
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
        """Give one scale to operand and result of moves, to int16 operands and result of a sum, and to the operands of a
        concatenation that nothing else reads."""
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
        """Return the representative of a value's group."""
        while self.leader[value] != value:
            value = self.leader[value]
        return value

    def join(self, a: str, b: str) -> None:
        """Give two values one scale if they have the same number of bits."""
        if (a in self.wide) == (b in self.wide):
            a, b = self.find(a), self.find(b)
            self.leader[b] = a

    def saturates(self, value: str) -> bool:
        """Test whether a function of known range, as sigmoid, computes a value."""
        return value in self.flow.makers and self.flow.makers[value].op in SATURATING

    def known_storage(self) -> dict[str, Activation]:
        """Return the storage of values whose scale is known: results of functions with known range, and values moved from
        them.

        State counts if it starts as zero.
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
        """Return the operators that compute the values of each group, by its leader; an input is ``""``.

        Moves are left out, and the values ``without``.
        """
        operators: dict[str, set[str]] = {}
        for value in self.values:
            maker = self.flow.makers.get(value)
            if value not in without and not (maker is not None and self.flow.keeps_scale(maker)):
                operators.setdefault(self.find(value), set()).add(maker.op if maker is not None else "")
        return operators

    def reach(self) -> dict[str, tuple[float, float]]:
        """Return bounds of the groups whose values are all computed by bounded functions, by leader."""
        ends = {leader: [REACH.get(op) for op in ops] for leader, ops in self.group_operators().items()}
        return {
            leader: (min(low for low, _ in known_bounds), max(high for _, high in known_bounds))
            for leader, bounds in ends.items()
            if (known_bounds := [bound for bound in bounds if bound is not None]) and len(known_bounds) == len(bounds)
        }

    def known_bytes(self, raw: Mapping[str, Activation | None]) -> dict[str, Activation]:
        """Return the storage of values that are ``raw`` bytes, and of values that are moved from such only."""
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


# ---- Finding quantisation points, and those that need 16 bits.
#
# The points follow from the integer operators that :mod:`microc.transform.quantised.qdq` makes. Rounding errors accumulate over
# the iterations of a loop, and over runs that state connects. So values computed there have 16 bits, except those that only
# layers read: their data are the bulk of the work. State that is only moved, a window of the past, has 8 bits.


def find_quantisation_points(
    graph: Graph,
    floating: frozenset[str] = frozenset(),
    wide: frozenset[str] = frozenset(),
    weight_only: frozenset[str] = frozenset(),
) -> QuantisationPoints:
    """Find the quantisation points of a float graph.

    ``floating``: results of operators that stay in floats, for layers with the bias and the clamp behind them; ``wide``:
    results of operators that read and compute 16 bits; ``weight_only``: results of layers in floats on integer weights.
    """
    points = _PointFinder(graph, floating | weight_only, wide).find_points()
    opened = (node.inputs[1] for node in flatten_graph(graph).nodes if node.outputs[0] in weight_only)
    return replace(points, opened=tuple(dict.fromkeys(name for name in opened if name not in points.weights)))


class _PointFinder(DataFlow):
    """Finds the quantisation points of a network. ``absorbed``: results that are fused with the operator before;
    ``floating``: results that stay in floats."""

    def __init__(self, graph: Graph, floating: frozenset[str], wide: frozenset[str]) -> None:
        super().__init__(graph)
        self.widened = wide
        self.bytes = storage_of_byte_functions(self.graph)
        self.absorbed: set[str] = set()
        self.floating = self.add_followers(floating)
        self.wide = self.find_16_bit_values()

    def find_points(self) -> QuantisationPoints:
        """Collect the operands and results of all integer operators, spread them over moves, and group them by scales."""
        points: set[str] = set()
        weights, constants = dict[str, None](), dict[str, None]()
        for node in self.graph.nodes:
            # A fused result is no value of its own: the operator that it is fused into ends behind it.
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
        """Add the results that are fused with operators: constants that are added, clamps."""
        self.floating = frozenset()
        for node in self.graph.nodes:
            if node.outputs[0] in floating:
                self.end_with_clamp(self.end_with_bias(node))
        followers, self.absorbed = floating | self.absorbed, set()
        return followers

    def becomes_integer(self, node: Node) -> bool:
        """Test whether an operator becomes an integer one: it has an integer form, shall not stay in floats, and is no
        function of a byte."""
        return (
            node.outputs[0] not in self.floating
            and node.outputs[0] not in self.bytes
            and self.is_float(node.outputs[0])
            and has_integer_form(node, self.graph)
        )

    @staticmethod
    def is_bias_or_table(node: Node, position: int) -> bool:
        """Test whether a constant operand is not stored by itself: biases take the scale of the sums, and tables are no
        numbers."""
        return (node.op in LAYERS and position == 2) or (position > 0 and registry.get(node.op).tables)

    def end_with_bias(self, node: Node) -> str:
        """Return the result of an operator with the nodes fused into it: a layer's added constant, a norm's factors and
        terms."""
        if node.op == "layer_norm":
            return self.end_with_constants(node, "mul", "add")
        if node.op not in LAYERS:
            return node.outputs[0]
        sum_ = find_sum_behind(node, self.graph.types[node.inputs[1]].shape[0], self.graph.types, self.only_user)
        if sum_ is None or sum_.term not in self.graph.consts or sum_.output in self.floating:
            return node.outputs[0]
        self.absorbed.add(sum_.output)
        return sum_.output

    def end_with_constants(self, node: Node, *ops: str) -> str:
        """Return the result of a node and of the operators with constants that follow it in this order."""
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
        """Return the value at which the result of an operator becomes integers: behind a clamp that is its only reader."""
        user = self.only_user(value)
        if user is not None and user.op in CLAMPS and user.outputs[0] not in self.floating:
            self.absorbed.add(user.outputs[0])
            return self.end_with_clamp(user.outputs[0])
        return value

    def spread_over_moves(self, wanted: set[str]) -> set[str]:
        """Add the values on both sides of operators that only move or choose elements, of loops and of runs."""
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
        """Return the values that recurrent operators other than layers read, and the values of operators that shall have 16
        bits.

        Values from which these are moved, clamped or joined, within a run or between iterations and runs, are included.
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
        """Return the operands and results of operators that shall have 16 bits, and results of non-recurrent operators on
        only such values.

        A result keeps 16 bits until 8-bit layers read it.
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
        """Test whether only 8-bit layers read a value or its moved elements."""
        users = () if value in self.graph.outputs else self.consumers.get(value, ())
        moved = (self.keeps_scale(user) and self.only_narrow_layers_read(user.outputs[0]) for user in users)
        return bool(users) and all(a or self.is_narrow(user) for a, user in zip(moved, users, strict=True))

    def is_narrow(self, node: Node) -> bool:
        """Test whether a layer reads 8 bits."""
        return node.op in LAYERS and node.outputs[0] not in self.widened
