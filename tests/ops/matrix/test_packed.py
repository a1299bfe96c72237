# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits: every order holds every number, all cores compute what the reference says, and flash shrinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import project_files
from microc.codegen.project.manifest import MemoryMap
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.device.boards import load_board
from microc.device.client import Client
from microc.device.emulators import Emulator
from microc.device.toolchain import run_make
from microc.device.transport import open_transport
from microc.graph.ir import Graph, TensorType
from microc.graph.ir import run as run_graph
from microc.ops import registry
from microc.ops.matrix.gemm import FAR, PACKED
from microc.ops.registry import Case
from microc.schedule.primitives.tensorize_bits import pack_bit_columns
from microc.schedule.rules.rule import is_algorithm_worthwhile
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir.bit_fields import (
    BLOCKS,
    FEW,
    HALVES,
    INDICES,
    NEIGHBOURS,
    VECTOR,
    BitFields,
    find_block_multipliers,
    smallest_bit_width,
    smallest_bits_and_block,
    smallest_bits_and_table_count,
)
from tests.device.smoke import needs
from tests.ops.compiled import Built, assert_compiled, c_name, compiled_case
from tests.support.campaign import everything, in_turn
from tests.transform.network import Network

DICE = np.random.default_rng(5)
RULES = {
    "cortex-m0": {"matrix bits"},
    "avr": {"matrix bits"},
    "cortex-m4": {"matrix bit pairs", "matrix opened columns", "matrix bits"},
    "cortex-m55": {"matrix mve", "matrix bit pairs", "matrix opened columns", "matrix bits"},
}
BOARDS = {"mps2-an386": "arm", "mps3-an547": "arm", "mps2-an385": "arm", "qemu-riscv32": "riscv"}


@pytest.mark.parametrize("order", [NEIGHBOURS, HALVES, VECTOR])
@pytest.mark.parametrize("bits", FEW)
@pytest.mark.parametrize("depth", [1, 7, 64, 129])
def test_every_number_is_where_its_place_says(order: str, bits: int, depth: int) -> None:
    form = BitFields(bits, order)
    low, high = -(1 << bits - 1), 1 << bits - 1
    rows = DICE.integers(low, high, (3, depth)).astype(np.int8)
    packed = form.pack(rows)
    assert packed.dtype.name == form.dtype and packed.nbytes * 8 < bits * (rows.size + 3 * form.group)
    for k in range(depth):
        element, bit = form.element_and_bit(k)
        field = (packed[:, element].astype(np.int64) >> bit) & ((1 << bits) - 1)
        assert np.array_equal(np.where(field < high, field, field - 2 * high), rows[:, k])


def test_four_columns_in_a_number() -> None:
    rows = DICE.integers(-7, 8, (8, 6)).astype(np.int8)
    halves = pack_bit_columns(rows).view(np.int16).reshape(2, 6).astype(int)
    wanted = rows.reshape(2, 4, 6).astype(int)
    np.testing.assert_array_equal(halves, sum(wanted[:, n] << 4 * n for n in range(4)))


