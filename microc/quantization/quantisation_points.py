"""Where a float network becomes integers, and which values share a scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node, Quant
from microc.ops import registry
from microc.quantization.calibration_data import functions_of_bytes
from microc.quantization.integer_scheme import Activation
from microc.quantization.network_structure import Flow, flattened, given
from microc.transform.quantised.qdq import LAYERS, has_integer_form, sum_behind
from microc.transform.quantised.qdq_values import CHOICES, CLAMPS, JOINS, moves

# ---- What was found of where a float network becomes integers (:mod:`.places`).


@frozen
class Places:
    """``values``: the activations that become integers, in the order of the graph. ``leader``: value -> the first of those that
    share its scale. ``weights``: constants with a scale for each channel; ``constants``: with one scale. ``tables``:
    constants whose elements are moved -> the value that they become, whose scale they have.

    ``given``: what a loop hands to all its turns; outside it is a value as well. ``wide``: the values that have 16 bits;
    ``narrowed``: those of them that a layer reads with fewer, unless its result is in ``widened``; ``known``: how those are
    stored whose range is no question; ``reach``: by leader, what values cannot exceed; ``opened``: weights of layers that
    compute in floats, which open them."""

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
        """The values to observe."""
        return [value for value in self.values if value not in self.given]

    def groups(self) -> dict[str, list[str]]:
        """Leader -> the values that share its scale, in order."""
        found: dict[str, list[str]] = {}
        for value in self.values:
            found.setdefault(self.leader[value], []).append(value)
        return found


# ---- Which values share a scale, and the scales that need no calibration.
#
# Both follow from what :mod:`microc.transform.quantised.qdq` makes of ``dequantize -> operator -> quantize``.

_SUMS = frozenset(("add", "sub"))
_ONE = Activation("int16", Quant((2.0**-15,), (0,)))
SATURATING: Mapping[str, Activation] = MappingProxyType({"sigmoid": _ONE, "tanh": _ONE})
"""How results of 16 bits are stored whose range is known: TFLite's."""
FIXED: Mapping[str, Activation] = MappingProxyType(
    {
        "log_softmax": Activation("int8", Quant((1 / 16,), (127,))),
        "l2_normalize": Activation("int8", Quant((1 / 128,), (0,))),
    }
)
"""How results of 8 bits are stored that have an integer form of this scale alone: TFLite's."""

_SHARE, _SINE = (0.0, 1.0), (-1.0, 1.0)
REACH: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        **dict.fromkeys(("softmax", "sigmoid", "hard_sigmoid"), _SHARE),
        **dict.fromkeys(("tanh", "erf", "sin", "cos", "softsign", "l2_normalize"), _SINE),
    }
)
"""What results cannot exceed, whatever samples hold."""


