# SPDX-License-Identifier: Apache-2.0
"""Frames in Python: round trips, damage, resynchronisation."""

from __future__ import annotations

import random
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microc.base import file_access
from microc.device.line_protocol import (
    OVERHEAD,
    REPLY,
    Frame,
    FrameDecoder,
    Operation,
    Status,
    encode_frame,
    encode_with_crc,
)

bytes_ = st.integers(0, 255)
frames = st.builds(
    Frame, bytes_, st.integers(0, 65535), bytes_, bytes_, st.binary(max_size=600) | st.just(b"\0" * 300), bytes_
)


@given(frames)
def test_round_trip(frame: Frame) -> None:
    decoder = FrameDecoder()
    line = encode_frame(frame)
    assert 0 not in line[1:-1]
    assert len(line) <= len(frame.payload) + OVERHEAD + (len(frame.payload) + OVERHEAD) // 254 + 3
    assert decoder.feed(line) == [frame]
    assert decoder.bad == 0


def test_the_example_of_the_specification_decodes() -> None:
    text = (file_access.runtime_c_folder() / "SPEC.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| to the (?:board|host) \| `([0-9a-f ]+)` \| `(\w+)`.*?(?:payload `([0-9a-f ]+)`.*)?\|$", text, re.M
    )
    received = FrameDecoder().feed(b"".join(b"\0" + bytes.fromhex(line) + b"\0" for line, _, _ in rows))
    assert [frame.payload for frame in received] == [bytes.fromhex(payload) for _, _, payload in rows]
    hello, reply, read = received
    assert [hello.operation, reply.operation, read.operation] == [
        Operation[rows[0][1]], Operation.HELLO | REPLY, Operation[rows[2][1]],
    ]  # fmt: skip
    assert {frame.session for frame in received} == {0x1234} and [f.sequence for f in received] == [7, 7, 8]
    assert reply.status == Status[rows[1][1]] and struct.unpack("<HBBI", reply.payload) == (256, 1, 1, 1_000_000)
    assert struct.unpack("<HIH", read.payload) == (1, 0, 10)


@given(st.lists(frames, max_size=5), st.randoms(use_true_random=False))
def test_any_split_gives_the_same_frames(sent: list[Frame], chance: random.Random) -> None:
    line = b"".join(map(encode_frame, sent))
    decoder = FrameDecoder()
    received = []
    while line:
        at = chance.randrange(1, len(line) + 1)
        received += decoder.feed(line[:at])
        line = line[at:]
    assert received == sent


@given(frames, st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_costs_one_frame(frame: Frame, position: int, bit: int) -> None:
    line = bytearray(encode_frame(frame))
    line[1 + position % (len(line) - 2)] ^= 1 << bit
    decoder = FrameDecoder()
    assert decoder.feed(bytes(line)) == []
    assert decoder.bad >= 1
    assert decoder.feed(encode_frame(frame)) == [frame]


def test_noise_before_a_frame_is_skipped() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"boot: hello\r\n" + encode_frame(Frame(1, 2, 3))) == [Frame(1, 2, 3)]
    assert decoder.bad == 1


@pytest.mark.parametrize(
    "body", [b"", b"\x01" * 7, b"\x01\x01\x01\x00\x00\x00\x05\x00"], ids=["empty", "short", "length"]
)
def test_a_right_crc_alone_does_not_make_a_frame(body: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(encode_with_crc(body)) == []
    assert decoder.bad == 1


def test_endless_noise_is_not_kept() -> None:
    decoder = FrameDecoder()
    for _ in range(100):
        decoder.feed(b"x" * 10000)
    assert len(decoder._pending) < 10000
    assert decoder.feed(b"\0" + encode_frame(Frame(1, 2, 3))) == [Frame(1, 2, 3)]


def test_status_is_signed() -> None:
    assert [Frame(1, 2, 3, argument).status for argument in (0, 1, 255, 245)] == [0, 1, -1, -11]
