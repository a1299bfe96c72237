# SPDX-License-Identifier: Apache-2.0
"""Frames in Python: round trips, damage, resynchronisation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from microc.device.line_protocol import OVERHEAD, Frame, FrameDecoder, encode_frame, encode_with_crc

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
