# SPDX-License-Identifier: Apache-2.0
"""Runs of products: their assembly computes what their statements do, in fewer cycles, and compiles with any options."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from microc.base import dtypes
from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.c_statements import StmtPrinter, print_helper_functions
from microc.isa.straight_line import Run, split_at_runs
from microc.schedule.cost.cost_model import estimate
from microc.schedule.rules import candidate_schedules
from microc.target import SPEED, Goal, target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.names import SMALLEST_WEIGHT, SUM_BOUND
from microc.tir.rewrite import stmt_children
from tests.device.smoke import needs
from tests.schedule.functions import matmul

M7 = target_for("cortex-m7")
SMALL_SUMS = ((SUM_BOUND, 1 << 20), (SMALLEST_WEIGHT, -127))
SHAPES = ((7, 24, 6), (5, 64, 4), (1, 32, 12))
"""(rows, K, columns): tiles of three rows and of what is left, with a loop over K and without, single rows."""


def lowered_products() -> Iterator[tuple[str, ir.PrimFunc]]:
    """Every candidate of every shape, for weights in pairs of columns and for weights of int16."""
    for shape in SHAPES:
        for notes, goal in ((SMALL_SUMS, Goal("balanced", 1e4)), ((), SPEED)):
            for n, schedule in enumerate(candidate_schedules(matmul(*shape, notes=notes), "dense", M7, goal)):
                yield f"{shape} {len(notes)} {n}", lower(schedule.func)


def runs_of(stmt: ir.Stmt, loop: ir.Var | None = None, cpu: str = "cortex-m7") -> Iterator[Run]:
    for part in split_at_runs(stmt, cpu, loop):
        if isinstance(part, Run):
            yield part
        else:
            inside = part.var if isinstance(part, ir.For) else loop
            for child in stmt_children(part):
                yield from runs_of(child, inside, cpu)


# ---- Two evaluations of a run: by its statements, and by its instructions. Variables of loops are zero.


def wrap(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def half(word: int, upper: bool) -> int:
    return ((word >> 16 * upper & 0xFFFF) ^ 0x8000) - 0x8000


def extend(word: int, odd: bool) -> int:
    low, high = (((word >> shift + 8 * odd & 0xFF) ^ 0x80) - 0x80 for shift in (0, 16))
    return wrap((low & 0xFFFF) | high << 16)


def dot(a: int, b: int, c: int = 0) -> int:
    return wrap(c + half(a, False) * half(b, False) + half(a, True) * half(b, True))


def mac(left: str, right: str) -> Callable[..., int]:
    return lambda a, b, c=0: wrap(c + half(a, left in "ht") * half(b, right in "ht"))


INTRINSICS: Mapping[str, Callable[..., int]] = {
    "evens_i8": lambda a: extend(a, False),
    "odds_i8": lambda a: extend(a, True),
    "dot2": dot,
    "dot2_wrapping": dot,
    **{f"mac_{a}_{b}": mac(a[0], b[0]) for a in ("low", "high") for b in ("low", "high")},
}
INSTRUCTIONS: Mapping[str, Callable[..., int]] = {
    "smlad": dot,
    "smuad": dot,
    **{f"sm{kind}{a}{b}": mac(a, b) for kind in ("la", "ul") for a in "bt" for b in "bt"},
}


class Machine:
    """Memory with random contents, and the values of register tiles and variables."""

    def __init__(self) -> None:
        self.memory: dict[str, bytes] = {}
        self.sums: dict[ir.Load, int] = {}
        self.values: dict[ir.Var, int] = {}

    def position(self, address: ir.AddressOf) -> tuple[str, int]:
        """The buffer of an address, and the byte in it."""
        buffer = address.buffer
        rng = np.random.default_rng(len(buffer.name))
        self.memory.setdefault(buffer.name, rng.bytes(buffer.nbytes))
        index = sum(self.index(i) * s for i, s in zip(address.indices, buffer.strides, strict=True))
        return buffer.name, index * dtypes.nbytes(buffer.dtype)

    def index(self, expr: ir.Expr) -> int:
        match expr:
            case ir.Const(value):
                return int(value)
            case ir.Bin("add", a, b):
                return self.index(a) + self.index(b)
            case ir.Bin("mul", a, b):
                return self.index(a) * self.index(b)
            case _:
                return 0

    def load(self, name: str, position: int) -> int:
        assert 0 <= position <= len(self.memory[name]) - 4
        return int.from_bytes(self.memory[name][position : position + 4], "little", signed=True)

    def evaluate(self, expr: ir.Expr) -> int:
        match expr:
            case ir.Const(value):
                return int(value)
            case ir.Var():
                return self.values.setdefault(expr, crc32(expr.name.encode()) - (1 << 31))  # declared before the run
            case ir.Load():
                return self.sums.get(expr, 12345)
            case ir.Call(_, (ir.AddressOf() as address,)):
                return self.load(*self.position(address))
            case ir.Call(name, args):
                return INTRINSICS[name](*map(self.evaluate, args))
            case _:
                raise AssertionError(expr)

    def evaluate_statements(self, run: Run) -> None:
        """Evaluate the statements of a run."""
        for stmt in run.statements:
            if isinstance(stmt, ir.Let):
                self.values[stmt.var] = self.evaluate(stmt.value)
            else:
                assert isinstance(stmt, ir.Store)
                self.sums[ir.Load(stmt.buffer, stmt.indices)] = self.evaluate(stmt.value)

    def execute(self, run: Run) -> None:
        """Execute the instructions of a run."""
        registers = {f"%[s{n}]": self.sums.get(total, 12345) for n, total in enumerate(run.sums)}
        registers |= {f"%[i{n}]": self.evaluate(var) for n, var in enumerate(run.inputs)}
        pointers = [self.position(address) for address in run.pointers]
        for total in run.started:
            del registers[f"%[s{run.sums.index(total)}]"]
        for line in run.order.lines:
            mnemonic, _, operands = line.partition(" ")
            if mnemonic == "ldr":
                result, pointer, offset = re.fullmatch(r"(%\[w\d+\]), \[%\[p(\d+)\], #(\d+)\]", operands).groups()  # type: ignore[union-attr]
                name, start = pointers[int(pointer)]
                assert int(offset) < 4096
                registers[result] = self.load(name, start + int(offset))
                continue
            result, *factors = operands.split(", ")
            odd = factors[-1:] == ["ror #8"]
            if mnemonic == "sxtb16":
                registers[result] = extend(registers[factors[0]], odd)
            else:
                registers[result] = INSTRUCTIONS[mnemonic](*(registers[f] for f in factors))
        self.sums |= {total: registers[f"%[s{n}]"] for n, total in enumerate(run.sums)}


def test_instructions_compute_what_the_statements_do() -> None:
    count = 0
    for name, func in lowered_products():
        for run in runs_of(func.body):
            expected, machine = Machine(), Machine()
            expected.evaluate_statements(run)
            machine.execute(run)
            assert machine.sums == expected.sums, name
            count += 1
            used = set(re.findall(r"%\[w(\d+)\]", " ".join(run.order.lines)))
            assert len(used) + len(run.sums) + len(run.inputs) + len(run.pointers) <= 13
    assert count > 20


def test_a_tile_takes_little_more_than_its_products() -> None:
    """Six sums and K = 64: 192 products, 64 words of data, 32 of weights and as many extensions."""
    (schedule,) = [
        s
        for s in candidate_schedules(matmul(3, 64, 2, notes=SMALL_SUMS), "dense", M7, Goal("balanced", 1e4))
        if ("split", ("k", (None, 16, 4))) in [(step.primitive, step.args) for step in s.trace]
    ]
    (run,) = runs_of(lower(schedule.func).body)
    lines = run.order.lines
    assert sum(line.startswith(("smlad", "smuad")) for line in lines) == 192
    # Each product is the younger of a pair, with one of the other 128 instructions in the cycles of as many products.
    assert 192 <= run.order.cycles <= 192 + 40
    assert not any(line.startswith("ldrd") for line in lines)
    cost = estimate(lower(schedule.func), M7)
    assert cost.time == cost.cycles < cost.instructions
    assert not list(runs_of(lower(schedule.func).body, cpu="cortex-m4"))


def test_few_words_that_a_loop_does_not_change_make_no_run() -> None:
    """Compilers keep them in registers; a run would load them in every iteration."""
    words = [ir.Buffer(name, (64,), "int16") for name in "xw"]
    total, n = ir.Buffer("acc", (4,), "int32", "register"), ir.Var("n")

    def word(buffer: ir.Buffer, index: ir.Expr) -> ir.Expr:
        return ir.Call("load_i16x2_aligned", (ir.AddressOf(buffer, (index,), 2),), "int32")

    def products(invariant: bool) -> ir.Stmt:
        return ir.seq(
            *(ir.Store(total, (ir.const(k, "int32"),), ir.const(0, "int32")) for k in range(4)),
            *(
                ir.Store(
                    total,
                    (ir.const(k, "int32"),),
                    ir.Call(
                        "dot2",
                        (
                            word(words[0], n * 8 + 2 * k),
                            word(words[1], ir.const(2 * k, "int32") if invariant else n * 8 + 2 * k),
                            total[k],
                        ),
                        "int32",
                    ),
                )
                for k in range(4)
            ),
        )

    (run,) = split_at_runs(products(invariant=False), "cortex-m7", n)
    assert isinstance(run, Run)
    assert len(run.started) == 4  # zeros need no instruction: the first products add to no sum
    assert sorted(line.split()[0] for line in run.order.lines) == ["ldr"] * 8 + ["smuad"] * 4
    expected, machine = Machine(), Machine()
    expected.evaluate_statements(run)
    machine.execute(run)
    assert machine.sums == expected.sums
    assert not any(isinstance(part, Run) for part in split_at_runs(products(invariant=True), "cortex-m7", n))


@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize(
    "options", ["-O0", "-Os -fno-omit-frame-pointer", "-O3 -fPIC -msingle-pic-base -mpic-register=r9"]
)
def test_statements_compile_with_any_options(options: str, tmp_path: Path) -> None:
    """A frame pointer and a base of data each take a register; without optimisation there is the portable meaning."""
    lines: list[str] = []
    printer = StmtPrinter(ExprPrinter(), cpu="cortex-m7")
    for shape in SHAPES[1:]:
        for schedule in candidate_schedules(matmul(*shape, notes=SMALL_SUMS), "dense", M7, SPEED):
            name = f"kernel_{len(lines)}"
            lines += printer.print_function(replace(lower(schedule.func), name=name), "void")
    helpers = print_helper_functions(printer.expr.helpers, "cortex-m7", None, printer.expr.portable_helpers)
    text = "\n".join(("#include <stdint.h>", "#include <string.h>", *(x for h in helpers.values() for x in h), *lines))
    assert "smlad" in text
    (tmp_path / "kernels.c").write_text(text)
    flags = f"-mcpu=cortex-m7 -mthumb {options} -std=c99 -Wall -Wextra -Wconversion -Wsign-conversion -pedantic -Werror"
    command = ("arm-none-eabi-gcc", *flags.split(), "-Wno-missing-prototypes", "-c", "kernels.c", "-o", "kernels.o")
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
