# SPDX-License-Identifier: Apache-2.0
"""Instruction sets, one file each, and the registries of cores and intrinsics.

A file describes instruction sets as data (:class:`~microc.isa.instruction_set.InstructionSet`): the preprocessor
guard under which a compiler has the set, bodies in C for intrinsics of the vocabulary, and its vector types. It also
lists cores (:class:`~microc.isa.instruction_set.Core`). No other package names an instruction. Plugins can extend
the registries for a compilation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from microc.base.immutable import Registry
from microc.isa.arm import ARM, ARMV6
from microc.isa.arm_neon import AARCH64, ARMV7A
from microc.isa.instruction_set import (
    Body,
    Core,
    Costs,
    Family,
    InstructionSet,
    Intrin,
    TensorIntrin,
    VectorUnit,
    build_lane_form,
    build_lane_operation,
    has_lane_form,
    split_lane_form,
)
from microc.isa.riscv import RISCV
from microc.isa.small_families import AVR, HOST, WASM, XTENSA
from microc.isa.vocabulary import INTRINSICS, TENSORS
from microc.isa.vocabulary.scalar_words import NATURAL
from microc.isa.x86 import X86

FAMILIES: Registry[Family] = Registry(
    "a family of cores", {f.name: f for f in (HOST, X86, AARCH64, ARMV7A, ARMV6, ARM, AVR, XTENSA, RISCV, WASM)}
)
CORES: Registry[Core] = Registry("a core", {core.name: core for f in FAMILIES.values() for core in f.cores})
ALIASES: Mapping[str, str] = MappingProxyType({"wasm": "wasm-simd128"})
"""Alternative names of cores that users may write."""
_OWN = {s.name: s for core in CORES.values() for s in core.sets}
_VOCABULARY = {intrin.name: intrin for intrin in INTRINSICS}


def list_intrinsics(instructions: InstructionSet) -> tuple[Intrin, ...]:
    """Return the intrinsics of a set that the vocabulary lacks: those that it declares, and those for which it has bodies in
    lanes: forms of scalar intrinsics (:func:`.instruction_set.build_lane_form`), and operations on lanes narrower than int32
    (:func:`.instruction_set.build_lane_operation`)."""
    known = _VOCABULARY | {intrin.name: intrin for intrin in instructions.intrinsics}
    others = [name for name in instructions.bodies if name not in known]
    scalars = ((known[name], lanes) for name, lanes in map(split_lane_form, others) if lanes and name in known)
    lane_forms = (build_lane_form(scalar, lanes) for scalar, lanes in scalars if has_lane_form(scalar, lanes))
    operations = (operation for name in others if (operation := build_lane_operation(name)) is not None)
    return (*instructions.intrinsics, *lane_forms, *operations)


SCALAR: Registry[Intrin] = Registry(
    "an intrinsic", {**_VOCABULARY, **{i.name: i for s in _OWN.values() for i in list_intrinsics(s)}}
)
TENSOR: Registry[TensorIntrin] = Registry(
    "a tensor intrinsic", {t.name: t for t in (*TENSORS, *(t for s in _OWN.values() for t in s.tensors))}
)

__all__ = [
    "ALIASES",
    "CORES",
    "FAMILIES",
    "SCALAR",
    "TENSOR",
    "Body",
    "Core",
    "Costs",
    "Family",
    "InstructionSet",
    "Intrin",
    "TensorIntrin",
    "VectorUnit",
    "c_bodies_of_intrinsic",
    "c_body_for_cost_model",
    "find_four_product_intrinsic",
    "list_intrinsics",
]


def c_bodies_of_intrinsic(intrinsic_name: str, cpu: str) -> Iterator[tuple[str, Body]]:
    """Yield (C preprocessor condition, C body) of an intrinsic, or of a conversion of 16-bit floats, on the core
    ``cpu``.

    Bodies of the core's instruction sets come first, in order of preference, then bodies that suit any core."""
    for instructions in CORES[cpu].sets:
        if intrinsic_name in instructions.bodies:
            body = instructions.bodies[intrinsic_name]
            yield body.guard or instructions.guard, body
    if intrinsic_name in SCALAR:
        yield from ((body.guard, body) for body in SCALAR[intrinsic_name].bodies)


def find_four_product_intrinsic(a_dtype: str, b_dtype: str, cpu: str) -> TensorIntrin | None:
    """Return the tensor intrinsic of the core ``cpu`` that adds four products of contiguous elements of dtypes
    ``a_dtype`` and ``b_dtype`` in the fewest steps (calls of scalar intrinsics). None if the core has no such
    intrinsic.

    The operands may be at any address."""
    has = CORES[cpu].has
    candidates = (
        t
        for t in TENSOR.values()
        if (t.a, t.b, t.order_a, t.order_b) == (a_dtype, b_dtype, NATURAL, NATURAL) and t.required_intrinsics <= has
    )
    unaligned = (t for t in candidates if not t.aligned_a and not t.aligned_b)
    return min(unaligned, key=lambda t: len(t.steps), default=None)


def c_body_for_cost_model(intrinsic_name: str, cpu: str) -> Body | None:
    """Return the C body of an intrinsic whose operations the cost model counts on the core ``cpu``. None if the cost
    model counts the operations of the intrinsic's TIR meaning instead."""
    intrin = SCALAR[intrinsic_name]
    return next(
        (b for _, b in c_bodies_of_intrinsic(intrinsic_name, cpu) if b.operations or b not in intrin.bodies), None
    )
