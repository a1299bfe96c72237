# SPDX-License-Identifier: Apache-2.0
"""Hot code: what a call fetches behind a cache, and which kernels run from RAM."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from microc.module import ExternalBody, Module, Plan
from microc.plan import code_and_constants as hot
from microc.plan.code_and_constants import move_hot_code_to_memory, reserved_code_bytes
from microc.target import CodeMemory, Fetches, Fetching
from tests.plan.modules import Sketch

FLASH = Fetching(wait_states=3, line_bytes=4)
FAST = Fetching()


def network(kernels: list[tuple[int, float]], again: int = 0) -> Module:
    """Kernels of so much code, of which a call executes so many bytes; the first is called ``again`` times more."""
    sketch = Sketch()
    sketch.value("v0", 8, "input")
    for k in range(len(kernels)):
        sketch.call((f"v{k}",), (sketch.value(f"v{k + 1}", 8),))
    module = sketch.module()
    made = tuple(
        replace(kernel, code_bytes=size, fetches=Fetches(size, executed))
        for kernel, (size, executed) in zip(module.kernels, kernels, strict=True)
    )
    calls = (*module.calls, *(module.calls[:1] * again))
    return replace(module, kernels=made, calls=calls, plan=Plan({}, 0, 0, "none"))


Loop = tuple[int, int, tuple["Loop", ...]]
"""Turns, bytes of its own, and loops behind these."""


def fetched(loop: Loop, at: int = 0) -> Iterator[int]:
    """Addresses of bytes as they are executed."""
    turns, size, inside = loop
    for _ in range(turns):
        yield from range(at, at + size)
        place = at + size
        for each in inside:
            yield from fetched(each, place)
            place += length(each)


def length(loop: Loop) -> int:
    return loop[1] + sum(map(length, loop[2]))


def described(loop: Loop, entries: int = 1) -> Fetches:
    turns, size, inside = loop
    parts = tuple(described(each, entries * turns) for each in inside)
    return Fetches(length(loop), turns * entries * size + sum(part.executed_bytes for part in parts), entries, parts)


def misses(addresses: Iterator[int], cache: int) -> int:
    """Of a cache of so many bytes, from which those go that were used least recently."""
    held: OrderedDict[int, None] = OrderedDict()
    found = 0
    for address in addresses:
        if address in held:
            held.move_to_end(address)
            continue
        found += 1
        held[address] = None
        if len(held) > cache:  # at once where there is none
            held.popitem(last=False)
    return found


@pytest.mark.parametrize("cache", [0, 4, 8, 19, 20, 31, 32, 49, 50, 200])
def test_fetches_are_those_of_a_cache_that_drops_what_is_oldest(cache: int) -> None:
    """Loops in loops, held against the addresses one by one."""
    nest: Loop = (3, 10, ((5, 8, ()), (4, 12, ((6, 20, ()),))))
    assert described(nest).count_missed_bytes(cache) == misses(fetched(nest), cache)


def test_code_under_conditions_comes_at_most_as_often_as_it_runs() -> None:
    """A loop of 100 bytes, ten of which run each of the four times that it is entered."""
    assert Fetches(100, 40, 4).count_missed_bytes(256) == 40
    assert Fetching(wait_states=5, line_bytes=16, cache_bytes=256).wait_cycles(Fetches(100, 4000, 4)) == 5 * 400 / 16


@pytest.mark.parametrize("seed", range(8))
def test_the_choice_is_the_best_of_all(seed: int) -> None:
    dice = random.Random(seed)
    kernels = [(dice.randint(20, 400), dice.random() * 10000) for _ in range(9)]
    module = network(kernels, again=dice.randint(0, 2))
    names = [kernel.name for kernel in module.kernels]
    calls = [sum(call.kernel == name for call in module.calls) for name in names]
    gains = [3 / 4 * min(executed, 1e9) * count for (_, executed), count in zip(kernels, calls, strict=True)]
    sizes = [reserved_code_bytes(kernel) for kernel in module.kernels]
    capacity = dice.randint(0, sum(sizes))
    sets = (each for count in range(10) for each in combinations(range(9), count))
    best = max(sum(gains[k] for k in each) for each in sets if sum(sizes[k] for k in each) <= capacity)
    planned = move_hot_code_to_memory(module, CodeMemory("itcm", capacity, FAST, FLASH))
    assert planned.plan is not None and planned.plan.code is not None
    code = planned.plan.code
    assert code.saved == round(best) and code.size <= capacity == code.capacity
    assert code.waits == pytest.approx(sum(gains) - best, abs=1)
    assert sum(call.cycles for call in planned.calls) == pytest.approx(code.waits, abs=len(module.calls))


def test_many_kernels_are_chosen_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the budget kernels take what is left, those first that gain most by a byte."""
    module = network([(64, 10_000.0 - k) for k in range(40)])
    memory = CodeMemory("itcm", 20 * reserved_code_bytes(module.kernels[0]), FAST, FLASH)
    monkeypatch.setattr(hot, "MAX_KNAPSACK_ITEMS", 4)
    plan = move_hot_code_to_memory(module, memory).plan
    assert plan is not None and plan.code is not None
    assert plan.code.kernels == tuple(kernel.name for kernel in module.kernels[:20])


def test_what_gains_nothing_stays() -> None:
    """Code that waits as long in RAM, and code that is not ours."""
    module = network([(64, 1000.0), (64, 1000.0)])
    slow = move_hot_code_to_memory(module, CodeMemory("sram", 1 << 16, FLASH, FLASH)).plan
    assert slow is not None and slow.code is not None and slow.code.kernels == () and slow.code.saved == 0
    foreign = replace(module.kernels[0], external=ExternalBody("acme", (), (), 0, 64))
    mixed = move_hot_code_to_memory(
        replace(module, kernels=(foreign, module.kernels[1])), CodeMemory("m", 1 << 16, FAST, FLASH)
    )
    assert mixed.plan is not None and mixed.plan.code is not None
    assert mixed.plan.code.kernels == (module.kernels[1].name,)
