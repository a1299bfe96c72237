# SPDX-License-Identifier: Apache-2.0
"""Choice of instructions: identities and scalar intrinsics that take fewer instructions on a core.

The cost of an expression is that of what becomes of it: it is counted after all other identities and intrinsics were applied to
it. So an identity is chosen if it lets an intrinsic match, and not if it hinders another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from microc.isa import CORES, SCALAR, c_body_for_cost_model
from microc.schedule.cost.operation_counts import Selector, list_scalar_intrinsic_costs
from microc.schedule.identities import IDENTITIES, Identity
from microc.schedule.primitives.selection import find_identities, find_intrinsics, rewrite_expr, select_in_expr
from microc.schedule.primitives.unification import expand_call, substitute_operands
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.rewrite import free_vars, map_expr, walk_expr


class IdentityCost(NamedTuple):
    """Instructions of both sides of an identity on a core: of the pattern as it is, and of the replacement after all other
    identities and intrinsics. ``refusal``: why the core does not use the identity, else empty."""

    name: str
    pattern: float
    replacement: float
    refusal: str = ""


def apply_early_identities(schedule: Schedule, target: Target) -> Schedule:
    """Apply the identities of the core whose results rules depend on."""
    return _apply(schedule, [name for name in choose_identities(target) if IDENTITIES[name].before_rules])


def select_instructions(schedule: Schedule, target: Target) -> Schedule:
    """Apply the identities of the core, and call all scalar intrinsics whose meanings occur and take more instructions than
    their C bodies."""
    schedule = _apply(schedule, [name for name in choose_identities(target) if not IDENTITIES[name].before_rules])
    used = find_intrinsics(schedule.func, _cheaper_intrinsics(target))  # the trace names these alone: cores have dozens
    return schedule.select_intrinsics(*used) if used else schedule


def _apply(schedule: Schedule, names: Sequence[str]) -> Schedule:
    """Apply identities to a schedule. The trace names those that occur."""
    used = find_identities(schedule.func, names)
    return schedule.apply_identities(*used) if used else schedule


def _cheaper_intrinsics(target: Target) -> tuple[str, ...]:
    """Return the scalar intrinsics whose C bodies on the core take fewer instructions than their meanings."""
    return tuple(cost.name for cost in list_scalar_intrinsic_costs(target) if cost.body < cost.meaning)


def choose_identities(target: Target) -> tuple[str, ...]:
    """Return the identities that a core uses. Of several with the same pattern, the one with the largest saving comes first."""
    costs = sorted(list_identity_costs(target).values(), key=lambda cost: cost.replacement - cost.pattern)
    return tuple(cost.name for cost in costs if not cost.refusal)


def list_identity_costs(target: Target) -> Mapping[str, IdentityCost]:
    """Return the costs of all identities on a core, by name, with the reasons why it does not use some of them."""
    return _list_costs_by_registries(target, CORES.entries, SCALAR.entries)


@lru_cache(maxsize=64)
def _list_costs_by_registries(target: Target, _cores: object, _intrinsics: object) -> Mapping[str, IdentityCost]:
    """Return :func:`list_identity_costs`. The contents of the registries are part of the key, since plugins extend them."""
    alone = {name: _cost_identity(identity, target, ()) for name, identity in IDENTITIES.items()}
    usable = [name for name, cost in alone.items() if not cost.refusal]
    costs: dict[str, IdentityCost] = {}
    for name, identity in IDENTITIES.items():
        others = [other for other in usable if other != name]
        sides = _example_sides(identity)
        # Most sides contain no pattern of another identity: their costs are those without the others.
        occurs = any(rewrite_expr(side, others) is not side for side in sides)
        cost = _cost_identity(identity, target, others) if occurs else alone[name]
        costs[name] = cost._replace(pattern=alone[name].pattern)
    return MappingProxyType(costs)


def _cost_identity(identity: Identity, target: Target, others: Sequence[str]) -> IdentityCost:
    """Count the instructions of both sides of an identity, after the identities ``others`` and the intrinsics of the core were
    applied to them."""
    intrinsics = _cheaper_intrinsics(target)
    best = [select_in_expr(rewrite_expr(side, others), intrinsics) for side in _example_sides(identity)]
    selector = Selector(target)
    printed = (map_expr(side, lambda x: _expand_empty_body(x, target)) for side in best)
    before, after = (target.core.costs.instructions(selector.count_shared(side)) for side in printed)
    called = {x.name for x in walk_expr(best[1]) if isinstance(x, ir.Call) and x.name in SCALAR}
    missing = sorted(name for name in called - target.core.has if not SCALAR[name].bodies)
    refusal = ""
    if identity.scalar and target.has("lanes"):
        refusal = "the lanes of its vectors take the pattern"
    elif missing and not identity.portable:
        refusal = f"the core has no C body for {', '.join(missing)}"
    elif after > before:
        refusal = f"it takes {after:g} instructions; what it replaces takes {before:g}"
    return IdentityCost(identity.name, before, after, refusal)


def _expand_empty_body(expr: ir.Expr, target: Target) -> ir.Expr:
    """Return the meaning of a call whose C body on the core is empty, because the C that is printed from the meaning is best.
    Return any other expression unchanged."""
    if not isinstance(expr, ir.Call) or expr.name not in SCALAR:
        return expr
    body = c_body_for_cost_model(expr.name, target.cpu)
    return expand_call(expr) if body is not None and not (body.text or body.operations) else expr


def _example_sides(identity: Identity) -> tuple[ir.Expr, ir.Expr]:
    """Return both sides of an identity with typical values of its constants, and with registers in the places of other
    variables. (Variables would be index arithmetic, which is not rewritten.)"""
    operands: dict[ir.Expr, ir.Expr] = {}
    for var in free_vars(identity.pattern):
        value = identity.constants.get(var.name)
        register = ir.Buffer(var.name, (1,), var.dtype, "register")
        operands[var] = register[0] if value is None else ir.Const(value, var.dtype)
    return substitute_operands(identity.pattern, operands), substitute_operands(identity.replacement, operands)