class Scales:
    """The scales of ``values``, in order, of which those in ``wide`` have 16 bits. ``leader``: value -> one of those that share
    its scale."""

    def __init__(self, flow: Flow, values: Sequence[str], wide: frozenset[str]) -> None:
        self.flow, self.values, self.wide = flow, values, wide
        self.leader = {value: value for value in values}
        for a, b in flow.links:
            if a in self.leader:
                self.join(a, b)
        for node in flow.graph.nodes:
            if node.outputs[0] in self.leader:
                self.share(node)

    def share(self, node: Node) -> None:
        """Operands and result of what moves elements have one scale; operands of a concatenation where nothing else reads
        them."""
        if self.flow.keeps_scale(node) and node.inputs[0] in self.leader:
            self.join(node.inputs[0], node.outputs[0])
        elif node.op in _SUMS and node.outputs[0] in self.wide:
            for name in self.flow.activations(node):
                if name in self.wide and not self.saturates(name):
                    self.join(name, node.outputs[0])
        elif node.op == "concat":
            for name in node.inputs:
                alone = len(self.flow.consumers[name]) == 1 and name not in self.flow.graph.outputs
                if name in self.leader and alone:
                    self.join(name, node.outputs[0])

    def first(self, value: str) -> str:
        """The same for all that share a scale."""
        while self.leader[value] != value:
            value = self.leader[value]
        return value

    def join(self, a: str, b: str) -> None:
        """One scale for two values of as many bits."""
        if (a in self.wide) == (b in self.wide):
            a, b = self.first(a), self.first(b)
            self.leader[b] = a

    def saturates(self, value: str) -> bool:
        return value in self.flow.makers and self.flow.makers[value].op in SATURATING

    def known(self) -> dict[str, Activation]:
        """How values are stored whose scale is that of functions with a known range, and of what is made of their results without
        computing; state that starts as zero is."""
        state = self.flow.graph.state
        linked = {into for _, into in self.flow.links if into not in state or not state[into].any()}
        found = dict[str, Activation]()
        for leader, ops in self.makers(linked).items():
            kinds = {SATURATING.get(op, FIXED.get(op)) for op in ops}
            kind = kinds.pop() if len(kinds) == 1 else None
            if kind is not None:
                found[leader] = kind
        named = ((value, found.get(self.first(value))) for value in self.values)
        return {
            value: kind for value, kind in named if kind is not None and (kind.dtype == "int16") == (value in self.wide)
        }

    def makers(self, without: Collection[str] = ()) -> dict[str, set[str]]:
        """The operators that make the values of one scale, by its leader; those that only move elements left out, and some
        values. An input is made by none."""
        found: dict[str, set[str]] = {}
        for value in self.values:
            maker = self.flow.makers.get(value)
            if value not in without and not (maker is not None and self.flow.keeps_scale(maker)):
                found.setdefault(self.first(value), set()).add(maker.op if maker is not None else "")
        return found

    def reach(self) -> dict[str, tuple[float, float]]:
        """What values of one scale cannot exceed, by its leader, where all of them are made by functions that have ends."""
        ends = {leader: [REACH.get(op) for op in ops] for leader, ops in self.makers().items()}
        return {
            leader: (min(low for low, _ in known), max(high for _, high in known))
            for leader, several in ends.items()
            if (known := [each for each in several if each is not None]) and len(known) == len(several)
        }

    def known_bytes(self, raw: Mapping[str, Activation | None]) -> dict[str, Activation]:
        """The values that are ``raw`` bytes, and what is made of nothing else without computing."""
        of: dict[str, set[Activation | None]] = {}
        for value in self.values:
            maker = self.flow.makers.get(value)
            if maker is None or not (self.flow.keeps_scale(maker) and self.flow.is_activation(maker.inputs[0])):
                of.setdefault(self.first(value), set()).add(raw.get(value))
        found = {leader: next(iter(kinds)) for leader, kinds in of.items() if len(kinds) == 1}
        named = ((value, found.get(self.first(value))) for value in self.values if value not in self.wide)
        return {value: kind for value, kind in named if kind is not None}


# ---- Where a float network becomes integers: which values are quantised, and which of them have 16 bits.
#
# The first follows from what :mod:`microc.transform.quantised.qdq` makes of ``dequantize -> operator -> quantize``. The errors
# of a loop's turns add up, as those of runs do that state leads from one to the next: 16 bits has what they compute, but what
# only layers read; their data are the bulk of the work. State that is only moved, a window of the past, has 8.


def places(
    graph: Graph,
    floating: frozenset[str] = frozenset(),
    wide: frozenset[str] = frozenset(),
    weight_only: frozenset[str] = frozenset(),
) -> Places:
    """The places of a float graph. ``floating``: results of operators that stay in floats, layers with the bias and the clamp
    behind them; ``wide``: of operators that read and make 16 bits; ``weight_only``: of layers in floats with integer weights."""
    found = _Finder(graph, floating | weight_only, wide).found()
    opened = (node.inputs[1] for node in flattened(graph).nodes if node.outputs[0] in weight_only)
    return replace(found, opened=tuple(dict.fromkeys(name for name in opened if name not in found.weights)))


