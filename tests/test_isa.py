# SPDX-License-Identifier: Apache-2.0
"""Instruction sets: no instruction is named outside their files, nor in the C of other cores; what they hold is whole."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

import microc
from microc.base.dtypes import is_vector
from microc.codegen.c.libm import HALF_FLOAT_HELPERS
from microc.codegen.c.source import network_files
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.boards import make_board_of_core
from microc.device.toolchain import parse_library_target
from microc.isa import ALIASES, CORES, FAMILIES, SCALAR, TENSOR
from microc.target import GOALS, target_for
from tests.support import digits
from tests.support.campaign import everything, in_turn

PACKAGE = Path(microc.__file__).parent
MNEMONIC = re.compile(
    r"\b([su]?ml[as](d|ld|al|s|w)?[btxy]{0,2}|smml?[alsu]{0,2}r?|smu[al]?[ds]x?|[su]mul(l|w|bb|bt|tb|tt)?|[su]xta?[bh](16)?"
    r"|[su]h?(add|sub)(8|16)|[qu]{1,2}(add|sub)(8|16)|qd(add|sub)|[su]sat(16|8)?|pkh(bt|tb)|usada?8"
    r"|v(?!store\b|(mov|min|max|rnd)\w*(ps|dqu\d*)\b)(ml|qr|r|ld|st|add|sub|mul|shl|min|max|and|orr|eor|psel|cmp|ctp|dup|idup|cvt|mov)[a-z]*\d*q?(_[a-z0-9_]+)?|q?r?dml?ulh"
    r"|dlst?p?|letp|ld[rm](sb|sh|b|h|d|ia)|st[rm](b|h|d|ia)|arm_mve|__arm_\w+)\b",
    re.IGNORECASE,
)
"""Arm's instructions, and macros that tell of them, as far as networks use them; words of x86-64 and OpenCL begin alike."""


def test_what_a_mnemonic_is() -> None:
    arm = "".join(p.read_text(encoding="utf-8") for p in (PACKAGE / "isa").rglob("arm*.py"))
    found = {m[0].lower() for m in MNEMONIC.finditer(arm)}
    assert {"smlad", "smlabt", "sxtb16", "smmlar", "ssat", "usat", "pkhbt", "vmladava", "vqrdmulhq", "vcvtr"} <= found


def test_arm_instructions_stand_in_their_files_alone() -> None:
    paths = [p for p in chain(PACKAGE.rglob("*.py"), PACKAGE.rglob("*.md")) if not p.name.startswith("arm")]
    assert len(paths) > 400
    for path in paths:
        assert not [m[0] for m in MNEMONIC.finditer(path.read_text(encoding="utf-8"))], path


OTHERS = [name for name, core in CORES.items() if core.family not in ("arm", "aarch64", "armv6", "armv7a")]
BY_SETS = {(CORES[name].family, CORES[name].lanes, *map(id, CORES[name].sets)): name for name in OTHERS}
"""One core of those that have the same instructions."""


@pytest.mark.parametrize(
    ("cpu", "source"),
    in_turn(OTHERS if everything() else list(BY_SETS.values()), [digits.INT8, digits.QDQ, digits.FLOAT]),
    ids=lambda part: getattr(part, "stem", part),
)
def test_c_for_other_cores_names_none(source: Path, cpu: str) -> None:
    text = network_files(compile_model(source, target_for(cpu), make_options()), "test")["model.c"]
    assert not [m[0] for m in MNEMONIC.finditer(text)]


@pytest.mark.parametrize("cpu", CORES)
def test_sets_are_whole(cpu: str) -> None:
    core = CORES[cpu]
    assert set(FAMILIES[core.family].options) == set(GOALS) and core in FAMILIES[core.family].cores
    for instructions in core.sets:
        assert set(instructions.bodies) <= {*SCALAR, *HALF_FLOAT_HELPERS}
        kinds = {p.name for name in instructions.bodies if name in SCALAR for p in SCALAR[name].params}
        assert all(b.loop is None or b.loop.count_parameter in kinds for b in instructions.bodies.values())
        counted = [
            (b.operations, b.loop.operations_per_iteration if b.loop else ()) for b in instructions.bodies.values()
        ]
        assert all(len(dict(each)) == len(each) for each in chain(*counted)), (
            "of a kind that is told twice the last counts"
        )


@pytest.mark.parametrize("cpu", [name for name, core in CORES.items() if core.units])
def test_vectors_without_subscripts_have_all_words(cpu: str) -> None:
    """What has subscripts is printed lane by lane; others need a body. Schedules ask for words of pairs and bytes, for
    products by numbers, for stores of halves and for what saturates."""
    types = {t for s in CORES[cpu].units if s.unit and not s.unit.has_lane_subscripts for t in s.unit.c_types}
    kinds = {name: {i.result, *(p.dtype for p in i.params)} for name, i in SCALAR.items() if i.lanes}
    words = {name for name, found in kinds.items() if {kind for kind in found if is_vector(kind)} <= types}
    asked = re.compile(r"(dot\d_|(load|dup)_(i16x2|[iu]8x4)_|fma_n_|store_f16_|(store_)?saturated?_)\w+")
    assert not {name for name in words - CORES[cpu].has if not asked.match(name)}


def test_words_of_the_vocabulary_are_whole() -> None:
    for name, intrin in SCALAR.items():
        assert intrin.name == name and {label for label, *_ in intrin.limits} <= {p.name for p in intrin.params}, name


def test_tensor_intrinsics_are_made_of_the_vocabulary() -> None:
    assert all(t.required_intrinsics <= set(SCALAR) for t in TENSOR.values())


@pytest.mark.parametrize("name", ALIASES)
def test_another_name_is_the_same_core(name: str) -> None:
    assert name not in CORES
    assert target_for(name) == target_for(ALIASES[name]) == parse_library_target(name)
    assert make_board_of_core(name) == make_board_of_core(ALIASES[name])
