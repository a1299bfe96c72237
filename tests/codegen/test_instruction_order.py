# SPDX-License-Identifier: Apache-2.0
"""Orders of instructions: they compute the same, within the registers, in fewer cycles."""

from __future__ import annotations

import random
import re

import pytest

from microc.isa.instruction_order import Operation, Timing, order_operations
from microc.isa.mve.arm_mve_products import PIPELINE

REGISTERS = ("q0", "q1", "q2", "q3", "q4", "q5")


def random_operations(rng: random.Random, count: int) -> list[Operation]:
    """Loads, operations of two vectors into a third or into the first of them, and stores; at most four vectors are alive."""
    operations, alive, number = list[Operation](), list[str](), 0
    for k in range(count):
        if len(alive) < 2 or (len(alive) < 4 and rng.random() < 0.5):
            number += 1
            alive.append(f"v{number}")
            operations.append(Operation(f"load{k} <v{number}>", "load", (f"v{number}",)))
        elif rng.random() < 0.3:
            operations.append(Operation(f"store{k} <{alive.pop(rng.randrange(len(alive)))}>", "store"))
        else:
            into, other = rng.sample(alive, 2)
            operations.append(Operation(f"mix{k} <{into}>, <{other}>", rng.choice(("multiply", "narrow")), (into,)))
    return operations + [Operation(f"store_last{n} <{name}>", "store") for n, name in enumerate(alive)]


def evaluate(lines: list[str]) -> dict[str, str]:
    """What every store stores, as a term of loads and operations."""
    values, stored = dict[str, str](), dict[str, str]()
    for line in lines:
        name, _, operands = line.partition(" ")
        first, *others = operands.split(", ")
        if name.startswith("load"):
            values[first] = name
        elif name.startswith("store"):
            stored[name] = values[first]
        else:
            values[first] = f"{name}({values[first]}, {', '.join(values[other] for other in others)})"
    return stored


@pytest.mark.parametrize("seed", range(40))
def test_orders_compute_the_same(seed: int) -> None:
    operations = random_operations(random.Random(seed), 30)
    ordered = order_operations(operations, PIPELINE, REGISTERS).lines
    assert evaluate(list(ordered)) == evaluate([re.sub("[<>]", "", operation.text) for operation in operations])
    assert set(re.findall(r"q\d", " ".join(ordered))) <= set(REGISTERS)


def test_loads_and_products_alternate() -> None:
    """Units that work side by side are both busy, where dependent pairs would take turns."""
    timings = {"load": Timing("memory", 2, 2), "product": Timing("multiplier", 2, 1)}
    pairs = [
        Operation(f"{'load' if k % 2 == 0 else 'product'} <v{k // 2}>", "product" if k % 2 else "load", (f"v{k // 2}",))
        for k in range(8)
    ]
    names = [line.split()[0] for line in order_operations(pairs, timings, REGISTERS).lines]
    assert names[:2] == ["load", "load"] and names[1:-1] == ["load", "product"] * 3


def test_vectors_of_one_load_are_neighbours() -> None:
    first = [Operation(f"load <v{k}>", "load", (f"v{k}",)) for k in range(3)]
    both = Operation("load2 <even>, <odd>", "load", ("even", "odd"))
    uses = [Operation("store <v0>", "store"), Operation("store <v2>", "store")]
    after = [Operation("store <even>", "store"), Operation("store <odd>", "store"), Operation("store <v1>", "store")]
    lines = order_operations([*first, *uses, both, *after], PIPELINE, ("q0", "q1", "q2", "q3")).lines
    even, odd = next(re.findall(r"q(\d)", line) for line in lines if line.startswith("load2"))
    assert int(odd) == int(even) + 1


def test_too_few_registers_are_refused() -> None:
    loads = [Operation(f"load <v{k}>", "load", (f"v{k}",)) for k in range(3)]
    together = Operation("mix <v0>, <v1>, <v2>", "multiply", ("v0",))
    with pytest.raises(ValueError, match="more than 2 registers"):
        order_operations([*loads, together], PIPELINE, ("q0", "q1"))
