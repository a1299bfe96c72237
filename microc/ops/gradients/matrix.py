# SPDX-License-Identifier: Apache-2.0
"""Gradients of matrix products: ``dense``, ``matmul`` and ``einsum``."""

from __future__ import annotations

from collections.abc import Sequence

from microc.ops.gradients.call import GradientCall, Gradients, Value


def build_dense_gradients(call: GradientCall) -> Gradients:
    """Return g W for the data, g^T x for the weights, and the sum of g over the rows for the bias."""
    g, data, weight = call.gradient, call.data, call.operand(1)
    return (
        g.apply("matmul", weight) if 0 in call.wanted else None,
        _multiply_transposed(g, data) if 1 in call.wanted else None,
        sum_to_bias(call, g, (0,)) if 2 in call.wanted else None,
    )


def _multiply_transposed(g: Value, data: Value) -> Value:
    """Return g^T times data. For a single row it is an outer product, elementwise, which fuses with an update of the
    weights."""
    if g.shape[0] == 1:
        return g.reshape((g.shape[1], 1)) * data
    return g.apply("matmul", data, axes_a=(1, 0))


def sum_to_bias(call: GradientCall, g: Value, axes: Sequence[int]) -> Value:
    """Return the gradient of a layer's bias, operand 2: the sum of ``g`` over all axes but that of the channels."""
    return g.sum(axes).reshape(call.operand(2).shape)


def build_matmul_gradients(call: GradientCall) -> Gradients:
    """Return g B^T for a and A^T g for b, where A and B are the operands with their axes in the order of the product.

    Batch axes that were broadcast are summed."""
    g = call.gradient
    orders = [
        tuple(call.attr(f"axes_{name}")) or tuple(range(len(call.operand(k).shape))) for k, name in enumerate("ab")
    ]

    def restore_operand(position: int, product: Value) -> Value:
        operand, order = call.operand(position), orders[position]
        total = product.sum_to(tuple(operand.shape[axis] for axis in order))
        return total.transpose(tuple(order.index(axis) for axis in range(len(order))))

    a, b = call.operand(0), call.operand(1)
    last_axes_of_a, last_axes_of_b = (_swap_last_axes(order) for order in orders)
    return (
        restore_operand(0, g.apply("matmul", b, axes_b=last_axes_of_b)) if 0 in call.wanted else None,
        restore_operand(1, a.apply("matmul", g, axes_a=last_axes_of_a)) if 1 in call.wanted else None,
    )


def _swap_last_axes(order: tuple[int, ...]) -> tuple[int, ...]:
    return (*order[:-2], order[-1], order[-2])


def build_einsum_gradients(call: GradientCall) -> Gradients:
    """Return for each operand the product of g and the other operands, summed to the labels of the operand.

    A label that no other factor has was summed over this operand alone: its elements have one gradient. A diagonal
    spreads through a product with the identity."""
    inputs, output = [tuple(labels) for labels in call.attr("inputs")], tuple(call.attr("output"))
    gradients: list[Value | None] = [None] * len(inputs)
    for position in sorted(call.wanted):
        labels, operand = inputs[position], call.operand(position)
        others = [(call.operand(k), inputs[k]) for k in range(len(inputs)) if k != position]
        factors = [(call.gradient, output), *others]
        factors += [
            (call.data.constant(1.0).broadcast_to((extent,)), (label,))
            for label, extent in zip(labels, operand.shape, strict=True)
        ]
        gradients[position] = _multiply_labelled(factors, labels, operand)
    return gradients


def _multiply_labelled(
    factors: Sequence[tuple[Value, tuple[int, ...]]], labels: tuple[int, ...], operand: Value
) -> Value:
    """Return the sum of products of ``factors`` over the labels that ``operand`` does not have."""
    terms = list(factors)
    distinct: list[int] = []
    fresh = 1 + max((label for _, names in terms for label in names), default=0)
    for axis, label in enumerate(labels):
        if label not in distinct:
            distinct.append(label)
            continue
        identity = [
            [float(row == column) for column in range(operand.shape[axis])] for row in range(operand.shape[axis])
        ]
        terms.append((operand.constant(identity), (label, fresh)))
        distinct.append(fresh)
        fresh += 1
    first, *rest = (value for value, _ in terms)
    product = first.apply("einsum", *rest, inputs=tuple(names for _, names in terms), output=tuple(distinct))
    return product.sum_to(operand.shape)
