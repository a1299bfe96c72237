# SPDX-License-Identifier: Apache-2.0
"""Orders of calls: none that breaks a dependence, none that needs more memory, the best where branches are few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from microc.module import Module
from microc.plan.liveness import Overlaps
from microc.plan.plan import OrderSearch, order_calls, plan_module, reorder_like
from tests.plan.modules import Sketch, modules
from tests.support.campaign import examples


def branches() -> Module:
    """Two branches, each of a large value and a small one; as written, both large values are alive at once."""
    sketch = Sketch()
    sketch.value("x", 16, "input")
    for branch in "ab":
        sketch.value(f"{branch}_large", 400)
        sketch.value(f"{branch}_small", 8)
    sketch.value("y", 8, "output")
    sketch.call(("x",), ("a_large",))
    sketch.call(("x",), ("b_large",))
    sketch.call(("a_large",), ("a_small",))
    sketch.call(("b_large",), ("b_small",))
    sketch.call(("a_small", "b_small"), ("y",))
    return sketch.module()


def ordered_calls(module: Module, io_in_arena: bool = True) -> Module:
    return order_calls(module, Overlaps(module), io_in_arena=io_in_arena)


def test_one_branch_after_the_other() -> None:
    module = branches()
    plan = plan_module(module).plan
    assert plan is not None and plan.size == 424


def test_state_is_read_before_it_is_updated() -> None:
    """The update would free a large value early, but the old state is still needed."""
    sketch = Sketch()
    sketch.value("x", 16, "input")
    sketch.value("memory", 100, "state")
    sketch.value("new", 100)
    sketch.value("y", 16, "output")
    sketch.call(("x",), ("new",))
    sketch.call(("memory", "x"), ("y",))
    sketch.call(("new",), ("memory",))
    ordered = ordered_calls(sketch.module())
    writes = [call.writes[0] for call in ordered.calls]
    assert writes.index("y") < writes.index("memory")


@given(modules(calls=7), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_orders_are_legal_and_no_worse(module: Module, io_in_arena: bool) -> None:
    ordered = ordered_calls(module, io_in_arena)
    assert set(ordered.calls) == set(module.calls)
    plan_module(ordered, io_in_arena=io_in_arena)  # and checks that every read finds what was written
    assert ordered_calls(ordered, io_in_arena) == ordered


@given(modules(calls=6))
@settings(max_examples=examples(60), deadline=None)
def test_the_best_of_all_orders(module: Module) -> None:
    search = OrderSearch(module, Overlaps(module), io_in_arena=True)

    def every(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == len(module.calls):
            yield done
        for k in range(len(module.calls)):
            if k not in done and search.needs[k] <= set(done):
                yield from every((*done, k))

    assert search.find_best_order().peak_bytes == min(search.follow_order(order).peak_bytes for order in every(()))


def test_a_chain_has_one_order() -> None:
    module = branches()
    chain = replace(module, calls=tuple(module.calls[k] for k in (0, 2)))
    assert ordered_calls(chain) is chain


def test_an_order_is_taken_from_another_module() -> None:
    """Code of ours is compared with a board call by call, so that both need one order."""
    module = branches()
    ordered = ordered_calls(module)
    assert ordered.calls != module.calls and reorder_like(module, ordered).calls == ordered.calls
    assert reorder_like(module, replace(ordered, calls=ordered.calls[:1])) is module
