# SPDX-License-Identifier: Apache-2.0
"""Operator cases as C functions: lowered, scheduled, printed and compiled as the driver does it."""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from microc.base.dtypes import Array
from microc.compiler.lowering.kernel_selection import (
    group_algorithms,
    list_candidates,
    lower_verified,
    select_group_schedule,
    with_16_bit_constants,
)
from microc.device.toolchain import flags_if_machine_available
from microc.graph.ir import Graph, Node
from microc.isa import CORES
from microc.ops.lowering import LoweredGroup
from microc.ops.registry import Case, OpDef
from microc.schedule.choose import Choice
from microc.schedule.cost.forecast import forecast_instructions
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Target, target_for
from microc.tir import ir
from microc.tir.analysis.simplification import IllFormedError
from tests.ops.edges import case_arrays
from tests.ops.harness import assert_same, attributes, named_cases, reference
from tests.support.campaign import everything
from tests.support.native import UNDEFINED, Calls, build_source, call, library_source


class NotAcceptedError(Exception):
    """None of a case's schedules is accepted."""


def one_node(definition: OpDef, case: Case, arrays: Sequence[Array]) -> tuple[Graph, Node]:
    """A graph that applies the operator once, to inputs ``i0``, ``i1`` ... and constants."""
    attrs = attributes(definition, case)
    names = [f"i{k}" for k in range(len(case.types))]
    results = definition.infer(attrs, case.types)
    outputs = tuple(f"o{k}" for k in range(len(results)))
    node = Node(definition.name, tuple(names), outputs, attrs)
    types = {**dict(zip(names, case.types, strict=True)), **dict(zip(outputs, results, strict=True))}
    consts = {names[k]: arrays[k] for k in case.consts}
    inputs = tuple(name for name in names if name not in consts)
    return Graph("case", inputs, outputs, (node,), types, consts), node


@dataclass(frozen=True)
class CompiledCase:
    """One case as a function, and what it is given."""

    definition: OpDef
    case: Case
    arrays: tuple[Array, ...]
    group: LoweredGroup
    schedule: Schedule
    func: ir.PrimFunc

    @cached_property
    def wanted(self) -> tuple[Array, ...]:
        """What the reference says."""
        return reference(self.definition, self.case, self.arrays)

    def run(self, library: ctypes.CDLL | Calls) -> tuple[Array, ...]:
        """What the machine says."""
        given: list[Array | None] = [
            self.schedule.packed(b, p.array) if p.array is not None else self.arrays[int(p.value[1:])]
            for b, p in zip(self.group.func.params, self.group.params, strict=False)
        ]
        results = call(library, self.func, [*given, *(None,) * (len(self.func.params) - len(given))])
        kinds = self.definition.infer(attributes(self.definition, self.case), self.case.types)
        return tuple(a.reshape(kind.shape) for a, kind in zip(results[len(given) :], kinds, strict=False))


def definitions(family: str) -> list[OpDef]:
    """The operators of a family that compute: a view is no kernel, and what is composed is made of kernels."""
    return [d for d in importlib.import_module(f"microc.ops.{family}").OPERATORS if not (d.view or d.composed)]


def compiled_cases(
    family: str,
    cpu: str,
    is_chosen: Callable[[int], bool] = lambda number: True,
    is_accepted: Callable[[Schedule], bool] | None = None,
) -> dict[str, CompiledCase]:
    """Cases of a family's operators by name, lowered for a core: all, or those whose number is chosen. Where schedules are to be
    accepted, those that have one."""
    cases = {}
    for number, (name, definition, case) in enumerate(named_cases(definitions(family))):
        if is_chosen(number):
            with suppress(NotAcceptedError) if is_accepted else nullcontext():
                cases[name] = compiled_case(definition, case, cpu, f"{c_name(name)}_{number}", is_accepted)
    return cases