class _Finder(Flow):
    """``absorbed``: results that become one with the operator before; ``floating``: those that stay in floats."""

    def __init__(self, graph: Graph, floating: frozenset[str], wide: frozenset[str]) -> None:
        super().__init__(graph)
        self.widened = wide
        self.bytes = functions_of_bytes(self.graph)
        self.absorbed: set[str] = set()
        self.floating = self.with_followers(floating)
        self.wide = self.with_16_bits()

    def found(self) -> Places:
        wanted: set[str] = set()
        weights, constants = dict[str, None](), dict[str, None]()
        for node in self.graph.nodes:
            if not self.is_integer(node) or node.outputs[0] in self.absorbed:
                continue
            wanted.update(self.activations(node))
            wanted.add(self.end(self.with_bias(node)))
            for position, name in enumerate(node.inputs):
                if name in self.graph.consts and self.is_float(name) and not self.is_apart(node, position):
                    (weights if node.op in LAYERS else constants)[name] = None
        wanted = self.spread(wanted)
        values = [value for value in self.ordered() if value in wanted]
        scales = Scales(self, values, self.wide)
        tables = {
            node.inputs[0]: node.outputs[0]
            for node in self.graph.nodes
            if self.keeps_scale(node) and node.outputs[0] in wanted and node.inputs[0] in self.graph.consts
        }
        return Places(
            values=tuple(values),
            leader={value: scales.first(value) for value in values},
            weights=tuple(weights),
            constants=tuple(name for name in constants if name not in weights and name not in tables),
            tables=tables,
            given=frozenset(b for node in self.graph.nodes for a, b in given(node) if self.is_activation(a)),
            wide=self.wide,
            narrowed=frozenset(node.inputs[0] for node in self.graph.nodes if self.is_narrow(node)) & self.wide,
            widened=self.widened,
            known=scales.known() | scales.known_bytes(self.bytes),
            reach=scales.reach(),
        )

    def with_followers(self, floating: frozenset[str]) -> frozenset[str]:
        """With what becomes one with operators: constants that are added, clamps."""
        self.floating = frozenset()
        for node in self.graph.nodes:
            if node.outputs[0] in floating:
                self.end(self.with_bias(node))
        found, self.absorbed = floating | self.absorbed, set()
        return found

    def is_integer(self, node: Node) -> bool:
        return (
            node.outputs[0] not in self.floating
            and node.outputs[0] not in self.bytes
            and self.is_float(node.outputs[0])
            and has_integer_form(node, self.graph)
        )

    @staticmethod
    def is_apart(node: Node, position: int) -> bool:
        """Biases take the scale of the sums, which follows; tables are no numbers."""
        return (node.op in LAYERS and position == 2) or (position > 0 and registry.get(node.op).tables)

    def with_bias(self, node: Node) -> str:
        """The result of an operator, of a layer with the constant that is added right behind, of a norm with factors and
        terms."""
        if node.op == "layer_norm":
            return self.with_constants(node, "mul", "add")
        if node.op not in LAYERS:
            return node.outputs[0]
        sum_ = sum_behind(node, self.graph.types[node.inputs[1]].shape[0], self.graph.types, self.only_user)
        if sum_ is None or sum_.term not in self.graph.consts or sum_.output in self.floating:
            return node.outputs[0]
        self.absorbed.add(sum_.output)
        return sum_.output

    def with_constants(self, node: Node, *ops: str) -> str:
        """The result of a node and of operators with constants that follow it in turn."""
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

    def end(self, value: str) -> str:
        """Where the result of an operator becomes integers: behind a clamp that alone reads it."""
        user = self.only_user(value)
        if user is not None and user.op in CLAMPS and user.outputs[0] not in self.floating:
            self.absorbed.add(user.outputs[0])
            return self.end(user.outputs[0])
        return value

    def spread(self, wanted: set[str]) -> set[str]:
        """With the values on both sides of what only moves or chooses elements, of loops and of runs."""
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

    def with_16_bits(self) -> frozenset[str]:
        """What recurrent operators read, but layers, and what operators that shall have 16 bits read and make; as it is or moved,
        clamped, joined, from turn to turn and from run to run."""
        flows, wide = list(self.links), set[str]()
        for node in self.graph.nodes:
            if moves(node) or node.op in CLAMPS | CHOICES | JOINS:
                flows += ((name, node.outputs[0]) for name in self.activations(node))
            elif node.op not in LAYERS and node.op != "loop" and node.outputs[0] in self.recurrent:
                wide.update(self.activations(node))
        wide |= self.named()
        count = -1
        while count != len(wide):
            count = len(wide)
            wide.update(name for name, result in reversed(flows) if result in wide)
        return frozenset(wide)

    def named(self) -> set[str]:
        """What operators that shall have 16 bits read and make, and what others that do not recur make of nothing but that: a
        result keeps its 16 bits until layers of 8 read it."""
        found = set[str]()
        for node in self.graph.nodes:
            if not self.is_integer(node) or node.outputs[0] in self.absorbed or node.op == "loop":
                continue
            result, data = self.end(self.with_bias(node)), list(self.activations(node))
            own = node.outputs[0] in self.widened
            found.update(data if own else ())
            follows = (
                node.op not in LAYERS and node.outputs[0] not in self.recurrent and data and found.issuperset(data)
            )
            if (own or follows) and not self.for_narrow_layers(result):
                found.add(result)
        return found

    def for_narrow_layers(self, value: str) -> bool:
        """Whether layers of 8 bits alone read a value, or its elements elsewhere."""
        users = () if value in self.graph.outputs else self.consumers.get(value, ())
        moved = (self.keeps_scale(user) and self.for_narrow_layers(user.outputs[0]) for user in users)
        return bool(users) and all(a or self.is_narrow(user) for a, user in zip(moved, users, strict=True))

    def is_narrow(self, node: Node) -> bool:
        """Whether a layer reads 8 bits."""
        return node.op in LAYERS and node.outputs[0] not in self.widened
