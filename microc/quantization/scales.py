"""Which values share a scale, and the scales that need no calibration.

Both follow from what :mod:`microc.transform.qdq` makes of ``dequantize -> operator -> quantize``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from microc.graph.ir import Node, Quant
from microc.quantization.flow import Flow
from microc.quantization.scheme import Activation

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
