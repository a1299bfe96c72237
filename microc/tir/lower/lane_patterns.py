"""Arithmetic that vector instructions do in one step, found in scalar expressions: see ``fixed.py`` for its definition."""

from __future__ import annotations

from microc.tir import ir
from microc.tir.affine import linear, simplify


def doubling_multiply(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """x and m of ``(x m + 2**30) >> 31``, written as ``high_mul_round(2 x, m)`` or in 64 bits."""
    match expr:
        case ir.Call("high_mul_round", (a, b)):
            half = _halved(a)
            return None if half is None else (half, b)
        case ir.Cast(
            "int32",
            ir.Bin(
                "shr",
                ir.Bin("add", ir.Bin("mul", ir.Cast("int64", a), factor), ir.Const(value=1073741824)),
                ir.Const(value=31),
            ),
        ):
            small = _narrow(factor)
            return None if small is None or a.dtype != "int32" else (a, small)
        case _:
            return None


def quotient(value: ir.Expr, divisor: int) -> ir.Expr:
    """``value`` divided by a number above 1, without its fraction, as the upper half of a product.

    With m = 2**(32 + s) // d + 1 and e = m d - 2**(32 + s), x m / 2**(32 + s) exceeds x / d by x e / (d 2**(32 + s)), which is
    below 1 / d for 0 <= x < 2**31 where e <= 2**(s + 1): its floor is that of x / d. Of x from -2**31 to -1 it falls short of
    x / d by at most 1 / d, but by something: its floor is one less than wanted. m may take 33 bits with its sign; then 2**32 less
    is multiplied, and x added.
    """
    shift = next(s for s in range(32) if divisor - (1 << (32 + s)) % divisor <= 1 << (s + 1))
    factor = (1 << (32 + shift)) // divisor + 1
    wide = factor >= 1 << 31
    high: ir.Expr = ir.call("high_product", value, ir.const(factor - (1 << 32) if wide else factor, "int32"))
    high = high + value if wide else high
    return (high >> shift if shift else high) - (value >> 31)


def _narrow(factor: ir.Expr) -> ir.Expr | None:
    """The int32 under a widening to 64 bits."""
    match factor:
        case ir.Const(int() as value) if -(1 << 31) <= value < 1 << 31:
            return ir.const(value, "int32")
        case ir.Cast("int64", a) if a.dtype == "int32":
            return a
        case _:
            return None


def _halved(expr: ir.Expr) -> ir.Expr | None:
    """x of ``2 x``, which does not overflow."""
    match expr:
        case ir.Bin("shl", a, ir.Const(int() as n)) if n >= 1:
            return a << (n - 1) if n > 1 else a
        case ir.Bin("mul", a, ir.Const(int() as factor)) if factor > 0 and factor % 2 == 0:
            return a * (factor // 2) if factor > 2 else a
        case _:
            return None


def negated(expr: ir.Expr) -> ir.Expr:
    """``-expr`` of a small sum, its terms collected even where they are data."""
    terms, offset = linear(expr)
    total: ir.Expr = ir.const(-offset, "int32")
    for term, factor in terms.items():
        part = term if abs(factor) == 1 else term * abs(factor)
        total = total + part if factor < 0 else total - part
    return simplify(total)


def rounding_shift(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, int] | None:
    """x, n and z of ``((x + 2**(n - 1)) >> n) + z``, the middle term rounding half up, 1 <= n <= 31.

    Either the rounding term, perhaps with z * 2**n in it, is added before the shift, by a multiplication that adds where n is no
    number; or the shift is done in two steps, n - 1 and then 1, with 1 + 2 z added in between.
    """
    match expr:
        case ir.Bin("shr", ir.Call("high_mac_round", (x, m, added)), distance):
            return _added(ir.call("high_mul_round", x, m), added, simplify(distance))
        case ir.Bin("shr", ir.Bin("add", ir.Bin("shr", x, distance), ir.Const(int() as added)), ir.Const(value=1)) if (
            added % 2 == 1
        ):
            return x, simplify(distance + 1), (added - 1) // 2
        case ir.Bin("shr", ir.Bin("add", x, ir.Const(int() as added)), ir.Const(int() as n)) if n >= 1:
            rest, remainder = divmod(added - (1 << (n - 1)), 1 << n)
            return (x, ir.const(n, "int32"), rest) if remainder == 0 and x.dtype == "int32" else None
        case _:
            return None


def rounded_once(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr, int] | None:
    """x, m, n and z of ``((x m + 2**(n + 30)) >> (n + 31)) + z``, written as ``high_mac(2 x, m, k) >> n`` or with x
    itself and a shift that is one less, z in k."""
    match expr:
        case ir.Bin("shr", ir.Call("high_mac", (a, m, added)), distance):
            parts, half = _added(a, added, simplify(distance)), _halved(a)
        case _:
            return None
    if parts is None or parts[0] != a:
        return None
    _, distance, steps = parts
    return (a, m, simplify(distance + 1), steps) if half is None else (half, m, distance, steps)


def _added(product: ir.Expr, added: ir.Expr, distance: ir.Expr) -> tuple[ir.Expr, ir.Expr, int] | None:
    """The parts of ``(product + added) >> distance``, where what is added is (1 + 2 z) * 2**(distance - 1), or that and more."""
    terms, offset = linear(added)
    if isinstance(distance, ir.Const):
        rest, remainder = divmod(offset - (1 << (int(distance.value) - 1)), 1 << int(distance.value))
        steps, others = 1 + 2 * rest if remainder == 0 else 0, list(terms.items())
    else:
        half = ir.const(1, "int32") << simplify(distance - 1)
        steps, others = terms.get(half, 0), [(t, factor) for t, factor in terms.items() if t != half]
        if offset:
            return None
    if steps % 2 == 0:
        return None
    for term, factor in others:
        product = product + (term if factor == 1 else term * factor)
    return product, distance, (steps - 1) // 2
