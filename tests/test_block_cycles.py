# SPDX-License-Identifier: Apache-2.0
"""Model cycles of blocks: reading a disassembly, cutting it by counts, and what llvm-mca is given."""

from __future__ import annotations

import pytest

from benchmarks.maintain.block_cycles import (
    count_issues,
    is_dependent,
    is_strict_pair,
    model_cycles,
    parse_disassembly,
    split_blocks,
    strict_cycles,
    translate_block,
)
from tests.device.smoke import needs

DISASSEMBLY = """
firmware.elf:\tfile format elf32-littlearm

00000100 <scale>:
     100:      \tdls\tlr, r2
     104:      \tvldrb.s32\tq0, [r0], #4
     108:      \tvpst
     10c:      \tvaddt.i32\tq0, q0, q1
     110:      \tle\tlr, #-0x10
     114:      \tcmp\tr3, #0x0               @ imm = #0x0
     116:      \tite\teq
     118:      \tmoveq.w\tr0, r1
     11c:      \tvmovne.f32\ts0, s1
     120:      \tbx\tlr
     122:      \tnop
     124: 00 20 00 20  \t.word\t0x20002000

00000128 <copy.constprop.0>:
     128:      \tbx\tlr
"""
COUNTS = dict.fromkeys((256, 276, 278, 280, 284, 288, 296), 2) | dict.fromkeys((260, 264, 268, 272), 9)


def test_blocks_of_a_disassembly() -> None:
    blocks = split_blocks(parse_disassembly(DISASSEMBLY), COUNTS)
    assert [(b.instructions[0].function, b.instructions[0].address, b.count) for b in blocks] == [
        ("scale", 0x100, 2),
        ("scale", 0x104, 9),
        ("scale", 0x114, 2),
        ("copy.constprop.0", 0x128, 2),
    ]
    assert sum(b.count * len(b.instructions) for b in blocks) == sum(COUNTS.values())
    assert [translate_block(b) for b in blocks] == [
        ["nop"],
        ["vldrb.s32 q0, [r0], #4", "vpst", "vaddt.i32 q0, q0, q1"],
        ["cmp r3, #0x0", "mov.w r0, r1", "vmov.f32 s0, s1", "nop"],
        ["nop"],
    ]


def test_rules_of_pairs() -> None:
    load, product = "ldr r3, [r4], #4", "smlad r0, r1, r2, r0"
    assert is_strict_pair(product, load)
    assert not is_strict_pair(load, product)
    assert is_strict_pair(load, "smlal r0, r1, r2, r3")
    assert not is_strict_pair("sxtb16 r1, r2", load)
    assert not is_strict_pair("ldrd r0, r1, [r2]", "add r3, r3, r5")
    assert is_dependent(load, "add r0, r0, r4")
    assert is_dependent("ldrd r0, r1, [r2]", "add r3, r3, r1")
    assert not is_dependent("str r0, [r2]", "add r3, r0, r2")
    assert count_issues([load, product, load, product], is_strict_pair) == 3


@needs("llvm-mca-19")
def test_cycles_of_blocks() -> None:
    loop = [line for k in range(3, 9) for line in (f"smlad r0, r1, r2, r{k}", f"ldr r{k}, [r12]")]
    regions = [loop, ["ldrd r0, r1, [r2]"], ["sxtb16 r0, r1", "add r2, r3"], [], ["not_an_instruction"]]
    cycles, unknown = model_cycles("cortex-m4", regions)
    assert unknown == {"not_an_instruction"}
    assert cycles[3] == 0
    strict = strict_cycles("cortex-m4", regions, cycles)
    assert [s - c for s, c in zip(strict, cycles, strict=True)] == pytest.approx([0, 2, 0, 0, 0])
    cycles, _ = model_cycles("cortex-m7", regions)
    strict = strict_cycles("cortex-m7", regions, cycles)
    assert [s - c for s, c in zip(strict, cycles, strict=True)] == pytest.approx([0, 0, 1, 0, 0])
    assert cycles[0] == pytest.approx(len(loop) / 2, rel=0.1)
