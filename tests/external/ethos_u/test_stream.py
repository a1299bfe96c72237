# SPDX-License-Identifier: Apache-2.0
"""What Vela hands to the driver, taken to pieces: what is whole passes, every defect has its word."""

from __future__ import annotations

import numpy as np
import pytest

from microc.errors import ToolError
from microc.external.ethos_u.accelerator import ACCELERATORS, check_payload

U55, U65 = ACCELERATORS["ethos-u55-128"], ACCELERATORS["ethos-u65-512"]
SIZES = (1024, 2048, 2048)
CONFIG = [0x00000001, 0x00001807, 0x10066001, 5, 5, 5]


def short(code: int, parameter: int = 0) -> list[int]:
    return [parameter << 16 | code]


def long(code: int, value: int) -> list[int]:
    return [(value >> 32) << 16 | 0x4000 | code, value & 0xFFFFFFFF]


def map_at(kind: int, base: int, rows: int, width: int, depth: int, brick: bool = False, region: int = 1) -> list[int]:
    """Registers of a feature map of int8: of one tile, row by row or in bricks of 16 channels."""
    words = short(0x100 | kind | 0xF, region) + short({0: 0x105, 0x10: 0x114, 0x80: 0x185}[kind], 0x41 if brick else 1)
    for code, value in ((0xA, width - 1), (0xB, rows - 1), (0xC, rows - 1)):
        words += short(0x100 | kind | code, value)
    steps = (16, width * -(-depth // 16) * 16, width * 16) if brick else (depth, width * depth, 1)
    bases = [*long(kind, base), *long(kind | 1, 0), *long(kind | 2, 0), *long(kind | 3, 0)]
    return words + bases + [word for k, step in enumerate(steps) for word in long(kind | 4 + k, step)]


DATA = [*map_at(0, 0, 4, 4, 8), *short(0x104, 7)]
RESULT = [*map_at(0x10, 1024, 4, 4, 16, brick=True), *short(0x112, 3), *short(0x113, 15)]
WEIGHTS = [*short(0x128), *short(0x129), *long(0x20, 0), *long(0x21, 512), *long(0x22, 512), *long(0x23, 160)]
CONV, POOL, SUM, STOP = short(2), short(5), short(6), short(0, 0xFFFF)
COPY = [*short(0x130), *short(0x131, 2), *long(0x30, 0), *long(0x31, 0), *long(0x32, 1024), *short(0x10)]
WHOLE = [*COPY, *DATA, *RESULT, *WEIGHTS, *CONV, *POOL, *map_at(0x80, 64, 4, 4, 8), *short(0x180), *SUM, *STOP]


def payload(words: list[int], config: list[int] = CONFIG) -> bytes:
    framed = [int.from_bytes(b"COP1", "little"), *config, len(words) << 16 | 2, *words]
    return np.array(framed, "<u4").tobytes()


def test_what_is_whole_passes() -> None:
    check_payload(payload(WHOLE), U55, SIZES)
    check_payload(payload(WHOLE, [1, 0x10003009, 0x10066001, 5, 5, 5]), U65, SIZES)
    internal = [
        *short(0x130),
        *short(0x131, 0x103),
        *long(0x30, 0),
        *long(0x31, 22528),
        *long(0x32, 1024),
        *short(0x10),
    ]
    check_payload(payload([*internal, *STOP]), U55, SIZES)
    scalar = [*DATA, *RESULT, *short(0x180, 0x80), *SUM, *STOP]
    check_payload(payload(scalar), U55, SIZES)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the payload has 0 bytes"),
        (payload(WHOLE)[:-2], "the payload has"),
        (b"COP2" + payload(WHOLE)[4:], "expected b.COP1"),
        (payload(WHOLE)[:-4], "driver action 2"),
        (payload(WHOLE, [1, 0x1807, 0x10066001]), "begins at byte 20"),
        (payload(WHOLE, [5] * 6), "0 configurations"),
        (payload(WHOLE, [1, 0x3008, 0x10066001, 5, 5, 5]), "family 0 with 256 multiply"),
        (payload(WHOLE, [9, *CONFIG[1:]]), "driver action 9"),
        (payload(WHOLE) + payload(WHOLE)[28:], "2 command streams|driver action|begins at"),
        (payload([*WHOLE[:-1]]), "no command that ends it"),
        (payload([*STOP, *STOP]), "1 words follow the end"),
        (payload([0x00000004, *STOP]), "command 0x00000004"),
        (payload([0x00008100, *STOP]), "command 0x00008100"),
        (payload([*POOL, *STOP]), "is read before it is set"),
        (payload([*DATA, *map_at(0x10, 1040, 8, 8, 16, True), *RESULT[-2:], *short(0x112, 7), *POOL, *STOP]), "results"),
        (payload([*map_at(0, 2000, 4, 4, 8), *short(0x104, 7), *RESULT, *POOL, *STOP]), "data reach to byte 2,128 of region 1"),
        (payload([*map_at(0, 0, 4, 4, 8, region=3), *short(0x104, 7), *RESULT, *POOL, *STOP]), "region 3"),
        (payload([*DATA, *RESULT, *WEIGHTS, *long(0x21, 1025), *CONV, *STOP]), "weights reach to byte 1,025 of region 0"),
        (payload([*DATA, *RESULT, *WEIGHTS, *long(0x20, 8), *CONV, *STOP]), "weights begin at byte 8 of region 0"),
        (payload([*DATA, *RESULT, *long(0x10, 1032), *POOL, *STOP]), "results begin at byte 1,032 of region 1"),
        (payload([*DATA, *RESULT, *WEIGHTS, *long(0x22, 1 << 33), *CONV, *STOP]), "scales reach"),
        (payload([*COPY[:-1], *long(0x32, 4096), *short(0x10), *STOP]), "copied data reach to byte 4,096"),
        (payload([*COPY[:-1], *long(0x31, 1536), *short(0x10), *STOP]), "copies reach to byte 2,560 of region 2"),
    ],
)  # fmt: skip
def test_every_defect_has_its_word(data: bytes, said: str) -> None:
    with pytest.raises(ToolError, match=f"fails the check: .*({said})"):
        check_payload(data, U55, SIZES)


def test_rows_behind_the_first_tile_lie_in_the_third() -> None:
    split = [*map_at(0x10, 1024, 2, 4, 16), *short(0x112, 3), *short(0x113, 15)]
    check_payload(payload([*DATA, *split, *long(0x12, 0), *POOL, *STOP]), U55, SIZES)
    with pytest.raises(ToolError, match="results reach to byte 2,128 of region 1"):
        check_payload(payload([*DATA, *split, *long(0x12, 2000), *POOL, *STOP]), U55, SIZES)


@pytest.mark.parametrize("seed", range(40))
def test_random_damage_is_refused_or_harmless(seed: int) -> None:
    rng, whole = np.random.default_rng(seed), bytearray(payload(WHOLE))
    for _ in range(3):
        whole[rng.integers(len(whole))] = rng.integers(256)
    try:
        check_payload(bytes(whole), U55, SIZES)
    except ToolError as error:
        assert "fails the check" in error.what
