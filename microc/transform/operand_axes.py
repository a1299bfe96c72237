"""Rules by which a product of integers takes its operands' axes in another order, instead of a transposed copy of one.

It copies both sides along k anyway (``rows`` in ``ops/matrix/matmul.py``), whatever order they lie in.
"""

from __future__ import annotations

from microc.graph.match import Match, P, Replacement, Rule
from microc.transform.axes import composed

_BYTES = ("int8", "uint8")


def operand_rules() -> tuple[Rule, ...]:
    """Transpositions that one product alone reads."""
    return ((P.op("matmul"), _taken_in_order),)


def _taken_in_order(match: Match) -> Replacement | None:
    if match.type(match.output).dtype != "int32" or any(
        match.type(name).dtype not in _BYTES for name in match.root.inputs
    ):
        return None
    inputs, attrs = list(match.root.inputs), dict(match.root.attrs)
    for position, name in enumerate("ab"):
        moved = match.scope.producer(inputs[position])
        if moved is None or moved.op != "transpose" or not match.scope.is_alone(inputs[position]):
            continue
        axes = moved.attr("axes")
        inputs[position] = moved.inputs[0]
        taken = match.root.attr(f"axes_{name}") if match.root.attrs.get(f"axes_{name}") else range(len(axes))
        attrs[f"axes_{name}"] = composed(axes, taken)
    if tuple(inputs) == match.root.inputs:
        return None
    match.emit("matmul", inputs, attrs)
    return match.replacement()
