# SPDX-License-Identifier: Apache-2.0
"""The core ``host`` (the computer on which the compiler runs), and the reference tensor unit."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from microc.isa.instruction_set import PLAIN, TENSOR_UNIT, Body, Core, Family, InstructionSet, Scratchpad, TensorUnit
from microc.isa.vocabulary.matrix_products import UNIT_WORDS
from microc.isa.x86 import COSTS, HOST_WORDS

# ---- The reference tensor unit, which the model in C simulates for tests. It is a typical unit of its size, not a product.
#
# 256 products in a cycle, as an array of 16 x 16 does; 16 KiB each for inputs, weights and sums; a bus of 64 bits.

REFERENCE = TensorUnit(
    "tensor16",
    rows=16,
    columns=16,
    depth=16,
    tile_cycles=16,
    input=Scratchpad(16 * 1024),
    weight=Scratchpad(16 * 1024),
    sums=Scratchpad(16 * 1024),
    bus=8,
    start=8,
)


def with_unit(core: Core, unit: TensorUnit) -> Core:
    """Return ``core`` with a tensor unit as its coprocessor, under the name ``<core>+<unit>``."""
    # Issuing an instruction costs the processor a store for each operand, and one to the register that starts it.
    operands = {word.name: len(word.params) for word in UNIT_WORDS}
    bodies = {name: Body("", (("alu", count), ("store", count + 1))) for name, count in operands.items()}
    beside = InstructionSet(
        f"tensor unit {unit.name}", "1", MappingProxyType(bodies), frozenset({TENSOR_UNIT}), tensor_unit=unit
    )
    return replace(core, name=f"{core.name}+{unit.name}", sets=(*core.sets, beside))


# ---- The computer on which the compiler runs. The only assumption is that it loads words at any address.

_CORE = Core("host", "host", COSTS, (HOST_WORDS,), frozenset({"fpu"}))
HOST = Family("host", (_CORE, with_unit(_CORE, REFERENCE)), PLAIN, threads=True)