@pytest.mark.parametrize("order", [NEIGHBOURS, HALVES])
@pytest.mark.parametrize("bits", FEW)
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_have_multipliers(order: str, bits: int, block: int) -> None:
    few = DICE.integers(-(1 << bits - 1), 1 << bits - 1, (3, 150))
    few[:, ::block] = 1  # so that no smaller multiplier does
    factors = DICE.integers(1, 16, (3, -(-150 // block)))
    rows = (few * np.repeat(factors, block, axis=1)[:, :150]).astype(np.int8)
    assert smallest_bits_and_block(rows) == (bits, block)
    np.testing.assert_array_equal(find_block_multipliers(rows, bits, block), factors)
    form, plain = BitFields(bits, order, block), BitFields(bits, order)
    packed, length = form.pack(rows), plain.pack(few).shape[1]
    np.testing.assert_array_equal(packed[:, :length], plain.pack(few))
    np.testing.assert_array_equal(packed[:, length:].copy().view(np.int8)[:, : factors.shape[1]], factors)


@pytest.mark.parametrize("bits", INDICES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("depth", [64, 129])
def test_tables_hold_every_number(bits: int, shared: bool, depth: int) -> None:
    """Those of all rows, or of each; zeros that fill a row up are among its values."""
    values = DICE.choice(256, (1 if shared else 5, 1 << bits), replace=False) - 128
    values[:, 0] = 0
    rows = np.take_along_axis(values.repeat(5 if shared else 1, axis=0), DICE.integers(0, 1 << bits, (5, depth)), 1)
    rows = rows.astype(np.int8)
    found = smallest_bits_and_table_count(rows)
    assert found == (bits, 1 if shared else 5)
    form = BitFields(bits, NEIGHBOURS, tables=found[1])
    stored = form.pack(rows)
    assert stored.shape == form.shape(5, depth)
    indices, tables = stored[: -found[1] << bits].reshape(5, -1), stored[-found[1] << bits :].reshape(-1, 1 << bits)
    for k in range(depth):
        element, bit = form.element_and_bit(k)
        index = indices[:, element].astype(np.int64) >> bit & (1 << bits) - 1
        assert np.array_equal(tables[np.arange(5) if found[1] > 1 else 0, index], rows[:, k])


def test_rows_of_many_values_have_no_table() -> None:
    assert smallest_bits_and_table_count(np.arange(17, dtype=np.int8)[None]) is None


def test_weights_that_are_no_multiples_stay() -> None:
    rows = DICE.integers(-127, 128, (4, 64)).astype(np.int8)
    assert smallest_bits_and_block(rows) == (8, 0)


def test_bits_of_numbers() -> None:
    assert [smallest_bit_width(np.array(ends, np.int8)) for ends in ([-2, 1], [-1, 2], [-8, 7], [0, 8], [])] == [
        2,
        4,
        4,
        8,
        2,
    ]


def packs_bits(schedule: Schedule) -> bool:
    return schedule.packs_bits


def cores_of_case(case: Case, number: int) -> list[str]:
    """The cores that run a case: one of those on which its algorithm is worthwhile, or all of these."""
    algorithm = str(case.attrs.get("algorithm"))
    cores = [cpu for cpu in RULES if algorithm in PACKED and is_algorithm_worthwhile(algorithm, target_for(cpu))]
    return cores if everything() or not cores else [cores[number % len(cores)]]


@pytest.mark.parametrize("operator", ["dense", "conv2d"])
def test_operators_equal_the_reference(operator: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All cases that pack, by the rules of the cores: each on one core in turn, on all where everything is asked for."""
    definition, built = registry.get(operator), Built()
    for cpu, rules in RULES.items():
        cases = {
            case.name: compiled_case(definition, case, cpu, f"case_{c_name(case.name)}_{number}", packs_bits)
            for number, case in enumerate(definition.cases())
            if cpu in cores_of_case(case, number)
        }
        assert {case.schedule.rule for case in cases.values()} <= rules
        assert_compiled(cases, tmp_path / cpu, built=built)
    assert "runtime error" not in capfd.readouterr().err


def layers(bits: int, times: int = 1) -> Graph:
    """Products with odd extents, remainders of tiles, and ends of ranges; numbers of few bits ``times`` another."""
    net = Network(
        image=TensorType((1, 5, 7, 3), "int8"), row=TensorType((1, 129), "int8"), rows=TensorType((5, 64), "int8")
    )

    def weights(*shape: int) -> str:
        return net.constant(times * net.rng.integers(-(1 << bits - 1), 1 << bits - 1, shape).astype(np.int8))

    def bias(count: int) -> str:
        return net.constant(net.rng.integers(-3000, 3000, count).astype(np.int32))

    wide = net.op(
        "conv2d", "image", weights(32, 3, 3, 3), bias(32), padding=(1, 1, 1, 1), pad_value=-7, out_dtype="int32"
    )
    scaled: dict[str, Any] = {
        "multiplier": 1518500250,
        "shift": -6,
        "shift_range": (-6, -6),
        "zero_point": 3,
        "input_zero_point": 0,
    }
    ends: dict[str, Any] = {
        "bound": 1 << 20,
        "minimum": -128,
        "maximum": 127,
        "out_dtype": "int8",
        "rounding": "double",
    }
    thin = net.op("requantize", wide, **scaled, **ends)
    outputs = [
        net.op("conv2d", thin, weights(37, 1, 1, 32), bias(37), out_dtype="int32"),
        net.op("dense", "row", weights(9, 129), bias(9), out_dtype="int32"),
        net.op("dense", "row", net.constant(np.maximum(net.consts[weights(12, 129)], -7)), bias(12), out_dtype="int32"),
        net.op("dense", "rows", weights(39, 64), out_dtype="int32"),
    ]
    return net.graph(*outputs)


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        pytest.param(n, numbers, marks=needs(f"qemu-system-{'arm' if BOARDS[n] == 'arm' else 'riscv32'}", "make"))
        for n, numbers in in_turn(list(BOARDS), [(4, 1), (2, 1), (4, FAR)])
    ],
)
def test_boards_compute_what_operators_mean(name: str, numbers: tuple[int, int], tmp_path: Path) -> None:
    bits, times = numbers
    board, graph = load_board(name), layers(bits, times)
    module = compile_graph(graph, "layers", board.target, make_options(optimize="size"))
    whole = sum(a.size for a in graph.consts.values() if a.dtype == np.int8)
    stored = sum(v.nbytes for v in module.values.values() if v.storage == "const" and v.label.endswith("_weight"))
    assert stored <= (bits / 8 + 0.18) * whole  # zeros behind 27 and 129 terms
    write_tree(tmp_path, project_files((module,), board, microc.__version__))
    run_make(tmp_path)
    data = {n: DICE.integers(-128, 128, graph.types[n].shape).astype(np.int8) for n in graph.inputs}
    values = run_graph(graph, data, lambda node, arrays: registry.get(node.op).reference(node.attrs, arrays))
    with Emulator(board, tmp_path / "firmware.elf") as emulator, Client(open_transport(emulator.url)) as client:
        client.hello()
        names = MemoryMap(module).names
        for given, array in zip(module.inputs, data.values(), strict=True):
            client.write_tensor(names.index(given), array.tobytes())
        client.profile()
        for made, wanted in zip(module.outputs, graph.outputs, strict=True):
            assert client.read_tensor(names.index(made)) == values[wanted].tobytes(), wanted


@pytest.mark.parametrize("optimize", ["balanced", "size"])
def test_weights_that_fit_are_packed(optimize: str) -> None:
    """Without being asked for, at half the flash."""
    net = Network(x=TensorType((1, 128), "int8"))
    net.op("dense", "x", net.constant(net.rng.integers(-7, 8, (64, 128)).astype(np.int8)), out_dtype="int32")
    module = compile_graph(net.graph(), "net", target_for("cortex-m4"), make_options(optimize=optimize))
    assert module.const_bytes == 64 * 128 // 2


def clustered(net: Network, units: int, depth: int) -> str:
    """Weights of 16 values in each channel."""
    values = net.rng.integers(-128, 128, (units, 16))
    return net.constant(np.take_along_axis(values, net.rng.integers(0, 16, (units, depth)), 1).astype(np.int8))


@pytest.mark.parametrize(("optimize", "stored"), [("balanced", 64 * (64 + 16)), ("speed", 2 * 64 * 128)])
def test_columns_are_opened_for_many_rows(optimize: str, stored: int) -> None:
    """Tables stay in flash where many rows share what opening takes, unless flash costs nothing."""
    net = Network(x=TensorType((96, 128), "int8"))
    net.op("dense", "x", clustered(net, 64, 128), out_dtype="int32")
    module = compile_graph(net.graph(), "net", target_for("cortex-m4"), make_options(optimize=optimize))
    assert module.const_bytes == stored
    assert (module.calls[0].rule == "matrix opened columns") == (optimize == "balanced")