def cases_of_bytes(family: str, position: int = 0, count: int = 1) -> Callable[[int], bool]:
    """Return a choice of a family's cases for :func:`compiled_cases`: of those whose data are int8, every ``count``-th from
    ``position`` on."""
    dtypes = [case.types[0].dtype for _, _, case in named_cases(definitions(family))]
    numbers = frozenset([number for number, dtype in enumerate(dtypes) if dtype == "int8"][position::count])
    return lambda number: number in numbers


def compiled_case(
    definition: OpDef, case: Case, cpu: str, name: str, is_accepted: Callable[[Schedule], bool] | None = None
) -> CompiledCase:
    """Lower one case for a core, by the schedule that is fastest by its forecast, or by the fastest that is accepted.

    ``make campaign`` chooses as the driver does, which lowers three schedules for each that runs: two thirds of the time of
    these tests. Raises NotAcceptedError if no schedule is accepted.
    """
    arrays = tuple(np.asarray(a, order="C") for a in case_arrays(case))
    graph, node = one_node(definition, case, arrays)
    target = target_for(cpu)
    lowered = group_algorithms(graph, (node,), target, name)
    if everything() and not is_accepted:
        number, choice = select_group_schedule(lowered, target, SPEED)
    else:
        number, choice = _fastest_by_forecast(lowered, target, is_accepted or (lambda schedule: True))
    choice = with_16_bit_constants(lowered[number], choice, target, SPEED)
    return CompiledCase(definition, case, arrays, lowered[number], choice.schedule, choice.func)


def _fastest_by_forecast(
    lowered: Sequence[LoweredGroup], target: Target, is_accepted: Callable[[Schedule], bool]
) -> tuple[int, Choice]:
    """Choose the valid schedule of the fewest forecast instructions; return its algorithm's index, and the choice."""
    candidates = [
        (number, schedule) for number, schedule in list_candidates(lowered, target, SPEED) if is_accepted(schedule)
    ]
    for number, schedule in sorted(candidates, key=lambda row: forecast_instructions(row[1].func, target)):
        with suppress(IllFormedError):  # the driver takes the next best, too
            return number, lower_verified(schedule, lowered[number])
    raise NotAcceptedError(f"{lowered[0].func.name}: no schedule is accepted for {target.cpu}")


Built = dict[tuple[tuple[str, ...], str, ir.PrimFunc], ctypes.CDLL]
"""Libraries by the compiler's flags, the core whose bodies intrinsics have, and each of their functions."""


def assert_compiled(
    cases: Mapping[str, CompiledCase],
    folder: Path,
    cpu: str = "host",
    built: Built | None = None,
) -> None:
    """What the machine computes of every case is what its reference says, as the C says it, where any undefined behaviour is
    written to stderr, and optimised, in the instructions of ``cpu`` where this computer has them. In two libraries: of one that
    is both, the compiler makes three times as much work. A function that is ``built`` is not built again: several cores have
    it."""
    machine, built = flags_if_machine_available(CORES[cpu].machine), {} if built is None else built
    own, printed = cpu if machine else "host", cache(library_source)  # often both libraries are of the same text
    for name, flags, bodies in (("sanitized", ("-O0", UNDEFINED), "host"), ("optimised", ("-O1", *machine), own)):
        new = tuple(case.func for case in cases.values() if (flags, bodies, case.func) not in built)
        if new:
            (folder / name).mkdir(parents=True)
            library = build_source(printed(new, bodies), folder / name, *flags)
            built.update(dict.fromkeys(((flags, bodies, f) for f in new), library))
        for title, case in cases.items():
            assert_answer(title, case, built[flags, bodies, case.func], name)


def assert_answer(title: str, case: CompiledCase, library: ctypes.CDLL | Calls, where: str) -> None:
    """What a library's function computes is what the reference of its case says."""
    for got, want in zip(case.run(library), case.wanted, strict=True):
        try:
            assert_same(got, want, case.case.tolerance)
        except AssertionError as difference:
            raise AssertionError(f"{title}, {where}: {difference}") from difference


def c_name(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_").lower()
