# SPDX-License-Identifier: Apache-2.0
"""Chains of small kernels in one arena, planned tightly, against the same kernels with memory of their own."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.base.dtypes import Array, to_numpy
from microc.module import Module
from microc.plan.plan import plan_module
from microc.schedule.identities import intrinsic_functions
from microc.tir.interp import compile_func
from tests.plan.kernels import KERNELS, add
from tests.plan.modules import Sketch
from tests.support.campaign import examples
from tests.support.native import build

LENGTHS = (8, 24, 64)


@st.composite
def chains(draw: st.DrawFn) -> Module:
    """Kernels one after another, now and then a sum with an earlier value; some values are inputs, the last is the output."""
    sketch = Sketch()
    known = [sketch.value("x0", draw(st.sampled_from(LENGTHS)), "input")]
    count = draw(st.integers(2, 7))
    for number in range(1, count + 1):
        source = known[-1]
        size = sketch.values[source].nbytes
        twins = [name for name in known[:-1] if sketch.values[name].nbytes == size]
        name = f"x{number}"
        storage = "output" if number == count else "intermediate"
        reads: tuple[str, ...]
        if len(twins) > 0 and draw(st.booleans()):
            func, reads = add(size), (source, draw(st.sampled_from(twins)))
        else:
            kinds = sorted(k for k in KERNELS if (k != "shrink" or size % 16 == 0) and (k != "expand" or size < 100))
            func, reads = KERNELS[draw(st.sampled_from(kinds))](size), (source,)
        work = tuple(
            sketch.value(f"work{number}", p.size, "workspace", p.dtype) for p in func.params if p.scope == "workspace"
        )
        out = next(p for p in func.params if p.name == "out")
        known.append(sketch.value(name, out.size, storage))
        sketch.add(replace(func, name=f"kernel{number}"), reads, (name,), work)
    return sketch.module()


def alone(module: Module, x: Array) -> Array:
    """The output, every value in memory of its own."""
    memory = {name: np.zeros(v.shape, to_numpy(v.dtype)) for name, v in module.values.items()}
    memory["x0"][...] = x
    _interpret(module, memory)
    return memory[module.outputs[0]]


def in_arena(module: Module, x: Array) -> tuple[Array, dict[str, Array]]:
    """An arena with the input in its place, and every value as a piece of it."""
    assert module.plan is not None
    arena = np.full(module.plan.size, 0x77, np.uint8)
    memory = {
        name: arena[at:][: module.values[name].nbytes].view(to_numpy(module.values[name].dtype))
        for name, at in module.plan.offsets.items()
    }
    memory["x0"][...] = x
    return arena, memory


def _interpret(module: Module, memory: dict[str, Array]) -> None:
    kernels = {kernel.name: kernel.func for kernel in module.kernels}
    for call in module.calls:
        compile_func(kernels[call.kernel])([memory[name] for name in call.args], intrinsic_functions())


def random_input(module: Module) -> Array:
    return np.random.default_rng(1).integers(-128, 128, module.values["x0"].shape).astype(np.int8)


@given(chains())
@settings(max_examples=examples(60), deadline=None)
def test_chains_compute_the_same_in_one_arena(module: Module) -> None:
    planned, x = plan_module(module), random_input(module)
    _, memory = in_arena(planned, x)
    _interpret(planned, memory)
    np.testing.assert_array_equal(memory[planned.outputs[0]], alone(module, x))


def test_chains_as_machine_code(tmp_path: Path) -> None:
    """Compilers see that pointers may meet: gcc -O3 with vectors moves no load across the stores that follow it."""
    drawn: list[Module] = []

    @given(chains())
    @settings(max_examples=25, database=None, derandomize=True, deadline=None)
    def draw(module: Module) -> None:
        drawn.append(plan_module(module))

    draw()
    renamed = [replace(k.func, name=f"chain{n}_{k.name}") for n, module in enumerate(drawn) for k in module.kernels]
    library = build(renamed, tmp_path, "-O3")
    for n, module in enumerate(drawn):
        x = random_input(module)
        _, memory = in_arena(module, x)
        for call in module.calls:
            function = getattr(library, f"call_chain{n}_{call.kernel}")
            function(*(memory[name].ctypes.data_as(ctypes.c_void_p) for name in call.args))
        np.testing.assert_array_equal(memory[module.outputs[0]], alone(module, x))


def test_overlap_saves_memory() -> None:
    """Eight layers of which each keeps one block of four away from its output live in one tensor and a bit."""
    sketch = Sketch()
    sketch.value("x0", 256, "input")
    for number in range(1, 9):
        kind = "blocks" if number % 2 else "patch"
        work = (sketch.value(f"work{number}", 4, "workspace"),) if kind == "patch" else ()
        sketch.value(f"x{number}", 256, "output" if number == 8 else "intermediate")
        func = replace(KERNELS[kind](256), name=f"kernel{number}")
        sketch.add(func, (f"x{number - 1}",), (f"x{number}",), work)
    plan = plan_module(sketch.module()).plan
    assert plan is not None
    assert (plan.size, plan.lower_bound) == (256 + 4 * 4, 260)
